/** dibs for browsers, and for whatever has `fetch`. */

import { Client } from "./client.js";
import { overFetch } from "./servers.js";
import type { ClientOptions } from "./client.js";

export class Dibs extends Client {
  constructor(options: ClientOptions) {
    super(options, overFetch);
  }
}

export { Claim, Session } from "./client.js";
export * from "./errors.js";
export type { ClaimOptions, ClientOptions, SessionOptions } from "./client.js";
export type * from "./types.js";
