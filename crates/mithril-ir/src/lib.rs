//! Data types, dimensions, tensors, ops and the graph of the Mithril compiler.
//!
//! The way in: [`op`] is the form that every op fills in, [`ops`] are the rows, [`graph`] is what passes walk,
//! [`build`] makes typed graphs, [`interp`] runs them.

pub mod build;
pub mod dim;
pub mod dtype;
pub mod error;
pub mod forms;
pub mod formula;
pub mod graph;
pub mod interp;
pub mod literal;
pub mod loops;
pub mod lowering;
pub mod memory;
pub mod op;
pub mod ops;
pub mod pattern;
pub mod random;
pub mod rules;
pub mod shape;
pub mod signature;
pub mod tensor;
pub mod text;
pub mod unique_names;
pub mod verify;

pub use build::Builder;
pub use dim::{Dim, Symbol};
pub use dtype::{DType, Kind, Kinds};
pub use error::{Code, Error, Place, Result};
pub use formula::{Cx, ExpandCx, GradCx, V};
pub use graph::{Graph, NodeId, Role, TensorType, ValueId};
pub use literal::Lit;
pub use op::OpDef;
pub use shape::Shape;
pub use tensor::{Scalar, Tensor};
