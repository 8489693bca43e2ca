"""Ranks in N log N on a GPU: the sums of `gridded` by Triton kernels, which need no atomics and little memory.

The whole of H⁻ goes through one table of polynomials between bins (`step_table`), except for the jump at 0, which is counted.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
from torch import Tensor

from suprank.ranking.gpu import grid_kernels, list_kernels
from suprank.ranking.gpu.pairs import fused, runs_fused
from suprank.ranking.gpu.step_table import TERMS, bins_above, bins_per_score, step_table
from suprank.ranking.ranks.definition import Ranks
from suprank.ranking.reading import Reading, may_read, note_choice
from suprank.ranking.seam import Algorithm, Ranked, by_kernels
from suprank.ranking.steps import Heaviside, Sigmoid, SupStep, heaviside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxtyping import Float, Shaped

    from suprank.ranking.ranks.definition import Implementation
    from suprank.ranking.seam import Grads, Saved
    from suprank.ranking.steps import Step

    SmoothStep = Sigmoid | SupStep

GRID_FROM = {"positives": 192, "pairs": 2**31}
"""Positives per query (on average), and (positive, item) pairs in all, from which `gridded` pays against `fused` on a GPU.

Below, a grid cannot win back what its own kernels and their launches take (`python benchmarks/choice.py --device cuda`).
"""

MOST_LEVELS = 15
"""Deepest level of the kernels: they hold the relevance of 16."""

BUDGET = 224 * 2**20
"""Bytes for the sorted lists and the grids of one block of queries."""

BUSY_ROWS = 256
"""Queries that keep a GPU busy: to have so many in a block, it may take four times the budget."""

FEW_BINS, ITEMS_PER_BIN = 1024, 2
"""A grid of more bins than both allow takes longer than the items on it."""

MOST_PROGRAMS = 2**16 - 1
"""CUDA launches no more in the second dimension: one for each bin, and one for each block of items."""

TILE = 16
EXACT = {"BLOCK": 64, "num_warps": 1}
SPREAD = {"BLOCK": 64, "num_warps": 1}
READ = {"BLOCK": 64, "num_warps": 1}
CONNECT = {"ROWS": 16, "BLOCK": 32, "num_warps": 2}
PLUS, MINUS, HIERARCHICAL = range(3)


@by_kernels
def fastest(
    plain: Callable[..., Implementation],
    scores: Tensor,
    level: Tensor,
    relevance: Tensor | None,
    plus: Step,
    minus: Step,
) -> Implementation:
    """The pairs or the grid. The grid must know values of the batch, which cannot be read while a graph is recorded."""
    if not runs_fused(scores, plus, minus):
        return plain(scores, level, relevance, plus, minus)
    if not (_may_grid(*scores.shape) and runs_gridded(scores, level, plus, minus) and may_read(Reading.TO_CHOOSE)):
        return fused
    known = survey(scores, level, relevance)
    if known.positives < GRID_FROM["positives"] or known.positives * scores.numel() < GRID_FROM["pairs"]:
        return fused
    note_choice("gridded")
    return partial(gridded_on_gpu, known=known)


def _may_grid(queries: int, items: int) -> bool:
    """Whether a batch on a GPU is so large that it may have many positives. The host waits to know only then.

    A quarter of the items is what four coarse classes have; where more are positives, the grid pays a little earlier.
    """
    return queries * items * (items // 4) > GRID_FROM["pairs"]


class Survey(NamedTuple):
    """What the kernels must know of the values of a batch: numbers read from the device at once, and arrays on it."""

    range: float  # the widest range of the scores of a list
    positives: float  # of a query, on average
    most_positives: int
    depth: int
    regular: bool  # scores are finite, and each level of a query has one relevance
    counts: Tensor  # [queries, 2]: of listed items and of positives
    ends: Tensor  # [queries, 2]: the highest and the lowest score
    by_level: Tensor | None  # the relevance of each level

    def take(self, block: slice) -> Survey:
        """The same of some queries."""
        by_level = None if self.by_level is None else self.by_level[block]
        return self._replace(counts=self.counts[block], ends=self.ends[block], by_level=by_level)

    def fits(self, items: int, plus: Step, minus: Step) -> bool:
        """Whether there is a grid for these scores, and few enough levels of one relevance each."""
        smooth = [step for step in (plus, minus) if isinstance(step, Sigmoid | SupStep)]
        bins, taps = self.bins(plus, minus), max((bins_above(step) for step in smooth), default=0)
        is_small = bins <= max(FEW_BINS, items // ITEMS_PER_BIN) and taps <= FEW_BINS
        can_launch = max(bins, items / READ["BLOCK"]) <= MOST_PROGRAMS
        return self.regular and 0 < self.depth <= MOST_LEVELS and is_small and can_launch

    def bins(self, plus: Step, minus: Step) -> float:
        """How many bins the grids of these steps have at most."""
        smooth = (step for step in (plus, minus) if isinstance(step, Sigmoid | SupStep))
        return 1 + max((self.range * bins_per_score(step) for step in smooth), default=0.0)

    def rows(self, items: int, plus: Step, minus: Step, budget: int) -> int:
        """How many queries make a block."""
        rows = budget // int(24 * items + 24 * 4 * self.depth * self.bins(plus, minus))
        return max(1, rows, min(4 * rows, BUSY_ROWS))


def survey(scores: Tensor, level: Tensor, relevance: Tensor | None) -> Survey:
    """Read what is to be known of a batch. The host waits for the device once."""
    scores, level = scores.detach().contiguous(), _signed(level)
    relevance = None if relevance is None else relevance.to(scores.dtype).contiguous()
    queries, items = scores.shape
    facts = scores.new_empty((queries, 4), dtype=torch.float64)
    counts = scores.new_empty((queries, 2), dtype=torch.int32)
    ends = scores.new_empty((queries, 2))
    by_level = None if relevance is None else scores.new_empty(queries, list_kernels.SLOTS.value)
    with _on_device_of(scores):
        list_kernels.survey[(queries,)](
            scores, level, scores if relevance is None else relevance, facts, counts, ends,
            scores if by_level is None else by_level, items,
            WEIGHTED=relevance is not None, BLOCK=min(1024, triton.next_power_of_2(items)),
        )  # fmt: skip
    widest, most, depth, irregular, positives = torch.cat([facts.amax(0), facts[:, 1].mean(0, keepdim=True)]).tolist()
    return Survey(widest, positives, int(most), int(depth), not irregular, counts, ends, by_level)


def runs_gridded(scores: Tensor, level: Tensor, plus: Step, minus: Step) -> bool:
    """Whether the kernels know these steps and dtypes."""
    known_steps = isinstance(plus, Heaviside | Sigmoid) and isinstance(minus, Heaviside | Sigmoid | SupStep)
    return scores.dtype == torch.float32 and not level.dtype.is_floating_point and known_steps


def gridded_on_gpu(
    scores: Float[Tensor, "queries items"],
    level: Shaped[Tensor, "queries items"],
    relevance: Float[Tensor, "queries items"] | None = None,
    *,
    plus: Step = heaviside,
    minus: Step = SupStep(),
    known: Survey | None = None,
    budget: int = BUDGET,
) -> Ranks:
    """Ranks as in `gridded`, for float32 scores; two runs give the same bits. `known` is the survey, if it was made before.

    Scores without a grid, and levels without one relevance each, are ranked by `fused`.
    """
    if not runs_gridded(scores, level, plus, minus):
        raise ValueError(
            f"on a GPU, gridded ranks need float32 scores, integer levels and steps out of (heaviside | Sigmoid, heaviside | "
            f"Sigmoid | SupStep), not {scores.dtype}, {level.dtype}, {plus} and {minus}; leave `using` out."
        )
    if not scores.numel():
        return fused(scores, level, relevance, plus=plus, minus=minus)
    known = survey(scores, level, relevance) if known is None else known
    if not known.fits(scores.shape[1], plus, minus):
        return fused(scores, level, relevance, plus=plus, minus=minus)
    rows = known.rows(scores.shape[1], plus, minus, budget)
    return Ranks(*Ranked.apply(_GRIDDED, (known, rows), plus, minus, scores.contiguous(), _signed(level), None))


@by_kernels
def gridded(plain: Implementation, *arguments: Any, **options: Any) -> Ranks:
    """`gridded_on_gpu`, under the name that users know."""
    return gridded_on_gpu(*arguments, **options)


def _signed(level: Tensor) -> Tensor:
    """The levels as the kernels read them: what is out of a list is marked by −1."""
    return (level if level.dtype.is_signed else level.to(torch.int32)).contiguous()


class _Lists(NamedTuple):
    """The items of some queries by decreasing score, the place that each has in the batch, and the sources among them."""

    scores: Tensor
    level: Tensor
    order: Tensor
    slots: Tensor  # forward, the positions of the positives
    source_scores: Tensor
    source_level: Tensor
    source_weight: Tensor
    known: Survey


def _gridded_ranks(
    scores: Tensor, level: Tensor, relevance: None, plus: Step, minus: Step, known: Survey, rows: int, *, sloped: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The relevance is that of each level, in `known`."""
    parts = _parts(plus, minus, known)
    no_rank = [0.0, math.inf] if known.by_level is None else [0.0, math.inf, 0.0]
    results = [torch.full_like(scores, value) for value in no_rank]
    slopes = [torch.empty_like(scores) for _ in parts]
    order = torch.empty_like(scores, dtype=torch.int16 if scores.shape[1] < 2**15 else torch.int32)
    with _on_device_of(scores):
        for block in _blocks(scores, rows):
            found = [result[block] for result in results]
            lists = _sort(scores[block], level[block], order[block], known.take(block), found)
            for (part, step), slope in zip(parts.items(), slopes, strict=True):
                _sums(lists, part, step, found[part], slope[block])
    return results, [order, *slopes]


