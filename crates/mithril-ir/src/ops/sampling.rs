//! Sampling images at positions between their elements.

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{Attr, BLANK, DTypeRule, DefaultLit, OpDef, ShapeRule, Tolerance, attr, tensor_of};
use crate::ops::arithmetic::FMOD;
use crate::ops::create::FULL_LIKE;
use crate::ops::joining::STACK;
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&GRID_SAMPLE, &AFFINE_GRID];

const MODES: &[&str] = &["bilinear", "nearest", "bicubic"];
const PADDINGS: &[&str] = &["zeros", "border", "reflection"];

/// image sampled at the positions of a grid
pub static GRID_SAMPLE: OpDef = OpDef {
    name: "grid_sample",
    doc: "The image `[n, c, h, w]` read at the positions `grid` `[n, *out, 2]`, or `[n, c, d, h, w]` at `[n, *out, 3]`: \
          `[n, c, *out]`. The last axis of the grid holds x, y (and z), where -1 and 1 are the borders of the image, or \
          with `align_corners` the centers of its outermost elements. `bilinear` mixes the neighbors of a position, \
          `bicubic` (images of two axes only) the four along each axis, by the kernel of Keys (1981) with a = -0.75; \
          `nearest` takes the element at the rounded position, halves to even. What lies outside is 0 (`zeros`), the \
          element at the border (`border`), or mirrored there (`reflection`). NaN in the grid gives NaN, or with \
          `nearest` an element of the image. As in torch.",
    layer: "GridSample",
    ports: &[
        tensor_of("input", Kinds::NUMBER),
        tensor_of("grid", Kinds::NUMBER),
        attr("mode", Attr::Choice(MODES), DefaultLit::Str("bilinear")),
        attr("padding_mode", Attr::Choice(PADDINGS), DefaultLit::Str("zeros")),
        attr("align_corners", Attr::Bool, DefaultLit::Bool(false)),
    ],
    shape: ShapeRule::Fn(sampled_shape),
    dtype: DTypeRule::Float,
    expand: Some(|c| {
        grid_sample(c).unwrap_or_else(|error| {
            c.cx.fail(error);
            vec![c.x[0]]
        })
    }),
    lowering: Lowering { torch: Function(torch), ..Lowering::NONE },
    domain: (-1.4, 1.4),
    cases: &[
        "[1,2,4,5] [1,3,2,2]",
        "[2,1,4,5] [2,3,2,2] align_corners=true padding_mode=\"border\"",
        "[1,2,3,4] [1,2,4,2] padding_mode=\"reflection\"",
        "[1,2,3,4] [1,2,4,2] padding_mode=\"reflection\" align_corners=true",
        "[1,2,4,5] [1,3,2,2] mode=\"nearest\"",
        "[1,2,4,5] [1,3,2,2] mode=\"nearest\" padding_mode=\"border\" align_corners=true",
        "[1,1,4,5] [1,2,3,2] mode=\"bicubic\"",
        "[1,1,4,5] [1,2,3,2] mode=\"bicubic\" padding_mode=\"border\" align_corners=true",
        "[1,1,4,5] [1,2,3,2] mode=\"bicubic\" padding_mode=\"reflection\"",
        "[1,2,2,3,4] [1,2,1,3,3]",
        "[1,1,2,3,4] [1,1,2,3,3] mode=\"nearest\" padding_mode=\"reflection\"",
        "[1,1,1,1] [1,2,2,2] padding_mode=\"reflection\" align_corners=true",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

fn sampled_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let n = cx.rank(0, &[4, 5])? - 2;
    cx.rank(1, &[n + 2])?;
    let (input, grid) = (cx.shape(0), cx.shape(1));
    cx.same(&input[0], &grid[0], "batch sizes of the input and of the grid")?;
    cx.same(&grid[n + 1], &Dim::Const(n as i64), "the last size of the grid and the number of spatial axes")?;
    if n == 3 && cx.text(2)? == "bicubic" {
        return Err(cx.bad(2, &cx.lit(2), "\"bilinear\" or \"nearest\" for images of three axes"));
    }
    if let Some(i) = (2..n + 2).find(|&i| input[i].is(0)) {
        let message = format!("axis {i} of the input of grid_sample has no elements");
        return Err(Error::new(Code::BadSize, message).help("there is nothing to read"));
    }
    let out = grid[1..=n].iter();
    Ok(vec![input[..2].iter().chain(out).cloned().collect()])
}

/// One element that contributes along an axis: its index, whether it lies inside the image, and its weight.
#[derive(Clone, Copy)]
struct Tap<'a> {
    at: V<'a>,
    inside: V<'a>,
    /// `None` for a weight of 1.
    weight: Option<V<'a>>,
}

