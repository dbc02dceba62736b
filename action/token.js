"use strict";
// The run's own identity, signed by GitHub, in the place of a secret (`permissions: id-token: write`). It lasts a few
// minutes, so a process of its own puts a new one into the file before it ends, until the runner's worker is gone.

const { spawn } = require("node:child_process");
const { randomUUID } = require("node:crypto");
const { existsSync, readFileSync, renameSync, rmSync, writeFileSync } = require("node:fs");
const { join } = require("node:path");

const AGAIN_MS = 10_000;
const LOOK_MS = 2_000;
const SPARE_MS = 60_000;
const ASK_MS = 20_000;

// Whether GitHub signs for this run, and nobody gave it a token.
const signs = (url) =>
  /^https?:/.test(url) && !!process.env.ACTIONS_ID_TOKEN_REQUEST_URL && !process.env.DIBS_TOKEN && !process.env.DIBS_TOKEN_FILE;

const ask = async (audience) => {
  const { ACTIONS_ID_TOKEN_REQUEST_URL: url, ACTIONS_ID_TOKEN_REQUEST_TOKEN: token } = process.env;
  const address = new URL(url);
  address.searchParams.set("audience", audience);
  const headers = { Authorization: `Bearer ${token}`, Accept: "application/json" };
  const answer = await fetch(address, { headers, redirect: "error", signal: AbortSignal.timeout(ASK_MS) });
  if (!answer.ok) throw new Error(`GitHub signs no token for this run: it answers with ${answer.status}`);
  const { value } = await answer.json();
  if (typeof value !== "string" || value === "") throw new Error("GitHub signs no token for this run");
  return value;
};

// When a token ends, by what it says itself. A reader that checks it does not matter here.
const endsMs = (token) => {
  try {
    return JSON.parse(Buffer.from(token.split(".")[1], "base64url").toString()).exp * 1000 || 0;
  } catch {
    return 0;
  }
};

// Another file under the same name: whoever reads it has the old token or the new one.
const write = (path, token) => {
  const draft = `${path}.${randomUUID()}`; // two may write at once
  writeFileSync(draft, `${token}\n`, { mode: 0o600 });
  renameSync(draft, path);
};

// Puts the run's token into a file, and keeps it fresh there while `worker` lives. Gives the path.
const begin = async (audience, worker, mask) => {
  const token = await ask(audience);
  mask(token);
  const path = join(process.env.RUNNER_TEMP || "/tmp", `dibs-token-${randomUUID()}`);
  write(path, token);
  if (worker > 1) spawn(process.execPath, [__filename, path, audience, String(worker)], { detached: true, stdio: "ignore" }).unref();
  return path;
};

const renew = async (path, audience) => write(path, await ask(audience));
const remove = (path) => rmSync(path, { force: true });

const lives = (id) => {
  try {
    process.kill(id, 0);
    return true;
  } catch (error) {
    return error.code === "EPERM";
  }
};

const keep = async (path, audience, worker) => {
  let notBefore = 0;
  while (lives(worker) && existsSync(path)) {
    const isDue = endsMs(readFileSync(path, "utf8")) - SPARE_MS <= Date.now();
    if (isDue && Date.now() >= notBefore) {
      notBefore = Date.now() + AGAIN_MS;
      await renew(path, audience).catch(() => {});
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
  remove(path);
};

if (require.main === module) keep(process.argv[2], process.argv[3], Number(process.argv[4]));

module.exports = { begin, remove, renew, signs };
