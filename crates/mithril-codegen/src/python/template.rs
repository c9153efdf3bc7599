//! From the lowering of a use of an op to a template: text with places for operands, each of which knows how
//! tightly its operand has to bind, so that brackets stand only where they are needed.

use mithril_ir::dim::Symbol;
use mithril_ir::graph::Node;
use mithril_ir::lowering::LoweringRule;
use mithril_ir::lowering::{LoweringCx, MARK, MARK_END, arg_mark, symbol_mark, tuple};
use mithril_ir::op::PortKind;
use mithril_ir::{DType, Dim, Graph, Lit, NodeId, ValueId};

use super::literal;
use super::targets::PythonTarget;

/// How tightly an expression binds.
pub type Precedence = u8;

/// A tuple without brackets, `lambda`, `x if c else y`.
pub const LOOSE: Precedence = 0;
const OR: Precedence = 1;
const AND: Precedence = 2;
const NOT: Precedence = 3;
const COMPARE: Precedence = 4;
const BIT_OR: Precedence = 5;
const BIT_XOR: Precedence = 6;
const BIT_AND: Precedence = 7;
const SHIFT: Precedence = 8;
const SUM: Precedence = 9;
const PRODUCT: Precedence = 10;
const UNARY: Precedence = 11;
const POWER: Precedence = 12;
/// A number, which cannot stand before a dot.
const NUMBER: Precedence = 13;
/// A name, call, subscript or anything in brackets.
pub const ATOM: Precedence = 14;

/// The code of a use of an op.
#[derive(Clone, Debug)]
pub struct Template {
    text: String,
    pieces: Vec<Piece>,
    names: Vec<(usize, usize)>,
    /// How tightly the whole binds.
    pub precedence: Precedence,
    /// Whether operands are evaluated again and again, in a comprehension or lambda.
    pub repeats: bool,
    /// Whether it is a method of the user's backend or of the reference: those take arrays for numbers.
    pub is_method: bool,
    /// Whether the reference runs it.
    pub is_referred: bool,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of the text that are taken as they are.
    Text(usize, usize),
    /// Input of the node, and how tightly it has to bind.
    Operand(usize, Precedence),
    /// A symbol of a size.
    Symbol(String),
}

/// An expression and how tightly it binds.
#[derive(Clone, Debug)]
pub struct Expression {
    /// Its text.
    pub text: String,
    /// How tightly it binds.
    pub precedence: Precedence,
}

impl Expression {
    /// Something that never needs brackets.
    pub fn atom(text: String) -> Self {
        Self { text, precedence: ATOM }
    }
    /// Measures how tightly a text binds.
    pub fn measured(text: String) -> Self {
        let precedence = scan(text.clone()).precedence;
        Self { text, precedence }
    }
}

impl Template {
    /// The text, with marks for operands.
    pub fn text(&self) -> &str {
        &self.text
    }
    /// The same with another text.
    pub fn with_text(&self, text: String) -> Self {
        let Self { repeats, is_method, is_referred, .. } = *self;
        Self { repeats, is_method, is_referred, ..scan(text) }
    }
    /// The parts in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
    /// The input that stands first.
    pub fn first_operand(&self) -> Option<usize> {
        self.pieces.iter().find_map(|piece| match piece {
            Piece::Operand(i, _) => Some(*i),
            _ => None,
        })
    }
    /// Whether it is a call whose first argument is an operand, or such a call of its own.
    pub fn starts_with_operand(&self) -> bool {
        match self.pieces.as_slice() {
            &[Piece::Text(start, end), Piece::Operand(..), ..] => {
                let names = self.text[start..end].strip_suffix('(');
                let is_name =
                    |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b));
                names.is_some_and(|names| names.split('(').all(is_name))
            }
            _ => false,
        }
    }
    /// Names in the text (not in strings) that may be helpers or imported.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|&(start, end)| &self.text[start..end])
    }
    /// The items of a tuple of `count` items, which are expressions of their own; `None` if the text is none.
    pub fn items(&self, count: usize) -> Option<Vec<Self>> {
        let tokens = tokens(&self.text);
        let commas = tokens
            .iter()
            .filter(|t| t.kind == Kind::Separator && t.depth == 0 && &self.text[t.start..t.end] == ",");
        let mut parts = Vec::with_capacity(count);
        let mut start = 0;
        for comma in commas {
            parts.push(self.text[start..comma.start].trim());
            start = comma.end;
        }
        parts.push(self.text[start..].trim());
        (parts.len() == count && count > 1).then(|| parts.into_iter().map(|p| scan(p.to_owned())).collect())
    }
    /// The expression with these operands and symbols.
    pub fn fill<'a>(
        &self,
        operand: impl Fn(usize) -> &'a Expression,
        symbol: impl Fn(&str) -> &'a str,
    ) -> Expression {
        let mut text = String::with_capacity(self.text.len() + 32);
        let mut precedence = self.precedence;
        for piece in &self.pieces {
            match piece {
                Piece::Text(start, end) => text.push_str(&self.text[*start..*end]),
                Piece::Symbol(name) => text.push_str(symbol(name)),
                Piece::Operand(i, need) => {
                    let inner = operand(*i);
                    if inner.precedence < *need {
                        text.push('(');
                        text.push_str(&inner.text);
                        text.push(')');
                    } else {
                        text.push_str(&inner.text);
                    }
                    if self.pieces.len() == 1 {
                        precedence = inner.precedence;
                    }
                }
            }
        }
        Expression { text, precedence }
    }
}

