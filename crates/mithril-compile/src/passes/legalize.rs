//! Legalization: expands composites that the target does not support; the ops that remain unsupported are reported
//! together.
//!
//! A method of a user-defined backend may not support explicit padding (only `padding="SAME"`, say). Its op then gets a
//! padded input, so that the method runs rather than the expansion.

use mithril_ir::build::Builder;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Graph, NodeId, TensorType, ValueId, Values};
use mithril_ir::op::{OpDef, Precision, Unsigned};
use mithril_ir::{DType, Dim, Lit, ops};

use crate::passes::dce::dce;
use crate::pipeline::Target;
use crate::rewrite::{Rewrite, inline};

/// A predicate on a node of a graph.
pub type OfNode<'a> = dyn Fn(&Graph, NodeId) -> bool + 'a;

/// What a target supports.
#[derive(Clone, Copy)]
struct Support<'a> {
    /// Whether a user-defined backend has a method for an op.
    has_method: &'a dyn Fn(&OpDef) -> bool,
    /// Whether it has a lowering of a node.
    can_lower: &'a OfNode<'a>,
    /// Whether a method of a user-defined backend runs a node.
    is_method: &'a OfNode<'a>,
}

/// Lowers a graph to ops that a target supports.
pub fn legalize_for(target: &dyn Target, graph: &Graph, float: DType) -> Result<Graph> {
    let has_unsigned = target.computed_as(DType::U64) == DType::U64;
    let is_expanded = |g: &Graph, n: NodeId| {
        let op = g.node(n).op;
        !has_unsigned && op.unsigned == Unsigned::Expand && op.expand.is_some() && is_of_u64(g, n)
    };
    let support = Support {
        has_method: &|op| target.has_method(op),
        can_lower: &|g, n| !is_expanded(g, n) && target.can_lower(g, n),
        is_method: &|g, n| target.is_method(g, n),
    };
    let legal = with_signed_positions(legalized(graph, float, support)?, float)?;
    match widened(&legal, float, target)? {
        // An op on narrow integers has become one on wider ones, for which the target may have another rule.
        Some(wide) => legalized(&wide, float, support),
        None => Ok(legal),
    }
}

/// Expands the nodes that `can_lower` rejects. Nodes without an expansion stay, and the code generator lists all of
/// them in its error.
pub fn legalize(graph: &Graph, float: DType, can_lower: &OfNode<'_>) -> Result<Graph> {
    let support = Support { has_method: &|_| false, can_lower, is_method: &|_, _| false };
    with_signed_positions(legalized(graph, float, support)?, float)
}

/// Expands the ops whose products are those of their expansion ([`Precision::Expanded`]), for passes that look for
/// products.
pub fn expand_products(graph: &Graph, float: DType) -> Result<Graph> {
    legalize(graph, float, &|g, n| g.node(n).op.precision() != Precision::Expanded)
}

fn legalized(graph: &Graph, float: DType, support: Support<'_>) -> Result<Graph> {
    let mut rewrite = Rewrite::new(graph, float);
    for (n, node) in graph.nodes() {
        let is_final = node.op.expand.is_none() || (support.can_lower)(graph, n);
        if is_final && ((support.is_method)(graph, n) || !(support.has_method)(node.op)) {
            rewrite.copy(n)?;
            continue;
        }
        rewrite.at(n);
        let inputs = rewrite.inputs(node)?;
        let outputs = match with_padded_input(&mut rewrite.builder, node.op, &inputs, support)? {
            Some(outputs) => outputs,
            None if is_final => {
                rewrite.copy(n)?;
                continue;
            }
            None => {
                expand(&mut rewrite.builder, node.op, &inputs, support).map_err(|e| e.at(graph.place(n)))?
            }
        };
        rewrite.set_outputs(node, &outputs);
    }
    rewrite.finish()
}

/// Whether a node reads or makes tensors of `u64`.
fn is_of_u64(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    let is_u64 = |&v: &ValueId| graph.ty(v).is_some_and(|ty| ty.dtype == DType::U64);
    node.inputs.iter().any(is_u64) || node.outputs.iter().any(is_u64)
}

