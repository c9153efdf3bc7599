//! Lowering of convolutions to JAX.

use super::python_tuple;
use crate::lowering::{LoweringCx, tuple};
use crate::ops::window;

/// Dilations and groups are keyword arguments, which are omitted where they are 1.
pub(super) fn general(s: &LoweringCx<'_>) -> Option<String> {
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let a = super::general(s, n).ok()?;
    // JAX does not accept `"VALID"` if the input is dilated.
    let pads = if a.input_dilation.iter().all(|&d| d == 1) {
        window::jax_pads(s, &a.pads)
    } else {
        tuple(a.pads.iter().map(|pair| s.dims(pair)))
    };
    let named = |name: &str, values: &[i64]| {
        let is_usual = values.iter().all(|&v| v == 1);
        if is_usual { String::new() } else { format!(", {name}={}", python_tuple(values)) }
    };
    let groups = if a.groups == 1 { String::new() } else { format!(", feature_group_count={}", a.groups) };
    Some(format!(
        "jax.lax.conv_general_dilated({}, {}, {}, {pads}{}{}{groups})",
        s.arg(0),
        s.arg(1),
        python_tuple(&a.stride),
        named("lhs_dilation", &a.input_dilation),
        named("rhs_dilation", &a.dilation),
    ))
}
