#!/usr/bin/env node
/** `dibs-lease run JOB -- COMMAND`: runs a command while a job is yours, as `dibs run` does, against a server.
 *
 * The command has a process group of its own. If the claim is lost, the whole group is stopped before anybody else can
 * have the job: by this process, or by its guard (guard.ts) if this process is killed or paused. */

import { fork } from "node:child_process";
import { constants } from "node:os";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { steadyMs } from "./clock.js";
import { DibsError, InvalidInput, InvalidTtl, JobDone, JobHeld, LeaseLost, NotClaimed, kindOfWord } from "./errors.js";
import { machineMs, send, stop } from "./guard.js";
import { Dibs } from "./node.js";
import type { ChildProcess } from "node:child_process";
import { isResource, type Claim, type Session } from "./client.js";
import type { Order, Report } from "./guard.js";

const LOST = 20;
const KILL_AFTER_MS = 5_000;
const TTL_MS = 60_000;
const PASSED_ON = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM"] as const;
const INTERRUPTS: readonly string[] = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"];
const USAGE = `Usage: dibs-lease run [FLAGS] JOB -- COMMAND...

Claims the job at the server in DIBS_URL, runs the command, sends heartbeats while it runs, and releases the job when it
ends. If somebody else has the job, says who, and runs nothing. If the claim is lost, the command and its process group
are stopped (SIGTERM, then SIGKILL). TIME is a number with ms, s, m, h or d; without a unit it is seconds.

  --url URL           the server, or several of one store with commas between [DIBS_URL]
  --namespace NAME    [DIBS_NAMESPACE]
  --owner NAME        the name that others see [DIBS_OWNER]
  --metadata TEXT     a short text that others see
  --ttl TIME          how long the claim lasts without a heartbeat (60s)
  -w, --wait TIME     wait in line for up to this long
  -s, --shared        coexists with other shared claims
  --slots N           up to this many owners at once
  --max-attempts N    after this many failures and losses in a row, park the job
  --retry-after TIME  after a failure, nobody gets the job for this long
  --done TIME         if the command exits with 0, mark the job as done for this long
  --again             claim the job even if it is marked as done
  --kill-after TIME   how long the command has between SIGTERM and SIGKILL (5s, or a quarter of a short TTL)
  -E CODE             the exit code if somebody else has the job (1)
  -q, --quiet         do not say who has it

The token is in DIBS_TOKEN, or in the file DIBS_TOKEN_FILE. Exit codes are those of \`dibs run\`: the command's own, 128+n
for signal n; 1 held, 4 done, 20 lost, 64 usage, 69 no server, 75 later, 77 not allowed, 126 and 127 not started.
`;
const text = { type: "string" } as const;
const flag = { type: "boolean" } as const;
const OPTIONS = {
  url: text, namespace: text, owner: text, metadata: text, ttl: text, wait: { ...text, short: "w" }, shared: { ...flag, short: "s" },
  slots: text, "max-attempts": text, "retry-after": text, done: text, again: flag, "kill-after": text,
  "conflict-exit-code": { ...text, short: "E" }, quiet: { ...flag, short: "q" }, help: { ...flag, short: "h" },
} as const;

function milliseconds(given: string | undefined): number | undefined {
  if (given === undefined) return undefined;
  const found = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$/.exec(given);
  if (found === null) throw new InvalidInput(`${given} is not a length of time. Write 90s, 5m or 2h.`);
  return Number(found[1]) * { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }[(found[2] ?? "s") as "s"];
}

function count(given: string | undefined): number | undefined {
  if (given !== undefined && !/^\d{1,9}$/.test(given)) throw new InvalidInput(`${given} is not a whole number.`);
  return given === undefined ? undefined : Number(given);
}

/** The words of the command line, all checked before anything is asked. */
function parsed(words: string[]) {
  const at = words.indexOf("--");
  const { values, positionals } = parseArgs({ args: at < 0 ? words : words.slice(0, at), options: OPTIONS, allowPositionals: true });
  const command = at < 0 ? [] : words.slice(at + 1);
  const [verb, job, ...more] = positionals;
  if (values.help) return undefined;
  if (verb !== "run" || job === undefined || more.length > 0 || command.length === 0) {
    throw new InvalidInput("Write dibs-lease run JOB -- COMMAND; --help says more.");
  }
  for (const time of [values.wait, values.done, values["retry-after"]]) milliseconds(time);
  for (const flag of ["done", "retry-after", "max-attempts"] as const) {
    if (values[flag] === undefined || !isResource(job)) continue;
    throw new InvalidInput(`${job} is a resource, not a job: it can be held, but not be done, fail or be parked. Leave out --${flag}.`);
  }
  for (const number of [values.slots, values["max-attempts"], values["conflict-exit-code"]]) count(number);
  const ttlMs = milliseconds(values.ttl) ?? TTL_MS;
  const slackMs = Math.min(1_000, ttlMs / 8); // for the system to end killed processes
  const wanted = milliseconds(values["kill-after"]);
  const killAfterMs = wanted ?? (ttlMs >= leastTtlMs(KILL_AFTER_MS + slackMs) ? KILL_AFTER_MS : ttlMs / 4);
  const leastMs = leastTtlMs(killAfterMs + slackMs);
  if (ttlMs < leastMs) {
    const hint = `Use --ttl ${leastMs / 1000}s or more.`;
    throw new InvalidTtl(`A TTL of ${ttlMs / 1000} s leaves no time to renew and to stop the work. ${hint}`, "invalid_ttl");
  }
  return { values, job, command, ttlMs, killAfterMs, stopMs: killAfterMs + slackMs };
}

