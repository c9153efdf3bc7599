//! Arithmetic of integers that are known, in generated C: templates are filled with sizes and strides, and a product with 1
//! or a sum with 0 says nothing to a reader. `row * 1 + 0` becomes `row`.
//!
//! What is simplified is text, so that it reaches whatever a template and the values of its placeholders come to
//! together. Only integer literals are touched: numbers of floats have a point. Comments, strings and lines of the
//! preprocessor stay as they are.

use std::ops::Range;

/// The text with products, quotients, remainders and sums of known integers worked out.
///
/// - `x * 1`, `1 * x`, `x / 1` are `x`; `x % 1`, `x * 0`, `0 * x` are `0` where `x` calls nothing.
/// - `x + 0`, `x - 0`, `0 + x` are `x`; integers that are added to each other are one.
/// - Brackets around a number, or around all of a name or an element, are left out.
///
/// ```text
/// sums + (0) * ROW + line / 1 * 6 + line % 1   →   sums + line * 6
/// ```
pub fn simplify(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let nodes = Parser { text, at: 0 }.nodes(true);
    write(&simplified(nodes), &mut out);
    out
}

/// A token, or what stands between brackets; each with the blanks and comments in front of it.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Token { before: String, text: String },
    Group { before: String, open: char, inner: Vec<Node>, end: String },
}

