//! Slices of what was sliced or joined before: a slice of a slice is one slice, a slice that lies within one part of a
//! concatenation is a slice of that part, and one of several whole parts joins these. What is written into a tensor piece by
//! piece is then read from the pieces.

use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, Node, NodeId, ValueId};
use mithril_ir::literal::Lit;
use mithril_ir::ops::joining::CONCAT;
use mithril_ir::ops::slicing::SLICE;

use crate::rewrite::Rewrite;

/// Positions along an axis: `count` of them, at least one, from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: i64,
    step: i64,
    count: i64,
}

impl Range {
    fn whole(size: i64) -> Self {
        Self { start: 0, step: 1, count: size }
    }
    fn last(self) -> i64 {
        self.start + self.step * (self.count - 1)
    }
    /// The positions in what `self` is cut from, of some of its positions.
    fn of(self, inner: Self) -> Self {
        let step = if inner.count > 1 { self.step * inner.step } else { 1 };
        Self { start: self.start + self.step * inner.start, step, count: inner.count }
    }
}

/// Values that nothing reads but slices, which together are no larger: joining the parts of each of them moves no more
/// elements than joining all.
pub(super) fn only_sliced(graph: &Graph) -> Vec<bool> {
    let mut rest: Vec<Option<i64>> = graph.values().map(|(v, _)| elements(graph, v)).collect();
    for (_, node) in graph.nodes() {
        let is_slice = node.op == &SLICE;
        for (i, v) in node.inputs.iter().enumerate() {
            let taken = if is_slice && i == 0 { elements(graph, node.outputs[0]) } else { None };
            let left = rest[v.index()].zip(taken).map(|(all, taken)| all - taken);
            rest[v.index()] = left.filter(|left| *left >= 0);
        }
    }
    for v in graph.outputs.values().chain(graph.updates.iter().map(|(_, v)| v)) {
        rest[v.index()] = None;
    }
    rest.iter().map(Option::is_some).collect()
}

/// Number of elements, if it is known.
fn elements(graph: &Graph, v: ValueId) -> Option<i64> {
    graph.ty(v)?.shape.iter().map(mithril_ir::Dim::known).try_fold(1_i64, |n, size| n.checked_mul(size?))
}

/// Writes a slice as one of an earlier value, if it is one; whether it is.
pub(super) fn resolve(
    graph: &Graph,
    n: NodeId,
    only_sliced: &[bool],
    rewrite: &mut Rewrite<'_>,
) -> Result<bool> {
    let node = graph.node(n);
    let Some((source, ranges, is_earlier)) = earlier(graph, node) else { return Ok(false) };
    let Some(sizes) = sizes(graph, source) else { return Ok(false) };
    if !is_earlier {
        if !only_sliced[source.index()] {
            return Ok(false);
        }
        let Some((axis, parts)) = whole_parts(graph, source, &ranges) else { return Ok(false) };
        rewrite.at(n);
        let mut args = vec![rewrite.builder.lit(Lit::int(axis as i64))];
        for &part in parts {
            args.push(rewrite.get(part)?);
        }
        let new = rewrite.builder.push(&CONCAT, &args)?;
        rewrite.set_outputs(node, &new);
        return Ok(true);
    }
    rewrite.at(n);
    let x = rewrite.get(source)?;
    let is_whole: Vec<bool> = ranges.iter().zip(&sizes).map(|(r, &size)| *r == Range::whole(size)).collect();
    if is_whole.iter().all(|is| *is) {
        rewrite.set_outputs(node, &[x]);
        return Ok(true);
    }
    let bound = |whole: bool, at: Option<i64>| if whole { Lit::None } else { at.map_or(Lit::None, Lit::int) };
    let starts = Lit::tuple(ranges.iter().zip(&is_whole).map(|(r, &whole)| bound(whole, Some(r.start))));
    // One step past the last position; below 0 a bound would count from the end.
    let stop = |r: &Range| Some(r.last() + r.step.signum()).filter(|stop| *stop >= 0);
    let stops = Lit::tuple(ranges.iter().zip(&is_whole).map(|(r, &whole)| bound(whole, stop(r))));
    let steps = Lit::tuple(ranges.iter().map(|r| Lit::int(r.step)));
    let [starts, stops, steps] = [starts, stops, steps].map(|lit| rewrite.builder.lit(lit));
    let new = rewrite.builder.push(&SLICE, &[x, starts, stops, steps])?;
    rewrite.set_outputs(node, &new);
    Ok(true)
}

