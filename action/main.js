"use strict";
// Claims the job before the steps that follow. A background process of dibs sends heartbeats as long as the runner's
// worker process lives, and gives the job back when that process ends; if the machine is gone, the TTL frees the job.

const { dibs, fail, input, output, saveState, say, useToken } = require("./runner.js");
const token = require("./token.js");

const POLICIES = ["fail", "skip", "wait"];
const HELD = 1;
const DONE = 4;
const LATER = 75;

const owner = () => {
  const { GITHUB_REPOSITORY, GITHUB_RUN_ID, GITHUB_RUN_ATTEMPT, GITHUB_JOB } = process.env;
  return input("owner") || `${GITHUB_REPOSITORY} run ${GITHUB_RUN_ID}.${GITHUB_RUN_ATTEMPT} ${GITHUB_JOB}`;
};

const claim = (job, policy) => {
  const words = ["claim", "--json", "--ttl", input("ttl") || "5m", "--owner", owner()];
  if (policy === "wait") words.push("--wait", input("wait") || "30m");
  if (policy === "wait" && input("replaces")) words.push("--replaces", input("replaces"));
  // In a container the parent may be process 0, which nobody can watch: then only the TTL protects.
  if (process.ppid > 1) words.push("--keep-for", String(process.ppid));
  return dibs(...words, "--", job);
};

const owned = (job, lease) => {
  say("add-mask", lease.lease_id);
  saveState("job", job);
  saveState("lease", lease.lease_id);
  output("owned", "true");
  output("token", String(lease.fencing_token));
  output("owner", lease.owner);
  output("attempt", String(lease.attempt));
  output("checkpoint", lease.previous?.checkpoint);
  output("lease", lease.lease_id);
  say("notice", `${job} is this run's, fencing token ${lease.fencing_token}.`);
};

const refused = (job, policy, { exit, data, message }) => {
  output("owned", "false");
  output("token", data.fencing_token === undefined ? "" : String(data.fencing_token));
  output("owner", data.owner);
  output("checkpoint", data.checkpoint);
  const isNoError = exit === DONE || (policy === "skip" && [HELD, LATER].includes(exit));
  (isNoError ? (text) => say("notice", text) : fail)(`Not claimed: ${job}. ${message}`);
};

const main = async () => {
  const job = input("job");
  const policy = input("if-held") || "fail";
  if (!job) return fail("The input job is missing: give the stable name of the work.");
  if (!POLICIES.includes(policy)) return fail(`if-held is one of ${POLICIES.join(", ")}; this is ${policy}.`);
  if (token.signs(input("url"))) {
    try {
      const path = await token.begin(input("audience") || "dibs", process.ppid, (text) => say("add-mask", text));
      saveState("token_file", path);
      useToken(path);
    } catch (error) {
      return fail(`${error.message}. Give the job permissions: id-token: write, or set DIBS_TOKEN.`);
    }
  }
  const found = await claim(job, policy);
  if (found.exit === 0) owned(job, found.data);
  else refused(job, policy, found);
};

main();
