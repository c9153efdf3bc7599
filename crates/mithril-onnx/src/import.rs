//! From the messages of a file to a model: inputs and initializers, then node after node. What cannot be converted is
//! collected, and reported together.

use indexmap::IndexMap;
use mithril_ir::{Code, DType, Dim, Error, Place, Result, Role, Shape, Tensor, TensorType, ValueId};
use mithril_model::{Connection, IOKey, Size};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::constants;
use crate::context::{Context, Value, malformed};
use crate::lift::lift;
use crate::names::{Names, symbol};
use crate::narrow::{self, Narrow, Type};
use crate::node::Use;
use crate::proto::{
    self, AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto,
};
use crate::tensor::{External, Stored};
use crate::{Imported, Options, control, legacy, ops, sizes};

/// Versions of the default domain that the functions in `ops` were written for.
const OPSETS: std::ops::RangeInclusive<i64> = 1..=28;
/// Nodes that may be converted, those of functions and iterations of loops included.
const MAX_NODES: usize = 200_000;
/// Functions within functions and graphs within graphs.
const MAX_DEPTH: usize = 40;
/// Elements of a parameter whose values are kept at hand.
const MAX_KNOWN: usize = 1 << 12;

/// The versions of the domains.
pub type Opsets = FxHashMap<String, i64>;

/// Names that can be read at a node.
#[derive(Default)]
pub struct Scope<'s> {
    pub values: FxHashMap<String, Value>,
    pub parent: Option<&'s Scope<'s>>,
}

impl Scope<'_> {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).or_else(|| self.parent.and_then(|p| p.get(name)))
    }
    pub fn bind(&mut self, name: &str, value: Value) -> Result<()> {
        match self.values.insert(name.to_owned(), value) {
            Some(_) if !name.is_empty() => Err(malformed(format!("two values are called {name:?}"))),
            _ => Ok(()),
        }
    }
}

/// Where nodes stand: versions of their ops, depth of functions and graphs.
#[derive(Clone, Copy)]
pub struct Around<'o> {
    pub opsets: &'o Opsets,
    pub depth: usize,
}

impl<'o> Around<'o> {
    /// One deeper.
    pub fn within<'p>(self, opsets: &'p Opsets) -> Result<Around<'p>>
    where
        'o: 'p,
    {
        if self.depth >= MAX_DEPTH {
            return Err(malformed(format!("functions or graphs nest more than {MAX_DEPTH} deep")));
        }
        Ok(Around { opsets, depth: self.depth + 1 })
    }
}

/// A file being converted.
pub struct Importer<'m> {
    model: &'m ModelProto,
    external: &'m External<'m>,
    pub cx: Context,
    functions: FxHashMap<(&'m str, &'m str, &'m str), &'m FunctionProto>,
    names: Names,
    symbols: FxHashMap<String, String>,
    symbol_names: Names,
    inputs: Vec<(ValueId, Connection)>,
    parameters: IndexMap<String, Stored>,
    failures: IndexMap<String, Vec<String>>,
    left: usize,
}

impl<'m> Importer<'m> {
    pub fn new(model: &'m ModelProto, external: &'m External<'m>) -> Result<Self> {
        let mut functions = FxHashMap::default();
        for f in &model.functions {
            let key = (domain(&f.domain), f.name.as_str(), f.overload.as_str());
            if functions.insert(key, f).is_some() {
                return Err(malformed(format!("two functions are called {:?}", f.name)));
            }
        }
        Ok(Self {
            model,
            external,
            cx: Context::default(),
            functions,
            names: Names::default(),
            symbols: FxHashMap::default(),
            symbol_names: Names::default(),
            inputs: Vec::new(),
            parameters: IndexMap::new(),
            failures: IndexMap::new(),
            left: MAX_NODES,
        })
    }

