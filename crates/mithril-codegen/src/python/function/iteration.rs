//! Writes loops: as `for` statements, or as functions of one iteration that `jax.lax.scan` runs.

use std::ops::Range;

use mithril_ir::graph::Node;
use mithril_ir::lowering::arg_mark;
use mithril_ir::ops::collective;
use mithril_ir::ops::host::HOST_CALL;
use mithril_ir::ops::joining::{CONCAT, STACK};
use mithril_ir::{Lit, NodeId, Result, ValueId};

use super::{FunctionWriter, INDENT, is_identifier};
use crate::python::foreach::Step;
use crate::python::loops::{Item, Loop, Parts, Read, Sequence};
use crate::python::release;
use crate::python::targets::Iteration;
use crate::python::template::{Expression, Template};
use crate::python::wrap::{MAX_LINE, wrapped};

/// A line of a function, and the op it computes.
type Line = (String, Option<NodeId>);

/// Fewer results of a loop than this are written one by one.
const RUN: usize = 3;

/// `factor · t + constant`
#[derive(Clone, Copy)]
struct Linear {
    factor: i64,
    constant: i64,
}

impl Linear {
    fn text(self, t: &str) -> String {
        let term = match self.factor.abs() {
            1 => t.to_owned(),
            factor => format!("{factor} * {t}"),
        };
        match self.constant {
            constant if self.factor < 0 => format!("{constant} - {term}"),
            0 => term,
            constant if constant < 0 => format!("{term} - {}", -constant),
            constant => format!("{term} + {constant}"),
        }
    }
    fn times(self, length: i64, offset: i64) -> Self {
        Self { factor: self.factor * length, constant: self.constant * length + offset }
    }
}

/// What the variable of a `for` statement goes through: from `base` on, up or down.
#[derive(Clone, Copy)]
struct Counter {
    base: i64,
    step: i64,
    count: i64,
}

impl Counter {
    /// The one with which most items are at the index `t`.
    fn of(items: &[Item], count: usize) -> Self {
        let count = count as i64;
        let step = if items.iter().map(|item| item.step).sum::<i64>() < 0 { -1 } else { 1 };
        let firsts = || items.iter().filter(|item| item.step == step).map(|item| item.first);
        let often = |first: i64| firsts().filter(|f| *f == first).count();
        let base = firsts().max_by_key(|&first| (often(first), -first));
        Self { base: base.unwrap_or(0), step, count }
    }
    fn text(self) -> String {
        let range = |low: i64, high: i64| match low {
            0 => format!("range({high})"),
            _ => format!("range({low}, {high})"),
        };
        if self.step > 0 {
            range(self.base, self.base + self.count)
        } else {
            format!("reversed({})", range(self.base - self.count + 1, self.base + 1))
        }
    }
    /// The index of an item.
    fn index(self, item: Item) -> Linear {
        let factor = item.step * self.step;
        Linear { factor, constant: item.first - factor * self.base }
    }
}

/// Results of a loop as operands of one node: the inputs, and what stands for them.
struct Run {
    inputs: Range<usize>,
    list: Expression,
}

impl FunctionWriter<'_, '_> {
    /// Counts what loops read and leave, before the uses of values are counted.
    pub(super) fn expect_loops(&mut self, steps: &[Step]) {
        for step in steps {
            let Step::Loop(one) = step else { continue };
            for nodes in &one.iterations[1..] {
                let body =
                    nodes.iter().zip(&one.iterations[0]).filter(|(_, first)| !one.items.contains(first));
                self.unwritten.extend(body.map(|(id, _)| *id));
            }
            for (&place, read) in &one.reads {
                self.overrides.insert(place, Expression::atom(String::new()));
                if let Read::Item(Item { of: Sequence::Outputs(node), .. }) = read {
                    self.tuples.insert(*node);
                    self.uses[self.graph.node(*node).outputs[0].index()] += 1;
                }
            }
            for &(result, initial) in &one.carried {
                self.leave(result);
                self.uses[initial.index()] += 1;
            }
            one.collected.iter().chain(&one.last).for_each(|&v| self.leave(v));
            // They get a name before the loop.
            one.invariants(self.graph).iter().for_each(|v| self.uses[v.index()] += 2);
        }
    }

    /// Notes that a value is read behind the iteration that computes it.
    fn leave(&mut self, v: ValueId) {
        self.uses[v.index()] += 2;
        self.is_left[v.index()] = true;
    }

