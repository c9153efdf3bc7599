//! A virtual mesh: the programs of all devices, run in step in one process by the reference interpreter.

use std::sync::Arc;

use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Graph, Node};
use mithril_ir::interp::{self, Symbols};
use mithril_ir::op::OpDef;
use mithril_ir::ops::collective;
use mithril_ir::tensor::{Tensor, strides};
use mithril_ir::{DType, Lit, ValueId};

use super::mesh::Mesh;
use super::pass::Partitioned;
use super::rule::{Placement, Reduction};
use super::sections::Sections;

/// Runs a partitioned graph on whole inputs; the whole outputs, then the new states.
///
/// # Errors
/// If an input does not fit, or the program divides a tensor otherwise than it says.
pub fn run(program: &Partitioned, inputs: &[Arc<Tensor>]) -> Result<Vec<Arc<Tensor>>> {
    let counts: Vec<usize> = program.mesh.axes().iter().map(|(_, n)| *n).collect();
    let devices = parts(program, inputs)?;
    let of_all = |i: usize| devices.iter().map(|results| results[i].clone()).collect();
    Ok(program
        .outputs
        .iter()
        .enumerate()
        .map(|(i, placements)| whole(of_all(i), placements, &counts))
        .collect())
}

/// The same as each device has it.
///
/// # Errors
/// As for [`run`].
pub fn parts(program: &Partitioned, inputs: &[Arc<Tensor>]) -> Result<Vec<Vec<Arc<Tensor>>>> {
    let places = program.inputs.iter().zip(inputs);
    let of_device = |at: &[usize]| {
        places.clone().map(|(placements, whole)| part(program, placements, whole, at)).collect()
    };
    let own = (0..program.mesh.devices()).map(|i| of_device(&program.mesh.coordinates(i))).collect();
    on_devices(&program.graph, &program.mesh, own)
}

/// Runs a graph on the inputs of each device; the results of each.
///
/// # Errors
/// If an input does not fit.
pub fn on_devices(
    graph: &Graph,
    mesh: &Mesh,
    inputs: Vec<Vec<Arc<Tensor>>>,
) -> Result<Vec<Vec<Arc<Tensor>>>> {
    let devices: Vec<Vec<usize>> = (0..mesh.devices()).map(|i| mesh.coordinates(i)).collect();
    let mut values: Vec<Vec<Option<Arc<Tensor>>>> = vec![vec![None; graph.values().len()]; devices.len()];
    for (own, values) in inputs.into_iter().zip(&mut values) {
        interp::bind(graph, &own)?;
        for (&v, part) in graph.inputs.iter().zip(own) {
            values[v.index()] = Some(part);
        }
    }
    for (n, node) in graph.nodes() {
        if collective::is_collective(node.op) {
            exchange(graph, mesh, node, &devices, &mut values)?;
            continue;
        }
        for values in &mut values {
            let outputs = interp::eval_node(graph, node, values, &Symbols::default());
            let outputs = outputs.map_err(|e| e.at(graph.place(n)))?;
            for (&v, t) in node.outputs.iter().zip(outputs) {
                values[v.index()] = Some(t);
            }
        }
    }
    let results: Vec<ValueId> =
        graph.outputs.values().chain(graph.updates.iter().map(|(_, new)| new)).copied().collect();
    let of_device =
        |values: &Vec<Option<Arc<Tensor>>>| results.iter().map(|&v| read(graph, v, values)).collect();
    values.iter().map(of_device).collect()
}

/// What the device at these coordinates holds of a tensor that is divided so.
pub fn part(
    program: &Partitioned,
    placements: &[Placement],
    whole: &Arc<Tensor>,
    at: &[usize],
) -> Arc<Tensor> {
    let axes = program.mesh.axes().iter().map(|(_, n)| *n);
    let places = placements.iter().zip(at).zip(axes);
    places.fold(whole.clone(), |part, ((placement, &i), n)| placed(&part, *placement, i, n))
}

