//! Writes loops for JAX: functions of one iteration that `jax.lax.scan` runs.
//!
//! A loop is a function of the module, compiled by itself:
//!
//! ```python
//! @jax.jit
//! def loop(weight, initial, items):
//!     def step(previous_tanh, item):
//!         tanh = jnp.tanh(previous_tanh @ weight + item)
//!         return tanh, tanh
//!
//!     return jax.lax.scan(step, initial, items, length=100)
//! ```
//!
//! JAX traces and compiles it once, also where the model is not compiled; a function that is made anew at each call of the
//! model would be traced at each.

use mithril_ir::ops::collective;
use mithril_ir::ops::host::HOST_CALL;
use mithril_ir::{NodeId, Result, ValueId};

use super::iteration::Line;
use super::{FunctionWriter, INDENT};
use crate::python::loops::{Item, Loop, Parts, Sequence};
use crate::python::prelude::words;
use crate::python::template::Expression;
use crate::python::wrap::wrapped;

/// What a loop is given.
#[derive(Default)]
struct Scan {
    /// Names of what is carried.
    carried: Vec<String>,
    /// Names of items.
    items: Vec<String>,
    /// What they are items of.
    sequences: Vec<String>,
    /// Results of the first iteration whose results are stacked.
    stacked: Vec<ValueId>,
}

impl FunctionWriter<'_, '_> {
    /// `jax.lax.scan(step, initial, items)`
    pub(super) fn scan(
        &mut self,
        one: &Loop,
        carried: &[String],
        items: &[((NodeId, usize), Item)],
    ) -> Result<()> {
        let is_carried = |v: ValueId| one.carried.iter().any(|(result, _)| *result == v);
        let mut scan = Scan { carried: carried.to_vec(), stacked: one.collected.clone(), ..Scan::default() };
        scan.stacked.extend(one.last.iter().filter(|v| !is_carried(**v)));
        let mut known: Vec<Item> = Vec::new();
        for (place, item) in items {
            let at = known.iter().position(|other| other == item).unwrap_or(known.len());
            if at == known.len() {
                known.push(*item);
                scan.items.push(self.item_name(*item)?);
                scan.sequences.push(self.sequence(*item, one.count())?);
            }
            self.overrides.insert(*place, Expression::atom(scan.items[at].clone()));
        }
        let call = self.loop_call(one, &scan)?;
        let lists: Vec<String> = scan.stacked.iter().map(|&v| self.list_name(v)).collect();
        let mut last: Vec<String> = Vec::new();
        for (v, _) in &one.carried {
            let hint = format!("last_{}", self.hint(*v));
            last.push(if one.last.contains(v) { self.names.fresh(&hint) } else { "_".into() });
        }
        let lists = if lists.is_empty() { "_".into() } else { group(&lists) };
        let left = match last.as_slice() {
            _ if self.is_map(one, &scan) => lists,
            [] => format!("_, {lists}"),
            last => format!("{}, {lists}", group(last)),
        };
        self.lines.push((wrapped(format!("{INDENT}{left} = {call}")), Some(one.iterations[0][0])));
        self.left_by(one, Some((&scan.stacked, &last)))
    }

    /// Whether all iterations may be computed at once, as one use of an op for many values.
    fn is_map(&self, one: &Loop, scan: &Scan) -> bool {
        let mut body = one.body();
        let (Some(id), None) = (body.next(), body.next()) else { return false };
        let op = self.graph.node(id).op;
        let is_plain = op != &HOST_CALL && !collective::OPS.contains(&op);
        is_plain && one.carried.is_empty() && !scan.items.is_empty()
    }

