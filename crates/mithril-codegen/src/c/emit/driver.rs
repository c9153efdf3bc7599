//! The function that runs a program: pointers to all buffers, then a call per step. With threads, all of them walk
//! through the same calls, each does its part, and they wait for each other only where one needs what others made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::c::analysis::dependence::writes_state;
use crate::c::emit::reroll::{Address, Block, reroll};
use crate::c::emit::units::words;
use crate::c::ir::driver::{Effect, Line, Phase, Statement};
use crate::c::ir::expr::{BufferId, ERROR_PLACES, StepId};
use crate::c::ir::kernel::Argument;
use crate::c::ir::program::{
    KernelBuffer, KernelCall, KernelMemory, KernelPlace, KernelProgram, KernelStep, PackCall, Place, Start,
};
use crate::c::request::Mesh;
use crate::c::syntax::comment::quoted;
use crate::c::syntax::template::c_type;
use crate::ids::{Id as _, Table};

/// Lines of the function with all calls from which on compilers need not optimize it: they would take minutes.
const MANY_LINES: usize = 500;

/// Where threads wait for each other.
const WAIT: &str = "    mithril_wait(&call->barrier, threads);\n";

/// What the pointers of the functions that run or pack are called.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Those to buffers.
    pub buffers: &'a Table<BufferId, String>,
    /// Those to weights in the order of a kernel, by where they start among what is packed.
    pub packed: &'a BTreeMap<usize, String>,
}

impl Names<'_> {
    fn packed(&self, at: usize) -> String {
        self.packed.get(&at).cloned().unwrap_or_else(|| inside("packed", at))
    }
}

/// What is known of the program when its steps have been written.
#[expect(clippy::struct_excessive_bools, reason = "facts, each by itself")]
pub struct Run<'a> {
    /// The program.
    pub program: &'a KernelProgram,
    /// Prefix of all names.
    pub prefix: &'a str,
    /// Names of the buffers.
    pub names: &'a Table<BufferId, String>,
    /// KernelBuffers that the calls name.
    pub used: &'a BTreeSet<BufferId>,
    /// Weights in the order of the kernels that the calls name, by where they start among what is packed.
    pub packed: Vec<(usize, &'a str)>,
    /// Whether a step may fail.
    pub fails: bool,
    /// Whether threads are worth it.
    pub parallel: bool,
    /// Bytes of the arena that all threads see.
    pub arena: usize,
    /// Bytes of each thread.
    pub scratch: usize,
    /// Whether the steps are measured.
    pub profile: bool,
    /// The mesh whose ranks run it together.
    pub mesh: Option<&'a Mesh>,
    /// Whether the ranks have to tell each other whether one of them has failed.
    pub agrees: bool,
}

/// The calls of a kernel by one of so many threads: `who` is its number and theirs.
pub fn kernel(k: &KernelCall, names: &Names<'_>, who: [&str; 2]) -> Vec<Phase> {
    let write = |argument: &Argument| argument_text(k, names, who, argument);
    let phases = k.kernel.phases.iter().enumerate().map(|(i, calls)| {
        let divided = who[0] == "thread";
        let effect = |call| Effect { divided, ..Effect::of(k, i, call) };
        let calls = calls.iter().map(|call| Statement::call(call.text(write), effect(call)));
        Phase { title: String::new(), calls: calls.collect(), everyone: true }
    });
    phases.collect()
}

/// The call that packs the weights of a kernel.
pub fn packing(p: &PackCall, names: &Names<'_>) -> Phase {
    let call = p.call.text(|argument| match argument {
        Argument::Thread => "0".to_owned(),
        Argument::Threads => "1".to_owned(),
        Argument::A => start(p.inputs[0], names),
        Argument::B => start(p.inputs[1], names),
        Argument::Packed => names.packed(p.packed),
        // Packing has no memory of other kinds.
        _ => "NULL".to_owned(),
    });
    let effect = Effect { reads: p.reads().collect(), packs: Some(p.packed), ..Effect::default() };
    Phase { title: String::new(), calls: vec![Statement::call(call, effect)], everyone: false }
}

