//! Long lines of generated C, broken where the fewest brackets are open.

/// Characters of a line.
pub const WIDTH: usize = 118;

/// What a line that goes on is indented by: more than the lines inside of a function.
const INDENT: usize = 8;

/// The text with its long lines broken, after those that were broken within brackets have been joined: templates are broken
/// for the names of their placeholders, not for what these become. Lines of the preprocessor and those with strings stay as
/// they are.
pub fn wrap(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut is_comment, mut open) = (false, String::new());
    // What of a line of a comment goes into its next line.
    let mut carried = String::new();
    for line in text.split_inclusive('\n') {
        let is_whole = is_comment
            || line.trim_start().starts_with('#')
            || line.contains(['"', '\\'])
            || line.contains("/*");
        if is_whole && !open.is_empty() {
            out += &(std::mem::take(&mut open) + "\n");
        }
        let joined = if open.is_empty() {
            line.to_owned()
        } else {
            let blank = if open.ends_with(['(', '[']) { "" } else { " " };
            std::mem::take(&mut open) + blank + line.trim_start_matches(' ')
        };
        if !is_whole && joined.matches(['(', '[']).count() > joined.matches([')', ']']).count() {
            joined.trim_end().clone_into(&mut open);
            continue;
        }
        let line = joined.as_str();
        let starts = is_comment;
        is_comment = match (line.rfind("/*"), line.rfind("*/")) {
            (open, close) if open > close => true,
            (_, Some(_)) => false,
            _ => is_comment,
        };
        if !carried.is_empty() {
            let words = line.trim_start_matches([' ', '*']);
            let prefix = &line[..line.len() - words.len()];
            if starts && words.starts_with(|c: char| c.is_alphanumeric() || c == '`') {
                carried = flowing(&format!("{prefix}{carried} {words}"), prefix, is_comment, &mut out);
                continue;
            }
            out += &["   ", &carried, "\n"].concat();
            carried.clear();
        }
        if !starts && is_comment && line.len() > WIDTH && line.trim_start().starts_with("/*") {
            let indent = line.len() - line.trim_start().len() + 3;
            carried = flowing(line, &" ".repeat(indent), is_comment, &mut out);
            continue;
        }
        let is_fixed = starts || line.contains('"') || line.trim_start().starts_with('#');
        if line.len() <= WIDTH || is_fixed || line.trim_end().ends_with('\\') {
            out.push_str(line);
        } else {
            broken(line, &mut out);
        }
    }
    out + &open
}

/// Breaks a line of a comment that may go on behind it: then its last words are what is given back.
fn flowing(line: &str, prefix: &str, goes_on: bool, out: &mut String) -> String {
    let mut rest = line.trim_end().to_owned();
    let mut is_broken = false;
    while rest.chars().count() > WIDTH {
        let Some(at) = last_space(&rest, prefix.len()) else { break };
        out.push_str(rest[..at].trim_end());
        out.push('\n');
        rest = prefix.to_owned() + rest[at..].trim_start();
        is_broken = true;
    }
    if goes_on && is_broken {
        return rest[prefix.len()..].to_owned();
    }
    out.push_str(&rest);
    out.push('\n');
    String::new()
}

fn broken(line: &str, out: &mut String) {
    let indent = line.len() - line.trim_start().len();
    let (is_comment, mut rest) = (line.trim_start().starts_with("/*"), line.to_owned());
    let indent = indent + if is_comment { 3 } else { INDENT };
    while rest.trim_end().chars().count() > WIDTH {
        let break_at = if is_comment { last_space(&rest, indent) } else { place(&rest, indent) };
        let Some(at) = break_at else { break };
        out.push_str(rest[..at].trim_end());
        out.push('\n');
        rest = " ".repeat(indent) + rest[at..].trim_start();
    }
    out.push_str(&rest);
}

/// The characters of a line that have room, behind its indentation.
fn room(line: &str, indent: usize) -> impl Iterator<Item = (usize, char)> + '_ {
    line.char_indices().take(WIDTH).skip(indent)
}

fn last_space(line: &str, indent: usize) -> Option<usize> {
    room(line, indent).filter(|(_, c)| *c == ' ').map(|(i, _)| i).last()
}

