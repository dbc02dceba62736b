"""login, logout, config: which server is used, with which token, and why. All of it is in files of the user's."""

from __future__ import annotations

import os
from contextlib import contextmanager

from dibs.base.cheap import Iterator, Mapping
from dibs.base.errors import InvalidInput
from dibs.base.files import config_path, logins_path, replace_file
from dibs.base.redact import without_secrets
from dibs.base.terminal import plain
from dibs.cli.commands.token import changing
from dibs.cli.framework.actor_session import ActorSession, actor_named, agent_here, session_named
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import session_id
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, no, yes
from dibs.cli.framework.spec import MAYBE, Argument, Command, Option
from dibs.client.embedded import default_store_url
from dibs.client.http import HttpTransport
from dibs.client.servers import Servers
from dibs.client.setting_sources import USER_KEYS
from dibs.client.settings import (
    TOKEN_FILE_BYTES_MAX,
    Settings,
    place_of,
    read_logins,
    read_settings,
    read_token,
    servers_at,
    token_in,
    user_config,
)
from dibs.client.transport import Ask
from dibs.client.urls import ServerAddress
from dibs.core.durations import format_duration, parse_duration
from dibs.core.names import check_namespace
from dibs.wire.codes import NO
from dibs.wire.documents import Reply

_VARIABLES = {"url": "DIBS_URL", "namespace": "DIBS_NAMESPACE", "owner": "DIBS_OWNER", "token_file": "DIBS_TOKEN_FILE"}
_HEAD = "# Written by `dibs login`. Each token is sent to its own server only."


def in_effect(call: Call) -> list[tuple[str, str, str]]:
    settings = call.settings
    url = settings.url
    source = settings.source("url", "DIBS_URL")
    if settings.named_url is None and url is not None:
        source = "this machine's service, for all its users"
    where = f"{default_store_url()}, your own" if url is None else without_secrets(url)
    rows = [("store", where, source)]
    for address in servers_at(url):
        token = settings.token_source(address)
        of = f" of {address.url}" if "," in (url or "") else ""
        is_saved = token is not None and token == logins_path(call.env)
        rows.append(
            (f"token{of}", "none" if token is None else "saved by dibs login" if is_saved else "set", token or "-")
        )
    namespace = settings.namespace or "default, or the one that the token is bound to"
    rows.append(("namespace", namespace, settings.source("namespace", "DIBS_NAMESPACE")))
    rows += _who(call)
    rows.append(("timeout", format_duration(settings.timeout_ms), settings.source("timeout", "")))
    return rows


def _who(call: Call) -> list[tuple[str, str, str]]:
    """The owner that others see of a claim made here without a flag, and what proves the claim."""
    settings, source = call.settings, call.settings.source("owner", "DIBS_OWNER")
    is_named = settings.pick("owner", "DIBS_OWNER") is not None
    if session_id(call) is not None:
        owner = (settings.owner, source) if is_named else ("the session's", "DIBS_SESSION")
        return [("owner", *owner), ("identity", "a session", "DIBS_SESSION")]
    name = actor_named(call)
    if name is not None:
        owner = (session_named(call, name).owner(), "DIBS_ACTOR" if settings.stated_owner is None else source)
        return [("owner", *owner), ("identity", f"actor {name}", "DIBS_ACTOR")]
    agent = agent_here(call.env, claims=False)
    if agent is not None:
        owner = (ActorSession.of_agent(call, agent).owner(), source if is_named else "its variables")
        return [("owner", *owner), ("identity", "the session of the coding agent around", "its variables")]
    return [("owner", settings.owner, source), ("identity", "none: a claim prints a lease id", "the default")]


def show(call: Call) -> Answer:
    rows, path = in_effect(call), config_path(call.env)
    document: Document = {
        "settings": [{"name": name, "value": value, "source": source} for name, value, source in rows],
        "file": path,
        "logins": list(call.settings.logins),
    }
    lines = [f"{name:<11}{plain(value)} {call.paint.faint(f'({source})')}" for name, value, source in rows]
    if document["logins"]:
        lines.append(f"Tokens are saved for: {', '.join(map(plain, document['logins']))}")
    return yes(document, "\n".join(lines))


def get(call: Call) -> Answer:
    key, settings = call.values["key"], call.settings
    value = settings.pick(key, _VARIABLES.get(key, "")) or settings.config.get(key)
    if value is None:
        text = f"{key} is not set."
        return no(NO, {"key": key, "value": None}, text, code="not_set", message=text)
    shown = plain(without_secrets(value))
    return yes(
        {"key": key, "value": shown, "source": settings.source(key, _VARIABLES.get(key, ""))}, shown, quiet=shown
    )