fn grid_sample<'a>(c: &ExpandCx<'a>) -> Result<Vec<V<'a>>> {
    let half = |x: V<'a>| if matches!(x.dtype(), DType::F16 | DType::BF16) { x.cast(DType::F32) } else { x };
    let (dtype, image, grid) = (c.x[0].dtype(), half(c.x[0]), half(c.x[1]));
    let (mode, padding, corners) = (c.text(2)?, c.text(3)?, c.bool(4)?);
    let shape = image.shape();
    let n = shape.rank() - 2;
    let lit = |dims: &[Dim]| c.cx.lit(Lit::tuple(dims.iter().cloned()));
    let out: Vec<Dim> = grid.shape().iter().take(n + 1).skip(1).cloned().collect();
    let many = out.iter().fold(Dim::ONE, |n, d| &n * d);
    let elements = shape.iter().skip(2).fold(Dim::ONE, |n, d| &n * d);
    let batch = [shape[0].clone(), Dim::ONE, many.clone()];

    let mut axes: Vec<Vec<Tap<'a>>> = Vec::new();
    for i in 0..n {
        let size = &shape[i + 2];
        // The last axis of the image comes first in the grid.
        let component = (n - 1 - i) as i64;
        let along = |last: i64| {
            let whole = std::iter::repeat_n(Lit::None, n + 1);
            c.cx.lit(Lit::Tuple(whole.chain([Lit::int(last)]).collect()))
        };
        let g = grid.slice(along(component), along(component + 1)).reshape(lit(&batch));
        let place = if corners {
            (g + 1.0) / 2.0 * (size - &Dim::ONE)
        } else {
            ((g + 1.0) * size.clone() - 1.0) / 2.0
        };
        let axis = Axis { c, size, padding: &padding, corners };
        axes.push(match mode.as_str() {
            "nearest" => vec![axis.tap(axis.inside_image(place).round(), None)],
            "bicubic" => axis.cubic(place),
            _ => axis.linear(axis.inside_image(place)),
        });
    }
    let flat = image.reshape(lit(&[shape[0].clone(), shape[1].clone(), elements]));
    let zero = c.cx.lit(0.0);
    let mut sum: Option<V<'a>> = None;
    for taps in combinations(&axes) {
        let (mut at, mut inside, mut weight) = (taps[0].at, taps[0].inside, taps[0].weight);
        for (i, tap) in taps.iter().enumerate().skip(1) {
            at = at * (shape[i + 2].clone()) + tap.at;
            inside = inside.logical_and(tap.inside);
            weight = weight.zip(tap.weight).map(|(a, b)| a * b);
        }
        let value = flat.take_along_axis(at, 2);
        // Two selects: neither a weight nor a value outside of the image reaches a result or a gradient.
        let value = match weight {
            Some(weight) => value * inside.select(weight, zero),
            None => value,
        };
        let part = inside.select(value, zero);
        sum = Some(sum.map_or(part, |sum| sum + part));
    }
    let all: Vec<Dim> = shape.iter().take(2).cloned().chain(out).collect();
    let result = sum.unwrap_or(flat).reshape(lit(&all));
    Ok(vec![result.cast(dtype)])
}

