//! Partitioning: one graph becomes the program that every device of a mesh runs, with collectives where devices
//! exchange tensors.
//!
//! - [`mesh`]: devices in a grid of named axes, and which axis of a tensor is divided along which axis of the mesh;
//! - [`request`]: where a layout puts the inputs of a graph;
//! - [`sections`]: axes that are divided section by section, as those of fused weights; `seams` finds the sections;
//! - [`rule`]: how a use of an op divides, derived from the tensor expressions of its definition; `compare` proves it, `indexed`
//!   adds lookups in divided tables, [`halo`] windows over divided axes (`rows` says which rows they read), `expansion` ops that
//!   consist of others;
//! - [`pass`]: the steps along each axis of the mesh: `axis` propagates placements through the graph and inserts
//!   collectives, with the ways of each op that `choose` takes; `reductions` moves sums to where they send the least
//!   (`flow` finds it), `pull` computes in shards what is only read in shards;
//! - [`padding`]: programs for larger batches, where one does not divide;
//! - [`experts`]: parameters that hold a matrix for each expert;
//! - [`memo`]: what was chosen for equal uses of ops, such as those of repeated layers;
//! - [`cost`]: arithmetic, bytes and estimated time of a program on a description of hardware;
//! - [`groups`]: parameters that are used alike, which the search divides alike;
//! - [`repeats`]: equal layers, of which the search costs one for many;
//! - [`search`]: looks for the layout of the shortest step that fits in memory;
//! - [`stages`]: cuts a program into what each device of a pipeline runs; `micro_batches` says what is the same for all
//!   micro-batches, and sums before devices send;
//! - [`memory`]: what a device holds;
//! - [`virtual_mesh`]: runs the program of all devices in one process, the reference of every engine.

mod axis;
mod choose;
mod compare;
pub mod cost;
mod expansion;
mod experts;
mod flow;
pub mod groups;
pub mod halo;
mod indexed;
pub mod memo;
pub mod memory;
pub mod mesh;
mod micro_batches;
pub mod padding;
pub mod pass;
mod pull;
mod reductions;
pub mod repeats;
pub mod request;
mod rows;
pub mod rule;
mod seams;
pub mod search;
pub mod sections;
pub mod stages;
pub mod virtual_mesh;
pub mod work;
mod write;

pub use cost::{Estimate, Hardware, estimate};
pub use memory::{DeviceMemory, device_memory};
pub use mesh::{Layout, Mesh};
pub use padding::{Padded, pad};
pub use pass::{Communication, Partitioned, partition};
pub use rule::{Placement, Reduction};
pub use search::{Candidate, Found, Training, named, search};
pub use sections::Sections;
pub use stages::{Stages, stages};
pub use write::write;
