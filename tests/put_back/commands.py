"""Faults of commands, of the processes that they guard, of other systems' interfaces, and of what is published."""

from __future__ import annotations

from tests.put_back.fault import Change, put_back

ACTOR = "src/dibs/cli/framework/actor_session.py"
ADMIN = "src/dibs/cli/commands/admin.py"
CHILD = "src/dibs/cli/supervise/child.py"
CLAIM_MANY = "src/dibs/cli/commands/claim_many.py"
COMPLETION = "src/dibs/cli/commands/completion.py"
CONFIG = "src/dibs/cli/commands/config.py"
CONTEXTS = "src/dibs/client/contexts.py"
EFFECTS = "src/dibs/core/claims/effects.py"
FLAGS = "src/dibs/cli/framework/flags.py"
GUARDIAN = "src/dibs/cli/supervise/guardian.py"
INSPECT = "src/dibs/core/claims/inspect.py"
JOB_NAMES = "src/dibs/cli/framework/job_names.py"
LEASES = "src/dibs/core/claims/leases.py"
LISTING = "src/dibs/cli/text/listing.py"
NAMING = "src/dibs/client/naming.py"
OCTOSTORE_DATABASE = "src/dibs/compat/octostore/database.py"
ONCE = "src/dibs/cli/commands/once.py"
OWN_PROGRAM = "src/dibs/base/own_program.py"
PROCESS_SESSION = "src/dibs/cli/supervise/process_session.py"
RELEASE = "src/dibs/cli/commands/release.py"
STORE_ADMIN = "src/dibs/client/store_admin.py"
WAIT = "src/dibs/cli/commands/wait.py"

