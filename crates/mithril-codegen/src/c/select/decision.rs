//! What became of the weights that were to be quantized.

use crate::c::options::Scheme;

/// What became of a product with a fixed factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The path of the weight.
    pub weight: String,
    /// How it is kept, or why it stays float.
    pub outcome: Result<Scheme, Reason>,
    /// The matrix in the weight's elements, terms in the order in which they are kept.
    pub matrix: Matrix,
    /// Bytes in which it is kept.
    pub bytes: usize,
    /// Whether it is the weight of a convolution, whose image has one range.
    pub is_convolution: bool,
    /// The range of the image, if it is known ahead.
    pub range: Option<[f32; 2]>,
}

/// Why a weight stays float.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// For readers.
    pub text: String,
    /// Whether that was asked for, or is the default: strict quantization accepts it.
    pub is_intended: bool,
}

/// A matrix as elements of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    /// Position of its first element.
    pub start: usize,
    /// Columns; each is an output.
    pub n: usize,
    /// Elements from a column to the next.
    pub column: usize,
    /// The axes that count the terms of a column: how many, and elements from one to the next.
    pub terms: Vec<(usize, usize)>,
    /// Where there are several such matrices: how many, and elements from one to the next, for each axis.
    pub batch: Vec<(usize, usize)>,
}

impl Reason {
    /// Of something that this version cannot do.
    pub fn cannot(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_intended: false }
    }
}
