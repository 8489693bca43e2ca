"""On a phone, actions stay in reach and pictures stay; and axe-core finds nothing on any page, there and on a desk."""

import pytest

from suprank.hierarchy.review import open_branch
from tests.accessibility import EVERY_IMPACT, violations
from tests.browsers import NEEDS_BROWSER, guarded_pages
from tests.hierarchy.review.small_project import two_branches
from tests.hierarchy.review.web.conftest import served
from tests.hierarchy.review.web.large_project import large_project
from tests.hierarchy.review.web.test_app import add_images

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [NEEDS_BROWSER, pytest.mark.xdist_group("browser")]
expect = playwright.expect

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture(scope="module")
def review(tmp_path_factory):
    """A group of 60 labels with a picture each, under the branch anna, and its URL."""
    folder = tmp_path_factory.mktemp("phone")
    project = large_project(folder / "p", labels=120, clusters=4, largest=60, items=0)
    with project.snapshot() as db:
        texts = [row[0] for row in db.execute("SELECT text FROM label ORDER BY id")]
    add_images(project, folder / "i", "kind", texts[:12] * 2)
    branch = open_branch(project, "anna")
    with served(project, ["anna"]) as address:
        yield f"{address}/anna", branch


@pytest.fixture(scope="module")
def adjudication(tmp_path_factory):
    folder = tmp_path_factory.mktemp("final")
    project = two_branches(folder / "p")
    branch = open_branch(project, "final", source="anna", against="ben")
    with served(project, ["final"]) as address:
        yield f"{address}/final", branch


def opened(new_page, served_branch, path, **options):
    url, branch = served_branch
    page = new_page(url.rpartition("/")[0], **options)
    page.goto(f"{url}/enter?token={branch.token}")
    page.goto(url + path)
    return page


@pytest.mark.parametrize("scripts", [True, False])
def test_actions_of_a_group_and_pictures_on_a_phone(browser, review, scripts):
    with guarded_pages(browser) as new_page:
        page = opened(new_page, review, "/group/3", java_script_enabled=scripts, **PHONE)
        expect(page.locator(".labels img").first).to_be_in_viewport()
        expect(page.get_by_role("button", name="done, next", exact=True)).to_be_in_viewport()
        page.locator(".labels input[type=checkbox]").nth(40).check()  # far below
        for name in ("split off", "move", "exclude", "done, next"):
            expect(page.get_by_role("button", name=name, exact=True)).to_be_in_viewport()
        page.get_by_role("link", name="name, note …").click()
        expect(page.locator("#name")).to_be_focused()
        expect(page.locator("#name")).to_be_in_viewport()
        page.get_by_role("button", name="done, next", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("is only a suggested name")


REVIEW_PAGES = ("/", "/group/3?suggest=1", "/search?q=old", "/tree", "/parent/1", "/help")
FINAL_PAGES = ("/doubtful", "/")


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing(browser, review, adjudication, options):
    with guarded_pages(browser) as new_page:
        for branch, paths in ((review, REVIEW_PAGES), (adjudication, FINAL_PAGES)):
            page = opened(new_page, branch, paths[0], **options)
            for path in paths[: 2 if options else None]:  # on a phone, those with most on them
                page.goto(branch[0] + path)
                assert violations(page, EVERY_IMPACT) == [], path
