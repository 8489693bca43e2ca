"""That a run which the server forks is like a process of its own: in its numbers, its surroundings and its end."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest

from suprank.experiments import Task, fork_server, run_tasks
from suprank.experiments import old_runner as runner
from suprank.experiments.fork_server import ForkServer
from suprank.experiments.old_runner import lock_experiment
from suprank.system import custom_code
from suprank.training.recipe import to_toml
from tests.experiments.runs import exit_code, is_alive, some_tasks
from tests.training.runs import pictures, recipe
from tests.waiting import wait_until

TRAIN_COMMAND = runner.train_command  # which the other tests are kept from
pytestmark = pytest.mark.skipif(not fork_server.is_supported(), reason="only Linux has the server")

# A loss of the user's own, with which a run prints where it finds itself, and does what the variable ORDER says.
MINE = """
import json, logging, os, random, signal, sys, time, warnings
from pathlib import Path

import numpy, torch
from rich.console import Console

order = os.environ.get("ORDER")
facts = {
    "main": sys.modules["__main__"].__spec__.name,
    "argv": [word for word in sys.argv if not word.startswith(str(Path.cwd()))],
    "path": sys.path,
    "folder": os.getcwd(),
    "streams": [os.readlink("/proc/self/fd/0"), sys.stdout.encoding, sys.stderr.encoding, sys.stdout.line_buffering],
    "width": Console(stderr=True).width,
    "session": os.getsid(0) == os.getpid(),
    "seed": torch.initial_seed(),
    "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "variables": {name: value for name, value in os.environ.items() if name != "ORDER"},
    "signals": {number.name: str(signal.getsignal(number)).split(" at ")[0] for number in (signal.SIGHUP, signal.SIGCHLD)},
    "warnings": str(sorted(map(str, warnings.filters))),
    "handlers": [str(handler) for handler in logging.getLogger().handlers],
    "holds the lock": [file for file in Path("/proc/self/fd").iterdir() if file.resolve().name == "sweep.lock"] != [],
}
print("FACTS", json.dumps(facts))
print("DRAWN", numpy.random.rand(), random.random(), flush=True)
print("τ", file=sys.stderr)
if order == "exit":
    sys.exit(7)
if order == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if order == "fail":
    raise RuntimeError("no such loss")


class MyLoss(torch.nn.Module):
    def __init__(self, embedding_size):
        super().__init__()
        self.center = torch.nn.Parameter(torch.randn(embedding_size))

    def forward(self, embeddings, labels):
        if order == "stay":
            save = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda *given: (Path(f"terminated-{os.getpid()}").touch(), save(*given)))
            Path(f"staying-{os.getpid()}").touch()
            end = time.monotonic() + 150
            while not Path("go").exists() and time.monotonic() < end:
                time.sleep(0.02)
        return ((embeddings @ embeddings.T).std() - embeddings @ self.center).mean()
