//! From a graph to the generated file: the passes, then the text.

use std::sync::Arc;

use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Role};
use mithril_ir::{DType, Graph, Place, ValueId};

use crate::c::analysis::cost::{self, Cost};
use crate::c::analysis::packing;
use crate::c::emit::{file, header};
use crate::c::ir::program::KernelProgram;
use crate::c::kernels::TuningTask;
use crate::c::passes::{batch_tiling, fusion, in_place};
use crate::c::request::Request;
use crate::c::select::decision::Decision;
use crate::c::{lower, pipeline};
use crate::ids::{InputId, OutputId};

/// An input or output of generated code: contiguous, in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name: the path in the model.
    pub name: Arc<str>,
    /// Its dtype as stored.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// Generated C.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub c: String,
    /// The header.
    pub h: String,
    /// The declarations of the file, which the header has too: an exported file includes it instead.
    pub declared: String,
    /// The inputs, in order.
    pub inputs: Vec<TensorSpec>,
    /// What each input is for.
    pub roles: Vec<Role>,
    /// Whether each input is the same at every call of a model that is not trained.
    pub fixed: Vec<bool>,
    /// The outputs, in order, then the updated states, called like the states.
    pub outputs: Vec<TensorSpec>,
    /// How many of the outputs are updated states.
    pub updates: usize,
    /// Names of stages with the text of the program after each.
    pub stages: Vec<(String, String)>,
    /// The inputs that a call reads; the others are only read by packing.
    pub reads: Vec<InputId>,
    /// The inputs that each part of packing reads.
    pub packing: Vec<Vec<InputId>>,
    /// Inputs with the outputs (updated states too) that may share their memory.
    pub shared: Vec<(InputId, OutputId)>,
    /// The steps in the order in which they run.
    pub costs: Vec<Cost>,
    /// Estimated nanoseconds of a call on one thread; `None`: that depends on data.
    pub nanoseconds: Option<u64>,
    /// Specifications of kernels for which there are candidates.
    pub tuning_tasks: Vec<TuningTask>,
    /// How each weight is stored, where weights are quantized.
    pub decisions: Vec<Decision>,
    /// The places in the model of the calls that can fail, in the order of their numbers.
    pub failing: Vec<Place>,
}

/// Writes a graph that was lowered for C and whose sizes are numbers.
///
/// # Errors
/// If C cannot express some ops: all of them, with their places.
pub fn emit(graph: &Graph, request: &Request) -> Result<Source> {
    let (compilation, stages) = pipeline::compile(graph, request)?;
    let program = &compilation.program;
    let declared = header::declared(&request.options.prefix, program, request.mesh.as_ref());
    let file = file::file(program, request, &compilation.library, &compilation.epilogues, &declared)?;
    let name = |v: ValueId| graph.value(v).name.clone().unwrap_or_default();
    let role = |&v: &ValueId| if let Def::Input(role) = graph.value(v).def { role } else { Role::Data };
    let inputs = graph.inputs.iter().map(|&v| spec(graph, v, name(v)));
    let outputs = graph.outputs.iter().map(|(name, &v)| spec(graph, v, name.clone()));
    let updates = graph.updates.iter().map(|&(old, new)| spec(graph, new, name(old)));
    Ok(Source {
        c: file.c,
        h: header::header(&request.options.prefix, &declared, &file.sizes),
        declared,
        inputs: inputs.collect::<Result<_>>()?,
        roles: graph.inputs.iter().map(role).collect(),
        fixed: graph.inputs.iter().map(|&v| lower::is_fixed(graph, v)).collect(),
        outputs: outputs.chain(updates).collect::<Result<_>>()?,
        updates: graph.updates.len(),
        stages,
        reads: packing::inputs(program, program.steps.iter()),
        packing: packing_inputs(program),
        shared: in_place::shared(program),
        costs: cost::costs(program),
        nanoseconds: cost::nanoseconds(program, request.target.lanes),
        tuning_tasks: compilation.library.tuning_tasks().to_vec(),
        decisions: compilation.decisions,
        failing: file.failing.iter().map(|path| place_of(graph, path)).collect(),
    })
}

fn spec(graph: &Graph, v: ValueId, name: Arc<str>) -> Result<TensorSpec> {
    let (dtype, shape) = match (graph.ty(v), graph.lit(v)) {
        (Some(ty), _) => (ty.dtype, ty.shape.known()),
        // A number that is an output.
        (None, Some(lit)) => (lit.weak_dtype(DType::F32).unwrap_or(DType::F32), Some(Vec::new())),
        (None, None) => return Err(Error::internal("a result without a type is compiled")),
    };
    let shape = shape.ok_or_else(|| Error::internal("a size that is not a number reaches the C target"))?;
    Ok(TensorSpec { name, dtype, shape })
}

/// The place in the model of that path, with the user's line if one is known.
fn place_of(graph: &Graph, path: &str) -> Place {
    let mut places = graph.nodes().map(|(n, _)| graph.place(n));
    let place = places.find(|place| place.line.is_some() && place.path.as_deref() == Some(path));
    place.cloned().unwrap_or_default()
}

/// As many of the batch elements of a graph with so many as are estimated to be quickest to compute at a time.
pub fn block(graph: &Graph, batch: usize) -> Result<usize> {
    let mut program = lower::lower(graph, false)?;
    fusion::fuse(&mut program);
    Ok(batch_tiling::estimate(&program, batch))
}

/// The inputs that each part of packing reads.
fn packing_inputs(program: &KernelProgram) -> Vec<Vec<InputId>> {
    let parts = packing::parts(program).into_iter();
    parts.map(|part| packing::inputs(program, part.iter().map(|&i| &program.prepacking[i]))).collect()
}
