//! Sorting, and the largest or smallest elements. NaN counts as larger than every number, as in `max`.

use crate::dtype::DType;
use crate::error::Result;
use crate::literal::Lit;
use crate::loops::{CallArgument, Expr, LoopCx, accumulator, sizes_around};
use crate::lowering::Lowering;
use crate::lowering::LoweringRule::{Function, Template};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, Unsigned, attr, tensor,
};
use crate::ops::reduce::order;
use crate::ops::scan::{lines, same_with_axis};
use crate::rules::{Attrs, DTypes};
use crate::tensor::{Scalar, Tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&SORT, &ARGSORT, &TOPK];

static PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::Int, DefaultLit::Int(-1)),
    attr("descending", Attr::Bool, DefaultLit::Bool(false)),
];

const SORTING: OpDef = OpDef {
    ports: PORTS,
    shape: ShapeRule::Fn(same_with_axis),
    unsigned: Unsigned::Order,
    cases: &[
        "[5]",
        "[3,4] axis=0",
        "[2,3,4] axis=-2 descending=true",
        "i64[4,5]<3",
        "i64[4,5]<3 descending=true",
        "[2,0]",
    ],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// sorted elements
pub static SORT: OpDef = OpDef {
    name: "sort",
    doc: "The elements along `axis` in order, largest first if `descending`. NaN is larger than every number: last, \
         or first when `descending`. The gradient goes back to where each element came from.",
    layer: "Sort",
    dtype: DTypeRule::Same(0),
    expand: Some(|c| {
        let order = c.x[0].op(&ARGSORT, &c.x[1..]);
        vec![c.x[0].take_along_axis(order, c.x[1])]
    }),
    lowering: Lowering {
        numpy: Function(|c| {
            if c.ty(0)?.dtype == DType::BF16 {
                return None;
            }
            Some(if c.bool(2).ok()? {
                format!("_sort_descending({}, axis={})", c.arg(0), c.arg(1))
            } else {
                format!("np.sort({}, axis={}, kind=\"stable\")", c.arg(0), c.arg(1))
            })
        }),
        torch: Template("torch.sort({0}, dim={1}, descending={2}, stable=True).values"),
        jax: Template("jnp.sort({0}, axis={1}, descending={2})"),
        ..Lowering::NONE
    },
    ..SORTING
};

/// indices that sort the elements
pub static ARGSORT: OpDef = OpDef {
    name: "argsort",
    doc: "Positions, in int64, that sort the input along `axis`; equal elements keep their order, also when \
         `descending`. NaN is larger than every number: last, or first when `descending`.",
    layer: "ArgSort",
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::I64]))),
    eval: Some(Eval::Tensors(|c| {
        let x = c.tensor(0);
        let (axis, descending) = (c.axis(1, x.rank())?, c.bool(2)?);
        let mut out = vec![0; x.len()];
        for line in lines(x.shape(), axis) {
            let positions: Vec<usize> = line.collect();
            let values: Vec<Scalar> = positions.iter().map(|&at| x.get(at)).collect();
            let mut ranks: Vec<usize> = (0..values.len()).collect();
            ranks.sort_by(|&i, &k| {
                let (i, k) = if descending { (k, i) } else { (i, k) };
                order(&values[i], &values[k])
            });
            for (at, rank) in positions.into_iter().zip(ranks) {
                out[at] = rank as i64;
            }
        }
        Ok(vec![Tensor::from_parts(c.shape(), out)])
    })),
    loops: Some(|c| {
        let wide = accumulator(c.dtype(0));
        let (outer, size, inner) = sizes_around(&c.shape(0), c.axis(1, c.rank(0))?);
        let (input, output) = (c.stored(0, wide), c.reserve(DType::I64, c.out_shape(0)));
        let mut args = vec![CallArgument::In(input), CallArgument::Out(output)];
        args.extend([outer, size, inner, c.bool(2)?.into()].map(CallArgument::Int));
        c.call(format!("mithril_argsort_{}", wide.short()), args, size.max(1) as usize * 32);
        Ok(vec![c.whole(0, output)])
    }),
    grad: Grad::Zero,
    lowering: Lowering {
        numpy: Function(|c| {
            // NumPy cannot sort bfloat16 with NaN.
            let wide = if c.ty(0)?.dtype == DType::BF16 { ".astype(np.float32)" } else { "" };
            Some(if c.bool(2).ok()? {
                format!("_argsort_descending({}{wide}, axis={})", c.arg(0), c.arg(1))
            } else {
                format!("np.argsort({}{wide}, axis={}, kind=\"stable\")", c.arg(0), c.arg(1))
            })
        }),
        torch: Template("torch.argsort({0}, dim={1}, descending={2}, stable=True)"),
        jax: Template("jnp.argsort({0}, axis={1}, descending={2}).astype({dtype})"),
        mlx: Template("_argsort({0}, {1}, {2})"),
        onnx: Function(super::onnx::argsort),
        ..Lowering::NONE
    },
    ..SORTING
};

