//! Normalization, products and activations in ONNX.

use crate::dtype::DType;
use crate::literal::Lit;
use crate::lowering::LoweringCx;
use crate::ops::norm::eps_of_rms_norm;
use crate::rules::Attrs;

/// Whether the tensors at these ports are present, with the dtype of the first input.
fn all_there(s: &LoweringCx<'_>, ports: &[usize]) -> bool {
    let dtype = s.ty(0).map(|t| t.dtype);
    ports.iter().all(|&i| s.ty(i).map(|t| t.dtype) == dtype)
}

/// `Gemm` for one matrix; else a product with the transposed weight.
pub(in crate::ops) fn linear(s: &LoweringCx<'_>) -> Option<String> {
    let has_bias = s.ty(2).is_some();
    if !all_there(s, if has_bias { &[1, 2] } else { &[1] }) {
        return None;
    }
    let rank = s.ty(0)?.shape.rank();
    if rank == 2 && s.out(0)?.dtype.is_float() {
        let bias = if has_bias { ", {2}" } else { "" };
        return Some(format!("Gemm<transB=1>({{0}}, {{1}}{bias})"));
    }
    let product = "MatMul({0}, Transpose<perm=[1, 0]>({1}))";
    Some(if has_bias { format!("Add({product}, {{2}})") } else { product.into() })
}

/// Batch normalization with fixed statistics.
pub(in crate::ops) fn batch_norm(s: &LoweringCx<'_>) -> Option<String> {
    let eps = s.f64(s.op().port("eps")?).ok()?;
    let is_training = !matches!(s.lit(s.op().port("training")?), Lit::Bool(false));
    let ports = ["weight", "bias", "running_mean", "running_var"].map(|name| s.op().port(name));
    let [Some(weight), Some(bias), Some(mean), Some(var)] = ports else { return None };
    if is_training || !all_there(s, &[weight, bias, mean, var]) {
        return None;
    }
    let attributes = format!("epsilon={eps:e}");
    Some(format!(
        "BatchNormalization<{attributes}>({{0}}, {{{weight}}}, {{{bias}}}, {{{mean}}}, {{{var}}}); {{{mean}}}; {{{var}}}"
    ))
}

/// Mean and variance are computed in float32; few implementations support the attribute that changes it.
fn is_wide(s: &LoweringCx<'_>) -> bool {
    s.ty(0).is_some_and(|t| t.dtype == DType::F64)
}

/// Over the last `axes` axes.
pub(in crate::ops) fn layer_norm(s: &LoweringCx<'_>, axes: usize) -> Option<String> {
    let has_bias = s.ty(2).is_some();
    if is_wide(s) || !all_there(s, if has_bias { &[1, 2] } else { &[1] }) {
        return None;
    }
    let (eps, axis) = (s.f64(4).ok()?, -(axes as i64));
    let bias = if has_bias { ", {2}" } else { "" };
    Some(format!("LayerNormalization<axis={axis}, epsilon={eps:e}>({{0}}, {{1}}{bias})"))
}

pub(in crate::ops) fn rms_norm(s: &LoweringCx<'_>, axes: usize) -> Option<String> {
    if is_wide(s) || !all_there(s, &[1]) {
        return None;
    }
    let eps = eps_of_rms_norm(s)?;
    let axis = -(axes as i64);
    Some(format!("RMSNormalization<axis={axis}, epsilon={eps:e}>({{0}}, {{1}})"))
}

pub(in crate::ops) fn instance_norm(s: &LoweringCx<'_>) -> Option<String> {
    let eps = s.f64(3).ok()?;
    all_there(s, &[1, 2]).then(|| format!("InstanceNormalization<epsilon={eps:e}>({{0}}, {{1}}, {{2}})"))
}

pub(in crate::ops) fn gelu(s: &LoweringCx<'_>) -> Option<String> {
    let approximate = s.text(1).ok()?;
    Some(format!("Gelu<approximate=\"{approximate}\">({{0}})"))
}

/// An activation with a parameter of this name.
pub(in crate::ops) fn with_alpha(s: &LoweringCx<'_>, op: &str) -> Option<String> {
    Some(format!("{op}<alpha={:e}>({{0}})", s.f64(1).ok()?))
}

/// `Relu`, or `Max` for integers.
pub(in crate::ops) fn relu(s: &LoweringCx<'_>) -> Option<String> {
    Some(if s.out(0)?.dtype.is_float() { "Relu({0})" } else { "Max({0}, 0)" }.into())
}
