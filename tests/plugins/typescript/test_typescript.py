"""The TypeScript client: its own tests, run by Node, and what it shares with the server: types, codes, answers.

`DIBS_REWRITE=1` writes its types anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dibs._version import __version__
from dibs.base import errors
from dibs.sdk import answers
from dibs.server.http import browser
from dibs.wire.codes import CODES, OUTCOMES, STATUSES_OF_NO
from dibs.wire.fields import BYTES, CHARACTERS
from dibs.wire.refusals import KEY_SPENT
from tests.programs import ROOT, ending_with_us, slowness
from tests.server import test_recorded
from tests.server.harness import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.full

CLIENT = ROOT / "clients" / "typescript"
TYPES = CLIENT / "src" / "types.ts"
REWRITE = os.environ.get("DIBS_REWRITE") == "1"
NODE_MIN = 20
LIMIT_S = 840  # half a minute on a machine with nothing else to do


def _missing(what: str) -> None:
    lacks = pytest.fail if os.environ.get("DIBS_REQUIRE_ALL") == "1" else pytest.skip
    lacks(f"TYPESCRIPT CLIENT NOT TESTED: {what}. scripts/test without arguments installs it")


def _failed(said: str) -> str:
    """What Node says of the tests that failed, or all if it does not say it in its way."""
    blocks = re.findall(r"^ *not ok .*\n(?: *---\n(?:.*\n)*? *\.\.\.\n)?", said, re.MULTILINE)
    return "".join(blocks) or said


@pytest.fixture(scope="module")
def node(need_program: Callable[[str], str]) -> Callable[..., str]:
    """Runs Node in the folder of the client, and gives what it printed."""
    program = need_program("node")

    def run(*words: str, stdin: str = "", **env: str) -> str:
        try:
            done = subprocess.run(
                ending_with_us(program, *words),
                cwd=CLIENT,
                env={**os.environ, **env},
                input=stdin,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as hung:
            pytest.fail(f"{hung}, after it said: {(hung.stdout or b'').decode()}")
        assert done.returncode == 0, _failed(done.stdout) + done.stderr
        return done.stdout

    version = run("--version").strip()
    if int(version[1:].split(".")[0]) < NODE_MIN:
        _missing(f"it needs Node {NODE_MIN} or newer, and this is {version}")
    return run


@pytest.fixture(scope="module")
def built(node: Callable[..., str]) -> Callable[..., str]:
    """Node, with the client compiled."""
    compiler = CLIENT / "node_modules" / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        _missing("there is no TypeScript")
    node(str(compiler))
    return node


def test_its_types_are_made_from_what_a_server_says_of_itself(tmp_path: Path, node: Callable[..., str]) -> None:
    with running(tmp_path) as server:
        description = server.ask("GET", "/openapi.json?path=*", who=None).body.decode()
    made = node("scripts/types.mjs", stdin=description)
    if REWRITE:
        TYPES.write_text(made, encoding="utf-8")
    assert made == TYPES.read_text(encoding="utf-8")


def test_its_codes_classes_and_exit_codes_are_those_of_the_table(built: Callable[..., str]) -> None:
    tell = """
        import { BYTES_MAX, CHARS_MAX, CLASSES, CLASS_OF_KIND, EXIT_CODES, KINDS, REFUSALS, FATE_UNKNOWN }
          from "./dist/src/errors.js";
        import { KEY_SPENT } from "./dist/src/pending.js";
        import { NO_STATES } from "./dist/src/reply.js";
        const named = (table) => Object.fromEntries(Object.entries(table).map(([code, kind]) => [code, kind.name]));
        const [classes, byKind, refusals] = [CLASSES, CLASS_OF_KIND, REFUSALS].map(named);
        const most = { ...BYTES_MAX, ...CHARS_MAX };
        const texts = [FATE_UNKNOWN, KEY_SPENT];
        console.log(JSON.stringify({
          exits: EXIT_CODES, kinds: KINDS, classes, byKind, refusals, texts, most, noStates: NO_STATES,
        }));
    """
    told: dict[str, Any] = json.loads(built("--input-type=module", "--eval", tell))
    refused = ("held", "queued", "done", "delayed", "parked", "deadlock", "superseded", "closed")
    rows = {row.word: row.exit for row in OUTCOMES.values() if row.word in refused}
    assert told["exits"] == rows | {code: row.exit for code, row in CODES.items()}
    table = [*OUTCOMES.values(), *CODES.values()]
    assert told["kinds"] == {row.word: row.kind for row in table if row.kind is not None}
    assert told["classes"] == {code: kind.__name__ for code, kind in answers._BY_CODE.items()}
    assert told["byKind"] == {str(kind): error.__name__ for kind, error in answers._BY_KIND.items()}
    assert told["most"] == {field: most for field, most in (BYTES | CHARACTERS).items() if field in told["most"]}
    assert told["refusals"] == {code: kind.__name__ for code, kind in answers._NOT_CLAIMED.items()}
    assert {verb: {word} for verb, word in told["noStates"].items()} == {"transfer": STATUSES_OF_NO["transfer"]}
    assert told["texts"] == [errors.FATE_UNKNOWN, KEY_SPENT]


def _recorded(kind: str) -> Iterator[dict[str, Any]]:
    """The answers that a server is held to, with requests: those that are JSON and were recorded in full."""
    for sent, answer in [each for conversation in test_recorded._CONVERSATIONS[kind] for each in conversation]:
        for word, meant in test_recorded._ANSWERED.items():
            answer = answer.replace(word, meant)
        head, _, body = answer.removesuffix("<closed>").partition("\r\n\r\n")
        asked = re.match(r"(GET|POST|PUT|DELETE) (\S+) HTTP", sent)
        is_whole = not body.endswith("...") and answer.count("HTTP/1.1 ") == 1 and " 100 " not in head
        if asked is None or not is_whole or "/mcp" in asked[2] or (body and "application/json" not in head):
            continue
        status, *lines = head.split("\r\n")
        yield {
            "method": asked[1],
            "path": asked[2],
            "status": int(status.split()[1]),
            "headers": dict(line.split(": ", 1) for line in lines),
            "body": re.sub(r'(":)N\b', r"\g<1>0", body),
        }


@pytest.mark.e2e
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.promise("client:typescript")
@pytest.mark.fault("F-267")
@pytest.mark.fault("F-346")
@pytest.mark.fault("F-280")
@pytest.mark.fault("F-282")
@pytest.mark.fault("F-286")
@pytest.mark.fault("F-287")
@pytest.mark.fault("F-377")
@pytest.mark.fault("F-451")
@pytest.mark.fault("F-452")
@pytest.mark.fault("F-634")
@pytest.mark.fault("F-639")
@pytest.mark.fault("F-699")
@pytest.mark.fault("F-788")
def test_its_own_tests_pass_against_servers_that_are_killed_and_paused(
    tmp_path: Path, built: Callable[..., str]
) -> None:
    recorded = tmp_path / "recorded.json"
    recorded.write_text(json.dumps([each for kind in ("plain", "cors") for each in _recorded(kind)]))
    tests = [f"dist/test/{path.stem}.js" for path in sorted((CLIENT / "test").glob("*.test.ts"))]
    given = {"DIBS_PYTHON": sys.executable, "DIBS_SLOWNESS": str(slowness()), "DIBS_RECORDED": str(recorded)}
    said = built("--test", "--test-reporter=tap", "--test-concurrency=2", *tests, **given)
    assert re.search(r"^# fail 0$", said, re.MULTILINE)
    assert re.search(r"^# skipped 0$", said, re.MULTILINE)


def test_the_package_can_be_imported_by_its_name(built: Callable[..., str]) -> None:
    """With the names that a program uses, in Node and, without anything of Node, in a browser."""
    tell = 'import * as all from "dibs-lease"; console.log(import.meta.resolve("dibs-lease"), ...Object.keys(all))'
    for words, module in (((), "node.js"), (("--conditions=browser",), "index.js")):
        where, *names = built("--input-type=module", *words, "--eval", tell).split()
        assert where.endswith(module)
        assert {"Dibs", "Claim", "Session", "LeaseLost"} <= {*names}
    for name in ("index", "client", "clock", "errors", "events", "hold", "pending", "reply", "servers", "types"):
        assert "node:" not in (CLIENT / "dist" / "src" / f"{name}.js").read_text()


def test_the_package_that_is_packed_has_the_client_and_its_licence_and_nothing_else(
    built: Callable[..., str], need_program: Callable[[str], str]
) -> None:
    words = [need_program("npm"), "pack", "--dry-run", "--json", "--ignore-scripts"]
    done = subprocess.run(words, cwd=CLIENT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    packed = {each["path"] for each in json.loads(done.stdout)[0]["files"]}
    modules = {path.stem for path in (CLIENT / "src").glob("*.ts")}
    made = {f"dist/src/{name}.{kind}" for name in modules for kind in ("js", "d.ts")}
    assert packed == made | {"package.json", "README.md", "LICENSE"}
    assert (CLIENT / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_a_page_of_another_origin_may_send_every_header_of_the_client() -> None:
    source = (CLIENT / "src" / "client.ts").read_text() + (CLIENT / "src" / "servers.ts").read_text()
    sent = {name.lower() for name in re.findall(r'"?(X-Dibs-\w+|Authorization|Content-Type)"?[\]:]', source)}
    assert {"authorization", "content-type", "x-dibs-names", "x-dibs-store"} <= sent
    assert sent <= {*browser.HEADERS.split(",")}


def test_the_package_has_the_version_of_dibs_and_no_dependency_and_its_lock_names_no_host() -> None:
    package: dict[str, Any] = json.loads((CLIENT / "package.json").read_text())
    lock = (CLIENT / "package-lock.json").read_text()
    assert package["version"] == __version__.replace(".dev", "-dev.")
    assert "private" not in package
    assert "dependencies" not in package
    assert "://" not in lock
    assert "resolved" not in lock
