"""Runs the `gh` program, which has the user's credentials and talks to GitHub.

All calls of one object share one deadline. A request is written to gh's standard input as JSON, so no text is taken
for a flag or a file. gh gets no terminal to ask on.
"""

from __future__ import annotations

from dibs.agents.tracker.port import NoAnswer
from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable
from dibs.base.git_program import run_program
from dibs.base.jsontext import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dibs.base.git_program import GitResult

    Document = dict[str, Any]

_LOGIN = 4  # gh's exit code where it has no credentials
_WORDS_SHOWN_MAX = 300
_QUIET = {"GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1"}
# They would make gh print colours, or requests with their headers.
_LEFT_OUT = ("GH_FORCE_TTY", "CLICOLOR_FORCE", "GH_DEBUG", "DEBUG")


class GhProgram:
    def __init__(self, env: Mapping[str, str], timeout_ms: int) -> None:
        self._env = {key: value for key, value in env.items() if key not in _LEFT_OUT} | _QUIET
        self._timeout_ms = timeout_ms
        self._until_ms = steady_ms() + timeout_ms

    def graphql(self, host: str, query: str, variables: Document | None = None) -> Document:
        """What a query gives: `data`, and `errors` where only a part of it was answered."""
        asked = {"query": query, "variables": variables or {}}
        done = self._run(["graphql"], host, asked)
        document = self._document(done)
        if not isinstance(document.get("data"), dict):
            raise NoAnswer(_first_error(document) or self._why(done))
        return document

    def rest(self, host: str, method: str, path: str, body: Document | None = None) -> None:
        """A request that changes something. Raises NoAnswer unless it succeeded."""
        done = self._run(["--method", method, path], host, body)
        if done.code:
            raise NoAnswer(self._why(done))

    def _run(self, words: list[str], host: str, body: Document | None) -> GitResult:
        left_ms = self._until_ms - steady_ms()
        if left_ms <= 0:
            raise NoAnswer(f"gh gave no answer within {self._timeout_ms / 1000:g} s")
        given = b"" if body is None else encode(body).encode("utf-8", "backslashreplace")
        sends = [] if body is None else ["--input", "-"]
        try:
            done = run_program(
                ["gh", "api", "--hostname", host, *words, *sends],
                env=self._env,
                folder=None,
                given=given,
                timeout_ms=left_ms,
                install="GitHub's gh",
            )
        except StoreUnavailable as error:
            raise NoAnswer(error.details.rstrip(".")) from None
        if done.timed_out:
            raise NoAnswer(f"gh gave no answer within {self._timeout_ms / 1000:g} s")
        if done.code == _LOGIN:
            raise NoAnswer(f"gh is not logged in to {host}: run `gh auth login`")
        return done

    def _document(self, done: GitResult) -> Document:
        try:
            document = decode(done.out.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise NoAnswer(self._why(done)) from None
        if not isinstance(document, dict):
            raise NoAnswer(self._why(done))
        return document

    def _why(self, done: GitResult) -> str:
        if not done.code:
            return "gh printed something that is no answer"
        return f"gh: {done.words.removeprefix('gh: ')}"[:_WORDS_SHOWN_MAX].rstrip(".")


def _first_error(document: Document) -> str:
    errors = document.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    told = first.get("message") if isinstance(first, dict) else None
    return f"GitHub: {' '.join(told.split())}"[:_WORDS_SHOWN_MAX].rstrip(".") if isinstance(told, str) else ""
