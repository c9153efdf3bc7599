//! Joining, padding, repeating.

use mithril_ir::{Code, DType, Lit, Tensor};

use super::{args, ints, is, is_refused, lit, range, run};

#[test]
fn concatenating_and_stacking() {
    let y = run("cat", args![lit(1), range(&[2, 2]), range(&[2, 1])]);
    is(&y, &[2, 3], &[0, 1, 0, 2, 3, 1]);
    let y = run("concat", args![lit(0), ints(&[1], &[3]), Tensor::from_parts(&[1], vec![0.5_f32])]);
    assert_eq!((y.dtype(), y.to_f64s()), (DType::F32, vec![3.0, 0.5]));
    let y = run("stack", args![lit(-1), range(&[2]), range(&[2])]);
    is(&y, &[2, 2], &[0, 0, 1, 1]);
    is_refused("concat", args![lit(0)], Code::BadArgument);
    is_refused("concat", args![lit(0), range(&[2, 2]), range(&[2, 3])], Code::ShapeMismatch);
    is_refused("concat", args![lit(0), range(&[2]), range(&[2, 3])], Code::RankMismatch);
    is_refused("concat", args![lit(2), range(&[2, 2])], Code::BadArgument);
    is_refused("stack", args![lit(0), range(&[2]), range(&[3])], Code::ShapeMismatch);
}

/// The modes, from NumPy's documentation of pad (there for 1 to 5, here for 0 to 4).
#[test]
fn padding_modes() {
    let pad = |pads: [i64; 2], mode: &str| run("pad", args![range(&[5]), lit(pads), lit(mode)]).to_i64s();
    assert_eq!(pad([2, 3], "edge"), [0, 0, 0, 1, 2, 3, 4, 4, 4, 4]);
    assert_eq!(pad([2, 3], "reflect"), [2, 1, 0, 1, 2, 3, 4, 3, 2, 1]);
    assert_eq!(pad([2, 3], "symmetric"), [1, 0, 0, 1, 2, 3, 4, 4, 3, 2]);
    assert_eq!(pad([2, 3], "wrap"), [3, 4, 0, 1, 2, 3, 4, 0, 1, 2]);
    assert_eq!(pad([2, 3], "constant"), [0, 0, 0, 1, 2, 3, 4, 0, 0, 0]);
    assert_eq!(pad([-2, 1], "constant"), [2, 3, 4, 0]);
    assert_eq!(pad([-1, -1], "constant"), [1, 2, 3]);
}

#[test]
fn padding_several_axes() {
    let pads = Lit::tuple([lit([1, 0]), lit([0, 1])]);
    let y = run("pad", args![range(&[1, 2]), pads, lit("constant"), lit(7)]);
    is(&y, &[2, 3], &[7, 7, 7, 0, 1, 7]);
    is(&run("pad", args![range(&[1, 1]), lit([0, 1, 1, 0])]), &[2, 2], &[0, 0, 0, 0]);
    is(&run("pad", args![range(&[1, 2]), lit(1), lit("edge")]), &[3, 4], &[0, 0, 1, 1].repeat(3));
}

#[test]
fn impossible_padding_is_refused() {
    let x = || range(&[3]);
    is_refused("pad", args![x(), lit([3, 0]), lit("reflect")], Code::BadArgument);
    is_refused("pad", args![x(), lit([0, 4]), lit("circular")], Code::BadArgument);
    is_refused("pad", args![range(&[0]), lit([1, 0]), lit("edge")], Code::BadArgument);
    is_refused("pad", args![x(), lit([-1, 0]), lit("edge")], Code::BadArgument);
    is_refused("pad", args![x(), lit([-4, 4])], Code::BadArgument);
    is_refused("pad", args![x(), lit([i64::MIN, i64::MIN])], Code::BadArgument);
    is_refused("pad", args![x(), lit([1, 2, 3])], Code::BadArgument);
    is_refused("pad", args![x(), lit([1, 1]), lit("mirror")], Code::BadArgument);
    is_refused("pad", args![x(), lit([i64::MAX, i64::MAX])], Code::BadSize);
}

#[test]
fn tiling_and_repeating() {
    is(&run("tile", args![range(&[1, 2]), lit([2, 2])]), &[2, 4], &[0, 1, 0, 1, 0, 1, 0, 1]);
    is(&run("tile", args![range(&[2]), lit([2, 1])]), &[2, 2], &[0, 1, 0, 1]);
    is(&run("tile", args![range(&[2, 1]), lit(2)]), &[2, 2], &[0, 0, 1, 1]);
    is(&run("repeat", args![range(&[2, 2]), lit(2)]), &[8], &[0, 0, 1, 1, 2, 2, 3, 3]);
    is(&run("repeat", args![range(&[2, 2]), lit(2), lit(0)]), &[4, 2], &[0, 1, 0, 1, 2, 3, 2, 3]);
    is_refused("tile", args![range(&[2]), lit(-1)], Code::BadArgument);
    is_refused("repeat", args![range(&[2]), lit(-1)], Code::BadArgument);
    is_refused("repeat", args![range(&[2]), lit(i64::MAX)], Code::BadSize);
}
