//! Tests of generated code, in one program.

mod c;
mod kernels;
mod mathematics;
mod numpy;
