//! Printing graphs.

use std::fmt::Write;

use crate::graph::{Def, Graph, Role, ValueId};

/// The graph as text. Values are numbered in the order of their definition, so that equal graphs print equally.
pub fn print(graph: &Graph) -> String {
    let mut numbers = vec![None; graph.values().len()];
    let mut next = 0;
    let mut number = |v: ValueId| {
        *numbers[v.index()].get_or_insert_with(|| {
            next += 1;
            next - 1
        })
    };
    let mut out = String::from("graph {\n");
    // Writing to a string cannot fail.
    for &v in &graph.inputs {
        let value = graph.value(v);
        let role = match value.def {
            Def::Input(Role::Param) => "param",
            Def::Input(Role::State) => "state",
            Def::Input(Role::Cotangent) => "cotangent",
            _ => "data",
        };
        let name = value.name.as_deref().unwrap_or("");
        let _ = write!(out, "  {role} %{} {name:?}", number(v));
        if let Some(ty) = &value.ty {
            let _ = write!(out, ": {ty}");
        }
        out.push('\n');
    }
    for (n, node) in graph.nodes() {
        out.push_str("  ");
        for (i, &v) in node.outputs.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            let _ = write!(out, "{comma}%{}", number(v));
            if let Some(name) = &graph.value(v).name {
                let _ = write!(out, " {name:?}");
            }
            if let Some(ty) = graph.ty(v) {
                let _ = write!(out, ": {ty}");
            }
        }
        let _ = write!(out, " = {}(", node.op.name);
        for (i, &v) in node.inputs.iter().enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            match graph.lit(v) {
                Some(lit) => _ = write!(out, "{lit}"),
                None => _ = write!(out, "%{}", number(v)),
            }
        }
        let path = graph.place(n).path.as_deref().unwrap_or("");
        let _ = writeln!(out, ") in {path:?}");
    }
    let mut operand = |v: ValueId| match graph.lit(v) {
        Some(lit) => lit.to_string(),
        None => format!("%{}", number(v)),
    };
    for &(input, value) in &graph.updates {
        let (input, value) = (operand(input), operand(value));
        let _ = writeln!(out, "  update {input} = {value}");
    }
    for (name, &v) in &graph.outputs {
        let _ = writeln!(out, "  return {name:?} = {}", operand(v));
    }
    out.push_str("}\n");
    out
}
