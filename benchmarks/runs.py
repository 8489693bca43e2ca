"""Ranked lists against judgments: `evaluate_run` beside trec_eval and ranx, in value and in time.

python benchmarks/runs.py --out benchmarks/results/cpu/runs.json                    7,000 queries × 1,000 items, MS MARCO's size
python benchmarks/runs.py --trec-eval ~/trec_eval --out benchmarks/results/cpu/runs.json

The lists are drawn: scores with four decimals, so that some tie, ids of 8.8 million documents, and grades from 1 to 3. Every
library reads the same files and computes the same metrics; times are CPU seconds of a process of its own, without the imports,
and ranx's without the minute in which numba compiles. `--trec-eval` is a checkout of github.com/usnistgov/trec_eval: its test
folder has runs, judgments and what trec_eval prints for them, and every printed number of a metric that we have is compared.
Needs `.[dev]`: pytrec_eval-terrier and ranx.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

DOCUMENTS = 8_800_000
LIBRARIES = ("suprank", "pytrec_eval", "ranx")
NAMES = {  # ours: trec_eval's, ranx's
    "AP": ("map", "map"),
    "MRR": ("recip_rank", "mrr"),
    "NDCG-linear@10": ("ndcg_cut_10", "ndcg@10"),
    "P@10": ("P_10", "precision@10"),
    "recall-all@100": ("recall_100", "recall@100"),
    "R@10": ("success_10", "hit_rate@10"),
}
PRINTED = {
    **{"map": "AP", "recip_rank": "MRR", "Rprec": "R-P", "ndcg": "NDCG-linear"},
    **{f"P_{k}": f"P@{k}" for k in (5, 10, 15, 20, 30, 100, 200, 500, 1000)},
    **{f"recall_{k}": f"recall-all@{k}" for k in (5, 10, 15, 20, 30, 100, 200, 500, 1000)},
    **{f"ndcg_cut_{k}": f"NDCG-linear@{k}" for k in (5, 10, 15, 20, 30, 100, 200, 500, 1000)},
    **{f"map_cut_{k}": f"AP-all@{k}" for k in (5, 10, 15, 20, 30, 100, 200, 500, 1000)},
    **{f"success_{k}": f"R@{k}" for k in (1, 5, 10)},
}
TEST_FILES = (  # run, judgments, what trec_eval printed, our options
    ("results.test", "qrels.test", "out.test.aq", {}),
    ("results.trunc", "qrels.test", "out.test.aqc", {}),
    ("results.test", "qrels.rel_level", "out.test.aql", {"relevance_threshold": 2}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=7000)
    parser.add_argument("--items", type=int, default=1000, help="items listed for each query")
    parser.add_argument("--trec-eval", type=Path, help="a checkout of usnistgov/trec_eval")
    parser.add_argument("--skip-times", action="store_true", help="compare the values of --trec-eval only")
    parser.add_argument("--library", choices=LIBRARIES, action="append", help="default: all three; ranx compiles for minutes")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"processor": platform.processor() or platform.machine(), "load": os.getloadavg()[0]},
        "versions": {
            name: importlib.metadata.version(name) for name in ("suprank", "pytrec_eval-terrier", "ranx", "numpy", "torch")
        },
    }
    if arguments.trec_eval is not None:
        result["trec_eval"] = [compare_printed(arguments.trec_eval / "test", *files) for files in TEST_FILES]
        for row in result["trec_eval"]:
            print(f"{row['run']} {row['qrels']}: {row['compared']} numbers, largest difference {row['largest_difference']:.1e}")
    if not arguments.skip_times:
        result |= {"queries": arguments.queries, "items": arguments.items}
        result["libraries"] = times(arguments.queries, arguments.items, arguments.library or list(LIBRARIES))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


# Values


def compare_printed(folder: Path, run: str, qrels: str, output: str, options: dict[str, Any]) -> dict[str, Any]:
    """Every number that trec_eval printed for a query, or for all, beside ours; it prints four decimals."""
    from suprank.evaluation import evaluate_run

    report = evaluate_run(folder / run, folder / qrels, list(PRINTED.values()), per_query=True, **options)
    values = {(key, "all"): value for key, value in report.items()}
    assert report.per_query is not None
    assert report.query_ids is not None
    for key, column in report.per_query.items():
        values |= {(key, query): value for query, value in zip(report.query_ids.tolist(), column.tolist(), strict=True)}
    differences = []
    for line in (folder / output).read_text().splitlines():
        name, query, printed = (field.strip() for field in line.split("\t"))
        if name in PRINTED:
            differences.append(abs(values[PRINTED[name], query] - float(printed)))
    return {"run": run, "qrels": qrels, "compared": len(differences), "largest_difference": max(differences), **options}


# Times


def times(queries: int, items: int, libraries: list[str]) -> dict[str, Any]:
    """CPU seconds to read the files and to compute the metrics, peak memory, and the values, for each library."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        run, qrels = Path(folder) / "run.trec", Path(folder) / "qrels.trec"
        draw_files(run, qrels, queries, items)
        functions = dict(zip(LIBRARIES, (ours, with_pytrec_eval, with_ranx), strict=True))
        for name in libraries:
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                found[name] = pool.apply(measure, (functions[name], run, qrels))
            print(name, {key: round(value, 6) if isinstance(value, float) else value for key, value in found[name].items()})
    return found


