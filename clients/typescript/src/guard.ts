/** The guard of a command: stops its process group at the deadline, or when the process that renews the claim is gone.
 *
 * It says `ready`, and reads lines: the group, and the deadline on this machine's clock. `done` ends it. */

import { uptime } from "node:os";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { pause, steadyMs } from "./clock.js";

const POLL_MS = 20;

export function isGone(group: number): boolean {
  try {
    process.kill(-group, 0);
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "ESRCH";
  }
}

/** SIGTERM, and SIGKILL for what is left after `killAfterMs`. */
export async function stop(group: number, killAfterMs: number): Promise<void> {
  const untilMs = steadyMs() + killAfterMs;
  for (let signal: NodeJS.Signals = "SIGTERM"; !isGone(group); await pause(POLL_MS)) {
    if (signal === "SIGTERM") {
      send(group, signal);
      send(group, "SIGCONT"); // a stopped process cannot end
      signal = "SIGKILL";
    } else if (steadyMs() >= untilMs) {
      send(group, "SIGKILL");
      if (steadyMs() >= untilMs + killAfterMs + 5_000) return; // of another user, or stuck in the kernel
    }
  }
}

function send(group: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-group, signal);
  } catch {
    // it is gone, or not ours to signal
  }
}

async function watch(killAfterMs: number): Promise<void> {
  let [group, deadlineMs, isDone, isAlone] = [0, Infinity, false, false];
  const lines = createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const [first, second] = line.split(" ").map(Number);
    if (line === "done") isDone = true;
    else [group, deadlineMs] = [first!, second!];
  });
  lines.on("close", () => (isAlone = true));
  process.stdout.on("error", () => undefined);
  process.stdout.write("ready\n");
  while (!isDone && !isAlone && uptime() * 1000 < deadlineMs) await pause(Math.min(250, Math.max(POLL_MS, deadlineMs - uptime() * 1000)));
  if (!isDone && group > 0) await stop(group, killAfterMs);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => undefined);
  await watch(Number(process.argv[2]));
  process.exit();
}
