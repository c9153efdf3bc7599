//! Look-up and its adjoints.

use mithril_ir::{Code, DType, Tensor};

use super::{args, ints, is, is_refused, lit, range, run};

#[test]
fn taking_along_an_axis() {
    is(&run("take", args![range(&[2, 3]), ints(&[2], &[-1, 0]), lit(1)]), &[2, 2], &[2, 0, 5, 3]);
    is(&run("take", args![range(&[2, 3]), ints(&[1, 2], &[1, 1]), lit(0)]), &[1, 2, 3], &[3, 4, 5, 3, 4, 5]);
    is(&run("take", args![range(&[2, 3]), ints(&[], &[-6])]), &[], &[0]);
    is_refused("take", args![range(&[2, 3]), ints(&[1], &[3]), lit(1)], Code::IndexOutOfRange);
    is_refused("take", args![range(&[2, 3]), ints(&[1], &[-4]), lit(1)], Code::IndexOutOfRange);
    is_refused("take", args![range(&[0, 3]), ints(&[1], &[0]), lit(0)], Code::IndexOutOfRange);
    is_refused("take", args![range(&[2, 3]), range(&[1]), lit(1)], Code::DTypeMismatch);
}

#[test]
fn taking_at_each_place() {
    // From PyTorch's documentation of gather.
    let x = || ints(&[2, 2], &[1, 2, 3, 4]);
    is(&run("gather", args![x(), ints(&[2, 2], &[0, 0, 1, 0]), lit(1)]), &[2, 2], &[1, 1, 4, 3]);
    is(&run("gather", args![x(), ints(&[1, 2], &[-1, 0]), lit(0)]), &[1, 2], &[3, 2]);
    // The other sizes broadcast.
    is(&run("gather", args![range(&[1, 3]), ints(&[2, 1], &[2, 0]), lit(1)]), &[2, 1], &[2, 0]);
    is(&run("gather", args![range(&[2, 3]), ints(&[1, 1], &[1]), lit(1)]), &[2, 1], &[1, 4]);
    is_refused("gather", args![x(), ints(&[2], &[0, 0]), lit(1)], Code::RankMismatch);
    is_refused("gather", args![x(), ints(&[3, 1], &[0, 0, 0]), lit(1)], Code::ShapeMismatch);
    is_refused("gather", args![x(), ints(&[2, 1], &[0, 2]), lit(1)], Code::IndexOutOfRange);
}

#[test]
fn adding_at_positions() {
    let source = || ints(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    // Both rows of the source meet in column 0 of the row before last.
    let zeros = || Tensor::full(DType::I64, &[3, 3], 0_i64);
    let at = ints(&[2, 3], &[0, 1, 2, 0, -1, -1]);
    is(&run("scatter_add", args![zeros(), at, source(), lit(0)]), &[3, 3], &[5, 0, 0, 0, 2, 0, 0, 5, 9]);
    let y = run("index_add", args![zeros(), ints(&[2], &[1, 1]), source(), lit(0)]);
    is(&y, &[3, 3], &[0, 0, 0, 5, 7, 9, 0, 0, 0]);
    let y = run("index_add", args![range(&[2, 2]), ints(&[1], &[-1]), range(&[2, 1]), lit(1)]);
    is(&y, &[2, 2], &[0, 1, 2, 4]);
    is_refused("index_add", args![zeros(), ints(&[2], &[1, 3]), source(), lit(0)], Code::IndexOutOfRange);
    is_refused("index_add", args![zeros(), ints(&[1], &[1]), source(), lit(0)], Code::ShapeMismatch);
    is_refused("index_add", args![zeros(), ints(&[2, 1], &[1, 1]), source(), lit(0)], Code::RankMismatch);
}

#[test]
fn replacing_at_positions() {
    let zeros = || Tensor::full(DType::I64, &[3, 3], 0_i64);
    let source = || ints(&[2, 3], &[1, 2, 3, 4, 5, 6]);
    let y = run("index_copy", args![zeros(), ints(&[2], &[2, 0]), source()]);
    is(&y, &[3, 3], &[4, 5, 6, 0, 0, 0, 1, 2, 3]);
    let y = run("index_copy", args![range(&[2, 2]), ints(&[1], &[-1]), range(&[2, 1]), lit(1)]);
    is(&y, &[2, 2], &[0, 0, 2, 1]);
    is_refused("index_copy", args![zeros(), ints(&[2], &[1, 3]), source()], Code::IndexOutOfRange);
    is_refused("index_copy", args![zeros(), ints(&[1], &[1]), source()], Code::ShapeMismatch);
    is_refused("index_copy", args![zeros(), ints(&[2, 1], &[1, 1]), source()], Code::RankMismatch);
}

#[test]
fn one_hot_rows() {
    let y = run("one_hot", args![ints(&[2], &[2, -3]), lit(3)]);
    is(&y, &[2, 3], &[0, 0, 1, 1, 0, 0]);
    assert_eq!(y.dtype(), DType::F32);
    let y = run("one_hot", args![ints(&[], &[1]), lit(2), lit(DType::Bool)]);
    assert_eq!((y.dtype(), y.to_i64s()), (DType::Bool, vec![0, 1]));
    is_refused("one_hot", args![ints(&[1], &[3]), lit(3)], Code::IndexOutOfRange);
    is_refused("one_hot", args![ints(&[1], &[3]), lit(-1)], Code::BadArgument);
}
