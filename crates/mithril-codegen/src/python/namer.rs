//! The only way of a user's name into generated code: a Python identifier, or an escaped string.

use std::fmt::Write as _;

use rustc_hash::{FxHashMap, FxHashSet};

/// Longest identifier made from a name; longer names keep their end, which says most.
const MAX_LENGTH: usize = 64;

/// Keywords, soft keywords, and names that the language gives: sorted.
const RESERVED: &[&str] = &[
    "abs",
    "all",
    "and",
    "any",
    "as",
    "ascii",
    "assert",
    "async",
    "await",
    "bin",
    "bool",
    "breakpoint",
    "bytearray",
    "bytes",
    "callable",
    "case",
    "chr",
    "class",
    "classmethod",
    "compile",
    "complex",
    "continue",
    "copyright",
    "credits",
    "def",
    "del",
    "delattr",
    "dict",
    "dir",
    "divmod",
    "elif",
    "else",
    "enumerate",
    "eval",
    "except",
    "exec",
    "exit",
    "filter",
    "finally",
    "float",
    "for",
    "format",
    "from",
    "frozenset",
    "getattr",
    "global",
    "globals",
    "hasattr",
    "hash",
    "help",
    "hex",
    "id",
    "if",
    "import",
    "in",
    "input",
    "int",
    "is",
    "isinstance",
    "issubclass",
    "iter",
    "lambda",
    "len",
    "license",
    "list",
    "locals",
    "map",
    "match",
    "max",
    "memoryview",
    "min",
    "next",
    "nonlocal",
    "not",
    "object",
    "oct",
    "open",
    "or",
    "ord",
    "pass",
    "pow",
    "print",
    "property",
    "quit",
    "raise",
    "range",
    "repr",
    "return",
    "reversed",
    "round",
    "self",
    "set",
    "setattr",
    "slice",
    "sorted",
    "staticmethod",
    "str",
    "sum",
    "super",
    "try",
    "tuple",
    "type",
    "vars",
    "while",
    "with",
    "yield",
    "zip",
];

/// Gives out identifiers, each once.
#[derive(Clone, Debug, Default)]
pub struct Namer {
    taken: FxHashSet<String>,
    next: FxHashMap<String, u32>,
}

impl Namer {
    /// Keeps a name from being given out; false if it was before.
    pub fn reserve(&mut self, name: &str) -> bool {
        self.taken.insert(name.to_owned())
    }
    /// An identifier that resembles `name` and was not given out before.
    pub fn fresh(&mut self, name: &str) -> String {
        let mut base = identifier(name);
        if RESERVED.binary_search(&base.as_str()).is_ok() {
            base.push('_');
        }
        if self.taken.insert(base.clone()) {
            return base;
        }
        let count = self.next.entry(base.clone()).or_insert(0);
        loop {
            *count += 1;
            let numbered = format!("{}_{count}", base.trim_end_matches('_'));
            if self.taken.insert(numbered.clone()) {
                return numbered;
            }
        }
    }
}

/// `h.0.attn.cAttn` → `h_0_attn_c_attn`; letters outside ASCII become underscores.
fn identifier(name: &str) -> String {
    let cut = name.len() > 4 * MAX_LENGTH;
    let mut end = name;
    if cut {
        let mut start = name.len() - 4 * MAX_LENGTH;
        while !name.is_char_boundary(start) {
            start += 1;
        }
        end = &name[start..];
    }
    let mut out = snake_case(end);
    if out.len() > MAX_LENGTH || cut {
        // The last parts of a path tell more than the first.
        let start = out.len().saturating_sub(MAX_LENGTH - 9);
        let mut tail = out[start..].find('_').map_or(&out[start..], |i| &out[start + i + 1..]);
        while let Some((_, rest)) =
            tail.split_once('_').filter(|(part, _)| part.starts_with(|c: char| c.is_ascii_digit()))
        {
            tail = rest;
        }
        out = if cut { format!("{tail}_{:08x}", fingerprint(name)) } else { tail.to_owned() };
    }
    if out.is_empty() {
        out.push_str("value");
    }
    if out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert_str(0, "value_");
    }
    out
}

fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut after_lower = false;
    for c in name.chars() {
        if c.is_ascii_alphanumeric() {
            if c.is_ascii_uppercase() && after_lower {
                out.push('_');
            }
            after_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
            out.push(c.to_ascii_lowercase());
        } else {
            after_lower = false;
            if !out.is_empty() && !out.ends_with('_') {
                out.push('_');
            }
        }
    }
    out.truncate(out.trim_end_matches('_').len());
    out
}

/// FNV-1a: the same for a name everywhere and always.
fn fingerprint(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |h, byte| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A Python string literal, printable ASCII only.
pub fn python_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(c),
            c if (c as u32) < 0x100 => _ = write!(out, "\\x{:02x}", c as u32),
            c if (c as u32) < 0x1_0000 => _ = write!(out, "\\u{:04x}", c as u32),
            c => _ = write!(out, "\\U{:08x}", c as u32),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted() {
        assert!(RESERVED.is_sorted());
    }

    #[test]
    fn paths_become_readable_identifiers() {
        let mut namer = Namer::default();
        namer.reserve("np");
        for (name, expected) in [
            ("h.0.attn.c_attn.weight", "h_0_attn_c_attn_weight"),
            ("0.weight", "value_0_weight"),
            ("convTranspose2d", "conv_transpose2d"),
            ("LayerNorm", "layer_norm"),
            ("input", "input_"),
            ("input", "input_1"),
            ("lambda", "lambda_"),
            ("np", "np_1"),
            ("None", "none"),
            ("", "value"),
            ("größe", "gr_e"),
            ("\u{202e}x\n*/ import os", "x_import_os"),
            ("_private", "private"),
            ("x", "x"),
            ("x", "x_1"),
            ("x_1", "x_1_1"),
            ("x", "x_2"),
        ] {
            assert_eq!(namer.fresh(name), expected, "{name:?}");
        }
    }

    #[test]
    fn huge_names_are_cut_and_still_differ() {
        let mut namer = Namer::default();
        let (a, b) = (format!("a{}", "é.w".repeat(300_000)), format!("b{}", "é.w".repeat(300_000)));
        let (a, b) = (namer.fresh(&a), namer.fresh(&b));
        assert!(a.len() <= MAX_LENGTH && b.len() <= MAX_LENGTH && a != b, "{a} {b}");
        assert!(a.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'));
    }

    #[test]
    fn strings_are_printable_ascii() {
        let nasty = "a\"b\\\n\r\0\u{c}\u{2028}\u{202e}é*/{0}\u{1F600}";
        let expected = r#""a\"b\\\n\r\x00\x0c\u2028\u202e\xe9*/{0}\U0001f600""#;
        assert_eq!(python_string(nasty), expected);
    }
}
