//! Normalization: over the batch, over features, over groups of channels, to unit length.
//!
//! The result has the dtype of the input, independently of the weights; 16-bit floats are computed in float32.

use super::reduce::MEAN;
use super::window::count;
use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::forms::{Form, form};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, OpDef, Port, PortKind, ShapeRule, Tolerance, attr, tensor_of,
};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::{self, Shape};

/// Ops of this file.
pub static OPS: &[&OpDef] =
    &[&BATCH_NORM, &LAYER_NORM, &RMS_NORM, &GROUP_NORM, &INSTANCE_NORM, &NORMALIZE, &COSINE_SIMILARITY];

const INPUT: Port = tensor_of("input", Kinds::NUMBER);
const WEIGHT: Port = optional("weight");
const BIAS: Port = optional("bias");
const EPS: Port = attr("eps", Attr::Float, DefaultLit::Float(1e-5));

const fn optional(name: &'static str) -> Port {
    Port { name, kind: PortKind::Optional(Kinds::NUMBER), default: DefaultLit::None }
}

const NORM: OpDef = OpDef {
    shape: ShapeRule::Same,
    dtype: DTypeRule::Fn(|cx| Ok(like_input(cx, []))),
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// The float that argument `i` is or becomes.
fn float(cx: &DTypeCx<'_>, i: usize) -> DType {
    cx.dtype(i).filter(|d| d.is_float()).unwrap_or(cx.float)
}

/// The input becomes a float; the first output has the same dtype.
fn like_input(cx: &DTypeCx<'_>, more: impl IntoIterator<Item = DType>) -> DTypes {
    let dtype = float(cx, 0);
    DTypes { cast: [Some(dtype)].into_iter().collect(), out: [dtype].into_iter().chain(more).collect() }
}

/// The dtype of the result.
fn result(c: &ExpandCx<'_>) -> DType {
    c.x[0].dtype()
}

/// The input in the dtype of the computation.
fn wide<'a>(c: &ExpandCx<'a>) -> V<'a> {
    let half = matches!(result(c), DType::F16 | DType::BF16);
    if half { c.x[0].cast(DType::F32) } else { c.x[0] }
}

/// `x - mean` over `axes`, with mean and biased variance.
fn center<'a>(x: V<'a>, axes: &Lit) -> [V<'a>; 3] {
    let over = [x.lit(axes.clone()), x.lit(true)];
    let mean = x.op(&MEAN, &over);
    let centered = x - mean;
    [centered, mean, centered.square().op(&MEAN, &over)]
}

/// `(x - mean) / √(variance + eps)` over `axes`.
fn standardize<'a>(x: V<'a>, axes: &Lit, eps: V<'a>) -> V<'a> {
    let [centered, _, variance] = center(x, axes);
    centered * (variance + eps).rsqrt()
}

/// `x · weight + bias`, both in the shape of `like`.
fn affine<'a>(x: V<'a>, weight: V<'a>, bias: V<'a>, like: &[Dim]) -> V<'a> {
    let fit = |v: V<'a>| v.cast(x.dtype()).reshape(like.to_vec());
    let x = if weight.is_some() { x * fit(weight) } else { x };
    if bias.is_some() { x + fit(bias) } else { x }
}

/// `[c, 1, ...]`: a value per channel, broadcast to `[n, c, ...]`.
fn per_channel(x: V<'_>) -> Vec<Dim> {
    let mut shape = vec![Dim::ONE; x.rank().saturating_sub(1)];
    if let Some(first) = shape.first_mut() {
        *first = x.dim(1);
    }
    shape
}

/// All axes except that of the channels.
fn but_channels(rank: usize) -> Lit {
    Lit::tuple([0].into_iter().chain(2..rank))
}

