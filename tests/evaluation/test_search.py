"""Scores of a block of queries: which numbers, in which pieces, and that a score depends on its two vectors alone."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from suprank.evaluation.block_ranking import rank_positives, top_items
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.matrix_product import TILE, _numpy_product, _onednn_product, _scores_copies_alike, _torch_product
from suprank.evaluation.positives import LabelPositives
from suprank.evaluation.search import Search
from suprank.ranking.exact import compiled
from tests import reference
from tests.evaluation.random_collections import ORDERINGS, random_collection, using

BUDGETS = pytest.mark.parametrize("budget", [None, 1, 64 * 2**10, 2**20])
CPU = torch.device("cpu")
SHAPES = [(1, 1, 1), (3, 64, 16), (5, 65, 17), (65, 127, 3), (70, 1000, 129), (2, 300, 385)]


def searched(queries, gallery, budget=None, normalize=True):
    sources = [Embeddings.from_source(queries, "embeddings"), Embeddings.from_source(gallery, "gallery")]
    return Search(*sources, device=CPU, memory_budget=budget, normalize=normalize)


def all_scores(search, rows=None):
    """Every score, the pieces joined, without the columns that pad."""
    rows = np.arange(len(search.queries)) if rows is None else rows
    pieces = [piece.clone() for _, piece in search.score(rows)]
    return torch.cat(pieces, 1)[:, : len(search.gallery)]


def random_pair(queries, items, dim, seed=0, distinct=None):
    """Queries and a gallery in which every vector occurs a few times, and which vector each item is."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(distinct or max(1, items // 3), dim, generator=generator)
    which = torch.randint(0, len(vectors), (items,), generator=generator)
    return torch.randn(queries, dim, generator=generator), vectors[which], which


@BUDGETS
@pytest.mark.parametrize(("queries", "items", "dim"), SHAPES)
def test_scores_are_cosines(budget, queries, items, dim):
    mine, theirs, _ = random_pair(queries, items, dim)
    found = all_scores(searched(mine, theirs, budget))
    expected = torch.nn.functional.normalize(mine.double()) @ torch.nn.functional.normalize(theirs.double()).T
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-6


def test_vectors_of_another_length_are_refused_rather_than_padded():
    with pytest.raises(ValueError, match="embeddings have 10 dimensions and the gallery 16"):
        searched(torch.ones(2, 10), torch.ones(3, 16))


@pytest.fixture
def precision():
    """A function that sets how products of float32 are computed, by either of torch's interfaces; undone after the test."""
    torch.set_float32_matmul_precision("highest")

    def set_precision(name):
        if name == "medium":
            torch.set_float32_matmul_precision("medium")
        else:
            torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = "tf32", "bf16"

    yield set_precision
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


def current_precision():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision


@pytest.mark.parametrize("interface", ["medium", "tf32 and bf16"])
def test_threads_multiply_in_full_precision_and_leave_the_callers_setting(monkeypatch, precision, interface):
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    monkeypatch.setattr("suprank.evaluation.matrix_product._cpu_product", lambda dim: _torch_product)
    mine, theirs, _ = random_pair(64, 200, 16)
    with using(compiled):
        search = searched(mine, theirs)
    assert search.workers == 4
    precision(interface)
    blocks = np.array_split(np.arange(64), 32)
    seen = list(search.map_blocks(lambda rows: (all_scores(search, rows), current_precision()), blocks))
    assert {found for _, found in seen} == {("ieee", "ieee")}
    assert current_precision() == ("tf32", "bf16")


