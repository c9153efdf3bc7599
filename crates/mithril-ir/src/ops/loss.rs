//! Losses, with the semantics and formulas of PyTorch.
//!
//! Two rules are stricter: input and target must have the same shape (or one of them is 0-d) where PyTorch would broadcast
//! `[n, 1]` with `[n]` to `[n, n]`, and a parameter outside of its range is an error.

use smallvec::smallvec;

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, GradCx, V};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Grad, OpDef, Port, Precision, ShapeRule, Tolerance, attr, optional,
    tensor, tensor_of,
};
use crate::ops::reduce::at_least_f32;
use crate::ops::softmax::LOG_SOFTMAX;
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &SQUARED_ERROR,
    &ABSOLUTE_ERROR,
    &MSE_LOSS,
    &L1_LOSS,
    &HUBER_LOSS,
    &SMOOTH_L1_LOSS,
    &BINARY_CROSS_ENTROPY,
    &BINARY_CROSS_ENTROPY_WITH_LOGITS,
    &KL_DIV,
    &HINGE_LOSS,
    &QUAD_HINGE_LOSS,
    &NLL_LOSS,
    &CROSS_ENTROPY,
];

const REDUCTION: Port = attr("reduction", Attr::Choice(&["mean", "sum", "none"]), DefaultLit::Str("mean"));
static PORTS: &[Port] = &[tensor("input"), tensor("target"), REDUCTION];

/// A loss of each element of `input` and `target`.
const LOSS: OpDef = OpDef {
    ports: PORTS,
    shape: ShapeRule::Fn(loss_shape),
    dtype: DTypeRule::Float,
    cases: &["[2,3] [2,3]", "[2,3] [2,3] reduction=\"sum\"", "[4] [4] reduction=\"none\"", "[] []"],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Wide),
    ..BLANK
};

/// Position of a port; beyond the last one if the op has no port of that name.
fn port(cx: &impl Attrs, name: &str) -> usize {
    cx.op().port(name).unwrap_or(usize::MAX)
}

fn reduction(cx: &impl Attrs) -> Result<String> {
    cx.text(port(cx, "reduction"))
}

/// The common shape of input and target.
fn common(cx: &ShapeCx<'_>) -> Result<Shape> {
    let (input, target) = (cx.shape(0), cx.shape(1));
    if input.rank() == 0 || target.rank() == 0 {
        return Ok(if input.rank() == 0 { target } else { input }.clone());
    }
    if input.rank() != target.rank() {
        let message = format!("`input` {input} and `target` {target} of {} differ", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message)
            .help("give both the same shape; they would broadcast to a loss of more elements than either"));
    }
    for (a, b) in input.iter().zip(target.iter()) {
        cx.same(a, b, "sizes of `input` and `target`")?;
    }
    Ok(input.clone())
}

fn loss_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let shape = common(cx)?;
    for name in ["weight", "pos_weight"] {
        let at = port(cx, name);
        if cx.has(at) && cx.broadcast(&[&shape, cx.shape(at)])? != shape {
            let message = format!("`{name}` of {} has shape {}", cx.op().name, cx.shape(at));
            return Err(
                Error::new(Code::ShapeMismatch, message).help(format!("it must broadcast to {shape}"))
            );
        }
    }
    Ok(vec![if reduction(cx)? == "none" { shape } else { Shape::scalar() }])
}

/// The losses of all elements, reduced as the argument `reduction` says.
fn reduce<'a>(c: &ExpandCx<'a>, losses: V<'a>) -> Vec<V<'a>> {
    vec![match c.get(reduction).as_str() {
        "none" => losses,
        "sum" => losses.sum_all(),
        "batchmean" => losses.sum_all() / losses.dim(0),
        _ => losses.mean_all(),
    }]
}

/// `|input - target|`
fn distance<'a>(c: &ExpandCx<'a>) -> V<'a> {
    (c.x[0] - c.x[1]).abs()
}

