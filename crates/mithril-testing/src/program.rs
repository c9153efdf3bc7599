//! Random programs: any list of steps is a well-typed graph, so that properties of passes are tested on graphs
//! that nobody thought of, and a failure shrinks to the few steps that matter.

use std::sync::Arc;

use mithril::ir::build::Builder;
use mithril::ir::dtype::{DType, Kind};
use mithril::ir::error::Place;
use mithril::ir::graph::{Graph, NodeId, Role, TensorType, ValueId, Values};
use mithril::ir::literal::Lit;
use mithril::ir::op::OpDef;
use mithril::ir::tensor::{Scalar, Tensor};
use mithril::ir::{Dim, Shape, ops, shape};
use positions::{one_hot, put, rows, sort, take, take_along};

use crate::case::Random;

mod moves;
mod positions;
mod products;

/// A step: what to do, and three choices. Zeros choose the first of everything, the latest of the values.
pub type Step = [u8; 4];

/// What programs are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Everything: all kinds of dtypes, NaN and infinity, jumps, empty tensors.
    Any,
    /// Smooth functions of moderate slope, which differences can follow.
    Smooth,
    /// Products of matrices whose factors are made of other products, large enough for kernels.
    Products,
    /// Elements that are moved and added up, over axes of 2 to 30.
    Moves,
}

/// A graph and the tensors to run it on.
#[derive(Clone, Debug)]
pub struct Program {
    /// The graph.
    pub graph: Graph,
    /// Its inputs.
    pub inputs: Vec<Arc<Tensor>>,
}

/// Values larger than this feed no further step.
const MAX_ELEMENTS: i64 = 200;

/// Builds a program. A step that fits no value is left out.
pub fn build(steps: &[Step], style: Style, float: DType) -> Program {
    let mut maker = Maker::new(style, float);
    for &[kind, a, b, c] in steps {
        let kinds = match style {
            Style::Any => ANY,
            Style::Smooth => SMOOTH,
            Style::Products => products::STEPS,
            Style::Moves => moves::STEPS,
        };
        let outputs = kinds[kind as usize % kinds.len()](&mut maker, [a, b, c]);
        for v in outputs.unwrap_or_default() {
            maker.keep(v);
        }
    }
    maker.finish(steps)
}

/// The op of that name.
///
/// # Panics
/// When there is none.
pub fn op(name: &str) -> &'static OpDef {
    ops::find(name).unwrap_or_else(|| panic!("there is no op {name}"))
}

type Make = fn(&mut Maker, [u8; 3]) -> Option<Values>;

static ANY: &[Make] = &[
    unary, binary, number, binary, number, compare, number, select, cast, reduce, reshape, transpose,
    broadcast, slice, concat, pad, flip, matmul, along, layer_norm, take, take_along, put, rows, one_hot,
    sort, constant, again, output, name,
];
static SMOOTH: &[Make] = &[
    unary, binary, number, binary, select, reduce, reshape, transpose, broadcast, slice, concat, pad, flip,
    matmul, along, layer_norm, take, take_along, put, rows, sort, again, output,
];

const UNARY: &[&str] = &[
    "negative",
    "tanh",
    "abs",
    "square",
    "exp",
    "sqrt",
    "log",
    "sin",
    "floor",
    "ceil",
    "sign",
    "reciprocal",
    "sigmoid",
    "relu",
    "gelu",
    "softplus",
    "logical_not",
    "isnan",
    "erf",
    "rsqrt",
    "silu",
    "zeros_like",
    "trunc",
];
const UNARY_SMOOTH: &[&str] =
    &["negative", "tanh", "sin", "cos", "sigmoid", "softplus", "erf", "gelu", "atan", "log_sigmoid"];
const BINARY: &[&str] = &[
    "add",
    "multiply",
    "subtract",
    "divide",
    "maximum",
    "minimum",
    "floor_divide",
    "remainder",
    "power",
    "bitwise_and",
    "bitwise_xor",
    "logical_or",
];
const NUMBER: &[&str] =
    &["multiply", "add", "subtract", "divide", "power", "maximum", "floor_divide", "remainder"];
const COMPARE: &[&str] = &["less", "equal", "not_equal", "greater", "less_equal", "greater_equal"];
const REDUCE: &[&str] =
    &["sum", "mean", "max", "min", "prod", "argmax", "any", "all", "var", "count_nonzero"];
