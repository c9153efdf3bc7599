// The model as a tree of submodels, and where its boxes lie. Pure functions without a document, so that they are tested
// in Node.
//
// The layout is computed here rather than in advance or in Rust, since every submodel that opens or closes changes it.
// Only what is visible takes part: some tens of boxes at first, which take a few milliseconds. With all 5,000 boxes of a
// large model open it takes 0.1 to 0.3 s, once for each click.
"use strict";

const GAP_X = 28, GAP_Y = 46, PAD = 14, HEAD = 28, LINE = 15, MAX_CHARS = 44;
// Edges over more than one layer get a lane of their own, as long as these are not too many.
const MAX_LANES = 8000, LANE = 10;

/** Cut a text that is too long for a box; the end of a path says most. */
function shortened(text, most = MAX_CHARS) {
  return text.length <= most ? text : "…" + text.slice(text.length - most + 1);
}

function group(parent, label, path) {
  return { kind: "group", parent, label, path, children: [], first: Infinity, count: 0, weights: 0 };
}

/** The tree of a graph: inputs, nodes and outputs are leaves, the parts of paths are groups, equal blocks are folded. */
function buildTree(graph) {
  const root = group(null, "", "");
  const groups = new Map([["", root]]);
  const leaves = [];
  const add = (parent, leaf) => {
    leaf.parent = parent;
    leaf.index = leaf.first = leaves.length;
    leaf.id = "n" + leaves.length;
    leaves.push(leaf);
    parent.children.push(leaf);
  };
  const groupOf = (path) => {
    const known = groups.get(path);
    if (known) return known;
    const dot = path.lastIndexOf(".");
    const parent = groupOf(dot < 0 ? "" : path.slice(0, dot));
    const made = group(parent, path.slice(dot + 1), path);
    parent.children.push(made);
    groups.set(path, made);
    return made;
  };
  const from = new Map();
  for (const [value, name, role, type] of graph.inputs) {
    add(root, { kind: "input", label: name, path: "", lines: [role + " " + type], role, keys: ["v:" + name] });
    from.set(value, [leaves[leaves.length - 1], name, type]);
  }
  const edges = [];
  for (const node of graph.nodes) {
    const params = node.params.map(([name, type]) => {
      const inside = node.path && name.startsWith(node.path + ".") ? name.slice(node.path.length + 1) : name;
      return inside + ": " + type;
    });
    const shown = params.slice(0, 4);
    if (params.length > 4) shown.push("and " + (params.length - 4) + " more");
    add(groupOf(node.path), { kind: "node", label: node.op, path: node.path, lines: shown, node, keys: node.keys });
    const leaf = leaves[leaves.length - 1];
    for (const value of node.inputs) {
      const source = from.get(value);
      if (source) edges.push({ from: source[0], to: leaf, value, name: source[1], type: source[2] });
    }
    for (const [value, name, type] of node.outputs) from.set(value, [leaf, name, type]);
  }
  for (const [name, value] of graph.outputs) {
    const source = from.get(value);
    add(root, { kind: "output", label: name, path: "", lines: ["output " + (source ? source[2] : "")], keys: ["v:" + name] });
    if (source) {
      edges.push({ from: source[0], to: leaves[leaves.length - 1], value, name: source[1], type: source[2] });
    }
  }
  const all = [];
  finish(root, all);
  for (const leaf of leaves) {
    leaf.above = [];
    for (let at = leaf; at; at = at.parent) leaf.above.push(at);
    leaf.above.reverse();
  }
  return { root, leaves, edges, groups: all };
}

/** Join groups that hold a single thing with it, fold equal blocks, count. */
function finish(at, all) {
  at.children = at.children.map((child) => {
    while (child.kind === "group" && child.children.length === 1) {
      const only = child.children[0];
      if (only.kind === "group") only.label = child.label + "." + only.label;
      else {
        only.title = child.label;
      }
      only.parent = at;
      child = only;
    }
    return child;
  });
  for (const child of at.children) if (child.kind === "group") finish(child, all);
  for (const child of at.children) {
    at.first = Math.min(at.first, child.first);
    at.count += child.kind === "group" ? child.count : child.kind === "node" ? 1 : 0;
    at.weights += child.kind === "group" ? child.weights : child.node ? child.node.weights : 0;
  }
  at.children.sort((a, b) => a.first - b.first);
  at.children = folded(at, all);
  at.signature = "(" + at.children.map(signature).join(" ") + ")";
  at.id = "g" + all.length;
  all.push(at);
}

