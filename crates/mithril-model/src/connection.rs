//! Connections as expressions: what flows between models, before or without a model that holds it.
//!
//! `y = relu.call([linear.call([x])])` makes connections; [`Model::from_outputs`] makes a model of them, and any
//! of them may stand at a port of [`Model::extend`]. A connection is a cheap handle. One that is made of shapes
//! (`x.shape().item(0)`) is a literal: it may stand wherever a number may.

use std::fmt;
use std::sync::Arc;

use mithril_ir::error::Line;
use mithril_ir::op::{OpDef, PortKind};
use mithril_ir::ops::signatures;
use mithril_ir::{Code, DType, Error, Lit, Result, Role, ops};

use crate::called;
use crate::key::IOKey;
use crate::leaf::is_random_key;
use crate::literal_fn::LiteralFn;
use crate::model::{Model, new_id, unknown};

/// A connection.
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<Source>);

/// Where a connection comes from.
pub(crate) enum Source {
    /// A free-standing input.
    Key(u64, IOKey),
    /// A constant.
    Value(Lit),
    /// An output of a model that is called.
    Out(Arc<Call>, usize),
    /// A port of a model that was added to the model where this is used.
    Port(Model, Arc<str>),
    /// A connection of the model with that identity.
    Edge(u64, Arc<str>),
}

/// A use of a model in an expression.
pub(crate) struct Call {
    pub id: u64,
    pub model: Model,
    /// What stands at which port.
    pub args: Vec<(usize, Arg)>,
    pub line: Option<Line>,
}

impl Drop for Call {
    /// Without recursion: expressions may be chains of any length.
    fn drop(&mut self) {
        let mut stack = std::mem::take(&mut self.args);
        while let Some((_, arg)) = stack.pop() {
            match arg {
                Arg::Connection(c) => {
                    if let Some(Source::Out(call, _)) = Arc::into_inner(c.0)
                        && let Some(mut call) = Arc::into_inner(call)
                    {
                        stack.append(&mut call.args);
                    }
                }
                Arg::List(items) => stack.extend(items.into_iter().map(|a| (0, a))),
                Arg::Slice(parts) => stack.extend(parts.into_iter().map(|a| (0, a))),
                _ => {}
            }
        }
    }
}

/// What may stand at a port.
#[derive(Clone, Debug)]
pub enum Arg {
    /// The connection of that name, or a new one.
    Name(Arc<str>),
    /// A connection with all that is said about it.
    Key(IOKey),
    /// A connection.
    Connection(Connection),
    /// A constant.
    Lit(Lit),
    /// Several: a tuple with connections in it, or the tensors of a variadic port.
    List(Vec<Arg>),
    /// `start:stop:step` with connections in it.
    Slice(Box<[Arg; 3]>),
}

impl Arg {
    /// The literal that it is, if no connection occurs.
    pub fn to_lit(&self) -> Option<Lit> {
        match self {
            Self::Lit(lit) => Some(lit.clone()),
            Self::List(items) => {
                Some(Lit::Tuple(items.iter().map(Self::to_lit).collect::<Option<Vec<Lit>>>()?.into()))
            }
            Self::Slice(parts) => {
                let [a, b, c] = &**parts;
                Some(Lit::Slice([a.to_lit()?, b.to_lit()?, c.to_lit()?].into()))
            }
            Self::Connection(c) => c.constant_value().cloned(),
            Self::Name(_) | Self::Key(_) => None,
        }
    }
}

impl Arg {
    /// The argument with lists and slices in it as one literal or one connection.
    pub(crate) fn nested(self) -> Result<Self> {
        if let Some(lit) = self.to_lit() {
            return Ok(Self::Lit(lit));
        }
        let all = |items: Vec<Self>| items.into_iter().map(Self::nested).collect::<Result<Vec<_>>>();
        match self {
            Self::List(items) => Connection::literal(LiteralFn::Tuple, all(items)?).map(Self::Connection),
            Self::Slice(parts) => {
                Connection::literal(LiteralFn::Slice, all(Vec::from(*parts))?).map(Self::Connection)
            }
            other => Ok(other),
        }
    }
}

