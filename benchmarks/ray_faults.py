"""`suprank embed --on ray` on a Ray cluster of two nodes on this machine: while processes are killed, and how fast it is.

python benchmarks/ray_faults.py --kills 40 --out benchmarks/results/cpu/ray-faults.json
python benchmarks/ray_faults.py --speed --out benchmarks/results/cpu/ray-speed.json

Kills come at random moments, when from none to 20 shards more are there, and are SIGKILL: a process that does a shard; a node
with all its processes, for which another one is started; the driver, which is started again; or the whole cluster with the
driver. Each run embeds 480 pictures in 60 shards; its files are compared byte by byte with those of one process without Ray.

Speed: shards of 8 pictures of 32 pixels with a network of a few hundred thousand weights, so that nearly all is overhead; the
best of several turns. "Alone" is one process without Ray. Both nodes have one core of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.data.pictures import folder as pictures  # noqa: E402
from tests.ray_nodes import RayNodes  # noqa: E402

SHARD_ROWS, SHARDS = 8, 60
KINDS = {"worker": 5, "node": 5, "driver": 4, "cluster": 1}
BACKBONE = """
import time
import timm, torch

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = timm.create_model("test_resnet", num_classes=0)
        self.num_features = self.net.num_features

    def forward(self, images):
        time.sleep(PAUSE)
        return self.net(images)

def build():
    torch.manual_seed(0)
    return Slow()
"""
DRIVE = f"""
import sys
from suprank.cli.main import main
from suprank.embedding import collection
collection.SHARD_ROWS = {SHARD_ROWS}
sys.argv[0] = "suprank"
main()
"""
EMPTY = """
import os, sys, time
from suprank.executors.local import Task
from suprank.executors.ray_cluster import RayCluster
tasks = [Task(str(number), (number,)) for number in range(1000)]
with RayCluster() as cluster:
    for _ in cluster.run(str, tasks[:50]):
        pass
    begun = time.perf_counter()
    assert sum(answer.error is None for _, answer in cluster.run(str, tasks)) == 1000
    print(1000 / (time.perf_counter() - begun))
