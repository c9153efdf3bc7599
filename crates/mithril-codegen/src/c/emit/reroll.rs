//! Loop rerolling: calls that repeat with other numbers, and other places of the same memory, become a loop. So do those of a
//! recurrence, most of whose arguments move by as much from step to step; others are read from a table of offsets. The
//! names in a loop are those of the first iteration.

use std::fmt::Write as _;
use std::ops::Range;

use rustc_hash::FxHashMap;

/// Fewest iterations of a loop.
const LEAST_ITERATIONS: usize = 4;

/// Most lines of an iteration.
const LONGEST: usize = 128;

/// Numbers of a table on a line, about.
const NUMBERS_OF_A_LINE: usize = 12;

/// Most tables of a loop.
const MOST_TABLES: usize = 32;

/// Iterations that are looked at before all, for whether a loop would need too many tables.
const SAMPLE: usize = 16;

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
    let mut forms = FxHashMap::default();
    let lines = lines.iter().filter(|line| !line.is_empty());
    let rows: Vec<Row<'_>> = lines.map(|line| Row::new(line, pointers, &mut forms)).collect();
    let mut runs = Runs { rows: &rows, alike: vec![0; LONGEST + 1], even: vec![0; LONGEST + 1] };
    let (mut out, mut at) = (String::new(), 0);
    while at < rows.len() {
        if let Some(repeat) = runs.best(at) {
            repeat.write(&mut out);
            at += repeat.length * repeat.iterations;
        } else {
            out.push_str(rows[at].text);
            at += 1;
        }
    }
    out
}

/// How far lines repeat.
struct Runs<'a> {
    rows: &'a [Row<'a>],
    /// For each length of an iteration, the first line behind the last run of lines that are like the one before.
    alike: Vec<usize>,
    /// The same of lines that move as far as those before did.
    even: Vec<usize>,
}

impl<'a> Runs<'a> {
    /// The loop from a line on that saves the most lines.
    fn best(&mut self, first: usize) -> Option<Repeat<'a>> {
        let mut longest: Vec<(usize, usize)> = Vec::new();
        let mut repeats = Vec::new();
        for length in 1..=LONGEST.min((self.rows.len() - first) / LEAST_ITERATIONS) {
            let [alike, even] = self.ends(first, length);
            if alike < first + LEAST_ITERATIONS * length || !is_closed(&self.rows[first..first + length]) {
                continue;
            }
            // Several iterations at a time need as many tables for each.
            if !longest.iter().any(|&(part, end)| length % part == 0 && end == alike) {
                longest.push((length, alike));
                repeats.push((length, alike));
            }
            repeats.push((length, even));
        }
        let repeats = repeats.into_iter().map(|(length, end)| (length, (end - first) / length));
        repeats
            .filter(|&(_, iterations)| iterations >= LEAST_ITERATIONS)
            .filter_map(|(length, iterations)| Repeat::new(&self.rows[first..], length, iterations))
            .max_by_key(|repeat| (repeat.saved, std::cmp::Reverse(repeat.length)))
    }
    /// Where lines from one on no longer repeat, and where they no longer repeat evenly.
    fn ends(&mut self, first: usize, length: usize) -> [usize; 2] {
        let rows = self.rows;
        let is_alike = |n: usize| {
            let (row, before) = (&rows[n], &rows[n - length]);
            row.form == before.form
                && before.steps(row).zip(&row.moves).all(|(step, moving)| step % moving.unit() == 0)
        };
        let alike = end(&mut self.alike[length], first + length, rows.len(), is_alike);
        let is_even = |n: usize| {
            let [a, b, c] = [2, 1, 0].map(|i| &rows[n - i * length]);
            a.steps(b).eq(b.steps(c))
        };
        let even = if alike > first + 2 * length {
            end(&mut self.even[length], first + 2 * length, alike, is_even)
        } else {
            alike
        };
        [alike, even.min(alike)]
    }
}

/// The first line from `from` on that does not continue a run, of which one was known to end at `known`.
fn end(known: &mut usize, from: usize, last: usize, continues: impl Fn(usize) -> bool) -> usize {
    if *known <= from {
        *known = (from..last).find(|&n| !continues(n)).unwrap_or(last.max(from));
    }
    *known
}

/// Whether lines end the blocks that they begin, and no others.
fn is_closed(rows: &[Row<'_>]) -> bool {
    let mut depth = 0;
    let stays = rows.iter().all(|row| {
        let lowest = depth + row.lowest;
        depth += row.opens;
        lowest >= 0
    });
    stays && depth == 0
}

/// Lines that repeat.
struct Repeat<'a> {
    rows: &'a [Row<'a>],
    /// Lines of an iteration.
    length: usize,
    iterations: usize,
    /// What is added to what moves in each line.
    offsets: Vec<Vec<Offset>>,
    tables: Tables,
    /// How many lines the loop is shorter than its iterations, without the comment.
    saved: usize,
}

