//! Host tensors: contiguous, row-major, one vector per dtype. The values of the reference interpreter.

use std::fmt;

use half::{bf16, f16};

use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::shape::Shape;

/// One element, in the widest type of its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Boolean.
    Bool(bool),
    /// Integer, wide enough for `i64` and `u64`.
    Int(i128),
    /// Floating point.
    Float(f64),
}

impl Scalar {
    /// As a float; booleans are 0 and 1.
    pub fn f64(self) -> f64 {
        match self {
            Self::Bool(b) => f64::from(u8::from(b)),
            Self::Int(n) => n as f64,
            Self::Float(x) => x,
        }
    }
    /// As an integer. Floats are truncated; NaN is 0.
    pub fn int(self) -> i128 {
        match self {
            Self::Bool(b) => b.into(),
            Self::Int(n) => n,
            Self::Float(x) => x as i128,
        }
    }
    /// As a size, an index or another integer of the compiler. Integers wrap around; floats are truncated and clamped; NaN
    /// is 0.
    pub fn i64(self) -> i64 {
        match self {
            Self::Float(x) => x as i64,
            other => other.int() as i64,
        }
    }
    /// As a boolean: everything but zero is true, NaN too.
    pub fn bool(self) -> bool {
        match self {
            Self::Bool(b) => b,
            Self::Int(n) => n != 0,
            Self::Float(x) => x != 0.0,
        }
    }
}

impl From<f64> for Scalar {
    fn from(x: f64) -> Self {
        Self::Float(x)
    }
}
impl From<i64> for Scalar {
    fn from(n: i64) -> Self {
        Self::Int(n.into())
    }
}
impl From<i128> for Scalar {
    fn from(n: i128) -> Self {
        Self::Int(n)
    }
}
impl From<bool> for Scalar {
    fn from(b: bool) -> Self {
        Self::Bool(b)
    }
}

/// A Rust type that is the element of a tensor.
pub trait Element: Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The dtype.
    const DTYPE: DType;
    /// Wraps a vector.
    fn wrap(data: Vec<Self>) -> Data;
    /// The elements, if that is their type.
    fn slice(data: &Data) -> Option<&[Self]>;
    /// The element in the widest type of its kind.
    fn scalar(self) -> Scalar;
    /// From a scalar of any kind: floats to integers are truncated and clamped to the range, NaN is 0; integers wrap; floats
    /// round to nearest even.
    fn of(scalar: Scalar) -> Self;
}

macro_rules! elements {
    ($($variant:ident, $type:ty, $dtype:ident, |$x:ident| $scalar:expr, |$s:ident| $of:expr;)*) => {
        /// Elements of a tensor, one variant per dtype.
        #[derive(Clone, Debug)]
        #[allow(missing_docs, reason = "the variants are the dtypes")]
        pub enum Data { $($variant(Vec<$type>),)* }

        impl Data {
            /// The dtype.
            pub fn dtype(&self) -> DType { match self { $(Self::$variant(_) => DType::$dtype,)* } }
            /// Number of elements.
            pub fn len(&self) -> usize { match self { $(Self::$variant(v) => v.len(),)* } }
            /// Whether there is no element.
            pub fn is_empty(&self) -> bool { self.len() == 0 }
            /// Element `i`.
            pub fn get(&self, i: usize) -> Scalar { match self { $(Self::$variant(v) => v[i].scalar(),)* } }
            /// Builds `n` elements of `dtype` from a function of the position.
            pub fn build(dtype: DType, n: usize, mut f: impl FnMut(usize) -> Scalar) -> Self {
                match dtype { $(DType::$dtype => Self::$variant((0..n).map(|i| <$type>::of(f(i))).collect()),)* }
            }
            /// The elements at `indices`, in that order.
            #[must_use]
            pub fn select(&self, indices: impl Iterator<Item = usize>) -> Self {
                match self { $(Self::$variant(v) => Self::$variant(indices.map(|i| v[i]).collect()),)* }
            }
        }

        $(impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            fn wrap(data: Vec<Self>) -> Data { Data::$variant(data) }
            fn slice(data: &Data) -> Option<&[Self]> {
                match data { Data::$variant(v) => Some(v), _ => None }
            }
            fn scalar(self) -> Scalar { let $x = self; $scalar }
            fn of($s: Scalar) -> Self { $of }
        })*
    };
}

macro_rules! saturate {
    ($s:ident, $t:ty) => {
        match $s {
            Scalar::Float(x) => x as $t,
            other => other.int() as $t,
        }
    };
}

