//! Reductions over axes, and positions of extremes.

use mithril_ir::{DType, Lit, Result, ValueId};

use super::{Table, one};
use crate::context::Value;
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("ReduceSum", |u| reduce(u, "sum")),
    ("ReduceMean", |u| reduce(u, "mean")),
    ("ReduceMax", |u| reduce(u, "max")),
    ("ReduceMin", |u| reduce(u, "min")),
    ("ReduceProd", |u| reduce(u, "prod")),
    ("ReduceL1", |u| {
        let x = u.x(0)?;
        let x = op!(u, "abs", x)?;
        reduced(u, "sum", x)
    }),
    ("ReduceL2", |u| {
        let x = u.x(0)?;
        let (dtype, squared) = (u.dtype(x), op!(u, "square", x)?);
        let total = over(u, "sum", squared)?;
        let root = op!(u, "sqrt", total)?;
        one(u.cast(root, dtype)?)
    }),
    ("ReduceSumSquare", |u| {
        let x = u.x(0)?;
        let x = op!(u, "square", x)?;
        reduced(u, "sum", x)
    }),
    ("ReduceLogSum", |u| {
        let x = u.x(0)?;
        let (dtype, total) = (u.dtype(x), over(u, "sum", x)?);
        let y = op!(u, "log", total)?;
        one(u.cast(y, dtype)?)
    }),
    ("ReduceLogSumExp", |u| {
        let x = u.x(0)?;
        let dtype = u.dtype(x);
        let x = if dtype.is_float() { x } else { u.cast(x, DType::F64)? };
        let y = over(u, "logsumexp", x)?;
        one(u.cast(y, dtype)?)
    }),
    ("ArgMax", |u| place(u, "argmax")),
    ("ArgMin", |u| place(u, "argmin")),
    ("TopK", top_k),
];

fn reduce(u: &mut Use<'_>, name: &str) -> Outputs {
    let x = u.x(0)?;
    let name = match (u.dtype(x), name) {
        (DType::Bool, "max") => "any",
        (DType::Bool, "min") => "all",
        _ => name,
    };
    reduced(u, name, x)
}

/// The result has the dtype of the input.
fn reduced(u: &mut Use<'_>, name: &str, x: ValueId) -> Outputs {
    let dtype = u.dtype(x);
    let y = over(u, name, x)?;
    one(u.cast(y, dtype)?)
}

/// Reduces over the axes that the node names, in an attribute or by its second input.
fn over(u: &mut Use<'_>, name: &str, x: ValueId) -> Result<ValueId> {
    let axes = match u.ints("axes")? {
        Some(axes) => Some(axes),
        None if u.has(1) => Some(u.numbers(1)?),
        None => None,
    };
    let axes = axes.filter(|axes| !axes.is_empty());
    let keeps_all = u.flag("noop_with_empty_axes", false)?;
    let axis: Lit = match axes {
        Some(axes) => axes.into(),
        None if keeps_all => Vec::<i64>::new().into(),
        None => Lit::None,
    };
    let keeps = u.flag("keepdims", true)?;
    if let ("max" | "min" | "logsumexp", Some(value)) = (name, nothing(u, x, name)) {
        // Ours have no value for nothing, ONNX the end of the range.
        let total = op!(u, "sum", x, axis, keeps)?;
        let (shape, dtype) = (u.shape(total).to_vec(), u.dtype(x));
        return op!(u, "full", shape, value, dtype);
    }
    op!(u, name, x, axis, keeps)
}

/// The extreme of no elements, if there are none.
fn nothing(u: &Use<'_>, x: ValueId, name: &str) -> Option<Lit> {
    if !u.shape(x).iter().any(|n| n.is(0)) {
        return None;
    }
    let most = name != "min";
    Some(match u.dtype(x).int_range() {
        Some((least, largest)) => if most { least } else { largest }.into(),
        None => if most { f64::NEG_INFINITY } else { f64::INFINITY }.into(),
    })
}

fn place(u: &mut Use<'_>, name: &str) -> Outputs {
    let (x, axis, keeps) = (u.x(0)?, u.int("axis", 0)?, u.flag("keepdims", true)?);
    if !u.flag("select_last_index", false)? {
        return one(op!(u, name, x, axis, keeps)?);
    }
    let size = u.shape(x)[Use::axis(axis, u.rank(x))?].clone();
    let reversed = op!(u, "flip", x, axis)?;
    let place = op!(u, name, reversed, axis, keeps)?;
    one(op!(u, "subtract", &size - &1.into(), place)?)
}

fn top_k(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    // They are in order always.
    u.ignore(&["sorted"]);
    let k: Lit = match u.optional_int("k")? {
        Some(k) => k.into(),
        None => u.dims(1)?.first().cloned().map_or(Lit::None, Lit::from),
    };
    let (axis, largest) = (u.int("axis", -1)?, u.flag("largest", true)?);
    let args = [x, u.cx.lit(k), u.cx.lit(axis), u.cx.lit(largest)];
    Ok(u.outputs("topk", &args)?.into_iter().map(Value::Graph).collect())
}
