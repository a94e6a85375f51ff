// Results as a real table, steps by loops, shaded by value with the number in every cell, and curves beside it.
//   createResults(element).show({ title, metric, settings: [[name, value]], cells: [{ steps, loops, value, low, high }] })

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "1 2"]; // each curve has its dash, its marker's label and its shade

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function createResults(root) {
  const box = make("section", "rmdm rmdm-results");
  root.replaceChildren(box);
  const percent = (x) => `${(100 * x).toFixed(x > 0.995 && x < 1 ? 2 : 1)}%`;

  function heatMap(view, steps, loops, at) {
    const table = make("table", "rmdm-heat");
    table.append(make("caption", "", `${view.metric} by denoising steps (down) and loops within each step (across)`));
    const head = make("tr");
    const corner = make("th", "", "steps \\ loops");
    corner.scope = "col";
    head.append(corner);
    for (const l of loops) { const th = make("th", "", String(l)); th.scope = "col"; head.append(th); }
    const thead = make("thead"); thead.append(head);
    const body = make("tbody");
    for (const s of steps) {
      const row = make("tr");
      const th = make("th", "", String(s)); th.scope = "row"; row.append(th);
      for (const l of loops) {
        const cell = at(s, l);
        const td = make("td", "", cell ? (view.share ? percent(cell.value) : cell.value.toFixed(3)) : "–");
        if (cell) {
          const span = view.high - view.low || 1;
          const level = view.share ? cell.value : (cell.value - view.low) / span;
          td.style.setProperty("--level", level.toFixed(3));
          td.classList.toggle("rmdm-mid", level > 0.5); // where the ground is too like the ink, in dark or in light
          td.classList.toggle("rmdm-deep", level > 0.85);
          if (cell.low != null) td.title = `95% interval ${view.share ? percent(cell.low) : cell.low} to ${view.share ? percent(cell.high) : cell.high}`;
        }
        row.append(td);
      }
      body.append(row);
    }
    table.append(thead, body);
    const wrap = make("div", "rmdm-heat-wrap"); wrap.append(table);
    return wrap;
  }

  function curves(view, steps, loops, at) {
    const width = 560, height = 300, left = 46, right = 84, top = 16, bottom = 40;
    const node = document.createElementNS(SVG_NAMESPACE, "svg");
    node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    node.setAttribute("class", "rmdm-curves");
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", `${view.metric} over loops, one curve for each number of steps; the table has the numbers`);
    const add = (tag, attributes, text) => {
      const part = document.createElementNS(SVG_NAMESPACE, tag);
      for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
      if (text !== undefined) part.textContent = text;
      node.append(part);
    };
    const low = view.share ? 0 : view.low, high = view.share ? 1 : view.high;
    const x = (l) => left + (width - left - right) * (loops.length > 1 ? loops.indexOf(l) / (loops.length - 1) : 0.5);
    const y = (v) => top + (height - top - bottom) * (1 - (v - low) / (high - low || 1));
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const v = low + share * (high - low);
      add("line", { x1: left, x2: width - right, y1: y(v), y2: y(v), class: "rmdm-rule" });
      add("text", { x: left - 6, y: y(v) + 4, class: "rmdm-tick", "text-anchor": "end" }, view.share ? `${Math.round(100 * v)}%` : v.toFixed(2));
    }
    for (const l of loops) add("text", { x: x(l), y: height - bottom + 18, class: "rmdm-tick", "text-anchor": "middle" }, String(l));
    add("text", { x: (left + width - right) / 2, y: height - 4, class: "rmdm-tick", "text-anchor": "middle" }, "loops at sampling");
    const labels = [];
    steps.forEach((s, i) => {
      const points = loops.filter((l) => at(s, l)).map((l) => [x(l), y(at(s, l).value)]);
      if (!points.length) return;
      add("polyline", { points: points.map((p) => p.map((n) => n.toFixed(1)).join(",")).join(" "), class: "rmdm-curve",
                        "stroke-dasharray": DASHES[i % DASHES.length], style: `opacity:${1 - 0.5 * (i / Math.max(1, steps.length))}` });
      for (const [px, py] of points) add("circle", { cx: px, cy: py, r: 3, class: "rmdm-dot" });
      labels.push({ text: `T = ${s}`, y: points[points.length - 1][1] });
    });
    labels.sort((a, b) => a.y - b.y); // labels at the ends of the curves, pushed apart where they meet
    let last = -20;
    for (const label of labels) {
      last = Math.max(label.y + 4, last + 13);
      add("text", { x: width - right + 8, y: last, class: "rmdm-tick" }, label.text);
    }
    return node;
  }

  function show(view) {
    if (!view) { box.replaceChildren(); return; }
    const byNumber = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : typeof a === "number" ? -1 : 1);
    const steps = [...new Set(view.cells.map((c) => c.steps))].sort(byNumber);
    const loops = [...new Set(view.cells.map((c) => c.loops))].sort(byNumber);
    const at = (s, l) => view.cells.find((c) => c.steps === s && c.loops === l);
    const facts = make("dl", "rmdm-facts");
    for (const [name, value] of view.settings) {
      const pair = make("div"); pair.append(make("dt", "", name), make("dd", "", value)); facts.append(pair);
    }
    const pair = make("div", "rmdm-result-pair");
    pair.append(heatMap(view, steps, loops, at), curves(view, steps, loops, at));
    box.replaceChildren(make("h3", "rmdm-name", view.title), pair, facts);
  }
  return { show };
}
