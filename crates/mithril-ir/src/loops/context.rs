//! The context in which op definitions build their tensor expressions.

use std::cell::RefCell;

use super::{CallArgument, Expr, Index, PreludeCall, ReduceOp, Step, Temporary, Var, arithmetic};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::literal::Lit;
use crate::op::OpDef;
use crate::rules::Attrs;
use crate::tensor::Scalar;

/// An argument of a node whose sizes are known.
#[derive(Clone, Debug)]
pub enum LoopArg {
    /// A tensor.
    Tensor(DType, Vec<i64>),
    /// A literal, possibly a number in place of a tensor.
    Lit(Lit),
}

/// Argument of [`super::LoopsFn`].
#[derive(Debug)]
pub struct LoopCx<'a> {
    op: &'static OpDef,
    args: &'a [LoopArg],
    /// Dtypes and sizes of the outputs.
    outputs: &'a [(DType, Vec<i64>)],
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    next: u32,
    outputs: Vec<Vec<Var>>,
    temporaries: Vec<Temporary>,
    steps: Vec<Step>,
}

impl Attrs for LoopCx<'_> {
    fn op(&self) -> &'static OpDef {
        self.op
    }
    fn lit(&self, i: usize) -> Lit {
        match self.args.get(i) {
            Some(LoopArg::Lit(lit)) => lit.clone(),
            _ => Lit::None,
        }
    }
}

