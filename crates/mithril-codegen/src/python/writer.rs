//! Writes the module: header, helpers and constants used, then one function after another.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use mithril_ir::error::Code;
use mithril_ir::{DType, Error, Graph, NodeId, Result, Tensor};

use super::donation::Donations;
use super::foreach::{self, Step};
use super::function::{FunctionWriter, results};
use super::literal;
use super::loops;
use super::namer::{Namer, python_string};
use super::overlay;
use super::targets::PythonTarget;
use super::template::{self, Template};
use super::wrap::wrapped;
use super::{Emitted, Function, Origin, Source};

/// The name that [`PythonTarget::device`] binds.
const DEVICE: &str = "device";

/// Constant tensors with more elements than this are not written as text.
const MAX_INLINE_ELEMENTS: usize = 32;

/// What the functions of a module share.
#[derive(Debug)]
pub struct Module<'a> {
    /// The target.
    pub target: &'a PythonTarget,
    device: &'a str,
    /// Names of helpers and imports that the text uses.
    used: BTreeSet<String>,
    /// Ops that the reference runs.
    referred: BTreeSet<&'static str>,
    names: Namer,
    /// Constant tensors: the expression that stands for each.
    constants: Vec<(Arc<Tensor>, String)>,
    /// Lines that define small constants.
    definitions: Vec<String>,
    /// Large constants by key.
    large: Vec<(String, Arc<Tensor>)>,
}

/// A body with the nodes that its lines compute.
#[derive(Debug)]
pub struct Body {
    /// The function as written.
    pub emitted: Emitted,
    /// Functions that it calls: its loops, each compiled by itself.
    pub loops: Vec<Vec<(String, Option<NodeId>)>>,
    /// Its lines.
    pub lines: Vec<(String, Option<NodeId>)>,
}

