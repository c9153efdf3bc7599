//! Slices: parts of a tensor along its axes, and ops that consist of them.

use smallvec::smallvec;

use crate::dim::Dim;
use crate::dtype::Kinds;
use crate::error::{Code, Error, Result};
use crate::formula::V;
use crate::graph::{Graph, Node};
use crate::interp::{EvalCx, broadcast_index};
use crate::literal::Lit;
use crate::loops::{Expr, LoopCx, Within};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{Attr, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, attr, tensor_of};
use crate::ops::joining::CONCAT;
use crate::ops::movement::{INPUT, MOVE, strided, tuple_text, undecided};
use crate::rules::{Attrs, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Tensor, strides};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&SLICE, &SLICE_UPDATE, &FLIP, &ROLL, &SPLIT];

// --- ranges ------------------------------------------------------------------------------------------------

/// `start:stop:step` along one axis, as written.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub start: Option<Dim>,
    pub stop: Option<Dim>,
    pub step: i64,
}

impl Range {
    /// Whether it is the whole axis in order.
    pub fn is_whole(&self, size: &Dim) -> bool {
        let from_start = self.start.as_ref().is_none_or(|d| d.is(0));
        self.step == 1 && from_start && self.stop.as_ref().is_none_or(|d| d == size)
    }
    /// The first position and the number of positions on an axis of that size.
    ///
    /// As in Python, negative bounds count from the end and bounds outside are clamped. If size or bound is symbolic, this
    /// cannot be decided, and the bound is assumed to lie inside.
    fn on(&self, size: &Dim) -> (Dim, Dim) {
        let (low, high) = if self.step > 0 { (0, 0) } else { (-1, -1) };
        let last = size + &Dim::Const(high);
        let bound =
            |b: &Option<Dim>, default: Dim| b.as_ref().map_or(default, |b| inside(b, size, low, &last));
        let (start, stop) = if self.step > 0 {
            (bound(&self.start, Dim::Const(0)), bound(&self.stop, size.clone()))
        } else {
            (bound(&self.start, last.clone()), bound(&self.stop, Dim::Const(-1)))
        };
        let way = if self.step > 0 { &stop - &start } else { &start - &stop };
        let step = self.step.saturating_abs();
        let count = (&way + &Dim::Const(step - 1)).floor_div(&Dim::Const(step));
        (start, count.known().map_or(count, |n| Dim::Const(n.max(0))))
    }
    /// The range in Python's syntax.
    pub fn text(&self, size: &Dim, s: &LoweringCx<'_>) -> String {
        let start = self.start.as_ref().filter(|d| !(self.step > 0 && d.is(0)));
        let stop = self.stop.as_ref().filter(|d| !(self.step > 0 && *d == size));
        let side = |d: Option<&Dim>| d.map(|d| s.dim(d)).unwrap_or_default();
        let step = if self.step == 1 { String::new() } else { format!(":{}", self.step) };
        format!("{}:{}{step}", side(start), side(stop))
    }
}

/// A bound as an index between `low` and `last`.
fn inside(bound: &Dim, size: &Dim, low: i64, last: &Dim) -> Dim {
    let from_end = bound.is_never_positive() && !bound.is(0);
    let at = if from_end { size + bound } else { bound.clone() };
    match (at.known(), last.known()) {
        (Some(at), Some(last)) => Dim::Const(at.min(last).max(low)),
        _ => at,
    }
}

/// Integers or `none`, one for each of the first axes.
fn bounds(cx: &impl Attrs, i: usize) -> Result<Vec<Option<Dim>>> {
    let lit = cx.lit(i);
    let one = |item: &Lit| match item {
        Lit::Int(d) => Ok(Some(d.clone())),
        Lit::None => Ok(None),
        _ => Err(cx.bad(i, &lit, "a tuple of integers or none, one for each axis")),
    };
    match &lit {
        Lit::Tuple(items) => items.iter().map(one).collect(),
        Lit::None => Ok(Vec::new()),
        other => Ok(vec![one(other)?]),
    }
}

