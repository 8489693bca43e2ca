"""One of several processes that gather embeddings: `python -m tests.losses.worker FOLDER WORLD...`, as test_gather.py does."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.nn.functional
from pytorch_metric_learning.losses import MultiSimilarityLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from suprank.losses import BlackBoxAP, SupAP, gather, happier, roadmap
from tests.together import run_together

PAGE = Path(__file__).parents[2] / "docs" / "own-loops.md"
ROWS, INPUTS, DIM = 12, 6, 4
SPECIES = torch.arange(ROWS) // 2
TREE = torch.stack([SPECIES, SPECIES // 3], 1)
PARTS = {2: [(6, 6), (9, 3), (0, 12), (12, 0)], 3: [(4, 4, 4), (2, 7, 3), (5, 0, 7), (0, 0, 12)]}
LOSSES = {
    "SupAP": (SupAP, SPECIES),
    "roadmap": (lambda: roadmap(num_classes=6, embedding_size=DIM), SPECIES),
    "happier": (lambda: happier(num_classes=6, embedding_size=DIM), TREE),
}


def inputs() -> Tensor:
    return torch.randn(ROWS, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, DIM)).double()


def loss_module(name: str) -> nn.Module:
    torch.manual_seed(2)
    return LOSSES[name][0]().double()


def parameter_gradients(*modules: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for module in modules for parameter in module.parameters()]


def alone(name: str) -> dict[str, Any]:
    """The loss and the gradients of one process that has the whole batch."""
    model, criterion = network(), loss_module(name)
    loss = criterion(model(inputs()), LOSSES[name][1])
    loss.backward()
    return {"loss": loss.detach(), "gradients": parameter_gradients(model, criterion)}


def own_rows(values: Tensor, counts: tuple[int, ...], rank: int) -> Tensor:
    return values.split(list(counts))[rank]


def together(
    name: str, counts: tuple[int, ...], rank: int, *, equal_sizes: bool = False, wrapped: bool = False
) -> dict[str, Any]:
    """The same by a process with a part of the batch, with DDP; `wrapped`: by a loss that gathers."""
    model, criterion = DistributedDataParallel(network()), loss_module(name)
    modules = [model, DistributedDataParallel(criterion) if list(criterion.parameters()) else criterion]
    own, labels = (own_rows(values, counts, rank) for values in (inputs(), LOSSES[name][1]))
    if wrapped:
        loss = gather(modules[1], equal_sizes=equal_sizes)(model(own), labels)
    else:
        loss = modules[1](*gather(model(own), labels, equal_sizes=equal_sizes))
    loss.backward()
    return {"loss": loss.detach(), "gradients": parameter_gradients(*modules)}


def own_queries(rank: int, world: int) -> dict[str, Any]:
    """Own queries against the items of all processes, by the lines of the documentation."""
    (lines,) = re.findall(r"^```\{code-block\} python\n(own = .*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    counts, model = (ROWS // world,) * world, DistributedDataParallel(network())
    images, labels = own_rows(inputs(), counts, rank), own_rows(SPECIES, counts, rank)
    given = {"torch": torch, "gather": gather, "model": model, "criterion": SupAP(), "rank": rank}
    exec(lines, given | (found := {"images": images, "labels": labels}), found)
    found["loss"].backward()
    return {"loss": found["loss"].detach(), "gradients": parameter_gradients(model)}


def other_libraries(rank: int, world: int) -> dict[str, list[Tensor]]:
    """Gradients of parameters by pytorch-metric-learning's wrapper, and by `gather` in its place."""
    counts = (ROWS // world,) * world
    own, labels = own_rows(inputs(), counts, rank), own_rows(SPECIES, counts, rank)
    found = {}
    for name in ("wrapper", "gather", "torch"):
        model = DistributedDataParallel(network())
        embeddings = model(own)
        if name == "wrapper":
            DistributedLossWrapper(MultiSimilarityLoss())(embeddings, labels).backward()
        elif name == "gather":
            MultiSimilarityLoss()(*gather(embeddings, labels)).backward()
        else:
            everything = torch.cat(torch.distributed.nn.functional.all_gather(embeddings))
            MultiSimilarityLoss()(everything, gather(labels)).backward()
        found[name] = parameter_gradients(model)
    return found


def different_losses(rank: int, world: int) -> dict[str, Tensor]:
    """Processes whose losses differ: each weighs the rows by its own number."""
    own = torch.full((2, 1), 10.0 * rank, requires_grad=True)
    (gather(own) * torch.arange(2.0 * world)[:, None] * (rank + 1)).sum().backward()
    return {"gradient": own.grad}


def values(rank: int, world: int) -> dict[str, Any]:
    """Tensors of all kinds, with as many rows as the process has."""
    rows = rank + 1
    number = torch.arange(rows) + 10 * rank
    found = {str(dtype): gather(number.to(dtype)) for dtype in (torch.int16, torch.int32, torch.int64, torch.uint8)}
    found |= {str(dtype): gather(number.to(dtype)) for dtype in (torch.float16, torch.bfloat16, torch.float64)}
    found["bool"] = gather(number % 2 == 0)
    found["transposed"] = gather(torch.stack([number, -number]).T)
    found["three dimensions"] = gather(number[:, None, None].expand(rows, 2, 3))
    found["no rows"] = gather(torch.empty(0, 3))
    found["no columns"] = gather(torch.empty(rows, 0))
    half = number[:, None].to(torch.bfloat16).requires_grad_()
    gathered = gather(half)
    (3 * gathered.float()).sum().backward()
    found["gradient in 16 bits"] = half.grad
    with torch.no_grad():
        found["requires_grad"] = [gather(half).requires_grad, gather(number).requires_grad, gathered.requires_grad]
    last_two = torch.distributed.new_group([world - 2, world - 1])
    if rank >= world - 2:
        value = number.double().requires_grad_()
        gathered = gather(value, group=last_two)
        gathered.sum().backward()
        found["group"] = gathered.detach(), value.grad
    return found


def refusals(rank: int, world: int) -> dict[str, str]:
    """Arguments that differ between processes: the same error in all of them, and none waits."""
    last = rank == world - 1
    arguments = {
        "dimension": (torch.zeros(2, 5 if last else 4),),
        "dtype": (torch.zeros(2), torch.zeros(2, dtype=torch.int32 if last else torch.int64)),
        "gradient": (torch.zeros(0 if last else 2, 4, requires_grad=not last),),
    }
    found = {}
    for name, tensors in arguments.items():
        try:
            gather(*tensors)
        except ValueError as error:
            found[name] = str(error)
    return found


def random_losses(counts: tuple[int, ...], rank: int) -> bool:
    """Whether copies stay the same if the losses of the processes draw random numbers."""
    model = DistributedDataParallel(network())
    torch.manual_seed(rank)
    BlackBoxAP()(*gather(model(own_rows(inputs(), counts, rank)), own_rows(SPECIES, counts, rank))).backward()
    gradient = torch.cat([one.flatten() for one in parameter_gradients(model)])
    everyone = gather(gradient[None])
    return bool((everyone == everyone[0]).all()) and bool(gradient.abs().sum() > 0)


def process(rank: int, world: int, folder: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{world}.store", rank=rank, world_size=world)
    found: dict[str, Any] = {
        "values": values(rank, world),
        "refusals": refusals(rank, world),
        "different losses": different_losses(rank, world),
        "own queries": own_queries(rank, world),
        "random losses": random_losses(PARTS[world][1], rank),
        "equal sizes": together("SupAP", PARTS[world][0], rank, equal_sizes=True),
        "wrapped": together("roadmap", PARTS[world][1], rank, wrapped=True),
        "trained": {(name, counts): together(name, counts, rank) for name in LOSSES for counts in PARTS[world]},
    }
    if world == 2:
        found["other libraries"] = other_libraries(rank, world)
    torch.save(found, folder / f"{world}.{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def command_line() -> None:
    """Processes that compute into a folder: the arguments are its path, and numbers of processes."""
    folder, *worlds = sys.argv[1:]
    sys.exit(run_together(process, [(rank, world, Path(folder)) for world in map(int, worlds) for rank in range(world)]))
