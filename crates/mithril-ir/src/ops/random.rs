//! Random numbers of the common generator ([`crate::random`]): tensors as functions of a key.
//!
//! All ops use [`RANDOM_BITS`], which expands into integer ops, so that all targets return the same numbers. To draw several
//! independent tensors from one key, add different numbers to its stream.

use std::f64::consts::TAU;

use smallvec::smallvec;

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::loops::CallArgument;
use crate::lowering::Lowering;
use crate::lowering::LoweringRule::{Function, Template};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, PortKind, ShapeRule, Tolerance, attr,
    dtype_or, optional, tensor_of,
};
use crate::ops::compare::{BITWISE_AND, BITWISE_XOR};
use crate::ops::create::{dtype_or_float, shape_arg};
use crate::ops::elementwise::{ADD, MULTIPLY};
use crate::ops::norm::check_rank;
use crate::ops::slicing::{cut, zeros};
use crate::ops::sort::ARGSORT;
use crate::random::{MULTIPLIERS, ROUNDS, WEYL, words};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &RANDOM_BITS,
    &RANDOM_UNIFORM,
    &RANDOM_NORMAL,
    &RANDOM_RANDINT,
    &RANDOM_BERNOULLI,
    &RANDOM_PERMUTATION,
    &DROPOUT,
    &FEATURE_DROPOUT,
];

const KEY: Port = tensor_of("key", Kinds::INT);
const SHAPE: Port = attr("shape", Attr::Shape, DefaultLit::Required);
const DTYPE: Port = attr("dtype", Attr::DType, DefaultLit::None);

/// A random tensor, whose elements do not depend smoothly on any input.
const DRAW: OpDef = OpDef {
    shape: ShapeRule::Fn(|cx| {
        check_key(cx, 0)?;
        Ok(vec![shape_arg(cx, 1)?])
    }),
    grad: Grad::Zero,
    tolerance: Tolerance::Random,
    ..BLANK
};

fn check_key(cx: &ShapeCx<'_>, i: usize) -> Result<()> {
    let key = cx.shape(i);
    cx.rank(i, &[1])?;
    if key[0].known().is_some_and(|n| n != 2) {
        let message = format!("`key` of {} has shape {key}", cx.op().name);
        return Err(Error::new(Code::ShapeMismatch, message).help("a key is two integers: (seed, stream)"));
    }
    cx.same(&key[0], &Dim::Const(2), "the size of a key and 2")
}

// --- bits --------------------------------------------------------------------------------------------------

/// words of the generator
pub static RANDOM_BITS: OpDef = OpDef {
    name: "random_bits",
    doc: "Integers from 0 to 2³² - 1, uniformly distributed: element `i` (row-major) is word `i % 4` of \
          Philox4x32-10 for the counter `i / 4` in the stream given by `key`, an int64 pair `(seed, stream)`.",
    ports: &[KEY, SHAPE],
    dtype: DTypeRule::Fn(|_| Ok(DTypes { cast: smallvec![Some(DType::I64)], out: smallvec![DType::I64] })),
    eval: Some(Eval::Tensors(|c| {
        let key = c.tensor(0);
        let all = words([key.get(0).i64(), key.get(1).i64()]);
        let n = c.shape().iter().product();
        Ok(vec![Tensor::from_parts(c.shape(), all.take(n).map(i64::from).collect())])
    })),
    expand: Some(bits_by_integers),
    loops: Some(|cx| {
        let key = cx.temporary(DType::I64, &[2], |at| cx.broadcast(0, at).cast(DType::I64));
        let bits = cx.reserve(DType::I64, cx.out_shape(0));
        let count = cx.out_shape(0).iter().product();
        let args = vec![CallArgument::In(key), CallArgument::Out(bits), CallArgument::Int(count)];
        cx.call("mithril_random_bits", args, 0);
        Ok(vec![cx.whole(0, bits)])
    }),
    lowering: Lowering::py("_random_bits({0}, {shape})"),
    cases: &["i64[2] shape=(2,3)", "i64[2] shape=()", "i64[2] shape=(0,2)", "i32[2] shape=9"],
    tolerance: Tolerance::Exact,
    ..DRAW
};

