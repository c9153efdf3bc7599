//! Scans over the steps of recurrent networks, and their gradients.

use super::{
    CELL, HIDDEN, NONLINEARITY, RECURRENT, REVERSE, WEIGHT, gru_step, has_some, helper_call, is_relu,
    lstm_step, parts, rank_of, rnn_step, scan_call, scan_lowering, split,
};
use crate::dim::Dim;
use crate::dtype::Kinds;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, GradCx, V};
use crate::literal::Lit;
use crate::op::{Grad, OpDef, ShapeRule, optional, tensor_of};
use crate::ops::factor::is_zero;
use crate::ops::linalg::{LINEAR, rows, transposed};
use crate::ops::slicing::cut;
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;

/// Steps that are written out at most.
const MAX_STEPS: i64 = 100_000;

/// The states of a simple recurrent network
pub static RNN_SCAN: OpDef = OpDef {
    name: "rnn_scan",
    doc: "The states `[t, n, h]` of `rnn_sequence`, from what the input adds to them (`gates`, `[t, n, h]`).",
    ports: &[tensor_of("gates", Kinds::FLOAT), HIDDEN, WEIGHT, NONLINEARITY, REVERSE],
    shape: ShapeRule::Fn(|cx| scan_shape(cx, 1, 2, &[1])),
    expand: Some(|c| {
        let scan = scanned(c, c.get(|a| a.bool(4)), &[c.x[0]], &[c.x[1]], |x, states| {
            let hidden = rnn_step(c, x[0] + states[0].op(&LINEAR, &[c.x[2]]), 3);
            Step { states: vec![hidden], results: vec![hidden] }
        });
        scan.results
    }),
    grad: Grad::Loop(|v| {
        let before = before(v, v.y, v.x[1], 4);
        let slope = if is_relu(v, 3) { v.y.greater(0).cast(v.y.dtype()) } else { 1.0 - v.y * v.y };
        let (of_hiddens, of_first) = hidden_gradient(v, [slope, v.x[2], v.none(), v.none()]);
        let of_gates = slope * of_hiddens;
        vec![of_gates, of_first, weight_gradient(of_gates, before)]
    }),
    lowering: scan_lowering(|s| helper_call(s, "_rnn_scan")),
    cases: &["[3,2,3] [2,3] [3,3]", "[2,1,2] [1,2] [2,2] nonlinearity=\"relu\" reverse=true"],
    ..RECURRENT
};

/// The states of a long short-term memory
pub static LSTM_SCAN: OpDef = OpDef {
    name: "lstm_scan",
    doc: "The hidden states and the cells `[t, n, h]` of `lstm_sequence`, and the sums of the gates `[t, n, 4h]`, from \
          what the input and the biases add to them (`gates`, `[t, n, 4h]`).",
    ports: &[tensor_of("gates", Kinds::FLOAT), HIDDEN, CELL, WEIGHT, REVERSE],
    outputs: &["output", "cells", "sums"],
    shape: ShapeRule::Fn(|cx| {
        let states = scan_shape(cx, 4, 3, &[1, 2])?;
        Ok(states.into_iter().chain([cx.shape(0).clone()]).collect())
    }),
    expand: Some(|c| {
        let scan = scanned(c, c.get(|a| a.bool(4)), &[c.x[0]], &[c.x[1], c.x[2]], |x, states| {
            let sums = x[0] + states[0].op(&LINEAR, &[c.x[3]]);
            let (hidden, cell) = lstm_step(sums, states[1]);
            Step { states: vec![hidden, cell], results: vec![hidden, cell, sums] }
        });
        scan.results
    }),
    grad: Grad::Loop(lstm_scan_grad),
    lowering: scan_lowering(|s| scan_call(s, "_lstm_scan")),
    cases: &["[3,2,12] [2,3] [2,3] [12,3]", "[2,1,8] [1,2] [1,2] [8,2] reverse=true"],
    ..RECURRENT
};

