"""How costs grow with a collection: CPU time, wall time and peak memory of each operation at 10,000 to 4 million.

python benchmarks/scale.py                 all rows; writes benchmarks/results/cpu/scale.json and the tables of the page
python benchmarks/scale.py --row to-tree --row archive-list      these rows anew; --list names all
python benchmarks/scale.py --resume        goes on after an interruption: what is in the file is not measured again
python benchmarks/scale.py --quick --out quick.json              up to 10,000, to see that it works
python benchmarks/scale.py --write         writes the tables again, from the numbers
python benchmarks/scale.py --check         exits with 1 if the page has other tables

Every measurement has a fresh process. Its data are drawn by another one, into a temporary folder that is deleted. Of a function
the call is measured, without imports and reading what it is given; of a command the whole process. Peak memory is that of the
process, with libraries and data. The exponent is the slope of log(CPU time) over log(size), by least squares; of a command, the
CPU time of the same command on a hundred items is subtracted first. Other libraries are measured in the same run.

A whole run should take 10 to 14 minutes on two idle cores, 5 GB of disk and 6 GB of memory. Long rows (over half a minute each,
with their data): index-exact-query, which builds the indexes of a million vectors; index-ivf-query; cluster; evaluate;
evaluate-streamed.

On a busy machine set OMP_NUM_THREADS=1: threads that wait for each other count that as CPU time, up to twenty times the work.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import itertools
import json
import math
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pages

# No numpy or torch up here: the peak memory of a command would include that of the process which starts it.

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "benchmarks.md", ROOT / "benchmarks" / "results" / "cpu" / "scale.json"
SIZES = (10_000, 100_000, 1_000_000, 4_000_000)
START = 100  # items of a command whose time is subtracted as that of its start
OURS = "suprank"
LIMIT = 240.0  # seconds of wall time after which a measurement is given up
QUERY_REPEATS = 100

Work = Callable[[], Any]
"""What is measured. It may return facts, and a command returns its own costs among them."""
Prepare = Callable[[Path, int], Work]
"""Reads what the work needs from a folder with data of a size."""


@dataclass(frozen=True)
class Row:
    """An operation, the sizes it is measured at, the data it needs, and what other libraries do instead."""

    name: str
    title: str
    sizes: tuple[int, ...]
    data: str | None
    ours: Prepare
    peers: dict[str, Prepare] = field(default_factory=dict)
    is_command: bool = False
    calls: int = 1
    """How many calls are measured together."""
    aim: float | None = None
    """Wall seconds at the largest size, or with `beside` a multiple of a peer's CPU time."""
    beside: str | None = None

    @property
    def who(self) -> dict[str, Prepare]:
        return {OURS: self.ours, **self.peers}


@dataclass(frozen=True)
class Measurement:
    """Costs of one call, or why there are none."""

    row: str
    size: int
    who: str
    cpu_s: float | None = None
    wall_s: float | None = None
    peak_mib: float | None = None
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    load: float = 0.0


# Data, each made in a folder of its own by a process of its own


def draw_manifest(folder: Path, size: int) -> None:
    """A manifest of three levels: ten images a class, a thousand groups at most, 20 coarse ones."""
    import numpy as np

    from suprank.data import Manifest

    rng = np.random.default_rng(0)
    fine = np.sort(rng.integers(0, max(20, size // 10), size))
    middle = fine % max(20, min(1000, size // 100))
    columns: dict[str, Any] = {
        "path": [f"images/{label // 1000:04}/{label:07}/{row:08}.jpg" for row, label in enumerate(fine.tolist())],
        "split": np.where(rng.random(size) < 0.5, "train", "test").tolist(),
        "label_class": [f"class {label:07}" for label in fine.tolist()],
        "label_group": [f"group {label:04}" for label in middle.tolist()],
        "label_kind": [f"kind {label:02}" for label in (middle % 20).tolist()],
    }
    manifest = Manifest.from_columns(columns, root=folder)
    manifest.save(folder / "manifest.parquet")
    manifest.take(range(10)).save(folder / "tiny.parquet")


def draw_archive(folder: Path, size: int) -> None:
    """A zip of JPEGs of 8 × 8 pixels, a hundred in a folder, its manifest, and embeddings of 8 dimensions for the explorer."""
    import numpy as np
    from PIL import Image

    from suprank.data import Manifest

    drawn = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 40)).save(drawn, "JPEG", quality=20, optimize=True)
    names = [f"photos/class_{row // 100:05}/photo_{row * 7919 % 10_000_000:07}.jpg" for row in range(size)]
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_STORED) as archive:
        for row, name in enumerate(names):  # with different bytes after the image, because otherwise all are duplicates
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), drawn.getvalue() + row.to_bytes(4, "big"))
    columns = {
        "path": [f"images.zip::{name}" for name in names],
        "split": ["test"] * size,
        "label_class": [name.split("/")[1] for name in names],
    }
    Manifest.from_columns(columns, root=folder).save(folder / "manifest.parquet")
    np.save(folder / "embeddings.npy", np.random.default_rng(0).normal(size=(size, 8)).astype(np.float32))


