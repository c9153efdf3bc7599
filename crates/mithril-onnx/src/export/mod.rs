//! Typed graphs as files of ONNX.
//!
//! Op definitions have a lowering to ONNX (`Lowering::onnx`; the grammar is in [`parse`]); an op without one is expanded
//! before, by the pass that lowers a graph for any target, which asks [`can_write`]. [`write`] then writes nodes, inputs,
//! outputs and constants; the values of parameters come from the caller, into the file or beside it.

mod forms;
mod lower;
mod parse;
mod standard;
mod writer;

use std::sync::Arc;

use bytes::Bytes;
use mithril_ir::graph::{Def, Graph, NodeId, Role, TensorType, ValueId};
use mithril_ir::unique_names::UniqueNames;
use mithril_ir::{Code, DType, Dim, Error, Result, Tensor};
use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};

use self::lower::lower;
use self::writer::{Made, Val, Writer, tensor};
use crate::proto::{
    DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ShapeProto, Size,
    StringStringEntryProto, TensorProto, TensorTypeProto, TypeProto, ValueInfoProto,
};

/// The opsets that can be written: from, to, and the one that is written unless another is asked for.
pub const OPSETS: (i64, i64, i64) = (17, 24, 20);

/// Bytes that a message of protobuf may have.
pub const MAX_BYTES: u64 = (1 << 31) - 1;

/// A parameter or state whose values belong into the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: Arc<str>,
    /// Its dtype.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// Bytes of its elements.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product::<u64>() * self.dtype.size() as u64
    }
}

/// A file without the values of its parameters.
#[derive(Clone, Debug)]
pub struct Written {
    model: ModelProto,
    /// The parameters, and the states with their initial values.
    pub parameters: Vec<Parameter>,
}

/// Whether a node can be written at this opset without expanding it.
#[must_use]
pub fn can_write(graph: &Graph, node: NodeId, opset: i64) -> bool {
    try_write(graph, node, opset).is_ok()
}

fn try_write(graph: &Graph, node: NodeId, opset: i64) -> Made<()> {
    let mut writer = Writer::new(opset, UniqueNames::numbered_from(1));
    let inputs = graph.inputs.iter().map(|&v| (v, String::from("x")));
    find_symbols(graph, inputs, &mut writer);
    let value_of = |w: &mut Writer, v: ValueId| {
        let dtype = graph.ty(v).map(|t| t.dtype);
        Ok(dtype.map(|dtype| Val { name: w.fresh("x"), dtype }))
    };
    lower(&mut writer, graph, graph.node(node), value_of).map(|_| ())
}

fn find_symbols(graph: &Graph, inputs: impl Iterator<Item = (ValueId, String)>, writer: &mut Writer) {
    for (v, name) in inputs {
        for (axis, dim) in graph.ty(v).map(|t| &*t.shape).unwrap_or_default().iter().enumerate() {
            if let Some(symbol) = dim.as_symbol() {
                writer.symbols.entry(symbol.clone()).or_insert_with(|| (name.clone(), axis));
            }
        }
    }
}

