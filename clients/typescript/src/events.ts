/** What happens to jobs, as it happens: pages of events, and a stream of those to come.
 *
 * A page comes first. It also tells of gaps and failures, and is asked for at whichever server answers. When a page is
 * empty, everything up to its position was handed out, and a stream brings what follows. When the stream ends, for
 * whatever reason, a page is next. So each event comes once, in the order of the store's numbers. */

import { pause, steadyMs } from "./clock.js";
import { EventsGone, InvalidInput, kindOf } from "./errors.js";
import { yes } from "./reply.js";
import type { Reply } from "./reply.js";
import type { Ask } from "./servers.js";
import type { Document, Event as JobEvent } from "./types.js";

const RETRY_MS = 1_000;
const SILENCE_MS = 40_000; // a stream says something every 15 seconds
const LINE_CHARS_MAX = 1_048_576;

export interface EventsOptions {
  /** Only jobs whose name begins with this. */
  prefix?: string | undefined;
  /** Only this job. */
  name?: string | undefined;
  /** Continue after the event with this `seq`; 0 begins with the oldest on record. Without it and `sinceMs`: from now on. */
  after?: number | undefined;
  /** Begin with the events of that many last milliseconds. */
  sinceMs?: number | undefined;
  /** Throw Unavailable after this long without an answer. Without it, a reader waits for its servers for ever. */
  patienceMs?: number | undefined;
  /** Ends the reading, and the loop throws its reason. `break` ends it, too. */
  signal?: AbortSignal | undefined;
}

/** How to ask for a page, and for a stream, whose text is handed on as it comes. */
export interface EventsWay {
  ask(asked: Ask, signal: AbortSignal): Promise<Reply>;
  stream(asked: Ask, onPart: (text: string) => Promise<void>, signal: AbortSignal): Promise<void>;
}

/** `for await (const event of dibs.events({ prefix: "issue-" }))`. It never ends by itself. After an error another loop
 * over the same object continues after the last event that was handed out. One loop at a time. */
export class Events implements AsyncIterable<JobEvent> {
  #position: number | undefined;
  #isBegun = false; // an answer has come: what fails from now on may pass
  #awayMs: number | undefined;

  constructor(private readonly way: EventsWay, private readonly options: EventsOptions) {
    const { prefix, name, after, sinceMs } = options;
    if (prefix && name !== undefined) throw new InvalidInput("Give name or prefix, not both.");
    if (after !== undefined && sinceMs !== undefined) throw new InvalidInput("Give after or sinceMs, not both.");
    if (after !== undefined && !(Number.isSafeInteger(after) && after >= 0)) {
      throw new InvalidInput("after is the seq of an event: a whole number, 0 or more.");
    }
    if (sinceMs !== undefined && !(sinceMs > 0 && sinceMs < Infinity)) {
      throw new InvalidInput("sinceMs is a number of milliseconds, more than 0.");
    }
    this.#position = after;
  }