impl From<&str> for Arg {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}
impl From<String> for Arg {
    fn from(name: String) -> Self {
        Self::Name(name.into())
    }
}
impl From<IOKey> for Arg {
    fn from(key: IOKey) -> Self {
        Self::Key(key)
    }
}
impl From<Connection> for Arg {
    fn from(c: Connection) -> Self {
        Self::Connection(c)
    }
}
impl From<&Connection> for Arg {
    fn from(c: &Connection) -> Self {
        Self::Connection(c.clone())
    }
}
impl From<Vec<Arg>> for Arg {
    fn from(items: Vec<Arg>) -> Self {
        Self::List(items)
    }
}
macro_rules! literal_args {
    ($($t:ty),*) => { $(impl From<$t> for Arg {
        fn from(lit: $t) -> Self { Self::Lit(lit.into()) }
    })* };
}
literal_args!(Lit, bool, i32, i64, usize, f64, DType, mithril_ir::Tensor);

/// What stands at which port: `[("input", "x"), ("output", "y")]`.
#[derive(Clone, Debug, Default)]
pub struct Spec(pub(crate) Vec<(Arc<str>, Arg)>);

impl Spec {
    /// Nothing is said.
    pub fn new() -> Self {
        Self::default()
    }
    /// Says what stands at a port.
    #[must_use]
    pub fn with(mut self, port: impl AsRef<str>, arg: impl Into<Arg>) -> Self {
        self.0.push((port.as_ref().into(), arg.into()));
        self
    }
    /// Ports that something is said about.
    pub fn ports(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(p, _)| &**p)
    }
}

impl<K: AsRef<str>, A: Into<Arg>, const N: usize> From<[(K, A); N]> for Spec {
    fn from(pairs: [(K, A); N]) -> Self {
        pairs.into_iter().fold(Self::new(), |s, (k, a)| s.with(k, a))
    }
}
impl<K: AsRef<str>, A: Into<Arg>> From<Vec<(K, A)>> for Spec {
    fn from(pairs: Vec<(K, A)>) -> Self {
        pairs.into_iter().fold(Self::new(), |s, (k, a)| s.with(k, a))
    }
}
impl From<()> for Spec {
    fn from((): ()) -> Self {
        Self::new()
    }
}

