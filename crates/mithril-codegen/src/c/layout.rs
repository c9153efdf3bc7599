//! Stage `layout`: temporaries that convolutions read and write lie in blocks of as many channels as a vector has lanes,
//! with margins of zeros around each image as large as their readers want. So a convolution copies nothing, and what
//! stands between two of them goes through the same vectors.
//!
//! Only where elements lie changes: nests still speak of images, channels, rows and pixels. What convolutions in whole
//! numbers alone hand to each other lies as bytes (`bytes`).

use std::fmt;

use mithril_ir::loops::{Expr, Index, flat};

use super::Options;
use super::bytes;
use super::contract::contraction;
use super::convolve::{InBlocks, in_blocks};
use super::kernels::{AsBytes, Element, Library, Margins};
use super::program::{Buffer, Nest, Program, Work};

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
    /// Elements from one block to the next: a vector more, lest blocks lie powers of two apart.
    pub fn plane(&self, shape: &[i64]) -> i64 {
        (self.margins[0][0] + shape[2] + self.margins[0][1]) * self.row(shape) + self.lanes
    }
    /// Elements of all, and notes behind them.
    pub fn elements(&self, shape: &[i64]) -> i64 {
        self.planes(shape) + self.bytes.map_or(0, |bytes| shape[0] * bytes.notes)
    }
    /// Elements of all.
    fn planes(&self, shape: &[i64]) -> i64 {
        shape[0] * (shape[1] / self.lanes) * self.plane(shape)
    }
    /// As kernels have it, for who starts at this element.
    pub fn as_bytes(&self, shape: &[i64], start: usize) -> Option<AsBytes> {
        let notes = self.planes(shape) as usize - start;
        let Bytes { range, notes: of } = self.bytes?;
        Some(AsBytes { range, notes, notes_of: of as usize })
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
    fn has_margins(&self) -> bool {
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

/// Decides which temporaries lie in blocks; the functions that set their margins to zero go into the library.
pub fn lay_out(program: &mut Program, options: &Options, library: &mut Library) {
    drop_unit_axes(program);
    for buffer in &mut program.buffers {
        buffer.blocks = could_be(buffer, library);
    }
    while let Some(buffers) = hinders(program, options, library) {
        for b in buffers {
            program.buffers[b].blocks = None;
        }
    }
    bytes::lay_out(program, options, library);
    for step in 0..program.steps.len() {
        let Work::Nest(nest) = &program.steps[step].work else { continue };
        let Some(found) = found(program, nest, options, library) else { continue };
        let (buffer, wanted) = (found.image, found.margins(library));
        if let Some(blocks) = &mut program.buffers[buffer].blocks {
            for (have, want) in blocks.margins.iter_mut().flatten().zip(wanted.as_flattened()) {
                *have = (*have).max(*want as i64);
            }
        }
    }
    for b in 0..program.buffers.len() {
        if let Some(margins) = margins(&program.buffers[b]) {
            program.margins.insert(b, margins.build(library));
        }
    }
}

/// Leaves out axes of size 1 behind the channels that make a temporary more than images with channels, rows and pixels:
/// a convolution may have been put into what enlarges its result.
fn drop_unit_axes(program: &mut Program) {
    let in_calls: Vec<usize> = program
        .steps
        .iter()
        .filter(|step| !matches!(step.work, Work::Nest(_)))
        .flat_map(|step| step.reads().into_iter().chain(step.writes()))
        .collect();
    for b in 0..program.buffers.len() {
        let buffer = &program.buffers[b];
        let units = (2..buffer.shape.len()).filter(|&i| buffer.shape[i] == 1);
        let gone: Vec<usize> = units.take(buffer.shape.len().saturating_sub(4)).collect();
        if !buffer.is_temporary()
            || gone.is_empty()
            || buffer.shape.len() - gone.len() != 4
            || in_calls.contains(&b)
        {
            continue;
        }
        drop_axes(&mut program.buffers[b].shape, &gone);
        for step in &mut program.steps {
            let Work::Nest(nest) = &mut step.work else { continue };
            if nest.to == b {
                drop_axes(&mut nest.vars, &gone);
            }
            nest.value = nest.value.map_loads(&|from, mut at, stored| {
                if from == b {
                    drop_axes(&mut at, &gone);
                }
                Expr::Load { from, at, stored }
            });
        }
    }
}

fn drop_axes<T>(of: &mut Vec<T>, gone: &[usize]) {
    for &i in gone.iter().rev() {
        of.remove(i);
    }
}

fn margins(buffer: &Buffer) -> Option<Margins> {
    let blocks = buffer.blocks.filter(Blocks::has_margins)?;
    let size = |n: i64| n as usize;
    Some(Margins {
        element: if blocks.bytes.is_some() { Element::F32 } else { Element::of(buffer.dtype)? },
        bytes: blocks.as_bytes(&buffer.shape, 0),
        planes: size(buffer.shape[0] * (buffer.shape[1] / blocks.lanes)),
        plane: size(blocks.plane(&buffer.shape)),
        size: [buffer.shape[2], buffer.shape[3]].map(size),
        margins: blocks.margins.map(|side| side.map(size)),
        lanes: size(blocks.lanes),
    })
}

/// Blocks without margins, if the tensor can lie in blocks at all.
fn could_be(buffer: &Buffer, library: &Library) -> Option<Blocks> {
    let lanes = library.target().lanes_of(Element::of(buffer.dtype)?) as i64;
    let fits = buffer.is_temporary() && buffer.shape.len() == 4 && buffer.count() > 0;
    let blocks = Blocks { lanes, margins: [[0; 2]; 2], bytes: None };
    (fits && lanes > 1 && buffer.shape[1] % lanes == 0).then_some(blocks)
}

/// The convolution of a nest, as far as it reads or writes blocks.
pub(super) fn found(
    program: &Program,
    nest: &Nest,
    options: &Options,
    library: &Library,
) -> Option<InBlocks> {
    let contraction = contraction(nest)?;
    in_blocks(program, nest, &contraction, options, library.target())
}

/// Tensors in blocks that have to be row-major after all, since a step could not work on them.
fn hinders(program: &Program, options: &Options, library: &Library) -> Option<Vec<usize>> {
    let is_blocked = |b: &usize| program.buffers[*b].blocks.is_some();
    let mut of_convolutions = vec![false; program.buffers.len()];
    for step in &program.steps {
        let touched: Vec<usize> = step.reads().into_iter().chain(step.writes()).filter(is_blocked).collect();
        if touched.is_empty() {
            continue;
        }
        let suits = match &step.work {
            Work::Nest(nest) if contraction(nest).is_none() => !reads_indices(nest),
            Work::Nest(nest) => match found(program, nest, options, library) {
                Some(found) => {
                    of_convolutions[found.image] = true;
                    of_convolutions[nest.to] = true;
                    true
                }
                None => false,
            },
            Work::Call(_) | Work::Kernel(_) | Work::Rows(_) | Work::Parts(_) | Work::Pack(_) => false,
        };
        if !suits {
            return Some(touched);
        }
    }
    let idle: Vec<usize> =
        (0..program.buffers.len()).filter(|b| is_blocked(b) && !of_convolutions[*b]).collect();
    (!idle.is_empty()).then_some(idle)
}

/// Whether positions are read from tensors.
fn reads_indices(nest: &Nest) -> bool {
    let mut found = false;
    nest.value.walk(&mut |e| found |= e.indices().iter().any(|index| index.reads()));
    found
}
