"""Faults of the stores: SQLite, PostgreSQL, etcd, git."""

from __future__ import annotations

from tests.put_back.fault import Change, put_back

CODEC = "src/dibs/stores/codec.py"
ETCD_CLIENT = "src/dibs/stores/etcd/client.py"
ETCD_CLOCK = "src/dibs/stores/etcd/clock.py"
ETCD_ERRORS = "src/dibs/stores/etcd/errors.py"
ETCD_HTTP2 = "src/dibs/stores/etcd/http2.py"
ETCD_LOCATION = "src/dibs/stores/etcd/location.py"
ETCD_LOG = "src/dibs/stores/etcd/log.py"
ETCD_STORE = "src/dibs/stores/etcd/store.py"
ETCD_TRANSACTION = "src/dibs/stores/etcd/transaction.py"
ETCD_UPKEEP = "src/dibs/stores/etcd/upkeep.py"
GIT_REFS = "src/dibs/stores/git/refs.py"
GIT_REPOSITORY = "src/dibs/stores/git/repository.py"
GIT_TIMES = "src/dibs/stores/git/times.py"
IMPORT = "src/dibs/engine/archive_import.py"
POSTGRES_CONNECTION = "src/dibs/stores/postgres/connection.py"
POSTGRES_ERRORS = "src/dibs/stores/postgres/errors.py"
POSTGRES_SCHEMA = "src/dibs/stores/postgres/schema.py"
POSTGRES_STORE = "src/dibs/stores/postgres/store.py"
SQLITE_CONNECTION = "src/dibs/stores/sqlite/connection.py"
SQLITE_IDENTITY = "src/dibs/stores/sqlite/file_identity.py"
SQLITE_OPENER = "src/dibs/stores/sqlite/opener.py"
SQLITE_QUERIES = "src/dibs/stores/sqlite/queries.py"
SQLITE_STORE = "src/dibs/stores/sqlite/store.py"
TOKEN_FLOOR = "src/dibs/engine/token_floor.py"

