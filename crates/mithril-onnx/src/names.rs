//! Names of a file made into names of a model: any text that can be read, no part of a path empty, none twice.

use mithril_ir::text::is_hidden;
use mithril_ir::unique_names::UniqueNames;
use mithril_model::names::MAX_NAME;

/// The names that are taken.
#[derive(Debug)]
pub struct Names(UniqueNames);

impl Default for Names {
    fn default() -> Self {
        Self(UniqueNames::numbered_from(1))
    }
}

impl Names {
    /// A name like this one that nothing has yet.
    pub fn take(&mut self, name: &str, otherwise: &str) -> String {
        let safe = safe(name);
        self.0.fresh(if safe.is_empty() { otherwise } else { &safe })
    }
}

/// A name with what cannot be seen, and empty parts between dots, replaced.
fn safe(name: &str) -> String {
    let visible: String = name
        .chars()
        .take(MAX_NAME - 12)
        .map(|c| if is_hidden(c) || c.is_whitespace() { '_' } else { c })
        .collect();
    let parts: Vec<&str> = visible.split('.').filter(|part| !part.is_empty()).collect();
    parts.join(".")
}

/// A symbol for a size: `batch`, `past_length_1`.
pub fn symbol(name: &str) -> String {
    let text: String =
        name.trim().chars().take(100).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') { text } else { format!("n{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_used_and_differ() {
        let mut names = Names::default();
        assert_eq!(names.take("/model.0/conv..weight", "x"), "/model.0/conv.weight");
        assert_eq!(names.take("a", "x"), "a");
        assert_eq!(names.take("a", "x"), "a_1");
        assert_eq!(names.take("..", "output"), "output");
        assert_eq!(names.take("a\u{202e}b", "x"), "a_b");
        assert_eq!(symbol("past + 1"), "past___1");
        assert_eq!(symbol("3d"), "n3d");
    }
}
