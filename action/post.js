"use strict";
// Gives the job back after the last step, also if a step failed or the run was cancelled.

const { dibs, fail, input, say, state, useToken } = require("./runner.js");
const token = require("./token.js");

const TRIES = 3;
const PAUSE_MS = 2000;
const LOST = 2;
const UNREACHABLE = 69;

const main = async () => {
  const path = state("token_file");
  if (path) {
    await token.renew(path, input("audience") || "dibs").catch(() => {}); // the one that is there may do
    useToken(path);
  }
  try {
    await release(state("job"), state("lease"));
  } finally {
    if (path) token.remove(path);
  }
};

const release = async (job, lease) => {
  if (!lease) return; // nothing was claimed
  for (let left = TRIES - 1; ; left -= 1) {
    const { exit, message } = await dibs("release", "--json", "--lease", lease, "--", job);
    if (exit === 0) return say("notice", `Released ${job}.`);
    if (exit === LOST) return fail(`${job} was lost while the steps ran: ${message}`);
    if (exit !== UNREACHABLE || left === 0) return say("warning", `${job} was not released and will expire: ${message}`);
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
};

main();
