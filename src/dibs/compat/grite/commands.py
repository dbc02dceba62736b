"""lock acquire, renew, release, status, gc: the arguments of grite's commands. `compat/grite/locks.py` runs them."""

from __future__ import annotations

from dibs.cli.framework.flags import LEASE, SESSION
from dibs.cli.framework.spec import DATA_DIR, LOCK_ACTOR, MAYBE, NO_DAEMON, Argument, Command, Option
from dibs.compat.grite.documents import BAD_USAGE
from dibs.compat.grite.locks import acquire, as_grite, gc, release, renew, status

_ARGUMENT = Argument(
    "RESOURCE",
    "what to lock, such as issue:8057324b, path:src/auth.rs, repo:deploy",
    takes=MAYBE,
    completes="job",
)
_RESOURCE = Option("--resource", "the resource, instead of the argument", value="RESOURCE", key="resource_flag")
_TTL = Option("--ttl", "how long it lasts: 30m, 2h, or seconds (default 5m)", value="TIME")
_WHO = (LOCK_ACTOR, DATA_DIR, SESSION)
_EXITS = (
    (1, "internal error"),
    (2, "invalid flag, TTL or resource"),
    (5, "the store cannot be reached, or is busy"),
    (6, "the server cannot be reached"),
)
_CONFLICT = (4, "conflict: somebody else holds it")
_REMEMBERS = (
    "dibs remembers the lease for the shell that ran the command, or for the --actor you name. So renew and "
    "release need no lease id. Two shells are two holders."
)

COMMANDS = {
    "lock acquire": Command(
        "lock acquire",
        as_grite(acquire),
        about=f"{_REMEMBERS} Acquiring a lock that you hold gives the same lease, never a shorter one.",
        arguments=(_ARGUMENT,),
        options=(_RESOURCE, _TTL, *_WHO, NO_DAEMON),
        examples=(
            ("for half an hour", "dibs lock acquire --resource issue:8057324b --ttl 30m"),
            (
                "as an agent whose commands each run in a shell of their own",
                "dibs lock acquire issue:1 --actor agent-7",
            ),
        ),
        exits=((0, "it is yours"), _CONFLICT, *_EXITS),
        usage_exit=BAD_USAGE,
    ),
    "lock renew": Command(
        "lock renew",
        as_grite(renew),
        about="An expired lock cannot be renewed: acquire it again.",
        arguments=(_ARGUMENT,),
        options=(
            _RESOURCE,
            Option("--ttl", "a new TTL (default: the present one)", value="TIME"),
            LEASE,
            *_WHO,
            NO_DAEMON,
        ),
        examples=(("half way through", "dibs lock renew --resource repo:migration --ttl 2h"),),
        exits=((0, "still yours"), (4, "conflict: somebody else holds it, or it has expired"), *_EXITS),
        usage_exit=BAD_USAGE,
    ),
    "lock release": Command(
        "lock release",
        as_grite(release),
        about="Succeeds if nobody holds the resource. A lock that somebody else holds is left alone.",
        arguments=(_ARGUMENT,),
        options=(_RESOURCE, LEASE, *_WHO, NO_DAEMON),
        examples=(
            ("when done", "dibs lock release --resource issue:8057324b"),
            ("whatever happens", "trap 'dibs lock release --resource \"issue:$ID\"' EXIT"),
        ),
        exits=((0, "nobody holds it now"), _CONFLICT, *_EXITS),
        usage_exit=BAD_USAGE,
    ),
    "lock status": Command(
        "lock status",
        as_grite(status),
        about="Expired locks are not listed: they can be acquired.",
        arguments=(_ARGUMENT,),
        options=(_RESOURCE, LOCK_ACTOR, DATA_DIR, NO_DAEMON),
        examples=(("everything", "dibs lock status --json"),),
        exits=((0, "the list, which may be empty"), *_EXITS),
        usage_exit=BAD_USAGE,
    ),
    "lock gc": Command(
        "lock gc",
        as_grite(gc),
        about=(
            "You never need this: an expired lock is free before it is deleted. A server deletes expired locks by "
            "itself, so with a server this command removes nothing and says so."
        ),
        options=(LOCK_ACTOR, DATA_DIR, NO_DAEMON),
        examples=(("now and then", "dibs lock gc"),),
        exits=((0, "swept"), *_EXITS),
        usage_exit=BAD_USAGE,
    ),
}
