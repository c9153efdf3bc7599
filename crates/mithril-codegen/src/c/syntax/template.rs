//! Templates of C expressions: `Lowering.c` of the op definitions. `mithril_ir::loops` lists the placeholders.

use crate::c::ir::expr::arithmetic;
use mithril_ir::lowering::LoweringCx;
use mithril_ir::lowering::LoweringRule;
use mithril_ir::op::OpDef;
use mithril_ir::{DType, Graph, NodeId};

/// The variable that is set where an argument is out of the range of a fast function (see `emit/fast_path.rs`), and its
/// placeholder.
pub const SLOW: &str = "slow";

/// How functions are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// By their names, with numbers.
    #[default]
    Plain,
    /// Functions of floats that have a fast form by that; see `emit/fast_path.rs`.
    Fast,
    /// With vectors of floats; see `select/epilogue.rs`.
    Vectors,
}

/// The template of a node, with inputs by number; `None` if the op has none for this use.
pub fn template(graph: &Graph, node: NodeId) -> Option<String> {
    let node = graph.node(node);
    let text = match node.op.lowering.c {
        LoweringRule::None => return None,
        LoweringRule::Template(text) => text.to_owned(),
        LoweringRule::Function(f) => {
            let args: Vec<String> = (0..node.inputs.len()).map(|i| format!("{{{i}}}")).collect();
            f(&LoweringCx { graph, node, args: &args, xp: "", dtypes: c_type, on_cpu: false, donated: &[] })?
        }
    };
    Some(numbered(&text, node.op))
}

/// With the names of ports as their numbers.
fn numbered(text: &str, op: &OpDef) -> String {
    op.ports.iter().enumerate().fold(text.to_owned(), |text, (i, port)| {
        let name = format!("{{{}}}", port.name);
        if text.contains(&name) { text.replace(&name, &format!("{{{i}}}")) } else { text }
    })
}

/// A part of a template.
#[derive(Debug, PartialEq)]
pub enum Part<'a> {
    /// Text as it is.
    Text(&'a str),
    /// The value of an argument; whether it stands alone between brackets or commas.
    Argument(usize, bool),
    /// Another placeholder.
    Word(&'a str),
}

/// The parts of a template.
pub fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find(['{', '}']) {
        if rest[open..].starts_with("{{") || rest[open..].starts_with("}}") {
            parts.push(Part::Text(&rest[..=open]));
            rest = &rest[open + 2..];
            continue;
        }
        let Some(close) = rest[open..].find('}').map(|n| open + n) else { break };
        parts.push(Part::Text(&rest[..open]));
        let word = &rest[open + 1..close];
        let after = &rest[close + 1..];
        parts.push(match word.parse() {
            Ok(n) => {
                let is_first =
                    open == 0 && (parts.len() == 1 || parts.ends_with(&[Part::Word(SLOW), Part::Text("")]));
                let opened = is_first || rest[..open].trim_end().ends_with(['(', ',', '[']);
                let closed = after.trim_start().starts_with([')', ',', ']']) || after.is_empty();
                Part::Argument(n, opened && closed)
            }
            Err(_) => Part::Word(word),
        });
        rest = after;
    }
    parts.push(Part::Text(rest));
    parts.retain(|part| *part != Part::Text(""));
    parts
}

/// What a placeholder that is not an argument stands for; `operand` is the dtype of the first argument, `out` the result's.
pub fn word(word: &str, operand: DType, out: DType, form: Form) -> String {
    let computed = arithmetic(operand);
    let is_fast = form == Form::Fast && computed == DType::F32;
    match word {
        "fast" if is_fast => "_fast".to_owned(),
        SLOW if is_fast => format!("&{SLOW}, "),
        "fast" | SLOW => String::new(),
        "t" if form == Form::Vectors => "vector".to_owned(),
        "t" => computed.short().to_owned(),
        "T" => c_type(computed).to_owned(),
        "f" => (if computed == DType::F32 { "f" } else { "" }).to_owned(),
        "to" => out.short().to_owned(),
        "TO" => c_type(arithmetic(out)).to_owned(),
        other => format!("{{{other}}}"),
    }
}

/// The C type in which values of a dtype are stored.
pub fn c_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 => "uint8_t",
        DType::I8 => "int8_t",
        DType::I16 => "int16_t",
        DType::U32 => "uint32_t",
        DType::U64 => "uint64_t",
        DType::I32 => "int32_t",
        DType::I64 => "int64_t",
        DType::U16 | DType::F16 | DType::BF16 => "uint16_t",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_templates() {
        use Part::{Argument, Text, Word};
        assert_eq!(parts("{0} + 1"), [Argument(0, false), Text(" + 1")]);
        assert_eq!(
            parts("f_{t}({1}, -{0})"),
            [Text("f_"), Word("t"), Text("("), Argument(1, true), Text(", -"), Argument(0, false), Text(")")]
        );
        assert_eq!(parts("{{{0}}}"), [Text("{"), Argument(0, false), Text("}")]);
        assert_eq!(parts("f({slow}{0})"), [Text("f("), Word("slow"), Argument(0, true), Text(")")]);
    }

    #[test]
    fn floats_have_fast_forms() {
        let text = |operand, form| {
            let part = |part: &Part<'_>| match part {
                Part::Text(text) => (*text).to_owned(),
                Part::Argument(..) => "x".to_owned(),
                Part::Word(w) => word(w, operand, operand, form),
            };
            parts("mithril_sin{fast}_{t}({slow}{0})").iter().map(part).collect::<String>()
        };
        assert_eq!(text(DType::F32, Form::Fast), "mithril_sin_fast_f32(&slow, x)");
        assert_eq!(text(DType::F16, Form::Fast), "mithril_sin_fast_f32(&slow, x)");
        assert_eq!(text(DType::F32, Form::Plain), "mithril_sin_f32(x)");
        assert_eq!(text(DType::F64, Form::Fast), "mithril_sin_f64(x)");
    }
}
