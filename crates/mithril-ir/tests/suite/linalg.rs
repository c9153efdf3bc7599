//! Linear algebra against explicit loops and identities, and its gradient formulas against central differences.

mod decompose;
mod einsum;
mod products;
mod signal;

use std::sync::Arc;

use mithril_ir::formula::GradCx;
use mithril_ir::op::Grad;
use mithril_ir::ops::linalg as l;
use mithril_ir::{
    Builder, Code, DType, Dim, Lit, OpDef, Result, Role, Shape, Tensor, TensorType, ValueId, interp,
};

fn random(seed: &mut u64, shape: &[usize]) -> Tensor {
    let mut next = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
    };
    Tensor::from_parts(shape, (0..shape.iter().product()).map(|_| next()).collect::<Vec<f64>>())
}

fn run(op: &'static OpDef, args: &[&Tensor], lits: &[Lit]) -> Result<Vec<Arc<Tensor>>> {
    let mut b = Builder::new(DType::F64);
    let mut ids: Vec<_> = args
        .iter()
        .map(|t| {
            let shape = Shape::of(t.shape().iter().copied());
            b.graph.add_input("x", Role::Data, TensorType { dtype: t.dtype(), shape })
        })
        .collect();
    ids.extend(lits.iter().map(|l| b.lit(l.clone())));
    for (i, v) in b.push(op, &ids)?.into_iter().enumerate() {
        b.graph.outputs.insert(format!("y{i}").into(), v);
    }
    interp::run(&b.graph, &args.iter().map(|t| Arc::new((*t).clone())).collect::<Vec<_>>())
}

/// As `run`, with the literal at the front.
fn run_equation(op: &'static OpDef, text: &str, args: &[&Tensor]) -> Result<Vec<Arc<Tensor>>> {
    let mut b = Builder::new(DType::F64);
    let mut ids = vec![b.lit(text)];
    ids.extend(args.iter().map(|t| {
        let shape = Shape::of(t.shape().iter().copied());
        b.graph.add_input("x", Role::Data, TensorType { dtype: t.dtype(), shape })
    }));
    let y = b.push(op, &ids)?[0];
    b.graph.outputs.insert("y".into(), y);
    interp::run(&b.graph, &args.iter().map(|t| Arc::new((*t).clone())).collect::<Vec<_>>())
}

/// `Σ_k a[.., i, k] b[.., k, j]` by its definition, for matrices with equal numbers of axes.
fn naive(a: &Tensor, b: &Tensor) -> Vec<f64> {
    let (sa, sb) = (a.shape(), b.shape());
    let (m, k, n) = (sa[sa.len() - 2], sa[sa.len() - 1], sb[sb.len() - 1]);
    let batch: Vec<usize> = (0..sa.len() - 2).map(|i| sa[i].max(sb[i])).collect();
    let mut out = vec![];
    for at in 0..batch.iter().product::<usize>() {
        let (mut ia, mut ib, mut rest, mut wa, mut wb) = (0, 0, at, m * k, k * n);
        for axis in (0..batch.len()).rev() {
            let index = rest % batch[axis];
            rest /= batch[axis];
            ia += if sa[axis] == 1 { 0 } else { index * wa };
            ib += if sb[axis] == 1 { 0 } else { index * wb };
            wa *= sa[axis];
            wb *= sb[axis];
        }
        for i in 0..m {
            for j in 0..n {
                out.push((0..k).map(|p| a.get(ia + i * k + p).f64() * b.get(ib + p * n + j).f64()).sum());
            }
        }
    }
    out
}

fn assert_near(actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (f, w) in actual.iter().zip(expected) {
        assert!((f - w).abs() < 1e-12 * (1.0 + w.abs()), "{actual:?}\n{expected:?}");
    }
}

#[test]
fn matmul_follows_its_definition() {
    let mut seed = 1;
    for (a, b) in [
        (&[3, 4][..], &[4, 5][..]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[2, 3, 4], &[1, 4, 5]),
        (&[1, 3, 4], &[2, 4, 5]),
        (&[5, 1, 3, 4], &[1, 2, 4, 3]),
        (&[2, 3, 0], &[2, 0, 2]),
        (&[0, 3, 2], &[0, 2, 2]),
    ] {
        let (a, b) = (random(&mut seed, a), random(&mut seed, b));
        assert_near(&run(&l::MATMUL, &[&a, &b], &[]).unwrap()[0].to_f64s(), &naive(&a, &b));
    }
}

