//! Recurrent layers: single steps, and sequences of a known length, whose steps are written out.
//!
//! Parameters, their layout and the order of the gates are those of PyTorch.

use mithril_ir::Result;
use mithril_ir::op::{Attr, DefaultLit};

use super::expr::{input, op, optional, parameter, size, split, tuple};
use super::{LayerArg, LayerArgs, LayerDef, arg};
use crate::connection::{Arg, Connection};
use crate::init::Init;
use crate::key::Size;
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
const LENGTH: LayerArg = arg("length", Attr::Int, DefaultLit::Required, "Number of steps of the sequence.");
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
        doc: "A simple recurrent network over a sequence of known length.\n\nOutputs `output` `[length, n, \
              hidden_size]` and `last_hidden` `[num_layers, n, hidden_size]`; `hidden` is the state before (0).",
        args: &[HIDDEN, LENGTH, LAYERS_ARG, BIAS, BATCH_FIRST, BIDIRECTIONAL, NONLINEARITY, INPUT],
        build: |a| sequence(a, Kind::Rnn),
        aliases: &["SimpleRNN"],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "LSTM",
        doc: "A long short-term memory over a sequence of known length.\n\nOutputs `output` `[length, n, \
              hidden_size]`, `last_hidden` and `last_cell` `[num_layers, n, hidden_size]`; `hidden` and `cell` are \
              the states before (0).",
        args: &[HIDDEN, LENGTH, LAYERS_ARG, BIAS, BATCH_FIRST, BIDIRECTIONAL, INPUT],
        build: |a| sequence(a, Kind::Lstm),
        aliases: &[],
        arg_aliases: ARG_ALIASES,
    },
    LayerDef {
        name: "GRU",
        doc: "A gated recurrent unit over a sequence of known length.\n\nOutputs `output` `[length, n, hidden_size]` \
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
}

/// Parameters of one pass, and what it does.
struct Pass<'a> {
    kind: Kind,
    activation: &'a str,
    weight_ih: Connection,
    weight_hh: Connection,
    bias_ih: Arg,
    bias_hh: Arg,
}

impl<'a> Pass<'a> {
    fn new(
        kind: Kind,
        (features, hidden): (Size, i64),
        bias: bool,
        activation: &'a str,
        suffix: &str,
    ) -> Self {
        let init = Init::Uniform(1.0 / (hidden as f64).sqrt());
        let rows = Size::from(hidden.saturating_mul(kind.gates()));
        let bias_of = |name: &str| {
            if bias {
                Arg::from(parameter(&format!("{name}{suffix}"), [rows.clone()], init.clone()))
            } else {
                Arg::Lit(mithril_ir::Lit::None)
            }
        };
        let weight = |name: &str, columns| {
            parameter(&format!("{name}{suffix}"), [rows.clone(), columns], init.clone())
        };
        Self {
            kind,
            activation,
            weight_ih: weight("weight_ih", features),
            weight_hh: weight("weight_hh", Size::from(hidden)),
            bias_ih: bias_of("bias_ih"),
            bias_hh: bias_of("bias_hh"),
        }
    }
    /// What the input adds to the gates, of one step or of all at once.
    fn project(&self, x: &Connection) -> Result<Connection> {
        op("linear", [x.into(), (&self.weight_ih).into(), self.bias_ih.clone()])
    }
    /// Hidden and cell state after a step; `x` is projected.
    fn step(
        &self,
        x: &Connection,
        h: &Connection,
        c: Option<&Connection>,
    ) -> Result<(Connection, Option<Connection>)> {
        let state = op("linear", [h.into(), (&self.weight_hh).into(), self.bias_hh.clone()])?;
        let sigmoid = |x: &Connection| op("sigmoid", [x.into()]);
        let tanh = |x: &Connection| op("tanh", [x.into()]);
        match (self.kind, c) {
            (Kind::Gru, _) => {
                let (x, s) = (split(x, 3, -1)?, split(&state, 3, -1)?);
                let r = sigmoid(&(&x[0] + &s[0])?)?;
                let z = sigmoid(&(&x[1] + &s[1])?)?;
                let n = tanh(&(&x[2] + &(&r * &s[2])?)?)?;
                // n + z·(h - n) is (1 - z)·n + z·h
                Ok(((&n + &(&z * &(h - &n)?)?)?, None))
            }
            (Kind::Lstm, Some(c)) => {
                let gates = split(&(x + &state)?, 4, -1)?;
                let kept = (&sigmoid(&gates[1])? * c)?;
                let c = (&kept + &(&sigmoid(&gates[0])? * &tanh(&gates[2])?)?)?;
                let h = (&sigmoid(&gates[3])? * &tanh(&c)?)?;
                Ok((h, Some(c)))
            }
            _ => Ok((op(self.activation, [(x + &state)?.into()])?, None)),
        }
    }
}

