//! Expressions of one element: construction, traversal, substitution, printing.

use std::fmt;
use std::sync::Arc;

use super::{Index, TensorRef, Var};
use crate::dtype::DType;
use crate::tensor::Scalar;

/// The operation of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum; 0 if there are no values.
    Sum,
    /// Product; 1 if there are no values.
    Prod,
    /// The largest value; NaN if there is one. The smallest number if there are no values.
    Max,
    /// The smallest value; NaN if there is one. The largest number if there are no values.
    Min,
    /// Whether any is true.
    Any,
    /// Whether all are true.
    All,
    /// Index (int64, in row-major order of the reduced variables) of the first largest value, or of the first NaN if there is
    /// one.
    ArgMax,
    /// Index of the first smallest value, or of the first NaN if there is one.
    ArgMin,
}

/// Arithmetic that the compiler has to understand, to recognize a contraction for example. Other operations are templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// Sum; integers wrap.
    Add,
    /// Difference; integers wrap.
    Subtract,
    /// Product; integers wrap.
    Multiply,
    /// Quotient of floats.
    Divide,
    /// The larger; NaN if either is.
    Max,
    /// The smaller; NaN if either is.
    Min,
    /// `left < right`
    Less,
    /// `left <= right`
    LessEqual,
    /// `left == right`
    Equal,
    /// Both of two booleans.
    And,
    /// Either of two booleans.
    Or,
}

/// A test on indices: `from <= index < to`.
#[derive(Clone, Debug, PartialEq)]
pub struct Within<T = usize> {
    /// The tested index.
    pub index: Index<T>,
    /// The smallest value that passes.
    pub from: i64,
    /// The upper bound, which does not pass.
    pub to: i64,
}

/// The value of one element, as a function of loop variables. Every expression has a dtype ([`Expr::dtype`]); float16
/// and bfloat16 are computed as float32.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr<T = usize> {
    /// An element of a tensor: an input of the node or a temporary; in a program, a buffer.
    Load {
        /// The tensor.
        from: T,
        /// Coordinates, one per axis.
        at: Vec<Index<T>>,
        /// Dtype of the tensor as stored.
        stored: DType,
    },
    /// A number.
    Number(Scalar, DType),
    /// An index as a number (int64).
    Index(Box<Index<T>>),
    /// Arithmetic on two values of one dtype; comparisons give bool.
    Binary(Binary, Box<Expr<T>>, Box<Expr<T>>),
    /// A C expression of values, a template as in `Lowering.c` ([`crate::loops`] describes the placeholders).
    Apply {
        /// The template.
        text: Arc<str>,
        /// The values of `{0}`, `{1}` …
        args: Vec<Expr<T>>,
        /// Dtype of the result.
        dtype: DType,
    },
    /// Conversion between dtypes. Narrower floats are rounded (float16 and bfloat16 are then computed as float32), integers wrap,
    /// a number becomes true if it is not 0. Conversions from floats to integers use the template of the op `cast`.
    Cast(Box<Expr<T>>, DType),
    /// `yes` where all tests pass, else `no`. Only one of them is evaluated, so that `yes` may read elements that exist only where
    /// the tests pass.
    Select {
        /// The tests.
        when: Vec<Within<T>>,
        /// The value where all tests pass.
        yes: Box<Expr<T>>,
        /// The value elsewhere.
        no: Box<Expr<T>>,
    },
    /// The reduction of `body` over all values of `vars`.
    Reduce {
        /// The operation.
        op: ReduceOp,
        /// The variables, the outermost first.
        vars: Vec<Var>,
        /// The reduced value.
        body: Box<Expr<T>>,
    },
}

