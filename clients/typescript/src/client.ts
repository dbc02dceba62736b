/** What a program uses: a client, its claims and its sessions. */

import { pause, steadyMs } from "./clock.js";
import { InvalidInput, InvalidName, InvalidTtl, LeaseLost, NotClaimed, RequestRefused, Unavailable, checkTexts, kindOf } from "./errors.js";
import { Events } from "./events.js";
import { LeaseHold, SessionHold, alreadyOurs } from "./hold.js";
import { PendingClaim } from "./pending.js";
import { granted, isOver, yes } from "./reply.js";
import { Servers, addressesOf } from "./servers.js";
import type { EventsOptions, EventsWay } from "./events.js";
import type { Way } from "./hold.js";
import type { ClaimVerb } from "./pending.js";
import type { Reply } from "./reply.js";
import type { Transport } from "./servers.js";
import type { Acquired, AcquireRequest, Document, Effect, Job, Previous, Session as SessionAnswer, Transferred } from "./types.js";

const TIMEOUT_MS = 10_000;
const TTL_MS = 60_000;
const LEADER_TTL_MS = 30_000;
const ELECTION = "election:";
const GIVE_UP_MS = 2_000;
const INSIST_MS = 2_000;
const INSIST_PAUSE_MS = 200;
const INSIST_TRIES = 3;
const REASON_CHARS_MAX = 1024;
const NAMES_MAX = 5; // of errors in one that a reason names
const DONE_SECONDS = 86_400;
const NAMESPACE = /^[A-Za-z0-9._-]{1,64}$/;

// Browsers and older Nodes lack it; TypeScript's `await using` looks for it when it runs.
(Symbol as { asyncDispose?: symbol }).asyncDispose ??= Symbol.for("Symbol.asyncDispose");

export interface ClientOptions {
  /** A server, or several of one store with commas between: `http://`, `https://`, in Node also `unix:///path`. */
  url: string;
  /** The bearer token, or a function that gives the present one: it is asked before each request. */
  token?: string | (() => string | undefined) | undefined;
  /** Who you are, as shown to others; it proves nothing. */
  owner?: string | undefined;
  namespace?: string | undefined;
  /** How long one request may take, without the time in line. */
  timeoutMs?: number;
  /** Take names as they are. Without it all ways to write an issue are one name. */
  exact?: boolean;
  /** Called with what a person may want to know: heartbeats that fail, a release that was not confirmed. */
  warn?: (message: string) => void;
}

export interface ClaimOptions {
  /** How long the claim lasts without a heartbeat; a minute if not given. In a session it lasts as long as that. */
  ttlMs?: number;
  /** How long to wait in line; `Infinity` for no limit. */
  waitMs?: number;
  /** Stops waiting: the place, or a lease that came meanwhile, is given back, and the reason is thrown. */
  signal?: AbortSignal | undefined;
  /** Who you are, as shown to others; it proves nothing. */
  owner?: string | undefined;
  /** A short text that everybody sees. */
  metadata?: string | undefined;
  /** Coexists with other shared claims, and excludes exclusive ones. */
  shared?: boolean;
  /** Up to this many owners at once; all must give the same number. Of a pool it may be left out. */
  slots?: number | undefined;
  /** How many of the slots to take; one if not given. `claim.slotNumbers` says which. */
  units?: number | undefined;
  /** Claim the job even if it is marked as done. */
  again?: boolean;
  /** After this many failures and losses in a row, park the job until somebody frees it. */
  maxAttempts?: number | undefined;
  /** The claim is lost after this long, whatever is renewed; rounded up to whole seconds. */
  maxHoldMs?: number | undefined;
  /** With `waitMs`: a group of which only the newest waits in line. Older ones throw JobSuperseded. Not of `claimAny`, which
   * has no place in line. */
  replaces?: string | undefined;
  /** More fields of the request, as the HTTP reference names them. */
  fields?: Partial<AcquireRequest> & Document;
}

