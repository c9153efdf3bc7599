//! Expressions and indices as C: statements that prepare, and the text of the value.

use std::collections::HashMap;
use std::fmt::Write as _;

use mithril_ir::{DType, Kind, Scalar};

use crate::c::ir::expr::{Atom, Binary, BufferId, Expr, Index, Var, Within};
use crate::c::ir::program::{Buffers, KernelMemory, Memory, Place};
use crate::c::syntax::template::{self, Form, Part, c_type};

/// Opens the mark of a buffer's name in the text of a function.
pub const MARK: char = '\u{1}';

/// Opens the mark of the constant part of a position, which [`Writer::body`] writes.
const CONSTANT: char = '\u{3}';

/// Closes either.
pub const MARK_END: char = '\u{2}';

/// The variable that is 0 and of which compilers do not know it: `MITHRIL_ZERO`.
pub const ZERO: &str = "zero";

/// Turns of a loop that compilers may write out one after the other.
const SHORT: i64 = 32;

/// The text of a value.
#[derive(Clone, Debug)]
pub struct Value {
    /// The C expression.
    pub text: String,
    /// Whether it stands as an operand without brackets.
    pub is_atom: bool,
}

impl Value {
    fn atom(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_atom: true }
    }
    fn open(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_atom: false }
    }
    /// As an operand.
    pub fn operand(&self) -> String {
        if self.is_atom { self.text.clone() } else { format!("({})", self.text) }
    }
}

/// A loop that is being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    /// The line where it starts.
    pub start: usize,
    pub iterations: i64,
    /// Whether it is in a branch of a choice.
    in_branch: bool,
    /// How many loads depended on a choice before it.
    chosen_loads: usize,
}

/// Writes the body of a function.
#[derive(Debug)]
pub struct Writer<'a, M: Memory = KernelMemory> {
    buffers: &'a Buffers<M>,
    /// Lines written.
    pub lines: Vec<String>,
    indent: usize,
    /// Variables in scope with their names.
    names: Vec<(Var, String)>,
    /// The loops around.
    pub(super) loops: Vec<Loop>,
    /// How many loads depend on a choice.
    chosen_loads: usize,
    /// How many branches of choices are around.
    branches: usize,
    /// Whether there are loops of few iterations.
    pub has_short_loops: bool,
    /// Whether a choice between loads is compared with [`ZERO`].
    pub reads_zero: bool,
    /// Expressions that have been computed, with their names.
    known: Vec<(Expr, String)>,
    /// KernelBuffers that are read or written, in the order of their first use.
    pub used: Vec<BufferId>,
    /// The least constant part of the positions in each buffer that are read or written.
    offsets: HashMap<BufferId, i64>,
    /// Whether an index is checked.
    pub checks: bool,
    /// How functions are called.
    pub form: Form,
    counter: usize,
}

