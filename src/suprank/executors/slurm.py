"""Functions on a SLURM cluster, with the call of `suprank.executors.local`: the tasks are one array, through submitit.

    for task, answer in run(train_run, tasks, folder, "partition=gpu time=04:00:00"): ...

The caller waits for the jobs. If it is stopped or dies, they stay in the queue, and the same call waits for them again.
`cluster=local` in the options runs the tasks as processes of this machine, to try it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shlex
import signal
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from suprank.executors.local import Answer, Crashed, ExperimentStopped, Task, catch_signals, start_server, stop_tasks
from suprank.executors.local import run as run_here
from suprank.files.atomic import write_atomically
from suprank.system.child_processes import restore_environment, safe_environment
from suprank.system.custom_code import handed_consents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

SIGNAL_SECONDS = 120  # how long before its time limit a task is asked to save
REQUEUES = 1000  # of a task that reached its time limit; submitit's 3 would end a long training
_OWN_NAMES = {"gpus": "gpus_per_node", "cpus": "cpus_per_task", "tasks": "ntasks_per_node", "name": "job_name"}
_POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


class JobFailed(Crashed):
    """A job ended without an answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(1)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason

    def __reduce__(self) -> tuple[object, ...]:
        return JobFailed, (self.reason,)


class SlurmTask:
    """A task, as submitit runs it on a node: in a process of its own. At the time limit it saves, and is queued again."""

    def __init__(self, function: Callable[..., Any], task: Task, preload: Sequence[str] = ()) -> None:
        self.function, self.task, self.preload, self.consents = function, task, preload, handed_consents()

    def __call__(self) -> Answer:
        from submitit import JobEnvironment

        restore_environment()
        os.environ.update(self.consents)
        task, rank = self.task, JobEnvironment().global_rank
        if rank and task.log is not None:
            task = task._replace(log=task.log.with_suffix(f".rank{rank}.log"))
        # The signal of the time limit is for us, and would end the task's process, which inherits the mask that blocks it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        start_server(self.preload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        ((_, answer),) = run_here(self.function, [task])
        return answer

    def checkpoint(self) -> Any:
        """Let the task save, and queue the job again; submitit calls this in a signal handler."""
        from submitit.helpers import DelayedSubmission

        stop_tasks()
        return DelayedSubmission(SlurmTask(self.function, self.task, self.preload))


def run(
    function: Callable[..., Any],
    tasks: Iterable[Task],
    folder: Path,
    options: str,
    *,
    jobs: int | None = None,
    shape: Mapping[str, int] | None = None,
    preload: Sequence[str] = (),
    on_start: Callable[[Task], object] = lambda task: None,
) -> Iterator[tuple[Task, Answer]]:
    """Submit the tasks as one array, but for those that are in the queue, and yield each with its answer as its job ends.

    Tasks that the caller adds to a deque `tasks` in the meantime are submitted too, as further arrays. `folder` is on a disk
    that all nodes see. `options` are those of sbatch, KEY=VALUE with blanks between them; `shape` has defaults for nodes,
    ntasks_per_node and gpus_per_node, and `jobs` limits how many run at the same time. `preload` is that of `local.run`. A
    signal leaves the jobs in the queue, and raises `ExperimentStopped`.
    """
    import submitit

    cluster, parameters = slurm_parameters(options, jobs=jobs, shape=shape or {})
    saved = _saved_jobs(folder) if cluster == "slurm" else {}
    queue = tasks if isinstance(tasks, deque) else deque(tasks)
    running: dict[str, tuple[Task, Any]] = {}
    for task in [task for task in queue if task.name in saved]:
        job: Any = submitit.SlurmJob(folder / "slurm", saved[task.name])
        if not job.done():
            queue.remove(task)
            running[task.name] = task, job
            on_start(task)
    if running:
        _log.warning("%d tasks are in the queue already; they are waited for.", len(running))
    with catch_signals() as caught:
        while queue or running:
            if queue and not caught:
                new = [queue.popleft() for _ in range(len(queue))]
                submitted = [SlurmTask(function, task, preload) for task in new]
                running |= _submit(submitted, folder, cluster, parameters)
                for task in new:
                    on_start(task)
            for name, (task, job) in list(running.items()):
                if job.done():
                    del running[name]
                    yield task, _answer(job)
            if caught:
                numbers = sorted({str(job.job_id).partition("_")[0] for _, job in running.values()})
                stay = "the jobs stay in the queue. Given again, the command waits for them; `scancel %s` ends them."
                _log.warning(stay, " ".join(numbers))
                raise ExperimentStopped(caught[0])
            time.sleep(_POLL_SECONDS if running else 0)


