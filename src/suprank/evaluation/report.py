"""What an evaluation found: `Report`, which prints, saves, compares; and `Comparison`, of two reports on the same queries."""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import itertools
import json
import math
import os
import unicodedata
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from suprank import __version__
from suprank.evaluation.names import OVERALL, Metric, check_level_name, parse
from suprank.evaluation.statistics import bootstrap_interval, holm, paired_randomizations
from suprank.files.atomic import write_atomically
from suprank.files.spreadsheets import safe_cell

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

FORMAT = "suprank report"
VERSION = 1  # of the files; raise it when an older suprank could not read them

_ABSENT = "--"  # how NaN is printed
_LATEX = str.maketrans(
    {
        **{special: f"\\{special}" for special in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "\n": " ", "\r": " "},
    }
)


@dataclass(frozen=True, eq=False)
class Report:
    """The metrics of one evaluation, by key: `report["R@1"]`, `report["AP/genus"]`, `report["precision_at_1"]`.

        values             mean over the queries for which the metric is defined, in [0, 1]; NaN when there is none
        queries, items     how many queries were ranked against how many items
        levels             names of the levels, finest first; empty where relevance was given instead of labels
        without_positives  for each level, how many queries have no positive there: they are left out of that level's means
        settings           what the numbers depend on, such as ks and decay; lists come back as tuples
        per_query          float64 [queries] for each metric, NaN where it is undefined, in the caller's order of queries
        query_ids          what the caller calls the queries, in the same order
        intervals          (low, high) of the means, from `with_intervals`

    Reports are equal when all of this is, NaN being equal to NaN. Arrays cannot be written to.

    Example:
        >>> report = Report({"R@1": 0.5, "AP": 0.41}, queries=2, items=9, levels=("class",), without_positives={"class": 0})
        >>> report["hit_rate@1"], "NDCG" in report, list(report)
        (0.5, False, ['R@1', 'AP'])
        >>> print(report)
        2 queries, 9 items
        <BLANKLINE>
        %    value
        R@1  50.00
        AP   41.00
    """

    values: Mapping[str, float]
    queries: int
    items: int
    levels: tuple[str, ...] = ()
    without_positives: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    per_query: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    query_ids: np.ndarray | None = field(default=None, repr=False)
    intervals: Mapping[str, tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "values": {_canonical(key): _finite_or_nan(value, key) for key, value in self.values.items()},
            "queries": _count(self.queries, "queries"),
            "items": _count(self.items, "items"),
            "levels": tuple(self.levels),
            "without_positives": {
                level: _count(count, f"without_positives[{level!r}]") for level, count in self.without_positives.items()
            },
            "settings": _plain(self.settings, "settings"),
        }
        for level in checked["levels"]:
            check_level_name(level)
        if OVERALL in checked["levels"]:
            raise ValueError(f"level name {OVERALL!r} stands for all levels together; rename the level.")
        if len(set(checked["levels"])) < len(checked["levels"]):
            raise ValueError(f"levels={checked['levels']!r} hold a name twice; give each level a name of its own.")
        self._refuse_unknown("without_positives", self.without_positives, checked["levels"], "levels")
        if self.per_query is not None:
            self._refuse_unknown("per_query", self.per_query, self.values, "values")
            checked["per_query"] = {key: self._column(array, f"per_query[{key!r}]") for key, array in self.per_query.items()}
        if self.query_ids is not None:
            checked["query_ids"] = self._ids(self.query_ids)
        if self.intervals is not None:
            self._refuse_unknown("intervals", self.intervals, self.values, "values")
            checked["intervals"] = {key: (float(low), float(high)) for key, (low, high) in self.intervals.items()}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    # Looking values up

    def __getitem__(self, key: str) -> float:
        return self.values[self._find(key)]

    def __contains__(self, key: object) -> bool:
        try:
            return str(parse(key)) in self.values  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def keys(self) -> Iterable[str]:
        """The metrics, in the order in which they were computed; with it `dict(report)` works."""
        return self.values.keys()

    @overload
    def get(self, key: str) -> float | None: ...
    @overload
    def get(self, key: str, default: float) -> float: ...
    def get(self, key: str, default: float | None = None) -> float | None:
        """The value, or the default where the report does not hold it."""
        try:
            return self[key]
        except (KeyError, TypeError):
            return default

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        plain = ("queries", "items", "levels", "without_positives", "settings")
        return (
            all(getattr(self, name) == getattr(other, name) for name in plain)
            and _same(self.values, other.values)
            and _same(self.intervals, other.intervals)
            and _same(self.per_query, other.per_query)
            and _same({"": self.query_ids}, {"": other.query_ids})
        )

    # For reading

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Metrics as rows, in percent: a column for each level, `overall` last, and before them one for what has no level.

        A metric that is there at the finest level is not printed once more without it. NaN is printed as ``--``, a metric
        that was not computed at a level as nothing.
        """
        metrics = {key: parse(key) for key in self.values}
        found = {metric.level for metric in metrics.values()}
        known = [None, *(level for level in self.levels if level != OVERALL)]
        columns = [level for level in known if level in found]
        columns += sorted(level for level in found.difference(known, [OVERALL]) if level is not None)
        columns += [OVERALL] if OVERALL in found else []
        rows: dict[str, dict[str | None, str]] = {}
        for key, metric in metrics.items():
            row = rows.setdefault(str(Metric(metric.name, metric.k)), {})
            if metric.level is not None or metric.hierarchical or f"{key}/{''.join(self.levels[:1])}" not in self.values:
                row[metric.level] = key
        columns = [level for level in columns if any(level in row for row in rows.values())]
        cells = [["%", *rows]]
        for level in columns:
            name = ("value" if len(columns) == 1 else "all levels") if level is None else level
            cells.append([name, *self._cells([row.get(level) for row in rows.values()])])
        return "\n".join([*self._heading(), "", *_aligned(list(zip(*cells, strict=True)))])

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, raw: bool = False) -> str:
        """Rows of metric, level, value, low, high, as fractions in full precision; written to `path` if one is given.

        NaN is written as nan. The level is empty for a metric without one, low and high for a metric without an interval.
        A level whose name a spreadsheet would run as a formula has an apostrophe before it, unless `raw`.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["metric", "level", "value", "low", "high"])
        for key, value in self.values.items():
            metric = parse(key)
            ends = (self.intervals or {}).get(key, ("", ""))
            level = metric.level or ""
            writer.writerow([Metric(metric.name, metric.k), level if raw else safe_cell(level), value, *ends])
        if path is not None:
            _write(Path(path), text.getvalue().encode())
        return text.getvalue()

    def latex_header(self, metrics: Sequence[str] | None = None) -> str:
        """The header above rows of `latex_row`; the cell above the labels is empty."""
        return _latex_line("", [key.translate(_LATEX) for key in self._chosen(metrics)])

    def latex_row(self, metrics: Sequence[str] | None = None, *, label: str = "", decimals: int = 1) -> str:
        r"""One row of a LaTeX table, in percent, with NaN as --; `label` is text, so what is special in LaTeX is escaped.

        Example:
            >>> report = Report({"R@1": 0.712, "AP": 0.5}, queries=2, items=9)
            >>> print(report.latex_header(), report.latex_row(label="ours & all"), sep="\n")
            & R@1 & AP \\
            ours \& all & 71.2 & 50.0 \\
        """
        if decimals < 0:
            raise ValueError(f"decimals={decimals} must be at least 0; try 1.")
        return _latex_line(label.translate(_LATEX), [_percent(self.values[key], decimals) for key in self._chosen(metrics)])

    # What chance may have done

    def with_intervals(self, samples: int = 1000, confidence: float = 0.95, seed: int = 0) -> Report:
        """The same report with a percentile bootstrap interval for each metric that has values per query.

        `bootstrap_interval` says how. The three numbers are kept in `settings["intervals"]`.
        """
        per_query = self._per_query("a bootstrap")
        columns = np.array(list(per_query.values())).reshape(len(per_query), self.queries)
        found = bootstrap_interval(columns.T, samples=samples, confidence=confidence, seed=seed)
        intervals = {key: (float(low), float(high)) for key, (low, high) in zip(per_query, found, strict=True)}
        how = {"samples": samples, "confidence": confidence, "seed": seed}
        return replace(self, intervals=intervals, settings={**self.settings, "intervals": how})

    def compare(self, other: Report, metrics: Sequence[str] | None = None, samples: int = 10_000, seed: int = 0) -> Comparison:
        """Whether this report's means differ from the other's by more than chance: `paired_randomization` over queries.

        Both must hold values per query for the same queries in the same order. Queries where either value is NaN are
        left out of a metric's test, and of the two means that the comparison shows. Without `metrics`, all that both
        reports have are compared.
        """
        mine, theirs = self._per_query("a comparison"), other._per_query("a comparison")
        _refuse_other_queries(self, other)
        if metrics is not None:
            keys = [self._find(key) for key in _listed(metrics)]
            for key, (report, kept) in itertools.product(keys, ((self, mine), (other, theirs))):
                if report._find(key) not in kept:
                    raise ValueError(f"{key} has no values per query in one of the reports; leave it out of metrics.")
        else:
            keys = [key for key in mine if key in theirs]
            if not keys:
                raise ValueError(
                    f"the reports share no metric: one has {', '.join(mine) or 'none'}, the other "
                    f"{', '.join(theirs) or 'none'}; evaluate both with the same metrics."
                )
        pairs = np.array([(mine[key], theirs[key]) for key in keys]).reshape(len(keys), 2, self.queries)
        p_values = paired_randomizations((pairs[:, 0] - pairs[:, 1]).T, samples=samples, seed=seed)
        rows = []
        for key, pair, p_value, p_holm in zip(keys, pairs, p_values, holm(p_values), strict=True):
            shared = pair[:, ~np.isnan(pair).any(0)]
            first, second = shared.mean(1).tolist() if shared.size else (math.nan, math.nan)
            rows.append(Compared(key, first, second, first - second, float(p_value), shared.shape[1], float(p_holm)))
        return Comparison(tuple(rows), samples, seed)

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes JSON, and what was kept per query to `<stem>.queries.npz` beside it; each appears whole or not at all.

        NaN is written as null. Folders are made as needed. The JSON file is written last and knows the other by its
        digest, so that `load` refuses a pair that does not belong together. Values per query of an earlier report stay in
        their file when a report without any takes its place, and are not read.
        """
        path = Path(path)
        kept: dict[str, np.ndarray] = {}
        if self.per_query is not None:
            kept["per_query"] = np.array(list(self.per_query.values())).reshape(len(self.per_query), self.queries)
        if self.query_ids is not None:
            kept["query_ids"] = self.query_ids
        digest = None
        if kept:
            archive = io.BytesIO()
            np.savez_compressed(archive, allow_pickle=False, **kept)
            digest = hashlib.sha256(archive.getvalue()).hexdigest()
            _write(_queries_file(path), archive.getvalue())
        content = {
            "format": FORMAT,
            "version": VERSION,
            "suprank": __version__,
            "queries": self.queries,
            "items": self.items,
            "levels": self.levels,
            "values": {key: _or_null(value) for key, value in self.values.items()},
            "intervals": None
            if self.intervals is None
            else {key: [*map(_or_null, ends)] for key, ends in self.intervals.items()},
            "without_positives": self.without_positives,
            "settings": self.settings,
            "per_query": None if self.per_query is None else list(self.per_query),
            "queries_sha256": digest,
        }
        _write(path, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """The report that `save` wrote, equal to what it was."""
        path = Path(path)
        content = _content(path)
        try:
            archive = {} if content["queries_sha256"] is None else _archive(path, content["queries_sha256"])
            names = content["per_query"]
            intervals = content["intervals"]
            return cls(
                values={key: _or_nan(value) for key, value in content["values"].items()},
                queries=content["queries"],
                items=content["items"],
                levels=tuple(content["levels"]),
                without_positives=content["without_positives"],
                settings=content["settings"],
                per_query=None if names is None else dict(zip(names, archive["per_query"], strict=True)),
                query_ids=archive.get("query_ids"),
                intervals=None
                if intervals is None
                else {key: (_or_nan(low), _or_nan(high)) for key, (low, high) in intervals.items()},
            )
        except (KeyError, TypeError, AttributeError) as wrong:
            raise ValueError(f"{path} is a damaged report ({type(wrong).__name__}: {wrong}); evaluate again.") from wrong

    # Helpers

    def _find(self, key: str) -> str:
        """The key of `values` that the user means."""
        try:
            metric = parse(key)
        except ValueError as unknown:
            raise KeyError(str(unknown)) from None
        if str(metric) in self.values:
            return str(metric)
        near = difflib.get_close_matches(str(metric), self.values, n=1, cutoff=0)
        message = f"no {metric} in this report" + (f", the nearest is {near[0]}; " if near else ", which is empty; ")
        if metric.level not in (None, OVERALL, *self.levels):
            message += f"its levels are {', '.join(self.levels) or 'not named'}."
        elif metric.k is not None and metric.k not in {parse(found).k for found in self.values}:
            message += f"evaluate with ks that hold {metric.k}, or ask for one of {', '.join(self.values)}."
        else:
            message += f"evaluate with this metric, or ask for one of {', '.join(self.values)}."
        raise KeyError(message)

    def _chosen(self, metrics: Sequence[str] | None) -> list[str]:
        return list(self.values) if metrics is None else [self._find(key) for key in _listed(metrics)]

    def _per_query(self, purpose: str) -> Mapping[str, np.ndarray]:
        if self.per_query is None:
            raise ValueError(
                f"{purpose} takes the values of each query, and this report has means only; call evaluate(..., per_query=True)."
            )
        return self.per_query

    def _heading(self) -> list[str]:
        lines = [f"{_number(self.queries, 'query', 'queries')}, {_number(self.items, 'item', 'items')}"]
        without = [f"{count:,} ({_printable(level)})" for level, count in self.without_positives.items() if count]
        if without:
            lines.append(f"queries without positives, left out: {', '.join(without)}")
        how = self.settings.get("intervals")
        if self.intervals and isinstance(how, Mapping) and "confidence" in how:
            lines.append(f"[low, high]: {100 * how['confidence']:g}% bootstrap intervals over queries")
        return lines

    def _cells(self, keys: list[str | None]) -> list[str]:
        """A column of values and intervals, each aligned with those above and below it."""
        values = [None if key is None else _percent(self.values[key]) for key in keys]
        ends = [None if key is None else (self.intervals or {}).get(key) for key in keys]
        lows, highs = ([None if pair is None else _percent(pair[end]) for pair in ends] for end in (0, 1))
        before, low_width, high_width = (
            max((len(text or "") for text in column), default=0) for column in (values, lows, highs)
        )
        after = len(", []") + 1 + low_width + high_width if low_width else 0
        return [
            (value or "").rjust(before) + (f" [{low:>{low_width}}, {high:>{high_width}}]" if low else " " * after)
            for value, low, high in zip(values, lows, highs, strict=True)
        ]

    def _refuse_unknown(self, name: str, given: Iterable[str], known: Collection[str], where: str) -> None:
        unknown = [repr(key) for key in given if key not in known]
        if unknown:
            raise ValueError(f"{name} has {', '.join(unknown)}, which {where} do not have; use the keys of {where}.")

    def _column(self, given: object, name: str) -> np.ndarray:
        array = self._for_each_query(_locked(given, np.float64), name)
        if np.isinf(array).any():
            raise ValueError(f"{name} holds infinite values, but a metric is a number or, where it is undefined, NaN.")
        return array

    def _ids(self, ids: object) -> np.ndarray:
        array = np.asarray(ids)
        if array.dtype.kind in "OT":  # Python objects, or strings of any length: no file holds these without pickle
            ids = array = np.array(array.tolist())
        if not array.size:  # an empty list is an array of floats to numpy
            ids = array = array.astype(np.int64)
        if array.dtype.kind not in "biuUSM":
            raise ValueError(f"query_ids are of type {array.dtype}, but must be integers or text; convert them with str.")
        return self._for_each_query(_locked(ids), "query_ids")

    def _for_each_query(self, array: np.ndarray, name: str) -> np.ndarray:
        if array.shape != (self.queries,):
            raise ValueError(f"{name} has shape {array.shape}, but must be [{self.queries}], one value for each query.")
        return array


class Compared(NamedTuple):
    """One metric of two reports: means over the queries where both are defined, and how likely chance alone is."""

    metric: str
    mine: float
    other: float
    difference: float
    p_value: float
    queries: int
    p_holm: float


@dataclass(frozen=True)
class Comparison:
    """What `Report.compare` found, by metric: `comparison["AP"].p_value`.

    `p_holm` is the p-value corrected for all the metrics of this comparison (`holm`). A metric without any query where
    both reports are defined has NaN everywhere.
    """

    rows: tuple[Compared, ...]
    samples: int
    seed: int

    def __getitem__(self, key: str) -> Compared:
        try:
            wanted = str(parse(key))
        except ValueError as unknown:
            raise KeyError(str(unknown)) from None
        for row in self.rows:
            if row.metric == wanted:
                return row
        raise KeyError(f"{wanted} was not compared; ask for one of {', '.join(row.metric for row in self.rows)}.")

    def __iter__(self) -> Iterator[Compared]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return self.table()

    def table(self, *, holm: bool = False) -> str:
        """Metrics as rows, means and differences in percent, p-values as they are; with Holm's correction if asked for."""
        head = ["%", "mine", "other", "difference", "p", *(["p (Holm)"] if holm else []), "queries"]
        lines = [
            [
                *(row.metric, _percent(row.mine), _percent(row.other), _percent(row.difference, sign="+z")),
                *(_p_text(row.p_value), *([_p_text(row.p_holm)] if holm else []), f"{row.queries:,}"),
            ]
            for row in self.rows
        ]
        title = f"paired randomization test over queries, two-sided, {self.samples:,} samples"
        return "\n".join([title, "", *_aligned([head, *lines])])