/// Checks that `input` has an axis for the batch, one for channels, and as many more as `least` says.
pub(super) fn check_rank(cx: &ShapeCx<'_>, least: usize) -> Result<()> {
    let rank = cx.shape(0).rank();
    if rank >= least {
        return Ok(());
    }
    let message = format!("`input` of {} has {rank} dimensions: {}", cx.op().name, cx.shape(0));
    Err(Error::new(Code::RankMismatch, message).help(format!(
        "it needs at least {least}: batch, channels{}",
        if least > 2 { " and what follows" } else { "" }
    )))
}

/// Checks that the tensors at `ports` have one value per channel.
fn check_channels(cx: &ShapeCx<'_>, ports: &[usize]) -> Result<()> {
    for &i in ports.iter().filter(|&&i| cx.has(i)) {
        cx.rank(i, &[1])?;
        let name = cx.op().ports[i].name;
        cx.same(&cx.shape(i)[0], &cx.shape(0)[1], &format!("sizes of `{name}` and of the channels"))?;
    }
    Ok(())
}

// --- over the batch ----------------------------------------------------------------------------------------

static BATCH_PORTS: &[Port] = &[
    INPUT,
    WEIGHT,
    BIAS,
    tensor_of("running_mean", Kinds::FLOAT),
    tensor_of("running_var", Kinds::FLOAT),
    attr("training", Attr::Bool, DefaultLit::Training),
    attr("momentum", Attr::Float, DefaultLit::Float(0.1)),
    EPS,
    attr(BATCH_GROUPS, Attr::OptInt, DefaultLit::None),
];

/// Argument of ops that compute statistics of the batch: into how many groups of successive examples it is divided, each
/// with statistics of its own. A layout whose devices have their own statistics fills it in where it is `none`.
pub const BATCH_GROUPS: &str = "batch_groups";

/// batch normalization
pub static BATCH_NORM: OpDef = OpDef {
    name: "batch_norm",
    doc: "Normalizes each channel (axis 1) over the batch and all other axes; input `[n, c, ...]`, the others \
          `[c]`.\n\n`output = (input - mean) / √(variance + eps) · weight + bias`. When training, mean and (biased) \
          variance are those of this batch, and the outputs `running_mean` and `running_var` are the new running \
          statistics `(1 - momentum)·running + momentum·statistic`, with the unbiased variance. Otherwise the \
          running statistics are used and come back unchanged. With `batch_groups`, each of so many \
          groups of successive examples is normalized by its own statistics, and the running ones take the mean of \
          those of the groups. (Ioffe and Szegedy 2015)",
    ports: BATCH_PORTS,
    outputs: &["output", "running_mean", "running_var"],
    shape: ShapeRule::Fn(batch_shape),
    dtype: DTypeRule::Fn(|cx| Ok(like_input(cx, [float(cx, 3), float(cx, 4)]))),
    expand: Some(batch_expand),
    forms: &[
        trained(
            "(input - channels(running_mean)) / sqrt(channels(running_var) + eps) * channels(weight) + channels(bias)",
        ),
        trained(
            "(input - channels(running_mean)) / channels(sqrt(running_var + eps)) * channels(weight) + channels(bias)",
        ),
        trained(
            "(input - channels(running_mean)) * channels(1 / sqrt(running_var + eps)) * channels(weight) + channels(bias)",
        ),
        trained(
            "(input - channels(running_mean)) * channels(weight / sqrt(running_var + eps)) + channels(bias)",
        ),
    ],
    lowering: Lowering {
        torch: Function(batch_torch),
        ggml: Function(super::ggml::batch_norm),
        onnx: Function(super::onnx::batch_norm),
        ..Lowering::NONE
    },
    domain: (0.1, 2.0),
    cases: &[
        "[4,3,5] [3] [3] [3] [3] training=true",
        "[4,3,2,2] none none [3] [3] training=true momentum=0.3",
        "[4,3,2] [3] [3] [3] [3] training=true batch_groups=2",
        "[4,3] [3] [3] [3] [3] training=false",
        "[2,3,2,2] [3] [3] [3] [3] training=false eps=0.1",
    ],
    ..NORM
};

/// A formula of batch normalization with fixed statistics.
const fn trained(formula: &'static str) -> Form {
    Form { formula, with: &[("training", DefaultLit::Bool(false))] }
}

