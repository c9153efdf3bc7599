//! Forms: other formulas for a use of an op, by which the pass `raise` recognizes it.
//!
//! An op definition lists them as text, in the names of its ports: `"input * sigmoid(input)"`. The text is parsed once, into a
//! [`FormPattern`] that is independent of how the formula is written: sums are lists of terms, products are lists of factors
//! with exponents and one coefficient. So one formula stands for all orders of its operands, for a division and a product
//! with the reciprocal, for `sqrt` and a power of one half, for constants at different places.
//!
//! | in a formula | stands for |
//! |---|---|
//! | the name of a tensor port | any tensor, the same at all occurrences |
//! | the name of a literal port | a number of the graph, or the literal argument of a call |
//! | `+ - * / **`, `sqrt`, `rsqrt`, `square`, `reciprocal` | sums and products as above |
//! | numbers, `pi` | that number, up to the rounding of the dtype |
//! | `mean(x, axis)` and other reductions | a reduction over the axes `axis`, which are kept with size 1 or restored by a movement |
//! | `mean(x, normalized_shape)` | the same over the last axes, whose sizes the port takes |
//! | `clip(x, low, high)` with two numbers | `clip`, or `maximum` and `minimum` in any order |
//! | `channels(x)`, `features(x)` | a vector aligned with axis 1 of `input`; a tensor aligned with its last axes, those of `normalized_shape` |
//! | the name of an op | that op; omitted arguments have their defaults |
//! | `none` | an argument that is absent |

use std::sync::LazyLock;

use crate::op::{Attr, DefaultLit, OpDef, PortKind};
use crate::ops::{self, reduce};

/// A formula that is equal to a use of the op for all inputs, up to rounding.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The formula; see the module.
    pub formula: &'static str,
    /// Literal arguments of the op that the formula implies.
    pub with: &'static [(&'static str, DefaultLit)],
}

/// A formula without further arguments.
pub const fn form(formula: &'static str) -> Form {
    Form { formula, with: &[] }
}

/// A number in a pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// This one.
    Is(f64),
    /// Any, which becomes the argument of that port.
    Port(usize),
}

/// The axes that a small tensor is aligned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// Axis 1.
    Channels,
    /// The last axes, those of `normalized_shape`.
    Features,
}

/// The structure of a formula in a graph.
#[derive(Clone, Debug, PartialEq)]
pub enum FormPattern {
    /// Any tensor, or any literal argument, which becomes the argument of that port.
    Port(usize),
    /// An absent argument.
    Absent,
    /// A constant and terms.
    Sum {
        /// The constant term.
        constant: Number,
        /// The terms, from the most to the least specific.
        terms: Vec<FormPattern>,
    },
    /// A coefficient and powers.
    Product {
        /// The coefficient.
        coefficient: Number,
        /// The factors with their exponents, from the most to the least specific.
        factors: Vec<(FormPattern, f64)>,
    },
    /// A use of an op.
    Call {
        /// The op.
        op: &'static OpDef,
        /// Its arguments; omitted ones have their defaults.
        args: Vec<FormPattern>,
    },
    /// A reduction.
    Reduce {
        /// The op.
        op: &'static OpDef,
        /// The input of the reduction.
        input: Box<FormPattern>,
        /// The port for the axes.
        axes: usize,
    },
    /// Values clamped between two numbers.
    Clip {
        /// The values.
        input: Box<FormPattern>,
        /// The smallest.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// A small tensor that broadcasts with `input`.
    Aligned {
        /// The small tensor.
        inner: Box<FormPattern>,
        /// The axes that it is aligned with.
        axes: Alignment,
    },
}

/// A parsed form.
#[derive(Debug)]
pub struct FormRule {
    /// The op that the form becomes.
    pub op: &'static OpDef,
    /// Its pattern.
    pub pattern: FormPattern,
    /// The form.
    pub form: Form,
    /// Ops that every graph with the form contains.
    pub needs: Vec<&'static OpDef>,
}

/// The forms of all ops, in the order of the documentation.
pub fn rules() -> &'static [FormRule] {
    static RULES: LazyLock<Vec<FormRule>> = LazyLock::new(|| {
        // A formula that cannot be parsed is a mistake in an op definition, which the test below reports.
        let of = |op: &'static OpDef| op.forms.iter().filter_map(move |form| read(op, *form).ok());
        ops::all().flat_map(of).collect()
    });
    &RULES
}

