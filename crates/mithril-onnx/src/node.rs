//! A use of an op in the file, as the functions in `ops` read it.

use std::cell::RefCell;
use std::sync::Arc;

use mithril_ir::graph::Values;
use mithril_ir::{Code, DType, Dim, Error, Lit, Result, Shape, Tensor, ValueId};
use rustc_hash::FxHashSet;

use crate::context::{Context, Sizes, Value, malformed};
use crate::narrow::{Narrow, Type};
use crate::proto::{AttributeProto, NodeProto};
use crate::tensor::{External, Stored};

/// A node with its inputs.
pub struct Use<'a> {
    /// The graph that is built.
    pub cx: &'a mut Context,
    /// The node; attributes that refer to those of a function are replaced.
    pub node: &'a NodeProto,
    /// Inputs; `None` where one is left out.
    pub inputs: Vec<Option<Value>>,
    /// What gives parts of other files.
    pub external: &'a External<'a>,
    /// Version of the op's domain.
    pub opset: i64,
    /// Attributes that were looked at.
    read: RefCell<FxHashSet<String>>,
    /// Inputs that were looked at.
    taken: RefCell<FxHashSet<usize>>,
}

/// What may stand at a port of an op.
pub trait Operand {
    /// As a value of the graph.
    fn id(self, cx: &mut Context) -> ValueId;
}

impl Operand for ValueId {
    fn id(self, _: &mut Context) -> ValueId {
        self
    }
}

impl Operand for Option<ValueId> {
    fn id(self, cx: &mut Context) -> ValueId {
        self.unwrap_or_else(|| cx.lit(Lit::None))
    }
}

macro_rules! operands {
    ($($type:ty),*) => { $(impl Operand for $type {
        fn id(self, cx: &mut Context) -> ValueId { cx.lit(self) }
    })* };
}
operands!(Lit, bool, i64, f64, &str, DType, Dim, Vec<i64>, Vec<Dim>, Vec<Lit>, Tensor);

/// Applies an op: `op!(u, "pad", x, pads, "constant", 0.0)`.
macro_rules! op {
    ($u:expr, $name:expr $(, $arg:expr)* $(,)?) => {{
        let args = [$($crate::node::Operand::id($arg, $u.cx)),*];
        $u.op($name, &args)
    }};
}
pub(crate) use op;

impl<'a> Use<'a> {
    /// A use of an op.
    pub fn new(
        cx: &'a mut Context,
        node: &'a NodeProto,
        inputs: Vec<Option<Value>>,
        external: &'a External<'a>,
        opset: i64,
    ) -> Self {
        Self { cx, node, inputs, external, opset, read: RefCell::default(), taken: RefCell::default() }
    }
}

