"""Run folders: one process and one recipe each, nothing overwritten, everything written down."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from suprank import __version__
from suprank.training import run_folder
from suprank.training.config import TrainConfig
from suprank.training.recipe import read_recipe
from suprank.training.run_folder import RunFolder, RunFolderError, git_state
from tests.training.runs import start_process
from tests.waiting import wait_until


def recipe(**tables):
    return TrainConfig.model_validate({"data": {"manifest": "m.parquet"}, "loss": {"name": "roadmap"}, **tables})


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(config=None, path="run"):
    RunFolder.open(path, config or recipe(), resume=False).close()
    Path(path, "metrics.jsonl").write_text("{}\n")


def sessions():
    return json.loads(Path("run/environment.json").read_text())["sessions"]


def test_a_new_folder_holds_the_recipe_and_what_it_was_run_with(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["suprank", "train", "cub/roadmap"])
    config = recipe(data={"manifest": "m.parquet", "tests": {"a/b": "c.csv"}}, batch={"size": 8})
    with RunFolder.open("deep/run", config, resume=False) as run:
        assert run.path == Path("deep/run")
        assert run.reports.is_dir()
        assert run.result is None
        assert read_recipe(run.path / "recipe.toml") == config
        (session,) = json.loads((run.path / "environment.json").read_text())["sessions"]
    assert session["command"] == ["suprank", "train", "cub/roadmap"]
    assert session["versions"]["suprank"] == __version__
    assert session["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert session["versions"]["numpy"] == np.__version__
    assert session["python"] == sys.version.split()[0]
    assert session["host"]
    assert session["time"].endswith("+00:00")
    assert len(session["gpus"]) == torch.cuda.device_count()
    assert session["cuda"] == torch.version.cuda
    assert session["git"] is None


def test_a_package_that_is_not_there_has_no_version(monkeypatch):
    monkeypatch.setattr(run_folder, "_PACKAGES", ("torch", "not-there"))
    assert run_folder.environment()["versions"]["not-there"] is None


def test_a_folder_in_which_training_never_began_may_be_begun_again_with_another_recipe():
    for seed in (0, 1):
        RunFolder.open("run", recipe(run={"epochs": 3, "seed": seed}), resume=False).close()
    assert read_recipe("run/recipe.toml").run.seed == 1


def test_a_run_is_not_begun_over_another():
    begun()
    Path("run/metrics.jsonl").write_text("precious")
    with pytest.raises(RunFolderError, match="run holds a run; resume continues it, or name another folder"):
        begun()
    assert Path("run/metrics.jsonl").read_text() == "precious"


def test_a_folder_of_other_things_is_left_as_it_is():
    Path("thesis").mkdir()
    Path("thesis/chapter1.tex").touch()
    for resume in (False, True):
        with pytest.raises(RunFolderError, match="thesis is not empty and not the folder of a run: it has chapter1.tex"):
            RunFolder.open("thesis", recipe(), resume=resume)
    assert list(Path("thesis").iterdir()) == [Path("thesis/chapter1.tex")]


def test_resuming_where_nothing_is_begins_and_a_start_that_was_killed_at_once_is_nothing():
    RunFolder.open("run", recipe(), resume=True).close()
    Path("killed").mkdir()
    Path("killed/.lock").touch()
    Path("killed/.recipe.toml.4711.tmp").touch()
    begun(path="killed")
    assert not Path("killed/.recipe.toml.4711.tmp").exists()


def test_what_killed_writers_left_in_the_folder_is_removed():
    begun()
    for left in ("run/.result.json.4711.tmp", "run/checkpoints/.step-00000001.pt.4711.tmp"):
        Path(left).touch()
    RunFolder.open("run", recipe(), resume=True).close()
    assert not [path for path in Path("run").rglob("*") if path.suffix == ".tmp"]


def test_a_resumed_run_is_another_session_in_which_harmless_entries_may_differ():
    begun()
    other = recipe(
        engine={"accelerator": "cpu", "devices": 2, "nodes": 3, "strategy": "ddp", "replay_loss": False},
        logging={"every": 1},
        checkpoint={"minutes": 1, "keep": 3},
        evaluation={"every": 1},
        data={
            **{"manifest": "m.parquet", "workers": 0, "root": "images", "decoder": "turbo"},
            **{"cache_images": True, "cache_folder": "decoded"},
        },
    )
    RunFolder.open("run", other, resume=True, command=["again"]).close()
    assert read_recipe("run/recipe.toml") == other
    first, second = sessions()
    assert first["changes"] == {}
    assert second["command"] == ["again"]
    assert second["changes"]["engine.devices"] == [1, 2]


def test_the_decoder_may_not_differ_where_it_decides_the_crops():
    begun(recipe(data={"manifest": "m.parquet", "fast_jpeg": True}))
    with pytest.raises(RunFolderError, match="data.decoder was 'pil' and is 'turbo'"):
        RunFolder.open("run", recipe(data={"manifest": "m.parquet", "fast_jpeg": True, "decoder": "turbo"}), resume=True)


def test_another_recipe_is_refused_by_each_entry_that_differs():
    begun()
    other = recipe(loss={"name": "roadmap", "weight": 0.3}, run={"epochs": 7, "seed": 1}, engine={"precision": "bf16"})
    with pytest.raises(RunFolderError) as refusal:
        RunFolder.open("run", other, resume=True)
    for output in (
        "loss.weight was 0.1 and is 0.3",
        "run.epochs was 100 and is 7",
        "run.seed was 0 and is 1",
        "engine.precision was 'fp32' and is 'bf16'",
    ):
        assert output in str(refusal.value)
    assert read_recipe("run/recipe.toml") == recipe()
    assert len(sessions()) == 1
    RunFolder.open("run", recipe(), resume=True).close()  # the lock was given back


def train_for_ever(folder):
    """Hold the folder, with a forked worker whose process id is written to a file."""
    os.chdir(folder)
    run = RunFolder.open("run", recipe(), resume=False)
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    Path("some").write_text(str(worker.pid))
    Path("some").rename("worker")
    time.sleep(60)
    run.close()


def test_two_processes_do_not_train_in_one_folder_and_a_killed_one_is_no_hindrance(forked):
    """Also if its workers outlive it, since forked processes inherit its files."""
    other = start_process(forked, train_for_ever, Path.cwd())
    wait_until(Path("worker").exists)
    worker = int(Path("worker").read_text())
    try:
        with pytest.raises(RunFolderError, match=f"(process {other.pid} on .*|another process) is training in run"):
            RunFolder.open("run", recipe(), resume=True)
        other.kill()
        other.join()
        os.kill(worker, 0)  # is alive
        RunFolder.open("run", recipe(), resume=True).close()
    finally:
        os.kill(worker, signal.SIGKILL)
    assert len(sessions()) == 2


def attempt(results):
    try:
        RunFolder.open("run", recipe(), resume=True).close()
        results.put("opened")
    except RunFolderError as error:
        results.put(str(error))


def attempted():
    """What another process meets, while this one may hold the folder."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=attempt, args=(results,))
    process.start()
    found = results.get(timeout=60)
    process.join()
    return found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_folder_is_held_until_it_is_closed_and_reading_it_does_not_let_go():
    with RunFolder.open("run", recipe(), resume=False) as run:
        run.write_result({"best": None})
        assert run.result == {"best": None}
        assert "is training in run; wait for it, or name another folder." in attempted()
    assert attempted() == "opened"


