import pytest
import timm
import torch

from suprank.models import Backbone, Embedder, backbone
from tests.models import tiny


def timm_features(embedder, images):
    """From timm itself: its network, with our weights in it."""
    net = timm.create_model(embedder.config.backbone, num_classes=0).eval()
    net.load_state_dict(embedder.backbone.net.state_dict())
    return net(images)


@pytest.mark.parametrize("name", [*tiny.MAPS, *tiny.TOKENS, tiny.BY_ATTENTION, "mobilenetv3_small_050"])
def test_by_default_features_are_timms(name):
    embedder = tiny.embedder(name)
    images = tiny.images(2, embedder.input.size[0])
    with torch.no_grad():
        torch.testing.assert_close(embedder.features(images), timm_features(embedder, images), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [*((name, "avg") for name in (*tiny.MAPS, *tiny.TOKENS[1:], "mobilenetv3_small_050")), ("test_vit", "token")],
)
def test_the_pooling_that_timm_has_by_default_gives_timms_features(name, pooling):
    embedder = tiny.embedder(name, pooling=pooling)
    images = tiny.images(2, embedder.input.size[0])
    with torch.no_grad():
        torch.testing.assert_close(embedder.features(images), timm_features(embedder, images), rtol=1e-4, atol=1e-5)


def test_pooling_of_a_transformer_leaves_out_its_special_tokens():
    embedder = tiny.embedder("test_vit", pooling="avg", image_size=32)
    with torch.no_grad():
        tokens = embedder.backbone.net.forward_features(tiny.images(2, 32))
        assert tokens.shape == (2, 1 + 4, 64)
        torch.testing.assert_close(embedder.features(tiny.images(2, 32)), tokens[:, 1:].mean(1))


def test_the_maximum_of_a_map_is_over_its_places():
    embedder = tiny.embedder("test_resnet", pooling="max")
    with torch.no_grad():
        features = embedder.backbone.net.forward_features(tiny.images())
        torch.testing.assert_close(embedder.features(tiny.images()), features.amax((2, 3)))


@pytest.mark.parametrize(
    ("name", "form", "special", "places", "dim"),
    [
        ("test_resnet", "map", 0, 25, 96),
        ("test_mambaout", "map, channels last", 0, 25, 256),
        ("test_vit", "tokens", 1, 100, 64),
        ("pit_ti_224", "tokens", 1, 0, 256),
    ],
)
def test_layouts(name, form, special, places, dim):
    layout = Backbone(name).layout
    assert (layout.form, layout.special, layout.positions, layout.dim) == (form, special, places, dim)


@pytest.mark.parametrize(
    ("name", "pooling", "possible"),
    [
        ("test_resnet", "token", "choose from timm, avg, max, avg\\+max, gem, gem-fixed\\."),
        ("test_vit2", "token", "choose from timm, avg"),  # its special token is no class token
        ("test_vit3", "gem", "choose from timm\\."),  # pools by attention
        ("efficientvit_b0", "avg", "choose from timm\\."),  # has layers before its pooling
        ("pit_ti_224", "avg", "choose from timm, token\\."),  # returns no places
        ("crossvit_tiny_240", "avg", "choose from timm\\."),  # returns two sets of tokens
    ],
)
def test_an_impossible_pooling_names_the_possible_ones(name, pooling, possible):
    with pytest.raises(ValueError, match=f"pooling='{pooling}' is not possible with {name}; {possible}"):
        Embedder.create(name, pooling=pooling)


def test_probing_a_network_changes_neither_its_mode_nor_its_weights():
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", num_classes=0)
    torch.manual_seed(0)
    made = Backbone("test_resnet")
    assert made.poolings[0] == "timm"
    assert all(module.training for module in made.modules())
    for name, value in net.state_dict().items():
        torch.testing.assert_close(made.net.state_dict()[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (torch.zeros(1, 3, 40, 32), r"40 × 32 pixels, and test_vit cuts them into patches of 16 × 16; .* for example 32 × 32"),
        (torch.zeros(1, 1, 32, 32), r"\[1, 1, 32, 32\] of torch.float32; give \[batch, 3"),
        (torch.zeros(3, 32, 32), r"\[3, 32, 32\]"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), r"torch.uint8; .*normalized as the embedder's `input` says"),
    ],
)
def test_images_that_a_transformer_does_not_take(images, complaint):
    with pytest.raises(ValueError, match=complaint):
        tiny.embedder("test_vit")(images)


def test_a_network_of_one_size_says_so():
    embedder = tiny.embedder("vit_relpos_small_patch16_224", image_size=32)
    with pytest.raises(
        ValueError, match=r"64 × 64 pixels, and vit_relpos_small_patch16_224 takes only 32 × 32.*image_size=\(64, 64\)"
    ):
        embedder(tiny.images(1, 64))


def test_a_transformer_takes_other_sizes_than_its_own():
    embedder = tiny.embedder("test_vit", image_size=32)
    assert embedder(torch.zeros(1, 3, 48, 64)).shape == (1, 64)


def test_a_network_that_does_not_make_features_is_refused(monkeypatch):
    net = timm.create_model("test_resnet", num_classes=0)
    net.layer1 = torch.nn.Linear(7, 7)
    monkeypatch.setattr(backbone, "create_network", lambda *args, **options: net)
    with pytest.raises(ValueError, match=r"test_resnet cannot be a backbone: it does not turn images into features \("):
        Backbone("test_resnet")
