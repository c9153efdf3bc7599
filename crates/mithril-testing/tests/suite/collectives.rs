//! Collectives by themselves on a virtual mesh: values against their definition, gradients against finite differences.

use std::sync::Arc;

use mithril::compile::partition::{Mesh, Partitioned, Placement, virtual_mesh};
use mithril::compile::passes::differentiate::{Request, differentiate};
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::error::Code;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::literal::Lit;
use mithril::ir::op::OpDef;
use mithril::ir::ops::collective;
use mithril::ir::shape::Shape;
use mithril::ir::tensor::Tensor;

const DEVICES: usize = 3;
/// Sizes of the tensor of each device.
const OWN: [usize; 2] = [3, 6];

/// Rows of all devices, one device behind another.
type All = Vec<Vec<f64>>;

/// A graph whose result is one collective.
fn graph(op: &'static OpDef, rest: &[Lit]) -> Graph {
    let mut builder = Builder::new(DType::F64);
    let shape = Shape::of(OWN.map(|n| n as i64));
    let x = builder.graph.add_input("x", Role::Data, TensorType { dtype: DType::F64, shape });
    let mut args = vec![x, builder.lit("mesh"), builder.lit(DEVICES as i64)];
    args.extend(rest.iter().map(|lit| builder.lit(lit.clone())));
    let y = builder.push(op, &args).unwrap()[0];
    builder.graph.outputs.insert("y".into(), y);
    builder.graph
}

/// The results of all devices, each as one row, for the inputs of all.
fn run(graph: &Graph, inputs: &[&All]) -> Vec<All> {
    let placements = |n: usize| vec![vec![Placement::Shard(0)]; n];
    let program = Partitioned {
        graph: graph.clone(),
        mesh: Mesh::new([("mesh", DEVICES)]).unwrap(),
        inputs: placements(graph.inputs.len()),
        outputs: placements(graph.outputs.len()),
        communications: Vec::new(),
    };
    let whole = |(all, v): (&&All, &_)| {
        let mut sizes = graph.ty(*v).unwrap().shape.known().unwrap();
        sizes[0] *= DEVICES;
        Arc::new(Tensor::from_parts(&sizes, all.concat()))
    };
    let inputs: Vec<_> = inputs.iter().zip(&graph.inputs).map(whole).collect();
    let results = virtual_mesh::run(&program, &inputs).unwrap();
    results
        .iter()
        .map(|t| t.to_f64s().chunks(t.to_f64s().len() / DEVICES).map(<[f64]>::to_vec).collect())
        .collect()
}

/// Numbers of which no two are equal.
fn numbers(count: usize, seed: f64) -> All {
    (0..DEVICES).map(|d| (0..count).map(|i| ((i + d * count) as f64 * seed).sin()).collect()).collect()
}

fn close(what: &str, actual: &All, expected: &All, tolerance: f64) {
    for (actual, expected) in actual.iter().zip(expected) {
        assert_eq!(actual.len(), expected.len(), "{what}");
        for (a, e) in actual.iter().zip(expected) {
            assert!((a - e).abs() <= tolerance, "{what}: {a}, expected {e}");
        }
    }
}

/// The block of a device of a tensor of [`OWN`] sizes.
fn block(x: &[f64], axis: usize, device: usize) -> Vec<f64> {
    let part = OWN[axis] / DEVICES;
    let inside = |i: usize| [i / OWN[1], i % OWN[1]][axis] / part == device;
    (0..x.len()).filter(|&i| inside(i)).map(|i| x[i]).collect()
}

/// Tensors with so many columns beside each other.
fn beside(parts: &[Vec<f64>], columns: usize) -> Vec<f64> {
    let rows = parts[0].len() / columns;
    (0..rows).flat_map(|r| parts.iter().flat_map(move |p| p[r * columns..][..columns].to_vec())).collect()
}

fn folded(all: &All, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    (0..all[0].len()).map(|i| all.iter().map(|x| x[i]).reduce(&f).unwrap()).collect()
}

