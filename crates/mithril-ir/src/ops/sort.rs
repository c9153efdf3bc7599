//! Sorting, and the largest or smallest elements. NaN counts as larger than every number, as in `max`.

use crate::dtype::DType;
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Spell, Text, Tolerance, attr,
    tensor,
};
use crate::ops::reduce::order;
use crate::ops::scan::{lines, same_with_axis};
use crate::rules::{Attrs, DTypes};
use crate::tensor::{Scalar, Tensor};

/// Rows of this file.
pub static OPS: &[&OpDef] = &[&ARGSORT];

static PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::Int, DefaultLit::Int(-1)),
    attr("descending", Attr::Bool, DefaultLit::Bool(false)),
];

const fn sorting(name: &'static str, doc: &'static str) -> OpDef {
    OpDef {
        name,
        doc,
        ports: PORTS,
        shape: ShapeRule::Fn(same_with_axis),
        tolerance: Tolerance::Exact,
        cases: &[
            "[5]",
            "[3,4] axis=0",
            "[2,3,4] axis=-2 descending=true",
            "i64[4,5]<3",
            "i64[4,5]<3 descending=true",
            "[2,0]",
        ],
        ..BLANK
    }
}

/// Positions in order of size
pub static ARGSORT: OpDef = OpDef {
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::I64]))),
    eval: Some(Eval::Host(|c| {
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
        Ok(vec![Tensor::of(c.shape(), out)])
    })),
    grad: Grad::Zero,
    spell: Spell {
        numpy: Text::F(|c| {
            Some(if c.bool(2).ok()? {
                format!("_argsort_descending({}, axis={})", c.arg(0), c.arg(1))
            } else {
                format!("np.argsort({}, axis={}, kind=\"stable\")", c.arg(0), c.arg(1))
            })
        }),
        torch: Text::T("torch.argsort({0}, dim={1}, descending={2}, stable=True)"),
        ..Spell::NONE
    },
    layer: "ArgSort",
    ..sorting(
        "argsort",
        "Positions, in int64, that sort the input along `axis`; equal elements keep their order, also when \
         `descending`. NaN is larger than every number: last, or first when `descending`.",
    )
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reduce::tests::{f64s, run, values};

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
        let t = [("input", Tensor::of(&[3, 2], vec![5_i32, 0, 1, 9, 3, 4]))];
        let y = &run(&ARGSORT, &t, &[("axis", 0.into())]).unwrap()[0];
        assert_eq!((y.dtype(), y.to_i64s()), (DType::I64, vec![1, 0, 2, 2, 0, 1]));
        assert!(run(&ARGSORT, &t, &[("axis", 2.into())]).is_err());
    }
}
