"""Faults of the rules."""

from __future__ import annotations

from tests.put_back.fault import Change, put_back

ACQUIRE = "src/dibs/core/claims/acquire.py"
EFFECTS = "src/dibs/core/claims/effects.py"
INSPECT = "src/dibs/core/claims/inspect.py"
LEASES = "src/dibs/core/claims/leases.py"
NUMBERS = "src/dibs/core/claims/numbers.py"
SEVERAL = "src/dibs/core/claims/several.py"
WITHDRAW = "src/dibs/core/claims/withdraw.py"
DECIDE = "src/dibs/core/decide.py"
DRAFT = "src/dibs/core/draft.py"
EXCLUSION = "src/dibs/core/holds/exclusion.py"
EXPIRY = "src/dibs/core/holds/expiry.py"
GRANTS = "src/dibs/core/holds/grants.py"
LIMITS = "src/dibs/core/limits.py"
PATH_INDEX = "src/dibs/core/path_index.py"
DELIVERY = "src/dibs/core/service/delivery.py"
IDENTITY = "src/dibs/core/service/signed_identity.py"
GROUPS = "src/dibs/core/waiting/groups.py"
QUEUE = "src/dibs/core/waiting/queue.py"
TICKETS = "src/dibs/core/waiting/tickets.py"
WAIT_GRAPH = "src/dibs/core/waiting/wait_graph.py"