static PAIR: &[Port] = &[tensor("input"), tensor("target")];

const ERROR: OpDef = OpDef {
    ports: PAIR,
    shape: ShapeRule::Fn(|cx| Ok(vec![common(cx)?])),
    cases: &["[2,3] [2,3]", "[] []", "[0,3] [0,3]"],
    tolerance: Tolerance::Elementwise,
    ..LOSS
};

/// `(input - target)²`
pub static SQUARED_ERROR: OpDef = OpDef {
    name: "squared_error",
    doc: "Squared error of each element, `(input - target)²`.",
    layer: "SquaredError",
    expand: Some(|c| vec![(c.x[0] - c.x[1]).square()]),
    ..ERROR
};

/// `|input - target|`
pub static ABSOLUTE_ERROR: OpDef = OpDef {
    name: "absolute_error",
    doc: "Absolute error of each element, `|input - target|`.",
    layer: "AbsoluteError",
    expand: Some(|c| vec![distance(c)]),
    ..ERROR
};

/// Mean of `(input - target)²`
pub static MSE_LOSS: OpDef = OpDef {
    name: "mse_loss",
    doc: "Squared error `(input - target)²`; its mean, its sum, or (`reduction=\"none\"`) the one of each element.",
    aliases: &["mse", "mean_squared_error"],
    layer: "MSELoss",
    expand: Some(|c| reduce(c, (c.x[0] - c.x[1]).square())),
    lowering: Lowering { torch: Function(torch_pair), ..Lowering::NONE },
    ..LOSS
};

/// Mean of `|input - target|`
pub static L1_LOSS: OpDef = OpDef {
    name: "l1_loss",
    doc: "Absolute error `|input - target|`; its mean, its sum, or (`reduction=\"none\"`) the one of each element.",
    aliases: &["mae", "mean_absolute_error"],
    layer: "L1Loss",
    expand: Some(|c| reduce(c, distance(c))),
    lowering: Lowering { torch: Function(torch_pair), ..Lowering::NONE },
    ..LOSS
};

/// Square up to a distance of `limit` and linear beyond it, with equal slope there: with `c = min(a, limit)`
/// it is `c·(a - c/2)`, one formula for both sides.
fn capped<'a>(c: &ExpandCx<'a>, limit: f64) -> V<'a> {
    let distance = distance(c);
    let cap = distance.minimum(limit);
    cap * (distance - 0.5 * cap)
}

fn not_below(cx: &ShapeCx<'_>, i: usize, zero_too: bool) -> Result<()> {
    let value = cx.f64(i)?;
    if value > 0.0 || (zero_too && value == 0.0) {
        return Ok(());
    }
    Err(cx.bad(i, &cx.lit(i), if zero_too { "0 or more" } else { "more than 0" }))
}

/// square near 0, linear beyond `delta`
pub static HUBER_LOSS: OpDef = OpDef {
    name: "huber_loss",
    doc: "Huber loss: with `d = |input - target|`, `d²/2` up to `delta` and `delta·(d - delta/2)` beyond it \
         (Huber 1964).",
    aliases: &["huber"],
    layer: "HuberLoss",
    ports: &[
        tensor("input"),
        tensor("target"),
        REDUCTION,
        attr("delta", Attr::Float, DefaultLit::Float(1.0)),
    ],
    shape: ShapeRule::Fn(|cx| {
        not_below(cx, 3, false)?;
        loss_shape(cx)
    }),
    expand: Some(|c| reduce(c, capped(c, c.get(|c| c.f64(3))))),
    lowering: Lowering { torch: Function(torch_pair), ..Lowering::NONE },
    cases: &["[2,3] [2,3]", "[2,3] [2,3] reduction=\"sum\" delta=0.5", "[4] [4] reduction=\"none\" delta=2"],
    ..LOSS
};

