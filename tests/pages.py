"""Pages in Debian's Chromium: what one shows, what its console says, which addresses it asks for. No traffic but to loopback.

with pages.chromium() as browser, pages.opened(browser, address) as shown:
    assert shown.page.title() == "..."
    assert (shown.errors, shown.asked) == ([], [])
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
OPTIONS = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-proxy-server", "--disable-background-networking"]
SECONDS = 30


@dataclass
class Shown:
    """A page that is open, and what happened while it loaded; the lists grow as long as it is open."""

    page: Page
    errors: list[str] = field(default_factory=list)
    """Errors on the console and exceptions that nobody caught."""
    asked: list[str] = field(default_factory=list)
    """Addresses asked for, those below the page's own and `data:` left out."""
    failed: list[str] = field(default_factory=list)
    """Addresses that could not be had, with why; answers from 400 on included."""

    def text(self) -> str:
        """What a person reads, without what is hidden."""
        return self.page.inner_text("body")

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window: above 0 it scrolls sideways."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def screenshot(self, path: Path, whole: bool = True) -> bytes:
        """Write a PNG of the whole page, or of the window alone; gives its bytes, too."""
        return self.page.screenshot(path=path, full_page=whole)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; where there is none, the test is skipped, or fails when the environment variable CI is set."""
    if not CHROMIUM.is_file():
        missing = f"{CHROMIUM} is not there: apt-get install chromium"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*OPTIONS, *sandbox])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(
    browser: Browser, address: str, width: int = 1280, height: int = 800, dark: bool = False, scripts: bool = True, paper: bool = False
) -> Iterator[Shown]:
    """Open an address (`http://127.0.0.1:...` or `file:///...`) in a profile of its own.

    Args:
        browser: of `chromium`.
        address: waited for until it has loaded; wait for what a script adds with `shown.page.wait_for_selector`.
        width: of the window, in CSS pixels; 390 is a phone.
        height: likewise.
        dark: what `prefers-color-scheme` says.
        scripts: whether JavaScript is on.
        paper: as it would be printed.
    """
    window = {"width": width, "height": height}
    context = browser.new_context(viewport=window, color_scheme="dark" if dark else "light", java_script_enabled=scripts)
    try:
        shown = Shown(context.new_page())
        shown.page.set_default_timeout(SECONDS * 1000)
        shown.page.emulate_media(media="print" if paper else "screen")
        _listen(shown, address)
        shown.page.goto(address)
        yield shown
    finally:
        context.close()


def _listen(shown: Shown, address: str) -> None:
    def collect(message: ConsoleMessage) -> None:
        if message.type == "error":
            shown.errors.append(message.text)

    page = shown.page
    page.on("console", collect)
    page.on("pageerror", lambda error: shown.errors.append(str(error)))
    page.on("request", lambda one: shown.asked.append(one.url) if not one.url.startswith(("data:", address)) else None)
    page.on("requestfailed", lambda one: shown.failed.append(f"{one.url}: {one.failure}"))
    page.on("response", lambda one: shown.failed.append(f"{one.url}: {one.status}") if one.status >= 400 else None)
