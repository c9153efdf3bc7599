//! Relations between slots.

use std::fmt;
use std::sync::Arc;

use mithril_ir::{DType, Dim, Lit, Result};
use smallvec::SmallVec;

use crate::store::Slot;
use crate::term::ShapeTerm;

/// The relation between shapes.
#[derive(Clone)]
pub enum Rule {
    /// All outputs have the shape of the first tensor input.
    Same,
    /// All tensor inputs broadcast to the output.
    Broadcast,
    /// A pattern as in [`mithril_ir::pattern`], over the tensor inputs in order; absent optional inputs (literal
    /// `none`) are skipped.
    Pattern(&'static str),
    /// A function, which is evaluated again whenever more is known about an input.
    When(WhenFn),
    /// The shapes are independent.
    Free,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("Same"),
            Self::Broadcast => f.write_str("Broadcast"),
            Self::Pattern(text) => write!(f, "Pattern({text:?})"),
            Self::When(_) => f.write_str("When"),
            Self::Free => f.write_str("Free"),
        }
    }
}

/// A function from the facts about the inputs to their consequences.
///
/// It must be monotone: its answers must remain true when more is known. It treats sizes that are variables as symbols; sizes that
/// must be equal go into [`Facts::equations`].
pub type WhenFn = Arc<dyn Fn(&[Fact]) -> Result<Answer> + Send + Sync>;

/// One use of an op, or any other relation between slots.
#[derive(Clone)]
pub struct Relation {
    /// The relation between the shapes.
    pub rule: Rule,
    /// The relation between the dtypes; the function sees dtypes and literals but no shapes.
    pub dtype: Option<WhenFn>,
    /// The inputs in the order of the ports.
    pub inputs: SmallVec<[Slot; 4]>,
    /// Which inputs are tensors, as opposed to arguments; inputs beyond its end are tensors.
    pub tensor_ports: SmallVec<[bool; 4]>,
    /// Names of the inputs for messages (`left`, `right`); inputs beyond its end have the names of their slots.
    pub port_names: SmallVec<[&'static str; 4]>,
    /// The outputs.
    pub outputs: SmallVec<[Slot; 4]>,
    /// Name for messages, e.g. `add`.
    pub label: Arc<str>,
}

impl Relation {
    /// A relation whose inputs are all tensors.
    pub fn new(
        label: impl Into<Arc<str>>,
        rule: Rule,
        inputs: impl IntoIterator<Item = Slot>,
        outputs: impl IntoIterator<Item = Slot>,
    ) -> Self {
        Self {
            rule,
            dtype: None,
            inputs: inputs.into_iter().collect(),
            tensor_ports: SmallVec::new(),
            port_names: SmallVec::new(),
            outputs: outputs.into_iter().collect(),
            label: label.into(),
        }
    }
    /// Whether input `i` is a tensor.
    pub fn is_tensor(&self, i: usize) -> bool {
        self.tensor_ports.get(i).copied().unwrap_or(true)
    }
}

impl fmt::Debug for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {:?} -> {:?}", self.label, self.rule, self.inputs, self.outputs)
    }
}

/// A fact about an input or output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fact {
    /// The shape, as far as known; `None` if nothing is known.
    pub shape: Option<ShapeTerm>,
    /// The dtype.
    pub dtype: Option<DType>,
    /// The literal value, `Lit::None` for an absent input.
    pub literal: Option<Lit>,
}

impl Fact {
    /// A fact about a shape.
    pub fn shape(shape: impl Into<ShapeTerm>) -> Self {
        Self { shape: Some(shape.into()), ..Self::default() }
    }
    /// A fact about a dtype.
    pub fn dtype(dtype: DType) -> Self {
        Self { dtype: Some(dtype), ..Self::default() }
    }
    /// A fact about a literal.
    pub fn literal(literal: impl Into<Lit>) -> Self {
        Self { literal: Some(literal.into()), ..Self::default() }
    }
}

/// Answer of a [`WhenFn`].
#[derive(Clone, Debug)]
pub enum Answer {
    /// Not enough is known; the function is evaluated again when more is.
    Later,
    /// These facts follow.
    Now(Facts),
}

/// The consequences of a relation.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// For the outputs in order; there are none for missing ones.
    pub outputs: Vec<Fact>,
    /// Sizes that must be equal.
    pub equations: Vec<(Dim, Dim)>,
    /// For the inputs in order.
    pub inputs: Vec<Fact>,
}

impl Facts {
    /// Facts about the outputs alone.
    pub fn outputs(outputs: impl IntoIterator<Item = Fact>) -> Self {
        Self { outputs: outputs.into_iter().collect(), ..Self::default() }
    }
}
