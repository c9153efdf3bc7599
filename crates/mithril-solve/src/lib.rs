//! Solver for shapes, dtypes and literal values; knows relations, no op.
//!
//! A [`Slot`] stands for what is unknown of one connection: its shape, dtype and literal value. Facts
//! ([`Solver::set_shape`] …) and relations ([`Solver::relate`]) arrive one at a time, in any order; each is
//! propagated at once, in every direction in which it decides something, so that a contradiction is an error
//! at the line that caused it. What is derived is only what is forced, hence the result does not depend on the
//! order.
//!
//! What is left open, because deciding it would need a case distinction or more algebra than shapes are worth: a
//! size next to another under broadcasting that may or may not be 1; simultaneous equations in which no symbol has
//! the coefficient 1 or -1; and, until the rank is known, how a known left end and a known right end of a shape
//! overlap (the shape then shows the end that was known first). A product that is only solved by a size of 0
//! (`12*n = 13*n`) counts as a contradiction.

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
