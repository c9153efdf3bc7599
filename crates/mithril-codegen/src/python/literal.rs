//! Literals, numbers and constant tensors as Python writes them.

use mithril_ir::dim::{Dim, Symbol};
use mithril_ir::lowering::{dim_text, tuple};
use mithril_ir::{DType, Lit, Scalar, Tensor};

use super::namer::python_string;
use super::targets::PythonTarget;

/// How a symbol is written.
pub type SymbolText<'a> = &'a dyn Fn(&Symbol) -> String;

/// A literal argument; `None` for what no argument can be (a dtype that the target lacks, an open mode).
pub fn argument(target: &PythonTarget, lit: &Lit, symbol: SymbolText<'_>) -> Option<String> {
    Some(match lit {
        Lit::None => "None".into(),
        Lit::Bool(b) => boolean(*b).into(),
        Lit::Int(dim) => dim_text(dim, symbol),
        Lit::Float(x) => float(*x, target.xp),
        Lit::Str(text) => python_string(text),
        Lit::DType(d) => Some((target.dtypes)(*d)).filter(|name| !name.is_empty())?.into(),
        Lit::Tuple(items) => {
            tuple(items.iter().map(|item| argument(target, item, symbol)).collect::<Option<Vec<_>>>()?)
        }
        Lit::Slice(parts) => {
            let parts = parts.iter().map(|p| argument(target, p, symbol)).collect::<Option<Vec<_>>>()?;
            format!("slice({})", parts.join(", "))
        }
        Lit::Ellipsis => "...".into(),
        Lit::Tensor(t) => integers(t),
        Lit::Training => return None,
    })
}

/// What stands between the brackets of a subscript: `:, 1:3, ...`.
pub fn subscript(target: &PythonTarget, lit: &Lit, symbol: SymbolText<'_>) -> Option<String> {
    match lit {
        Lit::Tuple(items) if items.len() > 1 => {
            let items = items.iter().map(|item| subscript(target, item, symbol));
            Some(items.collect::<Option<Vec<_>>>()?.join(", "))
        }
        Lit::Slice(parts) => {
            let part = |lit: &Lit| {
                if lit.is_none() { Some(String::new()) } else { argument(target, lit, symbol) }
            };
            let (start, stop) = (part(&parts[0])?, part(&parts[1])?);
            let step = match &parts[2] {
                Lit::None | Lit::Int(Dim::Const(1)) => String::new(),
                step => format!(":{}", part(step)?),
            };
            Some(format!("{start}:{stop}{step}"))
        }
        other => argument(target, other, symbol),
    }
}

/// A list of integers that came as a tensor.
fn integers(t: &Tensor) -> String {
    match t.rank() {
        0 => element(t.get(0), t.dtype(), ""),
        _ => tuple(t.to_ints().iter().map(ToString::to_string)),
    }
}

/// A boolean.
pub fn boolean(b: bool) -> &'static str {
    if b { "True" } else { "False" }
}

/// A float, so that it reads back to the same bits.
pub fn float(x: f64, xp: &str) -> String {
    if xp.is_empty() && !x.is_finite() {
        format!("float(\"{x}\")").to_lowercase()
    } else if x.is_nan() {
        format!("{xp}.nan")
    } else if x.is_infinite() {
        format!("{}{xp}.inf", if x < 0.0 { "-" } else { "" })
    } else {
        format!("{x:?}")
    }
}

/// An element of a tensor. A narrow float is written with as few digits as its dtype needs.
pub fn element(value: Scalar, dtype: DType, xp: &str) -> String {
    match value {
        Scalar::Bool(b) => boolean(b).into(),
        Scalar::Int(n) => n.to_string(),
        Scalar::Float(x) if x.is_finite() && dtype != DType::F64 => {
            let short = format!("{:?}", x as f32);
            // The reader rounds twice, to a double and then to the dtype; it has to come out the same.
            if short.parse::<f64>().is_ok_and(|d| f64::from(d as f32) == x) { short } else { float(x, xp) }
        }
        Scalar::Float(x) => float(x, xp),
    }
}

/// A number that stands beside tensors of `dtype`, converted as the interpreter does it.
pub fn number(target: &PythonTarget, lit: &Lit, dtype: DType, symbol: SymbolText<'_>) -> String {
    let text = match lit {
        Lit::Int(Dim::Const(n)) if !dtype.is_float() => {
            element(Tensor::scalar(dtype, *n).get(0), dtype, target.xp)
        }
        Lit::Int(dim) => dim_text(dim, symbol),
        // Not every framework subtracts booleans from numbers.
        Lit::Bool(b) if dtype != DType::Bool => i64::from(*b).to_string(),
        Lit::Bool(b) => boolean(*b).into(),
        Lit::Float(x) => float(*x, target.xp),
        _ => "None".into(),
    };
    if target.typed_numbers.contains(&dtype) { typed(target.scalar, &text, target, dtype) } else { text }
}

/// A number with its dtype.
pub fn typed_number(target: &PythonTarget, lit: &Lit, dtype: DType, symbol: SymbolText<'_>) -> String {
    let text = match lit {
        Lit::Int(dim) => dim_text(dim, symbol),
        Lit::Bool(b) => boolean(*b).into(),
        Lit::Float(x) => float(*x, target.xp),
        _ => "None".into(),
    };
    typed(target.scalar, &text, target, dtype)
}

