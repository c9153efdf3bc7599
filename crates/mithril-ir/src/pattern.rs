//! Shape patterns: `"*b k, n k, n -> *b n"`, the shape rule of most ops in one line.
//!
//! There is one pattern per tensor input before the arrow, and one per output after it. `*b` stands for any number of
//! dimensions, a name for one dimension, a number for itself, `_` for any dimension.

use rustc_hash::FxHashMap;

use crate::dim::Dim;
use crate::error::{Code, Error, Result};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;

/// One token of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Token<'p> {
    /// `*b`
    Sequence(&'p str),
    /// `n`
    Name(&'p str),
    /// `3`
    Number(i64),
    /// `_`
    Any,
}

/// Tokens of one shape.
pub fn tokens(text: &str) -> impl Iterator<Item = Token<'_>> {
    text.split_whitespace().map(|word| match word.strip_prefix('*') {
        Some(name) => Token::Sequence(name),
        None if word == "_" => Token::Any,
        None => word.parse().map_or(Token::Name(word), Token::Number),
    })
}

/// Patterns of the inputs and of the outputs.
pub fn split(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (left, right) = text.split_once("->").unwrap_or((text, ""));
    (left.split(',').map(str::trim).collect(), right.split(',').map(str::trim).collect())
}

/// The shapes of the outputs for the shapes of the inputs.
pub fn apply(text: &str, cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let (inputs, outputs) = split(text);
    let mut names: FxHashMap<&str, &Dim> = FxHashMap::default();
    let mut sequences: FxHashMap<&str, Vec<&Dim>> = FxHashMap::default();
    let ports = (0..cx.len()).filter(|&i| cx.op().takes_tensor(i));
    for (i, input) in ports.zip(&inputs) {
        if cx.has(i) {
            bind(input, i, cx, &mut names, &mut sequences)?;
        }
    }
    let unbound =
        |name: &str| Error::internal(format!("`{name}` of {} is not bound by its inputs", cx.op().name));
    outputs
        .iter()
        .map(|output| {
            let mut shape = Shape::scalar();
            for token in tokens(output) {
                match token {
                    Token::Sequence(s) => {
                        shape.0.extend(sequences.get(s).ok_or_else(|| unbound(s))?.iter().copied().cloned());
                    }
                    Token::Name(n) => shape.0.push((*names.get(n).ok_or_else(|| unbound(n))?).clone()),
                    Token::Number(n) => shape.0.push(Dim::Const(n)),
                    Token::Any => return Err(unbound("_")),
                }
            }
            Ok(shape)
        })
        .collect()
}

fn bind<'p, 'c>(
    pattern: &'p str,
    i: usize,
    cx: &'c ShapeCx<'_>,
    names: &mut FxHashMap<&'p str, &'c Dim>,
    sequences: &mut FxHashMap<&'p str, Vec<&'c Dim>>,
) -> Result<()> {
    let shape = cx.shape(i);
    let all: Vec<Token<'p>> = tokens(pattern).collect();
    let at = all.iter().position(|t| matches!(t, Token::Sequence(_)));
    let fixed = all.len() - usize::from(at.is_some());
    if shape.rank() < fixed || (at.is_none() && shape.rank() > fixed) {
        let message = format!("{} of {} has shape {shape}", cx.op().argument_name(i), cx.op().name);
        return Err(Error::new(Code::RankMismatch, message).help(format!("it must match [{pattern}]")));
    }
    let mut dims = shape.iter();
    for token in all {
        match token {
            Token::Sequence(name) => {
                let part: Vec<&Dim> = dims.by_ref().take(shape.rank() - fixed).collect();
                match sequences.get(name) {
                    None => {
                        sequences.insert(name, part);
                    }
                    Some(old) if old.len() == part.len() => {
                        for (a, b) in old.iter().zip(&part) {
                            cx.same(a, b, "leading sizes")?;
                        }
                    }
                    Some(old) => {
                        return Err(Error::new(
                            Code::RankMismatch,
                            format!(
                                "leading dimensions of {} differ: {} and {}",
                                cx.op().name,
                                old.len(),
                                part.len()
                            ),
                        ));
                    }
                }
            }
            Token::Name(name) => {
                let Some(dim) = dims.next() else { continue };
                match names.get(name) {
                    None => {
                        names.insert(name, dim);
                    }
                    Some(old) => cx.same(old, dim, &format!("sizes `{name}`"))?,
                }
            }
            Token::Number(n) => {
                if let Some(dim) = dims.next() {
                    cx.same(&Dim::Const(n), dim, "sizes")?;
                }
            }
            Token::Any => {
                dims.next();
            }
        }
    }
    Ok(())
}
