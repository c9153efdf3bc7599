//! The pipeline of the C target: its passes in their order, from the loops of a graph to what can be written as a file.
//!
//! The passes are values in two lists: those over loop nests and calls, and those over kernels, which contractions have
//! become. What each makes of the program is a stage, whose text [`Source`](super::Source) holds
//! under the name of the pass; in debug builds and tests the verifier looks at it.

use std::fmt::Display;

use mithril_ir::Graph;
use mithril_ir::error::{Code, Error, Result};

use crate::c::ir::expr::Argument;
use crate::c::ir::program::{KernelProgram, Kernels, Level, LoopProgram, LoopWork, Loops, Program};
use crate::c::kernels::Library;
use crate::c::lower::lower;
use crate::c::passes::{
    attention_fusion, batch_tiling, blocked_layout, byte_layout, dead_code, dead_taps, fusion, half_layout,
    halo, in_place, isolation, memory_planning, packing_reuse, phase_decomposition, prefetch, prepacking,
    promotion, row_fusion, split_reduction, static_quantization, update_fusion, update_schedule,
    weight_packing,
};
use crate::c::request::Request;
use crate::c::select::decision::Decision;
use crate::c::select::epilogue::EpilogueFunctions;
use crate::c::select::{contractions, quantize};
use crate::c::verify;

/// A program on its way through the passes, with what they add to the file.
#[derive(Debug)]
pub struct Compilation<'a, L: Level> {
    /// The program.
    pub program: Program<L>,
    /// What is asked for.
    pub request: &'a Request,
    /// The functions of kernels.
    pub library: Library,
    /// The functions of epilogues.
    pub epilogues: EpilogueFunctions,
    /// Which weights are quantized.
    pub decisions: Vec<Decision>,
}

/// A pass over programs of one level.
#[derive(Clone, Copy, Debug)]
pub struct Pass<L: Level + 'static> {
    /// What its stage is called.
    pub name: &'static str,
    /// What it does.
    pub description: &'static str,
    /// Does it.
    pub run: fn(&mut Compilation<'_, L>) -> Result<()>,
    /// Whether it only moves, joins or stores elsewhere what steps compute, so that the verifier may compare which values
    /// the results are made of before and after.
    pub keeps_values: bool,
}

/// The name of the stage in front of all passes: the loops of every node.
pub const LOWERING: &str = "lowering";

