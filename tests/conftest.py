"""Every test runs on one thread, with the shapes of `ranking` and `losses` checked on each call (see tests/shapes.py).

Hypothesis draws the same 50 examples in every run, so that a change is not blamed for what an older test happens to find;
`HYPOTHESIS_PROFILE=default` looks for new ones.

With `--dist loadgroup` a worker is given whole files, so that what a module sets up is set up once. Those with slow tests come
first, and then those with many, so that no worker is left with one at the end.
"""

import functools
import gc
import os
import shutil
from collections import Counter
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
import typer.testing
from hypothesis import settings

from suprank.system import custom_code
from tests import shapes
from tests.browsers import launch_browser
from tests.forked import Forked, Server

MEMORY, ENOUGH = Path("/dev/shm"), 8 * 2**30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # of `tmp_path`: many small files, for a moment

settings.register_profile("repeatable", max_examples=50, derandomize=True, deadline=None)  # a busy machine is no bug
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
torch.set_num_threads(1)  # pytest-xdist runs one worker a core; threads within a worker would fight over them
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported: without a GPU they run in Triton's interpreter
shapes.check("suprank.ranking", "suprank.losses")
typer.testing._get_command = functools.cache(typer.testing._get_command)  # or else 0.07 s for each of a thousand commands


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files as units of work; beside pytest 9.2, xdist 3.8 loses its groups (pytest-xdist issue 1386), and deals out tests."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).split("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Each worker learns where the process is that forks commands. It is prepared while they collect."""
    if not hasattr(os, "fork"):  # Windows
        return
    if not hasattr(node.config, "forked"):
        node.config.forked = Server()
        node.config.add_cleanup(node.config.forked.close)
    node.workerinput["forked"] = node.config.forked.address


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path not in slow, -tests[item.path]))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    gc.freeze()  # what is imported stays, and a `gc.collect()`, of which there are many in `bench`, need not look at it
    gc.set_threshold(50_000)  # of 700 new objects: that took 5% of the time


@pytest.fixture
def forget_consents(monkeypatch, tmp_path_factory):
    """As for a user who has not consented to run any code, from now on and whenever it is called."""

    def forget():
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        monkeypatch.setattr(custom_code, "_consents", set())

    forget()
    return forget


@pytest.fixture(scope="module")
def fork_server():
    """Ends the standard library's fork server after the module: what comes next may want one that has imported more."""
    yield
    forkserver._forkserver._stop()


@pytest.fixture(scope="session")
def browser():
    """Only one can run in a process."""
    with launch_browser() as started:
        yield started


@pytest.fixture(scope="session")
def forked(request, tmp_path_factory):
    """One process for all workers, of which their tests fork commands."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork, which Windows has not")
    workerinput = getattr(request.config, "workerinput", None)
    server = Server() if workerinput is None else None
    process = Forked(server.address if server else workerinput["forked"], tmp_path_factory.mktemp("forked"))
    yield process
    process.close()
    if server:
        server.close()
