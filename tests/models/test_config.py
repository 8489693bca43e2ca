import pydantic
import pytest

from suprank.models import Embedder, EmbedderConfig


def test_by_default_nothing_is_added_to_the_backbone():
    config = EmbedderConfig(backbone="resnet50")
    assert (config.pooling, config.normalization, config.dim, config.freeze_batchnorm) == ("timm", "none", None, False)


def test_one_number_is_a_square():
    assert EmbedderConfig(backbone="resnet50", image_size=96).image_size == (96, 96)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"poolings": "gem"}, "Extra inputs are not permitted"),
        ({"pooling": "gen"}, "'timm', 'avg'"),
        ({"dim": 0}, "greater than or equal to 1"),
        ({"gem_power": 0.0}, "greater than 0"),
        ({"image_size": (0, 8)}, "must be 1 to 8,192 pixels"),
        ({"image_size": 10**9}, "must be 1 to 8,192 pixels"),
        ({"resize": 10**9}, "less than or equal to 8192"),
        ({"std": (0.5, 0.0, 0.5)}, "above 0"),
        ({"resize": -1}, "greater than or equal to 0"),
        ({"std": (0.5, True, 0.5)}, "should be a valid number"),
        ({"image_size": True}, "should be a valid integer"),
        ({"image_size": 96.0}, "should be a valid tuple"),
        ({"dim": True}, "should be a valid integer"),
        ({"bias": "no"}, "should be a valid boolean"),
        ({"backbone": "hf-hub:nobody"}, "must be org/name"),
        ({"backbone": "hf-hub:org/name@"}, "nothing after the @"),
        ({"backbone": "hub:org/name"}, "must be a plain timm name, or hf-hub:org/name"),
        ({"backbone": "resnet18", "hub_backbone": {"architecture": "resnet18"}}, "is for a backbone hf-hub:org/name@commit"),
    ],
)
def test_what_cannot_be_is_refused_on_construction(settings, complaint):
    with pytest.raises(pydantic.ValidationError, match=complaint):
        EmbedderConfig(**{"backbone": "resnet50", **settings})


def test_a_config_is_frozen():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        EmbedderConfig(backbone="resnet50").dim = 3


def test_the_embedder_fills_in_what_the_config_leaves_to_the_backbone():
    config = EmbedderConfig(backbone="test_resnet", mean=(0.1, 0.2, 0.3))
    with pytest.raises(ValueError, match="leaves the preprocessing of images to the backbone"):
        _ = config.input
    found = Embedder(config).input
    assert found.mean == (0.1, 0.2, 0.3)
    assert (found.size, found.std, found.interpolation, found.resize) == ((160, 160), (0.5, 0.5, 0.5), "bilinear", 168)
    assert Embedder(EmbedderConfig(backbone="test_resnet", image_size=32, resize=0)).input.resize == 0
