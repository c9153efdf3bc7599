//! Plain numbers beside tensors: what a dtype cannot hold is refused, and compared as the number that it is.

use std::sync::Arc;

use mithril_ir::error::Place;
use mithril_ir::graph::{Role, TensorType, ValueId};
use mithril_ir::ops::find;
use mithril_ir::tensor::{Scalar, Tensor};
use mithril_ir::{Builder, Code, DType, Shape, interp};

type Relation = fn(i128, i128) -> bool;

fn input(b: &mut Builder, dtype: DType, shape: &[i64]) -> ValueId {
    b.graph.add_input("x", Role::Data, TensorType { dtype, shape: Shape::of(shape.iter().copied()) })
}

#[test]
fn numbers_that_a_dtype_cannot_hold_are_refused() {
    let elementwise = [
        "add",
        "subtract",
        "multiply",
        "floor_divide",
        "remainder",
        "power",
        "maximum",
        "minimum",
        "clip",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "left_shift",
        "right_shift",
        "full_like",
    ];
    for (dtype, n) in [(DType::U8, -3_i64), (DType::U8, 256), (DType::I8, 128), (DType::I32, 1 << 40)] {
        let mut b = Builder::default();
        b.set_origin(Place { path: Some("part".into()), line: None });
        let (x, condition) = (input(&mut b, dtype, &[2]), input(&mut b, DType::Bool, &[2]));
        let (n, one, constant) = (b.lit(n), b.lit(1), b.lit("constant"));
        let mut refused = |name: &str, args: &[ValueId]| {
            let error = b.push(find(name).unwrap(), args).expect_err(name);
            assert_eq!(error.code(), Code::Numerics, "{name} {error}");
            assert!(error.to_string().contains("`part`") && error.hint().is_some(), "{error}");
        };
        for name in elementwise {
            refused(name, &[x, n]);
        }
        refused("where", &[condition, x, n]);
        refused("where", &[condition, n, x]);
        refused("pad", &[x, one, constant, n]);
        // What becomes a float holds it.
        assert!(b.push(find("divide").unwrap(), &[x, n]).is_ok());
    }
}

#[test]
fn comparisons_with_any_number_are_exact() {
    let relations: [(&str, Relation); 6] = [
        ("equal", |a, b| a == b),
        ("not_equal", |a, b| a != b),
        ("less", |a, b| a < b),
        ("less_equal", |a, b| a <= b),
        ("greater", |a, b| a > b),
        ("greater_equal", |a, b| a >= b),
    ];
    for (dtype, n) in
        [(DType::U8, -3_i64), (DType::U8, 300), (DType::I8, 200), (DType::I32, -(1 << 40)), (DType::U64, -1)]
    {
        let (least, most) = dtype.int_range().unwrap();
        let elements = [least, 44, most];
        for (name, holds) in relations {
            let mut b = Builder::default();
            let (x, n_lit) = (input(&mut b, dtype, &[3]), b.lit(n));
            for (output, args) in [("right", [x, n_lit]), ("left", [n_lit, x])] {
                let y = b.push(find(name).unwrap(), &args).unwrap()[0];
                b.graph.outputs.insert(output.into(), y);
            }
            let x = Tensor::build(dtype, &[3], |i| Scalar::Int(elements[i]));
            let actual = interp::run(&b.graph, &[Arc::new(x)]).unwrap();
            assert_eq!(
                actual[0].as_slice::<bool>().unwrap(),
                elements.map(|x| holds(x, n.into())),
                "{name} {n}"
            );
            assert_eq!(
                actual[1].as_slice::<bool>().unwrap(),
                elements.map(|x| holds(n.into(), x)),
                "{n} {name}"
            );
        }
    }
}
