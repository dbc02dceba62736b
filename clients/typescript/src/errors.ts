/** Errors, by the codes of dibs. A test holds the codes, classes and exit codes to the table of the server. */

import type { Document, Error as ErrorAnswer } from "./types.js";

/** What a request without an answer says: it may have been carried out or not. */
export const FATE_UNKNOWN = "Whether it was carried out is not known.";
export const DO_NOT_BEGIN = "Do not begin the work; try again later.";

/** What `dibs run` and `dibs-lease run` exit with. */
export const EXIT_CODES: Readonly<Record<string, number>> = {
  held: 1, queued: 1, conflict: 2, not_found: 2, session_expired: 2, lease_not_current: 2, deadlock: 3, done: 4,
  superseded: 5, number_taken: 1, invalid_input: 64, invalid_ttl: 64, invalid_lock_name: 64, upstream_unavailable: 69, draining: 69,
  internal_error: 70, delayed: 75, parked: 75, closed: 75, rate_limited: 75, capacity_exceeded: 75, forbidden: 77,
  lock_limit_exceeded: 77, authentication_required: 77, authentication_failed: 77,
};

/** The five kinds of no. What to do after one follows from its kind, never from its code. */
export type Kind = "not_yet" | "not_any_more" | "never_like_this" | "not_now" | "not_you";
export const KINDS: Readonly<Record<string, Kind>> = {
  held: "not_yet", queued: "not_yet", delayed: "not_yet", closed: "not_yet",
  done: "not_any_more", parked: "not_any_more", superseded: "not_any_more", number_taken: "not_any_more", not_found: "not_any_more",
  session_expired: "not_any_more", lease_not_current: "not_any_more",
  invalid_input: "never_like_this", invalid_ttl: "never_like_this", invalid_lock_name: "never_like_this",
  conflict: "never_like_this", deadlock: "never_like_this",
  upstream_unavailable: "not_now", draining: "not_now", capacity_exceeded: "not_now", rate_limited: "not_now",
  internal_error: "not_now",
  forbidden: "not_you", lock_limit_exceeded: "not_you", authentication_required: "not_you", authentication_failed: "not_you",
};
const KIND_OF_STATUS: Readonly<Record<number, Kind>> = {
  401: "not_you", 403: "not_you", 404: "not_any_more", 410: "not_any_more", 408: "not_now", 425: "not_now", 429: "not_now",
};

/** The kind of a word, where no HTTP status says more; undefined for a yes, or a word of a newer server. */
export const kindOfWord = (word: unknown): Kind | undefined => own(KINDS, String(word));

/** The kind of a no; undefined for a yes. A code of a newer server has the kind of its HTTP status. */
export function kindOf({ status, body }: { status: number; body: Document }): Kind | undefined {
  const kind = kindOfWord(body["code"] ?? body["status"]);
  if (kind !== undefined || status < 400) return kind;
  return status >= 500 ? "not_now" : (KIND_OF_STATUS[status] ?? "never_like_this");
}

/** The base of all. `code` is the stable word for programs, `message` the sentence for people. */
export class DibsError extends Error {
  constructor(message: string, readonly code = "internal_error") {
    super(message);
  }

  get exitCode(): number {
    return own(EXIT_CODES, this.code) ?? EXIT_CODES["internal_error"]!;
  }
}

/** An argument that cannot be. Nothing was changed; a repeat fails again. */
export class InvalidInput extends DibsError {
  constructor(message: string, code = "invalid_input") {
    super(message, code);
  }
}
export class InvalidTtl extends InvalidInput {}
export class InvalidName extends InvalidInput {}

/** Your token does not permit it, or you hold as many jobs as you may. */
export class NotAllowed extends DibsError {}
export class AuthenticationRequired extends NotAllowed {}
export class AuthenticationFailed extends NotAllowed {}

/** No server can be reached, or it is busy. Do not begin the work. A claim that you have goes on until its deadline. */
export class Unavailable extends DibsError {
  constructor(message: string, code = "upstream_unavailable") {
    super(message, code);
  }
}

/** What answered is not dibs, or another version of it. */
export class BadReply extends DibsError {
  constructor(message: string) {
    super(message, "upstream_unavailable");
  }
}

