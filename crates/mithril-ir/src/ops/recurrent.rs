//! Recurrent networks: single steps, passes over a sequence, and the scans that these consist of.
//!
//! A pass is a product of the whole sequence, which the steps do not depend on, and a scan. Targets that write loops
//! run scans of any length; for the others, and where the gradient of a gradient is computed, steps are written out.

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, OpDef, Port, Precision, ShapeRule, Tolerance, attr, optional,
    tensor_of,
};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;

use super::activation::RELU;
use super::linalg::LINEAR;
use super::slicing::{SPLIT, cut};

mod scans;

use scans::{GRU_SCAN, HIDDEN_SCAN_GRADIENT, LSTM_SCAN, LSTM_SCAN_GRADIENT, RNN_SCAN, Step, scanned};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &RNN_STEP,
    &LSTM_STEP,
    &GRU_STEP,
    &RNN_SEQUENCE,
    &LSTM_SEQUENCE,
    &GRU_SEQUENCE,
    &RNN_SCAN,
    &LSTM_SCAN,
    &GRU_SCAN,
    &HIDDEN_SCAN_GRADIENT,
    &LSTM_SCAN_GRADIENT,
];

const INPUT: Port = tensor_of("input", Kinds::FLOAT);
const HIDDEN: Port = tensor_of("hidden", Kinds::FLOAT);
const CELL: Port = tensor_of("cell", Kinds::FLOAT);
const WEIGHT: Port = tensor_of("weight", Kinds::FLOAT);
const WEIGHT_IH: Port = tensor_of("weight_ih", Kinds::FLOAT);
const WEIGHT_HH: Port = tensor_of("weight_hh", Kinds::FLOAT);
const BIAS_IH: Port = optional("bias_ih");
const BIAS_HH: Port = optional("bias_hh");
const REVERSE: Port = attr("reverse", Attr::Bool, DefaultLit::Bool(false));
const BATCH_FIRST: Port = attr("batch_first", Attr::Bool, DefaultLit::Bool(false));
const NONLINEARITY: Port = attr("nonlinearity", Attr::Choice(&["tanh", "relu"]), DefaultLit::Str("tanh"));

const RECURRENT: OpDef = OpDef {
    dtype: DTypeRule::Float,
    domain: (-1.0, 1.0),
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Expanded),
    ..BLANK
};

// --- steps -------------------------------------------------------------------------------------------------------

/// A step of a simple recurrent network
pub static RNN_STEP: OpDef = OpDef {
    name: "rnn_step",
    doc: "A step of a simple recurrent network: `tanh(W_ih·x + b_ih + W_hh·h + b_hh)`, or `relu` instead of `tanh`.\n\n\
          `input` is `[n, k]`, the state `hidden` `[n, h]`, `weight_ih` `[h, k]`, `weight_hh` `[h, h]`.",
    ports: &[INPUT, HIDDEN, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, NONLINEARITY],
    shape: ShapeRule::Fn(|cx| step_shape(cx, 1, None)),
    expand: Some(|c| {
        let gates = c.x[0].op(&LINEAR, &[c.x[2], c.x[4]]);
        vec![rnn_step(c, gates + c.x[1].op(&LINEAR, &[c.x[3], c.x[5]]), 6)]
    }),
    lowering: torch(|s| {
        let function = format!("torch.rnn_{}_cell", s.text(6).ok()?);
        step_torch(s, &function, s.arg(1).to_owned(), 2)
    }),
    cases: &["[2,4] [2,3] [3,4] [3,3] [3] [3]", "[1,2] [1,2] [2,2] [2,2] nonlinearity=\"relu\""],
    ..RECURRENT
};

/// A step of a long short-term memory
pub static LSTM_STEP: OpDef = OpDef {
    name: "lstm_step",
    doc: "A step of a long short-term memory (Hochreiter and Schmidhuber 1997): the new hidden state and cell.\n\nWith the \
          gates i, f, g, o of `W_ih·x + b_ih + W_hh·h + b_hh`: `c' = σ(f)·c + σ(i)·tanh(g)`, `h' = σ(o)·tanh(c')`. \
          `input` is `[n, k]`, `hidden` and `cell` `[n, h]`, `weight_ih` `[4h, k]`, `weight_hh` `[4h, h]`.",
    ports: &[INPUT, HIDDEN, CELL, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH],
    outputs: &["output", "cell"],
    shape: ShapeRule::Fn(|cx| step_shape(cx, 4, Some(2))),
    expand: Some(|c| {
        let gates = c.x[0].op(&LINEAR, &[c.x[3], c.x[5]]) + c.x[1].op(&LINEAR, &[c.x[4], c.x[6]]);
        let (hidden, cell) = lstm_step(gates, c.x[2]);
        vec![hidden, cell]
    }),
    lowering: torch(|s| step_torch(s, "torch.lstm_cell", format!("({}, {})", s.arg(1), s.arg(2)), 3)),
    cases: &["[2,4] [2,3] [2,3] [12,4] [12,3] [12] [12]", "[1,2] [1,1] [1,1] [4,2] [4,1] [4]"],
    ..RECURRENT
};

