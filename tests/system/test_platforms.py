"""Systems without Linux's calls: every module imports there, and what is missing is done without, or said."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from suprank.bench import timing
from suprank.bench.settings import BenchmarkSettings
from suprank.data import archives, in_memory
from suprank.experiments import runner
from suprank.system import platforms

MISSING = {
    os: ("sched_getaffinity", "sysconf", "killpg", "pread", "O_CLOEXEC", "O_NONBLOCK", "waitid", "fork"),
    signal: ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "pthread_sigmask"),
}
EVERY_MODULE = f"""
import builtins, importlib, os, pkgutil, signal, sys
import suprank

def imported():
    names = [module.name for module in pkgutil.walk_packages(suprank.__path__, "suprank.")]
    names = [name for name in names if not name.endswith((".fused", "kernels", "_triton"))]  # Triton's, beside a GPU only
    for name in names:
        importlib.import_module(name)
    return len(names)

imported()  # and with them other packages, which may need at import what they like
for name in [name for name in sys.modules if name.startswith("suprank.")]:
    del sys.modules[name]
for module, names in ((os, {MISSING[os]}), (signal, {MISSING[signal]})):
    for name in names:
        delattr(module, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
print(imported())
"""


@pytest.fixture
def elsewhere(monkeypatch):
    """This process without fcntl, resource and what else Windows has not."""
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    for module, names in MISSING.items():
        for name in names:
            monkeypatch.delattr(module, name)


@pytest.mark.slow
def test_every_module_is_imported_without_the_calls_of_unix(forked):
    code, output, errors = forked.script(EVERY_MODULE).end(timeout=120)
    assert code == 0, errors
    assert int(output) > 300


def test_the_machine_says_its_cores_and_memory():
    assert 1 <= platforms.usable_cores() <= (os.cpu_count() or 1)
    assert 2**20 < platforms.memory_bytes("SC_AVPHYS_PAGES") <= platforms.memory_bytes() < 2**50


@pytest.mark.usefixtures("elsewhere")
def test_where_the_system_does_not_say_all_cores_count_and_memory_is_unknown(monkeypatch):
    assert platforms.usable_cores() == os.cpu_count()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert runner._environment(0, 2, ()) == {"OMP_NUM_THREADS": str(max(1, os.cpu_count() // 2))}
    assert platforms.memory_bytes() is None
    assert in_memory.free_memory() > 2**20
    monkeypatch.setattr(timing, "_LINUX", False)
    with pytest.raises(OSError, match="measure on Linux or macOS"):
        timing._peak_resident()
    with pytest.raises(ValueError, match="--max-memory"):
        _ = BenchmarkSettings(device=torch.device("cpu")).limit_bytes


@pytest.mark.usefixtures("elsewhere")
def test_a_member_of_an_archive_is_read_at_its_place(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(256)))
    file = archives._open(str(tmp_path / "a"), archives._version((tmp_path / "a").stat()))
    assert file.read(3, 200) + file.read(2, 7) == bytes([200, 201, 202, 7, 8])


def test_runs_are_stopped_without_hangups_and_groups_of_processes(monkeypatch):
    monkeypatch.delattr(os, "killpg")
    monkeypatch.delattr(signal, "SIGHUP")
    with (
        runner._catch_signals() as caught,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
    ):
        runner._kill(process)
        assert process.wait() == -signal.SIGKILL
    assert caught == []
