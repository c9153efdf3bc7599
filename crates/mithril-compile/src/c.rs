//! The C target: a graph whose sizes are numbers becomes one C file and a header.

use std::sync::Arc;

use mithril_codegen::c;
use mithril_codegen::c::kernels::Target as Shape;
pub use mithril_codegen::c::kernels::{Choices, Question, Scheme};
pub use mithril_codegen::c::{Cost, Decision, Matrix, Options as COptions, Quantize, Reason, c_type};
pub use mithril_codegen::c::{batch, block, units};
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Def, Graph, NodeId, Role};
use mithril_ir::{DType, Place, ValueId};

use crate::pipeline::Target;

/// The C target as the pipeline sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct C;

impl Target for C {
    fn name(&self) -> &'static str {
        "c"
    }
    fn can_lower(&self, graph: &Graph, node: NodeId) -> bool {
        c::can_lower(graph, node)
    }
}

/// An input or output of compiled code: contiguous, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name: the path in the model.
    pub name: Arc<str>,
    /// Dtype as stored.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
}

impl Buffer {
    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// Generated C.
#[derive(Clone, Debug)]
pub struct CSource {
    /// Where in the model the calls are that can fail, in the order of their numbers.
    pub failing: Vec<Place>,
    /// The file.
    pub c: String,
    /// The header.
    pub h: String,
    /// What the file declares, as the header does: an exported file includes it instead.
    pub declared: String,
    /// What it reads, in order.
    pub inputs: Vec<Buffer>,
    /// What each input is for.
    pub roles: Vec<Role>,
    /// Whether each input is the same at every call of a model that is not trained.
    pub fixed: Vec<bool>,
    /// What it writes, in order: the outputs, then the updated states.
    pub outputs: Vec<Buffer>,
    /// How many of the outputs are updated states.
    pub updates: usize,
    /// Names of stages and what they made of the program, as text.
    pub stages: Vec<(String, String)>,
    /// Numbers of the inputs that a call reads; of others only packing knows.
    pub reads: Vec<usize>,
    /// Numbers of the inputs that each part of packing reads.
    pub packing: Vec<Vec<usize>>,
    /// Inputs, by number, with the outputs (new states too) that may lie in the same memory.
    pub shared: Vec<(usize, usize)>,
    /// The steps in the order in which they run.
    pub costs: Vec<Cost>,
    /// About how many nanoseconds a call takes on one thread; `None`: that depends on data.
    pub nanoseconds: Option<u64>,
    /// Specifications of kernels for which there are candidates.
    pub questions: Vec<Question>,
    /// What became of the weights where they are to be quantized.
    pub decisions: Vec<Decision>,
}

/// Writes a graph that was lowered for [`C`] and whose sizes are numbers.
pub fn compile_c(graph: &Graph, options: &COptions) -> Result<CSource> {
    let source = c::emit(graph, options)?;
    let name = |v: ValueId| graph.value(v).name.clone().unwrap_or_default();
    let role = |&v: &ValueId| if let Def::Input(role) = graph.value(v).def { role } else { Role::Data };
    let inputs = graph.inputs.iter().map(|&v| buffer(graph, v, name(v)));
    let outputs = graph.outputs.iter().map(|(name, &v)| buffer(graph, v, name.clone()));
    let updates = graph.updates.iter().map(|&(old, new)| buffer(graph, new, name(old)));
    Ok(CSource {
        inputs: inputs.collect::<Result<_>>()?,
        roles: graph.inputs.iter().map(role).collect(),
        fixed: graph.inputs.iter().map(|&v| c::is_fixed(graph, v)).collect(),
        outputs: outputs.chain(updates).collect::<Result<_>>()?,
        updates: graph.updates.len(),
        c: source.c,
        h: source.h,
        declared: source.declared,
        stages: source.stages,
        reads: source.reads,
        packing: source.packing,
        shared: source.shared,
        costs: source.costs,
        nanoseconds: source.nanoseconds,
        questions: source.questions,
        decisions: source.decisions,
        failing: source.failing.iter().map(|path| place_of(graph, path)).collect(),
    })
}

/// The place in the model of that path, with the user's line if one is known.
fn place_of(graph: &Graph, path: &str) -> Place {
    let mut places = graph.nodes().map(|(n, _)| graph.place(n));
    let found = places.find(|place| place.line.is_some() && place.path.as_deref() == Some(path));
    found.cloned().unwrap_or_default()
}

/// The processor that code is for, by the number of floats in its vectors: 16, 8, 4, or 1 for plain C; `None`: this one.
pub fn target(lanes: Option<usize>) -> Result<Shape> {
    lanes.map_or_else(|| Ok(native()), shape)
}

/// Numbers of the inputs of a graph that have these names, as [`COptions`] takes those that are donated.
pub fn donated(graph: &Graph, names: &[Arc<str>]) -> Vec<usize> {
    let is_donated = |v: ValueId| graph.value(v).name.as_ref().is_some_and(|name| names.contains(name));
    graph.inputs.iter().enumerate().filter(|(_, v)| is_donated(**v)).map(|(i, _)| i).collect()
}

/// The vectors of the processor that this runs on. Other processors run the same C, if not as fast.
fn native() -> Shape {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx512f") {
            return Shape { has_bytes: has!("avx512vnni"), has_bf16: has!("avx512bf16"), ..Shape::avx512() };
        }
        if has!("avx2") && has!("fma") {
            return Shape { has_bytes: has!("avxvnni"), ..Shape::avx2() };
        }
        Shape { has_bytes: false, ..Shape::neon() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        Shape { has_bytes: has!("dotprod"), has_bf16: has!("bf16"), ..Shape::neon() }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        Shape::plain()
    }
}

/// What the kernels are shaped for where a vector has so many lanes.
fn shape(lanes: usize) -> Result<Shape> {
    match lanes {
        own if own == native().lanes => Ok(native()),
        16 => Ok(Shape::avx512()),
        8 => Ok(Shape::avx2()),
        4 => Ok(Shape::neon()),
        1 => Ok(Shape::plain()),
        other => Err(Error::new(Code::BadArgument, format!("no processor has vectors of {other} floats"))
            .help("give 16 (AVX-512), 8 (AVX2), 4 (SSE2, NEON, WebAssembly), or 1 for plain C")),
    }
}

fn buffer(graph: &Graph, v: ValueId, name: Arc<str>) -> Result<Buffer> {
    let (dtype, shape) = match (graph.ty(v), graph.lit(v)) {
        (Some(ty), _) => (ty.dtype, ty.shape.known()),
        // A number that is an output.
        (None, Some(lit)) => (lit.weak_dtype(DType::F32).unwrap_or(DType::F32), Some(Vec::new())),
        (None, None) => return Err(Error::internal("a result without a type is compiled")),
    };
    let shape = shape.ok_or_else(|| Error::internal("a size that is not a number reaches the C target"))?;
    Ok(Buffer { name, dtype, shape })
}
