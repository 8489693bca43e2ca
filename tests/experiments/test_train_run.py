"""Trainings in processes of their own: their numbers, their errors, several devices, and whatever starts or kills them."""

import json
import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from suprank.executors.local import Task, run
from suprank.experiments.experiment import why_failed
from suprank.experiments.train_run import PRELOAD, train_run
from suprank.experiments.tuning import is_settings_fault
from suprank.system.custom_code import trusting
from suprank.training import NonFiniteLossError, all_recipes, read_recipe
from suprank.training.code_copies import find_sources
from suprank.training.config import TrainConfig
from suprank.training.loop import train
from suprank.training.recipe import to_toml
from tests.executors import work
from tests.training.runs import pictures, recipe
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
LOSSES = """
import torch
def nan():
    return lambda embeddings, labels: embeddings.sum() * float("nan")
def memory():
    return lambda embeddings, labels: torch.empty(10**15).sum()
def broken():
    raise ValueError("there are no labels today")
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, manifest):
    """The working folder, with a recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("r.toml").write_text(to_toml(recipe(manifest)))
    return tmp_path


def trained(configs, **settings):
    tasks = [
        Task(name, (config.model_dump_json(), str(Path(name).absolute())), Path("logs") / f"{name}.log")
        for name, config in configs.items()
    ]
    return {task.name: answer for task, answer in run(train_run, tasks, preload=PRELOAD, **settings)}


def test_a_config_is_the_same_after_it_was_json():
    for name in all_recipes():
        config = read_recipe(name)
        assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_a_run_in_a_process_has_the_weights_of_one_here_also_the_second_one_of_a_kept_process(manifest):
    settings = recipe(manifest, run={"seed": 3}, model={"freeze_batchnorm": True})
    train(settings, "here")
    metrics = json.loads(Path("here/result.json").read_text())["metrics"]
    for name, answer in trained({"one": settings, "two": settings}, keep=True).items():
        assert answer.value == metrics
        assert Path(name, "model/model.safetensors").read_bytes() == Path("here/model/model.safetensors").read_bytes()
        assert Path(name, "recipe.toml").read_text() == Path("here/recipe.toml").read_text()
        assert "epoch 3: R@1" in Path(f"logs/{name}.log").read_text()


def test_the_server_has_imported_what_training_needs():
    forkserver._forkserver._stop()  # that of earlier tests, which need less
    ((_, answer),) = run(work.act, [Task("facts", ("facts",))], preload=PRELOAD)
    assert {*PRELOAD, "lightning", "timm"} <= set(answer.value["modules"])
    assert "tensorboard" not in answer.value["modules"]
    assert answer.value["cuda"] == [False, False]


def test_a_nan_loss_memory_and_broken_data_are_three_different_errors(manifest, forget_consents):
    Path("mine.py").write_text(LOSSES)
    configs = {name: recipe(manifest, loss={"name": f"mine.py:{name}"}) for name in ("nan", "memory", "broken")}
    configs["missing"] = recipe("missing.parquet")
    with trusting(True):
        for config in configs.values():
            find_sources(config, Path())
    answers = trained(configs, jobs=2)
    errors = {name: answers[name].error for name in configs}
    assert isinstance(errors["nan"], NonFiniteLossError)
    assert why_failed(errors["nan"]).startswith("step 0, epoch 0: the loss is nan; nothing was learned from this batch")
    assert isinstance(errors["memory"], MemoryError)
    assert why_failed(errors["memory"]).startswith("MemoryError: ")
    assert "there are no labels today" in why_failed(errors["broken"])
    assert "missing.parquet" in why_failed(errors["missing"])
    assert {name: is_settings_fault(error) for name, error in errors.items()} == {
        **{"nan": True, "memory": True, "broken": False, "missing": False},
    }
    assert all("Traceback" in Path(f"logs/{name}.log").read_text() for name in configs)


@pytest.mark.slow
def test_a_run_on_two_devices_has_a_process_for_each_and_fails_with_the_error_of_the_first(manifest):
    settings = recipe(manifest, engine={"devices": 2}, model={"freeze_batchnorm": True})
    answers = trained({"two": settings, "missing": recipe("missing.parquet", engine={"devices": 2})})
    assert answers["two"].error is None
    train(recipe(manifest, model={"freeze_batchnorm": True}), "one")
    for metric, value in json.loads(Path("one/result.json").read_text())["metrics"]["test"].items():
        assert answers["two"].value["test"][metric] == pytest.approx(value, abs=0.02)
    assert "missing.parquet" in str(answers["missing"].error)


# Whatever starts an experiment

COMPARE = """
from pathlib import Path
from suprank.experiments import compare
with open("scripts", "a") as file:
    file.write("x")
result = compare("r.toml", "c", {"run.epochs": 1, "loss.weight": [0, WEIGHT]})
Path("table").open("a").write(result.table.markdown())
"""
SCRIPT = f"""
cell = {COMPARE!r}
exec(cell.replace("WEIGHT", "0.5"))

# A notebook: Jupyter runs cells in an event loop, and its __main__ has no file.
import asyncio, code, sys
del __file__, __spec__
async def notebook():
    code.InteractiveInterpreter(sys.modules["__main__"].__dict__).runcode(cell.replace("WEIGHT", "0.7"))
asyncio.run(notebook())
"""


def environment():
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    variables.pop("PYTHONSAFEPATH", None)
    return variables


@pytest.mark.slow
def test_compare_at_the_top_level_of_a_script_without_a_guard_and_in_a_notebook(folder):
    Path("script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert Path("scripts").read_text() == "xx", "no process imports __main__"
    assert len(Path("table").read_text().splitlines()) == 4 + 5
    assert "2 of 2 done" in done.stderr
    assert "1 of 1 done" in done.stderr


@pytest.mark.slow
def test_an_experiment_that_is_killed_leaves_no_process_and_continues(folder, manifest):
    Path("r.toml").write_text(to_toml(recipe(manifest, run={"epochs": 2000}, checkpoint={"minutes": 60})))
    command = [sys.executable, "-c", 'from suprank.experiments import compare; compare("r.toml", "c", seeds=2, jobs=2)']
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    runs = [folder / "c" / f"r,seed={seed}" for seed in (0, 1)]
    wait_until(lambda: all('"loss"' in file.read_text() for file in (run / "metrics.jsonl" for run in runs) if file.exists()))
    wait_until(lambda: all((run / "metrics.jsonl").exists() for run in runs))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: all(list((run / "checkpoints").glob("*.pt")) for run in runs))  # they have saved

    def is_free(run):
        try:
            with (run / ".lock").open() as file:
                pid = int(file.read().split()[1])
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(lambda: all(map(is_free, runs)))
