"""The dashboard in a real browser."""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Freeze, Thaw
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.dashboard import stage
from tests.dashboard.browser import ELSEWHERE, Visit, chromium, expect
from tests.server.harness import LINES, Poll, Server, running, wait_until
from tests.stalls import stood_still_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.full

AN_HOUR_AHEAD = """
const Real = Date;
globalThis.Date = class extends Real {
  constructor(...given) { super(...(given.length ? given : [Real.now() + 3600e3])); }
  static now() { return Real.now() + 3600e3; }
};
"""
# Of more claims than the page keeps, it keeps the first ones, however often it reads them.
KEEPS_TWO_THOUSAND = """async () => {
  const { Jobs } = await import("/ui/jobs.js");
  const jobs = new Jobs({ ns: "many", prefix: "", most: 2000, changed() {}, failed(error) { throw error; } });
  await jobs.load();
  const before = jobs.byName.size;
  for (let page = 0; page < 5; page += 1) await jobs.readPage();
  return [before, jobs.byName.size, jobs.isCut];
}"""

READS_A_PAGE_AND_WAITS = """async () => {
  const { Jobs } = await import("/ui/jobs.js");
  globalThis.jobs = new Jobs({ ns: "late", prefix: "", changed() {}, failed(error) { throw error; } });
  const real = globalThis.fetch;
  await new Promise((answered) => {
    globalThis.fetch = async (...asked) => {
      globalThis.fetch = real;
      const answer = await real(...asked);
      answered();
      await new Promise((let_go) => (globalThis.let_go = let_go));
      return answer;
    };
    globalThis.late = jobs.readPage();
  });
}"""
READS_CLOSURES_BEFORE_THE_PAGE_COMES = """async () => {
  const shown = [jobs.closures];
  await jobs.readClosures();
  shown.push(jobs.closures);
  let_go();
  await late;
  return [...shown, jobs.closures].map((each) => each.map(({ name }) => name));
}"""

# Keeps what the page says about its connection, and how long after the last sign of life.
NOTES_WORDS = """async () => {
  const { silentMs } = await import("/ui/clock.js");
  globalThis.words = [];
  const place = document.getElementById("link-text");
  const note = () => words.push([place.textContent, silentMs()]);
  new MutationObserver(note).observe(place, { childList: true, characterData: true, subtree: true });
}"""


