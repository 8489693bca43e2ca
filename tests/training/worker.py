"""Steps of training on random images: what every test here starts from, and one of several processes that take them together.

python -m tests.training.worker FOLDER WORLD:PORT... starts so many processes each, with the variables that torchrun sets;
`test_distributed.py` reads what they leave.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from torch.distributed.fsdp import FullyShardedDataParallel

from suprank.training import distributed, engine
from suprank.training.batches import TrainBatch
from suprank.training.config import EngineConfig, TrainConfig
from suprank.training.engine import build_fabric
from suprank.training.learner import Learner, NonFiniteError
from tests.models import tiny
from tests.together import run_together

CLASSES, IMAGES_OF_CLASS, BATCH, SIDE, STEPS = 12, 3, 12, 32, 3
FINE = torch.arange(CLASSES).repeat_interleave(IMAGES_OF_CLASS)
TREE = torch.stack([torch.arange(CLASSES), torch.arange(CLASSES) // 3], -1)
BATCHES: Any = SimpleNamespace(labels=TREE[FINE], levels=("fine", "coarse"))

RESNET = {"backbone": "test_resnet", "pretrained": False, "dim": 16, "freeze_batchnorm": True}
VIT = {"backbone": "test_vit", "pretrained": False, "dim": 16}
SGD = {"name": "sgd", "lr": 1e-3, "schedule": "constant"}


PAIRS = {"name": "roadmap", "decomposability": "pairs"}


def config(loss: str | dict[str, Any] = PAIRS, **tables: Any) -> TrainConfig:
    """A recipe of a tiny network on the CPU; tables that are given replace those here."""
    return TrainConfig.model_validate(
        {
            "data": {"manifest": "none"},
            "loss": {"name": loss} if isinstance(loss, str) else loss,
            "images": {"size": SIDE},
            "model": RESNET,
            "batch": {"size": BATCH, "images_per_class": 2},
            "optimizer": SGD,
            "run": {"epochs": 4},
            "engine": {"accelerator": "cpu"},
            **tables,
        }
    )


def batch(number: int, *, rank: int = 0, world: int = 1, size: int = BATCH, side: int = SIDE) -> TrainBatch:
    """This process's part of a batch of half the classes, two images each: some come again in the next ones."""
    generator = torch.Generator().manual_seed(100 + number)
    classes = torch.randperm(CLASSES, generator=generator).repeat(-(-size // (2 * CLASSES)))[: size // 2]
    chosen = torch.stack([torch.randperm(IMAGES_OF_CLASS, generator=generator)[:2] for _ in classes])
    ids = (classes[:, None] * IMAGES_OF_CLASS + chosen).flatten()
    # An image is noise around the colors of its class, so that there is something to learn.
    colors = torch.rand(CLASSES, 3, 1, 1, generator=torch.Generator().manual_seed(7)) * 155
    images = colors[FINE[ids]] + torch.rand(size, 3, side, side, generator=generator) * 100
    own = slice(rank * size // world, (rank + 1) * size // world)
    return TrainBatch(images.byte()[own], BATCHES.labels[ids[own]], ids[own], 0)


def learner(settings: TrainConfig, fabric: Any = None) -> Learner:
    return Learner(settings, fabric or build_fabric(settings.engine), BATCHES)


def steps(learning: Learner, count: int = STEPS, *, first: int = 0, per_epoch: int = 2) -> list[dict[str, float]]:
    """The values of some steps: the k-th takes batches k·n to k·n + n − 1, n of them accumulated; two steps are an epoch."""
    together = learning.config.batch.accumulate
    rank, world, size = learning.fabric.global_rank, learning.fabric.world_size, learning.config.batch.size
    values = []
    for number in range(first, first + count):
        group = [batch(number * together + place, rank=rank, world=world, size=size) for place in range(together)]
        epoch, done = divmod(number, per_epoch)
        values.append(learning.step(group, number, epoch, done * together, per_epoch * together))
    return values


def learned(learning: Learner) -> dict[str, torch.Tensor]:
    """A copy of everything that training changes, but for the optimizers."""
    state = learning.state_dict()
    parts = {f"{part} {name}": value for part in ("model", "loss") for name, value in state[part].items()}
    return {name: value.clone() for name, value in parts.items()}


CASES = {
    "in the batch": config(PAIRS),
    "a ring of memory": config(PAIRS, memory={"size": 20}),
    "a memory with a place for each image": config(PAIRS, memory={"size": "all", "per_item": True}),
    "a memory from the second epoch on": config(PAIRS, memory={"size": 20, "start_epoch": 1}),
    "proxies": config("happier", proxies=SGD),
    "proxies and memory": config("happier", proxies=SGD, memory={"size": 30}),
    "mixup": config({"name": "sup-recall", "mixup": True}),
    "in chunks": config(PAIRS, batch={"size": BATCH, "images_per_class": 2, "chunk": 2}),
    "in uneven chunks": config(PAIRS, batch={"size": BATCH, "images_per_class": 2, "chunk": 3}),
    "accumulated": config("happier", proxies=SGD, batch={"size": BATCH, "images_per_class": 2, "accumulate": 2}),
    "accumulated in chunks": config(PAIRS, batch={"size": BATCH, "images_per_class": 2, "accumulate": 2, "chunk": 3}),
    "frozen at first": config("happier", proxies=SGD, run={"epochs": 4, "frozen_epochs": 1}),
    "clipped": config(PAIRS, run={"epochs": 4, "clip_grad_norm": 0.5}),
    "a transformer": config(PAIRS, model=VIT),
}


FEW = ("in the batch", "proxies and memory", "accumulated in chunks", "mixup")


def cases(world: int) -> dict[str, TrainConfig]:
    """Two processes try all of them; three, whose parts are as uneven as the batch allows, some."""
    return CASES if world == 2 else {name: CASES[name] for name in FEW}


def alone() -> dict[str, Any]:
    """What one process finds with the whole batch."""
    return {name: _trained(settings, None) for name, settings in CASES.items()}


def _trained(settings: TrainConfig, fabric: Any) -> dict[str, Any]:
    learning = learner(settings, fabric)
    before = learned(learning)
    return {"before": before, "values": steps(learning), "after": learned(learning)}


def refusals(fabric: Any) -> dict[str, str]:
    """What goes wrong in one process must stop all of them, and leave none waiting."""
    last = fabric.world_size - 1
    output = {}
    for name, settings in {"in the batch": CASES["in the batch"], "in chunks": CASES["in chunks"]}.items():
        images = learner(settings, fabric)
        if fabric.global_rank == last:
            images.normalize = lambda images: torch.full(images.shape, torch.nan)  # type: ignore[assignment]
        gradient = learner(settings, fabric)
        if fabric.global_rank == last:
            gradient.embedder.projection.weight.register_hook(lambda found: found * torch.inf)
        for place, learning in (("images", images), ("gradient", gradient)):
            before = learned(learning)
            try:
                steps(learning, 1)
            except NonFiniteError as error:
                output[f"{place}, {name}"] = str(error)
            after = learned(learning)
            assert all(torch.equal(before[key], after[key]) for key in before)
    return output


def exchanged(fabric: Any) -> dict[str, Any]:
    """What processes that have different things make of them."""
    own = torch.arange(4).view(2, 2) + 10 * fabric.global_rank
    mean, first = [own + 0.5, torch.full((3,), float(fabric.global_rank))], own.clone()
    distributed.average(mean)
    distributed.broadcast_from_first([first])
    return {
        "mean": mean,
        "first": first,
        "agreed": distributed.all_max([int(fabric.global_rank == 1), 0, 5 * fabric.global_rank], fabric.device),
        "world": distributed.world_size(),
    }


def evaluated(fabric: Any) -> dict[str, Any]:
    """Statistics of BatchNorm differ between processes until they evaluate; then each embeds as many batches as it likes."""
    learning = learner(config(PAIRS, model={**RESNET, "freeze_batchnorm": False}), fabric)
    steps(learning, 2)
    own = {name: value.clone() for name, value in learning.embedder.named_buffers()}
    learning.eval()
    images = batch(50).images
    for _ in range(fabric.global_rank):  # the first process has none
        learning.forward(images)
    fabric.barrier()
    shared = {name: value.clone() for name, value in learning.embedder.named_buffers()}
    return {"own": own, "shared": shared, "embeddings": learning.forward(images), "after": learned(learning)}


def process(rank: int, world: int, port: int, folder: Path) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    fabric = build_fabric(EngineConfig(accelerator="cpu"))
    found = {
        "world": fabric.world_size,
        "trained": {name: _trained(settings, fabric) for name, settings in cases(world).items()},
        "exchanged": exchanged(fabric),
    }
    if world == 2:
        found |= {"refusals": refusals(fabric), "sharded": sharded(), "evaluated": evaluated(fabric)}
    torch.save(found, folder / f"{world}.{rank}.pt")
    fabric.barrier()
    torch.distributed.destroy_process_group()


def sharded() -> dict[str, Any]:
    """Networks whose weights are spread over the processes as `engine` says (but not by Fabric, which does so on GPUs only)."""
    found = {}
    engine.MIN_SHARDED_PARAMETERS = 20_000
    for name, settings in SHARDED_NETWORKS.items():
        network = FullyShardedDataParallel(
            tiny.embedder(name, **settings).train(),
            auto_wrap_policy=engine._is_own_shard,
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )
        parts = sum(isinstance(part, FullyShardedDataParallel) for part in network.modules())
        held = sum(parameter.numel() for parameter in network.parameters())
        found[name] = {"parts": parts, "held": held, "embeddings": embeddings_around_a_step(network)}
    return found


def embeddings_around_a_step(network: torch.nn.Module) -> torch.Tensor:
    """Embeddings of the same images before and after a step on them."""
    images = tiny.images(4, SIDE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    before = network(images)
    before[:, :4].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        return torch.stack([before.detach(), network(images)])


SHARDED_NETWORKS: dict[str, dict[str, Any]] = {
    "test_resnet": {"dim": 16, "freeze_batchnorm": True},
    "test_convnext": {"dim": 16},
    "test_vit": {"dim": 16, "image_size": (SIDE, SIDE)},
    "test_vit3": {"dim": 16, "image_size": (SIDE, SIDE)},
}


def command_line() -> None:
    """Processes that compute into a folder: the arguments are its path, and WORLD:PORT for each number of processes."""
    worlds = [tuple(map(int, given.split(":"))) for given in sys.argv[2:]]
    sys.exit(run_together(process, [(rank, *given, Path(sys.argv[1])) for given in worlds for rank in range(given[0])]))
