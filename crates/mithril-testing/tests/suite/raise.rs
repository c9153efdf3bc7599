//! Random graphs of pieces of ops, and of what is only similar, compute the same after the pass `raise`.

use std::sync::Arc;

use mithril::compile::passes::raise::raise;
use mithril::ir::build::Builder;
use mithril::ir::formula::V;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::ops::einsum::EINSUM;
use mithril::ir::ops::{
    activation as a, attention, elementwise as e, function as f, movement, reduce, softmax,
};
use mithril::ir::{DType, Lit, Shape, Tensor, interp, verify};

const FLOAT: DType = DType::F64;
/// All sizes alike, so that what lost its axis still broadcasts, elsewhere.
const SHAPE: [i64; 3] = [4, 4, 4];

/// Random choices; one of a few is such that the pieces are not the op.
pub struct Draw(pub u64);

impl Draw {
    /// By splitmix64.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % n
    }
    pub fn yes(&mut self) -> bool {
        self.below(2) == 0
    }
    /// A constant, or one close to it.
    fn number(&mut self, x: f64) -> f64 {
        if self.below(8) == 0 { x * 1.01 } else { x }
    }
    pub fn sum<'a>(&mut self, x: V<'a>, y: V<'a>) -> V<'a> {
        if self.yes() { x + y } else { y + x }
    }
    fn times<'a>(&mut self, x: V<'a>, y: V<'a>) -> V<'a> {
        match self.below(4) {
            0 => x * y,
            1 => x / y.op(&f::RECIPROCAL, &[]),
            _ => y * x,
        }
    }
    fn scale<'a>(&mut self, x: V<'a>, by: f64) -> V<'a> {
        let by = self.number(by);
        if self.yes() { x * by } else { x / (1.0 / by) }
    }
    fn square<'a>(&mut self, x: V<'a>) -> V<'a> {
        match self.below(3) {
            0 => x * x,
            1 => x.op(&e::POWER, &[x.lit(2.0)]),
            _ => x.op(&f::SQUARE, &[]),
        }
    }
    /// A reduction over an axis, whose place is kept, restored, or (rarely) lost.
    fn reduced<'a>(&mut self, x: V<'a>, op: &'static mithril::ir::op::OpDef, axis: i64) -> V<'a> {
        let axis = if self.below(8) == 0 { -1 - axis.abs() % 3 } else { axis };
        if self.yes() {
            return x.op(op, &[x.lit(axis), x.lit(true)]);
        }
        let bare = x.op(op, &[x.lit(axis), x.lit(false)]);
        match self.below(16) {
            0 => bare,
            1 => {
                // Repeated along another axis, as if it stood beside x.
                let shape = || x.lit(Lit::tuple(SHAPE));
                bare.op(&movement::BROADCAST_TO, &[shape()]).op(&movement::RESHAPE, &[shape()])
            }
            _ => bare.op(&movement::EXPAND_DIMS, &[x.lit(axis)]),
        }
    }
    fn mean<'a>(&mut self, x: V<'a>, axis: i64) -> V<'a> {
        if self.yes() {
            return self.reduced(x, &reduce::MEAN, axis);
        }
        let sum = self.reduced(x, &reduce::SUM, axis);
        self.scale(sum, 0.25)
    }
    fn piece<'a>(&mut self, x: V<'a>) -> V<'a> {
        let axis = if self.below(4) == 0 { -2 } else { -1 };
        match self.below(6) {
            0 => {
                let inner = self.scale(x, std::f64::consts::FRAC_1_SQRT_2).op(&e::ERF, &[]);
                let one = x.lit(1.0);
                let share = self.sum(inner, one);
                let half = self.scale(x, 0.5);
                self.times(half, share)
            }
            1 => {
                let cube = self.square(x) * x;
                let cube = self.scale(cube, 0.044_715);
                let inner = self.sum(x, cube);
                let inner = self.scale(inner, (2.0 / std::f64::consts::PI).sqrt()).op(&e::TANH, &[]);
                let share = self.scale(inner + 1.0, 0.5);
                self.times(share, x)
            }
            2 => {
                let rest = x - self.reduced(x, &reduce::MAX, axis);
                let top = rest.op(&e::EXP, &[]);
                let sum = self.reduced(top, &reduce::SUM, axis);
                if self.yes() { top / sum } else { rest - sum.op(&e::LOG, &[]) }
            }
            3 => {
                let share =
                    if self.yes() { x.op(&a::SIGMOID, &[]) } else { 1.0 / ((-x).op(&e::EXP, &[]) + 1.0) };
                self.times(x, share)
            }
            _ => {
                let centered = if self.yes() { x - self.mean(x, axis) } else { x };
                let square = self.square(centered);
                let variance = self.mean(square, axis) + 1e-5;
                if self.yes() {
                    let inverse = variance.op(&f::RSQRT, &[]);
                    self.times(centered, inverse)
                } else {
                    centered / variance.op(&f::SQRT, &[])
                }
            }
        }
    }
}

fn random_graph(seed: u64) -> Graph {
    let mut draw = Draw(seed);
    let mut b = Builder::new(FLOAT);
    let ty = TensorType { dtype: FLOAT, shape: Shape::of(SHAPE) };
    let x = b.graph.add_input("x", Role::Data, ty.clone());
    let weight = TensorType { dtype: FLOAT, shape: Shape::of([4]) };
    let weight = b.graph.add_input("weight", Role::Param, weight);
    let outputs = b
        .formula(|cx| {
            let mut values = vec![cx.value(x)];
            for _ in 0..3 {
                let last = values[values.len() - 1];
                let mut next = draw.piece(last);
                if draw.below(3) == 0 {
                    next = draw.times(next, cx.value(weight));
                }
                if draw.below(4) == 0 {
                    next = draw.sum(next, values[0]);
                }
                values.push(next);
            }
            let used = draw.below(values.len() as u64) as usize;
            vec![values[values.len() - 1], values[used] * 2.0]
        })
        .unwrap();
    for (i, v) in outputs.into_iter().enumerate() {
        b.graph.outputs.insert(format!("output_{i}").into(), v);
    }
    b.graph
}

