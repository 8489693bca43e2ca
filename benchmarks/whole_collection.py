"""One step of a rank loss over a whole collection, every embedding against all others: seconds and peak memory.

python benchmarks/whole_collection.py                 60,000 embeddings on a GPU, 2,048 on a CPU
python benchmarks/whole_collection.py --items 120000 --loss SupHAP

Before it measures, it compares a step over few embeddings, in chunks and in float32, with the loss on the whole in float64.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor

from suprank.losses import RetrievalLoss, SupAP, SupHAP, collection_loss, happier
from suprank.losses.collection import CHUNK_BYTES

LOSSES = ("HAPPIER", "SupHAP", "SupAP")
FEW = 600


def build(name: str, labels: Tensor, dim: int, **options: Any) -> RetrievalLoss:
    """The loss of this name. HAPPIER has a proxy for each fine class, the same ones at each call."""
    if name == "HAPPIER":
        torch.manual_seed(0)
        return happier(int(labels[:, 0].max()) + 1, dim, **options).to(labels.device)
    return {"SupHAP": SupHAP, "SupAP": SupAP}[name](**options)


def collection(items: int, dim: int, device: str) -> tuple[Tensor, Tensor]:
    """Embeddings around the centers of their classes, and labels as in SOP: 5 images a product, 12 coarse classes."""
    generator = torch.Generator().manual_seed(0)
    fine = torch.arange(items) // 5
    coarse = fine * 12 // (int(fine[-1]) + 1)
    centers = torch.randn(12, dim, generator=generator)[coarse] + torch.randn(int(fine[-1]) + 1, dim, generator=generator)[fine]
    embeddings = centers + 2 * torch.randn(items, dim, generator=generator)
    return embeddings.to(device), torch.stack([fine, coarse], 1).to(device)


def step(loss: RetrievalLoss, embeddings: Tensor, labels: Tensor, chunk: int | None) -> tuple[Tensor, Tensor]:
    leaf = embeddings.clone().requires_grad_()
    value = collection_loss(loss, leaf, labels, chunk=chunk)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def check(name: str, dim: int, device: str) -> None:
    """The value and the gradient of a small collection are those of the definition, in float64 and on the whole."""
    embeddings, labels = collection(FEW, dim, device)
    value, gradient = step(build(name, labels, dim), embeddings, labels, chunk=100)
    leaf = embeddings.double().cpu().requires_grad_()
    expected = build(name, labels.cpu(), dim, using="chunked").double()(leaf, labels.cpu())
    expected.backward()
    assert leaf.grad is not None
    off = float((gradient.cpu() - leaf.grad).norm() / leaf.grad.norm())
    print(f"{name}, {FEW} items: value {value.item():.7f} ({expected.item():.7f}), gradient off by {off:.1e} of its norm")
    assert abs(value.item() - expected.item()) < 1e-5
    assert off < 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--items", type=int, help="default: 60,000 on a GPU, 2,048 on a CPU")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--chunk", type=int, help=f"queries at a time; default: as many as fit into {CHUNK_BYTES // 2**30} GiB")
    parser.add_argument("--loss", choices=LOSSES, action="append")
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    items = options.items or (60_000 if on_gpu else 2048)
    for name in options.loss or LOSSES:
        check(name, options.dim, options.device)
        embeddings, labels = collection(items, options.dim, options.device)
        loss = build(name, labels, options.dim)
        step(loss, embeddings, labels, options.chunk)  # kernels are compiled here: for this many items
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        value, gradient = step(loss, embeddings, labels, options.chunk)
        assert gradient.isfinite().all()  # waits for the device
        seconds = time.perf_counter() - begin
        memory = f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if on_gpu else ""
        print(
            f"{name}, {items} × {items}, dimension {options.dim}: {seconds:.2f} s{memory}, loss {value.item():.4f}", flush=True
        )


if __name__ == "__main__":
    main()
