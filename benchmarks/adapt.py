"""Time of `suprank adapt` on embeddings in memory: the whole call, and its steps alone, in batches and on the whole collection.

python benchmarks/adapt.py                                      6,000 × 1,280 numbers, 600 batches of 256, and 10 whole steps
python benchmarks/adapt.py --items 60000 --width 512 --device cuda --loss happier --out benchmarks/results/h200/adapt

Embeddings are drawn around the centers of their classes, of which three at a time share a coarse class. All classes but a fifth
of them, for validation, are trained on; a test set of 50 images costs nothing. `--out` writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from suprank import __version__
from suprank.adaptation import AdaptConfig, adapt
from suprank.evaluation import RetrievalData


@dataclass(frozen=True)
class Timing:
    """Seconds of a call of `adapt`, its CPU seconds, and the seconds and CPU seconds from the first step to the last."""

    batch: str
    steps: int
    training_items: int
    seconds: float
    cpu_seconds: float
    step_seconds: float
    step_cpu_seconds: float


class Clock:
    """Notes the time at the first and at the last step."""

    def __init__(self, device: str) -> None:
        self.device, self.times = device, [(0.0, 0.0)] * 2

    def __call__(self, what: str, done: int, total: int) -> None:
        if done in (1, total):
            if self.device.startswith("cuda"):
                torch.cuda.synchronize()
            self.times[done == total] = time.perf_counter(), time.process_time()


def collection(items: int, width: int, images_per_class: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    fine = np.arange(items) // images_per_class
    coarse = fine // 3
    centers = rng.normal(size=(coarse[-1] + 1, width))[coarse] + rng.normal(size=(fine[-1] + 1, width))[fine]
    return (centers + 3 * rng.normal(size=(items, width))).astype(np.float32), np.stack([fine, coarse], axis=1)


def measure(embeddings: np.ndarray, labels: np.ndarray, device: str, settings: dict[str, Any]) -> Timing:
    test = RetrievalData.from_arrays(embeddings[:50], labels[:50])
    clock = Clock(device)
    begin = time.perf_counter(), time.process_time()
    result = adapt(embeddings, labels, AdaptConfig(**settings), test=test, device=device, progress=clock)
    end = time.perf_counter(), time.process_time()
    (first, first_cpu), (last, last_cpu) = clock.times
    assert result.config.steps is not None
    return Timing(
        str(settings["batch"]),
        result.config.steps,
        result.rows["training"],
        end[0] - begin[0],
        end[1] - begin[1],
        last - first,
        last_cpu - first_cpu,
    )


def markdown(record: dict[str, Any]) -> str:
    lines = [
        "# Time of `suprank adapt`",
        "",
        f"    {record['command']}",
        "",
        f"{record['machine']}; load {record['load']} when it began. {record['versions']}. {record['date']}.",
        "",
        f"{record['items']:,} × {record['width']:,} embeddings, {record['images_per_class']} a class, loss {record['loss']}. "
        "Steps are timed from the first to the last, with the validations between them.",
        "",
        "| batch | steps | trained on | whole call | its CPU time | steps | their CPU time |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in record["timings"]:
        seconds = [f"{one[key]:.1f} s" for key in ("seconds", "cpu_seconds", "step_seconds", "step_cpu_seconds")]
        lines.append(f"| {one['batch']} | {one['steps']} | {one['training_items']:,} | {' | '.join(seconds)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--items", type=int, default=6000)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--images-per-class", type=int, default=60)
    parser.add_argument("--loss", default="roadmap")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=600, help="steps with batches; 0 leaves them out")
    parser.add_argument("--whole-steps", type=int, default=10, help="steps with the whole collection; 0 leaves them out")
    parser.add_argument("--out", type=Path, help="files to write, without .json and .md")
    options = parser.parse_args()
    embeddings, labels = collection(options.items, options.width, options.images_per_class)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    timings = []
    for batch, steps in ((options.batch, options.steps), ("whole", options.whole_steps)):
        if steps:
            settings = {"batch": batch, "steps": steps, "loss": {"name": options.loss}}
            timings.append(asdict(measure(embeddings, labels, options.device, settings)))
            print(timings[-1], flush=True)
    cpu = f"{os.cpu_count()} cores, torch threads: {torch.get_num_threads()}"
    record = {
        "command": f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '')} python benchmarks/adapt.py "
        f"--device {options.device} --items {options.items} --width {options.width} --loss {options.loss} "
        f"--whole-steps {options.whole_steps}",
        "machine": torch.cuda.get_device_name() if options.device.startswith("cuda") else cpu,
        "load": load,
        "versions": f"torch {torch.__version__}, suprank {__version__}",
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        **{key: getattr(options, key) for key in ("items", "width", "images_per_class", "loss")},
        "timings": timings,
    }
    print(markdown(record))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        options.out.with_suffix(".md").write_text(markdown(record))


if __name__ == "__main__":
    main()
