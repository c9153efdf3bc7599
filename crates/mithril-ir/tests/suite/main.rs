//! Tests of ops through the interpreter, in one program.

mod linalg;
mod movement;
mod numbers;