fn batch_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    check_rank(cx, 2)?;
    check_channels(cx, &[1, 2, 3, 4])?;
    let input = cx.shape(0);
    let groups = groups(cx)?;
    if cx.lit(5) == Lit::Bool(true) {
        if let Some(n) = input[0].known().filter(|n| n % groups != 0) {
            let message = format!(
                "{n} examples of batch_norm do not divide into {groups} groups: the input is {input}"
            );
            return Err(Error::new(Code::BadSize, message).help(format!(
                "statistics of each group need batches whose size is a multiple of {groups}; those of the whole batch do not"
            )));
        }
        if values_per_channel(input).known().is_some_and(|n| n < 2 * groups) {
            let of = if groups > 1 { format!(" of each of {groups} groups") } else { String::new() };
            let message = format!("batch_norm is trained on one value per channel{of}: the input is {input}");
            return Err(Error::new(Code::BadSize, message)
                .help("one value has no variance: use a larger batch, or compile for inference"));
        }
    }
    let running = Shape::of([input[1].clone()]);
    Ok(vec![input.clone(), running.clone(), running])
}

/// Into how many groups the batch is divided.
fn groups<A: Attrs + ?Sized>(cx: &A) -> Result<i64> {
    if cx.lit(8) == Lit::None { Ok(1) } else { count(cx, 8) }
}

fn values_per_channel(input: &Shape) -> Dim {
    input.iter().enumerate().filter(|(i, _)| *i != 1).fold(Dim::ONE, |n, (_, d)| &n * d)
}

fn batch_expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let (x, eps) = (wide(c), c.x[7]);
    let (running_mean, running_var) = (c.x[3], c.x[4]);
    let like = per_channel(x);
    if !c.get(|c| c.bool(5)) {
        let fit = |v: V<'a>| v.cast(x.dtype()).reshape(like.clone());
        let y = (x - fit(running_mean)) * scale(fit(running_var), eps, c.x[1], &like);
        return vec![affine(y, c.cx.none(), c.x[2], &like).cast(result(c)), running_mean, running_var];
    }
    let groups = c.get(groups).max(1);
    let momentum = c.get(|c| c.f64(6));
    let update = |old: V<'a>, new: V<'a>| {
        let of_all = if groups > 1 { new.op(&MEAN, &[new.lit(Lit::int(0)), new.lit(false)]) } else { new };
        let new = of_all.reshape([x.dim(1)]).cast(old.dtype());
        old * (1.0 - momentum) + new * momentum
    };
    let [y, mean, variance] = if groups > 1 {
        // Groups are a further axis, before that of their examples.
        let examples = x.dim(0).floor_div(&Dim::Const(groups));
        let mut sizes = vec![Dim::Const(groups), examples];
        sizes.extend(x.shape().iter().skip(1).cloned());
        let over = Lit::tuple([1].into_iter().chain(3..=x.rank()));
        let [centered, mean, variance] = center(x.reshape(sizes), &over);
        let y = centered * scale(variance, eps, c.x[1], &like);
        [y.reshape(x.shape().0.to_vec()), mean, variance]
    } else {
        let [centered, mean, variance] = center(x, &but_channels(x.rank()));
        [centered * scale(variance, eps, c.x[1], &like), mean, variance]
    };
    let values = values_per_channel(&x.shape()).floor_div(&Dim::Const(groups));
    let mean = update(running_mean, mean);
    let variance = update(running_var, variance * unbias(variance, &values));
    vec![affine(y, c.cx.none(), c.x[2], &like).cast(result(c)), mean, variance]
}

/// `weight / √(variance + eps)`, one number per channel, so that the whole input is multiplied once.
fn scale<'a>(variance: V<'a>, eps: V<'a>, weight: V<'a>, like: &[Dim]) -> V<'a> {
    let inverse = (variance + eps).rsqrt();
    affine(inverse, weight, variance.cx().none(), like)
}

