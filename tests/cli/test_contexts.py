"""Contexts: several saved servers, which of them is used, and what is left when their files are broken."""

from __future__ import annotations

import os
import stat
import threading
from itertools import product
from typing import TYPE_CHECKING

import pytest

import dibs
from dibs.base.errors import InvalidInput
from dibs.client.contexts import check_context, name_of
from dibs.client.settings import Settings
from dibs.client.urls import server_address
from tests.cli.test_login import User, url_of
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.server.harness import Server

AWAY = "http://127.0.0.1:1"
ELSEWHERE = "http://127.0.0.1:2"


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("served")) as found:
        yield found


def put(user: User, name: str, text: str) -> Path:
    """A context that somebody wrote by hand."""
    folder = user.folder / "contexts"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def saved(user: User) -> dict[str, tuple[str, bool]]:
    return {each["name"]: (each["url"], each["used"]) for each in user("config", "contexts", "--json").data["contexts"]}


def settings(user: User, **given: str) -> Settings:
    return Settings(given, user.env)


def test_each_login_is_a_context_and_the_user_changes_between_them(user: User, server: Server) -> None:
    url = url_of(server)
    assert user("login", url, "--context", "prod", "--namespace", "team", stdin=TOKENS["agent"]).exit == 0
    again = user("login", url, "--context", "ops", stdin=TOKENS["admin"])
    assert "It is saved as ops." in again.out
    assert saved(user) == {"ops": (url, True), "prod": (url, False)}
    assert (settings(user).namespace, user.token(url)) == (None, TOKENS["admin"])
    used = user("config", "use", "prod")
    assert (used.exit, used.out) == (0, f"Commands use {url}, namespace team from now on.\n")
    assert (settings(user).namespace, user.token(url)) == ("team", TOKENS["agent"])
    assert user.in_effect("context") == ("prod", str(user.folder / "config.toml"))
    assert user.in_effect("namespace") == ("team", "context prod")
    assert user("claim", "in-prod").exit == 0
    assert user("list", "--quiet").out == "in-prod\n"
    assert user("list", "--quiet", "--context", "ops").out == ""  # another namespace
    text = user("config", "contexts").out
    assert text == f"  ops   {url}\n* prod  {url}, namespace team\n"
    for name in ("prod.toml", "ops.toml"):
        assert stat.S_IMODE(os.stat(user.folder / "contexts" / name).st_mode) == 0o600


def test_what_one_login_wrote_before_there_were_contexts_is_one(user: User, server: Server) -> None:
    url = url_of(server)
    user.folder.mkdir(parents=True)
    (user.folder / "config.toml").write_text(f'url = "{url}"\n', encoding="utf-8")
    (user.folder / "logins").write_text(f"{url} {TOKENS['agent']} proves\n", encoding="utf-8")
    own = name_of(url)
    assert own == f"127.0.0.1-{server.port}"
    assert saved(user) == {own: (url, True)}
    put(user, "other", f'url = "{AWAY}"\n')
    assert user("config", "use", "other").exit == 0
    assert saved(user) == {own: (url, False), "other": (AWAY, True)}
    assert user("list", "--context", own).exit == 0
    assert user("config", "use", own).exit == 0
    assert (user.folder / "config.toml").read_text(encoding="utf-8") == f'url = "{url}"\n'
    assert user("logout", own).exit == 0
    assert saved(user) == {"other": (AWAY, False)}
    assert TOKENS["agent"] not in (user.folder / "logins").read_text(encoding="utf-8")


def test_a_first_login_writes_what_an_older_dibs_reads(user: User, server: Server) -> None:
    url = url_of(server)
    assert user("login", url, stdin=TOKENS["agent"]).exit == 0
    assert (user.folder / "config.toml").read_text(encoding="utf-8") == f'url = "{url}"\n'
    lines = (user.folder / "logins").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [[url, TOKENS["agent"]]]
    assert list((user.folder / "contexts").glob("*.toml")) == []


