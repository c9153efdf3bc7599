//! Control flow that is known when the file is read: `If` with a known condition, `Loop` and `Scan` with a known number
//! of iterations, which are written out.

use mithril_ir::{Code, Error, Result, Scalar, Tensor, ValueId};

use crate::context::{Value, malformed};
use crate::flex;
use crate::import::{Around, Importer, Scope};
use crate::node::Operand;
use crate::proto::{AttributeProto, GraphProto, NodeProto};

/// Turns of a loop.
const MAX_ITERATIONS: i64 = 1024;

/// Converts a node with graphs in it.
pub type Convert =
    fn(&mut Importer<'_>, &NodeProto, &[Option<Value>], &Scope<'_>, Around<'_>) -> Result<Vec<Value>>;

/// The ops with graphs in them.
pub static OPS: &[(&str, &str, Convert)] = &[
    ("", "If", branch),
    ("", "Loop", repeat),
    ("", "Scan", scan),
    ("ai.onnx.preview", "FlexAttention", flex::attention),
];

/// The conversion of an op with graphs in it.
pub fn find(domain: &str, op: &str) -> Option<Convert> {
    OPS.iter().find(|(space, name, _)| *space == domain && *name == op).map(|(_, _, convert)| *convert)
}

pub fn refuse(text: impl Into<String>) -> Error {
    Error::new(Code::Unsupported, text)
}

pub fn attribute<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|a| a.name == name)
}

pub fn body<'n>(node: &'n NodeProto, name: &str) -> Result<&'n GraphProto> {
    let graph = attribute(node, name).and_then(|a| a.g.as_deref());
    graph.ok_or_else(|| malformed(format!("the attribute `{name}` is not a graph")))
}

/// Converts a graph within a node; its outputs.
pub fn inner(
    importer: &mut Importer<'_>,
    graph: &GraphProto,
    inputs: &[Value],
    scope: &Scope<'_>,
    around: Around<'_>,
) -> Result<Vec<Value>> {
    if inputs.len() != graph.input.len() {
        return Err(malformed(format!(
            "a graph takes {} inputs, but gets {}",
            graph.input.len(),
            inputs.len()
        )));
    }
    let mut own = Scope { values: rustc_hash::FxHashMap::default(), parent: Some(scope) };
    for (info, value) in graph.input.iter().zip(inputs) {
        own.bind(&info.name, value.clone())?;
    }
    importer.enter_initializers(graph, &mut own, false)?;
    importer.nodes(&graph.node, &mut own, around.within(around.opsets)?)?;
    let output =
        |name: &str| own.get(name).cloned().ok_or_else(|| malformed(format!("nothing computes {name:?}")));
    graph.output.iter().map(|o| output(&o.name)).collect()
}

/// A truth value or a number, if it is known now.
fn known(importer: &Importer<'_>, value: Option<&Value>) -> Option<Scalar> {
    match value? {
        Value::Graph(v) => importer.cx.constant(*v).filter(|t| t.len() == 1).map(|t| t.get(0)),
        _ => None,
    }
}

fn branch(
    importer: &mut Importer<'_>,
    node: &NodeProto,
    inputs: &[Option<Value>],
    scope: &Scope<'_>,
    around: Around<'_>,
) -> Result<Vec<Value>> {
    let condition = known(importer, inputs.first().and_then(Option::as_ref))
        .ok_or_else(|| refuse("its condition depends on data"))?;
    let graph = body(node, if condition.bool() { "then_branch" } else { "else_branch" })?;
    inner(importer, graph, &[], scope, around)
}

fn repeat(
    importer: &mut Importer<'_>,
    node: &NodeProto,
    inputs: &[Option<Value>],
    scope: &Scope<'_>,
    around: Around<'_>,
) -> Result<Vec<Value>> {
    let graph = body(node, "body")?;
    let input = |i: usize| inputs.get(i).and_then(Option::as_ref);
    let iterations = match input(0) {
        Some(v) => {
            known(importer, Some(v)).ok_or_else(|| refuse("its number of iterations depends on data"))?.i64()
        }
        None => i64::MAX,
    };
    let mut goes_on = match input(1) {
        Some(v) => known(importer, Some(v)).ok_or_else(|| refuse("its condition depends on data"))?.bool(),
        None => true,
    };
    let state: Option<Vec<Value>> = inputs.iter().skip(2).cloned().collect();
    let mut state = state.ok_or_else(|| malformed("a value that a loop carries is missing"))?;
    let carried = state.len();
    if graph.output.len() < carried + 1 {
        return Err(malformed("the body of a loop gives too few outputs"));
    }
    let mut rows: Vec<Vec<Value>> = vec![Vec::new(); graph.output.len() - carried - 1];
    let mut iteration = 0;
    while goes_on && iteration < iterations {
        if iteration >= MAX_ITERATIONS {
            return Err(refuse(format!("it has more than {MAX_ITERATIONS} iterations")));
        }
        let count = importer.cx.lit(Tensor::scalar(mithril_ir::DType::I64, iteration));
        let always = importer.cx.lit(Tensor::scalar(mithril_ir::DType::Bool, true));
        let mut args = vec![Value::Graph(count), Value::Graph(always)];
        args.truncate(graph.input.len().saturating_sub(carried));
        args.append(&mut state);
        let mut results = inner(importer, graph, &args, scope, around)?;
        if results.iter().any(|v| matches!(v, Value::Failed)) {
            return Ok(vec![Value::Failed; node.output.len()]);
        }
        for (row, value) in rows.iter_mut().zip(results.split_off(carried + 1)) {
            row.push(value);
        }
        state = results.split_off(1);
        goes_on =
            known(importer, results.first()).ok_or_else(|| refuse("its condition depends on data"))?.bool();
        iteration += 1;
    }
    for row in rows {
        state.push(joined(importer, &row, 0, false)?);
    }
    Ok(state)
}

