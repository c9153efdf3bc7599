//! Lift: a typed graph back into connections, so that gradients become a part of a logical model again.

use std::sync::Arc;

use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Def, Graph, Role};
use mithril_model::{Arg, Connection};
use rustc_hash::FxHashMap;

/// Applies the ops of `graph` to connections that stand for its inputs, by role and name; its outputs in order.
pub fn lift(graph: &Graph, input: &dyn Fn(Role, &str) -> Option<Arg>) -> Result<Vec<(Arc<str>, Arg)>> {
    let mut args: FxHashMap<_, Arg> = FxHashMap::default();
    for &v in &graph.inputs {
        let value = graph.value(v);
        let (Def::Input(role), Some(name)) = (&value.def, &value.name) else { continue };
        let arg = input(*role, name).ok_or_else(|| {
            Error::new(Code::BadConnection, format!("nothing stands for the input `{name}`")).help(
                "functions may use what they are given, arrays, and arguments of the functions around them",
            )
        })?;
        args.insert(v, arg);
    }
    let read = |args: &FxHashMap<_, Arg>, v| {
        let argument = args.get(&v).cloned().or_else(|| graph.lit(v).map(|lit| Arg::Lit(lit.clone())));
        argument.ok_or_else(|| Error::internal("a value is read before it is lifted"))
    };
    for (_, node) in graph.nodes() {
        let inputs = node.inputs.iter().map(|&v| read(&args, v)).collect::<Result<Vec<_>>>()?;
        let outputs = Connection::op_outputs(node.op.name, inputs, Vec::new())?;
        for (&v, connection) in node.outputs.iter().zip(outputs) {
            args.insert(v, Arg::Connection(connection));
        }
    }
    graph.outputs.iter().map(|(name, &v)| Ok((name.clone(), read(&args, v)?))).collect()
}
