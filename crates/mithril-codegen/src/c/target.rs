//! The processor that the code is for, and the elements that kernels compute with.

use mithril_ir::DType;

/// What the kernels are shaped for. The text stays correct on any other processor, since vectors are those of GCC
/// and Clang, which split what the machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Lanes of a vector of `float`: 16, 8, 4, or 1 for plain C.
    pub lanes: usize,
    /// Vector registers: how many accumulators fit.
    pub registers: usize,
    /// Bytes of the second-level cache that one thread may fill.
    pub cache: usize,
    /// How many threads are expected; any number works, this one is balanced for.
    pub threads: usize,
    /// Whether it multiplies and adds up bytes faster than floats: it has an instruction for four of them.
    pub has_bytes: bool,
    /// Whether it has an instruction that multiplies pairs of bfloat16 and adds them to a float.
    pub has_bf16: bool,
    /// What tiles it multiplies, if it has any.
    pub tiles: TileFeatures,
    /// Whether weights of products are packed alike for any number of rows, so that programs of several lengths share
    /// them.
    pub packs_alike: bool,
}

/// Matrices in registers of their own (AMX), beside vectors of 16 lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TileFeatures {
    /// Whether it multiplies those of bfloat16 (AMX-BF16).
    pub bf16: bool,
    /// Whether it multiplies those of bytes (AMX-INT8).
    pub int8: bool,
}

impl Target {
    /// A target of this many lanes with this many vector registers.
    pub const fn new(lanes: usize, registers: usize) -> Self {
        Self {
            lanes,
            registers,
            cache: 512 << 10,
            threads: 2,
            has_bytes: true,
            has_bf16: false,
            tiles: TileFeatures { bf16: false, int8: false },
            packs_alike: false,
        }
    }

    /// x86-64 with AVX-512 and VNNI.
    pub const fn avx512() -> Self {
        Self { cache: 1 << 20, ..Self::new(16, 32) }
    }

    /// x86-64 with AVX2 and FMA, mostly without AVX-VNNI.
    pub const fn avx2() -> Self {
        Self { has_bytes: false, ..Self::new(8, 16) }
    }

    /// 64-bit ARM with dot products.
    pub const fn neon() -> Self {
        Self::new(4, 32)
    }

    /// Plain C without vectors.
    pub const fn plain() -> Self {
        Self::new(1, 16)
    }

    /// Lanes of a vector of this element.
    pub fn lanes_of(&self, element: Element) -> usize {
        match element {
            Element::F32 => self.lanes,
            Element::F64 => (self.lanes / 2).max(1),
        }
    }

    /// Rows of a micro-kernel that is two vectors wide: all registers but two for the vectors, one for the
    /// broadcast and one to spare.
    pub(crate) fn rows(&self) -> usize {
        (self.registers - 4) / 2
    }

    /// Pixels of a micro-kernel that is one vector wide: as [`Target::rows`], with one vector more.
    pub(crate) fn pixels(&self) -> usize {
        self.registers - 4
    }

    /// Vectors of sums that stay in registers beside eight of other things.
    pub(crate) fn accumulators(&self) -> usize {
        self.registers - 8
    }
}

/// What a kernel calculates with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// `float`.
    F32,
    /// `double`.
    F64,
}

impl Element {
    /// The C type.
    pub fn c(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F64 => "double",
        }
    }

    /// That of a dtype.
    pub fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            _ => None,
        }
    }

    /// The suffix of functions for this element.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// What the factors of a product are packed as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Factor {
    /// Floats as they are calculated with.
    Float(Element),
    /// Pairs of bfloat16, two steps of k in a word of 32 bits; their products are added up in `float`.
    Pairs,
}

impl From<Element> for Factor {
    fn from(element: Element) -> Self {
        Self::Float(element)
    }
}

impl Factor {
    /// The C type of one, or of a pair.
    pub fn c(self) -> &'static str {
        match self {
            Self::Float(element) => element.c(),
            Self::Pairs => "uint32_t",
        }
    }

    /// The suffix of functions for it.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Float(element) => element.suffix(),
            Self::Pairs => "bf16",
        }
    }

    /// What the products are added up in: as large as a factor, so that both have as many lanes.
    pub fn sums(self) -> Element {
        match self {
            Self::Float(element) => element,
            Self::Pairs => Element::F32,
        }
    }

    /// Terms of a sum that a step of k adds.
    pub fn terms(self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::Pairs => 2,
        }
    }
}