/// All combinations of one tap per axis.
fn combinations<'a>(axes: &[Vec<Tap<'a>>]) -> Vec<Vec<Tap<'a>>> {
    axes.iter().fold(vec![vec![]], |all, taps| {
        all.iter().flat_map(|head| taps.iter().map(|tap| [&head[..], &[*tap]].concat())).collect()
    })
}

/// A spatial axis.
struct Axis<'c, 'a> {
    c: &'c ExpandCx<'a>,
    size: &'c Dim,
    padding: &'c str,
    corners: bool,
}

impl<'a> Axis<'_, 'a> {
    fn last(&self) -> V<'a> {
        self.c.cx.lit(self.size - &Dim::ONE)
    }
    /// A position clamped or reflected into the image, unless elements outside are 0.
    fn inside_image(&self, place: V<'a>) -> V<'a> {
        let inside = |x: V<'a>| x.clip(0.0, self.last());
        match self.padding {
            "border" => inside(place),
            "reflection" => inside(self.mirrored(place)),
            _ => place,
        }
    }
    /// A position reflected at the centers or the borders of the outermost elements.
    fn mirrored(&self, place: V<'a>) -> V<'a> {
        let (start, length) =
            if self.corners { (0.0, self.size - &Dim::ONE) } else { (-0.5, self.size.clone()) };
        if length.is(0) {
            return place.op(&FULL_LIKE, &[self.c.cx.lit(0.0)]);
        }
        let span = self.c.cx.lit(length);
        let fraction = (place - start).abs();
        let (rest, times) = (fraction.op(&FMOD, &[span]), (fraction / span).floor());
        let is_even = (times - (times / 2.0).floor() * 2.0).equal(0.0);
        is_even.select(rest + start, span - rest + start)
    }
    /// The element at an integer position.
    fn tap(&self, place: V<'a>, weight: Option<V<'a>>) -> Tap<'a> {
        let zero = self.c.cx.lit(0.0);
        // NaN counts as inside, so that it propagates.
        let outside = place.less(zero).logical_or(place.greater(self.last()));
        let inside = outside.logical_not();
        Tap { at: place.clip(zero, self.last()).cast(DType::I64), inside, weight }
    }
    fn linear(&self, place: V<'a>) -> Vec<Tap<'a>> {
        let low = place.floor();
        let fraction = place - low;
        vec![self.tap(low, Some(1.0 - fraction)), self.tap(low + 1.0, Some(fraction))]
    }
    fn cubic(&self, place: V<'a>) -> Vec<Tap<'a>> {
        const A: f64 = -0.75;
        let low = place.floor();
        let fraction = place - low;
        let inner = |x: V<'a>| (x * (A + 2.0) - (A + 3.0)) * x * x + 1.0;
        let outer = |x: V<'a>| ((x * A - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
        let weights = [outer(fraction + 1.0), inner(fraction), inner(1.0 - fraction), outer(2.0 - fraction)];
        let steps = [-1.0, 0.0, 1.0, 2.0];
        steps
            .into_iter()
            .zip(weights)
            .map(|(step, w)| self.tap(self.inside_image(low + step), Some(w)))
            .collect()
    }
}

fn torch(s: &LoweringCx<'_>) -> Option<String> {
    let (x, grid) = (s.ty(0)?, s.ty(1)?);
    let filled = x.shape.iter().chain(grid.shape.iter()).all(|d| d.known() != Some(0));
    let corners = if s.bool(4).ok()? { "True" } else { "False" };
    let words = format!("mode={}, padding_mode={}, align_corners={corners}", s.arg(2), s.arg(3));
    (filled && matches!(x.dtype, DType::F32 | DType::F64))
        .then(|| format!("F.grid_sample({}, {}, {words})", s.arg(0), s.arg(1)))
}

/// The grid of an affine map
pub static AFFINE_GRID: OpDef = OpDef {
    name: "affine_grid",
    doc: "The grid for `grid_sample` that maps each position of an image of `size` (`(n, c, h, w)` or `(n, c, d, h, w)`) \
          by the affine map `theta` (`[n, 2, 3]` or `[n, 3, 4]`): `[n, h, w, 2]` or `[n, d, h, w, 3]`. With \
          `align_corners` the positions -1 and 1 are the centers of the outermost elements, else the borders of the \
          image. As in torch.",
    layer: "AffineGrid",
    ports: &[
        tensor_of("theta", Kinds::NUMBER),
        attr("size", Attr::Shape, DefaultLit::Required),
        attr("align_corners", Attr::Bool, DefaultLit::Bool(false)),
    ],
    shape: ShapeRule::Fn(|cx| {
        cx.rank(0, &[3])?;
        let (theta, size) = (cx.shape(0), cx.dims(1)?);
        let n = size.len().saturating_sub(2);
        if !(2..=3).contains(&n) || size.iter().any(|d| d.known().is_some_and(|d| d < 1)) {
            return Err(cx.bad(1, &cx.lit(1), "the size of an image: (n, c, h, w) or (n, c, d, h, w)"));
        }
        cx.same(&theta[0], &size[0], "batch sizes of `theta` and of the image")?;
        cx.same(&theta[1], &Dim::Const(n as i64), "rows of `theta` and spatial axes")?;
        cx.same(&theta[2], &Dim::Const(n as i64 + 1), "columns of `theta` and spatial axes and 1")?;
        let spatial = size[2..].iter().cloned();
        Ok(vec![[size[0].clone()].into_iter().chain(spatial).chain([Dim::Const(n as i64)]).collect()])
    }),
    dtype: DTypeRule::Float,
    expand: Some(|c| {
        let (size, corners) = (c.get(|c| c.dims(1)), c.get(|c| c.bool(2)));
        let theta = c.x[0];
        let tuple = |dims: &[Dim]| c.cx.lit(Lit::tuple(dims.iter().cloned()));
        let spatial = size.get(2..).unwrap_or_default();
        let n = spatial.len();
        let coordinate = |i: usize| {
            let count = &spatial[i];
            let steps = c.cx.arange(count.clone()).cast(theta.dtype());
            let line = match corners {
                true if count.is(1) => steps,
                true => steps * 2.0 / (count - &Dim::ONE) - 1.0,
                false => (steps * 2.0 + 1.0) / count.clone() - 1.0,
            };
            let mut shape = vec![Dim::ONE; n];
            shape[i] = count.clone();
            line.reshape(tuple(&shape)).broadcast_to(tuple(spatial))
        };
        let mut parts: Vec<V<'_>> = (0..n).rev().map(coordinate).collect();
        let Some(first) = parts.first().copied() else { return vec![theta] };
        parts.push(first.op(&FULL_LIKE, &[c.cx.lit(1.0)]));
        let args: Vec<V<'_>> = [c.cx.lit(-1)].into_iter().chain(parts).collect();
        let many = spatial.iter().fold(Dim::ONE, |n, d| &n * d);
        let rows = c.cx.call(&STACK, &args).reshape(tuple(&[many, Dim::Const(n as i64 + 1)]));
        let transposed = theta.swapaxes(1, 2);
        let whole = [theta.dim(0)].into_iter().chain(spatial.iter().cloned()).chain([Dim::Const(n as i64)]);
        vec![rows.matmul(transposed).reshape(Lit::tuple(whole))]
    }),
    lowering: Lowering {
        torch: Function(|s| {
            let corners = if s.bool(2).ok()? { "True" } else { "False" };
            let size = s.dims(&Attrs::dims(s, 1).ok()?);
            matches!(s.ty(0)?.dtype, DType::F32 | DType::F64)
                .then(|| format!("F.affine_grid({}, {size}, align_corners={corners})", s.arg(0)))
        }),
        ..Lowering::NONE
    },
    cases: &[
        "[2,2,3] size=(2,3,4,5)",
        "[1,2,3] size=(1,1,2,3) align_corners=true",
        "[1,3,4] size=(1,2,2,3,2)",
        "[2,3,4] size=(2,1,3,2,4) align_corners=true",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};
