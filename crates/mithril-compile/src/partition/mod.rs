//! Partitioning: one graph becomes the program that every device of a mesh runs, with collectives where devices
//! exchange tensors.
//!
//! - [`mesh`]: devices in a grid of named axes, and which axis of a tensor is divided along which axis of the mesh;
//! - [`request`]: where a layout puts the inputs of a graph;
//! - [`rule`]: how a use of an op divides, derived from the tensor expressions of its definition;
//! - [`pass`]: propagates placements through the graph and inserts collectives;
//! - [`memo`]: what was chosen for equal uses of ops, such as those of repeated layers;
//! - [`cost`]: arithmetic, bytes and estimated time of a program on a description of hardware;
//! - [`groups`]: parameters that are used alike, which the search divides alike;
//! - [`repeats`]: equal layers, of which the search costs one for many;
//! - [`search`]: looks for the layout of the shortest step that fits in memory;
//! - [`stages`]: cuts a program into what each device of a pipeline runs;
//! - [`memory`]: what a device holds;
//! - [`virtual_mesh`]: runs the program of all devices in one process, the reference of every engine.

pub mod cost;
pub mod groups;
pub mod memo;
pub mod memory;
pub mod mesh;
pub mod pass;
pub mod repeats;
pub mod request;
pub mod rule;
pub mod search;
pub mod stages;
pub mod virtual_mesh;

pub use cost::{Estimate, Hardware, estimate};
pub use memory::{DeviceMemory, device_memory};
pub use mesh::{Layout, Mesh};
pub use pass::{Communication, Partitioned, partition};
pub use rule::{Placement, Reduction};
pub use search::{Candidate, Found, Training, search};
pub use stages::{Stages, stages};
