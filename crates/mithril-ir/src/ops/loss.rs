//! Losses, with the semantics and formulas of PyTorch.
//!
//! Two things are stricter: input and target have the same shape (or one of them is 0-d) where PyTorch would
//! broadcast `[n, 1]` against `[n]` to `[n, n]`, and a parameter that has no meaning is an error.

use crate::build::{Call, GradCall, V};
use crate::error::{Code, Error, Result};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Grad, OpDef, Port, ShapeRule, Tolerance, attr, optional, tensor,
};
use crate::ops::elementwise as e;
use crate::ops::reduce::{MEAN, SUM};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;

/// Rows of this file.
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
];

const REDUCTION: Port = attr("reduction", Attr::Choice(&["mean", "sum", "none"]), DefaultLit::Str("mean"));
static PORTS: &[Port] = &[tensor("input"), tensor("target"), REDUCTION];

/// The row that losses of each element of `input` and `target` start from.
const fn loss(name: &'static str, doc: &'static str) -> OpDef {
    OpDef {
        name,
        doc,
        ports: PORTS,
        shape: ShapeRule::Fn(loss_shape),
        dtype: DTypeRule::Float,
        tolerance: Tolerance::Contraction,
        cases: &["[2,3] [2,3]", "[2,3] [2,3] reduction=\"sum\"", "[4] [4] reduction=\"none\"", "[] []"],
        ..BLANK
    }
}

/// Position of a port, beyond the last one if the row has none of that name.
fn port(cx: &impl Attrs, name: &str) -> usize {
    cx.op().port(name).unwrap_or(usize::MAX)
}

fn reduction(cx: &impl Attrs) -> Result<String> {
    cx.text(port(cx, "reduction"))
}

/// The shape that input and target have in common.
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
                Error::new(Code::ShapeMismatch, message).help(format!("it has to broadcast to {shape}"))
            );
        }
    }
    Ok(vec![if reduction(cx)? == "none" { shape } else { Shape::scalar() }])
}

/// The losses of all elements as `reduction` says.
fn reduce<'a>(c: &Call<'a>, losses: V<'a>) -> Vec<V<'a>> {
    vec![match c.get(reduction).as_str() {
        "none" => losses,
        "sum" => losses.op(&SUM, &[]),
        "batchmean" => losses.op(&SUM, &[]) / c.cx.lit(losses.dim(0)),
        _ => losses.op(&MEAN, &[]),
    }]
}

/// `|input - target|`
fn distance<'a>(c: &Call<'a>) -> V<'a> {
    (c.x[0] - c.x[1]).op(&e::ABS, &[])
}

static PAIR: &[Port] = &[tensor("input"), tensor("target")];

const fn error(name: &'static str, doc: &'static str) -> OpDef {
    OpDef {
        ports: PAIR,
        shape: ShapeRule::Fn(|cx| Ok(vec![common(cx)?])),
        tolerance: Tolerance::Elementwise,
        cases: &["[2,3] [2,3]", "[] []", "[0,3] [0,3]"],
        ..loss(name, doc)
    }
}

/// `(input - target)²`
pub static SQUARED_ERROR: OpDef = OpDef {
    expand: Some(|c| vec![(c.x[0] - c.x[1]).op(&e::SQUARE, &[])]),
    layer: "SquaredError",
    ..error("squared_error", "Squared error of each element, `(input - target)²`.")
};

/// `|input - target|`
pub static ABSOLUTE_ERROR: OpDef = OpDef {
    expand: Some(|c| vec![distance(c)]),
    layer: "AbsoluteError",
    ..error("absolute_error", "Absolute error of each element, `|input - target|`.")
};

/// Mean of `(input - target)²`
pub static MSE_LOSS: OpDef = OpDef {
    expand: Some(|c| reduce(c, (c.x[0] - c.x[1]).op(&e::SQUARE, &[]))),
    layer: "MSELoss",
    aliases: &["mse", "mean_squared_error"],
    ..loss(
        "mse_loss",
        "Squared error `(input - target)²`; its mean, its sum, or (`reduction=\"none\"`) the one of each element.",
    )
};

/// Mean of `|input - target|`
pub static L1_LOSS: OpDef = OpDef {
    expand: Some(|c| reduce(c, distance(c))),
    layer: "L1Loss",
    aliases: &["mae", "mean_absolute_error"],
    ..loss(
        "l1_loss",
        "Absolute error `|input - target|`; its mean, its sum, or (`reduction=\"none\"`) the one of each element.",
    )
};

