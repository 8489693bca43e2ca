"""suprank hierarchy types: what it prints, what it refuses, and how it ends."""

import json
import signal

import pytest

from suprank.hierarchy.project import Project
from suprank.hierarchy.recipe import Recipe
from suprank.hierarchy.wikimedia import client
from tests.cli.collection import done, invoke, refused
from tests.hierarchy import branches
from tests.hierarchy.wikimedia import fake_server as faults
from tests.hierarchy.wikimedia.fake_server import landmarks, project_of, types

CONTACT = ("--contact", "tester@example.org")


@pytest.fixture
def world(tmp_path):
    """A project of 22 landmarks, the server that knows them, and what should come out."""
    made, sources, expected = landmarks(22)
    with faults.serving(made) as fake:
        yield project_of(tmp_path / "places", sources), fake, expected


def test_the_result_is_a_few_lines(world):
    project, fake, expected = world
    printed = done("hierarchy", "types", project.folder, *CONTACT, *fake.values)
    assert types(project) == expected
    assert printed.stdout.splitlines() == [
        f"{project.folder}: 16 of 22 items have a type, 5 different ones",
        "  2 items without a type: category item without a main topic (category_item_without_topic)",
        "  2 items without a type: category that does not exist (missing)",
        "  2 items without a type: category without a Wikidata item (no_item)",
        "with several types: 2 items",
        "requests made: 4",
        "14 of 22 items have a label (63.6%); 5 labels",
        "  2 items left out: category that does not exist (missing)",
        "  2 items left out: category without a Wikidata item (no_item)",
        "  2 items left out: category item without a main topic (category_item_without_topic)",
        "  2 items left out: several types",
        "items with several types, by rule:",
        "  single-only: 14 items and 5 labels would be kept  (used)",
        "  first: 16 items and 5 labels would be kept",
        "  most-specific: 14 items and 5 labels would be kept",
        "  most-frequent: 16 items and 5 labels would be kept",
    ]
    assert "names of types" in printed.stderr
    again = done("hierarchy", "types", project.folder, *CONTACT, *fake.values, "--quiet")
    assert "5 different ones; nothing changed" in again.stdout
    assert "requests made: 0" in again.stdout
    assert again.stderr == ""


def test_a_server_that_stays_busy_is_given_up_with_code_5(world):
    project, fake, expected = world
    fake.fault(faults.status(429, Retry_After="1"))
    fake.fault(faults.status(503, Retry_After="7"))
    result = invoke("hierarchy", "types", project.folder, *CONTACT, *fake.values, "scrape.patience=3")
    assert result.exit_code == 5
    assert "waiting 1 s: the server answered 429" in result.stderr
    assert "Error: the server answered 503" in result.stderr
    assert "Replies so far are saved" in result.stderr
    done("hierarchy", "types", project.folder, *CONTACT, *fake.values)
    assert types(project) == expected


def test_requests_that_fail_for_good_end_it_with_code_4(world, monkeypatch):
    monkeypatch.setattr(client, "MAX_WAIT", 0.001)
    project, fake, expected = world
    fake.fault(faults.cut_json, lambda request: "Category:Place 7" in request.keys, times=1000)
    result = invoke("hierarchy", "types", project.folder, *CONTACT, *fake.values)
    assert result.exit_code == 4
    assert "1 item without a type: failed request (failed)" in result.stdout
    assert "failed: Category:Place 7: 127.0.0.1" in result.stderr
    assert "failed for good: 1; the same command asks for these again" in result.stderr
    fake.faults.clear()
    done("hierarchy", "types", project.folder, *CONTACT, *fake.values)
    assert types(project) == expected


def test_ctrl_c_says_that_nothing_is_lost_and_it_goes_on(forked, tmp_path):
    made, sources, expected = landmarks(220)
    project = project_of(tmp_path / "places", sources)
    with faults.serving(made) as fake:

        def interrupt(handler, body):
            process.send_signal(signal.SIGINT)
            faults.send(handler, body)

        fake.fault(interrupt, lambda request: request.number == 3)
        process = forked.start("hierarchy", "types", project.folder, *CONTACT, *fake.values, "scrape.rate=300", cwd=tmp_path)
        code, _, stderr = process.end(timeout=60)
        assert code == 130
        assert "replies so far are saved" in stderr
        assert "Traceback" not in stderr
        done("hierarchy", "types", project.folder, *CONTACT, *fake.values)
    assert types(project) == expected
    assert len(fake.requests) <= 11 + 1


