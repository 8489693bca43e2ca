"""benchmarks/tuned_tables.py: tables of tuned comparisons mark what is more than chance, and agree with the runs."""

import csv
import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from suprank.evaluation import Report

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tuned_tables.py"
LEVELS = {"smooth-ap": (0.30, 0.31), "sup-ap": (0.30, 0.31), "roadmap-pairs": (0.32, 0.32), "roadmap": (0.35, 0.40)}
SEEDS, CLASSES = 3, 40


@pytest.fixture(scope="module")
def script():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.fixture
def results(tmp_path):
    """A comparison of four methods: ROADMAP is far ahead when tuned, and the recipe of roadmap-pairs was the best as it is."""
    rng = np.random.default_rng(0)
    runs, arrays = [], {}
    classes = rng.uniform(-0.1, 0.1, CLASSES)
    for method, levels in LEVELS.items():
        for tuned, level in zip(("no", "yes"), levels, strict=True):
            values = level + classes + rng.normal(0, 0.002, (SEEDS, CLASSES)) + rng.normal(0, 0.002, (SEEDS, 1))
            if method == "roadmap-pairs" and tuned == "yes":
                values = arrays["roadmap-pairs untuned"][..., 1]
            arrays[f"{method} {'tuned' if tuned == 'yes' else 'untuned'}"] = np.stack([values + 0.2, values], -1)
            for seed in range(SEEDS):
                folder = f"{method},tuned={'no' if method == 'roadmap-pairs' else tuned},seed={seed}"
                mean = values[seed].mean()
                runs.append([folder, method, tuned, seed, "yes", 4, 80, 1.5, mean + 0.2, mean])
    runs.append(["roadmap,tuned=yes,seed=3", "roadmap", "yes", 3, "no", "", "", "", "", ""])
    head = ["folder", "recipe", "tuned", "run.seed", "finished", "epoch", "step", "seconds", "R@1", "mAP@R"]
    _write(tmp_path / "emoji48-fine.csv", [head, *runs])
    head = ["recipe", "trial", "optimizer.lr", "loss.tau", "fold 0", "fold 1", "mAP@R", "best", "seconds", "failure"]
    trials = [
        [method, trial, lr, 0.01, 0.2, 0.2, value, "yes" if best else "no", 2.0, failure]
        for method in LEVELS
        for trial, lr, value, best, failure in (
            (0, 0.004, 0.2, method == "roadmap-pairs", ""),
            (1, 0.00123456, 0.25, method != "roadmap-pairs", ""),
            (2, 0.04, 0.0, False, "roadmap,trial=2,fold=0 hit a NaN"),
        )
    ]
    _write(tmp_path / "emoji48-fine-search.csv", [head, *trials])
    arrays |= {"queries": np.full(CLASSES, 5), "level emoji": np.arange(CLASSES), "level group": np.arange(CLASSES) // 20}
    np.savez(tmp_path / "emoji48-fine-classes.npz", **arrays)
    budget = {"metric": "mAP@R", "epochs": 4, "steps": 80, "image size": 48, "trials": 3, "folds": 2}
    budget |= {"failed trials": 4, "seconds of training steps": 1800}
    (tmp_path / "emoji48-fine-budget.json").write_text(json.dumps(budget))
    return tmp_path


def _write(path, lines):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)


