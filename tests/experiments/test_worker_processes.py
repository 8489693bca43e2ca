"""That runs which take turns in a worker are like processes of their own, and that workers end as they should.

Where training does not matter, workers run a stand-in for `suprank`, which they can do without importing torch.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from suprank.experiments import (
    SearchSettings,
    Task,
    WorkerPool,
    compare,
    comparisons,
    fork_server,
    run_tasks,
    runner,
    worker_processes,
)
from suprank.experiments.old_runner import lock_experiment
from suprank.experiments.worker_processes import optional_pool
from suprank.system import custom_code
from suprank.training.recipe import to_toml
from tests.experiments.runs import exit_code, is_alive
from tests.training.runs import pictures, recipe
from tests.waiting import wait_until

TRAIN_COMMAND = runner.train_command  # which the other tests are kept from
pytestmark = pytest.mark.skipif(not fork_server.is_supported(), reason="only Linux has workers")

# The recipe of a run says what it does. At its end the process is as new, unless the run says `spoil`.
STAND_IN = """
import os, signal, sys, time, warnings
from pathlib import Path
from suprank.experiments import fork_server, worker_processes

def run_program(arguments, folder):
    os.chdir(folder)
    order, run = arguments[1], Path(arguments[arguments.index("--out") + 1])
    print("order", order, os.environ.get("SLOT"), os.environ.get("LEFT"), sys.path[0], sys.argv[0], flush=True)
    print("τ", file=sys.stderr)
    os.environ["LEFT"] = "something"
    sys.path.insert(0, "elsewhere")
    formats = warnings.formatwarning
    warnings.formatwarning = lambda *arguments: f"~{formats(*arguments)}"
    warnings.warn("shown")
    if order == "child":  # which lives on, with all that the worker has open
        if os.fork() == 0:
            Path("child").write_text(str(os.getpid()))
            while not Path("go").exists():
                time.sleep(0.01)
            os._exit(0)
        order = "die"
    if order == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if order == "raise":
        raise RuntimeError("no such loss")
    if order in ("stay", "save"):
        stopped = []
        before = signal.signal(signal.SIGTERM, lambda *_: stopped.append(True)) if order == "save" else None
        (run.parent / f"staying-{run.name}").touch()
        while not Path("go").exists() and not stopped:
            time.sleep(0.01)
        if stopped:
            sys.exit(143)
    if order.startswith("exit"):
        sys.exit(int(order.removeprefix("exit")))
    if order == "text":
        sys.exit("a reason")
    run.mkdir(parents=True, exist_ok=True)
    (run / "result.json").touch()
    (run / "order").write_text(order)

