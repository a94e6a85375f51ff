// The model in a thread of its own, so that the page stays quick. It opens the first model of page.json at once. Messages
// in:   { open: precision }   { solve: id, tokens, settings }   { stop: true }
// out:  { ready, precision, threads, seconds }   { failed }   { id, progress }   { id, run }   { id, error }
// An `id` counts up; the run of one that was stopped is null.

import { play } from "./trajectory.js";

const at = (name) => new URL(name, import.meta.url).href;
// Threads share memory, which browsers allow only where the page is isolated from other sites.
const threads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency || 1) : 1;
let opened = null, turn = Promise.resolve(), stopped = -1, latest = -1;

async function fetchPage() {
  const answer = await fetch(at("page.json")).catch(() => null);
  const spec = answer?.ok ? await answer.json().catch(() => null) : null;
  if (!spec) throw new Error("The description of the model, page.json, is missing or broken.");
  return spec;
}

async function fetchModel({ file, bytes, sha256 }) {
  const answer = await fetch(at(file)).catch(() => null);
  if (!answer || !answer.ok) throw new Error(`The model file ${file} is missing here (${answer ? `status ${answer.status}` : "no answer"}).`);
  const data = new Uint8Array(await answer.arrayBuffer());
  if (data.length !== bytes) throw new Error(`The model file ${file} is broken: it has ${data.length} bytes instead of ${bytes}.`);
  if (crypto.subtle) { // only on https and localhost
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
    const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    if (hex !== sha256) throw new Error(`The model file ${file} is broken: its checksum is not the one of the export.`);
  }
  return data;
}

async function fetchRuntime() {
  try {
    const ort = await import("./runtime/ort.wasm.min.mjs");
    Object.assign(ort.env.wasm, {
      numThreads: threads,
      wasmPaths: { mjs: at("runtime/ort-wasm-simd-threaded.mjs"), wasm: at("runtime/ort-wasm-simd-threaded.wasm") },
    });
    ort.env.logLevel = "error";
    return ort;
  } catch (error) {
    throw new Error(`The runtime in runtime/ is missing or broken: ${error.message}`, { cause: error });
  }
}

async function open(precision) {
  const began = performance.now(), runtime = fetchRuntime();
  const spec = await fetchPage();
  const model = spec.models.find((row) => row.precision === precision) ?? spec.models[0];
  const [ort, data] = await Promise.all([runtime, fetchModel(model)]);
  let session;
  try {
    session = await ort.InferenceSession.create(data, { executionProviders: ["wasm"] });
  } catch (error) {
    throw new Error(`The runtime does not start, or cannot open ${model.file}: ${String(error.message ?? error).slice(0, 300)}`, { cause: error });
  }
  const size = spec.length * spec.symbols.length;
  // The graph takes the number of loops and gives the logits of each, (L, 1, N, V), in one go. So `auto` saves no time
  // here: the loops after the one where it stops were run too.
  async function* denoise(tokens, loops) {
    const { logits } = await session.run({
      tokens: new ort.Tensor("int64", BigInt64Array.from(tokens, BigInt), [1, spec.length]),
      loops: new ort.Tensor("int64", BigInt64Array.of(BigInt(loops)), []),
    });
    for (let loop = 0; loop < loops; loop++) yield logits.data.subarray(loop * size, (loop + 1) * size);
  }
  for await (const _ of denoise(Array(spec.length).fill(spec.mask), 1)); // compiles what the first run needs
  postMessage({ ready: true, precision: model.precision, threads, seconds: (performance.now() - began) / 1000 });
  const names = { checkpoint: spec.checkpoint, backend: `ONNX Runtime Web, ${model.precision}` };
  return (tokens, settings, onFrame) => play(denoise, spec, tokens, settings, names, onFrame);
}

async function solve(id, tokens, settings) {
  try {
    const run = await (await opened)(tokens, settings, async ({ step, passes, commit }) => {
      if (!commit.length) return true;
      postMessage({ id, progress: { step, passes } });
      await new Promise((resume) => setTimeout(resume)); // lets a wish to stop come in
      return stopped < id;
    });
    postMessage({ id, run });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
}

function start(precision) {
  opened = open(precision);
  opened.catch((error) => postMessage({ failed: error.message }));
}

self.onmessage = ({ data }) => {
  if (data.open) start(data.open);
  else if (data.stop) stopped = latest;
  else {
    latest = data.solve;
    turn = turn.then(() => solve(data.solve, data.tokens, data.settings)); // one run at a time
  }
};
start();
