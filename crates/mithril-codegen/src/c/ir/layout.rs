//! How a tensor lies in memory other than in row-major order: in blocks of channels (NCHWc), between margins of zeros.

use std::fmt;

use mithril_ir::loops::{Index, flat};

/// How a tensor [images, channels, rows, pixels] lies: [images][blocks of channels][rows][pixels][lanes].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// Channels of a block.
    pub lanes: i64,
    /// Rows above and below, pixels to the left and to the right that are zero.
    pub margins: [[i64; 2]; 2],
    /// How numbers are kept as bytes, if they are. Behind them lie notes: for each row and each vector of channels of an image,
    /// whether one of them is NaN.
    pub bytes: Option<Bytes>,
}

/// Bytes that stand for numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bytes {
    /// The range of the numbers.
    pub range: [f32; 2],
    /// Notes of an image.
    pub notes: i64,
}

impl Blocks {
    /// Elements of a row with its margins.
    pub fn row(&self, shape: &[i64]) -> i64 {
        (self.margins[1][0] + shape[3] + self.margins[1][1]) * self.lanes
    }
    /// Elements from one block to the next: a vector more, so that blocks are not powers of two apart.
    pub fn plane(&self, shape: &[i64]) -> i64 {
        (self.margins[0][0] + shape[2] + self.margins[0][1]) * self.row(shape) + self.lanes
    }
    /// Elements of all, and notes behind them.
    pub fn elements(&self, shape: &[i64]) -> i64 {
        self.planes(shape) + self.bytes.map_or(0, |bytes| shape[0] * bytes.notes)
    }
    /// Elements of all.
    pub fn planes(&self, shape: &[i64]) -> i64 {
        shape[0] * (shape[1] / self.lanes) * self.plane(shape)
    }
    /// Where the element at these coordinates lies; a single one is a position already.
    pub fn position(&self, at: &[Index], shape: &[i64]) -> Index {
        let [image, channel, y, x] = at else { return flat(at, shape) };
        let (row, plane) = (self.row(shape), self.plane(shape));
        let (block, lane) = match self.lanes {
            all if all == shape[1] => (Index::default(), channel.clone()),
            lanes => (channel.floor_div(lanes), channel.modulo(lanes)),
        };
        image.clone() * (shape[1] / self.lanes * plane)
            + block * plane
            + (y.clone() + Index::number(self.margins[0][0])) * row
            + (x.clone() + Index::number(self.margins[1][0])) * self.lanes
            + lane
    }
    /// Whether there are margins.
    pub fn has_margins(&self) -> bool {
        self.margins != [[0; 2]; 2]
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [[top, bottom], [left, right]] = self.margins;
        write!(f, " in blocks of {}, margins {top} {bottom} {left} {right}", self.lanes)?;
        self.bytes.map_or(Ok(()), |bytes| write!(f, ", bytes for {:?}", bytes.range))
    }
}
