// The player: draws one run of a recursive masked diffusion model, frame by frame, from its trajectory JSON.
// A frame is one loop of one denoising step. The module depends on nothing, so that the Gradio app and a
// static page share it. Data reaches the page through textContent only, never as markup.
//
//   const player = createPlayer(element, { onEdit })    one run; with onEdit(line, whole, tokens) an unsolved Sudoku can be
//                                                       edited: `whole` says that `line` was pasted and is still to be read
//   const duel = createCompare(element)                 two runs, in step by forward passes
//   player.show(trajectory)   duel.show([left, right], ["one loop", "eight loops"])

const SVG = "http://www.w3.org/2000/svg";
const SPEEDS = [["0.25", "¼×"], ["0.5", "½×"], ["1", "1×"], ["2", "2×"], ["4", "4×"], ["8", "8×"]];
const ICONS = { // paths in a 24 x 24 box: fonts differ in which media symbols they have
  first: "M5 5h2.5v14H5z M19 5v14l-10-7z", last: "M16.5 5H19v14h-2.5z M5 5v14l10-7z",
  stepBack: "M12 6v12l-8-6z M20 6v12l-8-6z", stepOn: "M4 6v12l8-6z M12 6v12l8-6z",
  back: "M16 5.5v13l-9-6.5z", on: "M8 5.5v13l9-6.5z", play: "M7 4.5v15l12-7.5z", pause: "M6.5 5h4v14h-4z M13.5 5h4v14h-4z",
};
const stillness = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const plural = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function svg(tag, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== null) node.textContent = text;
  return node;
}

// --- The run: what each frame shows, worked out once ------------------------------------------------------------

// State 0 is the problem before any pass; state i the i-th frame. `tokens` are those known before the frame's own
// commits, `after` those known after them; `guesses` maps an open position to { token, p, alternatives, changed }.
function statesOf(run) {
  const start = run.start.slice();
  const open = start.flatMap((token, place) => (token === run.mask ? [place] : []));
  const states = [{ step: 0, loop: 0, passes: 0, tokens: start, after: start, guesses: new Map(), open,
                    commit: new Set(), changed: 0, certainty: null }];
  const when = new Map(); // position -> where it was committed
  for (const frame of run.frames) {
    const last = states[states.length - 1];
    const guesses = new Map();
    let changed = 0, sum = 0;
    frame.open.forEach((place, i) => {
      const before = last.guesses.get(place);
      const isNew = before !== undefined && before.token !== frame.guess[i];
      if (isNew) changed += 1;
      sum += frame.p[i];
      const flat = frame.alt ? frame.alt[i] || [] : [];
      const alternatives = [];
      for (let j = 0; j + 1 < flat.length; j += 2) alternatives.push({ token: flat[j], p: flat[j + 1] });
      guesses.set(place, { token: frame.guess[i], p: frame.p[i], alternatives, changed: isNew });
    });
    const after = last.after.slice();
    for (const place of frame.commit) {
      const guess = guesses.get(place);
      if (guess) after[place] = guess.token;
      when.set(place, { step: frame.step, loop: frame.loop, p: guess ? guess.p : null });
    }
    states.push({ step: frame.step, loop: frame.loop, passes: frame.passes, tokens: last.after, after, guesses,
                  open: frame.open, commit: new Set(frame.commit), changed,
                  certainty: frame.open.length ? sum / frame.open.length : null });
  }
  const steps = []; // steps[s] = indices of the states of step s (1-based steps, in order of appearance)
  states.forEach((state, i) => {
    if (i === 0) return;
    if (!steps.length || states[steps[steps.length - 1][0]].step !== state.step) steps.push([]);
    steps[steps.length - 1].push(i);
    state.stepIndex = steps.length - 1;
    state.loopIndex = steps[steps.length - 1].length - 1;
  });
  return { run, states, steps, when };
}

const shape = (run) => run.grid ? "sudoku" : run.task.startsWith("countdown") ? "countdown" : "text";
const things = { sudoku: ["cell", "cells"], countdown: ["symbol", "symbols"], text: ["character", "characters"] };
const printable = (symbol) => symbol === "\n" ? "↵" : symbol === " " ? "␣" : symbol;

// --- Sudoku -----------------------------------------------------------------------------------------------------

