"""The entry point: finds the command, runs it, prints its answer, returns the exit code."""

from __future__ import annotations

import gc
import os
import sys
from io import StringIO

from dibs.base.cheap import BinaryIO, Mapping, Sequence, TextIO
from dibs.base.errors import DibsError, RequestFailed
from dibs.base.files import config_path
from dibs.base.terminal import harmless
from dibs.cli.framework.context import Call, Opener
from dibs.cli.framework.parse import UsageError, parse, spelled_out, split_command, wants
from dibs.cli.framework.registry import AGENT_SIGNS, ALIASES, family_of, load
from dibs.cli.framework.result import Answer, failure, yes
from dibs.cli.framework.spec import Command
from dibs.cli.signals import UnconfirmedClaims
from dibs.cli.text.words import Paint, paint_for, width_of
from dibs.client.settings import CONTEXT, Settings, connect_as, servers_at
from dibs.core.names import check_name
from dibs.wire.codes import INTERNAL, USAGE
from dibs.wire.documents import reply_for_error

INTERRUPTED = 130
_SANDBOXED = (
    "\n  A coding agent's sandbox may forbid it. The tools of its MCP server, dibs mcp, work: that runs outside of it."
)
_LOCALE = (
    "\n  A word of the command is not UTF-8. If it was typed right, set a locale of UTF-8, such as LC_ALL=C.UTF-8."
)
COMPLETE = "__complete"  # what the scripts of `dibs completion` call; in no list of commands


def entry() -> int:
    """Run the command of this process, for the `dibs` script."""
    gc.set_threshold(50_000)  # a short command, which makes 15,000 objects, never collects garbage; a long one does
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not lose the answer.
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # not yet replaced by anybody
    stdin = sys.stdin.buffer if sys.stdin is not None else None
    try:
        exit_code = run(sys.argv[1:], os.environ, sys.stdout, sys.stderr, stdin, is_last=True)
    except KeyboardInterrupt as interrupt:  # a `Stopped` has the exit code of its signal
        exit_code = getattr(interrupt, "exit_code", INTERRUPTED)
    if "threading" not in sys.modules:
        # Everything is written, flushed and closed. Shutting down the interpreter would take as long as the claim.
        os._exit(exit_code)
    return exit_code


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdout: TextIO | None,
    stderr: TextIO | None,
    stdin: BinaryIO | None,
    opener: Opener | None = None,
    *,
    is_last: bool = False,
) -> int:
    """Run one command and return its exit code. Raises only KeyboardInterrupt. `is_last`: the process ends with this
    command, and no signal after the answer was printed may change the exit code."""
    unconfirmed, paint = UnconfirmedClaims(), paint_for(stdout, env)
    try:
        try:
            if "-o" in argv:
                argv = spelled_out(argv)
            answer = _answer(argv, env, stdout, stderr, stdin, opener, paint, unconfirmed)
        except DibsError as error:
            answer = _of_error(error)
        except Exception as error:  # any other error becomes one clear line
            answer = _of_internal_error(error, env, stderr)
        as_json, quiet = wants(argv, "--json"), wants(argv, "--quiet", "-q")
        if answer.is_error and list(argv[:2]) == ["agent", "hook"]:
            # Whatever is wrong, it is not the agent's fault. Some harnesses take every other exit code for a refusal.
            answer.exit, as_json = 0, False
        elif answer.code == "upstream_unavailable":
            if not _is_work(argv):
                from dibs.client.connection import DO_NOT_BEGIN

                answer.text = answer.text.replace(DO_NOT_BEGIN, "Try again later.")
                answer.message = answer.message.replace(DO_NOT_BEGIN, "Try again later.")
            answer.text += _saved_address(argv, env)
            if any(env.get(sign) for sign in AGENT_SIGNS):
                answer.text += _SANDBOXED
        if answer.exit == USAGE and any(word.encode("utf-8", "replace").decode() != word for word in argv):
            answer.text += _LOCALE
        trouble = _print(answer, stdout, stderr, paint, as_json=as_json, quiet=quiet)
        exit_code = answer.exit
        if trouble is not None and (unconfirmed or not isinstance(trouble, BrokenPipeError)):
            exit_code = exit_code or INTERNAL
            done = "the claim was given back" if unconfirmed else "the command itself was carried out"
            _write(stderr, f"dibs: the answer could not be written ({trouble.strerror}); {done}.")
        unconfirmed.settle(is_known=exit_code != INTERNAL)
    except KeyboardInterrupt:
        unconfirmed.give_back()
        raise
    finally:
        if not is_last:
            unconfirmed.close()
    return exit_code


