"""Pages in headless Chromium, and what they must not do."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

__all__ = ["Opened", "barriers", "find_browser"]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str:
    named = os.environ.get("SPECX_TEST_BROWSER")
    found = next(filter(None, map(shutil.which, [named] if named else BROWSERS)), None)
    if found is None:
        pytest.skip("needs Chromium on the path, or SPECX_TEST_BROWSER=/path/to/it")
    return found


class Opened:
    """A page and what it did while it was open."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page = browser.new_page(**context)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(address)


def barriers(page: Any) -> list[Any]:
    """Serious findings of axe; the page must have been opened with `bypass_csp`."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs the extra 'browser'"
    )
    found = axe.Axe().run(page).response["violations"]
    return [each for each in found if each["impact"] in ("serious", "critical")]
