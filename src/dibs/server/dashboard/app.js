// The page: who is here, where they are, what is shown.

import { logOut, whenStale, whoami } from "./api.js";
import { Board } from "./board.js";
import { heard, isKnown, noteLife, now } from "./clock.js";
import { notice } from "./dialog.js";
import { announce, byId, h, setText } from "./dom.js";
import { JobPage } from "./job.js";
import { loginView } from "./login.js";
import { OwnerPage, SessionPage } from "./people.js";
import { TABS, TITLES, follow, href, read } from "./place.js";
import { Source } from "./source.js";
import { count, exact } from "./words.js";

const BAD = { parked: 0, failed: 0 }; // tabs whose number is in red
const LINK = { live: "Live", silent: "Silent", lost: "Connection lost, retrying", polling: "Live updates are interrupted; reading every 5 s", hidden: "Paused", refused: "No live updates", connecting: "Connecting" };
const STALE = "Your login has ended: the token has expired or was revoked. Sign in again.";

let me = null, source = null, view = null, shown = "", isDirty = false;

const main = byId("main");

function put(next) {
  view?.close();
  view = next;
  main.replaceChildren(view.element);
  document.title = `${view.title} · dibs`;
}

function showLogin(sentence) {
  me = null;
  source?.close();
  source = null;
  shown = "login";
  byId("who").hidden = true;
  byId("tabs").replaceChildren();
  drawTrouble("");
  document.querySelectorAll("dialog").forEach((each) => each.close());
  put(loginView(sentence, begin));
  view.focus();
}

function begin(who) {
  me = who;
  byId("who").hidden = false;
  byId("notice").hidden = true;
  byId("me").replaceChildren(h("bdi", {}, me.principal), h("span", { class: "role" }, me.role));
  shown = "";
  route({});
}

/** The view of the address. Filters of a view that is shown change in place. */
function route({ focus = false }) {
  if (!me) return;
  const place = read();
  const ns = me.namespace ?? place.ns;
  const prefix = place.page ? "" : place.prefix;
  if (!source || source.ns !== ns || source.prefix !== prefix) {
    source?.close();
    byId("notice").hidden = true; // what was refused is no longer asked for
    source = new Source({ ns, prefix, changed, link, seen: (event) => view.show?.("event", event) });
    shown = "";
  }
  const key = JSON.stringify([place.page || place.tab, place.name, place.page && place.owner, place.id]);
  if (key === shown) view.follow();
  else {
    shown = key;
    put(make(place));
    if (focus) main.focus({ preventScroll: true });
  }
  drawTabs(place);
  view.show();
}

function make(place) {
  if (place.page === "job") return new JobPage({ source, name: place.name, me });
  if (place.page === "owner") return new OwnerPage({ source, owner: place.owner, me });
  if (place.page === "session") return new SessionPage({ source, id: place.id, me });
  return new Board({ source, tab: place.tab, me });
}

let drawMs = 0;
/** At most one drawing in a quarter of a second, and less than a tenth of the time, however much happens. */
function changed(what, problem) {
  if (what === "refused") {
    announce(problem.message);
    const notice = byId("notice");
    notice.hidden = false;
    setText(notice, problem.message);
    return view.show?.("refused");
  }
  if (what !== "held") {
    drawCounts();
    drawTrouble(byId("link-state").dataset.link);
    return view.show?.(what);
  }
  if (isDirty) return;
  isDirty = true;
  setTimeout(() => {
    isDirty = false;
    if (!me) return;
    const begun = performance.now();
    drawCounts();
    view.show?.("held");
    drawMs = performance.now() - begun;
  }, Math.max(250, 10 * drawMs));
}

