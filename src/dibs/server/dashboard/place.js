// The place in the address bar: which page, which tab, which filters. All of it can be shared.

export const TITLES = { held: "Held", waiting: "Waiting", parked: "Parked", failed: "Failed", done: "Done", pools: "Pools", closures: "Closed", agents: "Agents", sessions: "Sessions" };
export const TABS = Object.keys(TITLES);
export const FILTERS = ["q", "prefix", "owner", "session", "ns"];
const KNOWN = ["page", "name", "owner", "id", "tab", "sort", ...FILTERS];

let listener = () => {};

export function read() {
  const words = new URLSearchParams(location.search);
  const place = Object.fromEntries(KNOWN.map((word) => [word, words.get(word) ?? ""]));
  if (!TABS.includes(place.tab)) place.tab = "held";
  return place;
}

export function href(place) {
  const words = new URLSearchParams();
  for (const word of KNOWN) {
    if (place[word] && !(word === "tab" && place.tab === "held")) words.set(word, place[word]);
  }
  return words.size ? `/?${words}` : "/";
}

export const jobHref = (name, ns) => href({ page: "job", name, ns });
export const ownerHref = (owner, ns) => href({ page: "owner", owner, ns });
export const sessionHref = (id, ns) => href({ page: "session", id: id.slice(0, 8), ns });

/** Goes there. `replace`: without a step for the back button, as while typing. */
export function go(place, { replace = false } = {}) {
  const address = href(place);
  if (address === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  listener({ typed: replace });
}

/** Calls `moved` after every move. Links with data-link move without loading the page anew. */
export function follow(moved) {
  listener = moved;
  addEventListener("popstate", () => moved({ typed: false }));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-link]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    const target = link.getAttribute("href");
    if (target === location.pathname + location.search) return;
    history.pushState(null, "", target);
    scrollTo(0, 0);
    moved({ typed: false, focus: true });
  });
}
