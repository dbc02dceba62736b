// The board: the jobs of one state as a table, with filters.

import * as columns from "./columns.js";
import { announce, h, setText } from "./dom.js";
import { waitForGraph } from "./graph.js";
import { MOST, urgency } from "./jobs.js";
import { FILTERS, TITLES, go, read } from "./place.js";
import { hourPlots, needsYou } from "./summary.js";
import { WindowTable } from "./table.js";
import { count, noteOf, plural, shownName } from "./words.js";

const ABOUT = {
  held: ["Nobody holds a job.", "A claim shows up here at once: dibs claim JOB"],
  waiting: ["Nobody waits in line.", "Workers that ask for a held job with --wait stand here."],
  parked: ["No job is parked.", "A job is parked when its owners failed too often. It waits for an operator to free it."],
  failed: ["No job failed.", "Jobs whose last owner failed, or was lost, are here until somebody claims them again."],
  done: ["No job is marked as done.", "dibs release JOB --done puts it here for as long as it counts."],
  pools: ["There are no pools.", "dibs pool set JOB 4 lets four own a job at once."],
  closures: ["Nothing is closed.", "dibs close JOB --for 2h --reason WHY lets nobody claim it meanwhile."],
  agents: ["No agent is at work.", "Coding agents show up here by their hooks: dibs agent install"],
  sessions: ["No session is open.", "Each run of dibs run, an SDK client or an agent opens one."],
};
const COLUMNS = { held: columns.held, waiting: columns.waiting, parked: columns.ended, failed: columns.ended, done: columns.done, pools: columns.pools, closures: columns.closures, agents: columns.agents, sessions: columns.sessions };
const ALWAYS_READ = new Set(["held", "waiting", "closures"]); // for what stands above the table, and the tabs' numbers
const LABELS = { q: "Filter", prefix: "Name begins with", owner: "Owner", session: "Session", ns: "Namespace" };

const HAS_KEYS = matchMedia("(hover: hover) and (pointer: fine)").matches; // a phone has no / to press

const lower = (text) => String(text ?? "").toLowerCase();

function textOf(row) {
  const parts = [row.name, row.owner, noteOf(row.metadata), row.previous?.owner, row.previous?.how, row.previous?.reason, row.done?.result, row.session_id, row.client, row.tree, row.branch, row.action, row.by, row.reason];
  for (const each of row.holds ?? []) parts.push(each.owner, noteOf(each.metadata), each.checkpoint);
  for (const each of row.holders ?? []) parts.push(each.owner);
  parts.push(...(row.jobs ?? []), ...(row.files ?? []));
  return lower(parts.filter(Boolean).join("\n"));
}

function ownersOf(row) {
  return [row.owner, row.previous?.owner, row.done?.owner, ...(row.holds ?? []).map((each) => each.owner)];
}

/** Rows that fit the filters of the address. The prefix and the namespace are the server's. */
export function fitting(rows, place, sessions) {
  const text = lower(place.q), owner = lower(place.owner), session = lower(place.session);
  let jobs = null;
  if (session) {
    const found = sessions.filter((each) => lower(each.session_id).startsWith(session.slice(0, 8)));
    jobs = new Set(found.flatMap((each) => [...each.holds.map((hold) => hold.name), ...each.waits]));
  }
  if (!text && !owner && !jobs) return rows;
  return rows.filter((row) =>
    (!text || textOf(row).includes(text)) &&
    (!owner || ownersOf(row).some((each) => each && lower(each).includes(owner))) &&
    (!jobs || (row.session_id ?? row.session ? lower(row.session_id ?? row.session).startsWith(session.slice(0, 8)) : jobs.has(row.name))));
}