fn write(nodes: &[Node], out: &mut String) {
    for node in nodes {
        match node {
            Node::Token { before, text } => {
                out.push_str(before);
                out.push_str(text);
            }
            Node::Group { before, open, inner, end } => {
                out.push_str(before);
                out.push(*open);
                write(inner, out);
                out.push_str(end);
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
    /// The nodes up to the bracket that closes them, or to the end.
    fn nodes(&mut self, is_outermost: bool) -> Vec<Node> {
        let mut nodes = Vec::new();
        loop {
            let before = self.blanks();
            let Some(c) = self.rest().chars().next() else {
                if !before.is_empty() {
                    nodes.push(Node::Token { before, text: String::new() });
                }
                return nodes;
            };
            if matches!(c, ')' | ']' | '}') && !is_outermost {
                self.at -= before.len();
                return nodes;
            }
            if matches!(c, '(' | '[' | '{') {
                self.at += 1;
                let inner = self.nodes(false);
                let mut end = self.blanks();
                if let Some(close) = self.rest().chars().next() {
                    self.at += close.len_utf8();
                    end.push(close);
                }
                nodes.push(Node::Group { before, open: c, inner, end });
                continue;
            }
            let length = self.token(c);
            let text = self.rest()[..length].to_owned();
            self.at += length;
            nodes.push(Node::Token { before, text });
        }
    }
    /// Blanks, comments and lines of the preprocessor.
    fn blanks(&mut self) -> String {
        let start = self.at;
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            let is_new_line = self.text[..self.at + blank].trim_end_matches([' ', '\t']).is_empty()
                || self.text[..self.at + blank].trim_end_matches([' ', '\t']).ends_with('\n');
            let after = &rest[blank..];
            self.at += blank;
            if after.starts_with("/*") {
                self.at += after.find("*/").map_or(after.len(), |end| end + 2);
            } else if after.starts_with('#') && is_new_line {
                let mut length = 0;
                for line in after.split_inclusive('\n') {
                    length += line.len();
                    if !line.trim_end().ends_with('\\') {
                        break;
                    }
                }
                self.at += length;
            } else {
                return self.text[start..self.at].to_owned();
            }
        }
    }
    /// The length of the token that starts here with this character.
    fn token(&self, c: char) -> usize {
        let rest = self.rest();
        let is_word = |c: char| {
            c.is_ascii_alphanumeric() || matches!(c, '_' | '@' | '\u{1}' | '\u{2}') || !c.is_ascii()
        };
        if c == '"' || c == '\'' {
            let mut is_escaped = false;
            for (i, d) in rest.char_indices().skip(1) {
                if d == c && !is_escaped {
                    return i + 1;
                }
                is_escaped = d == '\\' && !is_escaped;
            }
            return rest.len();
        }
        if c.is_ascii_digit() {
            // Numbers hold a point, and a sign behind their exponent.
            let mut last = c;
            for (i, d) in rest.char_indices().skip(1) {
                let is_exponent = matches!(last, 'e' | 'E' | 'p' | 'P') && matches!(d, '+' | '-');
                let is_hexadecimal =
                    rest.starts_with("0x") && matches!(last, 'e' | 'E') && !rest[..i].contains('p');
                if !(is_word(d) || d == '.' || is_exponent && !is_hexadecimal) {
                    return i;
                }
                last = d;
            }
            return rest.len();
        }
        if is_word(c) {
            return rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        }
        OPERATORS.iter().find(|long| rest.starts_with(**long)).map_or(c.len_utf8(), |long| long.len())
    }
}

/// Operators of several characters.
const OPERATORS: [&str; 22] = [
    "<<=", ">>=", "...", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=",
];

/// Words that stand for no value.
const KEYWORDS: [&str; 18] = [
    "return", "for", "if", "else", "while", "do", "switch", "case", "goto", "enum", "struct", "union",
    "typedef", "static", "const", "restrict", "inline", "volatile",
];

fn simplified(nodes: Vec<Node>) -> Vec<Node> {
    let mut nodes: Vec<Node> = nodes
        .into_iter()
        .map(|node| match node {
            Node::Group { before, open, inner, end } => {
                Node::Group { before, open, inner: simplified(inner), end }
            }
            token @ Node::Token { .. } => token,
        })
        .collect();
    let (mut out, mut at) = (Vec::with_capacity(nodes.len()), 0);
    while at < nodes.len() {
        if let Some((terms, end)) = sum(&nodes, at) {
            out.extend(worked_out(terms, &nodes[at..end]));
            at = end;
        } else {
            // What follows one of these in brackets is not an operand.
            let has_head = ["for", "if", "while", "switch"].iter().any(|word| nodes[at].is(word));
            for _ in 0..=usize::from(has_head && at + 1 < nodes.len()) {
                out.push(std::mem::replace(&mut nodes[at], token("", String::new())));
                at += 1;
            }
        }
    }
    out
}

impl Node {
    fn is(&self, token: &str) -> bool {
        matches!(self, Self::Token { text, .. } if text == token)
    }
    fn word(&self) -> Option<&str> {
        let is_first =
            |c: char| !c.is_ascii_digit() && (c.is_alphanumeric() || matches!(c, '_' | '@' | '\u{1}'));
        match self {
            Self::Token { text, .. } if text.starts_with(is_first) => Some(text),
            _ => None,
        }
    }
    fn is_group(&self, bracket: char) -> bool {
        matches!(self, Self::Group { open, .. } if *open == bracket)
    }
    /// Whether it may begin a value and nothing else, so that it cannot follow one.
    fn begins_value(&self) -> bool {
        let is_literal = matches!(self, Self::Token { text, .. } if text.starts_with(|c: char| c.is_ascii_digit() || c == '"' || c == '\''));
        is_literal
            || self.word().is_some_and(|word| !KEYWORDS.contains(&word))
            || self.is("!")
            || self.is("~")
    }
    fn before(&self) -> &str {
        match self {
            Self::Token { before, .. } | Self::Group { before, .. } => before,
        }
    }
    fn placed(mut self, new: &str) -> Self {
        let (Self::Token { before, .. } | Self::Group { before, .. }) = &mut self;
        new.clone_into(before);
        self
    }
}

/// A factor with the operator in front of it, unless it is the first.
#[derive(Clone, Debug)]
struct Factor {
    operator: Option<Node>,
    nodes: Vec<Node>,
}

/// A term with its sign, unless it is the first.
#[derive(Clone, Debug)]
struct Term {
    sign: Option<Node>,
    factors: Vec<Factor>,
}

/// The sum that starts here, as long as it goes; where it ends.
fn sum(nodes: &[Node], start: usize) -> Option<(Vec<Term>, usize)> {
    let (factors, mut end) = product(nodes, start)?;
    let mut terms = vec![Term { sign: None, factors }];
    loop {
        let sign = nodes.get(end).filter(|node| node.is("+") || node.is("-"));
        let Some((sign, (factors, after))) = sign.and_then(|sign| Some((sign, product(nodes, end + 1)?)))
        else {
            return Some((terms, end));
        };
        terms.push(Term { sign: Some(sign.clone()), factors });
        end = after;
    }
}

fn product(nodes: &[Node], start: usize) -> Option<(Vec<Factor>, usize)> {
    let mut end = factor(nodes, start)?.end;
    let mut factors = vec![Factor { operator: None, nodes: nodes[start..end].to_vec() }];
    loop {
        let operator = nodes.get(end).filter(|node| ["*", "/", "%"].iter().any(|token| node.is(token)));
        let Some((operator, range)) = operator.and_then(|operator| Some((operator, factor(nodes, end + 1)?)))
        else {
            return Some((factors, end));
        };
        end = range.end;
        factors.push(Factor { operator: Some(operator.clone()), nodes: nodes[range].to_vec() });
    }
}

/// The operand that starts here, with what stands in front of it and behind it and binds closer than a product.
fn factor(nodes: &[Node], start: usize) -> Option<Range<usize>> {
    const PREFIXES: [&str; 8] = ["-", "+", "!", "~", "*", "&", "++", "--"];
    let mut at = start;
    let mut is_cast = false;
    loop {
        let node = nodes.get(at)?;
        if PREFIXES.iter().any(|prefix| node.is(prefix)) {
            is_cast = false;
        } else if casts(nodes, at) {
            is_cast = true;
        } else {
            break;
        }
        at += 1;
    }
    let primary = &nodes[at];
    let is_value = primary.begins_value() && !primary.is("!") && !primary.is("~");
    if !(is_value || primary.is_group('(') || is_cast && primary.is_group('{')) {
        return None;
    }
    at += 1;
    while let Some(node) = nodes.get(at) {
        let is_member =
            (node.is(".") || node.is("->")) && nodes.get(at + 1).is_some_and(|next| next.word().is_some());
        if is_member {
            at += 2;
        } else if node.is_group('(') || node.is_group('[') || node.is("++") || node.is("--") {
            at += 1;
        } else {
            break;
        }
    }
    Some(start..at)
}

/// Whether a bracket holds a type that what follows is cast to.
fn casts(nodes: &[Node], at: usize) -> bool {
    let (Some(Node::Group { open: '(', inner, .. }), Some(next)) = (nodes.get(at), nodes.get(at + 1)) else {
        return false;
    };
    if inner.is_empty() || !inner.iter().all(|node| node.word().is_some() || node.is("*")) {
        return false;
    }
    let names_type = |word: &str| {
        const TYPES: [&str; 11] = [
            "char", "short", "int", "long", "float", "double", "unsigned", "signed", "bool", "void", "const",
        ];
        TYPES.contains(&word)
            || word.ends_with("_t")
            || word.starts_with("mithril_")
            || word.starts_with("__m")
    };
    let is_type = inner.last().is_some_and(|node| node.is("*"))
        || inner.iter().any(|n| n.word().is_some_and(names_type));
    let is_other = next.begins_value();
    let may_be =
        next.is_group('(') || next.is_group('{') || ["*", "&", "-", "+"].iter().any(|token| next.is(token));
    is_other || (may_be && is_type)
}

impl Factor {
    /// The number that it is.
    fn number(&self) -> Option<i128> {
        match &self.nodes[..] {
            [node] => number(node),
            _ => None,
        }
    }
    fn operator(&self) -> char {
        let text =
            self.operator.as_ref().map(|node| if let Node::Token { text, .. } = node { text } else { "" });
        text.and_then(|text| text.chars().next()).unwrap_or(' ')
    }
    /// What stands in front of it.
    fn before(&self) -> String {
        self.nodes[0].before().to_owned()
    }
    /// Without brackets that hold nothing but a name or an element.
    fn unwrapped(mut self) -> Self {
        if let [Node::Group { open: '(', inner, end, before }] = &self.nodes[..]
            && end == ")"
            && !inner.is_empty()
            && factor(inner, 0) == Some(0..inner.len())
            && (inner[0].word().is_some() || number(&inner[0]).is_some())
        {
            let mut nodes = inner.clone();
            nodes[0] = nodes[0].clone().placed(before);
            self.nodes = nodes;
        }
        self
    }
}

/// The number that a node is.
fn number(node: &Node) -> Option<i128> {
    match node {
        Node::Token { text, .. }
            if text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0')) =>
        {
            text.parse().ok()
        }
        Node::Group { open: '(', inner, end, .. } if end == ")" && inner.len() == 1 => number(&inner[0]),
        _ => None,
    }
}

/// Whether nothing is called or changed.
fn is_pure(nodes: &[Node]) -> bool {
    nodes.iter().enumerate().all(|(i, node)| match node {
        Node::Token { text, .. } => {
            let is_comparison = ["==", "!=", "<=", ">="].contains(&text.as_str());
            text != "++" && text != "--" && (is_comparison || !text.ends_with('='))
        }
        Node::Group { open, inner, .. } => {
            let called = i.checked_sub(1).and_then(|i| nodes[i].word()).filter(|_| *open == '(');
            called.is_none_or(|word| word == "sizeof") && is_pure(inner)
        }
    })
}

/// The nodes of a sum whose known integers are worked out.
fn worked_out(terms: Vec<Term>, nodes: &[Node]) -> Vec<Node> {
    // Comments between operands stay where they are.
    let is_plain = |node: &Node| !node.before().contains(['/', '#']);
    if !nodes[1..].iter().all(is_plain) {
        return nodes.to_vec();
    }
    // Brackets around all of a value may belong to something else.
    let is_one = terms.len() == 1 && terms[0].factors.len() == 1;
    if is_one {
        return nodes.to_vec();
    }
    let terms: Vec<Term> =
        terms.into_iter().map(|term| Term { factors: multiplied(term.factors), ..term }).collect();
    let first = nodes[0].before();
    let mut out: Vec<Node> = Vec::with_capacity(nodes.len());
    for term in added(terms) {
        let is_negative = term.sign.as_ref().is_some_and(|sign| sign.is("-"));
        match term.sign {
            Some(sign) if !out.is_empty() => out.push(sign),
            Some(sign) if is_negative => out.push(sign),
            _ => {}
        }
        let is_first = out.is_empty() || is_negative && out.len() == 1;
        for (i, factor) in term.factors.into_iter().enumerate() {
            out.extend(factor.operator.filter(|_| i > 0));
            out.extend(factor.nodes);
        }
        if is_first && is_negative && out.len() > 1 {
            out[1] = out[1].clone().placed("");
        }
    }
    if let Some(node) = out.first_mut() {
        *node = node.clone().placed(first);
    }
    out
}

fn token(before: &str, text: String) -> Node {
    Node::Token { before: before.to_owned(), text }
}

/// The factors of a term without those that change nothing.
fn multiplied(factors: Vec<Factor>) -> Vec<Factor> {
    let mut out: Vec<Factor> = Vec::with_capacity(factors.len());
    for factor in factors {
        let factor = factor.unwrapped();
        let is_whole = out.iter().all(|factor| is_pure(&factor.nodes));
        let zero =
            |before: String| vec![Factor { operator: None, nodes: vec![token(&before, "0".to_owned())] }];
        let only = if let [only] = &out[..] { Some(only) } else { None };
        match (factor.operator(), factor.number()) {
            ('*' | '/', Some(1)) => {}
            ('%', Some(1)) | ('*', Some(0)) if is_whole => out = zero(out[0].before()),
            ('*' | '/' | '%', n) if only.is_some_and(|only| only.number() == Some(0)) && n != Some(0) => {
                if !is_pure(&factor.nodes) {
                    out.push(factor);
                }
            }
            ('*', _) if only.is_some_and(|only| only.number() == Some(1)) => {
                let before = out[0].before();
                let mut nodes = factor.nodes;
                nodes[0] = nodes[0].clone().placed(&before);
                out = vec![Factor { operator: None, nodes }];
            }
            ('*', _) if only.is_some_and(is_cast_one) => {
                let mut nodes = vec![out[0].nodes[0].clone()];
                nodes.extend(
                    factor.nodes.into_iter().enumerate().map(|(i, n)| if i == 0 { n.placed("") } else { n }),
                );
                out = vec![Factor { operator: None, nodes }];
            }
            _ => out.push(factor),
        }
    }
    out
}

/// Whether it is 1 of another type.
fn is_cast_one(factor: &Factor) -> bool {
    matches!(&factor.nodes[..], [_, one] if casts(&factor.nodes, 0) && number(one) == Some(1))
}

/// The terms of a sum with the numbers among them as one.
fn added(terms: Vec<Term>) -> Vec<Term> {
    let of = |term: &Term| match &term.factors[..] {
        [factor] => {
            let is_negative = term.sign.as_ref().is_some_and(|sign| sign.is("-"));
            factor.number().map(|n| if is_negative { -n } else { n })
        }
        _ => None,
    };
    let numbers: Vec<i128> = terms.iter().filter_map(of).collect();
    let total: i128 = numbers.iter().sum();
    let is_done = match numbers.len() {
        0 => true,
        1 => total != 0 || terms.len() == 1,
        _ => false,
    };
    if is_done {
        return terms;
    }
    let all = numbers.len() == terms.len();
    let mut rest = (all || total != 0).then_some(total);
    terms
        .into_iter()
        .filter_map(|mut term| {
            if of(&term).is_none() {
                return Some(term);
            }
            let total = rest.take()?;
            let before = term.factors[0].before();
            let sign = if total < 0 { "-" } else { "+" };
            term.sign = match term.sign {
                Some(old) => Some(token(old.before(), sign.to_owned())),
                None => (total < 0).then(|| token("", "-".to_owned())),
            };
            let nodes = vec![token(&before, total.unsigned_abs().to_string())];
            term.factors = vec![Factor { operator: None, nodes }];
            Some(term)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::simplify;

    #[test]
    fn known_integers_are_worked_out() {
        for (text, expected) in [
            ("const long units = (long)1 * PANELS, end = 1;", "const long units = (long)PANELS, end = 1;"),
            (
                "const float *restrict from = b + 0 + first * 32;",
                "const float *restrict from = b + first * 32;",
            ),
            ("a[row * 1 + k * 1]", "a[row + k]"),
            ("from[lane * 1 + step]", "from[lane + step]"),
            ("panels + (0) * ((long)PANELS * K * WIDTH);", "panels;"),
            ("(char *)arena + 10240 + 1 * 3328", "(char *)arena + 13568"),
            ("line / 1 * 6 + line % 1 * 6", "line * 6"),
            ("STRIPS = 1 * STRIPS_OF, K = 3", "STRIPS = STRIPS_OF, K = 3"),
            ("weights + done, (3 - (3)) * OF_ROW * 2 * 16, sums", "weights + done, 0, sums"),
            ("image + 0 * row, line", "image, line"),
            ("memset(to, 0, sizeof(float) * 1 * LANES);", "memset(to, 0, sizeof(float) * LANES);"),
            ("x = (char *)arena + 0;", "x = (char *)arena;"),
            ("y % 1 / 2 - x", "-x"),
            ("x = 0 - y;", "x = -y;"),
            ("(a + b - 1) / 1", "(a + b - 1)"),
            ("1 * -x", "-x"),
            ("a - 1 * b", "a - b"),
            ("(batch) * n + (a[i]) / 2", "batch * n + a[i] / 2"),
            ("x + 3 - 1 - 2", "x"),
            ("x * 2 + 3 - 8", "x * 2 - 5"),
            ("first * 8 / 8 * 8 / 8", "first * 8 / 8 * 8 / 8"),
        ] {
            assert_eq!(simplify(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_known_integer_stays() {
        for text in [
            "x * 1.0f + 0.0f - 1.0e+0",
            "x / 10 * 1u + 0x0 - 0L",
            "a * 10 + 01 * 3",
            "f(x) * 0 + x++ % 1",
            "puts(\"x * 1\"); /* y * 1 */ c = '\\'' + 'a';",
            "#define ONE(x) ((x) * 1) \\\n    + 0\nint x;",
            "x = y /* no */ * 1;",
            "a / b * c; float *x = *y; (void)0; (int8_t)-1; n - 1 / k",
            "if (x) *p = 1; while (x) -y; f((x)) __attribute__((aligned(64))); ((x))",
            "for (long i = 0; i < 1; i++) *p = 0;",
            "static const float t[3] = {0, 1, 0};",
            "return 0; case 1: (mithril_f32){0}; x = (f)(y);",
            "MITHRIL_UNROLL(1)\nfor (;;) x[0] = {1};",
            "x ? 1 : 0 << 1 & 0",
        ] {
            assert_eq!(simplify(text), text);
        }
    }

    #[test]
    fn any_text_is_kept_whole() {
        for text in [
            "",
            "(",
            ")",
            "x * (1",
            "]) * 1",
            "\"",
            "'",
            "/* ",
            "#",
            "1",
            " 0 ",
            "-",
            "* 1",
            "é * 1 // x",
            "((((",
            "x - ",
        ] {
            let _ = simplify(text);
        }
        assert_eq!(simplify("a) * 1"), "a) * 1");
    }
}