/// The states of a gated recurrent unit
pub static GRU_SCAN: OpDef = OpDef {
    name: "gru_scan",
    doc: "The states `[t, n, h]` of `gru_sequence`, and what the state adds to the gates, `[t, n, 3h]`, from what the \
          input adds to them (`gates`, `[t, n, 3h]`).",
    ports: &[tensor_of("gates", Kinds::FLOAT), HIDDEN, WEIGHT, optional("bias"), REVERSE],
    outputs: &["output", "sums"],
    shape: ShapeRule::Fn(|cx| {
        if cx.has(3) {
            rank_of(cx, 3, 1)?;
            cx.same(&cx.shape(3)[0], &cx.shape(2)[0], "elements of the bias and rows of the weight")?;
        }
        let states = scan_shape(cx, 3, 2, &[1])?;
        Ok(states.into_iter().chain([cx.shape(0).clone()]).collect())
    }),
    expand: Some(|c| {
        let scan = scanned(c, c.get(|a| a.bool(4)), &[c.x[0]], &[c.x[1]], |x, states| {
            let sums = states[0].op(&LINEAR, &[c.x[2], c.x[3]]);
            let hidden = gru_step(x[0], sums, states[0]);
            Step { states: vec![hidden], results: vec![hidden, sums] }
        });
        scan.results
    }),
    grad: Grad::Loop(gru_scan_grad),
    lowering: scan_lowering(|s| scan_call(s, "_gru_scan")),
    cases: &["[3,2,9] [2,3] [9,3] [9]", "[2,1,6] [1,2] [6,2] reverse=true"],
    ..RECURRENT
};

/// The shape of the gates, for each state that is an output.
fn scan_shape(cx: &ShapeCx<'_>, gates: i64, weight: usize, states: &[usize]) -> Result<Vec<Shape>> {
    rank_of(cx, 0, 3)?;
    rank_of(cx, weight, 2)?;
    let (input, weights) = (cx.shape(0), cx.shape(weight));
    has_some(cx, &input[0], "sequence", "element")?;
    let mut outputs = Vec::new();
    for &i in states {
        rank_of(cx, i, 2)?;
        let state = cx.shape(i);
        has_some(cx, &state[1], "state", "feature")?;
        cx.same(&state[0], &input[1], "sizes of the batch, of the state and of the gates")?;
        cx.same(&input[2], &(&Dim::Const(gates) * &state[1]), "features of the gates and of the state")?;
        cx.same(&weights[1], &state[1], "columns of the weight and features of the state")?;
        outputs.push(Shape::of([input[0].clone(), input[1].clone(), state[1].clone()]));
    }
    cx.same(&weights[0], &input[2], "rows of the weight and features of the gates")?;
    Ok(outputs)
}

// --- gradients ---------------------------------------------------------------------------------------------------

/// The gradient of scans of one state
pub static HIDDEN_SCAN_GRADIENT: OpDef = OpDef {
    name: "hidden_scan_gradient",
    doc: "Gradients `[t, n, h]` of the states of a scan, and that of the state before, `[n, h]`, by backpropagation \
          through time.\n\nThe gradient of a state is what is passed from behind, `gradient` `[t, n, h]`, and what the next \
          state takes from it: `kept·d + (slopes·d)·weight` of the gradient `d` of that one, where `slopes` `[t, n, \
          i·h]` are those of the gates and `kept` `[t, n, h]` is what the state passes on directly (0 if not given); \
          `of_sums` `[t, n, i·h]` is passed to the products with the weight from elsewhere. `reverse` says in which order \
          the scan went.",
    ports: &[
        tensor_of("gradient", Kinds::FLOAT),
        tensor_of("slopes", Kinds::FLOAT),
        WEIGHT,
        optional("kept"),
        optional("of_sums"),
        REVERSE,
    ],
    outputs: &["gradients", "first"],
    shape: ShapeRule::Fn(|cx| {
        let [gradient, first, _] = gradient_shapes(cx, &[3], [1, 4], 2)?;
        Ok(vec![gradient, first])
    }),
    expand: Some(|c| {
        let inputs: Vec<V<'_>> = [0, 1, 3, 4].map(|i| c.x[i]).into_iter().filter(|x| x.is_some()).collect();
        let (has_kept, has_sums) = (c.x[3].is_some(), c.x[4].is_some());
        let first = zeros_of_step(c.x[0]);
        let scan = scanned(c, !c.get(|a| a.bool(5)), &inputs, &[first], |x, states| {
            let d = x[0] + states[0];
            let slopes = x[1] * repeated(d, x[1]);
            let mut passed = (if has_sums { slopes + x[x.len() - 1] } else { slopes }).matmul(c.x[2]);
            if has_kept {
                passed = passed + x[2] * d;
            }
            Step { states: vec![passed], results: vec![d] }
        });
        vec![scan.results[0], scan.states[0]]
    }),
    lowering: scan_lowering(|s| helper_call(s, "_hidden_scan_gradient")),
    cases: &["[3,2,3] [3,2,3] [3,3]", "[2,1,2] [2,1,6] [6,2] [2,1,2] [2,1,6] reverse=true"],
    ..RECURRENT
};

