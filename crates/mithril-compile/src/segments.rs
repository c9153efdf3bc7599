//! Segments: where to cut a forward graph for gradient checkpointing.
//!
//! The gradient of a function reads intermediate results. With checkpoints, only those that cross a cut are kept;
//! the others of a segment are computed again when its gradient is. A model of `n` equal layers needs about
//! `2·√n` of their results at once, not `n`.

use std::ops::Range;

use mithril_ir::Dim;
use mithril_ir::graph::{Graph, TensorType};

/// What a size counts that is known when running only.
const OPEN_SIZE: i64 = 64;

/// Consecutive ranges of the first `count` nodes, cut where few bytes are alive. One range: cuts would save nothing.
pub fn segments(graph: &Graph, count: usize) -> Vec<Range<usize>> {
    let spans = spans(graph, count);
    let places = Places::new(&spans, count);
    let most = 4 * count.isqrt();
    let (_, cuts) = (0..most)
        .map(|number| places.cuts(number))
        .map(|cuts| (cost(&spans, &cuts, count), cuts))
        .min_by_key(|(bytes, _)| *bytes)
        .unwrap_or_default();
    let ends = cuts.iter().copied().chain([count]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// The life of a value: made by node `start`, last read by node `end`.
struct Span {
    start: usize,
    end: usize,
    bytes: u64,
}

fn spans(graph: &Graph, count: usize) -> Vec<Span> {
    let mut ends: Vec<usize> = vec![0; graph.values().len()];
    for (i, (_, node)) in graph.nodes().take(count).enumerate() {
        for v in &node.inputs {
            ends[v.index()] = i;
        }
    }
    let nodes = graph.nodes().take(count).enumerate();
    let produced = nodes.flat_map(|(i, (_, node))| node.outputs.iter().map(move |&v| (i, v)));
    // Outputs are kept in any case.
    let is_output = |v| graph.outputs.values().any(|&o| o == v) || graph.updates.iter().any(|&(_, u)| u == v);
    let span = |(start, v): (usize, mithril_ir::ValueId)| {
        let bytes = graph.ty(v).map_or(0, bytes);
        Span { start, end: ends[v.index()].max(start), bytes }
    };
    produced.filter(|&(_, v)| !is_output(v)).map(span).collect()
}

fn bytes(ty: &TensorType) -> u64 {
    let size = |d: &Dim| d.known().unwrap_or(OPEN_SIZE).max(0).unsigned_abs();
    ty.shape.iter().map(size).fold(ty.dtype.size() as u64, u64::saturating_mul)
}

/// The places between nodes: place `i` is before node `i`.
struct Places {
    /// Bytes alive there.
    live: Vec<u64>,
    /// Bytes made before it.
    allocated: Vec<u64>,
}

impl Places {
    fn new(spans: &[Span], count: usize) -> Self {
        let (mut born, mut died) = (vec![0_u64; count + 1], vec![0_u64; count + 1]);
        for span in spans {
            born[span.start + 1] += span.bytes;
            died[span.end + 1] += span.bytes;
        }
        let sums = |bytes: Vec<u64>| {
            let mut sum = 0_u64;
            bytes.into_iter().map(move |b| {
                sum = sum.saturating_add(b);
                sum
            })
        };
        let allocated: Vec<u64> = sums(born).collect();
        let live = allocated
            .iter()
            .zip(sums(died))
            .map(|(allocated, died)| allocated.saturating_sub(died))
            .collect();
        Self { live, allocated }
    }

    /// About `number` cuts at equal distances in bytes, each moved by up to half the distance to where less is alive.
    fn cuts(&self, number: usize) -> Vec<usize> {
        let total = self.allocated.last().copied().unwrap_or(0);
        let share = total / (number as u64 + 1);
        let mut cuts = Vec::with_capacity(number);
        let mut first = 1;
        for ideal in (1..=number as u64).map(|i| share * i) {
            let from = self.allocated.partition_point(|&bytes| bytes < ideal - share / 2).max(first);
            let to = self
                .allocated
                .partition_point(|&bytes| bytes <= ideal + share / 2)
                .min(self.allocated.len() - 1);
            let cut = (from..to).min_by_key(|&p| (self.live[p], self.allocated[p].abs_diff(ideal)));
            if let Some(place) = cut {
                cuts.push(place);
                first = place + 1;
            }
        }
        cuts
    }
}

/// Bytes needed at once: what crosses a cut, and the rest of the largest segment.
fn cost(spans: &[Span], cuts: &[usize], count: usize) -> u64 {
    let mut kept = 0_u64;
    let mut inside = vec![0_u64; cuts.len() + 1];
    for span in spans.iter().filter(|span| span.start < count) {
        let segment = cuts.partition_point(|&cut| cut <= span.start);
        if cuts.get(segment).is_some_and(|&cut| cut <= span.end) {
            kept = kept.saturating_add(span.bytes);
        } else {
            inside[segment] = inside[segment].saturating_add(span.bytes);
        }
    }
    kept.saturating_add(inside.into_iter().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mithril_ir::text;

    /// `layers` times: one value that is large inside, one small between.
    fn chain(layers: usize) -> Graph {
        use std::fmt::Write as _;
        let mut lines =
            String::from("data %0 \"x\": f32[n, 8]\nparam %1 \"w\": f32[8, 1]\nparam %2 \"b\": f32[8]\n");
        for i in 0..layers {
            let (wide, small) = (3 + i * 2, 4 + i * 2);
            let before = if i == 0 { 0 } else { wide - 1 };
            let _ = writeln!(lines, "%{wide}: f32[n, 8] = add(%{before}, %2) in \"\"");
            let _ = writeln!(lines, "%{small}: f32[n, 1] = matmul(%{wide}, %1) in \"\"");
        }
        let last = 2 + layers * 2;
        text::parse(&format!("graph {{\n{lines}return \"y\" = %{last}\n}}\n")).expect("a graph")
    }

    #[test]
    fn cuts_where_little_is_alive_and_covers_every_node() {
        let graph = chain(30);
        let ranges = segments(&graph, graph.nodes().len());
        assert!((4..=30).contains(&ranges.len()), "{ranges:?}");
        assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, 60));
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
            // After a product, whose result is small.
            assert_eq!(pair[0].end % 2, 0, "{ranges:?}");
        }
    }

    #[test]
    fn what_cuts_cannot_save_stays_whole() {
        let graph = chain(1);
        assert_eq!(segments(&graph, graph.nodes().len()), std::iter::once(0..2).collect::<Vec<_>>());
        assert!(segments(&Graph::new(), 0).iter().all(Range::is_empty));
    }
}
