"""What the tables say."""

import csv
from dataclasses import replace

import pytest

from suprank.experiments import Outcome, Statistic
from suprank.experiments.grid import RECIPE, Grid
from suprank.experiments.results import relative_table, result_table, runs_csv
from tests.experiments.runs import comparison_outcomes, outcomes_of


def test_the_table_has_means_and_sample_deviations_in_percent_and_the_best_in_bold_where_a_test_says_so():
    # Of 70, 71 and 75: mean 72, deviation √((4 + 1 + 9)/2) = 2.6458.
    shares = {("0", "0"): 0.7, ("0", "1"): 0.71, ("0", "2"): 0.75, ("0.1", "0"): 0.8, ("0.1", "1"): 0.8, ("0.1", "2"): 0.8}
    found = result_table(outcomes_of(lambda run: shares[run["loss.weight"], run["run.seed"]], "loss.weight=0,0.1", seeds=3))
    assert found.rows[0].statistics["R@1"] == Statistic(pytest.approx(72), pytest.approx(7**0.5), 3)
    assert found.markdown() == (
        "| loss.weight | R@1, % | H-AP, % |\n"
        "| --- | ---: | ---: |\n"
        "| 0 | 72.00 ± 2.65 | 36.00 ± 1.32 |\n"
        "| 0.1 | 80.00 ± 0.00 | 40.00 ± 0.00 |\n"
    )
    tested = replace(found, better=frozenset({"R@1"})).markdown()
    assert tested.splitlines()[3] == "| 0.1 | **80.00 ± 0.00** | 40.00 ± 0.00 |"


def test_unfinished_runs_are_counted_and_one_seed_has_no_deviation():
    shares = {("0", "0"): 0.5, ("0", "1"): None, ("1", "0"): None, ("1", "1"): None}
    found = result_table(
        outcomes_of(lambda run: shares[run["loss.weight"], run["run.seed"]], "loss.weight=0,1", seeds=2), ["R@1", "MRR"]
    )
    assert found.markdown().splitlines()[2:] == ["| 0 | 1 of 2 | 50.00 | – |", "| 1 | 0 of 2 | – | – |"]


def test_other_numbers_of_seeds_are_counted_too():
    found = result_table(
        {**outcomes_of(lambda run: 0.5, "loss.weight=0,1"), **outcomes_of(lambda run: 0.5, "loss.weight=1,2", seeds=2)}
    )
    assert [line.split(" | ")[1] for line in found.markdown().splitlines()[2:]] == ["1 of 1", "2 of 2", "2 of 2"]


def test_the_time_of_a_run_is_the_mean_over_its_seeds():
    outcomes = outcomes_of(lambda run: 0.5, "loss.weight=0,1", seeds=2)
    outcomes = {run: one._replace(seconds=10.0 + int(run["run.seed"])) for run, one in outcomes.items()}
    assert [row.seconds for row in result_table(outcomes).rows] == [10.5, 10.5]
    assert [line[-1] for line in result_table(outcomes).cells(str, seconds=True)] == ["s", "10.5", "10.5"]


def test_rows_are_in_the_order_of_numbers_and_of_names_as_given():
    found = result_table(outcomes_of(lambda run: 0.5, "loss.rho=100,1e1,1000", "loss.name=sup-ap,roadmap"))
    rows = [tuple(value for _, value in row.setting) for row in found.rows]
    assert rows == [(rho, name) for rho in ("1e1", "100", "1000") for name in ("sup-ap", "roadmap")]


def test_equal_means_are_both_the_best():
    found = replace(result_table(outcomes_of(lambda run: 0.5, "loss.weight=0,1")), better=frozenset({"R@1"}))
    assert found.markdown().count("**50.00**") == 2