impl Use<'_> {
    /// Says that an attribute makes no difference.
    pub fn ignore(&self, names: &[&str]) {
        self.read.borrow_mut().extend(names.iter().map(|&n| n.to_owned()));
    }
    /// Whether everything that the node says was looked at: what is new in an opset must not be passed over.
    pub fn check_all_read(&self) -> Result<()> {
        let read = self.read.borrow();
        if let Some(a) = self.node.attribute.iter().find(|a| !read.contains(&a.name)) {
            return Err(Self::refuse(format!("the attribute `{}` is not supported", a.name)));
        }
        let taken = self.taken.borrow();
        if let Some(i) = (0..self.inputs.len()).find(|i| self.inputs[*i].is_some() && !taken.contains(i)) {
            return Err(Self::refuse(format!("input {i} is not supported")));
        }
        Ok(())
    }
    /// Applies an op with one output.
    pub fn op(&mut self, name: &str, args: &[ValueId]) -> Result<ValueId> {
        Ok(self.cx.push(name, args)?[0])
    }
    /// Applies an op.
    pub fn outputs(&mut self, name: &str, args: &[ValueId]) -> Result<Values> {
        self.cx.push(name, args)
    }
    /// Whether an input is given.
    pub fn has(&self, i: usize) -> bool {
        self.taken.borrow_mut().insert(i);
        self.inputs.get(i).is_some_and(Option::is_some)
    }
    fn value(&self, i: usize) -> Result<&Value> {
        self.taken.borrow_mut().insert(i);
        let input = self.inputs.get(i).and_then(Option::as_ref);
        input.ok_or_else(|| malformed(format!("input {i} is missing")))
    }
    /// An input as a tensor.
    pub fn x(&mut self, i: usize) -> Result<ValueId> {
        let value = self.value(i)?.clone();
        self.cx.tensor(&value)
    }
    /// An input as a tensor, with the narrower dtype that it stands for.
    pub fn any(&mut self, i: usize) -> Result<(ValueId, Option<Narrow>)> {
        match self.value(i)?.clone() {
            Value::Narrow(v, narrow) => Ok((v, Some(narrow))),
            value => Ok((self.cx.tensor(&value)?, None)),
        }
    }
    /// An input as a tensor, if it is given.
    pub fn optional(&mut self, i: usize) -> Result<Option<ValueId>> {
        if self.has(i) { self.x(i).map(Some) } else { Ok(None) }
    }
    /// All inputs as tensors.
    pub fn all(&mut self) -> Result<Vec<ValueId>> {
        (0..self.inputs.len()).map(|i| self.x(i)).collect()
    }
    /// Integers that have to be known now; they may be symbolic.
    pub fn dims(&self, i: usize) -> Result<Vec<Dim>> {
        let sizes = self.cx.sizes(self.value(i)?);
        Ok(sizes.ok_or_else(|| self.open_input(i))?.dims)
    }
    /// Sizes that an input stands for, if they are known now.
    pub fn known_sizes(&self, i: usize) -> Option<Sizes> {
        self.cx.sizes(self.inputs.get(i)?.as_ref()?)
    }
    /// Numbers that have to be known now.
    pub fn numbers(&self, i: usize) -> Result<Vec<i64>> {
        self.dims(i)?.iter().map(|d| d.known().ok_or_else(|| self.open_input(i))).collect()
    }
    /// The value of an input that has to be known now.
    pub fn constant(&self, i: usize) -> Result<Arc<Tensor>> {
        match self.value(i)? {
            Value::Graph(v) => self.cx.constant(*v).ok_or_else(|| self.open_input(i)),
            _ => Err(self.open_input(i)),
        }
    }
    /// The number at an input that has to be known now.
    pub fn number(&self, i: usize) -> Result<f64> {
        let t = self.constant(i)?;
        if t.len() == 1 { Ok(t.get(0).f64()) } else { Err(malformed(format!("input {i} is not one number"))) }
    }
    fn open_input(&self, i: usize) -> Error {
        let name = self.node.input.get(i).map_or("", String::as_str);
        Error::new(Code::Unsupported, format!("input {i} (`{name}`) must be known when the file is read"))
            .help("give its value: ml.from_onnx(..., constants={name: array})")
    }
    /// Shape of a value.
    pub fn shape(&self, v: ValueId) -> Shape {
        self.cx.shape(v)
    }
    /// Number of axes of a value.
    pub fn rank(&self, v: ValueId) -> usize {
        self.cx.shape(v).rank()
    }
    /// Dtype of a value.
    pub fn dtype(&self, v: ValueId) -> DType {
        self.cx.dtype(v)
    }
    /// An axis counted from either end, as an index from the front.
    pub fn axis(axis: i64, rank: usize) -> Result<usize> {
        mithril_ir::shape::normalize_axis(axis, rank)
    }
    /// A value in that dtype.
    pub fn cast(&mut self, v: ValueId, dtype: DType) -> Result<ValueId> {
        if self.cx.b.graph.ty(v).is_some() && self.dtype(v) == dtype {
            Ok(v)
        } else {
            op!(self, "cast", v, dtype)
        }
    }
    /// A number in the dtype of a tensor, where it stands beside it.
    pub fn like(&mut self, number: f64, beside: ValueId) -> ValueId {
        match self.dtype(beside) {
            d if d.is_float() => self.cx.lit(number),
            _ => self.cx.lit(number as i64),
        }
    }
    /// The error for a use that has no counterpart.
    pub fn refuse(reason: impl Into<String>) -> Error {
        Error::new(Code::Unsupported, reason)
    }

    /// An attribute.
    pub fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.read.borrow_mut().insert(name.to_owned());
        self.node.attribute.iter().find(|a| a.name == name)
    }
    /// An attribute that is an integer.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        self.optional_int(name).map(|i| i.unwrap_or(default))
    }
    /// An attribute that is an integer, if it is given.
    pub fn optional_int(&self, name: &str) -> Result<Option<i64>> {
        match self.attribute(name) {
            Some(a) => a.i.map(Some).ok_or_else(|| Self::wrong(name, "an integer")),
            None => Ok(None),
        }
    }
    /// An attribute that says yes or no.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }
    /// An attribute that is a list of integers, if it is given.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        match self.attribute(name) {
            Some(a) if a.i.is_some() && a.ints.is_empty() => Err(Self::wrong(name, "a list of integers")),
            attribute => Ok(attribute.map(|a| a.ints.clone())),
        }
    }
    /// An attribute that is a number: the shortest one that is written the same in float32.
    pub fn float(&self, name: &str, default: f64) -> Result<f64> {
        self.optional_float(name).map(|x| x.unwrap_or(default))
    }
    /// An attribute that is a number, if it is given.
    pub fn optional_float(&self, name: &str) -> Result<Option<f64>> {
        match self.attribute(name) {
            Some(a) => a.f.map(|x| Some(decimal(x))).ok_or_else(|| Self::wrong(name, "a number")),
            None => Ok(None),
        }
    }
    /// An attribute that is a list of numbers.
    pub fn floats(&self, name: &str) -> Option<Vec<f64>> {
        self.attribute(name).map(|a| a.floats.iter().map(|&x| decimal(x)).collect())
    }
    /// An attribute that is a text.
    pub fn text(&self, name: &str, default: &str) -> Result<String> {
        match self.attribute(name) {
            Some(a) => {
                let text = a.s.as_ref().and_then(|s| std::str::from_utf8(s).ok());
                text.map(String::from).ok_or_else(|| Self::wrong(name, "a text"))
            }
            None => Ok(default.to_owned()),
        }
    }
    /// An attribute that is a list of texts.
    pub fn texts(&self, name: &str) -> Vec<String> {
        let texts = self.attribute(name).map(|a| a.strings.as_slice()).unwrap_or_default();
        texts.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect()
    }
    /// An attribute that is a tensor, if it is given.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(t) = self.attribute(name).and_then(|a| a.t.as_ref()) else { return Ok(None) };
        Stored::read(t, self.external)?.to_tensor().map(Some)
    }
    fn wrong(name: &str, expected: &str) -> Error {
        malformed(format!("attribute `{name}` is not {expected}"))
    }
    /// The type that an attribute names.
    pub fn type_of(&self, name: &str) -> Result<Option<Type>> {
        self.optional_int(name)?.filter(|&c| c != 0).map(Type::of).transpose()
    }
    /// An attribute that is a tensor, as a value, if it is given.
    pub fn tensor_value(&mut self, name: &str) -> Result<Option<Value>> {
        let narrow = |t: &crate::proto::TensorProto| Narrow::of(i64::from(t.data_type));
        let Some(t) = self.attribute(name).and_then(|a| a.t.as_deref()) else { return Ok(None) };
        let (tensor, narrow) = match narrow(t) {
            Some(narrow) => (narrow.read(t, self.external)?, Some(narrow)),
            None => (Stored::read(t, self.external)?.to_tensor()?, None),
        };
        let v = self.cx.lit(tensor);
        Ok(Some(narrow.map_or(Value::Graph(v), |narrow| Value::Narrow(v, narrow))))
    }
    /// The dtype that an attribute names.
    pub fn dtype_of(&self, name: &str) -> Result<Option<DType>> {
        let code = self.optional_int(name)?.filter(|&c| c != 0);
        code.map(|c| crate::tensor::dtype(i32::try_from(c).unwrap_or(-1))).transpose()
    }
}

/// The number with the fewest digits that is this one in float32.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}
