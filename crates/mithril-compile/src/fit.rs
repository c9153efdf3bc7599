//! Whether what is known at a call fits a program: sizes that symbols stood for, and numbers that say where tokens go.
//!
//! A graph with symbols holds for the sizes its author thought of: a slice up to `length` is as long as `length` only
//! where there is so much to slice. So the shapes are inferred again with the numbers of a call. And positions in a
//! table may follow from numbers that are given as data (how many tokens came before); frameworks differ in what they
//! do with a position outside, down to nothing at all. Such positions are computed before the call.

use std::sync::Arc;

use mithril_ir::build::Builder;
use mithril_ir::dtype::Kind;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Def, Graph, Node, Role, ValueId};
use mithril_ir::interp::{self, Symbols, resolve, resolve_lit};
use mithril_ir::{DType, Dim, Lit, Place, Shape, Tensor};

use crate::passes::concrete::concrete;
use crate::passes::prune::prune;

/// The error that the program does not hold for these sizes, at the first op where it shows.
pub fn misfit(graph: &Graph, symbols: &Symbols, float: DType) -> Option<Error> {
    if symbols.is_empty() {
        return None;
    }
    infer_again(graph, symbols, float).err()
}

fn infer_again(graph: &Graph, symbols: &Symbols, float: DType) -> Result<()> {
    let sizes = |shape: &Shape| shape.iter().map(|d| resolve(d, symbols)).collect::<Result<Vec<i64>>>();
    let mut builder = Builder::new(float);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values().len()];
    for (v, value) in graph.values() {
        map[v.index()] = match (&value.def, &value.ty) {
            (Def::Const(lit), _) => Some(builder.graph.add_literal(resolve_lit(lit, symbols)?)),
            (Def::Input(role), Some(ty)) => {
                let name = value.name.clone().unwrap_or_else(|| "input".into());
                let mut ty = ty.clone();
                ty.shape = Shape::of(sizes(&ty.shape)?);
                Some(builder.graph.add_input(name, *role, ty))
            }
            _ => None,
        };
    }
    for (n, node) in graph.nodes() {
        builder.set_origin(graph.place(n).clone());
        let inputs: Option<Vec<ValueId>> = node.inputs.iter().map(|v| map[v.index()]).collect();
        let inputs = inputs.ok_or_else(|| Error::internal("a value is used before it is made"))?;
        let wanted: Vec<_> = node.outputs.iter().filter_map(|&v| graph.ty(v)).collect();
        let outputs = if wanted.iter().all(|ty| ty.shape.known().is_some()) && !has_symbols(graph, node) {
            let types: Vec<_> = wanted.iter().map(|&ty| ty.clone()).collect();
            builder.push_typed(node.op, inputs.into_iter().collect(), types)
        } else {
            builder.push(node.op, &inputs)?
        };
        for ((&old, &new), wanted) in node.outputs.iter().zip(&outputs).zip(wanted) {
            let found = builder.graph.ty(new).map(|ty| sizes(&ty.shape)).transpose()?;
            let needed = sizes(&wanted.shape)?;
            if let Some(found) = found.filter(|found| *found != needed) {
                return Err(differs(node, &wanted.shape, &needed, &found, symbols).at(graph.place(n)));
            }
            map[old.index()] = Some(new);
        }
    }
    Ok(())
}

/// Whether an input of the node depends on a symbol.
fn has_symbols(graph: &Graph, node: &Node) -> bool {
    node.inputs.iter().any(|&v| match (graph.lit(v), graph.ty(v)) {
        (Some(lit), _) => holds_symbol(lit),
        (None, ty) => ty.is_some_and(|ty| ty.shape.known().is_none()),
    })
}

fn holds_symbol(lit: &Lit) -> bool {
    let is_symbolic = |dim: &Dim| dim.known().is_none();
    match lit {
        Lit::Int(dim) => is_symbolic(dim),
        Lit::Tuple(items) => items.iter().any(holds_symbol),
        Lit::Slice(parts) => parts.iter().any(holds_symbol),
        _ => false,
    }
}

fn differs(node: &Node, shape: &Shape, needed: &[i64], found: &[i64], symbols: &Symbols) -> Error {
    let (found_shape, needed_shape) = (Shape::of(found.to_vec()), Shape::of(needed.to_vec()));
    let message = format!("{} gives {found_shape}, and {needed_shape} is needed", node.op.name);
    let mut error = Error::new(Code::ShapeMismatch, format!("the sizes of this call do not fit: {message}"));
    let mut help = "give data of other sizes".to_owned();
    for (axis, dim) in shape.iter().enumerate() {
        let Some((symbol, n)) = dim.as_symbol().and_then(|s| Some((s, symbols.get(s)?))) else { continue };
        error = error.note(format!("{symbol} is {n} in this call"));
        if let Some(m) = found.get(axis).filter(|m| *m < n) {
            help = format!("the model has room for {m}: give data in which {symbol} is at most {m}");
        }
    }
    error.help(help)
}

