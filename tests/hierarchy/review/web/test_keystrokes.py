"""Keys that are pressed while the server answers are carried out afterwards, in their order, however slow it is."""

import asyncio
from typing import ClassVar

import pytest

from suprank.hierarchy.review import open_branch
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.hierarchy.review.small_project import CASTLE, CHURCH, small_project
from tests.hierarchy.review.web.conftest import served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]
expect = playwright.expect


class SlowServer:
    """Middleware that answers the requests of an annotator that many seconds late."""

    delays: ClassVar[dict[str, float]] = {}

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            await asyncio.sleep(SlowServer.delays.get(scope["path"].split("/")[1], 0))
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    """The address of a server of a small project, and branches of it, each for a test to take."""
    project = small_project(tmp_path_factory.mktemp("slow") / "p")
    found = [open_branch(project, f"anna-{number}") for number in range(20)]
    with served(project, [branch.name for branch in found], SlowServer) as address:
        yield address, iter(found)


@pytest.fixture
def slow(browser, branches):
    """Opens a page of a branch of its own, on a server that answers this many milliseconds late from then on."""
    address, unused = branches
    with guarded_pages(browser) as new_page:

        def open_page(path, delay):
            branch = next(unused)
            page = new_page(address)
            page.goto(f"{address}/{branch.name}/enter?token={branch.token}")
            page.goto(f"{address}/{branch.name}{path}")
            SlowServer.delays[branch.name] = delay / 1000
            return page, branch

        yield open_page


def press(page, text):
    """Press these keys one after the other, and wait for nothing."""
    for key in text:
        page.keyboard.press({"⏎": "Enter", "⇥": "Tab", "⌫": "Backspace"}.get(key, key))


def events(page, branch, count):
    """The actions on the branch after its start, once there are this many; fewer after a minute."""
    for _ in range(1200):
        log = branch.log(newest_first=False)[1:]
        if len(log) >= count:
            break
        page.wait_for_timeout(50)
    return [event.summary for event in log]


def test_a_key_after_a_rename_is_not_lost(slow):
    opened = {}
    # The key comes before the page, with it, and after it; the slow first: they wait while others are typed at.
    for case in ((800, 50), (150, 50), (150, 150), (50, 50), (50, 150), (0, 50)):
        delay, pause = case
        page, _ = opened[case] = slow(f"/group/{CHURCH}", delay)
        press(page, "rkirk⏎")
        page.wait_for_timeout(pause)
        press(page, "d")
    for case, (page, branch) in opened.items():
        assert events(page, branch, 2) == ["renamed 'church' to 'kirk'", "marked 'kirk' done"], case
        expect(page.get_by_role("heading", level=1)).to_contain_text("castle")


def test_a_whole_review_typed_without_looking(slow):
    """All keys but the first are pressed while a page is under way: also text, the choice of a parent, Tab and Backspace."""
    page, branch = slow(f"/group/{CHURCH}", 100)
    press(page, "rkirxx⌫⌫k⏎" + "phum⇥⏎" + "d" + "rfortress⏎" + "jjxefort ⌫ is vague⏎" + "udn")
    assert events(page, branch, 7) == [
        "renamed 'church' to 'kirk'",
        "put 'kirk' under 'human-made'",
        "marked 'kirk' done",
        "renamed 'castle' to 'fortress'",
        "excluded 1 label: fort is vague",
        "undid: excluded 1 label: fort is vague",
        "marked 'fortress' done",
    ]
    expect(page.get_by_role("heading", level=1)).to_contain_text("lake")
    assert branch.problems() == []


def test_keys_after_a_refused_action_are_named_and_not_carried_out(slow):
    page, branch = slow(f"/group/{CHURCH}", 400)
    press(page, "rCastle⏎d⏎")  # Enter would accept the offer to merge the two groups
    expect(page.get_by_role("alert")).to_contain_text("The keys pressed since then were ignored: d Enter.")
    expect(page.get_by_role("button", name="merge this group into 'castle'")).to_be_focused()
    assert events(page, branch, 0) == []
    press(page, "⏎")
    assert events(page, branch, 1) == ["merged 'church' into 'castle'"]


def test_a_click_while_a_form_is_sent_waits_for_it_and_a_second_form_is_not_sent(slow):
    page, branch = slow(f"/group/{CHURCH}", 150)
    press(page, "rkirk⏎")
    page.get_by_role("button", name="save note").click()
    page.get_by_role("link", name="tree").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Tree")
    assert events(page, branch, 1) == ["renamed 'church' to 'kirk'"]


def test_a_server_that_is_gone_is_reported_and_nothing_typed_is_lost(slow):
    page, branch = slow(f"/group/{CHURCH}", 0)
    page.context.set_offline(True)
    press(page, "rkirk⏎")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    expect(page.locator("#name")).to_have_value("kirk")
    page.context.set_offline(False)
    page.get_by_role("button", name="accept").click()
    assert events(page, branch, 1) == ["renamed 'church' to 'kirk'"]


def test_back_and_forward_show_the_pages_again(slow):
    page, _ = slow("/", 0)
    heading = page.get_by_role("heading", level=1)
    page.get_by_role("link", name="castle").click()
    expect(heading).to_contain_text("castle")
    expect(heading).to_be_focused()  # a screen reader says where we are
    press(page, "n")
    expect(heading).to_contain_text("lake")
    page.go_back()
    expect(heading).to_contain_text("castle")
    assert page.url.endswith(f"/group/{CASTLE}")
    page.go_back()
    expect(heading).to_contain_text("supercategory")
    page.go_forward()
    expect(heading).to_contain_text("castle")
    page.reload()
    expect(heading).to_contain_text("castle")


def test_text_typed_into_a_field_of_the_page_that_leaves_goes_into_the_same_field_of_the_next(slow):
    page, branch = slow(f"/group/{CHURCH}", 150)
    press(page, "rkirk⏎")
    page.locator("#note").click()
    press(page, "d n")
    expect(page.get_by_role("heading", level=1)).to_contain_text("kirk")
    expect(page.locator("#note")).to_have_value("d n")
    assert events(page, branch, 1) == ["renamed 'church' to 'kirk'"]


def test_a_server_that_was_restarted_gives_its_own_script(slow):
    page, branch = slow(f"/group/{CHURCH}", 0)
    with page.expect_navigation(wait_until="load"):
        page.locator("script[src]").evaluate("one => one.setAttribute('src', '/script.js?v=of+another+start')")
        press(page, "rkirk⏎")
    expect(page.locator(".message.good")).to_have_text("Renamed 'church' to 'kirk'.")
    assert "another" not in page.locator("script[src]").get_attribute("src")
    press(page, "d")
    assert events(page, branch, 2) == ["renamed 'church' to 'kirk'", "marked 'kirk' done"]
