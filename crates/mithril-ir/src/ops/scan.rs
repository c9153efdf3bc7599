//! Running sums and products along an axis.

use crate::build::{GradCall, V};
use crate::dtype::DType;
use crate::error::Result;
use crate::interp::HostCall;
use crate::loops::{Argument, Expr, LoopCx, accumulator, sizes_around};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Spell, Text, Tolerance, attr,
    tensor,
};
use crate::ops::elementwise as e;
use crate::ops::reduce::{accumulated, is_half};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;
use crate::spell::SpellCx;
use crate::tensor::{Scalar, Tensor};

/// Rows of this file.
pub static OPS: &[&OpDef] = &[&CUMSUM, &CUMPROD];

static PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::Int, DefaultLit::Required),
    attr("exclusive", Attr::Bool, DefaultLit::Bool(false)),
    attr("reverse", Attr::Bool, DefaultLit::Bool(false)),
];

const fn scan(name: &'static str, doc: &'static str) -> OpDef {
    OpDef {
        name,
        doc,
        ports: PORTS,
        shape: ShapeRule::Fn(same_with_axis),
        dtype: DTypeRule::Fn(accumulated),
        tolerance: Tolerance::Contraction,
        cases: &[
            "[2,3] axis=1",
            "[2,3,4] axis=-2 reverse=true",
            "[4] axis=0 exclusive=true",
            "[2,3] axis=0 exclusive=true reverse=true",
            "[2,0] axis=1",
            "i64[5]<4 axis=0",
        ],
        ..BLANK
    }
}

/// The shape of the input, whose `axis` at port 1 has to exist.
pub(super) fn same_with_axis(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let input = cx.shape(0);
    cx.axis(1, input.rank())?;
    Ok(vec![input.clone(); cx.op().outputs.len()])
}

/// The positions of each line along `axis`.
pub(super) fn lines(
    shape: &[usize],
    axis: usize,
) -> impl Iterator<Item = impl DoubleEndedIterator<Item = usize>> {
    let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let outer: usize = shape[..axis].iter().product();
    (0..outer).flat_map(move |o| (0..inner).map(move |i| (0..n).map(move |k| (o * n + k) * inner + i)))
}

/// What a scan holds before the first element, and how an element enters it.
struct Running {
    float: (f64, fn(f64, f64) -> f64),
    int: (i64, fn(i64, i64) -> i64),
}

fn run(c: &HostCall<'_>, running: &Running) -> Result<Vec<Tensor>> {
    let x = c.tensor(0);
    let (axis, exclusive, reverse) = (c.axis(1, x.rank())?, c.bool(2)?, c.bool(3)?);
    let mut out = vec![Scalar::Int(0); x.len()];
    for line in lines(x.shape(), axis) {
        let mut line: Vec<usize> = line.collect();
        if reverse {
            line.reverse();
        }
        let (mut float, mut int) = (running.float.0, running.int.0);
        for at in line {
            let before = (float, int);
            match x.get(at) {
                Scalar::Float(x) => float = (running.float.1)(float, x),
                x => int = (running.int.1)(int, x.i64()),
            }
            let (float, int) = if exclusive { before } else { (float, int) };
            out[at] = if c.dtype().is_float() { Scalar::Float(float) } else { Scalar::Int(int) };
        }
    }
    Ok(vec![Tensor::build(c.dtype(), c.shape(), |i| out[i])])
}

/// The call of a prelude function.
fn scan_loops(c: &LoopCx<'_>, function: &str) -> Result<Vec<Expr>> {
    let wide = accumulator(c.out_dtype(0));
    let (outer, size, inner) = sizes_around(&c.shape(0), c.axis(1, c.rank(0))?);
    let (input, output) = (c.stored(0, wide), c.reserve(wide, c.out_shape(0)));
    let options = [c.bool(2)?, c.bool(3)?].map(i64::from);
    let mut args = vec![Argument::In(input), Argument::Out(output)];
    args.extend([outer, size, inner].into_iter().chain(options).map(Argument::Int));
    c.call(format!("{function}_{}", wide.short()), args, inner.max(1) as usize * 8);
    Ok(vec![c.output(0, |at| c.load(output, at).cast(c.out_dtype(0)))])
}

