/** dibs for Node: settings from the environment, Unix sockets, and a clock that counts sleep. */

import { readFileSync, statSync } from "node:fs";
import { request as httpRequest } from "node:http";
import { hostname, platform, uptime, userInfo } from "node:os";
import { Client } from "./client.js";
import { countSleepBy, steadyMs } from "./clock.js";
import { InvalidInput } from "./errors.js";
import { NotSent, overFetch } from "./servers.js";
import type { ClientOptions } from "./client.js";
import type { RawReply } from "./reply.js";
import type { Transport } from "./servers.js";

const TOKEN_LOOK_MS = 1_000;

if (platform() === "linux") countSleepBy(() => uptime() * 1000);

/** What is not given comes from DIBS_URL, DIBS_TOKEN or DIBS_TOKEN_FILE, DIBS_OWNER and DIBS_NAMESPACE. A token file that
 * is replaced is read again. */
export class Dibs extends Client {
  constructor(options: Partial<ClientOptions> = {}) {
    super(settings(options, process.env), (address, ...rest) => (address.socket === undefined ? overFetch : overSocket)(address, ...rest));
  }
}

type Environment = Record<string, string | undefined>;

export function settings(options: Partial<ClientOptions>, env: Environment): ClientOptions {
  const url = options.url ?? (env["DIBS_URL"] || undefined);
  if (url === undefined) throw new InvalidInput("No server is named. Set DIBS_URL, as in DIBS_URL=http://127.0.0.1:3427, or give url.");
  return {
    ...options,
    url,
    token: options.token ?? tokenIn(env),
    owner: options.owner ?? (env["DIBS_OWNER"] || `${env["LOGNAME"] || env["USER"] || userName()}@${hostname()}`),
    namespace: options.namespace ?? (env["DIBS_NAMESPACE"] || undefined),
  };
}

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return `uid-${process.getuid?.() ?? 0}`; // a container may have no entry for it
  }
}

function tokenIn(env: Environment): string | (() => string) | undefined {
  const [token, path] = [env["DIBS_TOKEN"]?.trim(), env["DIBS_TOKEN_FILE"]];
  return token || !path ? token || undefined : tokenFile(path);
}

/** A token in a file, which somebody may replace while we run: Kubernetes and others do so before a token ends. One that
 * cannot be read any more stays what it was. The file is looked at once a second at most. */
function tokenFile(path: string): () => string {
  let token = readToken(path); // which says what is wrong
  let [seen, lookedMs] = ["", steadyMs()];
  return () => {
    if (steadyMs() - lookedMs < TOKEN_LOOK_MS) return token;
    lookedMs = steadyMs();
    try {
      const { mtimeMs, ino, size } = statSync(path);
      const now = `${mtimeMs} ${ino} ${size}`;
      if (now !== seen) [token, seen] = [readToken(path), now];
    } catch {
      // as it was
    }
    return token;
  };
}

/** A token file has the token alone on its line, or as a tokens file does: `name:token[:role[:namespace]]`. */
function readToken(path: string): string {
  let lines: string[];
  try {
    lines = readFileSync(path, "utf8").split("\n").map((line) => line.trim());
  } catch (error) {
    throw new InvalidInput(`The token file ${path} cannot be read (${(error as NodeJS.ErrnoException).code}). Set DIBS_TOKEN_FILE to one that can.`);
  }
  const line = lines.find((each) => each !== "" && !each.startsWith("#"));
  if (line === undefined) throw new InvalidInput(`The token file ${path} holds no token.`);
  return line.includes(":") ? line.split(":")[1]!.trim() : line;
}

const NEVER_CONNECTED = ["ENOENT", "ECONNREFUSED", "EACCES", "ENOTSOCK", "ENOTDIR", "EINVAL"];

const overSocket: Transport = (address, { method, target, headers, body, onPart }, signal) =>
  new Promise<RawReply>((resolve, reject) => {
    const asked = httpRequest({ socketPath: address.socket, agent: false, method, path: target, headers, signal }, (response) => {
      const status = response.statusCode ?? 0;
      const isHandedOn = onPart !== undefined && status < 300;
      const read = async (): Promise<RawReply> => {
        let text = "";
        for await (const part of response.setEncoding("utf8") as AsyncIterable<string>) {
          if (isHandedOn) await onPart(part);
          else text += part;
        }
        return { status, text, header: (name) => response.headers[name]?.toString() ?? null };
      };
      read().then(resolve, reject);
    });
    asked.on("error", (error: NodeJS.ErrnoException) => reject(NEVER_CONNECTED.includes(error.code ?? "") ? new NotSent(error.code) : error));
    asked.end(body);
  });

export { Claim, Leader, Session } from "./client.js";
export { Events } from "./events.js";
export * from "./errors.js";
export type { AnyOptions, ClaimOptions, ClientOptions, LeaderOptions, SessionOptions } from "./client.js";
export type { EventsOptions } from "./events.js";
export type * from "./types.js";
export type { Event as JobEvent } from "./types.js";
