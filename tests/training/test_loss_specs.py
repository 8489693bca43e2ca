"""The loss that a recipe names is the one built by hand; its keys are checked, and a new loss needs its row only."""

import importlib
import inspect
import re
import sys

import pytest
import torch
from pydantic import ValidationError

from suprank import losses
from suprank.training.loss_specs import CombinedSpec, RankSpec, loss_specs, parse_loss

SPECS = loss_specs()
FINE = torch.arange(6)
CLASSES, DIM = torch.stack([FINE, FINE // 2], -1), 8
SUP = {"tau": 0.03, "rho": 50.0, "delta": 0.1, "jump": 0.25, "value_at_delta": 1.2, "include_self": True}
SMOOTH = {"tau": 0.03, "include_self": True}
RECALL = {"ks": (1, 3), "rank_tau": 0.7}
PAIRS = {"decomposability": "pairs"}
PAIR_KEYS = {"positive_floor": 0.8, "negative_ceiling": 0.3, "average": "violating"}
HOT = {"temperature": 0.2}
CUT = {"k": 2, "rank_tau": 0.7}


def proxies():
    return losses.ProxySoftmax(6, DIM, **HOT)


# Keys of a recipe, each with another value than its default, beside the loss built by hand.
BY_HAND = {
    "sup-ap": (SUP | CUT, lambda: losses.SupAP(**SUP, **CUT)),
    "sup-recall": (SUP | RECALL, lambda: losses.SupRecall(**SUP, **RECALL)),
    "sup-hap": ({**SUP, "decay": 2.0}, lambda: losses.SupHAP(**SUP, decay=2.0)),
    "sup-ndcg": (SUP | CUT, lambda: losses.SupNDCG(**SUP, **CUT)),
    "smooth-ap": (SMOOTH | CUT, lambda: losses.SmoothAP(**SMOOTH, **CUT)),
    "smooth-recall": (SMOOTH | RECALL, lambda: losses.SmoothRecall(**SMOOTH, **RECALL)),
    "smooth-hap": ({**SMOOTH, "decay": 2.0}, lambda: losses.SmoothHAP(**SMOOTH, decay=2.0)),
    "smooth-ndcg": (SMOOTH | CUT, lambda: losses.SmoothNDCG(**SMOOTH, **CUT)),
    "pair-calibration": (PAIR_KEYS, lambda: losses.PairCalibration(**PAIR_KEYS)),
    "nsm": (HOT, proxies),
    "roadmap": (
        {**SUP, **CUT, **PAIRS, **PAIR_KEYS, "weight": 0.3},
        lambda: losses.roadmap(decomposability=losses.PairCalibration(**PAIR_KEYS), decomposability_weight=0.3, **SUP, **CUT),
    ),
    "rod-recall": (
        {**SUP, **RECALL, **PAIRS, **PAIR_KEYS, "weight": 0.3},
        lambda: losses.rod_recall(
            decomposability=losses.PairCalibration(**PAIR_KEYS), decomposability_weight=0.3, **SUP, **RECALL
        ),
    ),
    "happier": (
        {**SUP, **HOT, "decay": 2.0, "weight": 0.3},
        lambda: losses.happier(decomposability=proxies(), decay=2.0, decomposability_weight=0.3, **SUP),
    ),
    "rod-ndcg": (
        {**SUP, **CUT, **HOT, "weight": 0.3},
        lambda: losses.rod_ndcg(decomposability=proxies(), decomposability_weight=0.3, **SUP, **CUT),
    ),
    "fast-ap": ({"bins": 7, "include_self": True}, lambda: losses.FastAP(bins=7, include_self=True)),
    "softbin-ap": ({"bins": 7, "include_self": True}, lambda: losses.SoftBinAP(bins=7, include_self=True)),
    "blackbox-ap": (
        {"interpolation": 40.0, "margin": 0.5, "include_self": True},
        lambda: losses.BlackBoxAP(interpolation=40.0, margin=0.5, include_self=True),
    ),
    "triplet-sh": ({"margin": 0.4}, lambda: losses.TripletSemiHard(margin=0.4)),
    "triplet-dw": (
        {"margin": 0.4, "cutoff": 1.2, "farthest": 1.5},
        lambda: losses.DistanceWeightedTriplet(margin=0.4, cutoff=1.2, farthest=1.5),
    ),
    "contrastive-xbm": ({"margin": 0.2}, lambda: losses.ContrastiveXBM(margin=0.2)),
    "irt-r": ({"margin": 0.2, "entropy_weight": 0.3}, lambda: losses.ContrastiveKoLeo(margin=0.2, entropy_weight=0.3)),
    "multi-similarity": (
        {"alpha": 3.0, "beta": 40.0, "base": 0.3},
        lambda: losses.MultiSimilarity(alpha=3.0, beta=40.0, base=0.3),
    ),
    "cross-entropy": ({"label_smoothing": 0.4}, lambda: losses.CrossEntropy(6, DIM, label_smoothing=0.4)),
    "proxy-nca": ({"scale": 2.0}, lambda: losses.ProxyNCA(6, DIM, scale=2.0)),
    "proxy-anchor": ({"margin": 0.2, "scale": 20.0}, lambda: losses.ProxyAnchor(6, DIM, margin=0.2, scale=20.0)),
    "arcface": ({"margin": 0.2, "scale": 20.0}, lambda: losses.ArcFace(6, DIM, margin=0.2, scale=20.0)),
    "cosface": ({"margin": 0.2, "scale": 20.0}, lambda: losses.CosFace(6, DIM, margin=0.2, scale=20.0)),
    "csl": ({"margins": (0.1, 0.3), "scale": 20.0}, lambda: losses.CSL(CLASSES, DIM, margins=(0.1, 0.3), scale=20.0)),
    "sum-triplet-sh": (
        {"margin": 0.4},
        lambda: losses.SumOverLevels([losses.TripletSemiHard(margin=0.4), losses.TripletSemiHard(margin=0.4)]),
    ),
    "sum-nsm": (HOT, lambda: losses.SumOverLevels([proxies(), losses.ProxySoftmax(3, DIM, **HOT)])),
    "sum-proxy-nca": (
        {"scale": 2.0},
        lambda: losses.SumOverLevels([losses.ProxyNCA(6, DIM, scale=2.0), losses.ProxyNCA(3, DIM, scale=2.0)]),
    ),
}


def build(name, **keys):
    return parse_loss({"name": name, **keys}).build(CLASSES, DIM)


def data(seed=0, count=12):
    generator = torch.Generator().manual_seed(seed)
    fine = torch.arange(count) % 6
    ids = torch.randperm(30, generator=generator)[:count]
    return torch.randn(count, DIM, generator=generator), torch.stack([fine, fine // 2], -1), ids


def seeded(make):
    torch.manual_seed(1)  # proxies are drawn
    return make()


def value_of(make):
    loss = seeded(make)
    embeddings, labels, _ = data()
    return seeded(lambda: loss(embeddings, labels))  # some losses draw at every call


@pytest.mark.parametrize("name", SPECS)
def test_every_loss_is_the_one_built_by_hand_with_all_its_keys(name):
    keys, by_hand = BY_HAND[name]
    tried = set(keys) | {"mixup", "decomposability", "level_weights"}
    if issubclass(SPECS[name], CombinedSpec):  # those of one decomposability loss at a time
        tried |= {"temperature", *PAIR_KEYS}
    assert tried >= set(SPECS[name].key_names()), "a key is not tried"
    expected = value_of(by_hand)
    assert torch.equal(value_of(lambda: build(name, **keys)), expected)
    assert abs(value_of(lambda: build(name)) - expected) > 1e-4


@pytest.mark.parametrize("name", SPECS)
def test_each_key_of_a_loss_has_an_effect(name):
    """On embeddings that are neither sorted nor tied; but `value_at_delta` needs a gap beyond δ, and there are many."""
    keys, _ = BY_HAND[name]
    embeddings, labels, _ = data()

    def slopes(given):
        """The value and its slopes: the solver's step of blackbox-ap moves only these."""
        loss = seeded(lambda: build(name, **given))
        leaf = embeddings.clone().requires_grad_()
        value = seeded(lambda: loss(leaf, labels))
        return torch.cat([value.detach()[None], torch.autograd.grad(value, leaf)[0].flatten()])

    with_all = slopes(keys)
    for key in keys.keys() - {"decomposability"}:
        without = {key, "rank_tau"} if key == "k" else {key}  # which is refused without k
        assert not torch.equal(with_all, slopes({other: keys[other] for other in keys if other not in without})), key


def test_the_cut_needs_k():
    with pytest.raises(ValidationError, match="rank_tau has no effect without k; set k, or leave rank_tau out"):
        parse_loss({"name": "sup-ndcg", "rank_tau": 0.5})
    with pytest.raises(ValidationError, match="k=0 must be a whole number from 1 on"):
        parse_loss({"name": "sup-ndcg", "k": 0})


@pytest.mark.parametrize("name", SPECS)
def test_defaults_are_those_of_the_loss_itself(name):
    spec = SPECS[name]
    own = inspect.signature(spec.loss_class).parameters
    for key in spec.key_names():
        if key in own:
            assert spec.model_fields[key].get_default() == own[key].default, key


@pytest.mark.parametrize("name", SPECS)
def test_every_loss_says_what_it_is_in_one_line(name):
    assert 5 < len(SPECS[name].description()) < 80
    assert "\n" not in SPECS[name].description()


@pytest.mark.parametrize("name", ["sup-hap", "smooth-hap", "happier"])
def test_level_weights_make_it_a_sum_of_ap_over_levels(name):
    def value(weights):
        return value_of(lambda: build(name, level_weights=weights))

    def by_hand(weights):
        return {
            "sup-hap": lambda: losses.SupHAP(weights=weights),
            "smooth-hap": lambda: losses.SmoothHAP(weights=weights),
            "happier": lambda: losses.happier(6, DIM, weights=weights),
        }[name]

    assert torch.equal(value("equal"), value_of(by_hand((0.5, 0.5))))
    assert torch.equal(value((0.5, 0.5)), value("equal"))
    assert torch.equal(value((0.1, 0.9)), value_of(by_hand((0.1, 0.9))))
    assert value((0.1, 0.9)) != value("equal")


def test_level_weights_for_other_levels_are_refused_before_the_first_step():
    with pytest.raises(ValueError, match=r"level_weights=\(1\.0, 2\.0, 3\.0\) has 3 weights, but the labels have 2 level\(s\)"):
        build("sup-hap", level_weights=(1.0, 2.0, 3.0))


@pytest.mark.parametrize("name", ["roadmap", "happier", "rod-recall", "rod-ndcg"])
@pytest.mark.parametrize("decomposability", ["pairs", "proxies", None])
def test_either_decomposability_loss_can_be_chosen_and_proxies_are_the_default(name, decomposability):
    loss = build(name, **({"decomposability": decomposability} if decomposability else {}))
    assert isinstance(loss, losses.Combined)
    assert isinstance(loss.surrogate, SPECS[name].loss_class)
    assert isinstance(loss.decomposability, losses.PairCalibration if decomposability == "pairs" else losses.ProxySoftmax)
    assert sum(parameter.numel() for parameter in loss.parameters()) == (0 if decomposability == "pairs" else 6 * DIM)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if issubclass(spec, RankSpec)])
def test_mixup_wraps_the_surrogate_only(name):
    loss, plain = build(name, mixup=True), build(name)
    mixed, expected = (loss.surrogate, plain.surrogate) if isinstance(loss, losses.Combined) else (loss, plain)
    assert isinstance(mixed, losses.SimilarityMixup)
    assert mixed.loss.__dict__.keys() == expected.__dict__.keys()
    assert type(mixed.loss) is type(expected)


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_says_whether_its_loss_has_proxies(name):
    for keys in ({}, PAIRS) if issubclass(SPECS[name], CombinedSpec) else ({},):
        spec = parse_loss({"name": name, **keys})
        assert spec.has_proxies == bool(list(spec.build(CLASSES, DIM).parameters()))


@pytest.mark.parametrize(
    ("name", "proxies", "items"), [("nsm", True, False), ("roadmap", True, True), ("csl", True, False), ("sup-ap", False, True)]
)
def test_a_spec_says_whether_its_loss_compares_items(name, proxies, items):
    spec = parse_loss({"name": name})
    assert (spec.has_proxies, spec.compares_items) == (proxies, items)


@pytest.mark.parametrize(
    ("table", "where", "reason"),
    [
        ({"name": "road-map"}, "name", "there is no loss 'road-map'; did you mean roadmap[?] choose from sup-ap, sup-recall, "),
        ({"name": "xyz"}, "name", "there is no loss 'xyz'; choose from sup-ap, .*, or name your own as FILE.py:CLASS"),
        ({}, "name", "Field required"),
        ({"name": 3}, "name", "valid string"),
        (
            {"name": "smooth-ap", "rho": 3},
            "rho",
            "no key 'rho'; leave it out: its keys are mixup, k, rank_tau, tau, include_self$",
        ),
        ({"name": "nsm", "weight": 0.3}, "weight", "nsm has no key 'weight'; leave it out: its keys are temperature$"),
        ({"name": "triplet-sh", "margn": 0.3}, "margn", "no key 'margn'; did you mean margin[?] its keys are margin$"),
        (
            {"name": "mine.py:Mine", "margin": 1},
            "margin",
            "write its arguments below \\[loss.arguments\\]: loss.arguments.margin",
        ),
        ({"name": "mine.py:Mine", "arguments": {"margin": None}}, "arguments", "margin=None cannot be saved in a recipe"),
    ],
)
def test_an_unknown_name_or_key_is_refused_with_those_there_are(table, where, reason):
    with pytest.raises(ValidationError) as raised:
        parse_loss(table)
    (error,) = raised.value.errors()
    assert error["loc"] == (where,)
    assert re.search(reason, error["msg"])


def test_every_unknown_key_is_named_at_once():
    with pytest.raises(ValidationError) as raised:
        parse_loss({"name": "nsm", "weight": 0.3, "margin": 0.1})
    assert [error["loc"] for error in raised.value.errors()] == [("weight",), ("margin",)]


NEW_LOSS = """
from suprank.losses import TripletSemiHard
from suprank.training.loss_specs import ItemLossSpec, add_loss

class WiderTriplet(TripletSemiHard):
    'Its class.'

add_loss("wider-triplet", ItemLossSpec, WiderTriplet, "Triplets with a name of their own")
"""


def test_a_new_loss_needs_its_class_and_its_row_only(tmp_path, monkeypatch):
    """Recipes, presets, the list of losses and its own keys follow from the row."""
    from suprank.training import config_keys
    from suprank.training.loss_specs import base as module
    from suprank.training.presets import compose
    from suprank.training.recipe import read_recipe, to_toml

    (tmp_path / "new_package").mkdir()
    (tmp_path / "new_package" / "__init__.py").write_text(NEW_LOSS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "_SPECS", dict(module._SPECS))
    package = importlib.import_module("new_package")
    try:
        (tmp_path / "mine.toml").write_text('[data]\nmanifest = "m.parquet"\n[loss]\nname = "wider-triplet"\nmargin = 0.4\n')
        config = read_recipe(tmp_path / "mine.toml")
        built = config.loss.build(CLASSES, DIM)
        assert type(built) is package.WiderTriplet
        assert built.margin == 0.4
        (tmp_path / "again.toml").write_text(to_toml(config))
        assert read_recipe(tmp_path / "again.toml") == config
        assert loss_specs()["wider-triplet"].description() == "Triplets with a name of their own"
        assert "loss.margin" in config_keys.key_names()
        with pytest.raises(ValueError, match="wider-triplet has no key 'tau'; leave it out: its keys are margin"):
            read_recipe(tmp_path / "mine.toml", ["loss.tau=0.1"])
        for name, text in {
            "preset/base": '# A preset.\n\n# How.\n\n[data]\nmanifest = "m.parquet"\n',
            "methods/wider-triplet": '# Wider: a method.\n\n[loss]\nname = "wider-triplet"\n',
        }.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / f"{name}.toml").write_text(text.replace("\n\n# How", "\n#\n# How"))
        assert compose("preset/wider-triplet", tmp_path) is not None
    finally:
        del sys.modules["new_package"]