function sudokuView(story, pick, onEdit) {
  const { run } = story;
  const { size, block_rows: rows, block_cols: columns } = run.grid;
  const editable = Boolean(onEdit) && run.frames.length === 0;
  const values = run.start.slice();
  const table = el("table", { class: "rmdm-board", role: "grid", tabindex: editable ? "-1" : "0",
                              "aria-label": `Sudoku, ${size} rows and ${size} columns` });
  table.style.setProperty("--n", size);
  const cells = [];
  const place = (row, column) => row * size + column;
  for (let row = 0; row < size; row++) {
    const tr = el("tr", { role: "row" });
    for (let column = 0; column < size; column++) {
      const td = el("td", { role: "gridcell", "data-place": place(row, column) });
      if (column % columns === 0 && column) td.classList.add("rmdm-left");
      if (row % rows === 0 && row) td.classList.add("rmdm-top");
      // Block shading beside the lines helps the eye on large boards.
      if ((Math.floor(row / rows) + Math.floor(column / columns)) % 2) td.classList.add("rmdm-odd");
      cells.push({ td, marks: new Map(), label: "" });
      tr.append(td);
    }
    table.append(tr);
  }
  let cursor = 0;

  function conflictsOf(tokens) {
    const bad = new Set();
    const look = (unit) => {
      const seen = new Map();
      for (const p of unit) {
        if (tokens[p] === run.mask) continue;
        if (seen.has(tokens[p])) { bad.add(p); bad.add(seen.get(tokens[p])); } else seen.set(tokens[p], p);
      }
    };
    for (let k = 0; k < size; k++) {
      const line = [...Array(size).keys()];
      look(line.map((i) => place(k, i)));
      look(line.map((i) => place(i, k)));
      const top = Math.floor(k / (size / columns)) * rows, left = (k % (size / columns)) * columns;
      look(line.map((i) => place(top + Math.floor(i / columns), left + (i % columns))));
    }
    return bad;
  }

  // A mark sits at its pencil place in the cell and glides to the middle as it grows surer.
  function setMark(cell, token, p) {
    let mark = cell.marks.get(token);
    if (!mark) {
      mark = el("span", { class: "rmdm-mark", text: run.symbols[token], "aria-hidden": "true" });
      mark.style.setProperty("--x", (((token - 1) % columns) - (columns - 1) / 2) / columns);
      mark.style.setProperty("--y", (Math.floor((token - 1) / columns) - (rows - 1) / 2) / rows);
      cell.marks.set(token, mark);
      cell.td.append(mark);
    }
    mark.style.setProperty("--p", p / 100);
    mark.hidden = false;
    return mark;
  }

  function draw(state) {
    const known = state.after;
    const bad = conflictsOf(known);
    cells.forEach((cell, p) => {
      const { td } = cell;
      const given = run.start[p] !== run.mask;
      const guess = state.guesses.get(p);
      const committed = !given && known[p] !== run.mask;
      td.classList.toggle("rmdm-given", given);
      td.classList.toggle("rmdm-committed", committed);
      td.classList.toggle("rmdm-new", state.commit.has(p));
      td.classList.toggle("rmdm-changed", Boolean(guess && guess.changed && !committed));
      td.classList.toggle("rmdm-conflict", bad.has(p));
      const text = given || committed ? run.symbols[known[p]] : "";
      if (cell.text !== text) {
        if (!cell.digit) { cell.digit = el("span", { class: "rmdm-digit" }); td.prepend(cell.digit); }
        cell.digit.textContent = text;
        cell.text = text;
      }
      const wanted = new Map();
      if (guess && !committed) {
        wanted.set(guess.token, guess.p);
        if (size <= 9) for (const a of guess.alternatives) wanted.set(a.token, a.p);
      }
      td.style.setProperty("--fill", guess && !committed && size > 9 ? guess.p / 100 : 0);
      for (const [token, mark] of cell.marks) if (!wanted.has(token)) mark.hidden = true;
      for (const [token, probability] of wanted) {
        setMark(cell, token, probability).classList.toggle("rmdm-best", token === guess.token);
      }
      const name = `Row ${Math.floor(p / size) + 1}, column ${(p % size) + 1}: `;
      const label = name + (given ? `clue ${text}` : committed ? `committed ${text}`
        : guess ? `guess ${run.symbols[guess.token]}, ${guess.p} percent` : "empty") + (bad.has(p) ? ", conflict" : "");
      if (label !== cell.label) { td.setAttribute("aria-label", label); cell.label = label; }
    });
  }

  // An unsolved puzzle is a form: one input a cell, arrows move, Backspace clears, a pasted line fills the board.
  function makeEditable() {
    const line = () => values.map((v) => v === 0 ? (size > 9 ? "." : "0") : size > 9 && v > 9
      ? String.fromCharCode(55 + v) : String(v)).join("");
    const inputs = cells.map((cell, p) => {
      const input = el("input", { type: "text", inputmode: "numeric", maxlength: "2", autocomplete: "off",
        tabindex: p === 0 ? "0" : "-1", class: "rmdm-entry",
        "aria-label": `Row ${Math.floor(p / size) + 1}, column ${(p % size) + 1}` });
      input.value = values[p] ? run.symbols[values[p]] : "";
      cell.td.append(input);
      return input;
    });
    const refresh = () => {
      const bad = conflictsOf(values);
      cells.forEach((cell, p) => {
        cell.td.classList.toggle("rmdm-conflict", bad.has(p));
        cell.td.classList.toggle("rmdm-given", values[p] !== 0);
        inputs[p].setAttribute("aria-invalid", bad.has(p) ? "true" : "false");
      });
    };
    const focus = (p) => {
      inputs[cursor].tabIndex = -1;
      cursor = p;
      inputs[p].tabIndex = 0;
      inputs[p].focus();
      inputs[p].select();
    };
    table.addEventListener("keydown", (event) => {
      const move = { ArrowUp: -size, ArrowDown: size, ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move === undefined) return;
      const next = cursor + move;
      if (next >= 0 && next < size * size) focus(next);
      event.preventDefault();
      event.stopPropagation();
    });
    table.addEventListener("focusin", (event) => {
      const p = inputs.indexOf(event.target);
      if (p >= 0 && p !== cursor) { inputs[cursor].tabIndex = -1; cursor = p; inputs[p].tabIndex = 0; }
      if (p >= 0) inputs[p].select();
    });
    table.addEventListener("input", (event) => {
      const p = inputs.indexOf(event.target);
      const text = event.target.value.trim();
      const digit = /^[1-9]\d?$/.test(text) && Number(text) <= size ? Number(text) : 0;
      values[p] = digit;
      if (!digit) event.target.value = "";
      refresh();
      onEdit(line(), false, values.slice());
      const full = size <= 9 ? text.length >= 1 : text.length >= 2;
      if (digit && full && (p + 1) % size) focus(p + 1);
    });
    table.addEventListener("paste", (event) => {
      const text = event.clipboardData.getData("text").trim();
      if (text.length <= 2) return;
      event.preventDefault();
      onEdit(text, true, values.slice());
    });
    refresh();
  }

  function moveCursor(event) {
    const move = { ArrowUp: -size, ArrowDown: size, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move === undefined) return;
    cells[cursor].td.classList.remove("rmdm-cursor");
    cursor = clamp(cursor + move, 0, size * size - 1);
    cells[cursor].td.classList.add("rmdm-cursor");
    pick(cursor);
    event.preventDefault();
    event.stopPropagation();
  }

  const at = (event) => {
    const td = event.target.closest("td");
    return td && table.contains(td) ? Number(td.dataset.place) : null;
  };
  if (editable) makeEditable();
  else {
    table.addEventListener("keydown", moveCursor);
    table.addEventListener("focus", () => { cells[cursor].td.classList.add("rmdm-cursor"); pick(cursor); });
    table.addEventListener("blur", () => cells[cursor].td.classList.remove("rmdm-cursor"));
    table.addEventListener("pointerover", (event) => { const p = at(event); if (p !== null) pick(p); });
    table.addEventListener("click", (event) => { const p = at(event); if (p !== null) { cursor = p; pick(p); } });
  }
  const nameOf = (p) => `Row ${Math.floor(p / size) + 1}, column ${(p % size) + 1}`;
  return { node: el("div", { class: "rmdm-board-wrap" }, table), draw: editable ? () => {} : draw, nameOf };
}

