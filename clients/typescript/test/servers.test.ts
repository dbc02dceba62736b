import assert from "node:assert/strict";
import { cpSync, mkdirSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { InvalidInput, JobHeld, RequestRefused, Unavailable } from "../src/node.js";
import { Servers, overFetch } from "../src/servers.js";
import { decode, yes } from "../src/reply.js";
import { SLOWNESS, Server, until } from "./server.js";

const one = new Server();
const two = new Server({ beside: one });
const other = new Server();
before(async () => {
  await one.start();
  mkdirSync(`${other.folder}/dibs`);
  cpSync(`${one.folder}/dibs/token`, `${other.folder}/dibs/token`);
  await Promise.all([two.start(), other.start()]);
});
after(() => Promise.all([one.close(), two.close(), other.close()]));

const several = (owner: string, ...servers: Server[]) => one.client(owner, { url: servers.map((each) => each.url).join(",") });

describe("of several servers", () => {
  test("whichever is killed, what is held is kept and let go through another", async () => {
    const ann = several("ann", one, two);
    const claims = await Promise.all(["k-1", "k-2", "k-3"].map((job) => ann.claim(job, { ttlMs: 20_000 * SLOWNESS })));
    for (const server of [one, two]) {
      await server.kill();
      for (const claim of claims) await claim.checkpoint(`after ${server.url}`);
      await assert.rejects(ann.claim("k-1"), JobHeld);
      await server.start();
    }
    for (const claim of claims) await claim.release();
    assert.deepEqual(await ann.list("k-"), []);
  });

  test("one that hangs costs a moment, and a waiter keeps its place at the other", async () => {
    const [ann, bob] = [several("ann2", one, two), several("bob2", one, two)];
    const held = await ann.claim("hang");
    const waiting = bob.claim("hang", { waitMs: 60_000 });
    await until("bob stands in line", () => one.waiting("hang"));
    one.pause();
    try {
      await held.checkpoint("on");
      await held.release();
      assert.equal((await waiting).previous?.checkpoint, "on");
      await (await waiting).release();
    } finally {
      one.resume();
    }
  });

  test("one of another store is found out before anything is done there", async () => {
    const ann = several("ann3", one, other);
    await ann.claim("mixed");
    const [asked, left] = (await one.client("looker").list("mixed")).length > 0 ? [one, other] : [other, one];
    await asked.kill();
    try {
      await assert.rejects(ann.claim("again"), (error) => error instanceof InvalidInput && /another store/.test(error.message));
      assert.deepEqual(await left.client("looker").list("again"), []);
    } finally {
      await asked.start();
    }
  });

  test("those of a store that was moved are followed to the new one, and not back, and a copy is not", async () => {
    const answers: [string, number, Record<string, string>][] = [];
    const asked: (string | undefined)[] = [];
    const addresses = ["http://old", "http://new"].map((url) => ({ url, isLocal: false }));
    const servers = new Servers(addresses, async (address, request) => {
      asked.push(request.headers["X-Dibs-Store"]);
      const [url, status, headers] = answers.shift()!;
      assert.equal(address.url, url);
      const code = status === 503 ? "upstream_unavailable" : "invalid_input";
      const text = JSON.stringify(status === 200 ? {} : { code, details: "x" });
      return { status, text, header: (name: string) => headers[name] ?? null };
    }, () => ({}));
    const random = Math.random;
    Math.random = () => 0;
    try {
      const release = () => servers.ask({ verb: "release", name: "job", document: { lease_id: "x" } }, 1_000);
      answers.push(["http://old", 200, { "x-dibs-store": "one" }]);
      answers.push(["http://old", 503, { "x-dibs-store": "one" }], ["http://new", 200, { "x-dibs-store": "two", "x-dibs-moved-from": "one" }]);
      answers.push(["http://new", 503, { "x-dibs-store": "two" }], ["http://old", 421, { "x-dibs-store": "one" }]);
      answers.push(["http://new", 200, { "x-dibs-store": "copy", "x-dibs-moved-from": "one" }]);
      assert.deepEqual([await release(), await release(), await release()].map((reply) => reply.status), [200, 200, 503]);
      assert.deepEqual(asked, [undefined, "one", "one", "two", "two"]);
      assert.match((await release()).error!.message, /another store/);
    } finally {
      Math.random = random;
    }
  });

  test("none that answers is told with all of their names", async () => {
    const nobody = one.client("ann", { url: "http://127.0.0.1:2,http://127.0.0.1:3" });
    await assert.rejects(nobody.claim("x"), (error) => error instanceof Unavailable && /:2 .*:3 |:3 .*:2 /s.test(error.message) && !/not known/.test(error.message));
  });
});

describe("what answers", { concurrency: 4 }, () => {
  const raw = (status: number, text: string, headers: Record<string, string> = {}) => ({ status, text, header: (name: string) => headers[name] ?? null });

  test("and is not dibs is called so", () => {
    for (const [status, text] of [[200, "<html>"], [200, "[]"], [200, "{}"], [200, '{"status":"acquired"}'], [200, '{"status":"new"}'], [404, "x"],
      [200, '{"status":"acquired","name":"a","lease_id":7,"fencing_token":1,"owner":"o","remaining_ms":1,"renew_after_ms":1}'], [415, "{}"]] as const) {
      assert.throws(() => decode("acquire", raw(status, text), "http://x"), /http:\/\/x/, text);
    }
    assert.throws(() => decode("release", raw(0, ""), "http://x"), /not as dibs does/);
    assert.throws(() => yes(decode("release", raw(400, '{"error":"e","code":"constructor","details":"d","status":"toString"}'), "http://x")), RequestRefused);
    assert.throws(() => decode("acquire", raw(302, "", { location: "http://y" }), "http://x"), /redirects to http:\/\/y/);
    assert.throws(() => decode("acquire", raw(502, "<html>"), "http://x"), Unavailable);
  });

  test("with a later time says when, also by its header", () => {
    const reply = decode("acquire", raw(503, '{"error":"e","code":"draining","details":"d"}', { "retry-after": "3" }), "http://x");
    assert.equal(reply.body["retry_after_ms"], 3_000);
  });

  test("is asked for without following redirects", async () => {
    const reply = await overFetch({ url: one.url, isLocal: true }, { method: "GET", target: "/health", headers: {} }, AbortSignal.timeout(5_000));
    assert.equal(reply.status, 200);
    assert.ok(reply.header("x-dibs-store"));
  });
});
