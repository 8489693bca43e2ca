"""A real browser for tests of pages: where it is, how it is started, and pages that are watched."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = Path(os.environ.get("SUPRANK_CHROMIUM", "/usr/bin/chromium-headless-shell"))

NEEDED = pytest.mark.skipif(not CHROMIUM.is_file(), reason=f"there is no browser at {CHROMIUM}")


@contextmanager
def launched():
    """The browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield found
        found.close()


@contextmanager
def watched(browser):
    """Makes pages that may ask only these addresses; at the end, no other was asked, no script failed, no policy was broken."""
    foreign, complaints, contexts = [], [], []

    def new_page(*addresses, width=1200, **options):
        context = browser.new_context(**{"viewport": {"width": width, "height": 800}, **options})
        contexts.append(context)

        def route(request):
            if request.request.url.startswith((*addresses, "data:")):
                request.continue_()
            else:
                foreign.append(request.request.url)
                request.abort()

        context.route("**/*", route)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if "Content Security" in message.text else None)
        return page

    yield new_page
    for context in contexts:
        context.close()
    assert (foreign, complaints) == ([], [])