/// torch updates the running statistics in place and has no gradient for them: the helper copies them, and is used only if
/// they are states.
fn batch_torch(s: &LoweringCx<'_>) -> Option<String> {
    let [x, weight, bias, mean, variance, momentum, eps] = [0, 1, 2, 3, 4, 6, 7].map(|i| s.arg(i));
    let dtype = s.out(0)?.dtype;
    if s.bool(5).ok()? && groups(s).ok()? > 1 {
        return None;
    }
    // Not all devices support mixed dtypes.
    let is_one = (1..5).filter_map(|i| s.ty(i)).all(|ty| ty.dtype == dtype);
    if !is_one || !s.is_constant(3) || !s.is_constant(4) {
        return None;
    }
    if !s.bool(5).ok()? {
        let call = format!("F.batch_norm({x}, {mean}, {variance}, {weight}, {bias}, eps={eps})");
        return Some(format!("{call}, {mean}, {variance}"));
    }
    let is_read = |v| {
        s.graph.nodes().any(|(_, node)| node.inputs.contains(v)) || s.graph.outputs.values().any(|o| o == v)
    };
    if s.node.outputs[1..].iter().any(is_read) {
        return None;
    }
    Some(format!("_batch_norm({x}, {mean}, {variance}, {weight}, {bias}, {momentum}, {eps})"))
}

/// `n / (n - 1)`; of one value, which has no unbiased variance, 1.
fn unbias<'a>(variance: V<'a>, n: &Dim) -> V<'a> {
    if let Some(n) = n.known() {
        return variance.lit(n as f64 / (n - 1).max(1) as f64);
    }
    let n = variance.lit(n.clone()).cast(variance.dtype());
    n / (n - 1.0).maximum(1.0)
}

// --- over features -----------------------------------------------------------------------------------------

const SHAPE: Port = attr("normalized_shape", Attr::OptInts, DefaultLit::None);

/// layer normalization
pub static LAYER_NORM: OpDef = OpDef {
    name: "layer_norm",
    doc: "Normalizes over the last axes, those of `normalized_shape`.\n\n`output = (input - mean) / √(variance + \
          eps) · weight + bias` with the biased variance; weight and bias have the shape `normalized_shape`. If \
          that is missing, it is the shape of the weight or bias, or else the last size. (Ba, Kiros and Hinton \
          2016)",
    ports: &[INPUT, WEIGHT, BIAS, SHAPE, EPS],
    shape: ShapeRule::Fn(feature_shape),
    expand: Some(|c| {
        let (axes, like) =
            c.get(|c| features(c, c.x[0].rank(), |i| c.x[i].is_some().then(|| c.x[i].shape())));
        let y = standardize(wide(c), &axes.unwrap_or(Lit::int(-1)), c.x[4]);
        vec![affine(y, c.x[1], c.x[2], &like).cast(result(c))]
    }),
    forms: &[
        form(
            "(input - mean(input, normalized_shape)) / sqrt(mean((input - mean(input, normalized_shape)) ** 2, normalized_shape) + eps)",
        ),
        form(
            "(input - mean(input, normalized_shape)) / sqrt(mean((input - mean(input, normalized_shape)) ** 2, normalized_shape) + eps) * features(weight)",
        ),
        form(
            "(input - mean(input, normalized_shape)) / sqrt(mean(input ** 2, normalized_shape) - mean(input, normalized_shape) ** 2 + eps)",
        ),
        form(
            "(input - mean(input, normalized_shape)) / sqrt(mean(input ** 2, normalized_shape) - mean(input, normalized_shape) ** 2 + eps) * features(weight)",
        ),
        form(
            "(input - mean(input, normalized_shape)) / sqrt(maximum(mean(input ** 2, normalized_shape) - mean(input, normalized_shape) ** 2, 0) + eps)",
        ),
        form(
            "(input - mean(input, normalized_shape)) / sqrt(maximum(mean(input ** 2, normalized_shape) - mean(input, normalized_shape) ** 2, 0) + eps) * features(weight)",
        ),
        form("layer_norm(input, none, none, normalized_shape, eps) * features(weight)"),
        form("layer_norm(input, weight, none, normalized_shape, eps) + features(bias)"),
    ],
    lowering: Lowering {
        numpy: Function(|s| {
            let dims = feature_dims(s)?.len();
            Some(format!("_layer_norm({}, {}, {}, {dims}, {})", s.arg(0), s.arg(1), s.arg(2), s.arg(4)))
        }),
        torch: Function(|s| {
            let shape = s.dims(&feature_dims(s).filter(|_| one_dtype(s))?);
            let (x, weight, bias, eps) = (s.arg(0), s.arg(1), s.arg(2), s.arg(4));
            Some(format!("F.layer_norm({x}, {shape}, {weight}, {bias}, {eps})"))
        }),
        mlx: Function(|s| {
            let [x, weight, bias, eps] = [0, 1, 2, 4].map(|i| s.arg(i));
            last_axis_of_mlx(s).map(|()| format!("mx.fast.layer_norm({x}, {weight}, {bias}, {eps})"))
        }),
        ggml: Function(|s| {
            super::ggml::norm(s, "ggml_norm", feature_dims(s)?.len(), s.f64(4).ok()?, Some(2))
        }),
        onnx: Function(|s| super::onnx::layer_norm(s, feature_dims(s)?.len())),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3,4] [4] [4]",
        "[2,3,4] [3,4] [3,4]",
        "[2,3,4] [4]",
        "[2,3,4] normalized_shape=(3,4)",
        "[5]",
        "[0,4] [4] [4]",
    ],
    ..NORM
};