@pytest.fixture(scope="module")
def browser(need_program: Callable[[str], str]) -> Iterator[Browser]:
    with chromium(need_program("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a whole play on it. Tests claim jobs of their own."""
    with running(tmp_path_factory.mktemp("board")) as found:
        waiting = stage.play(found)
        for name in stage.HOSTILE:
            stage.claim(found, name, "agent <b>x</b>\N{RIGHT-TO-LEFT OVERRIDE}", metadata="<img src=x>\nline")
        yield found
        for poll in waiting:
            poll.hang_up()


@pytest.fixture
def visit(browser: Browser, server: Server) -> Iterator[Visit]:
    found = Visit(browser, server)
    yield found
    found.close()


def in_rows(page: Page, name: str) -> Locator:
    """The link to a job in the table."""
    return page.locator("table.rows").get_by_role("link", name=name, exact=True)


VIEWS = {
    "held": "/?q=atlas&prefix=deploy&sort=left.down",  # few rows: axe looks at each of them
    "waiting": "/?tab=waiting&q=delphi",
    "failed": "/?tab=failed",  # parked jobs have the same table
    "done": "/?tab=done",
    "sessions": "/?tab=sessions",
    "agents": "/?tab=agents",
    "pools": "/?tab=pools",
    "closures": "/?tab=closures",
    "nothing": "/?prefix=no-such",
    "job": "/?page=job&name=issue-1042",
    "owners": "/?page=job&name=gpu",
    "owner": "/?page=owner&owner=atlas",
}


GOES = "to => { history.pushState(null, '', to); dispatchEvent(new PopStateEvent('popstate')); }"
RUNS_AXE = "([where, options]) => axe.run(where, options).then((found) => found.violations)"


def test_axe_finds_nothing_on_any_view_and_nothing_scrolls_sideways(browser: Browser, server: Server) -> None:
    visit = Visit(browser, server, reduced_motion="reduce")
    page = visit.open("/")
    from axe_playwright_python.sync_playwright import Axe

    page.evaluate(Axe().axe_script)

    def check(view: str, where: str = "main") -> None:
        # The markup is the same in the dark; only colours differ.
        for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            found = page.evaluate(RUNS_AXE, [where, {"resultTypes": ["violations"], **rules}])
            assert not found, f"{view}, {scheme}: {found}"
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
        page.set_viewport_size({"width": 1280, "height": 800})

    page.get_by_label("Token").fill("tok-operator")
    check("login", "html")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Sign out").wait_for()
    for view, address in VIEWS.items():
        page.evaluate(GOES, address)
        page.locator("table.rows:not([hidden]), .empty-title:visible, .timeline, .lead").first.wait_for()
        check(view, "html" if view == "held" else "main")  # what is around it is the same everywhere
    session = server.ask("GET", "/sessions", who="operator").json["sessions"][0]["session_id"][:8]
    page.evaluate(GOES, f"/?page=session&id={session}")
    page.get_by_role("button", name="End the session").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check("session", "html")
    visit.close()


def test_what_needs_a_person_comes_first_and_is_seen_on_every_tab(visit: Visit, server: Server) -> None:
    page = visit.enter("viewer", "/")
    strip = page.get_by_role("region", name="Needs you")
    strip.get_by_role("link", name="1 job is parked").click()
    expect(page).to_have_url(re.compile(r"tab=parked"))
    expect(page.locator("#count-parked.bad")).to_have_text("1")
    page.get_by_role("link", name="dibs").click()
    page.get_by_role("link", name=re.compile(r"^\d+ failed in the last hour")).click()
    expect(page).to_have_url(re.compile(r"tab=failed"))
    coordinator = Coordinator(server.store)
    coordinator.one(Freeze(id=new_id()))
    expect(page.get_by_role("alert")).to_contain_text("The store is frozen")
    coordinator.one(Thaw(id=None))
    expect(page.locator("#trouble")).to_be_hidden()
    visit.context.set_offline(True)
    expect(page.get_by_role("alert")).to_have_text(
        re.compile(r"^The server does not answer\. This is as of [\d:]+ UTC\.$")
    )
    assert page.locator("body[data-stale]").count()
    visit.context.set_offline(False)
    expect(page.locator("#trouble")).to_be_hidden()


def test_a_phone_shows_all_of_a_jobs_tables(browser: Browser, server: Server) -> None:
    visit = Visit(browser, server, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = visit.enter("viewer", "/?page=job&name=issue-1042")
    page.get_by_role("table", name="Who held it").wait_for()
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every((each) => each.scrollWidth <= each.clientWidth)"
    )
    expect(page.get_by_role("rowheader", name="cassini")).to_be_visible()
    assert "Press" not in page.evaluate("document.body.innerHTML")
    visit.close()


def test_a_job_that_nobody_claimed_has_no_empty_card(visit: Visit) -> None:
    page = visit.enter("viewer", "/?page=job&name=no-such-job")
    expect(page.get_by_text("Nothing is on record about this job.")).to_be_visible()
    expect(page.locator(".facts")).to_have_count(0)


@pytest.mark.promise("auth:cookie")
def test_a_token_becomes_a_cookie_that_no_script_reads_until_the_user_signs_out(visit: Visit) -> None:
    page = visit.open("/?q=issue")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not know this token")
    page.get_by_label("Token").fill("tok-viewer")
    page.keyboard.press("Enter")
    expect(in_rows(page, "issue-1042")).to_be_visible()
    assert page.evaluate("document.cookie + localStorage.length + sessionStorage.length") == "00"
    assert [cookie["httpOnly"] for cookie in visit.context.cookies()] == [True]
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_focused()
    assert visit.context.cookies() == []


@pytest.mark.fault("F-782")
@pytest.mark.promise("auth:cookie")
def test_who_signs_out_without_an_answer_is_told_that_it_is_still_signed_in(visit: Visit) -> None:
    page = visit.log_in("viewer")
    page.route("**/logout", lambda route: route.abort())
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#notice")).to_contain_text("You are still signed in")
    expect(page.get_by_label("Token")).to_have_count(0)
    assert len(visit.context.cookies()) == 1
    page.unroute_all(behavior="ignoreErrors")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_focused()
    assert visit.context.cookies() == []


@pytest.mark.promise("board:text")
def test_hostile_names_are_text(visit: Visit) -> None:
    page = visit.enter("viewer", "/?owner=agent")
    for name in stage.HOSTILE:
        expect(in_rows(page, name)).to_be_visible()
    expect(page.locator("table.rows img, table.rows b, table.rows script")).to_have_count(0)
    expect(page.get_by_text("<img src=x>\\nline").first).to_be_visible()
    expect(page.get_by_role("link", name="agent <b>x</b>\\u202e").first).to_be_visible()
    for name in stage.HOSTILE:
        in_rows(page, name).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(page.locator(".state").first).to_contain_text("held")
        page.go_back()
    assert page.title() == "Held \N{MIDDLE DOT} dibs"


def test_agents_have_a_row_each_and_files_one_name(visit: Visit, server: Server) -> None:
    note = '{"agent":"claude","host":"vm","work_tree":"~/app","branch":"main","action":"edit <b>a</b>"}'
    asked = {"owner": "claude-3f2a in app@main", "metadata": note}
    session = server.ask("POST", "/sessions", asked).json["session_id"]
    for name in ("path:src/seen.py", "path:@0123456789ab/src/seen.py"):
        note = "checkout=0123456789ab clone=ba9876543210"
        stage.claim(server, name, "claude-3f2a in app@main", session_id=session, metadata=note)
    page = visit.enter("operator", "/?tab=agents")
    row = page.locator("table.rows tr", has_text="claude-3f2a")
    expect(row).to_contain_text("vm:~/app @ main")
    expect(row).to_contain_text("src/seen.py")
    expect(page.locator("table.rows")).not_to_contain_text("0123456789ab")
    page.goto(f"{visit.base}/?q=seen.py")
    expect(in_rows(page, "path:src/seen.py")).to_have_count(1)
    expect(page.locator("table.rows")).not_to_contain_text("checkout=")


@pytest.mark.quick
@pytest.mark.promise("board:live")
def test_what_happens_is_seen_without_asking(visit: Visit, server: Server) -> None:
    page = visit.enter("viewer", "/")
    expect(page.locator("#link-text", has_text=re.compile("^Live$"))).to_be_visible()
    lease = stage.claim(server, "0-seen-at-once", "zoe", metadata="a note")
    expect(in_rows(page, "0-seen-at-once")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="0-seen-at-once")).to_contain_text("a note")
    second = visit.tab()
    second.goto(f"{visit.base}/?prefix=0-seen")
    expect(in_rows(second, "0-seen-at-once")).to_be_visible()
    stage.end(server, "0-seen-at-once", lease)
    expect(in_rows(page, "0-seen-at-once")).to_have_count(0)
    expect(in_rows(second, "0-seen-at-once")).to_have_count(0)


@pytest.mark.promise("board:live")
def test_a_plain_address_of_another_machine_is_followed_too(browser: Browser, server: Server) -> None:
    visit = Visit(browser, server, host=ELSEWHERE)
    page = visit.enter("viewer", "/")
    expect(page.locator("#link-text", has_text=re.compile("^Live$"))).to_be_visible()
    stage.claim(server, "0-from-elsewhere", "zoe")
    expect(in_rows(page, "0-from-elsewhere")).to_be_visible()
    assert page.evaluate("isSecureContext") is False
    visit.close()


def test_filters_are_in_the_address_and_the_back_button_undoes_them(visit: Visit) -> None:
    page = visit.enter("viewer", "/")
    expect(in_rows(page, "deploy/eu-0")).to_be_visible()  # the keys work once the page is drawn
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Filter")).to_be_focused()
    page.keyboard.type("delphi")
    expect(page).to_have_url(f"{visit.base}/?q=delphi")
    expect(page.locator("tr.row")).to_have_count(1)
    page.keyboard.press("Escape")
    page.reload()
    expect(page.locator("tr.row")).to_have_count(1)
    expect(page.get_by_role("searchbox", name="Filter")).to_have_value("delphi")
    page.get_by_role("link", name=re.compile("Waiting")).click()
    expect(page).to_have_url(f"{visit.base}/?tab=waiting&q=delphi")
    expect(page.locator("tr.row")).to_have_count(3)
    page.go_back()
    page.go_back()
    expect(page.get_by_role("searchbox", name="Filter")).to_have_value("")
    expect(in_rows(page, "deploy/eu-0")).to_be_visible()


def test_a_filter_that_the_server_refuses_says_why_until_it_is_cleared(visit: Visit) -> None:
    page = visit.enter("viewer", f"/?prefix={'x' * 600}")
    expect(page.locator("#notice")).to_contain_text("prefix may have 512 bytes at most")
    expect(page.locator("#link-text")).to_have_text("No live updates")
    expect(page.locator(".found")).to_have_text("")
    page.get_by_label("Name begins with").fill("deploy")
    expect(in_rows(page, "deploy/eu-0")).to_be_visible()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#link-text")).to_have_text("Live")


def test_the_keyboard_is_enough_to_break_a_claim(visit: Visit, server: Server) -> None:
    stage.claim(server, "by-keys", "yann")
    page = visit.enter("operator", "/?q=by-keys")
    in_rows(page, "by-keys").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by-keys")).to_be_visible()
    expect(page.locator("main")).to_be_focused()
    button = page.get_by_role("button", name="Break the claim")
    expect(button).to_be_visible()
    page.keyboard.press("Tab")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Reason")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("by keys")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Who held it")).to_contain_text("by keys")
    expect(page.locator("main")).to_be_focused()  # the button is gone


