//! Literals: the values of arguments (axis, stride, mode …) and of scalars written in a model.
//!
//! Integers may be symbolic ([`Dim`]), so that shape arithmetic (`x.shape[0] // 2`) stays exact until the
//! shape is known.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::tensor::Tensor;

/// A literal value.
#[derive(Clone, Debug)]
pub enum Lit {
    /// Absent, as Python's `None`.
    None,
    /// Boolean.
    Bool(bool),
    /// Integer, known or symbolic.
    Int(Dim),
    /// Floating-point number.
    Float(f64),
    /// Text, e.g. a mode.
    Str(Arc<str>),
    /// Data type.
    DType(DType),
    /// Tuple or list.
    Tuple(Arc<[Lit]>),
    /// `start:stop:step`.
    Slice(Arc<[Lit; 3]>),
    /// `...`
    Ellipsis,
    /// A constant tensor.
    Tensor(Arc<Tensor>),
    /// Whether the model is compiled for training; compilation replaces it with a `Bool`.
    Training,
}

impl Lit {
    /// A known integer.
    pub fn int(n: i64) -> Self {
        Self::Int(Dim::Const(n))
    }
    /// A text.
    pub fn text(s: &str) -> Self {
        Self::Str(s.into())
    }
    /// A tuple.
    pub fn tuple(items: impl IntoIterator<Item = impl Into<Lit>>) -> Self {
        Self::Tuple(items.into_iter().map(Into::into).collect())
    }
    /// Whether this is `None`.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
    /// Whether this can be used as a tensor: a number, boolean or constant tensor.
    pub fn is_numeric(&self) -> bool {
        matches!(self, Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Tensor(_))
    }
    /// The dtype of a scalar if nothing else decides; `None` if it is not a number.
    pub fn weak_dtype(&self, default_float: DType) -> Option<DType> {
        match self {
            Self::Bool(_) => Some(DType::Bool),
            Self::Int(_) => Some(DType::I64),
            Self::Float(_) => Some(default_float),
            _ => None,
        }
    }
}

impl PartialEq for Lit {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None)
            | (Self::Ellipsis, Self::Ellipsis)
            | (Self::Training, Self::Training) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Int(a), Self::Int(b)) => a == b,
            // Bits, so that NaN equals itself and -0.0 differs from 0.0: literals are interned by this.
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::DType(a), Self::DType(b)) => a == b,
            (Self::Tuple(a), Self::Tuple(b)) => a == b,
            (Self::Slice(a), Self::Slice(b)) => a == b,
            (Self::Tensor(a), Self::Tensor(b)) => Arc::ptr_eq(a, b) || a.same_bits(b),
            _ => false,
        }
    }
}

impl Eq for Lit {}

impl Hash for Lit {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Self::None | Self::Ellipsis | Self::Training => {}
            Self::Bool(b) => b.hash(state),
            Self::Int(d) => d.hash(state),
            Self::Float(x) => x.to_bits().hash(state),
            Self::Str(s) => s.hash(state),
            Self::DType(d) => d.hash(state),
            Self::Tuple(items) => items.hash(state),
            Self::Slice(parts) => parts.hash(state),
            Self::Tensor(t) => (t.dtype(), t.shape()).hash(state),
        }
    }
}

impl From<bool> for Lit {
    fn from(b: bool) -> Self {
        Self::Bool(b)
    }
}
impl From<i64> for Lit {
    fn from(n: i64) -> Self {
        Self::int(n)
    }
}
/// An integer that `i64` cannot hold is a tensor of `u64`.
impl From<i128> for Lit {
    fn from(n: i128) -> Self {
        i64::try_from(n).map_or_else(|_| Tensor::scalar(DType::U64, n).into(), Self::int)
    }
}
impl From<i32> for Lit {
    fn from(n: i32) -> Self {
        Self::int(n.into())
    }
}
impl From<usize> for Lit {
    fn from(n: usize) -> Self {
        Self::Int(n.into())
    }
}
impl From<Dim> for Lit {
    fn from(d: Dim) -> Self {
        Self::Int(d)
    }
}
impl From<f64> for Lit {
    fn from(x: f64) -> Self {
        Self::Float(x)
    }
}
impl From<&str> for Lit {
    fn from(s: &str) -> Self {
        Self::text(s)
    }
}
impl From<DType> for Lit {
    fn from(d: DType) -> Self {
        Self::DType(d)
    }
}
impl From<Tensor> for Lit {
    fn from(t: Tensor) -> Self {
        Self::Tensor(Arc::new(t))
    }
}
impl<T: Into<Lit>> From<Vec<T>> for Lit {
    fn from(items: Vec<T>) -> Self {
        Self::tuple(items)
    }
}
impl<T: Into<Lit>, const N: usize> From<[T; N]> for Lit {
    fn from(items: [T; N]) -> Self {
        Self::tuple(items)
    }
}
impl<T: Into<Lit>> From<Option<T>> for Lit {
    fn from(item: Option<T>) -> Self {
        item.map_or(Self::None, Into::into)
    }
}

impl fmt::Display for Lit {
    /// The text format: `none`, `true`, `3`, `0.5`, `"same"`, `f32`, `(1, 2)`, `0:n:1`, `...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Int(d) => write!(f, "{d}"),
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Str(s) => write!(f, "{s:?}"),
            Self::DType(d) => write!(f, "{d}"),
            Self::Tuple(items) => {
                f.write_str("(")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(if items.len() == 1 { ",)" } else { ")" })
            }
            Self::Slice(parts) => write!(f, "{}:{}:{}", parts[0], parts[1], parts[2]),
            Self::Ellipsis => f.write_str("..."),
            Self::Tensor(t) => write!(f, "{t}"),
            Self::Training => f.write_str("training"),
        }
    }
}
