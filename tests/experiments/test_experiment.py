"""The folder of an experiment: what is added to it, what is refused, which part of it is selected, and what is trained."""

import json
import os
from pathlib import Path

import pytest
import torch

from suprank.experiments import Display, Experiment, collect, compare, plan_comparison
from suprank.experiments.experiment import lock_experiment, shared_gpus
from suprank.experiments.results import Outcome, read_outcome
from tests.experiments.runs import config, write_recipe


@pytest.fixture(autouse=True)
def recipes(folder):
    for name, weight in {"a": 0.1, "b": 0.2, "c": 0.3}.items():
        write_recipe(name, weight)


def saved(*recipes, values=(), **settings):
    """What `compare` saves in the folder `out`."""
    plan = plan_comparison(recipes, "out", values, **settings)
    with plan.open():
        return plan.record


def names(experiment):
    return [run.name for run in experiment.runs]


def test_every_recipe_has_a_run_for_each_value_and_seed_and_gets_the_overrides(folder):
    plan = plan_comparison(["b.toml", "a.toml"], "out", {"batch.size": 64, "loss.tau": [0.1, 0.2]}, seeds=2)
    expected = [f"{name},loss.tau={tau},seed={seed}" for name in "ba" for tau in (0.1, 0.2) for seed in (0, 1)]
    assert names(plan.record) == [run.name for run in plan.runs] == expected
    assert [(run.config.batch.size, run.config.loss.weight, run.config.loss.tau) for run in plan.runs[2::4]] == [
        (64, 0.2, 0.2),
        (64, 0.1, 0.2),
    ]
    last = plan.runs[-1]
    train = f"suprank train {folder}/a.toml batch.size=64 loss.tau=0.2 run.seed=1 --out {folder}/out/a,loss.tau=0.2,seed=1"
    assert last.command == f"{train} --resume"
    assert last.log == folder / "out" / "logs" / "a,loss.tau=0.2,seed=1.log"
    assert names(saved("a.toml", values=["run.seed=3,5"])) == ["a,seed=3", "a,seed=5"]


def test_what_is_saved_is_loaded(folder):
    assert Experiment.load(folder) is None
    record = saved("a.toml", values=["loss.weight=0,0.1", "images.crop_scale=[0.2,1]"], seeds=2, may_differ=["batch"])
    assert Experiment.load(folder / "out") == record
    (folder / "experiment.json").write_text('{"methods": []}')
    with pytest.raises(ValueError, match=r"experiment.json is damaged"):
        Experiment.load(folder)


def test_further_recipes_values_and_seeds_are_added():
    saved("a.toml", "b.toml", command="one")
    both = saved("c.toml", "a.toml", seeds=2, command="two")
    assert list(both.methods) == ["a", "b", "c"]
    assert names(both) == ["a,seed=0", "b,seed=0", "c,seed=0", "c,seed=1", "a,seed=1"]
    assert both.commands == ("one", "two")
    assert both.merge(both) == both


def test_a_single_value_is_one_of_the_axis_however_it_is_spelled():
    saved("a.toml", values=["loss.weight=0,0.1"], seeds=2)
    both = saved("a.toml", values=["loss.weight=0.10,0.3"])
    assert [run["loss.weight"] for run in both.runs] == ["0", "0", "0.1", "0.1", "0.3"]
    assert [run["loss.weight"] for run in saved("b.toml", values=["loss.weight=0.3"]).runs][-1] == "0.3"
    for values, said in {("batch.size=32,64",): "batch.size", ("batch.size=32",): "seeds only"}.items():
        with pytest.raises(ValueError, match=f"in this folder is over loss.weight, and this one over {said}"):
            saved("a.toml", values=values)


def test_a_recipe_keeps_its_label_when_another_of_that_name_comes(folder):
    saved("a.toml")
    write_recipe("other/a", 0.4)
    assert saved("a.toml", "other/a.toml").recipes == {"a": f"{folder}/a.toml", "other/a": f"{folder}/other/a.toml"}


