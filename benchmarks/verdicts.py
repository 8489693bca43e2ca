"""How often verdicts are wrong: size, coverage and power of the tests and intervals that suprank reports, on drawn data.

    python benchmarks/verdicts.py --run                # 2,000 cases a row, on all cores; writes cpu/verdicts.json
    python benchmarks/verdicts.py                      # writes the tables of docs/reliability.md from it
    python benchmarks/verdicts.py --check              # exits with 1 if the page is not what it would write

Two models (or methods) are drawn from one distribution, so that every "better" is wrong; the nominal rate is 5 %.

    ranked    embeddings of 400 images, queries and gallery at once, compared as by `suprank evaluate --against`:
              x = a · μ_class + noise, where a, how well a model tells the class, is 1 (no class effect) or log-normal
    tree      values of queries on the tree of CUB's 100 test species, with effects of species, genera, families or orders
    seeds     values of methods that were trained several times, with effects of classes, of trainings, and of both together
    real      two trainings of one recipe, from benchmarks/results/tuned

Rates are in percent. Power is that for a difference of 2.8 true standard errors, which a test that knows them finds in 80 %.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pages

from suprank.evaluation.statistics import (
    mean_intervals,
    paired_randomizations,
    seed_difference,
)
from suprank.evaluation.units import Units

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "reliability.md", ROOT / "benchmarks" / "results" / "cpu" / "verdicts.json"
TUNED = ROOT / "benchmarks" / "results" / "tuned"
SHIFT = 2.8
SAMPLES = 2_000  # assignments of signs, and draws of the bootstrap that is compared with

# The species of each genus of each family of each order among CUB's test classes.
CUB = (
    ((1,),),
    (
        *((1, 1), (1,), (2,), (13, 1, 2, 2, 3, 3, 1, 1, 1, 2), (2,), (6, 1, 4, 1, 3, 2, 1, 1, 1, 1), (1,), (1,)),
        *((1, 1, 1, 1), (2,), (1, 1), (7,), (2,), (1, 1, 1, 2, 1, 1)),
    ),
    ((1,),),
    ((1,), (3, 1, 1, 1, 1)),
    ((1,),),
    ((1, 1, 2, 1, 1),),
)
LEVELS = ("species", "genus", "family", "order")


class Ranked(NamedTuple):
    """Classes × images of each, in groups of five classes; the spread of the class effects."""

    classes: int
    images: int
    spread: float = 0.0
    ties: bool = False  # scores of codes of ±1
    fixed_gallery: bool = False  # that both models share; the images are queries only


RANKED = {
    "independent queries, fixed gallery": Ranked(40, 10, fixed_gallery=True),
    **{f"{c} × {n} images, no class effect": Ranked(c, n) for c, n in ((40, 10), (100, 4), (10, 40))},
    **{f"{c} × {n} images, class effects": Ranked(c, n, 0.5) for c, n in ((40, 10), (100, 4), (10, 40))},
    "40 × 10 images, class effects, tied scores": Ranked(40, 10, 0.5, ties=True),
    "5 × 2 images, class effects": Ranked(5, 2, 0.5),
}
METRICS = ("AP", "AP/group", "R@1")

# Spread of the effects of a model on species, genera, families and orders; 1 is that of a query's own.
TREE = {
    "no effects": (0.0, 0.0, 0.0, 0.0),
    "effects of species": (1.0, 0.0, 0.0, 0.0),
    "effects of species and genera": (1.0, 1.0, 0.0, 0.0),
    "effects of species and families": (1.0, 0.0, 1.0, 0.0),
    "effects of species, families and orders": (1.0, 0.0, 1.0, 1.0),
}

SEED_CLASSES = {"12": (1,) * 12, "40": (1,) * 40, "100": (1,) * 100, "56 genera of CUB": tuple(np.concatenate(sum(CUB, ())))}
SEED_EFFECTS = {  # of a class, of a training, of both together
    "nothing but noise": (0.0, 0.0, 1.0),
    "classes": (1.0, 0.0, 1.0),
    "classes, and trainings a little": (1.0, 0.1, 0.3),
    "classes and trainings": (1.0, 0.3, 1.0),
    "trainings and noise": (0.0, 0.3, 1.0),
    "mostly trainings": (0.3, 1.0, 0.3),
}

Row = dict[str, Any]


# Ranked: the whole path of a user


def ranked_row(name: str, cases: int, seed: int = 0) -> Iterator[Row]:
    """A row for each metric: how often one of two equal models is called better, by units and by queries; and coverage."""
    from suprank.evaluation import evaluate

    task, rng = RANKED[name], np.random.default_rng([seed, *name.encode()])
    fine = np.repeat(np.arange(task.classes), task.images)
    labels = np.stack([fine, fine // 5], 1)
    how: dict[str, Any] = {"metrics": METRICS, "levels": ("class", "group"), "per_query": True, "progress": False}
    found = []
    for _ in range(cases):
        centers = rng.standard_normal((task.classes, 16))[fine]
        noise = rng.standard_normal((len(fine), 16))
        gallery = (centers + 2 * noise).astype(np.float32) if task.fixed_gallery else None
        sides: tuple[Any, ...] = () if gallery is None else (gallery, labels)
        reports = [evaluate(_embeddings(task, centers, fine, rng), labels, *sides, **how) for _ in range(2)]
        found.append(_compare(reports))
    for metric in METRICS:
        cells = [case[metric] for case in found]
        truth = np.mean([cell["means"] for cell in cells])
        yield {
            "kind": "ranked",
            "data": name,
            "metric": metric,
            "cases": cases,
            "better, by query": _percent(cell["p by query"] < 0.05 for cell in cells),
            "better": _percent(cell["p"] < 0.05 for cell in cells),
            "no verdict": _percent(np.isnan(cell["p"]) for cell in cells),
            "covers 0, by query": _percent(cell["by query"][0] <= 0 <= cell["by query"][1] for cell in cells),
            "covers 0": _percent(cell["interval"][0] <= 0 <= cell["interval"][1] for cell in cells),
            "covers the mean, by query": _percent(
                low <= truth <= high for cell in cells for low, high in cell["of means by query"]
            ),
            "covers the mean": _percent(low <= truth <= high for cell in cells for low, high in cell["of means"]),
        }


def _embeddings(task: Ranked, centers: np.ndarray, fine: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    strength = np.exp(task.spread * rng.standard_normal(task.classes))[fine, None]
    values = strength * centers + 2 * rng.standard_normal(centers.shape)
    return (np.sign(values) if task.ties else values).astype(np.float32)


def _compare(reports: list[Any]) -> dict[str, dict[str, Any]]:
    """What `Report.compare` and `with_intervals` say, and what the same tests would say if queries were independent."""
    comparison = reports[0].compare(reports[1], METRICS, samples=SAMPLES)
    columns = [np.array([report.per_query[metric] for metric in METRICS]).T for report in reports]
    queries = np.arange(len(columns[0]))
    p_values = paired_randomizations(columns[0] - columns[1], queries, samples=SAMPLES)
    by_query = [
        mean_intervals(columns[0] - columns[1], queries, skewed=False),
        *(mean_intervals(one, queries) for one in columns),
    ]
    intervals = [report.with_intervals().intervals for report in reports]
    nothing = (np.nan, np.nan)
    return {
        metric: {
            "p": comparison[metric].p_value,
            "p by query": p_values[place],
            "interval": (comparison[metric].low, comparison[metric].high),
            "by query": by_query[0][place],
            "means": [report[metric] for report in reports],
            "of means": [one.get(metric, nothing) for one in intervals],
            "of means by query": [one[place] for one in by_query[1:]],
        }
        for place, metric in enumerate(METRICS)
    }


# Tree: which level is the unit


def cub_classes(images: int = 6) -> dict[str, np.ndarray]:
    """The classes of each query at the four levels, finest first, with the same number of images for each species."""
    paths = [
        (order, family, genus, species)
        for order, families in enumerate(CUB)
        for family, genera in enumerate(families)
        for genus, number in enumerate(genera)
        for species in range(number)
    ]
    found = {}
    for place, level in enumerate(LEVELS):
        numbers: dict[tuple[int, ...], int] = {}
        own = [numbers.setdefault(path[: len(LEVELS) - place], len(numbers)) for path in paths]
        found[level] = np.repeat(own, images)
    return found


def tree_row(name: str, cases: int, seed: int = 0) -> Iterator[Row]:
    """How often two equal models are called different, by the level whose classes are the units; and the power of the unit."""
    rng = np.random.default_rng([seed, *name.encode()])
    classes = cub_classes()
    queries = len(classes["species"])
    units = Units.choose(classes, np.full(queries, True))
    given = {"query": np.arange(queries), **classes, "unit": units.of_query}

    def draw() -> np.ndarray:
        effects = [
            spread * rng.standard_normal(own.max() + 1)[own] for spread, own in zip(TREE[name], classes.values(), strict=True)
        ]
        return np.sum(effects, axis=0) + rng.standard_normal(queries)

    cases_drawn = np.stack([draw() for _ in range(cases)], axis=1)
    error = float(cases_drawn.mean(0).std())
    sizes = {level: paired_randomizations(cases_drawn, own, samples=SAMPLES) < 0.05 for level, own in given.items()}
    intervals = mean_intervals(cases_drawn, units.of_query, skewed=False)
    power = paired_randomizations(cases_drawn + SHIFT * error, units.of_query, samples=SAMPLES) < 0.05
    yield {
        "kind": "tree",
        "data": name,
        "cases": cases,
        "unit": str(units),
        **{f"better, by {level}": _percent(wrong) for level, wrong in sizes.items() if level != "unit"},
        "better": _percent(sizes["unit"]),
        "covers 0": _percent((intervals[:, 0] <= 0) & (intervals[:, 1] >= 0)),
        "power": _percent(power),
    }


# Seeds: several trainings of each method


def seed_row(classes: str, effects: str, seeds: int, cases: int, seed: int = 0) -> Iterator[Row]:
    """Size and power of `seed_difference`, of a paired test over classes of the means over trainings, and of a bootstrap over
    classes and trainings."""
    rng = np.random.default_rng([seed, seeds, *classes.encode(), *effects.encode()])
    sizes = np.array(SEED_CLASSES[classes])
    units = np.repeat(np.arange(len(sizes)), sizes)
    of_class, of_training, of_both = SEED_EFFECTS[effects]

    def draw(better: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        def method() -> np.ndarray:
            own = of_class * rng.standard_normal(len(sizes)) + of_both * rng.standard_normal((seeds, len(sizes)))
            return (own + of_training * rng.standard_normal((seeds, 1)))[:, units]

        return method() + better, method()

    weights = sizes / sizes.sum()
    error = np.sqrt(2 * (of_training**2 / seeds + (of_class**2 + of_both**2 / seeds) * (weights**2).sum()))
    found: dict[str, list[tuple[bool, bool]]] = {}
    for _ in range(cases):
        equal, better = draw(), draw(SHIFT * error)
        for name, test in SEED_TESTS.items():
            p_values = [test(*both, units, rng) for both in (equal, better)]
            found.setdefault(name, []).append((p_values[0] < 0.05, p_values[1] < 0.05))
    rates = {name: [_percent(column) for column in zip(*both, strict=True)] for name, both in found.items()}
    row: Row = {"kind": "seeds", "classes": classes, "effects": effects, "seeds": seeds, "cases": cases}
    for name, (size, power) in rates.items():
        row |= {f"size, {name}": size, f"power, {name}": power}
    yield row


def _ours(first: np.ndarray, second: np.ndarray, units: np.ndarray, _: np.random.Generator) -> float:
    return seed_difference(first, second, units).p_value


def _over_classes(first: np.ndarray, second: np.ndarray, units: np.ndarray, _: np.random.Generator) -> float:
    """The paired test of the means over trainings: it takes another training for no source of chance."""
    return float(paired_randomizations((first.mean(0) - second.mean(0))[:, None], units, samples=500)[0])


def _bootstrap(first: np.ndarray, second: np.ndarray, units: np.ndarray, rng: np.random.Generator, draws: int = 200) -> float:
    """Units and trainings are drawn again, the spread among trainings widened by √(S/(S − 1)) and by √(ν/χ²_ν)."""
    seeds = len(first)
    if seeds < 2:
        return float("nan")
    sizes = np.bincount(units)
    drawn = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=draws) * sizes
    drawn = drawn / drawn.sum(1, keepdims=True)
    starts = np.flatnonzero(np.diff(units, prepend=-1))
    resampled, uncertain = [], 0.0
    for one in (first, second):
        means = one.mean(1)
        widened = drawn @ one[:, starts].T + (np.sqrt(seeds / (seeds - 1)) - 1) * (means - means.mean())
        resampled.append(np.take_along_axis(widened, rng.integers(seeds, size=widened.shape), 1).mean(1))
        uncertain += (means.var(ddof=1) / seeds) ** 2 / (seeds - 1)
    value = first.mean() - second.mean()
    distance = resampled[0] - resampled[1] - value
    freedom = distance.var() ** 2 / uncertain
    distance *= np.sqrt(freedom / rng.chisquare(freedom, draws))
    return float((1 + (np.abs(distance) >= abs(value)).sum()) / (1 + draws))


SEED_TESTS: dict[str, Callable[..., float]] = {"ours": _ours, "over classes": _over_classes, "bootstrap": _bootstrap}


# Real: two trainings of one recipe


def real_rows() -> Iterator[Row]:
    """How often two trainings of one recipe are called different, by classes and by units: another training is no new class."""
    from tuned_tables import TunedSet, tuned_sets

    sets: list[TunedSet] = [*tuned_sets("fine"), *tuned_sets("tree")]
    for one in sets:
        rows = {frozenset(line["folder"] for line in lines): key for key, lines in one.runs.items()}  # each run once
        found = [
            float(paired_randomizations((first - second)[:, None], one.units.of_query)[0])
            for key in rows.values()
            for first, second in combinations(one.values(key)[..., 0], 2)
        ]
        yield {
            "kind": "real",
            "data": one.name,
            "metric": one.metrics[0],
            "cases": len(found),
            "unit": str(one.units),
            "better": _percent(p < 0.05 for p in found),
        }


# Time


def time_row() -> Iterator[Row]:
    """Seconds of all tests and all intervals of a comparison of the size of SOP's, with 40 metrics."""
    rng = np.random.default_rng(0)
    units = np.sort(rng.integers(11_316, size=60_502))
    values = rng.standard_normal((len(units), 40))
    start = time.perf_counter()
    paired_randomizations(values, units)
    mean_intervals(values, units)
    yield {"kind": "time", "queries": len(units), "units": len(np.unique(units)), "metrics": values.shape[1]} | {
        "seconds": round(time.perf_counter() - start, 2)
    }


