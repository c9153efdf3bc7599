//! Collectives: operations across the devices of one axis of a mesh.
//!
//! The partitioner (`mithril-compile` `partition/`) inserts them. Like [`super::host`] they are not listed in
//! [`super::FAMILIES`]: a single device cannot evaluate them.

use crate::dim::Dim;
use crate::error::Result;
use crate::graph::{Graph, Node};
use crate::literal::Lit;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{Attr, BLANK, DTypeRule, DefaultLit, Grad, OpDef, Port, ShapeRule, Tolerance, attr, tensor};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;

/// All collectives.
pub const OPS: &[&OpDef] = &[&ALL_REDUCE, &ALL_GATHER, &REDUCE_SCATTER, &SHARD];

/// Position of the port `mesh_axis`.
pub const MESH_AXIS: usize = 1;
/// Position of the port `devices`.
pub const DEVICES: usize = 2;
/// Position of the port `axis`; of [`ALL_REDUCE`] that of `reduction`.
pub const AXIS: usize = 3;

const INPUT: Port = tensor("input");
const NAME: Port = attr("mesh_axis", Attr::Text, DefaultLit::Required);
const COUNT: Port = attr("devices", Attr::Int, DefaultLit::Required);
const ALONG: Port = attr("axis", Attr::Int, DefaultLit::Required);
const REDUCTION: Port = attr("reduction", Attr::Choice(&["SUM", "MAX", "MIN"]), DefaultLit::Str("SUM"));

/// A collective. Gradients are derived before a graph is partitioned.
const COLLECTIVE: OpDef = OpDef {
    dtype: DTypeRule::Same(0),
    grad: Grad::Unsupported("differentiate the graph before it is partitioned"),
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// the sum, or maximum or minimum, over the devices of an axis of the mesh
pub static ALL_REDUCE: OpDef = OpDef {
    name: "all_reduce",
    doc: "The sum (or maximum, minimum) of the tensors of all devices along an axis of the mesh, on each of them.",
    ports: &[INPUT, NAME, COUNT, REDUCTION],
    shape: ShapeRule::Same,
    lowering: Lowering { py: Function(all_reduce), jax: Function(all_reduce_of_jax), ..Lowering::NONE },
    ..COLLECTIVE
};

/// the shards of all devices, joined
pub static ALL_GATHER: OpDef = OpDef {
    name: "all_gather",
    doc: "The shards of all devices along an axis of the mesh, joined along `axis`, on each of them.",
    ports: &[INPUT, NAME, COUNT, ALONG],
    shape: ShapeRule::Fn(|cx| resized(cx, |dim, n| Ok(dim * n))),
    lowering: Lowering {
        py: Template("mesh.all_gather({input}, {mesh_axis}, {axis})"),
        jax: Template("jax.lax.all_gather({input}, {mesh_axis}, axis={axis}, tiled=True)"),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..COLLECTIVE
};

/// the sum over the devices, of which each keeps its shard
pub static REDUCE_SCATTER: OpDef = OpDef {
    name: "reduce_scatter",
    doc: "The sum of the tensors of all devices along an axis of the mesh, of which each device keeps its shard along \
          `axis`.",
    ports: &[INPUT, NAME, COUNT, ALONG],
    shape: ShapeRule::Fn(|cx| resized(cx, |dim, n| shard_of(cx, dim, n))),
    lowering: Lowering {
        py: Template("mesh.reduce_scatter({input}, {mesh_axis}, {axis})"),
        jax: Template("jax.lax.psum_scatter({input}, {mesh_axis}, scatter_dimension={axis}, tiled=True)"),
        ..Lowering::NONE
    },
    ..COLLECTIVE
};

/// the shard of each device, of a tensor that all of them hold
pub static SHARD: OpDef = OpDef {
    name: "shard",
    doc: "The part of this device along an axis of the mesh of a tensor that all devices hold: a slice along `axis`. \
          Nothing is communicated.",
    ports: &[INPUT, NAME, COUNT, ALONG],
    shape: ShapeRule::Fn(|cx| resized(cx, |dim, n| shard_of(cx, dim, n))),
    lowering: Lowering {
        py: Template("mesh.shard({input}, {mesh_axis}, {axis})"),
        jax: Template("_shard({input}, {mesh_axis}, {devices}, {axis})"),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..COLLECTIVE
};

fn all_reduce(s: &LoweringCx<'_>) -> Option<String> {
    let result = s.node.outputs[0];
    let is_read = s.graph.nodes().any(|(_, node)| node.inputs.contains(&result));
    Some(match s.lit(AXIS) {
        // A sum that is only a result may be in flight while the rest is computed.
        Lit::Str(kind) if &*kind == "SUM" && !is_read => {
            format!("mesh.start_all_reduce({}, {})", s.arg(0), s.arg(MESH_AXIS))
        }
        Lit::Str(kind) if &*kind == "SUM" => format!("mesh.all_reduce({}, {})", s.arg(0), s.arg(MESH_AXIS)),
        Lit::Str(kind) => {
            format!("mesh.all_reduce({}, {}, \"{}\")", s.arg(0), s.arg(MESH_AXIS), kind.to_lowercase())
        }
        _ => return None,
    })
}

fn all_reduce_of_jax(s: &LoweringCx<'_>) -> Option<String> {
    let function = match s.lit(AXIS) {
        Lit::Str(kind) if &*kind == "SUM" => "psum",
        Lit::Str(kind) if &*kind == "MAX" => "pmax",
        Lit::Str(_) => "pmin",
        _ => return None,
    };
    Some(format!("jax.lax.{function}({}, {})", s.arg(0), s.arg(MESH_AXIS)))
}

/// Whether an op is one of [`OPS`].
pub fn is_collective(op: &OpDef) -> bool {
    OPS.iter().any(|row| std::ptr::eq(*row, op))
}

/// The axis of the tensor that a collective joins or shards; `None` for [`ALL_REDUCE`].
pub fn axis_of(graph: &Graph, node: &Node) -> Option<usize> {
    match graph.lit(*node.inputs.get(AXIS)?) {
        Some(Lit::Int(axis)) => axis.known().and_then(|n| usize::try_from(n).ok()),
        _ => None,
    }
}

fn resized(cx: &ShapeCx<'_>, resize: impl Fn(i64, i64) -> Result<i64>) -> Result<Vec<Shape>> {
    let mut shape = cx.shape(0).clone();
    let axis = cx.axis(AXIS, shape.rank())?;
    let devices = cx.int(DEVICES)?;
    let Some(size) = shape.0[axis].known() else { return Err(cx.symbolic(0, &shape.0[axis])) };
    shape.0[axis] = Dim::Const(resize(size, devices)?);
    Ok(vec![shape])
}

fn shard_of(cx: &ShapeCx<'_>, size: i64, devices: i64) -> Result<i64> {
    if devices > 0 && size % devices == 0 {
        return Ok(size / devices);
    }
    Err(cx.bad(AXIS, &cx.lit(AXIS), &format!("an axis whose size, {size}, is a multiple of {devices}")))
}
