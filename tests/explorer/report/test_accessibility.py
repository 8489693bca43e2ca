"""axe-core finds nothing serious in a report: of one run on a light desk, and of two on a dark phone."""

import pytest

from suprank import open_data
from suprank.explorer.report import report_page
from tests.accessibility import violations
from tests.browsers import NEEDS_BROWSER, guarded_pages

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]

LOOKS = {
    "one run": ("one", {}),
    "two runs on a dark phone": ("two", {"width": 390, "has_touch": True, "color_scheme": "dark"}),
}


@pytest.fixture(scope="module")
def reports(runs, page, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    (folder / "two.html").write_text(page, encoding="utf-8")
    (folder / "one.html").write_text(report_page(open_data(runs[0]), queries=4, top=5), encoding="utf-8")
    return folder


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_serious(browser, reports, look):
    name, options = LOOKS[look]
    url = (reports / f"{name}.html").as_uri()
    with guarded_pages(browser) as new_page:
        page = new_page(url, **options)
        page.goto(url)
        assert violations(page) == []