    /// A loop.
    pub(super) fn repeat(&mut self, one: &Loop) -> Result<()> {
        for v in one.invariants(self.graph) {
            let text = self.read(v)?.text;
            if !self.is_named[v.index()] && !is_identifier(&text) {
                self.name(v);
            }
        }
        let mut items: Vec<((NodeId, usize), Item)> = Vec::new();
        let mut carried: Vec<String> = Vec::new();
        for &(result, _) in &one.carried {
            carried.push(self.names.fresh(&format!("previous_{}", self.hint(result))));
        }
        for (&place, read) in &one.reads {
            match read {
                Read::Carried(c) => {
                    self.overrides.insert(place, Expression::atom(carried[*c].clone()));
                }
                Read::Item(item) => items.push((place, *item)),
            }
        }
        match self.module.target.iteration {
            Iteration::Statement => self.for_statement(one, &carried, &items),
            Iteration::Scan => self.scan(one, &carried, &items),
        }
    }

    /// `for t in range(n):`
    fn for_statement(
        &mut self,
        one: &Loop,
        carried: &[String],
        items: &[((NodeId, usize), Item)],
    ) -> Result<()> {
        let node = Some(one.iterations[0][0]);
        for (name, (_, initial)) in carried.iter().zip(&one.carried) {
            let initial = self.initial(*initial)?;
            self.lines.push((wrapped(format!("{INDENT}{name} = {initial}")), None));
        }
        let lists: Vec<String> = one.collected.iter().map(|&v| self.list_name(v)).collect();
        let counter = Counter::of(&items.iter().map(|(_, item)| *item).collect::<Vec<_>>(), one.count());
        let t = if items.is_empty() { "_".to_owned() } else { self.counter() };
        let mut named: Vec<(Item, String)> = Vec::new();
        let mut body = Vec::new();
        for (place, item) in items {
            if let Some((_, name)) = named.iter().find(|(other, _)| other == item) {
                self.overrides.insert(*place, Expression::atom(name.clone()));
                continue;
            }
            let index = counter.index(*item);
            let mut text = match item.of {
                Sequence::Parts(Parts { source, axis, length, offset, drops_axis }) => {
                    let start = index.times(length, offset);
                    let stop = Linear { constant: start.constant + length, ..start };
                    let end = if drops_axis { String::new() } else { format!(" : {}", stop.text(&t)) };
                    let source = self.read(source)?.text;
                    format!("{source}[{}{}{end}]", ":, ".repeat(axis), start.text(&t))
                }
                Sequence::Outputs(node) => format!("{}[{}]", self.tuple_name(node)?, index.text(&t)),
                Sequence::Collected(v) => format!("{}[{}]", self.every[&v], index.text(&t)),
            };
            if items.iter().filter(|(_, other)| other == item).count() > 1 {
                let name = self.item_name(*item)?;
                body.push((format!("{}{name} = {text}", INDENT.repeat(2)), None));
                named.push((*item, name.clone()));
                text = name;
            }
            self.overrides.insert(*place, Expression::atom(text));
        }
        body.extend(self.loop_body(one)?);
        if let (Some(text), [list]) = (self.only_expression(one, &body)?, lists.as_slice()) {
            let line = format!("{INDENT}{list} = [{text} for {t} in {}]", counter.text());
            if line.len() <= MAX_LINE {
                self.lines.push((line, node));
                self.left_by(one, None)?;
                return Ok(());
            }
        }
        self.lines.extend(lists.iter().map(|list| (format!("{INDENT}{list} = []"), node)));
        self.lines.push((format!("{INDENT}for {t} in {}:", counter.text()), None));
        self.lines.extend(body);
        for (list, &v) in lists.iter().zip(&one.collected) {
            let text = self.read(v)?.text;
            self.lines.push((format!("{INDENT}{INDENT}{list}.append({text})"), None));
        }
        if !carried.is_empty() {
            let results = self.texts(one.carried.iter().map(|(v, _)| *v))?.join(", ");
            let line = format!("{INDENT}{INDENT}{} = {results}", carried.join(", "));
            self.lines.push((wrapped(line), None));
        }
        self.left_by(one, None)
    }