/// The parts of a concatenation, two or more, that ranges select as a whole, and the axis.
fn whole_parts<'g>(graph: &'g Graph, source: ValueId, ranges: &[Range]) -> Option<(usize, &'g [ValueId])> {
    let node = graph.node(graph.producer(source)?);
    if node.op != &CONCAT {
        return None;
    }
    let (all, dtype) = (sizes(graph, source)?, graph.ty(source)?.dtype);
    let axis = axis_of(graph, node, ranges.len())?;
    let is_whole = |i: usize| i == axis || ranges[i] == Range::whole(all[i]);
    if !(0..ranges.len()).all(is_whole) || ranges[axis].step != 1 {
        return None;
    }
    let parts = &node.inputs[1..];
    let mut starts = vec![0];
    for &part in parts {
        starts.push(starts[starts.len() - 1] + sizes(graph, part)?.get(axis)?);
    }
    let at = |position: i64| starts.iter().position(|start| *start == position);
    let parts = &parts[at(ranges[axis].start)?..at(ranges[axis].last() + 1)?];
    let is_alike = parts.iter().all(|&part| graph.ty(part).is_some_and(|ty| ty.dtype == dtype));
    (parts.len() > 1 && is_alike).then_some((axis, parts))
}

/// The axis of a concatenation.
fn axis_of(graph: &Graph, node: &Node, rank: usize) -> Option<usize> {
    let Some(Lit::Int(axis)) = graph.lit(node.inputs[0]) else { return None };
    let axis = axis.known()?;
    usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok().filter(|axis| *axis < rank)
}

/// The earliest value that a slice is a slice of, and whether that is not its own operand.
fn earlier(graph: &Graph, node: &Node) -> Option<(ValueId, Vec<Range>, bool)> {
    let (mut source, mut ranges) = (*node.inputs.first()?, ranges(graph, node)?);
    let dtype = graph.ty(source)?.dtype;
    let mut moved = false;
    while let Some(producer) = graph.producer(source) {
        let inner = graph.node(producer);
        if inner.op == &SLICE {
            let Some(before) = self::ranges(graph, inner) else { break };
            ranges = before.iter().zip(&ranges).map(|(outer, r)| outer.of(*r)).collect();
            source = inner.inputs[0];
        } else if inner.op == &CONCAT {
            let Some((part, axis, start)) = part(graph, inner, &ranges) else { break };
            if graph.ty(part)?.dtype != dtype {
                break;
            }
            ranges[axis].start -= start;
            source = part;
        } else {
            break;
        }
        moved = true;
    }
    Some((source, ranges, moved))
}

/// The operand of a concatenation that ranges lie within, the axis, and where it begins.
fn part(graph: &Graph, node: &Node, ranges: &[Range]) -> Option<(ValueId, usize, i64)> {
    let axis = axis_of(graph, node, ranges.len())?;
    let range = ranges[axis];
    let (low, high) = (range.start.min(range.last()), range.start.max(range.last()));
    let mut start = 0;
    for &part in &node.inputs[1..] {
        let end = start + *sizes(graph, part)?.get(axis)?;
        if start <= low && high < end {
            return Some((part, axis, start));
        }
        start = end;
    }
    None
}

/// What a slice selects, if its numbers and the sizes are known and it is not empty.
fn ranges(graph: &Graph, node: &Node) -> Option<Vec<Range>> {
    if node.op != &SLICE {
        return None;
    }
    let sizes = sizes(graph, *node.inputs.first()?)?;
    let counts = self::sizes(graph, *node.outputs.first()?)?;
    let all = |i: usize| match node.inputs.get(i).and_then(|&v| graph.lit(v)) {
        Some(Lit::Tuple(all)) => Some(&all[..]),
        Some(Lit::None) | None => Some(&[][..]),
        Some(_) => None,
    };
    let (starts, steps) = (all(1)?, all(3)?);
    let number = |all: &[Lit], axis: usize| match all.get(axis) {
        None | Some(Lit::None) => Some(None),
        Some(Lit::Int(n)) => n.known().map(Some),
        Some(_) => None,
    };
    let range = |(axis, (&size, &count)): (usize, (&i64, &i64))| {
        // An empty slice has no first position.
        if count < 1 {
            return None;
        }
        let step = number(steps, axis)?.unwrap_or(1);
        let first = if step > 0 { 0 } else { size - 1 };
        let start = number(starts, axis)?.map_or(first, |at| if at < 0 { at + size } else { at });
        Some(Range { start: start.clamp(0, size - 1), step: if count > 1 { step } else { 1 }, count })
    };
    sizes.iter().zip(&counts).enumerate().map(range).collect()
}

