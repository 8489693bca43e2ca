"""Galleries in files that are read in their order: Parquet without a copy, and the same digits as .npy."""

import numpy as np
import pytest
import torch

from suprank.evaluation import embedding_files, evaluate
from suprank.evaluation.embedding_files import ParquetRows
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.labels import read_label_files
from tests.evaluation import worker

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def collection(tmp_path):
    """151 float16 embeddings, in one .npy, and in three Parquet shards of row groups of 20; and their labels."""
    embeddings, labels = worker.data()
    rows = embeddings.half().numpy()
    np.save(tmp_path / "rows.npy", rows)
    for number, part in enumerate(np.split(rows, [50, 51])):
        column = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
        pq.write_table(pa.table({"embedding": column}), tmp_path / f"{number}.parquet", row_group_size=20)
    return rows, labels, tmp_path


@pytest.fixture
def no_copies(monkeypatch):
    def refuse(*_):
        raise AssertionError("a Parquet file was copied")

    monkeypatch.setattr(embedding_files, "map_matrices", refuse)


def test_rows_of_parquet_are_read_in_any_order_without_a_copy(collection, no_copies, monkeypatch):
    monkeypatch.setattr(embedding_files, "BLOCK_BYTES", 700)  # a few rows at a time
    rows, _, folder = collection
    found = ParquetRows(folder / "2.parquet", "rows", None)
    assert (found.shape, found.dtype) == ((100, 24), np.float16)
    rows = rows[51:]
    for start, stop in [(0, 7), (7, 30), (31, 90), (90, 100), (3, 5), (0, 100), (50, 50)]:
        np.testing.assert_array_equal(found[start:stop], rows[start:stop])
    scattered = np.array([99, 0, 20, 19, 20, 63, 1])
    np.testing.assert_array_equal(found[scattered], rows[scattered])
    shards = Embeddings.from_source(str(folder / "*.parquet"), sequential=True)
    every = torch.from_numpy(collection[0]).float()
    assert torch.equal(shards.rows(slice(45, 140)), every[45:140])
    assert torch.equal(shards.rows(torch.tensor([150, 50, 0])), every[[150, 50, 0]])


def test_a_file_that_is_read_in_part_leaves_the_warnings_of_numpy_alone(collection, monkeypatch):
    """A generator that stops within `np.errstate` silences who reads; where several did, numpy crashed once."""
    monkeypatch.setattr(embedding_files, "BLOCK_BYTES", 700)
    found = ParquetRows(collection[2] / "2.parquet", "rows", None)
    with np.errstate(all="raise"):
        found[0:7]
        assert set(np.geterr().values()) == {"raise"}


@pytest.mark.parametrize("budget", [worker.TINY, None], ids=["streamed", "resident"])
@pytest.mark.parametrize("metrics", [None, ["R@1", "mAP@10"]], ids=["every metric", "top k"])
def test_parquet_shards_and_npy_have_the_same_digits(collection, no_copies, budget, metrics):
    rows, labels, folder = collection
    options = {"metrics": metrics, "memory_budget": budget, "self_index": range(9), "per_query": True, "progress": False}
    queries = rows[:9], labels[:9]
    in_memory = evaluate(*queries, rows, labels, **options)
    assert evaluate(*queries, folder / "rows.npy", labels, **options) == in_memory
    assert evaluate(*queries, str(folder / "*.parquet"), labels, **options) == in_memory


def test_a_row_of_another_length_names_its_number_in_the_file(tmp_path, monkeypatch):
    column = pa.array([[1.0, 2.0]] * 5 + [[1.0]] + [[1.0, 2.0]], pa.list_(pa.float32()))
    pq.write_table(pa.table({"embedding": column}), tmp_path / "rows.parquet", row_group_size=3)
    monkeypatch.setattr(embedding_files, "BLOCK_BYTES", 8)  # two rows
    found = Embeddings.from_source(tmp_path / "rows.parquet", sequential=True)
    with pytest.raises(ValueError, match="row 5 has 1 numbers and the rows before have 2"):
        found.rows(slice(4, 7))


def test_labels_in_memory_mapped_files_are_not_copied(tmp_path):
    np.save(tmp_path / "labels.npy", np.stack([np.arange(151, dtype=np.int32) % 40, np.arange(151, dtype=np.int32) % 4], 1))
    mapped = np.load(tmp_path / "labels.npy", mmap_mode="r")
    embeddings, _ = worker.data()
    expected = evaluate(embeddings, np.array(mapped, np.int64), progress=False)
    assert evaluate(embeddings, mapped, progress=False) == expected
    (kept,) = read_label_files([tmp_path / "labels.npy"]).labels
    assert kept.dtype == np.int32
    assert isinstance(kept, np.memmap)
    assert evaluate(embeddings, kept, levels=["label0", "label1"], progress=False) == expected
