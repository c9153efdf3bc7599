//! The verifier, which runs after every pass in debug and test builds. It checks that
//! 1. every value is defined before it is used, and inputs and outputs exist;
//! 2. every op accepts its inputs: kinds of values, dtypes, shapes, arguments;
//! 3. conversions are explicit: operands have the dtype that the rule of the op requires;
//! 4. every output has the dtype and shape that the rules infer;
//! 5. dimensions contain no variables of the solver.

use crate::build::Builder;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Def, Graph, Node, TensorType, ValueId, Values};
use crate::literal::Lit;

/// Checks a typed graph; `float` is the default float it was built with. The error is a defect of a pass.
pub fn verify(graph: &Graph, float: DType) -> Result<()> {
    let mut rebuilt = Rebuilt { builder: Builder::new(float), map: vec![None; graph.values().len()] };
    for &v in &graph.inputs {
        let value = graph.value(v);
        let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else {
            return Err(Error::internal(format!("input {} is not a typed input", v.index())));
        };
        no_variables(ty)?;
        rebuilt.map[v.index()] = Some(rebuilt.builder.graph.add_input("x", *role, ty.clone()));
    }
    for (n, node) in graph.nodes() {
        let at = |problem: &str| Error::internal(format!("node {} ({}) {problem}", n.index(), node.op.name));
        let outputs =
            rebuilt.derive(graph, node, &at).map_err(|e| e.note(format!("at node {}", n.index())))?;
        if outputs.len() != node.outputs.len() {
            return Err(at(&format!("has {} outputs", node.outputs.len())));
        }
        for (&old, new) in node.outputs.iter().zip(outputs) {
            rebuilt.compare(graph, old, new, &at)?;
        }
    }
    let read = graph.outputs.values().chain(graph.updates.iter().flat_map(|(input, value)| [input, value]));
    for v in read {
        if rebuilt.map[v.index()].is_none() && !graph.lit(*v).is_some_and(Lit::is_numeric) {
            return Err(Error::internal(format!("output {} is not defined", v.index())));
        }
    }
    Ok(())
}

/// The graph, rebuilt from its ops alone.
struct Rebuilt {
    builder: Builder,
    map: Vec<Option<ValueId>>,
}

impl Rebuilt {
    fn derive(&mut self, graph: &Graph, node: &Node, at: &dyn Fn(&str) -> Error) -> Result<Values> {
        let mut inputs = Values::new();
        for &v in &node.inputs {
            inputs.push(match (self.map[v.index()], graph.lit(v)) {
                (Some(new), _) => new,
                (None, Some(lit)) => self.builder.graph.add_literal(lit.clone()),
                (None, None) => return Err(at("uses a value before it is defined")),
            });
        }
        let before = self.builder.graph.nodes().len();
        let outputs = self.builder.push(node.op, &inputs)?;
        let mut added = self.builder.graph.nodes().skip(before);
        match (added.next(), added.next()) {
            (Some((_, new)), None) if new.inputs == inputs => Ok(outputs),
            _ => Err(at("needs conversions of its inputs")),
        }
    }
    fn compare(
        &mut self,
        graph: &Graph,
        old: ValueId,
        new: ValueId,
        at: &dyn Fn(&str) -> Error,
    ) -> Result<()> {
        let (stated, derived) = (graph.ty(old), self.builder.graph.ty(new));
        if stated != derived {
            let show = |ty: Option<&TensorType>| ty.map_or("nothing".into(), ToString::to_string);
            return Err(at(&format!("has the type {}, but its op infers {}", show(stated), show(derived))));
        }
        if let Some(ty) = stated {
            no_variables(ty)?;
        }
        self.map[old.index()] = Some(new);
        Ok(())
    }
}

fn no_variables(ty: &TensorType) -> Result<()> {
    if ty.shape.iter().any(Dim::has_var) {
        return Err(Error::internal(format!("{ty} contains a variable of the solver")));
    }
    Ok(())
}
