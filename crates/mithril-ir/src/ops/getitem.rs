//! Indexing with Python's syntax: `input[1, ..., 2:, None, i]`.

use crate::dim::Dim;
use crate::dtype::{Kind, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::graph::{Graph, Node};
use crate::literal::Lit;
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{Attr, DTypeRule, DefaultLit, Grad, OpDef, Port, PortKind, ShapeRule, attr};
use crate::ops::elementwise::ADD;
use crate::ops::index::{as_positions, position};
use crate::ops::movement::{INPUT, MOVE};
use crate::ops::slicing::{AxisPart, Range};
use crate::rules::Attrs;
use crate::shape::{self, Shape};
use crate::tensor::Tensor;

/// `input[key]`
pub static GETITEM: OpDef = OpDef {
    name: "getitem",
    doc: "The part `input[key]` with the rules of Python and NumPy. `key` is one item or a tuple of items: an \
          integer, a slice, `...`, `none` (a new axis), a tuple of integers or an integer tensor that is a literal, \
          or a string that stands for the next of the tensors `indices`. Several index tensors broadcast;  \
          their axes take the position of the first of them, or come first when a slice, `...` or a new axis comes between two of \
          them (an integer counts as an index tensor then). A boolean mask is an error: the shape of the \
          result would depend on data.",
    ports: &[INPUT, attr("key", Attr::Any, DefaultLit::Required), INDICES],
    shape: ShapeRule::Expansion,
    dtype: DTypeRule::Same(0),
    expand: Some(getitem),
    grad: Grad::Expansion,
    lowering: Lowering {
        numpy: Function(|s| index_text(s, true)),
        torch: Function(|s| index_text(s, false)),
        jax: Function(|s| index_text(s, true)),
        mlx: Function(|s| index_text(s, false)),
        ..Lowering::NONE
    },
    cases: &[
        "[4,5] key=1",
        "[4,5] key=(-1,2)",
        "[4,5] key=(1:3:1,...)",
        "[4,5,2] key=(...,none,0)",
        "[6,5] key=\"tensor\" i64[2,3]",
        "[3,6] key=(0:2:1,\"tensor\") i64[2]",
        "[6,6,2] key=(\"tensor\",\"tensor\") i64[3,1] i64[2]",
        "[6,2,6] key=(\"tensor\",none:none:-1,\"tensor\") i64[3] i64[3]",
        "[2,3,6] key=(0,none:none:none,\"tensor\") i64[4]",
        "[2,3,6] key=(none:none:none,1,\"tensor\") i64[4]",
        "[4,5] key=(none:none:none,(0,-1))",
        "[3] key=()",
    ],
    ..MOVE
};

const INDICES: Port =
    Port { name: "indices", kind: PortKind::Variadic(Kinds::INT), default: DefaultLit::Required };

/// One item of a key.
enum Item {
    /// An integer, which removes the axis.
    At(Dim),
    /// A slice, which keeps the axis.
    Range(Range),
    /// `...`, with the number of axes that it stands for.
    Ellipsis(usize),
    /// A new axis.
    New,
    /// The next of the index tensors at the ports.
    Tensor,
    /// An index tensor written in the key.
    Literal(Lit),
}

impl Item {
    /// Number of axes of the input that it consumes.
    fn axes(&self) -> usize {
        match self {
            Self::Ellipsis(n) => *n,
            Self::New => 0,
            _ => 1,
        }
    }
    fn is_tensor(&self) -> bool {
        matches!(self, Self::Tensor | Self::Literal(_))
    }
}

/// What a use takes, if that is one known index of one axis, which the result lacks.
pub fn axis_index(graph: &Graph, node: &Node) -> Option<AxisPart> {
    let of_getitem = node.op == &GETITEM && node.inputs.len() == 2;
    let shape = &graph.ty(*node.inputs.first().filter(|_| of_getitem)?)?.shape;
    let items = items(&LoweringCx::of(graph, node), shape.rank(), 0).ok()?;
    let (mut axis, mut found) = (0, None);
    for item in &items {
        match item {
            Item::At(at) if found.is_none() => {
                let (at, size) = (at.known()?, shape[axis].known()?);
                let start = if at < 0 { at + size } else { at };
                found = Some(AxisPart { axis, start, length: 1, drops_axis: true });
            }
            Item::Ellipsis(_) => {}
            Item::Range(range) if range.is_whole(&shape[axis]) => {}
            _ => return None,
        }
        axis += item.axes();
    }
    found
}

/// Reads the key for an input of that rank; the result always contains an `...`.
fn items(cx: &impl Attrs, rank: usize, tensors: usize) -> Result<Vec<Item>> {
    let key = cx.lit(1);
    let mut items = match &key {
        Lit::Tuple(all) => all.iter().map(|lit| item(cx, lit)).collect::<Result<Vec<_>>>()?,
        one => vec![item(cx, one)?],
    };
    let used = items.iter().filter(|i| matches!(i, Item::Tensor)).count();
    if used != tensors {
        let message = format!("the key of getitem has places for {used} tensors, {tensors} are given");
        return Err(Error::new(Code::BadArgument, message).help("give one tensor for each place"));
    }
    let used: usize = items.iter().map(Item::axes).sum();
    let Some(rest) = rank.checked_sub(used) else {
        return Err(Error::new(Code::RankMismatch, format!("{used} indices are given for {rank} axes"))
            .note(format!("the key is {key}"))
            .help("give at most one index for each axis"));
    };
    match items.iter().filter(|i| matches!(i, Item::Ellipsis(_))).count() {
        0 => items.push(Item::Ellipsis(rest)),
        1 => items.iter_mut().for_each(|i| {
            if let Item::Ellipsis(n) = i {
                *n = rest;
            }
        }),
        _ => return Err(cx.bad(1, &key, "a key with at most one `...`")),
    }
    Ok(items)
}

fn item(cx: &impl Attrs, lit: &Lit) -> Result<Item> {
    let bound = |l: &Lit| match l {
        Lit::None => Ok(None),
        Lit::Int(d) => Ok(Some(d.clone())),
        _ => Err(cx.bad(1, lit, "a slice of integers")),
    };
    Ok(match lit {
        Lit::Int(d) => Item::At(d.clone()),
        Lit::None => Item::New,
        Lit::Ellipsis => Item::Ellipsis(0),
        Lit::Str(_) => Item::Tensor,
        Lit::Slice(parts) => {
            let step = bound(&parts[2])?.unwrap_or(Dim::ONE);
            let step = step.known().ok_or_else(|| cx.symbolic(1, &step))?;
            if step == 0 {
                return Err(cx.bad(1, lit, "a slice whose step is not 0"));
            }
            Item::Range(Range { start: bound(&parts[0])?, stop: bound(&parts[1])?, step })
        }
        Lit::Bool(_) => return Err(mask(lit)),
        Lit::Tensor(t) if t.dtype().kind() == Kind::Bool => return Err(mask(lit)),
        Lit::Tensor(t) if t.dtype().kind() == Kind::Int => Item::Literal(lit.clone()),
        Lit::Tuple(list) => Item::Literal(index_list(cx, list, lit)?),
        other => return Err(cx.bad(1, other, "made of integers, slices, `...`, none and integer tensors")),
    })
}

fn mask(lit: &Lit) -> Error {
    Error::new(Code::BadArgument, format!("an index is {lit}, a mask of booleans"))
        .note("the shape of the result would depend on data")
        .help("use where(mask, input, other), or take with positions")
}

/// A list of integers as an index tensor.
fn index_list(cx: &impl Attrs, list: &[Lit], lit: &Lit) -> Result<Lit> {
    let all = list.iter().map(|l| match l {
        Lit::Int(Dim::Const(n)) => Ok(*n),
        Lit::Bool(_) => Err(mask(lit)),
        _ => Err(cx.bad(1, lit, "a list of known integers")),
    });
    let all = all.collect::<Result<Vec<i64>>>()?;
    Ok(Tensor::from_parts(&[all.len()], all).into())
}

/// Whether the index tensors (and integers among them) are adjacent.
fn side_by_side(items: &[Item]) -> bool {
    let advanced = |i: &Item| i.is_tensor() || matches!(i, Item::At(_));
    let first = items.iter().position(advanced).unwrap_or(0);
    let last = items.iter().rposition(advanced).unwrap_or(0);
    items[first..=last].iter().all(advanced)
}

fn getitem<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let x = c.x[0];
    let tensors = c.x.get(2..).unwrap_or_default();
    let items = match items(c, x.rank(), tensors.len()) {
        Ok(items) => items,
        Err(error) => {
            c.cx.fail(error);
            return vec![x];
        }
    };
    let basic = basic(x, &items);
    if !items.iter().any(Item::is_tensor) {
        return vec![basic];
    }
    // Axes of `basic` that are indexed by tensors, and the number of axes before the first of them.
    let (mut axis, mut looked_up, mut front, mut next) = (0, Vec::new(), None, tensors.iter());
    for item in &items {
        match item {
            Item::Tensor | Item::Literal(_) => {
                let index = match item {
                    Item::Literal(lit) => Some(c.cx.lit(lit.clone())),
                    _ => next.next().copied(),
                };
                looked_up.extend(index.map(|index| (axis, index)));
                front = front.or(Some(axis));
                axis += 1;
            }
            Item::At(_) => front = front.or(Some(axis)),
            Item::New => axis += 1,
            other => axis += other.axes(),
        }
    }
    let front = if side_by_side(&items) { front.unwrap_or(0) } else { 0 };
    vec![advanced(basic, &looked_up, front)]
}

