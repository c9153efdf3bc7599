//! What becomes of a sum before it is stored, as a small C function: a kernel calls it for each element.

use std::collections::HashMap;
use std::fmt::Write as _;

use mithril_ir::DType;
use mithril_ir::loops::{Expr, Var};

use super::expr::{Writer, computed_type};
use super::program::{Buffer, Nest};
use super::template::c_type;

/// The functions of a file, each once.
#[derive(Clone, Debug, Default)]
pub struct Tails {
    /// The C text.
    pub text: String,
    known: HashMap<String, String>,
}

/// A use of such a function.
#[derive(Debug)]
pub struct Tail {
    /// The C expression over `{acc}`, `{0}` …
    pub expression: String,
    /// What `{0}` … are: elements of buffers.
    pub loads: Vec<Expr>,
}

impl Tails {
    /// The function that makes the value of `nest` of the sum inside of it; `names` are the variables as the kernel
    /// calls them. `None` if it is no function of an element.
    pub fn add(
        &mut self,
        buffers: &[Buffer],
        nest: &Nest,
        sum: &Expr,
        names: &[(Var, String)],
    ) -> Option<Tail> {
        let to = &buffers[nest.to];
        // Kernels make bytes of what the tail returns.
        let in_bytes = to.blocks.is_some_and(|blocks| blocks.bytes.is_some());
        let stored = if in_bytes { DType::F32 } else { to.dtype };
        let is_half = matches!(stored, DType::F16 | DType::BF16);
        if nest.value == *sum && !is_half {
            return Some(Tail { expression: "{acc}".to_owned(), loads: Vec::new() });
        }
        let mut loads: Vec<Expr> = Vec::new();
        outside(&nest.value, sum, &mut |e| {
            if matches!(e, Expr::Load { .. }) && !loads.contains(e) {
                loads.push(e.clone());
            }
        });
        let mut writer = Writer::new(buffers);
        writer.know(sum.clone(), "accumulator".to_owned());
        for (i, load) in loads.iter().enumerate() {
            writer.know(load.clone(), format!("x{i}"));
        }
        for (var, name) in names {
            writer.name(*var, name.clone());
        }
        let value = writer.value(&nest.value).text;
        if !writer.used.is_empty() || writer.checks {
            return None;
        }
        let out = c_type(stored);
        let value = if is_half { format!("mithril_to_{}({value})", stored.short()) } else { value };
        writer.line(format!("return {value};"));
        let body = writer.lines.join("\n");
        let mut parameters = vec![format!("{} accumulator", computed_type(sum.dtype()))];
        let mut arguments = vec!["{acc}".to_owned()];
        for (i, load) in loads.iter().enumerate() {
            parameters.push(format!("{} x{i}", computed_type(load.dtype())));
            let Expr::Load { stored, .. } = load else { continue };
            arguments.push(match stored {
                DType::F16 | DType::BF16 => format!("mithril_from_{}({{{i}}})", stored.short()),
                _ => format!("{{{i}}}"),
            });
        }
        let mut words = body.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect::<Vec<_>>();
        words.sort_unstable();
        for name in ["batch", "row", "column"] {
            if words.binary_search(&name).is_ok() {
                parameters.push(format!("int64_t {name}"));
                arguments.push(name.to_owned());
            }
        }
        let text = format!("({}) {{\n{body}\n}}\n", parameters.join(", "));
        let name = self.function(out, text);
        Some(Tail { expression: format!("{name}({})", arguments.join(", ")), loads })
    }
}

impl Tails {
    /// The name of the function of this text.
    fn function(&mut self, out: &str, text: String) -> String {
        if let Some(name) = self.known.get(&text) {
            return name.clone();
        }
        let name = format!("mithril_tail_{}", self.known.len() + 1);
        if self.text.is_empty() {
            self.text.push_str(
                "\n/* What becomes of a finished sum (the accumulator) before a kernel stores it; x0, x1, ... are elements of \
                 other\n   tensors, of biases for example. */",
            );
        }
        let _ = write!(self.text, "\nstatic inline {out} {name}{text}");
        self.known.insert(text, name.clone());
        name
    }
}

/// Calls `f` with all expressions outside of `sum`.
fn outside(e: &Expr, sum: &Expr, f: &mut dyn FnMut(&Expr)) {
    if e == sum {
        return;
    }
    f(e);
    for child in e.children() {
        outside(child, sum, f);
    }
}