def test_a_jobs_page_shows_who_held_it_and_how_each_hold_ended(visit: Visit) -> None:
    page = visit.enter("viewer", "/?page=job&name=issue-1042")
    holds = page.get_by_role("table", name="Who held it").get_by_role("row")
    expect(holds).to_have_count(5)
    for index, said in enumerate(("holds it now", "stuck since lunch", "expired", "merge conflict"), start=1):
        expect(holds.nth(index)).to_contain_text(said)
    expect(holds.nth(1)).to_contain_text("20 s")  # nobody had it for so long
    expect(page.get_by_role("table", name="Who waited").get_by_role("row")).to_have_count(4)
    expect(page.get_by_role("img", name=re.compile("4 holds, 3 waits"))).to_be_visible()
    expect(page.get_by_text(stage.CHECKPOINT)).to_be_visible()


@pytest.mark.promise("effect:doubt-told")
def test_a_jobs_page_shows_its_steps_and_which_are_in_doubt(visit: Visit, server: Server) -> None:
    lease = stage.claim(server, "release-7", "yann")
    note = {"lease_id": lease, "effect_id": new_id(), "effect_key": "<i>tag</i>"}
    server.ask("POST", "/locks/release-7/renew", note)
    server.ask("POST", "/locks/release-7/renew", {**note, "effect_status": "done", "effect_result": "v7"})
    server.ask("POST", "/locks/release-7/renew", {**note, "effect_id": new_id(), "effect_key": "mail"})
    stage.end(server, "release-7", lease, failed=True)
    page = visit.enter("viewer", "/?page=job&name=release-7")
    steps = page.locator("section", has=page.get_by_role("heading", name="Steps")).get_by_role("listitem")
    expect(steps.nth(0)).to_contain_text(re.compile("<i>tag</i> ✓ done yann, .*: v7"))
    expect(steps.nth(1)).to_contain_text(re.compile(r"mail \? in doubt yann, "))


