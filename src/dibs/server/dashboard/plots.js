// Small plots of the last hour, made from the counts of GET /activity.

import { h, setText, svg } from "./dom.js";
import { href } from "./place.js";
import { count } from "./words.js";

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
  const held = plot("held now", "k-held", href({ ns }), false);
  const claims = plot("claims", "k-claims", href({ ns, sort: "age.down" }));
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
