//! The verifier, run after every pass in debug and test builds. It checks that
//! 1. every value is defined before it is used, and inputs and outputs exist;
//! 2. every op accepts its inputs: kinds of values, dtypes, shapes, arguments;
//! 3. no conversion is left implicit: operands already have the dtype that the op's rule asks for;
//! 4. every output has exactly the dtype and shape that the rules derive;
//! 5. dimensions hold no variable of the solver.

use crate::build::Builder;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Def, Graph, TensorType, ValueId, Values};
use crate::literal::Lit;

/// Checks a typed graph; `float` is the default float it was built with. The error is a defect of a pass.
pub fn verify(graph: &Graph, float: DType) -> Result<()> {
    let mut builder = Builder::new(float);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values().len()];
    for &v in &graph.inputs {
        let value = graph.value(v);
        let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else {
            return Err(defect(format!("input {} is no typed input", v.index())));
        };
        no_variables(ty)?;
        map[v.index()] = Some(builder.graph.add_input("x", *role, ty.clone()));
    }
    for (n, node) in graph.nodes() {
        let mut inputs = Values::new();
        for &v in &node.inputs {
            inputs.push(match (map[v.index()], graph.lit(v)) {
                (Some(new), _) => new,
                (None, Some(lit)) => builder.graph.add_literal(lit.clone()),
                (None, None) => {
                    return Err(defect(format!(
                        "node {} ({}) uses a value before it is defined",
                        n.index(),
                        node.op.name
                    )));
                }
            });
        }
        let before = builder.graph.nodes().len();
        let outputs = builder.push(node.op, &inputs).map_err(|e| e.note(format!("at node {}", n.index())))?;
        if builder.graph.nodes().len() != before + 1
            || builder.graph.nodes().next_back().is_some_and(|(_, new)| new.inputs != inputs)
        {
            return Err(defect(format!(
                "node {} ({}) needs conversions of its inputs",
                n.index(),
                node.op.name
            )));
        }
        if outputs.len() != node.outputs.len() {
            return Err(defect(format!(
                "node {} ({}) has {} outputs",
                n.index(),
                node.op.name,
                node.outputs.len()
            )));
        }
        for (&old, new) in node.outputs.iter().zip(outputs) {
            let (stated, derived) = (graph.ty(old), builder.graph.ty(new));
            if stated != derived {
                let show = |ty: Option<&TensorType>| ty.map_or("nothing".into(), ToString::to_string);
                let message = format!(
                    "node {} ({}) states {}, but is {}",
                    n.index(),
                    node.op.name,
                    show(stated),
                    show(derived)
                );
                return Err(defect(message));
            }
            if let Some(ty) = stated {
                no_variables(ty)?;
            }
            map[old.index()] = Some(new);
        }
    }
    let read = graph.outputs.values().chain(graph.updates.iter().flat_map(|(input, value)| [input, value]));
    for v in read {
        if map[v.index()].is_none() && !graph.lit(*v).is_some_and(Lit::is_numeric) {
            return Err(defect(format!("output {} is not defined", v.index())));
        }
    }
    Ok(())
}

fn no_variables(ty: &TensorType) -> Result<()> {
    if ty.shape.iter().any(Dim::has_var) {
        return Err(defect(format!("{ty} holds a variable of the solver")));
    }
    Ok(())
}

fn defect(message: String) -> Error {
    Error::internal(message)
}
