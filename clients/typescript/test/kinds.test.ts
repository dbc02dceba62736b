/** What follows from the kind of a no, and what a caller is told of it. Needs no server. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Claim, Client } from "../src/client.js";
import * as errors from "../src/errors.js";
import { InvalidInput, LeaseLost, NotAllowed, RequestRefused, Unavailable, kindOf, refusalOf } from "../src/errors.js";
import { LeaseHold } from "../src/hold.js";
import { steadyMs } from "../src/clock.js";
import type { RawReply, Reply } from "../src/reply.js";
import type { Acquired, Document } from "../src/types.js";

const LEASE = {
  status: "acquired", name: "job", lease_id: "00000000-0000-4000-8000-000000000000", fencing_token: 1, owner: "ann",
  expires_at: "2026-01-01T00:00:00Z", remaining_ms: 60_000, renew_after_ms: 30_000, metadata: null,
};
const DONE: Reply = { status: 200, body: { status: "renewed", remaining_ms: 60_000, waiting: 0 }, sent: true };

/** A claim whose requests are answered by `answer`, with what it asked and what it warned of. */
function made(answer: (document: Document) => Reply = () => DONE, ...names: string[]) {
  const asked: Document[] = [];
  const warned: string[] = [];
  const way = {
    ask: async ({ document = {} }: { document?: Document }) => (asked.push(document), answer(document)),
    warn: (message: string) => void warned.push(message),
  };
  const leases = (names.length > 0 ? names : ["job"]).map((name) => ({ ...LEASE, name, lease_id: `lease of ${name}` }));
  const hold = new LeaseHold(leases as unknown as Acquired[], way, steadyMs());
  return { hold, claim: new Claim(hold, way), asked, warned };
}

const no = (status: number, body: Document): Reply => ({ status, body, sent: true });
const LONG = "x".repeat(5000);

describe("a text that cannot be stored", () => {
  for (const [text, metadata] of [[LONG], ["é".repeat(2049)], [{ page: 3 }], [7n], [undefined], ["\ud800"], ["3", "m".repeat(1025)], ["3", ["m"]]]) {
    test(`is refused at once: ${String(text).slice(0, 9)} ${String(metadata).slice(0, 9)}`, async () => {
      const { claim, asked } = made();
      await assert.rejects(claim.checkpoint(text as string, metadata as string), InvalidInput);
      assert.deepEqual(asked, []);
      await claim.checkpoint("page 3");
      assert.deepEqual([asked.length, asked[0]!["checkpoint"], "metadata" in asked[0]!], [1, "page 3", false]);
    });
  }

  test("is dropped if only the store refuses it, and the claim is renewed", async () => {
    const refused = no(400, { code: "invalid_input", details: "Yours may have 7 bytes: store less." });
    const { claim, asked, warned } = made((document) => ("checkpoint" in document ? refused : DONE));
    await assert.rejects(claim.checkpoint("page 3"), /store less/);
    assert.deepEqual(asked.map((each) => "checkpoint" in each), [true, false]);
    assert.match(warned[0]!, /^The checkpoint of job was refused, and is not stored: Yours may/);
    claim.check();
  });

  test("as a result is no failure of the work", async () => {
    for (const end of [(claim: Claim) => claim.done(LONG), (claim: Claim) => claim.release(LONG), (claim: Claim) => claim.transfer({ owner: LONG })]) {
      const { claim, asked } = made();
      await assert.rejects(claim.during(async () => void (await end(claim))), InvalidInput);
      assert.deepEqual([asked.length, asked[0]!["uncounted"], asked[0]!["failed"]], [1, true, undefined]);
    }
    const { claim, asked } = made();
    await assert.rejects(claim.during(async () => { throw new InvalidInput("of another call"); }), InvalidInput);
    assert.equal(asked[0]!["failed"], true);
  });
});

describe("an end that is refused", () => {
  const refused = no(400, { code: "invalid_input", details: "retry_after_seconds is a week at most." });

  test("leaves the resources beside the job as they are", async () => {
    for (const end of [(claim: Claim) => claim.done(LONG), (claim: Claim) => claim.fail("broke", 1e12)]) {
      const { claim, asked } = made((document) => ("failed" in document ? refused : DONE), "branch:main", "job");
      await assert.rejects(end(claim), InvalidInput);
      assert.deepEqual(asked.filter((each) => each["lease_id"] === "lease of branch:main"), []);
    }
  });

  test("is a failure of the work if it said that the work failed", async () => {
    const { claim, asked } = made((document) => ("retry_after_seconds" in document ? refused : DONE));
    await assert.rejects(claim.during(() => claim.fail("broke", 1e12)), InvalidInput);
    assert.deepEqual(asked.map((each) => each["failed"]), [true, true]);
  });
});