/// square near 0, linear beyond `beta`
pub static SMOOTH_L1_LOSS: OpDef = OpDef {
    name: "smooth_l1_loss",
    doc: "With `d = |input - target|`, `d²/(2 beta)` up to `beta` and `d - beta/2` beyond it; the absolute error \
         if `beta` is 0.",
    aliases: &["smooth_l1"],
    layer: "SmoothL1Loss",
    ports: &[tensor("input"), tensor("target"), REDUCTION, attr("beta", Attr::Float, DefaultLit::Float(1.0))],
    shape: ShapeRule::Fn(|cx| {
        not_below(cx, 3, true)?;
        loss_shape(cx)
    }),
    expand: Some(|c| {
        let beta = c.get(|c| c.f64(3));
        reduce(c, if beta == 0.0 { distance(c) } else { capped(c, beta) / beta })
    }),
    lowering: Lowering { torch: Function(torch_pair), ..Lowering::NONE },
    cases: &["[2,3] [2,3]", "[2,3] [2,3] reduction=\"sum\" beta=0.5", "[4] [4] reduction=\"none\" beta=0"],
    ..LOSS
};

/// Cross-entropy of probabilities
pub static BINARY_CROSS_ENTROPY: OpDef = OpDef {
    name: "binary_cross_entropy",
    doc: "`-(target·log(input) + (1 - target)·log(1 - input))` of probabilities, times `weight` if given. \
         Logarithms are clamped to at least -100, so that the loss is finite. Prefer \
         `binary_cross_entropy_with_logits` where the probabilities come from a sigmoid.",
    aliases: &["bce_loss", "bce"],
    layer: "BinaryCrossEntropy",
    ports: &[tensor("input"), tensor("target"), optional("weight"), REDUCTION],
    expand: Some(|c| reduce(c, weighted(c, -likelihood(c)))),
    grad: Grad::Formula(|v| {
        let (x, t) = (v.x[0], v.x[1]);
        let g = each(v);
        // As in PyTorch the divisor is at least 1e-12, so that an input of 0 or 1 that is wrong has a finite gradient.
        let divisor = (x * (1.0 - x)).maximum(1e-12);
        let (yes, no) = log_probabilities(v);
        vec![weighted(v, g * ((x - t) / divisor)), weighted(v, g * (no - yes)), -(g * likelihood(v))]
    }),
    lowering: Lowering {
        torch: Function(torch_binary),
        jax: Template("_binary_cross_entropy({0}, {1}, {2}, {3})"),
        mlx: Template("_binary_cross_entropy({0}, {1}, {2}, {3})"),
        ..Lowering::NONE
    },
    domain: (0.1, 0.9),
    cases: &[
        "[2,3] [2,3]",
        "[2,3] [2,3] [3]",
        "[2,3] [2,3] [2,1] reduction=\"sum\"",
        "[4] [4] reduction=\"none\"",
    ],
    ..LOSS
};

/// `log(input)` and `log(1 - input)`, both at least -100.
fn log_probabilities<'a>(c: &ExpandCx<'a>) -> (V<'a>, V<'a>) {
    let low = c.cx.lit(-100.0);
    let yes = c.x[0].log().maximum(low);
    let no = (-c.x[0]).log1p().maximum(low);
    (yes, no)
}

fn likelihood<'a>(c: &ExpandCx<'a>) -> V<'a> {
    let (yes, no) = log_probabilities(c);
    c.x[1] * yes + (1.0 - c.x[1]) * no
}

fn weighted<'a>(c: &ExpandCx<'a>, losses: V<'a>) -> V<'a> {
    let weight = c.x[2];
    if weight.is_some() { losses * weight } else { losses }
}

/// The cotangent of the loss of each element.
fn each<'a>(v: &GradCx<'a>) -> V<'a> {
    let count = if v.x[0].rank() == 0 { v.x[1] } else { v.x[0] }.shape().numel();
    if v.get(reduction) == "mean" { v.g / count } else { v.g }
}