/// See [`super::emit`].
pub fn module(target: &PythonTarget, functions: &[Function<'_>], device: &str) -> Result<Source> {
    written(target, functions, lower_all(target, functions)?, device)
}

/// Writes functions whose nodes are lowered, one template per node.
pub fn written(
    target: &PythonTarget,
    functions: &[Function<'_>],
    templates: Vec<Vec<Option<Template>>>,
    device: &str,
) -> Result<Source> {
    let mut module = Module::new(target, device);
    for (function, templates) in functions.iter().zip(&templates) {
        let referred =
            function.graph.nodes().zip(templates).filter(|(_, t)| t.as_ref().is_some_and(|t| t.is_referred));
        module.referred.extend(referred.map(|((_, node), _)| node.op.name));
    }
    let names: Vec<String> = functions.iter().map(|f| module.names.fresh(f.name)).collect();
    let mut bodies = Vec::with_capacity(functions.len());
    for ((function, mut templates), name) in functions.iter().zip(templates).zip(names) {
        let steps = steps(target, function, &mut templates, device);
        bodies.push(FunctionWriter::write(&mut module, function, name, templates, &steps)?);
    }
    let mut text = module.head();
    let mut origins = Vec::new();
    let mut line = text.matches('\n').count() as u32;
    let mut emitted = Vec::with_capacity(bodies.len());
    for (function, (body, form)) in bodies.into_iter().zip(functions).enumerate() {
        let loops = body.loops.into_iter().map(|lines| ("", lines));
        for (decorator, lines) in loops.chain([(target.decorator, body.lines)]) {
            text.push_str("\n\n");
            line += 2;
            if !decorator.is_empty() {
                text.push_str(decorator);
                text.push('\n');
                line += 1;
            }
            for (content, node) in lines {
                text.push_str(&content);
                text.push('\n');
                line += 1;
                // What is too long for a line is written in several.
                let last = line + content.matches('\n').count() as u32;
                if let Some(node) = node {
                    let (op, place) = (form.graph.node(node).op.name, form.graph.place(node));
                    origins.extend((line..=last).map(|line| {
                        let place = place.clone();
                        Origin { line, function, node, op, place }
                    }));
                }
                line = last;
            }
        }
        emitted.push(body.emitted);
    }
    let is_wide = functions.iter().any(|f| is_wide(f.graph));
    Ok(Source {
        text,
        functions: emitted,
        constants: module.large,
        is_wide,
        referred: module.referred.into_iter().collect(),
        origins,
    })
}

impl<'a> Module<'a> {
    fn new(target: &'a PythonTarget, device: &'a str) -> Self {
        let mut names = Namer::default();
        for (name, _) in target.imports {
            names.reserve(name);
        }
        for name in [overlay::BACKEND, overlay::REFERENCE, "host_call", "mesh"] {
            names.reserve(name);
        }
        if !target.device.is_empty() {
            names.reserve(DEVICE);
        }
        Self {
            target,
            device,
            used: BTreeSet::new(),
            referred: BTreeSet::new(),
            names,
            constants: Vec::new(),
            definitions: Vec::new(),
            large: Vec::new(),
        }
    }
    /// Keeps a name for a function of the module; false if it was given out before.
    pub fn reserve(&mut self, name: &str) -> bool {
        self.names.reserve(name)
    }
    /// A namer for the inside of a function.
    pub fn local_names(&self) -> Namer {
        self.names.clone()
    }
    /// Notes the helpers and imports that a template uses.
    pub fn note(&mut self, template: &Template) {
        for name in template.names() {
            self.note_name(name);
        }
    }
    /// Notes the dtype of a constant that is written outside a template, and the device that it is put on.
    pub fn note_dtype(&mut self, dtype: DType) {
        self.note_name((self.target.dtypes)(dtype));
        self.note_name(DEVICE);
    }
    /// Notes a helper or an import that the text uses.
    pub fn note_name(&mut self, name: &str) {
        let is_known = name.starts_with('_')
            || (name == DEVICE && !self.target.device.is_empty())
            || self.target.imports.iter().any(|(bound, _)| *bound == name);
        if is_known && !self.used.contains(name) {
            self.used.insert(name.to_owned());
        }
    }
    /// Defines what follows from constants alone, once for all calls; its name.
    pub fn formula(&mut self, hint: &str, text: &str, names: &mut Namer) -> String {
        let name = format!("_{}", names.fresh(hint).to_uppercase());
        self.definitions.push(wrapped(format!("{name} = {text}")));
        name
    }
    /// The expression for a constant tensor.
    pub fn constant(&mut self, tensor: &Arc<Tensor>) -> String {
        if tensor.len() <= MAX_INLINE_ELEMENTS {
            self.note_dtype(tensor.dtype());
        }
        if tensor.rank() == 0 {
            return literal::tensor(self.target, tensor);
        }
        if let Some((_, name)) =
            self.constants.iter().find(|(t, _)| Arc::ptr_eq(t, tensor) || t.same_bits(tensor))
        {
            return name.clone();
        }
        let number = self.constants.len() + 1;
        // Arrays without elements would need a method of the framework.
        let is_hollow = tensor.is_empty() && tensor.rank() > 1 && self.target.xp.is_empty();
        let expression = if tensor.len() > MAX_INLINE_ELEMENTS || is_hollow {
            let key = format!("constant_{number}");
            let expression = format!("_CONSTANTS[{}]", python_string(&key));
            self.large.push((key, tensor.clone()));
            self.note_name(DEVICE);
            expression
        } else {
            // Helpers are lower-case functions or have names that say what they are for.
            let name = format!("_CONSTANT_{number}");
            self.definitions.push(wrapped(format!("{name} = {}", literal::tensor(self.target, tensor))));
            name
        };
        self.constants.push((tensor.clone(), expression.clone()));
        expression
    }
    /// Everything above the first function.
    fn head(&self) -> String {
        let chosen = self.target.prelude.choose(self.used.iter().map(String::as_str));
        let mut imports: Vec<&str> = Vec::new();
        for (i, (name, line)) in self.target.imports.iter().enumerate() {
            if i == 0 || self.used.contains(*name) || chosen.imports.contains(line) {
                imports.push(line);
            }
        }
        let own = |line: &&&str| !self.target.imports.iter().any(|(_, l)| l == *line);
        imports.extend(chosen.imports.iter().filter(own));
        imports.sort_by_key(|line| (line.starts_with("from "), *line));
        let mut text = match &self.target.overlay {
            Some(overlay) => format!(
                "# Generated by Mithril. The caller gives the global `backend`: a {}.\n",
                overlay.owner
            ),
            None => format!("# Generated by Mithril. Needs only {}.\n", self.target.title),
        };
        if !self.referred.is_empty() {
            text.push_str(
                "# The caller gives the global `reference` too, which runs what the backend lacks.\n",
            );
        }
        if !self.large.is_empty() {
            text.push_str("# Large constants lie in the file `.npz` beside this one, or in the global dict `_CONSTANTS`.\n");
        }
        for line in imports {
            let _ = writeln!(text, "{line}");
        }
        if self.used.contains(DEVICE) {
            let line = self.target.device.replace("{device}", &python_string(self.device));
            let _ = write!(text, "\n{line}\n");
        }
        for block in &chosen.blocks {
            let _ = write!(text, "\n\n{block}\n");
        }
        if !self.large.is_empty() && !self.target.load.is_empty() {
            let _ = write!(text, "\nif \"_CONSTANTS\" not in globals():\n{}\n", self.target.load);
        }
        if !self.definitions.is_empty() {
            let space = if chosen.blocks.is_empty() { "\n" } else { "\n\n" };
            let _ = writeln!(text, "{space}{}", self.definitions.join("\n"));
        }
        text
    }
}

/// The templates of all nodes that matter; one error names all that have no lowering.
pub fn lower_all(target: &PythonTarget, functions: &[Function<'_>]) -> Result<Vec<Vec<Option<Template>>>> {
    let mut missing = Vec::new();
    let mut all = Vec::with_capacity(functions.len());
    for function in functions {
        let mut templates: Vec<Option<Template>> = Vec::with_capacity(function.graph.nodes().len());
        let live = live_nodes(function);
        let donations = Donations::of(function, &live);
        for (id, _) in function.graph.nodes() {
            let lowered = || {
                let in_place = donations.lower(target, function, id);
                in_place.or_else(|| template::lower(target, function.graph, id))
            };
            let template = live[id.index()].then(lowered).flatten();
            if template.is_none() && live[id.index()] {
                missing.push((function.graph, id));
            }
            templates.push(template);
        }
        all.push(templates);
    }
    if missing.is_empty() { Ok(all) } else { Err(unsupported(target, &missing)) }
}

/// The order of the statements of a function; nodes that are computed in one call get the template of that.
fn steps(
    target: &PythonTarget,
    function: &Function<'_>,
    templates: &mut [Option<Template>],
    device: &str,
) -> Vec<Step> {
    if !function.foreach {
        return loops::schedule(target, function, &live_nodes(function), templates);
    }
    let steps = foreach::schedule(target, function, &live_nodes(function), device);
    for step in &steps {
        if let Step::Group(group) = step {
            for id in &group.nodes {
                templates[id.index()] = Some(group.template.clone());
            }
        }
    }
    steps
}

fn is_wide(graph: &Graph) -> bool {
    let mut values = graph.values().filter_map(|(_, v)| v.ty.as_ref());
    values.any(|ty| matches!(ty.dtype, DType::U64 | DType::I64 | DType::F64))
}

/// The nodes that results depend on.
fn live_nodes(function: &Function<'_>) -> Vec<bool> {
    let graph = function.graph;
    let mut values = vec![false; graph.values().len()];
    let (dicts, states) = results(function);
    for (_, v) in dicts.iter().flatten().chain(&states) {
        values[v.index()] = true;
    }
    let mut nodes = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().rev() {
        if node.outputs.iter().any(|v| values[v.index()]) {
            nodes[id.index()] = true;
            for v in &node.inputs {
                values[v.index()] = true;
            }
        }
    }
    nodes
}

fn unsupported(target: &PythonTarget, missing: &[(&Graph, NodeId)]) -> Error {
    // Op and dtype, how often, and where first; in order of the first.
    let mut kinds: Vec<(&str, &str, usize, String)> = Vec::new();
    for (graph, id) in missing {
        let node = graph.node(*id);
        let mut types = node.inputs.iter().chain(&node.outputs).filter_map(|&v| graph.ty(v));
        let lacking = types.clone().find(|ty| (target.dtypes)(ty.dtype).is_empty());
        let dtype = lacking.or_else(|| types.next()).map_or("", |ty| ty.dtype.name());
        match kinds.iter_mut().find(|(op, d, ..)| *op == node.op.name && *d == dtype) {
            Some(kind) => kind.2 += 1,
            None => kinds.push((node.op.name, dtype, 1, place_text(graph, *id))),
        }
    }
    let ops = if kinds.len() == 1 { "an op" } else { "some ops" };
    let mut error = Error::new(Code::Unsupported, format!("{} cannot run {ops} of this model", target.title));
    for (op, dtype, count, place) in kinds {
        let times = if count == 1 { String::new() } else { format!(", {count} times, first") };
        error = error.note(format!("`{op}` of {dtype}{times}{place}"));
    }
    let (graph, first) = missing[0];
    error.at(graph.place(first)).help("use another backend, or write the model with other ops")
}

fn place_text(graph: &Graph, node: NodeId) -> String {
    let place = graph.place(node);
    let path = place.path.as_deref().filter(|p| !p.is_empty()).map(|p| format!(" in `{p}`"));
    let line = place.line.as_ref().map(|line| format!(" at {line}"));
    path.unwrap_or_default() + &line.unwrap_or_default()
}
