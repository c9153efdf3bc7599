//! Functions of ours beside those of ggml, as custom ops of floats: they keep NaN, where ggml's compare and lose it, and
//! know choices and comparisons, which ggml lacks. Threads share the rows.

use std::array::from_fn;
use std::ffi::{c_int, c_void};
use std::ptr;

use crate::ffi::{self, ggml_context, ggml_custom_op_t, ggml_tensor};
#[cfg(test)]
use crate::operations::Parameter;
use crate::operations::{Operation, Passed};

/// Where numbers lie among the parameters of a tensor: behind those of ggml's custom ops.
const NUMBERS: usize = 8;

/// The parameter that says that a tensor may lie in the memory of an operand of its sizes.
pub(crate) const IN_PLACE: usize = 15;

/// So many floats are computed at once.
const LANES: usize = 16;

macro_rules! own {
    ($($name:ident($($parameter:ident)*) = $make:ident $function:ident;)*) => {
        /// All of them.
        pub(crate) static OWN: &[Operation] = &[$(Operation {
            name: stringify!($name),
            #[cfg(test)]
            parameters: &[$(Parameter::$parameter),*],
            call: |context, passed| {
                // SAFETY: the caller vouches for the context and for tensors of it, and for what was checked.
                unsafe { $make(context, passed, $function) }
            },
        }),*];
    };
}

own! {
    mithril_clamp(tensor float float) = spread clamp;
    mithril_sign(tensor) = spread sign;
    mithril_gelu_tanh(tensor) = spread gelu_tanh;
    mithril_max(tensor tensor) = spread max;
    mithril_min(tensor tensor) = spread min;
    mithril_less(tensor tensor) = spread less;
    mithril_less_equal(tensor tensor) = spread less_equal;
    mithril_equal(tensor tensor) = spread equal;
    mithril_select(tensor tensor tensor) = spread select;
    mithril_max_rows(tensor) = reduced max_rows;
    mithril_min_rows(tensor) = reduced min_rows;
    mithril_prod_rows(tensor) = reduced prod_rows;
    mithril_max_pool(tensor int int int int int int) = pooled max_pool;
    mithril_reverse(tensor int) = moved reverse;
    mithril_rotate_pairs(tensor tensor tensor flag) = moved rotate_pairs;
}

// --- making ------------------------------------------------------------------------------------------------

/// A custom op of the tensors and numbers passed.
///
/// # Safety
/// Context and tensors live; what is passed was checked.
unsafe fn custom(
    context: *mut ggml_context,
    passed: &[Passed],
    [n0, n1, n2, n3]: [i64; ffi::MAX_DIMS],
    function: ggml_custom_op_t,
) -> *mut ggml_tensor {
    let tensors = passed.iter().filter(|p| matches!(p, Passed::Tensor(_)));
    let mut tensors: Vec<_> = tensors.map(|p| p.tensor()).collect();
    let (count, data) = (tensors.len() as c_int, ptr::null_mut());
    let operands = tensors.as_mut_ptr();
    // SAFETY: as said.
    unsafe {
        let tensor = ffi::ggml_custom_4d(
            context,
            0,
            n0,
            n1,
            n2,
            n3,
            operands,
            count,
            function,
            ffi::ALL_THREADS,
            data,
        );
        for (i, number) in passed.iter().filter(|p| matches!(p, Passed::Number(_))).enumerate() {
            (*tensor).op_params[NUMBERS + i] = (number.number() as f32).to_bits().cast_signed();
        }
        tensor
    }
}

/// Element by element, of tensors that are repeated to the largest.
///
/// # Safety
/// As [`custom`].
unsafe fn spread(
    context: *mut ggml_context,
    passed: &[Passed],
    function: ggml_custom_op_t,
) -> *mut ggml_tensor {
    let mut sizes = [1; ffi::MAX_DIMS];
    for tensor in passed.iter().filter(|p| matches!(p, Passed::Tensor(_))).map(|p| p.tensor()) {
        // SAFETY: as said.
        let own = unsafe { (*tensor).ne };
        sizes.iter_mut().zip(own).for_each(|(size, n)| *size = n.max(*size));
    }
    // SAFETY: as said.
    unsafe {
        let node = custom(context, passed, sizes, function);
        (*node).op_params[IN_PLACE] = 1;
        node
    }
}

/// One number of each row.
///
/// # Safety
/// As [`custom`].
unsafe fn reduced(
    context: *mut ggml_context,
    passed: &[Passed],
    function: ggml_custom_op_t,
) -> *mut ggml_tensor {
    // SAFETY: as said.
    unsafe {
        let [_, n1, n2, n3] = (*passed[0].tensor()).ne;
        custom(context, passed, [1, n1, n2, n3], function)
    }
}

