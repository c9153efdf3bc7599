//! Recurrent networks: passes by ops of their own where these compute the same, else step by step.

use mithril_ir::{DType, Dim, Lit, Result, ValueId};

use super::Table;
use super::elementwise::linear_sigmoid;
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("LSTM", |u| sequence(u, Kind::Lstm)),
    ("GRU", |u| sequence(u, Kind::Gru)),
    ("RNN", |u| sequence(u, Kind::Plain)),
];

/// Steps that are written out.
const MAX_STEPS: i64 = 1024;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Lstm,
    Gru,
    Plain,
}

impl Kind {
    fn gates(self) -> i64 {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Plain => 1,
        }
    }
    /// The op of a pass, and in which order it has the gates.
    fn pass(self) -> (&'static str, &'static [i64]) {
        match self {
            Self::Lstm => ("lstm_sequence", &[0, 2, 3, 1]),
            Self::Gru => ("gru_sequence", &[1, 0, 2]),
            Self::Plain => ("rnn_sequence", &[0]),
        }
    }
    fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Plain => &["Tanh"],
        }
    }
}

/// A function of the gates, with its numbers.
#[derive(Clone)]
struct Activation {
    name: String,
    alpha: Option<f64>,
    beta: Option<f64>,
}

impl Activation {
    fn apply(&self, u: &mut Use<'_>, x: ValueId) -> Result<ValueId> {
        match self.name.to_lowercase().as_str() {
            "sigmoid" => op!(u, "sigmoid", x),
            "tanh" => op!(u, "tanh", x),
            "relu" => op!(u, "relu", x),
            "softsign" => op!(u, "softsign", x),
            "softplus" => op!(u, "softplus", x),
            "leakyrelu" => op!(u, "leaky_relu", x, self.alpha.unwrap_or(0.01)),
            "elu" => op!(u, "elu", x, self.alpha.unwrap_or(1.0)),
            "hardsigmoid" => linear_sigmoid(u, x, self.alpha.unwrap_or(0.2), self.beta.unwrap_or(0.5)),
            "affine" => {
                let y = op!(u, "multiply", x, self.alpha.unwrap_or(1.0))?;
                op!(u, "add", y, self.beta.unwrap_or(0.0))
            }
            other => Err(Use::refuse(format!("the activation {other:?} is not supported"))),
        }
    }
}

/// What one direction computes with.
struct Cell {
    kind: Kind,
    weight: ValueId,
    recurrent: ValueId,
    /// What is added to the product with the input.
    input_bias: Option<ValueId>,
    /// What is added to the product with `recurrent`.
    bias: Option<ValueId>,
    peephole: Option<ValueId>,
    functions: Vec<Activation>,
    hidden: i64,
    clip: Option<f64>,
    /// (GRU) Whether the reset gate acts after the product.
    resets_late: bool,
    /// (LSTM) Whether the input gate is what the forget gate leaves.
    couples: bool,
}