/// The template of a use of an op; `None` if the target cannot express it.
pub fn lower(target: &PythonTarget, graph: &Graph, node: NodeId) -> Option<Template> {
    let node = graph.node(node);
    let types = node.inputs.iter().chain(&node.outputs).filter_map(|&v| graph.ty(v));
    if types.into_iter().any(|ty| (target.dtypes)(ty.dtype).is_empty()) {
        return None;
    }
    let overlay = target.overlay.as_deref();
    if let Some(text) = overlay.and_then(|overlay| overlay.lower(graph, node)) {
        return Some(Template { is_method: true, ..scan(text) });
    }
    let own = lower_own(target, graph, node);
    own.or_else(|| {
        let text = overlay.and_then(|overlay| overlay.refer(graph, node))?;
        Some(Template { is_method: true, is_referred: true, ..scan(text) })
    })
}

/// The template of a use of an op that writes into the memory of its first input, if the target has one.
pub fn lower_in_place(target: &PythonTarget, graph: &Graph, node: NodeId) -> Option<Template> {
    let node = graph.node(node);
    if target.overlay.as_deref().is_some_and(|overlay| overlay.lower(graph, node).is_some()) {
        return None;
    }
    lower_by(target, graph, node, [(target.in_place)(&node.op.lowering)], Lists::default())
}

/// What a call on lists of tensors may assume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists<'a> {
    /// Whether the tensors are on a CPU.
    pub on_cpu: bool,
    /// Inputs that may be written into.
    pub donated: &'a [usize],
}

/// The template of many uses of an op in one call, of which this is one, if the target has one.
pub fn lower_foreach(
    target: &PythonTarget,
    graph: &Graph,
    node: NodeId,
    lists: Lists<'_>,
) -> Option<Template> {
    let node = graph.node(node);
    if target.overlay.as_deref().is_some_and(|overlay| overlay.lower(graph, node).is_some()) {
        return None;
    }
    lower_by(target, graph, node, [(target.foreach)(&node.op.lowering)], lists)
}

/// The text of a use of an op whose variadic input is the items of an array, for which input `items` stands.
pub fn lower_stacked(target: &PythonTarget, graph: &Graph, node: &Node, items: usize) -> Option<String> {
    let LoweringRule::Function(function) = (target.stacked)(&node.op.lowering) else { return None };
    let args = vec![arg_mark(items); node.inputs.len()];
    let (xp, dtypes) = (target.xp, target.dtypes);
    function(&LoweringCx { args: &args, xp, dtypes, ..LoweringCx::of(graph, node) })
}

/// The template by the target's own table.
fn lower_own(target: &PythonTarget, graph: &Graph, node: &Node) -> Option<Template> {
    lower_by(target, graph, node, (target.rules)(&node.op.lowering), Lists::default())
}

