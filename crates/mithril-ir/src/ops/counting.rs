//! Counting and searching: histograms, binary search, unique elements.
//!
//! Shapes never depend on data: the size of a result is an argument.

use smallvec::smallvec;

use crate::dim::Dim;
use crate::dtype::{DType, Kind, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::Lowering;
use crate::lowering::LoweringRule::Function;
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Grad, OpDef, Port, PortKind, ShapeRule, Tolerance, attr, tensor_of,
};
use crate::ops::sort::ARGSORT;
use crate::rules::{Attrs, DTypeCx, DTypes};
use crate::shape::Shape;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&SEARCHSORTED, &BUCKETIZE, &BINCOUNT, &HISTC, &HISTOGRAM, &UNIQUE];

const fn optional(name: &'static str) -> Port {
    Port { name, kind: PortKind::Optional(Kinds::NUMBER), default: DefaultLit::None }
}

/// An op whose results are constant under small changes of the inputs.
const COUNT: OpDef = OpDef { grad: Grad::Zero, tolerance: Tolerance::Exact, ..BLANK };

/// All elements in row-major order.
fn flat(x: V<'_>) -> V<'_> {
    if x.rank() == 1 { x } else { x.reshape([x.shape().numel()]) }
}

fn full<'a>(c: &ExpandCx<'a>, n: &Dim, value: i64, dtype: DType) -> V<'a> {
    c.cx.full([n.clone()], value, dtype)
}

/// The first elements of a vector.
fn first<'a>(x: V<'a>, n: &Dim) -> V<'a> {
    x.slice([Dim::Const(0)], [n.clone()])
}

// --- searching ---------------------------------------------------------------------------------------------

/// Up to this many elements are compared one by one; longer sequences use binary search.
const FEW: i64 = 32;

/// Values are compared in one dtype; indices are int64.
fn compared(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let to = Some(cx.promoted()).filter(|d| d.kind() != Kind::Bool).unwrap_or(DType::I64);
    Ok(DTypes::all(cx, to, [DType::I64]))
}

/// Whether `left` comes before `right`; NaN is larger than every number.
fn before<'a>(left: V<'a>, right: V<'a>) -> V<'a> {
    let less = left.less(right);
    if !left.dtype().is_float() {
        return less;
    }
    let is_number = left.is_nan().logical_not();
    let is_last = right.is_nan().logical_and(is_number);
    less.logical_or(is_last)
}

/// Whether an element of the sequence precedes the insertion point of a value.
fn passes<'a>(element: V<'a>, value: V<'a>, right: bool) -> V<'a> {
    if right { before(value, element).logical_not() } else { before(element, value) }
}

/// Insertion points of values in a sorted sequence, or in the row of a tensor of sorted rows with the same coordinates.
fn search<'a>(c: &ExpandCx<'a>, sequence: V<'a>, values: V<'a>, right: bool) -> V<'a> {
    let (last, zero) = (c.cx.lit(-1), c.cx.lit(0));
    let size = sequence.dim(-1);
    let known = match size.known() {
        Some(n) if n > FEW => n,
        _ => {
            let line = if sequence.rank() == 1 { sequence } else { sequence.expand_dims(-2) };
            let value = values.expand_dims(last);
            return passes(line, value, right).cast(DType::I64).sum(last, false);
        }
    };
    let look = |at: V<'a>| match sequence.rank() {
        1 => sequence.take(at, zero),
        _ => sequence.take_along_axis(at, last),
    };
    let shape = c.cx.lit(Lit::tuple(values.shape().0));
    let mut place = c.cx.full(shape, zero, DType::I64);
    let mut step = 1_i64 << (63 - known.leading_zeros());
    while step > 0 {
        let next = place + step;
        let inside = next.less_equal(known);
        let element = look(next.minimum(known) - 1);
        let goes_on = passes(element, values, right).logical_and(inside);
        place = goes_on.select(next, place);
        step /= 2;
    }
    place
}

