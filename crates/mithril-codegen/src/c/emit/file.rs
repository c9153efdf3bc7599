//! A program as one C file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use mithril_ir::Tensor;
use mithril_ir::error::Result;

use crate::c::analysis::cost;
use crate::c::analysis::packing::parts;
use crate::c::emit::driver::{Names, Run, kernel, pack, packing};
use crate::c::emit::guide::{describe, guide};
use crate::c::emit::header::Sizes;
use crate::c::emit::units::words;
use crate::c::emit::{fast_path, iterations, nest};
use crate::c::ir::driver::{Does, Effect, Line, Phase, Statement};
use crate::c::ir::expr::{Argument, BufferId, Call, ERROR_PLACES, ERRORS, Index, MESH_ERROR, StepId};
use crate::c::ir::kernel::Argument as KernelArgument;
use crate::c::ir::program::{KernelCall, KernelProgram, KernelStep, KernelWork, Nest, Parts, Place, Rows};
use crate::c::kernels::common::library::Library;
use crate::c::prelude::PRELUDE;
use crate::c::request::{Mesh, Request};
use crate::c::select::epilogue::EpilogueFunctions;
use crate::c::syntax::comment::{comment, quoted};
use crate::c::syntax::expr::{MARK, MARK_END, Writer, ZERO, number};
use crate::c::syntax::namer::Namer;
use crate::c::syntax::simplify::simplify;
use crate::c::syntax::template::c_type;
use crate::c::syntax::wrap::wrap;
use crate::c::verify::written;
use crate::ids::Table;

/// What other functions, types and macros of a file are called, behind the prefix: those of the interface, and those that
/// an export adds (`standalone.c` of the runtime).
const TAKEN: &[&str] = &[
    "run",
    "pack",
    "pack_part",
    "pack_parts",
    "error",
    "arena_bytes",
    "batch_arena_bytes",
    "run_batch",
    "call_batch",
    "mesh_sizes",
    "mpi_close",
    "mpi_open",
    "RANKS",
    "MESH_AXES",
    "MESH_SIZES",
    "weight_files",
    "weights_file",
    "input_rows",
    "output_rows",
    "packed",
    "packed_bytes",
    "pack_bytes",
    "call",
    "work",
    "run_thread",
    "shared",
    "invalid_argument",
    "allocate",
    "close",
    "data_table",
    "model",
    "open",
    "place",
    "prepare",
    "HEAD",
    "is_mine",
    "read",
    "release",
    "start",
    "states",
    "stop",
    "threads",
    "weight_bytes",
    "weight_mark",
    "weight_table",
    "weights",
    "where",
    "worker",
    "DATA",
    "INPUTS",
    "INPUT_COUNT",
    "DATA_COUNT",
    "RESULT_COUNT",
    "OUTPUT_COUNT",
    "STANDALONE",
    "OUTPUTS",
    "WEIGHTS",
];

/// Work (products, elements times expressions) of a whole program below which it is done by the calling thread.
const LEAST_PARALLEL: i64 = 4 << 20;

/// How many products of a kernel take as long as an expression of a loop, about.
const LOOP_WORK: i64 = 4;

/// Work of a call of the prelude for each element of its tensors, about.
const CALL_WORK: i64 = 16;

/// How a line starts that lets compilers take the terms of a sum in any order.
const VECTOR_SUM: &str = "#pragma omp simd";

/// What stands in front of such lines.
const OPENMP: &str = "\
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored \"-Wunknown-pragmas\" /* without -fopenmp-simd, sums keep their order: slow, but right */
#endif
";

/// A file, and what else is known of it.
pub struct File {
    /// The text.
    pub c: String,
    /// Which part of the model each call is in that can fail.
    pub failing: Vec<String>,
    /// Bytes of scratch memory, on one thread, and of what is packed.
    pub sizes: Sizes,
}

