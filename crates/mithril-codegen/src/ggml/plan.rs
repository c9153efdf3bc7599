//! What the runtime follows: values, and the steps that make them.
//!
//! ```text
//! # Sizes are those of ggml: the one that moves fastest is the first.
//! %0 input: f32[64, 10] = input 0
//! %1 h.weight: q8_0[64, 32] = %4 permuted [0, 1]
//! ggml {
//!   %2 = ggml_mul_mat(%1, %0): f32[32, 10]  # h
//!   %3 = custom erf(%2 as f32[10, 32]): f32[32, 10]  # h.erf
//! }
//! return output = %3
//! ```
//!
//! What depends on weights and constants alone comes first, in a part of its own, `prepare { … }`: it runs when weights
//! are packed, and the rest reads what it made.

use std::fmt;
use std::sync::Arc;

use mithril_ir::graph::TensorType;
use mithril_ir::op::OpDef;
use mithril_ir::tensor::Tensor;
use mithril_ir::{DType, Lit, Place};

use super::types::{Element, Type};
use crate::ids::{InputId, OutputId, Table, id};

id!(
    /// A value of a plan.
    PlanValueId
);

/// A graph as steps of ggml and of the host.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// All values; the rest of the plan names them by their ids.
    pub values: Table<PlanValueId, Value>,
    /// The values of the graph's inputs, in order.
    pub inputs: Table<InputId, PlanValueId>,
    /// The outputs by name, in order.
    pub outputs: Vec<(Arc<str>, PlanValueId)>,
    /// Old states (inputs) with what replaces them after a call.
    pub updates: Vec<(PlanValueId, PlanValueId)>,
    /// Donated inputs with the result (outputs, then new states) that is made in their memory.
    pub donated: Vec<(PlanValueId, OutputId)>,
    /// The steps that make values of weights and constants alone, in order: they run once, when weights are packed.
    pub prepared: Vec<Step>,
    /// The steps of a call in order.
    pub steps: Vec<Step>,
    /// Weights that could not be kept in the elements that were wanted, and why.
    pub refused: Vec<(PlanValueId, String)>,
}

/// A value of a plan.
#[derive(Clone, Debug)]
pub struct Value {
    /// A path of the model, or how it came to be; not unique.
    pub name: Arc<str>,
    /// What the graph calls it: dtype and sizes, in the order of the graph.
    pub dtype: DType,
    /// Sizes, the last moves fastest.
    pub shape: Vec<i64>,
    /// How it lies in ggml; `None` for what has no elements.
    pub ty: Option<Type>,
    /// Where it comes from.
    pub source: Source,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// An input of the graph. The runtime converts it to the type it has in ggml.
    Input(InputId),
    /// A constant of the graph.
    Constant(Arc<Tensor>),
    /// A weight (an input) as it is kept: with its dimensions in another order, where ggml wants rows for columns, or
    /// in other elements, which its type says. Made once, when parameters are packed.
    Permuted {
        /// The value.
        of: PlanValueId,
        /// Dimension `i` is dimension `axes[i]` of that value.
        axes: Vec<usize>,
    },
    /// A call of ggml.
    Call,
    /// A step of the host.
    Host,
}

/// A step of a plan.
#[derive(Clone, Debug)]
pub enum Step {
    /// Calls of ggml, which run as one graph.
    Segment(Vec<Call>),
    /// A node that is not a part of a graph of ggml either, since it has several results, no elements, or more operands than
    /// a custom op may have.
    Host(Host),
}

/// A call of a function of ggml.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name of the function; [`super::functions::find`] knows it.
    pub function: &'static str,
    /// What it is called with, after the context.
    pub arguments: Vec<Argument>,
    /// The value that it makes.
    pub result: PlanValueId,
    /// What is computed, where the function is [`CUSTOM`].
    pub custom: Option<Box<Custom>>,
}

/// The name of values that have none in the graph.
pub(super) const UNNAMED: &str = "value";

/// The function of ggml that computes what a [`Custom`] says.
pub const CUSTOM: &str = "ggml_custom_4d";

/// An op of ours inside of a graph of ggml.
#[derive(Clone, Debug)]
pub enum Custom {
    /// A node that ggml cannot say, run by the reference evaluation of its row. The values that it reads are the
    /// arguments of the call, each once.
    Node(Host),
    /// Integers as positions in rows (i32): negative ones count from the end, those beyond the rows are an error before
    /// ggml, which would end the process, sees them.
    Positions {
        /// How many rows there are.
        rows: i64,
        /// Whether a row that occurs twice is an error too: threads write rows in any order.
        distinct: bool,
    },
}

/// An argument of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A value.
    Value(PlanValueId),
    /// No tensor.
    Null,
    /// A number; integers and booleans too.
    Number(f64),
    /// A type of elements.
    Element(Element),
}

/// A node that the reference interpreter runs.
#[derive(Clone, Debug)]
pub struct Host {
    /// The op.
    pub op: &'static OpDef,
    /// What it reads.
    pub inputs: Vec<HostInput>,
    /// Types of what it makes.
    pub types: Vec<TensorType>,
    /// The values that it makes. They have the dtype of the graph; those with a type in ggml are converted to it.
    pub outputs: Vec<PlanValueId>,
    /// Which inputs threads cut along their first axis, as they do the one result; none: one thread does all.
    pub parallel_axis: Vec<bool>,
    /// Where it stands in the model.
    pub place: Place,
}

/// An input of a host step.
#[derive(Clone, Debug)]
pub enum HostInput {
    /// A value, contiguous, which the interpreter sees in this dtype and shape.
    Value(PlanValueId, TensorType),
    /// A literal.
    Literal(Lit),
}

