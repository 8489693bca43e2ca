"""What every loss has in common: any batch, labels and precision, references, copies, refusals, gradients, and a GPU."""

import copy
import math
import pickle
from contextlib import nullcontext

import pytest
import torch

from suprank import losses
from suprank.losses import RetrievalBatch, SimilarityMixup, SumOverLevels, skip_value_checks
from suprank.losses.base import MeasureLoss
from tests.losses.batches import (
    COMPOSITIONS,
    DIM,
    LOSSES,
    PROXIES_ONLY,
    RANDOM,
    RANK_LOSSES,
    TREE,
    WITH_PROXIES,
    batch,
    build,
    gradient_of,
)

MEASURES = [*RANK_LOSSES, "FastAP", "SoftBinAP", "BlackBoxAP"]
MIXED = ["unequal classes", "two levels", "coarse company only"]
ON_ALL = ["ROADMAP", "ROD-R@k", "HAPPIER", "mixed SupAP", "ProxyNCA", "ArcFace", "CSL", "ΣTL", "ΣNSM"]
FAR_APART = "ids far apart"  # proxies need classes 0..C−1

every_loss = pytest.mark.parametrize("name", LOSSES)
every_ranking_loss = pytest.mark.parametrize("name", [name for name in LOSSES if name not in PROXIES_ONLY])
every_proxy_loss = pytest.mark.parametrize("name", PROXIES_ONLY)
every_deterministic_loss = pytest.mark.parametrize("name", [name for name in LOSSES if name not in RANDOM])
every_measure_loss = pytest.mark.parametrize("name", MEASURES)


def measure_loss(name, **options):
    kind = type(build(name))
    assert issubclass(kind, MeasureLoss)
    return kind(**options)


def assert_equal(found, expected):
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_every_loss_of_the_package_is_tested_here():
    tested = {type(part) for name in LOSSES for part in build(name).modules()}
    exported = {getattr(losses, name) for name in losses.__all__}
    kinds = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, losses.RetrievalLoss)}
    assert kinds - tested == {losses.RetrievalLoss, losses.RankLoss}


# Any batch