"""


class Embedding:
    """One run of `suprank embed` in a process of its own."""

    def __init__(self, place: Path, out: str, manifest: str = "m.csv", nodes: RayNodes | None = None) -> None:
        where = ["--device", "cpu"] if nodes is None else ["--on", f"ray={nodes.address}"]
        arguments = [
            "embed",
            "mine.py:build",
            manifest,
            "--out",
            out,
            "--size",
            "32",
            "--batch-size",
            "8",
            "--workers",
            "0",
            "-q",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", DRIVE, *arguments, *where],
            cwd=place,
            env=environment(nodes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        _, errors = self.process.communicate()
        if self.process.returncode:
            raise RuntimeError(f"suprank embed ended with {self.process.returncode}:\n{errors}")


def environment(nodes: RayNodes | None = None) -> dict[str, str]:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(nodes.environment if nodes else {})}


def files(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*.npy"))}


def there(out: Path) -> int:
    """How many shards there are, all of them once they are joined."""
    return SHARDS if (out / "test" / "embeddings.npy").exists() else len(list((out / "test" / "parts").glob("*.npy")))


def make(place: Path, counts: dict[str, int], pause: float) -> None:
    """A folder with manifests of the same 60 pictures, repeated, and a backbone that waits in each batch."""
    different = pictures(place, count=60, split=["test"] * 60)
    for name, count in counts.items():
        rows = [f"{different.paths[row % 60].as_py()},test,c{row % 60}" for row in range(count)]
        (place / name).write_text("\n".join(["path,split,label_class", *rows]) + "\n")
    (place / "mine.py").write_text(BACKBONE.replace("PAUSE", str(pause)))


def faults(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run after run, until so many kills were done."""
    draw = random.Random(options.seed)
    make(place, {"m.csv": SHARD_ROWS * SHARDS}, pause=0.1)
    Embedding(place, "alone").end()
    expected = files(place / "alone")
    assert len(expected) == 1 + SHARDS, "embeddings, and which bytes the images of each shard have"
    kills: Counter[str] = Counter()
    done: list[int] = []
    processes, runs, begun = 0, 0, time.perf_counter()
    nodes = RayNodes()
    try:
        while kills.total() < options.kills:
            out, runs = f"run{runs}", runs + 1
            driver, planned = Embedding(place, out, nodes=nodes), draw.randint(2, 6)
            while driver.process.poll() is None:
                if planned and kills.total() < options.kills:
                    wanted = there(place / out) + draw.randint(0, 2 * SHARDS // 6)
                    while there(place / out) < wanted and driver.process.poll() is None:
                        time.sleep(0.05)
                    time.sleep(draw.uniform(0, 0.3))
                    if driver.process.poll() is not None:
                        break
                    kind = draw.choices(list(KINDS), list(KINDS.values()))[0]
                    workers = [pid for node in range(len(nodes.nodes)) for pid in nodes.workers(node)]
                    if kind == "worker" and not workers:
                        continue
                    planned -= 1
                    kills[kind] += 1
                    done.append(there(place / out))
                    print(f"run {runs}, kill {kills.total()}: {kind}, with {done[-1]} shards there", flush=True)
                    if kind == "worker":
                        os.kill(draw.choice(workers), signal.SIGKILL)
                        processes += 1
                    if kind == "node":
                        processes += nodes.kill(1)
                        time.sleep(draw.uniform(0, 3))
                        nodes.add()
                    if kind in ("driver", "cluster"):
                        driver.process.kill()
                        driver.process.communicate()
                        processes += 1
                    if kind == "cluster":
                        nodes.stop()
                        nodes = RayNodes()
                    if kind in ("driver", "cluster"):
                        driver = Embedding(place, out, nodes=nodes)
                else:
                    time.sleep(0.1)
            driver.end()
            assert files(place / out) == expected, f"{out} differs"
            print(f"run {runs}: equal to one process, byte by byte", flush=True)
    finally:
        nodes.stop()
    return {
        "kills": dict(sorted(kills.items())) | {"all": kills.total(), "processes": processes},
        "kills before the first shard": done.count(0),
        "runs": runs,
        "runs that differ": 0,
        "shards in a run": SHARDS,
        "minutes": round((time.perf_counter() - begun) / 60, 1),
    }


def speed(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds alone and on the cluster in turns, and tasks a second."""
    counts = (10, 100, 1000)
    make(place, {f"{count}.csv": SHARD_ROWS * count for count in counts}, pause=0)
    seconds: dict[str, dict[str, list[float]]] = {str(count): {"alone": [], "on Ray": []} for count in counts}
    rates: list[float] = []
    with RayNodes() as nodes:
        for turn in range(options.repeats):
            found = subprocess.run(
                [sys.executable, "-P", "-c", EMPTY], env=environment(nodes), check=True, capture_output=True, text=True
            )
            rates.append(float(found.stdout))
            for count in counts:
                for name, where in (("alone", None), ("on Ray", nodes)):
                    begun = time.perf_counter()
                    Embedding(place, f"{name}{count}-{turn}", f"{count}.csv", where).end()
                    seconds[str(count)][name].append(time.perf_counter() - begun)
                    print(f"{count} shards {name}: {seconds[str(count)][name][-1]:.1f} s", flush=True)
                assert files(place / f"alone{count}-{turn}") == files(place / f"on Ray{count}-{turn}")
    best = {count: {name: round(min(of), 1) for name, of in both.items()} for count, both in seconds.items()}
    return {
        "empty tasks a second": round(max(rates)),
        "seconds": best,
        "ms a shard more on Ray": {
            count: round((both["on Ray"] - both["alone"]) / int(count) * 1000, 1) for count, both in best.items()
        },
    }


def main() -> None:
    options = _arguments()
    with tempfile.TemporaryDirectory(prefix="rayfaults", dir="/tmp") as name:
        results = (speed if options.speed else faults)(Path(name), options)
    print(json.dumps(results, indent=1))
    if options.out:
        import ray
        import torch

        about = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "ray": ray.__version__,
            "torch": torch.__version__,
            "options": {key: str(value) for key, value in vars(options).items()},
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--speed", action="store_true", help="measure the speed instead")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3, help="turns, of which the best counts")
    parser.add_argument("--out", type=Path, help="file for the numbers (.json)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
