"""Losses on images with several labels at a level, `[B, L, M]`: an item is a positive where the sets meet."""

import importlib

import pytest
import torch

from suprank.evaluation import evaluate
from suprank.losses import (
    EmbeddingMemory,
    LabelTreeWarning,
    PairCalibration,
    RetrievalBatch,
    SimilarityMixup,
    SmoothAP,
    SupAP,
    SupHAP,
    collection_loss,
)
from suprank.losses.batch import _suspicion
from suprank.ranking import IGNORED, common_level, seam
from suprank.ranking.reading import Reading, reading_at_most
from tests import reference
from tests.losses.batches import DIM, LOSSES, RANDOM, WITH_PROXIES, batch, build, gradient_of

WITHOUT_PROXIES = [name for name in LOSSES if name not in WITH_PROXIES]
SETS = torch.tensor(
    [[[0, 1], [0, -1]], [[1, -1], [0, -1]], [[2, 4], [1, 2]], [[4, -1], [2, -1]], [[3, 3], [1, -1]], [[-1, -1]] * 2]
)


def embeddings(count=len(SETS), dtype=torch.float64):
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(1), dtype=dtype)


def lists(vectors, labels):
    """The scores and levels of every query, in loops over the members."""
    found = []
    for query, own in enumerate(labels.tolist()):
        level = []
        for other in labels.tolist():
            meets = [bool((set(mine) & set(theirs)) - {-1}) for mine, theirs in zip(own, other, strict=True)][::-1]
            level.append([*meets, False].index(False))
        level[query] = IGNORED
        found.append(([reference.cosine(vectors[query].tolist(), other) for other in vectors.tolist()], level))
    return found


def test_an_item_is_at_the_level_up_to_which_the_sets_meet():
    found = RetrievalBatch.from_embeddings(embeddings(), SETS)
    assert found.level().tolist() == [
        [-1, 2, 0, 0, 0, 0],
        [2, -1, 0, 0, 0, 0],
        [0, 0, -1, 2, 1, 0],
        [0, 0, 2, -1, 0, 0],
        [0, 0, 1, 0, -1, 0],
        [0, 0, 0, 0, 0, -1],
    ]
    assert found.fine_level().tolist()[2] == [0, 0, -1, 1, 0, 0]


def test_no_images_have_no_levels():
    nothing = SETS[:0]
    assert common_level(nothing).shape == (0, 0)
    assert common_level(SETS, nothing).shape == (len(SETS), 0)


def test_rank_losses_and_pair_calibration_equal_their_equations_in_loops():
    vectors = embeddings()
    fine = [(scores, reference.binary(level, 2)) for scores, level in lists(vectors, SETS)]
    smooth = reference.smooth(0.01)
    values = [reference.average_precision(scores, level, smooth, smooth) for scores, level in fine]
    assert SmoothAP()(vectors, SETS).item() == pytest.approx(reference.mean_loss(values), rel=1e-9)
    assert PairCalibration()(vectors, SETS).item() == pytest.approx(reference.pair_calibration(fine), rel=1e-9)


@pytest.mark.parametrize("name", WITHOUT_PROXIES)
def test_sets_of_one_label_are_that_label(name):
    vectors, labels = batch("three levels")
    expected = gradient_of(build(name, labels), vectors, labels)
    one = labels[..., None]
    for sets in (one, torch.nn.functional.pad(one, (0, 2), value=-1), one.expand(-1, -1, 2)):
        value, gradient = gradient_of(build(name, labels), vectors, sets)
        assert torch.equal(value, expected[0])
        assert torch.equal(gradient, expected[1])


@pytest.mark.parametrize("name", [name for name in WITHOUT_PROXIES if name not in RANDOM and name != "ΣTL"])
def test_order_and_repeats_of_labels_do_not_matter(name):
    expected = gradient_of(build(name, SETS), embeddings(), SETS)
    value, gradient = gradient_of(build(name, SETS), embeddings(), torch.cat([SETS.flip(-1), SETS], -1))
    assert torch.equal(value, expected[0])
    assert torch.equal(gradient, expected[1])


@pytest.mark.parametrize("name", WITH_PROXIES)
def test_losses_with_proxies_say_that_they_need_one_label(name):
    labels = SETS if name != "ΣNSM" else torch.cat([SETS, SETS[:, 1:]], 1)
    with pytest.raises(ValueError, match=r"needs one label for an image at each level.*up to 2.*use a loss without proxies"):
        build(name)(embeddings(), labels)


def test_references_may_have_sets_of_another_size_or_single_labels():
    one, several = torch.tensor([[1, 0], [4, 2]]), SETS[2:4]
    found = RetrievalBatch.from_embeddings(embeddings(2), one, None, embeddings(2), several)
    assert found.level().tolist() == [[0, 0], [2, 2]]
    found = RetrievalBatch.from_embeddings(embeddings(2), several, None, embeddings(2), one)
    assert found.level().tolist() == [[0, 2], [0, 2]]


