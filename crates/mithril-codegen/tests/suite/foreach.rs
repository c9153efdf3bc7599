//! Like ops on many tensors become calls on lists of them, which write into lists that nothing else reads.

use std::sync::Arc;

use mithril_codegen::python::{EVALUATE, Function, Results, TORCH, emit_on};

use mithril_ir::ops::find;
use mithril_ir::{Builder, DType, Role, Shape, TensorType, ValueId};

/// The lines of the body, where each of two inputs goes through these ops with these numbers.
fn lines(chain: &[(&str, &[f64])], returned: &[usize], device: &str) -> Vec<String> {
    written(chain, returned, device, false)
}

/// The same where the inputs are given away.
fn donated(chain: &[(&str, &[f64])], returned: &[usize]) -> Vec<String> {
    written(chain, returned, "cpu", true)
}

fn written(chain: &[(&str, &[f64])], returned: &[usize], device: &str, is_donated: bool) -> Vec<String> {
    let mut b = Builder::default();
    for part in 0..2 {
        let name = format!("x_{part}");
        let mut v = b.graph.add_input(
            &*name,
            Role::Data,
            TensorType { dtype: DType::F32, shape: Shape::of([4, 2 + part]) },
        );
        for (i, (op, numbers)) in chain.iter().enumerate() {
            let numbers: Vec<ValueId> = numbers.iter().map(|&x| b.lit(x)).collect();
            v = b.push(find(op).unwrap(), &[vec![v], numbers].concat()).unwrap()[0];
            if returned.contains(&i) {
                b.graph.outputs.insert(format!("y{i}_{part}").into(), v);
            }
        }
    }
    let inputs: [Arc<str>; 2] = ["x_0".into(), "x_1".into()];
    let function = Function {
        name: "evaluate",
        graph: &b.graph,
        arguments: EVALUATE,
        results: Results::Dict,
        donated: if is_donated { &inputs } else { &[] },
        foreach: true,
    };
    let text = emit_on(&TORCH, &[function], device).unwrap().text;
    text.lines().filter(|line| line.contains("torch._foreach")).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn lists_that_nothing_else_reads_are_written_into() {
    let chain: &[(&str, &[f64])] = &[("multiply", &[2.0]), ("add", &[1.0]), ("sqrt", &[])];
    let expected =
        ["ys = torch._foreach_mul(xs, 2.0)", "torch._foreach_add_(ys, 1.0)", "torch._foreach_sqrt_(ys)"];
    assert_eq!(lines(chain, &[2], "cpu"), expected.map(|line| line.replace("ys", "y2s")));
}

#[test]
fn what_is_returned_or_given_is_not_written_into() {
    let chain: &[(&str, &[f64])] = &[("multiply", &[2.0]), ("sqrt", &[])];
    let expected = ["y0s = torch._foreach_mul(xs, 2.0)", "y1s = torch._foreach_sqrt(y0s)"];
    assert_eq!(lines(chain, &[0, 1], "cpu"), expected);
}

#[test]
fn calls_of_calls_become_statements() {
    let chain: &[(&str, &[f64])] = &[("multiply", &[2.0]), ("clip", &[-1.0, 1.0])];
    let expected = [
        "y1s = torch._foreach_mul(xs, 2.0)",
        "torch._foreach_maximum_(y1s, -1.0)",
        "torch._foreach_minimum_(y1s, 1.0)",
    ];
    assert_eq!(lines(chain, &[1], "cuda"), expected);
}

#[test]
fn lists_that_are_given_away_are_written_into() {
    let chain: &[(&str, &[f64])] = &[("multiply", &[2.0]), ("sqrt", &[])];
    assert_eq!(donated(chain, &[1]), ["torch._foreach_mul_(xs, 2.0)", "torch._foreach_sqrt_(xs)"]);
    // What is returned keeps its value.
    let expected = ["torch._foreach_mul_(xs, 2.0)", "y1s = torch._foreach_sqrt(xs)"];
    assert_eq!(donated(chain, &[0, 1]), expected);
}

#[test]
fn calls_of_calls_write_into_lists_that_are_given_away() {
    let expected = ["torch._foreach_maximum_(xs, -1.0)", "torch._foreach_minimum_(xs, 1.0)"];
    assert_eq!(donated(&[("clip", &[-1.0, 1.0])], &[0]), expected);
}