FAULTS = (
    put_back(
        "F-087",
        "A token that replaces itself gets a new end.",
        Change(
            "src/dibs/core/service/credentials.py",
            "expires_ms=old.expires_ms if command.keeps_end else ends_ms,",
            "expires_ms=ends_ms,",
        ),
    ),
    put_back(
        "F-093",
        "Elections are not among the jobs that a token may hold.",
        Change("src/dibs/compat/octostore/elections.py", "            caller = self._api.counted(caller)\n", ""),
    ),
    put_back(
        "F-095",
        "Requests through interfaces of other systems are not counted.",
        Change(
            "src/dibs/server/handlers.py",
            "        if COUNTED not in headers:\n"
            "            self._rates.count(caller, verb)\n        if verb in LEAST_ROLE:",
            "        if verb in LEAST_ROLE:",
        ),
    ),
    put_back(
        "F-098",
        "An answer does not forbid that it is kept.",
        Change("src/dibs/server/http/request.py", "\\r\\ncache-control: no-store\\r\\n", "\\r\\n"),
    ),
    put_back(
        "F-103",
        "A change of an access list leaves no event.",
        Change(
            "src/dibs/core/holds/access.py",
            "        draft.emit(ACCESS_SET, lock.ns, lock.name, by=by, reason=said)\n",
            "        del said\n",
        ),
    ),
    put_back(
        "F-109",
        "A name that begins with a dash is shown where a flag would be read.",
        Change("src/dibs/cli/text/words.py", 'if any(name.startswith("-") for name in names):', "if False:"),
    ),
    put_back(
        "F-191",
        "A second transport is made of the flags and variables alone.",
        Change(
            "src/dibs/client/settings.py",
            "made = Settings({**self._values, **values}, self.env, kept)",
            "made = Settings({**self._values, **values}, self.env)",
        ),
    ),
    put_back(
        "F-265",
        "An actor's session is not renewed while it waits.",
        Change(
            WAIT,
            'of_actor = meanwhile is None and "session_id" in document and is_actor(call)',
            "of_actor = False",
        ),
    ),
    put_back(
        "F-290",
        "A resource can be done.",
        Change(LEASES, "if (command.done_ms or command.failed) and is_resource(command.name):", "if False:"),
    ),
    put_back(
        "F-294",
        "`dibs wait` waits for whoever has the job.",
        Change(WAIT, "if taken and session is not None:", "if False:"),
    ),
    put_back(
        "F-300",
        "An actor has a session for each namespace.",
        Change(
            ACTOR,
            'self._file(DEFAULT_NAMESPACE if agent is None else "agent")',
            'self._file((call.settings.namespace or DEFAULT_NAMESPACE) if agent is None else "agent")',
        ),
    ),
    put_back(
        "F-301",
        "An actor's session lasts as long as it was opened for, whatever a renewal says.",
        Change(ACTOR, "if any(ttl_ms > kept_ms for _, kept_ms, _ in self._read()):", "if False:"),
    ),
    put_back(
        "F-302",
        "Of an actor one session is remembered.",
        Change(ACTOR, "_SESSIONS_MAX = 4 ", "_SESSIONS_MAX = 1 "),
    ),
    put_back(
        "F-303",
        "A path is in the namespace of the current folder, whoever has it.",
        Change(NAMING, "        if job not in inside:\n", "        if True:\n"),
        Change(JOB_NAMES, "if inside and (found is None or (call.command in _PROVING and not of_run)):", "if False:"),
    ),
    put_back(
        "F-304",
        "An actor has the name of the session around it.",
        Change(
            ACTOR, "return settings.stated_owner or self._owner or self._name", "return settings.owner or self._name"
        ),
    ),
    put_back(
        "F-305",
        "`dibs lock` claims outside of its actor's session.",
        Change(
            "src/dibs/compat/grite/locks.py",
            '    put(asked, "session_id", _actors_session(call, actor, resource))\n',
            "",
        ),
    ),
    put_back(
        "F-769",
        "Who cannot be asked who has a lock has said that nobody has.",
        Change(
            "src/dibs/compat/grite/locks.py",
            '    return body_of(call.ask("inspect", resource, {}))\n',
            '    return call.ask("inspect", resource, {}).body or {}\n',
        ),
    ),
    put_back(
        "F-330",
        "A release that alone marks a job as done repeats one that did not.",
        Change(LEASES, "in (RELEASED, FAILED) and (ending.done or not command.done_ms):", "in (RELEASED, FAILED):"),
    ),
    put_back(
        "F-331",
        "A word behind `--done` is taken for a time.",
        Change(RELEASE, "if DOUBTFUL in call.values and len(names) > 1 and never_ours:", "if False:"),
    ),
    put_back(
        "F-332",
        "A command that was interrupted ended as it says.",
        Change(CHILD, "        return from_terminal or self._interrupted\n", "        return False\n"),
    ),
    put_back(
        "F-333",
        "`hold --json` does not say which slots it has.",
        Change("src/dibs/cli/commands/hold.py", '"attempt", "slot", "slot_numbers", "ends_at"', '"attempt", "ends_at"'),
    ),
    put_back(
        "F-334",
        "A pipe is a checkpoint file.",
        Change(
            PROCESS_SESSION,
            "        if os.path.exists(self.path) and not os.path.isfile(self.path):\n",
            "        if False:\n",
        ),
    ),
    put_back(
        "F-335",
        "The checkpoint of a heartbeat does not reach the file that is sent later.",
        Change(RELEASE, 'if "checkpoint" in document and call.env.get("DIBS_CHECKPOINT_FILE"):', "if False:"),
    ),
    put_back(
        "F-336",
        "A socket is a service, whether anybody listens or not.",
        Change("src/dibs/client/settings.py", "        if not is_heard(path):\n            return None\n", ""),
    ),
    put_back(
        "F-338",
        "A move that fails does not say how the old store is thawed.",
        Change(
            ADMIN,
            '        if freeze:\n            error.details += f" {_left_frozen(store, undoing)}"\n        raise\n',
            "        raise\n",
        ),
        Change(
            ADMIN,
            '                " If it is from `export --freeze`, and in use nowhere, `dibs export --unfreeze` '
            'lets its store be used "\n'
            '                "again."\n',
            '                ""\n',
        ),
    ),
    put_back(
        "F-365",
        "An actor's session is asked for once.",
        Change(
            FLAGS,
            "patiently(Work(ask), began_ms + wait_ms)",
            "patiently(Work(ask), began_ms)",
        ),
    ),
    put_back(
        "F-370",
        "A command that ended before the signal was passed on was not interrupted.",
        Change(
            CHILD,
            "if number in INTERRUPTS and self.code is None:\n            self._interrupted = True\n",
            "if number in INTERRUPTS and self.code is None:\n            pass\n",
        ),
    ),
    put_back(
        "F-372",
        "Where no thread can be started, the heartbeat fails.",
        Change(
            PROCESS_SESSION, "            except RuntimeError:  # the user", "            except KeyError:  # the user"
        ),
    ),
    put_back(
        "F-373",
        "On a full disk, an actor's claim is a fault of dibs.",
        Change(
            ACTOR,
            "        except OSError as error:\n"
            "            raise self._unwritable(error) from None\n\n    def _unwritable",
            "        except KeyError:\n            raise\n\n    def _unwritable",
        ),
    ),
    put_back(
        "F-374",
        "`export --freeze` that is interrupted does not say how to thaw the store.",
        Change(
            "src/dibs/cli/commands/admin.py",
            "    except KeyboardInterrupt:\n        if freeze:\n"
            "            call.complain(_left_frozen(store, undoing))\n        raise\n    if call.stderr",
            "    except KeyboardInterrupt:\n        raise\n    if call.stderr",
        ),
    ),
    put_back(
        "F-421",
        "A backup that is restored elsewhere has the name of the store that was copied.",
        Change(STORE_ADMIN, '.replace(store_id="", moved_from=last.names)', ".replace()"),
    ),
    put_back(
        "F-422",
        "What was revoked since the backup is valid again.",
        Change(STORE_ADMIN, "    if known:\n        register", "    if not back and known and back:\n        register"),
    ),
    put_back(
        "F-450",
        "Orphans are adopted from then on.",
        Change(CHILD, "            leave_orphans()\n", "            pass\n"),
    ),
    put_back(
        "F-458",
        "A lock that could not be noted is released as work that was done.",
        Change(
            "src/dibs/compat/action_llama/direct.py",
            "drive(self._transport, pending.withdraw())",
            'self._transport.ask(Ask("release", self._key, {"lease_id": lease_id}))',
        ),
    ),
    put_back(
        "F-486",
        "The simulation needs psycopg.",
        Change(
            "src/dibs/testing/simulation.py",
            "from dibs.base.errors import DibsError, StoreUnavailable\n",
            "import psycopg  # noqa: F401\nfrom dibs.base.errors import DibsError, StoreUnavailable\n",
        ),
    ),
    put_back(
        "F-495",
        "The help of a first word is that of its first command.",
        Change("src/dibs/cli/main.py", "text = family_page(name, commands, width)", "text = page(commands[0], width)"),
    ),
    put_back(
        "F-496",
        "The interpreter of a build is a path from the folder of its command.",
        Change("bench/builds.py", "os.path.abspath(python), os.path", "python, os.path"),
    ),
    put_back(
        "F-498",
        "A flag has bounds of its own.",
        Change(
            FLAGS,
            "    least, most = NUMBERS[field]\n",
            "    least, most = 1, 1_000_000 + len(NUMBERS[field])\n",
        ),
    ),
    put_back(
        "F-530",
        "A page names a limit that is none.",
        Change(
            "docs/explanation/leases.md", "32 of them at most (`REMEMBERED_MAX`)", "8 of them at most (`ENDINGS_MAX`)"
        ),
    ),
    put_back(
        "F-540",
        "What was measured on a stalled disk is a figure of dibs.",
        Change("bench/disk.py", "if self._is_try or not is_stalled(worst, self.calm_ms):", "if True:"),
    ),
    put_back(
        "F-550",
        "A digest that few claims need is imported by all.",
        Change(
            "src/dibs/core/waiting/groups.py",
            "from __future__ import annotations\n",
            "from __future__ import annotations\n\nimport hashlib  # noqa: F401\n",
        ),
    ),
    put_back(
        "F-596",
        "A program that takes too long ends the run.",
        Change(
            "bench/builds.py",
            "        except subprocess.TimeoutExpired as error:\n",
            "        except KeyError as error:\n",
        ),
    ),
    put_back(
        "F-609",
        "People are shown the name that is for one checkout.",
        Change("src/dibs/wire/sentences.py", "    if not name.startswith(_MARK):\n", "    if True:\n"),
    ),
    put_back(
        "F-610",
        "What is written like a file is looked for as a job alone.",
        Change(JOB_NAMES, "    if call.command in _OF_WHAT_IS_THERE:\n        _use_files(call)\n", ""),
    ),
    put_back(
        "F-611",
        "A file is released for all clones, and not for its checkout.",
        Change(
            RELEASE,
            "    _release_twins(call, [name for index, name in enumerate(names) "
            "if answers[index].exit == YES], document)\n",
            "",
        ),
    ),
    put_back(
        "F-632",
        "A step keeps the reason of another try.",
        Change(EFFECTS, "    elif not known.doubt_token:\n", "    else:\n"),
    ),
    put_back(
        "F-634",
        "A step whose program is gone is refused as running.",
        Change(
            ONCE,
            'if not isinstance(noted, Answer) or noted.code != "conflict" or (running := self._running()) is None:\n'
            "            return noted\n",
            "if True:\n            return noted\n        running = {}\n",
        ),
    ),
    put_back(
        "F-638",
        "A step ends with the pipe that takes its output.",
        Change(
            ONCE,
            "        except OSError as error:\n            self.trouble = error\n",
            "        except KeyError:\n            pass\n",
        ),
    ),
    put_back(
        "F-640",
        "The steps of a job that is done, or that several have, are not shown.",
        Change(
            "src/dibs/cli/text/listing.py",
            "[said, *claim_text.effects(document, now_ms), *_around(document)]",
            "[said, *_around(document)]",
        ),
        Change(
            "src/dibs/cli/text/listing.py",
            "        lines += claim_text.effects(document, sentences.now_ms_of(holders[0]))\n",
            "",
        ),
    ),
    put_back(
        "F-658",
        "A line to be pasted has a name as others chose it.",
        Change(
            "src/dibs/cli/text/listing.py",
            "shell_line(('--after', document['next']))",
            "' '.join(('--after', document['next']))",
        ),
        Change(
            "src/dibs/cli/commands/agents.py",
            "shell_line(('--after', document['next']))",
            "' '.join(('--after', document['next']))",
        ),
    ),
    put_back(
        "F-659",
        "A subagent is shown by the end of its name, whatever is above it.",
        Change(
            "src/dibs/cli/commands/agents.py", 'is_below=each["parent"] in names)', 'is_below=bool(each["parent"]))'
        ),
    ),
    put_back(
        "F-661",
        "Reading a folder leaves a file open.",
        Change(
            "src/dibs/base/files.py",
            "        os.close(number)  # also of a folder, for which `open` raises and closes nothing\n",
            "        pass\n",
        ),
    ),
    put_back(
        "F-675",
        "A floor of tokens is at most 10^12.",
        Change("src/dibs/core/limits.py", "TOKEN_FLOOR_MAX = 10**15", "TOKEN_FLOOR_MAX = 10**12"),
    ),
    put_back(
        "F-676",
        "A lock whose answer could not be written is kept.",
        Change(
            "src/dibs/compat/action_llama/rlock.py",
            "unconfirmed.settle(is_known=exit_code != EXITS[500])",
            "unconfirmed.settle(is_known=True)",
        ),
    ),
    put_back(
        "F-678",
        "There is one saved server.",
        Change(CONFIG, '        is_own = fits and (is_replaced or "url" not in config)\n', "        is_own = True\n"),
    ),
    put_back(
        "F-679",
        "Nobody looks for the commit that runs.",
        Change("src/dibs/base/__init__.py", "        return _commit_of_clone(root, env)\n", "        return None\n"),
        Change("src/dibs/base/__init__.py", "    return _commit_of_address()\n", "    return None\n"),
    ),
    put_back(
        "F-680",
        "Each saved address is said to be that of a login.",
        Change(
            "src/dibs/cli/main.py",
            "is_login = context is not None and any(settings.login(each) for each in servers_at(context.url))",
            "is_login = True",
        ),
    ),
    put_back(
        "F-688",
        "What is paused, closed or frozen is free.",
        Change(
            INSPECT,
            "    if frozen:\n        return FROZEN\n    if closure is not None:\n        return CLOSED\n"
            "    if is_paused(lock):\n        return PAUSED\n",
            "",
        ),
    ),
    put_back(
        "F-689",
        "To break one of several owners is to break all.",
        Change(LEASES, "if command.token in (None, holder.token)", "if holder.token"),
    ),
    put_back(
        "F-690",
        "A lease of one unit has no list of its numbers.",
        Change(
            "src/dibs/wire/parts.py",
            'return {"slot": numbers[0], "slot_numbers": list(numbers)} if numbers else {}',
            'return {"slot": numbers[0], "slot_numbers": list(numbers)} if len(numbers) > 1 else '
            '{"slot": numbers[0]} if numbers else {}',
        ),
    ),
    put_back(
        "F-692",
        "What has left the list is free.",
        Change(
            "src/dibs/cli/commands/list.py",
            "                found[key] = {**where, **reply.body}\n",
            '                found[key] = {**where, **reply.body, "status": "free"}\n',
        ),
    ),
    put_back(
        "F-695",
        "The access lists of a database of OctoStore stay behind.",
        Change(
            OCTOSTORE_DATABASE,
            '        for row in rows["lock_acls"]:\n            self._add_list(row)\n',
            "",
        ),
    ),
    put_back(
        "F-696",
        "The store is opened, and made, before anybody has looked at the file.",
        Change(
            STORE_ADMIN,
            '    with tempfile.TemporaryFile(prefix="dibs-import-") as spool:\n',
            '    opens().close()\n    with tempfile.TemporaryFile(prefix="dibs-import-") as spool:\n',
        ),
    ),
    put_back(
        "F-705",
        "What never raced is no violation, and a yes.",
        Change(
            "src/dibs/testing/commands/verify.py",
            'return no(UNPROVED, document, "\\n".join([*lines, says]), quiet=counted, code="unproved", message=says)',
            'return yes(document, "\\n".join([*lines, says]), quiet=counted)',
        ),
    ),
    put_back(
        "F-732",
        "The second guardian does not look whether the first one has ended.",
        Change(
            "src/dibs/cli/supervise/second_guardian.py",
            "if self._guardian_mark is not None and not self._guardian_lives():",
            "if False:",
        ),
    ),
    put_back(
        "F-736",
        "A copy is not told of the signal that stops it.",
        Change(ADMIN, "        with StopSignals():  # so that no part of a copy stays\n", "        if True:\n"),
        Change(
            ADMIN,
            "        with StopSignals():\n            done = put_back",
            "        if True:\n            done = put_back",
        ),
    ),
    put_back(
        "F-739",
        "A restore does not say what cannot be read.",
        Change(ADMIN, '    text += _left_out(done, "damaged in the store")\n', ""),
    ),
    put_back(
        "F-742",
        "Nobody looks for a draft that is left.",
        Change("src/dibs/base/new_files.py", "    _forget_drafts(folder, begin)\n", ""),
    ),
    put_back(
        "F-744",
        "A store is perhaps frozen when an export fails.",
        Change(
            ADMIN,
            '        if facts(store)["frozen"] is None:\n',
            "        raise DibsError(undoing)\n        if False:\n",
        ),
    ),
    put_back(
        "F-745",
        "A refusal is of all tries.",
        Change("src/dibs/client/exchange.py", '" An earlier try had no answer." if self._errors else ""', '""'),
    ),
    put_back(
        "F-750",
        "Of claims that were typed at a terminal, one at a time can be proved.",
        Change(
            FLAGS,
            "    if not known:\n        return None\n",
            "    if not known or len(names) > 1:\n        return None\n",
        ),
    ),
    put_back(
        "F-751",
        "An import into a new store asks whether another one was meant.",
        Change(ADMIN, "        made = store.expect_new()\n", ""),
    ),
    put_back(
        "F-752",
        "The draft of a file whose writer was killed stays, and a token without its server is not told of.",
        Change("src/dibs/cli/commands/token.py", "            forget_drafts(os.path.realpath(path))\n", ""),
        Change("src/dibs/cli/commands/config.py", "    if not origins:\n", "    if origins is not None:\n"),
    ),
    put_back(
        "F-753",
        "Python looks for dibs in the current folder first.",
        Change(OWN_PROGRAM, 'return [sys.executable, "-P", "-m", module]', 'return [sys.executable, "-m", module]'),
    ),
    put_back(
        "F-754",
        "A claim of any job needs all that are named.",
        Change(WAIT, 'document.get("count", 1) if verb == "acquire-any" else len(asked)', "len(asked)"),
    ),
    put_back(
        "F-755",
        "Who goes on with a place names who it is, and no other term of its claim.",
        Change(FLAGS, "(EXACT, STAGED, *CLAIM_OWNER, REPLACES, *CLAIM_TERMS, *CLAIM_KEEP)", "(SESSION, TTL, OWNER)"),
    ),
    put_back(
        "F-756",
        "A lease that could not be renewed at once is kept, though nobody is told of it.",
        Change(
            "src/dibs/contrib/tooz.py", "            with suppress(ToozError):\n                self.drop(lease)\n", ""
        ),
    ),
    put_back(
        "F-757",
        "A run that failed has a result, also where no run is done.",
        Change("src/dibs/contrib/apscheduler.py", "if failed and self._done is False:", "if self._done is None:"),
    ),
    put_back(
        "F-758",
        "A job that is called `it` is another one than the job that is closed.",
        Change(
            "src/dibs/wire/sentences.py",
            'if document.get("closed") and document["closed"]["name"] == name:',
            'if document.get("closed") and document["closed"]["name"] == it:',
        ),
    ),
    put_back(
        "F-759",
        "A look does not ask what the run around it has.",
        Change(WAIT, "                return failure(refusal)\n", "                pass\n"),
    ),
    put_back(
        "F-761",
        "What is wrong with a saved server is told without the next step, and not by the key in its file.",
        Change(
            CONTEXTS,
            "        if not isinstance(value, str) or not value.strip():\n",
            "        if not value:\n",
        ),
        Change(CONTEXTS, '        raise InvalidInput(f"{error.details}\\n{more}") from None\n', "        raise\n"),
    ),
    put_back(
        "F-762",
        "`help` and `-o` are words like any other.",
        Change(COMPLETION, 'if word == "help" and self.family is None and not self.is_help:', "if False:"),
        Change(COMPLETION, "elif word == _OUTPUT.flag:", "elif word is None:"),
    ),
    put_back(
        "F-763",
        "Of several jobs nothing is refused for good.",
        Change(
            CLAIM_MANY,
            "if (never := _never(body, asked, needed)) is not None:",
            "if (never := _never(body, asked, 0)):",
        ),
    ),
    put_back(
        "F-780",
        "The tables that SQLite makes for itself are those of another version.",
        Change(OCTOSTORE_DATABASE, ' and not name.startswith("sqlite_"):', ":"),
    ),
    put_back(
        "F-787",
        "What else keeps others from a job is not said below the first line.",
        Change(
            LISTING,
            '    if document["status"] != "closed":  # else the first line says it\n'
            "        lines += claim_text.closed(document)\n",
            "",
        ),
        Change(LISTING, 'if document["status"] != "delayed" and document.get("available_at"):', "if False:"),
        Change(
            LISTING,
            'if document["status"] != "paused" and document.get("pool") and not document["slots"]:',
            "if False:",
        ),
    ),
    put_back(
        "F-789",
        "Only its exit code shows that a command was interrupted at its terminal.",
        Change(GUARDIAN, "if self._terminal_signals is not None and self._terminal_signals.came():", "if False:"),
    ),
    put_back(
        "F-791",
        "The time of a claim that was waited for starts before the grant.",
        Change("src/dibs/cli/commands/wait.py", "    if of_actor and is_granted(reply):\n", "    if False:\n"),
    ),
    put_back(
        "F-790",
        "An actor whose name has the job at another address is not told so.",
        Change(RELEASE, '        if found.get("owner") == ours:\n', "        if False:\n"),
    ),
    put_back(
        "F-792",
        "The typed address of a login is said to be saved.",
        Change("src/dibs/cli/main.py", 'if split_command(argv)[0] == "login":', "if False:"),
    ),
    put_back(
        "F-793",
        "A URL is saved that names nothing.",
        Change(CONFIG, "        check_store_url(value)\n", "        pass\n"),
    ),
)
