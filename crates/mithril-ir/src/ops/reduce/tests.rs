//! Values known from closed forms and from the documentation of NumPy and PyTorch, and gradients against central
//! differences.

use std::sync::Arc;

use super::*;
use crate::build::Builder;
use crate::graph::{Role, TensorType, ValueId};
use crate::interp;

type Outputs = Result<Vec<Arc<Tensor>>>;

fn arguments(
    b: &mut Builder,
    op: &'static OpDef,
    tensors: &[(&str, Tensor)],
    options: &[(&str, Lit)],
) -> Vec<ValueId> {
    let of_port = |b: &mut Builder, port: &Port| {
        if let Some((name, t)) = tensors.iter().find(|(name, _)| *name == port.name) {
            let ty = TensorType { dtype: t.dtype(), shape: Shape::of(t.shape().iter().copied()) };
            return b.graph.add_input(*name, Role::Data, ty);
        }
        let option = options.iter().find(|(name, _)| *name == port.name).map(|(_, lit)| lit.clone());
        b.lit(option.or(port.default.lit()).unwrap_or(Lit::None))
    };
    op.ports.iter().map(|port| of_port(b, port)).collect()
}

/// The tensors in the order of the ports, which is that of the graph's inputs.
fn ordered(op: &OpDef, tensors: &[(&str, Tensor)]) -> Vec<Arc<Tensor>> {
    let find = |port: &Port| tensors.iter().find(|(name, _)| *name == port.name);
    op.ports.iter().filter_map(find).map(|(_, t)| Arc::new(t.clone())).collect()
}

/// Outputs of one use of an op.
pub(in crate::ops) fn run(
    op: &'static OpDef,
    tensors: &[(&str, Tensor)],
    options: &[(&str, Lit)],
) -> Outputs {
    let mut b = Builder::default();
    let args = arguments(&mut b, op, tensors, options);
    for (i, v) in b.push(op, &args)?.into_iter().enumerate() {
        b.graph.outputs.insert(format!("y{i}").into(), v);
    }
    interp::run(&b.graph, &ordered(op, tensors))
}

/// First output as numbers.
pub(in crate::ops) fn values(
    op: &'static OpDef,
    tensors: &[(&str, Tensor)],
    options: &[(&str, Lit)],
) -> Vec<f64> {
    run(op, tensors, options).unwrap()[0].to_f64s()
}

/// Gradients by the formula of the op for the cotangent `g` of the first output, one for each tensor that has one.
pub(in crate::ops) fn gradients(
    op: &'static OpDef,
    tensors: &[(&str, Tensor)],
    options: &[(&str, Lit)],
    g: &Tensor,
) -> Vec<Vec<f64>> {
    let Grad::Formula(formula) = op.grad else { panic!("{} has no formula", op.name) };
    let mut b = Builder::default();
    let args = arguments(&mut b, op, tensors, options);
    let ys = b.push(op, &args).unwrap();
    let ty = TensorType { dtype: g.dtype(), shape: Shape::of(g.shape().iter().copied()) };
    let cotangent = b.graph.add_input("g", Role::Data, ty);
    let actual = b.formula(|cx| {
        let of = |ids: &[ValueId]| ids.iter().map(|&id| cx.value(id)).collect::<Vec<_>>();
        let gs = of(&[cotangent]);
        let call = GradCx::new(cx, op, of(&args), of(&ys), gs);
        formula(&call).into_iter().filter(|v| v.is_some()).collect()
    });
    for (i, v) in actual.unwrap().into_iter().enumerate() {
        b.graph.outputs.insert(format!("d{i}").into(), v);
    }
    let mut inputs = ordered(op, tensors);
    inputs.push(Arc::new(g.clone()));
    interp::run(&b.graph, &inputs).unwrap().iter().map(|t| t.to_f64s()).collect()
}

/// Compares the gradient formula with central differences of `Σ g·y` in the first tensor.
pub(in crate::ops) fn check_gradient(
    op: &'static OpDef,
    tensors: &[(&str, Tensor)],
    options: &[(&str, Lit)],
) {
    let y = &run(op, tensors, options).unwrap()[0];
    let g = Tensor::build(DType::F64, y.shape(), |i| Scalar::Float(0.7 + 0.3 * (i as f64).sin()));
    let actual = &gradients(op, tensors, options, &g)[0];
    let x = tensors[0].1.to_f64s();
    let total = |i: usize, step: f64| {
        let mut moved = x.clone();
        moved[i] += step;
        let mut all = tensors.to_vec();
        all[0].1 = Tensor::from_parts(tensors[0].1.shape(), moved);
        let y = values(op, &all, options);
        y.iter().zip(g.to_f64s()).map(|(y, g)| y * g).sum::<f64>()
    };
    assert_eq!(actual.len(), x.len(), "{}", op.name);
    for (i, actual) in actual.iter().enumerate() {
        let expected = (total(i, 1e-5) - total(i, -1e-5)) / 2e-5;
        assert!(
            (actual - expected).abs() < 1e-7 * (1.0 + expected.abs()),
            "{} {options:?} {i}: {actual} {expected}",
            op.name
        );
    }
}