/// Cross-entropy of logits
pub static BINARY_CROSS_ENTROPY_WITH_LOGITS: OpDef = OpDef {
    name: "binary_cross_entropy_with_logits",
    doc: "`binary_cross_entropy(sigmoid(input), target)` without overflow: \
         `(1 - t)·x + (1 + (pos_weight - 1)·t)·log(1 + exp(-x))`, times `weight` if given. `pos_weight` is the \
         weight of positive targets.",
    aliases: &["bce_with_logits", "bce_with_logits_loss"],
    layer: "BinaryCrossEntropyWithLogits",
    ports: &[tensor("input"), tensor("target"), optional("weight"), optional("pos_weight"), REDUCTION],
    expand: Some(|c| {
        let (x, t, positive) = (c.x[0], c.x[1], c.x[3]);
        // log(1 + e^-x) without overflow.
        let softplus = (-x.abs()).exp().log1p() + (-x).maximum(0.0);
        let right = if positive.is_some() { softplus * (1.0 + (positive - 1.0) * t) } else { softplus };
        reduce(c, weighted(c, (1.0 - t) * x + right))
    }),
    lowering: Lowering { torch: Function(torch_pair), ..Lowering::NONE },
    cases: &[
        "[2,3] [2,3]",
        "[2,3] [2,3] [3] [3]",
        "[2,3] [2,3] none [3] reduction=\"sum\"",
        "[4] [4] reduction=\"none\"",
    ],
    ..LOSS
};

/// `target·(log(target) - input)`
pub static KL_DIV: OpDef = OpDef {
    name: "kl_div",
    doc: "Kullback-Leibler divergence `target·(log(target) - input)`, where `input` holds log-probabilities and \
         `target` probabilities, or log-probabilities too with `log_target`. The mean is over all elements; \
         `reduction=\"batchmean\"` divides by the size of the first axis, which is the divergence as defined.",
    aliases: &["kl_div_loss"],
    layer: "KLDivergence",
    ports: &[
        tensor("input"),
        tensor("target"),
        attr("reduction", Attr::Choice(&["mean", "sum", "none", "batchmean"]), DefaultLit::Str("mean")),
        attr("log_target", Attr::Bool, DefaultLit::Bool(false)),
    ],
    shape: ShapeRule::Fn(|cx| {
        if reduction(cx)? == "batchmean" && common(cx)?.rank() == 0 {
            return Err(cx.bad(2, &cx.lit(2), "another one for a 0-d input, which has no batch"));
        }
        loss_shape(cx)
    }),
    expand: Some(|c| {
        let (x, t) = (c.x[0], c.x[1]);
        if c.get(|c| c.bool(3)) {
            return reduce(c, t.exp() * (t - x));
        }
        let is_zero = t.equal(0.0);
        let log = is_zero.select(1.0, t).log();
        reduce(c, t * (log - x))
    }),
    lowering: Lowering {
        // PyTorch warns that the meaning of the mean will change, and its gradient is NaN for a target of 0.
        torch: Function(
            |c| if reduction(c).ok()? == "mean" || !c.is_constant(1) { None } else { torch_pair(c) },
        ),
        ..Lowering::NONE
    },
    domain: (0.1, 0.9),
    cases: &[
        "[2,3] [2,3]",
        "[2,3] [2,3] reduction=\"batchmean\"",
        "[2,3] [2,3] reduction=\"sum\" log_target=true",
        "[4] [4] reduction=\"none\"",
    ],
    ..LOSS
};

/// `max(0, 1 - target·input)`
fn margin<'a>(c: &ExpandCx<'a>) -> V<'a> {
    (1.0 - c.x[1] * c.x[0]).maximum(0.0)
}

/// `max(0, 1 - target·input)`
pub static HINGE_LOSS: OpDef = OpDef {
    name: "hinge_loss",
    doc: "Hinge loss `max(0, 1 - target·input)` for targets of -1 and 1.",
    aliases: &["hinge"],
    layer: "HingeLoss",
    expand: Some(|c| reduce(c, margin(c))),
    domain: (-0.9, 0.9),
    ..LOSS
};

