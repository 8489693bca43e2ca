"""The cross-batch memory: a ring and a table against a deque and a dict, checkpoints, and losses that look at it."""

import copy
import io
from collections import deque
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suprank.losses import PairCalibration, ProxySoftmax, SupAP, SupCon, SupHAP, roadmap
from suprank.losses.memory import EmbeddingMemory
from suprank.ranking import chunked
from tests import reference
from tests.losses.batches import DIM, RANK_LOSSES, batch, gradient_of, rows, slow_loss_of_lists
from tests.ranking.random_rankings import SOME

ITEM_LOSSES = {name: RANK_LOSSES[name] for name in ("SupAP", "SupHAP", "SmoothNDCG")} | {"PairCalibration": PairCalibration}


def rows_of(ids, *, dim=2, levels=2, stamp=0):
    """A batch in which everything can be told from the id and a stamp: embeddings, labels, ids."""
    ids = torch.tensor(ids, dtype=torch.int64)
    embeddings = (100 * ids + stamp)[:, None] + torch.arange(dim) / 8
    return embeddings, ids[:, None] // 2 ** torch.arange(levels), ids


def listed(memory):
    found = memory.contents()
    assert len(memory) == len(found.embeddings) == len(found.labels) == len(found.ids)
    return list(zip(found.embeddings.tolist(), found.labels.tolist(), found.ids.tolist(), strict=True))


def expected_rows(*batches):
    return [row for one in batches for row in zip(*(values.tolist() for values in one), strict=True)]


def same_state(one, other):
    assert one.state_dict().keys() == other.state_dict().keys()
    return all(torch.equal(one.state_dict()[name], other.state_dict()[name]) for name in one.state_dict())


# Worked examples


def test_a_ring_of_four_by_hand():
    memory = EmbeddingMemory(4, dim=1, levels=1)
    assert memory.contents().ids.tolist() == []
    seen = []
    for ids in ([10, 11, 12], [13, 14], [15], [16, 17, 18, 19, 20, 21]):
        memory.add(*rows_of(ids, dim=1, levels=1))
        seen.append(memory.contents().ids.tolist())
    # Six rows into four places: the last four stay, each where it would be had they come one by one.
    assert seen == [[10, 11, 12], [14, 11, 12, 13], [14, 15, 12, 13], [18, 19, 20, 21]]
    assert memory.contents().embeddings.tolist() == [[1800], [1900], [2000], [2100]]
    assert memory.contents().labels.tolist() == [[18], [19], [20], [21]]


def test_a_place_for_each_of_four_by_hand():
    memory = EmbeddingMemory(4, dim=1, levels=1, per_item=True)
    memory.add(*rows_of([3, 1], dim=1, levels=1, stamp=1))
    assert listed(memory) == [([101], [1], 1), ([301], [3], 3)]
    memory.add(torch.tensor([[7.0], [8.0], [9.0]]), torch.tensor([[5], [6], [7]]), torch.tensor([1, 0, 1]))
    assert listed(memory) == [([8], [6], 0), ([9], [7], 1), ([301], [3], 3)], "of an id twice in a batch the last stays"
    memory.add(*rows_of([2], dim=1, levels=1))
    assert len(memory) == 4
    memory.add(*rows_of([2], dim=1, levels=1, stamp=5))
    assert listed(memory) == [([8], [6], 0), ([9], [7], 1), ([205], [2], 2), ([301], [3], 3)]


# Laws

BATCHES = st.lists(st.lists(st.integers(0, 5), max_size=9), max_size=6)


@SOME
@given(size=st.integers(1, 6), batches=BATCHES)
def test_a_ring_holds_what_a_bounded_deque_holds(size, batches):
    memory, model, added = EmbeddingMemory(size, 2, 2), deque(maxlen=size), 0
    for stamp, ids in enumerate(batches):
        drawn = rows_of(ids, stamp=stamp)
        memory.add(*drawn)
        model.extend(expected_rows(drawn))
        added += len(ids)
        # The deque's oldest row is in the place that is written next.
        turn = added % size if added > size else 0
        assert listed(memory) == [*list(model)[len(model) - turn :], *list(model)[: len(model) - turn]]


