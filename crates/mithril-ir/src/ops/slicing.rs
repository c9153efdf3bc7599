//! Slices: parts of a tensor along its axes, and what is made of them.

use crate::op::OpDef;

/// Rows of this file.
pub static OPS: &[&OpDef] = &[];
