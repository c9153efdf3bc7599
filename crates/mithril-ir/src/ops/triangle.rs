//! Triangles and diagonals of matrices.

use crate::dim::Dim;
use crate::dtype::{DType, Kind};
use crate::error::Result;
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::Lowering;
use crate::lowering::LoweringRule::{Function, Template};
use crate::op::{Attr, DTypeRule, DefaultLit, Grad, OpDef, Port, ShapeRule, Tolerance, attr};
use crate::ops::compare::{GREATER_EQUAL, LESS_EQUAL};
use crate::ops::create::{EYE, count, diagonal_of_row};
use crate::ops::index::lookup_mlx;
use crate::ops::joining::PAD;
use crate::ops::movement::{INPUT, MOVE};
use crate::rules::{Attrs, ShapeCx};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&TRIL, &TRIU, &DIAGONAL, &DIAG, &TRACE];

const K: Port = attr("k", Attr::Int, DefaultLit::Int(0));

/// A triangle of each matrix.
const TRIANGLE: OpDef = OpDef {
    ports: &[INPUT, K],
    shape: ShapeRule::Fn(|cx| {
        at_least_matrix(cx)?;
        cx.int(1)?;
        Ok(vec![cx.shape(0).clone()])
    }),
    cases: &["[3,3]", "[2,4] k=1", "[2,4,3] k=-1", "[0,3]", "i64[3,3] k=-2", "bool[2,2]"],
    ..MOVE
};

fn at_least_matrix(cx: &ShapeCx<'_>) -> Result<()> {
    if cx.shape(0).rank() >= 2 { Ok(()) } else { cx.rank(0, &[2]).map(|_| ()) }
}

/// Zero as a literal of the kind of `dtype`.
fn zero(dtype: DType) -> Lit {
    match dtype.kind() {
        Kind::Bool => Lit::Bool(false),
        Kind::Int => Lit::int(0),
        Kind::Float => Lit::Float(0.0),
    }
}

/// Keeps the elements whose column satisfies the comparison `keeps` with the column of the diagonal.
fn triangle<'a>(c: &ExpandCx<'a>, keeps: &'static OpDef) -> Vec<V<'a>> {
    let x = c.x[0];
    let diagonal = diagonal_of_row(c, &x.dim(-2), c.get(|c| c.int(1)));
    let mask = diagonal.op(keeps, &[count(c, &x.dim(-1))]);
    vec![mask.select(x, zero(x.dtype()))]
}

/// lower triangle
pub static TRIL: OpDef = OpDef {
    name: "tril",
    doc: "The last two axes as matrices, with zeros above diagonal `k` (counted upwards from the main one).",
    layer: "Tril",
    expand: Some(|c| triangle(c, &GREATER_EQUAL)),
    grad: Grad::Formula(|v| vec![v.g.tril(v.x[1])]),
    lowering: Lowering::py("{xp}.tril({0}, {1})"),
    ..TRIANGLE
};

/// upper triangle
pub static TRIU: OpDef = OpDef {
    name: "triu",
    doc: "The last two axes as matrices, with zeros below diagonal `k` (counted upwards from the main one).",
    layer: "Triu",
    expand: Some(|c| triangle(c, &LESS_EQUAL)),
    grad: Grad::Formula(|v| vec![v.g.triu(v.x[1])]),
    lowering: Lowering::py("{xp}.triu({0}, {1})"),
    ..TRIANGLE
};

const DIAGONAL_PORTS: &[Port] = &[
    INPUT,
    attr("offset", Attr::Int, DefaultLit::Int(0)),
    attr("axis1", Attr::Int, DefaultLit::Int(0)),
    attr("axis2", Attr::Int, DefaultLit::Int(1)),
];
const DIAGONAL_CASES: &[&str] = &[
    "[3,3]",
    "[2,4] offset=1",
    "[4,2] offset=-1",
    "[2,3,4] axis1=-1 axis2=0",
    "[2,2] offset=5",
    "[2,3,3] axis1=1 axis2=2",
];

/// the elements of a diagonal
pub static DIAGONAL: OpDef = OpDef {
    name: "diagonal",
    doc: "The elements of diagonal `offset` of the matrices that `axis1` and `axis2` make, along a new last axis.",
    layer: "Diagonal",
    ports: DIAGONAL_PORTS,
    shape: ShapeRule::Expansion,
    expand: Some(diagonal),
    lowering: Lowering {
        py: Template("{xp}.diagonal({0}, {1}, {2}, {3})"),
        mlx: Function(|s| {
            let [x, offset, axis1, axis2] = [0, 1, 2, 3].map(|i| s.arg(i));
            Some(lookup_mlx(s, 0, format!("mx.diagonal({x}, {offset}, {axis1}, {axis2})")))
        }),
        ..Lowering::NONE
    },
    cases: DIAGONAL_CASES,
    ..MOVE
};

