import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import type { ChildProcess } from "node:child_process";
import { JobHeld, LeaseLost, Unavailable } from "../src/node.js";
import { Proxy, SLOWNESS, Server, soon, until } from "./server.js";

const TTL_MS = 2_000 * SLOWNESS;
const server = new Server();
before(() => server.start());
after(() => server.close());

async function proxied(use: (proxy: Proxy) => Promise<void>): Promise<void> {
  const proxy = await new Proxy(server).start();
  try {
    await use(proxy);
  } finally {
    proxy.close();
  }
}

/** Another process that owns a job. */
function start(job: string, shows: string, ttlMs: number) {
  const program = fileURLToPath(new URL("owner.js", import.meta.url));
  const owner = spawn(process.execPath, [program, server.url, server.token, job, String(ttlMs), shows], { stdio: ["ignore", "pipe", "inherit"] });
  const lines = createInterface({ input: owner.stdout })[Symbol.asyncIterator]();
  return { owner, says: async () => (await soon(`${job} says more`, lines.next())).value as string | undefined };
}

async function ended(process: ChildProcess): Promise<void> {
  process.kill("SIGKILL");
  if (process.exitCode === null && process.signalCode === null) await once(process, "exit");
}

describe("while the server is up", { concurrency: 4 }, () => {
  for (const [word, lose] of [["/acquire", 1], ["/acquire", 2], ["/renew", 1], ["/release", 1]] as const) {
    test(`${lose} lost answers to ${word} are asked for again, and it is one lease`, () =>
      proxied(async (proxy) => {
        Object.assign(proxy, { word, lose });
        const job = `lost${word}-${lose}`;
        {
          await using claim = await server.client("ann", { url: proxy.url }).claim(job);
          await claim.checkpoint("on");
          assert.deepEqual([claim.fencingToken, (await server.client("bob").inspect(job)).checkpoint], [1, "on"]);
        }
        assert.equal(proxy.lose, 0);
        assert.equal((await server.client("bob").inspect(job)).status, "free");
      }));
  }

  test("a claim that gets no answer is refused in time, and leaves nothing behind", () =>
    proxied(async (proxy) => {
      Object.assign(proxy, { word: '"ttl_ms"', hangs: true });
      const client = server.client("ann", { url: proxy.url, timeoutMs: 300 });
      const began = performance.now();
      await assert.rejects(client.claim("no-answer", { ttlMs: 60_000 }), (error) => error instanceof Unavailable && /not known/.test(error.message));
      assert.ok(performance.now() - began < 10_000);
      assert.equal((await server.client("bob").inspect("no-answer")).status, "free");
    }));

  test("a place in line whose answer never came is given up", () =>
    proxied(async (proxy) => {
      await using held = await server.client("bob").claim("no-place");
      Object.assign(proxy, { word: '"ttl_ms"', hangs: true });
      const waiting = server.client("ann", { url: proxy.url, timeoutMs: 300 }).claim("no-place", { waitMs: 2_500 });
      await assert.rejects(waiting);
      assert.equal(await server.waiting("no-place"), 0);
      held.check();
    }));

  test("an owner whose heartbeats get no answer knows of the loss before the next one owns", () =>
    proxied(async (proxy) => {
      const claim = await server.client("ann", { url: proxy.url }).claim("cut-off", { ttlMs: TTL_MS });
      Object.assign(proxy, { hangs: true });
      const next = server.client("bob").claim("cut-off", { waitMs: 60_000 });
      let order = "";
      claim.signal.addEventListener("abort", () => (order += "lost "));
      void next.then(() => (order += "owned"));
      await next;
      assert.equal(order, "lost owned");
      assert.throws(() => claim.check(), LeaseLost);
      await claim[Symbol.asyncDispose](); // it was told: no second error, and the next owner is not touched
      (await next).check();
      await (await next).release();
    }));

  test("a loop that was blocked past the deadline knows of it before it asks anybody", async () => {
    const { says, owner } = start("blocked", "blocked", TTL_MS);
    assert.deepEqual([await says(), await says()], ["owns 1", "LeaseLost"]);
    await ended(owner);
  });

  for (const shows of ["check", "signal"]) {
    test(`an owner that was stopped past its deadline wakes up without the job, by its ${shows}`, async () => {
      const { says, owner } = start(`stopped-${shows}`, shows, TTL_MS);
      try {
        assert.equal(await says(), "owns 1");
        owner.kill("SIGSTOP");
        await using next = await server.client("bob").claim(`stopped-${shows}`, { waitMs: 60_000 });
        assert.equal(next.fencingToken, 2);
        owner.kill("SIGCONT");
        assert.equal(await says(), "LeaseLost");
        next.check();
      } finally {
        await ended(owner);
      }
    });
  }
});