@every_loss
def test_any_batch_gives_a_finite_loss_and_gradient(name):
    # Those with an equation in loops are tested on all compositions beside it.
    for composition in COMPOSITIONS if name in ON_ALL else MIXED:
        if composition == FAR_APART and name in WITH_PROXIES:
            continue
        embeddings, labels = batch(composition)
        loss = build(name, labels).double()
        value, gradient = gradient_of(loss, embeddings, labels)
        assert value.isfinite(), composition
        assert value >= 0 or "R" in name, composition  # Sup-R@k may fall below 0, and the entropy of IRT_R
        assert gradient.isfinite().all(), composition
        # Embeddings are normalized, so that their length gets no gradient.
        along = (gradient * embeddings).sum(-1)
        torch.testing.assert_close(along, torch.zeros_like(along), atol=1e-8, rtol=0)
        assert not any(part.requires_grad for part in getattr(loss, "log", {}).values())
    equal_scores = torch.ones(len(TREE), DIM, dtype=torch.float64)
    value, gradient = gradient_of(build(name).double(), equal_scores, TREE // 2)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", [*MEASURES, "TripletSemiHard", "DistanceWeightedTriplet"])
def test_a_batch_without_positives_has_zero_loss_and_zero_gradients(name):
    for composition in ("singletons only", "one image", "no labels at all"):
        embeddings, labels = batch(composition)
        loss = build(name, labels)
        value, gradient = gradient_of(loss, embeddings, labels)
        assert value.item() == 0
        assert torch.equal(gradient, torch.zeros_like(embeddings))
        assert loss.log["queries_without_positives"].item() == len(labels)


@every_measure_loss
def test_a_query_without_positives_changes_neither_the_loss_nor_the_other_gradients(name):
    references, ref_labels = batch("three levels", seed=4)
    queries, labels = batch("three levels", seed=5)
    loss = measure_loss(name, margin=0.0) if name == "BlackBoxAP" else build(name)
    value, gradient = gradient_of(loss, queries, labels, ref_emb=references, ref_labels=ref_labels)
    stranger = torch.cat([queries, torch.ones(1, DIM, dtype=torch.float64)]), torch.cat([labels, torch.tensor([[9, 9, 9]])])
    more, more_gradient = gradient_of(loss, *stranger, ref_emb=references, ref_labels=ref_labels)
    torch.testing.assert_close(more, value)
    torch.testing.assert_close(more_gradient[:-1], gradient)
    assert more_gradient[-1].eq(0).all()
    assert loss.log["queries_without_positives"].item() == 1


@every_deterministic_loss
def test_the_order_of_the_batch_is_irrelevant(name):
    embeddings, labels = batch("three levels", seed=2)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    loss = build(name).double()
    value, gradient = gradient_of(loss, embeddings, labels)
    shuffled, shuffled_gradient = gradient_of(loss, embeddings[order], labels[order])
    torch.testing.assert_close(shuffled, value)
    torch.testing.assert_close(shuffled_gradient, gradient[order])


@every_loss
def test_the_length_of_embeddings_is_irrelevant(name):
    embeddings, labels = batch("three levels", dtype=torch.float32)
    loss = build(name)
    expected, _ = gradient_of(loss, embeddings, labels)
    for scale in (1e-36, 1e-13, 1e30):
        torch.testing.assert_close(gradient_of(loss, scale * embeddings, labels)[0], expected)


@every_loss
def test_a_seed_repeats_value_and_gradient_bit_by_bit(name):
    embeddings, labels = batch("three levels")
    loss = build(name)
    expected = gradient_of(loss, embeddings, labels)
    assert_equal(gradient_of(loss, embeddings, labels), expected)
    before = torch.get_rng_state()
    loss(embeddings, labels)
    assert torch.equal(torch.get_rng_state(), before) == (name not in RANDOM)


@every_loss
def test_the_batch_is_left_as_it_was(name):
    given = RetrievalBatch.from_embeddings(*batch("three levels", dtype=torch.float32))
    before = given.queries.clone(), given.scores.clone(), given.fine_level().clone(), given.level().clone()
    build(name).compute(given)
    for now, then in zip((given.queries, given.scores, given.fine_level(), given.level()), before, strict=True):
        assert torch.equal(now, then)


# Labels


@every_loss
def test_labels_of_any_integer_dtype_give_the_same_loss(name):
    embeddings, labels = batch("three levels")
    loss = build(name)
    expected = gradient_of(loss, embeddings, labels)
    for dtype in (torch.uint8, torch.int32, torch.uint64):
        assert_equal(gradient_of(loss, embeddings, labels.to(dtype)), expected)
    strided = embeddings.T.contiguous().T, labels.T.contiguous().T
    torch.testing.assert_close(gradient_of(loss, *strided), expected)


@every_loss
def test_flat_labels_are_one_column(name):
    embeddings, labels = batch("unequal classes")
    loss = build(name, labels)
    assert_equal(gradient_of(loss, embeddings, labels[:, None]), gradient_of(loss, embeddings, labels))


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in WITH_PROXIES])
def test_ids_may_be_far_apart(name):
    embeddings, labels = batch(FAR_APART)
    loss = build(name, labels)
    renumbered = torch.unique(labels, return_inverse=True)[1]
    expected = gradient_of(loss, embeddings, renumbered)
    for base in (0, 2**24, 2**53, 2**63 - 3):  # float32 and float64 would merge neighbors
        assert_equal(gradient_of(loss, embeddings, renumbered + base), expected)
    assert_equal(gradient_of(loss, embeddings, labels), expected)


@every_proxy_loss
def test_an_image_without_a_class_has_no_proxy_and_is_left_out(name):
    embeddings, labels = batch("some without a label")
    loss, known = build(name, labels), labels >= 0
    expected, slope = gradient_of(loss, embeddings[known], labels[known])
    for checks in (nullcontext, skip_value_checks):
        with checks():
            value, gradient = gradient_of(loss, embeddings, labels)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient[known], slope)
        assert gradient[~known].eq(0).all()


# Precision


