//! A node of the graph as nodes of ONNX, by the lowering of its op.

use mithril_ir::graph::{self, Graph, TensorType, ValueId};
use mithril_ir::interp::number;
use mithril_ir::lowering::LoweringCx;
use mithril_ir::lowering::LoweringRule;
use mithril_ir::{DType, Lit, Scalar, Tensor};

use super::forms::{form, scalar};
use super::parse::{Tree, parse};
use super::writer::{Made, Val, Writer};

/// A node that is being written.
pub struct Node<'a> {
    graph: &'a Graph,
    of: &'a graph::Node,
    /// What stands for the tensors among the inputs.
    inputs: Vec<Option<Val>>,
    /// The values that the lowering has named so far.
    locals: Vec<Val>,
}

/// Writes a node; `value_of` gives what stands for a value of the graph. Returns the tensors of its outputs.
///
/// # Errors
/// Why the op cannot be written.
pub fn lower(
    w: &mut Writer,
    graph: &Graph,
    node: &graph::Node,
    mut value_of: impl FnMut(&mut Writer, ValueId) -> Made<Option<Val>>,
) -> Made<Vec<Val>> {
    if let Some(nothing) = empty(w, graph, node) {
        return Ok(nothing);
    }
    let text = match node.op.lowering.onnx {
        LoweringRule::None => return Err("ONNX has no such op".into()),
        LoweringRule::Template(text) => text.to_owned(),
        LoweringRule::Function(f) => {
            let args: Vec<String> = (0..node.inputs.len()).map(|i| format!("{{{i}}}")).collect();
            let dtypes = |d: DType| d.short();
            f(&LoweringCx { graph, node, args: &args, xp: "", dtypes, on_cpu: false, donated: &[] })
                .ok_or("ONNX has no op for these arguments")?
        }
    };
    let mut values = Vec::with_capacity(node.inputs.len());
    for &v in &node.inputs {
        values.push(match graph.lit(v) {
            Some(Lit::Tensor(t)) => Some(w.constant(t)),
            Some(_) => None,
            None => value_of(w, v)?,
        });
    }
    let lowering = parse(&text, node.op)?;
    if lowering.outputs.len() != node.outputs.len() {
        return Err(format!("`{text}` has another number of outputs"));
    }
    let mut node = Node { graph, of: node, inputs: values, locals: Vec::new() };
    for tree in &lowering.locals {
        let local = node.tree(w, tree, None)?;
        node.locals.push(local);
    }
    let mut outputs = Vec::with_capacity(lowering.outputs.len());
    for (tree, &v) in lowering.outputs.iter().zip(&node.of.outputs) {
        let dtype = graph.ty(v).map(|t| t.dtype).ok_or("an output has no type")?;
        let output = node.tree(w, tree, Some(dtype))?;
        outputs.push(w.cast(&output, dtype)?);
    }
    Ok(outputs)
}

/// Constants for outputs without elements: what computes them may refuse such sizes.
fn empty(w: &mut Writer, graph: &Graph, node: &graph::Node) -> Option<Vec<Val>> {
    let types: Option<Vec<_>> =
        node.outputs.iter().map(|&v| graph.ty(v).and_then(|t| Some((t.dtype, t.shape.known()?)))).collect();
    let types = types?;
    let is_empty = types.iter().all(|(_, shape)| shape.contains(&0));
    is_empty
        .then(|| types.iter().map(|(dtype, shape)| w.constant(&Tensor::full(*dtype, shape, 0_i64))).collect())
}

impl Node<'_> {
    /// Type of input `i`.
    pub fn ty(&self, i: usize) -> Option<&TensorType> {
        self.of.inputs.get(i).and_then(|&v| self.graph.ty(v))
    }
    /// Type of output `i`.
    pub fn output(&self, i: usize) -> Made<&TensorType> {
        self.of.outputs.get(i).and_then(|&v| self.graph.ty(v)).ok_or_else(|| "no output".into())
    }
    /// Literal at input `i`.
    pub fn lit(&self, i: usize) -> Lit {
        self.of.inputs.get(i).and_then(|&v| self.graph.lit(v)).cloned().unwrap_or(Lit::None)
    }

    /// Writes a tree; a number in it is of `dtype`, if no tensor beside it says otherwise.
    pub fn tree(&self, w: &mut Writer, tree: &Tree, dtype: Option<DType>) -> Made<Val> {
        match tree {
            Tree::Input(i) => match self.inputs.get(*i) {
                Some(Some(val)) => Ok(val.clone()),
                _ => self.number(w, *i, dtype),
            },
            Tree::Number(x) => {
                let dtype = dtype.map_or_else(|| self.output(0).map(|t| t.dtype), Ok)?;
                let is_whole = !dtype.is_float() && *x == x.trunc();
                let number = if is_whole { Scalar::Int(*x as i128) } else { Scalar::Float(*x) };
                Ok(w.constant(&Tensor::scalar(dtype, number)))
            }
            Tree::List(items) => Ok(w.ints(items)),
            Tree::Form(name, args) => form(self, w, name, args),
            Tree::Local(i) => self.locals.get(*i).cloned().ok_or_else(|| "it is not defined".into()),
            Tree::Absent => Err("nothing is left out here".into()),
            Tree::Op(name, attributes, args, which) => {
                let mut vals: Vec<Option<Val>> = vec![None; args.len()];
                // Tensors first: they say what the numbers beside them are.
                for (slot, arg) in vals.iter_mut().zip(args) {
                    if !self.is_number(arg) && *arg != Tree::Absent {
                        *slot = Some(self.tree(w, arg, None)?);
                    }
                }
                // Then those that say what they are, which plain numbers do not.
                for is_plain in [false, true] {
                    for (i, arg) in args.iter().enumerate() {
                        if self.is_number(arg) && matches!(arg, Tree::Number(_)) == is_plain {
                            let beside = vals.iter().flatten().map(|v| v.dtype).find(|d| *d != DType::Bool);
                            vals[i] = Some(self.tree(w, arg, beside.or(dtype))?);
                        }
                    }
                }
                w.op(name, attributes, &vals, *which)
            }
        }
    }
    fn is_number(&self, tree: &Tree) -> bool {
        match tree {
            Tree::Number(_) => true,
            Tree::Input(i) => !matches!(self.inputs.get(*i), Some(Some(_))),
            _ => false,
        }
    }
    /// A number among the operands: it takes the dtype of the operands beside it, as in the interpreter.
    fn number(&self, w: &mut Writer, i: usize, dtype: Option<DType>) -> Made<Val> {
        let lit = self.lit(i);
        let weak = lit.weak_dtype(DType::F32).ok_or_else(|| format!("{lit} is not a tensor"))?;
        let tensors = self.of.inputs.iter().enumerate().filter(|(i, _)| self.of.op.takes_tensor(*i));
        let mut dtypes = tensors.filter_map(|(_, &v)| self.graph.ty(v)).map(|t| t.dtype);
        let own = dtypes.find(|d| d.kind() >= weak.kind()).or(dtype).unwrap_or(weak);
        match &lit {
            Lit::Int(dim) if dim.known().is_none() => scalar(w, dim, own),
            lit => {
                let tensor = number(lit, Some(own)).map_err(|e| e.message().to_owned())?;
                Ok(w.constant(&tensor))
            }
        }
    }
}
