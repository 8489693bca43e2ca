"""The page in a real browser, with its script, and without. No request may leave the machine."""

import pytest

from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.explorer.web.conftest import served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]
expect = playwright.expect


@pytest.fixture(scope="module")
def addresses(one, two):
    with served(one) as first, served(two) as second:
        yield first, second


@pytest.fixture
def opened(browser, addresses):
    """Opens pages; at the end, nothing was asked of another host, no script failed, and no policy was broken."""
    with guarded_pages(browser) as new_page:

        def open_page(path="/", *, run=0, **options):
            page = new_page(*addresses, width=1100, **options)
            page.goto(addresses[run] + path)
            return page

        yield open_page


def test_search_by_text_and_click_through(opened):
    page = opened()
    page.get_by_role("searchbox").fill("clover")
    page.get_by_role("button", name="search", exact=True).click()
    page.wait_for_url("**/?q=clover")
    expect(page.get_by_text("8 images")).to_be_visible()
    page.locator(".tiles a").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("clover")
    first = page.locator("ol.tiles li").first
    expect(first).to_contain_text("same kind")
    href = first.locator("a").get_attribute("href")
    first.locator("a").click()
    assert page.url.endswith(href)
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("clover")


def test_all_pictures_of_a_page_are_shown(opened):
    page = opened("/item/a/gallery/9")
    page.evaluate("for (const one of document.images) one.loading = 'eager'")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("[...document.images].every((one) => one.complete && one.naturalWidth > 0)")


def test_filters_apply_when_they_are_chosen_and_an_address_can_be_sent(opened):
    page = opened("/item/a/gallery/9")
    page.get_by_label("show").select_option("same family only")
    page.wait_for_url("**?level=1")
    names = page.locator("ol.tiles .level").all_inner_texts()
    assert names
    assert set(names) == {"same family"}
    again = opened("/" + page.url.split("/", 3)[3])
    assert again.locator("ol.tiles .level").all_inner_texts() == names


def test_two_runs_side_by_side(opened):
    page = opened("/item/a/gallery/40", run=1)
    lists = page.locator("section.ranking")
    expect(lists).to_have_count(2)
    boxes = [lists.nth(number).bounding_box() for number in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    expect(lists.nth(0).locator("h2")).to_have_text("by shape")
    expect(lists.nth(1).locator("li").first).to_contain_text("other run:")
    lists.nth(1).locator("li a").first.click()
    expect(page.locator("section.ranking")).to_have_count(2)


def test_a_walk_through_the_labels(opened):
    page = opened("/tree", run=1)
    page.get_by_role("link", name="wheel").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("family wheel")
    page.get_by_role("link", name="lowest AP").click()
    page.locator("table a", has_text="ring").click()
    expect(page.locator(".crumbs")).to_contain_text("wheel")
    expect(page.locator(".tiles li")).to_have_count(8)
    page.get_by_role("link", name="8 images").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("ring")


def test_keys_move_open_search_and_help(opened):
    page = opened("/item/a/gallery/3")

    def focused():
        return page.evaluate("[...document.querySelectorAll('[data-navigable]')].indexOf(document.activeElement)")

    page.keyboard.press("ArrowRight")
    assert focused() == 0
    page.keyboard.press("ArrowRight")
    assert focused() == 1
    page.keyboard.press("ArrowDown")
    below = focused()
    assert below > 3
    columns = page.evaluate("getComputedStyle(document.querySelector('ol.tiles')).gridTemplateColumns.split(' ').length")
    assert below == 1 + columns
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert focused() == 0
    href = page.evaluate("document.activeElement.getAttribute('href')")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{href}")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("n")
    page.wait_for_url("**offset=48")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("ring?")
    expect(page.get_by_role("searchbox")).to_have_value("ring?")  # keys are letters here
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=ring")


def test_a_page_that_is_not_there_leads_back(opened):
    page = opened("/item/a/gallery/1000000")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Not found")
    page.get_by_role("link", name="All images").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Images")


def test_without_a_script_it_can_be_browsed_searched_and_filtered(opened):
    page = opened(java_script_enabled=False)
    page.locator(".tiles a").nth(3).click()
    page.get_by_label("show").select_option("other")
    page.get_by_role("button", name="filter").click()
    assert set(page.locator("ol.tiles .level").all_inner_texts()) == {"other"}
    page.get_by_role("link", name="keyboard").click()
    expect(page.locator("main")).to_contain_text("next and previous page")


def test_on_a_phone_nothing_sticks_out(opened, addresses):
    page = opened(run=1, has_touch=True)
    page.set_viewport_size({"width": 360, "height": 740})
    for path in ("/", "/item/a/gallery/40", "/tree", "/tree?node=1.1", "/?q=star", "/nothing"):
        page.goto(addresses[1] + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path


def test_light_and_dark(opened):
    shades = []
    for scheme in ("light", "dark"):
        page = opened("/item/a/gallery/3", color_scheme=scheme)
        shades.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shades == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]
