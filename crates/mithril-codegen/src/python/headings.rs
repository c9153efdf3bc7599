//! Divides a function by the layers of the model: a blank line and the layer's path above the lines that compute it.

use mithril_ir::{Graph, NodeId};

use super::namer::python_string;
use super::release;

/// A line of a function, and the op it computes.
type Line = (String, Option<NodeId>);

/// Shorter functions stay in one piece.
const LONG: usize = 12;
/// A longer path is cut: its end says most.
const MAX_PATH: usize = 90;

/// Inserts the headings. What releases results belongs to the lines above it, what reads parameters to those below.
pub fn insert(lines: &mut Vec<Line>, graph: &Graph) {
    let is_inner = |text: &str| release::is_inner(text, "    ");
    let of = |(text, node): &Line| node.filter(|_| !is_inner(text)).map(|node| layer(graph, node));
    let mut layers: Vec<Option<&str>> = lines.iter().map(of).collect();
    let mut known = layers.iter().flatten();
    let first = known.next();
    if lines.len() < LONG || known.all(|layer| Some(layer) == first) {
        return;
    }
    for i in (1..lines.len()).rev() {
        let text = lines[i - 1].0.trim_start();
        let is_open = layers[i - 1].is_none() && !is_inner(&lines[i - 1].0);
        if is_open && !text.starts_with("del ") && !text.starts_with("def ") {
            layers[i - 1] = layers[i];
        }
    }
    let mut current = None;
    let mut out = Vec::with_capacity(2 * lines.len());
    for (mut line, layer) in std::mem::take(lines).into_iter().zip(layers) {
        let is_return = line.0.trim_start().starts_with("return");
        if is_return || layer.is_some() && layer != current {
            if out.len() > 1 {
                out.push((String::new(), None));
            }
            if line.0.starts_with('\n') {
                line.0.remove(0);
            }
            if let Some(path) = layer.filter(|path| !path.is_empty()) {
                out.push((format!("    # {}", printable(path)), None));
            }
            current = layer;
        }
        out.push(line);
    }
    *lines = out;
}

/// The path of the model that an op is part of.
fn layer(graph: &Graph, node: NodeId) -> &str {
    let path = graph.place(node).path.as_deref().unwrap_or_default();
    path.rsplit_once('.').map_or("", |(layer, _)| layer)
}

/// The end of a path in printable ASCII.
fn printable(path: &str) -> String {
    let text = python_string(path);
    let text = &text[1..text.len() - 1];
    if text.len() <= MAX_PATH { text.to_owned() } else { format!("...{}", &text[text.len() - MAX_PATH..]) }
}
