"""Evaluate a run, a folder of embeddings, or embeddings in files and arrays."""

from __future__ import annotations

import json
import logging
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.label_digest import label_digests
from suprank.files.reading import reading
from suprank.workflows.opening import open_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation import GroundTruth, Report
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.label_encoding import Labels
    from suprank.evaluation.provenance import Provenance
    from suprank.evaluation.retrieval_data import RetrievalData
    from suprank.files.sharded_array import Shards
    from suprank.models import Head

PROVENANCE = "embeddings"
"""Key of a report's settings under which it says which model made the embeddings, and how it read the images."""

HEAD = "head"
"""Key of a report's settings with the fingerprint of the head that was applied to the embeddings."""

DEFAULT_KS = (1, 10, 100)

TASK = "task.json"
"""Beside the judgments of a task of mteb: its name, its k, and what it does about the query in its own list."""

_log = logging.getLogger(__name__)


def evaluate(
    subject: str | os.PathLike[str] | Tensor | ArrayLike,
    labels: str | os.PathLike[str] | Tensor | ArrayLike | None = None,
    gallery: str | os.PathLike[str] | Tensor | ArrayLike | None = None,
    gallery_labels: str | os.PathLike[str] | Tensor | ArrayLike | None = None,
    *,
    levels: Sequence[str] = (),
    id_column: str | None = None,
    fill_gaps: bool = False,
    label_separator: str | None = None,
    test: str | None = None,
    frozen: bool = False,
    trust_code: bool = False,
    head: str | os.PathLike[str] | Head | None = None,
    protocol: str | None = None,
    qrels: str | os.PathLike[str] | Any | None = None,
    self_match: str | None = None,
    ground_truth: str | os.PathLike[str] | GroundTruth | None = None,
    solution: str | os.PathLike[str] | Mapping[Any, Any] | None = None,
    usage: str | None = None,
    decay: float | None = None,
    weights: Mapping[str, float] | None = None,
    device: str | None = None,
    progress: bool | Callable[[int, int], None] = False,
    **options: Any,
) -> Report:
    """Return the exact metrics of a run, of a folder of embeddings, or of embeddings with labels.

    `subject` is one of

    - a folder of `suprank train`: its test images are embedded first where needed, as training evaluated them. `test` names
      one of its test sets; `frozen` evaluates its backbone before training. A run with a backbone of your own is loaded only
      with `trust_code`.
    - a folder of `suprank embed`, which brings labels, gallery and ids.
    - a file of embeddings (.npy, .parquet, .pt), with `labels` in a file (.csv, .tsv, .parquet, .npy) whose columns `levels`
      names, finest first. Rows with equal `id_column` are one image, which is left out of its own list. `fill_gaps` puts a
      placeholder where a row has a blank between two labels, as in `suprank.data.Manifest.from_columns`. `label_separator` is
      what stands between the labels of an image that has several at a level.
    - an array or tensor, with `labels` in an array: `suprank.evaluation.evaluate` is called as it is.

    `head`, a folder of `suprank adapt` or a `Head`, is applied to queries and gallery first.

    `protocol` evaluates by the conventions of published numbers, `dml`, `mieb`, `revisited` or `gldv2`, with their own metrics:
    see `suprank.evaluation.evaluate_protocol`, which has `qrels`, `self_match`, `ground_truth`, `solution` and `usage` too. If
    `qrels` is the file of a task of mteb that `suprank data import mteb` wrote, `self_match` and the k are those of the task.

    `decay` is that of H-AP and `weights`, by level, those of wAP; they and `ks` are by default those of the run, or 1, equal
    weights and (1, 10, 100). Further options (`metrics`, `intervals`, `per_query`, `memory_budget`, `checkpoint`, ...) are
    those of `suprank.evaluation.evaluate`.

    Example:
        >>> suprank.evaluate("runs/roadmap")["R@1"]  # doctest: +SKIP
        0.694
    """
    from suprank import evaluation

    truth = {"qrels": qrels, "self_match": self_match, "ground_truth": ground_truth, "solution": solution, "usage": usage}
    truth = {name: value for name, value in truth.items() if value is not None}
    if protocol is None and truth:
        raise ValueError(f"{next(iter(truth))} is the ground truth of a protocol; give protocol= too.")
    if protocol is not None:
        check_protocol(protocol, truth, decay=decay, weights=weights)
    has_truth = bool(truth.keys() & {"qrels", "ground_truth", "solution"})
    if not isinstance(subject, str | os.PathLike):
        if labels is None and not has_truth:
            raise ValueError("embeddings in an array need their labels; give labels=.")
        if frozen or test is not None or id_column is not None or fill_gaps or label_separator is not None:
            raise ValueError(
                "id_column, test and frozen are for files and folders, and so are fill_gaps and label_separator; leave them "
                "out, or give ids= for ids."
            )
        queries, items = (subject, gallery) if head is None else _arrays_with_head(subject, gallery, head, device)
        arrays: tuple[Any, Any, Any, Any] = (queries, labels, items, gallery_labels)
        if protocol is not None:
            options |= {"device": device, "progress": progress, "level_names": list(levels) or None, **truth}
            return evaluation.evaluate_protocol(protocol, *arrays, **task_settings(options))
        return evaluation.evaluate(
            *arrays,
            decay=1.0 if decay is None else decay,
            weights=weights,
            device=device,
            progress=progress,
            level_names=list(levels) or None,
            **options,
        )
    if protocol == "revisited":
        others = (labels, gallery, gallery_labels, id_column, test, label_separator)
        if any(one is not None for one in others) or levels or frozen or fill_gaps:
            raise ValueError(
                "protocol='revisited' reads a folder of `suprank embed` and its ground_truth, and no labels; leave out labels, "
                "gallery, gallery_labels, levels, id_column, test, frozen, fill_gaps and label_separator."
            )
        known = evaluation.read_ground_truth(ground_truth) if isinstance(ground_truth, str | os.PathLike) else ground_truth
        if not isinstance(known, evaluation.GroundTruth):
            raise TypeError(
                f"ground_truth is {type(known)}, but the images of a folder are found by the names in the file; name it."
            )
        sides = read_revisited(Path(subject), known, head=head, device=device)
        options |= {"device": device, "progress": progress, "ground_truth": known}
        return evaluation.evaluate_protocol(protocol, sides[0], None, sides[1], **options)
    data = EvaluationInput.read(
        subject,
        labels,
        gallery,
        gallery_labels,
        levels=levels,
        id_column=id_column,
        fill_gaps=fill_gaps,
        label_separator=label_separator,
        test=test,
        frozen=frozen,
        trust_code=trust_code,
        head=head,
        device=device,
        labeled=not has_truth,
    )
    if protocol is not None:
        options |= {"protocol": protocol, **truth}
    return data.evaluate(decay=decay, weights=weights, device=device, progress=progress, **options)


