//! The reference interpreter: runs a graph with the reference evaluations of the ops.
//!
//! It defines every op, is the oracle of the tests, and folds constants. Floats are computed in `f64` and rounded once per op.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::build::Builder;
use crate::dim::{Dim, Symbol};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::{Def, Graph, Node, Role, TensorType, ValueId};
use crate::literal::Lit;
use crate::memory;
use crate::op::{Eval, OpDef, PortKind};
use crate::rules::Attrs;
use crate::shape::Shape;
use crate::tensor::{Element, Scalar, Tensor, strides};

/// An argument of a reference evaluation.
#[derive(Clone, Debug)]
pub enum EvalArg {
    /// A tensor.
    Tensor(Arc<Tensor>),
    /// A literal, without symbols.
    Lit(Lit),
}

/// Argument of [`Eval::Tensors`].
#[derive(Debug)]
pub struct EvalCx<'a> {
    op: &'static OpDef,
    args: &'a [EvalArg],
    /// Dtypes and sizes of the outputs.
    pub out: &'a [(DType, Vec<usize>)],
}

impl Attrs for EvalCx<'_> {
    fn op(&self) -> &'static OpDef {
        self.op
    }
    fn lit(&self, i: usize) -> Lit {
        match self.args.get(i) {
            Some(EvalArg::Lit(lit)) => lit.clone(),
            _ => Lit::None,
        }
    }
}

impl EvalCx<'_> {
    /// The tensor at argument `i`.
    ///
    /// # Panics
    /// If it is a literal; the builder converts numbers to tensors before.
    pub fn tensor(&self, i: usize) -> &Tensor {
        self.get(i).unwrap_or_else(|| panic!("argument {i} of {} is not a tensor", self.op.name))
    }
    /// The tensor at argument `i`, `None` if absent.
    pub fn get(&self, i: usize) -> Option<&Tensor> {
        match self.args.get(i) {
            Some(EvalArg::Tensor(t)) => Some(t),
            _ => None,
        }
    }
    /// All tensors from argument `i` on, for a variadic port.
    pub fn tensors_from(&self, i: usize) -> Vec<&Tensor> {
        (i..self.args.len()).filter_map(|i| self.get(i)).collect()
    }
    /// Dtype of the first output.
    pub fn dtype(&self) -> DType {
        self.out[0].0
    }
    /// Sizes of the first output.
    pub fn shape(&self) -> &[usize] {
        &self.out[0].1
    }
}

/// Values of the symbols in a run.
pub type Symbols = FxHashMap<Symbol, i64>;

/// Runs a graph on its inputs, in order; the outputs in order, then the updated states.
///
/// Sizes of the inputs bind the symbols; an input that does not match its type is an error.
pub fn run(graph: &Graph, inputs: &[Arc<Tensor>]) -> Result<Vec<Arc<Tensor>>> {
    let symbols = bind(graph, inputs)?;
    let mut values: Vec<Option<Arc<Tensor>>> = vec![None; graph.values().len()];
    for (&v, t) in graph.inputs.iter().zip(inputs) {
        values[v.index()] = Some(t.clone());
    }
    let mut uses = use_counts(graph);
    for (n, node) in graph.nodes() {
        let outs = eval_node(graph, node, &values, &symbols).map_err(|e| e.at(graph.place(n)))?;
        for (&v, t) in node.outputs.iter().zip(outs) {
            values[v.index()] = Some(t);
        }
        for v in &node.inputs {
            uses[v.index()] -= 1;
            if uses[v.index()] == 0 {
                values[v.index()] = None;
            }
        }
    }
    let results = graph.outputs.values().chain(graph.updates.iter().map(|(_, new)| new));
    results.map(|&v| read(graph, v, &values, &symbols)).collect()
}

/// The number of uses of each value, by nodes and as a result.
pub fn use_counts(graph: &Graph) -> Vec<u32> {
    let mut uses = vec![0; graph.values().len()];
    for (_, node) in graph.nodes() {
        for v in &node.inputs {
            uses[v.index()] += 1;
        }
    }
    for v in graph.outputs.values().chain(graph.updates.iter().map(|(_, new)| new)) {
        uses[v.index()] += 1;
    }
    uses
}

/// Binds symbols from the sizes of the inputs and checks dtypes and sizes.
pub fn bind(graph: &Graph, inputs: &[Arc<Tensor>]) -> Result<Symbols> {
    let types: Vec<(DType, &[usize])> = inputs.iter().map(|t| (t.dtype(), t.shape())).collect();
    bind_types(graph, &types)
}

