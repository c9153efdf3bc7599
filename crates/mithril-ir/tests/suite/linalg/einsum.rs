//! Einstein summation against loops over all labels.

use std::collections::BTreeMap;

use mithril_ir::ops::einsum::EINSUM;
use mithril_ir::{Builder, Code, DType, Role, Shape, Tensor, TensorType, interp};

use super::{assert_near, random, run_equation};

/// The sum over all labels by nested loops; `text` is explicit and without `...`.
fn loops(text: &str, operands: &[&Tensor]) -> Vec<f64> {
    let (left, right) = text.split_once("->").unwrap();
    let mut sizes: BTreeMap<char, usize> = BTreeMap::new();
    for (labels, t) in left.split(',').zip(operands) {
        for (c, &n) in labels.chars().zip(t.shape()) {
            let size = sizes.entry(c).or_insert(n);
            *size = if *size == 1 { n } else { *size };
        }
    }
    let count = |labels: &str| labels.chars().map(|c| sizes[&c]).product::<usize>();
    let mut out = vec![0.0; count(right)];
    let all: Vec<(char, usize)> = sizes.iter().map(|(&c, &n)| (c, n)).collect();
    for i in 0..all.iter().map(|x| x.1).product() {
        let mut rest = i;
        let at: BTreeMap<char, usize> = all
            .iter()
            .map(|&(c, n)| {
                let index = rest % n;
                rest /= n;
                (c, index)
            })
            .collect();
        let product: f64 = left
            .split(',')
            .zip(operands)
            .map(|(labels, t)| {
                let step = |p: usize, (c, &n): (char, &usize)| p * n + if n == 1 { 0 } else { at[&c] };
                t.get(labels.chars().zip(t.shape()).fold(0, step)).f64()
            })
            .product();
        out[right.chars().fold(0, |p, c| p * sizes[&c] + at[&c])] += product;
    }
    out
}

fn check(text: &str, shapes: &[&[usize]]) {
    let mut seed = 11;
    let operands: Vec<Tensor> = shapes.iter().map(|s| random(&mut seed, s)).collect();
    let operands: Vec<&Tensor> = operands.iter().collect();
    let actual = run_equation(&EINSUM, text, &operands).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_near(&actual[0].to_f64s(), &loops(text, &operands));
}

#[test]
fn agrees_with_loops() {
    check("ij,jk->ik", &[&[2, 3], &[3, 4]]);
    check("ij,jk->ki", &[&[2, 3], &[3, 4]]);
    check("ij->ji", &[&[2, 3]]);
    check("ij->", &[&[2, 3]]);
    check("ij->j", &[&[2, 3]]);
    check("i,i->", &[&[3], &[3]]);
    check("i,j->ji", &[&[3], &[2]]);
    check("ij,ij->ij", &[&[2, 3], &[2, 3]]);
    check("bqhd,bkhd->bhqk", &[&[2, 3, 2, 4], &[2, 5, 2, 4]]);
    check("ijk,jil->kl", &[&[3, 2, 5], &[2, 3, 2]]);
    check("abc,cd,da->b", &[&[2, 3, 4], &[4, 5], &[5, 2]]);
    check("ij,i,j->", &[&[2, 3], &[2], &[3]]);
    check("ij,kl,mn->ikm", &[&[2, 3], &[3, 2], &[2, 2]]);
    check("ij,jk->ik", &[&[2, 0], &[0, 4]]);
    check("i,i,i->i", &[&[4], &[4], &[4]]);
    check(",ij->ji", &[&[], &[2, 3]]);
}

#[test]
fn repeated_letters_take_the_diagonal() {
    check("ii->", &[&[3, 3]]);
    check("ii->i", &[&[3, 3]]);
    check("iji->j", &[&[3, 2, 3]]);
    check("iii->i", &[&[3, 3, 3]]);
    check("iij,jk->ik", &[&[3, 3, 2], &[2, 4]]);
    check("ijij->ij", &[&[3, 2, 3, 2]]);
}

