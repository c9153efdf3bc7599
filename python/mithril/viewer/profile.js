// The profile: a flame graph whose frames open with a click, and a roofline plot. Frames that are narrower than half a
// pixel are not drawn, so that a model of thousands of steps has no more elements than the pane has pixels.
"use strict";

const FRAME = 20, FRAME_CHAR = 6.7, NARROWEST = 0.5;

/** A time with a unit that fits. */
function duration(seconds) {
  for (const [unit, name] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (seconds >= unit) return (seconds / unit).toPrecision(3) + " " + name;
  }
  return (seconds * 1e9).toPrecision(3) + " ns";
}

/** A number with the letter of its thousands. */
function short(number) {
  const power = number > 0 ? Math.max(0, Math.min(5, Math.floor(Math.log10(number) / 3 + 1e-9))) : 0;
  return Number((number / 1000 ** power).toPrecision(3)) + " " + ["", "k", "M", "G", "T", "P"][power];
}

/** The frames that are drawn with one of them as wide as the pane: those around it, itself, and those inside it. */
function visibleFrames(frames, zoomed, width) {
  const [, , depth, start, seconds] = frames[zoomed];
  const out = [];
  let next = depth - 1;
  for (let i = zoomed - 1; i >= 0 && next >= 0; i--) {
    if (frames[i][2] === next) {
      out.unshift({ index: i, x: 0, w: width, isAround: true });
      next--;
    }
  }
  for (let i = zoomed; i < frames.length && (i === zoomed || frames[i][2] > depth); i++) {
    const x = seconds ? ((frames[i][3] - start) / seconds) * width : 0;
    const w = i === zoomed ? width : seconds ? (frames[i][4] / seconds) * width : 0;
    if (w >= NARROWEST) out.push({ index: i, x, w, isAround: false });
  }
  return out;
}

/** The steps inside a frame. */
function stepsOf(frames, zoomed) {
  const out = new Set();
  for (let i = zoomed; i < frames.length && (i === zoomed || frames[i][2] > frames[zoomed][2]); i++) {
    if (frames[i][8] !== null) out.add(frames[i][8]);
  }
  return out;
}