    pub fn run(mut self, options: &Options) -> Result<Imported> {
        let graph = self.model.graph.as_ref().ok_or_else(|| malformed("the file has no graph"))?;
        let opsets = opsets(&self.model.opset_import);
        if let Some(version) = opsets.get("").filter(|v| !OPSETS.contains(v)) {
            let message = format!("opset {version} is not supported");
            let help =
                format!("convert the model to one of {OPSETS:?}: onnx.version_converter.convert_version");
            return Err(Error::new(Code::Unsupported, message).help(help));
        }
        let mut scope = Scope::default();
        self.enter_inputs(graph, options, &mut scope)?;
        self.enter_initializers(graph, &mut scope, true)?;
        self.nodes(&graph.node, &mut scope, Around { opsets: &opsets, depth: 0 })?;
        self.report()?;
        let mut outputs = Vec::new();
        for output in &graph.output {
            let value = scope.get(&output.name).cloned();
            let value =
                value.ok_or_else(|| malformed(format!("nothing computes the output {:?}", output.name)))?;
            let v = match value {
                Value::Narrow(v, _) => v,
                value => self.cx.tensor(&value)?,
            };
            outputs.push((self.names.take(&output.name, "output"), v));
        }
        if outputs.is_empty() {
            return Err(malformed("the graph has no outputs"));
        }
        let graph = &self.cx.b.graph;
        let mut frozen: Vec<&str> = Vec::new();
        for (v, connection) in &mut self.inputs {
            if let (true, Some(name)) = (self.cx.frozen.contains(v), graph.value(*v).name.as_deref()) {
                if let Some(ty) = graph.ty(*v) {
                    *connection =
                        Connection::input(IOKey::new(name).shape(ty.shape.iter().cloned()).dtype(ty.dtype));
                }
                frozen.push(name);
            }
        }
        let mut model = lift(graph, self.inputs, outputs, &self.cx.frozen)?;
        let used: FxHashSet<_> = model.parameters().into_iter().collect();
        self.parameters.retain(|name, _| used.contains(&**name));
        let frozen = frozen.into_iter().filter(|name| used.contains(*name)).map(|name| (name, false));
        model.set_differentiability(frozen, &Place::default())?;
        Ok(Imported { model, parameters: self.parameters })
    }

    // --- inputs and initializers ------------------------------------------------------------------------------------

    fn enter_inputs(&mut self, graph: &GraphProto, options: &Options, scope: &mut Scope<'_>) -> Result<()> {
        let stored: FxHashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
        let named =
            options.shapes.iter().map(|(name, _)| name).chain(options.constants.iter().map(|(name, _)| name));
        for name in named {
            if !graph.input.iter().any(|i| i.name == *name && !stored.contains(name.as_str())) {
                let names: Vec<_> = graph.input.iter().map(|i| i.name.as_str()).collect();
                let error = Error::new(Code::UnknownName, format!("the model has no input {name:?}"));
                return Err(error.help(format!("its inputs are {}", names.join(", "))));
            }
        }
        for info in graph.input.iter().filter(|i| !stored.contains(i.name.as_str())) {
            if let Some((_, tensor)) = options.constants.iter().find(|(name, _)| *name == info.name) {
                let v = self.constant(info, tensor)?;
                scope.bind(&info.name, typed(info, v))?;
                continue;
            }
            let shape = options.shapes.iter().find(|(name, _)| *name == info.name).map(|(_, shape)| &**shape);
            let v =
                self.input(info, shape).map_err(|e| e.note(format!("it is the input `{}`", info.name)))?;
            scope.bind(&info.name, typed(info, v))?;
        }
        Ok(())
    }

    /// The value of an input that is fixed, which has to have the dtype of the file.
    fn constant(&mut self, info: &ValueInfoProto, tensor: &Tensor) -> Result<ValueId> {
        let declared = info
            .r#type
            .as_ref()
            .and_then(|t| t.tensor_type.as_ref())
            .map(|t| Type::of(t.elem_type.into()).map(Type::dtype))
            .transpose()?;
        if declared.is_some_and(|declared| declared != tensor.dtype()) {
            let message = format!("the value of the input {:?} is {}", info.name, tensor.dtype().name());
            let declared = declared.map_or("", |dtype| dtype.name());
            return Err(Error::new(Code::DTypeMismatch, message).help(format!("give an array of {declared}")));
        }
        Ok(self.cx.lit(tensor.clone()))
    }

