"""Costs that must grow with the work: operations are counted at n and 4n items, because times of a busy machine say little.

Two counts. Steps: lines of Python that run and functions that are called, in our code and in what it calls. Elements: sizes of
the arrays that are made, summed or turned into lists, by numpy of the arrays given (`CountedArray`) and by torch. A loop over
all items for each class shows in the first, and `labels == own` or `sizes.sum()` for each class in the second.
"""

import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from suprank.data import BalancedBatchSampler, HierarchicalBatchSampler, LabelTree, Manifest, holdout_classes
from suprank.data.image_files import ImageFiles, missing_rows
from suprank.data.importers import folder as folder_importer
from suprank.evaluation import evaluate

ITEMS, FACTOR = 1_000, 4
LINEAR = FACTOR**1.1  # 4.6: n log n is 4.8 between these sizes, n² 16


@dataclass
class Counts:
    """What some work took."""

    steps: int = 0
    elements: int = 0


class CountedArray(np.ndarray):
    """An array that counts the elements of every array made of it, by operators, indexing, sorting, and its own in `sum`,
    `max` and `tolist`."""

    counts = Counts()
    __array_priority__ = 1  # concatenated with a plain array it stays a counted one

    def __array_finalize__(self, made_of: object) -> None:
        if isinstance(made_of, CountedArray):
            CountedArray.counts.elements += self.size

    def sum(self, *arguments, **keywords):  # type: ignore[no-untyped-def]
        CountedArray.counts.elements += self.size
        return super().sum(*arguments, **keywords)

    def max(self, *arguments, **keywords):  # type: ignore[no-untyped-def]
        CountedArray.counts.elements += self.size
        return super().max(*arguments, **keywords)

    def nonzero(self):  # type: ignore[no-untyped-def]
        return tuple(map(counted, super().nonzero()))  # numpy's are plain arrays

    def tolist(self):  # type: ignore[no-untyped-def]
        CountedArray.counts.elements += self.size
        return super().tolist()


