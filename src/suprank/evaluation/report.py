"""`Report`: the metrics of one evaluation, to look up, print, save and compare."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation import report_files, report_text
from suprank.evaluation.metric_names import LEVEL_MEANS, check_level_name, parse_metric
from suprank.evaluation.report_comparison import compare_reports
from suprank.evaluation.statistics import mean_intervals
from suprank.evaluation.units import TRAINING, Units
from suprank.files.markup import latex_escaped, latex_line
from suprank.files.reading import reading

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import pandas as pd

    from suprank.evaluation.report_comparison import ReportComparison


@dataclass(frozen=True, eq=False)
class Report(Mapping[str, float]):
    """The metrics of one evaluation, a mapping of metric to value: `report["R@1"]`, `report["AP/genus"]`,
    `report["precision_at_1"]`, `dict(report)`, `pandas.Series(report)`, `self.log_dict(report)`.

        means              mean over the queries for which the metric is defined, in [0, 1]; NaN when there is none;
                           `AP/mean-of-levels` is the mean of such means
        n_queries, n_items how many queries were ranked against how many items
        levels             names of the levels, finest first; empty where relevance was given instead of labels
        without_positives  for each level, how many queries have no positive there: they are left out of that level's means
        settings           what the numbers depend on, such as ks and decay; lists come back as tuples
        per_query          float64 [queries] for each metric, NaN where it is undefined, in the caller's order of queries;
                           none for `AP/mean-of-levels` and the like, which are not means over queries
        query_ids          the caller's ids of the queries, in the same order
        classes            the class of each query at every level that the data have, finest first, −1 where it has none: from
                           them comes the unit of intervals and tests (`units`); without, each query is one
        intervals          (low, high) of the means, from `with_intervals`

    Reports are equal when all of this is, NaN being equal to NaN. Arrays are read-only.

    Example:
        >>> report = Report({"R@1": 0.5, "AP": 0.41}, n_queries=2, n_items=9, levels=("class",), without_positives={"class": 0})
        >>> report["hit_rate@1"], "NDCG" in report, list(report)
        (0.5, False, ['R@1', 'AP'])
        >>> print(report)
        2 queries, 9 items
        <BLANKLINE>
        %    value
        R@1  50.00
        AP   41.00
    """

    means: Mapping[str, float]
    n_queries: int
    n_items: int
    levels: tuple[str, ...] = ()
    without_positives: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    per_query: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    query_ids: np.ndarray | None = field(default=None, repr=False)
    classes: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    intervals: Mapping[str, tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "means": {_canonical_key(key): _finite_or_nan(value, key) for key, value in self.means.items()},
            "n_queries": _count(self.n_queries, "n_queries"),
            "n_items": _count(self.n_items, "n_items"),
            "levels": tuple(self.levels),
            "without_positives": {
                level: _count(count, f"without_positives[{level!r}]") for level, count in self.without_positives.items()
            },
            "settings": _json_value(self.settings, "settings"),
        }
        for level in checked["levels"]:
            check_level_name(level)
            if level in LEVEL_MEANS:
                raise ValueError(f"level name {level!r} is taken: it stands for a mean over the levels; rename the level.")
        if len(set(checked["levels"])) < len(checked["levels"]):
            raise ValueError(f"levels={checked['levels']!r} hold a name twice; give each level a name of its own.")
        _check_keys("without_positives", self.without_positives, checked["levels"], "levels")
        if self.per_query is not None:
            _check_keys("per_query", self.per_query, self.means, "means")
            checked["per_query"] = {key: self._column(array, f"per_query[{key!r}]") for key, array in self.per_query.items()}
        if self.query_ids is not None:
            checked["query_ids"] = self._id_column(self.query_ids)
        if self.classes is not None:
            checked["classes"] = {
                level: self._one_per_query(_read_only(own, np.int64), f"classes[{level!r}]")
                for level, own in self.classes.items()
            }
        if self.intervals is not None:
            _check_keys("intervals", self.intervals, self.means, "means")
            checked["intervals"] = {key: (float(low), float(high)) for key, (low, high) in self.intervals.items()}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    # Lookup

    def __getitem__(self, key: str) -> float:
        return self.means[key] if key in self.means else self.means[self.resolve(key)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.means)

    def __len__(self) -> int:
        return len(self.means)

    def resolve(self, key: str) -> str:
        """The key of `means` for any spelling of a metric; a KeyError that suggests the nearest one if there is none."""
        try:
            metric = parse_metric(key)
        except (TypeError, ValueError) as unknown:
            raise KeyError(str(unknown)) from None
        if str(metric) in self.means:
            return str(metric)
        near = difflib.get_close_matches(str(metric), self.means, n=1, cutoff=0)
        ks = {one.k for one in map(parse_metric, self) if one.name == metric.name and one.k}
        message = f"no {metric} in this report" + (f", the nearest is {near[0]}; " if near else ", which is empty; ")
        if metric.level not in (None, *LEVEL_MEANS, *self.levels):
            message += f"its levels are {', '.join(self.levels) or 'not named'}."
        elif metric.k and ks and metric.k not in ks:
            message += f"evaluate with ks that hold {metric.k}, or choose from {', '.join(self)}."
        else:
            message += f"evaluate with this metric, or choose from {', '.join(self)}."
        raise KeyError(message)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report):
            return NotImplemented
        plain = ("n_queries", "n_items", "levels", "without_positives", "settings")
        numbers = ("means", "intervals", "per_query", "query_ids", "classes")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            _same(getattr(self, name), getattr(other, name)) for name in numbers
        )

    # Text

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Metrics as rows, in percent: a column for each level, their means last; metrics without a level come first.

        A metric of the finest level is not repeated in the column without a level. NaN is printed as ``--``; the cell of a
        metric that was not computed at a level is empty.
        """
        return report_text.table(self)

    def _repr_html_(self) -> str:
        return report_text.html_table(self)

    def to_frame(self) -> pd.DataFrame:
        """The rows of `to_csv` as a pandas DataFrame, one for each metric and level: metric, level, value, low, high.

        Example:
            >>> report = Report({"R@1": 0.5, "R@1/genus": 0.75}, n_queries=2, n_items=9, levels=("species", "genus"))
            >>> report.to_frame().pivot(index="metric", columns="level", values="value").to_dict()
            {'': {'R@1': 0.5}, 'genus': {'R@1': 0.75}}
        """
        import pandas as pd

        return pd.DataFrame(report_text.metric_rows(self), columns=report_text.COLUMNS).astype({"low": float, "high": float})

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, raw: bool = False) -> str:
        """CSV rows of metric, level, value, low, high, as fractions in full precision; also written to `path` if given.

        NaN is written as nan. The level is empty for a metric without one, low and high for a metric without an interval.
        A level name that a spreadsheet would run as a formula gets an apostrophe in front, unless `raw`.
        """
        text = report_text.csv_rows(self, raw=raw)
        if path is not None:
            report_files.write_file(Path(path), text.encode())
        return text

    def latex_header(self, metrics: Sequence[str] | None = None) -> str:
        """The header above rows of `latex_row`; the cell above the labels is empty."""
        return latex_line(["", *map(latex_escaped, self._resolve_all(metrics))]).lstrip()

    def latex_row(self, metrics: Sequence[str] | None = None, *, label: str = "", decimals: int = 1) -> str:
        r"""One row of a LaTeX table, in percent, with NaN as --. Special characters in `label` are escaped.

        Example:
            >>> report = Report({"R@1": 0.712, "AP": 0.5}, n_queries=2, n_items=9)
            >>> print(report.latex_header(), report.latex_row(label="ours & all"), sep="\n")
            & R@1 & AP \\
            ours \& all & 71.2 & 50.0 \\
        """
        if decimals < 0:
            raise ValueError(f"decimals={decimals} must be at least 0; try 1.")
        cells = [report_text.percent(self.means[key], decimals) for key in self._resolve_all(metrics)]
        return latex_line([latex_escaped(label), *cells]).lstrip()

    # Statistics

    def with_intervals(self, confidence: float = 0.95) -> Report:
        """The same report with an interval for each metric that has values per query, for new units of the same kind.

        See `mean_intervals`. The confidence and the unit are recorded in `settings["intervals"]`. Where a metric has values in
        fewer than `MIN_UNITS` units, it has no interval.
        """
        per_query, units = self.values_per_query("an interval"), self.units()
        columns = np.array(list(per_query.values())).reshape(len(per_query), self.n_queries)
        bounds = mean_intervals(columns.T, units.of_query, confidence=confidence).clip(0, 1)
        intervals = {key: (low, high) for key, (low, high) in zip(per_query, bounds.tolist(), strict=True) if low == low}
        about = {"confidence": confidence, "unit": units.summary(), "measured": self.sentence()}
        return replace(self, intervals=intervals, settings={**self.settings, "intervals": about})

    def units(self, metrics: Iterable[str] | None = None) -> Units:
        """The units of intervals and tests of these metrics, by default of all: see `Units.choose`."""
        per_query = self.values_per_query("the choice of a unit")
        has_value = np.zeros(self.n_queries, bool)
        for key in per_query if metrics is None else metrics:
            has_value |= ~np.isnan(per_query[key])
        return Units.choose(self.classes, has_value)

    def sentence(self) -> str:
        """What intervals are about, in words: see `Units.sentence`."""
        return self.units().sentence(self.levels, [self.settings[TRAINING]] if TRAINING in self.settings else [])

    def compare(
        self, other: Report, metrics: Sequence[str] | None = None, samples: int | None = None, seed: int = 0
    ) -> ReportComparison:
        """Test whether this report's means differ from the other's by more than chance: see `paired_randomizations`.

        Both must have values per query for the same queries in the same order, with ids or classes that match. Queries where
        either value is NaN are left out of a metric's test, and of the two means that the comparison shows. Without `metrics`,
        all that both reports have are compared.
        """
        return compare_reports(self, other, metrics, samples=samples, seed=seed)

    def without_queries(self) -> Report:
        """The same report without ids, classes and values of single queries."""
        return replace(self, per_query=None, query_ids=None, classes=None)

    def values_per_query(self, purpose: str) -> Mapping[str, np.ndarray]:
        """`per_query`, or an error that says that `purpose` needs it."""
        if self.per_query is None:
            raise ValueError(
                f"{purpose} needs the values of each query, but this report has means only; call evaluate(..., per_query=True)."
            )
        return self.per_query

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, and the values per query to `<stem>.queries.npz` beside it; each file is written atomically.

        NaN is written as null. Missing folders are created. The JSON file is written last and has the digest of the other,
        so that `load` refuses a pair that does not belong together. If a report without values per query replaces one
        with them, the older `.queries.npz` stays and is ignored.
        """
        report_files.write_report(self, Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read what `save` wrote. The report is equal to the one that was saved."""
        with reading(path, "report"):
            return report_files.read_report(Path(path), cls)

    # Helpers

    def _resolve_all(self, metrics: Sequence[str] | None) -> list[str]:
        if metrics is None:
            return list(self)
        return [self.resolve(key) for key in ([metrics] if isinstance(metrics, str) else metrics)]

    def _column(self, values: object, name: str) -> np.ndarray:
        array = self._one_per_query(_read_only(values, np.float64), name)
        if np.isinf(array).any():
            raise ValueError(f"{name} holds infinite values, but a metric is a number or, where it is undefined, NaN.")
        return array

    def _id_column(self, ids: object) -> np.ndarray:
        array = np.asarray(ids)
        if array.dtype.kind in "OT":  # Python objects, or strings of any length: no file holds these without pickle
            ids = array = np.array(array.tolist())
        if not array.size:  # an empty list is an array of floats to numpy
            ids = array = array.astype(np.int64)
        if array.dtype.kind not in "biuUSM":
            raise ValueError(f"query_ids are of type {array.dtype}, but must be integers or text; convert them with str.")
        return self._one_per_query(_read_only(ids), "query_ids")

    def _one_per_query(self, array: np.ndarray, name: str) -> np.ndarray:
        if array.shape != (self.n_queries,):
            raise ValueError(f"{name} has shape {array.shape}, but must be [{self.n_queries}], one value for each query.")
        return array


