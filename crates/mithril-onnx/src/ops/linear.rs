//! Products of matrices.

use mithril_ir::{Result, ValueId};

use super::{Table, one};
use crate::context::malformed;
use crate::node::{Use, op};

pub static OPS: Table = &[
    ("MatMul", |u| {
        let (x, y) = (u.x(0)?, u.x(1)?);
        let (dtype, y) = (u.dtype(x), op!(u, "matmul", x, y)?);
        one(u.cast(y, dtype)?)
    }),
    ("Gemm", |u| one(product(u)?)),
    ("Einsum", |u| {
        let equation = u.text("equation", "")?.replace(' ', "");
        let mut args = vec![u.cx.lit(&*equation)];
        args.extend(u.all()?);
        one(u.op("einsum", &args)?)
    }),
];

/// `alpha · A · B + beta · C`, either matrix transposed.
pub(super) fn product(u: &mut Use<'_>) -> Result<ValueId> {
    let (a, b, c) = (u.x(0)?, u.x(1)?, u.optional(2)?);
    let (alpha, beta) = (u.float("alpha", 1.0)?, u.float("beta", 1.0)?);
    let (turn_a, turn_b) = (u.flag("transA", false)?, u.flag("transB", false)?);
    if u.rank(a) != 2 || u.rank(b) != 2 {
        return Err(malformed("its factors are not matrices"));
    }
    let a = if turn_a { op!(u, "matrix_transpose", a)? } else { a };
    let is_float = u.dtype(a).is_float();
    let is_bias = c.is_none_or(|c| u.rank(c) == 1 && u.shape(c)[0] == u.shape(b)[usize::from(!turn_b)]);
    if turn_b && is_float && alpha == 1.0 && beta == 1.0 && is_bias {
        return op!(u, "linear", a, b, c);
    }
    let b = if turn_b { op!(u, "matrix_transpose", b)? } else { b };
    let product = op!(u, "matmul", a, b)?;
    let product = scaled(u, product, alpha)?;
    let Some(c) = c else { return Ok(product) };
    let c = scaled(u, c, beta)?;
    op!(u, "add", product, c)
}

fn scaled(u: &mut Use<'_>, x: ValueId, factor: f64) -> Result<ValueId> {
    if factor == 1.0 {
        return Ok(x);
    }
    let dtype = u.dtype(x);
    let y = op!(u, "multiply", x, factor)?;
    u.cast(y, dtype)
}
