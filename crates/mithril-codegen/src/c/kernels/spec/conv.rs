//! Convolutions of row-major tensors.

use crate::c::kernels::spec::epilogue::Epilogue;
use crate::c::kernels::spec::gemm::Packing;
use crate::c::kernels::spec::strides::{Stored, Strides};
use crate::c::options::Scheme;
use crate::c::target::Element;

/// How a convolution is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// What is estimated to be fastest.
    Fastest,
    /// Every product of the definition, in the order of the definition.
    Direct,
    /// Winograd with output tiles of so many rows and pixels, 2 or 4, where it can be used, else the direct one.
    Winograd([usize; 2]),
}

/// The axis of frames in front of height and width, of convolutions of volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Frames of a volume.
    pub image: usize,
    /// Frames of the kernel.
    pub kernel: usize,
    /// Steps between two frames of the result.
    pub stride: usize,
    /// Steps between two frames of the kernel.
    pub dilation: usize,
    /// Frames of zeros in front and behind.
    pub padding: [usize; 2],
    /// Frames of the result.
    pub result: usize,
}

impl Depth {
    /// Whether frames lie between those under the kernel.
    pub(crate) fn has_gaps(&self) -> bool {
        self.kernel > 1 && self.dilation > 1
    }
}

/// `out[n, filters, oh, ow] = epilogue(convolution of image[n, channels, h, w] by weights[filters, channels / groups,
/// kh, kw])`, all row-major. In the epilogue `batch` is the image, `row` the filter and `column` the pixel
/// (`y * ow + x`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conv {
    /// What image, weights and sums hold.
    pub element: Element,
    /// How the image is stored: only kernels between blocks take another than the element.
    pub stored: Stored,
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Channels of the result.
    pub filters: usize,
    /// Groups of channels that do not mix; divides both.
    pub groups: usize,
    /// Height and width of an image.
    pub image: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Steps between two pixels of the result, down and to the right.
    pub stride: [usize; 2],
    /// Steps between two weights, down and to the right.
    pub dilation: [usize; 2],
    /// Zeros before and after, for height and width.
    pub padding: [[usize; 2]; 2],
    /// The axis in front of these, if they are volumes: only kernels between blocks take those.
    pub depth: Option<Depth>,
    /// Where the result lies: one batch axis, `row` along filters, `column` along pixels.
    pub out: Strides,
    /// The C type of the result, which the epilogue's expression has.
    pub out_element: String,
    /// How it is done.
    pub algorithm: Algorithm,
    /// When the weights are packed.
    pub packing: Packing,
    /// What becomes of the sums.
    pub epilogue: Epilogue,
    /// How weights that are packed ahead are stored if they are quantized: they become float at the start of a call.
    pub few_bits: Option<Scheme>,
}

/// Whether each channel is convolved by itself.
pub(super) fn is_depth(groups: usize, channels: usize) -> bool {
    groups > 1 && groups == channels
}

impl Conv {
    /// Whether each channel is convolved by itself.
    pub fn is_depth(&self) -> bool {
        is_depth(self.groups, self.channels)
    }

    /// One group, steps of 1, no padding, weights packed ahead, no epilogue. Where other fields are changed after,
    /// [`Conv::row_major`] brings `out` in line.
    pub fn new(
        element: Element,
        batch: usize,
        [channels, filters]: [usize; 2],
        image: [usize; 2],
        kernel: [usize; 2],
    ) -> Self {
        Self {
            element,
            stored: Stored::Same,
            batch,
            channels,
            filters,
            groups: 1,
            image,
            kernel,
            stride: [1, 1],
            dilation: [1, 1],
            padding: [[0, 0], [0, 0]],
            depth: None,
            out: Strides::default(),
            out_element: element.c().to_owned(),
            algorithm: Algorithm::Fastest,
            packing: Packing::Ahead,
            epilogue: Epilogue::none(),
            few_bits: None,
        }
        .row_major()
    }

    /// The same with a row-major result.
    #[must_use]
    pub fn row_major(mut self) -> Self {
        let [height, width] = self.result();
        self.out = Strides { batch: vec![self.filters * height * width], row: height * width, column: 1 };
        self
    }

    /// Height and width of the result.
    pub fn result(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
            (self.padded(axis).saturating_sub(reach)) / self.stride[axis] + 1
        })
    }

    pub(crate) fn padded(&self, axis: usize) -> usize {
        self.image[axis] + self.padding[axis][0] + self.padding[axis][1]
    }
}
