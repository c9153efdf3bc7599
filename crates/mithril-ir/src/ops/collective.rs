//! Collectives: what the devices of one axis of a mesh compute together.
//!
//! The partitioner (`mithril-compile` `partition/`) writes them. Like [`super::host`] they are not listed in
//! [`super::FAMILIES`]: a single device cannot evaluate them, so they are run by a mesh of devices.
//!
//! Each device has values of its own, so a gradient is that of the sum over the devices of what each of them computes,
//! as in PyTorch: the gradient of a sum over the devices is the sum over the devices of the gradients.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::Result;
use crate::formula::{GradCx, V};
use crate::graph::{Graph, Node};
use crate::literal::Lit;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{Attr, BLANK, DTypeRule, DefaultLit, Grad, OpDef, Port, ShapeRule, Tolerance, attr, tensor};
use crate::ops::compare::{EQUAL, WHERE};
use crate::ops::create::ARANGE;
use crate::ops::elementwise::FLOOR_DIVIDE;
use crate::ops::joining::CONCAT;
use crate::ops::movement::RESHAPE;
use crate::rules::{Attrs, DTypes, ShapeCx};
use crate::shape::Shape;

mod loops;

/// All collectives.
pub const OPS: &[&OpDef] =
    &[&ALL_REDUCE, &ALL_GATHER, &REDUCE_SCATTER, &ALL_TO_ALL, &COLLECTIVE_PERMUTE, &SHARD, &MESH_INDEX];

/// Position of the port `mesh_axis`, but for [`MESH_INDEX`].
pub const MESH_AXIS: usize = 1;
/// Position of the port `devices`, but for [`MESH_INDEX`].
pub const DEVICES: usize = 2;
/// Position of the port `axis`; of [`ALL_REDUCE`] that of `reduction`, of [`COLLECTIVE_PERMUTE`] that of `pairs`.
pub const AXIS: usize = 3;
/// Position of the port `joined` of [`ALL_TO_ALL`].
pub const JOINED: usize = 4;

const INPUT: Port = tensor("input");
const NAME: Port = attr("mesh_axis", Attr::Text, DefaultLit::Required);
const COUNT: Port = attr("devices", Attr::Int, DefaultLit::Required);
const ALONG: Port = attr("axis", Attr::Int, DefaultLit::Required);
const REDUCTION: Port =
    attr("reduction", Attr::Choice(&["SUM", "MEAN", "MAX", "MIN"]), DefaultLit::Str("SUM"));

const COLLECTIVE: OpDef = OpDef { dtype: DTypeRule::Same(0), tolerance: Tolerance::Exact, ..BLANK };

/// the sum, mean, maximum or minimum over the devices of an axis of the mesh
pub static ALL_REDUCE: OpDef = OpDef {
    name: "all_reduce",
    doc: "The sum (or mean, maximum, minimum) of the tensors of all devices along an axis of the mesh, on each of them.",
    ports: &[INPUT, NAME, COUNT, REDUCTION],
    shape: ShapeRule::Same,
    dtype: DTypeRule::Fn(|cx| {
        let dtype = cx.dtype(0).unwrap_or(cx.float);
        if matches!(cx.lit(AXIS), Lit::Str(kind) if &*kind == "MEAN") && !dtype.is_float() {
            return Err(cx.bad(AXIS, &cx.lit(AXIS), &format!("SUM, MAX or MIN of {dtype}, or floats")));
        }
        Ok(DTypes::keep([dtype]))
    }),
    loops: Some(loops::all_reduce),
    grad: Grad::Formula(all_reduce_gradient),
    lowering: Lowering { py: Function(all_reduce), jax: Function(all_reduce_of_jax), ..Lowering::NONE },
    tolerance: Tolerance::Contraction,
    ..COLLECTIVE
};

/// the shards of all devices, joined
pub static ALL_GATHER: OpDef = OpDef {
    name: "all_gather",
    doc: "The shards of all devices along an axis of the mesh, joined along `axis`, on each of them.",
    ports: &[INPUT, NAME, COUNT, ALONG],
    shape: ShapeRule::Fn(|cx| resized(cx, AXIS, |dim, n| Ok(dim * n))),
    loops: Some(loops::all_gather),
    grad: Grad::Formula(|v| vec![v.g.op(&REDUCE_SCATTER, &v.x[1..4])]),
    lowering: Lowering {
        py: Template("mesh.all_gather({input}, {mesh_axis}, {axis})"),
        jax: Template("jax.lax.all_gather({input}, {mesh_axis}, axis={axis}, tiled=True)"),
        ..Lowering::NONE
    },
    ..COLLECTIVE
};