/** The other side said no for a reason without a class of its own. */
export class RequestRefused extends DibsError {}

/** The claim did not get the job. `answer` is the document that says why; of several jobs, `refusals` has one each. */
export class NotClaimed extends DibsError {
  readonly refusals: readonly NotClaimed[];

  constructor(readonly answer: Document) {
    super(sentence(answer), String(answer["code"] ?? answer["status"]));
    this.refusals = rows(answer["refused"]).map(notClaimed);
  }

  get job(): string | undefined {
    return this.answer["name"] as string | undefined;
  }

  get owner(): string | undefined {
    return (this.answer["owner"] ?? undefined) as string | undefined;
  }

  /** When asking again makes sense, if that is known. */
  get retryAfterMs(): number | undefined {
    return this.answer["retry_after_ms"] as number | undefined;
  }
}
/** Somebody else has the job. */
export class JobHeld extends NotClaimed {}
/** Of several jobs none was claimed, and waiting may help. */
export class NoneFree extends JobHeld {}
/** It was done already: do not do it again. */
export class JobDone extends NotClaimed {
  get result(): string | undefined {
    return (this.answer["result"] ?? undefined) as string | undefined;
  }
}
/** It rests after a loss or a failure. */
export class JobResting extends NotClaimed {}
/** It failed too often; an operator frees it. */
export class JobParked extends NotClaimed {}
/** An operator has closed it for a while, whoever has it. Try again later, or wait in line. */
export class JobClosed extends NotClaimed {}
/** A newer claim of the same group (`replaces`) waits instead: this work is out of date. */
export class JobSuperseded extends NotClaimed {}
/** Waiting would never end: its owner waits for what you hold. */
export class WouldDeadlock extends NotClaimed {}

/** It was yours and is not any more, or may not be: stop the work, and write nothing more.
 *
 * If the block of `await using` threw, too, JavaScript throws a SuppressedError, which has the loss as its `error`. It is
 * an instance of this class all the same: whoever asks must stop. */
export class LeaseLost extends DibsError {
  static override [Symbol.hasInstance](value: unknown): boolean {
    const isOne = (each: unknown) => typeof each === "object" && each !== null && LeaseLost.prototype.isPrototypeOf(each);
    return isOne(value) || (value instanceof Error && "suppressed" in value && isOne((value as { error?: unknown }).error));
  }

  constructor(readonly job: string, readonly fencingToken: number, readonly why: string) {
    const order = why.includes("Stop the work.") ? why : `${why} Stop the work.`;
    super(`${job} is not ours any more, or may not be: ${order}`, "lease_not_current");
  }
}

/** Events after number `after` are no longer on record: look at the present state, then go on. `oldest` is the first that
 * is, or that will be. */
export class EventsGone extends DibsError {
  constructor(readonly after: number, readonly oldest: number) {
    super(
      `Events between number ${after} and ${oldest} are no longer on record. Look at the present state, then go on: the next ` +
      `event is number ${oldest} or later.`,
      "not_found",
    );
  }
}

// Written out, because minifiers rename classes.
const NAMES = {
  DibsError, InvalidInput, InvalidTtl, InvalidName, NotAllowed, AuthenticationRequired, AuthenticationFailed, Unavailable,
  BadReply, RequestRefused, NotClaimed, JobHeld, NoneFree, JobDone, JobResting, JobParked, JobClosed, JobSuperseded,
  WouldDeadlock, LeaseLost, EventsGone,
};
for (const [name, { prototype }] of Object.entries(NAMES)) {
  Object.defineProperty(prototype, "name", { value: name, configurable: true, writable: true });
}

type ErrorClass = new (message: string, code: string) => DibsError;

export const CLASSES: Readonly<Record<string, ErrorClass>> = {
  invalid_input: InvalidInput, invalid_ttl: InvalidTtl, invalid_lock_name: InvalidName,
  authentication_required: AuthenticationRequired, authentication_failed: AuthenticationFailed,
  forbidden: NotAllowed,
};
/** For a code without a class of its own. */
export const CLASS_OF_KIND: Partial<Record<Kind, ErrorClass>> = { not_now: Unavailable, not_you: NotAllowed };

