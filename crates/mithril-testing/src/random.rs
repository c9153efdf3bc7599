//! Checks of properties on many random programs. What is always run is the same; `PROPTEST_CASES` and
//! `PROPTEST_RNG_SEED` ask for more and for other programs. A failure shrinks to the steps that matter, which are printed
//! with the program that they build.

use std::ops::Range;
use std::sync::Arc;

use mithril::compile::passes::differentiate::{Request, differentiate};
use mithril::ir::error::{Error, Result};
use mithril::ir::graph::{Def, Graph, Role};
use mithril::ir::tensor::{Scalar, Tensor};
use mithril::ir::{DType, interp, text};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use crate::program::{Program, Step, Style, build};

/// What a check says: why it failed.
pub type Check = std::result::Result<(), String>;

/// Runs `check` on so many random programs of so many steps; the extra bytes decide what else is random.
///
/// # Panics
/// If a check fails.
pub fn for_programs(
    cases: u32,
    (style, steps): (Style, Range<usize>),
    float: DType,
    check: impl Fn(&Program, &[u8]) -> Check,
) {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(1);
    }
    let seed = config.rng_seed;
    let strategy = (vec(any::<Step>(), steps), vec(any::<u8>(), 0..6));
    let result = TestRunner::new(config).run(&strategy, |(steps, extra)| {
        check(&build(&steps, style, float), &extra).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, (steps, extra))) => {
            let graph = text::print(&build(&steps, style, float).graph);
            panic!("{reason}\n{seed:?}, extra {extra:?}, steps {steps:?}\n{graph}");
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// Gradients of all float outputs by all float inputs.
pub fn request(graph: &Graph) -> Request {
    let is_float = |v| graph.ty(v).is_some_and(|t| t.dtype.is_float());
    let inputs = graph.inputs.iter().filter(|&&v| is_float(v)).filter_map(|&v| graph.value(v).name.clone());
    let outputs = graph.outputs.iter().filter(|(_, v)| is_float(**v)).map(|(name, _)| name.clone());
    Request { outputs: outputs.collect(), inputs: inputs.collect(), recompute: false }
}

/// The program with those gradients, and with cotangents among its inputs. It has to run.
///
/// # Errors
/// If it does not run, or has no gradient.
pub fn with_gradients(program: &Program, request: &Request, float: DType) -> Result<Program> {
    let graph = differentiate(&program.graph, request, float)?;
    let forward = interp::run(&program.graph, &program.inputs)?;
    let mut inputs = program.inputs.clone();
    for &v in &graph.inputs {
        let value = graph.value(v);
        if !matches!(value.def, Def::Input(Role::Cotangent)) {
            continue;
        }
        let at = program.graph.outputs.get_index_of(value.name.as_deref().unwrap_or_default());
        let like = &forward[at.ok_or_else(|| Error::internal("a cotangent of nothing"))?];
        let scalar = |i| Scalar::Float(0.5 + 0.25 * (i % 4) as f64);
        inputs.push(Arc::new(Tensor::build(like.dtype(), like.shape(), scalar)));
    }
    Ok(Program { graph, inputs })
}
