"""One of several processes that evaluate together.

python -m tests.evaluation.worker FOLDER WORLD... starts so many processes each; `test_distributed.py` reads what they leave.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed
from torch.utils.data import DistributedSampler

from suprank.evaluation import Report, evaluate
from suprank.evaluation.gap import decomposability_gap
from suprank.evaluation.torchmetrics_adapter import RetrievalMetrics
from tests.together import run_together

COUNT = 151
SMALL = 150_000  # bytes: several blocks of several queries
TINY = 40_000  # bytes: the gallery does not fit either
NAMES = ("species", "genus", "family")


def data(count: int = COUNT) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings with exact copies among them, and labels of three levels, some of them missing."""
    generator = torch.Generator().manual_seed(5)
    embeddings = torch.randn(count, 24, generator=generator)
    embeddings[7::31] = embeddings[2]
    species = torch.randint(0, 40, (count,), generator=generator)
    labels = torch.stack([species, species // 4, species // 12], -1)
    labels[5::29, 0] = -1
    labels[11::53] = -1
    return embeddings, labels


def deep(count: int) -> torch.Tensor:
    """Labels of six levels."""
    return torch.stack([torch.arange(count) % 32 >> column for column in range(6)], -1)


def reports(rank: int, world: int, folder: Path | None = None) -> dict[str, Report]:
    """What every process must find alike, on any number of them; with checkpoints, if there is a folder for them."""
    embeddings, labels = data()
    flat = labels[:, 0]
    everything = {"levels": NAMES, "per_query": True}
    top = {"metrics": ["R@1", "P@5/genus", "mAP@10"], "per_query": True}
    return {
        "everything": evaluate(embeddings, labels, memory_budget=SMALL, **everything),
        "a gallery in chunks": evaluate(embeddings, labels, memory_budget=TINY, **everything),
        "top k": evaluate(embeddings, labels, memory_budget=SMALL, levels=NAMES, **top),
        "top k of a gallery in chunks": evaluate(embeddings, labels, memory_budget=TINY, levels=NAMES, **top),
        "another budget on each process": evaluate(embeddings, labels, memory_budget=SMALL + 50_000 * rank, **everything),
        "six levels": evaluate(embeddings[:65], deep(65), ks=[1], memory_budget=SMALL // 4, per_query=True),
        "one block": evaluate(embeddings[:40], flat[:40], per_query=True),
        "one query": evaluate(embeddings[:1], flat[:1], embeddings[1:], flat[1:], per_query=True),
        "intervals": evaluate(embeddings, flat, memory_budget=SMALL, metrics=["AP"], intervals=True, per_query=True),
        "queries and gallery": evaluate(
            *(embeddings[:99], labels[:99], embeddings[50:], labels[50:]),
            **everything,
            memory_budget=SMALL,
            ids=ids(0, 99),
            gallery_ids=ids(50),
        ),
        **from_shards(folder),
        "metric, padded": metric_report(padded(rank, world)),
        "metric, uneven": metric_report(uneven(rank, world)),
        "metric, a process without items": metric_report(idle(rank, world)),
        "metric, queries and gallery": query_and_gallery(rank, world),
    }


def from_shards(folder: Path | None) -> dict[str, Report]:
    """A gallery streamed from files; then with half of it saved; then with all of it. Without a folder, the same in memory."""
    embeddings, labels = data()
    options = {"levels": NAMES, "per_query": True, "memory_budget": TINY, "self_index": range(6)}
    gallery, checkpoint = embeddings, None
    if folder is not None:
        rank = torch.distributed.get_rank()
        gallery, checkpoint = [folder / f"{rank}.{shard}.npy" for shard in range(2)], folder / "checkpoint"
        for path, part in zip(gallery, embeddings.split(80), strict=True):
            np.save(path, part.numpy())
    found = {}
    for name in ("shards", "shards, half saved", "shards, all saved"):
        found[name] = evaluate(embeddings[:6], labels[:6], gallery, labels, checkpoint=checkpoint, **options)
        if checkpoint is not None and name == "shards":
            torch.distributed.barrier()
            if rank == 0:
                values = sorted(checkpoint.glob("values-*.npz"))
                assert len(values) >= torch.distributed.get_world_size()
                values[1].unlink()
            torch.distributed.barrier()
    return found


def ids(start: int = 0, stop: int = COUNT) -> list[int]:
    return list(range(start, stop))


def padded(rank: int, world: int) -> list[int]:
    """A share as DistributedSampler deals them out: shuffled, and some repeated so that all shares have one size."""
    share = list(DistributedSampler(range(COUNT), num_replicas=world, rank=rank, seed=1))
    assert world == 1 or world * len(share) > COUNT
    return share


def uneven(rank: int, world: int) -> list[int]:
    """All but a few items in the last process."""
    few = 5 * (world - 1)
    return ids(few) if rank == world - 1 else ids(5 * rank, 5 * rank + 5)


def idle(rank: int, world: int) -> list[int]:
    """Nothing in the first process, if there is another."""
    return [item for item in ids() if world == 1 or item % (world - 1) == rank - 1]


def metric_report(share: list[int]) -> Report:
    embeddings, labels = data()
    metric = RetrievalMetrics(levels=NAMES, memory_budget=SMALL)
    for batch in torch.tensor(share, dtype=torch.long).split(16) if share else ():
        metric.update(embeddings[batch], labels[batch], batch)
    computed, report = metric.compute(), metric.report()
    assert all(computed[key].item() == value or value != value for key, value in report.items())
    assert sum(map(len, metric.ids)) == len(share), "after compute() a process holds its own items again"
    return report


def query_and_gallery(rank: int, world: int) -> Report:
    """Two dataloaders, in half precision; queries 50 to 98 are in the gallery too."""
    embeddings, labels = data()
    metric = RetrievalMetrics(levels=NAMES, metrics=["R@1", "AP", "H-AP"], memory_budget=SMALL)
    for role, whole in (("query", range(99)), ("gallery", range(50, COUNT))):
        share = torch.tensor(list(whole))[rank::world]
        metric.update(embeddings[share].bfloat16(), labels[share], share, role=role)
    return metric.report()


def sets_of_several_sizes(rank: int, world: int) -> dict[str, float]:
    """Every process has sets of up to another number of labels, which the metric brings together."""
    embeddings, labels = data()
    metric = RetrievalMetrics(metrics=["R@1", "AP"])
    mine = torch.arange(COUNT)[rank::world]
    padding = torch.full((len(mine), labels.shape[1], rank), -1)
    metric.update(embeddings[mine], torch.cat([labels[mine][..., None], padding], 2), mine)
    return {key: value.item() for key, value in metric.compute().items()}


def gap(rank: int, world: int) -> list[float]:
    embeddings, labels = data()
    return decomposability_gap(embeddings, labels, 64, "H-AP", memory_budget=SMALL).per_query.tolist()


def refusals(rank: int, world: int) -> dict[str, str]:
    """What cannot be done with several processes must fail on all of them, and hang on none."""
    embeddings, labels = data()
    output = {}
    different = RetrievalMetrics()
    different.update(embeddings[:, : 24 - rank], labels)
    alone = RetrievalMetrics(sync_on_compute=False)
    alone.update(embeddings[rank::world], labels[rank::world])
    stepping = RetrievalMetrics()
    stepping.update(embeddings, labels)
    for name, call in (
        ("different dimensions", different.compute),
        ("nothing anywhere", RetrievalMetrics().compute),
    ):
        try:
            call()
        except (NotImplementedError, ValueError) as error:
            output[name] = f"{type(error).__name__}: {error}"
    mine = slice(rank, None, world)
    expected = evaluate(embeddings[mine], labels[mine], distributed=False).means
    for computed in (alone.compute(), RetrievalMetrics()(embeddings[mine], labels[mine])):
        assert {key: value.item() for key, value in computed.items()} == expected
    return output


def process(rank: int, world: int, folder: Path) -> None:
    warnings.filterwarnings("ignore", message="The ``compute`` method of metric RetrievalMetrics was called before")
    (folder / str(world)).mkdir(exist_ok=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / f'{world}.init'}", rank=rank, world_size=world)
    found = {"reports": reports(rank, world, folder / str(world)), "gap": gap(rank, world), "refusals": refusals(rank, world)}
    found["sets"] = sets_of_several_sizes(rank, world)
    (folder / f"{world}.{rank}.pickle").write_bytes(pickle.dumps(found))
    torch.distributed.destroy_process_group()


def command_line() -> None:
    """Processes that compute into a folder: the arguments are its path, and numbers of processes."""
    folder, *worlds = sys.argv[1:]
    sys.exit(run_together(process, [(rank, world, Path(folder)) for world in map(int, worlds) for rank in range(world)]))
