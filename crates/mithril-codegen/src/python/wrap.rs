//! Breaks long lines of Python as a formatter would: at the commas of a call, or before the operators of a sum.

/// Lines get no longer than this, but for single words.
pub const MAX_LINE: usize = 100;
const INDENT: &str = "    ";

/// A statement in as many lines as it needs.
pub fn wrapped(line: String) -> String {
    if line.len() <= MAX_LINE || line.contains('\n') {
        return line;
    }
    let indent = line.len() - line.trim_start().len();
    if let Some((left, right)) = assignment(&line) {
        let names = commas(left.trim_start());
        if names.len() > 1 && left.len() > 60 {
            let pad = " ".repeat(indent + INDENT.len());
            let end = " ".repeat(indent);
            let names = names.join(&format!(",\n{pad}"));
            return format!("{end}(\n{pad}{names},\n{end}) = {}", expression(right, indent, indent + 4, 0));
        }
        let head = format!("{left} = ");
        let mut broken = expression(right, indent, head.len(), 0);
        if broken.lines().next().is_some_and(|first| head.len() + first.len() > MAX_LINE) {
            let inner = indent + INDENT.len();
            let pad = " ".repeat(inner);
            broken = format!("(\n{pad}{}\n{})", expression(right, inner, inner, 0), " ".repeat(indent));
        }
        return format!("{head}{broken}");
    }
    match line.strip_suffix(':') {
        Some(statement) => {
            let text = statement.trim_start();
            format!("{}{}:", &line[..indent], expression(text, indent, indent, 1))
        }
        None => format!("{}{}", &line[..indent], expression(line.trim_start(), indent, indent, 0)),
    }
}

/// An entry of a dict or a tuple in a line of its own, which starts at `indent` and ends with a comma.
pub fn entry(item: &str, indent: usize) -> String {
    if indent + item.len() < MAX_LINE {
        return item.to_owned();
    }
    let inner = indent + INDENT.len();
    let colon = outer(item).find(|&(i, _)| item[i..].starts_with(": "));
    match colon {
        Some((at, _)) => {
            let value = expression(&item[at + 2..], inner, inner, 1);
            format!("{}:\n{}{value}", &item[..at], " ".repeat(inner))
        }
        None => expression(item, indent, indent, 1),
    }
}

/// The sides of ` = ` outside of brackets and strings.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let at = outer(line).find(|&(i, _)| line[i..].starts_with(" = "))?.0;
    Some((&line[..at], &line[at + 3..]))
}

/// An expression that starts at `column` of a line with that indent, and is followed by `after` characters.
fn expression(text: &str, indent: usize, column: usize, after: usize) -> String {
    if column + text.len() + after <= MAX_LINE {
        return text.to_owned();
    }
    let operators = operators(text);
    let inner = indent + INDENT.len();
    let pad = " ".repeat(inner);
    if !operators.is_empty() {
        if inner + text.len() <= MAX_LINE {
            return format!("(\n{pad}{text}\n{})", " ".repeat(indent));
        }
        let mut parts = Vec::new();
        let mut start = 0;
        for at in operators {
            parts.push(text[start..at].trim());
            start = at + 1;
        }
        parts.push(text[start..].trim());
        let parts = parts.into_iter().map(|part| format!("{pad}{}", expression(part, inner, inner, 0)));
        return format!("(\n{}\n{})", parts.collect::<Vec<_>>().join("\n"), " ".repeat(indent));
    }
    let Some((open, close)) = brackets(text, MAX_LINE - column.min(MAX_LINE)) else { return text.to_owned() };
    let (head, items, tail) = (&text[..=open], &text[open + 1..close], &text[close..]);
    let parts = commas(items);
    if items.trim().is_empty() || column + head.len() > MAX_LINE && parts.len() == 1 {
        return text.to_owned();
    }
    // A subscript of one item would become a tuple by a comma behind it.
    let comma = if parts.len() == 1 && (head.ends_with('[') || head == "(" || parts[0].starts_with('*')) {
        ""
    } else {
        ","
    };
    let mut lines: Vec<String> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let end = if i + 1 < parts.len() { "," } else { comma };
        let fits =
            lines.last().is_some_and(|line| !line.contains('\n') && line.len() + part.len() + 2 <= MAX_LINE);
        match lines.last_mut().filter(|_| fits) {
            Some(line) => line.extend([" ", part, end]),
            None => lines.push(format!("{pad}{}{end}", expression(part, inner, inner, 1))),
        }
    }
    format!("{head}\n{}\n{}{tail}", lines.join("\n"), " ".repeat(indent))
}

