//! Collectives in C: calls of the functions of a mesh, which the caller of the generated code passes.
//!
//! The functions exchange blocks of memory, one for each device of an axis of the mesh. Where the blocks of a tensor do not
//! lie one behind another, loops bring them there before the call, or take them apart after it.

use std::sync::Arc;

use super::{AXIS, DEVICES, JOINED, MESH_AXIS, pairs_of};
use crate::dtype::DType;
use crate::error::Result;
use crate::literal::Lit;
use crate::loops::{CallArgument, Expr, Index, LoopCx, arithmetic};
use crate::rules::Attrs;

pub(super) fn all_reduce(cx: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let kind = text(cx, AXIS);
    let (dtype, devices) = (cx.out_dtype(0), cx.int(DEVICES)?);
    let is_mean = &*kind == "MEAN";
    let wide = arithmetic(dtype);
    let own = cx.stored(0, wide);
    let result = cx.reserve(wide, cx.out_shape(0));
    let [dtype_name, reduction] = reduction(dtype, &kind);
    exchange(cx, "mithril_all_reduce", own, result, [count(cx.out_shape(0)), dtype_name, reduction]);
    Ok(vec![cx.output(0, |at| {
        let all = cx.load(result, at);
        if is_mean { all / cx.number(devices as f64, wide) } else { all }
    })])
}

pub(super) fn all_gather(cx: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let (own, dtype) = (cx.shape(0), cx.dtype(0));
    let (axis, devices) = (cx.axis(AXIS, own.len())?, cx.int(DEVICES)?);
    let input = cx.stored(0, dtype);
    let result = cx.reserve(dtype, &blocks(&own, axis, devices));
    exchange(cx, "mithril_all_gather", input, result, [bytes(dtype, &own)]);
    Ok(vec![cx.output(0, |at| joined(cx, result, at, &own, axis))])
}

pub(super) fn reduce_scatter(cx: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let (own, dtype) = (cx.out_shape(0).to_vec(), cx.out_dtype(0));
    let (axis, devices) = (cx.axis(AXIS, own.len())?, cx.int(DEVICES)?);
    let wide = arithmetic(dtype);
    let input = cut(cx, wide, &own, axis, devices);
    let result = cx.reserve(wide, &own);
    let [dtype_name, reduction] = reduction(dtype, "SUM");
    exchange(cx, "mithril_reduce_scatter", input, result, [count(&own), dtype_name, reduction]);
    Ok(vec![cx.whole(0, result)])
}

pub(super) fn all_to_all(cx: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let (mut block, dtype) = (cx.shape(0), cx.dtype(0));
    let (axis, along, devices) =
        (cx.axis(AXIS, block.len())?, cx.axis(JOINED, block.len())?, cx.int(DEVICES)?);
    block[axis] /= devices;
    let input = cut(cx, dtype, &block, axis, devices);
    let result = cx.reserve(dtype, &blocks(&block, along, devices));
    exchange(cx, "mithril_all_to_all", input, result, [bytes(dtype, &block)]);
    Ok(vec![cx.output(0, |at| joined(cx, result, at, &block, along))])
}

pub(super) fn collective_permute(cx: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let (shape, dtype) = (cx.shape(0), cx.dtype(0));
    let devices = cx.int(DEVICES)?;
    let pairs = pairs_of(&cx.lit(AXIS)).unwrap_or_default();
    let back: Vec<(usize, usize)> = pairs.iter().map(|&(from, to)| (to, from)).collect();
    let peers = |pairs: &[(usize, usize)]| {
        let peer =
            |place| pairs.iter().find(|(own, _)| *own as i64 == place).map_or(-1, |(_, other)| *other as i64);
        CallArgument::Ints((0..devices).map(peer).collect())
    };
    let input = cx.stored(0, dtype);
    let result = cx.reserve(dtype, &shape);
    exchange(cx, "mithril_permute", input, result, [bytes(dtype, &shape), peers(&pairs), peers(&back)]);
    Ok(vec![cx.whole(0, result)])
}