/// normalization by the root mean square
pub static RMS_NORM: OpDef = OpDef {
    name: "rms_norm",
    doc: "Divides by the root mean square over the last axes, those of `normalized_shape`.\n\n`output = input / \
          √(mean(input²) + eps) · weight`. `normalized_shape` as in layer_norm; `eps` is the epsilon of the dtype \
          that it is computed in if not given: that of float32 for 16-bit floats. (Zhang and Sennrich 2019)",
    ports: &[INPUT, WEIGHT, SHAPE, attr("eps", Attr::OptFloat, DefaultLit::None)],
    shape: ShapeRule::Fn(feature_shape),
    expand: Some(|c| {
        let (axes, like) =
            c.get(|c| features(c, c.x[0].rank(), |i| c.x[i].is_some().then(|| c.x[i].shape())));
        let x = wide(c);
        let eps = if c.absent(3) { c.cx.lit(computed_epsilon(result(c))) } else { c.x[3] };
        let square = x.square().mean(axes.unwrap_or(Lit::int(-1)), true);
        vec![affine(x * (square + eps).rsqrt(), c.x[1], c.cx.none(), &like).cast(result(c))]
    }),
    forms: &[
        form("input / sqrt(mean(input ** 2, normalized_shape) + eps)"),
        form("input / sqrt(mean(input ** 2, normalized_shape) + eps) * features(weight)"),
        form("rms_norm(input, none, normalized_shape, eps) * features(weight)"),
    ],
    lowering: Lowering {
        numpy: Function(|s| {
            let dims = feature_dims(s)?.len();
            let eps = eps_or_default(s)?;
            Some(format!("_rms_norm({}, {}, {dims}, {eps})", s.arg(0), s.arg(1)))
        }),
        torch: Function(|s| {
            let shape = s.dims(&feature_dims(s).filter(|_| one_dtype(s))?);
            let eps = eps_or_default(s)?;
            Some(format!("F.rms_norm({}, {shape}, {}, {eps})", s.arg(0), s.arg(1)))
        }),
        mlx: Function(|s| {
            let eps = eps_or_default(s)?;
            last_axis_of_mlx(s).map(|()| format!("mx.fast.rms_norm({}, {}, {eps})", s.arg(0), s.arg(1)))
        }),
        ggml: Function(|s| {
            super::ggml::norm(s, "ggml_rms_norm", feature_dims(s)?.len(), eps_of_rms_norm(s)?, None)
        }),
        onnx: Function(|s| super::onnx::rms_norm(s, feature_dims(s)?.len())),
        ..Lowering::NONE
    },
    cases: &["[2,3,4] [4]", "[2,3,4] [3,4] eps=0.1", "[2,3,4] normalized_shape=4"],
    ..NORM
};

