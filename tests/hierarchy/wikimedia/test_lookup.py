"""Whole look-ups of small worlds: what comes out, how much is asked, and what faults change (nothing)."""

import os
import signal
import sqlite3
from contextlib import closing

import pytest

from suprank.files.locking import lock_folder
from suprank.hierarchy.errors import GaveUpError
from suprank.hierarchy.project import FullError
from suprank.hierarchy.wikimedia import client
from suprank.hierarchy.wikimedia.lookup import REPLIES, resolve
from suprank.hierarchy.wikimedia.replies import Entity
from tests.hierarchy.wikimedia import fake_server as faults
from tests.hierarchy.wikimedia.fake_server import (
    AGENT,
    CATEGORY_ITEM,
    SITE,
    World,
    claim,
    landmarks,
    look_up,
    project_of,
    types,
)

HAND_MADE = {
    # source: what comes out, its page on Commons, its item of Wikidata
    "Happy_Valley": (["racecourse"], "Q10", {"P31": ["Q5"]}),
    "sp%C3%A9lled": (["church building"], None, {}),
    "Old": (["castrum"], None, {}),
    "A": ("redirect_loop", None, {}),
    "Bad": ("invalid", {"invalid": True, "invalidreason": "no"}, {}),
    "Bad|title": ("invalid", None, {}),
    "No_item": ("no_item", None, {}),
    "Double_redirect": ("item_missing", "Q13", {}),
    "Merged": (["lago"], "Q14", {}),
    "Category_item": (["church building"], "Q16", {"P31": [CATEGORY_ITEM], "P301": ["Q11"]}),
    "Category_of_category": (["church building"], "Q18", {"P31": [CATEGORY_ITEM], "P301": ["Q16"]}),
    "No_topic": ("category_item_without_topic", "Q20", {"P31": [CATEGORY_ITEM]}),
    "Round": ("topic_loop", "Q22", {"P31": [CATEGORY_ITEM], "P301": ["Q22"]}),
    "Ranks": (["church building"], "Q23", {"P31": ["Q5", claim("Q1", "preferred"), claim("Q2", "deprecated")]}),
    "Several": (["racecourse", "church building"], "Q24", {"P31": ["Q5", claim("Q1", ended=True), "Q5"]}),
    "Unknown": ("no_type", "Q25", {"P31": [claim(None, snaktype="somevalue")]}),
    "Nothing": ("no_type", "Q26", {"P279": ["Q1"]}),
    "Nameless": (["Q4"], "Q27", {"P31": ["Q4"]}),
    "Type_gone": (["Q6"], "Q28", {"P31": ["Q6"]}),
    "Type_merged": (["racecourse"], "Q29", {"P31": ["Q50", "Q5"]}),
    "Also_a_category": (["Q4167836", "racecourse"], "Q30", {"P31": [CATEGORY_ITEM, "Q5"]}),
}


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(client, "MAX_WAIT", 0.01)


@pytest.fixture
def begun(tmp_path, hurried):
    """A project of 120 landmarks, the server that knows them, and what should come out: seven requests."""
    world, sources, expected = landmarks(120)
    with faults.serving(world) as fake:
        yield project_of(tmp_path / "p", sources), fake, expected