/// Square up to a distance of `limit` and linear beyond it, with equal slope there: with `c = min(a, limit)`
/// it is `c·(a - c/2)`, one formula for both sides.
fn capped<'a>(c: &Call<'a>, limit: f64) -> V<'a> {
    let distance = distance(c);
    let cap = distance.op(&e::MINIMUM, &[c.cx.lit(limit)]);
    cap * (distance - 0.5 * cap)
}

fn not_below(cx: &ShapeCx<'_>, i: usize, zero_too: bool) -> Result<()> {
    let value = cx.f64(i)?;
    if value > 0.0 || (zero_too && value == 0.0) {
        return Ok(());
    }
    Err(cx.bad(i, &cx.lit(i), if zero_too { "0 or more" } else { "more than 0" }))
}

/// Square near 0, linear far away
pub static HUBER_LOSS: OpDef = OpDef {
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
    layer: "HuberLoss",
    cases: &["[2,3] [2,3]", "[2,3] [2,3] reduction=\"sum\" delta=0.5", "[4] [4] reduction=\"none\" delta=2"],
    aliases: &["huber"],
    ..loss(
        "huber_loss",
        "Huber loss: with `d = |input - target|`, `d²/2` up to `delta` and `delta·(d - delta/2)` beyond it \
         (Huber 1964).",
    )
};

/// Square near 0, linear far away
pub static SMOOTH_L1_LOSS: OpDef = OpDef {
    ports: &[tensor("input"), tensor("target"), REDUCTION, attr("beta", Attr::Float, DefaultLit::Float(1.0))],
    shape: ShapeRule::Fn(|cx| {
        not_below(cx, 3, true)?;
        loss_shape(cx)
    }),
    expand: Some(|c| {
        let beta = c.get(|c| c.f64(3));
        reduce(c, if beta == 0.0 { distance(c) } else { capped(c, beta) / beta })
    }),
    layer: "SmoothL1Loss",
    cases: &["[2,3] [2,3]", "[2,3] [2,3] reduction=\"sum\" beta=0.5", "[4] [4] reduction=\"none\" beta=0"],
    aliases: &["smooth_l1"],
    ..loss(
        "smooth_l1_loss",
        "With `d = |input - target|`, `d²/(2 beta)` up to `beta` and `d - beta/2` beyond it; the absolute error \
         if `beta` is 0.",
    )
};

/// Cross-entropy of probabilities
pub static BINARY_CROSS_ENTROPY: OpDef = OpDef {
    ports: &[tensor("input"), tensor("target"), optional("weight"), REDUCTION],
    expand: Some(|c| reduce(c, weighted(c, -likelihood(c)))),
    grad: Grad::Formula(|v| {
        let (x, t) = (v.x[0], v.x[1]);
        let g = each(v);
        // As PyTorch: the divisor is held above 1e-12, so that a certain and wrong input has a finite gradient.
        let spread = (x * (1.0 - x)).op(&e::MAXIMUM, &[v.cx.lit(1e-12)]);
        let (yes, no) = log_probabilities(v);
        vec![weighted(v, g * ((x - t) / spread)), weighted(v, g * (no - yes)), -(g * likelihood(v))]
    }),
    domain: (0.1, 0.9),
    layer: "BinaryCrossEntropy",
    cases: &[
        "[2,3] [2,3]",
        "[2,3] [2,3] [3]",
        "[2,3] [2,3] [2,1] reduction=\"sum\"",
        "[4] [4] reduction=\"none\"",
    ],
    aliases: &["bce_loss", "bce"],
    ..loss(
        "binary_cross_entropy",
        "`-(target·log(input) + (1 - target)·log(1 - input))` of probabilities, times `weight` if given. \
         Logarithms are held at -100 or more, so that the loss is finite. Prefer \
         `binary_cross_entropy_with_logits` where the probabilities come from a sigmoid.",
    )
};

/// `log(input)` and `log(1 - input)`, both at least -100.
fn log_probabilities<'a>(c: &Call<'a>) -> (V<'a>, V<'a>) {
    let low = c.cx.lit(-100.0);
    let yes = c.x[0].op(&e::LOG, &[]).op(&e::MAXIMUM, &[low]);
    let no = (-c.x[0]).op(&e::LOG1P, &[]).op(&e::MAXIMUM, &[low]);
    (yes, no)
}