def _refuse_other_queries(mine: Report, other: Report) -> None:
    if mine.queries != other.queries:
        raise ValueError(
            f"the reports have {mine.queries} and {other.queries} queries, but a paired test needs the same ones; "
            f"evaluate both on one set of queries."
        )
    if mine.query_ids is None or other.query_ids is None or np.array_equal(mine.query_ids, other.query_ids):
        return
    place = int(np.flatnonzero(mine.query_ids != other.query_ids)[0])
    order = (
        "the same queries in another order"
        if set(mine.query_ids.tolist()) == set(other.query_ids.tolist())
        else "other queries"
    )
    raise ValueError(
        f"the reports have {order}: query {place} is {mine.query_ids[place]!s} and {other.query_ids[place]!s}; "
        f"a paired test needs the same ones, so evaluate both on one set of queries in one order."
    )


def _listed(metrics: Sequence[str]) -> Sequence[str]:
    return [metrics] if isinstance(metrics, str) else metrics


# Checks at the door


def _canonical(key: str) -> str:
    metric = str(parse(key))
    if metric != key:
        raise ValueError(f"values hold {key!r}, but a report's keys are written one way only; write {metric!r}.")
    return key


def _finite_or_nan(value: float, key: str) -> float:
    if math.isinf(value):
        raise ValueError(f"{key} is {float(value)}, but a metric is a number or, where it is undefined, NaN.")
    return float(value)


