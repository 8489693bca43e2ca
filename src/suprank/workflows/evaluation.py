"""Evaluate a run, a folder of embeddings, or embeddings in files and arrays."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.label_digest import label_digests
from suprank.files.reading import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.embedding import Provenance
    from suprank.embedding.parts import EmbeddedPart
    from suprank.embedding.query_gallery import QueryGallery
    from suprank.evaluation import GroundTruth, Report
    from suprank.evaluation.embeddings import Embeddings
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
    progress: bool | Callable[[int, int], None] = True,
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
            options |= {"device": device, "progress": progress, "levels": list(levels) or None, **truth}
            return evaluation.evaluate_protocol(protocol, *arrays, **task_settings(options))
        return evaluation.evaluate(
            *arrays,
            decay=1.0 if decay is None else decay,
            weights=weights,
            device=device,
            progress=progress,
            levels=list(levels) or None,
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


@dataclass(frozen=True)
class Labels:
    """Integer labels of the queries and, if there is one, of the gallery; `names` are the levels, finest first."""

    names: tuple[str, ...]
    queries: NDArray[Any]
    gallery: NDArray[Any] | None = None


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
    ids: Sequence[str] | None
    gallery_ids: Sequence[str] | None
    ks: Sequence[int] | None = None
    decay: float = 1.0
    weights: Mapping[str, float] | None = None
    classes: Mapping[str, NDArray[np.int64]] | None = None
    training: Mapping[str, Any] | None = None
    provenance: Provenance | None = None
    head: str | None = None
    query_ids: Sequence[str] | None = None
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
        if (subject / "recipe.toml").is_file():
            return cls.from_run(subject, test, levels, device, progress, frozen=frozen, trust_code=trust_code)
        if frozen or test is not None:
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
        return cls.from_folder(subject, levels, labeled=labeled)

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
        from suprank.embedding.provenance import Provenance, check_comparable
        from suprank.evaluation.embeddings import Embeddings
        from suprank.evaluation.labels import label_names, read_label_files

        # Tables first: they are read at once, and a Parquet file of embeddings is not.
        read = read_label_files(
            [labels] if gallery_labels is None else [labels, gallery_labels],
            levels,
            id_column=id_column,
            fill_gaps=fill_gaps,
            label_separator=label_separator,
            labeled=labeled,
        )
        own, *theirs = read.labels
        ids, gallery_ids = (*(read.ids or ()), None, None)[:2]
        queries = Embeddings.from_source(embeddings, "embeddings")
        items = None
        if gallery is not None:
            made_by = Provenance.read_beside(embeddings), Provenance.read_beside(gallery)
            check_comparable(*made_by, (str(embeddings), str(gallery)), _log.info)
            items = Embeddings.from_source(Path(gallery), "gallery", sequential=True)
        for labeled_rows, source in zip(read.labels, (queries, items), strict=False):
            if source is not None and len(labeled_rows) != len(source):
                file = labels if source is queries else gallery_labels
                raise ValueError(
                    f"{file} has {len(labeled_rows)} rows and {source.name} has {len(source)}, but every embedding needs one "
                    f"row of labels, in the same order; write both from the same list."
                )
        digests: dict[str, str] = {}
        for prefix, rows, keys in zip(("", "gallery "), read.labels, (ids, gallery_ids), strict=False):
            words = {
                prefix + level: label_names(rows[:, column], names)
                for column, (level, names) in enumerate((read.names or {}).items())
            }
            digests |= label_digests(keys, words)
        return cls(
            queries=queries,
            gallery=items,
            labels=Labels(read.levels, own, theirs[0] if theirs else None),
            ids=ids,
            gallery_ids=gallery_ids,
            classes=read.classes,
            query_ids=ids,
            digests=digests,
        )

    @classmethod
    def from_folder(cls, folder: Path, levels: Sequence[str], *, labeled: bool = True) -> EvaluationInput:
        """Read a folder of `suprank embed`."""
        from suprank.data import Manifest
        from suprank.data.duplicates import repeated_images
        from suprank.embedding import Provenance, ranked_parts
        from suprank.embedding.parts import PARTS, embedded_parts
        from suprank.embedding.query_gallery import ids_and_digests
        from suprank.embedding.shards import ITEMS
        from suprank.evaluation.embeddings import Embeddings
        from suprank.workflows.run_embeddings import check_run_or_embeddings

        if not any((folder / part).is_dir() for part in PARTS):
            check_run_or_embeddings(folder)
        names, queries, gallery, classes, manifests = read_folder(folder, levels, labeled=labeled)
        query_ids, digests = ids_and_digests(*manifests, names)
        ranked, train = ranked_parts(embedded_parts(folder))[0], folder / "train" / ITEMS
        training = Manifest.read(train) if train.is_file() and ranked != "train" else manifests[0].take([])
        for text in repeated_images(manifests[0], training, str(folder)):
            _log.warning("%s", text)
        return cls(
            queries=Embeddings.from_source(queries.embeddings, str(folder)),
            gallery=None if gallery is None else Embeddings.from_source(gallery.embeddings, f"the gallery of {folder}"),
            labels=Labels(names, queries.labels, None if gallery is None else gallery.labels),
            ids=queries.ids,
            gallery_ids=None if gallery is None else gallery.ids,
            classes=classes,
            provenance=Provenance.read(folder, ranked),
            query_ids=query_ids,
            digests=digests,
        )

    @classmethod
    def from_run(
        cls,
        folder: Path,
        test: str | None,
        levels: Sequence[str],
        device: str | None,
        progress: Callable[[str, int, int], None],
        *,
        frozen: bool = False,
        trust_code: bool = False,
    ) -> EvaluationInput:
        """Read the test images of a run, embedded if they are not yet: by its model, or by its backbone before training."""
        from suprank.embedding.query_gallery import all_classes, ids_and_digests
        from suprank.evaluation.embeddings import Embeddings
        from suprank.workflows.run_embeddings import open_source

        source = open_source(folder, test, device, progress, frozen=frozen, trust_code=trust_code)
        if unknown := [level for level in levels if level not in source.levels]:
            raise ValueError(f"{folder} has no level {unknown[0]!r}; choose from {', '.join(source.levels)}.")
        source = source.with_levels(levels or source.levels)
        queries, gallery = source.queries, None if source.against_each_other else source.gallery
        ranked = () if gallery is None else (gallery.manifest,)
        query_ids, digests = ids_and_digests(queries.manifest, ranked, source.levels)
        for text in (source.training or {}).get("repeated", ()):
            _log.warning("%s", text)
        return cls(
            queries=Embeddings.from_source(queries.embeddings, source.name),
            gallery=None if gallery is None else Embeddings.from_source(gallery.embeddings, f"the gallery of {source.name}"),
            labels=Labels(source.levels, queries.labels, None if gallery is None else gallery.labels),
            ids=queries.ids,
            gallery_ids=None if gallery is None else gallery.ids,
            **source.metric_settings,
            classes=all_classes(source.queries.manifest),
            training=source.training,
            provenance=source.provenance,
            query_ids=query_ids,
            digests=digests,
        )

    def with_head(
        self, head: Head, progress: Callable[[str, int, int], None] = lambda what, done, total: None
    ) -> EvaluationInput:
        """The same queries and gallery after the head. Embeddings that already went through one are refused."""
        from suprank.embedding import Provenance
        from suprank.evaluation.embeddings import Embeddings
        from suprank.workflows.heads import apply_head, head_added

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
            "levels": self.labels.names,
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
    from suprank.workflows.heads import apply_head, load_head

    loaded = load_head(head, device)
    queries = apply_head(Embeddings.from_source(subject), loaded)
    return queries, None if gallery is None else apply_head(Embeddings.from_source(gallery, "gallery"), loaded)


def read_folder(folder: Path, levels: Sequence[str], *, labeled: bool = True) -> QueryGallery:
    """Read the parts of a folder of `suprank embed` that are ranked against each other: see `ranked_parts`.

    Parts and broken images that are left out are logged. A part that was begun and not finished is an error.
    """
    from suprank.embedding.parts import PARTS
    from suprank.embedding.query_gallery import build_query_gallery, ranked_parts

    present = [part for part in PARTS if (folder / part).is_dir()]
    chosen = ranked_parts(present)
    for part in present:
        if part not in chosen:
            _log.info("%s is left out: %s is evaluated", part, " against ".join(chosen))
    parts = {name: _read_part(folder, name) for name in chosen}
    embedded = {name: (part.embeddings, part.items) for name, part in parts.items()}
    return build_query_gallery(embedded, levels, about=str(folder), labeled=labeled)


def _read_part(folder: Path, name: str) -> EmbeddedPart:
    from suprank.embedding.parts import read_embedded

    part = read_embedded(folder, name)
    if part.broken:
        images = "broken image is" if part.broken == 1 else "broken images are"
        _log.info("%s: %s %s left out", name, f"{part.broken:,}", images)
    return part


def read_revisited(
    folder: Path, ground_truth: GroundTruth, *, head: str | os.PathLike[str] | Head | None = None, device: str | None = None
) -> tuple[NDArray[Any] | Shards, NDArray[Any] | Shards]:
    """Read queries and gallery in the order in which a revisited dataset's file numbers them, distractors last.

    `head`, if given, is applied to both.
    """
    from suprank.embedding import Provenance
    from suprank.embedding.parts import read_embedded
    from suprank.embedding.query_gallery import column
    from suprank.evaluation.embeddings import Embeddings
    from suprank.workflows.heads import apply_head, load_head

    loaded = None if head is None else load_head(head, device)
    embeddings: list[NDArray[Any] | Shards] = []
    for name, expected in (("query", ground_truth.queries), ("gallery", ground_truth.items)):
        part = read_embedded(folder, name)
        ids = column(part.items, "id") or []
        if part.broken or tuple(ids[: len(expected)]) != expected:
            raise ValueError(
                f"{folder / name} does not hold the {len(expected):,} images of the ground truth, in its order and all whole; "
                f"embed a manifest that `suprank data import` roxford5k or rparis6k made from this very file."
            )
        rows = part.embeddings
        if loaded is not None:
            rows = apply_head(Embeddings.from_source(rows, str(folder / name)), loaded, Provenance.read(folder, name))
        embeddings.append(rows)
    return embeddings[0], embeddings[1]