@every_loss
def test_half_precision_and_autocast_give_the_float32_loss_of_the_rounded_inputs(name):
    loss = build(name)
    embeddings, labels = batch("three levels", dtype=torch.bfloat16)
    expected, slope = gradient_of(loss, embeddings.float(), labels)
    assert_equal(gradient_of(loss, embeddings, labels), (expected, slope.to(torch.bfloat16)))
    for dtype in (torch.float16, torch.float32):
        embeddings, labels = batch("three levels", dtype=dtype)
        expected, slope = gradient_of(loss, embeddings.float(), labels)
        leaf = embeddings.clone().requires_grad_()
        torch.default_generator.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(leaf, labels)
        value.backward()  # outside, as torch asks
        assert value.dtype == torch.float32
        assert_equal((value.detach(), leaf.grad), (expected, slope.to(dtype)))


@every_deterministic_loss
def test_float32_is_close_to_float64(name):
    embeddings, labels = batch("three levels")
    loss = build(name)
    value, gradient = gradient_of(loss, embeddings.float(), labels)
    expected, slope = gradient_of(loss.double(), embeddings, labels)
    assert expected.dtype == torch.float64
    assert value.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    assert (gradient.double() - slope).abs().max() <= 1e-3 * max(1.0, slope.abs().max().item())


# Values per query


@every_deterministic_loss
def test_the_value_of_a_query_is_the_loss_of_that_query_alone_against_all(name):
    for composition in MIXED:
        embeddings, labels = batch(composition)
        loss = build(name, labels).double()
        if name in ("IRT_R", "ProxyAnchor"):
            with pytest.raises(TypeError, match="so it has no value for each query; call it on the whole batch"):
                loss.per_query_values(embeddings, labels)
            continue
        values = loss.per_query_values(embeddings, labels)
        for query, value in enumerate(values):
            one, itself = slice(query, query + 1), torch.tensor([query])
            alone = loss(embeddings[one], labels[one], ref_emb=embeddings, ref_labels=labels, self_index=itself)
            torch.testing.assert_close(value.nan_to_num(), alone)
        if isinstance(loss, MeasureLoss) or name in PROXIES_ONLY:
            torch.testing.assert_close(values.nanmean().nan_to_num(), loss(embeddings, labels))
            assert values.isnan().sum() == getattr(loss, "log", {}).get("queries_without_positives", 0)


def test_queries_can_be_weighted_and_left_out_ones_have_no_gradient():
    embeddings, labels = batch("singletons and a pair")
    leaf = embeddings.clone().requires_grad_()
    values = losses.SupAP().per_query_values(leaf, labels)
    assert values.isnan().tolist() == [True, True, False, False, True]
    (torch.arange(5) * values).nansum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    with pytest.raises(ValueError, match=r"embeddings\[0\] holds nan"):
        losses.SupAP().per_query_values(torch.full_like(embeddings, math.nan), labels)


# References, ids and relevance


@every_loss
def test_a_batch_is_its_own_references_with_the_query_left_out(name):
    embeddings, labels = batch("three levels")
    loss = build(name).double()
    within, slope = gradient_of(loss, embeddings, labels)
    references = {"ref_emb": embeddings.clone(), "ref_labels": labels}
    position = torch.arange(len(labels))
    if name == "mixed SupAP":  # which mixes no references
        within, _ = gradient_of(losses.SupAP(), embeddings, labels)
    for given in ({"self_index": position}, {"ids": position + 40, "ref_ids": position + 40}):
        against, one_side = gradient_of(loss, embeddings, labels, **references, **given)
        torch.testing.assert_close(against, within)
        assert torch.allclose(one_side, slope) == (name in PROXIES_ONLY), "references are given, and get no gradient here"


@every_measure_loss
def test_a_query_that_is_not_recognized_is_a_positive_as_include_self_makes_it(name):
    embeddings, labels = batch("three levels")
    unnamed, _ = gradient_of(build(name), embeddings, labels, ref_emb=embeddings, ref_labels=labels)
    with_self, _ = gradient_of(measure_loss(name, include_self=True), embeddings, labels)
    torch.testing.assert_close(unnamed, with_self)


@every_loss
def test_ids_that_occur_once_give_what_self_index_gives(name):
    loss = build(name).double()
    embeddings, labels = batch("three levels")
    references, ref_labels = batch("three levels", seed=1)
    gallery = {"ref_emb": torch.cat([embeddings[:5], references]), "ref_labels": torch.cat([labels[:5], ref_labels])}
    ids, ref_ids = torch.arange(100, 108), torch.cat([torch.arange(100, 105), torch.arange(8)])
    self_index = torch.tensor([0, 1, 2, 3, 4, -1, -1, -1])
    by_index = gradient_of(loss, embeddings, labels, **gallery, self_index=self_index)
    assert_equal(gradient_of(loss, embeddings, labels, **gallery, ids=ids, ref_ids=ref_ids), by_index)