/// A constant tensor as an expression.
pub fn tensor(target: &PythonTarget, t: &Tensor) -> String {
    let (dtype, xp) = (t.dtype(), target.xp);
    if dtype == DType::U64 && !target.takes_wide_integers {
        return format!("{}.astype({})", tensor(target, &t.cast(DType::I64)), (target.dtypes)(dtype));
    }
    if t.rank() == 0 {
        return typed(target.scalar, &element(t.get(0), dtype, xp), target, dtype);
    }
    if t.is_empty() && t.rank() > 1 {
        let flat = typed(target.array, "[]", target, dtype);
        return format!("{flat}.reshape{}", tuple(t.shape().iter().map(ToString::to_string)));
    }
    let mut position = 0;
    let nested = nested(t, 0, &mut position, xp);
    typed(target.array, &nested, target, dtype)
}

fn nested(t: &Tensor, axis: usize, position: &mut usize, xp: &str) -> String {
    let Some(&size) = t.shape().get(axis) else {
        *position += 1;
        return element(t.get(*position - 1), t.dtype(), xp);
    };
    let items: Vec<String> = (0..size).map(|_| nested(t, axis + 1, position, xp)).collect();
    format!("[{}]", items.join(", "))
}

fn typed(template: &str, value: &str, target: &PythonTarget, dtype: DType) -> String {
    template.replace("{dtype}", (target.dtypes)(dtype)).replace("{value}", value)
}

/// Whether a tensor without dimensions can be written as a plain number beside tensors of its dtype.
pub fn plain(target: &PythonTarget, t: &Tensor) -> Option<String> {
    let dtype = t.dtype();
    let is_plain = t.rank() == 0 && !target.typed_numbers.contains(&dtype);
    let value = is_plain.then(|| t.get(0))?;
    let fits = target.takes_wide_integers || dtype != DType::U64 || value.int() <= i64::MAX.into();
    fits.then(|| element(value, dtype, target.xp))
}

#[cfg(test)]
mod tests {
    use super::super::targets::NUMPY;
    use super::*;

    fn text(lit: impl Into<Lit>) -> String {
        argument(&NUMPY, &lit.into(), &ToString::to_string).unwrap()
    }

    #[test]
    fn literals_are_python() {
        assert_eq!(text(true), "True");
        assert_eq!(text(Lit::None), "None");
        assert_eq!(text([1]), "(1,)");
        assert_eq!(text([2, -1]), "(2, -1)");
        assert_eq!(text(Vec::<i64>::new()), "()");
        assert_eq!(text(f64::NEG_INFINITY), "-np.inf");
        assert_eq!(text(f64::NAN), "np.nan");
        assert_eq!(text(1e300), "1e300");
        assert_eq!(text(2.0), "2.0");
        assert_eq!(text(-0.0), "-0.0");
        assert_eq!(text(DType::Bool), "np.bool_");
        assert_eq!(text("a\"b"), r#""a\"b""#);
        assert_eq!(text(Dim::symbol("n").floor_div(&Dim::Const(2))), "n // 2");
    }

    #[test]
    fn subscripts_are_slices() {
        let slice = |a: Lit, b: Lit, c: i64| Lit::Slice(std::sync::Arc::new([a, b, Lit::int(c)]));
        let index = Lit::Tuple([slice(Lit::None, Lit::int(3), 1), Lit::Ellipsis, Lit::int(-1)].into());
        assert_eq!(subscript(&NUMPY, &index, &ToString::to_string).unwrap(), ":3, ..., -1");
        let back = slice(Lit::None, Lit::None, -1);
        assert_eq!(subscript(&NUMPY, &back, &ToString::to_string).unwrap(), "::-1");
        assert_eq!(argument(&NUMPY, &back, &ToString::to_string).unwrap(), "slice(None, None, -1)");
    }

    #[test]
    fn constants_keep_dtype_and_bits() {
        assert_eq!(tensor(&NUMPY, &Tensor::scalar(DType::F32, 0.1)), "np.float32(0.1)");
        assert_eq!(tensor(&NUMPY, &Tensor::scalar(DType::F64, 0.1)), "np.float64(0.1)");
        assert_eq!(tensor(&NUMPY, &Tensor::scalar(DType::BF16, -2.0)), "bfloat16(-2.0)");
        let t = Tensor::from_parts(&[2, 2], vec![1_i64, 2, 3, 4]);
        assert_eq!(tensor(&NUMPY, &t), "np.array([[1, 2], [3, 4]], dtype=np.int64)");
        let t = Tensor::from_parts(&[0, 3], Vec::<f32>::new());
        assert_eq!(tensor(&NUMPY, &t), "np.array([], dtype=np.float32).reshape(0, 3)");
        let t = Tensor::from_parts(&[1], vec![true]);
        assert_eq!(tensor(&NUMPY, &t), "np.array([True], dtype=np.bool_)");
    }

    #[test]
    fn numbers_take_the_dtype_beside_them() {
        let beside = |lit: Lit, dtype| number(&NUMPY, &lit, dtype, &ToString::to_string);
        assert_eq!(beside(Lit::int(300), DType::U8), "44");
        assert_eq!(beside(Lit::int(-1), DType::F32), "-1");
        assert_eq!(beside(Lit::Float(0.5), DType::BF16), "bfloat16(0.5)");
    }
}