@SOME
@given(size=st.integers(1, 6), ids=st.lists(st.integers(0, 99), max_size=20), cuts=st.lists(st.integers(0, 20), max_size=4))
def test_any_division_into_batches_leaves_the_same_ring(size, ids, cuts):
    whole, divided = EmbeddingMemory(size, 2, 2), EmbeddingMemory(size, 2, 2)
    whole.add(*rows_of(ids))
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    for start, stop in pairwise(bounds):
        divided.add(*rows_of(ids[start:stop]))
    assert listed(whole) == listed(divided)
    assert same_state(whole, divided)


@SOME
@given(batches=BATCHES)
def test_a_place_for_each_item_is_a_dict(batches):
    memory, model = EmbeddingMemory(6, 2, 2, per_item=True), {}
    for stamp, ids in enumerate(batches):
        embeddings, labels, drawn = rows_of(ids, stamp=stamp)
        embeddings = embeddings + torch.arange(len(ids))[:, None] / 64  # two rows of one id differ
        memory.add(embeddings, labels, drawn)
        model |= {row[2]: row for row in expected_rows((embeddings, labels, drawn))}
        assert listed(memory) == [model[own] for own in sorted(model)]


# Checkpoints


@pytest.mark.parametrize("per_item", [False, True], ids=["ring", "per item"])
def test_a_memory_saved_in_the_middle_continues_identically(per_item):
    generator = torch.Generator().manual_seed(0)
    memory = EmbeddingMemory(7, 3, 2, per_item=per_item)
    for step in range(9):
        if step == 4:
            file = io.BytesIO()
            torch.save(memory.state_dict(), file)
            file.seek(0)
            loaded = EmbeddingMemory(7, 3, 2, per_item=per_item)
            loaded.add(*rows_of([1, 5], dim=3))  # what was there before goes
            loaded.load_state_dict(torch.load(file, weights_only=True))
            copied = copy.deepcopy(memory)
        drawn = torch.randn(3, 3, generator=generator), *rows_of(torch.randint(7, (3,), generator=generator).tolist())[1:]
        for one in (memory, loaded, copied) if step >= 4 else (memory,):
            one.add(*drawn)
    for other in (loaded, copied):
        assert same_state(memory, other)
        assert listed(memory) == listed(other)


def test_everything_is_in_the_state_and_nothing_is_a_parameter():
    memory = EmbeddingMemory(3, 2, 1)
    assert set(memory.state_dict()) == {"stored_embeddings", "stored_labels", "stored_ids", "added"}
    assert list(memory.parameters()) == []
    assert repr(memory) == "EmbeddingMemory(size=3, dim=2, levels=1, per_item=False)"


@pytest.mark.parametrize(
    ("ours", "fragments"),
    [
        (EmbeddingMemory(5, 2, 2), ["saved", "size=3", "this one", "size=5", "make it as the saved one was"]),
        (EmbeddingMemory(3, 4, 2), ["dim=2", "dim=4"]),
        (EmbeddingMemory(3, 2, 1), ["levels=2", "levels=1"]),
        (EmbeddingMemory(3, 2, 2, per_item=True), ["per_item=False", "per_item=True"]),
    ],
)
def test_a_state_of_another_shape_is_refused_by_both_shapes(ours, fragments):
    memory = EmbeddingMemory(3, 2, 2)
    with pytest.raises(ValueError, match="the saved memory has") as raised:
        ours.load_state_dict(memory.state_dict())
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)
    with pytest.raises(RuntimeError, match="stored_embeddings"):
        ours.load_state_dict({})


# Dtypes, gradients, copies


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("per_item", [False, True], ids=["ring", "per item"])
def test_embeddings_of_any_dtype_are_kept_as_float32_without_gradient(dtype, per_item):
    memory = EmbeddingMemory(4, 2, 1, per_item=per_item)
    embeddings = torch.tensor([[0.1, -2.0], [3.0, 1e-3]], dtype=dtype, requires_grad=True)
    memory.add(embeddings, torch.tensor([[0], [1]], dtype=torch.int32), torch.tensor([2, 1], dtype=torch.int32))
    found = memory.contents()
    assert found.embeddings.dtype == torch.float32
    assert found.labels.dtype == found.ids.dtype == torch.int64
    assert not found.embeddings.requires_grad
    order = [1, 0] if per_item else [0, 1]
    assert torch.equal(found.embeddings, embeddings.detach().float()[order])