#[test]
fn sizes_of_one_broadcast() {
    check("ij,jk->ik", &[&[2, 1], &[3, 4]]);
    check("ij,ij->ij", &[&[1, 3], &[2, 1]]);
}

#[test]
fn the_ellipsis_broadcasts() {
    let mut seed = 4;
    let (a, b) = (random(&mut seed, &[2, 1, 3, 4]), random(&mut seed, &[5, 4, 2]));
    let actual = run_equation(&EINSUM, "...ij,...jk->...ik", &[&a, &b]).unwrap();
    assert_eq!(actual[0].shape(), [2, 5, 3, 2]);
    let a2 = a.reshaped(&[2, 3, 4]);
    assert_near(&actual[0].to_f64s(), &loops("bij,cjk->bcik", &[&a2, &b]));

    let x = random(&mut seed, &[2, 3, 4]);
    assert_near(&run_equation(&EINSUM, "i...->...i", &[&x]).unwrap()[0].to_f64s(), &loops("ijk->jki", &[&x]));
    assert_near(&run_equation(&EINSUM, "i...", &[&x]).unwrap()[0].to_f64s(), &loops("ijk->jki", &[&x]));
    assert_near(&run_equation(&EINSUM, "i...->i", &[&x]).unwrap()[0].to_f64s(), &loops("ijk->i", &[&x]));
}

#[test]
fn integers_keep_their_dtype() {
    let x = Tensor::from_parts(&[2, 2], vec![1_i32, 2, 3, 4]);
    let y = run_equation(&EINSUM, "ij->j", &[&x]).unwrap();
    assert_eq!((y[0].dtype(), y[0].to_i64s()), (DType::I32, vec![4, 6]));
}

#[test]
fn unequal_sizes_are_errors() {
    let mut seed = 1;
    let mut code = |text: &str, shapes: &[&[usize]]| {
        let t: Vec<Tensor> = shapes.iter().map(|s| random(&mut seed, s)).collect();
        run_equation(&EINSUM, text, &t.iter().collect::<Vec<_>>()).unwrap_err().code()
    };
    assert_eq!(code("ij,jk->ik", &[&[2, 3], &[4, 2]]), Code::ShapeMismatch);
    assert_eq!(code("ii->i", &[&[2, 3]]), Code::ShapeMismatch);
    assert_eq!(code("ii->i", &[&[1, 3]]), Code::ShapeMismatch);
    assert_eq!(code("ij->ij", &[&[2]]), Code::BadArgument);
}

#[test]
fn sizes_may_be_symbols() {
    let mut b = Builder::new(DType::F64);
    let mut seed = 7;
    let tensors =
        [random(&mut seed, &[2, 3, 4, 5]), random(&mut seed, &[2, 6, 4, 5]), random(&mut seed, &[6, 6])];
    let mut ids = vec![b.lit("bqhd,bkhd,kk->bhqk")];
    for (t, names) in tensors.iter().zip([&["b", "q", "h", "d"][..], &["b", "k", "h", "d"], &["k", "k"]]) {
        let ty = TensorType { dtype: t.dtype(), shape: Shape::of(names.iter().copied()) };
        ids.push(b.graph.add_input("x", Role::Data, ty));
    }
    let y = b.push(&EINSUM, &ids).unwrap()[0];
    assert_eq!(b.graph.ty(y).unwrap().shape, Shape::of(["b", "h", "q", "k"]));
    let expanded = b.expand(&EINSUM, &ids).unwrap()[0];
    b.graph.outputs.insert("y".into(), expanded);
    let actual = interp::run(&b.graph, &tensors.clone().map(std::sync::Arc::new)).unwrap();
    assert_near(&actual[0].to_f64s(), &loops("bqhd,bkhd,kk->bhqk", &tensors.iter().collect::<Vec<_>>()));
}