/// Writes a graph that was lowered for this opset. `title` says what the model is, for people.
///
/// Data and the states that change are inputs, the latter with the values they start from; a new state is the output
/// `<name>.new`. Parameters are initializers. Cotangents are inputs (`cotangent:<output>`), or one if this is the gradient
/// of a loss.
///
/// ```
/// use mithril_ir::{Builder, DType, Shape, graph::{Role, TensorType}, ops};
/// let mut b = Builder::new(DType::F32);
/// let x = b.graph.add_input("x", Role::Data, TensorType { dtype: DType::F32, shape: Shape::of(["n"]) });
/// let y = b.push(&ops::elementwise::TANH, &[x])?[0];
/// b.graph.outputs.insert("y".into(), y);
/// let file = mithril_onnx::export::write(&b.graph, 20, "a tanh", false)?.with_values(Vec::new());
/// let read = mithril_onnx::read(&file.into(), &Default::default(), &mithril_onnx::no_other_file)?;
/// assert_eq!(read.model.inputs(), ["x".into()]);
/// # Ok::<(), mithril_ir::Error>(())
/// ```
///
/// # Errors
/// When the opset is none of [`OPSETS`]; when ops have no lowering: one error that lists all of them.
pub fn write(graph: &Graph, opset: i64, title: &str, is_loss: bool) -> Result<Written> {
    check_opset(opset)?;
    let mut file = File::new(graph, opset, is_loss)?;
    let mut missing = Vec::new();
    for (n, node) in graph.nodes() {
        let path = graph.place(n).path.as_deref().unwrap_or("").to_owned();
        file.writer.path = path;
        let values = &file.values;
        let value_of = |_: &mut Writer, v: ValueId| Ok(values[v.index()].clone());
        match lower(&mut file.writer, graph, node, value_of) {
            Ok(outputs) => {
                for (&v, val) in node.outputs.iter().zip(outputs) {
                    file.values[v.index()] = Some(val);
                }
            }
            Err(reason) => {
                missing.push((n, reason));
                // What follows is looked at too.
                for &v in &node.outputs {
                    let dtype = graph.ty(v).map_or(DType::F32, |t| t.dtype);
                    file.values[v.index()] = Some(Val { name: "?".into(), dtype });
                }
            }
        }
    }
    if !missing.is_empty() {
        return Err(unsupported(graph, opset, &missing));
    }
    file.finish(title)
}

/// Refuses opsets that are not written.
///
/// # Errors
/// When it is none of [`OPSETS`].
pub fn check_opset(opset: i64) -> Result<()> {
    let (least, most, usual) = OPSETS;
    if (least..=most).contains(&opset) {
        return Ok(());
    }
    let message = format!("opset {opset} of ONNX cannot be written");
    Err(Error::new(Code::BadArgument, message)
        .help(format!("choose one from {least} to {most}; {usual} is usual")))
}

struct File<'a> {
    graph: &'a Graph,
    writer: Writer,
    /// What stands for the values of the graph.
    values: Vec<Option<Val>>,
    inputs: Vec<ValueInfoProto>,
    parameters: Vec<Parameter>,
}

impl<'a> File<'a> {
    fn new(graph: &'a Graph, opset: i64, is_loss: bool) -> Result<Self> {
        let names = graph.inputs.iter().filter_map(|&v| graph.value(v).name.as_deref());
        let mut taken = UniqueNames::numbered_from(1);
        names.chain(graph.outputs.keys().map(|n| &**n)).for_each(|name| _ = taken.take(name));
        let mut file = Self {
            graph,
            writer: Writer::new(opset, taken),
            values: vec![None; graph.values().len()],
            inputs: Vec::new(),
            parameters: Vec::new(),
        };
        let (mut symbols, mut seeds) = (Vec::new(), Vec::new());
        for &v in &graph.inputs {
            let value = graph.value(v);
            let (Def::Input(role), Some(ty), Some(name)) = (&value.def, &value.ty, &value.name) else {
                return Err(Error::internal("an input has no type or no name"));
            };
            let seed = format!("cotangent:{name}");
            let name: &Arc<str> = if *role == Role::Cotangent { &seed.into() } else { name };
            if *role == Role::Cotangent && is_loss {
                seeds.push((v, ty.clone()));
                continue;
            }
            file.values[v.index()] = Some(Val { name: name.to_string(), dtype: ty.dtype });
            let is_kept = *role == Role::State && graph.updates.iter().any(|(input, _)| *input == v);
            let is_input = is_kept || matches!(role, Role::Data | Role::Cotangent);
            if is_input {
                file.inputs.push(info(name, ty));
                symbols.push((v, name.to_string()));
            }
            if is_kept || !is_input {
                let open = || {
                    let message = format!("the shape of `{name}` is {}", ty.shape);
                    Error::new(Code::UnknownShape, message)
                        .help("give the shapes of the inputs: shapes={...}")
                };
                let shape = ty.shape.known().ok_or_else(open)?;
                file.parameters.push(Parameter { name: name.clone(), dtype: ty.dtype, shape });
            }
        }
        find_symbols(graph, symbols.into_iter(), &mut file.writer);
        for (v, ty) in seeds {
            let one = file.writer.constant(&Tensor::scalar(ty.dtype, 1.0));
            let made =
                file.writer.sizes(&ty.shape).and_then(|sizes| file.writer.simple("Expand", &[&one, &sizes]));
            file.values[v.index()] = Some(made.map_err(Error::internal)?);
        }
        Ok(file)
    }