def test_contents_are_views_where_they_can_be():
    ring = EmbeddingMemory(4, 2, 2)
    ring.add(*rows_of([1, 2]))
    assert ring.contents().embeddings.data_ptr() == ring.stored_embeddings.data_ptr()
    ring.add(*rows_of([3, 4, 5]))
    assert ring.contents().embeddings is ring.stored_embeddings
    table = EmbeddingMemory(2, 2, 2, per_item=True)
    table.add(*rows_of([1, 0]))
    assert table.contents().labels is table.stored_labels


def test_a_batch_added_later_does_not_disturb_a_loss_waiting_for_backward():
    embeddings, labels = batch("three levels", dtype=torch.float32)
    memory = EmbeddingMemory(8, DIM, 3)
    memory.add(*(batch("three levels", seed=1, dtype=torch.float32)), torch.arange(8))
    found = memory.contents()
    leaf, other = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    SupAP()(other, labels, ref_emb=found.embeddings.clone(), ref_labels=found.labels).backward()
    waiting = SupAP()(leaf, labels, ref_emb=found.embeddings, ref_labels=found.labels)
    memory.add(embeddings, labels, torch.arange(8))
    waiting.backward()
    assert torch.equal(leaf.grad, other.grad)


# Losses against it


def filled(embeddings, labels, ids, *, size=40, per_item=False):
    """Two older batches in which half of the images of this one occur, then this one."""
    memory = EmbeddingMemory(size, DIM, labels.shape[1], per_item=per_item)
    for seed, older in ((1, ids + 4), (2, ids.flip(0))):
        drawn, their_labels = batch("three levels", seed=seed)
        memory.add(drawn, their_labels if seed == 1 else labels.flip(0), older)
    memory.add(embeddings, labels, ids)
    return memory


@pytest.mark.parametrize("name", ITEM_LOSSES)
def test_a_loss_against_a_memory_equals_the_equation_on_its_items(name):
    embeddings, labels = batch("three levels")
    embeddings = embeddings.float().double()  # as the memory keeps them
    ids = torch.arange(8)
    found = filled(embeddings, labels, ids).contents()
    lists = []
    for query, own in enumerate(rows(labels)):
        scores = [reference.cosine(embeddings[query].tolist(), item) for item in found.embeddings.tolist()]
        level = [
            -1 if theirs == query else reference.common_level(own, row)
            for theirs, row in zip(found.ids.tolist(), rows(found.labels), strict=True)
        ]
        assert level.count(-1) >= 2, "the query is in the memory as it is and as it was"
        lists.append((scores, level))
    loss = ITEM_LOSSES[name]()
    value = loss(embeddings, labels, ref_emb=found.embeddings, ref_labels=found.labels, ids=ids, ref_ids=found.ids)
    if name == "PairCalibration":
        expected = reference.pair_calibration([(scores, reference.binary(level, 3)) for scores, level in lists])
    else:
        expected = slow_loss_of_lists(name, lists, 3)
    assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


# Refusals


@pytest.mark.parametrize(
    ("call", "fragments"),
    [
        (lambda: EmbeddingMemory(0, 2, 1), ["size=0"]),
        (lambda: EmbeddingMemory(4, 0, 1), ["dim=0"]),
        (lambda: EmbeddingMemory(4, 2, -1), ["levels=-1"]),
    ],
)
def test_a_memory_without_room_is_refused(call, fragments):
    with pytest.raises(ValueError, match="must be a whole number from 1 on") as raised:
        call()
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)


EMBEDDINGS, LABELS, IDS = rows_of([0, 1, 2])


@pytest.mark.parametrize(
    ("rows", "fragments"),
    [
        ((EMBEDDINGS[:, :1], LABELS, IDS), ["embeddings", "(3, 1)", "[batch, 2]", "dim=1"]),
        ((EMBEDDINGS[0], LABELS, IDS), ["embeddings", "(2,)"]),
        ((EMBEDDINGS.long(), LABELS, IDS), ["embeddings", "int64", "floating-point"]),
        ((EMBEDDINGS, LABELS[:, :1], IDS), ["labels", "(3, 1)", "[3, 2]", "level"]),
        ((EMBEDDINGS, LABELS[:2], IDS), ["labels", "(2, 2)", "[3, 2]"]),
        ((EMBEDDINGS, LABELS.double(), IDS), ["labels", "float64", "integers"]),
        ((EMBEDDINGS, LABELS, IDS[:2]), ["ids", "(2,)", "3 integers"]),
        ((EMBEDDINGS, LABELS, IDS.float()), ["ids", "float32", "3 integers"]),
    ],
)
@pytest.mark.parametrize("per_item", [False, True], ids=["ring", "per item"])
def test_a_batch_that_does_not_fit_is_refused_and_leaves_the_memory_as_it_was(rows, fragments, per_item):
    memory = EmbeddingMemory(4, 2, 2, per_item=per_item)
    memory.add(*rows_of([3]))
    with pytest.raises(ValueError, match="but") as raised:
        memory.add(*rows)
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)
    assert listed(memory) == expected_rows(rows_of([3]))


