/** A gate for the whole machine: however many agents and worktrees start it, one heavy command runs at a time, first come
 * first served.
 *
 *     node gate.js npm test
 *
 * Programs write this by hand again and again: a lock file with a pid, a poll, a guess whether the pid is stale, a kill.
 * Here an owner that dies is followed after its TTL, one that hangs or is paused has lost the gate and knows it, and who
 * waits has a place in line. `dibs-lease run` does the same, with a guard for itself. */

import { spawn } from "node:child_process";
import { hostname } from "node:os";
import { Dibs, JobHeld } from "../src/node.js"; // in your program: from "dibs-lease"

const [command, ...words] = process.argv.slice(2);
if (command === undefined) throw new Error("usage: gate COMMAND...");

const dibs = new Dibs({ owner: `${process.cwd()} (${process.pid})` }); // the server is in DIBS_URL
const leaving = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => leaving.abort(new Error(signal)));

try {
  const gate = await dibs.claim(`gate-${hostname()}`, {
    ttlMs: 15_000, // how long the others wait for an owner that died
    waitMs: 30 * 60_000,
    signal: leaving.signal, // Ctrl-C leaves the line
    metadata: [command, ...words].join(" ").slice(0, 200),
  });
  process.exitCode = await gate.during(() => runAll(AbortSignal.any([gate.signal, leaving.signal])));
} catch (error) {
  console.error(error instanceof JobHeld ? `Still busy: ${error.message}` : (error as Error).message);
  process.exitCode = 1;
}

/** The command in a process group of its own, which ends as a whole when the gate is lost. */
function runAll(stop: AbortSignal): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(command!, words, { stdio: "inherit", detached: true });
    const kill = () => child.pid !== undefined && process.kill(-child.pid, "SIGKILL");
    stop.addEventListener("abort", kill, { once: true });
    child.on("error", reject);
    child.on("exit", (code) => {
      stop.removeEventListener("abort", kill);
      resolve(code ?? 1);
    });
  });
}