static TOPK_PORTS: &[Port] = &[
    tensor("input"),
    attr("k", Attr::Int, DefaultLit::Required),
    attr("axis", Attr::Int, DefaultLit::Int(-1)),
    attr("largest", Attr::Bool, DefaultLit::Bool(true)),
    attr("sorted", Attr::Bool, DefaultLit::Bool(true)),
];

/// Largest `k` for `mithril_topk`; above it, the elements are sorted.
const SMALL_K: i64 = 64;

/// Calls a C function for the indices; an error for a large `k`, so that the op is expanded into a sort.
fn topk_loops(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let (axis, k, wide) = (c.axis(2, c.rank(0))?, c.int(1)?, accumulator(c.dtype(0)));
    if k > SMALL_K {
        return Err(c.bad(1, &c.lit(1), &format!("at most {SMALL_K}")));
    }
    let (outer, size, inner) = sizes_around(&c.shape(0), axis);
    let (input, positions) = (c.stored(0, wide), c.reserve(DType::I64, c.out_shape(1)));
    let mut args = vec![CallArgument::In(input), CallArgument::Out(positions)];
    args.extend([outer, size, k, inner, c.bool(3)?.into()].map(CallArgument::Int));
    c.call(format!("mithril_topk_{}", wide.short()), args, 0);
    let values = c.output(0, |at| {
        let mut from = at.to_vec();
        from[axis] = c.value(c.load(positions, at), size, false);
        c.load(0, from)
    });
    Ok(vec![values, c.whole(1, positions)])
}