/// Applies integers, slices and new axes; axes of index tensors are left as they are.
fn basic<'a>(x: V<'a>, items: &[Item]) -> V<'a> {
    let from = x.shape();
    let (mut starts, mut stops, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let mut whole = true;
    for item in items {
        let axis = starts.len();
        match item {
            Item::At(at) => {
                whole = false;
                check_index(x, at, &from[axis]);
                starts.push(Lit::Int(at.clone()));
                stops.push(if at.is(-1) { Lit::None } else { Lit::Int(at + &Dim::ONE) });
                steps.push(1);
            }
            Item::Range(range) => {
                whole &= range.is_whole(&from[axis]);
                starts.push(range.start.clone().into());
                stops.push(range.stop.clone().into());
                steps.push(range.step);
            }
            other => {
                for _ in 0..other.axes() {
                    starts.push(Lit::None);
                    stops.push(Lit::None);
                    steps.push(1);
                }
            }
        }
    }
    let part = if whole { x } else { x.strided_slice(starts, stops, steps) };
    if !items.iter().any(|i| matches!(i, Item::At(_) | Item::New)) {
        return part;
    }
    let mut sizes = part.shape().0.into_iter();
    let mut out = Vec::new();
    for item in items {
        match item {
            Item::New => out.push(Dim::ONE),
            Item::At(_) => _ = sizes.next(),
            other => out.extend(sizes.by_ref().take(other.axes())),
        }
    }
    part.reshape(out)
}