/// The same elements at other places.
///
/// # Safety
/// As [`custom`].
unsafe fn moved(
    context: *mut ggml_context,
    passed: &[Passed],
    function: ggml_custom_op_t,
) -> *mut ggml_tensor {
    // SAFETY: as said.
    unsafe { custom(context, passed, (*passed[0].tensor()).ne, function) }
}

/// The largest of each window: sizes, steps and padding along both axes.
///
/// # Safety
/// As [`custom`].
unsafe fn pooled(
    context: *mut ggml_context,
    passed: &[Passed],
    function: ggml_custom_op_t,
) -> *mut ggml_tensor {
    let [k0, k1, s0, s1, p0, p1] = from_fn(|i| passed[i + 1].number() as i64);
    // SAFETY: as said.
    unsafe {
        let [n0, n1, n2, n3] = (*passed[0].tensor()).ne;
        let sizes = [(n0 + 2 * p0 - k0) / s0 + 1, (n1 + 2 * p1 - k1) / s1 + 1, n2, n3];
        custom(context, passed, sizes, function)
    }
}

// --- computing ---------------------------------------------------------------------------------------------

/// Number `i` of a tensor.
///
/// # Safety
/// The tensor lives.
unsafe fn number(tensor: *const ggml_tensor, i: usize) -> f32 {
    // SAFETY: as said.
    f32::from_bits(unsafe { (*tensor).op_params[NUMBERS + i] }.cast_unsigned())
}

/// The part of so many that a thread does.
fn part(count: usize, thread: c_int, threads: c_int, grain: usize) -> std::ops::Range<usize> {
    let each = count.div_ceil(threads as usize).next_multiple_of(grain);
    let first = (each * thread as usize).min(count);
    first..(first + each).min(count)
}

/// `f` of the elements of operands, those of one element along a dimension repeated.
///
/// # Safety
/// The tensor is computed by ggml now, by so many threads; its operands are floats, whose rows have no gaps.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn rows<const N: usize>(
    out: *mut ggml_tensor,
    thread: c_int,
    threads: c_int,
    f: impl Fn([f32; N]) -> f32,
) {
    // SAFETY: places are inside of the tensors, by their sizes and strides. What is written over was read before.
    unsafe {
        let sources: [*mut ggml_tensor; N] = from_fn(|k| (*out).src[k]);
        let count = (*out).ne.iter().product::<i64>() as usize;
        let is_one = |s: *mut ggml_tensor| (*s).ne == [1; ffi::MAX_DIMS];
        let is_same = |s: *mut ggml_tensor| (*s).ne == (*out).ne && ffi::ggml_is_contiguous(s);
        if sources.iter().all(|&s| is_one(s) || is_same(s)) {
            let mine = part(count, thread, threads, LANES);
            let first = mine.start;
            let at = |s: *mut ggml_tensor| (*s).data.cast::<f32>();
            let lines = sources.map(|s| if is_one(s) { (at(s), false) } else { (at(s).add(first), true) });
            line((*out).data.cast::<f32>().add(first), lines, mine.len(), f);
            return;
        }
        let [n0, n1, n2, _] = (*out).ne.map(|n| n as usize);
        for row in part(count / n0, thread, threads, 1) {
            let at = [row % n1, row / n1 % n2, row / n1 / n2];
            let lines = sources.map(|s| {
                let place: usize = (0..3).map(|d| at[d] % (*s).ne[d + 1] as usize * (*s).nb[d + 1]).sum();
                ((*s).data.byte_add(place).cast::<f32>(), (*s).ne[0] != 1)
            });
            line((*out).data.cast::<f32>().add(row * n0), lines, n0, &f);
        }
    }
}

/// A row: of each operand where it begins, and whether it moves on.
///
/// # Safety
/// There are so many elements.
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is to be compiled for the processor of its caller")]
unsafe fn line<const N: usize>(
    out: *mut f32,
    sources: [(*mut f32, bool); N],
    count: usize,
    f: impl Fn([f32; N]) -> f32,
) {
    // SAFETY: as said.
    unsafe {
        if sources[0] == (out, true) {
            each::<N, true>(out, sources, count, f);
        } else {
            each::<N, false>(out, sources, count, f);
        }
    }
}

/// The loop of [`line`]; `IN_PLACE`: the first operand is written over, which the compiler has to know to make vectors.
///
/// # Safety
/// As there.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as there")]
unsafe fn each<const N: usize, const IN_PLACE: bool>(
    out: *mut f32,
    sources: [(*mut f32, bool); N],
    count: usize,
    f: impl Fn([f32; N]) -> f32,
) {
    // SAFETY: as there.
    unsafe {
        for i in 0..count {
            *out.add(i) = f(from_fn(|k| match sources[k] {
                _ if IN_PLACE && k == 0 => *out.add(i),
                (from, true) => *from.add(i),
                (from, false) => *from,
            }));
        }
    }
}