    /// The tensor of a value, under this name.
    fn output(&mut self, name: &str, v: ValueId, renamed: &mut FxHashMap<String, String>) -> Result<()> {
        let val = match self.graph.lit(v) {
            Some(mithril_ir::Lit::Tensor(t)) => self.writer.constant(t),
            Some(lit) => {
                let tensor = mithril_ir::interp::number(lit, None)?;
                self.writer.constant(&tensor)
            }
            None => self.values[v.index()].clone().ok_or_else(|| Error::internal("an output is not made"))?,
        };
        let is_made = self.writer.nodes.iter().any(|node| node.output.contains(&val.name));
        if is_made && !renamed.contains_key(&val.name) {
            renamed.insert(val.name, name.to_owned());
            return Ok(());
        }
        let node = NodeProto {
            input: vec![val.name],
            output: vec![name.to_owned()],
            name: self.writer.fresh("Identity"),
            op_type: "Identity".into(),
            ..NodeProto::default()
        };
        self.writer.nodes.push(node);
        Ok(())
    }

    fn finish(mut self, title: &str) -> Result<Written> {
        let mut outputs: Vec<(String, ValueId)> =
            self.graph.outputs.iter().map(|(n, &v)| (n.to_string(), v)).collect();
        for &(input, new) in &self.graph.updates {
            let name = self.graph.value(input).name.as_deref().unwrap_or("state");
            outputs.push((self.writer.fresh(&format!("{name}.new")), new));
        }
        let mut renamed = FxHashMap::default();
        let mut infos = Vec::with_capacity(outputs.len());
        for (name, v) in &outputs {
            self.output(name, *v, &mut renamed)?;
            let ty = match (self.graph.ty(*v), self.graph.lit(*v)) {
                (Some(ty), _) => ty.clone(),
                (None, Some(lit)) => {
                    let number = mithril_ir::interp::number(lit, None)?;
                    TensorType { dtype: number.dtype(), shape: mithril_ir::Shape::scalar() }
                }
                (None, None) => return Err(Error::internal("an output has no type")),
            };
            infos.push(info(name, &ty));
        }
        for node in &mut self.writer.nodes {
            for name in node.input.iter_mut().chain(&mut node.output) {
                if let Some(new) = renamed.get(name) {
                    name.clone_from(new);
                }
            }
        }
        let mut initializer = Vec::with_capacity(self.writer.constants.len());
        for (name, t) in needed(&self.writer) {
            initializer.push(tensor(name, t.dtype(), t.shape(), t.to_bytes()));
        }
        let graph = GraphProto {
            name: "model".into(),
            node: self.writer.nodes,
            initializer,
            input: self.inputs,
            output: infos,
            ..GraphProto::default()
        };
        let opset = self.writer.opset;
        let model = ModelProto {
            ir_version: Some(ir_version(opset)),
            producer_name: "mithril".into(),
            doc_string: title.to_owned(),
            graph: Some(graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: opset }],
            ..ModelProto::default()
        };
        Ok(Written { model, parameters: self.parameters })
    }
}

/// The constants that nodes read; others were folded into them.
fn needed(writer: &Writer) -> impl Iterator<Item = (&str, &Tensor)> {
    let read: FxHashSet<&str> =
        writer.nodes.iter().flat_map(|node| node.input.iter().map(String::as_str)).collect();
    writer.constants.iter().map(|(name, t)| (name.as_str(), t)).filter(move |(name, _)| read.contains(name))
}

/// The version of the format that goes with an opset.
fn ir_version(opset: i64) -> i64 {
    match opset {
        ..19 => 8,
        19..21 => 9,
        21..23 => 10,
        _ => 11,
    }
}

