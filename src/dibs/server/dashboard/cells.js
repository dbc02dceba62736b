// The cells of tables: names, times, bars, states.

import { now } from "./clock.js";
import { h, setText, setTitle } from "./dom.js";
import { isShort, leftPart } from "./jobs.js";
import { ago, exact, span, visible } from "./words.js";

/** A link whose text is data. `href(row)` may be null: then it is plain text. */
export function linkCell(text, href, { sub = null, mark = null } = {}) {
  return (cell) => {
    const name = h("bdi");
    const link = h("a", { "data-link": true, class: "name" }, name);
    const under = sub && h("span", { class: "sub" }, h("bdi"));
    const badge = mark && h("span", { class: "mark", hidden: true });
    cell.append(h("span", { class: "line" }, link, badge ?? ""));
    if (under) cell.append(under);
    return {
      update(row) {
        const shown = visible(text(row) ?? "—");
        setText(name, shown);
        setTitle(link, shown);
        const to = href(row);
        if (to === null) link.removeAttribute("href");
        else if (link.getAttribute("href") !== to) link.setAttribute("href", to);
        if (under) setText(under.firstChild, visible(sub(row) ?? ""));
        if (badge) {
          const said = mark(row);
          badge.hidden = !said;
          setText(badge, said || "");
        }
      },
    };
  };
}

export function textCell(text, { title = null } = {}) {
  return (cell) => {
    const inner = h("bdi", { class: "clip" });
    cell.append(inner);
    return {
      update(row) {
        const shown = visible(text(row) ?? "");
        setText(inner, shown || "—");
        setTitle(inner, title ? title(row) : shown);
      },
    };
  };
}

/** How long since an instant; the instant itself is its title. */
export function agoCell(instant, { plain = false } = {}) {
  return (cell) => {
    const time = h("time", { class: "clip" });
    cell.append(time);
    return {
      update(row) {
        const at = instant(row);
        setTitle(time, at ? exact(at) : "");
        if (at) time.dateTime = new Date(at).toISOString();
      },
      tick(row) {
        const at = instant(row);
        setText(time, at ? (plain ? span(now() - at) : ago(now() - at)) : "—");
      },
    };
  };
}

/** The time left in words, and as a bar that drains once it is short. `life(row)` is { expires, span } in the server's time. */
export function barCell(life) {
  return (cell) => {
    const bar = makeBar();
    cell.append(bar.element);
    return { update: (row) => bar.update(life(row)), tick: (row) => bar.tick(life(row)) };
  };
}

/** One bar. Only `transform` changes over time, which needs no layout. */
export function makeBar() {
  const words = h("span", { class: "left-words" });
  const fill = h("span", { class: "fill" });
  const element = h("span", { class: "left" }, words, h("span", { class: "track", "aria-hidden": "true" }, fill));
  let drawn = "", level = "";
  return {
    element,
    update(life) {
      const most = life?.ends ? `; at most ${exact(life.ends)}, whatever is renewed` : "";
      if (life) setTitle(words, `ends ${exact(life.expires)} without a heartbeat${most}`);
    },
    tick(life) {
      if (!life) return setText(words, "—");
      const left = life.expires - now(), part = leftPart(life);
      const scale = `scaleX(${part.toFixed(3)})`;
      if (scale !== drawn) fill.style.transform = drawn = scale;
      const next = !isShort(life) ? "ok" : part > 0.1 ? "low" : "out";
      if (next !== level) element.dataset.level = level = next;
      setText(words, left > 0 ? span(left) : "ending");
    },
  };
}

/** An instant on a page, as time ago; `tickTimes` keeps it true. */
export function instant(at) {
  const time = h("time", { datetime: new Date(at).toISOString(), title: exact(at), "data-at": at });
  writeTime(time);
  return time;
}

function writeTime(time) {
  const at = Number(time.dataset.at);
  setText(time, at > now() ? `in ${span(at - now())}` : ago(now() - at));
}

export function tickTimes(root) {
  root.querySelectorAll("time[data-at]").forEach(writeTime);
}

const SYMBOLS = {
  held: "●", free: "○", parked: "■", delayed: "◔", done: "✓", closed: "⊘", paused: "‖", frozen: "❄",
  released: "✓", failed: "✕", expired: "◷", broken: "⚡", "in doubt": "?", running: "●", transferred: "→", holding: "●", waiting: "…",
};
const WORDS = { transferred: "handed over", holding: "holds it now" };

/** A state as a symbol and a word: never by colour alone. Of a job it is the server's word. */
export function stateBadge(state) {
  return h("span", { class: "state", "data-state": state }, h("span", { "aria-hidden": "true" }, SYMBOLS[state] ?? "·"), " ", WORDS[state] ?? state);
}

export function stateCell(state) {
  return (cell) => {
    let shown = "";
    return {
      update(row) {
        if (state(row) === shown) return;
        shown = state(row);
        cell.replaceChildren(stateBadge(shown));
      },
    };
  };
}
