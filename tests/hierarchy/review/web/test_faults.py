"""Faults during a click: the project is locked, the disk is full, the server is killed. Nothing is half done."""

import re
import signal
import sqlite3
import threading
from contextlib import closing, suppress

import httpx2

from suprank.hierarchy.review import Create, open_branch
from suprank.hierarchy.review.web import create_app
from tests.hierarchy.full_disk import full_disk
from tests.hierarchy.review.small_project import CHURCH, small_project, tree
from tests.hierarchy.review.web.annotator import Annotator, forms, selected
from tests.hierarchy.review.web.large_project import large_project


def test_a_form_waits_for_the_database_less_than_the_server_waits_for_requests_to_end(tmp_path):
    project = small_project(tmp_path / "p")
    open_branch(project, "anna")
    assert project.busy_seconds > 3  # the seconds that `suprank.cli.serving` gives requests after Ctrl-C
    assert create_app(project, ["anna"]).state.review.project.busy_seconds < 3


def test_while_somebody_else_writes_nothing_is_saved_and_the_form_is_kept(tmp_path):
    project = small_project(tmp_path / "p", busy_seconds=0.05)
    anna = Annotator(project, open_branch(project, "anna"))
    anna.get(f"/group/{CHURCH}")
    with closing(sqlite3.connect(project.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert anna.get("/")  # reading goes on
        anna.get(f"/group/{CHURCH}")
        page = anna.press("split", ["chapel"], split_name="chapels", status=503)
        assert "nothing was saved. Try again" in page
        assert selected(page) == ["chapel"]
        assert 'value="chapels"' in page
        page = anna.press("undo", status=503)
        assert "nothing was saved" in page
        anna.get("/search?q=chap")
        page = anna.press("exclude", ["chapel"], reason="why", status=503)
        assert 'value="why"' in page
        anna.get(f"/group/{CHURCH}")
        page = anna.press("split", ["chapel"], split_name="chapels", status=503)
        other.execute("ROLLBACK")
    anna.press("split")  # the same form, sent again
    assert tree(anna.branch)[0]["chapels"] == (None, ["chapel"])


def test_on_a_full_disk_nothing_is_saved_and_the_form_is_kept(tmp_path):
    project = large_project(tmp_path / "p", labels=3_000, clusters=3, largest=2_000)
    anna = Annotator(project, open_branch(project, "anna"))
    anna.get("/search?q=church")
    before = tree(anna.branch)
    with full_disk():
        page = anna.press("split", all=1, split_name="all churches", status=507)
    assert "nothing was saved. Make room" in page
    assert 'value="all churches"' in page
    assert tree(anna.branch) == before
    anna.press("split")
    assert len(tree(anna.branch)[0]["all churches"][1]) == 2_000
    assert anna.branch.problems() == project.check() == []


DIES_BEFORE_THE_COMMIT = """
import os, signal
from suprank.hierarchy.review.state import BranchState
original = BranchState.write
def write(self, changes, version):
    original(self, changes, version)
    os.kill(os.getpid(), signal.SIGKILL)
BranchState.write = write
"""


def test_a_server_that_is_killed_before_the_commit_leaves_nothing_of_an_edit(forked, tmp_path):
    project = large_project(tmp_path / "p", labels=600, clusters=3, largest=400)
    branch = open_branch(project, "anna")
    before = tree(branch)
    code = f"{DIES_BEFORE_THE_COMMIT}\nfrom suprank.cli.main import main\nmain()"
    process = forked.script(code, "hierarchy", "review", project.folder, "--port", "0", "--quiet")
    try:
        link = re.search(r"http://\S+", process.first_lines(1)[0])[0]
        with httpx2.Client(base_url=link.split("/anna")[0], follow_redirects=True, timeout=30) as client:
            client.get(link)
            page = client.get("/anna/search?q=church").text
            form = next(one for one in forms(page) if one.id == "selection")
            data = {**dict(form.fields), "all": "1", "split_name": "killed", "act": "split"}

            def send():
                with suppress(httpx2.HTTPError):
                    client.post(form.action, data=data)

            sending = threading.Thread(target=send)
            sending.start()
            sending.join(30)
            assert process.join(30) == -signal.SIGKILL
    finally:
        process.kill()
    assert tree(branch) == before
    assert branch.problems() == project.check() == []
    branch.apply(Create(1, "afterwards"))
