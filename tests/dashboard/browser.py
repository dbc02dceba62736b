"""One Chromium for the tests of the dashboard: Debian's, driven by Playwright. Nothing is ever downloaded."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dibs.server.http.browser import NAME
from tests.server.harness import TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

    from tests.server.harness import Server

WAIT_MS = 30_000
# Another machine's name, as far as the browser knows: it sends less about who asks than to loopback.
ELSEWHERE = "board.test"


def expect(what: Page | Locator) -> Any:
    """Playwright's. Every worker collects every test, and only one imports Playwright."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=WAIT_MS)
    return expected(what)


@contextmanager
def chromium(program: str) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    # Chromium's own sandbox does not run as root, nor in most containers.
    options = ["--no-sandbox"] if os.geteuid() == 0 or os.environ.get("CI") else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=[*options, "--disable-dev-shm-usage", f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1"],
        )
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A browser window on a server, and everything that went wrong in it."""

    def __init__(self, browser: Browser, server: Server, host: str = "127.0.0.1", **options: Any) -> None:
        options.setdefault("viewport", {"width": 1280, "height": 800})
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(WAIT_MS)
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.base = f"http://{host}:{server.port}"
        self.page = self.tab()

    def tab(self) -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"a dialog: {dialog.message}"))
        page.on("console", self._heard)
        page.on("request", self._asked)
        return page

    def _heard(self, said: ConsoleMessage) -> None:
        if "Content Security Policy" in said.text:
            self.errors.append(said.text)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self.base):
            self.foreign.append(request.url)

    def log_in(self, who: str) -> Page:
        """By the form, as a person does."""
        self.page.goto(self.base)
        self.page.get_by_label("Token").fill(TOKENS[who])
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("button", name="Sign out").wait_for()
        return self.page

    def enter(self, who: str, address: str) -> Page:
        """With the cookie of somebody who has logged in."""
        self.context.add_cookies([{"name": NAME.decode(), "value": TOKENS[who], "url": self.base}])
        return self.open(address)

    def open(self, address: str) -> Page:
        self.page.goto(self.base + address)
        return self.page

    def close(self) -> None:
        self.context.close()
        assert not self.errors
        assert not self.foreign
