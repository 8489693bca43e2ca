"""Embedding the images of a manifest into files, part by part; an interrupted run is resumed."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
from collections import deque
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from suprank.embedding.embedded_images import EmbeddedImages
from suprank.embedding.parts import PARTS
from suprank.embedding.processes import Processes
from suprank.embedding.shards import ITEMS, OLDER_RECORDS, RECORD, RESULT, ShardLayout, write_embeddings
from suprank.embedding.shared_shards import write_shared
from suprank.files.locking import check_unlocked
from suprank.files.storage import Storage, local_folder, open_storage
from suprank.models.head import Head
from suprank.models.inference import at_scales, embed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.embedding.image_loading import ImageLoaderSettings
    from suprank.models.config import Precision
    from suprank.models.embedder import Embedder

SHARD_ROWS = 2048  # written at once: the most that an interruption can cost
MAX_SHARDS = 10_000  # of larger collections shards are larger: stores and file systems list so many names in a moment


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
    shared: bool = False,
    shard_rows: int | None = None,
    processes: Processes | None = None,
    progress: Callable[[str, int, int], None] = lambda part, done, total: None,
    on_shard: Callable[[str, int, int, int], None] = lambda part, own, finished, total: None,
) -> dict[str, Path | str]:
    """Embed a manifest into `out/<part>/embeddings.npy`, with its rows in `out/<part>/items.parquet`; the folders by part.

    Parts are `train`, `test`, `query` and `gallery` (with the distractors), those of `splits`; by default all but train.
    `items.parquet` is itself a manifest, so labels keep their ids. An interrupted run is resumed, also with another batch size
    or number of processes, and a complete one returns at once, with the labels that the manifest has now. A run with another
    model, head, manifest, transform or precision is refused with the difference, and so is one whose images were replaced since
    under the same names, and a part beside a part of another model. Under torchrun give `processes` (from
    `torchrun_processes`), and the same `out` in each process.

    If the work is `shared`, machines that make the same call divide the shards among them by files in `out`, a folder that all
    of them see or an address that fsspec knows, such as `s3://bucket/run`. They may start at any time and be killed at any
    time, and each returns when all shards are there. The result stays in shards, `out/<part>/parts/00012.npy`, which
    `read_embedded` reads as one array; without `shared`, the same call joins them. A shard has `shard_rows` images, by default
    2,048, and more from 20 million images on.

    If `loading` skips broken images, each gets a row of NaN, a warning in the log, and True in the column `broken` of
    `items.parquet`; `read_embedded` leaves it out. A model that gives NaN is refused, so that no intact image is taken for a
    broken one. `progress(part, done, total)` counts the rows of this process, or of all if they are shared; then
    `on_shard(part, own, finished, total)` counts the shards of this process, the finished ones, and all.
    """
    if local_folder(out) is None and not shared:
        raise ValueError(f"{out} is not a folder; embed into a folder, or share the work (--shared), also on one machine.")
    storage = open_storage(out)
    processes = processes or Processes()
    settings = {
        "model": embedder.fingerprint(),
        "head": embedder.head.fingerprint() if isinstance(embedder.head, Head) else None,
        "fingerprint": embedder.network_fingerprint(),
        "backbone": embedder.config.backbone,
        "parameters": sum(parameter.numel() for parameter in embedder.parameters()),
        "transform": " ".join(repr(loading.transform).split()) if loading.settings is None else loading.settings._asdict(),
        "normalize": repr(loading.normalize),
        "at_least": loading.min_short_side,  # the key in run.json of earlier versions too, so that their runs can be resumed
        "decoder": loading.decoder,
        "precision": precision or embedder.config.precision,
        "scales": list(scales),
    }
    parts = choose_parts(manifest, splits)
    _check_other_parts(storage, parts, settings)
    forward = at_scales(embedder, scales)
    folders: dict[str, Path | str] = {}
    for part, members in parts.items():
        images = manifest.split(*members)
        record = _read_record(storage, part)
        rows_of_shard = shard_rows or _int(record.get("shard_rows")) or _shard_rows(len(images))
        fingerprint = settings | {"images": _digest(images, record.get("images"))}
        embedded = EmbeddedImages(images, storage, part)
        known = processes.rank == 0 and record.get("images") == fingerprint["images"]
        # Machines that share unfinished work may each have a copy of the images, which all of them would hash.
        ready = not shared or storage.size(f"{part}/{ITEMS}") is not None
        if known and ready and (replaced := embedded.replaced()):
            raise ValueError(
                f"{storage.address(part)} has the embeddings of other images of the same names: {replaced}. Choose another "
                f"folder, or delete it to start again."
            )

        def embed_rows(
            shards: Iterator[NDArray[np.int64]], embedded: EmbeddedImages = embedded
        ) -> Iterator[NDArray[np.float32]]:
            waiting: deque[NDArray[np.int64]] = deque()
            pinned = str(device).startswith("cuda")
            batches = loading.batches(embedded.images, _note(shards, waiting, embedded), pinned=pinned, on_hashes=embedded.note)
            open_batches.enter_context(closing(batches))
            embeddings = embed(embedder, batches, device=device, precision=precision, forward=loading.before(forward))
            return _fill_broken(_refuse_nan(embeddings, embedded.images), waiting, embedder.dim)

        folder = local_folder(out)
        folders[part] = f"{os.fspath(out)}/{part}" if folder is None else folder / part
        with ExitStack() as open_batches:  # if writing fails, the traceback keeps the batches alive, and they their workers
            if folder is not None and (not shared or (folder / part / RESULT).is_file()):
                result = write_embeddings(
                    embed_rows,
                    len(images),
                    embedder.dim,
                    folder / part,
                    fingerprint=fingerprint,
                    shard_rows=rows_of_shard,
                    dtype=dtype,
                    rank=processes.rank,
                    world_size=processes.world_size,
                    barrier=processes.barrier,
                    progress=functools.partial(progress, part),
                )
                if processes.rank == 0:
                    broken = np.flatnonzero(np.isnan(np.load(result, mmap_mode="r")[:, 0]))
                    embedded.save(broken)
                processes.barrier()
            else:
                if folder is not None:
                    check_unlocked(folder / part, "embedding, without --shared, into", "wait for it to end, or stop it")
                write_shared(
                    embed_rows,
                    ShardLayout(len(images), embedder.dim, rows_of_shard, np.dtype(dtype)),
                    storage,
                    part,
                    fingerprint=fingerprint,
                    write_items=embedded.save,
                    progress=functools.partial(progress, part),
                    on_shard=functools.partial(on_shard, part),
                )
    return folders


def _shard_rows(count: int) -> int:
    return SHARD_ROWS * max(1, -(-count // (SHARD_ROWS * MAX_SHARDS)))


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _read_record(storage: Storage, part: str) -> dict[str, Any]:
    """The record of a part, to resume it; empty if there is none, or one that cannot be read, which is refused later."""
    try:
        record = json.loads(storage.read(f"{part}/{RECORD}") or b"{}")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _digest(images: Manifest, recorded: object) -> str:
    """The hash of the images for the record, without the folder that they are in, which may be moved or copied.

    That of an earlier version, with the folder, is kept if it is of the same images.
    """
    older = manifest_digest(images)
    return older if recorded == older else manifest_digest(images, with_root=False)


class _Hashing(io.RawIOBase):
    """A file whose content only goes into a hash."""

    def __init__(self, digest: Any) -> None:
        self.digest = digest

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.digest.update(content)
        return len(content)


def manifest_digest(manifest: Manifest, *, with_root: bool = True) -> str:
    """A hash of the images, their order, and the boxes that they are cropped to; and of the folder they are in, `with_root`."""
    digest = hashlib.sha256(str(manifest.root.resolve()).encode() if with_root else b"")
    for name in ("path", "box"):
        if name in manifest.table.column_names:
            table = manifest.table.select([name])
            with pa.PythonFile(_Hashing(digest), "w") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    return digest.hexdigest()


def _check_other_parts(storage: Storage, parts: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a folder in which another part was embedded differently: queries are compared with the gallery beside them."""
    wanted = json.loads(json.dumps(settings))
    for part in PARTS:
        if part not in parts and storage.size(f"{part}/{ITEMS}") is not None:
            record = OLDER_RECORDS | _read_record(storage, part) | {"fingerprint": wanted["fingerprint"]}
            differ = [key for key in wanted if record.get(key) != wanted[key]]
            if differ:
                raise ValueError(
                    f"{storage.address(part)} was embedded with another {' and '.join(differ)}, and parts of one folder are "
                    f"compared with each other; choose another folder, or delete this one to start again."
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