/// A step of a gated recurrent unit
pub static GRU_STEP: OpDef = OpDef {
    name: "gru_step",
    doc: "A step of a gated recurrent unit (Cho et al. 2014): the new state.\n\nWith the gates r, z, n of \
          `x' = W_ih·x + b_ih` and `s = W_hh·h + b_hh`: `r = σ(x'_r + s_r)`, `z = σ(x'_z + s_z)`, `n = tanh(x'_n + \
          r·s_n)`, `h' = (1 - z)·n + z·h`. `input` is `[n, k]`, `hidden` `[n, h]`, `weight_ih` `[3h, k]`, `weight_hh` \
          `[3h, h]`.",
    ports: &[INPUT, HIDDEN, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH],
    shape: ShapeRule::Fn(|cx| step_shape(cx, 3, None)),
    expand: Some(|c| {
        let gates = c.x[0].op(&LINEAR, &[c.x[2], c.x[4]]);
        vec![gru_step(gates, c.x[1].op(&LINEAR, &[c.x[3], c.x[5]]), c.x[1])]
    }),
    lowering: torch(|s| step_torch(s, "torch.gru_cell", s.arg(1).to_owned(), 2)),
    cases: &["[2,4] [2,3] [9,4] [9,3] [9] [9]", "[1,2] [1,2] [6,2] [6,2]"],
    ..RECURRENT
};

/// The shapes of the states; `cell` is the port of the second one.
fn step_shape(cx: &ShapeCx<'_>, gates: i64, cell: Option<usize>) -> Result<Vec<Shape>> {
    rank_of(cx, 0, 2)?;
    check_states(cx, gates, cell, [&cx.shape(0)[0], &cx.shape(0)[1]])?;
    Ok([1].into_iter().chain(cell).map(|i| cx.shape(i).clone()).collect())
}

/// Checks states and weights, for an input of such a batch and so many features.
fn check_states(cx: &ShapeCx<'_>, gates: i64, cell: Option<usize>, input: [&Dim; 2]) -> Result<()> {
    let [batch, features] = input;
    let weights = if cell.is_some() { 3 } else { 2 };
    for i in [1, weights, weights + 1].into_iter().chain(cell) {
        rank_of(cx, i, 2)?;
    }
    let (hidden, weight_ih, weight_hh) = (cx.shape(1), cx.shape(weights), cx.shape(weights + 1));
    cx.same(&hidden[0], batch, "sizes of the batch, of the state and of the input")?;
    cx.same(&weight_ih[1], features, "features of the weight and of the input")?;
    cx.same(&weight_hh[1], &hidden[1], "features of the weight and of the state")?;
    cx.same(&weight_hh[0], &weight_ih[0], "rows of the two weights")?;
    let state = cell.map_or(hidden, |i| cx.shape(i));
    has_some(cx, &state[1], "state", "feature")?;
    cx.same(&state[0], batch, "sizes of the batch, of the state and of the input")?;
    cx.same(&weight_ih[0], &(&Dim::Const(gates) * &state[1]), "rows of the weight and gates of the state")?;
    for bias in [weights + 2, weights + 3].into_iter().filter(|&i| cx.has(i)) {
        rank_of(cx, bias, 1)?;
        cx.same(&cx.shape(bias)[0], &weight_ih[0], "elements of the bias and rows of the weight")?;
    }
    if let Some(projection) = cx.op().port("weight_hr").filter(|&i| cx.has(i)) {
        rank_of(cx, projection, 2)?;
        let weight_hr = cx.shape(projection);
        cx.same(&weight_hr[1], &state[1], "columns of the projection and features of the cell")?;
        return cx.same(&weight_hr[0], &hidden[1], "rows of the projection and features of the state");
    }
    cx.same(&hidden[1], &state[1], "features of the two states")
}

fn rnn_step<'a>(c: &ExpandCx<'a>, sum: V<'a>, nonlinearity: usize) -> V<'a> {
    if is_relu(c, nonlinearity) { sum.op(&RELU, &[]) } else { sum.tanh() }
}

