import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync, readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import type { ChildProcess } from "node:child_process";
import { isGone } from "../src/guard.js";
import { ENDING_WITH_US, PYTHON, SLOWNESS, Server, pause, soon, until } from "./server.js";

const PROGRAM = fileURLToPath(new URL("../src/run.js", import.meta.url));
const TTL = `${5 * SLOWNESS}s`;
const server = new Server();
before(() => server.start());
const children: ChildProcess[] = [];
after(async () => {
  for (const child of children) child.kill("SIGKILL"); // its guard stops the command
  await server.close();
});

function start(words: string[], env: NodeJS.ProcessEnv = {}, below: string[] = []) {
  const settings = { DIBS_URL: server.url, DIBS_TOKEN: server.token, DIBS_OWNER: "ann", ...env };
  const [program, ...rest] = [...ENDING_WITH_US, ...below, process.execPath, PROGRAM, ...words];
  const child = spawn(program!, rest, { env: { ...process.env, ...settings }, stdio: "pipe" });
  children.push(child);
  return child;
}

async function run(...words: string[]): Promise<[code: number, out: string, err: string]> {
  return ended(start(words));
}

async function ended(child: ReturnType<typeof start>, input = ""): Promise<[number, string, string]> {
  let [out, err] = ["", ""];
  child.stdout.on("data", (data) => (out += data));
  child.stderr.on("data", (data) => (err += data));
  child.stdin.end(input);
  const [code] = (await soon("the command has ended", once(child, "close"))) as [number];
  return [code, out, err];
}

/** A command with a process in the background, and its process group. */
async function started(job: string, ...flags: string[]) {
  const child = start(["run", "--ttl", TTL, "--kill-after", "1s", ...flags, job, "--", "sh", "-c", "trap '' USR2; sleep 60 & trap 'echo heard' USR2; echo $$; while :; do wait; done"]);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const group = Number((await soon("the command runs", lines.next())).value);
  assert.ok(group > 0 && !isGone(group));
  child.kill("SIGUSR2"); // it is passed on once the guard has said what it started
  assert.equal((await soon("the command is known", lines.next())).value, "heard");
  return { child, group };
}

