// The strip of what needs a person: stuck jobs, long lines, silent owners. It is not there when nothing does.

import { bdi, exchange, h } from "./dom.js";
import { now } from "./clock.js";
import { first } from "./jobs.js";
import { href, jobHref } from "./place.js";
import { count, plural, visible } from "./words.js";

const LINE_LONG = 5;
const WAIT_LONG_MS = 15 * 60_000;
const SILENT_PART = 0.7; // of the time that a claim lasts without a heartbeat
const SILENT_MS = 30_000;
const LINES_SHOWN = 3;

/** Claims whose owner was silent for long when they were last read. Later heartbeats are not known here. */
function silent(jobs) {
  const began = now() - performance.now();
  return jobs.filter((job) => {
    const hold = first(job);
    const quiet = hold ? began + job.read - hold.heard : 0;
    return quiet >= SILENT_MS && quiet >= SILENT_PART * hold.span;
  });
}

/** Jobs with many in line, or somebody who has waited for long; the longest line first. */
function longLines(waiters, byJob) {
  const late = now() - WAIT_LONG_MS;
  const slow = waiters.filter((each) => byJob.get(each.name) >= LINE_LONG || Date.parse(each.since) < late);
  return [...new Set(slow.map((each) => each.name))].sort((a, b) => byJob.get(b) - byJob.get(a));
}

const item = (level, symbol, to, ...words) => h("li", { class: level }, h("span", { "aria-hidden": "true" }, symbol), " ", h("a", { "data-link": true, href: to }, ...words));

export function needsYou(source) {
  const list = h("ul");
  const element = h("section", { class: "needs", "aria-labelledby": "needs-title", hidden: true }, h("h2", { id: "needs-title" }, "Needs you"), list);
  let drawn = "";
  return {
    element,
    show() {
      const { ns, hour, waiters, byJob, jobs } = source;
      const { parked = 0, failed = 0 } = hour?.stuck ?? {};
      const lines = longLines(waiters, byJob);
      const quiet = silent([...jobs.byName.values()]);
      const mark = JSON.stringify([ns, parked, failed, lines.map((name) => [name, byJob.get(name)]), quiet.length, quiet[0]?.name]);
      if (mark === drawn) return;
      drawn = mark;
      const parts = [
        parked && item("bad", "■", href({ tab: "parked", ns }), `${plural(parked, "job is", "jobs are")} parked`),
        failed && item("bad", "✕", href({ tab: "failed", ns }), `${plural(failed, "job", "jobs")} failed or lost, and nobody took over`),
        ...lines.slice(0, LINES_SHOWN).map((name) => item("warn", "…", jobHref(name, ns), bdi(visible(name)), `: ${count(byJob.get(name))} in line`)),
        lines.length > LINES_SHOWN && item("warn", "…", href({ tab: "waiting", ns }), `${plural(lines.length - LINES_SHOWN, "more long line", "more long lines")}`),
        quiet.length && item("warn", "◷", href({ sort: "left", ns }), ...(quiet.length === 1 ? [bdi(visible(quiet[0].name)), ": its owner is silent"] : [`${count(quiet.length)} claims have silent owners`])),
      ].filter(Boolean);
      element.hidden = !parts.length;
      exchange(list, ...parts);
    },
  };
}