/// Indices of `u64` as `i64`, which is what frameworks look up by. What does not fit stays outside of every table.
fn with_signed_positions(graph: Graph, float: DType) -> Result<Graph> {
    let indices = |n: NodeId| {
        let node = graph.node(n);
        let port = node.op.indexed?.indices;
        (graph.ty(*node.inputs.get(port)?)?.dtype == DType::U64).then_some(port)
    };
    if !graph.nodes().any(|(n, _)| indices(n).is_some()) {
        return Ok(graph);
    }
    let mut rewrite = Rewrite::new(&graph, float);
    for (n, node) in graph.nodes() {
        let Some(port) = indices(n) else {
            rewrite.copy(n)?;
            continue;
        };
        rewrite.at(n);
        let mut inputs = rewrite.inputs(node)?;
        let b = &mut rewrite.builder;
        let most = b.lit(i64::MAX);
        let least = b.push(&ops::elementwise::MINIMUM, &[inputs[port], most])?[0];
        inputs[port] = cast(b, least, DType::I64)?;
        let outputs = b.push(node.op, &inputs).map_err(|e| e.at(graph.place(n)))?;
        rewrite.set_outputs(node, &outputs);
    }
    rewrite.finish()
}

/// Computes values of dtypes that a target only stores in wider ones, between conversions: every op by itself, so that its
/// results wrap around as they would; `None` if there are none. No dtype is wider than `u64`: op definitions say how it is
/// computed in `i64`.
fn widened(graph: &Graph, float: DType, target: &dyn Target) -> Result<Option<Graph>> {
    let computed_as = |dtype: DType| target.computed_as(dtype);
    let has_unsigned = computed_as(DType::U64) == DType::U64;
    let conversion: &'static OpDef = &ops::elementwise::CAST;
    let is_stored = |dtype: DType| computed_as(dtype) != dtype;
    let concerns = |graph: &Graph, n: NodeId| {
        let node = graph.node(n);
        let is_literal = |&v: &ValueId| matches!(graph.lit(v), Some(Lit::DType(d)) if is_stored(*d));
        let is_value = |&v: &ValueId| graph.ty(v).is_some_and(|ty| is_stored(ty.dtype));
        node.op != conversion
            && (node.inputs.iter().any(|v| is_value(v) || is_literal(v)) || node.outputs.iter().any(is_value))
    };
    if !graph.nodes().any(|(n, _)| concerns(graph, n)) {
        return Ok(None);
    }
    // What has been expanded is still there, unused.
    let graph = &dce(graph)?;
    let mut rewrite = Rewrite::new(graph, float);
    for (n, node) in graph.nodes() {
        if !concerns(graph, n) {
            rewrite.copy(n)?;
            continue;
        }
        let unsigned = if !has_unsigned && is_of_u64(graph, n) { node.op.unsigned } else { Unsigned::Bits };
        match unsigned {
            Unsigned::Lowering => {
                rewrite.copy(n)?;
                continue;
            }
            Unsigned::Expand => return Err(no_uint64(node.op, target).at(graph.place(n))),
            Unsigned::Bits | Unsigned::Order => {}
        }
        let is_flipped = unsigned == Unsigned::Order;
        rewrite.at(n);
        let inputs = rewrite.inputs(node)?;
        let b = &mut rewrite.builder;
        let mut operands = Values::new();
        for (i, &v) in inputs.iter().enumerate() {
            let is_position = node.op.indexed.is_some_and(|indexed| indexed.indices == i);
            let is_operand = node.op.takes_tensor(i) && !is_position;
            let is_u64 = b.graph.ty(v).is_none_or(|ty| ty.dtype == DType::U64);
            let wide = wide(b, v, is_operand, &computed_as)?;
            operands.push(if is_flipped && is_operand && is_u64 { flip(b, wide)? } else { wide });
        }
        let inputs = operands;
        let outputs = b.push(node.op, &inputs).map_err(|e| e.at(graph.place(n)))?;
        let mut narrow = Values::new();
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            narrow.push(match (graph.ty(old), b.graph.ty(new)) {
                (Some(was), Some(is)) if was.dtype != is.dtype => {
                    let new = if is_flipped && was.dtype == DType::U64 { flip(b, new)? } else { new };
                    cast(b, new, was.dtype)?
                }
                _ => new,
            });
        }
        rewrite.set_outputs(node, &narrow);
    }
    rewrite.finish().map(Some)
}

fn no_uint64(op: &OpDef, target: &dyn Target) -> Error {
    Error::new(Code::Unsupported, format!("{} of uint64 is not supported by {}", op.name, target.name()))
        .help("cast to int64 or to a float, or use another backend")
}

/// A value, or a dtype or a number as an argument, in the dtype in which it is computed.
fn wide(
    b: &mut Builder,
    v: ValueId,
    is_operand: bool,
    computed_as: &dyn Fn(DType) -> DType,
) -> Result<ValueId> {
    match b.graph.lit(v).cloned() {
        Some(Lit::DType(dtype)) => return Ok(b.lit(Lit::DType(computed_as(dtype)))),
        Some(Lit::Tensor(t)) if !is_operand && t.rank() == 0 && t.dtype() == DType::U64 => {
            return Ok(b.lit(t.get(0).i64()));
        }
        _ => {}
    }
    match b.graph.ty(v).map(|ty| (ty.dtype, computed_as(ty.dtype))) {
        Some((from, to)) if from != to => cast(b, v, to),
        _ => Ok(v),
    }
}