@every_deterministic_loss
def test_stale_copies_of_a_query_under_its_own_id_change_neither_loss_nor_gradient(name):
    loss = build(name).double()
    embeddings, labels = batch("three levels")
    references, ref_labels = batch("three levels", seed=1)
    noticed = False
    for query in (0, 6):
        own, own_labels = embeddings[query : query + 1], labels[query : query + 1]
        gallery = torch.cat([references, own, own + 0.1, own.flip(1)]), torch.cat([ref_labels, own_labels.expand(3, -1)])
        results = []
        for ref_emb, ref_labels_, copies in ((references, ref_labels, []), (*gallery, [5, 5, 5]), (*gallery, [-1, -1, -1])):
            ids = {"ids": torch.tensor([5]), "ref_ids": torch.tensor([*range(10, 18), *copies])}
            results.append(gradient_of(loss, own, own_labels, ref_emb=ref_emb, ref_labels=ref_labels_, **ids))
        torch.testing.assert_close(results[1], results[0])
        noticed |= not torch.allclose(results[2][0], results[0][0])
    assert noticed == (name not in PROXIES_ONLY), "copies without an id are items, except to proxies"


@every_ranking_loss
def test_references_of_another_size_take_part_and_get_gradients(name):
    embeddings, labels = batch("three levels")
    items, item_labels = batch("three levels", seed=1)
    loss = build(name).double()
    few, _ = gradient_of(loss, embeddings, labels, ref_emb=items[:5], ref_labels=item_labels[:5])
    items.requires_grad_()
    many, gradient = gradient_of(loss, embeddings, labels, ref_emb=items, ref_labels=item_labels)
    assert few != many
    assert gradient.any()
    assert items.grad is not None
    assert items.grad.any()
    assert items.grad.isfinite().all()


@every_proxy_loss
def test_references_relevance_and_coarse_labels_play_no_part_for_proxies(name):
    embeddings, labels = batch("three levels")
    references, ref_labels = batch("unequal classes")
    loss = build(name)
    expected = loss(embeddings, labels)
    assert torch.equal(loss(embeddings, labels, ref_emb=references, ref_labels=ref_labels[:, None].expand(-1, 3)), expected)
    assert torch.equal(loss(embeddings, labels, relevance=torch.ones(8, 8)), expected)
    if name != "ΣNSM":
        assert torch.equal(loss(embeddings, labels[:, 0]), expected)


WITHOUT_LABELS = [name for name in LOSSES if name not in (*WITH_PROXIES, "mixed SupAP", "ΣTL")]


@pytest.mark.parametrize("name", WITHOUT_LABELS)
def test_binary_relevance_is_the_same_as_labels_and_items_below_0_are_in_no_list(name):
    embeddings, labels = batch("unequal classes")
    same = (labels[:, None] == labels).double()
    loss = losses.BlackBoxAP(margin=0.0) if name == "BlackBoxAP" else build(name, labels)
    expected = gradient_of(loss, embeddings, labels)
    torch.testing.assert_close(gradient_of(loss, embeddings, relevance=same), expected)
    if name not in ("DistanceWeightedTriplet", "SupHAP", "SmoothHAP", "SupNDCG", "SmoothNDCG"):  # the last four read the grade
        torch.testing.assert_close(gradient_of(loss, embeddings, relevance=0.3 * same), expected)
    junk = torch.cat([embeddings, embeddings[:3], -embeddings[:3]])  # exact copies and opposites
    relevance = torch.cat([same, -torch.ones(7, 6, dtype=torch.float64)], 1)
    if name != "DistanceWeightedTriplet":  # which draws for every item
        value, _ = gradient_of(loss, embeddings, ref_emb=junk, relevance=relevance, self_index=torch.arange(7))
        torch.testing.assert_close(value, expected[0])
    assert relevance[0, 0] == 1, "the user's matrix was edited in place"


# Gradients


