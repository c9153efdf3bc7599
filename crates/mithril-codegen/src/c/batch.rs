//! A size that is an argument when running: whether a program only carries it along, and the function that walks through any
//! number of batch elements in blocks of those that the program computes.

use mithril_ir::Graph;
use mithril_ir::error::Result;

use crate::c::analysis::batch;
use crate::c::lower::lower;

pub use crate::c::analysis::batch::{Rows, SIZES};
pub use crate::c::emit::batch::extend;

/// The rows of a graph, given with a size being each of [`SIZES`]; an error that names the op if it does not treat each
/// row by itself. `name` is what the size is called.
pub fn rows(graphs: [&Graph; 2], name: &str) -> Result<Rows> {
    batch::rows(&[lower(graphs[0], false)?, lower(graphs[1], false)?], name)
}