worker_processes.import_program = lambda: None
worker_processes.run_program = run_program
worker_processes._is_reusable = lambda run: (run / "order").read_text() != "spoil"
worker_processes.work(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def trainings(folder, monkeypatch):
    """`suprank train` is the real one, on one thread."""
    monkeypatch.setattr(runner, "train_command", TRAIN_COMMAND)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def pool(monkeypatch):
    """A pool whose workers run the stand-in."""
    monkeypatch.setattr(worker_processes, "_WORK", STAND_IN)
    with WorkerPool() as workers:
        yield workers
        for worker in workers._workers.values():  # of a test that has failed
            if worker.is_training:
                worker.process.kill()
                worker.process.wait()


def a_task(order="", name="one", *overrides):
    return Task.create(name, order or "nothing", overrides, Path.cwd() / "runs")


def staying(pool, order, **options):
    """A run that stays where it is until there is a file `go`, or until SIGTERM."""
    process = a_task(order).run_in(pool, 0, {}, **options)
    wait_until(lambda: process.poll() is not None or Path("runs/staying-one").exists())
    return process


# Exit codes, and the workers after them


def test_runs_take_turns_in_one_process_and_leave_nothing_to_each_other(folder, pool):
    tasks = [a_task("a", "first"), a_task("b", "second")]
    processes = []
    for task in tasks:
        processes.append(task.run_in(pool, 0, {"SLOT": "3"}))
        assert exit_code(processes[-1]) == 0
        assert task.failure(0) == ""
    assert processes[0].pid == processes[1].pid
    first, second = (task.log.read_text(encoding="utf-8").replace(f"order {task.command[5]}", "") for task in tasks)
    assert first == second, "variables, path and warnings are those of a new process"
    assert " 3 None " in first
    assert " 3 None  " not in first, "the current folder is not on the path"
    assert "τ" in first
    assert first.count("~") == first.count("UserWarning: shown") == 1


@pytest.mark.parametrize(
    ("order", "code", "said"),
    [
        *(("exit2", 2, ""), ("exit1", 1, ""), ("text", 1, "a reason")),
        *(("raise", 1, "RuntimeError: no such loss"), ("die", -signal.SIGKILL, "")),
    ],
)
def test_a_run_that_fails_has_its_exit_code_and_the_next_one_a_new_worker(pool, order, code, said):
    failing, following = a_task(order), a_task("", "next")
    process = failing.run_in(pool, 0, {})
    assert exit_code(process) == code
    assert said in failing.last_lines
    assert not is_alive(process.pid), "neither running nor a zombie"
    after = following.run_in(pool, 0, {})
    assert exit_code(after) == 0
    assert after.pid != process.pid


def test_a_worker_that_is_not_as_new_ends_after_its_run(pool):
    process = a_task("spoil").run_in(pool, 0, {})
    assert exit_code(process) == 0
    assert not is_alive(process.pid)
    assert exit_code(a_task("", "next").run_in(pool, 0, {})) == 0


def test_a_run_has_the_variables_of_its_slot(pool):
    tasks = [a_task("a", "first"), a_task("b", "second"), a_task("c", "third")]
    pids = []
    for task, slot, variables in zip(tasks, (0, 0, 1), ({"SLOT": "3"}, {"SLOT": "5"}, {"SLOT": "5"}), strict=True):
        process = task.run_in(pool, slot, variables)
        assert exit_code(process) == 0
        assert f"order {task.command[5]} {variables['SLOT']} None" in task.last_lines
        pids.append(process.pid)
    assert len(set(pids)) == 3, "variables that are read at import cannot be changed in a process"
    assert not is_alive(pids[0])


# Workers that die, and signals


def test_a_worker_that_dies_between_two_runs_is_replaced(pool):
    process = a_task("", "first").run_in(pool, 0, {})
    assert exit_code(process) == 0
    os.kill(process.pid, signal.SIGKILL)
    after = a_task("", "second").run_in(pool, 0, {})
    assert exit_code(after) == 0
    assert after.pid != process.pid


def test_a_worker_that_dies_before_it_begins_a_run_does_not_lose_it(pool):
    process = a_task("", "first").run_in(pool, 0, {})
    assert exit_code(process) == 0
    os.kill(process.pid, signal.SIGSTOP)
    after = a_task("", "second").run_in(pool, 0, {})
    assert after.pid == process.pid
    assert after.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    assert exit_code(after) == 0
    assert after.pid != process.pid


def test_a_worker_that_cannot_start_says_why_in_the_log(monkeypatch):
    monkeypatch.setattr(worker_processes, "_WORK", "import no_such_module")
    task = a_task()
    with WorkerPool() as workers:
        assert exit_code(task.run_in(workers, 0, {})) == 1
    assert "no_such_module" in task.last_lines


def test_the_end_of_a_worker_is_seen_even_if_a_process_of_it_lives_on(folder, pool):
    process = a_task("child").run_in(pool, 0, {})
    assert exit_code(process) == -signal.SIGKILL
    wait_until(lambda: Path("child").exists() and Path("child").read_text())
    child = int(Path("child").read_text())
    assert is_alive(child)
    (folder / "go").touch()
    wait_until(lambda: not is_alive(child))


def test_a_run_that_is_terminated_before_it_begins_is_not_run(pool):
    process = a_task().run_in(pool, 0, {})
    process.terminate()
    assert exit_code(process) == -signal.SIGTERM
    assert not Path("runs/one/result.json").exists()
    process.terminate()
    assert process.returncode == -signal.SIGTERM


def test_a_run_that_is_terminated_in_a_worker_that_was_used_is_not_run_again(pool):
    first = a_task("", "first").run_in(pool, 0, {})
    assert exit_code(first) == 0
    os.kill(first.pid, signal.SIGSTOP)
    process = a_task().run_in(pool, 0, {})
    process.terminate()
    os.kill(first.pid, signal.SIGCONT)
    assert exit_code(process) in (0, -signal.SIGTERM), "the signal or the run was first"
    assert process.pid == first.pid


def test_a_run_that_is_terminated_can_save(pool):
    process = staying(pool, "save")
    process.terminate()
    assert exit_code(process) == 128 + signal.SIGTERM
    assert not is_alive(process.pid)


def test_a_worker_is_not_terminated_after_its_run(pool):
    process = a_task("", "first").run_in(pool, 0, {})
    wait_until(lambda: Path("runs/first/result.json").exists())
    time.sleep(0.1)
    process.terminate()
    assert process.returncode == 0
    after = a_task("", "second").run_in(pool, 0, {})
    assert exit_code(after) == 0
    assert after.pid == process.pid


def test_the_lock_is_held_by_a_run_and_not_by_an_idle_worker(folder, pool):
    def has_lock():
        return any(file.resolve().name == runner.LOCK for file in Path(f"/proc/{process.pid}/fd").iterdir())

    with lock_experiment(folder) as lock:
        process = staying(pool, "stay", lock=lock)
        assert has_lock()
        (folder / "go").touch()
        assert exit_code(process) == 0
        assert not has_lock()


def test_workers_end_with_the_pool(folder, monkeypatch):
    monkeypatch.setattr(worker_processes, "_WORK", STAND_IN)
    with WorkerPool() as workers:
        processes = [a_task("", name).run_in(workers, slot, {}) for slot, name in enumerate("ab")]
        assert [exit_code(process) for process in processes] == [0, 0]
        assert all(is_alive(process.pid) for process in processes)
    assert not any(is_alive(process.pid) for process in processes)


def test_a_worker_that_does_not_end_with_the_pool_is_killed(monkeypatch):
    monkeypatch.setattr(worker_processes, "_WORK", STAND_IN)
    monkeypatch.setattr(worker_processes, "_SECONDS_TO_END", 0.1)
    with WorkerPool() as workers:
        process = a_task().run_in(workers, 0, {})
        assert exit_code(process) == 0
        os.kill(process.pid, signal.SIGSTOP)
    assert not is_alive(process.pid)


# In an experiment

EXPERIMENT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from suprank.experiments import ExperimentStopped, Task, WorkerPool, old_runner as runner, worker_processes

    worker_processes._WORK = Path("stand_in.py").read_text()
    tasks = [Task.create(name, sys.argv[1], [], Path.cwd() / "runs") for name in "abc"]
    with runner.lock_experiment(Path.cwd()) as lock, WorkerPool() as workers:
        try:
            list(runner.run_tasks(tasks, 2, lock=lock, workers=workers))
        except ExperimentStopped as stopped:
            sys.exit(str(stopped))
""")


@pytest.fixture
def experiment(folder, request):
    """A script that has two workers, which are in the middle of their first runs; and their processes."""
    (folder / "experiment.py").write_text(EXPERIMENT)
    (folder / "stand_in.py").write_text(STAND_IN)
    command = [sys.executable, "experiment.py", request.param]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(list(folder.glob("runs/staying-*"))) == 2 or process.poll() is not None)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        workers = [int(pid) for pid in children.split()]
        yield process, workers
        for pid in (process.pid, *workers):  # of a test that has failed
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("experiment", ["stay"], indirect=True)
def test_workers_of_a_killed_experiment_finish_their_runs_hold_its_lock_and_end(folder, experiment):
    process, workers = experiment
    assert len(workers) == 2
    process.kill()
    process.communicate()
    assert all(map(is_alive, workers))
    with pytest.raises(BlockingIOError, match="or one of its runs is still running"), lock_experiment(folder):
        pass
    (folder / "go").touch()
    wait_until(lambda: not any(map(is_alive, workers)))
    with lock_experiment(folder):
        assert sorted(file.parent.name for file in folder.glob("runs/*/result.json")) == ["a", "b"]
    assert not [file for file in folder.glob("runs/logs/*") if "Traceback" in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize("experiment", ["save"], indirect=True)
def test_runs_of_a_stopped_experiment_save(experiment):
    process, workers = experiment
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate(timeout=60)
    assert output.strip() == "stopped by SIGTERM"
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize("experiment", ["stay"], indirect=True)
def test_a_second_signal_kills_the_workers(experiment):
    process, workers = experiment
    os.kill(workers[1], signal.SIGSTOP)  # SIGTERM does not end it
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: not is_alive(workers[0]))
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate(timeout=60)
    assert output.strip() == "stopped by SIGTERM"
    assert not is_alive(workers[1])


def test_an_experiment_has_a_worker_for_each_run_at_the_same_time(pool):
    tasks = [a_task("exit1" if name == "c" else "", name) for name in "abcdef"]
    ended = {end.task.name: end for end in run_tasks(tasks, 2, workers=pool)}
    assert {name: end.failure for name, end in ended.items() if end.failure} == {"c": "ended with exit code 1"}
    assert len(ended) == 6
    assert sorted(pool._workers) == [0, 1]


def test_only_linux_has_workers_and_slurm_needs_none(monkeypatch):
    with pytest.raises(ValueError, match="--keep-processes is for runs on this machine, and SLURM"):
        optional_pool(keep_processes=True, slurm=["partition=gpu"])
    monkeypatch.setattr(fork_server, "is_supported", lambda: False)
    with pytest.raises(OSError, match="only Linux can keep the processes of runs"):
        optional_pool(keep_processes=True)
    with optional_pool(keep_processes=False) as workers:
        assert workers is None


# With real trainings


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


MINE = """
import torch


class MyLoss(torch.nn.Module):
    def forward(self, embeddings, labels):
        return (embeddings @ embeddings.T).std()
"""


@pytest.mark.slow
def test_a_tuned_comparison_with_workers_has_the_table_the_logs_and_the_weights_of_one_without(folder, manifest, monkeypatch):
    """A run with a loss of the user's own is the last one of its worker: the loss, or what it imports, may be edited."""
    monkeypatch.setattr(comparisons, "import_plots", lambda display: None)
    (folder / "mine.py").write_text(MINE)
    with custom_code.trusting(True):
        custom_code.require_consent("mine.py:MyLoss", "loss", "mine.toml")
    for name, loss in (("ours", {"name": "roadmap", "decomposability": "pairs"}), ("mine", {"name": "mine.py:MyLoss"})):
        (folder / f"{name}.toml").write_text(to_toml(recipe(manifest, loss=loss, run={"epochs": 1}, batch={"size": 8})))
    tune = SearchSettings(2, folds=2, metric="AP")
    with WorkerPool() as workers:
        found = compare(["ours.toml"], "with", tune=tune, workers=workers)
        assert workers._workers[0].runs == 6
        process = a_task("mine.toml").run_in(workers, 0, {})
        assert workers._workers[0].runs == 7
        assert exit_code(process) == 0
        assert not is_alive(process.pid)
    expected = compare(["ours.toml"], "without", tune=tune)
    assert (found.failed, expected.failed) == ((), ())
    assert [row.label for row in expected.table.rows] == ["ours", "ours, tuned"]
    assert [row.statistics for row in found.table.rows] == [row.statistics for row in expected.table.rows]
    for one in (found, expected):
        assert [trial.failure for trial in one.search.trials["ours"]] == ["", ""]
    assert [trial.value for trial in found.search.trials["ours"]] == [trial.value for trial in expected.search.trials["ours"]]
    logs = sorted(Path("without/logs").iterdir())
    assert len(logs) == 6
    for log in logs:
        text = (folder / "with/logs" / log.name).read_text(encoding="utf-8")
        assert text.replace(f"{folder}/with/", f"{folder}/without/") == log.read_text(encoding="utf-8")
    weights = sorted(Path("without").glob("*/model/model.safetensors"))
    assert len(weights) == 2
    for file in weights:
        assert file.read_bytes() == Path("with", *file.parts[1:]).read_bytes()