const REDUCE_SMOOTH: &[&str] = &["mean", "var", "logsumexp"];
const ALONG: &[&str] = &["softmax", "log_softmax", "cumsum"];
const DTYPES: &[DType] = &[
    DType::F32,
    DType::I64,
    DType::Bool,
    DType::F16,
    DType::I32,
    DType::F64,
    DType::U8,
    DType::U32,
    DType::U16,
    DType::BF16,
    DType::I8,
];
const NAMES: &[&str] = &["hidden", "a.b", "", "\"quoted\"\n", "π", "return", "class"];

fn pick<T: Copy>(all: &[T], choice: u8) -> T {
    all[choice as usize % all.len()]
}

struct Maker {
    b: Builder,
    style: Style,
    pool: Vec<ValueId>,
    state: ValueId,
}

impl Maker {
    fn new(style: Style, float: DType) -> Self {
        let mut b = Builder::new(float);
        let n = Dim::symbol("n");
        let mut input = |name: &str, role, dtype, shape: &[Dim]| {
            b.graph.add_input(name, role, TensorType { dtype, shape: Shape::of(shape.iter().cloned()) })
        };
        let given = match style {
            Style::Products => products::GIVEN,
            Style::Moves => moves::GIVEN,
            Style::Any | Style::Smooth => &[],
        };
        if !given.is_empty() {
            let dims = |shape: &[i64]| shape.iter().map(|&n| Dim::Const(n)).collect::<Vec<_>>();
            let pool: Vec<ValueId> =
                given.iter().map(|(name, role, shape)| input(name, *role, float, &dims(shape))).collect();
            let state = pool[0];
            return Self { b, style, pool, state };
        }
        let (one, three) = (Dim::ONE, Dim::Const(3));
        let mut pool = Vec::new();
        if style == Style::Any {
            pool.push(input("empty", Role::Data, float, &[Dim::Const(0), three.clone()]));
            pool.push(input("bytes", Role::Data, DType::U8, std::slice::from_ref(&three)));
            pool.push(input("half", Role::Param, DType::F16, &[Dim::Const(2), one.clone()]));
            pool.push(input("integers", Role::Data, DType::I32, &[n.clone(), three.clone()]));
        }
        let state = input("state", Role::State, float, std::slice::from_ref(&three));
        pool.push(state);
        pool.push(input("condition", Role::Data, DType::Bool, std::slice::from_ref(&three)));
        pool.push(input("scalar", Role::Data, float, &[]));
        pool.push(input("weight", Role::Param, float, &[three.clone(), Dim::Const(2)]));
        pool.push(input("column", Role::Param, float, &[Dim::Const(3), one]));
        pool.push(input("x", Role::Data, float, &[n, three]));
        Self { b, style, pool, state }
    }

