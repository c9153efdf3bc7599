//! Properties of passes on random programs.

use mithril::codegen::python::{EVALUATE, Function, NUMPY, Results, emit};
use mithril::compile::passes::dce::dce;
use mithril::compile::passes::differentiate::{Request, differentiate};
use mithril::compile::passes::legalize::legalize;
use mithril::compile::passes::precision::precision;
use mithril::compile::pipeline::{OPTIMIZE, Pass, Target, lower, optimize};
use mithril::compile::python::Python;
use mithril::ir::graph::Graph;
use mithril::ir::tensor::{Scalar, Tensor};
use mithril::ir::{DType, interp, text, verify};
use mithril_testing::program::{Program, Style};
use mithril_testing::random::{self, Check, request};
use mithril_testing::{gradient, tolerance};

const F32: DType = DType::F32;
const F64: DType = DType::F64;

/// Runs `check` on random programs; the extra bytes decide what else is random.
fn for_programs(cases: u32, style: Style, float: DType, check: impl Fn(&Program, &[u8]) -> Check) {
    let longest = if style == Style::Any { 24 } else { 10 };
    random::for_programs(cases, (style, 0..longest), float, check);
}

fn said<T>(result: mithril::ir::Result<T>, stage: &str) -> Result<T, String> {
    result.map_err(|e| format!("{stage}: {e}"))
}

/// Equal bit for bit; a NaN is a NaN.
fn equal(a: &Tensor, b: &Tensor) -> bool {
    let same = |i| match (a.get(i), b.get(i)) {
        (Scalar::Float(x), Scalar::Float(y)) => x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan(),
        (x, y) => x == y,
    };
    a.dtype() == b.dtype() && a.shape() == b.shape() && (0..a.len()).all(same)
}

/// A graph that has to mean the same as the program, bit for bit.
fn same(program: &Program, graph: &Graph, stage: &str) -> Check {
    compare(program, graph, stage, equal)
}

fn compare(program: &Program, graph: &Graph, stage: &str, agree: impl Fn(&Tensor, &Tensor) -> bool) -> Check {
    // A program that fails when running may fail or not afterwards: dead code is gone.
    let Ok(expected) = interp::run(&program.graph, &program.inputs) else { return Ok(()) };
    let actual = said(interp::run(graph, &program.inputs), stage)?;
    if actual.len() != expected.len() {
        return Err(format!("{stage}: {} results, not {}", actual.len(), expected.len()));
    }
    for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
        if !agree(actual, expected) {
            return Err(format!("{stage}: result {i} is {actual}, not {expected}\n{}", text::print(graph)));
        }
    }
    Ok(())
}

fn verified(graph: &Graph, float: DType, stage: &str) -> Check {
    said(verify::verify(graph, float), stage).map_err(|e| format!("{e}\n{}", text::print(graph)))
}

#[test]
fn programs_are_typed_and_most_of_them_run() {
    let ran = std::cell::Cell::new((0, 0));
    for_programs(200, Style::Any, F32, |program, _| {
        verified(&program.graph, F32, "build")?;
        let (all, fine) = ran.get();
        let runs = interp::run(&program.graph, &program.inputs).is_ok();
        ran.set((all + 1, fine + i32::from(runs)));
        Ok(())
    });
    let (all, fine) = ran.get();
    assert!(fine * 10 > all * 7, "only {fine} of {all} programs run");
}

#[test]
fn every_pass_keeps_every_bit() {
    for_programs(400, Style::Any, F32, |program, _| {
        for (name, pass) in OPTIMIZE {
            let graph = said(pass(&program.graph), name)?;
            verified(&graph, F32, name)?;
            same(program, &graph, name)?;
        }
        Ok(())
    });
}

#[test]
fn passes_in_any_order_keep_every_bit() {
    for_programs(400, Style::Any, F32, |program, order| {
        let mut graph = program.graph.clone();
        let mut names = String::new();
        for &choice in order {
            let (name, pass) = OPTIMIZE[choice as usize % OPTIMIZE.len()];
            names = format!("{names} {name}");
            graph = said(pass(&graph), &names)?;
            verified(&graph, F32, &names)?;
        }
        same(program, &graph, &names)
    });
}

