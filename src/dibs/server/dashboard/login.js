// The page on which somebody gives a token.

import { logIn } from "./api.js";
import { h } from "./dom.js";

export function loginView(sentence, onDone) {
  const token = h("input", { id: "token", type: "password", autocomplete: "current-password", spellcheck: "false", required: true });
  const problem = h("p", { class: "problem", role: "alert", hidden: !sentence }, sentence ?? "");
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  const form = h("form", { class: "login card", method: "post", action: "/login", onsubmit: submit },
    h("h1", {}, "Sign in"),
    h("p", { class: "muted" }, "Paste a token of this server. On the server's own machine: ", h("code", {}, "dibs token show"), ". An admin makes others with ", h("code", {}, "dibs token create"), "."),
    h("label", { for: "token" }, "Token"), token, problem, button,
    h("p", { class: "muted small" }, "The browser keeps it in a cookie that scripts cannot read, until you sign out or close the browser."));

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      const me = await logIn(token.value.trim());
      token.value = "";
      onDone(me);
    } catch (error) {
      problem.textContent = error.status === 401 ? "The server does not know this token. It may have been revoked." : error.message;
      problem.hidden = false;
      button.disabled = false;
      token.select();
    }
  }
  return { element: form, title: "Sign in", focus: () => token.focus(), show() {}, tick() {}, close() {} };
}
