"""Write the tables of docs/results.md from what `suprank compare` saved, laid out like the paper's, with its order beside ours.

    python benchmarks/paper_tables.py            # rewrites the text between <!-- begin NAME --> and <!-- end NAME -->
    python benchmarks/paper_tables.py --check    # exits with 1 if the page does not agree with the runs

The runs are benchmarks/results/comparison/SET.csv, one row per run, as `suprank compare` writes it next to its tables.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "benchmarks" / "results" / "comparison"
PAGE = ROOT / "docs" / "results.md"

SETS = {"glyphs": "glyphs", "omniglot56": "Omniglot", "emoji64": "emoji", "cub112": "CUB"}

NAMES = {
    "fast-ap": "FastAP",
    "softbin-ap": "SoftBin-AP",
    "blackbox-ap": "BlackBox-AP",
    "smooth-ap": "Smooth-AP",
    "sup-ap": "Sup-AP",
    "roadmap-pairs": "ROADMAP, L_DG",
    "roadmap": "ROADMAP",
    "smooth-recall": "Smooth-R@k",
    "sup-recall": "Sup-R@k",
    "rod-recall-pairs": "ROD-R@k, L_DG",
    "rod-recall": "ROD-R@k",
    "triplet-sh": "Triplet SH",
    "triplet-dw": "Triplet, distance-weighted",
    "nsm": "NSM",
    "proxy-nca": "NCA++",
    "contrastive-xbm": "XBM",
    "multi-similarity": "Multi-Similarity",
    "proxy-anchor": "ProxyAnchor",
    "arcface": "ArcFace",
    "cosface": "CosFace",
    "sum-triplet-sh": "ΣTL_SH",
    "sum-nsm": "ΣNSM",
    "sum-proxy-nca": "ΣNCA++",
    "csl": "CSL",
    "rod-ndcg": "ROD-NDCG",
    "happier": "HAPPIER",
    "happier-f": "HAPPIER_F",
    "smooth-hap": "Smooth-H-AP",
    "sup-hap": "Sup-H-AP",
    "sup-wap": "Sup-ΣwAP",
    "sup-ndcg": "Sup-NDCG",
}


class Layout(NamedTuple):
    """A table: methods, metrics of our runs, and the paper's results of these methods, by column."""

    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    paper: dict[str, tuple[float, ...]]
    ordered_by: str
    """Our metric that is compared with the paper's order; none if its columns are of several metrics."""


LAYOUTS = {
    "approximations": Layout(  # tab:compa_ranking_losses
        ("fast-ap", "softbin-ap", "blackbox-ap", "smooth-ap", "roadmap"),
        ("R@1", "mAP@R"),
        {"SOP mAP@R": (50.5, 52.7, 53.1, 54.3, 55.7), "iNat mAP@R": (24.0, 25.4, 15.2, 26.5, 29.5)},
        "mAP@R",
    ),
    "ablation-ap": Layout(  # tab:ablation_study, first half
        ("smooth-ap", "sup-ap", "roadmap-pairs", "roadmap"),
        ("R@1", "mAP@R"),
        {"SOP mAP@R": (54.3, 54.8, 55.7, 55.7), "iNat mAP@R": (26.5, 27.5, 27.6, 29.5)},
        "mAP@R",
    ),
    "ablation-recall": Layout(  # tab:ablation_study, second half
        ("smooth-recall", "sup-recall", "rod-recall-pairs", "rod-recall"),
        ("R@1", "mAP@R"),
        {"SOP mAP@R": (53.7, 54.2, 56.6, 55.8), "iNat mAP@R": (25.5, 26.4, 27.0, 29.8)},
        "mAP@R",
    ),
    "hierarchical": Layout(  # tab:main_sop_inat
        (
            "triplet-sh",
            "nsm",
            "proxy-nca",
            "smooth-ap",
            "sum-triplet-sh",
            "sum-nsm",
            "sum-proxy-nca",
            "csl",
            "rod-ndcg",
            "happier",
            "happier-f",
        ),
        ("R@1", "AP", "H-AP", "ASI", "NDCG"),
        {
            "SOP H-AP": (42.2, 42.8, 43.0, 42.9, 53.1, 50.4, 49.5, 52.8, 58.3, 59.4, 52.0),
            "iNat-base H-AP": (39.5, 38.0, 39.5, 41.3, 44.0, 47.9, 48.9, 50.1, 53.1, 54.3, 43.2),
        },
        "H-AP",
    ),
    "optimization": Layout(  # tab:hrank_optim
        ("smooth-hap", "sup-hap", "happier"), ("H-AP", "NDCG"), {"iNat-base H-AP": (52.3, 53.1, 54.3)}, "H-AP"
    ),
    "relevance": Layout(  # tab:analysis_relevance
        ("sup-hap", "sup-wap"),
        ("H-AP", "wAP", "NDCG"),
        {"iNat-base H-AP": (53.1, 52.0), "iNat-base ΣwAP": (39.8, 40.5), "iNat-base NDCG": (97.0, 96.4)},
        "",
    ),
    "memory": Layout(  # tab:compa_xbm
        ("contrastive-xbm", "roadmap"), ("R@1", "mAP@R"), {"SOP mAP@R": (54.9, 55.7), "iNat mAP@R": (18.5, 29.5)}, "mAP@R"
    ),
    "others": Layout(
        ("multi-similarity", "proxy-anchor", "arcface", "cosface", "triplet-dw", "sup-ndcg"),
        ("R@1", "mAP@R", "H-AP"),
        {},
        "mAP@R",
    ),
}

