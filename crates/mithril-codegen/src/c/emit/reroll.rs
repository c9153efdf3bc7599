//! Loop rerolling: calls that repeat with other numbers, and other places of the same memory, become a loop. So do those of a
//! recurrence, most of whose arguments move by as much from step to step; others are read from a table of offsets. The
//! names in a loop are those of the first iteration.

use std::fmt::Write as _;
use std::hash::{Hash as _, Hasher as _};
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHasher};

/// Fewest iterations of a loop.
const LEAST_ITERATIONS: usize = 4;

/// Most lines of an iteration.
const LONGEST: usize = 128;

/// Numbers of a table on a line, about.
const NUMBERS_OF_A_LINE: usize = 12;

/// Where a pointer points to, in a block of memory that is the same for the whole call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which block.
    pub block: Block,
    /// Bytes from its start on.
    pub at: usize,
    /// Bytes of an element of what the pointer is to.
    pub element: usize,
}

/// A block of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Block {
    /// The arena.
    Arena,
    /// That of a thread.
    Scratch,
    /// An input by its number.
    Input(usize),
    /// An output by its number.
    Output(usize),
}

/// Lines of C, each with its line break, in which runs that repeat are loops.
pub fn reroll(lines: &[String], pointers: &FxHashMap<&str, Address>) -> String {
    let rows: Vec<Row<'_>> =
        lines.iter().filter(|line| !line.is_empty()).map(|line| Row::new(line, pointers)).collect();
    let (mut out, mut at) = (String::new(), 0);
    while at < rows.len() {
        if let Some(repeat) = best(&rows[at..]) {
            repeat.write(&mut out);
            at += repeat.length * repeat.iterations;
        } else {
            out.push_str(rows[at].text);
            at += 1;
        }
    }
    out
}

/// The loop that starts here and saves the most lines.
fn best<'a>(rows: &'a [Row<'a>]) -> Option<Repeat<'a>> {
    let lengths = 1..=LONGEST.min(rows.len() / LEAST_ITERATIONS);
    let lengths = lengths.filter(|&length| rows[0].is_like(&rows[length]) && is_closed(&rows[..length]));
    let repeats = lengths.flat_map(|length| [true, false].map(|even| Repeat::new(rows, length, even)));
    repeats
        .filter(|repeat| repeat.iterations >= LEAST_ITERATIONS && repeat.saved() > 0)
        .max_by_key(|repeat| (repeat.saved(), std::cmp::Reverse(repeat.length)))
}

/// Whether lines end the blocks that they begin, and no others.
fn is_closed(rows: &[Row<'_>]) -> bool {
    let mut depth = 0;
    let mut braces = rows.iter().flat_map(|row| row.text.bytes());
    let stays = braces.all(|b| {
        depth += i64::from(b == b'{') - i64::from(b == b'}');
        depth >= 0
    });
    stays && depth == 0
}

/// Lines that repeat.
struct Repeat<'a> {
    rows: &'a [Row<'a>],
    /// Lines of an iteration.
    length: usize,
    iterations: usize,
    /// Offsets of the iterations that are no multiple of their number, each once.
    tables: Vec<Vec<i64>>,
}

