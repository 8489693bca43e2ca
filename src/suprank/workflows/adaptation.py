"""Adapt stored embeddings: read them with their labels from files, and train a head."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.evaluation.provenance import RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from suprank.adaptation import AdaptConfig, AdaptResult
    from suprank.evaluation import RetrievalData
    from suprank.system.progress import StageProgress

_log = logging.getLogger(__name__)


def adapt(
    embeddings: str | PathLike[str],
    out: str | PathLike[str],
    config: AdaptConfig | None = None,
    *,
    labels: str | PathLike[str] | None = None,
    test: str | PathLike[str] | None = None,
    test_labels: str | PathLike[str] | None = None,
    split_test: bool = False,
    levels: Sequence[str] = (),
    device: str | None = None,
    progress: bool | StageProgress = True,
    on_result: Callable[[AdaptResult], None] = lambda result: None,
) -> AdaptResult:
    """Train a head on stored embeddings, save it in the folder `out`, and return it with its metrics on held-out classes.

    `embeddings` is whatever `open_data` opens, files with their `labels`, whose columns `levels` names, finest first. The test
    set is `test`, given in the same way; by default the test images of a folder, if it has training images too. Otherwise, and
    with `split_test`, some of the classes are held out. See `suprank.adaptation.adapt` for the rest.

    Example:
        >>> suprank.adapt("embeddings", "head").after["mAP@R"]  # doctest: +SKIP
        0.102
    """
    from suprank import adaptation
    from suprank.adaptation.head_folder import refuse_finished

    refuse_finished(Path(out))
    training, tested = open_training(embeddings, labels, test, test_labels, split_test=split_test, levels=levels)
    return adaptation.adapt(
        training,
        config=config,
        test=tested,
        folder=out,
        source=_source(training, labels),
        device=device,
        progress=progress,
        on_result=on_result,
    )


def open_training(
    embeddings: str | PathLike[str],
    labels: str | PathLike[str] | None = None,
    test: str | PathLike[str] | None = None,
    test_labels: str | PathLike[str] | None = None,
    *,
    split_test: bool = False,
    levels: Sequence[str] = (),
) -> tuple[RetrievalData, RetrievalData | None]:
    """The data to train on, and those to test with, if these are not to be split off: see `adapt`.

    Both have the same levels.
    """
    from suprank.embedding.parts import embedded_parts
    from suprank.evaluation.provenance import check_comparable
    from suprank.workflows.embedding_datasets import is_dataset
    from suprank.workflows.opening import is_run, open_data

    place, tested = Path(embeddings), None
    if test is not None and split_test:
        raise ValueError("a test set and a share of classes to test with were both given; give one of them.")
    if test is None and test_labels is not None:
        raise ValueError("test_labels are of a test set; give test too.")
    if labels is None and not is_run(place) and (is_dataset(place) or embedded_parts(place)):
        training, tested = _open_parts(place, levels, hold_out=test is not None or split_test)
    else:
        training = open_data(place, labels, levels=levels)
    if test is not None:
        tested = open_data(test, test_labels, levels=levels)
    if training.origin.made_by is not None and training.origin.made_by.head is not None:
        raise ValueError(f"{place} was embedded with a head, and heads do not stack; embed without one.")
    training.require_labels()
    if tested is None:
        return training.at_levels(levels or training.levels), None
    check_comparable(training.origin.made_by, tested.origin.made_by, (str(place), str(test or place)), _log.info)
    tested.require_labels()
    common = levels or training.common_levels(tested)
    if not common:
        raise ValueError(
            f"{training.name} has labels at {', '.join(training.levels)} and {tested.name} at {', '.join(tested.levels)}; give "
            f"both a level of the same name."
        )
    return training.at_levels(common), tested.at_levels(common)


def _open_parts(place: Path, levels: Sequence[str], *, hold_out: bool) -> tuple[RetrievalData, RetrievalData | None]:
    """The training images of a folder of `suprank embed` or of a dataset, or else the test images; and the others, to test."""
    from suprank.embedding import ranked_parts
    from suprank.embedding.parts import embedded_parts
    from suprank.evaluation.retrieval_data import Origin
    from suprank.workflows.embedding_datasets import import_dataset, is_dataset, read_splits
    from suprank.workflows.opening import read_parts

    dataset = import_dataset(place, levels) if is_dataset(place) else None
    parts = embedded_parts(place) if dataset is None else list(dataset.splits)
    part = next((name for name in ("train", "test") if name in parts), None)
    if part is None:
        raise ValueError(f"{place} has no training images, only {' and '.join(parts)}; embed the split train.")
    others = [name for name in parts if name != part]
    tested = () if hold_out or not others else ranked_parts(others)
    if left_out := [name for name in others if name not in tested]:
        _log.info("%s of %s is left out", " and ".join(left_out), place)

    def read(*chosen: str) -> RetrievalData:
        if dataset is not None:
            return read_splits(place, dataset, chosen)
        return read_parts(place, place.resolve().name, Origin(place, place / part), chosen)

    return read(part), read(*tested) if tested else None


def _source(data: RetrievalData, labels: str | PathLike[str] | None) -> dict[str, Any]:
    """Where the embeddings are from, and what made them, as it is saved with the head."""
    from suprank.files.atomic import own_file

    place, stored, made_by = data.origin.place, data.origin.embeddings, data.origin.made_by
    known: dict[str, Any] = {"embeddings": str(place)}
    if labels is not None:
        known["labels"] = str(labels)
    if stored is not None and stored != place:
        known["part"] = stored.name
        with suppress(OSError, ValueError):
            record = json.loads(own_file(stored / RECORD).read_bytes())
            known |= {key: record[key] for key in ("model", "backbone") if isinstance(record.get(key), str)}
    return known if made_by is None else {**known, "made_by": made_by.asdict()}