impl Step {
    /// The values that it reads.
    pub fn reads(&self) -> Vec<PlanValueId> {
        match self {
            Self::Segment(calls) => {
                calls.iter().flat_map(|call| &call.arguments).filter_map(Argument::value).collect()
            }
            Self::Host(host) => host.inputs.iter().filter_map(HostInput::value).collect(),
        }
    }
    /// The values that it makes.
    pub fn makes(&self) -> Vec<PlanValueId> {
        match self {
            Self::Segment(calls) => calls.iter().map(|call| call.result).collect(),
            Self::Host(host) => host.outputs.clone(),
        }
    }
}

impl Plan {
    /// The outputs and then the new states.
    pub fn results(&self) -> impl Iterator<Item = PlanValueId> {
        self.outputs.iter().map(|(_, v)| *v).chain(self.updates.iter().map(|(_, new)| *new))
    }
    /// All ggml calls of a call in order.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.steps.iter().flat_map(|step| match step {
            Step::Segment(calls) => calls.as_slice(),
            Step::Host(_) => &[],
        })
    }
    /// The ops that run inside of graphs of ggml as custom ops, in order.
    pub fn customs(&self) -> Vec<&'static str> {
        let name = |call: &Call| match call.custom.as_deref() {
            Some(Custom::Node(node)) => Some(node.op.name),
            _ => None,
        };
        self.calls().filter_map(name).collect()
    }
    /// How many segments a call has.
    pub fn segments(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, Step::Segment(_))).count()
    }
    /// The ops that run on the host at each call, in order.
    pub fn hosted(&self) -> Vec<&'static str> {
        let name = |step: &Step| if let Step::Host(host) = step { Some(host.op.name) } else { None };
        self.steps.iter().filter_map(name).collect()
    }
}

impl Source {
    /// The value that it is made of.
    pub fn of(&self) -> Option<PlanValueId> {
        match self {
            Self::Permuted { of, .. } => Some(*of),
            _ => None,
        }
    }
}

impl Argument {
    /// The value, if it is one.
    pub fn value(&self) -> Option<PlanValueId> {
        if let Self::Value(v) = self { Some(*v) } else { None }
    }
}

impl HostInput {
    /// The value, if it is one.
    pub fn value(&self) -> Option<PlanValueId> {
        if let Self::Value(v, _) = self { Some(*v) } else { None }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(v) => write!(f, "%{v}"),
            Self::Null => f.write_str("NULL"),
            Self::Number(x) => write!(f, "{x}"),
            Self::Element(element) => write!(f, "{element}"),
        }
    }
}

impl fmt::Display for HostInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(v, ty) => write!(f, "%{v} as {ty}"),
            Self::Literal(lit) => write!(f, "{lit}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ty {
            Some(ty) => write!(f, "{ty}"),
            None => write!(f, "{}{:?} on the host", self.dtype, self.shape),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.op.name, list(&self.inputs))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, arguments, custom, .. } = self;
        match custom.as_deref() {
            None => write!(f, "{function}({})", list(arguments)),
            Some(Custom::Node(node)) => write!(f, "custom {node}"),
            Some(Custom::Positions { rows, distinct }) => {
                let name = if *distinct { "distinct" } else { "positions" };
                write!(f, "custom {name}({}, {rows})", list(arguments))
            }
        }
    }
}

fn list(items: &[impl fmt::Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Sizes are those of ggml: the one that moves fastest is the first.")?;
        for (i, value) in self.values.entries() {
            let how = match &value.source {
                Source::Input(n) => format!("input {n}"),
                Source::Constant(_) => "constant".to_owned(),
                Source::Permuted { of, axes } => format!("%{of} permuted {axes:?}"),
                Source::Call | Source::Host => continue,
            };
            writeln!(f, "%{i} {}: {value} = {how}", value.name)?;
        }
        if !self.prepared.is_empty() {
            writeln!(f, "prepare {{")?;
            self.write_steps(f, &self.prepared, "  ")?;
            writeln!(f, "}}")?;
        }
        self.write_steps(f, &self.steps, "")?;
        for (name, v) in &self.outputs {
            writeln!(f, "return {name} = %{v}")?;
        }
        for (input, result) in &self.donated {
            writeln!(f, "%{input} becomes result {result} where it lies")?;
        }
        for (old, new) in &self.updates {
            writeln!(f, "update %{old} = %{new}")?;
        }
        Ok(())
    }
}

impl Plan {
    /// The path of what a call makes, if the model knows it.
    fn comment(&self, call: &Call) -> String {
        match &*self.values[call.result].name {
            UNNAMED => String::new(),
            name if name == call.function => String::new(),
            name => format!("  # {name}"),
        }
    }
    fn write_steps(&self, f: &mut fmt::Formatter<'_>, steps: &[Step], indent: &str) -> fmt::Result {
        for step in steps {
            match step {
                Step::Segment(calls) => {
                    writeln!(f, "{indent}ggml {{")?;
                    for call in calls {
                        let value = &self.values[call.result];
                        write!(f, "{indent}  %{} = {call}: {value}", call.result)?;
                        writeln!(f, "{}", self.comment(call))?;
                    }
                    writeln!(f, "{indent}}}")?;
                }
                Step::Host(host) => {
                    let outputs = list(&host.outputs.iter().map(|&v| Argument::Value(v)).collect::<Vec<_>>());
                    writeln!(f, "{indent}{outputs} = host {host}")?;
                }
            }
        }
        Ok(())
    }
}
