"""Figures of a metric over the values of one key, such as ROADMAP against λ, with the paper's curve beside ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from suprank.experiments.plots import SOURCE, draw_sweep, save_panels
from suprank.experiments.tables import Row, Statistic, Table
from suprank.files.spreadsheets import csv_text
from suprank.paper.runs import Results, Training, share_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from suprank.paper.contents import StudyItem

LARGEST_SMALL_BATCH = 256  # of the small sets, which have few classes


@dataclass(frozen=True)
class Point:
    """A value of the key, what is trained for it, and the recipe that it is compared with, if there is one."""

    value: str
    training: Training
    base: Training | None


@dataclass(frozen=True)
class Study:
    """A figure on one preset: its points, in the paper's order."""

    item: StudyItem
    preset: str
    points: tuple[Point, ...]
    small: bool

    @classmethod
    def create(cls, item: StudyItem, preset: str = "") -> Study:
        """The study on the paper's dataset, or on a small preset.

        A value that the recipe has anyway changes nothing, so that the run is the one that the tables have too.
        """
        own_preset, _, method = item.recipe.partition("/")
        base_method = item.base.partition("/")[2]
        at = preset or own_preset
        points = []
        for value in item.curve:
            if preset and item.key == "batch.size" and float(value) > LARGEST_SMALL_BATCH:
                continue
            base = _training(at, base_method, item, value) if base_method else None
            points.append(Point(value, _training(at, method, item, value), base))
        return cls(item, at, tuple(points), small=bool(preset))

    @property
    def trainings(self) -> list[Training]:
        return [one for point in self.points for one in (point.training, point.base) if one is not None]

    def value(self, point: Point, results: Results) -> Statistic | None:
        """The metric at a point in percent; with a base, its increase in percent, seed by seed."""
        ours = self._shares(point.training, results)
        if point.base is None:
            return Statistic.from_shares([share for share in ours if share is not None])
        pairs = zip(ours, self._shares(point.base, results), strict=False)
        return Statistic.from_shares([one / other - 1 for one, other in pairs if one is not None and other])

    def _shares(self, training: Training, results: Results) -> list[float | None]:
        """The metric of each seed as a share of 1; None where it is not known."""
        return [None if one is None else share_of(one, self.item.metric) for one in results.get(training, ())]

    def csv(self, results: Results) -> str:
        """A row for each value: ours in percent with its deviation and seeds, and the paper's."""
        rows: list[list[object]] = []
        for point in self.points:
            ours = self.value(point, results)
            cells = [ours.mean, ours.deviation, ours.seeds] if ours else [None, None, 0]
            rows.append([point.value, *cells, self.item.curve[point.value]])
        return csv_text([self.item.key, f"{self._metric}, %", "deviation", "seeds", "paper"], rows)

    def draw(self, results: Results, files: Sequence[Path]) -> bool:
        """Write the figure; False if no run is finished and the paper has no numbers.

        On the paper's dataset, its curve and ours are in one panel; on a small set side by side.
        """
        ours, theirs = (self.preset, f"paper ({self._paper_preset})") if self.small else ("suprank", "paper")
        columns = [f"{self._metric}, {ours}", f"{self._metric}, {theirs}"] if self.small else [self._metric]
        rows = []
        for point in self.points:
            number = self.item.curve[point.value]
            paper = None if number is None else Statistic(number, None, 1)
            if self.small:
                cells = dict(zip(columns, (self.value(point, results), paper), strict=True))
                rows.append(Row(((self.item.key, point.value),), 1, 1, cells, None))
            else:
                for source, cell in ((ours, self.value(point, results)), (theirs, paper)):
                    setting = ((self.item.key, point.value), (SOURCE, source))
                    rows.append(Row(setting, 1, 1, {columns[0]: cell}, None))
        known = [column for column in columns if any(row.statistics.get(column) for row in rows)]
        if not known:
            return False
        axes = (self.item.key,) if self.small else (self.item.key, SOURCE)
        return save_panels(draw_sweep(Table(axes, tuple(known), tuple(rows))), files)

    @property
    def _metric(self) -> str:
        return f"{self.item.metric} increase" if self.item.base else self.item.metric

    @property
    def _paper_preset(self) -> str:
        return self.item.recipe.partition("/")[0]


def _training(preset: str, method: str, item: StudyItem, value: str) -> Training:
    from suprank.experiments.methods import flatten
    from suprank.training.recipe import read_recipe

    recipe = Training(preset, method)
    own = flatten(read_recipe(recipe.recipe)).get(item.key)
    if isinstance(own, int | float) and float(own) == float(value):
        return recipe
    overrides = [f"{item.key}={value}"]
    if item.epoch_images and preset == item.recipe.partition("/")[0]:
        overrides.append(f"batch.batches={item.epoch_images // int(value)}")
    return recipe._replace(overrides=tuple(overrides))