impl<'a, M: Memory> Writer<'a, M> {
    /// Writes about these buffers.
    pub fn new(buffers: &'a Buffers<M>) -> Self {
        Self {
            buffers,
            lines: Vec::new(),
            indent: 1,
            names: Vec::new(),
            loops: Vec::new(),
            chosen_loads: 0,
            branches: 0,
            has_short_loops: false,
            reads_zero: false,
            known: Vec::new(),
            used: Vec::new(),
            offsets: HashMap::new(),
            checks: false,
            form: Form::Plain,
            counter: 0,
        }
    }
    /// What stands in front of a line.
    pub(super) fn margin(&self) -> String {
        "    ".repeat(self.indent)
    }
    /// Adds a line.
    pub fn line(&mut self, text: impl AsRef<str>) {
        self.lines.push(self.margin() + text.as_ref());
    }
    /// Adds a line and goes one level in.
    pub fn open(&mut self, text: impl AsRef<str>) {
        self.line(text);
        self.indent += 1;
    }
    /// Goes one level out.
    pub fn close(&mut self) {
        self.indent -= 1;
        self.line("}");
    }
    /// Goes on with the other side of a choice.
    pub fn otherwise(&mut self, test: &str) {
        self.indent -= 1;
        self.open(format!("}} else {test}{{"));
    }
    /// A name that is not used yet.
    pub fn fresh(&mut self, stem: &str) -> String {
        self.counter += 1;
        format!("{stem}{}", self.counter)
    }
    /// Gives a variable a name; [`Writer::leave`] takes it away.
    pub fn name(&mut self, var: Var, name: impl Into<String>) {
        self.names.push((var, name.into()));
    }
    /// A loop over a variable.
    pub fn enter(&mut self, var: Var) {
        self.enter_from(var, "0", &var.size.to_string());
    }
    /// A loop over this thread's part of a variable.
    pub fn enter_part(&mut self, var: Var) {
        let part = |t: &str| format!("{t} * {} / threads", var.size);
        self.enter_from(var, &part("thread"), &part("(thread + 1)"));
    }
    pub(crate) fn enter_from(&mut self, var: Var, from: &str, to: &str) {
        let all = ["i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w"];
        let is_free = |name: &str| !self.names.iter().any(|(_, n)| n == name);
        let free = all.iter().find(|name| is_free(name)).map(|s| (*s).to_owned());
        let name = free.unwrap_or_else(|| format!("i{}", self.names.len()));
        self.enter_named(var, &name, from, to);
    }
    /// A loop over a variable of that name.
    pub fn enter_named(&mut self, var: Var, name: &str, from: &str, to: &str) {
        self.loops.push(Loop {
            start: self.lines.len(),
            iterations: var.size,
            in_branch: self.branches > 0,
            chosen_loads: self.chosen_loads,
        });
        self.has_short_loops |= var.size <= SHORT;
        self.open(format!("for (int64_t {name} = {from}; {name} < {to}; {name}++) {{"));
        self.name(var, name);
    }
    /// A loop of few iterations that is to become one of vectors. GCC would write it out before it looks for vectors, and then
    /// finds none.
    pub fn enter_lanes(&mut self, var: Var, name: Option<&str>, to: &str) {
        let start = self.lines.len();
        match name {
            Some(name) => self.enter_named(var, name, "0", to),
            None => self.enter_from(var, "0", to),
        }
        if var.size <= SHORT
            && let Some(last) = self.loops.last_mut()
        {
            self.lines.insert(start, "#pragma GCC unroll 1".to_owned());
            last.iterations = i64::MAX;
        }
    }
    /// Ends the loop over the last variable.
    ///
    /// A short loop in another one, with loads that depend on a choice, or in a branch of one, is not to be written out: GCC 12
    /// makes vectors of such loads of all iterations, and reads them all as the first one chooses. (It is not enough that functions
    /// with short loops get no vectors of straight-line code: these are vectors over iterations of the outer loop.)
    pub fn exit(&mut self) {
        self.leave();
        self.close();
        let Some(last) = self.loops.pop() else { return };
        if self.depends_on_choice(last) && !self.loops.is_empty() {
            self.lines.insert(last.start, "#pragma GCC unroll 1".to_owned());
        }
    }
    /// Whether a loop is short and what it loads depends on a choice.
    pub(super) fn depends_on_choice(&self, l: Loop) -> bool {
        l.iterations <= SHORT && (l.in_branch || self.chosen_loads > l.chosen_loads)
    }
    /// Begins a choice with the branch where this holds; [`Writer::otherwise`] goes on with others.
    pub fn choose(&mut self, test: &str) {
        self.open(format!("if ({test}) {{"));
        self.branches += 1;
    }
    /// Ends a choice.
    pub fn end_choice(&mut self) {
        self.branches -= 1;
        self.close();
    }
    /// Takes the name of the last variable away.
    pub fn leave(&mut self) {
        self.names.pop();
    }
    /// How many expressions are known; what is learned later is forgotten by [`Writer::forget`].
    pub fn known(&self) -> usize {
        self.known.len()
    }
    /// Remembers the name of a value.
    pub fn know(&mut self, e: Expr, name: String) {
        self.known.push((e, name));
    }
    /// Whether the value has a name.
    pub fn knows(&self, e: &Expr) -> bool {
        self.known.iter().any(|(k, _)| k == e)
    }
    /// Forgets what was learned since then.
    pub fn forget(&mut self, since: usize) {
        self.known.truncate(since);
    }
    /// The mark that stands for the name of a buffer.
    pub fn buffer(&mut self, buffer: BufferId) -> String {
        if !self.used.contains(&buffer) {
            self.used.push(buffer);
        }
        format!("{MARK}{buffer}{MARK_END}")
    }
    /// The element at a position of a buffer. What all positions of the buffer have in common is left to the caller of the
    /// function, so that steps which differ in where they read and write share one.
    fn element(&mut self, buffer: BufferId, at: &Index) -> String {
        let constant = at.constant;
        let is_inside = (0..self.buffers[buffer].count()).contains(&constant);
        let offset = self.offsets.entry(buffer).or_insert(constant);
        *offset = if is_inside { constant.min(*offset) } else { 0 };
        if constant == 0 {
            let text = self.index(at);
            return format!("{}[{text}]", self.buffer(buffer));
        }
        let rest = Index { constant: 0, ..at.clone() };
        let text = if rest.terms.is_empty() { String::new() } else { self.index(&rest) };
        let name = self.buffer(buffer);
        let number = self.used.iter().position(|b| *b == buffer).unwrap_or_default();
        format!("{name}[{text}{CONSTANT}{number},{constant}{MARK_END}]")
    }
    /// How far behind the start of a buffer the pointer to it stands that the function takes.
    pub fn offset(&self, buffer: BufferId) -> i64 {
        self.offsets.get(&buffer).copied().unwrap_or_default()
    }
    /// All lines. Positions in a buffer count from its [`Writer::offset`].
    pub fn body(&self) -> String {
        let lines = self.lines.join("\n");
        let mut parts = lines.split(CONSTANT);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (constant, rest) = part.split_once(MARK_END).unwrap_or(("", part));
            let (number, constant) = constant.split_once(',').unwrap_or_default();
            let offset =
                number.parse().ok().and_then(|i: usize| self.used.get(i)).map_or(0, |&b| self.offset(b));
            match constant.parse::<i64>().unwrap_or_default() - offset {
                n if out.ends_with('[') => _ = write!(out, "{n}"),
                0 => {}
                n if n < 0 => _ = write!(out, " - {}", n.unsigned_abs()),
                n => _ = write!(out, " + {n}"),
            }
            out.push_str(rest);
        }
        out
    }
    /// Stores a value at a position of a buffer.
    pub fn store(&mut self, to: BufferId, at: &Index, value: &Expr) {
        let value = self.value(value).text;
        let element = self.element(to, at);
        let value = match self.buffers[to].dtype {
            dtype @ (DType::F16 | DType::BF16) => format!("mithril_to_{}({value})", dtype.short()),
            _ => value,
        };
        self.line(format!("{element} = {value};"));
    }

    /// A value that is needed several times, under a name: the one element of a buffer that is not in memory.
    pub fn constant(&mut self, to: BufferId, value: &Expr) {
        let dtype = self.buffers[to].dtype;
        let text = self.value(value).text;
        let path = self.buffers[to].name.rsplit('.').next().unwrap_or_default();
        let stem: String = path.chars().filter(char::is_ascii_alphabetic).collect();
        let name = self.fresh(if stem.is_empty() { "value" } else { &stem });
        self.line(format!("const {} {name} = {text};", computed_type(dtype)));
        self.know(Expr::Load { from: to, at: vec![Index::default()], stored: dtype }, name);
    }

    /// The text of an index.
    pub fn index(&mut self, index: &Index) -> String {
        let mut out = String::new();
        for (atom, factor) in &index.terms {
            let (text, is_sum) = self.atom(atom);
            let minus = *factor < 0;
            out.push_str(match (out.is_empty(), minus) {
                (true, true) => "-",
                (true, false) => "",
                (false, true) => " - ",
                (false, false) => " + ",
            });
            match factor.unsigned_abs() {
                1 if is_sum && minus => _ = write!(out, "({text})"),
                1 => out.push_str(&text),
                n if is_sum => _ = write!(out, "({text}) * {n}"),
                n => _ = write!(out, "{text} * {n}"),
            }
        }
        match index.constant {
            n if out.is_empty() => out = n.to_string(),
            0 => {}
            n if n < 0 => _ = write!(out, " - {}", n.unsigned_abs()),
            n => _ = write!(out, " + {n}"),
        }
        out
    }
    /// The text of an atom, and whether it is more than a product's factor may be.
    fn atom(&mut self, atom: &Atom) -> (String, bool) {
        match atom {
            Atom::Var(var) => {
                let name = self.names.iter().rev().find(|(v, _)| v == var).map(|(_, n)| n.clone());
                (name.unwrap_or_else(|| format!("v{}", var.id)), false)
            }
            Atom::Div(inner, by) | Atom::Mod(inner, by) => {
                let is_div = matches!(atom, Atom::Div(..));
                let text = self.index(inner);
                if inner.range().0 < 0 {
                    let name = if is_div { "mithril_floor_div" } else { "mithril_modulo" };
                    return (format!("{name}({text}, {by})"), false);
                }
                let is_simple = text.bytes().all(|b| b.is_ascii_alphanumeric());
                let text = if is_simple { text } else { format!("({text})") };
                (format!("{text} {} {by}", if is_div { '/' } else { '%' }), true)
            }
            Atom::Value { value, size, .. } if self.is_within(value, *size) => {
                let value = self.value(value);
                (value.text, !value.is_atom)
            }
            Atom::Value { value, size, wraps } => {
                let value = self.value(value).text;
                self.checks = true;
                let name = if *wraps { "mithril_wrapped_index" } else { "mithril_index" };
                (format!("{name}({value}, {size}, error)"), false)
            }
        }
    }

    /// Whether a value is an element of a constant whose elements all are indices of an axis of this size.
    fn is_within(&self, value: &Expr, size: i64) -> bool {
        match value {
            Expr::Cast(x, to) if *to == DType::I64 && x.dtype().kind() == Kind::Int => {
                self.is_within(x, size)
            }
            Expr::Load { from, .. } => match &self.buffers[*from].place {
                Place::Constant(tensor) if tensor.dtype().kind() == Kind::Int => (0..tensor.len())
                    .all(|i| matches!(tensor.get(i), Scalar::Int(n) if (0..i128::from(size)).contains(&n))),
                _ => false,
            },
            _ => false,
        }
    }

    /// The text of a value; statements that it needs are written before.
    pub fn value(&mut self, e: &Expr) -> Value {
        if let Some((_, name)) = self.known.iter().rev().find(|(k, _)| k == e) {
            return Value::atom(name.clone());
        }
        match e {
            Expr::Load { from, at, stored } => self.load(*from, at, *stored),
            Expr::Number(value, dtype) => number(*value, *dtype),
            Expr::Index(index) => {
                let text = self.index(index);
                Value { is_atom: text.bytes().all(|b| b.is_ascii_alphanumeric()), text }
            }
            Expr::Binary(op, a, b) => self.binary(*op, a, b),
            Expr::Apply { text, args, dtype } => self.apply(text, args, *dtype),
            Expr::Cast(x, to) => self.cast(x, *to),
            Expr::Select { when, yes, no } => self.select(when, yes, no),
            Expr::Reduce { .. } => {
                let name = self.reduce(e);
                Value::atom(name)
            }
        }
    }
    fn load(&mut self, from: BufferId, at: &[Index], stored: DType) -> Value {
        let buffer = &self.buffers[from];
        let position = buffer.position(at);
        let is_empty = buffer.count() == 0;
        let is_named = buffer.is_constant() && position != Index::default();
        if is_named {
            // Of one element, which has a name; an index is still checked.
            let only = self.value(&Expr::Load { from, at: vec![Index::default()], stored });
            return if position.reads() {
                let at = self.index(&position);
                Value::atom(format!("((void)({at}), {})", only.text))
            } else {
                only
            };
        }
        if is_empty {
            // An index into nothing: the check says so, and there is nothing to read.
            if position.reads() {
                let at = self.index(&position);
                self.line(format!("(void)({at});"));
            }
            return number(Scalar::Int(0), stored);
        }
        let text = self.element(from, &position);
        Value::atom(match stored {
            DType::F16 | DType::BF16 => format!("mithril_from_{}({text})", stored.short()),
            _ => text,
        })
    }
    /// The value under a name, if its text is long.
    pub(crate) fn bound(&mut self, e: &Expr, value: Value) -> Value {
        if value.is_atom && value.text.len() < 12 || matches!(e, Expr::Number(..)) {
            return value;
        }
        let name = self.fresh("t");
        self.line(format!("const {} {name} = {};", computed_type(e.dtype()), value.text));
        Value::atom(name)
    }
    /// An operand, which `is_again` if it is another operand too: compilers warn of integers that are compared with
    /// themselves, unless one of them has a name.
    fn other(&mut self, e: &Expr, is_again: bool) -> Value {
        let value = self.value(e);
        if !is_again || e.dtype().is_float() || matches!(e, Expr::Number(..)) {
            return value;
        }
        let name = self.fresh("t");
        self.line(format!("const {} {name} = {};", computed_type(e.dtype()), value.text));
        Value::atom(name)
    }
    fn binary(&mut self, op: Binary, a: &Expr, b: &Expr) -> Value {
        let dtype = a.dtype();
        let left = self.value(a);
        let right = self.other(b, a == b);
        match op.sign() {
            None => {
                let (left, right) = (self.bound(a, left), self.bound(b, right));
                let (l, r) = (left.operand(), right.operand());
                let sign = if op == Binary::Max { ">=" } else { "<=" };
                let is_nan = if dtype.is_float() { format!(" || {l} != {l}") } else { String::new() };
                Value::open(format!("{l} {sign} {r}{is_nan} ? {l} : {r}"))
            }
            Some(sign)
                if dtype.kind() == Kind::Int
                    && matches!(op, Binary::Add | Binary::Subtract | Binary::Multiply) =>
            {
                // Signed overflow is undefined in C; unsigned numbers wrap around.
                let t = c_type(dtype);
                let wide = if dtype.size() == 8 { "uint64_t" } else { "uint32_t" };
                let (l, r) = (left.operand(), right.operand());
                Value::atom(format!("({t})(({wide}){l} {sign} ({wide}){r})"))
            }
            Some(sign) => Value::open(format!("{} {sign} {}", left.operand(), right.operand())),
        }
    }
    fn apply(&mut self, text: &str, args: &[Expr], dtype: DType) -> Value {
        let parts = template::parts(text);
        let count = |i: usize| parts.iter().filter(|p| matches!(p, Part::Argument(n, _) if *n == i)).count();
        let mut values: Vec<Option<Value>> = Vec::new();
        for (i, arg) in args.iter().enumerate() {
            values.push(match count(i) {
                0 => None,
                1 => Some(self.other(arg, args[..i].contains(arg))),
                _ => {
                    let value = self.value(arg);
                    Some(self.bound(arg, value))
                }
            });
        }
        let operand = args.first().map_or(dtype, Expr::dtype);
        let mut out = String::new();
        for part in &parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Word(word) => out.push_str(&template::word(word, operand, dtype, self.form)),
                Part::Argument(i, stands_alone) => {
                    if let Some(Some(value)) = values.get(*i) {
                        self.chosen_loads += usize::from(out.contains('?') && value.text.contains('['));
                        out.push_str(&if *stands_alone { value.text.clone() } else { value.operand() });
                    }
                }
            }
        }
        match dtype.kind() {
            Kind::Int => Value::atom(format!("({})({out})", c_type(dtype))),
            _ if is_call(&out) => Value::atom(out),
            _ => Value::open(out),
        }
    }
    fn cast(&mut self, x: &Expr, to: DType) -> Value {
        let value = self.value(x);
        match to {
            DType::F16 | DType::BF16 => {
                let name = to.short();
                Value::atom(format!("mithril_from_{name}(mithril_to_{name}({}))", value.text))
            }
            DType::Bool => Value::open(format!("{} != 0", value.operand())),
            _ => Value::atom(format!("({}){}", c_type(to), value.operand())),
        }
    }
    /// Whether all tests pass, as C.
    pub fn tests(&mut self, when: &[Within]) -> String {
        self.compared(when, |number| number.to_string())
    }
    fn compared(&mut self, when: &[Within], bound: impl Fn(i64) -> String) -> String {
        let tests: Vec<String> = when.iter().map(|w| self.test(w, &bound)).collect();
        tests.join(" && ")
    }
    fn select(&mut self, when: &[Within], yes: &Expr, no: &Expr) -> Value {
        // What one side prepares must not be done for the other: it may read what does not exist.
        let start = self.lines.len();
        let since = self.known();
        self.indent += 1;
        self.branches += 1;
        let yes_value = self.value(yes);
        let yes_lines = self.lines.split_off(start);
        self.forget(since);
        let no_value = self.value(no);
        let no_lines = self.lines.split_off(start);
        self.forget(since);
        self.indent -= 1;
        self.branches -= 1;
        let reads = |value: &Value, lines: &[String]| {
            value.text.contains('[') || lines.iter().any(|line| line.contains('['))
        };
        let loads = [reads(&yes_value, &yes_lines), reads(&no_value, &no_lines)];
        self.chosen_loads += loads.into_iter().filter(|&reads| reads).count();
        let is_in_loop = loads.contains(&true) && !self.loops.is_empty();
        let test = if is_in_loop { self.compared(when, from_zero) } else { self.tests(when) };
        self.reads_zero |= is_in_loop;
        if yes_lines.is_empty() && no_lines.is_empty() {
            return Value::open(format!("{test} ? {} : {}", yes_value.operand(), no_value.operand()));
        }
        let name = self.fresh("t");
        self.line(format!("{} {name};", computed_type(yes.dtype())));
        self.open(format!("if ({test}) {{"));
        self.lines.extend(yes_lines);
        self.line(format!("{name} = {};", yes_value.text));
        self.indent -= 1;
        self.open("} else {");
        self.lines.extend(no_lines);
        self.line(format!("{name} = {};", no_value.text));
        self.close();
        Value::atom(name)
    }
    fn test(&mut self, w: &Within, bound: &impl Fn(i64) -> String) -> String {
        let (low, high) = w.index.range();
        let text = self.index(&w.index);
        let is_simple = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let text = if is_simple { text } else { format!("({text})") };
        let mut tests = Vec::new();
        if low < w.from {
            tests.push(format!("{text} >= {}", bound(w.from)));
        }
        if high >= w.to {
            tests.push(format!("{text} < {}", bound(w.to)));
        }
        tests.join(" && ")
    }
}

