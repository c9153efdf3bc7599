//! What becomes of a sum before it is stored, as a small C function: a kernel calls it for each element.

use std::collections::HashMap;

use mithril_ir::DType;

use crate::c::ir::expr::{Expr, Index, Var};
use crate::c::ir::program::{Buffers, Memory, Nest};
use crate::c::kernels::common::library::is_vector_function;
use crate::c::syntax::expr::{Writer, computed_type};
use crate::c::syntax::template::{Form, Part, c_type, parts};

/// The functions of a file, each once.
#[derive(Clone, Debug, Default)]
pub struct EpilogueFunctions {
    /// Names and C texts.
    functions: Vec<(String, String)>,
    known: HashMap<String, String>,
}

/// A use of such a function.
#[derive(Debug)]
pub struct EpilogueCall {
    /// The C expression over `{acc}`, `{0}` …
    pub expression: String,
    /// The same of vectors of float, if there is such an expression.
    pub vectors: Option<String>,
    /// What `{0}` … are: elements of buffers.
    pub loads: Vec<Expr>,
}

impl EpilogueFunctions {
    /// The function that makes the value of `nest` of the sum inside of it; `names` are the variables as the kernel
    /// calls them. `None` if it is not a function of an element.
    pub fn add<M: Memory>(
        &mut self,
        buffers: &Buffers<M>,
        nest: &Nest,
        sum: &Expr,
        names: &[(Var, String)],
    ) -> Option<EpilogueCall> {
        let to = &buffers[nest.to];
        // Kernels make bytes of what the epilogue returns.
        let in_bytes = to.blocks.is_some_and(|blocks| blocks.bytes.is_some());
        let stored = if in_bytes { DType::F32 } else { to.dtype };
        let is_half = matches!(stored, DType::F16 | DType::BF16);
        if nest.value == *sum && !is_half {
            let vectors = (stored == DType::F32).then(|| "{acc}".to_owned());
            return Some(EpilogueCall { expression: "{acc}".to_owned(), vectors, loads: Vec::new() });
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
        let body = writer.body();
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
        let vectors = in_vectors(buffers, nest, sum, &loads);
        Some(EpilogueCall { expression: format!("{name}({})", arguments.join(", ")), vectors, loads })
    }
}

impl EpilogueFunctions {
    /// The name of the function of this text.
    fn function(&mut self, out: &str, text: String) -> String {
        if let Some(name) = self.known.get(&text) {
            return name.clone();
        }
        let name = format!("mithril_epilogue_{}", self.known.len() + 1);
        self.functions.push((name.clone(), format!("\nstatic inline {out} {name}{text}")));
        self.known.insert(text, name.clone());
        name
    }

    /// Number of functions, for [`Self::truncate`].
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Removes the functions from this number on.
    pub fn truncate(&mut self, len: usize) {
        let removed = self.functions.split_off(len);
        self.known.retain(|_, name| removed.iter().all(|(other, _)| other != name));
    }

    /// The C text of the functions that these kernels call: those that finish a vector at a time call none.
    pub fn source(&self, kernels: &str) -> String {
        let called = self.functions.iter().filter(|(name, _)| kernels.contains(&format!("{name}(")));
        let functions: String = called.map(|(_, text)| text.as_str()).collect();
        if functions.is_empty() {
            return functions;
        }
        format!(
            "\n/* What becomes of a finished sum (the accumulator) before a kernel stores it; x0, x1, ... are elements of \
             other\n   tensors, of biases for example. */{functions}"
        )
    }
}

/// The value over vectors of the sum and of what is loaded: for arithmetic and functions that there are for vectors. A
/// compiler finds vectors in loops over lanes, too, but takes several times as long where many of them stand side by side.
fn in_vectors<M: Memory>(buffers: &Buffers<M>, nest: &Nest, sum: &Expr, loads: &[Expr]) -> Option<String> {
    let mut knows = vec![(sum.clone(), "{acc}".to_owned())];
    knows.extend(loads.iter().enumerate().map(|(i, load)| (load.clone(), format!("{{{i}}}"))));
    let is_stored_so = |load: &Expr| matches!(load, Expr::Load { stored: DType::F32 | DType::BF16, .. });
    let mut value = rounded_in_vectors(&nest.value, sum);
    if buffers[nest.to].dtype == DType::BF16 {
        value = unrounded(value);
    }
    if sum.dtype() != DType::F32 || !loads.iter().all(is_stored_so) || !suits_vectors(&value, &knows) {
        return None;
    }
    let mut writer = Writer::new(buffers);
    writer.form = Form::Vectors;
    for (e, name) in knows {
        writer.know(e, name);
    }
    Some(writer.value(&value).text)
}

/// What rounds a vector of floats to bfloat16.
const ROUND: &str = "mithril_round_bf16_{t}({0})";

/// The expression with roundings to bfloat16 that there are for vectors.
fn rounded_in_vectors(e: &Expr, sum: &Expr) -> Expr {
    if e == sum {
        return e.clone();
    }
    let is_float =
        |args: &[Expr]| args.first().is_some_and(|x| matches!(x.dtype(), DType::F32 | DType::BF16));
    match e {
        Expr::Cast(x, DType::BF16) if x.dtype() == DType::F32 => {
            Expr::apply(ROUND, vec![rounded_in_vectors(x, sum)], DType::F32)
        }
        Expr::Apply { text, args, dtype: DType::F32 } if &**text == "({TO}){0}" && is_float(args) => {
            rounded_in_vectors(&args[0], sum)
        }
        Expr::Apply { text, args, .. } if &**text == "mithril_round_bf16({0})" && is_float(args) => {
            Expr::apply(ROUND, vec![rounded_in_vectors(&args[0], sum)], DType::F32)
        }
        e => e.map(&Index::clone, &|child| rounded_in_vectors(child, sum)),
    }
}

/// The number whose rounding to bfloat16 an expression is: what stores it rounds.
fn unrounded(e: Expr) -> Expr {
    match e {
        Expr::Apply { text, mut args, .. } if &*text == ROUND => args.swap_remove(0),
        e => e,
    }
}

/// Whether the value is arithmetic on floats, and functions of them that there are for vectors.
fn suits_vectors(e: &Expr, knows: &[(Expr, String)]) -> bool {
    if knows.iter().any(|(known, _)| known == e) {
        return true;
    }
    let is_vectorial = match e {
        Expr::Number(value, _) => value.f64().is_finite(),
        Expr::Binary(op, ..) => op.sign().is_some(),
        Expr::Apply { text, .. } => suits_vectors_as_template(text),
        _ => false,
    };
    is_vectorial
        && e.dtype() == DType::F32
        && e.children().into_iter().all(|child| suits_vectors(child, knows))
}

/// Whether a template has each argument at most once, and nothing else but signs, numbers and functions of vectors.
fn suits_vectors_as_template(text: &str) -> bool {
    let parts = parts(text);
    let is_single = |part: &Part<'_>| {
        !matches!(part, Part::Argument(..)) || parts.iter().filter(|p| *p == part).count() == 1
    };
    let text = parts.iter().map(|part| match part {
        Part::Text(text) => (*text).to_owned(),
        Part::Word("t") => "vector".to_owned(),
        Part::Word("f") => "f".to_owned(),
        Part::Word(_) => "?".to_owned(),
        Part::Argument(..) => "0".to_owned(),
    });
    let text = text.collect::<String>();
    let is_word_known = |word: &str| {
        word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit()) || is_vector_function(word)
    };
    parts.iter().all(is_single)
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_ ().,+-*/".contains(c))
        && text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').all(is_word_known)
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
