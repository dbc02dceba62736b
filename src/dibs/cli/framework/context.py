"""One run of one command: its flags, settings, transport and streams. This is all that a command gets."""

from __future__ import annotations

from dibs.base.cheap import Any, BinaryIO, Callable, Mapping, TextIO
from dibs.base.errors import InvalidInput
from dibs.cli.framework.result import body_of
from dibs.cli.signals import GIVE_BACK_MS, UnconfirmedClaims
from dibs.cli.text.words import Paint, plain, width_of
from dibs.client.flow import drive
from dibs.client.pending import PendingClaim
from dibs.client.settings import OF_A_CLAIM, Settings, connect_as, servers_at
from dibs.client.transport import Ask, Transport
from dibs.wire.documents import Reply

# Commands about a claim that was made before: they go where it was made.
_OF_A_CLAIM = ("heartbeat", "once", "release", "transfer", "session keep", "session end", "lock renew", "lock release")

Document = dict[str, Any]
Opener = Callable[[Settings], Transport]


def say_notices(transport: object, stderr: TextIO | None) -> None:
    """Print what a store noticed about its surroundings, such as a network file system."""
    notices: list[str] = getattr(transport, "notices", list)()
    if notices and stderr is not None:
        stderr.write("".join([f"dibs: {plain(notice)}\n" for notice in notices]))