/// Writes the file.
pub fn file(
    program: &KernelProgram,
    request: &Request,
    library: &Library,
    epilogues: &EpilogueFunctions,
    declared: &str,
) -> Result<File> {
    let mut file = Writing::new(program, request);
    let parts = parts(program).into_iter();
    let packing: Vec<Vec<Phase>> = parts
        .map(|part| part.iter().flat_map(|&i| file.step(&program.prepacking[i], false)).collect())
        .collect();
    let (used_packing, pack_fails) = (std::mem::take(&mut file.used), std::mem::take(&mut file.fails));
    let packed_there = std::mem::take(&mut file.used_packed);
    let steps: Table<StepId, Vec<Phase>> =
        program.steps.iter().map(|step| file.step(step, file.parallel)).collect();
    let thread_scratch = program.steps.iter().map(|step| match &step.work {
        KernelWork::Kernel(k) => k.kernel.scratch_bytes.next_multiple_of(64),
        KernelWork::Call(call) => call.scratch.next_multiple_of(64),
        KernelWork::Rows(rows) => rows.scratch_bytes,
        KernelWork::Parts(parts) => parts.scratch_bytes,
        KernelWork::Nest(_) | KernelWork::Pack(_) => 0,
    });
    let run = Run {
        program,
        prefix: &request.options.prefix,
        names: &file.names,
        used: &file.used,
        packed: file.packed_of(&file.used_packed),
        fails: file.fails,
        parallel: file.parallel,
        arena: program.info.arena_bytes.unwrap_or(0),
        scratch: thread_scratch.max().unwrap_or(0),
        profile: request.profile,
        mesh: request.mesh.as_ref(),
        agrees: request.mesh.is_some() && file.fails_alone,
    };
    let scratch = program.prepacking.iter().map(|step| match &step.work {
        KernelWork::Call(call) => call.scratch.next_multiple_of(64),
        _ => 0,
    });
    let (arena, scratch) = (program.info.pack_bytes, scratch.max().unwrap_or(0));
    let packed = file.packed_of(&packed_there);
    let preparing = Run { used: &used_packing, packed, fails: pack_fails, arena, scratch, ..run };
    let has_kernels =
        program.steps.iter().any(|step| matches!(step.work, KernelWork::Kernel(_) | KernelWork::Parts(_)));
    let kernels = if has_kernels { library.source() } else { String::new() };
    let lines = run.lines(&steps);
    verify(&run, request, &packing, &lines)?;
    let body = simplify(&format!("{}{}{}", file.functions, run.text(&lines), pack(&preparing, &packing)));
    let parts = [&epilogues.source(&kernels), "\n", &kernels, &body];
    let guide = guide(program, request, run.parallel);
    let mut out = text(&guide, declared, &file.constants, parts);
    let sizes = Sizes {
        arena: run.arena + run.scratch,
        packed: program.info.packed_bytes,
        pack: preparing.arena + preparing.scratch,
    };
    out.push_str(&simplify(&interface(&run, &sizes, &file.failing.1)));
    Ok(File { c: wrap(&out), failing: file.failing.0, sizes })
}

/// The file up to the interface: the guide, what it declares and includes, of the prelude and the constants what the other
/// parts name, and these.
fn text(guide: &str, declared: &str, constants: &[(String, String)], parts: [&str; 4]) -> String {
    let mut out = format!(
        "/* Generated by Mithril. Needs a compiler for C11, and libm. */\n{guide}\
         #include <float.h>\n#include <math.h>\n#include <stdatomic.h>\n#include <stdbool.h>\n#include <stddef.h>\n\
         #include <stdint.h>\n#include <string.h>\n\n{declared}"
    );
    let all = parts.concat();
    if all.contains(VECTOR_SUM) {
        out.push_str(OPENMP);
    }
    let words: BTreeSet<&str> = words(&all).collect();
    for block in PRELUDE.choose(words.iter().copied().filter(|w| is_ours(w))) {
        let _ = write!(out, "\n{block}\n");
    }
    // Loops over nothing name none of the constants that they read.
    let constants = constants.iter().filter(|(name, _)| words.contains(name.as_str()));
    let constants: String = constants.map(|(_, text)| text.as_str()).collect();
    let [epilogues, blank, kernels, body] = parts;
    for part in [epilogues, blank, kernels, &constants, body] {
        out.push_str(part);
    }
    out
}

/// Looks at what the calls read; what is left of a program to be measured reads what nobody has made.
fn verify(run: &Run<'_>, request: &Request, packing: &[Vec<Phase>], lines: &[Line<'_>]) -> Result<()> {
    if request.only.is_empty() { written(run.program, packing, lines, run.parallel) } else { Ok(()) }
}

