// The stream of events. It goes on where it was after a restart of the server, and asks in turns while there is none.

import { address, whoami } from "./api.js";

const RETRY_MS = [1000, 2000, 3000, 5000];

export class Stream {
  /** `state` is told live, lost or hidden. `gap` is called when events were missed for good. */
  constructor({ ns, prefix, event, state, gap }) {
    this._query = { namespace: ns, prefix, follow: "true" };
    this._tell = { event, state, gap };
    this._last = "";
    this._tries = 0;
    this._timer = 0;
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
    this._source?.close();
    this._source = null;
  }

  /** A browser gives a site six connections. A tab that nobody looks at needs none. */
  _hide() {
    this._drop();
    this._tell.state("hidden");
  }

  _open() {
    this._drop();
    if (document.hidden) return;
    const source = new EventSource(address("/events", { ...this._query, after: this._last }));
    this._source = source;
    source.onopen = () => {
      this._tries = 0;
      this._tell.state("live");
    };
    source.onmessage = (message) => this._take(message);
    source.addEventListener("gap", (message) => {
      this._last = message.lastEventId;
      this._tell.gap();
    });
    source.addEventListener("dropped", (message) => (this._last = message.lastEventId));
    source.onerror = () => this._lost(source);
  }

  _take(message) {
    this._last = message.lastEventId;
    this._tell.event(JSON.parse(message.data));
  }

  _lost(source) {
    if (source !== this._source) return;
    this._tell.state("lost");
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    this._drop();
    whoami().catch((error) => error.status === 401 && this._tell.state("stale"));
    this._timer = setTimeout(() => this._open(), RETRY_MS[Math.min(this._tries++, RETRY_MS.length - 1)]);
  }
}
