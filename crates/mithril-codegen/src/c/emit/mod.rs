//! The generated file: a function per step, the function that runs them all, the header, and the comments for readers.

pub mod batch;
pub mod driver;
pub mod fast_path;
pub mod file;
pub mod guide;
pub mod header;
mod iterations;
pub mod nest;
mod reroll;
pub mod units;
