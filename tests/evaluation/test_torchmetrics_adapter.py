"""The torchmetrics `Metric`: it finds what `evaluate` finds, and behaves as metrics do. `test_distributed.py` has the rest."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection

from suprank.evaluation import evaluate, torchmetrics_adapter
from suprank.evaluation.torchmetrics_adapter import RetrievalMetrics

KEYS = ["R@1", "AP", "mAP@R"]


def drawn(count=40, dim=6, seed=0, classes=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator), torch.randint(0, classes, (count,), generator=generator)


def updated(metric, embeddings, labels, ids=None, size=16, **options):
    for rows in torch.arange(len(embeddings)).split(size):
        metric.update(embeddings[rows], labels[rows], None if ids is None else ids[rows], **options)
    return metric


def plain(computed):
    return {key: value.item() for key, value in computed.items()}


# What it finds


def test_four_images_by_hand():
    metric = RetrievalMetrics(metrics=["R@1", "AP", "ndcg@2"])
    metric.update(torch.tensor([[1.0, 0.0], [0.9, 0.1]]), torch.tensor([0, 1]))
    metric.update(torch.tensor([[0.8, 0.2], [0.0, 1.0]]), torch.tensor([0, 1]))
    # The positive stands second, third, second and third: AP 1/2, 1/3, 1/2 and 1/2 (the last has item 2 alone above it).
    expected = {"R@1": 0.0, "AP": (1 / 2 + 1 / 3 + 1 / 2 + 1 / 2) / 4, "NDCG@2": 3 / 4 / math.log2(3)}
    assert plain(metric.compute()) == pytest.approx(expected)


def test_batches_make_the_report_of_all_items():
    embeddings, _ = drawn()
    labels = torch.stack([torch.arange(40) % 8, torch.arange(40) % 4], -1)
    options = {"ks": (1, 5), "levels": ["fine", "coarse"], "decay": 2.0, "weights": [1, 3], "normalize": False}
    metric = updated(RetrievalMetrics(**options), embeddings, labels)
    expected = evaluate(embeddings, labels, per_query=True, **options)
    assert metric.report() == expected
    computed = metric.compute()
    assert plain(computed) == expected.means
    assert {(value.dtype, value.shape) for value in computed.values()} == {(torch.float64, ())}


def test_an_image_counts_once_whatever_the_order_with_ids():
    embeddings, labels = drawn()
    expected = evaluate(embeddings, labels, per_query=True).means
    order = torch.cat([torch.randperm(40, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 3, 17])])
    metric = updated(RetrievalMetrics(), embeddings[order], labels[order], order)
    assert plain(metric.compute()) == expected
    assert metric.report().n_queries == metric.report().n_items == 40
    assert metric.report().query_ids.tolist() == list(range(40))


def test_without_ids_a_repeated_image_is_another_image():
    embeddings, labels = drawn()
    order = torch.tensor([*range(40), 5])
    metric = updated(RetrievalMetrics(), embeddings[order], labels[order])
    assert metric.report().n_queries == 41
    assert plain(metric.compute()) == evaluate(embeddings[order], labels[order]).means


def test_ids_far_apart_are_fine():
    embeddings, labels = drawn()
    ids = torch.arange(40) * 2**55
    assert plain(updated(RetrievalMetrics(), embeddings, labels, ids).compute()) == evaluate(embeddings, labels).means


def test_queries_and_gallery_come_from_two_dataloaders():
    embeddings, labels = drawn()
    for ids in (None, torch.arange(40)):
        metric = RetrievalMetrics()
        updated(metric, embeddings[15:], labels[15:], None if ids is None else ids[15:], role="gallery")
        updated(metric, embeddings[:15], labels[:15], None if ids is None else ids[:15], role="query")
        assert plain(metric.compute()) == evaluate(embeddings[:15], labels[:15], embeddings[15:], labels[15:]).means
        assert (metric.report().n_queries, metric.report().n_items) == (15, 25)


def test_a_query_that_is_in_the_gallery_under_its_id_is_not_in_its_own_list():
    embeddings, labels = drawn()
    ids, both = torch.arange(40), slice(10, 20)
    metric = updated(RetrievalMetrics(), embeddings, labels, ids, role="gallery")
    updated(metric, embeddings[both], labels[both], ids[both], role="query")
    expected = evaluate(embeddings[both], labels[both], embeddings, labels, self_index=ids[both])
    assert plain(metric.compute()) == expected.means


@pytest.mark.parametrize("named", [False, True])
def test_distractors_are_added_to_images_that_are_ranked_against_each_other(named):
    embeddings, labels = drawn()
    ids = torch.arange(40) if named else None
    metric = updated(
        RetrievalMetrics(), embeddings[25:], torch.full((15,), -1), None if ids is None else ids[25:], role="gallery"
    )
    updated(metric, embeddings[:25], labels[:25], None if ids is None else ids[:25])
    theirs = torch.cat([labels[:25], torch.full((15,), -1)])
    expected = evaluate(embeddings[:25], labels[:25], embeddings, theirs, self_index=torch.arange(25))
    assert plain(metric.compute()) == expected.means


def test_a_metric_without_any_positive_is_nan():
    metric = RetrievalMetrics(metrics=["AP"])
    metric.update(*drawn(3)[:1], torch.tensor([0, 1, 2]))
    assert math.isnan(metric.compute()["AP"])
    assert metric.report().without_positives == {"label0": 3}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_embeddings_are_kept_as_they_come_and_without_their_graph(dtype):
    embeddings, labels = drawn()
    leaf = embeddings.to(dtype).requires_grad_()
    metric = RetrievalMetrics(metrics=KEYS)
    metric.update(leaf * 2, labels)
    assert metric.embeddings[0].dtype == dtype
    assert not metric.embeddings[0].requires_grad
    assert plain(metric.compute()) == evaluate(leaf.detach() * 2, labels, metrics=KEYS).means


def test_labels_and_ids_may_be_numpy_arrays_or_lists():
    embeddings, labels = drawn()
    metric = RetrievalMetrics(metrics=KEYS)
    metric.update(embeddings[:20], labels[:20].numpy(), np.arange(20))
    metric.update(embeddings[20:], labels[20:].tolist(), range(20, 40))
    assert plain(metric.compute()) == evaluate(embeddings, labels, metrics=KEYS).means


# As metrics do


def test_reset_forgets_and_update_adds():
    embeddings, labels = drawn()
    metric = updated(RetrievalMetrics(metrics=KEYS), embeddings[:20], labels[:20])
    half = plain(metric.compute())
    assert half == evaluate(embeddings[:20], labels[:20], metrics=KEYS).means
    metric.update(embeddings[20:], labels[20:])
    assert metric.report().n_queries == 40
    assert plain(metric.compute()) == evaluate(embeddings, labels, metrics=KEYS).means
    metric.reset()
    metric.update(embeddings[:20], labels[:20])
    assert plain(metric.compute()) == half
    assert metric.report().n_queries == 20


def test_forward_gives_the_batch_and_compute_gives_all():
    embeddings, labels = drawn()
    metric = RetrievalMetrics(metrics=KEYS)
    for rows in (slice(0, 25), slice(25, 40)):
        assert plain(metric(embeddings[rows], labels[rows])) == evaluate(embeddings[rows], labels[rows], metrics=KEYS).means
    assert metric.report().n_queries == 40
    assert plain(metric.compute()) == evaluate(embeddings, labels, metrics=KEYS).means


def test_the_items_are_ranked_once_for_compute_and_report(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "suprank.evaluation.torchmetrics_adapter.evaluate", lambda *args, **kwargs: calls.append(1) or evaluate(*args, **kwargs)
    )
    embeddings, labels = drawn()
    metric = RetrievalMetrics(metrics=KEYS)
    metric.update(embeddings, labels)
    assert metric.report() is metric.report()
    metric.compute()
    assert len(calls) == 1
    metric.update(embeddings + 1, labels)
    metric.compute()
    metric.report()
    assert len(calls) == 2


def test_a_collection_shares_what_its_metrics_hold():
    embeddings, labels = drawn()
    collection = MetricCollection(
        {"top": RetrievalMetrics(metrics=["R@1", "P@5"]), "all": RetrievalMetrics(metrics=["AP"])}, prefix="val/"
    )
    for rows in torch.arange(40).split(16):
        collection.update(embeddings[rows], labels[rows], rows, role="both")
    expected = evaluate(embeddings, labels, metrics=["R@1", "P@5", "AP"]).means
    assert plain(collection.compute()) == {f"val/{key}": value for key, value in expected.items()}
    assert list(collection.compute_groups.values()) == [["all", "top"]]
    collection.reset()
    collection.update(embeddings[:9], labels[:9])
    assert collection["all"].report().n_queries == collection["top"].report().n_queries == 9


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda metric: metric.clone(), lambda metric: pickle.loads(pickle.dumps(metric))]
)
def test_copies_go_their_own_way(copied):
    embeddings, labels = drawn()
    metric = RetrievalMetrics(metrics=KEYS, levels=["class"])
    metric.update(embeddings[:20], labels[:20])
    before = metric.report()
    other = copied(metric)
    assert other.report() == before
    other.update(embeddings[20:], labels[20:])
    assert plain(other.compute()) == evaluate(embeddings, labels, metrics=KEYS).means
    assert metric.report() == before


def test_states_are_saved_only_when_asked_and_come_back():
    embeddings, labels = drawn()
    metric = updated(RetrievalMetrics(metrics=KEYS), embeddings, labels)
    assert metric.state_dict() == {}
    metric.persistent(True)
    other = RetrievalMetrics(metrics=KEYS)
    other.persistent(True)
    other.load_state_dict(metric.state_dict())
    other._update_count = 1  # torchmetrics does not save it, and warns without
    assert plain(other.compute()) == plain(metric.compute())


def test_states_of_two_metrics_merge():
    embeddings, labels = drawn()
    first, second = (updated(RetrievalMetrics(), embeddings[rows], labels[rows]) for rows in (slice(0, 30), slice(30, 40)))
    first.merge_state(second)
    assert first.report().n_queries == 40
    assert plain(first.compute()) == pytest.approx(evaluate(embeddings, labels).means)


def test_it_says_what_kind_of_metric_it_is():
    metric = RetrievalMetrics(compute_on_cpu=True)
    assert metric.higher_is_better
    assert not metric.is_differentiable
    assert not metric.full_state_update
    embeddings, labels = drawn()
    assert plain(updated(metric, embeddings, labels).compute()) == evaluate(embeddings, labels).means


@pytest.mark.gpu
@pytest.mark.parametrize("compute_on_cpu", [False, True])
def test_on_a_gpu_it_finds_what_evaluate_finds_there(compute_on_cpu):
    embeddings, labels = (tensor.cuda() for tensor in drawn(400))
    metric = updated(RetrievalMetrics(compute_on_cpu=compute_on_cpu).to("cuda"), embeddings, labels)
    assert metric.embeddings[0].is_cuda != compute_on_cpu
    computed = metric.compute()
    assert computed["AP"].is_cuda
    assert plain(computed) == evaluate(embeddings, labels).means
    moved = metric.to("cpu")
    assert not moved.embeddings[0].is_cuda


# What it refuses


def test_without_items_there_is_nothing_to_compute():
    with (
        pytest.warns(UserWarning, match="before the ``update`` method"),
        pytest.raises(ValueError, match="no embeddings; call update"),
    ):
        RetrievalMetrics().compute()


@pytest.mark.parametrize(("role", "missing"), [("query", "gallery"), ("gallery", "query")])
def test_one_role_alone_is_refused(role, missing):
    metric = RetrievalMetrics()
    metric.update(*drawn(), role=role)
    with pytest.raises(ValueError, match=f"no item has role '{missing}'"):
        metric.compute()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(3), torch.zeros(3).long()), r"embeddings are torch.float32 \(3,\)"),
        ((torch.ones(3, 2).long(), torch.zeros(3).long()), r"embeddings are torch.int64 \(3, 2\)"),
        ((torch.ones(3, 2), torch.zeros(3)), r"labels are torch.float32 \(3,\), but must be integers \[3\] or \[3, levels\]"),
        ((torch.ones(3, 2), torch.zeros(4).long()), r"labels are torch.int64 \(4,\)"),
        (
            (torch.ones(3, 2), torch.zeros(3).long(), torch.zeros(2).long()),
            r"ids are torch.int64 \(2,\), but must be 3 integers",
        ),
        ((torch.ones(3, 2), torch.zeros(3).long(), torch.tensor([0, -1, 2])), "integers of 0 or more"),
        ((torch.ones(3, 2), torch.zeros(3).long(), torch.zeros(3)), "ids are torch.float32"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(arguments, message):
    metric = RetrievalMetrics()
    with pytest.raises(ValueError, match=message):
        metric.update(*arguments)
    assert metric.embeddings == []


def test_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="role='queries' must be one of 'query', 'gallery', 'both'"):
        RetrievalMetrics().update(*drawn(), role="queries")


def test_ids_at_some_updates_only_are_refused():
    embeddings, labels = drawn()
    metric = RetrievalMetrics()
    metric.update(embeddings[:30], labels[:30], torch.arange(30))
    metric.update(embeddings[30:], labels[30:])
    with pytest.raises(ValueError, match="30 of 40 items have ids"):
        metric.compute()


def test_two_images_of_one_id_are_refused():
    embeddings, _ = drawn()
    labels = torch.arange(40) // 2
    twice = updated(RetrievalMetrics(), embeddings, labels, torch.arange(40) % 35)
    with pytest.raises(ValueError, match="id 0 came with different labels"):
        twice.compute()
    numbered_alike = RetrievalMetrics()
    numbered_alike.update(embeddings[:20], labels[:20], torch.arange(20), role="query")
    numbered_alike.update(embeddings[20:], labels[:20].flip(0), torch.arange(20), role="gallery")
    with pytest.raises(ValueError, match="id 0 came with different labels.*add the length of the one"):
        numbered_alike.compute()


def test_wrong_settings_are_refused_when_the_metric_is_made():
    with pytest.raises(ValueError, match="unknown metric 'precison'"):
        RetrievalMetrics(metrics=["R@1", "precison"])
    with pytest.raises(TypeError, match=r"write \['AP'\]"):
        RetrievalMetrics(metrics="AP")
    with pytest.raises(ValueError, match="ks="):
        RetrievalMetrics(ks=(0,))
    with pytest.raises(ValueError, match="Unexpected keyword arguments: `k`"):
        RetrievalMetrics(k=3)


# Sets of labels, drawings, and how it shows itself


def test_label_sets_of_any_size_are_those_of_evaluate():
    embeddings, one = drawn()
    sets = torch.stack([one, (one + torch.arange(40) % 3) % 7, torch.where(torch.arange(40) % 2 == 0, one, -1)], 1)[:, None]
    expected = evaluate(embeddings, sets, per_query=True).means
    metric = RetrievalMetrics()
    metric.update(embeddings[:10], sets[:10], torch.arange(10))
    metric.update(embeddings[5:], sets[5:].flip(-1), torch.arange(5, 40))  # five again, in another order
    assert plain(metric.compute()) == expected
    multi_hot = torch.zeros(40, 8, dtype=torch.bool).scatter(1, sets[:, 0].where(sets[:, 0] >= 0, 7), True)[:, None, :7]
    assert plain(updated(RetrievalMetrics(), embeddings, multi_hot).compute()) == expected
    mixed = RetrievalMetrics()
    mixed.update(embeddings[:20], one[:20])
    mixed.update(embeddings[20:], sets[20:])
    alone = sets.where((torch.arange(40)[:, None, None] >= 20) | (torch.arange(3) == 0), -1)
    assert plain(mixed.compute()) == evaluate(embeddings, alone).means
    wrong = RetrievalMetrics()
    wrong.update(embeddings[:10], sets[:10], torch.arange(10))
    wrong.update(embeddings[:10], sets[10:20], torch.arange(10))
    with pytest.raises(ValueError, match="came with different labels"):
        wrong.compute()


def test_it_draws_its_values():
    pytest.importorskip("matplotlib").use("Agg")
    embeddings, labels = drawn()
    metric = updated(RetrievalMetrics(metrics=KEYS), embeddings, labels)
    _, axes = metric.plot()
    assert {text.get_text() for text in axes.get_legend().get_texts()} >= set(KEYS)
    figure, _ = metric.plot([metric.compute(), metric.compute()])
    assert figure is not None


def test_repr_shows_what_was_given_and_how_many_items_there_are():
    metric = updated(RetrievalMetrics(metrics=["AP"], decay=2.0), *drawn())
    assert repr(metric) == "RetrievalMetrics(decay=2.0, metrics=['AP'], items=40)"
    assert repr(RetrievalMetrics()) == "RetrievalMetrics(items=0)"


def test_values_are_float32_where_the_device_has_no_float64(monkeypatch):
    metric = updated(RetrievalMetrics(metrics=["AP"]), *drawn())
    monkeypatch.setattr(torchmetrics_adapter, "_WITHOUT_FLOAT64", ("cpu",))
    assert metric.compute()["AP"].dtype == torch.float32