/// Flips the highest bit of integers of `i64`, which are then in the order of the `u64` with their bits, or back.
fn flip(b: &mut Builder, v: ValueId) -> Result<ValueId> {
    let number = match b.graph.lit(v) {
        Some(Lit::Int(Dim::Const(n))) => Some(*n),
        Some(Lit::Bool(is)) => Some(i64::from(*is)),
        Some(Lit::None) => return Ok(v),
        _ => None,
    };
    if let Some(n) = number {
        return Ok(b.lit(n ^ i64::MIN));
    }
    let highest = b.lit(i64::MIN);
    let outputs = b.push(&ops::compare::BITWISE_XOR, &[v, highest])?;
    outputs.first().copied().ok_or_else(|| Error::internal("an op has no result"))
}

fn cast(b: &mut Builder, v: ValueId, to: DType) -> Result<ValueId> {
    let dtype = b.lit(Lit::DType(to));
    let outputs = b.push(&ops::elementwise::CAST, &[v, dtype])?;
    outputs.first().copied().ok_or_else(|| Error::internal("a cast has no result"))
}

fn expand(b: &mut Builder, op: &'static OpDef, inputs: &[ValueId], support: Support<'_>) -> Result<Values> {
    inline(b, op, inputs, &mut |b, op, inputs, types: Vec<TensorType>| {
        if op.expand.is_none() {
            return Ok(b.push_typed(op, inputs, types));
        }
        // The target is asked about the node in the graph; if it refuses, the node stays unused, and DCE removes it.
        let outputs = b.push_typed(op, inputs.clone(), types);
        let Some(n) = outputs.first().and_then(|&v| b.graph.producer(v)) else { return Ok(outputs) };
        if (support.is_method)(&b.graph, n) {
            return Ok(outputs);
        }
        if let Some(padded) = with_padded_input(b, op, &inputs, support)? {
            return Ok(padded);
        }
        if (support.can_lower)(&b.graph, n) { Ok(outputs) } else { expand(b, op, &inputs, support) }
    })
}

/// The op applied without padding to an input padded beforehand, if a method then runs it.
fn with_padded_input(
    b: &mut Builder,
    op: &'static OpDef,
    inputs: &[ValueId],
    support: Support<'_>,
) -> Result<Option<Values>> {
    if !(support.has_method)(op) {
        return Ok(None);
    }
    let (Some(value), Some(at), Some(pad)) = (op.padding_value, op.port("padding"), ops::find("pad")) else {
        return Ok(None);
    };
    // With `ceil_mode`, windows that start in the padding are treated differently from those in an input.
    let ceil = op.port("ceil_mode").and_then(|i| b.graph.lit(*inputs.get(i)?));
    if ceil.is_some_and(|lit| *lit != Lit::Bool(false)) {
        return Ok(None);
    }
    let Some((x, ty)) = inputs.first().and_then(|&x| Some((x, b.graph.ty(x)?.clone()))) else {
        return Ok(None);
    };
    let pads = inputs.get(at).and_then(|&v| explicit(b.graph.lit(v)?, ty.shape.rank().saturating_sub(2)));
    let Some(pads) = pads.filter(|_| value.is_finite() || ty.dtype.is_float()) else { return Ok(None) };
    let all: Vec<Lit> =
        [[0, 0]; 2].into_iter().chain(pads).map(|[a, z]| Lit::tuple([Lit::int(a), Lit::int(z)])).collect();
    let args = [x, b.lit(Lit::Tuple(all.into())), b.lit(Lit::text("constant")), b.lit(Lit::Float(value))];
    let padded = b.push(pad, &args)?;
    let mut args: Values = inputs.into();
    args[0] = padded[0];
    args[at] = b.lit(Lit::int(0));
    let outputs = b.push(op, &args)?;
    let runs =
        outputs.first().and_then(|&v| b.graph.producer(v)).is_some_and(|n| (support.is_method)(&b.graph, n));
    // If not, both stay unused, and DCE removes them.
    Ok(runs.then_some(outputs))
}

/// Pads of each axis that are numbers and not all 0.
fn explicit(lit: &Lit, axes: usize) -> Option<Vec<[i64; 2]>> {
    let number = |lit: &Lit| match lit {
        Lit::Int(Dim::Const(n)) => Some(*n),
        _ => None,
    };
    let pads: Vec<[i64; 2]> = match lit {
        Lit::Int(_) => vec![[number(lit)?; 2]; axes],
        Lit::Tuple(items) if items.len() == axes => items
            .iter()
            .map(|item| match item {
                Lit::Tuple(pair) if pair.len() == 2 => Some([number(&pair[0])?, number(&pair[1])?]),
                one => Some([number(one)?; 2]),
            })
            .collect::<Option<_>>()?,
        _ => return None,
    };
    pads.iter().flatten().any(|&n| n != 0).then_some(pads)
}