# What each way to name a place says, strongest first. `repository` is a clone that the user trusts.
PLACES = {
    "flag url": "http://flag:1",
    "flag context": "http://flag-context:1",
    "variable url": "http://variable:1",
    "variable context": "http://variable-context:1",
    "repository": "http://repository:1",
    "saved context": "http://saved-context:1",
    "saved url": "http://saved:1",
}


@pytest.mark.parametrize("given", list(product((False, True), repeat=len(PLACES))))
def test_of_all_that_name_a_place_the_strongest_counts(user: User, given: tuple[bool, ...]) -> None:
    named = [way for way, is_given in zip(PLACES, given, strict=True) if is_given]
    values, repository, lines = {}, {}, []
    for way in named:
        author, _, what = way.partition(" ")
        name = f"{author}-context"
        if what == "context":
            put(user, name, f'url = "{PLACES[way]}"\nnamespace = "of-{author}"\n')
        if author == "repository":
            repository["url"] = PLACES[way]
        elif author == "saved":
            lines.append(f'{what} = "{PLACES[way] if what == "url" else name}"')
        elif author == "flag":
            values[what] = PLACES[way] if what == "url" else name
        else:
            user.env[f"DIBS_{what.upper()}"] = PLACES[way] if what == "url" else name
    user.folder.mkdir(parents=True, exist_ok=True)
    (user.folder / "config.toml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if {"flag url", "flag context"} <= set(named):
        ran = user("list", "--url", values["url"], "--context", values["context"])
        assert (ran.exit, "Give one of them." in ran.err) == (64, True)
        return
    found = Settings(values, user.env, repository)
    if "flag" not in "".join(named) and {"variable url", "variable context"} <= set(named):
        with pytest.raises(InvalidInput, match="DIBS_URL and DIBS_CONTEXT name two servers"):
            _ = found.url
        return
    strongest = named[0] if named else ""
    assert found.url == PLACES.get(strongest)
    # The namespace of a context counts where its server does.
    author, _, what = strongest.partition(" ")
    assert found.namespace == (f"of-{author}" if what == "context" else None)
    assert found.has_url_of_repository is (strongest == "repository")


def test_the_token_of_a_context_that_is_named_wins_over_the_token_of_the_shell(user: User) -> None:
    put(user, "prod", f'url = "{AWAY}"\n')
    (user.folder / "logins").write_text(f"{AWAY} of-prod context=prod\n{AWAY} of-ops context=ops\n", encoding="utf-8")
    address = server_address(AWAY)
    assert settings(user, context="prod").token(address) == "of-prod"
    user.env["DIBS_TOKEN"] = "of-the-shell"
    assert settings(user, context="prod").token(address) == "of-prod"
    assert settings(user, context="prod", token="given").token(address) == "of-the-shell"  # as the SDK passes it
    assert settings(user, url=AWAY).token(address) == "of-the-shell"
    (user.folder / "config.toml").write_text('context = "prod"\n', encoding="utf-8")
    assert settings(user).token(address) == "of-the-shell"  # a variable wins over a file
    assert settings(user).passed_context is None  # or a program inside would have another token
    user.env["DIBS_CONTEXT"] = "prod"
    assert settings(user).token(address) == "of-prod"
    assert settings(user).but_with({"url": AWAY}).token(address) != "of-ops"
    assert settings(user).passed_context == "prod"


def test_a_url_in_place_of_a_context_finds_the_token_if_there_is_no_doubt(user: User) -> None:
    user.folder.mkdir(parents=True)
    logins, address = user.folder / "logins", server_address(AWAY)
    logins.write_text(f"{AWAY} one context=a\n{ELSEWHERE} other context=b\n", encoding="utf-8")
    assert settings(user, url=AWAY).token(address) == "one"
    logins.write_text(f"{AWAY} one context=a\n{AWAY} two context=b\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="a token in several contexts: a, b"):
        settings(user, url=AWAY).token(address)
    put(user, "b", f'url = "{AWAY}"\n')
    (user.folder / "config.toml").write_text('context = "b"\n', encoding="utf-8")
    assert settings(user, url=AWAY).token(address) == "two"
    logins.write_text(f"{AWAY} one context=a\n{AWAY} two context=b\n{AWAY} all\n", encoding="utf-8")
    assert settings(user, context="b", url=AWAY).token(address) == "two"


@pytest.mark.fault("F-678")
def test_a_second_login_forgets_neither_server_nor_token_of_the_first(user: User, server: Server) -> None:
    assert user("login", url_of(server), stdin=TOKENS["agent"]).exit == 0
    assert user("login", url_of(server), "--context", "ops", stdin=TOKENS["admin"]).exit == 0
    first = name_of(url_of(server))
    assert list(saved(user)) == [first, "ops"]
    assert settings(user, context=first).token(server_address(url_of(server))) == TOKENS["agent"]
    assert user("logout").exit == 0
    assert saved(user) == {first: (url_of(server), True)}
    assert user.token(url_of(server)) == TOKENS["agent"]


@pytest.mark.parametrize(
    "name", ["a b", "a/b", "../x", "", ".hidden", "-x", "a\nb", "a\x1b[8m", "é", "x" * 101, "a=b", "~", "a\0b", "a:b"]
)
def test_a_name_that_cannot_be_a_file_is_refused_before_a_server_is_asked(user: User, name: str) -> None:
    for words in (
        ("login", AWAY, f"--context={name}"),
        ("list", f"--context={name}"),
        ("config", "use", "--", name),
        ("logout", "--", name),
    ):
        ran = user(*words, stdin="token")
        assert ran.exit == 64 or (words[0] == "logout" and ran.exit == 1), (words, ran.err)
        assert "\x1b" not in ran.err
        assert len(ran.err) < 600
    assert not (user.folder / "config.toml").exists()
    with pytest.raises(InvalidInput):
        check_context(name)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://dibs.example.org", "dibs.example.org"),
        ("https://DIBS.example.org:8443/team/a", "dibs.example.org-8443-team-a"),
        ("http://127.0.0.1:3427,http://127.0.0.1:3428", "127.0.0.1-3427"),
        ("http://[::1]:3427", "1--3427"),
        ("unix:///run/dibs/dibs.sock", "run-dibs-dibs.sock"),
        ("unix:///-", "server"),
        ("http://" + "h" * 300, "h" * 100),
    ],
)
def test_a_server_without_a_name_is_called_after_its_address(url: str, name: str) -> None:
    assert check_context(name_of(url)) == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no server"),
        ('url = "http://127.0.', "is not TOML"),
        ('namespace = "x"\n', "names no server"),
        ("url = 1\n", "must be a text"),
        ('url = "http://a:1"\ntoken = "secret"\n', "a context has no 'token'"),
        ('url = "\x01"\n', "is not TOML"),
        ('url = "' + "x" * 70_000 + '"', "more than the 65536 bytes"),
    ],
)
def test_a_context_that_is_cut_or_wrong_is_never_another_store(user: User, text: str, says: str) -> None:
    put(user, "prod", text)
    put(user, "good", f'url = "{AWAY}"\n')
    (user.folder / "config.toml").write_text('context = "prod"\n', encoding="utf-8")
    for words in (("claim", "x"), ("claim", "x", "--context", "prod"), ("config",)):
        ran = user(*words)
        assert (ran.exit, says in ran.err) == (64, True), ran.err
    listed = user("config", "contexts", "--json")
    assert [each["name"] for each in listed.data["contexts"]] == ["good", "prod"]
    assert says in listed.data["contexts"][1]["wrong"]
    assert user("doctor").exit == 69
    assert user("config", "use", "good").exit == 0
    assert "doctor" not in user("doctor", "--context", "good").err
    assert user("logout", "prod").exit == 0
    assert list(saved(user)) == ["good"]