def draw_tar(folder: Path, size: int) -> None:
    """The same names in a tar, of 200 bytes each."""
    import tarfile

    from suprank.data import Manifest

    names = [f"photos/class_{row // 100:05}/photo_{row * 7919 % 10_000_000:07}.jpg" for row in range(size)]
    with tarfile.open(folder / "images.tar", "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 200
            archive.addfile(member, io.BytesIO(bytes(200)))
            archive.members = []
    columns = {"path": [f"images.tar::{name}" for name in names], "split": ["test"] * size}
    Manifest.from_columns(columns, root=folder, levels=()).save(folder / "manifest.parquet")


def draw_vectors(folder: Path, size: int, dim: int, *, classes: int, dtype: str = "float32", noise: float = 1.5) -> None:
    """Vectors around the centers of classes, which lie in 64 dimensions; 1,000 queries; labels of two levels, 4 coarse ones."""
    import numpy as np

    rng = np.random.default_rng(0)
    latent = rng.normal(size=(classes, 64)).astype(np.float32)
    spread = rng.normal(size=(64, dim)).astype(np.float32) / 8
    for name, count, kind in (("vectors", size, dtype), ("queries", 1000, "float32")):
        labels = rng.integers(0, classes, count)
        file = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.dtype(kind), (count, dim))
        for start in range(0, count, 100_000):
            own = latent[labels[start : start + 100_000]]
            file[start : start + 100_000] = (own + noise * 0.5 * rng.standard_normal(own.shape, np.float32)) @ spread
        file.flush()
        np.save(folder / f"{name}-labels.npy", np.stack([labels, labels % 4], 1))


