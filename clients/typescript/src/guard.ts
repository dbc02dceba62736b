/** The guard of a command: its parent. It stops the command's process group at the deadline, or when the process that
 * renews the claim is gone; so it knows group and deadline before the command begins. It hears and tells by messages. */

import { spawn } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { uptime } from "node:os";
import { pathToFileURL } from "node:url";
import { pause, steadyMs } from "./clock.js";

/** What to run until when, then each later deadline, on the machine's clock; and what becomes of it. */
export type Order = { words?: string[]; killAfterMs?: number; untilMs: number };
export type Report =
  | { pid: number }
  | { code: number | null; signal: NodeJS.Signals | null }
  | { failed: string | undefined; message: string };

const POLL_MS = 20;

/** Whether no process has this group: from now on its number may be another's. */
function isForgotten(group: number): boolean {
  try {
    process.kill(-group, 0);
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "ESRCH";
  }
}

/** Whether nothing of a group runs. What has ended keeps the group until its parent collects it, and the first process of a
 * container collects nobody. */
export function isGone(group: number): boolean {
  return isForgotten(group) || (process.platform === "linux" && hasOnlyEnded(group));
}

function hasOnlyEnded(group: number): boolean {
  const members = read("/proc", (path) => readdirSync(path))?.map(statOf).filter((stat) => stat?.[2] === String(group)) ?? [];
  // The first thread of a process may have ended while others run.
  return members.length > 0 && members.every((stat) => stat![0] === "Z" && stat![17] === "1");
}

/** State, parent, group and so on; undefined if there is no such process. */
function statOf(pid: string): string[] | undefined {
  return /^\d+$/.test(pid) ? read(`/proc/${pid}/stat`, (path) => readFileSync(path, "utf8").split(") ").at(-1)!.split(" ")) : undefined;
}

/** Undefined if it is not there. */
function read<T>(path: string, how: (path: string) => T): T | undefined {
  try {
    return how(path);
  } catch {
    return undefined;
  }
}

/** SIGTERM, and SIGKILL for what is left after `killAfterMs`. */
export async function stop(group: number, killAfterMs: number): Promise<void> {
  if (group <= 0) return;
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

/** A signal to a group; to nobody if that is gone, not ours to signal, or 0. */
export function send(group: number, signal: NodeJS.Signals): void {
  try {
    if (group > 0) process.kill(-group, signal);
  } catch {
    // nobody
  }
}

/** Now, on a clock that is the same for all processes of this machine and counts its sleep. */
export const machineMs = (): number => uptime() * 1000;

function guard(): void {
  if (!process.connected) return process.exit(); // who started it was gone before it could hear of that
  let [group, untilMs, killAfterMs, hasEnded] = [0, Infinity, 0, false];
  const tell = (report: Report) => {
    if (process.connected) process.send!(report, undefined, undefined, () => undefined); // who is gone hears nothing
  };
  const forget = () => {
    if (hasEnded && isForgotten(group)) group = 0;
  };
  const end = async () => {
    untilMs = Infinity;
    await stop(group, killAfterMs);
  };
  process.on("message", (order: Order) => {
    untilMs = order.untilMs;
    if (order.words === undefined) return;
    killAfterMs = order.killAfterMs!;
    const failed = (error: NodeJS.ErrnoException) => tell({ failed: error.code, message: error.message });
    try {
      const child = spawn(order.words[0]!, order.words.slice(1), { detached: true, stdio: "inherit" });
      child.on("error", failed);
      child.on("exit", (code, signal) => {
        hasEnded = true;
        forget();
        tell({ code, signal });
      });
      group = child.pid ?? 0;
      if (group > 0) tell({ pid: group });
    } catch (error) {
      failed(error as Error); // the words are too long for the system, or contain a zero byte
    }
  });
  process.on("disconnect", () => void end().then(() => process.exit()));
  setInterval(() => {
    forget();
    if (machineMs() >= untilMs) void end();
  }, POLL_MS);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"] as const) process.on(signal, () => undefined);
  guard();
}
