//! Sliding windows along spatial axes: arguments and sizes that convolution and pooling share.

use crate::dim::Dim;
use crate::error::{Code, Error, Result};
use crate::literal::Lit;
use crate::lowering::{LoweringCx, tuple};
use crate::rules::{Attrs, ShapeCx};

/// Largest kernel size, stride, dilation or padding; offsets then fit into `i64`.
const LIMIT: i64 = 1 << 31;

/// Largest number of positions that may become a constant table in the graph: a small model must not exhaust the memory at
/// compile time.
pub const MAX_TABLE: i64 = 1 << 22;

/// Amounts added before and after each axis; negative ones crop.
pub type Pads = Vec<[Dim; 2]>;

/// The `padding` argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Padding {
    /// Amounts before and after each axis.
    Explicit(Vec<[i64; 2]>),
    /// Padding for ⌈n / stride⌉ output elements; an odd element goes to the end.
    Same,
}

/// `n` integers of at least 1 at port `i`: stride, dilation, kernel size.
pub fn positive<A: Attrs + ?Sized>(cx: &A, i: usize, n: usize) -> Result<Vec<i64>> {
    bounded(cx, i, n, 1)
}

/// `n` integers of at least `least` at port `i`.
pub fn bounded<A: Attrs + ?Sized>(cx: &A, i: usize, n: usize, least: i64) -> Result<Vec<i64>> {
    let all = cx.ints_n(i, n)?;
    match all.iter().find(|&&v| v < least || v > LIMIT) {
        Some(_) => Err(cx.bad(i, &cx.lit(i), &format!("at least {least} and at most {LIMIT}"))),
        None => Ok(all),
    }
}

/// A single integer of at least 1 at port `i` (groups).
pub fn count<A: Attrs + ?Sized>(cx: &A, i: usize) -> Result<i64> {
    Ok(positive(cx, i, 1)?[0])
}

/// Reads `padding` for `n` axes: an integer for all, one per axis, pairs, `"same"` or `"valid"`.
pub fn padding<A: Attrs + ?Sized>(cx: &A, i: usize, n: usize) -> Result<Padding> {
    let lit = cx.lit(i);
    let error = || cx.bad(i, &lit, &padding_forms(n));
    let pairs = match &lit {
        Lit::Str(s) if s.eq_ignore_ascii_case("same") => return Ok(Padding::Same),
        Lit::Str(s) if s.eq_ignore_ascii_case("valid") => vec![[0, 0]; n],
        Lit::Tuple(items) if items.iter().any(|item| matches!(item, Lit::Tuple(_))) => {
            let pairs = pads(cx, i, n)?;
            let known = |d: &Dim| d.known().ok_or_else(|| cx.symbolic(i, d));
            pairs.iter().map(|[lo, hi]| Ok([known(lo)?, known(hi)?])).collect::<Result<_>>()?
        }
        Lit::Int(_) | Lit::Bool(_) | Lit::Tuple(_) | Lit::Tensor(_) => cx
            .ints_n(i, n)
            .map_err(|e| e.help(format!("it must be {}", padding_forms(n))))?
            .iter()
            .map(|&p| [p, p])
            .collect(),
        _ => return Err(error()),
    };
    if pairs.iter().flatten().any(|&p| !(0..=LIMIT).contains(&p)) {
        return Err(cx.bad(i, &lit, &format!("at least 0 and at most {LIMIT}; to cut off, slice the input")));
    }
    Ok(Padding::Explicit(pairs))
}

fn padding_forms(n: usize) -> String {
    let pairs = vec!["(before, after)"; n].join(", ");
    let comma = if n == 1 { "," } else { "" };
    format!("an integer, one per axis, ({pairs}{comma}), \"same\" or \"valid\"")
}

