"""Faults of the engine: batches, waiters, liveness, sweeping, counts, the event log, archives, webhooks."""

from __future__ import annotations

from tests.put_back.core import ACQUIRE, INSPECT
from tests.put_back.fault import Change, put_back

ACTIVITY = "src/dibs/engine/activity.py"
ARCHIVE = "src/dibs/engine/archive.py"
IMPORT = "src/dibs/engine/archive_import.py"
AUTH = "src/dibs/engine/auth.py"
BATCHER = "src/dibs/engine/batcher.py"
COORDINATOR = "src/dibs/engine/coordinator.py"
CREDENTIALS = "src/dibs/engine/credentials.py"
DECIDER = "src/dibs/engine/decider.py"
DOCUMENTS = "src/dibs/wire/documents.py"
EVENT_LOG = "src/dibs/engine/event_log.py"
FEED = "src/dibs/engine/feed.py"
LIVENESS = "src/dibs/engine/liveness.py"
PACE = "src/dibs/engine/pace.py"
PULSES = "src/dibs/engine/pulses.py"
QUERIES = "src/dibs/engine/queries.py"
SWEEPER = "src/dibs/engine/sweeper.py"
TALLY = "src/dibs/engine/tally.py"
TOKEN_FLOOR = "src/dibs/engine/token_floor.py"
WAITERS = "src/dibs/engine/waiters.py"
DISPATCHER = "src/dibs/engine/webhooks/dispatcher.py"
WEBHOOKS = "src/dibs/engine/webhooks/__init__.py"
BOARD_ROUTES = "src/dibs/server/routes/dashboard.py"
JOBS = "src/dibs/server/routes/jobs.py"
FREEZE = "src/dibs/core/upkeep/freeze.py"
MOVED = "src/dibs/core/upkeep/moved.py"
PORT = "src/dibs/stores/port.py"

