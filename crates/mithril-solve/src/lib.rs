//! Solver for shapes, dtypes and literal values. It knows relations but no ops.
//!
//! A [`Slot`] holds the unknowns of one connection: its shape, dtype and literal value. Facts ([`Solver::set_shape`] …) and
//! relations ([`Solver::relate`]) arrive one at a time, in any order. Each is propagated immediately, in all directions, so
//! that a contradiction is an error at the line that caused it. Only necessary consequences are derived, so the result does
//! not depend on the order.
//!
//! Some cases stay undecided, since they would need a case distinction or more algebra: a size under broadcasting that may or
//! may not be 1; simultaneous equations in which no symbol has the coefficient 1 or -1; and, until the rank is known, the
//! overlap of a known left end and a known right end of a shape (the shape then shows the end that was known first). An
//! equation that only a size of 0 solves (`12*n = 13*n`) counts as a contradiction.

mod broadcast;
mod facts;
mod pattern;
mod relation;
mod report;
mod solver;
mod store;
mod term;
mod unify;
mod why;

pub use relation::{Answer, Fact, Facts, Relation, Rule, WhenFn};
pub use solver::Solver;
pub use store::Slot;
pub use term::{Seq, ShapeTerm};
pub use why::Why;
