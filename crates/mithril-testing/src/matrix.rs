//! Many cases as one graph, which a target compiles and calls once, and what it gives against the interpreter.

use std::sync::Arc;

use mithril::ir::Shape;
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::op::Tolerance;
use mithril::ir::tensor::Tensor;

use crate::case::{Arg, Case};
use crate::{run, tolerance};

/// The cases of a graph, and its inputs.
#[derive(Debug)]
pub struct Matrix {
    /// One graph of all cases.
    pub graph: Graph,
    /// The tensors of all cases.
    pub inputs: Vec<Arc<Tensor>>,
    cases: Vec<(Case, usize)>,
    float: DType,
}

impl Matrix {
    /// All of these cases, side by side.
    ///
    /// # Panics
    /// If a case is none.
    pub fn new(cases: Vec<Case>, float: DType) -> Self {
        let mut b = Builder::new(float);
        let mut inputs = Vec::new();
        let add = |(n, case): (usize, Case)| {
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
            let outputs =
                b.push(case.op, &args).unwrap_or_else(|e| panic!("{} {}: {e}", case.op.name, case.text));
            let count = outputs.len();
            for (i, v) in outputs.into_iter().enumerate() {
                b.graph.outputs.insert(format!("{}{n}.y{i}", case.op.name).into(), v);
            }
            (case, count)
        };
        let cases = cases.into_iter().enumerate().map(add).collect();
        Self { graph: b.graph, inputs, cases, float }
    }

    /// Compares the outputs of the graph with those of the interpreter, case by case.
    ///
    /// # Panics
    /// If a case differs by more than the tolerance of its op, with the names of all that do.
    pub fn agrees(&self, actual: &[Tensor]) {
        let mut actual = actual.iter();
        let mut failures = Vec::new();
        for (case, count) in &self.cases {
            let expected = run::run(case, self.float).unwrap_or_else(|e| panic!("the interpreter: {e}"));
            let outputs: Vec<&Tensor> = actual.by_ref().take(*count).collect();
            assert_eq!(outputs.len(), expected.len(), "{} {:?}: outputs", case.op.name, case.text);
            for (b, a) in expected.iter().zip(outputs) {
                let allowed = match case.op.tolerance {
                    Tolerance::Exact => 0.0,
                    // The bits are the same; normal numbers are functions of them.
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
}