/// Offsets of the iterations that are no multiple of their number, each once.
type Tables = Vec<Vec<i64>>;

/// What is added in each iteration, in numbers or elements.
#[derive(Clone, Copy)]
enum Offset {
    /// A multiple of its number.
    Step(i64),
    /// An element of a table.
    Table(usize),
}

impl<'a> Repeat<'a> {
    /// The first lines so many times; `None` if a loop would not be shorter.
    fn new(rows: &'a [Row<'a>], length: usize, iterations: usize) -> Option<Self> {
        offsets(rows, length, iterations.min(SAMPLE))?;
        let (offsets, tables) = offsets(rows, length, iterations)?;
        let lines = match tables.len() {
            0 => 2,
            count => (count * iterations).div_ceil(NUMBERS_OF_A_LINE) + 4,
        };
        let saved = (length * (iterations - 1)).checked_sub(lines).filter(|saved| *saved > 0)?;
        Some(Self { rows, length, iterations, offsets, tables, saved })
    }
    fn write(&self, out: &mut String) {
        let n = self.iterations;
        let _ = writeln!(out, "    /* {n} iterations, in which names are those of the first. */");
        let indent = if self.tables.is_empty() { "" } else { "    " };
        if !self.tables.is_empty() {
            out.push_str("    {\n");
            self.write_tables(out);
        }
        let _ = writeln!(out, "    {indent}for (ptrdiff_t iteration = 0; iteration < {n}; iteration++) {{");
        for (row, offsets) in self.rows.iter().zip(&self.offsets) {
            let _ = write!(out, "    {indent}{}", row.moved(offsets));
        }
        let _ = writeln!(out, "    {indent}}}");
        if !self.tables.is_empty() {
            out.push_str("    }\n");
        }
    }
    fn write_tables(&self, out: &mut String) {
        let (n, count) = (self.iterations, self.tables.len());
        let _ = write!(out, "        static const ptrdiff_t offsets[{n}][{count}] = {{");
        for t in 0..n {
            let row: Vec<String> = self.tables.iter().map(|table| table[t].to_string()).collect();
            let is_first = t % NUMBERS_OF_A_LINE.div_ceil(count) == 0;
            let _ = write!(out, "{}{{{}}},", if is_first { "\n            " } else { " " }, row.join(", "));
        }
        out.push_str("\n        };\n");
    }
}

/// What is added in each iteration to what moves, and the tables that it is read from; `None` if these are too many.
fn offsets(rows: &[Row<'_>], length: usize, iterations: usize) -> Option<(Vec<Vec<Offset>>, Tables)> {
    let mut tables = Tables::new();
    let mut all = Vec::new();
    for (line, row) in rows[..length].iter().enumerate() {
        let mut moves = Vec::new();
        for (i, first) in row.moves.iter().enumerate() {
            let value = |t: usize| rows[line + t * length].moves[i].value;
            let values: Vec<i64> = (0..iterations).map(|t| (value(t) - first.value) / first.unit()).collect();
            let step = values[1];
            let is_even = values.iter().zip(0_i64..).all(|(value, t)| *value == t * step);
            moves.push(if is_even {
                Offset::Step(step)
            } else if let Some(table) = tables.iter().position(|table| *table == values) {
                Offset::Table(table)
            } else {
                tables.push(values);
                Offset::Table(tables.len() - 1)
            });
        }
        all.push(moves);
        if tables.len() > MOST_TABLES.min(length * NUMBERS_OF_A_LINE) {
            return None;
        }
    }
    Some((all, tables))
}

/// A line.
struct Row<'a> {
    text: &'a str,
    /// The same for lines that differ only in numbers and in pointers into the same memory, and for all comments.
    form: usize,
    /// Numbers and pointers in it, in order.
    moves: Vec<Moving>,
    /// How many blocks it begins more than it ends, and how many at its lowest point.
    opens: i64,
    lowest: i64,
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

/// What lines have in common: the text around what moves, and the memory of pointers.
type Form<'a> = (Vec<&'a str>, Vec<Option<(Block, usize)>>);

