"""Two runs, folders of embeddings or files, evaluated on the same queries so that they can be compared query by query."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.label_encoding import labels_at
from suprank.evaluation.metric_names import LEVEL_MEANS, parse_metric
from suprank.evaluation.report_text import in_words
from suprank.evaluation.units import query_classes, same_classes
from suprank.workflows.evaluation import EvaluationInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from suprank.evaluation import Report

EMBEDDING_FILES = (".npy", ".parquet", ".pt")


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationPair:
    """Both sides of a comparison, at the levels that both have and with the k, decay and weights of the first.

    `rows` has, for each query of `own`, its row in `other`; None if both are in the same order. `left_out` names the levels
    that only one side has.
    """

    names: tuple[str, str]
    own: EvaluationInput
    other: EvaluationInput
    rows: NDArray[np.int64] | None
    left_out: tuple[str, ...] = ()

    def evaluate_other(self, **options: Any) -> Report:
        """The report of the other side, its values per query in the order of our queries."""
        from suprank.explorer.findings.query_metrics import reorder_queries

        report = self.other.evaluate(**{**options, "per_query": True})
        return report if self.rows is None else reorder_queries(report, self.rows)

    def common_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `evaluate` without the weights and metrics of levels that only one side has."""
        common = self.own.labels.names
        metrics = settings.get("metrics")
        kept = [metric for metric in metrics or () if parse_metric(metric).level in (None, *LEVEL_MEANS, *common)]
        if metrics and not kept:
            raise ValueError(
                f"{', '.join(metrics)}: there is no such metric of both sides, whose common levels are {', '.join(common)}; "
                f"name a metric of one of these."
            )
        return {**settings, "weights": _weights_at(settings.get("weights"), common), "metrics": kept or None}


def pair_with_folder(
    data: EvaluationInput,
    folder: Path,
    against: Path,
    *,
    levels: Sequence[str] = (),
    test: str | None = None,
    frozen: bool = False,
    trust_code: bool = False,
    device: str | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> EvaluationPair:
    """Pair `data`, which was read from `folder`, with another folder of `suprank train` or `suprank embed`.

    Queries are matched by id, or else by path and box. Test images of a run are embedded first if they are not yet. With
    `frozen`, the other side is the backbone of the run in `against` before training. `levels` are those that the user chose.
    """
    from suprank.workflows.opening import open_data

    names = distinct_names(folder, against, frozen=frozen, head=data.head is not None)
    tests = [test if (one / "recipe.toml").is_file() else None for one in (folder, against)]
    how: dict[str, Any] = {"trust_code": trust_code, "device": device, "progress": progress}
    other = EvaluationInput.read(against, test=tests[1], frozen=frozen, **how)
    both = [open_data(folder, test=tests[0], **how), open_data(against, test=tests[1], frozen=frozen, **how)]
    own_data, other_data = (replace(one, name=name) for one, name in zip(both, names, strict=True))
    rows = own_data.match(other_data)
    own_levels, other_levels = data.labels.names, other.labels.names
    common = tuple(level for level in own_levels if level in other_levels)
    if not common:
        raise ValueError(
            f"{names[0]} is evaluated at {', '.join(own_levels)} and {names[1]} at {', '.join(other_levels)}, so there is "
            f"nothing to compare; name runs or embeddings that share a level."
        )
    left_out = [
        f"{level} ({name} only)"
        for name, known in zip(names, (own_levels, () if levels else other_levels), strict=True)
        for level in known
        if level not in common
    ]
    own = at_levels(data, common)
    other = replace(at_levels(other, common), ks=own.ks, decay=own.decay, weights=own.weights)
    _check_classes(names, common, own.labels.queries, other.labels.queries[rows])
    return EvaluationPair(names=names, own=own, other=other, rows=rows, left_out=tuple(left_out))


def _check_classes(names: tuple[str, str], levels: Sequence[str], own: NDArray[np.int64], other: NDArray[np.int64]) -> None:
    both = [query_classes(dict(zip(levels, np.moveaxis(one, 1, 0), strict=True)), len(one)) for one in (own, other)]
    if different := [level for level in levels if not same_classes(both[0][level], both[1][level])]:
        raise ValueError(
            f"{names[0]} and {names[1]} sort the test images into different classes at {in_words(different)}, so that their "
            f"metrics do not mean the same; embed one manifest with both models."
        )


def pair_with_file(
    data: EvaluationInput,
    file: Path,
    against: Path,
    labels: Path,
    *,
    levels: Sequence[str] = (),
    id_column: str | None = None,
    fill_gaps: bool = False,
    label_separator: str | None = None,
) -> EvaluationPair:
    """Pair `data`, which was read from `file`, with another file of embeddings of the same images in the same order."""
    other = EvaluationInput.from_files(
        against, labels, None, None, levels, id_column, fill_gaps=fill_gaps, label_separator=label_separator
    )
    other = replace(other, ks=data.ks, decay=data.decay, weights=data.weights)
    names = distinct_names(file, against, head=data.head is not None)
    return EvaluationPair(names=names, own=data, other=other, rows=None)


def pair_without_head(data: EvaluationInput, before: EvaluationInput, subject: Path) -> EvaluationPair:
    """Pair `data`, which was read from `subject` and went through a head, with the same embeddings `before` the head."""
    return EvaluationPair(names=distinct_names(subject, subject, head=True), own=data, other=before, rows=None)


def distinct_names(one: Path, other: Path, *, frozen: bool = False, head: bool = False) -> tuple[str, str]:
    """What to call two folders or files: by their names, with as many of their parent folders as tell them apart.

    With `head`, a head is applied to the first, which may then be the same as the second.

    Example:
        >>> from pathlib import Path
        >>> distinct_names(Path("/runs/happier"), Path("/runs/smooth-ap")), distinct_names(Path("/a/test"), Path("/b/test"))
        (('happier', 'smooth-ap'), ('a/test', 'b/test'))
        >>> distinct_names(Path("clip.npy"), Path("clip.npy"), head=True)
        ('clip.npy with head', 'clip.npy')
    """
    first, second = one.resolve(), other.resolve()
    if head:
        names = (first.name, first.name) if first == second and not frozen else distinct_names(one, other, frozen=frozen)
        return f"{names[0]} with head", names[1]
    if frozen:
        return first.name, f"{first.name} before training"
    for number in range(1, max(len(first.parts), len(second.parts)) + 1):
        names = "/".join(first.parts[-number:]), "/".join(second.parts[-number:])
        if names[0] != names[1]:
            return names
    raise ValueError(f"{one} and {other} are the same; name another one to compare with.")


def at_levels(data: EvaluationInput, levels: Sequence[str]) -> EvaluationInput:
    """The same embeddings, evaluated at only these levels."""
    names, queries, gallery = data.labels.names, data.labels.queries, data.labels.gallery
    if tuple(levels) == names:
        return data
    columns = [names.index(level) for level in levels]
    labels = replace(
        data.labels,
        names=tuple(levels),
        queries=labels_at(queries, columns),
        gallery=None if gallery is None else labels_at(gallery, columns),
    )
    return replace(data, labels=labels, weights=_weights_at(data.weights, levels))


def _weights_at(weights: Mapping[str, float] | None, levels: Sequence[str]) -> Mapping[str, float] | None:
    kept = {level: weight for level, weight in (weights or {}).items() if level in levels}
    return kept if any(kept.values()) else None