/// Positions in tables that follow from numbers given as data.
#[derive(Clone, Debug)]
pub struct Positions {
    /// Computes the positions.
    graph: Graph,
    tables: Vec<Table>,
    float: DType,
}

/// A use of an op that looks something up.
#[derive(Clone, Debug)]
struct Table {
    op: &'static str,
    place: Place,
    /// In the graph of the program; the layers of a decoder look at the same.
    positions: ValueId,
    size: Dim,
}

impl Positions {
    /// Those of a program; `None` if it has none. Only positions are looked at that depend on a single number, and on
    /// nothing else than numbers and lists of them: that is quick.
    pub fn of(graph: &Graph, float: DType) -> Result<Option<Self>> {
        let depends = dependencies(graph);
        if !depends.iter().any(|d| d.number) {
            return Ok(None);
        }
        let mut part = graph.clone();
        part.outputs.clear();
        part.updates.clear();
        let mut tables: Vec<Table> = Vec::new();
        for (n, node) in graph.nodes() {
            let Some(indexed) = &node.op.indexed else { continue };
            let (Some(&positions), Some(&table)) =
                (node.inputs.get(indexed.indices), node.inputs.get(indexed.table))
            else {
                continue;
            };
            let depends = depends[positions.index()];
            let size = graph.ty(table).and_then(|ty| indexed.size(graph, node, &ty.shape));
            let is_known = |t: &Table, size: &Dim| t.positions == positions && t.size == *size;
            let Some(size) = size.filter(|_| depends.number && depends.little) else { continue };
            if !tables.iter().any(|t| is_known(t, &size)) {
                part.outputs.insert(tables.len().to_string().into(), positions);
                tables.push(Table { op: node.op.name, place: graph.place(n).clone(), positions, size });
            }
        }
        if tables.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { graph: prune(&part)?, tables, float }))
    }
    /// The same for one specialisation.
    pub fn concrete(&self, symbols: &Symbols) -> Result<Self> {
        let mut graph = concrete(&self.graph, symbols, self.float)?;
        let mut is_read = vec![false; graph.values().len()];
        for v in graph.nodes().flat_map(|(_, node)| &node.inputs).chain(graph.outputs.values()) {
            is_read[v.index()] = true;
        }
        graph.inputs.retain(|v| is_read[v.index()]);
        let sized = |t: &Table| Ok(Table { size: Dim::Const(resolve(&t.size, symbols)?), ..t.clone() });
        Ok(Self { graph, tables: self.tables.iter().map(sized).collect::<Result<_>>()?, float: self.float })
    }
    /// Names of the data that positions depend on; of a specialisation.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.graph.inputs.iter().filter_map(|&v| self.graph.value(v).name.as_deref())
    }
    /// The error that a position is outside of its table.
    pub fn check(&self, inputs: &[Arc<Tensor>]) -> Result<Option<Error>> {
        let found = interp::run(&self.graph, inputs)?;
        for (table, positions) in self.tables.iter().zip(&found) {
            let Dim::Const(size) = table.size else { continue };
            let outside = positions.to_i64s().into_iter().find(|p| !(-size..size).contains(p));
            let Some(position) = outside else { continue };
            let message = format!("{} needs place {position} of something that has {size}", table.op);
            let mut error = Error::new(Code::IndexOutOfRange, message).at(&table.place);
            for (name, value) in self.inputs().zip(inputs).filter(|(_, value)| value.rank() == 0) {
                error = error.note(format!("{name} is {} in this call", value.to_i64s()[0]));
            }
            let help = "the data begins too far behind or is too long: a text may be no longer than the model reads, \
                        and needs a cache with a place for each of its tokens";
            return Ok(Some(error.help(help)));
        }
        Ok(None)
    }
}

/// What a value depends on.
#[derive(Clone, Copy, Default)]
struct Dependency {
    /// A single integer that is data.
    number: bool,
    /// Nothing but such numbers, lists of them, and literals.
    little: bool,
}

fn dependencies(graph: &Graph) -> Vec<Dependency> {
    let mut all = vec![Dependency::default(); graph.values().len()];
    for (v, value) in graph.values() {
        all[v.index()] = match (&value.def, &value.ty) {
            (Def::Const(_), _) => Dependency { number: false, little: true },
            (Def::Input(Role::Data), Some(ty)) if ty.dtype.kind() == Kind::Int && ty.shape.rank() <= 1 => {
                Dependency { number: ty.shape.rank() == 0, little: true }
            }
            _ => Dependency::default(),
        };
    }
    for (_, node) in graph.nodes() {
        let given = || node.inputs.iter().map(|v| all[v.index()]);
        let found = Dependency { number: given().any(|d| d.number), little: given().all(|d| d.little) };
        for v in &node.outputs {
            all[v.index()] = found;
        }
    }
    all
}
