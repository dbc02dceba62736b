/** `dibs serve` of this checkout, on a free port and with a folder of its own, to be killed and paused. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createConnection, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Dibs } from "../src/node.js";
import type { ChildProcess } from "node:child_process";
import type { AddressInfo, Socket } from "node:net";
import type { ClientOptions } from "../src/node.js";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
export const PYTHON = process.env["DIBS_PYTHON"] ?? join(ROOT, ".venv/bin/python");
const SETPRIV = "/usr/bin/setpriv";
/** What is started behind these words ends with the process that started it, also if that is killed. */
export const ENDING_WITH_US = existsSync(SETPRIV) ? [SETPRIV, "--pdeathsig", "KILL", "--"] : [];
const WAIT_MS_MAX = 60_000;
/** How many times longer leases must last than on a machine with nothing else to do. */
export const SLOWNESS = Number(process.env["DIBS_SLOWNESS"] ?? 1);

export async function until<T>(what: string, look: () => T | Promise<T>): Promise<NonNullable<T>> {
  const giveUp = performance.now() + WAIT_MS_MAX;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (performance.now() > giveUp) throw new Error(`waited in vain until ${what}`);
    await pause(10);
  }
}

/** What comes, or an error that says what did not. */
export async function soon<T>(what: string, coming: Promise<T>): Promise<T> {
  let isThere = false;
  const came = coming.finally(() => (isThere = true));
  await Promise.race([came.catch(() => undefined), until(what, () => isThere)]);
  return came;
}

export const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

export class Server {
  readonly folder: string;
  url = "";
  #bind: string;
  #process: ChildProcess | undefined;
  #said = "";

  /** With `beside` it serves the store of another one, with its token. */
  constructor({ bind = "127.0.0.1:0", beside }: { bind?: string; beside?: Server } = {}) {
    this.folder = beside?.folder ?? mkdtempSync(join(tmpdir(), "dibs-ts-"));
    this.#bind = bind.replace("FOLDER", this.folder);
  }

  get token(): string {
    return readFileSync(join(this.folder, "dibs/token"), "utf8").split(":")[1]!;
  }

  async start(): Promise<this> {
    const env = { ...process.env, XDG_STATE_HOME: this.folder };
    this.#said = "";
    const store = `sqlite://${this.folder}/dibs.db`;
    const [program, ...words] = [...ENDING_WITH_US, PYTHON, "-m", "dibs", "serve", "--bind", this.#bind, "--store", store];
    this.#process = spawn(program!, words, { env, stdio: ["ignore", "ignore", "pipe"] });
    this.#process.stderr!.on("data", (data) => (this.#said += data));
    this.url = await until("the server listens", () => {
      if (this.#process!.exitCode !== null) throw new Error(`the server ended: ${this.#said}`);
      return /listens on (\S+)\n/.exec(this.#said)?.[1];
    });
    if (this.url.startsWith("http")) this.#bind = new URL(this.url).host;
    await this.client("first").inspect("first"); // what is loaded with the first request takes time
    return this;
  }

  async kill(): Promise<void> {
    if (this.#process === undefined || this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    this.#process.kill("SIGKILL");
    await once(this.#process, "exit");
  }

  pause(): void {
    this.#process!.kill("SIGSTOP");
  }

  resume(): void {
    this.#process!.kill("SIGCONT");
  }

  async close(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  client(owner: string, options: Partial<ClientOptions> = {}): Dibs {
    return new Dibs({ url: this.url, token: this.token, owner, warn: () => undefined, ...options });
  }

  /** Ask for what the client has no method for. */
  async post(path: string, document: object): Promise<Record<string, unknown>> {
    const headers = { Authorization: `Bearer ${this.token}`, "Content-Type": "application/json" };
    const response = await fetch(this.url + path, { method: "POST", headers, body: JSON.stringify(document) });
    return (await response.json()) as Record<string, unknown>;
  }

  /** An operator takes the job away. */
  async breaks(job: string): Promise<void> {
    const headers = { Authorization: `Bearer ${this.token}`, "Content-Type": "application/json" };
    const reply = await fetch(`${this.url}/locks/${job}/break`, { method: "POST", headers, body: '{"reason":"a test"}' });
    if (!reply.ok) throw new Error(await reply.text());
  }

  async waiting(job: string): Promise<number> {
    return (await this.client("looker").inspect(job)).waiting ?? 0;
  }
}

/** Passes connections on to a server. `lose` counts the answers to requests with `word` in them that get lost. */
export class Proxy {
  lose = 0;
  word = "";
  hangs = false;
  readonly #sockets = new Set<Socket>();
  readonly #server = createServer((client) => {
    const upstream = createConnection(Number(new URL(this.target.url).port), "127.0.0.1");
    let asked = "";
    for (const socket of [client, upstream]) {
      this.#sockets.add(socket);
      socket.on("error", () => undefined);
      socket.on("close", () => (client.destroy(), upstream.destroy()));
    }
    client.on("data", (data) => {
      asked = data.toString();
      upstream.write(data);
    });
    upstream.on("data", (data) => {
      if (!asked.includes(this.word) || (this.lose <= 0 && !this.hangs)) return void client.write(data);
      if (this.hangs) return;
      this.lose--;
      client.destroy();
    });
  });

  constructor(private readonly target: Server) {}

  async start(): Promise<this> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    return this;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}
