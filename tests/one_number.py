"""Small random evaluations, in arrays and in files; two processes evaluate them together (`tests/test_one_number.py`)."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch.distributed

from suprank.evaluation import evaluate
from tests.together import run_together

COUNT = 200
NAMES = ("species", "genus", "family")
SEPARATOR = "|"


@dataclass(frozen=True)
class Side:
    """Embeddings `[n, 3]` of few values, labels `[n, levels]` or sets of them `[n, 1, 2]`, and ids; −1 is no label."""

    embeddings: np.ndarray
    labels: np.ndarray
    ids: list[str] | None

    def rows(self) -> list[list[str]]:
        """The cells of a table, labels by name."""
        rows = []
        for labels in self.labels.tolist():
            names = [[f"class {one}" for one in ([own] if isinstance(own, int) else own) if one >= 0] for own in labels]
            rows.append([SEPARATOR.join(one) for one in names])
        return [[*row, *([] if self.ids is None else [self.ids[number]])] for number, row in enumerate(rows)]


@dataclass(frozen=True)
class Case:
    """Queries that rank each other or a gallery, with distractors in it, at one to three levels."""

    levels: tuple[str, ...]
    queries: Side
    gallery: Side | None

    def arrays(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `evaluate` and of `RetrievalData.from_arrays`."""
        sides = (self.queries,) if self.gallery is None else (self.queries, self.gallery)
        given: dict[str, Any] = {"levels": self.levels}
        for name, side in zip(("ids", "gallery_ids"), sides, strict=False):
            given[name] = side.ids
        return tuple(one for side in sides for one in (side.embeddings, side.labels)), given

    def save(self, folder: Path) -> None:
        """`queries.npy`, `queries.csv`, and both in `queries.parquet`; the gallery likewise."""
        folder.mkdir(parents=True)
        for name, side in (("queries", self.queries), ("gallery", self.gallery)):
            if side is not None:
                np.save(folder / f"{name}.npy", side.embeddings)
                columns = [*(f"label_{level}" for level in self.levels), *([] if side.ids is None else ["id"])]
                lines = [",".join(f'"{cell}"' for cell in row) for row in [columns, *side.rows()]]
                (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
                cells = {column: list(own) for column, own in zip(columns, zip(*side.rows(), strict=True), strict=True)}
                rows = pa.FixedSizeListArray.from_arrays(pa.array(side.embeddings.ravel()), side.embeddings.shape[1])
                pyarrow.parquet.write_table(pa.table({"embedding": rows, **cells}), folder / f"{name}.parquet")

    def files(self, folder: Path, *, parquet: bool = False) -> tuple[list[Path], dict[str, Any]]:
        """The arguments of `suprank.evaluate` for the files in this folder."""
        names = ["queries"] if self.gallery is None else ["queries", "gallery"]
        kinds = ("parquet", "parquet") if parquet else ("npy", "csv")
        options = {"levels": [f"label_{level}" for level in self.levels]} if len(self.levels) > 1 else {}
        if self.queries.ids is not None:
            options["id_column"] = "id"
        if self.queries.labels.ndim == 3:
            options["label_separator"] = SEPARATOR
        return [folder / f"{name}.{kind}" for name in names for kind in kinds], options


def draw(number: int) -> Case:
    """The case of this number: every third has sets of labels, every second a gallery, some have ids."""
    rng = np.random.default_rng(number)
    sets, depth = number % 3 == 2, 1 if number % 3 == 2 else int(rng.integers(1, 4))
    classes = int(rng.integers(2, 7))
    count = int(rng.integers(3, 15))
    ids = number % 5 < 2

    def side(size: int, distractors: int) -> Side:
        embeddings = rng.integers(-1, 2, (size, 3)).astype(np.float32)  # ties, and copies of queries
        embeddings[~embeddings.any(1)] = 1
        if sets:
            labels = np.sort(rng.integers(-1, classes, (size, 1, 2)))[:, :, ::-1]
            labels[:, :, 1][labels[:, :, 0] == labels[:, :, 1]] = -1
            labels[0] = [[0, 1]]  # somebody has two
        else:
            finest = rng.integers(0, classes, size)
            labels = np.stack([finest // 2**level for level in range(depth)], 1)
            for level in range(depth):  # a label is missing, and all finer ones with it
                labels[rng.random(size) < 0.1, : level + 1] = -1
        labels[size - distractors :] = -1
        names = [f"image {one}" for one in rng.integers(0, size, size)] if ids else None
        return Side(embeddings, np.ascontiguousarray(labels), names)

    queries = side(count, 0)
    if not sets:
        queries.labels[0] = 0  # somebody has a label
    return Case(NAMES[:depth], queries, side(int(rng.integers(2, 15)), int(rng.integers(0, 3))) if number % 2 else None)


def numbers(report: Any) -> dict[str, float | None]:
    """The means to the last digit; None for NaN, which is unequal to itself."""
    return {key: None if math.isnan(value) else value for key, value in report.items()}


def process(rank: int, folder: Path) -> None:
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    found = []
    for number in range(COUNT):
        arrays, given = draw(number).arrays()
        found.append(numbers(evaluate(*arrays, **given, progress=False, device="cpu", memory_budget=1)))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def two_processes() -> None:
    """The command line of both: its argument is the folder in which each leaves what it found."""
    sys.exit(run_together(process, [(rank, Path(sys.argv[1])) for rank in range(2)]))