/** What `claimAny` takes. */
export interface AnyOptions extends Omit<ClaimOptions, "replaces"> {
  /** Claim this many of the names, or none; one if not given. They are renewed, lost and released together. */
  count?: number | undefined;
}

export interface LeaderOptions {
  /** How long the term lasts without a heartbeat; half a minute if not given. */
  ttlMs?: number;
  /** How long to campaign; without limit if not given. Then JobHeld says who leads. */
  waitMs?: number;
  /** Stops campaigning, and throws its reason. */
  signal?: AbortSignal | undefined;
  /** Who you are, as shown to others; it proves nothing. */
  owner?: string | undefined;
  /** A short text that everybody sees. */
  metadata?: string | undefined;
}

export interface SessionOptions {
  /** How long it lives without a heartbeat; a minute if not given. */
  ttlMs?: number;
  /** Who you are, as shown to others; it proves nothing. */
  owner?: string | undefined;
  /** A short text for those who may see the session. */
  metadata?: string;
  /** A session of yours, or its id, whose part this one is, as a subagent's is of its agent's. Claims of the two do not
   * exclude each other; those of two sessions with the same parent do. */
  parent?: Session | string | undefined;
  /** How long it takes to stop the work: so much before the store's deadline it counts as lost. */
  stopMs?: number;
  /** Called after each heartbeat. */
  onKept?: () => void;
}

/** Jobs that are yours until the claim is released or lost. `await using` releases it at the end of the block. */
export class Claim {
  #refusedEnd: unknown; // an end of the claim was refused, not its work
  readonly #unsaidEnds = new Map<string, Document>(); // of steps, by key: nobody answered the note

  constructor(private readonly hold: LeaseHold, private readonly way: Way) {}

  /** One for each job. `lease_id` is the proof: keep it secret. */
  get leases(): readonly Acquired[] {
    return this.hold.leases;
  }

  /** The job. Of several, the first. */
  get name(): string {
    return this.hold.name;
  }

  get names(): string[] {
    return this.leases.map((each) => each.name!);
  }

  get owner(): string {
    return this.leases[0]!.owner;
  }

  /** Send it with your writes, and let the receiver refuse smaller ones. */
  get fencingToken(): number {
    return this.hold.token;
  }

  get fencingTokens(): Record<string, number> {
    return Object.fromEntries(this.leases.map((each) => [each.name!, each.fencing_token!]));
  }

  /** The number of its slot, from 0; undefined if the job has no slots. Of several jobs or units, the first one's. */
  get slot(): number | undefined {
    return this.leases[0]!.slot;
  }

  /** The numbers of all its slots, one for each unit; none if the job has no slots. Of several jobs, the first one's. */
  get slotNumbers(): readonly number[] {
    const { slot, slot_numbers: all } = this.leases[0]!;
    return all ?? (slot === undefined ? [] : [slot]);
  }

  /** 1, and 1 more for each owner that failed at the job or lost it since the last clean release. */
  get attempt(): number {
    return this.leases[0]!.attempt ?? 1;
  }

  /** The last owner, how its hold ended, and its checkpoint. */
  get previous(): Previous | undefined {
    return this.leases[0]!.previous;
  }

  /** How many waited for it at the last heartbeat. */
  get waiting(): number {
    return this.hold.waiting;
  }

  /** Fires when the claim is lost, with the LeaseLost as its reason. */
  get signal(): AbortSignal {
    this.hold.lost(); // a loop that was blocked past the deadline has not noticed yet
    return this.hold.signal();
  }

  /** Until it counts as lost without another heartbeat. 0 if it is not ours. */
  remainingMs(): number {
    return this.hold.leftMs();
  }

  /** Throw LeaseLost unless the claim is certainly still ours. Cheap: it reads this machine's clock, not the network. */
  check(): void {
    this.hold.check();
  }

  /** Store progress for the next owner, now. If that fails, it is sent with the next heartbeat. What cannot be stored
   * throws InvalidInput, and the claim goes on. */
  async checkpoint(text: string, metadata?: string): Promise<void> {
    this.check();
    this.hold.note({ checkpoint: text, ...(metadata === undefined ? {} : { metadata }) });
    await this.hold.beat();
    this.check();
    this.hold.checkNoted();
  }