// --- Characters in place: shared by Countdown and text ------------------------------------------------------------

// One focusable span a position. The level of the fill is the certainty, so that it does not rest on colour alone.
function letters(story, pick) {
  const { run } = story;
  const spans = run.start.map((token, p) => el("span", { class: "rmdm-char", "data-place": p }));
  function draw(state, show = printable) {
    spans.forEach((span, p) => {
      const given = run.start[p] !== run.mask;
      const known = state.after[p] !== run.mask;
      const guess = state.guesses.get(p);
      const symbol = known ? run.symbols[state.after[p]] : guess ? run.symbols[guess.token] : null;
      span.textContent = symbol === null ? "·" : show(symbol, known);
      span.classList.toggle("rmdm-given", given);
      span.classList.toggle("rmdm-committed", known && !given);
      span.classList.toggle("rmdm-new", state.commit.has(p));
      span.classList.toggle("rmdm-changed", Boolean(guess && guess.changed && !known));
      span.classList.toggle("rmdm-blank", symbol === null);
      span.style.setProperty("--fill", guess && !known ? guess.p / 100 : 0);
    });
  }
  function listen(node) {
    let cursor = story.run.start.indexOf(run.mask);
    if (cursor < 0) cursor = 0;
    const mark = (p) => {
      spans[cursor].classList.remove("rmdm-cursor");
      cursor = clamp(p, 0, spans.length - 1);
      spans[cursor].classList.add("rmdm-cursor");
      pick(cursor);
    };
    node.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move === undefined) return;
      mark(cursor + move);
      event.preventDefault();
      event.stopPropagation();
    });
    node.addEventListener("focus", () => mark(cursor));
    node.addEventListener("blur", () => spans[cursor].classList.remove("rmdm-cursor"));
    for (const kind of ["pointerover", "click"]) {
      node.addEventListener(kind, (event) => {
        const span = event.target.closest(".rmdm-char");
        if (span) pick(Number(span.dataset.place));
      });
    }
  }
  return { spans, draw, listen };
}

function textView(story, pick) {
  const chars = letters(story, pick);
  const node = el("div", { class: "rmdm-text", tabindex: "0", role: "group",
                           "aria-label": "The text, character by character" }, ...chars.spans);
  chars.listen(node);
  // A known space is a space; a guessed one stays visible.
  const draw = (state) => chars.draw(state, (symbol, known) => symbol === " " && known ? " " : printable(symbol));
  return { node, draw, nameOf: (p) => `Character ${p + 1}` };
}

// --- Countdown ----------------------------------------------------------------------------------------------------

// Judges one line against the numbers at hand: { pool, reason }, as `follow` in rmdm/tasks/countdown.py does and in its
// words. Without a pool, after a step that fails, form and arithmetic only. Whole numbers of any size: a model may write
// sixty digits.
export function judge(line, pool) {
  const match = /^(0|[1-9]\d*)([+\-*/])(0|[1-9]\d*)=(0|[1-9]\d*)$/.exec(line);
  if (!match) return { pool, reason: line ? "not of the form a+b=c" : "an empty line" };
  const [a, b, claimed] = [match[1], match[3], match[4]].map(BigInt);
  const sum = `${a}${match[2]}${b}`;
  const value = { "+": () => a + b, "-": () => a - b, "*": () => a * b, "/": () => b && a % b === 0n ? a / b : 0n }[match[2]]();
  if (value <= 0n) return { pool, reason: `${sum} is no positive whole number` };
  if (value !== claimed) return { pool, reason: `${sum} is ${value}` };
  if (!pool) return { pool, reason: "" };
  const rest = pool.slice();
  for (const number of [a, b]) {
    const i = rest.indexOf(number);
    if (i < 0) return { pool, reason: `there is no ${number} left` };
    rest.splice(i, 1);
  }
  return { pool: [...rest, claimed], reason: "" };
}

