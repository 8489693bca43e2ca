"""(1 − λ)·surrogate + λ·decomposability: the sum, its parts in the log, and nothing computed twice."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from suprank.losses import (
    Combined,
    PairCalibration,
    ProxySoftmax,
    RankLoss,
    SupAP,
    SupHAP,
    SupNDCG,
    SupRecall,
    happier,
    roadmap,
    rod_ndcg,
    rod_recall,
)
from tests import reference
from tests.losses.batches import COMPOSITIONS, DIM, batch, every_loss, rows, slow_loss

PAPERS: dict[str, tuple[Callable[..., Combined], type[RankLoss]]] = {
    "ROADMAP": (roadmap, SupAP),
    "ROD-R@k": (rod_recall, SupRecall),
    "HAPPIER": (happier, SupHAP),
    "ROD-NDCG": (rod_ndcg, SupNDCG),
}


def both_decomposability_losses():
    return [PairCalibration(), ProxySoftmax(10, DIM).to(torch.float64)]


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm)
        return func(*args, **(kwargs or {}))


def test_roadmap_equals_its_equation():
    embeddings, labels = batch("unequal classes")
    lists = reference.batch_lists(embeddings.tolist(), rows(labels))
    expected = 0.9 * slow_loss("SupAP", embeddings, labels) + 0.1 * reference.pair_calibration(lists)
    assert roadmap()(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)


def test_happier_equals_its_equation():
    embeddings, labels = batch("three levels")
    proxies = ProxySoftmax(5, DIM).to(torch.float64)
    calibration = reference.proxy_softmax(embeddings.tolist(), labels[:, 0].tolist(), proxies.proxies.tolist())
    expected = 0.9 * slow_loss("SupHAP", embeddings, labels) + 0.1 * calibration
    assert happier(proxies)(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", PAPERS)
def test_each_combination_takes_either_decomposability_loss(name, weight):
    make, surrogate = PAPERS[name]
    embeddings, labels = batch("three levels")
    for decomposability in both_decomposability_losses():
        loss = make(decomposability, decomposability_weight=weight)
        assert isinstance(loss.surrogate, surrogate)
        rank, calibration = surrogate()(embeddings, labels), decomposability(embeddings, labels)
        assert loss(embeddings, labels).item() == pytest.approx(((1 - weight) * rank + weight * calibration).item())


def test_the_defaults_are_the_papers():
    for loss in (roadmap(), rod_recall(), happier(ProxySoftmax(3, DIM)), rod_ndcg(ProxySoftmax(3, DIM))):
        assert loss.decomposability_weight == 0.1
    assert isinstance(roadmap().decomposability, PairCalibration)
    assert isinstance(rod_recall().decomposability, PairCalibration)
    assert rod_recall().surrogate.ks == (1, 2, 4, 8, 16)


def test_options_reach_the_surrogate():
    embeddings, labels = batch("three levels")
    calibration = PairCalibration()
    pairs = [
        (roadmap(tau=0.1, decomposability_weight=0.0), SupAP(tau=0.1)),
        (rod_recall(ks=(3,), rank_tau=0.4, rho=5.0, decomposability_weight=0.0), SupRecall(ks=(3,), rank_tau=0.4, rho=5.0)),
        (happier(calibration, decay=5.0, include_self=True, decomposability_weight=0.0), SupHAP(decay=5.0, include_self=True)),
        (happier(calibration, weights=(1.0, 2.0, 3.0), decomposability_weight=0.0), SupHAP(weights=(1.0, 2.0, 3.0))),
        (rod_ndcg(calibration, value_at_delta=1.44, decomposability_weight=0.0), SupNDCG(value_at_delta=1.44)),
    ]
    for combined, surrogate in pairs:
        assert combined(embeddings, labels).item() == pytest.approx(surrogate(embeddings, labels).item(), rel=1e-12)


def test_happier_with_decay_above_one_minds_the_fine_level_more():
    # A coarse mate above the fine one: a small fault when levels weigh alike, a large one when the fine level does.
    angle = torch.tensor([0.0, 40.0, 20.0, 90.0], dtype=torch.float64).deg2rad()
    embeddings = torch.stack([angle.cos(), angle.sin()], -1)
    labels = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1]])
    queries = {"embeddings": embeddings[:1], "labels": labels[:1], "ref_emb": embeddings[1:], "ref_labels": labels[1:]}
    values = [happier(PairCalibration(), decay=decay)(**queries).item() for decay in (1.0, 3.0, 5.0)]
    assert values[0] < values[1] < values[2]


def test_the_log_holds_the_parts_detached():
    embeddings, labels = batch("singletons and a pair")
    embeddings.requires_grad_()
    loss = roadmap()
    value = loss(embeddings, labels)
    assert set(loss.log) == {"SupAP", "PairCalibration", "loss", "queries_without_positives"}
    assert not any(part.requires_grad for part in loss.log.values())
    assert loss.log["loss"].item() == value.item()
    assert loss.log["SupAP"].item() == SupAP()(embeddings, labels).item()
    assert loss.log["PairCalibration"].item() == PairCalibration()(embeddings, labels).item()
    assert loss.log["queries_without_positives"].item() == 3


def test_the_log_is_that_of_the_last_call():
    loss = roadmap()
    loss(*batch("singletons only"))
    assert loss.log["queries_without_positives"].item() == 4
    loss(*batch("one class only"))
    assert loss.log["queries_without_positives"].item() == 0


def test_two_losses_of_one_class_both_reach_the_log():
    embeddings, labels = batch("three levels")
    loss = Combined(SupAP(tau=0.01), SupAP(tau=0.5), 0.5)
    value = loss(embeddings, labels)
    parts = {SupAP(tau=tau)(embeddings, labels).item() for tau in (0.01, 0.5)}
    assert parts <= {part.item() for part in loss.log.values()}
    assert loss.log["loss"].item() == value.item()


def test_a_combination_of_a_combination_adds_up():
    embeddings, labels = batch("three levels")
    proxies = ProxySoftmax(5, DIM).to(torch.float64)
    loss = Combined(roadmap(), proxies, 0.25)
    expected = 0.75 * roadmap()(embeddings, labels) + 0.25 * proxies(embeddings, labels)
    assert loss(embeddings, labels).item() == pytest.approx(expected.item())
    assert {"SupAP", "PairCalibration", "ProxySoftmax", "loss"} <= set(loss.log)


@pytest.mark.parametrize(("name", "products"), [("ROADMAP", 1), ("ROD-R@k", 1), ("HAPPIER", 2), ("ROD-NDCG", 2)])
def test_scores_are_computed_once(name, products):
    embeddings, labels = batch("three levels", dtype=torch.float32)
    with Products() as counted:
        every_loss()[name](embeddings, labels)
    assert counted.count == products  # proxies are a second product, of another matrix


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize("name", PAPERS)
def test_every_batch_backpropagates_finite_gradients(name, composition):
    embeddings, labels = batch(composition)
    embeddings.requires_grad_()
    value = PAPERS[name][0](PairCalibration())(embeddings, labels)
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


def test_gradients_reach_embeddings_proxies_and_references():
    embeddings, labels = batch("three levels")
    references, ref_labels = batch("three levels", seed=1)
    loss = happier(ProxySoftmax(5, DIM).to(torch.float64))
    leaves = [embeddings.requires_grad_(), references.requires_grad_(), *loss.parameters()]
    assert len(leaves) == 3
    loss(embeddings, labels, ref_emb=references, ref_labels=ref_labels).backward()
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.abs().max() > 0


@pytest.mark.parametrize("name", every_loss())
def test_every_loss_survives_being_copied_pickled_and_moved_after_a_call(name):
    embeddings, labels = batch("three levels")
    embeddings.requires_grad_()
    loss = every_loss()[name].to(torch.float64)
    expected = loss(embeddings, labels).item()
    fresh = every_loss()[name].to(torch.float64)
    fresh.load_state_dict(loss.state_dict())
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), fresh, loss.train(), loss.eval()):
        assert other(embeddings, labels).item() == expected


def test_training_lowers_the_loss_and_moves_the_proxies():
    torch.manual_seed(0)
    embeddings, labels = batch("three levels", dtype=torch.float32)
    loss = happier(ProxySoftmax(5, DIM))
    embeddings.requires_grad_()
    optimizer = torch.optim.Adam([embeddings, *loss.parameters()], lr=0.05)
    before = loss(embeddings, labels).item()
    for _ in range(60):
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
    assert loss(embeddings, labels).item() < 0.5 * before


def test_repr_shows_weight_and_parts():
    shown = repr(happier(ProxySoftmax(7, 3), decay=5.0, decomposability_weight=0.5))
    assert all(part in shown for part in ("decomposability_weight=0.5", "SupHAP", "decay=5.0", "num_classes=7"))


def test_state_is_the_proxies_under_their_place():
    assert list(happier(ProxySoftmax(7, 3)).state_dict()) == ["decomposability.proxies"]
    assert roadmap().state_dict() == {}


@pytest.mark.parametrize(
    ("make", "error", "fragments"),
    [
        (lambda: roadmap(decomposability_weight=1.5), ValueError, ["decomposability_weight=1.5", "between 0 and 1", "0.1"]),
        (lambda: roadmap(decomposability_weight=-0.1), ValueError, ["decomposability_weight=-0.1"]),
        (lambda: roadmap(decomposability_weight=float("nan")), ValueError, ["decomposability_weight=nan"]),
        (lambda: roadmap(temperature=1.0), TypeError, ["temperature"]),  # type: ignore[call-arg]
        (lambda: rod_recall(decay=1.0), TypeError, ["decay"]),  # type: ignore[call-arg]
        (lambda: rod_ndcg(PairCalibration(), tua=0.1), TypeError, ["tua"]),  # type: ignore[call-arg]
        (lambda: happier(), TypeError, ["decomposability"]),  # type: ignore[call-arg]
        (lambda: happier(PairCalibration(), decay=-1.0), ValueError, ["decay=-1.0"]),
        (lambda: roadmap(tau=0.0), ValueError, ["tau=0.0"]),
        (lambda: rod_recall(ks=(0,)), ValueError, ["ks=(0,)"]),
        (lambda: Combined(SupAP(), torch.nn.MSELoss()), TypeError, ["MSELoss", "decomposability"]),  # type: ignore[arg-type]
        (lambda: Combined(torch.nn.MSELoss(), PairCalibration()), TypeError, ["MSELoss", "surrogate"]),  # type: ignore[arg-type]
    ],
)
def test_a_bad_combination_is_refused_when_it_is_made(make, error, fragments):
    with pytest.raises(error) as raised:
        make()
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)
