"""Which runs are in a grid, and what their folders are called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suprank.experiments.sweep import Combination, Grid, checked


def test_values_with_commas_are_axes_and_their_product_is_the_runs():
    grid = Grid.read(["loss.weight=0,0.1", "batch.size=64", "loss.name=roadmap,sup-ap"], seeds=2)
    assert grid.fixed == (("batch.size", "64"),)
    assert [run.name for run in grid.combinations()] == [
        "loss.weight=0,loss.name=roadmap,seed=0",
        "loss.weight=0,loss.name=roadmap,seed=1",
        "loss.weight=0,loss.name=sup-ap,seed=0",
        "loss.weight=0,loss.name=sup-ap,seed=1",
        "loss.weight=0.1,loss.name=roadmap,seed=0",
        "loss.weight=0.1,loss.name=roadmap,seed=1",
        "loss.weight=0.1,loss.name=sup-ap,seed=0",
        "loss.weight=0.1,loss.name=sup-ap,seed=1",
    ]
    assert grid.overrides(grid.combinations()[1]) == ["batch.size=64", "loss.weight=0", "loss.name=roadmap", "run.seed=1"]


@given(st.lists(st.text("ab/ .=,é'\"[]", min_size=1, max_size=200), min_size=1, max_size=8, unique=True))
def test_names_of_folders_are_distinct_and_safe_whatever_the_values(listed):
    names = [Combination((("data.root", value), ("run.seed", "0"))).name for value in listed]
    assert len(set(names)) == len(listed)
    assert all(len(name) <= 120 and "/" not in name and name.isascii() and " " not in name for name in names)


@pytest.mark.parametrize(
    ("arguments", "seeds", "complaint"),
    [
        (["loss.weight"], None, "must be key=value"),
        (["=3"], None, "must be key=value"),
        (["loss.weight=0,"], None, "has an empty value"),
        (["loss.weight=0.1,0.10"], None, "has 0.1 twice"),
        (["loss.weight=0", "loss.weight=1"], None, "given twice; .* loss.weight=0,1"),
        (["run.seed=0,1"], 3, "run.seed=0,1 and --seeds 3 both"),
        ([], 0, "at least 1"),
    ],
)
def test_a_bad_grid_is_refused(arguments, seeds, complaint):
    with pytest.raises(ValueError, match=complaint):
        Grid.read(arguments, seeds)


def test_a_bad_combination_is_named_before_anything_runs(folder):
    (folder / "r.toml").write_text('[data]\nmanifest = "glyphs"\n[loss]\nname = "roadmap"\n')
    assert [one.loss.weight for one in checked("r.toml", Grid.read(["loss.weight=0,0.5"]))] == [0, 0.5]
    with pytest.raises(ValueError, match=r"^loss.weight=1.5,seed=0 cannot be run, so nothing was: .*loss.weight"):
        checked("r.toml", Grid.read(["loss.weight=0,1.5"]))