pub(super) fn shard(cx: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let (own, dtype) = (cx.out_shape(0).to_vec(), cx.dtype(0));
    let (axis, devices) = (cx.axis(AXIS, own.len())?, cx.int(DEVICES)?);
    let input = cx.stored(0, dtype);
    let result = cx.reserve(dtype, &own);
    let rest = [count(&own[..axis]), CallArgument::Int(devices), bytes(dtype, &own[axis..])];
    exchange(cx, "mithril_shard", input, result, rest);
    Ok(vec![cx.whole(0, result)])
}

pub(super) fn mesh_index(cx: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let result = cx.reserve(DType::I64, &[]);
    cx.call("mithril_mesh_index", vec![mesh(cx, 0), CallArgument::Out(result)], 0);
    Ok(vec![cx.whole(0, result)])
}

fn text(cx: &LoopCx<'_>, port: usize) -> Arc<str> {
    match cx.lit(port) {
        Lit::Str(text) => text,
        _ => "".into(),
    }
}

fn mesh(cx: &LoopCx<'_>, port: usize) -> CallArgument {
    CallArgument::Mesh(text(cx, port))
}

/// Calls a function of the prelude that makes one tensor of another over the mesh.
fn exchange<const N: usize>(
    cx: &LoopCx<'_>,
    function: &str,
    input: usize,
    result: usize,
    rest: [CallArgument; N],
) {
    let front = [mesh(cx, MESH_AXIS), CallArgument::In(input), CallArgument::Out(result)];
    cx.call(function, front.into_iter().chain(rest).collect(), 0);
}

fn count(shape: &[i64]) -> CallArgument {
    CallArgument::Int(shape.iter().product())
}

fn bytes(dtype: DType, shape: &[i64]) -> CallArgument {
    CallArgument::Int(shape.iter().product::<i64>() * dtype.size() as i64)
}

/// What numbers are reduced as, and how. Truth values are bytes, of which a sum is whether any is true.
fn reduction(dtype: DType, kind: &str) -> [CallArgument; 2] {
    let dtype_name = match arithmetic(dtype) {
        DType::Bool => DType::U8.name(),
        other => other.name(),
    };
    let kind = match kind {
        "MAX" => "MAX",
        "MIN" => "MIN",
        _ if dtype == DType::Bool => "MAX",
        _ => "SUM",
    };
    [dtype_name.to_uppercase(), kind.to_owned()]
        .map(|name| CallArgument::Name(format!("MITHRIL_{name}").into()))
}

/// Whether the blocks along an axis lie one behind another.
fn are_blocks(block: &[i64], axis: usize) -> bool {
    block[..axis].iter().all(|size| *size == 1)
}

/// The shape in which blocks that are joined along an axis lie one behind another.
fn blocks(block: &[i64], axis: usize, devices: i64) -> Vec<i64> {
    if are_blocks(block, axis) {
        let mut shape = block.to_vec();
        shape[axis] *= devices;
        return shape;
    }
    std::iter::once(devices).chain(block.iter().copied()).collect()
}

/// The first input, cut along an axis into blocks that lie one behind another.
fn cut(cx: &LoopCx<'_>, dtype: DType, block: &[i64], axis: usize, devices: i64) -> usize {
    if are_blocks(block, axis) {
        return cx.stored(0, dtype);
    }
    cx.temporary(dtype, &blocks(block, axis, devices), |at| {
        let mut from = at[1..].to_vec();
        from[axis] = at[0].clone() * block[axis] + from[axis].clone();
        cx.load(0, from).cast(dtype)
    })
}

/// The element at these coordinates of blocks that are joined along an axis.
fn joined(cx: &LoopCx<'_>, blocks: usize, at: &[Index], block: &[i64], axis: usize) -> Expr {
    if are_blocks(block, axis) {
        return cx.load(blocks, at);
    }
    let size = block[axis].max(1);
    let mut from: Vec<Index> =
        std::iter::once(at[axis].clone().floor_div(size)).chain(at.iter().cloned()).collect();
    from[1 + axis] = at[axis].clone().modulo(size);
    cx.load(blocks, from)
}
