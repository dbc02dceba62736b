// What happened to one job, as holds and waits in time: drawn, and as a table.

import { stateBadge } from "./cells.js";
import { now } from "./clock.js";
import { h } from "./dom.js";
import { ENDS } from "./jobs.js";
import { ownerHref } from "./place.js";
import { exact, plural, span, visible } from "./words.js";

const LANES_MAX = 12;

/** Holds and waits from the events of a job, in the order in which they began. */
export function spansOf(events) {
  const holds = [], waits = [];
  for (const event of events) {
    const at = Date.parse(event.at);
    if (event.event === "acquired") {
      const wait = waits.find((each) => each.owner === event.owner && each.to === null);
      if (wait) Object.assign(wait, { to: at, how: "granted" });
      holds.push({ owner: event.owner, token: event.fencing_token, attempt: event.attempt, from: at, to: null, how: "holding" });
    } else if (ENDS.has(event.event)) {
      let hold = holds.find((each) => each.token === event.fencing_token);
      if (!hold) holds.push((hold = { owner: event.owner, token: event.fencing_token, attempt: event.attempt, from: null }));
      Object.assign(hold, { to: at, how: event.event, by: event.by, reason: event.reason, checkpoint: event.checkpoint });
    } else if (event.event === "queued") {
      waits.push({ owner: event.owner, from: at, to: null, how: "waiting" });
    } else if (event.event === "left") {
      const wait = waits.find((each) => each.owner === event.owner && each.to === null);
      if (wait) Object.assign(wait, { to: at, how: "left", reason: event.reason });
    }
  }
  return { holds, waits };
}

/** Puts spans that overlap into different lanes. */
function lanesOf(spans, start, end) {
  const lanes = [];
  for (const each of spans) {
    const from = each.from ?? start;
    const lane = lanes.find((those) => (those.at(-1).to ?? end) <= from);
    if (lane) lane.push(each);
    else if (lanes.length < LANES_MAX) lanes.push([each]);
  }
  return lanes;
}

function bar(each, kind, start, wide, end) {
  const from = each.from ?? start, to = each.to ?? end;
  const words = `${visible(each.owner)}, ${exact(from)}, for ${span(to - from)}, ${each.how}`;
  const element = h("span", { class: `bar ${kind}`, "data-state": each.how, title: words }, h("span", { class: "bar-text" }, visible(each.owner)));
  element.style.left = `${((from - start) / wide) * 100}%`;
  element.style.width = `${Math.max(0.35, ((to - from) / wide) * 100)}%`;
  return element;
}

export function drawn({ holds, waits }) {
  const all = [...holds, ...waits];
  const end = now();
  const start = Math.min(...all.map((each) => each.from ?? each.to));
  const wide = Math.max(1000, end - start);
  const lane = (kind, label) => (those) => h("div", { class: `lane ${kind}` }, those.map((each) => bar(each, kind, start, wide, end)), label);
  const summary = `Timeline from ${exact(start)} to now: ${plural(holds.length, "hold", "holds")}, ${plural(waits.length, "wait", "waits")}. The table below has them all.`;
  return h("figure", { class: "timeline", role: "img", "aria-label": summary },
    h("div", { class: "lanes" }, lanesOf(holds, start, end).map(lane("hold")), lanesOf(waits, start, end).map(lane("wait"))),
    h("figcaption", { class: "axis", "aria-hidden": "true" }, h("span", {}, `${span(end - start)} ago`), h("span", {}, "now")));
}

const timeOf = (at) => (at === null || at === undefined ? "before the history" : h("time", { datetime: new Date(at).toISOString(), title: exact(at) }, exact(at)));
const ownerLink = (owner, ns) => h("a", { "data-link": true, href: ownerHref(owner, ns) }, h("bdi", {}, visible(owner)));

/** The holds, newest first, with how long nobody held the job before each. */
export function holdsTable({ holds }, ns) {
  const rows = [...holds].reverse().map((hold, index, list) => {
    const before = list[index + 1];
    const gap = before?.to && hold.from !== null && hold.from - before.to >= 1000 ? span(hold.from - before.to) : "—";
    const why = [hold.by && `by ${visible(hold.by)}`, hold.reason && visible(hold.reason)].filter(Boolean).join(": ");
    return h("tr", {},
      h("th", { scope: "row" }, ownerLink(hold.owner, ns)),
      h("td", {}, timeOf(hold.from)),
      h("td", { class: "num" }, span((hold.to ?? now()) - (hold.from ?? hold.to))),
      h("td", {}, stateBadge(hold.how), why && h("span", { class: "why" }, why)),
      h("td", { class: "num" }, String(hold.attempt ?? "")),
      h("td", { class: "num" }, String(hold.token)),
      h("td", { class: "num" }, gap));
  });
  return table("Who held it", ["Owner", "From", "For", "How it ended", "Attempt", "Token", "Free before"], rows);
}

export function waitsTable({ waits }, ns) {
  const words = { granted: "got the job", waiting: "waits now", left: "left" };
  const rows = [...waits].reverse().map((wait) => h("tr", {},
    h("th", { scope: "row" }, ownerLink(wait.owner, ns)),
    h("td", {}, timeOf(wait.from)),
    h("td", { class: "num" }, span((wait.to ?? now()) - wait.from)),
    h("td", {}, words[wait.how], wait.reason && h("span", { class: "why" }, visible(wait.reason)))));
  return table("Who waited", ["Owner", "From", "For", "Then"], rows);
}

export function table(caption, heads, rows) {
  // On a phone each row is a list (style.css), which must still be a table for those who listen.
  for (const row of rows) {
    row.setAttribute("role", "row");
    [...row.cells].forEach((cell, index) => {
      cell.setAttribute("role", index ? "cell" : "rowheader");
      cell.dataset.label = heads[index];
    });
  }
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: "plain", role: "table" }, h("caption", {}, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((head) => h("th", { scope: "col", role: "columnheader" }, head)))),
      h("tbody", { role: "rowgroup" }, rows)));
}
