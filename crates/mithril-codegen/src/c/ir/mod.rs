//! The intermediate representation: programs of buffers and steps, kernels as steps name them, layouts, and the statements of
//! the function that runs a program.

pub mod driver;
pub mod expr;
pub mod kernel;
pub mod layout;
pub mod parse;
pub mod program;
pub mod text;