def _gridded_gradient(
    grads: Grads, scores: Tensor, level: Tensor, relevance: None, plus: Step, minus: Step, *shared: Any, saved: Saved
) -> Tensor:
    known, rows = shared
    order, *slopes = saved
    gradient = torch.zeros_like(scores)
    steps = zip(_parts(plus, minus, known).items(), slopes, strict=True)
    given = [(part, step, slope, grad) for (part, step), slope in steps if (grad := grads[part]) is not None]
    with _on_device_of(scores):
        for block in _blocks(scores, rows):
            for place, (part, step, slope, whole) in enumerate(given):
                grad = whole[block].contiguous()
                lists = _sort_again(scores[block], level[block], grad, order[block], known.take(block))
                _sums(lists, part, step, gradient[block], slope[block], grad, first=place == 0)
    return gradient


_GRIDDED = Algorithm("gridded", _gridded_ranks, _gridded_gradient)


def _parts(plus: Step, minus: Step, known: Survey) -> dict[int, SmoothStep]:
    """The steps of those ranks that are smooth, by their place among the results."""
    steps = {PLUS: plus, MINUS: minus} | ({} if known.by_level is None else {HIERARCHICAL: plus})
    return {part: step for part, step in steps.items() if isinstance(step, Sigmoid | SupStep)}


