//! Whether the sizes of a call fit a program.
//!
//! A graph with symbols holds for the sizes its author thought of: a slice up to `length` is as long as `length` only
//! where there is so much to slice. So the shapes are inferred again with the numbers of a call.

use mithril_ir::build::Builder;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Def, Graph, Node, ValueId};
use mithril_ir::interp::{Symbols, resolve, resolve_lit};
use mithril_ir::{DType, Dim, Lit, Shape};

/// The error that the program does not hold for these sizes, at the first op where it shows.
pub fn misfit(graph: &Graph, symbols: &Symbols, float: DType) -> Option<Error> {
    if symbols.is_empty() {
        return None;
    }
    infer_again(graph, symbols, float).err()
}

fn infer_again(graph: &Graph, symbols: &Symbols, float: DType) -> Result<()> {
    let sizes = |shape: &Shape| shape.iter().map(|d| resolve(d, symbols)).collect::<Result<Vec<i64>>>();
    let mut builder = Builder::new(float);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values().len()];
    for (v, value) in graph.values() {
        map[v.index()] = match (&value.def, &value.ty) {
            (Def::Const(lit), _) => Some(builder.graph.add_literal(resolve_lit(lit, symbols)?)),
            (Def::Input(role), Some(ty)) => {
                let name = value.name.clone().unwrap_or_else(|| "input".into());
                let mut ty = ty.clone();
                ty.shape = Shape::of(sizes(&ty.shape)?);
                Some(builder.graph.add_input(name, *role, ty))
            }
            _ => None,
        };
    }
    for (n, node) in graph.nodes() {
        builder.set_origin(graph.place(n).clone());
        let inputs: Option<Vec<ValueId>> = node.inputs.iter().map(|v| map[v.index()]).collect();
        let inputs = inputs.ok_or_else(|| Error::internal("a value is used before it is defined"))?;
        let expected: Vec<_> = node.outputs.iter().filter_map(|&v| graph.ty(v)).collect();
        let outputs = if expected.iter().all(|ty| ty.shape.known().is_some()) && !has_symbols(graph, node) {
            let types: Vec<_> = expected.iter().map(|&ty| ty.clone()).collect();
            builder.push_typed(node.op, inputs.into_iter().collect(), types)
        } else {
            builder.push(node.op, &inputs)?
        };
        for ((&old, &new), expected) in node.outputs.iter().zip(&outputs).zip(expected) {
            let actual = builder.graph.ty(new).map(|ty| sizes(&ty.shape)).transpose()?;
            let needed = sizes(&expected.shape)?;
            if let Some(actual) = actual.filter(|actual| *actual != needed) {
                return Err(differs(node, &expected.shape, &needed, &actual, symbols).at(graph.place(n)));
            }
            map[old.index()] = Some(new);
        }
    }
    Ok(())
}

/// Whether an input of the node depends on a symbol.
fn has_symbols(graph: &Graph, node: &Node) -> bool {
    node.inputs.iter().any(|&v| match (graph.lit(v), graph.ty(v)) {
        (Some(lit), _) => holds_symbol(lit),
        (None, ty) => ty.is_some_and(|ty| ty.shape.known().is_none()),
    })
}

fn holds_symbol(lit: &Lit) -> bool {
    let is_symbolic = |dim: &Dim| dim.known().is_none();
    match lit {
        Lit::Int(dim) => is_symbolic(dim),
        Lit::Tuple(items) => items.iter().any(holds_symbol),
        Lit::Slice(parts) => parts.iter().any(holds_symbol),
        _ => false,
    }
}

fn differs(node: &Node, shape: &Shape, needed: &[i64], actual: &[i64], symbols: &Symbols) -> Error {
    let (actual_shape, needed_shape) = (Shape::of(actual.to_vec()), Shape::of(needed.to_vec()));
    let message = format!("{} gives {actual_shape}, and {needed_shape} is needed", node.op.name);
    let mut error =
        Error::new(Code::ShapeMismatch, format!("the sizes of this call do not match the model: {message}"));
    let mut help = "give data of other sizes".to_owned();
    for (axis, dim) in shape.iter().enumerate() {
        let Some((symbol, n)) = dim.as_symbol().and_then(|s| Some((s, symbols.get(s)?))) else { continue };
        error = error.note(format!("{symbol} is {n} in this call"));
        if let Some(m) = actual.get(axis).filter(|m| *m < n) {
            help = format!("the model has room for {m}: give data in which {symbol} is at most {m}");
        }
    }
    error.help(help)
}
