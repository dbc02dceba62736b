"""The verbs of `rlock`, asked of dibs itself, without a gateway. `client.py` asks a gateway.

The caller is a session, a run, or a process without an identity. Each has its own proof."""

from __future__ import annotations

from dibs.agents.shell_actor import Entry, RememberedLeases
from dibs.base.cheap import Mapping
from dibs.base.clock import wall_ms
from dibs.base.errors import DibsError, InvalidInput
from dibs.base.files import state_folder
from dibs.base.generators import run_generator
from dibs.base.ids import is_id, new_id
from dibs.base.jsontext import Document
from dibs.cli.framework.context import Opener
from dibs.cli.framework.result import failure
from dibs.cli.signals import UnconfirmedClaims
from dibs.client.flow import drive
from dibs.client.pending import PendingClaim
from dibs.client.settings import Settings, connect_as
from dibs.client.transport import Ask
from dibs.compat.action_llama.protocol import UNREACHABLE, Asking, Rejected, Said, acquired, heartbeat, refusal, release
from dibs.core.limits import RLOCK_TTL_MS_DEFAULT
from dibs.core.names import is_resource
from dibs.system.session_mark import is_gone, lineage
from dibs.wire.documents import Reply

# Callers without an identity: no session, no secret, no lease id.
#
# A user who locks something in a shell expects to release it in the same shell, by its name alone. Nothing identifies
# the user: two agents on one machine may share the user id, the terminal, the process group, even the process that
# starts their commands. So what is remembered never makes a claim succeed: every claim is a new claim, and exclusion
# holds even if the memory is wrong. Only releases and heartbeats use it, because both name a lock that was acquired
# before. If it is lost, the lease expires by its TTL.
#
# Descendants of the calling process get the lease. After the calling process has ended, descendants of its parent get
# it. The calling process is usually a script's shell. The parent is the agent, if each command has a new shell.

BE_SOMEBODY = (
    "Run inside `dibs session run`, or set SHUTDOWN_SECRET to what `dibs run-secret create -q --holder NAME` prints."
)


def _namespace_around(key: str, env: Mapping[str, str]) -> dict[str, str]:
    """A resource belongs to the repository's namespace, as in the other commands."""
    if env.get("DIBS_NAMESPACE") or not is_resource(key):
        return {}
    from dibs.base.checkout import current_folder
    from dibs.client.naming import namespace_around

    folder = current_folder()
    found = None if folder is None else namespace_around(env, folder)
    return {} if found is None else {"namespace": found}


