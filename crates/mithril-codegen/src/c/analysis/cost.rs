//! What the steps of a program compute, for who measures them.

use crate::c::ir::expr::{Argument, Expr, Var};
use crate::c::ir::program::{KernelBuffer, KernelMemory, KernelProgram, KernelStep, KernelWork, Nest, Place};

/// A step and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// What it is called after: the op, or the path of the value.
    pub name: String,
    /// Which part of the model it belongs to.
    pub path: String,
    /// What it computes.
    pub what: String,
    /// Operations on numbers: a multiplication with an addition is two, a function is one. Of convolutions and matrix
    /// products those of the definition, whatever way they are computed. `None`: a function of the prelude, whose
    /// work depends on its data.
    pub operations: Option<u64>,
    /// Bytes of all tensors that are read or written, each once.
    pub bytes: u64,
    /// Specifications of kernels for which there were candidates.
    pub tuning_keys: Vec<String>,
}

/// The steps of a program, each with all that it does in one call.
pub fn costs(program: &KernelProgram) -> Vec<Cost> {
    let times = program.tiles() as u64;
    let of_call = |step| {
        let once = cost(program, step);
        Cost { operations: once.operations.map(|n| n.saturating_mul(times)), ..once }
    };
    program.steps.iter().map(of_call).collect()
}

/// About how many nanoseconds a call takes on one thread with vectors of so many floats; `None`: that depends on data.
pub fn nanoseconds(program: &KernelProgram, lanes: usize) -> Option<u64> {
    let of = |step: &KernelStep| match &step.work {
        KernelWork::Kernel(k) => Some((k.work / lanes) as u64),
        _ => cost(program, step).operations,
    };
    let once = program.steps.iter().try_fold(0_u64, |sum, step| Some(sum.saturating_add(of(step)?)))?;
    Some(once.saturating_mul(program.tiles() as u64))
}

fn cost(program: &KernelProgram, step: &KernelStep) -> Cost {
    let (what, operations) = match &step.work {
        KernelWork::Nest(nest) => (shape(program, nest), Some(of_nest(nest))),
        KernelWork::Call(call) => {
            let outs = call.args.iter().filter(|argument| matches!(argument, Argument::Out(_))).count();
            (format!("{} ({outs} outputs)", call.function.trim_start_matches("mithril_")), None)
        }
        KernelWork::Kernel(k) => (k.what.clone(), Some(2 * k.work as u64)),
        KernelWork::Parts(parts) => {
            let inner: Vec<Cost> = parts.steps.iter().map(|step| cost(program, step)).collect();
            let all = inner.iter().filter_map(|cost| cost.operations).fold(0, u64::saturating_add);
            let whats: Vec<&str> = inner.iter().map(|cost| cost.what.as_str()).collect();
            (format!("{} times: {}", parts.count, whats.join(", ")), Some(all))
        }
        KernelWork::Rows(rows) => {
            let count: i64 = rows.vars.iter().map(|v| v.size).product();
            let all = rows.nests.iter().map(|(nest, _)| of_nest(nest)).fold(0, u64::saturating_add);
            let whole = rows.nests.iter().all(|(nest, _)| nest.vars == rows.vars);
            let of = if whole { "elements" } else { "rows" };
            (format!("{} loops over {count} {of}", rows.nests.len()), Some(all))
        }
        KernelWork::Pack(_) => ("packing".to_owned(), None),
    };
    let mut buffers = step.reads();
    buffers.extend(match &step.work {
        KernelWork::Nest(nest) => vec![nest.to],
        // Weights count as they are before they are packed.
        KernelWork::Kernel(k) => vec![k.to, k.inputs[0].0, k.inputs[1].0],
        KernelWork::Call(_) | KernelWork::Rows(_) | KernelWork::Parts(_) | KernelWork::Pack(_) => {
            step.writes()
        }
    });
    buffers.retain(|&b| !matches!(program.buffers[b].place, Place::Memory(KernelMemory::Scratch(_))));
    buffers.sort_unstable();
    buffers.dedup();
    let of = |buffer: &KernelBuffer| (buffer.bytes() * program.tiles_of(&buffer.place)) as u64;
    let bytes = buffers.iter().map(|&b| of(&program.buffers[b])).sum();
    let tuning_keys = if let KernelWork::Kernel(k) = &step.work { k.tuning_keys.clone() } else { Vec::new() };
    Cost { name: step.name.clone(), path: step.origin.clone(), what, operations, bytes, tuning_keys }
}

fn shape(program: &KernelProgram, nest: &Nest) -> String {
    let sizes: Vec<String> = program.buffers[nest.to].shape.iter().map(ToString::to_string).collect();
    let mut summed: Vec<String> = Vec::new();
    nest.value.walk(&mut |e| {
        if let Expr::Reduce { vars, .. } = e {
            summed.push(vars.iter().map(|v| v.size).product::<i64>().to_string());
        }
    });
    let over = if summed.is_empty() { String::new() } else { format!(", each over {}", summed.join(" + ")) };
    format!("loops of {}{over}", if sizes.is_empty() { "1".to_owned() } else { sizes.join("x") })
}

/// Operations of all elements of a nest.
fn of_nest(nest: &Nest) -> u64 {
    let times = nest.vars.iter().map(|v| v.size.max(0) as u64).product::<u64>();
    times.saturating_mul(of_element(&nest.value))
}

fn of_element(e: &Expr) -> u64 {
    let inner: u64 = match e {
        // Only one of both is computed.
        Expr::Select { yes, no, .. } => of_element(yes).max(of_element(no)),
        _ => e.children().into_iter().map(of_element).sum(),
    };
    match e {
        Expr::Reduce { vars, .. } => vars.iter().map(|v| v.size.max(0) as u64).product::<u64>() * (inner + 1),
        Expr::Binary(..) | Expr::Apply { .. } => inner + 1,
        _ => inner,
    }
}

/// Work (elements times expressions) below which a nest is done by one thread.
pub const LEAST_WORK: i64 = 1 << 15;

/// About how much a nest computes.
pub fn work(nest: &Nest) -> i64 {
    of_value(&nest.vars, &nest.value)
}

/// About how much it is to compute a value for all values of some variables.
pub fn of_value(vars: &[Var], value: &Expr) -> i64 {
    fn cost(e: &Expr) -> i64 {
        let times = if let Expr::Reduce { vars, .. } = e { vars.iter().map(|v| v.size).product() } else { 1 };
        let own = if matches!(e, Expr::Apply { .. }) { 8 } else { 1 };
        own + e.children().into_iter().map(cost).sum::<i64>().saturating_mul(times)
    }
    vars.iter().fold(cost(value), |n, v| n.saturating_mul(v.size))
}