    fn smooth(&self) -> bool {
        self.style != Style::Any
    }
    fn ty(&self, v: ValueId) -> &TensorType {
        self.b.graph.ty(v).expect("values of the pool are tensors")
    }
    /// A value; smooth programs compute with floats only.
    fn value(&self, choice: u8) -> ValueId {
        let fits = |v: &ValueId| !self.smooth() || self.ty(*v).dtype.is_float();
        let from_last: Vec<ValueId> = self.pool.iter().rev().copied().filter(fits).collect();
        pick(&from_last, choice)
    }
    /// The first value from a choice on that fits.
    fn find(&self, choice: u8, fits: impl Fn(&TensorType) -> bool) -> Option<ValueId> {
        let from_last: Vec<ValueId> = self.pool.iter().rev().copied().collect();
        let at = choice as usize % from_last.len();
        let is_kind = |t: &TensorType| !self.smooth() || t.dtype.is_float();
        let mut all = from_last[at..].iter().chain(&from_last[..at]).copied();
        all.find(|&v| is_kind(self.ty(v)) && fits(self.ty(v)))
    }
    fn partner(&self, x: ValueId, choice: u8) -> Option<ValueId> {
        self.find(choice, |t| shape::broadcast(&[&t.shape, &self.ty(x).shape]).is_ok())
    }
    fn condition(&self, choice: u8, x: ValueId) -> Option<ValueId> {
        let fits = |&&v: &&ValueId| {
            let t = self.ty(v);
            t.dtype == DType::Bool && shape::broadcast(&[&t.shape, &self.ty(x).shape]).is_ok()
        };
        let all: Vec<ValueId> = self.pool.iter().rev().filter(fits).copied().collect();
        (!all.is_empty()).then(|| pick(&all, choice))
    }
    /// Sizes, all of which are known.
    fn sizes(&self, x: ValueId) -> Vec<i64> {
        self.dims(x).iter().filter_map(Dim::known).collect()
    }
    fn rank(&self, v: ValueId) -> usize {
        self.ty(v).shape.rank()
    }
    fn dims(&self, v: ValueId) -> Vec<Dim> {
        self.ty(v).shape.iter().cloned().collect()
    }
    fn push(&mut self, name: &str, args: &[ValueId]) -> Option<Values> {
        self.b.push(op(name), args).ok()
    }
    /// Applies an op to a value and literals.
    fn apply(&mut self, name: &str, x: ValueId, lits: impl IntoIterator<Item = Lit>) -> Option<Values> {
        let mut args = vec![x];
        args.extend(lits.into_iter().map(|lit| self.b.lit(lit)));
        self.push(name, &args)
    }
    fn keep(&mut self, v: ValueId) {
        let size = self.ty(v).shape.numel().substitute(&|_| Some(Dim::Const(3)));
        // The mean of nothing has no slope.
        let least = i64::from(self.smooth());
        let most = match self.style {
            Style::Products => products::MAX_ELEMENTS,
            Style::Moves => moves::MAX_ELEMENTS,
            Style::Any | Style::Smooth => MAX_ELEMENTS,
        };
        if size.known().is_some_and(|n| (least..=most).contains(&n)) {
            self.pool.push(v);
        }
    }

    fn finish(mut self, steps: &[Step]) -> Program {
        let last = self.value(0);
        self.b.graph.outputs.insert("last".into(), last);
        let choice = steps.first().map_or(0, |step| step[3]);
        if choice % 2 == 1 {
            self.output_unread();
        }
        let state = self.ty(self.state).clone();
        let fits = |v: &&ValueId| *self.ty(**v) == state && **v != self.state;
        if let Some(&update) = self.pool.iter().rev().find(fits) {
            self.b.graph.updates.push((self.state, update));
        }
        let sizes: &[i64] = if self.smooth() { &[2] } else { &[2, 3, 1, 0] };
        let n = pick(sizes, choice / 2);
        let (graph, style) = (self.b.graph, self.style);
        let mut random = Random::new("program", n as u64);
        let zeros = if style == Style::Any { 0.3 } else { 0.0 };
        let types = graph.inputs.iter().filter_map(|&v| graph.ty(v));
        let inputs = types.map(|ty| tensor(ty, n, zeros, &mut random)).collect();
        Program { graph, inputs }
    }
    /// What no node reads becomes an output, so that little is dead.
    fn output_unread(&mut self) {
        let read: Vec<ValueId> = self.b.graph.nodes().flat_map(|(_, node)| node.inputs.clone()).collect();
        for &v in self.pool.iter().filter(|v| !read.contains(v)) {
            let name = format!("unread{}", v.index());
            self.b.graph.outputs.insert(name.into(), v);
        }
    }
}

/// Floats among which that share are zeros of both signs.
fn tensor(ty: &TensorType, n: i64, zeros: f64, random: &mut Random) -> Arc<Tensor> {
    let size = |d: &Dim| d.known().unwrap_or(n) as usize;
    let shape: Vec<usize> = ty.shape.iter().map(size).collect();
    Arc::new(Tensor::build(ty.dtype, &shape, |_| match ty.dtype.kind() {
        Kind::Bool => Scalar::Bool(random.unit() < 0.5),
        Kind::Int => Scalar::Int((random.unit() * 5.0) as i128),
        Kind::Float if random.unit() < zeros => Scalar::Float(if random.unit() < 0.5 { 0.0 } else { -0.0 }),
        Kind::Float => Scalar::Float(random.unit() * 3.0 - 1.5),
    }))
}

fn unary(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    m.push(pick(if m.smooth() { UNARY_SMOOTH } else { UNARY }, a), &[x])
}

