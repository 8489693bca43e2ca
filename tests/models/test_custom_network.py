"""A backbone of the user's own: how it is built and called, and that a saved model loads its code only if it is trusted."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from suprank.models import Embedder, EmbedderConfig, UntrustedCodeError, WeightsError, export_program
from suprank.system.custom_code import CustomCodeError, UserCodeError
from suprank.workflows.embeddings import load_embedder
from tests.models.tiny import images

MINE = '''
import torch
from torch import nn


def build():
    """A feature map of 6 channels."""
    return nn.Sequential(nn.Conv2d(3, 6, 4, stride=4), nn.BatchNorm2d(6), nn.ReLU())


class Vectors(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.layer = nn.LazyLinear(width)

    def forward(self, images):
        return self.layer(images.mean((2, 3)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, images):
        return self.second(self.first(images.mean((2, 3))))


class Fickle(Vectors):
    def forward(self, images):
        return super().forward(images)[:, : 3 if self.training else 5]


def needs(width):
    return Vectors(width)


def broken():
    raise ValueError("no such network")


def tokens():
    return nn.Flatten(2)


def empty():
    return nn.Identity()


def fails():
    return nn.Conv2d(4, 2, 1)


def number():
    return 3


network = build()
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    return tmp_path


def test_a_map_is_pooled_as_the_settings_say():
    embedder = Embedder.create("mine.py:build", dim=4, normalization="l2").eval()
    assert embedder.backbone.layout == ("map", 6, 0, 56 * 56, 6)
    assert embedder.backbone.poolings == ("timm", "avg", "max", "avg+max", "gem", "gem-fixed")
    assert embedder(images()).shape == (2, 4)
    torch.testing.assert_close(embedder(images()).norm(dim=-1), torch.ones(2))
    for pooling, pooled in [("timm", lambda x: x.mean((2, 3))), ("max", lambda x: x.amax((2, 3)))]:
        made = Embedder.create("mine.py:build", pooling=pooling).eval()
        torch.testing.assert_close(made.features(images()), pooled(made.backbone.net.module(images())))


def test_vectors_stay_as_they_are():
    embedder = Embedder.create("mine.py:Vectors", image_size=32)
    assert (embedder.dim, embedder.backbone.poolings) == (5, ("timm",))
    assert torch.equal(embedder.features(images()), embedder.backbone.net.module(images()))
    assert embedder.input.mean == (0.485, 0.456, 0.406)
    with pytest.raises(ValueError, match="pooling='gem' is not possible with mine.py:Vectors, which returns vectors"):
        Embedder.create("mine.py:Vectors", pooling="gem")


def test_weights_may_come_from_a_file_and_not_from_timm():
    state = Embedder.create("mine.py:build").backbone.net.module.state_dict()
    safetensors.torch.save_file(state, "weights.safetensors")
    loaded = load_embedder("mine.py:build", "weights.safetensors").backbone.net.module.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    with pytest.raises(ValueError, match="pretrained=True means timm's weights, and mine.py:build is not timm's"):
        Embedder.create("mine.py:build", pretrained=True)


@pytest.mark.parametrize("name", ["mine.py:build", "mine.py:Vectors", "mine.py:Tied"])
def test_a_saved_model_loads_its_code_only_if_it_is_trusted(name, folder, forget_consents):
    embedder = Embedder.create(name, dim=4, image_size=32).eval()
    embedder.save("model")
    for load in (Embedder.load, load_embedder):
        forget_consents()
        with pytest.raises(UntrustedCodeError, match=rf"model needs code .*: its backbone is {name}, .* trust_c"):
            load("model")
        loaded = load("model", trust_code=True)
        assert torch.equal(loaded(images()), embedder(images()))
        assert loaded.fingerprint() == embedder.fingerprint()
        assert load("model").config == embedder.config, "the consent is remembered"


def test_untrusted_code_is_not_run(folder):
    Embedder.create("mine.py:build").save("model")
    Path("mine.py").write_text("from pathlib import Path\nPath('was-run').touch()\n" + MINE)
    with pytest.raises(UntrustedCodeError):
        Embedder.load("model")
    EmbedderConfig(backbone="mine.py:build")
    assert not Path("was-run").exists()
    Embedder.load("model", trust_code=True)
    assert Path("was-run").exists()


def test_code_that_builds_another_network_or_is_gone_is_refused(folder):
    Embedder.create("mine.py:build").save("model")
    Path("mine.py").write_text(MINE.replace("3, 6, 4", "3, 7, 4").replace("Norm2d(6)", "Norm2d(7)"))
    with pytest.raises(
        WeightsError, match="mine.py:build builds another network than the one that was saved; restore its code"
    ):
        Embedder.load("model", trust_code=True)
    Path("mine.py").unlink()
    with pytest.raises(CustomCodeError, match="there is no file .*mine.py; a path is relative to the working directory"):
        Embedder.load("model", trust_code=True)


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("nowhere.py:build", CustomCodeError, "there is no file .*nowhere.py"),
        ("no.such.module:build", CustomCodeError, "Python finds no module 'no.such.module'"),
        ("mine.py:other", CustomCodeError, "mine.py has no other; it has .*build"),
        ("mine.py:needs", CustomCodeError, r"a call without arguments does not fit mine.py:needs\(width\): missing .*'width'"),
        ("mine.py:network", CustomCodeError, "mine.py:network is a network; name a class, or a function that builds it"),
        ("mine.py:number", CustomCodeError, "must return an nn.Module, and it returned a int"),
        (
            "mine.py:tokens",
            CustomCodeError,
            r"must return features \[2, C, height, width\] or \[2, C\] .* returned \[2, 3, 50176\]",
        ),
        ("mine.py:empty", CustomCodeError, "a network without parameters"),
        ("mine.py:broken", UserCodeError, "mine.py:broken raised ValueError: no such network"),
        ("mine.py:fails", UserCodeError, r"mine.py:fails failed on images \[2, 3, 224, 224\]: RuntimeError: .*4 channels"),
        ("hub:timm/resnet18", ValueError, "must be a plain timm name, or .*FILE.py:NAME or package.module:NAME"),
        ("python:Net", ValueError, "must be a plain timm name, or .*FILE.py:NAME"),
        ("mine.py:", ValueError, "must be a plain timm name, or .*FILE.py:NAME"),
    ],
)
def test_what_cannot_be_a_backbone_is_refused_with_the_reason(name, error, reason):
    with pytest.raises(error, match=reason):
        Embedder.create(name)


def test_features_of_another_width_are_refused():
    embedder = Embedder.create("mine.py:Fickle")
    with pytest.raises(CustomCodeError, match=r"must return features \[2, 5\], as for the first images .* returned \[2, 3\]"):
        embedder.train()(images())


def test_a_module_that_python_finds_will_do_and_can_be_exported(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    Path("my_networks.py").write_text(MINE)
    embedder = Embedder.create("my_networks:build", dim=4, image_size=32).eval()
    export_program(embedder, "model.pt2")
    assert Path("model.pt2").is_file()
