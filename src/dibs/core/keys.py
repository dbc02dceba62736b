"""The keys that records are kept under. Which class lives under which key is `dibs.core.class_of`."""

from __future__ import annotations

META_KEY = "meta"
PULSE_PREFIX = "pulse/"
LOCK_PREFIX = "lock/"
SESSION_PREFIX = "session/"
TREE_PREFIX = "tree/"
CREDENTIAL_PREFIX = "credential/"
REGISTER_KEY = "credentials"
USAGE_PREFIX = "usage/"
WEBHOOK_PREFIX = "webhook/"
WEBHOOK_REGISTER_KEY = "webhooks"
WEBHOOK_DUTY_KEY = "webhook-duty"


def pulse_key(server: str) -> str:
    return f"{PULSE_PREFIX}{server}"


def lock_key(ns: str, name: str) -> str:
    """A namespace contains no slash, so the name begins after the first slash that follows it."""
    return f"{LOCK_PREFIX}{ns}/{name}"


def ticket_key(ns: str, name: str, number: int) -> str:
    return f"{ticket_prefix(ns)}{number}/{name}"


def ticket_prefix(ns: str) -> str:
    return f"ticket/{ns}/"


def session_key(session_id: str) -> str:
    return f"{SESSION_PREFIX}{session_id}"


def tree_key(ns: str) -> str:
    return f"{TREE_PREFIX}{ns}"


def split_lock_key(key: str) -> tuple[str, str]:
    """Namespace and name of a lock's key."""
    _, ns, name = key.split("/", 2)
    return ns, name


def webhook_key(webhook_id: str) -> str:
    return f"{WEBHOOK_PREFIX}{webhook_id}"


def progress_key(webhook_id: str) -> str:
    return f"webhook-progress/{webhook_id}"


def dead_letters_key(webhook_id: str) -> str:
    return f"webhook-dead/{webhook_id}"
