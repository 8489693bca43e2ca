"""Whole scrapes of small worlds: what comes out, how much is asked, and what faults change (nothing)."""

import json
import zlib
from contextlib import ExitStack
from hashlib import sha256

import pytest

from suprank.files.locking import lock_folder
from suprank.hierarchy.cleaning import clean_labels
from suprank.hierarchy.errors import GaveUpError
from suprank.hierarchy.type_files import types_from_files
from tests.hierarchy.wikimedia import fake_server as faults
from tests.hierarchy.wikimedia.fake_server import CATEGORY_ITEM, World, claim, serving
from tests.hierarchy.wikimedia.worlds import HOST, Clock, landmarks, project_of, run, tables, types


@pytest.fixture
def hand_made():
    """Every ending there is, one landmark each: world, sources and what is expected."""
    world = World()
    world.names = {
        "Q1": {"en": "church building", "de": "Kirche"},
        "Q2": {"mul": "castrum"},
        "Q3": {"es": "lago"},
        "Q4": {"ja": "城"},  # not in a language of the recipe
        "Q5": {"en": "racecourse"},
    }
    world.merged = {"Q50": "Q5"}
    told = []

    def landmark(source, expected, title=None, page=..., **item):
        told.append((f"{HOST}{source}" if source.startswith("Category") else source, expected))
        if page is not ...:
            world.pages[title or source.replace("_", " ")] = page
            if item:
                world.items[page] = item

    landmark("Category:Happy_Valley", ["racecourse"], page="Q10", P31=["Q5"])
    landmark("Category:sp%C3%A9lled", ["church building"], title="Category:Spélled", page="Q11", P31=["Q1"])
    world.spelled["Category:spélled"] = "Category:Spélled"
    landmark("Category:Old", ["castrum"], title="Category:New", page="Q12", P31=["Q2"])
    world.redirects = {"Category:Old": "Category:New", "Category:A": "Category:B", "Category:B": "Category:A"}
    landmark("Category:A", "redirect_loop")
    landmark("Category:Gone", "missing")
    landmark("Category:Bad", "invalid", page={"invalid": True, "invalidreason": "no"})
    landmark("Category:Bad|title", "invalid")
    landmark("", "invalid")
    landmark("Category:No_item", "no_item", page=None)
    landmark("Category:Double_redirect", "item_missing", page="Q13")
    landmark("Category:Merged", ["lago"], page="Q14")
    world.merged["Q14"] = "Q15"
    world.items["Q15"] = {"P31": ["Q3"]}
    landmark("Category:Category_item", ["church building"], page="Q16", P31=[CATEGORY_ITEM], P301=["Q17"])
    world.items["Q17"] = {"P31": ["Q1"]}
    landmark("Category:Category_of_category", ["castrum"], page="Q18", P31=[CATEGORY_ITEM], P301=["Q19"])
    world.items["Q19"] = {"P31": [CATEGORY_ITEM], "P301": ["Q12"]}
    landmark("Category:No_topic", "category_item_without_topic", page="Q20", P31=[CATEGORY_ITEM])
    landmark("Category:Topic_unknown", "category_item_without_topic", page="Q21", P31=[CATEGORY_ITEM], P301=[_unknown()])
    landmark("Category:Round", "topic_loop", page="Q22", P31=[CATEGORY_ITEM], P301=["Q22"])
    landmark("Category:Ranks", ["church building"], page="Q23", P31=["Q5", claim("Q1", "preferred"), claim("Q2", "deprecated")])
    landmark("Category:Several", ["racecourse", "church building"], page="Q24", P31=["Q5", claim("Q1", ended=True), "Q5"])
    landmark("Category:Unknown", "no_type", page="Q25", P31=[_unknown()])
    landmark("Category:Nothing", "no_type", page="Q26", P279=["Q1"])
    landmark("Category:Nameless", ["Q4"], page="Q27", P31=["Q4"])
    landmark("Category:Type_gone", ["Q6"], page="Q28", P31=["Q6"])
    landmark("Category:Type_merged", ["racecourse"], page="Q29", P31=["Q50", "Q5"])
    landmark("Category:Also_a_category", ["Q4167836", "racecourse"], page="Q30", P31=[CATEGORY_ITEM, "Q5"])
    landmark("Category:Happy_Valley", ["racecourse"])  # a second landmark of one page
    return world, [source for source, _ in told], {str(n): expected for n, (_, expected) in enumerate(told)}