/// The whole of a result, from the parts of all devices.
pub fn whole(mut parts: Vec<Arc<Tensor>>, placements: &[Placement], counts: &[usize]) -> Arc<Tensor> {
    // The innermost axis of the mesh divides last, so its parts are neighbors.
    for (placement, &n) in placements.iter().zip(counts).rev() {
        parts = parts
            .chunks(n)
            .map(|group| match placement {
                Placement::Shard(axis) => Arc::new(joined(group, *axis)),
                Placement::Sections(axis, sections) => Arc::new(joined_sections(group, *axis, sections)),
                _ => group[0].clone(),
            })
            .collect();
    }
    parts.swap_remove(0)
}

fn read(graph: &Graph, v: ValueId, values: &[Option<Arc<Tensor>>]) -> Result<Arc<Tensor>> {
    match (&values[v.index()], &graph.value(v).def) {
        (Some(t), _) | (None, Def::Const(Lit::Tensor(t))) => Ok(t.clone()),
        (None, Def::Const(lit)) => Ok(Arc::new(interp::number(lit, graph.ty(v).map(|t| t.dtype))?)),
        _ => Err(Error::internal(format!("value {} is read before it is computed", v.index()))),
    }
}

/// Computes a collective for the devices of each group along its axis of the mesh.
fn exchange(
    graph: &Graph,
    mesh: &Mesh,
    node: &Node,
    devices: &[Vec<usize>],
    values: &mut [Vec<Option<Arc<Tensor>>>],
) -> Result<()> {
    let Some((name, _)) = collective::mesh_axis_of(graph, node) else {
        return Err(Error::internal("a collective without an axis of the mesh"));
    };
    let mesh_axis = mesh.axis(name)?;
    let is = |op: &'static OpDef| node.op == op;
    let last = node.inputs.get(collective::AXIS).and_then(|&v| graph.lit(v));
    let axis = collective::axis_of(graph, node).unwrap_or(0);
    let reduction = match last {
        Some(Lit::Str(text)) if &**text == "MAX" => Reduction::Max,
        Some(Lit::Str(text)) if &**text == "MIN" => Reduction::Min,
        _ => Reduction::Sum,
    };
    let mut results = Vec::new();
    for at in devices {
        let own = at[mesh_axis];
        if is(&collective::MESH_INDEX) {
            results.push(Arc::new(Tensor::scalar(DType::I64, own as f64)));
            continue;
        }
        let is_peer =
            |other: &Vec<usize>| at.iter().zip(other).enumerate().all(|(i, (a, b))| i == mesh_axis || a == b);
        let mut group = Vec::new();
        for (i, _) in devices.iter().enumerate().filter(|(_, other)| is_peer(other)) {
            group.push(read(graph, node.inputs[0], &values[i])?);
        }
        let n = group.len();
        results.push(Arc::new(match () {
            () if is(&collective::ALL_REDUCE) => {
                let sum = reduced(&group, reduction);
                let is_mean = matches!(last, Some(Lit::Str(text)) if &**text == "MEAN");
                let mean = |i: usize| (sum.get(i).f64() / n as f64).into();
                if is_mean { Tensor::build(sum.dtype(), sum.shape(), mean) } else { sum }
            }
            () if is(&collective::ALL_GATHER) => joined(&group, axis),
            () if is(&collective::REDUCE_SCATTER) => block(&reduced(&group, Reduction::Sum), axis, own, n),
            () if is(&collective::ALL_TO_ALL) => {
                let along = collective::axis_at(graph, node, collective::JOINED).unwrap_or(0);
                let blocks: Vec<_> = group.iter().map(|t| Arc::new(block(t, axis, own, n))).collect();
                joined(&blocks, along)
            }
            () if is(&collective::COLLECTIVE_PERMUTE) => {
                let pairs = last.and_then(collective::pairs_of).unwrap_or_default();
                let from = pairs.iter().find(|(_, to)| *to == own).map(|(from, _)| *from);
                let zeros = || Tensor::build(group[own].dtype(), group[own].shape(), |_| 0_i64.into());
                from.map_or_else(zeros, |from| (*group[from]).clone())
            }
            () => block(&group[own], axis, own, n),
        }));
    }
    for (values, result) in values.iter_mut().zip(results) {
        values[node.outputs[0].index()] = Some(result);
    }
    Ok(())
}

