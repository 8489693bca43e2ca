"""suprank hierarchy review: from a project to a page, and what it refuses before that."""

import re
import socket
from contextlib import contextmanager

import httpx2
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from suprank.cli.hierarchy import review
from suprank.data import Manifest
from suprank.hierarchy import Project
from suprank.hierarchy.review import open_branch
from tests.cli.collection import done, refused
from tests.hierarchy.review.small_project import RECIPE, small_project


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with a clustered project p."""
    monkeypatch.chdir(tmp_path)
    small_project(tmp_path / "p")
    return tmp_path


@contextmanager
def reviewing(forked, folder, *arguments, links=1):
    """The command in a process of its own, on a free port; its links, and the process."""
    process = forked.start("hierarchy", "review", *arguments, "--port", "0", "--quiet", cwd=folder)
    try:
        lines = process.first_lines(links)
        found = [re.search(r"http://\S+", line) for line in lines]
        assert all(found), lines
        yield [one[0] for one in found], process
    finally:
        process.kill()


def opened(link):
    return httpx2.get(link.replace("0.0.0.0", "127.0.0.1"), follow_redirects=True, timeout=30)


def test_two_annotators_have_a_link_each_which_stays(forked, folder):
    arguments = ("--annotator", "anna", "--annotator", "ben", "--host", "0.0.0.0")
    with reviewing(forked, folder, "p", *arguments, links=2) as (links, process):
        for name, link in zip(("anna", "ben"), links, strict=True):
            assert f"/{name}/enter?token=" in link
            with httpx2.Client(follow_redirects=True, timeout=30) as client:
                page = client.get(link.replace("0.0.0.0", "127.0.0.1"))
                assert page.status_code == 200
                assert "0 of 3 groups done" in page.text
        assert opened(links[0].split("?")[0]).status_code == 403
        code, output = process.interrupt()
    assert "WARNING: everyone who can reach 0.0.0.0 and has a link can change its branch" in output
    assert code == 0  # Ctrl-C is how it ends
    tokens = [link.split("=")[1] for link in links]
    assert tokens == [open_branch(Project("p"), name).token for name in ("anna", "ben")]


@pytest.fixture
def served(monkeypatch):
    """Runs the command in this process, and returns a client of its page, its links, options and output."""

    def start(*arguments):
        calls = []
        monkeypatch.setattr(review, "serve", lambda app, listening, host, links, **options: calls.append((app, links, options)))
        result = done("hierarchy", "review", *arguments, "--port", 0, "--quiet")
        ((app, links, options),) = calls
        return TestClient(app, base_url="http://127.0.0.1:8000"), [path for _, path in links], options, result

    return start


def test_without_annotators_all_branches_are_served_by_the_links_they_had_and_final_too(folder, served):
    token = open_branch(Project("p"), "anna").token
    served("p", "--annotator", "ben")
    client, links, _, _ = served("p", "--annotator", "final", "--from", "anna", "--against", "ben")
    assert "Nothing is doubtful any more (anna against ben)" in client.get(links[0]).text
    client, links, _, _ = served("p")
    assert [link.partition("/enter")[0] for link in links] == ["/anna", "/ben", "/final"]
    assert links[0] == f"/anna/enter?token={token}"
    assert client.get(links[2]).status_code == 200


def test_a_manifest_gives_pictures_and_is_kept(folder, served):
    (folder / "i").mkdir()
    Image.new("RGB", (30, 20), "red").save(folder / "i" / "0.png")
    Manifest.from_columns({"path": ["0.png"], "split": ["train"], "label_kind": ["church"]}, root="elsewhere").save("m.parquet")
    given = ("--manifest", "m.parquet", "--level", "kind", "--root", "i")
    for arguments in (("--annotator", "anna", *given), ()):
        client, links, _, _ = served("p", *arguments)
        client.get(links[0])
        assert "/anna/picture/0" in client.get("/anna/group/3").text
        assert client.get("/anna/picture/0").headers["content-type"] == "image/png"
    (folder / "m.parquet").unlink()
    client, links, options, result = served("p")
    assert client.get(links[0]).status_code == 200
    assert "there are no sample pictures" in result.stderr
    assert options["others"] == "and has a link can change its branch"


def test_instructions_are_a_text_or_a_file_and_are_kept(folder, served):
    (folder / "job.md").write_text("Group by use.\nAsk Carl.\n")
    for given, shown in (
        (("--instructions", "job.md"), "<p>Ask Carl.</p>"),
        ((), "<p>Ask Carl.</p>"),
        (("--instructions", "Group by color."), "<p>Group by color.</p>"),
        (("--instructions", ""), "<p>Sort the labels into groups"),
    ):
        client, links, _, _ = served("p", "--annotator", "anna", *given)
        assert shown in client.get(links[0]).text
    start = ("hierarchy", "review", "p", "--annotator", "anna", "--port", 0)
    assert "there is no file jobs.md" in refused(*start, "--instructions", "jobs.md")
    assert "the start page has room for 2,000" in refused(*start, "--instructions", "x" * 3000)


def test_what_cannot_be_reviewed_is_refused_at_the_door(folder):
    start = ("hierarchy", "review")
    assert "nowhere does not exist; create it" in refused(*start, "nowhere", "--annotator", "anna", "--port", 0)
    assert "give --annotator NAME" in refused(*start, "p", "--port", 0)
    assert "must be 1 to 40 letters" in refused(*start, "p", "--annotator", "a/b", "--port", 0)
    assert "give both, and its name as --annotator" in refused(*start, "p", "--annotator", "final", "--from", "anna")
    two = ("--from", "anna", "--against", "ben", "--port", 0)
    assert "give both, and its name as --annotator" in refused(*start, "p", *two)
    assert "there is no branch 'anna'" in refused(*start, "p", "--annotator", "final", *two)
    assert "belong to --manifest" in refused(*start, "p", "--annotator", "anna", "--level", "kind")
    assert "the manifest does not exist" in refused(*start, "p", "--annotator", "a", "--manifest", "no.csv", "--port", 0)
    Manifest.from_columns({"path": ["0.png"], "split": ["train"], "label_kind": ["church"]}, root=".").save("m.parquet")
    wrong = ("--annotator", "anna", "--manifest", "m.parquet", "--level", "sort")
    assert "has no level 'sort'; choose from kind" in refused(*start, "p", *wrong, "--port", 0)
    Project.create("empty", RECIPE)
    assert "there are no clusters to review" in refused(*start, "empty", "--annotator", "anna", "--port", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} is not available" in refused(*start, "p", "--annotator", "ben", "--port", port)
    with Project("p").snapshot() as db:
        assert db.execute("SELECT count(*) FROM branch").fetchone()[0] == 0
