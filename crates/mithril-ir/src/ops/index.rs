//! Look-up by integer tensors.

use crate::op::OpDef;

/// Rows of this file.
pub static OPS: &[&OpDef] = &[];
