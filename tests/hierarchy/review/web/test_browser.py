"""The review in a real browser, with and without scripts. No request may leave the machine."""

import pytest

from suprank.hierarchy.review import open_branch
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.hierarchy.review.small_project import small_project, tree
from tests.hierarchy.review.web.conftest import served
from tests.hierarchy.review.web.large_project import large_project

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]
expect = playwright.expect


@pytest.fixture
def opened(browser):
    """Opens pages. At the end, no other host was contacted, no script failed, and no content policy was violated."""
    with guarded_pages(browser) as new_page:

        def open_page(address, branch, path="/", **options):
            page = new_page(address, **options)
            page.goto(f"{address}/{branch.name}/enter?token={branch.token}")
            page.goto(f"{address}/{branch.name}{path}")
            return page

        yield open_page


class Keys:
    """A keyboard that waits until the page and its script are loaded, as a person would."""

    def __init__(self, page):
        self.page = page

    def press(self, key):
        self.page.wait_for_load_state()
        self.page.keyboard.press(key)

    def type(self, text):
        self.page.keyboard.type(text)


@pytest.fixture
def small(tmp_path):
    project = small_project(tmp_path / "p")
    branch = open_branch(project, "anna")
    with served(project, ["anna"]) as address:
        yield address, branch


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    project = large_project(tmp_path_factory.mktemp("middle") / "p", labels=800, clusters=60, largest=450)
    branch = open_branch(project, "anna")
    with served(project, ["anna"]) as address:
        yield address, branch


def test_a_review_with_the_keyboard_only(opened, small):
    branch = small[1]
    page = opened(*small)
    keys = Keys(page)
    keys.press("j")
    keys.press("Enter")  # opens church, the largest
    expect(page.get_by_role("heading", level=1)).to_contain_text("church")
    keys.press("ArrowDown")
    keys.press("j")
    keys.press("x")
    expect(page.locator("#selected")).to_have_text("1 selected")
    keys.press("s")
    keys.type("chapel")
    keys.press("Enter")
    expect(page.locator(".message.good")).to_have_text("Split 'chapel' (1 label) off 'church'.")
    page.wait_for_load_state()
    assert "did=" not in page.url  # a reload does not report it again
    expect(page.locator("#selected")).to_have_text("nothing selected")
    keys.press("u")
    expect(page.locator(".message.good")).to_contain_text("Undid: split")
    keys.press("U")
    expect(page.locator(".message.good")).to_contain_text("Redid: split")
    keys.press("j")
    keys.press("j")
    keys.press("Space")
    keys.press("e")
    keys.type("too vague")
    keys.press("Enter")
    expect(page.locator(".message.good")).to_contain_text("Excluded 1 label: too vague")
    keys.press("d")  # its name is only suggested: the first offer has the focus
    expect(page.locator(".message.bad")).to_contain_text("is only a suggested name")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("castle")
    keys.press("r")
    keys.type("fortress")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("fortress")
    keys.press("d")
    expect(page.get_by_role("heading", level=1)).to_contain_text("lake")
    keys.press("a")
    keys.press("m")
    keys.type("Fortress")
    keys.press("Enter")
    expect(page.locator(".message.good")).to_contain_text("moved 2 labels to 'fortress'", ignore_case=True)
    found, excluded = tree(branch)
    assert found["fortress"][1] == ["castle", "fort", "lake", "river"]
    assert excluded == {"heritage site": "too vague"}
    assert branch.problems() == []


def test_keys_for_rows_fields_and_help(opened, middle):
    page = opened(*middle, "/group/3")
    keys = Keys(page)
    for key in ("j", "j", "x", "j", "j", "j", "X"):
        keys.press(key)
    expect(page.locator("#selected")).to_have_text("4 selected")
    page.locator("tr[data-row] input").nth(6).click(modifiers=["Shift"])
    expect(page.locator("#selected")).to_have_text("6 selected")
    keys.press("a")
    expect(page.locator("#selected")).to_have_text("200 selected")
    keys.press("a")
    expect(page.locator("#selected")).to_have_text("nothing selected")
    for _ in range(2):
        page.keyboard.down("x")  # held down: the second is a repetition
    expect(page.locator("#selected")).to_have_text("1 selected")
    page.keyboard.up("x")
    keys.press("x")
    keys.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    keys.press("p")
    expect(page.locator("#parent")).to_be_focused()
    keys.press("Escape")
    keys.press("n")
    page.wait_for_url("**/group/*")
    expect(page.get_by_role("heading", level=1)).not_to_contain_text("church 0")
    keys.press("N")
    expect(page.get_by_role("heading", level=1)).to_contain_text("church 0")
    keys.press("/")
    keys.type("dx?")
    expect(page.get_by_role("searchbox").first).to_have_value("dx?")  # keys are letters here
    keys.press("Escape")
    expect(page.get_by_role("searchbox").first).not_to_be_focused()


