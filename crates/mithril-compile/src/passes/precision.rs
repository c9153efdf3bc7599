//! Mixed precision: products in a compute dtype, sums and what grows fast in float32 or wider.
//!
//! Parameters, inputs, states and outputs keep the dtype they are stored in, and so do gradients, since this runs
//! before the graph is differentiated. The definition of each op states its class ([`mithril_ir::OpDef::precision`]):
//! - [`Precision::Low`] ops read their operands in the compute dtype;
//! - [`Precision::Wide`] ops in float32, or wider if values are stored wider;
//! - [`Precision::Follow`] ops in the dtype of their operands, or the widest if those differ. With a number that the
//!   compute dtype cannot represent (`1e-12`, `-1e9` in float16), they are computed wide;
//! - [`Precision::Expanded`] ops are expanded first.
//!
//! Only values of the storage dtype are converted: integers, booleans and floats that the model itself keeps in
//! another dtype stay as they are. Each value is converted at most once per dtype, and never back and forth.

use mithril_ir::dtype::DType;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Graph, Node, ValueId, Values};
use mithril_ir::literal::Lit;
use mithril_ir::op::Precision;
use mithril_ir::ops::elementwise::CAST;
use rustc_hash::FxHashMap;

use crate::passes::legalize::expand_products;
use crate::rewrite::{Rewrite, types};

/// Computes values stored as `storage` in the dtype `compute`.
pub fn precision(graph: &Graph, storage: DType, compute: DType) -> Result<Graph> {
    if !compute.is_float() {
        let message = format!("the precision is {}", compute.name());
        return Err(Error::new(Code::BadDType, message).help("it is a float: float16, bfloat16 or float32"));
    }
    let graph = &expand_products(graph, storage)?;
    let rewrite = Rewrite::new(graph, storage);
    let wide = storage.promote(DType::F32).promote(compute);
    let mut mixed = Mixed { graph, rewrite, storage, compute, wide, casts: FxHashMap::default() };
    for (n, node) in graph.nodes() {
        mixed.rewrite.at(n);
        mixed.node(node).map_err(|e| e.at(graph.place(n)))?;
    }
    let read = graph.outputs.values().chain(graph.updates.iter().map(|(_, value)| value));
    for &v in read {
        if let Some(n) = graph.producer(v) {
            mixed.rewrite.at(n);
        }
        let new = mixed.restored(v)?;
        mixed.rewrite.set(v, new);
    }
    mixed.rewrite.finish()
}

struct Mixed<'g> {
    graph: &'g Graph,
    rewrite: Rewrite<'g>,
    storage: DType,
    compute: DType,
    wide: DType,
    casts: FxHashMap<(ValueId, DType), ValueId>,
}