/// The ranges at the ports from `at` on, one for each axis of `shape`; missing ones are whole axes.
pub(super) fn ranges(cx: &impl Attrs, at: usize, shape: &[Dim]) -> Result<Vec<Range>> {
    let (starts, stops) = (bounds(cx, at)?, bounds(cx, at + 1)?);
    let steps = if cx.absent(at + 2) { Vec::new() } else { cx.ints(at + 2)? };
    for (i, len) in [(at, starts.len()), (at + 1, stops.len()), (at + 2, steps.len())] {
        if len > shape.len() {
            return Err(cx.bad(i, &cx.lit(i), &format!("for at most {} axes", shape.len())));
        }
    }
    if steps.contains(&0) {
        return Err(cx.bad(at + 2, &cx.lit(at + 2), "steps that are not 0"));
    }
    Ok((0..shape.len())
        .map(|i| Range {
            start: starts.get(i).cloned().flatten(),
            stop: stops.get(i).cloned().flatten(),
            step: steps.get(i).copied().unwrap_or(1),
        })
        .collect())
}

/// The shape of the part that the ranges at the ports from `at` on select.
fn part_shape(cx: &ShapeCx<'_>, at: usize) -> Result<Shape> {
    let from = cx.shape(0);
    let ranges = ranges(cx, at, from)?;
    let open = |(range, size): (&Range, &Dim)| {
        let bounds = [&range.start, &range.stop].into_iter().flatten();
        !range.is_whole(size) && undecided(bounds.chain([size]))
    };
    if ranges.iter().zip(from.iter()).any(open) {
        return Err(cx.unknown());
    }
    Ok(ranges.iter().zip(from.iter()).map(|(range, size)| range.on(size).1).collect())
}

/// `count` indices on an axis: `start`, `start + step`, …
struct AxisSlice {
    start: i64,
    step: i64,
    count: i64,
}

/// The indices that the ranges at the ports from `at` on select, for axes of known size.
fn known_slices(cx: &impl Attrs, at: usize, sizes: &[i64]) -> Result<Vec<AxisSlice>> {
    let sizes: Vec<Dim> = sizes.iter().map(|&n| n.into()).collect();
    let ranges = ranges(cx, at, &sizes)?;
    let line = |(range, size): (&Range, &Dim)| {
        let (start, count) = range.on(size);
        let (start, count) = (start.known().unwrap_or(0), count.known().unwrap_or(0));
        // The step of a single index is not used, and may overflow.
        AxisSlice { start, step: if count > 1 { range.step } else { 1 }, count }
    };
    Ok(ranges.iter().zip(&sizes).map(line).collect())
}

/// A part of one axis, whole on all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AxisPart {
    /// The axis.
    pub axis: usize,
    /// Its first index.
    pub start: i64,
    /// The number of indices.
    pub length: i64,
    /// Whether it is one index, and the result lacks the axis.
    pub drops_axis: bool,
}

impl AxisPart {
    /// Whether another is the same, but for where it begins.
    pub fn is_like(&self, other: &Self) -> bool {
        Self { start: other.start, ..*self } == *other
    }
}

/// What a slice takes, if that is consecutive indices of one axis with known bounds.
pub fn axis_part(graph: &Graph, node: &Node) -> Option<AxisPart> {
    let of_slice = node.op == &SLICE;
    let shape = &graph.ty(*node.inputs.first().filter(|_| of_slice)?)?.shape;
    let cx = LoweringCx::of(graph, node);
    let ranges = ranges(&cx, 1, shape).ok()?;
    let mut cut = ranges.iter().enumerate().filter(|(axis, range)| !range.is_whole(&shape[*axis]));
    let (axis, range) = cut.next().filter(|(_, range)| range.step == 1)?;
    let (start, length) = range.on(&shape[axis]);
    let part = AxisPart { axis, start: start.known()?, length: length.known()?, drops_axis: false };
    (cut.next().is_none() && shape[axis].known().is_some()).then_some(part)
}

const INSIDE: &str = "beside a symbolic size, bounds have to lie inside the axis";