def _saved_address(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Say where the address comes from, if it is a saved one: nothing on the screen names it."""
    from dibs.client.contexts import own_context

    given = {flag: _value_of(argv, f"--{flag}") for flag in ("url", "context")}
    try:
        if split_command(argv)[0] == "login":
            return ""  # its address was typed
        settings = Settings(given, env)
        context = settings.context
        if context is None and settings.source("url", "DIBS_URL") == config_path(env):
            context = own_context(env, settings.config)
        is_login = context is not None and any(settings.login(each) for each in servers_at(context.url))
    except DibsError:
        return ""
    if context is None:
        return ""
    # Without a token, both of these write the same.
    how = f"as `{context.name}`" if is_login or context.path != config_path(env) else "or `dibs config set url`"
    # Whoever wants to work must not be led away from the store that others share.
    is_chosen = settings.named_context[1] in ("--context", CONTEXT)
    end = "" if is_chosen or _is_work(argv) else "; `dibs logout` ends that"
    return f"\nThe address was saved by `dibs login` {how}{end}."


def _value_of(argv: Sequence[str], flag: str) -> str | None:
    """The value of a flag, from words that may not have been understood."""
    for word, after in zip(argv, (*argv[1:], None), strict=True):
        if word == "--":
            return None
        if word.partition("=")[0] == flag:
            return word.partition("=")[2] if "=" in word else after
    return None


def _is_work(argv: Sequence[str]) -> bool:
    """Tell whether somebody would begin to work after this command."""
    first = next((word for word in argv if not word.startswith("-")), "")
    from dibs.cli.framework.rank import PARTS, first_words

    harmless_words = {word for part in PARTS if not part.begins_work for word in first_words(part.commands)}
    return not {first, *ALIASES.get(first, ())} & harmless_words


def _answer(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdout: TextIO | None,
    stderr: TextIO | None,
    stdin: BinaryIO | None,
    opener: Opener | None,
    paint: Paint,
    unconfirmed: UnconfirmedClaims,
) -> Answer:
    if argv and argv[0] == COMPLETE:
        return _completed(list(argv[1:]), env, opener)
    special = _help_or_version(argv, stdout, env)
    if special is not None:
        return special
    name, words = split_command(argv)
    if name is None:
        from dibs.cli.framework.help import overview

        raise UsageError(f"Which command?\n\n{overview(width_of(stderr, env))}")
    command, call = load(name), None
    try:
        values = parse(command, words)
        call = Call(
            name,
            values,
            env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            paint=paint,
            opener=opener or connect_as,
            unconfirmed=unconfirmed,
        )
        return _in_repository(command, call)
    except UsageError as error:
        error.command = error.command or name
        raise
    finally:
        if call is not None:
            call.close()


def _completed(words: list[str], env: Mapping[str, str], opener: Opener | None) -> Answer:
    from dibs.cli.commands.completion import complete

    def ask(command: list[str]) -> str:
        printed = StringIO()
        return printed.getvalue() if run(command, env, printed, None, None, opener) == 0 else ""

    return complete(words, env, ask)


def _in_repository(command: Command, call: Call) -> Answer:
    """Run the command. Its `path:` and `repo:` names belong to the namespace of the repository around."""
    if _may_be_spelled_otherwise(call):
        from dibs.cli.framework.job_names import use_one_names

        use_one_names(call)
    jobs = call.values.get("job")
    for name in jobs if isinstance(jobs, list) else () if jobs is None else (jobs,):
        check_name(name)  # all of them, before something is done with the first
    try:
        answer = command.run(call)
    except RequestFailed as error:
        answer = failure(error.reply)
    if call.repository_namespace is None:
        return answer
    from dibs.cli.framework.job_names import shown

    return shown(call, answer)


def _may_be_spelled_otherwise(call: Call) -> bool:
    """Looks only at the command line, so that others import nothing for this. `issue-1842` has one spelling."""
    if call.command == "hook run" or call.values.get("staged") or call.command.startswith("claim-"):
        return True
    given = call.values.get("job") or call.values.get("name")
    is_new = call.command in ("claim", "run", "hold")  # what is named may not be there yet
    for name in given if isinstance(given, list) else (given,):
        if isinstance(name, str) and ("/" in name or "#" in name or name[:1] == "!" or name[:1].isupper()):
            return True
        if isinstance(name, str) and not is_new and ("." in name or os.path.lexists(name)):  # perhaps a file
            return True
    words = [word for value in call.values.values() for word in (value if isinstance(value, list) else [value])]
    return any(isinstance(word, str) and word.startswith(("path:", "repo:", "branch:")) for word in words)


def _help_or_version(argv: Sequence[str], stdout: TextIO | None, env: Mapping[str, str]) -> Answer | None:
    topic = argv[1] if len(argv) == 2 and argv[0] == "help" else None
    if argv and argv[0] == "help":
        argv = [*argv[1:], "--help"]
    asks_version = wants(argv, "--version", "-V") or list(argv[:1]) == ["version"]
    if not asks_version and not wants(argv, "--help", "-h"):
        return None
    from dibs.cli.framework.help import family_page, group_page, is_group, overview, page

    if asks_version:
        from dibs._version import __version__

        if "--verbose" in argv:
            from dibs.cli.commands.doctor import build_facts

            facts = build_facts(env)
            text = "\n".join(f"{what:<19}{said}" for what, said in facts.items())
            return yes(facts, text, quiet=text)
        from dibs.base import build_commit

        commit = build_commit(env)
        said = f"dibs {__version__}" if commit is None else f"dibs {__version__} ({commit})"
        return yes({"version": __version__, "commit": commit}, said, quiet=__version__)
    width = width_of(stdout, env)
    if topic is not None and is_group(topic):
        text = group_page(topic, width)
    else:
        name, _ = split_command(argv)
        if name is None:
            text = overview(width)
        elif commands := family_of(name):
            text = family_page(name, commands, width)
        else:
            text = page(load(name), width)
    return yes({"help": text}, text, quiet=text)


def _of_error(error: DibsError) -> Answer:
    if not isinstance(error, UsageError):
        return failure(reply_for_error(error))
    text, usage, exit_code = error.details, "", USAGE
    if error.command and (family := family_of(error.command)):
        # For the first word of a family, the exit code for usage errors is that of its first command.
        exit_code = load(family[0]).usage_exit
    elif error.command:
        from dibs.cli.framework.help import short_usage, usage_line

        command = load(error.command)
        usage, exit_code = usage_line(command), command.usage_exit
        text += f"\nUsage: {short_usage(command)}  (more: dibs {error.command} --help)"
    details = {"command": error.command, "usage": usage}
    return Answer(exit_code, details, text, code=error.code, message=error.details.partition("\n")[0], is_error=True)


def _of_internal_error(error: Exception, env: Mapping[str, str], stderr: TextIO | None) -> Answer:
    if env.get("DIBS_DEBUG") == "1" and stderr is not None:
        import traceback

        stderr.write(harmless("".join(traceback.format_exception(error))))
    what = " ".join(f"{type(error).__name__}: {error}".split())
    text = f"dibs failed in a way it should not ({what}). DIBS_DEBUG=1 shows where; please report it."
    return Answer(INTERNAL, {"exception": type(error).__name__}, text, code="internal_error", is_error=True)


def _print(
    answer: Answer, stdout: TextIO | None, stderr: TextIO | None, paint: Paint, *, as_json: bool, quiet: bool
) -> OSError | None:
    """Print the JSON document, or the escaped text: errors to stderr. Returns the error if it could not be written."""
    if answer.is_said:
        return None
    if as_json:
        from json import JSONEncoder

        # ASCII, because a lone surrogate from argv must not break the document that quotes it.
        text, stream = JSONEncoder().encode(answer.envelope()), stdout
    elif answer.is_error:
        text, stream = paint.shown(answer.lead + answer.text), stderr
    else:
        text, stream = paint.shown(answer.quiet if quiet else answer.text), stdout
    return _write(stream, text)


def _write(stream: TextIO | None, text: str) -> OSError | None:
    if stream is None or not text:
        return None
    try:
        stream.write(text + "\n")
        stream.flush()
    except OSError as error:  # the reader may be gone, as with `dibs list | head -1`
        try:  # Python flushes the stream again at exit, and would print an error: discard what is left
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        except OSError:
            pass
        return error
    return None
