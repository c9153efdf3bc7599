//! Sorting, and the largest or smallest elements.

use crate::op::OpDef;

/// Rows of this file.
pub static OPS: &[&OpDef] = &[];
