//! One tensor of a checkpoint: a view of a mapped file.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use mithril_ir::{Code, DType, Error, Result, Tensor, memory};

use super::blocks::BlockFormat;
use super::mapping::Mapping;

/// What the elements of a tensor in a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A dtype that Mithril has.
    Known(DType),
    /// Low-bit blocks; their values are `F32`.
    Blocks(&'static BlockFormat),
    /// Something else, by its name in the file: its values cannot be read.
    Other(String),
}

impl Stored {
    /// Bytes of one element; `None` if an element has none of its own, or if its values cannot be read.
    pub fn size(&self) -> Option<usize> {
        match self {
            Self::Known(dtype) => Some(dtype.size()),
            Self::Blocks(_) | Self::Other(_) => None,
        }
    }
    /// The dtype that its values become.
    pub fn dtype(&self) -> Option<DType> {
        match self {
            Self::Known(dtype) => Some(*dtype),
            Self::Blocks(_) => Some(DType::F32),
            Self::Other(_) => None,
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known(dtype) => dtype.name(),
            Self::Blocks(format) => format.name,
            Self::Other(name) => name,
        })
    }
}

/// A tensor of a checkpoint. It holds the map of its file open; copies of it share the map.
#[derive(Clone, Debug)]
pub struct Weight {
    map: Arc<Mapping>,
    start: usize,
    stored: Stored,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Weight {
    /// A contiguous tensor that fills `range` of a map.
    pub(super) fn dense(
        map: Arc<Mapping>,
        range: Range<usize>,
        stored: Stored,
        shape: Vec<usize>,
    ) -> Result<Self> {
        let strides = contiguous(&shape)?;
        Self::view(map, range, 0, stored, shape, strides)
    }
    /// A tensor whose rows are whole blocks that fill `range` of a map.
    pub(super) fn blocks(
        map: Arc<Mapping>,
        range: Range<usize>,
        format: &'static BlockFormat,
        shape: Vec<usize>,
    ) -> Result<Self> {
        let stored = Stored::Blocks(format);
        if range.end > map.len() || size(&stored, &shape) != range.end.checked_sub(range.start) {
            return Err(Error::internal("blocks that are not in their file"));
        }
        let strides = contiguous(&shape)?;
        Ok(Self { map, start: range.start, stored, shape, strides })
    }
    /// A tensor with strides, counted in elements from element `offset` of `range`.
    pub(super) fn view(
        map: Arc<Mapping>,
        range: Range<usize>,
        offset: usize,
        stored: Stored,
        shape: Vec<usize>,
        strides: Vec<usize>,
    ) -> Result<Self> {
        let size = stored.size().unwrap_or(0);
        let bytes = contiguous(&shape)
            .ok()
            .and_then(|_| shape.iter().try_fold(size, |n, &d| n.checked_mul(d)))
            .filter(|&n| isize::try_from(n).is_ok());
        let end = last(&shape, &strides, offset).and_then(|n| n.checked_mul(size));
        let inside = range.end <= map.len()
            && range.start <= range.end
            && shape.len() == strides.len()
            && end.is_some_and(|n| n <= range.end - range.start);
        if bytes.is_none() || !inside {
            let message = format!("a tensor of shape {shape:?} lies outside of what the file holds");
            return Err(Error::new(Code::BadFile, message).help("it may be incomplete: fetch it again"));
        }
        // Axes with a stride of 0 repeat elements; other views that read some of them twice could grow without limit.
        let distinct =
            shape.iter().zip(&strides).filter(|(_, stride)| **stride != 0).map(|(n, _)| n).product::<usize>();
        if size != 0 && !shape.contains(&0) && distinct > (range.end - range.start) / size {
            let message =
                format!("a tensor of shape {shape:?} has elements that overlap (strides {strides:?})");
            return Err(Error::new(Code::BadFile, message).help("save it with tensor.contiguous()"));
        }
        // An empty tensor may say that it starts anywhere.
        let start = if shape.contains(&0) { range.start } else { range.start + offset * size };
        Ok(Self { map, start, stored, shape, strides })
    }
    /// What its elements are in the file.
    pub fn stored(&self) -> &Stored {
        &self.stored
    }
    /// The sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// From one element to the next along each axis, counted in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }
    /// Whether its elements lie one behind the other in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut contiguous = 1;
        self.shape.contains(&0)
            || self.shape.iter().zip(&self.strides).rev().all(|(&n, &stride)| {
                let fits = n == 1 || stride == contiguous;
                contiguous *= n;
                fits
            })
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The elements, or blocks, as little-endian bytes, without a copy; `None` unless they are contiguous.
    pub fn bytes(&self) -> Option<&[u8]> {
        let len = size(&self.stored, &self.shape)?;
        self.is_contiguous().then(|| &self.map.bytes()[self.start..self.start + len])
    }
    /// Address of the first element, for foreign code that holds a `Weight` as long as it uses the memory. It may
    /// write there, which changes this process's copy alone, while nobody uses a slice of [`Self::bytes`].
    pub fn address(&self) -> Result<usize> {
        match self.stored {
            Stored::Other(_) => Err(self.unreadable()),
            _ => Ok(self.map.address() + self.start),
        }
    }
    /// Gives the memory of the file's pages back, which are read again when they are needed again; what was written to
    /// [`Self::address`] stays.
    pub fn release(&self) {
        let bytes = match &self.stored {
            Stored::Blocks(_) => size(&self.stored, &self.shape),
            stored => last(&self.shape, &self.strides, 0).zip(stored.size()).map(|(n, size)| n * size),
        };
        self.map.release(self.start..self.start + bytes.unwrap_or(0));
    }
    /// A copy of the values.
    pub fn to_tensor(&self) -> Result<Tensor> {
        if let Stored::Blocks(format) = self.stored {
            memory::check(DType::F32, &self.shape)?;
            let mut values = vec![0.0_f32; self.len()];
            format.dequantize(self.bytes().unwrap_or_default(), &mut values)?;
            return Ok(Tensor::from_parts(&self.shape, values));
        }
        let (Some(dtype), Some(size)) = (self.stored.dtype(), self.stored.size()) else {
            return Err(self.unreadable());
        };
        memory::check(dtype, &self.shape)?;
        if let Some(bytes) = self.bytes() {
            return Tensor::from_bytes(dtype, self.shape.clone(), bytes);
        }
        let (bytes, count) = (self.map.bytes(), self.len());
        let mut index = vec![0; self.shape.len()];
        let mut contiguous = Vec::with_capacity(count * size);
        for _ in 0..count {
            let at: usize = index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
            let at = self.start + at * size;
            contiguous.extend_from_slice(&bytes[at..at + size]);
            advance(&mut index, &self.shape);
        }
        Tensor::from_bytes(dtype, self.shape.clone(), &contiguous)
    }
    fn unreadable(&self) -> Error {
        let known: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
        Error::new(Code::BadFile, format!("its elements are {}, which Mithril does not support", self.stored))
            .help(format!("convert it first; known are {}", known.join(", ")))
    }
}

/// Bytes of a tensor; `None` if its values cannot be read, if its rows are not whole blocks, or if that is not a number.
pub(super) fn size(stored: &Stored, shape: &[usize]) -> Option<usize> {
    let values = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d))?;
    match stored {
        Stored::Blocks(format) => {
            shape.last().filter(|n| n.is_multiple_of(format.values))?;
            format.size(values)
        }
        stored => values.checked_mul(stored.size()?),
    }
}

/// Row-major strides.
fn contiguous(shape: &[usize]) -> Result<Vec<usize>> {
    let mut strides = vec![1_usize; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1]
            .checked_mul(shape[i + 1].max(1))
            .ok_or_else(|| Error::new(Code::BadFile, format!("shape {shape:?} is too large")))?;
    }
    Ok(strides)
}

/// One past the largest element that is read; `None` if that is not a number.
fn last(shape: &[usize], strides: &[usize], offset: usize) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let mut end = offset.checked_add(1)?;
    for (n, stride) in shape.iter().zip(strides) {
        end = end.checked_add((n - 1).checked_mul(*stride)?)?;
    }
    Some(end)
}

fn advance(index: &mut [usize], shape: &[usize]) {
    for (i, n) in index.iter_mut().zip(shape).rev() {
        *i += 1;
        if *i < *n {
            return;
        }
        *i = 0;
    }
}
