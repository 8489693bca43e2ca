"""Evaluate a run, a folder of embeddings, files, arrays, or ranked lists; and two of them on the same queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation import Report, RetrievalData
    from suprank.evaluation.truth import TruthSource
    from suprank.models import Head
    from suprank.system.progress import Progress


def evaluate(
    subject: Any,
    labels: Any = None,
    gallery: Any = None,
    gallery_labels: Any = None,
    *,
    truth: TruthSource | None = None,
    levels: Sequence[str] = (),
    test: str | None = None,
    frozen: bool = False,
    head: str | PathLike[str] | Head | None = None,
    id_column: str | None = None,
    fill_gaps: bool = False,
    label_separator: str | None = None,
    trust_code: bool = False,
    device: str | None = None,
    progress: bool | Progress = True,
    **settings: Any,
) -> Report:
    """The exact metrics of stored embeddings, of arrays, or of ranked lists.

    `subject` is one of

    - a place with embeddings: a run, a folder of `suprank embed`, a file with `labels` in a file, or a Hugging Face dataset
      with a column of embeddings. `suprank.open_data` opens it with `levels`, `test`, `frozen`, `head`, `id_column`,
      `fill_gaps`, `label_separator` and `trust_code`.
    - `RetrievalData`, or embeddings and `labels` in arrays, whose columns `levels` names.
    - a file of ranked lists: a TREC run (.trec, .run, .txt, or any other extension) or ranx's .json or .parquet, with judgments
      for `truth` and the settings of `suprank.evaluation.evaluate_run`; or predictions (.csv), with GLDv2's solution.

    `settings` are those of `suprank.evaluation.evaluate`: `metrics`, `ks`, `protocol`, `per_query`, `intervals`, ...

    Example:
        >>> suprank.evaluate("runs/roadmap")["R@1"]  # doctest: +SKIP
        0.694
    """
    from suprank import evaluation
    from suprank.evaluation import RetrievalData
    from suprank.workflows.heads import load_head
    from suprank.workflows.opening import open_data

    opening: dict[str, Any] = {
        "test": test,
        "frozen": frozen,
        "id_column": id_column,
        "fill_gaps": fill_gaps,
        "label_separator": label_separator,
        "trust_code": trust_code,
    }
    given = [name for name, one in opening.items() if one not in (None, False) and name != "trust_code"]
    if isinstance(subject, str | PathLike):
        if lists_kind(subject, truth) is not None:
            return evaluate_lists(subject, truth, **settings)
        opening |= {"head": head, "device": device, "progress": progress is True}
        data = open_data(subject, labels, gallery, gallery_labels, levels=levels, **opening)
        return evaluation.evaluate(data, truth=truth, device=device, progress=progress, **settings)
    if given:
        raise ValueError(f"{given[0]} is for files and folders; leave it out.")
    if not isinstance(subject, RetrievalData):
        arrays = {name: settings.pop(name, None) for name in ("ids", "gallery_ids", "classes")}
        subject = RetrievalData.from_arrays(subject, labels, gallery, gallery_labels, levels=levels or None, **arrays)
    elif levels:
        subject = subject.at_levels(levels)
    if head is not None:
        subject = subject.with_head(load_head(head, device), progress=progress is True)
    return evaluation.evaluate(subject, truth=truth, device=device, progress=progress, **settings)


# Ranked lists


def lists_kind(subject: str | PathLike[str], truth: Any) -> Literal["run", "predictions"] | None:
    """Whether a file has ranked lists, with scores or without; None for embeddings. `.json` and other names need a `truth`."""
    path = Path(subject)
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in (".npy", ".pt", ".arrow"):
        return None
    if suffix == ".csv":
        return "predictions"
    if suffix in (".trec", ".run", ".txt", ".gz"):
        return "run"
    if suffix != ".parquet":
        return None if truth is None or not path.is_file() else "run"
    from suprank.files.binary import open_parquet

    if truth is None or not path.is_file():
        return None
    with open_parquet(path) as file:
        return "run" if "q_id" in file.schema_arrow.names else None


def evaluate_lists(
    lists: str | PathLike[str],
    truth: TruthSource | None,
    *,
    ks: Sequence[int] | None = None,
    per_query: bool = False,
    intervals: bool = False,
    **settings: Any,
) -> Report:
    """The report of a run against judgments (see `evaluate_run`), or of predictions against GLDv2's solution."""
    from suprank.evaluation import Qrels, evaluate_run, landmark_map, read_predictions
    from suprank.evaluation.landmarks import landmark_map_from_files
    from suprank.evaluation.protocols import PROTOCOLS, with_protocol
    from suprank.evaluation.truth import read_truth, split_truth

    if truth is None:
        raise ValueError(f"{lists} has ranked lists, which are evaluated against judgments or a solution; give truth.")
    known = read_truth(truth)
    if isinstance(known, Qrels):
        if ks is not None:
            raise ValueError("ks is for embeddings; name k in metrics, such as NDCG@5.")
        return evaluate_run(lists, known, per_query=per_query, intervals=intervals, **settings)
    if not isinstance(known, Mapping) or lists_kind(lists, truth) != "predictions":
        raise ValueError(f"{lists} has ranked lists, and {truth} is no file of judgments (query 0 item grade); give qrels.")
    if settings := {name: one for name, one in settings.items() if one is not None}:
        raise ValueError(f"{next(iter(settings))} cannot be combined with a solution, whose metric is mAP@100; leave it out.")
    if len(cut_offs := ks or PROTOCOLS["gldv2"].ks) != 1:
        raise ValueError(f"a solution takes one k, not {len(cut_offs)}; leave ks out for 100.")
    if isinstance(truth, str | PathLike):
        path, usage = split_truth(truth)
        report = landmark_map_from_files(lists, path, usage=usage or None, k=cut_offs[0])
    else:
        report = landmark_map(read_predictions(lists), known, cut_offs[0])
    report = with_protocol(report, PROTOCOLS["gldv2"])
    report = report.with_intervals() if intervals else report
    return report if per_query else report.without_queries()


