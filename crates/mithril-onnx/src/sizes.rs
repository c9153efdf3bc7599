//! Arithmetic on sizes: what a model computes from the shapes of its tensors, exact also where sizes are symbols.

use mithril_ir::{DType, Dim};

use crate::context::{Sizes, Value};
use crate::node::Use;

/// The result of a node whose inputs are sizes, if it can be written with them.
pub fn eval(u: &mut Use<'_>) -> Option<Value> {
    if u.node.op_type == "Shape" || u.node.op_type == "Size" {
        return None;
    }
    let has_symbols = u.inputs.iter().flatten().any(|v| matches!(v, Value::Sizes(_)));
    if !has_symbols {
        return None;
    }
    let x: Vec<Option<Sizes>> = (0..u.inputs.len()).map(|i| u.known_sizes(i)).collect();
    let sizes = compute(u, &x)?;
    Some(u.cx.known_or_sizes(sizes))
}

#[allow(clippy::too_many_lines, reason = "an arm for each op")]
fn compute(u: &Use<'_>, x: &[Option<Sizes>]) -> Option<Sizes> {
    let arg = |i: usize| x.get(i).and_then(Option::as_ref);
    let first = arg(0)?;
    let numbers = |i: usize| arg(i)?.dims.iter().map(Dim::known).collect::<Option<Vec<i64>>>();
    let same = |dims: Vec<Dim>, is_scalar: bool| Some(Sizes { dims, is_scalar, dtype: first.dtype });
    match u.node.op_type.as_str() {
        "Identity" => Some(first.clone()),
        "Cast" => {
            let dtype = u.dtype_of("to").ok()??;
            matches!(dtype, DType::I64 | DType::I32).then(|| Sizes { dtype, ..first.clone() })
        }
        "Add" => both(first, arg(1)?, |a, b| Some(a + b)),
        "Sub" => both(first, arg(1)?, |a, b| Some(a - b)),
        "Mul" => both(first, arg(1)?, |a, b| Some(a * b)),
        // Of what is not negative, rounding toward zero is rounding down; a divisor has to be a positive number.
        "Div" => both(first, arg(1)?, |a, b| match b.known() {
            Some(1..) if a.known().is_none_or(|n| n >= 0) && !is_opposite(a) => Some(a.floor_div(b)),
            Some(1..) => Some(-&(-a).floor_div(b)),
            _ => None,
        }),
        // The sign is that of the divisor, unless `fmod` says that it is the other one.
        "Mod" => both(first, arg(1)?, |a, b| {
            let is_floor =
                u.int("fmod", 0).ok()? == 0 || !(is_opposite(a) || a.known().is_some_and(|n| n < 0));
            (is_floor && b.known().is_some_and(|n| n > 0)).then(|| a.remainder(b))
        }),
        "Neg" => same(first.dims.iter().map(|d| -d).collect(), first.is_scalar),
        "Gather" => {
            let indices = arg(1)?;
            if first.is_scalar || u.int("axis", 0).ok()? > 0 {
                return None;
            }
            let n = first.dims.len() as i64;
            let pick = |d: &Dim| {
                let i = d.known()?;
                first.dims.get(usize::try_from(if i < 0 { i + n } else { i }).ok()?).cloned()
            };
            let dims = indices.dims.iter().map(pick).collect::<Option<Vec<_>>>()?;
            same(dims, indices.is_scalar)
        }
        "Concat" => {
            let parts: Vec<&Sizes> = (0..x.len()).map(arg).collect::<Option<_>>()?;
            let joins = parts.iter().all(|p| !p.is_scalar);
            joins.then(|| parts.iter().flat_map(|p| p.dims.clone()).collect()).and_then(|d| same(d, false))
        }
        "Unsqueeze" => (first.is_scalar).then(|| first.dims.clone()).and_then(|d| same(d, false)),
        "Squeeze" => (first.dims.len() == 1).then(|| first.dims.clone()).and_then(|d| same(d, true)),
        "Reshape" => {
            let shape = numbers(1)?;
            match shape.as_slice() {
                [] if first.dims.len() == 1 => same(first.dims.clone(), true),
                [n] if *n == -1 || *n == first.dims.len() as i64 => same(first.dims.clone(), false),
                _ => None,
            }
        }
        "Slice" => {
            let (starts, ends) = if u.opset < 10 {
                (u.ints("starts").ok()??, u.ints("ends").ok()??)
            } else {
                (numbers(1)?, numbers(2)?)
            };
            let steps = if x.len() > 4 { numbers(4)? } else { vec![1] };
            let ([start], [end], [step]) = (starts.as_slice(), ends.as_slice(), steps.as_slice()) else {
                return None;
            };
            if first.is_scalar || *step == 0 {
                return None;
            }
            let (n, step) = (first.dims.len() as i64, *step);
            let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
            let clamp = |i: i64| (if i < 0 { i.saturating_add(n) } else { i }).clamp(low, high);
            let (mut i, end) = (clamp(*start), clamp(*end));
            let mut dims = Vec::new();
            while if step > 0 { i < end } else { i > end } {
                dims.push(first.dims.get(usize::try_from(i).ok()?)?.clone());
                i = i.saturating_add(step);
            }
            same(dims, false)
        }
        "ReduceProd" => {
            let keeps = u.flag("keepdims", true).ok()?;
            let product = first.dims.iter().fold(Dim::ONE, |a, b| &a * b);
            same(vec![product], !keeps || first.is_scalar)
        }
        "Where" => {
            let chosen = numbers(0)?;
            let (a, b) = (arg(1)?, arg(2)?);
            if a.dims.len() != b.dims.len() || a.dims.len() != chosen.len() || a.is_scalar != b.is_scalar {
                return None;
            }
            let pick = |i: usize| if chosen[i] != 0 { a.dims[i].clone() } else { b.dims[i].clone() };
            Some(Sizes {
                dims: (0..chosen.len()).map(pick).collect(),
                is_scalar: a.is_scalar,
                dtype: a.dtype,
            })
        }
        // A size is neither -1 nor another constant that is not a size; of others it is not known.
        "Equal" => {
            let sizes = both(first, arg(1)?, |a, b| {
                let differs = |a: &Dim, b: &Dim| {
                    a.known().is_none() && a.as_symbol().is_some() && b.known().is_some_and(|n| n < 0)
                };
                if a == b {
                    Some(Dim::ONE)
                } else if differs(a, b) || differs(b, a) || (a.known().is_some() && b.known().is_some()) {
                    Some(Dim::Const(0))
                } else {
                    None
                }
            })?;
            Some(Sizes { dtype: DType::Bool, ..sizes })
        }
        _ => None,
    }
}

/// Whether it is the opposite number of a size.
fn is_opposite(dim: &Dim) -> bool {
    dim.known().is_none() && dim.is_never_positive()
}

/// Combines two, of which either may be one number for all of the other.
fn both(a: &Sizes, b: &Sizes, f: impl Fn(&Dim, &Dim) -> Option<Dim>) -> Option<Sizes> {
    let n = match (a.dims.len(), b.dims.len()) {
        (n, m) if n == m => n,
        (1, n) | (n, 1) => n,
        _ => return None,
    };
    let at = |s: &Sizes, i: usize| s.dims[if s.dims.len() == 1 { 0 } else { i }].clone();
    let dims = (0..n).map(|i| f(&at(a, i), &at(b, i))).collect::<Option<Vec<_>>>()?;
    Some(Sizes { dims, is_scalar: a.is_scalar && b.is_scalar, dtype: a.dtype })
}
