"""login, logout, config: which server is used, with which token, and why. All of it is in files of the user's.

`dibs login` saves a server as a context (`client/contexts.py`). The first one is the `url` of config.toml, as it was
before there could be several; each further one, and each with a namespace, has a file. A change of them has a lock for
all of it, so that of two commands one comes after the other, with all that it writes.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from dibs.base.cheap import Iterable, Iterator, Mapping
from dibs.base.errors import InvalidInput, StoreUnavailable
from dibs.base.files import config_path, contexts_folder, lock_file, logins_path, read_settings, replace_file
from dibs.base.redact import without_secrets
from dibs.base.terminal import did_you_mean, plain
from dibs.cli.commands.token import changing
from dibs.cli.framework.actor_session import ActorSession, actor_named, agent_here, session_named
from dibs.cli.framework.context import Call, Document
from dibs.cli.framework.flags import session_id
from dibs.cli.framework.parse import UsageError
from dibs.cli.framework.result import Answer, failure, is_failure, no, yes
from dibs.cli.framework.spec import MAYBE, Argument, Command, Option
from dibs.cli.text.words import shell_line
from dibs.client.contexts import (
    Context,
    check_context,
    context_called,
    context_names,
    context_path,
    name_of,
    own_context,
    saved_contexts,
)
from dibs.client.embedded import check_store_url, default_store_url
from dibs.client.http import HttpTransport
from dibs.client.servers import Servers
from dibs.client.setting_sources import SETTINGS, USER_KEYS
from dibs.client.settings import (
    CONTEXT,
    TOKEN_FILE_BYTES_MAX,
    Logins,
    Settings,
    logins_text,
    place_of,
    read_logins,
    read_token,
    servers_at,
    token_in,
    user_config,
)
from dibs.client.transport import Ask
from dibs.client.urls import ServerAddress
from dibs.core.durations import format_duration, parse_duration
from dibs.core.limits import SETTINGS_BYTES_MAX
from dibs.core.names import check_namespace
from dibs.wire.codes import NO
from dibs.wire.documents import Reply
from dibs.wire.sentences import few

_VARIABLES = {key: SETTINGS[key].variable for key in USER_KEYS}
_HOMELESS = "There is no HOME in which settings can be saved. Set HOME, or use flags and variables."
_LOCK_MS_MAX = 10_000
_HEAD = "# Written by `dibs login`. Each token is sent to its own server only.\n"


def in_effect(call: Call) -> list[tuple[str, str, str]]:
    settings = call.settings
    url = settings.url
    source = settings.source("url", "DIBS_URL")
    if settings.named_url is None and url is not None:
        source = "this machine's service, for all its users"
    where = f"{default_store_url()}, your own" if url is None else without_secrets(url)
    rows = [("store", where, source)]
    if (context := settings.context) is not None:
        rows.insert(0, ("context", context.name, settings.named_context[1]))
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
        "logins": list(dict.fromkeys(origin for origin, _ in call.settings.logins)),
        "contexts": context_names(call.env, call.settings.config),
    }
    lines = [f"{name:<11}{plain(value)} {call.paint.faint(f'({source})')}" for name, value, source in rows]
    if document["logins"]:
        lines.append(f"Tokens are saved for: {', '.join(map(plain, document['logins']))}")
    if len(document["contexts"]) > 1:
        lines.append(f"Contexts: {', '.join(document['contexts'])}. `dibs config use NAME` changes between them.")
    return yes(document, "\n".join(lines))


def contexts(call: Call) -> Answer:
    """Lists them also where the one that is used cannot be."""
    settings = call.settings
    name, _ = settings.named_context
    logins, config = settings.logins, settings.config
    found: list[Document] = []
    for each, context in saved_contexts(call.env, config):
        document: Document = {"name": each, "used": each == name, "url": None, "namespace": None}
        if isinstance(context, Context):
            # The context of config.toml is used if nothing else is named.
            document["used"] |= name is None and context.path == settings.source("url", "DIBS_URL")
            document |= {"url": without_secrets(context.url), "namespace": context.namespace}
            origins = [address.origin for address in _servers(context.url)]
            document["token_saved"] = any((origin, of) in logins for origin in origins for of in (each, ""))
        else:
            document["wrong"] = context.details.partition("\n")[0]
        found.append(document)
    text = "\n".join(_context_lines(call, found)) or "No server is saved. `dibs login URL` saves one."
    return yes({"contexts": found}, text, quiet="\n".join([each["name"] for each in found]))


def _context_lines(call: Call, found: list[Document]) -> list[str]:
    width = max([len(each["name"]) for each in found], default=0)
    lines = []
    for each in found:
        said = plain(each.get("wrong") or each["url"])
        if each["namespace"] is not None:
            said += f", namespace {plain(each['namespace'])}"
        if each.get("token_saved") is False:
            said += call.paint.faint(" (no token is saved)")
        lines.append(f"{'*' if each['used'] else ' '} {each['name']:<{width}}  {said}")
    return lines


def use(call: Call) -> Answer:
    return _used(call, call.values["name"])


def _used(call: Call, name: str) -> Answer:
    context = context_called(name, call.env, call.settings.config)
    if context is None:
        names = context_names(call.env, call.settings.config)
        text = f"There is no context {plain(name)!r}.{did_you_mean(name, names)} `dibs config contexts` lists them."
        return no(NO, {"context": name, "contexts": names}, text, code="not_found", message=text)
    with _changing_contexts(call):
        _choose(call, context)
    shown = without_secrets(context.url)
    where = shown if context.namespace is None else f"{shown}, namespace {context.namespace}"
    document = {"context": name, "url": shown, "namespace": context.namespace}
    return yes(document, f"Commands use {plain(where)} from now on.{_beaten(call, 'url', 'context')}")


def _choose(call: Call, context: Context) -> None:
    """Use this context from now on. The context of config.toml is used if no other is named."""
    _change(call, {"context": None if context.path == config_path(call.env) else context.name})


def get(call: Call) -> Answer:
    key, settings = call.values["key"], call.settings
    value = settings.pick(key, _VARIABLES[key]) or settings.config.get(key)
    if key == "url":
        value = settings.named_url
    elif key == "namespace":
        value = settings.namespace
    if value is None:
        text = f"{key} is not set."
        return no(NO, {"key": key, "value": None}, text, code="not_set", message=text)
    shown = plain(without_secrets(value))
    return yes({"key": key, "value": shown, "source": settings.source(key, _VARIABLES[key])}, shown, quiet=shown)


def set_(call: Call) -> Answer:
    key, value = call.values["key"], call.values["value"]
    if not value.strip():
        raise UsageError(f"VALUE is empty. To remove the setting: dibs config unset {key}")
    if key == "context":
        return _used(call, value)
    if key == "namespace":
        check_namespace(value)
    elif key == "url" and not servers_at(value):
        check_store_url(value)
    elif key == "timeout":
        parse_duration(value, "time-out")
    elif key == "token_file" and not value.startswith(("/", "~/")):
        raise UsageError("token_file must be an absolute path, or begin with ~/.")
    changes: dict[str, str | None] = {key: value}
    more = _beaten(call, key)
    if key == "url" and (name := call.settings.config.get("context")) is not None:
        changes["context"] = None  # what was set last is used
        more += f" The context {plain(name)} is not used any more."
    elif key == "namespace" and (context := call.settings.context) is not None and context.namespace is not None:
        more += f" But the context {context.name} has a namespace of its own, which wins."
    _change(call, changes)
    return yes({"key": key, "value": value}, f"{key} is saved in {plain(config_path(call.env))}.{more}")


def unset(call: Call) -> Answer:
    key = call.values["key"]
    was = call.settings.config.get(key)
    if was is not None:
        _change(call, {key: None})
    return yes({"key": key, "was": was}, f"{key} was {'removed' if was is not None else 'not set'}.")


def _beaten(call: Call, *keys: str) -> str:
    named = [_VARIABLES[key] for key in keys if call.env.get(_VARIABLES[key])]
    are = "is set in this shell, and wins" if len(named) == 1 else "are set in this shell, and win"
    return f" But {' and '.join(named)} {are}." if named else ""


def _change(call: Call, changes: Mapping[str, str | None]) -> None:
    """Change some settings of the user's file, and no other line of it. None removes one."""
    import tomllib
    from json import dumps

    with changing_settings(config_path(call.env)) as path:
        before = user_config(call.env)
        lines = (read_settings(path, SETTINGS_BYTES_MAX) or b"").decode().splitlines()
        kept = [line for line in lines if line.partition("=")[0].strip() not in changes]
        after = {key: value for key, value in before.items() if key not in changes}
        for key, value in changes.items():
            if value is not None:
                kept.append(f"{key} = {dumps(value, ensure_ascii=False)}")
                after[key] = value
        if after == before:
            return
        text = "\n".join([*kept, ""])
        try:
            found = tomllib.loads(text)
        except ValueError:
            found = {}
        if {**found, "token_file": ""} != {**after, "token_file": ""}:  # in the file it may begin with ~
            keys = " and ".join(changes)
            raise InvalidInput(f"{path} is written in a way that dibs cannot change. Edit {keys} in it by hand.")
        replace_file(path, text)


