"""Time of a training step, and the share of the loss in it: the loop's own steps on random images in memory.

python benchmarks/training.py                         ResNet-50, 224 px, batch 256, bf16, on a GPU; a tiny network on a CPU
python benchmarks/training.py --large                 and batches of 1,024 and 4,096 in two passes (Recall@k with SiMix)

The share of the loss is measured against steps whose loss is the sum of the embeddings, in turns. Our losses are compared with
Smooth-AP as it is often written, with a tensor of batch³ numbers. On a GPU ours are measured with `engine.replay_loss` and
without.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suprank.losses.base import RetrievalLoss
from suprank.training.batches import TrainBatch
from suprank.training.config import TrainConfig
from suprank.training.engine import build_fabric
from suprank.training.learner import Learner

CLASSES = 11_318  # SOP's: as many proxies


class Setting(NamedTuple):
    backbone: str
    side: int
    dim: int
    precision: str


GPU = Setting("resnet50", 224, 512, "bf16")
CPU = Setting("test_resnet", 64, 64, "fp32")


class Labels(NamedTuple):
    """What a learner asks of a feed: three levels of labels of images that do not exist."""

    labels: Tensor
    classes: int = CLASSES
    levels: tuple[str, ...] = ("product", "kind", "shelf")


class SumOfEmbeddings(RetrievalLoss):
    """The sum of the embeddings, which costs next to nothing."""

    def compute(self, batch: Any) -> Tensor:
        return batch.queries.sum()


class DenseSmoothAP(RetrievalLoss):
    """Smooth-AP by a tensor of batch³: every difference of two scores of every query, self included, without saving memory."""

    def compute(self, batch: Any) -> Tensor:
        scores = batch.scores
        step = torch.sigmoid((scores[:, None, :] - scores[:, :, None]).clamp(-0.5, 0.5) / 0.01)
        step = step * (1 - torch.eye(len(scores), device=scores.device))
        positive = (batch.labels[:, None, 0] == batch.item_labels[None, :, 0]).float()
        ranks = 1 + step.sum(-1)
        plus = 1 + (step * positive[:, None, :]).sum(-1)
        return 1 - ((plus / ranks * positive).sum(-1) / positive.sum(-1)).mean()


def learner(
    setting: Setting, batch: int, loss: dict[str, Any], chunk: int | None = None, memory: int = 0, *, replay: bool = False
) -> Learner:
    config = TrainConfig.model_validate(
        {
            "data": {"manifest": "none"},
            "model": {
                "backbone": setting.backbone,
                "pretrained": False,
                "normalization": "layer",
                "dim": setting.dim,
                "freeze_batchnorm": True,
            },
            "loss": loss,
            "batch": {"size": batch, "chunk": chunk},
            "memory": {"size": memory},
            "engine": {"precision": setting.precision, "replay_loss": replay},
        }
    )
    return Learner(config, build_fabric(config.engine), Labels(labels_of_images()))  # type: ignore[arg-type]


def labels_of_images() -> Tensor:
    """Six images a class."""
    fine = torch.arange(CLASSES).repeat_interleave(6)
    return torch.stack([fine, fine // 100, fine // 1000], 1)


def batch_of(setting: Setting, size: int, device: torch.device) -> TrainBatch:
    """Four images each of random classes."""
    classes = torch.randperm(CLASSES)[: size // 4]
    ids = (classes[:, None] * 6 + torch.arange(4)).flatten()
    images = torch.randint(256, (size, 3, setting.side, setting.side), dtype=torch.uint8, device=device)
    return TrainBatch(images, labels_of_images()[ids], ids, 0)


def seconds_of_step(made: Learner, batch: TrainBatch, steps: int) -> float:
    """The median time of synchronized steps, without the first four, at the third of which the loss is recorded."""
    found = []
    for number in range(steps + 4):
        _wait(made)
        begun = time.perf_counter()
        made.step([batch], number, 0, 0, 100)
        _wait(made)
        found.append(time.perf_counter() - begun)
    return statistics.median(found[4:])


def _wait(made: Learner) -> None:
    if made.fabric.device.type == "cuda":
        torch.cuda.synchronize()


def peak(made: Learner) -> float | None:
    """Peak GiB since the last call, on a GPU."""
    if made.fabric.device.type != "cuda":
        return None
    found = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return found


def shares(setting: Setting, size: int, steps: int, turns: int, memory: int) -> list[dict[str, Any]]:
    """For each loss: seconds of a step with it and without, and its share."""
    cases: dict[str, tuple[dict[str, Any], int]] = {
        "roadmap": ({"name": "roadmap"}, 0),
        "happier": ({"name": "happier"}, 0),
        "rod-recall": ({"name": "rod-recall"}, 0),
        "rod-ndcg": ({"name": "rod-ndcg"}, 0),
        "smooth-ap": ({"name": "smooth-ap"}, 0),
        "nsm": ({"name": "nsm"}, 0),
        f"roadmap, memory of {memory:,}": ({"name": "roadmap"}, memory),
        f"happier, memory of {memory:,}": ({"name": "happier"}, memory),
        "Smooth-AP with batch³ numbers": ({"name": "smooth-ap"}, 0),
    }
    rows = []
    for (name, (loss, remembered)), replay in product(cases.items(), (True, False) if setting is GPU else (False,)):
        made = learner(setting, size, loss, memory=remembered, replay=replay)
        batch = batch_of(setting, size, made.fabric.device)
        if name.startswith("Smooth-AP with"):
            if replay:
                continue
            made.loss.loss = DenseSmoothAP()
        if remembered and made.loss.memory is not None:
            _fill(made, remembered)
        real, replayed, trivial = made.loss.loss, made.loss.replayed, SumOfEmbeddings()
        with_loss, without = [], []
        for _ in range(turns):  # the clock of a GPU wanders
            made.loss.loss, made.loss.replayed = real, replayed
            with_loss.append(seconds_of_step(made, batch, steps))
            made.loss.loss, made.loss.replayed, kept = trivial, None, (made.loss.memory, made.proxies)
            made.loss.memory, made.proxies = None, []
            without.append(seconds_of_step(made, batch, steps))
            made.loss.memory, made.proxies = kept
        added = min(with_loss) - min(without)
        rows.append(
            {"loss": name, "replay": replay, "step": min(with_loss), "without": min(without), "share": added / min(with_loss)}
        )
        how, share = ", replayed" if replay else "", added / min(with_loss)
        print(f"{name}{how}: step {1e3 * min(with_loss):.1f} ms, of it the loss {1e3 * added:.2f} ms, {share:.1%}", flush=True)
        del made, real
    return rows


def _fill(made: Learner, size: int) -> None:
    labels = labels_of_images()
    memory = made.loss.memory
    assert memory is not None
    device = made.fabric.device
    ids = torch.randperm(len(labels))[:size]
    memory.add(
        nn.functional.normalize(torch.randn(size, made.embedder.dim, device=device)), labels[ids].to(device), ids.to(device)
    )


def large(setting: Setting, sizes: list[int], chunk: int, steps: int) -> list[dict[str, Any]]:
    """Batches in two passes, and in one pass if that fits."""
    rows = []
    for size in sizes:
        for pieces in (None, chunk):
            loss = {"name": "sup-recall", "mixup": True}
            try:
                made = learner(setting, size, loss, chunk=pieces)
                peak(made)
                batch = batch_of(setting, size, made.fabric.device)
                if pieces is not None and made.fabric.device.type == "cuda":  # as the feed gives them
                    batch = batch._replace(images=batch.images.cpu().pin_memory())
                seconds = seconds_of_step(made, batch, steps)
                row = {"batch": size, "chunk": pieces, "step": seconds, "images/s": size / seconds, "peak GiB": peak(made)}
            except torch.cuda.OutOfMemoryError:
                row = {"batch": size, "chunk": pieces, "step": None, "images/s": None, "peak GiB": None}
            print(row, flush=True)
            rows.append(row)
            made = batch = None  # type: ignore[assignment]
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256, help="images in a step")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed in a turn")
    parser.add_argument("--turns", type=int, default=3, help="turns, with and without the loss")
    parser.add_argument("--memory", type=int, default=60_000, help="embeddings in the memory")
    parser.add_argument("--large", action="store_true", help="measure large batches in two passes too")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    setting = GPU if on_gpu else CPU
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "timm", "lightning")},
        "setting": {**setting._asdict(), "batch": given.batch},
        "share of the loss": shares(setting, given.batch, given.steps, given.turns, given.memory),
    }
    if given.large:
        sizes, chunk = ([1024, 4096], 256) if on_gpu else ([256, 1024], 64)
        found["large batches"] = large(setting, sizes, chunk, 2)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
