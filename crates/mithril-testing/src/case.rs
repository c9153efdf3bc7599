//! Test cases: the arguments of one use of an op, read from the `cases` of its definition or derived from its ports.
//!
//! A case is a line of words: tensors in port order, arguments by name.
//! `[2,3]` is a float tensor drawn from the op's domain, `i64[4]<5` integers from 0 to 4, `i64[4]` integers
//! from -5 to 5, `bool[2]`, `spd[3,3]` symmetric positive definite matrices, `none` an absent input,
//! `axis=(0, 2)` an argument in the text form of literals.

use mithril::ir::dtype::{DType, Kind, Kinds};
use mithril::ir::error::{Code, Error, Result};
use mithril::ir::literal::Lit;
use mithril::ir::op::{OpDef, PortKind};
use mithril::ir::tensor::{Scalar, Tensor};
use mithril::ir::text;

/// An argument of a case.
#[derive(Clone, Debug)]
pub enum Arg {
    /// A tensor.
    Tensor(Tensor),
    /// A literal.
    Lit(Lit),
}

/// A use of an op on concrete arguments, one per port (more for a variadic one).
#[derive(Clone, Debug)]
pub struct Case {
    /// The op.
    pub op: &'static OpDef,
    /// The line it was read from.
    pub text: String,
    /// Arguments.
    pub args: Vec<Arg>,
}

/// All cases of an op with float tensors of `float`.
pub fn cases(op: &'static OpDef, float: DType) -> Result<Vec<Case>> {
    let lines: Vec<String> =
        if op.cases.is_empty() { derived(op) } else { op.cases.iter().map(ToString::to_string).collect() };
    lines.iter().enumerate().map(|(i, line)| read(op, line, float, i as u64)).collect()
}