def test_an_operator_breaks_frees_and_ends_with_a_confirmation(visit: Visit, server: Server) -> None:
    stage.claim(server, "to-break", "yann")
    lease = stage.claim(server, "to-free", "yann", max_attempts=1)
    stage.end(server, "to-free", lease, failed=True)
    own = stage.session(server, "xavier")
    stage.claim(server, "of-a-session", "xavier", session_id=own)
    visit.enter("operator", "/")
    for address, button, after in (
        ("job&name=to-break", "Break the claim", "free"),
        ("job&name=to-free", "Free the job", "free"),
        (f"session&id={own[:8]}", "End the session", "has ended"),
    ):
        page = visit.open(f"/?page={address}")
        page.get_by_role("button", name=button).click()
        if button != "Free the job":
            page.get_by_label("Reason").fill("a test")
        page.get_by_role("dialog").get_by_role("button", name=button).click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(page.locator("article")).to_contain_text(after)
    for name in ("to-break", "of-a-session"):
        last = server.ask("GET", f"/locks/{name}/history").json["events"][-1]
        assert (last["event"], last["by"], last["reason"]) == ("broken", "operator", "a test")


def test_the_board_shows_what_is_closed_and_when_a_claim_ends_and_an_operator_opens(
    visit: Visit, server: Server
) -> None:
    stage.claim(server, "shut/one", "yann", max_hold_seconds=7_200)
    page = visit.enter("operator", "/")
    reason = {"for_seconds": 3_600, "reason": "<b>migration</b>"}
    server.ask("POST", "/locks/shut%2F/close", reason, who="operator")
    expect(page.get_by_role("region", name="Needs you")).to_contain_text("shut/ is closed until")
    page = visit.open("/?page=job&name=shut%2Fone")
    expect(page.locator("article")).to_contain_text("<b>migration</b>")
    expect(page.get_by_text("Ends at most")).to_be_visible()
    page.get_by_role("button", name="Open the job").click()
    page.get_by_role("dialog").get_by_role("button", name="Open the job").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Open the job")).to_have_count(0)
    assert "closed" not in server.ask("GET", "/locks/shut%2Fone").json


