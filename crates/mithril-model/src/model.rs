//! The logical model: a value that holds either one op or named children and the connections between them.
//!
//! A [`Model`] is cheap to copy and copied on write: adding it to another never changes it. A *leaf* is one op
//! (or one function of literals) with settings for its arguments; a *composite* has children, and a solver in
//! which the relations of everything below are entered at once.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use mithril_ir::error::{Line, nearest};
use mithril_ir::op::{Attr, OpDef, PortKind};
use mithril_ir::{Code, Error, Lit, Result, Role};
use mithril_solve::{Slot, Solver};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::key::Declared;
use crate::literal_fn::LiteralFn;
use crate::names;

/// Models nest at most this deep.
pub const MAX_DEPTH: usize = 100;

/// Ops in a model, those of its children included, at most.
pub const MAX_SIZE: usize = 1_000_000;

/// A logical model.
///
/// ```
/// use mithril_model::Model;
/// let model = Model::new().named("mlp").unwrap();
/// assert_eq!(model.to_string(), "Model(name='mlp', 0 layers, inputs=[], outputs=[])");
/// ```
#[derive(Clone)]
pub struct Model(pub(crate) Arc<Inner>);

#[derive(Clone)]
pub(crate) struct Inner {
    /// Stays the same through changes, so that connections know their model.
    pub id: u64,
    pub name: Option<Arc<str>>,
    pub class: Arc<str>,
    /// With what a layer or a model of the zoo was made.
    pub arguments: Arc<[(&'static str, Lit)]>,
    pub depth: usize,
    /// Leaves in it, all levels.
    pub size: usize,
    /// Whether it is a step of an optimizer, which does the same to many arrays.
    pub is_optimizer_step: bool,
    pub body: Body,
}

#[derive(Clone)]
pub(crate) enum Body {
    Leaf(Leaf),
    Composite(Box<Composite>),
}

/// What a leaf computes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prim {
    Op(&'static OpDef),
    Literal(LiteralFn),
}

#[derive(Clone)]
pub(crate) struct Leaf {
    pub prim: Prim,
    /// One per argument of the op.
    pub ports: Vec<LeafPort>,
    pub outputs: Vec<Arc<str>>,
    /// State: the input that is read and the output that replaces it.
    pub updates: Vec<(usize, usize)>,
}

#[derive(Clone)]
pub(crate) struct LeafPort {
    pub name: Arc<str>,
    pub default: Option<Lit>,
    pub declared: Declared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EdgeId(pub u32);

impl EdgeId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What stands at an input of a child.
#[derive(Clone, Debug)]
pub(crate) enum Bound {
    /// The default of the port.
    Default,
    Lit(Lit),
    Edge(EdgeId),
}

#[derive(Clone)]
pub(crate) struct Child {
    pub name: Arc<str>,
    pub model: Model,
    pub inputs: SmallVec<[Bound; 4]>,
    pub outputs: SmallVec<[EdgeId; 1]>,
    pub line: Option<Line>,
}

/// Name of a connection; those that follow from a child are made when asked for.
#[derive(Clone, Debug)]
pub(crate) enum Label {
    Name(Arc<str>),
    Input { child: u32, port: u32 },
    Output { child: u32, port: u32 },
}

#[derive(Clone)]
pub(crate) struct Edge {
    pub label: Label,
    /// Output that feeds it.
    pub source: Option<(u32, u32)>,
    /// Inputs that it feeds.
    pub users: SmallVec<[(u32, u32); 2]>,
    /// Constant value, or the default of an input.
    pub value: Option<Lit>,
    /// Said by the user about this connection.
    pub declared: Declared,
    /// Role and initial value that follow from the ports it feeds.
    pub inherited: Declared,
    /// Whether a part that it feeds has frozen it.
    pub inherits_frozen: bool,
    pub expose: Option<bool>,
    pub slot: Slot,
}

impl Edge {
    /// What an input is for. A parameter of a layer that is declared not to be differentiable stays a parameter.
    pub fn role(&self) -> Role {
        match (self.declared.role, self.inherited.role) {
            (Some(Role::Data), Some(Role::Param)) => Role::Param,
            (declared, inherited) => declared.or(inherited).unwrap_or(Role::Data),
        }
    }
    /// Whether it is a parameter that training leaves as it is.
    pub fn is_frozen(&self) -> bool {
        self.role() == Role::Param
            && match self.declared.role {
                Some(Role::Data) => true,
                Some(_) => false,
                None => self.inherits_frozen,
            }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Composite {
    pub children: Vec<Child>,
    pub by_name: FxHashMap<Arc<str>, u32>,
    /// Next number for children of one base name.
    pub counters: FxHashMap<Arc<str>, u32>,
    pub edges: Vec<Edge>,
    pub named: FxHashMap<Arc<str>, EdgeId>,
    /// First parts of given names with dots, which no child may have as its name.
    pub dotted: FxHashMap<Arc<str>, u32>,
    /// Outputs as set by the user.
    pub chosen: Option<Vec<(Arc<str>, EdgeId)>>,
    /// First output of the child added last.
    pub last: Option<EdgeId>,
    /// Expressions that are part of the model already, by identity.
    pub calls: FxHashMap<u64, u32>,
    /// Free-standing inputs that are part of the model already, by identity.
    pub keys: FxHashMap<u64, EdgeId>,
    pub updates: Vec<(EdgeId, EdgeId)>,
    pub solver: Solver,
    pub cache: Cache,
}

/// What follows from the rest of a composite; dropped at every change.
#[derive(Clone, Default)]
pub(crate) struct Cache {
    ports: OnceLock<Vec<EdgeId>>,
    outputs: OnceLock<Vec<(Arc<str>, EdgeId)>>,
}

pub(crate) fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// An empty model.
    pub fn new() -> Self {
        Self::with_class("Model")
    }
    /// An empty model of that class, whose name children take.
    pub fn with_class(class: &str) -> Self {
        Self::from_body(class, Body::Composite(Box::default()))
    }
    /// Whether it is a step of an optimizer ([`crate::optimizers::join`]): a target may compute like ops of its
    /// parameters together.
    pub fn is_optimizer_step(&self) -> bool {
        self.0.is_optimizer_step
    }
    pub(crate) fn from_body(class: &str, body: Body) -> Self {
        let size = usize::from(matches!(body, Body::Leaf(_)));
        Self(Arc::new(Inner {
            id: new_id(),
            name: None,
            class: class.into(),
            arguments: Arc::default(),
            depth: 1,
            size,
            is_optimizer_step: false,
            body,
        }))
    }
    /// The model with that name; where it is added, the name becomes a part of paths.
    pub fn named(mut self, name: impl AsRef<str>) -> Result<Self> {
        self.set_name(Some(name.as_ref()))?;
        Ok(self)
    }
    /// Gives the model a name, or takes it away.
    pub fn set_name(&mut self, name: Option<&str>) -> Result<()> {
        if let Some(name) = name {
            names::check_child(name)?;
        }
        self.inner_mut().name = name.map(Into::into);
        Ok(())
    }
    /// The name, if one was given.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }
    /// Class: that of a layer, or `Model`.
    pub fn class(&self) -> &str {
        &self.0.class
    }
    /// The arguments that a layer with a definition of its own, or a model of the zoo, was made with, defaults included;
    /// of other models, and of those that were saved and loaded, none.
    pub fn arguments(&self) -> &[(&'static str, Lit)] {
        &self.0.arguments
    }
    pub(crate) fn made_with(mut self, arguments: Vec<(&'static str, Lit)>) -> Self {
        self.inner_mut().arguments = arguments.into();
        self
    }
    /// The model as another class (a subclass in the host language).
    #[must_use]
    pub fn of_class(mut self, class: &str) -> Self {
        self.inner_mut().class = class.into();
        self
    }
    /// The op, if the model is a single one.
    pub fn op(&self) -> Option<&'static OpDef> {
        match &self.0.body {
            Body::Leaf(Leaf { prim: Prim::Op(op), .. }) => Some(op),
            _ => None,
        }
    }
    /// Whether both are the same value in memory.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Number of direct children.
    pub fn len(&self) -> usize {
        self.composite().map_or(1, |c| c.children.len())
    }
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Direct children by name, in the order of adding.
    pub fn children(&self) -> impl Iterator<Item = (&str, &Model)> {
        self.composite().into_iter().flat_map(|c| c.children.iter().map(|c| (&*c.name, &c.model)))
    }
    /// The constant of that path (`h.0.attn.mask`): a named connection of a part that holds a value and no other part feeds.
    pub fn constant(&self, path: &str) -> Option<&Lit> {
        let c = self.composite()?;
        if let Some(edge) = c.named.get(path) {
            let edge = &c.edges[edge.index()];
            return edge.value.as_ref().filter(|_| edge.source.is_none());
        }
        let (name, rest) = path.split_once('.')?;
        let child = &c.children[*c.by_name.get(name)? as usize];
        let is_replaced = |port: usize| !matches!(child.inputs.get(port), None | Some(Bound::Default));
        child.model.constant(rest).filter(|_| !child.model.find_port(rest).is_some_and(is_replaced))
    }
    /// The part of that path (`h.0.attn`).
    pub fn child(&self, path: &str) -> Result<&Model> {
        let mut model = self;
        for part in path.split('.') {
            let c = model.composite();
            let child = c.and_then(|c| Some(&c.children[*c.by_name.get(part)? as usize].model));
            model = child.ok_or_else(|| {
                let names = model.children().map(|(n, _)| n.to_owned()).collect::<Vec<_>>();
                unknown("part", path, &self.to_string(), names.iter().map(String::as_str))
            })?;
        }
        Ok(model)
    }
    /// Names of all inputs, in order of appearance; those with a constant value or default are left out.
    pub fn inputs(&self) -> Vec<Arc<str>> {
        (0..self.port_count())
            .filter(|&i| self.port_default(i).is_none())
            .map(|i| self.port_name(i))
            .collect()
    }
    /// Names of the inputs of that role, in order of appearance.
    pub fn inputs_of(&self, role: Role) -> Vec<Arc<str>> {
        let free = |i: &usize| self.port_default(*i).is_none() && self.port_role(*i) == role;
        (0..self.port_count()).filter(free).map(|i| self.port_name(i)).collect()
    }
    /// Names of the parameters that training leaves as they are.
    pub fn frozen(&self) -> Vec<Arc<str>> {
        let ports = (0..self.port_count()).filter(|&i| self.is_port_frozen(i));
        ports.map(|i| self.port_name(i)).collect()
    }
    /// Names of the inputs that are learned.
    pub fn parameters(&self) -> Vec<Arc<str>> {
        self.inputs_of(Role::Param)
    }
    /// Names of the outputs.
    pub fn outputs(&self) -> Vec<Arc<str>> {
        (0..self.output_count()).map(|i| self.output_name(i)).collect()
    }
    /// Names of all ports, inputs with defaults included.
    pub fn ports(&self) -> Vec<Arc<str>> {
        (0..self.port_count()).map(|i| self.port_name(i)).chain(self.outputs()).collect()
    }

    pub(crate) fn inner_mut(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }
    pub(crate) fn composite(&self) -> Option<&Composite> {
        match &self.0.body {
            Body::Composite(c) => Some(c),
            Body::Leaf(_) => None,
        }
    }
    /// The composite for a change; a leaf cannot be changed.
    pub(crate) fn composite_mut(&mut self) -> Result<&mut Composite> {
        if self.composite().is_none() {
            return Err(Error::new(
                Code::BadConnection,
                format!("{} is a single layer; nothing can be added to it", self.class()),
            )
            .help("start with `model = Model()` and add the layer to it"));
        }
        match &mut self.inner_mut().body {
            Body::Composite(c) => {
                c.cache = Cache::default();
                Ok(c)
            }
            Body::Leaf(_) => Err(Error::internal("a composite became a leaf")),
        }
    }

    // The ports of a leaf are those of the op; the ports of a composite are its connections without a source.

    pub(crate) fn port_count(&self) -> usize {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.ports.len(),
            Body::Composite(c) => c.ports().len(),
        }
    }
    pub(crate) fn port_name(&self, i: usize) -> Arc<str> {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.ports[i].name.clone(),
            Body::Composite(c) => c.edge_name(c.ports()[i]),
        }
    }
    pub(crate) fn port_default(&self, i: usize) -> Option<&Lit> {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.ports[i].default.as_ref(),
            Body::Composite(c) => c.edge(c.ports()[i]).value.as_ref(),
        }
    }
    pub(crate) fn port_role(&self, i: usize) -> Role {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.ports[i].declared.role.unwrap_or(Role::Data),
            Body::Composite(c) => c.edge(c.ports()[i]).role(),
        }
    }
    pub(crate) fn is_port_frozen(&self, i: usize) -> bool {
        match &self.0.body {
            Body::Leaf(_) => false,
            Body::Composite(c) => c.edge(c.ports()[i]).is_frozen(),
        }
    }
    pub(crate) fn port_init(&self, i: usize) -> Option<&crate::init::Init> {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.ports[i].declared.init.as_ref(),
            Body::Composite(c) => {
                let edge = c.edge(c.ports()[i]);
                edge.declared.init.as_ref().or(edge.inherited.init.as_ref())
            }
        }
    }
    /// What an input takes, as the first op that reads it says.
    pub(crate) fn port_kind(&self, i: usize) -> PortKind {
        let (mut model, mut i) = (self, i);
        loop {
            match &model.0.body {
                Body::Leaf(leaf) => {
                    return match leaf.prim {
                        Prim::Op(op) => op.port_of(i).map_or(PortKind::Attr(Attr::Any), |p| p.kind),
                        Prim::Literal(LiteralFn::Shape) => PortKind::Tensor(mithril_ir::Kinds::ANY),
                        Prim::Literal(_) => PortKind::Attr(Attr::Any),
                    };
                }
                Body::Composite(c) => {
                    let Some(&(child, port)) = c.edge(c.ports()[i]).users.first() else {
                        return PortKind::Tensor(mithril_ir::Kinds::ANY);
                    };
                    model = &c.children[child as usize].model;
                    i = port as usize;
                }
            }
        }
    }
    pub(crate) fn is_attr(&self, i: usize) -> bool {
        matches!(self.port_kind(i), PortKind::Attr(_))
    }
    pub(crate) fn find_port(&self, name: &str) -> Option<usize> {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.ports.iter().position(|p| &*p.name == name),
            Body::Composite(c) => c.ports().binary_search(&c.find(name)?).ok(),
        }
    }
    pub(crate) fn output_count(&self) -> usize {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.outputs.len(),
            Body::Composite(c) => c.outputs().len(),
        }
    }
    pub(crate) fn output_name(&self, i: usize) -> Arc<str> {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.outputs[i].clone(),
            Body::Composite(c) => c.outputs()[i].0.clone(),
        }
    }
    pub(crate) fn find_output(&self, name: &str) -> Option<usize> {
        match &self.0.body {
            Body::Leaf(leaf) => leaf.outputs.iter().position(|n| &**n == name),
            Body::Composite(c) => c.outputs().iter().position(|(n, _)| &**n == name),
        }
    }
    /// Inputs that data flows into: no literal arguments, no parameters or states.
    pub(crate) fn data_ports(&self) -> Vec<usize> {
        (0..self.port_count())
            .filter(|&i| {
                self.port_default(i).is_none() && self.port_role(i) == Role::Data && !self.is_attr(i)
            })
            .collect()
    }
    /// The error that no port is called `name`.
    #[cold]
    pub(crate) fn no_port(&self, name: &str) -> Error {
        let ports = self.ports();
        unknown("port", name, &self.title(), ports.iter().map(|p| &**p))
    }
    /// Class and name for messages.
    pub(crate) fn title(&self) -> String {
        match self.name() {
            Some(name) => format!("{} `{name}`", self.class()),
            None => self.class().to_owned(),
        }
    }
}