def _save(call: Call, gone: Iterable[tuple[str, str]], added: Logins) -> None:
    """Change the saved tokens."""
    with changing_settings(logins_path(call.env)) as path:
        logins = read_logins(call.env)
        for key in gone:
            logins.pop(key, None)
        replace_file(path, _HEAD + logins_text({**logins, **added}))


def _tokens_of(name: str, logins: Logins, own: Context | None) -> list[tuple[str, str]]:
    """The saved tokens of a context. The tokens of config.toml's `url` are saved without the name of a context."""
    origins = {each.origin for each in _servers(own.url)} if own is not None and own.name == name else set()
    return [(origin, of) for origin, of in logins if of == name or (of == "" and origin in origins)]


def _servers(url: str) -> tuple[ServerAddress, ...]:
    try:
        return servers_at(url)
    except InvalidInput:
        return ()  # somebody wrote it by hand


@contextmanager
def _changing_contexts(call: Call) -> Iterator[None]:
    """Keep other commands that change contexts out. The lock is on a file of its own: the folders of the files that are
    changed have theirs, and may be one folder."""
    folder = contexts_folder(call.env)
    if folder is None:
        raise InvalidInput(_HOMELESS)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not lock_file(lock, _LOCK_MS_MAX):
                raise StoreUnavailable(
                    f"Another dibs command has {folder} locked and stands still. Continue or end it."
                )
            yield
        finally:
            os.close(lock)
    except OSError as error:
        where = error.filename2 or error.filename or folder
        raise InvalidInput(f"{where} cannot be written ({error.strerror}).") from None


