//! Products as exporters write them, with operands that are flattened and transposed for them, compute the same after the
//! pass `raise`, and nothing is left of the movements; what is only similar computes the same.

use std::sync::Arc;

use mithril::compile::passes::raise::raise;
use mithril::ir::build::Builder;
use mithril::ir::formula::V;
use mithril::ir::graph::{Graph, Node, Role, TensorType, ValueId};
use mithril::ir::ops::{linalg, movement};
use mithril::ir::{DType, Lit, Shape, Tensor, interp, text, verify};

use crate::raise::Draw;

const FLOAT: DType = DType::F64;
/// Sizes that are often alike, so that axes in the wrong place still fit.
const SIZES: [i64; 3] = [2, 3, 2];

struct Writer {
    draw: Draw,
    b: Builder,
    shapes: Vec<Vec<i64>>,
    /// Whether only products are left of it.
    is_regular: bool,
}

fn shaped<'a>(x: V<'a>, shape: &[i64]) -> V<'a> {
    x.op(&movement::RESHAPE, &[x.lit(Lit::tuple(shape.iter().copied()))])
}

fn transposed<'a>(x: V<'a>, order: &[usize]) -> V<'a> {
    x.op(&movement::TRANSPOSE, &[x.lit(Lit::tuple(order.iter().copied()))])
}

impl Writer {
    fn input(&mut self, role: Role, shape: &[i64]) -> ValueId {
        let ty = TensorType { dtype: FLOAT, shape: Shape::of(shape.iter().copied()) };
        let name = format!("input_{}", self.shapes.len());
        self.shapes.push(shape.to_vec());
        self.b.graph.add_input(name.as_str(), role, ty)
    }
    fn sizes(&mut self, n: usize) -> Vec<i64> {
        (0..n).map(|_| SIZES[self.draw.below(3) as usize]).collect()
    }
}

/// A choice between what belongs to a product and, rarely, what does not.
fn misses(draw: &mut Draw, is_regular: &mut bool) -> bool {
    let misses = draw.below(10) == 0;
    *is_regular &= !misses;
    misses
}

/// The last two axes exchanged, in one of the ways there are.
fn matrix_transpose<'a>(draw: &mut Draw, x: V<'a>) -> V<'a> {
    let n = x.rank();
    match draw.below(3) {
        0 => x.op(&linalg::MATRIX_TRANSPOSE, &[]),
        1 => x.op(&movement::SWAPAXES, &[x.lit(-1_i64), x.lit(n as i64 - 2)]),
        _ => {
            let mut order: Vec<usize> = (0..n).collect();
            order.swap(n - 1, n - 2);
            transposed(x, &order)
        }
    }
}

/// `input @ weightᵀ + bias` over leading axes that may be flattened for it.
fn layer(w: &mut Writer) -> Vec<ValueId> {
    let count = 1 + w.draw.below(4) as usize;
    let front = w.sizes(count);
    let [k, n] = w.sizes(2)[..] else { unreachable!() };
    let shape = [&front[..], &[k]].concat();
    let rows = front.iter().product();
    let x = w.input(Role::Data, &shape);
    let is_param = !misses(&mut w.draw, &mut w.is_regular);
    let weight = w.input(if is_param { Role::Param } else { Role::Data }, &[n, k]);
    let bias_shape = match w.draw.below(4) {
        0 => vec![1, n],
        1 if misses(&mut w.draw, &mut w.is_regular) => vec![rows, 1],
        _ => vec![n],
    };
    let bias = w.input(Role::Param, &bias_shape);
    let (draw, is_regular) = (&mut w.draw, &mut w.is_regular);
    with(&mut w.b, [x, weight, bias], |Context { x, weight, bias }: Context<'_>| {
        let is_flat = count != 1 && draw.yes();
        let x = if is_flat { shaped(x, &[rows, k]) } else { x };
        let weight = if n == k && misses(draw, is_regular) {
            transposed(weight, &[0, 1])
        } else {
            matrix_transpose(draw, weight)
        };
        let mut y = x.op(&linalg::MATMUL, &[weight]);
        if draw.yes() {
            let as_row = bias.rank() == 1 && draw.yes();
            let bias = if as_row { bias.op(&movement::EXPAND_DIMS, &[bias.lit(0_i64)]) } else { bias };
            y = draw.sum(y, bias);
        }
        if is_flat {
            let mut target = [&front[..], &[n]].concat();
            if misses(draw, is_regular) {
                target.reverse();
            }
            y = shaped(y, &target);
        }
        vec![y]
    })
}