/// `max(0, 1 - target·input)²`
pub static QUAD_HINGE_LOSS: OpDef = OpDef {
    name: "quad_hinge_loss",
    doc: "Squared hinge loss `max(0, 1 - target·input)²` for targets of -1 and 1.",
    aliases: &["squared_hinge", "quad_hinge"],
    layer: "QuadHingeLoss",
    expand: Some(|c| reduce(c, margin(c).square())),
    domain: (-0.9, 0.9),
    ..LOSS
};

// --- classes -----------------------------------------------------------------------------------------------

const IGNORE_INDEX: Port = attr("ignore_index", Attr::Int, DefaultLit::Int(-100));

/// The axis of the classes: 1, or the only one.
fn class_axis(rank: usize) -> usize {
    usize::from(rank > 1)
}

/// Shapes of the losses of classes: input `[n, classes, ...]`; target `[n, ...]`, or probabilities as the input.
fn class_shape(cx: &ShapeCx<'_>, probabilities: bool) -> Result<Vec<Shape>> {
    let (input, target) = (cx.shape(0), cx.shape(1));
    if input.rank() == 0 {
        let message = format!("`input` of {} has no axis for the classes", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message).help("give it the shape [n, classes]"));
    }
    let axis = class_axis(input.rank());
    let mut places = input.clone();
    let classes = places.0.remove(axis);
    let expected = if probabilities && target.rank() == input.rank() { input } else { &places };
    if target.rank() != expected.rank() {
        let message = format!("`target` of {} has shape {target}, `input` {input}", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message)
            .help(format!("give `target` class indices of shape {places}")));
    }
    for (a, b) in expected.iter().zip(target.iter()) {
        cx.same(a, b, "sizes of `input` and `target`")?;
    }
    if cx.has(2) {
        cx.rank(2, &[1])?;
        cx.same(&classes, &cx.shape(2)[0], "numbers of classes of `input` and `weight`")?;
    }
    Ok(vec![if reduction(cx)? == "none" { places } else { Shape::scalar() }])
}

/// Input and weight promote to a float; class indices become int64, probabilities that float.
fn class_dtypes(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let float = |i: usize| cx.dtype(i).filter(|d| d.is_float());
    let input = float(0).unwrap_or(cx.float);
    let to = if cx.is_number(2) { input } else { float(2).map_or(input, |weight| input.promote(weight)) };
    let target = if float(1).is_some() { to } else { DType::I64 };
    let weight = cx.is_tensor(2).then_some(to);
    Ok(DTypes { cast: smallvec![Some(to), Some(target), weight], out: smallvec![to] })
}

/// The weights of the classes along the class axis.
fn class_weights<'a>(c: &ExpandCx<'a>, input: V<'a>) -> Option<V<'a>> {
    let mut shape = vec![Dim::ONE; input.rank()];
    let axis = class_axis(input.rank());
    *shape.get_mut(axis)? = input.dim(axis as i64);
    let weight = c.x[2];
    weight.is_some().then(|| weight.cast(input.dtype()).reshape(shape))
}

/// Log-probabilities at class indices.
struct Classes<'a> {
    /// Targets that are ignored.
    ignored: V<'a>,
    /// Negative log-probability of the target times its weight; 0 if ignored.
    losses: V<'a>,
    /// Weight of the target; 0 if ignored.
    weights: V<'a>,
}