/// A number as [`ZERO`] and the rest.
fn from_zero(number: i64) -> String {
    match number {
        0 => ZERO.to_owned(),
        1.. => format!("{ZERO} + {number}"),
        _ => format!("{ZERO} - {}", number.unsigned_abs()),
    }
}

/// Whether a text is one call: a name and its brackets.
fn is_call(text: &str) -> bool {
    let Some(open) = text.find('(') else { return false };
    if !text[..open].bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') || open == 0 {
        return false;
    }
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 && i > open {
            return i + 1 == text.len();
        }
    }
    false
}

/// The C type in which values are computed.
pub fn computed_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        other => c_type(crate::c::ir::expr::arithmetic(other)),
    }
}

/// A number as a C constant of a dtype.
pub fn number(value: Scalar, dtype: DType) -> Value {
    let text = match (dtype, dtype.kind()) {
        (DType::F32 | DType::F16 | DType::BF16, _) => match value.f64() as f32 {
            x if x.is_finite() => format!("{x:?}f"),
            x => special(f64::from(x)),
        },
        (_, Kind::Float) => match value.f64() {
            x if x.is_finite() => format!("{x:?}"),
            x => special(x),
        },
        (_, Kind::Bool) => (if value.bool() { "true" } else { "false" }).to_owned(),
        (DType::I64, _) => match value.i64() {
            i64::MIN => "INT64_MIN".to_owned(),
            n if n.unsigned_abs() > 1 << 30 => format!("INT64_C({n})"),
            n => n.to_string(),
        },
        (DType::U64, _) => match value.int() as u64 {
            n if n > 1 << 30 => format!("UINT64_C({n})"),
            n => format!("{n}u"),
        },
        (DType::U32, _) => format!("{}u", value.i64() as u32),
        (_, Kind::Int) => match value.i64() {
            n if n == i64::from(i32::MIN) => "INT32_MIN".to_owned(),
            n => n.to_string(),
        },
    };
    Value { is_atom: !text.starts_with('-'), text }
}

fn special(x: f64) -> String {
    (if x.is_nan() {
        "NAN"
    } else if x > 0.0 {
        "INFINITY"
    } else {
        "-INFINITY"
    })
    .to_owned()
}
