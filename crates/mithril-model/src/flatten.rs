//! From the tree of models to one typed graph.
//!
//! Shapes and dtypes given when compiling join what the model knows, on a copy of its solver; then the tree is
//! walked in an order in which everything is computed before it is read. Arithmetic with shapes is carried out
//! on the way, so that the graph holds only ops.

use std::sync::Arc;

use indexmap::IndexMap;
use mithril_ir::error::Line;
use mithril_ir::op::{OpDef, PortKind};
use mithril_ir::ops::norm::BATCH_GROUPS;
use mithril_ir::{
    Builder, Code, DType, Error, Graph, Lit, Place, Result, Role, Shape, Tensor, TensorType, ValueId, ops,
    random,
};
use mithril_solve::Solver;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::init::Init;
use crate::inputs;
use crate::key::Size;
use crate::leaf::is_random_key;
use crate::limits::SizeLimit;
use crate::literal_fn::LiteralFn;
use crate::model::{Body, Bound, Child, Composite, EdgeId, Label, Leaf, Model, Prim};
use crate::relations;
use crate::summary::Row;

/// What is known when compiling.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "options, each read by itself")]
pub struct FlattenOptions {
    /// Shapes of connections by name.
    pub shapes: Vec<(Arc<str>, Vec<Size>)>,
    /// Dtypes of connections by name.
    pub dtypes: Vec<(Arc<str>, DType)>,
    /// The dtype of inputs about which nothing is said, and that integers become where floats are needed.
    pub float: DType,
    /// The dtype in which products are computed; `float` if `None`.
    pub precision: Option<DType>,
    /// Whether gradients compute intermediate results again instead of keeping them.
    pub checkpoint: bool,
    /// Whether the model is compiled for training (dropout, running statistics).
    pub training: bool,
    /// Into how many groups of examples a batch is divided, each with statistics of its own, where an op computes
    /// statistics of the batch and does not say itself.
    pub batch_groups: usize,
    /// Inputs with constant values.
    pub constants: Vec<(Arc<str>, Arc<Tensor>)>,
    /// Inputs that are learned.
    pub trainable: Vec<Arc<str>>,
    /// Parameters that training leaves as they are, besides those that the model says.
    pub frozen: Vec<Arc<str>>,
    /// Initial values of parameters, instead of those that the model says.
    pub initial: Vec<(Arc<str>, Init)>,
    /// Inputs that are given at each call.
    pub data: Vec<Arc<str>>,
    /// Data whose memory a target may write results into: whoever calls gives it away.
    pub donated: Vec<Arc<str>>,
    /// The outputs to compute; all if `None`.
    pub outputs: Option<Vec<Arc<str>>>,
    /// Outputs that are not computed.
    pub discard: Vec<Arc<str>>,
    /// Other connections to have as outputs too, by name or path.
    pub keep_edges: Vec<Arc<str>>,
    /// Whether constants that follow from a formula are to be written as that, by a target that can.
    pub keep_formulas: bool,
    /// Whether a plain number may stand where an op takes a tensor.
    pub scalar_promotion: bool,
}

impl Default for FlattenOptions {
    fn default() -> Self {
        Self {
            shapes: Vec::new(),
            dtypes: Vec::new(),
            float: DType::F32,
            precision: None,
            checkpoint: false,
            training: false,
            batch_groups: 1,
            constants: Vec::new(),
            trainable: Vec::new(),
            frozen: Vec::new(),
            initial: Vec::new(),
            data: Vec::new(),
            donated: Vec::new(),
            outputs: None,
            discard: Vec::new(),
            keep_edges: Vec::new(),
            keep_formulas: false,
            scalar_promotion: true,
        }
    }
}

/// An input of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Name.
    pub name: Arc<str>,
    /// What it is for.
    pub role: Role,
    /// Dtype and shape.
    pub ty: TensorType,
    /// How it starts, if it is learned or kept.
    pub init: Init,
    /// Whether it is a parameter that training leaves as it is.
    pub is_frozen: bool,
}