function countdownView(story, pick) {
  const { run } = story;
  const chars = letters(story, pick);
  const newline = run.symbols.indexOf("\n");
  const head = run.start.indexOf(newline);
  const prompt = run.start.slice(0, head).map((t) => run.symbols[t]).join("");
  const [left, right] = prompt.split("=");
  const numbers = (left || "0").split(",").map(BigInt), target = BigInt(right || 0);
  const chips = (list, kind = "") => list.map((n) => el("span", { class: `rmdm-chip ${kind}`, text: String(n) }));
  const body = el("tbody");
  const table = el("table", { class: "rmdm-chain" },
    el("caption", { class: "rmdm-hidden", text: "The chain of calculations" }),
    el("thead", {}, el("tr", {}, ...["Step", "Calculation", "Numbers left", "Check"]
      .map((text) => el("th", { scope: "col", text })))), body);
  const tail = el("p", { class: "rmdm-tail" });
  const node = el("div", { class: "rmdm-countdown", tabindex: "0", role: "group", "aria-label": "The chain, symbol by symbol" },
    el("p", { class: "rmdm-task" }, el("span", { text: "Use " }), ...chips(numbers),
      el("span", { text: " to make " }), ...chips([target], "rmdm-target")), table, tail);
  chars.listen(node);

  function draw(state) {
    chars.draw(state, printable);
    const symbolAt = (p) => state.after[p] !== run.mask ? state.after[p]
      : state.guesses.has(p) ? state.guesses.get(p).token : -1;
    const lines = [[]]; // positions of each line, its newline included
    for (let p = head + 1; p < run.start.length; p++) {
      lines[lines.length - 1].push(p);
      if (symbolAt(p) === newline) lines.push([]);
    }
    let last = lines.length - 1; // the padding: what comes after the last line with something in it
    while (last > 0 && lines[last].every((p) => symbolAt(p) === newline)) last--;
    const padding = lines.slice(last + 1).flat();
    const rows = [];
    const row = (i, line, left, check, kind) => rows.push(el("tr", {}, el("th", { scope: "row", text: String(i + 1) }),
      el("td", { class: "rmdm-line" }, ...line), el("td", {}, ...left),
      el("td", {}, ...(check ? [el("span", { class: kind, text: check })] : []))));
    const finished = !state.after.includes(run.mask);
    let pool = numbers; // null after a step that fails
    lines.slice(0, last + 1).forEach((line, i) => {
      const places = line.filter((p) => symbolAt(p) !== newline);
      const spans = line.map((p) => chars.spans[p]);
      if (places.some((p) => symbolAt(p) < 0)) return row(i, spans, [], "open", "rmdm-dim");
      const result = judge(places.map((p) => run.symbols[symbolAt(p)]).join(""), pool);
      pool = result.reason ? null : result.pool;
      const draft = line.some((p) => state.after[p] === run.mask) ? " rmdm-draft" : ""; // still a guess
      if (result.reason) return row(i, spans, [], `✗ ${result.reason}`, `rmdm-no${draft}`);
      if (!pool) return row(i, spans, [], "follows a step that fails", "rmdm-dim");
      const end = pool.length === 1, reached = end && pool[0] === target;
      row(i, spans, chips(pool, reached ? "rmdm-target" : ""), !end ? "✓ right" : reached ? `✓ reaches ${target}`
        : `✗ ends at ${pool[0]}, not ${target}`, (end && !reached ? "rmdm-no" : "rmdm-yes") + draft);
    });
    // Every step has its row, so that the table keeps its height while the model changes its mind.
    for (let i = rows.length; i < numbers.length - 1; i++) {
      row(i, [el("span", { class: "rmdm-dim rmdm-none", text: "–" })], [], finished ? "✗ missing" : "", "rmdm-no");
    }
    body.replaceChildren(...rows);
    tail.replaceChildren(...(padding.length
      ? [el("span", { class: "rmdm-dim", text: `${padding.length} empty ` }), ...padding.map((p) => chars.spans[p])] : []));
  }
  return { node, draw, nameOf: (p) => `Position ${p + 1}` };
}

// --- The chart ----------------------------------------------------------------------------------------------------

