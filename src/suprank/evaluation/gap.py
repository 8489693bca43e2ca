"""How far a measure within batches is from the measure over all items: the decomposability gap, and its bounds for AP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.evaluate import evaluate
from suprank.evaluation.inputs import label_pair
from suprank.evaluation.names import OVERALL, parse
from suprank.evaluation.progress import progress_to
from suprank.evaluation.search import Search, device_for, ignore

if TYPE_CHECKING:
    from jaxtyping import Float, Integer
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.embeddings import Source
    from suprank.evaluation.progress import Progress

    Batches = int | Tensor | ArrayLike | Iterable[Tensor | ArrayLike]

_NAMED = 5  # items that an error names before it only counts
_ROW_BYTES = 128 * 2**20  # of the queries of a batch, which are copied


@dataclass(frozen=True, eq=False)
class Gap:
    """The decomposability gap (eq:decomposability-gap), signed: above 0, batches make the measure look better than it is."""

    value: float  # mean over the queries; NaN when none has a positive
    in_batches: float  # mean of the first term, the measure within batches
    overall: float  # mean of the second, the measure over all items
    queries_left_out: int  # without any positive
    per_query: NDArray[np.float64] = field(repr=False)  # NaN for those left out


def decomposability_gap(
    embeddings: Source,
    labels: Tensor | ArrayLike,
    batches: Batches,
    measure: str = "AP",
    *,
    gallery: Source | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    level_names: Sequence[str] | None = None,
    decay: float = 1.0,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
    normalize: bool = True,
    seed: int = 0,
) -> Gap:
    """DG = 1/K Σ_b M_b − M for each query: the mean of its measure over batches, minus its measure over all items.

    `batches` cuts the items (the gallery if one is given, else the queries themselves) into parts that hold each item
    once: a batch size, for items shuffled with `seed`, where the last batch is smaller if the size does not divide their
    number; or a sequence of arrays of item numbers; or an integer for each item, the number of its batch.

    `measure` is a key of `evaluate`, such as "AP", "H-AP", "R@1" or "AP/genus"; other arguments are as there. Every query
    is measured in every batch that holds a positive of it at the levels that the measure looks at, itself left out; K is
    the number of those batches (eq:decomposability-gap takes it that all do). What a measure counts, such as |Ω^(l)| in
    H-AP's relevance, is counted in the batch.

    DG is at most 1 and can be negative: a batch without the hard negatives flatters a query, one in which they meet the
    few positives wrongs it. See `gap_bounds` for what the batches alone say about it.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.0, 1.0]])
        >>> labels = torch.tensor([0, 0, 1, 1, 2])  # item 2 has item 1, of another class, closer than item 3
        >>> decomposability_gap(embeddings, labels, [[0, 1, 4], [2, 3]])
        Gap(value=0.125, in_batches=1.0, overall=0.875, queries_left_out=1)
    """
    source = Embeddings.of(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.of(gallery, "gallery")
    parts = _partition(batches, len(items), seed)
    show = progress_to(progress, "measuring the gap")
    steps = len(source) + len(items)
    options: dict[str, Any] = {
        "level_names": level_names,
        "decay": decay,
        "weights": weights,
        "device": device,
        "memory_budget": memory_budget,
        "metrics": [measure],
        "normalize": normalize,
        "per_query": True,
    }
    report = evaluate(
        source,
        labels,
        None if gallery is None else items,
        gallery_labels,
        progress=lambda done, total: show(done, steps),
        **options,
    )
    overall = _only(report.per_query)
    own, theirs = map(_array, label_pair(labels, gallery_labels, source, None if gallery is None else items))
    looked_at = _coarsest(measure, report.levels)
    related = _Related(own[:, looked_at])
    place = np.full(len(source), -1, np.int64)  # of the query in the batch
    total, number = np.zeros(len(source)), np.zeros(len(source), np.int64)
    done = len(source)
    for part in parts:
        held = items.rows(torch.from_numpy(part))
        if gallery is None:
            place[part] = np.arange(len(part))
        for rows in related.to(theirs[part, looked_at], at_once=max(1, _ROW_BYTES // (4 * source.dim))):
            found = evaluate(
                source.rows(torch.from_numpy(rows)),
                own[rows],
                held,
                theirs[part],
                self_index=place[rows],
                progress=False,
                **options,
            )
            values = _only(found.per_query)
            total[rows] += np.nan_to_num(values)
            number[rows] += ~np.isnan(values)
        if gallery is None:
            place[part] = -1
        done += len(part)
        show(done, steps)
    in_batches = np.divide(total, number, out=np.full(len(source), np.nan), where=number > 0)
    gap = in_batches - overall
    valid = ~np.isnan(gap)
    return Gap(
        value=_mean(gap),
        in_batches=_mean(in_batches[valid]),
        overall=_mean(overall[valid]),
        queries_left_out=int((~valid).sum()),
        per_query=gap,
    )


@dataclass(frozen=True, eq=False)
class GapBounds:
    """Upper bounds on the gap of AP at the finest level: means over the queries, and each query's.

        plain              eq:upperBound, batches in the order given (`gap_bound`)
        refined            eq:upperBoundRefined, batches in the order given (`refined_gap_bound`)
        plain_any_order    holds whatever the order (`gap_bound_in_any_order`)
        refined_any_order  holds whatever the order (`refined_gap_bound_in_any_order`)
        queries_left_out   without any positive; NaN in `per_query`, which has the four names above as keys

    All of them speak of queries whose batches are each ranked perfectly. Else the gap can be larger: with batches A and B
    of one positive and one negative each, ranked A⁻ B⁺ B⁻ A⁺, the gap is 1/4 and the plain bound 1/6.
    """

    plain: float
    refined: float
    plain_any_order: float
    refined_any_order: float
    queries_left_out: int
    per_query: Mapping[str, NDArray[np.float64]] = field(repr=False)


def gap_bounds(
    embeddings: Source,
    labels: Tensor | ArrayLike,
    batches: Batches,
    positive_floor: float = 0.9,
    negative_ceiling: float = 0.6,
    *,
    gallery: Source | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    device: torch.device | str | None = None,
    memory_budget: int | None = None,
    progress: bool | Progress = True,
    normalize: bool = True,
    seed: int = 0,
) -> GapBounds:
    """The two bounds of the paper's appendix on the decomposability gap of AP, from what each batch holds for each query.

    Positives share the query's finest label; G⁺ of them have s ≥ α = `positive_floor`. All other items are negatives; E⁻
    of them have s > β = `negative_ceiling`: the pairs that eq:labs penalizes are E⁺ = |Ω⁺| − G⁺ and E⁻. The query is not
    counted. Other arguments are as in `decomposability_gap`; batches stand in the order given, or of their numbers.

    The query's own batch has one item fewer than the others, so that batches are never all alike, which the paper
    assumes: read `plain_any_order` and `refined_any_order`, which do without. Under torch.distributed every process does
    all the work.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
        >>> bounds = gap_bounds(embeddings, torch.tensor([0, 0, 0, 1]), [[0, 1], [2, 3]])
        >>> bounds.per_query["plain"].round(4).tolist()  # the first batch has no negatives
        [0.0, 0.0, 0.0, nan]
        >>> bounds.per_query["plain_any_order"].round(4).tolist()  # the second batch could stand above it
        [0.1667, 0.1667, 0.4167, nan]
    """
    if not positive_floor > negative_ceiling:
        raise ValueError(
            f"positive_floor={positive_floor} must be above negative_ceiling={negative_ceiling}, or items that keep to both "
            f"could stand in the wrong order; the paper uses 0.9 and 0.6."
        )
    source = Embeddings.of(embeddings, "embeddings")
    items = source if gallery is None else Embeddings.of(gallery, "gallery")
    parts = _partition(batches, len(items), seed)
    own, theirs = _classes(*map(_array, label_pair(labels, gallery_labels, source, None if gallery is None else items)))
    search = Search(source, items, device=device_for(device, source), memory_budget=memory_budget, normalize=normalize)
    counting = _Counting(search, own, theirs, parts, itself=gallery is None)
    found = np.empty((4, len(source)))
    show = progress_to(progress, "bounding the gap")
    # A batch takes about as much as four positives do in a search, and the masks take as much as the scores.
    for block in search.blocks(np.full(len(source), 4 * len(parts) + search.chunk // 8)):
        positives, negatives, good, bad = counting.of(np.arange(block.start, block.stop), positive_floor, negative_ceiling)
        found[0, block] = gap_bound(positives, negatives)
        found[1, block] = refined_gap_bound(positives, negatives, good, bad)
        found[2, block] = gap_bound_in_any_order(positives, negatives)
        found[3, block] = refined_gap_bound_in_any_order(positives, negatives, good, bad)
        show(block.stop, len(source))
    names = ("plain", "refined", "plain_any_order", "refined_any_order")
    per_query = dict(zip(names, found, strict=True))
    means = {name: _mean(values) for name, values in per_query.items()}
    return GapBounds(**means, queries_left_out=int(np.isnan(found[0]).sum()), per_query=per_query)


def gap_bound(
    positives: Integer[np.ndarray, "*queries batches"], negatives: Integer[np.ndarray, "*queries batches"]
) -> Float[np.ndarray, "*queries"]:
    """1 − 1/Σ|Ω⁺_b| Σ_b Σ_{j=1..|Ω⁺_b|} r / (r + Σ_{a<b} |Ω⁻_a|), r = j + Σ_{a<b} |Ω⁺_a|   (eq:upperBound).

    This is the gap of AP when each batch is ranked perfectly (M_b = 1) and stands as a whole above the next. With as many
    positives and as many negatives in every batch, no other ranking that is perfect in each batch has a larger gap. Else
    the order of the batches matters, and the value is a bound only in the worst of them: with positives (2, 1) and
    negatives (0, 1) it is 0, yet the gap is 7/36 when the second batch stands above the first. NaN without positives.
    """
    positives, negatives = _counts(positives=positives, negatives=negatives)
    return _one_minus(_precision(positives, _before(positives), _before(negatives)), positives)


def refined_gap_bound(
    positives: Integer[np.ndarray, "*queries batches"],
    negatives: Integer[np.ndarray, "*queries batches"],
    good_positives: Integer[np.ndarray, "*queries batches"],
    bad_negatives: Integer[np.ndarray, "*queries batches"],
) -> Float[np.ndarray, "*queries"]:
    """1 − 1/Σ|Ω⁺_b| Σ_b [ Σ_{j=1..G⁺_b} r/(r + Σ_{a<b} E⁻_a) + Σ_{j=1..E⁺_b} t/(t + Σ_{a<b} |Ω⁻_a|) ]   (eq:upperBoundRefined),

    r = j + Σ_{a<b} G⁺_a and t = j + G⁺_b + Σ_{a<b} |Ω⁺_a|. Positives with s ≥ α are G⁺ (`good_positives`) and the others E⁺;
    negatives with s > β are E⁻ (`bad_negatives`). NaN without positives.

    When each batch is ranked perfectly and all batches have the same four counts, it bounds the gap of AP. The largest
    value over the orders of the batches always does. In a given order it does not, even with equal sizes and equal
    numbers of positives, which is what the paper assumes: of two batches of one positive and one negative each, let all
    positives be good and only the second's negative bad. The value is 0, and the gap is 1/6 when the second batch stands
    above the first.

    It is attained where all positives but those of the last batch are good and the last batch has no bad negative.
    Elsewhere it can be loose, even above `gap_bound`: with one positive and one negative each, the first batch's positive
    and negative both bad, the second's both good, it is 1/4 and the plain bound 1/6.
    """
    positives, negatives, good, bad = _counts(
        positives=positives, negatives=negatives, good_positives=good_positives, bad_negatives=bad_negatives
    )
    for part, whole, names in (
        (good, positives, ("good_positives", "positives")),
        (bad, negatives, ("bad_negatives", "negatives")),
    ):
        if (part > whole).any():
            at = tuple(np.argwhere(part > whole)[0].tolist())
            raise ValueError(f"{names[0]} at {at} are {part[at]}, more than the {whole[at]} {names[1]} that they are among.")
    precision = _precision(good, _before(good), _before(bad))
    precision += _precision(positives - good, good + _before(positives), _before(negatives))
    return _one_minus(precision, positives)


def gap_bound_in_any_order(
    positives: Integer[np.ndarray, "*queries batches"], negatives: Integer[np.ndarray, "*queries batches"]
) -> Float[np.ndarray, "*queries"]:
    """`gap_bound` of the numbers of positives in increasing and those of negatives in decreasing order.

    It bounds the gap of AP whatever the counts, when each batch is ranked perfectly: negatives of c batches can stand above
    the i-th positive only where all positives of c batches do, so the c smallest number less than i, and these negatives
    are no more than those of the c batches with the most. It is attained when the sizes of the batches differ by 1 at most.
    """
    positives, negatives = _counts(positives=positives, negatives=negatives)
    return gap_bound(_rising(positives), _falling(negatives))


def refined_gap_bound_in_any_order(
    positives: Integer[np.ndarray, "*queries batches"],
    negatives: Integer[np.ndarray, "*queries batches"],
    good_positives: Integer[np.ndarray, "*queries batches"],
    bad_negatives: Integer[np.ndarray, "*queries batches"],
) -> Float[np.ndarray, "*queries"]:
    """`refined_gap_bound` of the counts G⁺ and E⁺ in increasing and those of negatives and E⁻ in decreasing order.

    It bounds the gap of AP whatever the counts, when each batch is ranked perfectly, as `gap_bound_in_any_order` does: the
    argument holds for the good positives, above which only bad negatives can stand, and for the others.
    """
    positives, negatives, good, bad = _counts(
        positives=positives, negatives=negatives, good_positives=good_positives, bad_negatives=bad_negatives
    )
    return refined_gap_bound(_rising(good) + _rising(positives - good), _falling(negatives), _rising(good), _falling(bad))


def _counts(**given: NDArray[Any]) -> list[NDArray[np.int64]]:
    """The counts as integers of one shape."""
    arrays = {name: np.asarray(array) for name, array in given.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "iu" or array.ndim == 0:
            raise TypeError(f"{name} is {array.dtype} of shape {array.shape}, but must hold integers [..., batches].")
        if (array < 0).any():
            raise ValueError(f"{name} holds {array.min()}, but counts are 0 or more.")
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"counts must have one shape, [..., batches], but have {shapes}.")
    return [array.astype(np.int64) for array in arrays.values()]


def _before(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum over the batches before each batch."""
    return counts.cumsum(-1) - counts