/// The function of the framework, or a helper of ours for what it lacks.
fn spelled(c: &SpellCx<'_>, name: &str) -> Option<String> {
    let (exclusive, reverse) = (c.bool(2).ok()?, c.bool(3).ok()?);
    let function = if exclusive || reverse { format!("_{name}") } else { format!("{}.{name}", c.xp) };
    let given = |word: &str, is: bool| if is { format!(", {word}=True") } else { String::new() };
    let (exclusive, reverse) = (given("exclusive", exclusive), given("reverse", reverse));
    let input = c.ty(0)?.dtype;
    let head =
        if is_half(input) && c.xp == "np" { format!("_wide({function}, ") } else { format!("{function}(") };
    let axis = if c.xp == "torch" { "dim" } else { "axis" };
    let dtype = if input.is_float() || input == DType::I64 {
        String::new()
    } else {
        format!(", dtype={}", c.dtype(DType::I64))
    };
    let (x, narrow) = if c.xp == "jnp" { widened(c)? } else { (c.arg(0).to_owned(), String::new()) };
    Some(format!("{head}{x}, {axis}={}{exclusive}{reverse}{dtype}){narrow}", c.arg(1)))
}

/// The operand, halves in float32, and what makes halves of the result: JAX and MLX would round after each step.
fn widened(c: &SpellCx<'_>) -> Option<(String, String)> {
    let (x, dtype) = (c.arg(0), c.ty(0)?.dtype);
    Some(if is_half(dtype) {
        let (wide, narrow) = (c.dtype(DType::F32), c.dtype(dtype));
        (format!("{x}.astype({wide})"), format!(".astype({narrow})"))
    } else {
        (x.to_owned(), String::new())
    })
}

fn mlx(c: &SpellCx<'_>, name: &str) -> Option<String> {
    let given = |word: &str, is: bool| if is { format!(", {word}") } else { String::new() };
    let (exclusive, reverse) =
        (given("inclusive=False", c.bool(2).ok()?), given("reverse=True", c.bool(3).ok()?));
    let (x, narrow) = widened(c)?;
    let wide = if c.ty(0)?.dtype.is_float() { "" } else { ".astype(mx.int64)" };
    Some(format!("mx.{name}({x}{wide}, axis={}{reverse}{exclusive}){narrow}", c.arg(1)))
}

/// `y_k = Σ_{j ≤ k} x_j`
pub static CUMSUM: OpDef = OpDef {
    eval: Some(Eval::Host(|c| run(c, &Running { float: (0.0, |a, b| a + b), int: (0, i64::wrapping_add) }))),
    grad: Grad::Formula(|v| vec![v.g.op(&CUMSUM, &[v.x[1], v.x[2], backwards(v)])]),
    spell: Spell {
        ggml: Text::F(super::ggml::cumsum),
        mlx: Text::F(|c| mlx(c, "cumsum")),
        py: Text::F(|c| spelled(c, "cumsum")),
        ..Spell::NONE
    },
    loops: Some(|c| scan_loops(c, "mithril_cumsum")),
    layer: "CumSum",
    aliases: &["cumulative_sum"],
    ..scan(
        "cumsum",
        "Running sum along `axis`: each element with all before it. `exclusive` leaves the element itself out, \
         `reverse` runs from the end. Integers and truth values add up in int64, halves in float32.",
    )
};

/// `y_k = Π_{j ≤ k} x_j`
pub static CUMPROD: OpDef = OpDef {
    eval: Some(Eval::Host(|c| run(c, &Running { float: (1.0, |a, b| a * b), int: (1, i64::wrapping_mul) }))),
    grad: Grad::Formula(cumprod_grad),
    spell: Spell {
        mlx: Text::F(|c| mlx(c, "cumprod")),
        py: Text::F(|c| spelled(c, "cumprod")),
        ..Spell::NONE
    },
    loops: Some(|c| scan_loops(c, "mithril_cumprod")),
    domain: (0.5, 2.0),
    layer: "CumProd",
    aliases: &["cumulative_prod"],
    ..scan(
        "cumprod",
        "Running product along `axis`: each element with all before it. `exclusive` leaves the element itself \
         out, `reverse` runs from the end. Integers and truth values multiply in int64, halves in float32. The gradient is right \
         also where elements are 0.",
    )
};

