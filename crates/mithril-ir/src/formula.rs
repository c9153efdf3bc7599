//! Formulas over values: the language of expansions and gradients.
//!
//! [`V`] is a value of a graph with operators and methods: `v.g * (1.0 - v.y * v.y)`, `x.maximum(0)`, `x.sum(axis, true)`.
//! Each of them adds a node to the graph ([`Cx`]); numbers, shapes and dtypes become literals. The ops that formulas use
//! often are methods, [`V::op`] applies any other. An error inside a formula is kept in the [`Cx`] and reported when the
//! formula is done, so that formulas need no error handling.

use std::cell::{Ref, RefCell};
use std::ops::{Add, Deref, Div, Mul, Neg, Sub};

use smallvec::SmallVec;

use crate::build::Builder;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, ValueId, Values};
use crate::literal::Lit;
use crate::op::OpDef;
use crate::ops::{
    activation, create, decompose, elementwise as e, function, index, joining, linalg, movement, reduce,
    scan, scatter, slicing, softmax, triangle,
};
use crate::rules::Attrs;
use crate::shape::Shape;

/// A graph being built by formulas.
#[derive(Debug)]
pub struct Cx {
    builder: RefCell<Builder>,
    error: RefCell<Option<Error>>,
}

impl Cx {
    /// For a graph that a builder continues.
    pub(crate) fn new(builder: Builder) -> Self {
        Self { builder: RefCell::new(builder), error: RefCell::new(None) }
    }
    /// Applies an op to values; its outputs.
    pub fn apply<'a>(&'a self, op: &'static OpDef, args: &[V<'a>]) -> Vec<V<'a>> {
        let ids: Values = args.iter().map(|v| v.id).collect();
        let result = self.builder.borrow_mut().push(op, &ids);
        match result {
            Ok(outs) => outs.iter().map(|&id| V { cx: self, id }).collect(),
            Err(error) => {
                self.fail(error);
                // A placeholder: the formula continues, and its result is discarded.
                vec![args.first().copied().unwrap_or_else(|| self.lit(0.0)); op.outputs.len().max(1)]
            }
        }
    }
    /// Applies an op with one output.
    pub fn call<'a>(&'a self, op: &'static OpDef, args: &[V<'a>]) -> V<'a> {
        self.apply(op, args)[0]
    }
    /// The value of a literal.
    pub fn lit(&self, lit: impl Into<Lit>) -> V<'_> {
        V { cx: self, id: self.builder.borrow_mut().lit(lit) }
    }
    /// `none`: an absent input, or "no gradient".
    pub fn none(&self) -> V<'_> {
        self.lit(Lit::None)
    }
    /// A tensor filled with one number.
    pub fn full<'a>(
        &'a self,
        shape: impl Operand<'a>,
        value: impl Operand<'a>,
        dtype: impl Operand<'a>,
    ) -> V<'a> {
        self.call(&create::FULL, &[shape.value(self), value.value(self), dtype.value(self)])
    }
    /// Zeros.
    pub fn zeros<'a>(&'a self, shape: impl Operand<'a>, dtype: impl Operand<'a>) -> V<'a> {
        self.call(&create::ZEROS, &[shape.value(self), dtype.value(self)])
    }
    /// Ones.
    pub fn ones<'a>(&'a self, shape: impl Operand<'a>, dtype: impl Operand<'a>) -> V<'a> {
        self.call(&create::ONES, &[shape.value(self), dtype.value(self)])
    }
    /// The integers from 0 to `n`, without `n`.
    pub fn arange<'a>(&'a self, n: impl Operand<'a>) -> V<'a> {
        self.call(&create::ARANGE, &[n.value(self)])
    }
    /// Tensors joined along `axis`.
    pub fn concat<'a>(&'a self, axis: impl Operand<'a>, tensors: &[V<'a>]) -> V<'a> {
        self.call(&joining::CONCAT, &[&[axis.value(self)], tensors].concat())
    }
    /// Tensors joined along a new axis.
    pub fn stack<'a>(&'a self, axis: impl Operand<'a>, tensors: &[V<'a>]) -> V<'a> {
        self.call(&joining::STACK, &[&[axis.value(self)], tensors].concat())
    }
    /// The value with that index.
    pub fn value(&self, id: ValueId) -> V<'_> {
        V { cx: self, id }
    }
    /// Records an error; the first one is kept.
    pub fn fail(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }
    /// The default float.
    pub fn float(&self) -> DType {
        self.builder.borrow().float
    }
    /// The graph so far.
    pub fn graph(&self) -> Ref<'_, Graph> {
        Ref::map(self.builder.borrow(), |b| &b.graph)
    }
    pub(crate) fn tensor_of(&self, id: ValueId) -> ValueId {
        let lit = self.graph().lit(id).cloned();
        match lit {
            Some(lit @ (Lit::Bool(_) | Lit::Int(_) | Lit::Float(_))) => {
                let mut b = self.builder.borrow_mut();
                let dtype = lit.weak_dtype(b.float).unwrap_or(b.float);
                b.materialize(lit, dtype).unwrap_or(id)
            }
            _ => id,
        }
    }
    pub(crate) fn into_parts(self) -> (Builder, Option<Error>) {
        (self.builder.into_inner(), self.error.into_inner())
    }
}