    fn input(&mut self, info: &ValueInfoProto, shape: Option<&[Size]>) -> Result<ValueId> {
        let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()).ok_or_else(|| {
            Error::new(Code::Unsupported, "an input is not a tensor but a sequence, a map or optional")
                .help("let the model take tensors")
        })?;
        let dtype = Type::of(tensor.elem_type.into())?.dtype();
        let name = self.names.take(&info.name, "input");
        let mut dims: Vec<Dim> = Vec::new();
        if let Some(sizes) = shape {
            for (axis, size) in sizes.iter().enumerate() {
                dims.push(match size {
                    Size::Is(dim) => dim.clone(),
                    Size::Unknown => self.open_size(&name, axis),
                });
            }
        } else {
            let shape = tensor.shape.as_ref().ok_or_else(|| {
                Error::new(Code::UnknownShape, "the file does not say how many axes an input has")
                    .help(format!("give its shape: ml.from_onnx(..., shapes={{{:?}: [...]}})", info.name))
            })?;
            for (axis, dim) in shape.dim.iter().enumerate() {
                dims.push(match &dim.value {
                    Some(proto::Size::Value(n)) if *n >= 0 => (*n).into(),
                    Some(proto::Size::Param(text)) if !text.trim().is_empty() => self.symbol(text),
                    _ => self.open_size(&name, axis),
                });
            }
        }
        let shape: Shape = dims.iter().cloned().collect();
        shape.check()?;
        let key = IOKey::new(&name).shape(dims).dtype(dtype).trainable(false);
        let v = self.cx.b.graph.add_input(name, Role::Data, TensorType { dtype, shape });
        self.inputs.push((v, Connection::input(key)));
        Ok(v)
    }
    fn symbol(&mut self, text: &str) -> Dim {
        if let Ok(n) = text.trim().parse::<i64>()
            && n >= 0
        {
            return n.into();
        }
        let names = &mut self.symbol_names;
        Dim::symbol(self.symbols.entry(text.to_owned()).or_insert_with(|| names.take(&symbol(text), "n")))
    }
    fn open_size(&mut self, name: &str, axis: usize) -> Dim {
        Dim::symbol(&self.symbol_names.take(&symbol(&format!("{name}_{axis}")), "n"))
    }

    /// Enters the tensors that a graph holds; those of the outermost graph are parameters if they are learned.
    pub fn enter_initializers(
        &mut self,
        graph: &GraphProto,
        scope: &mut Scope<'_>,
        learned: bool,
    ) -> Result<()> {
        if let Some(sparse) = graph.sparse_initializer.first() {
            let name = sparse.values.as_ref().map_or("", |v| v.name.as_str());
            return Err(Error::new(Code::Unsupported, format!("`{name}` is a sparse tensor"))
                .help("write it as a dense one"));
        }
        let numbers = if learned { constants::numbers(graph) } else { FxHashSet::default() };
        for tensor in &graph.initializer {
            let entered = self.initializer(tensor, learned && !numbers.contains(tensor.name.as_str()));
            let v = entered.map_err(|e| e.note(format!("it is the initializer `{}`", tensor.name)))?;
            scope.bind(&tensor.name, v)?;
        }
        Ok(())
    }
    fn initializer(&mut self, tensor: &TensorProto, learned: bool) -> Result<Value> {
        if let Some(narrow) = Narrow::of(tensor.data_type.into()) {
            let values = narrow.read(tensor, self.external)?;
            return Ok(Value::Narrow(self.cx.lit(values), narrow));
        }
        let stored = match Stored::read(tensor, self.external) {
            Err(error) if error.code() == Code::Unsupported => {
                self.fail(error.message(), &format!("the initializer `{}`", tensor.name));
                return Ok(Value::Failed);
            }
            other => other?,
        };
        // Quantized weights, too, are learned; vectors of integers are zero points, axes and sizes.
        let is_quantized = matches!(stored.dtype, DType::I8 | DType::U8) && stored.shape.len() > 1;
        let is_parameter = learned && (stored.dtype.is_float() || is_quantized) && !stored.shape.is_empty();
        if !is_parameter || constants::is_mask(&stored)? {
            let constant = stored.to_tensor()?;
            return Ok(Value::Graph(self.cx.lit(constant)));
        }
        let name = self.names.take(&tensor.name, "weight");
        let shape = Shape::of(stored.shape.iter().copied());
        let key = IOKey::new(&name).shape(stored.shape.iter().copied()).dtype(stored.dtype).trainable(true);
        let ty = TensorType { dtype: stored.dtype, shape };
        let v = self.cx.b.graph.add_input(name.as_str(), Role::Param, ty);
        if stored.len() <= MAX_KNOWN {
            self.cx.known.insert(v, stored.to_tensor()?.into());
        }
        self.inputs.push((v, Connection::input(key)));
        self.parameters.insert(name, stored);
        Ok(Value::Graph(v))
    }

    // --- nodes ------------------------------------------------------------------------------------------------------

    pub fn nodes(&mut self, nodes: &[NodeProto], scope: &mut Scope<'_>, around: Around<'_>) -> Result<()> {
        nodes.iter().try_for_each(|node| self.node(node, scope, around))
    }

    fn node(&mut self, node: &NodeProto, scope: &mut Scope<'_>, around: Around<'_>) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            malformed(format!(
                "the model has more than {MAX_NODES} nodes, those of functions and loops included"
            ))
        })?;
        let mut inputs = Vec::with_capacity(node.input.len());
        for name in &node.input {
            inputs.push(match name.as_str() {
                "" => None,
                name => Some(scope.get(name).cloned().ok_or_else(|| {
                    malformed(format!("{name:?} is read before a node, an input or an initializer gives it"))
                        .at(&place(node))
                })?),
            });
        }
        while inputs.last().is_some_and(Option::is_none) {
            inputs.pop();
        }
        let results = if inputs.iter().flatten().any(|v| matches!(v, Value::Failed)) {
            None
        } else {
            let converted = self.converted(node, inputs, scope, around);
            match converted {
                Ok(results) => Some(results),
                Err(error)
                    if matches!(
                        error.code(),
                        Code::Unsupported | Code::UnknownArgument | Code::UnknownShape
                    ) =>
                {
                    let prefix =
                        if node.domain.is_empty() { String::new() } else { format!("{}.", node.domain) };
                    let reason = error.message();
                    self.fail(
                        &format!("`{prefix}{}`: {reason}", node.op_type),
                        &format!("node `{}`", label(node)),
                    );
                    None
                }
                Err(error) => {
                    let about = format!("it is the node `{}`, a use of {}", label(node), node.op_type);
                    return Err(error.at(&place(node)).note(about));
                }
            }
        };
        for (i, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let value = match &results {
                None => Value::Failed,
                Some(values) => values.get(i).cloned().ok_or_else(|| {
                    malformed(format!("{} has no output {i}", node.op_type)).at(&place(node))
                })?,
            };
            scope.bind(name, value).map_err(|e| e.at(&place(node)))?;
        }
        Ok(())
    }

    fn converted(
        &mut self,
        node: &NodeProto,
        inputs: Vec<Option<Value>>,
        scope: &Scope<'_>,
        around: Around<'_>,
    ) -> Result<Vec<Value>> {
        let space = domain(&node.domain);
        if let Some(&f) = self.functions.get(&(space, &*node.op_type, &*node.overload)) {
            return self.inline(f, node, &inputs, around);
        }
        if let Some(convert) = control::find(space, &node.op_type) {
            return convert(self, node, &inputs, scope, around);
        }
        let unknown = || Error::new(Code::Unsupported, "Mithril has no op for it");
        let convert = ops::find(space, &node.op_type).ok_or_else(unknown)?;
        let opset = around.opsets.get(space).copied();
        let opset =
            opset.ok_or_else(|| malformed(format!("the file imports no version of the domain {space:?}")))?;
        self.cx.b.set_origin(place(node));
        let mut inputs = inputs;
        let mut narrow = None;
        if space.is_empty() && narrow::moves(&node.op_type) {
            for value in inputs.iter_mut().flatten() {
                if let Value::Narrow(v, of) = *value {
                    (*value, narrow) = (Value::Graph(v), Some(of));
                }
            }
        }
        let mut u = Use::new(&mut self.cx, node, inputs, self.external, opset);
        if space.is_empty()
            && let Some(value) = sizes::eval(&mut u)
        {
            return Ok(vec![value]);
        }
        if space.is_empty() {
            legacy::modernize(&mut u)?;
        }
        let mut results = convert(&mut u)?;
        u.check_all_read()?;
        if let Some(narrow) = narrow.filter(|_| !matches!(&*node.op_type, "Shape" | "Size")) {
            for value in &mut results {
                if let Value::Graph(v) = *value {
                    *value = Value::Narrow(v, narrow);
                }
            }
        }
        Ok(results)
    }

    /// Converts the nodes of a function in place of its use.
    fn inline(
        &mut self,
        f: &FunctionProto,
        node: &NodeProto,
        inputs: &[Option<Value>],
        around: Around<'_>,
    ) -> Result<Vec<Value>> {
        if inputs.len() > f.input.len() {
            return Err(malformed(format!("{} takes {} inputs", f.name, f.input.len())));
        }
        let mut scope = Scope::default();
        let mut missing = Vec::new();
        for (i, name) in f.input.iter().enumerate() {
            match inputs.get(i).cloned().flatten() {
                Some(value) => scope.bind(name, value)?,
                None => missing.push(name.as_str()),
            }
        }
        let mut own = around.opsets.clone();
        own.extend(opsets(&f.opset_import));
        let within = around.within(&own)?;
        let attribute = |name: &str| {
            let defaults = f.attribute_proto.iter();
            node.attribute.iter().chain(defaults).find(|a| a.name == name)
        };
        for inner in &f.node {
            let mut inner = inner.clone();
            for name in &mut inner.input {
                if missing.contains(&name.as_str()) {
                    name.clear();
                }
            }
            inner.attribute = resolved(inner.attribute, &attribute);
            if !node.name.is_empty() {
                inner.name = format!("{}/{}", node.name, label(&inner));
            }
            self.node(&inner, &mut scope, within)?;
        }
        let output = |name: &String| {
            let value = scope.get(name).cloned();
            value.ok_or_else(|| malformed(format!("nothing computes the output {name:?} of {}", f.name)))
        };
        f.output.iter().map(output).collect()
    }

    // --- errors -----------------------------------------------------------------------------------------------------

    pub fn fail(&mut self, what: &str, place: &str) {
        self.failures.entry(what.to_owned()).or_default().push(place.to_owned());
    }

    /// One error for all that could not be converted.
    fn report(&self) -> Result<()> {
        if self.failures.is_empty() {
            return Ok(());
        }
        let text = "the file has parts that Mithril cannot convert";
        let mut error = Error::new(Code::Unsupported, text)
            .help(if self.failures.keys().any(|what| what.contains("must be known")) {
                "give values of inputs that shapes depend on: ml.from_onnx(..., constants={name: array}); replace other parts"
            } else {
                "replace these parts of the model, or write them with other ops"
            });
        for (what, places) in &self.failures {
            let mut shown = places[..places.len().min(5)].join(", ");
            if places.len() > 5 {
                shown.push_str(", …");
            }
            let times = if places.len() == 1 { "once".into() } else { format!("{} times", places.len()) };
            error = error.note(format!("{what} ({times}: {shown})"));
        }
        Err(error)
    }
}

