//! Creation, triangles and diagonals.

use mithril_ir::shape::Shape;
use mithril_ir::{Builder, Code, DType, Dim, Lit};

use super::{args, infer, ints, is, is_refused, lit, op, range, run};

#[test]
fn dtypes_of_created_tensors() {
    let dtype = |name: &str, args: &[super::Arg]| run(name, args).dtype();
    assert_eq!(dtype("zeros", args![lit([2])]), DType::F32);
    assert_eq!(dtype("full", args![lit([2]), lit(1)]), DType::I64);
    assert_eq!(dtype("full", args![lit([2]), lit(true)]), DType::Bool);
    assert_eq!(dtype("full", args![lit([2]), lit(0.5), lit(DType::I8)]), DType::I8);
    assert_eq!(dtype("zeros_like", args![ints(&[1], &[3])]), DType::I64);
    assert_eq!(dtype("arange", args![lit(3)]), DType::I64);
    assert_eq!(dtype("arange", args![lit(3.0)]), DType::F32);
}

#[test]
fn sequences() {
    is(&run("arange", args![lit(3), lit(10), lit(3)]), &[3], &[3, 6, 9]);
    is(&run("arange", args![lit(3), lit(0), lit(-2)]), &[2], &[3, 1]);
    is(&run("arange", args![lit(3), lit(3)]), &[0], &[]);
    let y = run("arange", args![lit(0.0), lit(0.3), lit(0.1), lit(DType::F64)]);
    // 0.3 / 0.1 is a little below 3.
    assert_eq!(y.to_f64s(), [0.0, 0.1, 0.2]);
    let y = run("linspace", args![lit(2.0), lit(3.0), lit(5)]);
    assert_eq!(y.to_f64s(), [2.0, 2.25, 2.5, 2.75, 3.0]);
    assert_eq!(run("linspace", args![lit(2.0), lit(3.0), lit(1)]).to_f64s(), [2.0]);
}

#[test]
fn symbolic_lengths() {
    let n = Dim::symbol("n");
    let mut b = Builder::default();
    let args = [b.lit(n.clone()), b.lit(&n + &Dim::Const(6)), b.lit(2)];
    let y = b.push(op("arange"), &args).unwrap()[0];
    assert_eq!(b.graph.ty(y).unwrap().shape, Shape::of([3]));
    let args = [b.lit(n.clone())];
    let y = b.push(op("arange"), &args).unwrap()[0];
    assert_eq!(b.graph.ty(y).unwrap().shape, Shape::of([n.clone()]));
    let lower = infer("tril", Shape::of([n.clone(), n.clone()]), &[]).unwrap().shape;
    assert_eq!(lower, Shape::of([n.clone(), n]));
}

#[test]
fn senseless_sizes_are_refused() {
    is_refused("zeros", args![lit([-1])], Code::BadArgument);
    is_refused("zeros", args![lit([1_i64 << 40, 1 << 40])], Code::BadSize);
    is_refused("arange", args![lit(0), lit(3), lit(0)], Code::BadArgument);
    is_refused("arange", args![lit(0.0), lit(f64::INFINITY)], Code::BadArgument);
    is_refused("arange", args![lit(f64::NAN)], Code::BadArgument);
    is_refused("arange", args![lit(0.0), lit(1e300), lit(1e-300)], Code::BadSize);
    is_refused("arange", args![lit(i64::MIN), lit(i64::MAX)], Code::BadSize);
    is_refused("linspace", args![lit(0.0), lit(1.0), lit(-1)], Code::BadArgument);
    is_refused("eye", args![lit(-1)], Code::BadArgument);
    is_refused("tril", args![range(&[3])], Code::RankMismatch);
}

#[test]
fn diagonals() {
    is(&run("eye", args![lit(2), lit(3), lit(1)]), &[2, 3], &[0, 1, 0, 0, 0, 1]);
    is(&run("tril", args![ints(&[2, 3], &[1; 6])]), &[2, 3], &[1, 0, 0, 1, 1, 0]);
    is(&run("triu", args![ints(&[2, 3], &[1; 6]), lit(-1)]), &[2, 3], &[1; 6]);
    is(&run("triu", args![ints(&[2, 3], &[1; 6]), lit(i64::MAX)]), &[2, 3], &[0; 6]);
    is(&run("tril", args![ints(&[2, 3], &[1; 6]), lit(i64::MIN)]), &[2, 3], &[0; 6]);
    is(&run("diagonal", args![range(&[3, 3]), lit(1)]), &[2], &[1, 5]);
    is(&run("diagonal", args![range(&[3, 2]), lit(-1)]), &[2], &[2, 5]);
    is(&run("diagonal", args![range(&[3, 2]), lit(i64::MIN)]), &[0], &[]);
    // From NumPy's documentation: the diagonals of the two faces.
    is(&run("diagonal", args![range(&[2, 2, 2]), lit(0), lit(0), lit(1)]), &[2, 2], &[0, 6, 1, 7]);
    is(&run("diag", args![range(&[2]), lit(-1)]), &[3, 3], &[0, 0, 0, 0, 0, 0, 0, 1, 0]);
    is(&run("diag", args![range(&[2, 2])]), &[2], &[0, 3]);
    is(&run("trace", args![range(&[3, 3])]), &[], &[12]);
    is_refused("diag", args![range(&[2, 2, 2])], Code::BadArgument);
    is_refused("diagonal", args![range(&[2, 2]), lit(0), lit(1), lit(-1)], Code::BadArgument);
    let n = Shape::of([Dim::symbol("n"), 3.into()]);
    assert_eq!(infer("diagonal", n, &[Lit::int(0)]).unwrap_err().code(), Code::UnknownShape);
}