/// insertion points in a sorted sequence
pub static SEARCHSORTED: OpDef = OpDef {
    name: "searchsorted",
    doc: "For each of `values` its place in `sequence`, which is in order, in int64: the number of elements that are \
          smaller, with `right` that are not larger. The sequence is a vector, or there is one along the last axis for \
          each line of `values`, with the same sizes before it. NaN is larger than every number.",
    layer: "SearchSorted",
    ports: &[
        tensor_of("sequence", Kinds::ANY),
        tensor_of("values", Kinds::ANY),
        attr("right", Attr::Bool, DefaultLit::Bool(false)),
    ],
    shape: ShapeRule::Fn(|cx| {
        let (sequence, values) = (cx.shape(0), cx.shape(1));
        if sequence.rank() != 1 {
            if sequence.rank() == 0 || values.rank() != sequence.rank() {
                let message = format!("`sequence` of searchsorted has shape {sequence}, `values` {values}");
                return Err(Error::new(Code::RankMismatch, message)
                    .help("the sequence is a vector, or has as many axes as the values"));
            }
            for i in 0..sequence.rank() - 1 {
                cx.same(&sequence[i], &values[i], "sizes of the sequence and of the values")?;
            }
        }
        Ok(vec![values.clone()])
    }),
    dtype: DTypeRule::Fn(compared),
    expand: Some(|c| vec![search(c, c.x[0], c.x[1], c.get(|c| c.bool(2)))]),
    lowering: Lowering {
        numpy: Function(|s| {
            let is_plain = s.ty(0)?.shape.rank() == 1 && s.ty(0)?.dtype != DType::BF16;
            let side = if s.bool(2).ok()? { ", side=\"right\"" } else { "" };
            // For a 0-d value it returns a number.
            let has_axes = s.ty(1)?.shape.rank() > 0;
            (is_plain && has_axes).then(|| format!("np.searchsorted({}, {}{side})", s.arg(0), s.arg(1)))
        }),
        ..Lowering::NONE
    },
    cases: &["[0] [3]", "[1] [2,3]", "[2,1] [2,4] right=true", "i64[1] i64[]", "[1] i64[4] right=true"],
    ..COUNT
};

/// index of the bin between boundaries
pub static BUCKETIZE: OpDef = OpDef {
    name: "bucketize",
    doc: "For each element the number of boundaries (a vector in order) that are smaller, with `right` that are not \
          larger, in int64: the bucket that it lies in. See `searchsorted`.",
    layer: "Bucketize",
    ports: &[
        tensor_of("input", Kinds::ANY),
        tensor_of("boundaries", Kinds::ANY),
        attr("right", Attr::Bool, DefaultLit::Bool(false)),
    ],
    shape: ShapeRule::Fn(|cx| {
        cx.rank(1, &[1])?;
        Ok(vec![cx.shape(0).clone()])
    }),
    dtype: DTypeRule::Fn(compared),
    expand: Some(|c| vec![c.x[1].op(&SEARCHSORTED, &[c.x[0], c.x[2]])]),
    cases: &["[2,3] [1]", "i64[4] i64[1] right=true", "[] [0]", "[3] i64[1]"],
    ..COUNT
};

// --- counting ----------------------------------------------------------------------------------------------

/// The number of occurrences of each integer below `length`, or the sum of their weights; other values are ignored.
fn counts<'a>(c: &ExpandCx<'a>, places: V<'a>, weights: Option<V<'a>>, length: &Dim) -> V<'a> {
    let places = flat(places).cast(DType::I64);
    let many = places.shape().numel();
    let weights = weights.map_or_else(|| full(c, &many, 1, DType::I64), flat);
    let is_none = places.less(0);
    let is_none = is_none.logical_or(places.greater_equal(length.clone()));
    let places = is_none.select(length.clone(), places);
    let sums = full(c, &(length + &Dim::ONE), 0, weights.dtype()).index_add(places, weights, 0);
    first(sums, length)
}

/// A size at port `i`, at least `least`.
fn size(cx: &(impl Attrs + ?Sized), i: usize, least: i64) -> Result<Dim> {
    let n = cx.dim(i)?;
    if n.known().is_some_and(|n| n < least) {
        return Err(cx.bad(i, &cx.lit(i), &format!("at least {least}")));
    }
    Ok(n)
}

/// As [`size`], in an expansion.
fn chosen_size(c: &ExpandCx<'_>, i: usize, least: i64) -> Dim {
    size(c, i, least).unwrap_or_else(|error| {
        c.cx.fail(error);
        Dim::ONE
    })
}

