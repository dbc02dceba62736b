// Everything that the pages of one namespace and prefix read: claims, waiters, sessions, lists of ended jobs, the last
// hour. One stream of events brings it forward; what events do not tell is read again after a while.

import { Unreachable, get, ping } from "./api.js";
import { silentMs } from "./clock.js";
import { Jobs, isOver, jobOf } from "./jobs.js";
import { Stream } from "./stream.js";

const SWEEP_MS = 5000;
const POLL_MS = 2000; // without a stream
const QUIET_MS = 1000; // a server that said nothing for so long is asked whether it is there
const SILENT_MS = 2000; // and is called silent after that
const MOST = 5000; // rows of a list of ended jobs
const LISTS = {
  parked: { status: "parked" },
  failed: { status: "delayed,closed,paused,frozen,free", ended: "failed,expired,broken" },
  done: { status: "done" },
  pools: { pools: "true" },
};
const MOVES = new Set(["released", "failed", "expired", "broken", "parked", "freed", "acquired", "transferred", "pool-set", "closed", "opened"]);

export class Source {
  /** `changed(what)` is called after each change, `link(state)` with live, silent, lost, polling, hidden, refused or
   *  stale. */
  constructor({ ns, prefix, changed, link, seen }) {
    this.ns = ns;
    this.prefix = prefix;
    this.waiters = [];
    this.byJob = new Map(); // how many wait for each
    this.unitsByJob = new Map(); // and how many slots they want
    this.sessions = [];
    this.agents = { rows: [], isWhole: false, isCut: false };
    this.lists = new Map();
    this.hour = null;
    this.trouble = ""; // why the server takes no claims, in its own words
    this.isRefused = false; // the server has refused a question, as of an invalid prefix
    this._changed = changed;
    this._link = link;
    this._seen = seen;
    this._timers = new Map();
    this._wanted = new Set(["waiters", "hour", "ready"]);
    this._ended = false;
    this.jobs = new Jobs({ ns, prefix, changed: () => this._heldRead(), failed: (error) => this._fail(error) });
    this._begin();
  }

  close() {
    this._ended = true;
    this._stream?.close();
    this.jobs.close();
    clearInterval(this._sweeper);
    for (const timer of this._timers.values()) clearTimeout(timer);
  }

  async _begin() {
    // The stream first: what happens while the lists are read is not missed.
    this._stream = new Stream({
      ns: this.ns, prefix: this.prefix,
      event: (event) => this._event(event),
      state: (state) => this._state(state),
      gap: () => this.readAll(),
    });
    this._pace(SWEEP_MS);
    for (const what of this._wanted) this.read(what);
    await this.jobs.load();
  }

  /** The views say what they show: that is read now, and again and again. */
  want(...what) {
    for (const each of what) {
      this._wanted.add(each);
      this.read(each);
    }
  }

  leave(...what) {
    for (const each of what) this._wanted.delete(each);
  }

  readAll() {
    if (this.jobs.isWhole) this.jobs.readPage();
    else this.jobs.load();
    for (const what of this._wanted) this.read(what);
  }

  _again() {
    if (document.hidden || this._ended) return;
    if (this.jobs.isWhole) this.jobs.readPage();
    else this.jobs.load();
    const isLive = this._now === "live";
    for (const what of this._wanted) {
      const isDue = !isLive || !(what in LISTS) || this.lists.get(what)?.rows.some(isOver);
      if (isDue) this.soon(what, this._pause(what, isLive ? 5000 : 500));
    }
  }

  /** A server reads very many agents for seconds. */
  _pause(what, ms) {
    return what === "agents" && this.agents.rows.length > 1000 ? 20_000 : ms;
  }

  /** Reads it within this many milliseconds, once for all who ask until then. */
  soon(what, ms) {
    if (this._timers.has(what)) return;
    this._timers.set(what, setTimeout(() => {
      this._timers.delete(what);
      this.read(what);
    }, ms));
  }

  async read(what) {
    try {
      if (what === "waiters") await this._readWaiters();
      else if (what === "sessions") this.sessions = (await get("/sessions", { namespace: this.ns })).sessions;
      else if (what === "agents") await this._readAgents();
      else if (what === "hour") await this._readHour();
      else if (what === "ready") await this._readReady();
      else await this._readList(what);
      if (!this._ended) {
        this._answered();
        this._changed(what);
      }
    } catch (error) {
      this._fail(error);
    }
  }