#[cfg(test)]
mod tests {
    use mithril_codegen::python::{NUMPY, TORCH};
    use mithril_ir::graph::Role;
    use mithril_ir::{Shape, Tensor};

    use super::*;
    use crate::python::Python;

    #[test]
    fn dtypes_that_are_only_stored_are_computed_in_wider_ones() {
        let mut b = Builder::new(DType::F32);
        let ty = TensorType { dtype: DType::U32, shape: Shape::of([Dim::Const(2)]) };
        let x = b.graph.add_input("x", Role::Data, ty);
        let three = b.lit(Tensor::scalar(DType::U32, 3_i64));
        let product = b.push(&ops::elementwise::MULTIPLY, &[x, three]).unwrap()[0];
        let byte = b.lit(Lit::DType(DType::U8));
        let bytes = b.push(&ops::elementwise::CAST, &[product, byte]).unwrap()[0];
        b.graph.outputs.insert("product".into(), product);
        b.graph.outputs.insert("bytes".into(), bytes);
        let computed = |target| {
            let graph = legalize_for(&Python(target), &b.graph, DType::F32).unwrap();
            let dtypes = |op: &OpDef| {
                let nodes = graph.nodes().filter(|(_, node)| node.op == op);
                nodes.map(|(_, node)| graph.ty(node.outputs[0]).unwrap().dtype).collect::<Vec<_>>()
            };
            let outputs: Vec<DType> = graph.outputs.values().map(|&v| graph.ty(v).unwrap().dtype).collect();
            assert_eq!(outputs.len(), 2);
            assert!(outputs.contains(&DType::U32) && outputs.contains(&DType::U8));
            (dtypes(&ops::elementwise::MULTIPLY), dtypes(&ops::elementwise::CAST))
        };
        assert_eq!(computed(&NUMPY), (vec![DType::U32], vec![DType::U8]));
        let (products, casts) = computed(&TORCH);
        assert_eq!(products, [DType::I64]);
        assert!(casts.starts_with(&[DType::I64]) && casts.ends_with(&[DType::U32, DType::U8]), "{casts:?}");
    }

    /// Values on both sides of the highest bit, by every op of two that PyTorch computes in int64.
    #[test]
    fn uint64_is_computed_by_its_bits_or_by_its_order() {
        let mut b = Builder::new(DType::F32);
        let ty = TensorType { dtype: DType::U64, shape: Shape::of([Dim::Const(4)]) };
        let [x, y] = ["x", "y"].map(|name| b.graph.add_input(name, Role::Data, ty.clone()));
        for op in ["add", "multiply", "equal", "less", "greater_equal", "maximum", "minimum", "bitwise_xor"] {
            let value = b.push(ops::find(op).unwrap(), &[x, y]).unwrap()[0];
            b.graph.outputs.insert(op.into(), value);
        }
        let (axis, no) = (b.lit(0), b.lit(false));
        for op in ["sum", "max", "argmin", "sort", "cumsum"] {
            let op = ops::find(op).unwrap();
            let args = [x, axis, no, no];
            let value = b.push(op, &args[..op.ports.len()]).unwrap()[0];
            b.graph.outputs.insert(op.name.into(), value);
        }
        let clipped = b.push(&ops::elementwise::CLIP, &[x, axis, y]).unwrap()[0];
        b.graph.outputs.insert("clipped".into(), clipped);
        let graph = legalize_for(&Python(&TORCH), &b.graph, DType::F32).unwrap();
        let computes = |(_, node): (NodeId, &mithril_ir::graph::Node)| {
            let is_u64 = |&v: &ValueId| graph.ty(v).is_some_and(|ty| ty.dtype == DType::U64);
            node.op != &ops::elementwise::CAST && node.inputs.iter().any(is_u64)
        };
        assert!(!graph.nodes().any(computes), "{graph:?}");
        let values = [vec![5, u64::MAX, 1 << 63, 0], vec![u64::MAX - 7, 3, (1 << 63) - 1, 0]];
        let values = values.map(|v| std::sync::Arc::new(Tensor::from_parts(&[4], v)));
        let run = |graph: &Graph| mithril_ir::interp::run(graph, &values).unwrap();
        for (name, (a, b)) in b.graph.outputs.keys().zip(run(&b.graph).iter().zip(&run(&graph))) {
            assert!(a.same_bits(b), "{name}: {a} and {b}");
        }
    }
}
