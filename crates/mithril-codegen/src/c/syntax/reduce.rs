//! Reductions: the loops that reduce many values to one, and the text of a step.

use mithril_ir::{DType, Kind, Scalar};

use crate::c::ir::expr::{Expr, Index, ReduceOp, Var, flat, non_unit};
use crate::c::ir::program::Memory;
use crate::c::syntax::expr::{Value, Writer, computed_type, number};
use crate::c::syntax::template::c_type;

/// From so many elements on, the largest is found by ranks, and elements that are chosen are added up in vectors.
const MANY: i64 = 16;

/// Turns of a loop from which on it is worth it to add terms up side by side.
const WIDE: i64 = 8;

/// Terms from which on a sum is made of parts.
const LONG: i64 = 1024;

/// Terms of a part, at most.
pub const PART: i64 = 64;

/// The same, where they are added up side by side in 4 or more lanes.
const WIDE_PART: i64 = 512;

/// Elements of a row, at most, of which each has a sum of its own.
const ROW: i64 = 32;

/// Rows of a part, at most.
const ROWS: i64 = 256;

/// Turns of a loop below which 8 lanes are enough for quick terms: what lanes hold is added up one after the other.
const MANY_ITERATIONS: i64 = 256;

impl<M: Memory> Writer<'_, M> {
    /// Writes loops over these variables, and inside of them what `f` writes.
    fn each(&mut self, vars: &[Var], f: impl FnOnce(&mut Self)) {
        let (open, since) = (non_unit(vars), self.known());
        for &var in &open {
            self.enter(var);
        }
        f(self);
        for _ in &open {
            self.exit();
        }
        self.forget(since);
    }

    /// Writes the declaration of `next`: an integer that grows with the value, made by this function.
    fn next_rank(&mut self, integer: &str, function: &str, sign: &str, body: &Expr) {
        let value = self.value(body);
        let value = if sign.is_empty() { value.text } else { format!("{sign}{}", value.operand()) };
        self.line(format!("const {integer} next = {function}({value});"));
    }

    /// The largest or smallest of many floats, found among their ranks; its name.
    fn extreme(&mut self, op: ReduceOp, vars: &[Var], body: &Expr) -> String {
        let (name, rank) = (self.fresh(reduce_op_name(op)), self.fresh("rank"));
        let (t, suffix) = (computed_type(body.dtype()), body.dtype().short());
        let (integer, sign) = (rank_type(body.dtype()), sign_of(op));
        let function = format!("mithril_rank_{suffix}");
        self.line(format!("{integer} {rank} = {function}(-INFINITY);"));
        self.each(vars, |w| {
            w.next_rank(integer, &function, sign, body);
            w.line(format!("{rank} = next > {rank} ? next : {rank};"));
        });
        self.line(format!("const {t} {name} = {sign}mithril_ranked_{suffix}({rank});"));
        name
    }

    /// Where the first of the largest or smallest of many floats is: found in two passes, one for its rank and one for the
    /// least position of that rank, since both of these are vector instructions. Its name.
    fn place_of_extreme(&mut self, op: ReduceOp, vars: &[Var], body: &Expr) -> String {
        let (name, rank, first) = (self.fresh(reduce_op_name(op)), self.fresh("rank"), self.fresh("first"));
        let (integer, sign) = (rank_type(body.dtype()), sign_of(op));
        let function = format!("mithril_level_{}", body.dtype().short());
        let sizes: Vec<i64> = vars.iter().map(|v| v.size).collect();
        let count: i64 = sizes.iter().product();
        let at: Vec<Index> = vars.iter().map(|&v| Index::var(v)).collect();
        self.line(format!("{integer} {rank} = {function}(-INFINITY), {first} = {count};"));
        self.each(vars, |w| {
            w.next_rank(integer, &function, sign, body);
            w.line(format!("{rank} = next > {rank} ? next : {rank};"));
        });
        self.each(vars, |w| {
            w.next_rank(integer, &function, sign, body);
            let at = w.index(&flat(&at, &sizes));
            w.line(format!("const {integer} here = next == {rank} ? ({integer})({at}) : {count};"));
            w.line(format!("{first} = here < {first} ? here : {first};"));
        });
        self.line(format!("const int64_t {name} = {first};"));
        name
    }

    /// Computes a reduction into a variable; its name.
    pub(crate) fn reduce(&mut self, e: &Expr) -> String {
        let Expr::Reduce { op, vars, body } = e else { return String::new() };
        let inner = vars.last().map_or(0, |v| v.size);
        if matches!(op, ReduceOp::Max | ReduceOp::Min)
            && body.dtype().is_float()
            && inner >= MANY
            && vars.iter().all(|v| v.size > 0)
        {
            return self.extreme(*op, vars, body);
        }
        if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin)
            && may_be_read_twice(body)
            && is_long(vars, inner)
        {
            return self.place_of_extreme(*op, vars, body);
        }
        if is_long_sum(e) {
            return self.long_sum(vars, body);
        }
        let name = self.fresh(reduce_op_name(*op));
        let t = computed_type(e.dtype());
        self.line(format!("{t} {name} = {};", identity(*op, body.dtype()).text));
        if vars.iter().any(|v| v.size == 0) {
            return name;
        }
        let open = non_unit(vars);
        if let Some(sign) = sign_of_sum(*op, body)
            && !open.is_empty()
        {
            let since = self.known();
            self.fold(sign, &name, &open, body);
            self.forget(since);
            return name;
        }
        let best = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin).then(|| {
            let best = self.fresh("best");
            let extreme = if *op == ReduceOp::ArgMax { ReduceOp::Max } else { ReduceOp::Min };
            let start = identity(extreme, body.dtype()).text;
            self.line(format!("{} {best} = {start};", computed_type(body.dtype())));
            best
        });
        self.each(vars, |w| {
            let value = w.value(body);
            if let Some(best) = best {
                w.argument(*op, &name, &best, vars, body, value);
            } else {
                let text = w.folded(*op, &name, body, value);
                w.line(text);
            }
        });
        name
    }

    /// Loops over these variables that bring the terms of a sum or product of floats into `name`.
    fn fold(&mut self, sign: char, name: &str, vars: &[Var], body: &Expr) {
        let Some((&last, outer)) = vars.split_last() else { return };
        let (t, first) = (computed_type(body.dtype()), if sign == '+' { "0" } else { "1" });
        let in_lanes = is_row(body, last) && (!outer.is_empty() || last.size >= MANY && chooses(body));
        if in_lanes {
            // The terms of each place of a row by themselves: vectors need no order that C does not give them.
            let lanes = self.fresh("lanes");
            self.line(format!("_Alignas(64) {t} {lanes}[{}];", last.size));
            self.over_lanes(last, |w, l| w.line(format!("{lanes}[{l}] = {first};")));
            for &var in outer {
                self.enter(var);
            }
            self.over_lanes(last, |w, l| {
                let value = w.value(body).text;
                w.line(format!("{lanes}[{l}] {sign}= {value};"));
            });
            for _ in outer {
                self.exit();
            }
            self.enter(last);
            let l = self.index(&Index::var(last));
            self.line(format!("{name} {sign}= {lanes}[{l}];"));
            self.exit_in_any_order(sign, name, true);
        } else if outer.is_empty() {
            self.enter(last);
            self.terms(sign, name, last, body);
        } else {
            // A variable of its own for each loop: GCC 12 makes vectors over the iterations of a loop in which several terms
            // are added to one variable, and mixes up the terms.
            self.enter(vars[0]);
            let part = self.fresh("part");
            self.line(format!("{t} {part} = {first};"));
            self.fold(sign, &part, &vars[1..], body);
            self.line(format!("{name} {sign}= {part};"));
            self.exit();
        }
    }

    /// A loop over the elements of a row, which takes vectors of them.
    fn over_lanes(&mut self, var: Var, f: impl FnOnce(&mut Self, &str)) {
        self.enter_lanes(var, None, &var.size.to_string());
        let lane = self.index(&Index::var(var));
        f(self, &lane);
        self.exit();
    }

    /// Writes the terms of a sum or product of floats into the innermost loop, which is one over `var`, and ends the loop.
    /// Where they lie together in memory, the C compiler may take them in any order, as vectors need it.
    fn terms(&mut self, sign: char, name: &str, var: Var, body: &Expr) {
        let value = self.value(body).text;
        self.line(format!("{name} {sign}= {value};"));
        if lies_together(body, var) {
            self.exit_in_any_order(sign, name, calls(body) < 2);
        } else {
            self.exit();
        }
    }

    /// Ends the innermost loop, which brings terms into `name`, and lets the C compiler take them in any order. `is_quick`:
    /// few lanes do for them.
    fn exit_in_any_order(&mut self, sign: char, name: &str, is_quick: bool) {
        let Some(&this) = self.loops.last() else { return };
        self.exit();
        let has_loop = self.lines[this.start + 1..].iter().any(|line| line.trim_start().starts_with("for "));
        // A loop has one pragma, see `Writer::exit`.
        if this.iterations >= WIDE && !has_loop && !self.depends_on_choice(this) {
            let lanes = if is_quick && this.iterations < MANY_ITERATIONS { " simdlen(8)" } else { "" };
            let pragma = format!("#pragma omp simd reduction({sign} : {name}){lanes}");
            self.lines.insert(this.start, pragma);
        }
    }

    /// A sum of many floats: parts of it are summed up, and the parts in double, so that its error does not grow with
    /// the number of terms.
    fn long_sum(&mut self, vars: &[Var], body: &Expr) -> String {
        let t = computed_type(body.dtype());
        let total = self.fresh("total");
        self.line(format!("double {total} = 0;"));
        let since = self.known();
        self.totals(&total, &non_unit(vars), body);
        self.forget(since);
        if body.dtype() == DType::F64 { total } else { format!("({t}){total}") }
    }

    /// Loops over these variables that bring the terms of a long sum into `total`.
    fn totals(&mut self, total: &str, vars: &[Var], body: &Expr) {
        let Some((&last, outer)) = vars.split_last() else { return };
        let t = computed_type(body.dtype());
        let rows = outer.iter().fold(1_i64, |n, v| n.saturating_mul(v.size));
        if is_row(body, last) && rows <= ROWS {
            let part = self.fresh("part");
            self.open("{");
            self.line(format!("{t} {part} = 0;"));
            self.fold('+', &part, vars, body);
            self.line(format!("{total} += {part};"));
            self.close();
        } else if outer.is_empty() {
            let part = self.fresh("part");
            let terms = if lies_together(body, last) { WIDE_PART } else { PART };
            self.enter_parts(last, terms, |w| w.line(format!("{t} {part} = 0;")));
            self.terms('+', &part, last, body);
            self.line(format!("{total} += {part};"));
            self.close();
        } else {
            self.enter(vars[0]);
            let inner = self.fresh("total");
            self.line(format!("double {inner} = 0;"));
            self.totals(&inner, &vars[1..], body);
            self.line(format!("{total} += {inner};"));
            self.exit();
        }
    }

    /// A loop over parts of a variable, `start` at the beginning of each, and the loop over the `size` values of a part
    /// inside of it.
    pub fn enter_parts(&mut self, var: Var, size: i64, start: impl FnOnce(&mut Self)) {
        if var.size <= size {
            self.open("{");
            start(self);
            self.enter(var);
            return;
        }
        let from = self.fresh("from");
        self.open(format!("for (int64_t {from} = 0; {from} < {}; {from} += {size}) {{", var.size));
        start(self);
        let to = if var.size % size == 0 {
            format!("{from} + {size}")
        } else {
            let to = self.fresh("to");
            let all = var.size;
            self.line(format!("const int64_t {to} = {from} + {size} < {all} ? {from} + {size} : {all};"));
            to
        };
        self.enter_from(var, &from, &to);
    }
    /// The statement that brings a value into what has been folded so far.
    pub fn folded(&mut self, op: ReduceOp, name: &str, body: &Expr, value: Value) -> String {
        let dtype = body.dtype();
        match op {
            ReduceOp::Sum | ReduceOp::Prod if dtype.kind() == Kind::Int => {
                let sign = if op == ReduceOp::Sum { '+' } else { '*' };
                let wide = if dtype.size() == 8 { "uint64_t" } else { "uint32_t" };
                format!("{name} = ({})(({wide}){name} {sign} ({wide}){});", c_type(dtype), value.operand())
            }
            ReduceOp::Sum => format!("{name} += {};", value.text),
            ReduceOp::Prod => format!("{name} *= {};", value.text),
            ReduceOp::Max | ReduceOp::Min => {
                let value = self.bound(body, value).text;
                let sign = if op == ReduceOp::Max { '>' } else { '<' };
                let is_nan = if dtype.is_float() { format!(" || {value} != {value}") } else { String::new() };
                format!("{name} = {value} {sign} {name}{is_nan} ? {value} : {name};")
            }
            ReduceOp::Any => format!("{name} |= {} != 0;", value.operand()),
            ReduceOp::All => format!("{name} &= {} != 0;", value.operand()),
            ReduceOp::ArgMax | ReduceOp::ArgMin => String::new(),
        }
    }
    /// The first extreme, or the first NaN: nothing is larger than a NaN that was found.
    fn argument(&mut self, op: ReduceOp, name: &str, best: &str, vars: &[Var], body: &Expr, value: Value) {
        let value = self.bound(body, value).text;
        let sign = if op == ReduceOp::ArgMax { '>' } else { '<' };
        let at: Vec<Index> = vars.iter().map(|&v| Index::var(v)).collect();
        let sizes: Vec<i64> = vars.iter().map(|v| v.size).collect();
        let position = self.index(&flat(&at, &sizes));
        let is_nan = if body.dtype().is_float() {
            format!(" || ({value} != {value} && {best} == {best})")
        } else {
            String::new()
        };
        self.open(format!("if ({value} {sign} {best}{is_nan}) {{"));
        self.line(format!("{best} = {value};"));
        self.line(format!("{name} = {position};"));
        self.close();
    }
}

