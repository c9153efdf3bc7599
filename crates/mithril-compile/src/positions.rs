//! Positions in tables: which ones a call leads to, and where one of them is outside.
//!
//! Positions may follow from numbers that are given as data (how many tokens came before); frameworks differ in what
//! they do with one outside, down to nothing at all. Such positions are few, and are computed before a call. Others are
//! the data itself: tokens, classes. Compiled code looks at each when it uses it, and says no more than that one is
//! outside. So after such a call has failed, the positions are computed again, to tell which one it was.

use std::sync::Arc;

use mithril_ir::dtype::Kind;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Def, Graph, Role, TensorType, ValueId};
use mithril_ir::interp::{self, Symbols, resolve};
use mithril_ir::{DType, Dim, Place, Tensor};

use crate::passes::dce::dce;
use crate::passes::legalize::legalize;
use crate::passes::specialize::specialize;

/// Which positions are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that depend on a single integer in the data, and on nothing else than such and lists of them: that is
    /// quick.
    OfNumbers,
    /// Those that depend on nothing but integers and lists in the data (classes may be floats): for frameworks that take
    /// any position, up to memory that is not theirs.
    OfLittle,
    /// Those that depend on nothing but data.
    OfData,
}

/// Positions in tables that follow from data.
#[derive(Clone, Debug)]
pub struct Positions {
    /// Computes the positions.
    graph: Graph,
    tables: Vec<Table>,
    /// Where positions are looked up that follow from more than that.
    others: Vec<Table>,
    float: DType,
}

/// A use of an op that looks something up.
#[derive(Clone, Debug)]
struct Table {
    op: &'static str,
    place: Place,
    /// In the graph that they were found in; the layers of a decoder look at the same.
    positions: ValueId,
    size: Dim,
    /// Names of the data that the positions follow from.
    inputs: Vec<Arc<str>>,
}

impl Positions {
    /// Those of a program; `None` if there is nothing to look at.
    pub fn of(graph: &Graph, float: DType, which: Which) -> Result<Option<Self>> {
        if which == Which::OfNumbers {
            let is_number = |ty: &TensorType| ty.dtype.kind() == Kind::Int && ty.shape.rank() == 0;
            let mut data = graph.values().filter(|(_, value)| value.def == Def::Input(Role::Data));
            if !data.any(|(_, value)| value.ty.as_ref().is_some_and(is_number)) {
                return Ok(None);
            }
            return Self::find(graph, graph, float, which);
        }
        // A loss looks its classes up by an op inside.
        let plain = dce(&legalize(graph, float, &|graph, n| graph.node(n).op.indexed.is_some())?)?;
        Self::find(&plain, graph, float, which)
    }
    /// The positions in a graph; `user` is the graph with the ops as the user knows them.
    fn find(graph: &Graph, user: &Graph, float: DType, which: Which) -> Result<Option<Self>> {
        let depends = dependencies(graph, which);
        let (mut tables, mut others): (Vec<Table>, Vec<Table>) = (Vec::new(), Vec::new());
        for (n, node) in graph.nodes() {
            let Some(indexed) = &node.op.indexed else { continue };
            let Some(&positions) = node.inputs.get(indexed.indices) else { continue };
            let Some(size) = indexed.size(graph, node) else { continue };
            let depends = depends[positions.index()];
            let list = match which {
                Which::OfNumbers if depends.number && depends.little => &mut tables,
                Which::OfLittle | Which::OfData if depends.little => &mut tables,
                Which::OfNumbers | Which::OfLittle => continue,
                Which::OfData => &mut others,
            };
            if !list.iter().any(|t| t.positions == positions && t.size == size) {
                let place = graph.place(n).clone();
                let op = name_of(user, node.op.name, &place);
                list.push(Table { op, place, positions, size, inputs: sources(graph, positions) });
            }
        }
        if tables.is_empty() && others.is_empty() {
            return Ok(None);
        }
        let mut part = graph.clone();
        part.updates.clear();
        part.outputs = tables.iter().enumerate().map(|(i, t)| (i.to_string().into(), t.positions)).collect();
        Ok(Some(Self { graph: dce(&part)?, tables, others, float }))
    }
    /// The same for one specialization.
    pub fn specialize(&self, symbols: &Symbols) -> Result<Self> {
        let mut graph = specialize(&self.graph, symbols, self.float)?;
        let mut is_read = vec![false; graph.values().len()];
        for v in graph.nodes().flat_map(|(_, node)| &node.inputs).chain(graph.outputs.values()) {
            is_read[v.index()] = true;
        }
        graph.inputs.retain(|v| is_read[v.index()]);
        let sized = |t: &Table| Ok(Table { size: Dim::Const(resolve(&t.size, symbols)?), ..t.clone() });
        let all = |tables: &[Table]| tables.iter().map(sized).collect::<Result<_>>();
        Ok(Self { graph, tables: all(&self.tables)?, others: all(&self.others)?, float: self.float })
    }
    /// Names of the data that positions depend on; of a specialization.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.graph.inputs.iter().filter_map(|&v| self.graph.value(v).name.as_deref())
    }
    /// The error that a position is outside of its table.
    pub fn check(&self, inputs: &[Arc<Tensor>]) -> Result<Option<Error>> {
        let outputs = match interp::run(&self.graph, inputs) {
            // A position that others are looked up by.
            Err(error) if error.code() == Code::IndexOutOfRange => return Ok(Some(error)),
            outputs => outputs?,
        };
        for (table, positions) in self.tables.iter().zip(&outputs) {
            let Dim::Const(size) = table.size else { continue };
            if positions.are_positions_of(size) {
                continue;
            }
            // What int64 cannot hold lies outside of every table.
            let all = positions.to_ints().into_iter().map(|n| i64::try_from(n).unwrap_or(i64::MAX));
            let all: Vec<i64> = all.collect();
            let Some(at) = all.iter().position(|p| !(-size..size).contains(p)) else { continue };
            let named: Vec<(&str, &Tensor)> = self
                .inputs()
                .zip(inputs)
                .filter(|(name, _)| table.inputs.iter().any(|input| **input == **name))
                .map(|(name, value)| (name, &**value))
                .collect();
            return Ok(Some(table.outside(all[at], at, all.len(), size, &named)));
        }
        Ok(None)
    }
    /// What is known of a call that failed though [`Positions::check`] finds nothing: the position is computed from more
    /// than data.
    pub fn guess(&self) -> Option<Error> {
        let error = |table: &Table| {
            let message = format!("{} was given an index that is out of range", table.op);
            Error::new(Code::IndexOutOfRange, message).at(&table.place)
        };
        let help = "the model computes it: the interpreter (InterpreterBackend) says which one it is";
        match &self.others[..] {
            [] => None,
            [one] => Some(error(one).note(format!("the axis has size {}", one.size)).help(help)),
            several => {
                let error = Error::new(Code::IndexOutOfRange, "an index into a table is out of range");
                let uses = several.iter().take(3).map(|table| match table.place.path.as_deref() {
                    Some(path) if !path.is_empty() => format!("{} in `{path}`", table.op),
                    _ => table.op.to_owned(),
                });
                let uses = uses.collect::<Vec<_>>().join(", ");
                let more = if several.len() > 3 {
                    format!(" and {} more", several.len() - 3)
                } else {
                    String::new()
                };
                Some(error.note(format!("it is of one of these: {uses}{more}")).help(help))
            }
        }
    }
}