/// The part as a strided view of a tensor of sizes `shape`: the offset of its first element and the steps along the axes. `part`
/// is its inferred shape.
fn part_place(cx: &impl Attrs, at: usize, shape: &[usize], part: &[usize]) -> Result<(i64, Vec<i64>)> {
    let sizes: Vec<Dim> = shape.iter().map(|&n| n.into()).collect();
    let mut base = 0;
    let mut steps = strides(shape).into_iter().map(|s| s as i64).collect::<Vec<_>>();
    for (i, range) in ranges(cx, at, &sizes)?.iter().enumerate() {
        let (start, count) = range.on(&sizes[i]);
        if !count.is(part[i] as i64) {
            let message = format!("a slice of axis {i} leaves the axis, which has size {}", sizes[i]);
            return Err(cx.explain(Error::new(Code::IndexOutOfRange, message)).help(INSIDE));
        }
        base += start.known().unwrap_or(0) * steps[i];
        // A step that overflows belongs to an axis of at most one element and is not used.
        steps[i] = steps[i].wrapping_mul(range.step);
    }
    Ok((base, steps))
}

/// The index expression; whole axes at the end are omitted.
fn index_text(s: &LoweringCx<'_>, at: usize) -> Option<String> {
    let shape = &s.ty(0)?.shape;
    let ranges = ranges(s, at, shape).ok()?;
    let used = (0..ranges.len()).rev().find(|&i| !ranges[i].is_whole(&shape[i])).map_or(0, |i| i + 1);
    let parts: Vec<String> = (0..used).map(|i| ranges[i].text(&shape[i], s)).collect();
    Some(if parts.is_empty() { "...".into() } else { parts.join(", ") })
}

const STARTS: Port = attr("starts", Attr::Any, DefaultLit::Required);
const STOPS: Port = attr("stops", Attr::Any, DefaultLit::Required);
const STEPS: Port = attr("steps", Attr::OptInts, DefaultLit::None);

// --- slice and its adjoint ---------------------------------------------------------------------------------

/// `input[start:stop:step, ...]`
pub static SLICE: OpDef = OpDef {
    name: "slice",
    doc: "The part `input[start:stop:step, ...]`, with Python's rules: bounds may be negative (from the end), \
          `none` (as far as possible) or out of range (clamped), steps may be negative. One entry for each axis; \
          trailing axes without an entry are kept whole. Bounds of symbolic axes are assumed to be in range.",
    layer: "Slice",
    ports: &[INPUT, STARTS, STOPS, STEPS],
    shape: ShapeRule::Fn(|cx| Ok(vec![part_shape(cx, 1)?])),
    eval: Some(Eval::Tensors(|c| {
        let x = c.tensor(0);
        let (base, steps) = part_place(c, 1, x.shape(), c.shape())?;
        Ok(vec![strided(x, c.shape(), base, &steps)])
    })),
    loops: Some(|c| {
        let lines = known_slices(c, 1, &c.shape(0))?;
        Ok(vec![c.output(0, |at| {
            let from = at.iter().zip(&lines).map(|(i, line)| i.clone() * line.step + line.start.into());
            c.load(0, from.collect::<Vec<_>>())
        })])
    }),
    grad: Grad::Formula(|v| {
        let zeros = zeros(v.x[0]);
        vec![zeros.op(&SLICE_UPDATE, &[v.g, v.x[1], v.x[2], v.x[3]])]
    }),
    lowering: Lowering {
        py: Function(|s| Some(format!("{}[{}]", s.arg(0), index_text(s, 1)?))),
        torch: Function(|s| torch_slice(s, 1)),
        ggml: Function(|s| {
            let lines = known_slices(s, 1, &super::ggml::known(s.ty(0))?).ok()?;
            let lines: Vec<[i64; 3]> = lines.iter().map(|l| [l.start, l.step, l.count]).collect();
            super::ggml::backwards(s, &lines)
        }),
        onnx: Function(super::onnx::slice),
        ..Lowering::NONE
    },
    cases: &[
        "[5,4] starts=(1,) stops=(4,)",
        "[5,4] starts=(none,0) stops=(none,-1) steps=(-1,2)",
        "[5] starts=(3,) stops=(none,) steps=(-2,)",
        "[5] starts=(-9,) stops=(9,)",
        "[5] starts=(4,) stops=(1,)",
        "[2,0,3] starts=(1,) stops=(2,)",
    ],
    ..MOVE
};