def test_several_test_sets_have_columns_of_their_own():
    (run,) = Grid.from_values([]).combinations()
    metrics = {"fine": {"R@1": 0.1, "H-AP": 0.3}, "coarse": {"R@1": 0.2}}
    found = result_table({run: Outcome(1, 1, 1.0, metrics)})
    assert found.columns == ("fine: R@1", "fine: H-AP", "coarse: R@1")
    assert found.markdown().splitlines()[2] == "| the recipe | 10.00 | 30.00 | 20.00 |"


def test_a_metric_that_nobody_measured_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no run measured NDCG; choose from R@1, H-AP, MRR"):
        result_table(outcomes_of(lambda run: 0.5, "loss.weight=0,1"), ["NDCG"])


def test_the_relative_table_compares_runs_of_the_same_seed():
    # 0.55/0.5 and 0.72/0.6 are 10 and 20 % more: mean 15, deviation √50 = 7.07. Means alone would give 15.45.
    shares = {("0", "0"): 0.5, ("0", "1"): 0.6, ("0.1", "0"): 0.55, ("0.1", "1"): 0.72}
    outcomes = outcomes_of(
        lambda run: shares[run["loss.weight"], run["run.seed"]], "batch.size=32,64", "loss.weight=0,0.1", seeds=2
    )
    found = relative_table(outcomes, "loss.weight=0.0", ["R@1"])
    assert found.markdown() == (
        "| batch.size | loss.weight | R@1, increase, % |\n"
        "| --- | --- | ---: |\n"
        "| 32 | 0.1 | 15.00 ± 7.07 |\n"
        "| 64 | 0.1 | 15.00 ± 7.07 |\n"
    )
    for wrong in ("loss.weight=0.2", "loss.rho=1", "run.seed=0"):
        with pytest.raises(ValueError, match=f"relative_to={wrong} is no value of an axis"):
            relative_table(outcomes, wrong)


def test_the_csv_has_every_run_and_every_metric():
    shares = {"0": 0.5, "1": None}
    text = runs_csv(outcomes_of(lambda run: shares[run["loss.weight"]], "loss.weight=0,1"))
    first, second = csv.DictReader(text.splitlines())
    assert first == {
        **{"folder": "loss.weight=0,seed=0", "loss.weight": "0", "run.seed": "0", "finished": "yes"},
        **{"epoch": "1", "step": "1", "seconds": "1.0", "R@1": "0.5", "H-AP": "0.25", "MRR": ""},
    }
    assert (second["folder"], second["finished"], second["R@1"]) == ("loss.weight=1,seed=0", "no", "")


def test_seeds_that_were_evaluated_on_other_labels_are_not_averaged():
    outcomes = outcomes_of(lambda run: 0.5, "loss.weight=0,1", seeds=2)
    same = {run: one._replace(labels={"test": {"class": "1"}}) for run, one in outcomes.items()}
    assert result_table(same).rows[0].statistics["R@1"].seeds == 2
    other = {run: one._replace(labels={"test": {"class": run["run.seed"]}}) for run, one in outcomes.items()}
    with pytest.raises(
        ValueError, match="seed=0 and loss.weight=0,seed=1 have different images or labels of 'test' .see class"
    ):
        result_table(other)
    last = list(outcomes)[-1]
    assert result_table({**same, last: outcomes[last]}).rows, "a run of an earlier version says nothing about its labels"


def test_rows_may_have_their_own_test_sets_if_these_are_an_axis():
    outcomes = outcomes_of(lambda run: 0.5, "data.manifest=a,b", seeds=2)
    other = {run: one._replace(labels={"test": {"class": run["data.manifest"]}}) for run, one in outcomes.items()}
    assert len(result_table(other).rows) == 2
    compared = comparison_outcomes({"nsm": [0.5, 0.5], "csl": [0.6, 0.6]})
    compared = {run: one._replace(labels={"test": {"class": run[RECIPE]}}) for run, one in compared.items()}
    with pytest.raises(ValueError, match="nsm,seed=0 and csl,seed=0 have different images or labels"):
        result_table(compared)
