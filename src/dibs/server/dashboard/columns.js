// The columns of each tab. A column with `says(row)` is not shown if it says nothing of any row.

import { agoCell, barCell, linkCell, stateCell, textCell } from "./cells.js";
import { first, slotsTaken } from "./jobs.js";
import { jobHref, ownerHref, sessionHref } from "./place.js";
import { count, exact, noteOf, shownName } from "./words.js";

const lower = (text) => String(text ?? "").toLowerCase();
const note = (hold) => [hold?.checkpoint, noteOf(hold?.metadata)].filter(Boolean).join(" · ");
const owners = (job) =>
  job.holds.length > 1 ? `${first(job).owner} and ${job.holds.length - 1} more` : first(job)?.owner;
const at = (text) => (text ? Date.parse(text) : 0);

export function lifeOf(job) {
  return first(job);
}

const job = (view, sub) => ({
  key: "job", label: "Job", kind: "c-job", order: (row) => row.name,
  make: linkCell((row) => shownName(row.name), (row) => jobHref(row.name, view.ns), { sub, mark: view.mark }),
});
const owner = (view, label, who) => ({
  key: "owner", label, kind: "c-owner", order: (row) => lower(who(row)),
  make: linkCell(who, (row) => (who(row) ? ownerHref(row.holds ? first(row)?.owner ?? who(row) : who(row), view.ns) : null)),
});

export function held(view) {
  const waits = (row) => view.waiting(row.name);
  const attempt = (row) => Math.max(...row.holds.map((hold) => hold.attempt));
  const marks = (row) => [row.closed && "closed", slotsTaken(row), waits(row) && `${count(waits(row))} in line`, attempt(row) > 1 && `attempt ${attempt(row)}`];
  const marked = { ...view, mark: (row) => marks(row).filter(Boolean).join(", ") };
  return [
    job(marked, owners),
    owner(view, "Owner", owners),
    { key: "left", label: "Time left", kind: "c-left", order: (row) => first(row).expires, make: barCell(lifeOf) },
    { key: "age", label: "Held for", kind: "c-time", order: (row) => -first(row).since, make: agoCell((row) => first(row)?.since, { plain: true }) },
    { key: "heard", label: "Heartbeat", kind: "c-time c-extra", order: (row) => first(row).heard, make: agoCell((row) => first(row)?.heard) },
    { key: "note", label: "Checkpoint and note", kind: "c-note", says: (row) => note(first(row)), make: textCell((row) => note(first(row))) },
  ];
}

// Why somebody waits in whose way no claim is, by the server's word for the job.
const WHY = { held: "who is before it comes first", closed: "it is closed", paused: "its pool is paused", delayed: "it rests", frozen: "the store is frozen" };

export function waiting(view) {
  const holders = (row) => row.holders.map((each) => each.owner);
  const said = (row) => {
    const names = holders(row);
    if (names.length) return names.length > 1 ? `${names[0]} and ${names.length - 1} more` : names[0];
    return ["nobody: ", WHY[row.job_status] ?? "the first in line is next", row.job_status === "closed" ? `, ${row.closed.reason}` : ""].join("");
  };
  return [
    job(view, (row) => `${row.owner}, place ${row.position}`),
    owner(view, "Who waits", (row) => row.owner),
    { key: "place", label: "Place", kind: "c-number", order: (row) => row.position, make: textCell((row) => count(row.position)) },
    { key: "units", label: "Wants", kind: "c-number", order: (row) => -row.units, says: (row) => row.units > 1, make: textCell((row) => (row.units > 1 ? `${count(row.units)} slots` : "")) },
    { key: "age", label: "In line for", kind: "c-time", order: (row) => at(row.since), make: agoCell((row) => at(row.since), { plain: true }) },
    { key: "for", label: "Held by", kind: "c-note c-keep", order: (row) => lower(said(row)), make: linkCell(said, (row) => (row.holders.length ? ownerHref(row.holders[0].owner, view.ns) : null)) },
  ];
}

const previous = (row) => row.previous ?? {};
const why = (row) => [previous(row).reason, previous(row).checkpoint].filter(Boolean).join(" · ");

export function ended(view) {
  return [
    job(view, (row) => previous(row).owner),
    owner(view, "Last owner", (row) => previous(row).owner),
    { key: "how", label: "Ended", kind: "c-state", order: (row) => previous(row).how, make: stateCell((row) => previous(row).how ?? "released") },
    { key: "when", label: "When", kind: "c-time", order: (row) => -at(previous(row).at), make: agoCell((row) => at(previous(row).at)) },
    { key: "state", label: "Now", kind: "c-state c-extra", order: (row) => row.status, says: (row) => !["parked", "free"].includes(row.status), make: stateCell((row) => row.status) },
    { key: "attempt", label: "Attempt", kind: "c-number c-extra", order: (row) => -(previous(row).attempt ?? 0), says: (row) => previous(row).attempt > 1, make: textCell((row) => String(previous(row).attempt ?? "")) },
    { key: "note", label: "Reason and checkpoint", kind: "c-note", says: why, make: textCell(why) },
  ];
}