/// largest or smallest elements
pub static TOPK: OpDef = OpDef {
    name: "topk",
    doc: "The `k` largest elements along `axis` (the smallest if not `largest`) and their positions in int64. They \
         come in order, whether `sorted` asks for it or not; of equal elements the first come first. NaN is larger \
         than every number.",
    aliases: &["top_k"],
    layer: "TopK",
    ports: TOPK_PORTS,
    outputs: &["values", "indices"],
    shape: ShapeRule::Fn(|cx| {
        let mut shape = cx.shape(0).clone();
        let (axis, k) = (cx.axis(2, shape.rank())?, cx.dim(1)?);
        let size = &shape[axis];
        let too_many = matches!((k.known(), size.known()), (Some(k), Some(n)) if k > n);
        if too_many || k.known().is_some_and(|k| k < 0) {
            return Err(cx.bad(1, &cx.lit(1), &format!("from 0 to the size of the axis, {size}")));
        }
        shape.0[axis] = k;
        Ok(vec![shape.clone(), shape])
    }),
    dtype: DTypeRule::Fn(|cx| Ok(DTypes::keep([cx.dtype(0).unwrap_or(cx.float), DType::I64]))),
    expand: Some(|c| {
        let x = c.x[0];
        let axis = c.get(|c| c.axis(2, x.rank()));
        let order = x.op(&ARGSORT, &[c.x[2], c.x[3]]);
        let up_to = |last: Lit| {
            let whole = std::iter::repeat_n(Lit::None, axis);
            c.cx.lit(Lit::Tuple(whole.chain([last]).collect()))
        };
        let indices = order.slice(up_to(Lit::None), up_to(c.lit(1)));
        vec![x.take_along_axis(indices, c.x[2]), indices]
    }),
    loops: Some(topk_loops),
    lowering: Lowering {
        numpy: Function(|c| {
            if c.ty(0)?.dtype == DType::BF16 {
                return None;
            }
            let largest = if c.bool(3).ok()? { "" } else { ", largest=False" };
            Some(format!("_topk({}, {}, axis={}{largest})", c.arg(0), c.arg(1), c.arg(2)))
        }),
        onnx: Function(super::onnx::topk),
        ..Lowering::NONE
    },
    cases: &[
        "[5] k=2",
        "[3,4] k=3 axis=0 largest=false",
        "[2,3,4] k=1 axis=-2",
        "i64[4,5]<3 k=5",
        "[2,3] k=0",
    ],
    ..SORTING
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reduce::tests::{close, f64s, run, values};

    #[test]
    fn equal_elements_keep_their_order() {
        let t = [("input", f64s(&[5], &[2.0, 1.0, 2.0, 0.0, 1.0]))];
        assert_eq!(values(&ARGSORT, &t, &[]), [3.0, 1.0, 4.0, 0.0, 2.0]);
        assert_eq!(values(&ARGSORT, &t, &[("descending", true.into())]), [0.0, 2.0, 1.0, 4.0, 3.0]);
    }

    #[test]
    fn nan_is_largest() {
        let t = [("input", f64s(&[4], &[f64::NAN, 1.0, f64::INFINITY, -0.0]))];
        assert_eq!(values(&ARGSORT, &t, &[]), [3.0, 1.0, 2.0, 0.0]);
        assert_eq!(values(&ARGSORT, &t, &[("descending", true.into())]), [0.0, 2.0, 1.0, 3.0]);
    }

    #[test]
    fn sorts_along_an_axis() {
        let t = [("input", Tensor::from_parts(&[3, 2], vec![5_i32, 0, 1, 9, 3, 4]))];
        let y = &run(&ARGSORT, &t, &[("axis", 0.into())]).unwrap()[0];
        assert_eq!((y.dtype(), y.to_i64s()), (DType::I64, vec![1, 0, 2, 2, 0, 1]));
        assert!(run(&ARGSORT, &t, &[("axis", 2.into())]).is_err());
    }

    #[test]
    fn sorts_values() {
        let t = [("input", f64s(&[5], &[2.0, f64::NAN, 1.0, -3.0, 1.0]))];
        close(&values(&SORT, &t, &[]), &[-3.0, 1.0, 1.0, 2.0, f64::NAN]);
        close(&values(&SORT, &t, &[("descending", true.into())]), &[f64::NAN, 2.0, 1.0, 1.0, -3.0]);
        let empty = [("input", f64s(&[2, 0], &[]))];
        assert_eq!(run(&SORT, &empty, &[]).unwrap()[0].shape(), [2, 0]);
    }

    #[test]
    fn largest_and_smallest() {
        let t = [("input", f64s(&[2, 4], &[1.0, 4.0, 4.0, 2.0, 8.0, 5.0, 7.0, 5.0]))];
        let y = run(&TOPK, &t, &[("k", 3.into())]).unwrap();
        assert_eq!(y[0].to_f64s(), [4.0, 4.0, 2.0, 8.0, 7.0, 5.0]);
        assert_eq!(y[1].to_i64s(), [1, 2, 3, 0, 2, 1]);
        let y = run(&TOPK, &t, &[("k", 1.into()), ("axis", 0.into()), ("largest", false.into())]).unwrap();
        assert_eq!((y[0].shape(), y[0].to_f64s()), (&[1, 4][..], vec![1.0, 4.0, 4.0, 2.0]));
        for k in [-1, 5] {
            assert!(run(&TOPK, &t, &[("k", k.into())]).is_err());
        }
    }
}
