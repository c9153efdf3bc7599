//! The text form of programs. That of a [`LoopProgram`](crate::c::ir::program::LoopProgram) is complete: `parse.rs` reads it
//! back. That of a [`KernelProgram`](crate::c::ir::program::KernelProgram) shows all that its steps do and where its buffers
//! lie, but is only printed: its kernels are functions of C, which a text does not hold.
//!
//! ```text
//! x0: f32[4, 8] input 0 "x"
//! x1: f32[10, 8] input 1 fixed "weight"
//! x2: f32[4, 10] output 0 "y"
//! x3: f32[4] temporary "sum"
//! variables: 5
//! x3[i0 < 4] = sum[i1 < 8](x0[i0, i1]) in "model.sum" as "sum"
//! x2[i2 < 4, i3 < 10] = sum[i4 < 8]((x0[i2, i4] * x1[i3, i4])) in "model" as "matmul"
//! ```
//!
//! An element has the dtype of its buffer unless another one is given (`x3:u8[…]`). A number is f32, i64 or bool unless a dtype
//! is given (`0.5:f64`), the result of a template has the dtype of its first argument or f32 unless one is given.

use std::fmt::{self, Display, Write as _};

use mithril_ir::{DType, Lit, Scalar, Tensor};

use crate::c::ir::expr::{Argument, Atom, Call, Expr, Index, Var};
use crate::c::ir::kernel;
use crate::c::ir::program::{
    BatchTiling, Buffer, Buffers, Integers, KernelBuffers, KernelCall, KernelInfo, KernelMemory,
    KernelProgram, KernelStep, KernelWork, Level, LoopBuffers, LoopMemory, LoopProgram, LoopStep, LoopWork,
    Memory, Nest, Place, Program, Rows, Start, Step,
};

/// The elements of larger constants are elided.
pub const LARGEST_CONSTANT: usize = 64;

impl Display for LoopProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = |memory: &LoopMemory| match memory {
            LoopMemory::Temporary => "temporary".to_owned(),
            LoopMemory::Prepacked => "prepacked".to_owned(),
        };
        f.write_str(&program(self, &memory, &|step| loop_step(step, &self.buffers)))
    }
}

impl Display for KernelProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelInfo { arena_bytes, packed_bytes, pack_bytes, halos } = &self.info;
        if let Some(bytes) = arena_bytes {
            writeln!(f, "arena: {bytes} bytes, packed: {packed_bytes} bytes, packing: {pack_bytes} bytes")?;
        }
        f.write_str(&program(self, &address, &|step| kernel_step(step, &self.buffers)))?;
        halos.iter().try_for_each(|(buffer, function)| writeln!(f, "halo of x{buffer}: {function}"))
    }
}

fn address(memory: &KernelMemory) -> String {
    match memory {
        KernelMemory::Arena(None) => "temporary".to_owned(),
        KernelMemory::Arena(Some(at)) => format!("arena {at}"),
        KernelMemory::Scratch(at) => format!("scratch {at}"),
        KernelMemory::Packed(None) => "prepacked".to_owned(),
        KernelMemory::Packed(Some(at)) => format!("packed {at}"),
        KernelMemory::Packing(at) => format!("packing {at}"),
    }
}

fn program<L: Level>(
    program: &Program<L>,
    memory: &dyn Fn(&L::Memory) -> String,
    step: &dyn Fn(&Step<L::Work>) -> String,
) -> String {
    let mut out = String::new();
    for (i, buffer) in program.buffers.entries() {
        let _ = writeln!(out, "x{i}: {}", buffer_text(buffer, memory));
    }
    for (buffer, integers) in &program.integers {
        let _ = match integers {
            Integers::Range([low, high]) => writeln!(out, "integers x{buffer}: {low:?} to {high:?}"),
            Integers::Weights => writeln!(out, "integers x{buffer}: weights"),
        };
    }
    for (old, new) in &program.updates {
        let _ = writeln!(out, "update x{old}: x{new}");
    }
    if let Some(BatchTiling { tiles, inputs }) = &program.tiling {
        let inputs: Vec<String> = inputs.iter().map(|input| format!("input {input}")).collect();
        let _ = writeln!(out, "tiles: {tiles} of ({})", inputs.join(", "));
    }
    let _ = writeln!(out, "variables: {}", program.next_var);
    if !program.prepacking.is_empty() {
        out.push_str("once:\n");
        program.prepacking.iter().for_each(|one| out.push_str(&step(one)));
        out.push_str("at every call:\n");
    }
    program.steps.iter().for_each(|one| out.push_str(&step(one)));
    out
}

