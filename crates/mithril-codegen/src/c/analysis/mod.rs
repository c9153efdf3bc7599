//! Analyses: what is known of loops and programs, which they leave as they are.

pub mod affine;
pub mod batch;
pub mod collapse;
pub mod contraction;
pub mod convolution;
pub mod cost;
pub mod dependence;
pub mod packing;
pub mod split;
