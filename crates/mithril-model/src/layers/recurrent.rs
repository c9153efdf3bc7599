//! Recurrent layers: single steps, and passes over sequences.
//!
//! Parameters, their layout and the order of the gates are those of PyTorch.

use mithril_ir::Result;
use mithril_ir::op::{Attr, DefaultLit};

use super::expr::{input, op, optional, parameter, size, split, tuple};
use super::{LayerArg, LayerArgs, LayerDef, arg};
use crate::connection::{Arg, Connection};
use crate::init::Init;
use crate::key::{IOKey, Size};
use crate::model::Model;

const INPUT: LayerArg = arg(
    "input_size",
    Attr::OptInt,
    DefaultLit::None,
    "Number of features of the input; inferred if not given.",
);
const HIDDEN: LayerArg =
    arg("hidden_size", Attr::Int, DefaultLit::Required, "Number of features of the state.");
const BIAS: LayerArg = arg("bias", Attr::Bool, DefaultLit::Bool(true), "Whether biases are added.");
const LENGTH: LayerArg = arg(
    "length",
    Attr::OptInt,
    DefaultLit::None,
    "Number of elements of the sequence; any number if not given.",
);
const LAYERS_ARG: LayerArg = arg("num_layers", Attr::Int, DefaultLit::Int(1), "Layers on top of each other.");
const BATCH_FIRST: LayerArg = arg(
    "batch_first",
    Attr::Bool,
    DefaultLit::Bool(false),
    "Input `[n, length, in]` instead of `[length, n, in]`.",
);
const BIDIRECTIONAL: LayerArg = arg(
    "bidirectional",
    Attr::Bool,
    DefaultLit::Bool(false),
    "Whether a second pass reads the sequence backwards.",
);
const NONLINEARITY: LayerArg = arg(
    "nonlinearity",
    Attr::Choice(&["tanh", "relu"]),
    DefaultLit::Str("tanh"),
    "Activation of the new state.",
);

static ARG_ALIASES: &[(&str, &str)] = &[
    ("units", "hidden_size"),
    ("dimension", "hidden_size"),
    ("seq_len", "length"),
    ("sequence_length", "length"),
    ("use_bias", "bias"),
    ("activation", "nonlinearity"),
];

pub(super) static LAYERS: &[LayerDef] = &[
    LayerDef {
        name: "RNNCell",
        doc: "One step of a simple recurrent network: `tanh(W_ih·x + b_ih + W_hh·h + b_hh)`.\n\nInputs `input` \
              `[n, in]` and `hidden` `[n, hidden_size]` (0 if not given).",
        args: &[HIDDEN, BIAS, NONLINEARITY, INPUT],
        build: |a| cell(a, Kind::Rnn),
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "LSTMCell",
        doc: "One step of a long short-term memory (Hochreiter and Schmidhuber 1997): outputs `output`, the new hidden \
              state, and `cell_output`.\n\nWith the gates i, f, g, o of `W_ih·x + b_ih + W_hh·h + b_hh`: \
              `c' = σ(f)·c + σ(i)·tanh(g)`, `h' = σ(o)·tanh(c')`. Inputs `input` `[n, in]`, `hidden` and `cell` \
              `[n, hidden_size]` (0 if not given).",
        args: &[HIDDEN, BIAS, INPUT],
        build: |a| cell(a, Kind::Lstm),
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "GRUCell",
        doc: "One step of a gated recurrent unit (Cho et al. 2014): `r = σ(x_r + h_r)`, `z = σ(x_z + h_z)`, \
              `n = tanh(x_n + r·h_n)`, `h' = (1 - z)·n + z·h`.\n\nInputs `input` `[n, in]` and `hidden` `[n, \
              hidden_size]` (0 if not given).",
        args: &[HIDDEN, BIAS, INPUT],
        build: |a| cell(a, Kind::Gru),
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "RNN",
        doc: "A simple recurrent network over a sequence.\n\nOutputs `output` `[length, n, \
              hidden_size]` and `last_hidden` `[num_layers, n, hidden_size]`; `hidden` is the state before (0).",
        args: &[HIDDEN, LENGTH, LAYERS_ARG, BIAS, BATCH_FIRST, BIDIRECTIONAL, NONLINEARITY, INPUT],
        build: |a| sequence(a, Kind::Rnn),
        aliases: &["SimpleRNN"],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "LSTM",
        doc: "A long short-term memory over a sequence.\n\nOutputs `output` `[length, n, \
              hidden_size]`, `last_hidden` and `last_cell` `[num_layers, n, hidden_size]`; `hidden` and `cell` are \
              the states before (0).",
        args: &[HIDDEN, LENGTH, LAYERS_ARG, BIAS, BATCH_FIRST, BIDIRECTIONAL, INPUT],
        build: |a| sequence(a, Kind::Lstm),
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "GRU",
        doc: "A gated recurrent unit over a sequence.\n\nOutputs `output` `[length, n, hidden_size]` \
              and `last_hidden` `[num_layers, n, hidden_size]`; `hidden` is the state before (0).",
        args: &[HIDDEN, LENGTH, LAYERS_ARG, BIAS, BATCH_FIRST, BIDIRECTIONAL, INPUT],
        build: |a| sequence(a, Kind::Gru),
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Rnn,
    Lstm,
    Gru,
}

impl Kind {
    fn gates(self) -> i64 {
        match self {
            Self::Rnn => 1,
            Self::Gru => 3,
            Self::Lstm => 4,
        }
    }
    /// The states that a step hands on.
    fn states(self) -> &'static [&'static str] {
        if self == Self::Lstm { &["hidden", "cell"] } else { &["hidden"] }
    }
    /// The ops of a step and of a pass over a sequence.
    fn ops(self) -> [&'static str; 2] {
        match self {
            Self::Rnn => ["rnn_step", "rnn_sequence"],
            Self::Lstm => ["lstm_step", "lstm_sequence"],
            Self::Gru => ["gru_step", "gru_sequence"],
        }
    }
}

