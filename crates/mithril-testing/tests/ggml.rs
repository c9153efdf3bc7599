//! Every row on ggml, against the interpreter: all cases of all ops are one plan.

use std::sync::Arc;

use mithril::compile::ggml::{Ggml, Options as PlanOptions, plan};
use mithril::compile::pipeline::lower;
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::op::Tolerance;
use mithril::ir::tensor::Tensor;
use mithril::ir::{Shape, ops};
use mithril::runtime::ggml::program::interface;
use mithril::runtime::ggml::{Function, Options};
use mithril_testing::case::{Arg, Case, cases};
use mithril_testing::{run, tolerance};

/// All cases of all ops.
fn all_cases(float: DType) -> Vec<Case> {
    let all = ops::all().flat_map(|op| cases(op, float).expect("cases"));
    all.filter(|case| run::graph_of(case, float).is_ok() && run::run(case, float).is_ok()).collect()
}

/// One graph of all cases, its inputs, and for each case how many outputs it has.
fn one_graph(cases: &[Case], float: DType) -> (Graph, Vec<Arc<Tensor>>, Vec<usize>) {
    let mut b = Builder::new(float);
    let (mut inputs, mut counts) = (Vec::new(), Vec::new());
    for (n, case) in cases.iter().enumerate() {
        let args: Vec<_> = case
            .args
            .iter()
            .enumerate()
            .map(|(i, arg)| match arg {
                Arg::Lit(lit) => b.lit(lit.clone()),
                Arg::Tensor(t) => {
                    let ty = TensorType { dtype: t.dtype(), shape: Shape::of(t.shape().iter().copied()) };
                    let name = format!("{}{n}.x{}", case.op.name, inputs.len());
                    inputs.push(Arc::new(t.clone()));
                    // Weights come after the data that they are applied to.
                    b.graph.add_input(name, if i == 0 { Role::Data } else { Role::Param }, ty)
                }
            })
            .collect();
        let outputs = b.push(case.op, &args).expect("a case");
        counts.push(outputs.len());
        for (i, v) in outputs.into_iter().enumerate() {
            b.graph.outputs.insert(format!("{}{n}.y{i}", case.op.name).into(), v);
        }
    }
    (b.graph, inputs, counts)
}

/// The function of a graph.
fn function(graph: &Graph, float: DType, options: &Options) -> Function {
    let lowered = lower(graph, &Ggml, float, &mut |_, _| {}).expect("lowering");
    let plan = plan(&lowered, &PlanOptions { pack: options.pack, elements: None }).expect("a plan");
    if let Ok(path) = std::env::var("MITHRIL_TEST_KEEP") {
        std::fs::write(format!("{path}.{float}.plan"), plan.to_string()).expect("the plan");
    }
    let interface = interface(&lowered, &plan).expect("an interface");
    Function::new(plan, interface, options.pack, options.threads(), options.memory_limit)
        .unwrap_or_else(|e| panic!("{e}"))
}

fn agrees(good: &[Case], float: DType, options: &Options) {
    let (graph, inputs, counts) = one_graph(good, float);
    let found = function(&graph, float, options).run(&inputs).unwrap_or_else(|e| panic!("{e}"));
    let mut found = found.iter();
    let mut failures = Vec::new();
    for (case, count) in good.iter().zip(counts) {
        let wanted = run::run(case, float).expect("the interpreter");
        for (b, a) in wanted.iter().zip(found.by_ref().take(count)) {
            let allowed = match case.op.tolerance {
                Tolerance::Exact => 0.0,
                Tolerance::Random => tolerance::units(Tolerance::Elementwise),
                // Expansions are rounded once per op.
                class => 4.0 * tolerance::units(class).max(4.0),
            };
            let error = tolerance::error(a, b, Some(tolerance::magnitude(b).max(1.0)));
            if error > allowed {
                failures.push(format!("{} {:?}: differs by {error} epsilon", case.op.name, case.text));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn float32_agrees_with_the_interpreter() {
    agrees(&all_cases(DType::F32), DType::F32, &Options { threads: 2, ..Options::default() });
}

#[test]
fn packed_float32_agrees_with_the_interpreter() {
    agrees(&all_cases(DType::F32), DType::F32, &Options { pack: true, ..Options::default() });
}

#[test]
fn float64_agrees_with_the_interpreter() {
    agrees(&all_cases(DType::F64), DType::F64, &Options::default());
}

#[test]
fn float16_agrees_with_the_interpreter() {
    agrees(&all_cases(DType::F16), DType::F16, &Options::default());
}