/// A flat model.
#[derive(Clone, Debug)]
pub struct Flat {
    /// The typed graph; values are named by their path.
    pub graph: Graph,
    /// Its inputs in order.
    pub inputs: Vec<Input>,
    /// Named connections of the model itself that are tensors.
    pub edges: IndexMap<Arc<str>, ValueId, FxBuildHasher>,
    /// Sizes that it holds for, of those that have symbols.
    pub limits: Vec<SizeLimit>,
}

/// Makes one typed graph of a model.
pub fn flatten(model: &Model, options: &FlattenOptions) -> Result<Flat> {
    let model = model.wrapped()?;
    let c = model.composite().ok_or_else(|| Error::internal("a model is not a composite"))?;
    let (walk, frame) = walk(&model, c, options, None)?;
    walk.finish(c, &frame)
}

/// The parts of a model with what is known of them when compiling.
pub(crate) fn rows(model: &Model, options: &FlattenOptions) -> Result<Vec<Row>> {
    let model = model.wrapped()?;
    let c = model.composite().ok_or_else(|| Error::internal("a model is not a composite"))?;
    let (walk, _) = walk(&model, c, options, Some(Vec::new()))?;
    Ok(walk.rows.unwrap_or_default())
}

fn walk(
    model: &Model,
    c: &Composite,
    options: &FlattenOptions,
    rows: Option<Vec<Row>>,
) -> Result<(Walk, Frame)> {
    if c.children.is_empty() {
        return Err(Error::new(Code::EmptyModel, format!("{model} has nothing to compute"))
            .help("add layers to it with `|=` or `+=`"));
    }
    let solver = solve(c, options)?;
    let outputs = chosen_outputs(c, options)?;
    let needed = needed_children(c, &outputs, options);
    let mut walk = Walk {
        b: Builder::new(options.float),
        training: options.training,
        groups: options.batch_groups,
        inits: FxHashMap::default(),
        frozen: FxHashSet::default(),
        key: None,
        rows,
        counted: FxHashSet::default(),
        limits: Vec::new(),
    };
    let mut env: Vec<Option<ValueId>> = vec![None; c.edges.len()];
    inputs::enter(c, &solver, options, &needed, &mut walk, &mut env)?;
    let names = c
        .edges
        .iter()
        .map(|edge| if let Label::Name(name) = &edge.label { Some(name.clone()) } else { None })
        .collect();
    let mut frame = Frame { env, names, path: "".into(), line: None };
    walk.limit(c, &frame)?;
    walk.composite(c, &mut frame, Some(&needed))?;
    for (name, e) in outputs {
        let v = walk.output(&frame, e, &name)?;
        walk.b.graph.outputs.insert(name, v);
    }
    for name in &options.keep_edges {
        if !walk.b.graph.outputs.contains_key(name) {
            let v = inner_value(&walk.b.graph, name)?;
            walk.b.graph.outputs.insert(name.clone(), v);
        }
    }
    Ok((walk, frame))
}

/// Names of the inputs that the chosen outputs do not depend on.
pub fn unneeded_inputs(model: &Model, options: &FlattenOptions) -> Result<Vec<Arc<str>>> {
    let Body::Composite(c) = &model.0.body else { return Ok(Vec::new()) };
    if options.discard.is_empty() && options.outputs.is_none() {
        return Ok(Vec::new());
    }
    let outputs = chosen_outputs(c, options)?;
    let needed = needed_children(c, &outputs, options);
    let is_needed = |e: EdgeId| {
        let mut users = c.edge(e).users.iter();
        users.any(|&(child, _)| needed[child as usize]) || outputs.iter().any(|(_, o)| *o == e)
    };
    Ok(c.ports().iter().filter(|e| !is_needed(**e)).map(|&e| c.edge_name(e)).collect())
}

