//! Dtypes that Mithril does not have: integers and floats of 8 bits and less. Their values are those of a wider dtype,
//! exactly: int8 or uint8 for integers, float32 for floats. Ops that make such a value round to it.

use bytes::Bytes;
use mithril_ir::{DType, Error, Result, Tensor, ValueId};

use crate::node::{Use, op};
use crate::proto::TensorProto;
use crate::tensor::{self, External};

/// A dtype of ONNX that is read as a wider one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Narrow {
    Int {
        bits: u32,
        signed: bool,
    },
    Float {
        exponent: u32,
        mantissa: u32,
        bias: i32,
        end: End,
    },
    /// Powers of 2 from -127 to 127, NaN at last, without a sign.
    Power,
}

/// What the largest codes of a float mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// They are numbers like others: there is neither infinity nor NaN.
    Numbers,
    /// All bits set are NaN.
    Nan,
    /// The largest exponent is infinity and NaN.
    Infinity,
    /// They are numbers; the code of a negative zero is NaN.
    NegativeZero,
}

/// A dtype of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Type {
    Plain(DType),
    Narrow(Narrow),
}

impl Type {
    /// The type that ONNX gives this number.
    pub fn of(code: i64) -> Result<Self> {
        match Narrow::of(code) {
            Some(narrow) => Ok(Self::Narrow(narrow)),
            None => tensor::dtype(i32::try_from(code).unwrap_or(-1)).map(Self::Plain),
        }
    }
    /// The dtype of its values here.
    pub fn dtype(self) -> DType {
        match self {
            Self::Plain(dtype) => dtype,
            Self::Narrow(narrow) => narrow.dtype(),
        }
    }
}

impl Narrow {
    pub fn of(code: i64) -> Option<Self> {
        let float = |exponent, mantissa, bias, end| Self::Float { exponent, mantissa, bias, end };
        Some(match code {
            17 => float(4, 3, 7, End::Nan),
            18 => float(4, 3, 8, End::NegativeZero),
            19 => float(5, 2, 15, End::Infinity),
            20 => float(5, 2, 16, End::NegativeZero),
            21 => Self::Int { bits: 4, signed: false },
            22 => Self::Int { bits: 4, signed: true },
            23 => float(2, 1, 1, End::Numbers),
            24 => Self::Power,
            25 => Self::Int { bits: 2, signed: false },
            26 => Self::Int { bits: 2, signed: true },
            _ => return None,
        })
    }
    /// The dtype that holds its values.
    pub fn dtype(self) -> DType {
        match self {
            Self::Int { signed: true, .. } => DType::I8,
            Self::Int { .. } => DType::U8,
            Self::Float { .. } | Self::Power => DType::F32,
        }
    }
    /// The range of integers.
    pub fn range(self) -> Option<(i128, i128)> {
        match self {
            Self::Int { bits, signed: true } => Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
            Self::Int { bits, signed: false } => Some((0, (1 << bits) - 1)),
            _ => None,
        }
    }
    fn bits(self) -> u32 {
        match self {
            Self::Int { bits, .. } => bits,
            Self::Float { exponent, mantissa, .. } => 1 + exponent + mantissa,
            Self::Power => 8,
        }
    }
    /// The value of a code.
    fn value(self, code: u8) -> f64 {
        match self {
            Self::Int { bits, signed } => {
                let n = i32::from(code);
                f64::from(if signed && n >= 1 << (bits - 1) { n - (1 << bits) } else { n })
            }
            Self::Power if code == 255 => f64::NAN,
            Self::Power => 2_f64.powi(i32::from(code) - 127),
            Self::Float { exponent, mantissa, bias, end } => {
                let all = exponent + mantissa;
                let (negative, rest) = (code >> all & 1 == 1, u32::from(code) & ((1 << all) - 1));
                if end == End::NegativeZero && negative && rest == 0 {
                    return f64::NAN;
                }
                let size = match (rest >> mantissa, rest & ((1 << mantissa) - 1)) {
                    _ if end == End::Nan && rest == (1 << all) - 1 => f64::NAN,
                    (e, 0) if end == End::Infinity && e == (1 << exponent) - 1 => f64::INFINITY,
                    (e, _) if end == End::Infinity && e == (1 << exponent) - 1 => f64::NAN,
                    (0, m) => f64::from(m) * 2_f64.powi(1 - bias - mantissa as i32),
                    (e, m) => f64::from((1 << mantissa) + m) * 2_f64.powi(e as i32 - bias - mantissa as i32),
                };
                if negative { -size } else { size }
            }
        }
    }
    /// The numbers of a float that are not negative, in order.
    fn numbers(self) -> Vec<f64> {
        let half = if self == Self::Power { 255 } else { 1 << (self.bits() - 1) };
        (0..half).map(|code: u32| self.value(code as u8)).filter(|x| x.is_finite()).collect()
    }

