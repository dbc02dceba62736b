"""Faults of clients: how they ask, wait, hold what they got, and end it."""

from __future__ import annotations

from tests.put_back.fault import Change, put_back

CLAIM_STATE = "src/dibs/sdk/claim_state.py"
EFFECTS = "src/dibs/sdk/effects.py"
ERRORS = "src/dibs/base/errors.py"
EXCHANGE = "src/dibs/client/exchange.py"
FENCE = "src/dibs/sdk/fence.py"
HOLD = "src/dibs/sdk/hold.py"
LOCKS = "src/dibs/sdk/locks.py"
PENDING = "src/dibs/client/pending.py"
TS_CLIENT = "clients/typescript/src/client.ts"
TS_ERRORS = "clients/typescript/src/errors.ts"
TS_GUARD = "clients/typescript/src/guard.ts"
TS_HOLD = "clients/typescript/src/hold.ts"
TS_RUN = "clients/typescript/src/run.ts"

FAULTS = (
    put_back(
        "F-011",
        "Who has a place in the queue takes `held` as the last word.",
        Change(PENDING, "return self._ticket is not None and all(refused)", "return False"),
    ),
    put_back(
        "F-171",
        "None of several jobs was claimed because all are done or parked: the answer is that they are held.",
        Change(
            "src/dibs/core/outcomes.py",
            "return DONE if len(statuses) >= all_of and all(status == DONE for status in statuses) else HELD",
            "return HELD",
        ),
    ),
    put_back(
        "F-259",
        "A client gives back the rest of a repeated answer, whoever named the ask.",
        Change(
            PENDING,
            'if not self.own_key or not reply.body or "rest" not in reply.body:',
            'if not reply.body or "rest" not in reply.body:',
        ),
    ),
    put_back(
        "F-263",
        "Several jobs are waited for though one of them can never come.",
        Change(PENDING, "return self._ticket is not None and all(refused)", "return self._ticket is not None"),
    ),
    put_back(
        "F-267",
        "A signal that comes before the guard has said what it started is passed on to nobody.",
        Change(
            TS_RUN,
            "    send(await this.#group, signal);\n",
            "    send(await Promise.race([this.#group, 0]), signal);\n",
        ),
    ),
    put_back(
        "F-280",
        "A heartbeat whose news are refused counts as refused, and the next one brings them again.",
        Change(HOLD, "            if said and kind_of(reply) == NEVER_LIKE_THIS:\n", "            if False:\n"),
        Change(HOLD, "        check_texts(news)\n", ""),
    ),
    put_back(
        "F-281",
        "The refusal of an argument of `done()` is a failure of the work.",
        Change(CLAIM_STATE, "hold.refused_end = None if ending.fails else error", "hold.refused_end = None"),
    ),
    put_back(
        "F-282",
        "Who waits gives up when the store cannot answer now.",
        Change(PENDING, "return kind == NOT_NOW and self._heard", "return False"),
    ),
    put_back(
        "F-283",
        "Of several servers, the trouble of the first is the answer.",
        Change(EXCHANGE, "                if kind_of(reply) != NOT_NOW:\n", "                if True:\n"),
    ),
    put_back(
        "F-286",
        "A loss that came while a block threw is no LeaseLost.",
        Change(
            TS_ERRORS,
            'return isOne(value) || (value instanceof Error && "suppressed" in value '
            "&& isOne((value as { error?: unknown }).error));",
            "return isOne(value);",
        ),
    ),
    put_back(
        "F-287",
        "A page that is not let in is told of a closed connection.",
        Change(
            "clients/typescript/src/servers.ts",
            "    if (origin === undefined || this.#spoke.has(address) ||",
            "    if (origin !== address.url || this.#spoke.has(address) ||",
        ),
    ),
    put_back(
        "F-296",
        "`claim_job` lasts a minute.",
        Change("src/dibs/sdk/default.py", "ttl: Duration = 120) -> Lease:", "ttl: Duration = 60) -> Lease:"),
    ),
    put_back(
        "F-340",
        "An exception is pickled as the call of its class with its finished sentence.",
        Change(ERRORS, "    def __reduce__(self)", "    def _unused_reduce(self)"),
    ),
    put_back(
        "F-341",
        "`@dibs.exclusive` takes generators, whose body runs after the call.",
        Change(LOCKS, "        _check_ends_with_call(function, called)\n", ""),
    ),
    put_back(
        "F-342",
        "A group of refusals counts as one failure.",
        Change(
            CLAIM_STATE,
            "        if isinstance(each, BaseExceptionGroup):\n            look +=",
            "        if False:\n            look +=",
        ),
    ),
    put_back(
        "F-343",
        "A block of a lock that raises is a failure of its name.",
        Change(LOCKS, '"fail_on_error": False}', '"fail_on_error": True}'),
    ),
    put_back(
        "F-344",
        "A block inside a claim on several jobs has all of them.",
        Change(
            CLAIM_STATE,
            "self._leases, self._held, self._grip = leases, hold, grip",
            "self._leases, self._held, self._grip = hold.leases, hold, grip",
        ),
    ),
    put_back(
        "F-345",
        "A fence takes the token of one owner of several.",
        Change(FENCE, "        _check_one_owner(claim, leases[each])\n", "        pass\n"),
    ),
    put_back(
        "F-346",
        "Several errors in one are one failure.",
        Change(
            TS_CLIENT,
            "    const inside = insideOf(each);\n    for (const one of inside) look.add(one);\n",
            "",
        ),
        Change(
            TS_CLIENT, "if (!isOfClaims && inside.length === 0) found.push(each);", "if (!isOfClaims) found.push(each);"
        ),
    ),
    put_back(
        "F-347",
        "The first owner of a slot is told as the owner of the job.",
        Change("src/dibs/wire/refusals.py", "    if others < 1:\n", "    if True:\n"),
    ),
    put_back(
        "F-376",
        "What ends a job and a resource together ends the resource first.",
        Change(
            CLAIM_STATE, "for lease in sorted(leases, key=lambda each: is_resource(each.name)):", "for lease in leases:"
        ),
    ),
    put_back(
        "F-377",
        "The texts of an end are not looked at before it is sent, and an end that was refused is no failure.",
        Change("clients/typescript/src/client.ts", "      checkTexts(ending.ofJob);\n", ""),
        Change(
            "clients/typescript/src/client.ts",
            'error instanceof InvalidInput && !("failed" in ending.ofJob)',
            "error instanceof InvalidInput",
        ),
    ),
    put_back(
        "F-392",
        "Whoever is in the way of several jobs counts as an owner of the first, and of what overlaps it.",
        Change(
            "src/dibs/wire/sentences.py",
            "    if len(same) < len(holders):  # of several jobs",
            "    if False:  # of several jobs",
        ),
        Change(
            "src/dibs/wire/sentences.py",
            "if held != name and all(map(in_tree, (held, name))) and overlaps(held, name):",
            "if held != name:",
        ),
    ),
    put_back(
        "F-451",
        "What has ended and is not collected runs, and a paused guard is waited for.",
        Change(
            TS_GUARD, 'process.platform === "linux" && hasOnlyEnded', 'process.platform === "win32" && hasOnlyEnded'
        ),
        Change(
            TS_RUN,
            '    this.#guard.kill("SIGCONT"); // a paused one tells neither what it started nor what became of it\n',
            "",
        ),
    ),
    put_back(
        "F-452",
        "The number of a group that is gone is kept.",
        Change(TS_GUARD, "if (hasEnded && isForgotten(group)) group = 0;", "if (hasEnded && group < 0) group = 0;"),
        Change(TS_RUN, "    this.#group = Promise.resolve(0); // its number may be another's from now on\n", ""),
    ),
    put_back(
        "F-454",
        "A connection of an event loop is left to the garbage collector.",
        Change("src/dibs/sdk/async_transport.py", "        weakref.finalize(self, connected.close)\n", ""),
    ),
    put_back(
        "F-464",
        "A wait that ends while its server is too busy to take the claim back is told as over.",
        Change(PENDING, "if kind_of(undone) == NOT_NOW and not (yield from self.withdraw()):", "if False:"),
    ),
    put_back(
        "F-601",
        "Requests that may go together are asked one after another.",
        Change("src/dibs/client/http.py", "        if len(asks) > 1:\n", "        if not asks:\n"),
    ),
    put_back(
        "F-635",
        "Trouble with the note of a step takes the place of the error of its block.",
        Change(EFFECTS, "if error is None or not isinstance(trouble, DibsError):", "if True:"),
    ),
    put_back(
        "F-636",
        "The notes of a claim on several names are with the first of them.",
        Change(EFFECTS, "next((each for each in leases if not is_resource(each.name)), leases[0])", "leases[0]"),
    ),
    put_back(
        "F-639",
        "A result that cannot be kept leaves its step without an end, and a reset connection is a failure.",
        Change(
            TS_CLIENT,
            "if (!(wrong instanceof InvalidInput)) throw wrong;",
            'if (!(wrong instanceof InvalidInput) || key !== "") throw wrong;',
        ),
        Change(TS_CLIENT, "/^(ECONN|EPIPE|ETIMEDOUT|UND_ERR_)/.test(code)", "/^ETIMEDOUT/.test(code)"),
    ),
    put_back(
        "F-699",
        "A token file is read once.",
        Change("clients/typescript/src/node.ts", "const TOKEN_LOOK_MS = 1_000;", "const TOKEN_LOOK_MS = 1e12;"),
    ),
    put_back(
        "F-788",
        "A claim that reached its ceiling had no heartbeat, and held jobs are named before parked ones.",
        Change(TS_HOLD, "Math.max(marginMs(endsMs), this.plan.stopMs)", "marginMs(endsMs)"),
        Change(
            TS_ERRORS,
            '[...rows(answer["refused"])].sort((one, other) => '
            'Number(other["status"] === "parked") - Number(one["status"] === "parked"))',
            'rows(answer["refused"])',
        ),
    ),
    put_back(
        "F-748",
        "A session does not know what nobody answered, nor which of its leases are nobody's.",
        Change(HOLD, "        self._session.say_later(say)\n", "        pass\n"),
        Change(HOLD, "lease.lease_id == lease_id or lease.lease_id in self._given_up:", "lease.lease_id == lease_id:"),
    ),
    put_back(
        "F-749",
        "A loss of one is a loss of all, and nothing is given back.",
        Change(HOLD, "return tuple(leases) if len(self.leases) > 1 and", "return tuple(leases) if False and"),
    ),
    put_back(
        "F-777",
        "What was noted waits for a heartbeat of the claim itself.",
        Change(HOLD, "            self._session.say_later(self._noted_is_sent)\n", "            pass\n"),
        Change(CLAIM_STATE, "            yield from hold.send_noted(lease)\n            return", "            return"),
    ),
    put_back(
        "F-778",
        "A ceiling counts from before the wait in line.",
        Change(HOLD, "        if not waited and (first", "        if (first"),
    ),
    put_back(
        "F-771",
        "The answer that a series is closed is no answer of dibs.",
        Change("src/dibs/wire/codes.py", '    "next": frozenset(("closed",)),\n', ""),
    ),
    put_back(
        "F-772",
        "A transfer that somebody is in the way of is taken for a yes.",
        Change("src/dibs/wire/codes.py", '    "transfer": frozenset(("held",)),\n', ""),
    ),
)