impl<T: TensorRef> Expr<T> {
    /// A C expression of values.
    pub fn apply(text: impl Into<Arc<str>>, args: Vec<Self>, dtype: DType) -> Self {
        Self::Apply { text: text.into(), args, dtype: arithmetic(dtype) }
    }
    /// Converts to another dtype.
    #[must_use]
    pub fn cast(self, dtype: DType) -> Self {
        if self.dtype() == dtype { self } else { Self::Cast(Box::new(self), dtype) }
    }
    /// Arithmetic.
    #[must_use]
    pub fn binary(self, op: Binary, other: Self) -> Self {
        Self::Binary(op, Box::new(self), Box::new(other))
    }
    /// The larger of two.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.binary(Binary::Max, other)
    }
    /// The smaller of two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.binary(Binary::Min, other)
    }
    /// This value where all tests pass, else `no`.
    #[must_use]
    pub fn within(self, when: Vec<Within<T>>, no: Self) -> Self {
        let when: Vec<Within<T>> = when.into_iter().filter(|w| !w.always()).collect();
        if when.is_empty() {
            return self;
        }
        if when.iter().any(Within::never) {
            return no;
        }
        Self::Select { when, yes: Box::new(self), no: Box::new(no) }
    }
    /// The dtype of the computation, which is never float16 or bfloat16.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Load { stored, .. } => arithmetic(*stored),
            Self::Number(_, dtype) | Self::Cast(_, dtype) | Self::Apply { dtype, .. } => arithmetic(*dtype),
            Self::Index(_) => DType::I64,
            Self::Binary(op, left, _) => match op {
                Binary::Less | Binary::LessEqual | Binary::Equal | Binary::And | Binary::Or => DType::Bool,
                _ => left.dtype(),
            },
            Self::Select { yes, .. } => yes.dtype(),
            Self::Reduce { op, body, .. } => match op {
                ReduceOp::Any | ReduceOp::All => DType::Bool,
                ReduceOp::ArgMax | ReduceOp::ArgMin => DType::I64,
                _ => body.dtype(),
            },
        }
    }
    /// The direct subexpressions, except those inside of indices.
    pub fn children(&self) -> Vec<&Self> {
        match self {
            Self::Load { .. } | Self::Number(..) | Self::Index(_) => Vec::new(),
            Self::Binary(_, a, b) => vec![a, b],
            Self::Apply { args, .. } => args.iter().collect(),
            Self::Cast(x, _) => vec![x],
            Self::Select { yes, no, .. } => vec![yes, no],
            Self::Reduce { body, .. } => vec![body],
        }
    }
    /// The indices directly inside.
    pub fn indices(&self) -> Vec<&Index<T>> {
        match self {
            Self::Load { at, .. } => at.iter().collect(),
            Self::Index(index) => vec![index],
            Self::Select { when, .. } => when.iter().map(|w| &w.index).collect(),
            _ => Vec::new(),
        }
    }
    /// Replaces every part: indices by `index`, subexpressions by `expr`.
    #[must_use]
    pub fn map(&self, index: &dyn Fn(&Index<T>) -> Index<T>, expr: &dyn Fn(&Self) -> Self) -> Self {
        let boxed = |e: &Self| Box::new(expr(e));
        match self {
            Self::Load { from, at, stored } => {
                Self::Load { from: *from, at: at.iter().map(index).collect(), stored: *stored }
            }
            Self::Number(..) => self.clone(),
            Self::Index(at) => Self::Index(Box::new(index(at))),
            Self::Binary(op, a, b) => Self::Binary(*op, boxed(a), boxed(b)),
            Self::Apply { text, args, dtype } => {
                Self::Apply { text: text.clone(), args: args.iter().map(expr).collect(), dtype: *dtype }
            }
            Self::Cast(x, dtype) => Self::Cast(boxed(x), *dtype),
            Self::Select { when, yes, no } => {
                let test = |w: &Within<T>| Within { index: index(&w.index), from: w.from, to: w.to };
                expr(yes).within(when.iter().map(test).collect(), expr(no))
            }
            Self::Reduce { op, vars, body } => {
                Self::Reduce { op: *op, vars: vars.clone(), body: boxed(body) }
            }
        }
    }
    /// Replaces the references to tensors.
    #[must_use]
    pub fn with_tensors<U: TensorRef>(&self, f: &dyn Fn(T) -> U) -> Expr<U> {
        let boxed = |e: &Self| Box::new(e.with_tensors(f));
        match self {
            Self::Load { from, at, stored } => {
                let at = at.iter().map(|index| index.with_tensors(f)).collect();
                Expr::Load { from: f(*from), at, stored: *stored }
            }
            Self::Number(value, dtype) => Expr::Number(*value, *dtype),
            Self::Index(at) => Expr::Index(Box::new(at.with_tensors(f))),
            Self::Binary(op, a, b) => Expr::Binary(*op, boxed(a), boxed(b)),
            Self::Apply { text, args, dtype } => {
                let args = args.iter().map(|arg| arg.with_tensors(f)).collect();
                Expr::Apply { text: text.clone(), args, dtype: *dtype }
            }
            Self::Cast(x, dtype) => Expr::Cast(boxed(x), *dtype),
            Self::Select { when, yes, no } => {
                let test = |w: &Within<T>| Within { index: w.index.with_tensors(f), from: w.from, to: w.to };
                Expr::Select { when: when.iter().map(test).collect(), yes: boxed(yes), no: boxed(no) }
            }
            Self::Reduce { op, vars, body } => {
                Expr::Reduce { op: *op, vars: vars.clone(), body: boxed(body) }
            }
        }
    }
    /// Replaces every index, at any depth; `f` is responsible for values that are read inside of it.
    #[must_use]
    pub fn map_indices(&self, f: &dyn Fn(&Index<T>) -> Index<T>) -> Self {
        self.map(f, &|e| e.map_indices(f))
    }
    /// Replaces every variable by an index.
    #[must_use]
    pub fn substitute(&self, f: &dyn Fn(Var) -> Index<T>) -> Self {
        self.map_indices(&|at| at.substitute(f))
    }
    /// Replaces every element of a tensor by `f` of its tensor, coordinates and dtype, including those that are read inside of
    /// indices.
    #[must_use]
    pub fn map_loads(&self, f: &dyn Fn(T, Vec<Index<T>>, DType) -> Self) -> Self {
        match self.map(&|at| map_reads(at, f), &|e| e.map_loads(f)) {
            Self::Load { from, at, stored } => f(from, at, stored),
            other => other,
        }
    }
    /// Calls `f` with this expression and every subexpression, including those inside of indices.
    pub fn walk(&self, f: &mut dyn FnMut(&Self)) {
        f(self);
        for child in self.children() {
            child.walk(f);
        }
        for index in self.indices() {
            walk_index(index, f);
        }
    }
    /// Calls `f` with every variable that is not bound by an inner reduction.
    pub fn each_free_var(&self, f: &mut dyn FnMut(Var)) {
        let mut bound = Vec::new();
        self.walk(&mut |e| {
            if let Self::Reduce { vars, .. } = e {
                bound.extend(vars.iter().copied());
            }
        });
        self.walk(&mut |e| {
            for index in e.indices() {
                index.each_var(&mut |v| {
                    if !bound.contains(&v) {
                        f(v);
                    }
                });
            }
        });
    }
    /// Whether it contains a reduction.
    pub fn reduces(&self) -> bool {
        let mut reduces = false;
        self.walk(&mut |e| reduces |= matches!(e, Self::Reduce { .. }));
        reduces
    }
}

