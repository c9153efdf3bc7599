//! The C target: a graph whose sizes are numbers becomes one C file and a header.

use std::sync::Arc;

use mithril_codegen::c;
use mithril_codegen::c::kernels::Target as Shape;
pub use mithril_codegen::c::kernels::{Choices, Question, Scheme};
pub use mithril_codegen::c::{Cost, Decision, Matrix, Quantize, Reason, c_type};
pub use mithril_codegen::c::{batch, block};
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
    fn can_spell(&self, graph: &Graph, node: NodeId) -> bool {
        c::can_spell(graph, node)
    }
}

/// What is asked of the generated C.
#[derive(Clone, Debug, Default)]
pub struct COptions {
    /// What the names of all symbols start with; an identifier of C.
    pub prefix: String,
    /// Whether parameters may be packed, once for many calls: they do not change between calls.
    pub pack: bool,
    /// Whether new states are written into the memory of the old ones.
    pub in_place: bool,
    /// Names of the inputs whose memory outputs may take over.
    pub donated: Vec<Arc<str>>,
    /// Floats in a vector of the processor that the code is for: 16, 8, 4, or 1 for plain C; by default those of this
    /// processor.
    pub lanes: Option<usize>,
    /// Whether the code measures its steps; see `mithril_codegen::c::Options`.
    pub profile: bool,
    /// Which candidates kernels take; others as estimated.
    pub choices: Choices,
    /// If there are any: only the first step of each of these specifications.
    pub only: Vec<String>,
    /// Weights that are kept in few bits; needs `pack`.
    pub quantize: Option<Quantize>,
    /// How many rows of the data are computed at a time; see `mithril_codegen::c::Options`.
    pub block: Option<usize>,
}

/// An input or output of generated C.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Name: the path in the model.
    pub name: Arc<str>,
    /// What an input is for; outputs are data, new states states.
    pub role: Role,
    /// Whether it is an input that is the same at every call of a model that is not trained.
    pub is_fixed: bool,
    /// Dtype as stored.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
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
    /// What it writes, in order: the outputs, then the updated states.
    pub outputs: Vec<Buffer>,
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
    /// What became of the weights where they are to be kept in few bits.
    pub decisions: Vec<Decision>,
}

/// Writes a graph that was lowered for [`C`] and whose sizes are numbers.
pub fn compile_c(graph: &Graph, options: &COptions) -> Result<CSource> {
    let target = match options.lanes {
        None => native(),
        Some(lanes) => shape(lanes)?,
    };
    let COptions { pack, in_place, profile, .. } = *options;
    let is_donated =
        |v: ValueId| graph.value(v).name.as_ref().is_some_and(|name| options.donated.contains(name));
    let donated = graph.inputs.iter().enumerate().filter(|(_, v)| is_donated(**v)).map(|(i, _)| i).collect();
    let given = c::Options {
        prefix: options.prefix.clone(),
        pack,
        in_place,
        donated,
        target,
        profile,
        choices: options.choices.clone(),
        only: options.only.clone(),
        quantize: options.quantize.clone(),
        block: options.block,
    };
    let source = c::emit(graph, &given)?;
    let inputs = graph.inputs.iter().map(|&v| {
        let value = graph.value(v);
        let role = if let Def::Input(role) = value.def { role } else { Role::Data };
        buffer(graph, v, value.name.clone().unwrap_or_default(), role)
    });
    let outputs = graph.outputs.iter().map(|(name, &v)| buffer(graph, v, name.clone(), Role::Data));
    let updates = graph.updates.iter().map(|&(old, new)| {
        buffer(graph, new, graph.value(old).name.clone().unwrap_or_default(), Role::State)
    });
    Ok(CSource {
        inputs: inputs.collect::<Result<_>>()?,
        outputs: outputs.chain(updates).collect::<Result<_>>()?,
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

/// Floats in a vector of the processor that code is for; `None`: of this one.
pub fn lanes(given: Option<usize>) -> Result<usize> {
    Ok(given.map_or_else(|| Ok(native()), shape)?.lanes)
}

/// The vectors of the processor that this runs on. Other processors run the same C, if not as fast.
fn native() -> Shape {
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx512f") {
            return Shape { has_bytes: has!("avx512vnni"), ..Shape::avx512() };
        }
        if has!("avx2") && has!("fma") {
            return Shape { has_bytes: has!("avxvnni"), ..Shape::avx2() };
        }
        Shape { has_bytes: false, ..Shape::neon() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        Shape { has_bytes: std::arch::is_aarch64_feature_detected!("dotprod"), ..Shape::neon() }
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

fn buffer(graph: &Graph, v: ValueId, name: Arc<str>, role: Role) -> Result<Buffer> {
    let (dtype, shape) = match (graph.ty(v), graph.lit(v)) {
        (Some(ty), _) => (ty.dtype, ty.shape.known()),
        // A number that is an output.
        (None, Some(lit)) => (lit.weak_dtype(DType::F32).unwrap_or(DType::F32), Some(Vec::new())),
        (None, None) => return Err(Error::internal("a result without a type is compiled")),
    };
    let shape = shape.ok_or_else(|| Error::internal("a size that is not a number reaches the C target"))?;
    Ok(Buffer { name, role, is_fixed: c::is_fixed(graph, v), dtype, shape })
}