# Checks of the fields


def _canonical_key(key: str) -> str:
    metric = str(parse_metric(key))
    if metric != key:
        raise ValueError(f"means hold {key!r}, but a report's keys are spelled in one way only; write {metric!r}.")
    return key


def _finite_or_nan(value: float, key: str) -> float:
    if math.isinf(value):
        raise ValueError(f"{key} is {float(value)}, but a metric is a number or, where it is undefined, NaN.")
    return float(value)


def _count(value: int, name: str) -> int:
    if int(value) != value or value < 0:
        raise ValueError(f"{name}={value!r} must be a count: an integer of at least 0.")
    return int(value)


def _check_keys(name: str, keys: Iterable[str], known: Collection[str], where: str) -> None:
    unknown = [repr(key) for key in keys if key not in known]
    if unknown:
        raise ValueError(f"{name} has {', '.join(unknown)}, which {where} do not have; use the keys of {where}.")


def _json_value(value: Any, where: str) -> Any:
    """The value as it comes back from JSON, except that lists become tuples; refused if JSON cannot represent it."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): _json_value(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_json_value(inner, f"{where}[{index}]") for index, inner in enumerate(value))
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(
        f"{where} is {value!r}, which JSON cannot hold; give finite numbers, text, None, and lists or dictionaries of them."
    )


def _read_only(values: object, dtype: type | None = None) -> np.ndarray:
    """A read-only array that does not share memory with the caller's; copied unless it is read-only already."""
    array = np.asarray(values, dtype=dtype)
    if array is not values or array.flags.writeable:
        array = array.copy()  # a tensor's array shares the tensor's memory
        array.flags.writeable = False
    return array


# Equality


def _same(mine: Any, theirs: Any) -> bool:
    """Whether keys and numbers are equal, NaN being equal to NaN."""
    if mine is None or theirs is None:
        return mine is theirs
    if isinstance(mine, Mapping):
        return mine.keys() == theirs.keys() and all(_same(mine[key], theirs[key]) for key in mine)
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    return np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == theirs.dtype.kind == "f")
