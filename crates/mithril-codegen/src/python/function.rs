//! Writes one function: a statement per op, with short operands that are used once written in place.

mod iteration;
mod scan;
mod symbols;

use std::sync::Arc;

use mithril_ir::dim::Symbol;
use mithril_ir::dtype::Kinds;
use mithril_ir::graph::{Def, Node, Role};
use mithril_ir::lowering::is_list;
use mithril_ir::op::{Eval, PortKind, ShapeRule};
use mithril_ir::{DType, Error, Graph, Lit, NodeId, Result, ValueId};

use rustc_hash::{FxHashMap, FxHashSet};

use self::symbols::Symbols;

use super::foreach::{self, Group, Step};
use super::formulas::Formulas;
use super::headings;
use super::literal;
use super::namer::{Namer, python_string};
use super::release;
use super::targets::CUSTOM;
use super::template::{Expression, Piece, Template, symbol_name};
use super::wrap::{MAX_LINE, entry, wrapped};
use super::writer::{Body, Module};
use super::{Emitted, Function, Results, no_such_input};

/// An expression longer than this is not written into another one.
const MAX_OPERAND: usize = 60;
/// Where the path of an op with its name is longer, the name of the layer's parent says enough.
const MAX_HINT: usize = 40;
const INDENT: &str = "    ";

/// A returned dict: keys and values.
type Entries = Vec<(Arc<str>, ValueId)>;

/// Writes one function.
#[derive(Debug)]
pub struct FunctionWriter<'m, 'a> {
    module: &'m mut Module<'a>,
    function: &'m Function<'m>,
    graph: &'m Graph,
    templates: Vec<Option<Template>>,
    /// Of nodes whose code is a tuple, the items that are used.
    items: FxHashMap<NodeId, Vec<(ValueId, Template)>>,
    /// How often the text mentions a value.
    uses: Vec<u32>,
    /// What stands for a value: its name, or an expression that is still to be written somewhere.
    expressions: Vec<Option<Expression>>,
    /// Whether the expression is a name already.
    is_named: Vec<bool>,
    /// Whether a value is returned.
    is_result: Vec<bool>,
    /// Which values follow from constants alone, and are computed when the module is loaded.
    formulas: Formulas,
    names: Namer,
    symbols: Symbols,
    /// Lists of tensors that have a name.
    lists: FxHashMap<Vec<ValueId>, String>,
    /// Nodes that are no statements: what a loop computes after its first iteration.
    unwritten: FxHashSet<NodeId>,
    /// Operands in a loop that are not what its first iteration reads, by node and input.
    overrides: FxHashMap<(NodeId, usize), Expression>,
    /// Whether a value is read behind the iteration of a loop that computes it.
    is_left: Vec<bool>,
    /// Nodes whose results keep the name of the tuple that they are in.
    tuples: FxHashSet<NodeId>,
    /// The names of what all iterations of loops computed, by what their first one did.
    every: FxHashMap<ValueId, String>,
    /// Of values in those: the name, the position, and the number of iterations.
    listed: FxHashMap<ValueId, (String, usize, usize)>,
    /// Loops that are functions of the module.
    loops: Vec<Vec<(String, Option<NodeId>)>>,
    /// The variable of `for` statements, once there is one.
    counter: Option<String>,
    /// What statements begin with.
    indent: String,
    lines: Vec<(String, Option<NodeId>)>,
}

impl<'m, 'a> FunctionWriter<'m, 'a> {
    /// Writes `function` under `name`.
    pub fn write(
        module: &'m mut Module<'a>,
        function: &'m Function<'m>,
        name: String,
        templates: Vec<Option<Template>>,
        steps: &[Step],
    ) -> Result<Body> {
        let graph = function.graph;
        let count = graph.values().len();
        let mut names = module.local_names();
        for argument in function.arguments {
            names.reserve(argument.name);
        }
        let mut writer = Self {
            module,
            function,
            graph,
            templates,
            items: FxHashMap::default(),
            uses: vec![0; count],
            expressions: vec![None; count],
            is_named: vec![false; count],
            is_result: vec![false; count],
            formulas: Formulas::default(),
            names,
            symbols: Symbols::default(),
            lists: FxHashMap::default(),
            unwritten: FxHashSet::default(),
            overrides: FxHashMap::default(),
            is_left: vec![false; count],
            tuples: FxHashSet::default(),
            every: FxHashMap::default(),
            listed: FxHashMap::default(),
            loops: Vec::new(),
            counter: None,
            indent: INDENT.to_owned(),
            lines: Vec::new(),
        };
        writer.body(name, steps)
    }