/// The passes over loop nests and calls, in order.
pub static LOOP_PASSES: &[Pass<Loops>] = &[
    Pass {
        name: "fusion",
        description: "elementwise producers move into the loops of their consumers, elementwise consumers into the epilogue of \
                      a reduction",
        run: |c| {
            fusion::fuse(&mut c.program);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "donation",
        description: "finds the outputs that can take over the memory of donated inputs",
        run: |c| {
            in_place::donate(&mut c.program, &c.request.donated);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "in_place",
        description: "updated states are written to the memory of the old ones, where that is requested; so are outputs to donated \
                      inputs",
        run: |c| {
            in_place::in_place(&mut c.program);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "batch_tiling",
        description: "independent batch elements are computed a block at a time, so that tensors between steps stay in the \
                      caches",
        run: |c| batch_tiling::tile(&mut c.program, c.request),
        keeps_values: false,
    },
    Pass {
        name: "split_reduction",
        description: "reductions of very many elements to few results become two stages, which threads share",
        run: |c| {
            split_reduction::split_reductions(&mut c.program);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "phase_decomposition",
        description: "strided gradients and transposed convolutions become one convolution for each phase of the result, \
                      without the zeros between pixels",
        run: |c| {
            phase_decomposition::decompose(&mut c.program);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "promotion",
        description: "16-bit floats that convolutions and products with vectors read become float32, each tensor once",
        run: |c| {
            promotion::promote(&mut c.program, c.request);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "dead_tap_elimination",
        description: "weights of convolutions that only ever meet the zeros around the image are left out",
        run: |c| {
            // Quantized weights are kept whole, under the names of their parameters.
            if c.request.options.quantize.is_none() {
                dead_taps::eliminate(&mut c.program);
            }
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "prepacking",
        description: "what depends on parameters alone is computed once, when they are packed; scales of batch norms are \
                      folded into weights",
        run: |c| {
            if c.request.options.pack {
                prepacking::prepack(&mut c.program);
            }
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "static_quantization",
        description: "what the model itself quantizes (QDQ files of ONNX) is multiplied as integers",
        run: |c| {
            static_quantization::mark(&mut c.program, c.request);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "blocked_layout",
        description: "temporaries between convolutions are stored in blocks of channels (NCHWc)",
        run: |c| {
            blocked_layout::lay_out(&mut c.program, c.request, &c.library);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "byte_layout",
        description: "temporaries between quantized convolutions with known ranges are stored as bytes",
        run: |c| {
            byte_layout::lay_out(&mut c.program, c.request, &c.library);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "half_layout",
        description: "convolutions between blocks read bfloat16 as it is stored instead of float32 copies",
        run: |c| {
            half_layout::lay_out(&mut c.program, c.request, &c.library);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "halo",
        description: "tensors in blocked layout get a halo of zeros, as large as their consumers read beyond the edges",
        run: |c| {
            halo::grow(&mut c.program, c.request, &c.library);
            Ok(())
        },
        keeps_values: false,
    },
];

/// The passes over kernels, in order: they make them of loops, move and join steps, and give tensors their memory.
pub static KERNEL_PASSES: &[Pass<Kernels>] = &[
    Pass {
        name: "halo_filling",
        description: "the functions that fill halos are added; the steps that fill a tensor call them",
        run: |c| {
            halo::fill(&mut c.program, &mut c.library);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "attention_fusion",
        description: "two products and the nests between them run one block of rows after another, in scratch memory of the \
                      thread",
        run: |c| {
            attention_fusion::fuse(&mut c.program, c.request, &mut c.library, &mut c.epilogues);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "kernel_selection",
        description: "contractions become kernels: matrix products, convolutions, weight gradients",
        run: |c| {
            c.decisions = contractions::select(&mut c.program, c.request, &mut c.library, &mut c.epilogues);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "dead_code_elimination",
        description: "elementwise nests whose results nothing reads any more are removed",
        run: |c| {
            dead_code::eliminate(&mut c.program);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "quantization_check",
        description: "changes nothing: records which weights stay floats and why, an error where quantization is strict",
        run: |c| {
            quantize::others(&c.program, c.request, &mut c.decisions);
            quantize::check(&c.program, c.request.options.quantize.as_ref(), &c.decisions)
        },
        keeps_values: true,
    },
    Pass {
        name: "update_scheduling",
        description: "states are updated as soon as nothing needs the old ones, and after all that can fail",
        run: |c| {
            update_schedule::schedule(&mut c.program);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "row_fusion",
        description: "nests over the same rows (softmax, norms, losses) become one step, which reads every row once",
        run: |c| {
            row_fusion::fuse(&mut c.program);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "update_fusion",
        description: "new states that are made of the same tensors are written in one pass over these",
        run: |c| {
            update_fusion::fuse(&mut c.program);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "isolation",
        description: "only steps whose kernels are to be measured stay, where that is asked for",
        run: |c| {
            isolation::isolate(&mut c.program, &c.request.only);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "packing_reuse",
        description: "kernels that pack the same factor at every call pack it once",
        run: |c| {
            packing_reuse::reuse_packing(&mut c.program);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "weight_packing",
        description: "weights of kernels are packed as soon as they are known",
        run: |c| {
            weight_packing::pack_weights(&mut c.program);
            Ok(())
        },
        keeps_values: false,
    },
    Pass {
        name: "prefetch",
        description: "kernels prefetch the packed weights that the next step starts with",
        run: |c| {
            prefetch::prefetch(&mut c.program);
            Ok(())
        },
        keeps_values: true,
    },
    Pass {
        name: "memory_planning",
        description: "temporaries get offsets in one arena by their live ranges, prepacked tensors in the packed block",
        run: |c| {
            memory_planning::plan(&mut c.program);
            Ok(())
        },
        keeps_values: false,
    },
];

/// Names and descriptions of all passes, in order.
pub fn passes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let loops = LOOP_PASSES.iter().map(|pass| (pass.name, pass.description));
    loops.chain(KERNEL_PASSES.iter().map(|pass| (pass.name, pass.description)))
}

/// Names of stages with the text of the program after each.
pub type Stages = Vec<(String, String)>;

/// Lowers a graph and runs all passes.
pub fn compile<'a>(graph: &Graph, request: &'a Request) -> Result<(Compilation<'a, Kernels>, Stages)> {
    let program = lower(graph, request.options.in_place)?;
    check_mesh(&program, request)?;
    verify::after(LOWERING, &program)?;
    let mut stages = Vec::with_capacity(1 + LOOP_PASSES.len() + KERNEL_PASSES.len());
    stages.push((LOWERING.to_owned(), loop_text(LOWERING, &program)?));
    let mut loops = Compilation::new(program, request);
    run(LOOP_PASSES.iter(), &mut loops, &mut |name, program| {
        stages.push((name.to_owned(), loop_text(name, program)?));
        Ok(())
    })?;
    let mut kernels = loops.into_kernels();
    run(KERNEL_PASSES.iter(), &mut kernels, &mut |name, program| {
        stages.push((name.to_owned(), program.to_string()));
        Ok(())
    })?;
    Ok((kernels, stages))
}

/// Refuses tensors that are exchanged along an axis that the mesh does not have.
fn check_mesh(program: &LoopProgram, request: &Request) -> Result<()> {
    let calls = program.steps.iter().filter_map(|step| match &step.work {
        LoopWork::Call(call) => Some(call),
        LoopWork::Nest(_) => None,
    });
    for axis in calls.flat_map(|call| &call.args).filter_map(|arg| match arg {
        Argument::Mesh(axis) => Some(axis),
        _ => None,
    }) {
        if request.mesh.as_ref().and_then(|mesh| mesh.axis(axis)).is_none() {
            return Err(Error::internal(format!(
                "tensors are exchanged along {axis:?}, which is not an axis of a mesh"
            )));
        }
    }
    Ok(())
}

/// The text of a program of loops after a pass; in debug builds, that it parses is checked.
fn loop_text(stage: &str, program: &LoopProgram) -> Result<String> {
    let text = program.to_string();
    verify::round_trip(stage, program, &text)?;
    Ok(text)
}

/// Lowers a graph and runs the passes over loops: the program after each.
///
/// # Errors
/// If C cannot express some ops, or what a pass refuses.
pub fn loop_programs(graph: &Graph, request: &Request) -> Result<Vec<(&'static str, LoopProgram)>> {
    let program = lower(graph, request.options.in_place)?;
    let mut programs = vec![(LOWERING, program.clone())];
    let mut loops = Compilation::new(program, request);
    run(LOOP_PASSES.iter(), &mut loops, &mut |name, program| {
        programs.push((name, program.clone()));
        Ok(())
    })?;
    Ok(programs)
}

/// Runs some of the passes on a program of loops, by their names, in the order of the pipeline: the text of the program then.
///
/// # Errors
/// What a pass or the verifier refuses, or that there is no pass of a name.
pub fn run_program(program: LoopProgram, request: &Request, names: &[&str]) -> Result<String> {
    if let Some(unknown) = names.iter().find(|name| passes().all(|(known, _)| known != **name)) {
        return Err(Error::new(Code::BadArgument, format!("C has no pass {unknown:?}")));
    }
    verify::after("input", &program)?;
    let mut text = program.to_string();
    let mut loops = Compilation::new(program, request);
    let chosen = LOOP_PASSES.iter().filter(|pass| names.contains(&pass.name));
    run(chosen, &mut loops, &mut |name, program| {
        text = loop_text(name, program)?;
        Ok(())
    })?;
    let chosen = KERNEL_PASSES.iter().filter(|pass| names.contains(&pass.name));
    run(chosen, &mut loops.into_kernels(), &mut |_, program| {
        text = program.to_string();
        Ok(())
    })?;
    Ok(text)
}

impl<'a> Compilation<'a, Loops> {
    fn new(program: LoopProgram, request: &'a Request) -> Self {
        let library = Library::new(request.target).with_choices(request.choices.clone());
        Self { program, request, library, epilogues: EpilogueFunctions::default(), decisions: Vec::new() }
    }
    fn into_kernels(self) -> Compilation<'a, Kernels> {
        let Self { program, request, library, epilogues, decisions } = self;
        Compilation { program: KernelProgram::from(program), request, library, epilogues, decisions }
    }
}

/// Runs passes of one level; `observe` gets the name of each with the program after it.
fn run<'p, L: Level + 'static>(
    passes: impl Iterator<Item = &'p Pass<L>>,
    compilation: &mut Compilation<'_, L>,
    observe: &mut dyn FnMut(&'static str, &Program<L>) -> Result<()>,
) -> Result<()>
where
    Program<L>: Clone + Display + Into<KernelProgram>,
{
    for pass in passes {
        let before = if pass.keeps_values { verify::values(&compilation.program) } else { None };
        (pass.run)(compilation)?;
        let program = &compilation.program;
        // Of a program in which only some steps are left, some buffers are never written.
        if compilation.request.only.is_empty() {
            verify::still(before, pass.name, program)?;
            verify::after(pass.name, program)?;
        }
        observe(pass.name, program)?;
    }
    Ok(())
}
