// The wait-for graph: who waits for which job, and who holds it. The table beside it says the same in words.

import { h, svg } from "./dom.js";
import { jobHref, ownerHref } from "./place.js";
import { plural, visible } from "./words.js";

const NODES_MAX = 48;
const WAITERS_SHOWN = 5; // of one job; the others are one node
const BOX = { high: 34, gap: 12, wide: 190 };

const workerKey = (each) => `w ${each.session ?? ""} ${each.owner}`;
const jobKey = (name) => `j ${name}`;

/** Nodes and edges from the list of waiters. */
export function graphOf(waiters) {
  const nodes = new Map(), edges = new Map(), perJob = new Map();
  const node = (key, make) => nodes.get(key) ?? nodes.set(key, { key, ...make() }).get(key);
  const edge = (from, to, kind) => edges.set(`${from}>${to}`, { from, to, kind });
  let left = 0;
  for (const waiter of waiters) {
    const shown = perJob.get(waiter.name) ?? 0;
    perJob.set(waiter.name, shown + 1);
    const isKnown = nodes.has(workerKey(waiter));
    if ((shown >= WAITERS_SHOWN && !isKnown) || nodes.size >= NODES_MAX) {
      left += 1;
      continue;
    }
    const asker = node(workerKey(waiter), () => ({ kind: "worker", text: waiter.owner }));
    const job = node(jobKey(waiter.name), () => ({ kind: "job", text: waiter.name }));
    edge(asker.key, job.key, "waits");
    for (const holder of waiter.holders.slice(0, 5)) {
      const owner = node(workerKey(holder), () => ({ kind: "worker", text: holder.owner }));
      const held = node(jobKey(holder.name), () => ({ kind: "job", text: holder.name }));
      if (held !== job) edge(job.key, held.key, "overlaps");
      edge(held.key, owner.key, "held");
    }
  }
  return { nodes: [...nodes.values()], edges: [...edges.values()], left };
}

/** The layer of each node: one more than that of whatever it waits for. A circle is cut where it was entered. */
function layersOf({ nodes, edges }) {
  const next = new Map(nodes.map((node) => [node.key, []]));
  for (const { from, to } of edges) next.get(from).push(to);
  const depth = new Map();
  const visit = (key, path) => {
    if (depth.has(key)) return depth.get(key);
    if (path.has(key)) return 0;
    path.add(key);
    const deepest = Math.max(-1, ...next.get(key).map((to) => visit(to, path)));
    path.delete(key);
    depth.set(key, deepest + 1);
    return deepest + 1;
  };
  const layers = [];
  for (const node of nodes) (layers[visit(node.key, new Set())] ??= []).push(node);
  return layers.filter(Boolean).reverse();
}

function placed(graph, wide) {
  const layers = layersOf(graph);
  const width = Math.max(wide, layers.length * 128);
  const step = width / layers.length;
  const boxWide = Math.min(BOX.wide, step - 34);
  const tall = Math.max(...layers.map((layer) => layer.length)) * (BOX.high + BOX.gap) + BOX.gap;
  const spots = new Map();
  layers.forEach((layer, column) => {
    const before = (node) => {
      const rows = graph.edges.filter((edge) => edge.to === node.key && spots.has(edge.from)).map((edge) => spots.get(edge.from).y);
      return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : 0;
    };
    const ordered = column ? [...layer].sort((a, b) => before(a) - before(b)) : layer;
    const room = tall / ordered.length;
    ordered.forEach((node, row) => {
      spots.set(node.key, { x: column * step + (step - boxWide) / 2, y: room * (row + 0.5) - BOX.high / 2 });
    });
  });
  return { spots, width, tall, boxWide };
}

function line(edge, spots, boxWide) {
  const from = spots.get(edge.from), to = spots.get(edge.to);
  const [x1, y1, y2] = [from.x + boxWide, from.y + BOX.high / 2, to.y + BOX.high / 2];
  const x2 = to.x - 4;
  const bend = Math.max(16, (x2 - x1) / 2);
  return svg("path", { d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, class: `edge ${edge.kind}`, "marker-end": "url(#arrow)" });
}

function box(node, spots, boxWide, ns) {
  const { x, y } = spots.get(node.key);
  const text = visible(node.text);
  const room = Math.floor((boxWide - 22) / 7.4);
  const letters = [...text];
  const short = letters.length > room ? `${letters.slice(0, Math.max(3, room - 1)).join("")}…` : text;
  const what = node.kind === "job" ? "Job" : "Worker";
  return svg("a", { href: node.kind === "job" ? jobHref(node.text, ns) : ownerHref(node.text, ns), "data-link": true, class: `node ${node.kind}`, "aria-label": `${what} ${text}` },
    svg("title", {}, `${what} ${text}`),
    svg("rect", { x, y, width: boxWide, height: BOX.high, rx: node.kind === "job" ? 6 : BOX.high / 2 }),
    svg("text", { x: x + boxWide / 2, y: y + BOX.high / 2 + 4.5, "text-anchor": "middle" }, short));
}

export function waitForGraph(ns) {
  const drawing = h("div", { class: "graph", tabindex: "0", role: "group", "aria-label": "Wait-for graph" });
  const words = h("p", { class: "muted" });
  const element = h("section", { class: "card", hidden: true },
    h("h2", {}, "Who waits for whom"),
    h("p", { class: "muted" }, "An arrow leads from a worker to the job it waits for (dashed), and from a job to its owner. The table below says the same."),
    drawing, words);
  let drawn = "";
  return {
    element,
    show(waiters) {
      element.hidden = !waiters.length;
      const graph = graphOf(waiters);
      const wide = Math.max(280, (element.parentElement?.clientWidth ?? 800) - 50);
      const mark = JSON.stringify([graph, wide]);
      if (!waiters.length || mark === drawn) return;
      drawn = mark;
      const { spots, width, tall, boxWide } = placed(graph, wide);
      const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" },
        svg("path", { d: "M0 0 L8 4 L0 8 z", class: "tip" }));
      drawing.replaceChildren(svg("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}` },
        svg("defs", {}, arrow),
        graph.edges.map((edge) => line(edge, spots, boxWide)),
        graph.nodes.map((node) => box(node, spots, boxWide, ns))));
      words.textContent = graph.left ? `${plural(graph.left, "more place in line is", "more places in line are")} in the table only.` : "";
    },
  };
}