describe("dibs-lease run", { concurrency: 4 }, () => {
  test("gives the command its words, input and what it holds, and passes its exit code on", async () => {
    const tell = 'cat; echo "$1 $DIBS_JOB $DIBS_FENCING_TOKEN $DIBS_OWNER $DIBS_ATTEMPT ${DIBS_SESSION:+session}"; exit 3';
    const [code, out, err] = await ended(start(["run", "told", "--", "sh", "-c", tell, "sh", "a b"]), "input\n");
    assert.deepEqual([code, out, err], [3, "input\na b told 1 ann 1 session\n", ""]);
    const { previous } = await server.client("bob").inspect("told");
    assert.deepEqual([previous?.how, previous?.reason], ["failed", "exited with 3"]);
    const [again, next] = await run("run", "--done", "1h", "told", "--", "sh", "-c", 'echo "$DIBS_ATTEMPT $DIBS_PREVIOUS_OWNER $DIBS_PREVIOUS_END"');
    assert.deepEqual([again, next], [0, "2 ann failed\n"]);
    assert.deepEqual((await run("run", "-q", "told", "--", "true")).slice(0, 3), [4, "", ""]);
  });

  test("runs nothing while somebody else has the job, and waits if it is told to", async () => {
    const held = await server.client("bob \u202e").claim("held");
    const [code, out, err] = await run("run", "held", "--", "echo", "ran");
    assert.deepEqual([code, out], [1, ""]);
    assert.match(err, /^dibs-lease: bob \\u\{202e\} has held for another \d+ s\.\n$/);
    const waiting = run("run", "-w", "1m", "held", "--", "echo", "ran");
    assert.deepEqual(await run("run", "-q", "-E", "75", "held", "--", "echo", "ran"), [75, "", ""]);
    await until("it stands in line", () => server.waiting("held"));
    await held.release();
    assert.deepEqual(await waiting, [0, "ran\n", ""]);
  });

  test("says what cannot be, and leaves nothing behind", async () => {
    const [missing, , err] = await run("run", "cannot", "--", "/no/such/command");
    assert.deepEqual([missing, err], [127, "dibs-lease: /no/such/command could not be started: there is no such command.\n"]);
    assert.equal((await run("run", "cannot", "--", "/"))[0], 126);
    assert.equal((await server.client("bob").inspect("cannot")).status, "free");
    const usage = [["run", "job"], ["run", "--ttl", "1s", "--kill-after", "5s", "x", "--", "true"], ["run", "--nonsense", "x", "--", "true"]];
    const codes = [...usage, ["run", "--url", "http://127.0.0.1:2", "x", "--", "true"]].map(async (words) => (await run(...words))[0]);
    assert.deepEqual(await Promise.all(codes), [64, 64, 64, 69]);
    assert.equal((await ended(start(["run", "x", "--", "true"], { DIBS_TOKEN: "unknown" })))[0], 77);
    assert.match((await run("--help"))[1], /^Usage: dibs-lease run/);
  });

  test("releases a resource plainly whatever the exit code, and refuses what only jobs have before it runs", async () => {
    assert.equal((await run("run", "path:src/a", "--", "sh", "-c", "exit 3"))[0], 3);
    assert.equal((await server.client("bob").inspect("path:src/a")).previous?.how, "released");
    const [code, out, err] = await run("run", "path:src/a", "--done", "1h", "--", "echo", "ran");
    assert.deepEqual([code, out], [64, ""]);
    assert.match(err, /Leave out --done/);
  });

  test("passes signals on, and an interrupted command has neither failed nor finished", async () => {
    const graceful = start(["run", "--done", "1h", "graceful", "--", "sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"]);
    graceful.stdout.once("data", () => graceful.kill("SIGTERM"));
    assert.equal((await ended(graceful))[0], 0);
    assert.equal((await server.client("bob").inspect("graceful")).status, "free");
    const child = start(["run", "signals", "--", "sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"]);
    child.stdout.once("data", () => child.kill("SIGTERM"));
    assert.equal((await ended(child))[0], 7);
    assert.equal((await server.client("bob").inspect("signals")).previous?.how, "released");
    const held = await server.client("bob").claim("interrupted");
    const waiting = start(["run", "-w", "1m", "interrupted", "--", "true"]);
    await until("it stands in line", () => server.waiting("interrupted"));
    waiting.kill("SIGINT");
    assert.equal((await ended(waiting))[0], 130);
    assert.equal(await server.waiting("interrupted"), 0);
    await held.release();
  });

  test("passes on a signal that comes before its guard has said what it started", async () => {
    const late = withGuard("process.send = (...all) => setTimeout(() => tell.apply(process, all), 500)");
    const child = start(["run", "early", "--", "sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"], late);
    child.stdout.once("data", () => child.kill("SIGTERM"));
    assert.equal((await ended(child))[0], 7);
  });

  test("that is killed before its guard hears anything leaves no guard behind", async () => {
    const child = start(["run", "orphan", "--", "sleep", "60"], withGuard("await new Promise((resolve) => setTimeout(resolve, 1_500))"));
    const guard = await until("its guard starts", () => processes().find((pid) => statOf(pid)?.parent === child.pid));
    child.kill("SIGKILL");
    await until("the guard has ended", () => (statOf(guard)?.state ?? "Z") === "Z");
  });

  test("that is killed at any moment leaves nothing behind", async () => {
    const moments = Array.from({ length: 12 }, (_, at) => 40 + 25 * at);
    for (const [at, ms] of moments.entries()) {
      const mark = `left-${process.pid}-${at}`;
      const child = start(["run", mark, "--", "sh", "-c", "sleep 60 & wait"], { DIBS_MARK: mark });
      await Promise.race([once(child, "exit"), pause(ms * SLOWNESS)]);
      child.kill("SIGKILL");
      await until(`nothing of ${mark} is left`, () => !processes().some((pid) => environmentOf(pid).includes(`DIBS_MARK=${mark}\0`)));
    }
  });

  test("ends at once where nobody collects orphans that have ended, as in a container", { skip: process.platform !== "linux" }, async () => {
    const adopt = "import ctypes, subprocess, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0); sys.exit(subprocess.call(sys.argv[1:]))";
    const words = ["run", "--ttl", "5m", "--kill-after", "2m", "left", "--", "sh", "-c", "sleep 600 & exit 3"];
    assert.equal((await ended(start(words, {}, [PYTHON, "-c", adopt])))[0], 3);
  });

  test("says why if the command's words are too many, or no guard can be started", async () => {
    const tooLong = withGuard(`
      const { default: all } = await import("node:child_process");
      all.spawn = () => { throw Object.assign(new Error("spawn E2BIG"), { code: "E2BIG" }) };
      (await import("node:module")).syncBuiltinESMExports()`);
    const [code, , err] = await ended(start(["run", "unstarted", "--", "echo"], tooLong));
    assert.deepEqual([code, err], [126, "dibs-lease: echo could not be started: spawn E2BIG.\n"]);
    const nowhere = { NODE_OPTIONS: "--import data:text/javascript,process.execPath='/no/such/node'" };
    const [none, , why] = await ended(start(["run", "unstarted", "--", "echo"], nowhere));
    assert.equal(none, 126);
    assert.match(why, /^dibs-lease: echo could not be started: its guard did not start/);
    assert.equal((await server.client("bob").inspect("unstarted")).status, "free");
  });

  test("signals no group once it is gone, because its number may be another's", async () => {
    const reused = `
      const kill = process.kill;
      process.kill = (pid, signal) => {
        if (process.connected) return kill.call(process, pid, signal);
        if (signal !== 0) console.error("signalled a stranger");
        return true;
      }`;
    const [code, , err] = await ended(start(["run", "--kill-after", "1s", "reused", "--", "true"], withGuard(reused)));
    assert.deepEqual([code, err], [0, ""]);
  });

  test("stops the whole group when the claim is lost, and exits with 20", async () => {
    const { child, group } = await started("broken");
    await server.post("/locks/broken/break", { reason: "it hangs" });
    const [code, , err] = await ended(child);
    assert.equal(code, 20, err);
    assert.match(err, /The claim was lost/);
    assert.ok(isOver(group));
  });

  test("stops the command when the claim is lost and its guard is paused", async () => {
    const { child, group } = await started("numb");
    const guard = statOf(group)!.parent;
    process.kill(guard, "SIGSTOP");
    await server.post("/locks/numb/break", { reason: "it hangs" });
    const [code] = await ended(child).catch((error) => {
      process.kill(guard, "SIGKILL"); // nobody else would end it
      throw error;
    });
    assert.equal(code, 20);
    assert.ok(isOver(group));
  });

  test("stops the command when its guard is killed, because nobody else would", async () => {
    const { child, group } = await started("unguarded");
    process.kill(statOf(group)!.parent, "SIGKILL");
    assert.equal((await ended(child))[0], 137);
    assert.ok(isOver(group));
    assert.equal((await server.client("bob").inspect("unguarded")).status, "free");
  });

  for (const [signal, what] of [["SIGKILL", "killed"], ["SIGSTOP", "paused"]] as const) {
    test(`that is ${what} takes the group along before the next owner comes`, async () => {
      const { child, group } = await started(what);
      const next = server.client("bob").claim(what, { waitMs: 60_000 });
      child.kill(signal);
      await using claim = await next;
      assert.ok(isOver(group), "it was stopped before");
      assert.equal(claim.previous?.how, "expired");
      child.kill("SIGKILL");
    });
  }
});

/** A setting with which each guard first does that; `tell` is how it reports. */
function withGuard(does: string): NodeJS.ProcessEnv {
  const program = `const tell = process.send; if (tell) { ${does} }`;
  return { NODE_OPTIONS: `--import data:text/javascript,${encodeURIComponent(program)}` };
}

function processes(): number[] {
  return readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number);
}

/** Its variables; none if it has ended, or is another user's. */
function environmentOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/environ`, "latin1");
  } catch {
    return "";
  }
}

/** Undefined if it has ended and was collected. */
function statOf(pid: number): { state: string; parent: number; group: number } | undefined {
  try {
    const [state, parent, group] = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)!.split(" ");
    return { state: state!, parent: Number(parent), group: Number(group) };
  } catch {
    return undefined;
  }
}

/** Tell whether nothing of a group runs. What is dead and not buried yet still takes signals. */
function isOver(group: number): boolean {
  return processes().every((pid) => {
    const found = statOf(pid);
    return found?.group !== group || found.state === "Z";
  });
}
