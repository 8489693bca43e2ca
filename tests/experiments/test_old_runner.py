"""That each run is run once and none is lost, whatever fails and whoever stops it."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from suprank.experiments import Display, Outcome, Task, run_tasks
from suprank.experiments import old_runner as runner
from suprank.experiments.old_runner import lock_experiment, shared_gpus
from suprank.experiments.results import read_outcome
from tests.experiments.runs import TRAINER, begun, config, process_of, some_tasks, until_staying
from tests.waiting import wait_until

TRAIN_COMMAND = runner.train_command  # which the tests are kept from


def test_a_run_of_the_grid_gets_the_fixed_values_and_its_own(monkeypatch):
    monkeypatch.setattr(runner, "train_command", TRAIN_COMMAND)
    task = Task.create("seed=7", "cub/roadmap", ["batch.size=64", "run.seed=7"], Path("/out"))
    expected = ["train", "cub/roadmap", "batch.size=64", "run.seed=7", "--out", "/out/seed=7", "--resume"]
    assert task.command == [sys.executable, "-P", "-m", "suprank", *expected]
    assert task.log == Path("/out/logs/seed=7.log")  # not in the run's folder, which must be empty or a run


def test_all_runs_are_run_once_and_leave_result_and_log():
    tasks = some_tasks("loss.weight=0,0.1", seeds=2)
    display = Display()
    started = []
    display.run_started = started.append
    found = list(run_tasks(tasks, display=display))
    assert started == [task.name for task in tasks]  # in turn
    assert [(one.task, one.failure) for one in found] == [(task, "") for task in tasks]
    assert [begun(task) for task in tasks] == [1, 1, 1, 1]
    metrics = {"R@1": 0.11, "H-AP": 0.055, "AP/group": 0.0275, "AP": None}
    assert read_outcome(tasks[3].folder) == Outcome(3, 30, 1.5, {"test": metrics})
    assert '"loss.weight": "0.1", "run.seed": "1"' in tasks[3].log.read_text()


def test_several_run_at_once_and_share_cores_and_gpus(folder):
    (folder / "stay").touch()
    tasks = some_tasks("loss.weight=0,0.1,0.2")

    def release():
        until_staying(*tasks[:2])
        assert not tasks[2].folder.exists()
        (folder / "stay").unlink()
        for task in tasks[:2]:
            os.kill(process_of(task), signal.SIGKILL)

    with ThreadPoolExecutor() as pool:
        released = pool.submit(release)
        failures = [one.failure for one in run_tasks(tasks, 2, gpus=["3", "5"])]
        released.result()
    assert sorted(failures) == ["", "was ended by SIGKILL", "was ended by SIGKILL"]
    shared = [json.loads(task.log.read_text().removeprefix("training")) for task in tasks[:2]]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in shared] == ["3", "5"]
    assert {int(one["OMP_NUM_THREADS"]) for one in shared} == {max(1, len(os.sched_getaffinity(0)) // 2)}


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


def test_a_run_that_fails_is_told_with_its_last_lines_and_the_others_go_on():
    tasks = some_tasks("loss.weight=0,0.6,0.7,0.1")
    assert [one.failure for one in run_tasks(tasks)] == ["", "ended with exit code 1", "ended without a result", ""]
    assert tasks[1].last_lines.endswith("the disk is full")


SWEEP = """
import signal, sys
from pathlib import Path
from suprank.experiments import ExperimentStopped, Grid, Task, old_runner as runner
for number in (signal.SIGINT, signal.SIGHUP):  # which nohup, or a shell, may have had ignored
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
runner.train_command = lambda recipe, overrides, folder: [*sys.argv[1:], recipe, *overrides, "--out", str(folder)]
runner.POLL_SECONDS = 0.01
grid = Grid.from_values(["loss.weight=0,0.1,0.2"])
tasks = [Task.create(run.name, "r.toml", grid.overrides(run), Path.cwd()) for run in grid.combinations()]
with runner.lock_experiment(Path.cwd()) as lock:
    try:
        list(runner.run_tasks(tasks, 2, lock=lock))
    except ExperimentStopped as stopped:
        sys.exit(str(stopped))
"""


@pytest.fixture
def sweep(folder):
    """A sweep of three runs in a process of its own, two of which are at work and will stay so; and its tasks."""
    (folder / "stay").touch()
    command = [sys.executable, "-c", SWEEP, sys.executable, "-S", str(TRAINER)]
    tasks = some_tasks("loss.weight=0,0.1,0.2")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until_staying(*tasks[:2])
        yield process, tasks


def go_on(folder, tasks):
    """What another sweep would do: the runs that are not finished."""
    (folder / "stay").unlink()
    with lock_experiment(folder) as lock:
        assert not any(
            one.failure for one in run_tasks([task for task in tasks if not read_outcome(task.folder)], 2, lock=lock)
        )
    assert [begun(task) for task in tasks] == [2, 2, 1]
    assert all(read_outcome(task.folder) for task in tasks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_sweep_lets_its_runs_save_and_goes_on_later(folder, sweep, number):
    process, tasks = sweep
    process.send_signal(number)
    _, output = process.communicate(timeout=60)
    assert output.strip() == f"stopped by {number.name}"
    assert [(task.folder / "saved").exists() for task in tasks] == [True, True, False]
    go_on(folder, tasks)


def test_a_second_signal_kills_runs_that_do_not_end(folder, sweep):
    process, tasks = sweep
    (folder / "stubborn").touch()
    process.send_signal(signal.SIGINT)
    wait_until(lambda: all((task.folder / "saved").exists() for task in tasks[:2]))
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 1
    for task in tasks[:2]:
        with pytest.raises(ProcessLookupError):
            os.kill(process_of(task), 0)


def test_where_the_sweep_is_killed_no_second_one_starts_beside_its_runs(folder, sweep):
    process, tasks = sweep
    process.kill()
    process.communicate()
    with pytest.raises(BlockingIOError, match="or one of its runs is still running"), lock_experiment(folder):
        pass
    for task in tasks[:2]:
        os.kill(process_of(task), signal.SIGKILL)

    def free():
        try:
            with lock_experiment(folder):
                return True
        except BlockingIOError:
            return False

    wait_until(free)
    go_on(folder, tasks)
