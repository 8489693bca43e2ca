"""The page in a real browser, opened from disk: nothing fails, nothing is asked of a network, and it fits a phone."""

import pytest

from tests.browsers import NEEDS_BROWSER, guarded_pages

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def file(page, tmp_path_factory):
    found = tmp_path_factory.mktemp("report") / "report.html"
    found.write_text(page, encoding="utf-8")
    return found


@pytest.fixture
def opened(browser, file):
    """Opens the page; at the end, nothing but the file was asked for, no script failed, and no policy was broken."""
    with guarded_pages(browser) as new_page:

        def open_page(**options):
            shown = new_page(file.as_uri(), **options)
            shown.goto(file.as_uri())
            return shown

        yield open_page


def background(shown):
    return shown.evaluate("getComputedStyle(document.body).backgroundColor")


def test_both_themes_have_their_own_colors(opened):
    light, dark = opened(color_scheme="light"), opened(color_scheme="dark")
    assert background(light) == "rgb(255, 255, 255)"
    assert background(dark) == "rgb(20, 23, 26)"
    axis = "getComputedStyle(document.querySelector('.plot text')).fill"
    assert dark.evaluate(axis) == "rgb(228, 231, 234)", "figures follow"
    frame = "getComputedStyle(document.querySelector('.tile.level-2 .frame')).borderTopColor"
    assert (light.evaluate(frame), dark.evaluate(frame)) == ("rgb(46, 125, 50)", "rgb(102, 187, 106)")


def test_galleries_show_without_a_script(opened):
    shown = opened(java_script_enabled=False)
    tile = shown.locator(".strip use").first
    tile.scroll_into_view_if_needed()
    assert tile.bounding_box()["width"] > 40


def test_galleries_are_drawn_as_they_come_into_view_and_links_find_them(opened):
    shown = opened()
    last = shown.locator("#random .gallery .strip").last
    drawn = "one => one.checkVisibility({ contentVisibilityAuto: true })"
    assert not last.evaluate(drawn)
    shown.emulate_media(reduced_motion="reduce")
    shown.locator(".contents a[href='#random']").click()
    shown.wait_for_function("Math.abs(document.querySelector('#random').getBoundingClientRect().top) < 100")
    last.scroll_into_view_if_needed()
    assert last.evaluate(drawn)


def test_recipes_are_collapsed_until_their_link_is_followed_even_without_a_script(opened):
    shown = opened(java_script_enabled=False, reduced_motion="reduce")
    table = shown.locator("#recipe table").first
    assert not table.is_visible()
    shown.locator("nav a[href='#recipe']").click()
    table.wait_for(state="visible")
    title, contents = shown.locator("#recipe-title").bounding_box(), shown.locator("nav").bounding_box()
    assert contents["y"] + contents["height"] <= title["y"] < 800, "the title is in sight, below the table of contents"
    shown.locator("summary", has_text="Recipes").focus()
    shown.keyboard.press("Enter")
    assert not table.is_visible()


def test_paper_shows_what_the_screen_collapses(opened):
    shown = opened()
    assert not shown.locator("#recipe table").first.is_visible()
    shown.emulate_media(media="print")
    for place in ("#recipe table", ".metrics .what", ".lead"):
        assert shown.locator(place).first.is_visible(), place
        assert shown.locator(place).first.bounding_box()["height"] > 10


def test_the_first_screen_has_the_verdict(opened):
    for width, height in ((1280, 800), (390, 844)):
        lead = opened(viewport={"width": width, "height": height}).locator(".lead").bounding_box()
        assert lead["y"] + lead["height"] < height


def test_a_phone_scrolls_down_and_not_sideways(opened):
    shown = opened(width=390, has_touch=True)
    for width in (390, 320):
        shown.set_viewport_size({"width": width, "height": 844})
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
