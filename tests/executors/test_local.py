"""Every task is done once, and what happens to one happens to no other one; no process stays."""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from suprank.executors.local import Answer, Crashed, Task, catch_signals, run
from tests.executors import work
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("fork_server")


def task(what, *arguments, **settings):
    return Task(f"{what}{arguments}", (what, *arguments), **settings)


def answers(*tasks, **settings):
    return dict(run(work.act, tasks, **settings))


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_each_task_is_answered_as_it_ends_and_its_output_is_in_its_log(tmp_path):
    tasks = [task("double", number, log=tmp_path / "logs" / f"{number}.log") for number in range(3)]
    started = []
    found = list(run(work.act, tasks, jobs=2, on_start=started.append))
    assert started == tasks
    assert sorted(found) == [(one, Answer(2 * number)) for number, one in enumerate(tasks)]
    assert [one.log.read_text() for one in tasks] == ["acting: double\n"] * 3
    dict(run(work.act, tasks[:1]))
    assert tasks[0].log.read_text() == "acting: double\n" * 2, "a log is added to"


def test_each_failure_has_its_own_type_and_fails_its_own_task(tmp_path):
    log = tmp_path / "failed.log"
    tasks = {
        "memory": task("fail", "memory", log=log),
        "odd": task("fail", "odd"),
        "unpicklable": task("fail", "unpicklable"),
        "value": task("lambdas"),
        "argument": Task("argument", ("double", lambda: 0)),
        "killed": task("end", -9),
        "stopped": task("end", -15),
        "exit": task("end", 3),
        "child": task("leave_a_child", str(tmp_path)),
        "log": task("double", 1, log=Path("/dev/full/x.log")),
        "disk": task("fill_the_disk"),
        "good": task("double", 21),
    }
    found = answers(*tasks.values(), jobs=2)
    errors = {name: found[one].error for name, one in tasks.items()}
    assert found[tasks["good"]] == Answer(42)
    assert type(errors["memory"]) is MemoryError
    assert str(errors["memory"]) == "too much"
    assert "in fail" in str(errors["memory"].__cause__), "the traceback in its process"
    assert "MemoryError: too much" in log.read_text()
    assert "OddError: this and that" in str(errors["odd"]), "its arguments cannot be given again"
    assert "Unpicklable: so it is" in str(errors["unpicklable"])
    assert "lambda" in str(errors["value"])
    assert "lambda" in str(errors["argument"])
    crashes = {name: str(errors[name]) for name in ("killed", "stopped", "exit", "child")}
    assert all(isinstance(errors[name], Crashed) for name in crashes)
    assert crashes["killed"] == "was ended by SIGKILL (perhaps memory ran out)"
    assert crashes["stopped"] == "was ended by SIGTERM"
    assert crashes["exit"] == "ended with exit code 3"
    assert isinstance(errors["log"], FileExistsError)
    assert "No space left" in str(errors["disk"])
    wait_until(lambda: not is_alive(int((tmp_path / "child").read_text())))


def test_a_killed_fork_server_fails_no_task_that_comes_after(tmp_path):
    for _, answer in run(work.act, [task("stay", str(tmp_path)), task("double", 2)], jobs=2):
        if answer.value == 4:
            wait_until((tmp_path / "staying").exists)
            pid, server = json.loads((tmp_path / "staying").read_text())
            os.kill(server, signal.SIGKILL)
            os.kill(pid, signal.SIGTERM)
        else:
            assert answer == Answer(signal.SIGTERM), "it lives on, and answers"
    assert answers(task("double", 3))[task("double", 3)] == Answer(6)


HELD_BACK = """
import signal
from multiprocessing import forkserver, resource_tracker
resource_tracker.ensure_running()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # as while the workers of a loader start
forkserver.ensure_running()
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
from suprank.executors.local import Task, run
from tests.executors.work import act
[(task, answer)] = run(act, [Task("a", ("end", -15))])
print(answer.error)
"""


def test_a_task_can_be_stopped_although_its_server_was_started_while_signals_were_held_back(forked):
    code, output, errors = forked.script(HELD_BACK).end(timeout=60)
    assert (code, output.splitlines()[-1:]) == (0, ["was ended by SIGTERM"]), errors


def test_tasks_that_are_added_meanwhile_are_done_too():
    tasks, found = deque([task("double", 1)]), []
    for _, answer in run(work.act, tasks):
        found.append(answer.value)
        if answer.value < 8:
            tasks.append(task("double", answer.value))
    assert found == [2, 4, 8]


def test_what_a_task_reports_arrives_before_its_answer():
    reports = []
    one = task("count", 3)
    assert answers(one, on_report=lambda task, values: reports.append((task, values)))[one].value == "counted"
    assert reports == [(one, (step, 3)) for step in range(3)]


