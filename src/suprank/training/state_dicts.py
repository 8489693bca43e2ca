"""State dicts of networks and optimizers: complete and on the CPU, even if the weights are sharded over devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.fsdp import FullyShardedDataParallel

from suprank.system import torchvision_operators

torchvision_operators.declare()  # lightning imports torchvision

from lightning.fabric.wrappers import _unwrap_objects  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_GATHER_TO_CPU = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)
_SCATTER = sharded.StateDictOptions(full_state_dict=True)


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the network, with the names it has without Fabric's wrapper."""
    if _is_sharded(model):
        return dict(sharded.get_model_state_dict(_forward_module(model), options=_GATHER_TO_CPU))  # type: ignore[arg-type]
    return {name: value.detach().cpu() for name, value in _unwrapped(model).state_dict().items()}


def set_model_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a state that `model_state` returned."""
    if _is_sharded(model):
        sharded.set_model_state_dict(_forward_module(model), dict(state), options=_SCATTER)
    else:
        _unwrapped(model).load_state_dict(state)


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The state dict of an optimizer of this network."""
    if _is_sharded(model):
        return sharded.get_optimizer_state_dict(_forward_module(model), _unwrap_objects(optimizer), options=_GATHER_TO_CPU)
    return _to_cpu(_unwrap_objects(optimizer).state_dict())


def set_optimizer_state(model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a state that `optimizer_state` returned."""
    if _is_sharded(model):
        sharded.set_optimizer_state_dict(_forward_module(model), _unwrap_objects(optimizer), state, options=_SCATTER)
    else:
        _unwrap_objects(optimizer).load_state_dict(state)


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def _forward_module(model: Any) -> nn.Module:
    return model._forward_module


def _unwrapped(model: Any) -> nn.Module:
    """The network without Fabric's wrapper and DistributedDataParallel's, which adds "module." to every name."""
    return model.module


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _to_cpu(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_cpu(entry) for entry in value)
    return value