def set_(call: Call) -> Answer:
    key, value = call.values["key"], call.values["value"]
    if not value.strip():
        raise UsageError(f"VALUE is empty. To remove the setting: dibs config unset {key}")
    if key == "namespace":
        check_namespace(value)
    elif key == "url":
        servers_at(value)
    elif key == "timeout":
        parse_duration(value, "time-out")
    elif key == "token_file" and not value.startswith(("/", "~/")):
        raise UsageError("token_file must be an absolute path, or begin with ~/.")
    _change(call, key, value)
    return yes({"key": key, "value": value}, f"{key} is saved in {plain(config_path(call.env))}.{_beaten(call, key)}")


def unset(call: Call) -> Answer:
    key = call.values["key"]
    was = call.settings.config.get(key)
    if was is not None:
        _change(call, key, None)
    return yes({"key": key, "was": was}, f"{key} was {'removed' if was is not None else 'not set'}.")


def _beaten(call: Call, key: str) -> str:
    variable = _VARIABLES.get(key, "")
    return f" But {variable} is set in this shell, and wins." if call.env.get(variable) else ""


def _change(call: Call, key: str, value: str | None) -> None:
    """Change one setting of the user's file, and no other line of it. None removes it."""
    import tomllib
    from json import dumps

    with changing_settings(config_path(call.env)) as path:
        before = user_config(call.env)
        lines = (read_settings(path) or b"").decode().splitlines()
        kept = [line for line in lines if line.partition("=")[0].strip() != key]
        if value is not None:
            kept.append(f"{key} = {dumps(value, ensure_ascii=False)}")
            before[key] = value
        else:
            before.pop(key, None)
        text = "\n".join([*kept, ""])
        try:
            found = tomllib.loads(text)
        except ValueError:
            found = {}
        if {**found, "token_file": ""} != {**before, "token_file": ""}:  # in the file it may begin with ~
            raise InvalidInput(f"{path} is written in a way that dibs cannot change. Edit {key} in it by hand.")
        replace_file(path, text)


def _save(call: Call, changed: Mapping[str, tuple[str, bool] | None]) -> None:
    """Change the saved tokens. None removes one."""
    with changing_settings(logins_path(call.env)) as path:
        logins = {**read_logins(call.env), **changed}
        lines = [f"{origin} {each[0]}{' proves' if each[1] else ''}" for origin, each in logins.items() if each]
        replace_file(path, "\n".join([_HEAD, *lines, ""]))


@contextmanager
def changing_settings(path: str | None) -> Iterator[str]:
    """The file itself, behind links, while no other command changes it."""
    if path is None:
        raise InvalidInput("There is no HOME in which settings can be saved. Set HOME, or use flags and variables.")
    path = os.path.realpath(path)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{os.path.dirname(path)} cannot be made ({error.strerror}).") from None
    with changing(path):
        yield path


def login(call: Call) -> Answer:
    url = call.values["server"]
    addresses = servers_at(url)
    if not addresses:
        raise InvalidInput(
            f"{plain(without_secrets(url))} is a store, which needs no login. Run: dibs config set url URL"
        )
    token = _given_token(call)
    reply = _asked(call, addresses, token)
    if token is None and reply.status == 401 and call.stdin is not None and call.stdin.isatty():
        from getpass import getpass

        token = getpass(f"Token for {url}: ", call.stderr).strip() or None
        reply = _asked(call, addresses, token) if token else reply
    if is_failure(reply):
        answer = failure(reply)
        cause = answer.message.partition(" Set DIBS_TOKEN")[0].partition(" `dibs doctor`")[0]
        answer.text = answer.message = f"{cause} Nothing was saved."
        return answer
    if token is not None:
        _save(call, {each.origin: (token, each.own_token == token) for each in addresses})
    _change(call, "url", url)
    caller = reply.body or {}
    where = f", namespace {caller['namespace']}" if caller.get("namespace") else ""
    who = plain(f"to {url} as {caller['principal']} ({caller['role']}{where}).")
    now = f"Commands use it from now on; `dibs logout` ends that.{_beaten(call, 'url')}"
    lines = [f"{call.paint.good('Logged in')} {who} {now}"]
    if any(each.scheme == "http" and not each.is_local for each in addresses):
        lines.append("The token goes over the network unencrypted: use https:// where you can.")
    return yes({"url": url, **caller, "saved": token is not None}, "\n".join(lines))