GENTLE = {
    **{name: lambda make=make: make(tau=0.05) for name, make in RANK_LOSSES.items()},
    "ProxySoftmax": lambda: losses.ProxySoftmax(12, DIM, temperature=0.3),
    "TripletSemiHard": lambda: losses.TripletSemiHard(margin=0.5),
    "DistanceWeightedTriplet": lambda: losses.DistanceWeightedTriplet(margin=0.6, farthest=1.9),
    "mixed SupAP": lambda: SimilarityMixup(losses.SmoothAP(tau=0.05)),
    "ΣTL": lambda: SumOverLevels([losses.PairCalibration(), losses.ProxyNCA(6, DIM, scale=1.0), losses.SmoothAP(tau=0.1)]),
}


@pytest.mark.parametrize(
    "name", [name for name in LOSSES if name not in ("BlackBoxAP", "Circle")]
)  # a solver's slope, and constants
def test_gradients_are_those_of_finite_differences(name):
    embeddings, labels = batch("three levels", seed=1)
    loss = (GENTLE[name]() if name in GENTLE else build(name)).double()
    names, values = [name for name, _ in loss.named_parameters()], [value.detach() for value in loss.parameters()]
    buffers = dict(loss.named_buffers())

    def value(vectors, *parameters):
        torch.default_generator.manual_seed(0)
        return torch.func.functional_call(loss, {**dict(zip(names, parameters, strict=True)), **buffers}, (vectors, labels))

    leaves = [one.clone().requires_grad_() for one in (embeddings, *values)]
    assert value(*leaves) > 0
    assert torch.autograd.gradcheck(value, leaves, fast_mode=True)


@every_loss
def test_proxies_are_the_parameters_and_losses_with_proxies_alone_rank_no_items(name):
    loss = build(name)
    assert bool(list(loss.parameters())) == (name in (*WITH_PROXIES, "SigLIP"))
    assert loss.ranks_items == (name not in PROXIES_ONLY)
    if loss.ranks_items and name not in WITH_PROXIES and name != "mixed SupAP":
        assert SimilarityMixup(loss)(*batch("three levels")).isfinite()


@every_loss
def test_a_step_of_an_optimizer_lowers_the_loss_and_moves_every_parameter(name):
    embeddings, labels = batch("three levels", dtype=torch.float32)
    loss = losses.BlackBoxAP(margin=0.0) if name == "BlackBoxAP" else build(name)
    leaves = [embeddings.requires_grad_(), *loss.parameters()]
    before = [leaf.detach().clone() for leaf in leaves]
    optimizer = torch.optim.Adam(leaves, lr=0.02)
    first = None
    for _ in range(6 if name == "BlackBoxAP" else 3):
        torch.default_generator.manual_seed(0)
        optimizer.zero_grad()
        value = loss(embeddings, labels)
        first = value.item() if first is None else first
        value.backward()
        optimizer.step()
    assert value.item() < first
    assert all(not torch.equal(leaf, old) for leaf, old in zip(leaves, before, strict=True))


# Copies


@every_loss
def test_a_loss_survives_being_copied_pickled_moved_and_loaded_after_a_call(name):
    embeddings, labels = batch("three levels")
    loss = build(name).double()
    expected, _ = gradient_of(loss, embeddings, labels)
    torch.default_generator.manual_seed(9)
    fresh = LOSSES[name](TREE, DIM).double()
    fresh.load_state_dict(loss.state_dict())
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), fresh, loss.eval()):
        torch.default_generator.manual_seed(0)
        assert torch.equal(other(embeddings, labels), expected)
        assert repr(other) == repr(loss)
    assert bool(loss.state_dict()) == (name in (*WITH_PROXIES, "SigLIP"))
    assert repr(loss).startswith(type(loss).__name__ + "(")


def test_losses_are_modules_that_hash_and_compare_by_identity():
    for name in LOSSES:
        one, other = build(name), build(name)
        assert one != other
        assert len({one, other, one}) == 2


# Refusals


