"""A manifest's images → embeddings on disk, split by split, resumed where an earlier run stopped."""

from __future__ import annotations

import functools
import hashlib
import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from suprank.embedding.processes import Processes
from suprank.embedding.result import ITEMS, PARTS
from suprank.embedding.shards import RECORD, RESULT, write_embeddings
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

SHARD_ROWS = 2048  # of a part that is written at once: what an interruption can cost


def parts_of(manifest: Manifest, splits: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """The parts to embed, by name, with their splits: those asked for, or all but train, or train if there is nothing else."""
    for split in splits or ():
        manifest.split(split)  # refuses what is not there
    chosen = splits or [split for split in manifest.splits if split != "train"] or ["train"]
    found = {part: tuple(split for split in members if split in chosen) for part, members in PARTS.items()}
    return {part: members for part, members in found.items() if members}


def embed_collection(
    embedder: Embedder,
    manifest: Manifest,
    out: str | PathLike[str],
    *,
    reading: ImageLoaderSettings,
    splits: Sequence[str] | None = None,
    device: torch.device | str | None = None,
    precision: Precision | None = None,
    scales: Sequence[float] = (1.0,),
    dtype: Literal["float32", "float16"] = "float32",
    processes: Processes | None = None,
    progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> dict[str, Path]:
    """Embed a manifest into `out/<part>/embeddings.npy`, with `out/<part>/items.parquet` for its rows; the folders by part.

    Parts are `train`, `test`, `query` and `gallery` (with the distractors), those of `splits`; by default all but train.
    `items.parquet` is itself a manifest, so labels keep their ids. A run that was interrupted goes on where it stopped, be it
    with another batch size or number of processes, and one that is complete returns at once; one of another model, manifest,
    transform or precision is refused, naming the difference, and so is a part beside one of another model. In a torchrun give
    `processes` (from `launched`), and the same `out` in each.

    Where `reading` skips broken images, each gets a row of NaN, a warning in the log, and True in the column `broken` of
    `items.parquet`; `read_embedded` leaves it out. An embedding with NaN is refused, so that no whole image passes for a
    broken one. `progress(part, done, total)` counts the rows of this process.
    """
    processes = processes or Processes()
    settings = {
        "model": embedder.fingerprint(),
        "backbone": embedder.config.backbone,
        "parameters": sum(parameter.numel() for parameter in embedder.parameters()),
        "transform": " ".join(repr(reading.transform).split()) if reading.settings is None else reading.settings._asdict(),
        "normalize": repr(reading.normalize),
        "at_least": reading.at_least,
        "precision": precision or embedder.config.precision,
        "scales": list(scales),
    }
    parts = parts_of(manifest, splits)
    _check_beside(Path(out), parts, settings)
    forward = embedder if tuple(scales) == (1.0,) else functools.partial(multiscale, embedder, scales=scales)
    folders = {}
    for part, members in parts.items():
        images = manifest.split(*members)

        def embedded(rows: NDArray[np.int64], images: Manifest = images) -> Iterator[NDArray[np.float32]]:
            batches = reading.batches(images, rows, pinned=str(device).startswith("cuda"))
            open_batches.enter_context(closing(batches))
            found = embed(embedder, batches, device=device, precision=precision, forward=reading.before(forward))
            return _in_order(_whole(found, images), rows, embedder.dim)

        folders[part] = Path(out) / part
        with ExitStack() as open_batches:  # where writing fails, the traceback holds the batches, and they hold their workers
            result = write_embeddings(
                embedded,
                len(images),
                embedder.dim,
                folders[part],
                fingerprint=settings | {"images": digest(images)},
                shard_rows=SHARD_ROWS,
                dtype=dtype,
                rank=processes.rank,
                world_size=processes.world_size,
                barrier=processes.barrier,
                progress=functools.partial(progress, part),
            )
        if processes.rank == 0:
            _items(images, result).save(folders[part] / ITEMS)
        processes.barrier()
    return folders


def digest(manifest: Manifest) -> str:
    """A hash of which images these are, in which order, and what they are cropped to."""
    found = hashlib.sha256(str(manifest.root.resolve()).encode())
    for name in ("path", "box"):
        if name in manifest.table.column_names:
            sink = pa.BufferOutputStream()
            table = manifest.table.select([name])
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            found.update(sink.getvalue())
    return found.hexdigest()


def _check_beside(out: Path, parts: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a folder in which another part was embedded otherwise: queries are compared with the gallery beside them."""
    wanted = json.loads(json.dumps(settings))
    for part in PARTS:
        if part not in parts and (out / part / RESULT).is_file() and (out / part / RECORD).is_file():
            found = json.loads((out / part / RECORD).read_bytes())
            differ = [key for key in wanted if found.get(key) != wanted[key]]
            if differ:
                raise ValueError(
                    f"{out / part} was embedded with another {' and '.join(differ)}, and parts of one folder are compared with "
                    f"each other; choose another folder, or delete this one to start anew."
                )


def _whole(
    found: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]], images: Manifest
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """The same, unless the model gives NaN: in the files that stands for a broken image."""
    for indices, embeddings in found:
        wrong = indices[~np.isfinite(embeddings).all(1)]
        if len(wrong):
            raise ValueError(
                f"the model gives NaN for {images.paths[int(wrong[0])].as_py()}, an image that is whole; look at its weights, "
                f"or compute in fp32 or bf16: numbers above 65,504 overflow in fp16."
            )
        yield indices, embeddings


def _in_order(
    found: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]], rows: NDArray[np.int64], dim: int
) -> Iterator[NDArray[np.float32]]:
    """The embeddings of consecutive rows, with NaN for those that a batch left out."""
    done = 0
    for indices, embeddings in found:
        last = done + int(np.searchsorted(rows[done:], indices[-1])) + 1
        block = np.full((last - done, dim), np.nan, np.float32)
        block[np.searchsorted(rows[done:last], indices)] = embeddings
        yield block
        done = last
    if done < len(rows):
        yield np.full((len(rows) - done, dim), np.nan, np.float32)


def _items(images: Manifest, result: Path) -> Manifest:
    """The rows of the embeddings, with a column that says which images were broken, if any was."""
    broken = np.isnan(np.load(result, mmap_mode="r")[:, 0])
    told = "broken" in images.table.column_names  # by the items of an earlier run, say
    return images.with_columns(broken=broken) if told or broken.any() else images
