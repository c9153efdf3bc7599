//! Parser of graphs, literals and dimensions. It never panics: any text is a graph or an error with its line.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Place, Result};
use crate::graph::{Graph, Role, TensorType, ValueId, Values};
use crate::literal::Lit;
use crate::ops;
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor};

/// Largest depth of nested brackets.
const MAX_DEPTH: usize = 64;

/// Largest number of terms in a product of sizes, since products of sums grow exponentially.
const MAX_TERMS: usize = 64;

/// Words that are literals.
const RESERVED: &[&str] = &["none", "true", "false", "training", "NaN", "inf"];

/// Reads the text form of a graph. Types are not checked; [`crate::verify::verify`] does that.
pub fn parse(text: &str) -> Result<Graph> {
    let mut parser = Parser::new(text);
    let graph = parser.graph()?;
    parser.end()?;
    Ok(graph)
}

/// Reads the text form of a literal.
pub fn parse_literal(text: &str) -> Result<Lit> {
    let mut parser = Parser::new(text);
    let lit = parser.literal()?;
    parser.end()?;
    Ok(lit)
}

/// Reads a dimension: `2*n+1`, `(n+1)//2`.
pub fn parse_dim(text: &str) -> Result<Dim> {
    let mut parser = Parser::new(text);
    let dim = parser.dim()?;
    parser.end()?;
    Ok(dim)
}

