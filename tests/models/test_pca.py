import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from suprank.models import Moments, pca_projection
from tests.models import tiny


def random_features(count=200, width=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)) @ rng.normal(size=(width, width)) + 5


def count_moments(features, batch=33):
    moments = Moments.zeros(features.shape[1])
    for start in range(0, len(features), batch):
        moments.update(features[start : start + batch])
    return moments


def test_points_on_a_line_are_projected_onto_it():
    along = np.array([-2.0, -1.0, 0.0, 3.0])
    points = along[:, None] * np.array([0.6, 0.8]) + np.array([10.0, 20.0])
    weight, bias = pca_projection(count_moments(points), 1)
    np.testing.assert_allclose(weight.numpy(), [[0.6, 0.8]], atol=1e-6)
    assert bias.item() == pytest.approx(-(0.6 * 10 + 0.8 * 20))
    whitened, _ = pca_projection(count_moments(points), 1, whiten=True)
    np.testing.assert_allclose(whitened.numpy(), weight.numpy() / along.std(ddof=1), rtol=1e-5)


@pytest.mark.parametrize("whiten", [False, True])
def test_it_is_scikit_learns_pca_up_to_signs(whiten):
    features = random_features()
    expected = PCA(n_components=5, whiten=whiten, svd_solver="full").fit_transform(features)
    weight, bias = pca_projection(count_moments(features), 5, whiten=whiten)
    assert (weight.gather(1, weight.abs().argmax(1, keepdim=True)) > 0).all()
    found = features @ weight.numpy().T + bias.numpy()
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found * signs, expected, atol=2e-4)


def test_whitened_features_have_unit_covariance():
    features = random_features()
    weight, bias = pca_projection(count_moments(features), 12, whiten=True)
    np.testing.assert_allclose(np.cov(features @ weight.numpy().T + bias.numpy(), rowvar=False), np.eye(12), atol=1e-4)


def test_batches_and_parts_add_up_to_the_whole():
    features = random_features(101)
    whole, batched = count_moments(features, 101), count_moments(features, 7)
    parts = [count_moments(features[:60]), Moments.zeros(12), count_moments(features[60:])]
    merged = Moments.merge(parts)
    assert [part.count for part in parts] == [60, 0, 41]
    for moments in (whole, batched, merged):
        assert moments.count == 101
        np.testing.assert_allclose(moments.mean, features.mean(0))
        np.testing.assert_allclose(moments.covariance(), np.cov(features, rowvar=False))


def test_a_mean_far_from_zero_costs_no_digits():
    features = random_features(500) * 1e-3
    moments = Moments.zeros(12)
    for block in np.split(features + 1e6, 10):
        moments.update(block)
    # what is left is the rounding of the features themselves: 1e6 has a spacing of 1e-10 in float64
    np.testing.assert_allclose(moments.covariance(), np.cov(features, rowvar=False), rtol=1e-6, atol=1e-12)


def test_more_dimensions_than_the_features_vary_in_are_refused():
    with pytest.raises(
        ValueError, match=r"dim=12 is more than the 4 directions in which 5 features of width 12 vary.*at most 4"
    ):
        pca_projection(count_moments(random_features(5)), 12)
    flat = random_features()
    flat[:, 3] = 1.0
    with pytest.raises(ValueError, match="the 11 directions"):
        pca_projection(count_moments(flat), 12)


def test_after_layer_norm_one_direction_is_missing():
    features = torch.nn.functional.layer_norm(torch.from_numpy(random_features()).float(), (12,))
    moments = Moments.zeros(12)
    moments.update(features)
    with pytest.raises(ValueError, match="the 11 directions"):
        pca_projection(moments, 12)
    assert pca_projection(moments, 11)[0].shape == (11, 12)


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        (np.zeros((2, 3)), r"\[2, 3\]; give \[batch, 12\]"),
        (np.zeros(12), r"\[12\]"),
        (np.full((1, 12), np.nan), "NaN"),
    ],
)
def test_features_that_cannot_be_counted(features, complaint):
    with pytest.raises(ValueError, match=complaint):
        Moments.zeros(12).update(features)


def test_no_covariance_of_one_vector():
    moments = Moments.zeros(12)
    moments.update(np.zeros((0, 12)))
    moments.update(np.zeros((1, 12)))
    with pytest.raises(ValueError, match="two vectors or more, and 1"):
        moments.covariance()
    with pytest.raises(ValueError, match="dim=0"):
        pca_projection(count_moments(random_features()), 0)
    with pytest.raises(ValueError, match="width 12 and 3"):
        Moments.merge([Moments.zeros(12), Moments.zeros(3)])


def test_an_embedder_takes_the_projection():
    embedder = tiny.embedder(normalization="l2")
    moments = Moments.zeros(embedder.features_dim)
    images = tiny.images(24)
    with torch.no_grad():
        features = embedder.features(images)
        moments.update(features)
        made = embedder.with_projection(*pca_projection(moments, 6, whiten=True))
        weight, bias = pca_projection(moments, 6, whiten=True)
        expected = torch.nn.functional.normalize(features @ weight.T + bias)
        torch.testing.assert_close(made(images), expected)
    assert (made.dim, made.config.dim, made.config.bias) == (6, 6, True)
    assert (embedder.dim, embedder.config.dim) == (96, None)
