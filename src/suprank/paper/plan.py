"""What a table or figure takes, before anything is done: runs, hours of a GPU, disk space, and datasets that are missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from suprank.paper.costs import Cost, estimate, finished_runs
from suprank.paper.datasets import DATASETS

if TYPE_CHECKING:
    from suprank.paper.datasets import Found
    from suprank.paper.reproduction import Reproduction


class DatasetPlan(NamedTuple):
    """The runs on one dataset. Hours and disk are those of runs that are not finished; None where they are not known."""

    preset: str
    runs: int
    finished: int
    interrupted: int
    steps: int | None
    gpu_hours: float | None
    disk_bytes: int | None
    data: str


@dataclass(frozen=True)
class PaperPlan:
    """The plan of some tables and figures, dataset by dataset, where the hours come from, and sentences on the datasets that
    were found and on those that are missing."""

    datasets: tuple[DatasetPlan, ...]
    sources: tuple[str, ...]
    found: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def unfinished(self) -> int:
        return sum(one.runs - one.finished for one in self.datasets)

    @property
    def gpu_hours(self) -> float | None:
        """Hours of all runs that are not finished; None if those of some are not known."""
        hours = [one.gpu_hours for one in self.datasets]
        return None if None in hours else sum(hour for hour in hours if hour is not None)

    def text_cells(self) -> list[list[str]]:
        """A table as text, the head first: a row for each dataset, and their sum."""
        head = ["dataset", "runs", "finished", "interrupted", "steps to do", "GPU hours", "disk", "data"]
        rows = [
            [
                one.preset,
                str(one.runs),
                str(one.finished),
                str(one.interrupted),
                "?" if one.steps is None else f"{one.steps:,}",
                "?" if one.gpu_hours is None else f"{one.gpu_hours:,.1f}",
                "?" if one.disk_bytes is None else f"{one.disk_bytes / 2**30:,.1f} GiB",
                one.data,
            ]
            for one in self.datasets
        ]
        used = [place for place in range(len(head)) if any(row[place] != "?" for row in rows)]
        return [[line[place] for place in used] for line in (head, *rows)]

    def sentences(self) -> list[str]:
        """The sum, where the hours come from, and what to do about missing datasets."""
        if not self.datasets:
            return ["Nothing has to be trained, and no dataset is needed."]
        if not self.unfinished:
            done = "All runs are finished." if any(one.runs for one in self.datasets) else "Nothing has to be trained."
            return [done, *self.found, *self.missing]
        hours = "" if self.gpu_hours is None else f", {self.gpu_hours:,.1f} hours of one GPU"
        disk = [one.disk_bytes for one in self.datasets if one.disk_bytes is not None]
        space = f", {sum(disk) / 2**30:,.1f} GiB of disk" if disk else ""
        total = f"{self.unfinished} run{'s' * (self.unfinished != 1)} to do{hours}{space}."
        if any(one.interrupted for one in self.datasets):
            total += " Interrupted runs are counted in full, and are resumed."
        return [total, *self.sources, *self.found, *self.missing]


def make_plan(reproduction: Reproduction) -> PaperPlan:
    """The plan of what is asked for; nothing is written, imported or drawn."""
    found = reproduction.find_datasets()
    runs = reproduction.runs
    finished = finished_runs(runs.folder) if runs.folder.is_dir() else []
    datasets, sources = [], dict[str, None]()
    for preset in reproduction.needed_presets:
        states = {
            (training, seed): runs.state(training, seed)
            for training in runs.trainings
            for seed in range(runs.seeds)
            if training.preset == preset
        }
        costs: list[Cost] | None = None if reproduction.small else []
        for (training, _), state in states.items():
            if costs is not None and state != "finished":
                try:
                    cost = estimate(runs.configs[training], DATASETS[preset].size, _manifest(found[preset]), finished)
                except ValueError as error:
                    raise ValueError(f"{training.recipe}: {error}") from error
                costs.append(cost)
                sources[f"Hours: {cost.source}."] = None
        counted = {name: sum(state == name for state in states.values()) for name in ("finished", "interrupted")}
        data = "small set" if reproduction.small else _state(found[preset])
        datasets.append(_sum(preset, len(states), counted, costs, data))
    sentences = tuple(f"{preset}: {one.description}." for preset, one in found.items() if not one.is_missing)
    missing = tuple(one.description for one in found.values() if one.is_missing)
    return PaperPlan(tuple(datasets), tuple(sources), sentences, missing)


def _state(found: Found) -> str:
    return "missing" if found.is_missing else "manifest" if found.manifests else "to import"


def _sum(preset: str, runs: int, counted: dict[str, int], costs: list[Cost] | None, data: str) -> DatasetPlan:
    if costs is None:  # small sets, whose runs are not estimated
        return DatasetPlan(preset, runs, counted["finished"], counted["interrupted"], None, None, None, data)
    hours = [cost.gpu_hours for cost in costs]
    known = None if None in hours else sum(hour for hour in hours if hour is not None)
    steps, disk = sum(cost.steps for cost in costs), sum(cost.disk_bytes for cost in costs)
    return DatasetPlan(preset, runs, counted["finished"], counted["interrupted"], steps, known, disk, data)


def _manifest(found: Found) -> str | None:
    file = found.manifests.get("data.manifest")
    return None if file is None else str(file)