impl Connection {
    fn new(source: Source) -> Self {
        Self(Arc::new(source))
    }
    /// A free-standing input; two uses of this handle are one input.
    pub fn input(key: impl Into<IOKey>) -> Self {
        Self::new(Source::Key(new_id(), key.into()))
    }
    /// A constant.
    pub fn constant(value: impl Into<Lit>) -> Self {
        Self::new(Source::Value(value.into()))
    }
    /// A tuple that may hold connections, for arguments such as shapes.
    pub fn tuple(items: impl IntoIterator<Item = Arg>) -> Result<Self> {
        let items = items.into_iter().map(Arg::nested).collect::<Result<Vec<_>>>()?;
        Self::literal(LiteralFn::Tuple, items)
    }
    /// Calls the op of that name: arguments in the order of its ports, then by name.
    pub fn op(name: &str, args: Vec<Arg>, named: Vec<(&str, Arg)>) -> Result<Self> {
        let mut outputs = Self::op_outputs(name, args, named)?;
        Ok(outputs.swap_remove(0))
    }
    /// As [`Connection::op`], with all outputs.
    pub fn op_outputs(name: &str, args: Vec<Arg>, named: Vec<(&str, Arg)>) -> Result<Vec<Self>> {
        Self::op_outputs_at(name, args, named, None)
    }
    /// As [`Connection::op_outputs`], with the line that says so.
    pub fn op_outputs_at(
        name: &str,
        args: Vec<Arg>,
        named: Vec<(&str, Arg)>,
        line: Option<Line>,
    ) -> Result<Vec<Self>> {
        if signatures::signature(name).is_some_and(|s| s.is_only) {
            return Self::as_called(name, args, named);
        }
        let op = ops::find(name).ok_or_else(|| unknown("op", name, "Mithril", op_names().into_iter()))?;
        let (plain, tensors) = split_args(op, args, &named);
        let fixed = op.ports.len() - usize::from(op.is_variadic());
        if !op.is_variadic() && !tensors.is_empty() {
            let message = format!("{name} takes {fixed} inputs, but {} are given", fixed + tensors.len());
            return Err(Error::new(Code::BadArgument, message));
        }
        let mut model = Model::leaf(op, tensors.len());
        // Literal arguments are settings, as far as the number of outputs depends on them.
        let sections = op.port("sections").and_then(|i| {
            let named = named.iter().find(|(n, _)| *n == "sections").map(|(_, a)| a);
            plain.iter().find(|(p, _)| *p == i).map(|(_, a)| a).or(named)
        });
        if let Some(lit) = sections.and_then(Arg::to_lit) {
            model = model.setting("sections", lit)?;
            model.count_outputs();
        }
        // A random key of none is left open: the model feeds its own.
        let is_open = |i: usize, arg: &Arg| is_random_key(op, i) && matches!(arg, Arg::Lit(Lit::None));
        let mut bound: Vec<_> = plain.into_iter().filter(|(i, arg)| !is_open(*i, arg)).collect();
        bound.extend(tensors.into_iter().enumerate().map(|(i, a)| (fixed + i, a)));
        model.apply(bound, named, line)
    }
    /// As [`Connection::op_outputs`], for a call as a user of any library writes it: arguments in the order and with the
    /// words that the library takes under that name ([`signatures`]). What two libraries read differently is refused.
    pub fn as_called(name: &str, args: Vec<Arg>, named: Vec<(&str, Arg)>) -> Result<Vec<Self>> {
        let op = ops::find(name).ok_or_else(|| unknown("op", name, "Mithril", op_names().into_iter()))?;
        let (args, named) = called::in_our_order(op, name, args, named)?;
        Self::op_outputs(op.name, args, named)
    }
    pub(crate) fn literal(f: LiteralFn, args: Vec<Arg>) -> Result<Self> {
        let model = Model::literal(f, args.len());
        let mut outputs = model.apply(args.into_iter().enumerate().collect(), Vec::new(), None)?;
        Ok(outputs.swap_remove(0))
    }
    /// Whether it is known when compiling: made of shapes and constants.
    pub fn is_literal(&self) -> bool {
        match &*self.0 {
            Source::Value(_) => true,
            Source::Out(call, _) => call.model.literal_fn().is_some(),
            _ => false,
        }
    }
    /// The shape, a tuple of sizes.
    pub fn shape(&self) -> Result<Self> {
        Self::literal(LiteralFn::Shape, vec![self.into()])
    }
    /// `self[index]`: an item of a tuple of sizes, or a part of a tensor. In the index (one item or a list of
    /// them) may stand integers, slices, `...`, `none` and connections: sizes, or tensors of integers.
    pub fn item(&self, index: impl Into<Arg>) -> Result<Self> {
        let index = index.into();
        if self.is_literal() {
            return Self::literal(LiteralFn::Item, vec![self.into(), index.nested()?]);
        }
        let mut tensors = Vec::new();
        let mut key = |item: Arg| match item {
            Arg::Connection(c) if !c.is_literal() => {
                tensors.push(Arg::Connection(c));
                Arg::Lit(Lit::text("tensor"))
            }
            other => other,
        };
        let key = match index {
            Arg::List(items) => Arg::List(items.into_iter().map(key).collect()),
            one => key(one),
        };
        let mut args = vec![self.into(), key.nested()?];
        args.extend(tensors);
        Self::op("getitem", args, Vec::new())
    }
    /// Arithmetic: exact on sizes, an op on tensors. `name` is the one of the op.
    pub fn arithmetic(name: &str, left: Arg, right: Arg) -> Result<Self> {
        let literal = |arg: &Arg| match arg {
            Arg::Connection(c) => c.is_literal(),
            Arg::Lit(lit) => !matches!(lit, Lit::Tensor(_)),
            _ => false,
        };
        let f = match name {
            "add" => Some(LiteralFn::Add),
            "subtract" => Some(LiteralFn::Subtract),
            "multiply" => Some(LiteralFn::Multiply),
            "floor_divide" => Some(LiteralFn::FloorDivide),
            "remainder" => Some(LiteralFn::Remainder),
            "divide" => Some(LiteralFn::Divide),
            "power" | "pow" => Some(LiteralFn::Power),
            _ => None,
        };
        match f.filter(|_| literal(&left) && literal(&right)) {
            Some(f) => Self::literal(f, vec![left, right]),
            None => Self::op(name, vec![left, right], Vec::new()),
        }
    }
    /// `-self`
    pub fn negative(&self) -> Result<Self> {
        if self.is_literal() {
            return Self::literal(LiteralFn::Negative, vec![self.into()]);
        }
        Self::op("negative", vec![self.into()], Vec::new())
    }
    /// Product of the items of a tuple of sizes.
    pub fn product(&self) -> Result<Self> {
        Self::literal(LiteralFn::Product, vec![self.into()])
    }
    /// Number of items of a tuple of sizes: the rank, of a shape.
    pub fn length(&self) -> Result<Self> {
        Self::literal(LiteralFn::Length, vec![self.into()])
    }
    /// The same connection under that name, where it becomes part of a model.
    pub fn key(&self) -> Option<&IOKey> {
        match &*self.0 {
            Source::Key(_, key) => Some(key),
            _ => None,
        }
    }
}