impl Table {
    /// The error that position number `at` of so many is outside of the places there are.
    fn outside(&self, position: i64, at: usize, many: usize, size: i64, named: &[(&str, &Tensor)]) -> Error {
        let numbers: Vec<_> = named.iter().filter(|(_, value)| value.rank() == 0).collect();
        if !numbers.is_empty() {
            let message = format!("{} needs index {position} of an axis of size {size}", self.op);
            let mut error = Error::new(Code::IndexOutOfRange, message).at(&self.place);
            for (name, value) in numbers {
                error = error.note(format!("{name} is {} in this call", value.to_ints()[0]));
            }
            return error.help(
                "the data starts too late or is too long: a text must not be longer than the context of the model, and \
                 needs a cache with a place for each of its tokens",
            );
        }
        let message = format!("{} is given index {position}, but the axis has size {size}", self.op);
        let mut error = Error::new(Code::IndexOutOfRange, message).at(&self.place);
        if let [(name, value)] = named {
            let is_data = value.len() == many && value.get(at).f64() == position as f64;
            error = error.note(if is_data {
                format!("it is element {:?} of `{name}`", coordinates(at, value.shape()))
            } else {
                format!("it follows from `{name}`")
            });
        }
        error.help(match size {
            0 => "there is nothing to look up: the table is empty".to_owned(),
            _ => format!(
                "give numbers from 0 to {}; negative ones, down to -{size}, count from the end",
                size - 1
            ),
        })
    }
}

/// The place of element `i` in a tensor.
fn coordinates(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&n| {
            let coordinate = i % n.max(1);
            i /= n.max(1);
            coordinate
        })
        .collect();
    at.reverse();
    at
}

/// What the user calls an op at a place: the one that it is the inside of, if there is one.
fn name_of(user: &Graph, op: &'static str, place: &Place) -> &'static str {
    let there: Vec<_> =
        user.nodes().filter(|(n, _)| user.place(*n) == place).map(|(_, node)| node.op).collect();
    if there.iter().any(|known| known.name == op) {
        return op;
    }
    there.iter().find(|known| known.expand.is_some()).map_or(op, |whole| whole.name)
}

/// Names of the data that a value follows from.
fn sources(graph: &Graph, value: ValueId) -> Vec<Arc<str>> {
    let mut is_source = vec![false; graph.values().len()];
    is_source[value.index()] = true;
    for (_, node) in graph.nodes().rev() {
        if node.outputs.iter().any(|v| is_source[v.index()]) {
            for v in &node.inputs {
                is_source[v.index()] = true;
            }
        }
    }
    graph
        .inputs
        .iter()
        .filter(|v| is_source[v.index()])
        .filter_map(|&v| graph.value(v).name.clone())
        .collect()
}

/// What a value depends on.
#[derive(Clone, Copy, Default)]
struct Dependency {
    /// A single integer that is data.
    number: bool,
    /// Nothing but what is looked at, and literals.
    little: bool,
}

fn dependencies(graph: &Graph, which: Which) -> Vec<Dependency> {
    let mut all = vec![Dependency::default(); graph.values().len()];
    for (v, value) in graph.values() {
        all[v.index()] = match (&value.def, &value.ty) {
            (Def::Const(_), _) => Dependency { number: false, little: true },
            (Def::Input(Role::Data), Some(ty)) => {
                let is_integer = ty.dtype.kind() == Kind::Int;
                Dependency {
                    number: is_integer && ty.shape.rank() == 0,
                    little: match which {
                        Which::OfNumbers => is_integer && ty.shape.rank() <= 1,
                        Which::OfLittle => is_integer || ty.shape.rank() <= 1,
                        Which::OfData => true,
                    },
                }
            }
            _ => Dependency::default(),
        };
    }
    for (_, node) in graph.nodes() {
        let dependencies = || node.inputs.iter().map(|v| all[v.index()]);
        let dependency =
            Dependency { number: dependencies().any(|d| d.number), little: dependencies().all(|d| d.little) };
        for v in &node.outputs {
            all[v.index()] = dependency;
        }
    }
    all
}
