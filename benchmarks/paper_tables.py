"""Write the tables of docs/results.md and docs/paper.md.

    python benchmarks/paper_tables.py            # rewrites what stands between <!-- begin NAME --> and <!-- end NAME -->
    python benchmarks/paper_tables.py --check    # exits with 1 if a page is not what it would write

A table of results is what `suprank paper LABEL --small --results benchmarks/results/comparison` prints; `--on DATASET` follows
the label as a second word. The runs are benchmarks/results/comparison/PRESET.csv, as `suprank compare` writes it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pages

from suprank.evaluation.report_comparison import SIGNIFICANT
from suprank.evaluation.statistics import holm
from suprank.experiments.tables import Statistic
from suprank.paper import layout
from suprank.paper.contents import KINDS, Columns, Row, TableItem, contents
from suprank.paper.output import Output
from suprank.paper.reproduction import Reproduction
from suprank.paper.runs import Training, share_of

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "benchmarks" / "results" / "comparison"
PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "paper.md")

OTHERS = {
    "multi-similarity": "Multi-Similarity",
    "proxy-anchor": "ProxyAnchor",
    "arcface": "ArcFace",
    "cosface": "CosFace",
    "triplet-dw": "Triplet, distance-weighted",
    "sup-ndcg": "Sup-NDCG",
}
"""Methods that the paper does not compare on datasets of its own."""


DIFFERENCES = (
    ("Sup-AP", "sup-ap", "Smooth-AP", "smooth-ap", "mAP@R"),
    ("Sup-R@k", "sup-recall", "Smooth-R@k", "smooth-recall", "mAP@R"),
    ("ROADMAP with L_DG", "roadmap-pairs", "Sup-AP", "sup-ap", "mAP@R"),
    ("ROADMAP with L*_DG", "roadmap", "Sup-AP", "sup-ap", "mAP@R"),
    ("ROD-R@k with L_DG", "rod-recall-pairs", "Sup-R@k", "sup-recall", "mAP@R"),
    ("ROD-R@k with L*_DG", "rod-recall", "Sup-R@k", "sup-recall", "mAP@R"),
    ("ROADMAP with L*_DG", "roadmap", "XBM", "contrastive-xbm", "mAP@R"),
    ("NSM", "nsm", "Smooth-AP", "smooth-ap", "mAP@R"),
    ("Triplet, distance-weighted", "triplet-dw", "Sup-AP", "sup-ap", "mAP@R"),
    ("Multi-Similarity", "multi-similarity", "Sup-AP", "sup-ap", "mAP@R"),
    ("HAPPIER", "happier", "Smooth-AP", "smooth-ap", "H-AP"),
    ("ROD-NDCG", "rod-ndcg", "Smooth-AP", "smooth-ap", "H-AP"),
    ("HAPPIER", "happier", "ROD-NDCG", "rod-ndcg", "H-AP"),
    ("HAPPIER", "happier", "Smooth-AP", "smooth-ap", "R@1"),
    ("Sup-H-AP", "sup-hap", "Smooth-H-AP", "smooth-hap", "H-AP"),
    ("HAPPIER", "happier", "Sup-H-AP", "sup-hap", "H-AP"),
)
"""Pairs of methods about which the page says something: title and recipe of each, and the metric."""


def table(words: str) -> str:
    """A table of the paper on the small sets, from the runs: `tab:main_sop_inat emoji64` is on one of them."""
    label, *datasets = words.split()
    paper = Reproduction((label,), Path("unused"), small=True, results=RUNS, datasets=tuple(datasets))
    return layout.markdown(Output(paper, paper.saved_results).table(paper.items[0]), notes=False)  # type: ignore[arg-type]


def others() -> str:
    """The methods that the paper does not compare."""
    paper = Reproduction(("tables",), Path("unused"), small=True, results=RUNS)
    rows = tuple(Row((title,), {"": method}, {}, "", False) for method, title in OTHERS.items())
    item = TableItem("", "Other methods", "table", rows=rows)
    columns = [Columns(one.preset, one.title, ("R@1", "mAP@R", "H-AP")) for one in paper.small_sets.values()]
    return layout.markdown(
        layout.lay_out(item, columns, paper.saved_results, lambda preset, row: Training(preset, row.methods[""]), small=True),
        notes=False,
    )


def differences() -> str:
    """Pairs of methods on each set: the difference of the means over seeds, with its 95 % interval."""
    paper = Reproduction(("tables",), Path("unused"), small=True, results=RUNS)
    sets = list(paper.small_sets.values())

    def mean(preset: str, method: str, metric: str) -> Statistic:
        shares = [share_of(one, metric) for one in paper.saved_results[Training(preset, method)] if one is not None]
        statistic = Statistic.from_shares([one for one in shares if one is not None])
        assert statistic is not None
        return statistic

    rows = [
        [layout.welch(mean(one.preset, method, metric), mean(one.preset, other, metric)) for one in sets]
        for _, method, _, other, metric in DIFFERENCES
    ]
    p_values = iter(holm(np.array([one.p_value for row in rows for one in row])))
    lines = [f"| difference | in | {' | '.join(one.title for one in sets)} |", f"| --- | --- |{' ---: |' * len(sets)}"]
    for (title, _, other, _, metric), row in zip(DIFFERENCES, rows, strict=True):
        texts = [f"{_signed(one.difference)} [{_signed(one.low)}, {_signed(one.high)}]" for one in row]
        texts = [f"**{text}**" if next(p_values) < SIGNIFICANT else text for text in texts]
        lines.append(f"| {title} − {other} | {metric} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _signed(number: float) -> str:
    return f"{number:+.1f}".replace("-", "−")


def labels() -> str:
    """All tables and figures, and what each needs."""
    lines = ["| label | what | needs |", "| --- | --- | --- |"]
    lines += [f"| `{item.label}` | {item.title} | {KINDS[item.kind]} |" for item in contents().values()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 1 where something would change")
    options = parser.parse_args()
    own = {"differences": differences, "others": others, "labels": labels}
    for page in PAGES:
        names = [name for name in pages.table_names(page) if name in own or ":" in name]  # a label of the paper: tab:...
        pages.update(page, {name: own[name]() if name in own else table(name) for name in names}, check=options.check)


if __name__ == "__main__":
    main()