def _count(value: int, name: str) -> int:
    if int(value) != value or value < 0:
        raise ValueError(f"{name}={value!r} must be a number of things: an integer of at least 0.")
    return int(value)


def _plain(value: Any, where: str) -> Any:
    """The value as it comes back from JSON, except that lists are tuples; refused if JSON cannot hold it."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_plain(inner, f"{where}[{index}]") for index, inner in enumerate(value))
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(
        f"{where} is {value!r}, which JSON cannot hold; give finite numbers, text, None, and lists or dictionaries of them."
    )


def _locked(given: object, dtype: type | None = None) -> np.ndarray:
    """The array, read-only and not shared with the caller; copied unless it is read-only already."""
    array = np.asarray(given, dtype=dtype)
    if array is not given or array.flags.writeable:
        array = array.copy()  # a tensor's array shares the tensor's memory
        array.flags.writeable = False
    return array


def _same(mine: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> bool:
    """Whether the keys and all the numbers are the same, NaN being the same as NaN."""
    if mine is None or theirs is None:
        return mine is theirs
    return mine.keys() == theirs.keys() and all(_equal(mine[key], theirs[key]) for key in mine)


def _equal(mine: Any, theirs: Any) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    return np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == theirs.dtype.kind == "f")


# Text


def _percent(value: float, decimals: int = 2, *, sign: str = "") -> str:
    return _ABSENT if math.isnan(value) else f"{100 * value:{sign}.{decimals}f}"


def _p_text(p_value: float) -> str:
    if math.isnan(p_value):
        return _ABSENT
    return f"{p_value:.4f}" if p_value >= 5e-5 else f"{p_value:.1e}"


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width as a terminal shows them: the first to the left, the others to the right."""
    printable = [[_printable(cell) for cell in line] for line in lines]
    widths = [max(map(_width, column)) for column in zip(*printable, strict=True)]
    aligned = []
    for line in printable:
        padding = [" " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        aligned.append("  ".join([line[0] + padding[0], *map("".join, zip(padding[1:], line[1:], strict=True))]).rstrip())
    return aligned


def _printable(text: str) -> str:
    """The text without what would move a terminal's cursor: control characters, written as escapes."""
    return "".join(
        char if char.isprintable() or unicodedata.category(char) == "Zs" or char in _JOINERS else ascii(char)[1:-1]
        for char in text
    )


_JOINERS = "\u200c\u200d"  # of no width, and part of how Persian, Hindi and others are written


def _width(text: str) -> int:
    """Cells in a terminal: two for Chinese, Japanese, Korean characters and emoji, none for combining marks."""
    return sum(
        0
        if unicodedata.category(char) in ("Mn", "Me") or char in _JOINERS
        else 2
        if unicodedata.east_asian_width(char) in "WF"
        else 1
        for char in text
    )


def _latex_line(label: str, cells: Sequence[str]) -> str:
    return " & ".join([label, *cells]).lstrip(" ") + r" \\"


# Files


def _queries_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}.queries.npz")


