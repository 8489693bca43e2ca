"""Ten thousand labels, four thousand of them in one group: every page is fast."""

import time

import pytest

from suprank.hierarchy.review import open_branch
from tests.hierarchy.review.web.annotator import Annotator
from tests.hierarchy.review.web.large_project import large_project


@pytest.fixture(scope="module")
def anna(tmp_path_factory):
    project = large_project(tmp_path_factory.mktemp("large") / "p", labels=10_000, clusters=667, largest=4_000)
    found = Annotator(project, open_branch(project, "anna"))
    found.client.get("/anna/help")  # imports and compiled templates are not timed
    return found


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/?sort=tightest&show=open&offset=600",
        "/group/3",
        "/group/3?sort=nearness&offset=3800",
        "/group/3?q=old+church",
        "/group/300",
        "/search?q=church",
        "/search?offset=9800&sort=text",
        "/tree?offset=600",
        "/parent/1",
        "/excluded",
        "/history",
        "/next?after=300",
    ],
)
def test_every_page_of_a_large_project_takes_less_than_a_second(anna, path):
    start = time.process_time()
    page = anna.get(path)
    assert time.process_time() - start < 1
    assert page.count("<tr data-row") <= 200
    assert len(page) < 300_000


def test_an_action_on_thousands_of_labels_is_fast(anna):
    anna.get("/search?q=church")
    start = time.process_time()
    page = anna.press("exclude", all=1, reason="too many")
    assert time.process_time() - start < 3  # until it is saved
    with anna.branch.project.snapshot() as db:
        count = db.execute("SELECT count(*) FROM label WHERE text LIKE '%church%'").fetchone()[0]
    assert count > 4_000
    assert f"Excluded {count:,} labels: too many" in page
    anna.press("undo")
    assert f"Undid: excluded {count:,} labels" in anna.page
