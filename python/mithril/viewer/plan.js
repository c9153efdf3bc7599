// The plan for several devices: its picture, what follows from it, and a table whose rows select the layers that they
// are about.
"use strict";

/** Whether a layer is another one or inside of it. */
function isInside(path, other) {
  return other === "" || path === other || path.startsWith(other + ".");
}

/** Draws the plan into an element; `pick` is called with the path of what is clicked. */
function showPlan(plan, parent, { element, pick }) {
  // In a shadow tree, as the picture has its own colors, on white, whatever the theme of the page is.
  const picture = element("div", undefined, parent, "picture").attachShadow({ mode: "open" });
  const parsed = new DOMParser().parseFromString(plan.picture, "image/svg+xml").documentElement;
  const svg = picture.appendChild(document.importNode(parsed, true));
  svg.style.cssText = "display: block; max-width: 100%; height: auto; border-radius: 6px";
  for (const sentence of plan.sentences) element("p", sentence, parent, "sentence");
  if (!plan.rows.length) return;
  const table = element("table", undefined, parent, "plan");
  const head = element("tr", undefined, element("thead", undefined, table));
  for (const cell of plan.head) element("th", cell, head);
  const body = element("tbody", undefined, table);
  plan.rows.forEach((cells, i) => {
    const row = element("tr", undefined, body);
    row.dataset.row = i;
    row.places = plan.places[i];
    for (const cell of cells) element("td", cell, row, /^[\d.,]+( \S{1,2})?$/.test(cell) ? "number" : "");
    if (!row.places.length) return;
    row.tabIndex = 0;
    row.className = "linked";
    const choose = () => pick(row.places[0]);
    row.addEventListener("click", choose);
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      choose();
    });
  });
}

/** Marks the rows that are about a layer, or about layers inside of it or around it. */
function markPlan(parent, path) {
  for (const row of parent.querySelectorAll("tr[data-row]")) {
    row.classList.toggle("marked", Boolean(path) && row.places.some((place) => isInside(place, path) || isInside(path, place)));
  }
}
