"""Two reports compared: by hand, which pairs are refused, what the test is about, and what goes into files."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from suprank.evaluation.report import Report
from suprank.evaluation.report_comparison import LABELS, MetricComparison
from suprank.evaluation.units import TRAINING

PLENTY = settings(deadline=None, max_examples=60)
NAN = math.nan


def report_of(per_query, **others):
    """The report on these values per query; queries have ids by their places, unless other ids or classes are given."""
    per_query = {key: np.array(values, dtype=float) for key, values in per_query.items()}
    values = {key: float(np.nanmean(array)) if (array == array).any() else NAN for key, array in per_query.items()}
    queries = len(next(iter(per_query.values())))
    known = {"query_ids": range(queries)} if others.keys().isdisjoint({"query_ids", "classes"}) else {}
    return Report(values, **{"n_queries": queries, "n_items": 10, "per_query": per_query} | known | others)


def birds(*values, count=24, **others):
    """A report on birds: two queries of each species, four of each genus; AP has the first values for species, and so on."""
    queries = np.arange(2 * count)
    classes = {"species": queries // 2, "genus": queries // 4, "order": queries // count}
    keys = ("AP/species", "AP/order", "H-AP")
    return report_of(dict(zip(keys, values, strict=False)), levels=("species", "order"), classes=classes, **others)


# By hand


def test_a_comparison_by_hand():
    # Eight queries with AP, of which all are better: 2 of 2⁸ assignments are as far; of R@1 one query differs.
    mine = report_of({"AP": [0.5, 0.6, 0.7, *[0.8] * 5, NAN], "R@1": [1, 1, *[0] * 7], "NDCG": [NAN] * 9})
    other = report_of({"R@1": [1, *[0] * 8], "AP": [0.4, 0.4, 0.4, *[0.7] * 5, 1.0], "NDCG": [0.5] * 9})
    found = mine.compare(other)
    assert [row.metric for row in found] == ["AP", "R@1", "NDCG"]
    assert len(found) == 3
    ap = found["map"]
    assert (ap.metric, ap.queries, ap.p_value, ap.p_holm) == ("AP", 8, 2 / 256, 2 * 2 / 256)  # Holm counts the two tests made
    assert (ap.mine, ap.other, ap.difference) == pytest.approx((5.8 / 8, 4.7 / 8, 1.1 / 8))
    assert (ap.winner, ap.identical) == (0, False)
    assert found["R@1"][1:4] == pytest.approx((2 / 9, 1 / 9, 1 / 9))
    assert found["R@1"][6:] == (1.0, 9, 1.0, False)
    assert found["NDCG"][1:] == pytest.approx((NAN, NAN, NAN, NAN, NAN, NAN, 0, NAN, False), nan_ok=True)
    assert str(found).splitlines() == [
        "paired randomization test, query by query, two-sided, Holm-corrected for 3 rows",
        "Measured on 9 queries, which are taken as independent of one another.",
        "",
        "%      mine  other  difference       p  queries",
        "AP    72.50  58.75      +13.75  0.0078        8",
        "R@1   22.22  11.11      +11.11  1.0000        9",
        "NDCG     --     --          --      --        0",
    ]
    assert found.table(holm=True).splitlines()[4] == "AP    72.50  58.75      +13.75  0.0078    0.0156        8"


def test_images_of_a_genus_change_their_signs_together():
    # Twenty genera, each better by 0.1 or worse by 0.1: eleven against nine, whatever the number of images.
    better = np.repeat(np.where(np.arange(20) < 11, 0.6, 0.4), 4)
    mine, other = birds(better, count=40), birds(np.full(80, 0.5), count=40)
    found = mine.compare(other, "AP/species")
    assert found.units.level == "genus"
    assert found.test() == "paired randomization test, genus by genus, two-sided, Holm-corrected for 1 row"
    row = found["AP/species"]
    assert row.p_value == pytest.approx(1 - math.comb(20, 10) / 2**20, abs=0.02)  # all but ten against ten are as far
    assert row.low < 0 < row.high
    assert row.winner is None
    # By hand as in `mean_intervals`: the mean of all is 0.01, and t of 19 degrees of freedom is 2.0930.
    error = math.sqrt(sum((0.01 - (0.2 - sign * 0.1) / 19) ** 2 for sign in [1] * 11 + [-1] * 9))
    assert (row.low, row.high) == pytest.approx((0.01 - 2.0930 * error, 0.01 + 2.0930 * error), abs=1e-5)


def test_one_unit_holds_for_all_rows_and_counts_queries_with_a_value_in_any_of_them():
    half = np.where(np.arange(96) < 48, 0.5, NAN)  # AP of species has values in half of the 24 genera
    found = birds(half, np.full(96, 0.5), count=48).compare(birds(half, np.full(96, 0.4), count=48))
    assert (found.units.level, found.units.count) == ("genus", 24)
    alone = birds(half, count=48).compare(birds(half, count=48))
    assert (alone.units.level, alone.units.count) == ("species", 24), "twelve genera are not enough"


def test_a_row_with_values_in_too_few_units_has_no_p_and_does_not_count_for_holm():
    few = np.where(np.arange(40) < 14, 0.5, NAN)  # seven species
    mine, other = birds(np.full(40, 0.6), few, count=20), birds(np.full(40, 0.5), few / 2, count=20)
    found = mine.compare(other)
    assert np.isnan([found["AP/order"].p_value, found["AP/order"].p_holm, found["AP/order"].low]).all()
    assert found["AP/order"].winner is None
    assert found["AP/species"].p_holm == found["AP/species"].p_value < 0.05


def test_fewer_than_eight_units_have_no_p_and_the_sentence_says_why():
    found = birds(np.full(14, 0.9), count=7).compare(birds(np.full(14, 0.1), count=7))
    row = found["AP/species"]
    assert np.isnan([row.p_value, row.p_holm, row.low, row.high, found.smallest_p]).all()
    assert row.difference == pytest.approx(0.8)
    assert "7 are too few for a test or an interval, which need 8" in found.sentence()


def test_identical_values_are_called_so_and_never_win():
    values = np.linspace(0, 1, 48)
    row = birds(values).compare(birds(values))["AP/species"]
    assert (row.identical, row.difference, row.p_value, row.winner) == (True, 0, 1, None)
    other = values.copy()
    other[[0, 47]] = other[[47, 0]]  # equal means of other values
    row = birds(values).compare(birds(other))["AP/species"]
    assert row.difference == pytest.approx(0)
    assert not row.identical


def test_the_winner_is_the_report_that_is_significantly_ahead():
    row = MetricComparison("AP", 0.5, 0.4, 0.1, 0.02, 0.18, 0.01, 100, 0.049, False)
    assert row.winner == 0
    assert row._replace(difference=-0.1).winner == 1
    assert row._replace(p_holm=0.05).winner is row._replace(p_holm=NAN).winner is None


def test_hundreds_of_metrics_can_be_significant_together():
    random = np.random.default_rng(0)
    levels = [f"level {number}" for number in range(300)]
    mine, other = (report_of({f"AP/{level}": random.uniform(size=60) + shift for level in levels}) for shift in (1.0, 0.0))
    found = mine.compare(other)
    assert found.samples == 30_000
    assert max(row.p_holm for row in found) <= 0.01 == pytest.approx(300 * found.smallest_p, rel=1e-3)


# Which metrics, and which reports


def test_only_the_metrics_asked_for_are_compared():
    report = report_of({"AP": [0.5, 0.6], "R@1": [1, 1]})
    assert [row.metric for row in report.compare(report, ["hit_rate@1"])] == ["R@1"]
    assert [row.metric for row in report.compare(report, "AP")] == ["AP"]
    assert report.compare(report, []).rows == ()
    with pytest.raises(KeyError, match="no NDCG in this report"):
        report.compare(report, ["NDCG"])
    with pytest.raises(KeyError, match="R@1 was not compared; choose from AP"):
        report.compare(report, "AP")["R@1"]
    with pytest.raises(KeyError, match="the nearest known name is NDCG"):
        report.compare(report, "AP")["ndgc"]


def test_a_metric_without_values_per_query_is_not_compared():
    report = Report({"AP": 0.5, "R@1": 0.5}, n_queries=1, n_items=2, per_query={"AP": [0.5]}, query_ids=["a"])
    assert [row.metric for row in report.compare(report)] == ["AP"]
    with pytest.raises(ValueError, match="R@1 has no values per query in one of the reports"):
        report.compare(report, ["R@1"])


@PLENTY
@given(st.data(), st.integers(1, 40))
def test_a_comparison_is_antisymmetric_and_finds_no_difference_from_itself(data, queries):
    columns = arrays(np.float64, queries, elements=st.sampled_from([0.0, 0.1, 0.25, 0.7, 1.0, NAN]))
    classes = {"class": data.draw(arrays(np.int64, queries, elements=st.integers(-1, 20)))}
    mine, other = (report_of({"AP": data.draw(columns), "R@1": data.draw(columns)}, classes=classes) for _ in range(2))
    for one, two in zip(mine.compare(other, samples=200), other.compare(mine, samples=200), strict=True):
        mirrored = (
            two.other,
            two.mine,
            -two.difference,
            -two.high,
            -two.low,
            two.p_value,
            two.queries,
            two.p_holm,
            two.identical,
        )
        assert one.metric == two.metric
        assert one[1:] == pytest.approx(mirrored, rel=0, abs=1e-12, nan_ok=True)
    own = mine.compare(mine, samples=200)
    for row in own:
        values = mine.per_query[row.metric]
        enough = len(set(own.units.of_query[~np.isnan(values)].tolist())) >= 8
        assert (row.p_value == 1) if enough else math.isnan(row.p_value)
        assert row.identical == (row.queries > 0)
        assert row.winner is None


@pytest.mark.parametrize(
    ("mine", "other", "complaint"),
    [
        ({"queries": 2}, {"queries": 3}, "have 2 and 3 queries, but a paired test needs the same ones"),
        ({"query_ids": ["a", "b"]}, {"query_ids": ["b", "a"]}, "same queries in another order: query 0 is a and b"),
        ({"query_ids": ["a", "b"]}, {"query_ids": ["a", "long"]}, "other queries: query 1 is b and long"),
        ({"query_ids": [1, 2]}, {"query_ids": ["1", "2"]}, "other queries: query 0 is 1 and 1"),
        ({"query_ids": None}, {"query_ids": None}, "neither ids nor classes show that the reports have the same queries"),
        ({"query_ids": ["a", "b"]}, {"query_ids": None}, "neither ids nor classes show .*; evaluate both with ids"),
        ({"classes": {"a": [0, 0]}}, {"classes": {"b": [0, 0]}}, "neither ids nor classes show"),
        ({"classes": {"a": [0, 0]}}, {"classes": {"a": [0, 1]}}, "their classes differ at a. A paired test needs the same"),
        ({"classes": {"a": [0, 1], "b": [3, 3]}}, {"classes": {"a": [1, 0], "b": [1, 2]}}, "their classes differ at b"),
        ({"classes": {"a": [0, -1]}}, {"classes": {"a": [0, 0]}}, "their classes differ at a"),
        (
            {"classes": {"a": [0, 1]}, "query_ids": [1, 2]},
            {"classes": {"a": [0, 0]}, "query_ids": [1, 2]},
            "the reports have other labels: their classes differ at a",
        ),
        (
            {"classes": {"a": [0, 1]}, "settings": {LABELS: {"a": "1", "gallery a": "2"}}},
            {"classes": {"a": [0, 1]}, "settings": {LABELS: {"a": "1", "gallery a": "3"}}},
            "have other queries, or the same in another order: their classes differ at gallery a",
        ),
        (
            {"query_ids": [1, 2], "levels": ["a", "b"]},
            {"query_ids": [1, 2], "levels": ["b"]},
            "are on a and b and on b, so that AP",
        ),
        ({"key": "R@1"}, {"key": "AP"}, "share no metric: one has R@1, the other AP"),
    ],
)
def test_reports_on_other_queries_are_not_compared(mine, other, complaint):
    one, two = (
        report_of({given.pop("key", "AP"): [0.5] * given.pop("queries", 2)}, **given) for given in (dict(mine), dict(other))
    )
    with pytest.raises(ValueError, match=complaint):
        one.compare(two)


def test_classes_that_match_stand_for_ids_whatever_their_numbers():
    values, classes = {"AP": [0.5] * 9}, np.arange(9) // 3
    report = report_of(values, classes={"a": classes, "coarse": classes // 2})
    assert report.compare(report_of(values, classes={"a": 7 - classes}))["AP"].identical
    with_ids = report_of(values, classes={"a": classes}, query_ids=range(9), settings={LABELS: {"a": "by id"}})
    report = report_of(values, classes={"a": classes}, settings={LABELS: {"a": "by position"}})
    assert report.compare(with_ids)["AP"].identical, "ids that only one report has are no obstacle"


def test_of_reports_with_equal_ids_one_may_have_no_classes():
    values = {"AP": np.linspace(0, 1, 50)}
    with_classes = report_of(values, classes={"a": np.arange(50) // 2}, query_ids=range(50))
    assert with_classes.compare(report_of(values)).units.level == "a"
    assert report_of(values).compare(with_classes).units.level == "a", "whoever is first"


def test_metrics_with_a_level_are_compared_whatever_other_levels_there_are():
    ids = {"query_ids": range(9)}
    one, two = (report_of({"AP/b": [0.5] * 9, "AP": [0.5] * 9}, levels=levels, **ids) for levels in (["a", "b"], ["b"]))
    assert one.compare(two, "AP/b")["AP/b"].identical


# What was tested


def test_the_sentence_has_the_trainings_of_both_sides_and_the_levels_of_the_metrics():
    trained = {TRAINING: {"classes_seen": 0}}
    values = np.full(96, 0.5), np.full(96, 0.5), np.full(96, 0.5)
    mine, other = (birds(*values, count=48, settings=trained) for _ in range(2))
    sentence = mine.compare(other).sentence()
    assert sentence == (
        "Measured on 48 species that neither model has seen, in 24 genera (unit: genus). Metrics with coarser levels are about "
        "these 2 orders, not about new ones. Two trained models, one training each: another training of the same recipe may "
        "differ; compare several seeds of each."
    )
    assert "2 orders" not in mine.compare(other, "AP/species").sentence()
    assert "2 orders" in mine.compare(other, "H-AP").sentence(), "which is over the whole tree"
    frozen = birds(*values, count=48)
    assert "One trained model: another training" in mine.compare(frozen).sentence()
    assert "trained" not in frozen.compare(frozen).sentence()


def test_what_was_tested_goes_into_a_json_file():
    mine, other = birds(np.linspace(0.1, 1, 96), [NAN] * 96, count=48), birds(np.linspace(0, 0.9, 96), [0.5] * 96, count=48)
    found = mine.compare(other)
    content = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert content["measured"] == found.sentence()
    assert content["test"] == "paired randomization test, genus by genus, two-sided, Holm-corrected for 2 rows"
    assert content["unit"] == {"level": "genus", "count": 24, "effective": 24.0}
    assert (content["samples"], content["smallest_p"]) == (10_000, 1 / 10_001)
    ap, order = content["rows"]
    assert (ap["metric"], ap["queries"], ap["p_value"], ap["p_holm"]) == ("AP/species", 96, 1 / 10_001, 1 / 10_001)
    assert ap["difference"] == pytest.approx(0.1)
    assert (order["metric"], order["queries"], order["p_value"], order["difference"]) == ("AP/order", 0, None, None)


def test_the_smallest_p_of_few_units_is_that_of_all_their_signs():
    found = birds(np.full(18, 0.9), count=9).compare(birds(np.full(18, 0.1), count=9))
    assert found.smallest_p == found["AP/species"].p_value == 2**-8
