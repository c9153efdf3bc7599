//! Blocked layout (NCHWc): tensors in blocks of channels with a halo of zeros around each image.

use std::fmt;

use crate::c::ir::expr::{Index, flat};

/// The layout of a tensor [images, channels, rows, pixels] as [images][blocks of channels][rows][pixels][lanes]. Volumes
/// [images, channels, frames, rows, pixels] are stored frame by frame, [images][frames][blocks of channels][rows][pixels][lanes]:
/// the channels of successive frames are like more channels of one frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// Channels of a block.
    pub lanes: i64,
    /// The halo: rows above and below, pixels to the left and to the right that are zero.
    pub halo: [[i64; 2]; 2],
    /// Frames in front and behind that are zero; none for images.
    pub frame_halo: [i64; 2],
    /// The quantization, if numbers are stored as bytes. Behind them are NaN flags: for each row and each vector of channels of
    /// an image, whether one of them is NaN.
    pub bytes: Option<Bytes>,
}

/// Bytes that stand for numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bytes {
    /// The range of the numbers.
    pub range: [f32; 2],
    /// NaN flags of an image.
    pub nan_flags: i64,
}

impl Blocks {
    /// Blocks of so many channels, without a halo.
    pub fn of(lanes: i64) -> Self {
        Self { lanes, halo: [[0; 2]; 2], frame_halo: [0; 2], bytes: None }
    }
    /// Elements of a row with its halo.
    pub fn row(&self, shape: &[i64]) -> i64 {
        (self.halo[1][0] + shape[shape.len() - 1] + self.halo[1][1]) * self.lanes
    }
    /// Elements from one block to the next: a vector more, so that blocks are not powers of two apart.
    pub fn plane(&self, shape: &[i64]) -> i64 {
        (self.halo[0][0] + shape[shape.len() - 2] + self.halo[0][1]) * self.row(shape) + self.lanes
    }
    /// Elements from one frame to the next; those of an image that is none of a volume.
    pub fn frame(&self, shape: &[i64]) -> i64 {
        shape[1] / self.lanes * self.plane(shape)
    }
    /// Frames of an image with those in front and behind.
    pub fn frames(&self, shape: &[i64]) -> i64 {
        if shape.len() == 5 { self.frame_halo[0] + shape[2] + self.frame_halo[1] } else { 1 }
    }
    /// Elements from one image to the next.
    pub fn image(&self, shape: &[i64]) -> i64 {
        self.frames(shape) * self.frame(shape)
    }
    /// Elements of all, and NaN flags behind them.
    pub fn elements(&self, shape: &[i64]) -> i64 {
        self.planes(shape) + self.bytes.map_or(0, |bytes| shape[0] * bytes.nan_flags)
    }
    /// Elements of all.
    pub fn planes(&self, shape: &[i64]) -> i64 {
        shape[0] * self.image(shape)
    }
    /// Where the element at these coordinates lies; a single one is a position already.
    pub fn position(&self, at: &[Index], shape: &[i64]) -> Index {
        let (image, channel, z, y, x) = match at {
            [image, channel, y, x] => (image, channel, None, y, x),
            [image, channel, z, y, x] => (image, channel, Some(z), y, x),
            _ => return flat(at, shape),
        };
        let (row, plane) = (self.row(shape), self.plane(shape));
        let (block, lane) = match self.lanes {
            all if all == shape[1] => (Index::default(), channel.clone()),
            lanes => (channel.floor_div(lanes), channel.modulo(lanes)),
        };
        let frame = z.map_or_else(Index::default, |z| {
            (z.clone() + Index::number(self.frame_halo[0])) * self.frame(shape)
        });
        image.clone() * self.image(shape)
            + frame
            + block * plane
            + (y.clone() + Index::number(self.halo[0][0])) * row
            + (x.clone() + Index::number(self.halo[1][0])) * self.lanes
            + lane
    }
    /// Whether there is a halo.
    pub fn has_halo(&self) -> bool {
        self.halo != [[0; 2]; 2] || self.frame_halo != [0; 2]
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [[top, bottom], [left, right]] = self.halo;
        write!(f, " in blocks of {}, halo {top} {bottom} {left} {right}", self.lanes)?;
        if self.frame_halo != [0; 2] {
            write!(f, ", frames {} {}", self.frame_halo[0], self.frame_halo[1])?;
        }
        let Some(Bytes { range: [low, high], nan_flags }) = self.bytes else { return Ok(()) };
        write!(f, ", bytes for {low:?} {high:?}, NaN flags {nan_flags}")
    }
}