#[test]
fn passes_do_not_grow_graphs() {
    for_programs(400, Style::Any, F32, |program, order| {
        let apply = |pass: Pass, graph: &Graph| said(pass(graph), "pass");
        let mut graph = program.graph.clone();
        for &choice in order {
            graph = apply(OPTIMIZE[choice as usize % OPTIMIZE.len()].1, &graph)?;
        }
        for &(name, pass) in OPTIMIZE {
            let once = apply(pass, &graph)?;
            let twice = apply(pass, &once)?;
            let sizes = [&graph, &once, &twice].map(|g| g.nodes().len());
            if !sizes.is_sorted_by(|a, b| a >= b) {
                return Err(format!("{name}: {sizes:?} nodes"));
            }
        }
        Ok(())
    });
}

#[test]
fn expansions_of_what_has_no_evaluation_keep_every_bit() {
    // The evaluation of such an op is its expansion.
    for_programs(300, Style::Any, F32, |program, _| {
        let is_evaluated = |g: &Graph, n| g.node(n).op.eval.is_some();
        let graph = said(legalize(&program.graph, F32, &is_evaluated), "legalize")?;
        verified(&graph, F32, "legalize")?;
        if let Some((_, node)) = graph.nodes().find(|(_, node)| node.op.eval.is_none()) {
            // What is refused while expanding stays until dead code is removed.
            let live = said(dce(&graph), "dce")?;
            if live.nodes().any(|(_, other)| other.op == node.op) {
                return Err(format!("{} is left", node.op.name));
            }
        }
        same(program, &graph, "legalize")
    });
}

/// A target that writes nothing but primitives.
struct Primitives;

impl Target for Primitives {
    fn name(&self) -> &'static str {
        "primitives"
    }
    fn can_lower(&self, graph: &Graph, n: mithril::ir::NodeId) -> bool {
        graph.node(n).op.expand.is_none()
    }
}

#[test]
fn lowered_graphs_agree_within_tolerance() {
    let targets: [&dyn Target; 2] = [&Primitives, &Python(&NUMPY)];
    for_programs(200, Style::Smooth, F32, |program, _| {
        for target in targets {
            let graph = said(lower(&program.graph, target, F32, &mut |_, _| {}), target.name())?;
            verified(&graph, F32, target.name())?;
            compare(program, &graph, target.name(), |actual, expected| {
                tolerance::error(actual, expected, Some(tolerance::magnitude(expected).max(1.0))) <= 8.0
            })?;
        }
        Ok(())
    });
}

#[test]
fn text_reads_back_as_it_was() {
    for_programs(400, Style::Any, F32, |program, _| {
        let printed = text::print(&program.graph);
        let graph = said(text::parse(&printed), "parse")?;
        let again = text::print(&graph);
        if again != printed {
            return Err(format!("printed again it is\n{again}"));
        }
        verified(&graph, F32, "parse")?;
        same(program, &graph, "parse")
    });
}

/// The program with the gradients of all float outputs by all float inputs.
fn with_gradients(program: &Program, float: DType) -> Result<Program, String> {
    said(random::with_gradients(program, &request(&program.graph), float), "differentiate")
}

#[test]
fn mixed_precision_keeps_types_in_and_out() {
    let types = |graph: &Graph| {
        let read = graph.inputs.iter().chain(graph.outputs.values());
        read.map(|&v| graph.ty(v).cloned()).collect::<Vec<_>>()
    };
    for_programs(300, Style::Any, F32, |program, choice| {
        let all = [DType::F16, DType::BF16, F64];
        let compute = all[choice.first().map_or(0, |&c| c as usize % all.len())];
        let graph = said(precision(&program.graph, F32, compute), "precision")?;
        verified(&graph, F32, "precision")?;
        if types(&graph) != types(&program.graph) {
            return Err(format!("types change\n{}", text::print(&graph)));
        }
        if interp::run(&program.graph, &program.inputs).is_ok() {
            let mixed = Program { graph, inputs: program.inputs.clone() };
            said(interp::run(&mixed.graph, &mixed.inputs), "run")?;
            let graph = with_gradients(&mixed, F32)?.graph;
            verified(&graph, F32, "differentiate")?;
            let expected = types(&with_gradients(program, F32)?.graph);
            if types(&graph) != expected {
                return Err(format!("types of gradients change\n{}", text::print(&graph)));
            }
        }
        Ok(())
    });
}