/** Draws the profile into an element; `pick` is called with the path of what is clicked. */
function showProfile(profile, parent, { make, element, pick }, first) {
  const { frames, steps } = profile;
  const total = frames[0][4], width = Math.max(320, parent.clientWidth - 44);
  const state = { zoomed: first, mark };
  const known = new Set(frames.map((frame) => frame[1]));
  let marked = null;

  const plural = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;
  element("p", `${duration(profile.seconds)} a run on ${plural(profile.threads, "thread")}, median of ${plural(profile.runs, "run")}; ${plural(steps.length, "step")}, each as wide as its own median. Click a frame to zoom in, one around it to zoom out.`, parent);
  const legend = element("p", undefined, parent, "legend");
  for (const [kind, name] of [["compute", "bound by compute"], ["memory", "bound by memory"], ["unknown", "FLOPs not known"]]) {
    const entry = element("span", undefined, legend);
    element("i", undefined, entry, kind);
    entry.append(name);
  }
  const flame = make("svg", { class: "profile flame", width, role: "group", "aria-label": "Flame graph" });
  const readout = element("p", "", parent, "readout");
  parent.insertBefore(flame, readout);
  const plot = make("svg", { class: "profile roofline", width, role: "group", "aria-label": "Roofline plot" });
  parent.append(plot);

  function describe(index) {
    const [label, path, , , seconds, operations, unknown, bytes, row] = frames[index];
    const share = total ? (100 * seconds) / total : 0;
    const lines = [path || label, `${duration(seconds)}, ${share.toFixed(1)} % of the model`];
    const size = `${short(bytes)}B`;
    if (operations) {
      const speed = seconds ? `, ${short(operations / seconds)}FLOP/s` : "";
      const more = unknown ? ` (and ${plural(unknown, "step")} whose FLOPs are not known)` : "";
      lines.push(`${short(operations)}FLOP${more}${speed}`, `${size}, ${Number((operations / bytes).toPrecision(3))} FLOPs per byte`);
    } else lines.push(unknown ? `FLOPs not known, ${size}` : `no FLOPs, ${size}`);
    if (row !== null) lines.push(steps[row][1] && steps[row][1] !== path ? `${steps[row][1]}: ${steps[row][2]}` : steps[row][2]);
    return lines.join("\n");
  }

  function listen(made, index, act) {
    const text = describe(index);
    make("title", {}, made, text);
    made.addEventListener("pointerenter", () => (readout.textContent = text));
    made.addEventListener("focus", () => (readout.textContent = text));
    made.addEventListener("click", act);
    made.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
  }

  function zoom(index) {
    state.zoomed = index;
    drawFlame();
    const inside = stepsOf(frames, index);
    for (const dot of plot.querySelectorAll("circle")) dot.classList.toggle("outside", !inside.has(Number(dot.dataset.row)));
    mark(marked);
  }

  function open(index) {
    zoom(index);
    // Whoever goes by the keyboard goes on from there.
    const made = flame.querySelector(`[data-frame="${index}"]`);
    if (made) made.focus({ preventScroll: true });
    pick(frames[index][1]);
  }

  function drawFlame() {
    const shown = visibleFrames(frames, state.zoomed, width);
    const height = FRAME * (1 + shown.reduce((most, at) => Math.max(most, frames[at.index][2]), 0)) + 2;
    flame.replaceChildren();
    flame.setAttribute("height", height);
    flame.setAttribute("viewBox", `-1 -1 ${width + 2} ${height + 2}`);
    for (const { index, x, w, isAround } of shown) {
      const [label, path, depth, , , , , , row] = frames[index];
      const made = make("rect", {
        x, y: FRAME * depth, width: w, height: FRAME - 1, rx: 2, class: row === null ? "submodel" : steps[row][6],
        "data-path": path, "data-frame": index, role: "button", tabindex: w > 3 ? 0 : -1, "aria-label": path || label,
        ...(isAround ? { opacity: 0.55 } : {}),
      }, flame);
      listen(made, index, () => open(index));
      const most = Math.floor((w - 6) / FRAME_CHAR);
      if (most >= Math.min(3, label.length)) {
        make("text", { x: x + 4, y: FRAME * depth + 14 }, flame, label.length <= most ? label : label.slice(0, most - 1) + "…");
      }
    }
    readout.textContent = describe(state.zoomed);
  }

  function drawRoofline() {
    const { x: [left, right], y: [low, high], ridge, peak, dots, left_out: hidden, roofs } = profile.roofline;
    const height = Math.round(Math.max(260, Math.min(480, 0.66 * width)));
    const [x0, x1, y0, y1] = [58, width - 8, 12, height - 40];
    const px = (x) => x0 + ((x - left) / (right - left)) * (x1 - x0);
    const py = (y) => y1 - ((y - low) / (high - low)) * (y1 - y0);
    plot.setAttribute("height", height);
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    for (let n = Math.ceil(left); n <= right; n++) {
      make("path", { class: "grid", d: `M${px(n)} ${y0}V${y1}` }, plot);
      make("text", { class: "faint", x: px(n), y: y1 + 16, "text-anchor": "middle" }, plot, short(10 ** n).trim());
    }
    for (let n = Math.ceil(low); n <= high; n++) {
      make("path", { class: "grid", d: `M${x0} ${py(n)}H${x1}` }, plot);
      make("text", { class: "faint", x: x0 - 6, y: py(n) + 4, "text-anchor": "end" }, plot, short(10 ** n).trim());
    }
    make("text", { x: (x0 + x1) / 2, y: height - 6, "text-anchor": "middle" }, plot, "FLOPs per byte");
    make("text", { x: 12, y: (y0 + y1) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(y0 + y1) / 2})` }, plot, "FLOP/s");
    const corner = peak - (ridge - left);
    make("path", { class: "roof", d: `M${px(left)} ${py(corner)}L${px(ridge)} ${py(peak)}H${x1}` }, plot);
    const frameOf = new Map();
    frames.forEach((frame, i) => { if (frame[8] !== null) frameOf.set(frame[8], i); });
    for (const [x, y, radius, row] of dots) {
      const made = make("circle", {
        cx: px(x), cy: py(y), r: radius * Math.min(1, width / 800), class: steps[row][6], "data-row": row, "data-path": steps[row][0],
        role: "button", tabindex: -1, "aria-label": steps[row][0] || steps[row][1],
      }, plot);
      listen(made, frameOf.get(row), () => { pick(steps[row][0]); readout.textContent = describe(frameOf.get(row)); });
    }
    make("text", { x: x1 - 2, y: py(peak) - 6, "text-anchor": "end", class: "over" }, plot, roofs[0]);
    const angle = (Math.atan2(py(peak) - py(corner), px(ridge) - px(left)) * 180) / Math.PI;
    const [x, y] = [(px(left) + px(ridge)) / 2, (py(corner) + py(peak)) / 2 - 7];
    make("text", { x, y, "text-anchor": "middle", transform: `rotate(${angle} ${x} ${y})`, class: "over" }, plot, roofs[1]);
    const note = "One dot for each step, as large as its time. Steps whose tensors are in the caches may lie above the line of the memory, convolutions by Winograd's algorithm above that of computing.";
    element("p", note + (hidden ? ` ${plural(hidden, "step")} without FLOPs, or whose FLOPs are not known, ${hidden === 1 ? "is" : "are"} not shown.` : ""), parent);
  }

  /** Marks the frames of a path and the dots inside it; what was fused into another step has the frame around it. */
  function mark(path) {
    marked = path;
    let near = path || "";
    while (near && !known.has(near)) near = near.slice(0, Math.max(0, near.lastIndexOf(".")));
    for (const made of flame.querySelectorAll("[data-path]")) {
      made.classList.toggle("marked", near !== "" && made.dataset.path === near);
    }
    for (const made of plot.querySelectorAll("[data-path]")) {
      const own = made.dataset.path;
      made.classList.toggle("marked", near !== "" && (own === near || own.startsWith(near + ".")));
    }
  }

  drawRoofline();
  zoom(first);
  return state;
}

if (typeof module !== "undefined") module.exports = { visibleFrames, stepsOf, duration, short };
