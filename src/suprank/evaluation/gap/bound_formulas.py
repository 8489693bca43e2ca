"""Upper bounds on the decomposability gap of AP, from how many positives and negatives each batch holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float, Integer
    from numpy.typing import NDArray


def gap_bound(
    positives: Integer[np.ndarray, "*queries batches"], negatives: Integer[np.ndarray, "*queries batches"]
) -> Float[np.ndarray, "*queries"]:
    """1 − 1/Σ|Ω⁺_b| Σ_b Σ_{j=1..|Ω⁺_b|} r / (r + Σ_{a<b} |Ω⁻_a|), r = j + Σ_{a<b} |Ω⁺_a|   (eq:upperBound).

    This is the gap of AP when each batch is ranked perfectly (M_b = 1) and stands as a whole above the next. With as many
    positives and as many negatives in every batch, no other ranking that is perfect in each batch has a larger gap. Else
    the order of the batches matters, and the value is a bound only in the worst of them: with positives (2, 1) and
    negatives (0, 1) it is 0, yet the gap is 7/36 when the second batch stands above the first. NaN without positives.
    """
    positives, negatives = _check_counts(positives=positives, negatives=negatives)
    return _one_minus_mean(_precision_sum(positives, _sum_before(positives), _sum_before(negatives)), positives)


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
    value over the orders of the batches always does. In a given order it is not a bound, even with equal sizes and equal
    numbers of positives, which is what the paper assumes: of two batches of one positive and one negative each, let all
    positives be good and only the second's negative bad. The value is 0, and the gap is 1/6 when the second batch stands
    above the first.

    It is attained where all positives but those of the last batch are good and the last batch has no bad negative.
    Elsewhere it can be loose, even above `gap_bound`: with one positive and one negative each, the first batch's positive
    and negative both bad, the second's both good, it is 1/4 and the plain bound 1/6.
    """
    positives, negatives, good, bad = _check_counts(
        positives=positives, negatives=negatives, good_positives=good_positives, bad_negatives=bad_negatives
    )
    for part, whole, names in (
        (good, positives, ("good_positives", "positives")),
        (bad, negatives, ("bad_negatives", "negatives")),
    ):
        if (part > whole).any():
            at = tuple(np.argwhere(part > whole)[0].tolist())
            raise ValueError(f"{names[0]} at {at} are {part[at]}, but there are only {whole[at]} {names[1]} in that batch.")
    precision = _precision_sum(good, _sum_before(good), _sum_before(bad))
    precision += _precision_sum(positives - good, good + _sum_before(positives), _sum_before(negatives))
    return _one_minus_mean(precision, positives)


def gap_bound_in_any_order(
    positives: Integer[np.ndarray, "*queries batches"], negatives: Integer[np.ndarray, "*queries batches"]
) -> Float[np.ndarray, "*queries"]:
    """`gap_bound` of the numbers of positives in increasing and those of negatives in decreasing order.

    It bounds the gap of AP whatever the counts, when each batch is ranked perfectly: negatives of c batches can stand above
    the i-th positive only where all positives of c batches do, so the c smallest number less than i, and these negatives
    are no more than those of the c batches with the most. It is attained when the sizes of the batches differ by 1 at most.
    """
    positives, negatives = _check_counts(positives=positives, negatives=negatives)
    return gap_bound(_ascending(positives), _descending(negatives))


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
    positives, negatives, good, bad = _check_counts(
        positives=positives, negatives=negatives, good_positives=good_positives, bad_negatives=bad_negatives
    )
    return refined_gap_bound(
        _ascending(good) + _ascending(positives - good), _descending(negatives), _ascending(good), _descending(bad)
    )


def _check_counts(**counts: NDArray[Any]) -> list[NDArray[np.int64]]:
    """The counts as integers of one shape."""
    arrays = {name: np.asarray(array) for name, array in counts.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "iu" or array.ndim == 0:
            raise TypeError(f"{name} is {array.dtype} of shape {array.shape}, but must hold integers [..., batches].")
        if (array < 0).any():
            raise ValueError(f"{name} holds {array.min()}, but counts are 0 or more.")
    shapes = {name: array.shape for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"counts must have one shape, [..., batches], but have {shapes}.")
    return [array.astype(np.int64) for array in arrays.values()]


def _sum_before(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum over the batches before each batch."""
    return counts.cumsum(-1) - counts


def _ascending(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.sort(counts, -1)


def _descending(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return -np.sort(-counts, -1)


def _precision_sum(
    number: NDArray[np.int64], positives_above: NDArray[np.int64], negatives_above: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Σ_b Σ_{j=1..number_b} (j + positives above) / (j + positives above + negatives above)."""
    total = np.zeros(number.shape[:-1])
    for j in range(1, int(number.max(initial=0)) + 1):
        rank = j + positives_above
        total += np.where(j <= number, rank / (rank + negatives_above), 0).sum(-1)
    return total


def _one_minus_mean(precision: NDArray[np.float64], positives: NDArray[np.int64]) -> NDArray[np.float64]:
    number = positives.sum(-1)
    with np.errstate(invalid="ignore"):
        return np.asarray(1 - precision / number)
