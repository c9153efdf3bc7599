//! From the lowering of an op to a tree of uses of ONNX's ops.
//!
//! `Mul(Erf(Div({0}, 1.4142)), 0.5)`, `TopK<axis=1>({0}, ints({1}))#1`: an op of ONNX with its attributes between angle
//! brackets and its inputs between round ones (`_` leaves one out), of which `#1` takes the second output; words in small
//! letters are forms of [`super::forms`], which become constants, sizes or several nodes. Inputs of the node stand in
//! braces, by number or by the name of the port. A number takes the dtype of the tensors beside it; a list of integers is
//! a constant of int64. `$u = Exp({0}) | Sub($u, 1)` names what is used more than once. An op with several outputs is
//! written as trees separated by `;`.

use mithril_ir::DType;
use mithril_ir::op::OpDef;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// An op of ONNX: its name, attributes, inputs, and which of its outputs.
    Op(String, Vec<(String, Attribute)>, Vec<Tree>, usize),
    /// A form, with its arguments.
    Form(String, Vec<Tree>),
    /// An input of the node.
    Input(usize),
    /// A number.
    Number(f64),
    /// Integers: a constant with one axis.
    List(Vec<i64>),
    /// What was named before, by its place.
    Local(usize),
    /// An input that is left out.
    Absent,
}

/// What a text says.
#[derive(Clone, Debug, PartialEq)]
pub struct Spelling {
    /// What is named, in order.
    pub locals: Vec<Tree>,
    /// The outputs.
    pub outputs: Vec<Tree>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A text.
    Text(String),
    /// Integers.
    Ints(Vec<i64>),
    /// A dtype.
    DType(DType),
}

/// The trees of a text.
///
/// # Errors
/// What was expected, and what stands there.
pub fn parse<'a>(text: &'a str, op: &'a OpDef) -> Result<Spelling, String> {
    let mut parser = Parser { rest: text.trim_start(), op, names: Vec::new() };
    let mut locals = Vec::new();
    while let Some(name) = parser.defined() {
        locals.push(parser.tree()?);
        parser.names.push(name);
        parser.needs('|')?;
    }
    let mut outputs = vec![parser.tree()?];
    while parser.takes(';') {
        outputs.push(parser.tree()?);
    }
    if parser.rest.is_empty() { Ok(Spelling { locals, outputs }) } else { Err(parser.unexpected("the end")) }
}

struct Parser<'a> {
    rest: &'a str,
    op: &'a OpDef,
    names: Vec<&'a str>,
}

impl<'a> Parser<'a> {
    fn unexpected(&self, expected: &str) -> String {
        format!("expected {expected} at `{}`", self.rest)
    }
    fn takes(&mut self, token: char) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest).trim_start();
        rest.is_some()
    }
    fn needs(&mut self, token: char) -> Result<(), String> {
        if self.takes(token) { Ok(()) } else { Err(self.unexpected(&format!("`{token}`"))) }
    }
    /// What lies before the next sign.
    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| "()[]{}<>=;#|, ".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }
    /// The name that is defined here, with its equals sign.
    fn defined(&mut self) -> Option<&'a str> {
        let (name, rest) = self.rest.strip_prefix('$')?.split_once('=')?;
        let name = name.trim();
        if !name.chars().all(char::is_alphanumeric) {
            return None;
        }
        self.rest = rest.trim_start();
        Some(name)
    }
    fn tree(&mut self) -> Result<Tree, String> {
        if self.takes('$') {
            let word = self.word();
            let place = self.names.iter().rposition(|name| *name == word);
            return place.map(Tree::Local).ok_or_else(|| format!("`${word}` is not defined"));
        }
        if self.takes('{') {
            let word = self.word();
            let input = word.parse().ok().or_else(|| self.op.port(word));
            self.needs('}')?;
            return input.map(Tree::Input).ok_or_else(|| format!("{} has no input {word}", self.op.name));
        }
        if self.takes('[') {
            return self.items(']', Self::integer).map(Tree::List);
        }
        match self.word() {
            "" => Err(self.unexpected("an expression")),
            "_" => Ok(Tree::Absent),
            word if word.starts_with(|c: char| c.is_ascii_uppercase()) => {
                let attributes = if self.takes('<') { self.items('>', Self::attribute)? } else { Vec::new() };
                self.needs('(')?;
                let inputs = self.items(')', Self::tree)?;
                let output = if self.takes('#') { self.integer()? } else { 0 };
                let output = usize::try_from(output).map_err(|_| format!("output {output}"))?;
                Ok(Tree::Op(word.to_owned(), attributes, inputs, output))
            }
            word => {
                if let Ok(number) = word.parse() {
                    return Ok(Tree::Number(number));
                }
                self.needs('(')?;
                Ok(Tree::Form(word.to_owned(), self.items(')', Self::tree)?))
            }
        }
    }
    fn attribute(&mut self) -> Result<(String, Attribute), String> {
        let name = self.word().to_owned();
        self.needs('=')?;
        if self.takes('[') {
            return Ok((name, Attribute::Ints(self.items(']', Self::integer)?)));
        }
        if self.takes('"') {
            let (text, rest) = self.rest.split_once('"').ok_or_else(|| self.unexpected("a text"))?;
            self.rest = rest.trim_start();
            return Ok((name, Attribute::Text(text.to_owned())));
        }
        let word = self.word();
        let unknown = |_| format!("`{word}` is not an attribute");
        let value = match (word.parse::<i64>(), word.parse::<f64>()) {
            (Ok(n), _) => Attribute::Int(n),
            (_, Ok(x)) => Attribute::Float(x),
            _ => Attribute::DType(DType::parse(word).map_err(unknown)?),
        };
        Ok((name, value))
    }
    fn integer(&mut self) -> Result<i64, String> {
        let word = self.word();
        word.parse().map_err(|_| format!("`{word}` is not an integer"))
    }
    /// What stands between commas, up to the end sign.
    fn items<T>(
        &mut self,
        end: char,
        mut item: impl FnMut(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let mut items = Vec::new();
        while !self.takes(end) {
            if !items.is_empty() {
                self.needs(',')?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use mithril_ir::ops;

    use super::*;

    #[test]
    fn lowerings_are_trees() {
        let op = ops::find("topk").unwrap();
        let spelling =
            parse("$a = {0} | TopK<axis=-1, to=f16, x=\"a b\">({input}, list([1], -inf), _)#1; $a", op)
                .unwrap();
        let list = Tree::Form("list".into(), vec![Tree::List(vec![1]), Tree::Number(f64::NEG_INFINITY)]);
        let attributes = vec![
            ("axis".into(), Attribute::Int(-1)),
            ("to".into(), Attribute::DType(DType::F16)),
            ("x".into(), Attribute::Text("a b".into())),
        ];
        let inputs = vec![Tree::Input(0), list, Tree::Absent];
        let outputs = vec![Tree::Op("TopK".into(), attributes, inputs, 1), Tree::Local(0)];
        assert_eq!(spelling, Spelling { locals: vec![Tree::Input(0)], outputs });
        for text in [
            "$a",
            "$a = {0}",
            "$a = $a | {0}",
            "TopK({0}",
            "TopK<axis>({0})",
            "{what}",
            "TopK({0}))",
            "",
            "Mul<a=b c>({0})",
        ] {
            assert!(parse(text, op).is_err(), "{text}");
        }
    }
}
