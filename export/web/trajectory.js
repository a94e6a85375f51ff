// One run as the JSON that the player draws, and the app and Python write too: rmdm/trajectory.py in JavaScript.

import { checked, sample } from "./decode.js";
import { check, write } from "./sudoku.js";

const SMALLEST = 2, CANDIDATES = 8; // percent; how many beside the guess

// The problem alone, before any pass.
export const problem = (spec, tokens) => ({
  version: 1, task: spec.task, checkpoint: "", backend: "", settings: {}, symbols: spec.symbols, mask: spec.mask, grid: spec.grid,
  start: Array.from(tokens), frames: [], result: null,
});

const percent = (logP) => {
  const x = Math.fround(Math.fround(Math.exp(logP)) * 100), low = Math.floor(x);
  return x - low === 0.5 ? low + (low % 2) : Math.round(x); // a half goes to the even number, as in PyTorch
};

function entry({ step, loop, passes, open, guess, logP, commit }, vocab) {
  const rows = open.map((place) => Array.from(logP.subarray(place * vocab, (place + 1) * vocab), percent));
  return {
    step, loop, passes, open, guess, p: rows.map((row, i) => row[guess[i]]),
    alt: rows.map((row, i) => [...row.keys()].filter((t) => t !== guess[i] && row[t] >= SMALLEST)
      .sort((a, b) => row[b] - row[a] || a - b).slice(0, CANDIDATES).flatMap((t) => [t, row[t]])),
    commit,
  };
}

// Solves a problem. `onFrame(entry)` may return false, or a promise of it, to stop: then the result is null.
export async function play(denoise, spec, tokens, settings, { checkpoint, backend }, onFrame = () => true) {
  const run = { ...problem(spec, tokens), checkpoint, backend, settings: checked(settings) };
  const size = { mask: spec.mask, vocab: spec.symbols.length };
  let final = Array.from(tokens), began = performance.now(), seconds = 0;
  for await (const frame of sample(denoise, tokens, size, settings)) {
    seconds += performance.now() - began;
    run.frames.push(entry(frame, size.vocab));
    final = frame.tokens;
    if ((await onFrame(run.frames.at(-1))) === false) return null;
    began = performance.now();
  }
  const { valid, reason } = check(spec.grid, tokens, final);
  run.result = {
    solution: write(spec.grid, final), valid, verdict: (valid ? "Solved: " : "Not solved: ") + reason,
    forward_passes: run.frames.at(-1)?.passes ?? 0, seconds: Math.round(seconds * 10) / 10000,
  };
  return run;
}
