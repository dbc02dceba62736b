// What stands above the table of claims: what needs a person, and the last hour as small plots.

import { now } from "./clock.js";
import { bdi, exchange, h, setText, svg } from "./dom.js";
import { LINE_LONG, isSilent } from "./jobs.js";
import { href, jobHref } from "./place.js";
import { count, exact, plural, visible } from "./words.js";

const WAIT_LONG_MS = 15 * 60_000;
const SHOWN = 3; // of each kind; the others are one line

/** Pools without slots that somebody waits for: nobody is served until an operator gives them some. */
const paused = (waiters) => [...new Set(waiters.filter((each) => each.job_status === "paused").map((each) => each.name))];

/** Jobs with many in line, or somebody who has waited for long; the longest line first. */
function longLines(waiters, byJob) {
  const late = now() - WAIT_LONG_MS;
  const slow = waiters.filter((each) => byJob.get(each.name) >= LINE_LONG || Date.parse(each.since) < late);
  return [...new Set(slow.map((each) => each.name))].sort((a, b) => byJob.get(b) - byJob.get(a));
}

const item = (level, symbol, to, ...words) => h("li", { class: level }, h("span", { "aria-hidden": "true" }, symbol), " ", h("a", { "data-link": true, href: to }, ...words));

/** The first few of a kind, and a line for the rest. */
function few(rows, show, rest) {
  const left = rows.length - SHOWN;
  return [...rows.slice(0, SHOWN).map(show), ...(left > 0 ? [rest(left)] : [])];
}

/** Closed and paused jobs, stuck jobs, long lines, silent owners. It is not there when nothing needs anybody. */
export function needsYou(source) {
  const list = h("ul");
  const element = h("section", { class: "needs", "aria-labelledby": "needs-title", hidden: true }, h("h2", { id: "needs-title" }, "Needs you"), list);
  let drawn = "";
  return {
    element,
    show() {
      const { ns, hour, waiters, byJob, jobs } = source;
      const { parked = 0, failed = 0 } = hour?.stuck ?? {};
      const stopped = paused(waiters);
      const lines = longLines(waiters, byJob).filter((name) => !stopped.includes(name));
      const quiet = [...jobs.byName.values()].filter(isSilent);
      const mark = JSON.stringify([ns, jobs.closures.map((each) => [each.name, each.until, each.reason]), parked, failed, stopped.map((name) => [name, byJob.get(name)]), lines.map((name) => [name, byJob.get(name)]), quiet.length, quiet[0]?.name]);
      if (mark === drawn) return;
      drawn = mark;
      const parts = [
        ...few(stopped, (name) => item("bad", "‖", jobHref(name, ns), bdi(visible(name)), ` is paused: ${count(byJob.get(name))} in line`),
          (left) => item("bad", "‖", href({ tab: "pools", ns }), plural(left, "more paused pool", "more paused pools"))),
        ...few(jobs.closures, (each) => item("warn", "⊘", jobHref(each.name, ns), bdi(visible(each.name)), ` is closed until ${exact(Date.parse(each.until))}: `, bdi(visible(each.reason))),
          (left) => item("warn", "⊘", href({ tab: "closures", ns }), plural(left, "more closure", "more closures"))),
        parked && item("bad", "■", href({ tab: "parked", ns }), `${plural(parked, "job is", "jobs are")} parked`),
        failed && item("bad", "✕", href({ tab: "failed", ns }), `${plural(failed, "job", "jobs")} failed or lost, and nobody took over`),
        ...few(lines, (name) => item("warn", "…", jobHref(name, ns), bdi(visible(name)), `: ${count(byJob.get(name))} in line`),
          (left) => item("warn", "…", href({ tab: "waiting", ns }), plural(left, "more long line", "more long lines"))),
        quiet.length && item("warn", "◷", href({ sort: "left", ns }), ...(quiet.length === 1 ? [bdi(visible(quiet[0].name)), ": its owner is silent"] : [`${count(quiet.length)} claims have silent owners`])),
      ].filter(Boolean);
      element.hidden = !parts.length;
      exchange(list, ...parts);
    },
  };
}

// The plots are made from the counts of GET /activity.

const HIGH = 28;
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/** How many were held at the end of each minute: back from now, by what began and ended since. */
function heldOf(hour) {
  const { acquired, ...ends } = hour.minutes;
  const held = new Array(acquired.length);
  let level = hour.held;
  for (let minute = acquired.length - 1; minute >= 0; minute -= 1) {
    held[minute] = Math.max(0, level);
    level -= acquired[minute] - sum(Object.values(ends).map((counts) => counts[minute]));
  }
  return held;
}

function plot(label, kind, to, isHour = true) {
  const number = h("span", { class: "number" }, "–");
  const drawing = svg("svg", { viewBox: `0 0 60 ${HIGH}`, preserveAspectRatio: "none", role: "img", class: `plot ${kind}` });
  const element = h("a", { class: "tile", "data-link": true, href: to }, h("span", { class: "tile-words" }, number, h("span", { class: "label" }, label, isHour && h("span", { class: "hour" }, " in the last hour"))), drawing);
  return {
    element,
    show(numbers, shown, said) {
      const most = Math.max(1, ...numbers);
      setText(number, count(shown));
      drawing.setAttribute("aria-label", said(most));
      const bars = numbers.map((value, minute) => {
        const high = value ? Math.max(1.5, (value / most) * HIGH) : 0.6;
        return svg("rect", { x: minute + 0.1, y: HIGH - high, width: 0.8, height: high, class: value ? "" : "none" });
      });
      drawing.replaceChildren(...bars);
    },
  };
}

export function hourPlots(ns) {
  const held = plot("claims now", "k-held", href({ ns }), false);
  const claims = plot("new claims", "k-claims", href({ ns, sort: "age.down" }));
  const expired = plot("expired", "k-expired", href({ ns, tab: "failed", q: "expired" }));
  const failed = plot("failed", "k-failed", href({ ns, tab: "failed" }));
  const element = h("section", { class: "tiles", "aria-label": "The last hour" },
    held.element, claims.element, expired.element, failed.element);
  const say = (what, total) => (most) => `${what} in the last hour: ${count(total)}, at most ${count(most)} in a minute`;
  let drawn = null;
  return {
    element,
    show(hour) {
      if (!hour || hour === drawn) return;
      drawn = hour;
      held.show(heldOf(hour), hour.held, (most) => `Held over the last hour: ${count(hour.held)} now, at most ${count(most)}`);
      for (const [tile, kind, what] of [[claims, "acquired", "Claims"], [expired, "expired", "Expired claims"], [failed, "failed", "Failed claims"]]) {
        const total = sum(hour.minutes[kind]);
        tile.show(hour.minutes[kind], total, say(what, total));
      }
    },
  };
}
