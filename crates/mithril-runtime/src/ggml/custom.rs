//! Nodes that ggml cannot say, as custom ops inside of its graphs: the reference evaluations of their ops.
//!
//! Threads share what is computed element by element on floats and booleans, and what is computed for each place of the
//! first axis on its own; everything else is done by one of them. Operands are copied, apart from those of the former.

use mithril_codegen::ggml::plan::{
    Argument as CallArgument, Call, Custom as Op, Host, HostInput, PlanValueId,
};
use mithril_compile::ggml::{Element, Plan, Type};
use mithril_ggml::{Argument, Context, Custom, Elements, ElementsMut, TensorId};
use mithril_ir::interp::{self, EvalArg};
use mithril_ir::op::Eval;
use mithril_ir::tensor::Scalar;
use mithril_ir::{Code, DType, Error, Lit, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

use super::call::operand;
use super::convert;

/// Adds the custom op of a call to a graph.
pub fn add(
    context: &mut Context,
    plan: &Plan,
    call: &Call,
    op: &Op,
    arguments: &[Argument],
) -> Result<TensorId> {
    let untyped = || Error::internal("a custom op is given what is not a tensor");
    let ty = plan.values[call.result].ty.ok_or_else(untyped)?;
    let mut tensors = Vec::with_capacity(arguments.len());
    for argument in arguments {
        tensors.push(if let Argument::Tensor(id) = argument { *id } else { return Err(untyped()) });
    }
    let values: Vec<PlanValueId> = call.arguments.iter().filter_map(CallArgument::value).collect();
    let custom: Box<dyn Custom> = match op {
        Op::Node(host) => match Elementwise::new(host, &values) {
            Some(op) => Box::new(op),
            None => Box::new(Whole::new(plan, host, &values, ty)?),
        },
        Op::Positions { rows, distinct } => {
            let dtype = plan.values[*values.first().ok_or_else(untyped)?].dtype;
            Box::new(Positions { rows: *rows, distinct: *distinct, dtype })
        }
    };
    context.custom(&ty, &tensors, custom)
}

/// An argument of an op whose tensors are operands of a custom op.
#[derive(Clone, Debug)]
enum From {
    /// An operand, of a dtype and a shape.
    Operand(usize, DType, Vec<usize>),
    /// What is known before.
    Known(EvalArg),
}

/// The arguments of a node; `values` are those that are operands.
fn arguments(host: &Host, values: &[PlanValueId]) -> Result<Vec<From>> {
    let unknown = || Error::internal("a size of a custom op is not a number");
    let each = |(i, input): (usize, &HostInput)| {
        Ok(match input {
            HostInput::Value(v, ty) => {
                let at = values.iter().position(|value| value == v).ok_or_else(unknown)?;
                From::Operand(at, ty.dtype, ty.shape.known().ok_or_else(unknown)?)
            }
            HostInput::Literal(lit) if !host.op.takes_tensor(i) || lit.is_none() => {
                From::Known(EvalArg::Lit(lit.clone()))
            }
            HostInput::Literal(Lit::Tensor(tensor)) => From::Known(EvalArg::Tensor(tensor.clone())),
            HostInput::Literal(lit) => From::Known(EvalArg::Tensor(Arc::new(operand(host, lit)?))),
        })
    };
    host.inputs.iter().enumerate().map(each).collect()
}

/// Types of what a node makes.
fn types(host: &Host) -> Option<Vec<(DType, Vec<usize>)>> {
    host.types.iter().map(|ty| Some((ty.dtype, ty.shape.known()?))).collect()
}

/// Parts of elements begin at multiples of it, so that threads write no cache line together.
const GRAIN: usize = 16;

/// A node as a whole, or some places of the first axis, by the interpreter.
#[derive(Debug)]
struct Whole {
    host: Host,
    arguments: Vec<From>,
    /// How many elements of the result stand at a place of the first axis, where threads share these.
    place: Option<usize>,
    /// How operands lie.
    operands: Vec<Type>,
    types: Vec<(DType, Vec<usize>)>,
    ty: Type,
}

impl Whole {
    fn new(plan: &Plan, host: &Host, values: &[PlanValueId], ty: Type) -> Result<Self> {
        let unknown = || Error::internal("a custom op reads or makes what has no type");
        let operands = values.iter().map(|&v| plan.values[v].ty.ok_or_else(unknown));
        let mut whole = Self {
            arguments: arguments(host, values)?,
            place: None,
            operands: operands.collect::<Result<_>>()?,
            types: types(host).ok_or_else(unknown)?,
            host: host.clone(),
            ty,
        };
        whole.place = whole.parallel_places();
        Ok(whole)
    }
    /// The elements at a place of the first axis, if the op can be computed there alone: for one place this is tried, on
    /// zeros, since a literal may name the size of the axis.
    fn parallel_places(&self) -> Option<usize> {
        let (dtype, shape) = self.types.first().filter(|_| !self.host.parallel_axis.is_empty())?;
        let zeros = |(argument, cut): (&From, &bool)| match argument {
            From::Known(known) => known.clone(),
            From::Operand(_, dtype, shape) => {
                let mut shape = shape.clone();
                if *cut {
                    shape[0] = 1;
                }
                let zeros = vec![0.0; shape.iter().product()];
                EvalArg::Tensor(Arc::new(Tensor::from_f64s(*dtype, &shape, &zeros)))
            }
        };
        let arguments: Vec<_> = self.arguments.iter().zip(&self.host.parallel_axis).map(zeros).collect();
        let one: Vec<usize> = [1].into_iter().chain(shape[1..].iter().copied()).collect();
        let outputs = interp::eval(self.host.op, &arguments, &[(*dtype, one.clone())]).ok()?;
        let fits = outputs.len() == 1 && outputs[0].shape() == one && outputs[0].dtype() == *dtype;
        fits.then(|| one.iter().product())
    }
    /// The operand of an argument, of all places or of some.
    fn operand(
        &self,
        operands: &[Elements<'_>],
        (i, dtype, shape): (usize, DType, &[usize]),
        places: Option<&Range<usize>>,
    ) -> Result<Tensor> {
        let mut shape = shape.to_vec();
        let mut within = 0..shape.iter().product::<usize>();
        if let Some(places) = places {
            let each = within.end / shape[0];
            (within, shape[0]) = (places.start * each..places.end * each, places.len());
        }
        match operands[i] {
            Elements::Floats(values) => Ok(convert::of_floats(&values[within], dtype, &shape)),
            Elements::Bytes(bytes) => {
                let size = self.operands[i].element.bytes() as usize;
                let bytes = &bytes[within.start * size..within.end * size];
                convert::decode(bytes, &self.operands[i], dtype, &shape)
            }
        }
    }
}

impl Custom for Whole {
    fn shared(&self) -> Option<usize> {
        self.place
    }
    fn run(&self, operands: &[Elements<'_>], first: usize, out: &mut ElementsMut<'_>) -> Result<()> {
        let (dtype, shape) =
            self.types.first().ok_or_else(|| Error::internal("a custom op has one result"))?;
        let mut shape = shape.clone();
        let count = match out {
            ElementsMut::Floats(out) => out.len(),
            ElementsMut::Bytes(out) => out.len() / self.ty.element.bytes() as usize,
        };
        let places = self.place.map(|each| first / each..(first + count) / each);
        if let Some(places) = &places {
            if places.is_empty() {
                return Ok(());
            }
            shape[0] = places.len();
        }
        let argument = |(i, argument): (usize, &From)| match argument {
            From::Known(known) => Ok(known.clone()),
            From::Operand(operand, dtype, shape) => {
                let places = places.as_ref().filter(|_| self.host.parallel_axis[i]);
                let tensor = self.operand(operands, (*operand, *dtype, shape), places)?;
                Ok(EvalArg::Tensor(Arc::new(tensor)))
            }
        };
        let arguments = self.arguments.iter().enumerate().map(argument);
        let arguments = arguments.collect::<Result<Vec<_>>>().map_err(|e| e.at(&self.host.place))?;
        let types = [(*dtype, shape)];
        let outputs = interp::eval(self.host.op, &arguments, &types).map_err(|e| e.at(&self.host.place))?;
        let [outputs] = outputs.as_slice() else { return Err(Error::internal("a custom op has one result")) };
        match out {
            ElementsMut::Floats(out) => out.copy_from_slice(&convert::floats(outputs)),
            ElementsMut::Bytes(out) => convert::encode(outputs, &self.ty, out)?,
        }
        Ok(())
    }
}

/// An op that is computed element by element, on floats of 32 bits and booleans.
struct Elementwise {
    eval: Eval,
    name: &'static str,
    arguments: Vec<Place>,
    makes_bool: bool,
}

/// Where the elements of an argument are, for each place in the result.
enum Place {
    /// In an operand, of booleans or not.
    Operand(usize, bool, Box<dyn Fn(usize) -> usize + Send + Sync>),
    /// Always this.
    Number(Scalar),
}

impl std::fmt::Debug for Elementwise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Elementwise {
    fn new(host: &Host, values: &[PlanValueId]) -> Option<Self> {
        let eval = host.op.eval.filter(|eval| !matches!(eval, Eval::Tensors(_)))?;
        let is_float = |dtype: DType| matches!(dtype, DType::F32 | DType::Bool);
        let types = types(host)?;
        let (element, shape) = types.first().filter(|(dtype, _)| is_float(*dtype))?;
        // Arithmetic of booleans is that of integers.
        if *element == DType::Bool && !matches!(eval, Eval::Scalar(_)) {
            return None;
        }
        let each = |argument: From| match argument {
            From::Operand(i, dtype, own) if is_float(dtype) => {
                Some(Place::Operand(i, dtype == DType::Bool, Box::new(interp::broadcast_index(&own, shape))))
            }
            From::Known(EvalArg::Tensor(tensor)) if tensor.len() == 1 => Some(Place::Number(tensor.get(0))),
            _ => None,
        };
        let arguments = arguments(host, values).ok()?.into_iter().map(each).collect::<Option<_>>()?;
        Some(Self { eval, name: host.op.name, arguments, makes_bool: *element == DType::Bool })
    }
    /// Argument `k` of element `i`.
    fn argument(&self, operands: &[Elements<'_>], k: usize, i: usize) -> Scalar {
        match &self.arguments[k] {
            Place::Number(scalar) => *scalar,
            Place::Operand(operand, is_bool, at) => {
                let Elements::Floats(values) = operands[*operand] else { return Scalar::Bool(false) };
                let x = values[at(i)];
                if *is_bool { Scalar::Bool(x != 0.0) } else { Scalar::Float(x.into()) }
            }
        }
    }
}

impl Custom for Elementwise {
    fn shared(&self) -> Option<usize> {
        Some(GRAIN)
    }
    fn run(&self, operands: &[Elements<'_>], first: usize, out: &mut ElementsMut<'_>) -> Result<()> {
        let ElementsMut::Floats(out) = out else { return Err(Error::internal("floats are expected")) };
        let mut row = vec![Scalar::Bool(false); self.arguments.len()];
        for (i, to) in (first..).zip(out.iter_mut()) {
            for (k, slot) in row.iter_mut().enumerate() {
                *slot = self.argument(operands, k, i);
            }
            *to = match self.eval {
                Eval::F1(f) => f(row[0].f64()) as f32,
                Eval::F2(f, _) => f(row[0].f64(), row[1].f64()) as f32,
                Eval::Scalar(f) if self.makes_bool => f32::from(u8::from(f(&row).bool())),
                Eval::Scalar(f) => f(&row).f64() as f32,
                Eval::Tensors(_) => {
                    return Err(Error::internal("an op of whole tensors is not an elementwise one"));
                }
            };
        }
        Ok(())
    }
}

/// Integers as positions in so many rows: negative ones count from the end.
#[derive(Debug)]
struct Positions {
    rows: i64,
    distinct: bool,
    dtype: DType,
}

impl Custom for Positions {
    fn run(&self, operands: &[Elements<'_>], _: usize, out: &mut ElementsMut<'_>) -> Result<()> {
        let (&[Elements::Bytes(bytes)], ElementsMut::Bytes(out)) = (operands, out) else {
            return Err(Error::internal("positions are integers"));
        };
        let count = bytes.len() / Element::of(self.dtype).bytes() as usize;
        let integers = Tensor::from_bytes(self.dtype, vec![count], bytes)?.to_i64s();
        let rows = self.rows;
        if let Some(n) = integers.iter().find(|&&n| n < -rows || n >= rows) {
            let text = format!("index {n} is out of range for {rows} rows");
            let help = match rows {
                0 => "there are none: the table is empty".to_owned(),
                _ => format!("give numbers from 0 to {}", rows - 1),
            };
            return Err(Error::new(Code::IndexOutOfRange, text).help(help));
        }
        let mut written = vec![false; if self.distinct { rows as usize } else { 0 }];
        for (to, n) in out.chunks_exact_mut(4).zip(integers) {
            let n = if n < 0 { n + rows } else { n };
            if self.distinct && std::mem::replace(&mut written[n as usize], true) {
                let text = format!("index {n} is repeated, and GGML writes slices in any order");
                let help = "make the indices different, or use another backend, where the last slice stays";
                return Err(Error::new(Code::BadArgument, text).help(help));
            }
            let at = i32::try_from(n);
            to.copy_from_slice(&at.map_err(|_| Error::internal("a position is too large"))?.to_ne_bytes());
        }
        Ok(())
    }
}
