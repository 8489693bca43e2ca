"""No command imports what lies in the current folder, which may be anybody's: nor do the processes that it starts."""

import json
import multiprocessing
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import typer.main
from torch.utils.data import DataLoader, Dataset

from suprank.cli.app import app
from suprank.data.workers import ignore_signals, loader_batches
from suprank.system.child_processes import VARIABLE, restore_environment, safe_environment

ROOT = Path(__file__).parents[2]
MISSING = ["data.manifest=missing.parquet", "engine.accelerator=cpu"]

EVERY_COMMAND = """
import json, sys
from typer.testing import CliRunner
from suprank.cli.app import app

for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, (words, result.output)
"""


@pytest.fixture(scope="module")
def traps(tmp_path_factory):
    """A folder with a module of every name that Python knows, which leaves a note when it is run."""
    folder = tmp_path_factory.mktemp("traps")
    for name in {*sys.stdlib_module_names, *packages_distributions(), "suprank"}:
        if name.isidentifier():
            (folder / f"{name}.py").write_text(f"open({str(folder / 'note')!r}, 'a').write('{name} ')\n")
    return folder


@pytest.fixture
def python(traps):
    """Run Python in the folder of traps; returns what it says and which traps it has run. With -P it is like `suprank`."""

    def run(*arguments):
        (traps / "note").unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment.pop(VARIABLE, None)
        done = subprocess.run([sys.executable, *arguments], cwd=traps, env=environment, capture_output=True, text=True)
        return done.stdout + done.stderr, (traps / "note").read_text() if (traps / "note").exists() else ""

    return run


def commands(group, words=()):
    if not hasattr(group, "commands"):
        return [words]
    return [found for name, one in group.commands.items() for found in commands(one, (*words, name))]


def test_every_command_starts_without_the_modules_of_the_current_folder(python):
    every = commands(typer.main.get_command(app))
    assert ("compare",) in every
    said, trapped = python("-P", "-c", EVERY_COMMAND, json.dumps(every))
    assert (said, trapped) == ("", "")


def test_python_itself_puts_the_current_folder_first_for_dash_m(python):
    assert python("-m", "suprank", "--help")[1] != "", "the docs say so, and these traps would not tell anything"


@pytest.mark.slow
def test_the_runs_of_an_experiment_import_nothing_of_the_current_folder(python):
    """A run on two devices is a process, which starts one for each of them."""
    compare = ("compare", "glyphs/nsm", *MISSING, "run.epochs=1", "engine.devices=2", "--out", "c")
    said, trapped = python("-P", "-m", "suprank", *compare)
    assert trapped == ""
    assert "1 of 1 runs failed" in said
    assert "missing.parquet" in said


@pytest.mark.slow
def test_the_processes_that_lightning_starts_import_nothing_of_the_current_folder(python):
    said, trapped = python("-P", "-m", "suprank", "train", "glyphs/nsm", *MISSING, "engine.devices=2", "--out", "two")
    assert trapped == ""
    assert "missing.parquet" in said


# The environment


class Environments(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, item):
        return os.environ.get(VARIABLE), sys.flags.safe_path


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_an_image_worker_starts_safely_and_leaves_the_environment_to_the_users_code(method, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    loader = DataLoader(
        Environments(),
        batch_size=None,
        num_workers=1,
        worker_init_fn=ignore_signals,
        collate_fn=tuple,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    assert list(loader_batches(loader)) == [(None, method != "fork")] * 2
    assert VARIABLE not in os.environ


def test_a_variable_of_the_user_stays(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1")
    with safe_environment():
        assert os.environ[VARIABLE] == "1"
    restore_environment()
    assert os.environ[VARIABLE] == "1"
    monkeypatch.delenv(VARIABLE)
    with safe_environment():
        restore_environment()  # as a process that is started does
        assert VARIABLE not in os.environ
    assert VARIABLE not in os.environ