# Everything


def _percent(truths: Any) -> float:
    return round(100 * float(np.mean(list(truths))), 1)


def tasks(cases: int) -> list[tuple[Callable[..., Iterator[Row]], tuple[Any, ...]]]:
    """Every row of the tables, as a function and its arguments."""
    seeds = [(classes, effects, seeds, cases) for classes in SEED_CLASSES for seeds in (1, 2, 3, 5) for effects in SEED_EFFECTS]
    return [
        *((ranked_row, (name, cases)) for name in RANKED),
        *((tree_row, (name, cases)) for name in TREE),
        *((seed_row, arguments) for arguments in seeds),
        (real_rows, ()),
        (time_row, ()),
    ]


def _rows(task: tuple[Callable[..., Iterator[Row]], tuple[Any, ...]]) -> list[Row]:
    import torch

    torch.set_num_threads(1)
    function, arguments = task
    return list(function(*arguments))


def run(cases: int, jobs: int) -> dict[str, Any]:
    """All rows, computed side by side."""
    from datetime import date

    from suprank.training.run_folder import environment

    rows = []
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(_rows, tasks(cases)):
            print(*found, sep="\n", flush=True)
            rows += found
    about = {"command": f"python benchmarks/verdicts.py --run --cases {cases}", "date": str(date.today())}
    return {**about, "environment": environment(), "rows": rows}