def _given_token(call: Call) -> str | None:
    """The token of --token-file, else the one on standard input, unless that is a terminal."""
    path = call.values.get("token_file")
    if path not in (None, "-"):
        return read_token(path)
    if call.stdin is None or (call.stdin.isatty() and path is None):
        return None
    return token_in(call.stdin.read(TOKEN_FILE_BYTES_MAX))


def _asked(call: Call, addresses: tuple[ServerAddress, ...], token: str | None) -> Reply:
    """Ask the servers about the token, or else about the one that is used for them already. Returns the first refusal,
    or the last answer. A server that proves that it knows the token has it as its `own_token` then."""
    reply = None
    for address in addresses:
        address.token = token or call.settings.token(address)
        if token is not None and address.is_local and address.scheme == "http":
            address.own_token = token
        reply = _whoami(call, address)
        if is_failure(reply) and address.own_token is not None and address.own_token == token:
            address.own_token = None  # behind a tunnel, for instance, no server can prove it
            reply = _whoami(call, address)
        if is_failure(reply):
            break
    assert reply is not None  # there is at least one server
    return reply


def _whoami(call: Call, address: ServerAddress) -> Reply:
    return HttpTransport(Servers((address,)), timeout_ms=call.settings.timeout_ms).ask(Ask("whoami"))


def logout(call: Call) -> Answer:
    given, url = call.values.get("server"), call.settings.config.get("url")
    addresses = servers_at(given or url)
    if not addresses:
        raise InvalidInput("You are not logged in to a server. `dibs config` says what is used.")
    gone = [each.origin for each in addresses if each.origin in call.settings.logins]
    if gone:
        _save(call, dict.fromkeys(gone))
    is_default = {each.origin for each in servers_at(url)} == {each.origin for each in addresses}
    if is_default:
        _change(call, "url", None)
    if not gone and not is_default:
        text = f"No token is saved for {plain(given)}."
        return no(NO, {"url": given, "forgotten": []}, text, code="not_found", message=text)
    now = place_of(Settings({}, call.env))
    text = f"{call.paint.good('Logged out')} of {plain(given or url)}. Commands use {now} now."
    more = " The token itself is still valid; an admin revokes it." if gone else ""
    return yes({"url": given or url, "forgotten": gone}, text + more)


_KEY = Argument("KEY", "the setting", choices=USER_KEYS)
COMMANDS = {
    "login": Command(
        login,
        Argument("SERVER", "http://, https:// or unix://; several of one store with commas between"),
        Option("--token-file FILE", "the file with the token; - is standard input", completes="file"),
        about=(
            "Asks the server whose token it is, then saves it in a file that only you can read, and the "
            "server as `url` in your config.toml. The token comes from --token-file, from standard input, "
            "or is asked for; one that is saved already is used, so you change between servers without it. "
            "Flags and variables win over what is saved."
        ),
        examples=(
            ("dibs login https://dibs.example.org", "at a terminal, which asks for the token"),
            ('echo "$TOKEN" | dibs login https://dibs.example.org', "in a script"),
        ),
        exits=(
            (0, "logged in"),
            (69, "the server cannot be reached; nothing was saved"),
            (77, "the token is refused"),
        ),
    ),
    "logout": Command(
        logout,
        Argument("SERVER", "which (default: the one that is used)", takes=MAYBE),
        about="Deletes the saved token, and `url` in your config.toml if that is this server.",
        examples=(("dibs logout", "the one that is used"),),
        exits=(
            (0, "logged out"),
            (1, "no token is saved for it"),
            (64, "you are not logged in"),
        ),
    ),
    "config show": Command(
        show,
        about="Asks no server. `dibs config` alone is the same; `dibs doctor` also checks whether it works.",
        examples=(("dibs config show", "what applies here"),),
        exits=((0, "shown"),),
    ),
    "config get": Command(
        get,
        _KEY,
        examples=(("dibs config get url", "which server"),),
        exits=(
            (0, "printed"),
            (1, "it is not set"),
        ),
    ),
    "config set": Command(
        set_,
        _KEY,
        Argument("VALUE", "its value"),
        about="Other lines of the file stay as they are. Flags and variables win over it.",
        examples=(
            ("dibs config set url sqlite:///var/lib/team/dibs.db", "another store"),
            ("dibs config set owner ann", "your name"),
        ),
        exits=(
            (0, "saved"),
            (64, "not a value for it, or the file cannot be written"),
        ),
    ),
    "config unset": Command(
        unset,
        _KEY,
        examples=(("dibs config unset url", "your own store again"),),
        exits=((0, "it is not set any more"),),
    ),
}
