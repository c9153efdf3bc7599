//! Lowering: a graph of known sizes becomes a program in which every node is a loop nest or a call.

use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{COTANGENT, Def, Node, Role};
use mithril_ir::loops::{self, LoopArg, LoopCx, Step as OpStep};
use mithril_ir::lowering::LoweringRule;
use mithril_ir::{DType, Dim, Graph, Lit, NodeId, Place as Origin, TensorType, ValueId};

use crate::c::ir::expr::{BufferId, Call, Expr, Index, Var, arithmetic};
use crate::c::ir::program::{
    LoopBuffer, LoopMemory, LoopPlace, LoopProgram, LoopStep, LoopWork, Nest, Place,
};
use crate::c::syntax::template::template;
use crate::ids::{Id as _, InputId, OutputId};

/// Whether the target can write a node as it is.
pub fn can_lower(graph: &Graph, node: NodeId) -> bool {
    let op = graph.node(node).op;
    match (arguments(graph, graph.node(node)), op.loops) {
        (Ok((args, outputs)), Some(loops)) => loops(&LoopCx::new(op, &args, &outputs, 0)).is_ok(),
        // Sizes are not known yet.
        (Err(_), Some(_)) => true,
        (Ok((_, outputs)), None) => outputs.len() == 1 && template(graph, node).is_some(),
        (Err(_), None) => !matches!(op.lowering.c, LoweringRule::None),
    }
}

/// Whether a value is the same at every call of a model that is not trained: a parameter, or a state of floats that the
/// model never replaces. (The state of random numbers is an integer; the caller counts it up.)
pub fn is_fixed(graph: &Graph, v: ValueId) -> bool {
    match graph.value(v).def {
        Def::Input(Role::Param) => true,
        Def::Input(Role::State) => {
            graph.ty(v).is_some_and(|ty| ty.dtype.is_float())
                && graph.updates.iter().all(|(old, _)| *old != v)
        }
        _ => false,
    }
}

/// Makes a program of a graph; `in_place` if new states may take the place of the old ones. Ops that cannot be written
/// are listed in one error.
pub fn lower(graph: &Graph, in_place: bool) -> Result<LoopProgram> {
    let missing: Vec<NodeId> = graph.nodes().map(|(n, _)| n).filter(|&n| !can_lower(graph, n)).collect();
    if !missing.is_empty() {
        return Err(cannot_write(graph, &missing));
    }
    let mut lowering =
        LoweringContext { graph, program: LoopProgram::default(), at: vec![None; graph.values().len()] };
    for (i, &v) in graph.inputs.iter().enumerate() {
        let buffer = lowering.buffer_of(v, "input", Place::Input(InputId::new(i)))?;
        if matches!(graph.value(v).def, Def::Input(Role::Cotangent)) {
            // Otherwise it has the name of the output that it belongs to.
            lowering.program.buffers[buffer].name.insert_str(0, COTANGENT);
        }
    }
    for (n, node) in graph.nodes() {
        lowering.node(n, node).map_err(|e| e.at(graph.place(n)))?;
    }
    let outputs = graph.outputs.iter().map(|(name, &v)| (name.to_string(), v));
    let states = graph.updates.iter().map(|&(old, new)| {
        let name = graph.value(old).name.as_deref().unwrap_or("state");
        (format!("next {name}"), new)
    });
    for (i, (name, v)) in outputs.chain(states).enumerate() {
        lowering.result(OutputId::new(i), &name, v)?;
    }
    if in_place {
        lowering.updates();
    }
    Ok(lowering.program)
}

fn cannot_write(graph: &Graph, nodes: &[NodeId]) -> Error {
    let mut names: Vec<&str> = nodes.iter().map(|&n| graph.node(n).op.name).collect();
    names.sort_unstable();
    names.dedup();
    let ops = names.join(", ");
    let error = Error::new(Code::Unsupported, format!("C cannot run {ops} of this model"))
        .help("run the model on another backend, or write the op by other ops");
    nodes.iter().fold(error, |e, &n| e.note(format!("{} in {}", graph.node(n).op.name, path(graph.place(n)))))
}