/** The least TTL, in whole seconds, that leaves time for the first renewal before the work must be stopped. */
function leastTtlMs(stopMs: number): number {
  const leastMs = (stopMs * 12) / 5 >= 4_000 ? ((stopMs + 1_000) * 3) / 2 : (stopMs * 12) / 5;
  return Math.max(1_000, Math.ceil(leastMs / 1_000) * 1_000);
}

type Options = NonNullable<ReturnType<typeof parsed>>;

/** The job in a session of its own. A session that ends during the wait had no job, so another one is opened. */
async function claimed(dibs: Dibs, options: Options, signal: AbortSignal, onKept: () => void): Promise<[Session, Claim]> {
  const { values, ttlMs, stopMs } = options;
  const waitMs = milliseconds(values.wait) ?? 0;
  const untilMs = steadyMs() + waitMs;
  const given = { shared: values.shared ?? false, again: values.again ?? false, metadata: values.metadata, signal };
  const [slots, maxAttempts] = [count(values.slots), count(values["max-attempts"])];
  for (;;) {
    const session = await dibs.session({ ttlMs, stopMs, onKept });
    const left = { waitMs: Math.max(0, untilMs - steadyMs()) };
    try {
      const limits = { ...(slots && { slots }), ...(maxAttempts && { maxAttempts }) };
      return [session, await session.claim(options.job, { ...given, ...left, ...limits })];
    } catch (error) {
      await session.end().catch(() => undefined); // it may have been lost
      const isOver = error instanceof DibsError && !(error instanceof NotClaimed) && kindOfWord(error.code) === "not_any_more";
      if (!isOver || left.waitMs === 0 || signal.aborted) throw error;
    }
  }
}

const NOT_INHERITED = ["LEASE", "ELECTION", "TERM", "CHECKPOINT", "CHECKPOINT_FILE", "PREVIOUS_OWNER", "PREVIOUS_END"];

/** The command's own dibs calls use the same server, session and owner. */
function environment(options: Options, session: Session, claim: Claim): NodeJS.ProcessEnv {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !NOT_INHERITED.includes(name.replace("DIBS_", ""))));
  const outer = [env["DIBS_OUTER_SESSIONS"], env["DIBS_SESSION"]].filter(Boolean).join(" ");
  const given: NodeJS.ProcessEnv = {
    DIBS_URL: options.values.url, DIBS_NAMESPACE: options.values.namespace, DIBS_OWNER: session.owner, DIBS_SESSION: session.id,
    DIBS_OUTER_SESSIONS: outer || undefined, DIBS_JOB: claim.name, DIBS_FENCING_TOKEN: String(claim.fencingToken),
    DIBS_ATTEMPT: String(claim.attempt), DIBS_DEADLINE_MS: String(Math.floor(Date.now() + session.remainingMs())),
    DIBS_PREVIOUS_OWNER: claim.previous?.owner, DIBS_PREVIOUS_END: claim.previous?.how,
    DIBS_CHECKPOINT: claim.previous?.checkpoint ?? undefined,
  };
  // An environment cannot contain a zero byte.
  const set = Object.entries(given).filter(([, value]) => value !== undefined && !value.includes("\0"));
  return { ...env, ...Object.fromEntries(set) };
}

/** The command below its guard: what it exited with, and how to reach it. */
class Command {
  readonly code: Promise<number>;
  #group: Promise<number>; // the guard tells it when the command runs already; 0 if nothing was started, or nothing is left
  readonly #guard: ChildProcess;