#[allow(clippy::too_many_lines, reason = "inputs, steps and outputs are read side by side")]
fn sequence(u: &mut Use<'_>, kind: Kind) -> Outputs {
    let (mut x, weights, recurrents) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let (biases, lengths) = (u.optional(3)?, u.optional(4)?);
    u.ignore(&["hidden_size"]);
    let batch_first = u.flag("layout", false)?;
    if batch_first {
        x = op!(u, "swapaxes", x, 0_i64, 1_i64)?;
    }
    if u.rank(x) != 3 {
        return Err(malformed("its input has not 3 axes"));
    }
    let batch = u.shape(x)[1].clone();
    let hidden = u.shape(recurrents).last().and_then(Dim::known);
    let hidden = hidden.ok_or_else(|| malformed("its hidden size is not known"))?;
    let directions: &[bool] = match u.text("direction", "forward")?.as_str() {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(malformed(format!("the direction is {other:?}"))),
    };
    let states = if kind == Kind::Lstm { vec![5, 6] } else { vec![5] };
    let mut initial: Vec<Option<ValueId>> = Vec::new();
    for &i in &states {
        let initial_state = u.optional(i)?;
        initial.push(match initial_state {
            Some(v) if batch_first => Some(op!(u, "swapaxes", v, 0_i64, 1_i64)?),
            other => other,
        });
    }
    let peepholes = if kind == Kind::Lstm { u.optional(7)? } else { None };
    let functions = activations(u, kind, directions.len());
    let clip = u.optional_float("clip")?;
    let (resets_late, couples) = (u.flag("linear_before_reset", false)?, u.flag("input_forget", false)?);
    let mut all = Vec::new();
    let mut last: Vec<Vec<ValueId>> = vec![Vec::new(); states.len()];
    for (d, &reverse) in directions.iter().enumerate() {
        let part = |u: &mut Use<'_>, v: ValueId| op!(u, "getitem", v, d as i64);
        let both = biases.map(|b| part(u, b)).transpose()?;
        let half = Lit::from(kind.gates() * hidden);
        let bias = |u: &mut Use<'_>, from: Lit, to: Lit| {
            both.map(|b| op!(u, "slice", b, vec![from], vec![to])).transpose()
        };
        let cell = Cell {
            kind,
            weight: part(u, weights)?,
            recurrent: part(u, recurrents)?,
            input_bias: bias(u, Lit::None, half.clone())?,
            bias: bias(u, half, Lit::None)?,
            peephole: peepholes.map(|p| part(u, p)).transpose()?,
            functions: functions[d].clone(),
            hidden,
            clip,
            resets_late,
            couples,
        };
        let mut state = Vec::new();
        for value in &initial {
            state.push(if let Some(v) = value {
                part(u, *v)?
            } else {
                let dtype = u.dtype(x);
                op!(u, "full", vec![batch.clone(), hidden.into()], 0.0, dtype)?
            });
        }
        let run = match cell.activation().filter(|_| lengths.is_none()) {
            Some(activation) => cell.pass(u, x, &state, &activation, reverse)?,
            None => cell.steps(u, x, state, lengths, reverse)?,
        };
        all.push(run.outputs);
        for (list, v) in last.iter_mut().zip(run.last) {
            list.push(v);
        }
    }
    let mut results = vec![stack(u, 1, &all)?];
    for parts in &last {
        results.push(stack(u, 0, parts)?);
    }
    if batch_first {
        results[0] = op!(u, "transpose", results[0], vec![2_i64, 0, 1, 3])?;
        for v in &mut results[1..] {
            *v = op!(u, "swapaxes", *v, 0_i64, 1_i64)?;
        }
    }
    Ok(results.into_iter().map(Value::Graph).collect())
}

fn stack(u: &mut Use<'_>, axis: i64, parts: &[ValueId]) -> Result<ValueId> {
    let args: Vec<ValueId> = std::iter::once(u.cx.lit(axis)).chain(parts.iter().copied()).collect();
    u.op("stack", &args)
}

/// What a direction gives: its outputs `[steps, batch, hidden]`, and its states after the last step.
struct Run {
    outputs: ValueId,
    last: Vec<ValueId>,
}

/// Whether a step belongs to an example: `[steps, batch, 1]`.
fn mask(u: &mut Use<'_>, lengths: ValueId, steps: i64, batch: &Dim) -> Result<ValueId> {
    let lengths = u.cast(lengths, DType::I64)?;
    let lengths = op!(u, "reshape", lengths, vec![Dim::ONE, batch.clone(), Dim::ONE])?;
    let range = op!(u, "arange", steps, Lit::None, 1_i64, DType::I64)?;
    let range = op!(u, "reshape", range, vec![steps, 1, 1])?;
    op!(u, "less", range, lengths)
}

/// The functions of each direction.
fn activations(u: &Use<'_>, kind: Kind, directions: usize) -> Vec<Vec<Activation>> {
    let names = u.texts("activations");
    let (mut alphas, mut betas) = (
        u.floats("activation_alpha").unwrap_or_default().into_iter(),
        u.floats("activation_beta").unwrap_or_default().into_iter(),
    );
    let count = kind.activations().len();
    let mut read = |i: usize| {
        let name = names.get(i).cloned().unwrap_or_else(|| kind.activations()[i % count].into());
        // Numbers are given only for functions that have some.
        let (takes_alpha, takes_beta) = match name.to_lowercase().as_str() {
            "leakyrelu" | "elu" | "thresholdedrelu" => (true, false),
            "hardsigmoid" | "affine" | "scaledtanh" => (true, true),
            _ => (false, false),
        };
        let alpha = if takes_alpha { alphas.next() } else { None };
        Activation { name, alpha, beta: if takes_beta { betas.next() } else { None } }
    };
    (0..directions).map(|d| (0..count).map(|i| read(d * count + i)).collect()).collect()
}

