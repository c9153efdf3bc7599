//! C as text: expressions, reductions, names, comments, arithmetic of known integers, line breaks.

pub mod comment;
pub mod expr;
pub mod namer;
pub mod reduce;
pub mod simplify;
pub mod template;
pub mod wrap;
