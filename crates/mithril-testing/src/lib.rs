//! What every test of ops and targets is made of: samples derived from the op definitions, tolerances, gradient checks.

pub mod c_text;
pub mod case;
pub mod gradient;
pub mod matrix;
pub mod program;
pub mod random;
pub mod run;
pub mod tolerance;
