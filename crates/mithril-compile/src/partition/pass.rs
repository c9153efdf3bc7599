//! The pass: the axes of the mesh are taken one after another. Along each, placements of the inputs are propagated
//! through the graph ([`super::axis`]), then sums of partial results move to where they cost the least
//! ([`super::reductions`]), and what is computed whole only to be cut is computed in parts ([`super::pull`]).

use mithril_ir::DType;
use mithril_ir::error::{Place, Result};
use mithril_ir::graph::{Def, Graph, Node, NodeId, TensorType, ValueId};
use mithril_ir::op::OpDef;
use mithril_ir::ops::collective;

use super::axis::AxisPass;
use super::memo::Memo;
use super::mesh::{Layout, Mesh};
use super::request::requested;
use super::rule::Placement;
use super::{pull, reductions, seams};

/// A collective of a partitioned graph.
#[derive(Clone, Debug)]
pub struct Communication {
    /// The op: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `collective_permute`.
    pub op: &'static str,
    /// The axis of the mesh.
    pub mesh_axis: String,
    /// Devices along that axis.
    pub devices: usize,
    /// Bytes that each device sends, by the ring algorithm.
    pub bytes: u64,
    /// The part of the model that needs it.
    pub place: Place,
}

/// The program that each device of a mesh runs.
#[derive(Debug)]
pub struct Partitioned {
    /// The graph on the shards of one device.
    pub graph: Graph,
    /// The mesh.
    pub mesh: Mesh,
    /// For each input, how it is divided along each axis of the mesh.
    pub inputs: Vec<Vec<Placement>>,
    /// The same for the outputs, then for the new states.
    pub outputs: Vec<Vec<Placement>>,
    /// What the devices exchange.
    pub communications: Vec<Communication>,
}

/// Partitions a graph whose sizes are numbers.
///
/// Outputs stay divided where that needs no communication; gradients named `gradient_of` and new states are
/// divided as their parameters and states are. `gradient_of` maps the name of an output to that of the
/// parameter whose gradient it is.
///
/// # Errors
/// If the layout names an axis that the mesh or a tensor does not have, a size is not known or does not divide.
pub fn partition(
    graph: &Graph,
    layout: &Layout,
    float: DType,
    gradient_of: &dyn Fn(&str) -> Option<String>,
) -> Result<Partitioned> {
    let mesh = &layout.mesh;
    let mut inputs = requested(graph, layout)?;
    let mut current = graph.clone();
    let mut outputs = vec![Vec::new(); graph.outputs.len() + graph.updates.len()];
    let memo = Memo::default();
    for (axis, (name, devices)) in mesh.axes().iter().enumerate() {
        let mut places: Vec<Placement> = inputs.iter().map(|all| all[axis]).collect();
        if layout.divides_sections {
            places = seams::sectioned(&current, &places, *devices, &memo);
            for (all, place) in inputs.iter_mut().zip(&places) {
                all[axis] = *place;
            }
        }
        let (graph, results) = partition_axis(&current, name, *devices, float, &places, gradient_of, &memo)?;
        for (all, placement) in outputs.iter_mut().zip(results) {
            all.push(placement);
        }
        current = graph;
    }
    let communications = communications(&current);
    Ok(Partitioned { graph: current, mesh: mesh.clone(), inputs, outputs, communications })
}

/// Partitions a graph along one axis of a mesh, with its inputs in these places; where its results lie.
pub(super) fn partition_axis(
    graph: &Graph,
    axis: &str,
    devices: usize,
    float: DType,
    places: &[Placement],
    gradient_of: &dyn Fn(&str) -> Option<String>,
    memo: &Memo,
) -> Result<(Graph, Vec<Placement>)> {
    let (graph, results, _) =
        partition_weighted(graph, &[], axis, devices, float, places, gradient_of, memo)?;
    Ok((graph, results))
}

/// The same with the weights of the nodes, each as that of the node that it was made for.
#[expect(clippy::too_many_arguments, reason = "those of the pass, and the weights")]
pub(super) fn partition_weighted(
    graph: &Graph,
    weights: &[u32],
    axis: &str,
    devices: usize,
    float: DType,
    places: &[Placement],
    gradient_of: &dyn Fn(&str) -> Option<String>,
    memo: &Memo,
) -> Result<(Graph, Vec<Placement>, Vec<u32>)> {
    let mut pass = AxisPass::new(graph, axis, devices, float, memo);
    pass.old_weights = weights;
    let results = pass.run(&|i| places[i], gradient_of)?;
    let divided = Divided { graph: pass.builder.graph, places: pass.places, weights: pass.weights };
    let divided = pull::pull(reductions::move_reductions(divided, axis, devices)?, axis, devices, memo)?;
    Ok((divided.graph, results, divided.weights))
}

/// A graph that was divided along an axis of the mesh.
#[derive(Debug)]
pub(super) struct Divided {
    pub(super) graph: Graph,
    /// Where each value lies along the axis; `None` where that is for the devices to know.
    pub(super) places: Vec<Option<Placement>>,
    /// How many nodes each node stands for, if not for one.
    pub(super) weights: Vec<u32>,
}

impl Divided {
    /// Where a value lies.
    pub(super) fn place(&self, v: ValueId) -> Option<Placement> {
        match self.graph.value(v).def {
            Def::Const(_) => Some(Placement::Replicate),
            _ => self.places.get(v.index()).copied().flatten(),
        }
    }
    /// How many nodes a node stands for.
    pub(super) fn weight(&self, n: NodeId) -> u32 {
        self.weights.get(n.index()).copied().unwrap_or(1)
    }
}

/// The collectives of a graph, with what they send.
pub fn communications(graph: &Graph) -> Vec<Communication> {
    let exchanges = graph.nodes().filter(|(_, node)| collective::communicates(node.op));
    exchanges
        .filter_map(|(n, node)| {
            let (axis, devices) = collective::mesh_axis_of(graph, node)?;
            Some(Communication {
                op: node.op.name,
                mesh_axis: axis.to_owned(),
                devices: devices as usize,
                bytes: sent(graph, node, devices.max(1) as u64),
                place: graph.place(n).clone(),
            })
        })
        .collect()
}

/// Bytes that a device sends in a collective, by the ring algorithm where there is one.
fn sent(graph: &Graph, node: &Node, devices: u64) -> u64 {
    let is = |op: &'static OpDef| node.op == op;
    let size = |v: ValueId| graph.ty(v).map_or(0, bytes);
    let (own, result) = (size(node.inputs[0]), size(node.outputs[0]));
    match () {
        () if is(&collective::COLLECTIVE_PERMUTE) => own,
        () if is(&collective::ALL_GATHER) => result * (devices - 1) / devices,
        () if is(&collective::ALL_REDUCE) => 2 * own * (devices - 1) / devices,
        () => own * (devices - 1) / devices,
    }
}

/// Bytes of a tensor whose sizes are known.
pub fn bytes(ty: &TensorType) -> u64 {
    ty.shape.known().map_or(0, |sizes| sizes.iter().product::<usize>() as u64 * ty.dtype.size() as u64)
}
