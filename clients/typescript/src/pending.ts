/** One claim on its way: from the names of its jobs to its leases, perhaps with a place in line. A long wait is split
 * into slices; the first is short, so that the place is known early and can be given up. Whoever gives up leaves
 * nothing behind, not even a lease whose reply was lost. */

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
type Got = Array<[name: string, leaseId: string]>;
export type Asking = (asked: Ask, signal?: AbortSignal) => Promise<Reply>;

export class PendingClaim {
  /** When the last answered request was sent. */
  sentMs = 0;
  readonly names: readonly string[];
  readonly #verb: ClaimVerb;
  readonly #name: string;
  #document: Document;
  #lineName: string;
  #ticket: string | undefined;
  #asked = false;
  #waited = false;
  #heard = false; // somebody has answered, or an answer was lost: the address is right
  #rest: Got = []; // leases whose release was not answered

  constructor(verb: ClaimVerb, names: readonly string[], document: Document) {
    this.#verb = verb;
    this.names = names;
    this.#name = this.#lineName = verb === "acquire" ? names[0]! : "";
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
    const left = await this.#leave(ask, reply);
    return this.#cameAndWent(left) ? this.#once(ask, 0, signal) : left;
  }

  async #once(ask: Asking, waitMs: number, signal?: AbortSignal): Promise<Reply> {
    const failed = await this.#letGoOfRest(ask, signal);
    if (failed !== undefined) return failed;
    const document = { ...this.#document };
    if (this.#ticket !== undefined) document["ticket"] = this.#ticket;
    if (waitMs > 0) {
      document["wait_seconds"] = Math.ceil(waitMs) / 1000;
      this.#waited = true;
    }
    const asked = this.#asked;
    this.#asked = true;
    const sentMs = steadyMs();
    const reply = await ask({ verb: this.#verb, name: this.#name, document }, signal);
    this.sentMs = sentMs;
    if (!reply.sent) this.#asked = asked;
    this.#heard ||= reply.error === undefined || String(reply.body["details"]).includes(FATE_UNKNOWN);
    this.#notePlace(reply);
    if (reply.body["rest"] === undefined) return reply;
    this.#rest = leasesIn(reply);
    const { rest: _, ...body } = reply.body;
    return (await this.#letGoOfRest(ask, signal)) ?? { ...reply, body };
  }

  /** Release what an answer that we never read had given, according to a refusal. Returns the reply that failed: some may
   * be ours. Until this is answered nothing is asked again: a late release would take what the next answer gives. */
  async #letGoOfRest(ask: Asking, signal?: AbortSignal): Promise<Reply | undefined> {
    const failed = await letGo(ask, this.#rest, signal);
    if (failed === undefined) this.#rest = [];
    return failed;
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
    this.#document = { ...this.#document, request_key: crypto.randomUUID() };
    this.#ticket = undefined;
    return true;
  }

  /** The wait is over: give up the place. If the job was handed over at this moment, it is ours after all. */
  async #leave(ask: Asking, reply: Reply): Promise<Reply> {
    for (let tries = 0; tries < 2; tries++) {
      const left = await ask({ verb: "leave", name: this.#lineName, document: { ticket: this.#ticket } });
      if (left.status >= 300 || left.body["left"] === true) break; // a place that is not given up ends by silence
      reply = await this.#once(ask, 0);
      if (statusOf(reply) !== "queued") return reply;
    }
    return reply;
  }

  /** Leave the line, and release what was granted, even if the reply was lost. False if that failed: then the TTL ends
   * it, or another try does. */
  async giveUp(ask: Asking): Promise<boolean> {
    const untilMs = steadyMs() + GIVING_UP_MS;
    for (;;) {
      const failed = await this.#leftOver(ask);
      if (failed === undefined) {
        [this.#asked, this.#ticket] = [false, undefined];
        return true;
      }
      if (!failed.sent || steadyMs() >= untilMs) return false;
      await pause(GIVING_UP_PAUSE_MS);
    }
  }

  /** Try once to give everything up. Returns the reply that failed. */
  async #leftOver(ask: Asking): Promise<Reply | undefined> {
    if (!this.#asked && this.#ticket === undefined) return undefined;
    const failed = await this.#letGoOfRest(ask);
    if (failed !== undefined) return failed;
    let got: Got = [];
    if (this.#ticket === undefined) {
      // The same key gives the place or the lease of the lost reply. If there was none, this makes one, for a second.
      const { ttl_ms: ttl, ...document } = this.#document;
      if (ttl !== undefined) document["ttl_seconds"] = 1;
      if (this.#waited) document["wait_seconds"] = 1; // without a wait the reply has no place
      const reply = await ask({ verb: this.#verb, name: this.#name, document });
      if (kindOf(reply) === "not_now") return reply;
      this.#notePlace(reply);
      got = leasesIn(reply);
    }
    if (this.#ticket !== undefined) {
      const left = await ask({ verb: "leave", name: this.#lineName, document: { ticket: this.#ticket } });
      if (kindOf(left) === "not_now") return left;
      const secret = this.#ticket.split(".")[2] ?? ""; // it became the lease id when the job was handed over
      if (left.body["left"] === false) got = this.names.map((name) => [name, secret]);
    }
    return letGo(ask, got);
  }

  #notePlace(reply: Reply): void {
    if (statusOf(reply) === "queued") {
      this.#ticket = String(reply.body["ticket"]);
      this.#lineName = String(reply.body["name"]);
    }
  }
}

/** Name and lease id of each lease that this claim got, also of those that a refusal names. */
function leasesIn(reply: Reply): Got {
  const granted = statusOf(reply) === "acquired" ? (reply.body["leases"] ?? [reply.body]) : (reply.body["rest"] ?? []);
  const found = granted as Document[];
  const ours = found.filter((each) => each["held_before"] !== true);
  return ours.map((each) => [String(each["name"]), String(each["lease_id"])]);
}

/** Release them, without a verdict on the work. What another process of the session was told of meanwhile stays. Returns
 * the reply that failed. */
async function letGo(ask: Asking, leases: Got, signal?: AbortSignal): Promise<Reply | undefined> {
  for (const [name, leaseId] of leases) {
    const document = { lease_id: leaseId, uncounted: true, unused: true };
    const released = await ask({ verb: "release", name, document }, signal);
    if (kindOf(released) === "not_now") return released;
  }
  return undefined;
}

/** Tell whether the refusal of one job of several may change with time. */
function mayCome(refused: Document): boolean {
  const kind = kindOfWord(refused["code"] ?? refused["status"]);
  return kind === "not_yet" || kind === "not_now";
}
