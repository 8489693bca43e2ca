"""Reproducing tables and figures: what they need is prepared and trained, and they are written into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.experiments.display import Display, ProgressDisplay
from suprank.experiments.experiment import Executor
from suprank.paper.contents import Item, LabelItem, ModelItem, Row, StudyItem, TableItem, contents, find_item
from suprank.paper.datasets import Found, MissingDataError, find, find_all, prepare
from suprank.paper.output import Output, Reproduced
from suprank.paper.plan import PaperPlan
from suprank.paper.runs import PaperRuns, Results, Training, read_comparisons
from suprank.paper.small import SMALL_SETS, SmallSet, prepare_small, small_sets, small_training

if TYPE_CHECKING:
    from os import PathLike

    from suprank.paper.studies import Study

GROUPS = {"all": "", "tables": "tab:", "figures": "fig:"}
"""Words for several labels, and how these begin."""


def reproduce(
    labels: str | Sequence[str],
    out: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    small: bool = False,
    seeds: int = 1,
    jobs: int | None = None,
    on: str = "local",
    overrides: Sequence[str] = (),
    methods: Sequence[str] = (),
    datasets: Sequence[str] = (),
    collect: bool = False,
    results: str | PathLike[str] | None = None,
    display: Display | None = None,
    command: str = "",
) -> Reproduced:
    """Reproduce tables and figures of the paper by their labels, as `suprank paper` does, and write them into `out`.

        reproduce("tab:main_sop_inat", "runs/paper", data="datasets", seeds=3)
        reproduce("fig:smooth_rank", "figures")
        reproduce("tab:ablation_study", "runs/small", small=True)     # on drawn images, without any dataset

    Datasets are found in `data`, or imported from there. Runs that `out` has already are not run again, interrupted ones are
    resumed, and tables and figures share their runs. With `small` the small sets take the place of the paper's datasets.
    `methods` and `datasets` restrict a table to some rows and columns, and `collect` writes what is there without training.
    `results` is a folder of CSV files of `suprank compare`, PRESET.csv each, whose numbers are laid out in place of runs.
    """
    paper = Reproduction(
        labels=(labels,) if isinstance(labels, str) else tuple(labels),
        out=Path(out),
        data=None if data is None else Path(data),
        small=small,
        seeds=seeds,
        overrides=tuple(overrides),
        methods=tuple(methods),
        datasets=tuple(datasets),
        results=None if results is None else Path(results),
        command=command,
    )
    return paper.run(executor=Executor(on, jobs), collect=collect, display=display or ProgressDisplay())


@dataclass(frozen=True)
class Reproduction:
    """What is asked for: labels, a folder, and restrictions. The arguments are those of `reproduce`."""

    labels: tuple[str, ...]
    out: Path
    data: Path | None = None
    small: bool = False
    seeds: int = 1
    overrides: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    results: Path | None = None
    """Folder with CSV files of `suprank compare`, whose results are taken in place of runs in `out`."""

    command: str = ""
    prepared: dict[str, Sequence[str]] = field(default_factory=dict)
    """The overrides that say where the images of a preset are, known after `prepare`."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds={self.seeds} must be at least 1.")
        if self.data is not None and not self.data.is_dir():
            raise NotADirectoryError(
                f"data={str(self.data)!r} {'is a file' if self.data.exists() else 'does not exist'}; name a folder."
            )
        if self.out.exists() and not self.out.is_dir():
            raise NotADirectoryError(f"out={str(self.out)!r} is a file; name a folder.")
        if self.results is not None:
            self._check_results()
        for name in self.datasets:
            if not self.presets:
                raise ValueError(f"{self._named} needs no dataset; leave out datasets={name!r}.")
            if name not in self.presets:
                raise ValueError(
                    f"datasets={name!r} is none of the datasets of {self._named}; choose from {_list(self.presets)}."
                )
        known = {method for item in self.items for method in _methods(item)}
        for method in self.methods:
            if not known:
                raise ValueError(f"methods chooses rows of tables of results, and {self._named} has none; leave it out.")
            if method not in known:
                raise ValueError(f"methods={method!r} is in none of {self._named}; choose from {_list(sorted(known))}.")

    def _check_results(self) -> None:
        """Refuse saved results that cannot be laid out, and options that would do nothing."""
        if not self.items:
            raise ValueError(f"results is for tables, and {self._named} has none.")
        for item in self.items:
            if not isinstance(item, TableItem):
                what = "a figure" if item.label.startswith("fig:") else "computed"
                raise ValueError(f"results is for tables, and {item.label} is {what}; leave it out.")
        if self.overrides:
            raise ValueError(f"results runs nothing, so {' '.join(self.overrides)} would change nothing; leave it out.")
        measured = list(dict.fromkeys(training.preset for training in self.saved_results))
        if not set(measured) & set(self.presets):
            wanted = _list([one.preset for one in SMALL_SETS] if self.small else self.presets)
            way_out = "" if self.small else " small=True lays out the results of small sets."
            raise ValueError(
                f"{self.results} has results of {_list(measured)}, and {self._named} wants those of {wanted}.{way_out}"
            )

    @cached_property
    def items(self) -> list[Item]:
        """The tables and figures of the labels, with the parts of a figure in its place."""
        found: dict[str, Item] = {}
        for label in self.labels:
            if label in GROUPS:
                kinds = Item if self.results is None else TableItem
                some = [one for one in contents().values() if one.label.startswith(GROUPS[label]) and isinstance(one, kinds)]
            else:
                some = [find_item(label)]
            for item in some:
                expand = item.parts if item.kind != "drawing" else ()
                found |= {one.label: one for one in ([contents()[part] for part in expand] or [item])}
        return list(found.values())

    @cached_property
    def small_sets(self) -> dict[str, SmallSet]:
        """The small sets by preset: those that there are results of, or that can be drawn, or that `data` has packs of."""
        if self.results is None:
            return small_sets(self.data)
        measured = {training.preset for training in self.saved_results}
        return {one.preset: one for one in SMALL_SETS if one.preset in measured}

    @cached_property
    def saved_results(self) -> Results:
        """The results of `results`."""
        return read_comparisons(self.results) if self.results else {}

    @cached_property
    def presets(self) -> list[str]:
        """The presets that the tables and figures can be about, without the restriction to some."""
        return list(dict.fromkeys(preset for item in self.items for preset in self._item_presets(item)))

    def _item_presets(self, item: Item) -> list[str]:
        """The presets of an item: the paper's, or the small sets that stand in for them."""
        if isinstance(item, TableItem):
            return list(self.small_sets) if self.small else [columns.preset for columns in item.columns]
        if isinstance(item, StudyItem | ModelItem):
            preset = item.recipe.partition("/")[0]
            return [self._stand_in(preset)] if self.small else [preset]
        if isinstance(item, LabelItem):
            return [self._stand_in(item.preset)] if self.small else [item.preset]
        return []

    def chosen_presets(self, item: Item) -> list[str]:
        """The presets of an item that `datasets` leaves, all if it is not given."""
        return [preset for preset in self._item_presets(item) if not self.datasets or preset in self.datasets]

    @property
    def needed_presets(self) -> list[str]:
        """The presets whose images the tables and figures need, each once."""
        return list(dict.fromkeys(preset for item in self.items for preset in self.chosen_presets(item)))

    def is_left_out(self, item: Item) -> bool:
        """Whether `datasets` leaves no dataset for an item that needs one."""
        return bool(self._item_presets(item)) and not self.chosen_presets(item)

    def _stand_in(self, preset: str) -> str:
        """The small set that stands in for one of the paper's datasets: one of those that `datasets` leaves."""
        left = [one for one in self.small_sets.values() if not self.datasets or one.preset in self.datasets]
        matching = [one for one in left if one.stands_for == preset]
        return next(iter([*matching, *left, *self.small_sets.values()])).preset

    # What is trained

    def training(self, preset: str, row: Row) -> Training | None:
        """What is trained for a row of a table on a preset; None if nothing is."""
        if self.small:
            method = row.methods.get(self.small_sets[preset].stands_for) or next(iter(row.methods.values()), None)
        else:
            method = row.methods.get(preset)
        if method is None or (self.methods and method not in self.methods):
            return None
        return self._train(preset, method)

    def _train(self, preset: str, method: str) -> Training:
        if not self.small:
            return Training(preset, method)
        return Training(preset, *small_training(method))

    def studies(self, item: StudyItem) -> list[Study]:
        """The study on each chosen preset."""
        from suprank.paper.studies import Study

        return [Study.create(item, preset if self.small else "") for preset in self.chosen_presets(item)]

    def trainings(self, item: Item) -> list[Training]:
        """Everything that an item needs to be trained."""
        presets = self.chosen_presets(item)
        if isinstance(item, TableItem):
            wanted = [self.training(preset, row) for preset in presets for row in item.rows]
        elif isinstance(item, StudyItem):
            wanted = [one for study in self.studies(item) for one in study.trainings]
        elif isinstance(item, ModelItem):
            methods = [recipe.partition("/")[2] for recipe in (item.base, item.recipe) if recipe]
            wanted = [self._train(preset, method) for preset in presets for method in methods]
        else:
            wanted = []
        return list(dict.fromkeys(one for one in wanted if one is not None))

    def _exceptions(self, item: Item) -> Sequence[str]:
        """Keys in which the trainings of an item differ on purpose."""
        if isinstance(item, StudyItem):
            return (item.key, "batch.batches") if item.epoch_images else (item.key,)
        return item.may_differ if isinstance(item, TableItem) else ()

    @property
    def runs(self) -> PaperRuns:
        """All runs; their configs are complete after `prepare`."""
        trainings = dict.fromkeys(one for item in self.items for one in self.trainings(item))
        return PaperRuns(self.out.absolute(), tuple(trainings), self.seeds, self.prepared, self.overrides, self.command)

    # Datasets

    def find_datasets(self) -> dict[str, Found]:
        """Where the datasets are, or what is missing, without changing anything; nothing for small sets."""
        if self.small:
            return {}
        return {preset: find(preset, self.data, self.out) for preset in self.needed_presets}

    def refuse_missing_datasets(self) -> None:
        """All datasets that are missing are named in one error."""
        try:
            find_all(() if self.small else self.needed_presets, self.data, self.out)
        except MissingDataError as error:
            raise MissingDataError(f"{error}\nsmall=True needs no dataset, and datasets chooses some of them.") from None

    def prepare(self, display: Display) -> None:
        """Import the datasets that have no manifest yet."""
        for preset in self.needed_presets:
            if self.small:
                self.prepared[preset] = prepare_small(self.small_sets[preset], self.data, self.out)
            else:
                self.prepared[preset] = prepare(preset, self.data, self.out, note=display.note).overrides

    def plan(self) -> PaperPlan:
        """The runs of each table and figure, which of them are finished, and which datasets are missing; nothing is changed."""
        runs = self.runs
        _ = runs.configs  # a wrong KEY=VALUE is refused
        states = {one: [runs.state(one, seed) for seed in range(self.seeds)] for one in runs.trainings}
        return PaperPlan({item.label: self.trainings(item) for item in self.items}, states, self.find_datasets())

    # Doing it

    def run(self, *, executor: Executor, collect: bool, display: Display) -> Reproduced:
        """Train what is missing, unless only what is there is collected, and write the tables and figures."""
        for item in self.items:
            if item.why_not and len(self.items) == 1:
                raise ValueError(item.why_not)
        if self.results is not None:
            self.runs.open_folder(may_be_shared=True)
            return Output(self, self.saved_results).write()
        failed: list[str] = []
        runs = self.runs
        needs_data = bool(self.needed_presets)
        if needs_data:
            self.refuse_missing_datasets()
            _ = runs.configs  # a wrong KEY=VALUE is refused before datasets are imported
        runs.open_folder(may_be_shared=not needs_data)
        if needs_data:
            self.prepare(display)
            runs = self.runs
        notes = {item.label: runs.check(self.trainings(item), self._exceptions(item)) for item in self.items}
        if runs.trainings:
            plan = runs.plan()
            if not collect:
                with plan.open():
                    failed = plan.train(plan.runs, display, executor=executor)
        written = Output(self, runs.results(), notes).write()
        return replace(written, planned=len(runs.trainings) * self.seeds, failed=tuple(failed))

    @property
    def _named(self) -> str:
        return _list(self.labels)


def _methods(item: Item) -> set[str]:
    return {method for row in item.rows for method in row.methods.values()} if isinstance(item, TableItem) else set()


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