/// Arguments by port, and those of the variadic port. A literal port before it may be left out: `concat(x, y)`.
fn split_args(op: &OpDef, args: Vec<Arg>, named: &[(&str, Arg)]) -> (Vec<(usize, Arg)>, Vec<Arg>) {
    let fixed = op.ports.len() - usize::from(op.is_variadic());
    let (mut plain, mut tensors) = (Vec::new(), Vec::new());
    let mut args = args.into_iter().peekable();
    for (i, port) in op.ports.iter().enumerate().take(fixed) {
        let Some(next) = args.peek() else { break };
        let is_value = match next {
            Arg::Connection(c) => c.is_literal(),
            Arg::Lit(_) | Arg::Name(_) | Arg::List(_) | Arg::Slice(_) => true,
            Arg::Key(_) => false,
        };
        let left_out = op.is_variadic()
            && matches!(port.kind, PortKind::Attr(_))
            && (!is_value || matches!(next, Arg::List(_)) || named.iter().any(|(n, _)| *n == port.name));
        if !left_out && let Some(arg) = args.next() {
            plain.push((i, arg));
        }
    }
    for arg in args {
        match arg {
            Arg::List(items) if op.is_variadic() => tensors.extend(items),
            other => tensors.push(other),
        }
    }
    (plain, tensors)
}

impl From<IOKey> for Connection {
    fn from(key: IOKey) -> Self {
        Self::input(key)
    }
}

