//! Mixed precision: products in a compute dtype, sums and what grows fast in float32 or wider.
//!
//! Parameters, inputs, states and outputs keep the dtype they are stored in, and so do gradients, since this runs
//! before the graph is differentiated. Each row says where it belongs ([`mithril_ir::OpDef::precision`]):
//! - [`Precision::Low`] ops read their operands in the compute dtype;
//! - [`Precision::Wide`] ops in float32, or wider if values are stored wider;
//! - [`Precision::Follow`] ops in the dtype in which their operands come, and the widest if they differ. Beside a
//!   number that the compute dtype cannot hold (`1e-12`, `-1e9` in float16) they are wide.
//!
//! Only values of the stored dtype are converted: integers, truth values and floats that the model itself keeps in
//! another dtype stay as they are. Every value is converted at most once to a dtype, and never there and back.

use mithril_ir::dtype::DType;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Graph, Node, ValueId, Values};
use mithril_ir::literal::Lit;
use mithril_ir::op::Precision;
use mithril_ir::ops::elementwise::CAST;
use rustc_hash::FxHashMap;

use crate::rewrite::{Rewrite, types};

/// Computes in `compute` what is stored in `storage`.
pub fn precision(graph: &Graph, storage: DType, compute: DType) -> Result<Graph> {
    if !compute.is_float() {
        let message = format!("the precision is {}", compute.name());
        return Err(Error::new(Code::BadDType, message).help("it is a float: float16, bfloat16 or float32"));
    }
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
        let free: Vec<bool> = (0..node.inputs.len()).map(|i| self.is_free(node, i)).collect();
        if !free.contains(&true) {
            let inputs = node.inputs.iter().map(|&v| self.restored(v)).collect::<Result<Values>>()?;
            let outputs = self.rewrite.builder.push_typed(node.op, inputs, types(self.graph, node));
            self.rewrite.set_outputs(node, &outputs);
            return Ok(());
        }
        let dtype = self.dtype(node, &free)?;
        let mut inputs = Values::new();
        for (&v, is_free) in node.inputs.iter().zip(free) {
            inputs.push(if is_free {
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

    /// Whether an operand is a value of the stored dtype, which may be read in another one.
    fn is_free(&self, node: &Node, i: usize) -> bool {
        node.op.takes_tensor(i) && self.graph.ty(node.inputs[i]).is_some_and(|ty| ty.dtype == self.storage)
    }

    /// The dtype in which a node is computed.
    fn dtype(&mut self, node: &Node, free: &[bool]) -> Result<DType> {
        let widens = self.compute.size() > self.storage.size();
        match node.op.precision() {
            Precision::Low => return Ok(self.compute),
            Precision::Wide => return Ok(self.wide),
            Precision::Follow if widens || self.has_misfit(node) => return Ok(self.wide),
            Precision::Follow => {}
        }
        let mut met: Option<DType> = None;
        for (&v, &is_free) in node.inputs.iter().zip(free) {
            if !is_free || number(self.graph, v).is_some() {
                continue;
            }
            let new = self.rewrite.get(v)?;
            let dtype = self.rewrite.builder.graph.ty(new).map_or(self.storage, |ty| ty.dtype);
            met = Some(met.map_or(dtype, |met| met.promote(dtype)));
        }
        Ok(met.unwrap_or(self.storage))
    }

    /// Whether a number among the operands is beyond the compute dtype, or would lose digits in it.
    fn has_misfit(&self, node: &Node) -> bool {
        let operands = node.inputs.iter().enumerate().filter(|(i, _)| node.op.takes_tensor(*i));
        operands.filter_map(|(_, &v)| number(self.graph, v)).any(|x| !fits(x, self.compute))
    }

    /// The value in the dtype that it has in the old graph.
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
        if let Some(&found) = self.casts.get(&(v, to)) {
            return Ok(found);
        }
        let found = match widened_from(graph, v, from) {
            Some(source) if graph.ty(source).is_some_and(|ty| ty.dtype == to) => source,
            _ => {
                let dtype = graph.add_literal(Lit::DType(to));
                self.rewrite.builder.push(&CAST, &[v, dtype])?[0]
            }
        };
        self.casts.insert((v, to), found);
        Ok(found)
    }
}

/// What a value was before it was converted to the wider dtype `to`.
fn widened_from(graph: &Graph, v: ValueId, to: DType) -> Option<ValueId> {
    let node = graph.node(graph.producer(v)?);
    let is_cast = std::ptr::eq(node.op, std::ptr::from_ref(&CAST));
    let source = *node.inputs.first().filter(|_| is_cast)?;
    let from = graph.ty(source)?.dtype;
    (from.is_float() && from.promote(to) == to).then_some(source)
}

/// A number in the place of a tensor, or a constant without dimensions.
fn number(graph: &Graph, v: ValueId) -> Option<f64> {
    match graph.lit(v)? {
        Lit::Float(x) => Some(*x),
        Lit::Int(n) => n.known().map(|n| n as f64),
        Lit::Tensor(t) if t.rank() == 0 => Some(t.get(0).f64()),
        _ => None,
    }
}

/// Whether the dtype holds the number with all its digits, or it is infinite or NaN everywhere.
fn fits(x: f64, dtype: DType) -> bool {
    let smallest = match dtype {
        DType::F16 => 6.103_515_625e-5,
        _ => f64::from(f32::MIN_POSITIVE),
    };
    x == 0.0 || !x.is_finite() || (smallest..=dtype.float_max().unwrap_or(0.0)).contains(&x.abs())
}
