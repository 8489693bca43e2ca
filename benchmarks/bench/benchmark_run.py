"""`BenchmarkRun`: measurements with the machine they were made on, saved as JSON and shown as Markdown tables."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch

from bench.measurement import format_bytes
from bench.timing import meter_for
from suprank.files.atomic import write_atomically
from suprank.system.platforms import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from _typeshed import DataclassInstance

M = TypeVar("M", bound="DataclassInstance")


@dataclass(frozen=True)
class BenchmarkRun(Generic[M]):
    """Measurements, and what is needed to judge and repeat them."""

    command: str
    date: str
    hardware: str
    versions: dict[str, str]
    method: str
    measurements: tuple[M, ...]

    bench: ClassVar[str]  # the name of the benchmark, and of its files
    measurement_type: ClassVar[Callable[..., Any]]
    packages: ClassVar[tuple[str, ...]]  # whose versions matter

    @classmethod
    def here(cls, measurements: Iterable[M], *, command: str, device: torch.device, threads: int | None = None) -> Self:
        """A run of measurements that were made now, on this machine."""
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        threads = threads or torch.get_num_threads()
        return cls(
            command, date, _hardware(device, threads), _versions(cls.packages), meter_for(device).method, tuple(measurements)
        )

    def save(self, path: Path) -> None:
        """Write JSON."""
        content = {"bench": self.bench, **asdict(self)}
        write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("bench", "losses") != cls.bench:  # runs of the losses were once saved without it
            raise ValueError(f"it is not a run of benchmarks/measure.py {cls.bench}")
        return cls(**{**content, "measurements": tuple(cls.measurement_type(**one) for one in content["measurements"])})

    def markdown(self) -> str:
        """The tables, with the command and the machine."""
        raise NotImplementedError

    def heading(self, title: str) -> list[str]:
        """The title, the command, the machine and the versions."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [f"# {title}", f"    {self.command}", f"{self.hardware}. {versions}. {self.date}."]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _hardware(device: torch.device, threads: int) -> str:
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        return f"{card.name}, {format_bytes(card.total_memory)}"
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), model)
    memory = memory_bytes()
    return f"{model}, {os.cpu_count()} cores, torch threads: {threads}" + (f", {format_bytes(memory)}" if memory else "")


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {"Python": platform.python_version(), "torch": str(torch.__version__)}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
