"""The folder of a sweep: what is added to it and what is refused, who may work in it, and what its runs found."""

import json
import os

import pytest

from suprank.experiments import Grid, Outcome, Sweep, collect_sweep, sweep
from suprank.experiments.old_runner import lock_experiment
from suprank.experiments.results import read_outcome
from tests.experiments.runs import config, write_recipe


def saved(arguments, folder, seeds=None, **changes):
    sweep = Sweep.from_grid("r.toml", Grid.from_values(arguments, seeds), config(**changes), "suprank sweep")
    sweep.save(folder)
    return sweep


def test_what_is_saved_is_loaded(folder):
    assert Sweep.load(folder) is None
    assert saved(["loss.weight=0,0.1", "images.crop_scale=[0.2,1]"], folder) == Sweep.load(folder)


def test_another_grid_adds_its_runs_and_a_single_value_is_one_of_the_axis(folder):
    there = saved(["loss.weight=0,0.1"], folder, seeds=2)
    grid = there.align(Grid.from_values(["loss.weight=0.3"], 2))
    assert [run.name for run in grid.combinations()] == ["loss.weight=0.3,seed=0", "loss.weight=0.3,seed=1"]
    both = there.merge(Sweep.from_grid("r.toml", grid, config(), "suprank sweep --more"))
    assert [run["loss.weight"] for run in both.runs] == ["0", "0", "0.1", "0.1", "0.3", "0.3"]
    assert both.commands == ("suprank sweep", "suprank sweep --more")
    assert both.merge(there) == both


def test_a_value_spelt_otherwise_is_the_same_run(folder):
    there = saved(["loss.weight=0,0.1"], folder)
    assert there.align(Grid.from_values(["loss.weight=0.10,0.20"])).axes[0] == ("loss.weight", ("0.1", "0.20"))


def test_another_setting_or_another_axis_in_the_same_folder_is_refused(folder):
    there = saved(["loss.weight=0,0.1"], folder)
    other = Sweep.from_grid("r.toml", Grid.from_values(["loss.weight=0.3,0.5"]), config(batch={"size": 64}), "")
    with pytest.raises(ValueError, match=r"batch.size was 256 and is 64.*another --out"):
        there.merge(other)
    with pytest.raises(ValueError, match=r"in this folder is over loss.weight, and this one over batch.size"):
        there.align(Grid.from_values(["batch.size=32,64"]))
    with pytest.raises(ValueError, match=r"this one over seeds only"):
        there.align(Grid.from_values(["batch.size=32"]))


def test_other_test_sets_are_other_settings_unless_they_are_the_axis(folder):
    there = saved(["loss.weight=0,0.1"], folder)
    tests = {"manifest": "glyphs", "tests": {"fine": "f.parquet"}}
    other = Sweep.from_grid("r.toml", Grid.from_values(["loss.weight=0.3,0.5"]), config(data=tests), "")
    with pytest.raises(ValueError, match=r"data.tests was {} and is {'fine': 'f.parquet'}"):
        there.merge(other)
    axis = saved(["data.tests.fine=f.parquet,g.parquet"], folder, data=tests)
    assert "data.tests" not in axis.settings
    assert "data.manifest" in axis.settings


def test_losses_with_other_defaults_can_be_added_to_a_sweep_over_losses(folder):
    there = saved(["loss.name=arcface,csl"], folder, loss={"name": "arcface"})
    grid = there.align(Grid.from_values(["loss.name=cosface"]))
    both = there.merge(Sweep.from_grid("r.toml", grid, config(loss={"name": "cosface"}), ""))
    assert [run["loss.name"] for run in both.runs] == ["arcface", "csl", "cosface"]
    scaled = saved(["loss.name=arcface,csl"], folder, loss={"name": "arcface", "scale": 8.0})
    with pytest.raises(ValueError, match=r"loss.scale was 8.0 and is 16.0"):
        scaled.merge(Sweep.from_grid("r.toml", grid, config(loss={"name": "cosface", "scale": 16.0}), ""))


def test_a_damaged_file_is_named(folder):
    (folder / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match=r"sweep.json is damaged"):
        Sweep.load(folder)
    (folder / "result.json").write_text("[]")
    with pytest.raises(ValueError, match=r"result.json is not the result of a run"):
        read_outcome(folder)


def test_a_run_has_an_outcome_when_it_is_finished(folder):
    assert read_outcome(folder) is None
    found = {"epoch": 3, "step": 30, "seconds": 1.5, "metrics": {"test": {"R@1": None}}, "best": None}
    (folder / "result.json").write_text(json.dumps(found))
    assert read_outcome(folder) == Outcome(3, 30, 1.5, {"test": {"R@1": None}})


def test_a_folder_has_one_experiment_at_a_time(folder):
    with (
        lock_experiment(folder),
        pytest.raises(BlockingIOError, match=f"process {os.getpid()} .* is running a sweep or comparison .*wait for it"),
        lock_experiment(folder),
    ):
        pass
    with lock_experiment(folder):
        pass


def test_a_sweep_in_python_trains_what_is_missing_and_returns_the_tables(folder):
    write_recipe("r")
    first = sweep("r.toml", {"loss.weight": [0.1, 0.6]}, "s", seeds=1)
    assert (first.planned, first.failed) == (2, ("loss.weight=0.6,seed=0",))
    (folder / "repaired").touch()
    again = sweep("r.toml", ["loss.weight=0.1,0.6"], "s", metrics=["r@1"], relative_to="loss.weight=0.1", jobs=2)
    assert (again.planned, again.failed) == (2, ())
    assert [row.statistics["R@1"].mean for row in again.table.rows] == [pytest.approx(10), pytest.approx(60)]
    assert [row.statistics["R@1"].mean for row in again.relative.rows] == [pytest.approx(500)]
    assert (folder / "s/loss.weight=0.1,seed=0/begun").read_text() == "x", "it was finished"
    assert collect_sweep("s", metrics=["R@1"]).table == again.table
    with pytest.raises(ValueError, match="loss.weight has no values"):
        sweep("r.toml", {"loss.weight": []}, "t")