  /** A step that changes something outside, and must not be repeated blindly. That it begins is noted before `step` runs,
   * how it ended after it, with the text that it returns. `step` is told how it stood: `new`, `failed`, or `in_doubt` if an
   * earlier owner began it and never said how it ended. If one did it, `step` is not called. Gives the text either way. A
   * step that throws has failed; if `unsure` says so (by default a timeout, or a connection that failed), it is in doubt.
   * Of several names, the first job has the note. */
  async once(
    key: string,
    step: (known: Effect) => Promise<string | undefined>,
    unsure: (error: unknown) => boolean = isUnsure,
  ): Promise<string | undefined> {
    const id = crypto.randomUUID();
    const note = (status: string, more: Document = {}): Document => ({ effect_key: key, effect_id: id, effect_status: status, ...more });
    const known = await this.#begun(key, note("begun"), note("failed", { effect_reason: "not run" }));
    if (known.status === "done") return known.result;
    let result: string | undefined;
    try {
      result = await step(known);
    } catch (error) {
      const status = unsure(error) ? "in_doubt" : "failed";
      try {
        await this.#ended(key, note(status, { effect_reason: reasonOf(error, failuresIn(error, undefined)) }));
      } catch (trouble) {
        this.way.warn(`The step ${key} is in doubt for the next owner: ${(trouble as Error).message}`);
      }
      throw error;
    }
    try {
      await this.#ended(key, note("done", given({ effect_result: result })));
    } catch (wrong) {
      if (!(wrong instanceof InvalidInput)) throw wrong;
      await this.#ended(key, note("done"));
      throw new InvalidInput(`The step ${key} is noted as done, without its result: ${wrong.message}`);
    }
    return result;
  }

  /** Release the job. Throws LeaseLost if it was lost before, Unavailable if nobody confirmed it. */
  async release(checkpoint?: string): Promise<void> {
    await this.#finish(alike(given({ checkpoint })));
  }

  /** Release the job, and mark it as done for a day, or for `doneMs`. */
  async done(result?: string, doneMs = DONE_SECONDS * 1000): Promise<void> {
    await this.#finish(this.#ofJobs(given({ done_seconds: Math.max(1, Math.ceil(doneMs / 1000)), result })));
  }

  /** Release the job as failed, which counts as an attempt. */
  async fail(reason?: string, retryAfterMs?: number): Promise<void> {
    await this.#finish(this.#ofJobs(failed(reason, retryAfterMs)));
  }

  /** Release without a verdict on the work: the count of attempts stays as it is. */
  async giveBack(): Promise<void> {
    await this.#finish(alike({ uncounted: true }));
  }