fn activation(a: &LayerArgs<'_>, kind: Kind) -> Result<String> {
    if kind == Kind::Rnn { a.text("nonlinearity") } else { Ok("tanh".into()) }
}

fn cell(a: &LayerArgs<'_>, kind: Kind) -> Result<Model> {
    let hidden = a.count("hidden_size")?;
    let activation = activation(a, kind)?;
    let pass = Pass::new(kind, (a.opt_size("input_size")?, hidden), a.bool("bias")?, &activation, "");
    let x = input("input");
    let shape = tuple([size(&x, 0)?.into(), hidden.into()]);
    let state = |name: &str| op("broadcast_to", [optional(name, 0.0).into(), shape.clone()]);
    let h = state("hidden")?;
    let c = if kind == Kind::Lstm { Some(state("cell")?) } else { None };
    let (h, c) = pass.step(&pass.project(&x)?, &h, c.as_ref())?;
    let outputs = [("output", h)].into_iter().chain(c.map(|c| ("cell_output", c)));
    Model::from_outputs(outputs)
}

fn sequence(a: &LayerArgs<'_>, kind: Kind) -> Result<Model> {
    let (hidden, length, layers) = (a.count("hidden_size")?, a.count("length")?, a.count("num_layers")?);
    let directions = if a.bool("bidirectional")? { 2 } else { 1 };
    if length.saturating_mul(layers) > 100_000 {
        return Err(a.bad("length", "at most 100000 steps, all layers together"));
    }
    let (time, batch) = if a.bool("batch_first")? { (1, 0) } else { (0, 1) };
    let activation = activation(a, kind)?;
    let x = input("input");
    let shape = tuple([(layers * directions).into(), size(&x, batch)?.into(), hidden.into()]);
    let states = |name: &str| -> Result<Vec<Connection>> {
        let all = op("broadcast_to", [optional(name, 0.0).into(), shape.clone()])?;
        split(&all, layers * directions, 0)?.iter().map(|h| op("squeeze", [h.into(), 0.into()])).collect()
    };
    let hs = states("hidden")?;
    let cs = if kind == Kind::Lstm { states("cell")? } else { Vec::new() };
    let (mut below, mut last_h, mut last_c) = (x, Vec::new(), Vec::new());
    for layer in 0..layers {
        let mut sides = Vec::new();
        for direction in 0..directions {
            let suffix = format!("_l{layer}{}", if direction == 1 { "_reverse" } else { "" });
            let features = if layer == 0 { a.opt_size("input_size")? } else { Size::Unknown };
            let pass = Pass::new(kind, (features, hidden), a.bool("bias")?, &activation, &suffix);
            let at = (layer * directions + direction) as usize;
            let run = run(&pass, &below, [time, length, direction], &hs[at], cs.get(at))?;
            sides.push(run.output);
            last_h.push(Arg::from(run.h));
            last_c.extend(run.c.map(Arg::from));
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
    let mut outputs = vec![("output", below), ("last_hidden", stack(last_h)?)];
    if kind == Kind::Lstm {
        outputs.push(("last_cell", stack(last_c)?));
    }
    Model::from_outputs(outputs)
}

struct Run {
    output: Connection,
    h: Connection,
    c: Option<Connection>,
}

/// All steps of one pass.
fn run(
    pass: &Pass<'_>,
    x: &Connection,
    [time, length, direction]: [i64; 3],
    h: &Connection,
    c: Option<&Connection>,
) -> Result<Run> {
    let mut steps = split(&pass.project(x)?, length, time)?;
    if direction == 1 {
        steps.reverse();
    }
    let (mut h, mut c) = (h.clone(), c.cloned());
    let mut outputs = Vec::with_capacity(steps.len());
    for step in &steps {
        let step = op("squeeze", [step.into(), time.into()])?;
        (h, c) = pass.step(&step, &h, c.as_ref())?;
        outputs.push(Arg::from(&h));
    }
    if direction == 1 {
        outputs.reverse();
    }
    let output = Connection::op("stack", vec![time.into(), Arg::List(outputs)], Vec::new())?;
    Ok(Run { output, h, c })
}
