//! Kernel selection: contractions become kernels. The first of weight gradient, convolution, matrix product, and matrix
//! product over im2col copies that a nest is wins; other nests stay loops.

use crate::c::analysis::contraction::contraction;
use crate::c::ir::program::{Buffer, PackCall, Program, Work};
use crate::c::kernels::common::library::Library;
use crate::c::options::Options;
use crate::c::select::context::SelectionContext;
use crate::c::select::decision::Decision;
use crate::c::select::epilogue::Tails;
use crate::c::select::product::alone;
use crate::c::select::{convolution, im2col, separate, weight_gradient};

/// Replaces nests by kernels; the functions are added to the library, the epilogues to the tails.
/// Says which weights are quantized.
pub fn select(
    program: &mut Program,
    options: &Options,
    library: &mut Library,
    tails: &mut Tails,
) -> Vec<Decision> {
    let mut decisions = Vec::new();
    let mut packed = 0;
    // Where weights already lie in the order of a kernel: the steps of a recurrent network share theirs.
    let mut places: Vec<(PackCall, usize)> = Vec::new();
    let mut step = 0;
    while let Some(given) = program.steps.get(step).cloned() {
        step += 1;
        let Work::Nest(nest) = &given.work else { continue };
        let Some(contraction) = contraction(nest) else { continue };
        library.take_asked();
        let mut making = SelectionContext {
            options,
            library: &mut *library,
            tails: &mut *tails,
            decisions: &mut decisions,
        };
        let found = weight_gradient::correlation(program, nest, &contraction, &mut making)
            .or_else(|| convolution::convolution(program, nest, &contraction, &mut making))
            .or_else(|| {
                let (sums, rest) = separate::separate(program, &given, nest, &contraction)?;
                let call = alone(program, &sums, contraction.element, &mut making)?;
                program.steps.insert(step, rest);
                Some(call)
            })
            .or_else(|| alone(program, nest, contraction.element, &mut making))
            .or_else(|| {
                let (nest, copies) = im2col::lay_out(program, &given, nest, &contraction)?;
                let call = alone(program, &nest, contraction.element, &mut making)?;
                let at = step - 1;
                step += copies.len();
                program.steps.splice(at..at, copies);
                Some(call)
            });
        let Some(mut call) = found else { continue };
        call.asked = library.take_asked();
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
            program.buffers.push(Buffer::scratch(call.kernel.shared_bytes));
            call.shared = Some(program.buffers.len() - 1);
        }
        program.steps[step - 1].work = Work::Kernel(call);
    }
    program.packed_bytes = packed;
    decisions
}