"""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def recipes(folder, manifest, monkeypatch):
    """A recipe and its loss in the working folder; `suprank train` is the real one, on one thread."""
    monkeypatch.setattr(runner, "train_command", TRAIN_COMMAND)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (folder / "mine.py").write_text(MINE)
    with custom_code.trusting(True):
        custom_code.require_consent("mine.py:MyLoss", "loss", "mine.toml")
    (folder / "mine.toml").write_text(to_toml(recipe(manifest, loss={"name": "mine.py:MyLoss"}, run={"epochs": 1})))


@pytest.fixture(scope="module")
def shared_server():
    with ForkServer() as server:
        yield server


def a_task(name="one", *overrides, recipe="mine.toml"):
    return Task.create(name, recipe, overrides, Path.cwd() / "runs")


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def logged(task, word):
    (line,) = (line for line in task.log.read_text(encoding="utf-8").splitlines() if line.startswith(word))
    return line.removeprefix(word)


def stay(server):
    """A run that is in the middle of its first step, and stays there until there is a file `go`."""
    process = a_task().fork(server, {"ORDER": "stay"})
    wait_until(lambda: process.poll() is not None or Path(f"staying-{process.pid}").exists())
    return process


@pytest.mark.slow
def test_a_forked_run_gives_the_numbers_and_the_log_of_a_process_of_its_own(folder, shared_server):
    tasks = [a_task("a"), a_task("b"), a_task("c")]
    with lock_experiment(folder) as lock:
        ends = [exit_code(task.fork(shared_server, {}, lock=lock)) for task in tasks[:2]]
        ends.append(exit_code(tasks[2].start({}, lock=lock)))
    assert ends == [0, 0, 0]
    for task in tasks[:2]:
        assert json.loads(logged(task, "FACTS")) == json.loads(logged(tasks[2], "FACTS"))
        drawn = " ".join(("DRAWN", *logged(task, "DRAWN").split()))
        log = task.log.read_text(encoding="utf-8").replace(f"runs/{task.name}", "runs/c")
        assert log.replace(drawn, f"DRAWN{logged(tasks[2], 'DRAWN')}") == tasks[2].log.read_text(encoding="utf-8")
        for file in ("model/model.safetensors", "reports/test-epoch-0001.json", "recipe.toml"):
            assert (task.folder / file).read_bytes() == (tasks[2].folder / file).read_bytes()
    draws = list(zip(*(logged(task, "DRAWN").split() for task in tasks), strict=True))
    assert [len(set(one)) for one in draws] == [3, 3], "what is drawn without a seed differs"
    facts = json.loads(logged(tasks[0], "FACTS"))
    assert facts["main"] == "suprank.__main__"
    assert facts["holds the lock"]
    assert facts["session"]


@pytest.mark.parametrize(("order", "code"), [("exit", 7), ("die", -signal.SIGKILL), ("fail", 1)])
def test_exit_codes_are_those_of_the_run(shared_server, order, code):
    task = a_task()
    assert exit_code(task.fork(shared_server, {"ORDER": order})) == code
    assert ("no such loss" in task.last_lines) == (order == "fail")


def test_a_refused_run_says_so_in_its_log(shared_server):
    task = a_task(recipe="missing.toml")
    assert exit_code(task.fork(shared_server, {})) == 2
    assert "missing.toml" in task.last_lines


def test_a_terminated_run_saves_and_leaves_no_process(folder, shared_server):
    process = stay(shared_server)
    process.terminate()
    (folder / "go").touch()
    assert exit_code(process) == 128 + signal.SIGTERM
    assert "stopped at step 1" in a_task().last_lines
    wait_until(lambda: not is_alive(process.pid))
    children = Path(f"/proc/{shared_server.pid}/task/{shared_server.pid}/children")
    wait_until(lambda: not children.read_text())


def test_a_run_has_the_variables_of_its_own(shared_server):
    tasks = [a_task("a"), a_task("b")]
    for task, gpu in zip(tasks, ("3", "5"), strict=True):
        assert exit_code(task.fork(shared_server, {"CUDA_VISIBLE_DEVICES": gpu, "ORDER": "exit"})) == 7
        assert json.loads(logged(task, "FACTS"))["variables"]["CUDA_VISIBLE_DEVICES"] == gpu


def test_if_the_watcher_is_killed_the_run_is_too(shared_server):
    process = stay(shared_server)
    os.kill(parent_of(process.pid), signal.SIGKILL)
    assert exit_code(process) == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{process.pid}").exists() or " Z " in Path(f"/proc/{process.pid}/stat").read_text())


@pytest.mark.gpu
def test_forked_runs_can_use_the_gpu(folder, manifest, monkeypatch):
    """The server must not have initialized CUDA, which no fork could use then."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (folder / "gpu.toml").write_text(to_toml(recipe(manifest, engine={"accelerator": "cuda"}, run={"epochs": 1})))
    tasks = [a_task(name, recipe="gpu.toml") for name in "ab"]
    with ForkServer() as server:
        processes = [task.fork(server, {"CUDA_VISIBLE_DEVICES": "0"}) for task in tasks]
        wait_until(lambda: all(process.pid for process in processes if process.poll() is None))
        files = [str(file.resolve()) for file in Path(f"/proc/{server.pid}/fd").iterdir()]
        assert not [file for file in files if "nvidia" in file]
        assert [exit_code(process) for process in processes] == [0, 0], tasks[0].last_lines
    assert ", cuda" in tasks[1].log.read_text(encoding="utf-8")


# The server's own start and end


@pytest.mark.slow
def test_if_the_server_dies_its_runs_go_on_and_further_ones_are_started_without_it(folder):
    with ForkServer() as server:
        process = stay(server)
        os.kill(server.pid, signal.SIGKILL)
        second = a_task("second").fork(server, {"ORDER": "exit"})
        assert exit_code(second) == 7
        (folder / "go").touch()
        assert exit_code(process) == 0
        assert is_alive(second.pid) is False