  /** Hand the job to another owner in one step. Returns the new owner's lease. */
  async transfer(to: { owner?: string; session?: string }): Promise<Transferred> {
    if (this.leases.length > 1) throw new InvalidInput("Several jobs cannot be handed over together.");
    // The id is the same for each try: a repeat is known by it.
    const ending = given({ to_owner: to.owner, to_session: to.session, fresh_lease_id: crypto.randomUUID() });
    return (await this.#finish(alike(ending), "transfer"))[0] as unknown as Transferred;
  }

  /** Work while it is ours, then release it. If the work throws, the job has failed, unless it was another claim's
   * error, or the refusal of an argument of `done` and its like; only the name of the error is stored. Throws LeaseLost if
   * the claim was lost, whatever the work did. */
  async during<T>(work: (claim: this) => Promise<T>): Promise<T> {
    let result: T;
    try {
      result = await work(this);
    } catch (error) {
      const failures = failuresIn(error, this.#refusedEnd);
      const ending = failures.length > 0 ? failed(reasonOf(error, failures)) : { uncounted: true };
      await this.#leave(byKind(this.countsErrors ? ending : {}));
      throw error;
    }
    await this.#leave(alike({}));
    const lost = this.hold.lost();
    if (lost !== undefined) throw lost;
    return result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#leave(alike({}));
  }

  /** An error of the work is a failed attempt at the job. */
  protected get countsErrors(): boolean {
    return true;
  }

  /** Of jobs and resources that were claimed together, only the jobs are done or fail. Of resources alone the server
   * refuses it. */
  #ofJobs(ending: Document): Ending {
    return this.leases.every((lease) => isResource(lease.name!)) ? alike(ending) : byKind(ending);
  }

  /** At the end of a block. If nobody confirms the release, its session says it again, or the claim expires. */
  async #leave(ofWork: Ending): Promise<void> {
    let lost = this.hold.lost();
    const ending = lost === undefined ? ofWork : alike({ uncounted: true });
    const isTold = lost === undefined || this.hold.isTold;
    for (const lease of this.hold.giveUp()) {
      try {
        await this.#insist(lease, ending, "release");
      } catch (error) {
        if (error instanceof Unavailable) {
          this.hold.sayLater(lease, (ms) => this.#said(lease, ending, ms), error.message);
          continue;
        }
        if (error instanceof LeaseLost) lost ??= error;
        else this.way.warn(`${lease.name} could not be released: ${(error as Error).message}`);
      }
      this.hold.endSaid(lease);
    }
    if (lost !== undefined && !(isTold && lost === this.hold.lost())) throw lost;
  }

  /** Say the end of a lease once more. False: nobody answered. */
  async #said(lease: Acquired, ending: Ending, timeoutMs?: number): Promise<boolean> {
    await this.hold.sendNoted(lease, timeoutMs);
    const fields = isResource(lease.name!) ? ending.ofResource : ending.ofJob;
    const reply = await this.way.ask({ verb: "release", name: lease.name!, document: { lease_id: lease.lease_id, ...fields } }, timeoutMs);
    if (kindOf(reply) === "not_now") return false;
    this.hold.endSaid(lease);
    return true;
  }

  /** It counts as ended only when the store has confirmed it. */
  async #finish(ending: Ending, verb: "release" | "transfer" = "release"): Promise<Document[]> {
    this.check();
    this.hold.ending = true;
    try {
      checkTexts(ending.ofJob);
      const found: Document[] = [];
      // Jobs first: an end that is refused is refused for the first of them, and nothing has ended.
      const leases = [...this.leases].sort((one, other) => Number(isResource(one.name!)) - Number(isResource(other.name!)));
      for (const lease of leases) found.push(await this.#insist(lease, ending, verb));
      this.hold.letGo();
      return found;
    } catch (error) {
      if (error instanceof LeaseLost) {
        this.hold.end(error.why);
        this.hold.isTold = true;
      } else if (error instanceof InvalidInput && !("failed" in ending.ofJob)) this.#refusedEnd = error;
      throw error;
    } finally {
      this.hold.ending = false;
    }
  }