fn likelihood<'a>(c: &Call<'a>) -> V<'a> {
    let (yes, no) = log_probabilities(c);
    c.x[1] * yes + (1.0 - c.x[1]) * no
}

fn weighted<'a>(c: &Call<'a>, losses: V<'a>) -> V<'a> {
    let weight = c.x[2];
    if weight.is_some() { losses * weight } else { losses }
}

/// The cotangent of the loss of each element.
fn each<'a>(v: &GradCall<'a>) -> V<'a> {
    let count = if v.x[0].rank() == 0 { v.x[1] } else { v.x[0] }.shape().numel();
    if v.get(reduction) == "mean" { v.g / v.cx.lit(count) } else { v.g }
}

/// Cross-entropy of logits
pub static BINARY_CROSS_ENTROPY_WITH_LOGITS: OpDef = OpDef {
    ports: &[tensor("input"), tensor("target"), optional("weight"), optional("pos_weight"), REDUCTION],
    expand: Some(|c| {
        let (x, t, positive) = (c.x[0], c.x[1], c.x[3]);
        // log(1 + e^-x), which overflows nowhere.
        let softplus = (-x.op(&e::ABS, &[])).op(&e::EXP, &[]).op(&e::LOG1P, &[])
            + (-x).op(&e::MAXIMUM, &[c.cx.lit(0.0)]);
        let right = if positive.is_some() { softplus * (1.0 + (positive - 1.0) * t) } else { softplus };
        reduce(c, weighted(c, (1.0 - t) * x + right))
    }),
    layer: "BinaryCrossEntropyWithLogits",
    cases: &[
        "[2,3] [2,3]",
        "[2,3] [2,3] [3] [3]",
        "[2,3] [2,3] none [3] reduction=\"sum\"",
        "[4] [4] reduction=\"none\"",
    ],
    aliases: &["bce_with_logits", "bce_with_logits_loss"],
    ..loss(
        "binary_cross_entropy_with_logits",
        "`binary_cross_entropy(sigmoid(input), target)` without overflow: \
         `(1 - t)·x + (1 + (pos_weight - 1)·t)·log(1 + exp(-x))`, times `weight` if given. `pos_weight` is the \
         weight of positive targets.",
    )
};

/// `target·(log(target) - input)`
pub static KL_DIV: OpDef = OpDef {
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
            return reduce(c, t.op(&e::EXP, &[]) * (t - x));
        }
        let is_zero = t.op(&e::EQUAL, &[c.cx.lit(0.0)]);
        let log = is_zero.op(&e::WHERE, &[c.cx.lit(1.0), t]).op(&e::LOG, &[]);
        reduce(c, t * (log - x))
    }),
    domain: (0.1, 0.9),
    layer: "KLDivergence",
    cases: &[
        "[2,3] [2,3]",
        "[2,3] [2,3] reduction=\"batchmean\"",
        "[2,3] [2,3] reduction=\"sum\" log_target=true",
        "[4] [4] reduction=\"none\"",
    ],
    aliases: &["kl_divergence", "kl_div_loss"],
    ..loss(
        "kl_div",
        "Kullback-Leibler divergence `target·(log(target) - input)`, where `input` holds log-probabilities and \
         `target` probabilities, or log-probabilities too with `log_target`. The mean is over all elements; \
         `reduction=\"batchmean\"` divides by the size of the first axis, which is the divergence as defined.",
    )
};

/// `max(0, 1 - target·input)`
fn margin<'a>(c: &Call<'a>) -> V<'a> {
    (1.0 - c.x[1] * c.x[0]).op(&e::MAXIMUM, &[c.cx.lit(0.0)])
}

/// `max(0, 1 - target·input)`
pub static HINGE_LOSS: OpDef = OpDef {
    expand: Some(|c| reduce(c, margin(c))),
    domain: (-0.9, 0.9),
    layer: "HingeLoss",
    aliases: &["hinge"],
    ..loss("hinge_loss", "Hinge loss `max(0, 1 - target·input)` for targets of -1 and 1.")
};

/// `max(0, 1 - target·input)²`
pub static QUAD_HINGE_LOSS: OpDef = OpDef {
    expand: Some(|c| reduce(c, margin(c).op(&e::SQUARE, &[]))),
    domain: (-0.9, 0.9),
    layer: "QuadHingeLoss",
    aliases: &["squared_hinge", "quad_hinge"],
    ..loss("quad_hinge_loss", "Squared hinge loss `max(0, 1 - target·input)²` for targets of -1 and 1.")
};

#[cfg(test)]
mod tests;