    /// Writes the loop, as a function of the module if it speaks of no size that is known at each call alone; the
    /// expression of what it computes.
    fn loop_call(&mut self, one: &Loop, scan: &Scan) -> Result<String> {
        let initial = one.carried.iter().map(|(_, v)| self.initial(*v)).collect::<Result<Vec<_>>>()?;
        let given = [("initial", group(&initial)), ("items", group(&scan.sequences))];
        let step = self.names.fresh("step");
        let mut lines = self.step_function(one, scan, &step)?;
        self.module.note_name("jax");
        let is_map = self.is_map(one, scan);
        let call = |initial: &str, items: &str| {
            if is_map && scan.items.len() == 1 {
                format!("jax.vmap({step})({items})")
            } else if is_map {
                format!("jax.vmap({step})(*{items})")
            } else {
                format!("jax.lax.scan({step}, {initial}, {items}, length={})", one.count())
            }
        };
        let is_size = |word: &str| self.symbols.has_name(word);
        let is_exchanged = one.body().any(|id| collective::OPS.contains(&self.graph.node(id).op));
        if is_exchanged || lines.iter().any(|(text, _)| words(text).any(is_size)) {
            lines[0].0.insert(0, '\n');
            self.lines.extend(lines);
            return Ok(call(&given[0].1, &given[1].1));
        }

        let mut arguments: Vec<String> = Vec::new();
        for v in one.invariants(self.graph) {
            let name = self.read(v)?.text;
            let is_read = lines.iter().any(|(text, _)| words(text).any(|word| word == name));
            if is_read && !self.formulas.has(v) && !arguments.contains(&name) {
                arguments.push(name);
            }
        }
        let mut parameters = arguments.clone();
        let [initial, items] = given.map(|(hint, text)| {
            if text == "None" {
                return text;
            }
            let name = self.names.fresh(hint);
            parameters.push(name.clone());
            arguments.push(text);
            name
        });
        let name = loop {
            let name = self.names.fresh("loop");
            if self.module.reserve(&name) {
                break name;
            }
        };
        let head = wrapped(format!("def {name}({}):", parameters.join(", ")));
        let mut function = vec![("@jax.jit".to_owned(), None), (head, None)];
        function.extend(lines);
        function.push((format!("\n{}", wrapped(format!("{INDENT}return {}", call(&initial, &items)))), None));
        self.loops.push(function);
        Ok(format!("{name}({})", arguments.join(", ")))
    }

    /// The function of one iteration, which returns what is carried and what is stacked.
    fn step_function(&mut self, one: &Loop, scan: &Scan, name: &str) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        let is_map = self.is_map(one, scan);
        let parameters = if is_map {
            scan.items.join(", ")
        } else {
            let carry = self.parameter_of(&scan.carried, "carry", &mut lines);
            format!("{carry}, {}", self.parameter_of(&scan.items, "items", &mut lines))
        };
        lines.insert(0, (wrapped(format!("{INDENT}def {name}({parameters}):")), None));
        lines.extend(self.loop_body(one)?);
        let ends = group(&self.texts(one.carried.iter().map(|(v, _)| *v))?);
        let outputs = group(&self.texts(scan.stacked.iter().copied())?);
        let results = if is_map { outputs } else { format!("{ends}, {outputs}") };
        lines.push((wrapped(format!("{INDENT}{INDENT}return {results}")), None));
        Ok(lines)
    }

    /// One parameter for these names; several are unpacked by a line of the function.
    fn parameter_of(&mut self, names: &[String], word: &str, lines: &mut Vec<Line>) -> String {
        match names {
            [] => format!("_{word}"),
            [name] => name.clone(),
            names => {
                let whole = self.names.fresh(word);
                let line = format!("{INDENT}{INDENT}{} = {whole}", names.join(", "));
                lines.push((wrapped(line), None));
                whole
            }
        }
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
                part(&self.collected(v)?, all)
            }
        };
        Ok(whole + reversed)
    }
}

/// Nothing, an expression, or a tuple of several.
fn group(items: &[String]) -> String {
    match items {
        [] => "None".into(),
        [item] => item.clone(),
        items => format!("({})", items.join(", ")),
    }
}