// Certainty is a line and changed guesses are bars, over forward passes: told apart by form, not by colour.
function chartView(story, onSeek) {
  const { states, steps } = story;
  const node = svg("svg", { class: "rmdm-chart", role: "img" });
  const height = 128, top = 14, bottom = 20, left = 34, right = 26;
  const most = Math.max(1, ...states.map((s) => s.changed));
  const mean = (s) => s.certainty === null ? null : Math.round(s.certainty);
  const first = states.find((s) => s.certainty !== null), final = states[states.length - 1];
  node.setAttribute("aria-label", first ? `Mean certainty from ${mean(first)} to ${mean(final)} percent, and changed `
    + `guesses, over ${final.passes} forward passes` : "No passes yet");
  let head = null, width = 320, x = () => 0;
  function layout() {
    width = Math.max(200, node.clientWidth || 320);
    node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const count = Math.max(1, states.length - 1);
    x = (i) => left + (width - left - right) * (i - 0.5) / count;
    const y = (share) => top + (height - top - bottom) * (1 - share);
    const bar = (width - left - right) / count;
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      parts.push(svg("line", { x1: left, x2: width - right, y1: y(share), y2: y(share), class: "rmdm-rule" }));
      parts.push(svg("text", { x: left - 5, y: y(share) + 3.5, class: "rmdm-tick", "text-anchor": "end" }, `${share * 100}%`));
    }
    parts.push(svg("text", { x: width - right + 5, y: y(0.5) + 3.5, class: "rmdm-tick" }, String(Math.ceil(most / 2))));
    parts.push(svg("text", { x: width - right + 5, y: y(1) + 3.5, class: "rmdm-tick" }, String(most)));
    if (steps.length <= 64) {
      steps.forEach((indices, s) => {
        const edge = x(indices[0]) - bar / 2;
        if (s) parts.push(svg("line", { x1: edge, x2: edge, y1: top, y2: height - bottom, class: "rmdm-step-edge" }));
      });
    }
    parts.push(svg("text", { x: left, y: height - 6, class: "rmdm-tick" }, "1"));
    parts.push(svg("text", { x: width - right, y: height - 6, class: "rmdm-tick", "text-anchor": "end" },
      `${final.passes} passes`));
    states.forEach((s, i) => {
      if (i && s.changed) parts.push(svg("rect", { x: x(i) - bar * 0.4, width: Math.max(1, bar * 0.8), y: y(s.changed / most),
        height: y(0) - y(s.changed / most), class: "rmdm-bar" }));
    });
    const points = states.flatMap((s, i) => (s.certainty === null ? [] : [`${x(i).toFixed(1)},${y(s.certainty / 100).toFixed(1)}`]));
    if (points.length > 1) parts.push(svg("polyline", { points: points.join(" "), class: "rmdm-curve" }));
    head = svg("line", { y1: top - 4, y2: height - bottom, class: "rmdm-playhead" });
    node.replaceChildren(...parts, head);
    move(now);
  }
  let now = 0;
  function move(i) {
    now = i;
    if (!head) return;
    const at = i ? x(i) : left;
    head.setAttribute("x1", at);
    head.setAttribute("x2", at);
  }
  const seek = (event) => {
    const box = node.getBoundingClientRect();
    const inside = ((event.clientX - box.left) * (width / box.width) - left) / (width - left - right);
    onSeek(clamp(Math.round(inside * (states.length - 1) + 0.5), 1, states.length - 1));
  };
  node.addEventListener("pointerdown", (event) => { node.setPointerCapture(event.pointerId); seek(event); });
  node.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
  const watcher = new ResizeObserver(() => layout());
  watcher.observe(node);
  return { node, move, stop: () => watcher.disconnect() };
}

// --- Transport: play, pause, speed, and rows of segments to scrub ---------------------------------------------------

function icon(name) {
  const node = svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" });
  node.append(svg("path", { d: ICONS[name] }));
  return node;
}

function button(label, name, onclick, extra = "") {
  return el("button", { type: "button", class: `rmdm-button ${extra}`, "aria-label": label, title: label, onclick }, icon(name));
}

// A slider made of segments, one a value; pointer and arrow keys move it.
function segments(label, onPick) {
  const node = el("div", { class: "rmdm-segments", role: "slider", tabindex: "0", "aria-label": label });
  let count = 0, value = 0;
  function set(newCount, newValue, text) {
    if (newCount !== count) {
      count = newCount;
      node.replaceChildren(...Array.from({ length: Math.min(count, 160) }, () => el("i")));
    }
    value = newValue;
    const shown = node.children.length;
    const lit = count <= shown ? value : Math.ceil((value / count) * shown);
    [...node.children].forEach((child, i) => {
      child.classList.toggle("rmdm-past", i < lit - 1);
      child.classList.toggle("rmdm-now", i === lit - 1);
    });
    node.setAttribute("aria-valuemin", "0");
    node.setAttribute("aria-valuemax", String(count));
    node.setAttribute("aria-valuenow", String(value));
    node.setAttribute("aria-valuetext", text);
  }
  const at = (event) => {
    const box = node.getBoundingClientRect();
    onPick(clamp(Math.floor(((event.clientX - box.left) / box.width) * count) + 1, 1, count));
  };
  node.addEventListener("pointerdown", (event) => { node.setPointerCapture(event.pointerId); at(event); });
  node.addEventListener("pointermove", (event) => { if (event.buttons) at(event); });
  node.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -5, PageUp: 5 }[event.key];
    const to = event.key === "Home" ? 1 : event.key === "End" ? count : move === undefined ? null : value + move;
    if (to === null) return;
    onPick(to, event.key);
    event.preventDefault();
    event.stopPropagation();
  });
  return { node, set };
}