/// Reads a type: `f32[n, 4]`.
pub fn parse_type(text: &str) -> Result<TensorType> {
    let mut parser = Parser::new(text);
    let ty = parser.tensor_type()?;
    parser.end()?;
    Ok(ty)
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    values: FxHashMap<u64, ValueId>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, at: 0, depth: 0, values: FxHashMap::default() }
    }
    fn error(&self, message: impl Into<String>) -> Error {
        let line = self.text.get(..self.at).unwrap_or("").matches('\n').count() + 1;
        let here: String = self.rest().chars().take(24).collect();
        Error::new(Code::BadFile, message).note(format!("line {line}, before {here:?}"))
    }
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or("")
    }
    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }
    fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let matches = self.rest().starts_with(token);
        if matches {
            self.at += token.len();
        }
        matches
    }
    fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.error(format!("expected `{token}`"))) }
    }
    fn end(&mut self) -> Result<()> {
        self.skip_space();
        if self.rest().is_empty() { Ok(()) } else { Err(self.error("expected the end")) }
    }
    fn take_while(&mut self, f: impl Fn(char) -> bool) -> &'t str {
        self.skip_space();
        let rest = self.rest();
        let end = rest.find(|c| !f(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }
    fn word(&mut self) -> &'t str {
        self.take_while(|c| c.is_alphanumeric() || c == '_')
    }
    fn peek(&mut self) -> Option<char> {
        self.skip_space();
        self.rest().chars().next()
    }
    fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("brackets nest too deep"));
        }
        let result = f(self);
        self.depth -= 1;
        result
    }

    fn graph(&mut self) -> Result<Graph> {
        let mut graph = Graph::new();
        self.expect("graph")?;
        self.expect("{")?;
        while !self.eat("}") {
            if self.peek() == Some('%') {
                self.node(&mut graph)?;
                continue;
            }
            match self.word() {
                "param" => self.input(&mut graph, Role::Param)?,
                "data" => self.input(&mut graph, Role::Data)?,
                "state" => self.input(&mut graph, Role::State)?,
                "cotangent" => self.input(&mut graph, Role::Cotangent)?,
                "update" => {
                    let input = self.operand(&mut graph)?;
                    self.expect("=")?;
                    let value = self.operand(&mut graph)?;
                    graph.updates.push((input, value));
                }
                "return" => {
                    let name: Arc<str> = self.string()?.into();
                    self.expect("=")?;
                    let value = self.operand(&mut graph)?;
                    if graph.outputs.insert(name, value).is_some() {
                        return Err(self.error("two outputs have the same name"));
                    }
                }
                _ => return Err(self.error("expected an input, a node, update, return or `}`")),
            }
        }
        Ok(graph)
    }

    fn input(&mut self, graph: &mut Graph, role: Role) -> Result<()> {
        let number = self.number()?;
        let name = self.string()?;
        self.expect(":")?;
        let ty = self.tensor_type()?;
        let v = graph.add_input(name, role, ty);
        self.define(number, v)
    }

    fn define(&mut self, number: u64, v: ValueId) -> Result<()> {
        match self.values.insert(number, v) {
            None => Ok(()),
            Some(_) => Err(self.error(format!("%{number} is defined twice"))),
        }
    }

    fn node(&mut self, graph: &mut Graph) -> Result<()> {
        let mut outputs = Vec::new();
        loop {
            let number = self.number()?;
            let name = if self.peek() == Some('"') { Some(self.string()?) } else { None };
            self.expect(":")?;
            outputs.push((number, name, self.tensor_type()?));
            if !self.eat(",") {
                break;
            }
        }
        self.expect("=")?;
        let name = self.word();
        let op = ops::find(name).filter(|op| op.name == name);
        let op = op.ok_or_else(|| self.error(format!("there is no op `{name}`")))?;
        self.expect("(")?;
        let mut inputs = Values::new();
        while !self.eat(")") {
            inputs.push(self.operand(graph)?);
            if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        self.expect("in")?;
        let path = self.string()?;
        let place = Place { path: (!path.is_empty()).then(|| path.into()), line: None };
        let origin = graph.add_origin(place);
        let node = graph.add_node(op, inputs, outputs.iter().map(|(_, _, ty)| ty.clone()), origin);
        let values = graph.node(node).outputs.clone();
        for ((number, name, _), v) in outputs.into_iter().zip(values) {
            if let Some(name) = name {
                graph.name_value(v, name);
            }
            self.define(number, v)?;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<u64> {
        self.expect("%")?;
        let digits = self.take_while(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| self.error("expected a number after %"))
    }

    fn operand(&mut self, graph: &mut Graph) -> Result<ValueId> {
        if self.peek() == Some('%') {
            let number = self.number()?;
            return self
                .values
                .get(&number)
                .copied()
                .ok_or_else(|| self.error(format!("%{number} is not defined")));
        }
        let lit = self.literal()?;
        Ok(graph.add_literal(lit))
    }

    fn tensor_type(&mut self) -> Result<TensorType> {
        let name = self.word();
        let dtype = dtype(name).ok_or_else(|| self.error(format!("there is no dtype `{name}`")))?;
        self.expect("[")?;
        let mut shape = Shape::scalar();
        while !self.eat("]") {
            shape.0.push(self.dim()?);
            if !self.eat(",") {
                self.expect("]")?;
                break;
            }
        }
        shape.check().map_err(|e| self.error(e.message().to_owned()))?;
        Ok(TensorType { dtype, shape })
    }

    fn literal(&mut self) -> Result<Lit> {
        let first = self.plain_literal()?;
        // `a:b:c` is a slice; every part is a plain literal.
        if !self.eat(":") {
            return Ok(first);
        }
        let second = self.plain_literal()?;
        self.expect(":")?;
        let third = self.plain_literal()?;
        Ok(Lit::Slice(Arc::new([first, second, third])))
    }

    fn plain_literal(&mut self) -> Result<Lit> {
        match self.peek() {
            Some('"') => return Ok(Lit::text(&self.string()?)),
            Some('(') => return self.tuple_or_dim(),
            Some('.') => {
                self.expect("...")?;
                return Ok(Lit::Ellipsis);
            }
            _ => {}
        }
        let start = self.at;
        if let Some(x) = self.float() {
            return Ok(Lit::Float(x));
        }
        self.at = start;
        let word = self.word();
        match word {
            "none" => return Ok(Lit::None),
            "true" => return Ok(Lit::Bool(true)),
            "false" => return Ok(Lit::Bool(false)),
            "training" => return Ok(Lit::Training),
            _ => {}
        }
        if let Some(dtype) = dtype(word) {
            return if self.rest().starts_with('[') { self.tensor(start) } else { Ok(Lit::DType(dtype)) };
        }
        self.at = start;
        Ok(Lit::Int(self.dim()?))
    }

    /// A float has a point, an exponent, or is a word; anything else is left to [`Self::dim`].
    fn float(&mut self) -> Option<f64> {
        self.skip_space();
        let rest = self.rest();
        for (word, x) in [("NaN", f64::NAN), ("inf", f64::INFINITY), ("-inf", f64::NEG_INFINITY)] {
            let after = rest.strip_prefix(word);
            if after.is_some_and(|a| !a.starts_with(|c: char| c.is_alphanumeric() || c == '_')) {
                self.at += word.len();
                return Some(x);
            }
        }
        let bytes = rest.as_bytes();
        let mut end = usize::from(rest.starts_with('-'));
        while end < bytes.len() {
            let sign = end > 0 && matches!(bytes[end], b'+' | b'-') && matches!(bytes[end - 1], b'e' | b'E');
            if !(bytes[end].is_ascii_digit() || matches!(bytes[end], b'.' | b'e' | b'E') || sign) {
                break;
            }
            end += 1;
        }
        let token = &rest[..end];
        let digit = token.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
        if !digit || !token.contains(['.', 'e', 'E']) {
            return None;
        }
        let x = token.parse().ok()?;
        self.at += end;
        Some(x)
    }

    fn tuple_or_dim(&mut self) -> Result<Lit> {
        let start = self.at;
        self.expect("(")?;
        let result = self.nested(|p| {
            let mut items = Vec::new();
            let mut comma = true;
            while !p.eat(")") {
                items.push(p.literal()?);
                comma = p.eat(",");
                if !comma {
                    p.expect(")")?;
                    break;
                }
            }
            // `(n+1)` without a comma is a dimension in brackets.
            Ok((items.len() != 1 || comma).then(|| Lit::Tuple(items.into())))
        })?;
        if let Some(tuple) = result {
            return Ok(tuple);
        }
        self.at = start;
        Ok(Lit::Int(self.dim()?))
    }

    fn tensor(&mut self, start: usize) -> Result<Lit> {
        self.at = start;
        let ty = self.tensor_type()?;
        let shape = ty.shape.known().ok_or_else(|| self.error("a constant tensor needs known sizes"))?;
        self.expect("{")?;
        let mut items = Vec::new();
        while !self.eat("}") {
            items.push(match self.plain_literal()? {
                Lit::Bool(b) => Scalar::Bool(b),
                Lit::Int(Dim::Const(n)) => Scalar::Int(n),
                Lit::Float(x) => Scalar::Float(x),
                _ => return Err(self.error("expected a number")),
            });
            if !self.eat(",") {
                self.expect("}")?;
                break;
            }
        }
        // Checked before the tensor is built, since the text determines how much memory it takes.
        if shape.iter().product::<usize>() != items.len() {
            return Err(self.error(format!("{ty} has {} elements", items.len())));
        }
        Ok(Lit::from(Tensor::build(ty.dtype, &shape, |i| items[i])))
    }

    fn string(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut out = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(out);
                }
                '\\' => {
                    let (_, escape) = chars.next().unwrap_or((0, ' '));
                    out.push(match escape {
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        '0' => '\0',
                        '\\' | '"' | '\'' => escape,
                        'u' => unicode(&mut chars).ok_or_else(|| self.error("a bad \\u escape"))?,
                        _ => return Err(self.error("an unknown escape in a text")),
                    });
                }
                c => out.push(c),
            }
        }
        Err(self.error("a text does not end"))
    }

    /// sum := product (('+' | '-') product)*
    fn dim(&mut self) -> Result<Dim> {
        self.nested(|p| {
            let mut sum = p.product()?;
            loop {
                if p.eat("+") {
                    sum = &sum + &p.product()?;
                } else if p.eat("-") {
                    sum = &sum - &p.product()?;
                } else {
                    return Ok(sum);
                }
            }
        })
    }

    /// product := atom (('*' | '//') atom)*
    fn product(&mut self) -> Result<Dim> {
        let mut product = self.atom()?;
        loop {
            if self.eat("*") {
                product = &product * &self.atom()?;
                if product.parts().0.len() > MAX_TERMS {
                    return Err(self.error("a size has too many terms"));
                }
            } else if self.eat("//") {
                let by = self.atom()?;
                if by.is(0) {
                    return Err(self.error("a size is divided by 0"));
                }
                product = product.floor_div(&by);
            } else {
                return Ok(product);
            }
        }
    }

    fn atom(&mut self) -> Result<Dim> {
        if self.eat("-") {
            // The smallest integer has no positive counterpart: read it with its sign.
            let digits = self.take_while(|c| c.is_ascii_digit());
            if digits.is_empty() {
                return Ok(-&self.nested(Self::atom)?);
            }
            return format!("-{digits}")
                .parse()
                .map(Dim::Const)
                .map_err(|_| self.error("a number is too large"));
        }
        if self.eat("(") {
            let dim = self.dim()?;
            self.expect(")")?;
            return Ok(dim);
        }
        let word = self.word();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word
                .parse()
                .map(Dim::Const)
                .map_err(|_| self.error("a number is too large or malformed"));
        }
        if word.is_empty() {
            return Err(self.error("expected a size"));
        }
        // As a literal, such a symbol would be something else.
        if RESERVED.contains(&word) || dtype(word).is_some() {
            return Err(self.error(format!("`{word}` cannot be the name of a size")));
        }
        Ok(Dim::symbol(word))
    }
}

fn dtype(name: &str) -> Option<DType> {
    DType::ALL.iter().copied().find(|d| d.short() == name)
}

fn unicode(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    let mut code = 0_u32;
    if chars.next()?.1 != '{' {
        return None;
    }
    for (_, c) in chars {
        match c {
            '}' => return char::from_u32(code),
            c => code = code.checked_mul(16)?.checked_add(c.to_digit(16)?)?,
        }
    }
    None
}
