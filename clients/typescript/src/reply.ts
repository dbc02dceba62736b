/** A reply, and whether it is from dibs. One that lacks a field, or has another type in it, is refused here, so that no
 * program gets a wrong value. */

import { BadReply, DibsError, DO_NOT_BEGIN, Unavailable, kindOf, refusalOf } from "./errors.js";
import { REQUIRED } from "./types.js";
import type { Acquired, Document } from "./types.js";

/** `error` is set when nobody answered, or not as dibs does; `sent` is false if the request surely reached nobody. */
export interface Reply {
  status: number;
  body: Document;
  error?: DibsError;
  sent: boolean;
}

export interface RawReply {
  status: number;
  text: string;
  header(name: string): string | null;
}

type Answer = keyof typeof REQUIRED;
export type Verb = "acquire" | "acquire-any" | "acquire-all" | "withdraw" | "renew" | "release" | "transfer" | "inspect" |
  "list" | "events" | "session-open" | "session-keep" | "session-show" | "session-end";

const REFUSED_STATES = ["delayed", "parked", "superseded", "closed"]; // their HTTP status is that of an error
const CLAIM_STATES = ["acquired", "held", "queued", "done", ...REFUSED_STATES];
/** Which document a verb is answered with; `undefined`: none, or one that nobody reads. */
const ANSWERS: Readonly<Record<Verb, Answer | "claim" | undefined>> = {
  acquire: "claim", "acquire-any": "claim", "acquire-all": "claim", withdraw: "withdraw", renew: "renew", release: undefined,
  transfer: "transferred", inspect: "job", list: "list", events: "events", "session-open": "session", "session-keep": "session",
  "session-show": "session", "session-end": undefined,
};
/** Of other verbs, the status that says no although it is no error. */
export const NO_STATES: Partial<Record<Verb, Answer>> = { transfer: "held" };
const LEASE = { name: "string", lease_id: "string", fencing_token: "number", remaining_ms: "number" };
const NOTHING_HERE = "There is nothing at this address.";

export const statusOf = (reply: Reply): unknown => reply.body["status"];

/** The lease or the session of a request has ended. A job that is done or parked is no error, and nothing about them. */
export const isOver = (reply: Reply): boolean => "code" in reply.body && kindOf(reply) === "not_any_more";

/** The reply to `verb`, from the server at `url`. Throws BadReply, and Unavailable for a proxy without its server. */
export function decode(verb: Verb, raw: RawReply, url: string): Reply {
  if (raw.status < 200) throw notDibs(raw, url); // a browser says 0 for a redirect
  const body = documentOf(raw, url);
  const isClaim = ANSWERS[verb] === "claim";
  const refused = isClaim && REFUSED_STATES.includes(String(body["status"]));
  if (raw.status < 300 || refused) {
    if (isAnswer(verb, body)) return { status: raw.status, body, sent: true };
    throw new BadReply(`${url} answered with JSON that is not from dibs, or from another version of it.`);
  }
  if (raw.status === 415) throw new BadReply(`${url} is not a dibs server; nothing was done there. Is the address right?`);
  if (typeof body["code"] !== "string") throw notDibs(raw, url);
  if (raw.status === 404 && String(body["details"]).startsWith(NOTHING_HERE)) {
    throw new BadReply(`${url} answers, but there is nothing. Leave out a path, or update dibs there.`);
  }
  const after = raw.header("retry-after") ?? "";
  if (/^\d{1,6}$/.test(after)) body["retry_after_ms"] ??= Number(after) * 1000;
  return { status: raw.status, body, sent: true };
}

function isAnswer(verb: Verb, body: Document): boolean {
  const wanted = saysNo(verb, body) ? NO_STATES[verb] : ANSWERS[verb];
  if (wanted === undefined) return true;
  if (wanted !== "claim") {
    return has(body, REQUIRED[wanted]) && (wanted !== "list" || (body["locks"] as Document[]).every((row) => has(row, REQUIRED.job)));
  }
  const status = String(body["status"]);
  if (!CLAIM_STATES.includes(status)) return false;
  if (body["refused"] !== undefined) return has(body, REQUIRED.refused);
  if (status === "acquired") {
    const leases = (body["leases"] ?? [body]) as Document[];
    return has(body, REQUIRED.acquired) && Array.isArray(leases) && leases.every((each) => has(each, LEASE));
  }
  return has(body, REQUIRED[status as Answer]);
}

function has(body: Document, required: Readonly<Record<string, string>>): boolean {
  if (body === null || typeof body !== "object") return false;
  return Object.entries(required).every(([field, kind]) => {
    const value = body[field];
    if (value === null) return kind.endsWith("?");
    const found = Array.isArray(value) ? "array" : typeof value;
    return found === kind.replace("?", "") && (found !== "number" || (Number.isInteger(value) && Number(value) >= 0));
  });
}

function documentOf(raw: RawReply, url: string): Document {
  if (raw.text === "" && raw.status < 300) return {};
  try {
    const found: unknown = JSON.parse(raw.text);
    if (found === null) return {};
    if (typeof found === "object" && !Array.isArray(found)) return found as Document;
  } catch {
    // told below
  }
  throw notDibs(raw, url);
}

function notDibs(raw: RawReply, url: string): DibsError {
  const where = raw.header("location")?.slice(0, 200);
  if (raw.status < 400 && where) return new BadReply(`${url} redirects to ${where}. Redirects are not followed; ask there.`);
  if ([502, 503, 504].includes(raw.status)) {
    return new Unavailable(`Something before ${url} answered ${raw.status}: the server behind it is not up. ${DO_NOT_BEGIN}`);
  }
  return new BadReply(`${url} answered ${raw.status}, but not as dibs does. ${DO_NOT_BEGIN}`);
}

const saysNo = (verb: Verb | undefined, body: Document): boolean =>
  verb !== undefined && NO_STATES[verb] !== undefined && body["status"] === NO_STATES[verb];

/** The document of a reply that says yes. `verb`: what was asked, if an answer to it may say no. Throws what any other
 * says. */
export function yes<T>(reply: Reply, verb?: Verb): T {
  if (reply.error !== undefined) throw reply.error;
  if (reply.status < 300 && !saysNo(verb, reply.body)) return reply.body as T;
  throw refusalOf(reply.body, reply.status);
}

/** The leases of a claim. Throws the refusal. */
export function granted(reply: Reply): Acquired[] {
  if (reply.error !== undefined || statusOf(reply) !== "acquired") throw reply.error ?? refusalOf(reply.body, reply.status);
  const body = reply.body as unknown as Acquired;
  return (body.leases ?? [body]).map((each) => ({ ...each, owner: body.owner }));
}
