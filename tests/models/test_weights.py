import pickle
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

from suprank.models import Embedder, WeightsError
from suprank.models.weights import load_weights, read_state, without_distillation
from tests.models import tiny

SHARED = Path(__file__).parents[2] / "../shared/data/weights"


def network(name="test_resnet", seed=0, **options):
    torch.manual_seed(seed)
    return timm.create_model(name, num_classes=0, **options)


def same(net, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in net.state_dict().items())


def with_classifier(name="test_resnet", seed=1):
    torch.manual_seed(seed)
    return timm.create_model(name)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".bin"])
def test_a_state_dict_with_classifier_is_loaded_without_it(tmp_path, suffix):
    saved, path = with_classifier(), tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(saved.state_dict(), path)
    else:
        torch.save(saved.state_dict(), path)
    net = network()
    assert not same(net, saved)
    load_weights(net, path)
    assert same(net, saved)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda state: {"state_dict": state, "epoch": 3, "lr": 0.1},
        lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {"net_state": {f"module.backbone.{key}": value for key, value in state.items()}},
        lambda state: {**{f"backbone.net.{key}": value for key, value in state.items()}, "projection.weight": torch.ones(2, 2)},
        lambda state: {f"_orig_mod.{key}": value for key, value in state.items()},
        lambda state: {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")},
    ],
)
def test_what_training_scripts_wrap_around_a_state_dict_is_taken_off(tmp_path, wrapped):
    saved = with_classifier()
    torch.save(wrapped(saved.state_dict()), tmp_path / "checkpoint.pth")
    net = network()
    load_weights(net, tmp_path / "checkpoint.pth")
    assert same(net, saved)


def test_the_weights_of_a_saved_embedder_start_another(tmp_path):
    first = tiny.embedder("test_vit", dim=8, seed=1)
    first.save(tmp_path)
    second = tiny.embedder("test_vit", pooling="avg", weights=tmp_path / "model.safetensors")
    assert same(second.backbone, first.backbone)


class _Trap:
    def __reduce__(self):
        return (Path.touch, (Path("ran"),))


def save_plain(content, file):
    Path(file).write_bytes(pickle.dumps(content))


@pytest.mark.parametrize(
    ("save", "reason"),
    [(torch.save, "it holds .*, and building that would run code"), (save_plain, "it is not a pickle of tensors")],
)
@pytest.mark.parametrize("content", [_Trap(), {"state_dict": {"weight": _Trap()}}, torch.nn.Linear(2, 2)])
def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path, monkeypatch, content, save, reason):
    monkeypatch.chdir(tmp_path)
    save(content, "evil.pth")
    with pytest.raises(WeightsError, match=rf"evil.pth is refused: {reason}.*safetensors"):
        load_weights(network(), "evil.pth")
    assert not Path("ran").exists()


def test_weights_of_another_architecture_say_which_keys(tmp_path):
    safetensors.torch.save_file(with_classifier("test_resnet").state_dict(), tmp_path / "resnet.safetensors")
    message = (
        r"resnet.safetensors does not fit test_vit: .* of the network's .* entries are missing \(cls_token, pos_embed, .* are "
        r"unknown to it \(.*, …\).* Name the backbone that the weights were saved from\."
    )
    with pytest.raises(WeightsError, match=message):
        Embedder.create("test_vit", weights=tmp_path / "resnet.safetensors")


def test_weights_of_another_width_say_which_shapes(tmp_path):
    state = with_classifier().state_dict()
    state["conv1.0.weight"] = torch.zeros(4, 3, 3, 3)
    torch.save(state, tmp_path / "narrow.pth")
    net = network()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(
        WeightsError, match=r"1 have another shape \(conv1.0.weight is \[4, 3, 3, 3\] in the file and \[\d+, 3, 3"
    ):
        load_weights(net, tmp_path / "narrow.pth")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_position_embeddings_are_resized_for_another_image_size(tmp_path):
    safetensors.torch.save_file(with_classifier("test_vit").state_dict(), tmp_path / "vit.safetensors")
    net = network("test_vit", img_size=64)
    assert net.pos_embed.shape[1] == 4 * 4 + 1
    load_weights(net, tmp_path / "vit.safetensors")
    torch.testing.assert_close(net.pos_embed[:, 0], with_classifier("test_vit").pos_embed[:, 0])
    assert net.pos_embed.std() > 0


def test_without_distillation_the_second_position_goes():
    positions = torch.arange(5.0).reshape(1, 5, 1)
    state = {
        "pos_embed": positions,
        "dist_token": torch.ones(1),
        "head_dist.weight": torch.ones(1),
        "norm.weight": torch.ones(1),
    }
    plain = without_distillation(state)
    assert set(plain) == {"pos_embed", "norm.weight"}
    assert plain["pos_embed"].flatten().tolist() == [0, 2, 3, 4]
    assert "dist_token" in state


@pytest.mark.parametrize(
    ("name", "content", "error", "complaint"),
    [
        ("a.npz", b"", WeightsError, r"'\.npz' is none of \.safetensors, \.pth"),
        ("a", b"", WeightsError, "no extension"),
        ("a.safetensors", b"nonsense", WeightsError, "not a readable safetensors file"),
        ("a.pth", b"", WeightsError, r"a.pth cannot be read \(\w+\)"),
        ("a.pth", b"nonsense", WeightsError, "it is not a pickle of tensors"),
        ("absent.pth", None, FileNotFoundError, "there is no weights file .*absent.pth"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, error, complaint):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=complaint):
        read_state(tmp_path / name)


ENDLESS = {}
ENDLESS["model"] = ENDLESS


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({1: torch.ones(1)}, "no state dict"),
        (ENDLESS, "no state dict"),
        ({"epoch": 3, "optimizer": {}}, "a dictionary of epoch, optimizer and no state dict"),
        ({}, "no state dict"),
        ([torch.ones(1)], "a list and no state dict"),
        ({"model": {"epoch": 3}}, "a dictionary of epoch and no"),
    ],
)
def test_a_file_without_a_state_dict_says_what_it_holds(tmp_path, content, complaint):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=complaint):
        read_state(tmp_path / "a.pth")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the weights of ../shared/data")
@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "mobilenetv2_100"])
def test_real_weights_give_timms_features(name):
    path = SHARED / f"{name}.in1k.safetensors"
    embedder = Embedder.create(name, weights=path, pooling="avg").eval()
    net = timm.create_model(name, num_classes=0).eval()
    state = {key: value for key, value in safetensors.torch.load_file(path).items() if not key.startswith("classifier.")}
    net.load_state_dict(state, strict=True)
    with torch.no_grad():
        features = net(tiny.images(2, 112))
        torch.testing.assert_close(embedder.features(tiny.images(2, 112)), features, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(embedder(tiny.images(2, 112)), torch.nn.functional.normalize(features))


def test_a_pickle_cut_anywhere_is_refused(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "whole.pth", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "whole.pth").read_bytes()
    for end in range(1, len(whole), 7):
        (tmp_path / "cut.pth").write_bytes(whole[:end])
        with pytest.raises(WeightsError, match=r"cut\.pth"):
            read_state(tmp_path / "cut.pth")
