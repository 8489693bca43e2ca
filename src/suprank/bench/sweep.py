"""Growing sizes: each case goes up until it takes too long or too much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from suprank.bench.measurement import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Named(Protocol):
    """What is measured."""

    @property
    def name(self) -> str: ...


class Sized(Protocol):
    """What it is measured on. Sizes of one `series` can be compared, and are planned smallest first."""

    @property
    def series(self) -> str: ...

    @property
    def size(self) -> str: ...


class Found(Protocol):
    """What a measurement gives; without a time, `note` says why."""

    @property
    def seconds(self) -> float | None: ...

    @property
    def note(self) -> str: ...


C = TypeVar("C", bound=Named)
W = TypeVar("W", bound=Sized)
F = TypeVar("F", bound=Found)


def swept(
    planned: Iterable[tuple[C, W]],
    measured: Callable[[C, W], F],
    skipped: Callable[[C, W, str], F],
    *,
    seconds: float,
    starting: Callable[[C, W], None],
) -> Iterator[F]:
    """One result for each planned pair, in order; once a case was too slow or too large, it is skipped in that series."""
    too_much: dict[tuple[str, str], str] = {}  # (case, series) → why it goes no further
    for case, workload in planned:
        starting(case, workload)
        series = case.name, workload.series
        if series in too_much:
            yield skipped(case, workload, too_much[series])
            continue
        found = measured(case, workload)
        if found.seconds is None:
            missing = found.note.startswith("not installed")
            too_much[series] = found.note if missing else f"skipped: {found.note} at {workload.size}"
        elif found.seconds > seconds:
            too_much[series] = f"skipped: took {duration(found.seconds)} at {workload.size}"
        yield found