Values = dict[str, dict[str, list[float]]]
"""The values of a dataset by method and metric, a fraction for each seed."""


def runs_of(name: str) -> Values:
    """The finished runs of a dataset; nothing if there is no file."""
    found: Values = {}
    file = RUNS / f"{name}.csv"
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()) if file.exists() else ():
        if row["finished"] == "yes":
            measured = found.setdefault(Path(row["recipe"]).stem, {})
            for metric, value in row.items():
                if re.match(r"[A-Z]|m?AP|wAP", metric) and value:
                    measured.setdefault(metric, []).append(float(value))
    return found


def cell(values: list[float]) -> str:
    """Mean ± deviation in percent."""
    percent = [100 * value for value in values]
    return f"{statistics.fmean(percent):.1f}" + (f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else "")


def agreement(ours: list[float], theirs: tuple[float, ...]) -> str:
    """How many pairs of methods are in the paper's order, of those with different values in the paper."""
    pairs = [(one, other) for one in range(len(ours)) for other in range(one) if theirs[one] != theirs[other]]
    same = sum((ours[one] - ours[other]) * (theirs[one] - theirs[other]) > 0 for one, other in pairs)
    return f"{same} of {len(pairs)}"


def places(values: list[float] | tuple[float, ...]) -> list[int]:
    """1 for the best; equal ones share a place."""
    return [1 + sum(other > value for other in values) for value in values]


def table(layout: Layout, sets: dict[str, Values]) -> str:
    """Markdown: a row for each method; our numbers, the best of a column in bold, then the paper's with their places."""
    shown = {name: runs for name, runs in sets.items() if any(method in runs for method in layout.methods)}
    columns = [(name, metric) for name in shown for metric in layout.metrics if _measured(shown[name], layout, metric)]
    ours = [f"{SETS[name]} {metric}" if len(shown) > 1 else metric for name, metric in columns]
    heads = ["method", *ours, *(f"{one} (paper)" for one in layout.paper)]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    best = {}
    for name, metric in columns:
        means = [statistics.fmean(one[metric]) for method in layout.methods if (one := shown[name].get(method))]
        best[name, metric] = f"{100 * max(means):.1f}" if len(means) > 1 else ""
    for row, method in enumerate(layout.methods):
        line = [NAMES[method]]
        for name, metric in columns:
            values = shown[name].get(method, {}).get(metric)
            text = cell(values) if values else "–"
            line.append(f"**{text}**" if values and text.split(" ")[0] == best[name, metric] else text)
        line += [f"{theirs[row]:.1f} ({places(theirs)[row]})" for theirs in layout.paper.values()]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n" + "".join(_orders(layout, shown))


def _measured(runs: Values, layout: Layout, metric: str) -> bool:
    return any(metric in runs[method] for method in layout.methods if method in runs)


def _orders(layout: Layout, shown: dict[str, Values]) -> list[str]:
    """A sentence on each of the paper's columns: how many pairs of methods are in its order in our datasets."""
    found = []
    for column, theirs in layout.paper.items():
        counts = []
        for name, runs in shown.items():
            if all(layout.ordered_by in runs.get(method, {}) for method in layout.methods):
                means = [statistics.fmean(runs[method][layout.ordered_by]) for method in layout.methods]
                counts.append(f"{SETS[name]} {agreement(means, theirs)}")
        if counts:
            found.append(f"\nPairs in the order of the paper's {column}, by our {layout.ordered_by}: {', '.join(counts)}.\n")
    return found


def page(text: str) -> str:
    """The page with all its tables rewritten."""
    sets = {name: runs_of(name) for name in SETS}
    known = {name: table(layout, sets) for name, layout in LAYOUTS.items()}
    known |= {f"{name}-{one}": table(layout, {one: sets[one]}) for name, layout in LAYOUTS.items() for one in SETS if sets[one]}

    def written(found: re.Match[str]) -> str:
        name = found[1]
        if name not in known:
            sys.exit(f"{PAGE} asks for a table {name!r}; choose from {', '.join(known)}.")
        return f"<!-- begin {name} -->\n{known[name]}<!-- end {name} -->"

    return re.sub(r"<!-- begin ([\w-]+) -->\n.*?<!-- end \1 -->", written, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 1 where something would change")
    options = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if options.check:
        sys.exit(
            0 if after == before else f"{PAGE} is not what the runs say; python benchmarks/paper_tables.py writes it anew."
        )
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
