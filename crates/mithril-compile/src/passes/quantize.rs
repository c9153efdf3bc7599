//! Quantize: products with parameters are done with weights of 8 bits.
//!
//! A weight `w` becomes inputs `w.int8`, `w.scale` and, for products in integers, `w.total`, which [`Decision`] describes
//! and the caller makes of the parameter. Which weights can be kept so is said by the ops ([`mithril_ir::op::LowBit`]).
//!
//! - [`Scheme::Int8`]: the rows of the other factor are quantized when the product is computed, the products are integers
//!   and summed exactly. Convolutions are computed as by
//! - [`Scheme::Int8Weights`]: the weight is converted to float where it is used.

use std::collections::BTreeMap;
use std::sync::Arc;

use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Graph, Node, NodeId, Role, TensorType, ValueId, Values};
use mithril_ir::op::{LowBit, OpDef};
use mithril_ir::ops::elementwise::{ADD, CAST, MULTIPLY, SUBTRACT};
use mithril_ir::ops::linalg::MATRIX_TRANSPOSE;
use mithril_ir::ops::movement::{RESHAPE, TRANSPOSE};
use mithril_ir::ops::quantized::{DYNAMIC_QUANTIZE, MATMUL_INTEGER};
use mithril_ir::{DType, Dim, Lit, Shape};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::passes::legalize::expand_products;
use crate::rewrite::Rewrite;

/// The most terms of a sum: the products of more bytes could be beyond int32.
const MOST_TERMS: i64 = 1 << 16;

/// How a weight is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In 8 bits, multiplied by numbers of 8 bits.
    Int8,
    /// In 8 bits, converted to float when it is used.
    Int8Weights,
}

impl Scheme {
    /// The scheme of a name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Int8, Self::Int8Weights].into_iter().find(|scheme| scheme.name() == name)
    }
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int8Weights => "int8_weights",
        }
    }
}

/// How the weights with these names are to be kept.
pub type Schemes = BTreeMap<Arc<str>, Scheme>;

/// What became of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its name.
    pub weight: Arc<str>,
    /// How it is kept, or why it stays as it is.
    pub outcome: std::result::Result<Kept, &'static str>,
}

/// The inputs that stand for a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// How it is kept.
    pub scheme: Scheme,
    /// The axis that counts the outputs, each of which has a scale.
    pub axis: usize,
    /// The input with the numbers from -127 to 127: those of the largest size of an output are -127 or 127.
    pub numbers: Arc<str>,
    /// The input with the scales, `[outputs]`.
    pub scale: Arc<str>,
    /// The input with the sums of the numbers of each output, `[outputs]` of int32; where products are in integers.
    pub total: Option<Arc<str>>,
}

/// The graph with the weights of products in 8 bits, and what became of each weight that is to be.
pub fn quantize(graph: &Graph, float: DType, schemes: &Schemes) -> Result<(Graph, Vec<Decision>)> {
    let graph = &expand_products(graph, float)?;
    let rewrite = Rewrite::new(graph, float);
    let mut pass = Quantize {
        graph,
        rewrite,
        schemes,
        quantized: FxHashMap::default(),
        decisions: Vec::new(),
        of_params: of_params(graph),
    };
    for (n, node) in graph.nodes() {
        pass.rewrite.at(n);
        if !pass.product(node).map_err(|e| e.at(graph.place(n)))? {
            pass.rewrite.copy(n)?;
        }
    }
    Ok((pass.rewrite.finish()?, pass.decisions))
}

/// Which values follow from parameters and constants alone.
fn of_params(graph: &Graph) -> Vec<bool> {
    let is_start = |def: &Def| matches!(def, Def::Input(Role::Param) | Def::Const(_));
    let mut known: Vec<bool> = graph.values().map(|(_, value)| is_start(&value.def)).collect();
    for (_, node) in graph.nodes() {
        let follows = node.inputs.iter().all(|v| known[v.index()]);
        node.outputs.iter().for_each(|v| known[v.index()] = follows);
    }
    known
}

/// The inputs of a quantized weight in the new graph.
#[derive(Clone, Copy)]
struct Inputs {
    numbers: ValueId,
    scale: ValueId,
    total: Option<ValueId>,
}

struct Quantize<'g> {
    graph: &'g Graph,
    rewrite: Rewrite<'g>,
    schemes: &'g Schemes,
    quantized: FxHashMap<(ValueId, usize, Scheme), Inputs>,
    decisions: Vec<Decision>,
    /// Which values follow from parameters and constants alone.
    of_params: Vec<bool>,
}