/// A value in a formula.
#[derive(Clone, Copy, Debug)]
pub struct V<'a> {
    cx: &'a Cx,
    id: ValueId,
}

impl<'a> V<'a> {
    /// The graph it belongs to.
    pub fn cx(self) -> &'a Cx {
        self.cx
    }
    /// Its index.
    pub fn id(self) -> ValueId {
        self.id
    }
    /// Whether it is `none`.
    pub fn is_none(self) -> bool {
        matches!(self.cx.graph().lit(self.id), Some(Lit::None))
    }
    /// Whether it is anything but `none`.
    pub fn is_some(self) -> bool {
        !self.is_none()
    }
    /// The literal, if it is one.
    pub fn literal(self) -> Option<Lit> {
        self.cx.graph().lit(self.id).cloned()
    }
    /// Shape; `[]` for a number.
    pub fn shape(self) -> Shape {
        self.cx.graph().ty(self.id).map(|t| t.shape.clone()).unwrap_or_default()
    }
    /// Number of dimensions.
    pub fn rank(self) -> usize {
        self.cx.graph().ty(self.id).map_or(0, |t| t.shape.rank())
    }
    /// Size along an axis counted from either end.
    pub fn dim(self, axis: i64) -> Dim {
        let shape = self.shape();
        match shape.axis(axis) {
            Ok(i) => shape[i].clone(),
            Err(error) => {
                self.cx.fail(error);
                Dim::ONE
            }
        }
    }
    /// Dtype; of a number the one that it suggests.
    pub fn dtype(self) -> DType {
        let g = self.cx.graph();
        match g.ty(self.id) {
            Some(t) => t.dtype,
            None => g.lit(self.id).and_then(|l| l.weak_dtype(self.cx.float())).unwrap_or(self.cx.float()),
        }
    }
    /// Applies an op with this value as first input and one output.
    #[must_use]
    pub fn op(self, op: &'static OpDef, more: &[V<'a>]) -> V<'a> {
        let mut args: SmallVec<[V<'a>; 4]> = SmallVec::new();
        args.push(self);
        args.extend_from_slice(more);
        self.cx.call(op, &args)
    }
    /// A literal in the same graph.
    #[must_use]
    pub fn lit(self, lit: impl Into<Lit>) -> V<'a> {
        self.cx.lit(lit)
    }
    /// Converts to `dtype`; unchanged if it has that dtype.
    #[must_use]
    pub fn cast(self, dtype: DType) -> V<'a> {
        let has_type = self.cx.graph().ty(self.id).is_some();
        if has_type && self.dtype() == dtype { self } else { self.op(&e::CAST, &[self.lit(dtype)]) }
    }
}

/// An argument of a method or operator of [`V`]: a value, or what a literal is made of (`0`, `1.0`, `true`, a shape, a dtype).
pub trait Operand<'a> {
    /// The value in the graph of `cx`.
    fn value(self, cx: &'a Cx) -> V<'a>;
}

impl<'a> Operand<'a> for V<'a> {
    fn value(self, _: &'a Cx) -> V<'a> {
        self
    }
}

impl<'a, T: Into<Lit>> Operand<'a> for T {
    fn value(self, cx: &'a Cx) -> V<'a> {
        cx.lit(self)
    }
}

/// Methods that apply an op to a value; those of an op have its name, or the one that Rust uses (`is_nan`).
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) = $op:path;)*) => {
        impl<'a> V<'a> {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(self, $($arg: impl Operand<'a>),*) -> V<'a> {
                    self.op(&$op, &[$($arg.value(self.cx)),*])
                }
            )*
        }
    };
}