/// Whether that may be a name of the prelude.
fn is_ours(word: &str) -> bool {
    word.starts_with("mithril_") || word.starts_with("MITHRIL_")
}

struct Writing<'a> {
    program: &'a KernelProgram,
    prefix: &'a str,
    /// Names of functions and constants, and of the buffers in the function that runs all.
    globals: Namer,
    /// Names of the buffers, in the function that runs all.
    names: Table<BufferId, String>,
    /// Constants: what they are called, and the text.
    constants: Vec<(String, String)>,
    functions: String,
    /// Functions by their text, so that equal layers share one.
    written: HashMap<String, String>,
    /// KernelBuffers that the calls name.
    used: BTreeSet<BufferId>,
    /// What weights in the order of a kernel are called, by where they start among what is packed.
    packed: BTreeMap<usize, String>,
    /// Those that the calls name.
    used_packed: BTreeSet<usize>,
    fails: bool,
    /// Whether a step may fail on one rank of a mesh and not on the others.
    fails_alone: bool,
    /// The mesh that the program is divided over.
    mesh: Option<&'a Mesh>,
    /// How many calls can fail with a code of their own, and the cases of the function that says what it means.
    failing: (Vec<String>, String),
    /// Whether threads are worth it.
    parallel: bool,
}

impl<'a> Writing<'a> {
    fn new(program: &'a KernelProgram, request: &'a Request) -> Self {
        let mut namer = Namer::default();
        let mut file = Self {
            program,
            prefix: &request.options.prefix,
            names: program.buffers.iter().map(|b| namer.name(&b.name)).collect(),
            // A pointer called like a function would hide it.
            globals: namer,
            constants: Vec::new(),
            functions: String::new(),
            written: HashMap::new(),
            used: BTreeSet::new(),
            packed: BTreeMap::new(),
            used_packed: BTreeSet::new(),
            fails: false,
            fails_alone: false,
            mesh: request.mesh.as_ref(),
            failing: (Vec::new(), String::new()),
            parallel: program.steps.iter().map(|step| work(program, step)).fold(0, i64::saturating_add)
                >= LEAST_PARALLEL,
        };
        let inputs = program.buffers.iter().filter(|b| b.input().is_some()).count();
        let weights = (0..inputs).map(|i| format!("weight_{i}"));
        for suffix in TAKEN.iter().map(ToString::to_string).chain(weights) {
            file.globals.name(&format!("{}_{suffix}", request.options.prefix));
        }
        for (i, buffer) in program.buffers.entries() {
            if let Place::Constant(tensor) = &buffer.place
                && program.prepacking.iter().chain(&program.steps).any(|step| step.reads().contains(&i))
            {
                let name = file.globals.name(&format!("{}_{}", request.options.prefix, buffer.name));
                file.constants.push((name.clone(), constant(&name, tensor)));
                file.names[i] = name;
            }
        }
        for step in &program.prepacking {
            let (KernelWork::Pack(pack), Some(&from)) = (&step.work, step.reads().first()) else { continue };
            let weight = &program.buffers[from].name;
            let name = format!("{}_packed", weight.strip_suffix("_scaled").unwrap_or(weight));
            file.packed.insert(pack.packed, file.globals.name(&name));
        }
        file
    }
    fn kernel_names(&self) -> Names<'_> {
        Names { buffers: &self.names, packed: &self.packed }
    }
    /// Names of some packed weights, and where these start.
    fn packed_of(&self, used: &BTreeSet<usize>) -> Vec<(usize, &str)> {
        self.packed
            .iter()
            .filter(|(at, _)| used.contains(at))
            .map(|(at, name)| (*at, name.as_str()))
            .collect()
    }
    /// Writes the function of a step; what calls it. The halos of what it fills are filled beside it.
    fn step(&mut self, step: &KernelStep, parallel: bool) -> Vec<Phase> {
        let mut phases = self.work(step, parallel);
        for b in step.writes() {
            if let (Some(function), Some(first)) = (self.program.info.halos.get(&b), phases.first_mut()) {
                let divided = first.everyone && parallel;
                let who = if divided { "thread, threads" } else { "0, 1" };
                let effect = Effect { writes: vec![b], divided, ..Effect::default() };
                let text = format!("{function}({who}, {});", self.names[b]);
                first.calls.insert(0, Statement::call(text, effect));
                self.used.insert(b);
            }
        }
        phases
    }
    /// The calls of a step.
    fn work(&mut self, step: &KernelStep, parallel: bool) -> Vec<Phase> {
        match &step.work {
            KernelWork::Nest(nest) => vec![self.nest(step, nest, parallel)],
            KernelWork::Rows(rows) => vec![self.rows(step, rows, parallel)],
            KernelWork::Parts(parts) => self.parts(step, parts, parallel),
            KernelWork::Call(call) => vec![self.call(call, &step.origin, parallel)],
            KernelWork::Kernel(k) => {
                self.name(k);
                let mut phases = kernel(k, &self.kernel_names(), threads(parallel));
                let title = format!("/* {}: {} */", comment(&step.origin), comment(&k.what));
                if let Some(first) = phases.first_mut() {
                    first.title = title;
                }
                phases
            }
            KernelWork::Pack(p) => {
                self.used.extend(step.reads());
                self.used_packed.insert(p.packed);
                vec![packing(p, &self.kernel_names())]
            }
        }
    }
    /// Names the buffers of a kernel.
    fn name(&mut self, k: &KernelCall) {
        for argument in k.kernel.phases.iter().flatten().flat_map(|call| &call.arguments) {
            self.used.extend(match argument {
                KernelArgument::A => Some(k.inputs[0].0),
                KernelArgument::B | KernelArgument::PackedB => Some(k.inputs[1].0),
                KernelArgument::Out => Some(k.to),
                KernelArgument::Operand(i) => Some(k.operands[*i].0),
                KernelArgument::Shared | KernelArgument::SharedAt(_) => k.shared,
                KernelArgument::Packed => {
                    self.used_packed.insert(k.packed);
                    None
                }
                KernelArgument::NextWeights => {
                    self.used_packed.insert(k.next_weights.as_ref().map_or(k.packed, |next| next.0));
                    None
                }
                _ => None,
            });
        }
    }
    fn rows(&mut self, step: &KernelStep, rows: &Rows, parallel: bool) -> Phase {
        let buffers = &self.program.buffers;
        let mut writer = Writer::new(buffers);
        let (split, is_part) = nest::write_rows(&mut writer, buffers, rows, self.program.next_var, parallel);
        self.loops(step, &writer, if is_part { &["part"] } else { threads_of(split) })
    }
    /// What all parts need is packed first; then every thread does some of the parts.
    fn parts(&mut self, step: &KernelStep, parts: &Parts, parallel: bool) -> Vec<Phase> {
        let (count, [thread, threads]) = (parts.count, threads(parallel));
        let mut pack = Vec::new();
        let head = format!(
            "for (int64_t part = {thread} * {count} / {threads}; part < ({thread} + 1) * {count} / {threads}; part++) {{"
        );
        let mut calls = vec![Statement { text: head, does: Does::Begin }];
        for inner in &parts.steps {
            let mut phases = match &inner.work {
                KernelWork::Kernel(k) => {
                    self.name(k);
                    let mut phases = kernel(k, &self.kernel_names(), ["part", &count.to_string()]);
                    let first = kernel(k, &self.kernel_names(), [thread, threads]);
                    let last = phases.pop();
                    pack.extend(first.into_iter().take(phases.len()).flat_map(|phase| phase.calls));
                    last.into_iter().collect()
                }
                // The threads divide the parts: what a part consists of is the work of one thread.
                _ => self.work(inner, false),
            };
            let inside = phases.drain(..).flat_map(|phase| phase.calls);
            calls.extend(inside.map(|call| Statement { text: format!("    {}", call.text), ..call }));
        }
        calls.push(Statement { text: "}".to_owned(), does: Does::End });
        let title = format!("/* {count} parts, {} */", comment(&step.origin));
        let mut phases: Vec<Phase> = [pack, calls]
            .into_iter()
            .filter(|calls| !calls.is_empty())
            .map(|calls| Phase { title: String::new(), calls, everyone: true })
            .collect();
        phases[0].title = title;
        phases
    }
    fn nest(&mut self, step: &KernelStep, nest: &Nest, parallel: bool) -> Phase {
        let (buffers, next) = (&self.program.buffers, self.program.next_var);
        let parts = if buffers[nest.to].blocks.is_none() { iterations::parts(nest, next) } else { None };
        let parts =
            parts.unwrap_or_else(|| vec![(nest.clone(), nest.vars.iter().map(|&v| Index::var(v)).collect())]);
        let written = |parallel: bool| -> Vec<(Writer<'_>, bool)> {
            let of_part = |(part, at): &(Nest, Vec<Index>)| {
                let mut writer = Writer::new(buffers);
                let write =
                    |writer: &mut Writer<'_>| nest::write(writer, buffers, (part, at), next + 1, parallel);
                if fast_path::is_written_twice(step, part) {
                    fast_path::write_fast(&mut writer, |writer| _ = write(writer));
                }
                let split = write(&mut writer);
                (writer, split)
            };
            parts.iter().map(of_part).collect()
        };
        let mut writers = written(parallel);
        // Threads divide all of them or none.
        if writers.iter().any(|(_, split)| *split != writers[0].1) {
            writers = written(false);
        }
        let phases = writers.iter().map(|(writer, split)| self.loops(step, writer, threads_of(*split)));
        phases
            .reduce(|mut all, part| {
                all.calls.extend(part.calls);
                all
            })
            .unwrap_or_default()
    }
    /// The call of the function of loops that were written, which also takes `numbers`.
    fn loops(&mut self, step: &KernelStep, writer: &Writer<'_>, numbers: &[&str]) -> Phase {
        let buffers = &self.program.buffers;
        let (used, checks, writes) = (writer.used.clone(), writer.checks, step.writes());
        let zero = if writer.reads_zero {
            format!("    const int64_t {ZERO} = MITHRIL_ZERO;\n")
        } else {
            String::new()
        };
        let body = writer.body();
        let mut parameters: Vec<String> = used
            .iter()
            .map(|&b| {
                let t = c_type(buffers[b].dtype);
                let constant = if writes.contains(&b) { "" } else { "const " };
                format!("{constant}{t} *restrict {MARK}{b}{MARK_END}")
            })
            .collect();
        let mut arguments: Vec<String> = used
            .iter()
            .map(|&b| match (self.argument(b), writer.offset(b)) {
                (name, 0) => name,
                (name, offset) => format!("{name} + {offset}"),
            })
            .collect();
        parameters.extend(numbers.iter().map(|name| format!("int64_t {name}")));
        arguments.extend(numbers.iter().map(|name| (*name).to_owned()));
        if checks {
            parameters.push("int *restrict error".to_owned());
            arguments.push("&failure".to_owned());
            (self.fails, self.fails_alone) = (true, true);
        }
        let text = format!("({}) {{\n{zero}{body}\n}}\n", parameters.join(", "));
        let name = self.function(&text, writer, step);
        let mut call = format!("{name}({});", arguments.join(", "));
        if checks {
            let op = format!("in the loops that compute {}", quoted(&step.name));
            let number = self.place(&op, &["MITHRIL_ERROR_INDEX"], &step.origin);
            call = format!(
                "{{ int failure = 0; {call} error = error ? error : mithril_failed(failure, {number}); }}"
            );
        }
        let all = step.reads();
        let is_read = |b: &BufferId| !writes.contains(b) || all.contains(b);
        let (reads, written) = (
            used.iter().copied().filter(is_read).collect(),
            used.iter().copied().filter(|b| writes.contains(b)),
        );
        let divided = numbers.contains(&"threads");
        let effect = Effect { reads, writes: written.collect(), divided, ..Effect::default() };
        let calls = vec![Statement::call(call, effect)];
        let origin = comment(&step.origin);
        let title = if origin.is_empty() { origin } else { format!("/* {origin} */") };
        Phase { title, calls, everyone: divided }
    }
    /// The number of a call that can fail: its codes say where in the model it is.
    fn place(&mut self, op: &str, blocks: &[&str], origin: &str) -> i32 {
        self.failing.0.push(origin.to_owned());
        let number = self.failing.0.len() as i32;
        let place = if origin.is_empty() { String::new() } else { format!(" in `{}`", quoted(origin)) };
        for (code, name, text) in ERRORS {
            // The list of all codes stands in an enumeration.
            if blocks.iter().any(|block| block.contains(name) && !block.contains("enum {")) {
                let code = code + ERROR_PLACES * number;
                let _ = writeln!(self.failing.1, "    case {code}:\n        return \"{text}: {op}{place}\";");
            }
        }
        number
    }
    /// The function of this text, in which marks stand for the names of what it uses.
    fn function(&mut self, text: &str, writer: &Writer<'_>, step: &KernelStep) -> String {
        let used = writer.used.as_slice();
        let mark = |b: BufferId| format!("{MARK}{b}{MARK_END}");
        let key = used
            .iter()
            .enumerate()
            .fold(text.to_owned(), |text, (i, &b)| text.replace(&mark(b), &format!("{MARK}#{i}{MARK_END}")));
        if let Some(name) = self.written.get(&key) {
            return name.clone();
        }
        let name = self.globals.name(&format!("{}_{}", self.prefix, step.name));
        let sentence = describe(self.program, step, text);
        // Inside of the function the end of a path says enough.
        let mut namer = Namer::default();
        let text = used.iter().fold(text.to_owned(), |text, &b| {
            let buffer = &self.program.buffers[b].name;
            text.replace(&mark(b), &namer.name(end_of(buffer)))
        });
        let before = if writer.has_short_loops { "MITHRIL_SHORT_LOOPS" } else { "MITHRIL_NOINLINE" };
        let _ = write!(self.functions, "\n{sentence}static {before} void {name}{text}");
        self.written.insert(key, name.clone());
        name
    }
    fn argument(&mut self, buffer: BufferId) -> String {
        self.used.insert(buffer);
        self.names[buffer].clone()
    }
    fn call(&mut self, call: &Call, origin: &str, parallel: bool) -> Phase {
        let blocks = PRELUDE.choose([call.function.as_str()]);
        let head = |before: &str| {
            let start = format!("{before}{}(", call.function);
            let mut heads = blocks.iter().filter_map(|block| block.split_once(&start));
            heads.next().map(|(_, rest)| rest.split(')').next().unwrap_or(rest))
        };
        let parameters = head("").unwrap_or_default();
        let everyone = parameters.starts_with("int64_t thread,");
        let mut arguments: Vec<String> = Vec::new();
        if everyone {
            let thread_arguments = if parallel { ["thread", "threads"] } else { ["0", "1"] };
            arguments.extend(thread_arguments.map(str::to_owned));
        }
        for arg in &call.args {
            arguments.push(match arg {
                Argument::Name(name) => name.to_string(),
                Argument::Mesh(axis) => {
                    // The verifier has looked whether there is one.
                    let axis = self.mesh.and_then(|mesh| mesh.axis(axis)).unwrap_or_default();
                    format!("mesh, {axis}")
                }
                Argument::In(b) | Argument::Out(b) => self.argument(*b),
                Argument::Int(n) => n.to_string(),
                Argument::Float(x) => number((*x).into(), mithril_ir::DType::F64).text,
                Argument::Ints(all) if all.is_empty() => "NULL".to_owned(),
                Argument::Ints(all) => {
                    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                    format!("(const int64_t[]){{{}}}", all.join(", "))
                }
            });
        }
        if parameters.ends_with("scratch") {
            // Nothing to work on needs no scratch memory.
            arguments.push((if call.scratch > 0 { "thread_scratch" } else { "NULL" }).to_owned());
        }
        let fails = head("int ").is_some();
        self.fails |= fails;
        let text = format!("{}({})", call.function, arguments.join(", "));
        let text = if fails {
            let op = call.function.trim_start_matches("mithril_");
            let number = self.place(op, &blocks, origin);
            if call.uses_mesh() {
                // The other ranks wait for this one, whether it has failed or not.
                format!("error = mithril_first(error, mithril_failed({text}, {number}));")
            } else {
                self.fails_alone = true;
                format!("error = error ? error : mithril_failed({text}, {number});")
            }
        } else {
            format!("{text};")
        };
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for arg in &call.args {
            match arg {
                Argument::In(b) => reads.push(*b),
                Argument::Out(b) => writes.push(*b),
                _ => {}
            }
        }
        let effect = Effect { reads, writes, divided: everyone && parallel, ..Effect::default() };
        Phase { title: String::new(), calls: vec![Statement::call(text, effect)], everyone }
    }
}