fn buffer_text<M: Memory>(buffer: &Buffer<M>, memory: &dyn Fn(&M) -> String) -> String {
    let ty = match &buffer.place {
        Place::Constant(tensor) => constant(tensor),
        _ => format!("{}{:?}", buffer.dtype, buffer.shape),
    };
    let place = match &buffer.place {
        Place::Input(input) => format!("input {input}"),
        Place::Output(output) => format!("output {output}"),
        Place::State { input, output } => format!("input {input}, output {output}"),
        Place::Constant(_) => "constant".to_owned(),
        Place::Memory(place) => memory(place),
    };
    let fixed = if buffer.is_param { " fixed" } else { "" };
    let blocks = buffer.blocks.map(|blocks| blocks.to_string()).unwrap_or_default();
    format!("{ty} {place}{fixed}{blocks} {:?}", buffer.name)
}

/// The type of a constant with its elements.
fn constant(tensor: &std::sync::Arc<Tensor>) -> String {
    if tensor.len() <= LARGEST_CONSTANT {
        return Lit::Tensor(tensor.clone()).to_string();
    }
    format!("{}{:?}{{...}}", tensor.dtype(), tensor.shape())
}

/// The end of the line of a step: the part of the model that it belongs to, and its name.
fn origin<W>(step: &Step<W>) -> String {
    format!(" in {:?} as {:?}\n", step.origin, step.name)
}

fn loop_step(step: &LoopStep, buffers: &LoopBuffers) -> String {
    match &step.work {
        LoopWork::Nest(nest) => nest_text(nest, buffers) + &origin(step),
        LoopWork::Call(call) => call_text(call) + &origin(step),
    }
}

/// A step of a program of kernels, in lines.
pub fn kernel_step(step: &KernelStep, buffers: &KernelBuffers) -> String {
    let place = origin(step);
    match &step.work {
        KernelWork::Nest(nest) => nest_text(nest, buffers) + &place,
        KernelWork::Call(call) => call_text(call) + &place,
        KernelWork::Parts(parts) => {
            let mut out =
                format!("for each of {} parts, scratch {} bytes{place}", parts.count, parts.scratch_bytes);
            for line in parts.steps.iter().map(|step| kernel_step(step, buffers)).collect::<String>().lines()
            {
                let _ = writeln!(out, "    {line}");
            }
            out
        }
        KernelWork::Rows(rows) => rows_text(rows, buffers, &place),
        KernelWork::Kernel(k) => kernel_text(k, &place),
        KernelWork::Pack(p) => {
            let read: Vec<String> = p.reads().map(|b| format!("x{b}")).collect();
            format!("packed {} = {}({}){place}", p.packed, p.call.function, read.join(", "))
        }
    }
}

fn rows_text(rows: &Rows, buffers: &KernelBuffers, place: &str) -> String {
    let (parts, own) = rows.vars.split_at(rows.part_vars);
    let parts = if parts.is_empty() { String::new() } else { format!("{}; ", vars(parts)) };
    let mut out = format!("for [{parts}{}], scratch {} bytes{place}", vars(own), rows.scratch_bytes);
    for (nest, at) in &rows.nests {
        let inner = &nest.vars[rows.vars.len()..];
        let at = listed(at, |index| index_text(index, buffers));
        let value = expr_text(&nest.value, buffers);
        let _ = writeln!(out, "    x{}[{}] at [{at}] = {value}", nest.to, vars(inner));
    }
    out
}

fn kernel_text(k: &KernelCall, place: &str) -> String {
    let start =
        |&(buffer, at): &Start| if at == 0 { format!("x{buffer}") } else { format!("x{buffer} + {at}") };
    let starts: Vec<String> = k.inputs.iter().chain(&k.operands).map(start).collect();
    let mut out = format!("x{} = {}({}){place}", k.to, k.what, starts.join(", "));
    for (i, phase) in k.kernel.phases.iter().enumerate() {
        for call in phase {
            let _ = writeln!(out, "    phase {i}: {}", call.text(argument_text));
        }
    }
    if k.kernel.pack.is_some() {
        let _ = writeln!(out, "    packed: {}, {} bytes", k.packed, k.kernel.packed_bytes);
    }
    if let Some(next) = &k.next_weights {
        let (packed, kernel::PanelStart { units, panels, bytes }) = &**next;
        let _ =
            writeln!(out, "    next weights: {packed}, {units} units of {panels} panels of {bytes} bytes");
    }
    if let Some(shared) = k.shared {
        let _ = writeln!(out, "    shared: x{shared}, {} bytes", k.kernel.shared_bytes);
    }
    if k.kernel.scratch_bytes > 0 {
        let _ = writeln!(out, "    scratch: {} bytes", k.kernel.scratch_bytes);
    }
    for key in &k.tuning_keys {
        let _ = writeln!(out, "    tuning key: {key:?}");
    }
    out
}