def rows_of(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_ablation_has_untuned_and_tuned_and_bold_where_it_is_more_than_chance(script, results):
    head, _, *rows = rows_of(script.tables(results)["ablation"])
    assert head == ["", "Method", "rank", "DG", "emoji mAP@R", "emoji mAP@R, tuned", "emoji R@1, tuned"]
    assert [row[:4] for row in rows] == [
        ["AP", "Smooth-AP", "sigmoid", "✗"],
        ["", "Sup-AP", "SupRank", "✗"],
        ["", "ROADMAP", "SupRank", "L_DG"],
        ["", "ROADMAP", "SupRank", "L*_DG"],
    ]
    assert rows[3][5].startswith("**4")
    assert not any("*" in cell or "<u>" in cell for row in rows[:3] for cell in row[4:])
    assert not rows[3][4].startswith("**"), "untuned numbers are not marked"


def test_a_best_within_chance_is_underlined(script, results):
    with np.load(results / "emoji48-fine-classes.npz") as arrays:
        changed = dict(arrays)
    changed["smooth-ap tuned"] = changed["roadmap tuned"][::-1] - 1e-5
    np.savez(results / "emoji48-fine-classes.npz", **changed)
    *_, row = rows_of(script.tables(results)["ablation"])
    assert row[5].startswith("<u>")


def test_differences_are_those_of_the_means_and_missing_methods_are_left_empty(script, results):
    one = script.TunedSet("emoji48-fine", results)
    found = one.difference(script.RowKey("roadmap", True), script.RowKey("sup-ap", True), "mAP@R")
    means = [one.statistic(script.RowKey(method, True), "mAP@R").mean for method in ("roadmap", "sup-ap")]
    assert found.difference == pytest.approx(means[0] - means[1], abs=1e-3)
    assert found.low < found.difference < found.high
    assert one.difference(script.RowKey("nsm", True), script.RowKey("sup-ap", True), "mAP@R") is None
    rows = {row[0]: row[1] for row in rows_of(script.tables(results)["fine differences"])}
    assert rows["ROADMAP with L*_DG − Sup-AP"].startswith("**+8.7 [")
    assert rows["Smooth-AP − BlackBox-AP"] == "–"


def test_values_of_classes_average_to_those_of_queries(script):
    rng = np.random.default_rng(1)
    labels = np.array([0, 0, 0, 4, 4, 7])
    per_query = {"R@1": rng.random(6), "mAP@R": rng.random(6)}
    report = Report(
        {name: float(values.mean()) for name, values in per_query.items()},
        n_queries=6,
        n_items=6,
        levels=("emoji",),
        without_positives={},
        settings={},
        per_query=per_query,
    )
    found = script.class_values(report, ("R@1", "mAP@R"), labels)
    assert found.shape == (3, 2)
    assert found.mean(0) == pytest.approx([values.mean() for values in per_query.values()], rel=1e-6)


def test_values_of_queries_are_the_means_of_their_classes_and_the_unit_is_chosen_among_all_levels(script, results):
    one = script.TunedSet("emoji48-fine", results)
    assert str(one.units) == "emoji: 40 classes, effectively 40"
    values = one.values(script.RowKey("roadmap", True))
    assert values.shape == (SEEDS, 5 * CLASSES, 2)
    assert (values[:, :5] == values[:, :1]).all()
    labels = np.array([[3, 0], [3, 0], [5, 1]])
    found = script.class_arrays(labels, ("emoji", "group"))
    assert {name: own.tolist() for name, own in found.items()} == {
        "queries": [2, 1],
        "level emoji": [3, 5],
        "level group": [0, 1],
    }


def test_the_figure_is_drawn(script, results, tmp_path):
    script.draw([[script.TunedSet("emoji48-fine", results)]], tmp_path / "tuned.png")
    assert (tmp_path / "tuned.png").stat().st_size > 10_000


def test_the_published_runs_are_complete():
    """Every method has 12 trials, and three seeds untuned and tuned, so that the budget is equal."""
    folder = SCRIPT.parent / "results" / "tuned"
    names = sorted(path.name.removesuffix("-search.csv") for path in folder.glob("*-search.csv"))
    assert names == [f"{name}-{table}" for name in ("cub", "emoji48", "omniglot40") for table in ("fine", "tree")]
    for name in names:
        trials, runs = (
            list(csv.DictReader((folder / f"{name}{end}.csv").read_text(encoding="utf-8").splitlines()))
            for end in ("-search", "")
        )
        for method in {line["recipe"] for line in trials}:
            assert [line["trial"] for line in trials if line["recipe"] == method] == [str(number) for number in range(12)]
            for tuned in ("no", "yes"):
                own = [line for line in runs if (line["recipe"], line["tuned"], line["finished"]) == (method, tuned, "yes")]
                assert [line["run.seed"] for line in own] == ["0", "1", "2"]


def test_what_the_pages_call_significant_is_bold_in_the_published_tables(script):
    written = script.tables()
    found = {
        row[0]: [cell.startswith("**") for cell in row[1:]]
        for name in ("fine differences", "tree differences")
        for row in rows_of(written[name])[2:]
    }
    expected = {  # Omniglot, emoji, CUB
        "Sup-AP − Smooth-AP": [False, False, True],
        "Sup-R@k − Smooth-R@k": [False, False, False],
        "ROADMAP with L_DG − Sup-AP": [False, False, False],
        "ROADMAP with L*_DG − Sup-AP": [False, False, False],
        "ROADMAP with L*_DG − Smooth-AP": [False, False, False],
        "Multi-Similarity − ROADMAP with L*_DG": [True, True, False],
        "Triplet, distance-weighted − ROADMAP with L*_DG": [True, False, False],
        "HAPPIER − Smooth-AP": [False, True, False],
        "ROD-NDCG − Smooth-AP": [False, True, False],
    }
    assert {name: found[name] for name in expected} == expected