    fn body(&mut self, name: String, steps: &[Step]) -> Result<Body> {
        let (dicts, states) = results(self.function);
        self.expect_loops(steps);
        self.count_uses(dicts.iter().flatten().chain(&states));
        self.formulas = Formulas::of(self.graph, self.module.target, &self.is_result);
        let mut arguments: Vec<String> = self.function.arguments.iter().map(|a| a.name.to_owned()).collect();
        if arguments.is_empty() {
            arguments = self.graph.inputs.iter().map(|&v| self.parameter(v)).collect();
        }
        self.lines.push((wrapped(format!("def {name}({}):", arguments.join(", "))), None));
        self.bind_symbols()?;
        let mut bytes: FxHashMap<NodeId, f64> = FxHashMap::default();
        for step in steps {
            match step {
                Step::Node(id) => self.statement(*id, self.graph.node(*id))?,
                Step::Loop(one) => self.repeat(one)?,
                Step::Group(group) => {
                    self.group(group)?;
                    let all = group.nodes.iter().map(|id| release::bytes(self.graph, *id)).sum();
                    bytes.insert(group.nodes[0], all);
                }
            }
        }
        let statements = self.lines.len();
        self.return_line(&dicts, &states)?;
        let graph = self.graph;
        let size = |node| bytes.get(&node).copied().unwrap_or_else(|| release::bytes(graph, node));
        release::insert(&mut self.lines, statements, INDENT, size);
        headings::insert(&mut self.lines, self.graph);
        let keys = |entries: &Entries| entries.iter().map(|(key, _)| key.clone()).collect();
        let reads = self.function.arguments.iter().map(|argument| self.reads(argument.role)).collect();
        let results = dicts.iter().map(keys).collect();
        let emitted = Emitted { name, reads, results, states: keys(&states) };
        Ok(Body { emitted, loops: std::mem::take(&mut self.loops), lines: std::mem::take(&mut self.lines) })
    }

    /// The name of an input that is passed by itself.
    fn parameter(&mut self, v: ValueId) -> String {
        let name = self.names.fresh(&self.hint(v));
        self.expressions[v.index()] = Some(Expression::atom(name.clone()));
        self.is_named[v.index()] = true;
        name
    }

    /// Keys of the inputs of a role that are used.
    fn reads(&self, role: Role) -> Vec<Arc<str>> {
        let inputs = self.graph.inputs.iter().filter(|v| self.uses[v.index()] > 0);
        inputs
            .map(|&v| self.graph.value(v))
            .filter(|value| value.def == Def::Input(role))
            .filter_map(|value| value.name.clone())
            .collect()
    }

