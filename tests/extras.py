"""The command line and Python as they are with some extras of pyproject.toml installed, and nothing else.

Distributions that an extra brings, directly or through others, are importable; all others that are installed here are not.
"""

import json
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


CLI = ("numba", "pyarrow", "rich", "threadpoolctl", "typer")
"""What the command line itself needs, which every extra for users brings."""


def distributions(extra=""):
    """Names of all distributions that `pip install suprank[extra]` installs, without suprank itself; of `CLI` for "cli"."""
    found, waiting = (
        set(),
        [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, CLI if extra == "cli" else ())],
    )
    while waiting:
        one = Requirement(waiting.pop())
        if one.name == "suprank":
            waiting += [line for extra in one.extras for line in PROJECT["optional-dependencies"][extra]]
            continue
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in found:
            continue
        found.add(key)
        waiting += [str(needed) for needed in _requirements(one.name) if _wanted(needed, one.extras)]
    return {name for name, _ in found}


@cache
def _requirements(name):
    try:
        return tuple(Requirement(line) for line in requires(name) or ())
    except PackageNotFoundError:
        return ()


def _wanted(needed, extras):
    return needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))


@cache
def _installed():
    """Top-level module → the distributions here that it belongs to."""
    return {module: {canonicalize_name(one) for one in owners} for module, owners in packages_distributions().items()}


def _blocked_modules(extra):
    """Top-level modules that are installed here and would not be with this extra alone."""
    there = distributions(extra) | {"suprank", "setuptools", "pip"}
    return sorted(
        module for module, owners in _installed().items() if not owners & there and module not in sys.stdlib_module_names
    )


class Case(NamedTuple):
    """What is done with one extra alone, "" for none; a step is the words of a command, or Python code."""

    extra: str
    steps: list
    further: tuple = ()
    """Cases with extras that include this one. They are tried after its steps, in forks of its process: imports are shared."""


FORKING = """
import gc
gc.disable()  # all that is imported stays, and to look through it took a sixth of the time
import io, json, os, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import PathFinder

BLOCKED, THERE = set(), set()

class Unblocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else PathFinder.find_spec(name, path, target)
    @staticmethod
    def find_distributions(*context):
        return (one for one in PathFinder.find_distributions(*context) if one.name.lower().replace("_", "-") in THERE)

sys.meta_path[sys.meta_path.index(PathFinder)] = Unblocked

def outcome(step):
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            if isinstance(step, str):
                exec(step, {})
            else:
                import suprank.cli.main
                sys.argv = ["suprank", *step]
                suprank.cli.main.main()
    except SystemExit as end:
        return end.code or 0, said.getvalue()
    except BaseException:
        return -1, traceback.format_exc()
    return 0, said.getvalue()

def tried(case):
    extra, blocked, there, steps, further = case
    reading, writing = os.pipe()
    if os.fork() == 0:
        BLOCKED.clear(), BLOCKED.update(blocked)
        THERE.update(there)
        found = [(extra, [outcome(step) for step in steps])]
        for one in further:
            found += tried(one)
        with open(writing, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        found = json.load(pipe)
    os.wait()
    return found

print(json.dumps(tried(json.load(sys.stdin))))
"""


def outcomes(case, cwd):
    """(extra, [(exit code, stderr) of each step]) of a case and of all further ones."""
    command = [sys.executable, "-c", FORKING]
    ended = subprocess.run(
        command, input=json.dumps(_described(case)), capture_output=True, text=True, timeout=300, cwd=cwd, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def _described(case):
    steps = [step if isinstance(step, str) else [str(word) for word in step] for step in case.steps]
    further = [_described(one) for one in case.further]
    return case.extra, _blocked_modules(case.extra), sorted(distributions(case.extra)), steps, further
