"""axe-core finds nothing serious on any kind of page of the explorer."""

import pytest

from tests.accessibility import violations
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.explorer.web import drawn
from tests.explorer.web.conftest import served

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]

PAGES = {
    "start": "/",
    "image": "/item/a/gallery/9",
    "labels": "/tree",
    "label": "/label?node=1.0",
    "error": "/item/a/gallery/100000",
}
DARK_PHONE = {"color_scheme": "dark", "width": 390, "has_touch": True}


@pytest.fixture(scope="module")
def address(two):
    with served(two) as found:
        yield found


@pytest.fixture(scope="module")
def opened(browser, address):
    """Two pages, shared by all tests: on a desk, and on a phone with dark colors."""
    with guarded_pages(browser) as new_page:
        yield new_page(address), new_page(address, **DARK_PHONE)


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(opened, address, name):
    desk, phone = opened
    desk.goto(address + PAGES[name])
    assert violations(desk) == []
    if name in ("start", "image"):  # which have most on them
        phone.goto(address + PAGES[name])
        assert violations(phone) == []


def test_nor_before_and_after_an_upload(opened, address, tmp_path):
    drawn.figure("cogwheel", 77).save(tmp_path / "cog.png")
    page, _ = opened
    page.goto(address)
    page.get_by_label("search by image").set_input_files(tmp_path / "cog.png")
    search = page.get_by_role("dialog").get_by_role("button", name="Search")
    search.wait_for()
    assert violations(page) == []
    search.click()
    page.wait_for_url("**/upload")
    assert violations(page) == []