@every_loss
def test_what_no_loss_can_use_is_refused(name):
    embeddings, labels = batch("three levels")
    loss, spoiled = build(name), embeddings.clone()
    spoiled[2] = math.nan
    refusals = [
        (ValueError, r"embeddings\[2\] holds nan", (spoiled, labels), {}),
        (ValueError, "there is nothing to rank; skip empty batches", (embeddings[:0], labels[:0]), {}),
        (ValueError, "labels are missing", (embeddings,), {}),
        (ValueError, "indices_tuple", (embeddings, labels, (0, 1, 2)), {}),
        (ValueError, r"labels hold -2 in row 0, but must be 0 or more, or −1 for no label", (embeddings, labels - 2), {}),
        (ValueError, r"ref_labels hold -2 in row 0", (embeddings, labels), {"ref_emb": embeddings, "ref_labels": labels - 2}),
    ]
    for error, message, arguments, options in refusals:
        with pytest.raises(error, match=message):
            loss(*arguments, **options)


@every_proxy_loss
def test_a_class_without_a_proxy_another_dimension_and_mixup_are_refused_by_proxies(name):
    embeddings, labels = batch("three levels")
    loss = build(name)
    with pytest.raises(ValueError, match=r"labels span 0..40, but \d+ proxies stand for classes"):
        loss(embeddings, labels * 10)
    with pytest.raises(ValueError, match="dimension 6 but proxies 5"):
        loss(torch.ones(8, DIM + 1), labels)
    with pytest.raises(TypeError, match="ranks no items"):
        SimilarityMixup(loss)


# On a GPU


@pytest.mark.gpu
@every_loss
def test_cuda_gives_the_numbers_of_the_cpu(name):
    generator = torch.Generator().manual_seed(0)
    labels = TREE[torch.randint(12, (96,), generator=generator)]
    embeddings = torch.randn(96, 32, generator=generator)
    loss = losses.BlackBoxAP(margin=0.0) if name == "BlackBoxAP" else build(name, dim=32)
    expected, slope = gradient_of(copy.deepcopy(loss).double(), embeddings.double(), labels)
    value, gradient = gradient_of(loss.cuda(), embeddings.cuda(), labels)  # labels may stay where they are
    assert value.is_cuda
    assert value.dtype == torch.float32
    if name == "DistanceWeightedTriplet":  # a GPU draws other numbers
        assert value.isfinite()
        assert gradient.isfinite().all()
    else:
        torch.testing.assert_close(value.cpu().double(), expected, rtol=1e-4, atol=1e-5)
        assert (gradient.cpu().double() - slope).norm() <= 2e-3 * slope.norm() + 2e-5


@pytest.mark.gpu
@every_loss
def test_cuda_gives_the_numbers_of_the_cpu_on_any_batch(name):
    for composition in COMPOSITIONS:
        if name == "DistanceWeightedTriplet" or (composition == FAR_APART and name in WITH_PROXIES):
            continue
        embeddings, labels = batch(composition, dtype=torch.float32)
        loss = losses.BlackBoxAP(margin=0.0) if name == "BlackBoxAP" else build(name, labels)
        expected, slope = gradient_of(loss, embeddings, labels)
        value, gradient = gradient_of(loss.cuda(), embeddings.cuda(), labels)
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient.cpu(), slope, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "mixed SupAP"])  # which does wait
def test_a_loss_of_our_own_does_not_wait_for_the_gpu(name):
    loss = build(name, dim=32).cuda()
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
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "mixed SupAP"])  # a batch of another size
def test_a_batch_of_4096_stays_in_bounded_memory(name):
    labels = torch.stack([torch.arange(4096) // 4, torch.arange(4096) // 64, torch.arange(4096) // 1024], -1)
    loss = LOSSES[name](labels[::4], 128).cuda()
    embeddings = torch.randn(4096, 128, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss(embeddings, labels.cuda()).backward()
    matrix = 4 * 4096**2  # 64 MiB, the scores
    assert torch.cuda.max_memory_allocated() - before < 24 * matrix


@every_loss
def test_a_loss_is_computed_where_the_embeddings_are_whatever_the_default_device(name):
    generator = torch.Generator().manual_seed(1)
    embeddings, labels = torch.randn(48, DIM, generator=generator), TREE[torch.randint(12, (48,), generator=generator)]
    loss = build(name)
    expected = gradient_of(loss, embeddings, labels // torch.tensor([6, 6, 1]))
    with torch.device("meta"):
        found = gradient_of(loss, embeddings, labels // labels.new_tensor([6, 6, 1]))
    assert all(map(torch.equal, found, expected))
