"""The verdict: who is better, by how much, on what and how surely; and never more than the numbers say."""

import csv
import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank import open_data
from suprank.evaluation import Report, evaluate
from suprank.evaluation.verdict import compare_headlines, comparison_verdict, headlines, p_value, percent, run_verdict
from suprank.explorer.report.table_sections import compare_metrics
from suprank.explorer.report.verdict_section import chance_of_first, paragraphs, verdict_section
from tests.cli.collection import done
from tests.explorer.report.reading import of
from tests.explorer.runs import collection, hand_made_lists, of_arrays, vectors


def report(levels=("class",), **columns):
    """A report of these values per query, each of a class of its own; `R_1` stands for R@1, `AP_group` for AP/group."""
    names = {"R_1": "R@1", "H_AP": "H-AP"}
    per_query = {names.get(key, key.replace("R_1_", "R@1/").replace("AP_", "AP/")): value for key, value in columns.items()}
    per_query = {key: np.asarray(value, np.float64) for key, value in per_query.items()}
    values = {key: float(np.nanmean(one)) if not np.isnan(one).all() else math.nan for key, one in per_query.items()}
    queries = len(next(iter(per_query.values())))
    classes = {levels[0]: np.arange(queries)}
    return Report(values, n_queries=queries, n_items=queries, levels=levels, per_query=per_query, classes=classes)


def compared(one, other, names=("new", "old")):
    reports = [one, other]
    return comparison_verdict(names, reports, compare_metrics(reports))


def texts(verdict):
    return {point.topic: point.text for point in verdict.points}


# Two runs


def test_a_winner_is_named_with_both_numbers_the_difference_and_p():
    half = np.full(12, 0.5)
    found = compared(report(R_1=np.ones(12), AP=half), report(R_1=np.zeros(12), AP=half))
    # Ahead on all 12 queries: p = 2 / 2¹² for two signs, times 2 for the two rows of the table.
    assert found.lead == "new is better than old (R@1 +100.0; p < 0.001); no measurable difference in AP."
    assert texts(found)["class"] == (
        "new has the right class as its first item far more often (R@1 100.0 against 0.0: +100.0, p < 0.001). "
        "AP is the same for every query (50.0)."
    )
    mirrored = compared(report(R_1=np.zeros(12), AP=half), report(R_1=np.ones(12), AP=half))
    assert mirrored.lead == "old is better than new (R@1 +100.0; p < 0.001); no measurable difference in AP."


@pytest.mark.parametrize(
    ("points", "word"), [(0.1, "slightly"), (1.94, "slightly"), (1.96, "clearly"), (9.9, "clearly"), (9.96, "far"), (60, "far")]
)
def test_the_word_for_a_difference_follows_from_its_printed_size(points, word):
    before = np.linspace(0.1, 0.3, 20)
    found = compared(report(AP=before + points / 100), report(AP=before))
    assert f"new ranks images of the right class {word} higher" in texts(found)["class"]


def test_metrics_that_disagree_have_no_winner():
    low, high = np.full(20, 0.2), np.full(20, 0.3)
    found = compared(report(R_1=high, AP=low), report(R_1=low, AP=high))
    assert (
        found.lead
        == "Neither is better throughout: new is ahead on R@1 and old is ahead on AP (R@1 +10.0, AP +10.0; p < 0.001)."
    )
    levels = ("class", "group")
    found = compared(report(levels, AP_class=high, AP_group=low), report(levels, AP_class=low, AP_group=high))
    assert found.lead == (
        "Neither is better throughout: new is better than old at class (AP +10.0; p < 0.001); "
        "old is better than new at group (AP +10.0; p < 0.001)."
    )
    found = compared(report(levels, AP_class=high, H_AP=low), report(levels, AP_class=low, H_AP=high))
    assert found.lead.startswith("Neither is better throughout: old is better than new over all levels together (H-AP +10.0;")


