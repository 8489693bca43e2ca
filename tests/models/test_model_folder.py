import json
import shutil
from pathlib import Path

import pytest
import torch

from suprank.files import atomic
from suprank.models import Embedder, EmbedderConfig, model_folder
from tests.models import tiny


def changed(path, **entries):
    record = json.loads((path / "embedder.json").read_text())
    entries = {**entries, "config": {**record["config"], **entries.get("config", {})}}
    record.update(entries)
    (path / "embedder.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("backbone", "settings"),
    [
        ("test_resnet", {"pooling": "gem", "gem_power": 2.5, "normalization": "layer", "dim": 8, "freeze_batchnorm": True}),
        ("test_resnet", {"pooling": "gem-fixed", "gem_power": 2.5, "dim": 8, "bias": False}),
        ("test_vit", {"pooling": "token", "image_size": 64, "mean": (0.1, 0.2, 0.3)}),
    ],
)
def test_a_loaded_embedder_is_the_saved_one_to_the_last_bit(tmp_path, backbone, settings):
    embedder = tiny.embedder(backbone, seed=3, **settings)
    embedder.save(tmp_path / "new" / "model")
    loaded = Embedder.load(tmp_path / "new" / "model")
    assert loaded.config == embedder.config
    assert loaded.input == embedder.input
    assert not loaded.training
    assert torch.equal(loaded(tiny.images()), embedder(tiny.images()))
    assert loaded.fingerprint() == embedder.fingerprint()


def test_the_json_says_what_wrote_it_and_has_every_setting(tmp_path):
    tiny.embedder(dim=8).save(tmp_path)
    record = json.loads((tmp_path / "embedder.json").read_text())
    assert record["format"] == 6
    assert set(record["written_by"]) == {"suprank", "timm", "torch"}
    assert record["config"]["image_size"] == [160, 160]
    assert [key for key, value in record["config"].items() if value is None] == ["hub_backbone", "head"]


def pattern(*shape, divisor):
    """Numbers that are the same in every version of torch."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 40503 % 65536) // 7 % divisor - divisor // 2).reshape(shape) / 64


def test_a_folder_of_format_6_gives_the_embeddings_that_it_gave_when_it_was_written(tmp_path):
    """The JSON is of suprank 0.2.0 before models had ModelHubMixin, and so is the hash of the weights in it."""
    shutil.copyfile(Path(__file__).with_name("embedder_format_6.json"), tmp_path / "embedder.json")
    settings = json.loads((tmp_path / "embedder.json").read_text())["config"]
    state = Embedder(EmbedderConfig.model_validate(settings)).state_dict()
    for name, value in state.items():
        if value.is_floating_point():
            numbers = pattern(*value.shape, divisor=17)
            state[name] = 0.5 + numbers.abs() if value.ndim == 1 else numbers
    (tmp_path / "model.safetensors").write_bytes(model_folder.state_bytes(state))
    embeddings = Embedder.from_pretrained(tmp_path)(4 * pattern(2, 3, 64, 64, divisor=23))
    torch.testing.assert_close(
        embeddings,
        torch.tensor([[0.463389, 0.452002, 0.604052, 0.46485], [0.463799, 0.452173, 0.60381, 0.464589]]),
        rtol=1e-4,
        atol=1e-5,
    )


def test_saving_again_replaces_and_leaves_nothing_else(tmp_path):
    tiny.embedder(dim=8).save(tmp_path)
    tiny.embedder("test_vit", dim=4).save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["embedder.json", "model.safetensors"]
    assert Embedder.load(tmp_path).dim == 4


def test_memory_format_does_not_matter_to_saving(tmp_path):
    embedder = tiny.embedder()
    embedder.to(memory_format=torch.channels_last).save(tmp_path)
    assert torch.equal(Embedder.load(tmp_path)(tiny.images()), tiny.embedder()(tiny.images()))


def test_loading_downloads_nothing_and_leaves_the_random_numbers_alone(tmp_path, monkeypatch):
    tiny.embedder().save(tmp_path)
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("a connection"))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    Embedder.load(tmp_path)
    assert torch.equal(torch.rand(3), expected)


def replaced(name, content):
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "embedder.json").unlink(), "it has no embedder.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "it has no model.safetensors"),
        (replaced("embedder.json", "{"), "is not a readable description of an embedder"),
        (replaced("embedder.json", "[]"), "has format None, and suprank .* reads 6"),
        (lambda folder: changed(folder, format=7), "has format 7, and suprank .* reads 6; a newer suprank may read it"),
        (lambda folder: changed(folder, format="6"), "has format '6'"),
        (lambda folder: changed(folder, wieght=1), "wieght: Extra inputs"),
        (lambda folder: changed(folder, config={"temperature": 3}), r"config\.temperature: Extra inputs"),
        (lambda folder: changed(folder, config={"dim": 9}), r"projection.weight is \[8, 96\] in the file and \[9, 96\] in the"),
        (replaced("model.safetensors", "of another save"), r"is not the file that embedder\.json describes"),
    ],
)
def test_a_folder_that_is_no_whole_embedder_says_why(tmp_path, harm, message):
    tiny.embedder(dim=8).save(tmp_path)
    harm(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Embedder.load(tmp_path)


def test_a_save_that_fails_leaves_the_last_one(tmp_path, monkeypatch):
    tiny.embedder(dim=8).save(tmp_path)
    monkeypatch.setattr(atomic.os, "fsync", lambda number: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        tiny.embedder(dim=4).save(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["embedder.json", "model.safetensors"]
    assert Embedder.load(tmp_path).dim == 8


def test_packing_equal_weights_gives_equal_bytes():
    state = {"b": torch.ones(2), "a": torch.zeros(3)}
    assert model_folder.state_bytes(state) == model_folder.state_bytes(dict(reversed(state.items())))