/// the shard of this device of the sum over the devices
pub static REDUCE_SCATTER: OpDef = OpDef {
    name: "reduce_scatter",
    doc: "The sum of the tensors of all devices along an axis of the mesh, of which each device keeps its shard along \
          `axis`.",
    ports: &[INPUT, NAME, COUNT, ALONG],
    shape: ShapeRule::Fn(|cx| resized(cx, AXIS, |dim, n| shard_of(cx, AXIS, dim, n))),
    loops: Some(loops::reduce_scatter),
    grad: Grad::Formula(|v| vec![v.g.op(&ALL_GATHER, &v.x[1..4])]),
    lowering: Lowering {
        py: Template("mesh.reduce_scatter({input}, {mesh_axis}, {axis})"),
        jax: Template("jax.lax.psum_scatter({input}, {mesh_axis}, scatter_dimension={axis}, tiled=True)"),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Contraction,
    ..COLLECTIVE
};

/// tensors divided along one axis become divided along another one
pub static ALL_TO_ALL: OpDef = OpDef {
    name: "all_to_all",
    doc: "The tensor of each device is cut along `axis` into a block for each device along an axis of the mesh. A device \
          keeps its block of each of them, joined along `joined` in the order of the devices: what was divided along \
          `joined` is divided along `axis`.",
    ports: &[INPUT, NAME, COUNT, ALONG, attr("joined", Attr::Int, DefaultLit::Required)],
    shape: ShapeRule::Fn(|cx| {
        let shapes = resized(cx, AXIS, |dim, n| shard_of(cx, AXIS, dim, n))?;
        let (axis, devices) = (cx.axis(JOINED, shapes[0].rank())?, cx.int(DEVICES)?);
        let mut shape = shapes[0].clone();
        let Some(size) = shape.0[axis].known() else { return Err(cx.symbolic(0, &shape.0[axis])) };
        shape.0[axis] = Dim::Const(size * devices);
        Ok(vec![shape])
    }),
    loops: Some(loops::all_to_all),
    grad: Grad::Formula(|v| vec![v.g.op(&ALL_TO_ALL, &[v.x[1], v.x[2], v.x[4], v.x[3]])]),
    lowering: Lowering {
        py: Template("mesh.all_to_all({input}, {mesh_axis}, {axis}, {joined})"),
        jax: Template(
            "jax.lax.all_to_all({input}, {mesh_axis}, split_axis={axis}, concat_axis={joined}, tiled=True)",
        ),
        ..Lowering::NONE
    },
    ..COLLECTIVE
};

/// each device sends its tensor to another one
pub static COLLECTIVE_PERMUTE: OpDef = OpDef {
    name: "collective_permute",
    doc: "For each pair `(from, to)` of positions along an axis of the mesh, the device at `from` sends its tensor to the \
          one at `to`. A device that receives none has zeros. Each position sends once and receives once at the most.",
    ports: &[INPUT, NAME, COUNT, attr("pairs", Attr::Any, DefaultLit::Required)],
    shape: ShapeRule::Fn(|cx| {
        let devices = cx.int(DEVICES)?;
        let fits = pairs_of(&cx.lit(AXIS)).is_some_and(|pairs| {
            let is_once = |place: &dyn Fn(&(usize, usize)) -> usize| {
                let mut all: Vec<usize> = pairs.iter().map(place).collect();
                all.sort_unstable();
                all.windows(2).all(|two| two[0] != two[1]) && all.iter().all(|i| (*i as i64) < devices)
            };
            is_once(&|pair| pair.0) && is_once(&|pair| pair.1)
        });
        if !fits {
            let expected = format!("pairs of positions below {devices}, each at most once on a side");
            return Err(cx.bad(AXIS, &cx.lit(AXIS), &expected));
        }
        Ok(vec![cx.shape(0).clone()])
    }),
    loops: Some(loops::collective_permute),
    grad: Grad::Formula(|v| {
        let pairs = v.get(|c| Ok(pairs_of(&c.lit(AXIS)).unwrap_or_default()));
        let back = pairs.into_iter().map(|(from, to)| (to, from));
        vec![v.g.op(&COLLECTIVE_PERMUTE, &[v.x[1], v.x[2], v.cx.lit(pairs_literal(back))])]
    }),
    lowering: Lowering {
        py: Template("mesh.permute({input}, {mesh_axis}, {pairs})"),
        jax: Template("jax.lax.ppermute({input}, {mesh_axis}, {pairs})"),
        ..Lowering::NONE
    },
    ..COLLECTIVE
};

/// the shard of this device of a tensor that all devices hold
pub static SHARD: OpDef = OpDef {
    name: "shard",
    doc: "The part of this device along an axis of the mesh of a tensor that all devices hold: a slice along `axis`. \
          Nothing is communicated.",
    ports: &[INPUT, NAME, COUNT, ALONG],
    shape: ShapeRule::Fn(|cx| resized(cx, AXIS, |dim, n| shard_of(cx, AXIS, dim, n))),
    loops: Some(loops::shard),
    grad: Grad::Formula(|v| {
        // Zeros, with the gradient in the block of this device.
        let (axis, count) = (v.get(|c| c.axis(AXIS, v.g.rank())), v.get(|c| c.int(DEVICES)));
        let size = v.g.dim(axis as i64);
        let copies: Vec<V<'_>> =
            std::iter::once(v.cx.lit(axis as i64)).chain(std::iter::repeat_n(v.g, count as usize)).collect();
        let all = v.cx.call(&CONCAT, &copies);
        let mut line = vec![Dim::ONE; v.g.rank()];
        line[axis] = all.dim(axis as i64);
        let block =
            v.cx.call(&ARANGE, &[v.cx.lit(all.dim(axis as i64))]).op(&FLOOR_DIVIDE, &[v.cx.lit(size)]);
        let own = v.cx.call(&MESH_INDEX, &[v.x[1], v.x[2]]);
        let is_own = block.op(&EQUAL, &[own]).op(&RESHAPE, &[v.cx.lit(line)]);
        vec![is_own.op(&WHERE, &[all, v.cx.lit(0.0)])]
    }),
    lowering: Lowering {
        py: Template("mesh.shard({input}, {mesh_axis}, {axis})"),
        jax: Template("_shard({input}, {mesh_axis}, {devices}, {axis})"),
        ..Lowering::NONE
    },
    ..COLLECTIVE
};

/// the position of this device along an axis of the mesh
pub static MESH_INDEX: OpDef = OpDef {
    name: "mesh_index",
    doc: "The position of this device along an axis of the mesh, from 0 on.",
    ports: &[NAME, COUNT],
    shape: ShapeRule::Fn(|_| Ok(vec![Shape::default()])),
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::I64]))),
    loops: Some(loops::mesh_index),
    grad: Grad::Zero,
    lowering: Lowering {
        py: Template("mesh.index({mesh_axis})"),
        jax: Template("jax.lax.axis_index({mesh_axis}).astype(jnp.int64)"),
        ..Lowering::NONE
    },
    ..COLLECTIVE
};

