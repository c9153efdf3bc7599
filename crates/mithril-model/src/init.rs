//! Initial values of parameters, the same on every backend.

use std::sync::Arc;

/// How a parameter starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All that number.
    Constant(f64),
    /// Uniform between minus and plus that bound.
    Uniform(f64),
    /// Normal with mean 0 and that standard deviation.
    Normal(f64),
    /// Uniform with bound `1/√fan_in`, the default of linear and convolution layers (Kaiming uniform, a = √5).
    KaimingUniform,
    /// Uniform with bound `1/√fan_in` of the parameter at that port of the same layer, for biases.
    FanInOf(Arc<str>),
    /// Uniform with bound `√(6/(fan_in + fan_out))` (Glorot and Bengio 2010).
    XavierUniform,
    /// Normal with standard deviation `√(2/(fan_in + fan_out))`.
    XavierNormal,
}