@pytest.mark.parametrize(("ids", "span"), [([0, 4], "0..4"), ([-1, 2], "-1..2")])
def test_an_id_without_a_place_is_refused(ids, span):
    memory = EmbeddingMemory(4, 2, 2, per_item=True)
    with pytest.raises(ValueError, match="a place from 0 to 3") as raised:
        memory.add(*rows_of(ids))
    assert span in str(raised.value)
    assert len(memory) == 0


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("per_item", [False, True], ids=["ring", "per item"])
def test_on_a_gpu_it_holds_what_it_holds_on_the_cpu(per_item):
    on_cpu, on_gpu = (EmbeddingMemory(500, 4, 2, per_item=per_item) for _ in range(2))
    on_gpu.cuda()
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        ids = torch.randint(500, (96,), generator=generator)  # many twice
        drawn = torch.randn(96, 4, generator=generator), torch.stack([ids // 4, ids // 40], 1), ids
        on_cpu.add(*drawn)
        on_gpu.add(*(values.cuda() if step % 2 else values for values in drawn))
    assert all(torch.equal(one, other.cpu()) for one, other in zip(on_cpu.contents(), on_gpu.contents(), strict=True))
    back = EmbeddingMemory(500, 4, 2, per_item=per_item)
    back.load_state_dict(on_gpu.state_dict())
    assert same_state(on_cpu, back)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_of_a_ring_on_a_gpu_does_not_wait_for_it():
    memory = EmbeddingMemory(500, 4, 2).cuda()
    drawn = torch.randn(96, 4).cuda(), torch.zeros(96, 2, dtype=torch.int64).cuda(), torch.arange(96).cuda()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(8):
            memory.add(*drawn)
            memory.contents()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(memory) == 500


@pytest.mark.gpu
@pytest.mark.parametrize("make", [SupAP, SupHAP])
def test_a_memory_of_60_000_is_ranked_in_bounded_memory_and_agrees_with_float64(make, record_property):
    from suprank.ranking.gpu.pairs import fused

    size, dim, images, few = 60_000, 512, 256, 4
    torch.manual_seed(0)
    ids = torch.randperm(size, device="cuda")
    labels = torch.stack([ids // 5, ids // 5000], 1)  # as in Stanford Online Products: 12,000 classes in 12
    centers = torch.randn(size // 5, dim, device="cuda")
    embeddings = centers[labels[:, 0]] + 2 * torch.randn(size, dim, device="cuda") + 0.3 * centers[labels[:, 1]]
    memory = EmbeddingMemory(size, dim, 2, per_item=True).cuda()
    for part in range(0, size, 1000):
        rows = slice(part, part + 1000)
        memory.add(embeddings[rows], labels[rows], ids[rows])
    leaf, labels, ids = embeddings[:images].clone().requires_grad_(), labels[:images], ids[:images]
    del embeddings, centers
    items = memory.contents()
    against = {"ref_emb": items.embeddings, "ref_labels": items.labels, "ref_ids": items.ids}

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    value = make(using=fused)(leaf, labels, ids=ids, **against)
    value.backward()
    peak = torch.cuda.max_memory_allocated() - before
    record_property("peak MiB", round(peak / 2**20))
    print(f"{make.__name__}: peak {peak / 2**20:.0f} MiB, loss {value.item():.4f}")
    assert peak < 3 * 2**30
    assert value.isfinite()
    assert leaf.grad.isfinite().all()

    # Every query's list is its own, so a few queries have the same gradient alone, but for the mean.
    alone = leaf.detach()[:few].double().requires_grad_()
    exact = make(using=partial(chunked, budget=2**30))
    expected = exact(alone, labels[:few], ids=ids[:few], **{**against, "ref_emb": items.embeddings.double()})
    expected.backward()
    with torch.no_grad():
        found = make(using=fused)(leaf[:few], labels[:few], ids=ids[:few], **against)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)
    slope = leaf.grad[:few].double() * images / few
    assert (slope - alone.grad).norm() < 2e-3 * alone.grad.norm()


# A loss with a memory


def by_hand(loss, memory, embeddings, labels, ids, weight):
    memory.add(embeddings, labels, ids)
    items = memory.contents()
    against = loss(embeddings, labels, ref_emb=items.embeddings, ref_labels=items.labels, ids=ids, ref_ids=items.ids)
    return (1 - weight) * loss(embeddings, labels) + weight * against


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_a_wrapped_loss_is_that_of_the_batch_and_of_the_memory(weight):
    loss = roadmap(decomposability=PairCalibration())
    criterion, memory = EmbeddingMemory(20, DIM, 3, loss=loss, weight=weight), EmbeddingMemory(20, DIM, 3)
    for seed in (1, 2, 3):  # each image comes again in the next batch
        embeddings, labels = batch("three levels", seed=seed, dtype=torch.float32)
        ids = torch.arange(8) + 4 * seed
        leaf, other = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
        value, expected = criterion(leaf, labels, ids), by_hand(loss, memory, other, labels, ids, weight)
        torch.testing.assert_close(value, expected)
        value.backward()
        expected.backward()
        torch.testing.assert_close(leaf.grad, other.grad)
    assert set(criterion.log) == {"SupAP", "PairCalibration", "queries_without_positives", "against memory", "loss"}
    assert f"weight={weight}" in repr(criterion)


def test_without_ids_every_row_is_an_image_and_the_query_is_left_out():
    criterion, memory = EmbeddingMemory(12, DIM, loss=SupAP()), EmbeddingMemory(12, DIM)
    for seed in (1, 2, 3):
        embeddings, labels = batch("unequal classes", seed=seed, dtype=torch.float32)
        ids = torch.arange(7) + 7 * seed
        torch.testing.assert_close(criterion(embeddings, labels), by_hand(SupAP(), memory, embeddings, labels, ids, 0.5))
    with pytest.raises(ValueError, match="ids were given at some calls and not at others"):
        criterion(embeddings, labels, ids)


def test_a_wrapped_loss_against_the_memory_alone_is_pytorch_metric_learnings():
    from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss

    ours = EmbeddingMemory(16, DIM, loss=SupCon(), weight=1.0)
    theirs = CrossBatchMemory(SupConLoss(), DIM, memory_size=16)
    for seed in range(4):
        embeddings, labels = batch("unequal classes", seed=seed, dtype=torch.float32)
        torch.testing.assert_close(gradient_of(ours, embeddings, labels), gradient_of(theirs, embeddings, labels))


def test_the_parameters_of_a_wrapped_loss_are_trained_and_saved_with_the_memory():
    criterion = EmbeddingMemory(20, DIM, loss=roadmap(6, DIM))
    embeddings, labels = batch("unequal classes", dtype=torch.float32)
    criterion(embeddings.requires_grad_(), labels, torch.arange(7)).backward()
    assert all(parameter.grad is not None for parameter in criterion.parameters())
    fresh = EmbeddingMemory(20, DIM, loss=roadmap(6, DIM))
    fresh.load_state_dict(criterion.state_dict())
    assert torch.equal(fresh(embeddings, labels, torch.arange(7)), criterion(embeddings, labels, torch.arange(7)))


def test_what_a_memory_cannot_wrap_or_be_called_with_is_refused():
    embeddings, labels = batch("unequal classes", dtype=torch.float32)
    with pytest.raises(TypeError, match="loss is a MSELoss, but must be a loss of suprank that compares images"):
        EmbeddingMemory(4, DIM, loss=torch.nn.MSELoss())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss is a ProxySoftmax"):
        EmbeddingMemory(4, DIM, loss=ProxySoftmax(4, DIM))
    with pytest.raises(ValueError, match="weight=2 must be between 0 and 1"):
        EmbeddingMemory(4, DIM, loss=SupAP(), weight=2)
    with pytest.raises(TypeError, match="this memory has no loss to call; make it with loss=SupAP"):
        EmbeddingMemory(4, DIM)(embeddings, labels)
    with pytest.raises(ValueError, match="ids are missing, but with per_item each image has the place of its id"):
        EmbeddingMemory(9, DIM, loss=SupAP(), per_item=True)(embeddings, labels)
