//! Tensors that are made of nothing but numbers.

use mithril_ir::{DType, Dim, Lit, Result, Scalar, Tensor};

use super::elementwise::vector;
use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("Range", range),
    ("EyeLike", eye_like),
    ("Trilu", |u| {
        let x = u.x(0)?;
        let k = if u.has(1) { u.number(1)? as i64 } else { 0 };
        let name = if u.flag("upper", true)? { "triu" } else { "tril" };
        one(op!(u, name, x, k)?)
    }),
];

fn constant(u: &mut Use<'_>) -> Outputs {
    let floats = |values: &[f64]| vector(values, DType::F32);
    if let Some(value) = u.tensor_value("value")? {
        return Ok(vec![value]);
    }
    let tensor = if let Some(x) = u.optional_float("value_float")? {
        Tensor::scalar(DType::F32, x)
    } else if let Some(n) = u.optional_int("value_int")? {
        Tensor::scalar(DType::I64, n)
    } else if let Some(values) = u.floats("value_floats") {
        floats(&values)
    } else if let Some(values) = u.ints("value_ints")? {
        Tensor::of(&[values.len()], values)?
    } else {
        return Err(Use::refuse("its value is sparse, or a text"));
    };
    one(u.cx.lit(tensor))
}

fn constant_of_shape(u: &mut Use<'_>) -> Outputs {
    let sizes = u.dims(0)?;
    let value = u.tensor("value")?.unwrap_or_else(|| Tensor::full(DType::F32, &[1], 0.0));
    if value.len() != 1 {
        return Err(malformed("its value is not one number"));
    }
    let number: Lit = match value.get(0) {
        Scalar::Bool(b) => b.into(),
        Scalar::Int(n) => n.into(),
        Scalar::Float(x) => x.into(),
    };
    one(op!(u, "full", sizes, number, value.dtype())?)
}

fn range(u: &mut Use<'_>) -> Outputs {
    let first = u.x(0)?;
    let dtype = u.dtype(first);
    let mut bounds: Vec<Lit> = Vec::new();
    for i in 0..3 {
        bounds.push(if dtype.is_float() {
            u.number(i)?.into()
        } else {
            let dims = u.dims(i)?;
            let [dim] = <[Dim; 1]>::try_from(dims).map_err(|_| malformed("a bound is not one number"))?;
            dim.into()
        });
    }
    let [start, stop, step] = <[Lit; 3]>::try_from(bounds).map_err(|_| malformed("a bound is missing"))?;
    one(op!(u, "arange", start, stop, step, dtype)?)
}

fn eye_like(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let dtype = u.dtype_of("dtype")?.unwrap_or(u.dtype(x));
    let [n, m] = &u.shape(x)[..] else { return Err(malformed("its input is not a matrix")) };
    let (n, m, k) = (n.clone(), m.clone(), u.int("k", 0)?);
    one(op!(u, "eye", n, m, k, dtype)?)
}