/// The epsilon of the dtype that values of this one are computed in, as in PyTorch: float32 for 16-bit floats.
pub const fn computed_epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32.epsilon(),
        other => other.epsilon(),
    }
}

/// `eps` of `rms_norm`, where it has to be known.
pub(super) fn eps_of_rms_norm(s: &LoweringCx<'_>) -> Option<f64> {
    if s.absent(3) { Some(computed_epsilon(s.ty(0)?.dtype)) } else { s.f64(3).ok() }
}

/// The text of `eps` of `rms_norm`.
fn eps_or_default(s: &LoweringCx<'_>) -> Option<String> {
    Some(if s.absent(3) { computed_epsilon(s.ty(0)?.dtype).to_string() } else { s.arg(3).into() })
}

/// The last axes, which are the features, and their sizes; `shape` returns the shape of a tensor argument.
fn features<C: Attrs>(
    c: &C,
    rank: usize,
    shape: impl Fn(usize) -> Option<Shape>,
) -> Result<(Option<Lit>, Vec<Dim>)> {
    let at = c.op().port("normalized_shape").unwrap_or(0);
    let weights = (1..at).find_map(&shape);
    let dims = match weights {
        _ if !c.absent(at) => c.dims(at)?,
        Some(shape) => shape.0.to_vec(),
        None => shape(0).and_then(|s| s.last().cloned()).into_iter().collect(),
    };
    if dims.is_empty() || dims.len() > rank {
        let message =
            format!("{} normalizes over {} of the input's {rank} dimensions", c.op().name, dims.len());
        return Err(Error::new(Code::RankMismatch, message)
            .help("`normalized_shape`, or the weight, must have the last sizes of the input, at least one"));
    }
    Ok((Some(Lit::tuple((rank - dims.len())..rank)), dims))
}

fn feature_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let input = cx.shape(0);
    let (_, dims) = features(cx, input.rank(), |i| cx.has(i).then(|| cx.shape(i).clone()))?;
    for (have, want) in input[input.rank() - dims.len()..].iter().zip(&dims) {
        cx.same(have, want, "the last sizes of the input and `normalized_shape`")?;
    }
    for i in (1..3).filter(|&i| cx.has(i)) {
        cx.rank(i, &[dims.len()])?;
        for (have, want) in cx.shape(i).iter().zip(&dims) {
            let name = cx.op().ports[i].name;
            cx.same(have, want, &format!("sizes of `{name}` and `normalized_shape`"))?;
        }
    }
    Ok(vec![input.clone()])
}

fn feature_dims(s: &LoweringCx<'_>) -> Option<Vec<Dim>> {
    let shape = |i| s.ty(i).map(|t| t.shape.clone());
    Some(features(s, shape(0)?.rank(), shape).ok()?.1)
}

/// Whether all tensors have the dtype of the output, as torch requires.
fn one_dtype(s: &LoweringCx<'_>) -> bool {
    let Some(out) = s.out(0) else { return false };
    (0..3).filter_map(|i| s.ty(i)).all(|ty| ty.dtype == out.dtype)
}

/// MLX normalizes only over the last axis, and computes float64 in float32.
fn last_axis_of_mlx(s: &LoweringCx<'_>) -> Option<()> {
    let fits = one_dtype(s) && s.out(0)?.dtype != DType::F64 && feature_dims(s)?.len() == 1;
    fits.then_some(())
}

// --- over groups of channels -------------------------------------------------------------------------------

