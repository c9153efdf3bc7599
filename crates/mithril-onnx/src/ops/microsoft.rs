//! To be written.

use super::Table;

pub static OPS: Table = &[];
