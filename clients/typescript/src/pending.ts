/** One claim on its way: from the names of its jobs to its leases, perhaps with a place in line. A long wait is split
 * into slices; the first is short, so that the place is known early. Whoever gives up sends one request, `withdraw`, and
 * leaves nothing behind, not even a lease whose reply was lost. */

import { pause, steadyMs } from "./clock.js";
import { FATE_UNKNOWN, kindOf, kindOfWord } from "./errors.js";
import { statusOf } from "./reply.js";
import type { Reply } from "./reply.js";
import type { Ask } from "./servers.js";
import type { Document } from "./types.js";

const SLICE_MS = 20_000;
const FIRST_SLICE_MS = 1_000;
const RETRY_MS = 500;
const POLL_MS_MIN = 50;
const POLL_MS_MAX = 2_000;
const GIVING_UP_MS = 2_000;
const GIVING_UP_PAUSE_MS = 100;
/** How the refusal of a request key begins whose lease has ended. */
export const KEY_SPENT = "This request key's lease";

export type ClaimVerb = "acquire" | "acquire-any" | "acquire-all";
export type Asking = (asked: Ask, signal?: AbortSignal) => Promise<Reply>;

export class PendingClaim {
  /** When the last answered request was sent. */
  sentMs = 0;
  readonly names: readonly string[];
  readonly #verb: ClaimVerb;
  readonly #name: string;
  #document: Document;
  #ticket: string | undefined;
  #asked = false;
  #heard = false; // somebody has answered, or an answer was lost: the address is right

  constructor(verb: ClaimVerb, names: readonly string[], document: Document) {
    this.#verb = verb;
    this.names = names;
    this.#name = verb === "acquire" ? names[0]! : "";
    this.#document = { ...document, request_key: crypto.randomUUID(), ...(verb === "acquire" ? {} : { names }) };
  }

  /** The jobs that a store would give to one session twice. Of several it passes over what the session has. */
  get reserved(): readonly string[] {
    return this.#verb === "acquire-any" ? [] : this.names;
  }

