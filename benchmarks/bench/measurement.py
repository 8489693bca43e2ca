"""The time and memory of one loss at one size, and of one evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LossMeasurement:
    """Forward + backward of one loss. Without a result, `seconds` and `extra_bytes` are None and `note` says why."""

    case: str
    kind: str
    queries: int
    items: int
    memory: int  # 0 when the queries rank each other
    seconds: float | None = None  # median
    runs: int = 0  # how many runs the median is over; 1 if the first timed run exceeded the time limit
    fastest: float | None = None  # far below the median if the machine is busy
    extra_bytes: int | None = None
    loss: float | None = None  # the value, to check that two ways to compute one loss agree
    note: str = ""

    @property
    def time_text(self) -> str:
        return self.note or format_seconds(self.seconds or 0.0)

    @property
    def memory_text(self) -> str:
        return self.note or format_bytes(self.extra_bytes or 0)


@dataclass(frozen=True)
class EvaluationMeasurement:
    """One evaluator on one collection. Without a result, numbers are None and `note` says why."""

    evaluator: str
    kind: str
    shape: str
    queries: int
    items: int
    levels: int
    among: bool  # whether the queries are the items, each left out of its own ranking
    seconds: float | None = None  # median
    runs: int = 0
    fastest: float | None = None
    cpu_seconds: float | None = None  # user + system time of all threads, in the run of median time
    extra_bytes: int | None = None  # peak above the memory of the process with its inputs
    peak_bytes: int | None = None  # peak of the process, inputs included; on a GPU, of torch's allocator
    threads: int | None = None  # of torch, on a CPU
    values: dict[str, float] = field(default_factory=dict)  # by metric, to check that evaluators agree
    note: str = ""

    @property
    def size(self) -> str:
        return f"{self.queries:,} × {self.items:,}"


def format_seconds(seconds: float) -> str:
    """Seconds or milliseconds with three digits.

    Example:
        >>> format_seconds(0.00123), format_seconds(0.0123), format_seconds(12.3)
        ('1.23 ms', '12.3 ms', '12.3 s')
    """
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def format_bytes(count: float) -> str:
    """MiB or GiB with three digits.

    Example:
        >>> format_bytes(3 * 2**19), format_bytes(5 * 2**30), format_bytes(1020 * 2**20)
        ('1.5 MiB', '5 GiB', '1020 MiB')
    """
    unit, name = (2**30, "GiB") if count >= 0.9995 * 2**30 else (2**20, "MiB")
    value = count / unit
    return f"{value:.0f} {name}" if value >= 999.5 else f"{value:.3g} {name}"