def test_types_from_files_need_no_contact_and_no_network(tmp_path):
    project = Project.create(tmp_path / "p", Recipe(name="r", title="R"))
    (tmp_path / "a.csv").write_text("id,type\n1,lake\n2,\n1,pond\n1,lake\n")
    (tmp_path / "b.csv").write_text("place,kind\n1,tower\n")
    printed = done("hierarchy", "types", project.folder, "--from-csv", tmp_path / "a.csv").stdout
    assert printed.splitlines()[:6] == [
        f"{project.folder}: 1 of 2 items have a type, 2 different ones",
        "  1 item without a type: no type in the file (empty)",
        "with several types: 1 item",
        "added: 2 items",
        "repeated and counted once: 1 row",
        "0 of 2 items have a label (0.0%); 0 labels",
    ]
    other = ("hierarchy", "types", project.folder, "--from-csv", f"other={tmp_path / 'b.csv'}")
    done(*other, "items.id=place", "items.type=kind")
    with project.snapshot() as db:
        splits = dict(db.execute("SELECT split, count(*) FROM item GROUP BY split").fetchall())
    assert splits == {"all": 2, "other": 1}
    assert "name the one of" in refused("hierarchy", "types", project.folder, "--from-csv", tmp_path / "a.csv")
    assert "is not [SPLIT=]FILE" in refused("hierarchy", "types", project.folder, "--from-csv", "=a.csv")
    assert "give one of the two" in refused(*other, *CONTACT)
    assert "give --contact, too" in refused(*other, "--limit", 5)


def test_rules_go_over_the_recipe_and_are_recorded(tmp_path):
    given = {("train", 1): [("church", "Q1")], ("train", 2): [("church", "Q1"), ("museum", "Q2")]}
    project = branches.landmarks(tmp_path / "p", {**given, ("index", 1): [("list", "Q13406463")]})
    printed = done("hierarchy", "types", project.folder, "--list", tmp_path / "removed.csv", "--quiet").stdout
    assert printed.splitlines()[0] == "1 of 3 items have a label (33.3%); 1 label"
    assert printed.splitlines()[-1] == f"{tmp_path / 'removed.csv'}: 2 removals"
    assert (tmp_path / "removed.csv").read_text().splitlines() == [
        "split,id,types,reason",
        "train,2,church | museum,several types",
        "index,1,list,Wikimedia list article",
    ]
    again = done("hierarchy", "types", project.folder, "--quiet").stdout
    assert again.splitlines()[-1] == "the same as before: nothing changed"
    rules = ("clean.several=first", "clean.least_items=2")
    told = json.loads(done("hierarchy", "types", project.folder, *rules, "--json", "--quiet").stdout)
    assert told["types"] is None
    assert (told["labels"]["labeled"], told["labels"]["labels"]) == (2, 1)
    settings = project.steps()["clean"].settings
    assert (settings["several"], settings["least_items"], settings["ended"]) == ("first", 2, "keep")


def test_what_is_refused(world, tmp_path):
    project, fake, _ = world
    assert "no item of" in refused("hierarchy", "types", project.folder)
    assert "'me' is neither an e-mail address" in refused("hierarchy", "types", project.folder, "--contact", "me")
    assert "does not exist; create it with" in refused("hierarchy", "types", tmp_path / "none", *CONTACT)
    assert "neither items nor labels" in refused(
        "hierarchy", "types", branches.plain(tmp_path / "empty", {}, ("label", "group")).folder
    )
    assert "clean.several: Input should be 'single-only'" in refused("hierarchy", "types", project.folder, "clean.several=all")
    assert "clean.severel: there is no such entry" in refused("hierarchy", "types", project.folder, "clean.severel=first")
    assert "'first' is not KEY=VALUE with a key of items or scrape or clean" in refused(
        "hierarchy", "types", project.folder, "first"
    )
    assert fake.requests == []
