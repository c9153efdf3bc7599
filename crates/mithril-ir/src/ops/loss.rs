//! Losses, with the semantics of PyTorch.

use crate::op::OpDef;

/// Rows of this file.
pub static OPS: &[&OpDef] = &[];