/// Attributes of a node within a function, with those of its use in place of references.
fn resolved<'a>(
    attributes: Vec<AttributeProto>,
    attribute_of: &dyn Fn(&str) -> Option<&'a AttributeProto>,
) -> Vec<AttributeProto> {
    let resolve = |mut attribute: AttributeProto| {
        if !attribute.ref_attr_name.is_empty() {
            let actual = attribute_of(&attribute.ref_attr_name)?;
            return Some(AttributeProto { name: attribute.name, ..actual.clone() });
        }
        if let Some(graph) = attribute.g.as_mut() {
            for node in &mut graph.node {
                node.attribute = resolved(std::mem::take(&mut node.attribute), attribute_of);
            }
        }
        Some(attribute)
    };
    attributes.into_iter().filter_map(resolve).collect()
}

fn opsets(imports: &[proto::OperatorSetIdProto]) -> Opsets {
    imports.iter().map(|o| (domain(&o.domain).to_owned(), o.version)).collect()
}

/// The value of an input, by the type that the file gives it.
fn typed(info: &ValueInfoProto, v: ValueId) -> Value {
    let code = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()).map(|t| t.elem_type);
    match code.and_then(|code| Narrow::of(code.into())) {
        Some(narrow) => Value::Narrow(v, narrow),
        None => Value::Graph(v),
    }
}

/// The default domain has two names.
fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// The name of a node, or what it gives.
pub fn label(node: &NodeProto) -> &str {
    let first = node.output.first().map_or("", String::as_str);
    if node.name.is_empty() { first } else { &node.name }
}

pub fn place(node: &NodeProto) -> Place {
    Place { path: Some(label(node).into()), line: None }
}
