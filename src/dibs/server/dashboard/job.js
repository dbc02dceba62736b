// The page of one job.

import { get, jobPath } from "./api.js";
import { instant, makeBar, stateBadge, tickTimes } from "./cells.js";
import { now } from "./clock.js";
import { breakAll, breakHold, freeJob, mayAct, openJob } from "./dialog.js";
import { bdi, exchange, h, setText } from "./dom.js";
import { first, jobOf, slotsTaken } from "./jobs.js";
import { ownerHref, sessionHref } from "./place.js";
import { drawn, holdsTable, spansOf, table, waitsTable } from "./timeline.js";
import { ago, count, exact, noteOf, plural, span, visible } from "./words.js";

const EVENTS = 500;
const OWNERS = 200; // rows of owners

/** A list of facts. Times among them are written anew by `tick`. */
export function facts(pairs) {
  const ticks = [];
  const entries = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([label, value]) => {
    let shown = value;
    if (typeof value === "object" && "at" in value) {
      shown = h("time", { datetime: new Date(value.at).toISOString(), title: exact(value.at) });
      const write = () => setText(shown, value.length ? span(now() - value.at) : value.at > now() ? `in ${span(value.at - now())}` : ago(now() - value.at));
      ticks.push(write);
      write();
    } else if (typeof value === "object" && "life" in value) {
      const bar = makeBar();
      bar.update(value.life);
      ticks.push(() => bar.tick(value.life));
      bar.tick(value.life);
      shown = bar.element;
    }
    return h("div", { class: "fact" }, h("dt", {}, label), h("dd", {}, shown));
  });
  return { element: entries.length ? h("dl", { class: "facts" }, entries) : null, tick: () => ticks.forEach((tick) => tick()) };
}

export const personLink = (owner, ns) => h("a", { "data-link": true, href: ownerHref(owner, ns) }, bdi(visible(owner)));
const block = (text) => (text ? h("pre", { tabindex: "0", class: "block", "aria-label": "text" }, text.split("\n").map(visible).join("\n")) : null);

export class JobPage {
  constructor({ source, name, me }) {
    this.title = visible(name);
    this._name = name;
    this._source = source;
    this._me = me;
    this._body = h("div", {}, h("p", { class: "empty" }, "Reading…"));
    this._state = h("span");
    this._actions = h("div", { class: "buttons" });
    this.element = h("article", { class: "page" },
      h("p", { class: "crumb" }, "Job"),
      h("div", { class: "headline" }, h("h1", {}, bdi(visible(name))), this._state, this._actions), this._body);
    this._stop = new AbortController();
    source.want("sessions");
    this.read();
  }

  close() {
    this._stop.abort();
    clearTimeout(this._timer);
    this._source.leave("sessions");
  }

  follow() {}

  show(what, event) {
    if (what === "event" && event.name === this._name) this._soon(150);
    if (what === "waiters") this._soon(500);
  }

  refresh() {
    this._soon(4000);
  }

  tick() {
    this._facts?.tick();
    this._owners?.tick();
    tickTimes(this._body);
  }

  _soon(ms) {
    if (this._timer) return;
    this._timer = setTimeout(() => {
      this._timer = 0;
      this.read();
    }, ms);
  }