function signature(item) {
  if (item.kind === "group") return item.signature;
  if (item.kind !== "node") return item.kind;
  const { op, inputs, outputs, params, literals } = item.node;
  const types = [...outputs.map((o) => o[2]), ...params.map((p) => p[1])];
  return op + inputs.length + literals + types.join();
}

/** Three or more blocks in a row that are equal in structure become one group, which starts closed. */
function folded(at, all) {
  const out = [];
  for (let i = 0; i < at.children.length; ) {
    const child = at.children[i];
    let end = i + 1;
    const isBlock = child.kind === "group" && child.count > 1 && !child.isRepeat;
    while (isBlock && end < at.children.length && at.children[end].signature === child.signature) end++;
    if (end - i < 3 || end - i === at.children.length) {
      out.push(...at.children.slice(i, i + 1));
      // A group of nothing but equal blocks is their fold itself.
      if (end - i === at.children.length && end - i >= 3) {
        at.repeats = end - i;
        out.push(...at.children.slice(i + 1, end));
        i = end;
        continue;
      }
      i++;
      continue;
    }
    const members = at.children.slice(i, end);
    const fold = group(at, "", child.path + " … " + members[members.length - 1].label);
    fold.isRepeat = true;
    fold.repeats = members.length;
    fold.label = members[0].label + " … " + members[members.length - 1].label;
    fold.children = members;
    fold.first = child.first;
    fold.signature = "repeat" + members.length + child.signature;
    for (const member of members) {
      member.parent = fold;
      fold.count += member.count;
      fold.weights += member.weights;
    }
    fold.id = "g" + all.length;
    all.push(fold);
    out.push(fold);
    i = end;
  }
  return out;
}

/** Groups to open at first: level by level while few boxes are visible; folded blocks stay closed. */
function openAtFirst(tree, most = 40) {
  const open = new Set([tree.root.id]);
  let level = [tree.root], visible = tree.root.children.length;
  while (level.length) {
    const next = [];
    for (const at of level) {
      for (const child of at.children) {
        if (child.kind !== "group" || child.repeats || visible + child.children.length > most) continue;
        open.add(child.id);
        visible += child.children.length;
        next.push(child);
      }
    }
    level = next;
  }
  return open;
}

/** What is written in a box: title and lines below it. */
function texts(item) {
  if (item.kind !== "group") {
    const title = item.title && item.kind === "node" ? item.title : item.label;
    const below = item.title && item.kind === "node" && item.title !== item.label ? [item.label] : [];
    return [shortened(title), [...below, ...item.lines].map((line) => shortened(line, 52))];
  }
  const title = item.repeats ? item.repeats + " × " + (item.isRepeat ? item.children[0].label : item.label) : item.label;
  const about = item.count + (item.count === 1 ? " op" : " ops") + (item.weights ? ", " + amount(item.weights) + " parameters" : "");
  return [shortened(title), [about]];
}

function amount(n) {
  for (const [unit, name] of [[1e9, " B"], [1e6, " M"], [1e3, " k"]]) if (n >= unit) return (n / unit).toPrecision(3) + name;
  return String(n);
}

function size(item) {
  const [title, lines] = texts(item);
  const longest = Math.max((title.length + (item.kind === "group" ? 3 : 0)) * 7.9, ...lines.map((line) => line.length * 6.5));
  return [Math.max(90, Math.ceil(longest + 24)), 28 + LINE * lines.length];
}