fn classes<'a>(c: &ExpandCx<'a>, log: V<'a>) -> Classes<'a> {
    let target = c.x[1].cast(DType::I64);
    let (zero, axis) = (c.cx.lit(0), c.cx.lit(class_axis(log.rank())));
    let ignored = target.equal(c.x[port(c, "ignore_index")]);
    let at = ignored.select(zero, target).expand_dims(axis);
    let shape = c.cx.lit(target.shape().0.to_vec());
    let pick = |from: V<'a>| from.take_along_axis(at, axis).reshape(shape);
    let unless_ignored = |t: V<'a>| {
        let kept = ignored.select(zero, t);
        if !c.x[1].dtype().is_float() {
            return kept;
        }
        // Class indices may be floats, since an input without a declared dtype is a float; fractions are invalid.
        let whole = c.x[1].equal(c.x[1].floor());
        whole.select(kept, f64::NAN)
    };
    let counted = ignored.logical_not().cast(log.dtype());
    match class_weights(c, log) {
        Some(weight) => {
            let weight = pick(weight);
            let losses = unless_ignored(-pick(log) * weight);
            Classes { ignored, losses, weights: unless_ignored(weight) }
        }
        None => Classes { ignored, losses: unless_ignored(-pick(log)), weights: counted },
    }
}

/// Reduced as the argument `reduction` says; the mean is weighted by the targets that are not ignored.
fn reduce_weighted<'a>(c: &ExpandCx<'a>, losses: V<'a>, weights: V<'a>) -> V<'a> {
    match c.get(reduction).as_str() {
        "none" => losses,
        "sum" => losses.sum_all(),
        _ => losses.sum_all() / weights.sum_all(),
    }
}

/// Negative log-likelihood of classes
pub static NLL_LOSS: OpDef = OpDef {
    name: "nll_loss",
    doc: "`-weight[target]·input[target]` of log-probabilities `[n, classes, ...]` (or `[classes]`) and class indices \
         `[n, ...]`. Targets equal to `ignore_index` count as 0. The mean is divided by the sum of the weights of \
         the targets that count, NaN if there are none.",
    aliases: &["nll"],
    layer: "NLLLoss",
    ports: &[tensor("input"), tensor_of("target", Kinds::INT), optional("weight"), REDUCTION, IGNORE_INDEX],
    shape: ShapeRule::Fn(|cx| class_shape(cx, false)),
    dtype: DTypeRule::Fn(class_dtypes),
    expand: Some(|c| {
        let terms = classes(c, at_least_f32(c.x[0]));
        vec![reduce_weighted(c, terms.losses, terms.weights).cast(c.x[0].dtype())]
    }),
    lowering: Lowering { torch: Function(|c| torch(c, "nll_loss")), ..Lowering::NONE },
    domain: (0.1, 2.0),
    cases: &[
        "[4,3] i64[4]<3",
        "[4,3] i64[4]<3 [3]",
        "[2,3,4] i64[2,4]<3 [3] reduction=\"sum\" ignore_index=1",
        "[4,3] i64[4]<3 reduction=\"none\" ignore_index=0",
        "[3] i64[]<3",
    ],
    ..LOSS
};

/// Cross-entropy of logits and classes
pub static CROSS_ENTROPY: OpDef = OpDef {
    name: "cross_entropy",
    doc: "Cross-entropy of logits `[n, classes, ...]` (or `[classes]`) and targets: class indices `[n, ...]`, or \
         probabilities of the shape of the logits (indices may be floats; one that is not an integer gives NaN). `-Σ weight·target·log_softmax(input)` over the classes. With \
         `label_smoothing` a part of each target is spread evenly over the classes. Class indices equal to \
         `ignore_index` count as 0, and the mean is divided by the sum of the weights of those that count; with \
         probabilities it is over all places.",
    aliases: &["cross_entropy_loss"],
    layer: "CrossEntropy",
    ports: &[
        tensor("input"),
        tensor("target"),
        optional("weight"),
        REDUCTION,
        IGNORE_INDEX,
        attr("label_smoothing", Attr::Float, DefaultLit::Float(0.0)),
    ],
    shape: ShapeRule::Fn(|cx| {
        if !(0.0..=1.0).contains(&cx.f64(5)?) {
            return Err(cx.bad(5, &cx.lit(5), "from 0 to 1"));
        }
        class_shape(cx, true)
    }),
    dtype: DTypeRule::Fn(class_dtypes),
    expand: Some(cross_entropy),
    lowering: Lowering {
        torch: Function(|c| {
            let whole = c.ty(1)?.shape.rank() == c.ty(0)?.shape.rank();
            (whole == c.ty(1)?.dtype.is_float()).then(|| torch(c, "cross_entropy"))?
        }),
        ..Lowering::NONE
    },
    domain: (0.1, 2.0),
    cases: &[
        "[4,3] i64[4]<3",
        "[4,3] i64[4]<3 [3] label_smoothing=0.1",
        "[2,3,4] i64[2,4]<3 reduction=\"sum\" ignore_index=1 label_smoothing=0.2",
        "[4,3] i64[4]<3 [3] reduction=\"none\" ignore_index=0",
        "[3] i64[]<3",
        "[4,3] [4,3]",
        "[2,3,4] [2,3,4] [3] label_smoothing=0.1",
        "[3] [3] reduction=\"none\"",
    ],
    ..LOSS
};