elements! {
    Bool, bool, Bool, |x| Scalar::Bool(x), |s| s.bool();
    U8, u8, U8, |x| Scalar::Int(x.into()), |s| saturate!(s, u8);
    U16, u16, U16, |x| Scalar::Int(x.into()), |s| saturate!(s, u16);
    U32, u32, U32, |x| Scalar::Int(x.into()), |s| saturate!(s, u32);
    U64, u64, U64, |x| Scalar::Int(x.into()), |s| saturate!(s, u64);
    I8, i8, I8, |x| Scalar::Int(x.into()), |s| saturate!(s, i8);
    I16, i16, I16, |x| Scalar::Int(x.into()), |s| saturate!(s, i16);
    I32, i32, I32, |x| Scalar::Int(x.into()), |s| saturate!(s, i32);
    I64, i64, I64, |x| Scalar::Int(x.into()), |s| s.i64();
    F16, f16, F16, |x| Scalar::Float(x.to_f64()), |s| f16::from_f32(round_to_odd(s.f64()));
    BF16, bf16, BF16, |x| Scalar::Float(x.to_f64()), |s| bf16::from_f32(round_to_odd(s.f64()));
    F32, f32, F32, |x| Scalar::Float(x.into()), |s| saturate!(s, f32);
    F64, f64, F64, |x| Scalar::Float(x), |s| s.f64();
}

/// Rounds to odd: an inexact `x` becomes the neighboring `f32` whose last bit is 1. Rounding the result to 16 bits then is the
/// same as rounding `x` once.
fn round_to_odd(x: f64) -> f32 {
    let rounded = x as f32;
    if x.is_nan() || f64::from(rounded) == x || rounded.to_bits() % 2 == 1 {
        rounded
    } else if x > f64::from(rounded) {
        rounded.next_up()
    } else {
        rounded.next_down()
    }
}

/// A tensor in host memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    shape: Vec<usize>,
    data: Data,
}