/// Attention in Einstein notation with the axes of all operands in any order, and now and then an axis that is summed.
fn random_einsums(seed: u64) -> (Graph, Vec<Vec<usize>>) {
    let mut draw = Draw(seed);
    let mut shuffled = |letters: &str| {
        let mut letters: Vec<char> = letters.chars().collect();
        for i in (1..letters.len()).rev() {
            letters.swap(i, draw.below(i as u64 + 1) as usize);
        }
        letters.into_iter().collect::<String>()
    };
    let batch = shuffled("bh");
    // Queries of a group read the same keys and values.
    let queries = shuffled(if seed.is_multiple_of(3) { "bhgqd" } else { "bhqd" });
    let group = if queries.contains('g') { shuffled(&format!("g{batch}")) } else { batch };
    let (keys, values) = (shuffled("bhkd"), shuffled("bhke"));
    let result = shuffled(&format!("{group}qe"));
    let result = if seed % 7 == 1 { result.replace('e', "") } else { result };
    let scores = format!("{group}{}", if seed % 11 == 2 { "kq" } else { "qk" });
    let is_swapped = seed % 2 == 1;
    let scoring = if is_swapped { [&keys, &queries] } else { [&queries, &keys] };
    let scoring = format!("{},{}->{scores}", scoring[0], scoring[1]);
    let size = |c: char| "_bhgqkde".find(c).unwrap() + 1;
    let shapes: Vec<Vec<usize>> =
        [&queries, &keys, &values].map(|term| term.chars().map(size).collect()).into();
    let mut b = Builder::new(FLOAT);
    let inputs: Vec<_> = shapes
        .iter()
        .zip(["query", "key", "value"])
        .map(|(shape, name)| {
            let ty = TensorType { dtype: FLOAT, shape: Shape::of(shape.iter().copied()) };
            b.graph.add_input(name, Role::Data, ty)
        })
        .collect();
    let equations = [scoring, format!("{scores},{values}->{result}")].map(|text| b.lit(Lit::text(&text)));
    let [left, right] = if is_swapped { [1, 0] } else { [0, 1] };
    let scores = b.push(&EINSUM, &[equations[0], inputs[left], inputs[right]]).unwrap()[0];
    let axis = b.lit(Lit::int(-1));
    let weights = b.push(&softmax::SOFTMAX, &[scores, axis]).unwrap()[0];
    let output = b.push(&EINSUM, &[equations[1], weights, inputs[2]]).unwrap()[0];
    b.graph.outputs.insert("output".into(), output);
    (b.graph, shapes)
}

#[test]
fn random_einsums_of_attention_keep_their_values() {
    let mut raised_ops = 0;
    for seed in 0..200 {
        let (graph, shapes) = random_einsums(seed);
        let raised = raise(&graph, FLOAT).unwrap();
        verify::verify(&raised, FLOAT).unwrap();
        raised_ops +=
            raised.nodes().filter(|(_, n)| n.op == &attention::SCALED_DOT_PRODUCT_ATTENTION).count();
        let mut draw = Draw(seed + 1000);
        let inputs: Vec<_> = shapes
            .iter()
            .map(|shape| {
                let count = shape.iter().product::<usize>();
                let values: Vec<f64> = (0..count).map(|_| draw.below(4001) as f64 / 1000.0 - 2.0).collect();
                Arc::new(Tensor::from_f64s(FLOAT, shape, &values))
            })
            .collect();
        let before = interp::run(&graph, &inputs).unwrap();
        let after = interp::run(&raised, &inputs).unwrap();
        let pairs = before[0].to_f64s().into_iter().zip(after[0].to_f64s());
        pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-9, "seed {seed}: {a} {b}"));
    }
    // Without those whose scores have keys before queries, and those that sum features.
    assert!(raised_ops > 140 && raised_ops < 180, "{raised_ops}");
}

#[test]
fn random_pieces_keep_their_values() {
    let raisable: [&mithril::ir::op::OpDef; 4] =
        [&a::GELU, &softmax::SOFTMAX, &a::SILU, &softmax::LOG_SOFTMAX];
    let mut raised_ops = 0;
    for seed in 0..400 {
        let graph = random_graph(seed);
        let raised = raise(&graph, FLOAT).unwrap();
        verify::verify(&raised, FLOAT).unwrap();
        raised_ops += raised.nodes().filter(|(_, node)| raisable.contains(&node.op)).count();
        let mut draw = Draw(seed + 1000);
        let mut tensor = |shape: &[usize]| {
            let count = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|_| draw.below(4001) as f64 / 1000.0 - 2.0).collect();
            Arc::new(Tensor::from_f64s(FLOAT, shape, &values))
        };
        let inputs = [tensor(&[4, 4, 4]), tensor(&[4])];
        let before = interp::run(&graph, &inputs).unwrap();
        let after = interp::run(&raised, &inputs).unwrap();
        for (a, b) in before.iter().zip(&after) {
            let (a, b) = (a.to_f64s(), b.to_f64s());
            let largest = a.iter().fold(1.0_f64, |m, x| m.max(x.abs()));
            let is_close =
                |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * largest || (a.is_nan() && b.is_nan());
            assert!(a.iter().zip(&b).all(is_close), "seed {seed}: {a:?} {b:?}");
        }
    }
    assert!(raised_ops > 600, "{raised_ops}");
}
