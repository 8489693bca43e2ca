"""Revisited Oxford and Paris: who is positive under which protocol, the trapezoid by hand, and its files."""

import datetime
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.evaluation.revisited import (
    GroundTruth,
    precision_at_reached,
    protocol_lists,
    read_ground_truth,
    revisited,
    trapezoidal_average_precision,
)
from suprank.ranking import average_precision, heaviside, ranks

GND = [
    {"bbx": [1.5, 2, 30, 40], "easy": [4, 0], "hard": [2], "junk": [1]},
    {"bbx": [0, 0, 10, 10], "easy": [], "hard": [3, 1], "junk": []},
]
CONTENT = {"imlist": ["a", "b", "c", "d", "e"], "qimlist": ["p", "q"], "gnd": GND}

PLACES = st.sets(st.integers(1, 60), min_size=1, max_size=20).map(sorted)


def lists(found):
    return [indices.tolist() for indices in found]


def slow_trapezoid(places):
    """The protocol's sum, a positive at a time."""
    total = 0.0
    for count, place in enumerate(sorted(places)):
        above = place - 1  # how many items stand above
        before = 1.0 if above == 0 else count / above
        after = (count + 1) / place
        total += (before + after) / 2 / len(places)
    return total


def usual(places):
    """AP with the precision at each positive alone."""
    return sum(count / place for count, place in enumerate(places, 1)) / len(places)


# Worked examples


def test_the_three_protocols_by_hand():
    found = protocol_lists(GND)
    assert list(found) == ["easy", "medium", "hard"]
    assert (lists(found["easy"].positives), lists(found["easy"].ignored)) == ([[0, 4], []], [[1, 2], [1, 3]])
    assert (lists(found["medium"].positives), lists(found["medium"].ignored)) == ([[0, 2, 4], [1, 3]], [[1], []])
    assert (lists(found["hard"].positives), lists(found["hard"].ignored)) == ([[2], [1, 3]], [[0, 1, 4], []])


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([1], 1),
        ([2], (0 + 1 / 2) / 2),
        ([1, 2, 3], 1),
        ([1, 3], (1 + (1 / 2 + 2 / 3) / 2) / 2),
        ([2, 4], ((0 + 1 / 2) / 2 + (1 / 3 + 2 / 4) / 2) / 2),
    ],
)
def test_trapezoids_by_hand(places, expected):
    assert trapezoidal_average_precision(places) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("places", "k", "expected"),
    [
        ([1, 2, 3], 10, 1),  # the list ends with its last positive
        ([1, 4], 10, 2 / 4),
        ([1, 4], 3, 1 / 3),
        ([1, 4], 1, 1),
        ([7], 5, 0),
        ([7], 7, 1 / 7),
    ],
)
def test_precision_stops_at_the_last_positive(places, k, expected):
    assert precision_at_reached(places, k) == pytest.approx(expected)


def test_a_report_by_hand():
    gnd = [{"easy": [0, 2], "hard": [], "junk": []}, {"easy": [], "hard": [1], "junk": []}]
    gallery = np.array([[1, 0], [1, 0.1], [1, 0.2], [1, 0.3], [1, 0.4]])  # in this order for both queries
    report = revisited(gallery[:1].repeat(2, 0), gallery, gnd, ks=(1, 5), progress=False)
    assert report["AP/easy"] == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)
    assert (report["P@1/easy"], report["P@5/easy"]) == (1, pytest.approx(2 / 3))
    assert (report["AP/hard"], report["P@1/hard"], report["P@5/hard"]) == (pytest.approx(1 / 4), 0, 1 / 2)
    assert report.per_query["AP/medium"] == pytest.approx([report["AP/easy"], report["AP/hard"]])
    assert report.without_positives == {"easy": 1, "medium": 0, "hard": 1}


