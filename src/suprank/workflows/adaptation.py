"""Adapt stored embeddings: read them with their labels from files, and train a head."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.files.sharded_array import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from suprank.adaptation import AdaptConfig, AdaptResult, EvaluationSet

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
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    on_result: Callable[[AdaptResult], None] = lambda result: None,
) -> AdaptResult:
    """Train a head on stored embeddings, save it in the folder `out`, and return it with its metrics on held-out classes.

    `embeddings` is a folder of `suprank embed`, or a file (.npy, .parquet, .pt) with `labels` in a file (.csv, .tsv, .parquet,
    .npy), whose columns `levels` names, finest first. The test set is `test`, given in the same way; by default the test images
    of the folder, if it has training images too. Otherwise, and with `split_test`, some of the classes are held out. See
    `suprank.adaptation.adapt` for the rest.

    Example:
        >>> suprank.adapt("embeddings", "head").after["mAP@R"]  # doctest: +SKIP
        0.102
    """
    from suprank import adaptation
    from suprank.adaptation.head_folder import refuse_finished

    refuse_finished(Path(out))
    data = AdaptInput.read(embeddings, labels, test, test_labels, split_test=split_test, levels=levels)
    return adaptation.adapt(
        data.embeddings,
        data.labels,
        config,
        test=data.test,
        levels=data.levels,
        folder=out,
        source=data.source,
        device=device,
        progress=progress,
        on_result=on_result,
    )


@dataclass(frozen=True, kw_only=True)
class AdaptInput:
    """Embeddings and labels to train on, and the test set, if it is not to be split off; `source` says where they are from."""

    embeddings: NDArray[Any]
    labels: NDArray[np.int64]
    levels: tuple[str, ...]
    test: EvaluationSet | None = None
    source: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        embeddings: str | PathLike[str],
        labels: str | PathLike[str] | None = None,
        test: str | PathLike[str] | None = None,
        test_labels: str | PathLike[str] | None = None,
        *,
        split_test: bool = False,
        levels: Sequence[str] = (),
    ) -> AdaptInput:
        """Read two folders of `suprank embed`, or two files with labels; see `adapt`."""
        path = Path(embeddings)
        other = None if test is None else Path(test)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; name a folder of `suprank embed`, or a file of embeddings.")
        if other is not None and split_test:
            raise ValueError("a test set and a share of classes to test with were both given; give one of them.")
        if path.is_dir():
            if labels is not None or test_labels is not None:
                raise ValueError(f"{path} is a folder, which has its own labels; leave the file of labels out.")
            if other is not None and not other.is_dir():
                raise ValueError(f"{path} is a folder and {other} is none; give two folders of `suprank embed`, or two files.")
            return cls._from_folder(path, other, levels, split_test=split_test)
        if labels is None:
            raise ValueError(f"{path} is a file, which has no labels of its own; give labels=FILE.")
        if (other is None) != (test_labels is None):
            raise ValueError("test and test_labels go together for files; give both, or neither.")
        return cls._from_files(path, Path(labels), other, None if test_labels is None else Path(test_labels), levels)

    @classmethod
    def _from_files(
        cls, path: Path, labels: Path, test: Path | None, test_labels: Path | None, levels: Sequence[str]
    ) -> AdaptInput:
        from suprank.adaptation import EvaluationSet
        from suprank.evaluation import Embeddings
        from suprank.evaluation.labels import read_label_files

        read = read_label_files([labels] if test_labels is None else [labels, test_labels], levels)
        stored = Embeddings.from_source(path, "embeddings")
        test_set = None
        if test is not None:
            test_embeddings = Embeddings.from_source(test, "test embeddings")
            test_set = EvaluationSet(test_embeddings.rows(slice(None)).numpy(), np.asarray(read.labels[1], np.int64))
        return cls(
            embeddings=stored.rows(slice(None)).numpy(),
            labels=np.asarray(read.labels[0], np.int64),
            levels=read.levels,
            test=test_set,
            source={"embeddings": str(path), "labels": str(labels)},
        )

    @classmethod
    def _from_folder(cls, folder: Path, test: Path | None, levels: Sequence[str], *, split_test: bool) -> AdaptInput:
        from suprank.adaptation import EvaluationSet
        from suprank.embedding import build_query_gallery, ranked_parts, read_embedded
        from suprank.embedding.parts import embedded_parts
        from suprank.embedding.query_gallery import common_labels, common_levels
        from suprank.evaluation.provenance import Provenance, check_comparable

        parts = embedded_parts(folder)
        if not parts:
            if folder.resolve().name in embedded_parts(folder.resolve().parent):
                raise ValueError(
                    f"{folder} is a part of a folder of `suprank embed`; give that folder: {folder.resolve().parent}."
                )
            raise ValueError(f"{folder} is not a folder of `suprank embed`: it has no train/embeddings.npy or the like.")
        part = next((name for name in ("train", "test") if name in parts), None)
        if part is None:
            raise ValueError(
                f"{folder} has no training images, only {' and '.join(parts)}; embed them: "
                f"`suprank embed MODEL MANIFEST --split train`."
            )
        made_by = Provenance.read(folder, part)
        if made_by is not None and made_by.head is not None:
            raise ValueError(f"{folder} was embedded with a head, and heads do not stack; embed without one.")
        tested: tuple[str, ...] = ()
        if not split_test:
            remaining = [name for name in parts if name != part] if test is None else embedded_parts(test)
            tested = ranked_parts(remaining) if remaining else ()
        training = read_embedded(folder, part)
        others = [read_embedded(test or folder, name) for name in tested]
        for name in tested:
            pair = str(folder / part), str((test or folder) / name)
            check_comparable(made_by, Provenance.read(test or folder, name), pair, _log.info)
        names = common_levels([training.items, *(one.items for one in others)], levels, about=str(folder))
        coded = common_labels([training.items, *(one.items for one in others)], names)
        test_set = None
        if others:
            read = {name: (one.embeddings, one.items) for name, one in zip(tested, others, strict=True)}
            ranked = build_query_gallery(read, names, about=str(test or folder))
            gallery_labels = None if ranked.gallery is None else coded[-1]
            if tested == ("test", "gallery"):
                gallery_labels = np.concatenate(coded[1:])
            queries, gallery = ranked.queries, ranked.gallery
            test_set = EvaluationSet(
                _one_array(queries.embeddings),
                coded[1],
                None if gallery is None else _one_array(gallery.embeddings),
                gallery_labels,
                queries.ids,
                None if gallery is None else gallery.ids,
            )
        if left_out := [name for name in parts if name != part and (test is not None or name not in tested)]:
            _log.info("%s of %s is left out", " and ".join(left_out), folder)
        return cls(
            embeddings=_one_array(training.embeddings),
            labels=coded[0],
            levels=names,
            test=test_set,
            source={"embeddings": str(folder), "part": part, **_model(folder / part)},
        )


def _one_array(embeddings: NDArray[Any] | Shards) -> NDArray[Any]:
    """The embeddings as one array, in memory if they are in shards: heads are trained on all of them at once."""
    return np.asarray(embeddings) if isinstance(embeddings, Shards) else embeddings


def _model(folder: Path) -> dict[str, Any]:
    """The fingerprint of the model that made the embeddings, the name of its backbone, and how images were read, if known."""
    from suprank.evaluation.provenance import RECORD, Provenance
    from suprank.files.atomic import own_file

    try:
        record = json.loads(own_file(folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    known: dict[str, Any] = {key: record[key] for key in ("model", "backbone") if isinstance(record.get(key), str)}
    made_by = Provenance.read(folder.parent, folder.name)
    return known if made_by is None else {**known, "made_by": made_by.asdict()}
