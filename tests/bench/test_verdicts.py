"""benchmarks/verdicts.py: the tests that suprank reports keep their size on drawn data; those by query do not."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
CASES = 150
MOST = 10.0  # percent; a size of 5 % is above in 1 of 100 runs of other seeds


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield importlib.import_module("verdicts")


def test_equal_models_are_rarely_called_different_though_images_of_a_class_rise_and_fall_together(script):
    rows = {row["metric"]: row for row in script.ranked_row("10 × 40 images, class effects", 40)}
    assert rows["AP"]["better, by query"] > 40
    assert rows["AP"]["better"] <= 15
    assert rows["AP"]["covers the mean, by query"] < 60
    assert rows["AP"]["covers the mean"] > 80


def test_fewer_than_eight_classes_have_no_verdict(script):
    assert {row["no verdict"] for row in script.ranked_row("5 × 2 images, class effects", 3)} == {100.0}


@pytest.mark.parametrize("name", ["no effects", "effects of species", "effects of species and genera"])
def test_effects_at_or_below_the_unit_are_covered(script, name):
    (row,) = script.tree_row(name, 400)
    assert row["unit"] == "genus: 56 classes, effectively 26"
    assert 1.5 <= row["better"] <= 9
    assert 90 <= row["covers 0"] <= 99
    assert row["power"] > 65


def test_effects_above_the_unit_are_not(script):
    (row,) = script.tree_row("effects of species and families", 200)
    assert row["better"] > 20


@pytest.mark.parametrize("effects", ["nothing but noise", "classes and trainings", "mostly trainings"])
def test_methods_with_three_trainings_are_rarely_called_different(script, effects):
    (row,) = script.seed_row("40", effects, 3, CASES)
    assert row["size, ours"] <= MOST
    assert row["power, ours"] >= row["power, bootstrap"] - 5


def test_a_single_training_gives_no_verdict_about_methods(script):
    (row,) = script.seed_row("40", "mostly trainings", 1, 50)
    assert row["size, ours"] == 0
    assert row["size, over classes"] > 50


def test_the_tree_is_that_of_cubs_test_species(script):
    classes = script.cub_classes(images=1)
    assert [len(np.unique(own)) for own in classes.values()] == [100, 56, 20, 6]
    sizes = np.bincount(classes["genus"])
    assert sizes.sum() ** 2 / (sizes**2).sum() == pytest.approx(25.9, abs=0.2)


def test_the_published_rates_are_within_the_bounds(script):
    """At most 7 % with effects at or below the unit, and 2 % or more for continuous values; several trainings: at most 7 %."""
    rows = json.loads(script.RESULTS.read_bytes())["rows"]
    ranked = [row for row in rows if row["kind"] == "ranked" and row["metric"] != "AP/group" and row["no verdict"] == 0]
    tree = [row for row in rows if row["kind"] == "tree" and "families" not in row["data"]]
    several = [row for row in rows if row["kind"] == "seeds" and row["seeds"] > 1]
    assert len(ranked) == 16
    assert len(tree) == 3
    assert len(several) == 72
    assert all(row["cases"] >= 2000 for row in (*ranked, *tree, *several))
    assert all(row["better"] <= 7 and row["covers 0"] >= 92 for row in (*ranked, *tree))
    assert all(row["better"] >= 2 and row["covers 0"] <= 98 for row in (*ranked, *tree) if row.get("metric") != "R@1")
    assert all(92 <= row["covers the mean"] <= 98 for row in ranked)
    assert all(row["size, ours"] <= 7 for row in several)


def test_the_page_has_the_published_rates(script):
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.rewrite(page, script.tables(json.loads(script.RESULTS.read_bytes()))) == page