def test_queries_that_share_a_positive_are_one_unit_of_intervals():
    # Of 20 queries, two each find one of ten buildings: 10 groups. A query whose easy positive is junk shares it all the same.
    gnd = [
        {"easy": [query // 2] if query % 2 else [], "hard": [] if query % 2 else [query // 2], "junk": []}
        for query in range(20)
    ]
    random = np.random.default_rng(0)
    report = revisited(random.normal(size=(20, 4)), random.normal(size=(30, 4)), gnd, progress=False).with_intervals()
    (units,) = report.classes.values()
    assert units.tolist() == [query // 2 for query in range(20)]
    assert str(report.units()) == "shared positives: 10 classes, effectively 10"
    assert report.settings["intervals"]["measured"].startswith("Measured on 10 groups that share positives (unit:")
    assert set(report.intervals) == set(report.per_query)


# Agreement


@given(PLACES)
def test_the_trapezoid_is_the_slow_loop(places):
    assert trapezoidal_average_precision(places) == pytest.approx(slow_trapezoid(places))


@pytest.mark.parametrize("budget", [None, 1])
def test_embeddings_are_judged_as_lists_that_never_had_the_ignored_images(budget):
    rng = np.random.default_rng(0)
    kinds = rng.choice(["easy", "hard", "junk", "negative"], size=(8, 90), p=[0.1, 0.1, 0.1, 0.7])
    kinds[3][kinds[3] == "easy"] = "negative"  # no positives in the easy protocol
    gnd = [{kind: np.flatnonzero(row == kind) for kind in ("easy", "hard", "junk")} for row in kinds]
    queries, gallery = rng.standard_normal((8, 6)), rng.standard_normal((90, 6))
    report = revisited(queries, gallery, gnd, ks=(1, 5), memory_budget=budget, progress=False)
    scores = queries @ (gallery / np.linalg.norm(gallery, axis=1, keepdims=True)).T
    for protocol, (positives, ignored) in protocol_lists(gnd).items():
        for query in range(8):
            kept = np.setdiff1d(np.arange(90), ignored[query])
            ranked = kept[(-scores[query, kept]).argsort()]
            places = np.flatnonzero(np.isin(ranked, positives[query])) + 1
            expected = {"AP": trapezoidal_average_precision(places), "P@5": precision_at_reached(places, 5)}
            for name, value in expected.items():
                assert report.per_query[f"{name}/{protocol}"][query] == pytest.approx(value, nan_ok=True)
    assert report.without_positives == {"easy": 1, "medium": 0, "hard": 0}
    assert report["AP/easy"] == pytest.approx(np.nanmean(report.per_query["AP/easy"]))
    assert report.settings["average_precision"] == "trapezoidal"


def test_a_ground_truth_that_does_not_fit_the_embeddings_is_refused():
    gnd = [{"easy": [0], "hard": [5], "junk": []}]
    with pytest.raises(ValueError, match="judges 1 queries and there are 2"):
        revisited(np.eye(2), np.eye(2), gnd)
    with pytest.raises(ValueError, match="names item 5 .* but the gallery has items 0 to 1"):
        revisited(np.eye(2)[:1], np.eye(2), gnd)


# Laws


@given(PLACES)
def test_the_trapezoid_is_below_the_usual_ap_by_at_most_what_its_docstring_says(places):
    level = torch.zeros(1, 60, dtype=torch.int64)
    level[0, torch.tensor(places) - 1] = 1
    falling = torch.linspace(1, 0, 60, dtype=torch.float64)[None]
    exact = average_precision(ranks(falling, level, minus=heaviside), level > 0).item()
    gap = exact - trapezoidal_average_precision(places)
    m = len(places)
    stated = sum((place - 1 - j) / (2 * (place - 1) * place) for j, place in enumerate(places) if place > 1) / m
    assert gap == pytest.approx(stated, abs=1e-12)
    assert -1e-12 <= gap <= sum(1 / (2 * j + 1) for j in range(m)) / (4 * m) + 1e-12


@pytest.mark.parametrize(("m", "bound"), [(1, 0.25), (10, 0.053), (100, 0.008)])
def test_every_second_place_reaches_the_bound(m, bound):
    places = list(range(2, 2 * m + 1, 2))
    assert usual(places) - trapezoidal_average_precision(places) == pytest.approx(bound, abs=5e-4)


@given(PLACES, st.integers(1, 70))
def test_precision_is_at_least_the_usual_one_and_equal_while_positives_remain(places, k):
    plain = sum(place <= k for place in places) / k
    assert precision_at_reached(places, k) >= plain
    if places[-1] >= k:
        assert precision_at_reached(places, k) == plain


# Edges


def test_no_positives_is_nan_and_a_protocol_without_any_is_nan_without_a_warning():
    assert math.isnan(trapezoidal_average_precision([]))
    assert math.isnan(precision_at_reached([], 5))
    gnd = [{"easy": [], "hard": [0], "junk": []}] * 2
    report = revisited(np.eye(2), np.eye(2), gnd, ks=(1,), progress=False)
    assert math.isnan(report["AP/easy"])
    assert math.isnan(report["P@1/easy"])
    assert report.without_positives["easy"] == 2


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: trapezoidal_average_precision([0, 1]), "count from 1"),
        (lambda: trapezoidal_average_precision([2, 2]), "distinct"),
        (lambda: precision_at_reached([1], 0), "k=0 must be 1 or more"),
        (lambda: protocol_lists([{"ok": [1], "junk": []}]), "needs the lists easy, hard and junk"),
        (lambda: protocol_lists([{"easy": [1], "hard": [1], "junk": []}]), "judges gallery image 1 twice"),
        (lambda: GroundTruth(("a",), ("q",), ({"easy": [1], "hard": [], "junk": []},)), "gallery index 1, but there"),
        (lambda: GroundTruth(("a",), ("q",), ({"easy": [-1], "hard": [], "junk": []},)), "gallery image -1, but"),
        (lambda: GroundTruth(("a",), (), ({"easy": [0], "hard": [], "junk": []},)), "judges 1 queries and names 0"),
    ],
)
def test_what_is_no_ground_truth_or_no_places_is_refused(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


def test_places_are_whole_numbers():
    with pytest.raises(TypeError, match="whole numbers"):
        trapezoidal_average_precision([1.5])


# Files


def with_arrays(content):
    """The same with numpy's arrays and numbers, as other tools write it: floats, another byte order, columns first."""
    gnd = [
        {
            "bbx": np.asfortranarray(np.array(row["bbx"], ">f4").reshape(2, 2)),
            "easy": np.array(row["easy"], np.int32),
            "hard": np.array([row["hard"]], float),
            "junk": [np.int64(index) for index in row["junk"]],
        }
        for row in content["gnd"]
    ]
    return {"imlist": np.array(content["imlist"]), "qimlist": tuple(content["qimlist"]), "gnd": gnd}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("form", [lambda content: content, with_arrays], ids=["lists", "arrays"])
def test_a_pickle_of_any_age_is_read(tmp_path, form, protocol):
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(form(CONTENT), protocol=protocol))
    check_content(read_ground_truth(tmp_path / "gnd.pkl"))