/// The sign between the terms of a sum or product of floats.
fn sign_of_sum(op: ReduceOp, body: &Expr) -> Option<char> {
    match op {
        ReduceOp::Sum if body.dtype().is_float() => Some('+'),
        ReduceOp::Prod if body.dtype().is_float() => Some('*'),
        _ => None,
    }
}

/// Whether a float is computed so quickly that it may be computed twice.
fn may_be_read_twice(body: &Expr) -> bool {
    let mut is_quick = body.dtype().is_float() && !body.reduces();
    body.walk(&mut |e| is_quick &= !matches!(e, Expr::Apply { .. } | Expr::Select { .. }));
    is_quick
}

/// Whether all that an expression reads is the same for all values of a variable, or lies close together in memory.
fn lies_together(body: &Expr, var: Var) -> bool {
    let mut is_together = true;
    body.walk(&mut |e| {
        is_together &= e.indices().iter().all(|index| index.factor(var).is_some_and(|f| f.abs() <= 4));
    });
    is_together
}

/// Whether the terms of a sum along a variable are a short row in memory.
fn is_row(body: &Expr, var: Var) -> bool {
    (WIDE..=ROW).contains(&var.size) && !body.reduces() && lies_together(body, var)
}

/// How many functions an expression calls.
fn calls(body: &Expr) -> usize {
    let mut calls = 0;
    body.walk(&mut |e| {
        calls += usize::from(!matches!(e, Expr::Load { .. } | Expr::Number(..) | Expr::Binary { .. }));
    });
    calls
}