def draw_files(run: Path, qrels: Path, queries: int, items: int) -> None:
    draw = np.random.default_rng(0)
    with run.open("w") as runs, qrels.open("w") as judged:
        for query in range(queries):
            documents = draw.permutation(np.unique(draw.integers(0, DOCUMENTS, 2 * items)))[:items]
            scores = np.sort(draw.normal(10, 3, items))[::-1].round(4)
            ranked = enumerate(zip(documents.tolist(), scores.tolist(), strict=True), 1)
            runs.writelines(f"{query} Q0 {document} {rank} {score} drawn\n" for rank, (document, score) in ranked)
            relevant = {*draw.choice(documents[:200], 2).tolist(), int(draw.integers(DOCUMENTS))}
            judged.writelines(f"{query} 0 {document} {draw.integers(1, 4)}\n" for document in sorted(relevant))


def measure(function: Callable[[Path, Path], dict[str, Any]], run: Path, qrels: Path) -> dict[str, Any]:
    import resource

    result = function(run, qrels)
    return {**result, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def ours(run: Path, qrels: Path) -> dict[str, Any]:
    from suprank.evaluation import Run, evaluate_run

    begin = time.process_time()
    Run.load(run)
    read = time.process_time()
    report = evaluate_run(run, qrels, list(NAMES))
    end = time.process_time()
    return {"read": read - begin, "read_and_evaluate": end - read, "values": dict(report)}


def with_pytrec_eval(run: Path, qrels: Path) -> dict[str, Any]:
    import pytrec_eval

    begin = time.process_time()
    with run.open() as runs, qrels.open() as judged:
        lists, judgments = pytrec_eval.parse_run(runs), pytrec_eval.parse_qrel(judged)
    read = time.process_time()
    measures = {"map", "recip_rank", "ndcg_cut_10", "P_10", "recall_100", "success_10"}
    found = pytrec_eval.RelevanceEvaluator(judgments, measures).evaluate(lists)
    values = {ours: float(np.mean([one[theirs] for one in found.values()])) for ours, (theirs, _) in NAMES.items()}
    end = time.process_time()
    return {"read": read - begin, "read_and_evaluate": end - begin, "values": values}


def with_ranx(run: Path, qrels: Path) -> dict[str, Any]:
    import ranx

    metrics = [theirs for _, theirs in NAMES.values()]
    small = {"q": {"a": 1, "b": 1}}
    ranx.evaluate(ranx.Qrels(small), ranx.Run({"q": {"a": 0.5, "b": 0.4}}), metrics)  # numba compiles
    begin = time.process_time()
    lists, judgments = ranx.Run.from_file(str(run), kind="trec"), ranx.Qrels.from_file(str(qrels), kind="trec")
    read = time.process_time()
    found = ranx.evaluate(judgments, lists, metrics)
    end = time.process_time()
    return {
        "read": read - begin,
        "read_and_evaluate": end - begin,
        "values": {ours: float(found[theirs]) for ours, (_, theirs) in NAMES.items()},
    }


if __name__ == "__main__":
    main()
