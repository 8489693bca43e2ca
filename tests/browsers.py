"""A real browser for tests of web pages. Pages fail a test if they contact another host or break a policy."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = Path(os.environ.get("SUPRANK_CHROMIUM", "/usr/bin/chromium-headless-shell"))

PATIENCE = 60_000
"""Milliseconds that a page may take on a busy machine."""

NEEDS_BROWSER = pytest.mark.skipif(not CHROMIUM.is_file(), reason=f"there is no browser at {CHROMIUM}")


@contextmanager
def launch_browser():
    """Start the browser."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as started:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield browser
        browser.close()


@contextmanager
def guarded_pages(browser):
    """A function that opens pages limited to these URLs.

    At the end, no other URL was requested, no script failed and no content policy was violated.
    """
    foreign, problems, contexts = [], [], []

    def new_page(*urls, width=1200, **options):
        context = browser.new_context(**{"viewport": {"width": width, "height": 800}, **options})
        contexts.append(context)

        def handle(route):
            if route.request.url.startswith((*urls, "data:")):
                route.continue_()
            else:
                foreign.append(route.request.url)
                route.abort()

        context.route("**/*", handle)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("dialog", lambda dialog: problems.append(f"a label opened a dialog: {dialog.message}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
        return page

    yield new_page
    for context in contexts:
        context.close()
    assert (foreign, problems) == ([], [])
