"""The Triton kernels of `fused`: on a GPU where there is one, else at small sizes through Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from suprank.evaluation import Embeddings, evaluate
from suprank.evaluation.search import Search
from suprank.ranking.exact import Places, plain
from suprank.ranking.gpu import exact as fused
from suprank.ranking.gpu import exact_kernels as kernels
from tests.evaluation.random_collections import assert_same, random_collection, using

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FEW = settings(max_examples=12, deadline=None)


def problem(queries, items, positives, depth, distinct, seed=0):
    """Scores with about `distinct` different values (0: as many as there are), and each query's positives among the items."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(queries, items, generator=generator)
    if distinct:
        scores = (scores * distinct / 4).round() / distinct
    item = torch.stack([torch.randperm(items, generator=generator)[:positives] for _ in range(queries)])
    level = torch.randint(0, depth + 1, (queries, positives), generator=generator, dtype=torch.int8)
    return scores.to(DEVICE), item.to(DEVICE), level.to(DEVICE)


def everything(ordering, scores, item, level, depth):
    """Everything an ordering gives, from scores to sums."""
    rest, taken = scores.clone(), torch.full(item.shape, -torch.inf, device=scores.device)
    ordering.take(rest, item, 0, taken)
    falling, levels = ordering.sort_positives(taken.masked_fill(level == 0, -torch.inf), level)
    listed = levels > 0
    counts = ordering.count_at_or_above(falling, rest).where(listed, 0)
    place = counts + torch.arange(1, item.shape[1] + 1, dtype=torch.int32, device=scores.device)
    sizes = torch.stack([(level >= current).sum(1) for current in range(1, depth + 1)], 1)
    relevance = torch.rand(sizes.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(scores.device)
    places = Places(levels, place)
    return {
        "rest": rest,
        "falling": falling,
        "levels": levels,
        "counts": counts,
        **ordering.ranking_sums(places, sizes, relevance)._asdict(),
        **{f"{name} at k": part for name, part in ordering.top_sums(places, relevance, (1, 3, 10))._asdict().items()},
        "top": ordering.top(scores, 5).item,
    }


def assert_agree(*given):
    mine, truth = everything(fused, *given), everything(plain, *given)
    for name in truth:
        torch.testing.assert_close(
            mine[name], truth[name], rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


@FEW
@given(
    st.integers(1, 4),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 4),
    st.sampled_from([0, 1, 3, 50]),
    st.integers(0, 99),
)
def test_all_of_it_agrees_with_plain_torch(queries, items, positives, depth, distinct, seed):
    assert_agree(*problem(queries, items, min(items, positives), depth, distinct, seed), depth)


@pytest.mark.parametrize("positives", [fused.FEW, fused.FEW + 1])
def test_few_and_many_thresholds_are_counted_alike(positives):
    assert_agree(*problem(3, 1500, positives, 2, 0), 2)


def test_sums_over_several_segments_are_those_over_one(monkeypatch):
    given = (*problem(2, 700, 600, 3, 200), 3)
    monkeypatch.setattr(fused, "_SEGMENT", 256)
    assert_agree(*given)


def test_runs_of_equal_scores_longer_than_swapping_settles_are_sorted_by_level():
    scores, item, level = problem(2, 300, 200, 3, 1)
    assert_agree(torch.zeros_like(scores), item, level, 3)


def test_items_come_from_their_chunk_alone():
    scores, item, _ = problem(2, 100, 20, 1, 0)
    parts = torch.full(item.shape, -torch.inf, device=DEVICE)
    for first in (0, 30, 60):
        fused.take(scores[:, first : first + 30 if first < 60 else None].clone(), item, first, parts)
    assert torch.equal(parts, scores.gather(1, item))
    shared = torch.full((2, 3), -torch.inf, device=DEVICE)
    fused.take(scores.clone(), torch.tensor([5, -1, 7], device=DEVICE), 0, shared)
    assert torch.equal(shared[:, 0], scores[:, 5])
    assert shared[:, 1].isinf().all()


def test_forty_levels_are_summed_as_few_are():
    assert_agree(*problem(1, 50, 40, 40, 0), 40)


@pytest.mark.parametrize("readings", [2, 0], ids=["rows whole", "rows in pieces"])
def test_evaluation_is_the_same_through_the_kernels(readings, monkeypatch):
    monkeypatch.setattr("suprank.evaluation.memory_plan._READINGS", readings)
    collection = random_collection(seed=3, queries=8, items=60, copies=8)
    with using(plain):
        expected = collection.evaluated(device=DEVICE)
    for budget in (None, 1):
        with using(fused):
            assert_same(collection.evaluated(device=DEVICE, memory_budget=budget), expected, tolerance=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize(("positives", "depth", "distinct"), [(5, 1, 0), (4000, 3, 0), (20000, 7, 0), (4000, 3, 2000)])
def test_large_lists_agree_on_a_gpu(positives, depth, distinct):
    assert_agree(*problem(64, 40000, positives, depth, distinct), depth)


@pytest.mark.gpu
def test_two_runs_agree_bit_by_bit():
    given = (*problem(64, 40000, 10000, 3, 0), 3)
    one, other = everything(fused, *given), everything(fused, *given)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.gpu
def test_evaluation_on_a_gpu_is_that_on_a_cpu():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randint(-3, 4, (3000, 16), generator=generator).float()  # products that are exact, with many ties
    labels = torch.stack([torch.arange(3000) // 5, torch.arange(3000) // 500], 1)
    options = {"normalize": False, "per_query": True, "progress": False}
    expected = evaluate(embeddings, labels, device="cpu", **options)
    for budget in (None, 2**20):
        assert_same(evaluate(embeddings, labels, device="cuda", memory_budget=budget, **options), expected, tolerance=1e-12)


@pytest.mark.gpu
def test_matrix_products_stay_float32_whatever_the_callers_setting():
    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(2000, 256, generator=generator), torch.arange(2000) // 4
    expected = evaluate(embeddings, labels, device="cpu", metrics=["AP"], progress=False)["AP"]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert evaluate(embeddings, labels, device="cuda", metrics=["AP"], progress=False)["AP"] == pytest.approx(
            expected, abs=1e-6
        )
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_kernels_are_the_ones_that_compile_in_ci():
    names = {
        name for name, kernel in vars(kernels).items() if hasattr(kernel, "arg_names") or "Interpreted" in type(kernel).__name__
    }
    assert names == {"take", "count_few", "fill_gaps", "settle", "count_levels", "sum_positives", "sum_top"}


@pytest.mark.gpu
@pytest.mark.parametrize(("queries", "items", "dim"), [(65, 1000, 64), (300, 40001, 130), (1000, 70003, 512)])
def test_copies_of_an_item_score_the_same_on_a_gpu(queries, items, dim):
    generator = torch.Generator().manual_seed(0)
    theirs = torch.randn(1, dim, generator=generator).repeat(items, 1).cuda()
    mine = torch.randn(queries, dim, generator=generator).cuda()
    search = Search(Embeddings.from_source(mine), Embeddings.from_source(theirs), device=torch.device("cuda"))
    ((_, scores),) = search.score(np.arange(queries))
    assert (scores[:, :items] == scores[:, :1]).all()