fn path(origin: &Origin) -> String {
    origin.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("the model").to_owned()
}

type Types = Vec<(DType, Vec<i64>)>;

/// Arguments and outputs of a node, for the tensor expressions of its op.
pub fn arguments(graph: &Graph, node: &Node) -> Result<(Vec<LoopArg>, Types)> {
    let args = node.inputs.iter().enumerate().map(|(i, &v)| {
        Ok(match (&graph.value(v).def, graph.ty(v)) {
            (Def::Const(lit), _) if !node.op.takes_tensor(i) => LoopArg::Lit(lit.clone()),
            (_, Some(ty)) => LoopArg::Tensor(ty.dtype, sizes(ty)?),
            (Def::Const(lit), None) => LoopArg::Lit(lit.clone()),
            _ => return Err(Error::internal("a value without a type is lowered")),
        })
    });
    let args = args.collect::<Result<Vec<_>>>()?;
    let outputs = node.outputs.iter().map(|&v| {
        let ty = graph.ty(v).ok_or_else(|| Error::internal("an output without a type is lowered"))?;
        Ok((ty.dtype, sizes(ty)?))
    });
    Ok((args, outputs.collect::<Result<_>>()?))
}

/// The sizes of a type, which have to be numbers.
pub fn sizes(ty: &TensorType) -> Result<Vec<i64>> {
    let known = |d: &Dim| {
        d.known().ok_or_else(|| {
            Error::new(Code::UnknownShape, format!("the size {d} is not a number"))
                .help("C is written for known sizes: give the shapes of the inputs when compiling")
        })
    };
    ty.shape.iter().map(known).collect()
}

struct LoweringContext<'a> {
    graph: &'a Graph,
    program: LoopProgram,
    /// The buffer of each value.
    at: Vec<Option<BufferId>>,
}