    /// `jax.lax.scan(step, initial, items)`
    fn scan(&mut self, one: &Loop, carried: &[String], items: &[((NodeId, usize), Item)]) -> Result<()> {
        let is_carried = |v: ValueId| one.carried.iter().any(|(result, _)| *result == v);
        let mut stacked = one.collected.clone();
        stacked.extend(one.last.iter().filter(|v| !is_carried(**v)));
        let initial = one.carried.iter().map(|(_, v)| self.initial(*v)).collect::<Result<Vec<_>>>()?;
        let (mut names, mut sequences) = (Vec::new(), Vec::new());
        let mut known: Vec<Item> = Vec::new();
        for (place, item) in items {
            let at = known.iter().position(|other| other == item).unwrap_or(known.len());
            if at == known.len() {
                known.push(*item);
                names.push(self.item_name(*item)?);
                sequences.push(self.sequence(*item, one.count())?);
            }
            self.overrides.insert(*place, Expression::atom(names[at].clone()));
        }
        let lists: Vec<String> = stacked.iter().map(|&v| self.list_name(v)).collect();
        let step = self.names.fresh("step");
        let mut last: Vec<String> = Vec::new();
        let call = if self.is_map(one) && !names.is_empty() {
            self.step_function(one, &format!("{step}({})", names.join(", ")), None, &stacked)?;
            format!("{INDENT}{} = jax.vmap({step})({})", group(&lists), sequences.join(", "))
        } else {
            let mut unpacked = Vec::new();
            let carry = self.one_name(carried, "carry", &mut unpacked);
            let item = self.one_name(&names, "items", &mut unpacked);
            self.step_function(one, &format!("{step}({carry}, {item})"), Some(unpacked), &stacked)?;
            for (v, _) in &one.carried {
                let is_read = one.last.contains(v);
                let hint = format!("last_{}", self.hint(*v));
                last.push(if is_read { self.names.fresh(&hint) } else { "_".into() });
            }
            let left = format!("{}, {}", named(&last), named(&lists));
            let (initial, items) = (group(&initial), group(&sequences));
            format!("{INDENT}{left} = jax.lax.scan({step}, {initial}, {items}, length={})", one.count())
        };
        self.module.note_name("jax");
        self.lines.push((format!("\n{}", wrapped(call)), Some(one.iterations[0][0])));
        self.left_by(one, Some((&stacked, &last)))
    }

    /// Whether all iterations may be computed at once, as one use of an op for many values.
    fn is_map(&self, one: &Loop) -> bool {
        let mut body = one.body();
        let (Some(id), None) = (body.next(), body.next()) else { return false };
        let op = self.graph.node(id).op;
        one.carried.is_empty() && op != &HOST_CALL && !collective::OPS.contains(&op)
    }

    /// One parameter for these names; several are unpacked by the function's first line.
    fn one_name(&mut self, names: &[String], word: &str, unpacked: &mut Vec<Line>) -> String {
        match names {
            [] => format!("_{word}"),
            [name] => name.clone(),
            names => {
                let whole = self.names.fresh(word);
                let line = format!("{INDENT}{INDENT}{} = {whole}", names.join(", "));
                unpacked.push((wrapped(line), None));
                whole
            }
        }
    }

    /// The function of one iteration. It returns what is carried and what is stacked; without `unpacked`, its first lines, it
    /// carries nothing.
    fn step_function(
        &mut self,
        one: &Loop,
        head: &str,
        unpacked: Option<Vec<Line>>,
        stacked: &[ValueId],
    ) -> Result<()> {
        let body = self.loop_body(one)?;
        let ends = self.texts(one.carried.iter().map(|(v, _)| *v))?;
        let outputs = group(&self.texts(stacked.iter().copied())?);
        let result = if unpacked.is_none() { outputs } else { format!("{}, {outputs}", group(&ends)) };
        self.lines.push((format!("\n{}", wrapped(format!("{INDENT}def {head}:"))), None));
        self.lines.extend(unpacked.into_iter().flatten());
        self.lines.extend(body);
        self.lines.push((wrapped(format!("{INDENT}{INDENT}return {result}")), None));
        Ok(())
    }

    /// What the first iteration reads for what others carry.
    fn initial(&mut self, v: ValueId) -> Result<String> {
        match self.graph.lit(v) {
            Some(Lit::Tensor(t)) => Ok(self.module.constant(t)),
            _ => Ok(self.read(v)?.text),
        }
    }

    /// What stands for values.
    fn texts(&mut self, values: impl Iterator<Item = ValueId>) -> Result<Vec<String>> {
        values.map(|v| Ok(self.read(v)?.text)).collect()
    }

