//! Tests of generated code, in one program.

mod c;
mod foreach;
mod kernels;
mod loops;
mod mathematics;
mod numpy;