impl LoweringContext<'_> {
    fn buffer_of(&mut self, v: ValueId, name: &str, place: LoopPlace) -> Result<BufferId> {
        if let Some(buffer) = self.at[v.index()] {
            return Ok(buffer);
        }
        let ty = self.graph.ty(v).ok_or_else(|| Error::internal("a value without a type is lowered"))?;
        let name = self.graph.value(v).name.as_deref().unwrap_or(name);
        let is_param = is_fixed(self.graph, v);
        let buffer = LoopBuffer {
            name: name.to_owned(),
            dtype: ty.dtype,
            shape: sizes(ty)?,
            place,
            is_param,
            blocks: None,
        };
        let buffer = self.add(buffer);
        self.at[v.index()] = Some(buffer);
        Ok(buffer)
    }
    fn add(&mut self, buffer: LoopBuffer) -> BufferId {
        self.program.buffers.push(buffer)
    }
    fn step(&mut self, name: &str, origin: &str, work: LoopWork) {
        self.program.steps.push(LoopStep { name: name.to_owned(), origin: origin.to_owned(), work });
    }
    /// The buffers of the tensors among the inputs; those of literals are never asked for.
    fn inputs(&mut self, node: &Node) -> Result<Vec<BufferId>> {
        let mut inputs = Vec::new();
        for &v in &node.inputs {
            inputs.push(match &self.graph.value(v).def {
                Def::Const(Lit::Tensor(t)) => self.buffer_of(v, "constant", Place::Constant(t.clone()))?,
                Def::Const(_) => BufferId::new(usize::MAX),
                _ => self.buffer_of(v, node.op.name, Place::Memory(LoopMemory::Temporary))?,
            });
        }
        Ok(inputs)
    }
    fn node(&mut self, n: NodeId, node: &Node) -> Result<()> {
        let (args, types) = arguments(self.graph, node)?;
        let mut tensors = self.inputs(node)?;
        let cx = LoopCx::new(node.op, &args, &types, self.program.next_var);
        let values = match node.op.loops {
            Some(loops) => loops(&cx)?,
            None => vec![cx.elementwise(&template(self.graph, n).unwrap_or_default())],
        };
        let (vars, temporaries, steps, next) = cx.finish();
        self.program.next_var = next;
        let origin = path(self.graph.place(n));
        let name = node.outputs.first().and_then(|&v| self.graph.value(v).name.as_deref());
        let name = name.unwrap_or(node.op.name);
        for t in temporaries {
            tensors.push(self.add(LoopBuffer::temporary(node.op.name, t.dtype, t.shape)));
        }
        for step in steps {
            let work = match step {
                OpStep::Compute { to, vars, value } => self.nest(tensors[to], vars, &value, &tensors),
                OpStep::Call(call) => call_of(call, &tensors),
            };
            self.step(name, &origin, work);
        }
        for ((&v, vars), value) in node.outputs.iter().zip(vars).zip(&values) {
            let to = self.buffer_of(v, node.op.name, Place::Memory(LoopMemory::Temporary))?;
            let work = self.nest(to, vars, value, &tensors);
            self.step(name, &origin, work);
        }
        Ok(())
    }
    /// A nest whose tensors are buffers, and whose single numbers that are constants are numbers.
    fn nest(&self, to: BufferId, vars: Vec<Var>, value: &loops::Expr, tensors: &[BufferId]) -> LoopWork {
        let value = value.with_tensors(&|number| tensors[number]).map_loads(&|from, at, stored| match &self
            .program
            .buffers[from]
            .place
        {
            Place::Constant(t) if t.len() == 1 => Expr::Number(t.get(0), arithmetic(stored)),
            _ => Expr::Load { from, at, stored },
        });
        let dtype = arithmetic(self.program.buffers[to].dtype);
        LoopWork::Nest(Nest { to, vars, value: value.cast(dtype) })
    }
    /// Makes a value an output of that name: it is computed there, or copied if it already has a place.
    fn result(&mut self, output: OutputId, name: &str, v: ValueId) -> Result<()> {
        let from = match &self.graph.value(v).def {
            Def::Const(lit) => self.constant(v, lit)?,
            _ => self.at[v.index()].ok_or_else(|| Error::internal("an output is computed by no node"))?,
        };
        if self.program.buffers[from].is_temporary() {
            self.program.buffers[from].place = Place::Output(output);
            self.program.buffers[from].name = name.into();
            return Ok(());
        }
        let buffer = LoopBuffer { name: name.into(), ..self.program.buffers[from].clone() };
        let vars = self.program.fresh_vars(buffer.shape.iter().copied());
        let at = vars.iter().map(|&v| Index::var(v)).collect();
        let value = Expr::Load { from, at, stored: buffer.dtype };
        let to = self.add(LoopBuffer { place: Place::Output(output), is_param: false, ..buffer.clone() });
        self.step(&buffer.name, "", LoopWork::Nest(Nest { to, vars, value }));
        Ok(())
    }
    /// Finds the buffers of old and new states.
    fn updates(&mut self) {
        let results = self.graph.outputs.len();
        for (i, (old, _)) in self.graph.updates.iter().enumerate() {
            let is_new = |b: &LoopBuffer| b.place == Place::Output(OutputId::new(results + i));
            let new = self.program.buffers.position(is_new);
            self.program.updates.extend(self.at[old.index()].zip(new));
        }
    }
    fn constant(&mut self, v: ValueId, lit: &Lit) -> Result<BufferId> {
        let tensor = match lit {
            Lit::Tensor(t) => t.clone(),
            other => std::sync::Arc::new(mithril_ir::interp::number(other, None)?),
        };
        if matches!(lit, Lit::Tensor(_)) {
            return self.buffer_of(v, "constant", Place::Constant(tensor));
        }
        let buffer = LoopBuffer::temporary("constant", tensor.dtype(), Vec::new());
        Ok(self.add(LoopBuffer { place: Place::Constant(tensor), ..buffer }))
    }
}

/// A call, whose tensors are buffers.
fn call_of(call: loops::PreludeCall, tensors: &[BufferId]) -> LoopWork {
    let args = call.args.into_iter().map(|arg| arg.with_tensor(&|number| tensors[number]));
    LoopWork::Call(Call { function: call.function, args: args.collect(), scratch: call.scratch })
}
