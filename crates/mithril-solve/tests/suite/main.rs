//! Tests of the solver through its public interface, in one program.

mod equations;
mod inference;
mod messages;
mod order;
mod propagation;