  /** The last reply: of the only request, or after up to `waitMs` in line. */
  async claim(ask: Asking, waitMs: number, signal?: AbortSignal): Promise<Reply> {
    if (waitMs <= 0) return this.#once(ask, 0, signal);
    if (this.#verb === "acquire-any") return this.#poll(ask, waitMs, signal);
    const reply = await this.#wait(ask, waitMs, signal);
    if (statusOf(reply) !== "queued") return reply;
    return this.#endWait(ask, reply);
  }

  async #once(ask: Asking, waitMs: number, signal?: AbortSignal): Promise<Reply> {
    const document = { ...this.#document };
    if (this.#ticket !== undefined) document["ticket"] = this.#ticket;
    if (waitMs > 0) document["wait_seconds"] = Math.ceil(waitMs) / 1000;
    const asked = this.#asked;
    this.#asked = true;
    const sentMs = steadyMs();
    const reply = await ask({ verb: this.#verb, name: this.#name, document }, signal);
    this.sentMs = sentMs;
    if (!reply.sent) this.#asked = asked;
    this.#heard ||= reply.error === undefined || String(reply.body["details"]).includes(FATE_UNKNOWN);
    if (statusOf(reply) === "queued") this.#ticket = String(reply.body["ticket"]);
    if (reply.body["rest"] === undefined) return reply;
    // An answer that we never read had given some of them. Until they are given up, the same ask is told of them.
    const undone = await ask(this.#withdrawal(), signal);
    if (kindOf(undone) === "not_now") return undone;
    this.#beginAnew();
    const { rest: _, ...body } = reply.body;
    return { ...reply, body };
  }

  /** From now on it is another ask, at the end of the line. */
  #beginAnew(): void {
    this.#document = { ...this.#document, request_key: crypto.randomUUID() };
    [this.#asked, this.#ticket] = [false, undefined];
  }

  #withdrawal(): Ask {
    const document: Document = { request_key: this.#document["request_key"], names: this.names };
    return { verb: "withdraw", document };
  }

  /** Claim until the reply is not `queued`, or the time is over. */
  async #wait(ask: Asking, waitMs: number, signal?: AbortSignal): Promise<Reply> {
    const untilMs = steadyMs() + waitMs;
    let pauseMs = RETRY_MS;
    for (;;) {
      const mostMs = this.#ticket === undefined ? FIRST_SLICE_MS : SLICE_MS;
      const reply = await this.#once(ask, Math.max(1, Math.min(mostMs, untilMs - steadyMs())), signal);
      const nowMs = steadyMs();
      if (statusOf(reply) === "queued") {
        pauseMs = RETRY_MS;
        if (nowMs >= untilMs) return reply;
        continue;
      }
      if (this.#cameAndWent(reply)) {
        if (nowMs < untilMs) continue;
        return this.#once(ask, 0, signal);
      }
      if (!this.#goesOn(reply) || nowMs >= untilMs) return reply;
      const hintMs = kindOf(reply) === "not_now" ? Number(reply.body["retry_after_ms"] ?? 0) : 0;
      await pause(Math.min(hintMs || pauseMs, untilMs - nowMs), signal);
      pauseMs = Math.min(2 * pauseMs, POLL_MS_MAX);
    }
  }

  /** claim-any takes no place in line: it asks again and again. */
  async #poll(ask: Asking, waitMs: number, signal?: AbortSignal): Promise<Reply> {
    const untilMs = steadyMs() + waitMs;
    let pauseMs = POLL_MS_MIN;
    for (;;) {
      const reply = await this.#once(ask, 0, signal);
      const leftMs = untilMs - steadyMs();
      if (leftMs <= 0 || !this.#goesOn(reply)) return reply;
      const hintMs = Number(reply.body["retry_after_ms"] || pauseMs);
      await pause(Math.max(1, Math.min(pauseMs, hintMs, leftMs)), signal);
      pauseMs = Math.min(2 * pauseMs, POLL_MS_MAX);
    }
  }

  /** Tell whether to keep waiting after an answer that is no place in line. *Not now* says nothing about the job: the next
   * request finds our place by ticket or request key, or gets another. But an address at which nobody ever answered may
   * be a wrong one. *Not yet* is waited for while it can change; claim-all wants all of its jobs, claim-any one. */
  #goesOn(reply: Reply): boolean {
    const kind = kindOf(reply);
    if (kind !== "not_yet") return kind === "not_now" && this.#heard;
    const refused = ((reply.body["refused"] ?? []) as Document[]).map(mayCome);
    if (this.#verb === "acquire-any") return refused.length === 0 || refused.includes(true);
    return this.#ticket !== undefined && !refused.includes(false);
  }

  /** Tell whether our turn came and a lease expired before we saw it, because this process was paused. No work was begun
   * with it, so we claim again with a new key, at the end of the line. */
  #cameAndWent(reply: Reply): boolean {
    const told = [reply.body, ...((reply.body["refused"] ?? []) as Document[])];
    if (!told.some((each) => String(each["details"]).startsWith(KEY_SPENT))) return false;
    this.#beginAnew();
    return true;
  }

  /** The wait is over: withdraw the claim. What another claim of the session was told of stays, and is ours after all. If
   * nobody answers, that is the answer: the place may still be there, and whoever claims gives it up later. */
  async #endWait(ask: Asking, reply: Reply): Promise<Reply> {
    const undone = await ask(this.#withdrawal());
    if (kindOf(undone) === "not_now") return undone;
    if (((undone.body["kept"] ?? []) as string[]).length > 0) return this.#once(ask, 0);
    this.#beginAnew();
    return reply;
  }

  /** The caller has given up. False if nobody answered: then the TTL ends it, or another try does. */
  async withdraw(ask: Asking): Promise<boolean> {
    if (!this.#asked) return true;
    const untilMs = steadyMs() + GIVING_UP_MS;
    for (;;) {
      const reply = await ask(this.#withdrawal());
      if (kindOf(reply) !== "not_now") {
        this.#beginAnew();
        return true;
      }
      if (!reply.sent || steadyMs() >= untilMs) return false;
      await pause(GIVING_UP_PAUSE_MS);
    }
  }
}

/** Tell whether the refusal of one job of several may change with time. */
function mayCome(refused: Document): boolean {
  const kind = kindOfWord(refused["code"] ?? refused["status"]);
  return kind === "not_yet" || kind === "not_now";
}