/// As [`bind`], from the dtypes and sizes of the inputs alone.
pub fn bind_types(graph: &Graph, inputs: &[(DType, &[usize])]) -> Result<Symbols> {
    if graph.inputs.len() != inputs.len() {
        let message = format!("{} inputs are given, {} are needed", inputs.len(), graph.inputs.len());
        return Err(Error::new(Code::BadParameter, message));
    }
    let mut symbols = Symbols::default();
    for (&v, (_, shape)) in graph.inputs.iter().zip(inputs) {
        if let Some(ty) = graph.ty(v).filter(|ty| ty.shape.rank() == shape.len()) {
            for (dim, &n) in ty.shape.iter().zip(*shape) {
                if let Some(s) = dim.as_symbol() {
                    symbols.entry(s.clone()).or_insert(n as i64);
                }
            }
        }
    }
    for (&v, (dtype, shape)) in graph.inputs.iter().zip(inputs) {
        let value = graph.value(v);
        let Some(ty) = &value.ty else { continue };
        let sizes = ty.shape.iter().map(|d| resolve(d, &symbols)).collect::<Result<Vec<_>>>();
        let fits = sizes.is_ok_and(|s| s.iter().copied().eq(shape.iter().map(|&n| n as i64)));
        if !fits || ty.dtype != *dtype {
            let name = value.name.as_deref().unwrap_or("?");
            let actual = TensorType { dtype: *dtype, shape: Shape::of(shape.iter().copied()) };
            return Err(Error::new(Code::BadParameter, format!("`{name}` is {actual}"))
                .help(format!("it must be {ty}")));
        }
    }
    Ok(symbols)
}

/// The value of a dimension in this run.
pub fn resolve(dim: &Dim, symbols: &Symbols) -> Result<i64> {
    let value = match dim {
        Dim::Const(n) => return Ok(*n),
        Dim::Expr(_) => dim.substitute(&|s| symbols.get(s).map(|&n| Dim::Const(n))),
    };
    value.known().ok_or_else(|| {
        Error::new(Code::UnknownShape, format!("the size {value} does not follow from the inputs"))
    })
}

fn resolve_size(dim: &Dim, symbols: &Symbols) -> Result<usize> {
    let n = resolve(dim, symbols)?;
    usize::try_from(n).map_err(|_| Error::new(Code::BadSize, format!("the size {dim} is {n} in this run")))
}

/// A literal with its symbols replaced by their values in this run.
pub fn resolve_lit(lit: &Lit, symbols: &Symbols) -> Result<Lit> {
    Ok(match lit {
        Lit::Int(d @ Dim::Expr(_)) => Lit::int(resolve(d, symbols)?),
        Lit::Tuple(items) => {
            Lit::Tuple(items.iter().map(|i| resolve_lit(i, symbols)).collect::<Result<_>>()?)
        }
        Lit::Slice(p) => Lit::Slice(Arc::new([
            resolve_lit(&p[0], symbols)?,
            resolve_lit(&p[1], symbols)?,
            resolve_lit(&p[2], symbols)?,
        ])),
        other => other.clone(),
    })
}

fn read(graph: &Graph, v: ValueId, values: &[Option<Arc<Tensor>>], symbols: &Symbols) -> Result<Arc<Tensor>> {
    if let Some(t) = &values[v.index()] {
        return Ok(t.clone());
    }
    match &graph.value(v).def {
        Def::Const(Lit::Tensor(t)) => Ok(t.clone()),
        Def::Const(lit) => Ok(Arc::new(number(&resolve_lit(lit, symbols)?, None)?)),
        _ => Err(Error::internal(format!("value {} is read before it is computed", v.index()))),
    }
}

/// The 0-d tensor of a number; without a `dtype` it has the one that the number suggests.
pub fn number(lit: &Lit, dtype: Option<DType>) -> Result<Tensor> {
    let scalar = match lit {
        Lit::Bool(b) => Scalar::Bool(*b),
        Lit::Int(Dim::Const(n)) => Scalar::from(*n),
        Lit::Float(x) => Scalar::Float(*x),
        other => return Err(Error::internal(format!("{other} is read as a tensor"))),
    };
    Ok(Tensor::scalar(dtype.or(lit.weak_dtype(DType::F32)).unwrap_or(DType::F32), scalar))
}

/// The tensor for a number among the operands of `node`. It has the dtype of the other operands; a condition does not
/// determine the dtype of a float.
pub fn operand(graph: &Graph, node: &Node, lit: &Lit) -> Result<Tensor> {
    let weak = lit.weak_dtype(DType::F32);
    let tensors = node.inputs.iter().enumerate().filter(|(i, _)| node.op.takes_tensor(*i));
    let mut dtypes = tensors.filter_map(|(_, &v)| graph.ty(v)).map(|t| t.dtype);
    number(lit, weak.and_then(|weak| dtypes.find(|d| d.kind() >= weak.kind())))
}

