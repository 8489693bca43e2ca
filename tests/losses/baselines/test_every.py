"""What every baseline has in common with every other loss: any batch, any precision, references, a GPU."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch

from suprank import losses
from suprank.losses import RetrievalLoss, skip_value_checks
from tests.losses.batches import COMPOSITIONS, DIM, batch

TREE = torch.tensor([[one, one // 2, one // 6] for one in range(12)])

WRAPPED = ("MultiSimilarity", "ProxyAnchor", "CosFace")
DRAWN = ("BlackBoxAP", "DistanceWeightedTriplet")


def baselines(dim: int = DIM, tree: torch.Tensor = TREE) -> dict[str, RetrievalLoss]:
    """One of each, for labels of the depth of `tree`."""
    counts = [int(column.max()) + 1 for column in tree.T]
    return {
        "FastAP": losses.FastAP(),
        "SoftBinAP": losses.SoftBinAP(),
        "BlackBoxAP": losses.BlackBoxAP(),
        "TripletSemiHard": losses.TripletSemiHard(margin=0.3),
        "DistanceWeightedTriplet": losses.DistanceWeightedTriplet(),
        "ContrastiveXBM": losses.ContrastiveXBM(),
        "MultiSimilarity": losses.MultiSimilarity(),
        "ProxyNCA": losses.ProxyNCA(counts[0], dim),
        "ProxyAnchor": losses.ProxyAnchor(counts[0], dim),
        "ArcFace": losses.ArcFace(counts[0], dim),
        "CosFace": losses.CosFace(counts[0], dim),
        "CSL": losses.CSL(tree, dim),
        "ΣTL": losses.SumOverLevels([losses.TripletSemiHard(margin=0.3) for _ in counts]),
        "ΣNSM": losses.SumOverLevels([losses.ProxySoftmax(count, dim) for count in counts]),
        "ΣNCA++": losses.SumOverLevels([losses.ProxyNCA(count, dim) for count in counts]),
        "ΣFastAP": losses.SumOverLevels([losses.FastAP() for _ in counts]),
    }


NAMES = list(baselines())
TREES = {1: TREE[:, :1], 2: TREE[:, :2], 3: TREE}
NUMBERED = [name for name in COMPOSITIONS if name != "ids far apart"]  # classes are 0..C−1, which proxies need
PAIRS = ["FastAP", "SoftBinAP", "BlackBoxAP", "TripletSemiHard", "DistanceWeightedTriplet", "ContrastiveXBM", "MultiSimilarity"]


def made(name: str, labels: torch.Tensor) -> RetrievalLoss:
    torch.manual_seed(3)
    return baselines(tree=TREES[1 if labels.ndim == 1 else labels.shape[1]])[name]


def value_and_gradient(loss, embeddings, labels, **options):
    leaf = embeddings.detach().clone().requires_grad_()
    torch.manual_seed(5)
    value = loss(leaf, labels, **options)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.mark.parametrize("composition", NUMBERED)
@pytest.mark.parametrize("name", NAMES)
def test_any_batch_gives_a_finite_loss_and_gradient(name, composition):
    embeddings, labels = batch(composition)
    value, gradient = value_and_gradient(made(name, labels).double(), embeddings, labels)
    assert value.isfinite()
    assert value >= 0
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", PAIRS)
def test_ids_may_be_far_apart(name):
    embeddings, labels = batch("ids far apart")
    loss = made(name, labels)
    renumbered = torch.unique(labels, return_inverse=True)[1]
    assert value_and_gradient(loss, embeddings, labels)[0] == value_and_gradient(loss, embeddings, renumbered)[0]


@pytest.mark.parametrize("name", ["ProxyNCA", "ProxyAnchor", "ArcFace", "CosFace", "CSL", "ΣNSM"])
def test_an_image_without_a_class_has_no_proxy_and_is_left_out(name):
    embeddings, labels = batch("some without a label")
    loss, known = made(name, labels), labels >= 0
    expected, slope = value_and_gradient(loss, embeddings[known], labels[known])
    for look in (nullcontext, skip_value_checks):
        with look():
            value, gradient = value_and_gradient(loss, embeddings, labels)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient[known], slope)
        assert gradient[~known].eq(0).all()


@pytest.mark.parametrize("name", NAMES)
def test_labels_that_mean_nothing_are_refused(name):
    embeddings, labels = batch("equal classes")
    loss = made(name, labels)
    with pytest.raises(ValueError, match=r"labels hold -2 in row 0, but must be 0 or more, or −1 for no label"):
        loss(embeddings, labels - 2)
    with pytest.raises(ValueError, match=r"labels hold 18446744073709551614 in row 0, but ids must be below 2\^63"):
        loss(embeddings, (labels - 2).to(torch.uint64))
    with pytest.raises(ValueError, match=r"ref_labels hold -2 in row 0"):
        loss(embeddings, labels, ref_emb=embeddings, ref_labels=labels - 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_value_is_float32_also_under_autocast(name, dtype):
    embeddings, labels = batch("three levels", dtype=dtype)
    loss = made(name, labels)
    plain, _ = value_and_gradient(loss, embeddings.float(), labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, gradient = value_and_gradient(loss, embeddings, labels)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(value, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DRAWN])
def test_a_batch_is_its_own_references_with_the_query_left_out(name):
    embeddings, labels = batch("three levels")
    loss = made(name, labels).double()
    within, _ = value_and_gradient(loss, embeddings, labels)
    position = torch.arange(len(labels))
    for given in ({"self_index": position}, {"ids": position + 40, "ref_ids": position + 40}):
        against, _ = value_and_gradient(loss, embeddings, labels, ref_emb=embeddings.clone(), ref_labels=labels, **given)
        torch.testing.assert_close(against, within)


@pytest.mark.parametrize("name", [*PAIRS, "ΣTL", "ΣFastAP"])
def test_references_of_another_size_take_part(name):
    embeddings, labels = batch("three levels")
    items, item_labels = batch("three levels", seed=1)
    loss = made(name, labels).double()
    few, _ = value_and_gradient(loss, embeddings, labels, ref_emb=items[:5], ref_labels=item_labels[:5])
    many, gradient = value_and_gradient(loss, embeddings, labels, ref_emb=items, ref_labels=item_labels)
    assert many.isfinite()
    assert gradient.any()
    assert few != many


@pytest.mark.parametrize("name", NAMES)
def test_scores_that_are_all_equal_do_no_harm(name):
    _, labels = batch("three levels")
    embeddings = torch.ones(len(labels), DIM, dtype=torch.float64)
    value, gradient = value_and_gradient(made(name, labels).double(), embeddings, labels)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_mined_subset_is_refused(name):
    embeddings, labels = batch("three levels")
    with pytest.raises(ValueError, match="indices_tuple"):
        made(name, labels)(embeddings, labels, (0, 1, 2))


@pytest.mark.parametrize("name", NAMES)
def test_a_baseline_survives_being_copied_and_pickled(name):
    embeddings, labels = batch("three levels")
    loss = made(name, labels)
    expected, _ = value_and_gradient(loss, embeddings, labels)
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert value_and_gradient(other, embeddings, labels)[0] == expected
    assert repr(loss)


@pytest.mark.parametrize("name", NAMES)
def test_proxies_are_the_parameters_and_such_losses_rank_no_items(name):
    loss = baselines()[name]
    has_proxies = any(parameter.requires_grad for parameter in loss.parameters())
    assert has_proxies == (not loss.ranks_items)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_cuda_gives_the_numbers_of_the_cpu(name):
    generator = torch.Generator().manual_seed(0)
    labels = TREE[torch.randint(12, (96,), generator=generator)]
    embeddings = torch.randn(96, 32, generator=generator)
    torch.manual_seed(3)
    loss = baselines(32)[name]
    if name in DRAWN:  # a GPU draws other numbers
        loss = losses.BlackBoxAP(margin=0.0) if name == "BlackBoxAP" else loss
    expected, slope = value_and_gradient(copy.deepcopy(loss).double(), embeddings.double(), labels)
    value, gradient = value_and_gradient(loss.cuda(), embeddings.cuda(), labels.cuda())
    assert value.is_cuda
    if name == "DistanceWeightedTriplet":
        assert value.isfinite()
        assert gradient.isfinite().all()
    else:
        torch.testing.assert_close(value.cpu().double(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient.cpu().double(), slope, rtol=2e-3, atol=2e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in WRAPPED])
def test_a_loss_of_our_own_does_not_wait_for_the_gpu(name):
    loss = baselines(32)[name].cuda()
    labels = TREE[torch.arange(96) % 12].cuda()
    embeddings = torch.randn(96, 32, device="cuda", requires_grad=True)
    loss(embeddings, labels).backward()  # the first call may compile
    torch.cuda.set_sync_debug_mode("error")
    try:
        with skip_value_checks():
            loss(embeddings, labels).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_4096_stays_in_bounded_memory(name):
    labels = torch.stack([torch.arange(4096) // 4, torch.arange(4096) // 64, torch.arange(4096) // 1024], -1)
    loss = baselines(128, tree=labels[::4])[name].cuda()
    embeddings = torch.randn(4096, 128, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss(embeddings, labels.cuda()).backward()
    matrix = 4 * 4096**2  # 64 MiB, the scores
    assert torch.cuda.max_memory_allocated() - before < (60 if name in WRAPPED else 24) * matrix
