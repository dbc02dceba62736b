// A table that keeps only the rows in sight. It is a real table: the rows above and below are two rows of their height.
// On paper all of them are in sight.
//
// A column: { key, label, kind, make(cell) -> update(row), tick?(row), order?(row), says?(row) }. `make` builds the cell
// once; the function that it returns writes what changed. A column that says nothing of any row is not shown.

import { h } from "./dom.js";

const SPARE = 14; // rows above and below what is in sight
const STEP = 10; // how many rows are changed at a time while scrolling

export class WindowTable {
  constructor({ caption, columns, key, onSort = null }) {
    this._columns = columns;
    this._key = key;
    this._rows = [];
    this._folded = columns.map(() => false);
    this._shown = new Map();
    this._free = [];
    this._from = this._to = 0;
    this._above = this._spacer();
    this._below = this._spacer();
    this._body = h("tbody", {}, this._above, this._below);
    this._heads = columns.map((column) => this._head(column, onSort));
    this.element = h("table", { class: "rows" },
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", { "aria-rowindex": "1" }, this._heads)), this._body);
    this._onScroll = () => this._soon();
    addEventListener("scroll", this._onScroll, { passive: true });
    this._watch = new ResizeObserver(() => {
      this._measured = false;
      this._soon();
    });
    this._watch.observe(document.documentElement);
    this._onPrint = (event) => this._print(event.type === "beforeprint");
    addEventListener("beforeprint", this._onPrint);
    addEventListener("afterprint", this._onPrint);
  }

  close() {
    removeEventListener("scroll", this._onScroll);
    removeEventListener("beforeprint", this._onPrint);
    removeEventListener("afterprint", this._onPrint);
    this._watch.disconnect();
    cancelAnimationFrame(this._frame);
  }

  _spacer() {
    return h("tr", { class: "spacer", "aria-hidden": "true" }, h("td"));
  }

  _head(column, onSort) {
    const label = column.unseen ? h("span", { class: "unseen" }, column.label) : column.label;
    if (!column.order || !onSort) return h("th", { scope: "col", class: column.kind }, label);
    const button = h("button", { type: "button", class: "sort", onclick: () => onSort(column.key) },
      label, h("span", { class: "arrow", "aria-hidden": "true" }));
    return h("th", { scope: "col", class: column.kind }, button);
  }

  sorted(key, direction) {
    this._columns.forEach((column, index) => {
      if (column.key === key) this._heads[index].setAttribute("aria-sort", direction);
      else this._heads[index].removeAttribute("aria-sort");
    });
  }

  show(rows) {
    this._rows = rows;
    this._fold();
    this.element.setAttribute("aria-rowcount", String(rows.length + 1));
    this._measured = false; // what is above may have another height now
    this._isNew = true;
    this._soon();
  }

  _fold() {
    const folded = this._columns.map((column) => Boolean(column.says) && !this._rows.some(column.says));
    if (String(folded) === String(this._folded)) return;
    this._folded = folded;
    const made = [...this._shown.values(), ...this._free].map((shown) => [...shown.element.cells]);
    for (const cells of [this._heads, ...made]) cells.forEach((cell, index) => (cell.hidden = folded[index]));
  }

  visible() {
    return this._rows.slice(this._from, this._to);
  }

  /** The one timer of all bars and ages. */
  tick() {
    for (const [, shown] of this._shown) for (const tick of shown.ticks) tick(shown.row);
  }

  /** At once: what is printed is what is there when this returns. */
  _print(isPaper) {
    this._isPaper = isPaper;
    this._measured = false;
    this._isNew = true;
    this._draw();
  }

  _soon() {
    if (this._frame) return;
    this._frame = requestAnimationFrame(() => {
      this._frame = 0;
      this._draw();
    });
  }

  _measure() {
    if (this._measured) return;
    this._top = this._body.getBoundingClientRect().top + scrollY;
    this._high = innerHeight;
    this._height = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
    this._measured = true;
  }

  _draw() {
    if (!this.element.isConnected) return;
    this._measure();
    const start = Math.floor((scrollY - this._top) / this._height / STEP) * STEP - SPARE;
    const room = this._isPaper ? this._rows.length : Math.ceil(this._high / this._height) + 2 * SPARE;
    const from = Math.max(0, Math.min(start, this._rows.length - room));
    if (!this._isNew && from === this._from) return;
    this._from = from;
    this._to = Math.min(this._rows.length, this._from + room);
    const focused = document.activeElement;
    this._place(this._rows.slice(this._from, this._to));
    this._above.firstChild.style.height = `${this._from * this._height}px`;
    this._below.firstChild.style.height = `${(this._rows.length - this._to) * this._height}px`;
    this._above.hidden = this._from === 0;
    this._below.hidden = this._to === this._rows.length;
    // Moving an element takes the focus from it.
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  }

  _place(rows) {
    const wanted = new Set(rows.map(this._key));
    for (const [key, shown] of this._shown) {
      if (wanted.has(key)) continue;
      this._shown.delete(key);
      if (shown.element.contains(document.activeElement)) shown.element.remove();
      else this._free.push(shown);
    }
    let before = this._above;
    rows.forEach((row, index) => {
      const key = this._key(row);
      let shown = this._shown.get(key);
      if (!shown) {
        shown = this._free.pop() ?? this._make();
        this._shown.set(key, shown);
      }
      if (this._isNew || shown.row !== row) {
        shown.row = row;
        for (const update of shown.updates) update(row);
        for (const tick of shown.ticks) tick(row);
      }
      const place = String(this._from + index + 2);
      if (shown.element.getAttribute("aria-rowindex") !== place) shown.element.setAttribute("aria-rowindex", place);
      if (before.nextSibling !== shown.element) before.after(shown.element);
      before = shown.element;
    });
    this._isNew = false;
    for (const shown of this._free) shown.element.remove();
    if (this._free.length > 60) this._free.length = 60;
  }

  _make() {
    const updates = [], ticks = [];
    const cells = this._columns.map((column, index) => {
      const cell = h(index ? "td" : "th", { class: column.kind, scope: index ? null : "row", hidden: this._folded[index] });
      const made = column.make(cell);
      updates.push(made.update);
      if (made.tick) ticks.push(made.tick);
      return cell;
    });
    return { element: h("tr", { class: "row" }, cells), updates, ticks, row: null };
  }
}