def test_a_level_without_a_measurable_difference_is_named_beside_the_others():
    levels, low, high = ("class", "group"), np.full(40, 0.2), np.full(40, 0.3)
    noise = np.tile([0.1, -0.1], 20)
    found = compared(report(levels, AP_class=low + noise, AP_group=high), report(levels, AP_class=low, AP_group=low))
    assert found.lead == "new is better than old at group (AP +10.0; p < 0.001); no measurable difference at class."
    found = compared(report(levels, AP_class=low + noise, H_AP=high), report(levels, AP_class=low, H_AP=low))
    assert found.lead == (
        "new is better than old over all levels together (H-AP +10.0; p < 0.001); no measurable difference at class."
    )


def test_levels_that_are_won_on_other_metrics_are_told_apart():
    levels, low, high = ("class", "genus", "group"), np.full(40, 0.2), np.full(40, 0.3)
    mine = report(levels, R_1_class=low, AP_class=low, R_1_genus=low, AP_genus=high, R_1_group=high, AP_group=high + 0.1)
    other = report(levels, **{f"{metric}_{level}": low for level in levels for metric in ("R_1", "AP")})
    assert compared(mine, other).lead == (
        "new is better than old at genus (AP +10.0; p < 0.001) and at group (R@1 +10.0, AP +20.0; p < 0.001); "
        "no measurable difference at class."
    )
    mine = report(levels, R_1_class=low, AP_class=low, R_1_genus=low, AP_genus=high, R_1_group=low, AP_group=high + 0.1)
    assert compared(mine, other).lead == (
        "new is better than old at genus and group (AP +10.0 to +20.0; p < 0.001); "
        "no measurable difference in R@1 at any level, and none at class."
    )


def test_not_significant_is_called_equal_only_if_the_interval_is_narrow():
    middle, sign = np.full(400, 0.5), np.tile([1, -1], 200)
    wide = compared(report(AP=middle + 0.2 * sign), report(AP=middle))
    assert wide.lead == "The test finds no measurable difference between new and old."
    low, high = re.search(r"difference between (\S+) and (\S+), p = 1\.00\)", texts(wide)["class"]).groups()
    # The standard error of the mean is 0.2 / √400 = 1 point, so that the interval ends about 1.96 points from 0.
    assert float(high) == pytest.approx(1.96, abs=0.2)
    assert float(low.replace("−", "-")) == pytest.approx(-1.96, abs=0.2)
    narrow = compared(report(AP=middle + 0.02 * sign), report(AP=middle))
    assert narrow.lead == "new and old are equally good, to within 1 point."
    assert (
        "The whole ranking is equal to within 1 point (AP 50.0 and 50.0, difference between −0.2 and" in texts(narrow)["class"]
    )


def test_with_few_classes_the_test_could_not_tell_whatever_the_difference():
    for classes, few in ((1, True), (7, True), (8, False)):
        found = compared(report(AP=np.full(classes, 0.9)), report(AP=np.full(classes, 0.1)))
        assert (found.lead == "There are too few classes to tell whether new and old differ.") == few
        assert ("better" in found.lead) != few
    levels = [f"level {number}" for number in range(7)]
    rows = [report(levels, **{f"AP_{level}": np.full(8, value) for level in levels}) for value in (0.9, 0.1)]
    assert "There are too few classes" in compared(*rows).lead, "7 rows · 2 / 2⁸ > 0.05"
    few = [report(levels[:6], **{f"AP_{level}": np.full(8, value) for level in levels[:6]}) for value in (0.9, 0.1)]
    assert compared(*few).lead.startswith("new is better than old at every level")
    one = compared(report(AP=[0.9]), report(AP=[0.1]))
    assert texts(one)["class"] == "Too few classes to tell whether the whole ranking differs (AP 90.0 and 10.0)."


