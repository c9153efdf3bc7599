//! Normalisation: over the batch, features, groups.

use crate::op::OpDef;

/// Rows of this file.
pub static OPS: &[&OpDef] = &[];
