//! Writes loops as `for` statements, and what stands for their results afterwards.

use std::ops::Range;

use mithril_ir::graph::Node;
use mithril_ir::lowering::arg_mark;
use mithril_ir::{Error, Lit, NodeId, Result, ValueId};

use super::{FunctionWriter, INDENT, is_identifier};
use crate::python::foreach::Step;
use crate::python::loops::{Item, Loop, Parts, Read, Sequence};
use crate::python::release;
use crate::python::targets::Iteration;
use crate::python::template::{self, Expression, Template};
use crate::python::wrap::{MAX_LINE, wrapped};

/// A line of a function, and the op it computes.
pub(super) type Line = (String, Option<NodeId>);

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
            // A result of an earlier loop has none.
            if !is_identifier(&self.read(v)?.text) {
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
                Sequence::Collected(v) => format!("{}[{}]", self.collected(v)?, index.text(&t)),
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

    /// What the first iteration reads for what others carry.
    pub(super) fn initial(&mut self, v: ValueId) -> Result<String> {
        match self.graph.lit(v) {
            Some(Lit::Tensor(t)) => Ok(self.module.constant(t)),
            _ => Ok(self.read(v)?.text),
        }
    }

    /// What stands for values.
    pub(super) fn texts(&mut self, values: impl Iterator<Item = ValueId>) -> Result<Vec<String>> {
        values.map(|v| Ok(self.read(v)?.text)).collect()
    }

    /// The lines of an iteration.
    pub(super) fn loop_body(&mut self, one: &Loop) -> Result<Vec<Line>> {
        let before = std::mem::take(&mut self.lines);
        self.indent = INDENT.repeat(2);
        for id in one.body() {
            self.statement(id, self.graph.node(id))?;
        }
        INDENT.clone_into(&mut self.indent);
        let mut body = std::mem::replace(&mut self.lines, before);
        // A function that is compiled keeps no names.
        if self.module.target.iteration == Iteration::Scan {
            return Ok(body);
        }
        let mut left: Vec<ValueId> = one.collected.iter().chain(&one.last).copied().collect();
        left.extend(one.carried.iter().map(|(v, _)| *v));
        let left = self.texts(left.into_iter())?;
        let statements = body.len();
        // What is read behind an iteration stays.
        let indent = INDENT.repeat(2);
        body.push((format!("{indent}return {}", left.join(", ")), None));
        let graph = self.graph;
        release::insert(&mut body, statements, &indent, |node| release::bytes(graph, node));
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
    pub(super) fn left_by(&mut self, one: &Loop, scanned: Option<(&[ValueId], &[String])>) -> Result<()> {
        let lists = scanned.map_or(one.collected.as_slice(), |(stacked, _)| stacked);
        for &v in one.last.iter().filter(|v| !lists.contains(v)) {
            let carried = one.carried.iter().position(|(result, _)| *result == v);
            let text = match (scanned, carried) {
                (Some((_, names)), Some(c)) => names[c].clone(),
                _ => self.read(v)?.text,
            };
            if let Some(&last) = one.results(self.graph, v).last() {
                self.set(last, text);
            }
        }
        for &v in lists {
            let list = self.collected(v)?;
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
    pub(super) fn list_name(&mut self, v: ValueId) -> String {
        let name = self.names.fresh(&format!("every_{}", self.hint(v)));
        self.every.insert(v, name.clone());
        name
    }

    /// The name of what all iterations computed.
    pub(super) fn collected(&self, v: ValueId) -> Result<String> {
        let name = self.every.get(&v).cloned();
        name.ok_or_else(|| Error::internal(format!("no loop collects value {}", v.index())))
    }

    /// The name of the results of a node whose code is a call.
    pub(super) fn tuple_name(&mut self, node: NodeId) -> Result<String> {
        let first = self.read(self.graph.node(node).outputs[0])?.text;
        Ok(first.strip_suffix("[0]").unwrap_or(&first).to_owned())
    }

    /// A name for the items of a sequence.
    pub(super) fn item_name(&mut self, item: Item) -> Result<String> {
        let name = match item.of {
            Sequence::Parts(Parts { source, .. }) => self.hint(source),
            Sequence::Outputs(node) => self.tuple_name(node)?,
            Sequence::Collected(v) => self.hint(v),
        };
        Ok(self.names.fresh(&format!("{name}_item")))
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
            let is_all = text.contains(&format!("[{marks}]"));
            let stacked = template::lower_stacked(self.module.target, self.graph, node, inputs.start);
            // The op on these alone: in the place of the op, or of its operands if it is one itself.
            let rank = |v: Option<&ValueId>| v.and_then(|&v| self.graph.ty(v)).map(|ty| ty.shape.rank());
            let is_operand = rank(node.outputs.first()) == rank(node.inputs.get(inputs.start));
            text = match stacked {
                Some(whole) if is_all => whole,
                Some(part) if is_operand => text.replace(&marks, &part),
                _ if is_all => text.replace(&format!("[{marks}]"), &first),
                _ => text.replace(&marks, &format!("*{first}")),
            };
            lists.push((inputs.start, list));
        }
        let template = template.with_text(text);
        self.module.note(&template);
        (!lists.is_empty()).then_some((template, lists))
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