    /// The lines of an iteration.
    fn loop_body(&mut self, one: &Loop) -> Result<Vec<Line>> {
        let before = std::mem::take(&mut self.lines);
        self.indent = INDENT.repeat(2);
        for id in one.body() {
            self.statement(id, self.graph.node(id))?;
        }
        INDENT.clone_into(&mut self.indent);
        let mut left: Vec<ValueId> = one.collected.iter().chain(&one.last).copied().collect();
        left.extend(one.carried.iter().map(|(v, _)| *v));
        let left = self.texts(left.into_iter())?;
        let mut body = std::mem::replace(&mut self.lines, before);
        let statements = body.len();
        body.push((format!("{INDENT}return {}", left.join(", ")), None));
        let graph = self.graph;
        release::insert(&mut body, statements, |node| release::bytes(graph, node));
        body.pop();
        Ok(body)
    }

    /// The expression, if the loop is one that collects it and does nothing else.
    fn only_expression(&mut self, one: &Loop, body: &[Line]) -> Result<Option<String>> {
        let ([v], [], [], [(line, _)]) =
            (one.collected.as_slice(), one.last.as_slice(), one.carried.as_slice(), body)
        else {
            return Ok(None);
        };
        let name = self.read(*v)?.text;
        let text = line.trim_start().strip_prefix(&name).and_then(|rest| rest.strip_prefix(" = "));
        Ok(text.filter(|text| !text.contains('\n')).map(str::to_owned))
    }

    /// Notes what stands for the results of a loop from here on; a scan gives some stacked, and the last ones by name.
    fn left_by(&mut self, one: &Loop, scanned: Option<(&[ValueId], &[String])>) -> Result<()> {
        let lists = scanned.map_or(one.collected.as_slice(), |(stacked, _)| stacked);
        let all = |v: ValueId| one.results(self.graph, v);
        for &v in &one.last {
            let last = *all(v).last().expect("a loop has iterations");
            let carried = one.carried.iter().position(|(result, _)| *result == v);
            let text = match scanned {
                None => self.read(v)?.text,
                Some((_, names)) => carried.map_or_else(String::new, |c| names[c].clone()),
            };
            self.set(last, text);
        }
        for &v in lists {
            let list = self.every[&v].clone();
            let all = one.results(self.graph, v);
            let count = all.len();
            for (k, v) in all.into_iter().enumerate() {
                self.set(v, format!("{list}[{k}]"));
                self.listed.insert(v, (list.clone(), k, count));
            }
        }
        Ok(())
    }

    /// Sets what stands for a value.
    fn set(&mut self, v: ValueId, text: String) {
        self.expressions[v.index()] = Some(Expression::atom(text));
        self.is_named[v.index()] = true;
    }

    /// The variable of all `for` statements, which go one after the other.
    fn counter(&mut self) -> String {
        let names = &mut self.names;
        self.counter.get_or_insert_with(|| names.fresh("t")).clone()
    }

    /// A name for the results of all iterations.
    fn list_name(&mut self, v: ValueId) -> String {
        let name = self.names.fresh(&format!("every_{}", self.hint(v)));
        self.every.insert(v, name.clone());
        name
    }

    /// The name of the results of a node whose code is a call.
    fn tuple_name(&mut self, node: NodeId) -> Result<String> {
        let first = self.read(self.graph.node(node).outputs[0])?.text;
        Ok(first.strip_suffix("[0]").unwrap_or(&first).to_owned())
    }

    /// A name for the items of a sequence.
    fn item_name(&mut self, item: Item) -> Result<String> {
        let name = match item.of {
            Sequence::Parts(Parts { source, .. }) => self.hint(source),
            Sequence::Outputs(node) => self.tuple_name(node)?,
            Sequence::Collected(v) => self.hint(v),
        };
        Ok(self.names.fresh(&format!("{name}_item")))
    }