def _unknown():
    return claim(None, snaktype="somevalue")


@pytest.fixture
def begun(tmp_path):
    """A function: a number of landmarks → a project of them, the server that knows them, and what should come out."""
    with ExitStack() as stack:

        def begin(count):
            world, sources, expected = landmarks(count)
            return project_of(tmp_path / "p", sources), stack.enter_context(serving(world)), expected

        yield begin


def test_every_ending(hand_made, tmp_path):
    world, sources, expected = hand_made
    project = project_of(tmp_path / "p", sources)
    with serving(world) as fake:
        outcome = run(project, fake)
    assert types(project) == expected
    reasons = [one for one in expected.values() if isinstance(one, str)]
    assert outcome.untyped == {reason: reasons.count(reason) for reason in sorted(reasons)}
    assert (outcome.items, outcome.typed, outcome.failed) == (len(sources), len(sources) - len(reasons), 0)
    assert (outcome.several, outcome.nameless, outcome.types) == (2, 3, 7)
    with project.snapshot() as db:
        ended = db.execute("SELECT text, qid, ended FROM item_type WHERE ended").fetchall()
        assert [tuple(row) for row in ended] == [("church building", "Q1", 1)]
        merged = dict(db.execute("SELECT qid, merged_into FROM entity WHERE merged_into IS NOT NULL").fetchall())
        assert merged == {"Q14": "Q15", "Q50": "Q5"}
        described = db.execute("SELECT language, description FROM entity WHERE qid = 'Q2' AND kind = 'type'").fetchone()
        assert tuple(described) == ("mul", "a castrum")
        reason = db.execute("SELECT reason FROM page WHERE title LIKE '%|%'").fetchone()[0]
        assert "contains '|'" in reason
    assert project.check() == []


def test_requests_are_few_full_and_said_to_be(begun):
    (project, fake, expected), clock = begun(120), Clock()
    outcome = run(project, fake, clock)
    assert types(project) == expected
    sizes = {"titles": [], "ids": []}
    for request in fake.asked:
        sizes["titles" if "titles" in request.form else "ids"].append(len(request.keys))
    with_item = sum(n % 11 not in (0, 1) for n in range(120))
    assert sizes["titles"] == [50, 50, 20]
    assert sizes["ids"] == [50, with_item - 50, 11, 5]  # items, topics of 11 category items, names of 5 types
    assert outcome.requests == len(fake.asked) == 7
    assert clock.slept == [pytest.approx(60 / 180)] * 6
    asked = [key for request in fake.asked for key in request.keys]
    assert len(asked) == len(set(asked))


def test_the_same_run_again_asks_nothing_and_changes_nothing(begun):
    project, fake, _ = begun(30)
    assert run(project, fake).changed
    before = tables(project)
    again = run(project, fake)
    assert (again.requests, again.changed) == (0, False)
    assert tables(project) == before


def test_the_step_is_recorded_with_what_it_was_told(begun):
    project, fake, _ = begun(30)
    outcome = run(project, fake)
    step = project.steps()["scrape"]
    assert step.settings["commons"] == fake.commons
    assert step.settings["languages"] == ["en", "mul", "fr", "de", "es"]
    assert (step.settings["rate"], step.settings["limit"]) == (180, None)
    assert "tester" not in json.dumps(step.settings)
    assert step.result["untyped"] == outcome.untyped
    assert step.result["several"] == 3