  /** Note that a step begins. First the end of an earlier try in this claim, if nobody answered its note. */
  async #begun(key: string, begun: Document, notRun: Document): Promise<Effect> {
    const unsaid = this.#unsaidEnds.get(key);
    if (unsaid !== undefined) {
      await this.#noted(unsaid).catch((error: unknown) => {
        if (!(error instanceof RequestRefused)) throw error; // refused: the store does not know that it began
      });
      this.#unsaidEnds.delete(key);
    }
    try {
      return await this.#noted(begun);
    } catch (error) {
      if (error instanceof Unavailable) this.#unsaidEnds.set(key, notRun);
      throw error;
    }
  }

  async #ended(key: string, note: Document): Promise<void> {
    try {
      await this.#noted(note);
    } catch (error) {
      if (error instanceof Unavailable) this.#unsaidEnds.set(key, note);
      throw error;
    }
  }

  /** Note how a step stands. A lost claim notes nothing. */
  async #noted(note: Document): Promise<Effect> {
    this.check();
    checkTexts(note);
    try {
      const job = this.leases.find((each) => !isResource(each.name!)) ?? this.leases[0]!;
      const { effect } = await this.#insist(job, alike(note), "renew");
      if (effect === undefined) throw new InvalidInput("This server is older than once(): it keeps no notes of steps. Upgrade it.");
      return effect as Effect;
    } catch (error) {
      if (error instanceof LeaseLost) this.hold.end(error.why);
      throw error;
    }
  }

  /** Ask, and again if there was no answer: release, transfer and notes can be repeated. */
  async #insist(lease: Acquired, ending: Ending, verb: "release" | "transfer" | "renew"): Promise<Document> {
    const fields = isResource(lease.name!) ? ending.ofResource : ending.ofJob;
    const untilMs = Math.min(steadyMs() + INSIST_MS, this.hold.plan.lostMs);
    for (let left = INSIST_TRIES - 1; ; left--) {
      if (verb !== "renew") await this.hold.sendNoted(lease);
      const document = { lease_id: lease.lease_id, ...fields };
      const reply = await this.way.ask({ verb, name: lease.name!, document });
      if (isOver(reply)) {
        throw new LeaseLost(lease.name!, lease.fencing_token!, String(reply.body["details"]));
      }
      try {
        return yes(reply, verb);
      } catch (error) {
        if (!(error instanceof Unavailable) || left === 0 || steadyMs() + INSIST_PAUSE_MS >= untilMs) throw error;
        await pause(INSIST_PAUSE_MS);
      }
    }
  }
}

/** You lead an election until you resign, or the term is lost. A claim of the election's job: `check()`, `signal` and the
 * others tell of a loss. A lost term is not campaigned for again. Work that throws resigns, and counts as no failure. */
export class Leader extends Claim {
  /** The name of the election. */
  get election(): string {
    return this.name.slice(ELECTION.length);
  }

  /** Rises with every leader: the fencing token. Send it with your writes. */
  get term(): number {
    return this.fencingToken;
  }

  /** Whether you certainly lead now. Cheap: it reads this machine's clock, not the network. */
  get isLeader(): boolean {
    return this.remainingMs() > 0;
  }

  /** Lead no more. */
  async resign(): Promise<void> {
    await this.release();
  }

  protected override get countsErrors(): boolean {
    return false;
  }
}

/** What claims: a client, or a session of it. */
abstract class Claims {
  protected abstract readonly way: Way;
  /** Fields that all its claims have. */
  protected abstract terms(options: ClaimOptions): Document;
  protected within: SessionHold | undefined;

  /** The job `name`, or what says why not: JobHeld with the owner, JobDone, WouldDeadlock and others. */
  async claim(name: string, options: ClaimOptions = {}): Promise<Claim> {
    return this.take("acquire", [name], options, Claim);
  }

  /** The first of `names` that is free, or the first `count`, in one step; `claim.names` says which. */
  async claimAny(names: readonly string[], options: AnyOptions = {}): Promise<Claim> {
    return this.take("acquire-any", names, options, Claim);
  }

  /** All of `names` or none. They are renewed, lost and released together. */
  async claimAll(names: readonly string[], options: ClaimOptions = {}): Promise<Claim> {
    return this.take("acquire-all", names, options, Claim);
  }

