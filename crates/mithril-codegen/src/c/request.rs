//! What one compilation is asked for: the options, and what its caller knows of the processor, the graph and the mesh.

use std::collections::BTreeMap;
use std::fmt;

use crate::c::options::Options;
use crate::c::target::Target;
use crate::ids::InputId;

/// Specifications with the candidate that was found to be the fastest.
pub type Choices = BTreeMap<String, String>;

/// What one compilation is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What the user chose.
    pub options: Options,
    /// What the kernels are shaped for.
    pub target: Target,
    /// Inputs whose memory outputs may take over.
    pub donated: Vec<InputId>,
    /// Whether the code measures its steps: a further output, behind all others, takes the seconds of each.
    pub profile: bool,
    /// Which candidates kernels take; others as estimated.
    pub choices: Choices,
    /// If there are any: only the first step of each of these specifications, so that candidates can be measured.
    pub only: Vec<String>,
    /// The mesh whose ranks run the program, if it is divided.
    pub mesh: Option<Mesh>,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            options: Options::default(),
            target: Target::avx2(),
            donated: Vec::new(),
            profile: false,
            choices: Choices::new(),
            only: Vec::new(),
            mesh: None,
        }
    }
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
