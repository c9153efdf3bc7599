//! Nodes that ggml cannot say, as custom ops inside of its graphs: the reference evaluations of their rows.
//!
//! What is computed element by element on floats and truth values is shared by the threads; everything else is done by
//! one of them, on copies of its operands.

use mithril_codegen::ggml::plan::{Argument as Given, Call, Custom as Op, Host, HostInput};
use mithril_compile::ggml::{Element, Plan, Type};
use mithril_ggml::{Argument, Context, Custom, Elements, ElementsMut, TensorId};
use mithril_ir::interp::{self, HostArg};
use mithril_ir::op::Eval;
use mithril_ir::tensor::Scalar;
use mithril_ir::{Code, DType, Error, Lit, Result};
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
    let untyped = || Error::internal("a custom op is given what is no tensor");
    let ty = plan.values[call.result].ty.ok_or_else(untyped)?;
    let mut tensors = Vec::with_capacity(arguments.len());
    for argument in arguments {
        tensors.push(if let Argument::Tensor(id) = argument { *id } else { return Err(untyped()) });
    }
    let values: Vec<usize> = call.arguments.iter().filter_map(Given::value).collect();
    let made: Box<dyn Custom> = match op {
        Op::Node(host) => match Elementwise::new(host, &values) {
            Some(op) => Box::new(op),
            None => Box::new(Whole::new(plan, host, &values, ty)?),
        },
        Op::Positions { rows } => {
            let dtype = plan.values[*values.first().ok_or_else(untyped)?].dtype;
            Box::new(Positions { rows: *rows, dtype })
        }
    };
    context.custom(&ty, &tensors, made)
}

/// An argument of an op whose tensors are operands of a custom op.
#[derive(Clone, Debug)]
enum From {
    /// An operand, of a dtype and a shape.
    Operand(usize, DType, Vec<usize>),
    /// What is known before.
    Known(HostArg),
}

/// The arguments of a node; `values` are those that are operands.
fn arguments(host: &Host, values: &[usize]) -> Result<Vec<From>> {
    let unknown = || Error::internal("a size of a custom op is no number");
    let each = |(i, input): (usize, &HostInput)| {
        Ok(match input {
            HostInput::Value(v, ty) => {
                let at = values.iter().position(|value| value == v).ok_or_else(unknown)?;
                From::Operand(at, ty.dtype, ty.shape.known().ok_or_else(unknown)?)
            }
            HostInput::Literal(lit) if !host.op.takes_tensor(i) || lit.is_none() => {
                From::Known(HostArg::Lit(lit.clone()))
            }
            HostInput::Literal(Lit::Tensor(tensor)) => From::Known(HostArg::Tensor(tensor.clone())),
            HostInput::Literal(lit) => From::Known(HostArg::Tensor(Arc::new(operand(host, lit)?))),
        })
    };
    host.inputs.iter().enumerate().map(each).collect()
}

/// Types of what a node makes.
fn types(host: &Host) -> Option<Vec<(DType, Vec<usize>)>> {
    host.types.iter().map(|ty| Some((ty.dtype, ty.shape.known()?))).collect()
}

/// A node as a whole, by the interpreter.
#[derive(Debug)]
struct Whole {
    host: Host,
    arguments: Vec<From>,
    /// How operands lie.
    operands: Vec<Type>,
    types: Vec<(DType, Vec<usize>)>,
    ty: Type,
}

impl Whole {
    fn new(plan: &Plan, host: &Host, values: &[usize], ty: Type) -> Result<Self> {
        let unknown = || Error::internal("a custom op reads or makes what has no type");
        let operands = values.iter().map(|&v| plan.values[v].ty.ok_or_else(unknown));
        Ok(Self {
            arguments: arguments(host, values)?,
            operands: operands.collect::<Result<_>>()?,
            types: types(host).ok_or_else(unknown)?,
            host: host.clone(),
            ty,
        })
    }
}