/// Evaluates a node; `values` is `None` for values that have not been computed.
pub fn eval_node(
    graph: &Graph,
    node: &Node,
    values: &[Option<Arc<Tensor>>],
    symbols: &Symbols,
) -> Result<Vec<Arc<Tensor>>> {
    let mut args = Vec::with_capacity(node.inputs.len());
    for (i, &v) in node.inputs.iter().enumerate() {
        args.push(match &graph.value(v).def {
            Def::Const(lit) if !node.op.takes_tensor(i) || lit.is_none() => {
                EvalArg::Lit(resolve_lit(lit, symbols)?)
            }
            Def::Const(Lit::Tensor(t)) => EvalArg::Tensor(t.clone()),
            Def::Const(lit) => EvalArg::Tensor(Arc::new(operand(graph, node, &resolve_lit(lit, symbols)?)?)),
            _ => EvalArg::Tensor(read(graph, v, values, symbols)?),
        });
    }
    eval(node.op, &args, &output_types(graph, node, symbols)?)
}

/// Dtypes and sizes of the outputs of a node in this run.
pub fn output_types(graph: &Graph, node: &Node, symbols: &Symbols) -> Result<Vec<(DType, Vec<usize>)>> {
    let mut out = Vec::with_capacity(node.outputs.len());
    for &v in &node.outputs {
        let ty = graph.ty(v).ok_or_else(|| Error::internal("a node without a type is run"))?;
        let sizes: Vec<usize> = ty.shape.iter().map(|d| resolve_size(d, symbols)).collect::<Result<_>>()?;
        memory::check(ty.dtype, &sizes)?;
        out.push((ty.dtype, sizes));
    }
    Ok(out)
}

/// Evaluates one use of an op on concrete arguments.
pub fn eval(op: &'static OpDef, args: &[EvalArg], out: &[(DType, Vec<usize>)]) -> Result<Vec<Arc<Tensor>>> {
    check_tensors(op, args)?;
    let call = EvalCx { op, args, out };
    let result = match op.eval {
        Some(Eval::Tensors(f)) => f(&call)?,
        Some(Eval::F1(f)) => vec![float_map(&call, f)],
        Some(Eval::F2(float, int)) => vec![binary_map(&call, float, int)],
        Some(Eval::Scalar(f)) => vec![scalar_map(&call, f)],
        None => {
            let result = eval_expansion(op, args, default_float(args, out))?;
            // If there are other floats, the default only affects the dtypes of results.
            let other = |(t, (dtype, _)): (&Arc<Tensor>, &(DType, Vec<usize>))| {
                (dtype.is_float() && t.dtype() != *dtype).then_some(*dtype)
            };
            return match result.iter().zip(out).find_map(other) {
                Some(float) => eval_expansion(op, args, float),
                None => Ok(result),
            };
        }
    };
    for (t, (dtype, shape)) in result.iter().zip(out) {
        if t.dtype() != *dtype || t.shape() != *shape {
            let actual = format!("{}{:?}", t.dtype(), t.shape());
            return Err(Error::internal(format!("{} evaluates to {actual}, not {dtype}{shape:?}", op.name)));
        }
    }
    Ok(result.into_iter().map(Arc::new).collect())
}

/// The default float that a node was built with, as far as it can be inferred: a float output without float tensors or dtype
/// arguments among the inputs has the default dtype.
fn default_float(args: &[EvalArg], out: &[(DType, Vec<usize>)]) -> DType {
    let has_float = args.iter().any(|arg| match arg {
        EvalArg::Tensor(t) => t.dtype().is_float(),
        EvalArg::Lit(lit) => matches!(lit, Lit::DType(_)),
    });
    out.first().map(|o| o.0).filter(|d| d.is_float() && !has_float).unwrap_or(DType::F32)
}

/// A graph that was not typed by the builder (read from text, for example) may have a literal in place of a tensor.
fn check_tensors(op: &'static OpDef, args: &[EvalArg]) -> Result<()> {
    for (i, port) in op.ports.iter().enumerate() {
        let is_tensor = matches!(args.get(i), Some(EvalArg::Tensor(_)));
        if matches!(port.kind, PortKind::Tensor(_)) && !is_tensor {
            return Err(Error::new(
                Code::BadArgument,
                format!("`{}` of {} is not a tensor", port.name, op.name),
            )
            .help("verify a graph that is read from text before it is run"));
        }
    }
    Ok(())
}