def test_json_is_read(tmp_path):
    (tmp_path / "gnd.json").write_text(json.dumps(CONTENT))
    check_content(read_ground_truth(tmp_path / "gnd.json"))


def check_content(found):
    assert (found.items, found.queries) == (("a", "b", "c", "d", "e"), ("p", "q"))
    assert [{kind: row[kind].tolist() for kind in row} for row in found.judgments] == [
        {kind: row[kind] for kind in ("easy", "hard", "junk")} for row in GND
    ]
    assert found.boxes.tolist() == [[1.5, 2, 30, 40], [0, 0, 10, 10]]
    assert lists(protocol_lists(found)["medium"].positives) == [[0, 2, 4], [1, 3]]


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    (tmp_path / "gnd.pkl").write_bytes(pickle.dumps(CONTENT | {"more": datetime.date(2018, 6, 1)}))
    with pytest.raises(ValueError, match="gnd.pkl was not loaded: it asks for datetime.date"):
        read_ground_truth(tmp_path / "gnd.pkl")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"imlist": [],\n "qimlist" []}', "gnd.json:2: this is not JSON"),
        ('{"imlist": [], "qimlist": []}', "the keys imlist, qimlist and gnd"),
        ("[]", "holds list, but"),
        ('{"imlist": "abc", "qimlist": [], "gnd": []}', "imlist must be a list of image names"),
        ('{"imlist": ["a"], "qimlist": ["q"], "gnd": {"easy": []}}', "gnd must be a list"),
    ],
)
def test_json_that_is_no_ground_truth_is_refused(tmp_path, content, complaint):
    (tmp_path / "gnd.json").write_text(content)
    with pytest.raises(ValueError, match=complaint):
        read_ground_truth(tmp_path / "gnd.json")


@pytest.mark.parametrize("number", ["-1", "1e300", "-1e300", "Infinity", "NaN", "9223372036854775808"])
def test_a_number_that_is_no_image_is_refused(tmp_path, number):
    row = f'{{"bbx": [1, 2, 3, 4], "easy": [0, {number}], "hard": [], "junk": []}}'
    (tmp_path / "gnd.json").write_text(f'{{"imlist": ["a", "b"], "qimlist": ["q"], "gnd": [{row}]}}')
    with pytest.raises((ValueError, TypeError), match=r"gnd\.json"):
        read_ground_truth(tmp_path / "gnd.json")
    with pytest.raises((ValueError, TypeError), match=r"gnd\[0\]"):
        protocol_lists(json.loads(f"[{row}]"))


@pytest.mark.parametrize("number", ["1e300", "Infinity", "NaN"])
def test_a_box_without_an_end_is_refused(tmp_path, number):
    row = f'{{"bbx": [1, 2, {number}, 4], "easy": [0], "hard": [], "junk": []}}'
    (tmp_path / "gnd.json").write_text(f'{{"imlist": ["a"], "qimlist": ["q"], "gnd": [{row}]}}')
    with pytest.raises(ValueError, match=r"gnd\.json: bbx of 'q' has a number that is no pixel"):
        read_ground_truth(tmp_path / "gnd.json")
