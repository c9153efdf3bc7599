//! Convolutions between tensors in blocks of channels.

use crate::c::kernels::spec::bytes::InBytes;
use crate::c::kernels::spec::conv::{Algorithm, Depth, is_depth};
use crate::c::kernels::spec::epilogue::Epilogue;
use crate::c::kernels::spec::strides::Stored;
use crate::c::options::Scheme;
use crate::c::target::{Element, Factor};

/// Where the elements of an image-like tensor lie, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Places {
    /// From one image to the next.
    pub batch: usize,
    /// From one block of channels to the next.
    pub block: usize,
    /// From one channel of a block to the next.
    pub lane: usize,
    /// From one row of pixels to the next.
    pub y: usize,
    /// From one pixel to the next.
    pub x: usize,
    /// Where the first is.
    pub base: usize,
    /// Frames of a volume, and from one to the next: `batch` then counts the frames of all images. 0 for images.
    pub frames: [usize; 2],
}

impl Places {
    /// The C expression of the place at `batch`, `block`, `lane`, `y`, `x`.
    pub(crate) fn text(&self) -> String {
        let images = self.images();
        let factors = images.iter().map(|(name, factor)| (name.as_str(), *factor));
        let factors =
            factors.chain([("block", self.block), ("y", self.y), ("x", self.x), ("lane", self.lane)]);
        let mut terms: Vec<String> = Vec::new();
        for (name, factor) in factors {
            match factor {
                0 => {}
                1 => terms.push(name.to_owned()),
                n => terms.push(format!("{name} * {n}")),
            }
        }
        if self.base > 0 || terms.is_empty() {
            terms.push(self.base.to_string());
        }
        terms.join(" + ")
    }

    /// The same in words of so many elements.
    pub(crate) fn in_words_of(self, elements: usize) -> Self {
        let Self { batch, block, lane, y, x, base, frames: [frames, frame] } = self;
        let [batch, block, y, x, base, frame] = [batch, block, y, x, base, frame].map(|n| n / elements);
        Self { batch, block, lane, y, x, base, frames: [frames, frame] }
    }

    /// What counts images, and frames, and from one to the next.
    fn images(&self) -> Vec<(String, usize)> {
        match self.frames {
            [0, _] => vec![("batch".to_owned(), self.batch)],
            [frames, frame] if self.batch == frames * frame => vec![("batch".to_owned(), frame)],
            [frames, frame] => {
                vec![(format!("batch / {frames}"), self.batch), (format!("batch % {frames}"), frame)]
            }
        }
    }
}

/// What is read under the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// Blocks of channels with halo that suffice; the pointer is to what lies under the first weight.
    Blocks(Places),
    /// Row-major, of this height and width, with zeros before and after.
    Plain([usize; 2], [[usize; 2]; 2]),
}

/// `out = epilogue(convolution of image by weights[filters, channels / groups, kh, kw])`.
#[derive(Debug, Clone, PartialEq)]
pub struct Blocked {
    /// What image, weights and sums hold.
    pub element: Element,
    /// How the image is stored: as bfloat16 only in blocks. Weights are then rounded to bfloat16 unless each channel is by
    /// itself.
    pub stored: Stored,
    /// Images; of volumes the frames of all results.
    pub batch: usize,
    /// Channels of an image, a multiple of the lanes if it lies in blocks. Of volumes those of all frames under the kernel,
    /// unless each is by itself.
    pub channels: usize,
    /// Channels of the result, a multiple of the lanes.
    pub filters: usize,
    /// 1, as many as there are channels and filters, or so many that blocks of filters read whole blocks of channels.
    pub groups: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Steps between two pixels of the result.
    pub stride: [usize; 2],
    /// Steps between two weights.
    pub dilation: [usize; 2],
    /// Height and width of the result.
    pub result: [usize; 2],
    /// The axis in front of these, of volumes; without dilation unless each channel is by itself.
    pub depth: Option<Depth>,
    /// Along each axis the size of the image and the zeros in front of it: where most weights meet only zeros, they are
    /// skipped.
    pub edges: Option<[[usize; 2]; 2]>,
    /// What is read.
    pub image: Image,
    /// Where the result lies.
    pub out: Places,
    /// The C type of the result.
    pub out_element: String,
    /// Whether the result is bfloat16.
    pub out_is_bf16: bool,
    /// What becomes of the sums; the strides of its operands are in `operands`.
    pub epilogue: Epilogue,
    /// Where the operands of the epilogue lie.
    pub operands: Vec<Places>,
    /// How it is done.
    pub algorithm: Algorithm,
    /// How the weights are stored if they are quantized: they become float a panel at a time.
    pub few_bits: Option<Scheme>,
    /// What lies in bytes, for convolutions in integers.
    pub bytes: InBytes,
}

impl Blocked {
    /// Whether each channel is convolved by itself.
    pub fn is_depth(&self) -> bool {
        is_depth(self.groups, self.channels)
    }

    /// What image and weights are multiplied as.
    pub(crate) fn factor(&self) -> Factor {
        match self.stored {
            Stored::BF16 if !self.is_depth() => Factor::Pairs,
            _ => Factor::Float(self.element),
        }
    }

    /// Bytes of an element of the image.
    pub(crate) fn image_bytes(&self) -> usize {
        if self.stored == Stored::Same { self.element.bytes() } else { 2 }
    }
}

/// How many times as many products there may be as the definition has.
const MOST_PRODUCTS: usize = 4;

/// The most terms of a sum: longer ones would have to be added up in pieces.
const MOST_TERMS: usize = 640;

/// How many blocks of channels a block of filters reads, if this many channels and filters in groups can be convolved block
/// by block with kernels of so many places.
pub fn span([channels, filters, groups]: [usize; 3], places: usize, lanes: usize) -> Option<usize> {
    let (channels, filters) = (channels / groups, filters / groups);
    let read = if lanes.is_multiple_of(filters) {
        channels * (lanes / filters)
    } else if filters.is_multiple_of(lanes) {
        channels
    } else {
        return None;
    };
    let is_worth_it = read <= MOST_PRODUCTS * channels && channels * places <= MOST_TERMS;
    (lanes > 1 && is_worth_it && read.is_multiple_of(lanes)).then_some(read / lanes)
}
