//! Lowering of convolutions to JAX.

use super::{General, python_tuple};
use crate::dim::Dim;
use crate::lowering::{LoweringCx, tuple};
use crate::ops::window;

/// Dilations and groups are keyword arguments, which are omitted where they are 1.
pub(super) fn general(s: &LoweringCx<'_>) -> Option<String> {
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let mut a = super::general(s, n).ok()?;
    let x = without_cropped(s, &mut a)?;
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
        x,
        s.arg(1),
        python_tuple(&a.stride),
        named("lhs_dilation", &a.input_dilation),
        named("rhs_dilation", &a.dilation),
    ))
}

/// The image without what is cropped at the start of axes that are padded at the end: XLA before JAX 0.12 reads outside of the
/// image there, for processors.
fn without_cropped(s: &LoweringCx<'_>, a: &mut General) -> Option<String> {
    let mut x = s.arg(0).to_owned();
    for (i, [low, high]) in a.pads.iter_mut().enumerate() {
        let (Some(crop), Some(pad)) = (low.known(), high.known()) else { continue };
        if crop < 0 && pad > 0 && a.input_dilation[i] == 1 {
            x = format!("jax.lax.slice_in_dim({x}, {}, None, axis={})", -crop, i + 2);
            *low = Dim::Const(0);
        }
    }
    Some(x)
}
