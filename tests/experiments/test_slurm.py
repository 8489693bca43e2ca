"""SLURM, as far as it goes without one: a stand-in for sbatch, and submitit's processes on this machine."""

import json
import os
import signal
import stat
import sys
import textwrap
from pathlib import Path

import pytest
import submitit

from suprank.experiments.results import read_outcome
from suprank.experiments.slurm import SlurmTask, queued_jobs, slurm_parameters, submit_tasks
from tests.experiments.runs import begun, config, process_of, some_tasks, until_staying


def slurm_of(*words, jobs=None, **changes):
    return slurm_parameters(words, [config(**changes)], jobs)


def test_options_of_sbatch_become_those_of_submitit():
    engine = {"devices": 4, "nodes": 2}
    cluster, found = slurm_of("partition=gpu", "time=1-12:00:00", "cpus=8", "reservation=mine", jobs=3, engine=engine)
    assert cluster == "slurm"
    assert found == {
        "timeout_min": 36 * 60,
        "slurm_partition": "gpu",
        "slurm_cpus_per_task": 8,
        "slurm_nodes": 2,
        "slurm_ntasks_per_node": 4,
        "slurm_gpus_per_node": 4,
        "slurm_job_name": "suprank-sweep",
        "slurm_signal_delay_s": 120,
        "slurm_array_parallelism": 3,
        "slurm_additional_parameters": {"reservation": "mine"},
    }
    assert "slurm_gpus_per_node" not in slurm_of("partition=cpu", engine={"accelerator": "cpu"})[1]
    assert slurm_of("gpus=1", engine=engine)[1]["slurm_gpus_per_node"] == 1


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 91), ("02:00:00", 120), ("2-0", 2880), ("1-01:30", 1530), ("0:30", 1), ("1-00:00:01", 1441)],
)
def test_times_are_as_slurm_reads_them(text, minutes):
    assert slurm_of(f"time={text}")[1]["timeout_min"] == minutes


@pytest.mark.parametrize(
    ("word", "complaint"),
    [("partition", "KEY=VALUE"), ("time=soon", "time=soon must be"), ("time=0", "longer"), ("cluster=moon", "slurm, or local")],
)
def test_bad_options_of_slurm_are_refused(word, complaint):
    with pytest.raises(ValueError, match=complaint):
        slurm_of(word)


def test_runs_on_different_machines_do_not_share_an_array():
    with pytest.raises(ValueError, match="run them one by one"):
        slurm_parameters([], [config(), config(engine={"devices": 2})])


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
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    submitit.SlurmJob.watcher.clear()
    yield folder
    submitit.SlurmJob.watcher.clear()


def test_an_array_is_submitted_with_the_signal_that_lets_runs_save(fake_slurm):
    tasks = some_tasks("loss.weight=0,0.1,0.2")
    jobs = submit_tasks(tasks, fake_slurm, *slurm_of("partition=gpu", "time=2:00:00", jobs=2))
    assert {name: job.job_id for name, job in jobs.items()} == {task.name: f"12_{n}" for n, task in enumerate(tasks)}
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
    assert json.loads((fake_slurm / "slurm" / "jobs.json").read_text()) == {name: job.job_id for name, job in jobs.items()}


def test_where_there_is_no_slurm_that_is_said(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(OSError, match=r"not submitted: .*srun"):
        submit_tasks(some_tasks("loss.weight=0"), folder, *slurm_of("partition=gpu"))


def test_jobs_that_wait_or_run_are_queued_and_so_is_one_that_slurm_does_not_know(fake_slurm):
    assert queued_jobs(fake_slurm) == {}
    (fake_slurm / "slurm").mkdir()
    jobs = {"done": "12_0", "waiting": "12_1", "failed": "12_2", "running": "12_3", "canceled": "12_4", "new": "13_0"}
    (fake_slurm / "slurm" / "jobs.json").write_text(json.dumps(jobs))
    states = ["COMPLETED", "PENDING", "FAILED", "RUNNING", "CANCELLED by 1000"]
    Path("states").write_text("\n".join(f"12_{place}|{state}|a" for place, state in enumerate(states)))
    assert queued_jobs(fake_slurm) == {"waiting": "12_1", "running": "12_3", "new": "13_0"}


def test_submitted_tasks_run_and_one_that_fails_fails_its_job(folder):
    good, bad = some_tasks("loss.weight=0,0.6")
    jobs = submit_tasks([good, bad], folder, "local", {"timeout_min": 2})
    assert jobs[good.name].result() is None
    assert read_outcome(good.folder)
    error = str(jobs[bad.name].exception())
    assert "loss.weight=0.6,seed=0 ended with exit code 1" in error
    assert "the disk is full" in error


def test_a_task_whose_time_is_up_saves_and_is_queued_again(folder):
    (folder / "stay").touch()
    (task,) = some_tasks("loss.weight=0")
    executor = submitit.LocalExecutor(folder / "slurm")
    executor.update_parameters(timeout_min=2)
    job = executor.submit(SlurmTask(task))
    until_staying(task)
    for process in (process_of(task), int((task.folder / "parent").read_text())):  # SLURM tells every process of a step
        os.kill(process, signal.SIGUSR2)
    assert job.result() is None
    assert (task.folder / "saved").exists()
    assert begun(task) == 2
    assert read_outcome(task.folder)


def test_other_processes_of_a_run_have_a_log_of_their_own_and_leave_failing_to_the_first(monkeypatch):
    (task,) = some_tasks("loss.weight=0.6")
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setenv("SUBMITIT_LOCAL_GLOBALID", "1")
    SlurmTask(task)()
    assert "the disk is full" in task.log.with_name("seed=0.rank1.log").read_text()
    assert not task.log.exists()