/// Checks an integer index, which must lie inside the axis (the bounds of slices are clamped).
fn check_index(x: V<'_>, at: &Dim, size: &Dim) {
    if let (Some(at), Some(n)) = (at.known(), size.known())
        && let Err(error) = position(at, n.max(0) as usize)
    {
        x.cx().fail(error.note(format!("the shape is {}", x.shape())));
    }
}

/// Gathers elements at indices of several axes; the axes of the index tensors follow the first `front` axes of the result.
fn advanced<'a>(x: V<'a>, looked_up: &[(usize, V<'a>)], front: usize) -> V<'a> {
    let cx = x.cx();
    let rest: Vec<usize> = (0..x.rank()).filter(|a| looked_up.iter().all(|(l, _)| l != a)).collect();
    let front = front.min(rest.len());
    let order: Vec<usize> = rest[..front]
        .iter()
        .copied()
        .chain(looked_up.iter().map(|l| l.0))
        .chain(rest[front..].iter().copied())
        .collect();
    let moved = if order.iter().enumerate().all(|(i, &a)| i == a) { x } else { x.transpose(order) };
    if let [(_, index)] = looked_up {
        return moved.take(*index, front);
    }
    let shapes: Vec<Shape> = looked_up.iter().map(|(_, i)| i.shape()).collect();
    if let Err(error) = shape::broadcast(&shapes.iter().collect::<Vec<_>>()) {
        cx.fail(error.note("in the index tensors of a key"));
        return x;
    }
    let sizes: Vec<Dim> = looked_up.iter().map(|&(axis, _)| x.dim(axis as i64)).collect();
    let many = sizes.iter().fold(Dim::ONE, |n, d| &n * d);
    let shape = moved.shape();
    let joined: Vec<Dim> =
        shape[..front].iter().chain([&many]).chain(&shape[front + looked_up.len()..]).cloned().collect();
    let indices: Vec<V<'a>> = looked_up.iter().map(|&(_, i)| i).collect();
    let at = joint_index(&indices, &sizes, &many);
    moved.reshape(joined).take(at, front)
}

/// The index into the merged axis. An index outside of its own axis becomes one outside of the merged axis, so that the
/// lookup reports it.
fn joint_index<'a>(indices: &[V<'a>], sizes: &[Dim], many: &Dim) -> V<'a> {
    let cx = indices[0].cx();
    let zero = cx.lit(0);
    let mut sum: Option<(V<'a>, V<'a>)> = None;
    for (index, size) in indices.iter().zip(sizes) {
        let (index, size) = (as_positions(*index), cx.lit(size.clone()));
        let at = index.less(zero).select(index.op(&ADD, &[size]), index);
        let valid = cx.lit(-1).less(at).logical_and(at.less(size));
        sum = Some(match sum {
            None => (at, valid),
            Some((sum, all)) => (sum * size + at, all.logical_and(valid)),
        });
    }
    let Some((sum, valid)) = sum else { return zero };
    valid.select(sum, many.clone())
}

