/** Pools, ceilings and groups; any of several, leaders, events, sessions inside sessions, a token that is replaced. */

import assert from "node:assert/strict";
import { mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Frames } from "../src/events.js";
import { Dibs, EventsGone, InvalidInput, InvalidName, JobHeld, JobSuperseded, LeaseLost, NoneFree, Unavailable } from "../src/node.js";
import { SLOWNESS, Server, pause, soon, until } from "./server.js";
import type { Events, JobEvent } from "../src/node.js";

const server = new Server();
const socket = new Server({ bind: "unix:FOLDER/dibs.sock" });
let [ann, bob]: Dibs[] = [];
before(async () => {
  await Promise.all([server.start(), socket.start()]);
  [ann, bob] = [server.client("ann"), server.client("bob")];
});
after(() => Promise.all([server.close(), socket.close()]));

describe("a claim", { concurrency: 4 }, () => {
  test("of units has as many slots as it asks for", async () => {
    await using two = await ann!.claim("gpus", { slots: 3, units: 2 });
    assert.deepEqual([two.slot, two.slotNumbers], [0, [0, 1]]);
    await assert.rejects(bob!.claim("gpus", { slots: 3, units: 2 }), JobHeld);
    await using one = await bob!.claim("gpus", { slots: 3 });
    assert.deepEqual([one.slot, one.slotNumbers], [2, [2]]);
    await assert.rejects(ann!.claim("gpus", { slots: 3, units: 4 }), /Ask for fewer/);
    await assert.rejects(ann!.claim("gpus", { slots: 3, units: 1.5 }), /units is a whole number/);
    await using plain = await ann!.claim("no-slots");
    assert.deepEqual([plain.slot, plain.slotNumbers], [undefined, []]);
  });

  test("with a ceiling is lost then, whatever is renewed", async () => {
    const claim = await ann!.claim("ceiling", { ttlMs: 60_000, maxHoldMs: 3_500 * SLOWNESS }); // rounded up
    assert.ok(claim.remainingMs() <= 4_000 * SLOWNESS);
    await soon("the ceiling is reached", new Promise((resolve) => claim.signal.addEventListener("abort", resolve)));
    assert.throws(() => claim.check(), (error) => error instanceof LeaseLost && /longest time/.test(error.why));
    for (const maxHoldMs of [0, -1, Infinity, Number.NaN]) await assert.rejects(ann!.claim("ceiling-2", { maxHoldMs }), /maxHoldMs/);
  });

  test("that replaces others of its group waits instead of them", async () => {
    const owner = await ann!.claim("deploy");
    const waitMs = 30_000 * SLOWNESS;
    const older = ann!.claim("deploy", { waitMs, replaces: "main" });
    const refused = assert.rejects(older, JobSuperseded);
    await until("the older waits", () => server.waiting("deploy"));
    const newer = bob!.claim("deploy", { waitMs, replaces: "main" });
    await soon("the older one is told", refused);
    await owner.release();
    await using got = await soon("the newer one has it", newer);
    assert.equal(got.owner, "bob");
  });

  test("of any has as many as it counts, or none", async () => {
    const names = ["count-1", "count-2", "count-3"];
    await using two = await ann!.claimAny(names, { count: 2 });
    assert.deepEqual(two.names, ["count-1", "count-2"]);
    await assert.rejects(bob!.claimAny(names, { count: 2 }), NoneFree);
    await using last = await bob!.claimAny(names, { count: 1 });
    assert.deepEqual(last.names, ["count-3"]);
    await assert.rejects(ann!.claimAny(names, { count: Number.NaN }), /count is a whole number/);
  });
});

test("of any that finds none free names first what waits for a person", async () => {
  const parked = await ann!.claim("stuck", { maxAttempts: 1 });
  await parked.fail("broke");
  const names = Array.from({ length: 6 }, (_, at) => `busy-${at}`);
  await using held = await ann!.claimAll(names);
  await assert.rejects(bob!.claimAny([...held.names, "stuck"]), /^NoneFree: Not available: stuck \(parked\), busy-0 \(ann\), /);
});