impl Mixed<'_> {
    fn node(&mut self, node: &Node) -> Result<()> {
        let convertible: Vec<bool> = (0..node.inputs.len()).map(|i| self.is_convertible(node, i)).collect();
        if !convertible.contains(&true) {
            let inputs = node.inputs.iter().map(|&v| self.restored(v)).collect::<Result<Values>>()?;
            let outputs = self.rewrite.builder.push_typed(node.op, inputs, types(self.graph, node));
            self.rewrite.set_outputs(node, &outputs);
            return Ok(());
        }
        let dtype = self.dtype(node, &convertible)?;
        let mut inputs = Values::new();
        for (&v, is_convertible) in node.inputs.iter().zip(convertible) {
            inputs.push(if is_convertible {
                let new = self.rewrite.get(v)?;
                self.cast(new, dtype)?
            } else {
                self.restored(v)?
            });
        }
        let outputs = self.rewrite.builder.push(node.op, &inputs)?;
        self.rewrite.set_outputs(node, &outputs);
        Ok(())
    }

    /// Whether an operand has the storage dtype, so that it may be converted.
    fn is_convertible(&self, node: &Node, i: usize) -> bool {
        node.op.takes_tensor(i) && self.graph.ty(node.inputs[i]).is_some_and(|ty| ty.dtype == self.storage)
    }

    /// The dtype in which a node is computed.
    fn dtype(&mut self, node: &Node, convertible: &[bool]) -> Result<DType> {
        let widens = self.compute.size() > self.storage.size();
        match node.op.precision() {
            Precision::Low => return Ok(self.compute),
            Precision::Wide | Precision::Expanded => return Ok(self.wide),
            Precision::Follow if widens || self.has_unrepresentable_number(node) => return Ok(self.wide),
            Precision::Follow => {}
        }
        let mut widest: Option<DType> = None;
        for (&v, &is_convertible) in node.inputs.iter().zip(convertible) {
            if !is_convertible || number(self.graph, v).is_some() {
                continue;
            }
            let new = self.rewrite.get(v)?;
            let dtype = self.rewrite.builder.graph.ty(new).map_or(self.storage, |ty| ty.dtype);
            widest = Some(widest.map_or(dtype, |widest| widest.promote(dtype)));
        }
        Ok(widest.unwrap_or(self.storage))
    }

    /// Whether a scalar operand overflows or underflows in the compute dtype.
    fn has_unrepresentable_number(&self, node: &Node) -> bool {
        let operands = node.inputs.iter().enumerate().filter(|(i, _)| node.op.takes_tensor(*i));
        operands.filter_map(|(_, &v)| number(self.graph, v)).any(|x| !is_representable(x, self.compute))
    }

    /// The value, cast back to the dtype that it has in the original graph.
    fn restored(&mut self, v: ValueId) -> Result<ValueId> {
        let new = self.rewrite.get(v)?;
        match self.graph.ty(v) {
            Some(ty) => self.cast(new, ty.dtype),
            None => Ok(new),
        }
    }

    fn cast(&mut self, v: ValueId, to: DType) -> Result<ValueId> {
        let graph = &mut self.rewrite.builder.graph;
        let Some(from) = graph.ty(v).map(|ty| ty.dtype).filter(|from| *from != to) else { return Ok(v) };
        if let Some(Lit::Tensor(t)) = graph.lit(v) {
            let cast = t.cast(to);
            return Ok(graph.add_literal(cast.into()));
        }
        if let Some(&cast) = self.casts.get(&(v, to)) {
            return Ok(cast);
        }
        let cast = match widened_from(graph, v, from) {
            Some(source) if graph.ty(source).is_some_and(|ty| ty.dtype == to) => source,
            _ => {
                let dtype = graph.add_literal(Lit::DType(to));
                self.rewrite.builder.push(&CAST, &[v, dtype])?[0]
            }
        };
        self.casts.insert((v, to), cast);
        Ok(cast)
    }
}

/// The operand of the cast that made a value of the wider dtype `to`.
fn widened_from(graph: &Graph, v: ValueId, to: DType) -> Option<ValueId> {
    let node = graph.node(graph.producer(v)?);
    let is_cast = node.op == &CAST;
    let source = *node.inputs.first().filter(|_| is_cast)?;
    let from = graph.ty(source)?.dtype;
    (from.is_float() && from.promote(to) == to).then_some(source)
}

/// The value of a scalar literal or a 0-d constant.
fn number(graph: &Graph, v: ValueId) -> Option<f64> {
    match graph.lit(v)? {
        Lit::Float(x) => Some(*x),
        Lit::Int(n) => n.known().map(|n| n as f64),
        Lit::Tensor(t) if t.rank() == 0 => Some(t.get(0).f64()),
        _ => None,
    }
}

/// Whether the dtype represents the number in its normal range; 0, infinities and NaN always are.
fn is_representable(x: f64, dtype: DType) -> bool {
    let smallest = match dtype {
        DType::F16 => 6.103_515_625e-5,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    x == 0.0 || !x.is_finite() || (smallest..=dtype.float_max().unwrap_or(0.0)).contains(&x.abs())
}
