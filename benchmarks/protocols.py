"""One model under each protocol, and one convention changed at a time: the numbers of docs/evaluation.md.

    suprank data import csv cub200_s128.zip --out cub.parquet
    suprank embed tf_efficientnet_lite0 cub.parquet --size 112 --resize 0 --split train --split test --out embeddings
    python benchmarks/protocols.py embeddings           measures; writes benchmarks/results/protocols.json and the page's tables
    python benchmarks/protocols.py embeddings --mteb    compares `mieb` with mteb's own scores of the same embeddings
    python benchmarks/protocols.py --write              writes the tables again, from the numbers
    python benchmarks/protocols.py --check              exits with 1 if the page has other tables

The images are those of CUB-200-2011 with a short side of 128 pixels, the weights timm's, trained on ImageNet only.
Any folder of `suprank embed` with the splits train and test and the levels species, genus and family can be measured.
"""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pages

from suprank import __version__
from suprank.embedding import read_embedded
from suprank.evaluation import Qrels, QueryInGalleryWarning, Report, evaluate
from suprank.evaluation.protocols import mteb_metric
from suprank.system import torchvision_operators

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "evaluation.md", ROOT / "benchmarks" / "results" / "protocols.json"
COPIED = 20  # every 20th image gets a copy
SINGLE = 60  # species of which one image is kept
CODE_BITS = 24


@dataclass(frozen=True)
class Result:
    """A number: under which protocol or convention, of how many queries against how many items."""

    table: str
    row: str
    metric: str
    value: float
    queries: int
    items: int


@dataclass(frozen=True)
class Images:
    """Embeddings of images, with their classes at the levels species, genus and family."""

    embeddings: np.ndarray
    labels: np.ndarray

    @property
    def ids(self) -> list[str]:
        return [f"{row:05}" for row in range(len(self.labels))]

    @property
    def species(self) -> np.ndarray:
        return self.labels[:, 0]

    def take(self, rows: np.ndarray) -> Images:
        return Images(self.embeddings[rows], self.labels[rows])

    def one_query_per_species(self) -> tuple[Images, Images]:
        """The first image of each species, and all others."""
        first = np.zeros(len(self.labels), bool)
        first[np.unique(self.species, return_index=True)[1]] = True
        return self.take(first), self.take(~first)


def read_images(folder: Path, part: str) -> Images:
    embeddings, items, _ = read_embedded(folder, part)
    return Images(np.asarray(embeddings, np.float32), items.labels_at(["species", "genus", "family"]))


# One model under each protocol


def measure_protocols(test: Images, train: Images) -> list[Result]:
    each = evaluate(test.embeddings, test.species, protocol="dml")
    found = results("protocols", "`dml`", each, "R@1", "R-P", "mAP@R")
    mieb = evaluate(test.embeddings, test.species, ids=test.ids, protocol="mieb")
    found += results("protocols", "`mieb`, queries in the corpus", mieb, "R@1", "NDCG-linear@10", "AP-all@5")
    queries, others = test.one_query_per_species()
    everything = Images(np.concatenate([others.embeddings, train.embeddings]), np.concatenate([others.labels, train.labels]))
    with_train = evaluate(queries.embeddings, queries.species, everything.embeddings, everything.species, protocol="mieb")
    name = "`mieb`, one query a species, train images in the corpus"
    found += results("protocols", name, with_train, "R@1", "NDCG-linear@10", "AP-all@5")
    judged = revisited_judgments(queries, others)
    revisited = evaluate(queries.embeddings, gallery=others.embeddings, truth=judged, protocol="revisited")
    found += results("protocols", "`revisited`", revisited, "AP/easy", "AP/medium", "AP/hard", "P@10/medium")
    landmarks = evaluate(queries.embeddings, queries.species, others.embeddings, others.species, protocol="gldv2")
    return found + results("protocols", "`gldv2`", landmarks, "mAP@100")


def revisited_judgments(queries: Images, gallery: Images) -> list[dict[str, np.ndarray]]:
    """Easy: the species; hard: other species of the genus; junk: other genera of the family."""
    rows = []
    for species, genus, family in queries.labels:
        same = [gallery.labels[:, level] == own for level, own in enumerate((species, genus, family))]
        kinds = {"easy": same[0], "hard": same[1] & ~same[0], "junk": same[2] & ~same[1]}
        rows.append({kind: np.flatnonzero(mask) for kind, mask in kinds.items()})
    return rows


# One convention at a time