fn reduced(group: &[Arc<Tensor>], by: Reduction) -> Tensor {
    let dtype = group[0].dtype();
    let is_float = dtype.is_float();
    Tensor::build(dtype, group[0].shape(), |i| {
        let all = group.iter().map(|t| t.get(i));
        if is_float {
            let pick = |a: f64, b: f64| match by {
                Reduction::Sum => a + b,
                _ if a.is_nan() || b.is_nan() => f64::NAN,
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
            };
            all.map(mithril_ir::tensor::Scalar::f64).reduce(pick).unwrap_or(0.0).into()
        } else {
            let pick = |a: i64, b: i64| match by {
                Reduction::Sum => a.wrapping_add(b),
                Reduction::Max => a.max(b),
                Reduction::Min => a.min(b),
            };
            all.map(mithril_ir::tensor::Scalar::i64).reduce(pick).unwrap_or(0).into()
        }
    })
}

/// What device `i` of `n` holds of a tensor.
fn placed(t: &Arc<Tensor>, placement: Placement, i: usize, n: usize) -> Arc<Tensor> {
    match placement {
        Placement::Shard(axis) => Arc::new(block(t, axis, i, n)),
        Placement::Sections(axis, sections) => {
            let each = sections.iter().map(|section| {
                let own = range(t, axis, section.start as usize, section.size as usize);
                Arc::new(block(&own, axis, i, n))
            });
            Arc::new(joined(&each.collect::<Vec<_>>(), axis))
        }
        Placement::Replicate | Placement::Partial(_) => t.clone(),
    }
}

/// The whole of a tensor of which each device holds a block of each section.
fn joined_sections(parts: &[Arc<Tensor>], axis: usize, sections: &Sections) -> Tensor {
    let n = parts.len();
    let each = sections.iter().map(|section| {
        let (start, size) = (section.start as usize / n, section.size as usize / n);
        let own: Vec<_> = parts.iter().map(|part| Arc::new(range(part, axis, start, size))).collect();
        Arc::new(joined(&own, axis))
    });
    joined(&each.collect::<Vec<_>>(), axis)
}

/// Block `i` of `n` along an axis.
fn block(t: &Tensor, axis: usize, i: usize, n: usize) -> Tensor {
    let size = t.shape()[axis] / n;
    range(t, axis, i * size, size)
}

/// A part of a tensor along an axis.
fn range(t: &Tensor, axis: usize, start: usize, size: usize) -> Tensor {
    let mut shape = t.shape().to_vec();
    shape[axis] = size;
    let (from, own) = (strides(t.shape()), strides(&shape));
    let count: usize = shape.iter().product();
    let at = (0..count).map(|flat| {
        let mut rest = flat;
        let mut position = 0;
        for (k, stride) in own.iter().enumerate() {
            let coordinate = rest / stride + if k == axis { start } else { 0 };
            rest %= stride;
            position += coordinate * from[k];
        }
        position
    });
    t.select(&shape, at.collect::<Vec<_>>().into_iter())
}

/// Tensors one behind another along an axis.
fn joined(parts: &[Arc<Tensor>], axis: usize) -> Tensor {
    let mut shape = parts[0].shape().to_vec();
    shape[axis] = parts.iter().map(|part| part.shape()[axis]).sum();
    // For each position along the axis the part that has it, and where.
    let places: Vec<(usize, usize)> = parts
        .iter()
        .enumerate()
        .flat_map(|(part, t)| (0..t.shape()[axis]).map(move |at| (part, at)))
        .collect();
    let own: Vec<Vec<usize>> = parts.iter().map(|part| strides(part.shape())).collect();
    let whole = strides(&shape);
    Tensor::build(parts[0].dtype(), &shape, |flat| {
        let at = flat / whole[axis] % shape[axis];
        let (part, place) = places[at];
        let (mut rest, mut position) = (flat, 0);
        for (k, stride) in whole.iter().enumerate() {
            let coordinate = rest / stride;
            rest %= stride;
            position += own[part][k] * if k == axis { place } else { coordinate };
        }
        parts[part].get(position)
    })
}
