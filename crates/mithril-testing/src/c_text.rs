//! What one would not write by hand in C: arithmetic that is already known, uneven indentation, long lines.

/// Characters of a line.
const WIDTH: usize = 118;

/// Lines of C with the reason why nobody would write them so.
pub fn problems(c: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut is_comment = false;
    for line in c.lines() {
        let starts = is_comment;
        is_comment = match (line.rfind("/*"), line.rfind("*/")) {
            (open, close) if open > close => true,
            (_, Some(_)) => false,
            _ => is_comment,
        };
        let is_directive = line.trim_start().starts_with('#') || line.trim_end().ends_with('\\');
        let mut problem = |what: &str| problems.push(format!("{what}: {line}"));
        if !is_directive && is_known(&without_strings(line)) {
            problem("known arithmetic");
        }
        let indentation = line.len() - line.trim_start().len();
        if !starts && !is_directive && (indentation % 4 != 0 || line.starts_with('\t')) {
            problem("uneven indentation");
        }
        if line.chars().count() > WIDTH && !is_directive && !line.contains('"') {
            problem("a long line");
        }
        if line.ends_with(' ') {
            problem("blanks at the end");
        }
    }
    problems
}

/// The line with nothing in its strings.
fn without_strings(line: &str) -> String {
    line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

/// Whether 1 is multiplied or divided by, or 0 is added or multiplied by, or a number stands in brackets of its own.
fn is_known(line: &str) -> bool {
    let opening = |c: char| "([{,;".contains(c);
    let closing = |c: char| ")]},;".contains(c);
    let words: Vec<&str> = line.split_whitespace().collect();
    let left = |i: usize| words[i].rsplit(opening).next().unwrap_or_default();
    let right = |i: usize| words[i].split(closing).next().unwrap_or_default();
    let operators =
        (1..words.len().saturating_sub(1)).filter(|&i| ["*", "/", "%", "+", "-"].contains(&words[i]));
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    operators.into_iter().any(|i| {
        let (a, b, before) = (left(i - 1), right(i + 1), if i > 1 { words[i - 2] } else { "" });
        match words[i] {
            "*" => b == "1" || b == "0" || a == "0" || (a == "1" && !["/", "%"].contains(&before)),
            "/" | "%" => b == "1" || a == "0",
            "+" => {
                let after = words.get(i + 2).copied().unwrap_or_default();
                let is_term = ![before, after].iter().any(|word| ["*", "/", "%"].contains(word));
                b == "0" || a == "0" || is_term && is_number(a) && is_number(b)
            }
            _ => b == "0",
        }
    }) || words.iter().any(|word| {
        let inner =
            word.strip_prefix('(').and_then(|rest| rest.trim_end_matches([',', ';']).strip_suffix(')'));
        inner.is_some_and(is_number)
    })
}

#[cfg(test)]
mod tests {
    use super::problems;

    #[test]
    fn what_nobody_would_write_is_found() {
        for line in [
            "    x = (long)n * 1;",
            "    x = 1 * PANELS;",
            "    a[b + 0] = line / 1;",
            "    f(panels + (0) * n);",
            "    char *p = (char *)arena + 0;",
            "    f(0 * row, x % 1);",
            "    size = 10240 + 3328;",
            "  x = y;",
            "/* [x % 1][x / 1] */",
        ] {
            assert_eq!(problems(line).len(), 1, "{line}");
        }
        for line in [
            "    x = a / 1024 * 10 + 1 - b;",
            "    for (int i = 0; i < n - 1; i++) x[i] = 1.0f * y[i] + 0.5f;",
            "    puts(\"x * 1\"); /* 8 bits */",
            "#define ONE(x) ((x) * 1)",
            "/* a\n   b */",
            "    x = f(0) + a[0] * b[1] - c[0];",
            "    x = (1 + 2 * WORDS) * LANES;",
        ] {
            assert_eq!(problems(line), Vec::<String>::new(), "{line}");
        }
    }
}