/// The solver with everything that is given when compiling.
fn solve(c: &Composite, options: &FlattenOptions) -> Result<Solver> {
    let mut solver = c.solver.clone();
    let place = Place::default();
    let find = |name: &Arc<str>| c.outputs().iter().find(|(n, _)| n == name).map(|(_, e)| *e);
    for (name, shape) in &options.shapes {
        let e = find(name).map_or_else(|| c.lookup(name), Ok)?;
        relations::set_shape(&mut solver, c.edge(e).slot, shape, name, &place)?;
    }
    for (name, dtype) in &options.dtypes {
        let e = find(name).map_or_else(|| c.lookup(name), Ok)?;
        let why = mithril_solve::Why::new(format!("`{name}` was given {dtype} when compiling"));
        solver.set_dtype(c.edge(e).slot, *dtype, why)?;
    }
    for (name, value) in &options.constants {
        let e = c.lookup(name)?;
        relations::set_literal(&mut solver, c.edge(e).slot, &Lit::Tensor(value.clone()), name)?;
    }
    Ok(solver)
}

fn chosen_outputs(c: &Composite, options: &FlattenOptions) -> Result<Vec<(Arc<str>, EdgeId)>> {
    let all = c.outputs();
    let known = |name: &Arc<str>| {
        let names = || all.iter().map(|(n, _)| &**n);
        if all.iter().any(|(n, _)| n == name) {
            return Ok(());
        }
        Err(crate::model::unknown("output", name, "the model", names()))
    };
    options.discard.iter().chain(options.outputs.iter().flatten()).try_for_each(known)?;
    let mut outputs: Vec<(Arc<str>, EdgeId)> = all
        .iter()
        .filter(|(n, _)| options.outputs.as_ref().is_none_or(|keep| keep.contains(n)))
        .filter(|(n, _)| !options.discard.contains(n))
        .cloned()
        .collect();
    for name in &options.keep_edges {
        if outputs.iter().any(|(n, _)| n == name) {
            continue;
        }
        let hidden = all.iter().find(|(n, _)| n == name).map(|(_, e)| *e);
        // Deeper paths are found among the values when the graph is done.
        if let Some(e) = hidden.or_else(|| c.find(name)) {
            outputs.push((name.clone(), e));
        }
    }
    if outputs.is_empty() && options.keep_edges.is_empty() {
        return Err(Error::new(Code::EmptyModel, "no output is left to compute")
            .help("keep at least one of the model's outputs"));
    }
    Ok(outputs)
}

/// Children that the outputs depend on and, in training, what state becomes.
fn needed_children(c: &Composite, outputs: &[(Arc<str>, EdgeId)], options: &FlattenOptions) -> Vec<bool> {
    let mut needed = vec![false; c.children.len()];
    let mut stack: Vec<EdgeId> = outputs.iter().map(|(_, e)| *e).collect();
    if options.training {
        stack.extend(c.updates.iter().map(|(_, new)| *new));
    }
    while let Some(e) = stack.pop() {
        let Some((child, _)) = c.edge(e).source else { continue };
        if std::mem::replace(&mut needed[child as usize], true) {
            continue;
        }
        stack.extend(c.children[child as usize].inputs.iter().filter_map(|b| match b {
            Bound::Edge(e) => Some(*e),
            _ => None,
        }));
    }
    needed
}

/// The values and names of one level of the tree.
struct Frame {
    env: Vec<Option<ValueId>>,
    /// Names that the level above gives.
    names: Vec<Option<Arc<str>>>,
    path: Arc<str>,
    line: Option<Line>,
}

/// The graph being made.
pub(crate) struct Walk {
    pub b: Builder,
    pub training: bool,
    /// Into how many groups a batch is divided that have statistics of their own.
    groups: usize,
    pub inits: FxHashMap<ValueId, Init>,
    /// Parameters that training leaves as they are.
    pub frozen: FxHashSet<ValueId>,
    /// The key of the random ops, once one needs it.
    pub key: Option<ValueId>,
    /// The parts, where a table is wanted.
    rows: Option<Vec<Row>>,
    /// Parameters that a part has been counted for.
    counted: FxHashSet<ValueId>,
    limits: Vec<SizeLimit>,
}

