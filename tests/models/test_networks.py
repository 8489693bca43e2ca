import time

import pytest
import timm
import torch
from huggingface_hub import constants

from suprank.models import ALIASES, Embedder, networks
from suprank.models.networks import create_network, find_network
from suprank.models.weights import DownloadError


def test_the_papers_backbones_have_short_names():
    assert set(ALIASES) == {"resnet18", "resnet34", "resnet50", "resnet101", "deit_small", "deit_base", "vit_base"}
    pretrained = set(timm.list_pretrained())
    for source in ALIASES.values():
        assert {source.network, source.weights} <= pretrained


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"backbone='resnet5O' is not a network of timm .*resnet50"):
        find_network("resnet5O")
    with pytest.raises(ValueError, match=r"'deit_smal'.*deit_small"):
        Embedder.create("deit_smal")
    with pytest.raises(ValueError, match=r"timm.list_models\(\) lists them"):
        find_network("0000000000")


def test_an_unknown_tag_lists_those_there_are():
    with pytest.raises(ValueError, match=r"no weights 'v9' of resnet34; it has .*resnet34\.tv_in1k"):
        find_network("resnet34.v9")


def test_a_tag_chooses_what_images_should_look_like():
    assert find_network("resnet34.tv_in1k").network == "resnet34.tv_in1k"
    assert find_network("resnet34.a1_in1k").weights == "resnet34.a1_in1k"


def test_networks_have_no_classifier():
    assert not any(name.startswith("fc.") for name in create_network("test_resnet").state_dict())


def test_transformers_are_made_for_an_image_size_and_convolutions_do_not_care():
    assert create_network("test_vit", (32, 48)).pos_embed.shape[1] == 2 * 3 + 1
    assert create_network("test_resnet", (32, 48)).state_dict().keys() == create_network("test_resnet").state_dict().keys()


def test_without_a_network_cached_weights_are_all_there_are_and_the_error_comes_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    before, start = constants.HF_HUB_OFFLINE, time.monotonic()
    with pytest.raises(
        DownloadError, match=r"^the pretrained weights resnet18.tv_in1k .* http\S+ does not answer .*weights=FILE"
    ):
        create_network("resnet18", pretrained=True)
    assert time.monotonic() - start < 30  # a fraction of a second on an idle machine
    assert before == constants.HF_HUB_OFFLINE


def test_weights_are_named_once(tmp_path):
    with pytest.raises(ValueError, match="both name weights"):
        create_network("test_resnet", pretrained=True, weights=tmp_path / "a.safetensors")


def test_a_distilled_deit_goes_into_the_plain_one_without_its_distillation_token(monkeypatch):
    """The plain network must see the class token and the patches at the positions that they had."""
    create, made = timm.create_model, {}

    def download(name, pretrained=False, **options):
        made[name] = create(name, **{**options, "depth": 1, "embed_dim": 12, "num_heads": 3})
        return made[name]

    monkeypatch.setattr(networks, "_hub_weights", lambda *names: "model.safetensors")
    monkeypatch.setattr(timm, "create_model", download)
    torch.manual_seed(0)
    plain = create_network("deit_small", pretrained=True)
    distilled = made["deit_small_distilled_patch16_224.fb_in1k"]
    assert plain is made["deit_small_patch16_224.fb_in1k"]
    assert distilled.pos_embed.shape[1] == plain.pos_embed.shape[1] + 1 == 198
    torch.testing.assert_close(plain.pos_embed[:, 0], distilled.pos_embed[:, 0], rtol=0, atol=0)
    torch.testing.assert_close(plain.pos_embed[:, 1:], distilled.pos_embed[:, 2:], rtol=0, atol=0)
    torch.testing.assert_close(plain.blocks[0].mlp.fc1.weight, distilled.blocks[0].mlp.fc1.weight, rtol=0, atol=0)


def test_weights_that_are_not_on_the_hub_are_downloaded_by_timm(monkeypatch):
    monkeypatch.setattr(networks, "_hub_weights", lambda *names: pytest.fail("a request to the Hub"))
    asked = []
    monkeypatch.setattr(networks, "_create", lambda name, size, **options: asked.append((name, options)))
    create_network("gcvit_base", pretrained=True)
    assert asked == [("gcvit_base", {"pretrained": True, "pretrained_cfg_overlay": {}})]


@pytest.mark.slow
@pytest.mark.parametrize(("alias", "dim"), [("resnet50", 2048), ("deit_small", 384), ("vit_base", 768)])
def test_the_papers_backbones_embed(alias, dim):
    with torch.device("meta"), torch.no_grad():  # shapes without numbers: 86 million random weights take seconds
        embedder = Embedder.create(alias, freeze_batchnorm=True).eval()
        assert embedder(torch.empty(1, 3, 224, 224)).shape == (1, dim)
    assert embedder.input.size == (224, 224)