  async read() {
    const query = { namespace: this._source.ns };
    try {
      const [document, history] = await Promise.all([
        get(jobPath(this._name), query, this._stop.signal),
        get(`${jobPath(this._name)}/history`, { ...query, limit: EVENTS }, this._stop.signal),
      ]);
      this._draw(document, history.events);
    } catch (error) {
      if (error.name !== "AbortError" && error.status !== undefined) this._body.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  _draw(document, events) {
    // What is counted from now is ticked; it is no change.
    const mark = JSON.stringify([document, events.at(-1)?.seq, this._waiters()], (key, value) => (key.endsWith("_ms") ? 0 : value));
    if (mark === this._drawn) return;
    this._drawn = mark;
    const spans = spansOf(events), job = jobOf(document);
    this._job = job; // with all fields of the document
    this._state.replaceChildren(stateBadge(document.status));
    this._drawActions(document);
    this._owners = job.holds.length > 1 ? this._ownersOf(job) : null;
    this._facts = this._factsOf(document, job);
    const parts = [this._facts.element, this._owners?.element, ...this._texts(document), this._steps(document), this._line()];
    if (spans.holds.length || spans.waits.length) {
      parts.push(h("section", { class: "card" }, h("h2", {}, "Timeline"), drawn(spans), spans.holds.length ? holdsTable(spans, this._source.ns) : null, spans.waits.length ? waitsTable(spans, this._source.ns) : null));
      if (events.length >= EVENTS) parts.push(h("p", { class: "muted" }, `These are the last ${EVENTS} events; the history has more.`));
    } else {
      parts.push(h("p", { class: "muted" }, "Nothing is on record about this job."));
    }
    const token = globalThis.document.activeElement?.dataset.token; // of the button that has the focus
    this._body.replaceChildren(...parts.filter(Boolean));
    if (token) this._body.querySelector(`[data-token="${token}"]`)?.focus({ preventScroll: true });
  }

  _sessionLink(hold) {
    const session = this._source.sessions.find((each) => each.holds.some((mine) => mine.name === this._name && mine.fencing_token === hold.token));
    return session && h("a", { "data-link": true, href: sessionHref(session.session_id, this._source.ns) }, session.session_id.slice(0, 8));
  }

  /** One row for each of several owners, each with its own break. */
  _ownersOf(job) {
    const { ns } = this._source, ticks = [], isMine = mayAct(this._me);
    const columns = [
      ["Owner", (hold) => personLink(hold.owner, ns)],
      ["Slots", (hold) => hold.slots.join(", "), job.holds.some((hold) => hold.slots.length)],
      ["Time left", (hold) => {
        const bar = makeBar();
        bar.update(hold);
        bar.tick(hold);
        ticks.push(() => bar.tick(hold));
        return bar.element;
      }],
      ["Since", (hold) => instant(hold.since)],
      ["Heartbeat", (hold) => instant(hold.heard)],
      ["Attempt", (hold) => String(hold.attempt), job.holds.some((hold) => hold.attempt > 1)],
      ["Token", (hold) => String(hold.token)],
      ["Session", (hold) => this._sessionLink(hold) ?? "—", job.holds.some((hold) => this._sessionLink(hold))],
      ["Note", (hold) => bdi(visible(hold.checkpoint ?? noteOf(hold.metadata) ?? "—")), job.holds.some((hold) => hold.checkpoint ?? noteOf(hold.metadata))],
      ["Break", (hold) => h("button", { type: "button", class: "danger", "data-token": hold.token, "aria-label": `Break the claim of ${visible(hold.owner)}, token ${hold.token}`, onclick: () => breakHold(this._name, hold, ns, () => this.read()) }, "Break…"), isMine],
    ].filter(([, , isShown = true]) => isShown);
    const rows = job.holds.slice(0, OWNERS).map((hold) => h("tr", {}, columns.map(([, make], index) => h(index ? "td" : "th", { scope: index ? null : "row" }, make(hold)))));
    const rest = job.holds.length > OWNERS && h("p", { class: "muted" }, `The first ${OWNERS} of ${count(job.holds.length)}.`);
    return { element: h("div", {}, table("Owners", columns.map(([head]) => head), rows), rest), tick: () => ticks.forEach((tick) => tick()) };
  }

  _factsOf(document, job) {
    const { ns } = this._source;
    const pairs = [];
    if (job.holds.length === 1) {
      const hold = first(job);
      pairs.push(["Owner", personLink(hold.owner, ns)], ["Time left", { life: hold }], ["Ends at most", hold.ends && { at: hold.ends }], ["Held for", { at: hold.since, length: true }],
        ["Last heartbeat", { at: hold.heard }], ["Last active", hold.active && { at: hold.active }], ["Attempt", hold.attempt > 1 ? String(hold.attempt) : null],
        ["Fencing token", String(hold.token)], ["Mode", hold.mode === "shared" ? "shared" : null], ["Slot", hold.slots.join(", ")],
        ["Session", this._sessionLink(hold)]);
    }
    if (job.holds.length > 1) pairs.push(["Owners", count(job.holds.length)], ["Mode", first(job).mode === "shared" ? "shared" : null]);
    pairs.push([document.pool ? "Pool" : "Taken", slotsTaken(job)]);
    if (document.done) pairs.push(["Done by", personLink(document.done.owner, ns)], ["Done", { at: Date.parse(document.done.at) }], ["Counts until", exact(Date.parse(document.done.until))]);
    if (document.available_at) pairs.push(["Can be claimed", { at: Date.parse(document.available_at) }]);
    if (document.previous && !job.holds.length) pairs.push(["Last owner", personLink(document.previous.owner, ns)], ["Its claim", stateBadge(document.previous.how)], ["That was", { at: Date.parse(document.previous.at) }]);
    const units = this._source.unitsByJob.get(this._name) ?? 0;
    if (document.waiting) pairs.push(["In line", `${count(document.waiting)}${units > document.waiting ? `, for ${count(units)} slots` : ""}`]);
    if (document.closed) pairs.push(["Closed by", bdi(visible(document.closed.by))], ["Closed until", exact(Date.parse(document.closed.until))], ["Closed because", bdi(visible(document.closed.reason))]);
    return facts(pairs);
  }

  _texts(document) {
    const text = (label, value) => value && h("section", {}, h("h2", {}, label), block(value));
    if (document.holders) return []; // their rows have it
    const last = document.status === "held" ? document : document.previous ?? {};
    return [text("Metadata", noteOf(document.metadata)), text("Checkpoint", last.checkpoint), text("Reason", document.status === "held" ? null : last.reason), text("Result", document.done?.result)];
  }

  /** Steps that change something outside: what is in doubt must be looked at before somebody goes on. */
  _steps(document) {
    if (!document.effects?.length) return null;
    return h("section", {}, h("h2", {}, "Steps"), h("ul", { class: "line-list" }, document.effects.map((each) =>
      h("li", {}, bdi(visible(each.key)), " ", stateBadge(each.status.replace("_", " ")), " ", each.owner && personLink(each.owner, this._source.ns),
        each.at && ", ", each.at && instant(Date.parse(each.at)), each.result && ": ", each.result && bdi(visible(each.result)), each.reason && ": ", each.reason && bdi(visible(each.reason))))));
  }

  _waiters() {
    return this._source.waiters.filter((each) => each.name === this._name);
  }

  _line() {
    const waiters = this._waiters();
    if (!waiters.length) return null;
    return h("section", {}, h("h2", {}, "In line"), h("ol", { class: "line-list" }, waiters.slice(0, 100).map((each) =>
      h("li", {}, personLink(each.owner, this._source.ns), each.units > 1 && `, wants ${plural(each.units, "slot", "slots")}`, ", since ", instant(Date.parse(each.since))))));
  }

  _drawActions(document) {
    const { ns } = this._source;
    if (!mayAct(this._me)) return this._actions.replaceChildren();
    const done = () => this.read();
    const buttons = [];
    // A button stays while its words do, and means what is shown when it is pressed.
    const { length } = this._job.holds;
    if (length === 1) buttons.push(h("button", { type: "button", class: "danger", onclick: () => breakHold(this._name, first(this._job), ns, done) }, "Break the claim…"));
    if (length > 1) buttons.push(h("button", { type: "button", class: "danger", onclick: () => breakAll(this._name, this._job.holds.length, ns, done) }, "Break all claims…"));
    if (document.status === "parked" || document.available_at) buttons.push(h("button", { type: "button", onclick: () => freeJob(this._name, ns, done) }, "Free the job…"));
    if (document.closed) buttons.push(h("button", { type: "button", onclick: () => openJob(this._job.closed.name, ns, done) }, "Open the job…"));
    const before = [...this._actions.children].map((each) => each.textContent).join();
    if (before !== buttons.map((each) => each.textContent).join()) exchange(this._actions, ...buttons);
  }
}