/// The gradient of the scan of a long short-term memory
pub static LSTM_SCAN_GRADIENT: OpDef = OpDef {
    name: "lstm_scan_gradient",
    doc: "Gradients of the sums of the gates, `[t, n, 4h]`, and of the states before, `[n, h]`, of `lstm_scan`, by \
          backpropagation through time.\n\nThey are computed from those of the hidden states and the cells, `[t, n, h]`; \
          `slopes` `[t, n, 4h]` are what a change of the gates changes in the cell, and for the last gate in the hidden \
          state, `shown` `[t, n, h]` what one of the cell changes in the hidden state, and `kept` `[t, n, h]` what it \
          changes in the next cell; `of_sums` `[t, n, 4h]` is passed to the sums from elsewhere. `reverse` says in which \
          order the scan went.",
    ports: &[
        tensor_of("gradient", Kinds::FLOAT),
        tensor_of("cell_gradient", Kinds::FLOAT),
        tensor_of("slopes", Kinds::FLOAT),
        tensor_of("shown", Kinds::FLOAT),
        tensor_of("kept", Kinds::FLOAT),
        WEIGHT,
        optional("of_sums"),
        REVERSE,
    ],
    outputs: &["gates", "hidden", "cell"],
    shape: ShapeRule::Fn(|cx| {
        let [gradient, first, gates] = gradient_shapes(cx, &[1, 3, 4], [2, 6], 5)?;
        cx.same(&gates[2], &(&Dim::Const(4) * &gradient[2]), "features of the gates and of the state")?;
        Ok(vec![gates, first.clone(), first])
    }),
    expand: Some(|c| {
        let first = zeros_of_step(c.x[0]);
        let has_sums = c.x[6].is_some();
        let inputs: Vec<V<'_>> = c.x[..5].iter().chain(has_sums.then_some(&c.x[6])).copied().collect();
        let scan = scanned(c, !c.get(|a| a.bool(7)), &inputs, &[first, first], |x, states| {
            let hidden = x[0] + states[0];
            let cell = x[1] + states[1] + hidden * x[3];
            let mut gates = x[2] * c.cx.concat(-1, &[cell, cell, cell, hidden]);
            if has_sums {
                gates = gates + x[5];
            }
            Step { states: vec![gates.matmul(c.x[5]), cell * x[4]], results: vec![gates] }
        });
        vec![scan.results[0], scan.states[0], scan.states[1]]
    }),
    lowering: scan_lowering(|s| helper_call(s, "_lstm_scan_gradient")),
    cases: &[
        "[3,2,3] [3,2,3] [3,2,12] [3,2,3] [3,2,3] [12,3]",
        "[2,1,2] [2,1,2] [2,1,8] [2,1,2] [2,1,2] [8,2] [2,1,8] reverse=true",
    ],
    ..RECURRENT
};