    fn count_uses<'e>(&mut self, results: impl Iterator<Item = &'e (Arc<str>, ValueId)>) {
        for (_, v) in results {
            self.uses[v.index()] += 1;
            self.is_result[v.index()] = true;
        }
        for (id, node) in self.graph.nodes().rev() {
            if self.unwritten.contains(&id) || node.outputs.iter().all(|v| self.uses[v.index()] == 0) {
                continue;
            }
            let Some(template) = self.templates[id.index()].take() else { continue };
            if let Some(items) = template.items(node.outputs.len()) {
                let used = node.outputs.iter().copied().zip(items).filter(|(v, _)| self.uses[v.index()] > 0);
                let used: Vec<_> = used.collect();
                for (_, item) in &used {
                    self.count_operands(id, item);
                }
                self.items.insert(id, used);
                continue;
            }
            self.count_operands(id, &template);
            self.templates[id.index()] = Some(template);
        }
        for (v, value) in self.graph.values() {
            if let (true, Def::Const(Lit::Int(dim))) = (self.is_result[v.index()], &value.def) {
                dim.each_symbol(&mut |s| self.symbols.note(symbol_name(s)));
            }
        }
    }

    fn count_operands(&mut self, id: NodeId, template: &Template) {
        let node = self.graph.node(id);
        self.module.note(template);
        if template.repeats {
            // Its own variables must not hide ours.
            for name in template.names() {
                self.names.reserve(name);
            }
        }
        for piece in template.pieces() {
            match piece {
                Piece::Text(..) => {}
                Piece::Symbol(symbol) => self.symbols.note(symbol.clone()),
                Piece::Operand(i, _) => {
                    let Some(&v) = node.inputs.get(*i) else { continue };
                    if self.overrides.contains_key(&(id, *i)) {
                        continue;
                    }
                    self.uses[v.index()] += 1 + u32::from(template.repeats);
                    if let Some(Lit::Int(dim)) = self.graph.lit(v) {
                        dim.each_symbol(&mut |s| self.symbols.note(symbol_name(s)));
                    }
                }
            }
        }
    }

    fn statement(&mut self, id: NodeId, node: &'m Node) -> Result<()> {
        if node.outputs.iter().all(|v| self.uses[v.index()] == 0) {
            return Ok(());
        }
        let room = |v: Option<&ValueId>, writer: &Self| {
            MAX_LINE - writer.indent.len() - 3 - v.map_or(0, |&v| writer.hint(v).len().min(40))
        };
        for (v, item) in self.items.remove(&id).into_iter().flatten() {
            let expression = self.expression(id, &item, room(Some(&v), self))?;
            self.define(v, expression);
        }
        let Some(template) = self.templates[id.index()].take() else { return Ok(()) };
        let expression = self.expression(id, &template, room(node.outputs.first(), self))?;
        if self.tuples.contains(&id) {
            let hint = self.hint(node.outputs[0]);
            let name = self.names.fresh(hint.trim_end_matches("_output1"));
            self.lines.push((wrapped(format!("{}{name} = {}", self.indent, expression.text)), Some(id)));
            self.unpack(&node.outputs, &name);
            return Ok(());
        }
        if let (&[v], 1) = (node.outputs.as_slice(), node.op.outputs.len()) {
            self.define(v, expression);
            return Ok(());
        }
        let targets: Vec<String> = node.outputs.iter().map(|&v| self.output_name(v)).collect();
        let comma = if targets.len() == 1 { "," } else { "" };
        let line = format!("{}{}{comma} = {}", self.indent, targets.join(", "), expression.text);
        self.lines.push((wrapped(line), Some(id)));
        Ok(())
    }

    /// Nodes in one call, whose value is a list.
    fn group(&mut self, group: &Group) -> Result<()> {
        let first = group.nodes[0];
        let node = self.graph.node(first);
        let mut expressions: FxHashMap<usize, Expression> = FxHashMap::default();
        for piece in group.template.pieces() {
            let Piece::Operand(i, _) = piece else { continue };
            let expression = if is_list(self.graph, node, *i) {
                self.list(foreach::operands(self.graph, &group.nodes, *i))?
            } else {
                self.operand(first, *i, false)?
            };
            expressions.insert(*i, expression);
        }
        let absent = Expression::atom("None".into());
        let call = group.template.fill(|i| expressions.get(&i).unwrap_or(&absent), |s| self.symbols.text(s));
        let outputs: Vec<ValueId> = group.nodes.iter().map(|id| self.graph.node(*id).outputs[0]).collect();
        let list =
            group.template.first_operand().filter(|_| group.in_place).and_then(|i| expressions.get(&i));
        let (name, lines) = if let Some(list) = list {
            (list.text.clone(), foreach::in_place(&call.text, &list.text))
        } else {
            let name = self.names.fresh(&self.plural(group.last));
            (name.clone(), vec![format!("{name} = {}", call.text)])
        };
        self.lines.extend(lines.iter().map(|line| (wrapped(format!("{INDENT}{line}")), Some(first))));
        self.unpack(&outputs, &name);
        self.lists.insert(outputs, name);
        Ok(())
    }

    /// The name of a list of these tensors.
    fn list(&mut self, values: Vec<ValueId>) -> Result<Expression> {
        if let Some(name) = self.lists.get(&values) {
            return Ok(Expression::atom(name.clone()));
        }
        // What is read here for the first time is read from the list from here on.
        let is_new = values.iter().all(|v| self.expressions[v.index()].is_none());
        let items = values.iter().map(|&v| Ok(if is_new { self.input(v) } else { self.read(v) }?.text));
        let items = items.collect::<Result<Vec<_>>>()?.join(", ");
        let name = self.names.fresh(&self.plural(values[0]));
        self.lines.push((wrapped(format!("{INDENT}{name} = [{items}]")), None));
        if is_new {
            self.unpack(&values, &name);
        }
        self.lists.insert(values, name.clone());
        Ok(Expression::atom(name))
    }

    /// What stands for the tensors of a list from here on.
    fn unpack(&mut self, values: &[ValueId], list: &str) {
        for (k, v) in values.iter().enumerate() {
            self.expressions[v.index()] = Some(Expression::atom(format!("{list}[{k}]")));
            self.is_named[v.index()] = true;
        }
    }

    /// A name for tensors of which this is the first: `gradients` for `gradient_0`.
    fn plural(&self, v: ValueId) -> String {
        let name = self.hint(v);
        let is_own = self.is_result[v.index()] || matches!(self.graph.value(v).def, Def::Input(_));
        match name.rsplit_once('_') {
            Some((stem, number)) if is_own && number.bytes().all(|b| b.is_ascii_digit()) => {
                format!("{stem}s")
            }
            _ => name,
        }
    }

    /// Notes the expression of a value, and writes it into a line of its own if it is used more than once.
    fn define(&mut self, v: ValueId, expression: Expression) {
        let i = v.index();
        let is_own = self.graph.value(v).name.is_some() || self.is_result[i] || self.is_left[i];
        // What is only another name for a variable needs none of its own.
        let is_alias = is_identifier(&expression.text) && !is_own;
        self.is_named[i] = is_alias;
        self.expressions[i] = Some(expression);
        let is_read = self.formulas.is_read(v);
        if is_read || !is_alias && (self.uses[i] > 1 || is_own || self.text_length(v) > MAX_OPERAND) {
            self.name(v);
        }
    }

    /// The name of one output of several, `_` if nothing uses it.
    fn output_name(&mut self, v: ValueId) -> String {
        if self.uses[v.index()] == 0 {
            return "_".into();
        }
        let name = self.names.fresh(&self.hint(v));
        self.expressions[v.index()] = Some(Expression::atom(name.clone()));
        self.is_named[v.index()] = true;
        name
    }

    /// A use of an op with its operands; operands that would make the line too long get lines of their own.
    fn expression(&mut self, id: NodeId, template: &Template, room: usize) -> Result<Expression> {
        let node = self.graph.node(id);
        let unpacked = self.unpacked(node, template);
        let (template, lists) =
            unpacked.as_ref().map_or((template, &[][..]), |(template, lists)| (template, lists));
        let mut operands: Vec<(usize, Expression)> = lists.to_vec();
        for piece in template.pieces() {
            let Piece::Operand(i, _) = piece else { continue };
            if !operands.iter().any(|(known, _)| known == i) {
                operands.push((*i, self.operand(id, *i, template.is_method)?));
            }
        }
        loop {
            let absent = Expression::atom("None".into());
            let find = |i| operands.iter().find(|(known, _)| *known == i).map_or(&absent, |(_, e)| e);
            let whole = template.fill(find, |s| self.symbols.text(s));
            if whole.text.len() <= room {
                return Ok(whole);
            }
            let open = operands.iter_mut().filter(|(i, _)| {
                !self.overrides.contains_key(&(id, *i))
                    && node
                        .inputs
                        .get(*i)
                        .is_some_and(|v| self.expressions[v.index()].is_some() && !self.is_named[v.index()])
            });
            let Some((i, longest)) = open.max_by_key(|(_, e)| e.text.len()) else { return Ok(whole) };
            let v = node.inputs[*i];
            self.name(v);
            *longest = self.expressions[v.index()].clone().unwrap_or_else(|| longest.clone());
        }
    }

    fn operand(&mut self, id: NodeId, i: usize, for_method: bool) -> Result<Expression> {
        if let Some(expression) = self.overrides.get(&(id, i)) {
            return Ok(expression.clone());
        }
        let node = self.graph.node(id);
        let Some(&v) = node.inputs.get(i) else {
            return Err(Error::internal(format!("the lowering of {} refers to input {i}", node.op.name)));
        };
        match self.graph.lit(v) {
            Some(lit) if for_method => Ok(self.method_operand(node, lit)),
            Some(lit) => Ok(self.constant_operand(node, v, lit)),
            None => self.read(v),
        }
    }

    /// A literal in the place of a tensor.
    fn constant_operand(&mut self, node: &Node, own: ValueId, lit: &Lit) -> Expression {
        let target = self.module.target;
        let tensors = || node.inputs.iter().enumerate().filter(|(i, _)| node.op.takes_tensor(*i));
        if let Lit::Tensor(t) = lit {
            let is_variable = |v: &ValueId| *v != own && self.graph.lit(*v).is_none();
            let mut others = tensors().filter(|(_, v)| is_variable(v)).filter_map(|(_, &v)| self.graph.ty(v));
            let can_be_plain = is_elementwise(node) && others.any(|ty| ty.dtype == t.dtype());
            if let Some(number) = literal::plain(target, t).filter(|_| can_be_plain) {
                return Expression::measured(number);
            }
            return Expression::atom(self.module.constant(t));
        }
        let weak = lit.weak_dtype(DType::F32).unwrap_or(DType::F32);
        // A condition is an array also where it is known.
        if weak == DType::Bool && takes_truth_values(node, own) {
            return self.typed_number(lit, weak);
        }
        let mut dtypes = tensors().filter_map(|(_, &v)| self.graph.ty(v)).map(|ty| ty.dtype);
        let beside = dtypes.find(|d| d.kind() >= weak.kind());
        if let Some(dtype) = beside {
            if target.typed_numbers.contains(&dtype) {
                self.module.note_dtype(dtype);
            }
            let symbol = |s: &Symbol| self.symbols.text(&symbol_name(s)).to_owned();
            return Expression::measured(literal::number(target, lit, dtype, &symbol));
        }
        self.typed_number(lit, weak)
    }

    /// A literal in the place of a tensor of a method, which is given arrays only.
    fn method_operand(&mut self, node: &Node, lit: &Lit) -> Expression {
        if let Lit::Tensor(t) = lit
            && t.rank() > 0
        {
            return Expression::atom(self.module.constant(t));
        }
        let weak = lit.weak_dtype(DType::F32).unwrap_or(DType::F32);
        let tensors = node.inputs.iter().enumerate().filter(|(i, _)| node.op.takes_tensor(*i));
        let mut dtypes = tensors.filter_map(|(_, &v)| self.graph.ty(v)).map(|ty| ty.dtype);
        let dtype = dtypes.find(|d| d.kind() >= weak.kind()).unwrap_or(weak);
        let symbol = |s: &Symbol| self.symbols.text(&symbol_name(s)).to_owned();
        Expression::atom(match lit {
            Lit::Tensor(t) => literal::tensor(&CUSTOM, t),
            lit => literal::number(&CUSTOM, lit, dtype, &symbol),
        })
    }

    fn typed_number(&mut self, lit: &Lit, dtype: DType) -> Expression {
        self.module.note_dtype(dtype);
        let symbol = |s: &Symbol| self.symbols.text(&symbol_name(s)).to_owned();
        Expression::atom(literal::typed_number(self.module.target, lit, dtype, &symbol))
    }

    /// What stands for a value that is not a literal.
    fn read(&mut self, v: ValueId) -> Result<Expression> {
        if let Some(expression) = &self.expressions[v.index()] {
            return Ok(expression.clone());
        }
        let expression = self.input(v)?;
        self.expressions[v.index()] = Some(expression.clone());
        if self.uses[v.index()] > 1 {
            self.name(v);
            return self.read(v);
        }
        Ok(expression)
    }

    /// `data["input"]`
    fn input(&self, v: ValueId) -> Result<Expression> {
        let value = self.graph.value(v);
        let key = value.name.as_deref().unwrap_or_default();
        let Def::Input(role) = value.def else {
            return Err(Error::internal(format!("value {} is read before it is computed", v.index())));
        };
        let argument = self.function.arguments.iter().find(|a| a.role == role);
        let argument = argument.ok_or_else(|| no_such_input(key, self.function.name))?;
        Ok(Expression::atom(format!("{}[{}]", argument.name, python_string(key))))
    }

    fn text_length(&self, v: ValueId) -> usize {
        self.expressions[v.index()].as_ref().map_or(0, |e| e.text.len())
    }

    /// Writes the expression of a value into a line of its own.
    fn name(&mut self, v: ValueId) {
        if let (true, Some(expression)) = (self.formulas.has(v), &self.expressions[v.index()]) {
            let hint = self.shared_hint(v);
            let name = self.module.formula(&hint, &expression.text, &mut self.names);
            self.expressions[v.index()] = Some(Expression::atom(name));
            self.is_named[v.index()] = true;
            return;
        }
        let name = self.names.fresh(&self.hint(v));
        if let Some(expression) = self.expressions[v.index()].replace(Expression::atom(name.clone())) {
            let line = wrapped(format!("{}{name} = {}", self.indent, expression.text));
            self.lines.push((line, self.graph.producer(v)));
        }
        self.is_named[v.index()] = true;
    }

    /// A name for a value, before the namer has seen it.
    fn hint(&self, v: ValueId) -> String {
        let value = self.graph.value(v);
        if let Some(name) = &value.name {
            return name.to_string();
        }
        if self.is_result[v.index()] {
            let output = self.graph.outputs.iter().find(|(_, out)| **out == v);
            if let Some((name, _)) = output {
                return name.to_string();
            }
        }
        let Some(id) = self.graph.producer(v) else { return "value".into() };
        let op = self.graph.node(id).op.name;
        match self.graph.place(id).path.as_deref().filter(|path| !path.is_empty()) {
            Some(path) if path.len() + op.len() < MAX_HINT => format!("{path}.{op}"),
            Some(path) => path.rsplit_once('.').map_or(op.to_owned(), |(layer, _)| format!("{layer}.{op}")),
            None => op.to_owned(),
        }
    }

    /// A name for what is computed once for all layers.
    fn shared_hint(&self, v: ValueId) -> String {
        let Some(id) = self.graph.producer(v) else { return "value".into() };
        let path = self.graph.place(id).path.as_deref().unwrap_or_default();
        let layer = path.rsplit_once('.').map_or(path, |(_, layer)| layer);
        format!("{layer}.{}", self.graph.node(id).op.name)
    }

    fn return_line(&mut self, dicts: &[Entries], states: &Entries) -> Result<()> {
        let mut parts: Vec<Vec<String>> = Vec::new();
        let is_tuple = matches!(self.function.results, Results::Tuple);
        let last = (!states.is_empty()).then_some(states);
        for entries in dicts.iter().chain(last) {
            let mut items = Vec::with_capacity(entries.len());
            for (key, v) in entries {
                let text = self.result(*v)?;
                items.push(if is_tuple { text } else { format!("{}: {text}", python_string(key)) });
            }
            parts.push(items);
        }
        let whole = if is_tuple {
            let items: Vec<String> = parts.concat();
            if let [one] = items.as_slice() { format!("{one},") } else { items.join(", ") }
        } else {
            let dicts: Vec<String> = parts.iter().map(|items| format!("{{{}}}", items.join(", "))).collect();
            dicts.join(", ")
        };
        let whole = if whole.is_empty() { "()".into() } else { whole };
        if whole.len() + INDENT.len() + 7 <= MAX_LINE {
            self.lines.push((format!("{INDENT}return {whole}"), None));
        } else {
            self.lines.push((format!("{INDENT}return {}", several_lines(&parts, is_tuple)), None));
        }
        Ok(())
    }

    /// A result as an array.
    fn result(&mut self, v: ValueId) -> Result<String> {
        let target = self.module.target;
        let text = match self.graph.lit(v) {
            Some(Lit::Tensor(t)) => {
                let text = self.module.constant(t);
                if text.starts_with("_CONSTANT") { target.copy.replace("{value}", &text) } else { text }
            }
            Some(lit) if lit.is_numeric() => {
                let dtype = lit.weak_dtype(DType::F32).unwrap_or(DType::F32);
                self.typed_number(lit, dtype).text
            }
            Some(lit) => {
                return Err(Error::internal(format!("{lit} is an output")));
            }
            None => self.read(v)?.text,
        };
        let rank = self.graph.ty(v).map_or(0, |ty| ty.shape.rank());
        let is_input = matches!(self.graph.value(v).def, Def::Input(_));
        if rank == 0 && !is_input { Ok(target.result.replace("{value}", &text)) } else { Ok(text) }
    }
}