/// group normalization
pub static GROUP_NORM: OpDef = OpDef {
    name: "group_norm",
    doc: "Normalizes groups of neighboring channels of each example; input `[n, c, ...]`, weight and bias `[c]`.\n\n\
          Mean and biased variance are taken over `c / num_groups` channels and all axes after them. (Wu and He \
          2018)",
    ports: &[INPUT, WEIGHT, BIAS, attr("num_groups", Attr::Int, DefaultLit::Required), EPS],
    shape: ShapeRule::Fn(|cx| {
        check_rank(cx, 2)?;
        check_channels(cx, &[1, 2])?;
        let (input, groups) = (cx.shape(0), count(cx, 3)?);
        if let Some(c) = input[1].known().filter(|c| c % groups != 0) {
            let message = format!("{c} channels of group_norm do not divide into {groups} groups");
            return Err(Error::new(Code::BadArgument, message).help("choose groups that divide the channels"));
        }
        Ok(vec![input.clone()])
    }),
    expand: Some(|c| {
        let groups = Dim::Const(c.get(|c| count(c, 3)).max(1));
        vec![grouped(c, &groups)]
    }),
    lowering: Lowering {
        numpy: Template("_group_norm({0}, {1}, {2}, {num_groups}, {eps})"),
        torch: Function(|s| {
            let [x, bias, groups, eps] = [0, 2, 3, 4].map(|i| s.arg(i));
            let text = format!("F.group_norm({x}, {groups}, {}, {bias}, {eps})", weight_for_torch(s));
            one_dtype(s).then_some(text)
        }),
        ggml: Function(|s| super::ggml::grouped_norm(s, s.int(3).ok()?, s.f64(4).ok()?)),
        ..Lowering::NONE
    },
    cases: &["[2,6,3] [6] [6] num_groups=3", "[2,4,3,2] num_groups=1", "[2,4] [4] num_groups=2"],
    ..NORM
};

/// instance normalization
pub static INSTANCE_NORM: OpDef = OpDef {
    name: "instance_norm",
    doc: "Normalizes each channel of each example over the axes after it; input `[n, c, ...]`, weight and bias \
          `[c]`. (Ulyanov, Vedaldi and Lempitsky 2016)",
    ports: &[INPUT, WEIGHT, BIAS, EPS],
    shape: ShapeRule::Fn(|cx| {
        check_rank(cx, 3)?;
        check_channels(cx, &[1, 2])?;
        Ok(vec![cx.shape(0).clone()])
    }),
    expand: Some(|c| {
        let x = wide(c);
        let y = standardize(x, &Lit::tuple(2..x.rank()), c.x[3]);
        vec![affine(y, c.x[1], c.x[2], &per_channel(x)).cast(result(c))]
    }),
    lowering: Lowering {
        torch: Function(|s| {
            let places = s.ty(0)?.shape.iter().skip(2).fold(Dim::ONE, |n, d| &n * d);
            // torch raises an error for a single value per channel.
            let fits = one_dtype(s) && places.known().is_some_and(|n| n > 1);
            let ([x, bias, eps], weight) = ([0, 2, 3].map(|i| s.arg(i)), weight_for_torch(s));
            fits.then(|| format!("F.instance_norm({x}, weight={weight}, bias={bias}, eps={eps})"))
        }),
        ggml: Function(|s| super::ggml::grouped_norm(s, s.ty(0)?.shape[1].known()?, s.f64(3).ok()?)),
        onnx: Function(super::onnx::instance_norm),
        ..Lowering::NONE
    },
    cases: &["[2,3,5] [3] [3]", "[2,3,4,2]"],
    ..NORM
};

/// The weight. On CUDA, PyTorch cannot differentiate by a bias that is alone.
fn weight_for_torch(s: &LoweringCx<'_>) -> String {
    let is_bias_alone = s.ty(1).is_none() && s.ty(2).is_some();
    if is_bias_alone { format!("torch.ones_like({})", s.arg(2)) } else { s.arg(1).to_owned() }
}

