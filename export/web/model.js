// The page's end of worker.js. A script of its own, so that the runtime loads while the rest of the page still does.

let listener = () => {}, waiting = [];
export const worker = new Worker("worker.js", { type: "module" });
const hear = (data) => (waiting ? waiting.push(data) : listener(data));
worker.onmessage = ({ data }) => hear(data);
worker.onerror = () => hear({ failed: "A script of this page is missing or broken." });

export function listen(to) {
  listener = to;
  const early = waiting;
  waiting = null;
  early.forEach(listener);
}
