"""Functions on the machines of a Ray cluster, with the call of `suprank.executors.local`.

    with RayCluster("10.0.0.1:6379") as cluster:
        for task, answer in cluster.run(embed_shard, tasks, gpus=1): ...

A task is done by whichever machine is free, and by another one if its machine or its process dies. So it must not matter who
does it, nor whether it was begun before. If the caller dies, its tasks end. Nothing is copied to the machines but the function
and the tasks: this package is installed there, and they see the caller's folders under the same names. The caller is on one.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from suprank.executors.local import (
    SECONDS_TO_SAVE,
    Answer,
    Crashed,
    ExperimentStopped,
    Task,
    call_pickled,
    catch_signals,
    report,
    report_to,
)
from suprank.system.child_processes import VARIABLE, VARIABLE_VALUE, restore_environment
from suprank.system.custom_code import MODULE_PREFIX, handed_consents

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

_RETRIES = 5  # of a task whose process or machine dies: then it is likely its own fault
_POLL_SECONDS = 0.2  # until a signal is noticed
_LOOK_SECONDS = 5.0  # between two looks at which machines live
_CONNECT_SECONDS = 5.0  # Ray itself would wait for a quarter of an hour

_log = logging.getLogger(__name__)


class WorkerLost(Crashed):
    """Ray gave a task up, because its processes or machines died again and again."""

    def __init__(self, reason: str) -> None:
        super().__init__(-signal.SIGKILL)
        self.reason = reason

    def __str__(self) -> str:
        return f"lost its process or machine {_RETRIES + 1} times, perhaps because memory ran out: {self.reason}"

    def __reduce__(self) -> tuple[object, ...]:
        return WorkerLost, (self.reason,)


class RayCluster:
    """A connection to a Ray cluster while the block runs: at an address, or by default that of this machine or of RAY_ADDRESS.

    A session of Ray that this process has begun itself is used, and left as it is.
    """

    def __init__(self, address: str = "") -> None:
        self._given = address
        self.address = ""
        self._is_own = False

    def __enter__(self) -> Self:
        try:
            import ray
        except ModuleNotFoundError as error:
            message = 'on="ray" needs ray, which is not installed; pip install "suprank[ray]"'
            raise ModuleNotFoundError(message, name=error.name) from error
        if ray.is_initialized():
            self.address = ray.get_runtime_context().gcs_address
            if self._given not in ("", self.address):
                raise ValueError(
                    f"this process is connected to the Ray cluster at {self.address}, not {self._given}; leave that out."
                )
            return self
        self.address = self._given or _current_address()
        _check_address(self.address)
        handler = signal.getsignal(signal.SIGTERM)
        with tempfile.TemporaryDirectory() as empty:
            try:
                # With a folder of their own, workers import nothing from the caller's, which may be anybody's photos. Ray tells
                # folders by their content, and deletes one at the end of a job, even if another job has the same.
                Path(empty, "job").write_text(secrets.token_hex())
                ray.init(self.address, runtime_env={"working_dir": empty}, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                reason = " ".join(str(error).split())
                raise ConnectionError(
                    f"the Ray cluster at {self.address} cannot be used from here: {reason} Give the command on one of its "
                    f"machines, with the same versions of Python and Ray."
                ) from error
        self._is_own = True
        if callable(handler) or isinstance(handler, int):
            signal.signal(signal.SIGTERM, handler)  # Ray has set its own
        ray._private.worker._worker_logs_enabled = False  # it would print pages on stdout about a node that is lost
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        if self._is_own:
            ray.shutdown()
            ray._private.worker._worker_logs_enabled = True
            self._is_own = False

    def machines(self, *, gpus: float = 0) -> list[dict[str, float]]:
        """The CPUs and GPUs of each living machine that has so many GPUs."""
        import ray

        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        counts = [{name: resources.get(name, 0.0) for name in ("CPU", "GPU")} for resources in alive]
        return [one for one in counts if one["GPU"] >= gpus]

    def cpus_per_gpu(self) -> int:
        """How many CPUs each machine has for each of its GPUs, at most 16."""
        return max(1, min([16, *(int(one["CPU"] // one["GPU"]) for one in self.machines(gpus=1))]))

    def run(
        self,
        function: Callable[..., Any],
        tasks: Iterable[Task],
        *,
        jobs: int | None = None,
        cpus: float = 1,
        gpus: float = 0,
        on_start: Callable[[Task], object] | None = None,
        on_report: Callable[[Task, Any], object] | None = None,
    ) -> Generator[tuple[Task, Answer]]:
        """Call the function for each task, and yield each with its answer as it ends.

        A task takes so many CPUs and GPUs of a machine; `jobs` limits how many there are at the same time. Tasks that the
        caller adds to a deque `tasks` in the meantime are done too. The function is sent once to each process; it may be an
        object with a model in it. `on_start` is called with a task when it begins on a machine, perhaps again on another one,
        and `on_report` with what it passes to `report`.

        On SIGINT, SIGTERM or SIGHUP tasks get SIGINT and are waited for; a second signal kills them. Then `ExperimentStopped`
        is raised. No task goes on, also if the caller fails, or goes on without the remaining answers.
        """
        import ray

        self._check_resources(cpus, gpus)
        queue = tasks if isinstance(tasks, deque) else deque(tasks)
        with _by_value():
            shared = [ray.put(function)]
        remote = ray.remote(_in_worker()).options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_retries=_RETRIES,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {VARIABLE: VARIABLE_VALUE, **handed_consents()}},
        )
        machines = _Machines(self, cpus, gpus)
        mailbox = None if on_start is None and on_report is None else _Mailbox()
        running: dict[Any, Task] = {}
        with catch_signals() as caught:
            try:
                while queue or running:
                    while queue and not caught and len(running) < (jobs or machines.places()):
                        task = queue.popleft()
                        try:
                            content = pickle.dumps(task)
                        except Exception as error:
                            yield task, Answer(error=error)
                            continue
                        reports = mailbox and (mailbox.actor, task.name)
                        running[remote.remote(shared, content, str(Path.cwd()), reports)] = task
                    if caught:
                        raise ExperimentStopped(caught[0])
                    ready, _ = ray.wait(list(running), timeout=_POLL_SECONDS) if running else ([], [])
                    if mailbox is not None:
                        mailbox.deliver(running.values(), on_start, on_report)
                    for reference in ready:
                        yield running.pop(reference), _answer(reference)
            finally:
                _cancel(running, caught)
                if mailbox is not None:
                    ray.kill(mailbox.actor)

    def _check_resources(self, cpus: float, gpus: float) -> None:
        machines = self.machines()
        for name, share, way_out in (("GPU", gpus, "device='cpu'"), ("CPU", cpus, "fewer workers")):
            if share and not any(one[name] >= share for one in machines):
                most = max((one[name] for one in machines), default=0)
                raise ValueError(
                    f"a task takes {share:g} {name}, and the most that a machine of the Ray cluster at {self.address} has is "
                    f"{most:g}; use {way_out}, or start Ray on a machine that has more."
                )


class _Machines:
    """Which machines of a cluster live, looked up now and then; says when one was lost."""

    def __init__(self, cluster: RayCluster, cpus: float, gpus: float) -> None:
        self._cluster, self._cpus, self._gpus = cluster, cpus, gpus
        self._found: Sequence[dict[str, float]] = ()
        self._looked = -_LOOK_SECONDS

    def places(self) -> int:
        """How many tasks to hand out: those that all machines do at the same time, and as many to follow."""
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            found = self._cluster.machines()
            if len(found) < len(self._found):
                _log.warning(
                    "%d of %d machines of the Ray cluster are lost; their tasks are done by others%s.",
                    len(self._found) - len(found),
                    len(self._found),
                    "" if self._count(found) else ", once there are any",
                )
            self._found, self._looked = found, time.monotonic()
        return 2 * self._count(self._found) or 1

    def _count(self, machines: Sequence[dict[str, float]]) -> int:
        shares = (("CPU", self._cpus), ("GPU", self._gpus))
        return sum(min((int(one[name] // share) for name, share in shares if share), default=1) for one in machines)


class _Mailbox:
    """What tasks report, on its way: an actor on the caller's machine, which is asked now and then."""

    def __init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.actor = _letters().options(num_cpus=0, scheduling_strategy=here).remote()
        self._asked = self.actor.take.remote()

    def deliver(
        self,
        tasks: Iterable[Task],
        on_start: Callable[[Task], object] | None,
        on_report: Callable[[Task, Any], object] | None,
    ) -> None:
        import ray

        if not ray.wait([self._asked], timeout=0)[0]:
            return
        named = {task.name: task for task in tasks}
        for name, values in ray.get(self._asked):
            if (task := named.get(name)) is None:
                continue
            if values is None and on_start is not None:
                on_start(task)
            elif values is not None and on_report is not None:
                on_report(task, values)
        self._asked = self.actor.take.remote()