function filterBar(me) {
  const inputs = new Map();
  let isTyping = false;
  const typed = () => {
    const place = read();
    for (const [field, input] of inputs) place[field] = input.value;
    go(place, { replace: isTyping });
    isTyping = true;
  };
  let timer = 0;
  const fields = FILTERS.map((field) => {
    const input = h("input", { id: `f-${field}`, type: "search", autocomplete: "off", spellcheck: "false", name: field,
      oninput: () => { clearTimeout(timer); timer = setTimeout(typed, 200); },
      onblur: () => (isTyping = false) });
    inputs.set(field, input);
    const bound = field === "ns" && me.namespace !== null && me.namespace !== undefined;
    if (bound) input.disabled = true;
    if (field === "ns") input.placeholder = me.namespace ?? "default";
    if (field === "q") input.placeholder = `Job, owner or note${HAS_KEYS ? ". Press / to write here" : ""}`;
    const label = h("label", { for: `f-${field}`, class: field === "q" ? "unseen" : null }, LABELS[field]); // its placeholder says more
    return h("div", { class: `field f-${field}` }, label, input);
  });
  const [text, ...more] = fields;
  text.querySelector("input").setAttribute("aria-keyshortcuts", "/");
  const details = h("details", { class: "more" }, h("summary", {}, "More filters"), h("div", { class: "fields" }, more));
  const words = h("p", { class: "found" });
  const element = h("form", { class: "filters", role: "search", "aria-label": "Filter", onsubmit: (event) => { event.preventDefault(); clearTimeout(timer); typed(); isTyping = false; } },
    text, details, words);
  return {
    element, words,
    focus: () => inputs.get("q").focus(),
    show(place) {
      for (const [field, input] of inputs) if (document.activeElement !== input && input.value !== place[field]) input.value = place[field];
      if (FILTERS.slice(1).some((field) => place[field])) details.open = true;
    },
  };
}

/** The jobs, without a file's second name if the first has the same owner. */
function oncePerFile(byName) {
  return [...byName.values()].filter((row) => {
    const first = row.name.startsWith("path:@") ? byName.get(shownName(row.name)) : undefined;
    return first === undefined || first === row || first.holds[0]?.owner !== row.holds[0]?.owner;
  });
}

export class Board {
  constructor({ source, tab, me }) {
    this.tab = tab;
    this.title = TITLES[tab];
    this._source = source;
    this._filters = filterBar(me);
    this._needs = tab === "held" ? needsYou(source) : null;
    this._plots = tab === "held" ? hourPlots(source.ns) : null;
    this._graph = tab === "waiting" ? waitForGraph(source.ns) : null;
    const view = {
      ns: source.ns, mark: null, waiting: (name) => source.byJob.get(name) ?? 0, units: (name) => source.unitsByJob.get(name) ?? 0,
      closedFor: (name) => source.waiters.filter((each) => each.closed?.name === name).length,
    };
    this._columns = COLUMNS[tab](view);
    this._usual = tab === "held" ? "" : this._columns[0].key; // claims: what needs a look first
    this._calm = (row) => -urgency(row, view.waiting(row.name));
    this._key = { waiting: (row) => `${row.name}\n${row.position}\n${row.since}`, sessions: (row) => row.session_id, agents: (row) => row.session }[tab] ?? ((row) => row.name);
    this._table = new WindowTable({ caption: `${this.title}: jobs and their owners`, columns: this._columns, key: this._key, onSort: (key) => this._sort(key) });
    const [nothing, hint] = ABOUT[tab];
    this._nothing = [nothing, hint];
    this._emptyTitle = h("p", { class: "empty-title" }, nothing);
    this._emptyHint = h("p", { class: "muted" }, hint);
    this._empty = h("div", { class: "empty", hidden: true }, this._emptyTitle, this._emptyHint);
    this._more = h("p", { class: "muted more-rows", hidden: true });
    this.element = h("div", { class: "board" }, h("h1", { class: "unseen" }, this.title),
      this._needs?.element, this._plots?.element, this._filters.element, this._graph?.element, this._table.element, this._empty, this._more);
    if (!ALWAYS_READ.has(tab)) source.want(tab);
    this.follow();
  }

