"""Time and memory of one loss at one size, or of one evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Measurement:
    """Forward + backward of one case. Without a result, `seconds` and `extra_bytes` are None and `note` says why."""

    case: str
    kind: str
    queries: int
    items: int
    memory: int  # 0 when the queries rank each other
    seconds: float | None = None  # median
    runs: int = 0  # what the median is over; 1: the first timed run, which alone passed the time limit
    fastest: float | None = None  # far below the median, it tells of a busy machine
    extra_bytes: int | None = None
    loss: float | None = None  # the value, so that two ways to compute one loss can be seen to agree
    note: str = ""

    @property
    def time_text(self) -> str:
        return self.note or duration(self.seconds or 0.0)

    @property
    def memory_text(self) -> str:
        return self.note or size(self.extra_bytes or 0)


@dataclass(frozen=True)
class Evaluated:
    """One evaluator on one collection. Without a result, numbers are None and `note` says why."""

    evaluator: str
    kind: str
    shape: str
    queries: int
    items: int
    levels: int
    among: bool  # the queries are the items themselves, each left out of its own ranking
    seconds: float | None = None  # median
    runs: int = 0
    fastest: float | None = None
    cpu_seconds: float | None = None  # of all threads, in the run that took the median time: user + system
    extra_bytes: int | None = None  # peak above what the process held with the inputs in place
    peak_bytes: int | None = None  # peak of the process, inputs included; on a GPU, of torch's allocator
    threads: int | None = None  # that torch had, on a CPU
    values: dict[str, float] = field(default_factory=dict)  # by metric, so that evaluators can be seen to agree
    note: str = ""

    @property
    def size(self) -> str:
        return f"{self.queries:,} × {self.items:,}"


def duration(seconds: float) -> str:
    """Example:
    >>> duration(0.00123), duration(0.0123), duration(12.3)
    ('1.23 ms', '12.3 ms', '12.3 s')
    """
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def size(count: float) -> str:
    """Example:
    >>> size(3 * 2**19), size(5 * 2**30), size(1020 * 2**20)
    ('1.5 MiB', '5 GiB', '1020 MiB')
    """
    unit, name = (2**30, "GiB") if count >= 0.9995 * 2**30 else (2**20, "MiB")
    value = count / unit
    return f"{value:.0f} {name}" if value >= 999.5 else f"{value:.3g} {name}"
