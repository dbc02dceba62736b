// Asking the server.

import { noteLife, sync } from "./clock.js";

export class Refusal extends Error {
  constructor(status, document) {
    super(document?.details ?? `The server answered ${status}.`);
    this.status = status;
    this.code = document?.code;
  }
}

export class Unreachable extends Error {}

const ANSWER_MS = 15_000; // a large list may take some seconds
const PING_MS = 5000; // a server that is paused accepts connections, and is silent

/** What tells the server that a page of its own asks. A page of another site cannot send it. */
export const MARK = { "X-Dibs-Request": "1" };

let onStale = () => {};
/** What to do when the server no longer accepts our cookie. */
export function whenStale(handler) {
  onStale = handler;
}

export const jobPath = (name) => `/locks/${encodeURIComponent(name)}`;

export function address(path, query) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== "" && value !== null && value !== undefined) words.set(name, value);
  }
  return words.size ? `${path}?${words}` : path;
}

function withDeadline(signal) {
  const deadline = AbortSignal.timeout(ANSWER_MS);
  return signal ? AbortSignal.any([signal, deadline]) : deadline;
}

async function ask(method, path, { query, body, signal, login } = {}) {
  const begun = performance.now();
  const headers = { Accept: "application/json", ...MARK };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer, document;
  try {
    answer = await fetch(address(path, query), {
      method, headers, signal: withDeadline(signal), body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store",
    });
    noteLife();
    const text = await answer.text();
    document = text ? JSON.parse(text) : null;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable("The server cannot be reached.");
  }
  if (!answer.ok) {
    const refusal = new Refusal(answer.status, document);
    if (answer.status === 401 && !login) onStale(refusal);
    throw refusal;
  }
  if (document?.now) sync(Date.parse(document.now), begun);
  const held = document?.locks?.find((lock) => lock.since && lock.held_ms !== undefined);
  if (held) sync(Date.parse(held.since) + held.held_ms, begun);
  return document;
}

/** Whether the process answers, whatever it says. Asks no store. */
export async function ping() {
  try {
    await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(PING_MS) });
    noteLife();
  } catch {
    throw new Unreachable("The server cannot be reached.");
  }
}

export const get = (path, query, signal) => ask("GET", path, { query, signal });
export const post = (path, query, body) => ask("POST", path, { query, body });
export const whoami = () => ask("GET", "/whoami", { login: true });
export const logIn = (token) => ask("POST", "/login", { body: { token }, login: true });
export const logOut = () => ask("POST", "/logout", { login: true });