pub(in crate::ops) fn close(actual: &[f64], expected: &[f64]) {
    let near =
        |a: f64, b: f64| a == b || (a - b).abs() < 1e-8 * (1.0 + b.abs()) || (a.is_nan() && b.is_nan());
    assert!(
        actual.len() == expected.len() && actual.iter().zip(expected).all(|(&a, &b)| near(a, b)),
        "{actual:?} is not {expected:?}"
    );
}

pub(in crate::ops) fn f64s(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_parts(shape, values.to_vec())
}

fn x(t: Tensor) -> [(&'static str, Tensor); 1] {
    [("input", t)]
}

fn counting() -> Tensor {
    Tensor::build(DType::F64, &[2, 3, 2], |i| Scalar::Float(i as f64))
}

#[test]
fn sums_over_any_axes() {
    let t = counting();
    assert_eq!(values(&SUM, &x(t.clone()), &[]), [66.0]);
    assert_eq!(values(&SUM, &x(t.clone()), &[("axis", 1.into())]), [6.0, 9.0, 24.0, 27.0]);
    assert_eq!(values(&SUM, &x(t.clone()), &[("axis", [0, -1].into())]), [14.0, 22.0, 30.0]);
    assert_eq!(values(&SUM, &x(t.clone()), &[("axis", Lit::Tuple([].into()))]), t.to_f64s());
    let kept = run(&SUM, &x(t), &[("axis", [0, 2].into()), ("keepdim", true.into())]).unwrap();
    assert_eq!(kept[0].shape(), [1, 3, 1]);
    assert_eq!(values(&SUM, &x(f64s(&[0, 2], &[])), &[("axis", 0.into())]), [0.0, 0.0]);
    assert_eq!(values(&PROD, &x(f64s(&[0, 2], &[])), &[("axis", 0.into())]), [1.0, 1.0]);
}

#[test]
fn integers_add_up_in_int64() {
    let y = &run(&SUM, &x(Tensor::from_parts(&[3], vec![100_i8, 100, 100])), &[]).unwrap()[0];
    assert_eq!((y.dtype(), y.to_i64s()), (DType::I64, vec![300]));
    let y = &run(&SUM, &x(Tensor::from_parts(&[3], vec![true, false, true])), &[]).unwrap()[0];
    assert_eq!((y.dtype(), y.to_i64s()), (DType::I64, vec![2]));
    let y = &run(&MEAN, &x(Tensor::from_parts(&[2], vec![1_i64, 2])), &[]).unwrap()[0];
    assert_eq!((y.dtype(), y.to_f64s()), (DType::F32, vec![1.5]));
}

#[test]
fn sums_are_exact_and_keep_infinities() {
    assert_eq!(values(&SUM, &x(f64s(&[4], &[1.0, 1e100, 1.0, -1e100])), &[]), [2.0]);
    assert_eq!(values(&SUM, &x(f64s(&[2], &[f64::INFINITY, 1.0])), &[]), [f64::INFINITY]);
    assert!(values(&SUM, &x(f64s(&[2], &[f64::INFINITY, -f64::INFINITY])), &[])[0].is_nan());
    // 70000 exceeds the range of f16, the mean does not.
    let many = Tensor::full(DType::F16, &[70_000], 1.0);
    assert_eq!(values(&MEAN, &x(many), &[]), [1.0]);
}

#[test]
fn nan_wins_extremes() {
    let t = f64s(&[4], &[1.0, f64::NAN, 3.0, f64::NAN]);
    assert!(values(&MAX, &x(t.clone()), &[])[0].is_nan());
    assert!(values(&MIN, &x(t.clone()), &[])[0].is_nan());
    assert_eq!(values(&ARGMAX, &x(t.clone()), &[]), [1.0]);
    assert_eq!(values(&ARGMIN, &x(t), &[]), [1.0]);
}

#[test]
fn first_index_at_ties() {
    let t = f64s(&[2, 3], &[1.0, 5.0, 5.0, 2.0, 0.0, 0.0]);
    assert_eq!(values(&ARGMAX, &x(t.clone()), &[("axis", 1.into())]), [1.0, 0.0]);
    assert_eq!(values(&ARGMIN, &x(t.clone()), &[("axis", (-1).into())]), [0.0, 1.0]);
    assert_eq!(values(&ARGMIN, &x(t.clone()), &[]), [4.0]);
    assert_eq!(run(&ARGMAX, &x(t), &[]).unwrap()[0].dtype(), DType::I64);
    let large = Tensor::from_parts(&[2], vec![i64::MAX - 1, i64::MAX]);
    assert_eq!(values(&ARGMAX, &x(large), &[]), [1.0]);
}

#[test]
fn nothing_has_no_extreme() {
    let error = run(&MAX, &x(f64s(&[2, 0], &[])), &[("axis", 1.into())]).unwrap_err();
    assert_eq!(error.code(), Code::BadSize);
    assert!(run(&MAX, &x(f64s(&[2, 0], &[])), &[("axis", 0.into())]).is_ok());
    // The size is known only at run time.
    let mut b = Builder::default();
    let ty = TensorType { dtype: DType::F32, shape: Shape::of(["n"]) };
    let v = b.graph.add_input("x", Role::Data, ty);
    let y = b.push(&ARGMAX, &[v]).unwrap()[0];
    b.graph.outputs.insert("y".into(), y);
    let error = interp::run(&b.graph, &[Arc::new(Tensor::from_parts::<f32>(&[0], vec![]))]).unwrap_err();
    assert_eq!(error.code(), Code::BadSize);
}

#[test]
fn bad_axes_are_errors() {
    for axis in [Lit::from(2), Lit::from(-3), [0, 0].into(), [0, -2].into()] {
        let error = run(&SUM, &x(f64s(&[1, 1], &[0.0])), &[("axis", axis)]).unwrap_err();
        assert_eq!(error.code(), Code::BadArgument);
    }
}

#[test]
fn any_and_all() {
    let t = f64s(&[2, 2], &[0.0, f64::NAN, 0.0, 0.0]);
    assert_eq!(values(&ANY, &x(t.clone()), &[("axis", 1.into())]), [1.0, 0.0]);
    assert_eq!(values(&ALL, &x(t.clone()), &[("axis", 0.into())]), [0.0, 0.0]);
    assert_eq!(values(&COUNT_NONZERO, &x(t), &[]), [1.0]);
    let none = Tensor::from_parts::<bool>(&[0], vec![]);
    assert_eq!(values(&ANY, &x(none.clone()), &[]), [0.0]);
    assert_eq!(values(&ALL, &x(none), &[]), [1.0]);
    let y = &run(&ALL, &x(Tensor::from_parts(&[2], vec![true, true])), &[]).unwrap()[0];
    assert_eq!((y.dtype(), y.to_i64s()), (DType::Bool, vec![1]));
}

#[test]
fn variance_is_corrected_unless_told_otherwise() {
    // The sum of squared differences of 1, 2, 4 is 14/3.
    let t = f64s(&[3], &[1.0, 2.0, 4.0]);
    close(&values(&VAR, &x(t.clone()), &[]), &[7.0 / 3.0]);
    close(&values(&STD, &x(t.clone()), &[]), &[1.527_525_231_651_947]);
    close(&values(&STD, &x(t.clone()), &[("correction", 0.into())]), &[1.247_219_128_924_647]);
    close(&values(&VAR, &x(t), &[("correction", 0.5.into())]), &[14.0 / 3.0 / 2.5]);
    assert!(values(&VAR, &x(f64s(&[1], &[5.0])), &[])[0].is_nan());
}

#[test]
fn statistics_of_a_symbolic_batch() {
    let mut b = Builder::default();
    let ty = TensorType { dtype: DType::F64, shape: Shape::of(["n"]) };
    let v = b.graph.add_input("x", Role::Data, ty);
    let mean = b.push(&MEAN, &[v]).unwrap()[0];
    let var = b.push(&VAR, &[v]).unwrap()[0];
    b.graph.outputs.insert("mean".into(), mean);
    b.graph.outputs.insert("var".into(), var);
    let y = interp::run(&b.graph, &[Arc::new(Tensor::from_parts(&[3], vec![1.0_f64, 2.0, 4.0]))]).unwrap();
    close(&y[0].to_f64s(), &[7.0 / 3.0]);
    close(&y[1].to_f64s(), &[7.0 / 3.0]);
}

#[test]
fn gradients_agree_with_differences() {
    let t = f64s(&[2, 3, 2], &[0.3, -1.2, 2.0, 0.7, 1.1, -0.4, 0.9, 1.6, -0.8, 0.5, -1.5, 0.2]);
    let all: [&[(&str, Lit)]; 4] = [
        &[],
        &[("axis", Lit::from(1))],
        &[("axis", [0, 2].into()), ("keepdim", true.into())],
        &[("axis", [0, 1].into())],
    ];
    for op in [&SUM, &PROD, &MAX, &MIN, &VAR, &STD] {
        for options in all {
            check_gradient(op, &x(t.clone()), options);
        }
    }
    check_gradient(&STD, &x(t), &[("axis", 0.into()), ("correction", 0.into())]);
}

#[test]
fn norms() {
    let t = f64s(&[4], &[3.0, -4.0, 0.0, 12.0]);
    let infinity = f64::INFINITY;
    for (p, expected) in [(2.0, 13.0), (1.0, 19.0), (infinity, 12.0), (-infinity, 0.0), (0.0, 3.0)] {
        close(&values(&NORM, &x(t.clone()), &[("p", p.into())]), &[expected]);
    }
    // 3³ + 4³ + 5³ = 6³
    close(&values(&NORM, &x(f64s(&[3], &[3.0, -4.0, 5.0])), &[("p", 3.into())]), &[6.0]);
    close(&values(&NORM, &x(f64s(&[2, 2], &[3.0, 4.0, 6.0, 8.0])), &[("axis", 1.into())]), &[5.0, 10.0]);
    // 300² exceeds the range of f16, the norm does not.
    let half = Tensor::full(DType::F16, &[4], 300.0);
    assert_eq!(values(&NORM, &x(half), &[]), [600.0]);
    for p in [2.0, 1.0, 3.5, 0.5, infinity, -infinity] {
        let t = f64s(&[2, 3], &[0.3, -1.2, 2.0, 0.7, 1.1, -0.4]);
        check_gradient(&NORM, &x(t.clone()), &[("p", p.into())]);
        check_gradient(&NORM, &x(t), &[("p", p.into()), ("axis", 1.into()), ("keepdim", true.into())]);
    }
}

#[test]
fn logsumexp_does_not_overflow() {
    let infinity = f64::INFINITY;
    let of = |values_of: &[f64]| values(&LOGSUMEXP, &x(f64s(&[values_of.len()], values_of)), &[])[0];
    close(&[of(&[1000.0, 1000.0])], &[1000.0 + 2_f64.ln()]);
    close(&[of(&[-1000.0, -1000.0])], &[-1000.0 + 2_f64.ln()]);
    assert_eq!(of(&[-infinity, -infinity]), -infinity);
    assert_eq!(of(&[infinity, 0.0]), infinity);
    assert!(of(&[f64::NAN, 0.0]).is_nan());
    let t = f64s(&[2, 3], &[0.3, -1.2, 2.0, 0.7, 1.1, -0.4]);
    check_gradient(&LOGSUMEXP, &x(t.clone()), &[("axis", 0.into())]);
    check_gradient(&LOGSUMEXP, &x(t), &[("keepdim", true.into())]);
    let t = f64s(&[2], &[-infinity, -infinity]);
    assert_eq!(gradients(&LOGSUMEXP, &x(t), &[], &f64s(&[], &[1.0]))[0], [0.0, 0.0]);
}

#[test]
fn gradient_of_a_product_with_zeros() {
    for zeros in [1, 2, 3] {
        let mut t = vec![0.3, -1.2, 2.0, 0.7, 1.1, -0.4];
        for at in [1, 2, 4].into_iter().take(zeros) {
            t[at] = 0.0;
        }
        for options in [&[][..], &[("axis", Lit::from(0))], &[("axis", Lit::from(1))]] {
            check_gradient(&PROD, &x(f64s(&[2, 3], &t)), options);
        }
    }
}

#[test]
fn ties_share_the_gradient() {
    let t = f64s(&[4], &[2.0, 1.0, 2.0, 0.0]);
    assert_eq!(gradients(&MAX, &x(t), &[], &f64s(&[], &[3.0]))[0], [1.5, 0.0, 1.5, 0.0]);
}

#[test]
fn gradients_at_singular_points() {
    let same = f64s(&[3], &[2.0, 2.0, 2.0]);
    assert_eq!(gradients(&STD, &x(same), &[], &f64s(&[], &[1.0]))[0], [0.0, 0.0, 0.0]);
    for p in [2.0, 1.0, 3.5, 0.5, f64::INFINITY] {
        let zero = f64s(&[2], &[0.0, 0.0]);
        assert_eq!(gradients(&NORM, &x(zero), &[("p", p.into())], &f64s(&[], &[1.0]))[0], [0.0, 0.0]);
    }
}