def _blocks(scores: Tensor, rows: int) -> Iterator[slice]:
    """Blocks of equal size, of so many queries at most."""
    rows = triton.cdiv(len(scores), triton.cdiv(len(scores), rows))
    return (slice(start, start + rows) for start in range(0, len(scores), rows))


def _sort(scores: Tensor, level: Tensor, order: Tensor, known: Survey, results: list[Tensor]) -> _Lists:
    """Sort the items, write their places into `order`, and into `results` the ranks under Heaviside's step."""
    queries, items = scores.shape
    falling, ranking = scores.masked_fill(level < 0, -torch.inf).sort(dim=-1, descending=True, stable=True)
    order.copy_(ranking)
    del ranking  # the largest, of 8 bytes a score
    sorted_level, slots = torch.empty_like(scores, dtype=torch.int8), torch.empty_like(order)
    bits = items.bit_length()
    in_word = min(63 // bits, known.depth)
    words = scores.new_empty((queries, triton.cdiv(known.depth, in_word), items), dtype=torch.int64)
    packing = {"IN_WORD": in_word, "WORDS": words.shape[1]}
    list_kernels.arrange[(queries,)](
        level, order, sorted_level, slots, words, items, known.depth, bits, **packing, **_row_by_row(items)
    )
    weighted = known.by_level is not None
    list_kernels.exact[(queries, triton.cdiv(known.most_positives, EXACT["BLOCK"]))](
        falling, sorted_level, slots, order, words, known.counts, known.by_level if weighted else falling, *results[:2],
        results[-1], items, bits, WEIGHTED=weighted, DEPTH=known.depth, **packing, **EXACT,
    )  # fmt: skip
    return _Lists(falling, sorted_level, order, slots, falling, sorted_level, falling, known)


def _sort_again(scores: Tensor, level: Tensor, grad: Tensor, order: Tensor, known: Survey) -> _Lists:
    """The sorted items as forward found them; the sources are the positives, with the gradient of their ranks."""
    queries, items = scores.shape
    falling, sorted_level = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.int8)
    source_scores, source_weight = (scores.new_empty(queries, known.most_positives) for _ in range(2))
    source_level = torch.empty_like(source_scores, dtype=torch.int8)
    list_kernels.rearrange[(queries,)](
        scores, level, grad, order, falling, sorted_level, source_scores, source_level, source_weight, items,
        known.most_positives, **_row_by_row(items),
    )  # fmt: skip
    return _Lists(falling, sorted_level, order, order, source_scores, source_level, source_weight, known)