/// Philox on 64-bit integers. Products wrap; the high half is masked after the shift, which removes the sign.
fn bits_by_integers<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let int = |n: u64| c.cx.lit(n as i64);
    let low = |x: V<'a>| x.op(&BITWISE_AND, &[int(u64::from(u32::MAX))]);
    let high = |x: V<'a>| low(x.right_shift(int(32)));
    let xor = |x: V<'a>, y: V<'a>| x.op(&BITWISE_XOR, &[y]);
    let shape = Shape::of(c.get(|c| c.dims(1)));
    let many = shape.numel();
    let blocks = (&many + &Dim::Const(3)).floor_div(&Dim::Const(4));
    let block = c.cx.arange(blocks);
    let key = c.x[0].cast(DType::I64);
    let at = |i: i64| cut(key, 0, Some(Dim::Const(i)), Some(Dim::Const(i + 1)));
    let (seed, stream) = (at(0), at(1));
    // In the first round only the words of the block counter have the full length; the others broadcast.
    let mut x = [low(block), high(block), low(stream), high(stream)];
    let mut k = [low(seed), high(seed)];
    for _ in 0..ROUNDS {
        let a = x[0].op(&MULTIPLY, &[int(MULTIPLIERS[0])]);
        let b = x[2].op(&MULTIPLY, &[int(MULTIPLIERS[1])]);
        x = [xor(xor(high(b), x[1]), k[0]), low(b), xor(xor(high(a), x[3]), k[1]), low(a)];
        k = [0, 1].map(|i| low(k[i].op(&ADD, &[int(WEYL[i].into())])));
    }
    let four = c.cx.stack(1, &[x[0], x[1], x[2], x[3]]);
    let flat = cut(four.reshape(-1), 0, None, Some(many));
    vec![flat.reshape(shape.0.to_vec())]
}

// --- distributions -----------------------------------------------------------------------------------------

/// The dtype in which floats are drawn: 16-bit floats are drawn as `f32` and rounded.
fn drawn(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Numbers from 0 to 1, in the dtype in which `dtype` is drawn.
fn unit<'a>(key: V<'a>, shape: &[Dim], dtype: DType) -> V<'a> {
    let cx = key.cx();
    let shifted = |bits: V<'a>, by: i64| bits.right_shift(by).cast(drawn(dtype));
    if drawn(dtype) == DType::F32 {
        return shifted(key.op(&RANDOM_BITS, &[cx.lit(shape.to_vec())]), 8) * 2.0_f64.powi(-24);
    }
    let pairs = [shape, &[Dim::Const(2)]].concat();
    let bits = key.op(&RANDOM_BITS, &[cx.lit(pairs)]);
    let half = |i: i64| {
        let one = cut(bits, shape.len(), Some(Dim::Const(i)), Some(Dim::Const(i + 1)));
        one.reshape(shape.to_vec())
    };
    (shifted(half(0), 5) * 2.0_f64.powi(26) + shifted(half(1), 6)) * 2.0_f64.powi(-53)
}

fn float_dtype(cx: &DTypeCx<'_>, i: usize) -> Result<DTypes> {
    let dtypes = dtype_or_float(cx, i);
    match dtypes.out.first() {
        Some(d) if !d.is_float() => {
            Err(Error::new(Code::BadDType, format!("{} draws floats, not {d}", cx.op().name))
                .help("use random_randint for integers"))
        }
        _ => Ok(dtypes),
    }
}

