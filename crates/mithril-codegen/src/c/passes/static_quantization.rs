//! Static quantization: products of tensors that a model itself keeps as 8-bit integers are marked, so that kernel
//! selection multiplies integers. Files of ONNX say so with `QuantizeLinear` and `DequantizeLinear` (QDQ).
//!
//! - `(clip(round(x / scale) + zero) - zero) · scale` becomes one function, without a conversion to an integer and back.
//! - A tensor whose numbers are all such has a range that is known ahead, that of its 256 numbers.
//! - A sum of products of such a tensor with weights that are integers times a scale for each filter is computed from the
//!   integers, and multiplied by the scale.
//!
//! What kernels make of it is what they make of calibrated ranges ([`Options::quantize`](crate::c::Options::quantize)): the byte that stands for a
//! number is the one that the file means, since the range is that of its scale and zero point.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mithril_ir::{DType, Scalar};

use crate::c::analysis::contraction::{Contraction, contraction, is_zero, replaced, the_sum};
use crate::c::analysis::convolution::shape;
use crate::c::ir::expr::{Binary, BufferId, Expr, Index, ReduceOp, StepId, Var};
use crate::c::ir::program::{Integers, LoopBuffer, LoopMemory, LoopProgram, LoopStep, LoopWork, Nest, Place};
use crate::c::request::Request;
use crate::c::select::context::is_fixed;
use crate::c::select::quantize::{fits_integers, is_quick};

/// The function that rounds to the numbers that integers stand for: of the number, scale, zero point, least and greatest
/// integer.
const ROUNDED: &str = "mithril_dequantized_{t}({0}, {1}, {2}, {3}, {4})";

/// The numbers that 256 integers stand for.
#[derive(Clone, Copy, PartialEq)]
struct Grid {
    scale: f32,
    zero: f32,
    least: f32,
}

impl Grid {
    /// From the least to the greatest number; `None` where 0 is not among them, or they are too small to be told apart.
    fn range(self) -> Option<[f32; 2]> {
        let zero = self.zero - self.least;
        let is_usable = self.scale.is_finite() && self.scale > 1e-30 && zero.fract() == 0.0;
        (is_usable && (0.0..=255.0).contains(&zero))
            .then(|| [-zero * self.scale, (255.0 - zero) * self.scale])
    }
}

/// Marks what is quantized by the model, and lets products multiply the integers.
pub fn mark(program: &mut LoopProgram, request: &Request) {
    for step in &mut program.steps {
        if let LoopWork::Nest(nest) = &mut step.work {
            nest.value = rounded(&nest.value);
        }
    }
    if !request.options.pack || !request.target.has_bytes {
        return;
    }
    let mut made = BTreeMap::new();
    for number in program.steps.ids() {
        let LoopWork::Nest(nest) = &program.steps[number].work else { continue };
        let writers = program.steps.iter().filter(|step| step.writes().contains(&nest.to)).count();
        if writers == 1
            && program.buffers[nest.to].dtype == DType::F32
            && let Some(range) = range(program, &nest.value)
        {
            program.integers.insert(nest.to, Integers::Range(range));
        }
        let nest = nest.clone();
        if let Some(of_integers) = multiplied(program, &nest, number, &mut made, request) {
            program.steps[number].work = LoopWork::Nest(of_integers);
        }
    }
    if !made.is_empty() {
        forget_unread(program);
    }
}

/// Leaves out dequantized weights that nothing reads any more.
fn forget_unread(program: &mut LoopProgram) {
    loop {
        let count = program.prepacking.len();
        let read: BTreeSet<BufferId> =
            program.steps.iter().chain(&program.prepacking).flat_map(LoopStep::reads).collect();
        let is_read = |step: &LoopStep| match &step.work {
            LoopWork::Nest(nest) => read.contains(&nest.to),
            LoopWork::Call(_) => true,
        };
        program.prepacking.retain(is_read);
        if program.prepacking.len() == count {
            return;
        }
    }
}