fn binary(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let y = m.partner(x, c)?;
    if !m.smooth() {
        return m.push(pick(BINARY, a), &[x, y]);
    }
    // Tamed, so that slopes do not grow with the number of steps.
    match a % 4 {
        0 => {
            let sum = m.push("add", &[x, y])?[0];
            m.apply("multiply", sum, [Lit::Float(0.5)])
        }
        1 => {
            let y = m.push("sin", &[y])?[0];
            m.push("multiply", &[x, y])
        }
        2 => {
            let difference = m.push("subtract", &[x, y])?[0];
            m.push("tanh", &[difference])
        }
        _ => {
            let square = m.push("square", &[y])?[0];
            let below = m.apply("add", square, [Lit::Float(2.0)])?[0];
            m.push("divide", &[x, below])
        }
    }
}

fn number(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    // Mostly those that an optimizer looks for.
    let numbers = [
        Lit::Float(1.0),
        Lit::int(0),
        Lit::Float(0.5),
        Lit::int(1),
        Lit::Float(-0.0),
        Lit::Float(0.0),
        Lit::Float(-0.0),
        Lit::Float(0.0),
        Lit::Bool(true),
        Lit::Float(-1.5),
        Lit::int(-3),
        Lit::Float(f64::INFINITY),
        Lit::Float(f64::NAN),
        Lit::int(300),
    ];
    let usable = if m.smooth() { 10 } else { numbers.len() };
    let x = m.value(b);
    let lit = m.b.lit(numbers[(c / 2) as usize % usable].clone());
    let name = pick(if m.smooth() { &NUMBER[..3] } else { NUMBER }, a);
    m.push(name, &if c % 2 == 0 { [x, lit] } else { [lit, x] })
}

fn compare(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let y = m.partner(x, c)?;
    m.push(pick(COMPARE, a), &[x, y])
}

fn select(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let condition = m.condition(a, x)?;
    let y = if a % 5 == 4 { m.b.lit(0.25) } else { m.partner(x, c)? };
    m.push("where", &[condition, x, y])
}

fn cast(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    m.apply("cast", x, [Lit::DType(pick(DTYPES, a))])
}

fn reduce(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let rank = m.rank(x) as i64;
    let name = pick(if m.smooth() { REDUCE_SMOOTH } else { REDUCE }, a);
    let axis = match c % 4 {
        0 => Lit::None,
        1 => Lit::int(-1),
        2 => Lit::int(0),
        _ if name == "argmax" => Lit::int(rank - 1),
        _ => Lit::tuple(0..rank),
    };
    let mut lits = vec![axis, Lit::Bool(c % 8 >= 4)];
    if name == "var" {
        lits.push(Lit::int(0));
    }
    m.apply(name, x, lits)
}

fn reshape(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let mut dims = m.dims(x);
    match a % 5 {
        0 => dims = vec![Dim::Const(-1)],
        1 => dims.reverse(),
        2 => dims.insert(0, Dim::ONE),
        3 => dims.push(Dim::ONE),
        _ => {}
    }
    m.apply("reshape", x, [dims.into()])
}

fn transpose(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let rank = m.rank(x) as i64;
    let axes = match a % 3 {
        0 => Lit::None,
        1 => Lit::tuple((0..rank).map(|i| (i + 1) % rank)),
        _ => Lit::tuple((0..rank).map(|i| i - rank)),
    };
    m.apply("transpose", x, [axes])
}

fn broadcast(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let mut dims = m.dims(x);
    match a % 3 {
        0 => dims.insert(0, Dim::Const(2)),
        1 => dims.iter_mut().filter(|d| d.is(1)).for_each(|d| *d = Dim::symbol("n")),
        _ => {}
    }
    m.apply("broadcast_to", x, [dims.into()])
}