impl Walk {
    /// All children of one level, in an order that depends on the model alone.
    fn composite(&mut self, c: &Composite, frame: &mut Frame, needed: Option<&[bool]>) -> Result<()> {
        for index in order(c) {
            if needed.is_some_and(|n| !n[index]) {
                continue;
            }
            let child = &c.children[index];
            let args = self.arguments(child, frame)?;
            let path: Arc<str> = if frame.path.is_empty() {
                child.name.clone()
            } else {
                format!("{}.{}", frame.path, child.name).into()
            };
            let line = child.line.clone().or_else(|| frame.line.clone());
            let place = Place { path: Some(path.clone()), line: line.clone() };
            let row = self.open_row(child, &path);
            let outs = match &child.model.0.body {
                Body::Leaf(leaf) => {
                    let outs = self.leaf(leaf, &args, &place).map_err(|e| e.at(&place))?;
                    self.name(&child.model, child, &outs, c, frame, &path);
                    outs
                }
                Body::Composite(inner) => {
                    let mut names = vec![None; inner.edges.len()];
                    for ((_, e), outer) in inner.outputs().iter().zip(&child.outputs) {
                        names[e.index()].clone_from(&frame.names[outer.index()]);
                    }
                    let mut env = vec![None; inner.edges.len()];
                    for (&e, v) in inner.ports().iter().zip(&args) {
                        env[e.index()] = Some(*v);
                    }
                    let mut below = Frame { env, names, path, line };
                    self.limit(inner, &below).map_err(|e| e.at(&place))?;
                    self.composite(inner, &mut below, None)?;
                    inner.outputs().iter().map(|(_, e)| below.env[e.index()]).collect()
                }
            };
            self.close_row(row, &args, &outs);
            for (&e, v) in child.outputs.iter().zip(outs) {
                frame.env[e.index()] = v;
            }
        }
        for &(input, new) in &c.updates {
            self.update(frame.env[input.index()], frame.env[new.index()]);
        }
        Ok(())
    }

    /// Checks the sizes that are declared for inputs of one level; those with symbols are checked once they are known.
    fn limit(&mut self, c: &Composite, frame: &Frame) -> Result<()> {
        for (edge, v) in c.edges.iter().zip(&frame.env) {
            let Some(ty) = v.and_then(|v| self.b.graph.ty(v)) else { continue };
            let Label::Name(name) = &edge.label else { continue };
            for limit in &edge.declared.limits {
                let Some(dim) = ty.shape.get(limit.axis) else { continue };
                let path = if frame.path.is_empty() {
                    name.clone()
                } else {
                    format!("{}.{name}", frame.path).into()
                };
                let limit = SizeLimit { path, limit: limit.clone(), dim: dim.clone() };
                limit.check(&|_| None)?;
                if limit.dim.known().is_none() {
                    self.limits.push(limit);
                }
            }
        }
        Ok(())
    }

    fn open_row(&mut self, child: &Child, path: &str) -> Option<usize> {
        let rows = self.rows.as_mut().filter(|_| child.model.literal_fn().is_none())?;
        rows.push(Row {
            path: path.to_owned(),
            depth: path.split('.').count(),
            class: child.model.class().to_owned(),
            shape: String::new(),
            parameters: Some(mithril_ir::Dim::Const(0)),
        });
        Some(rows.len() - 1)
    }
    fn close_row(&mut self, row: Option<usize>, args: &[ValueId], outs: &[Option<ValueId>]) {
        let (Some(i), Some(rows)) = (row, &mut self.rows) else { return };
        let graph = &self.b.graph;
        let shapes: Vec<String> =
            outs.iter().filter_map(|v| graph.ty((*v)?)).map(|ty| ty.shape.to_string()).collect();
        rows[i].shape = shapes.join(", ");
        let mut sum = mithril_ir::Dim::Const(0);
        // The parts of a part have counted what they read.
        for row in rows[i + 1..].iter().filter(|r| r.depth == rows[i].depth + 1) {
            if let Some(n) = &row.parameters {
                sum = &sum + n;
            }
        }
        for &v in args {
            let learned = graph.value(v).def == mithril_ir::graph::Def::Input(Role::Param);
            if let Some(ty) = graph.ty(v).filter(|_| learned)
                && self.counted.insert(v)
            {
                sum = &sum + &ty.shape.numel();
            }
        }
        rows[i].parameters = Some(sum);
    }

    fn update(&mut self, input: Option<ValueId>, new: Option<ValueId>) {
        if let (Some(input), Some(new)) = (input, new)
            && self.training
            && self.b.graph.value(input).def == mithril_ir::graph::Def::Input(Role::State)
        {
            self.b.graph.updates.push((input, new));
        }
    }

