// Making elements. Data becomes text nodes and attribute values only: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

/** Writes only what changed: a write costs a layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setTitle(node, text) {
  if (node.title !== text) node.title = text;
}

/** Puts other children in. If the focus was on one of the old ones, the page itself has it then: not nothing. */
export function exchange(node, ...children) {
  const hadFocus = node.contains(document.activeElement);
  node.replaceChildren(...children);
  if (hadFocus) byId("main").focus({ preventScroll: true });
}

/** A text in its own direction, so that a name from right to left cannot turn the words around it. */
export const bdi = (text) => h("bdi", {}, text);

const pending = { timer: 0, text: "" };

/** Says something to screen readers, at most once in a second and a half: the last word counts. */
export function announce(text) {
  pending.text = text;
  if (pending.timer) return;
  pending.timer = setTimeout(() => {
    pending.timer = 0;
    setText(byId("live"), pending.text);
  }, 1500);
}
