import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { AuthenticationFailed, AuthenticationRequired, Dibs, InvalidInput, InvalidName, InvalidTtl, JobDone, JobHeld, JobParked,
  JobResting, JobSuperseded, LeaseLost, NoneFree, NotClaimed, Unavailable, WouldDeadlock } from "../src/node.js";
import { SLOWNESS, Server, pause, soon, until } from "./server.js";

const server = new Server();
const socket = new Server({ bind: "unix:FOLDER/dibs.sock" });
let [ann, bob]: Dibs[] = [];
before(async () => {
  await Promise.all([server.start(), socket.start()]);
  [ann, bob] = [server.client("ann"), server.client("bob")];
});
after(() => Promise.all([server.close(), socket.close()]));

describe("a claim", { concurrency: 4 }, () => {
  test("has the job in its block, and lets it go at the end", async () => {
    let token = 0;
    {
      await using claim = await ann!.claim("block", { metadata: "from a test" });
      token = claim.fencingToken;
      assert.deepEqual([claim.name, claim.owner, claim.attempt, claim.previous], ["block", "ann", 1, undefined]);
      assert.ok(claim.remainingMs() > 50_000 && !claim.signal.aborted);
      claim.check();
      const refused = await bob!.claim("block").catch((error: unknown) => error);
      assert.ok(refused instanceof JobHeld && refused.owner === "ann" && refused.exitCode === 1, String(refused));
      assert.match(refused.message, /^ann has block for another \d+ s\.$/);
    }
    await using next = await bob!.claim("block");
    assert.equal(next.fencingToken, token + 1);
    assert.deepEqual([next.previous?.owner, next.previous?.how], ["ann", "released"]);
  });

  test("gives its checkpoint to the next owner", async () => {
    const claim = await ann!.claim("import");
    await claim.checkpoint("page 3");
    assert.equal((await bob!.inspect("import")).checkpoint, "page 3");
    await claim.release("page 4");
    await using next = await bob!.claim("import");
    assert.equal(next.previous?.checkpoint, "page 4");
  });

  test("notes steps, so that the next owner repeats none blindly", async () => {
    const claim = await ann!.claim("steps");
    let ran = 0;
    const count = async (): Promise<string> => `run ${++ran}`;
    assert.equal(await claim.once("tag", count), "run 1");
    assert.equal(await claim.once("tag", count), "run 1");
    const late = Object.assign(new Error("no answer"), { name: "TimeoutError" });
    await assert.rejects(claim.once("mail", () => Promise.reject(late)), late);
    await claim.fail("why");
    await using next = await bob!.claim("steps");
    assert.deepEqual(next.previous?.effects?.map((each) => [each.key, each.status]), [["tag", "done"], ["mail", "in_doubt"]]);
    const told: unknown[] = [];
    await next.once("mail", async (known) => (told.push(known.status, known.owner), undefined));
    assert.deepEqual([...told, ran], ["in_doubt", "ann", 1]);
  });

  test("notes a step as done whose result cannot be kept, and a failed connection as doubt", async () => {
    await using claim = await ann!.claimAll(["path:steps", "steps-odd"]);
    await assert.rejects(claim.once("long", async () => "x".repeat(2000)), /noted as done, without its result/);
    await assert.rejects(claim.once("number", async () => 7 as unknown as string), InvalidInput);
    const reset = Object.assign(new Error("read"), { code: "ECONNRESET" });
    await assert.rejects(claim.once("reset", () => Promise.reject(reset)), reset);
    const told: (string | undefined)[] = [];
    for (const key of ["long", "number", "reset"]) await claim.once(key, async (known) => (told.push(known.status), undefined));
    assert.deepEqual(told, ["in_doubt"]);
  });

  test("goes on with a step whose notes nobody answered", async () => {
    await using own = await new Server().start();
    const claim = await own.client("ann").claim("steps");
    await assert.rejects(claim.once("mail", async () => (await own.kill(), "sent")), Unavailable);
    await assert.rejects(claim.once("tag", async () => "not run"), Unavailable);
    await own.start();
    assert.equal(await claim.once("mail", async () => "again"), "sent");
    assert.equal(await claim.once("tag", async (known) => known.status), "new");
  });

  test("that is done is told to the next one with the result", async () => {
    await (await ann!.claim("report")).done("PR 77");
    const refused = await bob!.claim("report").catch((error: unknown) => error);
    assert.ok(refused instanceof JobDone && refused.result === "PR 77" && refused.exitCode === 4, String(refused));
    await using again = await bob!.claim("report", { again: true });
    assert.equal(again.name, "report");
  });

  test("of any of several is the first that is free, and says why none was", async () => {
    await using first = await ann!.claimAny(["any-1", "any-2"]);
    await using second = await bob!.claimAny(["any-1", "any-2"]);
    assert.deepEqual([first.name, second.name], ["any-1", "any-2"]);
    const refused = await bob!.claimAny(["any-1", "any-2"]).catch((error: unknown) => error);
    assert.ok(refused instanceof NoneFree && refused.refusals.length === 2 && refused.refusals[0]!.owner === "ann", String(refused));
    const waiting = bob!.claimAny(["any-1"], { waitMs: 10_000 * SLOWNESS });
    await first.release();
    await using got = await waiting;
    assert.equal(got.name, "any-1");
  });

  test("of all of several has all of them or none", async () => {
    const one = await bob!.claim("all-2");
    await assert.rejects(ann!.claimAll(["all-1", "all-2"]), NoneFree);
    assert.equal((await ann!.inspect("all-1")).status, "free");
    await one.release();
    const all = await ann!.claimAll(["all-1", "all-2"]);
    assert.deepEqual(all.names, ["all-1", "all-2"]);
    assert.deepEqual(Object.keys(all.fencingTokens), ["all-1", "all-2"]);
    assert.deepEqual((await ann!.list("all-")).map((job) => job.name), ["all-1", "all-2"]);
    await all.release();
    assert.deepEqual(await ann!.list("all-"), []);
  });

  test("waits in line, first come first served", async () => {
    const order: string[] = [];
    const first = await ann!.claim("line");
    const waiters = [];
    for (const who of ["one", "two", "three"]) {
      waiters.push(server.client(who).claim("line", { waitMs: 30_000 * SLOWNESS }).then(async (claim) => {
        order.push(claim.owner);
        await claim.release();
      }));
      await until(`${who} stands in line`, async () => (await server.waiting("line")) === waiters.length);
    }
    await first.release();
    await Promise.all(waiters);
    assert.deepEqual(order, ["one", "two", "three"]);
  });

  test("gets the job after a wait that is longer than its TTL", async () => {
    const first = await ann!.claim("short");
    const ttlMs = 2_000 * SLOWNESS;
    const waiting = bob!.claim("short", { ttlMs, waitMs: 60_000 });
    await pause(1_500 + ttlMs); // the first request for a place is short, the next one waits
    await first.release();
    await using second = await waiting;
    second.check();
  });

  test("of a group is told that a newer one waits instead", async () => {
    await using first = await ann!.claim("newest");
    const fields = { replaces: "main" };
    const older = bob!.claim("newest", { waitMs: 60_000, fields }).catch((error: unknown) => error);
    await until("the older one waits", async () => (await ann!.inspect("newest")).waiting === 1);
    const newer = bob!.claim("newest", { waitMs: 60_000, fields });
    const refused = await older;
    assert.ok(refused instanceof JobSuperseded && refused.exitCode === 5, String(refused));
    await first.release();
    await (await newer).release();
  });

  test("that is told to stop waiting leaves the line, and throws the reason", async () => {
    await using held = await ann!.claim("abort");
    const stopping = new AbortController();
    const waiting = bob!.claim("abort", { waitMs: Infinity, signal: stopping.signal });
    await until("bob stands in line", () => server.waiting("abort"));
    stopping.abort(new Error("enough"));
    await assert.rejects(soon("it stops waiting", waiting), /^Error: enough$/);
    assert.equal(await server.waiting("abort"), 0);
    await assert.rejects(bob!.claim("abort", { signal: stopping.signal }), /enough/);
    assert.ok(held.remainingMs() > 0);
  });

  test("whose wait is over leaves the line and is told who has the job", async () => {
    await using held = await ann!.claim("short-wait");
    const began = performance.now();
    const refused = await bob!.claim("short-wait", { waitMs: 300 }).catch((error: unknown) => error);
    assert.ok(refused instanceof JobHeld && refused.owner === held.owner, String(refused));
    assert.ok(performance.now() - began >= 290);
    assert.equal(await server.waiting("short-wait"), 0);
  });

  test("is kept for longer than its TTL by heartbeats", async () => {
    await using claim = await ann!.claim("kept", { ttlMs: 2_000 * SLOWNESS });
    await pause(3_000 * SLOWNESS);
    claim.check();
    assert.equal((await bob!.inspect("kept")).fencing_token, claim.fencingToken);
  });

  test("that is taken away fires its signal with the reason, and the block throws", async () => {
    let signal: AbortSignal | undefined;
    const lost = await (async () => {
      await using claim = await ann!.claim("broken", { ttlMs: 1_500 * SLOWNESS });
      signal = claim.signal;
      await server.post("/locks/broken/break", { reason: "it hangs" });
      await until("the loss is told", () => claim.signal.aborted);
      assert.equal(claim.remainingMs(), 0);
    })().catch((error: unknown) => error);
    assert.ok(lost instanceof LeaseLost && /it hangs/.test(lost.message) && lost.exitCode === 2, String(lost));
    assert.equal(signal!.reason, lost); // read in the block, it would have told of the loss
  });

  test("lets a resource go whatever the work did, and marks only jobs as done or failed", async () => {
    const work = (await ann!.claim("path:src/a")).during(async () => {
      throw new TypeError("boom");
    });
    await assert.rejects(work, TypeError);
    const again = await ann!.claim("path:src/a");
    assert.equal(again.attempt, 1);
    await assert.rejects(again.done(), InvalidInput);
    await assert.rejects(again.fail("no"), InvalidInput);
    await again.release();
    await assert.rejects(ann!.claim("path:src/a", { maxAttempts: 2 }), InvalidInput);
    await (await ann!.claimAll(["path:src/a", "both"])).done();
    assert.equal((await ann!.inspect("path:src/a")).status, "free");
    assert.equal((await ann!.inspect("both")).status, "done");
  });

  test("counts work that throws as failed, and a refusal of another job as no verdict", async () => {
    const work = (await ann!.claim("fails", { maxAttempts: 2 })).during(async () => {
      throw new TypeError("a secret");
    });
    await assert.rejects(work, /a secret/);
    const { previous } = await ann!.inspect("fails");
    assert.deepEqual([previous?.how, previous?.reason], ["failed", "threw TypeError"]);
    await assert.rejects((await ann!.claim("fails", { maxAttempts: 2 })).during(() => ann!.claim("fails")), JobHeld);
    const second = await ann!.claim("fails", { maxAttempts: 2 });
    assert.equal(second.attempt, 2);
    await second.fail("again", 60_000);
    await assert.rejects(ann!.claim("fails", { maxAttempts: 2 }), JobParked);
    await (await ann!.claim("rests")).fail("later", 60_000);
    await assert.rejects(ann!.claim("rests"), JobResting);
    assert.equal(await (await ann!.claim("works")).during(async (claim) => claim.fencingToken), 1);
    assert.equal((await ann!.inspect("works")).status, "free");
  });

  test("counts several errors in one as failed if one of them is a failure of its own", async () => {
    const held = new JobHeld({ code: "held", name: "other", owner: "bob" });
    const threw = async (error: unknown) => {
      await assert.rejects((await ann!.claim("groups")).during(async () => { throw error; }), (thrown) => thrown === error);
      const { previous } = await ann!.inspect("groups");
      return [previous?.how, previous?.reason ?? undefined];
    };
    const circle = new AggregateError([held]);
    circle.errors.push(circle);
    const both = Object.assign(new Error("both"), { name: "SuppressedError", error: held, suppressed: new LeaseLost("b", 1, "x") });
    for (const error of [new AggregateError([held]), new AggregateError([new AggregateError([held]), held]), circle, both])
      assert.deepEqual(await threw(error), ["released", undefined]);
    assert.deepEqual(await threw(new AggregateError([])), ["failed", "threw AggregateError"]);
    const mixed = new AggregateError([held, new TypeError("a secret"), new AggregateError([new RangeError("a secret"), "text"])]);
    assert.deepEqual(await threw(mixed), ["failed", "threw AggregateError of TypeError, RangeError, string"]);
    const many = Array.from({ length: 7 }, (_, number) => Object.assign(new Error("x"), { name: `E${number}` }));
    assert.deepEqual(await threw(new AggregateError(many)), ["failed", "threw AggregateError of E0, E1, E2, E3, E4 and 2 more"]);
    assert.deepEqual(await threw(Object.assign(both, { error: new TypeError("x") })), ["failed", "threw SuppressedError of TypeError"]);
  });

  test("can be handed over", async () => {
    const claim = await ann!.claim("handed");
    const lease = await claim.transfer({ owner: "bob" });
    assert.deepEqual([lease.owner, lease.fencing_token], ["bob", claim.fencingToken + 1]);
    assert.throws(() => claim.check(), LeaseLost);
    await claim[Symbol.asyncDispose]();
    assert.equal((await ann!.inspect("handed")).owner, "bob");
  });

  test("shares a job, or one of its slots", async () => {
    await using one = await ann!.claim("shared", { shared: true });
    await using two = await bob!.claim("shared", { shared: true });
    await assert.rejects(bob!.claim("shared"), JobHeld);
    await using slot = await ann!.claim("slots", { slots: 2 });
    await using other = await bob!.claim("slots", { slots: 2 });
    assert.equal(new Set([one, two, slot, other].map((each) => each.leases[0]!.lease_id)).size, 4);
  });

  test("takes any name that dibs takes, and refuses others with what to do", async () => {
    for (const name of ["a/b c?d#e%f", "...", "ü€😀", "x".repeat(512), "acquire-any", "%2e"]) {
      await using claim = await ann!.claim(name, { fields: { metadata: "\u0000\u001b[31m" } }).catch(() => ann!.claim(name));
      assert.equal((await ann!.inspect(name)).fencing_token, claim.fencingToken, name);
    }
    for (const name of ["", ".", "..", "x".repeat(513), "\ud800", " blank", 7 as unknown as string]) {
      await assert.rejects(ann!.claim(name), InvalidName, String(name));
    }
    await assert.rejects(ann!.claim("x", { ttlMs: 0 }), InvalidTtl);
    await assert.rejects(ann!.claim("x", { ttlMs: 1 }), InvalidTtl);
    await assert.rejects(ann!.claim("x", { waitMs: -1 }), InvalidInput);
    await assert.rejects(ann!.claim("x", { slots: NaN }), InvalidInput);
    await assert.rejects(ann!.claimAny([]), InvalidInput);
    await assert.rejects(ann!.claim("x", { metadata: "x".repeat(100_000) }), InvalidInput);
  });

  test("of an issue has one name, however it is written", async () => {
    await using claim = await ann!.claim("https://github.com/acme/app/issues/42");
    await assert.rejects(bob!.claim("acme/app#42"), JobHeld);
    assert.equal(claim.name, (await bob!.inspect("acme/app#42")).name);
  });
});

