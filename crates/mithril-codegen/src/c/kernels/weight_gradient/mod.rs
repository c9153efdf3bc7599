//! Gradients of the weights of convolutions.

pub mod correlation;
pub mod grouped;