/// The shapes of the gradients of the states, of the state before and of the gates; `like` are ports with the shape of
/// the states, `gates` ports with that of the gates. Those without a tensor are not checked.
fn gradient_shapes(cx: &ShapeCx<'_>, like: &[usize], gates: [usize; 2], weight: usize) -> Result<[Shape; 3]> {
    let all = std::iter::once(0).chain(like.iter().copied()).chain(gates).filter(|&i| cx.has(i));
    for i in all {
        rank_of(cx, i, 3)?;
        cx.same(&cx.shape(i)[0], &cx.shape(0)[0], "numbers of steps")?;
        cx.same(&cx.shape(i)[1], &cx.shape(0)[1], "sizes of the batch")?;
    }
    let (states, weights, sums) = (cx.shape(0), cx.shape(weight), cx.shape(gates[0]));
    has_some(cx, &states[0], "sequence", "element")?;
    has_some(cx, &states[2], "state", "feature")?;
    rank_of(cx, weight, 2)?;
    for &i in like.iter().filter(|&&i| cx.has(i)) {
        cx.same(&cx.shape(i)[2], &states[2], "features of the states")?;
    }
    if cx.has(gates[1]) {
        cx.same(&cx.shape(gates[1])[2], &sums[2], "features of the gates")?;
    }
    cx.same(&weights[0], &sums[2], "rows of the weight and features of the gates")?;
    cx.same(&weights[1], &states[2], "columns of the weight and features of the state")?;
    if let (Some(all), Some(one)) = (sums[2].known(), states[2].known())
        && all % one != 0
    {
        let message = format!("{all} features of the gates are no multiple of {one}");
        return Err(
            Error::new(Code::ShapeMismatch, message).help("each gate has as many features as the state")
        );
    }
    let first = Shape::of(states.iter().skip(1).cloned());
    Ok([states.clone(), first, sums.clone()])
}

fn lstm_scan_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let (cells, weight) = (v.ys[1], v.x[3]);
    let (hiddens_before, cells_before) = (before(v, v.y, v.x[1], 4), before(v, cells, v.x[2], 4));
    let gates = parts(v.ys[2], 4);
    let [i, f, o] = [0, 1, 3].map(|gate| gates[gate].sigmoid());
    let (g, shown) = (gates[2].tanh(), cells.tanh());
    let slope = |gate: V<'a>| gate * (1.0 - gate);
    let slopes = [g * slope(i), cells_before * slope(f), i * (1.0 - g * g), shown * slope(o)];
    let slopes = v.cx.concat(-1, &slopes);
    let args = [v.gs[0], v.gs[1], slopes, o * (1.0 - shown * shown), f, weight, unless_zero(v.gs[2]), v.x[4]];
    let gradients = v.cx.apply(&LSTM_SCAN_GRADIENT, &args);
    let [of_gates, of_hidden, of_cell] = [0, 1, 2].map(|i| gradients[i.min(gradients.len() - 1)]);
    vec![of_gates, of_hidden, of_cell, weight_gradient(of_gates, hiddens_before)]
}

fn gru_scan_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let (weight, bias) = (v.x[2], v.x[3]);
    let before = before(v, v.y, v.x[1], 4);
    let (x, s) = (parts(v.x[0], 3), parts(v.ys[1], 3));
    let (r, z) = ((x[0] + s[0]).sigmoid(), (x[1] + s[1]).sigmoid());
    let n = (x[2] + r * s[2]).tanh();
    let of_n = (1.0 - z) * (1.0 - n * n);
    let (slope_r, slope_z) = (of_n * s[2] * r * (1.0 - r), (before - n) * z * (1.0 - z));
    let slopes = v.cx.concat(-1, &[slope_r, slope_z, of_n * r]);
    let of_sums = unless_zero(v.gs[1]);
    let (of_hiddens, of_first) = hidden_gradient(v, [slopes, weight, z, of_sums]);
    let [of_r, of_z, of_n] = [slope_r, slope_z, of_n].map(|slope| slope * of_hiddens);
    let of_gates = v.cx.concat(-1, &[of_r, of_z, of_n]);
    let mut of_products = v.cx.concat(-1, &[of_r, of_z, of_n * r]);
    if of_sums.is_some() {
        of_products = of_products + of_sums;
    }
    let of_bias = if bias.is_some() { rows(of_products).sum(0, false) } else { v.none() };
    vec![of_gates, of_first, weight_gradient(of_products, before), of_bias]
}