/// Weights and biases, by the names of the ports of the ops.
fn parameters(
    a: &LayerArgs<'_>,
    kind: Kind,
    features: Size,
    suffix: &str,
) -> Result<Vec<(&'static str, Arg)>> {
    let hidden = a.count("hidden_size")?;
    let init = Init::Uniform(1.0 / (hidden as f64).sqrt());
    let rows = Size::from(hidden.saturating_mul(kind.gates()));
    let named = |name: &'static str, shape: Vec<Size>| {
        (name, Arg::from(parameter(&format!("{name}{suffix}"), shape, init.clone())))
    };
    let mut all = vec![
        named("weight_ih", vec![rows.clone(), features]),
        named("weight_hh", vec![rows.clone(), Size::from(hidden)]),
    ];
    if a.bool("bias")? {
        all.extend([named("bias_ih", vec![rows.clone()]), named("bias_hh", vec![rows])]);
    }
    if kind == Kind::Rnn {
        all.push(("nonlinearity", Arg::from(a.text("nonlinearity")?.as_str())));
    }
    Ok(all)
}

fn cell(a: &LayerArgs<'_>, kind: Kind) -> Result<Model> {
    let x = input("input");
    let shape = tuple([size(&x, 0)?.into(), a.count("hidden_size")?.into()]);
    let mut args = vec![Arg::from(&x)];
    for name in kind.states() {
        args.push(op("broadcast_to", [optional(name, 0.0).into(), shape.clone()])?.into());
    }
    let named = parameters(a, kind, a.opt_size("input_size")?, "")?;
    let states = Connection::op_outputs(kind.ops()[0], args, named)?;
    Model::from_outputs(["output", "cell_output"].into_iter().zip(states))
}

fn sequence(a: &LayerArgs<'_>, kind: Kind) -> Result<Model> {
    let (hidden, layers) = (a.count("hidden_size")?, a.count("num_layers")?);
    if layers > 1_000 {
        return Err(a.bad("num_layers", "at most 1000"));
    }
    let directions = if a.bool("bidirectional")? { 2 } else { 1 };
    let batch_first = a.bool("batch_first")?;
    let (time, batch) = if batch_first { (1, 0) } else { (0, 1) };
    let mut sizes = [Size::Unknown, Size::Unknown, Size::Unknown];
    sizes[time] = a.opt_size("length")?;
    let x = Connection::input(IOKey::new("input").shape(sizes));
    let shape = tuple([(layers * directions).into(), size(&x, batch)?.into(), hidden.into()]);
    let first = |name: &str| -> Result<Vec<Connection>> {
        let all = op("broadcast_to", [optional(name, 0.0).into(), shape.clone()])?;
        split(&all, layers * directions, 0)?.iter().map(|h| op("squeeze", [h.into(), 0.into()])).collect()
    };
    let first = kind.states().iter().map(|name| first(name)).collect::<Result<Vec<_>>>()?;
    let mut last: Vec<Vec<Arg>> = vec![Vec::new(); first.len()];
    let mut below = x;
    for layer in 0..layers {
        let mut sides = Vec::new();
        for direction in 0..directions {
            let suffix = format!("_l{layer}{}", if direction == 1 { "_reverse" } else { "" });
            let features = if layer == 0 { a.opt_size("input_size")? } else { Size::Unknown };
            let at = (layer * directions + direction) as usize;
            let args = std::iter::once(&below).chain(first.iter().map(|states| &states[at]));
            let mut named = parameters(a, kind, features, &suffix)?;
            named.extend([("reverse", (direction == 1).into()), ("batch_first", batch_first.into())]);
            let results = Connection::op_outputs(kind.ops()[1], args.map(Arg::from).collect(), named)?;
            sides.push(results[0].clone());
            last.iter_mut().zip(&results[1..]).for_each(|(all, state)| all.push(state.into()));
        }
        below = match sides.as_slice() {
            [one] => one.clone(),
            both => Connection::op(
                "concat",
                vec![(-1).into(), Arg::List(both.iter().map(Arg::from).collect())],
                Vec::new(),
            )?,
        };
    }
    let stack = |items: Vec<Arg>| Connection::op("stack", vec![0.into(), Arg::List(items)], Vec::new());
    let mut outputs = vec![("output", below)];
    for (name, states) in ["last_hidden", "last_cell"].into_iter().zip(last) {
        outputs.push((name, stack(states)?));
    }
    Model::from_outputs(outputs)
}