methods! {
    /// `|x|`
    abs() = e::ABS;
    /// -1, 0 or 1, with the sign of `x`.
    sign() = e::SIGN;
    /// `√x`
    sqrt() = function::SQRT;
    /// `1 / √x`
    rsqrt() = function::RSQRT;
    /// `x²`
    square() = function::SQUARE;
    /// `e^x`
    exp() = function::EXP;
    /// `e^x - 1`
    expm1() = function::EXPM1;
    /// `ln x`
    log() = function::LOG;
    /// `ln (1 + x)`
    log1p() = function::LOG1P;
    /// Sine.
    sin() = function::SIN;
    /// Cosine.
    cos() = function::COS;
    /// Hyperbolic sine.
    sinh() = function::SINH;
    /// Hyperbolic cosine.
    cosh() = function::COSH;
    /// Hyperbolic tangent.
    tanh() = function::TANH;
    /// Error function.
    erf() = function::ERF;
    /// `1 - erf(x)`
    erfc() = function::ERFC;
    /// `⌊x⌋`
    floor() = function::FLOOR;
    /// `⌈x⌉`
    ceil() = function::CEIL;
    /// The nearest integer, ties to even.
    round() = function::ROUND;
    /// `1 / (1 + e^-x)`
    sigmoid() = activation::SIGMOID;
    /// Exponentials along an axis, divided by their sum.
    softmax(axis) = softmax::SOFTMAX;

    /// `x ^ exponent`
    power(exponent) = e::POWER;
    /// Remainder of the floor division.
    remainder(divisor) = e::REMAINDER;
    /// `⌊x / divisor⌋`
    floor_divide(divisor) = e::FLOOR_DIVIDE;
    /// The larger of two elements.
    maximum(other) = e::MAXIMUM;
    /// The smaller of two elements.
    minimum(other) = e::MINIMUM;
    /// `min(max(x, low), high)`
    clip(low, high) = e::CLIP;

    /// `x = other`
    equal(other) = e::EQUAL;
    /// `x ≠ other`
    not_equal(other) = e::NOT_EQUAL;
    /// `x < other`
    less(other) = e::LESS;
    /// `x ≤ other`
    less_equal(other) = e::LESS_EQUAL;
    /// `x > other`
    greater(other) = e::GREATER;
    /// `x ≥ other`
    greater_equal(other) = e::GREATER_EQUAL;
    /// Both of two conditions.
    logical_and(other) = e::LOGICAL_AND;
    /// Either of two conditions.
    logical_or(other) = e::LOGICAL_OR;
    /// The opposite of a condition.
    logical_not() = e::LOGICAL_NOT;
    /// Whether each element is NaN.
    is_nan() = e::ISNAN;
    /// Whether each element is infinite.
    is_inf() = e::ISINF;
    /// Whether each element is neither NaN nor infinite.
    is_finite() = e::ISFINITE;
    /// Shift of the bits to the right.
    right_shift(count) = e::RIGHT_SHIFT;
    /// The op `where`: of a condition, `yes` where it holds and `no` elsewhere.
    select(yes, no) = e::WHERE;

    /// The sum over `axis`.
    sum(axis, keepdim) = reduce::SUM;
    /// The sum of all elements.
    sum_all() = reduce::SUM;
    /// The mean over `axis`.
    mean(axis, keepdim) = reduce::MEAN;
    /// The mean of all elements.
    mean_all() = reduce::MEAN;
    /// The product over `axis`.
    prod(axis, keepdim) = reduce::PROD;
    /// The largest element over `axis`.
    max(axis, keepdim) = reduce::MAX;
    /// The largest of all elements.
    max_all() = reduce::MAX;
    /// The smallest element over `axis`.
    min(axis, keepdim) = reduce::MIN;
    /// The smallest of all elements.
    min_all() = reduce::MIN;
    /// Whether any element over `axis` is true.
    any(axis, keepdim) = reduce::ANY;
    /// Index of the largest element over `axis`.
    argmax(axis, keepdim) = reduce::ARGMAX;
    /// Cumulative sum along `axis`.
    cumsum(axis, exclusive, reverse) = scan::CUMSUM;
    /// Cumulative product along `axis`.
    cumprod(axis, exclusive, reverse) = scan::CUMPROD;

    /// The same elements in another shape.
    reshape(shape) = movement::RESHAPE;
    /// The tensor repeated along axes of size 1.
    broadcast_to(shape) = movement::BROADCAST_TO;
    /// New axes of size 1.
    expand_dims(axis) = movement::EXPAND_DIMS;
    /// Without axes of size 1.
    squeeze(axis) = movement::SQUEEZE;
    /// The axes in another order.
    transpose(axes) = movement::TRANSPOSE;
    /// The last two axes exchanged.
    matrix_transpose() = linalg::MATRIX_TRANSPOSE;
    /// Two axes exchanged.
    swapaxes(first, second) = movement::SWAPAXES;
    /// An axis at another place.
    moveaxis(source, destination) = movement::MOVEAXIS;
    /// The elements in reverse order along `axis`.
    flip(axis) = slicing::FLIP;
    /// The elements from `starts` to `stops`.
    slice(starts, stops) = slicing::SLICE;
    /// Every `steps`-th element from `starts` to `stops`.
    strided_slice(starts, stops, steps) = slicing::SLICE;
    /// With `values` in place of the elements from `starts` to `stops`.
    slice_update(values, starts, stops) = slicing::SLICE_UPDATE;
    /// The slices at `indices` along `axis`.
    take(indices, axis) = index::TAKE;
    /// The elements at `indices` along `axis`.
    take_along_axis(indices, axis) = index::TAKE_ALONG_AXIS;
    /// With slices of `source` added at `indices` along `axis`.
    index_add(indices, source, axis) = index::INDEX_ADD;
    /// With elements of `source` at `indices` along `axis`.
    scatter(indices, source, axis) = scatter::SCATTER;
    /// With elements of `source` added at `indices` along `axis`.
    scatter_add(indices, source, axis) = index::SCATTER_ADD;
    /// The lower triangle of each matrix.
    tril(k) = triangle::TRIL;
    /// The upper triangle of each matrix.
    triu(k) = triangle::TRIU;
    /// The product of matrices.
    matmul(other) = linalg::MATMUL;
    /// The inverse of each matrix.
    inv() = decompose::INV;
}