/// Whether there is a choice in an expression.
fn chooses(body: &Expr) -> bool {
    let mut chooses = false;
    body.walk(&mut |e| {
        chooses |=
            matches!(e, Expr::Select { .. }) || matches!(e, Expr::Apply { text, .. } if text.contains('?'));
    });
    chooses
}

/// Whether there are many elements, but not more than an `int32_t` counts.
fn is_long(vars: &[Var], inner: i64) -> bool {
    let count = vars.iter().fold(1_i64, |n, v| n.saturating_mul(v.size));
    inner >= MANY && count > 0 && i32::try_from(count).is_ok()
}

/// Whether a reduction is a sum of so many floats that it is summed up in parts.
pub fn is_long_sum(e: &Expr) -> bool {
    let Expr::Reduce { op: ReduceOp::Sum, vars, body } = e else { return false };
    body.dtype().is_float() && vars.iter().fold(1_i64, |n, v| n.saturating_mul(v.size)) >= LONG
}

fn reduce_op_name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Prod => "product",
        ReduceOp::Max => "largest",
        ReduceOp::Min => "smallest",
        ReduceOp::Any => "any",
        ReduceOp::All => "all",
        ReduceOp::ArgMax | ReduceOp::ArgMin => "position",
    }
}

/// The result of a reduction without values.
pub fn identity(op: ReduceOp, dtype: DType) -> Value {
    let (low, high) = dtype.int_range().unwrap_or((0, 1));
    let value = match (op, dtype.is_float()) {
        (ReduceOp::Sum | ReduceOp::Any | ReduceOp::ArgMax | ReduceOp::ArgMin, _) => Scalar::Int(0),
        (ReduceOp::Prod | ReduceOp::All, _) => Scalar::Int(1),
        (ReduceOp::Max, true) => Scalar::Float(f64::NEG_INFINITY),
        (ReduceOp::Min, true) => Scalar::Float(f64::INFINITY),
        (ReduceOp::Max, false) => Scalar::Int(low),
        (ReduceOp::Min, false) => Scalar::Int(high),
    };
    let dtype = if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) { DType::I64 } else { dtype };
    number(value, dtype)
}

/// What the ranks of floats are kept in.
fn rank_type(dtype: DType) -> &'static str {
    if dtype == DType::F64 { "int64_t" } else { "int32_t" }
}

/// The sign before the numbers of which the largest is looked for: the smallest is the largest of the negated ones.
fn sign_of(op: ReduceOp) -> &'static str {
    if matches!(op, ReduceOp::Min | ReduceOp::ArgMin) { "-" } else { "" }
}