@contextmanager
def changing_settings(path: str | None) -> Iterator[str]:
    """The file itself, behind links, while no other command changes it."""
    if path is None:
        raise InvalidInput(_HOMELESS)
    path = os.path.realpath(path)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{os.path.dirname(path)} cannot be made ({error.strerror}).") from None
    with changing(path):
        yield path


def login(call: Call) -> Answer:
    url, named = call.values["server"], call.values.get("context")
    addresses = servers_at(url)
    if not addresses:
        raise InvalidInput(
            f"{plain(without_secrets(url))} is a store, which needs no login. Run: dibs config set url URL"
        )
    namespace: str | None = call.values.get("namespace")
    if namespace is not None:
        check_namespace(namespace)
    name = _name_for(call, url) if named is None else check_context(named)
    token = _given_token(call)
    reply = _asked(call, addresses, token, name)
    if token is None and reply.status == 401 and call.stdin is not None and call.stdin.isatty():
        from getpass import getpass

        token = getpass(f"Token for {url}: ", call.stderr).strip() or None
        reply = _asked(call, addresses, token, name) if token else reply
    if is_failure(reply):
        answer = failure(reply)
        cause = answer.message.partition(" Set DIBS_TOKEN")[0].partition(" `dibs doctor`")[0]
        answer.text = answer.message = f"{cause} Nothing was saved."
        return answer
    before = _save_context(call, Context(name, url, namespace, ""), addresses, token)
    caller = reply.body or {}
    where = f", namespace {caller['namespace']}" if caller.get("namespace") else ""
    who = plain(f"to {url} as {caller['principal']} ({caller['role']}{where}).")
    now = f"Commands use it from now on; `dibs logout` ends that.{_beaten(call, 'url', 'context')}"
    lines = [f"{call.paint.good('Logged in')} {who} {now}"]
    if before is not None:
        lines.append(f"The context {name} was {plain(without_secrets(before))} before.")
    elif len(context_names(call.env, user_config(call.env))) > 1:
        lines.append(f"It is saved as {name}. `dibs config contexts` lists all, `dibs config use NAME` changes.")
    if any(each.scheme == "http" and not each.is_local for each in addresses):
        lines.append("The token goes over the network unencrypted: use https:// where you can.")
    return yes({"url": url, **caller, "saved": token is not None, "context": name}, "\n".join(lines))


def _name_for(call: Call, url: str) -> str:
    """The name for a server that the user did not name: the one under which it is saved already, else one made from its
    address."""
    config = call.settings.config
    names = [name for name, each in saved_contexts(call.env, config) if isinstance(each, Context) and each.url == url]
    if config.get("context") in names:
        return config["context"]
    return names[0] if len(names) == 1 else name_of(url)