/// Results of the iterations side by side along a new axis.
fn joined(importer: &mut Importer<'_>, iterations: &[Value], axis: i64, reversed: bool) -> Result<Value> {
    if iterations.is_empty() {
        return Err(refuse("it has no iteration, so that the shape of what it collects is not known"));
    }
    let mut args = vec![axis.id(&mut importer.cx)];
    for value in iterations {
        args.push(importer.cx.tensor(value)?);
    }
    if reversed {
        args[1..].reverse();
    }
    Ok(Value::Graph(importer.cx.push("stack", &args)?[0]))
}

fn scan(
    importer: &mut Importer<'_>,
    node: &NodeProto,
    inputs: &[Option<Value>],
    scope: &Scope<'_>,
    around: Around<'_>,
) -> Result<Vec<Value>> {
    if around.opsets.get("").is_some_and(|&v| v < 9) {
        return Err(refuse("before opset 9 it has a batch axis"));
    }
    let graph = body(node, "body")?;
    let count = attribute(node, "num_scan_inputs").and_then(|a| a.i).and_then(|n| usize::try_from(n).ok());
    let count = count
        .filter(|&n| n > 0 && n <= inputs.len())
        .ok_or_else(|| malformed("num_scan_inputs does not fit"))?;
    let carried = inputs.len() - count;
    let all: Vec<Value> =
        inputs.iter().cloned().collect::<Option<_>>().ok_or_else(|| malformed("an input is missing"))?;
    let list = |name: &str, i: usize| attribute(node, name).and_then(|a| a.ints.get(i)).copied().unwrap_or(0);
    let mut read: Vec<(ValueId, usize, bool)> = Vec::new();
    let mut iterations = None;
    for (i, value) in all[carried..].iter().enumerate() {
        let v = importer.cx.tensor(value)?;
        let shape = importer.cx.shape(v);
        let axis = shape.axis(list("scan_input_axes", i))?;
        let n =
            shape[axis].known().ok_or_else(|| refuse("its number of iterations is a symbol: give shapes"))?;
        if *iterations.get_or_insert(n) != n {
            return Err(malformed("what is scanned has several lengths"));
        }
        read.push((v, axis, list("scan_input_directions", i) == 1));
    }
    let iterations = iterations.unwrap_or(0);
    if iterations > MAX_ITERATIONS {
        return Err(refuse(format!("it has more than {MAX_ITERATIONS} iterations")));
    }
    let mut state = all[..carried].to_vec();
    if graph.output.len() < carried {
        return Err(malformed("the body of a scan gives too few outputs"));
    }
    let mut rows: Vec<Vec<Value>> = vec![Vec::new(); graph.output.len() - carried];
    for iteration in 0..iterations {
        let mut args = std::mem::take(&mut state);
        for &(v, axis, reversed) in &read {
            let at = if reversed { iterations - 1 - iteration } else { iteration };
            let part = [v, at.id(&mut importer.cx), (axis as i64).id(&mut importer.cx)];
            args.push(Value::Graph(importer.cx.push("take", &part)?[0]));
        }
        let mut results = inner(importer, graph, &args, scope, around)?;
        if results.iter().any(|v| matches!(v, Value::Failed)) {
            return Ok(vec![Value::Failed; node.output.len()]);
        }
        for (row, value) in rows.iter_mut().zip(results.split_off(carried)) {
            row.push(value);
        }
        state = results;
    }
    for (i, row) in rows.iter().enumerate() {
        let reversed = list("scan_output_directions", i) == 1;
        state.push(joined(importer, row, list("scan_output_axes", i), reversed)?);
    }
    Ok(state)
}