def _row_by_row(items: int) -> dict[str, int]:
    """The size of kernels that walk along a row: the fewer steps it takes, the less they wait."""
    return {"BLOCK": min(4096, triton.next_power_of_2(items)), "num_warps": 16 if items > 4096 else 4}


def _sums(
    lists: _Lists,
    part: int,
    step: SmoothStep,
    values: Tensor,
    slopes: Tensor,
    grad: Tensor | None = None,
    *,
    first: bool = False,
) -> None:
    """Write the ranks of one part and their slopes; or, given their gradient, write (if first) or add to that of the scores."""
    *_, sources, source_level, weight, known = lists
    (queries, items), most_sources = lists.scores.shape, sources.shape[1]
    table = step_table(step, sources.device)
    bins, depth, cut = table.bins(known.range), known.depth, len(table.cut) if isinstance(step, SupStep) else 0
    flip = depth if part == MINUS else depth + 1
    backward = grad is not None
    most_targets = items if backward else known.most_positives
    tiles = most_sources // TILE + 1
    starts = sources.new_empty((queries, bins + 1), dtype=torch.int32)
    moments = sources.new_empty((queries, depth, bins, TERMS))
    running = sources.new_empty((queries, tiles, depth, TERMS) if cut else (1,))
    coefficients = sources.new_empty((queries, depth, bins, 2 * TERMS))
    by_level = sources if known.by_level is None else known.by_level
    kinds = {"KIND": part, "REVERSED": backward, "CUT": cut, "TERMS": TERMS}
    grid_kernels.edges[(queries, triton.cdiv(bins + 1, 64))](
        sources, known.counts, known.ends, starts, table.numbers, most_sources, bins, most_sources.bit_length(),
        REVERSED=backward, BLOCK=64,
    )  # fmt: skip
    grid_kernels.spread[(queries, bins)](
        sources, source_level, weight, known.counts, known.ends, by_level, starts, moments, running, table.numbers,
        most_sources, bins, tiles, depth, flip, COLUMNS=triton.next_power_of_2(depth), TILE=TILE, **kinds, **SPREAD,
    )  # fmt: skip
    grid_kernels.connect[(triton.cdiv(queries * depth, CONNECT["ROWS"]),)](
        moments, coefficients, table.near, table.numbers, queries * depth, bins, table.above, len(table.near),
        TERMS=TERMS, **CONNECT,
    )  # fmt: skip
    line = (step.rho, step.delta, step.height - step.jump - 1, step.jump) if isinstance(step, SupStep) else (0.0,) * 4
    grid_kernels.read[(queries, triton.cdiv(most_targets, READ["BLOCK"]))](
        *lists[:-1], known.counts, known.ends, by_level, starts, running, coefficients, table.cut, table.numbers,
        sources if grad is None else grad, slopes, values, items, most_sources, bins, tiles, depth, flip, table.above,
        1 / step.tau, *line,
        FIRST=first, TILE=TILE, **kinds, **READ,
    )  # fmt: skip


def _on_device_of(scores: Tensor) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(scores.device) if scores.is_cuda else contextlib.nullcontext()
