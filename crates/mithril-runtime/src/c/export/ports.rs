//! What is reported of an exported model: memory, and what its functions take and give, for wrappers in other languages.

use std::sync::Arc;

use mithril_ir::DType;
use mithril_ir::graph::Role;

use super::{Parts, Report, bytes_of};
use crate::c::call::TensorSpec;

/// An input or output of `..._run`.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: Arc<str>,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape; for a model with any number of rows that of the recorded data.
    pub shape: Vec<usize>,
    /// What an input is for; `None` for outputs.
    pub role: Option<Role>,
    /// Where it lies in the weights file, from its start; `None` for data, outputs, and what is packed.
    pub offset: Option<usize>,
    /// Of an output that is a new state: the number of the input that it replaces.
    pub replaces: Option<usize>,
    /// Whether the first axis is the number of rows that a call is given.
    pub has_rows: bool,
    /// Of an output: the largest distance from the recorded one, in parts of its largest element; 0 where all bits are
    /// compared.
    pub allowed: f64,
}

impl Parts<'_> {
    /// Inputs and outputs in the order of `..._run`.
    pub(super) fn ports(&self) -> (Vec<Port>, Vec<Port>) {
        let batch = self.interface.batch.as_ref().map(|(rows, _)| rows);
        let port = |buffer: &TensorSpec| Port {
            name: buffer.name.clone(),
            dtype: buffer.dtype,
            shape: buffer.shape.clone(),
            role: None,
            offset: None,
            replaces: None,
            has_rows: false,
            allowed: 0.0,
        };
        let mut inputs: Vec<Port> = self.interface.inputs.iter().map(port).collect();
        let mut outputs: Vec<Port> = self.interface.outputs.iter().map(port).collect();
        for (i, (input, role)) in inputs.iter_mut().zip(&self.interface.roles).enumerate() {
            input.role = Some(*role);
            input.has_rows = batch.is_some_and(|rows| rows.inputs[i].is_some());
        }
        for (i, output) in outputs.iter_mut().enumerate() {
            output.has_rows = batch.is_some_and(|rows| rows.outputs[i].is_some());
            output.allowed = self.allowed.get(i).copied().unwrap_or(0.0);
        }
        for &(i, update, offset) in &self.weights {
            inputs[i].offset = Some(HEAD + offset);
            if let Some(output) = update {
                outputs[output].replaces = Some(i);
            }
        }
        (inputs, outputs)
    }
}

/// Bytes that tell whose weights a file holds.
const HEAD: usize = 64;

impl Report {
    /// What the checking program said.
    pub(super) fn of(check: String) -> Self {
        let number = |name: &str| bytes_of(&check, name);
        Self {
            packed_bytes: number("packed parameters:"),
            pack_bytes: number("scratch while packing:"),
            arena_bytes: number("arena:"),
            check,
            ..Self::default()
        }
    }
}
