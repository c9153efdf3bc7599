//! Functions of the host program: calls that are opaque to the compiler.
//!
//! The op is not listed in [`super::FAMILIES`]: users do not name it, and tests cannot run it without a host function. It
//! comes from functions that cannot be traced, and from gradient methods of user-defined backends.

use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{GradCx, V};
use crate::interp::EvalCx;
use crate::literal::Lit;
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, PortKind, ShapeRule, Tolerance, attr,
};
use crate::pattern;
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Position of the first tensor.
pub const FIRST: usize = 6;

static PORTS: &[Port] = &[
    attr("function", Attr::Text, DefaultLit::Required),
    attr("shape", Attr::Any, DefaultLit::None),
    attr("dtype", Attr::Any, DefaultLit::None),
    attr("sections", Attr::Int, DefaultLit::Int(1)),
    attr("backward", Attr::Any, DefaultLit::None),
    attr("options", Attr::Any, DefaultLit::None),
    Port { name: "inputs", kind: PortKind::Variadic(Kinds::ANY), default: DefaultLit::Required },
];

/// a function of the host program
pub static HOST_CALL: OpDef = OpDef {
    name: "host_call",
    doc: "A function of the host program, known by a name in a table that the program is given.\n\n`shape` is none \
          (all results have the shape of the first input), a pattern such as `\"b k -> b 10\"`, or one shape per \
          result; `dtype` is none (that of the first input), one, or one per result. `sections` is the number of \
          results, `backward` the name of the function for the gradient: it is given the cotangents of the \
          results, the inputs and the results, and returns a gradient per float input. `options` are pairs of \
          names and values that are passed on. The function must be pure: equal calls may become one.",
    ports: PORTS,
    shape: ShapeRule::Fn(shape),
    dtype: DTypeRule::Fn(dtype),
    eval: Some(Eval::Tensors(refuse)),
    grad: Grad::Formula(gradient),
    lowering: Lowering { py: Function(spell), custom: Function(spell), ..Lowering::NONE },
    tolerance: Tolerance::Exact,
    ..BLANK
};

fn count(cx: &(impl Attrs + ?Sized)) -> Result<usize> {
    let n = cx.int(3)?;
    usize::try_from(n)
        .ok()
        .filter(|n| (1..=1 << 16).contains(n))
        .ok_or_else(|| cx.bad(3, &cx.lit(3), "a number"))
}

fn shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let n = count(cx)?;
    let shapes = match cx.lit(1) {
        Lit::None => vec![cx.shape(FIRST).clone(); n],
        Lit::Str(text) => pattern::apply(&text, cx)?,
        Lit::Tuple(all)
            if all.iter().all(|item| matches!(item, Lit::Tuple(_))) && n == all.len() && n > 0 =>
        {
            all.iter().map(|lit| sizes(cx, lit)).collect::<Result<_>>()?
        }
        lit => vec![sizes(cx, &lit)?; n],
    };
    if shapes.len() == n { Ok(shapes) } else { Err(cx.bad(1, &cx.lit(1), "one shape per result")) }
}

fn sizes(cx: &ShapeCx<'_>, lit: &Lit) -> Result<Shape> {
    let Lit::Tuple(items) = lit else { return Err(cx.bad(1, lit, "a shape")) };
    let dims = items.iter().map(|item| match item {
        Lit::Int(d) => Ok(d.clone()),
        _ => Err(cx.bad(1, lit, "a shape: a tuple of integers")),
    });
    Ok(Shape::of(dims.collect::<Result<Vec<_>>>()?))
}

fn dtype(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let n = count(cx)?;
    let read = |lit: &Lit| match lit {
        Lit::DType(d) => Ok(*d),
        Lit::Str(name) => DType::parse(name),
        other => Err(cx.bad(2, other, "a dtype")),
    };
    let out = match cx.lit(2) {
        Lit::None => vec![cx.dtype(FIRST).unwrap_or(cx.float); n],
        Lit::Tuple(all) => all.iter().map(read).collect::<Result<_>>()?,
        lit => vec![read(&lit)?; n],
    };
    if out.len() == n { Ok(DTypes::keep(out)) } else { Err(cx.bad(2, &cx.lit(2), "one dtype per result")) }
}

fn refuse(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let name = call.text(0)?;
    let message = format!("the interpreter cannot call the Python function `{name}`");
    Err(Error::new(Code::Unsupported, message)
        .help("write it with ops, so that it can be traced, or use a backend that runs Python"))
}

