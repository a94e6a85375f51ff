// Decoding, Algorithm 2 of the paper, for one problem: rmdm/sampler.py in JavaScript, token by token.
//
//   for await (const frame of sample(denoise, tokens, { mask, vocab }, decoding)) ...
//
// denoise(tokens, loops) gives an (async) iterator of logits, Float32Array (N * V), one after each loop. A frame is one
// loop of one step: { step, loop, passes, tokens, open, guess, logP, commit }. `open` are the positions that were masked
// when the step began, `guess` and `commit` belong to them; only the last loop of a step commits.
// Temperatures above 0 are left out. tests/test_web.py holds the two samplers side by side.

export const SCHEDULES = ["steps", "threshold"];
const SETTLED = Math.fround(0.02); // `auto` stops when no guess changed and no guess's probability moved by more
export const DEFAULTS = { steps: 10, loops: 8, schedule: "steps", order: "confidence", threshold: 0.9, temperature: 0,
                          top_k: 0, seed: 0, max_loops: 32 };

// How ready a position is to be committed, largest first: from its row of log-probabilities, best first and second.
export const ORDERS = {
  confidence: (row, first) => first,
  margin: (row, first, second) => first - second,
  entropy: (row) => row.reduce((sum, x) => sum + Math.exp(x) * Math.max(x, -1e4), 0),
  random: (row, first, second, noise) => noise,
};

export function checked(settings) {
  const decoding = { ...DEFAULTS, ...settings };
  const whole = (value) => Number.isInteger(value) && value >= 1 && value <= 1024;
  if (decoding.loops !== "auto" && !whole(decoding.loops))
    throw new Error(`loops '${decoding.loops}' is neither 'auto' nor a whole number from 1 to 1024`);
  for (const name of ["steps", "max_loops"])
    if (!whole(decoding[name])) throw new Error(`${name} '${decoding[name]}' is not a whole number from 1 to 1024`);
  for (const [name, known] of [["schedule", SCHEDULES], ["order", Object.keys(ORDERS)]])
    if (!known.includes(decoding[name])) throw new Error(`${name} '${decoding[name]}' is unknown; choose from ${known.join(", ")}`);
  if (!(decoding.threshold >= 0 && decoding.threshold <= 1)) throw new Error(`threshold ${decoding.threshold} is not between 0 and 1`);
  if (!(Number.isInteger(decoding.seed) && decoding.seed >= 0 && decoding.seed < 2 ** 32)) throw new Error(`seed '${decoding.seed}' is not a whole number`);
  return decoding;
}

// log softmax with the mask token impossible. Rounded to 32 bits where PyTorch rounds: a sure model has many positions
// that are exactly equal in 32 bits, and then the lower index must win here as it does there.
export function logProbabilities(logits, vocab, mask) {
  const out = new Float32Array(logits.length);
  for (let from = 0; from < logits.length; from += vocab) {
    let most = -Infinity, sum = 0;
    for (let t = 0; t < vocab; t++) if (t !== mask) most = Math.max(most, logits[from + t]);
    for (let t = 0; t < vocab; t++) if (t !== mask) sum = Math.fround(sum + Math.fround(Math.exp(Math.fround(logits[from + t] - most))));
    const log = Math.fround(Math.log(sum));
    for (let t = 0; t < vocab; t++) out[from + t] = t === mask ? -Infinity : Math.fround(Math.fround(logits[from + t] - most) - log);
  }
  return out;
}

// The best token of a row (the lower index where two are equal), its value and the next one's.
function best(row) {
  let token = 0, first = -Infinity, second = -Infinity;
  row.forEach((x, t) => {
    if (x > first) { second = first; first = x; token = t; } else if (x > second) second = x;
  });
  return { token, first, second };
}

// The `count` best-scored of the open positions; ties go to the lower index.
export function pick(scores, count) {
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a] || a - b);
  return new Set(order.slice(0, count));
}

function settled(before, after) {
  return after.every((now, i) => now.token === before[i].token &&
    !(Math.abs(Math.fround(Math.fround(Math.exp(before[i].first)) - Math.fround(Math.exp(now.first)))) > SETTLED));
}

// PyTorch's stream for (seed, problem 0): the Mersenne twister, 24 bits a number.
function stream(seed) {
  const state = new Uint32Array(624);
  let at = 624;
  state[0] = (seed * 1000003) % 2 ** 32;
  for (let i = 1; i < 624; i++) state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  return () => {
    if (at === 624) {
      for (let i = 0; i < 624; i++) {
        const y = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7fffffff);
        state[i] = state[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
      at = 0;
    }
    let y = state[at++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    y ^= y >>> 18;
    return Math.min((y & 0xffffff) / 2 ** 24, Math.fround(1 - 1e-7));
  };
}

export async function* sample(denoise, start, { mask, vocab }, settings) {
  const decoding = checked(settings), auto = decoding.loops === "auto";
  const mostLoops = auto ? decoding.max_loops : decoding.loops;
  const tokens = Array.from(start, Number);
  const masked = () => tokens.flatMap((token, place) => (token === mask ? [place] : []));
  const uniform = decoding.order === "random" ? stream(decoding.seed) : null;
  let passes = 0;
  for (let step = 1; step <= decoding.steps; step++) {
    const open = masked();
    if (!open.length) return;
    let loop = 0, logP = null, guesses = null;
    const frame = (commit) => ({ step, loop, passes, tokens: tokens.slice(), open, guess: guesses.map((g) => g.token), logP, commit });
    const row = (place) => logP.subarray(place * vocab, (place + 1) * vocab);
    for await (const logits of denoise(tokens.slice(), mostLoops)) {
      if (loop) yield frame([]); // the loop before this one was not the step's last
      loop += 1;
      passes += 1;
      logP = logProbabilities(logits, vocab, mask);
      const before = guesses;
      guesses = open.map((place) => best(row(place)));
      if (auto && before && settled(before, guesses)) break;
    }
    // One number a symbol and one for the order at every position, as in Python; only the order uses them here.
    const noise = uniform ? Array.from({ length: tokens.length * (vocab + 1) }, uniform) : null;
    const scores = guesses.map(({ first, second }, i) =>
      Math.fround(ORDERS[decoding.order](row(open[i]), first, second, noise?.[(open[i] + 1) * (vocab + 1) - 1])));
    // An even split of what is open over the steps left, the remainder to the first ones.
    const picked = pick(scores, Math.ceil(open.length / (decoding.steps - step + 1)));
    if (decoding.schedule === "threshold")
      guesses.forEach(({ first }, i) => { if (Math.fround(Math.exp(first)) > Math.fround(decoding.threshold)) picked.add(i); });
    const commit = open.filter((_, i) => picked.has(i));
    for (const i of picked) tokens[open[i]] = guesses[i].token;
    yield frame(commit);
  }
}