/// uniform distribution
pub static RANDOM_UNIFORM: OpDef = OpDef {
    name: "random_uniform",
    doc: "Numbers from `low` to `high`, evenly distributed: `low + (high - low) * u` with `u` in [0, 1) from the \
          high 24 bits of one word (float32; the half dtypes are rounded from it), or from 53 bits of two words \
          (float64). Rounding may reach `high`.",
    aliases: &["uniform"],
    layer: "RandomUniform",
    ports: &[
        KEY,
        SHAPE,
        attr("low", Attr::Float, DefaultLit::Float(0.0)),
        attr("high", Attr::Float, DefaultLit::Float(1.0)),
        DTYPE,
    ],
    dtype: DTypeRule::Fn(|cx| float_dtype(cx, 4)),
    expand: Some(|c| {
        let dtype = dtype_or(&c.lit(4), c.cx.float());
        let shape = c.get(|c| c.dims(1));
        let (low, high) = (c.get(|c| c.f64(2)), c.get(|c| c.f64(3)));
        let u = unit(c.x[0], &shape, dtype);
        let wide = if low == 0.0 && high == 1.0 { u } else { u * (high - low) + low };
        vec![wide.cast(dtype)]
    }),
    lowering: Lowering {
        numpy: Template("_random_uniform({0}, {shape}, {2}, {3}, {dtype})"),
        torch: Template("_random_uniform({0}, {shape}, {2}, {3}, {dtype})"),
        ..Lowering::NONE
    },
    cases: &[
        "i64[2] shape=(2,3)",
        "i64[2] shape=5 low=-1.0 high=2.0",
        "i64[2] shape=(3,) dtype=f64",
        "i64[2] shape=() dtype=f16",
        "i64[2] shape=(0,)",
    ],
    ..DRAW
};

/// normal distribution
pub static RANDOM_NORMAL: OpDef = OpDef {
    name: "random_normal",
    doc: "Numbers from the normal distribution with that mean and standard deviation. Of `n` elements the first \
          `h = ceil(n / 2)` are `sqrt(-2 log(1 - u)) cos(2π v)`, the others the same with the sine, with `u` and \
          `v` the two rows of `random_uniform(key, (2, h))` (Box and Muller 1958). The half dtypes are rounded \
          from float32.",
    aliases: &["normal"],
    layer: "RandomNormal",
    ports: &[
        KEY,
        SHAPE,
        attr("mean", Attr::Float, DefaultLit::Float(0.0)),
        attr("stddev", Attr::Float, DefaultLit::Float(1.0)),
        DTYPE,
    ],
    dtype: DTypeRule::Fn(|cx| float_dtype(cx, 4)),
    expand: Some(normal),
    lowering: Lowering {
        numpy: Template("_random_normal({0}, {shape}, {2}, {3}, {dtype})"),
        torch: Template("_random_normal({0}, {shape}, {2}, {3}, {dtype})"),
        ..Lowering::NONE
    },
    cases: &[
        "i64[2] shape=(2,3)",
        "i64[2] shape=5 mean=-1.0 stddev=2.0",
        "i64[2] shape=(3,) dtype=f64",
        "i64[2] shape=() dtype=f16",
        "i64[2] shape=(0,)",
    ],
    ..DRAW
};

fn normal<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let dtype = dtype_or(&c.lit(4), c.cx.float());
    let shape = Shape::of(c.get(|c| c.dims(1)));
    let many = shape.numel();
    let half = (&many + &Dim::ONE).floor_div(&Dim::Const(2));
    let both = unit(c.x[0], &[Dim::Const(2), half.clone()], dtype);
    let row = |i: i64| cut(both, 0, Some(Dim::Const(i)), Some(Dim::Const(i + 1))).reshape([half.clone()]);
    let radius = ((1.0 - row(0)).log() * -2.0).sqrt();
    let angle = row(1) * TAU;
    let (even, odd) = (radius * angle.cos(), radius * angle.sin());
    let all = cut(c.cx.concat(0, &[even, odd]), 0, None, Some(many));
    let standard = all.reshape(shape.0.to_vec());
    let (mean, stddev) = (c.get(|c| c.f64(2)), c.get(|c| c.f64(3)));
    let wide = if mean == 0.0 && stddev == 1.0 { standard } else { standard * stddev + mean };
    vec![wide.cast(dtype)]
}