describe("a session", { concurrency: 4 }, () => {
  test("holds several jobs with one heartbeat, and lets all go at its end", async () => {
    {
      await using session = await ann!.session({ ttlMs: 1_500 * SLOWNESS, owner: "worker" });
      const claims = [await session.claim("s-1"), await session.claim("s-2")];
      await claims[0]!.checkpoint("half");
      await pause(2_200 * SLOWNESS);
      for (const claim of claims) claim.check();
      assert.deepEqual((await bob!.list("s-")).map((job) => [job.name, job.owner, job.checkpoint]), [["s-1", "worker", "half"], ["s-2", "worker", null]]);
    }
    assert.deepEqual(await bob!.list("s-"), []);
  });

  test("does not get twice what it has, nor asks for it twice at once", async () => {
    await using session = await ann!.session();
    const both = await Promise.allSettled([session.claim("twice"), session.claim("twice")]);
    assert.deepEqual(both.map((each) => each.status).sort(), ["fulfilled", "rejected"]);
    await assert.rejects(session.claim("twice"), /this very session/);
    await assert.rejects(session.claimAll(["twice", "not-twice"]), JobHeld);
    assert.deepEqual((await bob!.list("twice")).length, 1);
    assert.equal((await bob!.inspect("not-twice")).status, "free");
    await assert.rejects(session.claim("x", { ttlMs: 1000 }), InvalidInput);
  });

  test("tells a claim that was taken out of it, and its other claims stay", async () => {
    await using session = await ann!.session({ ttlMs: 1_500 * SLOWNESS });
    const [taken, other] = [await session.claim("taken"), await session.claim("stays")];
    await server.post("/locks/taken/break", { reason: "now" });
    await until("the loss is told", () => taken.signal.aborted);
    other.check();
    session.check();
    const again = await session.claim("taken");
    assert.equal(again.fencingToken, taken.fencingToken + 1);
  });

  test("loses a claim at its ceiling, before anybody else can have the job", async () => {
    await using session = await ann!.session();
    const claim = await session.claim("capped", { fields: { max_hold_seconds: 2 } });
    await using next = await bob!.claim("capped", { waitMs: 60_000 });
    assert.ok(claim.remainingMs() === 0 && next.fencingToken > claim.fencingToken);
    await until("its signal fires", () => claim.signal.aborted);
    await using other = await session.claim("not-capped");
    other.check();
  });

  test("does not wait for what would never come", async () => {
    await using mine = await ann!.session();
    await using theirs = await bob!.session();
    await mine.claim("left");
    await theirs.claim("right");
    const waiting = mine.claim("right", { waitMs: 30_000 });
    await until("it stands in line", () => server.waiting("right"));
    await assert.rejects(theirs.claim("left", { waitMs: 30_000 }), WouldDeadlock);
    await theirs.end();
    await waiting;
  });
});