impl Custom for Whole {
    fn run(&self, operands: &[Elements<'_>], _: usize, out: &mut ElementsMut<'_>) -> Result<()> {
        let arguments = self.arguments.iter().map(|argument| match argument {
            From::Known(known) => Ok(known.clone()),
            From::Operand(i, dtype, shape) => {
                let tensor = match operands[*i] {
                    Elements::Floats(values) => convert::of_floats(values, *dtype, shape),
                    Elements::Bytes(bytes) => convert::decode(bytes, &self.operands[*i], *dtype, shape)?,
                };
                Ok(HostArg::Tensor(Arc::new(tensor)))
            }
        });
        let arguments = arguments.collect::<Result<Vec<_>>>().map_err(|e| e.at(&self.host.place))?;
        let made = interp::eval(self.host.op, &arguments, &self.types).map_err(|e| e.at(&self.host.place))?;
        let [made] = made.as_slice() else { return Err(Error::internal("a custom op has one result")) };
        match out {
            ElementsMut::Floats(out) => out.copy_from_slice(&convert::floats(made)),
            ElementsMut::Bytes(out) => convert::encode(made, &self.ty, out)?,
        }
        Ok(())
    }
}

/// An op that is computed element by element, on floats of 32 bits and truth values.
struct Elementwise {
    eval: Eval,
    name: &'static str,
    arguments: Vec<Place>,
    makes_bool: bool,
}

/// Where the elements of an argument are, for each place in the result.
enum Place {
    /// In an operand, of truth values or not.
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
    fn new(host: &Host, values: &[usize]) -> Option<Self> {
        let eval = host.op.eval.filter(|eval| !matches!(eval, Eval::Host(_)))?;
        let is_float = |dtype: DType| matches!(dtype, DType::F32 | DType::Bool);
        let types = types(host)?;
        let (made, shape) = types.first().filter(|(dtype, _)| is_float(*dtype))?;
        // Arithmetic of truth values is that of integers.
        if *made == DType::Bool && !matches!(eval, Eval::Scalar(_)) {
            return None;
        }
        let each = |argument: From| match argument {
            From::Operand(i, dtype, own) if is_float(dtype) => {
                Some(Place::Operand(i, dtype == DType::Bool, Box::new(interp::broadcast_index(&own, shape))))
            }
            From::Known(HostArg::Tensor(tensor)) if tensor.len() == 1 => Some(Place::Number(tensor.get(0))),
            _ => None,
        };
        let arguments = arguments(host, values).ok()?.into_iter().map(each).collect::<Option<_>>()?;
        Some(Self { eval, name: host.op.name, arguments, makes_bool: *made == DType::Bool })
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
    fn is_shared(&self) -> bool {
        true
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
                Eval::Host(_) => return Err(Error::internal("an op of whole tensors is no elementwise one")),
            };
        }
        Ok(())
    }
}

/// Integers as positions in so many rows: negative ones count from the end.
#[derive(Debug)]
struct Positions {
    rows: i64,
    dtype: DType,
}

impl Custom for Positions {
    fn run(&self, operands: &[Elements<'_>], _: usize, out: &mut ElementsMut<'_>) -> Result<()> {
        let (&[Elements::Bytes(bytes)], ElementsMut::Bytes(out)) = (operands, out) else {
            return Err(Error::internal("positions are integers"));
        };
        let count = bytes.len() / Element::of(self.dtype).bytes() as usize;
        let integers = mithril_ir::Tensor::from_bytes(self.dtype, vec![count], bytes)?.to_i64s();
        let rows = self.rows;
        if let Some(n) = integers.iter().find(|&&n| n < -rows || n >= rows) {
            let text = format!("index {n} is out of range for {rows} rows");
            return Err(Error::new(Code::IndexOutOfRange, text));
        }
        for (to, n) in out.chunks_exact_mut(4).zip(integers) {
            let at = i32::try_from(if n < 0 { n + rows } else { n });
            to.copy_from_slice(&at.map_err(|_| Error::internal("a position is too large"))?.to_ne_bytes());
        }
        Ok(())
    }
}
