"""Galleries in files that are read in their order: Parquet without a copy, the same digits as .npy, and what a plan says."""

import logging

import numpy as np
import pytest
import torch

from suprank.evaluation import embedding_files, evaluate, memory_plan, plan_evaluation
from suprank.evaluation import evaluation_job as job_module
from suprank.evaluation import plan as plan_module
from suprank.evaluation.block_ranking import rank_positives
from suprank.evaluation.embedding_files import ParquetRows
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.positives import LabelPositives
from suprank.evaluation.search import Search
from suprank.ranking.exact import plain
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
    from suprank.evaluation.label_encoding import encode_labels
    from suprank.evaluation.label_tables import read_label_table

    table = read_label_table(tmp_path / "labels.npy")
    kept = encode_labels(table, renumber=False).queries
    assert kept.dtype == np.int32
    assert isinstance(kept, np.memmap)
    assert evaluate(embeddings, kept, level_names=["label0", "label1"], progress=False) == expected


def test_a_plan_counts_what_is_read(collection):
    rows, labels, folder = collection
    plan = plan_evaluation(rows[:5], labels[:5], folder / "rows.npy", labels, self_index=range(5))
    assert (plan.queries, plan.items, plan.dim, plan.gallery_bytes) == (5, 151, 24, 151 * 24 * 2)
    assert plan.on_disk
    assert plan.seconds > 0
    assert (plan.blocks, plan.reads) == (1, 2), "once to check the embeddings, and once to rank them"
    assert "5 queries × 151 items, read 2 times from 7.25 kB of files" in str(plan)
    with pytest.raises(ValueError, match="labels have 4 rows"):
        plan_evaluation(rows[:5], labels[:4])
    with pytest.raises(TypeError, match="intervals"):
        plan_evaluation(rows[:5], labels[:5], intervals=True)


def test_a_streamed_gallery_is_announced_if_it_takes_long_and_the_digits_stay(collection, monkeypatch, caplog):
    rows, labels, folder = collection
    options = {"memory_budget": 30_000, "self_index": range(9), "progress": False}
    expected = evaluate(rows[:9], labels[:9], rows, labels, self_index=range(9), progress=False)
    for name, value in (("_LEAST_STREAMED", {"cpu": 64}), ("_READINGS", 0)):
        monkeypatch.setattr(memory_plan, name, value)
    monkeypatch.setattr(job_module, "_FEWEST_CHUNKS", 2)
    with caplog.at_level(logging.INFO, "suprank.evaluation"):
        assert evaluate(rows[:9], labels[:9], folder / "rows.npy", labels, **options) == expected
        assert not caplog.messages, "it takes less than a minute"
        monkeypatch.setattr(job_module, "_LONG", 0)
        assert evaluate(rows[:9], labels[:9], folder / "rows.npy", labels, **options) == expected
    (message,) = caplog.messages
    assert message.startswith("about 1 s: 9 queries × 151 items, read ")


def test_the_estimate_grows_with_items_and_with_blocks(monkeypatch):
    """Of a machine on which a chunk takes a second to read and ten to rank, and twice that from the disk."""
    clock = {"now": 0.0}
    monkeypatch.setattr(plan_module.time, "perf_counter", lambda: clock["now"])
    monkeypatch.setattr(plan_module, "_seconds_of_check", lambda *_: 0.0)

    class Gallery:
        on_disk, nbytes, items = True, 10**18, 100 * 64

        def __len__(self):
            return self.items

    class Machine:
        whole, chunk, device, last_chunk = False, 64, torch.device("cpu"), None
        gallery = Gallery()

        def __init__(self):
            self.touched = set()

        def map_blocks(self, function, blocks):
            return map(function, blocks)

        def chunks(self, start=0):
            for number in range(start // 64, self.last_chunk or 100):
                clock["now"] += 1.0 if number in self.touched else 2.0
                self.touched.add(number)
                yield number

    machine = Machine()

    def rank_block(rows):
        clock["now"] += 3.0  # whatever the gallery
        for _ in range(2):
            for _ in machine.chunks():
                clock["now"] += 10.0 * len(rows) / 8

    seconds = plan_module.measure_seconds(machine, rank_block, [np.arange(8), np.arange(8), np.arange(4)], passes=2)
    # Two blocks and a half are ranked, in two passes of 100 chunks; three are read twice, from the disk, after the check.
    assert seconds == pytest.approx(2.5 * (3 + 2 * 100 * 10) + 3 * 2 * 100 * 2 + 100 * 1)


@pytest.fixture
def measured(monkeypatch):
    """A search that is about to be measured: unchecked, and in chunks of 64 items, of which the first is ranked."""
    monkeypatch.setattr(memory_plan, "_LEAST_STREAMED", {"cpu": 64})
    monkeypatch.setattr(memory_plan, "_READINGS", 0)

    def search(gallery):
        sources = Embeddings.from_source(worker.data()[0][:9]), Embeddings.from_source(gallery)
        found = Search(*sources, device=torch.device("cpu"), memory_budget=30_000, check=False)
        found.last_chunk = 1
        return found

    return search


def test_embeddings_that_a_check_would_refuse_are_measured_with_finite_scores(measured):
    """NaN would send numba's loops out of their arrays, and `evaluate` announces how long it takes before it checks."""
    gallery = worker.data()[0]
    gallery[3], gallery[5, 2], gallery[7], gallery[9] = np.nan, np.inf, 3e38, 0
    ((_, scores),) = measured(gallery).score(np.arange(9))
    assert scores.isfinite().all()
    assert scores.abs().max() <= 1.001


def test_the_positives_that_a_measurement_does_not_reach_are_ranked_as_well(measured):
    """Counting is fast where few positives have a score: the estimate came out at half of the time."""
    embeddings, labels = worker.data()
    search, positives = measured(embeddings), LabelPositives(labels[:9], labels, torch.full((9, 0), -1))
    thresholds = []

    class Ordering:
        def __getattr__(self, name):
            return getattr(plain, name)

        def count_at_or_above(self, falling, scores):
            thresholds.append(falling)
            return plain.count_at_or_above(falling, scores)

    search.ordering = Ordering()
    state = torch.get_rng_state()
    items = positives.items_of(np.arange(9))
    rank_positives(search.score(np.arange(9)), items)
    (falling,) = thresholds
    assert ((falling > -np.inf).sum(1) == (items.level > 0).sum(1)).all()
    assert torch.equal(torch.get_rng_state(), state), "random numbers of the caller's are left alone"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (40, "40 s"), (700, "12 min"), (7800, "2 h 10 min"), (273_600, "3 days 4 h")]
)
def test_durations_are_in_words(seconds, text):
    assert plan_module._duration(seconds) == text
