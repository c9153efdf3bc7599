//! A loop nest as the body of a C function: which loops become one, what is computed before an inner loop, and which
//! sums run side by side.

use std::cell::Cell;

use crate::c::analysis::affine::flat_loads;
use crate::c::analysis::collapse::{collapse, collapse_all};
use crate::c::analysis::contraction::is_zero;
use crate::c::analysis::cost::{LEAST_WORK, work};
use crate::c::analysis::split::{split, split_reductions};
use crate::c::emit::iterations::{MOST_CHOICES, common_divisor, inside, is_choice, pieces, uneven_divisor};
use crate::c::ir::expr::{Atom, BufferId, Expr, Index, ReduceOp, Var, Within, flat, non_unit};
use crate::c::ir::program::{KernelBuffers, Nest, Rows};
use crate::c::syntax::expr::{Writer, computed_type};
use crate::c::syntax::reduce::{PART, identity, is_long_sum};

/// Elements of an output that are summed up side by side where their terms do not lie one after the other.
const BLOCK: i64 = 64;

/// Terms along the last axis of a window, at most, and steps between windows, whose places of extremes are found side by
/// side.
const LARGEST_WINDOW: i64 = 7;

const LARGEST_STEP: i64 = 3;

/// Turns of an innermost loop from which on it is left as it is, for vectors.
const FEWEST_LANES: i64 = 8;

/// Copies of inner loops at most, one for each outcome of the tests around them.
const MOST_COPIES: usize = 24;

/// Elements of each iteration of a loop from which on its parts are divided between threads one by one.
const LEAST_PART: i64 = 16;

/// Steps of a loop that keep several threads busy.
const MANY_PARTS: i64 = 16;

/// Writes a nest that fills what lies at these coordinates; its first loop is divided between threads if `may_split` and if
/// that is worth it. Whether it was.
pub fn write(
    writer: &mut Writer<'_>,
    buffers: &KernelBuffers,
    (nest, coordinates): (&Nest, &[Index]),
    next_var: u32,
    may_split: bool,
) -> bool {
    let next = Cell::new(next_var);
    let mut vars = non_unit(&nest.vars);
    let mut at = buffers[nest.to].position(coordinates);
    let mut value = flat_loads(&nest.value, buffers);
    // `Load` holds flat positions from here on.
    value = split_reductions(&value, &next);
    split(&mut vars, &mut value, &next, &mut |var, parts| {
        at = at.substitute(&|v| if v == var { parts.clone() } else { Index::var(v) });
    });
    let mut next = next.get();
    if let Some(blocks) = buffers[nest.to].blocks {
        // What lies together is walked through together: the lanes of a block are the innermost loop.
        split_channels(&mut vars, &mut at, &mut value, blocks.lanes, &mut next);
        value = of_blocks(&value, blocks.lanes);
        vars.sort_by_key(|&v| std::cmp::Reverse(at.factor(v)));
    }
    collapse(&mut vars, &mut at, &mut value, &mut next);
    let split = may_split && work(nest) >= LEAST_WORK && vars.first().is_some_and(|v| v.size >= 4);
    Levels { writer, to: nest.to, at, vars, next, split, copies: MOST_COPIES }.level(0, &value);
    split
}

/// Splits the variable that counts channels, of which the position of what is stored has the quotient by `lanes`.
fn split_channels(vars: &mut Vec<Var>, at: &mut Index, value: &mut Expr, lanes: i64, next: &mut u32) {
    let Some(i) = vars.iter().position(|&v| at.factor(v).is_none() && v.size % lanes == 0) else { return };
    let (var, block, lane) =
        (vars[i], Var { id: *next, size: vars[i].size / lanes }, Var { id: *next + 1, size: lanes });
    *next += 2;
    let index = |v: Var| if v == var { Index::var(block) * lanes + Index::var(lane) } else { Index::var(v) };
    *at = at.substitute(&index);
    *value = value.substitute(&index);
    vars.splice(i..=i, [block, lane].into_iter().filter(|v| v.size > 1));
}

