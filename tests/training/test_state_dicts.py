"""States are those of the network and the optimizer themselves, as if Fabric were not there; sharded: test_engine.py."""

import pytest
import torch

from suprank.training.config import EngineConfig
from suprank.training.engine import build_fabric
from suprank.training.state_dicts import model_state, optimizer_state, set_model_state
from tests.models import tiny


@pytest.fixture(scope="module")
def fabric():
    return build_fabric(EngineConfig(accelerator="cpu"))


def trained(fabric, seed):
    embedder = tiny.embedder(dim=16, seed=seed)
    model = fabric.setup_module(embedder)
    optimizer = fabric.setup_optimizers(
        torch.optim.Adam([{"params": list(embedder.parameters()), "name": "all", "highest": 1}])
    )
    model(tiny.images()).square().sum().backward()
    for parameter in embedder.parameters():
        parameter.grad = torch.full_like(parameter, seed + 1.0)
    optimizer.step()
    return embedder, model, optimizer


def test_the_state_of_a_network_is_the_embedders_own(fabric):
    embedder, model, _ = trained(fabric, 0)
    found, expected = model_state(model), embedder.state_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert torch.equal(found[name], value)
        assert not found[name].requires_grad
        assert found[name].device.type == "cpu"


def test_the_state_of_an_optimizer_is_torchs_own(fabric):
    _, model, optimizer = trained(fabric, 0)
    found, expected = optimizer_state(model, optimizer), optimizer.optimizer.state_dict()
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    assert all(torch.equal(found["state"][0][key], value) for key, value in expected["state"][0].items())


def test_a_state_of_another_network_is_refused(fabric):
    _, model, _ = trained(fabric, 0)
    other = fabric.setup_module(tiny.embedder(dim=8))
    with pytest.raises(RuntimeError, match="projection.weight"):
        set_model_state(other, model_state(model))