# Two of them


def evaluate_pair(
    own: RetrievalData, other: RetrievalData, settings: Mapping[str, Any], report: Report | None = None
) -> tuple[Report, Report]:
    """Both reports with the values of each query, in the order of ours, at the levels and with the settings that both have.

    `report` is ours, if it was computed at all of our levels: it is computed again where the other side lacks one of them.
    Metrics and weights of levels that only one side has are left out.
    """
    from suprank.evaluation import evaluate
    from suprank.evaluation.metric_names import LEVEL_MEANS, parse_metric

    rows = own.match(other)
    common = [level for level in own.levels if level in other.levels]
    metrics, weights = settings.get("metrics"), settings.get("weights")
    kept = [metric for metric in metrics or () if parse_metric(metric).level in (None, *LEVEL_MEANS, *common)]
    if metrics and not kept:
        raise ValueError(
            f"{', '.join(metrics)}: there is no such metric of both sides, whose common levels are {', '.join(common)}; name a "
            f"metric of one of these."
        )
    ours = own.at_levels(common)
    weights = {level: one for level, one in (weights or {}).items() if level in common}
    given = {**settings, "metrics": kept or None, "weights": weights or None, "per_query": True, "checkpoint": None}
    if report is None or ours is not own:
        report = evaluate(ours, **given)
    theirs = evaluate(replace(other.at_levels(common), defaults=ours.defaults), **given)
    assert theirs.per_query is not None
    return report, replace(
        theirs,
        per_query={key: values[rows] for key, values in theirs.per_query.items()},
        classes=None if theirs.classes is None else {level: one[rows] for level, one in theirs.classes.items()},
        query_ids=report.query_ids,
    )


def levels_left_out(names: tuple[str, str], own: RetrievalData, other: RetrievalData, *, chosen: bool) -> list[str]:
    """The levels that only one side has, with its name; those of the other side not if ours were `chosen`."""
    sides = zip(names, (own.levels, () if chosen else other.levels), (other.levels, own.levels), strict=True)
    return [f"{level} ({name} only)" for name, levels, others in sides for level in levels if level not in others]


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