impl Quantize<'_> {
    /// Computes a node with a weight in 8 bits; false if it has none.
    fn product(&mut self, node: &Node) -> Result<bool> {
        let Some(low_bit) = node.op.low_bit else { return Ok(false) };
        let Some((param, flips)) = self.weight(node.inputs[low_bit.weight]) else {
            self.refuse_computed(node.inputs[low_bit.weight]);
            return Ok(false);
        };
        let Some(name) = self.graph.value(param).name.clone() else { return Ok(false) };
        let Some(&scheme) = self.schemes.get(&name) else { return Ok(false) };
        if let Some(reason) = self.reason(node, low_bit, param, &flips, scheme) {
            self.decide(Decision { weight: name, outcome: Err(reason) });
            return Ok(false);
        }
        let is_integer = scheme == Scheme::Int8 && low_bit.is_product;
        let scheme = if is_integer { scheme } else { Scheme::Int8Weights };
        let axis = if flips.len() % 2 == 1 { 1 - low_bit.outputs } else { low_bit.outputs };
        let inputs = self.inputs(param, &name, axis, scheme)?;
        let result = match inputs.total {
            Some(total) => self.in_integers(node, axis, inputs, total)?,
            None => self.with_floats(node, low_bit, axis, &flips, inputs)?,
        };
        self.rewrite.set(node.outputs[0], result);
        Ok(true)
    }

    /// The parameter that a weight is, and the nodes between them that exchange the axes of a matrix.
    fn weight(&self, v: ValueId) -> Option<(ValueId, Vec<NodeId>)> {
        let (mut v, mut flips) = (v, Vec::new());
        loop {
            if self.graph.value(v).def == Def::Input(Role::Param) {
                flips.reverse();
                return Some((v, flips));
            }
            let n = self.graph.producer(v)?;
            let node = self.graph.node(n);
            let is = |op: &'static OpDef| node.op == op;
            let is_matrix = self.graph.ty(v).is_some_and(|ty| ty.shape.rank() == 2);
            let swaps = is(&MATRIX_TRANSPOSE) || (is(&TRANSPOSE) && self.exchanges(node));
            if !is_matrix || !swaps {
                return None;
            }
            flips.push(n);
            v = node.inputs[0];
        }
    }

    /// Notes that the parameters of which a weight is made stay as they are. What is made of data is not a weight.
    fn refuse_computed(&mut self, weight: ValueId) {
        if !self.of_params[weight.index()] {
            return;
        }
        let (mut open, mut seen) = (vec![weight], FxHashSet::default());
        while let Some(v) = open.pop() {
            if !seen.insert(v) {
                continue;
            }
            open.extend(self.graph.producer(v).into_iter().flat_map(|n| &self.graph.node(n).inputs));
            let value = self.graph.value(v);
            let name = value.name.as_ref().filter(|_| value.def == Def::Input(Role::Param));
            if let Some(weight) = name.filter(|name| self.schemes.contains_key(*name)).cloned() {
                self.decide(Decision {
                    weight,
                    outcome: Err("it is reshaped or changed before its product"),
                });
            }
        }
    }

    /// Whether a transposition of a matrix exchanges its axes.
    fn exchanges(&self, node: &Node) -> bool {
        match node.inputs.get(1).and_then(|&v| self.graph.lit(v)) {
            None | Some(Lit::None) => true,
            Some(Lit::Tuple(axes)) => {
                matches!(&axes[..], [Lit::Int(first), _] if first.known().is_some_and(|n| n.rem_euclid(2) == 1))
            }
            _ => false,
        }
    }

    /// Why a weight cannot be kept so.
    fn reason(
        &self,
        node: &Node,
        low_bit: LowBit,
        param: ValueId,
        flips: &[NodeId],
        scheme: Scheme,
    ) -> Option<&'static str> {
        let ty = self.graph.ty(param)?;
        let is_float = |v: ValueId| self.graph.ty(v).is_none_or(|ty| ty.dtype == DType::F32);
        if ty.dtype != DType::F32 || !node.inputs.iter().chain(&node.outputs).all(|&v| is_float(v)) {
            return Some("its product is not of float32");
        }
        let is_dynamic = scheme == Scheme::Int8 && low_bit.is_product;
        if low_bit.is_product && ty.shape.rank() != 2 {
            return Some("it is not a matrix");
        }
        let axis = if flips.len() % 2 == 1 { 1 - low_bit.outputs } else { low_bit.outputs };
        let terms: Option<i64> =
            ty.shape.iter().enumerate().filter(|(i, _)| *i != axis).map(|(_, n)| n.known()).product();
        match terms {
            None => Some("its size is not known"),
            Some(0) => Some("it has no elements"),
            Some(terms) if is_dynamic && terms > MOST_TERMS => Some("its sums have too many terms"),
            Some(_) => None,
        }
    }

    fn decide(&mut self, decision: Decision) {
        match self.decisions.iter_mut().find(|d| d.weight == decision.weight) {
            // A weight with several uses is kept in 8 bits for those that can have it so.
            Some(known) if known.outcome.is_err() => *known = decision,
            Some(_) => {}
            None => self.decisions.push(decision),
        }
    }

    /// The inputs that stand for a parameter.
    fn inputs(&mut self, param: ValueId, name: &Arc<str>, axis: usize, scheme: Scheme) -> Result<Inputs> {
        if let Some(&known) = self.quantized.get(&(param, axis, scheme)) {
            return Ok(known);
        }
        let shape = self.graph.ty(param).map(|ty| ty.shape.clone());
        let shape = shape.ok_or_else(|| Error::internal("a parameter without a type"))?;
        let outputs = Shape::of([shape[axis].clone()]);
        let other = self.quantized.keys().any(|(known, ..)| *known == param);
        let suffix = if other { format!("_{axis}_{}", scheme.name()) } else { String::new() };
        let mut input = |what: &str, dtype: DType, shape: Shape| {
            let name: Arc<str> = format!("{name}.{what}{suffix}").into();
            let v =
                self.rewrite.builder.graph.add_input(name.clone(), Role::Param, TensorType { dtype, shape });
            (name, v)
        };
        let (numbers, scale) = (input("int8", DType::I8, shape), input("scale", DType::F32, outputs.clone()));
        let total = (scheme == Scheme::Int8).then(|| input("total", DType::I32, outputs));
        let inputs = Inputs { numbers: numbers.1, scale: scale.1, total: total.as_ref().map(|(_, v)| *v) };
        let kept =
            Kept { scheme, axis, numbers: numbers.0, scale: scale.0, total: total.map(|(name, _)| name) };
        if other {
            self.decisions.push(Decision { weight: name.clone(), outcome: Ok(kept) });
        } else {
            self.decide(Decision { weight: name.clone(), outcome: Ok(kept) });
        }
        self.quantized.insert((param, axis, scheme), inputs);
        Ok(inputs)
    }

    fn push(&mut self, op: &'static OpDef, inputs: &[ValueId]) -> Result<ValueId> {
        Ok(self.rewrite.builder.push(op, inputs)?[0])
    }

    fn cast(&mut self, v: ValueId, dtype: DType) -> Result<ValueId> {
        let dtype = self.rewrite.builder.lit(Lit::DType(dtype));
        self.push(&CAST, &[v, dtype])
    }

    /// The product of rows in 8 bits with the weight.
    fn in_integers(&mut self, node: &Node, axis: usize, inputs: Inputs, total: ValueId) -> Result<ValueId> {
        let x = self.rewrite.get(node.inputs[0])?;
        let rows = self.rewrite.builder.push(&DYNAMIC_QUANTIZE, &[x])?;
        let matrix =
            if axis == 0 { self.push(&MATRIX_TRANSPOSE, &[inputs.numbers])? } else { inputs.numbers };
        let sums = self.push(&MATMUL_INTEGER, &[rows[0], matrix])?;
        let shift = self.push(&MULTIPLY, &[rows[2], total])?;
        let sums = self.push(&SUBTRACT, &[sums, shift])?;
        let sums = self.cast(sums, DType::F32)?;
        let scale = self.push(&MULTIPLY, &[rows[1], inputs.scale])?;
        let product = self.push(&MULTIPLY, &[sums, scale])?;
        match node.inputs.get(2) {
            Some(&bias) if self.graph.ty(bias).is_some() => {
                let bias = self.rewrite.get(bias)?;
                self.push(&ADD, &[product, bias])
            }
            _ => Ok(product),
        }
    }

    /// The same op with a weight that is converted to float.
    fn with_floats(
        &mut self,
        node: &Node,
        low_bit: LowBit,
        axis: usize,
        flips: &[NodeId],
        inputs: Inputs,
    ) -> Result<ValueId> {
        let numbers = self.cast(inputs.numbers, DType::F32)?;
        let rank = self.rewrite.builder.graph.ty(numbers).map_or(0, |ty| ty.shape.rank());
        let sizes = (0..rank).map(|i| Lit::Int(Dim::Const(if i == axis { -1 } else { 1 })));
        let sizes = self.rewrite.builder.lit(Lit::Tuple(sizes.collect()));
        let scale =
            if axis + 1 == rank { inputs.scale } else { self.push(&RESHAPE, &[inputs.scale, sizes])? };
        let mut weight = self.push(&MULTIPLY, &[numbers, scale])?;
        if flips.len() % 2 == 1 {
            weight = self.push(&MATRIX_TRANSPOSE, &[weight])?;
        }
        let mut operands: Values = self.rewrite.inputs(node)?;
        operands[low_bit.weight] = weight;
        self.push(node.op, &operands)
    }
}
