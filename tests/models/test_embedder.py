import pytest
import torch

from suprank.models import Embedder, EmbedderConfig
from tests.models import tiny


def test_layer_normalization_has_no_affine_and_comes_before_the_projection():
    embedder = tiny.embedder(pooling="avg", normalization="layer", dim=8)
    pooled = tiny.embedder(pooling="avg").features(tiny.images())
    centered = pooled - pooled.mean(1, keepdim=True)
    expected = centered / (centered.square().mean(1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(embedder.features(tiny.images()), expected)
    projected = expected @ embedder.projection.weight.T + embedder.projection.bias
    torch.testing.assert_close(embedder(tiny.images()), projected / projected.norm(dim=1, keepdim=True))


def test_l2_normalization_divides_by_the_length():
    pooled = tiny.embedder().features(tiny.images())
    torch.testing.assert_close(
        tiny.embedder(normalization="l2").features(tiny.images()), pooled / pooled.norm(dim=1, keepdim=True)
    )


@pytest.mark.parametrize("dim", [None, 8])
@pytest.mark.parametrize("normalization", ["none", "layer", "l2"])
@pytest.mark.parametrize(("backbone", "pooling"), [("test_resnet", "gem"), ("test_resnet", "avg+max"), ("test_vit", "token")])
def test_embeddings_have_length_1(backbone, pooling, normalization, dim):
    embedder = tiny.embedder(backbone, pooling=pooling, normalization=normalization, dim=dim)
    embeddings = embedder(tiny.images(3))
    assert embeddings.shape == (3, embedder.dim)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(3))


def test_an_image_without_features_has_the_embedding_zero():
    embedder = tiny.embedder(dim=8, bias=False)
    torch.nn.init.zeros_(embedder.projection.weight)
    assert embedder(tiny.images(1)).tolist() == [[0.0] * 8]


@pytest.mark.parametrize("settings", [{}, {"pooling": "gem", "dim": 8}, {"pooling": "gem-fixed", "dim": 8, "bias": False}])
def test_parameter_groups_hold_every_parameter_once(settings):
    embedder = tiny.embedder(**settings)
    groups = embedder.parameter_groups()
    assert list(groups) == ["backbone", "head"]
    assert sorted(id(p) for group in groups.values() for p in group) == sorted(id(p) for p in embedder.parameters())
    assert len(groups["head"]) == {(): 0, ("dim", "pooling"): 3, ("bias", "dim", "pooling"): 1}[tuple(sorted(settings))]


def test_frozen_batchnorm_keeps_its_statistics_and_trains_its_scale():
    embedder = tiny.embedder(freeze_batchnorm=True).train()
    norms = [module for module in embedder.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms
    assert embedder.training
    assert not any(norm.training for norm in norms)
    before = norms[0].running_mean.clone()
    embedder(tiny.images()).sum().backward()
    assert torch.equal(norms[0].running_mean, before)
    assert all(norm.weight.grad is not None for norm in norms)


def test_batchnorm_is_trained_unless_frozen():
    embedder = tiny.embedder().train()
    norm = next(module for module in embedder.modules() if isinstance(module, torch.nn.BatchNorm2d))
    before = norm.running_mean.clone()
    embedder(tiny.images())
    assert not torch.equal(norm.running_mean, before)


def test_gradients_reach_every_parameter():
    embedder = tiny.embedder(pooling="gem", normalization="layer", dim=8).train()
    embedder(tiny.images())[:, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in embedder.parameters())
    assert embedder.pooling.p.grad.item() != 0


@pytest.mark.parametrize(("backbone", "pooling"), [("test_resnet", "gem"), ("test_vit", "avg"), ("test_convnext", "timm")])
def test_under_autocast_embeddings_are_float32_of_length_1(backbone, pooling):
    embedder = tiny.embedder(backbone, pooling=pooling, normalization="layer", dim=8)
    with torch.no_grad():
        expected = embedder(tiny.images())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = embedder(tiny.images())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))
    assert (found * expected).sum(1).min() > 0.99


def test_a_half_precision_embedder_works_without_autocast():
    embedder = tiny.embedder("test_convnext", pooling="gem", normalization="layer", dim=8)
    expected = embedder(tiny.images())
    found = embedder.bfloat16()(tiny.images().bfloat16())
    assert found.dtype == torch.float32
    assert (found * expected).sum(1).min() > 0.98


@pytest.mark.parametrize(("backbone", "pooling"), [("test_resnet", "gem"), ("test_vit", "token")])
def test_the_forward_is_one_graph_for_torch_compile(backbone, pooling):
    embedder = tiny.embedder(backbone, pooling=pooling, normalization="layer", dim=8)
    compiled = torch.compile(embedder, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tiny.images()), embedder(tiny.images()))


def test_create_and_config_say_the_same():
    config = EmbedderConfig(backbone="test_resnet", pooling="gem", dim=8)
    assert Embedder(config).config == Embedder.create("test_resnet", pooling="gem", dim=8).config
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Embedder.create("test_resnet", widht=8)


@pytest.mark.parametrize(
    ("weight", "bias"), [(torch.zeros(4, 5), None), (torch.zeros(96), None), (torch.zeros(4, 96), torch.zeros(5))]
)
def test_a_projection_that_does_not_fit_is_refused(weight, bias):
    with pytest.raises(ValueError, match=r"give \[dim, 96\] and \[dim\]"):
        tiny.embedder().with_projection(weight, bias)


def test_a_projection_can_have_no_bias():
    made = tiny.embedder().with_projection(torch.eye(4, 96), None)
    assert made.config.bias is False
    assert made.projection.bias is None


def test_fingerprints_tell_embedders_apart():
    embedder, copy = tiny.embedder(dim=8), tiny.embedder(dim=8)
    assert embedder.fingerprint() == copy.fingerprint()
    copy.to(memory_format=torch.channels_last)
    assert embedder.fingerprint() == copy.fingerprint()
    with torch.no_grad():
        copy.projection.bias[0] += 1
    assert embedder.fingerprint() != copy.fingerprint()
    assert embedder.fingerprint() != tiny.embedder(dim=8, normalization="l2").fingerprint()


def test_timm_pools_in_float32_under_autocast_too():
    made = tiny.embedder()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        features = made.features(tiny.images())
    assert (features != features.bfloat16()).any()  # a mean in bf16 would be the same rounded