/// Hidden state and cell, from the sums of the gates.
fn lstm_step<'a>(gates: V<'a>, cell: V<'a>) -> (V<'a>, V<'a>) {
    let gates = parts(gates, 4);
    let cell = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
    (gates[3].sigmoid() * cell.tanh(), cell)
}

/// The state, from what the input and the state before add to the gates.
fn gru_step<'a>(input: V<'a>, state: V<'a>, hidden: V<'a>) -> V<'a> {
    let (x, s) = (parts(input, 3), parts(state, 3));
    let (r, z) = ((x[0] + s[0]).sigmoid(), (x[1] + s[1]).sigmoid());
    let n = (x[2] + r * s[2]).tanh();
    // n + z·(h - n) is (1 - z)·n + z·h
    n + z * (hidden - n)
}

/// So many equal parts along the last axis.
fn parts(x: V<'_>, count: i64) -> Vec<V<'_>> {
    split(x, count, -1)
}

/// So many equal parts along an axis, also where an error is recorded.
fn split(x: V<'_>, count: i64, axis: i64) -> Vec<V<'_>> {
    let mut all = x.cx().apply(&SPLIT, &[x, x.lit(count), x.lit(axis)]);
    all.resize(count as usize, x);
    all
}

fn is_relu(c: &ExpandCx<'_>, i: usize) -> bool {
    c.get(|a| a.text(i)) == "relu"
}

macro_rules! sequence_doc {
    ($what:literal, $step:literal, $states:literal) => {
        concat!(
            $what,
            ": a pass over the sequence `input` `[t, n, k]`, or `[n, t, k]` with `batch_first`.\n\n",
            $step,
            " Weights, biases and the order of the gates are those of PyTorch. ",
            $states,
            " With `reverse` the pass starts at the last element; results stay at the places of their elements."
        )
    };
}

// --- passes ------------------------------------------------------------------------------------------------------

/// A pass of a simple recurrent network
pub static RNN_SEQUENCE: OpDef = OpDef {
    name: "rnn_sequence",
    doc: sequence_doc!(
        "A simple recurrent network",
        "Each step computes `h = tanh(W_ih·x + b_ih + W_hh·h + b_hh)`, or `relu` instead of `tanh`; `weight_ih` is \
         `[h, k]`, `weight_hh` `[h, h]`.",
        "`hidden` `[n, h]` is the state before; the results are the states, and the last one."
    ),
    ports: &[INPUT, HIDDEN, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, NONLINEARITY, REVERSE, BATCH_FIRST],
    outputs: &["output", "last_hidden"],
    shape: ShapeRule::Fn(|cx| sequence_shape(cx, 1, None, 8)),
    expand: Some(|c| {
        let gates = projected(c, 2, 4, Some(5), 8);
        let hiddens = c.cx.call(&RNN_SCAN, &[gates, c.x[1], c.x[3], c.x[6], c.x[7]]);
        vec![restored(c, hiddens, 8), last(c, hiddens, 7)]
    }),
    lowering: torch(|s| helper_call(s, "_rnn_sequence")),
    cases: &[
        "[3,2,4] [2,3] [3,4] [3,3] [3] [3]",
        "[2,3,1] [2,2] [2,1] [2,2] nonlinearity=\"relu\" reverse=true batch_first=true",
    ],
    ..RECURRENT
};

/// A pass of a long short-term memory
pub static LSTM_SEQUENCE: OpDef = OpDef {
    name: "lstm_sequence",
    doc: sequence_doc!(
        "A long short-term memory (Hochreiter and Schmidhuber 1997)",
        "With the gates i, f, g, o of `W_ih·x + b_ih + W_hh·h + b_hh`, each step computes \
         `c' = σ(f)·c + σ(i)·tanh(g)` and `h' = σ(o)·tanh(c')`, or `W_hr·σ(o)·tanh(c')` with `weight_hr` (Sak et al. \
         2014); `weight_ih` is `[4h, k]`, `weight_hh` `[4h, h]`.",
        "`hidden` and `cell` `[n, h]` are the states before; the results are the hidden states, and the last states."
    ),
    ports: &[
        INPUT,
        HIDDEN,
        CELL,
        WEIGHT_IH,
        WEIGHT_HH,
        BIAS_IH,
        BIAS_HH,
        optional("weight_hr"),
        REVERSE,
        BATCH_FIRST,
    ],
    outputs: &["output", "last_hidden", "last_cell"],
    shape: ShapeRule::Fn(|cx| sequence_shape(cx, 4, Some(2), 9)),
    expand: Some(lstm_expand),
    lowering: torch(|s| {
        // PyTorch warns of projections, for which it has no fast code on CPUs.
        if s.ty(7).is_none() { helper_call(s, "_lstm_sequence") } else { None }
    }),
    cases: &[
        "[3,2,4] [2,3] [2,3] [12,4] [12,3] [12] [12]",
        "[2,3,1] [2,2] [2,2] [8,1] [8,2] reverse=true batch_first=true",
        "[3,2,2] [2,2] [2,3] [12,2] [12,2] [12] [12] [2,3]",
        "[1,1,1] [1,1] [1,1] [4,1] [4,1] [4]",
    ],
    ..RECURRENT
};

/// A pass of a gated recurrent unit
pub static GRU_SEQUENCE: OpDef = OpDef {
    name: "gru_sequence",
    doc: sequence_doc!(
        "A gated recurrent unit (Cho et al. 2014)",
        "With the gates r, z, n of `x' = W_ih·x + b_ih` and `s = W_hh·h + b_hh`, each step computes `r = σ(x'_r + s_r)`, \
         `z = σ(x'_z + s_z)`, `n = tanh(x'_n + r·s_n)` and `h' = (1 - z)·n + z·h`; `weight_ih` is `[3h, k]`, \
         `weight_hh` `[3h, h]`.",
        "`hidden` `[n, h]` is the state before; the results are the states, and the last one."
    ),
    ports: &[INPUT, HIDDEN, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, REVERSE, BATCH_FIRST],
    outputs: &["output", "last_hidden"],
    shape: ShapeRule::Fn(|cx| sequence_shape(cx, 3, None, 7)),
    expand: Some(|c| {
        let gates = projected(c, 2, 4, None, 7);
        let hiddens = c.cx.call(&GRU_SCAN, &[gates, c.x[1], c.x[3], c.x[5], c.x[6]]);
        vec![restored(c, hiddens, 7), last(c, hiddens, 6)]
    }),
    lowering: torch(|s| helper_call(s, "_gru_sequence")),
    cases: &["[3,2,4] [2,3] [9,4] [9,3] [9] [9]", "[2,3,1] [2,2] [6,1] [6,2] reverse=true batch_first=true"],
    ..RECURRENT
};

/// The shapes of a pass with so many gates; `cell` is the port of the second state, `batch_first` that of the order.
fn sequence_shape(
    cx: &ShapeCx<'_>,
    gates: i64,
    cell: Option<usize>,
    batch_first: usize,
) -> Result<Vec<Shape>> {
    rank_of(cx, 0, 3)?;
    let (input, hidden) = (cx.shape(0), cx.shape(1));
    let (time, batch) = if cx.bool(batch_first)? { (1, 0) } else { (0, 1) };
    has_some(cx, &input[time], "sequence", "element")?;
    check_states(cx, gates, cell, [&input[batch], &input[2]])?;
    let mut output = input.clone();
    output.0[2] = hidden[1].clone();
    Ok([output, hidden.clone()].into_iter().chain(cell.map(|i| cx.shape(i).clone())).collect())
}

fn rank_of(cx: &ShapeCx<'_>, i: usize, rank: usize) -> Result<()> {
    let shape = cx.shape(i);
    if shape.rank() == rank {
        return Ok(());
    }
    let port = cx.op().ports[i].name;
    let message = format!("`{port}` of {} has the shape {shape}", cx.op().name);
    Err(Error::new(Code::ShapeMismatch, message).help(format!("`{port}` must have {rank} axes")))
}

/// Refuses a sequence without elements, or a state without features.
fn has_some(cx: &ShapeCx<'_>, size: &Dim, what: &str, of: &str) -> Result<()> {
    if !size.is(0) {
        return Ok(());
    }
    let message = format!("the {what} of {} has no {of}s", cx.op().name);
    Err(Error::new(Code::ShapeMismatch, message).help(format!("pass at least one {of}")))
}

/// What the input adds to the gates of all steps, `[t, n, …]`; `added` is a bias of the state that may be added already.
fn projected<'a>(
    c: &ExpandCx<'a>,
    weight: usize,
    bias: usize,
    added: Option<usize>,
    batch_first: usize,
) -> V<'a> {
    let biases = [Some(bias), added].into_iter().flatten().map(|i| c.x[i]).filter(|b| b.is_some());
    let bias = biases.reduce(|a, b| a + b).unwrap_or_else(|| c.cx.none());
    let gates = c.x[0].op(&LINEAR, &[c.x[weight], bias]);
    if c.get(|a| a.bool(batch_first)) { gates.swapaxes(0, 1) } else { gates }
}

