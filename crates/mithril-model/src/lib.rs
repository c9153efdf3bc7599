//! Logical models: connections, layers, save and load.
//!
//! A [`Model`] says what is computed, and nothing about where. [`Model::extend`] (`model |= child(...)`) and
//! [`Model::chain`] (`model += child(...)`) add to it; [`Connection`]s write the same as expressions; shapes and
//! dtypes are inferred at every step. [`flatten`] makes a graph of it.

mod called;
mod connection;
mod create;
mod edit;
mod extend;
mod file;
mod flatten;
mod init;
mod inputs;
mod key;
pub mod layers;
mod leaf;
mod limits;
mod literal_fn;
mod load;
mod model;
pub mod names;
pub mod optimizers;
mod relations;
mod save;
mod settings;
mod summary;
pub mod zoo;

pub use connection::{Arg, Connection, Spec};
pub use extend::Child;
pub use flatten::{Flat, FlattenOptions, Input, flatten, unneeded_inputs};
pub use init::{Distribution, Fan, Init, Values, VarianceScaling, init_parameters};
pub use key::{Declared, IOKey, Size};
pub use limits::{Limit, SizeLimit};
pub use literal_fn::LiteralFn;
pub use model::{MAX_DEPTH, MAX_SIZE, Model};
pub use summary::Row as SummaryRow;
