//! Every op definition of the registry: complete, consistent with itself, and with the right gradient.

use mithril::compile::passes;
use mithril::ir::dtype::DType;
use mithril::ir::op::{Grad, OpDef, ShapeRule, Tolerance};
use mithril::ir::{interp, ops, verify};
use mithril_testing::{case, gradient, run, tolerance};

/// Runs `check` for every case of every op and reports all failures at once.
fn for_each_case(float: DType, check: impl Fn(&case::Case) -> Result<(), String>) {
    let mut failures = Vec::new();
    for op in ops::all() {
        match case::cases(op, float) {
            Ok(cases) => {
                for case in &cases {
                    if let Err(message) = check(case) {
                        failures.push(format!("{} {:?}: {message}", op.name, case.text));
                    }
                }
            }
            Err(error) => failures.push(format!("{}: {error}", op.name)),
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn definitions_are_complete() {
    let mut names = std::collections::BTreeMap::new();
    for op in ops::all() {
        assert!(op.doc.len() > 10 && op.doc.contains('.'), "{} has no documentation", op.name);
        assert!(op.eval.is_some() || op.expand.is_some(), "{} has neither evaluation nor expansion", op.name);
        assert!(op.expand.is_some() || !matches!(op.grad, Grad::Expansion), "{} has no gradient", op.name);
        assert!(op.expand.is_some() || !matches!(op.shape, ShapeRule::Expansion), "{} has no shape", op.name);
        for name in std::iter::once(&op.name).chain(op.aliases) {
            let other = names.insert(*name, op.name);
            assert!(other.is_none(), "{name} names both {} and {}", op.name, other.unwrap_or_default());
        }
    }
}

#[test]
fn evaluation_agrees_with_inference() {
    for_each_case(DType::F32, |case| {
        let (graph, inputs) = run::graph_of(case, DType::F32).map_err(|e| e.to_string())?;
        verify::verify(&graph, DType::F32).map_err(|e| e.to_string())?;
        interp::run(&graph, &inputs).map(|_| ()).map_err(|e| e.to_string())
    });
}

#[test]
fn expansion_means_the_same_as_evaluation() {
    for_each_case(DType::F64, |case| {
        if case.op.eval.is_none() || case.op.expand.is_none() || case.op.tolerance == Tolerance::Random {
            return Ok(());
        }
        let (graph, inputs) = run::graph_of(case, DType::F64).map_err(|e| e.to_string())?;
        let only = |op: &'static OpDef| op != case.op;
        let expanded = passes::legalize::legalize(&graph, DType::F64, &|g, n| only(g.node(n).op))
            .map_err(|e| e.to_string())?;
        let expected = interp::run(&graph, &inputs).map_err(|e| e.to_string())?;
        let actual = interp::run(&expanded, &inputs).map_err(|e| e.to_string())?;
        for (a, b) in actual.iter().zip(&expected) {
            // Both are rounded, and the expansion once per op.
            let allowed = 4.0 * tolerance::units(case.op.tolerance).max(4.0);
            let error = tolerance::error(a, b, Some(tolerance::magnitude(b).max(1.0)));
            if error > allowed {
                return Err(format!("differs by {error} epsilon"));
            }
        }
        Ok(())
    });
}

/// Whether an op has another gradient than its slope, which is what it is for.
fn has_its_own_gradient(op: &'static OpDef) -> bool {
    [&ops::gradient::STOP_GRADIENT, &ops::gradient::REPLACE_GRADIENT].contains(&op)
}

#[test]
fn gradients_agree_with_differences() {
    for_each_case(DType::F64, |case| match gradient::check(case) {
        Ok(Some(_)) if has_its_own_gradient(case.op) => Ok(()),
        Ok(Some(error)) if error > 1.0 => Err(format!("{error:.1} times the allowed difference")),
        Ok(_) => Ok(()),
        Err(error) if matches!(case.op.grad, Grad::Unsupported(_)) => {
            if error.code() == mithril::ir::Code::NoGradient { Ok(()) } else { Err(error.to_string()) }
        }
        Err(error) => Err(error.to_string()),
    });
}

#[test]
fn second_gradients_agree_with_differences() {
    for_each_case(DType::F64, |case| match gradient::check_second(case) {
        Ok(Some(_)) if has_its_own_gradient(case.op) => Ok(()),
        Ok(Some(error)) if error > 1.0 => Err(format!("{error:.1} times the allowed difference")),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    });
}