/// Reads pairs `((before, after), ...)`, possibly symbolic or negative, or one integer for all sides.
pub fn pads<A: Attrs + ?Sized>(cx: &A, i: usize, n: usize) -> Result<Pads> {
    let lit = cx.lit(i);
    let error = || cx.bad(i, &lit, &format!("an integer, or {n} pairs ((before, after), ...)"));
    let inside = |d: &Dim| d.known().is_none_or(|p| p.abs() <= LIMIT << 8);
    let all: Pads = match &lit {
        Lit::Int(p) => vec![[p.clone(), p.clone()]; n],
        Lit::Tuple(items) if items.len() == n => {
            let pair = |item: &Lit| match item {
                Lit::Tuple(two) => match &**two {
                    [Lit::Int(lo), Lit::Int(hi)] => Ok([lo.clone(), hi.clone()]),
                    _ => Err(error()),
                },
                Lit::Tensor(t) if t.len() == 2 && !t.dtype().is_float() => {
                    Ok([t.get(0).i64().into(), t.get(1).i64().into()])
                }
                _ => Err(error()),
            };
            items.iter().map(pair).collect::<Result<_>>()?
        }
        _ => return Err(error()),
    };
    if all.iter().flatten().all(inside) { Ok(all) } else { Err(error()) }
}

/// The amounts before each axis of [`pads`], which must be known.
pub fn pads_before<A: Attrs + ?Sized>(cx: &A, i: usize, n: usize) -> Result<Vec<i64>> {
    pads(cx, i, n)?.iter().map(|[lo, _]| lo.known().ok_or_else(|| cx.symbolic(i, lo))).collect()
}

/// The literal of pads.
pub fn pads_lit(pads: &[[Dim; 2]]) -> Lit {
    Lit::tuple(pads.iter().map(|pair| Lit::tuple(pair.iter().cloned())))
}

/// The literal of `padding` or `pads` in which the pair of one axis is another one.
///
/// # Errors
/// If a pad is a symbol, or the axis is not a spatial one.
pub fn with_pair<A: Attrs + ?Sized>(cx: &A, i: usize, all: Pads, axis: usize, pair: [i64; 2]) -> Result<Lit> {
    let mut all = all;
    let own = axis.checked_sub(2).and_then(|at| all.get_mut(at));
    *own.ok_or_else(|| cx.bad(i, &cx.lit(i), "pads of an axis that has windows"))? = pair.map(Dim::Const);
    Ok(pads_lit(&all))
}

/// The number of a pad.
///
/// # Errors
/// If it is a symbol, or the axis is not a spatial one.
pub fn before<A: Attrs + ?Sized>(cx: &A, i: usize, all: &Pads, axis: usize) -> Result<i64> {
    let own = axis.checked_sub(2).and_then(|at| all.get(at)).and_then(|[before, _]| before.known());
    own.ok_or_else(|| cx.bad(i, &cx.lit(i), "known pads of an axis that has windows"))
}

/// Size after inserting `by - 1` zeros between neighbors, or that of a window with that dilation.
pub const fn extent(n: i64, by: i64) -> i64 {
    if n > 0 { (n - 1) * by + 1 } else { 0 }
}

/// Pads for JAX: `"VALID"` if there are none.
pub fn jax_pads(s: &LoweringCx<'_>, pads: &[[Dim; 2]]) -> String {
    if pads.iter().flatten().all(|pad| pad.is(0)) {
        return "\"VALID\"".to_owned();
    }
    tuple(pads.iter().map(|pair| s.dims(pair)))
}

/// Size after inserting `by - 1` zeros between neighbors: `(n - 1)·by + 1`; an empty axis stays empty.
pub fn dilated(n: &Dim, by: i64) -> Dim {
    if by == 1 || n.is(0) {
        return n.clone();
    }
    &(&(n - &Dim::ONE) * &Dim::Const(by)) + &Dim::ONE
}

/// Number of window positions: `⌊(n + before + after - extent) / stride⌋ + 1`.
pub fn positions(n: &Dim, [lo, hi]: &[Dim; 2], extent: &Dim, stride: i64) -> Dim {
    let room = &(&(n + lo) + hi) - extent;
    &room.floor_div(&Dim::Const(stride)) + &Dim::ONE
}

/// `⌈n / by⌉`
pub fn ceil_div(n: &Dim, by: i64) -> Dim {
    (n + &Dim::Const(by - 1)).floor_div(&Dim::Const(by))
}