fn larger(a: f32, b: f32) -> f32 {
    if a >= b || a.is_nan() { a } else { b }
}

fn smaller(a: f32, b: f32) -> f32 {
    if a <= b || a.is_nan() { a } else { b }
}

#[expect(clippy::float_cmp, reason = "equality is what is asked for")]
fn same(a: f32, b: f32) -> bool {
    a == b
}

/// `e^x`, within two units in the last place; 0 is never reached.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // ln 2 in two parts, the first of which times a small integer is exact.
    const HIGH: f32 = 0.693_359_4;
    const LOW: f32 = -2.121_944_4e-4;
    // Added to a number it leaves the nearest integer in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -87.3;
    const MOST: f32 = 88.0;
    let held = if x < LEAST { LEAST } else { x };
    let held = if held > MOST { MOST } else { held };
    let shifted = held * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = held - whole * HIGH - whole * LOW;
    let high = ((rest * (1.0 / 5040.0) + 1.0 / 720.0) * rest + 1.0 / 120.0) * rest + 1.0 / 24.0;
    let sum = ((high * rest + 1.0 / 6.0) * rest + 0.5) * rest + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    let quantile = (sum * rest + 1.0) * power;
    if x > MOST { f32::INFINITY } else { quantile }
}

fn truth(x: bool) -> f32 {
    f32::from(u8::from(x))
}

macro_rules! elementwise {
    ($($name:ident = $f:expr;)*) => {
        $(unsafe extern "C" fn $name(out: *mut ggml_tensor, thread: c_int, threads: c_int, _: *mut c_void) {
            // SAFETY: ggml calls it for a tensor that `spread` made, of operands that were checked.
            unsafe { rows(out, thread, threads, $f) }
        })*
    };
}

elementwise! {
    // `0.5 x (1 + tanh(√(2 / π) (x + 0.044715 x³)))`, which is `x σ(x (a + b x²))`.
    gelu_tanh = |[x]| x / (1.0 + exp(-x * (x * x * 0.071_354_814 + 1.595_769)));
    sign = |[x]| if x.is_nan() { x } else { truth(x > 0.0) - truth(x < 0.0) };
    max = |[a, b]| larger(a, b);
    min = |[a, b]| smaller(a, b);
    less = |[a, b]| truth(a < b);
    less_equal = |[a, b]| truth(a <= b);
    equal = |[a, b]| truth(same(a, b));
    select = |[condition, a, b]| if condition == 0.0 { b } else { a };
}

unsafe extern "C" fn clamp(out: *mut ggml_tensor, thread: c_int, threads: c_int, _: *mut c_void) {
    // SAFETY: as in `elementwise`; there are two numbers.
    unsafe {
        let (low, high) = (number(out, 0), number(out, 1));
        rows(out, thread, threads, |[x]| {
            if x < low {
                low
            } else if x > high {
                high
            } else {
                x
            }
        });
    }
}

/// `f` of each row of the operand.
///
/// # Safety
/// As [`rows`].
unsafe fn each_row(out: *mut ggml_tensor, thread: c_int, threads: c_int, f: impl Fn(&[f32]) -> f32) {
    // SAFETY: as there; the result has one element for each row.
    unsafe {
        let from = (*out).src[0];
        let [n0, n1, n2, n3] = (*from).ne.map(|n| n as usize);
        for row in part(n1 * n2 * n3, thread, threads, 1) {
            let at = [row % n1, row / n1 % n2, row / n1 / n2];
            let place: usize = (0..3).map(|d| at[d] * (*from).nb[d + 1]).sum();
            let values = std::slice::from_raw_parts((*from).data.byte_add(place).cast::<f32>(), n0);
            *(*out).data.cast::<f32>().add(row) = f(values);
        }
    }
}

/// All of them brought together, many at a time.
fn folded(values: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let Some((first, chunks)) = chunks.split_first() else {
        return rest.iter().copied().reduce(f).unwrap_or_default();
    };
    let lanes = chunks.iter().fold(*first, |all, chunk| from_fn(|i| f(all[i], chunk[i])));
    lanes.iter().chain(rest).copied().reduce(f).unwrap_or_default()
}

macro_rules! rowwise {
    ($($name:ident = $f:expr;)*) => {
        $(unsafe extern "C" fn $name(out: *mut ggml_tensor, thread: c_int, threads: c_int, _: *mut c_void) {
            // SAFETY: ggml calls it for a tensor that `reduced` made.
            unsafe { each_row(out, thread, threads, $f) }
        })*
    };
}

