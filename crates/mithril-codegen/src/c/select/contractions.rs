//! Kernel selection: contractions become kernels. The first of weight gradient, convolution, matrix product, and matrix
//! product over im2col copies that a nest is wins; other nests stay loops.

use crate::c::analysis::contraction::contraction;
use crate::c::ir::expr::StepId;
use crate::c::ir::program::{
    KernelBuffer, KernelCall, KernelProgram, KernelStep, KernelWork, Nest, PackCall,
};
use crate::c::kernels::common::library::Library;
use crate::c::request::Request;
use crate::c::select::context::SelectionContext;
use crate::c::select::decision::Decision;
use crate::c::select::epilogue::EpilogueFunctions;
use crate::c::select::product::alone;
use crate::c::select::{convolution, im2col, separate, weight_gradient};
use crate::ids::Id as _;

/// Replaces nests by kernels; the functions are added to the library, the epilogues to the epilogues.
/// Says which weights are quantized.
pub fn select(
    program: &mut KernelProgram,
    request: &Request,
    library: &mut Library,
    epilogues: &mut EpilogueFunctions,
) -> Vec<Decision> {
    let mut decisions = Vec::new();
    let mut packed = 0;
    // Where weights already lie in the order of a kernel: the steps of a recurrent network share theirs.
    let mut places: Vec<(PackCall, usize)> = Vec::new();
    let mut step = StepId::new(0);
    while let Some(original) = program.steps.get(step).cloned() {
        step = step.next();
        let KernelWork::Nest(nest) = &original.work else { continue };
        library.take_tuning_keys();
        let mut making = SelectionContext {
            request,
            library: &mut *library,
            epilogues: &mut *epilogues,
            decisions: &mut decisions,
        };
        let kernel = contraction(nest)
            .and_then(|c| {
                weight_gradient::correlation(program, nest, &c, &mut making)
                    .or_else(|| convolution::convolution(program, nest, &c, &mut making))
                    .or_else(|| {
                        let (sums, rest) = separate::separate(program, &original, nest, &c)?;
                        let call = alone(program, &sums, c.element, &mut making)?;
                        program.steps.insert(step, rest);
                        Some(call)
                    })
                    .or_else(|| alone(program, nest, c.element, &mut making))
            })
            .or_else(|| {
                let (call, copies) = over_copies(program, &original, nest, &mut making)?;
                step = put_before(program, step, copies);
                Some(call)
            })
            .or_else(|| {
                let (sums, rest) = separate::unfuse(program, &original, nest)?;
                let (call, copies) = reduction(program, &original, &sums, &mut making)?;
                program.steps.insert(step, rest);
                step = put_before(program, step, copies);
                Some(call)
            });
        let Some(mut call) = kernel else { continue };
        call.tuning_keys = library.take_tuning_keys();
        if let Some(pack) = call.pack() {
            let bytes = call.kernel.packed_bytes;
            let same = places.iter().find(|(other, size)| *size == bytes && other.does_as(&pack));
            call.packed = same.map_or(packed, |(other, _)| other.packed);
            if same.is_none() {
                places.push((PackCall { packed, ..pack }, bytes));
                packed += bytes.next_multiple_of(64);
            }
        }
        if call.kernel.shared_bytes > 0 {
            call.shared = Some(program.buffers.push(KernelBuffer::workspace(call.kernel.shared_bytes)));
        }
        program.steps[step - 1].work = KernelWork::Kernel(call);
    }
    program.info.packed_bytes = packed;
    decisions
}

/// The kernel of a reduction without an epilogue, with the copies that it reads.
fn reduction(
    program: &mut KernelProgram,
    name: &KernelStep,
    sums: &Nest,
    making: &mut SelectionContext<'_>,
) -> Option<(KernelCall, Vec<KernelStep>)> {
    let c = contraction(sums)?;
    convolution::convolution(program, sums, &c, making)
        .or_else(|| alone(program, sums, c.element, making))
        .map(|call| (call, Vec::new()))
        .or_else(|| over_copies(program, name, sums, making))
}

/// A product over copies of its operands, and the steps that make these.
fn over_copies(
    program: &mut KernelProgram,
    name: &KernelStep,
    nest: &Nest,
    making: &mut SelectionContext<'_>,
) -> Option<(KernelCall, Vec<KernelStep>)> {
    let c = contraction(nest)?;
    let (laid_out, copies) = im2col::lay_out(program, name, nest, &c)?;
    Some((alone(program, &laid_out, c.element, making)?, copies))
}

/// Puts steps in front of the one before number `next`; the number of the step behind that one now.
fn put_before(program: &mut KernelProgram, next: StepId, copies: Vec<KernelStep>) -> StepId {
    let count = copies.len();
    program.steps.splice(next - 1..next - 1, copies);
    next + count
}
