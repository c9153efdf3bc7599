//! Attention as a program may write it, and what is only similar, computes the same after the pass `raise`.

use std::sync::Arc;

use mithril::compile::passes::raise::raise;
use mithril::ir::build::Builder;
use mithril::ir::formula::V;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::ops::{attention, compare, elementwise as e, linalg, movement, reduce, softmax};
use mithril::ir::{DType, Lit, Shape, Tensor, interp, text, verify};

use crate::raise::Draw;

/// There are as many keys, or one more.
const QUERIES: usize = 4;
const FEATURES: usize = 4;

/// A graph, and whether it is attention.
struct Case {
    graph: Graph,
    dtype: DType,
    shapes: [Vec<usize>; 6],
    takes_mask: bool,
    is_attention: bool,
}

/// What a program may choose; rarely something after which it is not attention.
struct Writer {
    draw: Draw,
    dtype: DType,
    keys: usize,
    is_attention: bool,
    masks: usize,
    causal_masks: usize,
    /// Whether a number forbids, and is left where nothing else is.
    forbids_by_number: bool,
    /// Whether the argument forbids keys.
    argument_forbids: bool,
}

impl Writer {
    /// Whether to write what is not attention.
    fn misses(&mut self) -> bool {
        let misses = self.draw.below(12) == 0;
        self.is_attention &= !misses;
        misses
    }
    fn multiple<'a>(&mut self, x: V<'a>, by: f64) -> V<'a> {
        match self.draw.below(4) {
            0 => x / (1.0 / by),
            1 => x.lit(by) * x,
            2 => -(x * -by),
            _ => x * by,
        }
    }
    /// The product of queries and keys with a scale, which stands anywhere.
    fn scores<'a>(&mut self, query: V<'a>, key: V<'a>) -> V<'a> {
        let scale = [0.5, 0.3, 2.0][self.draw.below(3) as usize];
        let place = self.draw.below(4);
        let query = if place == 0 { self.multiple(query, scale) } else { query };
        let key = if place == 1 { self.multiple(key, scale) } else { key };
        let turned = match self.draw.below(3) {
            0 => key.op(&linalg::MATRIX_TRANSPOSE, &[]),
            1 => {
                let mut order: Vec<usize> = (0..key.rank()).collect();
                let last = order.len() - 1;
                order.swap(last, last - 1);
                key.op(&movement::TRANSPOSE, &[key.lit(Lit::tuple(order))])
            }
            _ => key.op(&movement::SWAPAXES, &[key.lit(-1_i64), key.lit(key.rank() as i64 - 2)]),
        };
        let turned = if place == 2 { self.multiple(turned, scale) } else { turned };
        let scores = query.op(&linalg::MATMUL, &[turned]);
        if place == 3 { self.multiple(scores, scale) } else { scores }
    }
    /// Truth values for each query and key; rarely, a query may have no key at all.
    fn constant(&mut self, causal: bool) -> Vec<bool> {
        let unread =
            if self.draw.below(4) == 0 { self.draw.below(QUERIES as u64) as usize } else { self.keys };
        let empty = if self.draw.below(4) == 0 { self.draw.below(QUERIES as u64) as usize } else { QUERIES };
        let allowed = |at: usize, draw: &mut Draw| {
            let (query, key) = (at / self.keys, at % self.keys);
            if causal {
                key <= query
            } else {
                query != empty && key != unread && (key == query || draw.yes())
            }
        };
        (0..QUERIES * self.keys).map(|at| allowed(at, &mut self.draw)).collect()
    }
    fn has_empty_row(&self, mask: &[bool]) -> bool {
        mask.chunks(self.keys).any(|row| !row.contains(&true))
    }
    fn tensor(&self, dtype: DType, values: &[f64]) -> Tensor {
        Tensor::from_f64s(dtype, &[QUERIES, self.keys], values)
    }
    /// Scores behind one more mask.
    fn masked<'a>(&mut self, scores: V<'a>, [positions, added, truth]: [V<'a>; 3]) -> V<'a> {
        let causal = self.draw.yes();
        // Only one mask can be an argument of the op; a causal one is a flag, and a constant is seen to be one.
        let takes_argument = |writer: &mut Self| {
            writer.masks += 1;
            writer.is_attention &= writer.masks < 2;
        };
        let numbers = if self.dtype == DType::F16 { [-65504.0, -6e4, -2.0] } else { [-1e30, f64::MIN, -2.0] };
        let fill = *numbers.get(self.draw.below(4) as usize).unwrap_or(&f64::NEG_INFINITY);
        match self.draw.below(4) {
            0 => {
                takes_argument(self);
                // A product elsewhere, such as of relative positions, is a mask, not the scores.
                let added = if self.draw.yes() { (positions * added).op(&e::TANH, &[]) } else { added };
                self.draw.sum(scores, added)
            }
            1 => {
                // What is left for a query without keys is mostly rounding in float16.
                let causal = causal || self.dtype == DType::F16;
                let mask = self.constant(causal);
                if causal && fill < -5e4 {
                    self.causal_masks += 1;
                    self.forbids_by_number |= fill.is_finite();
                } else {
                    takes_argument(self);
                    self.argument_forbids |= fill < -5e4 && mask.contains(&false);
                }
                let numbers: Vec<f64> = mask.iter().map(|&allows| if allows { 0.0 } else { fill }).collect();
                let mask = scores.lit(self.tensor(self.dtype, &numbers));
                self.draw.sum(scores, mask)
            }
            2 => {
                let mask = self.constant(causal);
                // Of a query without keys, a number leaves a mean.
                self.is_attention &= fill < -5e4 && (fill.is_infinite() || !self.has_empty_row(&mask));
                self.forbids_by_number |= fill.is_finite();
                if causal {
                    self.causal_masks += 1;
                } else {
                    takes_argument(self);
                    self.argument_forbids = true;
                }
                let keeps = self.draw.yes();
                let numbers: Vec<f64> = mask.iter().map(|&m| f64::from(u8::from(m == keeps))).collect();
                let mask = scores.lit(self.tensor(DType::Bool, &numbers));
                Self::chosen(scores, mask, fill, keeps)
            }
            _ => {
                takes_argument(self);
                self.argument_forbids = true;
                self.is_attention &= fill.is_infinite();
                let keeps = self.draw.yes();
                Self::chosen(scores, truth, fill, keeps)
            }
        }
    }
    fn chosen<'a>(scores: V<'a>, mask: V<'a>, fill: f64, keeps: bool) -> V<'a> {
        let fill = scores.lit(fill);
        let (yes, no) = if keeps { (scores, fill) } else { (fill, scores) };
        mask.op(&compare::WHERE, &[yes, no])
    }
    /// A softmax, which may be 0 for queries without keys.
    fn weights<'a>(&mut self, scores: V<'a>, [positions, truth]: [V<'a>; 2]) -> V<'a> {
        let axis = if self.misses() { -2_i64 } else { -1 };
        let softmax = |x: V<'a>| x.op(&softmax::SOFTMAX, &[x.lit(axis)]);
        let zero = if self.draw.below(3) > 0 { 0.0 } else { 0.25 };
        match self.draw.below(4) {
            0 => return softmax(scores),
            1 => {
                let weights = softmax(scores);
                let dead = weights.op(&compare::ISNAN, &[]);
                self.is_attention &= zero == 0.0;
                return dead.op(&compare::WHERE, &[weights.lit(zero), weights]);
            }
            _ => {}
        }
        let axis = if self.misses() { -2_i64 } else { -1 };
        let lowest = if self.misses() { -1.0 } else { f64::NEG_INFINITY };
        let read =
            if self.misses() { Self::chosen(positions, truth, f64::NEG_INFINITY, true) } else { scores };
        let is_forbidden = read.op(&compare::EQUAL, &[scores.lit(lowest)]);
        let rows = [scores.lit(axis), scores.lit(true)];
        let is_dead = if self.draw.below(2) == 0 {
            is_forbidden.op(&reduce::ALL, &rows)
        } else {
            let is_open = is_forbidden.op(&compare::LOGICAL_NOT, &[]);
            is_open.op(&reduce::ANY, &rows).op(&compare::LOGICAL_NOT, &[])
        };
        // Other scores for dead rows, so that the softmax is not NaN there.
        let inside = match self.draw.below(3) {
            0 => scores,
            _ if self.misses() => {
                self.is_attention = false;
                let other = is_dead.op(&compare::LOGICAL_NOT, &[]);
                other.op(&compare::WHERE, &[scores, scores.lit(0.5)])
            }
            _ => is_dead.op(&compare::WHERE, &[scores.lit(0.5), scores]),
        };
        self.is_attention &= zero == 0.0;
        is_dead.op(&compare::WHERE, &[scores.lit(zero), softmax(inside)])
    }
}

fn random_attention(seed: u64) -> Case {
    let mut draw = Draw(seed);
    let dtype = if draw.below(4) == 0 { DType::F16 } else { DType::F64 };
    let keys = QUERIES + usize::from(draw.below(3) == 0);
    let batch = [&[2][..], &[], &[1, 2], &[2, 1, 2]][draw.below(4) as usize];
    let of_batch = |matrix: [usize; 2]| [batch, &matrix].concat();
    let shapes = [
        of_batch([QUERIES, FEATURES]),
        of_batch([keys, FEATURES]),
        of_batch([keys, 3]),
        vec![QUERIES, keys],
        vec![FEATURES, keys],
        vec![QUERIES, keys],
    ];
    let mut writer = Writer {
        draw,
        dtype,
        keys,
        is_attention: true,
        masks: 0,
        causal_masks: 0,
        forbids_by_number: false,
        argument_forbids: false,
    };
    let mut b = Builder::new(dtype);
    let names = ["query", "key", "value", "added", "positions", "truth"];
    let inputs: Vec<_> = names
        .iter()
        .zip(&shapes)
        .map(|(name, shape)| {
            let dtype = if *name == "truth" { DType::Bool } else { dtype };
            let ty = TensorType { dtype, shape: Shape::of(shape.iter().copied()) };
            b.graph.add_input(*name, Role::Data, ty)
        })
        .collect();
    let outputs = b
        .formula(|cx| {
            let [query, key, value, added, positions, truth] =
                [0, 1, 2, 3, 4, 5].map(|i| cx.value(inputs[i]));
            let mut scores = writer.scores(query, key);
            for _ in 0..writer.draw.below(3) {
                let positions = query.op(&linalg::MATMUL, &[positions]);
                scores = writer.masked(scores, [positions, added, truth]);
            }
            // Each leaves a key, but nobody knows whether both do.
            writer.is_attention &=
                !(writer.forbids_by_number && writer.argument_forbids && writer.causal_masks > 0);
            let positions = query.op(&linalg::MATMUL, &[positions]);
            let weights = writer.weights(scores, [positions, truth]);
            let result = weights.op(&linalg::MATMUL, &[value]);
            if writer.misses() { vec![result, weights] } else { vec![result] }
        })
        .unwrap();
    for (i, v) in outputs.into_iter().enumerate() {
        b.graph.outputs.insert(format!("output_{i}").into(), v);
    }
    Case { graph: b.graph, dtype, shapes, takes_mask: writer.masks > 0, is_attention: writer.is_attention }
}

#[test]
fn random_attention_keeps_its_values() {
    let mut found = 0;
    for seed in 0..2000 {
        let Case { graph, dtype, shapes, takes_mask, is_attention } = random_attention(seed);
        let raised = raise(&graph, dtype).unwrap();
        verify::verify(&raised, dtype).unwrap();
        let is_raised = raised.nodes().any(|(_, n)| n.op == &attention::SCALED_DOT_PRODUCT_ATTENTION);
        assert!(is_raised || !is_attention, "seed {seed} is not raised:\n{}", text::print(&graph));
        let is_alone = raised.nodes().count() == 1 || takes_mask;
        assert!(is_alone || !is_attention, "seed {seed}: more is left\n{}", text::print(&raised));
        found += usize::from(is_raised);
        let mut draw = Draw(seed + 10_000);
        let inputs: Vec<_> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| {
                let dtype = if i == 5 { DType::Bool } else { dtype };
                let mut number = || match dtype {
                    DType::Bool => draw.below(4).min(1) as f64,
                    _ => draw.below(401) as f64 / 100.0 - 2.0,
                };
                let values: Vec<f64> = (0..shape.iter().product()).map(|_| number()).collect();
                Arc::new(Tensor::from_f64s(dtype, shape, &values))
            })
            .collect();
        let before = interp::run(&graph, &inputs).unwrap();
        let after = interp::run(&raised, &inputs).unwrap();
        // The op does not round in between.
        let bound = if dtype == DType::F16 { 0.05 } else { 1e-9 };
        for (a, b) in before.iter().zip(&after) {
            // Of a query that may attend to nothing, the op makes zeros instead of NaN.
            let is_close =
                |(a, b): (f64, f64)| (a - b).abs() < bound || (a.is_nan() && (b == 0.0 || b.is_nan()));
            let mut pairs = a.to_f64s().into_iter().zip(b.to_f64s());
            let [was, is] = [&graph, &raised].map(text::print);
            assert!(pairs.all(is_close), "seed {seed}: {a:?} {b:?}\n{was}\n{is}");
        }
    }
    assert!(found > 700, "{found}");
}
