"""suprank hierarchy scrape: what it prints, what it refuses, and how it ends."""

import signal

import pytest

from suprank.hierarchy.project import Project
from suprank.hierarchy.recipe import Recipe
from tests.cli.collection import done, invoke, refused
from tests.hierarchy.wikimedia import fake_server as faults
from tests.hierarchy.wikimedia.fake_server import serving
from tests.hierarchy.wikimedia.worlds import landmarks, project_of, types

WHO = ("--contact", "tester@example.org", "--rate", 100000)


@pytest.fixture
def world(tmp_path):
    """A project of 22 landmarks, the server that knows them, and what should come out."""
    made, sources, expected = landmarks(22)
    with serving(made) as fake:
        yield project_of(tmp_path / "places", sources), fake, expected


def test_what_came_out_is_said_in_a_few_lines(world):
    project, fake, expected = world
    said = done("hierarchy", "scrape", project.folder, *WHO, *fake.options)
    assert types(project) == expected
    assert said.stdout.splitlines() == [
        f"{project.folder}: 16 of 22 items have a type, 5 different ones",
        "  2 items without a type: category item without a main topic (category_item_without_topic)",
        "  2 items without a type: category that does not exist (missing)",
        "  2 items without a type: category without a Wikidata item (no_item)",
        "with several types: 2 items; `suprank hierarchy clean` decides on these",
        "requests made: 4",
    ]
    assert "names of types" in said.stderr
    again = done("hierarchy", "scrape", project.folder, *WHO, *fake.options, "--quiet")
    assert "nothing changed" in again.stdout
    assert "no requests were needed" in again.stdout
    assert again.stderr == ""
    assert len(fake.asked) == 4


def test_it_does_not_start_without_a_contact(world):
    project, fake, _ = world
    assert "give an e-mail address or a page by which you can be reached" in refused(
        "hierarchy", "scrape", project.folder, *fake.options
    )
    assert "'me' is neither an e-mail address" in refused("hierarchy", "scrape", project.folder, "--contact", "me")
    assert fake.asked == []


def test_a_server_that_stays_busy_is_given_up_with_code_5_and_gone_on_with(world):
    project, fake, expected = world
    fake.fault(faults.status(503, Retry_After="7"), lambda request: request.number > 1, times=1)
    result = invoke("hierarchy", "scrape", project.folder, *WHO, *fake.options, "--patience", 3)
    assert result.exit_code == 5
    assert "answered 503" in result.stderr
    assert "Replies so far are saved" in result.stderr
    assert "Traceback" not in result.output
    done("hierarchy", "scrape", project.folder, *WHO, *fake.options)
    assert types(project) == expected
    assert len(fake.asked) == 4 + 1


def test_why_it_waits_is_said(world):
    project, fake, _ = world
    fake.fault(faults.status(429, Retry_After="1.0"))
    said = done("hierarchy", "scrape", project.folder, *WHO, *fake.options)
    assert "waiting 1 s: 127.0.0.1" in said.stderr
    assert "answered 429" in said.stderr


def test_requests_that_fail_for_good_end_it_with_code_4(world, monkeypatch):
    monkeypatch.setattr("suprank.hierarchy.wikimedia.client.Client.back_off", lambda self, why: None)
    project, fake, expected = world
    fake.fault(faults.cut_json, lambda request: "Category:Place 7" in request.keys, times=1000)
    result = invoke("hierarchy", "scrape", project.folder, *WHO, *fake.options)
    assert result.exit_code == 4
    assert "1 item without a type: failed request (failed)" in result.stdout
    assert "repeat them with --retry-failed" in result.stderr
    fake.faults.clear()
    assert invoke("hierarchy", "scrape", project.folder, *WHO, *fake.options).exit_code == 4
    done("hierarchy", "scrape", project.folder, *WHO, *fake.options, "--retry-failed")
    assert types(project) == expected


def test_ctrl_c_says_that_nothing_is_lost_and_it_goes_on(forked, tmp_path):
    made, sources, expected = landmarks(220)
    project = project_of(tmp_path / "places", sources)
    with serving(made) as fake:
        fake.after = lambda asked: process.send_signal(signal.SIGINT) if asked.number == 3 else None
        process = forked.start("hierarchy", "scrape", project.folder, *WHO, *fake.options, "--rate", "300", cwd=tmp_path)
        code, _, said = process.end(timeout=60)
        assert code == 130
        assert "replies so far are saved" in said
        assert "Traceback" not in said
        done("hierarchy", "scrape", project.folder, *WHO, *fake.options)
    assert types(project) == expected
    assert len(fake.asked) <= 11 + 1


def test_types_from_files_need_no_contact_and_no_network(tmp_path):
    project = Project.create(tmp_path / "p", Recipe(name="r", title="R"))
    (tmp_path / "a.csv").write_text("id,type\n1,lake\n2,\n1,pond\n1,lake\n")
    (tmp_path / "b.csv").write_text("place,kind\n1,tower\n")
    said = done("hierarchy", "scrape", project.folder, "--from-csv", tmp_path / "a.csv").stdout
    assert said.splitlines() == [
        f"{project.folder}: 1 of 2 items have a type, 2 different ones",
        "  1 item without a type: no type in the file (empty)",
        "with several types: 1 item; `suprank hierarchy clean` decides on these",
        "added: 2 items",
        "repeated and counted once: 1 row",
    ]
    columns = ("--id-column", "place", "--type-column", "kind")
    done("hierarchy", "scrape", project.folder, "--from-csv", f"other={tmp_path / 'b.csv'}", *columns)
    with project.snapshot() as db:
        splits = dict(db.execute("SELECT split, count(*) FROM item GROUP BY split").fetchall())
    assert splits == {"all": 2, "other": 1}
    assert "name the one of" in refused("hierarchy", "scrape", project.folder, "--from-csv", tmp_path / "a.csv")
    assert "is not [SPLIT=]FILE" in refused("hierarchy", "scrape", project.folder, "--from-csv", "=a.csv")
    for unread in (("--limit", "5"), ("--afresh",), ("--rate", "9")):
        assert "leave out the options for requests" in refused(
            "hierarchy", "scrape", project.folder, "--from-csv", f"other={tmp_path / 'b.csv'}", *unread
        )
    assert "name columns of --from-csv; give that, too" in refused("hierarchy", "scrape", project.folder, *columns)


def test_help_and_a_folder_without_a_project(tmp_path):
    text = done("hierarchy", "scrape", "--help").stdout
    assert "exit code is 4" in " ".join(text.split())
    assert "--contact you@example.org --limit 500" in text
    assert "does not exist; create it with" in refused("hierarchy", "scrape", tmp_path / "none", *WHO)