/// The expression with tests of blocks in place of those tests of channels that all lanes of a block pass or fail together.
fn of_blocks(e: &Expr, lanes: i64) -> Expr {
    let test = |test: &Within| {
        let inner: Index = test.index.terms.iter().filter(|(_, factor)| factor % lanes != 0).fold(
            Index::number(test.index.constant.rem_euclid(lanes)),
            |sum, (atom, factor)| match atom {
                Atom::Var(v) => sum + Index::var(*v) * *factor,
                _ => sum + Index::number(lanes),
            },
        );
        let (low, high) = inner.range();
        let (from, to) = test.index.range();
        let is_even = |bound: i64, limit: bool| limit || bound.rem_euclid(lanes) == 0;
        if (0..lanes).contains(&low)
            && (0..lanes).contains(&high)
            && is_even(test.from, test.from <= from)
            && is_even(test.to, test.to > to)
        {
            return Within { index: test.index.clone() - inner, ..*test };
        }
        test.clone()
    };
    match e.map(&Index::clone, &|child| of_blocks(child, lanes)) {
        Expr::Select { when, yes, no } => Expr::Select { when: when.iter().map(test).collect(), yes, no },
        e => e,
    }
}

/// Names the variables that `part` counts through, as far as they are used; whether there are any.
fn name_vars(writer: &mut Writer<'_>, vars: &[Var], nests: &[(Index, Expr)]) -> bool {
    let (mut inner, mut is_named) = (1, false);
    for (i, &var) in vars.iter().enumerate().rev() {
        let is_used = nests.iter().any(|(at, value)| {
            let mut is_read = false;
            at.each_var(&mut |v| is_read |= v == var);
            value.each_free_var(&mut |v| is_read |= v == var);
            is_read
        });
        if is_used && var.size > 1 {
            let quotient = if inner == 1 { "part".to_owned() } else { format!("part / {inner}") };
            let text = if i == 0 { quotient } else { format!("{quotient} % {}", var.size) };
            let name = writer.fresh("part");
            writer.line(format!("const int64_t {name} = {text};"));
            writer.name(var, name);
            is_named = true;
        }
        inner *= var.size;
    }
    is_named
}

/// Writes nests row by row: whether the first loop over rows is divided between threads, as in [`write`], and whether the
/// number of the part is needed.
pub fn write_rows(
    writer: &mut Writer<'_>,
    buffers: &KernelBuffers,
    rows: &Rows,
    next_var: u32,
    may_split: bool,
) -> (bool, bool) {
    let next = Cell::new(next_var);
    let mut inner = Vec::new();
    let mut nests = Vec::new();
    for (nest, at) in &rows.nests {
        let mut vars: Vec<Var> =
            nest.vars.iter().copied().filter(|v| v.size != 1 && !rows.vars.contains(v)).collect();
        let mut at = buffers[nest.to].position(at);
        let mut value = split_reductions(&flat_loads(&nest.value, buffers), &next);
        split(&mut vars, &mut value, &next, &mut |var, parts| {
            at = at.substitute(&|v| if v == var { parts.clone() } else { Index::var(v) });
        });
        inner.push(vars);
        nests.push((at, value));
    }
    let mut next = next.get();
    let (part_vars, outer) = rows.vars.split_at(rows.part_vars);
    let knows_part = name_vars(writer, part_vars, &nests);
    let mut outer = non_unit(outer);
    collapse_all(&mut outer, &mut nests, &mut next);
    // Threads divide the longest loop.
    outer.sort_by_key(|v| std::cmp::Reverse(v.size.min(MANY_PARTS)));
    let total = rows.nests.iter().map(|(nest, _)| work(nest)).fold(0, i64::saturating_add);
    let split = may_split && total >= LEAST_WORK && outer.first().is_some_and(|v| v.size >= 4);
    for (i, &var) in outer.iter().enumerate() {
        if i == 0 && split {
            writer.enter_part(var);
        } else {
            writer.enter(var);
        }
    }
    let since = writer.known();
    for (((nest, _), mut vars), (mut at, mut value)) in rows.nests.iter().zip(inner).zip(nests) {
        if buffers[nest.to].is_constant() {
            writer.constant(nest.to, &value);
            continue;
        }
        collapse(&mut vars, &mut at, &mut value, &mut next);
        Levels { writer: &mut *writer, to: nest.to, at, vars, next, split: false, copies: MOST_COPIES }
            .level(0, &value);
    }
    writer.forget(since);
    for _ in &outer {
        writer.exit();
    }
    (split, knows_part)
}