fn info(name: &str, ty: &TensorType) -> ValueInfoProto {
    let dim = |dim: &Dim| {
        let value = match dim {
            Dim::Const(n) => Size::Value(*n),
            other @ Dim::Expr(_) => Size::Param(other.to_string()),
        };
        DimensionProto { value: Some(value) }
    };
    let shape = ShapeProto { dim: ty.shape.iter().map(dim).collect() };
    let tensor_type = TensorTypeProto { elem_type: standard::number(ty.dtype), shape: Some(shape) };
    let r#type = TypeProto { tensor_type: Some(tensor_type) };
    ValueInfoProto { name: name.to_owned(), r#type: Some(r#type) }
}

impl Written {
    /// Bytes of the parameters and of what else is in the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let parameters: u64 = self.parameters.iter().map(|p| p.bytes() + 256).sum();
        parameters + self.model.encoded_len() as u64
    }
    /// The file, with the values of the parameters in their order.
    #[must_use]
    pub fn with_values(self, values: Vec<Bytes>) -> Vec<u8> {
        self.encoded(
            values.into_iter().map(|bytes| TensorProto { raw_data: Some(bytes), ..Default::default() }),
        )
    }
    /// The file, whose parameters lie in another one: its name, and the first byte of each.
    #[must_use]
    pub fn with_places(self, location: &str, offsets: &[u64]) -> Vec<u8> {
        let lengths: Vec<u64> = self.parameters.iter().map(Parameter::bytes).collect();
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        let places = offsets.iter().zip(lengths).map(|(offset, length)| TensorProto {
            data_location: 1,
            external_data: vec![
                entry("location", location.to_owned()),
                entry("offset", offset.to_string()),
                entry("length", length.to_string()),
            ],
            ..Default::default()
        });
        self.encoded(places)
    }
    fn encoded(mut self, values: impl Iterator<Item = TensorProto>) -> Vec<u8> {
        let parameters = self.parameters.iter().zip(values).map(|(p, value)| TensorProto {
            raw_data: value.raw_data,
            data_location: value.data_location,
            external_data: value.external_data,
            ..tensor(&p.name, p.dtype, &p.shape, Vec::new())
        });
        if let Some(graph) = &mut self.model.graph {
            let constants = std::mem::take(&mut graph.initializer);
            graph.initializer = parameters.chain(constants).collect();
        }
        self.model.encode_to_vec()
    }
}

/// The error that lists every op that cannot be written, how often, where first, and why.
fn unsupported(graph: &Graph, opset: i64, missing: &[(NodeId, String)]) -> Error {
    let mut kinds: Vec<(&str, &str, usize, String)> = Vec::new();
    for (id, reason) in missing {
        let op = graph.node(*id).op.name;
        match kinds.iter_mut().find(|(name, why, ..)| *name == op && why == reason) {
            Some(kind) => kind.2 += 1,
            None => kinds.push((op, reason, 1, place_text(graph, *id))),
        }
    }
    let ops = if kinds.len() == 1 { "an op" } else { "some ops" };
    let mut error =
        Error::new(Code::Unsupported, format!("opset {opset} of ONNX cannot say {ops} of this model"));
    for (op, reason, count, place) in &kinds {
        let times = if *count == 1 { String::new() } else { format!(", {count} times, first") };
        error = error.note(format!("`{op}`{times}{place}: {reason}"));
    }
    let newer = kinds.iter().any(|(_, reason, ..)| reason.contains("needs opset"));
    error.at(graph.place(missing[0].0)).help(if newer {
        "choose a newer opset, or write the model with other ops"
    } else {
        "write the model with other ops, or export it as C: ml.compile(...).export(folder)"
    })
}

fn place_text(graph: &Graph, node: NodeId) -> String {
    let place = graph.place(node);
    let path = place.path.as_deref().filter(|p| !p.is_empty()).map(|p| format!(" in `{p}`"));
    let line = place.line.as_ref().map(|line| format!(" at {line}"));
    path.unwrap_or_default() + &line.unwrap_or_default()
}