def _letters() -> Any:
    """The class of the actor. It keeps the last report of each task, and that it has begun."""
    import ray

    class Letters:
        def __init__(self) -> None:
            self.begun: list[tuple[str, None]] = []
            self.last: dict[str, Any] = {}

        def put(self, name: str, values: Any) -> None:
            if values is None:
                self.begun.append((name, None))
            else:
                self.last[name] = values

        def take(self) -> list[tuple[str, Any]]:
            taken = [*self.begun, *self.last.items()]
            self.begun, self.last = [], {}
            return taken

    return ray.remote(Letters)


def _current_address() -> str:
    """What RAY_ADDRESS says, or the cluster of this machine, as `ray start` notes it."""
    if given := os.environ.get("RAY_ADDRESS", "").removeprefix("auto"):
        return given
    note = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")
    try:
        return note.read_text().strip()
    except OSError:
        raise ConnectionError(
            "there is no Ray cluster on this machine; start one with `ray start --head`, or name it: on='ray=HOST:PORT'."
        ) from None


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "//" in host:
        raise ValueError(f"on='ray={address}' must be ray=HOST:PORT, as `ray start` prints it, such as ray=10.0.0.1:6379.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`, or give another address."
        ) from None


class _by_value:  # noqa: N801 - a context manager
    """Within it, code that users name by its file is pickled with its objects: other machines may not have that file."""

    def __enter__(self) -> None:
        from ray import cloudpickle

        self._modules = [module for name, module in list(sys.modules.items()) if name.startswith(MODULE_PREFIX)]
        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)

    def __exit__(self, *_: object) -> None:
        from ray import cloudpickle

        for module in self._modules:
            cloudpickle.unregister_pickle_by_value(module)