def _save_context(call: Call, made: Context, addresses: tuple[ServerAddress, ...], token: str | None) -> str | None:
    """Save a server, its tokens first, and use it from now on. Returns the URL that its name had before, if that was
    another one."""
    with _changing_contexts(call):
        config = user_config(call.env)
        own = own_context(call.env, config)
        try:
            before = context_called(made.name, call.env, config)
        except InvalidInput:
            before = None  # its file cannot be read, and is written anew
        is_replaced = own is not None and own.name == made.name
        has_file = os.path.lexists(context_path(call.env, made.name) or "")
        # The `url` of config.toml has no name but that of its address, and no namespace of its own.
        fits = made.namespace is None and made.name == name_of(made.url) and not has_file
        is_own = fits and (is_replaced or "url" not in config)
        logins = read_logins(call.env)
        gone = _tokens_of(made.name, logins, own)
        added: Logins = {}
        for each in addresses:
            # Without a new token the saved one was used. The context gets a copy, which `logout` of another one keeps.
            login = _saved_login(call, each, made.name) if token is None else (token, each.own_token == token)
            if login is not None:
                added[each.origin, "" if is_own else made.name] = login
        if gone or added:
            _save(call, gone, added)
        if is_own:
            _change(call, {"url": made.url, "context": None})
        else:
            _write_context(call, made)
            _change(call, {"context": made.name} | ({"url": None} if is_replaced else {}))
    return None if before is None or before.url == made.url else before.url


def _write_context(call: Call, made: Context) -> None:
    from json import dumps

    path = context_path(call.env, made.name)
    assert path is not None  # there is a folder, which is locked
    said = {"url": made.url} if made.namespace is None else {"url": made.url, "namespace": made.namespace}
    replace_file(path, "".join([f"{key} = {dumps(value, ensure_ascii=False)}\n" for key, value in said.items()]))


def _saved_login(call: Call, address: ServerAddress, name: str) -> tuple[str, bool] | None:
    """The saved token of a server: that of the context, else the one that is used with the address alone."""
    return read_logins(call.env).get((address.origin, name)) or _by_address(call, address).login(address)


def _by_address(call: Call, address: ServerAddress) -> Settings:
    return Settings({"url": address.url}, call.env)


def _given_token(call: Call) -> str | None:
    """The token of --token-file, else the one on standard input, unless that is a terminal."""
    path = call.values.get("token_file")
    if path not in (None, "-"):
        return read_token(path)
    if call.stdin is None or (call.stdin.isatty() and path is None):
        return None
    return token_in(call.stdin.read(TOKEN_FILE_BYTES_MAX))


def _asked(call: Call, addresses: tuple[ServerAddress, ...], token: str | None, name: str) -> Reply:
    """Ask the servers about the token, or else about the one that is used for them already. Returns the first refusal,
    or the last answer. A server that proves that it knows the token has it as its `own_token` then."""
    reply = None
    for address in addresses:
        address.token = token or _known_token(call, address, name)
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


def _known_token(call: Call, address: ServerAddress, name: str) -> str | None:
    """The token that is used for a server already."""
    known = call.settings.logins.get((address.origin, name))
    if known is None:
        return _by_address(call, address).token(address)
    address.own_token = known[0] if known[1] else None
    return known[0]


def _whoami(call: Call, address: ServerAddress) -> Reply:
    return HttpTransport(Servers((address,)), timeout_ms=call.settings.timeout_ms).ask(Ask("whoami"))


def logout(call: Call) -> Answer:
    config = call.settings.config
    own = own_context(call.env, config)
    given: str | None = call.values.get("server")
    if given is not None and call.values.get("context") is not None:
        raise UsageError("SERVER and --context both say of which. Give one of them.")
    if given is None:
        given = call.settings.pick("context", CONTEXT) or config.get("context")
    addresses = servers_at(given) if given is not None and "/" in given else ()
    if given is None and own is not None:
        shown, names = own.url, [own.name]
    elif addresses:
        shown, names = str(given), _contexts_at(call, addresses)
    elif given is not None and "/" not in given:
        shown, names = given, [check_context(given)]
    else:
        raise InvalidInput(f"You are not logged in to a server. {_left_behind(call)}")
    with _changing_contexts(call):
        logins = read_logins(call.env)
        gone = [key for name in names for key in _tokens_of(name, logins, own)]
        gone += [(each.origin, "") for each in addresses if (each.origin, "") in logins]
        if gone:
            _save(call, gone, {})
        removed = [name for name in names if _removed(call, name, own)]
    if not gone and not removed:
        text = f"Nothing is saved for {plain(shown)}."
        return no(NO, {"url": shown, "forgotten": []}, text, code="not_found", message=text)
    try:
        now = f"Commands use {plain(place_of(Settings({}, call.env)))} now."
    except InvalidInput as error:  # DIBS_CONTEXT of this shell names it still
        now = error.details.partition("\n")[0]
    text = f"{call.paint.good('Logged out')} of {plain(shown)}. {now}"
    more = " The token itself is still valid; an admin revokes it." if gone else ""
    forgotten = list(dict.fromkeys(origin for origin, _ in gone))
    return yes({"url": shown, "forgotten": forgotten, "contexts": removed}, text + more)


