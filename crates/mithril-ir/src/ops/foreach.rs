//! Lowerings to the functions of PyTorch that take lists of tensors (`torch._foreach_add`), for ops that are applied to
//! many tensors in one call.

use crate::lowering::LoweringCx;
use crate::rules::Attrs;

/// A function of a list and another operand.
fn call(cx: &LoweringCx<'_>, name: &str, list: usize, other: usize) -> String {
    format!("torch._foreach_{name}({}, {})", cx.arg(list), cx.arg(other))
}

/// Of a list with a list, or with what its tensors share.
pub fn commutative(cx: &LoweringCx<'_>, name: &str) -> Option<String> {
    let reversed = || cx.is_list(1).then(|| call(cx, name, 1, 0));
    cx.is_list(0).then(|| call(cx, name, 0, 1)).or_else(reversed)
}

/// PyTorch has no difference of a list and a tensor that is shared.
pub fn difference(cx: &LoweringCx<'_>) -> Option<String> {
    let is_shared = !cx.is_list(1) && cx.absent(1);
    let sum = || format!("torch._foreach_add({}, {}, alpha=-1)", cx.arg(0), cx.arg(1));
    cx.is_list(0).then(|| if is_shared { sum() } else { call(cx, "sub", 0, 1) })
}

/// Of a list by a list, or by what its tensors share.
pub fn quotient(cx: &LoweringCx<'_>) -> Option<String> {
    cx.is_list(0).then(|| call(cx, "div", 0, 1))
}

/// Of two lists.
pub fn extremum(cx: &LoweringCx<'_>, name: &str) -> Option<String> {
    (cx.is_list(0) && cx.is_list(1)).then(|| call(cx, name, 0, 1))
}

/// Bounds that are numbers.
pub fn clip(cx: &LoweringCx<'_>) -> Option<String> {
    let are_numbers = cx.f64(1).is_ok() && cx.f64(2).is_ok();
    let text = || {
        format!("torch._foreach_minimum(torch._foreach_maximum({}, {}), {})", cx.arg(0), cx.arg(1), cx.arg(2))
    };
    (cx.is_list(0) && are_numbers).then(text)
}

/// In one pass over memory on a CPU, also where all tensors share the last operand. Elsewhere such a product is computed
/// first: kernels for many tensors take lists of like shapes, and two of those are faster than one for each tensor.
pub fn addcmul(cx: &LoweringCx<'_>) -> Option<String> {
    let value = cx.f64(3).ok().filter(|x| x.is_finite())?;
    if !(cx.is_list(0) && cx.is_list(1)) {
        return None;
    }
    let (x, left, right) = (cx.arg(0), cx.arg(1), cx.arg(2));
    if !cx.absent(2) {
        let factor = cx.f64(2).ok().map(|x| x * value).filter(|x| x.is_finite())?;
        // The memory of what is scaled takes the sum, where it may: a momentum that is given away.
        if cx.donated == [1] {
            return Some(format!("torch._foreach_add(torch._foreach_mul({left}, {factor:?}), {x})"));
        }
        return Some(format!("torch._foreach_add({x}, {left}, alpha={factor:?})"));
    }
    if !cx.is_list(2) && !cx.on_cpu {
        return Some(format!(
            "torch._foreach_add({x}, torch._foreach_mul({left}, {right}), alpha={value:?})"
        ));
    }
    let right = if cx.is_list(2) { right.to_owned() } else { format!("[{right}] * len({left})") };
    Some(format!("torch._foreach_addcmul({x}, {left}, {right}, value={value:?})"))
}
