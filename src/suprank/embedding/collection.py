"""Embedding the images of a manifest into files, part by part; an interrupted run is resumed."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import logging
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from suprank.embedding.embedded_images import EmbeddedImages
from suprank.embedding.parts import PARTS
from suprank.embedding.processes import Processes
from suprank.embedding.shards import ITEMS, ShardLayout, check_shard, records, write_embeddings
from suprank.evaluation.provenance import RESULT
from suprank.files.atomic import own_file
from suprank.models.head import Head
from suprank.models.inference import at_scales, embed
from suprank.system.progress import stage_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from os import PathLike

    import torch
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.embedding.image_loading import ImageLoaderSettings
    from suprank.embedding.shards import RunTasks
    from suprank.models.config import Precision
    from suprank.models.embedder import Embedder
    from suprank.system.progress import StageProgress

SHARD_ROWS = 2048  # written at once: the most that an interruption can cost
SMALL_SHARD_ROWS, MANY_SHARDS = 256, 64  # of small collections shards are smaller, so that each of many machines gets some
MAX_SHARDS = 10_000  # of large ones they are larger: file systems list so many names in a moment

_log = logging.getLogger(__name__)


def choose_parts(manifest: Manifest, splits: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """The parts to embed, by name, with their splits: those of `splits`; by default all but train, or train if it is alone."""
    for split in splits or ():
        manifest.split(split)  # refuses a split that does not exist
    chosen = splits or [split for split in manifest.splits if split != "train"] or ["train"]
    parts = {part: tuple(split for split in members if split in chosen) for part, members in PARTS.items()}
    return {part: members for part, members in parts.items() if members}


def embed_collection(
    embedder: Embedder,
    manifest: Manifest,
    out: str | PathLike[str],
    *,
    loading: ImageLoaderSettings,
    splits: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    precision: Precision | None = None,
    scales: Sequence[float] = (1.0,),
    dtype: Literal["float32", "float16"] = "float32",
    shard: tuple[int, int] | None = None,
    run_tasks: RunTasks | None = None,
    processes: Processes | None = None,
    progress: bool | StageProgress = True,
    note: Callable[[str], object] = _log.info,
) -> dict[str, Path]:
    """Embed a manifest into `out/<part>/embeddings.npy`, with its rows in `out/<part>/items.parquet`; the folders by part.

    Parts are `train`, `test`, `query` and `gallery` (with the distractors), those of `splits`; by default all but train.
    `items.parquet` is itself a manifest, so labels keep their ids. An interrupted run is resumed, also with another batch size
    or number of processes, and a complete one returns at once, with the labels that the manifest has now. A run with another
    model, head, manifest, transform or precision is refused with the difference, and so is one whose images were replaced since
    under the same names, and a part beside a part of another model. Under torchrun give `processes` (from
    `torchrun_processes`), and the same `out` in each process.

    With `shard=(3, 16)`, this call embeds every 16th shard, from the third on, into `out/<part>/parts`. Up to 16 machines make
    such calls at any time, into a folder that all of them see or into folders that are copied into one; then the call without
    it computes what is missing, and joins. A shard has 256 to 2,048 images, and more from 20 million images on. With
    `run_tasks`, such as `suprank.executors.RayCluster.run`, each shard is a task for one of several machines: all of them see
    `out` and the images under the names that they have here.

    If `loading` skips broken images, each gets a row of NaN, a warning in the log, and True in the column `broken` of
    `items.parquet`; `read_embedded` leaves it out. A model that gives NaN is refused, so that no intact image is taken for a
    broken one. `progress` draws a bar for each part, of the rows of this process, or is called with (part, done, total), and
    `note` gets sentences on the shards.
    """
    check_shard(shard)
    processes, show = processes or Processes(), stage_progress(progress)
    settings = {
        "model": embedder.fingerprint(),
        "head": embedder.head.fingerprint() if isinstance(embedder.head, Head) else None,
        "fingerprint": embedder.network_fingerprint(),
        "backbone": embedder.config.backbone,
        "parameters": sum(parameter.numel() for parameter in embedder.parameters()),
        "transform": " ".join(repr(loading.transform).split()) if loading.settings is None else loading.settings._asdict(),
        "normalize": repr(loading.normalize),
        "min_short_side": loading.min_short_side,
        "decoder": loading.decoder,
        "precision": precision or embedder.config.precision,
        "scales": list(scales),
    }
    parts = choose_parts(manifest, splits)
    _check_other_parts(Path(out), parts, settings)
    folders: dict[str, Path] = {}
    for part, members in parts.items():
        folder = Path(out) / part
        images = manifest.split(*members)
        record = _read_record(folder)
        rows_of_shard = _int(record.get("shard_rows")) or _shard_rows(len(images))
        fingerprint = settings | {"images": manifest_digest(images)}
        embedded = EmbeddedImages(images, folder)
        known = processes.rank == 0 and record.get("images") == fingerprint["images"]
        layout = ShardLayout(len(images), embedder.dim, rows_of_shard, np.dtype(dtype))
        # Each process looks at its own shards only: machines may each have a copy of the images, which all of them would hash.
        if known and (replaced := embedded.replaced(None if (folder / RESULT).exists() else layout.first_rows(folder, shard))):
            raise ValueError(
                f"{folder} has the embeddings of other images of the same names: {replaced}. Choose another folder, or delete "
                f"it to start again."
            )

        folders[part] = folder
        result = write_embeddings(
            _EmbedRows(embedder, images, folder, loading, device, precision, tuple(scales)),
            len(images),
            embedder.dim,
            folder,
            fingerprint=fingerprint,
            shard_rows=rows_of_shard,
            dtype=dtype,
            rank=processes.rank,
            world_size=processes.world_size,
            barrier=processes.barrier,
            shard=shard,
            run_tasks=run_tasks,
            progress=functools.partial(show, part),
            note=note,
        )
        if shard is None:
            if processes.rank == 0:
                embedded.save(np.flatnonzero(np.isnan(np.load(result, mmap_mode="r")[:, 0])))
            processes.barrier()
    return folders


@dataclass(frozen=True)
class _EmbedRows:
    """Embeds the rows of shards of a part, and notes which bytes their images have. It can be pickled, for another machine."""

    embedder: Embedder
    images: Manifest
    folder: Path
    loading: ImageLoaderSettings
    device: torch.device | str | None
    precision: Precision | None
    scales: tuple[float, ...]

    def __call__(self, shards: Iterator[NDArray[np.int64]]) -> Generator[NDArray[np.float32]]:
        embedded = EmbeddedImages(self.images, self.folder)
        waiting: deque[NDArray[np.int64]] = deque()
        rows, pinned = _note(shards, waiting, embedded), str(self.device).startswith("cuda")
        forward = self.loading.before(at_scales(self.embedder, self.scales))
        with closing(self.loading.batches(self.images, rows, pinned=pinned, on_hashes=embedded.note)) as batches:
            embeddings = embed(self.embedder, batches, device=self.device, precision=self.precision, forward=forward)
            yield from _fill_broken(_refuse_nan(embeddings, self.images), waiting, self.embedder.dim)


def _shard_rows(count: int) -> int:
    rows = SHARD_ROWS * max(1, -(-count // (SHARD_ROWS * MAX_SHARDS)))
    while rows > SMALL_SHARD_ROWS and count < rows * MANY_SHARDS:
        rows //= 2
    return rows


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _read_record(folder: Path) -> dict[str, Any]:
    """The record of a part, to resume it; empty if there is none, or one that cannot be read, which is refused later."""
    try:
        record = json.loads(own_file(records(folder)[0]).read_bytes())
    except (IndexError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


class _Hashing(io.RawIOBase):
    """A file whose content only goes into a hash."""

    def __init__(self, digest: Any) -> None:
        self.digest = digest

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.digest.update(content)
        return len(content)


def manifest_digest(manifest: Manifest) -> str:
    """A hash of the images, their order, and the boxes that they are cropped to; not of the folder, which may be moved."""
    digest = hashlib.sha256()
    for name in ("path", "box"):
        if name in manifest.table.column_names:
            table = manifest.table.select([name])
            with pa.PythonFile(_Hashing(digest), "w") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    return digest.hexdigest()


def _check_other_parts(out: Path, parts: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a folder in which another part was embedded differently: queries are compared with the gallery beside them."""
    wanted = json.loads(json.dumps(settings))
    del wanted["fingerprint"]  # of a part of the model, which is named
    for part in PARTS:
        if part not in parts and (out / part / ITEMS).exists():
            record = _read_record(out / part)
            differ = [key for key in wanted if record.get(key) != wanted[key]]
            if differ:
                raise ValueError(
                    f"{out / part} was embedded with another {' and '.join(differ)}, and parts of one folder are compared "
                    f"with each other; choose another folder, or delete this one to start again."
                )


