//! Normalizations.

use mithril_ir::graph::Def;
use mithril_ir::{DType, Dim, Lit, Result, Role, ValueId};

use super::{Table, one};
use crate::context::Value;
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("BatchNormalization", batch_norm),
    ("LayerNormalization", layer_norm),
    ("RMSNormalization", rms_norm),
    // What the optimizer of ONNX Runtime writes, in this domain.
    ("SimplifiedLayerNormalization", rms_norm),
    ("InstanceNormalization", |u| {
        let (x, weight, bias, eps) = (u.x(0)?, u.x(1)?, u.x(2)?, u.float("epsilon", 1e-5)?);
        one(op!(u, "instance_norm", x, weight, bias, eps)?)
    }),
    ("GroupNormalization", group_norm),
    ("LRN", local_response),
    ("LpNormalization", lp_norm),
    ("MeanVarianceNormalization", |u| {
        let x = u.x(0)?;
        let axes = u.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
        let mean = op!(u, "mean", x, axes.clone(), true)?;
        let deviation = op!(u, "std", x, axes, true, 0.0)?;
        let centered = op!(u, "subtract", x, mean)?;
        let deviation = op!(u, "add", deviation, 1e-9)?;
        one(op!(u, "divide", centered, deviation)?)
    }),
];

fn batch_norm(u: &mut Use<'_>) -> Outputs {
    if u.flag("training_mode", false)? {
        return Err(Use::refuse("it is in training mode: export the model for inference"));
    }
    if u.opset < 9 && !u.flag("spatial", true)? {
        return Err(Use::refuse("it normalizes each element of its own (spatial=0)"));
    }
    u.ignore(&["momentum"]);
    let all = u.all()?;
    let [x, weight, bias, mean, var] = all[..] else {
        return Err(crate::context::malformed(format!("it has {} inputs", all.len())));
    };
    for v in [mean, var] {
        if matches!(u.cx.b.graph.value(v).def, Def::Input(Role::Param)) {
            u.cx.frozen.insert(v);
        }
    }
    let eps = u.float("epsilon", 1e-5)?;
    let dtype = u.dtype(x);
    let mut args = vec![x, weight, bias, mean, var];
    let wide = args.iter().map(|&v| u.dtype(v)).fold(dtype, DType::promote);
    for v in &mut args {
        *v = u.cast(*v, wide)?;
    }
    args.extend([u.cx.lit(false), u.cx.lit(0.1), u.cx.lit(eps)]);
    let y = u.op("batch_norm", &args)?;
    one(u.cast(y, dtype)?)
}

/// The axes from `axis` on, as the sizes that are normalized over.
fn normalized(u: &Use<'_>, x: ValueId) -> Result<(usize, Vec<Dim>)> {
    let shape = u.shape(x);
    let first = Use::axis(u.int("axis", -1)?, shape.rank())?;
    Ok((first, shape[first..].to_vec()))
}

/// A weight that broadcasts to the sizes that are normalized over has their shape.
fn shaped(u: &mut Use<'_>, v: Option<ValueId>, sizes: &[Dim]) -> Result<Option<ValueId>> {
    let Some(v) = v else { return Ok(None) };
    if *u.shape(v) == *sizes { Ok(Some(v)) } else { op!(u, "broadcast_to", v, sizes.to_vec()).map(Some) }
}

/// The dtype that statistics are computed in, by the attribute `stash_type`.
fn wide(u: &Use<'_>, x: ValueId) -> Result<DType> {
    let own = u.dtype(x);
    Ok(if u.int("stash_type", 1)? == 1 && matches!(own, DType::F16 | DType::BF16) { DType::F32 } else { own })
}