def test_equal_runs_and_runs_without_any_number_are_said_to_be_so():
    same = report(R_1=[1, 0, 1], AP=[0.5, 0.2, np.nan])
    assert compared(same, same).lead == "new and old are equally good on every single query."
    nothing = report(R_1=[np.nan] * 3, AP=[np.nan] * 3)
    assert compared(nothing, nothing).lead == "Nothing could be measured: no query shares its class with an item."
    assert "R@1 could not be measured: no query shares its class with an item." in texts(compared(nothing, nothing))["class"]
    assert compared(report(AP=[]), report(AP=[])).lead == "There is no query, so nothing could be measured."
    levels = ("class", "group")
    one, other = (report(levels, AP_class=[np.nan] * 20, AP_group=np.full(20, value)) for value in (0.6, 0.5))
    assert compared(one, other).lead == "new is better than old at group (AP +10.0; p < 0.001)."


def test_of_many_levels_the_finest_and_the_coarsest_are_described():
    levels = ("species", "genus", "family", "order")
    columns = {f"AP_{level}": np.linspace(0, 1, 9) for level in levels}
    found = compared(report(levels, **columns), report(levels, **columns))
    assert list(texts(found)) == ["species", "order", "other levels"]


values = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, math.nan]), min_size=8, max_size=8)
shifts = st.sampled_from([-0.2, 0.0, 0.001, 0.2])


@settings(max_examples=30)
@given(st.lists(st.tuples(values, st.one_of(values, shifts)), min_size=5, max_size=5), st.integers(1, 4))
def test_swapping_the_runs_gives_the_same_statement(columns, repeats):
    keys = ("R_1_class", "AP_class", "R_1_group", "AP_group", "H_AP")
    mine = {key: np.tile(values, repeats) for key, (values, _) in zip(keys, columns, strict=True)}
    theirs = {
        key: mine[key] + change if isinstance(change, float) else np.tile(change, repeats)
        for key, (_, change) in zip(keys, columns, strict=True)
    }
    one, other = (report(("class", "group"), **columns) for columns in (mine, theirs))
    there, back = compared(one, other, ("a", "b")), compared(other, one, ("b", "a"))
    assert there.lead.replace("a and b ", "b and a ").replace("a and b.", "b and a.") == back.lead
    findings = [compare_headlines(pair, compare_metrics(pair)) for pair in ([one, other], [other, one])]
    for first, second in zip(*findings, strict=True):
        assert first.winner == (None if second.winner is None else 1 - second.winner)
        assert (first.too_few, first.row.identical) == (second.too_few, second.row.identical)
        mirrored = -second.row.high, -second.row.low
        assert (first.row.low, first.row.high) == pytest.approx(mirrored, abs=1e-12, nan_ok=True)
    winners = {one.winner for one in findings[0]} - {None}
    assert ("is better than" in there.lead or "is ahead on" in there.lead) == bool(winners)
    assert there.lead.startswith("Neither") == (len(winners) == 2)


def test_verdict_table_and_command_line_have_the_same_digits(runs, elements, tmp_path):
    """The differences and p-values that `suprank evaluate --against` saves."""
    done("evaluate", runs[0], "--against", runs[1], "--comparison", tmp_path / "c.csv", "--quiet")
    with (tmp_path / "c.csv").open(encoding="utf-8", newline="") as file:
        saved = {f"{row['metric']}/{row['level']}".rstrip("/"): row for row in csv.DictReader(file)}
    keys = ["R@1/class", "AP/class", "R@1/group", "AP/group", "H-AP"]
    verdict = of(elements, "section", id="verdict")[0].text.replace("−", "-").replace("\xa0", " ")
    cells = [
        [" ".join(one.text.split()).replace("−", "-") for one in elements if row in one.above and one.tag in ("td", "th")]
        for row in of(elements, "tr")
        if row.within(**{"class": "metrics"})
    ]
    table = {row[0].replace(", all", "").replace(", ", "/"): row[-2:] for row in cells if len(row) == 5}
    for key in keys:
        shown_difference, shown_p = table[key]
        assert shown_difference.split()[0] == percent(float(saved[key]["difference"]), sign=True).replace("−", "-")
        assert shown_p == p_value(float(saved[key]["p_holm"]))
        number = f"{abs(float(shown_difference.split()[0])):+.1f}"
        p_text = f"p {shown_p}" if "<" in shown_p else f"p = {shown_p}"
        assert re.search(
            rf"{re.escape(key.partition('/')[0])} [\d.]+ (against [\d.]+: {re.escape(number)}|and [^)]*), {p_text}\)", verdict
        )