def measure_conventions(test: Images, train: Images) -> list[Result]:
    return [
        *measure_self_match(test),
        *measure_copies(test),
        *measure_divisors(test),
        *measure_train_images(test, train),
        *measure_no_positives(test),
        *measure_ties(test),
    ]


def measure_self_match(test: Images) -> list[Result]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QueryInGalleryWarning)  # which is what is measured here
        itself = evaluate(test.embeddings, test.species, test.embeddings, test.species, metrics=["R@1"])
    found = results("self", "kept, and right by its label", itself, "R@1")
    for rule, row in (("keep", "kept, and not judged"), ("first", "the first result left out")):
        judged = Qrels.from_labels(test.species, query_ids=test.ids, self_match=rule, ks=(1,))
        report = evaluate(test.embeddings, ids=test.ids, truth=judged)
        found += results("self", row, report, "R@1")
    return found + results("self", "left out by its row", evaluate(test.embeddings, test.species, protocol="dml"), "R@1")


def measure_copies(test: Images) -> list[Result]:
    """With an exact copy of every 20th image at the end, under another row."""
    copied = np.arange(0, len(test.labels), COPIED)
    rows = np.concatenate([np.arange(len(test.labels)), copied])
    ids = test.ids
    more, originals = test.take(rows), [ids[row] for row in rows]
    by_row = evaluate(more.embeddings, more.species, protocol="dml")
    by_place = evaluate(more.embeddings, more.species, ids=more.ids, ks=[1], protocol="mieb")
    by_id = evaluate(more.embeddings, more.species, ids=originals, metrics=["R@1"])
    return [
        *results("copies", "left out by its row: the copy is a hit", by_row, "R@1"),
        *results("copies", "the first result left out: the image or its copy", by_place, "R@1"),
        *results("copies", "left out by the id that both have", by_id, "R@1"),
    ]


def measure_divisors(test: Images) -> list[Result]:
    names = ["mAP@10", "AP-all@10", "recall-all@10", "mAP@R", "mAP@100", "AP"]
    report = evaluate(test.embeddings, test.species, metrics=names, per_query=True)
    queries, others = test.one_query_per_species()
    whole = evaluate(queries.embeddings, queries.species, others.embeddings, others.species, metrics=["AP"])
    easy = [{"easy": row["easy"], "hard": [], "junk": []} for row in revisited_judgments(queries, others)]
    trapezoids = evaluate(queries.embeddings, gallery=others.embeddings, truth=easy, protocol="revisited")
    assert report.per_query is not None
    every, share = report.per_query["AP-all@10"], report.per_query["recall-all@10"]
    by_found = np.divide(every, share, out=np.zeros_like(every), where=share > 0).mean()
    return [
        Result(
            "divisor", "first 10, divided by the positives found", "AP@10", float(by_found), report.n_queries, report.n_items
        ),
        *results("divisor", "first 10, divided by min(10, R)", report, "mAP@10"),
        *results("divisor", "first 10, divided by R", report, "AP-all@10"),
        *results("divisor", "first R, divided by R", report, "mAP@R"),
        *results("divisor", "first 100, divided by min(100, R)", report, "mAP@100"),
        *results("divisor", "whole list, divided by R", report, "AP"),
        *results("divisor", "whole list, one query a species", whole, "AP"),
        *results("divisor", "the same by trapezoids", trapezoids, "AP/easy"),
    ]


def measure_train_images(test: Images, train: Images) -> list[Result]:
    """The 5,864 images of other species as distractors: items without a label of a query."""
    gallery, labels = np.concatenate([test.embeddings, train.embeddings]), np.concatenate([test.species, train.species])
    own = np.arange(len(test.labels))
    names = ["R@1", "AP"]
    return [
        *results("train", "test images only", evaluate(test.embeddings, test.species, metrics=names), *names),
        *results(
            "train",
            "test and train images",
            evaluate(test.embeddings, test.species, gallery, labels, self_index=own, metrics=names),
            *names,
        ),
    ]


def measure_no_positives(test: Images) -> list[Result]:
    """With one image only of the first 60 species: a query of these has nothing to find."""
    first = np.unique(test.species, return_index=True)[1][:SINGLE]
    kept = ~np.isin(test.species, test.species[first])
    kept[first] = True
    report = evaluate(*(getattr(test.take(kept), name) for name in ("embeddings", "species")), metrics=["AP"])
    (without,) = report.without_positives.values()
    as_zero = report["AP"] * (1 - without / report.n_queries)
    return [
        *results("no positives", "left out of the mean", report, "AP"),
        Result("no positives", "counted as 0", "AP", as_zero, report.n_queries, report.n_items),
    ]


