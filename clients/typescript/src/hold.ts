/** Holds: what is held, until when, and how it ends.
 *
 * A hold ends when it is released, when the store says so, or when its deadline passes on this machine's clock. The
 * deadline is counted from before the last successful request was sent, and is a little earlier than the store's. So a
 * loss is known here before anybody else can own the job. A failed renewal is repeated until the deadline, never after
 * it. A lost hold is never claimed again. */

import { steadyMs } from "./clock.js";
import { DO_NOT_BEGIN, InvalidInput, JobHeld, LeaseLost, Unavailable, checkTexts, kindOf } from "./errors.js";
import { isOver } from "./reply.js";
import type { Reply } from "./reply.js";
import type { PendingClaim } from "./pending.js";
import type { Ask } from "./servers.js";
import type { Acquired, Document, Session as SessionAnswer } from "./types.js";

const RETRY_MS = 1_000;
const NAP_MS_MAX = 1_000; // a timer does not count sleep, the clock does: look at it this often
const MARGIN_MS_MIN = 50;
const MARGIN_MS_MAX = 2_000;
const TAKEN = "it was taken away; `dibs history` says by whom.";

/** The way to the servers: asks, for at most so long, else as the client does; says what a person may want to know. */
export interface Way {
  ask(asked: Ask, timeoutMs?: number, signal?: AbortSignal): Promise<Reply>;
  warn(message: string): void;
}

/** When to renew, and from when on to treat a hold as lost. `stopMs` is how long it takes to stop the work. */
class Plan {
  nextMs = 0;
  lostMs = 0;

  constructor(readonly ttlMs: number, sentMs: number, readonly stopMs: number) {
    this.kept(sentMs, ttlMs, 0);
  }

  /** A renewal that was sent then holds for so long. The next one is up to a quarter earlier: holds spread out. */
  kept(sentMs: number, ttlMs: number, jitter = Math.random()): void {
    const thirdMs = Math.min(ttlMs, this.ttlMs) / 3;
    this.nextMs = sentMs + thirdMs - (thirdMs * jitter) / 4;
    this.lostMs = sentMs + ttlMs - this.stopMs;
  }

  failed(): void {
    this.nextMs = steadyMs() + Math.min(RETRY_MS, this.ttlMs / 12);
  }
}

const marginMs = (ttlMs: number) => Math.max(MARGIN_MS_MIN, Math.min(MARGIN_MS_MAX, ttlMs / 20));

/** Something with a deadline and an end: leases, or a session. */
abstract class Hold {
  plan: Plan;
  ceilingMs = Infinity; // it ends here, whatever is renewed
  trouble: string | undefined; // why the last renewal did not succeed
  ending = false; // we are releasing it, so that a "not current" is no loss
  readonly controller = new AbortController();
  isTold = false; // somebody has the loss
  #lost: LeaseLost | undefined;
  #isAborting = false;
  #isLetGo = false;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #beating: Promise<void> | undefined;

  /** `plan`: how long it lasts from when it was asked for, and how long it takes to stop the work. */
  constructor(readonly name: string, readonly token: number, protected readonly way: Way, plan: [ttlMs: number, sentMs: number, stopMs?: number | undefined]) {
    const [ttlMs, sentMs, stopMs = marginMs(ttlMs)] = plan;
    this.plan = new Plan(ttlMs, sentMs, stopMs);
  }

  /** Renew, and note the result. */
  protected abstract heartbeat(timeoutMs: number): Promise<void>;

  get isOver(): boolean {
    return this.#isLetGo || this.controller.signal.aborted;
  }

  leftMs(): number {
    return this.isOver ? 0 : Math.max(0, this.deadlineMs - steadyMs());
  }

  get deadlineMs(): number {
    return Math.min(this.plan.lostMs, this.ceilingMs);
  }

  /** Its own heartbeats renew it. */
  protected get renews(): boolean {
    return true;
  }

  /** The loss; undefined while it is ours. Also looks at the clock. */
  lost(): LeaseLost | undefined {
    if (!this.isOver && steadyMs() >= this.ceilingMs) this.end("the longest time that it may be held is over.");
    if (!this.isOver && steadyMs() >= this.plan.lostMs) {
      const because = this.trouble === undefined ? "" : ` (${this.trouble.replace(/\.$/, "")})`;
      this.end(`no heartbeat was answered in time, which is ${this.plan.ttlMs / 1000} s${because}.`);
    }
    return this.#lost;
  }

