//! Data types of tensors and how they promote.
//!
//! Promotion follows the array API standard within a kind. Integers and floats promote to the float (`i64 + f16` is `f16`,
//! as in PyTorch), and a Python or Rust scalar never promotes a tensor of its kind. An integer that the tensor's dtype cannot
//! represent is an error rather than another number; comparisons use its exact value. An unsigned and a signed integer
//! promote to the narrowest signed type that represents both (`u16 + i16` is `i32`, `u32 + i8` is `i64`). None represents
//! both `u64` and a signed type: operands of these two are an error ([`DType::mixes_with`]).

use std::fmt;

use crate::error::{Code, Error, Result, nearest};

/// Data type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// `true` or `false`, one byte.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 binary16.
    F16,
    /// Brain float: the upper half of binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

/// Kind of a data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Boolean.
    Bool,
    /// Signed or unsigned integer.
    Int,
    /// Floating point.
    Float,
}

/// A set of kinds, as a port accepts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kinds(u8);

impl Kinds {
    /// Floating point only.
    pub const FLOAT: Self = Self(4);
    /// Integers only.
    pub const INT: Self = Self(2);
    /// Booleans only.
    pub const BOOL: Self = Self(1);
    /// Integers and booleans.
    pub const DISCRETE: Self = Self(3);
    /// Integers and floats.
    pub const NUMBER: Self = Self(6);
    /// Everything.
    pub const ANY: Self = Self(7);
    /// The intersection; `None` if it is empty.
    #[must_use]
    pub const fn intersect(self, other: Self) -> Option<Self> {
        match self.0 & other.0 {
            0 => None,
            both => Some(Self(both)),
        }
    }
    /// Whether `kind` is in the set.
    pub const fn has(self, kind: Kind) -> bool {
        let bit = match kind {
            Kind::Bool => 1,
            Kind::Int => 2,
            Kind::Float => 4,
        };
        self.0 & bit != 0
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = [(Kind::Bool, "bool"), (Kind::Int, "integer"), (Kind::Float, "float")]
            .into_iter()
            .filter(|(k, _)| self.has(*k))
            .map(|(_, n)| n)
            .collect();
        f.write_str(&names.join(" or "))
    }
}