def check_protocol(protocol: str, truth: Mapping[str, Any], *, decay: float | None = None, weights: Any = None) -> None:
    """Refuse an unknown protocol, ground truth of another one, missing ground truth, and settings that it has itself."""
    from suprank.evaluation.protocols import check_inputs, find_protocol

    check_inputs(find_protocol(protocol), truth)
    if protocol == "revisited" and "ground_truth" not in truth:
        raise ValueError("protocol='revisited' needs its ground_truth, such as gnd_roxford5k.pkl.")
    if decay is not None or weights is not None:
        raise ValueError(f"decay and weights are of hierarchical metrics, which protocol={protocol!r} has not; leave them out.")


def task_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a protocol with the settings of the task of mteb that `qrels` was imported from, if its folder says."""
    task = imported_task(options.get("qrels"))
    if task is None:
        return dict(options)
    own = task["self_match"]
    if options.get("self_match") not in (None, own):
        raise ValueError(f"self_match={options['self_match']!r} is not that of {task['name']}, which is {own!r}; leave it out.")
    return {**options, "self_match": own, "ks": options.get("ks") or tuple(task["ks"])}


def imported_task(qrels: Any) -> dict[str, Any] | None:
    """What `suprank data import mteb` wrote about the task beside its judgments: `name`, `self_match`, `ks`, `main_score`."""
    file = Path(qrels).with_name(TASK) if isinstance(qrels, str | os.PathLike) else None
    if file is None or not file.is_file():
        return None
    with reading(file, "task"):
        task = json.loads(file.read_bytes())
    known = isinstance(task, dict) and {"name", "self_match", "ks", "main_score"} <= task.keys()
    return task if known else None  # else it is a file of somebody else's


@dataclass(frozen=True, kw_only=True)
class EvaluationInput:
    """Queries, gallery, labels and ids, as read from files; and, where known, which model made the embeddings.

    `head` is the fingerprint of the head that was applied after reading; None without one. `classes` are the labels of the
    queries at all levels, also those that are not evaluated, and `training` what is known of the model's training: see
    `suprank.evaluation.units`. `query_ids` and `digests` are what the report is matched with another one by.
    """

    queries: Embeddings
    gallery: Embeddings | None
    labels: Labels
    ids: Any
    gallery_ids: Any
    ks: Sequence[int] | None = None
    decay: float = 1.0
    weights: Mapping[str, float] | None = None
    classes: Mapping[str, NDArray[np.int64]] | None = None
    training: Mapping[str, Any] | None = None
    provenance: Provenance | None = None
    head: str | None = None
    query_ids: Any = None
    digests: Mapping[str, str] | None = None

    @classmethod
    def read(
        cls,
        subject: str | os.PathLike[str],
        labels: Any = None,
        gallery: Any = None,
        gallery_labels: Any = None,
        *,
        levels: Sequence[str] = (),
        id_column: str | None = None,
        fill_gaps: bool = False,
        label_separator: str | None = None,
        test: str | None = None,
        frozen: bool = False,
        trust_code: bool = False,
        head: str | os.PathLike[str] | Head | None = None,
        device: str | None = None,
        labeled: bool = True,
        progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    ) -> EvaluationInput:
        """Read a run, a folder of embeddings or files: see `evaluate`. Images without labels are refused if they must be
        `labeled`. `progress` tells of a run's images being embedded, and of embeddings going through the head."""
        if head is not None:
            from suprank.workflows.heads import load_head

            applied = load_head(head, device)  # first: a wrong head should not wait for a run's images
            data = cls.read(
                *(subject, labels, gallery, gallery_labels),
                levels=levels,
                id_column=id_column,
                fill_gaps=fill_gaps,
                label_separator=label_separator,
                test=test,
                frozen=frozen,
                trust_code=trust_code,
                device=device,
                labeled=labeled,
                progress=progress,
            )
            return data.with_head(applied, progress)
        subject = Path(subject)
        if (gallery is None) != (gallery_labels is None):
            raise ValueError("gallery and gallery_labels go together; give both, or neither.")
        if subject.is_dir() and any(given is not None for given in (labels, gallery, id_column)):
            raise ValueError(f"{subject} is a folder, which has its own labels, gallery and ids; to use others, name files.")
        if fill_gaps and labels is None:
            raise ValueError(f"fill_gaps is for a file of labels, and {subject} has its own; leave it out.")
        if label_separator is not None and labels is None:
            raise ValueError(f"label_separator is for a file of labels, and {subject} has its own; leave it out.")
        if not subject.is_dir() and (frozen or test is not None):
            raise ValueError(f"frozen and test are for a folder of `suprank train`, which {subject} is not; leave them out.")
        if labels is not None:
            cells: dict[str, Any] = {"fill_gaps": fill_gaps, "label_separator": label_separator}
            return cls.from_files(subject, labels, gallery, gallery_labels, levels, id_column, **cells, labeled=labeled)
        if not subject.exists():
            raise FileNotFoundError(
                f"{subject} does not exist; name a folder of `suprank train` or `suprank embed`, or a file."
            )
        if not subject.is_dir():
            raise ValueError(f"{subject} needs its labels, because it is a file and not a folder; name a file of labels.")
        opened = open_data(
            subject, levels=levels, test=test, frozen=frozen, trust_code=trust_code, device=device, progress=progress
        )
        if labeled:
            opened.require_labels()
        return cls.from_data(opened)

    @classmethod
    def from_files(
        cls,
        embeddings: Path,
        labels: Path,
        gallery: Path | None,
        gallery_labels: Path | None,
        levels: Sequence[str],
        id_column: str | None,
        *,
        fill_gaps: bool = False,
        label_separator: str | None = None,
        labeled: bool = True,
    ) -> EvaluationInput:
        from suprank.evaluation.embeddings import Embeddings
        from suprank.evaluation.label_encoding import Labels, encode_labels, item_ids, label_names
        from suprank.evaluation.label_tables import read_label_table
        from suprank.evaluation.provenance import Provenance, check_comparable

        # Tables first: they are read at once, and a Parquet file of embeddings is not.
        table = read_label_table(Path(labels))
        gallery_table = None if gallery_labels is None else read_label_table(Path(gallery_labels))
        without = [] if id_column is None else [id_column]
        # With judgments by id, the tables need no column but that of the ids.
        coded = Labels((), np.empty((len(table), 0), np.int64))
        if labeled:
            coded = encode_labels(
                table,
                gallery_table,
                levels=levels,
                without=without,
                fill_gaps=fill_gaps,
                label_separator=label_separator,
                renumber=False,
            )
        classes = None
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):  # of columns that nobody asked for
            if labeled and levels:
                every = encode_labels(table, without=without, fill_gaps=fill_gaps, label_separator=label_separator)
                if set(coded.names) < set(every.names):
                    classes = dict(zip(every.names, np.moveaxis(every.queries, 1, 0), strict=True))
        ids = None if id_column is None else item_ids(table, id_column)
        gallery_ids = None if id_column is None or gallery_table is None else item_ids(gallery_table, id_column)
        queries = Embeddings.from_source(embeddings, "embeddings")
        table.check_rows(len(queries), queries.name)
        items = None
        if gallery is not None and gallery_table is not None:
            made_by = Provenance.read_beside(embeddings), Provenance.read_beside(gallery)
            check_comparable(*made_by, (str(embeddings), str(gallery)), _log.info)
            items = Embeddings.from_source(Path(gallery), "gallery", sequential=True)
            gallery_table.check_rows(len(items), items.name)
        digests = label_digests(ids, {level: label_names(table, level) for level in coded.names if table.array is None})
        if gallery_table is not None and gallery_table.array is None:
            names = {f"gallery {level}": label_names(gallery_table, level) for level in coded.names}
            digests |= label_digests(gallery_ids, names)
        read: dict[str, Any] = {"queries": queries, "gallery": items, "labels": coded, "ids": ids, "gallery_ids": gallery_ids}
        return cls(**read, classes=classes, query_ids=ids, digests=digests)

    @classmethod
    def from_data(cls, data: RetrievalData) -> EvaluationInput:
        from suprank.evaluation.label_encoding import Labels

        queries, gallery, origin = data.queries, data.gallery, data.origin
        is_run = origin.recipe is not None or origin.frozen
        return cls(
            queries=queries.embeddings,
            gallery=None if gallery is None else gallery.embeddings,
            labels=Labels(data.levels, queries.labels, None if gallery is None else gallery.labels),
            ids=queries.ids,
            gallery_ids=None if gallery is None else gallery.ids,
            ks=data.defaults.ks if is_run else None,
            decay=data.defaults.decay,
            weights=data.defaults.weights,
            classes=data.classes,
            training=origin.training,
            provenance=origin.made_by,
            query_ids=queries.keys,
            digests=data.digests,
        )

    def with_head(
        self, head: Head, progress: Callable[[str, int, int], None] = lambda what, done, total: None
    ) -> EvaluationInput:
        """The same queries and gallery after the head. Embeddings that already went through one are refused."""
        from suprank.evaluation.embeddings import Embeddings
        from suprank.evaluation.heads import apply_head, head_added
        from suprank.evaluation.provenance import Provenance

        def applied(side: Embeddings) -> Embeddings:
            made_by = Provenance.read_beside(side.paths[0]) if side.paths else self.provenance
            return Embeddings.from_source(apply_head(side, head, made_by, progress), f"{side.name} after the head")

        queries = applied(self.queries)
        gallery = self.gallery if self.gallery is None else queries
        if self.gallery is not None and not self.gallery.is_same(self.queries):
            gallery = applied(self.gallery)
        provenance = head_added(self.provenance, head)
        return replace(self, queries=queries, gallery=gallery, provenance=provenance, head=head.fingerprint())

    @property
    def _arguments(self) -> dict[str, Any]:
        return {
            "embeddings": self.queries,
            "labels": self.labels.queries,
            "gallery": self.gallery,
            "gallery_labels": self.labels.gallery,
            "level_names": self.labels.names,
            "ids": self.ids,
            "gallery_ids": self.gallery_ids,
            "classes": self.classes,
        }

    def _metric_settings(
        self, ks: Sequence[int] | None, decay: float | None, weights: Mapping[str, float] | None
    ) -> dict[str, Any]:
        """The settings given, or else those of the run."""
        return {
            "ks": next(given for given in (ks, self.ks, DEFAULT_KS) if given is not None),
            "decay": self.decay if decay is None else decay,
            "weights": self.weights if weights is None else weights,
        }

    def evaluate(
        self,
        *,
        ks: Sequence[int] | None = None,
        decay: float | None = None,
        weights: Mapping[str, float] | None = None,
        protocol: str | None = None,
        **options: Any,
    ) -> Report:
        """Return the report, which says which model made the embeddings where that is known.

        With a `protocol`, `options` may hold its ground truth: see `suprank.evaluation.evaluate_protocol`.
        """
        from suprank import evaluation
        from suprank.evaluation.report_comparison import LABELS
        from suprank.evaluation.units import TRAINING

        arguments = self._arguments
        keep, intervals = options.pop("per_query", False), options.pop("intervals", False)
        options["per_query"] = keep or intervals
        if protocol is None:
            arguments |= self._metric_settings(ks, decay, weights)
            report = evaluation.evaluate(**arguments, **options)
        else:
            # Of a run's cut-offs, only those of R@k are a matter of the dataset and not of the protocol.
            options["ks"] = self.ks if ks is None and protocol == "dml" else ks
            given = {name: value for name, value in task_settings(options).items() if value is not None}
            report = evaluation.evaluate_protocol(protocol, **arguments, **given)
        known: dict[str, Any] = {LABELS: self.digests} if self.digests else {}
        if self.provenance is not None:
            known[PROVENANCE] = self.provenance.asdict()
        if self.training is not None:
            known[TRAINING] = dict(self.training)
        if self.head is not None:
            known[HEAD] = self.head
        report = replace(report, settings={**report.settings, **known})
        if keep and report.query_ids is None and self.query_ids is not None and report.n_queries == len(self.query_ids):
            report = replace(report, query_ids=np.array(self.query_ids))
        if intervals:  # after the settings, because their sentence is about the training too
            report = report.with_intervals()
        return report if keep else report.without_queries()