impl<'a> Row<'a> {
    fn new(
        text: &'a str,
        pointers: &FxHashMap<&str, Address>,
        forms: &mut FxHashMap<Form<'a>, usize>,
    ) -> Self {
        // Comments name what the first iteration computes. Numbers in a string are not those of an expression.
        let is_comment = text.trim_start().starts_with("/*");
        let mut moves = Vec::new();
        for span in words(text).filter(|_| !is_comment && !text.contains('"')) {
            let word = &text[span.clone()];
            let address = pointers.get(word).copied();
            let value = address.map(|address| address.at as i64).or_else(|| word.parse().ok());
            moves.extend(value.map(|value| Moving { span, value, address }));
        }
        let starts = std::iter::once(0).chain(moves.iter().map(|moving| moving.span.end));
        let ends = moves.iter().map(|moving| moving.span.start).chain(std::iter::once(text.len()));
        let around = starts.zip(ends).map(|(start, end)| &text[start..end]).collect();
        let blocks =
            moves.iter().map(|moving| moving.address.map(|address| (address.block, address.element)));
        let form = if is_comment { Form::default() } else { (around, blocks.collect()) };
        let next = forms.len();
        let (mut opens, mut lowest) = (0, 0);
        for b in text.bytes() {
            opens += i64::from(b == b'{') - i64::from(b == b'}');
            lowest = lowest.min(opens);
        }
        Self { text, form: *forms.entry(form).or_insert(next), moves, opens, lowest }
    }
    /// How far each number and pointer moves from this line to a later one.
    fn steps(&self, later: &Self) -> impl Iterator<Item = i64> {
        self.moves.iter().zip(&later.moves).map(|(from, to)| to.value - from.value)
    }
    /// The line in a loop.
    fn moved(&self, offsets: &[Offset]) -> String {
        let (mut out, mut done) = (String::new(), 0);
        for (moving, offset) in self.moves.iter().zip(offsets) {
            let added = match offset {
                Offset::Step(0) => continue,
                Offset::Step(1) => "+ iteration".to_owned(),
                Offset::Step(-1) => "- iteration".to_owned(),
                Offset::Step(step) => {
                    format!("{} iteration * {}", if *step < 0 { '-' } else { '+' }, step.unsigned_abs())
                }
                Offset::Table(table) => format!("+ offsets[iteration][{table}]"),
            };
            let Range { start, end } = moving.span;
            let (before, after) = (self.text[..start].trim_end(), self.text[end..].trim_start());
            let is_whole = before.ends_with(['(', ',', '+']) && after.starts_with([')', ',', ';', '+']);
            let (open, close) = if is_whole { ("", "") } else { ("(", ")") };
            let [skipped, first] = [&self.text[done..start], &self.text[start..end]];
            let _ = write!(out, "{skipped}{open}{first} {added}{close}");
            done = end;
        }
        out + &self.text[done..]
    }
}