/** Boxes and edges of all that is visible, in absolute coordinates. */
function layout(tree, open) {
  const shownAs = tree.leaves.map((leaf) => leaf.above.find((at) => at.kind !== "group" || !open.has(at.id)));
  const levels = new Map();
  const seen = new Set(), edges = [];
  for (const edge of tree.edges) {
    const from = shownAs[edge.from.index], to = shownAs[edge.to.index];
    const key = from.id + " " + to.id + " " + edge.value;
    if (from === to || seen.has(key)) continue;
    seen.add(key);
    let i = 0;
    while (edge.from.above[i + 1] === edge.to.above[i + 1]) i++;
    const level = edge.from.above[i];
    const made = { ...edge, from, to, a: edge.from.above[i + 1], b: edge.to.above[i + 1], lanes: [] };
    edges.push(made);
    if (!levels.has(level)) levels.set(level, []);
    levels.get(level).push(made);
  }
  const boxes = [];
  const budget = { lanes: MAX_LANES };
  const measured = new Map();
  const measure = (item) => {
    if (item.kind !== "group" || !open.has(item.id)) {
      const [w, h] = size(item);
      measured.set(item, { w, h });
      return;
    }
    for (const child of item.children) measure(child);
    const placed = place(item.children, levels.get(item) || [], measured, budget);
    const title = texts(item)[0].length * 7.9 + 60;
    const w = Math.max(placed.w + 2 * PAD, title);
    measured.set(item, { w, h: placed.h + HEAD + 2 * PAD, shift: (w - placed.w) / 2, placed });
  };
  measure(tree.root);
  const put = (item, x, y, depth) => {
    const found = measured.get(item);
    const box = { item, x, y, w: found.w, h: found.h, depth, isOpen: Boolean(found.placed) };
    boxes.push(box);
    found.box = box;
    if (!found.placed) return;
    for (const child of item.children) {
      const at = found.placed.at.get(child);
      put(child, x + found.shift + at.x, y + HEAD + PAD + at.y, depth + 1);
    }
    for (const edge of levels.get(item) || []) {
      edge.lanes = edge.lanes.map(([lx, top, bottom]) => [x + found.shift + lx, y + HEAD + PAD + top, y + HEAD + PAD + bottom]);
    }
  };
  put(tree.root, 0, 0, 0);
  for (const edge of edges) {
    const a = measured.get(edge.from).box, b = measured.get(edge.to).box;
    edge.points = [[a.x + a.w / 2, a.y + a.h]];
    for (const [x, top, bottom] of edge.lanes) edge.points.push([x, top], [x, bottom]);
    edge.points.push([b.x + b.w / 2, b.y]);
  }
  const whole = measured.get(tree.root);
  return { boxes, edges, w: whole.w, h: whole.h };
}

/** A layered layout of one level: layers by the longest path, order in a layer by the means of neighbors. */
function place(items, edges, measured, budget) {
  const number = new Map(items.map((item, i) => [item, i]));
  const cells = items.map((item) => ({ ...measured.get(item), rank: 0, up: [], down: [] }));
  const pairs = new Map();
  for (const edge of edges) {
    let a = number.get(edge.a), b = number.get(edge.b);
    // Submodels may feed each other; what leads back to an earlier one does not decide the layers.
    edge.isBack = a > b;
    if (edge.isBack) continue;
    const key = a * items.length + b;
    if (!pairs.has(key)) pairs.set(key, { a, b, edges: [] });
    pairs.get(key).edges.push(edge);
  }
  const list = [...pairs.values()].sort((p, q) => p.a - q.a);
  for (const { a, b } of list) cells[b].rank = Math.max(cells[b].rank, cells[a].rank + 1);
  // What nothing precedes goes right above its first use.
  const fed = new Set(list.map((pair) => pair.b));
  const use = new Map();
  for (const { a, b } of list) use.set(a, Math.min(use.get(a) ?? Infinity, cells[b].rank));
  for (const [a, rank] of use) if (!fed.has(a)) cells[a].rank = Math.max(0, rank - 1);

  for (const pair of list) {
    const span = cells[pair.b].rank - cells[pair.a].rank;
    let last = pair.a;
    if (span > 1 && budget.lanes >= span) {
      budget.lanes -= span;
      pair.lanes = [];
      for (let rank = cells[pair.a].rank + 1; rank < cells[pair.b].rank; rank++) {
        const lane = cells.push({ w: LANE, h: 0, rank, up: [last], down: [], isLane: true }) - 1;
        cells[last].down.push(lane);
        pair.lanes.push(lane);
        last = lane;
      }
    }
    if (span === 1 || pair.lanes) {
      cells[last].down.push(pair.b);
      cells[pair.b].up.push(last);
    }
  }
  const ranks = [];
  cells.forEach((cell, i) => (ranks[cell.rank] ||= []).push(i));
  for (let i = 0; i < ranks.length; i++) ranks[i] ||= [];
  order(ranks, cells);
  const w = columns(ranks, cells);
  let y = 0;
  for (const rank of ranks) {
    const tallest = Math.max(0, ...rank.map((i) => cells[i].h));
    for (const i of rank) {
      cells[i].y = y;
      cells[i].bottom = y + tallest;
    }
    y += tallest + GAP_Y;
  }
  for (const pair of list) {
    const lanes = (pair.lanes || []).map((i) => [cells[i].x + LANE / 2, cells[i].y, cells[i].bottom]);
    for (const edge of pair.edges) edge.lanes = lanes;
  }
  const at = new Map(items.map((item, i) => [item, { x: cells[i].x, y: cells[i].y }]));
  return { at, w, h: Math.max(0, y - GAP_Y) };
}