@pytest.mark.fault("F-761")
def test_what_is_wrong_with_a_file_names_its_key_and_the_next_step(user: User, server: Server) -> None:
    """Not the argument of another command, as it would be called in a request."""
    put(user, "prod", "url = 5\n")
    said = user("list", "--context", "prod").err
    assert "prod.toml: 'url' must be a text" in said
    assert "`dibs login URL --context prod` writes it anew, `dibs logout prod` removes it." in said
    (user.folder / "config.toml").write_text("url = 5\n", encoding="utf-8")
    assert "config.toml: 'url' must be a text" in user("list").err
    (user.folder / "config.toml").unlink()
    assert user("login", url_of(server), "--context", "prod", stdin=TOKENS["agent"]).exit == 0
    (path := put(user, "folder", "")).unlink()
    path.mkdir()
    assert f"{path} cannot be written" in user("logout", "folder").err


def test_variables_that_win_over_what_is_saved_are_named_together(user: User) -> None:
    put(user, "prod", f'url = "{AWAY}"\n')
    user.env |= {"DIBS_URL": AWAY, "DIBS_CONTEXT": "prod"}  # as in `dibs run`
    assert "But DIBS_URL and DIBS_CONTEXT are set in this shell, and win." in user("config", "use", "prod").out


def test_a_context_that_vanished_is_said_to_be_gone_and_no_claim_goes_elsewhere(user: User) -> None:
    path = put(user, "prod", f'url = "{AWAY}"\n')
    assert user("config", "use", "prod").exit == 0
    path.unlink()
    ran = user("claim", "x")
    assert (ran.exit, "There is no context 'prod', which" in ran.err) == (64, True)
    assert not os.path.exists(os.path.join(user.env["HOME"], ".local", "state", "dibs", "dibs.db"))
    with pytest.raises(InvalidInput):
        _ = settings(user).url
    assert "There is no context" in user("doctor").out
    assert user("config", "contexts").exit == 0
    assert user("logout").exit == 0  # there is nothing left to go back to
    assert user("claim", "x").exit == 0
    user.env["DIBS_CONTEXT"] = "gone"
    assert "which DIBS_CONTEXT names" in user("list").err


