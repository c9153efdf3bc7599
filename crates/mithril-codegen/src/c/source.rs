//! From a graph to the generated file: the passes, then the text.

use mithril_ir::Graph;
use mithril_ir::error::Result;

use crate::c::analysis::cost::{self, Cost};
use crate::c::analysis::packing;
use crate::c::emit::{file, header};
use crate::c::ir::program::KernelProgram;
use crate::c::kernels::Question;
use crate::c::options::Options;
use crate::c::passes::{batch_tiling, fusion, in_place};
use crate::c::select::decision::Decision;
use crate::c::{lower, pipeline};

/// Generated C.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub c: String,
    /// The header.
    pub h: String,
    /// What the file declares, as the header does.
    pub declared: String,
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
    /// Paths in the model of the calls that can fail, in the order of their numbers.
    pub failing: Vec<String>,
}

/// Writes a graph whose sizes are numbers. If the target lacks ops, the error lists all of them.
pub fn emit(graph: &Graph, options: &Options) -> Result<Source> {
    let (compilation, stages) = pipeline::compile(graph, options)?;
    let program = &compilation.program;
    let declared = header::declared(&options.prefix, program);
    let file = file::file(program, options, &compilation.library, &compilation.epilogues, &declared)?;
    Ok(Source {
        c: file.c,
        h: header::header(&options.prefix, &declared, &file.sizes),
        stages,
        reads: packing::inputs(program, program.steps.iter()),
        packing: packing_inputs(program),
        shared: in_place::shared(program),
        costs: cost::costs(program),
        nanoseconds: cost::nanoseconds(program, options.target.lanes),
        questions: compilation.library.questions().to_vec(),
        decisions: compilation.decisions,
        declared,
        failing: file.failing,
    })
}

/// As many of the batch elements of a graph with so many as are estimated to be quickest to compute at a time.
pub fn block(graph: &Graph, batch: usize) -> Result<usize> {
    let mut program = lower::lower(graph, false)?;
    fusion::fuse(&mut program);
    Ok(batch_tiling::estimate(&program, batch))
}

/// Numbers of the inputs that each part of packing reads.
fn packing_inputs(program: &KernelProgram) -> Vec<Vec<usize>> {
    let parts = packing::parts(program).into_iter();
    parts.map(|part| packing::inputs(program, part.iter().map(|&i| &program.prepared[i]))).collect()
}
