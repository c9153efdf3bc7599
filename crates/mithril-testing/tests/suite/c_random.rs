//! Random programs in C against the interpreter: what is fused, split and put into one piece of memory has to stay what it
//! was. What is random besides the program: how many elements its vectors have, whether parameters are packed, the
//! number of threads, how much the C compiler optimizes.

use std::cell::Cell;
use std::sync::Arc;

use mithril::compile::c::{self, C, COptions, CSource, compile_c};
use mithril::compile::passes::differentiate::Request;
use mithril::compile::passes::specialize::specialize;
use mithril::compile::pipeline::lower;
use mithril::ir::interp::Symbols;
use mithril::ir::tensor::{Scalar, Tensor};
use mithril::ir::{Code, DType, Kind, interp, text};
use mithril::runtime::c::{Cache, Function, Interface, Tool};
use mithril_testing::program::{Program, Style};
use mithril_testing::random::{Check, for_programs, request, with_gradients};
use mithril_testing::tolerance;

const F64: DType = DType::F64;

/// Units of epsilon of what was computed on the way: what is told from rounding in doubles is a mistake, and a float32 has
/// fewer digits to lose.
fn units(dtype: DType) -> f64 {
    if dtype == DType::F32 { 1e3 } else { 1e6 }
}

/// Warnings are errors.
const STRICT: &[&str] = &["-Wall", "-Wextra", "-Werror"];

/// The program with every size a number, as C has it: the only symbol is the rows of what is given.
fn with_sizes(program: &Program) -> Result<Program, String> {
    let arguments = program.graph.inputs.iter().zip(&program.inputs);
    let symbols: Symbols = arguments
        .filter_map(|(&v, tensor)| {
            let rows = program.graph.ty(v)?.shape.first()?.as_symbol()?.clone();
            Some((rows, tensor.shape()[0] as i64))
        })
        .collect();
    let graph = specialize(&program.graph, &symbols, F64).map_err(|e| format!("specialize: {e}"))?;
    Ok(Program { graph, inputs: program.inputs.clone() })
}

/// Compares a program; the bytes choose how it is compiled.
fn check(program: &Program, choices: &[u8]) -> Check {
    check_in(program, choices, None).map(drop)
}

/// Compares a program that computes so many rows at a time; the C, if there is some.
fn check_in(program: &Program, choices: &[u8], block: Option<usize>) -> Result<Option<CSource>, String> {
    let Program { graph, inputs } = program;
    let said = |stage: &str, e: &dyn std::fmt::Display| format!("{stage}: {e}");
    let choice = |i: usize| usize::from(choices.get(i).copied().unwrap_or_default());
    // What fails when running may fail or not in C: dead code is gone.
    let Ok(expected) = interp::run(graph, inputs) else { return Ok(None) };
    let lowered = lower(graph, &C, F64, &mut |_, _| {}).map_err(|e| said("lower", &e))?;
    let options = COptions {
        prefix: "random".to_owned(),
        pack: choice(0) % 2 == 1,
        lanes: Some([16, 8, 4, 1][choice(1) % 4]),
        block,
        ..COptions::default()
    };
    let source = match c::request(options).and_then(|request| compile_c(&lowered, &request)) {
        Err(e) if block.is_some() && [Code::Unsupported, Code::BadArgument].contains(&e.code()) => {
            return Ok(None);
        }
        result => result.map_err(|e| said("C", &e))?,
    };
    let level = ["-O1", "-O1", "-O3"][choice(2) % 3];
    // A user may build an export without it.
    let without = ["-fopenmp-simd", "-fno-openmp-simd"][choice(4) % 2];
    let flags = STRICT.iter().chain(&[level, without]).map(ToString::to_string).collect();
    let tool = Tool { flags, ..Tool::default() };
    let folder = tempfile::tempdir().map_err(|e| said("a folder", &e))?;
    let interface = Interface::of(&source, "random");
    let threads = 1 + choice(3) % 3;
    let function = Function::new(&tool, &Cache::at(folder.path()), &source.c, interface, threads)
        .map_err(|e| said("compiling", &e))?;
    let actual = function.run(inputs).map_err(|e| said("running", &e))?;
    if actual.len() != expected.len() {
        return Err(said("C", &format!("{} results, not {}", actual.len(), expected.len())));
    }
    for (i, (a, b)) in actual.iter().zip(&expected).enumerate() {
        let error = tolerance::error(a, b, Some(tolerance::magnitude(b).max(1.0)));
        if a.dtype() != b.dtype() || error > units(b.dtype()) {
            let stages = source.stages.iter().map(|(name, text)| format!("{name}\n{text}\n"));
            return Err(format!("result {i} is {a}, not {b}\n{}", stages.collect::<String>()));
        }
    }
    Ok(Some(source))
}

/// Rows that never meet are computed one or several at a time: what is said to be independent must be.
#[test]
fn programs_in_blocks_of_rows_agree_with_the_interpreter() {
    let (divided, tried) = (Cell::new(0), Cell::new(0));
    for_programs(150, (Style::Any, 2..10), F64, |program, choices| {
        let program = with_sizes(program)?;
        for name in program.graph.outputs.keys() {
            let mut one = program.clone();
            one.graph.updates.clear();
            one.graph.outputs.retain(|other, _| other == name);
            let block = 1 + usize::from(choices.get(4).copied().unwrap_or_default()) % 2;
            tried.set(tried.get() + 1);
            let source = check_in(&one, choices, Some(block))?;
            divided.set(divided.get() + usize::from(source.is_some_and(|s| s.c.contains("; tile < "))));
        }
        Ok(())
    });
    assert!(divided.get() * 20 > tried.get(), "{} of {}", divided.get(), tried.get());
}