@pytest.mark.fault("F-689")
def test_each_of_several_owners_has_a_row_and_a_break_of_its_own(visit: Visit, server: Server) -> None:
    server.ask("PUT", "/locks/cards/pool", {"slots": 4}, who="operator")
    stage.claim(server, "cards", "ulf", units=2)
    stage.claim(server, "cards", "<i>vic</i>", metadata="a note")
    page = visit.enter("operator", "/?page=job&name=cards")
    rows = page.get_by_role("table", name="Owners").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text(re.compile("ulf.*0, 1"))
    expect(rows.nth(2)).to_contain_text(re.compile("<i>vic</i>.*2.*a note"))
    button = rows.nth(1).get_by_role("button", name="Break the claim of ulf")
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_label("Reason").fill("hangs")
    page.get_by_role("dialog").get_by_role("button", name="Break the claim").click()
    expect(page.locator("#notice")).to_have_text("The claim of ulf on cards was broken.")
    expect(page.get_by_role("table", name="Owners")).to_have_count(0)  # one is left: facts
    assert server.ask("GET", "/locks/cards").json["owner"] == "<i>vic</i>"
    # A claim that ended while the dialog was open: its successor keeps the job.
    page.get_by_role("button", name="Break the claim").click()
    server.ask("POST", "/locks/cards/break", {"reason": "sooner"}, who="operator")
    stage.claim(server, "cards", "wim")
    page.get_by_label("Reason").fill("too late")
    page.get_by_role("dialog").get_by_role("button", name="Break the claim").click()
    expect(page.locator("#notice")).to_have_text("That claim had ended already. Nothing was broken.")
    assert server.ask("GET", "/locks/cards").json["owner"] == "wim"