/** Pools: what is taken, by whom, and what those in line want. */
export function pools(view) {
  const line = (row) => {
    const waits = view.waiting(row.name), units = view.units(row.name);
    return waits ? `${count(waits)}${units > waits ? `, for ${count(units)} slots` : ""}` : "";
  };
  return [
    job(view, (row) => [owners(row), line(row) && `${line(row)} in line`].filter(Boolean).join(", ")),
    { key: "state", label: "State", kind: "c-state", order: (row) => row.status, make: stateCell((row) => row.status) },
    { key: "taken", label: "Taken", kind: "c-slots", order: (row) => -row.slots_taken, make: textCell(slotsTaken) },
    owner(view, "Owners", owners),
    { key: "line", label: "In line", kind: "c-note c-keep c-line", order: (row) => -view.units(row.name), make: textCell(line) },
  ];
}

/** What operators closed, and for how long. */
export function closures(view) {
  const life = (row) => ({ expires: at(row.until), span: Math.max(1000, at(row.until) - at(row.since)) });
  return [
    job(view, (row) => `${row.by}: ${row.reason}`),
    { key: "by", label: "Closed by", kind: "c-owner", order: (row) => lower(row.by), make: textCell((row) => row.by) },
    { key: "left", label: "Opens in", kind: "c-left", order: (row) => at(row.until), make: barCell(life) },
    { key: "age", label: "Closed for", kind: "c-time", order: (row) => at(row.since), make: agoCell((row) => at(row.since), { plain: true }) },
    { key: "line", label: "In line", kind: "c-number c-extra", order: (row) => -view.closedFor(row.name), says: (row) => view.closedFor(row.name), make: textCell((row) => count(view.closedFor(row.name))) },
    { key: "note", label: "Reason", kind: "c-note c-keep c-reason", make: textCell((row) => row.reason) },
  ];
}

export function done(view) {
  const mark = (row) => row.done ?? {};
  return [
    job(view, (row) => mark(row).owner),
    owner(view, "Done by", (row) => mark(row).owner),
    { key: "when", label: "When", kind: "c-time c-keep", order: (row) => -at(mark(row).at), make: agoCell((row) => at(mark(row).at)) },
    { key: "until", label: "Counts until", kind: "c-date c-extra", order: (row) => at(mark(row).until), make: textCell((row) => (mark(row).until ? exact(at(mark(row).until)) : "")) },
    { key: "note", label: "Result", kind: "c-note", says: (row) => mark(row).result, make: textCell((row) => mark(row).result) },
  ];
}

export function sessions(view) {
  const life = (row) => ({ expires: at(row.expires_at), span: row.ttl_seconds * 1000 });
  return [
    { key: "session", label: "Session", kind: "c-job", order: (row) => row.session_id, make: linkCell((row) => row.session_id.slice(0, 8), (row) => sessionHref(row.session_id, view.ns), { sub: (row) => row.owner }) },
    owner(view, "Owner", (row) => row.owner),
    { key: "left", label: "Time left", kind: "c-left", order: (row) => at(row.expires_at), make: barCell(life) },
    { key: "age", label: "Open for", kind: "c-time", order: (row) => -at(row.since), make: agoCell((row) => at(row.since), { plain: true }) },
    { key: "holds", label: "Holds", kind: "c-number", order: (row) => -row.lock_count, make: textCell((row) => count(row.lock_count)) },
    { key: "waits", label: "Waits for", kind: "c-number c-extra", order: (row) => -row.waits.length, says: (row) => row.waits.length, make: textCell((row) => count(row.waits.length)) },
    { key: "note", label: "Note", kind: "c-note", says: (row) => noteOf(row.metadata), make: textCell((row) => noteOf(row.metadata)) },
  ];
}

const few = (names, most = 2) => names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");

export function agents(view) {
  const files = (row) => (row.file_count > row.files.length ? `${count(row.file_count)} files` : few(row.files));
  const place = (row) => [row.host && row.work_tree ? `${row.host}:${row.work_tree}` : row.work_tree, row.branch].filter(Boolean).join(" @ ");
  return [
    { key: "agent", label: "Agent", kind: "c-job", order: (row) => lower(row.name), make: linkCell((row) => row.name, (row) => ownerHref(row.owner, view.ns), { sub: (row) => [row.client, row.action].filter(Boolean).join(", ") }) },
    { key: "client", label: "Client", kind: "c-owner", order: (row) => lower(row.client), make: textCell((row) => row.client) },
    { key: "state", label: "State", kind: "c-state", order: (row) => row.state, make: stateCell((row) => row.state) },
    { key: "work_tree", label: "Work tree", kind: "c-note c-keep", order: (row) => lower(place(row)), make: textCell(place) },
    { key: "issue", label: "Issue", kind: "c-owner", order: (row) => lower(row.jobs[0]), says: (row) => row.jobs.length + row.holds.length, make: textCell((row) => few([...row.jobs, ...row.holds])) },
    { key: "files", label: "Files", kind: "c-note", order: (row) => -row.file_count, says: (row) => row.file_count, make: textCell(files) },
    { key: "waits", label: "Waits for", kind: "c-note", order: (row) => -row.waits.length, says: (row) => row.waits.length, make: textCell((row) => few(row.waits)) },
    { key: "action", label: "Did last", kind: "c-note c-extra", order: (row) => lower(row.action), says: (row) => row.action, make: textCell((row) => row.action) },
    { key: "heard", label: "When", kind: "c-time", order: (row) => -at(row.active_at), make: agoCell((row) => at(row.active_at)) },
    { key: "age", label: "Here for", kind: "c-time c-extra", order: (row) => at(row.since), make: agoCell((row) => at(row.since), { plain: true }) },
  ];
}
