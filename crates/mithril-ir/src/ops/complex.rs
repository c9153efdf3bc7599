//! Complex numbers, which are pairs of real tensors: there is no complex dtype.

use crate::dim::Dim;
use crate::error::{Code, Error};
use crate::formula::V;
use crate::literal::Lit;
use crate::op::{BLANK, DTypeRule, OpDef, Port, ShapeRule, Tolerance, optional, tensor};
use crate::ops::create::ZEROS_LIKE;
use crate::ops::elementwise::ATAN2;
use crate::shape;

/// Ops of this file.
pub static OPS: &[&OpDef] =
    &[&VIEW_AS_REAL, &VIEW_AS_COMPLEX, &POLAR, &ANGLE, &COMPLEX_MULTIPLY, &COMPLEX_DIVIDE, &CONJ];

/// Names of the two parts of a result.
const PARTS: &[&str] = &["output_real", "output_imag"];

/// Both tensors, broadcast to their common shape.
fn together<'a>(a: V<'a>, b: V<'a>) -> [V<'a>; 2] {
    let shapes = [a.shape(), b.shape()];
    match shape::broadcast(&[&shapes[0], &shapes[1]]) {
        Ok(common) => [a, b].map(|x| {
            let same = x.shape() == common;
            if same { x } else { x.broadcast_to(Lit::tuple(common.iter().cloned())) }
        }),
        Err(error) => {
            a.cx().fail(error);
            [a, b]
        }
    }
}

static PAIR: &[Port] = &[tensor("real"), tensor("imag")];

/// Real and imaginary parts along a new last axis
pub static VIEW_AS_REAL: OpDef = OpDef {
    name: "view_as_real",
    doc: "The real and the imaginary part of complex numbers side by side along a new last axis of size 2.",
    layer: "ViewAsReal",
    ports: PAIR,
    shape: ShapeRule::Fn(|cx| {
        let mut shape = cx.broadcast(&[cx.shape(0), cx.shape(1)])?;
        shape.0.push(Dim::Const(2));
        Ok(vec![shape])
    }),
    dtype: DTypeRule::Float,
    expand: Some(|c| {
        let [real, imag] = together(c.x[0], c.x[1]);
        vec![c.cx.stack(-1, &[real, imag])]
    }),
    cases: &["[2,3] [2,3]", "[] []", "[2,1] [3]", "[0,2] [0,2]"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// Real and imaginary parts from the last axis
pub static VIEW_AS_COMPLEX: OpDef = OpDef {
    name: "view_as_complex",
    doc: "Complex numbers whose real and imaginary parts lie side by side along the last axis, which has size 2, as a \
          pair of tensors; the inverse of `view_as_real`.",
    layer: "ViewAsComplex",
    ports: &[tensor("input")],
    outputs: PARTS,
    shape: ShapeRule::Fn(|cx| {
        let mut shape = cx.shape(0).clone();
        let Some(last) = shape.0.pop() else {
            let message = "`input` of view_as_complex has no axes";
            return Err(Error::new(Code::RankMismatch, message)
                .help("its last axis has size 2: the real and the imaginary part"));
        };
        cx.same(&last, &Dim::Const(2), "the last size of the input and the number of parts")?;
        Ok(vec![shape.clone(), shape])
    }),
    dtype: DTypeRule::Float,
    expand: Some(|c| {
        let x = c.x[0];
        let front: Vec<Dim> = x.shape().iter().take(x.rank().saturating_sub(1)).cloned().collect();
        let part = |i: i64| {
            let at = |last: i64| {
                let whole = std::iter::repeat_n(Lit::None, front.len());
                c.cx.lit(Lit::Tuple(whole.chain([Lit::int(last)]).collect()))
            };
            x.slice(at(i), at(i + 1)).reshape(Lit::tuple(front.iter().cloned()))
        };
        vec![part(0), part(1)]
    }),
    cases: &["[3,2]", "[2]", "[2,0,2]"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// From absolute value and angle
pub static POLAR: OpDef = OpDef {
    name: "polar",
    doc: "Complex numbers from their absolute values and angles in radians: `abs * cos(angle)` and `abs * sin(angle)`.",
    layer: "Polar",
    ports: &[tensor("abs"), tensor("angle")],
    outputs: PARTS,
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Float,
    expand: Some(|c| vec![c.x[0] * c.x[1].cos(), c.x[0] * c.x[1].sin()]),
    domain: (0.5, 2.0),
    cases: &["[2,3] [2,3]", "[] [3]", "[0] [1]"],
    ..BLANK
};

/// The angle of complex numbers
pub static ANGLE: OpDef = OpDef {
    name: "angle",
    doc: "Angle in radians of complex numbers, in [-π, π]; without `imag` of real ones: 0, or π below 0. The absolute \
          value is `hypot(real, imag)`.",
    layer: "Angle",
    ports: &[tensor("real"), optional("imag")],
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Float,
    expand: Some(|c| {
        let imag = if c.x[1].is_some() { c.x[1] } else { c.x[0].op(&ZEROS_LIKE, &[]) };
        vec![imag.op(&ATAN2, &[c.x[0]])]
    }),
    domain: (0.5, 2.0),
    cases: &["[2,3] [2,3]", "[3]", "[2,1] [3]"],
    ..BLANK
};

static PAIRS: &[Port] =
    &[tensor("left_real"), tensor("left_imag"), tensor("right_real"), tensor("right_imag")];

const PRODUCT: OpDef = OpDef {
    ports: PAIRS,
    outputs: PARTS,
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Float,
    domain: (0.5, 2.0),
    cases: &["[2,3] [2,3] [2,3] [2,3]", "[2,1] [2,1] [3] [3]", "[0] [0] [1] [1]"],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// `(a + bi)(c + di)`
pub static COMPLEX_MULTIPLY: OpDef = OpDef {
    name: "complex_multiply",
    doc: "Product of complex numbers: `left_real·right_real - left_imag·right_imag` and `left_real·right_imag + \
          left_imag·right_real`.",
    layer: "ComplexMultiply",
    expand: Some(|c| {
        let [a, b, x, y] = [c.x[0], c.x[1], c.x[2], c.x[3]];
        vec![a * x - b * y, a * y + b * x]
    }),
    ..PRODUCT
};

/// `(a + bi) / (c + di)`
pub static COMPLEX_DIVIDE: OpDef = OpDef {
    name: "complex_divide",
    doc: "Quotient of complex numbers: the product with the conjugate of the right ones, divided by the square of their \
          absolute values.",
    layer: "ComplexDivide",
    expand: Some(|c| {
        let [a, b, x, y] = [c.x[0], c.x[1], c.x[2], c.x[3]];
        let square = x * x + y * y;
        vec![(a * x + b * y) / square, (b * x - a * y) / square]
    }),
    ..PRODUCT
};

/// `a - bi`
pub static CONJ: OpDef = OpDef {
    name: "conj",
    doc: "Complex conjugates: the real parts as they are, the imaginary ones with the opposite sign.",
    layer: "Conj",
    ports: PAIR,
    outputs: PARTS,
    shape: ShapeRule::Fn(|cx| Ok(vec![cx.shape(0).clone(), cx.shape(1).clone()])),
    dtype: DTypeRule::Float,
    expand: Some(|c| vec![c.x[0], -c.x[1]]),
    cases: &["[2,3] [2,3]", "[] []"],
    tolerance: Tolerance::Exact,
    ..BLANK
};