impl<'a> Repeat<'a> {
    /// As many repetitions of the first lines as there are, or as there are that move evenly.
    fn new(rows: &'a [Row<'a>], length: usize, even: bool) -> Self {
        let repeats = |n: usize| {
            let (row, before) = (&rows[n], &rows[n - length]);
            row.is_like(before)
                && before.steps(row).zip(&row.moves).all(|(step, moving)| step % moving.unit() == 0)
                && (!even || n < 2 * length || before.steps(row).eq(rows[n - 2 * length].steps(before)))
        };
        let iterations = (length..rows.len()).take_while(|&n| repeats(n)).count() / length + 1;
        let mut repeat = Self { rows, length, iterations, tables: Vec::new() };
        if !even {
            for (line, row) in rows[..length].iter().enumerate() {
                for i in 0..row.moves.len() {
                    let offsets = repeat.offsets(line, i);
                    if step_of(&offsets).is_none() && !repeat.tables.contains(&offsets) {
                        repeat.tables.push(offsets);
                    }
                }
            }
        }
        repeat
    }
    /// How many lines a loop is shorter than its iterations, without the comment.
    fn saved(&self) -> usize {
        let table = (self.tables.len() * self.iterations).div_ceil(NUMBERS_OF_A_LINE) + 4;
        let table = if self.tables.is_empty() { 2 } else { table };
        (self.length * (self.iterations - 1)).saturating_sub(table)
    }
    /// How far something in a line is from the first iteration in each, in numbers or elements.
    fn offsets(&self, line: usize, i: usize) -> Vec<i64> {
        let first = &self.rows[line].moves[i];
        let value = |t: usize| self.rows[line + t * self.length].moves[i].value;
        (0..self.iterations).map(|t| (value(t) - first.value) / first.unit()).collect()
    }
    fn write(&self, out: &mut String) {
        let n = self.iterations;
        let _ = writeln!(out, "    /* {n} iterations, in which names are those of the first. */");
        let indent = if self.tables.is_empty() { "" } else { "    " };
        if !self.tables.is_empty() {
            let _ = write!(
                out,
                "    {{\n        static const ptrdiff_t offsets[{n}][{}] = {{\n            ",
                self.tables.len()
            );
            for t in 0..n {
                let row: Vec<String> = self.tables.iter().map(|table| table[t].to_string()).collect();
                let is_last = (t + 1) % NUMBERS_OF_A_LINE.div_ceil(self.tables.len()) == 0;
                let end = if t + 1 == n {
                    ","
                } else if is_last {
                    ",\n            "
                } else {
                    ", "
                };
                let _ = write!(out, "{{{}}}{end}", row.join(", "));
            }
            out.push_str("\n        };\n");
        }
        let _ = writeln!(out, "    {indent}for (ptrdiff_t iteration = 0; iteration < {n}; iteration++) {{");
        for line in 0..self.length {
            let _ = write!(out, "    {indent}{}", self.line(line));
        }
        let _ = writeln!(out, "    {indent}}}");
        if !self.tables.is_empty() {
            out.push_str("    }\n");
        }
    }
    /// A line of the loop.
    fn line(&self, line: usize) -> String {
        let row = &self.rows[line];
        let (mut out, mut done) = (String::new(), 0);
        for (i, moving) in row.moves.iter().enumerate() {
            let offsets = self.offsets(line, i);
            let moved = match step_of(&offsets) {
                Some(0) => continue,
                Some(1) => "+ iteration".to_owned(),
                Some(-1) => "- iteration".to_owned(),
                Some(step) => {
                    format!("{} iteration * {}", if step < 0 { '-' } else { '+' }, step.unsigned_abs())
                }
                None => {
                    let table = self.tables.iter().position(|table| *table == offsets).unwrap_or_default();
                    format!("+ offsets[iteration][{table}]")
                }
            };
            let Range { start, end } = moving.span;
            let (before, after) = (row.text[..start].trim_end(), row.text[end..].trim_start());
            let is_whole = before.ends_with(['(', ',', '+']) && after.starts_with([')', ',', ';', '+']);
            let (open, close) = if is_whole { ("", "") } else { ("(", ")") };
            let [skipped, first] = [&row.text[done..start], &row.text[start..end]];
            let _ = write!(out, "{skipped}{open}{first} {moved}{close}");
            done = end;
        }
        out + &row.text[done..]
    }
}

/// The step of offsets that are multiples of it.
fn step_of(offsets: &[i64]) -> Option<i64> {
    let step = *offsets.get(1)?;
    offsets.iter().zip(0_i64..).all(|(offset, t)| *offset == t * step).then_some(step)
}

