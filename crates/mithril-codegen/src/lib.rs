//! Typed graph to source text, one module per target family.