def draw_indexes(folder: Path, size: int) -> None:
    """An exact and an IVF index of vectors of 256 dimensions; the 10 best items of 100 new queries."""
    import numpy as np

    from suprank.evaluation import top_k
    from suprank.explorer import Index

    draw_vectors(folder, size, 256, classes=max(20, size // 10), noise=1.0)
    for kind in ("exact", "ivf"):
        Index.cached(np.load(folder / "vectors.npy", mmap_mode="r"), folder / "index", kind)
    queries = np.load(folder / "queries.npy")[:QUERY_REPEATS]
    np.save(folder / "best.npy", top_k(queries, folder / "vectors.npy", 10, progress=False).rows)


def draw_labels(folder: Path, size: int) -> None:
    """A project of labels with vectors of 256 dimensions around 30 labels each."""
    import numpy as np

    from suprank.hierarchy import Project, embed_labels

    draw_vectors(folder, size, 256, classes=max(2, size // 30))
    texts = [f"label {row // 97:05} of {row % 97:02}" for row in range(size)]
    (folder / "labels.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    np.savez(folder / "vectors.npz", labels=np.array(texts), embeddings=np.load(folder / "vectors.npy"))
    _suprank("hierarchy", "new", folder / "project", "--labels", folder / "labels.txt")
    embed_labels(Project(folder / "project"), f"precomputed:{folder / 'vectors.npz'}")


DATA: dict[str, Callable[[Path, int], None]] = {
    "manifest": draw_manifest,
    "archive": draw_archive,
    "tar": draw_tar,
    "gallery": lambda folder, size: draw_vectors(folder, size, 512, classes=max(20, size // 10)),
    "small-gallery": lambda folder, size: draw_vectors(folder, size, 64, classes=max(20, size // 10)),
    "half-gallery": lambda folder, size: draw_vectors(folder, size, 128, classes=max(20, size // 10), dtype="float16"),
    "indexes": draw_indexes,
    "labels": draw_labels,
}


# Commands


def _suprank(*words: Any, stop_at: Callable[[subprocess.Popen[str]], dict[str, Any]] | None = None) -> dict[str, Any]:
    """Run a command in a process, and return its costs; `stop_at` may look at it while it runs, and end it."""
    began = time.perf_counter()
    output = subprocess.PIPE if stop_at is not None else subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "suprank", *map(str, words)], stdout=output, stderr=subprocess.STDOUT, text=True
    )
    facts = {} if stop_at is None else stop_at(process)
    _, status, used = os.wait4(process.pid, 0)
    if stop_at is None and status:
        raise RuntimeError(f"suprank {' '.join(map(str, words))} ended with {os.waitstatus_to_exitcode(status)}")
    costs = {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.perf_counter() - began, "peak_mib": used.ru_maxrss / 1024}
    return {**costs, **facts}


def command(*words: str, fresh: str | None = None) -> Prepare:
    """A command with {folder} for that of its data; `fresh` is a file that is copied first, so that no cache knows it."""

    def prepare(folder: Path, size: int) -> Work:
        where = folder
        if fresh is not None:
            where = Path(tempfile.mkdtemp(prefix="fresh", dir=folder))
            for file in (fresh, "manifest.parquet"):
                shutil.copy2(folder / file, where / file)
        return lambda: _suprank(*(word.format(folder=where) for word in words))

    return prepare


def first_picture(folder: Path, size: int) -> Work:
    """Start the explorer, ask for its first page and for the first picture on it, and stop."""
    where = Path(tempfile.mkdtemp(prefix="fresh", dir=folder))
    for file in ("images.zip", "manifest.parquet", "embeddings.npy"):
        shutil.copy2(folder / file, where / file)
    words = ("explore", where / "embeddings.npy", "--manifest", where / "manifest.parquet", "--no-browser", "--port", "0")

    def visit(process: subprocess.Popen[str]) -> dict[str, Any]:
        began = time.perf_counter()
        url, printed = None, ""
        for line in process.stdout or ():
            printed += line
            if (found := re.search(r"http://127\.0\.0\.1:\d+", line)) is not None:
                url = found[0]
                break
        if url is None:
            raise RuntimeError(f"the explorer did not start: {printed}")
        opened = time.perf_counter() - began
        page = urllib.request.urlopen(url, timeout=LIMIT).read().decode()
        picture = re.search(r'"(/picture/[^"]+)"', page)
        if picture is None:
            raise RuntimeError("the first page has no picture")
        urllib.request.urlopen(url + picture[1], timeout=LIMIT).read()
        wall = time.perf_counter() - began
        process.send_signal(signal.SIGINT)
        return {"wall_s": wall, "until_the_page_s": round(opened, 3)}

    return lambda: _suprank(*words, stop_at=visit)


# Functions


def archive_list(archive: str, *, again: bool = False) -> Prepare:
    def prepare(folder: Path, size: int) -> Work:
        from suprank.data.image_files import ImageFiles, missing_rows
        from suprank.data.manifest import Manifest

        where = Path(tempfile.mkdtemp(prefix="fresh", dir=folder))
        shutil.copy2(folder / archive, where / archive)
        paths = Manifest.read(folder / "manifest.parquet").paths
        if again:  # what a new process does: the list in the cache, which another one made
            listing = (
                "import sys; from suprank.data.image_files import ImageFiles; ImageFiles(sys.argv[1]).archive(sys.argv[2])"
            )
            subprocess.run([sys.executable, "-c", listing, where, archive], check=True)

        def work() -> None:
            assert not len(missing_rows(paths, ImageFiles(where)))

        return work

    return prepare


def zipfile_list(folder: Path, size: int) -> Work:
    def work() -> None:
        with zipfile.ZipFile(folder / "images.zip") as archive:
            assert len(archive.namelist()) == size

    return work


def tarfile_list(folder: Path, size: int) -> Work:
    import tarfile

    def work() -> None:
        with tarfile.open(folder / "images.tar") as archive:
            assert len(archive.getnames()) == size

    return work


def with_manifest(call: Callable[[Any], Any]) -> Prepare:
    def prepare(folder: Path, size: int) -> Work:
        from suprank.data import Manifest, holdout_classes, samplers  # noqa: F401

        manifest = Manifest.read(folder / "manifest.parquet")
        manifest.labels  # noqa: B018  decoded once, and kept
        return lambda: call(manifest)

    return prepare


def manifest_read(folder: Path, size: int) -> Work:
    from suprank.data import Manifest

    Manifest.read(folder / "tiny.parquet")  # starts threads
    return lambda: Manifest.read(folder / "manifest.parquet").labels


def pyarrow_read(folder: Path, size: int) -> Work:
    import pyarrow.parquet as pq

    pq.read_table(folder / "tiny.parquet")
    return lambda: pq.read_table(folder / "manifest.parquet")


def polars_read(folder: Path, size: int) -> Work:
    import polars

    polars.read_parquet(folder / "tiny.parquet")
    return lambda: polars.read_parquet(folder / "manifest.parquet")


def pyarrow_filter(folder: Path, size: int) -> Work:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "manifest.parquet")
    return lambda: table.filter(pc.equal(table["split"], "test"))


def polars_filter(folder: Path, size: int) -> Work:
    import polars

    table = polars.read_parquet(folder / "manifest.parquet")
    return lambda: table.filter(polars.col("split") == "test")


LEVELS = ["label_class", "label_group", "label_kind"]


def pyarrow_group(folder: Path, size: int) -> Work:
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "manifest.parquet")
    return lambda: table.group_by(LEVELS).aggregate([([], "count_all")])


def polars_group(folder: Path, size: int) -> Work:
    import polars

    table = polars.read_parquet(folder / "manifest.parquet")
    return lambda: table.group_by(LEVELS).len()


def holdout(manifest: Any) -> Any:
    from suprank.data import holdout_classes

    return holdout_classes(manifest, 0.5)


def tree_text(folder: Path, size: int) -> Work:
    import numpy as np

    from suprank.data.tree import LabelTree

    groups = max(2, size // 30)
    names = tuple(f"class {row}" for row in range(size)), tuple(f"group {row}" for row in range(groups))
    parents = np.random.default_rng(0).integers(0, groups, size)
    tree = LabelTree(("class", "group"), names, (parents,), (np.ones(size, np.int64), np.bincount(parents, minlength=groups)))
    return tree.text


def balanced_batches(manifest: Any) -> None:
    from suprank.data.samplers import BalancedBatchSampler

    for _ in BalancedBatchSampler(manifest.labels, batch_size=128, images_per_class=4):
        pass


def hierarchical_batches(manifest: Any) -> None:
    from suprank.data.samplers import HierarchicalBatchSampler

    for _ in HierarchicalBatchSampler(manifest.labels, batch_size=128, level=2, batches=max(1, len(manifest) // 128)):
        pass


def cluster_faiss(folder: Path, size: int) -> Work:
    import faiss
    import numpy as np

    vectors = np.load(folder / "vectors.npy")
    k = max(2, size // 30)
    return lambda: faiss.Kmeans(vectors.shape[1], k, niter=25, nredo=1, seed=0, spherical=True).train(vectors)


def index_query(kind: str) -> Prepare:
    """100 new queries one by one, after one that opens the files; their recall of the 10 best is a fact."""

    def prepare(folder: Path, size: int) -> Work:
        import numpy as np

        from suprank.explorer import Index

        opened = Index.cached(np.load(folder / "vectors.npy", mmap_mode="r"), folder / "index", kind)
        queries = np.load(folder / "queries.npy")[:QUERY_REPEATS]
        best = np.load(folder / "best.npy")
        opened.search(queries[:1], 10)

        def work() -> dict[str, Any]:
            times, found = [], []
            for query in queries:
                began = time.perf_counter()
                found.append(opened.search(query[None], 10).rows[0])
                times.append(time.perf_counter() - began)
            return _query_facts(times, found, best)

        return work

    return prepare


def _query_facts(times: Sequence[float], found: Sequence[Any], best: Any) -> dict[str, Any]:
    recall = statistics.mean(
        len(set(map(int, own)) & set(map(int, known))) / len(known) for own, known in zip(found, best, strict=True)
    )
    return {"median_ms": round(1e3 * statistics.median(times), 3), "recall_at_10": round(recall, 4)}


def faiss_query(kind: str) -> Prepare:
    """Flat, or IVF of as many cells and 16-bit numbers, with the fewest probes that find 95 % of the 10 best."""

    def prepare(folder: Path, size: int) -> Work:
        import faiss
        import numpy as np

        vectors, queries = np.load(folder / "vectors.npy"), np.load(folder / "queries.npy")[:QUERY_REPEATS]
        best = np.load(folder / "best.npy")
        for rows in (vectors, queries):
            faiss.normalize_L2(rows)
        cells = max(1, int(4 * math.sqrt(size)))
        factory = "Flat" if kind == "exact" else f"IVF{cells},SQfp16"
        index = faiss.index_factory(256, factory, faiss.METRIC_INNER_PRODUCT)
        if kind != "exact":
            index.train(vectors[np.sort(np.random.default_rng(0).choice(size, min(size, 40 * cells), replace=False))])
        index.add(vectors)
        del vectors
        probes = 1
        while kind != "exact" and probes < cells:
            index.nprobe = probes
            if _query_facts([0.0], list(index.search(queries, 10)[1]), best)["recall_at_10"] >= 0.95:
                break
            probes *= 2

        def work() -> dict[str, Any]:
            times, found = [], []
            for query in queries:
                began = time.perf_counter()
                found.append(index.search(query[None], 10)[1][0])
                times.append(time.perf_counter() - began)
            return {**_query_facts(times, found, best), **({} if kind == "exact" else {"probes": probes, "cells": cells})}

        return work

    return prepare


def evaluation(queries: int = 1000, levels: int = 2, streamed: bool = False, metrics: Sequence[str] | None = None) -> Prepare:
    """`evaluate` of some queries against a gallery of two or more levels, in memory, or in a float16 file within 512 MiB."""

    def prepare(folder: Path, size: int) -> Work:
        import numpy as np

        from suprank.evaluation import evaluate

        labels, own = (_levels(np.load(folder / f"{part}-labels.npy"), levels, size) for part in ("vectors", "queries"))
        file, asked = folder / "vectors.npy", np.load(folder / "queries.npy")[:queries]
        gallery = file if streamed else np.load(file)
        options: dict[str, Any] = {"metrics": metrics, "progress": False}
        first = np.load(file, mmap_mode="r")[:100_000].astype(np.float32)
        evaluate(asked, own[:queries], first, labels[: len(first)], **options)  # compiles what it needs, the first time
        del first
        if streamed:
            options["memory_budget"] = 512 * 2**20

        def work() -> dict[str, Any]:
            report = evaluate(asked, own[:queries], gallery, labels, **options)
            return {name: report[name] for name in ("R@1", "AP") if name in report}

        return work

    return prepare


def _levels(labels: Any, levels: int, size: int) -> Any:
    """The labels as they are, or at `levels` levels from the finest classes to two coarse ones."""
    import numpy as np

    if levels == 2:
        return labels
    counts = np.geomspace(max(20, size // 10), 2, levels).round().astype(int)
    columns = [labels[:, 0]]
    for above, count in itertools.pairwise(counts.tolist()):
        columns.append(columns[-1] * count // above)
    return np.stack(columns, 1)


def faiss_flat(queries: int = 1000) -> Prepare:
    """The 100 best of each query by faiss's flat search, without any metric."""

    def prepare(folder: Path, size: int) -> Work:
        import faiss
        import numpy as np

        asked, vectors = np.load(folder / "queries.npy")[:queries], np.load(folder / "vectors.npy")
        faiss.normalize_L2(asked)
        faiss.normalize_L2(vectors)
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        del vectors
        return lambda: index.search(asked, min(100, size)) and None

    return prepare


def faiss_blocks(queries: int = 1000) -> Prepare:
    """The 100 best of each query in a float16 file, a block of 100,000 rows at a time, by `faiss.knn`."""

    def prepare(folder: Path, size: int) -> Work:
        import faiss
        import numpy as np

        asked, gallery = np.load(folder / "queries.npy")[:queries], np.load(folder / "vectors.npy", mmap_mode="r")
        faiss.normalize_L2(asked)

        def work() -> None:
            best = faiss.ResultHeap(len(asked), 100, keep_max=True)
            for start in range(0, size, 100_000):
                block = gallery[start : start + 100_000].astype(np.float32)
                faiss.normalize_L2(block)
                best.add_result(*_with_offset(faiss.knn(asked, block, min(100, len(block)), faiss.METRIC_INNER_PRODUCT), start))
            best.finalize()

        return work

    return prepare


def _with_offset(found: tuple[Any, Any], start: int) -> tuple[Any, Any]:
    return found[0], found[1] + start


UP_TO_A_MILLION, TO_FOUR = SIZES[:3], SIZES
FAISS = "faiss"
ROWS = [
    Row(
        "archive-list",
        "list a zip, and look all paths up in it",
        UP_TO_A_MILLION,
        "archive",
        archive_list("images.zip"),
        {"zipfile, list only": zipfile_list},
        aim=10,
    ),
    Row("archive-again", "... from the cache", UP_TO_A_MILLION, "archive", archive_list("images.zip", again=True), aim=1),
    Row(
        "tar-list",
        "list a tar, and look all paths up in it",
        UP_TO_A_MILLION,
        "tar",
        archive_list("images.tar"),
        {"tarfile, list only": tarfile_list},
        aim=25,
    ),
    Row("tar-again", "... from the cache", UP_TO_A_MILLION, "tar", archive_list("images.tar", again=True), aim=1),
    Row(
        "archive-import",
        "`data import folder` of a zip",
        UP_TO_A_MILLION,
        "archive",
        command("data", "import", "folder", "{folder}/images.zip", "--out", "{folder}/new.parquet", fresh="images.zip"),
        is_command=True,
        aim=10,
    ),
    Row(
        "archive-check",
        "`data check --no-decode` of a zip",
        UP_TO_A_MILLION,
        "archive",
        command("data", "check", "{folder}/manifest.parquet", "--no-decode", "-q", fresh="images.zip"),
        is_command=True,
        aim=10,
    ),
    Row(
        "archive-exists",
        "`data check --no-decode --no-hashes` of a zip",
        UP_TO_A_MILLION,
        "archive",
        command("data", "check", "{folder}/manifest.parquet", "--no-decode", "--no-hashes", "-q", fresh="images.zip"),
        is_command=True,
    ),
    Row(
        "archive-decode",
        "`data check` of a zip",
        SIZES[:2],
        "archive",
        command("data", "check", "{folder}/manifest.parquet", "-q", fresh="images.zip"),
        is_command=True,
    ),
    Row(
        "first-picture",
        "`explore` of images in a zip, until the first picture",
        UP_TO_A_MILLION,
        "archive",
        first_picture,
        is_command=True,
        aim=10,
    ),
    Row(
        "manifest-read", "`Manifest.read`", TO_FOUR, "manifest", manifest_read, {"pyarrow": pyarrow_read, "polars": polars_read}
    ),
    Row(
        "manifest-filter",
        "`Manifest.split`: half of the rows",
        TO_FOUR,
        "manifest",
        with_manifest(lambda one: one.split("test")),
        {"pyarrow": pyarrow_filter, "polars": polars_filter},
    ),
    Row(
        "to-tree",
        "`Manifest.to_tree`: images of each class and its parents",
        TO_FOUR,
        "manifest",
        with_manifest(lambda one: one.to_tree()),
        {"pyarrow group_by": pyarrow_group, "polars group_by": polars_group},
        aim=1,
    ),
    Row("holdout-classes", "`holdout_classes`", TO_FOUR, "manifest", with_manifest(holdout), aim=2),
    Row("balanced-batches", "an epoch of `BalancedBatchSampler`", TO_FOUR, "manifest", with_manifest(balanced_batches)),
    Row(
        "hierarchical-batches",
        "as many batches of `HierarchicalBatchSampler`",
        TO_FOUR,
        "manifest",
        with_manifest(hierarchical_batches),
    ),
    Row("tree-text", "`LabelTree.text` of so many classes", UP_TO_A_MILLION, None, tree_text),
    Row(
        "cluster",
        "`hierarchy cluster` of labels with vectors of 256, k = labels / 30",
        SIZES[:2],
        "labels",
        command("hierarchy", "cluster", "{folder}/project", "-q"),
        {"faiss, one k-means of the six": cluster_faiss},
        is_command=True,
        aim=60,
    ),
    Row(
        "index-exact-query",
        "a query of an exact index, × 256",
        UP_TO_A_MILLION,
        "indexes",
        index_query("exact"),
        {"faiss flat": faiss_query("exact")},
        calls=QUERY_REPEATS,
    ),
    Row(
        "index-ivf-query",
        "a query of an IVF index, × 256",
        UP_TO_A_MILLION,
        "indexes",
        index_query("ivf"),
        {"faiss IVF": faiss_query("ivf")},
        calls=QUERY_REPEATS,
        aim=0.002,
    ),
    Row("evaluate-160", "`evaluate`, 160 queries, every metric, × 64", SIZES[:2], "small-gallery", evaluation(160)),
    Row("evaluate-170", "`evaluate`, 170 queries, every metric, × 64", SIZES[:2], "small-gallery", evaluation(170)),
    Row("evaluate-7-levels", "`evaluate`, 100 queries, 7 levels, × 64", SIZES[:2], "small-gallery", evaluation(100, levels=7)),
    Row(
        "evaluate",
        "`evaluate`, 1,000 queries, every metric, 4 coarse classes, × 512",
        UP_TO_A_MILLION,
        "gallery",
        evaluation(),
        {"faiss flat, 100 best": faiss_flat()},
        aim=1.5,
        beside="faiss flat, 100 best",
    ),
    Row(
        "evaluate-streamed",
        "`evaluate`, 500 queries, every metric, a float16 file × 128 within 512 MiB",
        TO_FOUR,
        "half-gallery",
        evaluation(500, streamed=True),
        {"faiss.knn by blocks, 100 best": faiss_blocks(500)},
    ),
]
AIM_OF_A_LIST = 0.6
LISTS = [
    Row(
        f"suprank {words}",
        f"`suprank {words}`",
        (START,),
        None,
        command(*words.split()),
        is_command=True,
    )
    for words in (
        "--version",
        "--help",
        "train --help",
        "recipes",
        "recipes sop/roadmap",
        "paper",
    )
]


# Measuring


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", metavar="NAME", help="measure this row, repeatable (default: all)")
    parser.add_argument("--list", action="store_true", help="list the rows and their sizes")
    parser.add_argument("--quick", action="store_true", help="sizes up to 10,000; write --out, and no page")
    parser.add_argument(
        "--resume", action="store_true", help="keep what is in the file of results, and measure what is missing"
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave other libraries out")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="give a measurement up after this time")
    parser.add_argument("--folder", type=Path, help="where data are made, and deleted (default: TMPDIR)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results")
    parser.add_argument("--write", action="store_true", help="write the tables from the numbers that are there")
    parser.add_argument("--check", action="store_true", help="change nothing, and exit with 1 where something would change")
    parser.add_argument("--child", nargs=4, metavar=("KIND", "NAME", "SIZE", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        _child(given.child[0], given.child[1], int(given.child[2]), Path(given.child[3]))
        return
    rows = {row.name: row for row in (*ROWS, *LISTS)}
    if unknown := [name for name in given.row or () if name not in rows]:
        parser.error(f"there is no row {unknown[0]!r}; the rows are {', '.join(rows)}.")
    if given.list:
        for row in rows.values():
            print(f"{row.name:36}{', '.join(f'{size:,}' for size in row.sizes):40}{row.title}")
        return
    if not (given.write or given.check):
        if given.quick and given.out == RESULTS:
            parser.error("--quick is for trying out; name a file: --out quick.json")
        measure([rows[name] for name in given.row or rows], given)
        if given.out != RESULTS:
            print(_tables(given.out)["scale"] + "\n" + _tables(given.out)["lists"])
            return
    pages.update(PAGE, _tables(RESULTS), check=given.check)


def measure(rows: Sequence[Row], given: argparse.Namespace) -> None:
    """Measure rows one after another, and save after each measurement."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or else data and the measured process would be left behind
    found = _load(given.out)
    if not given.resume:
        names = {row.name for row in rows}
        found = [one for one in found if one.row not in names]
    done = {(one.row, one.size, one.who) for one in found}
    with tempfile.TemporaryDirectory(prefix="scale", dir=given.folder) as name:
        folder = Path(name)
        for number, row in enumerate(rows):
            sizes = (1_000, 10_000) if given.quick and row.sizes != (START,) else row.sizes
            for size in ([START] if row.is_command and row.sizes != (START,) else []) + list(sizes):
                for who in row.who if given.peers else (OURS,):
                    if (row.name, size, who) in done or (size == START and who != OURS):
                        continue
                    one = _measure(row, size, who, folder, given.limit)
                    print(f"{row.name:24}{size:>12,}  {who:32}{one.note or _costs(one)}  {one.facts or ''}", flush=True)
                    found.append(one)
                    _save(given.out, found)
            later = {other.data for other in rows[number + 1 :]}
            for data in folder.glob(f"{row.data}-*"):
                if row.data not in later:
                    shutil.rmtree(data)


def _measure(row: Row, size: int, who: str, folder: Path, limit: float) -> Measurement:
    data = folder / f"{row.data or 'none'}-{size}"
    about: dict[str, Any] = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "load": round(os.getloadavg()[0], 1)}
    if not data.is_dir():
        data.mkdir()
        if row.data is not None and (note := _run_child("draw", row.data, size, data, folder, 3 * limit)[1]):
            shutil.rmtree(data)
            return Measurement(row.name, size, who, note=f"no data: {note}", **about)
    if row.is_command and size == START and who == OURS:
        _run_child(who, row.name, size, data, folder, limit)  # compiles modules, and fills caches
    costs, note = _run_child(who, row.name, size, data, folder, limit)
    for left in data.glob("fresh*"):
        shutil.rmtree(left)
    return Measurement(row.name, size, who, note=note, **costs, **about)


def _run_child(kind: str, name: str, size: int, data: Path, folder: Path, limit: float) -> tuple[dict[str, Any], str]:
    """Run this script in a fresh process; return the costs that it printed, or what went wrong."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, [environment.get("PYTHONPATH")])])
    environment["SUPRANK_CACHE"] = str(folder / "cache")
    words = [sys.executable, __file__, "--child", kind, name, str(size), str(data)]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdout=output, stderr=errors, env=environment, start_new_session=True)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {}, f"not done in {limit:.0f} s"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        output.seek(0)
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [""])[-1]
        if process.returncode:
            missing = re.search(r"No module named '(\w+)", last)
            return {}, f"{missing[1]} is not installed" if missing else last or f"ended with {process.returncode}"
        return json.loads(output.read() or "{}"), ""


def _child(kind: str, name: str, size: int, folder: Path) -> None:
    """In a process of its own: draw data, or measure one call and print its costs."""
    if kind == "draw":
        DATA[name](folder, size)
        return
    (row,) = (row for row in (*ROWS, *LISTS) if row.name == name)
    work = row.who[kind](folder, size)
    wall, cpu = time.perf_counter(), time.process_time()
    facts = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    import resource

    costs: dict[str, Any] = {
        "cpu_s": cpu,
        "wall_s": wall,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    facts = dict(facts) if isinstance(facts, dict) else {}
    costs |= {key: facts.pop(key) for key in tuple(costs) if key in facts}  # of a command, which knows its own
    costs |= {key: costs[key] / row.calls for key in ("cpu_s", "wall_s")}
    print(json.dumps({**{key: float(f"{value:.4g}") for key, value in costs.items()}, "facts": facts}))


# Results


def _load(file: Path) -> list[Measurement]:
    return (
        [Measurement(**one) for one in json.loads(file.read_text(encoding="utf-8"))["measurements"]] if file.is_file() else []
    )


def _save(file: Path, found: Sequence[Measurement]) -> None:
    source = (ROOT / "src" / "suprank" / "__init__.py").read_text(encoding="utf-8")  # which is measured, whatever is installed
    versions = {"suprank": re.findall(r'^__version__ = "(.+)"', source, flags=re.MULTILINE)[0]}
    for name in ("torch", "numpy", "pyarrow", "polars", "faiss-cpu"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    about = {
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "python": platform.python_version(),
        "versions": versions,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**about, "measurements": [asdict(one) for one in found]}, indent=1)
    temporary = file.with_suffix(".part")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(file)


def exponent(sizes: Sequence[int], seconds: Sequence[float], start: float = 0.0, least: float = 0.002) -> float | None:
    """The slope of log(seconds − start) over log(size) by least squares; None with fewer than two times above `least`.

    Example:
        >>> exponent([10, 100, 1000], [1.1, 10.1, 100.1], start=0.1)
        1.0
    """
    points = [
        (math.log(size), math.log(took - start)) for size, took in zip(sizes, seconds, strict=True) if took - start > least
    ]
    if len(points) < 2:
        return None
    x, y = (statistics.mean(point[axis] for point in points) for axis in (0, 1))
    return round(sum((one - x) * (other - y) for one, other in points) / sum((one - x) ** 2 for one, _ in points), 2)


def _tables(file: Path) -> dict[str, str]:
    """The tables of the page by name, in Markdown."""
    about = json.loads(file.read_text(encoding="utf-8"))
    found = {(one.row, one.size, one.who): one for one in _load(file)}
    columns = sorted({size for name, size, _ in found if size != START})
    head = ["operation", *(_size(size) for size in columns), "wall", "memory", "exponent", "aim", "in the same run"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(columns) + 3) + "---|---|"]
    for row in ROWS:
        own = {size: found[row.name, size, OURS] for size in columns if (row.name, size, OURS) in found}
        if not own:
            continue
        last = own[max(own)]
        cells = [row.title, *(_cpu(own.get(size)) for size in columns)]
        cells += [_seconds(last.wall_s), _memory(last.peak_mib), _exponent(row, own, found.get((row.name, START, OURS)))]
        peers = {who: one for (name, size, who), one in found.items() if name == row.name and size == last.size and who != OURS}
        beside = [f"ours: {_facts(last)}"] if row.calls > 1 else []
        beside += [f"{who}: {_peer(one)}" for who, one in peers.items()]
        cells += [_aim(row, last, peers, about["cores"]), "; ".join(beside)]
        lines.append("| " + " | ".join(cells) + " |")
    measured = [one for one in found.values() if one.note == ""]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    loads = sorted(one.load for one in measured)
    days = " and ".join(sorted({one.date[:10] for one in measured}))
    machine = f"{about['cores']} cores, OMP_NUM_THREADS: {about['threads']}, load {loads[0]} to {loads[-1]}, {days}"
    lines += ["", f"{machine}; Python {about['python']}, {versions}."]
    lists = ["| | CPU | wall | memory | aim |", "|---|---:|---:|---:|---|"]
    for row in LISTS:
        one = found.get((row.name, START, OURS))
        if one is not None:
            title = row.title.replace(" {folder}/exact", " INDEX")
            cells = [title, _cpu(one), _seconds(one.wall_s), _memory(one.peak_mib), _judge(AIM_OF_A_LIST, one, about["cores"])]
            lists.append("| " + " | ".join(cells) + " |")
    return {"scale": "\n".join(lines) + "\n", "lists": "\n".join(lists) + "\n"}


def _exponent(row: Row, own: dict[int, Measurement], start: Measurement | None) -> str:
    timed = {size: one.cpu_s for size, one in own.items() if one.cpu_s is not None}
    begin, least = ((start.cpu_s or 0.0) if start is not None else 0.0, 0.1 if row.is_command else 0.002)
    slope = exponent(list(timed), list(timed.values()), begin, least / row.calls)
    return "too quick" if slope is None else f"{slope:.2f}"


def _aim(row: Row, last: Measurement, peers: dict[str, Measurement], cores: int) -> str:
    """Whether the aim of a row is met: by CPU time where it is relative to a peer, otherwise as `_judge` says."""
    if row.aim is None or last.size != row.sizes[-1]:
        return ""
    if row.beside is not None:
        other = peers.get(row.beside)
        if last.cpu_s is None or other is None or other.cpu_s is None:
            return f"{row.aim} × {row.beside}"
        ratio = last.cpu_s / other.cpu_s
        return f"{row.aim} × {row.beside}: {'met' if ratio <= row.aim else '**missed**'}, {ratio:.2f} ×"
    return _judge(row.aim, last, cores)


def _judge(aim: float, one: Measurement, cores: int) -> str:
    """Whether an aim is met: by wall time, or by CPU time where other work had more processes than there are cores."""
    took, busy = (one.cpu_s, ", by CPU time") if one.load > cores else (one.wall_s, "")
    met = took is not None and took <= aim
    return f"{_seconds(aim)}: {'met' if met else '**missed**'}{busy}"


def _peer(one: Measurement) -> str:
    return one.note or ", ".join(filter(None, [_costs(one), _facts(one)]))


def _facts(one: Measurement) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one.facts.items())


def _costs(one: Measurement) -> str:
    return f"{_seconds(one.cpu_s)} CPU, {_seconds(one.wall_s)}, {_memory(one.peak_mib)}"


def _cpu(one: Measurement | None) -> str:
    return "" if one is None else one.note or _seconds(one.cpu_s)


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g} s" if value >= 0.9995 else f"{1e3 * value:.3g} ms"


def _memory(mib: float | None) -> str:
    return "" if mib is None else f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def _size(size: int) -> str:
    return f"{size // 10**6} million" if size >= 10**6 else f"{size:,}"


if __name__ == "__main__":
    main()