/// Zeros of the type of `x`.
pub(super) fn zeros(x: V<'_>) -> V<'_> {
    x.cx().zeros(x.shape().0.to_vec(), x.dtype())
}

/// torch has no negative steps: the axes that have one, and all ranges with positive steps.
fn forwards(s: &LoweringCx<'_>, at: usize) -> Option<(Vec<usize>, Vec<Range>)> {
    let shape = &s.ty(0)?.shape;
    let mut reversed = Vec::new();
    let mut forwards = Vec::new();
    for (i, range) in ranges(s, at, shape).ok()?.into_iter().enumerate() {
        if range.step > 0 {
            forwards.push(range);
            continue;
        }
        reversed.push(i);
        if range.step == -1 && range.start.is_none() && range.stop.is_none() {
            forwards.push(Range { step: 1, ..range });
            continue;
        }
        let (first, count) = range.on(&shape[i]);
        let (first, count) = (first.known()?, count.known()?);
        let lowest = first.saturating_add((count - 1).max(0).saturating_mul(range.step));
        let (start, stop) = if count > 0 { (lowest, first + 1) } else { (0, 0) };
        let (start, stop) = (Some(Dim::Const(start)), Some(Dim::Const(stop)));
        forwards.push(Range { start, stop, step: range.step.saturating_neg() });
    }
    Some((reversed, forwards))
}

fn torch_slice(s: &LoweringCx<'_>, at: usize) -> Option<String> {
    let (reversed, forwards) = forwards(s, at)?;
    if reversed.is_empty() {
        return Some(format!("{}[{}]", s.arg(0), index_text(s, at)?));
    }
    let shape = &s.ty(0)?.shape;
    let parts: Vec<String> =
        forwards.iter().zip(shape.iter()).map(|(range, size)| range.text(size, s)).collect();
    Some(format!("torch.flip({}[{}], {})", s.arg(0), parts.join(", "), tuple_text(&reversed)))
}

/// `[(start, stop, step), ...]`
fn slices_text(s: &LoweringCx<'_>, ranges: &[Range]) -> String {
    let bound = |d: &Option<Dim>| d.as_ref().map_or_else(|| "None".to_owned(), |d| s.dim(d));
    let one = |r: &Range| format!("({}, {}, {})", bound(&r.start), bound(&r.stop), r.step);
    format!("[{}]", ranges.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn torch_update(s: &LoweringCx<'_>) -> Option<String> {
    let (reversed, forwards) = forwards(s, 2)?;
    // The update is aligned at the last axis; axes that it lacks need not be reversed.
    let front = forwards.len() - s.ty(1)?.shape.rank();
    let flipped: Vec<usize> = reversed.iter().filter_map(|a| a.checked_sub(front)).collect();
    let update = if flipped.is_empty() {
        s.arg(1).to_owned()
    } else {
        format!("torch.flip({}, {})", s.arg(1), tuple_text(&flipped))
    };
    Some(format!("_slice_update({}, {update}, {})", s.arg(0), slices_text(s, &forwards)))
}

/// a tensor with a part replaced
pub static SLICE_UPDATE: OpDef = OpDef {
    name: "slice_update",
    doc: "The input with the part `input[start:stop:step, ...]` replaced by `update`, which broadcasts to it. \
          The bounds are interpreted as in `slice`.",
    layer: "SliceUpdate",
    ports: &[INPUT, tensor_of("update", Kinds::ANY), STARTS, STOPS, STEPS],
    shape: ShapeRule::Fn(|cx| {
        let part = part_shape(cx, 2)?;
        let update = cx.shape(1);
        let front = part.rank().checked_sub(update.rank());
        let fits =
            |front: usize| update.iter().zip(&part[front..]).all(|(u, p)| u.is(1) || u == p || !known(u, p));
        if !front.is_some_and(fits) {
            let message = format!("`update` of slice_update is {update}, the part to replace is {part}");
            return Err(Error::new(Code::ShapeMismatch, message).help("`update` must broadcast to the part"));
        }
        for (u, p) in update.iter().zip(&part[front.unwrap_or(0)..]) {
            if !u.is(1) {
                cx.same(u, p, "sizes of the part and of its update")?;
            }
        }
        Ok(vec![cx.shape(0).clone()])
    }),
    dtype: DTypeRule::Fn(|cx| {
        let to = cx.dtype(0).unwrap_or(cx.float);
        Ok(DTypes { cast: smallvec![None, Some(to)], out: smallvec![to] })
    }),
    eval: Some(Eval::Tensors(eval_update)),
    loops: Some(update_loops),
    grad: Grad::Formula(|v| {
        let nothing = v.cx.lit(Tensor::scalar(v.x[1].dtype(), 0.0));
        let kept = v.g.op(&SLICE_UPDATE, &[nothing, v.x[2], v.x[3], v.x[4]]);
        vec![kept, v.g.strided_slice(v.x[2], v.x[3], v.x[4])]
    }),
    lowering: Lowering {
        numpy: Function(|s| {
            let index = index_text(s, 2)?;
            Some(format!("_slice_update({}, {}, np.s_[{index}])", s.arg(0), s.arg(1)))
        }),
        torch: Function(torch_update),
        jax: Function(|s| Some(format!("{}.at[{}].set({})", s.arg(0), index_text(s, 2)?, s.arg(1)))),
        mlx: Function(|s| {
            let ranges = ranges(s, 2, &s.ty(0)?.shape).ok()?;
            Some(format!("_slice_update({}, {}, {})", s.arg(0), s.arg(1), slices_text(s, &ranges)))
        }),
        onnx: Function(super::onnx::slice_update),
        ..Lowering::NONE
    },
    cases: &[
        "[5,4] [2,4] starts=(1,) stops=(3,)",
        "[5,4] [5,2] starts=(none,3) stops=(none,none) steps=(1,-2)",
        "[5,4] [4] starts=(1,) stops=(3,)",
        "[4] [0] starts=(2,) stops=(2,)",
    ],
    ..MOVE
};

/// The update inside of the part, the input elsewhere.
fn update_loops(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let lines = known_slices(c, 2, &c.shape(0))?;
    Ok(vec![c.output(0, |at| {
        let mut inside = Vec::new();
        let mut part = Vec::new();
        for (i, line) in at.iter().zip(&lines) {
            let sign = line.step.signum();
            let (steps, distance) = (line.step.abs(), (i.clone() - line.start.into()) * sign);
            inside.push(Within::new(distance.clone(), 0, (line.count - 1) * steps + 1));
            inside.push(Within::new(distance.modulo(steps), 0, 1));
            part.push(distance.floor_div(steps));
        }
        c.broadcast(1, &part).within(inside, c.load(0, at))
    })])
}

fn known(a: &Dim, b: &Dim) -> bool {
    a.known().is_some() && b.known().is_some()
}

fn eval_update(c: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let (x, update) = (c.tensor(0), c.tensor(1));
    let sizes: Vec<Dim> = x.shape().iter().map(|&n| n.into()).collect();
    let part: Vec<usize> = ranges(c, 2, &sizes)?
        .iter()
        .zip(&sizes)
        .map(|(range, size)| range.on(size).1.known().unwrap_or(0) as usize)
        .collect();
    if part.len() < update.rank() {
        return Err(Error::internal("the update of slice_update has too many axes"));
    }
    let front = part.len() - update.rank();
    if update.shape().iter().zip(&part[front..]).any(|(&u, &p)| u != 1 && u != p) {
        let message = format!("the part to replace is {part:?}, its update is {:?}", update.shape());
        return Err(c.explain(Error::new(Code::IndexOutOfRange, message)).help(INSIDE));
    }
    let (base, steps) = part_place(c, 2, x.shape(), &part)?;
    let from = broadcast_index(update.shape(), &part);
    let part_strides = strides(&part);
    // For each element of the input, the element of the update that replaces it.
    let mut source: Vec<Option<usize>> = vec![None; x.len()];
    for i in 0..part.iter().product() {
        let offset: i64 =
            part_strides.iter().zip(&part).zip(&steps).map(|((s, n), t)| (i / s % n) as i64 * t).sum();
        source[(base + offset) as usize] = Some(from(i));
    }
    let at = |i: usize| source[i].map_or_else(|| x.get(i), |from| update.get(from));
    Ok(vec![Tensor::build(c.dtype(), x.shape(), at)])
}

// --- flip, roll, split -------------------------------------------------------------------------------------

/// order reversed
pub static FLIP: OpDef = OpDef {
    name: "flip",
    doc: "The order of the elements reversed along `axis` (one, several, or all).",
    aliases: &["reverse"],
    layer: "Flip",
    ports: &[INPUT, attr("axis", Attr::OptInts, DefaultLit::None)],
    shape: ShapeRule::Fn(|cx| {
        cx.axes(1, cx.shape(0).rank())?;
        Ok(vec![cx.shape(0).clone()])
    }),
    expand: Some(|c| {
        let axes = c.get(|c| c.axes(1, c.x[0].rank()));
        let steps = (0..c.x[0].rank()).map(|i| if axes.contains(&i) { -1 } else { 1_i64 });
        let none = c.cx.none();
        vec![c.x[0].strided_slice(none, none, Lit::tuple(steps))]
    }),
    grad: Grad::Formula(|v| vec![v.g.flip(v.x[1])]),
    lowering: Lowering {
        numpy: Template("np.flip({0}, {1})"),
        torch: Function(|s| {
            let axes = s.axes(1, s.ty(0)?.shape.rank()).ok()?;
            Some(format!("torch.flip({}, {})", s.arg(0), tuple_text(&axes)))
        }),
        jax: Template("jnp.flip({0}, {1})"),
        ..Lowering::NONE
    },
    cases: &["[2,3]", "[2,3] axis=0", "[2,3] axis=-1", "[2,3,2] axis=(0,2)", "[0,3]", "[]"],
    ..MOVE
};

/// elements shifted cyclically
pub static ROLL: OpDef = OpDef {
    name: "roll",
    doc: "Elements moved by `shift` positions along `axis`; elements shifted off the end wrap around to the start. Without \
          an axis the elements are rolled in row-major order.",
    layer: "Roll",
    ports: &[
        INPUT,
        attr("shift", Attr::Ints, DefaultLit::Required),
        attr("axis", Attr::OptInts, DefaultLit::None),
    ],
    shape: ShapeRule::Expansion,
    expand: Some(|c| {
        let x = c.x[0];
        let shape = c.cx.lit(x.shape().0.to_vec());
        if c.absent(2) {
            let shift = c.get(|c| c.ints_n(1, 1)).first().copied().unwrap_or(0);
            return vec![rolled(x.reshape(-1), shift, 0).reshape(shape)];
        }
        let axes = c.get(|c| c.ints(2)?.iter().map(|&a| x.shape().axis(a)).collect::<Result<Vec<_>>>());
        let shifts = c.get(|c| c.ints_n(1, axes.len()));
        vec![axes.iter().zip(&shifts).fold(x, |x, (&axis, &shift)| rolled(x, shift, axis))]
    }),
    lowering: Lowering::py("{xp}.roll({0}, {1}, {2})"),
    cases: &[
        "[5] shift=2",
        "[2,3] shift=-1 axis=1",
        "[2,3] shift=4",
        "[2,3] shift=(1,2) axis=(0,-1)",
        "[0] shift=1",
    ],
    ..MOVE
};

/// Rolls one axis. A shift is assumed not to exceed a symbolic size.
fn rolled(x: V<'_>, shift: i64, axis: usize) -> V<'_> {
    let size = x.dim(axis as i64);
    let at = match size.known() {
        Some(0) => return x,
        Some(n) => Dim::Const((n - shift.rem_euclid(n)) % n),
        None if shift > 0 => &size - &Dim::Const(shift),
        None => Dim::Const(shift.saturating_neg()),
    };
    if at.is(0) {
        return x;
    }
    let (front, back) = (cut(x, axis, None, Some(at.clone())), cut(x, axis, Some(at), None));
    x.cx().concat(axis, &[back, front])
}

/// `x[..., start:stop, ...]` along one axis.
pub(super) fn cut(x: V<'_>, axis: usize, start: Option<Dim>, stop: Option<Dim>) -> V<'_> {
    let bound = |d: Option<Dim>| {
        Lit::tuple((0..=axis).map(|i| if i == axis { Lit::from(d.clone()) } else { Lit::None }))
    };
    x.slice(bound(start), bound(stop))
}

/// several parts along an axis
pub static SPLIT: OpDef = OpDef {
    name: "split",
    doc: "Parts along `axis`, one output each: `sections` is a number of equal parts, or a tuple of the sizes of \
          the parts, which have to add up to the size of the axis.",
    aliases: &["chunk"],
    layer: "Split",
    ports: &[
        INPUT,
        attr("sections", Attr::Ints, DefaultLit::Required),
        attr("axis", Attr::Int, DefaultLit::Int(0)),
    ],
    shape: ShapeRule::Fn(|cx| {
        let from = cx.shape(0);
        let axis = cx.axis(2, from.rank())?;
        let sizes = section_sizes(cx, &from[axis])?;
        if matches!(cx.lit(1), Lit::Tuple(_)) {
            let sum = sizes.iter().fold(Dim::Const(0), |sum, d| &sum + d);
            cx.same(&sum, &from[axis], "the sum of the sections and the size of the axis")?;
        }
        let part = |size| {
            let mut shape = from.clone();
            shape.0[axis] = size;
            shape
        };
        Ok(sizes.into_iter().map(part).collect())
    }),
    expand: Some(|c| {
        let x = c.x[0];
        let axis = c.get(|c| c.axis(2, x.rank()));
        let sizes = c.get(|c| section_sizes(c, &x.dim(axis as i64)));
        parts(x, axis, &sizes)
    }),
    grad: Grad::Formula(|v| {
        let axis = v.get(|c| c.axis(2, v.x[0].rank()));
        let inputs: Vec<V<'_>> = [v.cx.lit(axis)].into_iter().chain(v.gs.iter().copied()).collect();
        vec![v.cx.call(&CONCAT, &inputs)]
    }),
    lowering: Lowering {
        // One call, whose gradient is one concatenation.
        torch: Function(|s| {
            let axis = s.axis(2, s.ty(0)?.shape.rank()).ok()?;
            let sizes = section_sizes(s, &s.ty(0)?.shape[axis]).ok()?;
            let even = sizes.iter().all(|size| *size == sizes[0] && size.known().is_some_and(|n| n > 0));
            let text = if even { s.dim(&sizes[0]) } else { s.dims(&sizes) };
            (sizes.len() > 1).then(|| format!("torch.split({}, {text}, {axis})", s.arg(0)))
        }),
        ..Lowering::NONE
    },
    cases: &[
        "[6,2] sections=3",
        "[2,5] sections=(2,3) axis=1",
        "[4] sections=(0,4)",
        "[4] sections=1 axis=-1",
    ],
    ..MOVE
};

fn section_sizes(cx: &impl Attrs, size: &Dim) -> Result<Vec<Dim>> {
    if matches!(cx.lit(1), Lit::Tuple(_)) {
        let sizes = cx.dims(1)?;
        let negative = sizes.iter().any(|d| d.known().is_some_and(|n| n < 0));
        return if sizes.is_empty() || negative {
            Err(cx.bad(1, &cx.lit(1), "a number of parts or a tuple of sizes"))
        } else {
            Ok(sizes)
        };
    }
    let n = cx.int(1)?;
    // Each part is a value of the graph: the bound prevents an accidental number from exhausting the memory.
    if !(1..=1 << 16).contains(&n) {
        return Err(cx.bad(1, &cx.lit(1), "between 1 and 65536 parts, or a tuple of sizes"));
    }
    let part = size.exact_div(&Dim::Const(n)).ok_or_else(|| {
        Error::new(Code::ShapeMismatch, format!("an axis of size {size} has no {n} equal parts"))
            .help("give the sizes of the parts as a tuple")
    })?;
    Ok(vec![part; n as usize])
}

/// Consecutive parts of those sizes.
pub(super) fn parts<'a>(x: V<'a>, axis: usize, sizes: &[Dim]) -> Vec<V<'a>> {
    let mut start = Dim::Const(0);
    sizes
        .iter()
        .map(|size| {
            let stop = &start + size;
            cut(x, axis, Some(std::mem::replace(&mut start, stop.clone())), Some(stop))
        })
        .collect()
}