def test_a_collection_and_a_memory_take_sets():
    vectors = embeddings()
    torch.testing.assert_close(collection_loss(SupHAP(), vectors, SETS, chunk=4), SupHAP()(vectors, SETS))
    memory, ids = EmbeddingMemory(4, DIM, 2, max_labels=2), torch.arange(6)
    for some in ids.split(3):
        memory.add(vectors[some], SETS[some], some)
    stored = memory.contents()
    assert stored.ids.tolist() == [4, 5, 2, 3]
    assert torch.equal(stored.labels, SETS[stored.ids])
    against = {"ref_emb": stored.embeddings, "ref_labels": stored.labels, "ids": ids, "ref_ids": stored.ids}
    assert SupAP()(vectors, SETS, **against).isfinite()
    restored = EmbeddingMemory(4, DIM, 2, max_labels=2)
    restored.load_state_dict(memory.state_dict())
    assert torch.equal(restored.contents().labels, stored.labels)
    with pytest.raises(ValueError, match=r"must be integers \[6, 2, 2\].*max_labels"):
        memory.add(vectors, SETS[..., 0], ids)
    with pytest.raises(ValueError, match="levels=2, max_labels=2, per_item=False, but this one has .*levels=2, per_item"):
        EmbeddingMemory(4, DIM, 2).load_state_dict(memory.state_dict())


def test_a_virtual_example_has_the_labels_that_both_images_have():
    seen = []

    class Spy(SupAP):
        def compute(self, batch):
            seen.append(batch.labels)
            return super().compute(batch)

    SimilarityMixup(Spy())(embeddings(3), torch.tensor([[[0, 1]], [[1, 2]], [[3, -1]]]))
    assert seen[0][3:].tolist() == [[[-1, 1]]]


def test_sets_that_form_no_tree_warn():
    with pytest.warns(LabelTreeWarning, match="images of class 0 of column 0 have no class of column 1 in common"):
        SupAP()(embeddings(2), torch.tensor([[[0, 1], [0, 1]], [[0, -1], [2, -1]]]))
    with pytest.warns(LabelTreeWarning, match="class 0 of column 0 has no parent"):
        SupAP()(embeddings(2), torch.tensor([[[0, 1], [-1, -1]], [[0, -1], [2, -1]]]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (SETS[:3], r"3 rows for 6 embeddings"),
        (SETS[..., None], r"\[N, L, M\] if an item has up to M labels"),
        (SETS - 1, "labels hold -2 in row 0"),
    ],
)
def test_other_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        SupAP()(embeddings(), labels)


def test_on_a_gpu_sets_are_left_to_plain_torch(monkeypatch):
    """The kernel of levels takes one label; here it would fail."""
    pytest.importorskip("triton")
    monkeypatch.setattr(seam, "DEVICES", {"cpu"})
    monkeypatch.setattr(importlib.import_module("suprank.ranking.gpu.batch"), "_launch", None)
    assert RetrievalBatch.from_embeddings(embeddings(), SETS).level()[0].tolist() == [-1, 2, 0, 0, 0, 0]
    with pytest.raises(TypeError):
        RetrievalBatch.from_embeddings(embeddings(), SETS[..., 0]).level()


@pytest.mark.filterwarnings("default")  # torch.compile warns of itself
def test_a_compiled_loss_takes_sets():
    loss = SupHAP(using="definition")
    torch.compiler.reset()
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(embeddings(), SETS), loss(embeddings(), SETS))


MULTI_HOT = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]])[:, None]
MEMBERS = torch.tensor([[0, 1], [1, -1], [0, 2], [2, 3], [-1, -1], [1, 3]])[:, None]


@pytest.mark.parametrize("name", ["SupAP", "SupHAP", "PairCalibration", "TripletSemiHard"])
def test_truth_values_of_classes_are_the_sets_of_the_true_ones(name):
    expected = gradient_of(build(name, MEMBERS), embeddings(), MEMBERS)
    found = gradient_of(build(name, MEMBERS), embeddings(), MULTI_HOT.bool())
    assert all(map(torch.equal, found, expected))
    others = {"ref_emb": embeddings(4).flip(1), "ref_labels": MULTI_HOT[:4].bool()}
    value, _ = gradient_of(build(name, MEMBERS), embeddings(), MEMBERS, **others)
    assert value == gradient_of(build(name, MEMBERS), embeddings(), MEMBERS, **others | {"ref_labels": MEMBERS[:4]})[0]
    assert torch.equal(common_level(MULTI_HOT.bool()), common_level(MEMBERS))


def test_truth_values_need_no_look_at_their_values():
    expected = SupAP(using="definition")(embeddings(), MEMBERS)
    with reading_at_most(Reading.NOTHING):
        assert SupAP(using="definition")(embeddings(), MULTI_HOT.bool()) == expected


SETS_OF_TWO = torch.tensor([[0, 1], [1, 0], [0, 1]])[:, None]


def test_multi_hot_integers_are_no_sets_of_classes_0_and_1():
    twice = torch.tensor([[0, 0], [1, 1], [0, 1]])[:, None]
    for wrong in (MULTI_HOT, twice):
        for call in (SupAP(), lambda vectors, labels: common_level(labels), evaluate):
            with pytest.raises(ValueError, match="hold nothing but 0 and 1, and one of them twice in a row.*dtype bool.*−1"):
                call(embeddings(len(wrong)), wrong)
        assert _suspicion(wrong, unsigned=False) < -1, "which a GPU computes before it looks"
    for right in (SETS_OF_TWO, MEMBERS, SETS, SETS_OF_TWO.repeat(1, 1, 2).index_fill(2, torch.tensor([3]), -1)):
        SupAP()(embeddings(len(right)), right)
        assert _suspicion(right, unsigned=False) >= -1 or right is SETS_OF_TWO
    assert _suspicion(MEMBERS[:, :, 0] - 1, unsigned=False) < -1
    with pytest.raises(TypeError, match=r"bool.*truth values of C classes \[N, 1, C\]"):
        SupAP()(embeddings(), MULTI_HOT[:, 0].bool())
