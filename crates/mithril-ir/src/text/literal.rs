//! Parser of literals, dimensions and types.

use std::sync::Arc;

use super::lexer::Lexer;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::TensorType;
use crate::literal::Lit;
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor};

/// Largest number of terms in a product of sizes, since products of sums grow exponentially.
const MAX_TERMS: usize = 64;

/// Words that are literals.
const RESERVED: &[&str] = &["none", "true", "false", "training", "NaN", "inf"];

/// Reads the text form of a literal.
pub fn parse_literal(text: &str) -> Result<Lit> {
    whole(text, Lexer::literal)
}

/// Reads a dimension: `2*n+1`, `(n+1)//2`.
pub fn parse_dim(text: &str) -> Result<Dim> {
    whole(text, Lexer::dim)
}

/// Reads a type: `f32[n, 4]`.
pub fn parse_type(text: &str) -> Result<TensorType> {
    whole(text, Lexer::tensor_type)
}

fn whole<'t, T>(text: &'t str, read: impl FnOnce(&mut Lexer<'t>) -> Result<T>) -> Result<T> {
    let mut lexer = Lexer::new(text);
    let value = read(&mut lexer)?;
    lexer.end()?;
    Ok(value)
}

impl Lexer<'_> {
    /// The dtype that a short name stands for.
    pub fn dtype(&mut self) -> Result<DType> {
        let name = self.word();
        dtype(name).ok_or_else(|| self.error(format!("there is no dtype `{name}`")))
    }
    /// A type.
    pub fn tensor_type(&mut self) -> Result<TensorType> {
        let dtype = self.dtype()?;
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

    /// A literal.
    pub fn literal(&mut self) -> Result<Lit> {
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
        self.elements(ty.dtype, &shape).map(Lit::from)
    }

    /// The elements of a tensor in braces.
    pub fn elements(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        self.expect("{")?;
        let items = self.items("}", |lexer| {
            if let Some(x) = lexer.float() {
                return Ok(Scalar::Float(x));
            }
            match lexer.peek() {
                Some('t' | 'f') => match lexer.plain_literal()? {
                    Lit::Bool(b) => Ok(Scalar::Bool(b)),
                    _ => Err(lexer.error("expected a number")),
                },
                _ => lexer.wide_integer().map(Scalar::Int),
            }
        })?;
        // Checked before the tensor is built, since the text determines how much memory it takes.
        if shape.iter().product::<usize>() != items.len() {
            return Err(self.error(format!("{dtype}{shape:?} does not have {} elements", items.len())));
        }
        Ok(Tensor::build(dtype, shape, |i| items[i]))
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