/// The template of the first rule that applies.
fn lower_by(
    target: &PythonTarget,
    graph: &Graph,
    node: &Node,
    rules: impl IntoIterator<Item = LoweringRule>,
    lists: Lists<'_>,
) -> Option<Template> {
    let text = rules.into_iter().find_map(|text| match text {
        LoweringRule::None => None,
        LoweringRule::Template(template) => expand(target, graph, node, template),
        LoweringRule::Function(function) => {
            let args = (0..node.inputs.len())
                .map(|i| argument(target, graph, node, i))
                .map(|arg| arg.map(|arg| if is_compound(&arg) { format!("({arg})") } else { arg }))
                .collect::<Option<Vec<_>>>()?;
            let Lists { on_cpu, donated } = lists;
            let (xp, dtypes) = (target.xp, target.dtypes);
            function(&LoweringCx { graph, node, args: &args, xp, dtypes, on_cpu, donated })
        }
    })?;
    let is_detached = !target.detached.is_empty() && makes_integers(graph, node);
    let template = scan(if is_detached { target.detached.replace("{value}", &text) } else { text });
    // A helper that is not there must not be found out by the user's run.
    let lacks = |name: &str| name.starts_with('_') && !target.prelude.has(name);
    let is_complete = !template.names().any(lacks);
    is_complete.then_some(template)
}

/// Whether the one result is integers, made of what is not.
fn makes_integers(graph: &Graph, node: &Node) -> bool {
    let is_integer =
        |v: ValueId| graph.ty(v).is_some_and(|ty| !ty.dtype.is_float() && ty.dtype != DType::Bool);
    let [output] = node.outputs[..] else { return false };
    let mut tensors = node.inputs.iter().filter(|v| graph.lit(**v).is_none());
    is_integer(output) && tensors.any(|v| !is_integer(*v))
}

/// The text of input `i`: a mark for a tensor, the literal otherwise.
pub(super) fn argument(target: &PythonTarget, graph: &Graph, node: &Node, i: usize) -> Option<String> {
    let lit = node.inputs.get(i).and_then(|&v| graph.lit(v));
    match lit {
        Some(lit) if lit.is_none() || !node.op.takes_tensor(i) => {
            literal::argument(target, lit, &symbol_mark)
        }
        _ => Some(arg_mark(i)),
    }
}

/// Whether the text is arithmetic on symbols.
fn is_compound(text: &str) -> bool {
    text.contains(MARK) && scan(text.to_owned()).precedence < UNARY
}

/// Replaces the placeholders of an op's template.
fn expand(target: &PythonTarget, graph: &Graph, node: &Node, template: &str) -> Option<String> {
    let mut out = String::with_capacity(template.len() + 16);
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let doubled = rest[at + 1..].starts_with(&rest[at..=at]);
        if doubled || rest[at..].starts_with('}') {
            out.push_str(&rest[at..=at]);
            rest = &rest[at + 1 + usize::from(doubled)..];
            continue;
        }
        let end = at + rest[at..].find('}')?;
        let (name, after) = (&rest[at + 1..end], &rest[end + 1..]);
        rest = after;
        match name {
            "xp" => out.push_str(target.xp),
            "dtype" => out.push_str((target.dtypes)(graph.ty(*node.outputs.first()?)?.dtype)),
            "shape" => {
                let shape = &graph.ty(*node.outputs.first()?)?.shape;
                out.push_str(&tuple(shape.iter().map(|d| mithril_ir::lowering::dim_text(d, &symbol_mark))));
            }
            "*" => {
                let first = node.op.ports.iter().position(|p| matches!(p.kind, PortKind::Variadic(_)))?;
                let marks: Vec<String> = (first..node.inputs.len()).map(arg_mark).collect();
                out.push_str(&marks.join(", "));
            }
            _ => {
                let i = name.parse().ok().or_else(|| node.op.port(name))?;
                place(target, graph, node, i, &mut out, after)?;
            }
        }
    }
    out.push_str(rest);
    Some(out)
}