/// A tensor from a position on.
fn start((buffer, offset): Start, names: &Names<'_>) -> String {
    match offset {
        0 => names.buffers[buffer].clone(),
        n => format!("{} + {n}", names.buffers[buffer]),
    }
}

fn argument_text(k: &KernelCall, names: &Names<'_>, who: [&str; 2], argument: &Argument) -> String {
    let shared = k.shared.map_or("NULL", |b| names.buffers[b].as_str());
    match argument {
        Argument::Thread => who[0].to_owned(),
        Argument::Threads => who[1].to_owned(),
        Argument::A => start(k.inputs[0], names),
        Argument::B => start(k.inputs[1], names),
        Argument::PackedB => format!("(const void *){}", names.buffers[k.inputs[1].0]),
        Argument::Out => names.buffers[k.to].clone(),
        Argument::Operand(i) => start(k.operands[*i], names),
        Argument::Packed => names.packed(k.packed),
        Argument::NextWeights => {
            let next = k.next_weights.as_ref().map(|next| (next.0, next.1.text(who)));
            let (at, first) = next.unwrap_or((k.packed, String::new()));
            let name = names.packed(at);
            if first.is_empty() { name } else { format!("(const char *){name}{first}") }
        }
        Argument::Shared | Argument::SharedAt(0) => format!("(void *){shared}"),
        Argument::SharedAt(n) => inside(shared, *n),
        Argument::Scratch => "thread_scratch".to_owned(),
    }
}

/// The first lines of a call with states.
const COPIES: &str = "    for (size_t i = 0; i < sizeof @p@_states / sizeof *@p@_states; i++) {
        const void *const old = inputs[@p@_states[i].input];
        void *const new = outputs[@p@_states[i].output];
        if (old != new) memcpy(new, old, @p@_states[i].bytes);
    }
";