fn walk_index<T: TensorRef>(index: &Index<T>, f: &mut dyn FnMut(&Expr<T>)) {
    for (atom, _) in &index.terms {
        match atom {
            super::IndexTerm::Var(_) => {}
            super::IndexTerm::Div(inner, _) | super::IndexTerm::Mod(inner, _) => walk_index(inner, f),
            super::IndexTerm::Value { value, .. } => value.walk(f),
        }
    }
}

fn map_reads<T: TensorRef>(index: &Index<T>, f: &dyn Fn(T, Vec<Index<T>>, DType) -> Expr<T>) -> Index<T> {
    if !index.reads() {
        return index.clone();
    }
    index.terms.iter().fold(Index::number(index.constant), |sum, (atom, factor)| {
        let new = match atom {
            super::IndexTerm::Var(var) => Index::var(*var),
            super::IndexTerm::Div(inner, by) => map_reads(inner, f).floor_div(*by),
            super::IndexTerm::Mod(inner, by) => map_reads(inner, f).modulo(*by),
            super::IndexTerm::Value { value, size, wraps } => Index::value(value.map_loads(f), *size, *wraps),
        };
        sum + new * *factor
    })
}

impl<T: TensorRef> Within<T> {
    /// A test.
    pub fn new(index: Index<T>, from: i64, to: i64) -> Self {
        Self { index, from, to }
    }
    /// Whether it passes for all values of the variables.
    pub fn always(&self) -> bool {
        let (low, high) = self.index.range();
        self.from <= low && high < self.to
    }
    /// Whether it fails for all values of the variables.
    pub fn never(&self) -> bool {
        let (low, high) = self.index.range();
        high < self.from || self.to <= low
    }
}