def _write(path: Path, content: bytes) -> None:
    """Writes beside the path, then renames: a reader, or a crash, never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as wrong:  # of JSON or of UTF-8
        raise ValueError(f"{path} is not a whole JSON file ({wrong}); give the file that Report.save wrote.") from wrong
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("version"), int):
        raise ValueError(f"{path} is JSON, but not a {FORMAT}; give the file that Report.save wrote.")
    if content["version"] > VERSION:
        raise ValueError(
            f"{path} is of version {content['version']}, written by suprank {content.get('suprank')}, and this suprank "
            f"({__version__}) reads up to version {VERSION}; upgrade suprank."
        )
    return content


def _archive(path: Path, digest: str) -> dict[str, np.ndarray]:
    """What was kept per query, if it is what was saved together with the JSON file."""
    beside = _queries_file(path)
    if not beside.exists():
        raise FileNotFoundError(f"{path} keeps its values per query in {beside}, which is missing; move both files together.")
    content = beside.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{beside} does not belong to {path}, or is damaged; move both files together, or evaluate again.")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return dict(archive)
    except (zipfile.BadZipFile, OSError) as wrong:
        raise ValueError(f"{beside} is not an archive of numpy ({wrong}); evaluate again.") from wrong


def _or_null(value: float) -> float | None:
    return None if math.isnan(value) else value


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
