"""The door of every loss: what a batch holds, in which precision, and what is refused in which words."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from suprank.evaluation import evaluate
from suprank.losses import ProxySoftmax, RankLoss, RetrievalBatch, SimilarityMixup, SupAP, SupHAP, skip_value_checks
from suprank.losses.batch import unit_vectors_and_lengths
from suprank.losses.surrogate import HAPMeasure
from suprank.ranking import IGNORED, heaviside
from tests import reference
from tests.losses.batches import COMPOSITIONS, DIM, batch, rows


def test_scores_are_cosines_of_embeddings_of_any_length():
    found = RetrievalBatch.from_embeddings(torch.tensor([[3.0, 0.0], [1.0, 1.0], [0.0, -0.2]]), torch.tensor([0, 0, 1]))
    half = math.sqrt(0.5)
    torch.testing.assert_close(found.scores, torch.tensor([[1, half, 0], [half, 1, -half], [0, -half, 1]]))


def test_the_query_is_out_of_its_own_list_unless_included():
    found = RetrievalBatch.from_embeddings(torch.eye(3), torch.tensor([[0, 0], [0, 0], [1, 0]]))
    assert found.level().tolist() == [[IGNORED, 2, 1], [2, IGNORED, 1], [1, 1, IGNORED]]
    assert found.level(include_self=True).tolist() == [[2, 2, 1], [2, 2, 1], [1, 1, 2]]
    assert found.fine_level().tolist() == [[IGNORED, 1, 0], [1, IGNORED, 0], [0, 0, IGNORED]]
    assert found.fine_level(include_self=True).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_scores_and_levels_equal_the_reference(composition):
    embeddings, labels = batch(composition)
    found = RetrievalBatch.from_embeddings(embeddings, labels)
    for include_self in (False, True):
        lists = reference.batch_lists(embeddings.tolist(), rows(labels), include_self=include_self)
        torch.testing.assert_close(found.scores, torch.tensor([scores for scores, _ in lists], dtype=torch.float64))
        assert found.level(include_self=include_self).tolist() == [level for _, level in lists]
        fine = [reference.binary(level, len(rows(labels)[0])) for _, level in lists]
        assert found.fine_level(include_self=include_self).tolist() == fine


@pytest.mark.parametrize("composition", ["some without a label", "some without a fine label", "three levels"])
def test_a_loss_and_evaluate_mean_the_same_by_no_label(composition):
    embeddings, labels = batch(composition, dtype=torch.float32)
    loss = RankLoss(HAPMeasure(), minus=heaviside)  # H-AP itself: both steps are Heaviside's
    report = evaluate(embeddings, labels, progress=False)
    assert 1 - loss(embeddings, labels).item() == pytest.approx(report["H-AP"], rel=1e-6)
    coarsest = report.levels[-1]
    assert loss.log["queries_without_positives"].item() == report.without_positives[coarsest]


def test_references_have_a_size_of_their_own_and_self_is_in_the_list_unless_its_index_is_given():
    embeddings, labels = torch.eye(2), torch.tensor([0, 1])
    references, ref_labels = torch.cat([torch.eye(2), -torch.eye(2)]), torch.tensor([0, 1, 0, 1])
    found = RetrievalBatch.from_embeddings(embeddings, labels, None, references, ref_labels)
    assert found.level().tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
    found = RetrievalBatch.from_embeddings(embeddings, labels, None, references, ref_labels, self_index=torch.tensor([0, -1]))
    assert found.level().tolist() == [[IGNORED, 0, 1, 0], [0, 1, 0, 1]]
    assert found.level(include_self=True).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
    assert found.fine_level().tolist() == [[IGNORED, 0, 1, 0], [0, 1, 0, 1]]


@pytest.mark.parametrize("composition", ["unequal classes", "three levels"])
def test_a_batch_that_is_given_as_its_own_references_is_ranked_within_itself(composition):
    embeddings, labels = batch(composition)
    leaf, same = embeddings.clone().requires_grad_(), embeddings.clone().requires_grad_()
    for loss in (SupAP(), SupHAP(), SimilarityMixup(SupAP())):
        torch.manual_seed(0)
        expected = loss(leaf, labels)
        torch.manual_seed(0)
        found = loss(same, labels, ref_emb=same, ref_labels=labels.clone())
        assert torch.equal(found, expected)
        assert torch.equal(*torch.autograd.grad(found, same), *torch.autograd.grad(expected, leaf))


def test_a_batch_as_its_own_references_with_ids_goes_by_the_ids():
    embeddings, labels = torch.eye(3), torch.tensor([0, 0, 0])
    ids = torch.tensor([4, 4, 5])  # two views of one image
    found = RetrievalBatch.from_embeddings(embeddings, labels, None, embeddings, labels, ids=ids, ref_ids=ids)
    assert found.level().tolist() == [[IGNORED, IGNORED, 1], [IGNORED, IGNORED, 1], [1, 1, IGNORED]]


def test_references_with_the_querys_id_are_the_query_however_many_there_are():
    embeddings, labels = torch.eye(3), torch.tensor([0, 1, 1])
    references, ref_labels = torch.eye(3)[[0, 0, 1, 2, 0]], torch.tensor([0, 0, 1, 1, 0])
    ids, ref_ids = torch.tensor([7, 5, -1]), torch.tensor([7, 3, 5, -1, 7])
    found = RetrievalBatch.from_embeddings(embeddings, labels, None, references, ref_labels, ids=ids, ref_ids=ref_ids)
    # Item 1 is another image of class 0. The last query is nobody, and neither is item 3: unknown is not the same.
    assert found.level().tolist() == [[IGNORED, 1, 0, 0, IGNORED], [0, 0, IGNORED, 1, 0], [0, 0, 1, 1, 0]]
    assert found.fine_level().tolist() == found.level().tolist()
    assert found.level(include_self=True).tolist() == [[1, 1, 0, 0, 1], [0, 0, 1, 1, 0], [0, 0, 1, 1, 0]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_ids_of_any_integer_dtype_are_compared(dtype):
    ids = torch.tensor([4, 9])
    found = RetrievalBatch.from_embeddings(
        torch.eye(2), torch.tensor([0, 0]), None, torch.eye(2), torch.tensor([0, 0]), ids=ids.to(dtype), ref_ids=ids
    )
    assert found.level().tolist() == [[IGNORED, 1], [1, IGNORED]]


def test_ids_take_references_out_of_a_users_relevance_too():
    ids, relevance = torch.tensor([2, 3]), torch.tensor([[1.0, 0.5], [0.2, 0.0]])
    found = RetrievalBatch.from_embeddings(torch.eye(2), None, None, torch.eye(2), relevance=relevance, ids=ids, ref_ids=ids)
    torch.testing.assert_close(found.level(), torch.tensor([[-1, 0.5], [0.2, -1]]))
    assert relevance[0, 0] == 1, "the user's matrix was edited in place"


def test_a_users_relevance_orders_in_place_of_levels():
    relevance = torch.tensor([[1.0, 0.5, 0.0], [0.2, 1.0, -1.0], [0.0, 0.0, 1.0]])
    found = RetrievalBatch.from_embeddings(torch.eye(3), relevance=relevance)
    torch.testing.assert_close(found.level(), torch.tensor([[-1, 0.5, 0], [0.2, -1, -1], [0, 0, -1]]))
    assert found.fine_level().tolist() == [[-1, 1, 0], [1, -1, -1], [0, 0, -1]]
    assert found.fine_level(include_self=True).tolist() == [[1, 1, 0], [1, 1, -1], [0, 0, 1]]
    assert relevance[0, 0] == 1, "the user's matrix was edited in place"


@pytest.mark.parametrize(
    ("dtype", "precise"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_scores_are_float32_for_half_precision_and_float64_for_float64(dtype, precise):
    embeddings, labels = batch("unequal classes", dtype=dtype)
    found = RetrievalBatch.from_embeddings(embeddings, labels)
    assert found.queries.dtype == found.scores.dtype == precise
    mixed = RetrievalBatch.from_embeddings(embeddings, labels, None, embeddings.to(torch.bfloat16), labels)
    assert mixed.scores.dtype == precise


def test_large_and_small_embeddings_have_the_scores_of_their_directions():
    embeddings, labels = batch("unequal classes", dtype=torch.float32)
    expected = RetrievalBatch.from_embeddings(embeddings, labels).scores
    for scale in (1e-36, 1e-30, 1e-20, 1e-13, 1e-9, 1e15, 1e30, 1e37):  # at the last, finite lengths have an infinite sum
        torch.testing.assert_close(RetrievalBatch.from_embeddings(scale * embeddings, labels).scores, expected)
    assert evaluate(1e-36 * embeddings, labels, progress=False).means == pytest.approx(
        evaluate(embeddings, labels, progress=False).means, nan_ok=True
    )
    mixed = embeddings * torch.tensor([1e-36, 1e-30, 1e-20, 1.0, 1e12, 1e25, 1e37])[:, None]
    torch.testing.assert_close(RetrievalBatch.from_embeddings(mixed, labels).scores, expected)


def test_devices_without_float64_have_the_same_lengths(monkeypatch):
    monkeypatch.setattr("suprank.losses.batch._WITHOUT_FLOAT64", {"cpu"})
    vectors = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1e-30], [1e-3], [1.0], [1e30], [0.0]]
    )
    expected = vectors.double().norm(dim=-1, keepdim=True)
    torch.testing.assert_close(unit_vectors_and_lengths(vectors)[1].double(), expected, rtol=1e-6, atol=0)


def test_a_short_embedding_turns_as_its_direction_does():
    embeddings, labels = batch("equal classes")
    unit, weights = normalize(embeddings), torch.rand(6, 6, dtype=torch.float64)

    def gradient(values):
        leaf = values.clone().requires_grad_()
        (RetrievalBatch.from_embeddings(leaf, labels).scores * weights.to(values.dtype)).sum().backward()
        return leaf.grad

    expected = gradient(unit)
    for scale in (1e-11, 1e30):  # the derivative of a direction is that of the unit vector, over the length
        torch.testing.assert_close(gradient(unit * scale) * scale, expected)
        torch.testing.assert_close(gradient((unit * scale).float()).double() * scale, expected, rtol=1e-4, atol=1e-6)


def test_an_embedding_almost_without_length_is_not_thrown_about():
    embeddings, labels = batch("equal classes", dtype=torch.float32)
    leaf = (embeddings * 1e-25).requires_grad_()
    RetrievalBatch.from_embeddings(leaf, labels).scores.square().sum().backward()
    assert (leaf.grad == 0).all(), "its true gradient grows as 1/length, to 1e25"


def test_proxies_of_any_length_have_the_logits_of_their_directions():
    embeddings, labels = batch("equal classes", dtype=torch.float32)
    loss = ProxySoftmax(3, DIM)
    expected = loss(embeddings, labels)
    loss.proxies.data *= 1e-30
    torch.testing.assert_close(loss(embeddings, labels), expected)


def test_unit_length_has_the_right_first_and_second_derivatives():
    embeddings, labels = batch("equal classes")
    embeddings.requires_grad_()

    def scores(values):
        return RetrievalBatch.from_embeddings(values, labels).scores

    assert torch.autograd.gradcheck(scores, embeddings)
    assert torch.autograd.gradgradcheck(scores, embeddings)
    with_a_long_one = torch.cat([embeddings.detach()[:5], embeddings.detach()[5:] * 1e20])  # scaled before it is squared
    first = with_a_long_one[:5].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda short: scores(torch.cat([short, with_a_long_one[5:]])), first)


def test_a_zero_embedding_scores_zero_and_its_gradient_does_not_explode():
    embeddings, labels = batch("unequal classes", dtype=torch.float32)
    embeddings[2] = 0
    embeddings.requires_grad_()
    found = RetrievalBatch.from_embeddings(embeddings, labels)
    assert found.scores[2].eq(0).all()
    SupAP()(embeddings, labels).backward()
    assert embeddings.grad is not None
    assert embeddings.grad.abs().max() < 1e4


FEW, NAMES = torch.randn(4, DIM), torch.tensor([0, 0, 1, 1])
GALLERY = {"ref_emb": FEW, "ref_labels": NAMES}


def with_value(value, row=2):
    return FEW.index_fill(0, torch.tensor([row]), value)


@pytest.mark.parametrize(
    ("call", "error", "fragments"),
    [
        ({"embeddings": with_value(math.nan)}, ValueError, ["embeddings[2]", "nan", "finite", "learning rate"]),
        ({"embeddings": with_value(math.inf)}, ValueError, ["embeddings[2]", "inf", "half precision"]),
        ({"embeddings": with_value(3e38)}, ValueError, ["embeddings[2]", "length overflows", "finite"]),
        ({"embeddings": FEW[0]}, ValueError, ["embeddings", f"({DIM},)", "[batch, dim]"]),
        ({"embeddings": FEW.long()}, ValueError, ["embeddings", "int64", "floating-point"]),
        ({"embeddings": FEW.tolist()}, ValueError, ["embeddings", "list", "floating-point tensor"]),
        ({"embeddings": FEW[:0], "labels": NAMES[:0]}, ValueError, [f"(0, {DIM})", "nothing to rank", "skip empty batches"]),
        ({"embeddings": FEW[:, :0]}, ValueError, ["(4, 0)", "nothing to rank"]),
        ({"labels": None}, ValueError, ["labels are missing", "[B, L]", "relevance="]),
        ({"labels": NAMES.float()}, TypeError, ["labels", "float32", "integer", "labels.long()"]),
        ({"labels": NAMES.bool()}, TypeError, ["labels", "bool", "integer"]),
        ({"labels": NAMES.tolist()}, TypeError, ["labels", "list", "integer tensor"]),
        ({"labels": (NAMES - 2).to(torch.uint64)}, ValueError, ["labels hold 18446744073709551614 in row 0", "below 2^63"]),
        ({"labels": NAMES[:3]}, ValueError, ["labels", "3 rows", "4 embeddings"]),
        ({"labels": NAMES[:, None, None, None]}, ValueError, ["labels", "(4, 1, 1, 1)", "[N, L]"]),
        ({"labels": torch.tensor(3)}, ValueError, ["labels", "()", "[N]"]),
        ({"labels": torch.zeros(4, 0, dtype=torch.long)}, ValueError, ["labels", "(4, 0)"]),
        ({"ref_emb": FEW}, ValueError, ["ref_emb", "without ref_labels"]),
        ({"ref_labels": NAMES}, ValueError, ["ref_labels", "without ref_emb", "give both, or neither"]),
        ({"ref_emb": FEW[:, :3], "ref_labels": NAMES}, ValueError, ["ref_emb", "dimension 3", str(DIM), "one model"]),
        ({"ref_emb": FEW, "ref_labels": NAMES[:2]}, ValueError, ["ref_labels", "2 rows", "4 embeddings"]),
        ({"ref_emb": FEW, "ref_labels": NAMES.double()}, TypeError, ["ref_labels", "float64"]),
        ({"ref_emb": FEW, "ref_labels": NAMES[:, None].repeat(1, 2)}, ValueError, ["1 level", "ref_labels 2", "same columns"]),
        ({"ref_emb": with_value(math.nan, 1), "ref_labels": NAMES}, ValueError, ["ref_emb[1]", "nan"]),
        ({"indices_tuple": (NAMES, NAMES, NAMES)}, ValueError, ["indices_tuple", "every item", "leave it out"]),
        ({"relevance": torch.zeros(3, 4)}, ValueError, ["relevance", "(3, 4)", "4 queries", "4 items"]),
        ({"relevance": torch.full((4, 4), math.nan)}, ValueError, ["relevance", "NaN", "finite"]),
        ({"relevance": [[0.0] * 4] * 4}, (TypeError, ValueError), ["relevance", "list", "tensor"]),
        (GALLERY | {"self_index": torch.zeros(3, dtype=torch.long)}, ValueError, ["self_index", "(3,)", "4 integers"]),
        (GALLERY | {"self_index": torch.zeros(4)}, ValueError, ["self_index", "float32", "4 integers"]),
        (GALLERY | {"self_index": torch.tensor([0, 1, 2, 9])}, ValueError, ["self_index", "9", "4 items", "−1"]),
        (GALLERY | {"self_index": torch.tensor([0, 1, 2, -5])}, ValueError, ["self_index", "-5", "4 items", "−1"]),
        (GALLERY | {"self_index": [0, 1, 2, 3]}, (TypeError, ValueError), ["self_index", "list", "4 integers"]),
        ({"ids": NAMES, "ref_ids": NAMES}, ValueError, ["ids", "without ref_emb", "leave it out"]),
        ({"self_index": NAMES}, ValueError, ["self_index", "without ref_emb", "leave it out"]),
        (
            {"relevance": torch.ones(4, 4, dtype=torch.long)},
            TypeError,
            ["relevance", "int64", "from_scores", "relevance.float()"],
        ),
        ({"labels": torch.zeros(4, 128, dtype=torch.long)}, ValueError, ["(4, 128)", "1 to 127 levels"]),
        (GALLERY | {"ids": NAMES}, ValueError, ["ids", "without ref_ids", "give both", "−1"]),
        (GALLERY | {"ref_ids": NAMES}, ValueError, ["ref_ids", "without ids", "give both"]),
        (GALLERY | {"ids": NAMES, "ref_ids": NAMES, "self_index": NAMES}, ValueError, ["ids and self_index", "give one"]),
        (GALLERY | {"ids": NAMES[:3], "ref_ids": NAMES}, ValueError, ["ids is", "(3,)", "4 integers"]),
        (GALLERY | {"ids": NAMES, "ref_ids": NAMES[:3]}, ValueError, ["ref_ids is", "(3,)", "4 integers"]),
        (GALLERY | {"ids": NAMES.float(), "ref_ids": NAMES}, ValueError, ["ids is", "float32", "which image"]),
        (GALLERY | {"ids": NAMES.tolist(), "ref_ids": NAMES}, ValueError, ["ids is", "list", "4 integers"]),
    ],
)
def test_what_is_refused_is_named_with_the_rule_and_the_way_out(call, error, fragments):
    arguments = {"embeddings": FEW, "labels": NAMES} | call
    with pytest.raises(error) as raised:
        SupHAP()(**arguments)
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)


def test_within_unchecked_values_are_not_looked_at_and_afterwards_they_are():
    with skip_value_checks():
        assert math.isnan(SupHAP()(with_value(math.nan), NAMES).item())
        with pytest.raises(TypeError, match="float32"):
            SupHAP()(FEW, NAMES.float())
    with pytest.raises(RuntimeError, match="out"), skip_value_checks():
        raise RuntimeError("out")
    with pytest.raises(ValueError, match=r"embeddings\[2\] holds nan"):
        SupHAP()(with_value(math.nan), NAMES)
