/** One question and its answer, from whichever server of a store answers.
 *
 * A lost reply is not lost ownership: every question of this client may be asked twice without doing it twice, so it is
 * asked again, unchanged. Another server is asked when one is away or hangs, or answers *not now*; any other answer, yes or
 * no, is the answer. A client stays with one server for a while, and one that failed is asked
 * last for a while. Servers of two stores in one list would give one job to two owners: every answer says which store it
 * is from, and a request says which it is for. A store that was moved names those that it goes on from, and who knows one
 * of them goes on there. */

import { steadyMs } from "./clock.js";
import { DO_NOT_BEGIN, DibsError, FATE_UNKNOWN, InvalidInput, InvalidName, Unavailable, kindOf } from "./errors.js";
import { decode } from "./reply.js";
import type { RawReply, Reply, Verb } from "./reply.js";
import type { Document } from "./types.js";

const AWAY_MS = 15_000; // how long a server that failed is asked last
const STAYS_MS = 300_000; // how long a client stays with one before it picks again
const PATIENCE_MS = 2_000; // how long one is waited for while there is another, beside what it is asked to wait
const SLICE_MS = 4_000; // how long one of several is asked to wait in line: one that hangs must be noticed in time
const SHORT_WAIT_MS = 1_000; // the same for the second one: the first took long enough
const STORE_MS = 600_000; // how long the id of the store is held to without hearing it again
const RETRIES_MAX = 2;
const NAME_BYTES_MAX = 512;
const MISDIRECTED = 421;

/** What a question is about: a job, a session's id, or the prefix of a list. */
export interface Ask {
  verb: Verb;
  name?: string;
  document?: Document;
}

export interface Address {
  url: string;
  /** The path of a Unix socket; undefined for a server that is asked over TCP. */
  socket?: string;
  isLocal: boolean;
}

export interface HttpRequest {
  method: string;
  target: string;
  headers: Record<string, string>;
  body?: string;
  /** Takes the text of a good answer as it comes; the reply has none then. What it has not taken holds up the rest. */
  onPart?: (text: string) => Promise<void>;
}

/** Sends a request. Throws NotSent if it reached nobody; after any other error nobody knows. */
export type Transport = (address: Address, request: HttpRequest, signal: AbortSignal) => Promise<RawReply>;

export class NotSent extends Error {}
/** The browser does not let this page ask the server: what it would have sent was not sent. */
class NotLetIn extends NotSent {}

// Errors of Node's sockets and TLS from before anything was sent. A browser does not say which error it was.
const NEVER_CONNECTED =
  /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT|bad port|ERR_(TLS|SSL)_.*|.*CERT.*|UNABLE_TO_VERIFY.*)$/;

export const overFetch: Transport = async (address, request, signal) => {
  try {
    const { method, headers, body = null, onPart } = request;
    const response = await fetch(address.url + request.target, { method, headers, body, signal, redirect: "manual", cache: "no-store" });
    if (onPart !== undefined && response.ok && response.body !== null) {
      const [reader, decoder] = [response.body.getReader(), new TextDecoder()]; // not every browser can loop over a body
      for (let part = await reader.read(); !part.done; part = await reader.read()) await onPart(decoder.decode(part.value, { stream: true }));
      return { status: response.status, text: "", header: (name) => response.headers.get(name) };
    }
    return { status: response.status, text: await response.text(), header: (name) => response.headers.get(name) };
  } catch (error) {
    const { code = "", message = "" } = ((error as Error).cause ?? {}) as { code?: string; message?: string };
    if (NEVER_CONNECTED.test(code || message)) throw new NotSent(message || code);
    throw error;
  }
};

const EXAMPLES = "Examples: http://127.0.0.1:3427, https://dibs.example.org, unix:///run/dibs.sock.";

/** The servers that a URL names: one, or several with commas between. */
export function addressesOf(url: string): Address[] {
  const found = url.split(",").map((part) => addressOf(part.trim()));
  const urls = found.map((each) => each.url.toLowerCase());
  const twice = found.find((each, at) => urls.indexOf(each.url.toLowerCase()) !== at);
  if (twice) throw new InvalidInput(`${twice.url} is in the list twice. Name each server once.`);
  const plain = found.find((each) => each.url.startsWith("http:") && !each.isLocal);
  if (plain && urls.some((each) => each.startsWith("https:"))) {
    throw new InvalidInput(`${plain.url} would be sent unencrypted what the others are sent over TLS. Use https:// for all of them.`);
  }
  return found;
}

