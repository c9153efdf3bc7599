//! Tensors that are kept as bytes: a range of numbers, and how they become bytes.

use crate::c::ir::layout::{Blocks, Bytes};

/// Numbers of a range that is known ahead, as bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AsBytes {
    /// The range.
    pub range: [f32; 2],
    /// From the pointer to the tensor to where it is flagged, for each row and each vector of channels, whether a number is NaN.
    pub nan_flags: usize,
    /// NaN flags of an image.
    pub nan_flags_of: usize,
}

/// What a convolution has as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct InBytes {
    /// The image, whose places are those of bytes.
    pub image: Option<AsBytes>,
    /// The result.
    pub out: Option<AsBytes>,
    /// Whether the weights are integers already, which need no scale.
    pub of_integers: bool,
}

/// How numbers of a range become bytes, `number · inverse + zero`, as `mithril_bytes` would have it.
pub(crate) struct Numbers {
    pub scale: f32,
    pub inverse: f32,
    pub zero: f32,
}

impl Numbers {
    pub fn of([low, high]: [f32; 2]) -> Self {
        let range = high.max(0.0) - low.min(0.0);
        let inverse = if range > 1e-30 { 255.0 / range } else { 0.0 };
        Self { scale: range / 255.0, inverse, zero: (0.5 - low.min(0.0) * inverse).floor() }
    }

    /// Statements that set them.
    pub fn text(&self) -> String {
        format!("scale = {:e}f, inverse = {:e}f, zero = {:e}f;", self.scale, self.inverse, self.zero)
    }
}

impl AsBytes {
    /// The bytes of a tensor of this shape in blocks, for a kernel that starts at this element; `None` if it lies as floats.
    pub fn of(blocks: &Blocks, shape: &[i64], start: usize) -> Option<Self> {
        let nan_flags = blocks.planes(shape) as usize - start;
        let Bytes { range, nan_flags: of } = blocks.bytes?;
        Some(Self { range, nan_flags, nan_flags_of: of as usize })
    }

    /// The byte that stands for 0, as it is kept.
    pub fn zero(&self) -> String {
        format!("{} - MITHRIL_DOT_OFFSET", Numbers::of(self.range).zero)
    }
}
