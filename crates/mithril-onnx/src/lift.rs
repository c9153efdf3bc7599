//! From the typed graph to a logical model: ops become parts, symbols the sizes of the inputs that have them.

use std::sync::Arc;

use mithril_ir::dim::DimFactor;
use mithril_ir::graph::Def;
use mithril_ir::{Dim, Error, Graph, Lit, Place, Result, Symbol, ValueId};
use mithril_model::{Arg, Connection, IOKey, Model};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::context::malformed;

/// What stands for the values of a graph.
struct Lift<'a> {
    graph: &'a Graph,
    args: FxHashMap<ValueId, Arg>,
    /// Where a symbol is read: an axis of an input.
    symbols: FxHashMap<Symbol, (Connection, usize)>,
    sizes: FxHashMap<Symbol, Connection>,
}

/// The model with these outputs; `inputs` are what stands for those of the graph.
pub fn lift(
    graph: &Graph,
    inputs: Vec<(ValueId, Connection)>,
    outputs: Vec<(String, ValueId)>,
    frozen: &FxHashSet<ValueId>,
) -> Result<Model> {
    let mut lift = Lift {
        graph,
        args: FxHashMap::default(),
        symbols: FxHashMap::default(),
        sizes: FxHashMap::default(),
    };
    let named = inputs.clone();
    for (v, connection) in inputs {
        for (axis, dim) in graph.ty(v).map(|t| &*t.shape).unwrap_or_default().iter().enumerate() {
            if let Some(symbol) = dim.as_symbol() {
                lift.symbols.entry(symbol.clone()).or_insert_with(|| (connection.clone(), axis));
            }
        }
        lift.args.insert(v, connection.into());
    }
    let mut needed = vec![false; graph.nodes().len()];
    let mut stack: Vec<ValueId> = outputs.iter().map(|(_, v)| *v).collect();
    while let Some(v) = stack.pop() {
        if let Some(n) = graph.producer(v)
            && !std::mem::replace(&mut needed[n.index()], true)
        {
            stack.extend(&graph.node(n).inputs);
        }
    }
    for (n, node) in graph.nodes().filter(|(n, _)| needed[n.index()]) {
        let mut args = Vec::with_capacity(node.inputs.len());
        for &v in &node.inputs {
            args.push(lift.arg(v)?);
        }
        let outputs = if node.inputs.iter().any(|v| frozen.contains(v)) {
            with_frozen(node.op.name, &node.inputs, args, frozen)
        } else {
            Connection::op_outputs(node.op.name, args, Vec::new())
        };
        let outputs = outputs.map_err(|e| e.at(graph.place(n)))?;
        for (&v, connection) in node.outputs.iter().zip(outputs) {
            lift.args.insert(v, connection.into());
        }
    }
    let used = graph.nodes().filter(|(n, _)| needed[n.index()]).flat_map(|(_, node)| &node.inputs);
    let used: FxHashSet<ValueId> = used.copied().collect();
    // First, so that no part is called as the name of a parameter begins.
    let first = named.iter().filter(|(v, _)| used.contains(v)).map(|(_, connection)| connection);
    let mut model = Model::new();
    model.declare(first, &Place::default())?;
    let mut chosen: Vec<(Arc<str>, Connection)> = Vec::with_capacity(outputs.len());
    for (name, v) in outputs {
        let connection = match lift.arg(v)? {
            Arg::Connection(c) if matches!(graph.value(v).def, Def::Node(..)) => c,
            // A model computes its outputs: what is handed on, or a constant, is written as an op.
            other => {
                let shape = graph.ty(v).map(|t| t.shape.clone()).unwrap_or_default();
                let shape = lift.literal(&Lit::tuple(shape.iter().cloned()))?;
                Connection::op("reshape", vec![other, shape], Vec::new())?
            }
        };
        chosen.push((name.into(), connection));
    }
    model.add_outputs(&chosen, &Place::default())?;
    Ok(model)
}