/// number of occurrences of each integer
pub static BINCOUNT: OpDef = OpDef {
    name: "bincount",
    doc: "How often each of the integers from 0 to `length - 1` occurs in the input, in int64; with `weights`, one for \
          each element, the sum of theirs. Numbers that are negative or not below `length` are not counted: the length does not \
          depend on data, unlike in NumPy and torch.",
    layer: "BinCount",
    ports: &[
        tensor_of("input", Kinds::INT),
        attr("length", Attr::Int, DefaultLit::Required),
        optional("weights"),
    ],
    shape: ShapeRule::Fn(|cx| {
        if cx.has(2) {
            cx.rank(2, &[cx.shape(0).rank()])?;
            for (a, b) in cx.shape(0).iter().zip(cx.shape(2).iter()) {
                cx.same(a, b, "sizes of the input and of the weights")?;
            }
        }
        Ok(vec![Shape::of([size(cx, 1, 0)?])])
    }),
    dtype: DTypeRule::Fn(|cx| {
        let of = cx.dtype(2).filter(|d| d.is_float()).unwrap_or(DType::I64);
        Ok(DTypes { cast: smallvec![None, None, cx.dtype(2).map(|_| of)], out: smallvec![of] })
    }),
    expand: Some(|c| {
        let length = chosen_size(c, 1, 0);
        vec![counts(c, c.x[0], c.x[2].is_some().then_some(c.x[2]), &length)]
    }),
    grad: Grad::Expansion,
    cases: &[
        "i64[9]<4 length=5",
        "i64[9]<6 length=4 [9]",
        "i32[2,3] length=3",
        "i64[0] length=2",
        "i64[4] length=3 i64[4]",
    ],
    tolerance: Tolerance::Contraction,
    ..COUNT
};

/// The ends of the range: the given ones, or the extremes of the elements; widened by `margin` if they are equal.
fn ends<'a>(c: &ExpandCx<'a>, x: V<'a>, range: Option<(f64, f64)>, margin: f64) -> (V<'a>, V<'a>) {
    let number = |n: f64| c.cx.full(Lit::Tuple([].into()), n, x.dtype());
    let (low, high) = match range {
        Some((low, high)) => (number(low), number(high)),
        None if x.shape().numel().is(0) => (number(0.0), number(1.0)),
        None => (x.min_all(), x.max_all()),
    };
    let is_point = low.equal(high);
    let by = is_point.select(margin, 0.0).cast(x.dtype());
    (low - by, high + by)
}

/// `part`, or -1 for elements that are not between the ends; the last of the `bins` bins is closed.
fn inside<'a>(c: &ExpandCx<'a>, part: V<'a>, x: V<'a>, low: V<'a>, high: V<'a>, bins: &Dim) -> V<'a> {
    let is_inside = low.less_equal(x).logical_and(x.less_equal(high));
    let top = c.cx.lit(bins - &Dim::ONE);
    // Rounding may give the bin after the last one.
    is_inside.select(part.minimum(top), -1)
}

/// Bounds at two ports; an error if the lower one is above the upper one.
fn bounds(cx: &impl Attrs, low: usize, high: usize) -> Result<(f64, f64)> {
    let (a, b) = (cx.f64(low)?, cx.f64(high)?);
    if a.is_finite() && b.is_finite() && a <= b {
        return Ok((a, b));
    }
    Err(cx.bad(high, &cx.lit(high), "a finite number that is not below the other bound"))
}

/// number of elements in each of equal bins
pub static HISTC: OpDef = OpDef {
    name: "histc",
    doc: "How many elements lie in each of `bins` equal parts of the range from `min` to `max`, in the dtype of the input; \
          the last bin includes both ends. With `min` and `max` equal, the range is that of the elements, and with equal elements one more on both sides. \
          Elements outside, and NaN, are not counted. As in torch.",
    layer: "Histc",
    ports: &[
        tensor_of("input", Kinds::NUMBER),
        attr("bins", Attr::Int, DefaultLit::Int(100)),
        attr("min", Attr::Float, DefaultLit::Int(0)),
        attr("max", Attr::Float, DefaultLit::Int(0)),
    ],
    shape: ShapeRule::Fn(|cx| {
        bounds(cx, 2, 3)?;
        Ok(vec![Shape::of([size(cx, 1, 1)?])])
    }),
    dtype: DTypeRule::Same(0),
    expand: Some(|c| {
        let bins = chosen_size(c, 1, 1);
        let (low, high) = c.get(|c| bounds(c, 2, 3));
        let x = wide(c.x[0]);
        #[allow(clippy::float_cmp, reason = "compares the arguments themselves")]
        let range = (low != high).then_some((low, high));
        let (low, high) = ends(c, x, range, 1.0);
        // Multiplies first, as torch does: elements near an edge lie in the same bins.
        let part = ((x - low) * bins.clone() / (high - low)).floor().cast(DType::I64);
        vec![counts(c, inside(c, part, x, low, high, &bins), None, &bins).cast(c.x[0].dtype())]
    }),
    cases: &[
        "[20] bins=5",
        "[3,4] bins=4 min=-1 max=1.5",
        "i64[9]<5 bins=4 min=0 max=3",
        "[4] bins=1",
        "[0] bins=3",
    ],
    ..COUNT
};