/// Writes input `i` where `out` ends and `after` follows.
fn place(
    target: &PythonTarget,
    graph: &Graph,
    node: &Node,
    i: usize,
    out: &mut String,
    after: &str,
) -> Option<()> {
    let lit = node.inputs.get(i).and_then(|&v| graph.lit(v)).filter(|_| !node.op.takes_tensor(i));
    let is_subscript = after.starts_with(']')
        && out
            .strip_suffix('[')
            .is_some_and(|o| o.ends_with(|c: char| c.is_alphanumeric() || ")]_\u{2}".contains(c)));
    if let Some(lit @ (Lit::Tuple(_) | Lit::Slice(_))) = lit.filter(|_| is_subscript) {
        out.push_str(&literal::subscript(target, lit, &symbol_mark)?);
        return Some(());
    }
    let text = argument(target, graph, node, i)?;
    let is_enclosed = out.trim_end().ends_with(|c| "(,=[:".contains(c))
        && after.trim_start().starts_with(|c| "),]:".contains(c));
    let is_arithmetic = match lit {
        Some(Lit::Int(Dim::Const(n))) => *n < 0,
        Some(Lit::Float(x)) => *x < 0.0,
        Some(Lit::Int(_)) => is_compound(&text),
        _ => false,
    };
    if is_arithmetic && !is_enclosed {
        out.push('(');
        out.push_str(&text);
        out.push(')');
    } else {
        out.push_str(&text);
    }
    Some(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Open,
    Close,
    /// Comma, colon, `=`.
    Separator,
    Dot,
    Binary(Precedence),
    Unary(Precedence),
    Name,
    /// `if`, `else`, `for`, `lambda`.
    Word,
    Number,
    String,
    Operand(usize),
    Symbol,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
    depth: u32,
    /// A name after a dot or before `=`.
    is_member: bool,
}

impl Kind {
    /// Whether an expression can end here, so that what follows is a binary operator, a call or a subscript.
    fn is_operand(self) -> bool {
        matches!(
            self,
            Self::Close | Self::Name | Self::Number | Self::String | Self::Operand(_) | Self::Symbol
        )
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut out: Vec<Token> = Vec::with_capacity(16);
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_u32);
    while at < bytes.len() {
        let start = at;
        let last = out.last().map(|t| t.kind);
        let after_operand = last.is_some_and(Kind::is_operand);
        let kind = match bytes[at] {
            b' ' | b'\n' => {
                at += 1;
                continue;
            }
            b'(' | b'[' | b'{' => {
                depth += 1;
                Kind::Open
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                Kind::Close
            }
            1 => {
                at += text[at..].find(MARK_END).unwrap_or(bytes.len() - at - 1);
                text[start + 1..at].parse().map_or(Kind::Symbol, Kind::Operand)
            }
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                Kind::String
            }
            b'0'..=b'9' => {
                at = end_of(bytes, at, |c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_')) - 1;
                // The sign of an exponent.
                if matches!(bytes[at], b'e' | b'E') && matches!(bytes.get(at + 1), Some(b'-' | b'+')) {
                    at = end_of(bytes, at + 2, |c| c.is_ascii_digit()) - 1;
                }
                Kind::Number
            }
            c if c.is_ascii_alphabetic() || c == b'_' => {
                at = end_of(bytes, at, |c| c.is_ascii_alphanumeric() || c == b'_') - 1;
                word(&text[start..=at], last)
            }
            _ => {
                let (kind, length) = operator(&bytes[at..], after_operand);
                at += length - 1;
                if text[start..=at] == *"="
                    && let Some(name) = out.last_mut()
                {
                    name.is_member = true;
                }
                kind
            }
        };
        at += 1;
        let is_member = last == Some(Kind::Dot);
        let depth = depth - u32::from(kind == Kind::Open);
        out.push(Token { kind, start, end: at.min(bytes.len()), depth, is_member });
    }
    out
}

fn end_of(bytes: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> usize {
    from + bytes[from..].iter().take_while(|&&c| belongs(c)).count()
}

fn word(text: &str, last: Option<Kind>) -> Kind {
    if last == Some(Kind::Dot) {
        return Kind::Name;
    }
    match text {
        "or" => Kind::Binary(OR),
        "and" => Kind::Binary(AND),
        "not" if !last.is_some_and(Kind::is_operand) => Kind::Unary(NOT),
        "in" | "is" | "not" => Kind::Binary(COMPARE),
        "if" | "else" | "for" | "lambda" => Kind::Word,
        _ => Kind::Name,
    }
}

fn operator(rest: &[u8], after_operand: bool) -> (Kind, usize) {
    let second = rest.get(1).copied().unwrap_or(b' ');
    let binary = |p| if after_operand { Kind::Binary(p) } else { Kind::Unary(UNARY) };
    match (rest[0], second) {
        (b'*', b'*') => (binary(POWER), 2),
        (b'/', b'/') => (Kind::Binary(PRODUCT), 2),
        (b'<', b'<') | (b'>', b'>') => (Kind::Binary(SHIFT), 2),
        (b'<' | b'>' | b'=' | b'!', b'=') => (Kind::Binary(COMPARE), 2),
        (b'<' | b'>', _) => (Kind::Binary(COMPARE), 1),
        (b'*' | b'@' | b'/' | b'%', _) => (binary(PRODUCT), 1),
        (b'+' | b'-', _) => (binary(SUM), 1),
        (b'~', _) => (Kind::Unary(UNARY), 1),
        (b'&', _) => (Kind::Binary(BIT_AND), 1),
        (b'^', _) => (Kind::Binary(BIT_XOR), 1),
        (b'|', _) => (Kind::Binary(BIT_OR), 1),
        (b'.', b'.') => (Kind::String, 3.min(rest.len())),
        (b'.', _) => (Kind::Dot, 1),
        _ => (Kind::Separator, 1),
    }
}

/// Finds the places for operands in a text with marks, and how tightly each has to bind.
fn scan(text: String) -> Template {
    let tokens = tokens(&text);
    let mut pieces = Vec::with_capacity(8);
    let mut done = 0;
    let mut precedence = ATOM;
    for (i, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Operand(index) => {
                let before = i.checked_sub(1).map(|p| tokens[p].kind);
                let need = needed(before, tokens.get(i + 1).map(|t| t.kind));
                push_text(&mut pieces, done, token.start);
                pieces.push(Piece::Operand(index, need));
                done = token.end;
            }
            Kind::Symbol => {
                push_text(&mut pieces, done, token.start);
                pieces.push(Piece::Symbol(unhex(&text[token.start + 2..token.end - 1])));
                done = token.end;
            }
            _ => {}
        }
        if token.depth == 0 {
            precedence = precedence.min(match token.kind {
                Kind::Binary(p) | Kind::Unary(p) => p,
                Kind::Word | Kind::Separator => LOOSE,
                Kind::Number if tokens.len() == 1 => NUMBER,
                _ => ATOM,
            });
        }
    }
    push_text(&mut pieces, done, text.len());
    let repeats =
        tokens.iter().any(|t| t.kind == Kind::Word && matches!(&text[t.start..t.end], "for" | "lambda"));
    let names = tokens.iter().filter(|t| t.kind == Kind::Name && !t.is_member);
    let names = names.map(|t| (t.start, t.end)).collect();
    Template { text, pieces, names, precedence, repeats, is_method: false, is_referred: false }
}

fn push_text(pieces: &mut Vec<Piece>, start: usize, end: usize) {
    if end > start {
        pieces.push(Piece::Text(start, end));
    }
}

/// How tightly an operand between these tokens has to bind.
fn needed(before: Option<Kind>, after: Option<Kind>) -> Precedence {
    let left = match before {
        // `-x ** -y`: the power binds tighter than a sign on its left, but not than one on its right.
        Some(Kind::Binary(POWER)) => UNARY,
        Some(Kind::Binary(p)) => p + 1,
        Some(Kind::Unary(p)) => p,
        Some(Kind::Word) => OR,
        _ => LOOSE,
    };
    let right = match after {
        Some(Kind::Binary(POWER)) => NUMBER,
        Some(Kind::Binary(COMPARE)) => COMPARE + 1,
        Some(Kind::Binary(p)) => p,
        Some(Kind::Dot | Kind::Open) => ATOM,
        Some(Kind::Word) => OR,
        _ => LOOSE,
    };
    // Between commas, a tuple or lambda needs brackets of its own.
    left.max(right).max(if before.is_some() || after.is_some() { OR } else { LOOSE })
}

fn unhex(hex: &str) -> String {
    let digits = hex.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
    let bytes: Vec<u8> = digits.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The name that [`Piece::Symbol`] has for a symbol.
pub fn symbol_name(symbol: &Symbol) -> String {
    symbol.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills `$0`, `$1` … of a template with operands.
    fn fill(template: &str, operands: &[&str]) -> String {
        let mut text = template.to_owned();
        for i in 0..operands.len() {
            text = text.replace(&format!("${i}"), &arg_mark(i));
        }
        let operands: Vec<Expression> = operands.iter().map(|o| Expression::measured((*o).into())).collect();
        scan(text).fill(|i| &operands[i], |_| "?").text
    }

    #[test]
    fn brackets_only_where_needed() {
        for (template, operands, expected) in [
            ("$0 + $1", &["a + b", "c + d"][..], "a + b + (c + d)"),
            ("$0 - $1", &["a - b", "c * d"], "a - b - c * d"),
            ("$0 * $1", &["a + b", "-c"], "(a + b) * -c"),
            ("$0 / $1", &["a * b", "c * d"], "a * b / (c * d)"),
            ("$0 @ $1", &["x", "w.T"], "x @ w.T"),
            ("$0 ** $1", &["-a", "-b"], "(-a) ** -b"),
            ("$0 ** $1", &["a ** b", "c ** d"], "(a ** b) ** c ** d"),
            ("$0 ** $1", &["2.0", "x"], "2.0 ** x"),
            ("-$0", &["a + b"], "-(a + b)"),
            ("-$0", &["a ** b"], "-a ** b"),
            ("-$0", &["-a"], "--a"),
            ("$0.T", &["a + b"], "(a + b).T"),
            ("$0.T", &["1e-5"], "(1e-5).T"),
            ("$0.T", &["f(a, b)[0]"], "f(a, b)[0].T"),
            ("$0[:, None]", &["-a"], "(-a)[:, None]"),
            ("np.where($0, $1, $2)", &["a > b", "a + b", "-1.0"], "np.where(a > b, a + b, -1.0)"),
            ("$0 == $1", &["a < b", "c < d"], "(a < b) == (c < d)"),
            ("$0 & $1", &["a < b", "c | d"], "(a < b) & (c | d)"),
            ("~$0", &["a == b"], "~(a == b)"),
            ("$0 if $1 else $2", &["a", "b", "c if d else e"], "a if b else (c if d else e)"),
            ("f(x=$0)", &["a, b"], "f(x=(a, b))"),
            ("f(*$0)", &["a + b"], "f(*(a + b))"),
            ("np.sum($0, axis=(0, -1))", &["a - b"], "np.sum(a - b, axis=(0, -1))"),
            ("$0", &["a + b"], "a + b"),
            ("$0.astype(np.float32)", &["x[\"a + b\"]"], "x[\"a + b\"].astype(np.float32)"),
        ] {
            assert_eq!(fill(template, operands), expected);
        }
    }

    #[test]
    fn items_of_tuples() {
        let items = |text: &str, n| {
            let parts = scan(text.into()).items(n);
            parts.map(|all| all.into_iter().map(|item| item.text).collect::<Vec<_>>())
        };
        assert_eq!(items("f(a, b)[0, 1], (c, d)", 2).unwrap(), ["f(a, b)[0, 1]", "(c, d)"]);
        assert_eq!(items("f(a, b)", 2), None);
        assert_eq!(items("a, b, c", 2), None);
    }

    #[test]
    fn measures_whole_expressions() {
        for (text, expected) in [
            ("a * b + c", SUM),
            ("f(a + b)", ATOM),
            ("(a + b) * c", PRODUCT),
            ("-1.0", UNARY),
            ("1e-05", NUMBER),
            ("a, b", LOOSE),
            ("lambda x: x", LOOSE),
            ("\"a + b\"", ATOM),
            ("not a", NOT),
            ("a.T[0]", ATOM),
        ] {
            assert_eq!(scan(text.into()).precedence, expected, "{text}");
        }
    }

    #[test]
    fn finds_names_outside_strings_and_members() {
        let template = scan("_erf(x._private, _key=1) + math.pi + f(\"_text\")".into());
        assert_eq!(template.names().collect::<Vec<_>>(), ["_erf", "x", "math", "f"]);
    }

    #[test]
    fn symbols_survive_any_name() {
        let symbol = Symbol::Named("bätch\u{2}]\n$".into());
        let template = scan(format!("f({})", symbol_mark(&symbol)));
        assert!(template.pieces().contains(&Piece::Symbol(symbol_name(&symbol))));
    }
}
