//! Reading a text token by token: what the parsers of graphs, of the programs of targets and of spellings in rows have in
//! common. Never panics: an error says what was expected, with its line.

use crate::error::{Code, Error, Result};

/// Largest depth of nested brackets.
const MAX_DEPTH: usize = 256;

/// A text and how far it has been read. Blanks in front of a token are skipped.
///
/// ```
/// use mithril_ir::text::Lexer;
///
/// let mut lexer = Lexer::new("f(1, -2) \"a\\nb\"");
/// assert_eq!(lexer.word(), "f");
/// lexer.expect("(")?;
/// assert_eq!(lexer.items(")", Lexer::integer)?, [1, -2]);
/// assert_eq!(lexer.string()?, "a\nb");
/// assert!(lexer.expect(";").unwrap_err().to_string().contains("line 1"));
/// # Ok::<(), mithril_ir::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lexer<'t> {
    text: &'t str,
    pub(super) at: usize,
    depth: usize,
}

impl<'t> Lexer<'t> {
    /// At the start of a text.
    pub fn new(text: &'t str) -> Self {
        Self { text, at: 0, depth: 0 }
    }
    /// An error at this place of the text.
    pub fn error(&self, message: impl Into<String>) -> Error {
        let line = self.text.get(..self.at).unwrap_or("").matches('\n').count() + 1;
        let here: String = self.rest().chars().take(24).collect();
        Error::new(Code::BadFile, message).note(format!("line {line}, before {here:?}"))
    }
    /// What has not been read yet.
    pub fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or("")
    }
    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }
    /// Reads a token if it comes next; whether it does.
    pub fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.at += token.len();
        }
        is_next
    }
    /// Reads a token, which has to come next.
    pub fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.error(format!("expected `{token}`"))) }
    }
    /// The text has to end here.
    pub fn end(&mut self) -> Result<()> {
        self.skip_space();
        if self.rest().is_empty() { Ok(()) } else { Err(self.error("expected the end")) }
    }
    /// Whether nothing but blanks is left.
    pub fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty()
    }
    /// The characters that come next for which `f` is true; none is an empty text.
    pub fn take_while(&mut self, f: impl Fn(char) -> bool) -> &'t str {
        self.skip_space();
        let rest = self.rest();
        let end = rest.find(|c| !f(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }
    /// A word of letters, digits and underscores; empty if none comes next.
    pub fn word(&mut self) -> &'t str {
        self.take_while(|c| c.is_alphanumeric() || c == '_')
    }
    /// Reads a word if it comes next, and is not only the beginning of a longer one.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let start = self.at;
        let is_next = self.word() == word;
        if !is_next {
            self.at = start;
        }
        is_next
    }
    /// The character that comes next.
    pub fn peek(&mut self) -> Option<char> {
        self.skip_space();
        self.rest().chars().next()
    }
    /// What `f` reads inside of brackets, which may not nest too deep.
    pub fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.enter()?;
        let result = f(self);
        self.leave();
        result
    }
    /// Goes into a bracket; an error if these nest too deep.
    pub fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(self.error("brackets nest too deep")) } else { Ok(()) }
    }
    /// Goes out of a bracket again.
    pub fn leave(&mut self) {
        self.depth -= 1;
    }
    /// What stands between commas, up to the closing bracket.
    pub fn items<T>(&mut self, end: &str, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.eat(end) {
            items.push(item(self)?);
            if !self.eat(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(items)
    }
    /// An integer, with a sign if it is negative.
    pub fn integer(&mut self) -> Result<i64> {
        let start = self.at;
        i64::try_from(self.wide_integer()?).map_err(|_| {
            self.at = start;
            self.error("expected an integer")
        })
    }
    /// As [`Lexer::integer`], of any dtype.
    pub fn wide_integer(&mut self) -> Result<i128> {
        let start = self.at;
        let sign = if self.eat("-") { "-" } else { "" };
        let digits = if sign.is_empty() || self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            self.take_while(|c| c.is_ascii_digit())
        } else {
            ""
        };
        format!("{sign}{digits}").parse().map_err(|_| {
            self.at = start;
            self.error("expected an integer")
        })
    }
    /// A float has a point, an exponent, or is a word; anything else is not read.
    pub fn float(&mut self) -> Option<f64> {
        self.skip_space();
        let rest = self.rest();
        for (word, x) in [("NaN", f64::NAN), ("inf", f64::INFINITY), ("-inf", f64::NEG_INFINITY)] {
            let after = rest.strip_prefix(word);
            if after.is_some_and(|a| !a.starts_with(|c: char| c.is_alphanumeric() || c == '_')) {
                self.at += word.len();
                return Some(x);
            }
        }
        let bytes = rest.as_bytes();
        let mut end = usize::from(rest.starts_with('-'));
        while end < bytes.len() {
            let sign = end > 0 && matches!(bytes[end], b'+' | b'-') && matches!(bytes[end - 1], b'e' | b'E');
            if !(bytes[end].is_ascii_digit() || matches!(bytes[end], b'.' | b'e' | b'E') || sign) {
                break;
            }
            end += 1;
        }
        let token = &rest[..end];
        let digit = token.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
        if !digit || !token.contains(['.', 'e', 'E']) {
            return None;
        }
        let x = token.parse().ok()?;
        self.at += end;
        Some(x)
    }

    /// A text in double quotes.
    pub fn string(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut out = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 1;
                    return Ok(out);
                }
                '\\' => {
                    let (_, escape) = chars.next().unwrap_or((0, ' '));
                    out.push(match escape {
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        '0' => '\0',
                        '\\' | '"' | '\'' => escape,
                        'u' => unicode(&mut chars).ok_or_else(|| self.error("a bad \\u escape"))?,
                        _ => return Err(self.error("an unknown escape in a text")),
                    });
                }
                c => out.push(c),
            }
        }
        Err(self.error("a text does not end"))
    }
}

fn unicode(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    let mut code = 0_u32;
    if chars.next()?.1 != '{' {
        return None;
    }
    for (_, c) in chars {
        match c {
            '}' => return char::from_u32(code),
            c => code = code.checked_mul(16)?.checked_add(c.to_digit(16)?)?,
        }
    }
    None
}
