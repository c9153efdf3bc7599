//! Embedding, attention and rotary positions.

use crate::op::OpDef;

/// Rows of this file.
pub static OPS: &[&OpDef] = &[];
