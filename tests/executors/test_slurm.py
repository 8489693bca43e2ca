"""SLURM, as far as it goes without one: a stand-in for sbatch, and submitit's processes on this machine."""

import json
import os
import signal
import stat
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import submitit
from submitit.slurm.slurm import SlurmInfoWatcher

from suprank.executors import slurm
from suprank.executors.local import Crashed, ExperimentStopped, Task
from suprank.executors.slurm import SlurmTask, slurm_parameters
from tests.executors import work
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("fork_server")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.05)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root / 'src'}{os.pathsep}{root}")
    return tmp_path


def task(what, *arguments, **settings):
    return Task(what, (what, *arguments), **settings)


def test_options_of_sbatch_become_those_of_submitit():
    shape = {"nodes": 2, "ntasks_per_node": 4, "gpus_per_node": 4}
    cluster, found = slurm_parameters("partition=gpu time=1-12:00:00 cpus=8 reservation=mine", jobs=3, shape=shape)
    assert cluster == "slurm"
    assert found == {
        "timeout_min": 36 * 60,
        "slurm_nodes": 2,
        "slurm_ntasks_per_node": 4,
        "slurm_gpus_per_node": 4,
        "slurm_cpus_per_task": 8,
        "slurm_job_name": "suprank",
        "slurm_signal_delay_s": 120,
        "slurm_array_parallelism": 3,
        "slurm_additional_parameters": {"partition": "gpu", "reservation": "mine"},
    }
    assert slurm_parameters("gpus=1", shape=shape)[1]["slurm_gpus_per_node"] == 1


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 91), ("02:00:00", 120), ("2-0", 2880), ("1-01:30", 1530), ("0:30", 1), ("1-00:00:01", 1441)],
)
def test_times_are_as_slurm_reads_them(text, minutes):
    assert slurm_parameters(f"time={text}")[1]["timeout_min"] == minutes


@pytest.mark.parametrize(
    ("word", "complaint"),
    [("partition", "KEY=VALUE"), ("time=soon", "time=soon must be"), ("time=0", "longer"), ("cluster=moon", "slurm, or local")],
)
def test_bad_options_of_slurm_are_refused(word, complaint):
    with pytest.raises(ValueError, match=complaint):
        slurm_parameters(word)


@pytest.mark.slow
def test_tasks_are_answered_and_each_failure_has_its_type_and_fails_its_own_task(folder):
    tasks = [task("double", 21, log=folder / "logs" / "double.log"), task("fail", "memory"), task("end", -9)]
    found = {one.name: answer for one, answer in slurm.run(work.act, tasks, folder, "cluster=local")}
    assert found["double"].value == 42
    assert "acting: double" in tasks[0].log.read_text()
    assert type(found["fail"].error) is MemoryError
    assert isinstance(found["end"].error, Crashed)
    assert str(found["end"].error) == "was ended by SIGKILL (perhaps memory ran out)"


@pytest.mark.slow
def test_a_task_whose_time_is_up_saves_and_is_queued_again(folder):
    executor = submitit.LocalExecutor(folder / "slurm")
    executor.update_parameters(timeout_min=2)
    job = executor.submit(SlurmTask(work.act, task("stay", str(folder / "stay"))))
    for begun in (1, 2):
        wait_until((folder / "stay/staying").exists)
        process, _ = json.loads((folder / "stay/staying").read_text())
        (folder / "stay/staying").unlink()
        if begun == 1:  # SLURM tells every process of a step
            for pid in (process, _parent_of_session(process, job)):
                os.kill(pid, signal.SIGUSR2)
            wait_until((folder / "stay/saved").exists)
            (folder / "stay/saved").unlink()
        else:
            os.kill(process, signal.SIGTERM)
    assert job.result().value == signal.SIGTERM, "the second time it ended by itself"


def _parent_of_session(process, job):
    """The process in which submitit calls the task."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_text()
        except OSError:
            continue
        if "submitit.core._submit" in words and str(job.paths.folder) in words:
            return int(file.parent.name)
    raise AssertionError("submitit's process is not there")


def executable(file, text):
    file.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def fake_slurm(folder, monkeypatch):
    """sbatch that keeps what it is given, and sacct that says what the file `states` says."""
    binaries = folder / "bin"
    binaries.mkdir()
    executable(binaries / "srun", "")
    executable(
        binaries / "sbatch", "import shutil, sys; shutil.copy(sys.argv[1], 'sbatch.sh'); print('Submitted batch job 12')"
    )
    executable(binaries / "sacct", "print('JobID|State|NodeList'); print(open('states').read())")
    (folder / "states").write_text("")
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setattr(submitit.SlurmJob, "watcher", SlurmInfoWatcher(delay_s=0))
    monkeypatch.setattr(submitit.SlurmJob, "_results_timeout_s", 0)  # of a file that may come late, over a network
    return folder


def stopped(tasks, folder, options, **settings):
    """Run the tasks until somebody stops it, as they are in the queue; returns those that were begun."""
    started = []

    def start(one):
        started.append(one.name)
        if len(started) == len(tasks):
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()

    with pytest.raises(ExperimentStopped):
        list(slurm.run(work.act, tasks, folder, options, on_start=start, **settings))
    return started


def test_an_array_is_submitted_once_and_waited_for_again(fake_slurm, caplog):
    tasks = [task("double", 1), task("facts"), task("count", 2)]
    stopped(tasks, fake_slurm, "partition=gpu time=2:00:00", jobs=2, shape={"gpus_per_node": 1})
    script = Path("sbatch.sh").read_text()
    for line in [
        "--array=0-2%2",
        "--partition=gpu",
        "--time=120",
        "--signal=USR2@120",
        "--gpus-per-node=1",
        "--open-mode=append",
    ]:
        assert f"#SBATCH {line}\n" in script
    numbers = {"double": "12_0", "facts": "12_1", "count": "12_2"}
    assert json.loads((fake_slurm / "slurm" / "jobs.json").read_text()) == numbers
    assert caplog.messages[-1] == (
        "the jobs stay in the queue. Given again, the command waits for them; `scancel 12` ends them."
    )
    Path("sbatch.sh").unlink()
    stopped(tasks, fake_slurm, "partition=gpu")
    assert not Path("sbatch.sh").exists()
    assert "3 tasks are in the queue already; they are waited for." in caplog.messages


def test_a_job_that_ends_without_an_answer_fails_its_task(fake_slurm):
    Path("states").write_text("12_0|CANCELLED by 1000|a\n12_1|NODE_FAIL|a")
    tasks = [task("double", 1), task("facts")]
    found = {one.name: answer.error for one, answer in slurm.run(work.act, tasks, fake_slurm, "partition=gpu")}
    assert all(isinstance(error, Crashed) for error in found.values())
    assert str(found["double"]).startswith("job 12_0 ended without an answer: ")


def test_where_there_is_no_slurm_that_is_said(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(OSError, match=r"not submitted: .*srun"):
        next(slurm.run(work.act, [task("double", 1)], folder, "partition=gpu"))


def test_other_processes_of_a_run_have_a_log_of_their_own(folder, monkeypatch):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setenv("SUBMITIT_LOCAL_GLOBALID", "1")
    assert SlurmTask(work.act, task("double", 1, log=folder / "a.log"))().value == 2
    assert "acting: double" in (folder / "a.rank1.log").read_text()
    assert not (folder / "a.log").exists()
