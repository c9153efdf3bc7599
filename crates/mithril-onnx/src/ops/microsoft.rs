//! Ops of `com.microsoft`, as the optimizer of ONNX Runtime writes them.

use mithril_ir::Result;

use super::{Table, one};
use crate::context::Value;
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Gelu", |u| gelu(u, "none")),
    ("BiasGelu", |u| gelu(u, "none")),
    ("FastGelu", |u| gelu(u, "tanh")),
    ("QuickGelu", |u| {
        let (x, alpha) = (u.x(0)?, u.float("alpha", 1.702)?);
        let scaled = op!(u, "multiply", x, alpha)?;
        let gate = op!(u, "sigmoid", scaled)?;
        one(op!(u, "multiply", x, gate)?)
    }),
    ("SkipLayerNormalization", |u| skip_norm(u, true)),
    ("SkipSimplifiedLayerNormalization", |u| skip_norm(u, false)),
];

/// The second input is a bias that is added before.
fn gelu(u: &mut Use<'_>, how: &str) -> Outputs {
    let mut x = u.x(0)?;
    if let Some(bias) = u.optional(1)? {
        x = op!(u, "add", x, bias)?;
    }
    one(op!(u, "gelu", x, how)?)
}

/// The norm of a sum, which is the fourth output. A root mean square norm has no bias of its own.
fn skip_norm(u: &mut Use<'_>, centers: bool) -> Outputs {
    let (x, skip, weight) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let shift = if centers { u.optional(3)? } else { None };
    let bias = u.optional(if centers { 4 } else { 3 })?;
    let eps = u.float("epsilon", 1e-12)?;
    if u.node.output.iter().skip(1).take(2).any(|name| !name.is_empty()) {
        return Err(Use::refuse("its second and third outputs, mean and deviation, are not supported"));
    }
    let mut sum = op!(u, "add", x, skip)?;
    if let Some(bias) = bias {
        sum = op!(u, "add", sum, bias)?;
    }
    let sizes = vec![u.shape(sum)[u.rank(sum) - 1].clone()];
    let y = if centers {
        op!(u, "layer_norm", sum, weight, shift, sizes, eps)?
    } else {
        op!(u, "rms_norm", sum, weight, sizes, eps)?
    };
    Ok([y, y, y, sum].map(Value::Graph).to_vec())
}
