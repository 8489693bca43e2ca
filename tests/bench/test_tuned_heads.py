"""benchmarks/tuned_heads.py: every loss is tuned on folds of the training classes, and tested once with every seed."""

import importlib
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """The script with a tiny budget, on 12 classes of six images to train on and 6 to test with, in a tree of three levels."""
    monkeypatch.syspath_prepend(SCRIPTS)
    module = importlib.import_module("tuned_heads")
    for name, value in {"BATCH": 8, "STEPS": 3, "DIM": 4, "TRIALS": 3, "SEEDS": 2}.items():
        monkeypatch.setattr(module, name, value)
    rng = np.random.default_rng(0)

    def images(classes):
        fine = np.repeat(np.arange(classes), 6)
        centers = rng.standard_normal((classes, 8)).astype(np.float32)
        embeddings = centers[fine] + 0.7 * rng.standard_normal((len(fine), 8)).astype(np.float32)
        return embeddings, np.stack([fine, fine // 2, fine // 4], 1)

    collection = module.Collection(*images(12), module.RetrievalData.from_arrays(*images(6)), ("fine", "middle", "coarse"))
    monkeypatch.setattr(module, "read_collection", lambda folder: collection)
    return module


def test_the_folds_are_disjoint_in_their_classes_and_cover_all(script):
    collection = script.read_collection(None)
    tested = [set(collection.labels[validation, 0]) for _, validation in map(collection.fold, range(script.FOLDS))]
    assert tested[0] | tested[1] == set(range(12))
    assert not tested[0] & tested[1]
    for number in range(script.FOLDS):
        rows, validation = collection.fold(number)
        assert set(collection.labels[rows, 0]).isdisjoint(collection.labels[validation, 0])


def test_the_space_is_that_of_the_recipe_around_the_rate_of_adapt(script):
    space = script.search_space("roadmap", classes=2)
    assert str(space["optimizer.lr"]) == "2e-05:0.002:log"
    assert str(space["batch.images_per_class"]) == "4,8", "two images of a class would need four classes"
    assert {"loss.tau", "loss.weight", "proxies.lr"} < set(space)
    assert "proxies.lr" not in script.search_space("sup-ap", classes=6)
    assert script.own_values("roadmap", space) == {
        **{"optimizer.lr": 2e-4, "proxies.lr": 1e-2, "batch.images_per_class": 4},
        **{"loss.tau": 0.01, "loss.temperature": 0.05, "loss.weight": 0.1},
    }


@pytest.mark.parametrize(("table", "methods"), [("fine", ("roadmap", "smooth-ap")), ("tree", ("happier", "smooth-ap"))])
def test_a_method_is_searched_and_tested_and_the_tables_can_be_written(script, tmp_path, table, methods):
    tables = importlib.import_module("tuned_tables")
    found = [script.run_method(script.Task(Path("unused"), table, method)) for method in methods]
    for one in found:
        assert [trial["number"] for trial in one["trials"]] == [0, 1, 2]
        best = max(one["trials"], key=lambda trial: trial["value"])
        assert [trial["best"] for trial in one["trials"]] == [trial is best for trial in one["trials"]]
        assert [(run["tuned"], run["seed"]) for run in one["runs"]] == [("no", 0), ("no", 1), ("yes", 0), ("yes", 1)]
    collection = script.read_collection(None)
    script.write_table(
        f"cub-{table}", table, found, tables.class_arrays(collection.test.queries.labels, collection.levels), tmp_path
    )
    kept = tables.TunedSet(f"cub-{table}", tmp_path)
    metric = kept.budget["metric"]
    assert len(kept.runs) == 4
    for key in kept.runs:
        mean = kept.values(key)[..., kept.metrics.index(metric)].mean()
        assert 100 * mean == pytest.approx(kept.statistic(key, metric).mean, abs=1e-3)
    assert str(kept.units) == "fine: 6 classes, effectively 6"
    assert methods[0] in tables.tables(tmp_path)[f"chosen cub-{table}"]


def test_a_trial_whose_embeddings_are_nan_is_the_worst(script, monkeypatch):
    train_head = script.train_head

    def diverging(collection, method, params, *further):
        if params["optimizer.lr"] != 2e-4:
            raise ValueError("the embeddings are NaN")
        return train_head(collection, method, params, *further)

    monkeypatch.setattr(script, "train_head", diverging)
    found = script.run_method(script.Task(Path("unused"), "fine", "sup-ap"))
    assert [bool(trial["failure"]) for trial in found["trials"]] == [False, True, True]
    assert [trial["value"] for trial in found["trials"][1:]] == [0.0, 0.0]
    assert found["trials"][0]["best"]
    assert found["runs"][2] == {**found["runs"][0], "tuned": "yes"}, "the recipe's own runs are both rows"