/// The end of a path that says enough inside of a function: its last two names, or more where that would be a number.
fn end_of(path: &str) -> &str {
    let mut ends = path.rmatch_indices('.').map(|(i, _)| &path[i + 1..]).skip(1);
    ends.find(|end| !end.starts_with(|c: char| c.is_ascii_digit())).unwrap_or(path)
}

/// The number of a thread and of all, where the program runs.
fn threads(parallel: bool) -> [&'static str; 2] {
    if parallel { ["thread", "threads"] } else { ["0", "1"] }
}

/// What a function of loops takes that threads divide.
fn threads_of(split: bool) -> &'static [&'static str] {
    if split { &["thread", "threads"] } else { &[] }
}

/// A constant tensor.
fn constant(name: &str, tensor: &Tensor) -> String {
    let dtype = tensor.dtype();
    let mut out = format!("\nstatic const {} {name}[{}] = {{", c_type(dtype), tensor.len().max(1));
    let bytes = tensor.to_bytes();
    for i in 0..tensor.len() {
        out.push_str(if i % 12 == 0 { "\n    " } else { " " });
        let is_half = matches!(dtype, mithril_ir::DType::F16 | mithril_ir::DType::BF16);
        let text = match dtype {
            _ if is_half => u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_string(),
            mithril_ir::DType::Bool => u8::from(tensor.get(i).bool()).to_string(),
            _ => number(tensor.get(i), dtype).text,
        };
        let _ = write!(out, "{text},");
    }
    if tensor.is_empty() {
        out.push('0');
    }
    out.push_str("\n};\n");
    out
}