fn eval_expansion(op: &'static OpDef, args: &[EvalArg], float: DType) -> Result<Vec<Arc<Tensor>>> {
    let mut builder = Builder::new(float);
    let mut inputs = Vec::new();
    let ids: Vec<ValueId> = args
        .iter()
        .map(|arg| match arg {
            EvalArg::Lit(lit) => builder.lit(lit.clone()),
            EvalArg::Tensor(t) => {
                let ty = TensorType { dtype: t.dtype(), shape: Shape::of(t.shape().iter().copied()) };
                inputs.push(t.clone());
                builder.graph.add_input(format!("x{}", inputs.len()), Role::Data, ty)
            }
        })
        .collect();
    let outs = builder.expand(op, &ids)?;
    for (i, v) in outs.into_iter().enumerate() {
        builder.graph.outputs.insert(format!("y{i}").into(), v);
    }
    run(&builder.graph, &inputs)
}

/// For each row-major position of `out`, the position in a tensor of `shape` that broadcasts to it.
pub fn broadcast_index(shape: &[usize], out: &[usize]) -> impl Fn(usize) -> usize + use<> {
    let pad = out.len() - shape.len();
    let strides_in = strides(shape);
    let is_same = shape == out;
    let steps: Vec<(usize, usize, usize)> = strides(out)
        .into_iter()
        .zip(out)
        .enumerate()
        .map(|(i, (s, &n))| (s, n, if i < pad || shape[i - pad] == 1 { 0 } else { strides_in[i - pad] }))
        .collect();
    move |i| if is_same { i } else { steps.iter().map(|&(s, n, step)| (i / s) % n * step).sum() }
}

fn float_map(call: &EvalCx<'_>, f: fn(f64) -> f64) -> Tensor {
    let x = call.tensor(0);
    if let (Some(x), DType::F32) = (x.as_slice::<f32>(), call.dtype()) {
        return Tensor::from_parts(call.shape(), x.iter().map(|&x| f(x.into()) as f32).collect());
    }
    Tensor::build(call.dtype(), call.shape(), |i| Scalar::Float(f(x.get(i).f64())))
}

fn binary_map(call: &EvalCx<'_>, float: fn(f64, f64) -> f64, int: fn(i128, i128) -> i128) -> Tensor {
    let (a, b) = (call.tensor(0), call.tensor(1));
    let (ia, ib) = (broadcast_index(a.shape(), call.shape()), broadcast_index(b.shape(), call.shape()));
    if let (Some(a), Some(b), DType::F32) = (a.as_slice::<f32>(), b.as_slice::<f32>(), call.dtype()) {
        let n = call.shape().iter().product();
        let at = |i| float(a[ia(i)].into(), b[ib(i)].into()) as f32;
        return Tensor::from_parts(call.shape(), (0..n).map(at).collect());
    }
    if call.dtype().is_float() {
        return Tensor::build(call.dtype(), call.shape(), |i| {
            Scalar::Float(float(a.get(ia(i)).f64(), b.get(ib(i)).f64()))
        });
    }
    Tensor::build(call.dtype(), call.shape(), |i| Scalar::Int(int(a.get(ia(i)).int(), b.get(ib(i)).int())))
}

fn scalar_map(call: &EvalCx<'_>, f: fn(&[Scalar]) -> Scalar) -> Tensor {
    let tensors = call.tensors_from(0);
    let at: Vec<_> = tensors.iter().map(|t| broadcast_index(t.shape(), call.shape())).collect();
    let mut row = vec![Scalar::Bool(false); tensors.len()];
    Tensor::build(call.dtype(), call.shape(), |i| {
        for (slot, (t, at)) in row.iter_mut().zip(tensors.iter().zip(&at)) {
            *slot = t.get(at(i));
        }
        f(&row)
    })
}

/// The elements as `T`, borrowed if that is their type.
pub fn elements<T: Element>(t: &Tensor) -> Cow<'_, [T]> {
    match (t.as_slice(), t.as_slice::<f32>()) {
        (Some(slice), _) => Cow::Borrowed(slice),
        // The common case, without checking the dtype for every element.
        (None, Some(slice)) => Cow::Owned(slice.iter().map(|x| T::of(x.scalar())).collect()),
        (None, None) => Cow::Owned((0..t.len()).map(|i| T::of(t.get(i))).collect()),
    }
}

/// Builds a tensor of `dtype` from `f64` elements.
pub fn from_f64s(dtype: DType, shape: &[usize], values: Vec<f64>) -> Tensor {
    match dtype {
        DType::F64 => Tensor::from_parts(shape, values),
        DType::F32 => Tensor::from_parts(shape, values.into_iter().map(|x| x as f32).collect()),
        _ => Tensor::build(dtype, shape, |i| Scalar::Float(values[i])),
    }
}