def measure_ties(test: Images) -> list[Result]:
    """With embeddings of 24 bits, the signs of the first numbers, many items have the same score."""
    some = test.embeddings[:, :CODE_BITS]
    codes = np.where(some > np.median(some, axis=0), 1, -1).astype(np.float32)
    ids = [f"{name:05}" for name in np.random.default_rng(0).permutation(len(codes))]  # or else they would follow the species
    worst = evaluate(codes, test.species, metrics=["R@1"])
    by_id = evaluate(codes, ids=ids, truth=Qrels.from_labels(test.species, query_ids=ids, self_match="id", ks=(1,)))
    return [
        *results("ties", "the worse item first", worst, "R@1"),
        *results("ties", "the larger id first", by_id, "R@1"),
    ]


def results(table: str, row: str, report: Report, *metrics: str) -> list[Result]:
    return [Result(table, row, metric, report[metric], report.n_queries, report.n_items) for metric in metrics]


# mteb itself


def compare_with_mteb(test: Images) -> str:
    """Evaluate the embeddings in mteb, as a task whose queries are its corpus; say which scores differ from ours."""
    torchvision_operators.declare()  # before mteb imports torchvision

    import datasets
    import mteb
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    class Stored(AbsEncoder):  # type: ignore[misc]
        """A model that has embedded the images already."""

        mteb_model_meta = ModelMeta.create_empty(
            {"name": "suprank/stored", "modalities": ["image"], "similarity_fn_name": ScoringFunction.COSINE}
        )

        def encode(self, inputs: Any, **_: Any) -> np.ndarray:
            return test.embeddings[[int(name) for name in inputs.dataset["id"]]]

    class Task(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = mteb.get_task("CUB200I2IRetrieval").metadata
        skip_first_result = True

        def load_data(self, num_proc: int | None = None, **_: Any) -> None:
            names, images = test.ids, datasets.Dataset.from_dict({"id": test.ids})
            judged = {
                name: {names[item]: 1 for item in np.flatnonzero(test.species == own) if names[item] != name}
                for name, own in zip(names, test.species, strict=True)
            }
            parts = {"corpus": images, "queries": images, "relevant_docs": judged, "top_ranked": None}
            self.dataset, self.data_loaded = {"default": {"test": parts}}, True

    (result,) = mteb.evaluate(Stored(), Task(), cache=None).task_results
    theirs = {name: value for name, value in result.scores["test"][0].items() if "_at_" in name and "nauc" not in name}
    ours = evaluate(test.embeddings, test.species, ids=test.ids, protocol="mieb")
    differ = [name for name, value in theirs.items() if round(value, 5) != round(ours[mteb_metric(name)], 5)]
    return f"{len(theirs) - len(differ)} of {len(theirs)} scores of mteb {mteb.__version__} are ours; others: {differ}"


# Tables


def tables(found: list[Result]) -> dict[str, str]:
    """The tables of the page by name, in Markdown."""
    written = {}
    for name in dict.fromkeys(result.table for result in found):
        rows: dict[tuple[str, int, int], list[str]] = {}
        for one in (result for result in found if result.table == name):
            rows.setdefault((one.row, one.queries, one.items), []).append(f"{one.metric} {100 * one.value:.2f}")
        first = "protocol" if name == "protocols" else "convention"
        lines = [f"| {first} | queries | items | % |", "|---|---|---|---|"]
        lines += [f"| {row} | {queries:,} | {items:,} | {', '.join(cells)} |" for (row, queries, items), cells in rows.items()]
        written[name] = "\n".join(lines) + "\n"
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embeddings", type=Path, nargs="?", help="folder of `suprank embed` with the splits train and test")
    parser.add_argument("--mteb", action="store_true", help="compare with mteb's own scores; nothing is written")
    parser.add_argument("--write", action="store_true", help="write the tables from the numbers that are there")
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 1 where something would change")
    options = parser.parse_args()
    if sum(map(bool, (options.embeddings, options.write, options.check))) != 1:
        parser.error("give one of EMBEDDINGS, --write and --check.")
    if options.embeddings is not None:
        test, train = (read_images(options.embeddings, part) for part in ("test", "train"))
        if options.mteb:
            print(compare_with_mteb(test))
            return
        found = [*measure_protocols(test, train), *measure_conventions(test, train)]
        saved: dict[str, Any] = {"suprank": __version__, "results": [asdict(one) for one in found]}
        RESULTS.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    found = [Result(**one) for one in json.loads(RESULTS.read_text(encoding="utf-8"))["results"]]
    pages.update(PAGE, tables(found), check=options.check)


if __name__ == "__main__":
    main()
