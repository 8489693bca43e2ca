"""The folder of a sweep, with a run folder for every combination:

sweep.json                  the recipe, the axes and the combinations, so that another grid can be added
loss.weight=0.1,seed=0/     a run folder of `suprank train`; it is finished when result.json is there
logs/                       what each run printed
slurm/                      submitit's files, and jobs.json: which job a run is
table.csv  table.md         a row for each run; a row for each combination, mean ± standard deviation over seeds
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.experiments.sweep.grid import SEED, Combination, Grid
from suprank.experiments.sweep.values import meaning
from suprank.files.atomic import write_atomically
from suprank.system.platforms import file_locks
from suprank.training.run_folder import RESULT, RunFolder, json_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from suprank.training.config import TrainConfig

FILE = "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """What sweep.json holds. `settings` are those that all runs share, by their dotted names; `commands` are for the reader,
    who may want to give one again."""

    recipe: str
    axes: tuple[str, ...]
    settings: dict[str, Any]
    runs: tuple[Combination, ...]
    commands: tuple[str, ...]

    @classmethod
    def of(cls, recipe: str, grid: Grid, config: TrainConfig, command: str) -> Sweep:
        """A sweep of one grid; `config` is that of any of its combinations."""
        axes = tuple(key for key, _ in grid.axes)
        settings = {key: value for key, value in entries_of(config).items() if not any(_overlap(key, axis) for axis in axes)}
        return cls(recipe, axes, settings, tuple(grid.combinations()), (command,))

    def aligned(self, grid: Grid) -> Grid:
        """The grid with the axes of this sweep, in its order, and values spelt as here.

        A single value of one of the axes is a point on that axis. Another set of axes is refused: the table would have holes.
        """
        given = {**{key: (value,) for key, value in grid.fixed if key in self.axes}, **dict(grid.axes)}
        if set(given) != set(self.axes):
            raise ValueError(
                f"the sweep there is over {_listed(self.axes)}, this one over {_listed([key for key, _ in grid.axes])}; "
                "give a value for each of its axes, or another --out."
            )
        spelt = {(key, meaning(run[key])): run[key] for run in reversed(self.runs) for key in self.axes}
        axes = tuple((key, tuple(spelt.get((key, meaning(value)), value) for value in given[key])) for key in self.axes)
        return Grid(tuple((key, value) for key, value in grid.fixed if key not in self.axes), axes)

    def joined(self, other: Sweep) -> Sweep:
        """This sweep with the runs of another one, which may differ in nothing but the values of the axes."""
        # An entry that only one of them knows came with another version of suprank.
        common = [key for key in self.settings if key in other.settings]
        differing = [key for key in common if self.settings[key] != other.settings[key]]
        if differing:
            changes = ", ".join(f"{key} was {self.settings[key]!r} and is {other.settings[key]!r}" for key in differing[:5])
            raise ValueError(
                f"the sweep there has other settings: {changes}. One table cannot hold both; give the settings of "
                f"{self.recipe} as they were, or another --out."
            )
        runs, commands = dict.fromkeys((*self.runs, *other.runs)), dict.fromkeys((*self.commands, *other.commands))
        return replace(self, runs=tuple(runs), commands=tuple(commands))

    @classmethod
    def load(cls, folder: Path) -> Sweep | None:
        """The sweep of a folder, or None where there is none."""
        file = folder / FILE
        try:
            there = json.loads(file.read_bytes())
            runs = tuple(Combination(tuple((key, run[key]) for key in there["axes"])) for run in there["runs"])
            return cls(there["recipe"], tuple(there["axes"]), dict(there["settings"]), runs, tuple(there["commands"]))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is damaged ({error!r}); remove it, or name another --out.") from error

    def save(self, folder: Path) -> None:
        written = {
            "recipe": self.recipe,
            "axes": self.axes,
            "commands": self.commands,
            "runs": [dict(run.values) for run in self.runs],
            "settings": self.settings,
        }
        write_atomically(folder / FILE, json_bytes(written, indent=1))


def entries_of(config: TrainConfig) -> dict[str, Any]:
    """All entries by their dotted names, `table.entry`, as they will be read back from JSON."""
    tables = json.loads(config.model_dump_json())
    return {f"{table}.{entry}": value for table, entries in tables.items() for entry, value in entries.items()}


def _overlap(key: str, axis: str) -> bool:
    """Whether the axis is this entry, or a table that holds it, or a part of it: `loss`, `loss.tau`, `data.tests.fine`."""
    return f"{key}.".startswith(f"{axis}.") or f"{axis}.".startswith(f"{key}.")


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(key for key in keys if key != SEED) or "seeds alone"


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """The folder for this process alone. The lock's file descriptor goes to the runs, so that they hold it too: where the
    sweep was killed and a run of it lives on, another sweep would start that run a second time. Comparisons take it too."""
    with (folder / "sweep.lock").open("a+") as file:
        try:
            if fcntl := file_locks(folder):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise BlockingIOError(
                f"another sweep or comparison, process {file.read().strip() or 'unknown'}, or a run that it started is at work "
                f"in {folder}; wait for it, or stop it."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


class Outcome(NamedTuple):
    """What a finished run found: metrics of the last epoch, a share of 1 each, by test set."""

    epoch: int
    step: int
    seconds: float
    metrics: dict[str, dict[str, float | None]]


Outcomes = dict[Combination, Outcome | None]
"""Of every run of a sweep; None for those that are not finished."""


def outcome(folder: Path) -> Outcome | None:
    """That of the run in a folder; None where it is not finished."""
    found = RunFolder(folder).finished
    if found is None:
        return None
    try:
        metrics = {test: dict(values) for test, values in found["metrics"].items()}
        return Outcome(found["epoch"], found["step"], found["seconds"], metrics)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder / RESULT} is no result of a run ({error!r}); remove it, and the run goes on.") from error


def outcomes(runs: Iterable[Combination], folder: Path) -> Outcomes:
    """Those of the runs in the folder of a sweep."""
    return {run: outcome(folder / run.name) for run in runs}
