//! The cheapest set of vertices of a graph without which no way leads from its sources to its sinks (a minimum cut, by
//! Dinic's algorithm).

/// A graph whose vertices have costs.
#[derive(Debug)]
pub(super) struct Network {
    /// Of each edge: where it leads, and how much more may flow. The edge back is the next one, or the one before.
    edges: Vec<(usize, u64)>,
    /// Of each vertex its edges. A vertex of the caller is two: what flows in, and what flows out.
    from: Vec<Vec<usize>>,
}

const SOURCE: usize = 0;
const SINK: usize = 1;
const FREE: u64 = u64::MAX / 4;

/// What flows into a vertex of the caller, and out of it.
const fn inner(vertex: usize) -> (usize, usize) {
    (2 + 2 * vertex, 3 + 2 * vertex)
}

impl Network {
    /// A network of vertices with these costs.
    pub(super) fn new(costs: impl IntoIterator<Item = u64>) -> Self {
        let mut network = Self { edges: Vec::new(), from: vec![Vec::new(); 2] };
        for (vertex, cost) in costs.into_iter().enumerate() {
            network.from.extend([Vec::new(), Vec::new()]);
            let (into, out) = inner(vertex);
            network.edge(into, out, cost.min(FREE - 1));
        }
        network
    }
    fn edge(&mut self, from: usize, to: usize, capacity: u64) {
        self.from[from].push(self.edges.len());
        self.edges.push((to, capacity));
        self.from[to].push(self.edges.len());
        self.edges.push((from, 0));
    }
    /// Flow begins at a vertex.
    pub(super) fn source(&mut self, vertex: usize) {
        self.edge(SOURCE, inner(vertex).0, FREE);
    }
    /// Flow ends behind a vertex.
    pub(super) fn sink(&mut self, vertex: usize) {
        self.edge(inner(vertex).1, SINK, FREE);
    }
    /// Flow goes from one vertex to another.
    pub(super) fn link(&mut self, from: usize, to: usize) {
        self.edge(inner(from).1, inner(to).0, FREE);
    }

    /// The vertices of the cheapest cut; of several the one nearest to the sources.
    pub(super) fn cut(mut self) -> Vec<bool> {
        loop {
            let levels = self.levels();
            if levels[SINK] == usize::MAX {
                let vertices = 0..(self.from.len() - 2) / 2;
                let is_reached = |v: usize| levels[v] != usize::MAX;
                return vertices.map(inner).map(|(into, out)| is_reached(into) && !is_reached(out)).collect();
            }
            let mut next = vec![0; self.from.len()];
            while self.augment(&levels, &mut next) {}
        }
    }

    /// How many edges away from the source each vertex is.
    fn levels(&self) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.from.len()];
        levels[SOURCE] = 0;
        let mut queue = std::collections::VecDeque::from([SOURCE]);
        while let Some(v) = queue.pop_front() {
            for &e in &self.from[v] {
                let (to, capacity) = self.edges[e];
                if capacity > 0 && levels[to] == usize::MAX {
                    levels[to] = levels[v] + 1;
                    queue.push_back(to);
                }
            }
        }
        levels
    }

    /// Sends flow along one way to the sink; whether there was one. `next` are the edges not tried yet.
    fn augment(&mut self, levels: &[usize], next: &mut [usize]) -> bool {
        let mut way: Vec<usize> = Vec::new();
        let mut at = SOURCE;
        while at != SINK {
            let Some(&e) = self.from[at].get(next[at]) else {
                // A dead end: back by one edge.
                let Some(last) = way.pop() else { return false };
                at = self.edges[last ^ 1].0;
                next[at] += 1;
                continue;
            };
            let (to, capacity) = self.edges[e];
            if capacity > 0 && levels[to] == levels[at] + 1 {
                way.push(e);
                at = to;
            } else {
                next[at] += 1;
            }
        }
        let flow = way.iter().map(|&e| self.edges[e].1).min().unwrap_or(0);
        for e in way {
            self.edges[e].1 -= flow;
            self.edges[e ^ 1].1 += flow;
        }
        flow > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_vertices_are_cut() {
        // Three sources meet in one vertex, from which two ways go on.
        let mut network = Network::new([5, 5, 5, 5, 4, 3]);
        for v in 0..3 {
            network.source(v);
            network.link(v, 3);
        }
        for v in [4, 5] {
            network.link(3, v);
            network.sink(v);
        }
        assert_eq!(network.cut(), [false, false, false, true, false, false]);
        // Equal costs: near the source.
        let mut network = Network::new([2, 2]);
        network.source(0);
        network.link(0, 1);
        network.sink(1);
        assert_eq!(network.cut(), [true, false]);
    }
}