impl Run<'_> {
    /// The functions, of which these are the lines.
    pub fn text(&self, lines: &[Line<'_>]) -> String {
        if self.parallel { self.together(lines) } else { self.alone(lines) }
    }
    /// What is done in one time through the steps.
    pub fn lines<'p>(&self, steps: &'p Table<StepId, Vec<Phase>>) -> Vec<Line<'p>> {
        if !self.parallel {
            return self.in_turn(steps);
        }
        let mut lines = self.walk(steps);
        if self.program.tiles() > 1 {
            lines.push(Line::Wait);
        }
        lines
    }
    fn head(&self, attributes: &str) -> String {
        let p = self.prefix;
        let (states, copies) = self.states();
        let mut out = self.checks() + &states;
        let copies = copies.replace("@p@", p);
        let (mesh, check) = self.mesh_argument();
        let _ = write!(
            out,
            "\n{attributes}int {p}_run(const void *const inputs[], void *const outputs[], const void *packed, void *arena,\n\
             \x20   const mithril_pool *pool{mesh}) {{\n{check}#ifndef NDEBUG\n    \
             const int invalid = {p}_invalid_argument(inputs, outputs, packed, arena);\n    \
             if (invalid) return MITHRIL_ERROR_ARGUMENT + {ERROR_PLACES} * invalid;\n#endif\n{copies}"
        );
        out
    }
    /// The argument of the mesh, and what looks at it.
    fn mesh_argument(&self) -> (&'static str, String) {
        let Some(mesh) = self.mesh else { return ("", String::new()) };
        let sizes: Vec<String> = mesh.axes.iter().map(|(_, size)| size.to_string()).collect();
        let check = format!(
            "    static const int mesh_sizes[] = {{{}}};\n    \
             if (!mithril_is_mesh(mesh, mesh_sizes, {})) return MITHRIL_ERROR_MESH;\n",
            sizes.join(", "),
            sizes.len()
        );
        (", const mithril_mesh *mesh", check)
    }
    /// The table of states that are changed where they lie, and what is done first for callers who pass two places.
    fn states(&self) -> (String, &'static str) {
        let row = |b: &KernelBuffer| match b.place {
            Place::State { input, output } => Some(format!("    {{{input}, {output}, {}}},\n", b.bytes())),
            _ => None,
        };
        let rows: Vec<String> = self.program.buffers.iter().filter_map(row).collect();
        if rows.is_empty() {
            return (String::new(), "");
        }
        let table = format!(
            "\n/* States that are updated in place. */\nstatic const struct {{\n    int input, output;\n    \
             size_t bytes;\n}} {}_states[] = {{\n{}}};\n",
            self.prefix,
            rows.concat()
        );
        (table, COPIES)
    }
    /// The function that looks at what a caller passes; left out with `-DNDEBUG`.
    fn checks(&self) -> String {
        let p = self.prefix;
        let (inputs, outputs) = (self.extents("inputs"), self.extents("outputs"));
        let (n, m) = (inputs.len(), outputs.len());
        let list = |which: &str, cast: &str, extents: &[String], before: usize| {
            let count = extents.len();
            format!(
                "    static const struct mithril_extent {which}_are[{}] = {{{}}};\n    \
                 at = mithril_invalid_pointer({cast}{which}, {which}_are, {count});\n    \
                 if (at >= 0) return {} + at;\n",
                count.max(1),
                if count == 0 { "{0, 1}".to_owned() } else { extents.join(", ") },
                1 + before
            )
        };
        let mut out = format!(
            "\n#ifndef NDEBUG\n/* Checks the arguments of a call: the number, from 1 on, of the first pointer that is null or not aligned, or \
             of an output that\n   overlaps another tensor, in the order inputs, outputs, packed, arena; 0 if all are valid. */\n\
             static int {p}_invalid_argument(const void *const inputs[], void *const outputs[], const void *packed,\n    \
             const void *arena) {{\n    (void)packed, (void)arena;\n    int at;\n"
        );
        out.push_str(&list("inputs", "", &inputs, 0));
        out.push_str(&list("outputs", "(const void *const *)", &outputs, n));
        for (i, (name, bytes)) in self.blocks().into_iter().enumerate() {
            if bytes > 0 {
                let number = 1 + n + m + i;
                let _ = writeln!(out, "    if (!{name} || (uintptr_t){name} % 64) return {number};");
            }
        }
        let _ = write!(
            out,
            "    at = mithril_overlapping(inputs, inputs_are, {n}, outputs, outputs_are, {m});\n    \
             return at >= 0 ? {} + at : 0;\n}}\n#endif\n",
            1 + n
        );
        out
    }
    /// What callers pass beside tensors, and how many bytes of it are needed.
    fn blocks(&self) -> [(&'static str, usize); 2] {
        [("packed", self.program.info.packed_bytes), ("arena", self.arena + self.scratch)]
    }
    /// The pointers that a call checks: the number of each as `..._invalid_argument` returns it, and what it is called.
    pub fn checked_pointers(&self) -> Vec<(usize, String)> {
        let (inputs, outputs) = (self.extents("inputs"), self.extents("outputs"));
        let (n, m) = (inputs.len(), outputs.len());
        let mut checks = Vec::new();
        for buffer in &self.program.buffers {
            let (number, list, i, extents) = match buffer.place {
                Place::Input(input) => (1 + input.index(), "inputs", input.index(), &inputs),
                Place::Output(output) | Place::State { output, .. } => {
                    (1 + n + output.index(), "outputs", output.index(), &outputs)
                }
                _ => continue,
            };
            if !extents.get(i).is_some_and(|extent| extent.starts_with("{0,")) {
                checks.push((number, format!("{list}[{i}], `{}`,", quoted(&buffer.name))));
            }
        }
        let blocks = self.blocks().into_iter().enumerate().filter(|(_, (_, bytes))| *bytes > 0);
        checks.extend(blocks.map(|(i, (name, _))| (1 + n + m + i, name.to_owned())));
        checks.sort();
        checks
    }
    /// Bytes of the inputs or outputs, and of an element of each, in order.
    fn extents(&self, which: &str) -> Vec<String> {
        let mut rows: Vec<(usize, String)> = Vec::new();
        for (i, buffer) in self.program.buffers.entries() {
            let n = match buffer.place {
                // May lie where the output does.
                Place::State { input, .. } if which == "inputs" => {
                    rows.push((input.index(), "{0, 1}".to_owned()));
                    continue;
                }
                Place::Input(input) if which == "inputs" => input.index(),
                Place::Output(output) | Place::State { output, .. } if which == "outputs" => output.index(),
                _ => continue,
            };
            // What was packed need not be there any longer.
            let is_read = which == "outputs" || self.used.contains(&i);
            let bytes = if is_read { buffer.bytes() * self.program.tiles_of(&buffer.place) } else { 0 };
            rows.push((n, format!("{{{bytes}, sizeof({})}}", c_type(buffer.dtype))));
        }
        rows.sort();
        rows.into_iter().map(|(_, text)| text).collect()
    }
    /// By the calling thread: waking others would take longer than the work.
    fn alone(&self, lines: &[Line<'_>]) -> String {
        let calls = self.calls(lines, false);
        let mut out = self.head(attributes(&calls));
        out.push_str("    (void)inputs, (void)outputs, (void)packed, (void)arena, (void)pool;\n");
        if self.scratch > 0 {
            let _ = writeln!(out, "    void *const thread_scratch = {};", inside("arena", self.arena));
        }
        if self.fails {
            out.push_str("    int error = 0;\n");
        }
        self.start_clock(&mut out, false);
        out.push_str(&self.tiled(self.pointers(&calls) + &calls));
        out.push_str(match (self.fails, self.agrees) {
            (true, true) => "    return mithril_agreed(mesh, error);\n}\n",
            (true, false) => "    return error;\n}\n",
            (false, _) => "    return 0;\n}\n",
        });
        out
    }
    /// All calls by one thread.
    fn in_turn<'p>(&self, steps: &'p Table<StepId, Vec<Phase>>) -> Vec<Line<'p>> {
        let mut lines = Vec::new();
        let first = self.first_change();
        for (step, phases) in steps.entries() {
            if first == Some(step) {
                if self.agrees {
                    lines.push(Line::Text("    error = mithril_agreed(mesh, error);\n".to_owned()));
                }
                lines.push(Line::Text("    if (error) return error;\n".to_owned()));
            }
            for (phase, calls) in phases.iter().enumerate() {
                lines.extend(said(calls, (step, phase)));
            }
            self.mark(&mut lines, step, false);
        }
        lines
    }
    fn together(&self, lines: &[Line<'_>]) -> String {
        let p = self.prefix;
        let calls = self.calls(lines, true);
        let (mesh_field, mesh) = match self.mesh {
            Some(_) => (
                "    const mithril_mesh *mesh;\n",
                "    const mithril_mesh *const mesh = call->mesh;\n    (void)mesh;\n",
            ),
            None => ("", ""),
        };
        let mut out = format!(
            "\n/* State shared by the threads of a call. */\ntypedef struct {{\n    const void *const *inputs;\n    \
             void *const *outputs;\n    const void *packed;\n    void *arena;\n    int threads;\n    \
             struct mithril_barrier barrier;\n    atomic_int error;\n{mesh_field}}} {p}_shared;\n\
             \n/* What each thread of a call runs. */\nstatic {}void {p}_run_thread(void *context, int thread) {{\n    \
             {p}_shared *const call = context;\n    const void *const *const inputs = call->inputs;\n    \
             void *const *const outputs = call->outputs;\n    const void *const packed = call->packed;\n    \
             void *const arena = call->arena;\n    const int threads = call->threads;\n{mesh}    \
             (void)inputs, (void)outputs, (void)packed, (void)arena, (void)thread, (void)threads;\n",
            attributes(&calls),
        );
        if self.scratch > 0 {
            let _ = writeln!(
                out,
                "    void *const thread_scratch = (char *)arena + {} + (size_t)thread * {};",
                self.arena, self.scratch
            );
        }
        if self.fails {
            out.push_str("    int error = 0;\n");
        }
        self.start_clock(&mut out, true);
        out.push_str(&self.tiled(self.pointers(&calls) + &calls));
        if self.fails {
            out.push_str("    if (error) mithril_note_error(&call->error, error);\n");
        }
        out.push_str("}\n");
        out.push_str(&self.head(""));
        let set_mesh = if self.mesh.is_some() { "    call.mesh = mesh;\n" } else { "" };
        let error = "atomic_load(&call.error)";
        let result = if self.agrees { format!("mithril_agreed(mesh, {error})") } else { error.to_owned() };
        let _ = write!(
            out,
            "    {p}_shared call = {{.inputs = inputs, .outputs = outputs, .packed = packed, .arena = arena}};\n    \
             call.threads = pool ? pool->threads : 1;\n{set_mesh}    if (call.threads > 1) {{\n        \
             pool->run((mithril_pool *)pool, {p}_run_thread, &call);\n    }} else {{\n        {p}_run_thread(&call, 0);\n    }}\n    \
             return {result};\n}}\n"
        );
        out
    }
    /// All calls, with waiting where a step needs what was made since the last waiting, or writes where others may
    /// still read.
    fn walk<'p>(&self, steps: &'p Table<StepId, Vec<Phase>>) -> Vec<Line<'p>> {
        let mut lines = Vec::new();
        let (mut read, mut written): (Vec<BufferId>, Vec<BufferId>) = (Vec::new(), Vec::new());
        let first = self.first_change();
        for ((number, step), phases) in self.program.steps.entries().zip(steps) {
            if first == Some(number) {
                let note = "    if (error) mithril_note_error(&call->error, error);\n";
                lines.push(Line::Text(note.to_owned()));
                lines.push(Line::Wait);
                if self.agrees {
                    let all = "atomic_store(&call->error, mithril_agreed(mesh, atomic_load(&call->error)))";
                    lines.push(Line::Text(format!("    if (thread == 0) {all};\n")));
                    lines.push(Line::Wait);
                }
                lines.push(Line::Text("    if (atomic_load(&call->error)) return;\n".to_owned()));
                read.clear();
                written.clear();
            }
            let (reads, writes) = (step.reads(), step.writes());
            let meets =
                |a: &[BufferId], b: &[BufferId]| a.iter().any(|&a| b.iter().any(|&b| self.overlap(a, b)));
            if meets(&reads, &written) || meets(&writes, &written) || meets(&writes, &read) {
                lines.push(Line::Wait);
                read.clear();
                written.clear();
            }
            for (i, phase) in phases.iter().enumerate() {
                if i > 0 {
                    lines.push(Line::Wait);
                    read.clear();
                    written.clear();
                }
                lines.extend(said(phase, (number, i)));
            }
            read.extend(reads);
            written.extend(writes);
            if self.profile {
                self.mark(&mut lines, number, true);
                read.clear();
                written.clear();
            }
        }
        lines
    }
    /// The body in a loop over the tiles of the batch, where there are several.
    fn tiled(&self, body: String) -> String {
        let times = self.program.tiles();
        if times == 1 {
            return body;
        }
        let mut out = format!(
            "    /* The elements of the batch are independent: they are computed in {times} tiles, whose tensors stay in the caches. */\n    \
             for (int tile = 0; tile < {times}; tile++) {{\n"
        );
        for line in body.lines() {
            let _ = writeln!(out, "    {line}");
        }
        out + "    }\n"
    }
    /// Where the steps are measured: the time at which the first one starts.
    fn start_clock(&self, out: &mut String, together: bool) {
        if !self.profile {
            return;
        }
        let outputs = self.program.buffers.iter().filter(|b| b.output().is_some()).count();
        let _ = writeln!(out, "    double *const seconds = outputs[{outputs}]; /* of each step */");
        let (first, steps) = (if together { "if (thread == 0) " } else { "" }, self.program.steps.len());
        let _ = writeln!(out, "    {first}memset(seconds, 0, {steps} * sizeof *seconds);");
        if together {
            out.push_str(WAIT);
        }
        out.push_str("    int64_t mark = mithril_clock();\n");
    }
    /// Takes the time of a step, when all threads are done with it.
    fn mark(&self, lines: &mut Vec<Line<'_>>, step: StepId, together: bool) {
        if !self.profile {
            return;
        }
        if together {
            lines.push(Line::Wait);
        }
        let first = if together { "if (thread == 0) " } else { "" };
        lines.push(Line::Text(format!("    {first}mithril_mark(seconds + {step}, &mark);\n")));
    }
    /// The step before which errors are looked for, since it is the first that changes a state.
    fn first_change(&self) -> Option<StepId> {
        let is_first = |step: &KernelStep| writes_state(self.program, step);
        self.program.steps.position(is_first).filter(|_| self.fails)
    }
    /// Whether two buffers share memory. Own memory of threads is between no two steps.
    fn overlap(&self, a: BufferId, b: BufferId) -> bool {
        let (first, second) = (&self.program.buffers[a], &self.program.buffers[b]);
        match (&first.place, &second.place) {
            _ if a == b => true,
            (Place::Memory(KernelMemory::Arena(Some(x))), Place::Memory(KernelMemory::Arena(Some(y)))) => {
                *x < y + second.bytes() && *y < x + first.bytes()
            }
            _ => false,
        }
    }
    /// The calls; those that repeat with arguments that move are loops.
    fn calls(&self, lines: &[Line<'_>], together: bool) -> String {
        let address = |&b: &BufferId| {
            let buffer = &self.program.buffers[b];
            let (block, at) = match &buffer.place {
                Place::Memory(KernelMemory::Arena(at)) => (Block::Arena, at.unwrap_or(0)),
                Place::Memory(KernelMemory::Scratch(at)) => (Block::Scratch, *at),
                Place::Input(n) => (Block::Input(n.index()), 0),
                Place::Output(n) | Place::State { output: n, .. } => (Block::Output(n.index()), 0),
                Place::Memory(KernelMemory::Packed(_) | KernelMemory::Packing(_)) | Place::Constant(_) => {
                    return None;
                }
            };
            Some((self.names[b].as_str(), Address { block, at, element: buffer.dtype.size() }))
        };
        let lines: Vec<String> = lines.iter().map(|line| written(line, together)).collect();
        reroll(&lines, &self.used.iter().filter_map(address).collect())
    }
    /// Pointers to what the calls name.
    fn pointers(&self, calls: &str) -> String {
        let is_code = |line: &&str| !line.trim_start().starts_with("/*");
        let named: BTreeSet<&str> = calls.lines().filter(is_code).flat_map(words).collect();
        let mut out = String::new();
        for &b in self.used.iter().filter(|b| named.contains(self.names[**b].as_str())) {
            let buffer = &self.program.buffers[b];
            let (name, t) = (&self.names[b], c_type(buffer.dtype));
            match &buffer.place {
                Place::Memory(KernelMemory::Packed(at)) => {
                    let at = at.unwrap_or(0);
                    let _ = writeln!(out, "    const {t} *const {name} = {};", constant_inside("packed", at));
                }
                Place::Input(n) if self.program.tiles_of(&buffer.place) > 1 => {
                    let count = buffer.count();
                    let _ = writeln!(
                        out,
                        "    const {t} *const {name} = (const {t} *)inputs[{n}] + tile * (int64_t){count};"
                    );
                }
                Place::Output(n) if self.program.tiles_of(&buffer.place) > 1 => {
                    let count = buffer.count();
                    let _ = writeln!(
                        out,
                        "    {t} *const {name} = ({t} *)outputs[{n}] + tile * (int64_t){count};"
                    );
                }
                place => out.push_str(&pointer(place, t, name)),
            }
        }
        for (at, name) in self.packed.iter().filter(|(_, name)| named.contains(name)) {
            let _ = writeln!(out, "    const void *const {name} = {};", constant_inside("packed", *at));
        }
        out
    }
}