def test_threads_of_a_pool_have_one_thread_each_and_the_caller_keeps_its_own(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr("suprank.evaluation.search.torch.get_num_threads", lambda: max(2, before))
    mine, theirs, _ = random_pair(64, 200, 16)
    with using(compiled):
        search = searched(mine, theirs)
    monkeypatch.undo()
    blocks = np.array_split(np.arange(64), 8)
    assert set(search.map_blocks(lambda rows: torch.get_num_threads(), blocks)) == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("multiply", [_numpy_product, _onednn_product, _torch_product])
def test_products_that_score_copies_alike_do_so_in_any_shape_and_in_full_precision(multiply, precision):
    for dim in (16, 128, 512):
        if not _scores_copies_alike(multiply, dim):
            continue  # not on this processor
        generator = torch.Generator().manual_seed(dim)
        queries, items = torch.randn(3 * TILE, dim, generator=generator), torch.randn(9 * TILE, dim, generator=generator)
        expected = multiply(queries, items, torch.empty(3 * TILE, 9 * TILE)).clone()
        torch.testing.assert_close(expected.double(), queries.double() @ items.double().T, rtol=1e-5, atol=1e-4)
        for rows, columns in [(1, 1), (1, 9), (3, 1), (2, 5)]:
            part = multiply(queries[: rows * TILE], items[: columns * TILE], torch.empty(rows * TILE, columns * TILE))
            assert torch.equal(part, expected[: rows * TILE, : columns * TILE])
        precision("medium")
        assert torch.equal(multiply(queries, items, torch.empty(3 * TILE, 9 * TILE)), expected)


def test_one_of_the_products_scores_copies_alike_on_this_processor():
    assert any(_scores_copies_alike(multiply, 128) for multiply in (_numpy_product, _onednn_product, _torch_product))


def test_a_torch_without_onednn_uses_another_product():
    def missing(*_):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    assert not _scores_copies_alike(missing, 16)


@pytest.mark.parametrize("readings", [0, 2], ids=["in pieces", "whole rows"])
def test_threads_that_share_a_block_score_as_one_does(readings, monkeypatch):
    monkeypatch.setattr("suprank.evaluation.memory_plan._READINGS", readings)
    mine, theirs, _ = random_pair(70, 5000, 33)
    sources = [Embeddings.from_source(mine), Embeddings.from_source(theirs)]
    found, read = {}, {}
    for threads in (1, 3):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        with using(compiled):
            search = Search(*sources, device=CPU, memory_budget=900_000, positives_per_query=100)
        assert (search.threads, search.workers, search.resident, search.whole) == (threads, 1, False, readings > 0)
        seen = read[threads] = []
        search.on_chunk = seen.append
        blocks = [np.arange(70)[block] for block in search.blocks(np.full(70, 100))]
        found[threads] = torch.cat(list(search.map_blocks(lambda rows, search=search: all_scores(search, rows), blocks)))
        assert sum(seen) == len(blocks) * 5000
    assert torch.equal(found[1], found[3])
    assert torch.equal(found[1], all_scores(searched(mine, theirs)))


def test_a_streamed_gallery_is_read_about_as_often_as_rows_of_scores_fill_the_budget(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    items, budget = 60_000, 8 * 2**20
    sources = [Embeddings.from_source(torch.ones(300, 48)), Embeddings.from_source(torch.ones(items, 48))]
    for positives in (8_000, 16_000, 32_000, 59_000):
        with using(compiled):
            search = Search(*sources, device=CPU, memory_budget=budget, positives_per_query=positives)
        readings = len(search.blocks(np.full(300, positives)))
        assert search.whole
        assert readings <= 3 * 300 * 4 * items / budget, (positives, readings)


def test_without_normalizing_scores_are_inner_products():
    mine, theirs = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[3.0, 4.0], [-1.0, 0.5]])
    assert all_scores(searched(mine, theirs, normalize=False)).tolist() == [[11.0, 0.0], [0.0, 0.0]]


@BUDGETS
@pytest.mark.parametrize(("queries", "items", "dim"), SHAPES)
def test_copies_score_the_same_wherever_they_stand(budget, queries, items, dim):
    mine, theirs, which = random_pair(queries, items, dim)
    found = all_scores(searched(mine, theirs, budget))
    for vector in which.unique():
        copies = found[:, which == vector]
        assert (copies == copies[:, :1]).all()