describe("a leader", { concurrency: 4 }, () => {
  test("leads alone, and the next one after it has a higher term", async () => {
    const first = await ann!.leader("scheduler", { metadata: "of a test" });
    assert.deepEqual([first.election, first.isLeader, first.name], ["scheduler", true, "election:scheduler"]);
    await assert.rejects(bob!.leader("scheduler", { waitMs: 0 }), JobHeld);
    const waiting = bob!.leader("scheduler", { waitMs: 30_000 * SLOWNESS });
    await until("bob campaigns", () => server.waiting("election:scheduler"));
    await first.resign();
    assert.equal(first.isLeader, false);
    await using second = await soon("bob leads", waiting);
    assert.ok(second.term > first.term);
  });

  test("whose work throws resigns, and has not failed", async () => {
    const leader = await ann!.leader("throws");
    await assert.rejects(leader.during(() => Promise.reject(new Error("of the work"))), /of the work/);
    await using next = await bob!.leader("throws");
    assert.deepEqual([next.previous?.how, next.attempt], ["released", 1]);
  });

  test("stops campaigning by a signal, and needs a name", async () => {
    await using leader = await ann!.leader("stops");
    const leaving = new AbortController();
    const waiting = assert.rejects(bob!.leader("stops", { signal: leaving.signal }), /enough/);
    await until("bob campaigns", () => server.waiting("election:stops"));
    leaving.abort(new Error("enough"));
    await soon("bob stops", waiting);
    assert.equal(await server.waiting("election:stops"), 0);
    assert.ok(leader.isLeader);
    for (const name of ["", " x"]) await assert.rejects(ann!.leader(name), InvalidName);
  });
});

/** The kinds of the next `count` events, with what is done once the reading has begun. */
async function read(events: Events, count: number, meanwhile: () => Promise<unknown> = async () => undefined): Promise<JobEvent[]> {
  const found: JobEvent[] = [];
  const reading = (async () => {
    for await (const event of events) if (found.push(event) === count) break;
  })();
  await until("the reader has begun", () => events.position !== undefined || found.length > 0);
  await meanwhile();
  await soon(`${count} events`, reading);
  return found;
}

describe("events", () => {
  test("come as they happen, over TCP and a Unix socket, and another loop goes on", async () => {
    for (const where of [server, socket]) {
      const dibs = where.client("ann");
      await (await dibs.claim("ev-0")).release();
      const events = dibs.events({ prefix: "ev-" });
      const found = await read(events, 3, async () => {
        await (await dibs.claim("other")).release();
        const claim = await dibs.claim("ev-1");
        await claim.checkpoint("half");
        await claim.release();
      });
      assert.deepEqual(found.map((each) => [each.name, each.event, each.owner]), [
        ["ev-1", "acquired", "ann"], ["ev-1", "progress", "ann"], ["ev-1", "released", "ann"],
      ]);
      await (await dibs.claim("ev-2")).release();
      const more = await read(events, 2);
      assert.deepEqual(more.map((each) => [each.name, each.event]), [["ev-2", "acquired"], ["ev-2", "released"]]);
      assert.equal(events.position, more[1]!.seq);
      const all = await read(dibs.events({ name: "ev-0", after: 0 }), 2);
      assert.deepEqual(all.map((each) => each.event), ["acquired", "released"]);
      assert.equal((await read(dibs.events({ prefix: "ev-", sinceMs: 3_600_000 }), 7)).length, 7);
    }
  });

  test("none is missed or comes twice while the server is killed and comes back", async () => {
    await using own = await new Server().start();
    const dibs = own.client("ann");
    const count = 60;
    const found: JobEvent[] = [];
    const reading = (async () => {
      for await (const event of dibs.events({ after: 0 })) if (found.push(event) === 2 * count) break;
    })();
    for (let at = 0; at < count; at++) {
      await (await dibs.claim(`job-${at}`, { waitMs: 30_000 * SLOWNESS })).release();
      if (at % 20 === 10) {
        await own.kill();
        await own.start();
      }
    }
    await soon("all have come", reading);
    const seqs = found.map((each) => each.seq);
    assert.deepEqual(seqs, [...new Set(seqs)].sort((one, other) => one - other));
    const acquired = found.filter((each) => each.event === "acquired").map((each) => each.name);
    assert.deepEqual(acquired, Array.from({ length: count }, (_, at) => `job-${at}`));
  });

  test("end by a signal, and without patience when nobody answers", async () => {
    await using own = await new Server().start();
    const dibs = own.client("ann");
    const leaving = new AbortController();
    const events = dibs.events({ signal: leaving.signal, patienceMs: 100 });
    const reading = (async () => { for await (const _ of events); })();
    const stopped = assert.rejects(reading, /enough/);
    await until("the reader has begun", () => events.position !== undefined);
    leaving.abort(new Error("enough"));
    await soon("it stops", stopped);
    const impatient = dibs.events({ patienceMs: 100 });
    const ended = assert.rejects((async () => { for await (const _ of impatient); })(), Unavailable);
    await until("the reader has begun", () => impatient.position !== undefined);
    await own.kill();
    await soon("it gives up", ended);
    await assert.rejects((async () => { for await (const _ of dibs.events()); })(), Unavailable);
  });

  test("that are not on record any more are told, and the reading goes on behind them", async () => {
    await (await ann!.claim("gone")).release();
    const far = ann!.events({ after: 1_000_000_000 });
    await assert.rejects(read(far, 1), EventsGone);
    assert.ok(far.position! < 1_000_000_000);
    const found = await read(far, 1, async () => void (await (await ann!.claim("gone")).release()));
    assert.ok(found[0]!.seq > 0);
  });

  test("refuse what cannot be asked for", () => {
    for (const wrong of [{ prefix: "a", name: "b" }, { after: 1, sinceMs: 1 }, { after: -1 }, { after: 1.5 }, { sinceMs: 0 }, { sinceMs: Number.NaN }]) {
      assert.throws(() => ann!.events(wrong), InvalidInput, JSON.stringify(wrong));
    }
  });

  test("are read from text that is cut anywhere", () => {
    const text = 'retry: 1000\n\n: here\nid: 4\n\nid: 5\r\ndata: {"seq":5,"event":"acquired"}\r\n\r\nevent: gap\ndata: {"after":1}\n\n';
    for (let size = 1; size < text.length; size++) {
      const frames = new Frames();
      const found = [];
      for (let at = 0; at < text.length; at += size) found.push(...frames.read(text.slice(at, at + size)));
      assert.deepEqual(found.map(({ kind, seq }) => [kind, seq]), [["", 4], ["", 5], ["gap", 5]], `${size}`);
      assert.equal(found[1]!.event?.event, "acquired");
    }
    assert.throws(() => new Frames().read("data: 7\n\n"), TypeError);
    assert.throws(() => new Frames().read("x".repeat(2_000_000)), TypeError);
  });
});

