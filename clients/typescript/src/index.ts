/** dibs for browsers, and for whatever has `fetch`. */

import { Client } from "./client.js";
import { overFetch } from "./servers.js";
import type { ClientOptions } from "./client.js";

export class Dibs extends Client {
  constructor(options: ClientOptions) {
    super(options, overFetch);
  }
}

export { Claim, Leader, Session } from "./client.js";
export { Events } from "./events.js";
export * from "./errors.js";
export type { AnyOptions, ClaimOptions, ClientOptions, LeaderOptions, SessionOptions } from "./client.js";
export type { EventsOptions } from "./events.js";
export type * from "./types.js";
export type { Event as JobEvent } from "./types.js";
