//! How far an output may be from the recorded one.

use std::collections::HashSet;

use mithril_ir::DType;
use mithril_ir::graph::{Def, Graph, Role, ValueId};

/// How far an output of a graph may be from a recorded one, in parts of its largest element; 0 for what is compared bit
/// for bit. It follows from the coarsest dtype that it is rounded to on the way; see `docs/tolerances.md`.
pub fn allowed_distance(graph: &Graph, output: &str) -> f64 {
    match coarsest(graph, output) {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        DType::F16 => 2e-2,
        DType::BF16 => 1e-1,
        _ => 0.0,
    }
}

/// The coarsest dtype that an output was rounded to on the way, where it is a float: mixed precision computes in
/// bfloat16 what comes out as float32. States bring in what they were updated with in the call before.
fn coarsest(graph: &Graph, output: &str) -> DType {
    let Some(&start) = graph.outputs.get(output) else { return DType::Bool };
    let float = |v: ValueId| graph.ty(v).map(|ty| ty.dtype).filter(|dtype| dtype.is_float());
    let Some(mut coarsest) = float(start) else { return DType::Bool };
    let (mut open, mut seen) = (vec![start], HashSet::from([start]));
    while let Some(v) = open.pop() {
        let before: Vec<ValueId> = match graph.value(v).def {
            Def::Node(node, _) => {
                if let Some(dtype) = float(v).filter(|dtype| dtype.epsilon() > coarsest.epsilon()) {
                    coarsest = dtype;
                }
                graph.node(node).inputs.to_vec()
            }
            Def::Input(Role::State) => {
                graph.updates.iter().filter(|(state, _)| *state == v).map(|(_, new)| *new).collect()
            }
            _ => Vec::new(),
        };
        open.extend(before.into_iter().filter(|v| seen.insert(*v)));
    }
    coarsest
}
