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

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

BLOCK = """
import sys
from importlib.machinery import PathFinder
class Unblocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else PathFinder.find_spec(name, path, target)
    @staticmethod
    def find_distributions(*context):
        return (one for one in PathFinder.find_distributions(*context) if one.name.lower().replace("_", "-") in THERE)
sys.meta_path[sys.meta_path.index(PathFinder)] = Unblocked
"""


def distributions(extras):
    """Names of all distributions that `pip install suprank[extras]` installs, without suprank itself."""
    found, waiting = set(), [*PROJECT["dependencies"]]
    for extra in extras:
        waiting += PROJECT["optional-dependencies"][extra]
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


def blocked_modules(extras):
    """Top-level modules that are installed here and would not be with these extras alone."""
    there = distributions(extras)
    by_module = {module: {canonicalize_name(one) for one in owners} for module, owners in packages_distributions().items()}
    return sorted(
        module
        for module, owners in by_module.items()
        if not owners & (there | {"suprank", "setuptools", "pip"}) and module not in sys.stdlib_module_names
    )


def _blocked(extras):
    return f"BLOCKED, THERE = set({blocked_modules(extras)!r}), {distributions(extras)!r}\n"


def python(extras, script, *arguments, cwd=None):
    """Run a script with these extras alone."""
    command = [sys.executable, "-c", _blocked(extras) + BLOCK + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


FORK = """
import gc
gc.disable()  # all that is imported stays, and to look through it took a sixth of the time
import io, json, os, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
import torch, typer, pyarrow  # which every set of extras has: imported once
import suprank.cli.main

def outcome(step):
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            if isinstance(step, str):
                exec(step, {})
            else:
                sys.argv = ["suprank", *step]
                suprank.cli.main.main()
    except SystemExit as end:
        return end.code or 0, said.getvalue()
    except BaseException:
        return -1, traceback.format_exc()
    return 0, said.getvalue()

torch.set_num_threads(1)
found = []
for blocked, there, steps in json.load(sys.stdin):
    reading, writing = os.pipe()
    if os.fork() == 0:
        BLOCKED.clear(), BLOCKED.update(blocked)
        THERE.update(there)
        with open(writing, "w") as pipe:
            json.dump([outcome(step) for step in steps], pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        found.append(json.load(pipe))
    os.wait()
print(json.dumps(found))
"""


def outcomes(cases, cwd):
    """(exit code, stderr) of each step of each (extras, steps) case; a step is the words of a command, or Python code.

    Each case runs in a fork of one process, in which nothing but its extras can be imported; all include `cli`.
    """
    described = [
        (blocked_modules(extras.split(",")), sorted(distributions(extras.split(","))), _as_text(steps))
        for extras, steps in cases
    ]
    command = [sys.executable, "-c", _blocked(["cli"]) + BLOCK + FORK]
    ended = subprocess.run(
        command, input=json.dumps(described), capture_output=True, text=True, timeout=300, cwd=cwd, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return [[tuple(one) for one in steps] for steps in json.loads(ended.stdout.splitlines()[-1])]


def _as_text(steps):
    return [step if isinstance(step, str) else [str(word) for word in step] for step in steps]