describe("a loss", () => {
  const lostIn = async (work: (claim: Claim, lose: () => void) => Promise<unknown>): Promise<unknown> => {
    const { hold, claim } = made();
    try {
      await using held = claim;
      await work(held, () => hold.end("somebody broke it."));
    } catch (error) {
      return error;
    }
    return undefined;
  };

  test("is a LeaseLost, whichever way it was told", async () => {
    const server = createServer(() => undefined).listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const ways: Array<(claim: Claim, lose: () => void) => Promise<unknown>> = [
      async (claim, lose) => (setTimeout(lose, 20), await fetch(url, { signal: claim.signal })),
      async (claim, lose) => (setTimeout(lose, 20), await fetch(url, { signal: AbortSignal.any([claim.signal]) })),
      async (claim, lose) => (lose(), await fetch(url, { signal: claim.signal })),
      async (claim, lose) => (lose(), claim.signal.throwIfAborted()),
      async (claim, lose) => { lose(); throw claim.signal.reason; },
      async (claim, lose) => (lose(), claim.check()),
      async (_, lose) => lose(),
      async (_, lose) => { lose(); throw new TypeError("of its own"); },
    ];
    for (const [at, way] of ways.entries()) {
      const error = await lostIn(way);
      assert.ok(error instanceof LeaseLost, `${at}: ${String(error)}`);
      const plain = [2, 3, 4, 5, 6].includes(at);
      assert.equal(Object.getPrototypeOf(error) === LeaseLost.prototype, plain, `${at}: ${String(error)}`);
    }
    server.closeAllConnections();
    server.close();
  });

  test("is told at the end of a block that got its signal and did not look", async () => {
    const server = createServer((_, response) => response.end("{}")).listen(0, "127.0.0.1");
    await new Promise((resolve) => server.once("listening", resolve));
    const error = await lostIn(async (claim, lose) => {
      await (await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, { signal: claim.signal })).text();
      lose();
    });
    assert.ok(error instanceof LeaseLost && error.why === "somebody broke it.", String(error));
    server.closeAllConnections();
    server.close();
  });

  test("is nothing else", () => {
    for (const other of [undefined, null, 7, "lost", {}, new Error("x"), new InvalidInput("x"), { error: new LeaseLost("a", 1, "x"), suppressed: 1 }]) {
      assert.ok(!(other instanceof LeaseLost), String(other));
    }
  });

  test("is not begun: a heartbeat that failed says nothing of work to begin", async () => {
    const { hold, warned } = made(() => no(503, { code: "upstream_unavailable", details: `Gone. ${errors.DO_NOT_BEGIN}` }));
    await hold.beat();
    assert.match(warned[0]!, /repeated for another \d+ s: Gone\.$/);
  });
});

test("names survive a minifier", async () => {
  const text = readFileSync(new URL("../src/errors.js", import.meta.url), "utf8");
  const names = [...text.matchAll(/^export class (\w+)/gm)].map((found) => found[1]!);
  assert.ok(names.length > 15);
  const [, before, block, after] = /^([\s\S]*?const NAMES = \{)([^}]*)(\}[\s\S]*)$/.exec(text)!;
  const renamed = (part: string, as: (name: string, at: number) => string) =>
    names.reduce((said, name, at) => said.replaceAll(new RegExp(`\\b${name}\\b`, "g"), as(name, at)), part);
  const short = (_: string, at: number) => `m${at}`;
  const minified = renamed(before!, short) + renamed(block!, (name, at) => `${name.split("").join("\u0000")}: m${at}`).replaceAll("\u0000", "") +
    renamed(after!, short) + `\nexport { ${names.map((name, at) => `m${at} as ${name}`).join(", ")} };\n`;
  const module = (await import(`data:text/javascript;base64,${Buffer.from(minified).toString("base64")}`)) as typeof errors;
  assert.equal(module.JobHeld.toString().slice(0, 9), `class m${names.indexOf("JobHeld")}`.slice(0, 9));
  for (const [at, name] of names.entries()) {
    const kind = (module as unknown as Record<string, { prototype: Error }>)[name]!;
    assert.equal(kind.prototype.name, name, `m${at}`);
  }
  assert.equal(String(new module.Unavailable("Gone.")), "Unavailable: Gone.");
  assert.match(new module.Unavailable("Gone.").stack!, /^Unavailable: Gone\./);
});

