//! Sizes that are known at each call alone: where they are read.

use mithril_ir::dim::{DimFactor, Symbol};
use mithril_ir::error::Code;
use mithril_ir::graph::{Def, Role};
use mithril_ir::{Dim, Error, Result, ValueId};

use super::{FunctionWriter, INDENT};
use crate::python::template::symbol_name;

/// Symbols of sizes, in the order in which they are met.
#[derive(Debug, Default)]
pub struct Symbols(Vec<(String, String)>);

impl Symbols {
    /// The name of a size in the function.
    pub fn text(&self, symbol: &str) -> &str {
        self.0.iter().find(|(s, _)| s == symbol).map_or("?", |(_, name)| name)
    }
    /// Whether a size has this name in the function.
    pub fn has_name(&self, name: &str) -> bool {
        self.0.iter().any(|(_, known)| known == name)
    }
    /// Notes that a size is used.
    pub fn note(&mut self, symbol: String) {
        if !self.0.iter().any(|(known, _)| *known == symbol) {
            self.0.push((symbol, String::new()));
        }
    }
}

impl<'m> FunctionWriter<'m, '_> {
    /// `batch = data["input"].shape[0]`
    pub(super) fn bind_symbols(&mut self) -> Result<()> {
        let mut bindings = Vec::new();
        for (symbol, _) in &self.symbols.0 {
            let (v, axis, dim) = self.source(symbol).ok_or_else(|| {
                Error::new(Code::UnknownShape, format!("the size `{symbol}` does not follow from the inputs"))
                    .help("give it a number when compiling, or an input that has a dimension of this size")
            })?;
            bindings.push((self.graph.inputs.iter().position(|i| *i == v), axis, v, dim, symbol.clone()));
        }
        bindings.sort_by_key(|(input, axis, ..)| (*input, *axis));
        for (.., v, _, _) in &bindings {
            self.uses[v.index()] += 1;
        }
        for (_, axis, v, dim, symbol) in bindings {
            let size = format!("{}.shape[{axis}]", self.read(v)?.text);
            let name = self.names.fresh(&symbol);
            self.lines.push((format!("{INDENT}{name} = {}", solved(&size, dim)), None));
            if let Some(entry) = self.symbols.0.iter_mut().find(|(s, _)| *s == symbol) {
                entry.1 = name;
            }
        }
        Ok(())
    }

    /// The input and axis that tell a symbol, and the size there; plain symbols and data first.
    fn source(&self, symbol: &str) -> Option<(ValueId, usize, &'m Dim)> {
        let mut best = None;
        let mut best_rank = (true, u8::MAX);
        for &v in &self.graph.inputs {
            let value = self.graph.value(v);
            let Def::Input(role) = value.def else { continue };
            let arguments = self.function.arguments;
            if !(arguments.is_empty() || arguments.iter().any(|a| a.role == role)) {
                continue;
            }
            let order = match role {
                Role::Data => 0,
                Role::State => 1,
                Role::Param => 2,
                Role::Cotangent => 3,
            };
            let shape = value.ty.iter().flat_map(|ty| ty.shape.iter().enumerate());
            for (axis, dim) in shape {
                if linear(dim).is_none_or(|(s, ..)| symbol_name(s) != symbol) {
                    continue;
                }
                let rank = (dim.as_symbol().is_none(), order);
                if rank < best_rank {
                    (best, best_rank) = (Some((v, axis, dim)), rank);
                }
            }
        }
        best
    }
}

/// `coefficient · symbol + constant`
fn linear(dim: &Dim) -> Option<(&Symbol, i64, i64)> {
    let (terms, constant) = dim.parts();
    let [(factors, coefficient)] = terms else { return None };
    match factors.as_slice() {
        [DimFactor::Symbol(s)] => Some((s, *coefficient, constant)),
        _ => None,
    }
}

/// The symbol in `dim`, given the size as an expression.
fn solved(size: &str, dim: &Dim) -> String {
    match linear(dim) {
        Some((_, 1, 0)) | None => size.to_owned(),
        Some((_, 1, constant)) => format!("{size} {}", signed(constant.saturating_neg())),
        Some((_, coefficient, 0)) => format!("{size} // {coefficient}"),
        Some((_, coefficient, constant)) => {
            format!("({size} {}) // {coefficient}", signed(constant.saturating_neg()))
        }
    }
}

fn signed(n: i64) -> String {
    if n < 0 { format!("- {}", n.unsigned_abs()) } else { format!("+ {n}") }
}