function addressOf(text: string): Address {
  const scheme = /^([a-z][a-z0-9+.-]*):\/\//i.exec(text)?.[1]?.toLowerCase();
  if (scheme === "unix") {
    const socket = text.slice("unix://".length);
    if (!socket.startsWith("/")) throw new InvalidInput("unix:// needs an absolute path, as in unix:///run/dibs.sock.");
    return { url: text, socket, isLocal: true };
  }
  if (scheme !== "http" && scheme !== "https") {
    const kind = scheme === undefined ? "That is no URL" : `${scheme}:// names no server`;
    throw new InvalidInput(`${kind}. This client asks servers; \`dibs serve\` serves any store. ${EXAMPLES}`);
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || url.search || url.hash) throw new InvalidInput(`The URL is not that of a server. ${EXAMPLES}`);
  if (url.username || url.password) throw new InvalidInput("A server's URL carries no user or password. Give the token by itself.");
  const isLocal = /^(localhost|\[::1\]|127(\.\d+){3})$/.test(url.hostname);
  return { url: url.origin + url.pathname.replace(/\/+$/, ""), isLocal };
}

const ROUTES: Partial<Record<Verb, [method: string, path: string]>> = {
  "acquire-any": ["POST", "/locks/acquire-any"], "acquire-all": ["POST", "/locks/acquire-all"], withdraw: ["POST", "/locks/withdraw"],
  inspect: ["GET", "/locks/{}"], list: ["GET", "/locks"], events: ["GET", "/events"],
  "session-open": ["POST", "/sessions"], "session-keep": ["POST", "/sessions/{}/keepalive"],
  "session-show": ["GET", "/sessions/{}"], "session-end": ["DELETE", "/sessions/{}"],
};

function requestOf({ verb, name = "", document = {} }: Ask): Omit<HttpRequest, "headers"> {
  const [method, path] = ROUTES[verb] ?? ["POST", `/locks/{}/${verb}`];
  const target = path.includes("{}") ? path.replace("{}", () => segment(name)) : path;
  if (method === "POST") return { method, target, body: JSON.stringify(document) };
  const terms = Object.entries(document).map(([key, value]) => `${key}=${encodeURIComponent(String(value))}`);
  return { method, target: terms.length > 0 ? `${target}?${terms.join("&")}` : target };
}

/** A name as one segment of a path. What else a name may not be, the server says. */
function segment(name: string): string {
  const bytes = typeof name === "string" ? new TextEncoder().encode(name).length : 0;
  let wrong: string | undefined;
  if (bytes === 0) wrong = "A job name is text, and may not be empty.";
  else if (/\p{Surrogate}/u.test(name)) wrong = "A job name must be valid Unicode.";
  else if (bytes > NAME_BYTES_MAX) wrong = `A job name may have ${NAME_BYTES_MAX} bytes of UTF-8 at most; this one has ${bytes}.`;
  else if (name === "." || name === "..") wrong = "`fetch` takes the names . and .. for folders and cannot send them."; // however they are encoded
  if (wrong !== undefined) throw new InvalidName(wrong, "invalid_lock_name");
  return encodeURIComponent(name);
}

const waitsMs = (asked: Ask): number => Number(asked.document?.["wait_seconds"] ?? 0) * 1000;

/** The same, waiting in line for no longer than that. The place is kept, and asked for again. */
function within(asked: Ask, mostMs: number): Ask {
  return waitsMs(asked) <= mostMs ? asked : { ...asked, document: { ...asked.document, wait_seconds: mostMs / 1000 } };
}

/** The origin of the page that this runs in, if it is another one than the server's. */
function foreignPage(address: Address): string | undefined {
  const { origin } = (globalThis as { location?: { origin?: string } }).location ?? {};
  return origin === undefined || address.url === origin || address.url.startsWith(`${origin}/`) ? undefined : origin;
}

