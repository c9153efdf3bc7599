//! Epilogues: what becomes of a finished sum before it is written, as a scalar C expression that the C compiler
//! vectorises over the columns of a tile that is still in the first-level cache.

use crate::c::kernels::spec::strides::{Strides, batch_offset};

/// The elementwise epilogue of a contraction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epilogue {
    /// Further arrays that the expression reads.
    pub operands: Vec<Operand>,
    /// A C expression over `{acc}` (the sum) and `{0}`, `{1}`, … (the operands' elements at this place). It may also
    /// name the C variables `batch`, `row` and `column` (of type `long`). Its functions must be defined before the
    /// kernels in the file.
    pub expression: String,
    /// The same over vectors of float, if there is such an expression; it names no other variables, and of functions
    /// those of which [`is_vector_function`] is true.
    pub vectors: Option<String>,
}

/// An array that an epilogue reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// The C type of its elements.
    pub element: String,
    /// Strides over the *result's* batch axes, rows and columns; 0 where it is broadcast.
    pub strides: Strides,
}

impl Operand {
    /// One element for each column of a result without batch axes (the bias of a linear layer).
    pub fn per_column(element: &str) -> Self {
        Self { element: element.to_owned(), strides: Strides { batch: vec![], row: 0, column: 1 } }
    }
}

impl Epilogue {
    /// The sum as it is.
    pub fn none() -> Self {
        Self { operands: vec![], expression: "{acc}".to_owned(), vectors: Some("{acc}".to_owned()) }
    }

    /// Parameters of a function that takes the operands: `, const float *restrict operand0`, ….
    pub(crate) fn parameters(&self) -> String {
        let parameter = |(index, operand): (usize, &Operand)| {
            format!(", const {} *restrict operand{index}", operand.element)
        };
        self.operands.iter().enumerate().map(parameter).collect()
    }

    /// The operands handed on: `, operand0`, ….
    pub(crate) fn arguments(&self) -> String {
        (0..self.operands.len()).fold(String::new(), |text, index| format!("{text}, operand{index}"))
    }

    /// The expression at `batch`, `row`, `column`, of the sum in `accumulator`.
    pub(crate) fn text(&self, batch: &[usize]) -> String {
        let mut text = self.expression.replace("{acc}", "accumulator");
        for (index, operand) in self.operands.iter().enumerate() {
            let place = place(&operand.strides, batch);
            text = text.replace(&format!("{{{index}}}"), &format!("operand{index}[{place}]"));
        }
        text
    }
}

/// The C expression of an element's place: batch offset, then row and column by their strides.
pub(crate) fn place(strides: &Strides, batch: &[usize]) -> String {
    let mut terms = Vec::new();
    let offset = batch_offset(batch, &strides.batch);
    if offset != "0" {
        terms.push(offset);
    }
    for (name, stride) in [("row", strides.row), ("column", strides.column)] {
        match stride {
            0 => {}
            1 => terms.push(name.to_owned()),
            stride => terms.push(format!("{name} * {stride}")),
        }
    }
    if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
}