/// Where a statement is broken best: outside of as many brackets as possible, rather at a comma than within a formula, and
/// as far to the right as that allows.
fn place(line: &str, indent: usize) -> Option<usize> {
    let end = line.find("/*").unwrap_or(line.len());
    let (mut depth, mut best) = (0_i32, None);
    for (i, c) in room(line, indent).take_while(|(i, _)| *i < end) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        let rest = &line[i..];
        let is = |operators: &[&str]| operators.iter().any(|operator| rest.starts_with(operator));
        let bracket = match c {
            ',' | ';' if is(&[", ", "; "]) => Some((0, i + 1)),
            ' ' if is(&[" = ", " += "]) => rest[1..].find(' ').map(|n| (1, i + 1 + n)),
            ' ' if is(&[" ? ", " : ", " && ", " || "]) => Some((1, i)),
            ' ' if is(&[" + ", " - "]) => Some((2, i)),
            ' ' if is(&[" * ", " / "]) => Some((3, i)),
            _ => None,
        };
        if let Some((kind, at)) = bracket {
            let rank = depth * 4 + kind;
            if best.is_none_or(|(least, _)| rank <= least) {
                best = Some((rank, at));
            }
        }
    }
    best.map(|(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::{WIDTH, wrap};

    #[test]
    fn long_lines_break_outside_of_brackets() {
        let long = "argument_of_a_function".repeat(2);
        let call = format!("    call({long}, f({long}, 1), {long} + {long});\n");
        let text = wrap(&call);
        assert_eq!(text, format!("    call({long}, f({long}, 1),\n            {long} + {long});\n"));
        let sum = format!("    out[{long}] = g({long}, {long});\n");
        assert_eq!(wrap(&sum), format!("    out[{long}] =\n            g({long}, {long});\n"));
        let loops = format!("for (int {long} = 0; {long} < 100; {long}++)\n");
        assert!(wrap(&loops).lines().all(|line| line.len() <= WIDTH), "{}", wrap(&loops));
    }

    #[test]
    fn lines_are_broken_once() {
        let head = "static void f(long first,\n    long second,\n            long third) {\n";
        assert_eq!(wrap(head), "static void f(long first, long second, long third) {\n");
        let call = "    f(a,\n      b[\n        i], c\n      );\n    if (a\n        && b) {\n";
        assert_eq!(wrap(call), "    f(a, b[i], c );\n    if (a && b) {\n");
        let fixed = "    f(a, /* one */\n      b,\n#ifdef C\n      c,\n#endif\n      \"(\");\n    g();\n";
        assert_eq!(wrap(fixed), fixed);
    }

    #[test]
    fn comments_flow_into_their_next_lines() {
        let (long, next) = ("word ".repeat(30), "word ".repeat(20));
        for (first, second) in [("/* ", "   "), ("    /* ", "       "), ("/* ", " * ")] {
            let text = wrap(&format!("{first}{long}\n{second}{next}\n{second}end. */\nint x;\n"));
            assert_eq!(text.matches("word").count(), 50, "{text}");
            let lines: Vec<_> = text.lines().collect();
            assert!(lines.iter().all(|line| line.len() <= WIDTH), "{text}");
            assert!(lines[1].len() > 100 && lines[1].starts_with(second.trim_end()), "{text}");
            assert!(text.ends_with("*/\nint x;\n"), "{text}");
        }
        let list = format!("/* {long}\n\n   a list\n */\n");
        assert!(wrap(&list).ends_with("\n\n   a list\n */\n"), "{}", wrap(&list));
    }

    #[test]
    fn what_a_break_would_change_stays() {
        let long = "word, ".repeat(40);
        for text in [
            format!("#define LONG {long}\n"),
            format!("puts(\"{long}\");\n"),
            format!("/* a\n   {long}\n   b */\n"),
            format!("{}\n", "x".repeat(200)),
        ] {
            assert_eq!(wrap(&text), text);
        }
        let comment = format!("/* {long}*/\n");
        assert!(wrap(&comment).lines().all(|line| line.len() <= WIDTH), "{}", wrap(&comment));
    }
}
