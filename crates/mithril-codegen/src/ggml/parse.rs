//! From the lowering of an op to a tree of calls.
//!
//! `ggml_scale(ggml_mul_mat({1}, {0}), 0.125)`: calls, inputs of the node by number or by the name of the port,
//! numbers (`inf`, `-1e-5`), `true`, `false`, `NULL`, and lists of integers (`[0, 2, 1]`) for the movements that
//! the lowering turns into views.

use mithril_ir::op::OpDef;

use super::types::Element;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// A call.
    Call(String, Vec<Tree>),
    /// An input of the node.
    Input(usize),
    /// A number; a boolean is 0 or 1.
    Number(f64),
    /// No tensor.
    Null,
    /// Integers.
    List(Vec<i64>),
    /// A type of elements.
    Element(Element),
}

/// The tree of a text.
///
/// # Errors
/// What was expected, and what stands there.
///
/// ```
/// use mithril_codegen::ggml::parse::{Tree, parse};
/// use mithril_ir::ops;
///
/// let op = ops::find("tanh").unwrap();
/// let tree = parse("ggml_scale(ggml_tanh({input}), -2)", op)?;
/// let inner = Tree::Call("ggml_tanh".into(), vec![Tree::Input(0)]);
/// assert_eq!(tree, Tree::Call("ggml_scale".into(), vec![inner, Tree::Number(-2.0)]));
/// assert!(parse("ggml_tanh({0}", op).is_err());
/// # Ok::<(), String>(())
/// ```
pub fn parse(text: &str, op: &OpDef) -> Result<Tree, String> {
    let mut parser = Parser { rest: text.trim_start(), op };
    let tree = parser.tree()?;
    if parser.rest.is_empty() { Ok(tree) } else { Err(parser.unexpected("the end")) }
}

struct Parser<'a> {
    rest: &'a str,
    op: &'a OpDef,
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
        let end = self.rest.find(|c: char| "()[]{}, ".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }
    fn tree(&mut self) -> Result<Tree, String> {
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
            "NULL" => Ok(Tree::Null),
            "true" => Ok(Tree::Number(1.0)),
            "false" => Ok(Tree::Number(0.0)),
            word => {
                if let Ok(number) = word.parse() {
                    return Ok(Tree::Number(number));
                }
                if let Some(element) = Element::parse(word) {
                    return Ok(Tree::Element(element));
                }
                self.needs('(')?;
                Ok(Tree::Call(word.to_owned(), self.items(')', Self::tree)?))
            }
        }
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
