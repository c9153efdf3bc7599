//! The typed graph that is built, and what is known of its values while it is read: constants are computed at once, so
//! that shapes that a model computes are there when an op needs them.

use std::sync::Arc;

use mithril_ir::graph::Values;
use mithril_ir::interp;
use mithril_ir::op::Tolerance;
use mithril_ir::{Builder, Code, DType, Dim, Error, Lit, OpDef, Result, Scalar, Shape, Tensor, ValueId, ops};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::narrow::{self, Narrow};

/// Elements of a constant that is computed here; larger ones stay ops.
const MAX_FOLDED: usize = 1 << 20;
/// The same for what is not elementwise, and for what is made of no tensor.
const MAX_FOLDED_SUM: usize = 1 << 12;
/// Elements that are computed for one model.
const BUDGET: usize = 1 << 26;

/// A value of the file.
#[derive(Clone, Debug)]
pub enum Value {
    /// A value of the graph.
    Graph(ValueId),
    /// Integers that are made of sizes, of which some are symbols.
    Sizes(Sizes),
    /// A value of the graph that stands for one of a narrower dtype.
    Narrow(ValueId, Narrow),
    /// What a node gives that could not be converted.
    Failed,
}

/// A number or a vector of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// The numbers.
    pub dims: Vec<Dim>,
    /// Whether it is one number without an axis.
    pub is_scalar: bool,
    /// Dtype in the file.
    pub dtype: DType,
}

/// A graph being built.
#[derive(Debug)]
pub struct Context {
    /// The graph.
    pub b: Builder,
    /// Values of small parameters, and of what is computed from them: an op may need them.
    pub known: FxHashMap<ValueId, Arc<Tensor>>,
    /// Parameters that training leaves as they are.
    pub frozen: FxHashSet<ValueId>,
    budget: usize,
}

impl Default for Context {
    fn default() -> Self {
        Self {
            b: Builder::default(),
            known: FxHashMap::default(),
            frozen: FxHashSet::default(),
            budget: BUDGET,
        }
    }
}