/// The two axes, which must differ.
fn two_axes(cx: &impl Attrs, rank: usize) -> Result<(usize, usize)> {
    let (a, b) = (cx.axis(2, rank)?, cx.axis(3, rank)?);
    if a == b { Err(cx.bad(3, &cx.lit(3), "another axis than `axis1`")) } else { Ok((a, b)) }
}

/// In a flattened matrix, neighbors on a diagonal have the distance `m + 1`.
fn diagonal<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let x = c.x[0];
    let (a, b) = match two_axes(c, x.rank()) {
        Ok(axes) => axes,
        Err(error) => {
            c.cx.fail(error);
            return vec![x];
        }
    };
    let number = |d: Dim| c.get(|c| d.known().ok_or_else(|| c.symbolic(0, &d)));
    let (n, m, k) = (number(x.dim(a as i64)), number(x.dim(b as i64)), c.get(|c| c.int(1)));
    let rest: Vec<usize> = (0..x.rank()).filter(|&i| i != a && i != b).collect();
    let order: Vec<usize> = rest.iter().copied().chain([a, b]).collect();
    let mut shape: Vec<Dim> = rest.iter().map(|&i| x.dim(i as i64)).collect();
    shape.push(Dim::Const(n.saturating_mul(m)));
    let rows = x.transpose(order).reshape(shape);
    let (down, right) = (k.min(0).saturating_neg().min(n), k.max(0).min(m));
    let len = (n - down).min(m - right);
    let start = down.saturating_mul(m) + right;
    vec![every(rows, start, m + 1, len)]
}

/// `len` elements of the last axis from `start` on, with the given step.
fn every(x: V<'_>, start: i64, step: i64, len: i64) -> V<'_> {
    let axis = x.rank().saturating_sub(1);
    let stop = if len > 0 { start + (len - 1) * step + 1 } else { start };
    let at = |n: i64| x.lit(Lit::tuple((0..=axis).map(|i| if i == axis { Lit::int(n) } else { Lit::None })));
    let steps = Lit::tuple((0..=axis).map(|i| if i == axis { step } else { 1 }));
    x.strided_slice(at(start), at(stop), steps)
}

/// a matrix from its diagonal, or the diagonal
pub static DIAG: OpDef = OpDef {
    name: "diag",
    doc: "Of a vector the square matrix with it on diagonal `k` and zeros elsewhere; of a matrix its diagonal `k`.",
    layer: "Diag",
    ports: &[INPUT, K],
    shape: ShapeRule::Expansion,
    expand: Some(diag),
    lowering: Lowering {
        py: Template("{xp}.diag({0}, {1})"),
        mlx: Function(|s| {
            let text = format!("mx.diag({}, {})", s.arg(0), s.arg(1));
            Some(if s.ty(0)?.shape.rank() == 2 { lookup_mlx(s, 0, text) } else { text })
        }),
        ..Lowering::NONE
    },
    cases: &["[3]", "[2] k=1", "[2] k=-2", "[3,4]", "[3,4] k=-1", "i64[2]", "[0]"],
    ..MOVE
};

fn diag<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let x = c.x[0];
    match x.rank() {
        2 => return vec![x.op(&DIAGONAL, &[c.x[1]])],
        1 => {}
        _ => {
            let lit = Lit::tuple(x.shape().0.to_vec());
            c.cx.fail(c.bad(0, &lit, "a vector or a matrix"));
            return vec![x];
        }
    }
    let k = c.get(|c| c.int(1));
    let (before, after) = (k.max(0), k.min(0).saturating_neg());
    let row = x.op(&PAD, &[c.cx.lit([before, after]), c.cx.lit("constant"), c.cx.lit(zero(x.dtype()))]);
    let mask = c.cx.call(&EYE, &[c.cx.lit(row.dim(0)), c.cx.none(), c.cx.lit(k), c.cx.lit(DType::Bool)]);
    let row = row.expand_dims(0);
    vec![mask.select(row, zero(x.dtype()))]
}

/// sum of a diagonal
pub static TRACE: OpDef = OpDef {
    name: "trace",
    doc: "The sum of diagonal `offset` of the matrices that `axis1` and `axis2` make.",
    layer: "Trace",
    ports: DIAGONAL_PORTS,
    shape: ShapeRule::Expansion,
    dtype: DTypeRule::Expansion,
    expand: Some(|c| vec![c.x[0].op(&DIAGONAL, &c.x[1..]).sum(-1, false)]),
    cases: DIAGONAL_CASES,
    tolerance: Tolerance::Contraction,
    ..MOVE
};
