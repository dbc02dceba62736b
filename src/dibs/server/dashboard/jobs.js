// The claims of one namespace, as the server last said, brought forward by events.
//
// The lists are the truth; an event only says earlier what the next list will say. Fencing tokens order both: an event
// about an older hold than the one we know changes nothing. Heartbeats are no events, so the list is read again and
// again, a page at a time, and a visible claim that seems to run out is asked for by its name.

import { get, jobPath } from "./api.js";
import { now } from "./clock.js";

const PAGE = 1000;
export const MOST = 20_000; // claims that the page keeps; a prefix narrows a larger board
export const ENDS = new Set(["released", "failed", "expired", "broken", "transferred"]);
const RENEWALS = new Set(["progress", "renewed", "shared"]);

/** How many slots of a job are taken, in words; empty if it has none. */
export function slotsTaken(job) {
  if (!job.pool && !(job.slots > 1)) return "";
  const taken = job.holds.reduce((sum, hold) => sum + Math.max(1, hold.slots.length), 0);
  if (job.slots) return `${taken} of ${job.slots} slots`;
  return taken ? `paused, ${taken} taken` : "paused";
}

function holdOf(document) {
  const expires = Date.parse(document.expires_at);
  const heard = Date.parse(document.last_heartbeat ?? document.since);
  return {
    owner: document.owner, token: document.fencing_token, since: Date.parse(document.since), heard, expires,
    active: document.last_active ? Date.parse(document.last_active) : null,
    attempt: document.attempt ?? 1, metadata: document.metadata, checkpoint: document.checkpoint,
    mode: document.mode, span: Math.max(1000, expires - heard), slots: document.slot_numbers ?? [],
    ends: document.ends_at ? Date.parse(document.ends_at) : null,
  };
}

/** A job as the page keeps it, from a document of GET /locks. */
export function jobOf(document) {
  const held = document.status === "held";
  const holds = held ? (document.holders ?? [document]).map(holdOf) : [];
  return { ...document, holds, read: performance.now(), sweep: 0 };
}

export const first = (job) => job.holds[0];

/** Whether what kept others from a job when it was read is over by now: no event tells the end of a rest or of a mark. */
export const isOver = ({ available_at, done, closed }) => [available_at, done?.until, closed?.until].some((at) => at && Date.parse(at) < now());

export const LINE_LONG = 5;
const SHORT_PART = 0.3; // of the time that a claim lasts without a heartbeat: a worker renews at the half
const SILENT_PART = 0.7;
const SILENT_MS = 30_000;

/** The part of its time that is left, from 1 after a heartbeat to 0. */
export const leftPart = (life) => Math.max(0, Math.min(1, (life.expires - now()) / life.span));
export const isShort = (life) => leftPart(life) <= SHORT_PART;

/** Whether an owner was silent for long when its claim was last read. Later heartbeats are not known here. */
export function isSilent(job) {
  const read = now() - performance.now() + job.read;
  return job.holds.some((hold) => read - hold.heard >= Math.max(SILENT_MS, SILENT_PART * hold.span));
}

/** How much a job needs a look: an owner is silent, a claim ends soon, many wait for it, or nothing of that. */
export function urgency(job, waiting) {
  if (isSilent(job)) return 3;
  return job.holds.some(isShort) ? 2 : waiting >= LINE_LONG ? 1 : 0;
}

export class Jobs {
  constructor({ ns, prefix, changed, failed, most = MOST }) {
    this._most = most;
    this._count = 0;
    this.byName = new Map();
    this.ns = ns;
    this.prefix = prefix;
    this.isWhole = false; // everything was read once
    this.isCut = false; // there is more than we keep
    this.closures = []; // what operators closed, in effect
    this._closuresBegun = 0; // when they were asked for
    this._changed = changed;
    this._failed = failed;
    this._sweep = 1;
    this._after = "";
    this._stop = new AbortController();
    this._busy = false;
    this._asked = new Map();
  }

  close() {
    this._stop.abort();
  }

  get isClosed() {
    return this._stop.signal.aborted;
  }

  /** Reads the whole list once, page after page. */
  async load() {
    do {
      if (!(await this.readPage())) return false;
    } while (this._after && !this.isClosed);
    return !this.isClosed;
  }