/// Parses a form of an op.
///
/// # Errors
/// What is wrong with the formula.
pub fn read(op: &'static OpDef, form: Form) -> Result<FormRule, String> {
    let mut reader = Reader { op, text: form.formula, at: 0 };
    let pattern = reader.sum()?;
    reader.space();
    if reader.at < form.formula.len() {
        return Err(reader.wrong("the formula should end here"));
    }
    if let Some((name, _)) = form.with.iter().find(|(name, _)| op.port(name).is_none()) {
        return Err(format!("{} has no port `{name}`", op.name));
    }
    let mut needs = Vec::new();
    collect(&pattern, &mut needs);
    Ok(FormRule { op, pattern, form, needs })
}

fn collect(pattern: &FormPattern, needs: &mut Vec<&'static OpDef>) {
    match pattern {
        FormPattern::Port(_) | FormPattern::Absent => {}
        FormPattern::Sum { terms, .. } => terms.iter().for_each(|p| collect(p, needs)),
        FormPattern::Product { factors, .. } => factors.iter().for_each(|(p, _)| collect(p, needs)),
        FormPattern::Call { op, args } => {
            needs.push(op);
            for arg in args {
                collect(arg, needs);
            }
        }
        FormPattern::Reduce { op, input, .. } => {
            // A mean may be written as a sum and a division.
            if *op != &reduce::MEAN {
                needs.push(op);
            }
            collect(input, needs);
        }
        FormPattern::Clip { input: inner, .. } | FormPattern::Aligned { inner, .. } => collect(inner, needs),
    }
}

struct Reader {
    op: &'static OpDef,
    text: &'static str,
    at: usize,
}

type Read = Result<FormPattern, String>;

