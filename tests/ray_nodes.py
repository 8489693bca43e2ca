"""A real Ray cluster of several nodes on this machine, at 127.0.0.1 only, whose nodes can be killed as a power cut does.

As a script, it starts the first node, and another one for each line of stdin; it prints the cluster's address and the process
of each node. All of that is in one session, which is killed at the end of stdin, so that nothing stays behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IS_INSTALLED = importlib.util.find_spec("ray") is not None
_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",  # tasks call functions of tests
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # other work on this machine is no reason to kill tasks
    "RAY_health_check_failure_threshold": "2",
    "RAY_health_check_period_ms": "500",
}
_MEMORY = 80 * 2**20  # of each object store; Ray wants 75 MB


class RayNodes:
    """A head and further nodes, each with one CPU or these resources. `address` is what `--on ray=` wants.

    Whoever connects needs `environment`: else Ray takes the address of the machine for that of the nodes.
    """

    def __init__(self, nodes: int = 2, **resources: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # paths of sockets must be short
        self.environment = {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's variable for a cluster that is at 127.0.0.1 only
            "RAY_TMPDIR": str(self._folder),
        }
        environment = {**os.environ, **_SETTINGS, **self.environment}
        environment.pop("PYTHONSAFEPATH", None)
        command = [sys.executable, __file__, *(f"{name}={count}" for name, count in ({"num_cpus": 1} | resources).items())]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stderr=log, start_new_session=True, **pipes
            )
        self.nodes: list[int] = []
        try:
            self.address = self._line()
            self.nodes.append(int(self._line()))
            for _ in range(nodes - 1):
                self.add()
        except BaseException:
            self.stop()
            raise

    def add(self) -> None:
        """Start one more node."""
        assert self._process.stdin is not None
        self._process.stdin.write("node\n")
        self._process.stdin.flush()
        self.nodes.append(int(self._line()))

    def kill(self, node: int) -> int:
        """SIGKILL the raylet of a node, its workers and all else that it has started; returns how many processes that were."""
        killed = set()
        while left := {pid for pid in _family(self.nodes[node]) if pid not in killed}:
            for pid in sorted(left):  # the raylet first
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= left
        del self.nodes[node]
        return len(killed)

    def workers(self, node: int) -> list[int]:
        """The processes of a node that do tasks, or wait for some."""
        return [pid for pid in _family(self.nodes[node]) if (title := _title(pid)).startswith("ray::") and "Agent" not in title]

    def stop(self) -> None:
        _kill_session(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> RayNodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline().strip()):
            raise RuntimeError(f"a Ray node did not start:\n{(self._folder / 'log').read_text(errors='replace')}")
        return line


def _processes() -> dict[int, tuple[int, int]]:
    """The parent and the session of each living process."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, _, session = file.read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                found[int(file.parent.name)] = int(parent), int(session)
    return found


def _family(pid: int) -> list[int]:
    """A process, if it lives, and what it has started."""
    processes, found = _processes(), [pid]
    for one in found:
        found += [child for child, (parent, _) in processes.items() if parent == one]
    return [one for one in found if one in processes]


def _kill_session(number: int) -> None:
    """Kill all processes of a session; this one last, if it is in it."""
    for _ in range(3):  # a process may just have started another one
        for pid, (_, session) in _processes().items():
            if session == number and pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    if os.getsid(0) == number:
        os.kill(os.getpid(), signal.SIGKILL)


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return ""


def main(resources: dict[str, int]) -> None:
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is not for the caller
    cluster = Cluster()
    settings = {"node_ip_address": "127.0.0.1", "object_store_memory": _MEMORY, **resources}
    head = cluster.add_node(include_dashboard=False, **settings)
    print(cluster.address, file=answers)
    print(head.all_processes["raylet"][0].process.pid, file=answers, flush=True)
    for _ in sys.stdin:
        node = cluster.add_node(**settings)
        print(node.all_processes["raylet"][0].process.pid, file=answers, flush=True)
    _kill_session(os.getpid())


if __name__ == "__main__":
    main({name: int(count) for name, count in (word.split("=") for word in sys.argv[1:])})
