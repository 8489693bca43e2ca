"""Which of a table's differences are more than chance over trainings and classes, from the values that runs save."""

from dataclasses import replace

import numpy as np
import pytest

from suprank.evaluation import Report
from suprank.evaluation.statistics import seed_difference
from suprank.evaluation.units import TRAINING
from suprank.experiments import Outcome
from suprank.experiments.grid import RECIPE, SEED, Combination
from suprank.experiments.results import result_table
from suprank.experiments.significance import compare_rows
from suprank.experiments.tables import comparison_latex, comparison_markdown
from suprank.training.run_folder import RunFolder

QUERIES = 80
CLASSES = {"class": np.arange(QUERIES) // 4, "group": np.arange(QUERIES) // 20}


def finished(folder, values, per_query=True):
    """The outcomes of runs, and their folders, from R@1 `[seeds, queries]` by label."""
    outcomes, folders = {}, {}
    for label, seeds in values.items():
        for seed, own in enumerate(seeds):
            run = Combination(((RECIPE, label), (SEED, str(seed))))
            folders[run] = folder / run.name
            means = {"R@1": float(own.mean()), "mAP@R": 0.5, "AP/mean": float(own.mean())}
            columns = {"R@1": own, "mAP@R": np.full(len(own), 0.5)} if per_query else None
            classes = {level: one[: len(own)] for level, one in CLASSES.items()}
            known = {"per_query": columns, "query_ids": np.arange(len(own)), "settings": {TRAINING: {"classes_seen": 0}}}
            report = Report(means, n_queries=len(own), n_items=9, classes=classes, **known)
            report.save(RunFolder(folders[run]).report_file("test", 3))
            outcomes[run] = Outcome(3, 30, 1.5, {"test": means})
    return outcomes, folders


@pytest.fixture
def values():
    """Two methods that differ by noise, and one that is far below: three seeds of each."""
    random = np.random.default_rng(5)
    query = random.uniform(0.3, 0.5, 20)[CLASSES["class"]] + random.normal(0, 0.02, QUERIES)
    return {
        label: [query + level + random.normal(0, 0.01) + random.normal(0, 0.02, QUERIES) for _ in range(3)]
        for label, level in {"nsm": 0.2, "csl": 0.201, "fast-ap": -0.2}.items()
    }


def test_the_best_is_bold_only_if_it_is_better_than_every_other_by_more_than_chance(folder, values):
    outcomes, folders = finished(folder, values)
    table = result_table(outcomes, ["R@1"])
    found = compare_rows(table, outcomes, folders)
    assert found.better() == frozenset()
    best, (near, far) = found.differences[0].best, sorted(found.differences, key=lambda one: one.difference)
    assert {best, near.other} == {"nsm", "csl"}
    assert near.p_holm > 0.2
    assert near.low < 0 < near.high
    assert far.other == "fast-ap"
    assert far.p_holm == pytest.approx(2 * far.p_value)
    assert far.difference == pytest.approx(40, abs=3)
    assert far.effect_size > 5
    assert "**" not in comparison_markdown(replace(table, better=found.better()))
    assert "textbf" not in comparison_latex(replace(table, better=found.better()))
    del values["csl"]
    outcomes, folders = finished(folder, values)
    table = result_table(outcomes, ["R@1"])
    found = compare_rows(table, outcomes, folders)
    assert found.better() == {"R@1"}
    assert "**" not in comparison_markdown(table), "unless a test says so"
    assert "**" in comparison_markdown(replace(table, better=found.better()))
    assert "p < 0.05 after Holm's correction for the 1 comparison of" in found.sentence()
    assert found.csv().splitlines()[1].startswith("R@1,nsm,fast-ap,")
    assert found.markdown().splitlines()[2].startswith(f"| R@1 | nsm | fast-ap | {found.differences[0].difference:.2f} | ")


def test_differences_are_over_trainings_and_over_classes(folder, values):
    outcomes, folders = finished(folder, {"nsm": values["nsm"], "fast-ap": values["fast-ap"]})
    found = compare_rows(result_table(outcomes, ["R@1"]), outcomes, folders)
    expected = seed_difference(np.stack(values["nsm"]), np.stack(values["fast-ap"]), CLASSES["class"])
    (one,) = found.differences
    assert (one.difference, one.low, one.high) == pytest.approx([100 * number for number in expected[:3]])
    assert (one.effect_size, one.p_value) == pytest.approx(expected[3:])
    assert found.sentence() == (
        "Bold: better than every other row by more than chance (t-test over trainings and classes, p < 0.05 after Holm's "
        "correction for the 1 comparison of the table). Measured on 20 classes that no model has seen (unit: class)."
    )


def test_a_difference_that_a_few_classes_make_is_not_more_than_chance(folder):
    # Better by 40 points on the images of two of 20 classes: 8 of 80 queries alike, but two classes of new ones say little.
    better = np.where(CLASSES["class"] < 2, 0.4, 0.0)
    noise = np.random.default_rng(3).normal(0, 0.01, (6, QUERIES))
    seeds = list(0.4 + noise)
    outcomes, folders = finished(folder, {"nsm": [one + better for one in seeds[:3]], "csl": seeds[3:]})
    found = compare_rows(result_table(outcomes, ["R@1"]), outcomes, folders)
    assert found.better() == frozenset()
    assert found.differences[0].p_value > 0.05
    by_query = seed_difference(np.stack(seeds[:3]) + better, np.stack(seeds[3:]), np.arange(QUERIES))
    assert by_query.p_value < 0.01, "which queries as units would call significant"


def test_with_a_single_training_nothing_is_bold_and_it_is_said(folder, values):
    values["csl"] = values["csl"][:1]
    outcomes, folders = finished(folder, values)
    found = compare_rows(result_table(outcomes, ["R@1"]), outcomes, folders)
    assert (found.differences, found.better()) == ((), frozenset())
    assert found.sentence() == (
        "No row is bold: a single training says nothing about another one of the same recipe; train each with several seeds."
    )


def test_two_trainings_are_enough_for_a_large_difference(folder, values):
    outcomes, folders = finished(folder, {label: values[label][:2] for label in ("nsm", "fast-ap")})
    assert compare_rows(result_table(outcomes, ["R@1"]), outcomes, folders).better() == {"R@1"}


def test_rows_of_the_same_runs_are_not_compared(folder, values):
    outcomes, folders = finished(folder, {"nsm": values["nsm"], "same": values["nsm"], "fast-ap": values["fast-ap"]})
    folders = {run: folders[Combination(((RECIPE, run[RECIPE].replace("same", "nsm")), (SEED, run[SEED])))] for run in folders}
    found = compare_rows(result_table(outcomes, ["R@1"]), outcomes, folders)
    assert [(one.best, one.other) for one in found.differences] == [("nsm", "fast-ap")]


def test_without_values_of_each_query_or_of_other_queries_nothing_is_compared_and_it_is_said(folder, values):
    outcomes, folders = finished(folder, values, per_query=False)
    table = result_table(outcomes)
    found = compare_rows(table, outcomes, folders)
    assert (found.differences, found.better()) == ((), frozenset())
    assert found.missing == "nsm,seed=0 has no values of each query"
    outcomes, folders = finished(folder, {**values, "nsm": [one[:9] for one in values["nsm"]]})
    assert compare_rows(table, outcomes, folders).missing == "the runs were evaluated on different queries"
    folders = dict.fromkeys(folders, folder / "elsewhere")
    assert compare_rows(table, outcomes, folders).missing == "elsewhere has no report of its last epoch"
    one = {run: outcome for run, outcome in outcomes.items() if run[RECIPE] == "nsm"}
    assert compare_rows(result_table(one), one, folders).differences == ()


def test_a_metric_that_is_the_same_everywhere_has_no_winner(folder, values):
    outcomes, folders = finished(folder, values)
    table = result_table(outcomes, ["R@1", "mAP@R"])
    found = compare_rows(table, outcomes, folders)
    assert {one.p_value for one in found.differences if one.column == "mAP@R"} == {1.0}
    assert "mAP@R" not in found.better()
    assert len(found.differences) == 4, "Holm's correction is over both columns"


def test_a_metric_that_single_queries_do_not_have_is_not_bold(folder, values):
    del values["csl"]
    outcomes, folders = finished(folder, values)
    table = result_table(outcomes, ["R@1", "AP/mean"])
    found = compare_rows(table, outcomes, folders)
    assert [one.column for one in found.differences] == ["R@1"]
    assert found.better() == {"R@1"}
    assert "AP/mean: no bold, because single queries have no value." in found.sentence()
