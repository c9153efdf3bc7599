//! Slices, indexing, splitting.

use std::sync::Arc;

use mithril_ir::shape::Shape;
use mithril_ir::{Code, Dim, Lit, Tensor};

use super::{args, infer, ints, is, is_refused, lit, range, run, run_all};

fn slice(start: impl Into<Lit>, stop: impl Into<Lit>, step: impl Into<Lit>) -> Lit {
    Lit::Slice(Arc::new([start.into(), stop.into(), step.into()]))
}

fn all() -> Lit {
    slice(Lit::None, Lit::None, Lit::None)
}

/// Every start, stop and step against the positions that the definition gives: from the start, as long as
/// before the stop, both counted from the end if negative, and only positions that exist.
#[test]
fn slices_follow_python() {
    let n = 4_i64;
    let bound = |b: Option<i64>| b.map_or(Lit::None, Lit::int);
    let choices: Vec<Option<i64>> = (-6..=6).map(Some).chain([None]).collect();
    for &start in &choices {
        for &stop in &choices {
            for step in [-3, -2, -1, 1, 2, 3_i64] {
                let count = |b: i64| if b < 0 { b + n } else { b };
                let from = start.map_or(if step > 0 { 0 } else { n - 1 }, count);
                // Forwards an early start begins at the first element, backwards a late one at the last.
                let mut at = if step > 0 { from.max(0) } else { from.min(n - 1) };
                let end = stop.map_or(if step > 0 { n } else { -1 }, count);
                let mut expected = Vec::new();
                while (0..n).contains(&at) && if step > 0 { at < end } else { at > end } {
                    expected.push(at);
                    at += step;
                }
                let y = run(
                    "slice",
                    args![range(&[4]), Lit::tuple([bound(start)]), Lit::tuple([bound(stop)]), lit([step])],
                );
                assert_eq!(y.to_i64s(), expected, "{start:?}:{stop:?}:{step}");
            }
        }
    }
}

#[test]
fn absurd_steps_take_one_element() {
    for step in [i64::MAX, i64::MIN + 1, i64::MIN] {
        let y = run("slice", args![range(&[3, 2]), lit(Lit::None), lit(Lit::None), lit([step])]);
        assert_eq!(y.shape(), [1, 2], "{step}");
    }
    is_refused("slice", args![range(&[3]), lit(Lit::None), lit(Lit::None), lit([0])], Code::BadArgument);
    is_refused("slice", args![range(&[3]), lit([0, 0]), lit(Lit::None)], Code::BadArgument);
    is_refused("slice", args![range(&[3]), lit("a"), lit(Lit::None)], Code::BadArgument);
}

#[test]
fn updates_replace_a_part() {
    let y = run("slice_update", args![range(&[2, 3]), ints(&[1], &[9]), lit([0, 2]), lit([2, 3])]);
    is(&y, &[2, 3], &[0, 1, 9, 3, 4, 9]);
    let none = || lit(Lit::None);
    let y = run("slice_update", args![range(&[4]), ints(&[2], &[8, 9]), none(), none(), lit([-2])]);
    is(&y, &[4], &[0, 9, 2, 8]);
    is_refused(
        "slice_update",
        args![range(&[4]), ints(&[3], &[1, 2, 3]), lit([0]), lit([2])],
        Code::ShapeMismatch,
    );
}

#[test]
fn symbolic_bounds_stay_symbolic() {
    let n = Dim::symbol("n");
    let shape = |key: Lit| infer("getitem", Shape::of([n.clone(), 3.into()]), &[key]).map(|t| t.shape);
    let rows = |d: Dim| Shape::of([d, 3.into()]);
    assert_eq!(shape(slice(Lit::None, -1, Lit::None)).unwrap(), rows(&n - &Dim::ONE));
    assert_eq!(shape(slice(1, n.clone(), Lit::None)).unwrap(), rows(&n - &Dim::ONE));
    assert_eq!(shape(slice(Lit::None, Lit::None, -1)).unwrap(), rows(n.clone()));
    let half = (&n + &Dim::ONE).floor_div(&Dim::Const(2));
    assert_eq!(shape(slice(Lit::None, Lit::None, 2)).unwrap(), rows(half));
    assert_eq!(shape(lit(-1)).unwrap(), Shape::of([3]));
    assert_eq!(shape(Lit::from(&n - &Dim::ONE)).unwrap(), Shape::of([3]));
}