fn argument_text(argument: &kernel::Argument) -> String {
    use kernel::Argument as A;
    match argument {
        A::Thread => "thread".to_owned(),
        A::Threads => "threads".to_owned(),
        A::A => "a".to_owned(),
        A::B => "b".to_owned(),
        A::Packed => "packed".to_owned(),
        A::PackedB => "packed b".to_owned(),
        A::NextWeights => "next weights".to_owned(),
        A::Out => "out".to_owned(),
        A::Operand(i) => format!("operand {i}"),
        A::Shared => "shared".to_owned(),
        A::SharedAt(at) => format!("shared + {at}"),
        A::Scratch => "scratch".to_owned(),
    }
}

fn nest_text<M: Memory>(nest: &Nest, buffers: &Buffers<M>) -> String {
    format!("x{}[{}] = {}", nest.to, vars(&nest.vars), expr_text(&nest.value, buffers))
}

fn call_text(call: &Call) -> String {
    let argument = |argument: &Argument| match argument {
        Argument::In(b) => format!("x{b}"),
        Argument::Out(b) => format!("out x{b}"),
        Argument::Int(n) => n.to_string(),
        Argument::Float(x) => format!("{x:?}"),
        Argument::Ints(list) => format!("{list:?}"),
        Argument::Name(name) => name.to_string(),
        Argument::Mesh(axis) => format!("mesh {axis:?}"),
    };
    let scratch = if call.scratch == 0 { String::new() } else { format!(" scratch {}", call.scratch) };
    format!("{}({}){scratch}", call.function, listed(&call.args, argument))
}

/// Variables with their sizes.
fn vars(vars: &[Var]) -> String {
    listed(vars, |v| format!("i{} < {}", v.id, v.size))
}

fn listed<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn expr_text<M: Memory>(e: &Expr, buffers: &Buffers<M>) -> String {
    let of = |e: &Expr| expr_text(e, buffers);
    match e {
        Expr::Load { from, at, stored } => {
            let is_usual = buffers.get(*from).is_some_and(|buffer| buffer.dtype == *stored);
            let dtype = if is_usual { String::new() } else { format!(":{stored}") };
            format!("x{from}{dtype}[{}]", listed(at, |index| index_text(index, buffers)))
        }
        Expr::Number(value, dtype) => number(*value, *dtype),
        Expr::Index(at) => format!("index({})", index_text(at, buffers)),
        Expr::Binary(op, a, b) => match op.sign() {
            Some(sign) => format!("({} {sign} {})", of(a), of(b)),
            None => format!("{}({}, {})", format!("{op:?}").to_lowercase(), of(a), of(b)),
        },
        Expr::Apply { text, args, dtype } => {
            let usual = args.first().map_or(DType::F32, Expr::dtype);
            let dtype = if *dtype == usual { String::new() } else { format!(":{dtype}") };
            format!("`{text}`{dtype}({})", listed(args, of))
        }
        Expr::Cast(x, dtype) => format!("{dtype}({})", of(x)),
        Expr::Select { when, yes, no } => {
            let tests = when.iter().map(|w| match (w.from, w.to, index_text(&w.index, buffers)) {
                (i64::MIN, to, index) => format!("{index} < {to}"),
                (from, i64::MAX, index) => format!("{from} <= {index}"),
                (from, to, index) => format!("{from} <= {index} < {to}"),
            });
            let tests = tests.collect::<Vec<_>>().join(" and ");
            format!("({tests} ? {} : {})", of(yes), of(no))
        }
        Expr::Reduce { op, vars: over, body } => {
            format!("{}[{}]({})", format!("{op:?}").to_lowercase(), vars(over), of(body))
        }
    }
}

fn number(value: Scalar, dtype: DType) -> String {
    let (text, usual) = match value {
        Scalar::Float(x) => (format!("{x:?}"), DType::F32),
        Scalar::Int(n) => (n.to_string(), DType::I64),
        Scalar::Bool(b) => (b.to_string(), DType::Bool),
    };
    if dtype == usual { text } else { format!("{text}:{dtype}") }
}

fn index_text<M: Memory>(index: &Index, buffers: &Buffers<M>) -> String {
    let mut out = String::new();
    for (i, (atom, factor)) in index.terms.iter().enumerate() {
        if i > 0 {
            out.push_str(" + ");
        }
        if *factor != 1 {
            let _ = write!(out, "{factor}*");
        }
        let text = match atom {
            Atom::Var(var) => format!("i{}", var.id),
            Atom::Div(inner, by) => format!("(({}) / {by})", index_text(inner, buffers)),
            Atom::Mod(inner, by) => format!("(({}) % {by})", index_text(inner, buffers)),
            Atom::Value { value, size, wraps } => {
                let wraps = if *wraps { " wraps" } else { "" };
                format!("[{} < {size}{wraps}]", expr_text(value, buffers))
            }
        };
        out.push_str(&text);
    }
    match (index.terms.is_empty(), index.constant) {
        (true, n) => out = n.to_string(),
        (false, 0) => {}
        (false, n) if n < 0 => _ = write!(out, " - {}", n.unsigned_abs()),
        (false, n) => _ = write!(out, " + {n}"),
    }
    out
}
