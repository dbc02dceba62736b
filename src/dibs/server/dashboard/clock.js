// The server's time. The browser's own clock may be an hour off, or be set while the page is open; only its stopwatch
// is used.

let base = null, answered = 0, alive = 0;

/** The server said this time in an answer to a request that began at `begun` of the stopwatch. */
export function sync(serverMs, begun) {
  const at = performance.now();
  const took = at - begun;
  answered = at;
  if (base && took > base.took * 1.5 + 20 && at - base.at < 60_000) return;
  base = { serverMs: serverMs + took / 2, at, took };
}

export function now() {
  return base === null ? 0 : base.serverMs + performance.now() - base.at;
}

/** When the server last said its time. */
export const heard = () => now() + answered - performance.now();

export const isKnown = () => base !== null;

/** Something came from the server: an answer, whatever it says, or bytes of the stream. */
export function noteLife() {
  alive = performance.now();
}

/** For how long nothing came. */
export const silentMs = () => performance.now() - alive;
