//! The parallel axis of custom ops: threads share those whose results are independent along the first axis, such as the
//! images of a batch.

use mithril_ir::Graph;
use mithril_ir::graph::Node;
use mithril_ir::loops::{Expr, Index, LoopCx};

use crate::c::arguments;

/// For each input of a node whether it is cut along its first axis where the result is: what lies at a place of that axis
/// goes into that place of the result alone, as the loops of the op say. Nothing where the result is not made so.
pub fn parallel_axis(graph: &Graph, node: &Node) -> Vec<bool> {
    cut(graph, node).unwrap_or_default()
}

fn cut(graph: &Graph, node: &Node) -> Option<Vec<bool>> {
    let (args, types) = arguments(graph, node).ok()?;
    let [(_, shape)] = types.as_slice() else { return None };
    let places = shape.first().copied().filter(|&n| n > 1)?;
    let cx = LoopCx::new(node.op, &args, &types, 0);
    let values = (node.op.loops?)(&cx).ok()?;
    let (vars, temporaries, steps, _) = cx.finish();
    let [value] = values.as_slice() else { return None };
    let first = *vars.first()?.first()?;
    if !temporaries.is_empty() || !steps.is_empty() {
        return None;
    }
    let has_place = |index: &Index| {
        let mut uses_axis = false;
        index.each_var(&mut |var| uses_axis |= var == first);
        uses_axis
    };
    let size = |i: usize| graph.ty(*node.inputs.get(i)?)?.shape.first()?.known();
    let mut cuts = vec![None; node.inputs.len()];
    let mut fits = true;
    value.walk(&mut |e| match e {
        Expr::Load { from, at, .. } => {
            let is_cut = at.first() == Some(&Index::var(first)) && size(*from) == Some(places);
            fits &= !at.iter().skip(usize::from(is_cut)).any(has_place);
            fits &= cuts.get_mut(*from).is_some_and(|known| *known.get_or_insert(is_cut) == is_cut);
        }
        other => fits &= !other.indices().into_iter().any(has_place),
    });
    // Constants are not cut.
    let is_read = |i: usize| graph.lit(node.inputs[i]).is_none();
    fits &= (0..cuts.len()).all(|i| cuts[i] != Some(true) || is_read(i));
    let cuts: Vec<bool> = cuts.into_iter().map(|cut| cut == Some(true)).collect();
    (fits && cuts.contains(&true)).then_some(cuts)
}