/// States `[t, n, h]` in the order of the input.
fn restored<'a>(c: &ExpandCx<'a>, states: V<'a>, batch_first: usize) -> V<'a> {
    if c.get(|a| a.bool(batch_first)) { states.swapaxes(0, 1) } else { states }
}

/// The state after all steps.
fn last<'a>(c: &ExpandCx<'a>, states: V<'a>, reverse: usize) -> V<'a> {
    let end = if c.get(|a| a.bool(reverse)) {
        cut(states, 0, None, Some(Dim::ONE))
    } else {
        cut(states, 0, Some(Dim::Const(-1)), None)
    };
    end.squeeze(0)
}

fn lstm_expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let gates = projected(c, 3, 5, Some(6), 9);
    let (hiddens, cells) = if c.x[7].is_some() {
        steps_of_projected_lstm(c, gates)
    } else {
        let states = c.cx.apply(&LSTM_SCAN, &[gates, c.x[1], c.x[2], c.x[4], c.x[8]]);
        (states[0], states[1.min(states.len() - 1)])
    };
    vec![restored(c, hiddens, 9), last(c, hiddens, 8), last(c, cells, 8)]
}

/// The states of an LSTM whose hidden state is a projection.
fn steps_of_projected_lstm<'a>(c: &ExpandCx<'a>, gates: V<'a>) -> (V<'a>, V<'a>) {
    let reverse = c.get(|a| a.bool(8));
    let states = scanned(c, reverse, &[gates], &[c.x[1], c.x[2]], |x, states| {
        let (hidden, cell) = lstm_step(x[0] + states[0].op(&LINEAR, &[c.x[4]]), states[1]);
        let hidden = hidden.op(&LINEAR, &[c.x[7]]);
        Step { states: vec![hidden, cell], results: vec![hidden, cell] }
    });
    (states.results[0], states.results[1])
}