test("a session inside another shares its jobs, and two inside one do not", async () => {
  await using parent = await ann!.session();
  await using one = await ann!.session({ parent });
  await using two = await ann!.session({ parent: parent.id });
  await using held = await parent.claim("family");
  await using inside = await one.claim("family");
  assert.deepEqual([held.name, inside.name], ["family", "family"]);
  await assert.rejects(two.claim("family"), JobHeld);
});

test("a token file that is replaced is read again, and one that vanishes is kept", async () => {
  const folder = mkdtempSync(join(tmpdir(), "dibs-ts-"));
  const file = join(folder, "token");
  writeFileSync(file, "unknown-yet\n");
  Object.assign(process.env, { DIBS_URL: server.url, DIBS_TOKEN_FILE: file });
  try {
    const dibs = new Dibs();
    const asks = () => dibs.inspect("x").then(() => true, () => false);
    assert.equal(await asks(), false);
    writeFileSync(join(folder, "new"), `ci:${server.token}:agent\n`);
    renameSync(join(folder, "new"), file);
    await until("the new one is used", asks);
    rmSync(file);
    await pause(1_100); // it is looked at once a second
    assert.equal(await asks(), true);
    assert.throws(() => new Dibs(), /cannot be read \(ENOENT\)/);
  } finally {
    for (const name of ["DIBS_URL", "DIBS_TOKEN_FILE"]) delete process.env[name];
    rmSync(folder, { recursive: true });
  }
  let present = "unknown";
  const dibs = server.client("x", { token: () => present });
  await assert.rejects(dibs.inspect("x"));
  present = server.token;
  assert.equal((await dibs.inspect("x")).status, "free");
  let isBroken = false;
  const fails = server.client("x", { token: () => { if (isBroken) throw new Error("no vault"); return server.token; } });
  isBroken = true;
  await assert.rejects(fails.inspect("x"), (error) => error instanceof InvalidInput && /no vault/.test(error.message));
});
