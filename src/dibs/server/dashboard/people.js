// The page of one owner, and of one session.

import { get } from "./api.js";
import { instant, stateBadge, tickTimes } from "./cells.js";
import { endSession, mayAct } from "./dialog.js";
import { bdi, exchange, h } from "./dom.js";
import { facts, personLink } from "./job.js";
import { jobHref, sessionHref } from "./place.js";
import { table } from "./timeline.js";
import { noteOf, plural, span, visible } from "./words.js";
import { now } from "./clock.js";

const ROWS = 200;
const jobLink = (name, ns) => h("a", { "data-link": true, href: jobHref(name, ns) }, bdi(visible(name)));
const when = instant;

function rest(total) {
  return total > ROWS ? h("p", { class: "muted" }, `The first ${ROWS} of ${total}.`) : null;
}

class Page {
  constructor({ source, me, crumb, title }) {
    this.title = title;
    this.source = source;
    this.me = me;
    this.actions = h("div", { class: "buttons" });
    this.state = h("span");
    this.body = h("div", {}, h("p", { class: "empty" }, "Reading…"));
    this.element = h("article", { class: "page" }, h("p", { class: "crumb" }, crumb),
      h("div", { class: "headline" }, h("h1", {}, bdi(title)), this.state, this.actions), this.body);
    source.want("sessions");
  }

  close() {
    this.source.leave("sessions");
  }

  follow() {}

  refresh() {}

  tick() {
    this.facts?.tick();
    tickTimes(this.body);
  }

  /** Draws anew only if something else would be seen. */
  draw(mark, make) {
    const text = JSON.stringify(mark);
    if (text === this._drawn) return;
    this._drawn = text;
    this.body.replaceChildren(...make().filter(Boolean));
  }
}

export class OwnerPage extends Page {
  constructor({ source, owner, me }) {
    super({ source, me, crumb: "Owner", title: visible(owner) });
    this._owner = owner;
    this._events = null;
    this._read();
  }

  async _read() {
    try {
      const page = await get("/events", { namespace: this.source.ns, limit: 1000, follow: "false" });
      this._events = page.events.filter((event) => event.owner === this._owner).reverse();
    } catch {
      this._events ??= [];
    }
    this.show();
  }

  show(what, event) {
    if (what === "event") {
      if (event.owner !== this._owner) return;
      this._events?.unshift(event);
    }
    const { source, _owner: owner } = this;
    const holds = [...source.jobs.byName.values()].flatMap((job) => job.holds.filter((hold) => hold.owner === owner).map((hold) => ({ job, hold })));
    const waits = source.waiters.filter((each) => each.owner === owner);
    const sessions = source.sessions.filter((each) => each.owner === owner);
    const events = (this._events ?? []).slice(0, 50);
    const mark = [holds.map(({ job, hold }) => [job.name, hold.token, hold.expires]), waits.map((each) => [each.name, each.position]), sessions.map((each) => [each.session_id, each.lock_count]), events.length, events[0]?.seq];
    this.draw(mark, () => this._parts(holds, waits, sessions, events));
  }

  _parts(holds, waits, sessions, events) {
    const { ns } = this.source;
    const parts = [h("p", { class: "lead" }, `Holds ${plural(holds.length, "job", "jobs")}, waits for ${waits.length}, has ${plural(sessions.length, "open session", "open sessions")}.`)];
    if (holds.length) {
      const rows = holds.slice(0, ROWS).map(({ job, hold }) => h("tr", {}, h("th", { scope: "row" }, jobLink(job.name, ns)), h("td", {}, when(hold.since)), h("td", {}, when(hold.expires)), h("td", { class: "num" }, String(hold.attempt)), h("td", {}, visible(hold.checkpoint ?? noteOf(hold.metadata) ?? "—"))));
      parts.push(table("Holds", ["Job", "Since", "Ends without a heartbeat", "Attempt", "Note"], rows), rest(holds.length));
    }
    if (waits.length) {
      const rows = waits.slice(0, ROWS).map((each) => h("tr", {}, h("th", { scope: "row" }, jobLink(each.name, ns)), h("td", { class: "num" }, String(each.position)), h("td", {}, when(Date.parse(each.since))), h("td", {}, each.holders[0] ? personLink(each.holders[0].owner, ns) : "—")));
      parts.push(table("Waits for", ["Job", "Place", "Since", "Held by"], rows), rest(waits.length));
    }
    if (sessions.length) {
      const rows = sessions.slice(0, ROWS).map((each) => h("tr", {}, h("th", { scope: "row" }, h("a", { "data-link": true, href: sessionHref(each.session_id, ns) }, each.session_id.slice(0, 8))), h("td", { class: "num" }, String(each.lock_count)), h("td", {}, when(Date.parse(each.since))), h("td", {}, visible(noteOf(each.metadata) ?? "—"))));
      parts.push(table("Sessions", ["Session", "Holds", "Since", "Note"], rows));
    }
    if (events.length) {
      const rows = events.map((event) => h("tr", {}, h("th", { scope: "row" }, jobLink(event.name, ns)), h("td", {}, stateBadge(event.event)), h("td", {}, when(Date.parse(event.at))), h("td", {}, visible(event.reason ?? event.checkpoint ?? "—"))));
      parts.push(table("Lately", ["Job", "What", "When", "Note"], rows));
    }
    return parts;
  }
}

export class SessionPage extends Page {
  constructor({ source, id, me }) {
    super({ source, me, crumb: "Session", title: visible(id) });
    this._id = id.toLowerCase().slice(0, 8);
  }

  show(what) {
    if (what === "event") return;
    const session = this.source.sessions.find((each) => each.session_id.toLowerCase().startsWith(this._id));
    if (!session) {
      if (what !== "sessions" && !this._drawn) return;
      this.facts = null;
      exchange(this.actions);
      this.draw(["none"], () => [h("p", { class: "lead" }, "This session has ended, or this token may not see it.")]);
      return;
    }
    const mark = [session.expires_at, session.holds.map((each) => [each.name, each.fencing_token, each.waiting]), session.waits];
    this.draw(mark, () => this._parts(session));
  }

  _parts(session) {
    const { ns } = this.source;
    const life = { expires: Date.parse(session.expires_at), span: session.ttl_seconds * 1000 };
    this.facts = facts([["Owner", personLink(session.owner, ns)], ["Token's name", visible(session.user_id)], ["Time left", { life }], ["Open for", { at: Date.parse(session.since), length: true }], ["Heartbeat within", span(session.ttl_seconds * 1000)], ["Note", noteOf(session.metadata) && visible(noteOf(session.metadata))]]);
    if (mayAct(this.me) && !this.actions.firstChild) {
      this.actions.replaceChildren(h("button", { type: "button", class: "danger", onclick: () => endSession(session, () => this.source.read("sessions")) }, "End the session…"));
    }
    const holds = session.holds.slice(0, ROWS).map((each) => h("tr", {}, h("th", { scope: "row" }, jobLink(each.name, each.namespace)), h("td", {}, visible(each.namespace)), h("td", {}, when(now() + each.remaining_ms)), h("td", { class: "num" }, String(each.fencing_token)), h("td", { class: "num" }, String(each.waiting))));
    const waits = session.waits.slice(0, ROWS).map((name) => h("li", {}, jobLink(name, ns)));
    return [this.facts.element,
      holds.length ? table("Holds", ["Job", "Namespace", "Ends without a heartbeat", "Token", "In line"], holds) : h("p", { class: "muted" }, "It holds nothing."),
      rest(session.holds.length),
      waits.length ? h("section", {}, h("h2", {}, "Waits for"), h("ul", {}, waits)) : null];
  }
}