describe("when the server is killed or paused", { concurrency: 4 }, () => {
  test("a claim, a session and a wait ride out a restart", async () => {
    await using server = await new Server().start();
    const [ann, bob] = [server.client("ann"), server.client("bob")];
    const held = await ann.claim("restart", { ttlMs: 20_000 * SLOWNESS });
    const session = await bob.session({ ttlMs: 20_000 * SLOWNESS });
    const inside = await session.claim("restart-too");
    const waiting = server.client("carol").claim("restart", { waitMs: 60_000 });
    await until("carol stands in line", () => server.waiting("restart"));
    await server.kill();
    await assert.rejects(ann.claim("other"), Unavailable);
    await server.start();
    await Promise.all([held.checkpoint("still here"), inside.checkpoint("here, too")]);
    await held.release();
    await using next = await waiting;
    assert.deepEqual([next.previous?.checkpoint, next.fencingToken], ["still here", held.fencingToken + 1]);
    await session.end();
  });

  test("a server that is paused past the TTL is a loss in time, and grants nothing twice when it wakes", async () => {
    await using server = await new Server().start();
    const claim = await server.client("ann").claim("paused", { ttlMs: TTL_MS });
    const heard = performance.now() + claim.remainingMs();
    server.pause();
    try {
      await until("the loss is told", () => claim.signal.aborted);
      assert.ok(performance.now() <= heard + TTL_MS, "told about when it is due");
      assert.match((claim.signal.reason as LeaseLost).message, /no heartbeat was answered in time/);
      const began = performance.now();
      await assert.rejects(server.client("bob", { timeoutMs: 300 }).claim("while-paused"), Unavailable);
      assert.ok(performance.now() - began < 10_000);
    } finally {
      server.resume();
    }
    const refused = await server.client("bob").claim("paused", { waitMs: 60_000 });
    assert.equal(refused.fencingToken, claim.fencingToken + 1);
    await claim[Symbol.asyncDispose](); // `signal.reason` has told of the loss
    refused.check();
    await assert.rejects(server.client("carol").claim("paused"), JobHeld);
    await refused.release();
  });

  test("a session gives back what it could not give up while nobody answered", async () => {
    await using server = await new Server().start();
    await using held = await server.client("bob").claim("owed");
    const session = await server.client("ann", { timeoutMs: 500 }).session({ ttlMs: 20_000 * SLOWNESS });
    const stopping = new AbortController();
    const waiting = session.claim("owed", { waitMs: 60_000, signal: stopping.signal });
    await until("ann stands in line", () => server.waiting("owed"));
    await server.kill();
    stopping.abort(new Error("enough"));
    await assert.rejects(waiting, /enough/);
    await server.start();
    await until("the place was given up", async () => (await server.waiting("owed")) === 0);
    await held.release();
    session.check();
    await session.end();
    assert.equal((await server.client("bob").inspect("owed")).status, "free");
  });

  test("a session says the end of a claim and a checkpoint until somebody answers", async () => {
    await using server = await new Server().start();
    const session = await server.client("ann", { timeoutMs: 500, warn: () => undefined }).session({ ttlMs: 20_000 * SLOWNESS });
    const [over, kept] = [await session.claim("over"), await session.claim("kept")];
    await server.kill();
    await over[Symbol.asyncDispose]();
    await kept.checkpoint("page 7");
    await server.start();
    const bob = server.client("bob");
    await until("the job was released", async () => (await bob.inspect("over")).status === "free");
    await until("the checkpoint was sent", async () => (await bob.inspect("kept")).checkpoint === "page 7");
    kept.check();
    await session.claim("over"); // it is anew, and not the lease that was given up
    await session.end();
  });
});

describe("several jobs", () => {
  for (const inSession of [true, false]) {
    test(`who lost one of them gives the others back${inSession ? ", in a session" : ""}`, async () => {
      const ann = server.client("ann", { warn: () => undefined });
      const session = await ann.session();
      const jobs = ["a", "b", "c"].map((each) => `${each}-${inSession}`);
      await assert.rejects(
        (inSession ? session : ann).claimAll(jobs).then((claim) =>
          claim.during(async () => {
            await server.breaks(jobs[0]!);
          }),
        ),
        LeaseLost,
      );
      for (const job of jobs) assert.equal((await server.client("bob").inspect(job)).status, "free");
      await session.end();
    });
  }

  test("no claim gets the lease that another one of its session is just releasing", () =>
    proxied(async (proxy) => {
      const session = await server.client("ann", { url: proxy.url }).session();
      const first = await session.claim("passing");
      const [, second] = await Promise.allSettled([first[Symbol.asyncDispose](), session.claim("passing")]);
      if (second.status === "fulfilled") {
        assert.ok(second.value.fencingToken > first.fencingToken);
        assert.equal((await server.client("bob").inspect("passing")).status, "held");
      } else assert.ok(second.reason instanceof JobHeld);
      await session.end();
    }));
});