impl<'a> LoopCx<'a> {
    /// For a use of `op`; variables are numbered from `first` on.
    pub fn new(
        op: &'static OpDef,
        args: &'a [LoopArg],
        outputs: &'a [(DType, Vec<i64>)],
        first: u32,
    ) -> Self {
        let state = State { next: first, outputs: Vec::new(), temporaries: Vec::new(), steps: Vec::new() };
        let cx = Self { op, args, outputs, state: RefCell::new(state) };
        let vars = outputs.iter().map(|(_, shape)| cx.vars(shape)).collect();
        cx.state.borrow_mut().outputs = vars;
        cx
    }
    /// Coordinates of the outputs, temporaries, steps, and the next number of a variable.
    pub fn finish(self) -> (Vec<Vec<Var>>, Vec<Temporary>, Vec<Step>, u32) {
        let state = self.state.into_inner();
        (state.outputs, state.temporaries, state.steps, state.next)
    }
    /// Number of arguments.
    pub fn len(&self) -> usize {
        self.args.len()
    }
    /// Whether there is no argument.
    pub fn is_empty(&self) -> bool {
        self.args.is_empty()
    }
    /// Whether argument `i` is a tensor, as opposed to a literal.
    pub fn is_tensor(&self, i: usize) -> bool {
        matches!(self.args.get(i), Some(LoopArg::Tensor(..)))
    }
    /// Whether argument `i` is present: a tensor, or a number in its place.
    pub fn has(&self, i: usize) -> bool {
        self.is_tensor(i) || self.lit(i).is_numeric()
    }
    /// Sizes of tensor `i`, an input (a number has none) or a temporary.
    pub fn shape(&self, i: usize) -> Vec<i64> {
        match self.args.get(i) {
            Some(LoopArg::Tensor(_, shape)) => shape.clone(),
            Some(LoopArg::Lit(Lit::Tensor(t))) => t.shape().iter().map(|&n| n as i64).collect(),
            Some(LoopArg::Lit(_)) => Vec::new(),
            None => self.state.borrow().temporaries[i - self.args.len()].shape.clone(),
        }
    }
    /// Number of axes of tensor `i`.
    pub fn rank(&self, i: usize) -> usize {
        self.shape(i).len()
    }
    /// Dtype of tensor `i` as stored. A number in place of a tensor has the dtype of the other tensors of its kind or a wider
    /// one, else that of the output.
    pub fn dtype(&self, i: usize) -> DType {
        match self.args.get(i) {
            Some(LoopArg::Tensor(dtype, _)) => *dtype,
            Some(LoopArg::Lit(Lit::Tensor(t))) => t.dtype(),
            Some(LoopArg::Lit(lit)) => {
                let weak = lit.weak_dtype(self.out_dtype(0));
                let mut dtypes = self.args.iter().filter_map(|a| match a {
                    LoopArg::Tensor(dtype, _) => Some(*dtype),
                    LoopArg::Lit(_) => None,
                });
                let beside = weak.and_then(|weak| dtypes.find(|d| d.kind() >= weak.kind()));
                beside.or(weak).unwrap_or(self.out_dtype(0))
            }
            None => self.state.borrow().temporaries[i - self.args.len()].dtype,
        }
    }
    /// Sizes of output `i`.
    pub fn out_shape(&self, i: usize) -> &[i64] {
        &self.outputs[i].1
    }
    /// Dtype of output `i` as stored.
    pub fn out_dtype(&self, i: usize) -> DType {
        self.outputs[i].0
    }
    /// Number of outputs.
    pub fn out_len(&self) -> usize {
        self.outputs.len()
    }
    fn vars(&self, sizes: &[i64]) -> Vec<Var> {
        let mut state = self.state.borrow_mut();
        let first = state.next;
        state.next += sizes.len() as u32;
        sizes.iter().zip(first..).map(|(&size, id)| Var { id, size }).collect()
    }
    /// The value of an element of output `i`, from its coordinates.
    pub fn output(&self, i: usize, f: impl FnOnce(&[Index]) -> Expr) -> Expr {
        let vars = self.state.borrow().outputs[i].clone();
        f(&indices(&vars))
    }
    /// An element of tensor `i`: an input or a temporary.
    pub fn load(&self, i: usize, at: impl Into<Vec<Index>>) -> Expr {
        match self.args.get(i) {
            Some(LoopArg::Lit(lit)) if !matches!(lit, Lit::Tensor(_)) => self.literal(lit, self.dtype(i)),
            _ => Expr::Load { from: i, at: at.into(), stored: self.dtype(i) },
        }
    }
    /// The element of tensor `i` for the coordinates `at` of a tensor that it broadcasts to.
    pub fn broadcast(&self, i: usize, at: &[Index]) -> Expr {
        let shape = self.shape(i);
        let skip = at.len().saturating_sub(shape.len());
        let own = shape.iter().zip(&at[skip..]);
        self.load(
            i,
            own.map(|(&n, at)| if n == 1 { Index::default() } else { at.clone() }).collect::<Vec<_>>(),
        )
    }
    fn literal(&self, lit: &Lit, dtype: DType) -> Expr {
        let value = match lit {
            Lit::Bool(b) => Scalar::Bool(*b),
            Lit::Int(Dim::Const(n)) => Scalar::from(*n),
            Lit::Float(x) => Scalar::Float(*x),
            // Templates do not use texts and other literals.
            _ => Scalar::Int(0),
        };
        self.number(value, dtype)
    }
    /// A number of a dtype.
    pub fn number(&self, value: impl Into<Scalar>, dtype: DType) -> Expr {
        let dtype = arithmetic(dtype);
        let value = value.into();
        Expr::Number(
            match dtype.kind() {
                crate::dtype::Kind::Bool => Scalar::Bool(value.bool()),
                crate::dtype::Kind::Int => Scalar::Int(value.int()),
                crate::dtype::Kind::Float => Scalar::Float(value.f64()),
            },
            dtype,
        )
    }
    /// Reduces the values of `f` over all coordinates of a box of these sizes.
    pub fn reduce(&self, op: ReduceOp, sizes: &[i64], f: impl FnOnce(&[Index]) -> Expr) -> Expr {
        let vars = self.vars(sizes);
        let body = Box::new(f(&indices(&vars)));
        Expr::Reduce { op, vars, body }
    }
    /// An index on an axis of `size`, read from a tensor and checked; with `wraps`, negative ones count from the end.
    pub fn value(&self, value: Expr, size: i64, wraps: bool) -> Index {
        Index::value(value.cast(DType::I64), size, wraps)
    }
    /// Stores an expression of the coordinates in a temporary; returns its number.
    pub fn temporary(&self, dtype: DType, shape: &[i64], f: impl FnOnce(&[Index]) -> Expr) -> usize {
        let vars = self.vars(shape);
        let value = f(&indices(&vars));
        let to = self.reserve(dtype, shape);
        self.state.borrow_mut().steps.push(Step::Compute { to, vars, value });
        to
    }
    /// Tensor `i` in a dtype, as an argument of a call: itself, or a temporary.
    pub fn stored(&self, i: usize, dtype: DType) -> usize {
        self.stored_as(i, dtype, &self.shape(i))
    }
    /// As [`LoopCx::stored`], broadcast to a shape.
    pub fn stored_as(&self, i: usize, dtype: DType, shape: &[i64]) -> usize {
        let is_tensor = !matches!(self.args.get(i), Some(LoopArg::Lit(_)));
        if is_tensor && self.dtype(i) == dtype && self.shape(i) == shape {
            return i;
        }
        self.temporary(dtype, shape, |at| self.broadcast(i, at).cast(dtype))
    }
    /// Allocates a temporary that a call writes ([`CallArgument::Out`]); returns its number.
    pub fn reserve(&self, dtype: DType, shape: &[i64]) -> usize {
        let mut state = self.state.borrow_mut();
        state.temporaries.push(Temporary { dtype, shape: shape.to_vec() });
        self.args.len() + state.temporaries.len() - 1
    }
    /// Calls a C function of the prelude. A temporary that is passed as [`CallArgument::Out`] and has been written before is
    /// updated in place.
    pub fn call(&self, function: impl Into<String>, args: Vec<CallArgument>, scratch: usize) {
        let call = PreludeCall { function: function.into(), args, scratch };
        self.state.borrow_mut().steps.push(Step::Call(call));
    }
    /// Output `i` is a copy of the temporary.
    pub fn whole(&self, i: usize, temporary: usize) -> Expr {
        self.output(i, |at| self.load(temporary, at))
    }
    /// An elementwise op: the tensors broadcast to the output, and `text` is applied to their elements. Literals are constants
    /// of the dtype of the first tensor.
    pub fn elementwise(&self, text: &str) -> Expr {
        let first = (0..self.len()).find(|&i| self.is_tensor(i)).map_or(self.out_dtype(0), |i| self.dtype(i));
        self.output(0, |at| {
            let arg = |(i, arg): (usize, &LoopArg)| match arg {
                LoopArg::Lit(lit) if !matches!(lit, Lit::Tensor(_)) => {
                    let dtype = if self.op.takes_tensor(i) { self.dtype(i) } else { first };
                    self.literal(lit, dtype)
                }
                _ => self.broadcast(i, at),
            };
            let args = self.args.iter().enumerate().map(arg).collect();
            Expr::apply(text, args, self.out_dtype(0))
        })
    }
    /// Arithmetic of two inputs that broadcast.
    pub fn arithmetic(&self, f: fn(Expr, Expr) -> Expr) -> Vec<Expr> {
        vec![self.output(0, |at| f(self.broadcast(0, at), self.broadcast(1, at)))]
    }
}

/// The variables as indices.
fn indices(vars: &[Var]) -> Vec<Index> {
    vars.iter().map(|&v| Index::var(v)).collect()
}
