"""A real browser: Debian's or another chromium with Playwright's Python package. The tests that need one are skipped without."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="package")  # not longer: while it is open an event loop counts as running in this thread
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install tandem-rl[dev]")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """`with opened(path or address, width=…, dark=…) as page`: afterwards there was no error, no message on the console, no request."""

    @contextmanager
    def open_page(what: Path | str, width: int = 1280, dark: bool = False, allowed: tuple[str, ...] = ()) -> Iterator:
        address = what.as_uri() if isinstance(what, Path) else what
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        page.set_default_timeout(10_000)
        faults, asked = [], []
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        yield page
        page.close()
        assert not faults
        foreign = [url for url in asked if url != address and not url.startswith(("data:", *(allowed or ("data:",))))]
        assert not foreign, "the page fetched something"

    return open_page