@pytest.mark.fault("F-688")
def test_pools_and_closures_have_pages_and_what_is_stopped_is_not_called_free(visit: Visit) -> None:
    page = visit.enter("viewer", "/")
    strip = page.get_by_role("region", name="Needs you")
    expect(strip).to_contain_text("mirror/ is closed until")
    strip.get_by_role("link", name="render is paused: 1 in line").click()
    expect(page.locator(".headline .state")).to_have_text("‖ paused")
    page.get_by_role("link", name="Pools").click()
    rows = page.locator("table.rows tr.row")
    expect(rows.filter(has_text="gpu")).to_contain_text(re.compile("held.*3 of 4 slots.*trainer.*1, for 2 slots"))
    expect(rows.filter(has_text="render")).to_contain_text(re.compile("paused.*paused"))
    page.get_by_role("link", name="Waiting").click()
    expect(rows.filter(has_text="trainer-3")).to_contain_text("2 slots")
    expect(rows.filter(has_text="studio")).to_contain_text("nobody: its pool is paused")
    page.get_by_role("link", name="Closed").click()
    expect(rows.filter(has_text="mirror/")).to_contain_text(re.compile("operator.*the mirror is moved"))
    page.get_by_role("link", name="mirror/").click()
    expect(page.locator(".headline .state")).to_have_text("⊘ closed")


@pytest.mark.fault("F-783")
def test_what_ends_by_time_or_is_closed_is_seen_while_a_tab_is_open(visit: Visit, server: Server) -> None:
    lease = stage.claim(server, "timed/rests", "yann")
    stage.end(server, "timed/rests", lease, failed=True, retry_after_seconds=60)
    page = visit.enter("viewer", "/?tab=failed&prefix=timed/")
    rows = page.locator("table.rows tr.row")
    expect(rows).to_contain_text("delayed")
    server.pass_time(61_000)  # which no event tells
    expect(rows).not_to_contain_text("delayed")
    server.ask("PUT", "/locks/timed%2Fpool/pool", {"slots": 2}, who="operator")
    page.get_by_role("link", name="Pools").click()
    expect(rows).to_contain_text("free")
    server.ask("POST", "/locks/timed%2Fpool/close", {"for_seconds": 600, "reason": "a test"}, who="operator")
    expect(rows).to_contain_text("closed")
    server.ask("POST", "/locks/timed%2Fpool/open", {}, who="operator")
    expect(rows).to_contain_text("free")


@pytest.mark.fault("F-784")
def test_the_words_of_a_pool_and_its_line_are_true(visit: Visit, server: Server) -> None:
    for name in ("words", "idle"):
        server.ask("PUT", f"/locks/{name}/pool", {"slots": 3}, who="operator")
    stage.claim(server, "words", "ulf", units=2)
    waits = {"wait_seconds": 600, "ttl_seconds": 600}
    polls: list[Poll] = []

    def is_in_line() -> bool:
        return bool(server.ask("GET", "/locks/words").json.get("waiting") == len(polls))

    for owner, units in (("many", 3), ("one", 1)):
        polls.append(Poll(server, "/locks/words/acquire", {**waits, "owner": owner, "units": units}))
        wait_until(is_in_line, "nobody waits")
    page = visit.enter("viewer", "/?tab=waiting&prefix=words")
    rows = page.locator("table.rows tr.row")
    expect(rows.filter(has_text="many")).to_contain_text("ulf")
    expect(rows.filter(has_text="one")).to_contain_text("nobody: who is before it comes first")
    for name in ("words", "idle"):
        server.ask("PUT", f"/locks/{name}/pool", {"slots": 0}, who="operator")
    server.ask("POST", "/locks/words/close", {"for_seconds": 600, "reason": "a test"}, who="operator")
    page = visit.open("/?prefix=words")  # held, closed and paused
    expect(rows).to_contain_text("closed, paused, 2 taken, 2 in line")
    page = visit.open("/?page=job&name=words")
    expect(page.locator(".headline .state")).to_have_text("\N{BLACK CIRCLE} held")
    page = visit.open("/?tab=pools&prefix=idle")
    expect(rows.locator(".c-slots")).to_have_text("paused")
    polls.append(Poll(server, "/locks/idle/acquire", {**waits, "owner": "first"}))
    wait_until(lambda: server.ask("GET", "/locks/idle").json.get("waiting") == 1, "nobody waits")
    page = visit.open("/?page=job&name=idle")
    expect(page.get_by_role("table", name="Who waited")).to_be_visible()
    expect(page.get_by_role("table", name="Who held it")).to_have_count(0)  # nobody did
    for poll in polls:
        poll.hang_up()