  #document(options: ClaimOptions & AnyOptions): Document {
    const { metadata, shared, slots, units, count, again, maxAttempts, maxHoldMs, replaces, fields } = options;
    const mode = shared ? "shared" : undefined;
    const counts = { slots, units, count, maxAttempts };
    const wrong = Object.entries(counts).find(([, value]) => value !== undefined && !Number.isSafeInteger(value));
    if (wrong !== undefined) throw new InvalidInput(`${wrong[0]} is a whole number.`); // JSON would make nothing of it
    if (maxHoldMs !== undefined && !(maxHoldMs > 0 && maxHoldMs < Infinity)) {
      throw new InvalidInput("maxHoldMs is a number of milliseconds, more than 0.");
    }
    const max_hold_seconds = maxHoldMs === undefined ? undefined : Math.ceil(maxHoldMs / 1000);
    const more = { metadata, mode, slots, units, count, again: again || undefined, max_attempts: maxAttempts, max_hold_seconds, replaces };
    return given({ ...this.terms(options), ...more, ...fields });
  }

  protected async take<C extends Claim>(
    verb: ClaimVerb,
    names: readonly string[],
    options: ClaimOptions & AnyOptions,
    Kind: new (hold: LeaseHold, way: Way) => C,
  ): Promise<C> {
    const request = new PendingClaim(verb, [...names], this.#document(options));
    const { waitMs = 0, signal } = options;
    const session = this.within;
    let hold: LeaseHold | undefined;
    try {
      if (Number.isNaN(waitMs) || waitMs < 0) throw new InvalidInput("waitMs is a number of milliseconds, 0 or more.");
      session?.reserve(request);
      await session?.settle(request.reserved);
      const reply = await request.claim((asked, by) => this.way.ask(asked, undefined, by), waitMs, signal);
      hold = await this.#held(granted(reply), request);
      const isCapped = hold.leases.some((each) => each.ends_in_ms !== undefined);
      if (steadyMs() >= hold.plan.nextMs || (isCapped && waitMs > 0)) await hold.confirm();
      else hold.cap(hold.leases as unknown as Document[], request.sentMs);
      signal?.throwIfAborted();
      if (session === undefined || isCapped) hold.start();
      return new Kind(hold, this.way);
    } catch (error) {
      hold?.letGo();
      if (!(error instanceof NotClaimed || error instanceof InvalidInput)) await this.#giveUp(request);
      throw error;
    } finally {
      session?.answered(request);
    }
  }

  async #held(leases: Acquired[], request: PendingClaim): Promise<LeaseHold> {
    const twice = this.within?.had(leases) ?? [];
    if (twice.length === 0) return new LeaseHold(leases, this.way, request.sentMs, this.within);
    if (twice.length < leases.length) await this.#giveUp(request);
    throw alreadyOurs(twice.join(", "));
  }

  async #giveUp(request: PendingClaim): Promise<void> {
    const withdrawn = await request.withdraw((asked) => this.way.ask(asked, GIVE_UP_MS)).catch(() => false);
    if (!withdrawn) this.within?.sayLater((ms) => request.withdraw((asked) => this.way.ask(asked, ms)));
  }
}

/** A client of a server, or of several of one store. Nothing is opened before the first request. */
export class Client extends Claims {
  protected readonly way: Way;
  readonly owner: string | undefined;
  readonly #eventsWay: EventsWay;

