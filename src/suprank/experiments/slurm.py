"""Running the runs of an experiment as one SLURM array, through submitit."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

from suprank.files.atomic import write_atomically
from suprank.system.child_processes import restore_environment, safe_environment
from suprank.system.custom_code import handed_consents
from suprank.training.run_folder import json_bytes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from suprank.experiments.old_runner import Task
    from suprank.training.config import TrainConfig

QUEUED = {"PENDING", "RUNNING", "REQUEUED", "CONFIGURING", "COMPLETING", "SUSPENDED", "RESIZING", "UNKNOWN"}
SHORT_NAMES = {"gpus": "gpus_per_node", "cpus": "cpus_per_task", "tasks": "ntasks_per_node", "name": "job_name"}
SIGNAL_SECONDS = 120  # how long before its time limit a task is asked to save
REQUEUES = 1000  # of a task that reached its time limit; submitit's 3 would end a long training


class SlurmTask:
    """The task's command, as submitit runs it on a node. At its time limit the run saves, and the job is queued again."""

    def __init__(self, task: Task) -> None:
        self.task, self.consents = task, handed_consents()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        from submitit import JobEnvironment

        restore_environment()
        os.environ.update(self.consents)
        rank = JobEnvironment().global_rank
        log = self.task.log.with_suffix(f".rank{rank}.log") if rank else self.task.log
        # The signal of the time limit is for us, and would end the command: the command inherits the mask that blocks it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        self._process = self.task.start(log=log)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        failure = self.task.failure(self._process.wait())
        if failure and not rank:
            raise RuntimeError(f"{self.task.name} {failure}:\n{self.task.last_lines}")

    def checkpoint(self) -> Any:
        """Save and queue the job again; submitit calls this in a signal handler, within the wait() above, whose lock a second
        wait() could never take."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.terminate()
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(SlurmTask(self.task))


def slurm_parameters(
    options: Sequence[str], configs: Sequence[TrainConfig], jobs: int | None = None, name: str = "suprank-sweep"
) -> tuple[str, dict[str, Any]]:
    """The cluster ("slurm", or "local" for processes of this machine, to try it) and submitit's parameters, from KEY=VALUE.

    Nodes, tasks and GPUs are those of the runs' `[engine]` unless an option says otherwise. Options that submitit does not know
    are passed on to sbatch, which refuses what it does not know.
    """
    from submitit.slurm.slurm import SlurmExecutor

    given: dict[str, str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not (equals and key and value):
            raise ValueError(f"--slurm {option} must be KEY=VALUE, such as --slurm partition=gpu.")
        key = key.replace("-", "_")
        given[SHORT_NAMES.get(key, key)] = value
    cluster = given.pop("cluster", "slurm")
    if cluster not in ("slurm", "local"):
        raise ValueError(f"--slurm cluster={cluster} must be slurm, or local to try it on this machine.")
    minutes = _minutes(given.pop("time", "60"))
    known = SlurmExecutor._valid_parameters() - {"additional_parameters", "setup", "teardown", "srun_args"}
    parameters: dict[str, Any] = {
        "job_name": name,
        "signal_delay_s": min(SIGNAL_SECONDS, 30 * minutes),
        **_array_shape(configs),
    }
    if jobs is not None:
        parameters["array_parallelism"] = jobs
    parameters |= {key: int(value) if value.isdigit() else value for key, value in given.items() if key in known}
    further = {key.replace("_", "-"): value for key, value in given.items() if key not in known}
    if further:
        parameters["additional_parameters"] = further
    return cluster, {"timeout_min": minutes, **{f"slurm_{key}": value for key, value in parameters.items()}}


def _array_shape(configs: Sequence[TrainConfig]) -> dict[str, int]:
    """Nodes, tasks and GPUs, which all runs of an array share."""
    shapes = {(config.engine.nodes, config.engine.devices, config.engine.accelerator == "cpu") for config in configs}
    if len(shapes) > 1:
        raise ValueError(
            "the runs of a SLURM array must have the same engine.nodes, engine.devices and engine.accelerator; run them one by "
            "one."
        )
    ((nodes, devices, on_cpu),) = shapes
    return {"nodes": nodes, "ntasks_per_node": devices} | ({} if on_cpu else {"gpus_per_node": devices})


def _minutes(text: str) -> int:
    """SLURM's times in minutes, rounded up: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(f"--slurm time={text} must be minutes, H:M:S or D-H:M:S, such as 04:00:00.")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    units = (3600, 60, 1) if days is not None or len(parts) == 3 else (60, 1)
    seconds = 86400 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units, strict=False))
    if seconds < 1:
        raise ValueError(f"--slurm time={text} must be longer than 0.")
    return math.ceil(seconds / 60)


def submit_tasks(waiting: Sequence[Task], folder: Path, cluster: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Submit the tasks as one SLURM array; submitit's jobs by the task's name, also saved in folder/slurm/jobs.json."""
    import submitit

    try:
        python = f"{shlex.quote(sys.executable)} -P"
        how = {"slurm_python": python, "local_python": python, "slurm_max_num_timeout": REQUEUES}
        executor = submitit.AutoExecutor(folder / "slurm", cluster=cluster, **how)
        executor.update_parameters(**parameters)
        with safe_environment(), executor.batch():
            jobs = {task.name: executor.submit(SlurmTask(task)) for task in waiting}
    except (RuntimeError, submitit.core.utils.FailedJobError) as error:
        raise OSError(f"the array was not submitted: {str(error).strip() or 'sbatch failed'}") from error
    saved = {**saved_jobs(folder), **{name: job.job_id for name, job in jobs.items()}}
    write_atomically(folder / "slurm" / "jobs.json", json_bytes(saved, indent=1))
    return jobs


def queued_jobs(folder: Path) -> dict[str, str]:
    """The jobs that are waiting or running in SLURM, by the name of the run. A job that SLURM does not know may be too new."""
    return {name: job for name, job in saved_jobs(folder).items() if _state(folder / "slurm", job) in QUEUED}


def _state(folder: Path, job: str) -> str:
    import submitit

    words: list[str] = str(submitit.SlurmJob(folder=folder, job_id=job).state).split()  # "CANCELLED by 1000"
    return words[0].rstrip("+") if words else "UNKNOWN"


def saved_jobs(folder: Path) -> dict[str, str]:
    file = folder / "slurm" / "jobs.json"
    return dict(json.loads(file.read_bytes())) if file.exists() else {}
