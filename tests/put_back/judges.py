"""Faults of those who judge: the simulation, its checker, `dibs verify`, `tools/porcupine`."""

from __future__ import annotations

from tests.put_back.fault import Change, put_back

CHECKER = "src/dibs/testing/checker.py"
JUDGE = "src/dibs/testing/judge.py"
PORCUPINE = "tools/porcupine/main.go"
RACERS = "src/dibs/testing/racers.py"
SIMULATE = "src/dibs/testing/commands/simulate.py"
SIMULATION = "src/dibs/testing/simulation.py"
WORKLOAD = "src/dibs/testing/workload.py"

FAULTS = (
    put_back(
        "F-275",
        "A call without an answer may happen at any time after it was sent, and a time-out is a wrong answer.",
        Change(PORCUPINE, "\t\t\t\t\tadd(c, bound)\n", "\t\t\t\t\tadd(c, math.Inf(1))\n"),
        Change(PORCUPINE, "Token: token, Began: first}, at)", "Token: token, Began: first}, math.Inf(1))"),
        Change(PORCUPINE, "\t\t\tlate++\n", "\t\t\twrong++\n"),
    ),
    put_back(
        "F-352",
        "A lease of a session lasts for its own TTL.",
        Change(
            CHECKER,
            "min(lease.renewed_ms + lease.ttl_ms, lease.expires_ms) if lease.ttl_ms",
            "lease.renewed_ms + lease.ttl_ms if lease.ttl_ms",
        ),
    ),
    put_back(
        "F-440",
        "A lease that lasts as long as its session ends when its record says.",
        Change(
            CHECKER,
            "holder.expires_ms < known.until_ms and not lasts and not is_own",
            "holder.expires_ms < known.until_ms and not is_own",
        ),
    ),
    put_back(
        "F-441",
        "A fault of the checker is raised, and nothing more.",
        Change(
            SIMULATION,
            "            self._fault = fault\n            self.time.is_over = True\n            raise\n",
            "            raise fault\n",
        ),
    ),
    put_back(
        "F-485",
        "The checker of an older copy knows no outage that was recorded before.",
        Change(
            CHECKER,
            "            if event.kind == kinds.OUTAGE:\n                self._recorded.append(event.at_ms)\n",
            "            if event.kind == kinds.OUTAGE:\n                continue\n",
        ),
    ),
    put_back(
        "F-487",
        "Signals are handled when the simulation has been imported.",
        Change(
            SIMULATE,
            "    with StopSignals():  # before the imports, which take longest on a busy machine\n"
            "        return _simulated(call)\n",
            "    return _simulated(call)\n",
        ),
        Change(
            SIMULATE, "    with StatusLine(call) as status:\n", "    with StopSignals(), StatusLine(call) as status:\n"
        ),
    ),
    put_back(
        "F-488",
        "A commit is looked at before it is known to have no conflict.",
        Change(
            SIMULATION,
            "        if self._world.writes is not None:\n            self._world.writes.check_gone(puts, events)\n",
            "",
        ),
        Change(
            SIMULATION,
            "        self._world.writes = self._server\n",
            "        self._world.writes = self._server\n        self._server.check_gone(args[1], args[2])\n",
        ),
    ),
    put_back(
        "F-490",
        "Those who look at decisions in a test look at those of a world, too.",
        Change(
            "src/dibs/testing/decisions.py",
            "decide_module.CHECKS[:] = [look]",
            "decide_module.CHECKS[:] = [*before, look]",
        ),
    ),
    put_back(
        "F-662",
        "The checker expects that a job remembers all leases that it ever had.",
        Change(
            CHECKER,
            "[each.token for each in remembered(tuple(reversed(self._ends[job])), now_ms)]",
            "[each.token for each in self._ends[job] if now_ms and remembered]",
        ),
    ),
    put_back(
        "F-663",
        "An answer is looked at by the time at which the last record was read.",
        Change("src/dibs/core/decide.py", "check(draft.view(), command, decision)", "check(view, command, decision)"),
    ),
    put_back(
        "F-724",
        "What was read at several moments is looked at, whoever looked at it.",
        Change(
            "src/dibs/core/draft.py", "        if not self._view.is_of_one_moment:\n", "        if self.now_ms < 0:\n"
        ),
    ),
    put_back(
        "F-706",
        "The judge does not look at places that change.",
        Change(JUDGE, "    wrong += _changed_places(run)\n", ""),
    ),
    put_back(
        "F-710",
        "Who leaves by its ticket is noted without the key of its claim.",
        Change(
            WORKLOAD,
            'document.get("request_key") or (key if document.get("ticket") == ticket else "")',
            'document.get("request_key") or ("" if ticket else key)',
        ),
    ),
    put_back(
        "F-711",
        "What is done with a token that the store does not know is of no work.",
        Change(
            "src/dibs/testing/outside.py",
            "            work = self.steps.works[job]\n            work.since = 0\n        self._happened",
            "            work = WorkSteps()\n        self._happened",
        ),
    ),
    put_back(
        "F-712",
        "A job that is a pool no longer has one slot.",
        Change(JUDGE, "NO_POOL = -1 ", "NO_POOL = 1 "),
        Change(JUDGE, "return slots if NO_POOL in sizes else max([slots, *sizes])", "return max([slots, *sizes])"),
    ),
    put_back(
        "F-714",
        "The judge is not told which pools there were before a failover.",
        Change(
            SIMULATION,
            'elif call.call == "pool" or (call.call in BY_OPERATORS and call.ended >= failover):',
            "elif call.call in BY_OPERATORS and call.ended >= failover:",
        ),
    ),
    put_back(
        "F-715",
        "An attempt of an operator that nobody answered is not noted.",
        Change(
            "src/dibs/testing/simulated_clients.py",
            "if self._asked.verb in BY_OPERATORS or (",
            "if (",
        ),
    ),
    put_back(
        "F-717",
        "What a session got by an earlier claim counts as its own alone.",
        Change(WORKLOAD, '({"units": 1} if may_share else {})', "{}"),
    ),
    put_back(
        "F-718",
        "A job that was opened must be given before anything else happens to it.",
        Change(CHECKER, "not (is_same or lock.holders", "not (lock.holders"),
    ),
    put_back(
        "F-719",
        "A server that was stopped for a moment counts as well.",
        Change(SIMULATION, "max(server.well_since_ms, server.stopped_until_ms)", "server.well_since_ms"),
    ),
    put_back(
        "F-720",
        "The clock of a store goes on while it answers nobody.",
        Change(JUDGE, "for begin, end in silences if life.grant.began < end", "for begin, end in silences if end < 0"),
    ),
    put_back(
        "F-721",
        "A place is in every group that its session names.",
        Change(JUDGE, "if groups.setdefault(call.ticket, call.group) != call.group:", "if False:"),
    ),
    put_back(
        "F-722",
        "A list that was taken away counts for the rest of the commit.",
        Change(CHECKER, "if not written.acl and any(", "if False and any("),
    ),
    put_back(
        "F-723",
        "An owner that shares its job asks once.",
        Change(
            "src/dibs/testing/simulated_clients.py",
            ' or (self._asked.verb == "renew" and "mode" in self._asked.document):',
            ":",
        ),
    ),
    put_back(
        "F-725",
        "Whoever wishes to share a job may have lost it.",
        Change(
            JUDGE,
            "                _share(ended, call)\n                ended = []\n",
            "                _share(ended, call)\n",
        ),
    ),
    put_back(
        "F-726",
        "A session of which nobody was told is that of all claims without one.",
        Change(JUDGE, 'if call.call == "session_open" and call.session]  #', 'if call.call == "session_open"]  #'),
    ),
    put_back(
        "F-727",
        "What a client of the SDK sends by itself is not noted.",
        Change(RACERS, "        pool._open = lambda keep: NotedTransport(open_one(keep), self)\n", ""),
    ),
    put_back(
        "F-728",
        "Lines of a record that are no calls are passed over, and nobody is told where the record is.",
        Change(JUDGE, "        if damaged:\n            raise", "        if damaged and not known:\n            raise"),
        Change(
            "src/dibs/testing/commands/verify.py",
            '        call.complain(f"The race was interrupted. '
            'Judge what happened until then: dibs verify --judge {plain(path)}")\n',
            "",
        ),
    ),
    put_back(
        "F-729",
        "A session lasts for ten seconds, whatever was asked for.",
        Change(WORKLOAD, '"ttl_ms": 1000 * self._terms.session_s,', '"ttl_ms": 10_000,'),
    ),
    put_back(
        "F-740",
        "A place of a session goes only if its own ask ends.",
        Change(JUDGE, "if any(each.began < call.ended and each.ended > before.began for each in others):", "if False:"),
    ),
    put_back(
        "F-741",
        "A claim is granted since its last try, whatever became of the others.",
        Change(JUDGE, "asked.get((grant.job, grant.key), grant.began)", "grant.began"),
    ),
    put_back(
        "F-779",
        "A record that was cut off is judged to its end.",
        Change("src/dibs/testing/judge.py", "    if calls and calls[-1].call != RACE:\n", "    if False:\n"),
    ),
    put_back(
        "F-794",
        "Porcupine blames a sound server for an owner that was shown before anybody was told.",
        Change(PORCUPINE, '"transfer" && c.Outcome != "refused"', '"transfer" && unknown'),
        Change(PORCUPINE, "\t\t\tif c.Began <= at {\n", "\t\t\tif true {\n"),
    ),
    put_back(
        "F-795",
        "A lease lives on after its transfer, and the judge does not look.",
        Change(JUDGE, "if end.call in BY_OWNER and end.outcome == OK), None)", 'if end.call == "release"), None)'),
    ),
    put_back(
        "F-798",
        "The checker holds a lease of another claim against an answer, because it has the same request key.",
        Change(CHECKER, "== key and each[0] in command.names]", "== key]"),
    ),
)