test("a code of a newer server has the kind of its status, and the class of its kind", () => {
  const kinds = { 400: "never_like_this", 401: "not_you", 403: "not_you", 404: "not_any_more", 409: "never_like_this", 410: "not_any_more", 429: "not_now", 500: "not_now" };
  for (const [status, kind] of Object.entries(kinds)) {
    assert.equal(kindOf({ status: Number(status), body: { code: "constructor" } }), kind);
  }
  assert.ok(refusalOf({ code: "invented" }, 500) instanceof Unavailable);
  assert.ok(refusalOf({ code: "internal_error" }, 500) instanceof Unavailable);
  assert.ok(refusalOf({ code: "invented" }, 403) instanceof NotAllowed);
  assert.ok(refusalOf({ code: "conflict" }, 409) instanceof RequestRefused);
});

describe("who waits", () => {
  const raw = (status: number, body: Document): RawReply => ({ status, text: JSON.stringify(body), header: () => null });
  const client = (answers: Array<RawReply | Error>) => {
    let asked = 0;
    const transport = async () => {
      const answer = answers[Math.min(asked++, answers.length - 1)]!;
      if (answer instanceof Error) throw answer;
      return answer;
    };
    return { dibs: new Client({ url: "http://127.0.0.1:1", warn: () => undefined }, transport), asked: () => asked };
  };
  const busy = (code: string, status = 503) => raw(status, { code, error: "x", details: "why", retry_after_ms: 1 });

  test("goes on at not now, and at nothing else", async () => {
    for (const code of Object.keys(errors.KINDS).filter((each) => errors.KINDS[each] === "not_now")) {
      const { dibs, asked } = client([busy(code), busy(code), raw(200, LEASE)]);
      assert.equal((await dibs.claim("job", { waitMs: 60_000 })).name, "job");
      assert.equal(asked(), 3);
    }
    for (const code of ["forbidden", "conflict", "invalid_input", "session_expired"]) {
      const { dibs, asked } = client([busy(code, 400), raw(200, { status: "withdrawn", left: false, released: [], kept: [] })]);
      await assert.rejects(dibs.claim("job", { waitMs: 60_000 }), (error) => error instanceof errors.DibsError && error.code === code);
      assert.ok(asked() <= 3); // with what it takes to leave nothing behind
    }
  });

  test("is told at once of an address at which nobody ever answered", async () => {
    const { NotSent } = await import("../src/servers.js");
    const { dibs, asked } = client([new NotSent("ECONNREFUSED")]);
    await assert.rejects(dibs.claim("job", { waitMs: 60_000 }), Unavailable);
    assert.equal(asked(), 1);
  });
});

describe("a page of another origin", () => {
  afterEach(() => Reflect.deleteProperty(globalThis, "location"));
  const page = (origin: string) => Object.defineProperty(globalThis, "location", { value: { origin }, configurable: true });

  test("that is not let in asks once, and is told what lets it in", async () => {
    page("https://app.example");
    let asked = 0;
    const transport = async (): Promise<RawReply> => {
      asked++;
      throw new TypeError("Failed to fetch");
    };
    const dibs = new Client({ url: "https://dibs.example" }, transport);
    for (const ask of [() => dibs.claim("job"), () => dibs.claim("job", { waitMs: 60_000 }), () => dibs.session(), () => dibs.inspect("job")]) {
      asked = 0;
      await assert.rejects(ask(), (error) => error instanceof Unavailable && /--cors-origin https:\/\/app\.example/.test(error.message));
      assert.equal(asked, 1);
    }
  });

  test("that was let in before, or is the server's own, has lost a connection", async () => {
    for (const origin of ["https://app.example", "https://dibs.example"]) {
      page(origin);
      let asked = 0;
      const transport = async (): Promise<RawReply> => {
        if (asked++ === 0 && origin !== "https://dibs.example") return { status: 404, text: '{"code":"not_found","details":"x"}', header: () => null };
        throw new TypeError("Failed to fetch");
      };
      const dibs = new Client({ url: "https://dibs.example" }, transport);
      if (origin !== "https://dibs.example") await assert.rejects(dibs.inspect("job"), RequestRefused);
      await assert.rejects(dibs.inspect("job"), /closed the connection/);
      assert.ok(asked > 2);
    }
    await sleep(0);
  });
});