/// An expression in which rounding to integers and back is one function.
fn rounded(e: &Expr) -> Expr {
    let e = e.map(&Index::clone, &rounded);
    let Some((number, grid, most)) = quantized(&e) else { return e };
    let constant = |x: f32| Expr::Number(Scalar::Float(f64::from(x)), DType::F32);
    let args =
        vec![number.clone(), constant(grid.scale), constant(grid.zero), constant(grid.least), constant(most)];
    Expr::apply(ROUNDED, args, DType::F32)
}

/// The number that is quantized and dequantized, with equal scales and zero points; how, and the greatest integer.
fn quantized(e: &Expr) -> Option<(&Expr, Grid, f32)> {
    let (integer, scale, zero) = dequantized(e)?;
    let held = argument(integer, |text| text.starts_with("mithril_to_integer("))?;
    let (held, most) = bounded(held, "minimum")?;
    let (sum, least) = bounded(held, "maximum")?;
    let (turned, offset) = match sum {
        Expr::Binary(Binary::Add, a, b) => (&**a, float(b)?),
        other => (other, 0.0),
    };
    let Expr::Apply { text, args, .. } = argument(turned, |text| text == "rint{f}({0})")? else {
        return None;
    };
    let [number, divisor] = &args[..] else { return None };
    let is_within = limits(integer.dtype()).is_some_and(|(low, high)| low <= least && most <= high);
    let holds_zero = (least..=most).contains(&0.0);
    let is_same = &**text == "{0} / {1}" && float(divisor)? == scale && offset == zero;
    (is_same && is_within && holds_zero && number.dtype() == DType::F32).then_some((
        number,
        Grid { scale, zero, least },
        most,
    ))
}

/// `(integer - zero) · scale` of bytes: the bytes, the scale, the zero point.
fn dequantized(e: &Expr) -> Option<(&Expr, f32, f32)> {
    let Expr::Binary(Binary::Multiply, number, scale) = e else { return None };
    let (number, zero) = match &**number {
        Expr::Binary(Binary::Subtract, number, zero) => (&**number, float(zero)?),
        other => (other, 0.0),
    };
    let integer = as_float(number)?;
    limits(integer.dtype())?;
    Some((integer, float(scale)?, zero))
}

/// What becomes a float.
fn as_float(e: &Expr) -> Option<&Expr> {
    match e {
        _ if e.dtype() != DType::F32 => None,
        Expr::Cast(x, _) => Some(x),
        _ => argument(e, |text| text == "({TO}){0}"),
    }
}

/// The first argument of a template.
fn argument(e: &Expr, is_meant: impl Fn(&str) -> bool) -> Option<&Expr> {
    match e {
        Expr::Apply { text, args, .. } if is_meant(text) => args.first(),
        _ => None,
    }
}

/// What is held above or below a number.
fn bounded<'e>(e: &'e Expr, what: &str) -> Option<(&'e Expr, f32)> {
    let meant = format!("mithril_{what}_{{t}}({{0}}, {{1}})");
    match e {
        Expr::Apply { text, args, .. } if **text == *meant => Some((args.first()?, float(args.get(1)?)?)),
        Expr::Binary(Binary::Min, x, by) if what == "minimum" => Some((x, float(by)?)),
        Expr::Binary(Binary::Max, x, by) if what == "maximum" => Some((x, float(by)?)),
        _ => None,
    }
}

fn float(e: &Expr) -> Option<f32> {
    match e {
        Expr::Number(value, DType::F32) => Some(value.f64() as f32),
        _ => None,
    }
}

/// The least and the greatest integer of a byte.
fn limits(dtype: DType) -> Option<(f32, f32)> {
    match dtype {
        DType::U8 => Some((0.0, 255.0)),
        DType::I8 => Some((-128.0, 127.0)),
        _ => None,
    }
}