  constructor(options: ClientOptions, transport: Transport) {
    super();
    const { url, token, owner, namespace, timeoutMs = TIMEOUT_MS, exact = false, warn = console.warn } = options;
    if (namespace !== undefined && !NAMESPACE.test(namespace)) {
      throw new InvalidInput("A namespace is 1 to 64 letters, digits, dots, dashes or underscores.");
    }
    const authorization = () => bearer(typeof token === "function" ? called(token) : token);
    authorization(); // what is wrong with it is told before the first request
    if (!(timeoutMs > 0)) throw new InvalidInput("timeoutMs is a number of milliseconds, more than 0.");
    const headers = () =>
      given({
        Accept: "application/json",
        Authorization: authorization(),
        "X-Dibs-Namespace": namespace,
        "X-Dibs-Names": exact ? undefined : "one",
      }) as Record<string, string>;
    const servers = new Servers(addressesOf(url), transport, headers);
    this.way = { ask: (asked, ms = timeoutMs, signal) => servers.ask(asked, ms, signal), warn };
    this.#eventsWay = {
      ask: (asked, signal) => servers.ask(asked, timeoutMs, signal),
      stream: (asked, onPart, signal) => servers.stream(asked, onPart, signal),
    };
    this.owner = owner;
  }

  protected terms({ ttlMs = TTL_MS, owner = this.owner }: ClaimOptions): Document {
    return { owner, ttl_ms: wholeMs(ttlMs) };
  }

  /** Claims made in a session need no heartbeats of their own: it has one for all of them, and they end with it. */
  async session({ ttlMs, owner = this.owner, metadata, parent, stopMs, onKept }: SessionOptions = {}): Promise<Session> {
    const sentMs = steadyMs();
    const ttl_ms = ttlMs === undefined ? undefined : wholeMs(ttlMs);
    const parent_id = parent instanceof Session ? parent.id : parent;
    const document = given({ owner, metadata, ttl_ms, parent_id, fresh_session_id: crypto.randomUUID() });
    const opened = yes<SessionAnswer>(await this.way.ask({ verb: "session-open", document }));
    return new Session(new SessionHold(opened, this.way, sentMs, stopMs, onKept).start(), this.way);
  }

  /** Campaign in an election, and lead when it is won. An election is the job `election:NAME`, as for `dibs elect`. */
  async leader(election: string, { ttlMs = LEADER_TTL_MS, waitMs = Infinity, ...options }: LeaderOptions = {}): Promise<Leader> {
    if (typeof election !== "string" || !/^\S/.test(election)) {
      throw new InvalidName("An election's name is text, not empty, and begins with no blank. Give all candidates the same one.", "invalid_lock_name");
    }
    return this.take("acquire", [ELECTION + election], { ...options, ttlMs, waitMs }, Leader);
  }

  /** What happens to jobs, as it happens: `for await (const event of dibs.events({ prefix: "issue-" }))`. Each event of the
   * namespace comes once, in the order of the store's numbers, also if a server ends or hangs. Nothing is asked before the
   * loop begins. Throws EventsGone for events that are no longer on record. */
  events(options: EventsOptions = {}): Events {
    return new Events(this.#eventsWay, options);
  }

  /** The state of a job, and who has it. */
  async inspect(name: string): Promise<Job> {
    return yes(await this.way.ask({ verb: "inspect", name }));
  }

  /** All jobs that are held and whose name begins with `prefix`. */
  async list(prefix = ""): Promise<Job[]> {
    const found: Job[] = [];
    for (let after: string | null = ""; after !== null; ) {
      const document: Document = given({ prefix: prefix || undefined, after: after || undefined, status: "held", limit: 1000 });
      const page: { locks: Job[]; next: string | null } = yes(await this.way.ask({ verb: "list", document }));
      found.push(...page.locks);
      after = page.next;
    }
    return found;
  }
}

/** One run of one worker. What it holds ends with it. */
export class Session extends Claims {
  constructor(private readonly hold: SessionHold, protected readonly way: Way) {
    super();
    this.within = hold;
  }

  /** The session's secret. With it as DIBS_SESSION, a child process can work in this session. */
  get id(): string {
    return this.hold.id;
  }

  get owner(): string {
    return this.hold.owner;
  }

  /** Fires when the session is lost, and with it all its claims. */
  get signal(): AbortSignal {
    this.hold.lost();
    return this.hold.signal();
  }

  remainingMs(): number {
    return this.hold.leftMs();
  }

  check(): void {
    this.hold.check();
  }

  protected terms({ ttlMs, owner = this.owner }: ClaimOptions): Document {
    this.check();
    if (ttlMs !== undefined) throw new InvalidInput("A claim in a session lasts as long as the session: leave out ttlMs.");
    return { owner, session_id: this.id };
  }

  /** End the session, and release what it holds. If nobody confirms that, it expires. Throws LeaseLost if it was lost. */
  async end(): Promise<void> {
    const lost = this.hold.lost();
    if (lost !== undefined) throw lost;
    if (!this.hold.letGo()) return;
    const reply: Reply = await this.way.ask({ verb: "session-end", name: this.id });
    if (reply.status >= 300 && !isOver(reply)) {
      this.way.warn(`A session could not be ended and will expire: ${String(reply.body["details"])}`);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.hold.lost() === undefined || !this.hold.isTold) await this.end();
  }
}