fn gradient<'a>(c: &GradCx<'a>) -> Vec<V<'a>> {
    let Lit::Str(backward) = c.lit(4) else {
        let message = format!("the function `{}` has no gradient", c.get(|c| c.text(0)));
        c.cx.fail(Error::new(Code::NoGradient, message).help(
            "give it one with backward=, write it with ops, or use a backend that differentiates natively",
        ));
        return vec![c.none(); c.x.len()];
    };
    let inputs = &c.x[FIRST..];
    let floats: Vec<V<'a>> = inputs.iter().copied().filter(|x| x.dtype().is_float()).collect();
    let gradients = call(c.cx, &backward, c.lit(5), &floats, &[&c.gs, inputs, &c.ys]);
    let mut gradients = gradients.into_iter();
    let cotangents = inputs
        .iter()
        .map(|x| if x.dtype().is_float() { gradients.next().unwrap_or_else(|| c.none()) } else { c.none() });
    std::iter::repeat_n(c.none(), FIRST).chain(cotangents).collect()
}

/// A call of a function whose results have the types of given values.
pub fn call<'a>(
    cx: &'a crate::formula::Cx,
    function: &str,
    options: Lit,
    like: &[V<'a>],
    groups: &[&[V<'a>]],
) -> Vec<V<'a>> {
    let shapes = like.iter().map(|x| Lit::tuple(x.shape().iter().cloned()));
    let dtypes = like.iter().map(|x| Lit::DType(x.dtype()));
    let mut args = vec![
        cx.lit(Lit::text(function)),
        cx.lit(Lit::Tuple(shapes.collect())),
        cx.lit(Lit::Tuple(dtypes.collect())),
        cx.lit(Lit::int(like.len() as i64)),
        cx.none(),
        cx.lit(options),
    ];
    args.extend(groups.iter().copied().flatten().copied());
    cx.apply(&HOST_CALL, &args)
}

fn spell(s: &LoweringCx<'_>) -> Option<String> {
    let outputs: Vec<String> = (0..s.node.outputs.len())
        .map(|i| s.out(i).map(|ty| format!("({}, \"{}\")", s.dims(&ty.shape), ty.dtype.name())))
        .collect::<Option<_>>()?;
    let tensors = s.args.get(FIRST..).unwrap_or_default().join(", ");
    let options = if s.absent(5) { String::new() } else { format!(", options=dict({})", s.arg(5)) };
    let call = format!("host_call({}, [{}], {tensors}{options})", s.arg(0), outputs.join(", "));
    // A single result is not a tuple.
    Some(if outputs.len() == 1 { format!("{call}[0]") } else { call })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::dim::Dim;
    use crate::graph::{Role, TensorType};

    fn build(args: Vec<Lit>) -> Result<Vec<String>> {
        let mut b = Builder::default();
        let ty = TensorType { dtype: DType::F32, shape: Shape::of([Dim::symbol("n"), Dim::Const(3)]) };
        let x = b.graph.add_input("x", Role::Data, ty);
        let mut ids: Vec<_> = args.into_iter().map(|lit| b.lit(lit)).collect();
        ids.push(x);
        let outputs = b.push(&HOST_CALL, &ids)?;
        Ok(outputs.iter().filter_map(|&v| b.graph.ty(v)).map(ToString::to_string).collect())
    }

    #[test]
    fn shapes_and_dtypes_are_as_declared() {
        let with = |shape: Lit, dtype: Lit, n: i64| {
            build(vec![Lit::text("f"), shape, dtype, Lit::int(n), Lit::None, Lit::None])
        };
        assert_eq!(with(Lit::None, Lit::None, 1).unwrap(), ["f32[n, 3]"]);
        assert_eq!(
            with(Lit::text("b k -> b, 10 k"), Lit::DType(DType::I64), 2).unwrap(),
            ["i64[n]", "i64[10, 3]"]
        );
        assert_eq!(with([4, 2].into(), Lit::text("float16"), 1).unwrap(), ["f16[4, 2]"]);
        assert_eq!(with(Lit::text("b k -> b"), Lit::None, 2).unwrap_err().code(), Code::BadArgument);
        assert_eq!(with(Lit::Float(1.0), Lit::None, 1).unwrap_err().code(), Code::BadArgument);
    }
}