#[test]
fn flipping_and_rolling() {
    is(&run("flip", args![range(&[2, 2])]), &[2, 2], &[3, 2, 1, 0]);
    is(&run("flip", args![range(&[2, 2]), lit(-1)]), &[2, 2], &[1, 0, 3, 2]);
    // From NumPy's documentation of roll.
    is(&run("roll", args![range(&[10]), lit(2)]), &[10], &[8, 9, 0, 1, 2, 3, 4, 5, 6, 7]);
    is(&run("roll", args![range(&[2, 5]), lit(1)]), &[2, 5], &[9, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    is(&run("roll", args![range(&[2, 5]), lit(-1), lit(1)]), &[2, 5], &[1, 2, 3, 4, 0, 6, 7, 8, 9, 5]);
    is(&run("roll", args![range(&[2]), lit(i64::MIN), lit(0)]), &[2], &[0, 1]);
    is_refused("flip", args![range(&[2]), lit(1)], Code::BadArgument);
    is_refused("roll", args![range(&[2]), lit([1, 2]), lit(0)], Code::BadArgument);
}

#[test]
fn splitting_gives_all_parts() {
    let parts = run_all("split", args![range(&[2, 4]), lit(2), lit(1)]).unwrap();
    is(&parts[0], &[2, 2], &[0, 1, 4, 5]);
    is(&parts[1], &[2, 2], &[2, 3, 6, 7]);
    let parts = run_all("split", args![range(&[5]), lit([1, 0, 4])]).unwrap();
    assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [1, 0, 4]);
    is_refused("split", args![range(&[5]), lit(2)], Code::ShapeMismatch);
    is_refused("split", args![range(&[5]), lit([2, 2])], Code::ShapeMismatch);
    is_refused("split", args![range(&[5]), lit(0)], Code::BadArgument);
    is_refused("split", args![range(&[5]), lit([-1, 6])], Code::BadArgument);
}

#[test]
fn keys_of_integers_and_slices() {
    let x = || range(&[2, 3, 4]);
    is(&run("getitem", args![x(), lit(1)]), &[3, 4], &(12..24).collect::<Vec<_>>());
    is(&run("getitem", args![x(), Lit::tuple([lit(-1), lit(0), lit(2)])]), &[], &[14]);
    let key = Lit::tuple([Lit::Ellipsis, lit(1)]);
    is(&run("getitem", args![x(), key]), &[2, 3], &[1, 5, 9, 13, 17, 21]);
    let key = Lit::tuple([all(), Lit::None, lit(2), slice(Lit::None, Lit::None, -2)]);
    is(&run("getitem", args![x(), key]), &[2, 1, 2], &[11, 9, 23, 21]);
    is(&run("getitem", args![range(&[2]), lit(Lit::None)]), &[1, 2], &[0, 1]);
}

/// Shapes as in NumPy's chapter "Combining advanced and basic indexing".
#[test]
fn axes_of_index_tensors_stand_as_in_numpy() {
    let shape = |from: &[usize], key: Vec<Lit>, indices: &[&[usize]]| {
        let mut args = vec![range(from).into(), Lit::tuple(key).into()];
        args.extend(indices.iter().map(|s| Tensor::full(mithril_ir::DType::I64, s, 0_i64).into()));
        run("getitem", &args).shape().to_vec()
    };
    let t = || lit("tensor");
    assert_eq!(shape(&[10, 2, 5], vec![Lit::Ellipsis, t(), all()], &[&[2, 3]]), [10, 2, 3, 5]);
    assert_eq!(shape(&[4, 5, 6], vec![all(), t(), t()], &[&[3], &[3]]), [4, 3]);
    assert_eq!(shape(&[4, 5, 6], vec![t(), all(), t()], &[&[3], &[3]]), [3, 5]);
    assert_eq!(shape(&[4, 5, 6], vec![all(), t(), Lit::Ellipsis, t()], &[&[3], &[3]]), [3, 4]);
    assert_eq!(shape(&[4, 5, 6], vec![all(), t(), Lit::None, t()], &[&[3], &[3]]), [3, 4, 1]);
    assert_eq!(shape(&[4, 5, 6], vec![all(), lit(0), t()], &[&[2]]), [4, 2]);
    assert_eq!(shape(&[4, 5, 6], vec![lit(0), all(), t()], &[&[2]]), [2, 5]);
    assert_eq!(shape(&[4, 5, 6], vec![t(), all(), lit(0)], &[&[2]]), [2, 5]);
    assert_eq!(shape(&[4, 5, 6, 7], vec![t(), t()], &[&[2, 1], &[3]]), [2, 3, 6, 7]);
}

#[test]
fn index_tensors_look_up() {
    // From NumPy's documentation: the corners of a 4 by 3 matrix.
    let corners = |key: Lit, more: Vec<Tensor>| {
        let mut args = vec![range(&[4, 3]).into(), key.into()];
        args.extend(more.into_iter().map(Into::into));
        run("getitem", &args)
    };
    let key = Lit::tuple([lit("tensor"), lit("tensor")]);
    let y = corners(key, vec![ints(&[2, 1], &[0, -1]), ints(&[2], &[0, 2])]);
    is(&y, &[2, 2], &[0, 2, 9, 11]);
    let y = corners(Lit::tuple([lit([0, 3]), lit([2, -3])]), vec![]);
    is(&y, &[2], &[2, 9]);
}

#[test]
fn bad_keys_are_refused() {
    let x = || range(&[2, 3]);
    is_refused("getitem", args![x(), lit(2)], Code::IndexOutOfRange);
    is_refused("getitem", args![x(), lit(-3)], Code::IndexOutOfRange);
    is_refused("getitem", args![x(), lit([0, 0, 0])], Code::RankMismatch);
    is_refused("getitem", args![x(), Lit::tuple([Lit::Ellipsis, Lit::Ellipsis])], Code::BadArgument);
    is_refused("getitem", args![x(), lit(true)], Code::BadArgument);
    is_refused("getitem", args![x(), Lit::tuple([lit([true, false])])], Code::BadArgument);
    is_refused("getitem", args![x(), lit(1.0)], Code::BadArgument);
    is_refused("getitem", args![x(), slice(0, 1, 0)], Code::BadArgument);
    is_refused("getitem", args![x(), lit("tensor")], Code::BadArgument);
    let pair = || Lit::tuple([lit("tensor"), lit("tensor")]);
    // Column 5 does not exist, although element 0 * 3 + 5 does.
    let outside = args![x(), pair(), ints(&[1], &[0]), ints(&[1], &[5])];
    is_refused("getitem", outside, Code::IndexOutOfRange);
    let unequal = args![x(), pair(), ints(&[2], &[0, 0]), ints(&[3], &[0, 0, 0])];
    is_refused("getitem", unequal, Code::ShapeMismatch);
}