def _refuse_nan(
    batches: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]], images: Manifest
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Pass the embeddings on; NaN is refused, because in the files it stands for a broken image."""
    for indices, embeddings in batches:
        wrong = indices[~np.isfinite(embeddings).all(1)]
        if len(wrong):
            raise ValueError(
                f"the model gives NaN for {images.paths[int(wrong[0])].as_py()}, an intact image; check its weights, "
                f"or compute in fp32 or bf16: numbers above 65,504 overflow in fp16."
            )
        yield indices, embeddings


def _note(
    shards: Iterator[NDArray[np.int64]], waiting: deque[NDArray[np.int64]], embedded: EmbeddedImages
) -> Iterator[NDArray[np.int64]]:
    """Pass the rows of shards on, and note them as waiting for their embeddings."""
    for rows in shards:
        waiting.append(rows)
        embedded.begin(rows)
        yield rows


def _fill_broken(
    batches: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]], waiting: deque[NDArray[np.int64]], dim: int
) -> Iterator[NDArray[np.float32]]:
    """The embeddings of all rows that wait, shard by shard, with NaN for the broken images that a batch left out."""
    for indices, embeddings in batches:
        while not waiting[0].size or not waiting[0][0] <= indices[0] <= waiting[0][-1]:
            yield np.full((len(waiting.popleft()), dim), np.nan, np.float32)
        rows = waiting[0]
        last = int(np.searchsorted(rows, indices[-1])) + 1
        block = np.full((last, dim), np.nan, np.float32)
        block[np.searchsorted(rows[:last], indices)] = embeddings
        yield block
        waiting[0] = rows[last:]
    while waiting:
        yield np.full((len(waiting.popleft()), dim), np.nan, np.float32)