impl Reader {
    fn wrong(&self, what: &str) -> String {
        format!("{what}: `{}` | `{}` (of {})", &self.text[..self.at], &self.text[self.at..], self.op.name)
    }
    fn space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }
    fn eat(&mut self, token: &str) -> bool {
        self.space();
        let matches = self.text[self.at..].starts_with(token);
        self.at += if matches { token.len() } else { 0 };
        matches
    }
    fn sum(&mut self) -> Read {
        let mut sum = if self.eat("-") { scaled(self.product()?, -1.0) } else { self.product()? };
        loop {
            let sign = match (self.eat("+"), self.eat("-")) {
                (true, _) => 1.0,
                (_, true) => -1.0,
                _ => return Ok(sum),
            };
            let next = scaled(self.product()?, sign);
            sum = add(sum, next).ok_or_else(|| self.wrong("two numbers of the graph in one sum"))?;
        }
    }
    fn product(&mut self) -> Read {
        let mut product = self.power()?;
        loop {
            self.space();
            let is_power = self.text[self.at..].starts_with("**");
            let next = match (!is_power && self.eat("*"), self.eat("/")) {
                (true, _) => self.power()?,
                (_, true) => power(self.power()?, -1.0),
                _ => return Ok(product),
            };
            product = multiply(product, next);
        }
    }
    fn power(&mut self) -> Read {
        if self.eat("-") {
            return Ok(scaled(self.power()?, -1.0));
        }
        let base = self.atom()?;
        if !self.eat("**") {
            return Ok(base);
        }
        match number(&self.power()?) {
            Some(exponent) => Ok(power(base, exponent)),
            None => Err(self.wrong("an exponent is a number")),
        }
    }
    fn atom(&mut self) -> Read {
        if self.eat("(") {
            let inner = self.sum()?;
            return if self.eat(")") { Ok(inner) } else { Err(self.wrong("`)` is missing")) };
        }
        self.space();
        let rest = &self.text[self.at..];
        let length =
            rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
        let word = &rest[..length];
        self.at += length;
        if let Ok(value) = word.parse::<f64>() {
            return Ok(constant(value));
        }
        if self.eat("(") {
            return self.call(word);
        }
        match word {
            "pi" => Ok(constant(std::f64::consts::PI)),
            "none" => Ok(FormPattern::Absent),
            _ => match self.op.port(word) {
                Some(i) if self.is_number(i) => {
                    Ok(FormPattern::Product { coefficient: Number::Port(i), factors: Vec::new() })
                }
                Some(i) => Ok(FormPattern::Port(i)),
                None => Err(self.wrong(&format!("there is no port `{word}`"))),
            },
        }
    }
    /// Whether a port takes a number as a literal.
    fn is_number(&self, port: usize) -> bool {
        matches!(self.op.ports[port].kind, PortKind::Attr(Attr::Float | Attr::OptFloat | Attr::Scalar))
    }
    fn call(&mut self, word: &str) -> Read {
        let mut args = Vec::new();
        while !self.eat(")") {
            args.push(self.sum()?);
            self.eat(",");
            if self.at == self.text.len() && !self.text.ends_with(')') {
                return Err(self.wrong("`)` is missing"));
            }
        }
        let first = |args: Vec<FormPattern>| args.into_iter().next().unwrap_or(FormPattern::Absent);
        match (word, args.len()) {
            ("sqrt", 1) => return Ok(power(first(args), 0.5)),
            ("rsqrt", 1) => return Ok(power(first(args), -0.5)),
            ("square", 1) => return Ok(power(first(args), 2.0)),
            ("reciprocal", 1) => return Ok(power(first(args), -1.0)),
            ("channels", 1) => {
                return Ok(FormPattern::Aligned { inner: Box::new(first(args)), axes: Alignment::Channels });
            }
            ("features", 1) => {
                return Ok(FormPattern::Aligned { inner: Box::new(first(args)), axes: Alignment::Features });
            }
            _ => {}
        }
        if word == "clip"
            && let [_, low, high] = &args[..]
            && let Some((low, high)) = number(low).zip(number(high))
        {
            return Ok(FormPattern::Clip { input: Box::new(first(args)), low, high });
        }
        let op = ops::find(word).ok_or_else(|| self.wrong(&format!("there is no op `{word}`")))?;
        let is_reduction = [&reduce::SUM, &reduce::MEAN, &reduce::MAX].contains(&op);
        if is_reduction && let [input, FormPattern::Port(axes)] = &args[..] {
            return Ok(FormPattern::Reduce { op, input: Box::new(input.clone()), axes: *axes });
        }
        // A number as an argument of a call is the literal at its port.
        let args = args.into_iter().map(|arg| match arg {
            FormPattern::Product { coefficient: Number::Port(i), factors } if factors.is_empty() => {
                FormPattern::Port(i)
            }
            arg => arg,
        });
        Ok(FormPattern::Call { op, args: args.collect() })
    }
}

fn constant(value: f64) -> FormPattern {
    FormPattern::Product { coefficient: Number::Is(value), factors: Vec::new() }
}

fn number(pattern: &FormPattern) -> Option<f64> {
    match pattern {
        FormPattern::Product { coefficient: Number::Is(value), factors } if factors.is_empty() => {
            Some(*value)
        }
        _ => None,
    }
}

/// Coefficient and factors of a pattern.
fn factors(pattern: FormPattern) -> (Number, Vec<(FormPattern, f64)>) {
    match pattern {
        FormPattern::Product { coefficient, factors } => (coefficient, factors),
        other => (Number::Is(1.0), vec![(other, 1.0)]),
    }
}

fn product(coefficient: Number, mut factors: Vec<(FormPattern, f64)>) -> FormPattern {
    factors.retain(|(_, exponent)| *exponent != 0.0);
    if coefficient == Number::Is(1.0) && matches!(factors[..], [(_, 1.0)]) {
        return factors.remove(0).0;
    }
    factors.sort_by_key(|(pattern, _)| breadth(pattern));
    FormPattern::Product { coefficient, factors }
}