def test_a_process_starts_safely_and_gets_its_part_of_the_machine(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("NEW", "since the server was started")
    tasks = [task("facts")._replace(name=str(number)) for number in range(2)]
    found = [answer.value for answer in answers(*tasks, jobs=2, gpus=["3", "GPU-5"]).values()]
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert {one["gpu"] for one in found} == {"3", "GPU-5"}
    for one in found:
        assert one["cuda"] == [False, False], "the server never touches CUDA"
        assert one["start method"] is None, "the workers of a loader are forked, as in any program"
        assert one["safe"]
        assert one["PYTHONSAFEPATH"] is None, "code of the user's own may start Python too"
        assert one["threads"] == [str(cores), cores]
        assert one["main"] is None or one["main"] != getattr(sys.modules["__main__"], "__file__", None)
    assert found[0]["drawn"] != found[1]["drawn"], "forks of one server do not share what they draw"


def test_a_kept_process_does_task_after_task_until_one_fails_or_needs_its_own():
    tasks = [
        task("change"),
        task("facts"),
        task("process", needs_new_process=True),
        task("process"),
        task("fail", "odd"),
        task("facts")._replace(name="last"),
    ]
    found = list(answers(*tasks, keep=True).values())
    first, second, own, fourth, _, last = found
    assert second.value["pid"] == first.value
    assert second.value["left"] is None
    assert second.value["threads"] == last.value["threads"], "what a task changes is changed back"
    assert len({first.value, own.value, fourth.value, last.value["pid"]}) == 4
    assert len({answer.value for answer in answers(*[task("process")._replace(name=str(n)) for n in range(2)]).values()}) == 2
    assert not any(map(is_alive, (first.value, own.value, fourth.value, last.value["pid"])))


def test_a_kept_process_that_is_killed_between_tasks_fails_none():
    pids = []
    for _, answer in run(work.act, [task("process")._replace(name=str(number)) for number in range(2)], keep=True):
        assert answer.error is None
        pids.append(answer.value)
        os.kill(answer.value, signal.SIGKILL)
        wait_until(lambda: not is_alive(pids[-1]))
    assert len(set(pids)) == 2


def test_a_caller_that_goes_on_without_the_answers_leaves_no_process(tmp_path):
    tasks = [task("stay", str(tmp_path / "one")), task("double", 1)]
    for _, answer in run(work.act, tasks, jobs=2):
        assert answer.value == 2
        wait_until((tmp_path / "one" / "staying").exists)
        break
    assert (tmp_path / "one" / "saved").exists()
    assert not is_alive(json.loads((tmp_path / "one" / "staying").read_text())[0])


# A caller that is stopped: a script without a guard, in a process of its own

SCRIPT = """
import signal, sys
from suprank.executors.local import ExperimentStopped, Task, run
from tests.executors import work
open("scripts", "a").write("x")
for number in (signal.SIGINT, signal.SIGHUP):  # which nohup, or a shell, may have had ignored
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
try:
    tasks = [Task(str(n), (sys.argv[1], f"task{n}")) for n in range(3)]
    for task, answer in run(work.act, tasks, jobs=2, preload=["pandas"]):
        print(answer)
except ExperimentStopped as stopped:
    sys.exit(str(stopped))
"""


@pytest.fixture
def script(tmp_path):
    """Starts it and waits until two tasks are at work; returns the process of the caller and those of its tasks."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "typer.py").write_text("open('trapped', 'w')")
    (tmp_path / "pandas.py").write_text("open('trapped', 'w')")
    started = []

    def start(what):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        environment.pop("PYTHONSAFEPATH", None)
        command = [sys.executable, "script.py", what]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
        started.append(process)
        files = [tmp_path / f"task{number}" / "staying" for number in range(2)]
        wait_until(lambda: all(file.exists() for file in files))
        return process, [json.loads(file.read_text()) for file in files]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_signals_that_ask_to_stop_are_collected_and_those_that_are_ignored_stay_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        for expected in ([signal.SIGINT, signal.SIGTERM], [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]):
            with catch_signals() as caught:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    os.kill(os.getpid(), number)
            assert caught == expected
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_lets_tasks_save_and_leaves_no_process(script, tmp_path):
    process, tasks = script("stay")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert said.strip() == "stopped by SIGTERM"
    assert [(tmp_path / f"task{one}" / "saved").exists() for one in range(3)] == [True, True, False]
    wait_until(lambda: not any(is_alive(pid) for pids in tasks for pid in pids))
    assert (tmp_path / "scripts").read_text() == "x", "the script was run once, though it has no guard"
    assert not (tmp_path / "trapped").exists(), "nothing of the working folder was imported"


def test_a_second_signal_kills_tasks_that_do_not_end(script, tmp_path):
    process, tasks = script("stay_stubborn")
    process.send_signal(signal.SIGINT)
    wait_until(lambda: all((tmp_path / f"task{number}" / "asked").exists() for number in range(2)))
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    wait_until(lambda: not any(is_alive(pid) for pids in tasks for pid in pids))


def test_the_tasks_of_a_killed_caller_save_and_end(script, tmp_path):
    process, tasks = script("stay")
    process.kill()
    wait_until(lambda: not any(is_alive(pid) for pids in tasks for pid in pids))
    assert [(tmp_path / f"task{one}" / "saved").exists() for one in range(2)] == [True, True]


@pytest.mark.gpu
def test_forks_of_the_server_use_the_gpu_and_a_kept_one_initializes_cuda_once():
    tasks = [task("use_cuda")._replace(name=str(number)) for number in range(3)]
    (first, *before), (second, *after), (third, *_) = [answer.value for answer in answers(*tasks, keep=True).values()]
    assert before == [False, 3.0]
    assert after == [True, 3.0]
    assert first == second == third