/// What each device has after a collective.
fn check(what: &str, op: &'static OpDef, rest: &[Lit], expected: impl Fn(&All) -> All) {
    let graph = graph(op, rest);
    let x = numbers(OWN[0] * OWN[1], 0.7);
    let [y] = &run(&graph, &[&x])[..] else { panic!("{what} has one result") };
    close(what, y, &expected(&x), 1e-12);

    // The sum over all devices of their results, each with factors of its own.
    let request = Request { outputs: vec!["y".into()], inputs: vec!["x".into()], recompute: false };
    let backward = differentiate(&graph, &request, DType::F64).unwrap();
    let factors = numbers(y[0].len(), 1.3);
    let gradient = run(&backward, &[&x, &factors]).pop().unwrap();
    let sum = |x: &All| -> f64 {
        run(&graph, &[x])[0].concat().iter().zip(factors.concat()).map(|(y, f)| y * f).sum()
    };
    let mut differences = x.clone();
    for d in 0..DEVICES {
        for i in 0..x[d].len() {
            let moved = |by: f64| {
                let mut moved = x.clone();
                moved[d][i] += by;
                sum(&moved)
            };
            differences[d][i] = (moved(1e-6) - moved(-1e-6)) / 2e-6;
        }
    }
    close(&format!("gradient of {what}"), &gradient, &differences, 1e-7);
}

#[test]
fn values_and_gradients_are_those_of_the_definition() {
    let n = DEVICES as f64;
    let everywhere = |x: Vec<f64>| vec![x; DEVICES];
    check("sum", &collective::ALL_REDUCE, &[Lit::text("SUM")], |x| everywhere(folded(x, |a, b| a + b)));
    check("mean", &collective::ALL_REDUCE, &[Lit::text("MEAN")], |x| {
        everywhere(folded(x, |a, b| a + b).into_iter().map(|s| s / n).collect())
    });
    check("max", &collective::ALL_REDUCE, &[Lit::text("MAX")], |x| everywhere(folded(x, f64::max)));
    check("min", &collective::ALL_REDUCE, &[Lit::text("MIN")], |x| everywhere(folded(x, f64::min)));
    check("all_gather 0", &collective::ALL_GATHER, &[Lit::int(0)], |x| everywhere(x.concat()));
    check("all_gather 1", &collective::ALL_GATHER, &[Lit::int(1)], |x| everywhere(beside(x, OWN[1])));
    for axis in [0, 1] {
        let blocks = |x: &All, d: usize| -> All { x.iter().map(|x| block(x, axis, d)).collect() };
        let at = Lit::int(axis as i64);
        check("reduce_scatter", &collective::REDUCE_SCATTER, std::slice::from_ref(&at), |x| {
            (0..DEVICES).map(|d| folded(&blocks(x, d), |a, b| a + b)).collect()
        });
        check("all_to_all", &collective::ALL_TO_ALL, &[at.clone(), Lit::int(1 - axis as i64)], |x| {
            let joined = |parts: All| if axis == 0 { beside(&parts, OWN[1]) } else { parts.concat() };
            (0..DEVICES).map(|d| joined(blocks(x, d))).collect()
        });
        check("shard", &collective::SHARD, &[at], |x| (0..DEVICES).map(|d| block(&x[d], axis, d)).collect());
    }
    let pair = |a: i64, b: i64| Lit::tuple([a as usize, b as usize]);
    let circle = Lit::Tuple([pair(0, 1), pair(1, 2), pair(2, 0)].into_iter().collect());
    check("permute", &collective::COLLECTIVE_PERMUTE, &[circle], |x| {
        vec![x[2].clone(), x[0].clone(), x[1].clone()]
    });
    let line = Lit::Tuple([pair(0, 1), pair(1, 2)].into_iter().collect());
    check("permute in a line", &collective::COLLECTIVE_PERMUTE, &[line], |x| {
        vec![vec![0.0; x[0].len()], x[0].clone(), x[1].clone()]
    });
}

#[test]
fn a_mean_of_integers_is_an_error() {
    let mut builder = Builder::new(DType::F64);
    for dtype in [DType::I64, DType::Bool, DType::U8] {
        let x = builder.graph.add_input("x", Role::Data, TensorType { dtype, shape: Shape::of([3]) });
        let args = [x, builder.lit("mesh"), builder.lit(3), builder.lit("MEAN")];
        let error = builder.push(&collective::ALL_REDUCE, &args).unwrap_err();
        assert_eq!(error.code(), Code::BadArgument);
        assert!(error.to_string().contains("SUM, MAX or MIN"), "{error}");
    }
}
