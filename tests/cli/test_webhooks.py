"""Words and exit codes of `dibs webhook`: on a store and through a server, the same."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from dibs.cli.main import run
from dibs.core.records import webhook_key
from dibs.core.service.webhooks import Webhook
from dibs.engine.webhooks.sender import DeliveryResult, Sender
from dibs.stores.registry import open_store
from tests.server.harness import TOKENS, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dibs.stores.port import Store

    Typed = Callable[..., tuple[int, str, str]]

URL = "https://hook.test/dibs"


class Stand(Sender):
    """Reaches nobody. A URL that ends in /down does not answer."""

    async def check(self, url: str) -> None:
        pass

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        if url.endswith("/down"):
            return DeliveryResult(error="no connection: Connection refused", took_ms=3)
        return DeliveryResult(status=204, took_ms=3)


@pytest.fixture(params=["store", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Typed, Store]]:
    """A store of one's own, or a server as its admin; and the store behind it."""
    if request.param == "store":
        store = open_store(f"sqlite:{tmp_path}/dibs.db")
        yield lambda *words: type_(words, {"DIBS_URL": f"sqlite:{tmp_path}/dibs.db"}), store
        store.close()
        return
    with running(tmp_path, webhook_sender=Stand) as server:
        env = {"DIBS_URL": f"http://127.0.0.1:{server.port}", "DIBS_TOKEN": TOKENS["admin"]}
        yield lambda *words: type_(words, env), server.store


def type_(words: tuple[str, ...], env: dict[str, str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = run(["webhook", *words], env, out, err, io.BytesIO())
    return code, out.getvalue(), err.getvalue()


def data(answer: tuple[int, str, str]) -> Any:
    assert answer[0] == 0, answer
    return json.loads(answer[1])["data"]


def test_a_webhook_is_added_listed_shown_replayed_and_removed(place: tuple[Typed, Store], tmp_path: Path) -> None:
    typed, store = place
    code, out, _ = typed("add", URL, "--jobs", "deploy/*", "--events", "released, expired")
    assert code == 0
    first, _, secret, *rest = out.splitlines()
    assert [line.rpartition(": ")[2] for line in rest] in (
        [],
        ["dibs serve"],
    )  # a store alone delivers nothing
    assert first.startswith(f"Sends released, expired of deploy/* in default to {URL}. Its id: ")
    hook = first.rpartition(" ")[2]
    kept = store.read((webhook_key(hook),)).records[webhook_key(hook)].record
    assert isinstance(kept, Webhook)
    assert kept.secret == secret
    listed = data(typed("list", "--json"))["webhooks"]
    assert [(each["id"], each["secret"]) for each in listed] == [(hook, "****")]
    assert hook in typed("list")[1]
    shown = typed("show", hook)
    assert shown[0] == 0
    assert secret not in shown[1]
    assert "0 delivered, 0 failed tries, 0 dead letters, 0 jobs wait" in shown[1]
    assert typed("replay", hook)[1] == "The dead letters are sent again.\n"
    assert typed("replay", hook, "--after", "1")[1] == "All events after 1 are sent again.\n"
    assert typed("replay", hook, "--after", "777")[2].startswith("dibs: --after is higher than ")
    assert typed("replay", hook, "--after", "x")[0] == 64
    assert typed("remove", hook)[0] == 0
    assert typed("remove", hook)[0] == 2
    assert typed("show", hook)[0] == 2
    assert typed("list")[1].startswith("There is no webhook.")


@pytest.mark.parametrize(
    ("url", "flags"),
    [
        ("http://10.0.0.1/x", "dibs serve --webhook-allow-http --webhook-allow-private"),
        ("https://localhost/x", "dibs serve --webhook-allow-private"),
        ("https://hook.test/x", None),
    ],
)
def test_a_target_that_servers_refuse_is_reported_at_once(tmp_path: Path, url: str, flags: str | None) -> None:
    _, out, _ = type_(("add", url), {"DIBS_URL": f"sqlite:{tmp_path}/dibs.db"})
    assert (f"Servers send there only if they were started so: {flags}\n" in out) == (flags is not None)


@pytest.mark.fault("F-775")
@pytest.mark.parametrize(
    ("jobs", "pattern"),
    [
        ("https://github.com/acme/app/issues/77", "github://acme/app/issues/77"),
        ("path:./src//c", "path:src/c"),
        ("https://github.com/acme/*", "https://github.com/acme/*"),
    ],
)
def test_a_webhook_is_for_the_job_that_a_claim_of_the_same_words_takes(
    place: tuple[Typed, Store], jobs: str, pattern: str
) -> None:
    assert data(place[0]("add", URL, "--unsigned", "--jobs", jobs, "--json"))["lock_pattern"] == pattern


def test_a_secret_comes_from_a_file_or_there_is_none(place: tuple[Typed, Store], tmp_path: Path) -> None:
    typed, store = place
    file = tmp_path / "secret"
    file.write_text("my own\n")
    hook = typed("add", URL, "--secret-file", str(file), "--quiet")[1].strip()
    made = store.read((webhook_key(hook),)).records[webhook_key(hook)].record
    assert isinstance(made, Webhook)
    assert made.secret == "my own"
    assert data(typed("add", URL, "--unsigned", "--json"))["secret"] is None
    assert typed("add", URL, "--unsigned", "--secret-file", str(file))[0] == 64
    assert typed("add", URL, "--secret-file", str(tmp_path / "none"))[0] == 64
    file.write_text("\n")
    assert typed("add", URL, "--secret-file", str(file))[0] == 64


def test_a_webhook_that_cannot_be_is_refused_in_words_of_the_command(place: tuple[Typed, Store]) -> None:
    typed, _ = place
    assert typed("add", "ftp://x")[2] == "dibs: TARGET must begin with https://.\n"
    assert typed("add", URL, "--events", "nonsense")[0] == 64
    assert typed("add", "https://u:p@hook.test/")[2].startswith("dibs: TARGET must not hold")
    assert "xn--" in typed("add", "https://b\u00fccher.test/")[2]


def test_a_test_is_sent_by_a_server(tmp_path: Path) -> None:
    with running(tmp_path, webhook_sender=Stand) as server:
        env = {"DIBS_URL": f"http://127.0.0.1:{server.port}", "DIBS_TOKEN": TOKENS["admin"]}
        up = type_(("add", URL, "--quiet"), env)[1].strip()
        down = type_(("add", f"{URL}/down", "--quiet"), env)[1].strip()
        assert type_(("test", up), env)[:2] == (0, "Delivered: the target answered 204 after 3 ms.\n")
        code, _, said = type_(("test", down), env)
        assert (code, said) == (1, "dibs: Not delivered: no connection: Connection refused.\n")
    store = {"DIBS_URL": f"sqlite:{tmp_path}/dibs.db"}
    hook = type_(("add", URL, "--quiet"), store)[1].strip()
    code, _, said = type_(("test", hook), store)
    assert code == 64
    assert "Only a server delivers" in said