def test_a_name_that_was_mistyped_is_answered_with_the_likely_one(user: User) -> None:
    put(user, "staging", f'url = "{AWAY}"\n')
    ran = user("config", "use", "stagin")
    assert (ran.exit, "Did you mean staging?" in ran.out) == (1, True)
    assert "You may mean: dibs config contexts" in user("contexts").err
    many = [put(user, f"c{each:05}", f'url = "{AWAY}"\n') for each in range(300)]
    assert len(user("list", "--context", "nope").err) < 500
    assert len(saved(user)) == len(many) + 1


def test_many_logins_at_once_leave_a_whole_of_each(user: User, server: Server) -> None:
    url, ran = url_of(server), []

    def login(each: int) -> None:
        name = ("same", "same", "a", "b")[each % 4]
        ran.append(user("login", url, "--context", name, stdin=TOKENS["agent" if each % 2 else "admin"]).exit)

    threads = [threading.Thread(target=login, args=(each,)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ran == [0] * 8
    assert list(saved(user)) == ["a", "b", "same"]
    for name in saved(user):
        assert settings(user, context=name).token(server_address(url)) in (TOKENS["agent"], TOKENS["admin"])
    assert len((user.folder / "logins").read_text(encoding="utf-8").splitlines()) == 4
    assert settings(user).config["context"] in saved(user)


def test_a_login_under_a_name_that_was_another_server_says_so_and_drops_its_token(user: User, server: Server) -> None:
    put(user, "prod", f'url = "{AWAY}"\n')
    (user.folder / "logins").write_text(f"{AWAY} old context=prod\n", encoding="utf-8")
    ran = user("login", url_of(server), "--context", "prod", stdin=TOKENS["agent"])
    assert f"The context prod was {AWAY} before." in ran.out
    assert "old" not in (user.folder / "logins").read_text(encoding="utf-8")
    assert saved(user) == {"prod": (url_of(server), True)}


def test_a_folder_of_contexts_that_is_a_link_to_that_of_the_settings_locks_nobody_out(user: User) -> None:
    user.folder.mkdir(parents=True)
    (user.folder / "contexts").symlink_to(user.folder)
    put(user, "prod", f'url = "{AWAY}"\n')
    assert user("config", "use", "prod").exit == 0
    assert settings(user).url == AWAY
    assert user("logout", "prod").exit == 0
    assert not (user.folder / "prod.toml").exists()


def test_a_logout_names_one_server_also_by_flag_or_variable(user: User) -> None:
    for name in ("a", "b", "c"):
        put(user, name, f'url = "{AWAY}"\n')
    (user.folder / "logins").write_text(f"{AWAY} one context=a\n{AWAY} two context=b\n", encoding="utf-8")
    assert user("logout", "a", "--context", "b").exit == 64
    assert user("logout", "--context", "a").exit == 0
    user.env["DIBS_CONTEXT"] = "b"
    ran = user("logout")
    assert (ran.exit, "There is no context 'b', which DIBS_CONTEXT names." in ran.out) == (0, True)
    del user.env["DIBS_CONTEXT"]
    assert list(saved(user)) == ["c"]
    assert settings(user).logins == {}


def test_the_last_that_was_set_is_used(user: User) -> None:
    put(user, "prod", f'url = "{AWAY}"\nnamespace = "team"\n')
    assert user("config", "set", "context", "prod").exit == 0
    assert "has a namespace of its own, which wins" in user("config", "set", "namespace", "mine").out
    ran = user("config", "set", "url", ELSEWHERE)
    assert "The context prod is not used any more." in ran.out
    assert (settings(user).url, settings(user).namespace) == (ELSEWHERE, "mine")
    assert user("config", "get", "url").out == f"{ELSEWHERE}\n"
    assert user("config", "use", "prod").exit == 0
    assert (user("config", "get", "url").out, user("config", "get", "namespace").out) == (f"{AWAY}\n", "team\n")
    user.env["DIBS_URL"] = ELSEWHERE
    assert "But DIBS_URL is set in this shell, and wins." in user("config", "use", "prod").out
    del user.env["DIBS_URL"]
    assert user("config", "unset", "context").exit == 0
    assert settings(user).url == ELSEWHERE


def test_an_error_about_an_address_says_under_which_name_it_was_saved(user: User) -> None:
    put(user, "prod", f'url = "{AWAY}"\n')
    user("config", "use", "prod")
    assert "The address was saved by `dibs login` as `prod`; `dibs logout` ends that." in user("list").err
    assert "The address was saved by `dibs login` as `prod`.\n" in user("claim", "x").err
    user("config", "unset", "context")
    assert "The address was saved by `dibs login` as `prod`.\n" in user("list", "--context", "prod").err
    assert "saved" not in user("list", "--url", AWAY).err
    doctor = user("doctor", "--context", "prod").out
    assert "prod (--context)" in doctor
    assert f"{AWAY} (context prod, --context)" in doctor


@pytest.mark.fault("F-680")
def test_an_address_that_was_set_is_not_said_to_be_of_a_login(user: User) -> None:
    user("config", "set", "url", AWAY)
    (user.folder / "logins").write_text(f"{ELSEWHERE} token\n", encoding="utf-8")
    assert "saved by `dibs login` or `dibs config set url`; `dibs logout` ends that." in user("list").err
    (user.folder / "logins").write_text(f"{AWAY} token\n", encoding="utf-8")
    assert "saved by `dibs login` as `127.0.0.1-1`; `dibs logout` ends that." in user("list").err


def test_a_file_that_others_can_write_is_said_by_doctor(user: User) -> None:
    path = put(user, "prod", f'url = "{AWAY}"\n')
    path.chmod(0o666)
    assert f"{path} can be written by others" in user("doctor").out
    path.chmod(0o600)
    assert "can be written by others" not in user("doctor").out


def test_a_context_is_completed(user: User) -> None:
    for name in ("prod", "staging"):
        put(user, name, f'url = "{AWAY}"\n')
    for words in (("config", "use", ""), ("list", "--context", ""), ("logout", "")):
        assert user("__complete", "--", *words).out.split() == ["prod", "staging"]
    assert user("__complete", "--", "list", "--context", "st").out.split() == ["staging"]
    (user.folder / "config.toml").write_text('context = "gone"\n', encoding="utf-8")
    assert user("__complete", "--", "config", "use", "").out.split() == ["prod", "staging"]


def test_the_sdk_takes_a_context(user: User, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = url_of(server)
    user("login", url, "--context", "prod", stdin=TOKENS["agent"])
    user("config", "unset", "context")
    for key in [key for key in os.environ if key.startswith(("DIBS_", "XDG_"))]:
        monkeypatch.delenv(key)
    for key, value in user.env.items():
        monkeypatch.setenv(key, value)
    with dibs.Client(context="prod") as client, client.claim("of-prod"):
        assert user("list", "--context", "prod", "--quiet").out == "of-prod\n"
    with dibs.connect(context="prod", namespace="n") as client:
        assert repr(client).endswith(f"at {url}, namespace n>")
    with pytest.raises(dibs.InvalidInput, match="url names a place, and context a saved server"):
        dibs.Client(url, context="prod")
    with pytest.raises(dibs.InvalidInput, match="There is no context 'other'"):
        dibs.Client(context="other")
    monkeypatch.setenv("DIBS_CONTEXT", "prod")
    with dibs.claim("by-variable"):
        assert user("list", "--context", "prod", "--quiet").out == "by-variable\n"


def test_a_command_that_is_run_has_the_context_of_its_claim(user: User, server: Server) -> None:
    user("login", url_of(server), "--context", "prod", stdin=TOKENS["agent"])
    user("login", url_of(server), "--context", "ops", stdin=TOKENS["admin"])
    path = f"{user.env['HOME']}/said"
    ran = user("run", "job", "--context", "prod", "--", "sh", "-c", f'echo "$DIBS_CONTEXT $DIBS_URL" > {path}')
    assert ran.exit == 0, ran.err
    with open(path, encoding="utf-8") as file:
        assert file.read() == f"prod {url_of(server)}\n"
    user.env["DIBS_CONTEXT"] = "ops"
    store = f"sqlite://{user.env['HOME']}/own.db"
    assert user("run", "job", "--url", store, "--", "sh", "-c", f'echo "<$DIBS_CONTEXT>" > {path}').exit == 0
    with open(path, encoding="utf-8") as file:
        assert file.read() == "<>\n"


def test_an_actor_has_a_session_with_each_token_of_a_server(user: User, server: Server) -> None:
    for name, who in (("prod", "agent"), ("ops", "admin")):
        user("login", url_of(server), "--context", name, stdin=TOKENS[who])
    for _ in range(2):
        for name in ("prod", "ops"):
            assert user("claim", f"of-{name}", "--actor", "ann", "--context", name).exit == 0
    for name in ("prod", "ops"):
        assert user("heartbeat", f"of-{name}", "--actor", "ann", "--context", name).exit == 0
        assert user("release", f"of-{name}", "--actor", "ann", "--context", name).exit == 0


def test_the_next_command_names_the_context(user: User, server: Server) -> None:
    user("login", url_of(server), "--context", "prod", stdin=TOKENS["agent"])
    user("config", "unset", "context")
    ran = user("claim", "next-words", "--context", "prod")
    assert "dibs heartbeat --context prod next-words" in ran.out
    assert "--context names a server." in user("serve", "--context", "prod").err