function drawTabs(place) {
  const keep = { q: place.q, prefix: place.prefix, owner: place.page ? "" : place.owner, session: place.session, ns: place.ns };
  byId("tabs").replaceChildren(...TABS.map((tab) => h("a", {
    "data-link": true, href: href({ ...keep, tab }), "aria-current": !place.page && place.tab === tab ? "page" : null,
  }, TITLES[tab], h("span", { class: tab in BAD ? "count bad" : "count", id: `count-${tab}` }))));
  const current = byId("tabs").querySelector("[aria-current]");
  if (current) byId("tabs").scrollLeft = current.offsetLeft - (innerWidth - current.offsetWidth) / 2;
  byId("brand").setAttribute("href", href({ ns: place.ns }));
  drawCounts();
}

function drawCounts() {
  const { jobs, waiters, hour } = source ?? {};
  const said = { held: jobs?.isWhole ? jobs.byName.size : 0, waiting: waiters?.length ?? 0, closures: jobs?.closures.length ?? 0, ...(hour?.stuck ?? BAD) };
  for (const [tab, number] of Object.entries(said)) {
    const place = byId(`count-${tab}`);
    if (place) setText(place, number ? count(number) : "");
  }
}

/** Says what is wrong with the server. Without it, what is shown is as old as its last answer. */
function drawTrouble(state) {
  const isLost = state === "lost" && isKnown();
  const text = isLost ? `The server does not answer. This is as of ${exact(heard()).slice(11)}.` : me ? source?.trouble ?? "" : "";
  document.body.toggleAttribute("data-stale", isLost);
  byId("trouble").hidden = !text;
  setText(byId("trouble"), text);
}

let linkTimer = 0;
/** A short break is not worth a word. */
function link(state) {
  clearTimeout(linkTimer);
  if (state === "stale") return showLogin(STALE);
  const write = () => {
    const place = byId("link-state");
    const before = place.dataset.link;
    if (before === state) return;
    place.dataset.link = state;
    setText(byId("link-text"), LINK[state]);
    drawTrouble(state);
    if (state === "lost" || (state === "live" && (before === "lost" || before === "polling"))) announce(state === "live" ? "Connected again" : LINK.lost);
  };
  if (state === "lost" && byId("link-state").dataset.link === "live") linkTimer = setTimeout(write, 400);
  else write();
}

whenStale(() => me && showLogin(STALE));
follow(route);
byId("logout").addEventListener("click", async ({ currentTarget: button }) => {
  button.disabled = true;
  try {
    await logOut();
    showLogin();
  } catch (error) {
    // Only an answer takes the cookie away. Without one, whoever sits here next is still signed in.
    const said = `${error.message} You are still signed in: sign out again, or close the browser.`;
    announce(said);
    notice(said);
  } finally {
    button.disabled = false;
  }
});

addEventListener("keydown", (event) => {
  const target = event.target;
  const isWriting = target.matches?.("input, textarea, select");
  if (event.key === "/" && !isWriting && !event.ctrlKey && !event.metaKey && !event.altKey && view?.focusFilter) {
    event.preventDefault();
    view.focusFilter();
  } else if (event.key === "Escape" && isWriting && !target.closest("dialog")) {
    target.blur();
  }
});

// Paper does not say where it is from, nor when "4 min ago" was.
addEventListener("beforeprint", () => setText(byId("printed"), `${location.href} · ${isKnown() ? exact(now()) : ""}`));

// One timer for everything that shows time.
setInterval(() => {
  if (!document.hidden && !document.body.hasAttribute("data-stale")) view?.tick();
}, 1000);
setInterval(() => {
  if (!document.hidden && me) view?.refresh?.();
}, 2000);
setInterval(() => {
  if (!document.hidden && me) source?.listen();
}, 500);
document.addEventListener("visibilitychange", noteLife); // a hidden tab hears nothing, and that is no silence

try {
  begin(await whoami());
} catch (error) {
  if (error.status === 401) showLogin(error.code === "authentication_failed" ? STALE : null);
  else {
    main.replaceChildren(h("p", { class: "empty" }, `${error.message} Trying again in a moment.`));
    setTimeout(() => location.reload(), 3000);
  }
}