impl Model {
    /// Calls the model: arguments in the order of its inputs (parameters and states left out; of a composite model those
    /// that have a value come last); its first output.
    pub fn call(&self, args: impl IntoIterator<Item = impl Into<Arg>>) -> Result<Connection> {
        let mut outputs = self.call_with(args.into_iter().map(Into::into).collect(), Vec::new(), None)?;
        if outputs.is_empty() {
            return Err(Error::new(Code::EmptyModel, format!("{} has no output", self.title())));
        }
        Ok(outputs.swap_remove(0))
    }
    /// Calls the model with arguments in order and by name; all its outputs.
    pub fn call_with(
        &self,
        args: Vec<Arg>,
        named: Vec<(&str, Arg)>,
        line: Option<Line>,
    ) -> Result<Vec<Connection>> {
        let mut ports: Vec<usize> = (0..self.port_count())
            .filter(|&i| !matches!(self.port_role(i), Role::Param | Role::State))
            .collect();
        if self.composite().is_some() {
            // A port that has a value need not be given: as in a signature, it comes after those that must be.
            ports.sort_by_key(|&i| self.port_default(i).is_some());
        }
        if args.len() > ports.len() {
            let message =
                format!("{} takes {} inputs, but {} are given", self.title(), ports.len(), args.len());
            return Err(Error::new(Code::BadArgument, message).help(format!(
                "its inputs are {}",
                ports.iter().map(|&i| self.port_name(i)).collect::<Vec<_>>().join(", ")
            )));
        }
        self.apply(ports.into_iter().zip(args).collect(), named, line)
    }
    fn apply(
        &self,
        mut args: Vec<(usize, Arg)>,
        named: Vec<(&str, Arg)>,
        line: Option<Line>,
    ) -> Result<Vec<Connection>> {
        for (name, arg) in named {
            let port = self.find_port(name).ok_or_else(|| self.not_an_input(name))?;
            if args.iter().any(|(p, _)| *p == port) {
                let message = format!("`{name}` of {} is given twice", self.title());
                return Err(Error::new(Code::BadArgument, message).help("give it by position or by name"));
            }
            args.push((port, arg));
        }
        for (port, arg) in &mut args {
            if let Arg::Name(text) = arg
                && matches!(self.port_kind(*port), PortKind::Attr(_))
            {
                *arg = Arg::Lit(Lit::Str(text.clone()));
            }
        }
        let n = self.output_count();
        let call = Arc::new(Call { id: new_id(), model: self.clone(), args, line });
        Ok((0..n).map(|i| Connection::new(Source::Out(call.clone(), i))).collect())
    }
    /// The error for an argument of a call that is none of the inputs.
    fn not_an_input(&self, name: &str) -> Error {
        if self.find_output(name).is_none() {
            return self.no_port(name);
        }
        let message =
            format!("`{name}` is an output of {}: a call with connections returns it", self.title());
        Error::new(Code::BadArgument, message).help(format!(
            "leave `{name}` out and take what the call returns; or name it where the layer is added to a model: \
             model.add(layer(input=..., {name}=\"name\"))"
        ))
    }
    /// The connection of this model with that name or path (`hidden`, `linear.output`).
    pub fn connection(&self, name: &str) -> Result<Connection> {
        match self.composite() {
            Some(c) => {
                let edge = c.find(name).or_else(|| self.find_output(name).map(|i| c.outputs()[i].1));
                let e = edge.ok_or_else(|| c.no_edge(name))?;
                Ok(Connection::new(Source::Edge(self.0.id, c.edge_name(e))))
            }
            None => self.port(name),
        }
    }
    /// A port of this model, for use in the model it was added to.
    pub fn port(&self, name: &str) -> Result<Connection> {
        if self.find_port(name).is_none() && self.find_output(name).is_none() {
            return Err(self.no_port(name));
        }
        Ok(Connection::new(Source::Port(self.clone(), name.into())))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Source::Key(_, key) => write!(f, "Connection(input {})", key.name().unwrap_or("without a name")),
            Source::Value(lit) => write!(f, "Connection({lit})"),
            Source::Out(call, i) => {
                write!(f, "Connection({} of {})", call.model.output_name(*i), call.model.class())
            }
            Source::Port(model, port) => write!(f, "Connection({port} of {})", model.title()),
            Source::Edge(_, name) => write!(f, "Connection({name})"),
        }
    }
}

macro_rules! operators {
    ($($trait:ident, $method:ident, $op:literal;)*) => { $(
        impl<A: Into<Arg>> std::ops::$trait<A> for &Connection {
            type Output = Result<Connection>;
            fn $method(self, other: A) -> Result<Connection> {
                Connection::arithmetic($op, self.into(), other.into())
            }
        }
    )* };
}
operators! {
    Add, add, "add";
    Sub, sub, "subtract";
    Mul, mul, "multiply";
    Div, div, "divide";
    Rem, rem, "remainder";
}

fn op_names() -> Vec<&'static str> {
    ops::all().map(|op| op.name).collect()
}
