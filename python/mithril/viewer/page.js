// The page: draws what layout.js places, links boxes and lines of text, listens to mouse and keyboard.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const canvas = byId("graph"), text = byId("text"), details = byId("details");
  const search = byId("search"), found = byId("found"), stageSelect = byId("stage");
  const SVG = "http://www.w3.org/2000/svg";
  const TABS = ["source", "stage", "memory", "profile", "devices"];
  /** Tabs that show text with a link in each line. */
  const LISTINGS = ["source", "stage"];
  const trees = new Map();
  let stage, graph, tree, open, placed, boxOf;
  let view = { x: 0, y: 0, scale: 1 };
  let chosen = null, tab = data.profile ? "profile" : data.plan ? "devices" : "source", drawn = null, times = null;

  function make(name, attributes, parent, content) {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (content !== undefined) made.textContent = content;
    if (parent) parent.append(made);
    return made;
  }
  function element(name, content, parent, className) {
    const made = document.createElement(name);
    if (content !== undefined) made.textContent = content;
    if (className) made.className = className;
    if (parent) parent.append(made);
    return made;
  }

  // --- the graph ---------------------------------------------------------------------------------------------------

  function showStage(name) {
    stage = data.stages.find((row) => row[0] === name) || data.stages[0];
    const before = chosen;
    graph = data.graphs[stage[1]];
    if (!trees.has(stage[1])) {
      const built = buildTree(graph);
      const links = new Map();
      for (const leaf of built.leaves) {
        for (const key of leaf.keys) {
          if (!links.has(key)) links.set(key, []);
          links.get(key).push(leaf);
        }
      }
      trees.set(stage[1], { tree: built, open: openAtFirst(built), links, nodes: built.leaves.filter((leaf) => leaf.node) });
    }
    ({ tree, open } = trees.get(stage[1]));
    chosen = null;
    arrange();
    fit();
    // The same place in the other stage, if there is one.
    if (before && before.keys) {
      const same = before.keys.flatMap((key) => trees.get(stage[1]).links.get(key) || [])[0];
      if (same) choose(same, { reveal: true });
    }
    showText();
    showDetails();
  }

  function arrange() {
    placed = layout(tree, open);
    boxOf = new Map(placed.boxes.map((box) => [box.item, box]));
    drawn = null;
    draw();
  }

  /** Draws what is in the window and a window's width around it; until one leaves that, moving is a transformation. */
  function draw() {
    const { width, height } = canvas.getBoundingClientRect();
    const left = -view.x / view.scale, top = -view.y / view.scale;
    const w = width / view.scale, h = height / view.scale;
    const isInside = drawn && left >= drawn.left && top >= drawn.top && left + w <= drawn.right && top + h <= drawn.bottom;
    if (isInside && view.scale < 2 * drawn.scale) {
      drawn.layer.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
      return;
    }
    const area = { left: left - w, top: top - h, right: left + 2 * w, bottom: top + 2 * h, scale: view.scale };
    canvas.replaceChildren();
    const marker = make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, make("defs", {}, canvas));
    make("path", { d: "M0 0 8 4 0 8z" }, marker);
    const layer = make("g", { transform: `translate(${view.x} ${view.y}) scale(${view.scale})` }, canvas);
    const touches = (x, y, right, bottom) => x <= area.right && right >= area.left && y <= area.bottom && bottom >= area.top;
    // Texts that are too small to read cost the most.
    const isSmall = view.scale < 0.25;
    const opened = placed.boxes.filter((box) => box.isOpen && box.item !== tree.root);
    const solid = placed.boxes.filter((box) => !box.isOpen);
    const visible = (box) => touches(box.x, box.y, box.x + box.w, box.y + box.h);
    for (const box of opened) if (visible(box)) drawBox(box, layer, isSmall);
    const labels = new Set();
    for (const edge of placed.edges) {
      const xs = edge.points.map((p) => p[0]), ys = edge.points.map((p) => p[1]);
      if (touches(Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys))) drawEdge(edge, layer, isSmall, labels);
    }
    for (const box of solid) if (visible(box)) drawBox(box, layer, isSmall);
    drawn = { ...area, layer };
  }

  function drawBox(box, layer, isSmall) {
    const { item } = box;
    const kind = item.kind !== "group" ? item.kind : box.isOpen ? "open" : "closed";
    const [title, lines] = texts(item);
    const made = make("g", {
      class: `box ${kind}${item.repeats ? " repeat" : ""}${chosen === item ? " chosen" : ""}`,
      role: "button", tabindex: chosen === item ? 0 : -1, "data-id": item.id,
      "aria-label": [title, ...lines].join(", "), ...(item.kind === "group" ? { "aria-expanded": box.isOpen } : {}),
    }, layer);
    make("title", {}, made, item.path || item.label);
    if (item.repeats && !box.isOpen) make("rect", { class: "behind", x: box.x + 5, y: box.y + 5, width: box.w, height: box.h }, made);
    make("rect", { x: box.x, y: box.y, width: box.w, height: box.h }, made);
    made.addEventListener("click", (event) => {
      event.stopPropagation();
      if (moved) return;
      choose(item);
      if (item.kind === "group") toggle(item);
    });
    if (isSmall && item.kind !== "group") return;
    if (box.isOpen) {
      make("text", { x: box.x + 12, y: box.y + 19, class: "title" }, made, "▾ " + title);
      return;
    }
    const middle = box.x + box.w / 2;
    make("text", { x: middle, y: box.y + 19, class: "title", "text-anchor": "middle" }, made, (item.kind === "group" ? "▸ " : "") + title);
    lines.forEach((line, i) => make("text", { x: middle, y: box.y + 19 + 15 * (i + 1), class: "small", "text-anchor": "middle" }, made, line));
  }

  function drawEdge(edge, layer, isSmall, labels) {
    const points = edge.points;
    let d = `M${points[0][0]} ${points[0][1]}`;
    for (let i = 1; i < points.length; i++) {
      const [x, y] = points[i - 1], [toX, toY] = points[i];
      const bend = Math.max(Math.abs(toY - y) / 2, edge.isBack ? 60 : 8);
      d += x === toX && toY >= y ? `L${toX} ${toY}` : `C${x} ${y + bend} ${toX} ${toY - bend} ${toX} ${toY}`;
    }
    const isChosen = chosen && (edge.from === chosen || edge.to === chosen);
    const path = make("path", { d, class: "edge" + (isChosen ? " chosen" : ""), "marker-end": "url(#arrow)" }, layer);
    make("title", {}, path, `${edge.name ? edge.name + ": " : ""}${edge.type}`);
    const key = edge.from.id + edge.type;
    if (isSmall || labels.has(key)) return;
    labels.add(key);
    const number = [...labels].filter((known) => known.startsWith(edge.from.id)).length;
    make("text", { x: points[0][0] + 6, y: points[0][1] + 3 + 11 * number, class: "type" }, layer, edge.type);
  }

  function toggle(item) {
    const box = boxOf.get(item);
    const before = box && [box.x * view.scale + view.x, box.y * view.scale + view.y];
    open.has(item.id) ? open.delete(item.id) : open.add(item.id);
    arrange();
    // What was clicked stays where it is.
    const after = boxOf.get(item);
    if (before && after) move(before[0] - after.x * view.scale, before[1] - after.y * view.scale);
  }

  function move(x, y, scale = view.scale) {
    view = { x, y, scale };
    draw();
  }

  function fit() {
    const { width, height } = canvas.getBoundingClientRect();
    const scale = Math.max(0.02, Math.min(1.2, (width - 40) / placed.w, (height - 40) / placed.h));
    // A tall graph is shown from its beginning, at a size that can be read.
    const readable = Math.max(scale, Math.min(0.75, (width - 40) / placed.w));
    move((width - placed.w * readable) / 2, scale === readable ? (height - placed.h * scale) / 2 : 10, readable);
  }

  function fitAll() {
    const { width, height } = canvas.getBoundingClientRect();
    const scale = Math.max(0.02, Math.min(1.2, (width - 40) / placed.w, (height - 40) / placed.h));
    move((width - placed.w * scale) / 2, (height - placed.h * scale) / 2, scale);
  }

  function zoom(factor, x, y) {
    const scale = Math.min(4, Math.max(0.02, view.scale * factor));
    const by = scale / view.scale;
    move(x - (x - view.x) * by, y - (y - view.y) * by, scale);
  }

  /** Selects a box; with `reveal` what is around it opens, and it is brought into the window. */
  function choose(item, { reveal = false, scrolls = true } = {}) {
    chosen = item;
    if (item && reveal) {
      const closed = aboveOf(item).filter((at) => at !== item && !open.has(at.id));
      for (const at of closed) open.add(at.id);
      if (closed.length) arrange();
      const box = boxOf.get(item), { width, height } = canvas.getBoundingClientRect();
      const scale = Math.max(view.scale, 0.6);
      const x = (box.x + box.w / 2) * scale, y = (box.y + Math.min(box.h, 200) / 2) * scale;
      if (scale !== view.scale || !isInWindow(box)) move(width / 2 - x, height / 2 - y, scale);
    }
    drawn = null;
    draw();
    markLines(scrolls);
    showDetails();
  }

  function isInWindow(box) {
    const { width, height } = canvas.getBoundingClientRect();
    const x = box.x * view.scale + view.x, y = box.y * view.scale + view.y;
    return x >= 0 && y >= 0 && x + box.w * view.scale <= width && y + Math.min(box.h * view.scale, height) <= height;
  }

  function aboveOf(item) {
    const out = [];
    for (let at = item; at; at = at.parent) out.push(at);
    return out.reverse();
  }

  function leavesOf(item) {
    return item.kind === "group" ? item.children.flatMap(leavesOf) : [item];
  }

  // --- text --------------------------------------------------------------------------------------------------------

  function current() {
    return LISTINGS.includes(tab) ? data.texts[tab === "source" ? data.source : stage[2]] : null;
  }

  function showText() {
    for (const name of TABS) byId("tab-" + name).setAttribute("aria-selected", tab === name);
    text.replaceChildren();
    if (tab === "profile") {
      times = showProfile(data.profile, text, { make, element, pick: choosePath }, times ? times.zoomed : 0);
      return markLines(false);
    }
    if (tab === "memory") return showMemory();
    if (tab === "devices") {
      showPlan(data.plan, text, { element, pick: choosePath });
      return markLines(false);
    }
    const { lines, links } = current();
    const all = document.createDocumentFragment();
    lines.forEach((line, i) => {
      const made = element("div", undefined, all, "line" + (links[i].length ? " linked" : ""));
      made.dataset.line = i;
      element("i", i + 1, made);
      const isComment = /^\s*(#|\/\*|\/\/)/.test(line);
      element("span", line || " ", made, isComment ? "comment" : "");
    });
    text.append(all);
    markLines(true);
  }

  /** The boxes that a line is about: values first, then the op of a layer, then the layer. */
  function boxesOf(links) {
    const { links: known, nodes } = trees.get(stage[1]);
    for (const kind of [/^n:/, /^v:/, /^p:.*\|/, /^p:/]) {
      const out = links.filter((key) => kind.test(key)).flatMap((key) => {
        // Lines of a graph's own text are linked by the position of the node.
        if (key.startsWith("n:")) return tab === "stage" ? [nodes[Number(key.slice(2))]] : [];
        return known.get(key) || [];
      });
      const unique = [...new Set(out)].filter(Boolean);
      if (unique.length) return unique;
    }
    return [];
  }

  /** Selects the box of a path, or the closest one around it: steps may belong to what a stage does not show. */
  function choosePath(path) {
    const items = new Map();
    for (const item of [...tree.leaves, ...tree.groups]) if (item.path && !item.isRepeat) items.set(item.path, item);
    for (let at = path; at; at = at.slice(0, Math.max(0, at.lastIndexOf(".")))) {
      if (items.has(at)) return choose(items.get(at), { reveal: true });
    }
    choose(null);
  }

  function markLines(scrolls) {
    if (tab === "profile") return times.mark(chosen && chosen.path);
    if (tab === "devices") return markPlan(text, chosen && chosen.path);
    if (tab === "memory") {
      for (const made of text.querySelectorAll("[data-key]")) made.classList.toggle("marked", Boolean(chosen) && isOf(made.dataset.key));
      return;
    }
    const { links } = current();
    const wanted = new Set(chosen ? leavesOf(chosen) : []);
    let first = null;
    for (const made of text.children) {
      const line = links[Number(made.dataset.line)];
      const isMarked = wanted.size > 0 && line.length > 0 && boxesOf(line).some((leaf) => wanted.has(leaf));
      made.classList.toggle("marked", isMarked);
      if (isMarked && !first) first = made;
    }
    if (first && scrolls) first.scrollIntoView({ block: "center" });
  }

  function isOf(key) {
    const leaves = trees.get(stage[1]).links.get(key) || [];
    const wanted = new Set(leavesOf(chosen));
    return leaves.some((leaf) => wanted.has(leaf));
  }

  function showMemory() {
    const plan = data.memory;
    if (!plan) return element("p", "This backend leaves memory to its framework. C plans it: compile with CBackend.", text);
    element("p", `${plan.total.toLocaleString("en")} bytes of scratch memory. From left to right the steps of a call, from top to bottom the addresses: tensors that are not needed at the same time share their place.`, text);
    if (plan.text) element("p", plan.text, text).style.whiteSpace = "pre";
    if (!plan.tensors.length) return;
    const width = Math.max(360, text.clientWidth - 40), height = 420;
    const picture = make("svg", { class: "memory", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Memory over time", style: "margin:8px 14px" });
    text.append(picture);
    const steps = plan.steps.length, total = Math.max(plan.total, 1);
    for (const [name, offset, bytes, from, to, type] of plan.tensors) {
      const key = "v:" + name.replace(/\W/g, "_");
      const x = (from / steps) * width, w = Math.max(2, ((to - from + 1) / steps) * width - 1);
      const y = (offset / total) * height, h = Math.max(2, (bytes / total) * height - 1);
      const made = make("rect", { x, y, width: w, height: h, "data-key": key, tabindex: 0 }, picture);
      make("title", {}, made, `${name}: ${type}, ${bytes.toLocaleString("en")} bytes at ${offset.toLocaleString("en")}, steps ${from + 1} to ${to + 1} of ${steps}`);
      made.addEventListener("click", () => {
        const leaf = (trees.get(stage[1]).links.get(key) || [])[0];
        if (leaf) choose(leaf, { reveal: true });
      });
      if (h > 13 && w > name.length * 6.5) make("text", { x: x + 4, y: y + h / 2 + 4, class: "small" }, picture, name);
    }
    markLines(false);
  }

  function showDetails() {
    details.replaceChildren();
    if (!chosen) {
      element("span", "Click a box or a line. Arrows move along edges, Enter opens and closes, / searches, 0 fits.", details);
      return;
    }
    const list = element("dl", undefined, details);
    const row = (name, ...values) => {
      const shown = values.filter(Boolean);
      if (!shown.length) return;
      element("dt", name, list);
      element("dd", shown.join("\n"), list);
    };
    row("path", chosen.path || chosen.label);
    if (chosen.node) {
      const { op, literals, where, params, outputs } = chosen.node;
      row("op", op);
      row("arguments", literals);
      const ins = tree.edges.filter((edge) => edge.to === chosen);
      row("inputs", ...ins.map((edge) => `${edge.name || "%" + edge.value}: ${edge.type}`));
      row("parameters", ...params.map(([name, type]) => `${name}: ${type}`));
      row("outputs", ...outputs.map(([value, name, type]) => `${name || "%" + value}: ${type}`));
      row("written at", where);
    } else if (chosen.kind === "group") row("contents", texts(chosen)[1][0]);
    else row(chosen.kind, ...chosen.lines);
  }

  // --- search ------------------------------------------------------------------------------------------------------

  let results = [], active = 0;
  function find() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    results = [];
    if (words.length) {
      const named = (item) => [item.path, item.label, ...(item.node ? [item.node.op, ...item.node.params.map((p) => p[0]), ...item.node.outputs.map((o) => o[1])] : [])].join(" ").toLowerCase();
      for (const item of [...tree.groups, ...tree.leaves]) {
        if (item === tree.root || item.isRepeat) continue;
        if (words.every((word) => named(item).includes(word))) results.push(item);
        if (results.length === 50) break;
      }
    }
    active = 0;
    showResults();
  }
  function showResults() {
    found.hidden = !search.value.trim();
    found.replaceChildren();
    results.forEach((item, i) => {
      const made = element("li", (item.path || item.label) + (item.node ? ": " + item.node.op : item.kind === "group" ? "" : ": " + item.kind), found);
      made.setAttribute("role", "option");
      made.setAttribute("aria-selected", i === active);
      made.addEventListener("mousedown", (event) => { event.preventDefault(); pick(i); });
      if (i === active) made.scrollIntoView({ block: "nearest" });
    });
    if (!results.length) element("li", "nothing found", found);
  }
  function pick(i) {
    if (!results[i]) return;
    choose(results[i], { reveal: true });
    found.hidden = true;
    canvas.focus();
  }
  search.addEventListener("input", find);
  search.addEventListener("blur", () => (found.hidden = true));
  search.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      active = Math.max(0, Math.min(results.length - 1, active + (event.key === "ArrowDown" ? 1 : -1)));
      showResults();
      event.preventDefault();
    } else if (event.key === "Enter") pick(active);
    else if (event.key === "Escape") { found.hidden = true; canvas.focus(); }
    event.stopPropagation();
  });

  // --- mouse and keyboard ------------------------------------------------------------------------------------------

  let moved = false, held = null;
  canvas.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY, view.x, view.y]; moved = false; });
  window.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [x, y] = [event.clientX - held[0], event.clientY - held[1]];
    if (Math.abs(x) + Math.abs(y) > 4) moved = true;
    if (moved) move(held[2] + x, held[3] + y);
  });
  window.addEventListener("pointerup", () => (held = null));
  canvas.addEventListener("click", () => { if (!moved) choose(null); });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { left, top } = canvas.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY / 200), event.clientX - left, event.clientY - top);
    else move(view.x - event.deltaX, view.y - event.deltaY);
  }, { passive: false });

  /** The box beside the chosen one: along an edge, or in the same layer. */
  function neighbor(key) {
    const solid = placed.boxes.filter((box) => box.item !== tree.root);
    if (!chosen || !boxOf.has(chosen)) return solid[0] && solid[0].item;
    const at = boxOf.get(chosen);
    if (key === "ArrowDown" || key === "ArrowUp") {
      const isDown = key === "ArrowDown";
      const inside = new Set(leavesOf(chosen));
      const near = placed.edges.filter((edge) => (isDown ? edge.from : edge.to) === chosen || (at.isOpen && inside.has(isDown ? edge.from : edge.to)));
      const others = near.map((edge) => (isDown ? edge.to : edge.from)).filter((item) => !inside.has(item));
      return others[0];
    }
    const isRight = key === "ArrowRight";
    const row = solid.filter((box) => box.item.parent === chosen.parent && box !== at && (isRight ? box.x > at.x : box.x < at.x) && box.y < at.y + at.h && box.y + box.h > at.y);
    row.sort((p, q) => Math.abs(p.x - at.x) - Math.abs(q.x - at.x));
    return row[0] && row[0].item;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT)$/.test(event.target.tagName)) return;
    const { width, height } = canvas.getBoundingClientRect();
    const isOnGraph = canvas.contains(event.target) || event.target === document.body;
    if (event.key.startsWith("Arrow") && isOnGraph) {
      const item = neighbor(event.key);
      if (item) choose(item, { reveal: true });
    } else if ((event.key === "Enter" || event.key === " ") && isOnGraph) {
      if (chosen && chosen.kind === "group") toggle(chosen);
    } else if (event.key === "/") search.focus();
    else if (event.key === "Escape") choose(null);
    else if (event.key === "+" || event.key === "=") zoom(1.25, width / 2, height / 2);
    else if (event.key === "-") zoom(0.8, width / 2, height / 2);
    else if (event.key === "0") fitAll();
    else if (event.key === "t") theme();
    else return;
    event.preventDefault();
  });

  text.addEventListener("click", (event) => {
    const made = event.target.closest(".line");
    if (!made || String(getSelection())) return;
    const leaves = boxesOf(current().links[Number(made.dataset.line)]);
    // In C a line names what it reads and what it writes; the last of these is computed last.
    if (leaves.length) choose(leaves.reduce((a, b) => (a.first > b.first ? a : b)), { reveal: true, scrolls: false });
  });
  for (const name of TABS) {
    byId("tab-" + name).addEventListener("click", () => { tab = name; showText(); });
  }
  stageSelect.addEventListener("change", () => { tab = "stage"; showStage(stageSelect.value); });
  byId("open").addEventListener("click", () => {
    const closed = placed.boxes.filter((box) => box.item.kind === "group" && !box.isOpen);
    for (const box of closed) open.add(box.item.id);
    arrange();
    fitAll();
  });
  byId("close").addEventListener("click", () => { open.clear(); open.add(tree.root.id); arrange(); fit(); });
  byId("fit").addEventListener("click", fitAll);
  byId("theme").addEventListener("click", theme);
  function theme() {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  }

  const bar = byId("bar");
  bar.addEventListener("pointerdown", (event) => {
    bar.setPointerCapture(event.pointerId);
    bar.onpointermove = (at) => { byId("side").style.width = Math.max(160, window.innerWidth - at.clientX) + "px"; };
    bar.onpointerup = () => { bar.onpointermove = null; resized(); };
  });
  window.addEventListener("resize", resized);
  function resized() {
    drawn = null;
    draw();
    // Their pictures are as wide as the pane.
    if (tab === "profile") showText();
  }

  // --- start -------------------------------------------------------------------------------------------------------

  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  byId("title").textContent = `${data.title} · ${data.backend}`;
  byId("tab-profile").hidden = !data.profile;
  byId("tab-devices").hidden = !data.plan;
  for (const [name] of data.stages) element("option", name, stageSelect).value = name;
  stageSelect.value = data.stage;
  showStage(data.stage);
  // A link may name what it shows: page.html#layer1.0, for documents and tests.
  const asked = decodeURIComponent(location.hash.slice(1));
  const wanted = asked && [...tree.groups, ...tree.leaves].find((item) => item.path === asked || (item.path === "" && item.label === asked));
  if (wanted) {
    if (wanted.kind === "group") open.add(wanted.id);
    arrange();
    choose(wanted, { reveal: true });
  }
})();