/// The range of a value whose numbers all stand for bytes.
fn range(program: &LoopProgram, e: &Expr) -> Option<[f32; 2]> {
    match e {
        Expr::Load { from, .. } => match program.integers.get(from)? {
            Integers::Range(range) => Some(*range),
            Integers::Weights => None,
        },
        Expr::Select { yes, no, .. } if is_zero(no) => range(program, yes),
        Expr::Apply { text, args, .. } if &**text == ROUNDED => {
            let [scale, zero, least] = [1, 2, 3].map(|i| float(&args[i]));
            Grid { scale: scale?, zero: zero?, least: least? }.range()
        }
        _ => {
            let (integer, scale, zero) = dequantized(e)?;
            let (least, _) = limits(integer.dtype())?;
            Grid { scale, zero, least }.range()
        }
    }
}

/// The nest that multiplies integers; `None` if it multiplies something else, or kernels are not quicker for it.
fn multiplied(
    program: &mut LoopProgram,
    nest: &Nest,
    number: StepId,
    made: &mut BTreeMap<(BufferId, i64), BufferId>,
    request: &Request,
) -> Option<Nest> {
    let c = contraction(nest)?;
    let image = |e: &Expr| match e {
        Expr::Select { yes, no, .. } if is_zero(no) => matches!(**yes, Expr::Load { .. }),
        other => matches!(other, Expr::Load { .. }),
    };
    let is_image = c.factors.map(|factor| image(factor) && range(program, factor).is_some());
    let side = is_image.iter().position(|is_image| !is_image)?;
    if !is_image[1 - side] {
        return None;
    }
    let (integers, scale) = weights(program, c.factors[side], &c)?;
    let like = &program.steps[number].clone();
    let (weights, buffer) = kept(program, like, &integers, made, request)?;
    let sum = the_sum(&nest.value)?.clone();
    let mut factors = c.factors.map(Expr::clone);
    factors[side] = weights;
    let [a, b] = factors;
    let body = Box::new(a.binary(Binary::Multiply, b));
    let sum_of_integers = Expr::Reduce { op: ReduceOp::Sum, vars: c.vars.to_vec(), body };
    let scaled = match scale {
        Some(scale) => sum_of_integers.binary(Binary::Multiply, scale),
        None => sum_of_integers,
    };
    let new = Nest { value: replaced(&nest.value, &sum, &scaled), ..nest.clone() };
    let terms = c.vars.iter().map(|v| v.size).product::<i64>();
    let suits = contraction(&new).is_some_and(|of_new| match shape(program, &new, &of_new) {
        Some((conv, ..)) => conv.depth.is_none() && is_quick(&conv, &request.target),
        None => fits_integers(terms as usize),
    });
    if !suits {
        return None;
    }
    program.integers.insert(buffer, Integers::Weights);
    Some(new)
}

/// Weights that are integers of 8 bits with a sign, by a scale that does not depend on what is summed over: both.
fn weights(program: &LoopProgram, e: &Expr, c: &Contraction<'_>) -> Option<(Expr, Option<Expr>)> {
    let Expr::Load { from, at, .. } = e else { return scaled(program, e, c) };
    let mut writers = program.prepacking.iter().filter(|step| step.writes().contains(from));
    let (writer, other) = (writers.next(), writers.next());
    let Some(LoopWork::Nest(nest)) = writer.map(|step| &step.work).filter(|_| other.is_none()) else {
        return scaled(program, e, c);
    };
    let place = |v: Var| nest.vars.iter().position(|&w| w == v).map_or(Index::var(v), |i| at[i].clone());
    scaled(program, &nest.value.substitute(&place), c)
}