def _arrays_with_head(subject: Any, gallery: Any, head: str | os.PathLike[str] | Head, device: str | None) -> tuple[Any, Any]:
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.heads import apply_head
    from suprank.workflows.heads import load_head

    loaded = load_head(head, device)
    queries = apply_head(Embeddings.from_source(subject), loaded)
    return queries, None if gallery is None else apply_head(Embeddings.from_source(gallery, "gallery"), loaded)


def read_revisited(
    folder: Path, ground_truth: GroundTruth, *, head: str | os.PathLike[str] | Head | None = None, device: str | None = None
) -> tuple[NDArray[Any] | Shards, NDArray[Any] | Shards]:
    """Read queries and gallery in the order in which a revisited dataset's file numbers them, distractors last.

    `head`, if given, is applied to both.
    """
    from suprank.embedding.parts import read_embedded
    from suprank.embedding.query_gallery import column
    from suprank.evaluation.embeddings import Embeddings
    from suprank.evaluation.heads import apply_head
    from suprank.evaluation.provenance import Provenance
    from suprank.workflows.heads import load_head

    loaded = None if head is None else load_head(head, device)
    embeddings: list[Any] = []
    for name, expected in (("query", ground_truth.queries), ("gallery", ground_truth.items)):
        part = read_embedded(folder, name)
        ids = column(part.items, "id") or []
        if part.broken or tuple(ids[: len(expected)]) != expected:
            raise ValueError(
                f"{folder / name} does not hold the {len(expected):,} images of the ground truth, in its order and all whole; "
                f"embed a manifest that `suprank data import` roxford5k or rparis6k made from this very file."
            )
        rows: Any = part.embeddings
        if loaded is not None:
            rows = apply_head(Embeddings.from_source(rows, str(folder / name)), loaded, Provenance.read(folder, name))
        embeddings.append(rows)
    return embeddings[0], embeddings[1]