// The clock that both players share. `target` has length, index, seek(i), pause length of a state.
function transport(target, { onState }) {
  let timer = null, speed = 1;
  const playing = () => timer !== null;
  function pause() {
    clearTimeout(timer);
    timer = null;
    onState(false);
  }
  function tick() {
    if (target.index() >= target.length() - 1) return pause();
    target.seek(target.index() + 1);
    timer = setTimeout(tick, target.hold() / speed);
  }
  function play() {
    if (target.length() < 2) return;
    if (target.index() >= target.length() - 1) target.seek(0);
    clearTimeout(timer);
    timer = setTimeout(tick, 120 / speed);
    onState(true);
  }
  return { playing, pause, play, toggle: () => (playing() ? pause() : play()), setSpeed: (s) => { speed = s; }, speed: () => speed };
}

function controls(clock, target, jump) {
  const go = (i) => { clock.pause(); target.seek(clamp(i, 0, target.length() - 1)); };
  const toggle = button("Play (space)", "play", () => clock.toggle(), "rmdm-play");
  const speed = el("select", { class: "rmdm-select", "aria-label": "Speed", onchange: () => clock.setSpeed(Number(speed.value)) },
    ...SPEEDS.map(([value, text]) => el("option", { value, text, selected: value === "1" })));
  const node = el("div", { class: "rmdm-buttons", role: "toolbar", "aria-label": "Playback" },
    button("To the start (Home)", "first", () => go(0)),
    button("One step back (Shift + left arrow)", "stepBack", () => go(jump(-1))),
    button("One loop back (left arrow)", "back", () => go(target.index() - 1)), toggle,
    button("One loop on (right arrow)", "on", () => go(target.index() + 1)),
    button("One step on (Shift + right arrow)", "stepOn", () => go(jump(1))),
    button("To the end (End)", "last", () => go(target.length() - 1)),
    el("label", { class: "rmdm-speed" }, el("span", { text: "Speed" }), speed));
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const onButton = event.target.closest("button");
    const actions = {
      " ": () => clock.toggle(), k: () => clock.toggle(), ",": () => go(target.index() - 1), ".": () => go(target.index() + 1),
      ArrowLeft: () => go(event.shiftKey ? jump(-1) : target.index() - 1),
      ArrowRight: () => go(event.shiftKey ? jump(1) : target.index() + 1),
      Home: () => go(0), End: () => go(target.length() - 1),
      "+": () => faster(1), "-": () => faster(-1),
    };
    if (!actions[event.key] || (onButton && event.key === " ")) return;
    actions[event.key]();
    event.preventDefault();
  }
  function faster(by) {
    const i = clamp(SPEEDS.findIndex(([value]) => value === speed.value) + by, 0, SPEEDS.length - 1);
    speed.value = SPEEDS[i][0];
    clock.setSpeed(Number(speed.value));
  }
  function onState(isPlaying) {
    toggle.replaceChildren(icon(isPlaying ? "pause" : "play"));
    toggle.setAttribute("aria-label", isPlaying ? "Pause (space)" : "Play (space)");
    toggle.title = toggle.getAttribute("aria-label");
  }
  return { node, onKey, onState, go };
}

// --- One run --------------------------------------------------------------------------------------------------------

