//! The C target: typed graphs to one file of C11 and a header.
//!
//! The way of a graph, whose sizes are numbers:
//!
//! | stage | what it does |
//! |---|---|
//! | `loops` | every node becomes a loop nest over buffers, or a call of a function of the prelude |
//! | `fuse` | what is computed element by element goes into the loops of who reads it |
//! | `state` | where asked for: a new state takes the place of the old one, an output that of a donated input |
//! | `apart` | rows of the data that never meet, such as images, are computed some at a time |
//! | `spread` | what is brought together from very many elements is divided into parts, for threads |
//! | `phases` | convolutions over images with zeros between their pixels become several without |
//! | `widen` | halves that convolutions read become float32 |
//! | `prepare` | what depends on parameters alone is computed once, when they are packed |
//! | `layout` | what convolutions hand to each other lies in blocks of channels, between margins of zeros; as bytes (`bytes`) between those in whole numbers |
//! | `attention` | products with what lies between them are done part by part |
//! | `kernels` | sums of products become kernels, with what follows them element by element |
//! | `rows` | nests that go through the same rows become one step, which reads every row once |
//! | `updates` | new states that are made of the same tensors are written in one pass |
//! | `memory` | temporaries get places in one arena, whose size is known before running |
//! | `emit` | the text: a function per nest, and one that calls them in order |
//!
//! Between the stages `verify` looks at what they have made, and at the order of the calls in the end.
//!
//! The program between the stages is a [`program::Program`], which prints.

mod apart;
mod attention;
pub mod batch;
mod bytes;
mod columns;
mod contract;
mod convolve;
mod correlate;
mod cost;
mod emit;
mod expr;
mod folds;
mod fuse;
mod guide;
mod header;
pub mod kernels;
pub mod layout;
mod loops;
mod memory;
mod namer;
mod near;
mod nest;
mod phase;
mod phases;
pub mod prelude;
mod prepare;
pub mod program;
mod quantize;
mod rows;
mod run;
mod split;
mod spread;
mod state;
mod tail;
mod template;
mod updates;
mod verify;
mod widen;
mod wrap;

use mithril_ir::Graph;
use mithril_ir::error::Result;

pub use cost::Cost;
pub(crate) use loops::{arguments, sizes};
pub use loops::{can_spell, is_fixed};
pub use quantize::{Decision, Matrix, Quantize, Reason, find_all, matches};
pub use template::c_type;

/// What is asked of the generated C.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What the names of all symbols start with; an identifier of C.
    pub prefix: String,
    /// Whether parameters may be packed, once for many calls: they do not change between calls.
    pub pack: bool,
    /// Whether new states are written into the memory of the old ones: the caller passes the same address for both.
    pub in_place: bool,
    /// Numbers of the inputs whose memory outputs may take over.
    pub donated: Vec<usize>,
    /// What the kernels are shaped for.
    pub target: kernels::Target,
    /// Whether the code measures its steps: a further output, behind all others, takes the seconds of each.
    pub profile: bool,
    /// Which candidates kernels take; others as estimated.
    pub choices: kernels::Choices,
    /// If there are any: only the first step of each of these specifications, so that candidates can be measured.
    pub only: Vec<String>,
    /// Weights that are kept in few bits; needs `pack`.
    pub quantize: Option<Quantize>,
    /// How many rows of the data are computed at a time, of which none may need another; by default as many as are
    /// estimated to be quickest.
    pub block: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "model".to_owned(),
            pack: false,
            in_place: false,
            donated: Vec::new(),
            target: kernels::Target::avx2(),
            profile: false,
            choices: kernels::Choices::new(),
            only: Vec::new(),
            quantize: None,
            block: None,
        }
    }
}

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
    pub questions: Vec<kernels::Question>,
    /// What became of the weights where they are to be kept in few bits.
    pub decisions: Vec<Decision>,
    /// Paths in the model of the calls that can fail, in the order of their numbers.
    pub failing: Vec<String>,
}