/// Whether all places where the value stands are for booleans alone.
fn takes_truth_values(node: &Node, v: ValueId) -> bool {
    let mut places = node.inputs.iter().enumerate().filter(|(_, input)| **input == v);
    places.all(|(i, _)| match node.op.port_of(i).map(|port| port.kind) {
        Some(PortKind::Tensor(kinds) | PortKind::Optional(kinds) | PortKind::Variadic(kinds)) => {
            kinds == Kinds::BOOL
        }
        _ => false,
    })
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The returned dicts, and the new states.
pub fn results(function: &Function<'_>) -> (Vec<Entries>, Entries) {
    let graph = function.graph;
    let outputs = || graph.outputs.iter().map(|(key, v)| (key.clone(), *v)).collect();
    let dicts = match &function.results {
        Results::Dict | Results::Tuple => vec![outputs()],
        Results::Dicts(dicts) => dicts.to_vec(),
    };
    let name = |v: ValueId| graph.value(v).name.clone().unwrap_or_default();
    (dicts, graph.updates.iter().map(|(old, new)| (name(*old), *new)).collect())
}

/// How often each value is read, or returned.
pub fn reads(function: &Function<'_>, live: &[bool]) -> Vec<usize> {
    let graph = function.graph;
    let mut reads = vec![0; graph.values().len()];
    let (dicts, states) = results(function);
    for (_, v) in dicts.iter().flatten().chain(&states) {
        reads[v.index()] += 1;
    }
    for (_, node) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        for v in &node.inputs {
            reads[v.index()] += 1;
        }
    }
    reads
}

fn several_lines(parts: &[Vec<String>], is_tuple: bool) -> String {
    let (open, close) = if is_tuple { ("(", ")") } else { ("{", "}") };
    let inner = INDENT.repeat(2);
    let block = |items: &Vec<String>| {
        if items.is_empty() {
            return format!("{open}{close}");
        }
        let entries: Vec<String> = items.iter().map(|item| entry(item, inner.len())).collect();
        let lines = entries.join(&format!(",\n{inner}"));
        format!("{open}\n{inner}{lines},\n{INDENT}{close}")
    };
    if is_tuple {
        return block(&parts.concat());
    }
    parts.iter().map(block).collect::<Vec<_>>().join(", ")
}

/// Whether plain numbers may stand beside the tensors; the builder asks the same before it leaves them plain.
fn is_elementwise(node: &Node) -> bool {
    matches!(node.op.eval, Some(Eval::F1(_) | Eval::F2(..) | Eval::Scalar(_)))
        || matches!(node.op.shape, ShapeRule::Broadcast)
}