/// A line.
struct Row<'a> {
    text: &'a str,
    is_comment: bool,
    /// Its hash without the numbers and pointers.
    shape: u64,
    /// Numbers and pointers in it, in order.
    moves: Vec<Moving>,
}

/// What may be another in each iteration.
struct Moving {
    span: Range<usize>,
    value: i64,
    /// Of a pointer.
    address: Option<Address>,
}

impl Moving {
    /// Bytes of a step of a pointer.
    fn unit(&self) -> i64 {
        self.address.map_or(1, |address| address.element.max(1) as i64)
    }
}

impl<'a> Row<'a> {
    fn new(text: &'a str, pointers: &FxHashMap<&str, Address>) -> Self {
        let (mut shape, mut moves) = (FxHasher::default(), Vec::new());
        // Comments name what the first iteration computes. Numbers in a string are not those of an expression.
        let is_comment = text.trim_start().starts_with("/*");
        if text.contains('"') {
            text.hash(&mut shape);
        } else if !is_comment {
            for span in words(text) {
                let word = &text[span.clone()];
                let address = pointers.get(word).copied();
                let value = address.map(|address| address.at as i64).or_else(|| word.parse().ok());
                match (value, address) {
                    (Some(value), address) => {
                        address.map(|address| (address.block, address.element)).hash(&mut shape);
                        moves.push(Moving { span, value, address });
                    }
                    (None, _) => word.hash(&mut shape),
                }
            }
        }
        Self { text, is_comment, shape: shape.finish(), moves }
    }
    /// Whether it is the same line but for numbers and pointers into the same memory, or a comment as well.
    fn is_like(&self, other: &Self) -> bool {
        // Most lines differ by their hashes.
        if self.shape != other.shape || self.moves.len() != other.moves.len() {
            return false;
        }
        let kind = |moving: &Moving| moving.address.map(|address| (address.block, address.element));
        let pairs = || self.moves.iter().zip(&other.moves);
        self.is_comment && other.is_comment
            || self.between().eq(other.between()) && pairs().all(|(a, b)| kind(a) == kind(b))
    }
    /// What stands before, between and behind numbers and pointers.
    fn between(&self) -> impl Iterator<Item = &'a str> {
        let starts = std::iter::once(0).chain(self.moves.iter().map(|moving| moving.span.end));
        let ends = self.moves.iter().map(|moving| moving.span.start).chain(std::iter::once(self.text.len()));
        starts.zip(ends).map(|(start, end)| &self.text[start..end])
    }
    /// How far each number and pointer moves from this line to a later one.
    fn steps(&self, later: &Self) -> impl Iterator<Item = i64> {
        self.moves.iter().zip(&later.moves).map(|(from, to)| to.value - from.value)
    }
}

