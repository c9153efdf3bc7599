//! Which initializers are constants that an exporter wrote, rather than parameters: numbers such as the scale of attention or
//! the epsilon of a norm, and masks of attention. A file does not say; how they are used and what they hold does.

use mithril_ir::error::Result;
use mithril_ir::{Tensor, dtype::DType};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::proto::{GraphProto, NodeProto};
use crate::tensor::Stored;

/// Ops, element by element, whose operands of one element are numbers.
const ELEMENTWISE: &[&str] = &[
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Mod",
    "Min",
    "Max",
    "Clip",
    "Where",
    "Equal",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
];

/// Ops whose results may have a bias of one element, added afterwards.
const PRODUCTS: &[&str] = &["MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"];

/// The names of initializers with one element that only such operands are: not weights, and no bias of a product.
pub fn numbers(graph: &GraphProto) -> FxHashSet<&str> {
    let single = graph.initializer.iter().filter(|t| t.dims.iter().all(|&n| n == 1)).map(|t| t.name.as_str());
    let mut numbers_only: FxHashSet<&str> = single.collect();
    if numbers_only.is_empty() {
        return numbers_only;
    }
    let makers: FxHashMap<&str, &NodeProto> = graph
        .node
        .iter()
        .flat_map(|node| node.output.iter().map(move |name| (name.as_str(), node)))
        .collect();
    for output in &graph.output {
        numbers_only.remove(output.name.as_str());
    }
    let mut used = FxHashSet::default();
    let mut graphs = vec![graph];
    while let Some(inner) = graphs.pop() {
        for node in &inner.node {
            let is_default = matches!(node.domain.as_str(), "" | "ai.onnx");
            let is_elementwise = is_default && ELEMENTWISE.contains(&node.op_type.as_str());
            for name in &node.input {
                used.insert(name.as_str());
                let is_bias = node.op_type == "Add"
                    && node.input.iter().any(|other| {
                        makers.get(other.as_str()).is_some_and(|m| PRODUCTS.contains(&m.op_type.as_str()))
                    });
                if !is_elementwise || is_bias {
                    numbers_only.remove(name.as_str());
                }
            }
            graphs.extend(node.attribute.iter().filter_map(|a| a.g.as_deref()));
        }
    }
    numbers_only.retain(|name| used.contains(name));
    numbers_only
}

/// Whether a matrix holds nothing but 0 and what no exponential is left of, such as minus infinity: scores of attention plus
/// it, and nothing that is learned.
pub fn is_mask(stored: &Stored) -> Result<bool> {
    if stored.shape.len() < 2 || !stored.dtype.is_float() {
        return Ok(false);
    }
    let lowest = if matches!(stored.dtype, DType::F16) { -6e4 } else { -1e30 };
    let mut is_forbidding = false;
    // The first elements of a weight already tell it apart from a mask.
    for block in stored.bytes.chunks(64 * stored.dtype.size()) {
        let values =
            Tensor::from_bytes(stored.dtype, vec![block.len() / stored.dtype.size()], block)?.to_f64s();
        if !values.iter().all(|&x| x == 0.0 || x <= lowest) {
            return Ok(false);
        }
        is_forbidding |= values.iter().any(|&x| x < 0.0);
    }
    Ok(is_forbidding)
}