class Call:
    """`values` are those of flags and arguments. Long-running commands write to `stdout` and `stderr`."""

    def __init__(
        self,
        command: str,
        values: Mapping[str, Any],
        env: Mapping[str, str],
        *,
        stdin: BinaryIO | None,
        stdout: TextIO | None,
        stderr: TextIO | None = None,
        paint: Paint,
        opener: Opener = connect_as,
        unconfirmed: UnconfirmedClaims | None = None,
    ) -> None:
        self.command = command
        self.values = {**values, OF_A_CLAIM: True} if command in _OF_A_CLAIM else values
        self.env = env
        self.settings = Settings(self.values, env)
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.paint = paint
        self._opener = opener
        self._transport: Transport | None = None
        self._stdin_used = False
        self.unconfirmed = unconfirmed
        self.repository_namespace: str | None = None
        self.written: dict[str, str] = {}  # names that were spelled otherwise, and how
        self._is_away = False  # the servers, and that was said
        self.waited_ms = 0  # of --wait, until an actor's session could be opened
        self.watched: Any = None  # the process during whose life the claim is renewed (--keep, --keep-for)
        self.typed_leases: dict[str, str] = {}  # of several jobs that were claimed in this terminal, by name
        self.wanted: list[Document] = []  # jobs of the caller's session for which somebody began to wait

    @property
    def width(self) -> int | None:
        """The width that a table may have; None in a pipe, and with --wide."""
        return None if self.values.get("wide") else width_of(self.stdout, self.env)

    @property
    def is_typed(self) -> bool:
        """Tell whether somebody types at a terminal and reads the answer there."""
        ends = (self.stdin, self.stdout)
        return all(end is not None and end.isatty() for end in ends)

    def said(self, key: str) -> str | None:
        """The namespace from a flag or a variable. The user's config file comes last, after the repository's."""
        return self.settings.pick(key, f"DIBS_{key.upper()}")

    def fall_back_on(self, defaults: Mapping[str, str]) -> None:
        """Use a repository's settings (`url`, `namespace`) where neither a flag nor a variable is given."""
        missing = {key: value for key, value in defaults.items() if self.said(key) is None}
        self.settings = self.settings.within(missing)
        self.repository_namespace = missing.get("namespace")

    @property
    def stated_namespace(self) -> str | None:
        """The namespace that was named explicitly, for all job names; not that of a repository."""
        return None if self.repository_namespace else self.settings.namespace

    def transport(self) -> Transport:
        if self._transport is None:
            self._transport = self._opener(self.settings)
        return self._transport

    def another_transport(self, **other: str | None) -> Transport:
        """A second transport with another `namespace` (None: the default), `timeout` or `url`. The caller closes it."""
        _ = self.settings.url  # asked once: the machine's service may come or go
        settings = self.settings.but_with(other)
        if "url" not in other:
            settings.servers = self.settings.servers  # what is known of them
        return self._opener(settings)

    def keeping_transport(self, timeout_ms: int) -> Transport:
        """The transport for renewals: to a server another one with a shorter timeout. Either may be closed."""
        if not servers_at(self.settings.url):
            return self.transport()
        return self.another_transport(timeout=f"{min(timeout_ms, self.settings.timeout_ms)}ms")

    def ask(self, verb: str, name: str = "", document: Document | None = None) -> Reply:
        return self.transport().ask(Ask(verb, name, document))

    def body(self, verb: str, name: str = "", document: Document | None = None) -> Document:
        """The document of the reply. Raises RequestFailed if it says no, which the command answers with."""
        return body_of(self.ask(verb, name, document), verb)

    def claim(self, verb: str, name: str, document: Document) -> Reply:
        """Claim without waiting. If the command is interrupted, the claim is given back."""
        pending = PendingClaim(verb, name, document, own_key=self.values.get("request_key") is None)
        self.begin_claim(pending)
        return drive(self.transport(), pending.ask_once())

    def begin_claim(self, pending: PendingClaim) -> None:
        """From now on, until the answer is printed, an interrupt gives the claim back."""
        if self.unconfirmed is not None and self.values.get("request_key") is None:
            self.unconfirmed.begin(pending, lambda: self.keeping_transport(GIVE_BACK_MS))

    def say(self, lines: list[str], documents: list[Document] | None = None) -> bool:
        """Print lines to stdout at once; with --json the documents, if there are some. False if nobody reads them."""
        if self.stdout is None:
            return False
        if documents is not None and self.values.get("json"):
            from json import JSONEncoder

            lines = [JSONEncoder().encode(document) for document in documents]
        try:
            self.stdout.write("".join([f"{self.paint.shown(line)}\n" for line in lines]))
            self.stdout.flush()
        except OSError:
            return False
        return True

    def pass_on(self, part: bytes) -> None:
        """Write what a command printed to our own stdout, as it is; with --json to stderr, beside the document."""
        stream = self.stderr if self.values.get("json") else self.stdout
        if stream is None:
            return
        stream.flush()
        raw = getattr(stream, "buffer", None)
        if raw is None:
            stream.write(part.decode("utf-8", "replace"))
        else:
            raw.write(part)
            raw.flush()

    def complain(self, text: str) -> None:
        """Print a line to stderr, in addition to the answer. Not with --quiet."""
        if self.stderr is None or self.values.get("quiet"):
            return
        try:
            self.stderr.write(self.paint.shown(f"dibs: {text}\n"))
            self.stderr.flush()
        except OSError:  # nobody reads it
            pass

    def complain_away(self, why: str | None, what: str) -> None:
        """Say once that no server answers, and that the command goes on; None: one answers again."""
        if why is not None and not self._is_away:
            from dibs.client.event_reader import why_away

            self.complain(f"{why_away(why)} {what} goes on as soon as a server answers.")
        self._is_away = why is not None

    def abandon_transport(self) -> None:
        """Leave the transport as it is: another thread still waits in it, and the process is about to end."""
        self._transport = None

    def close_transport(self) -> None:
        """Close the transport. The next question opens another one, by the settings of then."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def close(self) -> None:
        if self._transport is not None:
            say_notices(self._transport, self.stderr)
        self.close_transport()
        if self.wanted and self.stderr is not None:
            from dibs.cli.text.claim import waited_for

            lines = [line for job in self.wanted for line in waited_for(job)]
            self.stderr.write("".join([f"dibs: {line}\n" for line in lines]))

    def text(self, key: str, bytes_max: int) -> str | None:
        """The text of a flag; `-` reads it from standard input."""
        value: str | None = self.values.get(key)
        return value if value != "-" else self.read_input(f"--{key.replace('_', '-')} -", bytes_max)

    def read_input(self, what: str, bytes_max: int) -> str:
        """Standard input as text, without the newline at its end. `what` reads it, as a refusal says."""
        if self.stdin is None:
            raise InvalidInput(f"{what} reads standard input, which is closed.")
        if self._stdin_used:
            raise InvalidInput(f"{what}: another flag has read standard input already. Only one flag can read it.")
        self._stdin_used = True
        content = self.stdin.read(bytes_max + 2)
        if len(content.removesuffix(b"\n")) > bytes_max:
            raise InvalidInput(f"{what}: standard input is longer than the {bytes_max} bytes allowed.")
        try:
            return content.decode().removesuffix("\n")
        except UnicodeDecodeError:
            raise InvalidInput(f"{what}: standard input is not UTF-8 text.") from None
