// Asking twice before something is taken from somebody.

import { announce, byId, h } from "./dom.js";
import { post, jobPath } from "./api.js";
import { visible } from "./words.js";

export const mayAct = (me) => me?.role === "operator" || me?.role === "admin";

/** Opens a dialog and does `act(reason)` when it is confirmed; `said(answer)` is what has happened then. */
function confirm({ title, text, verb, needsReason, act, done, said }) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const reason = needsReason && h("textarea", { id: "reason", rows: "3", maxlength: "1024", required: true });
  const go = h("button", { type: "submit", class: "danger" }, verb);
  const close = () => dialog.close();
  const form = h("form", { method: "dialog" },
    h("h2", { id: "dialog-title" }, title),
    text.map((line) => h("p", {}, line)),
    reason && h("label", { for: "reason" }, "Reason ", h("span", { class: "muted" }, "(the history keeps it)")),
    reason, problem,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: close }, "Cancel"), go));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title", onclose: closed }, form);
  function closed() {
    dialog.remove();
    // The browser gives the focus back to the button that opened the dialog. If that is gone, the page has it.
    if (document.activeElement === document.body) byId("main").focus({ preventScroll: true });
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      const happened = said(await act(reason ? reason.value.trim() : null));
      await done();
      close();
      announce(happened);
      notice(happened);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      go.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  (reason || go).focus();
}

let timer = 0;
/** A sentence at the top of the page, for a while. */
export function notice(text) {
  const place = byId("notice");
  place.textContent = text;
  place.hidden = false;
  clearTimeout(timer);
  timer = setTimeout(() => (place.hidden = true), 8000);
}

/** Takes the job from the owner of one hold: by its token, so that a later owner keeps it. */
export function breakHold(name, hold, ns, done) {
  const job = visible(name);
  confirm({
    title: "Break this claim?", verb: "Break the claim", needsReason: true, done,
    text: [`${visible(hold.owner)} loses ${job} at once, and the next in line gets it.`,
      "The worker may still be running. It is refused at its next heartbeat; whoever checks fencing tokens refuses it at once."],
    act: (reason) => post(`${jobPath(name)}/break`, { namespace: ns }, { reason, fencing_token: hold.token }),
    said: (answer) => (answer.broken.length ? `The claim of ${visible(hold.owner)} on ${job} was broken.` : "That claim had ended already. Nothing was broken."),
  });
}

export function breakAll(name, count, ns, done) {
  const job = visible(name);
  confirm({
    title: `Break all ${count} claims?`, verb: "Break all claims", needsReason: true, done,
    text: [`All owners lose ${job} at once, and the next in line get it.`,
      "The workers may still be running. Each is refused at its next heartbeat; whoever checks fencing tokens refuses them at once."],
    act: (reason) => post(`${jobPath(name)}/break`, { namespace: ns }, { reason }),
    said: (answer) => `Claims on ${job} that were broken: ${answer.broken.length}.`,
  });
}

export function freeJob(name, ns, done) {
  const job = visible(name);
  confirm({
    title: "Free this job?", verb: "Free the job", needsReason: false, done,
    text: [`${job} can be claimed again, and its count of attempts starts anew.`],
    act: () => post(`${jobPath(name)}/free`, { namespace: ns }, {}),
    said: () => `${job} can be claimed again.`,
  });
}

export function openJob(name, ns, done) {
  const job = visible(name);
  confirm({
    title: "End this closure?", verb: "Open the job", needsReason: false, done,
    text: [`${job} is opened before its time, with all that was closed with it. Lines go on at once.`],
    act: () => post(`${jobPath(name)}/open`, { namespace: ns }, {}),
    said: () => `${job} is not closed any more.`,
  });
}

export function endSession(session, done) {
  const id = session.session_id.slice(0, 8);
  confirm({
    title: "End this session?", verb: "End the session", needsReason: true, done,
    text: [`${visible(session.owner)} loses everything that this session holds (${session.lock_count}), and its places in line.`,
      "The worker may still be running. It is refused at its next heartbeat."],
    act: (reason) => post(`/sessions/${id}/break`, {}, { reason }),
    said: () => `Session ${id} was ended.`,
  });
}
