//! What lies in a tensor of ggml: its elements, which may be packed in blocks, its sizes and its strides.

use std::fmt;

use mithril_ir::DType;

/// Most dimensions that a tensor of ggml has.
pub const DIMENSIONS: usize = 4;

/// What the elements of a tensor are; named and numbered as in `ggml.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, non_camel_case_types, reason = "the names of ggml")]
pub enum Element {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ1_S,
    IQ1_M,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
}

/// Name, number in `enum ggml_type`, elements in a block, bytes of a block; in the order of [`Element`].
const ELEMENTS: &[(Element, &str, i32, i64, i64)] = &[
    (Element::F32, "f32", 0, 1, 4),
    (Element::F16, "f16", 1, 1, 2),
    (Element::BF16, "bf16", 30, 1, 2),
    (Element::F64, "f64", 28, 1, 8),
    (Element::I8, "i8", 24, 1, 1),
    (Element::I16, "i16", 25, 1, 2),
    (Element::I32, "i32", 26, 1, 4),
    (Element::I64, "i64", 27, 1, 8),
    (Element::Q4_0, "q4_0", 2, 32, 18),
    (Element::Q4_1, "q4_1", 3, 32, 20),
    (Element::Q5_0, "q5_0", 6, 32, 22),
    (Element::Q5_1, "q5_1", 7, 32, 24),
    (Element::Q8_0, "q8_0", 8, 32, 34),
    (Element::Q2_K, "q2_K", 10, 256, 84),
    (Element::Q3_K, "q3_K", 11, 256, 110),
    (Element::Q4_K, "q4_K", 12, 256, 144),
    (Element::Q5_K, "q5_K", 13, 256, 176),
    (Element::Q6_K, "q6_K", 14, 256, 210),
    (Element::IQ2_XXS, "iq2_xxs", 16, 256, 66),
    (Element::IQ2_XS, "iq2_xs", 17, 256, 74),
    (Element::IQ2_S, "iq2_s", 22, 256, 82),
    (Element::IQ3_XXS, "iq3_xxs", 18, 256, 98),
    (Element::IQ3_S, "iq3_s", 21, 256, 110),
    (Element::IQ1_S, "iq1_s", 19, 256, 50),
    (Element::IQ1_M, "iq1_m", 29, 256, 56),
    (Element::IQ4_NL, "iq4_nl", 20, 32, 18),
    (Element::IQ4_XS, "iq4_xs", 23, 256, 136),
    (Element::TQ1_0, "tq1_0", 34, 256, 54),
    (Element::TQ2_0, "tq2_0", 35, 256, 66),
    (Element::MXFP4, "mxfp4", 39, 32, 17),
];

impl Element {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        ELEMENTS.iter().map(|e| e.0)
    }
    /// By its name, in capitals or not.
    pub fn parse(name: &str) -> Option<Self> {
        ELEMENTS.iter().find(|e| e.1.eq_ignore_ascii_case(name)).map(|e| e.0)
    }
    fn row(self) -> &'static (Self, &'static str, i32, i64, i64) {
        &ELEMENTS[self as usize]
    }
    /// Its name in ggml.
    pub fn name(self) -> &'static str {
        self.row().1
    }
    /// Its number in `enum ggml_type`.
    pub fn code(self) -> i32 {
        self.row().2
    }
    /// How many elements share a block.
    pub fn block(self) -> i64 {
        self.row().3
    }
    /// The bytes of a block.
    pub fn bytes(self) -> i64 {
        self.row().4
    }
    /// Whether elements share scales.
    pub fn is_quantized(self) -> bool {
        self.block() > 1
    }
    /// Whether its blocks hold their least value as a float of 16 bits.
    pub fn has_least_values(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1)
    }
    /// Whether ggml computes with it: what it is not are doubles and integers, which custom ops read and write.
    pub fn is_computed(self) -> bool {
        !matches!(self, Self::F64 | Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }
    /// As what values of a dtype lie in a graph of ggml: floats and booleans as f32, everything else as it is.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 | DType::Bool => Self::F32,
            DType::F64 => Self::F64,
            DType::U8 | DType::I8 => Self::I8,
            DType::U16 | DType::I16 => Self::I16,
            DType::U32 | DType::I32 => Self::I32,
            DType::U64 | DType::I64 => Self::I64,
        }
    }
    /// Whether the bytes of values of a dtype are those of such elements.
    pub fn holds(self, dtype: DType) -> bool {
        self == Self::of(dtype) && !matches!(dtype, DType::F16 | DType::BF16 | DType::Bool)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a tensor of ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Its elements.
    pub element: Element,
    /// `ne`: sizes, the one that moves fastest first.
    pub sizes: [i64; DIMENSIONS],
    /// `nb`: how many bytes lie between neighbors along each dimension.
    pub strides: [i64; DIMENSIONS],
}

