"""Cleaning: each rule on a few landmarks by hand, labels that keep their ids, and every item with exactly one outcome."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.hierarchy.cleaning import clean_labels
from suprank.hierarchy.cleaning_rules import (
    SEVERAL,
    CandidateType,
    TypedItem,
    ancestors,
    apply_rules,
    choosers,
    text_removal_reason,
)
from suprank.hierarchy.project import Project
from suprank.hierarchy.recipe import CleanRecipe, StopText, read_recipe
from tests.hierarchy.branches import landmarks, plain, write_branch

CHURCH, CHAPEL, MUSEUM = ("church building", "Q16970"), ("chapel", "Q108325"), ("museum", "Q33506")
CATEGORY = ("Wikimedia category", "Q4167836")


@pytest.fixture
def project(tmp_path):
    """Seven landmarks; a chapel is a kind of church."""
    types = {
        ("train", 1): [CHURCH],
        ("train", 2): [CHURCH, CHAPEL],
        ("train", 3): [MUSEUM, CHURCH],
        ("train", 4): [CATEGORY],
        ("train", 5): [CATEGORY, MUSEUM],
        ("index", 1): [],
        ("index", 2): [("Wikimedia portal", "Q1")],
    }
    made = landmarks(tmp_path / "p", types)
    with made.transaction() as db:
        db.execute("INSERT INTO item_untyped VALUES (6, 'no_item')")
        db.execute(
            "INSERT INTO type_class VALUES ('Q108325', '', '[\"Q16970\"]'), ('Q33506', 'a house for a collection', '[]')"
        )
    return made


def rules(project, **changed):
    return project.recipe.clean.model_copy(update=changed)


def outcomes(project):
    with project.snapshot() as db:
        rows = db.execute(
            "SELECT split || ' ' || item.key AS item, coalesce(text, item_label.reason) FROM item_label "
            "JOIN item ON item.id = item LEFT JOIN label ON label.id = label ORDER BY item.id"
        )
        return dict(rows.fetchall())


def label_ids(project, state="active"):
    with project.snapshot() as db:
        return dict(db.execute("SELECT text, id FROM label WHERE state = ?", (state,)).fetchall())


def test_the_papers_rule_by_hand(project):
    done = clean_labels(project, rules(project))
    assert outcomes(project) == {
        "train 1": "church building",
        "train 2": "several types",
        "train 3": "several types",
        "train 4": "Wikimedia category",
        "train 5": "museum",
        "index 1": "no_item",
        "index 2": "a page of Wikimedia, not a kind of place",
    }
    assert (done.items, done.labeled, done.labels) == (7, 2, 2)
    assert done.reasons == {
        "several types": 2,
        "Wikimedia category": 1,
        "no_item": 1,
        "a page of Wikimedia, not a kind of place": 1,
    }
    assert done.policies == {"single-only": (2, 2), "first": (4, 2), "most-specific": (3, 3), "most-frequent": (4, 2)}
    with project.snapshot() as db:
        rows = db.execute("SELECT key, text, qid, description, weight FROM label ORDER BY key").fetchall()
    assert [tuple(row) for row in rows] == [
        ("Q16970", "church building", "Q16970", "", 1),
        ("Q33506", "museum", "Q33506", "a house for a collection", 1),
    ]
    step = project.steps()["clean"]
    assert step.settings["several"] == "single-only"
    assert (step.stale, step.result["labeled"]) == (False, 2)


@pytest.mark.parametrize(
    ("several", "second", "third"),
    [
        ("single-only", "several types", "several types"),
        ("first", "church building", "museum"),
        ("most-specific", "chapel", "several types"),
        ("most-frequent", "church building", "church building"),
    ],
)
def test_each_rule_for_several_types(project, several, second, third):
    done = clean_labels(project, rules(project, several=several))
    assert (outcomes(project)["train 2"], outcomes(project)["train 3"]) == (second, third)
    assert done.policies[several] == (done.labeled, done.labels)


def test_the_same_again_changes_nothing_and_other_rules_replace(project):
    assert clean_labels(project, rules(project)).changed
    with project.snapshot() as db:
        before = list(db.iterdump())
    assert not clean_labels(project, rules(project)).changed
    with project.snapshot() as db:
        assert list(db.iterdump()) == before
    assert clean_labels(project, rules(project, several="first")).changed
    assert outcomes(project)["train 2"] == "church building"


def test_labels_that_stay_keep_their_ids_and_those_in_a_branch_are_not_forgotten(project):
    clean_labels(project, rules(project, several="most-specific"))
    before = label_ids(project)
    write_branch(project, {"chapel": ("churches", "human-made")}, name="anna")
    clean_labels(project, rules(project, several="single-only"))  # nobody is a mere chapel any more
    assert label_ids(project) == {text: number for text, number in before.items() if text != "chapel"}
    assert label_ids(project, "removed") == {"chapel": before["chapel"]}
    with project.snapshot() as db:
        assert tuple(db.execute("SELECT weight, reason FROM label WHERE text = 'chapel'").fetchone()) == (
            0,
            "no longer in the source",
        )
    clean_labels(project, rules(project, several="most-specific"))
    assert label_ids(project) == before
    assert project.check() == []


def test_labels_of_too_few_items_are_removed_with_their_items(tmp_path):
    project = landmarks(tmp_path / "p", {("train", n): [CHURCH if n < 3 else MUSEUM] for n in range(4)})
    done = clean_labels(project, rules(project, least_items=2))
    assert outcomes(project)["train 3"] == "label of fewer than 2 items"
    assert (done.labels, done.labeled, done.removed_labels) == (1, 3, {"label of fewer than 2 items": 1})
    assert list(label_ids(project, "removed")) == ["museum"]


def test_types_that_have_ended_are_kept_or_dropped(tmp_path):
    project = landmarks(
        tmp_path / "p", {("train", 1): [("prison", "Q1", 1), ("museum", "Q2")], ("train", 2): [("prison", "Q1", 1)]}
    )
    clean_labels(project, rules(project, ended="drop"))
    assert list(outcomes(project).values()) == ["museum", "the type has ended"]
    clean_labels(project, rules(project, ended="keep"))
    assert list(outcomes(project).values()) == [SEVERAL, "prison"]


def test_spellings_are_one_label_called_by_the_most_frequent(tmp_path):
    texts = ["Park", "park", " park", "park", "Lake"]
    project = landmarks(tmp_path / "p", {("train", n): [text] for n, text in enumerate(texts)})
    clean_labels(project, rules(project))
    with project.snapshot() as db:
        found = db.execute(
            "SELECT label.text, weight, label_spelling.text, items FROM label JOIN label_spelling ON label = id"
        ).fetchall()
    assert {tuple(row) for row in found} == {
        ("park", 4, "Park", 1),
        ("park", 4, "park", 2),
        ("park", 4, " park", 1),
        ("Lake", 1, "Lake", 1),
    }


def test_a_source_with_two_labels_is_told(tmp_path):
    project = landmarks(tmp_path / "p", {("train", 1): [CHURCH], ("index", 9): [MUSEUM]})
    with project.transaction() as db:
        db.execute("UPDATE item SET source = 'http://commons/Category:One'")
    (told,) = clean_labels(project, rules(project)).contradictions
    assert told.startswith("http://commons/Category:One is the source of items with different labels")
    assert told.endswith("train 1 (church building) and index 9 (museum)")


def test_a_label_without_a_name_is_counted(tmp_path):
    project = landmarks(tmp_path / "p", {("train", 1): [("Q99", "Q99")], ("train", 2): [CHURCH]})
    done = clean_labels(project, rules(project))
    assert done.bare == ["Q99"]
    assert any("only a number: Q99" in line for line in done.sentences())


def test_a_plain_list_is_cleaned_by_text_and_weight(tmp_path):
    project = plain(tmp_path / "p", {"park": 5, "Wikimedia category": 9, "shed": 1}, ("label", "group"))
    stop = (StopText(begins="Wikimedia ", reason="not a kind of place"),)
    done = clean_labels(project, CleanRecipe(stop_text=stop, least_items=2))
    assert (done.labels, done.removed_labels) == (1, {"not a kind of place": 1, "label of fewer than 2 items": 1})
    assert [(one.id, one.reason) for one in done.removals] == [
        ("Wikimedia category", "not a kind of place"),
        ("shed", "label of fewer than 2 items"),
    ]
    assert not clean_labels(project, CleanRecipe(stop_text=stop, least_items=2)).changed
    clean_labels(project, CleanRecipe())
    assert set(label_ids(project)) == {"park", "Wikimedia category", "shed"}


def test_nothing_to_clean_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no item of .* has a type yet; `suprank hierarchy types` looks types up"):
        clean_labels(landmarks(tmp_path / "a", {("train", 1): []}), CleanRecipe())
    with pytest.raises(ValueError, match="has neither items nor labels"):
        clean_labels(plain(tmp_path / "b", {}, ("label", "group")), CleanRecipe())


def test_text_rules_begin_with_whole_words_whatever_the_case():
    stop = CleanRecipe(stop_text=(StopText(begins="Wikimedia ", reason="page"), StopText(equals="human", reason="person")))
    found = {
        text: text_removal_reason(text, stop) for text in ("WIKIMEDIA  list", "Wikimedian", "wikimedia", " Human", "humanoid")
    }
    assert found == {"WIKIMEDIA  list": "page", "Wikimedian": None, "wikimedia": "page", " Human": "person", "humanoid": None}


def test_cycles_of_classes_are_tolerated():
    above = {"Q1": ["Q2"], "Q2": ["Q1", "Q3"]}
    assert ancestors("Q1", above) == {"Q1", "Q2", "Q3"}
    one, two, three = (CandidateType(f"type {n}", f"Q{n}") for n in (1, 2, 3))
    most_specific = choosers([], above)["most-specific"]
    assert most_specific([one, two]) == [one, two]  # each above the other: neither goes
    assert most_specific([three, one]) == [one]


types = st.builds(
    CandidateType, st.sampled_from(["Park", "park ", "lake", "Wikimedia x", "inn"]), st.none(), st.booleans()
) | st.sampled_from(
    [
        CandidateType("church", "Q1"),
        CandidateType("Church", "Q1"),
        CandidateType("chapel", "Q2"),
        CandidateType("category", "Q4167836"),
    ]
)
PLAIN_RULES = read_recipe("hgldv2").clean


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(types, max_size=3), min_size=1, max_size=12),
    st.sampled_from(["single-only", "first", "most-specific", "most-frequent"]),
    st.sampled_from(["keep", "drop"]),
    st.integers(1, 3),
)
def test_every_item_has_one_outcome_and_weights_sum_up(found, several, ended, least):
    items = [TypedItem(n, "train", str(n), "", one, None) for n, one in enumerate(found)]
    rules = PLAIN_RULES.model_copy(update={"several": several, "ended": ended, "least_items": least})
    done, labels, keys, reasons = apply_rules(items, {"Q2": ["Q1"]}, rules)
    assert list(reasons) == [item.id for item in items]
    assert all((item in keys) == (reason is None) for item, reason in reasons.items())
    active = [label for label in labels.values() if label.reason is None]
    assert sum(label.weight for label in active) == len(keys) == done.labeled
    assert done.labeled + sum(done.reasons.values()) == done.items == len(done.removals) + done.labeled
    assert all(label.weight >= least for label in active)
    assert done.policies[several] == (done.labeled, done.labels)
    assert done.policies["first"][0] >= done.policies["single-only"][0] or least > 1


def test_two_cleanings_at_once_end_as_one(project):
    errors = []

    def run():
        try:
            clean_labels(Project(project.folder), rules(project))
        except BaseException as error:  # for the main thread
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(outcomes(project)) == 7
    with project.snapshot() as db:  # the second found it done
        assert db.execute("SELECT count(*) FROM step WHERE name = 'clean'").fetchone()[0] == 1
