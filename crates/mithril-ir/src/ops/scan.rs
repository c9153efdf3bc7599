//! Running sums and products along an axis.

use crate::op::OpDef;

/// Rows of this file.
pub static OPS: &[&OpDef] = &[];
