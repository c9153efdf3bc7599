//! Parser of graphs. It never panics: any text is a graph or an error with its line.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::lexer::Lexer;
use crate::error::{Place, Result};
use crate::graph::{Graph, Role, ValueId, Values};
use crate::ops;

/// Reads the text form of a graph. Types are not checked; [`crate::verify::verify`] does that.
pub fn parse(text: &str) -> Result<Graph> {
    let mut parser = Parser { lexer: Lexer::new(text), values: FxHashMap::default() };
    let graph = parser.graph()?;
    parser.lexer.end()?;
    Ok(graph)
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    values: FxHashMap<u64, ValueId>,
}

impl Parser<'_> {
    fn graph(&mut self) -> Result<Graph> {
        let mut graph = Graph::new();
        self.lexer.expect("graph")?;
        self.lexer.expect("{")?;
        while !self.lexer.eat("}") {
            if self.lexer.peek() == Some('%') {
                self.node(&mut graph)?;
                continue;
            }
            match self.lexer.word() {
                "param" => self.input(&mut graph, Role::Param)?,
                "data" => self.input(&mut graph, Role::Data)?,
                "state" => self.input(&mut graph, Role::State)?,
                "cotangent" => self.input(&mut graph, Role::Cotangent)?,
                "update" => {
                    let input = self.operand(&mut graph)?;
                    self.lexer.expect("=")?;
                    let value = self.operand(&mut graph)?;
                    graph.updates.push((input, value));
                }
                "return" => {
                    let name: Arc<str> = self.lexer.string()?.into();
                    self.lexer.expect("=")?;
                    let value = self.operand(&mut graph)?;
                    if graph.outputs.insert(name, value).is_some() {
                        return Err(self.lexer.error("two outputs have the same name"));
                    }
                }
                _ => return Err(self.lexer.error("expected an input, a node, update, return or `}`")),
            }
        }
        Ok(graph)
    }

    fn input(&mut self, graph: &mut Graph, role: Role) -> Result<()> {
        let number = self.number()?;
        let name = self.lexer.string()?;
        self.lexer.expect(":")?;
        let ty = self.lexer.tensor_type()?;
        let v = graph.add_input(name, role, ty);
        self.define(number, v)
    }

    fn define(&mut self, number: u64, v: ValueId) -> Result<()> {
        match self.values.insert(number, v) {
            None => Ok(()),
            Some(_) => Err(self.lexer.error(format!("%{number} is defined twice"))),
        }
    }

    fn node(&mut self, graph: &mut Graph) -> Result<()> {
        let mut outputs = Vec::new();
        loop {
            let number = self.number()?;
            let name = if self.lexer.peek() == Some('"') { Some(self.lexer.string()?) } else { None };
            self.lexer.expect(":")?;
            outputs.push((number, name, self.lexer.tensor_type()?));
            if !self.lexer.eat(",") {
                break;
            }
        }
        self.lexer.expect("=")?;
        let name = self.lexer.word();
        let op = ops::find(name).filter(|op| op.name == name);
        let op = op.ok_or_else(|| self.lexer.error(format!("there is no op `{name}`")))?;
        self.lexer.expect("(")?;
        let mut inputs = Values::new();
        while !self.lexer.eat(")") {
            inputs.push(self.operand(graph)?);
            if !self.lexer.eat(",") {
                self.lexer.expect(")")?;
                break;
            }
        }
        self.lexer.expect("in")?;
        let path = self.lexer.string()?;
        let place = Place { path: (!path.is_empty()).then(|| path.into()), line: None };
        let origin = graph.add_origin(place);
        let node = graph.add_node(op, inputs, outputs.iter().map(|(_, _, ty)| ty.clone()), origin);
        let values = graph.node(node).outputs.clone();
        for ((number, name, _), v) in outputs.into_iter().zip(values) {
            if let Some(name) = name {
                graph.name_value(v, name);
            }
            self.define(number, v)?;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<u64> {
        self.lexer.expect("%")?;
        let digits = self.lexer.take_while(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| self.lexer.error("expected a number after %"))
    }

    fn operand(&mut self, graph: &mut Graph) -> Result<ValueId> {
        if self.lexer.peek() == Some('%') {
            let number = self.number()?;
            let value = self.values.get(&number).copied();
            return value.ok_or_else(|| self.lexer.error(format!("%{number} is not defined")));
        }
        let lit = self.lexer.literal()?;
        Ok(graph.add_literal(lit))
    }
}