macro_rules! operators {
    ($($trait:ident, $method:ident, $op:ident;)*) => {
        $(
            impl<'a, T: Operand<'a>> $trait<T> for V<'a> {
                type Output = V<'a>;
                fn $method(self, other: T) -> V<'a> { self.op(&e::$op, &[other.value(self.cx)]) }
            }
            impl<'a> $trait<V<'a>> for f64 {
                type Output = V<'a>;
                fn $method(self, other: V<'a>) -> V<'a> { other.lit(self).op(&e::$op, &[other]) }
            }
        )*
    };
}

operators! {
    Add, add, ADD;
    Sub, sub, SUBTRACT;
    Mul, mul, MULTIPLY;
    Div, div, DIVIDE;
}

impl<'a> Neg for V<'a> {
    type Output = V<'a>;
    fn neg(self) -> V<'a> {
        self.op(&e::NEGATIVE, &[])
    }
}

/// Argument of an expansion.
#[derive(Debug)]
pub struct ExpandCx<'a> {
    /// The graph.
    pub cx: &'a Cx,
    /// The op.
    pub op: &'static OpDef,
    /// Inputs, one per port; `none()` where absent.
    pub x: Vec<V<'a>>,
}

impl Attrs for ExpandCx<'_> {
    fn op(&self) -> &'static OpDef {
        self.op
    }
    fn lit(&self, i: usize) -> Lit {
        self.x.get(i).and_then(|v| v.literal()).unwrap_or(Lit::None)
    }
}

impl ExpandCx<'_> {
    /// Reads an argument with [`Attrs`]; an error is recorded in the graph, and the default is returned.
    pub fn get<T: Default>(&self, read: impl FnOnce(&Self) -> Result<T>) -> T {
        read(self).unwrap_or_else(|error| {
            self.cx.fail(error);
            T::default()
        })
    }
}

/// Argument of a gradient formula.
#[derive(Debug)]
pub struct GradCx<'a> {
    call: ExpandCx<'a>,
    /// Outputs of the op.
    pub ys: Vec<V<'a>>,
    /// First output.
    pub y: V<'a>,
    /// Cotangents of the outputs; zeros for outputs that are not used.
    pub gs: Vec<V<'a>>,
    /// Cotangent of the first output.
    pub g: V<'a>,
}

impl<'a> GradCx<'a> {
    /// For a node with those outputs and cotangents (both at least one).
    pub fn new(cx: &'a Cx, op: &'static OpDef, x: Vec<V<'a>>, ys: Vec<V<'a>>, gs: Vec<V<'a>>) -> Self {
        let (y, g) = (ys[0], gs[0]);
        Self { call: ExpandCx { cx, op, x }, ys, y, gs, g }
    }
    /// No gradient for this input.
    pub fn none(&self) -> V<'a> {
        self.cx.none()
    }
}

impl<'a> Deref for GradCx<'a> {
    type Target = ExpandCx<'a>;
    fn deref(&self) -> &ExpandCx<'a> {
        &self.call
    }
}