/// Pads for ⌈n / stride⌉ positions; an odd element goes to the end.
pub fn same_pads<A: Attrs + ?Sized>(cx: &A, i: usize, n: &Dim, extent: i64, stride: i64) -> Result<[Dim; 2]> {
    let steps = &(&ceil_div(n, stride) - &Dim::ONE) * &Dim::Const(stride);
    let total = &(&steps + &Dim::Const(extent)) - n;
    // The amount is at least `extent - stride`: a symbolic amount is not negative if that is not.
    let total = match total.known() {
        Some(total) => Dim::Const(total.max(0)),
        None if extent >= stride => total,
        None => return Err(cx.symbolic(i, &total)),
    };
    let lo = total.floor_div(&Dim::Const(2));
    let hi = &total - &lo;
    Ok([lo, hi])
}

/// Checks that a kernel of `extent` fits into axis `axis` of size `n` with pads.
pub fn check_fits(cx: &ShapeCx<'_>, axis: usize, n: &Dim, [lo, hi]: [i64; 2], extent: &Dim) -> Result<()> {
    let (Some(size), Some(extent)) = (n.known(), extent.known()) else { return Ok(()) };
    let padded = size.saturating_add(lo).saturating_add(hi);
    if extent <= padded {
        return Ok(());
    }
    let message = format!(
        "the kernel of {} spans {extent} elements, but spatial axis {axis} of the input has {padded} (padding included)",
        cx.op().name
    );
    Err(Error::new(Code::ShapeMismatch, message)
        .note(format!("the input has shape {}", cx.shape(0)))
        .help("use a smaller kernel or dilation, more padding, or a larger input"))
}

/// `, stride=2` or `, stride=(2, 1)`; nothing if all have the default.
pub fn torch_option(name: &str, values: &[i64], default: i64) -> String {
    match values {
        [first, rest @ ..] if rest.iter().all(|v| v == first) => {
            if *first == default {
                String::new()
            } else {
                format!(", {name}={first}")
            }
        }
        _ => format!(", {name}={}", tuple(values.iter().map(ToString::to_string))),
    }
}

/// `F.pad` of the spatial axes of `x`, which runs from the last axis to the first; `more` follows the pads.
pub fn torch_padded(s: &LoweringCx<'_>, x: &str, pads: &[[Dim; 2]], more: &str) -> String {
    let flat: Vec<Dim> = pads.iter().rev().flatten().cloned().collect();
    format!("F.pad({x}, {}{more})", s.dims(&flat))
}

/// One spatial axis of an evaluation: for each kernel element and window position the index of the input element, if there is
/// one.
#[derive(Debug)]
pub struct Axis {
    /// Size of the input.
    pub input: usize,
    /// Size of the kernel.
    pub kernel: usize,
    /// Number of positions.
    pub out: usize,
    source: Vec<Option<usize>>,
}

impl Axis {
    /// A dummy axis of size 1.
    pub fn unit() -> Self {
        Self::new(1, 1, 1, [1, 0, 1, 1])
    }
    /// `steps` are stride, padding before, dilation and input dilation.
    pub fn new(input: usize, kernel: usize, out: usize, steps: [i64; 4]) -> Self {
        let [stride, lo, dilation, input_dilation] = steps;
        let source = |k: usize, o: usize| {
            let at = o as i64 * stride - lo + k as i64 * dilation;
            let i = usize::try_from(at / input_dilation).ok()?;
            (at >= 0 && at % input_dilation == 0 && i < input).then_some(i)
        };
        let source = (0..kernel).flat_map(|k| (0..out).map(move |o| source(k, o))).collect();
        Self { input, kernel, out, source }
    }
    /// The input elements under kernel element `k`, by position.
    pub fn row(&self, k: usize) -> &[Option<usize>] {
        &self.source[k * self.out..][..self.out]
    }
}

/// All triples of numbers below `a`, `b` and `c`, the last running fastest.
pub fn triples([a, b, c]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| [i, j, k])))
}