@pytest.mark.parametrize("path", ["file", "file/run", "/proc/self/run"])
def test_a_folder_that_cannot_be_made_is_said_plainly(path):
    Path("file").touch()
    with pytest.raises(OSError, match=rf"{path} cannot be written to \(.+\); name another folder"):
        RunFolder.open(path, recipe(), resume=False)


def test_a_folder_that_cannot_be_written_to_is_said_plainly(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    Path("run").mkdir()
    for at in ("pathlib.Path.open", "suprank.training.run_folder.write_atomically"):
        with monkeypatch.context() as patch:
            patch.setattr(at, refuse)
            with pytest.raises(OSError, match=r"run cannot be written to \(Permission denied\)"):
                RunFolder.open("run", recipe(), resume=False)
    begun()  # neither attempt has left anything in the way


def test_a_bad_batch_is_written_down_with_what_json_has_no_number_for():
    """Nor text: a file's name may be no UTF-8."""
    with RunFolder.open("run", recipe(), resume=False) as run:
        values = {"loss": float("nan"), "norm": float("inf"), "gap": 0.5, "error": "the loss is nan"}
        file = run.write_bad_batch(7, 2, torch.tensor([4, 9]), ["a.png", "b/ü\udcff.png"], values)
    assert file == Path("run/bad-batch-step-7.json")
    assert json.loads(file.read_text()) == {
        "step": 7,
        "epoch": 2,
        "values": {"loss": "nan", "norm": "inf", "gap": 0.5, "error": "the loss is nan"},
        "images": [{"row": 4, "path": "a.png"}, {"row": 9, "path": "b/ü\udcff.png"}],
    }


def test_a_finished_run_tells_its_result_with_null_for_what_is_undefined():
    result = {"epoch": 1, "step": 5, "seconds": 0.5, "metrics": {"test": {"AP": 0.25, "H-AP": float("nan")}}, "best": None}
    with RunFolder.open("run", recipe(), resume=False) as run:
        run.write_result(result)
    assert "NaN" not in Path("run/result.json").read_text()
    assert RunFolder("run").result == {**result, "metrics": {"test": {"AP": 0.25, "H-AP": None}}}


def test_a_result_that_is_no_json_is_named():
    begun()
    Path("run/result.json").write_text("{")
    with pytest.raises(ValueError, match=r"run/result.json is not a readable JSON file"):
        _ = RunFolder("run").result


def git(*arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def test_the_git_state_is_that_of_the_repository_around_the_current_directory(folder):
    git("init", "-q", "-b", "trunk")
    assert git_state(folder) == {"commit": None, "branch": "trunk", "dirty": False, "diff_sha256": None}
    Path("code.py").write_text("1\n")
    git("add", "code.py")
    git("commit", "-q", "-m", "first")
    Path("inner").mkdir()
    clean = {"commit": git("rev-parse", "HEAD"), "branch": "trunk", "dirty": False, "diff_sha256": None}
    assert git_state(folder / "inner") == clean
    begun()
    assert sessions()[0]["git"] == clean
    assert git_state(folder) == clean, "the run folder is not known to git"
    Path("code.py").write_text("2\n")
    diff = git("diff", "HEAD", "--binary")
    assert git_state(folder) == {**clean, "dirty": True, "diff_sha256": hashlib.sha256(diff.encode()).hexdigest()}
    git("checkout", "-q", "--force", "--detach")
    assert git_state(folder) == {**clean, "branch": None}


def test_commands_in_the_settings_of_a_repository_are_not_run(folder):
    (folder / "a.bin").write_text("1")
    (folder / ".gitattributes").write_text("*.bin diff=trap")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        git(*words)
    trap = f"touch {folder}/trapped; cat"
    for key in ("core.fsmonitor", "diff.trap.textconv", "diff.trap.command", "diff.external"):
        git("config", key, trap)
    (folder / "a.bin").write_text("2")
    assert git_state(folder)["dirty"]
    assert not (folder / "trapped").exists()


def test_without_git_there_is_no_git_state(folder, monkeypatch):
    git("init", "-q")
    monkeypatch.setenv("PATH", "")
    assert git_state(folder) is None