impl Tensor {
    /// From a shape and its elements in row-major order.
    pub fn new(shape: Vec<usize>, data: Data) -> Result<Self> {
        let sizes = Shape::of(shape.iter().copied());
        sizes.check()?;
        let expected = shape.iter().product::<usize>();
        if expected != data.len() {
            return Err(Error::new(
                Code::BadSize,
                format!("shape {sizes} holds {expected} elements, but {} are given", data.len()),
            ));
        }
        Ok(Self { shape, data })
    }
    /// A tensor from its shape and its elements in row-major order.
    ///
    /// ```
    /// use mithril_ir::Tensor;
    /// let x = Tensor::of(&[2, 2], vec![1.0_f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(x.shape(), [2, 2]);
    /// let error = Tensor::of(&[2, 3], vec![1.0_f32, 2.0]).unwrap_err();
    /// assert_eq!(error.message(), "shape [2, 3] holds 6 elements, but 2 are given");
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the number of elements is not the product of the shape.
    pub fn of<T: Element>(shape: &[usize], data: Vec<T>) -> Result<Self> {
        Self::new(shape.to_vec(), T::wrap(data))
    }
    /// As [`Tensor::of`], for elements that are known to match the shape.
    ///
    /// # Panics
    /// When the number of elements is not the product of the shape.
    pub fn from_parts<T: Element>(shape: &[usize], data: Vec<T>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "elements of a tensor of shape {shape:?}");
        Self { shape: shape.to_vec(), data: T::wrap(data) }
    }
    /// A 0-d tensor.
    pub fn scalar(dtype: DType, value: impl Into<Scalar>) -> Self {
        Self::full(dtype, &[], value)
    }
    /// A tensor filled with one value.
    pub fn full(dtype: DType, shape: &[usize], value: impl Into<Scalar>) -> Self {
        let value = value.into();
        Self::build(dtype, shape, |_| value)
    }
    /// A tensor from a function of the row-major position.
    pub fn build(dtype: DType, shape: &[usize], f: impl FnMut(usize) -> Scalar) -> Self {
        Self { shape: shape.to_vec(), data: Data::build(dtype, shape.iter().product(), f) }
    }
    /// From `f64` values, rounded to `dtype`.
    ///
    /// # Panics
    /// When there are fewer values than elements.
    pub fn from_f64s(dtype: DType, shape: &[usize], values: &[f64]) -> Self {
        Self::build(dtype, shape, |i| Scalar::Float(values[i]))
    }
    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }
    /// The sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
    /// The elements.
    pub fn data(&self) -> &Data {
        &self.data
    }
    /// The elements as a slice, if `T` is their type.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        T::slice(&self.data)
    }
    /// Element at the row-major position `i`.
    pub fn get(&self, i: usize) -> Scalar {
        self.data.get(i)
    }
    /// All elements as `f64`.
    pub fn to_f64s(&self) -> Vec<f64> {
        (0..self.len()).map(|i| self.get(i).f64()).collect()
    }
    /// All elements as `i64`.
    pub fn to_i64s(&self) -> Vec<i64> {
        (0..self.len()).map(|i| self.get(i).i64()).collect()
    }
    /// All elements as integers of any dtype.
    pub fn to_ints(&self) -> Vec<i128> {
        (0..self.len()).map(|i| self.get(i).int()).collect()
    }
    /// Whether all elements are integers from `-size` to `size - 1`, positions of an axis of this size.
    pub fn are_positions_of(&self, size: i64) -> bool {
        match &self.data {
            // Tokens and classes, thousands in a call.
            Data::I64(v) => v.iter().all(|x| (-size..size).contains(x)),
            _ => self.to_ints().into_iter().all(|x| (-i128::from(size)..i128::from(size)).contains(&x)),
        }
    }
    /// The elements as little-endian bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        macro_rules! bytes {
            ($v:expr) => {
                $v.iter().flat_map(|x| x.to_le_bytes()).collect()
            };
        }
        match &self.data {
            Data::Bool(v) => v.iter().map(|&b| u8::from(b)).collect(),
            Data::U8(v) => v.clone(),
            Data::U16(v) => bytes!(v),
            Data::U32(v) => bytes!(v),
            Data::U64(v) => bytes!(v),
            Data::I8(v) => bytes!(v),
            Data::I16(v) => bytes!(v),
            Data::I32(v) => bytes!(v),
            Data::I64(v) => bytes!(v),
            Data::F16(v) => bytes!(v),
            Data::BF16(v) => bytes!(v),
            Data::F32(v) => bytes!(v),
            Data::F64(v) => bytes!(v),
        }
    }
    /// From little-endian bytes.
    pub fn from_bytes(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Result<Self> {
        macro_rules! read {
            ($variant:ident, $t:ty) => {{
                let chunks = bytes.chunks_exact(size_of::<$t>());
                Data::$variant(
                    chunks.map(|c| <$t>::from_le_bytes(c.try_into().unwrap_or_default())).collect(),
                )
            }};
        }
        if !bytes.len().is_multiple_of(dtype.size()) {
            let message = format!("{} bytes hold no whole number of {}", bytes.len(), dtype.name());
            return Err(Error::new(Code::BadSize, message));
        }
        let data = match dtype {
            DType::Bool => Data::Bool(bytes.iter().map(|&b| b != 0).collect()),
            DType::U8 => Data::U8(bytes.to_vec()),
            DType::U16 => read!(U16, u16),
            DType::U32 => read!(U32, u32),
            DType::U64 => read!(U64, u64),
            DType::I8 => read!(I8, i8),
            DType::I16 => read!(I16, i16),
            DType::I32 => read!(I32, i32),
            DType::I64 => read!(I64, i64),
            DType::F16 => read!(F16, f16),
            DType::BF16 => read!(BF16, bf16),
            DType::F32 => read!(F32, f32),
            DType::F64 => read!(F64, f64),
        };
        Self::new(shape, data)
    }
    /// The same elements in another dtype, converted as [`Element::of`] says.
    #[must_use]
    pub fn cast(&self, dtype: DType) -> Self {
        if dtype == self.dtype() {
            return self.clone();
        }
        Self::build(dtype, &self.shape, |i| self.get(i))
    }
    /// The same elements in another shape of the same size.
    ///
    /// # Panics
    /// When the sizes differ.
    #[must_use]
    pub fn reshaped(&self, shape: &[usize]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), self.len(), "reshape to {shape:?}");
        Self { shape: shape.to_vec(), data: self.data.clone() }
    }
    /// A tensor of `shape` whose element `i` is the element `indices[i]` of this one.
    ///
    /// # Panics
    /// When an index is out of range or their number does not fit the shape.
    #[must_use]
    pub fn select(&self, shape: &[usize], indices: impl Iterator<Item = usize>) -> Self {
        let data = self.data.select(indices);
        assert_eq!(shape.iter().product::<usize>(), data.len(), "select to {shape:?}");
        Self { shape: shape.to_vec(), data }
    }
    /// Whether dtype, shape and every bit of every element agree.
    pub fn same_bits(&self, other: &Self) -> bool {
        fn bits(s: Scalar) -> u64 {
            match s {
                Scalar::Bool(b) => b.into(),
                Scalar::Int(n) => n as u64,
                Scalar::Float(x) => x.to_bits(),
            }
        }
        self.dtype() == other.dtype()
            && self.shape == other.shape
            && (0..self.len()).all(|i| bits(self.get(i)) == bits(other.get(i)))
    }
}

