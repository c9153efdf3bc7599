//! What is asked of the C target.

use std::collections::BTreeMap;
use std::fmt;

use crate::c::target::Target;
use crate::ids::InputId;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantize {
    /// Patterns of paths of weights, and how those are kept; `None`: as they are. The first that is the path counts; `*`
    /// stands for anything, `?` for one character.
    pub rules: Vec<(String, Option<Scheme>)>,
    /// Ranges of what weights of convolutions are multiplied by; those of others are found at every call.
    pub ranges: BTreeMap<String, [f32; 2]>,
    /// Whether a weight that cannot be quantized is an error.
    pub strict: bool,
}

/// Specifications with the candidate that was found to be the fastest.
pub type Choices = BTreeMap<String, String>;

/// How weights are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// 8 bits with a scale for each column; the other factor is quantized too, and the products are integers.
    Int8,
    /// 8 bits with a scale for each column.
    Int8Weights,
    /// 4 bits with a scale for each [`GROUP`] terms of a column.
    Int4Weights,
}

impl Scheme {
    /// Its name, which users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int8Weights => "int8_weights",
            Self::Int4Weights => "int4_weights",
        }
    }

    /// The scheme of a name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Int8, Self::Int8Weights, Self::Int4Weights].into_iter().find(|scheme| scheme.name() == name)
    }

    /// Weights in a word of 32 bits.
    pub(crate) fn fields(self) -> usize {
        match self {
            Self::Int8 | Self::Int8Weights => 4,
            Self::Int4Weights => 8,
        }
    }
}

/// What is asked of the generated C.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What the names of all symbols start with; an identifier of C.
    pub prefix: String,
    /// Whether parameters may be packed, once for many calls: they do not change between calls.
    pub pack: bool,
    /// Whether new states are written into the memory of the old ones: the caller passes the same address for both.
    pub in_place: bool,
    /// Inputs whose memory outputs may take over.
    pub donated: Vec<InputId>,
    /// What the kernels are shaped for.
    pub target: Target,
    /// Whether the code measures its steps: a further output, behind all others, takes the seconds of each.
    pub profile: bool,
    /// Which candidates kernels take; others as estimated.
    pub choices: Choices,
    /// If there are any: only the first step of each of these specifications, so that candidates can be measured.
    pub only: Vec<String>,
    /// Weights that are quantized; needs `pack`.
    pub quantize: Option<Quantize>,
    /// How many rows of the data are computed at a time, of which none may need another; by default as many as are
    /// estimated to be quickest.
    pub block: Option<usize>,
    /// The mesh whose ranks run the program, if it is divided.
    pub mesh: Option<Mesh>,
}

/// A mesh, and how the tensors of the caller are divided over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// Names and sizes of its axes.
    pub axes: Vec<(String, usize)>,
    /// For each input what of it a rank holds, in words; empty where that is all.
    pub inputs: Vec<String>,
    /// The same for outputs, then new states.
    pub outputs: Vec<String>,
}

impl Mesh {
    /// The number of the axis of that name.
    pub fn axis(&self, name: &str) -> Option<usize> {
        self.axes.iter().position(|(own, _)| own == name)
    }
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        f.write_str(&axes.join(", "))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "model".to_owned(),
            pack: false,
            in_place: false,
            donated: Vec::new(),
            target: Target::avx2(),
            profile: false,
            choices: Choices::new(),
            only: Vec::new(),
            quantize: None,
            block: None,
            mesh: None,
        }
    }
}
