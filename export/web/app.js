// The page: what is typed, chosen and shown. The model is in worker.js, the decoding in decode.js, the drawing in player.js.

import { listen, worker } from "./model.js";
import { DEFAULTS, ORDERS, SCHEDULES } from "./decode.js";
import { createPlayer } from "./player.js";
import { encode, shuffle, write } from "./sudoku.js";
import { problem } from "./trajectory.js";

const LOOPS = ["auto", 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 64];
const KEYS = ["steps", "loops", "schedule", "order", "threshold", "seed"]; // of the settings that a link carries
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => document.documentElement.classList.toggle("dark", dark.matches);
theme();
dark.addEventListener("change", theme);

let spec = null, start = null, running = null, runs = 0;

function say(text = "", error = false) {
  $("note").textContent = text;
  $("note").hidden = !text;
  $("note").classList.toggle("error", error);
}
say("Loading the model …");

const player = createPlayer($("player"), {
  hint: "Type into the grid to change the puzzle. Then press Solve.",
  onEdit: (line, whole) => {
    $("line").value = line;
    if (whole) show(); else read(); // what is typed stays under the cursor; what is pasted is drawn anew
  },
});

// The puzzle in the field as tokens, or null and a word on what is wrong.
function read() {
  try {
    const tokens = encode(spec.grid, $("line").value), line = write(spec.grid, tokens);
    $("example").value = spec.examples.findIndex((example) => example.problem === line);
    if ($("note").classList.contains("error") && !$("solve").disabled) say();
    return tokens;
  } catch (error) {
    say(`${error.message[0].toUpperCase()}${error.message.slice(1)}.`, true);
    return null;
  }
}

function show() {
  const tokens = read();
  if (tokens) player.show(problem(spec, tokens));
  $("edit").hidden = true;
}

function put(line) {
  $("line").value = line;
  stop();
  show();
}

function settings() {
  return { ...DEFAULTS, steps: Number($("steps").value), loops: $("loops").value === "auto" ? "auto" : Number($("loops").value),
           schedule: $("schedule").value, order: $("order").value, threshold: Number($("threshold").value), seed: Number($("seed").value) };
}

function solve() {
  if (running !== null) return stop("Stopped.");
  const tokens = read();
  if (!tokens) return;
  if (!tokens.includes(spec.mask)) return say("There is nothing to fill in: every cell has its digit.");
  running = ++runs;
  $("solve").textContent = "Stop";
  say("Thinking …");
  const chosen = settings();
  worker.postMessage({ solve: running, tokens, settings: chosen });
  const link = new URLSearchParams({ p: write(spec.grid, tokens) });
  for (const key of KEYS) if (chosen[key] !== start[key]) link.set(key, chosen[key]);
  history.replaceState(null, "", `#${link}`); // the address is the link to share
}

function stop(words = "") {
  if (running !== null) worker.postMessage({ stop: true });
  running = null;
  $("solve").textContent = "Solve";
  if (words) say(words);
}

function hear(data) {
  if (data.failed) {
    stop();
    $("solve").disabled = true;
    document.documentElement.dataset.state = "failed";
    return say(`${data.failed} So nothing can be solved here. To build the page again: python -m export CHECKPOINT --web DIR`, true);
  }
  if (data.ready) {
    $("solve").disabled = false;
    document.documentElement.dataset.state = "ready";
    facts(data);
    if (running === null && !$("note").classList.contains("error")) say();
    return;
  }
  if (data.id !== running) return; // of a run that was stopped
  if (data.progress) return say(`Thinking: step ${data.progress.step}, ${data.progress.passes} passes …`);
  stop();
  if (data.error) return say(`The model could not be run: ${data.error}`, true);
  say();
  player.show(data.run);
  $("edit").hidden = false;
  document.documentElement.dataset.solved = data.run.result.solution;
  performance.mark("solved");
  if (innerWidth <= 860) $("player").scrollIntoView({ block: "start" });
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(2)} MB`;

function facts({ precision, threads, seconds }) {
  const model = spec.models.find((row) => row.precision === precision);
  $("facts").textContent = `${spec.checkpoint}: ${(spec.parameters / 1e6).toFixed(2)} million parameters, ${megabytes(model.bytes)} in ${precision}. `
    + `ONNX Runtime Web ${spec.runtime}, ${threads === 1 ? "one thread" : `${threads} threads`}. Ready after ${seconds.toFixed(1)} s.`;
}

const fill = (select, values, chosen) => select.replaceChildren(...values.map((value) => {
  const [key, text] = Array.isArray(value) ? value : [value, value];
  return new Option(text, key, false, String(key) === String(chosen));
}));

function outputs() {
  for (const id of ["steps", "threshold"]) $(`${id}-out`).value = $(id).value;
  $("threshold-row").hidden = $("schedule").value !== "threshold";
  $("seed-row").hidden = $("order").value !== "random";
}

// A link's puzzle and settings; the fields take only what they offer.
function restore() {
  const link = new URLSearchParams(location.hash.slice(1));
  if (!link.has("p")) return false;
  for (const key of KEYS) {
    const field = $(key), wanted = link.get(key) ?? String(start[key]);
    const fits = field.options ? [...field.options].some(({ value }) => value === wanted) : /^\d+(\.\d+)?$/.test(wanted);
    if (fits) field.value = wanted;
  }
  outputs();
  put(link.get("p"));
  return true;
}

$("panel").addEventListener("submit", (event) => { event.preventDefault(); if (spec) solve(); });
const answer = await fetch("page.json").catch(() => null);
spec = answer?.ok ? await answer.json().catch(() => null) : null; // where it is missing, the worker says so
if (spec) {
  start = { ...DEFAULTS, steps: spec.steps, loops: spec.loops };
  fill($("example"), [...spec.examples.map(({ name }, i) => [i, name]), [-1, "Your own: from an empty grid"]], 0);
  fill($("loops"), LOOPS.includes(spec.loops) ? LOOPS : [...LOOPS, spec.loops], spec.loops);
  fill($("schedule"), SCHEDULES, start.schedule);
  fill($("order"), Object.keys(ORDERS), start.order);
  fill($("model"), spec.models.map(({ precision, bytes }) => [precision, `${precision}, ${megabytes(bytes)}`]), spec.models[0].precision);
  $("steps").value = start.steps;
  outputs();
  $("panel").addEventListener("input", outputs);
  $("line").addEventListener("input", () => { stop(); show(); });
  $("line").addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); $("panel").requestSubmit(); }
  });
  const blank = write(spec.grid, Array(spec.length).fill(spec.mask));
  $("example").addEventListener("change", () => put(spec.examples[$("example").value]?.problem ?? blank));
  $("fresh").addEventListener("click", () => { const tokens = read(); if (tokens) put(write(spec.grid, shuffle(spec.grid, tokens))); });
  $("edit").addEventListener("click", show);
  $("model").addEventListener("change", () => { stop("Loading the model …"); worker.postMessage({ open: $("model").value }); });
  addEventListener("hashchange", () => { if (restore()) solve(); });
  put(spec.examples[0].problem);
  say("Loading the model …");
  if (restore()) solve();
}
listen(hear); // not before there is a page to say it on