@pytest.mark.parametrize(("queries", "items", "dim"), SHAPES)
def test_a_score_depends_neither_on_the_block_nor_on_the_budget(queries, items, dim, monkeypatch):
    mine, theirs, _ = random_pair(queries, items, dim)
    expected = all_scores(searched(mine, theirs))
    for budget, readings in itertools.product((1, 2**16, 2**20), (0, 2)):
        monkeypatch.setattr("suprank.evaluation.memory_plan._READINGS", readings)
        assert torch.equal(all_scores(searched(mine, theirs, budget)), expected)
    rows = np.random.default_rng(0).permutation(queries)[: (queries + 1) // 2]
    assert torch.equal(all_scores(searched(mine, theirs), rows), expected[rows])
    items = torch.randperm(items, generator=torch.Generator().manual_seed(1))
    assert torch.equal(all_scores(searched(mine, theirs[items])), expected[:, items])


@pytest.mark.parametrize("core", ["Haswell"])  # every processor with AVX2 and without AVX-512, AMD's Zen to Zen 3 among them
def test_copies_score_the_same_on_other_processors(core):
    # OpenBLAS, numpy's library, has code for each of them, and can be told to use another one's. Elsewhere nothing changes.
    script = """
import numpy as np, torch
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.search import Search
generator = torch.Generator().manual_seed(0)
for queries, items, dim in [(64, 64, 16), (65, 200, 64), (200, 1000, 130)]:
    mine = torch.randn(1, dim, generator=generator).repeat(queries, 1)
    theirs = torch.randn(1, dim, generator=generator).repeat(items, 1)
    for budget in (None, 1):
        sources = Embeddings.from_source(mine), Embeddings.from_source(theirs)
        search = Search(*sources, device=torch.device("cpu"), memory_budget=budget)
        pieces = [piece.clone() for _, piece in search.score(np.arange(queries))]
        found = torch.cat(pieces, 1)[:, :items].unique()
        assert len(found) == 1, (queries, items, dim, budget, found.tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_CORETYPE": core, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    if "llegal instruction" in done.stderr or done.returncode == -4:
        pytest.skip(f"this processor cannot run the code for {core}")
    assert done.returncode == 0, done.stderr


def test_padding_stands_at_minus_infinity(monkeypatch):
    monkeypatch.setattr("suprank.evaluation.memory_plan._READINGS", 0)  # rows in pieces
    for first, piece in searched(torch.ones(2, 3), torch.ones(70, 3), budget=1).score(np.arange(2)):
        assert len(piece) == 2
        inside = min(64, 70 - first)
        assert (piece[:, :inside] > 0.99).all()
        assert (piece[:, inside:] == -torch.inf).all()


def test_the_budget_bounds_what_is_held():
    mine, theirs, _ = random_pair(100, 5000, 64)
    search = searched(mine, theirs, budget=2**20)
    assert not search.resident
    positives = np.full(100, 20)
    for block in search.blocks(positives):
        number = block.stop - block.start
        held = search.chunk * 64 * 4 + 64 * -(-number // 64) * search.chunk * 4
        assert held <= 2**20
    assert searched(mine, theirs, budget=4 * 2**20).resident


@pytest.mark.parametrize("budget", [1, 2**16, 2**24])
def test_blocks_hold_every_query_once_and_in_order(budget):
    mine, theirs, _ = random_pair(1200, 90, 5)
    for positives in (np.zeros(1200, int), np.arange(1200), np.full(1200, 10**6)):
        blocks = searched(mine, theirs, budget).blocks(positives)
        rows = [row for block in blocks for row in range(block.start, block.stop)]
        assert rows == list(range(1200))
    assert searched(mine, theirs, budget).blocks(np.empty(0, int)) == []


@ORDERINGS
@BUDGETS
def test_places_are_those_of_the_total_order(ordering, budget):
    collection = random_collection(4, 12, 200, 3, classes=5, depth=3, copies=120)
    ignored = [[query, 7 * query, 7 * query] for query in range(12)]
    collection.ignored = ignored
    with using(ordering):
        search = searched(torch.tensor(collection.embeddings), torch.tensor(collection.gallery), budget)
    labels, gallery_labels = torch.tensor(collection.labels), torch.tensor(collection.gallery_labels)
    excluded = torch.tensor([[query, 7 * query if query else -1] for query in range(12)])
    positives = LabelPositives(labels, gallery_labels, excluded)
    rows = positives.queries
    found = rank_positives(search.score(rows), positives.items_of(rows))
    scores = all_scores(search)
    for row, query in enumerate(rows.tolist()):
        level = [
            -1 if item in ignored[query] else reference.known_level(collection.labels[query], other)
            for item, other in enumerate(collection.gallery_labels)
        ]
        levels = reference.from_the_top(scores[query].tolist(), level)
        expected = [(own, place) for place, own in enumerate(levels, start=1) if own > 0]
        mine = list(zip(found.level[row].tolist(), found.place[row].tolist(), strict=True))
        assert mine[: len(expected)] == expected
        assert all(own == 0 for own, _ in mine[len(expected) :])


@ORDERINGS
@BUDGETS
@pytest.mark.parametrize("k", [1, 5, 63, 150, 151, 500])
def test_the_top_holds_the_highest_scores_of_items_that_are_not_ignored(ordering, budget, k):
    mine, theirs, _ = random_pair(4, 150, 3)
    ignored = torch.tensor([[-1, -1], [0, 149], [63, -1], [64, 65]])
    with using(ordering):
        search = searched(mine, theirs, budget)
    best = top_items(search.score(np.arange(4)), ignored, k)
    scores = all_scores(search)
    for query in range(4):
        kept = [item for item in range(150) if item not in ignored[query].tolist()]
        expected = scores[query, kept].sort(descending=True).values[:k]
        number = len(expected)
        assert torch.equal(best.scores[query, :number], expected)
        item = best.item[query, :number]
        assert torch.equal(scores[query, item], expected)
        assert len(item.unique()) == number
        assert set(item.tolist()) <= set(kept)
        assert (best.scores[query, number:] == -torch.inf).all()
        assert (best.item[query, number:] == -1).all()


def test_more_items_than_places_can_count_are_refused():
    with pytest.raises(ValueError, match="gallery has 2147483648 items, but places in a list are counted up to 2147483647"):
        searched(np.ones((1, 2), np.float32), np.broadcast_to(np.float32(1), (2**31, 2)))