/// Characters outside of strings, with the number of open brackets before them.
fn scanned(text: &str) -> impl Iterator<Item = (usize, u8, usize)> + '_ {
    let (mut depth, mut quote, mut is_escaped) = (0_usize, None, false);
    text.bytes().enumerate().filter_map(move |(i, byte)| {
        if let Some(end) = quote {
            if is_escaped {
                is_escaped = false;
            } else if byte == b'\\' {
                is_escaped = true;
            } else if byte == end {
                quote = None;
            }
            return None;
        }
        match byte {
            b'"' | b'\'' => quote = Some(byte),
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                return Some((i, byte, depth));
            }
            _ => return Some((i, byte, depth)),
        }
        // An opening bracket counts as outside of itself.
        Some((i, byte, if quote.is_some() { depth } else { depth - 1 }))
    })
}

/// Characters outside of brackets and strings.
fn outer(text: &str) -> impl Iterator<Item = (usize, u8)> + '_ {
    scanned(text).filter(|(.., depth)| *depth == 0).map(|(i, byte, _)| (i, byte))
}

/// Positions of the spaces before the operators that bind least.
fn operators(text: &str) -> Vec<usize> {
    let levels: [&[&str]; 6] = [
        &[" if ", " else "],
        &[" or "],
        &[" and "],
        &[" == ", " != ", " < ", " > ", " <= ", " >= ", " | ", " & ", " ^ "],
        &[" + ", " - "],
        &[" * ", " / ", " // ", " % ", " @ "],
    ];
    // The body of a lambda belongs to it, and so does a generator to its brackets.
    if text.starts_with("lambda ") || text.contains(" for ") {
        return Vec::new();
    }
    for level in levels {
        let breaks: Vec<usize> = outer(text)
            .filter(|&(i, byte)| byte == b' ' && level.iter().any(|operator| text[i..].starts_with(operator)))
            .map(|(i, _)| i)
            .collect();
        if !breaks.is_empty() {
            return breaks;
        }
    }
    Vec::new()
}

/// The widest brackets outside of others, of those that open within `room` characters if there are such.
fn brackets(text: &str, room: usize) -> Option<(usize, usize)> {
    let brackets: Vec<(usize, u8)> = outer(text).filter(|(_, byte)| b"()[]{}".contains(byte)).collect();
    let pairs = brackets.chunks_exact(2).map(|pair| (pair[0].0, pair[1].0));
    pairs.filter(|(open, close)| close - open > 1).max_by_key(|(open, close)| (*open < room, close - open))
}

/// The items between commas.
fn commas(text: &str) -> Vec<&str> {
    let (mut items, mut start) = (Vec::new(), 0);
    for (i, _) in outer(text).filter(|(_, byte)| *byte == b',') {
        items.push(text[start..i].trim());
        start = i + 1;
    }
    let last = text[start..].trim();
    if !last.is_empty() {
        items.push(last);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_where_they_may_be() {
        let name = "a_rather_long_name_of_a_value";
        let sum = wrapped(format!("    {name} = {name} @ {name}.T + params[\"a, (b\"] * {name}"));
        assert!(sum.lines().all(|line| line.len() <= MAX_LINE), "{sum}");
        assert_eq!(
            sum.lines().nth(2).map(str::trim),
            Some("+ params[\"a, (b\"] * a_rather_long_name_of_a_value")
        );
        let call = wrapped(format!("    {name} = function({name}, [1, 2], \"x, y\", {name}.T, key={name})"));
        assert!(call.lines().all(|line| line.len() <= MAX_LINE), "{call}");
        assert!(call.ends_with(",\n    )"), "{call}");
        let index = wrapped(format!("    {name} = {name}_{name}[{name}_{name}_{name}]"));
        assert!(index.ends_with("_value\n    ]"), "a comma would make a tuple of it: {index}");
        assert_eq!(wrapped("    short = 1".into()), "    short = 1");
    }
}
