//! Lowering of convolutions to MLX.

use super::python_tuple;
use crate::dtype::DType;
use crate::lowering::LoweringCx;
use crate::ops::window;

/// MLX has channels last; cases that it computes wrongly use a helper.
pub(super) fn general(s: &LoweringCx<'_>) -> Option<String> {
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let a = super::general(s, n).ok()?;
    let (x, w) = (s.arg(0), s.arg(1));
    let [stride, dilation, input_dilation] =
        [&a.stride, &a.dilation, &a.input_dilation].map(|v| python_tuple(v));
    let is_cut = a.pads.iter().flatten().any(|d| d.known().is_none_or(|p| p < 0));
    let is_empty = [0, 1].iter().any(|&i| s.ty(i).is_some_and(|t| t.shape.iter().any(|d| d.is(0))));
    let groups = a.groups;
    // If the padding is larger than the kernel, the gradient of MLX for a dilated input is wrong.
    let is_far = (0..n).any(|i| {
        let extent = s.ty(1).and_then(|w| window::dilated(&w.shape[i + 2], a.dilation[i]).known());
        a.input_dilation[i] > 1 && a.pads[i].iter().any(|d| d.known() >= extent)
    });
    if is_cut || is_far || is_empty || (groups > 1 && n == 3) || s.out(0)?.dtype == DType::F64 {
        let pads = crate::lowering::tuple(a.pads.iter().map(|pair| s.dims(pair)));
        return Some(format!(
            "_conv_general({x}, {w}, {stride}, {pads}, {dilation}, {input_dilation}, {groups})"
        ));
    }
    // MLX has channels last.
    let side = |i: usize| a.pads.iter().map(|p| p[i].to_string()).collect::<Vec<_>>().join(", ");
    let pads = format!("([{}], [{}])", side(0), side(1));
    Some(format!(
        "mx.moveaxis(mx.conv_general(mx.moveaxis({x}, 1, -1), mx.moveaxis({w}, 1, -1), {stride}, {pads}, {dilation}, \
         {input_dilation}, {groups}), -1, 1)"
    ))
}