/// Lines for an op that lists none: equal shapes, broadcasting, 0-d and empty tensors.
fn derived(op: &OpDef) -> Vec<String> {
    let tensors: Vec<Kinds> = op
        .ports
        .iter()
        .filter_map(|p| match p.kind {
            PortKind::Tensor(kinds) => Some(kinds),
            _ => None,
        })
        .collect();
    let shapes: &[&[&str]] = match tensors.len() {
        0 => &[&[]],
        1 => &[&["[2,3]"], &["[]"], &["[0,3]"], &["[2,1,3,2]"]],
        2 => &[&["[2,3]", "[2,3]"], &["[2,1,3]", "[4,1]"], &["[2,3]", "[]"], &["[0,3]", "[1]"]],
        _ => &[&["[2,3]", "[2,3]", "[2,3]"], &["[2,1]", "[3]", "[]"]],
    };
    shapes
        .iter()
        .map(|row| {
            let words =
                tensors.iter().zip(row.iter().chain(std::iter::repeat(&"[]"))).map(|(kinds, shape)| {
                    let prefix = match (kinds.has(Kind::Float), kinds.has(Kind::Int)) {
                        (true, _) => "",
                        (false, true) => "i64",
                        (false, false) => "bool",
                    };
                    format!("{prefix}{shape}")
                });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// Reads one line. `seed` decides the numbers drawn.
pub fn read(op: &'static OpDef, line: &str, float: DType, seed: u64) -> Result<Case> {
    let mut random = Random::new(op.name, seed);
    let mut tensors = Vec::new();
    let mut named: Vec<(&str, Lit)> = Vec::new();
    for word in words(line) {
        match word.split_once('=') {
            Some((name, value)) if op.port(name).is_some() => named.push((name, text::parse_literal(value)?)),
            _ => tensors.push(tensor(op, word, float, &mut random)?),
        }
    }
    let mut tensors = tensors.into_iter();
    let mut args = Vec::new();
    for port in op.ports {
        let literal = named.iter().find(|(name, _)| *name == port.name).map(|(_, lit)| lit.clone());
        let next =
            if matches!(port.kind, PortKind::Attr(_)) || literal.is_some() { None } else { tensors.next() };
        match (literal, next, port.default.lit()) {
            (None, Some(arg), _) => args.push(arg),
            (Some(lit), _, _) | (None, None, Some(lit)) => args.push(Arg::Lit(lit)),
            (None, None, None) if op.is_variadic() && std::ptr::eq(port, op.ports.last().unwrap_or(port)) => {
            }
            (None, None, None) => {
                let message = format!("case {line:?} of {} gives no `{}`", op.name, port.name);
                return Err(Error::new(Code::BadFile, message));
            }
        }
    }
    args.extend(tensors);
    Ok(Case { op, text: line.to_owned(), args })
}

/// Splits at spaces outside brackets and quotes.
fn words(line: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start) = (0_i32, false, 0);
    let mut cases = Vec::new();
    for (i, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => depth += 1,
            ')' | ']' | '}' if !quoted => depth -= 1,
            ' ' if !quoted && depth == 0 => {
                cases.push(&line[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    cases.push(&line[start..]);
    cases.retain(|w| !w.is_empty());
    cases
}

fn tensor(op: &OpDef, word: &str, float: DType, random: &mut Random) -> Result<Arg> {
    let malformed =
        || Error::new(Code::BadFile, format!("{word:?} in a case of {} is not a tensor", op.name));
    let Some(open) = word.find('[') else { return Ok(Arg::Lit(text::parse_literal(word)?)) };
    let close = word.find(']').ok_or_else(malformed)?;
    let (prefix, rest) = (&word[..open], &word[close + 1..]);
    let shape: Vec<usize> = word[open + 1..close]
        .split(',')
        .filter(|s| !s.trim().is_empty())
        .map(|s| s.trim().parse().map_err(|_| malformed()))
        .collect::<Result<_>>()?;
    let below = rest.strip_prefix('<').map(|n| n.parse::<i64>().map_err(|_| malformed())).transpose()?;
    if prefix == "spd" {
        return Ok(Arg::Tensor(positive_definite(&shape, float, random)));
    }
    let dtype = match prefix {
        "" => float,
        name => DType::ALL.iter().copied().find(|d| d.short() == name).ok_or_else(malformed)?,
    };
    let (low, high) = op.domain;
    Ok(Arg::Tensor(Tensor::build(dtype, &shape, |_| match (dtype.kind(), below) {
        (Kind::Float, _) => Scalar::Float(low + (high - low) * random.unit()),
        (Kind::Bool, _) => Scalar::Bool(random.unit() < 0.5),
        (Kind::Int, Some(n)) => Scalar::Int((random.unit() * n as f64) as i128),
        (Kind::Int, None) if !dtype.holds(-1) => Scalar::Int((random.unit() * 6.0) as i128),
        (Kind::Int, None) => Scalar::Int((random.unit() * 11.0) as i128 - 5),
    })))
}

/// `A·Aᵀ + n·1`, so that decompositions are well conditioned.
fn positive_definite(shape: &[usize], float: DType, random: &mut Random) -> Tensor {
    let n = shape.last().copied().unwrap_or(1);
    let batch: usize = shape.iter().rev().skip(2).product();
    let mut values = vec![0.0; batch * n * n];
    for matrix in values.chunks_mut((n * n).max(1)) {
        let a: Vec<f64> = (0..n * n).map(|_| random.unit() * 2.0 - 1.0).collect();
        for i in 0..n {
            for j in 0..n {
                let dot: f64 = (0..n).map(|k| a[i * n + k] * a[j * n + k]).sum();
                matrix[i * n + j] = dot + if i == j { n as f64 } else { 0.0 };
            }
        }
    }
    Tensor::from_f64s(float, shape, &values)
}

/// SplitMix64 (Steele et al. 2014): enough for test data, and the same everywhere.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Seeded by a name and a number.
    pub fn new(name: &str, seed: u64) -> Self {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// The next number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
