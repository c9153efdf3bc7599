//! Lowering of pooling to JAX.

use super::{Pool, python};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::lowering::{LoweringCx, tuple};
use crate::ops::window;
use crate::rules::Attrs;

pub(super) fn max(s: &LoweringCx<'_>) -> Option<String> {
    let ty = s.ty(0)?;
    let pool = Pool::read(s, ty.shape.rank().checked_sub(2)?).ok()?;
    let pads = pool.all_pads(s, &ty.shape).ok()?;
    // JAX cannot differentiate dilated windows.
    if pool.dilation.iter().any(|&d| d != 1) {
        let pads = tuple(pads.iter().map(|pair| s.dims(pair)));
        let [window, stride, dilation] = [&pool.kernel, &pool.stride, &pool.dilation].map(|v| python(s, v));
        return Some(format!("_dilated_max_pool({}, {window}, {stride}, {pads}, {dilation})", s.arg(0)));
    }
    // A plain integer would become int32 or int64 in JAX.
    let typed = |(least, _): (i128, i128)| format!("{}({least})", s.dtype(ty.dtype));
    let least = ty.dtype.int_range().map_or("-jnp.inf".to_owned(), typed);
    Some(reduce_window(s, s.arg(0), &least, "max", &pool, &pads))
}

/// A reduction of JAX over the windows of `x`.
fn reduce_window(
    s: &LoweringCx<'_>,
    x: &str,
    start: &str,
    function: &str,
    pool: &Pool,
    pads: &window::Pads,
) -> String {
    let all = |values: &[i64]| python(s, &[&[1, 1], values].concat());
    let none = [Dim::Const(0), Dim::Const(0)];
    let pads: window::Pads = [none.clone(), none].into_iter().chain(pads.iter().cloned()).collect();
    let (kernel, stride, pads) = (all(&pool.kernel), all(&pool.stride), window::jax_pads(s, &pads));
    format!("jax.lax.reduce_window({x}, {start}, jax.lax.{function}, {kernel}, {stride}, {pads})")
}

/// For windows that all have the same number of elements, or padding that is not counted; otherwise the op is expanded.
pub(super) fn avg(s: &LoweringCx<'_>) -> Option<String> {
    let ty = s.ty(0).filter(|ty| ty.dtype.is_float())?;
    let pool = Pool::read(s, ty.shape.rank().checked_sub(2)?).ok()?;
    let pads = pool.all_pads(s, &ty.shape).ok()?;
    let is_half = matches!(ty.dtype, DType::F16 | DType::BF16);
    let wide =
        if is_half { format!("{}.astype({})", s.arg(0), s.dtype(DType::F32)) } else { s.arg(0).to_owned() };
    let sums = reduce_window(s, &wide, "0.0", "add", &pool, &pads);
    let counts = if pads.iter().flatten().all(|pad| pad.is(0)) || (s.bool(5).ok()? && !pool.ceil) {
        pool.kernel.iter().product::<i64>().to_string()
    } else if s.bool(5).ok()? {
        return None;
    } else {
        let sizes: Vec<Dim> =
            [Dim::ONE, Dim::ONE].into_iter().chain(ty.shape.iter().skip(2).cloned()).collect();
        let dtype = if is_half { DType::F32 } else { ty.dtype };
        let ones = format!("jnp.ones({}, {})", s.dims(&sizes), s.dtype(dtype));
        reduce_window(s, &ones, "0.0", "add", &pool, &pads)
    };
    let means = format!("{sums} / {counts}");
    Some(if is_half { format!("({means}).astype({})", s.dtype(ty.dtype)) } else { means })
}