/// A sum is one of the gradients, too; a maximum passes them to those devices that have it.
fn all_reduce_gradient<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let reduction = v.lit(AXIS);
    let summed = |x: V<'a>| x.op(&ALL_REDUCE, &[v.x[1], v.x[2], v.cx.lit("SUM")]);
    match reduction {
        Lit::Str(kind) if &*kind == "SUM" || &*kind == "MEAN" => vec![v.g.op(&ALL_REDUCE, &v.x[1..4])],
        _ => {
            let has_it = v.x[0].op(&EQUAL, &[v.y]).cast(v.g.dtype());
            vec![summed(v.g) * has_it / summed(has_it)]
        }
    }
}

fn all_reduce(s: &LoweringCx<'_>) -> Option<String> {
    let result = s.node.outputs[0];
    let is_read = s.graph.nodes().any(|(_, node)| node.inputs.contains(&result));
    Some(match s.lit(AXIS) {
        // What is a result and nothing more goes on while the rest is computed.
        Lit::Str(kind) if &*kind == "SUM" && !is_read => {
            format!("mesh.start_all_reduce({}, {})", s.arg(0), s.arg(MESH_AXIS))
        }
        Lit::Str(kind) if &*kind == "SUM" => format!("mesh.all_reduce({}, {})", s.arg(0), s.arg(MESH_AXIS)),
        Lit::Str(kind) if &*kind == "MEAN" => {
            format!("mesh.all_reduce({}, {}) / {}", s.arg(0), s.arg(MESH_AXIS), s.arg(DEVICES))
        }
        Lit::Str(kind) => {
            format!("mesh.all_reduce({}, {}, \"{}\")", s.arg(0), s.arg(MESH_AXIS), kind.to_lowercase())
        }
        _ => return None,
    })
}

