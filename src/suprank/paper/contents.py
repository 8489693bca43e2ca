"""Every table and figure of the paper by its label, with the paper's numbers: the content of paper.toml, checked and parsed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

QUOTED = "quoted"
"""In place of a method: the paper quotes the row, and nothing is trained for it."""

KINDS = {
    "table": "results of trained models",
    "study": "results against a hyper-parameter",
    "map": "classes of a trained model",
    "gallery": "results of two trained models for a query",
    "label": "images of a dataset",
    "drawing": "computed, without a model",
    "illustration": "a script of the repository",
    "none": "not reproduced",
}
"""Kinds of tables and figures, and what each needs."""


class Columns(NamedTuple):
    """The columns of one dataset: its preset, its title, and the metrics."""

    preset: str
    title: str
    metrics: tuple[str, ...]


class Row(NamedTuple):
    """A row of a table: its labels, its method by preset, and the paper's numbers by preset, None where it has none.

    There is a method only where the paper has a number, and none if nothing is trained for the row. `group` is the head of its
    group, and `rule` says whether a line is drawn above it.
    """

    labels: tuple[str, ...]
    methods: dict[str, str]
    paper: dict[str, tuple[float | None, ...]]
    group: str
    rule: bool


@dataclass(frozen=True)
class Item:
    """A table or a figure of the paper. A figure with `parts` is drawn part by part."""

    label: str
    title: str
    kind: str
    parts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    """Why it is not reproduced, for the kind `none`."""

    @property
    def why_not(self) -> str:
        """What `reproduce` says of it in place of writing it; empty for most."""
        if self.kind == "illustration":
            return f"{self.label} is an illustration. In a checkout, `python -m docs.drawings OUT {self.label}` draws it."
        return f"{self.label} is not reproduced. {self.reason}" if self.kind == "none" else ""

    @property
    def file_name(self) -> str:
        """The beginning of the names of its files: `tab-main_sop_inat` for tab:main_sop_inat."""
        return self.label.replace(":", "-")


@dataclass(frozen=True)
class TableItem(Item):
    """A table of results."""

    heads: tuple[str, ...] = ("Method",)
    columns: tuple[Columns, ...] = ()
    rows: tuple[Row, ...] = ()
    order_by: str = ""
    """The metric by which the order of the methods is compared with the paper's."""

    may_differ: tuple[str, ...] = ()
    """Keys in which the recipes differ on purpose."""

    best_in_group: bool = False
    """Whether the best number is that of each group, and not of the whole column."""

    from_literature: bool = False
    """Whether the paper quotes all rows but those called `(ours)` from the literature."""


@dataclass(frozen=True)
class StudyItem(Item):
    """A figure of a metric over the values of one key; with `base`, of the increase over another recipe in percent."""

    recipe: str = ""
    key: str = ""
    metric: str = ""
    base: str = ""
    epoch_images: int = 0
    """Images of an epoch at every batch size, where the sampler counts batches; 0 where it draws every image anyway."""

    curve: dict[str, float | None] = field(default_factory=dict)
    """The paper's numbers by value of the key; None where its figure has no numbers."""


@dataclass(frozen=True)
class ModelItem(Item):
    """A figure of one trained model (kind `map`), or of two for the same queries (`gallery`)."""

    recipe: str = ""
    base: str = ""
    select: Literal["better_mistakes", "both_fail"] = "better_mistakes"
    """Which queries a gallery shows: `better_mistakes` or `both_fail`."""


@dataclass(frozen=True)
class LabelItem(Item):
    """Images of one label of a dataset."""

    preset: str = ""
    name: str = ""


@cache
def contents() -> dict[str, Item]:
    """All tables and figures of the paper by label, in the paper's order; parts of a figure follow the figure."""
    tables = _read()
    tables.pop("small")
    return {label: _item(label, entry) for label, entry in tables.items()}


@cache
def small_methods() -> dict[str, list[str]]:
    """Methods that stand in for others on the small sets: a method and its overrides, by the name of the other."""
    return {name: words.split() for name, words in _read()["small"].items()}


def find_item(label: str) -> Item:
    """The table or figure with this label; `main_dyml` without `tab:` will do. An unknown one is refused with the nearest."""
    import difflib

    items = contents()
    for spelling in (label, f"tab:{label}", f"fig:{label}"):
        if spelling in items:
            return items[spelling]
    near = difflib.get_close_matches(label, items, n=1, cutoff=0.4)
    raise ValueError(f"the paper has no {label}" + (f"; did you mean {near[0]}?" if near else "; `suprank paper` lists all."))


