//! Reading the arguments of a layer.

use mithril_ir::op::OpDef;
use mithril_ir::{Code, Dim, Error, Lit, Result, ops};

use super::Layer;
use crate::key::Size;

/// The largest count. What is larger is refused here, where the reason is known, and not where it is multiplied.
const MOST: i64 = 1 << 40;

/// The arguments of a layer, one value per argument.
#[derive(Debug)]
pub struct LayerArgs<'a> {
    pub(super) layer: &'a Layer,
    pub(super) values: &'a [Lit],
}

impl LayerArgs<'_> {
    /// The value of an argument.
    pub fn lit(&self, name: &str) -> Lit {
        let i = self.layer.args.iter().position(|a| a.name == name);
        i.and_then(|i| self.values.get(i)).cloned().unwrap_or(Lit::None)
    }
    /// A number of things: at least 1.
    pub fn count(&self, name: &str) -> Result<i64> {
        let n = self.int(name)?;
        match n {
            ..1 => Err(self.bad(name, "a positive number")),
            n if n <= MOST => Ok(n),
            _ => Err(self.too_large(name)),
        }
    }
    /// A number of things, or `None`.
    pub fn opt_count(&self, name: &str) -> Result<Option<i64>> {
        if self.lit(name).is_none() { Ok(None) } else { self.count(name).map(Some) }
    }
    /// A size that is inferred if it is missing.
    pub(crate) fn opt_size(&self, name: &str) -> Result<Size> {
        Ok(self.opt_count(name)?.map_or(Size::Unknown, Size::from))
    }
    /// An integer.
    pub fn int(&self, name: &str) -> Result<i64> {
        match self.lit(name) {
            Lit::Int(Dim::Const(n)) => Ok(n),
            _ => Err(self.bad(name, "an integer")),
        }
    }
    /// Positive integers, `n` of them or one for all.
    pub fn counts(&self, name: &str, n: usize) -> Result<Vec<i64>> {
        let all = self.counts_any(name)?;
        match all.len() {
            1 => Ok(vec![all[0]; n]),
            len if len == n => Ok(all),
            _ => Err(self.bad(name, &format!("one integer or {n}"))),
        }
    }
    /// Positive integers, any number of them.
    pub fn counts_any(&self, name: &str) -> Result<Vec<i64>> {
        let items = match self.lit(name) {
            Lit::Tuple(items) => items.to_vec(),
            one => vec![one],
        };
        items
            .iter()
            .map(|item| match item {
                Lit::Int(Dim::Const(n @ 1..=MOST)) => Ok(*n),
                Lit::Int(Dim::Const(n)) if *n > MOST => Err(self.too_large(name)),
                _ => Err(self.bad(name, "positive integers")),
            })
            .collect()
    }
    /// A boolean.
    pub fn bool(&self, name: &str) -> Result<bool> {
        match self.lit(name) {
            Lit::Bool(b) => Ok(b),
            Lit::Int(Dim::Const(n @ (0 | 1))) => Ok(n == 1),
            _ => Err(self.bad(name, "true or false")),
        }
    }
    /// A number.
    pub fn f64(&self, name: &str) -> Result<f64> {
        match self.lit(name) {
            Lit::Float(x) => Ok(x),
            Lit::Int(Dim::Const(n)) => Ok(n as f64),
            _ => Err(self.bad(name, "a number")),
        }
    }
    /// A text.
    pub fn text(&self, name: &str) -> Result<String> {
        match self.lit(name) {
            Lit::Str(s) => Ok(s.to_string()),
            _ => Err(self.bad(name, "a text")),
        }
    }
    /// The error that an argument has a value it cannot have.
    #[cold]
    pub fn too_large(&self, name: &str) -> Error {
        self.bad(name, &format!("at most {MOST} (2⁴⁰): no memory holds more")).note("it is too large")
    }
    /// The error that an argument has a value that is not allowed.
    pub fn bad(&self, name: &str, expected: &str) -> Error {
        let message = format!("`{name}` of {} is {}", self.layer.name, self.lit(name));
        Error::new(Code::BadArgument, message).help(format!("it must be {expected}"))
    }
}

/// The op of that name, which a layer is made of.
pub(super) fn op(name: &str) -> Result<&'static OpDef> {
    ops::get(name)
}