    fn arguments(&mut self, child: &Child, frame: &Frame) -> Result<Vec<ValueId>> {
        let mut args = Vec::with_capacity(child.inputs.len());
        for (i, bound) in child.inputs.iter().enumerate() {
            args.push(match bound {
                Bound::Edge(e) => frame.env[e.index()].ok_or_else(|| {
                    relations::no_value(&format!("{}.{}", child.name, child.model.port_name(i)))
                })?,
                Bound::Lit(lit) => self.lit(lit),
                Bound::Default => {
                    let lit = child.model.port_default(i).cloned().unwrap_or(Lit::None);
                    self.lit(&lit)
                }
            });
        }
        Ok(args)
    }
    pub fn lit(&mut self, lit: &Lit) -> ValueId {
        self.b.lit(if *lit == Lit::Training { Lit::Bool(self.training) } else { lit.clone() })
    }

    fn leaf(&mut self, leaf: &Leaf, args: &[ValueId], place: &Place) -> Result<Vec<Option<ValueId>>> {
        let op = match leaf.prim {
            Prim::Op(op) => op,
            Prim::Literal(f) => return Ok(vec![Some(self.literal(f, args, place)?)]),
        };
        self.bias_inits(leaf, args);
        self.b.set_origin(place.clone());
        let args = self.batch_groups(op, args);
        let args = &self.random_key(op, &args, place)?;
        let outs = self.b.push(op, args)?;
        for &(input, output) in &leaf.updates {
            self.update(args.get(input).copied(), outs.get(output).copied());
        }
        Ok((0..leaf.outputs.len()).map(|i| outs.get(i).copied()).collect())
    }

    /// The arguments with the groups of the batch that were left open.
    fn batch_groups(&mut self, op: &'static OpDef, args: &[ValueId]) -> Vec<ValueId> {
        let mut args = args.to_vec();
        let none = self.b.lit(Lit::None);
        if let Some(at) = op.port(BATCH_GROUPS).filter(|&at| self.groups > 1 && args[at] == none) {
            args[at] = self.b.lit(self.groups as i64);
        }
        args
    }

    /// The arguments with the key of a random op that was left open: the key of the whole model, in a stream of
    /// the part's own.
    fn random_key(&mut self, op: &'static OpDef, args: &[ValueId], place: &Place) -> Result<Vec<ValueId>> {
        let mut args = args.to_vec();
        let none = self.b.lit(Lit::None);
        let Some(at) = (0..args.len()).find(|&i| is_random_key(op, i) && args[i] == none) else {
            return Ok(args);
        };
        // Dropout needs a key when training only.
        let trains = |i: usize| self.b.graph.lit(args[i]) == Some(&Lit::Bool(true));
        let optional = matches!(op.ports[at].kind, PortKind::Optional(_));
        if optional && !op.port("training").is_some_and(trains) {
            return Ok(args);
        }
        let key = self.model_key()?;
        // 31 bits, so that targets with 32-bit integers hold it.
        let stream = (random::stream_key(0, place.path.as_deref().unwrap_or(""))[1] as u64 >> 33) as i64;
        let offset = self.b.lit(Tensor::from_parts(&[2], vec![0, stream]));
        args[at] = self.b.push(add()?, &[key, offset])?[0];
        Ok(args)
    }

    /// The key of the model: a state that is another one at each call.
    fn model_key(&mut self) -> Result<ValueId> {
        if let Some(key) = self.key {
            return Ok(key);
        }
        let taken = |name: &str| {
            self.b.graph.inputs.iter().any(|&v| self.b.graph.value(v).name.as_deref() == Some(name))
        };
        let name = if taken("key") { "random_key" } else { "key" };
        let ty = TensorType { dtype: DType::I64, shape: Shape::of([2]) };
        let key = self.b.graph.add_input(name, Role::State, ty);
        self.inits.insert(key, Init::Key);
        // Neighboring seeds meet only after a million calls.
        let step = self.b.lit(Tensor::from_parts(&[2], vec![1_000_003_i64, 0]));
        let next = self.b.push(add()?, &[key, step])?[0];
        self.b.graph.updates.push((key, next));
        self.key = Some(key);
        Ok(key)
    }

