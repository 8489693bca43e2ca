"""Embedding the images of a manifest into files, part by part; an interrupted run is resumed."""

from __future__ import annotations

import functools
import hashlib
import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from suprank.embedding.parts import ITEMS, PARTS
from suprank.embedding.processes import Processes
from suprank.embedding.shards import OLDER_RECORDS, RECORD, RESULT, write_embeddings
from suprank.models.head import Head
from suprank.models.inference import embed, multiscale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    import torch
    from numpy.typing import NDArray

    from suprank.data.manifest import Manifest
    from suprank.embedding.image_loading import ImageLoaderSettings
    from suprank.models.config import Precision
    from suprank.models.embedder import Embedder

SHARD_ROWS = 2048  # written at once: the most that an interruption can cost


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
    processes: Processes | None = None,
    progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> dict[str, Path]:
    """Embed a manifest into `out/<part>/embeddings.npy`, with its rows in `out/<part>/items.parquet`; the folders by part.

    Parts are `train`, `test`, `query` and `gallery` (with the distractors), those of `splits`; by default all but train.
    `items.parquet` is itself a manifest, so labels keep their ids. An interrupted run is resumed, also with another batch size
    or number of processes, and a complete one returns at once. A run with another model, head, manifest, transform or precision
    is refused with the difference, and so is a part beside a part of another model. Under torchrun give `processes` (from
    `torchrun_processes`), and the same `out` in each process.

    If `loading` skips broken images, each gets a row of NaN, a warning in the log, and True in the column `broken` of
    `items.parquet`; `read_embedded` leaves it out. A model that gives NaN is refused, so that no intact image is taken for a
    broken one. `progress(part, done, total)` counts the rows of this process.
    """
    processes = processes or Processes()
    settings = {
        "model": embedder.fingerprint(),
        "head": embedder.head.fingerprint() if isinstance(embedder.head, Head) else None,
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
    _check_other_parts(Path(out), parts, settings)
    forward = embedder if tuple(scales) == (1.0,) else functools.partial(multiscale, embedder, scales=scales)
    folders = {}
    for part, members in parts.items():
        images = manifest.split(*members)

        def embed_rows(rows: NDArray[np.int64], images: Manifest = images) -> Iterator[NDArray[np.float32]]:
            batches = loading.batches(images, rows, pinned=str(device).startswith("cuda"))
            open_batches.enter_context(closing(batches))
            embeddings = embed(embedder, batches, device=device, precision=precision, forward=loading.before(forward))
            return _fill_broken(_refuse_nan(embeddings, images), rows, embedder.dim)

        folders[part] = Path(out) / part
        with ExitStack() as open_batches:  # if writing fails, the traceback keeps the batches alive, and they their workers
            result = write_embeddings(
                embed_rows,
                len(images),
                embedder.dim,
                folders[part],
                fingerprint=settings | {"images": manifest_digest(images)},
                shard_rows=SHARD_ROWS,
                dtype=dtype,
                rank=processes.rank,
                world_size=processes.world_size,
                barrier=processes.barrier,
                progress=functools.partial(progress, part),
            )
        if processes.rank == 0:
            _mark_broken(images, result).save(folders[part] / ITEMS)
        processes.barrier()
    return folders


def manifest_digest(manifest: Manifest) -> str:
    """A hash of the images, their order, and the boxes that they are cropped to."""
    digest = hashlib.sha256(str(manifest.root.resolve()).encode())
    for name in ("path", "box"):
        if name in manifest.table.column_names:
            sink = pa.BufferOutputStream()
            table = manifest.table.select([name])
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            digest.update(sink.getvalue())
    return digest.hexdigest()


def _check_other_parts(out: Path, parts: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a folder in which another part was embedded differently: queries are compared with the gallery beside them."""
    wanted = json.loads(json.dumps(settings))
    for part in PARTS:
        if part not in parts and (out / part / RESULT).is_file() and (out / part / RECORD).is_file():
            record = OLDER_RECORDS | json.loads((out / part / RECORD).read_bytes())
            differ = [key for key in wanted if record.get(key) != wanted[key]]
            if differ:
                raise ValueError(
                    f"{out / part} was embedded with another {' and '.join(differ)}, and parts of one folder are compared with "
                    f"each other; choose another folder, or delete this one to start again."
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


def _fill_broken(
    batches: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]], rows: NDArray[np.int64], dim: int
) -> Iterator[NDArray[np.float32]]:
    """The embeddings of consecutive rows, with NaN for the broken images that a batch left out."""
    done = 0
    for indices, embeddings in batches:
        last = done + int(np.searchsorted(rows[done:], indices[-1])) + 1
        block = np.full((last - done, dim), np.nan, np.float32)
        block[np.searchsorted(rows[done:last], indices)] = embeddings
        yield block
        done = last
    if done < len(rows):
        yield np.full((len(rows) - done, dim), np.nan, np.float32)


def _mark_broken(images: Manifest, result: Path) -> Manifest:
    """The rows of the embeddings, with a column for which images were broken, if any was."""
    broken = np.isnan(np.load(result, mmap_mode="r")[:, 0])
    has_column = "broken" in images.table.column_names  # such as the items of an earlier run
    return images.with_columns(broken=broken) if has_column or broken.any() else images
