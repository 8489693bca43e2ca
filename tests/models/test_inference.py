from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch

from suprank.models import Moments, embed, multiscale
from tests.models import tiny


class Batch(NamedTuple):
    images: torch.Tensor
    indices: torch.Tensor


def batches(count=7, size=4):
    images = tiny.images(count)
    return [Batch(images[rows], rows) for rows in torch.arange(count).flip(0).split(size)]


def test_every_image_comes_with_its_own_embedding():
    embedder = tiny.embedder(dim=8).train()
    expected = tiny.embedder(dim=8)(tiny.images(7)).detach().numpy()
    found = np.zeros((7, 8), np.float32)
    for indices, embeddings in embed(embedder, batches()):
        assert embeddings.dtype == np.float32
        found[indices] = embeddings
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_embedder_is_in_evaluation_mode_meanwhile_and_as_before_afterwards():
    embedder = tiny.embedder().train()
    stream = embed(embedder, batches())
    next(stream)
    assert not embedder.training
    assert torch.is_grad_enabled()  # inference mode does not reach the caller between batches
    assert not torch.is_inference_mode_enabled()
    stream.close()
    assert embedder.training
    list(embed(embedder.eval(), batches()))
    assert not embedder.training


def test_features_can_be_had_in_place_of_embeddings():
    embedder, moments = tiny.embedder(dim=8), Moments.zeros(96)
    for _, features in embed(embedder, batches(), forward=embedder.features):
        moments.update(features)
    np.testing.assert_allclose(moments.mean, embedder.features(tiny.images(7)).detach().numpy().mean(0), atol=1e-6)


def test_a_batch_without_images_gives_nothing():
    empty = Batch(torch.zeros(0, 3, 64, 64), torch.zeros(0, dtype=torch.int64))
    assert [len(rows) for rows, _ in embed(tiny.embedder(), [empty, *batches(), empty])] == [4, 3]


def test_half_precision_is_close_and_comes_as_float32():
    embedder = tiny.embedder(dim=8)
    for (_, found), (_, expected) in zip(embed(embedder, batches(), precision="bf16"), embed(embedder, batches()), strict=True):
        assert found.dtype == np.float32
        assert not np.array_equal(found, expected)
        assert (found * expected).sum(1).min() > 0.99


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision='fp8' must be 'fp32', 'bf16' or 'fp16', or None"):
        next(embed(tiny.embedder(), batches(), precision="fp8"))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_gpu_gives_the_same_embeddings(precision):
    expected = np.concatenate([rows for _, rows in embed(tiny.embedder(pooling="gem", dim=8), batches())])
    on_gpu = embed(tiny.embedder(pooling="gem", dim=8), batches(), device="cuda", precision=precision)
    found = np.concatenate([rows for _, rows in on_gpu])
    assert (found * expected).sum(1).min() > (0.9999 if precision == "fp32" else 0.99)


def test_a_model_embeds_in_the_precision_it_was_saved_with():
    half = tiny.embedder(dim=8, precision="bf16")
    rows = [np.concatenate([rows for _, rows in embed(half, batches(), precision=one)]) for one in (None, "bf16", "fp32")]
    assert (rows[0] == rows[1]).all()
    assert (rows[0] != rows[2]).any()


def test_several_scales_are_averaged_after_each_has_length_1():
    embedder, images = tiny.embedder(dim=8), tiny.images()
    half = torch.nn.functional.interpolate(images, (32, 32), mode="bilinear", antialias=True)
    expected = (embedder(images) + embedder(half)) / 2
    expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(multiscale(embedder, images, (1, 0.5)), expected)


def test_one_scale_of_1_is_the_embedder_itself():
    embedder = tiny.embedder(dim=8)
    torch.testing.assert_close(multiscale(embedder, tiny.images(), (1.0,)), embedder(tiny.images()))


def test_the_sides_stay_multiples_of_a_patch():
    embedder = tiny.embedder("test_vit", image_size=64)
    seen = []
    embedder.backbone.net.patch_embed.register_forward_pre_hook(lambda module, given: seen.append(tuple(given[0].shape[-2:])))
    embeddings = multiscale(embedder, torch.zeros(1, 3, 64, 96))
    assert seen == [(64, 96), (48, 64), (32, 48)]
    assert embeddings.norm().item() == pytest.approx(1)
    multiscale(embedder, torch.zeros(1, 3, 16, 16), (0.1,))
    assert seen[-1] == (16, 16)


def test_several_scales_stream_like_one():
    embedder = tiny.embedder(dim=8)
    streamed = [rows for _, rows in embed(embedder, batches(), forward=partial(multiscale, embedder))]
    expected = multiscale(embedder, tiny.images(7).flip(0)).detach().numpy()
    np.testing.assert_allclose(np.concatenate(streamed), expected, atol=1e-6)


@pytest.mark.parametrize("scales", [(), (1, 0), (-1,)])
def test_scales_are_above_0(scales):
    with pytest.raises(ValueError, match="must be one or more numbers above 0"):
        multiscale(tiny.embedder(), tiny.images(), scales)
