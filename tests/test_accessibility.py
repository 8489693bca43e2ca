"""What tests of pages ask axe-core."""

import pytest

from tests.accessibility import EVERY_IMPACT, violations
from tests.browsers import NEEDS_BROWSER

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]

PAGE = """<!doctype html><html lang="en"><head><title>A page</title></head><body><main><h1>A page</h1>
<img src="data:," {}><img src="data:," {}></main><p>Beside all landmarks</p></body></html>"""


def test_violations_are_named_counted_and_shown_from_the_given_impacts_on(browser):
    page = browser.new_page()
    page.set_content(PAGE.format("", ""))
    assert violations(page) == ['image-alt × 2: <img src="data:,">']
    assert [one.split()[0] for one in violations(page, EVERY_IMPACT)] == ["image-alt", "region"]
    page.set_content(PAGE.format('alt="one"', 'alt="two"'))
    assert violations(page) == []
    page.close()