class CountedTensors(TorchFunctionMode):
    """Counts the elements of every tensor that a function or method of torch returns."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
        made = function(*arguments, **(keywords or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                CountedArray.counts.elements += one.numel()
        return made


def counted(values) -> CountedArray:
    return np.asarray(values).view(CountedArray)


def count(work: Callable[[], object]) -> Counts:
    """The operations of some work in this thread."""
    counts = CountedArray.counts = Counts()

    def step(frame: object, event: str, argument: object) -> Callable[..., object]:
        counts.steps += 1
        return step

    before, tracer = sys.getprofile(), sys.gettrace()
    with CountedTensors(), patch.object(np, "asarray", np.asanyarray):  # which leaves a counted array one
        sys.setprofile(lambda frame, event, argument: step(frame, event, argument) and None)
        sys.settrace(step)
        try:
            work()
        finally:
            sys.settrace(tracer)
            sys.setprofile(before)
    return counts


def growth(prepare: Callable[[int], Callable[[], object]], items: int = ITEMS) -> tuple[float, float]:
    """By which factors steps and elements grow from n to 4n items, after a first call that fills caches of functions."""
    prepare(100)()
    small, large = (count(prepare(size)) for size in (items, FACTOR * items))
    return large.steps / small.steps, large.elements / max(1, small.elements)


# Operations: each is prepared for a number of items, and what is returned is counted


def manifest(items: int, groups: int = 20) -> Manifest:
    """Ten images a class."""
    fine = np.random.default_rng(0).permutation(items) // 10
    columns = {
        "path": [f"images/{row:06}.jpg" for row in range(items)],
        "split": ["train" if row % 2 else "test" for row in range(items)],
        "label_class": [f"class {label:05}" for label in fine],
        "label_group": [f"group {label % groups:02}" for label in fine],
    }
    made = Manifest.from_columns(columns, root=".")
    made.__dict__["labels"] = counted(made.labels)  # in place of the cached property
    return made


def tree(items: int) -> LabelTree:
    parents = np.random.default_rng(0).integers(0, items // 10, items)
    names = tuple(f"class {row}" for row in range(items)), tuple(f"group {row}" for row in range(items // 10))
    images = np.ones(items, np.int64), np.bincount(parents, minlength=items // 10)
    return LabelTree(("class", "group"), names, (counted(parents),), tuple(map(counted, images)))


def all_children(items: int) -> Callable[[], object]:
    made = tree(items)
    return lambda: [made.children(1, group) for group in range(items // 10)]


def tree_from_json(items: int) -> Callable[[], object]:
    text = tree(items).to_json()
    return lambda: LabelTree.from_json(text)


def balanced_epoch(items: int) -> Callable[[], object]:
    labels = manifest(items).labels
    return lambda: list(BalancedBatchSampler(labels, batch_size=32, images_per_class=4))


def hierarchical_epoch(items: int) -> Callable[[], object]:
    """Of two groups, because what a batch costs must not grow with the classes of a group."""
    labels = manifest(items, groups=2).labels
    return lambda: list(HierarchicalBatchSampler(labels, batch_size=32, batches=items // 32))


def subset(items: int) -> Callable[[], object]:
    made = manifest(items)
    rows = np.arange(0, items, 2)
    return lambda: (made.split("test"), made.take(rows), made.splits, made.names, made.two_parents())


def evaluation(items: int) -> Callable[[], object]:
    """20 queries against all items; half of them are of the queries' coarse class."""
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(items, 8)).astype(np.float32)
    labels = np.stack([np.arange(items) // 10, np.arange(items) // 10 % 2], 1)
    return lambda: evaluate(embeddings[:20], labels[:20], embeddings, labels, self_index=np.arange(20), progress=False)


OPERATIONS = {
    "LabelTree.text": lambda items: tree(items).text,
    "LabelTree.children of all groups": all_children,
    "LabelTree.to_json": lambda items: tree(items).to_json,
    "LabelTree.from_json": tree_from_json,
    "Manifest.from_columns": lambda items: lambda: manifest(items),
    "Manifest.split, take, names": subset,
    "Manifest.to_tree": lambda items: manifest(items).to_tree,
    "holdout_classes": lambda items: (lambda made: lambda: holdout_classes(made))(manifest(items)),
    "an epoch of BalancedBatchSampler": balanced_epoch,
    "an epoch of HierarchicalBatchSampler": hierarchical_epoch,
    "evaluate 20 queries": evaluation,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_four_times_the_items_take_four_times_the_operations(operation):
    steps, elements = growth(operation)
    assert steps <= LINEAR
    assert elements <= LINEAR


def test_a_split_takes_two_dozen_steps_a_class():
    operation = OPERATIONS["holdout_classes"]
    operation(100)()
    small, large = (count(operation(size)).steps for size in (ITEMS, FACTOR * ITEMS))
    assert large - small <= 25 * (FACTOR - 1) * ITEMS // 10  # 12 for the hash of a class, 10 for its name; 84 with an object


def make_zip(folder, items: int) -> list[str]:
    folder.mkdir(exist_ok=True)
    names = [f"photos/class_{row // 10:04}/{row:05}.jpg" for row in range(items)]
    with zipfile.ZipFile(folder / "images.zip", "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), b"")
    return names


def test_paths_are_looked_up_in_an_archive_in_one_go(tmp_path):
    import pyarrow as pa

    def lookup(items):
        names = make_zip(tmp_path / str(items), items)
        paths = pa.array([f"images.zip::{name}" for name in names])
        return lambda: missing_rows(paths, ImageFiles(tmp_path / str(items)))

    assert growth(lookup)[0] <= LINEAR


def test_an_archive_is_imported_in_one_go(tmp_path):
    def imported(items):
        make_zip(tmp_path / str(items), items)
        return lambda: folder_importer.read(tmp_path / str(items) / "images.zip")

    assert growth(imported)[0] <= LINEAR


# The counts see what they are there for


def quadratic_loop(items: int) -> Callable[[], object]:
    return lambda: sum(1 for one in range(items // 10) for other in range(items // 10) if one < other)


def mask_for_each_class(items: int) -> Callable[[], object]:
    """A loop over classes whose every turn compares all items: few steps, but many elements."""
    labels = counted(np.arange(items) // 10)
    return lambda: [np.flatnonzero(labels == own) for own in range(items // 10)]


def sum_for_each_class(items: int) -> Callable[[], object]:
    sizes = counted(np.ones(items // 10, np.int64))
    return lambda: [sizes.sum() for own in range(items // 10)]


def tensor_for_each_class(items: int) -> Callable[[], object]:
    labels = torch.arange(items) // 10
    return lambda: [(labels == own).sum() for own in range(items // 10)]


def test_a_quadratic_loop_is_found():
    assert growth(quadratic_loop)[0] > 15


@pytest.mark.parametrize("operation", [mask_for_each_class, sum_for_each_class, tensor_for_each_class])
def test_a_pass_over_all_items_for_each_class_is_found(operation):
    steps, elements = growth(operation)
    assert steps < LINEAR < 15 < elements