  async _readHour() {
    this.hour = await get("/activity", { namespace: this.ns });
    if (!this.hour.whole) this.soon("hour", 500);
  }

  async _readAgents() {
    const rows = [];
    let after = "";
    do {
      const page = await get("/agents", { after, limit: 1000 });
      rows.push(...page.agents);
      after = page.next;
    } while (after && rows.length < MOST && !this._ended);
    this.agents = { rows, isWhole: true, isCut: after !== null };
  }

  async _readReady() {
    try {
      await get("/ready");
      this.trouble = "";
    } catch (error) {
      if (error.status !== 503) throw error;
      this.trouble = error.message;
    }
  }

  async _readWaiters() {
    const page = await get("/waiters", { namespace: this.ns, prefix: this.prefix, limit: 2000 });
    this.waiters = page.waiters.sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : a.position - b.position));
    this.isWaitersCut = page.next !== null;
    this.byJob = new Map();
    this.unitsByJob = new Map();
    for (const { name, units } of this.waiters) {
      this.byJob.set(name, (this.byJob.get(name) ?? 0) + 1);
      this.unitsByJob.set(name, (this.unitsByJob.get(name) ?? 0) + units);
    }
  }

  async _readList(what) {
    const rows = [];
    let after = "";
    do {
      const page = await get("/locks", { namespace: this.ns, prefix: this.prefix, after, limit: 1000, ...LISTS[what] });
      rows.push(...page.locks.map(jobOf));
      after = page.next;
      this.lists.set(what, { rows: [...rows], isWhole: after === null, isCut: false });
      this._changed(what);
    } while (after && rows.length < MOST && this._wanted.has(what) && !this._ended);
    if (after && rows.length >= MOST) this.lists.set(what, { rows, isWhole: true, isCut: true });
  }

  _event(event) {
    if (this.jobs.apply(event)) this._changed("held");
    const kind = event.event;
    if (kind === "queued" || kind === "left" || (kind === "acquired" && this.byJob.has(event.name))) this.soon("waiters", 700);
    if (kind === "closed" || kind === "opened") this.jobs.readClosures();
    if (MOVES.has(kind)) {
      for (const what of Object.keys(LISTS)) {
        if (this._wanted.has(what)) this.soon(what, (this.lists.get(what)?.rows.length ?? 0) > 1000 ? 20_000 : 1500);
      }
      for (const what of ["sessions", "agents"]) if (this._wanted.has(what)) this.soon(what, this._pause(what, 1500));
    }
    this._seen(event);
  }

  _pace(ms) {
    clearInterval(this._sweeper);
    if (!this._ended) this._sweeper = setInterval(() => this._again(), ms);
  }

  _state(state) {
    const before = this._now;
    this._now = state;
    if (before !== state) this._pace(state === "live" ? SWEEP_MS : POLL_MS);
    if (state === "live" && before !== undefined && before !== "live") this.readAll();
    this._link(state);
  }

  _heldRead() {
    this._answered();
    this._changed("held");
  }

  /** Without a stream, whether the server still answers decides what is said. */
  _answered() {
    if (!this._ended && (this._now === "lost" || this._now === "live")) this._link(this._now === "lost" ? "polling" : "live");
  }

  /** To be called often. A stream of a server that is paused looks alive, and so does an idle one. */
  async listen() {
    const silent = silentMs();
    if (silent > SILENT_MS && this._now === "live" && !this._ended) this._link("silent");
    if (silent < QUIET_MS || this._isAsking || this._ended) return;
    this._isAsking = true;
    try {
      await ping();
      this._answered();
    } catch (error) {
      this._fail(error);
    } finally {
      this._isAsking = false;
    }
  }

  /** A stream of a server that is paused looks alive. So a request without an answer ends it. */
  _fail(error) {
    if (this._ended || error.name === "AbortError") return;
    if (error instanceof Unreachable) {
      this._link("lost");
      if (this._now === "live") this._stream.again();
    } else if (error.status >= 400 && error.status !== 401) {
      this.isRefused = true;
      this._changed("refused", error);
    } else if (error.status === undefined) throw error;
  }
}