def test_other_settings_in_the_same_folder_are_refused():
    saved("a.toml", "b.toml", values=["loss.tau=0.1,0.2"])
    write_recipe("b", 0.9)
    for recipe, value, complaint in [
        ("b.toml", "loss.tau=0.1", "has b with other settings: loss.weight was 0.2 and is 0.9.* another folder"),
        ("a.toml", "batch.size=64", "has a with other settings: batch.size was 256 and is 64"),
        ("c.toml", "run.epochs=3", "run.epochs is 3 in c, 100 in a and b"),
        ("a.toml", 'data.tests={fine="f.parquet"}', "data.tests was {} and is {'fine': 'f.parquet'}"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            saved(recipe, values=["loss.tau=0.1", value] if "tau" not in value else [value])
    saved("c.toml", values=["loss.tau=0.1", "data.workers=3"])


def test_what_is_an_axis_is_no_other_setting(folder):
    Path("margin.toml").write_text('[data]\nmanifest = "glyphs"\n[loss]\nname = "arcface"\n')
    saved("margin.toml", values=["loss.name=arcface,csl"])  # which have other keys, with other defaults
    assert names(saved("margin.toml", values=["loss.name=cosface"]))[-1] == "margin,loss.name=cosface,seed=0"
    record = plan_comparison("a.toml", "tests", ["data.tests.fine=f.parquet,g.parquet"]).record
    assert "data.tests" not in record.methods["a"].settings
    assert "data.manifest" in record.methods["a"].settings


def test_what_cannot_be_run_or_compared_is_refused():
    for recipes, values, complaint in [
        ([], [], "there is no recipe to compare; name some"),
        (["a.toml", "cub/nsn"], [], "cannot be run, so nothing was: .*did you mean cub/nsm"),
        (["a.toml"], ["loss.weight=0,2"], "a,loss.weight=2,seed=0 cannot be run, so nothing was: .*loss.weight"),
        (["a.toml"], ["run.seed=0,-1"], "cannot be run, so nothing was: .*run.seed"),
        (["a.toml"], {"loss.weight": []}, "loss.weight has no values"),
        (["a.toml", "cub/nsm"], [], "data.manifest is 'glyphs' in a, 'cub.parquet' in nsm"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            plan_comparison(recipes, "out", values)
    assert not Path("out").exists()


def test_exceptions_are_kept_for_recipes_that_are_added_later():
    write_recipe("short", run={"epochs": 3})
    write_recipe("other", run={"epochs": 9})
    with pytest.raises(ValueError, match=r"run.epochs is 100 in a, 3 in short"):
        saved("a.toml", "short.toml")
    assert saved("a.toml", "short.toml", may_differ=("run.epochs",)).select(["short"]).may_differ == ("run.epochs",)
    assert saved("b.toml", "other.toml", may_differ=("batch",)).may_differ == ("run.epochs", "batch")
    with pytest.raises(ValueError, match=r"model.dim is 64 in c"):
        saved("c.toml", values=["model.dim=64"])


def test_a_part_is_chosen_by_label_or_by_name_and_in_that_order():
    found = saved("a.toml", "b.toml", "c.toml", seeds=2)
    some = found.select(["c", "a.toml"])
    assert list(some.methods) == ["c", "a"]
    assert names(some) == ["c,seed=0", "c,seed=1", "a,seed=0", "a,seed=1"]
    assert found.select([]) == found
    Path("b.toml").unlink()  # it was run, and its label is enough
    assert list(found.select(["b"]).methods) == ["b"]
    with pytest.raises(ValueError, match=r"cub/nsm is not in the experiment; choose from a, b, c"):
        found.select(["a", "cub/nsm"])
    with pytest.raises(ValueError, match=r"a.toml is given twice"):
        found.select(["a", "a.toml"])


def test_a_folder_has_one_experiment_at_a_time(folder):
    with (
        lock_experiment(folder),
        pytest.raises(BlockingIOError, match=f"process {os.getpid()} .* is running an experiment .*wait for it"),
        lock_experiment(folder),
    ):
        pass
    with lock_experiment(folder):
        pass


def test_a_run_has_an_outcome_when_it_is_finished(folder):
    assert read_outcome(folder) is None
    found = {"epoch": 3, "step": 30, "seconds": 1.5, "metrics": {"test": {"R@1": None}}, "best": None}
    (folder / "result.json").write_text(json.dumps(found))
    assert read_outcome(folder) == Outcome(3, 30, 1.5, {"test": {"R@1": None}})
    (folder / "result.json").write_text("[]")
    with pytest.raises(ValueError, match=r"result.json is not the result of a run"):
        read_outcome(folder)


@pytest.mark.parametrize(
    ("named", "jobs", "engine", "expected"),
    [
        (None, 2, {}, ["0", "1", "2"]),
        ("4,GPU-a", 2, {}, ["4", "GPU-a"]),
        (None, 1, {}, []),
        (None, 2, {"devices": 2}, []),
        (None, 2, {"accelerator": "cpu"}, []),
    ],
)
def test_runs_of_one_gpu_take_turns_at_those_there_are(monkeypatch, named, jobs, engine, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    else:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert shared_gpus([config(), config(engine=engine)], jobs) == expected


def test_a_comparison_in_python_trains_what_is_missing_and_returns_the_tables(folder):
    result = compare(["a.toml", "b.toml"], "out", {"run.epochs": 3}, seeds=2, metrics=["R@1"], name="small", display=Display())
    assert (result.planned, result.failed) == (4, ())
    assert result.notes == ("No row is bold: a,seed=0 has no report of its last epoch.",)
    assert [row.statistics["R@1"].mean for row in result.table.rows] == [pytest.approx(10.5), pytest.approx(20.5)]
    write_recipe("c", 0.3, optimizer={"lr": 0.5})
    more = compare(["c.toml"], "out", ["run.epochs=3"])
    assert more.planned == 1
    assert [dict(row.setting)["recipe"] for row in more.table.rows] == ["a", "b", "c"]
    assert more.notes[0] == "optimizer.lr is 0.5 in c, 1e-05 in a and b."
    assert more.notes[1].startswith("No row is bold: a single training says nothing about another one of the same recipe")
    assert collect("out", ["b"], metrics=["R@1"]).table.rows == result.table.rows[1:]
    assert (folder / "out/small.tex").exists()
