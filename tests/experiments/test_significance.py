"""Which of a table's differences are more than chance, from the values of each query that runs save."""

from dataclasses import replace

import numpy as np
import pytest

from suprank.evaluation import Report
from suprank.experiments import RECIPE, SEED, Combination, Outcome, comparison_latex, comparison_markdown, comparison_table
from suprank.experiments.significance import compare_rows
from suprank.training.run_folder import RunFolder

QUERIES = 80


def finished(folder, values, per_query=True, queries=QUERIES):
    """The outcomes of runs, and their folders, from R@1 `[seeds, queries]` by label."""
    outcomes, folders = {}, {}
    for label, seeds in values.items():
        for seed, own in enumerate(seeds):
            run = Combination(((RECIPE, label), (SEED, str(seed))))
            folders[run] = folder / run.name
            means = {"R@1": float(own.mean()), "mAP@R": 0.5, "AP/mean": float(own.mean())}
            columns = {"R@1": own, "mAP@R": np.full(len(own), 0.5)} if per_query else None
            report = Report(means, queries=len(own), items=9, per_query=columns, query_ids=np.arange(len(own)))
            report.save(RunFolder(folders[run]).report_file("test", 3))
            outcomes[run] = Outcome(3, 30, 1.5, {"test": means})
    return outcomes, folders


@pytest.fixture
def values():
    """Two methods that differ by noise, and one that is far below."""
    random = np.random.default_rng(0)
    query = random.uniform(0.3, 0.5, QUERIES)
    return {
        label: [query + level + random.normal(0, 0.01) + random.normal(0, 0.02, QUERIES) for _ in range(3)]
        for label, level in {"nsm": 0.2, "csl": 0.201, "fast-ap": -0.2}.items()
    }


def test_the_best_is_bold_only_if_it_is_better_than_every_other_by_more_than_chance(folder, values):
    outcomes, folders = finished(folder, values)
    table = comparison_table(outcomes, ["R@1"])
    found = compare_rows(table, outcomes, folders, samples=2000)
    assert found.noise() == {"R@1"}
    best, (near, far) = found.differences[0].best, sorted(found.differences, key=lambda one: one.difference)
    assert {best, near.other} == {"nsm", "csl"}
    assert near.p_holm > 0.2
    assert near.low < 0 < near.high
    assert far.other == "fast-ap"
    assert far.p_holm == pytest.approx(2 * far.p_value)
    assert far.difference == pytest.approx(40, abs=3)
    assert far.effect_size > 5
    assert "**" not in comparison_markdown(replace(table, noise=found.noise()))
    assert "textbf" not in comparison_latex(replace(table, noise=found.noise()))
    del values["csl"]
    outcomes, folders = finished(folder, values)
    table = comparison_table(outcomes, ["R@1"])
    found = compare_rows(table, outcomes, folders, samples=2000)
    assert found.noise() == frozenset()
    assert "**" in comparison_markdown(replace(table, noise=found.noise()))
    assert "p < 0.05 after Holm's correction for the 1 comparison of" in found.sentence(table)
    assert found.csv().splitlines()[1].startswith("R@1,nsm,fast-ap,")
    assert found.markdown().splitlines()[2].startswith("| R@1 | nsm | fast-ap | 4")


def test_rows_of_the_same_runs_are_not_compared(folder, values):
    outcomes, folders = finished(folder, {"nsm": values["nsm"], "same": values["nsm"], "fast-ap": values["fast-ap"]})
    folders = {run: folders[Combination(((RECIPE, run[RECIPE].replace("same", "nsm")), (SEED, run[SEED])))] for run in folders}
    found = compare_rows(comparison_table(outcomes, ["R@1"]), outcomes, folders, samples=500)
    assert [(one.best, one.other) for one in found.differences] == [("nsm", "fast-ap")]


def test_without_values_of_each_query_or_of_other_queries_nothing_is_compared_and_it_is_said(folder, values):
    outcomes, folders = finished(folder, values, per_query=False)
    table = comparison_table(outcomes)
    found = compare_rows(table, outcomes, folders)
    assert (found.differences, found.noise()) == ((), frozenset())
    assert found.missing == "nsm,seed=0 has no values of each query, because an earlier version of suprank trained it"
    outcomes, folders = finished(folder, {**values, "nsm": [one[:9] for one in values["nsm"]]})
    assert compare_rows(table, outcomes, folders).missing == "the runs were evaluated on different queries"
    folders = dict.fromkeys(folders, folder / "elsewhere")
    assert compare_rows(table, outcomes, folders).missing == "elsewhere has no report of its last epoch"
    one = {run: outcome for run, outcome in outcomes.items() if run[RECIPE] == "nsm"}
    assert compare_rows(comparison_table(one), one, folders).differences == ()


def test_a_metric_that_is_the_same_everywhere_has_no_winner(folder, values):
    outcomes, folders = finished(folder, values)
    table = comparison_table(outcomes, ["R@1", "mAP@R"])
    found = compare_rows(table, outcomes, folders, samples=200)
    assert {one.p_value for one in found.differences if one.column == "mAP@R"} == {1.0}
    assert "mAP@R" in found.noise()
    assert len(found.differences) == 4, "Holm's correction is over both columns"


def test_a_metric_that_single_queries_do_not_have_is_not_bold(folder, values):
    del values["csl"]
    outcomes, folders = finished(folder, values)
    table = comparison_table(outcomes, ["R@1", "AP/mean"])
    found = compare_rows(table, outcomes, folders, samples=200)
    assert [one.column for one in found.differences] == ["R@1"]
    assert found.noise() == {"AP/mean"}
    assert "AP/mean: no bold, because single queries have no value." in found.sentence(table)