impl Type {
    /// A tensor without gaps.
    pub fn contiguous(element: Element, sizes: [i64; DIMENSIONS]) -> Self {
        let mut strides = [element.bytes(); DIMENSIONS];
        strides[1] = element.bytes() * (sizes[0] / element.block());
        for i in 2..DIMENSIONS {
            strides[i] = strides[i - 1].saturating_mul(sizes[i - 1]);
        }
        Self { element, sizes, strides }
    }
    /// A tensor without gaps of the sizes of a graph, which are in the other order; `None` for more than four.
    pub fn of_shape(element: Element, shape: &[i64]) -> Option<Self> {
        let mut sizes = [1; DIMENSIONS];
        for (to, &size) in sizes.iter_mut().zip(shape.iter().rev()) {
            *to = size;
        }
        (shape.len() <= DIMENSIONS).then(|| Self::contiguous(element, sizes))
    }
    /// How many elements it has.
    pub fn elements(&self) -> i64 {
        self.sizes.iter().fold(1, |product: i64, &n| product.saturating_mul(n))
    }
    /// How many rows it has.
    pub fn rows(&self) -> i64 {
        self.sizes[1..].iter().fold(1, |product: i64, &n| product.saturating_mul(n))
    }
    /// `ggml_nbytes`: from its first byte to its last.
    pub fn bytes(&self) -> i64 {
        if self.sizes.contains(&0) {
            return 0;
        }
        let beyond = |i: usize| (self.sizes[i] - 1).saturating_mul(self.strides[i]);
        let later = (1..DIMENSIONS).fold(0_i64, |sum, i| sum.saturating_add(beyond(i)));
        let first = if self.element.is_quantized() {
            self.sizes[0] * self.strides[0] / self.element.block()
        } else {
            self.element.bytes() + beyond(0)
        };
        first.saturating_add(later)
    }
    /// Whether the elements of a row are neighbors.
    pub fn has_contiguous_rows(&self) -> bool {
        self.sizes[0] == self.element.block() || self.strides[0] == self.element.bytes()
    }
    /// `ggml_is_contiguous_n`: whether nothing lies between the elements, apart from gaps along the first `n`
    /// dimensions.
    pub fn is_contiguous_from(&self, n: usize) -> bool {
        let mut next = self.element.bytes();
        if self.sizes[0] != self.element.block() && self.strides[0] != next {
            return false;
        }
        next = next.saturating_mul(self.sizes[0] / self.element.block());
        for i in 1..DIMENSIONS {
            if i > n {
                if self.sizes[i] != 1 && self.strides[i] != next {
                    return false;
                }
                next = next.saturating_mul(self.sizes[i]);
            } else {
                next = self.strides[i].saturating_mul(self.sizes[i]);
            }
        }
        true
    }
    /// Whether nothing lies between the elements.
    pub fn is_contiguous(&self) -> bool {
        self.is_contiguous_from(0)
    }
    /// Whether copies of it fill a tensor of these sizes.
    pub fn repeats_to(&self, sizes: &[i64; DIMENSIONS]) -> bool {
        self.sizes.iter().zip(sizes).all(|(&own, &whole)| own > 0 && whole % own == 0)
    }
}

impl fmt::Display for Type {
    /// `f32[64, 10]`, sizes as ggml orders them; with strides where there are gaps: `f32[64, 10] by [4, 512]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = (1..DIMENSIONS).rev().find(|&i| self.sizes[i] != 1).unwrap_or(0) + 1;
        let list = |items: &[i64]| items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "{}[{}]", self.element, list(&self.sizes[..rank]))?;
        if !self.is_contiguous() {
            write!(f, " by [{}]", list(&self.strides[..rank]))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_listed_in_their_order() {
        for (i, element) in Element::all().enumerate() {
            assert_eq!(element as usize, i);
            assert_eq!(Element::parse(element.name()), Some(element));
        }
    }

    #[test]
    fn bytes_and_gaps() {
        let matrix = Type::of_shape(Element::Q8_0, &[3, 64]).unwrap();
        assert_eq!((matrix.bytes(), matrix.strides[1]), (3 * 68, 68));
        let mut view = Type::of_shape(Element::F32, &[2, 3]).unwrap();
        assert!(view.is_contiguous());
        view.strides[1] = 40;
        assert_eq!(view.bytes(), 52);
        assert!(!view.is_contiguous() && view.has_contiguous_rows());
        assert_eq!(view.to_string(), "f32[3, 2] by [4, 40]");
    }
}