@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_every_ending_also_of_replies_in_parts(tmp_path, parts):
    world = World(
        pages={f"Category:{name.replace('_', ' ')}": page for name, (_, page, _) in HAND_MADE.items()},
        items={page: item for _, page, item in HAND_MADE.values() if item},
        names={
            "Q1": {"en": "church building", "de": "Kirche"},
            "Q2": {"mul": "castrum"},
            "Q3": {"es": "lago"},
            "Q4": {"ja": "城"},  # not in a language of the recipe
            "Q5": {"en": "racecourse"},
        },
        merged={"Q50": "Q5", "Q14": "Q15"},
        spelled={"Category:spélled": "Category:Spélled"},
        redirects={"Category:Old": "Category:New", "Category:A": "Category:B", "Category:B": "Category:A"},
    )
    world.pages |= {"Category:Spélled": "Q11", "Category:New": "Q12"}
    world.items |= {"Q11": {"P31": ["Q1"]}, "Q12": {"P31": ["Q2"]}, "Q15": {"P31": ["Q3"]}}
    sources = [f"{SITE}Category:{name}" for name in HAND_MADE]
    expected = [outcome for outcome, _, _ in HAND_MADE.values()]
    project = project_of(tmp_path / "p", [*sources, f"{SITE}Category:Gone", "", sources[0]])
    with faults.serving(world, page_parts=parts) as fake:
        result = look_up(project, fake)
    expected += ["missing", "invalid", ["racecourse"]]
    assert types(project) == {str(number): outcome for number, outcome in enumerate(expected)}
    assert (result.items, result.typed, result.several, result.nameless, result.types) == (24, 13, 2, 3, 7)
    with project.snapshot() as db:
        assert db.execute("SELECT text, qid FROM item_type WHERE ended").fetchone()[:] == ("church building", "Q1")
        assert db.execute("SELECT description FROM type_class WHERE qid = 'Q2'").fetchone()[0] == "a castrum"
    assert sum("ppcontinue" in request.form for request in fake.requests) == -(-20 // parts) - 1


def test_items_that_stand_for_another_are_followed_three_times():
    chain = {f"Q{n}": Entity(f"Q{n}", {"P31": {CATEGORY_ITEM: False}, "P301": {f"Q{n + 1}": False}}) for n in range(1, 6)}
    end = Entity("Q6", {"P31": {"Q100": False}, "P301": {}})
    assert resolve("Q3", {**chain, "Q6": end}, {CATEGORY_ITEM: "P301"}) == end
    assert resolve("Q2", {**chain, "Q6": end}, {CATEGORY_ITEM: "P301"}) == "topic_loop"
    assert resolve("Q3", chain, {CATEGORY_ITEM: "P301"}) == "Q6"  # to be fetched


def test_requests_are_few_and_slow_and_say_who_asks(begun):
    project, fake, expected = begun
    result = look_up(project, fake, "scrape.rate=600")
    assert types(project) == expected
    with_item = sum(n % 11 not in (0, 1) for n in range(120))
    assert [len(request.keys) for request in fake.requests] == [50, 50, 20, 50, with_item - 50, 11, 5]
    assert result.requests == 7
    assert fake.requests[6].at - fake.requests[0].at > 0.5  # ten a second
    assert all(AGENT.fullmatch(request.agent) for request in fake.requests)
    keys = [key for request in fake.requests for key in request.keys]
    assert len(keys) == len(set(keys))


def test_the_same_again_asks_nothing_and_changes_nothing_unless_afresh(begun):
    project, fake, _ = begun
    assert look_up(project, fake).changed
    settings = project.steps()["types"].settings
    assert (settings["from"], settings["commons"], settings["limit"]) == ("wikimedia", f"{fake.base}/commons", None)
    again = look_up(project, fake)
    assert (again.requests, again.changed) == (0, False)
    assert b"pickle" not in (content := (project.folder / REPLIES).read_bytes())
    assert b"Category:Place" not in content  # compressed
    assert look_up(project, fake, afresh=True).requests == 7


def test_a_trial_of_some_items_is_continued(begun):
    project, fake, expected = begun
    look_up(project, fake, limit=50)
    assert types(project) == {key: found if int(key) < 50 else "not_asked" for key, found in expected.items()}
    first = len(fake.requests)
    look_up(project, fake)
    assert types(project) == expected
    assert len(fake.requests) - first == 2 + 2 + 1  # titles, items, topics; the names of types are known
    look_up(project, fake, limit=50)
    assert types(project) == expected  # the others keep what they have


FAULTS = {
    "lag twice": [faults.api_error("maxlag", Retry_After="0")] * 2,
    "lag without a time": [faults.api_error("maxlag")] * 5,
    "429": [faults.status(429)],
    "429 with nonsense": [faults.status(429, Retry_After="soon")],
    "503 three times": [faults.status(503)] * 3,
    "500": [faults.status(500)],
    "a page for people": [lambda handler, body: faults.send(handler, b"<title>Error</title>", kind="text/html")],
    "half of the JSON": [faults.cut_json] * 2,
    "half a letter": [lambda handler, body: faults.send(handler, body.replace(b"church", b"\\ud800"))],
    "no object": [lambda handler, body: faults.send(handler, b"[1]")],
    "an unknown error": [faults.api_error("internal_api_error_DBQueryError")],
    "a reset": [faults.reset] * 2,
    "another shape": [faults.other_shape],
    "too slow": [faults.slow],
}


@pytest.mark.parametrize(("name", "number"), list(zip(FAULTS, (1, 4, 7) * 5, strict=False)))
def test_faults_that_pass_leave_no_trace(begun, name, number):
    project, fake, expected = begun
    number = 7 if name == "half a letter" else number
    for fault in FAULTS[name]:
        fake.fault(fault, lambda request: request.number >= number)
    look_up(project, fake, "scrape.timeout=1")
    assert types(project) == expected
    assert len(fake.requests) == 7 + len(FAULTS[name])
    assert look_up(project, fake).requests == 0


def test_a_server_is_given_the_time_it_asks_for(begun):
    project, fake, _ = begun
    fake.fault(faults.status(429, Retry_After="1"))
    waits = []
    look_up(project, fake, report_wait=waits.append)
    assert fake.requests[1].at - fake.requests[0].at >= 1
    assert waits == ["waiting 1 s: the server answered 429"]


@pytest.mark.parametrize(
    ("fault", "message", "requests"),
    [
        (faults.status(503, Retry_After="86400"), "answered 503.* the next wait would be [0-9]+ s", 1),
        (faults.status(503), "patience is 0 s. Replies so far are saved", None),
        (faults.other_shape, "a reply cannot be read", None),
        (faults.status(403), "403 and will not be asked again: 'busy'.*tester@example.org", 1),
        (faults.status(301, Location="https://x.org"), r"answered 301 \(https://x.org\).* Is .* the address of an api.php", 1),
        (faults.api_error("blocked"), "refuses: blocked", 1),
    ],
)
def test_a_server_that_says_no_or_only_nonsense_is_given_up(begun, fault, message, requests):
    project, fake, expected = begun
    fake.fault(fault, times=10000)
    with pytest.raises(GaveUpError, match=message):
        look_up(project, fake, "scrape.patience=0.1")
    assert len(fake.requests) == requests or 10 < len(fake.requests) < 40
    assert (types(project), list(project.steps())) == ({}, [])
    fake.faults.clear()
    look_up(project, fake)
    assert types(project) == expected


def test_a_server_that_was_never_there_is_given_up_soon(begun):
    project, fake, _ = begun
    waits = []
    with pytest.raises(GaveUpError, match=r"127.0.0.1:1 cannot be reached .* Is http://127.0.0.1:1/x right"):
        look_up(project, fake, "scrape.commons=http://127.0.0.1:1/x", report_wait=waits.append)
    assert len(waits) == 2


def test_keys_that_always_fail_are_found_by_halving_and_the_others_are_not_lost(begun):
    project, fake, expected = begun
    bad = {"Category:Place 7", "Q101"}
    fake.fault(faults.cut_json, lambda request: bool(bad & set(request.keys)), times=1000)
    result = look_up(project, fake)
    assert result.failures.keys() == bad
    assert "a reply cannot be read (JSONDecodeError" in result.failures["Q101"]
    unnamed = {key: ["Q101"] if found == ["lake"] else found for key, found in expected.items()}
    assert types(project) == {**unnamed, "7": "failed"}
    fake.faults.clear()
    assert not look_up(project, fake).failures
    assert types(project) == expected


def test_a_server_that_takes_fewer_keys_or_not_one_of_them_gets_the_others(begun):
    project, fake, expected = begun
    fake.most, fake.bad = 20, {"Q1007"}
    result = look_up(project, fake)
    assert types(project) == {**expected, "7": "item_missing"}
    assert not result.failures


def test_pages_that_were_moved_are_found_in_the_log(tmp_path):
    world = World(pages={"Category:New": "Q10"}, items={"Q10": {"P31": ["Q1"]}}, names={"Q1": {"en": "church"}})
    world.moves = {"Category:Old": "Category:New", "Category:Lost": "Category:Lost too"}
    project = project_of(tmp_path / "p", ["Category:Old", "Category:Lost", "Category:Never"])
    with faults.serving(world) as fake:
        look_up(project, fake)
        assert types(project) == dict.fromkeys("012", "missing")
        assert look_up(project, fake, move_log=True).requests == 3 + 1 + 1 + 1  # the log of three, targets, an item, a name
        assert types(project) == {"0": ["church"], "1": "missing", "2": "missing"}


def test_classes_above_types_are_fetched_for_items_with_several(tmp_path):
    items = {"Q10": {"P31": ["Q1", "Q2"]}, "Q11": {"P31": ["Q5"]}}
    above = {"Q1": ["Q3"], "Q3": ["Q4"], "Q4": ["Q2"], "Q5": ["Q6"]}
    world = World(pages={"Category:A": "Q10", "Category:B": "Q11"}, items=items | {q: {"P279": up} for q, up in above.items()})
    project = project_of(tmp_path / "p", ["Category:A", "Category:B"])
    with faults.serving(world) as fake:
        for steps, known in ((0, {"Q1", "Q5"}), (1, {"Q1", "Q3", "Q5"}), (5, {"Q1", "Q3", "Q4", "Q5"})):
            look_up(project, fake, f"scrape.ancestors={steps}")
            with project.snapshot() as db:
                assert {row[0] for row in db.execute("SELECT qid FROM type_class WHERE above_json != '[]'")} == known


def test_what_cannot_begin_says_why(tmp_path, begun):
    project, fake, _ = begun
    with pytest.raises(ValueError, match=r"scrape.commons=nowhere is not the address of an api.php"):
        look_up(project, fake, "scrape.commons=nowhere")
    with pytest.raises(ValueError, match="none of the 1 items has a page to look it up on; give URLs"):
        look_up(project_of(tmp_path / "blank", [" "]), fake)
    with pytest.raises(ValueError, match="'me' is neither an e-mail address nor a URL"):
        client.user_agent("me")
    with lock_folder(project.folder, "x", "y"), pytest.raises(BlockingIOError, match="is scraping for"):
        look_up(project, fake)
    assert fake.requests == []


def test_kill_9_while_it_waits_for_a_reply_and_while_it_reads_one(forked, tmp_path):
    world, sources, expected = landmarks(120)
    with faults.serving(world) as fake:
        project = project_of(tmp_path / "p", sources)
        command = ("hierarchy", "types", project.folder, "--contact", "tester@example.org", *fake.values)

        def kill(handler, body):
            if len(fake.requests) == 5:  # after the answer
                faults.send(handler, body)
            os.kill(process.pid, signal.SIGKILL)

        fake.fault(kill, lambda request: request.number in (3, 5), times=2)
        ends = []
        while not ends or ends[-1] == -signal.SIGKILL:
            process = forked.start(*command, cwd=tmp_path)
            ends.append(process.end(timeout=60)[0])
    assert ends == [-signal.SIGKILL] * 2 + [0]
    assert len(fake.requests) <= 7 + 2
    assert types(project) == expected


def test_a_full_disk_is_explained_and_the_same_command_continues(begun, monkeypatch):
    project, fake, expected = begun
    connect = sqlite3.connect

    def small(*args, **options):
        db = connect(*args, **options)
        db.execute("PRAGMA max_page_count = 8")
        return db

    with monkeypatch.context() as patch:
        patch.setattr("requests_cache.backends.sqlite.sqlite3.connect", small)
        with pytest.raises(FullError, match=rf"{REPLIES} cannot be written. Make room on the disk"):
            look_up(project, fake)
    first = len(fake.requests)
    look_up(project, fake)
    assert types(project) == expected
    assert 7 < len(fake.requests) <= 7 + 2
    assert first > 1
    with closing(connect(project.folder / REPLIES)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
