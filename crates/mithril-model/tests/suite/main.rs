//! Tests of models through the public interface, in one program.

mod extend;
mod flatten;
mod layers;
mod save;
mod summary;
mod values;