    /// Initial values that follow from another parameter of the same layer.
    fn bias_inits(&mut self, leaf: &Leaf, args: &[ValueId]) {
        for (port, v) in leaf.ports.iter().zip(args) {
            let Some(Init::FanInOf(of)) = self.inits.get(v) else { continue };
            if port.declared.init.as_ref() != Some(&Init::FanInOf(of.clone())) {
                continue;
            }
            let other = leaf.ports.iter().position(|p| p.name == *of);
            let shape = other.and_then(|i| self.b.graph.ty(args[i])).and_then(|t| t.shape.known());
            let bound = shape.map_or(0.0, |s| crate::init::fan_in_bound(&s));
            self.inits.insert(*v, Init::Uniform(bound));
        }
    }

    /// A function of literals; what depends on symbolic sizes and has no exact form becomes an op.
    fn literal(&mut self, f: LiteralFn, args: &[ValueId], place: &Place) -> Result<ValueId> {
        let mut lits = Vec::with_capacity(args.len());
        for (i, &v) in args.iter().enumerate() {
            lits.push(match (self.b.graph.lit(v), self.b.graph.ty(v)) {
                (_, Some(ty)) if f == LiteralFn::Shape => relations::shape_lit(&ty.shape),
                (Some(lit), _) if f == LiteralFn::Shape && lit.is_numeric() => Lit::Tuple([].into()),
                (Some(Lit::Tensor(t)), _) if t.rank() == 0 => match t.get(0) {
                    mithril_ir::Scalar::Float(x) => Lit::Float(x),
                    other => other.int().into(),
                },
                (Some(Lit::Tensor(t)), _) if t.rank() == 1 => {
                    Lit::Tuple(t.to_i64s().into_iter().map(Lit::int).collect())
                }
                (Some(lit), _) => lit.clone(),
                (None, _) => {
                    return Err(Error::new(
                        Code::UnknownArgument,
                        format!("argument {i} of {} is computed by the model", f.name()),
                    )
                    .help(
                        "it must be known when compiling: a literal or a shape, not the value of a tensor",
                    ));
                }
            });
        }
        match (f.eval(&lits), f) {
            (Ok(lit), _) => Ok(self.b.lit(lit)),
            (Err(error), LiteralFn::Divide | LiteralFn::Power) if error.code() == Code::UnknownArgument => {
                let name = if f == LiteralFn::Divide { "divide" } else { "power" };
                let op = ops::find(name).ok_or(error)?;
                self.b.set_origin(place.clone());
                Ok(self.b.push(op, args)?[0])
            }
            (Err(error), _) => Err(error),
        }
    }

    fn name(
        &mut self,
        model: &Model,
        child: &Child,
        outs: &[Option<ValueId>],
        c: &Composite,
        frame: &Frame,
        path: &Arc<str>,
    ) {
        for (i, (v, &e)) in outs.iter().zip(&child.outputs).enumerate() {
            let Some(v) = *v else { continue };
            let name: Arc<str> = match (&frame.names[e.index()], &c.edge(e).label) {
                (Some(name), _) => name.clone(),
                (None, Label::Name(name)) if frame.path.is_empty() => name.clone(),
                (None, Label::Name(name)) => format!("{}.{name}", frame.path).into(),
                (None, _) if outs.len() == 1 => path.clone(),
                (None, _) => format!("{path}.{}", model.output_name(i)).into(),
            };
            self.b.graph.name_value(v, name);
        }
    }

    /// The tensor of an output.
    fn output(&mut self, frame: &Frame, e: EdgeId, name: &Arc<str>) -> Result<ValueId> {
        let v = frame.env[e.index()].ok_or_else(|| relations::no_value(name))?;
        let Some(lit) = self.b.graph.lit(v).cloned() else { return Ok(v) };
        let tensor = match &lit {
            Lit::Tensor(_) => return Ok(v),
            Lit::Bool(b) => Tensor::scalar(DType::Bool, *b),
            Lit::Float(x) => Tensor::scalar(self.b.float, *x),
            Lit::Int(dim) if dim.known().is_some() => {
                Tensor::scalar(DType::I64, dim.known().unwrap_or_default())
            }
            Lit::Tuple(items) => {
                let sizes: Option<Vec<i64>> =
                    items.iter().map(|item| if let Lit::Int(d) = item { d.known() } else { None }).collect();
                match sizes {
                    Some(sizes) => Tensor::from_parts(&[sizes.len()], sizes),
                    None => return Err(symbolic_output(name, &lit)),
                }
            }
            _ => return Err(symbolic_output(name, &lit)),
        };
        Ok(self.b.lit(tensor))
    }