class DirectRequest:
    """One verb for one key, asked of dibs. The answer is theirs. An interrupt gives back what is `unconfirmed`."""

    def __init__(self, verb: str, key: str, ttl_seconds: int | None, unconfirmed: UnconfirmedClaims) -> None:
        self._verb = verb
        self._key = key
        self._ttl_seconds = ttl_seconds
        self._unconfirmed = unconfirmed

    def answer(self, env: Mapping[str, str], opener: Opener | None, pid: int) -> Said:
        # A run brings its own namespace.
        self._settings = Settings({} if env.get("SHUTDOWN_SECRET") else _namespace_around(self._key, env), env)
        self._transport = transport = (opener or connect_as)(self._settings)
        try:
            if env.get("DIBS_SESSION"):
                return self.in_session()
            return self.in_run(env["SHUTDOWN_SECRET"]) if env.get("SHUTDOWN_SECRET") else self.as_nobody(pid)
        finally:
            transport.close()

    def in_session(self) -> Said:
        session = self._settings.env["DIBS_SESSION"].strip().lower()
        if not is_id(session):
            raise Rejected(
                "invalid session", "DIBS_SESSION is not the id of a session: `dibs session run` sets it.", 403
            )
        owner = self._settings.pick("owner", "DIBS_OWNER") or ""  # else it is the session's
        return self._with_proof({"session_id": session}, owner)

    def in_run(self, secret: str) -> Said:
        from dibs.client.embedded import EmbeddedTransport
        from dibs.compat.action_llama.runs import as_run

        assert isinstance(self._transport, EmbeddedTransport)  # a server is asked through its gateway instead
        try:
            # A release first tests its proof with a heartbeat. The history must not show that heartbeat.
            found = as_run(self._transport, secret, audited=self._verb != "release")
        except DibsError as error:
            return UNREACHABLE, refusal(error.code, error.details)
        if found is None:
            reason = "No run of this store has the secret in SHUTDOWN_SECRET. dibs run-secret create makes one."
            raise Rejected("invalid secret", reason, 403)
        run, self._transport = found
        return self._with_proof({"session_id": run.session}, run.holder)

    def _with_proof(self, proof: Document, owner: str) -> Said:
        if self._verb == "release":
            return self._follow(release(self._key, proof))
        if self._verb == "heartbeat":
            return self._follow(heartbeat(self._key, proof, self._ttl_seconds))
        return acquired(self._key, self._claim(owner, proof))

    def as_nobody(self, pid: int) -> Said:
        """Ask as the calling process, which has no identity: its lease is remembered for the release alone."""
        settings, marks = self._settings, lineage(pid)
        if not marks:
            raise InvalidInput(f"This system does not show which process calls. {BE_SOMEBODY}")
        # Apart from what `dibs lock` remembers: that may be acquired again.
        memory = RememberedLeases(settings.env, f"rlock {settings.url or ''}", settings.namespace, wall_ms())
        entry = next((each for each in memory.entries(self._key) if _may_use(each, marks)), None)
        if self._verb == "acquire":
            return self._claim_as_nobody(memory, marks, pid, has_one=entry is not None)
        proof = None if entry is None else {"lease_id": entry["lease_id"]}
        if self._verb == "release":
            said = self._follow(release(self._key, proof))
            if entry is not None and said[0] != UNREACHABLE:
                memory.forget(self._key, entry["request_key"])
            return said
        said = self._follow(heartbeat(self._key, proof, self._ttl_seconds))
        if entry is not None and said[0] == 200:
            memory.remember(self._key, {**entry, "until_ms": wall_ms()})
        return said

    def _claim_as_nobody(self, memory: RememberedLeases, marks: list[str], pid: int, *, has_one: bool) -> Said:
        owner = self._settings.pick("owner", "DIBS_OWNER") or f"{self._settings.owner} (pid {pid})"
        reply = self._claim(owner, {})
        status, document = acquired(self._key, reply)
        if status == 200 and reply.body is not None:
            lease_id = reply.body["lease_id"]
            # Without a parent, only the caller itself and its descendants count. Memory lasts longer than any lease.
            entry = {"marks": marks[:1], "parent": marks[1] if len(marks) > 1 else "", "until_ms": wall_ms()}
            if memory.remember(self._key, {**entry, "lease_id": lease_id, "request_key": lease_id}) is None:
                self._transport.ask(Ask("release", self._key, {"lease_id": lease_id}))
                folder = state_folder(self._settings.env)
                why = f"{folder} cannot be written, so it could not be released by name. {BE_SOMEBODY}"
                return 500, refusal("not noted", why)
        elif document.get("holder") == owner and has_one:
            document["reason"] += (
                ": it was locked from here. rlock-heartbeat keeps it and runlock releases it. "
                f"To lock it more than once: {BE_SOMEBODY}"
            )
        return status, document

    def _claim(self, owner: str, proof: Document) -> Reply:
        """Claim the key. An interrupt releases the claim, if it was granted."""
        ttl_seconds = self._ttl_seconds or RLOCK_TTL_MS_DEFAULT // 1000
        document = {"owner": owner, "ttl_seconds": ttl_seconds, "request_key": new_id(), **proof}
        pending = PendingClaim("acquire", self._key, document, own_key=True)
        self._unconfirmed.begin(pending, lambda: self._transport)
        return _known(drive(self._transport, pending.ask_once()))

    def _follow(self, asking: Asking) -> Said:
        return run_generator(asking, lambda question: _known(self._transport.ask(Ask(*question))))


def _may_use(entry: Entry, marks: list[str]) -> bool:
    """Tell whether a process with these ancestors may use a remembered lease."""
    [caller] = entry["marks"]
    return caller in marks or (entry["parent"] in marks and is_gone(caller))


def _known(reply: Reply) -> Reply:
    """Tell who cannot be reached from who answers "later": only a real answer has a request id."""
    if reply.status == 401:
        reply.body = {**(reply.body or {}), "details": failure(reply).text}
    if reply.status == 503 and "request_id" not in (reply.body or {}):
        reply.status = UNREACHABLE
    return reply
