//! Sums of thin products: a weight that is used many times, as that of a recurrent layer is at each step, gets as its
//! gradient a sum of products of few rows, each as large as the weight. One product of all rows computes the same:
//! `Σ_i left_i · right_i = [left_1 … left_n] · [right_1; …; right_n]`.

use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, NodeId, ValueId};
use mithril_ir::interp::use_counts;
use mithril_ir::literal::Lit;
use mithril_ir::ops::{elementwise, joining, linalg};
use mithril_ir::{DType, Dim};

use crate::rewrite::Rewrite;

/// Products at most that become one: enough rows for a fast product, while factors of others need not be kept for it.
const MOST_JOINED: usize = 128;

/// The terms of a sum.
#[derive(Debug, Default)]
struct Terms {
    products: Vec<Product>,
    others: Vec<ValueId>,
}

/// A product of matrices, one for each index of the axes before them.
#[derive(Debug)]
struct Product {
    left: ValueId,
    /// What `left` is the transposition of.
    before_transposition: Option<ValueId>,
    right: ValueId,
}

/// Joins the products that sums have as terms, where that moves less data than their addition does.
///
/// The factors of all products are needed at once, so this is not for programs that save memory by computing them
/// again. It belongs behind partitioning: a division of the batch divides the rows of each product.
pub fn join_products(graph: &Graph, float: DType) -> Result<Graph> {
    let uses = use_counts(graph);
    let is_term = inner_sums(graph, &uses);
    let mut rewrite = Rewrite::new(graph, float);
    let mut changes = false;
    for (n, node) in graph.nodes() {
        let is_sum = node.op == &elementwise::ADD && !is_term[node.outputs[0].index()];
        match is_sum.then(|| terms(graph, n, &uses)).filter(|terms| terms.products.len() > 1) {
            Some(terms) => {
                rewrite.at(n);
                let groups = terms.products.chunks(MOST_JOINED);
                let mut all = groups.map(|group| joined(&mut rewrite, group)).collect::<Result<Vec<_>>>()?;
                for other in terms.others {
                    all.push(rewrite.get(other)?);
                }
                let mut sum = all[0];
                for &term in &all[1..] {
                    sum = rewrite.builder.push(&elementwise::ADD, &[sum, term])?[0];
                }
                rewrite.set_outputs(node, &[sum]);
                changes = true;
            }
            None => {
                rewrite.copy(n)?;
            }
        }
    }
    if changes { super::dce::dce(&rewrite.finish()?) } else { rewrite.finish() }
}

/// Which values are sums that a sum of the same type is the only one to use.
fn inner_sums(graph: &Graph, uses: &[u32]) -> Vec<bool> {
    let mut inner = vec![false; graph.values().len()];
    for (n, node) in graph.nodes() {
        if node.op == &elementwise::ADD {
            for &v in &node.inputs {
                inner[v.index()] = is_inner(graph, n, v, uses);
            }
        }
    }
    inner
}

fn is_inner(graph: &Graph, sum: NodeId, v: ValueId, uses: &[u32]) -> bool {
    let is_sum = graph.producer(v).is_some_and(|n| graph.node(n).op == &elementwise::ADD);
    is_sum && uses[v.index()] == 1 && graph.ty(v) == graph.ty(graph.node(sum).outputs[0])
}

fn terms(graph: &Graph, sum: NodeId, uses: &[u32]) -> Terms {
    let mut terms = Terms::default();
    let mut rest = vec![sum];
    while let Some(n) = rest.pop() {
        for &v in graph.node(n).inputs.iter().rev() {
            match graph.producer(v) {
                Some(inner) if is_inner(graph, n, v, uses) => rest.push(inner),
                _ => match product(graph, sum, v, uses) {
                    Some(product) => terms.products.push(product),
                    None => terms.others.push(v),
                },
            }
        }
    }
    terms
}

/// The product that a term is, if its factors are together no larger than the sum.
fn product(graph: &Graph, sum: NodeId, v: ValueId, uses: &[u32]) -> Option<Product> {
    let node = graph.node(graph.producer(v)?);
    if node.op != &linalg::MATMUL || uses[v.index()] != 1 {
        return None;
    }
    let ty = graph.ty(v)?;
    let (left, right) = (node.inputs[0], node.inputs[1]);
    let (rows, columns) = (graph.ty(left)?, graph.ty(right)?);
    let batch = ty.shape.rank().checked_sub(2)?;
    let is_plain = graph.ty(graph.node(sum).outputs[0]) == Some(ty)
        && [rows, columns].iter().all(|factor| {
            factor.dtype == ty.dtype
                && factor.shape.rank() == batch + 2
                && factor.shape[..batch] == ty.shape[..batch]
        });
    let elements = |shape: &[Dim]| shape.iter().try_fold(1_i64, |n, d| Some(n.saturating_mul(d.known()?)));
    let of_factors = elements(&rows.shape)?.saturating_add(elements(&columns.shape)?);
    if !is_plain || of_factors > elements(&ty.shape)? {
        return None;
    }
    let transposed = graph.producer(left).map(|n| graph.node(n));
    let transposed = transposed.filter(|node| node.op == &linalg::MATRIX_TRANSPOSE);
    Some(Product { left, before_transposition: transposed.map(|node| node.inputs[0]), right })
}

/// One product of the factors of all, side by side.
fn joined(rewrite: &mut Rewrite<'_>, products: &[Product]) -> Result<ValueId> {
    let mut concat = |axis: i64, values: &mut dyn Iterator<Item = ValueId>| -> Result<ValueId> {
        let mut args = vec![rewrite.builder.lit(Lit::int(axis))];
        for v in values {
            args.push(rewrite.get(v)?);
        }
        Ok(rewrite.builder.push(&joining::CONCAT, &args)?[0])
    };
    let right = concat(-2, &mut products.iter().map(|product| product.right))?;
    // Whole rows are copied where the factors are transposed only then.
    let transposed: Option<Vec<_>> = products.iter().map(|product| product.before_transposition).collect();
    let left = match transposed {
        Some(transposed) => {
            let rows = concat(-2, &mut transposed.into_iter())?;
            rewrite.builder.push(&linalg::MATRIX_TRANSPOSE, &[rows])?[0]
        }
        None => concat(-1, &mut products.iter().map(|product| product.left))?,
    };
    Ok(rewrite.builder.push(&linalg::MATMUL, &[left, right])?[0])
}