    fn finish(self, c: &Composite, frame: &Frame) -> Result<Flat> {
        let mut edges: IndexMap<Arc<str>, ValueId, FxBuildHasher> = IndexMap::default();
        for (i, edge) in c.edges.iter().enumerate() {
            if let (Label::Name(name), Some(v)) = (&edge.label, frame.env[i])
                && self.b.graph.ty(v).is_some()
            {
                edges.insert(name.clone(), v);
            }
        }
        let graph = self.b.graph;
        let inputs = graph
            .inputs
            .iter()
            .filter_map(|&v| {
                let value = graph.value(v);
                let mithril_ir::graph::Def::Input(role) = value.def else { return None };
                Some(Input {
                    name: value.name.clone().unwrap_or_else(|| "".into()),
                    role,
                    ty: value.ty.clone()?,
                    init: self.inits.get(&v).cloned().unwrap_or(Init::Normal(1.0)),
                    is_frozen: self.frozen.contains(&v),
                })
            })
            .collect();
        Ok(Flat { graph, inputs, edges, limits: self.limits })
    }
}

/// A value below the first level, by its path.
fn inner_value(graph: &Graph, name: &str) -> Result<ValueId> {
    let short = name.strip_suffix(".output").unwrap_or(name);
    let tensors = || graph.values().filter(|(_, v)| v.ty.is_some());
    let named = |path: &str| tensors().find(|(_, v)| v.name.as_deref() == Some(path)).map(|(id, _)| id);
    named(name).or_else(|| named(short)).ok_or_else(|| {
        let names: Vec<Arc<str>> = tensors().filter_map(|(_, v)| v.name.clone()).collect();
        crate::model::unknown("connection", name, "the model", names.iter().map(|n| &**n))
    })
}

fn add() -> Result<&'static OpDef> {
    ops::get("add")
}

#[cold]
fn symbolic_output(name: &str, lit: &Lit) -> Error {
    Error::new(Code::UnknownShape, format!("output `{name}` is {lit}, which is not a tensor"))
        .help("pass the shapes of the inputs, so that it becomes numbers")
}

/// Children so that each comes after those it reads; otherwise in the order of adding.
pub(crate) fn order(c: &Composite) -> Vec<usize> {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    let mut waiting = vec![0_u32; c.children.len()];
    for edge in c.edges.iter().filter(|e| e.source.is_some()) {
        for &(user, _) in &edge.users {
            waiting[user as usize] += 1;
        }
    }
    let ready = waiting.iter().enumerate().filter(|(_, n)| **n == 0).map(|(i, _)| Reverse(i));
    let mut ready: BinaryHeap<Reverse<usize>> = ready.collect();
    let mut order = Vec::with_capacity(c.children.len());
    while let Some(Reverse(child)) = ready.pop() {
        order.push(child);
        for e in &c.children[child].outputs {
            for &(user, _) in &c.edge(*e).users {
                waiting[user as usize] -= 1;
                if waiting[user as usize] == 0 {
                    ready.push(Reverse(user as usize));
                }
            }
        }
    }
    order
}

/// The dtype that an input takes when nothing is said.
pub(crate) fn default_dtype(kind: PortKind, float: DType) -> DType {
    match kind {
        PortKind::Tensor(k) | PortKind::Optional(k) | PortKind::Variadic(k) => {
            relations::default_dtype(k, float)
        }
        PortKind::Attr(_) => float,
    }
}

/// A shape without variables, or `None`.
pub(crate) fn decided(shape: &Shape) -> bool {
    !shape.iter().any(mithril_ir::Dim::has_var)
}
