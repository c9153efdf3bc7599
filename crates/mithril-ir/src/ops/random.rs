//! Random numbers of the common generator.

use crate::op::OpDef;

/// Rows of this file.
pub static OPS: &[&OpDef] = &[];
