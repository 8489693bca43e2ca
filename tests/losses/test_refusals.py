"""Losses that cannot be made or called: the value, the rule and the way out; how they show themselves, and what they save."""

import math

import pytest
import torch

from suprank.losses import (
    CSL,
    ArcFace,
    BlackBoxAP,
    Circle,
    Combined,
    ContrastiveKoLeo,
    ContrastiveXBM,
    CosFace,
    CrossEntropy,
    DistanceWeightedTriplet,
    FastAP,
    MultiSimilarity,
    PairCalibration,
    ProxyAnchor,
    ProxyNCA,
    ProxySoftmax,
    SigLIP,
    SimilarityMixup,
    SmoothAP,
    SoftBinAP,
    SumOverLevels,
    SupAP,
    SupCon,
    SupHAP,
    SupNDCG,
    SupRecall,
    TripletSemiHard,
    happier,
    roadmap,
    rod_ndcg,
)
from tests.losses.batches import DIM, batch

TREE = torch.tensor([[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1], [4, 2, 1]])  # of the composition "three levels"


def three_levels_to(parts, **options):
    return lambda: SumOverLevels(parts())(*batch("three levels"), **options)


def pairs(**options):
    return lambda: roadmap(decomposability=PairCalibration(), **options)


VALUES = [
    (lambda: SupAP(tau=0.0), ["tau=0.0", "above 0"]),
    (lambda: SmoothAP(tau=-0.1), ["tau=-0.1"]),
    (lambda: SupRecall(ks=()), ["ks=()", "one or more", "(1, 2, 4, 8, 16)"]),
    (lambda: SupRecall(ks=(0, 1)), ["ks=(0, 1)", "from 1 on"]),
    (lambda: SupRecall(rank_tau=0.0), ["rank_tau=0.0"]),
    (lambda: SupHAP(decay=-1.0), ["decay=-1.0", "0 or more"]),
    (lambda: SupHAP(decay=math.nan), ["decay=nan"]),
    (lambda: SupHAP(weights=(-1.0, 2.0)), ["weights=", "-1.0", "0 or more"]),
    (lambda: SupHAP(weights=(0.0, 0.0)), ["weights=", "above 0"]),
    (lambda: SupHAP(weights=()), ["weights="]),
    (lambda: SupNDCG()(torch.eye(2), torch.zeros(2, 127).long()), ["127 levels", "beyond 100", "use SupHAP"]),
    # A wrong type has the sentence of a wrong value.
    (lambda: SupAP(tau="0.01"), ["tau='0.01' must be a finite number above 0"]),  # type: ignore[arg-type]
    (lambda: SupAP(tau=torch.tensor(0.01)), ["tau=tensor(0.0100) must be"]),  # type: ignore[arg-type]
    (lambda: SupAP(rho=None), ["rho=None must be a finite number, 0 or more"]),  # type: ignore[arg-type]
    (lambda: SupAP(rank_tau=True), ["rank_tau=True must be"]),
    (lambda: SupAP(k=2.0), ["k=2.0 must be a whole number from 1 on"]),  # type: ignore[arg-type]
    (lambda: SupRecall(ks="10"), ["ks=('10',) must be one or more cut-offs"]),  # type: ignore[arg-type]
    (lambda: SupRecall(ks=[1, 2.5]), ["ks=(1, 2.5) must be one or more cut-offs"]),  # type: ignore[list-item]
    (lambda: SupHAP(decay="1"), ["decay='1' must be 0 or more"]),  # type: ignore[arg-type]
    (lambda: SupHAP(weights=["a", "b"]), ["weights=['a', 'b'] must be finite"]),  # type: ignore[list-item]
    (lambda: SupAP(include_self="no"), ["include_self='no' must be True or False"]),  # type: ignore[arg-type]
    (lambda: PairCalibration(positive_floor="0.9"), ["positive_floor='0.9' must be"]),  # type: ignore[arg-type]
    (lambda: ProxySoftmax("8", 4), ["num_classes='8' must be a whole number"]),  # type: ignore[arg-type]
    (lambda: ProxySoftmax(8, 4.0), ["embedding_size=4.0 must be a whole number"]),  # type: ignore[arg-type]
    (lambda: ProxySoftmax(8, 4, temperature=None), ["temperature=None must be"]),  # type: ignore[arg-type]
    (lambda: SupCon(temperature="a"), ["temperature='a' must be"]),  # type: ignore[arg-type]
    (lambda: SigLIP(bias=math.nan), ["bias=nan must be a finite number"]),
    (lambda: Circle(margin=None), ["margin=None must be a finite number"]),  # type: ignore[arg-type]
    (lambda: Combined(SupAP(), PairCalibration(), "a"), ["decomposability_weight='a' must be between"]),  # type: ignore[arg-type]
    (lambda: ProxySoftmax(0, 4), ["num_classes=0", "whole number from 1 on"]),
    (lambda: ProxySoftmax(4, -1), ["embedding_size=-1", "whole number from 1 on"]),
    (lambda: ProxySoftmax(4, 4, temperature=0.0), ["temperature=0.0", "above 0"]),
    (lambda: ProxySoftmax(4, 4, temperature=math.nan), ["temperature=nan"]),
    (lambda: ProxySoftmax(4, 4, temperature=math.inf), ["temperature=inf"]),
    (lambda: PairCalibration(average="mean"), ["average='mean'", "'all'", "'violating'"]),  # type: ignore[arg-type]
    (lambda: PairCalibration(positive_floor=math.nan), ["positive_floor=nan"]),
    (lambda: PairCalibration(negative_ceiling=math.inf), ["negative_ceiling=inf"]),
    (lambda: ProxySoftmax(3, DIM)(*batch("singletons only")), ["0..3", "3 proxies", "0..2", "return_inverse", "num_classes"]),
    (lambda: ProxySoftmax(3, DIM)(*batch("ids far apart")), ["4..1000000000000", "3 proxies"]),
    (lambda: ProxySoftmax(3, DIM)(torch.eye(6, DIM), relevance=torch.ones(6, 6)), ["ProxySoftmax needs labels", "fine class"]),
    (pairs(decomposability_weight=1.5), ["decomposability_weight=1.5", "between 0 and 1", "0.1"]),
    (pairs(decomposability_weight=-0.1), ["decomposability_weight=-0.1"]),
    (pairs(decomposability_weight=math.nan), ["decomposability_weight=nan"]),
    (
        lambda: SimilarityMixup(SupAP())(torch.eye(2), torch.tensor([0, 0]), relevance=torch.ones(2, 2)),
        ["relevance", "labels of its class", "leave SimilarityMixup out"],
    ),
    (lambda: FastAP(bins=0), ["bins=0", "two knots", "from 1 on"]),
    (lambda: FastAP(bins=2.5), ["bins=2.5"]),  # type: ignore[arg-type]
    (lambda: FastAP(bins=True), ["bins=True"]),
    (lambda: SoftBinAP(bins=1), ["bins=1", "two knots", "from 2 on"]),
    (lambda: BlackBoxAP(interpolation=0.0), ["interpolation=0.0", "above 0", "4"]),
    (lambda: BlackBoxAP(interpolation=math.inf), ["interpolation=inf"]),
    (lambda: BlackBoxAP(interpolation=math.nan), ["interpolation=nan"]),
    (lambda: BlackBoxAP(margin=-0.1), ["margin=-0.1", "0 or more", "0.02"]),
    (lambda: BlackBoxAP(margin=math.nan), ["margin=nan"]),
    (lambda: CrossEntropy(3, 4, label_smoothing=-0.1), ["label_smoothing=-0.1", "from 0 to below 1", "Boudiaf et al. use 0.1"]),
    (lambda: CrossEntropy(3, 4, label_smoothing=1.0), ["label_smoothing=1.0"]),
    (lambda: CrossEntropy(3, 4, label_smoothing=math.nan), ["label_smoothing=nan"]),
    (lambda: SumOverLevels([]), ["empty", "finest first"]),
    (lambda: SumOverLevels([ProxySoftmax(3, DIM)] * 2), ["same proxies", "[loss] * L"]),
    (lambda: SumOverLevels([SupAP(), SupAP()], weights=(1.0,)), ["weights=(1.0,)", "2 finite"]),
    (lambda: SumOverLevels([SupAP(), SupAP()], weights=(1.0, -1.0)), ["-1.0", "from 0 on"]),
    (lambda: SumOverLevels([SupAP(), SupAP()], weights=(1.0, math.nan)), ["nan"]),
    (three_levels_to(lambda: [SupAP(), SupAP()]), ["3 level(s)", "2 loss(es)", "one loss for each column"]),
    (three_levels_to(lambda: [SupAP()] * 4), ["3 level(s)", "4 loss(es)"]),
    (three_levels_to(lambda: [SupAP()] * 3, relevance=torch.ones(8, 8)), ["relevance", "labels alone"]),
    (
        lambda: SumOverLevels([SupAP()])(torch.ones(3, DIM), relevance=torch.ones(3, 3)),
        ["SumOverLevels needs labels", "relevance"],
    ),
    (three_levels_to(lambda: [SupAP(), ProxySoftmax(2, DIM), SupAP()]), ["0..2", "2 proxies"]),
    (lambda: ContrastiveXBM(margin=1.0), ["margin=1.0", "below 1", "0.5"]),
    (lambda: ContrastiveXBM(margin=-0.1), ["margin=-0.1", "from 0"]),
    (lambda: ContrastiveXBM(margin=math.nan), ["margin=nan"]),
    (lambda: ContrastiveKoLeo(entropy_weight=-0.1), ["entropy_weight=-0.1", "finite, 0 or more", "El-Nouby et al. use 0.7"]),
    (lambda: ContrastiveKoLeo(entropy_weight=math.inf), ["entropy_weight=inf"]),
    (lambda: TripletSemiHard(margin=0), ["margin=0 ", "above 0", "0.05"]),
    (lambda: TripletSemiHard(margin=math.inf), ["margin=inf"]),
    (lambda: TripletSemiHard(margin=math.nan), ["margin=nan"]),
    (lambda: DistanceWeightedTriplet(margin=-1.0), ["margin=-1.0", "0.2"]),
    (lambda: DistanceWeightedTriplet(cutoff=0), ["cutoff=0 ", "farthest=1.4", "0.5 and 1.4"]),
    (lambda: DistanceWeightedTriplet(cutoff=1.4), ["cutoff=1.4", "cutoff < farthest"]),
    (lambda: DistanceWeightedTriplet(farthest=2.1), ["farthest=2.1", "≤ 2"]),
    (lambda: DistanceWeightedTriplet(farthest=math.nan), ["farthest=nan"]),
    (lambda: ProxyNCA(4, 4, scale=0.0), ["scale=0.0", "above 0"]),
    (lambda: ProxyNCA(0, 4), ["num_classes=0"]),
    (lambda: ArcFace(4, 4, margin=28.6), ["margin=28.6", "radians"]),
    (lambda: ArcFace(4, 4, margin=math.nan), ["margin=nan"]),
    (lambda: ArcFace(4, 4, scale=-1.0), ["scale=-1.0"]),
    (lambda: CSL(TREE[None], 4), ["(1, 5, 3)", "[classes, levels]"]),
    (lambda: CSL(TREE[:0], 4), ["(0, 3)"]),
    (lambda: CSL(TREE[1:], 4), ["class_labels[0, 0] is 1", "row c", "unique(dim=0)"]),
    (lambda: CSL(TREE, 4, margins=(0.1, 0.2)), ["(0.1, 0.2)", "3 finite", "finest first"]),
    (lambda: CSL(TREE, 4, margins=(0.1, 0.2, math.inf)), ["inf", "3 finite"]),
    (lambda: CSL(TREE, 4, scale=0.0), ["scale=0.0"]),
    (lambda: CSL(TREE, 0), ["embedding_size=0"]),
    (lambda: CSL(TREE, DIM)(torch.ones(3, DIM), relevance=torch.ones(3, 3)), ["CSL needs labels"]),
    (lambda: MultiSimilarity(alpha=0.0), ["alpha=0.0", "above 0"]),
    (lambda: MultiSimilarity(beta=-1.0), ["beta=-1.0", "above 0"]),
    (lambda: MultiSimilarity(base=math.nan), ["base=nan", "finite"]),
    (lambda: ProxyAnchor(0, 4), ["num_classes=0"]),
    (lambda: ProxyAnchor(4, 4, scale=0.0), ["scale=0.0"]),
    (lambda: ProxyAnchor(4, 4, margin=math.inf), ["margin=inf"]),
    (lambda: ProxyAnchor(3, DIM)(torch.ones(2, DIM), relevance=torch.ones(2, 2)), ["ProxyAnchor needs labels"]),
    (lambda: CosFace(4, 0), ["embedding_size=0"]),
    (lambda: CosFace(4, 4, margin=math.nan), ["margin=nan"]),
    (lambda: CosFace(4, 4, scale=-1.0), ["scale=-1.0"]),
]
TYPES = [
    (lambda: SmoothAP(rho=1.0), ["rho"]),  # type: ignore[call-arg]
    (lambda: SupAP(0.01), ["positional"]),  # type: ignore[call-arg, arg-type]
    (lambda: PairCalibration(0.9), ["positional"]),  # type: ignore[call-arg]
    (lambda: ContrastiveXBM(0.5), ["positional"]),  # type: ignore[misc]
    (lambda: TripletSemiHard(0.1), ["positional"]),  # type: ignore[misc]
    (lambda: rod_ndcg(decomposability=PairCalibration(), tua=0.1), ["tua"]),  # type: ignore[call-arg]
    (lambda: Combined(SupAP(), torch.nn.MSELoss()), ["MSELoss", "decomposability"]),  # type: ignore[arg-type]
    (lambda: Combined(torch.nn.MSELoss(), PairCalibration()), ["MSELoss", "surrogate"]),  # type: ignore[arg-type]
    (lambda: SumOverLevels([SupAP(), torch.nn.MSELoss()]), ["losses[1]", "MSELoss"]),  # type: ignore[list-item]
    (lambda: SimilarityMixup(torch.nn.MSELoss()), ["MSELoss", "a loss of suprank"]),  # type: ignore[arg-type]
    (lambda: SimilarityMixup(ProxySoftmax(3, DIM)), ["ProxySoftmax", "no items", "Combined(SimilarityMixup("]),
    (lambda: SimilarityMixup(happier(3, DIM)), ["ProxySoftmax", "surrogate alone"]),
    (lambda: SimilarityMixup(Combined(SupAP(), ProxyAnchor(3, DIM))), ["ProxyAnchor ranks no items"]),
    (lambda: SimilarityMixup(SimilarityMixup(SupAP())), ["SimilarityMixup", "use it once"]),
    (lambda: CSL(TREE.float(), 4), ["class_labels", "float32", "integer"]),
    (lambda: CSL(TREE.tolist(), 4), ["class_labels", "list"]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("error", "call", "fragments"), [(ValueError, *row) for row in VALUES] + [(TypeError, *row) for row in TYPES]
)
def test_what_is_refused_is_named_with_the_rule_and_the_way_out(error, call, fragments):
    with pytest.raises(error) as raised:
        call()
    assert all(fragment in str(raised.value) for fragment in fragments), str(raised.value)


@pytest.mark.parametrize(
    ("loss", "fragments"),
    [
        (SupAP(tau=0.02, value_at_delta=1.44), ["tau=0.02", "value_at_delta=1.44"]),
        (SupRecall(ks=(1, 5)), ["ks=(1, 5)"]),
        (SupHAP(decay=3.0, include_self=True), ["decay=3.0", "include_self=True"]),
        (ProxySoftmax(7, 3, temperature=0.1), ["(num_classes=7, embedding_size=3, temperature=0.1)"]),
        (PairCalibration(positive_floor=0.8), ["positive_floor=0.8", "negative_ceiling=0.6", "average='all'"]),
        (
            happier(decomposability=ProxySoftmax(7, 3), decay=5.0, decomposability_weight=0.5),
            ["decomposability_weight=0.5", "SupHAP", "decay=5.0", "num_classes=7"],
        ),
        (SumOverLevels([ProxySoftmax(7, 3), ProxyNCA(2, 3)], weights=[1, 0.5]), ["weights=(1, 0.5)", "Softmax(num", "NCA(num"]),
        (FastAP(bins=7), ["bins=7"]),
        (ProxyNCA(7, 3, scale=2.0), ["ProxyNCA(num_classes=7, embedding_size=3, scale=2.0)"]),
        (ArcFace(7, 3), ["ArcFace(num_classes=7, embedding_size=3, margin=0.3, scale=30.0)"]),
        (CSL(TREE, 3), ["CSL(embedding_size=3, margins=(0.25, 0.35, 0.45), scale=32.0)"]),
        (CosFace(7, 3), ["num_classes=7, embedding_size=3, margin=0.35, scale=64.0"]),
        (ProxyAnchor(7, 3), ["num_classes=7, embedding_size=3, margin=0.1, scale=32.0"]),
        (MultiSimilarity(), ["alpha=2.0, beta=50.0, base=0.5"]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_repr_shows_the_hyper_parameters(loss, fragments):
    assert all(fragment in repr(loss) for fragment in fragments), repr(loss)


@pytest.mark.parametrize(
    ("loss", "state"),
    [
        (PairCalibration(), []),
        (ProxySoftmax(7, DIM), ["proxies"]),
        (happier(decomposability=ProxySoftmax(7, 3)), ["decomposability.proxies"]),
        (SumOverLevels([ProxySoftmax(5, DIM), ProxyNCA(3, DIM)]), ["losses.0.proxies", "losses.1.proxies"]),
        (CosFace(7, 3), ["proxies"]),
        (ProxyAnchor(7, 3), ["proxies"]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_state_is_the_proxies_under_their_place(loss, state):
    assert list(loss.state_dict()) == state