/// The words, numbers and other characters of a line.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let (bytes, mut at) = (text.as_bytes(), 0);
    std::iter::from_fn(move || {
        while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        let (start, first) = (at, *bytes.get(at)?);
        // A number goes on behind its point.
        let goes_on = |b: &u8| is_word(*b) || first.is_ascii_digit() && *b == b'.';
        at += 1;
        if is_word(first) {
            at += bytes[at..].iter().take_while(|b| goes_on(b)).count();
        } else {
            at += bytes[at..].iter().take_while(|b| !b.is_ascii()).count();
        }
        Some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: usize) -> Address {
        Address { block: Block::Arena, at, element: 4 }
    }

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(|line| format!("    {}\n", line.trim())).collect()
    }

    #[test]
    fn steps_of_a_recurrence_are_a_loop() {
        let names: Vec<String> = (0..5).map(|t| format!("h_{t}")).collect();
        let pointers: FxHashMap<&str, Address> =
            names.iter().enumerate().map(|(t, name)| (name.as_str(), at(1000 - 8 * t))).collect();
        let text = (0..4)
            .map(|t| {
                format!(
                    "/* step {t} */\nif (thread == 0) f(x + {}, (const void *)h_{t}, h_{});\nwait();\n",
                    t * 3,
                    t + 1
                )
            })
            .collect::<Vec<_>>()
            .concat();
        let out = reroll(&lines(&format!("before();\n{text}after(h_4);")), &pointers);
        let expected = "    before();\n    /* 4 iterations, in which names are those of the first. */\n    for (ptrdiff_t iteration = 0; iteration < 4; iteration++) {\n        \
                        /* step 0 */\n        if (thread == 0) f(x + 0 + iteration * 3, (const void *)(h_0 - iteration * 2), h_1 - iteration * 2);\n        \
                        wait();\n    }\n    after(h_4);\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn what_is_something_else_each_time_stays() {
        let pointers: FxHashMap<&str, Address> =
            [("a", at(0)), ("b", at(64)), ("c", at(128)), ("d", at(256)), ("e", at(258))]
                .into_iter()
                .collect();
        // The pointers are apart by parts of elements; names that are no pointers differ; a table would be as long.
        for text in [
            "f(a);\nf(b);\nf(c);\nf(d);",
            "f(d);\nf(e);\nf(d);\nf(e);",
            "f(w0);\nf(w1);\nf(w2);\nf(w3);",
            "f(a, 1.5);\nf(b, 2.5);\nf(c, 3.5);\nf(d, 4.5);",
            "f(1, \"1\");\nf(2, \"2\");\nf(3, \"3\");\nf(4, \"4\");",
            "f(1);\nf(2);\nf(3);",
            "f(1);\nf(2);\nf(4);\nf(8);",
            "f(1);\nf(2);\nf(3);\nf(4, 5);",
            "f(1);\n}\n{\nf(2);\n}\n{\nf(3);\n}\n{\nf(4);\n}\n{",
        ] {
            let lines = lines(text);
            assert_eq!(reroll(&lines, &pointers), lines.concat());
        }
    }

    #[test]
    fn sums_are_in_parentheses_where_they_have_to_be() {
        let text = "f(2 * 1, -1);\nf(2 * 2, -2);\nf(2 * 3, -3);\nf(2 * 4, -4);";
        let out = reroll(&lines(text), &FxHashMap::default());
        assert!(out.contains("f(2 * (1 + iteration), -(1 + iteration));"), "{out}");
    }

    #[test]
    fn calls_that_repeat_in_pairs_are_a_loop_of_pairs() {
        let text = (0..6).map(|t| format!("f(a, {t});\ng(a, {});\n", 7 * t)).collect::<Vec<_>>().concat();
        let out = reroll(&lines(&text), &FxHashMap::default());
        assert_eq!(out.matches("for (").count(), 1, "{out}");
        assert!(out.contains("g(a, 0 + iteration * 7);"), "{out}");
    }

    #[test]
    fn what_does_not_move_evenly_is_read_from_a_table() {
        let names: Vec<String> = (0..9).map(|t| format!("h_{t}")).collect();
        let places = [0, 64, 128, 32, 512, 256, 1024, 640, 96];
        let pointers: FxHashMap<&str, Address> =
            names.iter().zip(places).map(|(name, place)| (name.as_str(), at(place))).collect();
        let text = (0..8)
            .map(|t| format!("f(h_{t}, {t});\ng(h_{t});\nwait();\nf(h_{}, 9);\n", t + 1))
            .collect::<Vec<_>>()
            .concat();
        let out = reroll(&lines(&text), &pointers);
        assert!(out.contains("static const ptrdiff_t offsets[8][2] = {\n"), "{out}");
        assert!(out.contains("{0, 0}, {16, 16}, {32, -8}, {8, 112}, {128, 48}, {64, 240},"), "{out}");
        assert!(out.contains("f(h_0 + offsets[iteration][0], 0 + iteration);"), "{out}");
        assert!(out.contains("f(h_1 + offsets[iteration][1], 9);"), "{out}");
    }
}