rowwise! {
    max_rows = |values| folded(values, larger);
    min_rows = |values| folded(values, smaller);
    prod_rows = |values| values.iter().map(|&x| f64::from(x)).product::<f64>() as f32;
}

unsafe extern "C" fn max_pool(out: *mut ggml_tensor, thread: c_int, threads: c_int, _: *mut c_void) {
    // SAFETY: ggml calls it for a tensor that `pooled` made, of an operand without gaps. Places are inside of a row by
    // the bounds of the loops.
    unsafe {
        let from = (*out).src[0];
        let [k0, k1, s0, s1, p0, p1] = from_fn(|i| number(out, i) as i64);
        let [width, height, ..] = (*from).ne;
        let [n0, n1, n2, n3] = (*out).ne;
        for row in part((n1 * n2 * n3) as usize, thread, threads, 1) {
            let (y, plane) = (row as i64 % n1, row as i64 / n1);
            let line = (*out).data.cast::<f32>().add(row * n0 as usize);
            let line = std::slice::from_raw_parts_mut(line, n0 as usize);
            line.fill(f32::NEG_INFINITY);
            for at in (y * s1 - p1).max(0)..(y * s1 - p1 + k1).min(height) {
                let values = (*from).data.cast::<f32>().add(((plane * height + at) * width) as usize);
                for k in 0..k0 {
                    // Windows whose element `k` lies inside of the row.
                    let first = (p0 - k + s0 - 1).max(0) / s0;
                    let end = if width + p0 > k { ((width - 1 + p0 - k) / s0 + 1).min(n0) } else { 0 };
                    for x in first..end {
                        let to = &mut line[x as usize];
                        *to = larger(*to, *values.add((x * s0 + k - p0) as usize));
                    }
                }
            }
        }
    }
}

unsafe extern "C" fn reverse(out: *mut ggml_tensor, thread: c_int, threads: c_int, _: *mut c_void) {
    // SAFETY: ggml calls it for a tensor that `moved` made, of an operand of the same sizes, whose rows have no gaps.
    unsafe {
        let from = (*out).src[0];
        let (sizes, axes) = ((*out).ne.map(|n| n as usize), number(out, 0) as usize);
        let [n0, n1, n2, _] = sizes;
        for row in part(sizes.iter().product::<usize>() / n0, thread, threads, 1) {
            let at = [row % n1, row / n1 % n2, row / n1 / n2];
            let seen = |d: usize| if axes >> (d + 1) & 1 == 1 { sizes[d + 1] - 1 - at[d] } else { at[d] };
            let place: usize = (0..3).map(|d| seen(d) * (*from).nb[d + 1]).sum();
            let values = std::slice::from_raw_parts((*from).data.byte_add(place).cast::<f32>(), n0);
            let line = std::slice::from_raw_parts_mut((*out).data.cast::<f32>().add(row * n0), n0);
            if axes & 1 == 1 {
                line.iter_mut().zip(values.iter().rev()).for_each(|(to, x)| *to = *x);
            } else {
                line.copy_from_slice(values);
            }
        }
    }
}

unsafe extern "C" fn rotate_pairs(out: *mut ggml_tensor, thread: c_int, threads: c_int, _: *mut c_void) {
    // SAFETY: ggml calls it for a tensor that `moved` made, of an operand of the same sizes; rows of all have no gaps, and
    // those of angles are half as long.
    unsafe {
        let [x, cosines, sines] = from_fn(|k| (*out).src[k]);
        let [n0, n1, n2, n3] = (*out).ne.map(|n| n as usize);
        let half = n0 / 2;
        let (next, apart) = if number(out, 0) == 0.0 { (1, half) } else { (2, 1) };
        for row in part(n1 * n2 * n3, thread, threads, 1) {
            let at = [row % n1, row / n1 % n2, row / n1 / n2];
            let line = |tensor: *mut ggml_tensor| {
                let place: usize =
                    (0..3).map(|d| at[d] % (*tensor).ne[d + 1] as usize * (*tensor).nb[d + 1]).sum();
                (*tensor).data.byte_add(place).cast::<f32>()
            };
            let x = std::slice::from_raw_parts(line(x), n0);
            let [cosines, sines] = [cosines, sines].map(|t| std::slice::from_raw_parts(line(t), half));
            let to = std::slice::from_raw_parts_mut((*out).data.cast::<f32>().add(row * n0), n0);
            for i in 0..half {
                let (a, b) = (x[i * next], x[i * next + apart]);
                to[i * next] = a * cosines[i] - b * sines[i];
                to[i * next + apart] = b * cosines[i] + a * sines[i];
            }
        }
    }
}