def test_columns_that_say_nothing_are_folded_and_bars_show_where_time_is_short(visit: Visit, server: Server) -> None:
    stage.claim(server, "fold/long", "yann")
    stage.claim(server, "fold/short", "yann", ttl_seconds=40)
    server.pass_time(32_000)
    page = visit.enter("viewer", "/?prefix=fold")
    rows = page.locator("tr.row")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("fold/short")  # what needs a look comes first
    expect(rows.first.locator(".track")).to_be_visible()
    expect(rows.nth(1).locator(".track")).to_be_hidden()
    note = page.get_by_role("columnheader", name="Checkpoint and note")
    expect(note).to_be_hidden()
    stage.claim(server, "fold/noted", "yann", metadata="a note")
    expect(note).to_be_visible()
    expect(page.get_by_role("cell", name="a note")).to_be_visible()


@pytest.mark.fault("F-691")
def test_a_server_that_says_nothing_is_not_called_live(visit: Visit) -> None:
    page = visit.enter("viewer", "/")
    expect(page.locator("#link-text")).to_have_text("Live")
    page.evaluate(NOTES_WORDS)
    began_s = monotonic()
    page.route("**/*", lambda _: None)  # requests go out, and nothing comes back
    expect(page.locator("#link-text")).to_have_text("Connection lost, retrying")
    assert page.evaluate("words.map((each) => each[0])")[:2] == ["Silent", "Connection lost, retrying"]
    silent_ms, lost_ms = page.evaluate("words.slice(0, 2).map((each) => each[1])")  # since the last sign of life
    stood_ms = stood_still_ms(began_s)
    assert (silent_ms - stood_ms < 3_000, lost_ms - stood_ms < 10_000) == (True, True), (silent_ms, lost_ms, stood_ms)
    page.unroute_all(behavior="ignoreErrors")
    expect(page.locator("#link-text")).to_have_text("Live")


@pytest.mark.promise("auth:cookie")
def test_a_viewer_has_no_buttons_and_is_refused_by_hand(visit: Visit) -> None:
    page = visit.enter("viewer", "/?page=job&name=deploy%2Feu-0")
    expect(page.get_by_text("Time left")).to_be_visible()
    expect(page.get_by_role("button", name="Break")).to_have_count(0)
    by_hand = """async ([path, mark]) => (await fetch(path, { method: "POST", body: '{"reason": "x"}',
        headers: { "Content-Type": "application/json", ...mark } })).status"""
    assert page.evaluate(by_hand, ["/locks/deploy%2Feu-0/break", {"X-Dibs-Request": "1"}]) == 403
    assert page.evaluate(by_hand, ["/sessions/00000000/break", {"X-Dibs-Request": "1"}]) == 403
    assert page.evaluate(by_hand, ["/locks/deploy%2Feu-0/break", {}]) == 401


def test_a_browser_whose_clock_is_off_shows_the_servers_time(visit: Visit, server: Server) -> None:
    visit.context.add_init_script(AN_HOUR_AHEAD)
    stage.claim(server, "on-time", "wanda", ttl_seconds=86_400)
    page = visit.enter("viewer", "/?q=on-time")
    expect(page.locator("tr.row .left-words")).to_have_text("23 h 59 min")
    expect(page.locator("tr.row .c-time").first).to_have_text(re.compile(r"^\d+ s$"))


def test_paper_has_all_rows_in_dark_ink_and_nothing_to_press(visit: Visit) -> None:
    page = visit.enter("operator", "/")
    page.set_viewport_size({"width": 1280, "height": 200})
    expect(in_rows(page, "issue-1042")).to_be_attached()
    rows = page.locator("tr.row")
    known = int(page.locator("table.rows").get_attribute("aria-rowcount") or 0) - 1
    expect(rows).not_to_have_count(known)
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert rows.count() == known
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 30, 35)"
    expect(page.get_by_role("button", name="Sign out")).to_be_hidden()
    expect(page.locator("#printed")).to_contain_text(re.compile(r"http://.* UTC"))
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(rows).not_to_have_count(known)
    expect(page.locator("#printed")).to_be_hidden()