/// The sizes of a value, if all are known.
fn sizes(graph: &Graph, v: ValueId) -> Option<Vec<i64>> {
    graph.ty(v)?.shape.iter().map(mithril_ir::Dim::known).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mithril_ir::graph::{Role, TensorType};
    use mithril_ir::ops::joining::CONCAT;
    use mithril_ir::ops::slicing::SLICE;
    use mithril_ir::random::words;
    use mithril_ir::{Builder, DType, Lit, Shape, Tensor, ValueId, interp, text};

    use crate::passes::dce::dce;
    use crate::passes::simplify::simplify;

    /// Random slices and concatenations of two inputs, and a few of the values as outputs.
    fn program(seed: i64) -> (mithril_ir::Graph, Vec<Arc<Tensor>>) {
        let mut numbers = words([seed, 0]);
        let mut draw = |n: i64| i64::from(numbers.next().unwrap_or_default()) % n;
        let mut builder = Builder::new(DType::F32);
        let (mut values, mut inputs) = (Vec::<ValueId>::new(), Vec::new());
        for name in ["a", "b"] {
            let ty = TensorType { dtype: DType::F32, shape: Shape::of([4, 5]) };
            values.push(builder.graph.add_input(name, Role::Data, ty));
            let numbers: Vec<f32> = (0..20).map(|_| draw(1000) as f32).collect();
            inputs.push(Arc::new(Tensor::of(&[4, 5], numbers).unwrap()));
        }
        for _ in 0..12 {
            let x = values[draw(values.len() as i64) as usize];
            let sizes: Vec<i64> =
                builder.graph.ty(x).unwrap().shape.iter().map(|d| d.known().unwrap()).collect();
            let new = if draw(2) == 0 {
                let mut bound = |size: i64| match draw(4) {
                    0 => Lit::None,
                    _ => Lit::int(draw(2 * size + 3) - size - 1),
                };
                let (starts, stops) = (
                    sizes.iter().map(|&n| bound(n)).collect::<Vec<_>>(),
                    sizes.iter().map(|&n| bound(n)).collect::<Vec<_>>(),
                );
                let steps =
                    sizes.iter().map(|_| Lit::int([1, 1, 2, -1, -2][draw(5) as usize])).collect::<Vec<_>>();
                let lits = [starts, stops, steps].map(|all| builder.lit(Lit::tuple(all)));
                builder.push(&SLICE, &[x, lits[0], lits[1], lits[2]])
            } else {
                let axis = draw(2);
                let other = |v: &&ValueId| {
                    let shape = &builder.graph.ty(**v).unwrap().shape;
                    shape[1 - axis as usize].known() == Some(sizes[1 - axis as usize])
                };
                let alike: Vec<ValueId> = values.iter().filter(other).copied().collect();
                let more =
                    [alike[draw(alike.len() as i64) as usize], alike[draw(alike.len() as i64) as usize]];
                let axis = builder.lit(Lit::int(axis - 2 * draw(2)));
                builder.push(&CONCAT, &[axis, more[0], x, more[1]])
            };
            values.push(new.unwrap()[0]);
        }
        for (i, v) in values.iter().rev().take(5).enumerate() {
            builder.graph.outputs.insert(i.to_string().into(), *v);
        }
        (dce(&builder.graph).unwrap(), inputs)
    }

    #[test]
    fn random_programs_keep_their_values() {
        let mut fewer = 0;
        for seed in 0..300 {
            let (graph, inputs) = program(seed);
            let simplified = dce(&simplify(&graph).unwrap()).unwrap();
            let given: Vec<_> = graph
                .inputs
                .iter()
                .map(|&v| inputs[usize::from(graph.value(v).name.as_deref() == Some("b"))].clone())
                .collect();
            let [expected, actual] = [&graph, &simplified].map(|g| interp::run(g, &given).unwrap());
            for (e, a) in expected.iter().zip(&actual) {
                assert_eq!(e.shape(), a.shape(), "seed {seed}");
                assert_eq!(
                    e.to_f64s(),
                    a.to_f64s(),
                    "seed {seed}:\n{}\n{}",
                    text::print(&graph),
                    text::print(&simplified)
                );
            }
            fewer += usize::from(simplified.nodes().count() < graph.nodes().count());
        }
        assert!(fewer > 50, "{fewer} programs became shorter");
    }

    #[test]
    fn what_is_written_in_pieces_is_read_from_the_pieces() {
        let graph = text::parse(
            r#"graph {
              data %0 "x": f32[4, 3]
              %1: f32[1, 3] = slice(%0, (0, none), (1, none), (1, 1)) in "m"
              %2: f32[1, 3] = exp(%1) in "m"
              %3: f32[3, 3] = slice(%0, (1, none), (4, none), (1, 1)) in "m"
              %4: f32[4, 3] = concat(0, %2, %3) in "m"
              %5: f32[2, 3] = slice(%4, (2, none), (4, none), (1, 1)) in "m"
              %6: f32[1, 3] = slice(%4, (-4, none), (-3, none), (1, 1)) in "m"
              return "rest" = %5
              return "first" = %6
            }"#,
        )
        .unwrap();
        let simplified = text::print(&dce(&simplify(&graph).unwrap()).unwrap());
        assert!(simplified.contains("slice(%0, (2, none), (4, none), (1, 1))"), "{simplified}");
        assert!(!simplified.contains("concat"), "{simplified}");
    }
}