/// Gradients of the states of a scan, and that of the state before; of slopes, weight, what is kept and sums.
fn hidden_gradient<'a>(v: &GradCx<'a>, [slopes, weight, kept, of_sums]: [V<'a>; 4]) -> (V<'a>, V<'a>) {
    let gradients = v.cx.apply(&HIDDEN_SCAN_GRADIENT, &[v.g, slopes, weight, kept, of_sums, v.x[4]]);
    (gradients[0], gradients[gradients.len() - 1])
}

/// The cotangent of an output that something reads.
fn unless_zero(cotangent: V<'_>) -> V<'_> {
    if is_zero(cotangent) { cotangent.cx().none() } else { cotangent }
}

/// The state before each step.
fn before<'a>(c: &ExpandCx<'a>, states: V<'a>, first: V<'a>, reverse: usize) -> V<'a> {
    let first = first.expand_dims(0);
    if c.get(|a| a.bool(reverse)) {
        c.cx.concat(0, &[cut(states, 0, Some(Dim::ONE), None), first])
    } else {
        c.cx.concat(0, &[first, cut(states, 0, None, Some(Dim::Const(-1)))])
    }
}

/// Of a weight that each step multiplies its state by.
fn weight_gradient<'a>(of_products: V<'a>, states: V<'a>) -> V<'a> {
    transposed(rows(of_products)).matmul(rows(states))
}

/// A state side by side, once for each gate.
fn repeated<'a>(state: V<'a>, gates: V<'a>) -> V<'a> {
    let count = gates.dim(-1).exact_div(&state.dim(-1)).and_then(|count| count.known()).unwrap_or(1);
    if count == 1 { state } else { state.cx().concat(-1, &vec![state; count as usize]) }
}

fn zeros_of_step(x: V<'_>) -> V<'_> {
    x.cx().zeros(Lit::tuple(x.shape().iter().skip(1).map(|d| Lit::from(d.clone()))), x.dtype())
}

// --- steps that are written out ------------------------------------------------------------------------------------

/// What a step leaves.
pub(super) struct Step<'a> {
    pub(super) states: Vec<V<'a>>,
    pub(super) results: Vec<V<'a>>,
}

/// Writes the steps of a scan out: the results of all of them, stacked, and the last states.
pub(super) fn scanned<'a>(
    c: &ExpandCx<'a>,
    reverse: bool,
    inputs: &[V<'a>],
    first: &[V<'a>],
    step: impl Fn(&[V<'a>], &[V<'a>]) -> Step<'a>,
) -> Step<'a> {
    let count = match inputs[0].dim(0).known() {
        Some(count) if (1..=MAX_STEPS).contains(&count) => count,
        known => {
            c.cx.fail(not_written_out(c, known));
            1
        }
    };
    let steps = |x: &V<'a>| -> Vec<V<'a>> {
        let parts = if count == 1 { vec![*x] } else { split(*x, count, 0) };
        parts.into_iter().map(|part| part.squeeze(0)).collect()
    };
    let inputs: Vec<Vec<V<'a>>> = inputs.iter().map(steps).collect();
    let mut order: Vec<usize> = (0..inputs[0].len()).collect();
    if reverse {
        order.reverse();
    }
    let mut states = first.to_vec();
    let mut results: Vec<Vec<V<'a>>> = Vec::new();
    for t in order {
        let x: Vec<V<'a>> = inputs.iter().map(|steps| steps[t]).collect();
        let done = step(&x, &states);
        states = done.states;
        results.push(done.results);
    }
    if reverse {
        results.reverse();
    }
    let stacked = |i: usize| {
        let items: Vec<V<'a>> = results.iter().map(|results| results[i]).collect();
        c.cx.stack(0, &items)
    };
    Step { states, results: (0..results[0].len()).map(stacked).collect() }
}

fn not_written_out(c: &ExpandCx<'_>, steps: Option<i64>) -> Error {
    match steps {
        None => Error::new(
            Code::UnknownShape,
            format!("the steps of {} are written out, so their number must be known", c.op.name),
        )
        .help("pass the shapes of the inputs to compile"),
        Some(steps) => {
            Error::new(Code::BadArgument, format!("{} has {steps} steps", c.op.name)).help(format!(
                "at most {MAX_STEPS} are written out: pass the sequence in parts, with the states in between"
            ))
        }
    }
}
