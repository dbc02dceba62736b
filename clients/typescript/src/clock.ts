/** A clock that is never set back and counts the time in which the machine sleeps. Deadlines are counted on it. */

const NOISE_MS = 100;

// In a browser `performance.now()` may stand still during sleep, but the wall clock does not. A wall clock that is set
// forward looks like sleep: a claim is then given up too early, which does no harm. Node has a better one (node.ts).
let awake: () => number = () => Date.now();
let zero = awake() - performance.now();
let slept = 0;

/** Use another clock that counts sleep. */
export function countSleepBy(clock: () => number): void {
  awake = clock;
  zero = awake() - performance.now() - slept;
}

export function steadyMs(): number {
  const now = performance.now();
  const ahead = awake() - now - zero;
  if (ahead > slept + NOISE_MS) slept = ahead;
  return now + slept;
}

/** Resolves after `ms`, or rejects with the reason of `signal`. Keeps a program alive meanwhile. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal!.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, Math.max(0, ms));
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
