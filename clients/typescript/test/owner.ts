/** A program that owns a job until it is lost, and says so: by `check()`, after it was blocked, or when its signal fires. */

import { Dibs } from "../src/node.js";

const [url, token, job, ttlMs, shows] = process.argv.slice(2) as [string, string, string, string, string];
const claim = await new Dibs({ url, token, owner: "owner", warn: () => undefined }).claim(job, { ttlMs: Number(ttlMs) });
console.log(`owns ${claim.fencingToken}`);
if (shows === "signal") {
  const tell = () => console.log((claim.signal.reason as Error).name);
  if (claim.signal.aborted) tell();
  else claim.signal.addEventListener("abort", tell);
  setInterval(() => undefined, 1_000); // a claim does not keep a program alive
} else {
  if (shows === "blocked") Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1.1 * Number(ttlMs)); // nothing else runs meanwhile
  for (;;) {
    try {
      claim.check(); // before each step, as a worker does
    } catch (error) {
      console.log((error as Error).name);
      break;
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
