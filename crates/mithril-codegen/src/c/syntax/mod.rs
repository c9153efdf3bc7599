//! C as text: expressions, reductions, names, comments, line breaks.

pub mod comment;
pub mod expr;
pub mod namer;
pub mod reduce;
pub mod template;
pub mod wrap;