    /// The items that a scan goes through, as one array.
    fn sequence(&mut self, item: Item, count: usize) -> Result<String> {
        let count = count as i64;
        let low = if item.step > 0 { item.first } else { item.first - count + 1 };
        let reversed = if item.step > 0 { "" } else { "[::-1]" };
        let part = |name: &str, all: i64| match (low, count) {
            (0, count) if count == all => name.to_owned(),
            _ => format!("{name}[{low}:{}]", low + count),
        };
        let whole = match item.of {
            Sequence::Parts(Parts { source, axis, length, offset, drops_axis }) => {
                let size = self.graph.ty(source).and_then(|ty| ty.shape.get(axis)?.known());
                let source = self.read(source)?.text;
                if drops_axis {
                    let axes = ":, ".repeat(axis);
                    let is_all = size.is_some_and(|size| size == count);
                    let range = format!("[{axes}{low}:{}]", low + count);
                    let part = if is_all { source } else { source + &range };
                    if axis == 0 { part } else { format!("jnp.moveaxis({part}, {axis}, 0)") }
                } else {
                    self.module.note_name("_items_of_axis");
                    format!("_items_of_axis({source}, {axis}, {}, {length}, {count})", offset + low * length)
                }
            }
            Sequence::Outputs(node) => {
                let outputs = self.graph.node(node).outputs.len() as i64;
                format!("jnp.stack({})", part(&self.tuple_name(node)?, outputs))
            }
            Sequence::Collected(v) => {
                let all = self.listed.get(&v).map_or(0, |(_, _, all)| *all as i64);
                part(&self.every[&v], all)
            }
        };
        Ok(whole + reversed)
    }

    /// A template in which results of a loop that follow each other are one operand, and what stands for it.
    pub(super) fn unpacked(
        &mut self,
        node: &Node,
        template: &Template,
    ) -> Option<(Template, Vec<(usize, Expression)>)> {
        let runs = self.runs(node);
        if runs.is_empty() {
            return None;
        }
        let mut text = template.text().to_owned();
        let mut lists = Vec::new();
        for Run { inputs, list } in runs {
            let marks: Vec<String> = inputs.clone().map(arg_mark).collect();
            let (marks, first) = (marks.join(", "), arg_mark(inputs.start));
            if text.matches(&marks).count() != 1 {
                continue;
            }
            let scans = self.module.target.iteration == Iteration::Scan;
            let is_all = text.contains(&format!("[{marks}]"));
            let axis = |text: &str| text.rsplit_once("axis=")?.1.trim_end_matches(')').parse::<usize>().ok();
            match axis(&text) {
                Some(axis) if scans && node.op == &CONCAT => {
                    self.module.note_name("_concatenated");
                    text = text.replace(&marks, &format!("_concatenated({first}, {axis})"));
                }
                Some(0) if scans && is_all && node.op == &STACK => text.clone_from(&first),
                Some(axis) if scans && is_all && node.op == &STACK => {
                    text = format!("jnp.moveaxis({first}, 0, {axis})");
                }
                _ if is_all => text = text.replace(&format!("[{marks}]"), &first),
                _ => text = text.replace(&marks, &format!("*{first}")),
            }
            lists.push((inputs.start, list));
        }
        (!lists.is_empty()).then(|| (template.with_text(text), lists))
    }

    /// Operands that are results of a loop one after the other.
    fn runs(&self, node: &Node) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut start = 0;
        while start < node.inputs.len() {
            let place = |i: usize| node.inputs.get(i).and_then(|v| self.listed.get(v));
            let mut end = start + 1;
            if let (Some((list, first, count)), Some((_, second, _))) = (place(start), place(start + 1)) {
                let step = *second as i64 - *first as i64;
                let is_next = |i: usize| {
                    let index = *first as i64 + (i - start) as i64 * step;
                    place(i).is_some_and(|(other, k, _)| other == list && *k as i64 == index)
                };
                while step.abs() == 1 && is_next(end) {
                    end += 1;
                }
                if end - start >= RUN {
                    let last = *first as i64 + (end - start - 1) as i64 * step;
                    let text = format!("{list}{}", slice(*first as i64, last, step, *count as i64));
                    runs.push(Run { inputs: start..end, list: Expression::atom(text) });
                }
            }
            start = end;
        }
        runs
    }
}

/// The subscript for the items from `first` to `last`; none for all of them in order.
fn slice(first: i64, last: i64, step: i64, count: i64) -> String {
    if step > 0 {
        return match (first, last + 1) {
            (0, end) if end == count => String::new(),
            (start, end) => format!("[{start}:{end}]"),
        };
    }
    let start = if first == count - 1 { String::new() } else { first.to_string() };
    let end = if last == 0 { String::new() } else { (last - 1).to_string() };
    format!("[{start}:{end}:-1]")
}

/// Nothing, an expression, or a tuple of several.
fn group(items: &[String]) -> String {
    match items {
        [] => "None".into(),
        [item] => item.clone(),
        items => format!("({})", items.join(", ")),
    }
}

/// What is assigned to a group.
fn named(names: &[String]) -> String {
    if names.is_empty() { "_".into() } else { group(names) }
}