/// Row-major strides of a shape, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        out[i - 1] = out[i] * shape[i];
    }
    out
}

impl fmt::Display for Tensor {
    /// `f32[2, 2]{1.0, 2.0, 3.0, 4.0}`: whole, since what prints also parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{{", self.dtype(), Shape::of(self.shape.iter().copied()))?;
        for i in 0..self.len() {
            let comma = if i > 0 { ", " } else { "" };
            match self.get(i) {
                Scalar::Bool(b) => write!(f, "{comma}{b}")?,
                Scalar::Int(n) => write!(f, "{comma}{n}")?,
                Scalar::Float(x) => write!(f, "{comma}{x:?}")?,
            }
        }
        f.write_str("}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn casts_are_defined_everywhere() {
        let x = Tensor::from_parts(&[4], vec![f64::NAN, 300.7, -1.5, f64::INFINITY]);
        assert_eq!(x.cast(DType::U8).to_i64s(), [0, 255, 0, 255]);
        assert_eq!(x.cast(DType::U16).to_i64s(), [0, 300, 0, 65_535]);
        assert_eq!(x.cast(DType::U32).to_i64s(), [0, 300, 0, i64::from(u32::MAX)]);
        assert_eq!(Tensor::from_parts(&[1], vec![-1_i64]).cast(DType::U32).to_i64s(), [i64::from(u32::MAX)]);
        assert_eq!(x.cast(DType::I32).to_i64s(), [0, 300, -1, i64::from(i32::MAX)]);
        assert_eq!(Tensor::from_parts(&[1], vec![300_i64]).cast(DType::I8).to_i64s(), [44]);
        assert_eq!(x.cast(DType::U64).to_ints(), [0, 300, 0, i128::from(u64::MAX)]);
        assert_eq!(Tensor::from_parts(&[1], vec![-1_i64]).cast(DType::U64).to_ints(), [i128::from(u64::MAX)]);
        assert_eq!(Tensor::from_parts(&[1], vec![u64::MAX]).cast(DType::F32).to_f64s(), [2.0_f64.powi(64)]);
        assert_eq!(x.cast(DType::Bool).to_i64s(), [1, 1, 1, 1]);
    }

    #[test]
    fn casts_round_once() {
        let tie = 1.0 + 2.0_f64.powi(-8);
        let above = Tensor::from_parts(&[3], vec![tie, tie + 2.0_f64.powi(-40), 1e300]).cast(DType::BF16);
        assert_eq!(above.to_f64s(), [1.0, 1.0 + 2.0_f64.powi(-7), f64::INFINITY]);
        let tie = 1.0 + 2.0_f64.powi(-11);
        let above = Tensor::from_parts(&[2], vec![tie, tie + 2.0_f64.powi(-40)]).cast(DType::F16);
        assert_eq!(above.to_f64s(), [1.0, 1.0 + 2.0_f64.powi(-10)]);
        let n = (1_i64 << 60) + (1 << 36) + 1;
        let cast = Tensor::from_parts(&[1], vec![n]).cast(DType::F32);
        assert_eq!(cast.to_f64s(), [(2.0_f64.powi(24) + 2.0) * 2.0_f64.powi(36)]);
    }

    #[test]
    fn bytes_round_trip() {
        for &dtype in DType::ALL {
            let x = Tensor::build(dtype, &[2, 2], |i| Scalar::Int(i as i128));
            assert!(Tensor::from_bytes(dtype, vec![2, 2], &x.to_bytes()).unwrap().same_bits(&x), "{dtype}");
        }
        assert!(Tensor::from_bytes(DType::F32, vec![1], &[0; 3]).is_err());
    }

    #[test]
    fn wrong_lengths_are_errors() {
        assert!(Tensor::new(vec![2], Data::F32(vec![1.0])).is_err());
    }
}