def _answer(reference: Any) -> Answer:
    import ray

    try:
        return ray.get(reference).answer()
    except ray.exceptions.RayTaskError as error:  # it was not begun: this package is not installed there, or another version is
        return Answer(error=error.cause if isinstance(error.cause, Exception) else error)
    except ray.exceptions.RayError as error:
        return Answer(error=WorkerLost(str(error).strip().partition("\n")[0]))


def _cancel(running: dict[Any, Task], caught: Sequence[int]) -> None:
    """Let tasks save and end; kill them if a further signal comes, or if it takes too long."""
    import ray

    left, enough, end = list(running), len(caught) + 1, time.monotonic() + SECONDS_TO_SAVE
    for reference in left:
        ray.cancel(reference)
    while left:
        _, left = ray.wait(left, num_returns=len(left), timeout=_POLL_SECONDS)
        if left and (len(caught) >= enough or time.monotonic() > end):
            for reference in left:
                ray.cancel(reference, force=True)
            return


# In the workers

_functions: dict[str, Callable[..., Any]] = {}


def _in_worker() -> Callable[..., Any]:
    """The function that Ray calls. It is pickled by value, because it is defined here, and imports this package itself."""

    def call(shared: list[Any], content: bytes, folder: str, reports: Any) -> Any:
        import os
        import sys

        # In a session that the user has begun, Ray has put the caller's folder first.
        sys.path.sort(key=lambda place: os.path.abspath(place) == folder)  # noqa: PTH100
        from suprank.executors.ray_cluster import do

        return do(shared, content, folder, reports)

    return call


class _Reports:
    """Where `report` sends what it is given."""

    def __init__(self, mailbox: Any, name: str) -> None:
        self._mailbox, self._name = mailbox, name

    def send(self, values: Any) -> None:
        self._mailbox.put.remote(self._name, values)


def do(shared: list[Any], content: bytes, folder: str, reports: tuple[Any, str] | None) -> Any:
    """Do a task in the caller's folder, with the function that is shared, which is fetched once."""
    import ray

    restore_environment()
    report_to(None if reports is None else _Reports(*reports))
    if reports is not None:
        report(None)  # it has begun
    with suppress(OSError):  # this machine does not see it
        os.chdir(folder)
    key = shared[0].hex()
    if key not in _functions:
        _functions.clear()
        _functions[key] = ray.get(shared[0])
    return call_pickled(_functions[key], content)
