//! Running single ops in tests, and an independent check of gradient formulas.

use std::sync::Arc;

use crate::build::Builder;
use crate::dtype::DType;
use crate::error::Result;
use crate::formula::GradCx;
use crate::graph::{Role, TensorType};
use crate::interp;
use crate::literal::Lit;
use crate::op::{Grad, OpDef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Runs an op on literals; tensors are literals too.
pub fn run(op: &'static OpDef, args: &[Lit]) -> Result<Vec<Arc<Tensor>>> {
    let mut builder = Builder::default();
    let ids: Vec<_> = args.iter().map(|lit| builder.lit(lit.clone())).collect();
    for (i, v) in builder.push(op, &ids)?.into_iter().enumerate() {
        builder.graph.outputs.insert(i.to_string().into(), v);
    }
    interp::run(&builder.graph, &[])
}

/// First output of [`run`].
pub fn first(op: &'static OpDef, args: &[Lit]) -> Tensor {
    match run(op, args) {
        Ok(out) => (*out[0]).clone(),
        Err(error) => panic!("{error}"),
    }
}

/// The message of the error that the op returns; it must have a help.
pub fn refusal(op: &'static OpDef, args: &[Lit]) -> String {
    let error = run(op, args).expect_err("an error");
    assert!(error.hint().is_some(), "no help in {error}");
    error.to_string()
}

/// The output's type for inputs of symbolic shape; the other arguments are literals.
pub fn infer(op: &'static OpDef, shapes: &[Shape], more: &[Lit]) -> Result<TensorType> {
    let mut builder = Builder::default();
    let mut ids = Vec::new();
    for shape in shapes {
        let ty = TensorType { dtype: DType::F32, shape: shape.clone() };
        ids.push(builder.graph.add_input("x", Role::Data, ty));
    }
    ids.extend(more.iter().map(|lit| builder.lit(lit.clone())));
    let out = builder.push(op, &ids)?[0];
    // The expansion must be able to infer the type too.
    if op.expand.is_some() {
        let expanded = builder.expand(op, &ids)?[0];
        assert_eq!(builder.graph.ty(out), builder.graph.ty(expanded), "the expansion of {}", op.name);
    }
    Ok(builder.graph.ty(out).cloned().unwrap_or_else(|| panic!("{} has no type", op.name)))
}

/// Distinct pseudo-random numbers between -1 and 1.
pub fn noise(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    Tensor::build(DType::F64, shape, |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f64 / f64::from(1_u32 << 30) - 1.0).into()
    })
}

/// Asserts that numbers agree to 1e-9 of the largest.
pub fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(1.0_f64, |m, x| m.max(x.abs()));
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= 1e-9 * scale, "element {i}: {x} and {y}");
    }
}

/// The gradients that the formula of `op` gives for the inputs `wrt` and the cotangent `g`.
pub fn gradients(op: &'static OpDef, args: &[Lit], g: &Tensor, wrt: &[usize]) -> Vec<Arc<Tensor>> {
    let Grad::Formula(formula) = op.grad else { panic!("{} has no formula", op.name) };
    let mut builder = Builder::default();
    let ids: Vec<_> = args.iter().map(|lit| builder.lit(lit.clone())).collect();
    let outs = builder.push(op, &ids).unwrap_or_else(|e| panic!("{e}"));
    let node = builder.graph.producer(outs[0]).map(|n| builder.graph.node(n).inputs.clone());
    let grads = builder.formula(|cx| {
        let x = node.iter().flatten().map(|&v| cx.value(v)).collect();
        let ys = outs.iter().map(|&v| cx.value(v)).collect();
        formula(&GradCx::new(cx, op, x, ys, vec![cx.lit(g.clone())]))
    });
    let grads = grads.unwrap_or_else(|e| panic!("{e}"));
    for &i in wrt {
        builder.graph.outputs.insert(i.to_string().into(), grads[i]);
    }
    interp::run(&builder.graph, &[]).unwrap_or_else(|e| panic!("{e}"))
}

/// Compares the gradient formula of `op` with central differences, for the inputs `wrt`; all tensors are `f64`.
pub fn check_gradient(op: &'static OpDef, args: &[Lit], wrt: &[usize]) {
    let g = noise(first(op, args).shape(), 99);
    for (&i, actual) in wrt.iter().zip(gradients(op, args, &g, wrt)) {
        let Lit::Tensor(x) = &args[i] else { panic!("input {i} is not a tensor") };
        assert_eq!(actual.shape(), x.shape(), "gradient {i} of {}", op.name);
        let expected: Vec<f64> = (0..x.len()).map(|at| difference(op, args, i, at, &g)).collect();
        for (at, (a, b)) in actual.to_f64s().iter().zip(&expected).enumerate() {
            assert!((a - b).abs() < 1e-6 * b.abs().max(1.0), "input {i}, element {at}: {a} and {b}");
        }
    }
}

fn difference(op: &'static OpDef, args: &[Lit], i: usize, at: usize, g: &Tensor) -> f64 {
    const STEP: f64 = 1e-5;
    let along = |step: f64| {
        let mut args = args.to_vec();
        if let Lit::Tensor(x) = &args[i] {
            let mut values = x.to_f64s();
            values[at] += step;
            args[i] = Tensor::from_parts(x.shape(), values).into();
        }
        let y = first(op, &args).to_f64s();
        y.iter().zip(g.to_f64s()).map(|(y, g)| y * g).sum::<f64>()
    };
    (along(STEP) - along(-STEP)) / (2.0 * STEP)
}
