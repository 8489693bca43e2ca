"""The loss that a recipe names is the one built by hand; its keys are checked, and a new loss needs its row only."""

import importlib
import inspect
import re
import sys
from functools import partial

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


def both(make):
    """A loss of pairs at each of the two levels, or of proxies with the classes of each."""

    def sum_over_levels(**keys):
        return losses.SumOverLevels([make(classes, **keys) for classes in (6, 3)])

    return sum_over_levels


def of_pairs(make):
    """A combination with PairCalibration, which has the keys that its name has."""

    def combined(weight, decomposability, **keys):
        pairs = losses.PairCalibration(**{key: keys.pop(key) for key in PAIR_KEYS})
        return make(decomposability=pairs, decomposability_weight=weight, **keys)

    return combined


def of_proxies(make):
    """A combination with ProxySoftmax."""

    def combined(weight, temperature, **keys):
        softmax = losses.ProxySoftmax(6, DIM, temperature=temperature)
        return make(decomposability=softmax, decomposability_weight=weight, **keys)

    return combined


# Keys of a recipe, each with another value than its default, beside what takes them as arguments.
BY_HAND = {
    "sup-ap": (SUP | CUT, losses.SupAP),
    "sup-recall": (SUP | RECALL, losses.SupRecall),
    "sup-hap": ({**SUP, "decay": 2.0}, losses.SupHAP),
    "sup-ndcg": (SUP | CUT, losses.SupNDCG),
    "smooth-ap": (SMOOTH | CUT, losses.SmoothAP),
    "smooth-recall": (SMOOTH | RECALL, losses.SmoothRecall),
    "smooth-hap": ({**SMOOTH, "decay": 2.0}, losses.SmoothHAP),
    "smooth-ndcg": (SMOOTH | CUT, losses.SmoothNDCG),
    "pair-calibration": (PAIR_KEYS, losses.PairCalibration),
    "nsm": (HOT, partial(losses.ProxySoftmax, 6, DIM)),
    "roadmap": ({**SUP, **CUT, **PAIRS, **PAIR_KEYS, "weight": 0.3}, of_pairs(losses.roadmap)),
    "rod-recall": ({**SUP, **RECALL, **PAIRS, **PAIR_KEYS, "weight": 0.3}, of_pairs(losses.rod_recall)),
    "happier": ({**SUP, **HOT, "decay": 2.0, "weight": 0.3}, of_proxies(losses.happier)),
    "rod-ndcg": ({**SUP, **CUT, **HOT, "weight": 0.3}, of_proxies(losses.rod_ndcg)),
    "fast-ap": ({"bins": 7, "include_self": True}, losses.FastAP),
    "softbin-ap": ({"bins": 7, "include_self": True}, losses.SoftBinAP),
    "blackbox-ap": ({"interpolation": 40.0, "margin": 0.5, "include_self": True}, losses.BlackBoxAP),
    "triplet-sh": ({"margin": 0.4}, losses.TripletSemiHard),
    "triplet-dw": ({"margin": 0.4, "cutoff": 1.2, "farthest": 1.5}, losses.DistanceWeightedTriplet),
    "siglip": ({"scale": 5.0, "bias": -3.0}, losses.SigLIP),
    "circle": ({"margin": 0.2, "scale": 20.0}, losses.Circle),
    "supcon": ({"temperature": 0.3}, losses.SupCon),
    "contrastive-xbm": ({"margin": 0.2}, losses.ContrastiveXBM),
    "irt-r": ({"margin": 0.2, "entropy_weight": 0.3}, losses.ContrastiveKoLeo),
    "multi-similarity": ({"alpha": 3.0, "beta": 40.0, "base": 0.3}, losses.MultiSimilarity),
    "cross-entropy": ({"label_smoothing": 0.4}, partial(losses.CrossEntropy, 6, DIM)),
    "proxy-nca": ({"scale": 2.0}, partial(losses.ProxyNCA, 6, DIM)),
    "proxy-anchor": ({"margin": 0.2, "scale": 20.0}, partial(losses.ProxyAnchor, 6, DIM)),
    "arcface": ({"margin": 0.2, "scale": 20.0}, partial(losses.ArcFace, 6, DIM)),
    "cosface": ({"margin": 0.2, "scale": 20.0}, partial(losses.CosFace, 6, DIM)),
    "csl": ({"margins": (0.1, 0.3), "scale": 20.0}, partial(losses.CSL, CLASSES, DIM)),
    "sum-triplet-sh": ({"margin": 0.4}, both(lambda classes, **keys: losses.TripletSemiHard(**keys))),
    "sum-nsm": (HOT, both(lambda classes, **keys: losses.ProxySoftmax(classes, DIM, **keys))),
    "sum-proxy-nca": ({"scale": 2.0}, both(lambda classes, **keys: losses.ProxyNCA(classes, DIM, **keys))),
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
    expected = value_of(lambda: by_hand(**keys))
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


@pytest.mark.parametrize("name", SPECS)
def test_defaults_are_those_of_the_loss_itself(name):
    spec = SPECS[name]
    own = inspect.signature(spec.loss_class).parameters
    for key in spec.key_names():
        if key in own:
            assert spec.model_fields[key].get_default() == own[key].default, key


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


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if issubclass(spec, RankSpec)])
def test_mixup_wraps_the_surrogate_only(name):
    loss, plain = build(name, mixup=True), build(name)
    mixed, expected = (loss.surrogate, plain.surrogate) if isinstance(loss, losses.Combined) else (loss, plain)
    assert isinstance(mixed, losses.SimilarityMixup)
    assert mixed.loss.__dict__.keys() == expected.__dict__.keys()
    assert type(mixed.loss) is type(expected)


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_says_whether_its_loss_has_proxies_and_compares_items(name):
    for keys in ({}, PAIRS) if issubclass(SPECS[name], CombinedSpec) else ({},):
        spec = parse_loss({"name": name, **keys})
        loss = spec.build(CLASSES, DIM)
        assert (spec.has_proxies, spec.compares_items) == (bool(list(loss.parameters())), loss.ranks_items)


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
