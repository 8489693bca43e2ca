"""The folder of a sweep: what is added to it and what is refused, who may work in it, and what its runs found."""

import json
import os

import pytest

from suprank.experiments.sweep import Grid, Outcome, Sweep, locked, outcome
from tests.experiments.sweep.runs import config, some_tasks


def saved(arguments, folder, seeds=None, **changes):
    sweep = Sweep.of("r.toml", Grid.read(arguments, seeds), config(**changes), "suprank sweep")
    sweep.save(folder)
    return sweep


def test_what_is_saved_is_loaded(folder):
    assert Sweep.load(folder) is None
    assert saved(["loss.weight=0,0.1", "images.crop_scale=[0.2,1]"], folder) == Sweep.load(folder)


def test_another_grid_adds_its_runs_and_a_single_value_is_one_of_the_axis(folder):
    there = saved(["loss.weight=0,0.1"], folder, seeds=2)
    grid = there.aligned(Grid.read(["loss.weight=0.3"], 2))
    assert [run.name for run in grid.combinations()] == ["loss.weight=0.3,seed=0", "loss.weight=0.3,seed=1"]
    both = there.joined(Sweep.of("r.toml", grid, config(), "suprank sweep --more"))
    assert [run["loss.weight"] for run in both.runs] == ["0", "0", "0.1", "0.1", "0.3", "0.3"]
    assert both.commands == ("suprank sweep", "suprank sweep --more")
    assert both.joined(there) == both


def test_a_value_spelt_otherwise_is_the_same_run(folder):
    there = saved(["loss.weight=0,0.1"], folder)
    assert there.aligned(Grid.read(["loss.weight=0.10,0.20"])).axes[0] == ("loss.weight", ("0.1", "0.20"))


def test_another_setting_or_another_axis_in_the_same_folder_is_refused(folder):
    there = saved(["loss.weight=0,0.1"], folder)
    other = Sweep.of("r.toml", Grid.read(["loss.weight=0.3,0.5"]), config(batch={"size": 64}), "")
    with pytest.raises(ValueError, match=r"batch.size was 256 and is 64.*another --out"):
        there.joined(other)
    with pytest.raises(ValueError, match=r"there is over loss.weight, this one over batch.size"):
        there.aligned(Grid.read(["batch.size=32,64"]))
    with pytest.raises(ValueError, match=r"this one over seeds alone"):
        there.aligned(Grid.read(["batch.size=32"]))


def test_other_test_sets_are_other_settings_unless_they_are_the_axis(folder):
    there = saved(["loss.weight=0,0.1"], folder)
    tests = {"manifest": "glyphs", "tests": {"fine": "f.parquet"}}
    other = Sweep.of("r.toml", Grid.read(["loss.weight=0.3,0.5"]), config(data=tests), "")
    with pytest.raises(ValueError, match=r"data.tests was {} and is {'fine': 'f.parquet'}"):
        there.joined(other)
    axis = saved(["data.tests.fine=f.parquet,g.parquet"], folder, data=tests)
    assert "data.tests" not in axis.settings
    assert "data.manifest" in axis.settings


def test_a_damaged_file_is_named(folder):
    (folder / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match=r"sweep.json is damaged"):
        Sweep.load(folder)
    (folder / "result.json").write_text("[]")
    with pytest.raises(ValueError, match=r"result.json is no result"):
        outcome(folder)


def test_a_run_has_an_outcome_when_it_is_finished(folder):
    assert outcome(folder) is None
    found = {"epoch": 3, "step": 30, "seconds": 1.5, "metrics": {"test": {"R@1": None}}, "best": None}
    (folder / "result.json").write_text(json.dumps(found))
    assert outcome(folder) == Outcome(3, 30, 1.5, {"test": {"R@1": None}})


def test_a_folder_has_one_sweep_at_a_time_and_a_run_that_outlives_it_holds_the_lock(folder):
    with (
        locked(folder) as lock,
        pytest.raises(BlockingIOError, match=f"process {os.getpid()}, or a run that it started"),
        locked(folder),
    ):
        pass
    with locked(folder) as lock:
        (folder / "stay").touch()
        (task,) = some_tasks("loss.weight=0")
        orphan = task.start(lock=lock)
    with pytest.raises(BlockingIOError), locked(folder):
        pass
    orphan.kill()
    orphan.wait()
    with locked(folder):
        pass