/// The lines of a phase, which is part of a step.
fn said(phase: &Phase, at: (StepId, usize)) -> impl Iterator<Item = Line<'_>> {
    let mut head = String::new();
    phase.head(&mut head);
    let everyone = phase.everyone;
    let calls = phase.calls.iter().map(move |statement| Line::Statement { statement, everyone, at });
    std::iter::once(Line::Text(head)).chain(calls)
}

/// What stands in front of the function with all calls.
fn attributes(calls: &str) -> &'static str {
    if calls.lines().count() > MANY_LINES { "MITHRIL_ONLY_CALLS " } else { "" }
}

/// The text of a line.
fn written(line: &Line<'_>, together: bool) -> String {
    match line {
        Line::Wait => WAIT.to_owned(),
        Line::Text(text) => text.clone(),
        Line::Statement { statement, everyone, .. } => {
            let alone = if together && !everyone { "if (thread == 0) " } else { "" };
            format!("    {alone}{}\n", statement.text)
        }
    }
}

/// The address so many bytes behind the start of a block.
fn inside(block: &str, at: usize) -> String {
    if at == 0 { block.to_owned() } else { format!("(void *)((char *){block} + {at})") }
}

/// The same of a block that is only read.
fn constant_inside(block: &str, at: usize) -> String {
    if at == 0 { block.to_owned() } else { format!("(const void *)((const char *){block} + {at})") }
}

