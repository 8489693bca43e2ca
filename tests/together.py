"""Processes that compute together, forked, so that imports, which take longer than what is computed, happen once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.multiprocessing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def run_together(function: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> int:
    """Call a function in a process for each tuple of arguments; the largest exit code."""
    torch.set_num_threads(1)
    context = torch.multiprocessing.get_context("fork")
    started = [context.Process(target=function, args=own) for own in arguments]
    for one in started:
        one.start()
    for one in started:
        one.join()
    return max(abs(one.exitcode) for one in started)