# One run


def test_one_run_is_described_by_how_often_the_first_item_is_right():
    one = report(("class", "group"), R_1_class=[1, 0, 0, 0], R_1_group=[1, 1, 0, 1], AP_class=[0.4] * 4, H_AP=[0.5] * 4)
    found = run_verdict(one, {"class": 0.1, "group": 0.25})
    assert found.lead == "The first item has the right class for 25.0 % and the right group for 75.0 % of the queries."
    assert texts(found) == {
        "R@1": "25.0 for class and 75.0 for group.",
        "by chance": "a random order would have R@1 10.0 for class and 25.0 for group.",
        "AP": "40.0 for class; 100 would mean that all images of the right class come before all others.",
        "H-AP": "50.0, over all levels together.",
    }
    assert run_verdict(report(AP=[0.4, 0.4]), {}).lead.startswith("AP is 40.0; 100 would mean")
    assert run_verdict(report(AP=[np.nan]), {}).lead.startswith("Nothing could be measured")


def test_longer_lists_stand_in_for_a_missing_r_at_1():
    ten = Report({"R@10": 0.5, "R@20": 0.6}, n_queries=2, n_items=2, levels=("class",))
    assert [one.key for one in headlines([ten])] == ["R@10"]
    assert run_verdict(ten, {}).lead == "One of the first 10 items has the right class for 50.0 % of the queries."


def test_the_chance_of_a_right_first_item_is_counted_by_hand(tmp_path):
    manifest = collection(tmp_path, groups=2, classes=2, images=3)
    data = of_arrays("a", vectors(manifest), manifest)
    assert chance_of_first(data) == {"class": pytest.approx(2 / 11), "group": pytest.approx(5 / 11)}
    own, *_ = hand_made_lists(tmp_path / "lists")
    assert chance_of_first(open_data(own)) == {"class": pytest.approx(2 / 8), "group": pytest.approx(4 / 8)}


# The section


def test_the_section_says_what_was_measured_and_which_queries_are_left_out(tmp_path):
    manifest = collection(tmp_path, groups=4, classes=1, images=2)
    lone = manifest.take(np.arange(len(manifest) - 1))  # the last class has one image left
    data = of_arrays("a", vectors(lone), lone)
    section = verdict_section([data], [evaluate(data, per_query=True)])
    assert section.content["basis"] == [
        "Measured on 7 test images, each a query against all others. Queries that share their class with no item are left "
        "out: 1 at class and 1 at group."
    ]
    own, *_ = hand_made_lists(tmp_path / "lists")
    lists = open_data(own)
    assert verdict_section(
        [lists],
        [
            evaluate(
                lists,
            )
        ],
    ).content["basis"] == ["Measured on 4 queries against 8 items."]


def test_the_basis_of_a_comparison_says_what_the_words_mean_and_what_the_test_does_not_cover(runs):
    sources = [open_data(folder) for folder in runs[:2]]
    reports = [evaluate(data, per_query=True) for data in sources]
    basis = " ".join(verdict_section(sources, reports, compare_metrics(reports)).content["basis"])
    assert basis.startswith("Measured on 24 test images, each a query against all others. Slightly: by less than 2 points;")
    comparison = compare_metrics(reports)
    assert comparison.sentence() in basis
    assert comparison.sentence().startswith("Measured on 12 classes (unit: class).")
    assert "Two trained models, one training each: another training of the same recipe may differ" in basis
    unknown = [dataclasses.replace(data, origin=dataclasses.replace(data.origin, training=None)) for data in sources]
    bare = [evaluate(data, per_query=True) for data in unknown]
    assert "seed" not in " ".join(verdict_section(sources, bare, compare_metrics(bare)).content["basis"])


def test_a_summary_is_split_at_blank_lines():
    assert paragraphs("") == paragraphs("\n \n") == ()
    assert paragraphs("\na\r\nb\n\t\nc\n\n\n") == ("a\nb", "c")
