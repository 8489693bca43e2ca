"""Selections and tags in a real browser: filter, order, tag by keyboard, download."""

import pytest

from suprank.explorer.web.selections import parse_query
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.explorer.web import drawn
from tests.explorer.web.conftest import served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]
expect = playwright.expect


def test_filter_order_tag_and_download(browser, images, tmp_path):
    explorer = drawn.explorer(images, two=True, tags=tmp_path / "tags.csv")
    with served(explorer) as address, guarded_pages(browser) as new_page:
        page = new_page(address, width=1100)
        page.goto(address)
        page.locator("select[name=result_b]").select_option("✗ wrong")
        page.wait_for_url("**/?result_b=wrong")
        page.locator("select[name=order]").select_option("by shape better than by pixels first")
        page.wait_for_url("**/?result_b=wrong&order=first_better")
        first = page.locator(".tile").first
        expect(first.locator(".result").nth(1)).to_contain_text("✗")
        row = explorer.browser.list_images(parse_query(explorer, "result_b=wrong&order=first_better")).images[0].row
        expect(first.locator("a").first).to_have_attribute("href", f"/item/a/gallery/{row}")

        page.keyboard.press("ArrowRight")
        page.keyboard.press("t")
        page.keyboard.type("odd; one")
        page.keyboard.press("Enter")
        expect(page.locator("#tagging [role=alert]")).to_contain_text("may not contain ';'")
        page.keyboard.press("Control+A")
        page.keyboard.type("odd one")
        page.keyboard.press("Enter")
        expect(page.locator("#tagging")).to_be_hidden()
        expect(first.locator(".tag")).to_have_text(["odd one"])
        expect(first.locator("a").first).to_be_focused()
        page.keyboard.press("t")
        page.keyboard.type("second")
        page.keyboard.press("Enter")
        expect(first.locator(".tag")).to_have_text(["odd one", "second"])
        first.get_by_role("link", name="+ tag").click()
        page.get_by_role("button", name="remove the tag second").click()
        expect(first.locator(".tag")).to_have_text(["odd one"])
        page.keyboard.press("Escape")
        assert (tmp_path / "tags.csv").read_text().endswith(",,odd one\n")

        with page.expect_download() as download:
            page.get_by_role("link", name="Download as CSV").click()
        lines = download.value.path().read_text(encoding="utf-8").splitlines()
        assert download.value.suggested_filename == "selection.csv"
        assert len(lines) == 1 + len(explorer.browser.rows(parse_query(explorer, "result_b=wrong")))
        assert lines[1].endswith(",odd one")

        page.locator("summary", has_text="Tag all").click()
        page.locator(".actions").get_by_label("tag").fill("check")
        page.get_by_role("button", name="add to all").click()
        page.get_by_role("button", name=f"tag {len(lines) - 1} images").click()
        expect(page.locator("select[name=tag]")).to_contain_text(f"check ({len(lines) - 1})")
        page.locator(".tile a").first.click()
        page.wait_for_url("**/item/**")
        page.keyboard.press("t")
        page.keyboard.type("here")
        page.keyboard.press("Enter")
        expect(page.locator(".own-tags .chip a")).to_have_text(["check", "here", "odd one"])
        page.get_by_role("button", name="remove the tag here").click()
        expect(page.locator(".own-tags .chip a")).to_have_text(["check", "odd one"])
        page.set_viewport_size({"width": 360, "height": 740})
        for path in ("/", "/?result_b=wrong", "/item/a/gallery/3", "/tags", "/tag-all?name=x", "/tree?order=second_better"):
            page.goto(address + path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