def _rising(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.sort(counts, -1)


def _falling(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return -np.sort(-counts, -1)


def _precision(
    number: NDArray[np.int64], positives_above: NDArray[np.int64], negatives_above: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Σ_b Σ_{j=1..number_b} (j + positives above) / (j + positives above + negatives above)."""
    total = np.zeros(number.shape[:-1])
    for j in range(1, int(number.max(initial=0)) + 1):
        rank = j + positives_above
        total += np.where(j <= number, rank / (rank + negatives_above), 0).sum(-1)
    return total


def _one_minus(precision: NDArray[np.float64], positives: NDArray[np.int64]) -> NDArray[np.float64]:
    number = positives.sum(-1)
    with np.errstate(invalid="ignore"):
        return np.asarray(1 - precision / number)


class _Counting:
    """How many positives and negatives of each kind each batch holds for a query."""

    def __init__(
        self, search: Search, own: NDArray[np.int64], theirs: NDArray[np.int64], parts: list[NDArray[np.int64]], *, itself: bool
    ):
        self.search, self.itself = search, itself
        self.sizes = np.array([len(part) for part in parts])
        batch = np.empty(len(theirs), np.int64)
        for number, part in enumerate(parts):
            batch[part] = number
        self.own, self.theirs, self.batch = (torch.from_numpy(array).to(search.device) for array in (own, theirs, batch))

    def of(self, rows: NDArray[np.int64], floor: float, ceiling: float) -> tuple[NDArray[np.int64], ...]:
        """Positives, negatives, good positives and bad negatives, each `[rows, batches]`."""
        device = self.search.device
        hidden = torch.from_numpy(rows)[:, None].to(device) if self.itself else torch.empty(len(rows), 0, dtype=torch.int64)
        label = self.own[torch.from_numpy(rows).to(device), None]
        positives, good, bad = (np.zeros((len(rows), len(self.sizes)), np.int64) for _ in range(3))
        for first, piece in self.search.scored(rows):
            last = min(first + piece.shape[1], len(self.theirs))
            scores, batch = piece[:, : last - first], self.batch[first:last]
            same = (label == self.theirs[first:last]) & (label >= 0)
            ignore(self.search, piece, hidden, first)  # to −∞: neither good nor bad
            good += self._each(same & (scores >= floor), batch)
            bad += self._each(~same & (scores > ceiling), batch)
            positives += self._each(same & (scores > -torch.inf), batch)
        negatives = self.sizes - positives
        if self.itself:
            negatives[np.arange(len(rows)), self.batch.cpu().numpy()[rows]] -= 1
        return positives, negatives, good, bad

    def _each(self, mask: Tensor, batch: Tensor) -> NDArray[np.int64]:
        """How many are marked in each batch."""
        row, column = mask.nonzero(as_tuple=True)
        number = len(self.sizes)
        found = torch.bincount(row * number + batch[column], minlength=len(mask) * number)
        return found.view(len(mask), number).cpu().numpy()


class _Related:
    """Which queries have a label, by the label: without a search through all queries for every batch."""

    def __init__(self, labels: NDArray[np.int64]):
        self.order = np.argsort(labels, kind="stable")
        self.ordered = labels[self.order]

    def to(self, labels: NDArray[np.int64], *, at_once: int) -> list[NDArray[np.int64]]:
        """The queries that share one of these labels, some at a time; −1 is nobody's."""
        wanted = np.unique(labels[labels >= 0])
        first, last = np.searchsorted(self.ordered, wanted, "left"), np.searchsorted(self.ordered, wanted, "right")
        ranges = [self.order[start:stop] for start, stop in zip(first, last, strict=True)]
        rows = np.sort(np.concatenate(ranges)) if ranges else np.empty(0, np.int64)
        return [rows[start : start + at_once] for start in range(0, len(rows), at_once)]


def _classes(own: NDArray[np.int64], theirs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One number for each class at the finest level, whose ancestors are shared too; −1 where a label is missing."""
    both = np.concatenate([own, theirs])
    _, number = np.unique(both, axis=0, return_inverse=True)
    number = np.where((both < 0).any(1), -1, number.reshape(-1))
    return number[: len(own)], number[len(own) :]


def _coarsest(measure: str, levels: Sequence[str]) -> int:
    """The column of the coarsest labels that the measure looks at: items that share none there are no positives."""
    metric = parse(measure)
    if metric.hierarchical or metric.level == OVERALL:
        return len(levels) - 1
    return 0 if metric.level is None else list(levels).index(metric.level)


def _only(values: Mapping[str, NDArray[np.float64]] | None) -> NDArray[np.float64]:
    assert values is not None
    (column,) = values.values()
    return column


def _mean(values: NDArray[np.float64]) -> float:
    valid = values[~np.isnan(values)]
    return float(valid.mean()) if len(valid) else float("nan")


def _partition(batches: Batches, items: int, seed: int) -> list[NDArray[np.int64]]:
    """The items of each batch, every item in one of them."""
    if isinstance(batches, int | np.integer) and not isinstance(batches, bool):
        if batches < 1:
            raise ValueError(f"batches={batches} is a batch size and must be 1 or more; try 256.")
        shuffled = np.random.default_rng(seed).permutation(items)
        return [shuffled[start : start + int(batches)] for start in range(0, items, int(batches))]
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"batches={batches!r} must be a batch size, arrays of item numbers, or an integer for each item, its batch."
        )
    given: Any = batches if isinstance(batches, np.ndarray | torch.Tensor) else list(batches)
    if len(given) and np.ndim(_array(given[0])) == 0:
        return _by_number(_integers(given, "batches"), items)
    parts = [_integers(part, f"batches[{number}]") for number, part in enumerate(given)]
    for number, part in enumerate(parts):
        if part.ndim != 1 or not len(part):
            raise ValueError(f"batches[{number}] has shape {part.shape}, but must be a list of item numbers, at least one.")
    together = np.concatenate(parts) if parts else np.empty(0, np.int64)
    outside = np.unique(together[(together < 0) | (together >= items)])
    if len(outside):
        raise ValueError(f"batches hold {_listed(outside)}, but items are numbered 0 to {items - 1}.")
    times = np.bincount(together, minlength=items)
    repeated, missing = np.flatnonzero(times > 1), np.flatnonzero(times == 0)
    if len(repeated) or len(missing):
        wrong = f"hold {_listed(repeated)} more than once" if len(repeated) else f"lack {_listed(missing)}"
        raise ValueError(
            f"batches must hold each of {items} items once, but {wrong}; a sampler that repeats or drops items does not "
            f"cut them into batches: give a batch size, or leave those items out of the embeddings too."
        )
    return parts


def _by_number(number: NDArray[np.int64], items: int) -> list[NDArray[np.int64]]:
    if len(number) != items:
        raise ValueError(f"batches holds {len(number)} batch numbers for {items} items; give one for each.")
    if number.min() < 0:
        raise ValueError(f"batches holds {number.min()} for item {int(number.argmin())}, but batches are numbered from 0 on.")
    order = np.argsort(number, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def _array(values: object) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _integers(values: object, name: str) -> NDArray[np.int64]:
    array = _array(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}, but must hold integers: item numbers, or a batch number for each item.")
    return array.astype(np.int64)


def _listed(numbers: NDArray[np.int64]) -> str:
    """`item 3`, `items 3, 7`, or the first of many and how many."""
    first = ", ".join(str(number) for number in numbers[:_NAMED].tolist())
    more = f", ... ({len(numbers)} of them)" if len(numbers) > _NAMED else ""
    return f"item{'s' if len(numbers) > 1 else ''} {first}{more}"