#[test]
fn computing_wider_changes_roundings_only() {
    for_programs(200, Style::Smooth, F32, |program, _| {
        let graph = said(precision(&program.graph, F32, F64), "precision")?;
        compare(program, &graph, "precision", |actual, expected| {
            tolerance::error(actual, expected, Some(tolerance::magnitude(expected).max(1.0))) <= 8.0
        })
    });
}

#[test]
fn gradients_agree_with_differences() {
    for_programs(150, Style::Smooth, F64, |program, _| {
        match said(gradient::check_graph(&program.graph, &program.inputs, "program"), "check")? {
            Some(error) if error > 1.0 => Err(format!("{error:.1} times the allowed difference")),
            _ => Ok(()),
        }
    });
}

#[test]
fn optimized_gradients_keep_every_bit() {
    for_programs(200, Style::Any, F32, |program, _| {
        if interp::run(&program.graph, &program.inputs).is_err() {
            return Ok(());
        }
        let program = with_gradients(program, F32)?;
        verified(&program.graph, F32, "differentiate")?;
        let graph = said(optimize(program.graph.clone(), F32, &mut |_, _| {}), "optimize")?;
        same(&program, &graph, "optimize")
    });
}

#[test]
fn results_computed_again_keep_every_bit() {
    let again = std::cell::Cell::new(0);
    for_programs(400, Style::Any, F32, |program, _| {
        if interp::run(&program.graph, &program.inputs).is_err() {
            return Ok(());
        }
        let expected = with_gradients(program, F32)?;
        let request = Request { recompute: true, ..request(&program.graph) };
        let graph = said(differentiate(&program.graph, &request, F32), "recompute")?;
        verified(&graph, F32, "recompute")?;
        same(&expected, &graph, "recompute")?;
        let graph = said(optimize(graph, F32, &mut |_, _| {}), "optimize")?;
        again.set(again.get() + i32::from(graph.nodes().any(|(_, node)| node.op.name == "barrier")));
        same(&expected, &graph, "optimize")
    });
    assert!(again.get() > 50, "only {} programs compute anything again", again.get());
}

#[test]
fn gradients_of_optimized_graphs_agree() {
    for_programs(150, Style::Smooth, F64, |program, _| {
        let expected = with_gradients(program, F64)?;
        let graph = said(optimize(program.graph.clone(), F64, &mut |_, _| {}), "optimize")?;
        let actual = with_gradients(&Program { graph, inputs: program.inputs.clone() }, F64)?;
        // Cotangents add up in another order.
        compare(&expected, &actual.graph, "differentiate", |actual, expected| {
            tolerance::error(actual, expected, Some(tolerance::magnitude(expected).max(1.0)))
                <= tolerance::GRADIENT
        })
    });
}

/// Everything that is printed on the way to a source for NumPy.
fn stages(program: &Program) -> Result<String, String> {
    let mut all = String::new();
    let mut observe = |stage: &str, graph: &Graph| all.extend([stage, "\n", &text::print(graph)]);
    let graph = said(optimize(program.graph.clone(), F32, &mut observe), "optimize")?;
    let gradients = said(differentiate(&graph, &request(&graph), F32), "differentiate")?;
    observe("differentiate", &gradients);
    let graph = said(lower(&graph, &Python(&NUMPY), F32, &mut observe), "lower")?;
    let function = Function {
        name: "evaluate",
        graph: &graph,
        arguments: EVALUATE,
        results: Results::Dict,
        donated: &[],
        foreach: false,
    };
    Ok(all + &said(emit(&NUMPY, &[function]), "emit")?.text)
}

#[test]
fn equal_programs_become_equal_sources() {
    for_programs(150, Style::Any, F32, |program, _| {
        let read = said(text::parse(&text::print(&program.graph)), "parse")?;
        let first = stages(program)?;
        let twin = Program { graph: program.graph.clone(), inputs: Vec::new() };
        if stages(&twin)? != first {
            return Err("the second time it becomes something else".into());
        }
        // Nor do the indices of values matter, which a graph read from text has others of.
        let parsed = Program { graph: read, inputs: Vec::new() };
        if stages(&parsed)? != first {
            return Err("read from its text it becomes something else".into());
        }
        Ok(())
    });
}
