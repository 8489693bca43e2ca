"""Heads at the principal directions."""

import numpy as np
import pytest

from suprank.adaptation.principal_start import principal_heads
from suprank.models import HeadConfig, Moments, pca_projection
from tests.adaptation.collections import clustered


def test_an_uncentered_start_as_wide_as_the_embeddings_keeps_every_cosine():
    embeddings, _ = clustered()
    embeddings[:, 5] = 0  # a direction without variance is no obstacle
    outputs = principal_heads(embeddings, HeadConfig(in_features=12, out_features=12))["uncentered"].transform(embeddings)
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    np.testing.assert_allclose(outputs @ outputs.T, unit @ unit.T, atol=1e-5)


def test_a_centered_start_is_a_pca_up_to_signs():
    embeddings, _ = clustered()
    head = principal_heads(embeddings, HeadConfig(in_features=12, out_features=5, normalization="none"))["centered"]
    moments = Moments.zeros(12)
    moments.update(embeddings)
    weight, bias = pca_projection(moments, 5)
    signs = np.sign((head.linear.weight * weight).detach().numpy().sum(1))
    np.testing.assert_allclose(head.linear.weight.detach().numpy() * signs[:, None], weight, atol=1e-5)
    np.testing.assert_allclose(head.linear.bias.detach().numpy() * signs, bias, atol=1e-5)


@pytest.mark.parametrize("normalization", ["none", "layer", "l2"])
def test_directions_are_those_of_what_the_head_normalizes(normalization):
    embeddings, _ = clustered()
    config = HeadConfig(in_features=12, out_features=3, normalization=normalization)
    whole = principal_heads(embeddings, config)["centered"]
    scaled = principal_heads(embeddings * np.random.default_rng(0).uniform(1, 9, (len(embeddings), 1)), config)["centered"]
    first, second = (head.linear.weight.detach().abs().numpy() for head in (whole, scaled))
    same = np.allclose(first, second, atol=1e-3)
    assert same == (normalization != "none")
