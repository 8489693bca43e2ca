"""A run of measurements with the machine it was made on, as JSON and as Markdown tables."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import torch

from suprank.bench.cases import CASES
from suprank.bench.measurement import Measurement, size
from suprank.bench.timing import meter
from suprank.bench.workload import COARSE_IN_BATCH, COARSE_IN_MEMORY, DIM, IMAGES_PER_CLASS
from suprank.files.atomic import write_atomically
from suprank.system.platforms import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from _typeshed import DataclassInstance

_GROUPS = {
    "ours": "suprank",
    "baseline": "suprank's baselines",
    "peer": "pytorch-metric-learning",
    "plain torch": "plain torch",
}

Found = TypeVar("Found", bound="DataclassInstance")


@dataclass(frozen=True)
class Record(Generic[Found]):
    """Measurements, and what it takes to judge and repeat them."""

    command: str
    date: str
    hardware: str
    versions: dict[str, str]
    method: str
    measurements: tuple[Found, ...]

    bench: ClassVar[str]  # what it is a record of, and what its files are called
    kind: ClassVar[Callable[..., Any]]  # makes a measurement from its saved fields
    peers: ClassVar[tuple[str, ...]]  # packages whose versions matter

    @classmethod
    def here(cls, measurements: Iterable[Found], *, command: str, device: torch.device, threads: int | None = None) -> Self:
        """The measurements as made now, on this machine."""
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        threads = threads or torch.get_num_threads()
        return cls(command, date, _hardware(device, threads), _versions(cls.peers), meter(device).method, tuple(measurements))

    def save(self, path: Path) -> None:
        content = {"bench": self.bench, **asdict(self)}
        write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("bench", "losses") != cls.bench:  # runs of the losses were once saved without it
            raise ValueError(f"it is no run of suprank bench {cls.bench}")
        return cls(**{**content, "measurements": tuple(cls.kind(**found) for found in content["measurements"])})

    def markdown(self) -> str:
        """The tables, with how and where they were made."""
        raise NotImplementedError

    def heading(self, title: str) -> list[str]:
        """What every report begins with."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [f"# {title}", f"    {self.command}", f"{self.hardware}. {versions}. {self.date}."]


class Run(Record[Measurement]):
    """A run of `suprank bench losses`."""

    bench = "losses"
    kind = Measurement
    peers = ("suprank", "triton", "pytorch-metric-learning")

    def markdown(self) -> str:
        """Tables of time and memory, cases as rows; batch sizes as columns, and the memory workload in a table of its own."""
        within = [found for found in self.measurements if not found.memory]
        against = [found for found in self.measurements if found.memory]
        parts = [
            *self.heading("Time and memory of the losses"),
            f"Forward + backward from float32 embeddings (dimension {DIM}, {IMAGES_PER_CLASS} images a class, three levels), "
            f"random and the same for every loss. Measured: {self.method}. Medians after a warm-up{self._busy()}. "
            f"PML is pytorch-metric-learning; plain torch is our definition, which writes every pair of items.",
        ]
        if within:
            columns = sorted({found.items for found in within})
            rows = {found.case: {other.items: other for other in within if other.case == found.case} for found in within}
            head = ["loss", *(f"batch {batch}" for batch in columns)]
            for title, text in (("Time", _time), ("Peak extra memory", _memory)):
                cells = [[case, *(text(row[at]) if at in row else "" for at in columns)] for case, row in rows.items()]
                parts += [f"## {title}, {COARSE_IN_BATCH} coarse classes", table(head, self._grouped(cells))]
        if against:
            cells = [[f.case, f"{f.queries} × {f.items}", _time(f), _memory(f)] for f in against]
            title = f"## Queries against a memory, {COARSE_IN_MEMORY} coarse classes"
            parts += [title, table(["loss", "queries × items", "time", "peak extra memory"], self._grouped(cells))]
        return "\n\n".join(parts) + "\n"

    def _busy(self) -> str:
        ratios = [found.seconds / found.fastest for found in self.measurements if found.seconds and found.fastest]
        return f"; half of them are over {statistics.median(ratios):.2f} times the fastest run" if ratios else ""

    def _grouped(self, rows: Iterable[list[str]]) -> list[list[str]]:
        """The rows, whose first cell is a case, under a row with the name of their group; the floor and a lone group have none.

        A case that is known has the kind it has now: the first baselines were saved as ours.
        """
        kinds = {found.case: CASES[found.case].kind if found.case in CASES else found.kind for found in self.measurements}
        groups: dict[str, list[list[str]]] = {kind: [] for kind in ("floor", *_GROUPS)}
        for row in rows:
            groups.setdefault(kinds[row[0]], []).append(row)
        floor = groups.pop("floor")
        groups = {kind: group for kind, group in groups.items() if group}
        lines = list(floor)
        for kind, group in groups.items():
            lines += [[f"**{_GROUPS.get(kind, kind)}**", *[""] * (len(group[0]) - 1)]] if len(groups) > 1 else []
            lines += group
        return lines


def _time(found: Measurement) -> str:
    return f"{found.time_text} (one run)" if found.runs == 1 else found.time_text


def _memory(found: Measurement) -> str:
    return found.memory_text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _hardware(device: torch.device, threads: int) -> str:
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        return f"{card.name}, {size(card.total_memory)}"
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), model)
    memory = memory_bytes()
    return f"{model}, {os.cpu_count()} cores, torch threads: {threads}" + (f", {size(memory)}" if memory else "")


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {"Python": platform.python_version(), "torch": str(torch.__version__)}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