struct Context<'a> {
    x: V<'a>,
    weight: V<'a>,
    bias: V<'a>,
}

fn with(
    b: &mut Builder,
    [x, weight, bias]: [ValueId; 3],
    build: impl for<'a> FnOnce(Context<'a>) -> Vec<V<'a>>,
) -> Vec<ValueId> {
    b.formula(|cx| build(Context { x: cx.value(x), weight: cx.value(weight), bias: cx.value(bias) }))
        .unwrap()
        .into_iter()
        .collect()
}

/// Products of many matrices, whose leading axes are flattened for `bmm`.
fn stack(w: &mut Writer) -> Vec<ValueId> {
    let count = 2 + w.draw.below(3) as usize;
    let front = w.sizes(count);
    let [m, k, n] = w.sizes(3)[..] else { unreachable!() };
    let many = front.iter().product();
    let mut other = front.clone();
    if misses(&mut w.draw, &mut w.is_regular) {
        other.rotate_left(1);
        // Equal sizes are at their places again.
        w.is_regular |= other == front;
    }
    let x = w.input(Role::Data, &[&front[..], &[m, k]].concat());
    let turns = w.draw.below(3);
    let y = w.input(Role::Data, &[&other[..], &if turns == 0 { [k, n] } else { [n, k] }].concat());
    let (draw, is_regular) = (&mut w.draw, &mut w.is_regular);
    with(&mut w.b, [x, y, y], |Context { x, weight: y, .. }: Context<'_>| {
        let x = shaped(x, &[many, m, k]);
        let y = match turns {
            0 => shaped(y, &[many, k, n]),
            1 => shaped(matrix_transpose(draw, y), &[many, k, n]),
            _ => {
                // Turned while it is flat.
                let flat = shaped(y, &[many, n, k]);
                let turned = shaped(matrix_transpose(draw, flat), &[&other[..], &[k, n]].concat());
                shaped(turned, &[many, k, n])
            }
        };
        let mut target = [&front[..], &[m, n]].concat();
        if misses(draw, is_regular) {
            target.reverse();
        }
        vec![shaped(x.op(&linalg::MATMUL, &[y]), &target)]
    })
}

/// Movements in a row, also of vectors.
fn moves(w: &mut Writer) -> Vec<ValueId> {
    let count = 2 + w.draw.below(4) as usize;
    let shape = w.sizes(count);
    let x = w.input(Role::Data, &shape);
    let draw = &mut w.draw;
    w.is_regular = false;
    with(&mut w.b, [x, x, x], |Context { mut x, .. }| {
        let mut all = Vec::new();
        for _ in 0..5 {
            let rank = x.rank();
            x = match draw.below(6) {
                0 if rank >= 2 => matrix_transpose(draw, x),
                1 => shaped(x, &[shape.iter().product()]),
                2 | 3 => {
                    let mut target = shape.clone();
                    if draw.yes() {
                        target.reverse();
                    }
                    shaped(x, &target)
                }
                _ => {
                    let mut order: Vec<usize> = (0..rank).collect();
                    for i in (1..rank).rev() {
                        order.swap(i, draw.below(i as u64 + 1) as usize);
                    }
                    transposed(x, &order)
                }
            };
            if draw.below(4) == 0 {
                all.push(x);
            }
        }
        all.push(x);
        all
    })
}

