//! What is said about a connection: name, shape, dtype, value, role and initial value ([`IOKey`]).

use std::sync::Arc;

use mithril_ir::{DType, Dim, Lit, Role};

use crate::init::Init;
use crate::limits::Limit;

/// A size as a user declares it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Size {
    /// Any size; inferred if possible.
    Unknown,
    /// A number or a symbolic expression.
    Is(Dim),
}

impl From<i64> for Size {
    fn from(n: i64) -> Self {
        Self::Is(n.into())
    }
}
impl From<i32> for Size {
    fn from(n: i32) -> Self {
        Self::Is(n.into())
    }
}
impl From<usize> for Size {
    fn from(n: usize) -> Self {
        Self::Is(n.into())
    }
}
impl From<&str> for Size {
    fn from(symbol: &str) -> Self {
        Self::Is(symbol.into())
    }
}
impl From<Dim> for Size {
    fn from(dim: Dim) -> Self {
        Self::Is(dim)
    }
}
impl<T: Into<Size>> From<Option<T>> for Size {
    fn from(size: Option<T>) -> Self {
        size.map_or(Self::Unknown, Into::into)
    }
}

/// What was declared about an input, output or intermediate connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declared {
    /// Shape; sizes may be unknown.
    pub shape: Option<Vec<Size>>,
    /// Dtype.
    pub dtype: Option<DType>,
    /// What an input is for: learned, given at each call, or kept from call to call.
    pub role: Option<Role>,
    /// Initial value of a parameter or state.
    pub init: Option<Init>,
    /// Sizes of axes that the model holds for.
    pub limits: Vec<Limit>,
}

impl Declared {
    /// Takes over from `other` what is not declared here.
    pub(crate) fn fill_from(&mut self, other: &Self) {
        if self.shape.is_none() {
            self.shape.clone_from(&other.shape);
        }
        self.dtype = self.dtype.or(other.dtype);
        if self.limits.is_empty() {
            self.limits.clone_from(&other.limits);
        }
        self.role = self.role.or(other.role);
        if self.init.is_none() {
            self.init.clone_from(&other.init);
        }
    }
}

/// A connection to be made, with everything that can be said about it.
///
/// ```
/// use mithril_model::IOKey;
/// let key = IOKey::new("image").shape([None, Some(3), None, None]).trainable(false);
/// assert_eq!(key.name(), Some("image"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IOKey {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) value: Option<Lit>,
    pub(crate) expose: Option<bool>,
    pub(crate) declared: Declared,
}

impl IOKey {
    /// A connection of that name.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self { name: Some(name.as_ref().into()), ..Self::default() }
    }
    /// A connection without a name.
    pub fn unnamed() -> Self {
        Self::default()
    }
    /// The name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
    /// Declares the shape.
    #[must_use]
    pub fn shape<S: Into<Size>>(mut self, shape: impl IntoIterator<Item = S>) -> Self {
        self.declared.shape = Some(shape.into_iter().map(Into::into).collect());
        self
    }
    /// Declares the dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.declared.dtype = Some(dtype);
        self
    }
    /// Declares the smallest and the largest size of an axis; others are an error.
    #[must_use]
    pub fn limit(mut self, axis: usize, min: i64, max: Option<i64>) -> Self {
        self.declared.limits.push(Limit { axis, min, max });
        self
    }
    /// Gives a constant value, or the default of an input.
    #[must_use]
    pub fn value(mut self, value: impl Into<Lit>) -> Self {
        self.value = Some(value.into());
        self
    }
    /// Makes the connection an output of the model, or keeps it from being one.
    #[must_use]
    pub fn expose(mut self, expose: bool) -> Self {
        self.expose = Some(expose);
        self
    }
    /// Whether an input is learned.
    #[must_use]
    pub fn trainable(mut self, trainable: bool) -> Self {
        self.declared.role = Some(if trainable { Role::Param } else { Role::Data });
        self
    }
    /// How an input that is learned starts.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.declared.init = Some(init);
        self
    }
}

impl From<&str> for IOKey {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}