def test_replies_are_kept_as_they_came(begun):
    project, fake, _ = begun(60)
    run(project, fake)
    with project.snapshot() as db:
        kept = db.execute("SELECT sha, url, body FROM reply").fetchall()
        names = {row[0] for row in db.execute("SELECT reply FROM page WHERE reply IS NOT NULL UNION SELECT reply FROM entity")}
    assert len(kept) == len(fake.asked)
    for sha, url, body in kept:
        whole = zlib.decompress(body)
        assert sha256(whole).hexdigest() == sha
        json.loads(whole)
        assert url.startswith(fake.base)
    assert names == {sha for sha, _, _ in kept}


@pytest.mark.parametrize("parts", [1, 7])
def test_replies_that_are_continued_are_read_to_their_end(tmp_path, parts):
    world, sources, expected = landmarks(15)
    project = project_of(tmp_path / "p", sources)
    with serving(world, page_parts=parts) as fake:
        run(project, fake)
    assert types(project) == expected
    assert sum("ppcontinue" in request.form for request in fake.asked) == -(-15 // parts) - 1


FAULTS = {
    "lag twice": [faults.api_error("maxlag", "lagged", Retry_After="5")] * 2,
    "429": [faults.status(429, Retry_After="1")],
    "429 and a fraction": [faults.status(429, Retry_After="1.5")],
    "503 without a time": [faults.status(503)] * 3,
    "a page as success": [faults.html_as_success],
    "a page as JSON": [faults.html_as_json],
    "half of the JSON": [faults.cut_json] * 2,
    "a reset": [faults.reset] * 2,
    "another shape": [faults.other_shape],
    "a slow one": [faults.slow(1.5)],
}


@pytest.mark.parametrize(("name", "number"), list(zip(FAULTS, (1, 2, 3, 4, 5) * 2, strict=True)))
def test_faults_that_pass_leave_no_trace(tmp_path, undisturbed, name, number):
    world, sources, clean = undisturbed
    project = project_of(tmp_path / "p", sources)
    with serving(world) as fake:
        for fault in FAULTS[name]:
            fake.fault(fault, lambda request: request.number >= number)
        run(project, fake, client_options={"timeout": 1.0} if name == "a slow one" else {})
    found = tables(project)
    assert {key: found[key] for key in clean} == clean
    assert len(fake.asked) == 5 + len(FAULTS[name])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A world of few landmarks, asked for in five requests, and the tables of a run that nothing happened to."""
    world, sources, _ = landmarks(60)
    project = project_of(tmp_path_factory.mktemp("undisturbed") / "p", sources)
    with serving(world) as fake:
        run(project, fake)
    assert len(fake.asked) == 5
    return world, sources, {name: rows for name, rows in tables(project).items() if name != "step"}


def test_a_title_that_always_fails_is_found_by_halving_and_the_others_are_not_lost(begun):
    project, fake, expected = begun(50)
    fake.fault(faults.cut_json, lambda request: "Category:Place 7" in request.keys, times=1000)
    outcome = run(project, fake)
    assert outcome.failed == 1
    assert types(project) == {**expected, "7": "failed"}
    with project.snapshot() as db:
        state, reason = db.execute("SELECT state, reason FROM page WHERE title = 'Category:Place 7'").fetchone()
        jobs = db.execute("SELECT state, count(*) FROM fetch_job WHERE kind = 'page' GROUP BY state").fetchall()
    assert (state, reason.count("did not answer JSON")) == ("failed", 1)
    assert '{"batchcomplete": true' in reason
    assert {row[0]: row[1] for row in jobs} == {"split": 6, "done": 6, "failed": 1}  # of 50, 25, 12, 6, 3, 2; then 1
    assert run(project, fake).requests == 0  # what failed is not asked for by itself
    fake.faults.clear()
    again = run(project, fake, retry_failed=True)
    assert (again.failed, again.requests) == (0, 2)
    assert types(project) == expected


def test_an_item_and_a_type_that_fail_are_failed(begun):
    project, fake, expected = begun(22)
    fake.fault(faults.reset, lambda request: bool({"Q1007", "Q101"} & set(request.keys)), times=1000)
    outcome = run(project, fake)
    assert outcome.failed == 2
    lakes = [key for key, found in expected.items() if found == ["lake"]]
    assert types(project) == {**expected, "7": "failed", **{key: ["Q101"] for key in lakes}}
    fake.faults.clear()
    assert run(project, fake, retry_failed=True).failed == 0
    assert types(project) == expected


def test_a_server_that_takes_fewer_gets_fewer(begun, monkeypatch):
    monkeypatch.setattr(faults, "MOST", 20)
    (project, fake, expected), clock = begun(50), Clock()
    run(project, fake, clock)
    assert types(project) == expected
    assert clock.waits == []
    assert [len(request.keys) for request in fake.asked][:7] == [50, 25, 25, 12, 13, 12, 13]


def test_an_id_the_server_will_not_have_is_left_out_and_the_rest_asked_again(begun):
    project, fake, expected = begun(22)
    fake.world.names["bad"] = {"Q1007"}
    outcome = run(project, fake)
    assert types(project) == {**expected, "7": "item_missing"}
    assert outcome.failed == 0
    assert len(fake.asked) == 5  # titles, items, items but one, topics, names


def test_a_server_that_only_speaks_nonsense_is_given_up_and_not_taken_for_empty(begun):
    (project, fake, expected), clock = begun(120), Clock()
    fake.fault(faults.other_shape, times=10000)
    with pytest.raises(GaveUpError, match="shape"):
        run(project, fake, clock)
    assert len(fake.asked) < 40
    with project.snapshot() as db:
        assert db.execute("SELECT count(*) FROM page WHERE state != 'pending'").fetchone()[0] == 0
        assert db.execute("SELECT count(*) FROM item_type").fetchone()[0] == 0
    assert "scrape" not in project.steps()
    fake.faults.clear()
    run(project, fake)
    assert types(project) == expected


def test_a_trial_of_some_items_is_gone_on_with(begun):
    project, fake, expected = begun(120)
    first = run(project, fake, limit=30)
    assert types(project) == {key: found if int(key) < 30 else "not_asked" for key, found in expected.items()}
    assert first.untyped["not_asked"] == 90
    assert run(project, fake, limit=30).requests == 0
    asked = len(fake.asked)
    run(project, fake)
    assert types(project) == expected
    titles = [key for request in fake.asked for key in request.keys]
    assert len(titles) == len(set(titles))
    assert len(fake.asked) - asked == 2 + 2 + 1  # titles, items, topics; the names of types are known


def test_other_servers_are_asked_only_afresh(begun):
    project, fake, expected = begun(11)
    run(project, fake)
    with serving(fake.world) as other:
        with pytest.raises(ValueError, match=f"was scraped from {fake.commons} and .* scrape afresh"):
            run(project, other)
        fake.world.names["Q103"]["en"] = "viaduct"
        assert run(project, other, afresh=True).requests == len(fake.asked)
    assert types(project) == {key: ["viaduct"] if found == ["bridge"] else found for key, found in expected.items()}


def test_pages_that_were_moved_are_found_in_the_log(tmp_path):
    world = World(pages={"Category:New": "Q10"}, items={"Q10": {"P31": ["Q1"]}}, names={"Q1": {"en": "church"}})
    world.moves = {"Category:Old": "Category:New", "Category:Lost": "Category:Lost too"}
    project = project_of(tmp_path / "p", ["Category:Old", "Category:Lost", "Category:Never"])
    with serving(world) as fake:
        run(project, fake)
        assert types(project) == dict.fromkeys("012", "missing")
        outcome = run(project, fake, move_log=True)
        assert types(project) == {"0": ["church"], "1": "missing", "2": "missing"}
        assert outcome.requests == 3 + 2 + 1 + 1  # the log of three, two targets, an item, a name
        assert run(project, fake, move_log=True).requests == 0
    with project.snapshot() as db:
        page = db.execute("SELECT resolved, reason FROM page WHERE title = 'Category:Old'").fetchone()
    assert tuple(page) == ("Category:New", "moved to Category:New")


def test_items_without_a_source_keep_the_types_of_a_file(tmp_path):
    world, sources, expected = landmarks(3)
    project = project_of(tmp_path / "p", sources)
    (tmp_path / "index.csv").write_text("landmark_id,supercategory\n70,windmill\n71,\n")
    types_from_files(project, [("index", tmp_path / "index.csv")])
    with serving(world) as fake:
        outcome = run(project, fake)
        assert types(project) == {**expected, "70": ["windmill"], "71": "empty"}
        assert outcome.items == 5
        assert not run(project, fake).changed


def test_one_scrape_at_a_time(begun):
    project, fake, _ = begun(3)
    with lock_folder(project.folder, "", ""), pytest.raises(BlockingIOError, match="is scraping for"):
        run(project, fake)
    assert fake.asked == []


@pytest.mark.parametrize(("sources", "said"), [([], "has no items"), (["", " "], "none of the 2 items has a page")])
def test_nothing_to_look_up_is_said(tmp_path, sources, said):
    project = project_of(tmp_path / "p", sources)
    with serving(World()) as fake, pytest.raises(ValueError, match=said):
        run(project, fake)


@pytest.mark.parametrize("url", ["commons.wikimedia.org", "ftp://x/api.php", "https:///api.php", ""])
def test_an_endpoint_is_an_address(tmp_path, url):
    project = project_of(tmp_path / "p", ["Category:A"])
    with serving(World()) as fake:
        fake.wikidata = url or "nowhere"
        with pytest.raises(ValueError, match=r"--wikidata .* is not the address of an api.php"):
            run(project, fake)


@pytest.mark.parametrize(("steps", "left", "requests"), [(0, "several types", 0), (1, "several types", 1), (2, "chapel", 2)])
def test_classes_above_the_types_tell_which_is_the_most_specific(tmp_path, steps, left, requests):
    # A chapel is a place of worship, which is a sacred place, which is a building; nothing here is one of those between.
    world = World(pages={"Category:A": "Q10", "Category:B": "Q11"}, names={"Q1": {"en": "chapel"}, "Q3": {"en": "building"}})
    world.items = {
        "Q10": {"P31": ["Q1", "Q3"]},
        "Q11": {"P31": ["Q5"]},  # of one type: what is above that is nobody's question
        "Q1": {"P279": ["Q2"]},
        "Q2": {"P279": ["Q7"]},
        "Q7": {"P279": ["Q3"]},
        "Q3": {"P279": ["Q4"]},
        "Q4": {"P279": ["Q3"]},
        "Q5": {"P279": ["Q6"]},
    }
    project = project_of(tmp_path / "p", ["Category:A", "Category:B"])
    rules = project.recipe.clean.model_copy(update={"several": "most-specific"})
    with serving(world) as fake:
        run(project, fake)
        clean_labels(project, rules)
        before = len(fake.asked)
        assert run(project, fake, ancestors=steps).requests == requests
        assert run(project, fake, ancestors=steps).requests == 0
        assert "Q6" not in {key for asked in fake.asked[before:] for key in asked.keys}
    assert project.steps()["clean"].stale == (steps > 0)
    clean_labels(project, rules)
    with project.snapshot() as db:
        found = db.execute("SELECT coalesce(text, item_label.reason) FROM item_label LEFT JOIN label ON label.id = label")
        assert found.fetchone()[0] == left
