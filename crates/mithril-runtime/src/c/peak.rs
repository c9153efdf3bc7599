//! What this processor can do at most, measured once: what is reached is compared with it.

use std::time::Instant;

use mithril_ir::{Code, DType, Error, Result, Role};

use super::array::{Address, AddressMut};
use super::cache::Cache;
use super::call::{Function, Interface, TensorSpec};
use super::compiler::{Compiler, Tool};

/// Floats that are read for the bandwidth: more than caches hold.
const FLOATS: usize = 64 << 20;

/// Independent sums of the kernel, as `peak.c` has them.
const CHAINS: f64 = 12.0;

/// Rounds of multiply-adds of one measurement: some milliseconds.
const ROUNDS: i64 = 2_000_000;

/// Measurements, of which the best counts: something else may run meanwhile.
const TRIALS: usize = 10;

/// How much more has to be reached for it to be measured again.
const NOISE: f64 = 1.03;

/// What so many threads can do at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Operations on float32 in a second; a multiply-add is two.
    pub operations: f64,
    /// Bytes read from memory in a second.
    pub bandwidth: f64,
}

/// Measures this processor, or reads what was measured before.
pub fn peak(tool: &Tool, cache: &Cache, lanes: usize, threads: usize) -> Result<Peak> {
    let (size, threads_text) = (lanes.to_string(), threads.to_string());
    let source = include_str!("peak.c").replace("@lanes@", &size).replace("@floats@", &FLOATS.to_string());
    let compiler = Compiler::find(tool)?.identity();
    let key = ["peak", &compiler, &source, &threads_text];
    let before = cache.text(&key).as_deref().and_then(parse);
    let function = Function::new(tool, cache, &source, interface(threads), threads)?;
    if let Some(before) = before {
        // It may have been measured while other programs ran: a glance tells whether more can be reached now.
        let memory = vec![0.0; FLOATS];
        let now = operations(&function, &memory, lanes, threads, ROUNDS / 10)?;
        if now <= before.operations * NOISE {
            return Ok(before);
        }
    }
    let now = measure(&function, lanes, threads)?;
    let best = |f: fn(&Peak) -> f64| before.as_ref().map_or(0.0, f).max(f(&now));
    let peak = Peak { operations: best(|p| p.operations), bandwidth: best(|p| p.bandwidth) };
    cache.keep_text(&key, &format!("{} {}", peak.operations, peak.bandwidth));
    Ok(peak)
}

fn parse(text: &str) -> Option<Peak> {
    let (operations, bandwidth) = text.split_once(' ')?;
    Some(Peak { operations: operations.parse().ok()?, bandwidth: bandwidth.parse().ok()? })
}

fn interface(threads: usize) -> Interface {
    let buffer =
        |name: &str, dtype: DType, count: usize| TensorSpec { name: name.into(), dtype, shape: vec![count] };
    Interface {
        prefix: "peak".into(),
        inputs: vec![buffer("rounds", DType::I64, 1), buffer("memory", DType::F32, FLOATS)],
        outputs: vec![buffer("sums", DType::F32, threads)],
        roles: vec![Role::Data, Role::Data],
        fixed: vec![false, false],
        read: vec![true, true],
        packing: Vec::new(),
        updates: 0,
        shared: Vec::new(),
        batch: None,
        failing: Vec::new(),
    }
}

fn measure(function: &Function, lanes: usize, threads: usize) -> Result<Peak> {
    let mut memory: Vec<f32> = Vec::new();
    memory.try_reserve_exact(FLOATS).map_err(|e| {
        Error::new(Code::OutOfMemory, format!("there is no memory to measure its bandwidth: {e}"))
    })?;
    memory.resize(FLOATS, 0.5);
    let bandwidth = 4.0 * FLOATS as f64 / fastest(function, &memory, threads, 0)?;
    Ok(Peak { operations: operations(function, &memory, lanes, threads, ROUNDS)?, bandwidth })
}

/// Operations in a second, measured over so many rounds of multiply-adds.
fn operations(function: &Function, memory: &[f32], lanes: usize, threads: usize, rounds: i64) -> Result<f64> {
    let count = 2.0 * CHAINS * lanes as f64 * threads as f64 * rounds as f64;
    Ok(count / fastest(function, memory, threads, rounds)?)
}

/// Seconds of the fastest call.
fn fastest(function: &Function, memory: &[f32], threads: usize, rounds: i64) -> Result<f64> {
    let mut sums = vec![0.0_f32; threads];
    let mut best = f64::INFINITY;
    let rounds = [rounds];
    let inputs = [Address::of(&rounds), Address::of(memory)];
    for _ in 0..TRIALS {
        let start = Instant::now();
        function.call(&inputs, &mut [AddressMut::of(&mut sums)], None)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best.max(1e-9))
}