  check(): void {
    const lost = this.lost();
    this.isTold ||= lost !== undefined;
    if (lost !== undefined) throw lost;
    if (this.#isLetGo) throw new LeaseLost(this.name, this.token, "it was released.");
  }

  end(why: string): void {
    if (this.isOver) return;
    clearTimeout(this.#timer);
    this.#isAborting = true; // listeners are called, also of what is over and tells nobody
    this.#lost = new LeaseLost(this.name, this.token, why);
    this.controller.abort(this.#lost);
    this.#isAborting = false;
  }

  /** The signal. Who reads its reason, or has it thrown, after it has fired was told of the loss. */
  signal(): AbortSignal {
    const { signal } = this.controller;
    if (!Object.hasOwn(signal, "reason")) {
      const reason = Object.getOwnPropertyDescriptor(AbortSignal.prototype, "reason")!.get!;
      const tell = (): unknown => {
        this.isTold ||= signal.aborted && !this.#isAborting;
        return reason.call(signal);
      };
      Object.defineProperty(signal, "reason", { configurable: true, get: tell });
      Object.defineProperty(signal, "throwIfAborted", {
        configurable: true,
        value: () => {
          if (signal.aborted) throw tell();
        },
      });
    }
    return signal;
  }

  /** No more renewals, and no loss. False if it had ended before. */
  letGo(): boolean {
    if (this.isOver) return false;
    this.#isLetGo = true;
    clearTimeout(this.#timer);
    return true;
  }

  /** Renew it from now on. Its timer does not keep a program alive. */
  start(): this {
    const look = () => {
      if (this.lost() !== undefined || this.#isLetGo) return;
      const rests = this.renews && this.#beating === undefined;
      if (rests && steadyMs() >= this.plan.nextMs) void this.beat();
      const dueMs = rests && this.#beating === undefined ? Math.min(this.plan.nextMs, this.deadlineMs) : this.deadlineMs;
      this.#timer = setTimeout(look, Math.max(1, Math.min(NAP_MS_MAX, dueMs - steadyMs())));
      if (typeof this.#timer === "object") this.#timer.unref();
    };
    look();
    return this;
  }

  /** Renew now, after the renewal that is under way. */
  async beat(): Promise<void> {
    while (this.#beating !== undefined) await this.#beating;
    if (this.isOver || this.lost() !== undefined) return;
    await this.#renew(Math.min(this.plan.ttlMs / 6, this.leftMs()));
  }

  /** Renew it once before the work begins, after a wait in line: its time was counted from before the wait, and may seem
   * to be over. Throws if it is not ours, or if nobody says so. */
  async confirm(): Promise<void> {
    await this.#renew(this.plan.ttlMs / 6);
    if (this.trouble !== undefined && !this.isOver) {
      throw new Unavailable(`The job was granted, but could not be renewed: ${this.trouble}`);
    }
    this.check();
  }

  async #renew(timeoutMs: number): Promise<void> {
    this.#beating = this.heartbeat(Math.max(1, timeoutMs))
      .catch((error: unknown) => this.failed(String(error)))
      .finally(() => (this.#beating = undefined));
    await this.#beating;
  }

  failed(why: string): void {
    const first = this.trouble === undefined;
    const trouble = (this.trouble = why.replace(DO_NOT_BEGIN, "").trim()); // the work has begun
    this.plan.failed();
    const left = `${Math.ceil(this.leftMs() / 1000)} s`;
    if (first && !this.isOver) this.way.warn(`A heartbeat of ${this.name} failed, and is repeated for another ${left}: ${trouble}`);
  }

  /** Tell whether the reply was a success. If not, note the loss or the failure. */
  protected heard(reply: Reply): boolean {
    if (reply.status < 300) return true;
    const details = String(reply.body["details"] ?? `status ${reply.status}`);
    if (isOver(reply) && !this.ending) this.end(details);
    else this.failed(details);
    return false;
  }
}

/** Says something to the store. False: nobody answered. */
type Say = (timeoutMs?: number) => Promise<boolean>;

/** Leases that were claimed together and are renewed together. If one is lost, all count as lost. */
export class LeaseHold extends Hold {
  waiting = 0; // how many waited for its jobs at the last heartbeat
  #news: Document = {};
  #refusedNews: string | undefined; // why the store took the last ones not

  constructor(readonly leases: readonly Acquired[], way: Way, sentMs: number, private readonly session?: SessionHold) {
    const first = leases[0]!;
    super(first.name!, first.fencing_token!, way, [Math.min(...leases.map((each) => each.remaining_ms)), sentMs]);
    if (session !== undefined) {
      this.plan = session.plan; // it lives as long as the session
      session.adopt(this);
    }
  }

  protected override get renews(): boolean {
    return this.session === undefined;
  }

  /** An answer to a request of `sentMs` says how long each may last. */
  cap(answers: readonly Document[], sentMs: number): void {
    const endsMs = Math.min(...answers.map((each) => Number(each["ends_in_ms"] ?? Infinity)));
    // Not later than the plan, whose last renewal ends at the ceiling, too: it is the ceiling that is told then.
    if (endsMs < Infinity) this.ceilingMs = sentMs + endsMs - Math.max(marginMs(endsMs), this.plan.stopMs);
  }

  /** To be sent with the next renewal. Throws InvalidInput for what no store would take, and notes nothing. */
  note(news: Document): void {
    checkTexts(news);
    this.#news = { ...this.#news, ...news };
    this.#refusedNews = undefined;
  }

  /** Throw InvalidInput if what was noted last was refused. */
  checkNoted(): void {
    if (this.#refusedNews !== undefined) throw new InvalidInput(this.#refusedNews);
  }

  #forget(news: Document): void {
    this.#news = Object.fromEntries(Object.entries(this.#news).filter(([key, value]) => news[key] !== value));
  }

  /** Send what was noted and not sent yet, because the lease is about to end. */
  async sendNoted(lease: Acquired, timeoutMs?: number): Promise<void> {
    const news = this.#news;
    if (Object.keys(news).length === 0) return;
    await this.way.ask({ verb: "renew", name: lease.name!, document: { lease_id: lease.lease_id, ...news } }, timeoutMs);
  }

  /** The block that has it is over. Returns the leases whose end is still to be said: if one was taken away, that of the
   * others that were claimed with it. */
  giveUp(): readonly Acquired[] {
    this.session?.giveUp(this.leases); // before the session forgets that a claim of its own has them
    const rest = this.lost() !== undefined && this.leases.length > 1 && steadyMs() < this.plan.lostMs;
    const ended = this.letGo() || rest ? this.leases : [];
    if (ended.length === 0) for (const lease of this.leases) this.endSaid(lease);
    return ended;
  }

  /** The end of a lease that was given up was answered. */
  endSaid(lease: Acquired): void {
    this.session?.endSaid(lease);
  }

  /** Nobody answered when the end of a lease was said: its session says it again, or it expires. */
  sayLater(lease: Acquired, say: Say, why: string): void {
    const then = this.session === undefined ? "could not be released and will expire" : "is released with the next heartbeat of its session";
    this.way.warn(`${lease.name} ${then}: ${why}`);
    this.session?.sayLater(say);
  }

  override failed(why: string): void {
    super.failed(why);
    if (Object.keys(this.#news).length > 0) this.session?.sayLater(this.#notedIsSent);
  }

  #notedIsSent = async (): Promise<boolean> => {
    if (!this.isOver) await this.beat();
    return this.isOver || Object.keys(this.#news).length === 0;
  };

  protected async heartbeat(timeoutMs: number): Promise<void> {
    const sentMs = steadyMs();
    let news = this.#news;
    let [leftMs, waiting] = [Infinity, 0];
    const answers: Document[] = [];
    for (const lease of this.leases) {
      const renew = (more: Document) =>
        this.way.ask({ verb: "renew", name: lease.name!, document: { lease_id: lease.lease_id, ...more } }, timeoutMs);
      let reply = await renew(news);
      if (Object.keys(news).length > 0 && kindOf(reply) === "never_like_this") {
        // The claim is worth more than its news: what is refused for what it is, is dropped.
        this.#forget(news);
        this.#refusedNews = String(reply.body["details"]);
        this.way.warn(`The ${Object.keys(news).join(" and ")} of ${this.name} was refused, and is not stored: ${this.#refusedNews}`);
        reply = await renew((news = {}));
      }
      if (!this.heard(reply)) return;
      answers.push(reply.body);
      leftMs = Math.min(leftMs, Number(reply.body["remaining_ms"]));
      waiting = Math.max(waiting, Number(reply.body["waiting"]));
    }
    this.#forget(news);
    this.trouble = undefined;
    this.waiting = waiting;
    this.cap(answers, sentMs);
    if (this.session === undefined) this.plan.kept(sentMs, leftMs);
  }
}

/** A session and its claims, which end with it. It has one heartbeat for all of them. */
export class SessionHold extends Hold {
  readonly id: string;
  readonly owner: string;
  #asked = new Map<string, PendingClaim>();
  #claims: LeaseHold[] = [];
  #givenUp = new Map<string, string>(); // the jobs of leases, by id, whose block is over: they are nobody's here
  #ended = new Set<string>(); // those of them whose end was answered
  #unsaid = new Set<Say>(); // what nobody has answered yet

  constructor(session: SessionAnswer, way: Way, sentMs: number, stopMs?: number, private readonly onKept?: () => void) {
    super(`The session of ${session.owner}`, 0, way, [session.remaining_ms, sentMs, stopMs]);
    this.id = session.session_id;
    this.owner = session.owner;
  }

  override letGo(): boolean {
    if (!super.letGo()) return false;
    for (const claim of this.#claims) claim.letGo();
    return true;
  }

  override end(why: string): void {
    super.end(why);
    for (const claim of this.#claims) claim.end(why);
  }

  adopt(claim: LeaseHold): void {
    this.#claims.push(claim);
  }

  /** Before asking: if two ask for the same job at once, the second is refused. */
  reserve(request: PendingClaim): void {
    const twice = request.reserved.find((name) => this.#asked.has(name));
    if (twice !== undefined) throw alreadyOurs(twice);
    for (const name of request.reserved) this.#asked.set(name, request);
  }

  answered(request: PendingClaim): void {
    for (const [name, by] of this.#asked) if (by === request) this.#asked.delete(name);
    this.#forgetEnded();
  }

  /** Their block is over. A claim of another block may still be answered with them, until their end is said. */
  giveUp(leases: readonly Acquired[]): void {
    for (const lease of leases) this.#givenUp.set(lease.lease_id!, lease.name!);
  }

  endSaid(lease: Acquired): void {
    this.#ended.add(lease.lease_id!);
    this.#forgetEnded();
  }

  /** An answer on its way to a block that asks for the job may still name a lease that has ended. */
  #forgetEnded(): void {
    for (const id of this.#ended) {
      if (this.#asked.has(this.#givenUp.get(id)!)) continue;
      this.#ended.delete(id);
      this.#givenUp.delete(id);
    }
  }

  /** A block asks for these jobs: say first that an earlier one gave them up. */
  async settle(names: readonly string[]): Promise<void> {
    const asked = new Set(names);
    if (this.#unsaid.size > 0 && [...this.#givenUp.values()].some((name) => asked.has(name))) await this.sayAgain();
  }

  /** For the store, a session that claims a job again is the same owner. Here two would believe that they own it alone,
   * so the second is refused. A job that was taken away meanwhile does not count: its new lease is another one. */
  had(leases: readonly Acquired[]): string[] {
    this.#claims = this.#claims.filter((claim) => !claim.isOver);
    const twice: string[] = [];
    for (const lease of leases) {
      if (this.#givenUp.has(lease.lease_id!)) twice.push(lease.name!);
      for (const claim of this.#claims) {
        const old = claim.leases.find((each) => each.name === lease.name);
        if (old?.lease_id === lease.lease_id) twice.push(lease.name!);
        else if (old !== undefined) claim.end(TAKEN);
      }
    }
    return twice;
  }

  /** Nobody answered. The next heartbeat, which is soon, says it again. */
  sayLater(say: Say): void {
    this.#unsaid.add(say);
    this.plan.failed();
  }

  async sayAgain(timeoutMs?: number): Promise<void> {
    for (const say of [...this.#unsaid]) if (await say(timeoutMs)) this.#unsaid.delete(say);
  }

  protected async heartbeat(timeoutMs: number): Promise<void> {
    const sentMs = steadyMs();
    const reply = await this.way.ask({ verb: "session-keep", name: this.id }, timeoutMs);
    if (!this.heard(reply)) return;
    this.trouble = undefined;
    this.plan.kept(sentMs, Number(reply.body["remaining_ms"]));
    this.onKept?.();
    const claims = this.#claims.filter((claim) => !claim.isOver);
    await this.sayAgain(timeoutMs);
    if (claims.length === 0) return;
    // A single claim can be taken away while the session lives: see what it still has.
    const shown = await this.way.ask({ verb: "session-show", name: this.id }, timeoutMs);
    if (shown.status >= 300) return;
    const key = ({ name, fencing_token }: Document) => `${fencing_token} ${name}`;
    const found = new Map(((shown.body["holds"] ?? []) as Document[]).map((each) => [key(each), Number(each["waiting"] ?? 0)]));
    for (const claim of claims) {
      const ours = claim.leases.map((each) => found.get(key({ ...each })));
      claim.waiting = Math.max(...ours.map((each) => each ?? 0));
      if (!claim.ending && ours.includes(undefined)) claim.end(TAKEN);
    }
  }
}

export function alreadyOurs(name: string): JobHeld {
  return new JobHeld({ code: "held", name, details: `${name} is held, or asked for, by this very session in another claim.` });
}
