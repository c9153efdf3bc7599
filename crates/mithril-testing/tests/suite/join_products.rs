//! Random sums with products among their terms: thin ones become one product, and every number stays the same.

use std::sync::Arc;

use mithril::compile::passes::join_products::join_products;
use mithril::ir::build::Builder;
use mithril::ir::graph::{Graph, Role, TensorType, ValueId};
use mithril::ir::ops::{elementwise, linalg};
use mithril::ir::{DType, Shape, Tensor, interp, text, verify};

use crate::raise::Draw;

const FLOAT: DType = DType::F64;

struct Writer {
    draw: Draw,
    b: Builder,
    shapes: Vec<Vec<i64>>,
    /// Products that are to become one.
    thin: usize,
    /// Products that are to stay.
    thick: usize,
}

impl Writer {
    fn input(&mut self, shape: &[i64]) -> ValueId {
        let ty = TensorType { dtype: FLOAT, shape: Shape::of(shape.iter().copied()) };
        let name = format!("input_{}", self.shapes.len());
        self.shapes.push(shape.to_vec());
        self.b.graph.add_input(name.as_str(), Role::Data, ty)
    }
    fn output(&mut self, v: ValueId) {
        let name = format!("output_{}", self.b.graph.outputs.len());
        self.b.graph.outputs.insert(name.into(), v);
    }
    /// A product of `[..., m, k]` and `[..., k, n]`.
    fn product(&mut self, front: &[i64], [m, k, n]: [i64; 3]) -> ValueId {
        // A factor that is the same for all matrices.
        let is_whole = front.is_empty() || self.draw.below(4) > 0;
        let left_front = if is_whole { front } else { &[] };
        let left = if self.draw.yes() {
            let left = self.input(&[left_front, &[k, m]].concat());
            self.b.push(&linalg::MATRIX_TRANSPOSE, &[left]).unwrap()[0]
        } else {
            self.input(&[left_front, &[m, k]].concat())
        };
        let right = self.input(&[front, &[k, n]].concat());
        let product = self.b.push(&linalg::MATMUL, &[left, right]).unwrap()[0];
        let is_shared = self.draw.below(8) == 0;
        if is_shared {
            self.output(product);
        }
        if is_whole && !is_shared && k * (m + n) <= m * n {
            self.thin += 1;
        } else {
            self.thick += 1;
        }
        product
    }
    fn term(&mut self, front: &[i64], [m, n]: [i64; 2]) -> ValueId {
        match self.draw.below(6) {
            0 => self.input(&[front, &[m, n]].concat()),
            1 => self.input(&[n]),
            _ => {
                let k = 1 + self.draw.below(6) as i64;
                self.product(front, [m, k, n])
            }
        }
    }
}

/// A sum in a random order, and whether all of it is one sum.
fn random_sum(seed: u64) -> (Writer, bool) {
    let (draw, b) = (Draw(seed), Builder::new(FLOAT));
    let mut w = Writer { draw, b, shapes: Vec::new(), thin: 0, thick: 0 };
    let sizes = [0; 4].map(|_| 1 + w.draw.below(9) as i64);
    let front = &sizes[..w.draw.below(3) as usize];
    let [.., m, n] = sizes;
    let mut terms: Vec<_> = (0..2 + w.draw.below(6)).map(|_| w.term(front, [m, n])).collect();
    let mut is_one = true;
    while terms.len() > 1 {
        let mut take = || terms.swap_remove(w.draw.below(terms.len() as u64) as usize);
        let pair = [take(), take()];
        let sum = w.b.push(&elementwise::ADD, &pair).unwrap()[0];
        if !terms.is_empty() && w.draw.below(10) == 0 {
            w.output(sum);
            is_one = false;
        }
        terms.push(sum);
    }
    w.output(terms[0]);
    (w, is_one)
}

fn products(graph: &Graph) -> usize {
    graph.nodes().filter(|(_, node)| node.op == &linalg::MATMUL).count()
}

#[test]
fn random_sums_keep_their_values() {
    let mut several = 0;
    for seed in 0..2000 {
        let (w, is_one) = random_sum(seed);
        let graph = &w.b.graph;
        let joined = join_products(graph, FLOAT).unwrap();
        let texts = || format!("seed {seed}:\n{}\n{}", text::print(graph), text::print(&joined));
        verify::verify(&joined, FLOAT).unwrap();
        if is_one {
            assert_eq!(products(&joined), w.thick + w.thin.min(1), "{}", texts());
            several += usize::from(w.thin > 1);
        }
        // Integers, whose sums are exact in any order.
        let mut draw = Draw(seed + 10_000);
        let inputs: Vec<_> = w
            .shapes
            .iter()
            .map(|shape| {
                let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
                let count = shape.iter().product::<usize>();
                let values: Vec<f64> = (0..count).map(|_| draw.below(9) as f64 - 4.0).collect();
                Arc::new(Tensor::from_f64s(FLOAT, &shape, &values))
            })
            .collect();
        let before = interp::run(graph, &inputs).unwrap();
        let after = interp::run(&joined, &inputs).unwrap();
        for (a, b) in before.iter().zip(&after) {
            assert_eq!((a.shape(), a.to_f64s()), (b.shape(), b.to_f64s()), "{}", texts());
        }
    }
    assert!(several > 150, "{several}");
}

#[test]
fn many_products_become_several() {
    let (draw, b) = (Draw(0), Builder::new(FLOAT));
    let mut w = Writer { draw, b, shapes: Vec::new(), thin: 0, thick: 0 };
    let mut sum = w.input(&[8, 9]);
    while w.thin < 300 {
        let product = w.product(&[], [8, 1, 9]);
        sum = w.b.push(&elementwise::ADD, &[sum, product]).unwrap()[0];
    }
    w.output(sum);
    let joined = join_products(&w.b.graph, FLOAT).unwrap();
    verify::verify(&joined, FLOAT).unwrap();
    // 300 in groups of 128, and those that are outputs themselves.
    assert_eq!(products(&joined), 3 + w.thick);
}

#[test]
fn sizes_that_are_not_known_stay_apart() {
    let parsed = text::parse(
        "graph {
  data %0 \"g\": f32[n, 30]
  data %1 \"x\": f32[n, 20]
  %2: f32[30, n] = matrix_transpose(%0) in \"\"
  %3: f32[30, 20] = matmul(%2, %1) in \"\"
  %4: f32[30, 20] = matmul(%2, %1) in \"\"
  %5: f32[30, 20] = add(%3, %4) in \"\"
  return \"y\" = %5
}
",
    )
    .unwrap();
    assert_eq!(products(&join_products(&parsed, DType::F32).unwrap()), 2);
}