fn random_product(seed: u64) -> (Graph, Vec<Vec<i64>>, bool) {
    let (draw, b) = (Draw(seed), Builder::new(FLOAT));
    let mut w = Writer { draw, b, shapes: Vec::new(), is_regular: true };
    let outputs = match w.draw.below(3) {
        0 => layer(&mut w),
        1 => stack(&mut w),
        _ => moves(&mut w),
    };
    for (i, v) in outputs.into_iter().enumerate() {
        w.b.graph.outputs.insert(format!("output_{i}").into(), v);
    }
    (w.b.graph, w.shapes, w.is_regular)
}

/// Whether a transposition that nothing else reads is transposed.
fn turns_twice(graph: &Graph) -> bool {
    let is_turn = |node: &Node| node.op == &movement::TRANSPOSE;
    graph.nodes().filter(|(_, node)| is_turn(node)).any(|(_, node)| {
        let v = node.inputs[0];
        let uses = graph.nodes().flat_map(|(_, node)| &node.inputs).filter(|&&used| used == v).count();
        let is_private = uses == 1 && !graph.outputs.values().any(|&output| output == v);
        is_private && graph.producer(v).is_some_and(|n| is_turn(graph.node(n)))
    })
}

#[test]
fn random_products_keep_their_values() {
    let mut regular = 0;
    for seed in 0..1500 {
        let (graph, shapes, is_regular) = random_product(seed);
        let raised = raise(&graph, FLOAT).unwrap();
        verify::verify(&raised, FLOAT).unwrap();
        assert!(!turns_twice(&raised), "seed {seed}:\n{}", text::print(&raised));
        if is_regular {
            regular += 1;
            // What changes nothing goes later, a parameter may become a vector, and matrices of a stack may be turned in
            // front of their product.
            let is_left = |(_, node): &(_, &Node)| {
                let [from, to] = [node.inputs[0], node.outputs[0]].map(|v| raised.ty(v).map(|ty| &ty.shape));
                node.op != &movement::RESHAPE || (from != to && raised.producer(node.inputs[0]).is_some())
            };
            let mut ops: Vec<_> = raised.nodes().filter(is_left).map(|(_, node)| node.op.name).collect();
            if ops.last() == Some(&linalg::MATMUL.name) && ops.len() == 2 {
                ops.retain(|name| {
                    ![movement::TRANSPOSE.name, movement::SWAPAXES.name, linalg::MATRIX_TRANSPOSE.name]
                        .contains(name)
                });
            }
            assert!(
                ops.len() == 1,
                "seed {seed}: {ops:?}\n{}\n{}",
                text::print(&graph),
                text::print(&raised)
            );
        }
        let mut draw = Draw(seed + 10_000);
        let inputs: Vec<_> = shapes
            .iter()
            .map(|shape| {
                let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
                let count = shape.iter().product::<usize>();
                let values: Vec<f64> = (0..count).map(|_| draw.below(4001) as f64 / 1000.0 - 2.0).collect();
                Arc::new(Tensor::from_f64s(FLOAT, &shape, &values))
            })
            .collect();
        let before = interp::run(&graph, &inputs).unwrap();
        let after = interp::run(&raised, &inputs).unwrap();
        for (a, b) in before.iter().zip(&after) {
            assert_eq!(
                a.shape(),
                b.shape(),
                "seed {seed}:\n{}\n{}",
                text::print(&graph),
                text::print(&raised)
            );
            let mut pairs = a.to_f64s().into_iter().zip(b.to_f64s());
            assert!(
                pairs.all(|(a, b)| (a - b).abs() < 1e-9),
                "seed {seed}:\n{}\n{}",
                text::print(&graph),
                text::print(&raised)
            );
        }
    }
    assert!(regular > 300, "{regular}");
}
