//! Attention whose scores and weights pass through graphs of the file.

use mithril_ir::{DType, Lit, Result, ValueId};

use crate::context::{Value, malformed};
use crate::control::{attribute, body, inner, refuse};
use crate::import::{Around, Importer, Scope};
use crate::node::Operand;
use crate::proto::NodeProto;

/// `FlexAttention`: `prob_mod(softmax(score_mod(q · kᵀ · scale))) · v`.
#[allow(clippy::too_many_lines, reason = "one formula, step by step")]
pub fn attention(
    importer: &mut Importer<'_>,
    node: &NodeProto,
    inputs: &[Option<Value>],
    scope: &Scope<'_>,
    around: Around<'_>,
) -> Result<Vec<Value>> {
    let known = ["scale", "score_mod", "prob_mod", "softmax_precision"];
    if let Some(other) = node.attribute.iter().find(|a| !known.contains(&a.name.as_str())) {
        return Err(refuse(format!("the attribute `{}` is not supported", other.name)));
    }
    let [Some(q), Some(k), Some(v)] = inputs else { return Err(malformed("it has not 3 inputs")) };
    let (q, mut k, mut v) = (importer.cx.tensor(q)?, importer.cx.tensor(k)?, importer.cx.tensor(v)?);
    let shape = |importer: &Importer<'_>, v: ValueId| importer.cx.shape(v);
    if [q, k, v].iter().any(|&x| shape(importer, x).rank() != 4) {
        return Err(malformed("an input has not 4 axes"));
    }
    let dtype = importer.cx.dtype(q);
    let wide = match attribute(node, "softmax_precision").and_then(|a| a.i) {
        Some(code) => crate::tensor::dtype(i32::try_from(code).unwrap_or(-1))?,
        None if matches!(dtype, DType::F16 | DType::BF16) => DType::F32,
        None => dtype,
    };
    let apply = |importer: &mut Importer<'_>, name: &str, args: &[ValueId]| {
        importer.cx.push(name, args).map(|outputs| outputs[0])
    };
    let cast = |importer: &mut Importer<'_>, v: ValueId, to: DType| {
        let to = to.id(&mut importer.cx);
        importer.cx.push("cast", &[v, to]).map(|outputs| outputs[0])
    };
    let heads = (shape(importer, q)[1].known(), shape(importer, k)[1].known());
    if shape(importer, q)[1] != shape(importer, k)[1] {
        let (Some(all), Some(own)) = heads else { return Err(refuse("its number of heads is a symbol")) };
        if own == 0 || all % own != 0 {
            return Err(malformed(format!("{all} heads of the query cannot share {own}")));
        }
        let args = [(all / own).id(&mut importer.cx), 1_i64.id(&mut importer.cx)];
        k = apply(importer, "repeat", &[k, args[0], args[1]])?;
        v = apply(importer, "repeat", &[v, args[0], args[1]])?;
    }
    let scale = match (attribute(node, "scale").and_then(|a| a.f), shape(importer, q)[3].known()) {
        (Some(scale), _) => f64::from(scale),
        (None, Some(n)) => 1.0 / (n as f64).sqrt(),
        (None, None) => return Err(refuse("the size of its heads is a symbol")),
    };
    let (q, k, v) = (cast(importer, q, wide)?, cast(importer, k, wide)?, cast(importer, v, wide)?);
    let turned = apply(importer, "matrix_transpose", &[k])?;
    let product = apply(importer, "matmul", &[q, turned])?;
    let scale = Lit::from(scale).id(&mut importer.cx);
    let mut scores = apply(importer, "multiply", &[product, scale])?;
    let changed = |importer: &mut Importer<'_>, name: &str, x: ValueId| -> Result<Option<ValueId>> {
        if attribute(node, name).is_none() {
            return Ok(Some(x));
        }
        let results = inner(importer, body(node, name)?, &[Value::Graph(x)], scope, around)?;
        match results.first() {
            Some(Value::Failed) => Ok(None),
            Some(value) => importer.cx.tensor(value).map(Some),
            None => Err(malformed(format!("`{name}` gives nothing"))),
        }
    };
    let failed = vec![Value::Failed; node.output.len()];
    let Some(modified) = changed(importer, "score_mod", scores)? else { return Ok(failed) };
    scores = cast(importer, modified, wide)?;
    let axis = (-1_i64).id(&mut importer.cx);
    let weights = apply(importer, "softmax", &[scores, axis])?;
    let Some(modified) = changed(importer, "prob_mod", weights)? else { return Ok(failed) };
    let weights = cast(importer, modified, wide)?;
    let y = apply(importer, "matmul", &[weights, v])?;
    Ok(vec![Value::Graph(cast(importer, y, dtype)?)])
}
