//! Convolutions.

use mithril_ir::{Dim, Lit, Result, Shape, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[("Conv", conv), ("ConvTranspose", conv_transpose)];

/// One number for each spatial axis; one for all of them if they are the same.
pub(super) fn each(values: &[i64]) -> Lit {
    match values {
        [first, rest @ ..] if rest.iter().all(|n| n == first) => (*first).into(),
        _ => values.to_vec().into(),
    }
}

/// Pads of ONNX, all begins and then all ends, as one number, one per axis, or pairs.
pub(super) fn pairs(pads: &[i64]) -> Lit {
    let rank = pads.len() / 2;
    let (begins, ends) = pads.split_at(rank);
    if begins == ends {
        return each(begins);
    }
    whole_pairs(pads)
}

/// The same as pairs always, which ops of windows take.
pub(super) fn whole_pairs(pads: &[i64]) -> Lit {
    let (begins, ends) = pads.split_at(pads.len() / 2);
    Lit::tuple(begins.iter().zip(ends).map(|(&a, &b)| Lit::from(vec![a, b])))
}

/// How a window moves.
pub(super) struct Window {
    pub kernel: Vec<i64>,
    pub stride: Vec<i64>,
    pub dilation: Vec<i64>,
}

impl Window {
    pub fn read(u: &Use<'_>, kernel: Vec<i64>) -> Result<Self> {
        let rank = kernel.len();
        let list = |name: &str| -> Result<Vec<i64>> {
            let sizes = u.ints(name)?.unwrap_or_else(|| vec![1; rank]);
            if sizes.len() == rank && sizes.iter().all(|&n| n > 0) {
                Ok(sizes)
            } else {
                Err(malformed(format!("`{name}` is {sizes:?} for {rank} axes")))
            }
        };
        if kernel.iter().any(|&n| n < 1) {
            return Err(malformed(format!("the kernel has the shape {kernel:?}")));
        }
        Ok(Self { stride: list("strides")?, dilation: list("dilations")?, kernel })
    }
    /// The pads of a node, all begins and then all ends.
    pub fn pads(&self, u: &Use<'_>, input: &Shape) -> Result<Vec<i64>> {
        let rank = self.kernel.len();
        match u.text("auto_pad", "NOTSET")?.as_str() {
            "NOTSET" | "" => {
                let pads = u.ints("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
                if pads.len() == 2 * rank { Ok(pads) } else { Err(malformed(format!("pads are {pads:?}"))) }
            }
            "VALID" => {
                u.ignore(&["pads"]);
                Ok(vec![0; 2 * rank])
            }
            how @ ("SAME_UPPER" | "SAME_LOWER") => {
                u.ignore(&["pads"]);
                let mut pads = vec![0; 2 * rank];
                for i in 0..rank {
                    let reach = self.dilation[i].saturating_mul(self.kernel[i] - 1).saturating_add(1);
                    let total = if self.stride[i] == 1 {
                        reach - 1
                    } else {
                        let size = input.get(i + 2).and_then(Dim::known).ok_or_else(|| {
                            Use::refuse(format!(
                                "auto_pad {how} with strides needs sizes that are known: give shapes"
                            ))
                        })?;
                        let count = (size + self.stride[i] - 1) / self.stride[i];
                        ((count - 1).saturating_mul(self.stride[i]).saturating_add(reach) - size).max(0)
                    };
                    let less = total / 2;
                    let (begin, end) =
                        if how == "SAME_UPPER" { (less, total - less) } else { (total - less, less) };
                    (pads[i], pads[rank + i]) = (begin, end);
                }
                Ok(pads)
            }
            other => Err(malformed(format!("auto_pad is {other:?}"))),
        }
    }
}

/// The spatial sizes of a kernel.
pub(super) fn kernel(u: &Use<'_>, weight: ValueId) -> Result<Vec<i64>> {
    u.ignore(&["kernel_shape"]);
    let shape = u.shape(weight);
    if shape.rank() < 3 {
        return Err(malformed("the weight has no spatial axis"));
    }
    let sizes: Option<Vec<i64>> = shape[2..].iter().map(Dim::known).collect();
    let sizes = sizes.ok_or_else(|| Use::refuse("the size of its kernel is a symbol"))?;
    if sizes.len() > 3 {
        return Err(Use::refuse(format!("it has {} spatial axes; at most 3 are supported", sizes.len())));
    }
    Ok(sizes)
}

fn conv(u: &mut Use<'_>) -> Outputs {
    let (x, weight, bias) = (u.x(0)?, u.x(1)?, u.optional(2)?);
    one(convolved(u, x, weight, bias)?)
}

/// A convolution with the attributes of the node.
pub(super) fn convolved(
    u: &mut Use<'_>,
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId> {
    let window = Window::read(u, kernel(u, weight)?)?;
    let rank = window.kernel.len();
    if u.rank(x) != rank + 2 {
        return Err(malformed("input and weight have a different number of axes"));
    }
    let pads = window.pads(u, &u.shape(x))?;
    let groups = u.int("group", 1)?;
    let name = format!("conv{rank}d");
    op!(u, &name, x, weight, bias, each(&window.stride), pairs(&pads), each(&window.dilation), groups)
}

fn conv_transpose(u: &mut Use<'_>) -> Outputs {
    let (x, weight, bias) = (u.x(0)?, u.x(1)?, u.optional(2)?);
    let window = Window::read(u, kernel(u, weight)?)?;
    let rank = window.kernel.len();
    let list = |name: &str| -> Result<Vec<i64>> {
        let sizes = u.ints(name)?.unwrap_or_else(|| vec![0; rank]);
        if sizes.len() == rank { Ok(sizes) } else { Err(malformed(format!("`{name}` is {sizes:?}"))) }
    };
    let mut more = list("output_padding")?;
    let how = u.text("auto_pad", "NOTSET")?;
    let output_shape = u.ints("output_shape")?;
    let mut pads = vec![0; 2 * rank];
    if output_shape.is_some() || how.starts_with("SAME") {
        u.ignore(&["pads"]);
        let shape = u.shape(x);
        for i in 0..rank {
            let size = shape.get(i + 2).and_then(Dim::known);
            let target = match (&output_shape, size) {
                (Some(sizes), _) => sizes.get(sizes.len().wrapping_sub(rank) + i).copied(),
                (None, size) => size.map(|n| n * window.stride[i]),
            };
            let (Some(size), Some(target)) = (size, target) else {
                return Err(Use::refuse("the shape of its output needs sizes that are known: give shapes"));
            };
            let reach = window.dilation[i].saturating_mul(window.kernel[i] - 1).saturating_add(1);
            let total =
                (size - 1).saturating_mul(window.stride[i]).saturating_add(more[i]).saturating_add(reach)
                    - target;
            // Too few elements: the rest is added at the end.
            more[i] += (-total).max(0);
            let total = total.max(0);
            let less = total / 2;
            let (begin, end) = if how == "SAME_UPPER" { (less, total - less) } else { (total - less, less) };
            (pads[i], pads[rank + i]) = (begin, end);
        }
    } else {
        pads = window.pads(u, &u.shape(x))?;
    }
    // Ours has less output padding than stride or dilation; more is the bias at places that no input reaches.
    if (0..rank).any(|i| more[i] != 0 && more[i] >= window.stride[i].max(window.dilation[i])) {
        return Err(Use::refuse("its output padding is not smaller than stride or dilation"));
    }
    let groups = u.int("group", 1)?;
    let name = format!("conv_transpose{rank}d");
    let (stride, dilation) = (each(&window.stride), each(&window.dilation));
    one(op!(u, &name, x, weight, bias, stride, pairs(&pads), each(&more), groups, dilation)?)
}
