//! Expressions whose tensors are buffers of a program.

use mithril_ir::loops;
pub use mithril_ir::loops::{
    Binary, ERROR_PLACES, ERRORS, MESH_ERROR, ReduceOp, Var, arithmetic, flat, unflat,
};

use crate::ids::{Id as _, id};

id!(
    /// A buffer of a program.
    BufferId
);
id!(
    /// A step of a program, by its place in the list.
    StepId
);

impl loops::TensorRef for BufferId {}

/// The variables that have more than one value, or none: those that need a loop.
pub fn non_unit(vars: &[Var]) -> Vec<Var> {
    vars.iter().copied().filter(|v| v.size != 1).collect()
}

/// The value of one element.
pub type Expr = loops::Expr<BufferId>;
/// A position on an axis.
pub type Index = loops::Index<BufferId>;
/// What a position is a sum of.
pub type Atom = loops::IndexTerm<BufferId>;
/// A test on indices.
pub type Within = loops::Within<BufferId>;
/// A call of a function of the prelude.
pub type Call = loops::PreludeCall<BufferId>;
/// What such a call is given.
pub type Argument = loops::CallArgument<BufferId>;

impl std::ops::Add<usize> for StepId {
    type Output = Self;
    fn add(self, steps: usize) -> Self {
        Self::new(self.index() + steps)
    }
}

impl std::ops::Sub<usize> for StepId {
    type Output = Self;
    fn sub(self, steps: usize) -> Self {
        Self::new(self.index() - steps)
    }
}