FAULTS = (
    put_back(
        "F-035",
        "A commit that compares too many records for one transaction of etcd is sent all the same.",
        Change(ETCD_STORE, "if len(expect) > txn.COMPARES_MAX or len(events) > COMMIT_EVENTS_MAX:", "if False:"),
    ),
    put_back(
        "F-036",
        "A transaction has one operation more than etcd takes.",
        Change(
            ETCD_TRANSACTION, "if max(compares, others + len(ops)) < OPS_MAX:", "if max(compares, len(ops)) <= OPS_MAX:"
        ),
    ),
    put_back(
        "F-038",
        "A machine that is new to etcd's stopwatch goes by whole seconds.",
        Change(
            ETCD_CLOCK,
            "for _ in range(COUNT_LOOKS):",
            "for _ in range(0):",
        ),
    ),
    put_back(
        "F-040",
        "A write that a full etcd refused is forgotten.",
        Change(
            ETCD_STORE,
            "            self._trouble = error\n            raise\n        if answer.succeeded",
            "            raise error\n        if answer.succeeded",
        ),
    ),
    put_back(
        "F-041",
        "A full etcd counts as one that has not written.",
        Change(ETCD_ERRORS, "(self.code in _BEFORE_WRITE and not self.is_full)", "self.code in _BEFORE_WRITE"),
    ),
    put_back(
        "F-042",
        "A store on etcd does not hear of forks.",
        Change(
            ETCD_STORE, "        self.forget()\n        self._listening = listen(self)\n", "        self.forget()\n"
        ),
    ),
    put_back(
        "F-043",
        "The position of an event is joined to its revision as bits.",
        Change(ETCD_LOG, "return seq_of(self.revision, self.count)", "return (self.revision << 10) | self.count"),
    ),
    put_back(
        "F-044",
        "The key that says which others there are is deleted first.",
        Change(
            ETCD_UPKEEP,
            "for key in (*self._job_keys(commit), commit.key)]",
            "for key in (commit.key, *self._job_keys(commit))]",
        ),
    ),
    put_back(
        "F-045",
        "Chapters of the log are remembered for ever.",
        Change(
            ETCD_LOG,
            "        self.starts = {number: start for number, start in starts.items() if number >= oldest}\n",
            "        self.starts = starts if oldest >= 0 else {}\n",
        ),
    ),
    put_back(
        "F-060",
        "A version is a count of the commits since the last failover.",
        Change(POSTGRES_STORE, "        name = new_number()\n", "        name = seen % (1 << 40) + 1\n"),
    ),
    put_back(
        "F-061",
        "The first commit on a new timeline goes on from the tokens and numbers that are there.",
        Change(POSTGRES_STORE, "floor = max(meta.token_floor + 1, snapshot.now_ms)", "floor = meta.token_floor + 1"),
        Change(POSTGRES_STORE, "        self.number_from(snapshot.now_ms * 1_000)\n", ""),
    ),
    put_back(
        "F-062",
        "A database that lacks commits is used.",
        Change(POSTGRES_STORE, "        if revision < seen:\n", "        if False:\n"),
    ),
    put_back(
        "F-063",
        "A full disk of PostgreSQL is forgotten.",
        Change(
            POSTGRES_STORE,
            "            self._trouble = error\n            raise\n        if self._trouble",
            "            raise\n        if self._trouble",
        ),
    ),
    put_back(
        "F-064",
        "The end of what is pruned is looked up after the young events.",
        Change(POSTGRES_STORE, "if young else last_seq + 1", "if young else self.newest_seq() + 1"),
    ),
    put_back(
        "F-065",
        "A commit that waits for the standby is told as somebody's open transaction.",
        Change(POSTGRES_ERRORS, "    if error.by_standby:\n", "    if False:\n"),
    ),
    put_back(
        "F-066",
        "Functions look for others in the schema that everybody may write.",
        Change(
            POSTGRES_SCHEMA,
            'SAFE = "SET search_path = pg_catalog, pg_temp"',
            'SAFE = "SET search_path = public, pg_catalog, pg_temp"',
        ),
    ),
    put_back(
        "F-067",
        "Nobody is told who keeps an old view of the database.",
        Change(POSTGRES_STORE, "held = self._pool.call(held_back)  # a server", "held = None  # a server"),
    ),
    put_back(
        "F-068",
        "A word in the name of a host is taken for a reason.",
        Change(POSTGRES_ERRORS, """plain = re.sub(r'"[^"]*"', "", says)""", "plain = says"),
    ),
    put_back(
        "F-069",
        "A name is looked up without a bound.",
        Change(
            POSTGRES_CONNECTION,
            'Thread(target=lambda: answers.put(_looked_up(host)), name="dibs-resolve", daemon=True).start()',
            "answers.put(_looked_up(host))",
        ),
    ),
    put_back(
        "F-077",
        "What is pruned ends at the newest event of the moment in which it is deleted.",
        Change(
            SQLITE_QUERIES,
            "            db.execute(SETTLE)  # the last event may be among them, and the counters with it\n",
            "            db.execute(SETTLE)  # the last event may be among them, and the counters with it\n"
            "            if young is None:\n"
            '                (upto,) = db.execute("SELECT max(seq) FROM events").fetchone()\n',
        ),
    ),
    put_back(
        "F-078",
        "Pruning walks over the whole history.",
        Change(
            SQLITE_QUERIES,
            "        # Time rises with the numbers, so this walks",
            '        db.execute("SELECT sum(at_ms) FROM events").fetchone()\n'
            "        # Time rises with the numbers, so this walks",
        ),
    ),
    put_back(
        "F-080",
        "A clone remembers of its newest 4,000 records since when it watched each.",
        Change(
            GIT_TIMES,
            '"last_ms": self.now_ms(), "seen": self._seen}',
            '"last_ms": self.now_ms(), "seen": dict(list(self._seen.items())[-4_000:])}',
        ),
        Change(
            GIT_TIMES,
            "            self._load()  # other processes may have seen them before\n",
            "            self._seen = {}\n            self._load()\n",
        ),
    ),
    put_back(
        "F-081",
        "git may ask the program that core.askPass names.",
        Change(
            GIT_REPOSITORY,
            '    env["GIT_ASKPASS"] = ""  # empty, not absent: then core.askPass is not asked either\n',
            '    env.pop("GIT_ASKPASS", None)\n',
        ),
    ),
    put_back(
        "F-082",
        "A step that git wrote in part is told as not written.",
        Change(
            GIT_REFS,
            '        if any(now.get(each.tail, "") == each.new != each.old for each in swaps):\n',
            "        if False:\n",
        ),
    ),
    put_back(
        "F-083",
        "A lock is waited for as long as another process has it.",
        Change(
            GIT_REPOSITORY, "LOCKED_MS_MAX if waits else 0, shared=shared", "3_600_000 if waits else 0, shared=shared"
        ),
    ),
    put_back(
        "F-084",
        "To know its last number a store writes.",
        Change(SQLITE_STORE, "    def newest_seq(self) -> int:\n", "    def _newest_seq(self) -> int:\n"),
    ),
    put_back(
        "F-135",
        "A list does not look whether a commit is half written.",
        Change(
            ETCD_STORE,
            "            if not self._is_half_written(looked.kvs, answer.revision):\n                return found\n",
            "            return found\n",
        ),
    ),
    put_back(
        "F-136",
        "A large commit returns its number without what an import added to it.",
        Change(
            ETCD_STORE,
            "            self._known.pop(key, None)\n        return self._log.last_number(last)",
            "            self._known.pop(key, None)\n        return self._log.last_seq(last)",
        ),
    ),
    put_back(
        "F-137",
        "Events that were written together have one number after the other.",
        Change(IMPORT, "            if self._store.capabilities.gapless:\n", "            if True:\n"),
    ),
    put_back(
        "F-195",
        "Whether a file has tables is asked after whose it is.",
        Change(
            SQLITE_OPENER,
            '    has_tables = db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None\n'
            '    version = int(db.execute("PRAGMA user_version").fetchone()[0])\n'
            '    application = int(db.execute("PRAGMA application_id").fetchone()[0])\n',
            '    application = int(db.execute("PRAGMA application_id").fetchone()[0])\n'
            '    version = int(db.execute("PRAGMA user_version").fetchone()[0])\n'
            '    has_tables = db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None\n',
        ),
    ),
    put_back(
        "F-210",
        "A connection that ends in the middle of an answer counts as one that was not asked.",
        Change(
            ETCD_HTTP2,
            'raise LostConnection("it closed the connection", sent=True)',
            'raise LostConnection("it closed the connection", sent=False)',
        ),
    ),
    put_back(
        "F-211",
        "The headers of an answer may be as long as its sender likes.",
        Change(
            "src/dibs/stores/etcd/http2.py",
            "if self._header_bytes > HEADER_BYTES_MAX:",
            "if False:",
        ),
    ),
    put_back(
        "F-271",
        "A version is a count of commits.",
        Change(POSTGRES_STORE, "        name = new_number()\n", "        name = seen + 1\n"),
    ),
    put_back(
        "F-337",
        "What root makes in the folder of a service is root's.",
        Change(SQLITE_OPENER, "return (facts.st_uid, facts.st_gid) if facts.st_uid else None", "return None"),
    ),
    put_back(
        "F-375",
        "A migration waits for a table as long as somebody reads it.",
        Change(
            POSTGRES_SCHEMA,
            """        link.script(f"SET LOCAL lock_timeout = '{STEP_MS_MAX}ms'", deadline_ms)\n""",
            "",
        ),
    ),
    put_back(
        "F-409",
        "A new connection to etcd is taken for one to the same data.",
        Change(
            ETCD_CLIENT,
            "        if known is None:\n            return\n        revision, key",
            "        if known is None or known:\n            return\n        revision, key",
        ),
    ),
    put_back(
        "F-410",
        "A new connection to PostgreSQL is not asked for the last event that is known.",
        Change(POSTGRES_STORE, "            if self._last_event is not None:\n", "            if False:\n"),
    ),
    put_back(
        "F-415",
        "A copy goes on from the numbers of events that it has.",
        Change(TOKEN_FLOOR, "return max(known + 1, now_ms * 1_000)", "return known + 1"),
    ),
    put_back(
        "F-423",
        "The end of a closure is as old as the record that a machine wrote.",
        Change(GIT_TIMES, "        if is_wrong or self._is_own(entry):\n", "        if True:\n"),
    ),
    put_back(
        "F-424",
        "An old copy that is noticed raises the floor of tokens alone.",
        Change(ETCD_STORE, "        self.number_from(snapshot.now_ms * 1_000)\n", ""),
        Change(POSTGRES_STORE, "        self.number_from(snapshot.now_ms * 1_000)\n", ""),
    ),
    put_back(
        "F-431",
        "A note of an older version is read as one of this.",
        Change(
            ETCD_CLOCK,
            "    except (ValueError, LookupError, TypeError, AttributeError):\n        return None\n",
            "    except ValueError:\n        return None\n",
        ),
    ),
    put_back(
        "F-433",
        "A record that cannot be read fails its list.",
        Change(
            CODEC,
            "            except RecordCorrupt as error:\n                damaged[key] = error\n",
            "            except RecordCorrupt:\n                raise\n",
        ),
    ),
    put_back(
        "F-434",
        "Nobody finds out that a port of etcd speaks TLS.",
        Change(
            ETCD_HTTP2,
            'is_cut = self._is_new and self._scheme == "http" and not isinstance(error, TimeoutError)',
            "is_cut = False",
        ),
    ),
    put_back(
        "F-435",
        "Readers wait for a large commit that an etcd without room cannot finish.",
        Change(
            ETCD_STORE,
            "self._wide.wait(wide, 0 if isinstance(self._trouble, StoreFull) else None)",
            "self._wide.wait(wide)",
        ),
    ),
    put_back(
        "F-470",
        "A server does not look at the file below its log.",
        Change(SQLITE_IDENTITY, "        if self._below is not None:\n", "        if False:\n"),
    ),
    put_back(
        "F-471",
        "An event that cannot be read fails every history that comes to it.",
        Change(
            CODEC,
            "            except RecordCorrupt as error:\n                damaged[error.key] = error\n",
            "            except RecordCorrupt:\n                raise\n",
        ),
    ),
    put_back(
        "F-473",
        "Nothing is read while a large commit cannot begin.",
        Change(ETCD_STORE, "            if is_begun:\n", "            if True:\n"),
    ),
    put_back(
        "F-476",
        "An etcd prefix of this version looks like one of 0.2.0.",
        Change(
            ETCD_LOCATION, 'self.stopwatch = self.root + b"stopwatch.10"', 'self.stopwatch = self.root + b"stopwatch"'
        ),
        Change(
            ETCD_LOCATION, 'self.old_stopwatch = self.root + b"stopwatch"', 'self.old_stopwatch = self.root + b"none"'
        ),
    ),
    put_back(
        "F-510",
        "A new file that has nothing below its log is looked at again and again.",
        Change(SQLITE_IDENTITY, "return _NOTHING if has_no_table and self._seen == _NOTHING else None", "return None"),
    ),
    put_back(
        "F-520",
        "A value of another type than its field's is read.",
        Change(
            "src/dibs/base/record.py",
            '    raise TypeError(f"{value!r:.80} is not {written}")\n',
            "    return value\n",
        ),
    ),
    put_back(
        "F-716",
        "A process goes on by its own clock when another one has said what the time is.",
        Change(
            ETCD_CLOCK,
            "            self._begin()  # another process has said what the time is\n            return\n",
            "            self._clock.count_from(reading)\n            return\n",
        ),
    ),
    put_back(
        "F-734",
        "A process that knows the time badly says it at once.",
        Change(ETCD_CLOCK, "            self._pause(AGREE_MS / 1000)\n", ""),
    ),
    put_back(
        "F-735",
        "A commit that failed is no trouble, unless the disk is full.",
        Change(
            POSTGRES_STORE,
            "            self._trouble = error\n            raise\n        if self._trouble",
            "            self._trouble = None if type(error) is StoreUnavailable else error\n            raise\n"
            "        if self._trouble",
        ),
    ),
    put_back(
        "F-738",
        "A store of another user is a failure of dibs.",
        Change(
            "src/dibs/stores/sqlite/backup.py",
            "    except PermissionError:\n        raise StoreUnavailable(",
            "    except NotImplementedError:\n        raise StoreUnavailable(",
        ),
    ),
)