impl Cell {
    /// The activation of the new state, if there is an op for a pass that computes the same.
    fn activation(&self) -> Option<String> {
        let names: Vec<String> = self.functions.iter().map(|f| f.name.to_lowercase()).collect();
        let usual: Vec<String> = self.kind.activations().iter().map(|name| name.to_lowercase()).collect();
        let has_pass = match self.kind {
            Kind::Lstm => names == usual && self.peephole.is_none() && !self.couples,
            Kind::Gru => names == usual && self.resets_late,
            Kind::Plain => matches!(names[0].as_str(), "tanh" | "relu"),
        };
        (has_pass && self.clip.is_none()).then(|| names[0].clone())
    }
    /// All steps as one op.
    fn pass(
        &self,
        u: &mut Use<'_>,
        x: ValueId,
        state: &[ValueId],
        activation: &str,
        reverse: bool,
    ) -> Result<Run> {
        let (op, order) = self.kind.pass();
        let mut args: Vec<ValueId> = std::iter::once(x).chain(state.iter().copied()).collect();
        for rows in [Some(self.weight), Some(self.recurrent), self.input_bias, self.bias] {
            args.push(match rows {
                Some(rows) => self.reordered(u, rows, order)?,
                None => u.cx.lit(Lit::None),
            });
        }
        match self.kind {
            Kind::Lstm => args.push(u.cx.lit(Lit::None)),
            Kind::Plain => args.push(u.cx.lit(activation)),
            Kind::Gru => {}
        }
        args.push(u.cx.lit(reverse));
        let results = u.outputs(op, &args)?;
        Ok(Run { outputs: results[0], last: results[1..].to_vec() })
    }
    /// The rows of the gates in another order.
    fn reordered(&self, u: &mut Use<'_>, rows: ValueId, order: &[i64]) -> Result<ValueId> {
        if order.len() == 1 {
            return Ok(rows);
        }
        let mut args = vec![u.cx.lit(0_i64)];
        for gate in order {
            args.push(op!(u, "slice", rows, vec![gate * self.hidden], vec![(gate + 1) * self.hidden])?);
        }
        u.op("concat", &args)
    }
    /// All steps, one after the other.
    fn steps(
        &self,
        u: &mut Use<'_>,
        x: ValueId,
        mut state: Vec<ValueId>,
        lengths: Option<ValueId>,
        reverse: bool,
    ) -> Result<Run> {
        let [steps, batch] = [0, 1].map(|axis| u.shape(x)[axis].clone());
        let steps =
            steps.known().ok_or_else(|| Use::refuse("its number of steps is a symbol: give shapes"))?;
        if !(1..=MAX_STEPS).contains(&steps) {
            return Err(Use::refuse(format!("it has {steps} steps; 1 to {MAX_STEPS} are written out")));
        }
        // Of all steps at once.
        let projected = op!(u, "linear", x, self.weight, self.input_bias)?;
        let inside = lengths.map(|l| mask(u, l, steps, &batch)).transpose()?;
        let mut outputs = vec![None; steps as usize];
        for step in 0..steps {
            let t = if reverse { steps - 1 - step } else { step };
            let now = op!(u, "getitem", projected, t)?;
            let mut next = self.step(u, now, &state)?;
            let mut y = next[0];
            if let Some(inside) = inside {
                let here = op!(u, "getitem", inside, t)?;
                for (new, old) in next.iter_mut().zip(&state) {
                    *new = op!(u, "where", here, *new, *old)?;
                }
                y = op!(u, "where", here, y, 0.0)?;
            }
            outputs[t as usize] = Some(y);
            state = next;
        }
        let outputs: Vec<ValueId> = outputs.into_iter().flatten().collect();
        Ok(Run { outputs: stack(u, 0, &outputs)?, last: state })
    }
    /// Gate `i` of what lies side by side along the last axis.
    fn gate(&self, u: &mut Use<'_>, all: ValueId, i: i64) -> Result<ValueId> {
        let rank = u.rank(all);
        let (mut starts, mut ends) = (vec![Lit::None; rank], vec![Lit::None; rank]);
        starts[rank - 1] = (i * self.hidden).into();
        ends[rank - 1] = ((i + 1) * self.hidden).into();
        op!(u, "slice", all, starts, ends)
    }
    fn clipped(&self, u: &mut Use<'_>, x: ValueId) -> Result<ValueId> {
        match self.clip {
            Some(limit) => op!(u, "clip", x, -limit, limit),
            None => Ok(x),
        }
    }
    fn activated(&self, u: &mut Use<'_>, i: usize, x: ValueId) -> Result<ValueId> {
        let x = self.clipped(u, x)?;
        self.functions[i].apply(u, x)
    }
    /// The states after a step; the first one is the output. `inputs` is what the input adds to the gates.
    fn step(&self, u: &mut Use<'_>, inputs: ValueId, state: &[ValueId]) -> Result<Vec<ValueId>> {
        let h = state[0];
        if self.kind == Kind::Gru {
            return self.gru(u, inputs, h);
        }
        let states = op!(u, "linear", h, self.recurrent, self.bias)?;
        let all = op!(u, "add", inputs, states)?;
        if self.kind == Kind::Plain {
            return Ok(vec![self.activated(u, 0, all)?]);
        }
        let c = state[1];
        let peep = |u: &mut Use<'_>, gate: ValueId, i: i64, c: ValueId| match self.peephole {
            Some(p) => {
                let weight = self.gate(u, p, i)?;
                let seen = op!(u, "multiply", weight, c)?;
                op!(u, "add", gate, seen)
            }
            None => Ok(gate),
        };
        let (i, o, f, g) =
            (self.gate(u, all, 0)?, self.gate(u, all, 1)?, self.gate(u, all, 2)?, self.gate(u, all, 3)?);
        let f = peep(u, f, 2, c)?;
        let f = self.activated(u, 0, f)?;
        let i = if self.couples {
            op!(u, "subtract", 1.0, f)?
        } else {
            let i = peep(u, i, 0, c)?;
            self.activated(u, 0, i)?
        };
        let g = self.activated(u, 1, g)?;
        let (kept, new) = (op!(u, "multiply", f, c)?, op!(u, "multiply", i, g)?);
        let c = op!(u, "add", kept, new)?;
        let o = peep(u, o, 1, c)?;
        let o = self.activated(u, 0, o)?;
        let seen = self.activated(u, 2, c)?;
        Ok(vec![op!(u, "multiply", o, seen)?, c])
    }
    fn gru(&self, u: &mut Use<'_>, inputs: ValueId, h: ValueId) -> Result<Vec<ValueId>> {
        let n = self.hidden;
        let weight =
            |u: &mut Use<'_>, from: i64, to: i64| op!(u, "slice", self.recurrent, vec![from], vec![to]);
        let part = |u: &mut Use<'_>, from: i64, to: i64| {
            self.bias.map(|b| op!(u, "slice", b, vec![from], vec![to])).transpose()
        };
        let (w, b) = (weight(u, 0, 2 * n)?, part(u, 0, 2 * n)?);
        let gates = op!(u, "linear", h, w, b)?;
        let mut zr = Vec::new();
        for i in 0..2 {
            let (a, b) = (self.gate(u, inputs, i)?, self.gate(u, gates, i)?);
            let sum = op!(u, "add", a, b)?;
            zr.push(self.activated(u, 0, sum)?);
        }
        let (w, b) = (weight(u, 2 * n, 3 * n)?, part(u, 2 * n, 3 * n)?);
        let own = self.gate(u, inputs, 2)?;
        let recurrent = if self.resets_late {
            let y = op!(u, "linear", h, w, b)?;
            op!(u, "multiply", zr[1], y)?
        } else {
            let reset = op!(u, "multiply", zr[1], h)?;
            op!(u, "linear", reset, w, b)?
        };
        let sum = op!(u, "add", own, recurrent)?;
        let new = self.activated(u, 1, sum)?;
        // (1 - z) * new + z * h
        let rest = op!(u, "subtract", 1.0, zr[0])?;
        let (new, kept) = (op!(u, "multiply", rest, new)?, op!(u, "multiply", zr[0], h)?);
        Ok(vec![op!(u, "add", new, kept)?])
    }
}