  close() {
    this._table.close();
    if (!ALWAYS_READ.has(this.tab)) this._source.leave(this.tab);
  }

  focusFilter() {
    this._filters.focus();
  }

  /** The address changed. */
  follow() {
    this._place = read();
    this._filters.show(this._place);
    if (this._place.session) this._source.want("sessions");
    this.show();
  }

  _sort(key) {
    const [now, direction] = (this._place.sort || this._usual).split(".");
    go({ ...this._place, sort: now === key && direction !== "down" ? `${key}.down` : key });
  }

  _rows() {
    const source = this._source;
    if (this.tab === "held") return { rows: oncePerFile(source.jobs.byName), isWhole: source.jobs.isWhole, isCut: source.jobs.isCut };
    if (this.tab === "waiting") return { rows: source.waiters, isWhole: true, isCut: source.isWaitersCut };
    if (this.tab === "closures") return { rows: source.jobs.closures, isWhole: source.jobs.isWhole };
    if (this.tab === "sessions") return { rows: source.sessions, isWhole: true };
    if (this.tab === "agents") return source.agents;
    return source.lists.get(this.tab) ?? { rows: [], isWhole: false };
  }

  _ordered(rows) {
    const [key, direction] = (this._place.sort || this._usual).split(".");
    const column = this._columns.find((each) => each.key === key && each.order) ?? (this._usual && this._columns[0]);
    const sign = direction === "down" ? -1 : 1;
    const order = column ? column.order : this._calm;
    this._table.sorted(column?.key, sign > 0 ? "ascending" : "descending");
    const name = (row) => row.name ?? row.session_id;
    if (column?.key === "job") return rows.sort((a, b) => (a.name < b.name ? -sign : a.name > b.name ? sign : a.position - b.position));
    const keys = new Map(rows.map((row) => [row, order(row)]));
    return rows.sort((x, y) => {
      const a = keys.get(x), b = keys.get(y);
      return a < b ? -sign : a > b ? sign : name(x) < name(y) ? -1 : 1;
    });
  }

  show(what) {
    if (what === "event") return; // the claims have taken it already, and are drawn in a moment
    const { rows, isWhole, isCut } = this._rows();
    const fit = this._ordered([...fitting(rows, this._place, this._source.sessions)]);
    this._table.show(fit);
    this._needs?.show();
    this._plots?.show(this._source.hour);
    this._graph?.show(fit);
    const isFiltered = FILTERS.slice(0, 4).some((field) => this._place[field]);
    this._table.element.hidden = !fit.length;
    this._empty.hidden = Boolean(fit.length) || !isWhole;
    setText(this._emptyTitle, isFiltered ? "Nothing fits these filters." : this._nothing[0]);
    setText(this._emptyHint, isFiltered ? "Clear a filter to see more." : this._nothing[1]);
    const unit = { sessions: "session", agents: "agent", pools: "pool", closures: "closure" }[this.tab] ?? "row";
    const said = isFiltered ? `${count(fit.length)} of ${count(rows.length)}` : plural(fit.length, unit, `${unit}s`);
    const reading = this._source.isRefused && !rows.length ? "" : `Reading… ${count(rows.length)}`; // the notice says why
    const words = isWhole ? said : reading;
    if (this._filters.words.textContent !== words) {
      setText(this._filters.words, words);
      if (isWhole && isFiltered && said !== this._said) announce(`${said} shown`);
      this._said = said;
    }
    this._more.hidden = !isCut;
    setText(this._more, isCut ? `Only the first ${count(Math.min(rows.length, MOST))} are here. A prefix shows others.` : "");
  }

  tick() {
    this._table.tick();
  }

  /** What is in sight and may have been renewed. */
  refresh() {
    if (this.tab === "held") this._source.jobs.refresh(this._table.visible());
  }
}