/// `x[1, ..., i]`. Only NumPy and JAX have our semantics for integers among index tensors and for negative steps.
fn index_text(s: &LoweringCx<'_>, like_numpy: bool) -> Option<String> {
    let rank = s.ty(0)?.shape.rank();
    let items = items(s, rank, s.args.len().saturating_sub(2)).ok()?;
    let tensors = items.iter().any(Item::is_tensor);
    if !like_numpy && tensors {
        return None;
    }
    let (mut next, mut axis, mut parts) = (2, 0, Vec::new());
    for (i, item) in items.iter().enumerate() {
        match item {
            Item::At(d) => parts.push(s.dim(d)),
            Item::Range(r) if r.step < 0 && !like_numpy => return None,
            Item::Range(r) => parts.push(r.text(&s.ty(0)?.shape[axis], s)),
            Item::Ellipsis(_) if i + 1 == items.len() && !parts.is_empty() => {}
            Item::Ellipsis(_) => parts.push("...".into()),
            Item::New => parts.push("None".into()),
            Item::Tensor => {
                parts.push(s.arg(next).to_owned());
                next += 1;
            }
            Item::Literal(Lit::Tensor(t)) if t.rank() == 1 => {
                let all: Vec<String> = t.to_i64s().iter().map(ToString::to_string).collect();
                parts.push(format!("[{}]", all.join(", ")));
            }
            Item::Literal(_) => return None,
        }
        axis += item.axes();
    }
    Some(format!("{}[{}]", s.arg(0), parts.join(", ")))
}