/// About how much a step computes.
fn work(program: &KernelProgram, step: &KernelStep) -> i64 {
    match &step.work {
        KernelWork::Nest(nest) => cost::work(nest).saturating_mul(LOOP_WORK),
        KernelWork::Pack(_) => 0,
        KernelWork::Call(_) => {
            let tensors = step.reads().into_iter().chain(step.writes());
            tensors.map(|b| program.buffers[b].count()).sum::<i64>().saturating_mul(CALL_WORK)
        }
        KernelWork::Kernel(k) => k.work as i64,
        KernelWork::Parts(parts) => {
            parts.steps.iter().map(|step| work(program, step)).fold(0, i64::saturating_add)
        }
        KernelWork::Rows(rows) => {
            let nests = rows.nests.iter().map(|(nest, _)| cost::work(nest));
            nests.fold(0, i64::saturating_add).saturating_mul(LOOP_WORK)
        }
    }
}

/// The other functions of the header.
fn interface(run: &Run<'_>, sizes: &Sizes, failing: &str) -> String {
    let Run { prefix, arena, scratch, .. } = run;
    let threads = if run.parallel { "(size_t)threads" } else { "1" };
    let ignored = if run.parallel && *scratch > 0 { "" } else { "    (void)threads;\n" };
    let bytes = if *scratch > 0 { format!("{arena} + {threads} * {scratch}") } else { arena.to_string() };
    let Sizes { packed, pack, .. } = sizes;
    let mut out = format!(
        "\nsize_t {prefix}_arena_bytes(int threads) {{\n{ignored}    return {bytes};\n}}\n\
         \nsize_t {prefix}_packed_bytes(void) {{\n    return {packed};\n}}\n\
         \nsize_t {prefix}_pack_bytes(void) {{\n    return {pack};\n}}\n\
         \nconst char *{prefix}_error(int code) {{\n    switch (code) {{\n    case 0:\n        return \"no error\";\n"
    );
    for (code, _, text) in ERRORS.iter().filter(|(code, ..)| run.mesh.is_some() || *code != MESH_ERROR) {
        let _ = writeln!(out, "    case {code}:\n        return \"{text}\";");
    }
    out.push_str(failing);
    out.push_str("#ifndef NDEBUG\n");
    let argument = ERRORS.iter().find(|(_, name, _)| *name == "MITHRIL_ERROR_ARGUMENT").map_or(0, |e| e.0);
    for (number, name) in run.checked_pointers() {
        let code = argument + ERROR_PLACES * number as i32;
        let text = format!("{name} is a null pointer, is not aligned, or overlaps another");
        let _ = writeln!(out, "    case {code}:\n        return \"{text}\";");
    }
    out.push_str("#endif\n");
    out.push_str("    default:\n        return \"an unknown error\";\n    }\n}\n");
    out
}
