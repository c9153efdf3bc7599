//! Shape specialization: replaces symbolic sizes by numbers, for targets whose code has static shapes.

use mithril_ir::DType;
use mithril_ir::build::Builder;
use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Graph, TensorType, ValueId};
use mithril_ir::interp::{Symbols, resolve, resolve_lit};
use mithril_ir::shape::Shape;

/// The same graph with static shapes. A size that the symbols do not determine is an error.
///
/// ```
/// use mithril_compile::passes::specialize::specialize;
/// use mithril_ir::graph::{Graph, Role, TensorType};
/// use mithril_ir::interp::Symbols;
/// use mithril_ir::{DType, Dim, Shape};
///
/// let mut graph = Graph::new();
/// let ty = TensorType { dtype: DType::F32, shape: Shape::of([Dim::symbol("batch"), Dim::Const(3)]) };
/// let x = graph.add_input("x", Role::Data, ty);
/// graph.outputs.insert("y".into(), x);
/// let symbols = Symbols::from_iter([(Dim::symbol("batch").as_symbol().unwrap().clone(), 5)]);
/// let specialized = specialize(&graph, &symbols, DType::F32)?;
/// assert_eq!(specialized.ty(specialized.outputs["y"]).unwrap().shape.known(), Some(vec![5, 3]));
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn specialize(old: &Graph, symbols: &Symbols, float: DType) -> Result<Graph> {
    let sized = |ty: &TensorType| -> Result<TensorType> {
        let sizes = ty.shape.iter().map(|d| resolve(d, symbols)).collect::<Result<Vec<_>>>()?;
        let shape = Shape::of(sizes);
        shape.check()?;
        Ok(TensorType { dtype: ty.dtype, shape })
    };
    let mut builder = Builder::new(float);
    let mut map: Vec<Option<ValueId>> = vec![None; old.values().len()];
    for (v, value) in old.values() {
        map[v.index()] = match (&value.def, &value.ty) {
            (Def::Const(lit), _) => Some(builder.graph.add_literal(resolve_lit(lit, symbols)?)),
            (Def::Input(role), Some(ty)) => {
                let name = value.name.clone().unwrap_or_else(|| "input".into());
                Some(builder.graph.add_input(name, *role, sized(ty)?))
            }
            _ => None,
        };
    }
    let get = |map: &[Option<ValueId>], v: ValueId| {
        map[v.index()]
            .ok_or_else(|| Error::internal(format!("value {} is used before it is defined", v.index())))
    };
    for (n, node) in old.nodes() {
        builder.set_origin(old.place(n).clone());
        let inputs = node.inputs.iter().map(|&v| get(&map, v)).collect::<Result<_>>()?;
        let types = node.outputs.iter().filter_map(|&v| old.ty(v)).map(sized).collect::<Result<Vec<_>>>()?;
        let outputs = builder.push_typed(node.op, inputs, types);
        for (&old_value, &new) in node.outputs.iter().zip(&outputs) {
            if let Some(name) = &old.value(old_value).name {
                builder.graph.name_value(new, name.clone());
            }
            map[old_value.index()] = Some(new);
        }
    }
    // In the order of the old ones, whatever that of the values was.
    builder.graph.inputs = old.inputs.iter().map(|&v| get(&map, v)).collect::<Result<_>>()?;
    for (name, &v) in &old.outputs {
        let new = get(&map, v)?;
        builder.graph.outputs.insert(name.clone(), new);
    }
    for &(input, value) in &old.updates {
        let update = (get(&map, input)?, get(&map, value)?);
        builder.graph.updates.push(update);
    }
    Ok(builder.graph)
}