fn grouped<'a>(c: &ExpandCx<'a>, groups: &Dim) -> V<'a> {
    let x = wide(c);
    let shape = x.shape();
    let channels = x.dim(1).floor_div(groups);
    let elements = shape.iter().skip(2).fold(channels, |n, d| &n * d);
    let split = x.reshape([x.dim(0), groups.clone(), elements]);
    let y = standardize(split, &Lit::int(-1), c.x[4]);
    let y = y.reshape(shape.0.to_vec());
    affine(y, c.x[1], c.x[2], &per_channel(x)).cast(result(c))
}

// --- to unit length ----------------------------------------------------------------------------------------

/// vectors of length 1
pub static NORMALIZE: OpDef = OpDef {
    name: "normalize",
    doc: "Vectors along `axis` (one or several) scaled to Euclidean length 1: `input / max(‖input‖, eps)`. Its \
          gradient is finite at 0.",
    aliases: &["l2_normalize"],
    ports: &[
        INPUT,
        attr("axis", Attr::Ints, DefaultLit::Int(-1)),
        attr("eps", Attr::Float, DefaultLit::Float(1e-12)),
    ],
    shape: ShapeRule::Fn(|cx| {
        cx.axes(1, cx.shape(0).rank())?;
        Ok(vec![cx.shape(0).clone()])
    }),
    expand: Some(|c| {
        let x = wide(c);
        // The argument of the root is bounded away from 0, where its slope is infinite.
        let least = c.get(|c| c.f64(2)).powi(2).max(f64::from(f32::MIN_POSITIVE));
        let squares = x.square().sum(c.x[1], true);
        vec![(x * squares.maximum(least).rsqrt()).cast(result(c))]
    }),
    forms: &[
        form("input / maximum(sqrt(sum(input ** 2, axis)), eps)"),
        form("input / clip(sqrt(sum(input ** 2, axis)), eps, none)"),
    ],
    cases: &["[2,3]", "[2,3,4] axis=1", "[2,3,4] axis=(0,-1) eps=0.5"],
    ..NORM
};

static SIMILARITY_PORTS: &[Port] = &[
    tensor_of("left", Kinds::NUMBER),
    tensor_of("right", Kinds::NUMBER),
    attr("axis", Attr::Int, DefaultLit::Int(1)),
    attr("eps", Attr::Float, DefaultLit::Float(1e-8)),
];

/// The cosine of the angle between vectors
pub static COSINE_SIMILARITY: OpDef = OpDef {
    name: "cosine_similarity",
    doc: "Cosine of the angle between the vectors along `axis`: `Σ left·right / (max(‖left‖, eps) · max(‖right‖, \
          eps))`. The inputs broadcast; `axis` is one of their common shape. As in torch.",
    layer: "CosineSimilarity",
    ports: SIMILARITY_PORTS,
    shape: ShapeRule::Fn(|cx| {
        let mut shape = cx.broadcast(&[cx.shape(0), cx.shape(1)])?;
        let axis = cx.axis(2, shape.rank())?;
        shape.0.remove(axis);
        Ok(vec![shape])
    }),
    dtype: DTypeRule::Float,
    expand: Some(|c| {
        let shapes = [c.x[0].shape(), c.x[1].shape()];
        let common = match shape::broadcast(&[&shapes[0], &shapes[1]]) {
            Ok(common) => common,
            Err(error) => {
                c.cx.fail(error);
                return vec![c.x[0]];
            }
        };
        let unit = |x: V<'_>| {
            let shape = x.lit(Lit::tuple(common.iter().cloned()));
            let x = if x.shape() == common { x } else { x.broadcast_to(shape) };
            x.op(&NORMALIZE, &[x.lit(c.lit(2)), x.lit(c.lit(3))]).id()
        };
        let (left, right) = (c.cx.value(unit(c.x[0])), c.cx.value(unit(c.x[1])));
        vec![(left * right).sum(c.x[2], false)]
    }),
    cases: &[
        "[2,3] [2,3]",
        "[2,3,4] [3,1] axis=-2",
        "[4] [4] axis=0",
        "[2,4,1] [4,3] eps=0.5",
        "[0,3] [0,3]",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

#[cfg(test)]
mod tests;
