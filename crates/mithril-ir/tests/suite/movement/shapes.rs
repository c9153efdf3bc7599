//! Shapes, axes, broadcasting.

use mithril_ir::op::ShapeRule;
use mithril_ir::rules::{ShapeArg, ShapeCx};
use mithril_ir::shape::Shape;
use mithril_ir::{Code, Dim, Lit};

use super::{args, infer, is, is_refused, lit, op, range, run};

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

/// While solving, a rule that needs an unknown size says "ask later", and the others go on.
#[test]
fn unknown_sizes_wait_or_become_equations() {
    let var = || Dim::var(0);
    let shape = |dims: [Dim; 2]| ShapeArg::Shape(Shape::of(dims));
    let solve = |name: &str, args: &[ShapeArg]| {
        let row = op(name);
        let cx = ShapeCx::solving(row, args);
        let ShapeRule::Fn(rule) = row.shape else { panic!("{name} has no rule") };
        rule(&cx).map(|shapes| (shapes[0].clone(), cx.into_equations())).map_err(|e| e.code())
    };
    let open = || shape([var(), 3.into()]);
    let arg = |l: Lit| ShapeArg::Lit(l);
    assert_eq!(solve("reshape", &[open(), arg(lit([-1, 3]))]), Err(Code::UnknownShape));
    assert_eq!(solve("reshape", &[open(), arg(lit([6, 2]))]), Ok((Shape::of([6, 2]), vec![])));
    assert_eq!(solve("squeeze", &[open(), arg(Lit::None)]), Err(Code::UnknownShape));
    let squeezed = solve("squeeze", &[open(), arg(lit(0))]);
    assert_eq!(squeezed, Ok((Shape::of([3]), vec![(var(), Dim::ONE)])));
    let joined = solve("concat", &[arg(lit(1)), open(), shape([2.into(), 4.into()])]);
    assert_eq!(joined, Ok((Shape::of([var(), 7.into()]), vec![(var(), Dim::Const(2))])));
    let none = || arg(Lit::None);
    assert_eq!(solve("slice", &[open(), arg(lit([1])), none(), none()]), Err(Code::UnknownShape));
    let second = arg(Lit::tuple([Lit::None, lit(1)]));
    let sliced = solve("slice", &[open(), second, none(), none()]);
    assert_eq!(sliced, Ok((Shape::of([var(), 2.into()]), vec![])));
    let wide = solve("broadcast_to", &[open(), arg(lit([5, 3]))]);
    assert_eq!(wide, Ok((Shape::of([5, 3]), vec![])));
}