export class Servers {
  readonly isOne: boolean;
  #first: Address | undefined;
  #pickedMs = 0;
  #away = new Map<Address, number>();
  #spoke = new Set<Address>(); // those that have answered
  #store: { id: string; movedFrom: string[]; saidBy: string; atMs: number } | undefined;

  /** `headers` gives those of every request: a token may be replaced meanwhile. */
  constructor(
    readonly addresses: readonly Address[],
    private readonly transport: Transport,
    private readonly headers: () => Readonly<Record<string, string>>,
  ) {
    this.isOne = addresses.length === 1;
  }

  /** The reply, within `timeoutMs` beside what is waited in line. Nobody's answer is a reply, too. Throws the reason of
   * `signal`, and InvalidInput for what cannot be sent. */
  async ask(asked: Ask, timeoutMs: number, signal?: AbortSignal): Promise<Reply> {
    signal?.throwIfAborted();
    if (!this.isOne) asked = within(asked, SLICE_MS);
    const untilMs = steadyMs() + timeoutMs + waitsMs(asked);
    const waiting = this.#order(steadyMs());
    const troubles: string[] = [];
    let [repeats, unsure, sent] = [RETRIES_MAX, false, false];
    let last: Reply | undefined;
    while (waiting.length > 0) {
      const address = waiting.shift()!;
      let leftMs = Math.max(1, untilMs - steadyMs());
      if (waiting.length > 0) {
        const spareMs = Math.max(0, leftMs - waitsMs(asked)) / (waiting.length + 1);
        leftMs = Math.max(1, Math.min(leftMs, waitsMs(asked) + Math.min(PATIENCE_MS, spareMs)));
      }
      const timer = AbortSignal.timeout(Math.ceil(leftMs));
      try {
        const raw = await this.transport(address, this.#request(asked), signal ? AbortSignal.any([signal, timer]) : timer);
        sent = true;
        this.#spoke.add(address);
        const reply = this.#heard(address, raw) ? decode(asked.verb, raw, address.url) : movedAway(address);
        if (kindOf(reply) !== "not_now") {
          this.#answered(address);
          return reply;
        }
        last = reply;
        // One that failed in a way it should not does not know, either.
        unsure ||= reply.body["code"] === "internal_error" || String(reply.body["details"]).includes(FATE_UNKNOWN);
      } catch (thrown) {
        signal?.throwIfAborted();
        const error = timer.aborted ? thrown : this.#explained(thrown, address);
        if (error instanceof DibsError && !(error instanceof Unavailable)) return failure(error, true); // not dibs, or of another store
        sent ||= !(error instanceof NotSent);
        unsure ||= !(error instanceof NotSent);
        if (error instanceof DibsError) troubles.push(error.message.replace(DO_NOT_BEGIN, "").trim());
        else if (error instanceof NotLetIn) troubles.push(error.message);
        else if (error instanceof NotSent) troubles.push(`No server answers at ${address.url} (${error.message}).`);
        else if (timer.aborted) troubles.push(`${address.url} did not answer within ${Math.round(leftMs) / 1000} s.`);
        else {
          troubles.push(`${address.url} closed the connection without an answer.`);
          if (repeats-- > 0) waiting.push(address); // the others first
        }
      }
      this.#away.set(address, steadyMs() + AWAY_MS);
      if (steadyMs() >= untilMs) break;
      asked = within(asked, SHORT_WAIT_MS);
    }
    const isRead = (ROUTES[asked.verb]?.[0] ?? "POST") === "GET";
    const fate = unsure && !isRead ? ` ${FATE_UNKNOWN}` : "";
    if (last !== undefined) {
      const details = String(last.body["details"]);
      return { ...last, body: { ...last.body, details: details.includes(FATE_UNKNOWN) ? details : details + fate } };
    }
    return failure(new Unavailable(`${[...new Set(troubles)].join(" ")} ${DO_NOT_BEGIN}${fate}`), sent);
  }

  /** Hand on a stream of the server that is asked first, until it ends. Throws if it breaks, or is none. */
  async stream(asked: Ask, onPart: (text: string) => Promise<void>, signal: AbortSignal): Promise<void> {
    const request = this.#request(asked);
    request.headers["Accept"] = "text/event-stream";
    await this.transport(this.#order(steadyMs())[0]!, { ...request, onPart }, signal);
  }

  /** A browser does not say whether a server let its page in, only that nothing came back. Until the server has answered
   * once, that is the likely reason; then the browser has asked in advance, and the request itself was not sent. */
  #explained(error: unknown, address: Address): unknown {
    const origin = foreignPage(address);
    if (origin === undefined || this.#spoke.has(address) || error instanceof DibsError || error instanceof NotSent) return error;
    return new NotLetIn(
      `${address.url} gave no answer that this page may read. Is it up, and does it let pages of ${origin} in? ` +
      `\`dibs serve --cors-origin ${origin}\` does.`,
    );
  }

  #request(asked: Ask): HttpRequest {
    const request = requestOf(asked);
    const headers: Record<string, string> = { ...this.headers() };
    // A type that other servers refuse before they do anything: OctoStore has the same routes and other rules.
    if (request.body !== undefined) headers["Content-Type"] = "application/x.dibs";
    if (!this.isOne) {
      headers["X-Dibs-Servers"] = String(this.addresses.length);
      const store = this.#storeId();
      if (store !== undefined) headers["X-Dibs-Store"] = store;
    }
    return { ...request, headers };
  }

  #order(nowMs: number): Address[] {
    if (this.isOne) return [...this.addresses];
    if (this.#first === undefined || nowMs - this.#pickedMs >= STAYS_MS) {
      this.#first = this.addresses[Math.floor(Math.random() * this.addresses.length)]!;
      this.#pickedMs = nowMs;
    }
    const at = this.addresses.indexOf(this.#first);
    const awayMs = (each: Address) => Math.max(0, (this.#away.get(each) ?? 0) - nowMs);
    return [...this.addresses.slice(at), ...this.addresses.slice(0, at)].sort((one, other) => awayMs(one) - awayMs(other));
  }

  #answered(address: Address): void {
    if (address !== this.#first) [this.#first, this.#pickedMs] = [address, steadyMs()];
    this.#away.delete(address);
  }

  #storeId(): string | undefined {
    return this.#store !== undefined && steadyMs() - this.#store.atMs < STORE_MS ? this.#store.id : undefined;
  }

  /** Note the store that an answer is from. False: nothing was done, because that store was moved to the one that is
   * known. Throws InvalidInput when it has nothing to do with the one of the others. */
  #heard(address: Address, raw: RawReply): boolean {
    if (this.isOne || raw.status >= 500) return true; // who cannot answer did nothing, and may not know what was moved there
    const [known, id] = [this.#storeId(), raw.header("x-dibs-store")];
    if (id === null && raw.status !== MISDIRECTED) return true;
    const movedFrom = (raw.header("x-dibs-moved-from") ?? "").split(",").filter((name) => name !== "");
    if (id !== null && (known === undefined || known === id || movedFrom.includes(known))) {
      const before = id === known ? this.#store! : { saidBy: address.url, movedFrom: [] };
      // One that names fewer has not heard of it yet.
      const longest = movedFrom.length > before.movedFrom.length ? movedFrom : before.movedFrom;
      this.#store = { id, movedFrom: longest, saidBy: before.saidBy, atMs: steadyMs() };
    } else if (known !== undefined && (id === null || !this.#store!.movedFrom.includes(id))) {
      throw new InvalidInput(
        `${address.url} serves another store than ${this.#store!.saidBy}, so nothing was done there. Name servers of one ` +
        `store only. If the store was replaced, this ends within ${STORE_MS / 60_000} minutes.`,
      );
    }
    return known === undefined || raw.status !== MISDIRECTED;
  }
}

/** What a server whose store was moved means by its refusal: not here, and not now. */
function movedAway(address: Address): Reply {
  const details = `${address.url} serves a store that was moved. Nothing was done there; the servers of the new one do it.`;
  return { status: 503, body: { code: "upstream_unavailable", details }, sent: true };
}

export function failure(error: DibsError, sent: boolean): Reply {
  return { status: 503, body: { code: error.code, details: error.message }, error, sent };
}
