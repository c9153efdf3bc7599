//! Where the elements of matrices lie, and how they are stored.

use crate::c::target::Element;

/// How the elements of a factor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stored {
    /// As they are calculated with.
    #[default]
    Same,
    /// As float16.
    F16,
    /// As bfloat16.
    BF16,
}

impl Stored {
    /// The C type.
    pub fn c(self, element: Element) -> &'static str {
        if self == Self::Same { element.c() } else { "uint16_t" }
    }

    /// What stands before an element that is read: the function of the prelude that makes a `float` of it.
    pub fn open(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::F16 => "mithril_from_f16(",
            Self::BF16 => "mithril_from_bf16(",
        }
    }

    /// What stands behind it.
    pub fn close(self) -> &'static str {
        if self == Self::Same { "" } else { ")" }
    }

    /// What functions that read it have in their names.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::F16 => "f16_",
            Self::BF16 => "bf16_",
        }
    }
}

/// Where the elements of a batch of matrices lie, in elements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strides {
    /// One stride for each batch axis; 0 where all of the axis share the matrix.
    pub batch: Vec<usize>,
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub column: usize,
}

/// The C expression of a batch's offset: `batch` counts through axes of these sizes.
pub fn batch_offset(sizes: &[usize], strides: &[usize]) -> String {
    let mut terms = Vec::new();
    let mut inner = 1;
    for (axis, (&size, &stride)) in sizes.iter().zip(strides).enumerate().rev() {
        if stride != 0 && size > 1 {
            let index = match (inner, axis) {
                (1, 0) => "batch".to_owned(),
                (1, _) => format!("batch % {size}"),
                (inner, 0) => format!("batch / {inner}"),
                (inner, _) => format!("batch / {inner} % {size}"),
            };
            terms.push(format!("{index} * {stride}"));
        }
        inner *= size;
    }
    if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
}