FAULTS = (
    put_back(
        "F-006",
        "A repeat of a claim sets the TTL of its lease.",
        Change(ACQUIRE, "max(mine.ttl_ms, ask.ttl_ms)", "ask.ttl_ms"),
        Change(ACQUIRE, " and until_ms > own_deadline_ms(draft, mine)", ""),
        jobs=2,
    ),
    put_back(
        "F-007",
        "A withdrawal ends a hold that another ask of the session was told of.",
        Change(WITHDRAW, "if mine.used or not _is_named(command, mine):", "if not _is_named(command, mine):"),
    ),
    put_back(
        "F-012",
        "A look shows a hold as ended although its end is not written.",
        Change(INSPECT, "for holder in stored.holders if may_go_on(draft, holder)]", "for holder in ()]"),
        jobs=1,
        clients=6,
    ),
    put_back(
        "F-029",
        "The jobs of an ended session stay held while its server cannot vouch for the time.",
        Change(EXPIRY, "    return session is not None and not session.ended_ms\n", "    return True\n"),
    ),
    put_back(
        "F-050",
        "Places of a queue are loaded two at a time, and for each two all is decided from the beginning.",
        Change(
            QUEUE,
            "peek, loaded = max(tickets.PEEK, 2 * peek), peek\n        loaded -= 1",
            "peek, loaded = 2, peek\n        loaded -= 1",
        ),
    ),
    put_back(
        "F-051",
        "All places of a tree are sorted again whenever one is looked for.",
        Change(DRAFT, "if known is None or known.line is not line:", "if True:"),
    ),
    put_back(
        "F-052",
        "A place in line waits for each that is ahead of it, and not for the last of them alone.",
        Change(WAIT_GRAPH, "            if self._waits_for_others(ticket, wanted):\n", "            if False:\n"),
    ),
    put_back(
        "F-053",
        "The metadata of all owners of a job together have no bound.",
        Change(GRANTS, '        ("metadata", METADATA_BYTES_MAX, metadata, mine.metadata, notes),\n', ""),
        Change(GRANTS, "return metadata if used + _size(metadata) <= METADATA_BYTES_MAX else None", "return metadata"),
    ),
    put_back(
        "F-075",
        "A gap is told only if nothing is left of what a job has to send.",
        Change(
            DELIVERY,
            "if lane.letter is None and oldest is not None and oldest > lane.after + 1:",
            "if lane.letter is None and oldest is not None and oldest > lane.after + 1 and not events:",
        ),
    ),
    put_back(
        "F-111",
        "A repeated transfer is not recognised.",
        Change(
            LEASES, "    if handed is not None:  # this command was committed before", "    if False:  # this command"
        ),
        jobs=2,
    ),
    put_back(
        "F-113",
        "A repeated claim of several jobs, one of which was broken, is refused, and leaves the others held.",
        Change(SEVERAL, "left=tuple(left), ", ""),
        jobs=3,
    ),
    put_back(
        "F-131",
        "A late repeat of a claim of several jobs lets go of jobs that their owner relies on.",
        Change(
            SEVERAL,
            "    all_of = command.count if isinstance(command, AcquireAny) else len(command.names)\n",
            "    all_of = command.count if isinstance(command, AcquireAny) else len(command.names)\n"
            "    if isinstance(command, AcquireAll):\n"
            "        from dibs.core.holds.expiry import end_hold\n\n"
            "        for each in left:\n"
            "            lock = draft.lock(command.ns, each.name)\n"
            '            end_hold(draft, lock, each.lease, how="released", at_ms=draft.now_ms)\n'
            "        left = []\n",
        ),
        jobs=3,
    ),
    put_back(
        "F-230",
        "A job that is handed to a session is not offered to that session's parent, who waits for it.",
        Change(
            LEASES,
            "        advance(draft, lock.ns, (lock.name,))  # the heir does not exclude its parent and its children\n",
            "",
        ),
    ),
    put_back(
        "F-251",
        "A refused claim waits for whoever came later, too.",
        Change(WAIT_GRAPH, "return self.at_ms is None or other.since_ms <= self.at_ms", "return True"),
    ),
    put_back(
        "F-252",
        "Two holds of one session in a pool count as one.",
        Change(
            WAIT_GRAPH,
            'held[each.session] = each.owner, units + held.get(each.session, ("", 0))[1]',
            "held[each.session] = each.owner, units",
        ),
    ),
    put_back(
        "F-253",
        "A claim for a job alone looks at the last of those only who wait for its slots.",
        Change(
            WAIT_GRAPH,
            "if wanted.slots != 1 or not (has_it_alone or wanted.shares_with(ticket)):",
            "if wanted.slots != 1:",
        ),
    ),
    put_back(
        "F-254",
        "A session is granted what its parent or child has, although that closes a circle.",
        Change(ACQUIRE, "    if not cycle:\n", "    if True:\n"),
    ),
    put_back(
        "F-255",
        "A repeated claim of so many jobs is refused without the names of those that it still has.",
        Change(
            SEVERAL,
            "    return _refused(draft, command, bad, mine)\n\n\ndef _got(",
            "    return outcomes.Refused(now_ms=draft.now_ms, outcomes=bad, all_of=command.count)\n\n\ndef _got(",
        ),
    ),
    put_back(
        "F-258",
        "A refusal names holds that another ask of the session was told of.",
        Change(SEVERAL, "        if not was_held_before(command, each) and not each.used\n", ""),
    ),
    put_back(
        "F-262",
        "A repeated claim of so many jobs is answered with fewer, once the end of one is forgotten.",
        Change(SEVERAL, "if len(mine) == len(names) >= command.count:", "if len(mine) == len(names):"),
        Change(
            SEVERAL,
            "if not may_wait(command) or not all(_of_another_ask(command, each) for each in mine.values()):",
            "if not may_wait(command):",
        ),
    ),
    put_back(
        "F-264",
        "It is not noted that another ask of the session was told of a lease.",
        Change(ACQUIRE, "    if is_known and not kept.used:\n", "    if False:\n"),
    ),
    put_back(
        "F-266",
        "A claim for its session's life is told of a lease that keeps its short TTL.",
        Change(GRANTS, "if not mine.ttl_ms or ask.ttl_ms or mine.session != ask.session:", "if True:"),
    ),
    put_back(
        "F-268",
        "Beneath a claim for its session's life a lease that outlives the session keeps its short TTL.",
        Change(GRANTS, "return mine.replace(relied=True)", "return mine"),
    ),
    put_back(
        "F-270",
        "Slots that places ahead will have do not count while another path is in the way.",
        Change(
            WAIT_GRAPH,
            "return [*needs, _slots_need(_taken(counted), wanted.too_few())] if counted else needs",
            "return needs",
        ),
    ),
    put_back(
        "F-272",
        "A place goes for a job that its session has and that is done, parked or smaller.",
        Change(
            QUEUE,
            "    for part in tickets.needed_parts(draft, ticket):\n"
            "        lock = draft.lock(ticket.ns, part.name)\n        unfit",
            "    for part in tickets.parts_of(ticket):\n        lock = draft.lock(ticket.ns, part.name)\n        unfit",
        ),
    ),
    put_back(
        "F-273",
        "Who replaces its own place and closes a circle by that is told `queued`, and has no place.",
        Change(
            DECIDE,
            "    if ticket is not None and ticket.lease_id == joined.lease_id:\n",
            "    if ticket := ticket or joined:\n",
        ),
    ),
    put_back(
        "F-350",
        "A refused ask takes away the place at which another one waits.",
        Change(
            ACQUIRE,
            "ABOUT_THE_ASK = (outcomes.KeySpent, outcomes.NotCurrent, outcomes.Differs)",
            "ABOUT_THE_ASK: tuple[type, ...] = ()",
        ),
    ),
    put_back(
        "F-351",
        "A session that shares a job waits for itself, or closes a circle.",
        Change(
            DECIDE,
            "if (each.session, each.mode) not in still and mark not in seen:",
            "if each.session not in dict(still) and mark not in seen:",
        ),
    ),
    put_back(
        "F-371",
        "The end of a session counts as the success of its jobs.",
        Change(EXPIRY, "    uncounted = session.how == RELEASED\n", "    uncounted = False\n"),
    ),
    put_back(
        "F-378",
        "A place takes another one of the same number with it.",
        Change(
            TICKETS,
            "entries = [(part, each) for part, each in found if each is None or (each.lease_id, each.whole) == whole]",
            "entries = found",
        ),
    ),
    put_back(
        "F-382",
        "A job remembers its last eight endings.",
        Change(LIMITS, "REMEMBERED_MAX = 32\n", "REMEMBERED_MAX = 8\n"),
    ),
    put_back(
        "F-383",
        "An ask whose hold has ended is answered with the hold of another ask of its session.",
        Change(
            ACQUIRE,
            "if lock.holders and mine is None and spent is None:",
            "if lock.holders and mine is None:",
        ),
    ),
    put_back(
        "F-390",
        "A lease that a place of the same session was served with is told as it was before.",
        Change(DECIDE, "if found is None or (now := shown(draft, found)) == lease:", "if True:"),
    ),
    put_back(
        "F-391",
        "Each group remembers as many asks that were replaced as if it were alone.",
        Change(GROUPS, "most = max(REPLACED_LEAST, REPLACED_MAX // (1 + len(lock.groups)))", "most = REPLACED_MAX"),
        Change(GROUPS, "most = max(REPLACED_LEAST, REPLACED_MAX // len(lock.groups))", "most = REPLACED_MAX"),
    ),
    put_back(
        "F-393",
        "A refusal names everybody in the way.",
        Change(EXCLUSION, "    if len(in_way) <= OWNERS_NAMED_MAX:\n", "    if True:\n"),
    ),
    put_back(
        "F-394",
        "A waiter whose own release is what came is told that it has the job.",
        Change(
            DECIDE,
            "each.replace(outcome=_present(draft, held, each.outcome)) for each in handed if _has(held, each.outcome)",
            "each.replace(outcome=_present(draft, held, each.outcome)) for each in handed",
        ),
    ),
    put_back(
        "F-463",
        "Each path of a session is compared with each place of the tree.",
        Change(
            PATH_INDEX,
            "        numbers = [number for each in self._all.near(name) for number in self._all.at[each]]\n"
            "        return [self._entries[number] for number in sorted(numbers)]\n",
            "        from dibs.core.overlap import overlaps\n\n"
            "        return [each for each in self._entries.values() if overlaps(each.name, name)]\n",
        ),
    ),
    put_back(
        "F-503",
        "A claim to share a job waits for those who share it beside their parent.",
        Change(
            WAIT_GRAPH, "        if wanted.mode == SHARED:  # beside an owner", "        if False:  # beside an owner"
        ),
    ),
    put_back(
        "F-504",
        "A heartbeat that is refused for its mode has noted a step before.",
        Change(
            LEASES,
            "    mode = mine.mode if command.mode is None else command.mode\n    if mode != mine.mode and (",
            "    effects, effect = lock.effects, None\n"
            "    if command.effect is not None:\n"
            "        from dibs.core.claims.effects import note_effect\n\n"
            "        noted = note_effect(draft, lock, mine, command.effect)\n"
            "        if isinstance(noted, EffectRefused):\n"
            "            return noted\n"
            "        effects, effect = noted\n"
            "    mode = mine.mode if command.mode is None else command.mode\n    if mode != mine.mode and (",
        ),
        Change(
            LEASES,
            "    effects, effect = lock.effects, None\n"
            "    if command.effect is not None:  # the last that can refuse: a note is an event\n"
            "        from dibs.core.claims.effects import note_effect  # few heartbeats bring one\n\n"
            "        noted = note_effect(draft, lock, mine, command.effect)\n"
            "        if isinstance(noted, EffectRefused):\n"
            "            return noted\n"
            "        effects, effect = noted\n",
            "",
        ),
    ),
    put_back(
        "F-572",
        "Only the list of a series itself counts, and none above its name.",
        Change(
            NUMBERS,
            "    if not allowed(draft, lock, command):\n",
            "    if lock.acl and not command.admin and not set(lock.acl).intersection(command.badges):\n",
        ),
    ),
    put_back(
        "F-573",
        "A session that shares a job counts as waiting for it alone, by a claim that was refused before.",
        Change(
            WAIT_GRAPH,
            "has_otherwise = at_ms is not None and session in owners_of(draft, lock).of",
            "has_otherwise = False",
        ),
    ),
    put_back(
        "F-574",
        "A late copy of the note that a step begins begins it again.",
        Change(
            EFFECTS,
            "(known.state == EFFECT_DONE or _is_try(known, mine, note)):",
            "(known.state == EFFECT_DONE or (known.state == EFFECT_BEGUN and _is_try(known, mine, note))):",
        ),
    ),
    put_back(
        "F-575",
        "The id of an earlier owner's try names this one's.",
        Change(EFFECTS, "return known.token == mine.token and (", "return ("),
    ),
    put_back(
        "F-576",
        "The release of one owner ends the notes of the others.",
        Change(
            "src/dibs/core/holds/endings.py",
            "goes_on = bool(lock.holders) or lock.endings[0].done",
            "goes_on = lock.endings[0].done",
        ),
    ),
    put_back(
        "F-618",
        "The page promises a repeat its number whenever it comes.",
        Change("docs/reference/promises.md", ", unless 64 others were given since", ""),
    ),
    put_back(
        "F-649",
        "Nobody is warned of a rule that every pull request meets.",
        Change(IDENTITY, '    "event_name": ("pull_request",),\n', ""),
    ),
    put_back(
        "F-664",
        "A late copy of a give-back frees the number once more.",
        Change(NUMBERS, "    if ask and was_withdrawn(draft, lock, command.principal, ask):\n", "    if not draft:\n"),
    ),
    put_back(
        "F-665",
        "A claim of several jobs stands in line again for what its own earlier answer gave.",
        Change(
            SEVERAL,
            "return same(hold.session, command.session) and was_held_before(command, hold)",
            "return same(hold.session, command.session)",
        ),
    ),
    put_back(
        "F-713",
        "A copy of the beginning of an earlier try begins it again.",
        Change(EFFECTS, " or note.id in known.earlier)", ")"),
    ),
    put_back(
        "F-733",
        "A waiter whose session has ended is said to have stopped asking.",
        Change(EXPIRY, "        return SESSION_ENDED\n", "        return STOPPED_ASKING\n"),
    ),
)
