"""Write the tables of docs/tuned-results.md from the runs of `suprank compare --tune`.

    python benchmarks/tuned_tables.py --collect FOLDER NAME   # copies what the tables need into benchmarks/results/tuned
    python benchmarks/tuned_tables.py             # rewrites what stands between <!-- begin NAME --> and <!-- end NAME -->,
                                                  # and draws benchmarks/results/tuned/tuned.png
    python benchmarks/tuned_tables.py --check     # exits with 1 if the page is not what it would write

FOLDER is that of a comparison, and NAME is SET-TABLE: `emoji48-fine` has the methods of the paper's tables of AP approximations
and of the ablation, tuned by mAP@R, and `emoji48-tree` those of the table of hierarchical methods, tuned by H-AP. Four files
are kept of each:

    NAME.csv            the final runs, as `suprank compare` writes them: every recipe as it is and tuned, with each seed
    NAME-search.csv     every trial
    NAME-budget.json    trials, folds, epochs, seconds, the ranges of the search
    NAME-classes.npz    the metrics of every test class, `[seeds, classes, metrics]` for each row: sums over the queries of a
                        class, divided by the mean number of queries of a class, so that their mean is that over queries;
                        `queries`, how many a class has, and for each level of the labels `level NAME`, its class there

`--collect` is run in the working folder of the comparison, because its manifest may be relative to it.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pages

from suprank.evaluation import Report
from suprank.evaluation.report_comparison import SIGNIFICANT
from suprank.evaluation.statistics import SeedDifference, holm, paired_effect_size, seed_difference
from suprank.evaluation.units import Units
from suprank.experiments.experiment import Experiment
from suprank.experiments.tables import Statistic
from suprank.paper.contents import Row, TableItem, find_item

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "tuned-results.md", ROOT / "benchmarks" / "results" / "tuned"
SETS = {"omniglot40": "Omniglot", "emoji48": "emoji", "cub": "CUB heads"}
APPROXIMATIONS, ABLATION, HIERARCHICAL = "tab:compa_ranking_losses", "tab:ablation_study", "tab:main_sop_inat"
METRICS = {"fine": ("R@1", "mAP@R"), "tree": ("R@1", "AP", "H-AP", "ASI", "NDCG")}  # of the tables, by the end of a name
LEVEL = "level "
OTHERS = {"multi-similarity": "Multi-Similarity", "triplet-dw": "Triplet, distance-weighted"}  # not in the paper's tables

# Method, the other method, and the metric of the difference; those that the page speaks about.
FINE_DIFFERENCES = (
    ("sup-ap", "smooth-ap"),
    ("sup-recall", "smooth-recall"),
    ("roadmap-pairs", "sup-ap"),
    ("roadmap", "sup-ap"),
    ("rod-recall-pairs", "sup-recall"),
    ("rod-recall", "sup-recall"),
    ("roadmap", "smooth-ap"),
    ("smooth-ap", "fast-ap"),
    ("smooth-ap", "softbin-ap"),
    ("smooth-ap", "blackbox-ap"),
    ("multi-similarity", "roadmap"),
    ("triplet-dw", "roadmap"),
    ("multi-similarity", "triplet-dw"),
)
TREE_DIFFERENCES = (
    ("happier", "smooth-ap"),
    ("rod-ndcg", "smooth-ap"),
    ("happier", "rod-ndcg"),
    ("happier", "happier-f"),
    ("happier", "csl"),
    ("happier", "sum-nsm"),
    ("happier", "sum-triplet-sh"),
    ("nsm", "smooth-ap"),
)


class RowKey(NamedTuple):
    """A row of a comparison: a method, untuned or tuned."""

    method: str
    tuned: bool


@dataclass(frozen=True)
class TunedSet:
    """The runs of one comparison in `folder`, by its name."""

    name: str
    folder: Path = RESULTS

    @property
    def exists(self) -> bool:
        return self._file(".csv").is_file()

    @property
    def metrics(self) -> tuple[str, ...]:
        return METRICS[self.name.rpartition("-")[2]]

    @property
    def title(self) -> str:
        return SETS[self.name.partition("-")[0]]

    @cached_property
    def runs(self) -> dict[RowKey, list[dict[str, str]]]:
        """The lines of the finished final runs, one for each seed."""
        found: dict[RowKey, list[dict[str, str]]] = {}
        for line in self._lines(".csv"):
            if line["finished"] == "yes":
                found.setdefault(RowKey(line["recipe"], line["tuned"] == "yes"), []).append(line)
        return found

    @cached_property
    def trials(self) -> dict[str, list[dict[str, str]]]:
        """The lines of all trials, by method."""
        found: dict[str, list[dict[str, str]]] = {}
        for line in self._lines("-search.csv"):
            found.setdefault(line["recipe"], []).append(line)
        return found

    @cached_property
    def budget(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._file("-budget.json").read_bytes())
        return content

    @cached_property
    def classes(self) -> dict[str, np.ndarray]:
        """The arrays of the test classes, by name."""
        with np.load(self._file("-classes.npz")) as arrays:
            return dict(arrays)

    @cached_property
    def units(self) -> Units:
        """The units of tests and intervals among the test images."""
        queries = self.classes["queries"]
        levels = {
            name.removeprefix(LEVEL): np.repeat(own, queries) for name, own in self.classes.items() if name.startswith(LEVEL)
        }
        return Units.choose(levels, np.full(queries.sum(), True))

    def class_means(self, key: RowKey) -> np.ndarray:
        """The metrics of a row, `[seeds, classes, metrics]`, as means over the queries of each class."""
        queries = self.classes["queries"]
        return self.classes[_array_name(key)].astype(np.float64) * (queries.mean() / queries)[None, :, None]

    def values(self, key: RowKey) -> np.ndarray:
        """The metrics of a row, `[seeds, queries, metrics]`, with the mean of its class for each query."""
        return np.repeat(self.class_means(key), self.classes["queries"], axis=1)

    def statistic(self, key: RowKey, metric: str) -> Statistic | None:
        return Statistic.from_shares([float(line[metric]) for line in self.runs.get(key, ())])

    def difference(self, first: RowKey, second: RowKey, metric: str) -> SeedDifference | None:
        """For new trainings and new test classes, in percent points; None if a row is missing, or both have the same runs."""
        known = self.runs.keys() & {key for key in (first, second) if _array_name(key) in self.classes}
        if known < {first, second} or self._folders(first) == self._folders(second):
            return None
        place = self.metrics.index(metric)
        one = seed_difference(*(self.values(key)[..., place] for key in (first, second)), self.units.of_query)
        means = [self.class_means(key)[..., place].mean(0) for key in (first, second)]
        return SeedDifference(
            *(100 * value for value in (one.difference, one.low, one.high)),
            paired_effect_size(means[0] - means[1]),
            one.p_value,
        )

    def chosen(self, method: str) -> dict[str, str] | None:
        """The line of the best trial."""
        return next((line for line in self.trials.get(method, ()) if line["best"] == "yes"), None)

    def _folders(self, key: RowKey) -> set[str]:
        return {line["folder"] for line in self.runs[key]}

    def _lines(self, end: str) -> list[dict[str, str]]:
        with self._file(end).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def _file(self, end: str) -> Path:
        return self.folder / f"{self.name}{end}"


def class_arrays(labels: np.ndarray, levels: tuple[str, ...]) -> dict[str, np.ndarray]:
    """How many queries each class has, and its class at each level, of labels `[queries, levels]`; see NAME-classes.npz."""
    _, first, queries = np.unique(labels[:, 0], return_index=True, return_counts=True)
    return {"queries": queries, **{LEVEL + level: labels[first, place] for place, level in enumerate(levels)}}


def _array_name(key: RowKey) -> str:
    return f"{key.method} {'tuned' if key.tuned else 'untuned'}"


# Collecting


def collect(folder: Path, name: str, out: Path) -> None:
    """Keep what the tables need of a comparison's folder."""
    from suprank.data import Manifest
    from suprank.training.recipe import read_recipe

    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / "comparison.csv", out / f"{name}.csv")
    shutil.copyfile(folder / "comparison-search.csv", out / f"{name}-search.csv")
    record = Experiment.load(folder)
    assert record is not None
    assert record.search is not None
    kept = TunedSet(name, out)
    runs, trials = kept.runs, kept.trials
    first = next(iter(runs.values()))[0]
    config = read_recipe(folder / first["folder"] / "recipe.toml")
    manifest = Manifest.read(config.data.manifest).split("test")
    labels = manifest.labels[:, 0]
    arrays = {
        **class_arrays(manifest.labels, manifest.levels),
        **{
            _array_name(key): np.stack([class_values(_report(folder, line), kept.metrics, labels) for line in lines])
            for key, lines in runs.items()
        },
    }
    np.savez_compressed(out / f"{name}-classes.npz", **arrays)  # type: ignore[arg-type]
    seconds = sum(float(line["seconds"]) for lines in runs.values() for line in lines)
    budget = {
        "trials": record.search.trials,
        "folds": record.search.folds,
        "fold level": record.search.level,
        "metric": record.search.metric,
        "epochs": int(first["epoch"]),
        "batch size": config.batch.size,
        "image size": config.images.size,
        "failed trials": sum(bool(line["failure"]) for lines in trials.values() for line in lines),
        "seconds of training steps": round(
            seconds + sum(float(line["seconds"]) for lines in trials.values() for line in lines)
        ),
        "spaces": {label: {key: str(one) for key, one in space.items()} for label, space in record.search.spaces.items()},
    }
    (out / f"{name}-budget.json").write_text(json.dumps(budget, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def class_values(report: Report, metrics: tuple[str, ...], labels: np.ndarray) -> np.ndarray:
    """What the test classes contribute to the metrics of a run, `[classes, metrics]`, as float32; see NAME-classes.npz."""
    assert report.per_query is not None
    assert report.n_queries == len(labels)
    values = np.stack([report.per_query[metric] for metric in metrics], axis=1)
    classes = np.unique(labels)
    sums = np.stack([values[labels == one].sum(0) for one in classes])
    return (sums * len(classes) / len(labels)).astype(np.float32)


def _report(folder: Path, line: dict[str, str]) -> Report:
    return Report.load(folder / line["folder"] / "reports" / f"test-epoch-{int(line['epoch']):04d}.json")


# Tables


def method_table(item: TableItem, sets: list[TunedSet], metric: str, further: tuple[str, ...]) -> str:
    """The rows of a table: `metric` untuned and tuned, and `further` metrics tuned, on each set."""
    heads = [*(["", *item.heads] if any(row.group for row in item.rows) else item.heads)]
    columns = [(metric, False), (metric, True), *((one, True) for one in further)]
    titles = [f"{one.title} {name}{', tuned' if tuned else ''}" for one in sets for name, tuned in columns]
    lines = [heads + titles, ["---"] * len(heads) + ["---:"] * len(titles)]
    group = None
    rows = [row for row in item.rows if any(RowKey(_method(row), True) in one.runs for one in sets)]
    marks = {one.name: _marks(one, item, rows, columns) for one in sets}
    for row in rows:
        labels = [row.group if row.group != group else "", *row.labels] if heads[0] == "" else list(row.labels)
        group = row.group
        cells = []
        for one in sets:
            for name, tuned in columns:
                statistic = one.statistic(RowKey(_method(row), tuned), name)
                text = "–" if statistic is None else f"{statistic.mean:.1f} ± {statistic.deviation or 0:.1f}"
                mark = marks[one.name].get((_method(row), name)) if tuned else None
                cells.append({"bold": f"**{text}**", "best": f"<u>{text}</u>"}.get(mark or "", text))
        lines.append(labels + cells)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _method(row: Row) -> str:
    return next(iter(row.methods.values())).rpartition("/")[2]


def _marks(one: TunedSet, item: TableItem, rows: list[Row], columns: list[tuple[str, bool]]) -> dict[tuple[str, str], str]:
    """The best tuned method of each column (in each group, where the table compares within groups): `bold` if it is better than
    every other by more than chance, after Holm's correction over all these tests of the set, and else `best`."""
    found: dict[tuple[str, str], list[float]] = {}
    for group in dict.fromkeys(row.group if item.best_in_group else "" for row in rows):
        methods = [_method(row) for row in rows if not item.best_in_group or row.group == group]
        for metric in dict.fromkeys(name for name, tuned in columns if tuned):
            means = {
                method: statistic.mean
                for method in methods
                if (statistic := one.statistic(RowKey(method, True), metric)) is not None
            }
            if len(means) < 2:
                continue
            best = max(means, key=lambda method: means[method])
            tests = [one.difference(RowKey(best, True), RowKey(other, True), metric) for other in means if other != best]
            found[best, metric] = [test.p_value for test in tests if test is not None]
    corrected = holm(np.array([p for tests in found.values() for p in tests]))
    ends = np.cumsum([len(tests) for tests in found.values()])
    return {
        key: "bold" if tests and (corrected[end - len(tests) : end] < SIGNIFICANT).all() else "best"
        for (key, tests), end in zip(found.items(), ends, strict=True)
    }


def difference_table(pairs: tuple[tuple[str, str], ...], sets: list[TunedSet], metric: str) -> str:
    """Differences of tuned methods, with 95 % intervals and effect sizes; bold after Holm's correction over a set's column."""
    titles = _titles(APPROXIMATIONS, HIERARCHICAL, ABLATION)
    found = [[one.difference(RowKey(first, True), RowKey(second, True), metric) for one in sets] for first, second in pairs]
    p_values = np.array([[np.nan if one is None else one.p_value for one in row] for row in found])
    corrected = np.empty_like(p_values)
    for place in range(len(sets)):
        corrected[:, place] = holm(p_values[:, place])
    names = [one.title for one in sets]
    lines = [["difference", *(f"{name}, {metric}" for name in names)], ["---", *["---:"] * len(names)]]
    for (first, second), row, of_row in zip(pairs, found, corrected, strict=True):
        cells = []
        for one, p in zip(row, of_row, strict=True):
            if one is None:
                cells.append("–")
                continue
            text = f"{_signed(one.difference)} [{_signed(one.low)}, {_signed(one.high)}], d {one.effect_size:.2f}".replace(
                "d -", "d −"
            )
            cells.append(f"**{text}**" if p < SIGNIFICANT else text)
        lines.append([f"{titles[first]} − {titles[second]}", *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def paper_table(label: str) -> TableItem:
    """A table of the paper without rows that it quotes."""
    item = find_item(label)
    assert isinstance(item, TableItem)
    return replace(item, rows=tuple(row for row in item.rows if row.methods))


def others_table() -> TableItem:
    """The methods that are in no table of the paper, and the two that they are compared with."""
    titles = {"sup-ap": "Sup-AP", "roadmap": "ROADMAP with L*_DG", **OTHERS}
    rows = tuple(Row((title,), {"": method}, {}, "", False) for method, title in titles.items())
    return TableItem("", "Other methods", "table", rows=rows)


def _titles(*labels: str) -> dict[str, str]:
    """The methods of some tables with their titles; those of the ablation name the decomposability loss."""
    titles = dict(OTHERS)
    for row in (row for label in labels for row in paper_table(label).rows):
        term = f" with {row.labels[2]}" if len(row.labels) > 2 and row.labels[2].startswith("L") else ""
        titles[_method(row)] = row.labels[0] + term
    return titles


def tuning_gain_table(sets: list[TunedSet], metric: str, *labels: str) -> str:
    """What tuning changed: the metric on the test classes, tuned minus untuned, of every method."""
    names = [one.title for one in sets]
    lines = [["Method", *(f"{name}, {metric}" for name in names)], ["---", *["---:"] * len(names)]]
    for method, title in _titles(*labels).items():
        cells = []
        for one in sets:
            found = one.difference(RowKey(method, True), RowKey(method, False), metric)
            if found is not None:
                cells.append(f"{_signed(found.difference)} [{_signed(found.low)}, {_signed(found.high)}]")
            else:
                cells.append("the recipe's own" if RowKey(method, True) in one.runs else "–")
        if any(cell != "–" for cell in cells):
            lines.append([title, *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def chosen_table(one: TunedSet) -> str:
    """The values that were chosen for every method, with the validation metric before and after."""
    metric = one.budget["metric"]
    lines = [["recipe", "chosen", "steps", f"{metric} on validation classes, untuned", "tuned"], ["---", "---", *["---:"] * 3]]
    for method, trials in one.trials.items():
        best = one.chosen(method)
        if best is None:
            continue
        keys = [key for key in best if "." in key and best[key] != ""]
        values = ", ".join(f"{key.replace('optimizer.', '').replace('loss.', '')} {_short(best[key])}" for key in keys)
        values += " (the recipe's own)" if best["trial"] == "0" else ""
        before = "failed" if trials[0]["failure"] else f"{100 * float(trials[0][metric]):.1f}"
        steps = one.runs[RowKey(method, True)][0]["step"]
        lines.append([method, values, steps, before, f"{100 * float(best[metric]):.1f}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _short(text: str) -> str:
    try:
        return f"{float(text):.3g}"
    except ValueError:
        return text


def budget_table(sets: list[TunedSet]) -> str:
    """What every comparison cost."""
    lines = [
        [
            "comparison",
            "methods",
            "image size",
            "epochs",
            "steps",
            "trials × folds",
            "failed",
            "runs",
            "hours of training steps",
        ],
        ["---", *["---:"] * 8],
    ]
    for one in sets:
        budget = one.budget
        runs = len({line["folder"] for rows in one.runs.values() for line in rows})
        total = runs + sum(map(len, one.trials.values())) * budget["folds"]
        steps = sorted({int(line["step"]) for rows in one.runs.values() for line in rows})
        values = [
            len(one.trials),
            f"{budget['image size']} px",
            budget["epochs"],
            " to ".join(map(str, steps[:1] + steps[1:][-1:])),
        ]
        values += [f"{budget['trials']} × {budget['folds']}", budget["failed trials"], total]
        values.append(f"{budget['seconds of training steps'] / 3600:.1f}")
        lines.append([one.name, *map(str, values)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def order_sentences(label: str, sets: list[TunedSet], metric: str) -> str:
    """How many pairs of methods are in the paper's order, untuned and tuned."""
    item = paper_table(label)
    lines = []
    for columns in item.columns:
        place = columns.metrics.index(metric)
        counts = []
        for one in sets:
            texts = []
            for tuned in (False, True):
                pairs = [
                    (ours.mean, theirs, row.group if item.best_in_group else "")
                    for row in item.rows
                    if (ours := one.statistic(RowKey(_method(row), tuned), metric)) is not None
                    if (theirs := row.paper[columns.preset][place]) is not None
                ]
                texts.append(_agreement(pairs))
            counts.append(f"{one.title} {texts[0]} untuned and {texts[1]} tuned")
        lines.append(f"Pairs of methods in the paper's order by {columns.title} {metric}: {', '.join(counts)}.\n")
    return "\n".join(lines)


def _agreement(values: list[tuple[float, float, str]]) -> str:
    from suprank.paper.layout import order_agreement

    return str(order_agreement(values))


def _signed(number: float) -> str:
    return f"{number:+.1f}".replace("-", "−")


def tuned_sets(end: str, folder: Path = RESULTS) -> list[TunedSet]:
    """The comparisons with this end of their names that there are results of."""
    return [one for name in SETS if (one := TunedSet(f"{name}-{end}", folder)).exists]


def tables(folder: Path = RESULTS) -> dict[str, str]:
    """What stands between the markers of the page."""
    fine, tree = tuned_sets("fine", folder), tuned_sets("tree", folder)
    written = {
        "budget": budget_table([*fine, *tree]),
        "approximations": method_table(paper_table(APPROXIMATIONS), fine, "mAP@R", ("R@1",)),
        "approximations order": order_sentences(APPROXIMATIONS, fine, "mAP@R"),
        "ablation": method_table(paper_table(ABLATION), fine, "mAP@R", ("R@1",)),
        "ablation order": order_sentences(ABLATION, fine, "mAP@R"),
        "others": method_table(others_table(), fine, "mAP@R", ("R@1",)),
        "fine differences": difference_table(FINE_DIFFERENCES, fine, "mAP@R"),
        "fine gains": tuning_gain_table(fine, "mAP@R", APPROXIMATIONS, ABLATION),
        "tree differences": difference_table(TREE_DIFFERENCES, tree, "H-AP"),
        "tree gains": tuning_gain_table(tree, "H-AP", HIERARCHICAL),
        "tree order": order_sentences(HIERARCHICAL, tree, "H-AP"),
    }
    for one in tree:
        written[f"tree {one.name.split('-')[0]}"] = method_table(
            paper_table(HIERARCHICAL), [one], "H-AP", ("R@1", "AP", "ASI", "NDCG")
        )
    for one in (*fine, *tree):
        written[f"chosen {one.name}"] = chosen_table(one)
    return written


# Figures


def draw(rows: list[list[TunedSet]], path: Path) -> None:
    """A panel for each comparison: the metric of every method on the test classes, untuned and tuned, with all seeds."""
    from matplotlib.figure import Figure

    columns = max(map(len, rows))
    figure = Figure(figsize=(4.6 * columns, 3.5 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False)
    titles = _titles(APPROXIMATIONS, HIERARCHICAL, ABLATION)
    drawn = [(one, panel) for sets, line in zip(rows, panels, strict=True) for one, panel in zip(sets, line, strict=False)]
    for panel in set(panels.ravel()) - {panel for _, panel in drawn}:
        panel.set_visible(False)
    for one, panel in drawn:
        metric = one.budget["metric"]
        means = {
            method: statistic.mean
            for method in one.trials
            if (statistic := one.statistic(RowKey(method, True), metric)) is not None
        }
        order = sorted(means, key=lambda method: means[method])
        for place, method in enumerate(order):
            values = {
                tuned: [100 * float(line[metric]) for line in one.runs.get(RowKey(method, tuned), ())]
                for tuned in (False, True)
            }
            ends = [np.mean(values[tuned]) for tuned in (False, True)]
            panel.plot(ends, [place, place], color="#bbbbbb", linewidth=2, zorder=1)
            panel.scatter(values[False], [place] * len(values[False]), s=16, facecolors="none", edgecolors="#777777", zorder=2)
            panel.scatter(values[True], [place] * len(values[True]), s=16, color="#0072b2", zorder=3)
        panel.set_yticks(range(len(order)), [titles[method] for method in order], fontsize=9)
        panel.set_xlabel(f"{metric} on the test classes, %")
        panel.set_title(one.title, fontsize=10)
        panel.grid(axis="x", color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    handles = [
        panels[0, 0].scatter([], [], s=20, facecolors="none", edgecolors="#777777"),
        panels[0, 0].scatter([], [], s=20, color="#0072b2"),
    ]
    figure.legend(
        handles, ["the recipe as it is, each seed", "tuned, each seed"], loc="outside upper center", ncols=2, frameon=False
    )
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 1 where something would change")
    parser.add_argument("--collect", nargs=2, metavar=("FOLDER", "NAME"), help="copy the results of a comparison's folder")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    if options.collect:
        collect(Path(options.collect[0]), options.collect[1], options.out)
        return
    pages.update(PAGE, tables(options.out), check=options.check)
    if not options.check:
        draw([tuned_sets("fine", options.out), tuned_sets("tree", options.out)], options.out / "tuned.png")


if __name__ == "__main__":
    main()
