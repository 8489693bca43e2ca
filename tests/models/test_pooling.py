from itertools import pairwise

import numpy as np
import pytest
import torch

from suprank.models.config import EmbedderConfig
from suprank.models.pooling import POOLINGS, AverageAndMaximum, GeM

PLACES = torch.tensor([[[1.0, 4.0], [2.0, 0.5], [3.0, 0.0]]])  # one image, three places, two channels


def test_gem_of_1_2_and_3_is_the_cube_root_of_12():
    assert GeM(3.0)(PLACES)[0, 0].item() == pytest.approx(((1 + 8 + 27) / 3) ** (1 / 3))


def test_gem_with_power_1_is_the_mean_and_with_a_large_power_nears_the_maximum():
    torch.testing.assert_close(GeM(1.0)(PLACES), PLACES.mean(1))
    torch.testing.assert_close(GeM(1000.0)(PLACES), PLACES.amax(1), rtol=2e-3, atol=0)


def test_gem_grows_with_its_power():
    values = torch.rand(4, 9, 5, generator=torch.Generator().manual_seed(0))
    pooled = [GeM(power)(values) for power in (0.5, 1.0, 3.0, 10.0)]
    assert all((low <= high + 1e-6).all() for low, high in pairwise(pooled))


def test_negative_values_count_as_epsilon():
    places = torch.tensor([[[-5.0], [2.0]]])
    assert GeM(3.0)(places).item() == pytest.approx(((1e-18 + 8) / 2) ** (1 / 3))
    assert GeM(3.0)(-torch.ones(1, 4, 2)).flatten().tolist() == pytest.approx([1e-6, 1e-6])


def test_gem_has_the_gradient_of_its_formula_in_float64():
    torch.manual_seed(0)
    values, p = (torch.rand(2, 5, 3) + 0.1).requires_grad_(), torch.tensor(3.0, requires_grad=True)
    expected = values.pow(p).mean(1).pow(1 / p)
    found = GeM(3.0)
    wanted = torch.autograd.grad(expected.sum(), (values, p))
    given = torch.autograd.grad(found(values).sum(), (values, found.p))
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("power", [3.0, 50.0])
def test_gem_does_not_overflow_in_half_precision_or_with_large_powers(power):
    pooled = GeM(power)(torch.full((1, 4, 2), 1000.0, dtype=torch.float16))
    assert pooled.dtype == torch.float32
    assert pooled.flatten().tolist() == pytest.approx([1000.0, 1000.0], rel=1e-5)


def test_average_and_maximum_are_added():
    np.testing.assert_allclose(AverageAndMaximum()(PLACES), [[2 + 3, 1.5 + 4]])


@pytest.mark.parametrize(("pooling", "learns"), [("gem", True), ("gem-fixed", False)])
def test_only_the_learnable_gem_has_a_parameter_and_both_save_their_power(pooling, learns):
    made = POOLINGS[pooling](EmbedderConfig(backbone="x", gem_power=4.0))
    assert len(list(made.parameters())) == learns
    assert made.state_dict()["p"].item() == 4.0


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_order_of_places_is_irrelevant(pooling):
    made = POOLINGS[pooling](EmbedderConfig(backbone="x"))
    torch.testing.assert_close(made(PLACES), made(PLACES.flip(1)))