def test_five_thousand_claims_keep_few_rows(visit: Visit, server: Server) -> None:
    for start in range(0, 5000, 100):
        names = [f"many-{number:04}" for number in range(start, start + 100)]
        asked = {"names": names, "owner": "batch", "ttl_seconds": 3600}
        assert server.ask("POST", "/locks/acquire-all?namespace=many", asked).status == 200
    page = visit.enter("viewer", "/?ns=many")
    expect(page.get_by_text("5,000 rows")).to_be_visible()
    expect(page.locator("#brand")).to_have_attribute("href", "/?ns=many")
    expect(in_rows(page, "many-0000")).to_be_visible()
    page.keyboard.press("End")
    expect(in_rows(page, "many-4999")).to_be_in_viewport()
    assert page.locator("tr.row").count() < 60
    assert page.locator("table.rows").get_attribute("aria-rowcount") == "5001"
    server.ask("POST", "/locks/many-0007/close?namespace=many", {"for_seconds": 600, "reason": "x"}, who="operator")
    expect(page.get_by_role("region", name="Needs you")).to_contain_text("many-0007 is closed")
    for direction in ("ascending", "descending"):
        page.get_by_role("button", name="Job").click()
        expect(page.locator("th.c-job").first).to_have_attribute("aria-sort", direction)
    page.evaluate("scrollTo(0, 0)")
    expect(in_rows(page, "many-4999")).to_be_in_viewport()
    assert page.evaluate(KEEPS_TWO_THOUSAND) == [2000, 2000, True]


@pytest.mark.fault("F-796")
def test_a_page_that_comes_late_does_not_hide_what_was_closed_meanwhile(visit: Visit, server: Server) -> None:
    page = visit.enter("viewer", "/")
    page.evaluate(READS_A_PAGE_AND_WAITS)
    closing = {"for_seconds": 600, "reason": "x"}
    assert server.ask("POST", "/locks/repaired/close?namespace=late", closing, who="operator").status == 200
    assert page.evaluate(READS_CLOSURES_BEFORE_THE_PAGE_COMES) == [[], ["repaired"], ["repaired"]]


def test_a_revoked_token_leads_back_to_the_login(visit: Visit, server: Server) -> None:
    path = server.guard.path
    assert path is not None
    page = visit.log_in("other")
    with open(path, "w") as file:
        file.write(LINES.replace("other:tok-other\n", ""))
    server.guard.reload()
    try:
        expect(page.get_by_role("alert").filter(has_text="Your login has ended")).to_be_visible()
        page.reload()
        expect(page.get_by_role("alert").filter(has_text="Your login has ended")).to_be_visible()
    finally:
        with open(path, "w") as file:
            file.write(LINES)
        server.guard.reload()


@pytest.mark.promise("board:live")
def test_the_page_survives_a_restart_and_a_stream_that_fails(browser: Browser, tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    with running(tmp_path, store=store, clock=clock) as first:
        port = first.port
        stage.claim(first, "before", "vera")
        visit = Visit(browser, first)
        page = visit.enter("viewer", "/")
        expect(in_rows(page, "before")).to_be_visible()
    expect(page.locator("#link-text", has_text="Connection lost, retrying")).to_be_visible()
    with running(tmp_path, store=store, clock=clock, port=port) as second:
        stage.claim(second, "after", "vera")
        expect(in_rows(page, "after")).to_be_visible()
        expect(page.locator("#link-text", has_text=re.compile("^Live$"))).to_be_visible()
        page.route("**/events?*", lambda route: route.abort())
        second.api.streams.close()
        expect(page.locator("#link-text", has_text="Live updates are interrupted")).to_be_visible()
        stage.claim(second, "by-polling", "vera")
        expect(in_rows(page, "by-polling")).to_be_visible()
        visit.close()
