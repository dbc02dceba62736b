"""Faults of what keeps coding agents apart: hooks, guarded commands, MCP tools, and repositories that nobody trusts."""

from __future__ import annotations

from tests.put_back.fault import Change, put_back

ACTOR = "src/dibs/cli/framework/actor_session.py"
CHECKOUT = "src/dibs/agents/git/checkout_claims.py"
HELD = "src/dibs/agents/harness/held_names.py"
HOOK = "src/dibs/agents/commands/agent_hook.py"
HOOK_ANSWERS = "src/dibs/agents/hook_answers.py"
HOOK_CHECK = "src/dibs/agents/git/hook_check.py"
METHODS = "src/dibs/agents/mcp/methods.py"
REACH = "src/dibs/agents/git/git_reach.py"
SENTENCES = "src/dibs/agents/hook_sentences.py"
SETTINGS = "src/dibs/client/setting_sources.py"
SHELL_LINES = "src/dibs/agents/harness/shell_lines.py"
SHELL_WRITES = "src/dibs/agents/harness/shell_writes.py"
TRACKED_CLAIM = "src/dibs/agents/tracker/tracked_claim.py"
WORK_TREE = "src/dibs/agents/repository/work_tree.py"
TOOL_ANSWERS = "src/dibs/agents/mcp/tool_answers.py"