struct Levels<'w, 'a> {
    writer: &'w mut Writer<'a>,
    to: BufferId,
    /// Position of the element that is stored.
    at: Index,
    vars: Vec<Var>,
    next: u32,
    /// Whether the first loop is divided between threads.
    split: bool,
    /// How many copies of inner loops may still be made.
    copies: usize,
}

impl Levels<'_, '_> {
    /// Writes the loops from number `depth` on.
    fn level(&mut self, depth: usize, value: &Expr) {
        let Some(&var) = self.vars.get(depth) else {
            self.writer.store(self.to, &self.at, value);
            return;
        };
        if self.decided(depth, value).is_some() {
            self.choices(depth, value);
            return;
        }
        let split = self.split && depth == 0;
        if let Some(bounds) = self.bounds(depth, value) {
            for part in bounds.windows(2) {
                self.segment(depth, value, part[0], part[1]);
            }
            return;
        }
        if !split && let Some(by) = uneven_divisor(value, var) {
            self.split_with_tail(depth, value, by);
            return;
        }
        let inside = if split { None } else { inside(value, var) };
        let since = self.writer.known();
        let inner = self.vars[depth..].to_vec();
        self.hoist(value, &inner);
        let is_last = depth + 1 == self.vars.len();
        if is_last
            && inside.is_none()
            && let Some(sums) = self.side_by_side(value, var)
        {
            self.blocks(value, var, &sums, split);
        } else {
            let by = if split { None } else { common_divisor(value, var) };
            if let Some(by) = by {
                for remainder in 0..by {
                    self.every(depth, value, by, remainder);
                }
            } else if let Some((from, to)) = inside {
                for (from, to) in [(0, from), (from, to), (to, var.size)] {
                    self.segment(depth, value, from, to);
                }
            } else {
                if split {
                    self.writer.enter_part(var);
                } else if is_last && var.size >= FEWEST_LANES && var.size % 4 == 0 && !value.reduces() {
                    self.writer.enter_lanes(var, None, &var.size.to_string());
                } else {
                    self.writer.enter(var);
                }
                self.level(depth + 1, value);
                self.writer.exit();
            }
        }
        self.writer.forget(since);
    }
    /// Where the parts of a loop begin, and where the last one ends, if each is to be a loop of its own.
    fn bounds(&mut self, depth: usize, value: &Expr) -> Option<Vec<i64>> {
        let var = self.vars[depth];
        let split = self.split && depth == 0;
        let of_iteration = self.vars[depth + 1..].iter().fold(1, |n: i64, v| n.saturating_mul(v.size));
        if (!split || of_iteration >= LEAST_PART)
            && let Some(bounds) = pieces(value, var)
        {
            return Some(bounds);
        }
        let is_written_out = !split && self.copies >= MOST_CHOICES as usize && is_choice(value, var);
        is_written_out.then(|| {
            self.copies -= (var.size - 1) as usize;
            (0..=var.size).collect()
        })
    }
    /// Writes the loops from number `depth` on once for each outcome of the tests that they do not change.
    fn choices(&mut self, depth: usize, value: &Expr) {
        let mut rest = value.clone();
        let mut is_first = true;
        let since = self.writer.known();
        while let Some(when) = self.decided(depth, &rest) {
            self.copies -= 1;
            let test = self.writer.tests(&when);
            if is_first {
                self.writer.choose(&test);
            } else {
                self.writer.otherwise(&format!("if ({test}) "));
            }
            is_first = false;
            self.level(depth, &chosen(&rest, &when, true));
            self.writer.forget(since);
            rest = chosen(&rest, &when, false);
        }
        self.writer.otherwise("");
        self.level(depth, &rest);
        self.writer.forget(since);
        self.writer.end_choice();
    }
    /// Tests of a choice that no loop from number `depth` on changes, so that they are made once in front of these.
    fn decided(&self, depth: usize, value: &Expr) -> Option<Vec<Within>> {
        let inner = &self.vars[depth..];
        if depth == 0 || self.copies == 0 || inner.iter().fold(1, |n: i64, v| n.saturating_mul(v.size)) < 8 {
            return None;
        }
        let mut decided = None;
        let mut bound = inner.to_vec();
        value.walk(&mut |e| {
            if let Expr::Reduce { vars, .. } = e {
                bound.extend(vars);
            }
        });
        value.walk(&mut |e| {
            if let Expr::Select { when, .. } = e
                && decided.is_none()
                && when
                    .iter()
                    .all(|test| !test.index.reads() && !bound.iter().any(|&v| reads(&test.index, v)))
            {
                decided = Some(when.clone());
            }
        });
        decided
    }
    /// Writes every `by`th iteration of a loop, from `remainder` on: there, remainders are numbers.
    fn every(&mut self, depth: usize, value: &Expr, by: i64, remainder: i64) {
        let (var, old) = (self.vars[depth], self.at.clone());
        let part = Var { id: self.next, size: var.size / by };
        self.next += 1;
        let index =
            |v: Var| if v == var { Index::var(part) * by + Index::number(remainder) } else { Index::var(v) };
        self.vars[depth] = part;
        self.at = self.at.substitute(&index);
        let value = narrowed(&value.substitute(&index), &mut self.next);
        self.level(depth, &value);
        self.vars[depth] = var;
        self.at = old;
    }
    /// Writes a loop as one over quotients by `by` with one over remainders inside, and the iterations that are left.
    fn split_with_tail(&mut self, depth: usize, value: &Expr, by: i64) {
        let (var, old) = (self.vars[depth], self.at.clone());
        let whole = var.size / by * by;
        let [quotient, remainder] =
            [(0, whole / by), (1, by)].map(|(i, size)| Var { id: self.next + i, size });
        self.next += 2;
        let number = Index::var(quotient) * by + Index::var(remainder);
        let index = |v: Var| if v == var { number.clone() } else { Index::var(v) };
        self.vars.splice(depth..=depth, [quotient, remainder]);
        self.at = self.at.substitute(&index);
        self.level(depth, &value.substitute(&index));
        self.vars.splice(depth..=depth + 1, [var]);
        self.at = old;
        self.segment(depth, value, whole, var.size);
    }
    /// Writes a part of a loop: there, tests that are always passed need not be made.
    fn segment(&mut self, depth: usize, value: &Expr, from: i64, to: i64) {
        if from >= to {
            return;
        }
        let (vars, at) = (self.vars.clone(), self.at.clone());
        let var = vars[depth];
        let part = Var { id: self.next, size: to - from };
        self.next += 1;
        let index = |v: Var| if v == var { Index::var(part) + Index::number(from) } else { Index::var(v) };
        self.at = self.at.substitute(&index);
        let mut value = value.substitute(&index);
        let mut inner = self.vars.split_off(depth);
        inner[0] = part;
        inner = non_unit(&inner);
        collapse(&mut inner, &mut self.at, &mut value, &mut self.next);
        self.vars.extend(inner);
        self.level(depth, &value);
        self.vars = vars;
        self.at = at;
    }
    /// Computes the reductions that depend on none of the inner variables.
    fn hoist(&mut self, e: &Expr, inner: &[Var]) {
        match e {
            Expr::Reduce { .. } => {
                if !self.writer.knows(e) && !depends(e, inner) {
                    let name = self.writer.value(e).text;
                    self.writer.know(e.clone(), name);
                }
            }
            // Only the chosen side may be computed.
            Expr::Select { .. } => {}
            _ => e.children().into_iter().for_each(|child| self.hoist(child, inner)),
        }
    }
    /// The reductions of `value` whose terms lie apart while those of neighbours along `var` lie together.
    fn side_by_side(&self, value: &Expr, var: Var) -> Option<Vec<Expr>> {
        if var.size < 8 {
            return None;
        }
        let mut sums = Vec::new();
        outer_reductions(value, &mut |e| {
            if !self.writer.knows(e) && !sums.contains(e) {
                sums.push(e.clone());
            }
        });
        let fits = |e: &Expr| {
            let Expr::Reduce { op, vars, body } = e else { return false };
            let Some(&last) = vars.last() else { return false };
            if vars.iter().any(|v| v.size == 0) || body.reduces() {
                return false;
            }
            // The place of an extreme in a small window is not a vector operation otherwise.
            let is_place = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
            let most = if is_place && last.size <= LARGEST_WINDOW { LARGEST_STEP } else { 1 };
            let (mut is_straight, mut is_apart) = (true, false);
            body.walk(&mut |e| {
                for index in e.indices() {
                    let factor = index.factor(var).filter(|f| (0..=most).contains(f));
                    is_straight &= factor.is_some();
                    if factor.is_some_and(|f| f > 0) && matches!(e, Expr::Load { .. }) {
                        is_apart |= index.factor(last).is_none_or(|f| f != 0);
                    }
                }
            });
            is_straight && is_apart
        };
        (!sums.is_empty() && sums.iter().all(fits)).then_some(sums)
    }
    /// Loops over blocks of `var`; inside of one, the sums of all its elements grow together.
    fn blocks(&mut self, value: &Expr, var: Var, sums: &[Expr], split: bool) {
        let width = BLOCK.min(var.size);
        let parts = (var.size + width - 1) / width;
        // A single block needs no loop.
        let is_one = width == var.size && !split;
        let (block, lane) = (Var { id: self.next, size: var.size }, Var { id: self.next + 1, size: width });
        self.next += 2;
        let (from, to) = if split {
            let part = |t: &str| format!("{t} * {parts} / threads * {width}");
            (part("thread"), part("(thread + 1)"))
        } else {
            ("0".to_owned(), var.size.to_string())
        };
        let start = if is_one { String::new() } else { self.writer.fresh("block") };
        if !is_one {
            self.writer
                .open(format!("for (int64_t {start} = {from}; {start} < {to}; {start} += {width}) {{"));
        }
        let count = if var.size % width == 0 {
            width.to_string()
        } else {
            let count = self.writer.fresh("count");
            let rest = format!("{} - {start}", var.size);
            self.writer.line(format!("const int64_t {count} = {rest} < {width} ? {rest} : {width};"));
            count
        };
        let first = if is_one { Index::number(0) } else { Index::var(block) };
        self.writer.name(block, start);
        let index = |v: Var| if v == var { first.clone() + Index::var(lane) } else { Index::var(v) };
        let since = self.writer.known();
        for sum in sums {
            let name = if is_long_sum(sum) {
                self.long_sums(sum, lane, &count, &index)
            } else {
                self.sums(sum, lane, &count, &index)
            };
            self.writer.know(sum.substitute(&index), name);
        }
        let (to, at, value) = (self.to, self.at.substitute(&index), value.substitute(&index));
        self.lanes(lane, &count, |w, _| w.store(to, &at, &value));
        self.writer.forget(since);
        self.writer.leave();
        if !is_one {
            self.writer.close();
        }
    }
    /// The reductions of a block; the name of one.
    fn sums(&mut self, sum: &Expr, lane: Var, count: &str, index: &dyn Fn(Var) -> Index) -> String {
        let Expr::Reduce { op, vars, body } = sum else { return String::new() };
        let is_place = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
        let name = self.writer.fresh(match op {
            ReduceOp::ArgMax | ReduceOp::ArgMin => "positions",
            ReduceOp::Max => "largest",
            ReduceOp::Min => "smallest",
            _ => "sums",
        });
        let (t, first) = (computed_type(sum.dtype()), identity(*op, body.dtype()).text);
        self.writer.line(array(t, &name, lane));
        self.lanes(lane, count, |w, l| w.line(format!("{name}[{l}] = {first};")));
        if is_place {
            self.places(sum, &name, lane, count, index);
            return format!("{name}[lane]");
        }
        let open = non_unit(vars);
        for &v in &open {
            self.writer.enter(v);
        }
        self.terms(*op, &name, &body.substitute(index), lane, count);
        for _ in &open {
            self.writer.exit();
        }
        format!("{name}[lane]")
    }
    /// The positions of the first extreme of each lane, or of its first NaN.
    fn places(&mut self, e: &Expr, name: &str, lane: Var, count: &str, index: &dyn Fn(Var) -> Index) {
        let Expr::Reduce { op, vars, body } = e else { return };
        let (best, t) = (self.writer.fresh("best"), computed_type(body.dtype()));
        let (extreme, sign) =
            if *op == ReduceOp::ArgMax { (ReduceOp::Max, '>') } else { (ReduceOp::Min, '<') };
        let first = identity(extreme, body.dtype()).text;
        self.writer.line(array(t, &best, lane));
        self.lanes(lane, count, |w, l| w.line(format!("{best}[{l}] = {first};")));
        let open = non_unit(vars);
        for &v in &open {
            self.writer.enter(v);
        }
        let sizes: Vec<i64> = vars.iter().map(|v| v.size).collect();
        let at: Vec<Index> = vars.iter().map(|&v| Index::var(v)).collect();
        let (body, position) = (body.substitute(index), flat(&at, &sizes));
        self.lanes(lane, count, |w, l| {
            let value = w.value(&body).text;
            let position = w.index(&position);
            let is_nan = if body.dtype().is_float() {
                format!(" || (next != next && {best}[{l}] == {best}[{l}])")
            } else {
                String::new()
            };
            w.line(format!("const {t} next = {value};"));
            w.line(format!("const bool is_better = next {sign} {best}[{l}]{is_nan};"));
            w.line(format!("{best}[{l}] = is_better ? next : {best}[{l}];"));
            w.line(format!("{name}[{l}] = is_better ? {position} : {name}[{l}];"));
        });
        for _ in &open {
            self.writer.exit();
        }
    }
    /// As [`Levels::sums`], of many terms: in parts, which are summed up in double.
    fn long_sums(&mut self, sum: &Expr, lane: Var, count: &str, index: &dyn Fn(Var) -> Index) -> String {
        let Expr::Reduce { op, vars, body } = sum else { return String::new() };
        let (total, part) = (self.writer.fresh("totals"), self.writer.fresh("parts"));
        let t = computed_type(sum.dtype());
        self.writer.line(array("double", &total, lane));
        self.lanes(lane, count, |w, l| w.line(format!("{total}[{l}] = 0;")));
        let open = non_unit(vars);
        let Some((&last, outer)) = open.split_last() else { return String::new() };
        for &v in outer {
            self.writer.enter(v);
        }
        self.writer.enter_parts(last, PART, |w| {
            w.line(array(t, &part, lane));
            w.line(format!("for (int64_t lane = 0; lane < {count}; lane++) {part}[lane] = 0;"));
        });
        self.terms(*op, &part, &body.substitute(index), lane, count);
        self.writer.exit();
        self.lanes(lane, count, |w, l| w.line(format!("{total}[{l}] += {part}[{l}];")));
        self.writer.close();
        for _ in outer {
            self.writer.exit();
        }
        format!("({t}){total}[lane]")
    }
    /// Brings a term into the sum of each lane.
    fn terms(&mut self, op: ReduceOp, name: &str, body: &Expr, lane: Var, count: &str) {
        self.lanes(lane, count, |w, l| {
            let value = w.value(body);
            let line = w.folded(op, &format!("{name}[{l}]"), body, value);
            w.line(line);
        });
    }
    fn lanes(&mut self, lane: Var, count: &str, f: impl FnOnce(&mut Writer<'_>, &str)) {
        self.writer.enter_lanes(lane, Some("lane"), count);
        f(self.writer, "lane");
        self.writer.exit();
    }
}

/// The expression where these tests pass, or do not.
fn chosen(e: &Expr, tests: &[Within], passes: bool) -> Expr {
    match e {
        Expr::Select { when, yes, no } if when == tests => {
            chosen(if passes { yes } else { no }, tests, passes)
        }
        _ => e.map(&Index::clone, &|child| chosen(child, tests, passes)),
    }
}

/// The declaration of an array with an element for each lane. Of one that says nothing of its alignment, GCC before 15 may
/// forget that it counts on 16 bytes, which ends the process (its bug 109780).
fn array(t: &str, name: &str, lane: Var) -> String {
    format!("_Alignas(64) {t} {name}[{}];", lane.size)
}

/// The expression with sums over no more than what passes their tests, as far as these are of one variable each.
fn narrowed(e: &Expr, next: &mut u32) -> Expr {
    let Expr::Reduce { op: ReduceOp::Sum, vars, body } = e else {
        let counter = Cell::new(*next);
        let new = e.map(&Index::clone, &|child| {
            let mut next = counter.get();
            let new = narrowed(child, &mut next);
            counter.set(next);
            new
        });
        *next = counter.get();
        return new;
    };
    let Expr::Select { when, no, .. } = &**body else { return e.clone() };
    let (mut vars, mut starts) = (vars.clone(), Vec::new());
    for var in vars.iter_mut().filter(|_| is_zero(no)) {
        let passing = when.iter().filter_map(|test| passes(test, *var));
        let (first, end) = passing.fold((0, var.size), |(a, b), (c, d)| (a.max(c), b.min(d)));
        if first < end && end - first < var.size {
            let part = Var { id: *next, size: end - first };
            *next += 1;
            starts.push((*var, Index::var(part) + Index::number(first)));
            *var = part;
        }
    }
    let index = |v: Var| {
        starts.iter().find(|(old, _)| *old == v).map_or_else(|| Index::var(v), |(_, new)| new.clone())
    };
    Expr::Reduce { op: ReduceOp::Sum, vars, body: Box::new(body.substitute(&index)) }
}

/// From where to where a test passes that depends on this variable alone, which has few values.
fn passes(test: &Within, var: Var) -> Option<(i64, i64)> {
    let factor = test.index.factor(var).filter(|f| *f != 0 && var.size <= BLOCK)?;
    let constant = (test.index.clone() - Index::var(var) * factor).known()?;
    let is_passed = |v: &i64| (test.from..test.to).contains(&(factor * v + constant));
    let first = (0..var.size).find(is_passed)?;
    let last = (0..var.size).rfind(is_passed)?;
    Some((first, last + 1))
}

/// Calls `f` with every reduction that is in no other one and in no choice.
fn outer_reductions(e: &Expr, f: &mut dyn FnMut(&Expr)) {
    match e {
        Expr::Reduce { .. } => f(e),
        _ => e.children().into_iter().for_each(|child| outer_reductions(child, f)),
    }
}

/// Whether an index is counted by a variable.
fn reads(index: &Index, var: Var) -> bool {
    let mut reads = false;
    index.each_var(&mut |v| reads |= v == var);
    reads
}

fn depends(e: &Expr, vars: &[Var]) -> bool {
    let mut depends = false;
    e.each_free_var(&mut |v| depends |= vars.contains(&v));
    depends
}