/** An error of a program's own function is no lost connection. */
function called(token: () => string | undefined): string | undefined {
  try {
    return token();
  } catch (error) {
    throw new InvalidInput(`The function that gives the token failed: ${String(error)}`);
  }
}

function bearer(token: string | undefined): string | undefined {
  if (token && !/^[\x21-\x7e]+$/.test(token)) throw new InvalidInput("The token has invalid characters.");
  return token ? `Bearer ${token}` : undefined;
}

function wholeMs(ms: number): number {
  if (!Number.isFinite(ms) || ms <= 0) throw new InvalidTtl("ttlMs is a number of milliseconds, more than 0.", "invalid_ttl");
  return Math.ceil(ms);
}

/** What of an error is the work's own failure: of several in one, whichever is. Errors about other claims are none, nor is
 * a refused end of this one. */
function failuresIn(error: unknown, refusedEnd: unknown): unknown[] {
  const found: unknown[] = [];
  const look = new Set([error]); // grows meanwhile
  for (const each of look) {
    const inside = insideOf(each);
    for (const one of inside) look.add(one);
    const isOfClaims = each instanceof NotClaimed || each instanceof LeaseLost || (each !== undefined && each === refusedEnd);
    if (!isOfClaims && inside.length === 0) found.push(each);
  }
  return found;
}

/** The errors in one: of `Promise.any`, and of an `await using` whose end threw as well. Not every Node knows the latter. */
function insideOf(error: unknown): unknown[] {
  if (error instanceof AggregateError) return error.errors;
  if (!(error instanceof Error && error.name === "SuppressedError")) return [];
  const both = error as Error & { error?: unknown; suppressed?: unknown };
  return [both.suppressed, both.error];
}

/** Whether nobody knows if the other side did it: a request was sent and had no answer. `fetch` throws a TypeError then,
 * sockets an error with a code. */
function isUnsure(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = String((error as { code?: unknown }).code ?? "");
  return error.name === "TimeoutError" || error.name === "AbortError" || error instanceof TypeError || /^(ECONN|EPIPE|ETIMEDOUT|UND_ERR_)/.test(code);
}

/** Only the names of errors: their texts may have secrets, and everybody reads a reason. */
function reasonOf(error: unknown, failures: unknown[]): string {
  if (insideOf(error).length === 0) return `threw ${nameOf(error)}`;
  const inside = [...new Set(failures.map(nameOf))];
  const more = inside.length > NAMES_MAX ? ` and ${inside.length - NAMES_MAX} more` : "";
  return `threw ${nameOf(error)} of ${inside.slice(0, NAMES_MAX).join(", ")}${more}`;
}

function nameOf(error: unknown): string {
  return error instanceof Error ? error.name : typeof error;
}

/** The fields of a release. */
interface Ending {
  ofJob: Document;
  ofResource: Document;
}

const alike = (fields: Document): Ending => ({ ofJob: fields, ofResource: fields });

/** Resources can be held, and nothing else; all other names are jobs. */
export function isResource(name: string): boolean {
  return /^(path|repo|branch):/.test(name);
}

/** Work on a resource says nothing about it: after a failure its release counts as nothing. */
function byKind(ending: Document): Ending {
  return { ofJob: ending, ofResource: ending["failed"] || ending["uncounted"] ? { uncounted: true } : {} };
}

/** A reason is mostly the text of an error: it is cut and mended until it can be sent, and never refused. */
function failed(reason?: string, retryAfterMs?: number): Document {
  const retry_after_seconds = retryAfterMs === undefined ? undefined : Math.ceil(retryAfterMs / 1000);
  const mended = reason?.replace(/\p{Surrogate}/gu, "\ufffd");
  const cut = mended === undefined ? undefined : [...mended].slice(0, REASON_CHARS_MAX).join("");
  return given({ failed: true, reason: cut, retry_after_seconds });
}

function given(document: Document): Document {
  return Object.fromEntries(Object.entries(document).filter(([, value]) => value !== undefined));
}
