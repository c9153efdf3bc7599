//! Names of children and connections: which are allowed, and how children get theirs.

use mithril_ir::text::is_hidden;
use mithril_ir::{Code, Error, Result};

/// Longest name of a child or connection.
pub const MAX_NAME: usize = 1000;

/// Checks a name. Any text that prints is safe: generated code has its own namer.
pub fn check(name: &str, what: &str) -> Result<()> {
    if name.trim().is_empty() {
        return Err(Error::new(Code::BadName, format!("the name of {what} is empty"))
            .help("give it a name with at least one visible character, or none at all"));
    }
    if name.chars().count() > MAX_NAME {
        let start: String = name.chars().take(20).collect();
        return Err(Error::new(Code::BadName, format!("the name {start:?}… of {what} is too long"))
            .help(format!("the maximum is {MAX_NAME} characters")));
    }
    if let Some(c) = name.chars().find(|&c| is_hidden(c)) {
        let point = c as u32;
        let message =
            format!("the name {name:?} of {what} has a character that cannot be seen: U+{point:04X}");
        return Err(Error::new(Code::BadName, message).help("use characters that can be read"));
    }
    Ok(())
}

/// Checks the name of a connection: a dot separates parts of a path, so none may be empty.
pub fn check_path(name: &str, what: &str) -> Result<()> {
    check(name, what)?;
    if name.split('.').any(str::is_empty) {
        return Err(Error::new(Code::BadName, format!("the name {name:?} of {what} has an empty part"))
            .help("put something before, between and after the dots"));
    }
    Ok(())
}

/// Checks the name of a child: one part of a path.
pub fn check_child(name: &str) -> Result<()> {
    check(name, "a model")?;
    if name.contains('.') {
        return Err(Error::new(Code::BadName, format!("the name {name:?} of a model has a dot"))
            .help("a dot separates the parts of a path; nest models to get `a.b`, or use `_`"));
    }
    Ok(())
}

/// `Conv2d` → `conv2d`, `LayerNorm` → `layer_norm`, `MLP` → `mlp`, `LSTMCell` → `lstm_cell`.
pub fn snake_case(class: &str) -> String {
    let chars: Vec<char> = class.chars().collect();
    let mut out = String::with_capacity(class.len() + 4);
    for (i, &c) in chars.iter().enumerate() {
        if c.is_uppercase() {
            let after_lower = i > 0 && (chars[i - 1].is_lowercase() || chars[i - 1].is_ascii_digit());
            let ends_acronym = i > 0
                && chars[i - 1].is_uppercase()
                && chars.get(i + 1).is_some_and(|next| next.is_lowercase());
            if after_lower || ends_acronym {
                out.push('_');
            }
            out.extend(c.to_lowercase());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_become_snake_case() {
        for (class, name) in [
            ("Linear", "linear"),
            ("Conv2d", "conv2d"),
            ("LayerNorm", "layer_norm"),
            ("RMSNorm", "rms_norm"),
            ("LSTMCell", "lstm_cell"),
            ("MLP", "mlp"),
            ("MaxPool2d", "max_pool2d"),
        ] {
            assert_eq!(snake_case(class), name);
        }
    }

    #[test]
    fn hostile_names_are_refused_and_odd_ones_are_not() {
        assert!(check("", "x").is_err());
        assert!(check("a\nb", "x").is_err());
        assert!(check(&"a".repeat(1001), "x").is_err());
        assert!(check_child("a.b").is_err());
        assert!(check_path("a..b", "x").is_err());
        for hidden in
            ["\u{202e}", "\u{2066}", "\u{200b}", "\u{200d}", "\u{2028}", "\u{feff}", "\u{e0041}", "\u{ad}"]
        {
            let error = check(&format!("a{hidden}b"), "x").unwrap_err();
            assert!(error.to_string().contains("cannot be seen"), "{error}");
        }
        for odd in ["class", "naïve", "模型", "a b", "1", "\"; import os"] {
            assert!(check_child(odd).is_ok(), "{odd}");
        }
    }
}