/// A use of an op within a model of its own, whose inputs say which of them are parameters that are not trained: an input
/// of the model that feeds an op alone would be data then.
fn with_frozen(
    op: &str,
    inputs: &[ValueId],
    args: Vec<Arg>,
    frozen: &FxHashSet<ValueId>,
) -> Result<Vec<Connection>> {
    let (mut inner, mut outer) = (Vec::with_capacity(args.len()), Vec::new());
    for (i, (v, arg)) in inputs.iter().zip(args).enumerate() {
        inner.push(match arg {
            Arg::Connection(c) if !c.is_literal() => {
                let name = format!("input{i}");
                let key = IOKey::new(&name);
                outer.push((name, Arg::Connection(c)));
                Arg::Connection(Connection::input(if frozen.contains(v) { key.trainable(true) } else { key }))
            }
            other => other,
        });
    }
    let outputs = Connection::op_outputs(op, inner, Vec::new())?;
    let named = outputs.into_iter().enumerate().map(|(i, c)| (format!("output{i}").into(), c));
    // The class says what it is called: a name of its own could be given only once.
    let mut model = Model::with_class(op);
    model.add_outputs(&named.take(1).collect::<Vec<_>>(), &Place::default())?;
    model.call_with(Vec::new(), outer.iter().map(|(name, arg)| (&**name, arg.clone())).collect(), None)
}

impl Lift<'_> {
    fn arg(&mut self, v: ValueId) -> Result<Arg> {
        if let Some(arg) = self.args.get(&v) {
            return Ok(arg.clone());
        }
        match self.graph.lit(v) {
            Some(lit) => self.literal(&lit.clone()),
            None => Err(Error::internal("a value is read before it is made")),
        }
    }
    /// A literal, with its symbols as sizes of inputs.
    fn literal(&mut self, lit: &Lit) -> Result<Arg> {
        Ok(match lit {
            Lit::Int(dim @ Dim::Expr(_)) => self.size(dim)?,
            Lit::Tuple(items) if items.iter().any(has_symbol) => {
                Arg::List(items.iter().map(|item| self.literal(item)).collect::<Result<_>>()?)
            }
            other => Arg::Lit(other.clone()),
        })
    }
    fn size(&mut self, dim: &Dim) -> Result<Arg> {
        let (terms, constant) = dim.parts();
        let mut sum: Option<Arg> = None;
        for (factors, coefficient) in terms {
            let mut product: Option<Arg> = None;
            for factor in factors {
                let arg = match factor {
                    DimFactor::Symbol(symbol) => self.symbol(symbol)?.into(),
                    DimFactor::Div(a, b) => {
                        let (a, b) = (self.size(a)?, self.size(b)?);
                        Connection::arithmetic("floor_divide", a, b)?.into()
                    }
                };
                product = Some(match product {
                    Some(left) => Connection::arithmetic("multiply", left, arg)?.into(),
                    None => arg,
                });
            }
            let mut term = product.unwrap_or_else(|| 1_i64.into());
            if *coefficient != 1 {
                term = Connection::arithmetic("multiply", term, (*coefficient).into())?.into();
            }
            sum = Some(match sum {
                Some(left) => Connection::arithmetic("add", left, term)?.into(),
                None => term,
            });
        }
        Ok(match sum {
            None => constant.into(),
            Some(sum) if constant == 0 => sum,
            Some(sum) => Connection::arithmetic("add", sum, constant.into())?.into(),
        })
    }
    fn symbol(&mut self, symbol: &Symbol) -> Result<Connection> {
        if let Some(known) = self.sizes.get(symbol) {
            return Ok(known.clone());
        }
        let (input, axis) = self.symbols.get(symbol).ok_or_else(|| {
            malformed(format!("the size `{symbol}` is that of no input"))
                .help("give the shapes of the inputs")
        })?;
        let size = input.shape()?.item(*axis as i64)?;
        self.sizes.insert(symbol.clone(), size.clone());
        Ok(size)
    }
}

fn has_symbol(lit: &Lit) -> bool {
    match lit {
        Lit::Int(dim) => dim.known().is_none(),
        Lit::Tuple(items) => items.iter().any(has_symbol),
        _ => false,
    }
}
