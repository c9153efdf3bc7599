//! What kernel selection works with.

use crate::c::ir::expr::{BufferId, Expr, Index};
use crate::c::ir::kernel::Kernel;
use crate::c::ir::program::{KernelCall, Level, Program, Start};
use crate::c::kernels::common::library::Library;
use crate::c::kernels::spec::epilogue::Operand;
use crate::c::kernels::spec::strides::Strides;
use crate::c::request::Request;
use crate::c::select::decision::Decision;
use crate::c::select::epilogue::{EpilogueCall, EpilogueFunctions};
use crate::c::syntax::template::c_type;

/// Whether a tensor is the same at every call, so that it may be packed once.
pub fn is_fixed<L: Level>(program: &Program<L>, buffer: BufferId, request: &Request) -> bool {
    request.options.pack && program.buffers[buffer].is_fixed()
}

/// What a stage puts together.
pub struct SelectionContext<'a> {
    /// What is asked for.
    pub request: &'a Request,
    /// The kernels' functions.
    pub library: &'a mut Library,
    /// The epilogues.
    pub epilogues: &'a mut EpilogueFunctions,
    /// Which weights are quantized.
    pub decisions: &'a mut Vec<Decision>,
}

/// What an epilogue reads, with strides as `strides` says; `None` if something is not a multiple of the variables.
pub fn operands(
    epilogue: &EpilogueCall,
    strides: impl Fn(&Index) -> Option<Strides>,
) -> Option<(Vec<Operand>, Vec<Start>)> {
    let operand = |load: &Expr| {
        let Expr::Load { from, at, stored } = load else { return None };
        let start = (*from, usize::try_from(at[0].constant).ok()?);
        Some((Operand { element: c_type(*stored).to_owned(), strides: strides(&at[0])? }, start))
    };
    Some(epilogue.loads.iter().map(operand).collect::<Option<Vec<_>>>()?.into_iter().unzip())
}

/// A kernel as a step.
pub fn call(
    kernel: Kernel,
    to: BufferId,
    inputs: [Start; 2],
    operands: Vec<Start>,
    what: String,
    work: usize,
) -> KernelCall {
    KernelCall {
        kernel,
        to,
        inputs,
        operands,
        packed: 0,
        next_weights: None,
        shared: None,
        what,
        work,
        tuning_keys: Vec::new(),
    }
}