fn scaled(program: &LoopProgram, e: &Expr, c: &Contraction<'_>) -> Option<(Expr, Option<Expr>)> {
    if is_integer(program, e) {
        return Some((e.clone(), None));
    }
    let Expr::Binary(Binary::Multiply, a, b) = e else { return None };
    let [(integers, scale), other] = match (scaled(program, a, c), scaled(program, b, c)) {
        (Some(integers), _) => [(integers.0, integers.1), (*b.clone(), None)],
        (None, Some(integers)) => [(integers.0, integers.1), (*a.clone(), None)],
        (None, None) => return None,
    };
    let other = other.0;
    let mut is_summed = other.reduces();
    other.each_free_var(&mut |v| is_summed |= c.vars.contains(&v));
    let scale = match scale {
        Some(scale) => scale.binary(Binary::Multiply, other),
        None => other,
    };
    (!is_summed).then_some((integers, Some(scale)))
}

/// Whether all numbers are integers of 8 bits with a sign.
fn is_integer(program: &LoopProgram, e: &Expr) -> bool {
    if let Some((from, zero)) = offset(e) {
        return match program.buffers[from].dtype {
            DType::I8 => zero == 0,
            DType::U8 => zero == 128,
            _ => false,
        };
    }
    let Expr::Load { from, stored: DType::F32, .. } = e else { return false };
    let Place::Constant(tensor) = &program.buffers[*from].place else { return false };
    let is_byte = |x: f64| x.fract() == 0.0 && (-128.0..=127.0).contains(&x);
    tensor.rank() > 1 && (0..tensor.len()).all(|i| is_byte(tensor.get(i).f64()))
}

/// The tensor of bytes that is read, and what is subtracted from them.
fn offset(e: &Expr) -> Option<(BufferId, i64)> {
    let (number, zero) = match e {
        Expr::Binary(Binary::Subtract, number, zero) => (&**number, float(zero)?),
        other => (other, 0.0),
    };
    match as_float(number)? {
        Expr::Load { from, .. } if zero.fract() == 0.0 => Some((*from, zero as i64)),
        _ => None,
    }
}

/// The integers as numbers of a tensor that is the same at every call, which is made if it is not there; and that tensor.
fn kept(
    program: &mut LoopProgram,
    like: &LoopStep,
    integers: &Expr,
    made: &mut BTreeMap<(BufferId, i64), BufferId>,
    request: &Request,
) -> Option<(Expr, BufferId)> {
    let Some((from, zero)) = offset(integers) else {
        let Expr::Load { from, .. } = integers else { return None };
        return is_fixed(program, *from, request).then(|| (integers.clone(), *from));
    };
    let mut at = None;
    integers.walk(&mut |e| {
        if let Expr::Load { at: indices, .. } = e {
            at = Some(indices.clone());
        }
    });
    let at = at.filter(|_| is_fixed(program, from, request))?;
    let to = if let Some(to) = made.get(&(from, zero)) {
        *to
    } else {
        let to = as_floats(program, like, from, integers);
        made.insert((from, zero), to);
        to
    };
    Some((Expr::Load { from: to, at, stored: DType::F32 }, to))
}

/// A tensor of the floats that this makes of the elements of a tensor, computed when parameters are packed.
fn as_floats(program: &mut LoopProgram, like: &LoopStep, from: BufferId, value: &Expr) -> BufferId {
    let LoopBuffer { name, shape, .. } = program.buffers[from].clone();
    let vars = program.fresh_vars(shape.iter().copied());
    let own: Arc<[Index]> = vars.iter().map(|&v| Index::var(v)).collect();
    let value = value.map_loads(&|from, _, stored| Expr::Load { from, at: own.to_vec(), stored });
    let (place, to) = (Place::Memory(LoopMemory::Prepacked), program.buffers.end());
    program.buffers.push(LoopBuffer { place, ..LoopBuffer::temporary(name, DType::F32, shape) });
    let work = LoopWork::Nest(Nest { to, vars, value });
    program.prepacking.push(LoopStep { name: "integers".to_owned(), work, ..like.clone() });
    to
}