/// The dtype in which arithmetic on a dtype is performed.
pub const fn arithmetic(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $op:ident) => {
        impl<T: TensorRef> std::ops::$trait for Expr<T> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.binary(Binary::$op, other)
            }
        }
    };
}
operator!(Add, add, Add);
operator!(Sub, sub, Subtract);
operator!(Mul, mul, Multiply);
operator!(Div, div, Divide);

impl<T: TensorRef> fmt::Display for Expr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { from, at, .. } => {
                write!(f, "x{from}[")?;
                list(f, at)?;
                f.write_str("]")
            }
            Self::Number(Scalar::Float(x), _) => write!(f, "{x:?}"),
            Self::Number(Scalar::Int(n), _) => write!(f, "{n}"),
            Self::Number(Scalar::Bool(b), _) => write!(f, "{b}"),
            Self::Index(at) => write!(f, "index({at})"),
            Self::Binary(op, a, b) => match op.sign() {
                Some(sign) => write!(f, "({a} {sign} {b})"),
                None => write!(f, "{}({a}, {b})", format!("{op:?}").to_lowercase()),
            },
            Self::Apply { text, args, .. } => {
                write!(f, "`{text}`(")?;
                list(f, args)?;
                f.write_str(")")
            }
            Self::Cast(x, dtype) => write!(f, "{dtype}({x})"),
            Self::Select { when, yes, no } => {
                f.write_str("(")?;
                for (i, w) in when.iter().enumerate() {
                    let and = if i > 0 { " and " } else { "" };
                    match (w.from, w.to) {
                        (i64::MIN, to) => write!(f, "{and}{} < {to}", w.index)?,
                        (from, i64::MAX) => write!(f, "{and}{from} <= {}", w.index)?,
                        (from, to) => write!(f, "{and}{from} <= {} < {to}", w.index)?,
                    }
                }
                write!(f, " ? {yes} : {no})")
            }
            Self::Reduce { op, vars, body } => {
                write!(f, "{}[", format!("{op:?}").to_lowercase())?;
                for (i, var) in vars.iter().enumerate() {
                    write!(f, "{}i{} < {}", if i > 0 { ", " } else { "" }, var.id, var.size)?;
                }
                write!(f, "]({body})")
            }
        }
    }
}

impl Binary {
    /// The infix operator; `None` for a function.
    pub const fn sign(self) -> Option<&'static str> {
        Some(match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Equal => "==",
            Self::And => "&&",
            Self::Or => "||",
            Self::Max | Self::Min => return None,
        })
    }
}

fn list(f: &mut fmt::Formatter<'_>, items: &[impl fmt::Display]) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
    }
    Ok(())
}