export function createPlayer(root, options = {}) {
  const { onEdit = null, solo = true, hint = "" } = options;
  let story = null, view = null, chart = null, index = 0, picked = null, base = 200;

  const stage = el("div", { class: "rmdm-stage" });
  const caption = el("p", { class: "rmdm-caption" });
  const verdict = el("p", { class: "rmdm-verdict", role: "status", "aria-live": "polite" });
  const figures = el("dl", { class: "rmdm-figures" });
  const inspector = el("div", { class: "rmdm-inspector" });
  const chartBox = el("figure", { class: "rmdm-figure" });
  const legend = el("ul", { class: "rmdm-legend", "aria-label": "Legend" });
  const save = el("button", { type: "button", class: "rmdm-link", text: "Download JSON", onclick: download });
  const target = { index: () => index, length: () => (story ? story.states.length : 0), seek,
                   hold: () => (story.states[index].commit.size ? base * 2 : base) };
  const clock = transport(target, { onState: (on) => bar.onState(on) });
  const bar = controls(clock, target, jump);
  const stepRow = segments("Denoising step", (value) => bar.go(value < 1 ? 0 : edgeOf(value - 1)));
  const loopRow = segments("Loop within the step", (value, key) => {
    if (index === 0) return bar.go(1);
    const own = story.steps[story.states[index].stepIndex];
    bar.go(key === "Home" || key === "End" || !key ? own[clamp(value - 1, 0, own.length - 1)] : own[0] + value - 1);
  });
  const scrub = el("div", { class: "rmdm-scrub" }, el("span", { class: "rmdm-row-name", text: "Step" }), stepRow.node,
    el("span", { class: "rmdm-row-name", text: "Loop" }), loopRow.node);
  const deck = el("div", { class: "rmdm-deck" }, bar.node, scrub);
  const keys = el("p", { class: "rmdm-keys",
    text: "Keys: space plays; ← → one loop; shift + ← → one step; Home, End; + − speed. On the board, arrows choose a place and , . move in time." });
  const side = el("div", { class: "rmdm-side" }, verdict, figures, chartBox, inspector, legend);
  const main = el("div", { class: "rmdm-main" }, stage, caption);
  const box = el("section", { class: "rmdm", "aria-label": "Player", tabindex: "-1" }, main, side);
  if (solo) { // side by side, both runs have one set of controls, in createCompare
    main.append(deck, keys);
    side.append(save);
    box.addEventListener("keydown", bar.onKey);
  }
  root.replaceChildren(box);

  const edgeOf = (s) => { const own = story.steps[clamp(s, 0, story.steps.length - 1)]; return own[own.length - 1]; };
  function jump(by) {
    if (!story || !story.steps.length) return 0;
    const state = story.states[index];
    if (index === 0) return by > 0 ? edgeOf(0) : 0;
    const end = edgeOf(state.stepIndex);
    if (by > 0) return index < end ? end : edgeOf(state.stepIndex + 1);
    return state.stepIndex ? edgeOf(state.stepIndex - 1) : 0;
  }

  function show(run, { autoplay = solo } = {}) {
    clock.pause();
    if (chart) chart.stop();
    index = 0;
    picked = null;
    if (!run || !Array.isArray(run.start)) {
      story = view = chart = null;
      box.hidden = !run || !run.message;
      stage.replaceChildren(el("p", { class: "rmdm-message", text: run && run.message ? run.message : "" }));
      for (const node of [caption, verdict]) node.textContent = "";
      for (const node of [figures, inspector, chartBox, legend]) node.replaceChildren();
      deck.hidden = keys.hidden = side.hidden = true;
      return;
    }
    box.hidden = false;
    story = statesOf(run);
    const kind = shape(run);
    const pick = (p) => { picked = p; inspect(); };
    view = { sudoku: sudokuView, countdown: countdownView, text: textView }[kind](story, pick, onEdit);
    stage.replaceChildren(view.node);
    box.dataset.kind = kind;
    const ready = run.frames.length > 0;
    deck.hidden = !ready;
    keys.hidden = side.hidden = !ready;
    box.classList.toggle("rmdm-idle", !ready);
    chart = null;
    if (ready) {
      chart = chartView(story, (i) => bar.go(i));
      chartBox.replaceChildren(el("figcaption", {},
        el("span", { class: "rmdm-key-curve", text: "mean certainty" }), el("span", { class: "rmdm-key-bar", text: "changed guesses" })),
        chart.node);
      drawLegend(kind);
      // A run lasts about twelve seconds at 1x, but no frame flies by faster than the eye can follow.
      base = clamp(12000 / run.frames.length, 40, 600);
    }
    seek(ready && stillness() ? story.states.length - 1 : 0);
    if (ready && autoplay && !stillness()) clock.play();
  }

  const sample = (kind, name) => name === "changed" ? "" : kind === "text" ? "a" : "5";
  function drawLegend(kind) {
    const items = [["given", kind === "sudoku" ? "clue" : "given"], ["committed", "committed"], ["new", "committed just now"],
      ["guess", kind === "sudoku" ? "guess: larger is surer" : "guess: fuller is surer"], ["changed", "guess changed in this loop"]];
    if (kind === "sudoku") items.push(["conflict", "conflict"]);
    legend.replaceChildren(...items.map(([name, text]) => el("li", {},
      el("i", { class: `rmdm-swatch rmdm-swatch-${name}`, "aria-hidden": "true", text: sample(kind, name) }),
      el("span", { text }))));
  }

  function seek(i) {
    if (!story) return;
    index = clamp(i, 0, story.states.length - 1);
    const state = story.states[index], { run, steps } = story;
    view.draw(state);
    if (!run.frames.length) { caption.textContent = hint; return; }
    chart.move(index);
    const own = index ? steps[state.stepIndex] : steps[0];
    const s = index ? state.stepIndex + 1 : 0, l = index ? state.loopIndex + 1 : 0;
    stepRow.set(steps.length, s, `step ${s} of ${steps.length}`);
    loopRow.set(own.length, l, `loop ${l} of ${own.length}`);
    const [one, many] = things[shape(run)];
    const left = state.after.filter((t) => t === run.mask).length;
    caption.replaceChildren(...narrate(state, s, steps.length, state.loop, story.states[own[own.length - 1]].loop, one, many));
    const last = story.states[story.states.length - 1];
    const rows = [["Forward passes", `${state.passes} of ${last.passes}`], [`Open ${many}`, String(left)],
      ["Mean certainty", state.certainty === null ? "–" : `${Math.round(state.certainty)}%`]];
    if (run.result) rows.push(["Time", `${Number(run.result.seconds).toFixed(2)} s`]);
    rows.push(["Backend", run.backend], ["Checkpoint", run.checkpoint]);
    figures.replaceChildren(...rows.map(([term, value]) => el("div", {}, el("dt", { text: term }), el("dd", { text: value }))));
    const done = index === story.states.length - 1 && run.result;
    verdict.className = "rmdm-verdict" + (done ? (run.result.valid ? " rmdm-good" : " rmdm-bad") : "");
    const words = done ? `${run.result.valid ? "✓" : "✗"} ${run.result.verdict}`
      : index === 0 ? "Ready" : `Thinking… ${plural(left, one, many)} open`;
    verdict.setAttribute("aria-live", done ? "polite" : "off"); // the count of loops would drown a screen reader
    if (verdict.textContent !== words) verdict.textContent = words;
    inspect();
    if (options.onSeek) options.onSeek(index);
  }

  // One plain sentence a frame, for a visitor who has never heard of diffusion.
  function narrate(state, s, steps, l, loops, one, many) {
    const strong = el("strong", { text: s ? `Step ${s}/${steps} · loop ${l}/${loops}` : "Before the first pass" });
    let text;
    if (!s) text = `${plural(state.open.length, one, many)} to fill.`;
    else if (state.commit.size) {
      text = `The ${state.commit.size === 1 ? "surest guess is" : `${state.commit.size} surest guesses are`} written down for good` +
        (state.after.includes(story.run.mask) ? "; the next step starts from here." : "; nothing is left open.");
    } else if (l === 1) text = `A first look at all ${plural(state.open.length, one, many)} at once.`;
    else if (state.changed) text = `The same block reads its own result again: ${plural(state.changed, "guess", "guesses")} changed.`;
    else text = "The same block reads its own result again: no guess changed, certainty shifts.";
    return [strong, document.createTextNode(" " + text)];
  }

  function inspect() {
    if (!story || !story.run.frames.length) return inspector.replaceChildren();
    if (picked === null) {
      return inspector.replaceChildren(el("p", { class: "rmdm-dim",
        text: `Point at a ${things[shape(story.run)][0]}, or move to it with the arrow keys, to see what the model considers there.` }));
    }
    const state = story.states[index], { run } = story, guess = state.guesses.get(picked);
    const known = state.after[picked] !== run.mask;
    const when = story.when.get(picked);
    const title = run.start[picked] !== run.mask ? `given: ${printable(run.symbols[run.start[picked]])}`
      : known ? `committed ${printable(run.symbols[state.after[picked]])} in step ${when.step}${when.p === null ? "" : `, ${when.p}% sure`}`
        : guess ? "still open" : "not looked at yet";
    const bars = guess ? [{ token: guess.token, p: guess.p }, ...guess.alternatives.slice(0, 5)].map(({ token, p }) => {
      const meter = el("span", { class: "rmdm-meter" }, el("i"));
      meter.firstChild.style.width = `${p}%`;
      return el("li", {}, el("b", { text: printable(run.symbols[token]) }), meter, el("span", { text: `${p}%` }));
    }) : [];
    inspector.replaceChildren(el("p", {}, el("strong", { text: view.nameOf(picked) }), document.createTextNode(` · ${title}`)),
      el("ol", { class: "rmdm-bars" }, ...bars));
  }

  function download() {
    const url = URL.createObjectURL(new Blob([JSON.stringify(story.run)], { type: "application/json" }));
    el("a", { href: url, download: `${story.run.task}-trajectory.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  show(null);
  return { show, seek: (i) => bar.go(i), play: clock.play, pause: clock.pause, step: jump, states: () => (story ? story.states : []),
           index: () => index, place: seek };
}

// --- Two runs, in step by forward passes ------------------------------------------------------------------------------

export function createCompare(root) {
  const names = [el("h3", { class: "rmdm-name" }), el("h3", { class: "rmdm-name" })];
  const holders = [el("div"), el("div")];
  const players = holders.map((holder) => createPlayer(holder, { solo: false }));
  let now = 0, most = 0;
  const target = { index: () => now, length: () => most + 1, seek, hold: () => clamp(14000 / Math.max(1, most), 30, 500) };
  const clock = transport(target, { onState: (on) => bar.onState(on) });
  const bar = controls(clock, target, jump);
  const row = segments("Forward passes", (value) => bar.go(value));
  const count = el("p", { class: "rmdm-caption" });
  const deck = el("div", { class: "rmdm-deck" }, bar.node, el("div", { class: "rmdm-scrub" },
    el("span", { class: "rmdm-row-name", text: "Passes" }), row.node), count);
  const pair = el("div", { class: "rmdm-pair" }, ...holders.map((holder, i) => el("div", { class: "rmdm-half" }, names[i], holder)));
  const box = el("section", { class: "rmdm-compare", "aria-label": "Two runs side by side", tabindex: "-1" }, deck, pair);
  box.addEventListener("keydown", bar.onKey);
  root.replaceChildren(box);
  box.hidden = true;

  // The next pass at which either run commits something.
  function jump(by) {
    const marks = [0, most, ...players.flatMap((p) => p.states().filter((s) => s.commit.size).map((s) => s.passes))].sort((a, b) => a - b);
    return by > 0 ? marks.find((m) => m > now) ?? most : marks.reverse().find((m) => m < now) ?? 0;
  }
  function seek(passes) {
    now = clamp(passes, 0, most);
    for (const player of players) {
      const states = player.states();
      let i = states.length - 1;
      while (i > 0 && states[i].passes > now) i--;
      player.place(i);
    }
    row.set(most, now, `${now} of ${most} forward passes`);
    const ends = players.map((p) => p.states().at(-1)?.passes ?? 0);
    const over = ends.flatMap((end, i) => (end <= now && end < most ? [`${names[i].textContent} finished after ${plural(end, "pass", "passes")}.`] : []));
    count.replaceChildren(el("strong", { text: `${now} of ${most} forward passes` }), document.createTextNode(" " + over.join(" ")));
  }
  function show(runs, labels = ["A", "B"]) {
    clock.pause();
    box.hidden = !runs;
    if (!runs) return;
    runs.forEach((run, i) => { players[i].show(run); names[i].textContent = labels[i]; });
    most = Math.max(...players.map((p) => p.states().at(-1)?.passes ?? 0));
    seek(stillness() ? most : 0);
    if (!stillness()) clock.play();
  }
  return { show, seek: (i) => bar.go(i), play: clock.play, pause: clock.pause };
}