// --- targets -----------------------------------------------------------------------------------------------------

const fn torch(text: fn(&LoweringCx<'_>) -> Option<String>) -> Lowering {
    Lowering { torch: Function(text), ..Lowering::NONE }
}

const fn scan_lowering(text: fn(&LoweringCx<'_>) -> Option<String>) -> Lowering {
    Lowering {
        numpy: Function(text),
        torch: Function(text),
        jax: Function(text),
        mlx: Function(text),
        ..Lowering::NONE
    }
}

/// A call of PyTorch's function for a step, of the states before and of the weights and biases from a port on.
fn step_torch(s: &LoweringCx<'_>, function: &str, states: String, weights: usize) -> Option<String> {
    let weights = (weights..weights + 4).map(|i| s.arg(i).to_owned());
    let args: Vec<String> = [s.arg(0).to_owned(), states].into_iter().chain(weights).collect();
    is_computed_whole(s).then(|| format!("{function}({})", args.join(", ")))
}

/// Whether nothing is rounded between the ops that a step consists of, as 16-bit floats are.
fn is_computed_whole(s: &LoweringCx<'_>) -> bool {
    s.out(0).is_some_and(|ty| matches!(ty.dtype, DType::F32 | DType::F64))
}

/// A call of the helper of a scan, which says whether something reads the sums, the last output.
fn scan_call(s: &LoweringCx<'_>, helper: &str) -> Option<String> {
    let sums = s.node.outputs.last()?;
    let is_read = s.graph.nodes().any(|(_, node)| node.inputs.contains(sums))
        || s.graph.outputs.values().any(|output| output == sums)
        || s.graph.updates.iter().any(|(_, update)| update == sums);
    call_with(s, helper, Some(("with_sums", if is_read { "True" } else { "False" })))
}

/// A call of a helper.
fn helper_call(s: &LoweringCx<'_>, helper: &str) -> Option<String> {
    call_with(s, helper, None)
}

fn call_with(s: &LoweringCx<'_>, helper: &str, flag: Option<(&str, &str)>) -> Option<String> {
    if !is_computed_whole(s) {
        return None;
    }
    let args = s.args.iter().map(String::as_str).chain(flag.map(|(_, value)| value));
    let args = args.collect::<Vec<_>>().join(", ");
    if s.xp != "jnp" {
        return Some(format!("{helper}({args})"));
    }
    // Outside of compiled functions a scan would be compiled at each call.
    let ports = s.node.op.ports.iter().enumerate().filter(|(i, _)| !s.node.op.takes_tensor(*i));
    let options = ports.map(|(_, port)| port.name).chain(flag.map(|(name, _)| name));
    let options: Vec<String> = options.map(|name| format!("\"{name}\"")).collect();
    Some(format!("jax.jit({helper}, static_argnames=[{}])({args})", options.join(", ")))
}