FAULTS = (
    put_back(
        "F-001",
        "A hold whose repeat was told of it is undone with the claim of the caller that hung up.",
        Change(ACQUIRE, "    if is_known and not kept.used:\n", "    if False:\n"),
    ),
    put_back(
        "F-003",
        "A place whose caller hung up is withdrawn, though it waits at another server.",
        Change(
            WAITERS, "if not waiter.moves and waiter.ticket not in self._parked", "if waiter.ticket not in self._parked"
        ),
    ),
    put_back(
        "F-005",
        "Whoever hangs up gives up its place.",
        Change(WAITERS, "self.moves = has_hung_up is not None", "self.moves = False"),
        Change(WAITERS, "            waiter.moves = True  # nobody knows which", "            # nobody knows which"),
    ),
    put_back(
        "F-008",
        "Claims of callers that hung up are decided.",
        Change(COORDINATOR, "and index not in self._instead and is_gone(command):", "and index in self._instead:"),
    ),
    put_back(
        "F-009",
        "Heartbeats and releases wait in the queue of claims.",
        Change(BATCHER, "queue = self._later if type(command) in _LATER else self._first", "queue = self._later"),
        clients=12,
    ),
    put_back(
        "F-010",
        "Claims wait however long the first of them has waited.",
        Change(BATCHER, " or (queue is self._later and queue and now_ms - queue[0][3] > QUEUE_MS_MAX):", ":"),
    ),
    put_back(
        "F-020",
        "A break is decided again after a commit without an answer.",
        Change(COORDINATOR, "_ONCE = (Break, Free, SetAcl, SetPool)", "_ONCE = ()"),
        jobs=1,
    ),
    put_back(
        "F-021",
        "A store or process that stands still for a second counts as an outage.",
        Change(
            LIVENESS, "if until_ms - from_ms > limits.OUTAGE_MS_MIN:", "if until_ms - from_ms > limits.PULSE_LATE_MS:"
        ),
        servers=1,
    ),
    put_back(
        "F-023",
        "A look fails if a claim of the same batch cannot be written.",
        Change(DECIDER, "            if 0 < len(looks) < len(commands):\n", "            if False:\n"),
        clients=12,
    ),
    put_back(
        "F-024",
        "Servers write no pulse while there are only sessions.",
        Change(PULSES, "for prefix in (LOCK_PREFIX, SESSION_PREFIX):", "for prefix in (LOCK_PREFIX,):"),
        clients=2,
    ),
    put_back(
        "F-025",
        "Records that cannot be swept take the room of those that can.",
        Change(SWEEPER, "limit = most + self._unknown + len(self._failed_ms) + len(self._share)", "limit = most"),
    ),
    put_back(
        "F-026",
        "A session whose end is not complete waits for the next round.",
        Change(SWEEPER, "                has_more = has_more or result.unfinished\n", ""),
    ),
    put_back(
        "F-027",
        "A parked job counts as somebody who may lose something.",
        Change(PULSES, "return bool(record.line) or any(", "return bool(record.line or record.parked) or any("),
    ),
    put_back(
        "F-028",
        "A session that ends before a starting server has counted it is counted down.",
        Change(
            TALLY,
            "            self._open.discard(hash((event.session, event.principal, event.owner, event.began_ms)))\n",
            "            gone = hash((event.session, event.principal, event.owner, event.began_ms))\n"
            "            if self._open and gone not in self._open:\n"
            "                self._open.pop()\n"
            "            self._open.discard(gone)\n",
        ),
    ),
    put_back(
        "F-037",
        "An error with one place costs all waiters theirs.",
        Change(WAITERS, "if len(tickets) == 1 or isinstance(result, Unavailable):", "if True:"),
    ),
    put_back(
        "F-054",
        "A slow decision says nothing about the next ones.",
        Change(
            PACE,
            "        if us - commands * COMMAND_US >= STUCK_US_MIN:\n            self.took(us)\n",
            "        pass\n",
        ),
    ),
    put_back(
        "F-070",
        "A copy goes on from the tokens that it has.",
        Change(TOKEN_FLOOR, "return max(known + 1, now_ms)\n", "return known + 1\n"),
    ),
    put_back(
        "F-071",
        "An import moves the end of bearer tokens.",
        Change(
            IMPORT,
            "shared |= {key: each for key, each in records if _kind(key) not in OWN_KINDS}",
            "shared |= {key: shifted(each, by_ms) for key, each in records if _kind(key) not in OWN_KINDS}",
        ),
    ),
    put_back(
        "F-072",
        "Of two registers of webhooks the store keeps its own.",
        Change(
            MOVED,
            "    if isinstance(own, WebhookRegister) and isinstance(brought, WebhookRegister):\n",
            "    if False:\n",
        ),
    ),
    put_back(
        "F-073",
        "Webhooks go on at the numbers that they had before the move.",
        Change(
            MOVED,
            "        if isinstance(record, WebhookProgress):\n            lanes = [self._lane(each)",
            "        if False:\n            lanes = [self._lane(each)",
        ),
    ),
    put_back(
        "F-074",
        "Who joins behind a gap is given the pages after it.",
        Change(
            FEED,
            "            self._recent.clear()  # who joins behind the gap must learn of it, too, and reads for itself\n"
            "            before = page.oldest - 1\n",
            "",
        ),
    ),
    put_back(
        "F-076",
        "Numbers that a restore skipped are no gap.",
        Change(EVENT_LOG, "        if found[-1].seq - found[0].seq + 1 != len(found):\n", "        if False:\n"),
    ),
    put_back(
        "F-079",
        "A part that is too large for the store fails the import.",
        Change(IMPORT, "                if len(keys) == 1:\n", "                if True:\n"),
    ),
    put_back(
        "F-089",
        "A webhook goes on although its owner's line has left the tokens file.",
        Change(
            DISPATCHER,
            "return owner in self._over if is_let_in is None else not is_let_in",
            "return owner in self._over",
        ),
    ),
    put_back(
        "F-102",
        "A proof hashes the lines of the tokens file until one fits.",
        Change(
            AUTH,
            "key = key or self._keys.get(key_id)",
            "key = key or next((each for each in self._callers if proof_key_id(each) == key_id), None)",
        ),
    ),
    put_back(
        "F-130",
        "A claim that may be written is told as not done when its caller hangs up.",
        Change(COORDINATOR, "        for index, doubt in doubts.items():\n", "        for index, doubt in ():\n"),
    ),
    put_back(
        "F-192",
        "A session that is in a page and in an event is counted twice.",
        Change(
            TALLY,
            "self._open.add(hash((event.session, event.principal, event.owner, event.at_ms)))",
            "self._open.add(hash((event.session, event.principal, event.owner, event.at_ms, event.seq)))",
        ),
    ),
    put_back(
        "F-193",
        "A store that fails while a starting server counts ends the count.",
        Change(
            TALLY,
            "            page = store.scan(prefix, self._after, self.page, live=live)\n",
            "            rest, self._uncounted = self._uncounted, []\n"
            "            page = store.scan(prefix, self._after, self.page, live=live)\n"
            "            self._uncounted = rest\n",
        ),
    ),
    put_back(
        "F-194",
        "A short stop before a failure does not belong to the gap.",
        Change(
            LIVENESS,
            "self._note_gap(min(asked_ms, self._graced_from_ms(asked_ms, now_ms)), now_ms)",
            "self._note_gap(asked_ms, now_ms)",
        ),
    ),
    put_back(
        "F-212",
        "A ticket that is in no line counts as a place.",
        Change(
            "src/dibs/core/waiting/queue.py",
            "    if ticket is None or ticket.number not in draft.lock(ticket.ns, ticket.name).line:\n",
            "    if ticket is None:\n",
        ),
    ),
    put_back(
        "F-213",
        "Half of a grant stays without its claim in the tree.",
        Change("src/dibs/core/waiting/queue.py", "    _make_whole(draft, draft.lock(ns, name))\n", ""),
    ),
    put_back(
        "F-250",
        "Two sessions that one owner opened in one millisecond are told apart in pages only.",
        Change(
            TALLY,
            "self._open.add(hash((event.session, event.principal, event.owner, event.at_ms)))",
            "self._open.add(hash((event.principal, event.owner, event.at_ms)))",
        ),
    ),
    put_back(
        "F-256",
        "What an older copy of the store lacks stays counted.",
        Change(
            TALLY,
            "if self._gapless and not self.is_counting and events[0].seq > self._seen_seq + 1:",
            "if False:",
        ),
        without=[],
    ),
    put_back(
        "F-257",
        "A copy of an ask with a ticket gives up the place of its caller.",
        Change(
            WAITERS,
            "self.moves = has_hung_up is not None",
            "self.moves = has_hung_up is not None and command.ticket_id is None",
        ),
    ),
    put_back(
        "F-260",
        "The error of a look that is asked again is told to all of its batch.",
        Change(
            DECIDER,
            "                    results[at] = again\n",
            "                    results[at] = again\n"
            "                    if isinstance(again, BaseException):\n"
            "                        results = [again] * len(commands)\n",
        ),
    ),
    put_back(
        "F-269",
        "A record that cannot be read fails everybody.",
        Change(PORT, "not isinstance(error, RecordCorrupt | InvalidInput)", "not isinstance(error, InvalidInput)"),
    ),
    put_back(
        "F-274",
        "A copy with as many events passes for the store that it replaced.",
        Change(TALLY, "                    if is_same(events[0], known):\n", "                    if True:\n"),
        Change(FEED, "            self._known = page.events[-1]\n", ""),
    ),
    put_back(
        "F-285",
        "A store that does not answer is told as too much asked.",
        Change(BATCHER, "        if silent_ms > QUEUE_MS_MAX:\n", "        if False:\n"),
    ),
    put_back(
        "F-353",
        "A signal is the answer of a command.",
        Change(
            BATCHER,
            "        except (KeyboardInterrupt, SystemExit):  # a signal, while the main thread decides: it is nobody's"
            " answer\n            raise\n",
            "",
        ),
    ),
    put_back(
        "F-379",
        "An hour is counted on after a copy of the store was put back.",
        Change(ACTIVITY, "self._known = page.events[-1] if page.events else self._known", "self._known = None"),
    ),
    put_back(
        "F-380",
        "A waiter whose move to another server takes more than 2 s loses its place.",
        Change(
            WAITERS,
            "        name = _name_of(waiter.command)\n",
            "        if waiter.moves and waiter.gone:\n            self._later(2.0, self._lose, waiter)\n"
            "        name = _name_of(waiter.command)\n",
        ),
        Change(
            WAITERS,
            "        waiter = Waiter(self, command, wait_ms, answer, has_hung_up)\n",
            "        waiter = Waiter(self, command, wait_ms, answer, has_hung_up)\n"
            "        _LAST[command.request_key or command.ticket_id] = waiter\n",
        ),
        Change(
            WAITERS,
            "    def _withdraw(self, waiter: Waiter) -> None:\n",
            "    def _lose(self, waiter: Waiter) -> None:\n"
            "        if _LAST.get(waiter.command.request_key or waiter.command.ticket_id, waiter) is waiter:\n"
            "            waiter.moves = False\n"
            "            self._withdraw(waiter)\n\n"
            "    def _withdraw(self, waiter: Waiter) -> None:\n",
        ),
        Change(
            WAITERS,
            '_NOWHERE: TicketRef = ("", "", 0)\n',
            '_NOWHERE: TicketRef = ("", "", 0)\n_LAST: dict[str | None, Waiter] = {}  # of each ask, at any server\n',
        ),
    ),
    put_back(
        "F-381",
        "A server that does not know whether a claim was written decides it once more, also if its caller has gone.",
        Change(
            COORDINATOR,
            "if index not in self.failed and index not in self._instead and is_gone(command):",
            "if index not in self._doubts and index not in self._instead and is_gone(command):",
        ),
    ),
    put_back(
        "F-400",
        "A server whose batch hangs goes on with its pulses.",
        Change(
            LIVENESS,
            "        if now_ms - self._asked_ms() > limits.PULSE_LATE_MS:\n            return limits.PULSE_MS\n",
            "",
        ),
    ),
    put_back(
        "F-406",
        "A store that was moved and is thawed has its old name.",
        Change(FREEZE, "    elif mark is not None and command.fresh_id and not mark.source:\n", "    elif False:\n"),
    ),
    put_back(
        "F-407",
        "The moment of a frozen store is that of the copy.",
        Change(ARCHIVE, "at_ms = now_ms if mark is None else min(mark.at_ms, now_ms)", "at_ms = now_ms"),
    ),
    put_back(
        "F-408",
        "The time until a server starts on a new store counts against waiters.",
        Change(IMPORT, "        self._account_for_time()\n        names", "        names"),
    ),
    put_back(
        "F-416",
        "A store to which a copy is added goes on with its own numbers of events.",
        Change(
            IMPORT,
            "        numbers.number_from(contents.first_seq - 1 if keeps else begins)\n",
            "        if not self._adds:\n"
            "            numbers.number_from(contents.first_seq - 1 if keeps else begins)\n",
        ),
    ),
    put_back(
        "F-417",
        "An import says nothing to running servers.",
        Change(MOVED, "    draft.emit(IMPORTED)\n", ""),
    ),
    put_back(
        "F-418",
        "What an import adds counts where it counted before.",
        Change(
            IMPORT,
            "ours = [(key, relabelled(each, quotas)) for key, each in records if key not in shared]",
            "ours = [(key, each) for key, each in records if key not in shared]",
        ),
    ),
    put_back(
        "F-419",
        "Tokens, webhooks and counts of a copy are written before the import is complete.",
        Change(
            IMPORT,
            "                ours = [(key, relabelled(each, quotas))",
            "                self._put({key: shared[key] for key, _ in records if key in shared})\n"
            "                ours = [(key, relabelled(each, quotas))",
        ),
    ),
    put_back(
        "F-420",
        "Only jobs keep a namespace from being added.",
        Change(
            IMPORT,
            'brought = {each.ns: "a closure" for each in theirs} | self._contents.namespaces',
            'brought = {ns: what for ns, what in self._contents.namespaces.items() if what == "jobs"}',
        ),
        Change(IMPORT, "if ns in named or self._has_jobs(ns)])", "if self._has_jobs(ns)])"),
    ),
    put_back(
        "F-455",
        "A claim is decided by what was read after its caller had gone.",
        Change(
            COORDINATOR,
            "return None if is_gone is not None and batch.reads > 1 and group.find_gone(is_gone) else decided",
            "return decided",
        ),
    ),
    put_back(
        "F-459",
        "Two sessions that one owner opened in one millisecond are one.",
        Change(TALLY, "mark = kinds.session_mark(record.id)", "mark = 0"),
        Change(
            TALLY,
            "self._open.add(hash((event.session, event.principal, event.owner, event.at_ms)))",
            "self._open.add(hash((0, event.principal, event.owner, event.at_ms)))",
        ),
        Change(
            TALLY,
            "self._open.discard(hash((event.session, event.principal, event.owner, event.began_ms)))",
            "self._open.discard(hash((0, event.principal, event.owner, event.began_ms)))",
        ),
    ),
    put_back(
        "F-460",
        "A number in line stands for whoever waits at it here.",
        Change(
            WAITERS,
            "if waiter is not None and waiter.queued is not None and waiter.queued.ticket_id != ticket_id:",
            "if False:",
        ),
        without=[],
    ),
    put_back(
        "F-461",
        "A made-up ticket ends the wait of whoever has its number.",
        Change(
            WAITERS,
            "if earlier is None or earlier.queued is None or earlier.queued.ticket_id != command.ticket_id:",
            "if earlier is None or earlier.queued is None:",
        ),
    ),
    put_back(
        "F-462",
        "The state of a tree names all claims in the way.",
        Change(INSPECT, "few = named(others)", "few = others"),
        Change(QUERIES, ", most=most)[:most]", ")"),
    ),
    put_back(
        "F-472",
        "Numbers that a copy skipped are no gap in the events of one job.",
        Change(EVENT_LOG, "    if high - low <= EVENTS_KEPT_MAX:\n", "    if True:\n"),
    ),
    put_back(
        "F-474",
        "A page has as many jobs as were asked for, however long their texts are.",
        Change(EVENT_LOG, "        if count and total > PAGE_CHARS_MAX:\n", "        if False:\n"),
    ),
    put_back(
        "F-475",
        "Who waits for a thread that reads the store waits as long as that takes.",
        Change(FEED, "call_later(QUEUE_MS_MAX / 1000, refuse)", "call_later(3_600, refuse)"),
    ),
    put_back(
        "F-477",
        "A move that is repeated after its end is taken for another one.",
        Change(
            IMPORT,
            "if isinstance(meta, Meta) and self._contents.header.frozen and self._contents.meta.store_id in"
            " meta.moved_from:",
            "if False:",
        ),
    ),
    put_back(
        "F-501",
        "A place is given up although another request of the same claim still asks.",
        Change(WAITERS, "waiter.ticket not in self._parked and not others:", "waiter.ticket not in self._parked:"),
    ),
    put_back(
        "F-502",
        "A request that is refused at once counts as one that still asks.",
        Change(
            WAITERS,
            "waits for nothing\n            self.forget(waiter)\n            raise\n",
            "waits for nothing\n            raise\n",
        ),
    ),
    put_back(
        "F-622",
        "A claim-all of one job is answered as a claim.",
        Change(
            WAITERS, "    if isinstance(command, AcquireAll) and isinstance(outcome, Granted):\n", "    if False:\n"
        ),
    ),
    put_back(
        "F-730",
        "A store that never had a server is copied without a name.",
        Change(
            ARCHIVE,
            "run_one(store, Identify(fresh_id=new_id()))  # no server has",
            "pass  # no server has",
        ),
    ),
    put_back(
        "F-737",
        "What is listed expires while the store is frozen.",
        Change(
            QUERIES,
            "            view.vouched_ms = meta.frozen.at_ms  # nothing expires while it is frozen\n",
            "            pass\n",
        ),
    ),
    put_back(
        "F-743",
        "What is not there yet is free.",
        Change(FREEZE, " and not mark.incomplete:\n", ":\n"),
        Change(QUERIES, "    if meta.frozen is not None and meta.frozen.incomplete:\n", "    if False:\n"),
    ),
    put_back(
        "F-746",
        "What is not there yet has never run.",
        Change(QUERIES, "    begun(store)\n    return store.events(", "    return store.events("),
        Change(QUERIES, "    begun(store)\n    return _last_run(", "    return _last_run("),
    ),
    put_back(
        "F-747",
        "A look that sees no store at all is an answer like any other.",
        Change(DOCUMENTS, "    if isinstance(outcome, kinds):\n", "    if True:\n"),
    ),
    put_back(
        "F-768",
        "What an import has not brought in yet is not on record.",
        Change(QUERIES, "    begun(store)\n    sessions = [\n", "    sessions = [\n"),
        Change(
            CREDENTIALS, "        now_ms, _ = begun(self._store)\n", "        now_ms = self._store.read(()).now_ms\n"
        ),
        Change(CREDENTIALS, "    begun(store)\n    page = collect(", "    page = collect("),
        Change(WEBHOOKS, "        begun(self._store)\n        key = ", "        key = "),
        Change(WEBHOOKS, "        begun(self._store)\n        keys = ", "        keys = "),
        Change(JOBS, "        await self._api.in_reader(lambda: begun(store))\n", ""),
        Change(BOARD_ROUTES, "        begun(self._api.engine.store)\n", ""),
    ),
    put_back(
        "F-770",
        "A waiter whose store is frozen is told so, without its ticket.",
        Change(WAITERS, "isinstance(result, BaseException | Frozen) and", "isinstance(result, BaseException) and"),
    ),
    put_back(
        "F-773",
        "Who is let in without a token of the store counts as unknown.",
        Change(
            DISPATCHER,
            "        is_let_in = self.lets_in(owner)\n",
            "        is_let_in = self.lets_in(owner) and None\n",
        ),
    ),
)