/// The words and numbers of a line.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> {
    let (bytes, mut at) = (text.as_bytes(), 0);
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    std::iter::from_fn(move || {
        let start = at + bytes[at..].iter().position(|b| is_word(*b))?;
        at = start + 1;
        while let Some(&b) = bytes.get(at) {
            // A number goes on behind its point, and behind the sign of its exponent.
            let in_number = bytes[start].is_ascii_digit()
                && (b == b'.' || b"+-".contains(&b) && b"eEpP".contains(&bytes[at - 1]));
            if !is_word(b) && !in_number {
                break;
            }
            at += 1;
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
            "f(1e-1);\nf(1e-2);\nf(1e-3);\nf(1e-4);\nf(1e-5);",
            "f(0x1p-1);\nf(0x1p-2);\nf(0x1p-3);\nf(0x1p-4);\nf(0x1p-5);",
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

    #[test]
    fn many_lines_that_no_loop_would_shorten_are_looked_at_once() {
        // Of each, 60 numbers that move differently: this takes milliseconds, and hours if all were compared from each on.
        let mut numbers = words_of(7);
        let text: Vec<String> = (0..4000)
            .map(|_| {
                let all: Vec<String> = (0..60).map(|_| numbers.next().unwrap().to_string()).collect();
                format!("    f({});\n", all.join(", "))
            })
            .collect();
        assert_eq!(reroll(&text, &FxHashMap::default()), text.concat());
    }

    fn words_of(seed: i64) -> impl Iterator<Item = i64> {
        mithril_ir::random::words([seed, 0]).map(|word| i64::from(word % 1000))
    }

    /// A call: what it calls, and for each argument the memory and the byte, or the number.
    type Called = (String, Vec<(Option<Block>, i64)>);

    /// The calls that lines make, loops run.
    fn calls(text: &str, pointers: &FxHashMap<&str, Address>) -> Vec<Called> {
        let (mut all, mut body, mut times, mut table) = (Vec::new(), Vec::new(), 0, Vec::<Vec<i64>>::new());
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("/*")) {
            if let Some(rest) = line.strip_prefix("for (ptrdiff_t iteration = 0; iteration < ") {
                times = rest.split(';').next().unwrap().parse().unwrap();
            } else if line.starts_with("static") {
                table.clear();
            } else if line.starts_with('{') && line.len() > 1 {
                let row = |row: &str| row.split(", ").map(|n| n.parse().unwrap()).collect();
                table.extend(line.trim_matches(['{', '}', ',']).split("}, {").map(row));
            } else if line == "}" && times > 0 {
                all.extend(
                    (0..times)
                        .flat_map(|t| body.iter().map(move |line| (*line, t)))
                        .map(|(line, t)| call(line, t, &table, pointers)),
                );
                (times, body) = (0, Vec::new());
            } else if line.ends_with(");") {
                match times {
                    0 => all.push(call(line, 0, &table, pointers)),
                    _ => body.push(line),
                }
            }
        }
        all
    }

    fn call(line: &str, t: i64, table: &[Vec<i64>], pointers: &FxHashMap<&str, Address>) -> Called {
        let (name, args) = line.strip_suffix(");").unwrap().split_once('(').unwrap();
        let value = |arg: &str| {
            let arg = arg.trim_start_matches("(void *)").trim_matches(['(', ')']);
            let terms: Vec<&str> = arg.split(' ').collect();
            let address = pointers.get(terms[0]);
            let (mut sum, mut i) = (address.map_or_else(|| terms[0].parse().unwrap(), |_| 0), 1);
            while i < terms.len() {
                let sign = if terms[i] == "-" { -1 } else { 1 };
                let column =
                    terms[i + 1].strip_prefix("offsets[iteration][").map(|c| c.trim_end_matches(']'));
                let mut term = match (terms[i + 1], column) {
                    (_, Some(column)) => table[t as usize][column.parse::<usize>().unwrap()],
                    ("iteration", _) => t,
                    (number, _) => number.parse().unwrap(),
                };
                i += 2;
                if terms.get(i) == Some(&"*") {
                    term *= terms[i + 1].parse::<i64>().unwrap();
                    i += 2;
                }
                sum += sign * term;
            }
            match address {
                Some(a) => (Some(a.block), a.at as i64 + sum * a.element as i64),
                None => (None, sum),
            }
        };
        (name.to_owned(), args.split(", ").map(value).collect())
    }

    #[test]
    fn random_loops_make_the_same_calls() {
        let (mut loops, mut tables) = (0, 0);
        for seed in 0..400 {
            let mut numbers = words_of(seed);
            let mut draw = |n: i64| numbers.next().unwrap() % n;
            let mut names: Vec<(String, Address)> = Vec::new();
            let mut text = String::new();
            for _ in 0..=draw(3) {
                // Of each argument how it moves: not, evenly, or anyhow; from where, by how much, and what it is.
                let slots: Vec<Vec<[i64; 4]>> = (0..=draw(4))
                    .map(|_| (0..=draw(4)).map(|_| [draw(3), draw(100), draw(9) - 4, draw(4)]).collect())
                    .collect();
                for t in 0..draw(14) {
                    for (line, args) in slots.iter().enumerate() {
                        // Now and then a step is another one.
                        let other = i64::from(draw(60) == 0);
                        let mut argument = |&[moves, from, step, kind]: &[i64; 4]| {
                            let at = 100 + from + [0, t * step, draw(50)][moves as usize] + other;
                            if kind == 0 {
                                return at.to_string();
                            }
                            let name = format!("p{}", names.len());
                            let (block, element) =
                                [(Block::Arena, 4), (Block::Output(1), 8)][kind as usize % 2];
                            names.push((name.clone(), Address { block, at: at as usize * element, element }));
                            match kind {
                                1 => name,
                                2 => format!("{name} + {}", from % 7),
                                _ => format!("(void *){name}"),
                            }
                        };
                        let all: Vec<String> = args.iter().map(&mut argument).collect();
                        let _ = writeln!(text, "    f{line}({});", all.join(", "));
                    }
                }
                let _ = writeln!(text, "    between({});", draw(5));
            }
            let pointers = names.iter().map(|(name, address)| (name.as_str(), *address)).collect();
            let lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
            let out = reroll(&lines, &pointers);
            assert_eq!(calls(&out, &pointers), calls(&text, &pointers), "seed {seed}:\n{text}\n{out}");
            loops += out.matches("for (").count();
            tables += out.matches("static").count();
        }
        assert!(loops > 100 && tables > 20, "{loops} loops, {tables} tables");
    }
}