def _submit(tasks: list[SlurmTask], folder: Path, cluster: str, parameters: Mapping[str, Any]) -> dict[str, tuple[Task, Any]]:
    """Submit the tasks as one array: each with its job, of which the number is also saved in folder/slurm/jobs.json."""
    import submitit

    try:
        python = f"{shlex.quote(sys.executable)} -P"
        how = {"slurm_python": python, "local_python": python, "slurm_max_num_timeout": REQUEUES}
        executor = submitit.AutoExecutor(folder / "slurm", cluster=cluster, **how)
        executor.update_parameters(**parameters)
        with safe_environment(), executor.batch():
            jobs = {one.task.name: (one.task, executor.submit(one)) for one in tasks}
    except (RuntimeError, submitit.core.utils.FailedJobError) as error:
        raise OSError(f"the array was not submitted: {str(error).strip() or 'sbatch failed'}") from error
    numbers = {**_saved_jobs(folder), **{name: job.job_id for name, (_, job) in jobs.items()}}
    write_atomically(folder / "slurm" / "jobs.json", (json.dumps(numbers, indent=1) + "\n").encode())
    return jobs


def _saved_jobs(folder: Path) -> dict[str, str]:
    file = folder / "slurm" / "jobs.json"
    return dict(json.loads(file.read_bytes())) if file.exists() else {}


def _answer(job: Any) -> Answer:
    try:
        answer: Answer = job.result()
    except Exception as error:
        return Answer(error=JobFailed(f"job {job.job_id} ended without an answer: {str(error).strip().splitlines()[-1]}"))
    return answer


def slurm_parameters(
    options: str, *, jobs: int | None = None, shape: Mapping[str, int] | None = None
) -> tuple[str, dict[str, Any]]:
    """The cluster ("slurm" or "local") and submitit's parameters. What has no name of ours goes to sbatch as it is."""
    given: dict[str, str] = {}
    for option in shlex.split(options):
        key, _, value = option.partition("=")
        if not (key and value):
            raise ValueError(f"{option!r} must be KEY=VALUE, as in on='slurm partition=gpu'.")
        given[_OWN_NAMES.get(key.replace("-", "_"), key.replace("-", "_"))] = value
    cluster = given.pop("cluster", "slurm")
    if cluster not in ("slurm", "local"):
        raise ValueError(f"cluster={cluster} must be slurm, or local to try it on this machine.")
    minutes = _minutes(given.pop("time", "60"))
    parameters: dict[str, Any] = {"job_name": "suprank", "signal_delay_s": min(SIGNAL_SECONDS, 30 * minutes), **(shape or {})}
    if jobs is not None:
        parameters["array_parallelism"] = jobs
    known = {*_OWN_NAMES.values(), "nodes"}
    parameters |= {key: int(value) if value.isdigit() else value for key, value in given.items() if key in known}
    if further := {key.replace("_", "-"): value for key, value in given.items() if key not in known}:
        parameters["additional_parameters"] = further
    return cluster, {"timeout_min": minutes, **{f"slurm_{key}": value for key, value in parameters.items()}}


def _minutes(text: str) -> int:
    """SLURM's times in minutes, rounded up: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(f"time={text} must be minutes, H:M:S or D-H:M:S, such as 04:00:00.")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    units = (3600, 60, 1) if days is not None or len(parts) == 3 else (60, 1)
    seconds = 86400 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units, strict=False))
    if seconds < 1:
        raise ValueError(f"time={text} must be longer than 0.")
    return math.ceil(seconds / 60)