# Tables


def tables(content: dict[str, Any]) -> dict[str, str]:
    """What stands between the markers of the page."""
    rows = content["rows"]
    ranked = [row for row in rows if row["kind"] == "ranked"]
    columns = ("better, by query", "better", "covers 0, by query", "covers 0", "covers the mean, by query", "covers the mean")
    lines = []
    for name in RANKED:
        several = {row["metric"]: row for row in ranked if row["data"] == name}
        lines.append([name, *(_cells(several, column) for column in columns)])
    heads = ["data", "“better”, queries as units", "classes as units", "difference covered, queries", "classes"]
    heads += ["mean of new classes covered, queries", "classes"]
    written = {"verdicts ranked": _markdown(heads, lines)}
    tree = [row for row in rows if row["kind"] == "tree"]
    columns = (*(f"better, by {level}" for level in ("query", *LEVELS)), "covers 0", "power")
    heads = ["data", *(f"“better”, by {level}" for level in ("query", *LEVELS)), "covered", "power"]
    written["verdicts tree"] = _markdown(heads, [[row["data"], *(f"{row[name]:g}" for name in columns)] for row in tree])
    seeds = [row for row in rows if row["kind"] == "seeds"]
    heads = ["trainings", "effects", *(f"{classes} classes".replace("CUB classes", "CUB") for classes in SEED_CLASSES)]
    lines = []
    for number in (1, 2, 3, 5):
        for effects in SEED_EFFECTS:
            chosen = [row for row in seeds if (row["seeds"], row["effects"]) == (number, effects)]
            lines.append([str(number), effects, *map(_seed_cell, chosen)])
    written["verdicts seeds"] = _markdown(heads, lines)
    real = [row for row in rows if row["kind"] == "real"]
    heads = ["runs", "unit", "pairs", "“better”"]
    lines = [[row["data"], row["unit"], str(row["cases"]), f"{row['better']:g}"] for row in real]
    written["verdicts real"] = _markdown(heads, lines)
    return written


def _cells(rows: dict[str, Row], column: str) -> str:
    if column != "better, by query" and all(row["no verdict"] == 100 for row in rows.values()) and "by query" not in column:
        return "no verdict"
    return ", ".join(f"{rows[metric][column]:g}" for metric in METRICS)


def _seed_cell(row: Row) -> str:
    if row["seeds"] == 1:
        return f"no verdict; {row['size, over classes']:g}"
    parts = [f"{row[f'size, {name}']:g} / {row[f'power, {name}']:.0f}" for name in ("ours", "bootstrap")]
    return f"{parts[0]}; {parts[1]}; {row['size, over classes']:g}"


def _markdown(heads: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, rule, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="draw all cases anew, and save the rates")
    parser.add_argument("--cases", type=int, default=2000, help="cases of each row")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 1 where the page would change")
    options = parser.parse_args()
    if options.run:
        content = run(options.cases, options.jobs)
        RESULTS.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    pages.update(PAGE, tables(json.loads(RESULTS.read_bytes())), check=options.check)


if __name__ == "__main__":
    main()