def test_the_selection_survives_paging_sorting_and_filtering(opened, middle):
    address, branch = middle
    page = opened(address, branch, "/group/3")
    page.get_by_role("checkbox", name="new church 0-1", exact=True).check()
    page.get_by_role("link", name="next →").click()
    page.get_by_role("checkbox", name="old church 0-204", exact=True).check()
    expect(page.locator("#selected")).to_have_text("2 selected, 1 of them on other pages")
    page.get_by_role("link", name="text", exact=True).click()
    page.wait_for_url("**sort=text*")
    page.get_by_label("labels", exact=True).last.fill("of no label")
    page.keyboard.press("Enter")
    expect(page.locator("#selected")).to_have_text("2 selected, 2 of them on other pages")
    page.get_by_label("labels", exact=True).last.fill("new church 0-1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("checkbox", name="new church 0-1", exact=True)).to_be_checked()
    expect(page.locator("#selected")).to_have_text("2 selected, 1 of them on other pages")
    page.locator("#note").fill("not saved yet")
    page.get_by_label("split off as").fill("two")
    page.get_by_role("button", name="split off").click()
    expect(page.locator(".message.good")).to_contain_text("(2 labels)")
    assert tree(branch)[0]["two"][1] == ["new church 0-1", "old church 0-204"]
    expect(page.locator("#note")).to_have_value("not saved yet")  # of another form, and not lost
    expect(page.locator("#selected")).to_have_text("nothing selected")


def test_selected_groups_survive_paging_and_focus_returns_to_its_row(opened, middle):
    address, branch = middle
    page = opened(address, branch, "/?sort=name")
    keys = Keys(page)
    first = page.locator("[data-open]").first.inner_text()
    for key in ("j", "x"):
        keys.press(key)
    page.get_by_role("link", name="next →").click()
    expect(page.locator("#selected")).to_have_text("1 selected, 1 of them on other pages")
    for key in ("j", "j", "j", "x"):
        keys.press(key)
    second = page.locator("tr.here [data-open]").inner_text()
    keys.press("p")
    page.locator("#parent").select_option("natural")
    page.get_by_role("button", name="put there", exact=True).click()
    expect(page.locator(".message.good")).to_have_text(f"Put '{second}', '{first}' under 'natural'.")
    expect(page.locator("#selected")).to_have_text("nothing selected")
    expect(page.locator("tr.here [data-open]")).to_have_text(second)
    expect(page.locator("tr.here")).to_be_focused()


def test_everything_works_without_scripts(opened, small):
    branch = small[1]
    page = opened(*small, java_script_enabled=False)
    page.get_by_role("checkbox", name="castle").check()
    page.get_by_label("merge into").fill("church")
    page.keyboard.press("Enter")
    expect(page.locator(".message.good")).to_contain_text("Merged 'castle' into 'church'")
    page.locator("table a", has_text="church").click()
    page.get_by_role("checkbox", name="fort", exact=True).check()
    page.get_by_role("checkbox", name="castle", exact=True).check()
    page.get_by_label("move to").fill("castles")
    page.get_by_role("button", name="move", exact=True).click()
    expect(page.get_by_role("checkbox", name="fort", exact=True)).to_be_checked()
    page.get_by_role("button", name="create 'castles' from the selected labels").click()
    page.get_by_label("kind", exact=True).select_option("human-made")
    page.get_by_role("button", name="put under").click()
    page.get_by_role("button", name="undo").click()
    page.get_by_role("link", name="tree").click()
    page.get_by_role("checkbox", name="castles").check()
    page.get_by_label("put under").select_option("human-made")
    page.get_by_role("button", name="put there", exact=True).click()
    assert tree(branch)[0]["castles"] == ("human-made", ["castle", "fort"])
    page.get_by_role("link", name="keys").click()
    expect(page.locator("main")).to_contain_text("next, previous row")


def test_pages_fit_on_a_phone_in_light_and_dark_mode(opened, middle):
    page = opened(*middle, has_touch=True, color_scheme="dark")
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    base = page.url.rstrip("/")
    for path in (
        "/",
        "/group/3",
        "/group/7?suggest=1",
        "/search?q=old",
        "/tree",
        "/parent/1",
        "/excluded",
        "/history",
        "/help",
        "/x",
    ):
        page.goto(base + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    light = opened(*middle, color_scheme="light")
    assert light.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
