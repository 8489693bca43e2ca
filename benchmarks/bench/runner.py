"""Run a plan of growing sizes: each case goes up until it takes too long or too much memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from bench.measurement import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class BenchmarkCase(Protocol):
    """A loss or an evaluator."""

    @property
    def name(self) -> str: ...


class BenchmarkWorkload(Protocol):
    """What a case is measured on. Workloads of one `series` differ in size only, and are planned smallest first."""

    @property
    def series(self) -> str: ...

    @property
    def size(self) -> str: ...


class BenchmarkResult(Protocol):
    """A measurement; without a time, `note` says why."""

    @property
    def seconds(self) -> float | None: ...

    @property
    def note(self) -> str: ...


C = TypeVar("C", bound=BenchmarkCase)
W = TypeVar("W", bound=BenchmarkWorkload)
R = TypeVar("R", bound=BenchmarkResult)


def run_plan(
    plan: Iterable[tuple[C, W]],
    measure: Callable[[C, W], R],
    skip: Callable[[C, W, str], R],
    *,
    seconds: float,
    on_start: Callable[[C, W], None],
) -> Iterator[R]:
    """One result for each pair of the plan, in order; a case that was too slow or too large is skipped at larger sizes.

    `skip` makes the result of a skipped pair from a note that says why.
    """
    skipped: dict[tuple[str, str], str] = {}  # (case, series) → why it goes no further
    for case, workload in plan:
        on_start(case, workload)
        series = case.name, workload.series
        if series in skipped:
            yield skip(case, workload, skipped[series])
            continue
        result = measure(case, workload)
        if result.seconds is None:
            missing = result.note.startswith("not installed")
            skipped[series] = result.note if missing else f"skipped: {result.note} at {workload.size}"
        elif result.seconds > seconds:
            skipped[series] = f"skipped: took {format_seconds(result.seconds)} at {workload.size}"
        yield result