function order(ranks, cells) {
  const number = () => ranks.forEach((rank) => rank.forEach((i, position) => (cells[i].position = position)));
  number();
  for (let sweep = 0; sweep < 4; sweep++) {
    const isDown = sweep % 2 === 0;
    for (const rank of isDown ? ranks : [...ranks].reverse()) {
      if (rank.length < 2) continue;
      for (const i of rank) {
        const near = isDown ? cells[i].up : cells[i].down;
        let sum = 0;
        for (const j of near) sum += cells[j].position;
        cells[i].wish = near.length ? sum / near.length : cells[i].position;
      }
      rank.sort((i, j) => cells[i].wish - cells[j].wish);
      rank.forEach((i, position) => (cells[i].position = position));
    }
  }
}

/** Left edges: each cell as near to the middle of its neighbors as the order in its layer allows. */
function columns(ranks, cells) {
  for (const rank of ranks) {
    const total = rank.reduce((sum, i) => sum + cells[i].w + GAP_X, -GAP_X);
    let x = -total / 2;
    for (const i of rank) {
      cells[i].x = x;
      x += cells[i].w + GAP_X;
    }
  }
  for (let sweep = 0; sweep < 4; sweep++) {
    const isDown = sweep % 2 === 0;
    for (const rank of isDown ? ranks : [...ranks].reverse()) {
      const wishes = rank.map((i) => {
        const near = isDown ? cells[i].up : cells[i].down;
        if (!near.length) return cells[i].x;
        return near.reduce((sum, j) => sum + cells[j].x + cells[j].w / 2, 0) / near.length - cells[i].w / 2;
      });
      apart(rank, wishes, cells);
    }
  }
  let left = Infinity, right = -Infinity;
  for (const cell of cells) {
    left = Math.min(left, cell.x);
    right = Math.max(right, cell.x + cell.w);
  }
  for (const cell of cells) cell.x -= left;
  return cells.length ? right - left : 0;
}

/** Least squares to the wishes such that none overlap: clusters of touching cells are joined from left to right. */
function apart(rank, wishes, cells) {
  const clusters = [];
  let offset = 0;
  rank.forEach((i, k) => {
    let cluster = { start: k, count: 1, sum: wishes[k] - offset };
    while (clusters.length) {
      const before = clusters[clusters.length - 1];
      if (before.sum / before.count <= cluster.sum / cluster.count) break;
      clusters.pop();
      cluster = { start: before.start, count: before.count + cluster.count, sum: before.sum + cluster.sum };
    }
    clusters.push(cluster);
    cells[i].offset = offset;
    offset += cells[i].w + GAP_X;
  });
  for (const { start, count, sum } of clusters) {
    for (let k = start; k < start + count; k++) cells[rank[k]].x = sum / count + cells[rank[k]].offset;
  }
}

if (typeof module !== "undefined") module.exports = { buildTree, openAtFirst, layout, texts };
