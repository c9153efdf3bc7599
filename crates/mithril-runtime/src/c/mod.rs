//! Generated C at work: compiled, kept, loaded and called.
//!
//! [`compiler`] finds a C compiler and runs it, [`cache`] keeps what it made, [`library`] loads that, [`pool`] gives
//! it threads, [`memory`] its scratch memory, and [`call`] checks what is passed and calls it.

mod affinity;
pub mod array;
pub mod cache;
pub mod call;
pub mod compiler;
pub mod export;
pub mod library;
pub mod memory;
pub mod mpi;
pub mod peak;
pub mod pool;
mod private;
mod processor;
pub mod program;
pub mod tune;

pub use array::{Address, AddressMut, Array};
pub use cache::Cache;
pub use call::{Function, Interface, Packed, Packing, TensorSpec};
pub use compiler::{Compiler, Tool};
pub use mithril_compile::c::{COptions as Options, OptionDef, OptionKind, Value};
pub use program::{EntryPoint, Program, Specialized};