impl DType {
    /// Every data type.
    pub const ALL: &'static [Self] = &[
        Self::Bool,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
    ];

    /// Kind of the type.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Bool => Kind::Bool,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 | Self::I8 | Self::I16 | Self::I32 | Self::I64 => {
                Kind::Int
            }
            Self::F16 | Self::BF16 | Self::F32 | Self::F64 => Kind::Float,
        }
    }
    /// Whether the type is a float.
    pub const fn is_float(self) -> bool {
        matches!(self.kind(), Kind::Float)
    }
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
    /// Canonical long name, as in Python libraries (`float32`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }
    /// Short name, as in the text format and in shapes (`f32`).
    pub const fn short(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
    /// Distance from 1 to the next larger number; 0 if the type is not a float.
    pub const fn epsilon(self) -> f64 {
        match self {
            Self::F16 => 9.765_625e-4,
            Self::BF16 => 7.812_5e-3,
            Self::F32 => f32::EPSILON as f64,
            Self::F64 => f64::EPSILON,
            _ => 0.0,
        }
    }
    /// Smallest and largest integer; `None` if the type is not an integer.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        match self {
            Self::U8 => Some((0, 255)),
            Self::U16 => Some((0, 65_535)),
            Self::U32 => Some((0, u32::MAX as i128)),
            Self::U64 => Some((0, u64::MAX as i128)),
            Self::I8 => Some((-128, 127)),
            Self::I16 => Some((-32_768, 32_767)),
            Self::I32 => Some((i32::MIN as i128, i32::MAX as i128)),
            Self::I64 => Some((i64::MIN as i128, i64::MAX as i128)),
            _ => None,
        }
    }
    /// Whether the type represents that integer, possibly rounded.
    pub const fn holds(self, n: i128) -> bool {
        match self.int_range() {
            Some((least, most)) => least <= n && n <= most,
            None => true,
        }
    }
    /// Largest finite value of a float; `None` if the type is not a float.
    pub const fn float_max(self) -> Option<f64> {
        match self {
            Self::F16 => Some(65_504.0),
            Self::BF16 => Some(3.389_531_389_251_535_5e38),
            Self::F32 => Some(f32::MAX as f64),
            Self::F64 => Some(f64::MAX),
            _ => None,
        }
    }
    /// Whether operands of both types have a common type: all but `u64` and a signed integer, which no integer type represents.
    pub const fn mixes_with(self, other: Self) -> bool {
        let (a, b) = if (self as u8) <= (other as u8) { (self, other) } else { (other, self) };
        !matches!((a, b), (Self::U64, Self::I8 | Self::I16 | Self::I32 | Self::I64))
    }
    /// The common type of two operands that [mix](Self::mixes_with).
    #[must_use]
    pub const fn promote(self, other: Self) -> Self {
        use DType::{BF16, Bool, F16, F32, I8, I16, I32, I64, U8, U16, U32, U64};
        let (a, b) = if (self as u8) <= (other as u8) { (self, other) } else { (other, self) };
        match (a, b) {
            (Bool, x) => x,
            // The narrowest signed type that represents both.
            (U8, I8 | I16) => I16,
            (U16, I8 | I16 | I32) => I32,
            (U32 | U64, I8 | I16 | I32) => I64,
            (F16, BF16) => F32,
            _ => b,
        }
    }
    /// Parses a name: `float32`, `f32`, `half`, `torch.float32`, `int`, `<class 'numpy.float32'>` …
    pub fn parse(text: &str) -> Result<Self> {
        let t = text.trim();
        let t = t.strip_prefix("<class '").and_then(|t| t.strip_suffix("'>")).unwrap_or(t);
        let t = t.rsplit('.').next().unwrap_or(t);
        let canonical = Self::ALL.iter().copied().find(|d| d.name() == t || d.short() == t);
        canonical
            .or(match t {
                "bool_" | "boolean" => Some(Self::Bool),
                "byte" => Some(Self::U8),
                "short" => Some(Self::I16),
                "int" | "long" => Some(Self::I64),
                "half" => Some(Self::F16),
                "float" | "single" => Some(Self::F32),
                "double" => Some(Self::F64),
                _ => None,
            })
            .ok_or_else(|| {
                let names = Self::ALL.iter().map(|d| d.name());
                let all = names.clone().collect::<Vec<_>>().join(", ");
                let help = match nearest(t, names) {
                    Some(n) => format!("did you mean \"{n}\"? Available: {all}"),
                    None => format!("available: {all}"),
                };
                Error::new(Code::BadDType, format!("there is no dtype called {text:?}")).help(help)
            })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_is_a_join() {
        for &a in DType::ALL {
            assert_eq!(a.promote(a), a);
            for &b in DType::ALL {
                assert_eq!(a.promote(b), b.promote(a), "{a} {b}");
                for &c in DType::ALL {
                    let left = a.promote(b).promote(c);
                    let right = a.promote(b.promote(c));
                    assert_eq!(left, right, "{a} {b} {c}");
                }
            }
        }
    }

    #[test]
    fn promoted_integers_hold_both() {
        for &a in DType::ALL {
            for &b in DType::ALL {
                let both = a.promote(b);
                let ranges = (a.int_range(), b.int_range(), both.int_range());
                if let ((Some(x), Some(y), Some(z)), true) = (ranges, a.mixes_with(b)) {
                    assert!(z.0 <= x.0.min(y.0) && x.1.max(y.1) <= z.1, "{a} {b} {both}");
                }
            }
        }
        assert_eq!(DType::U32.promote(DType::I32), DType::I64);
        assert_eq!(DType::U8.promote(DType::U16), DType::U16);
        assert_eq!(DType::U64.promote(DType::U32), DType::U64);
        assert!(DType::ALL.iter().filter(|d| !d.mixes_with(DType::U64)).count() == 4);
        assert_eq!(DType::U32.promote(DType::F16), DType::F16);
    }

    #[test]
    fn parses_foreign_names() {
        assert_eq!(DType::parse("torch.bfloat16").unwrap(), DType::BF16);
        assert_eq!(DType::parse("mlx.core.float16").unwrap(), DType::F16);
        assert_eq!(DType::parse("<class 'numpy.float64'>").unwrap(), DType::F64);
        assert_eq!(DType::parse("torch.uint64").unwrap(), DType::U64);
        assert!(DType::parse("flaot32").unwrap_err().hint().unwrap().contains("float32"));
    }
}