/// integers between two numbers
pub static RANDOM_RANDINT: OpDef = OpDef {
    name: "random_randint",
    doc: "Integers from `low` to `high - 1`: `low + floor(word * (high - low) / 2³²)`. The range is at most 2³¹ \
          wide; for narrow ranges the deviation from uniformity is negligible.",
    aliases: &["randint"],
    layer: "RandomRandint",
    ports: &[
        KEY,
        SHAPE,
        attr("low", Attr::Int, DefaultLit::Required),
        attr("high", Attr::Int, DefaultLit::Required),
    ],
    shape: ShapeRule::Fn(|cx| {
        check_key(cx, 0)?;
        let (low, high) = (cx.int(2)?, cx.int(3)?);
        if !(1..=1 << 31).contains(&high.saturating_sub(low)) {
            return Err(cx.bad(3, &cx.lit(3), "larger than `low`, by at most 2147483648"));
        }
        Ok(vec![shape_arg(cx, 1)?])
    }),
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::I64]))),
    expand: Some(|c| {
        let (low, high) = (c.get(|c| c.int(2)), c.get(|c| c.int(3)));
        let range = c.x[0].op(&RANDOM_BITS, &[c.x[1]]).op(&MULTIPLY, &[c.cx.lit(high.saturating_sub(low))]);
        vec![range.right_shift(32).op(&ADD, &[c.cx.lit(low)])]
    }),
    cases: &[
        "i64[2] shape=(2,3) low=-2 high=9",
        "i64[2] shape=() low=0 high=1",
        "i64[2] shape=(0,) low=5 high=6",
    ],
    ..DRAW
};

/// true with a probability
pub static RANDOM_BERNOULLI: OpDef = OpDef {
    name: "random_bernoulli",
    doc: "True with probability `p` (a number or a tensor that broadcasts to `shape`; without a shape, that of \
          `p`): `random_uniform(key, shape) < p`, in float32 for every dtype of `p`.",
    aliases: &["bernoulli"],
    layer: "RandomBernoulli",
    ports: &[
        KEY,
        Port { name: "p", kind: PortKind::Tensor(Kinds::FLOAT), default: DefaultLit::Float(0.5) },
        attr("shape", Attr::OptInts, DefaultLit::None),
    ],
    shape: ShapeRule::Fn(|cx| {
        check_key(cx, 0)?;
        let p = cx.shape(1);
        if cx.absent(2) {
            return Ok(vec![p.clone()]);
        }
        let shape = shape_arg(cx, 2)?;
        if cx.broadcast(&[&shape, p])? != shape {
            let message = format!("`p` of random_bernoulli has shape {p}, the result {shape}");
            return Err(Error::new(Code::ShapeMismatch, message).help("`p` must broadcast to `shape`"));
        }
        Ok(vec![shape])
    }),
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::Bool]))),
    expand: Some(|c| {
        let shape = if c.absent(2) { c.x[1].shape().0.to_vec() } else { c.get(|c| c.dims(2)) };
        vec![unit(c.x[0], &shape, DType::F32).less(c.x[1])]
    }),
    domain: (0.1, 0.9),
    cases: &["i64[2] shape=(2,3)", "i64[2] p=0.25 shape=(4,)", "i64[2] [2,3]", "i64[2] [3] shape=(2,3)"],
    ..DRAW
};

/// random permutation
pub static RANDOM_PERMUTATION: OpDef = OpDef {
    name: "random_permutation",
    doc: "The integers from 0 to `n - 1` in random order: the order that sorts `random_bits(key, (n,))`.",
    aliases: &["permutation", "randperm"],
    layer: "RandomPermutation",
    ports: &[KEY, attr("n", Attr::Int, DefaultLit::Required)],
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::I64]))),
    expand: Some(|c| {
        let n = c.get(|c| c.dims(1));
        vec![c.x[0].op(&RANDOM_BITS, &[c.cx.lit(n)]).op(&ARGSORT, &[])]
    }),
    cases: &["i64[2] n=7", "i64[2] n=1", "i64[2] n=0"],
    ..DRAW
};

// --- dropout -----------------------------------------------------------------------------------------------

const DROPOUT_PORTS: &[Port] = &[
    tensor_of("input", Kinds::FLOAT),
    optional("key"),
    attr("p", Attr::Float, DefaultLit::Float(0.5)),
    attr("training", Attr::Bool, DefaultLit::Training),
];