fn slice(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let dims = m.dims(x);
    let (mut starts, mut stops, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for (i, d) in dims.iter().enumerate() {
        let choice = if i % 2 == 0 { a } else { c };
        // A bound has to lie inside of a symbolic axis.
        let known = d.known().is_some();
        starts.push(if known && choice % 3 == 1 { Lit::int(1) } else { Lit::None });
        stops.push(if known && choice % 5 == 2 { Lit::int(-1) } else { Lit::None });
        steps.push([1, -1, 2, 1][choice as usize / 4 % 4]);
    }
    m.apply("slice", x, [starts.into(), stops.into(), steps.into()])
}

fn concat(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let rank = m.rank(x);
    let like = m.find(c, |t| t.shape.rank() == rank)?;
    let axis = m.b.lit(if a % 2 == 0 { 0 } else { -1 });
    m.push(if a % 5 == 4 { "stack" } else { "concat" }, &[axis, x, like])
}

fn pad(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let pads: Vec<Lit> = (0..m.rank(x)).map(|_| Lit::tuple([i64::from(a % 3), i64::from(c % 2)])).collect();
    // Expanded, these modes take a symbolic axis to be longer than what is added; not all of ours are.
    let known = m.dims(x).iter().all(|d| d.known().is_some());
    let mode = if known { pick(&["constant", "edge", "circular"], a / 4) } else { "constant" };
    m.apply("pad", x, [pads.into(), mode.into(), Lit::Float(if a % 2 == 0 { 0.0 } else { 1.5 })])
}

fn flip(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    m.apply("flip", x, [pick(&[None, Some(0), Some(-1)], a).into()])
}

fn matmul(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    if a % 3 == 0 {
        let transposed = m.apply("transpose", x, [Lit::None])?[0];
        return m.push("matmul", &[x, transposed]);
    }
    let last = m.dims(x).last().cloned()?;
    let y = m.find(c, |t| {
        let rank = t.shape.rank();
        rank > 0 && t.shape[rank.saturating_sub(2)] == last
    })?;
    let product = m.push("matmul", &[x, y])?;
    if m.smooth() { m.push("tanh", &product) } else { Some(product) }
}

fn along(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    m.apply(pick(ALONG, a), x, [Lit::int(if c % 2 == 0 { -1 } else { 0 })])
}

fn layer_norm(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    let last = m.dims(x).last().cloned()?;
    let none = m.b.lit(Lit::None);
    let affine =
        |m: &Maker, c| m.find(c, |t| t.shape.rank() == 1 && t.shape[0] == last && t.dtype.is_float());
    let weight = affine(m, c).filter(|_| a % 2 == 1).unwrap_or(none);
    let bias = affine(m, c / 2).filter(|_| a % 3 == 1).unwrap_or(none);
    // Of few, close values the slope grows as one over the root of this.
    let (shape, eps) = (none, m.b.lit(0.5));
    m.push("layer_norm", &[x, weight, bias, shape, eps])
}

fn constant(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let float = m.b.float;
    let (one, two) = (f64::from(b % 4), f64::from(c % 3) - 1.0);
    let value = match a % 6 {
        0 => m.b.lit(Tensor::from_f64s(float, &[3], &[one, two, 0.5])),
        1 => m.b.lit(Tensor::scalar(float, one)),
        2 => m.b.lit(Tensor::from_parts(&[2, 1], vec![i64::from(b), -1])),
        3 => m.b.lit(Tensor::from_f64s(float, &[0], &[])),
        4 => {
            let first = m.b.lit(Lit::tuple([Dim::symbol("n"), Dim::Const(3)]));
            return m.apply("ones", first, [Lit::DType(pick(DTYPES, b))]);
        }
        _ => {
            let shape = m.b.lit(Lit::tuple([3_i64]));
            return m.apply("full", shape, [Lit::Float(one), Lit::DType(float)]);
        }
    };
    Some(Values::from_slice(&[value]))
}

/// A node once more.
fn again(m: &mut Maker, [a, ..]: [u8; 3]) -> Option<Values> {
    let count = m.b.graph.nodes().len();
    let back = a as usize % count.max(1);
    let node = (count > 0).then(|| m.b.graph.node(NodeId::new(count - 1 - back)).clone())?;
    let types: Vec<TensorType> = node.outputs.iter().map(|&v| m.ty(v).clone()).collect();
    Some(m.b.push_typed(node.op, node.inputs, types))
}

fn output(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let v = m.value(b);
    let name = format!("{}{}", pick(NAMES, a), m.b.graph.outputs.len());
    m.b.graph.outputs.insert(name.into(), v);
    None
}

fn name(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let v = m.value(b);
    m.b.graph.name_value(v, pick(NAMES, a));
    m.b.set_origin(Place { path: Some(pick(NAMES, c).into()), line: None });
    None
}