export const REFUSALS: Readonly<Record<string, new (answer: Document) => NotClaimed>> = {
  held: JobHeld, queued: JobHeld, done: JobDone, delayed: JobResting, parked: JobParked, deadlock: WouldDeadlock,
  closed: JobClosed, superseded: JobSuperseded,
};

export function notClaimed(answer: Document): NotClaimed {
  const word = String(answer["code"] ?? answer["status"]);
  const kind = answer["refused"] !== undefined && word === "held" ? NoneFree : (own(REFUSALS, word) ?? NotClaimed);
  return new kind(answer);
}

/** The error for a document that says no. */
export function refusalOf(body: Document, status: number): DibsError {
  if (own(REFUSALS, String(body["status"])) !== undefined || body["code"] === "deadlock") return notClaimed(body);
  const { code = "internal_error", details, error } = body as Partial<ErrorAnswer>;
  const kind = kindOf({ status, body });
  const known = own(CLASSES, code) ?? (kind && CLASS_OF_KIND[kind]) ?? RequestRefused;
  return new known(details ?? error ?? `The answer was ${status}.`, code);
}

/** What a table has under a word of others, which may be `constructor`. */
function own<T>(table: Readonly<Record<string, T>>, word: string): T | undefined {
  return Object.hasOwn(table, word) ? table[word] : undefined;
}

function rows(value: unknown): Document[] {
  return Array.isArray(value) ? (value as Document[]) : [];
}

const seconds = (ms: unknown) => `${Math.max(1, Math.round(Number(ms ?? 0) / 1000))} s`;

/** Why a job was not granted, for people. */
function sentence(answer: Document): string {
  const { name, owner, status, details, refused } = answer as Record<string, string | undefined>;
  if (refused !== undefined) {
    // What waits for a person comes first: no time changes it.
    const ordered = [...rows(answer["refused"])].sort((one, other) => Number(other["status"] === "parked") - Number(one["status"] === "parked"));
    const each = ordered.map((row) => `${row["name"]} (${row["owner"] ?? row["status"] ?? row["code"]})`);
    return `Not available: ${each.slice(0, 5).join(", ")}${each.length > 5 ? ` and ${each.length - 5} more` : ""}.`;
  }
  const later = seconds(answer["retry_after_ms"]);
  switch (status) {
    case "held":
    case "queued":
      return owner ? `${owner} has ${name} for another ${seconds(answer["remaining_ms"])}.` : `Others in line for ${name} come first.`;
    case "done":
      return `${name} was done by ${owner}. It counts as done for another ${later}.`;
    case "delayed":
      return `${name} rests after a failure or a loss. It can be claimed in ${later}.`;
    case "parked":
      return `${name} is parked: ${answer["failures"]} owners in a row failed at it or were lost. \`dibs free\` frees it.`;
    case "closed": {
      const { by, reason } = answer["closed"] as Record<string, string>;
      return `${by} closed ${name} for another ${later}: ${reason}`;
    }
    case "superseded":
      return `${answer["by"] ?? "Another claim"} asked for ${name} later, and waits for the group ${answer["group"]} instead.`;
    default:
      return details ?? `${name} was not granted (${status}).`;
  }
}

/** How long a text may be: in bytes of UTF-8, or in characters. */
export const BYTES_MAX: Readonly<Record<string, number>> = { checkpoint: 4096, result: 4096 };
export const CHARS_MAX: Readonly<Record<string, number>> = { metadata: 1024, owner: 256, to_owner: 256 };

/** Throw InvalidInput for a text that no server would take, before it is noted or sent. */
export function checkTexts(document: Document): void {
  for (const [field, value] of Object.entries(document)) {
    const [bytes, chars] = [own(BYTES_MAX, field), own(CHARS_MAX, field)];
    if (bytes === undefined && chars === undefined) continue;
    if (typeof value !== "string" || /\p{Surrogate}/u.test(value)) throw new InvalidInput(`${field} must be text.`);
    const size = bytes === undefined ? [...value].length : new TextEncoder().encode(value).length;
    const [most, unit] = bytes === undefined ? [chars!, "characters"] : [bytes, "bytes"];
    if (size > most) throw new InvalidInput(`${field} may have ${most} ${unit} at most; this one has ${size}.`);
  }
}
