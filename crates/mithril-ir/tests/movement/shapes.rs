//! Shapes, axes, broadcasting.

use mithril_ir::shape::Shape;
use mithril_ir::{Code, Dim, Lit};

use crate::{args, infer, is, is_refused, lit, range, run};

#[test]
fn transposing_moves_coordinates() {
    // Element [k, j, i] of the reversed tensor is element [i, j, k].
    is(&run("transpose", args![range(&[2, 3])]), &[3, 2], &[0, 3, 1, 4, 2, 5]);
    let y = run("permute", args![range(&[2, 1, 3]), lit([2, 0, 1])]);
    is(&y, &[3, 2, 1], &[0, 3, 1, 4, 2, 5]);
    let y = run("swapaxes", args![range(&[1, 2, 3]), lit(0), lit(-1)]);
    is(&y, &[3, 2, 1], &[0, 3, 1, 4, 2, 5]);
    let y = run("moveaxis", args![range(&[2, 3, 1]), lit(0), lit(-1)]);
    is(&y, &[3, 1, 2], &[0, 3, 1, 4, 2, 5]);
}

#[test]
fn broadcasting_repeats() {
    is(&run("broadcast_to", args![range(&[2, 1]), lit([2, 3])]), &[2, 3], &[0, 0, 0, 1, 1, 1]);
    is(
        &run("expand", args![range(&[1, 3]), lit([2, 2, -1])]),
        &[2, 2, 3],
        &[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2],
    );
}

#[test]
fn symbolic_sizes_are_divided() {
    let n = Dim::symbol("n");
    let image = || Shape::of([n.clone(), 4.into(), 4.into()]);
    let shape = |to: Lit| infer("reshape", image(), &[to]).map(|t| t.shape);
    assert_eq!(
        shape(Lit::tuple([Lit::from(n.clone()), lit(-1)])).unwrap(),
        Shape::of([n.clone(), 16.into()])
    );
    assert_eq!(shape(lit([-1, 16])).unwrap(), Shape::of([n.clone(), 16.into()]));
    assert_eq!(shape(lit([-1, 8])).unwrap(), Shape::of([&n * &Dim::Const(2), 8.into()]));
    assert_eq!(shape(lit([-1, 3])).unwrap_err().code(), Code::ShapeMismatch);
    assert_eq!(shape(lit([2, 8])).unwrap_err().code(), Code::ShapeMismatch);
    let flat = infer("flatten", image(), &[lit(1)]).unwrap().shape;
    assert_eq!(flat, Shape::of([n.clone(), 16.into()]));
    let wide = infer("broadcast_to", Shape::of([1]), &[Lit::tuple([n.clone(), n.clone()])]).unwrap().shape;
    assert_eq!(wide, Shape::of([n.clone(), n]));
}

#[test]
fn squeezing_needs_size_1() {
    is(&run("squeeze", args![range(&[1, 2, 1])]), &[2], &[0, 1]);
    is(&run("squeeze", args![range(&[1, 2, 1]), lit(-1)]), &[1, 2], &[0, 1]);
    is_refused("squeeze", args![range(&[1, 2, 1]), lit(1)], Code::ShapeMismatch);
    is(&run("unsqueeze", args![range(&[2]), lit([0, -1])]), &[1, 2, 1], &[0, 1]);
}

#[test]
fn bad_arguments_are_refused() {
    is_refused("reshape", args![range(&[2, 3]), lit([4])], Code::ShapeMismatch);
    is_refused("reshape", args![range(&[2, 3]), lit([-1, -1])], Code::BadArgument);
    is_refused("reshape", args![range(&[2, 3]), lit([-2, 3])], Code::BadArgument);
    is_refused("reshape", args![range(&[0, 3]), lit([0, -1])], Code::BadArgument);
    is_refused("reshape", args![range(&[2]), lit([i64::MAX, i64::MAX])], Code::ShapeMismatch);
    is_refused("transpose", args![range(&[2, 3]), lit([0, 0])], Code::BadArgument);
    is_refused("transpose", args![range(&[2, 3]), lit([0])], Code::BadArgument);
    is_refused("transpose", args![range(&[2, 3]), lit([0, 2])], Code::BadArgument);
    is_refused("swapaxes", args![range(&[]), lit(0), lit(0)], Code::BadArgument);
    is_refused("moveaxis", args![range(&[2, 3]), lit([0, 1]), lit(0)], Code::BadArgument);
    is_refused("expand_dims", args![range(&[2]), lit(3)], Code::BadArgument);
    is_refused("broadcast_to", args![range(&[2]), lit([3])], Code::ShapeMismatch);
    is_refused("broadcast_to", args![range(&[2, 2]), lit([2])], Code::RankMismatch);
    is_refused("broadcast_to", args![range(&[2]), lit([-1, 2])], Code::BadArgument);
    is_refused("flatten", args![range(&[2, 2]), lit(1), lit(0)], Code::BadArgument);
}