    /// The values of a tensor of the file.
    pub fn read(self, proto: &TensorProto, elsewhere: &External<'_>) -> Result<Tensor> {
        let shape = tensor::sizes(&proto.dims)?;
        let (count, bits) = (shape.iter().product::<usize>(), self.bits());
        let each = (8 / bits) as usize;
        let length = count.div_ceil(each);
        let bytes = match (&proto.raw_data, proto.data_location) {
            (_, 1) => tensor::external(proto, length, elsewhere)?,
            (Some(raw), _) => raw.clone(),
            (None, _) => Bytes::from(proto.int32_data.iter().map(|&n| n as u8).collect::<Vec<u8>>()),
        };
        if bytes.len() != length {
            let (dims, actual) = (&proto.dims, bytes.len());
            return Err(tensor::bad(format!(
                "a tensor of {bits} bits and shape {dims:?} needs {length} bytes, but has {actual}"
            )));
        }
        let code = |i: usize| bytes[i / each] >> (bits * (i % each) as u32) & (0xff >> (8 - bits)) as u8;
        let values: Vec<f64> = (0..count).map(|i| self.value(code(i))).collect();
        Ok(Tensor::from_f64s(self.dtype(), &shape, &values))
    }

    /// A tensor rounded to this dtype. What is too large becomes the largest number if it `saturates`; integers wrap around.
    pub fn round(self, u: &mut Use<'_>, x: ValueId, saturates: bool, mode: &str) -> Result<ValueId> {
        if let Self::Int { bits, signed } = self {
            // Floats are cut off, as for wider integers.
            let x = if matches!(u.dtype(x), DType::U32 | DType::U64) { x } else { u.cast(x, DType::I64)? };
            let x = u.cast(x, DType::I32)?;
            let mut low = op!(u, "bitwise_and", x, (1_i64 << bits) - 1)?;
            if signed {
                let sign = 1_i64 << (bits - 1);
                low = op!(u, "bitwise_xor", low, sign)?;
                low = op!(u, "subtract", low, sign)?;
            }
            return u.cast(low, self.dtype());
        }
        let wide = if u.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
        let x = u.cast(x, wide)?;
        let numbers = self.numbers();
        let last = numbers.len() - 1;
        // The largest number that becomes element i: the middle between two, which goes to the even one.
        let mut bounds: Vec<f64> = (0..last)
            .map(|i| match mode {
                "up" if self == Self::Power => numbers[i],
                "down" if self == Self::Power => below(numbers[i + 1], wide),
                _ => {
                    let middle = f64::midpoint(numbers[i], numbers[i + 1]);
                    let goes_up = if self == Self::Power { true } else { i % 2 == 1 };
                    if goes_up { below(middle, wide) } else { middle }
                }
            })
            .collect();
        let mut table = numbers.clone();
        if !saturates && !matches!(self, Self::Float { end: End::Numbers, .. }) {
            let step = numbers[last] - numbers[last - 1];
            let limit = if self == Self::Power { numbers[last] } else { numbers[last] + step / 2.0 };
            bounds.push(if last % 2 == 1 && self != Self::Power { below(limit, wide) } else { limit });
            let has_infinity = matches!(self, Self::Float { end: End::Infinity, .. });
            table.push(if has_infinity { f64::INFINITY } else { f64::NAN });
        }
        let bounds = u.cx.lit(Tensor::from_f64s(wide, &[bounds.len()], &bounds));
        let table = u.cx.lit(Tensor::from_f64s(DType::F32, &[table.len()], &table));
        let size = if self == Self::Power { x } else { op!(u, "abs", x)? };
        let place = op!(u, "bucketize", size, bounds)?;
        let mut y = op!(u, "take", table, place, 0_i64)?;
        if self != Self::Power {
            let (negative, opposite) = (op!(u, "less", x, 0.0)?, op!(u, "negative", y)?);
            y = op!(u, "where", negative, opposite, y)?;
        }
        let (missing, has_nan) =
            (op!(u, "isnan", x)?, !matches!(self, Self::Float { end: End::Numbers, .. }));
        op!(u, "where", missing, if has_nan { f64::NAN } else { 0.0 }, y)
    }
}

/// The next smaller number in that dtype.
fn below(x: f64, dtype: DType) -> f64 {
    if dtype == DType::F64 { x.next_down() } else { f64::from((x as f32).next_down()) }
}

/// Ops that move elements, so that these keep their dtype.
const MOVES: [&str; 20] = [
    "CenterCropPad",
    "Concat",
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "Shape",
    "Size",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// Whether an op moves elements and leaves them as they are.
pub fn moves(op: &str) -> bool {
    MOVES.contains(&op)
}

/// The error for an op that does not take such values.
pub fn refuse(narrow: Narrow) -> Error {
    let name = match narrow {
        Narrow::Int { bits, signed } => format!("{}int{bits}", if signed { "" } else { "u" }),
        Narrow::Power => "float8e8m0".into(),
        Narrow::Float { exponent, mantissa, .. } => {
            format!("float{}e{exponent}m{mantissa}", 1 + exponent + mantissa)
        }
    };
    Use::refuse(format!(
        "dtype {name} is supported by ops that cast, quantize, dequantize or move elements alone"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_formats() {
        let of = |code, bits| Narrow::of(code).unwrap().value(bits);
        assert_eq!(of(17, 0x7e), 448.0);
        assert!(of(17, 0x7f).is_nan() && of(18, 0x80).is_nan() && of(19, 0x7d).is_nan());
        assert_eq!(of(18, 0x7f), 240.0);
        assert_eq!((of(19, 0x7b), of(19, 0xfc)), (57344.0, f64::NEG_INFINITY));
        assert_eq!(of(20, 0x7f), 57344.0);
        assert_eq!((of(22, 15), of(21, 15), of(26, 2), of(25, 3)), (-1.0, 15.0, -2.0, 3.0));
        assert_eq!((of(23, 7), of(23, 1), of(24, 127)), (6.0, 0.5, 1.0));
    }
}