def test_a_server_that_is_killed_before_it_forks_does_not_lose_the_run():
    with ForkServer() as server:
        process = a_task().fork(server, {"ORDER": "exit"})
        server.kill()
        assert exit_code(process) == 7


def test_a_run_that_is_terminated_before_it_is_forked_is_not_started():
    tasks = [a_task("a"), a_task("b")]
    with ForkServer() as server:
        processes = [task.fork(server, {"ORDER": "exit"}) for task in tasks]
        for process in processes:
            process.terminate()
        assert [exit_code(process) for process in processes] == [-signal.SIGTERM] * 2
    assert [task.log.read_bytes() for task in tasks] == [b"", b""]


# In an experiment

SWEEP = textwrap.dedent("""
    import sys
    from pathlib import Path
    from suprank.experiments import ExperimentStopped, Task, old_runner as runner

    with open("begun", "a") as file:  # there is no `if __name__ == "__main__"`
        file.write("x")
    tasks = [Task.create(name, "mine.toml", [], Path.cwd() / "runs") for name in "abc"]
    with runner.lock_experiment(Path.cwd()) as lock:
        try:
            list(runner.run_tasks(tasks, 2, lock=lock))
        except ExperimentStopped as stopped:
            sys.exit(str(stopped))
""")


@pytest.fixture
def sweep(folder, monkeypatch):
    """A script that runs three trainings, two of which are in their first step and stay there; and their processes."""
    monkeypatch.setenv("ORDER", "stay")
    (folder / "sweep.py").write_text(SWEEP)
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen([sys.executable, "sweep.py"], stderr=subprocess.PIPE, text=True))
        wait_until(lambda: len(list(folder.glob("staying-*"))) == 2 or process.poll() is not None)
        yield process, [int(file.name.partition("-")[2]) for file in folder.glob("staying-*")]


@pytest.mark.slow
def test_runs_of_a_killed_experiment_go_on_and_hold_its_lock(folder, sweep):
    process, (first, second) = sweep
    server = parent_of(parent_of(first))
    assert parent_of(parent_of(second)) == server
    assert parent_of(server) == process.pid
    process.kill()
    process.communicate()
    wait_until(lambda: not is_alive(server))
    assert is_alive(first)
    with pytest.raises(BlockingIOError, match="or one of its runs is still running"), lock_experiment(folder):
        pass
    (folder / "go").touch()
    wait_until(lambda: not is_alive(first) and not is_alive(second))
    with lock_experiment(folder):
        assert sorted(file.parent.name for file in folder.glob("runs/*/result.json")) == ["a", "b"]
    assert (folder / "begun").read_text() == "x"


@pytest.mark.slow
def test_runs_of_a_stopped_experiment_save(folder, sweep):
    process, runs = sweep
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(list(folder.glob("terminated-*"))) == 2)
    (folder / "go").touch()
    _, output = process.communicate(timeout=60)
    assert output.strip() == "stopped by SIGTERM"
    assert not any(map(is_alive, runs))
    logs = [file.name for file in folder.glob("runs/logs/*") if "stopped at step 1" in file.read_text()]
    assert sorted(logs) == ["a.log", "b.log"]


class Ended:
    pid, returncode = 1, 1

    def poll(self):
        return 1


@pytest.mark.parametrize(
    ("names", "supported", "expected"),
    [("a", True, ["start"]), ("abc", True, ["fork", "fork", "start"]), ("ab", False, ["start", "start"])],
)
def test_several_trainings_are_forked_where_the_system_can(monkeypatch, names, supported, expected):
    """Here nothing starts the server, so that the last run, with none waiting behind it, does without one."""
    calls = []
    monkeypatch.setattr(fork_server, "is_supported", lambda: supported)
    monkeypatch.setattr(Task, "start", lambda *_, **__: calls.append("start") or Ended())
    monkeypatch.setattr(Task, "fork", lambda *_, **__: calls.append("fork") or Ended())
    list(run_tasks([a_task(name) for name in names]))
    assert calls == expected


def test_only_our_own_trainings_are_forked(monkeypatch):
    assert a_task().can_fork
    monkeypatch.undo()
    monkeypatch.setattr(runner, "train_command", lambda *_: [sys.executable, "trainer.py"])
    assert not some_tasks("loss.weight=0")[0].can_fork
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not fork_server.is_supported()