fn multiply(left: FormPattern, right: FormPattern) -> FormPattern {
    let ((a, mut all), (b, more)) = (factors(left), factors(right));
    for (pattern, exponent) in more {
        match all.iter_mut().find(|(other, _)| *other == pattern) {
            Some((_, sum)) => *sum += exponent,
            None => all.push((pattern, exponent)),
        }
    }
    let coefficient = match (a, b) {
        (Number::Is(a), Number::Is(b)) => Number::Is(a * b),
        (Number::Port(i), _) | (_, Number::Port(i)) => Number::Port(i),
    };
    product(coefficient, all)
}

fn scaled(pattern: FormPattern, by: f64) -> FormPattern {
    if by == 1.0 { pattern } else { multiply(constant(by), pattern) }
}

fn power(pattern: FormPattern, exponent: f64) -> FormPattern {
    match pattern {
        FormPattern::Product { coefficient: Number::Is(c), factors }
            if factors.is_empty() || exponent.fract() == 0.0 =>
        {
            let powers = factors.into_iter().map(|(p, e)| (p, e * exponent)).collect();
            product(Number::Is(c.powf(exponent)), powers)
        }
        // The inverse of a power is a power; a root of a power may lose a sign.
        other => product(Number::Is(1.0), vec![(other, exponent)]),
    }
}

/// `None` if both have a number of the graph.
fn add(left: FormPattern, right: FormPattern) -> Option<FormPattern> {
    let parts = |pattern: FormPattern| match pattern {
        FormPattern::Sum { constant, terms } => (constant, terms),
        FormPattern::Product { coefficient, factors } if factors.is_empty() => (coefficient, Vec::new()),
        other => (Number::Is(0.0), vec![other]),
    };
    let ((a, mut terms), (b, more)) = (parts(left), parts(right));
    terms.extend(more);
    let constant = match (a, b) {
        (Number::Is(a), Number::Is(b)) => Number::Is(a + b),
        (Number::Port(i), Number::Is(0.0)) | (Number::Is(0.0), Number::Port(i)) => Number::Port(i),
        _ => return None,
    };
    if constant == Number::Is(0.0) && terms.len() == 1 {
        return terms.pop();
    }
    terms.sort_by_key(breadth);
    Some(FormPattern::Sum { constant, terms })
}

/// How much a pattern matches, for the order in which patterns are tried: the most specific one first, and the ones that depend on
/// the shape of `input` last.
fn breadth(pattern: &FormPattern) -> usize {
    match pattern {
        FormPattern::Aligned { .. } => 4,
        FormPattern::Port(_) => 3,
        FormPattern::Product { factors, .. } => factors.iter().map(|(p, _)| breadth(p)).max().unwrap_or(2),
        FormPattern::Sum { .. } => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::activation::{GELU, SILU};

    #[test]
    fn every_form_can_be_read() {
        for op in ops::all() {
            for form in op.forms {
                if let Err(error) = read(op, *form) {
                    panic!("{error}");
                }
            }
        }
    }

    #[test]
    fn ways_to_write_a_formula_are_one_pattern() {
        let same = |op, a: &'static str, b: &'static str| {
            let [a, b] = [a, b].map(|text| read(op, form(text)).unwrap().pattern);
            assert_eq!(a, b);
        };
        same(&SILU, "input * sigmoid(input)", "sigmoid(input) / (1 / input)");
        same(&GELU, "input / 2 * (1 + erf(input / sqrt(4)))", "(erf(0.5 * input) + 1) * input * 0.5");
        same(&GELU, "tanh(input * input * input)", "tanh(input ** 2 * input)");
        same(&GELU, "1 / sqrt(input)", "rsqrt(input)");
    }

    #[test]
    fn mistakes_are_reported_where_they_are() {
        let error = |text| read(&SILU, form(text)).err().unwrap_or_default();
        assert!(error("input * nothing").contains("there is no port `nothing`"));
        assert!(error("sigmo(input)").contains("there is no op `sigmo`"));
        assert!(error("(input").contains("`)` is missing"));
        assert!(error("exp(input").contains("`)` is missing"));
        assert!(error("input input").contains("should end here"));
        assert!(error("input ** input").contains("an exponent is a number"));
    }
}