def table_items() -> dict[str, TableItem]:
    """The tables of results."""
    return {label: item for label, item in contents().items() if isinstance(item, TableItem)}


def recipes_of_the_paper() -> set[str]:
    """Every recipe PRESET/METHOD that a table of the paper has a result of."""
    items = table_items().values()
    return {f"{preset}/{method}" for item in items for row in item.rows for preset, method in row.methods.items()}


def paper_results(recipe: str) -> list[str]:
    """The paper's numbers of a recipe PRESET/METHOD, a sentence for each table or figure that has some.

    Example:
        >>> paper_results("inat-base/smooth-hap")
        ['tab:hrank_optim: H-AP 52.3']
    """
    preset, _, method = recipe.partition("/")
    sentences = []
    for item in table_items().values():
        for columns in item.columns:
            for row in item.rows:
                if columns.preset == preset and row.methods.get(preset) == method:
                    numbers = zip(columns.metrics, row.paper[preset], strict=True)
                    known = [f"{metric_title(metric)} {number}" for metric, number in numbers if number is not None]
                    quoted = item.from_literature and "(ours)" not in row.labels[0]
                    if known:
                        sentences.append(f"{item.label}: {', '.join(known)}" + ", quoted from the literature" * quoted)
    return sentences


def metric_title(metric: str) -> str:
    """How a metric is written in a head: `mean:AP` is `mAP`, and `wAP` is `ΣwAP`.

    Example:
        >>> [metric_title(metric) for metric in ("mean:AP", "mean:ASI", "wAP", "R@1", "AP/genus")]
        ['mAP', 'ASI', 'ΣwAP', 'R@1', 'AP/genus']
    """
    return {"mean:AP": "mAP", "wAP": "ΣwAP"}.get(metric, metric.removeprefix("mean:"))


def _read() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def _item(label: str, entry: dict[str, Any]) -> Item:
    kind = entry.pop("kind")
    if kind not in KINDS:
        raise ValueError(f"paper.toml: {label} has kind {kind!r}, which is none of {', '.join(KINDS)}.")
    entry |= {name: tuple(entry[name]) for name in ("parts", "notes", "may_differ") if name in entry}
    if kind == "table":
        columns = tuple(Columns(preset, title, tuple(metrics.split())) for preset, title, metrics in entry.pop("columns"))
        heads = tuple(entry.pop("labels", ("Method",)))
        rows = tuple(_rows(entry.pop("rows"), len(heads), columns, label))
        return TableItem(label=label, kind=kind, heads=heads, columns=columns, rows=rows, **entry)
    if "recipe" in entry and kind == "study":
        curve = {f"{value:g}": number for value, number in entry.pop("curve", [])}
        curve = curve or {f"{value:g}": None for value in entry.pop("values")}
        return StudyItem(label=label, kind=kind, curve=curve, **entry)
    if "recipe" in entry:
        return ModelItem(label=label, kind=kind, **entry)
    if kind == "label":
        return LabelItem(label=label, kind=kind, **entry)
    return Item(label=label, kind=kind, **entry)


def _rows(text: str, heads: int, columns: tuple[Columns, ...], label: str) -> list[Row]:
    rows: list[Row] = []
    group, rule = "", False
    for line in text.strip().splitlines():
        if line.startswith("["):
            group, rule = line.strip("[] "), bool(rows)
            continue
        if line.strip() == "---":
            rule = True
            continue
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != heads + 1 + len(columns):
            raise ValueError(f"paper.toml: {label} has the line {line!r}, which must have {heads + 1 + len(columns)} cells.")
        methods, numbers = cells[heads], cells[heads + 1 :]
        paper = {}
        for one, cell in zip(columns, numbers, strict=True):
            paper[one.preset] = tuple(None if number == "-" else float(number) for number in cell.split())
            if len(paper[one.preset]) != len(one.metrics):
                raise ValueError(f"paper.toml: {label} has {cell!r} for {one.preset}; it must be {len(one.metrics)} numbers.")
        trained = {preset: one for preset, one in _methods(methods, columns).items() if any(paper[preset])}
        rows.append(Row(tuple(cells[:heads]), trained, paper, group, rule))
        rule = False
    return rows


def _methods(text: str, columns: tuple[Columns, ...]) -> dict[str, str]:
    """The method of each preset: one for all, or `sop:roadmap-memory cub:roadmap`."""
    if text == QUOTED:
        return {}
    if ":" in text:
        return dict(word.split(":") for word in text.split())
    return {one.preset: text for one in columns}
