"""Writing tables and figures into the folder of a reproduction, from the results of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from suprank.files.atomic import write_atomically
from suprank.paper import layout
from suprank.paper.contents import Columns, Item, LabelItem, ModelItem, StudyItem, TableItem, contents
from suprank.paper.small import small_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from suprank.data import Manifest
    from suprank.paper.model_figures import ModelFigure
    from suprank.paper.reproduction import Reproduction
    from suprank.paper.runs import Results
    from suprank.paper.studies import Study


@dataclass(frozen=True)
class Reproduced:
    """The files that were written, the tables of results, sentences for the reader, and the names of the runs that failed."""

    files: tuple[Path, ...]
    tables: tuple[layout.PaperTable, ...]
    facts: tuple[str, ...] = ()
    planned: int = 0
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """The tables and figures of a reproduction. `notes` are sentences on how the recipes of a table differ, by its label."""

    paper: Reproduction
    results: Results
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def write(self) -> Reproduced:
        """Write every table and figure for which there are results."""
        files: list[Path] = []
        tables, facts = [], []
        for item in self.paper.items:
            if self.paper.is_left_out(item):
                continue
            if isinstance(item, TableItem):
                table = self.table(item)
                tables.append(table)
                files += self._write_table(table)
            elif isinstance(item, StudyItem):
                for study in self.paper.studies(item):
                    files += self._write_study(study)
                facts += [f"{item.label}: {note}" for note in item.notes]
            elif item.why_not:
                facts.append(item.why_not)
            else:
                try:
                    new, sentences = self._write_figure(item)
                except ModuleNotFoundError as error:
                    if len(self.paper.items) == 1:
                        raise
                    new, sentences = [], [f"{item.label} is not drawn, because {error.name} is not installed."]
                files += new
                facts += sentences
        return Reproduced(tuple(files), tuple(tables), tuple(facts))

    def table(self, item: TableItem) -> layout.PaperTable:
        """The table of an item."""
        presets = self.paper.chosen_presets(item)
        columns: list[Columns] = [one for one in item.columns if one.preset in presets]
        if self.paper.small:
            columns = [small_columns(item, preset) for preset in presets]
        notes = self._substitutions(item) if self.paper.small else self.notes.get(item.label, ())
        return layout.lay_out(item, columns, self.results, self.paper.training, small=self.paper.small, notes=notes)

    def _substitutions(self, item: TableItem) -> list[str]:
        """A sentence for each row that is trained otherwise on small sets than at the paper's size."""
        sentences: dict[str, None] = {}
        for row in item.rows:
            for training in (self.paper.training(preset, row) for preset in self.paper.chosen_presets(item)):
                if training is not None and training.overrides:
                    sentences[f"{' '.join(row.labels)} is {training.method} with {', '.join(training.overrides)} here."] = None
        return list(sentences)

    def _stem(self, item: Item) -> Path:
        small = self.paper.small and item.kind != "drawing"
        return self.paper.out / f"{item.file_name}{'-small' * small}"

    def _write_table(self, table: layout.PaperTable) -> list[Path]:
        stem = self._stem(table.item)
        texts = {
            ".md": f"# {table.item.title} ({table.item.label})\n\n{layout.markdown(table)}",
            ".tex": layout.latex(table, self.paper.command),
            ".csv": layout.table_csv(table),
        }
        for suffix, text in texts.items():
            write_atomically(stem.with_name(stem.name + suffix), text.encode())
        return [stem.with_name(stem.name + suffix) for suffix in texts]

    def _write_study(self, study: Study) -> list[Path]:
        stem = self._stem(study.item)
        table, *pictures = [stem.with_name(stem.name + suffix) for suffix in (".csv", ".png", ".svg")]
        write_atomically(table, study.csv(self.results).encode())
        return [table, *pictures] if study.draw(self.results, pictures) else [table]

    def _write_figure(self, item: Item) -> tuple[list[Path], list[str]]:
        """The files of a figure, and its numbers as sentences; nothing while its models are not trained."""
        from suprank.experiments.plots import save_figure

        drawn = self._draw(item)
        if drawn is None:
            return [], [f"{item.label}: its models are not trained yet."]
        figure, numbers, alt = drawn
        stem = self._stem(item)
        suffixes = (".png",) if item.kind in ("gallery", "label") else (".png", ".svg")  # photographs are no drawings
        pictures = [stem.with_name(stem.name + suffix) for suffix in suffixes]
        save_figure(figure, pictures, alt)
        listed = [
            f"{name} {number:.3g}" if isinstance(number, float) else f"{name} {number}" for name, number in numbers.items()
        ]
        return pictures, [f"{item.label}: {', '.join(listed)}."] if listed else []

    def _draw(self, item: Item) -> tuple[Figure, dict[str, float | str], str] | None:
        """The figure, its numbers and its alt text; None while its models are not trained."""
        if item.kind == "drawing":
            from suprank.paper.curves import CURVES

            drawing = CURVES[item.label]()
            return drawing.figure, dict(drawing.numbers), drawing.alt
        from suprank.paper import galleries

        if isinstance(item, LabelItem):
            return _unpack(galleries.images_of_label(*self._labeled_images(item)))
        if not isinstance(item, ModelItem):
            raise TypeError(f"{item.label} is no figure")
        trainings = self.paper.trainings(item)
        if not all(self.results[training][0] for training in trainings):
            return None
        folders = [self.paper.runs.run_folder(training, 0) for training in trainings]
        if item.kind == "map":
            return _unpack(galleries.class_map(folders[0], title=f"{trainings[0].preset}, {trainings[0].method}"))
        base, ours = trainings
        return _unpack(galleries.gallery(*folders, kind=item.select, names=(base.method, ours.method)))

    def _labeled_images(self, item: LabelItem) -> tuple[Manifest, str, str]:
        """The images, the level and the label that a figure shows; on small sets the largest labels."""
        from suprank.training.manifests import open_manifest

        (preset,) = self.paper.chosen_presets(item)
        given = dict(one.partition("=")[::2] for one in (*self.paper.prepared[preset], *self.paper.overrides))
        images = open_manifest(given.get("data.manifest", preset).strip('"'))
        if not self.paper.small:
            return images, "supercategory", item.name
        level = images.levels[1]
        images.require_single_labels("a figure of the classes")
        counts = np.bincount(images.labels[:, 1], minlength=len(images.names[level]))
        siblings = [one.label for one in contents().values() if isinstance(one, LabelItem)]
        return images, level, images.names[level][int(np.argsort(-counts, kind="stable")[siblings.index(item.label)])]


def _unpack(drawn: ModelFigure) -> tuple[Figure, dict[str, float | str], str]:
    return drawn.figure, drawn.facts, drawn.alt