  constructor(words: string[], private readonly killAfterMs: number, untilMs: number, env: NodeJS.ProcessEnv) {
    const program = fileURLToPath(new URL("guard.js", import.meta.url));
    this.#guard = fork(program, { detached: true, env, stdio: ["inherit", "inherit", "inherit", "ipc"], execArgv: [] });
    let began: (group: number) => void;
    this.#group = new Promise((resolve) => (began = resolve));
    this.code = new Promise((resolve, reject) => {
      this.#guard.on("message", (report: Report) => {
        if ("pid" in report) began(report.pid);
        else if ("failed" in report) reject(new NotStarted(words[0]!, report.failed, report.message));
        else resolve(report.code ?? 128 + constants.signals[report.signal!]);
      });
      this.#guard.on("error", (error) => {
        began(0);
        reject(new NotStarted(words[0]!, undefined, `its guard did not start (${error.message})`));
      });
      // It is gone, and all that it told was heard. We stop the command, and nobody knows what it exited with.
      this.#guard.on("close", () => {
        began(0);
        void this.stop().then(() => resolve(128 + constants.signals.SIGKILL));
      });
    });
    this.#send({ words, killAfterMs, untilMs });
  }

  certainUntil(untilMs: number): void {
    this.#send({ untilMs });
  }

  async pass(signal: NodeJS.Signals): Promise<void> {
    send(await this.#group, signal);
  }

  async stop(): Promise<void> {
    this.#guard.kill("SIGCONT"); // a paused one tells neither what it started nor what became of it
    await stop(await this.#group, this.killAfterMs);
    this.#group = Promise.resolve(0); // its number may be another's from now on
  }

  #send(order: Order): void {
    if (this.#guard.connected) this.#guard.send(order, () => undefined);
  }
}

async function run(options: Options): Promise<number> {
  const { values, killAfterMs } = options;
  const { url, namespace, owner } = values;
  const dibs = new Dibs({ ...(url && { url }), namespace, owner, warn: say });
  const waiting = new AbortController();
  const passedOn = new Set<string>();
  let command: Command | undefined;
  for (const signal of PASSED_ON) {
    process.on(signal, () => {
      passedOn.add(signal);
      if (command !== undefined) void command.pass(signal);
      else if (INTERRUPTS.includes(signal)) waiting.abort(new Interrupted(signal));
    });
  }
  const certainMs = () => machineMs() + session.remainingMs();
  const [session, claim] = await claimed(dibs, options, waiting.signal, () => command?.certainUntil(certainMs()));
  try {
    command = new Command(options.command, killAfterMs, certainMs(), environment(options, session, claim));
    const lost = await Promise.race([command.code.then(() => undefined), loss(dibs, session, claim)]);
    const wasInterrupted = INTERRUPTS.some((signal) => passedOn.has(signal)); // not by one that came after its end
    await command.stop(); // also what the command left running
    const code = await command.code;
    if (lost !== undefined) {
      say(`The claim was lost (${lost.why.replace(/\.$/, "")}). The command was stopped, because others may have its jobs now.`);
      return LOST;
    }
    await ending(options, claim, code, wasInterrupted).catch((error: Error) => {
      say(`The result of ${claim.name} could not be recorded: ${error.message}`);
    });
    return code;
  } finally {
    await claim.giveBack().catch(() => undefined); // nothing was run, or it has ended already
    await session.end().catch(() => undefined);
  }
}

/** Resolves when the claim is lost. A command that lets its job go by itself goes on. */
async function loss(dibs: Dibs, session: Session, claim: Claim): Promise<LeaseLost> {
  await fired(claim.signal);
  if (!session.signal.aborted) {
    const previous = await dibs.inspect(claim.name).then((job) => job.previous, () => undefined);
    const isOurs = previous?.fencing_token === claim.fencingToken;
    if (isOurs && ["released", "failed", "transferred"].includes(previous.how)) await fired(session.signal);
  }
  return claim.signal.reason as LeaseLost;
}

function fired(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

/** A command that somebody stopped has neither finished nor failed. Otherwise an exit code other than 0 is a failure. */
async function ending({ values }: Options, claim: Claim, code: number, wasInterrupted: boolean): Promise<void> {
  if (claim.signal.aborted) return; // the command has let it go
  if (wasInterrupted) await claim.giveBack();
  else if (code === 0) await (values.done === undefined ? claim.release() : claim.done(undefined, milliseconds(values.done)));
  else if (isResource(claim.name)) await claim.giveBack();
  else await claim.fail(`exited with ${code}`, milliseconds(values["retry-after"]));
}

class Interrupted extends Error {
  constructor(readonly signal: NodeJS.Signals) {
    super(`interrupted by ${signal}`);
  }
}

class NotStarted extends Error {
  readonly exitCode: number;

  constructor(word: string, code: string | undefined, message: string) {
    super(`${word} could not be started: ${code === "ENOENT" ? "there is no such command" : message}.`);
    this.exitCode = code === "ENOENT" ? 127 : 126;
  }
}

function say(message: string): void {
  // Names and reasons are text of others: what a terminal would obey is escaped.
  const shown = message.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (each) => `\\u{${each.codePointAt(0)!.toString(16)}}`);
  process.stderr.write(`dibs-lease: ${shown}\n`);
}

async function main(words: string[]): Promise<number> {
  let options: Options | undefined;
  try {
    options = parsed(words);
    if (options !== undefined) return await run(options);
    process.stdout.write(USAGE);
    return 0;
  } catch (error) {
    if (error instanceof Interrupted) return 128 + constants.signals[error.signal];
    const isUsage = (error as { code?: unknown }).code?.toString().startsWith("ERR_PARSE_ARGS");
    const quiet = options?.values.quiet && (error instanceof JobHeld || error instanceof JobDone);
    if (!quiet) say((error as Error).message);
    const refusedCode = error instanceof JobHeld ? count(options?.values["conflict-exit-code"]) : undefined;
    if (refusedCode !== undefined) return refusedCode;
    return isUsage ? 64 : ((error as { exitCode?: number }).exitCode ?? 70);
  }
}

process.exitCode = await main(process.argv.slice(2));
process.exit();