  /** Reads the next page of the list; after the last one, drops what no page of this round had. */
  async readPage() {
    if (this._busy || this.isClosed) return false;
    this._busy = true;
    const begun = performance.now();
    try {
      const query = { namespace: this.ns, prefix: this.prefix, after: this._after, limit: PAGE };
      const page = await get("/locks", query, this._stop.signal);
      if (!this._after) {
        Object.assign(this, { _begun: begun, _count: 0 });
        this._takeClosures(page, begun);
      }
      for (const document of page.locks) this._put(document, begun);
      this._count += page.locks.length;
      const isCut = Boolean(page.next) && this._count >= this._most;
      this._after = isCut ? "" : page.next ?? "";
      if (!this._after) this.isCut = isCut;
      if (!this._after) this._finishSweep();
      this._changed();
      return true;
    } catch (error) {
      if (!this.isClosed) this._failed(error);
      return false;
    } finally {
      this._busy = false;
    }
  }

  /** What is closed stands on the first page, whose turn may be far. */
  async readClosures() {
    const begun = performance.now();
    try {
      this._takeClosures(await get("/locks", { namespace: this.ns, prefix: this.prefix, limit: 1 }, this._stop.signal), begun);
      this._changed();
    } catch (error) {
      if (!this.isClosed) this._failed(error);
    }
  }

  /** A page that was asked for before another may come after it. */
  _takeClosures({ closures = [] }, begun) {
    if (begun < this._closuresBegun) return;
    this._closuresBegun = begun;
    this.closures = closures;
  }

  _finishSweep() {
    for (const [name, job] of this.byName) {
      if (job.sweep !== this._sweep && job.read < this._begun) this.byName.delete(name);
    }
    this._sweep += 1;
    this.isWhole = true;
  }

  _put(document, begun) {
    const known = this.byName.get(document.name);
    const job = jobOf(document);
    job.sweep = this._sweep;
    if (known && known.read > begun && known.fencing_token > document.fencing_token) {
      known.sweep = this._sweep; // an event that came meanwhile knows better
      return;
    }
    this.byName.set(document.name, job);
  }

  /** Brings the claims forward by one event; whether anything changed. */
  apply(event) {
    const job = this.byName.get(event.name);
    const at = Date.parse(event.at);
    if (event.event === "acquired") return this._acquired(event, job, at);
    if (!job) return false;
    const hold = job.holds.find((each) => each.token === event.fencing_token);
    if (!hold) return false;
    job.read = performance.now();
    if (ENDS.has(event.event)) {
      job.holds = job.holds.filter((each) => each !== hold);
      if (!job.holds.length) this.byName.delete(event.name);
      return true;
    }
    if (!RENEWALS.has(event.event)) return false;
    for (const field of ["metadata", "checkpoint"]) if (event[field] !== undefined) hold[field] = event[field];
    if (event.event === "shared") hold.mode = "shared";
    hold.heard = Math.max(hold.heard, at);
    if (event.ttl_seconds) hold.expires = Math.max(hold.expires, at + event.ttl_seconds * 1000);
    return true;
  }

  _acquired(event, job, at) {
    if (job?.holds.some((each) => each.token >= event.fencing_token)) return false;
    const ttl = (event.ttl_seconds || 60) * 1000;
    const hold = {
      owner: event.owner, token: event.fencing_token, since: at, heard: at, expires: at + ttl, active: null,
      attempt: event.attempt ?? 1, metadata: event.metadata ?? null, checkpoint: null, mode: "exclusive", span: ttl,
      slots: event.slot_numbers ?? [],
    };
    const read = performance.now();
    if (job) Object.assign(job, { holds: [...job.holds, hold], fencing_token: hold.token, read });
    else if (this.byName.size < this._most) {
      const fresh = { name: event.name, status: "held", fencing_token: hold.token, holds: [hold], read };
      this.byName.set(event.name, { ...fresh, sweep: this._sweep });
    }
    return true;
  }

  /** Asks for a few visible claims that seem to run out: they may have been renewed. */
  refresh(visible) {
    const at = performance.now();
    const late = visible.filter((job) => {
      const hold = first(job);
      if (!hold || at - (this._asked.get(job.name) ?? -1e9) < 3000) return false;
      return hold.expires - now() < hold.span * 0.35;
    });
    for (const job of late.slice(0, 6)) this._refreshOne(job.name, at);
    if (this._asked.size > 500) this._asked.clear();
  }

  async _refreshOne(name, at) {
    this._asked.set(name, at);
    try {
      const document = await get(jobPath(name), { namespace: this.ns }, this._stop.signal);
      if (document.status === "held") this._put(document, at);
      else if (this.byName.get(name)?.fencing_token <= document.fencing_token) this.byName.delete(name);
      this._changed();
    } catch (error) {
      if (!this.isClosed) this._failed(error);
    }
  }
}
