"""The Triton kernels: on a GPU where there is one, else at small sizes through Triton's interpreter (see conftest.py)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from suprank.losses import SmoothAP, SmoothHAP, SupAP, SupHAP, SupNDCG, SupRecall, happier, roadmap
from suprank.ranking import Sigmoid, SupStep, chunked, definition, heaviside, ranks, seam, tree_relevance
from suprank.ranking.gpu import pairs as module
from suprank.ranking.gpu.pairs import fused
from tests.ranking.random_rankings import algorithm_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU: the interpreter is too slow at this size")

STEPS = {
    "SupRank": (heaviside, SupStep()),
    "exact": (heaviside, heaviside),
    "sigmoid": (Sigmoid(0.02), Sigmoid(0.02)),
    "two sigmoids": (Sigmoid(0.02), Sigmoid(0.05)),
    "SOP recipe": (heaviside, SupStep(value_at_delta=1.44)),
    "iNaturalist recipe": (heaviside, SupStep(jump=0.0, value_at_delta=1.0)),
    "smooth plus": (Sigmoid(0.02), SupStep()),
}


def problem(queries, items, depth, seed=0, spread=0.1):
    generator = torch.Generator().manual_seed(seed)
    scores = (torch.randn(queries, items, generator=generator) * spread).to(DEVICE)
    level = torch.randint(-1, depth + 1, (queries, items), generator=generator, dtype=torch.int8).to(DEVICE)
    upstream = [torch.randn(queries, items, generator=generator).to(DEVICE) for _ in range(3)]
    return scores, level, upstream


def values_and_gradient(using, scores, level, relevance, upstream, plus, minus):
    scores = scores.detach().clone().requires_grad_()
    found = using(scores, level, relevance, plus=plus, minus=minus)
    values = [rank for rank in found if rank is not None]
    smooth = [
        (rank * weight.to(rank.dtype)).where(level > 0, 0).sum()
        for rank, weight in zip(values, upstream, strict=False)
        if rank.requires_grad
    ]
    if smooth:
        sum(smooth).backward()
    return values, scores.grad


def assert_agree(scores, level, relevance, upstream, plus, minus, using=fused, truth=definition):
    exact_relevance = None if relevance is None else relevance.double()
    values, gradient = values_and_gradient(using, scores, level, relevance, upstream, plus, minus)
    expected, exact = values_and_gradient(truth, scores.double(), level, exact_relevance, upstream, plus, minus)
    for value, wanted in zip(values, expected, strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)
    if exact is not None:
        assert (gradient.double() - exact).norm() <= 3e-5 * exact.norm() + 1e-4


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("shape", "weighted"), [((2, 17), False), ((3, 70), True)], ids=["rank", "H-rank, several tiles"])
def test_fused_is_the_definition_forward_and_backward(shape, weighted, steps):
    scores, level, upstream = problem(*shape, depth=3)
    relevance = tree_relevance(level, depth=3) if weighted else None
    assert_agree(scores, level, relevance, upstream, *STEPS[steps])


@settings(max_examples=12 if DEVICE == "cpu" else 200, deadline=None)
@given(
    queries=st.integers(1, 3),
    items=st.integers(1, 40 if DEVICE == "cpu" else 700),
    depth=st.integers(1, 15),
    spread=st.sampled_from([0.01, 0.1, 1.0, 30.0]),
    seed=st.integers(0, 10**6),
    steps=st.sampled_from(sorted(STEPS)),
)
def test_fused_is_the_definition_at_any_size_depth_and_spread(queries, items, depth, spread, seed, steps):
    scores, level, upstream = problem(queries, items, depth, seed, spread)
    assert_agree(scores, level, tree_relevance(level, depth=depth), upstream, *STEPS[steps])


def test_ties_count_as_errors():
    scores = torch.tensor([[0.5, 0.5, 0.5, 0.2]], device=DEVICE)
    level = torch.tensor([[1, 0, 1, 1]], device=DEVICE)
    found = fused(scores, level, minus=heaviside)
    assert found.plus.tolist() == [[2.0, 0.0, 2.0, 3.0]]
    assert found.minus.tolist() == [[1.0, torch.inf, 1.0, 1.0]]


def test_queries_without_positives_or_items_get_no_rank_and_no_gradient():
    scores, _, upstream = problem(3, 20, depth=2)
    level = torch.zeros(3, 20, dtype=torch.int8, device=DEVICE)
    level[1] = -1
    level[2, :4] = 2
    assert_agree(scores, level, None, upstream, *STEPS["SupRank"])
    _, gradient = values_and_gradient(fused, scores, level, None, upstream, *STEPS["SupRank"])
    assert gradient[:2].abs().sum() == 0


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float32])
def test_levels_of_any_dtype_and_strided_inputs_are_accepted(dtype):
    scores, level, upstream = problem(12, 6, depth=3)
    upstream = [weight.T for weight in upstream]
    assert_agree(scores.T, level.T.to(dtype), tree_relevance(level.T, depth=3), upstream, *STEPS["SupRank"])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_levels_without_a_sign_are_accepted(dtype):
    scores, level, upstream = problem(3, 21, depth=1)
    assert_agree(scores, level.clamp(min=0).to(dtype), None, upstream, *STEPS["SupRank"])


def test_graded_relevance_may_order_the_items():
    scores, level, upstream = problem(2, 20, depth=3)
    graded = level.clamp(min=0).float() * 0.37
    assert_agree(scores, graded, graded, upstream, *STEPS["SupRank"])


def test_two_runs_agree_bit_by_bit():
    scores, level, upstream = problem(4, 60 if DEVICE == "cpu" else 3000, depth=3)
    relevance = tree_relevance(level, depth=3)
    first = values_and_gradient(fused, scores, level, relevance, upstream, *STEPS["sigmoid"])
    second = values_and_gradient(fused, scores, level, relevance, upstream, *STEPS["sigmoid"])
    assert torch.equal(first[1], second[1])
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))


def test_a_second_derivative_is_refused_with_the_way_out():
    scores, level, _ = problem(2, 8, depth=1)
    scores.requires_grad_()
    (gradient,) = torch.autograd.grad(fused(scores, level).minus.where(level > 0, 0).sum(), scores, create_graph=True)
    with pytest.raises(NotImplementedError, match="using='definition'"):
        gradient.sum().backward()


def test_other_dtypes_and_steps_are_refused_with_the_way_out():
    scores, level, _ = problem(2, 8, depth=1)
    with pytest.raises(ValueError, match="float64.*leave `using` out"):
        fused(scores.double(), level)
    with pytest.raises(ValueError, match="SupStep.*leave `using` out"):
        fused(scores, level, plus=SupStep())


def test_the_operators_keep_their_promises_to_the_compiler():
    scores, level, _ = problem(2, 8, depth=1)
    kinds, numbers = module._encoded(*STEPS["SupRank"])
    torch.library.opcheck(
        torch.ops.suprank.ranks.default,
        (scores, level, None, kinds, numbers, True),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
@pytest.mark.parametrize("loss", [SupAP(using="fused"), SupHAP()], ids=["named", "chosen"])
def test_a_training_step_compiles_into_one_graph(loss, monkeypatch):
    monkeypatch.setattr(seam, "DEVICES", {DEVICE})
    embeddings = torch.randn(12, 8, device=DEVICE, requires_grad=True)
    labels = torch.tensor([[i // 3, i // 6] for i in range(12)], device=DEVICE)
    wanted = loss(embeddings, labels)
    (exact,) = torch.autograd.grad(wanted, embeddings)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")
    value = compiled(embeddings, labels)
    (gradient,) = torch.autograd.grad(value, embeddings)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(gradient, exact, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("items", [255, 1024, 4097])
@pytest.mark.parametrize("depth", [1, 3, 15])
@pytest.mark.parametrize("steps", ["SupRank", "sigmoid"])
def test_fused_is_the_definition_at_real_sizes(items, depth, steps):
    scores, level, upstream = problem(3, items, depth)
    assert_agree(scores, level, tree_relevance(level, depth=depth), upstream, *STEPS[steps])


@pytest.mark.gpu
@on_gpu
def test_a_gallery_of_100_000_items_is_ranked_like_chunked_does_in_float64():
    scores, level, upstream = problem(4, 100_000, depth=3, spread=0.05)
    level = level.where(torch.rand(level.shape, device=DEVICE) < 0.01, 0)
    assert_agree(scores, level, tree_relevance(level, depth=3), upstream, *STEPS["SupRank"], truth=chunked)


@pytest.mark.gpu
@on_gpu
def test_fused_is_chosen_on_a_gpu_and_peak_memory_stays_at_queries_by_items():
    scores, level, _ = problem(2048, 2048, depth=3)
    level = level.where(torch.rand(level.shape, device=DEVICE) < 0.05, 0)
    scores.requires_grad_()
    relevance = tree_relevance(level, depth=3)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = ranks(scores, level, relevance)
    assert algorithm_of(found) == "fused"
    found.minus.where(level > 0, 0).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 16 * scores.nbytes


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    "make",
    [
        SupAP,
        SmoothAP,
        SupRecall,
        SupHAP,
        SmoothHAP,
        SupNDCG,
        lambda: roadmap(16, 32).to(DEVICE),
        lambda: happier(16, 32).to(DEVICE),
    ],
)
def test_a_loss_step_replays_from_a_cuda_graph(make):
    loss = make()
    embeddings = torch.randn(64, 32, device=DEVICE, requires_grad=True)
    labels = torch.arange(64, device=DEVICE)[:, None] // torch.tensor([4, 16], device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(loss(embeddings, labels), embeddings)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        value = loss(embeddings, labels)
        (gradient,) = torch.autograd.grad(value, embeddings)
    # The graph of the value holds the nodes that accumulate on proxies, and these the stream of the recording: torch warns of a
    # later backward() on another stream. Without it they are made anew.
    value = value.detach()
    with torch.no_grad():
        embeddings.copy_(torch.randn_like(embeddings))
    graph.replay()
    fresh = embeddings.detach().clone().requires_grad_()
    wanted = loss(fresh, labels)
    wanted.backward()
    torch.testing.assert_close(value, wanted.detach())
    torch.testing.assert_close(gradient, fresh.grad)


@pytest.mark.gpu
@on_gpu
def test_a_side_stream_is_kept_to():
    scores, level, upstream = problem(64, 2000, depth=3)
    relevance = tree_relevance(level, depth=3)
    wanted, slope = values_and_gradient(fused, scores, level, relevance, upstream, *STEPS["SupRank"])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)  # what is launched elsewhere would run ahead of the scores made here
        late = scores * 1.0
        values, gradient = values_and_gradient(fused, late, level, relevance, upstream, *STEPS["SupRank"])
    side.synchronize()
    assert torch.equal(gradient, slope)
    assert all(torch.equal(value, expected) for value, expected in zip(values, wanted, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_second_gpu_computes_its_own_ranks():
    scores, level, upstream = problem(8, 300, depth=3)
    wanted, slope = values_and_gradient(fused, scores, level, None, upstream, *STEPS["SupRank"])
    other = [tensor.to("cuda:1") for tensor in (scores, level, *upstream)]
    values, gradient = values_and_gradient(fused, other[0], other[1], None, other[2:], *STEPS["SupRank"])
    assert torch.equal(gradient.cpu(), slope.cpu())
    assert all(torch.equal(value.cpu(), expected.cpu()) for value, expected in zip(values, wanted, strict=True))


@pytest.mark.gpu
@on_gpu
def test_happier_trains_under_autocast_on_a_gpu():
    loss = happier(16, 32).to(DEVICE)
    net = torch.nn.Linear(20, 32, device=DEVICE)
    labels = torch.arange(64, device=DEVICE)[:, None] // torch.tensor([4, 16], device=DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        value = loss(net(torch.randn(64, 20, device=DEVICE)), labels)
    value.backward()
    assert value.dtype == torch.float32
    assert net.weight.grad.isfinite().all()
    assert net.weight.grad.norm() > 0