FAULTS = (
    put_back(
        "F-105",
        "The configuration of an unpacked `.git` names a program that git runs for dibs.",
        Change("src/dibs/base/git_program.py", '("core.fsmonitor=false", "safe.bareRepository=explicit")', "()"),
    ),
    put_back(
        "F-106",
        "A link on the way to a file that dibs writes may lead out of the work tree.",
        Change(
            "src/dibs/agents/repository/file_paths.py",
            "if parts_below(top, os.path.normpath(whole), folds=False) and not parts_below(top, real, folds=False):",
            "if not real:",
        ),
    ),
    put_back(
        "F-107",
        "A claim is shown on the issues of whatever repository the tracked file names.",
        Change(TRACKED_CLAIM, 'return "/".join(place[:3]) in (*allowed, self._origin())', "return True"),
    ),
    put_back(
        "F-108",
        "What is in a here-document is read as a command.",
        Change(SHELL_LINES, "                self._skip_documents()\n", "                self._documents = []\n"),
    ),
    put_back(
        "F-110",
        "What others wrote stands in a sentence for an agent as it is.",
        Change(TOOL_ANSWERS, "            made[key] = quoted(value)\n", "            made[key] = value\n"),
        Change(SENTENCES, 'return quoted(refused["owner"]) + (', 'return str(refused["owner"]) + ('),
    ),
    put_back(
        "F-142",
        "Hooks do not note which process runs their agent's session.",
        Change(HOOK, "event.agent.pid = note(call.env, event.agent)", "event.agent.pid = 0"),
    ),
    put_back(
        "F-143",
        "A session whose process was not known when it was opened never ends with it.",
        Change(ACTOR, "            mark = self._watched(before)\n", "            mark = before\n"),
    ),
    put_back(
        "F-144",
        "A patch in a shell command writes no file.",
        Change(SHELL_WRITES, 'if command.program in ("apply_patch", "applypatch"):', "if False:"),
    ),
    put_back(
        "F-291",
        "Guarded commands claim their jobs in the repository's namespace, whoever trusts it.",
        Change(CHECKOUT, "return is_resource(self._naming.of(job)) or not self.repository.is_trusted", "return True"),
    ),
    put_back(
        "F-292",
        "Every refusal is told as if another worker had the file.",
        Change(SENTENCES, 'heads.get(str(refusals[0].get("status")), heads[""])', 'heads["held"]'),
    ),
    put_back(
        "F-293",
        "A deadlock is an error of dibs.",
        Change(
            CHECKOUT,
            '    if body.get("code") == "deadlock":\n'
            '        return _deadlocked(call, session, names) or [{**body, "status": "deadlock", "name": names[0]}]\n',
            "",
        ),
    ),
    put_back(
        "F-295",
        "A guarded command passes unseen behind `timeout`, or with the path of its program.",
        Change(SHELL_LINES, '    "timeout": Wrapper(("-k", "-s", "--kill-after", "--signal"), words=1),\n', ""),
        Change(
            "src/dibs/agents/git/guarded_commands.py",
            'program = words[0].rpartition("/")[2].removesuffix(".exe")',
            "program = words[0]",
        ),
    ),
    put_back(
        "F-297",
        "Tools take `job`, and none of its other names.",
        Change(METHODS, "for other in [each for each in field.also if each in given]:", "for other in ():"),
    ),
    put_back(
        "F-298",
        "`cp FILE FOLDER` writes the folder.",
        Change(SHELL_WRITES, "    if not is_folder:\n", "    if True:\n"),
    ),
    put_back(
        "F-306",
        "A claim on the same path in another repository proves one here.",
        Change(HOOK_CHECK, ' if here in (None, hold["namespace"])}', "}"),
    ),
    put_back(
        "F-307",
        "An agent that names itself by the id of its session is another worker.",
        Change(ACTOR, "    agent = agent_named(call.env, name)\n", "    agent = None\n"),
    ),
    put_back(
        "F-308",
        "The shell of opencode is nobody's.",
        Change(
            "src/dibs/cli/framework/registry.py",
            '(*AGENT_SESSIONS, "GEMINI_CLI", "OPENCODE")',
            '(*AGENT_SESSIONS, "GEMINI_CLI")',
        ),
    ),
    put_back(
        "F-310",
        "A git folder says where claims go, also in a repository that nobody trusts.",
        Change(SETTINGS, "is_in_user_file=True, clone=TRUSTED),", "is_in_user_file=True, clone=ALWAYS),"),
    ),
    put_back(
        "F-311",
        "Only filters whose name is a text are turned off.",
        Change(
            WORK_TREE,
            'if entry[1].startswith("filter.")]',
            'if entry[1].startswith("filter.") and entry[1].isprintable()]',
        ),
    ),
    put_back(
        "F-312",
        "The server that a repository names gets the user's token.",
        Change("src/dibs/client/settings.py", "is_users = not self.has_url_of_repository", "is_users = True"),
    ),
    put_back(
        "F-313",
        "A hook waits for git as long as any command does.",
        Change(WORK_TREE, "_SETTINGS_MS_MAX = 5_000", "_SETTINGS_MS_MAX = 30_000"),
        Change(HOOK, "_MS_MAX = 8_000\n", "_MS_MAX = 60_000\n"),
    ),
    put_back(
        "F-314",
        "A tracked file chooses the namespace, also in a repository that nobody trusts.",
        Change(SETTINGS, "        tracked=TRUSTED,\n", "        tracked=ALWAYS,\n"),
    ),
    put_back(
        "F-315",
        "A hook waits for a silent server for as long as any command.",
        Change(
            "src/dibs/agents/harness/hook_transport.py",
            'f"{min(ANSWER_MS, call.settings.timeout_ms)}ms"',
            'f"{call.settings.timeout_ms}ms"',
        ),
        Change(HOOK, "_MS_MAX = 8_000\n", "_MS_MAX = 80_000\n"),
    ),
    put_back(
        "F-316",
        "An agent is not told that dibs cannot work.",
        Change(HOOK, "    return heard.replace(stderr=quiet.stderr) if is_shown else quiet\n", "    return quiet\n"),
    ),
    put_back(
        "F-317",
        "Each of many changed files is claimed by itself.",
        Change(CHECKOUT, "_FILES_AT_ONCE = ALL_NAMES_MAX // 2", "_FILES_AT_ONCE = 1"),
    ),
    put_back(
        "F-327",
        "What others wrote stands in a field for an agent as it is.",
        Change(
            TOOL_ANSWERS,
            '    words = plain(text)\n    return words if len(words) <= chars_max else words[:chars_max] + "…"\n',
            "    return text\n",
        ),
    ),
    put_back(
        "F-360",
        "`dibs mcp` reaches the remote of a clone that nobody trusts.",
        Change(
            "src/dibs/agents/commands/mcp.py",
            "    if (url := call.settings.named_url) and is_at_remote(url):\n"
            "        Repository.here(call.env).check_trusted(url)\n",
            "",
        ),
    ),
    put_back(
        "F-361",
        "Several commands write the list of trusted repositories at once.",
        Change("src/dibs/cli/commands/config.py", "    with changing(path):\n        yield path\n", "    yield path\n"),
    ),
    put_back(
        "F-362",
        "The trouble for which an edit is refused is not noted.",
        Change(
            HOOK,
            "    if event.agent is not None:\n        note_trouble",
            "    if event.agent is not None and not guard.requires:\n        note_trouble",
        ),
    ),
    put_back(
        "F-363",
        "A guarded job that the agent has by another name of its own is another worker's.",
        Change(CHECKOUT, '"by_actor": _is_of_actor(call, each)}', '"by_actor": False}'),
    ),
    put_back(
        "F-364",
        "A repository that git cannot read is none.",
        Change(
            WORK_TREE,
            'raise InvalidInput(f"git does not tell which repository this is: {done.words}.")',
            "raise NotInWorkTree(done.words)",
        ),
    ),
    put_back(
        "F-456",
        "A tool goes on for a client that has gone.",
        Change(
            "src/dibs/agents/mcp/http_endpoint.py", "if self.is_gone and step.verb in (ONE, ANY, ALL):", "if False:"
        ),
    ),
    put_back(
        "F-457",
        "A command that is refused releases what the agent's other commands have.",
        Change(CHECKOUT, "                if undoing is None:\n", "                if True:\n"),
    ),
    put_back(
        "F-465",
        "A claim that could not be undone is told as refused.",
        Change(
            TRACKED_CLAIM,
            "        if kind_of(undone) == NOT_NOW:  # the lease may still be there: whoever claims gives it up later\n"
            "            return undone\n",
            "",
        ),
    ),
    put_back(
        "F-560",
        "A command may take whatever entry of the stash.",
        Change(HOOK_ANSWERS, "refused, free = git_guard.stash_finding(commands, checkout)", 'free = ""'),
    ),
    put_back(
        "F-561",
        "A command over the whole work tree may take what others changed.",
        Change(
            HOOK_ANSWERS,
            "                    refused = refused or git_guard.overwrite_finding(commands, checkout)\n",
            "",
        ),
    ),
    put_back(
        "F-562",
        "Nobody is told whose unfinished work is in a file.",
        Change(HOOK_ANSWERS, "                    notices += self._taken_over(checkout)\n", ""),
    ),
    put_back(
        "F-563",
        "A file stays claimed when it is committed.",
        Change(
            HOOK_ANSWERS,
            "            done = [file for file in files if _is_changed(checkout.key(file), committed)]\n",
            "            done = []\n",
        ),
    ),
    put_back(
        "F-564",
        "The session is renewed before each claim.",
        Change(CHECKOUT, "self._opened.get(session) or session.opened", "session.opened"),
    ),
    put_back(
        "F-570",
        "What a shell is given to run is not looked at.",
        Change(SHELL_LINES, "            self._look_inside(command)\n            if", "            if"),
    ),
    put_back(
        "F-571",
        "The value of an option is a word of the command.",
        Change(
            "src/dibs/agents/git/guarded_commands.py",
            'is_value = "=" not in word if taking is None else word in taking',
            "is_value = False",
        ),
    ),
    put_back(
        "F-600",
        "A command that names another's file is not looked at.",
        Change(HOOK_ANSWERS, "            named = self._before_named()\n", "            named = NOTHING\n"),
    ),
    put_back(
        "F-602",
        "Committed files are released one by one.",
        Change(CHECKOUT, "_RELEASES_AT_ONCE = 500", "_RELEASES_AT_ONCE = 1"),
    ),
    put_back(
        "F-613",
        "What is not there has one code in all revisions, and a cursor says nothing.",
        Change(METHODS, "raise ProtocolError(form.missing, known,", "raise ProtocolError(INVALID_PARAMS, known,"),
        Change(METHODS, 'if params.get("cursor"):', "if False:"),
    ),
    put_back(
        "F-614",
        "Each client gets an answer as text and as structured content.",
        Change(METHODS, 'if not (form.once and key == "structuredContent")}', "}"),
        Change(METHODS, "self._listed_once if form.once else self._listed", "self._listed"),
    ),
    put_back(
        "F-615",
        "What a file said before dibs was put into it is not noted.",
        Change(
            "src/dibs/agents/commands/agent_install.py", "        after = after if original is None else original\n", ""
        ),
    ),
    put_back(
        "F-616",
        "Only what this version wrote is known as its own.",
        Change(
            "src/dibs/agents/harness/configuration.py",
            '_EVER = (_CODEX, {**_CODEX, "env_vars": '
            '[name for name in _CODEX["env_vars"] if name != "DIBS_CONTEXT"]}, SERVER)',
            "_EVER = (_CODEX,)",
        ),
    ),
    put_back(
        "F-617",
        "Agents with one shown name are one.",
        Change(
            CHECKOUT,
            "mine, other = self.agent.mark, agent_of(hold)",
            'mine, other = self.owner, str(hold.get("owner") or "")',
        ),
    ),
    put_back(
        "F-619",
        "A stash saves tracked files, whatever its command says.",
        Change(
            "src/dibs/agents/git/git_guard.py",
            "return bool(_within(states, reach, command.folder, checkout))",
            'return any(state != "??" for state in states.values())',
        ),
    ),
    put_back(
        "F-620",
        "Forced moves and a commit of named files destroy nothing.",
        Change(
            REACH,
            '    if given.has("-f", "--force") and not given.after and len(given.plain) < 2 '
            "and not any(map(exists, given.plain)):\n"
            '        return Reach(verb="checkout --force", kind=RESTORE)\n',
            "",
        ),
        Change(
            REACH,
            '    if given.has("-f", "--force", "--discard-changes") and given.paths:'
            "  # without a commit, it writes no file\n"
            '        return Reach(verb="switch --force", kind=RESTORE)\n',
            "",
        ),
        Change(REACH, 'return _below("commit", COMMIT, given.paths) if is_all else None', "return None"),
    ),
    put_back(
        "F-621",
        "The removal of a work tree destroys nothing.",
        Change(REACH, '    "worktree": _worktree,\n', ""),
    ),
    put_back(
        "F-623",
        "A command that goes on in the background has ended.",
        Change(HOOK_ANSWERS, "        if self._event.goes_on:\n            return\n", ""),
    ),
    put_back(
        "F-637",
        "MCP notes a step before the checkpoint, and tells of no doubt about one of several jobs.",
        Change(
            "src/dibs/agents/mcp/backend.py",
            "            note = operations.note_effect(\n"
            "                job, proof, effect_id=effect_id, checkpoint=checkpoint, metadata=metadata, **step\n"
            "            )\n"
            "            body = await self.run(note)\n",
            "            body = await self.run(operations.note_effect(job, proof, effect_id=effect_id, **step))\n"
            "            await self.run(operations.renew(job, proof, checkpoint=checkpoint, metadata=metadata))\n",
        ),
        Change(
            "src/dibs/agents/mcp/tool_answers.py",
            'doubts = [f"Of {lease.name}: {said}" for lease in leases for said in _doubts(lease)]',
            "doubts: list[str] = []",
        ),
    ),
    put_back(
        "F-641",
        "An agent's command is not told which steps of its job are in doubt.",
        Change(
            HOOK_ANSWERS,
            "refused or (with_remark(self._event, answer, doubts) if doubts else answer)",
            "refused or answer",
        ),
    ),
    put_back(
        "F-653",
        "What is said of a file that a command names takes the place of all that was to be said.",
        Change(
            HOOK_ANSWERS,
            "            if named.reason:\n                answer = named\n"
            "            elif named.text:\n                answer = with_remark(self._event, answer, named.text)\n",
            "            answer = named\n",
        ),
    ),
    put_back(
        "F-654",
        "A folder is held without what is in it.",
        Change(HELD, 'is_named = f"{relative}/".startswith(f"{file}/")', "is_named = relative == file"),
    ),
    put_back(
        "F-655",
        "A script that says that it only looks may write.",
        Change(HELD, "return bool(is_said) and _FIXES.isdisjoint(rest)", "return False"),
    ),
    put_back(
        "F-656",
        "`yarn prettier` is a script of the package, and what stands in one word with other letters is no option.",
        Change(
            HELD,
            "if program in _PACKAGERS and rest and rest[0] in _PROGRAMS and rest[0] not in _PACKAGERS:",
            "if False:",
        ),
        Change(
            HELD,
            "outputs = _values(rest, known.outputs, joined=known.joined)",
            "outputs = _values(rest, known.outputs)",
        ),
    ),
    put_back(
        "F-657",
        "A session and its subagents have one note, which ends with the session.",
        Change(
            "src/dibs/agents/git/present_agents.py",
            'return agent.mark.replace("/", "-")',
            'return agent.mark.partition("/")[0]',
        ),
    ),
    put_back(
        "F-660",
        "A file that another agent has in this work tree alone is nobody's.",
        Change(
            "src/dibs/cli/framework/job_names.py",
            "twin = None if around is None else around.in_checkout(name)",
            "twin = None",
        ),
    ),
    put_back(
        "F-731",
        "`git switch --force` without a commit takes away what others changed.",
        Change(REACH, '"--discard-changes") and given.paths:', '"--discard-changes"):'),
    ),
    put_back(
        "F-760",
        "Whoever has a terminal can name the claim in the next line.",
        Change(
            "src/dibs/agents/typed_claims.py",
            "return any(_group(shell.pid) not in (None, own) for shell in forked_shells(runner(os.getppid())))",
            "return True",
        ),
    ),
)
