// The stream of events. It goes on where it was after a restart of the server, and asks in turns while there is none.
//
// It is read with fetch. An EventSource cannot send X-Dibs-Request, and to a plain HTTP address of another machine a
// browser sends nothing else that says which page asks, so the server would not accept the cookie.

import { MARK, address } from "./api.js";
import { noteLife } from "./clock.js";

const RETRY_MS = [1000, 2000, 3000, 5000];
// What an answer without a stream means, by its status.
const REFUSALS = { 400: "refused", 401: "stale", 403: "refused" };

/** Calls `take({ kind, id, data })` for each frame of a body of server-sent events. */
async function readFrames(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    noteLife();
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const text of frames) take(frameOf(text));
  }
}

function frameOf(text) {
  const frame = { kind: "message", id: null, data: "" };
  for (const line of text.split("\n")) {
    const [, field, value] = /^(\w+): ?(.*)$/s.exec(line) ?? [];
    if (field === "event") frame.kind = value;
    else if (field === "id") frame.id = value;
    else if (field === "data") frame.data += value;
  }
  return frame;
}

export class Stream {
  /** `state` is told live, lost, hidden, refused or stale. `gap` is called when events were missed for good. */
  constructor({ ns, prefix, event, state, gap }) {
    this._query = { namespace: ns, prefix, follow: "true" };
    this._tell = { event, state, gap };
    this._last = "";
    this._tries = 0;
    this._timer = 0;
    this._stop = null;
    this._onVisibility = () => (document.hidden ? this._hide() : this._open());
    document.addEventListener("visibilitychange", this._onVisibility);
    this._open();
  }

  close() {
    document.removeEventListener("visibilitychange", this._onVisibility);
    this._drop();
    this._tell = { event() {}, state() {}, gap() {} };
  }

  /** Begins anew where it was. */
  again() {
    this._tell.state("lost");
    this._open();
  }

  _drop() {
    clearTimeout(this._timer);
    this._stop?.abort();
    this._stop = null;
  }

  /** A browser gives a site six connections. A tab that nobody looks at needs none. */
  _hide() {
    this._drop();
    this._tell.state("hidden");
  }

  _open() {
    this._drop();
    if (document.hidden) return;
    this._stop = new AbortController();
    this._follow(this._stop.signal);
  }

  async _follow(signal) {
    let state = "lost";
    try {
      const headers = { Accept: "text/event-stream", ...MARK };
      const answer = await fetch(address("/events", { ...this._query, after: this._last }), { headers, signal, cache: "no-store" });
      state = REFUSALS[answer.status] ?? "lost";
      if (answer.ok) {
        this._tries = 0;
        this._tell.state("live");
        await readFrames(answer.body, (frame) => signal.aborted || this._take(frame));
      }
    } catch (error) {
      if (!signal.aborted && !(error instanceof TypeError)) throw error; // a TypeError is a connection that broke
    } finally {
      if (!signal.aborted) this._lost(state);
    }
  }

  _take({ kind, id, data }) {
    if (id !== null) this._last = id;
    if (kind === "gap") this._tell.gap();
    else if (kind === "message" && data) this._tell.event(JSON.parse(data));
  }

  _lost(state) {
    this._drop();
    this._tell.state(state);
    if (state !== "stale") this._timer = setTimeout(() => this._open(), RETRY_MS[Math.min(this._tries++, RETRY_MS.length - 1)]);
  }
}