impl Context {
    /// Applies an op. What depends on constants alone is computed.
    pub fn push(&mut self, name: &str, args: &[ValueId]) -> Result<Values> {
        let op = ops::get(name)?;
        let outputs = self.b.push(op, args)?;
        let tensors: Vec<ValueId> = (0..args.len())
            .filter(|&i| op.takes_tensor(i))
            .map(|i| args[i])
            .filter(|&v| self.is_tensor(v))
            .collect();
        let is_constant = tensors.iter().all(|&v| self.b.graph.lit(v).is_some());
        if !is_constant && !tensors.iter().all(|&v| self.constant(v).is_some()) {
            return Ok(outputs);
        }
        let Some(values) = self.computed(op, args, &outputs, !tensors.is_empty()) else { return Ok(outputs) };
        if is_constant {
            return Ok(values.into_iter().map(|t| self.b.graph.add_literal(Lit::Tensor(t))).collect());
        }
        self.known.extend(outputs.iter().copied().zip(values));
        Ok(outputs)
    }
    fn is_tensor(&self, v: ValueId) -> bool {
        self.b.graph.lit(v).is_none_or(Lit::is_numeric)
    }
    /// The results of an op on constants, unless they are large or the op fails: then it fails when it runs.
    fn computed(
        &mut self,
        op: &'static OpDef,
        args: &[ValueId],
        outputs: &[ValueId],
        from_tensors: bool,
    ) -> Option<Vec<Arc<Tensor>>> {
        let sums = !from_tensors || matches!(op.tolerance, Tolerance::Contraction | Tolerance::Decomposition);
        let most = if sums { MAX_FOLDED_SUM } else { MAX_FOLDED };
        let mut work = 0_usize;
        for &v in args.iter().chain(outputs) {
            if let Some(ty) = self.b.graph.ty(v) {
                let count = ty.shape.known()?.iter().try_fold(1_usize, |n, &d| n.checked_mul(d))?;
                work = work.checked_add(count).filter(|&n| n <= most)?;
            }
        }
        self.budget = self.budget.checked_sub(work)?;
        let mut scratch = Builder::new(self.b.float);
        let args: Vec<ValueId> = args
            .iter()
            .map(|&v| match self.b.graph.lit(v) {
                Some(lit) => Some(scratch.lit(lit.clone())),
                None => self.known.get(&v).map(|t| scratch.lit(Lit::Tensor(t.clone()))),
            })
            .collect::<Option<_>>()?;
        let outs = scratch.push(op, &args).ok()?;
        for (i, v) in outs.into_iter().enumerate() {
            scratch.graph.outputs.insert(i.to_string().into(), v);
        }
        interp::run(&scratch.graph, &[]).ok()
    }
    /// The value of a constant, or of what is computed from small parameters.
    pub fn constant(&self, v: ValueId) -> Option<Arc<Tensor>> {
        match self.b.graph.lit(v) {
            Some(Lit::Tensor(t)) => Some(t.clone()),
            Some(lit @ (Lit::Bool(_) | Lit::Int(Dim::Const(_)) | Lit::Float(_))) => {
                interp::number(lit, None).ok().map(Arc::new)
            }
            _ => self.known.get(&v).cloned(),
        }
    }
    /// A literal as a value.
    pub fn lit(&mut self, lit: impl Into<Lit>) -> ValueId {
        self.b.lit(lit)
    }
    /// A value as a tensor of the graph.
    pub fn tensor(&mut self, value: &Value) -> Result<ValueId> {
        match value {
            Value::Graph(v) => Ok(*v),
            Value::Narrow(_, narrow) => Err(narrow::refuse(*narrow)),
            Value::Failed => Err(Error::internal("a value that failed is read")),
            Value::Sizes(sizes) => {
                let (shape, dtype) = (self.lit(Vec::<i64>::new()), self.lit(sizes.dtype));
                let mut parts = Vec::new();
                for dim in &sizes.dims {
                    let number = self.lit(dim.clone());
                    parts.push(self.push("full", &[shape, number, dtype])?[0]);
                }
                if sizes.is_scalar {
                    return parts.first().copied().ok_or_else(|| Error::internal("a number without a value"));
                }
                let axis = self.lit(0_i64);
                parts.insert(0, axis);
                Ok(self.push("stack", &parts)?[0])
            }
        }
    }
    /// The sizes that a value stands for, if all of its integers are known now.
    pub fn sizes(&self, value: &Value) -> Option<Sizes> {
        match value {
            Value::Sizes(sizes) => Some(sizes.clone()),
            Value::Graph(v) => {
                let t = self.constant(*v).filter(|t| t.rank() <= 1)?;
                let dims = (0..t.len()).map(|i| match t.get(i) {
                    Scalar::Float(_) => None,
                    n => Some(Dim::Const(n.i64())),
                });
                Some(Sizes { dims: dims.collect::<Option<_>>()?, is_scalar: t.rank() == 0, dtype: t.dtype() })
            }
            Value::Narrow(..) | Value::Failed => None,
        }
    }
    /// Sizes as a value: a constant, if all are numbers.
    pub fn known_or_sizes(&mut self, sizes: Sizes) -> Value {
        let known: Option<Vec<i64>> = sizes.dims.iter().map(Dim::known).collect();
        let Some(numbers) = known else { return Value::Sizes(sizes) };
        let shape: &[usize] = if sizes.is_scalar { &[] } else { &[numbers.len()] };
        if shape.iter().product::<usize>() != numbers.len() {
            return Value::Sizes(sizes);
        }
        let tensor = Tensor::build(sizes.dtype, shape, |i| numbers[i].into());
        Value::Graph(self.lit(tensor))
    }
    /// Shape of a tensor; of a number `[]`.
    pub fn shape(&self, v: ValueId) -> Shape {
        self.b.graph.ty(v).map(|t| t.shape.clone()).unwrap_or_default()
    }
    /// Dtype of a tensor.
    pub fn dtype(&self, v: ValueId) -> DType {
        match (self.b.graph.ty(v), self.b.graph.lit(v)) {
            (Some(ty), _) => ty.dtype,
            (None, Some(lit)) => lit.weak_dtype(self.b.float).unwrap_or(self.b.float),
            _ => self.b.float,
        }
    }
}

/// An error of a file that contradicts itself.
pub fn malformed(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message)
        .help("check the file with onnx.checker.check_model, and write it again")
}