fn cross_entropy<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let x = at_least_f32(c.x[0]);
    let class_axis = class_axis(x.rank());
    let axis = c.cx.lit(class_axis);
    let log = x.op(&LOG_SOFTMAX, &[axis]);
    let smoothing = c.get(|c| c.f64(5));
    let part = match x.dim(class_axis as i64) {
        Dim::Const(n) => c.cx.lit(smoothing / n as f64),
        n @ Dim::Expr(_) => (smoothing / c.cx.lit(n)).cast(x.dtype()),
    };
    let over_classes = |terms: V<'a>| {
        let terms = class_weights(c, x).map_or(terms, |weight| terms * weight);
        -terms.sum(axis, false)
    };
    let losses = if c.x[1].rank() == x.rank() {
        let target = c.x[1].cast(x.dtype());
        let target = if smoothing > 0.0 { target * (1.0 - smoothing) + part } else { target };
        let losses = over_classes(log * target);
        reduce(c, losses)[0]
    } else {
        let terms = classes(c, log);
        let mut losses = terms.losses;
        if smoothing > 0.0 {
            let even = terms.ignored.select(0.0, over_classes(log));
            losses = losses * (1.0 - smoothing) + even * part;
        }
        reduce_weighted(c, losses, terms.weights)
    };
    vec![losses.cast(c.x[0].dtype())]
}

/// Calls PyTorch's function, whose parameters have the names and defaults of the ports. It has no gradients with respect to
/// weights.
fn torch(c: &LoweringCx<'_>, name: &str) -> Option<String> {
    let mut arguments = vec![c.arg(0).to_owned(), c.arg(1).to_owned()];
    for (i, port) in c.op().ports.iter().enumerate().skip(2) {
        if c.ty(i).is_some() && !c.is_constant(i) {
            return None;
        }
        let is_default = c.ty(i).is_none() && port.default.lit() == Some(c.lit(i));
        if !is_default {
            arguments.push(format!("{}={}", port.name, c.arg(i)));
        }
    }
    Some(format!("F.{name}({})", arguments.join(", ")))
}

/// As [`torch`] for input and target of the same shape; PyTorch warns about others.
fn torch_pair(c: &LoweringCx<'_>) -> Option<String> {
    (c.ty(0)?.shape == c.ty(1)?.shape).then(|| torch(c, c.op().name))?
}

/// A helper if a gradient with respect to the target may be needed, which PyTorch defines differently.
fn torch_binary(c: &LoweringCx<'_>) -> Option<String> {
    if c.ty(0)?.shape != c.ty(1)?.shape {
        return None;
    }
    if c.is_constant(1)
        && let Some(text) = torch(c, c.op().name)
    {
        return Some(text);
    }
    let losses = format!("_binary_cross_entropy({}, {})", c.arg(0), c.arg(1));
    let losses = if c.ty(2).is_some() { format!("({losses} * {})", c.arg(2)) } else { losses };
    Some(match reduction(c).ok()?.as_str() {
        "none" => losses,
        name => format!("torch.{name}({losses})"),
    })
}

#[cfg(test)]
mod tests;