fn all_reduce_of_jax(s: &LoweringCx<'_>) -> Option<String> {
    let Lit::Str(kind) = s.lit(AXIS) else { return None };
    let (x, mesh_axis, dtype) = (s.arg(0), s.arg(MESH_AXIS), s.ty(0)?.dtype);
    Some(match &*kind {
        "MAX" if dtype.is_float() => format!("_pmax({x}, {mesh_axis})"),
        "MIN" if dtype.is_float() => format!("-_pmax(-{x}, {mesh_axis})"),
        "MIN" => format!("jax.lax.pmin({x}, {mesh_axis})"),
        "MEAN" => format!("jax.lax.pmean({x}, {mesh_axis})"),
        // JAX would count how many are true.
        _ if dtype == DType::Bool => format!("jax.lax.pmax({x}, {mesh_axis})"),
        "MAX" => format!("jax.lax.pmax({x}, {mesh_axis})"),
        _ => format!("jax.lax.psum({x}, {mesh_axis})"),
    })
}

/// Whether an op is one of [`OPS`].
pub fn is_collective(op: &OpDef) -> bool {
    OPS.contains(&op)
}

/// Whether devices exchange something.
pub fn communicates(op: &OpDef) -> bool {
    is_collective(op) && op != &SHARD && op != &MESH_INDEX
}

/// The axis of the mesh of a collective, and the devices along it.
pub fn mesh_axis_of<'g>(graph: &'g Graph, node: &Node) -> Option<(&'g str, i64)> {
    let first = usize::from(node.op != &MESH_INDEX);
    match (graph.lit(*node.inputs.get(first)?)?, graph.lit(*node.inputs.get(first + 1)?)?) {
        (Lit::Str(axis), Lit::Int(devices)) => Some((axis, devices.known()?)),
        _ => None,
    }
}

/// The ports that name axes of the tensor.
pub fn axes_of(op: &OpDef) -> impl Iterator<Item = usize> + use<> {
    let named = op.ports.iter().enumerate().filter(|(_, port)| matches!(port.name, "axis" | "joined"));
    named.map(|(i, _)| i).collect::<Vec<_>>().into_iter()
}

/// The axis of the tensor that a collective joins or cuts; `None` for [`ALL_REDUCE`].
pub fn axis_of(graph: &Graph, node: &Node) -> Option<usize> {
    axis_at(graph, node, AXIS)
}

/// The axis of the tensor that stands at a port.
pub fn axis_at(graph: &Graph, node: &Node, port: usize) -> Option<usize> {
    match graph.lit(*node.inputs.get(port)?) {
        Some(Lit::Int(axis)) => axis.known().and_then(|n| usize::try_from(n).ok()),
        _ => None,
    }
}

/// The pairs of [`COLLECTIVE_PERMUTE`].
pub fn pairs_of(lit: &Lit) -> Option<Vec<(usize, usize)>> {
    let number = |lit: &Lit| match lit {
        Lit::Int(n) => n.known().and_then(|n| usize::try_from(n).ok()),
        _ => None,
    };
    let Lit::Tuple(all) = lit else { return None };
    all.iter()
        .map(|pair| match pair {
            Lit::Tuple(two) if two.len() == 2 => Some((number(&two[0])?, number(&two[1])?)),
            _ => None,
        })
        .collect()
}

/// The literal of pairs.
pub fn pairs_literal(pairs: impl IntoIterator<Item = (usize, usize)>) -> Lit {
    let pair = |(from, to): (usize, usize)| Lit::tuple([from as i64, to as i64]);
    Lit::Tuple(pairs.into_iter().map(pair).collect())
}

fn resized(cx: &ShapeCx<'_>, port: usize, resize: impl Fn(i64, i64) -> Result<i64>) -> Result<Vec<Shape>> {
    let mut shape = cx.shape(0).clone();
    let axis = cx.axis(port, shape.rank())?;
    let devices = cx.int(DEVICES)?;
    let Some(size) = shape.0[axis].known() else { return Err(cx.symbolic(0, &shape.0[axis])) };
    shape.0[axis] = Dim::Const(resize(size, devices)?);
    Ok(vec![shape])
}

fn shard_of(cx: &ShapeCx<'_>, port: usize, size: i64, devices: i64) -> Result<i64> {
    if devices > 0 && size % devices == 0 {
        return Ok(size / devices);
    }
    Err(cx.bad(port, &cx.lit(port), &format!("an axis whose size, {size}, is a multiple of {devices}")))
}
