"""Debian's chromium, driven by playwright: for the tests that open a report as a reader does."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")


@dataclass
class Opened:
    """A page in the browser, and everything that it should not have done."""

    page: object
    requests: list[str] = field(default_factory=list)  # all that was asked for, the page itself too
    complaints: list[str] = field(default_factory=list)  # errors and warnings of the console, and exceptions
    dialogs: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


@contextmanager
def chromium() -> Iterator[object]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install 'steadytune[test]'"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium, or make browser as root")
    with api.sync_playwright() as playwright:
        # Root, as in a container, has no user namespace for the sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, file: Path, **settings) -> Iterator[Opened]:
    """The file in a window of its own; whatever it asks for beside itself is refused and written down."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
    try:
        page = context.new_page()
        found = Opened(page)
        address = file.resolve().as_uri()

        def answer(route) -> None:
            found.requests.append(route.request.url)
            if route.request.url == address:
                route.continue_()
            else:
                route.abort()

        def refuse(dialog) -> None:
            found.dialogs.append(dialog.message)
            dialog.dismiss()

        page.route(lambda url: not url.startswith("data:"), answer)
        page.on("dialog", refuse)
        page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.goto(address, wait_until="load")
        yield found
    finally:
        context.close()