#[test]
fn programs_agree_with_the_interpreter() {
    for_programs(60, (Style::Any, 8..24), F64, |program, choices| check(&with_sizes(program)?, choices));
}

/// Products whose factors are made of other products, with kernels and parts.
#[test]
fn programs_of_products_agree_with_the_interpreter() {
    let (kernels, parts) = (Cell::new(0), Cell::new(0));
    for (cases, float) in [(15, F64), (45, DType::F32)] {
        for_programs(cases, (Style::Products, 6..20), float, |program, choices| {
            let source = check_in(program, choices, None)?;
            let stages = source.iter().flat_map(|source| &source.stages);
            let text = stages.filter(|(name, _)| name == "kernel_selection").map(|(_, text)| text.as_str());
            let text = text.collect::<String>();
            kernels.set(kernels.get() + text.matches(" product(").count());
            parts.set(parts.get() + text.matches("for each of").count());
            Ok(())
        });
    }
    assert!(kernels.get() > 60 && parts.get() > 0, "{} kernels, {} parts", kernels.get(), parts.get());
}

/// Optimized as ours are: what compilers make of short loops depends on how many iterations they have.
#[test]
fn programs_of_moves_agree_with_the_interpreter() {
    for (cases, float) in [(30, F64), (15, DType::F32)] {
        for_programs(cases, (Style::Moves, 4..20), float, |program, choices| {
            let [pack, lanes, threads, without] =
                [0, 1, 3, 4].map(|i| choices.get(i).copied().unwrap_or_default());
            check(program, &[pack, lanes, 2, threads, without])
        });
    }
}

/// With the gradients of all float outputs by all float inputs.
#[test]
fn gradients_of_programs_agree_with_the_interpreter() {
    for (cases, style) in [(30, Style::Smooth), (10, Style::Moves)] {
        for_programs(cases, (style, 8..24), F64, |program, choices| {
            let program = with_sizes(program)?;
            if interp::run(&program.graph, &program.inputs).is_err() {
                return Ok(());
            }
            let recompute = choices.get(4).is_some_and(|c| c % 2 == 1);
            let request = Request { recompute, ..request(&program.graph) };
            check(&with_gradients(&program, &request, F64).map_err(|e| e.to_string())?, choices)
        });
    }
}

/// What random programs found, made as short as it goes.
const FOUND: &[&str] = &[
    // GCC 12 made vectors of the reads of all iterations of the short loop, and chose for all of them as for the first.
    "data %0 \"x\": f64[2, 3]
     %1: f64[2, 3] = negative(%0) in \"\"
     %2: f64[4, 5] = pad(%1, ((2, 0), (2, 0)), \"constant\", 0.0) in \"\"
     %3: f64[4, 5, 1] = reshape(%2, (4, 5, 1)) in \"\"
     %4: f64[4, 5] = max(%3, -1, false) in \"\"
     return \"last\" = %4",
    // Compilers warn of integers that are compared with themselves.
    "data %0 \"x\": i64[2, 3]
     data %1 \"mask\": bool[2, 3]
     %2: bool[2, 3] = less(%0, %0) in \"\"
     %3: i64[2, 3] = maximum(%0, %0) in \"\"
     %4: bool[2, 3] = equal(%1, %1) in \"\"
     return \"less\" = %2
     return \"maximum\" = %3
     return \"equal\" = %4",
    // A position that is a sum, of which one element is read whatever it is: the cast was of its first part alone.
    "data %0 \"x\": f64[2, 3]
     data %1 \"y\": i32[2, 3]
     %2: f64[2, 3] = cast(%1, f64) in \"\"
     %3: f64[2, 2, 3] = stack(0, %0, %2) in \"\"
     %4: f64[2, 2, 3] = negative(%3) in \"\"
     %5: i32[] = cast(i64[]{0}, i32) in \"\"
     %6: i32[] = subtract(%5, 2) in \"\"
     %7: f64[2, 3] = take(%4, %6, -3) in \"\"
     return \"last\" = %7",
];

#[test]
fn programs_that_were_wrong_agree_with_the_interpreter() {
    for lines in FOUND {
        let graph = text::parse(&format!("graph {{\n{lines}\n}}\n")).expect("a graph");
        let types = graph.inputs.iter().filter_map(|&v| graph.ty(v));
        let inputs = types.map(|ty| {
            let shape: Vec<usize> = ty.shape.iter().filter_map(|d| Some(d.known()? as usize)).collect();
            Arc::new(Tensor::build(ty.dtype, &shape, |i| match ty.dtype.kind() {
                Kind::Float => Scalar::Float(1.5 - i as f64),
                Kind::Int => Scalar::Int(i as i128 % 3),
                Kind::Bool => Scalar::Bool(i % 2 == 0),
            }))
        });
        let program = Program { inputs: inputs.collect(), graph: graph.clone() };
        for choices in [[0, 0, 2], [0, 1, 2], [0, 0, 0]] {
            check(&program, &choices).unwrap_or_else(|e| panic!("{e}\n{}", text::print(&graph)));
        }
    }
}
