"""Lightning Fabric, set up as the recipe says: devices, processes, precision."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suprank.models.backbone import Backbone
from suprank.system import torchvision_operators
from suprank.system.child_processes import safe_environment
from suprank.system.cpu_features import avoid_amx

torchvision_operators.declare()  # lightning imports torchvision

from lightning.fabric import Fabric  # noqa: E402
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment  # noqa: E402
from lightning.fabric.strategies.fsdp import FSDPStrategy  # noqa: E402

if TYPE_CHECKING:
    from suprank.training.config import EngineConfig

PRECISION: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
MIN_SHARDED_PARAMETERS = 10**6  # smaller parts of a network are not worth a communication of their own


def build_fabric(config: EngineConfig) -> Fabric:
    """Fabric, with its processes launched: those that torchrun or SLURM started, or one for each of `devices`."""
    accelerator = config.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if accelerator == "cuda" and not torch.cuda.is_available():
        raise ValueError("engine.accelerator='cuda', but torch finds no CUDA GPU here; use 'cpu' or 'auto'.")
    devices, nodes = launched_processes() or (config.devices, config.nodes)
    if accelerator == "cuda" and devices > torch.cuda.device_count():
        raise ValueError(
            f"{devices} devices are requested, but this machine has {torch.cuda.device_count()} GPUs; set engine.devices."
        )
    if config.strategy == "fsdp" and accelerator != "cuda":
        raise ValueError("engine.strategy='fsdp' shards a network over GPUs, and this runs on the CPU; use 'auto'.")
    if config.precision == "fp16" and accelerator == "cpu":
        raise ValueError("engine.precision='fp16' is for GPUs; on a CPU use 'fp32', or 'bf16'.")
    if config.sync_batchnorm and accelerator == "cpu" and devices * nodes > 1:
        raise ValueError("engine.sync_batchnorm=true is for GPUs; on CPUs freeze BatchNorm (model.freeze_batchnorm=true).")
    if config.precision == "bf16" and accelerator == "cpu":
        avoid_amx()
    strategy: Any = config.strategy
    if strategy == "fsdp":
        strategy = _fsdp_strategy()
    elif strategy == "auto" and devices * nodes > 1:
        strategy = "ddp"
    for name in ("lightning.fabric", "lightning.pytorch"):  # they announce seeds and processes
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        # It asks why srun, or all the GPUs, are not used: because the recipe says so.
        warnings.filterwarnings("ignore", module="lightning.fabric")
        fabric = Fabric(
            accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy, precision=PRECISION[config.precision]
        )
        # Lightning starts this program again for each device. `python script.py` needs its folder on the path.
        main = getattr(sys.modules["__main__"], "__spec__", None)
        with safe_environment() if main is not None and main.name.startswith("suprank.") else nullcontext():
            fabric.launch()
    return fabric


def launched_processes() -> tuple[int, int] | None:
    """The number of processes on each machine and of machines, if torchrun or srun started them; else None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        local, total = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
        return local, total // local
    if SLURMEnvironment.detect() and int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", os.environ.get("SLURM_NNODES", "1")))
        return int(os.environ["SLURM_NTASKS"]) // nodes, nodes
    return None


def _fsdp_strategy() -> FSDPStrategy:
    from torch.distributed.fsdp import MixedPrecision

    return FSDPStrategy(
        auto_wrap_policy=_is_own_shard,
        # Autocast is enough. FSDP's own mixed precision would round BatchNorm's statistics and sum gradients in 16 bits.
        mixed_precision=MixedPrecision(),
    )


def _is_own_shard(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    """FSDP's wrap policy: whether to look into a module (`recurse`), and whether to make it a shard of its own.

    A shard has its weights only while its `forward` runs. So a module of which we or timm call other methods cannot be one, nor
    can a single layer, whose weight some networks use without calling it.
    """
    if nonwrapped_numel < MIN_SHARDED_PARAMETERS or recurse:
        return nonwrapped_numel >= MIN_SHARDED_PARAMETERS
    has_other_methods = isinstance(module, Backbone | nn.ModuleList | nn.ModuleDict) or hasattr(module, "forward_features")
    return any(True for _ in module.children()) and not has_other_methods
