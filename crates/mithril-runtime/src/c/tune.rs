//! Choosing between the candidates of kernels by measuring them, once for each specification on each processor.
//!
//! A program with one step of each specification is compiled with the first candidates, with the second ones, and so on,
//! and its steps are measured as `profile` does. What was the fastest is kept in the cache, so that later compilations
//! take the same.

use std::time::{Duration, Instant};

use mithril_compile::c::{COptions, CRequest, CSource, Choices, TuningTask, compile_c};
use mithril_ir::{DType, Graph, Result};

use super::array::{Address, AddressMut};
use super::cache::Cache;
use super::call::{Function, Interface, TensorSpec};
use super::compiler::{Compiler, Tool};
use super::program::SECONDS;

/// How long one round of candidates is measured, besides its first run.
const TIME: Duration = Duration::from_millis(300);

/// Runs of a round, of which the shortest time of each step counts.
const MOST_RUNS: usize = 20;

/// Bytes of the numbers that are computed with: small ones in every dtype.
const FILL: u8 = 0x3c;

/// The fastest candidates of the kernels of a graph.
pub fn tune(graph: &Graph, request: &CRequest) -> Result<Choices> {
    // What is measured changes no memory of the caller.
    let options = COptions { in_place: false, ..request.options.clone() };
    let request = &CRequest { options, ..request.clone() };
    let (tool, cache, threads) = (&Tool::of(&request.options), &Cache::default(), request.options.threads());
    let tuning_tasks = compile_c(graph, request)?.tuning_tasks;
    let compiler = Compiler::find(tool)?.identity();
    let threads_text = threads.to_string();
    let key =
        |specification: &str| ["candidate", &*compiler, &*threads_text, specification].map(str::to_owned);
    let read = |specification: &str| cache.text(&key(specification).each_ref().map(String::as_str));
    let mut choices = Choices::new();
    let mut open = Vec::new();
    for task in tuning_tasks {
        match read(&task.specification).filter(|name| task.candidates.contains(name)) {
            Some(name) => drop(choices.insert(task.specification, name)),
            None => open.push(task),
        }
    }
    if open.is_empty() {
        return Ok(choices);
    }
    for (specification, name) in measure(graph, request, &open, &choices, (tool, cache, threads))? {
        cache.keep_text(&key(&specification).each_ref().map(String::as_str), &name);
        choices.insert(specification, name);
    }
    Ok(choices)
}

/// Measures round after round; the candidates of the round in which each step was the fastest.
fn measure(
    graph: &Graph,
    request: &CRequest,
    open: &[TuningTask],
    known: &Choices,
    (tool, cache, threads): (&Tool, &Cache, usize),
) -> Result<Choices> {
    let rounds = open.iter().map(|task| task.candidates.len()).max().unwrap_or(0);
    let only: Vec<String> = open.iter().map(|task| task.specification.clone()).collect();
    // Of each step: its time, and what was chosen in it.
    let mut best: Vec<(String, f64, Choices)> = Vec::new();
    for round in 0..rounds {
        let mut choices = known.clone();
        for task in open {
            let name = &task.candidates[round % task.candidates.len()];
            choices.insert(task.specification.clone(), name.clone());
        }
        let request =
            CRequest { profile: true, choices: choices.clone(), only: only.clone(), ..request.clone() };
        let source = compile_c(graph, &request)?;
        let mut interface = Interface::of(&source, &request.options.prefix);
        let shape = vec![source.costs.len()];
        interface.outputs.push(TensorSpec { name: SECONDS.into(), dtype: DType::F64, shape });
        let function = Function::new(tool, cache, &source.c, interface, threads)?;
        for (step, seconds) in source.costs.iter().zip(time(&function, &source)?) {
            let Some(first) = step.tuning_keys.first() else { continue };
            let chosen: Choices = step
                .tuning_keys
                .iter()
                .filter(|specification| !known.contains_key(*specification))
                .filter_map(|s| {
                    let name = choices.get(s)?;
                    Some((s.clone(), name.clone()))
                })
                .collect();
            match best.iter_mut().find(|(s, ..)| s == first) {
                Some(entry) if entry.1 <= seconds => {}
                Some(entry) => *entry = (first.clone(), seconds, chosen),
                None => best.push((first.clone(), seconds, chosen)),
            }
        }
    }
    Ok(best.into_iter().rev().flat_map(|(.., chosen)| chosen).collect())
}

/// Shortest time of each step.
fn time(function: &Function, source: &CSource) -> Result<Vec<f64>> {
    let word = f64::from_ne_bytes([FILL; 8]);
    let memory = |buffers: &[TensorSpec]| -> Vec<Vec<f64>> {
        buffers.iter().map(|b| vec![word; b.bytes().div_ceil(8)]).collect()
    };
    let interface = function.interface();
    let (inputs, mut outputs) = (memory(&interface.inputs), memory(&interface.outputs));
    let addresses: Vec<Address<'_>> = inputs.iter().map(|words| Address::of(words)).collect();
    let packed = function.pack(&addresses)?;
    // Memory that was never written is no memory yet, and reading it would be too fast.
    function.fill_arena(FILL)?;
    let mut times = vec![f64::INFINITY; source.costs.len()];
    let mut start = Instant::now();
    for run in 0..=MOST_RUNS {
        let mut taken: Vec<AddressMut<'_>> = outputs.iter_mut().map(|words| AddressMut::of(words)).collect();
        function.call(&addresses, &mut taken, packed.as_ref())?;
        if run == 0 {
            start = Instant::now();
            continue;
        }
        let Some(seconds) = outputs.last() else { break };
        for (best, now) in times.iter_mut().zip(seconds) {
            *best = best.min(*now);
        }
        if start.elapsed() > TIME {
            break;
        }
    }
    Ok(times)
}
