"use strict";
// What the two scripts share: GitHub's files and commands, and the dibs command. No dependencies.

const { spawn } = require("node:child_process");
const { randomUUID } = require("node:crypto");
const { appendFileSync } = require("node:fs");

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] || "").trim();

// The delimiter cannot be guessed, so that a value of several lines stays one value.
const put = (file, name, value) => {
  const end = `end-${randomUUID()}`;
  appendFileSync(process.env[file], `${name}<<${end}\n${value}\n${end}\n`);
};

const output = (name, value) => put("GITHUB_OUTPUT", name, value ?? "");
const saveState = (name, value) => put("GITHUB_STATE", name, value);
const state = (name) => process.env[`STATE_${name}`] || "";

const escaped = (text) => text.replace(/%/g, "%25").replace(/\r/g, "%0D").replace(/\n/g, "%0A");
const say = (command, text) => process.stdout.write(`::${command}::${escaped(text)}\n`);

const fail = (text) => {
  say("error", text);
  process.exitCode = 1;
};

const useToken = (path) => (process.env.DIBS_TOKEN_FILE = path);

// Runs dibs with --json. Gives its exit code and its document. A signal to us is passed on, so that a cancelled run
// leaves the line.
const dibs = (...words) =>
  new Promise((resolve) => {
    const child = spawn(input("dibs") || "dibs", [...words], {
      env: { ...process.env, DIBS_URL: input("url") || "git:origin" },
      stdio: ["ignore", "pipe", "inherit"],
    });
    let said = "";
    child.stdout.on("data", (data) => (said += data));
    child.on("error", (error) => resolve({ exit: 127, data: {}, message: `${error.message}. Install dibs in an earlier step` }));
    for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => child.kill(signal));
    child.on("close", (exit) => resolve(answer(exit ?? 130, said)));
  });

const answer = (exit, said) => {
  let document = {};
  try {
    document = JSON.parse(said);
  } catch {
    // A command that was stopped by a signal says nothing.
  }
  return { exit, data: document.data || {}, message: document.error?.message || `dibs ended with exit code ${exit}` };
};

module.exports = { dibs, fail, input, output, saveState, say, state, useToken };