/// The error that there is no `kind` called `name` in `owner`.
#[cold]
pub(crate) fn unknown<'a>(
    kind: &str,
    name: &str,
    owner: &str,
    candidates: impl Iterator<Item = &'a str> + Clone,
) -> Error {
    let error = Error::new(Code::UnknownName, format!("{owner} has no {kind} called {name:?}"));
    if let Some(near) = nearest(name, candidates.clone()) {
        return error.help(format!("did you mean {near:?}?"));
    }
    let mut all: Vec<&str> = candidates.take(21).collect();
    let more = if all.len() > 20 { ", …" } else { "" };
    all.truncate(20);
    error.help(if all.is_empty() {
        "it has none".into()
    } else {
        format!("it has: {}{more}", all.join(", "))
    })
}

impl Composite {
    pub fn edge(&self, e: EdgeId) -> &Edge {
        &self.edges[e.index()]
    }
    /// Connections without a source: the inputs, in order of appearance.
    pub fn ports(&self) -> &[EdgeId] {
        self.cache.ports.get_or_init(|| {
            let ids = (0..self.edges.len()).map(|i| EdgeId(i as u32));
            ids.filter(|&e| self.edge(e).source.is_none()).collect()
        })
    }
    pub fn outputs(&self) -> &[(Arc<str>, EdgeId)] {
        self.cache.outputs.get_or_init(|| self.find_outputs())
    }
    fn find_outputs(&self) -> Vec<(Arc<str>, EdgeId)> {
        if let Some(chosen) = &self.chosen {
            return chosen.clone();
        }
        let is_output = |edge: &Edge| {
            let named = matches!(edge.label, Label::Name(_));
            edge.source.is_some() && edge.expose.unwrap_or(named && edge.users.is_empty())
        };
        let ids = (0..self.edges.len()).map(|i| EdgeId(i as u32));
        let matching: Vec<_> =
            ids.filter(|&e| is_output(self.edge(e))).map(|e| (self.edge_name(e), e)).collect();
        match self.last {
            Some(last) if matching.is_empty() => vec![("output".into(), last)],
            _ => matching,
        }
    }
    pub fn edge_name(&self, e: EdgeId) -> Arc<str> {
        match &self.edge(e).label {
            Label::Name(name) => name.clone(),
            Label::Input { child, port } => {
                let child = &self.children[*child as usize];
                format!("{}.{}", child.name, child.model.port_name(*port as usize)).into()
            }
            Label::Output { child, port } => {
                let child = &self.children[*child as usize];
                format!("{}.{}", child.name, child.model.output_name(*port as usize)).into()
            }
        }
    }
    /// The connection of that name or path (`hidden`, `linear.weight`, `linear.output`).
    pub fn find(&self, name: &str) -> Option<EdgeId> {
        if let Some(&e) = self.named.get(name) {
            return Some(e);
        }
        if let Some((_, e)) = self.chosen.iter().flatten().find(|(output, _)| &**output == name) {
            return Some(*e);
        }
        let (child, port) = name.split_once('.')?;
        let child = &self.children[*self.by_name.get(child)? as usize];
        if let Some(i) = child.model.find_port(port) {
            return match child.inputs[i] {
                Bound::Edge(e) => Some(e),
                _ => None,
            };
        }
        child.model.find_output(port).map(|i| child.outputs[i])
    }
    /// The error that no connection is called `name`.
    #[cold]
    pub fn no_edge(&self, name: &str) -> Error {
        let names: Vec<Arc<str>> =
            (0..self.edges.len().min(2000)).map(|i| self.edge_name(EdgeId(i as u32))).collect();
        unknown("connection", name, "the model", names.iter().map(|n| &**n))
    }
    pub fn lookup(&self, name: &str) -> Result<EdgeId> {
        self.find(name).ok_or_else(|| self.no_edge(name))
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: Vec<Arc<str>>| {
            let mut text = names.iter().take(8).map(|n| &**n).collect::<Vec<_>>().join(", ");
            if names.len() > 8 {
                text.push_str(", …");
            }
            text
        };
        write!(f, "{}(", self.class())?;
        if let Some(name) = self.name() {
            write!(f, "name='{name}', ")?;
        }
        if self.composite().is_some() {
            let n = self.len();
            write!(f, "{n} layer{}, ", if n == 1 { "" } else { "s" })?;
        }
        let inputs = list(self.inputs_of(Role::Data));
        write!(f, "inputs=[{inputs}], outputs=[{}])", list(self.outputs()))
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