  /** Everything up to this `seq` was handed out: the `after` of a reader that continues here. Undefined before the first
   * answer. */
  get position(): number | undefined {
    return this.#position;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<JobEvent, never, void> {
    const leaving = new AbortController();
    const given = this.options.signal;
    const signal = given === undefined ? leaving.signal : AbortSignal.any([given, leaving.signal]);
    let streamedFrom: number | undefined;
    try {
      for (;;) {
        signal.throwIfAborted();
        const beginsNow = this.#position === undefined && this.options.sinceMs === undefined;
        const reply = await this.way.ask(this.#page(beginsNow), signal);
        if (!this.#isAnswer(reply)) {
          await pause(RETRY_MS, signal);
          continue;
        }
        const page = reply.body as unknown as { events: JobEvent[]; next_after: number; gap: Document | null };
        if (page.gap !== null && !beginsNow) {
          const [after, oldest] = [Number(page.gap["after"]), Number(page.gap["oldest"])];
          this.#position = oldest - 1;
          throw new EventsGone(after, oldest);
        }
        const events = beginsNow ? [] : page.events; // one is asked for only to learn where now is
        for (const event of events) {
          this.#position = event.seq;
          yield event;
        }
        this.#position = page.next_after;
        if (events.length > 0) continue;
        // A server that begins no stream, or ends it at once, is asked for pages instead.
        if (streamedFrom === this.#position) await pause(RETRY_MS, signal);
        streamedFrom = this.#position;
        yield* this.#streamed(signal);
      }
    } finally {
      leaving.abort();
    }
  }

  /** Throws what a reply says, unless it passes and the caller has patience. */
  #isAnswer(reply: Reply): boolean {
    if (reply.status < 300) {
      [this.#isBegun, this.#awayMs] = [true, undefined];
      return true;
    }
    this.#awayMs ??= steadyMs();
    const isPatient = steadyMs() - this.#awayMs < (this.options.patienceMs ?? Infinity);
    if (this.#isBegun && kindOf(reply) === "not_now" && isPatient) return false;
    this.#awayMs = undefined;
    return yes(reply);
  }

  #page(beginsNow: boolean): Ask {
    const { sinceMs } = this.options;
    const since_seconds = this.#position === undefined && sinceMs !== undefined ? sinceMs / 1000 : undefined;
    return this.#asked({ since_seconds, limit: beginsNow ? 1 : undefined, follow: "false" });
  }

  #asked(more: Document): Ask {
    const { prefix, name } = this.options;
    const document = { prefix: prefix || undefined, name, after: this.#position, ...more };
    return { verb: "events", document: Object.fromEntries(Object.entries(document).filter(([, value]) => value !== undefined)) };
  }

  /** The events of a stream until it ends. What it tells of gaps and slow readers, the next page tells, too. */
  async *#streamed(signal: AbortSignal): AsyncGenerator<JobEvent, void, void> {
    const hangUp = new AbortController();
    const frames = new Frames();
    const found: Frame[] = [];
    let isOver = false;
    let [wake, taken] = [() => {}, () => {}]; // the loop below; the stream, which waits until its frames are taken
    let silence = setTimeout(() => hangUp.abort(), SILENCE_MS);
    const onPart = async (text: string): Promise<void> => {
      clearTimeout(silence);
      found.push(...frames.read(text));
      if (found.length > 0) {
        await new Promise<void>((resolve) => {
          taken = resolve;
          wake();
        });
      }
      if (!hangUp.signal.aborted) silence = setTimeout(() => hangUp.abort(), SILENCE_MS);
    };
    const ended = this.way
      .stream(this.#asked({ follow: "true" }), onPart, AbortSignal.any([signal, hangUp.signal]))
      .catch(() => undefined) // the next page finds out what it was
      .finally(() => {
        isOver = true;
        wake();
      });
    try {
      for (;;) {
        for (let frame = found.shift(); frame !== undefined; frame = found.shift()) {
          if (frame.kind !== "") return; // a gap, or we were too slow
          if (frame.seq <= this.#position!) continue; // it was there before
          this.#position = frame.seq;
          if (frame.event !== undefined) yield frame.event;
        }
        if (isOver) return;
        const woken = new Promise<void>((resolve) => (wake = resolve));
        taken();
        await woken;
      }
    } finally {
      hangUp.abort();
      clearTimeout(silence);
      taken();
      await ended;
    }
  }
}

/** `event` is undefined in a frame that says only up to where everything was sent. */
interface Frame {
  kind: string;
  seq: number;
  event?: JobEvent;
}

/** Reads the frames of server-sent events from text as it comes. Throws for what is none. */
export class Frames {
  #rest = "";
  #kind = "";
  #data = "";
  #id = "";

  read(text: string): Frame[] {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop()!;
    if (this.#rest.length > LINE_CHARS_MAX) throw new TypeError("a line without end");
    const found: Frame[] = [];
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      const at = line.indexOf(":");
      const [field, value] = at < 0 ? [line, ""] : [line.slice(0, at), line.slice(at + 1).replace(/^ /, "")];
      if (line === "") found.push(...this.#ended());
      else if (field === "data") this.#data += value;
      else if (field === "event") this.#kind = value;
      else if (field === "id") this.#id = value;
    }
    return found;
  }

  #ended(): Frame[] {
    const [kind, data] = [this.#kind, this.#data];
    [this.#kind, this.#data] = ["", ""];
    if (kind === "" && data !== "") {
      const event = JSON.parse(data) as JobEvent;
      if (!Number.isSafeInteger(event?.seq)) throw new TypeError("no event");
      return [{ kind, seq: event.seq, event }];
    }
    return kind !== "" || /^\d{1,16}$/.test(this.#id) ? [{ kind, seq: Number(this.#id) }] : [];
  }
}
