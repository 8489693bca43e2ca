"""A head on stored embeddings: the one place where it is applied, with the checks that it belongs to them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from suprank.evaluation.embedding_files import map_matrices
from suprank.evaluation.embeddings import Embeddings
from suprank.evaluation.provenance import Provenance, check_comparable
from suprank.system.progress import stage_progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Protocol

    from numpy.typing import NDArray

    from suprank.evaluation.provenance import Record
    from suprank.system.progress import StageProgress

    class StoredHead(Protocol):
        """What is needed of a `suprank.models.Head`."""

        config: Any
        training_record: dict[str, Any]

        def transform(self, embeddings: NDArray[Any], /) -> NDArray[np.float32]: ...
        def fingerprint(self) -> str: ...


_log = logging.getLogger(__name__)
_OF_MODEL = ("backbone", "fingerprint")
_BLOCK_BYTES = 16 * 2**20  # of embeddings, read and transformed at once


def apply_head(
    embeddings: Embeddings,
    head: StoredHead,
    made_by: Provenance | None = None,
    progress: bool | StageProgress = True,
) -> Embeddings:
    """The embeddings after the head, `[n, out]`: in memory, or for embeddings in a file, in an unnamed temporary file.

    `made_by` says what made them, where that is known: embeddings that already went through a head are refused, and so are
    those of another width or another model; a warning says if the head was trained on images of another size.
    `progress` draws a bar of the rows, or is called with (what, done, total).
    """
    _check_fits(embeddings, head, made_by)
    check_model(head, made_by, embeddings.name)
    if made_by is not None:
        warn_of_other_images(head, made_by)
    name = f"{embeddings.name} after the head"
    blocks = _blocks(embeddings, head, stage_progress(progress))
    if embeddings.on_disk:
        shape = len(embeddings), head.config.out_features
        return Embeddings.from_source(map_matrices(blocks, shape, np.dtype(np.float32), name), name)
    return Embeddings.from_source(np.concatenate([*blocks]), name)


def head_added(made_by: Provenance | None, head: StoredHead) -> Provenance | None:
    """The provenance of embeddings after the head."""
    return None if made_by is None else replace(made_by, head=head.fingerprint())


def check_model(head: StoredHead, made_by: Record, name: str) -> None:
    """Refuse a head for another model than that of the embeddings called `name`: the width may fit, and the space does not."""
    known = _source(head)
    trained_on = {key: value for key, value in {**(known.get("made_by") or {}), **known}.items() if key in _OF_MODEL}
    place = f" ({known['embeddings']})" if "embeddings" in known else ""
    check_comparable(trained_on, made_by, (f"the embeddings that the head was trained on{place}", name), _log.info)


def source_of(head: StoredHead) -> Provenance | None:
    """How the embeddings were made that the head was trained on, if `suprank adapt` recorded it."""
    made_by = _source(head).get("made_by")
    return Provenance.from_dict(made_by) if isinstance(made_by, dict) else None


def warn_of_other_images(head: StoredHead, made_by: Provenance) -> None:
    """Warn if images are read or embedded differently from those that the head was trained on."""
    source = source_of(head)
    if source is not None and (differences := replace(made_by, backbone=source.backbone).differences(source)):
        _log.warning("the head was trained on embeddings of images that were read differently: %s.", "; ".join(differences))


def _source(head: StoredHead) -> Mapping[str, Any]:
    source = head.training_record.get("source")
    return source if isinstance(source, dict) else {}


def _check_fits(embeddings: Embeddings, head: StoredHead, made_by: Provenance | None) -> None:
    config = head.config
    if made_by is not None and made_by.head is not None:
        same = made_by.head == head.fingerprint()
        which = "this head" if same else f"another head ({made_by.head[:12]}), and heads do not stack"
        raise ValueError(
            f"{embeddings.name}: these embeddings already went through {which}; leave out the head, or embed without one."
        )
    if embeddings.dim != config.in_features:
        after = " Have they gone through this head already?" if embeddings.dim == config.out_features else ""
        raise ValueError(
            f"{embeddings.name}: these embeddings have width {embeddings.dim}, but the head takes {config.in_features}; give "
            f"those of the model that the head was trained on.{after}"
        )


def _blocks(embeddings: Embeddings, head: StoredHead, progress: StageProgress) -> Iterator[NDArray[np.float32]]:
    step = max(1, _BLOCK_BYTES // (4 * embeddings.dim))
    for start in range(0, len(embeddings), step):
        stop = min(start + step, len(embeddings))
        yield head.transform(embeddings.rows(slice(start, stop)).cpu().numpy())
        progress("applying the head", stop, len(embeddings))
