//! The graph: values and nodes in static single assignment form, with typed indices.
//!
//! A node is `(op, inputs, outputs)` and nothing else: attributes are literal values at its inputs. Nodes are in topological
//! order, so that passes walk forward and build a new graph. In a typed graph
//! - every tensor value has a dtype and a shape; dimensions are numbers or named symbols;
//! - operands of an elementwise op have one dtype: conversions are `cast` nodes (numbers may stay literals);
//! - every argument that is not a tensor is a literal.
//!
//! [`crate::verify`] checks this after each pass.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::Place;
use crate::literal::Lit;
use crate::op::OpDef;
use crate::shape::Shape;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);
        impl $name {
            /// From a position.
            pub fn new(i: usize) -> Self {
                Self(u32::try_from(i).unwrap_or(u32::MAX))
            }
            /// The position.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index!(
    /// A value of a graph.
    ValueId
);
index!(
    /// A node of a graph.
    NodeId
);
index!(
    /// An entry of [`Graph::origins`].
    OriginId
);

/// Values at the inputs or outputs of a node.
pub type Values = SmallVec<[ValueId; 4]>;

/// Dtype and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The dtype.
    pub dtype: DType,
    /// The shape.
    pub shape: Shape,
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// The definition of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Def {
    /// An input of the graph.
    Input(Role),
    /// A literal.
    Const(Lit),
    /// An output of a node, by index.
    Node(NodeId, u32),
}

/// Prefix by which an input of role [`Role::Cotangent`] differs from the output whose name it has.
pub const COTANGENT: &str = "cotangent:";

/// The role of an input of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// A parameter, which is learned.
    Param,
    /// Data, passed at each call.
    Data,
    /// State that is kept between calls (running statistics, caches).
    State,
    /// Cotangent of an output.
    Cotangent,
}

/// A value.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its definition.
    pub def: Def,
    /// Its type; `None` for literals that are not tensors.
    pub ty: Option<TensorType>,
    /// Path in the model, e.g. `h.0.attn.c_attn.weight`.
    pub name: Option<Arc<str>>,
}

/// A use of an op.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op.
    pub op: &'static OpDef,
    /// Inputs, one per port; more for a variadic last port.
    pub inputs: Values,
    /// Outputs.
    pub outputs: Values,
    /// The part of the model that it belongs to.
    pub origin: OriginId,
}

/// A graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    values: Vec<Value>,
    nodes: Vec<Node>,
    /// Inputs in order.
    pub inputs: Vec<ValueId>,
    /// Outputs by name, in order.
    pub outputs: IndexMap<Arc<str>, ValueId, FxBuildHasher>,
    /// For each state, its input and the value that replaces it after a call.
    pub updates: Vec<(ValueId, ValueId)>,
    /// Parts of the model, for errors.
    origins: Vec<Place>,
    literals: IndexMap<Lit, ValueId, FxBuildHasher>,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }
    /// The value.
    pub fn value(&self, v: ValueId) -> &Value {
        &self.values[v.index()]
    }
    /// The node.
    pub fn node(&self, n: NodeId) -> &Node {
        &self.nodes[n.index()]
    }
    /// All nodes in order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> + DoubleEndedIterator {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId::new(i), n))
    }
    /// All values in order.
    pub fn values(&self) -> impl ExactSizeIterator<Item = (ValueId, &Value)> + DoubleEndedIterator {
        self.values.iter().enumerate().map(|(i, v)| (ValueId::new(i), v))
    }
    /// Dtype and shape, if the value is a tensor.
    pub fn ty(&self, v: ValueId) -> Option<&TensorType> {
        self.value(v).ty.as_ref()
    }
    /// The literal, if the value is one.
    pub fn lit(&self, v: ValueId) -> Option<&Lit> {
        match &self.value(v).def {
            Def::Const(lit) => Some(lit),
            _ => None,
        }
    }
    /// The node that computes the value.
    pub fn producer(&self, v: ValueId) -> Option<NodeId> {
        match self.value(v).def {
            Def::Node(n, _) => Some(n),
            _ => None,
        }
    }
    /// The place of a node in the model.
    pub fn place(&self, n: NodeId) -> &Place {
        &self.origins[self.node(n).origin.index()]
    }
    /// All places.
    pub fn origins(&self) -> &[Place] {
        &self.origins
    }
    /// Adds a place.
    pub fn add_origin(&mut self, place: Place) -> OriginId {
        if self.origins.last() != Some(&place) {
            self.origins.push(place);
        }
        OriginId::new(self.origins.len() - 1)
    }
    /// Adds an input.
    pub fn add_input(&mut self, name: impl Into<Arc<str>>, role: Role, ty: TensorType) -> ValueId {
        let v = self.add_value(Def::Input(role), Some(ty), Some(name.into()));
        self.inputs.push(v);
        v
    }
    /// Changes name and role of an input.
    pub fn change_input(&mut self, v: ValueId, name: impl Into<Arc<str>>, role: Role) {
        let value = &mut self.values[v.index()];
        value.def = Def::Input(role);
        value.name = Some(name.into());
    }
    /// The value of a literal; equal literals share one value.
    pub fn add_literal(&mut self, lit: Lit) -> ValueId {
        if let Some(&v) = self.literals.get(&lit) {
            return v;
        }
        let ty = match &lit {
            Lit::Tensor(t) => {
                Some(TensorType { dtype: t.dtype(), shape: Shape::of(t.shape().iter().copied()) })
            }
            _ => None,
        };
        let v = self.add_value(Def::Const(lit.clone()), ty, None);
        self.literals.insert(lit, v);
        v
    }
    /// Adds a node whose types are already known; [`crate::build::Builder::push`] infers them.
    pub fn add_node(
        &mut self,
        op: &'static OpDef,
        inputs: Values,
        types: impl IntoIterator<Item = TensorType>,
        origin: OriginId,
    ) -> NodeId {
        let n = NodeId::new(self.nodes.len());
        let outputs = types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| self.add_value(Def::Node(n, i as u32), Some(ty), None))
            .collect();
        self.nodes.push(Node { op, inputs, outputs, origin });
        n
    }
    /// Names a value, unless it already has a name.
    pub fn name_value(&mut self, v: ValueId, name: impl Into<Arc<str>>) {
        let slot = &mut self.values[v.index()].name;
        if slot.is_none() {
            *slot = Some(name.into());
        }
    }
    fn add_value(&mut self, def: Def, ty: Option<TensorType>, name: Option<Arc<str>>) -> ValueId {
        self.values.push(Value { def, ty, name });
        ValueId::new(self.values.len() - 1)
    }
}