/// Writes a graph whose sizes are numbers. If the target lacks ops, the error lists all of them.
pub fn emit(graph: &Graph, options: &Options) -> Result<Source> {
    let mut stages = Vec::new();
    let mut program = in_loops(graph, options, &mut stages)?;
    let mut library = kernels::Library::new(options.target).answering(options.choices.clone());
    layout::lay_out(&mut program, options, &mut library);
    done(&mut stages, "layout", &program)?;
    let before = verify::values(&program);
    let mut tails = tail::Tails::default();
    attention::attend(&mut program, options, &mut library, &mut tails);
    verify::still(before, "attention", &program)?;
    verify::after("attention", &program)?;
    let mut decisions = contract::contract(&mut program, options, &mut library, &mut tails);
    quantize::others(&program, options, &mut decisions);
    quantize::check(&program, options.quantize.as_ref(), &decisions)?;
    let before = verify::values(&program);
    state::schedule(&mut program);
    done(&mut stages, "kernels", &program)?;
    rows::group(&mut program);
    done(&mut stages, "rows", &program)?;
    updates::join(&mut program);
    done(&mut stages, "updates", &program)?;
    verify::still(before, "updates", &program)?;
    if !options.only.is_empty() {
        keep_first(&mut program, &options.only);
    }
    prepare::schedule(&mut program);
    run::look_ahead(&mut program);
    let arena = memory::plan(&mut program);
    let text = format!("arena: {arena} bytes\n{program}");
    if options.only.is_empty() {
        verify::after("memory", &program)?;
    }
    stages.push(("memory".to_owned(), text));
    let declared = header::declared(&options.prefix, &program);
    let h = header::header(&options.prefix, &declared);
    let (c, failing) = emit::file(&program, options, arena, &library, &tails, &declared)?;
    let shared = state::shared(&program);
    let (reads, costs) = (prepare::inputs(&program, program.steps.iter()), cost::costs(&program));
    let packing = packing(&program);
    let nanoseconds = cost::nanoseconds(&program, options.target.lanes);
    let questions = library.questions().to_vec();
    Ok(Source {
        c,
        h,
        declared,
        stages,
        reads,
        packing,
        shared,
        costs,
        nanoseconds,
        questions,
        decisions,
        failing,
    })
}

/// As many of the rows of a graph with so many as are estimated to be quickest to compute at a time.
pub fn block(graph: &Graph, rows: usize) -> Result<usize> {
    Ok(apart::estimate(&fuse::fuse(loops::lower(graph, false)?), rows))
}

/// The stages before kernels: a program of loops alone.
fn in_loops(
    graph: &Graph,
    options: &Options,
    stages: &mut Vec<(String, String)>,
) -> Result<program::Program> {
    let mut program = loops::lower(graph, options.in_place)?;
    done(stages, "loops", &program)?;
    program = fuse::fuse(program);
    verify::after("fuse", &program)?;
    state::donate(&mut program, &options.donated);
    let before = verify::values(&program);
    state::in_place(&mut program);
    verify::still(before, "fuse", &program)?;
    done(stages, "fuse", &program)?;
    apart::apart(&mut program, options)?;
    done(stages, "apart", &program)?;
    spread::spread(&mut program);
    done(stages, "spread", &program)?;
    phases::split(&mut program);
    done(stages, "phases", &program)?;
    widen::widen(&mut program);
    done(stages, "widen", &program)?;
    if options.pack {
        prepare::prepare(&mut program);
        done(stages, "prepare", &program)?;
    }
    Ok(program)
}

/// Notes what a stage has made, which has to be a program that can be run.
fn done(stages: &mut Vec<(String, String)>, name: &str, program: &program::Program) -> Result<()> {
    stages.push((name.to_owned(), program.to_string()));
    verify::after(name, program)
}

/// Numbers of the inputs that each part of packing reads.
fn packing(program: &program::Program) -> Vec<Vec<usize>> {
    let parts = prepare::parts(program).into_iter();
    parts.map(|part| prepare::inputs(program, part.iter().map(|&i| &program.prepared[i]))).collect()
}

/// Leaves the first step of each specification.
fn keep_first(program: &mut program::Program, specifications: &[String]) {
    let mut wanted: Vec<&String> = specifications.iter().collect();
    program.steps.retain(|step| {
        let program::Work::Kernel(k) = &step.work else { return false };
        let found = k.asked.first().and_then(|asked| wanted.iter().position(|w| *w == asked));
        found.map(|i| wanted.swap_remove(i)).is_some()
    });
}