/// The opposite direction of the scan.
fn backwards<'a>(v: &GradCall<'a>) -> V<'a> {
    v.cx.lit(!v.get(|c| c.bool(3)))
}

/// Up to the first zero of a line, `Σ_k g_k y_k / x_i`. At that zero the products are taken without it, and
/// behind it everything is 0.
fn cumprod_grad<'a>(v: &GradCall<'a>) -> Vec<V<'a>> {
    let (x, axis, one) = (v.x[0], v.x[1], v.cx.lit(1.0));
    let later = |t: V<'a>| t.op(&CUMSUM, &[axis, v.x[2], backwards(v)]);
    let is_zero = x.op(&e::EQUAL, &[v.cx.lit(0.0)]);
    let zeros = is_zero.op(&CUMSUM, &[axis, v.cx.lit(false), v.x[3]]);
    let before = zeros.op(&e::EQUAL, &[v.cx.lit(0)]);
    let first = is_zero.op(&e::WHERE, &[zeros.op(&e::EQUAL, &[v.cx.lit(1)]), v.cx.lit(false)]);
    let without = first.op(&e::WHERE, &[one, x]).op(&CUMPROD, &[axis, v.x[2], v.x[3]]);
    let divisor = before.op(&e::WHERE, &[x, one]);
    let behind = first.op(&e::WHERE, &[later(v.g * without), v.cx.lit(0.0)]);
    vec![before.op(&e::WHERE, &[later(v.g * v.y) / divisor, behind])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reduce::tests::{check_gradient, f64s, run, values};

    #[test]
    fn all_directions() {
        let t = [("input", f64s(&[4], &[1.0, 2.0, 3.0, 4.0]))];
        let axis = ("axis", 0.into());
        let (exclusive, reverse) = (("exclusive", true.into()), ("reverse", true.into()));
        assert_eq!(values(&CUMSUM, &t, std::slice::from_ref(&axis)), [1.0, 3.0, 6.0, 10.0]);
        assert_eq!(values(&CUMSUM, &t, &[axis.clone(), exclusive.clone()]), [0.0, 1.0, 3.0, 6.0]);
        assert_eq!(values(&CUMSUM, &t, &[axis.clone(), reverse.clone()]), [10.0, 9.0, 7.0, 4.0]);
        assert_eq!(values(&CUMPROD, &t, std::slice::from_ref(&axis)), [1.0, 2.0, 6.0, 24.0]);
        assert_eq!(values(&CUMPROD, &t, &[axis, exclusive, reverse]), [24.0, 12.0, 4.0, 1.0]);
    }

    #[test]
    fn axes_and_dtypes() {
        let t = [("input", Tensor::of(&[2, 2], vec![100_i8, 100, 50, 50]))];
        let y = &run(&CUMSUM, &t, &[("axis", (-1).into())]).unwrap()[0];
        assert_eq!((y.dtype(), y.to_i64s()), (DType::I64, vec![100, 200, 50, 100]));
        let y = &run(&CUMSUM, &t, &[("axis", 0.into())]).unwrap()[0];
        assert_eq!(y.to_i64s(), [100, 100, 150, 150]);
        assert!(run(&CUMSUM, &t, &[("axis", 2.into())]).is_err());
    }

    #[test]
    fn gradients_agree_with_differences() {
        let cases = [
            [0.5, -1.5, 2.0, 0.7, -0.3],
            [0.5, 0.0, 2.0, 0.7, -0.3],
            [0.0, -1.5, 0.0, 0.7, 0.0],
            [0.5, -1.5, 0.0, 0.0, 1.1],
        ];
        for values in cases {
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let options =
                    [("axis", 1.into()), ("exclusive", exclusive.into()), ("reverse", reverse.into())];
                check_gradient(&CUMPROD, &[("input", f64s(&[1, 5], &values))], &options);
                check_gradient(&CUMSUM, &[("input", f64s(&[1, 5], &values))], &options);
            }
        }
    }
}