#[test]
fn vectors_are_rows_and_columns() {
    let matrix = Tensor::from_parts(&[2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let (v2, v3) = (Tensor::from_parts(&[2], vec![1.0, -1.0]), Tensor::from_parts(&[3], vec![1.0, 0.0, 2.0]));
    let check = |a: &Tensor, b: &Tensor, shape: &[usize], expected: &[f64]| {
        let y = run(&l::MATMUL, &[a, b], &[]).unwrap();
        assert_eq!((y[0].shape(), y[0].to_f64s().as_slice()), (shape, expected));
    };
    check(&matrix, &v3, &[2], &[7.0, 16.0]);
    check(&v2, &matrix, &[3], &[-3.0, -3.0, -3.0]);
    check(&v3, &v3, &[], &[5.0]);
}

#[test]
fn integers_wrap() {
    let a = Tensor::from_parts(&[1, 2], vec![100_i8, 100]);
    let b = Tensor::from_parts(&[2, 1], vec![2_i8, 2]);
    assert_eq!(run(&l::MATMUL, &[&a, &b], &[]).unwrap()[0].to_i64s(), [400 - 512]);
}

#[test]
fn linear_is_matmul_with_the_transpose() {
    let mut seed = 5;
    for x in [&[2, 3][..], &[3], &[2, 5, 3], &[0, 3]] {
        let (x, w, b) = (random(&mut seed, x), random(&mut seed, &[4, 3]), random(&mut seed, &[4]));
        let actual = run(&l::LINEAR, &[&x, &w, &b], &[]).unwrap()[0].to_f64s();
        let expected = (0..x.len() / 3 * 4).map(|i| {
            let at = |p: usize| x.get(i / 4 * 3 + p).f64() * w.get(i % 4 * 3 + p).f64();
            (0..3).map(at).sum::<f64>() + b.get(i % 4).f64()
        });
        assert_near(&actual, &expected.collect::<Vec<_>>());
    }
}

#[test]
fn unfit_shapes_are_errors() {
    let code = |a: &[usize], b: &[usize]| {
        let (a, b) = (random(&mut 1, a), random(&mut 1, b));
        run(&l::MATMUL, &[&a, &b], &[]).unwrap_err().code()
    };
    assert_eq!(code(&[2, 3], &[2, 3]), Code::ShapeMismatch);
    assert_eq!(code(&[2, 1], &[3, 3]), Code::ShapeMismatch);
    assert_eq!(code(&[2, 3, 3], &[4, 3, 3]), Code::ShapeMismatch);
    assert_eq!(code(&[], &[3]), Code::RankMismatch);
}

/// The outputs of `op` and, by its formula, the cotangents of `x` for `gs`, evaluated by a graph whose sizes are
/// numbers, or symbols where they are above 1.
fn gradients(
    op: &'static OpDef,
    x: &[&Tensor],
    gs: &[Tensor],
    lits: &[Lit],
    symbolic: bool,
) -> Vec<Arc<Tensor>> {
    let Grad::Formula(formula) = op.grad else { panic!("{} has no formula", op.name) };
    let mut b = Builder::new(DType::F64);
    let size = |&n: &usize| if symbolic && n > 1 { Dim::symbol(&format!("n{n}")) } else { Dim::from(n) };
    let ty = |t: &Tensor| TensorType { dtype: t.dtype(), shape: t.shape().iter().map(size).collect() };
    let mut args: Vec<_> = x.iter().map(|t| b.graph.add_input("x", Role::Data, ty(t))).collect();
    args.extend(lits.iter().map(|l| b.lit(l.clone())));
    let outs = b.push(op, &args).unwrap();
    while args.len() < op.ports.len() {
        args.push(b.lit(op.ports[args.len()].default.lit().unwrap()));
    }
    let types: Vec<_> = outs.iter().map(|&v| b.graph.ty(v).unwrap().clone()).collect();
    let cotangents: Vec<_> =
        types.into_iter().map(|ty| b.graph.add_input("g", Role::Cotangent, ty)).collect();
    let grads = b
        .formula(|cx| {
            let values = |ids: &[ValueId]| ids.iter().map(|&v| cx.value(v)).collect::<Vec<_>>();
            formula(&GradCx::new(cx, op, values(&args), values(&outs), values(&cotangents)))
        })
        .unwrap();
    for (i, &v) in outs.iter().chain(grads.iter().take(x.len())).enumerate() {
        b.graph.outputs.insert(format!("y{i}").into(), v);
    }
    let all = x.iter().map(|t| Arc::new((*t).clone())).chain(gs.iter().map(|g| Arc::new(g.clone())));
    interp::run(&b.graph, &all.collect::<Vec<_>>()).unwrap()
}

fn cotangents(op: &'static OpDef, x: &[&Tensor], lits: &[Lit]) -> Vec<Tensor> {
    run(op, x, lits).unwrap().iter().map(|y| random(&mut 99, y.shape())).collect()
}

/// Checks that symbols as sizes give what numbers give.
fn check_symbols(op: &'static OpDef, x: &[&Tensor], lits: &[Lit]) {
    let gs = cotangents(op, x, lits);
    let with_numbers = gradients(op, x, &gs, lits, false);
    for (a, b) in gradients(op, x, &gs, lits, true).iter().zip(&with_numbers) {
        assert_eq!(a.shape(), b.shape(), "{}", op.name);
        assert_near(&a.to_f64s(), &b.to_f64s());
    }
}

/// Compares the gradient formula of `op` at `x` with central differences of `Σ g · op(x)`.
fn check_gradient(op: &'static OpDef, x: &[&Tensor], lits: &[Lit]) {
    let gs = cotangents(op, x, lits);
    let actual = gradients(op, x, &gs, lits, false).split_off(gs.len());
    let value = |x: &[&Tensor]| -> f64 {
        let ys = run(op, x, lits).unwrap();
        let dot = |(y, g): (&Arc<Tensor>, &Tensor)| -> f64 {
            y.to_f64s().iter().zip(g.to_f64s()).map(|(y, g)| y * g).sum()
        };
        ys.iter().zip(&gs).map(dot).sum()
    };
    for (i, t) in x.iter().enumerate() {
        // As the pass does: sum over what was broadcast.
        let full = actual[i].to_f64s();
        let mut own = vec![0.0; t.len()];
        let to = interp::broadcast_index(t.shape(), actual[i].shape());
        full.iter().enumerate().for_each(|(p, g)| own[to(p)] += g);
        for p in 0..t.len() {
            let shifted = |h: f64| {
                let mut values = t.to_f64s();
                values[p] += h;
                let t = Tensor::from_parts(t.shape(), values);
                let mut x = x.to_vec();
                x[i] = &t;
                value(&x)
            };
            let expected = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            assert!(
                (own[p] - expected).abs() < 1e-7 * (1.0 + expected.abs()),
                "{}: input {i}[{p}] {} {expected}",
                op.name,
                own[p]
            );
        }
    }
}

#[test]
fn gradients_agree_with_differences() {
    let mut seed = 3;
    for (a, b) in [
        (&[2, 3, 4][..], &[2, 4, 5][..]),
        (&[3, 1, 2, 4], &[2, 4, 3]),
        (&[2, 3, 4], &[4, 5]),
        (&[3, 4], &[2, 4, 5]),
        (&[4], &[4]),
        (&[3, 4], &[4]),
        (&[2, 3, 4], &[4]),
        (&[4], &[4, 3]),
        (&[4], &[2, 4, 3]),
    ] {
        check_gradient(&l::MATMUL, &[&random(&mut seed, a), &random(&mut seed, b)], &[]);
    }
    for x in [&[2, 3][..], &[3], &[2, 5, 3]] {
        let linear = [random(&mut seed, x), random(&mut seed, &[4, 3]), random(&mut seed, &[4])];
        check_gradient(&l::LINEAR, &[&linear[0], &linear[1], &linear[2]], &[]);
    }
}

#[test]
fn sizes_may_be_symbols() {
    use mithril_ir::ops::{decompose as d, signal as f};
    let mut seed = 12;
    let mut t = |shape: &[usize]| random(&mut seed, shape);
    for (a, b) in
        [(&[2, 3, 4][..], &[2, 4, 5][..]), (&[2, 3, 4], &[4, 5]), (&[4], &[2, 4, 3]), (&[2, 3, 4], &[4])]
    {
        check_symbols(&l::MATMUL, &[&t(a), &t(b)], &[]);
    }
    check_symbols(&l::LINEAR, &[&t(&[2, 5, 3]), &t(&[4, 3]), &t(&[4])], &[]);
    check_symbols(&d::SOLVE, &[&t(&[2, 3, 3]), &t(&[3])], &[]);
    check_symbols(&d::TRIANGULAR_SOLVE, &[&t(&[2, 3, 3]), &t(&[2, 3, 4])], &[]);
    check_symbols(&d::INV, &[&t(&[2, 3, 3])], &[]);
    for n in [1, 2, 5, 6] {
        for norm in ["backward", "ortho", "forward"].map(Lit::text) {
            check_symbols(&f::FFT, &[&t(&[2, n]), &t(&[2, n])], &[Lit::int(1), norm.clone()]);
            check_symbols(&f::RFFT, &[&t(&[n, 2])], &[Lit::int(0), norm.clone()]);
        }
    }
    check_symbols(&f::IRFFT, &[&t(&[2, 4]), &t(&[2, 4])], &[]);
}

/// Checks that the expansion, with symbols as sizes, gives what the evaluation gives.
fn check_expansion(op: &'static OpDef, front: &[Lit], x: &[&Tensor], back: &[Lit]) {
    let mut b = Builder::new(DType::F64);
    let size = |&n: &usize| if n > 1 { Dim::symbol(&format!("n{n}")) } else { Dim::from(n) };
    let mut args: Vec<_> = front.iter().map(|l| b.lit(l.clone())).collect();
    for t in x {
        let ty = TensorType { dtype: t.dtype(), shape: t.shape().iter().map(size).collect() };
        args.push(b.graph.add_input("x", Role::Data, ty));
    }
    args.extend(back.iter().map(|l| b.lit(l.clone())));
    let whole = b.push(op, &args).unwrap();
    for (i, v) in whole.into_iter().chain(b.expand(op, &args).unwrap()).enumerate() {
        b.graph.outputs.insert(format!("y{i}").into(), v);
    }
    let ys = interp::run(&b.graph, &x.iter().map(|t| Arc::new((*t).clone())).collect::<Vec<_>>()).unwrap();
    let (whole, expanded) = ys.split_at(ys.len() / 2);
    for (a, b) in whole.iter().zip(expanded) {
        assert_eq!(a.shape(), b.shape(), "{}", op.name);
        assert_near(&a.to_f64s(), &b.to_f64s());
    }
}

#[test]
fn expansions_mean_the_same_with_symbols() {
    use mithril_ir::ops::signal as f;
    let mut seed = 13;
    let mut t = |shape: &[usize]| random(&mut seed, shape);
    for norm in ["backward", "ortho", "forward"].map(Lit::text) {
        for op in [&f::FFT, &f::IFFT] {
            check_expansion(op, &[], &[&t(&[7, 2]), &t(&[7, 2])], &[Lit::int(0), norm.clone()]);
        }
        check_expansion(&f::RFFT, &[], &[&t(&[7, 2])], &[Lit::int(0), norm.clone()]);
        check_expansion(&f::RFFT, &[], &[&t(&[2, 8])], &[Lit::int(-1), norm.clone()]);
        let parts = [t(&[4, 2]), t(&[4, 2])];
        check_expansion(&f::IRFFT, &[], &[&parts[0], &parts[1]], &[Lit::None, Lit::int(0), norm]);
    }
    check_expansion(&l::LINEAR, &[], &[&t(&[2, 5, 3]), &t(&[4, 3]), &t(&[4])], &[]);
}