/// A pointer to what is neither packed nor constant.
fn pointer(place: &KernelPlace, t: &str, name: &str) -> String {
    let inside = |block: &str, at: usize| format!("    {t} *const {name} = {};\n", inside(block, at));
    match place {
        Place::Input(n) => format!("    const {t} *const {name} = inputs[{n}];\n"),
        Place::Output(n) | Place::State { output: n, .. } => {
            format!("    {t} *const {name} = outputs[{n}];\n")
        }
        Place::Memory(KernelMemory::Arena(at)) => inside("arena", at.unwrap_or(0)),
        Place::Memory(KernelMemory::Packed(at)) => inside("packed", at.unwrap_or(0)),
        Place::Memory(KernelMemory::Packing(at)) => inside("scratch", *at),
        Place::Memory(KernelMemory::Scratch(at)) => inside("thread_scratch", *at),
        Place::Constant(_) => String::new(),
    }
}

/// The functions that pack parameters: part by part, and all parts.
pub fn pack(run: &Run<'_>, parts: &[Vec<Phase>]) -> String {
    let p = run.prefix;
    let mut out = format!(
        "\nint {p}_pack_parts(void) {{\n    return {};\n}}\n\
         \nint {p}_pack_part(int part, const void *const inputs[], void *packed, void *scratch) {{\n    \
         (void)inputs, (void)packed, (void)scratch;\n",
        parts.len()
    );
    for &b in run.used {
        let buffer = &run.program.buffers[b];
        out.push_str(&pointer(&buffer.place, c_type(buffer.dtype), &run.names[b]));
    }
    for (at, name) in &run.packed {
        let _ = writeln!(out, "    void *const {name} = {};", inside("packed", *at));
    }
    if run.scratch > 0 {
        let _ = writeln!(out, "    void *const thread_scratch = {};", inside("scratch", run.arena));
    }
    let result = if run.fails { "error" } else { "0" };
    if run.fails {
        out.push_str("    int error = 0;\n");
    }
    out.push_str("    switch (part) {\n");
    for (part, phases) in parts.iter().enumerate() {
        let _ = writeln!(out, "    case {part}:");
        for call in phases.iter().flat_map(|phase| &phase.calls) {
            let _ = writeln!(out, "        {}", call.text);
        }
        out.push_str("        break;\n");
    }
    let _ = write!(
        out,
        "    default:\n        break;\n    }}\n    return {result};\n}}\n\
         \nint {p}_pack(const void *const inputs[], void *packed, void *scratch) {{\n    int error = 0;\n    \
         for (int part = 0; part < {p}_pack_parts() && !error; part++)\n        \
         error = {p}_pack_part(part, inputs, packed, scratch);\n    return error;\n}}\n"
    );
    out
}
