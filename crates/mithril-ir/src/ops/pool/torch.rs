//! Windows in PyTorch.

use super::{filling, geometry, python};
use crate::dtype::DType;
use crate::lowering::LoweringCx;
use crate::ops::window;
use crate::rules::Attrs;
use crate::tensor::{Scalar, Tensor};

pub(super) fn windows(s: &LoweringCx<'_>) -> Option<String> {
    let (ty, out) = (s.ty(0)?, &s.out(0)?.shape);
    let n = ty.shape.rank().checked_sub(2)?;
    let window = python(s, &window::positive(s, 1, n).ok()?);
    let [stride, pads, dilation] = geometry(s, n, 2)?;
    // Windows of uint64 are those of the bits in int64.
    let (to, back, dtype) = match ty.dtype {
        DType::U64 => (".to(torch.int64)", ".to(torch.uint64)", DType::I64),
        dtype => ("", "", dtype),
    };
    let value = match filling(ty.dtype, s.f64(5).ok()?) {
        // PyTorch requires a fill value of the dtype.
        Scalar::Int(n) => Tensor::scalar(dtype, n).get(0).int().to_string(),
        _ => s.arg(5).to_owned(),
    };
    Some(if out.iter().any(|d| d.is(0)) {
        format!("{}.new_empty({})", s.arg(0), s.dims(out))
    } else {
        format!("_windows({}{to}, {window}, {stride}, {pads}, {dilation}, {value}){back}", s.arg(0))
    })
}

pub(super) fn fold(s: &LoweringCx<'_>) -> Option<String> {
    let sizes = s.out(0)?.shape.get(2..)?.to_vec();
    let [stride, pads, dilation] = geometry(s, sizes.len(), 2)?;
    Some(format!("_fold_windows({}, {}, {stride}, {pads}, {dilation})", s.arg(0), s.dims(&sizes)))
}
