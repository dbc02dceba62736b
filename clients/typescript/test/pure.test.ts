/** What needs no server: the answers that servers are held to, byte for byte, can be read, all of them; several jobs of
 * which one was lost; the clock. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { countSleepBy, steadyMs } from "../src/clock.js";
import { BadReply, DibsError, EXIT_CODES, FATE_UNKNOWN, JobHeld } from "../src/errors.js";
import { KEY_SPENT, PendingClaim } from "../src/pending.js";
import { decode, granted, yes } from "../src/reply.js";
import type { Reply, Verb } from "../src/reply.js";
import type { Ask } from "../src/servers.js";
import type { Document } from "../src/types.js";

interface Recorded { method: string; path: string; status: number; headers: Record<string, string>; body: string }

const VERBS: Array<[RegExp, Verb]> = [
  [/^POST \/locks\/(acquire-any|acquire-all)$/, "acquire"], [/^POST \/locks\/[^/]+\/(acquire|leave|renew|release|transfer)$/, "acquire"],
  [/^GET \/locks$/, "list"], [/^GET \/locks\/[^/]+$/, "inspect"], [/^POST \/sessions$/, "session-open"],
  [/^POST \/sessions\/[^/]+\/keepalive$/, "session-keep"], [/^GET \/sessions\/[^/]+$/, "session-show"], [/^DELETE \/sessions\/[^/]+$/, "session-end"],
];

function verbOf({ method, path }: Recorded): Verb | undefined {
  for (const [pattern, verb] of VERBS) {
    const found = pattern.exec(`${method} ${path.split("?")[0]}`);
    if (found) return (found[1] as Verb | undefined) ?? verb;
  }
  return undefined;
}

const file = process.env["DIBS_RECORDED"];
test("every recorded answer is read", { skip: file ? false : "DIBS_RECORDED names no file" }, () => {
  const all = JSON.parse(readFileSync(file!, "utf8")) as Recorded[];
  const read: Record<string, number> = {};
  for (const each of all) {
    const verb = verbOf(each);
    if (verb === undefined && each.status < 300) continue; // of a route that the client does not use
    const raw = { status: each.status, text: each.body, header: (name: string) => each.headers[name] ?? null };
    const isNobody = each.status === 415 || /There is nothing at this address/.test(each.body);
    if (isNobody) {
      assert.throws(() => decode(verb ?? "inspect", raw, "http://x"), DibsError);
      continue;
    }
    const reply = decode(verb ?? "inspect", raw, "http://x");
    const said = String(reply.body["code"] ?? reply.body["status"] ?? "yes");
    read[said] = (read[said] ?? 0) + 1;
    if (reply.status >= 300) {
      assert.ok(said in EXIT_CODES, `${said} is a known code`);
      assert.throws(() => yes(reply), (error) => error instanceof DibsError && error.code === said && error.message !== "");
    } else if (verb?.startsWith("acquire") && said !== "acquired") {
      assert.throws(() => granted(reply), (error) => error instanceof DibsError && error.code === said);
    } else if (verb?.startsWith("acquire")) {
      assert.ok(granted(reply).every((lease) => lease.name && lease.lease_id && lease.owner));
    }
  }
  for (const word of ["acquired", "lease_not_current", "invalid_input", "authentication_required", "forbidden"]) assert.ok(read[word], word);
  assert.ok(Object.values(read).reduce((sum, count) => sum + count) > 300, JSON.stringify(read));
});

test("a transfer that somebody is in the way of is refused, and is an answer of dibs", () => {
  const held = { status: "held", name: "path:a", owner: "ann", remaining_ms: 5, retry_after_ms: 5 };
  const raw = (body: Document) => ({ status: 200, text: JSON.stringify(body), header: () => null });
  assert.throws(() => yes(decode("transfer", raw(held), "http://x"), "transfer"), JobHeld);
  assert.throws(() => decode("transfer", raw({ status: "held" }), "http://x"), BadReply);
});

/** What a claim of two jobs asks, given these answers one after another. */
async function asked(waitMs: number, ...answers: Document[]): Promise<Ask[]> {
  const found: Ask[] = [];
  const pending = new PendingClaim("acquire-all", ["a", "b"], {});
  await pending.claim(async (ask) => {
    found.push(ask);
    return { status: 200, body: answers.shift()!, sent: true };
  }, waitMs);
  return found;
}

const SPENT = { status: "held", refused: [{ name: "a", status: "conflict", code: "conflict", details: `${KEY_SPENT} expired.` }] };

const REST = { ...SPENT, rest: [{ name: "b", lease_id: "x" }] };

test("what a refusal names is withdrawn, and the next ask has a new key", async () => {
  const [first, undone, second] = await asked(60_000, REST, { kept: [] }, { status: "done" });
  const key = first!.document!["request_key"];
  assert.deepEqual(undone, { verb: "withdraw", document: { request_key: key, names: ["a", "b"] } });
  assert.notEqual(second!.document!["request_key"], key);
});

test("while that is not answered the same ask is repeated, and is told of them again", async () => {
  const away = { code: "upstream_unavailable", details: FATE_UNKNOWN };
  const found = await asked(60_000, away, REST, away, REST, {}, { status: "done" });
  assert.deepEqual(
    found.map((each) => each.verb),
    ["acquire-all", "acquire-all", "withdraw", "acquire-all", "withdraw", "acquire-all"],
  );
});

test("an abort is heard while that is under way, and the claim is withdrawn, now or later", async () => {
  const stopping = new AbortController();
  const found: string[] = [];
  let isAway = true;
  const ask = async ({ verb }: Ask, signal?: AbortSignal): Promise<Reply> => {
    found.push(verb);
    if (verb === "acquire-all") return { status: 200, body: REST, sent: true };
    if (found.length === 2) stopping.abort(new Error("enough"));
    signal?.throwIfAborted();
    return { status: isAway ? 503 : 200, body: isAway ? { code: "upstream_unavailable", details: "" } : {}, sent: !isAway };
  };
  const pending = new PendingClaim("acquire-all", ["a", "b"], {});
  await assert.rejects(pending.claim(ask, 60_000, stopping.signal), /enough/);
  assert.equal(await pending.withdraw(ask), false, "nobody answered");
  isAway = false;
  found.length = 0;
  assert.equal(await pending.withdraw(ask), true);
  assert.deepEqual(found, ["withdraw"]);
});

test("a turn for several jobs that came and went is waited for under a new key", async () => {
  const [first, second, third] = await asked(60_000, { status: "queued", name: "a", ticket: "1.x.y" }, SPENT, { status: "done" });
  assert.equal(second!.document!["request_key"], first!.document!["request_key"]);
  assert.notEqual(third!.document!["request_key"], first!.document!["request_key"]);
  assert.equal(third!.document!["ticket"], undefined);
});

test("the clock counts the sleep of the machine, and is never set back", () => {
  let aheadMs = 0;
  countSleepBy(() => performance.now() + aheadMs);
  const before = steadyMs();
  aheadMs = 3_600_000; // an hour of sleep
  const after = steadyMs();
  assert.ok(after - before >= 3_600_000 && after - before < 3_660_000);
  aheadMs = 0;
  assert.ok(steadyMs() >= after);
  countSleepBy(() => performance.now() + 77_000); // another clock does not move it
  assert.ok(steadyMs() - after < 60_000);
});