def _left_behind(call: Call) -> str:
    """Say in words what a login that was killed has left. Of that, a draft is removed: nobody would find it."""
    path = logins_path(call.env)
    if path is not None and os.path.isdir(os.path.dirname(path)):
        with changing_settings(path):
            pass
    origins = list(dict.fromkeys(origin for origin, _ in call.settings.logins))
    if not origins:
        return "`dibs config` says what is used."
    return f"A token is saved for {plain(few(origins))} all the same: {shell_line(('dibs', 'logout', origins[0]))}"


def _contexts_at(call: Call, addresses: tuple[ServerAddress, ...]) -> list[str]:
    """The contexts that are these servers, and no others."""
    origins = {each.origin for each in addresses}
    found = []
    for name, context in saved_contexts(call.env, call.settings.config):
        if isinstance(context, Context) and {each.origin for each in _servers(context.url)} == origins:
            found.append(name)
    return found


def _removed(call: Call, name: str, own: Context | None) -> bool:
    """Remove the file of a context, and the choice of it. Returns False if there was neither."""
    changes: dict[str, None] = {}
    if call.settings.config.get("context") == name:
        changes["context"] = None
    path = context_path(call.env, name)
    has_file = path is not None and os.path.lexists(path)
    if path is not None and has_file:
        os.unlink(path)
    elif own is not None and own.name == name:
        changes["url"] = None
    if changes:
        _change(call, changes)
    return bool(changes) or has_file


_KEY = Argument("KEY", "the setting", choices=USER_KEYS)
COMMANDS = {
    "login": Command(
        login,
        Argument("SERVER", "http://, https:// or unix://; several of one store with commas between"),
        Option("--token-file FILE", "the file with the token; - is standard input", completes="file"),
        about=(
            "Asks the server whose token it is, then saves both in files that only you can read, as a context: "
            "a saved server with a name, which is made of its address, or is that of --context. --namespace is "
            "saved with it. The token comes from --token-file, from standard input, or is asked for; one that is "
            "saved already is used. `dibs config use` changes between servers. Flags and variables win over what is "
            "saved."
        ),
        examples=(
            ("dibs login https://dibs.example.org", "at a terminal, which asks for the token"),
            ('echo "$TOKEN" | dibs login https://dibs.example.org', "in a script"),
            ("dibs login https://dibs.example.org --context prod", "under a name of yours"),
        ),
        exits=(
            (0, "logged in"),
            (69, "the server cannot be reached; nothing was saved"),
            (77, "the token is refused"),
        ),
    ),
    "logout": Command(
        logout,
        Argument("SERVER", "its context or URL (default: the one that is used)", completes="context", takes=MAYBE),
        about="Deletes the saved tokens of a context, and the context; of a URL those of all contexts with it.",
        examples=(("dibs logout", "the one that is used"), ("dibs logout prod", "another")),
        exits=(
            (0, "logged out"),
            (1, "nothing is saved for it"),
            (64, "you are not logged in"),
        ),
    ),
    "config show": Command(
        show,
        about="Asks no server. `dibs config` alone is the same; `dibs doctor` also checks whether it works.",
        examples=(("dibs config show", "what applies here"),),
        exits=((0, "shown"),),
    ),
    "config contexts": Command(
        contexts,
        about="`dibs login` saves a server as a context. The one with a * is used. Asks no server.",
        examples=(("dibs config contexts", "the saved servers"),),
        exits=((0, "listed"),),
    ),
    "config use": Command(
        use,
        Argument("NAME", "of a context", completes="context"),
        about="The same as `dibs config set context NAME`. --context or DIBS_CONTEXT is for one command or shell.",
        examples=(("dibs config use prod", "for all commands from now on"),),
        exits=(
            (0, "it is used from now on"),
            (1, "there is no such context"),
        ),
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
        examples=(
            ("dibs config unset url", "your own store again"),
            ("dibs config unset context", "what `url` says again, or your own store"),
        ),
        exits=((0, "it is not set any more"),),
    ),
}