/// elements dropped in training
pub static DROPOUT: OpDef = OpDef {
    name: "dropout",
    doc: "In training each element is zero with probability `p`, the others are divided by `1 - p`, so that the \
          mean stays (Srivastava et al. 2014); otherwise the input itself. The mask is \
          `random_bernoulli(key, 1 - p)`.",
    layer: "Dropout",
    ports: DROPOUT_PORTS,
    shape: ShapeRule::Fn(dropout_shape),
    dtype: DTypeRule::Same(0),
    expand: Some(|c| vec![dropped(c, &c.x[0].shape())]),
    // The op is linear in its input, and the same key gives the same mask.
    grad: Grad::Formula(|v| vec![v.g.op(&DROPOUT, &v.x[1..])]),
    lowering: Lowering {
        torch: Function(|s| {
            let is_drawn = s.bool(3).ok()? && (0.0..1.0).contains(&s.f64(2).ok()?) && s.f64(2).ok()? > 0.0;
            is_drawn.then(|| format!("_dropout({}, {}, {})", s.arg(0), s.arg(1), s.arg(2)))
        }),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3] i64[2] training=true",
        "[4] i64[2] p=0.25 training=true",
        "[3] i64[2] p=1.0 training=true",
        "[3] training=false",
        "[0,2] i64[2] training=true",
    ],
    tolerance: Tolerance::Random,
    ..BLANK
};

/// channels dropped in training
pub static FEATURE_DROPOUT: OpDef = OpDef {
    name: "feature_dropout",
    doc: "In training each channel of `[n, c, ...]` is zero with probability `p`, as a whole, and the others are \
          divided by `1 - p` (Tompson et al. 2015); otherwise the input itself. For images, whose neighboring pixels \
          are alike, so that dropping single ones has little effect. The mask is \
          `random_bernoulli(key, 1 - p)` of shape `[n, c]`.",
    layer: "FeatureDropout",
    ports: DROPOUT_PORTS,
    shape: ShapeRule::Fn(|cx| {
        check_rank(cx, 2)?;
        dropout_shape(cx)
    }),
    dtype: DTypeRule::Same(0),
    expand: Some(|c| {
        let shape = c.x[0].shape();
        let ones = std::iter::repeat_n(Dim::ONE, shape.rank() - 2);
        let mask: Vec<Dim> = shape.iter().take(2).cloned().chain(ones).collect();
        vec![dropped(c, &mask)]
    }),
    grad: Grad::Formula(|v| vec![v.g.op(&FEATURE_DROPOUT, &v.x[1..])]),
    cases: &[
        "[2,3,2,2] i64[2] training=true",
        "[2,3,4] i64[2] p=0.25 training=true",
        "[2,3] i64[2] p=1.0 training=true",
        "[2,3,2] training=false",
        "[0,2,3] i64[2] training=true",
    ],
    tolerance: Tolerance::Random,
    ..BLANK
};

fn dropout_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    if cx.has(1) {
        check_key(cx, 1)?;
    } else if matches!(cx.lit(3), Lit::Bool(true)) {
        return Err(Error::new(Code::Unconnected, format!("`key` of {} is missing", cx.op().name))
            .help("connect a key, two integers (seed, stream), or give training=False"));
    }
    if !(0.0..=1.0).contains(&cx.f64(2)?) {
        return Err(cx.bad(2, &cx.lit(2), "a probability from 0 to 1"));
    }
    Ok(vec![cx.shape(0).clone()])
}

/// Dropout with a mask of the shape `mask`, which broadcasts.
fn dropped<'a>(c: &ExpandCx<'a>, mask: &[Dim]) -> V<'a> {
    let (x, p) = (c.x[0], c.get(|c| c.f64(2)));
    if p == 0.0 || !c.get(|c| c.bool(3)) {
        return x;
    }
    if p == 1.0 {
        return zeros(x);
    }
    let keep = unit(c.x[1], mask, DType::F32).less(1.0 - p);
    keep.select(x * (1.0 / (1.0 - p)), 0.0)
}