/// As a float of at least 32 bits.
fn wide(x: V<'_>) -> V<'_> {
    match x.dtype() {
        DType::F32 | DType::F64 => x,
        DType::F16 | DType::BF16 => x.cast(DType::F32),
        _ => x.cast(x.cx().float()),
    }
}

/// number of elements in each bin, and the edges
pub static HISTOGRAM: OpDef = OpDef {
    name: "histogram",
    doc: "How many elements lie in each of `bins` equal parts of the range from `min` to `max` (the range of the elements \
          if not given), or the sum of their `weights`, and the `bins + 1` bounds of the parts. The last bin \
          includes both ends; elements outside, and NaN, are not counted. A range of one number is widened by 0.5 on both sides. With `density` the counts are divided by their sum and by \
          the width of a part. Counts are int64, or of the dtype of what they are made of.",
    layer: "Histogram",
    ports: &[
        tensor_of("input", Kinds::NUMBER),
        attr("bins", Attr::Int, DefaultLit::Int(10)),
        attr("min", Attr::OptFloat, DefaultLit::None),
        attr("max", Attr::OptFloat, DefaultLit::None),
        optional("weights"),
        attr("density", Attr::Bool, DefaultLit::Bool(false)),
    ],
    outputs: &["counts", "bounds"],
    shape: ShapeRule::Fn(|cx| {
        range_arg(cx)?;
        let bins = size(cx, 1, 1)?;
        if cx.has(4) {
            cx.rank(4, &[cx.shape(0).rank()])?;
            for (a, b) in cx.shape(0).iter().zip(cx.shape(4).iter()) {
                cx.same(a, b, "sizes of the input and of the weights")?;
            }
        }
        Ok(vec![Shape::of([bins.clone()]), Shape::of([&bins + &Dim::ONE])])
    }),
    dtype: DTypeRule::Fn(|cx| {
        let x = cx.dtype(0).filter(|d| d.is_float()).unwrap_or(cx.float);
        let of = cx.dtype(4).filter(|d| d.is_float());
        let counts = of.unwrap_or(if cx.bool(5)? { x } else { DType::I64 });
        Ok(DTypes {
            cast: smallvec![None, None, None, None, cx.dtype(4).map(|_| counts)],
            out: smallvec![counts, x],
        })
    }),
    expand: Some(|c| {
        let bins = chosen_size(c, 1, 1);
        let x = wide(c.x[0]);
        let float = if c.x[0].dtype().is_float() { c.x[0].dtype() } else { c.cx.float() };
        let (low, high) = ends(c, x, c.get(range_arg), 0.5);
        let width = (high - low) / bins.clone();
        let steps = c.cx.arange(&bins + &Dim::ONE);
        let is_last = steps.equal(bins.clone());
        let bounds = is_last.select(high, low + steps.cast(x.dtype()) * width);
        let part = bounds.op(&SEARCHSORTED, &[x, c.cx.lit(true)]) - 1;
        let places = inside(c, part, x, low, high, &bins);
        let weights = c.x[4].is_some().then_some(c.x[4]);
        let mut counts = counts(c, places, weights, &bins);
        if c.get(|c| c.bool(5)) {
            let of = if counts.dtype().is_float() { counts.dtype() } else { float };
            let sum = counts.sum_all().cast(of);
            counts = counts.cast(of) / (sum * width.cast(of));
        }
        vec![counts, bounds.cast(float)]
    }),
    grad: Grad::Expansion,
    cases: &[
        "[20] bins=5",
        "[3,4] [3,4] bins=4 min=-1 max=1.5",
        "i64[9]<5 bins=4 min=0 max=3",
        "[12] bins=3 density=true",
    ],
    tolerance: Tolerance::Contraction,
    ..COUNT
};

/// The range at the ports 2 and 3, if there is one.
fn range_arg(cx: &(impl Attrs + ?Sized)) -> Result<Option<(f64, f64)>> {
    match (cx.absent(2), cx.absent(3)) {
        (true, true) => Ok(None),
        (false, false) => {
            let (a, b) = (cx.f64(2)?, cx.f64(3)?);
            if a.is_finite() && b.is_finite() && a <= b {
                return Ok(Some((a, b)));
            }
            Err(cx.bad(3, &cx.lit(3), "a finite number that is not below `min`"))
        }
        _ => {
            let message = format!("one of the bounds of {} is missing", cx.op().name);
            Err(Error::new(Code::BadArgument, message).help("give both `min` and `max`, or neither"))
        }
    }
}

// --- unique elements ---------------------------------------------------------------------------------------

/// distinct elements in ascending order
pub static UNIQUE: OpDef = OpDef {
    name: "unique",
    doc: "The different elements in order, the first `size` of them: the number of results does not depend on data. What \
          is left of the size is filled with `fill_value`, the smallest element if not given. `inverse`, in the shape of \
          the input, says which of the different elements each one is (`size` or more for those that found no place); \
          `counts` how often each occurs, 0 for what is filled in. All NaN count as one. Of equal elements the last one \
          gets the gradient. As `jnp.unique` with a size.",
    layer: "Unique",
    ports: &[
        tensor_of("input", Kinds::ANY),
        attr("size", Attr::Int, DefaultLit::Required),
        attr("fill_value", Attr::OptFloat, DefaultLit::None),
    ],
    outputs: &["values", "inverse", "counts"],
    shape: ShapeRule::Fn(|cx| {
        let n = Shape::of([size(cx, 1, 0)?]);
        Ok(vec![n.clone(), cx.shape(0).clone(), n])
    }),
    dtype: DTypeRule::Fn(|cx| {
        let dtype = cx.dtype(0).unwrap_or(cx.float);
        Ok(DTypes::keep([dtype, DType::I64, DType::I64]))
    }),
    expand: Some(unique),
    grad: Grad::Expansion,
    cases: &[
        "i64[9]<4 size=6",
        "i64[2,5] size=3",
        "[4] size=4 fill_value=7.5",
        "bool[6] size=2",
        "i64[0] size=2",
        "i64[] size=1",
    ],
    ..COUNT
};

fn unique<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let (shape, size) = (c.x[0].shape(), chosen_size(c, 1, 0));
    let (x, zero) = (flat(c.x[0]), c.cx.lit(0));
    let (dtype, many) = (x.dtype(), shape.numel());
    let order = x.op(&ARGSORT, &[zero]);
    let sorted = x.take(order, zero);
    let (later, earlier) =
        (sorted.slice([1_i64], Lit::Tuple([Lit::None].into())), sorted.slice([0_i64], [-1_i64]));
    let differs = |a: V<'a>, b: V<'a>| {
        let differs = a.not_equal(b);
        if !dtype.is_float() {
            return differs;
        }
        let both = a.is_nan().logical_and(b.is_nan());
        differs.logical_and(both.logical_not())
    };
    if many.is(0) {
        let value = if c.absent(2) { Lit::int(0) } else { c.lit(2) };
        let values = c.cx.full([size.clone()], value, dtype);
        let inverse = c.cx.full(Lit::tuple(shape.0), zero, DType::I64);
        return vec![values, inverse, full(c, &size, 0, DType::I64)];
    }
    let first_rank = full(c, &Dim::ONE, 0, DType::I64);
    let ranks = c.cx.concat(zero, &[first_rank, differs(later, earlier).cast(DType::I64)]);
    let ranks = ranks.cumsum(zero, false, false);
    let inverse = full(c, &many, 0, DType::I64).scatter(zero, order, ranks);
    let inverse = inverse.reshape(Lit::tuple(shape.0.iter().cloned()));
    let start = match c.lit(2) {
        Lit::None => first(sorted, &Dim::ONE),
        value => c.cx.full([1_i64], value, dtype),
    };
    let room = &size + &Dim::ONE;
    let start = start.broadcast_to([room]);
    let slots = ranks.minimum(size.clone());
    let values = first(start.scatter(zero, slots, sorted), &size);
    vec![values, inverse, counts(c, ranks, None, &size)]
}
