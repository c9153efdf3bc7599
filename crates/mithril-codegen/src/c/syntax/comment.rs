//! Text of users inside of comments and strings of C.

use mithril_ir::text::is_hidden;

/// A text inside of a string of C.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| !matches!(c, '"' | '?');
    comment(text).chars().take(100).map(|c| if is_plain(c) { c } else { ' ' }).collect()
}

/// A text inside of a comment.
pub fn comment(text: &str) -> String {
    text.chars().map(|c| if c == '/' || c == '\\' || is_hidden(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::comment;

    #[test]
    fn comments_show_what_they_say() {
        assert_eq!(comment("a\u{202e}b\u{2028}c*/d\ne\u{200b}"), "a b c* d e ");
        assert_eq!(comment("naïve 模型"), "naïve 模型");
    }
}