describe("a client", () => {
  test("asks over a Unix socket, and finds its settings in the environment", async () => {
    Object.assign(process.env, { DIBS_URL: socket.url, DIBS_TOKEN_FILE: `${socket.folder}/dibs/token`, DIBS_OWNER: "env", DIBS_NAMESPACE: "team" });
    try {
      assert.match(socket.url, /^unix:\/\//);
      const dibs = new Dibs();
      await using claim = await dibs.claim("over-a-socket");
      assert.equal(claim.owner, "env");
      assert.equal((await dibs.list()).length, 1);
      assert.deepEqual(await new Dibs({ namespace: "default" }).list(), []);
      await assert.rejects(new Dibs({ url: "unix:///nowhere/dibs.sock" }).claim("x"), Unavailable);
    } finally {
      for (const name of ["DIBS_URL", "DIBS_TOKEN_FILE", "DIBS_OWNER", "DIBS_NAMESPACE"]) delete process.env[name];
    }
  });

  test("says what is wrong with its settings", async () => {
    for (const url of ["sqlite:///x.db", "127.0.0.1:3427", "", "ftp://x", "http://u:p@x", "http://x?y", "http://a,http://a", "unix://x", "http://example.org,https://b"]) {
      assert.throws(() => new Dibs({ url }), InvalidInput, url);
    }
    assert.throws(() => new Dibs(), /DIBS_URL/);
    assert.throws(() => new Dibs({ url: server.url, token: "a b" }), InvalidInput);
    assert.throws(() => new Dibs({ url: server.url, namespace: "a b" }), InvalidInput);
    await assert.rejects(server.client("x", { token: "unknown" }).claim("x"), AuthenticationFailed);
    await assert.rejects(server.client("x", { token: "" }).claim("x"), AuthenticationRequired);
    await assert.rejects(new Dibs({ url: "http://127.0.0.1:2" }).claim("x"), /No server answers at http:\/\/127\.0\.0\.1:2/);
    await assert.rejects(new Dibs({ url: "http://127.0.0.1:1" }).claim("x"), /bad port/); // one that `fetch` does not ask
    await assert.rejects(new Dibs({ url: `${server.url}/elsewhere` }).claim("x"), /there is nothing/);
  });

  test("has a class for each refusal", () => {
    for (const kind of [JobHeld, JobDone, JobResting, JobParked, WouldDeadlock]) assert.ok(kind.prototype instanceof NotClaimed);
  });
});