pub(super) fn layer_norm(u: &mut Use<'_>) -> Outputs {
    let (x, eps) = (u.x(0)?, u.float("epsilon", 1e-5)?);
    let (dtype, stash) = (u.dtype(x), wide(u, x)?);
    let (first, sizes) = normalized(u, x)?;
    let (weight, bias) = (u.optional(1)?, u.optional(2)?);
    let (weight, bias) = (shaped(u, weight, &sizes)?, shaped(u, bias, &sizes)?);
    let y = op!(u, "layer_norm", x, weight, bias, sizes, eps)?;
    let mut outputs = vec![Value::Graph(u.cast(y, dtype)?)];
    if u.node.output.len() > 1 {
        let axes: Vec<i64> = (first as i64..u.rank(x) as i64).collect();
        let x = u.cast(x, stash)?;
        let mean = op!(u, "mean", x, axes.clone(), true)?;
        let var = op!(u, "var", x, axes, true, 0.0)?;
        let var = op!(u, "add", var, eps)?;
        let inverse = op!(u, "rsqrt", var)?;
        outputs.extend([Value::Graph(mean), Value::Graph(inverse)]);
    }
    Ok(outputs)
}

pub(super) fn rms_norm(u: &mut Use<'_>) -> Outputs {
    let (x, eps) = (u.x(0)?, u.float("epsilon", 1e-5)?);
    u.ignore(&["stash_type"]);
    let dtype = u.dtype(x);
    let (_, sizes) = normalized(u, x)?;
    let weight = u.optional(1)?;
    let weight = shaped(u, weight, &sizes)?;
    let y = op!(u, "rms_norm", x, weight, sizes, eps)?;
    one(u.cast(y, dtype)?)
}

/// Before opset 21 weight and bias belong to the groups.
fn group_norm(u: &mut Use<'_>) -> Outputs {
    let (x, mut weight, mut bias) = (u.x(0)?, u.x(1)?, u.x(2)?);
    // Halves are computed in float32 always.
    u.ignore(&["stash_type"]);
    let (groups, eps) = (u.int("num_groups", 1)?, u.float("epsilon", 1e-5)?);
    if u.opset < 21 {
        let channels = u.shape(x).get(1).and_then(Dim::known).filter(|n| groups > 0 && n % groups == 0);
        let channels = channels.ok_or_else(|| {
            Use::refuse("its number of channels is not known, or no multiple of its groups")
        })?;
        for v in [&mut weight, &mut bias] {
            *v = op!(u, "repeat", *v, channels / groups, 0_i64)?;
        }
    }
    one(op!(u, "group_norm", x, weight, bias, groups, eps)?)
}

fn local_response(u: &mut Use<'_>) -> Outputs {
    let (x, size) = (u.x(0)?, u.int("size", 1)?);
    let (alpha, beta, bias) = (u.float("alpha", 1e-4)?, u.float("beta", 0.75)?, u.float("bias", 1.0)?);
    if size < 1 {
        return Err(crate::context::malformed(format!("the size is {size}")));
    }
    let squared = op!(u, "square", x)?;
    let before = (size - 1) / 2;
    let rank = u.rank(x);
    let pads = Lit::tuple(
        (0..rank).map(|i| Lit::from(if i == 1 { vec![before, size - 1 - before] } else { vec![0, 0] })),
    );
    let padded = op!(u, "pad", squared, pads, "constant", 0.0)?;
    let windows = op!(u, "unfold_axis", padded, 1_i64, size)?;
    let total = op!(u, "sum", windows, -1_i64)?;
    let scaled = op!(u, "multiply", total, alpha / size as f64)?;
    let base = op!(u, "add", scaled, bias)?;
    let divisor = op!(u, "power", base, beta)?;
    one(op!(u, "divide", x, divisor)?)
}

/// Vectors of length 0 stay as they are.
fn lp_norm(u: &mut Use<'_>) -> Outputs {
    let (x, axis, p) = (u.x(0)?, u.int("axis", -1)?, u.int("p", 2)?);
    let length = op!(u, "norm", x, p as f64, axis, true)?;
    let is_zero = op!(u, "equal", length, 0.0)?;
    let divisor = op!(u, "where", is_zero, 1.0, length)?;
    let dtype = u.dtype(x);
    let divisor = u.cast(divisor, dtype)?;
    one(op!(u, "divide", x, divisor)?)
}
