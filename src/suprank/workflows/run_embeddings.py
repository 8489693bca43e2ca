"""A folder to look at → its `Source`: the test images of a run are embedded first, as training judged them, and kept."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from suprank.data import Manifest
    from suprank.embedding import ImageLoaderSettings
    from suprank.explorer import Source
    from suprank.models import Embedder
    from suprank.training import TrainConfig

    Progress = Callable[[str, int, int], None]

OWN = "test"  # what a manifest's own test images are called beside those of `data.tests`


def check_folder(folder: Path) -> None:
    """Refuse what is none of ours by its name, before any work."""
    from suprank.embedding.result import embedded_parts

    if folder.is_dir() and not (folder / "recipe.toml").is_file() and not embedded_parts(folder):
        raise ValueError(
            f"{folder} is neither a folder of `suprank train`, which has a recipe.toml, nor one of `suprank embed`, which has "
            f"test/embeddings.npy or the like; name one of those."
        )


def looked_at(
    folder: Path,
    test: str | None = None,
    device: str | None = None,
    progress: Progress = lambda what, done, total: None,
    *,
    frozen: bool = False,
) -> Source:
    """The source in a folder of `suprank train` or `suprank embed`; `progress(what, done, total)` tells of what is embedded.

    A run's test set is embedded into RUN/embeddings (RUN/embeddings-NAME for one of `data.tests`), going on where that was
    interrupted. What is there is kept, also where manifest, images and model are gone since, and made anew only where the run
    has another model by now. `test` is by default the manifest's own test images, else the first of `data.tests`.

    With `frozen` it is the run's backbone before training, read exactly as the run reads, embedded into RUN/frozen, of the very
    images that are in RUN/embeddings.
    """
    from suprank.explorer import Source
    from suprank.explorer.source import FROZEN

    if not (folder / "recipe.toml").is_file():
        return Source.read(folder, test, frozen=frozen)
    from suprank.training.recipe import read_recipe

    config = read_recipe(folder / "recipe.toml")
    known = [OWN, *config.data.tests]
    if test is not None and test not in known:
        raise ValueError(f"{folder} has no test set {test!r}; choose from {', '.join(known)}.")
    name = test or _usual(folder, config)
    if frozen:
        if not _is_whole(folder / FROZEN, name) or _has_other_images(folder, name):
            _embed(folder, config, name, device, progress, frozen=True)
    elif not _is_whole(folder, name) or _has_another_model(folder, name):
        _embed(folder, config, name, device, progress)
    return Source.read(folder, name, frozen=frozen)


def model_of(run: Path) -> tuple[Embedder, ImageLoaderSettings]:
    """A run's last model (or its best so far, while it trains), and how its test images are read, as its recipe says."""
    from suprank.models import Embedder
    from suprank.training.recipe import read_recipe

    config = read_recipe(run / "recipe.toml")
    # The model says the same, unless an older version saved it.
    embedder = Embedder.load(_model_folder(run), settings=config.evaluation_input)
    return embedder, _reading(embedder, config)


def _reading(embedder: Embedder, config: TrainConfig) -> ImageLoaderSettings:
    from suprank.embedding import ImageLoaderSettings

    batches, data = config.evaluation.batch_size, config.data
    return ImageLoaderSettings.for_model(embedder, batch_size=batches, workers=data.workers, on_broken=data.on_broken)


def image_embedder(
    load: Callable[[], tuple[Embedder, ImageLoaderSettings]], device: str | None = None
) -> Callable[[Image.Image], NDArray[np.float32]]:
    """A function from a picture in RGB to its embedding `[dim]`, one at a time, for any thread.

    `load` gives the model, such as `partial(model_of, run)`; it is called at the first picture, so that nothing waits for it.
    """
    lock = threading.Lock()
    kept: list[tuple[Embedder, ImageLoaderSettings]] = []

    def embedding(picture: Image.Image) -> NDArray[np.float32]:
        import torch

        from suprank.data import Batch
        from suprank.models.inference import embed

        with lock:
            if not kept:
                kept.append(load())
            embedder, reading = kept[0]
            images = reading.transform(picture)[None]
            batch = Batch(images, torch.empty((1, 0), dtype=torch.int64), torch.zeros(1, dtype=torch.int64), ())
            ((_, rows),) = embed(embedder, [batch], device=device, forward=reading.before(embedder))
            return rows[0]

    return embedding


def _usual(run: Path, config: TrainConfig) -> str:
    """The test set that is meant where none is named: as training orders them."""
    if _is_whole(run, OWN) or not config.data.tests:
        return OWN
    first = next(iter(config.data.tests))
    try:
        return OWN if {"test", "query"} & set(_manifest(config, OWN).splits) else first
    except (OSError, ValueError):
        if _is_whole(run, first):
            return first
        raise


def _manifest(config: TrainConfig, name: str) -> Manifest:
    from suprank.training.manifests import manifest_of

    return manifest_of(config.data.manifest, config.data.root) if name == OWN else manifest_of(config.data.tests[name])


def _is_whole(run: Path, name: str) -> bool:
    """Whether all that is ranked is embedded. Of a gallery and test images the gallery is embedded first: see `_embed`."""
    from suprank.embedding.query_gallery import ranked_parts
    from suprank.embedding.result import embedded_parts
    from suprank.explorer import embeddings_folder

    there = embedded_parts(embeddings_folder(run, name))
    return set(ranked_parts(there)) <= set(there) and there != ["train"]


def _has_other_images(run: Path, name: str) -> bool:
    """Whether the images of RUN/frozen are not those of RUN/embeddings, which were made anew since."""
    from suprank.explorer import embeddings_folder
    from suprank.explorer.source import FROZEN

    own, frozen = (embeddings_folder(folder, name) for folder in (run, run / FROZEN))
    return _is_whole(run, name) and _records(own, "images") != _records(frozen, "images")


def _records(folder: Path, entry: str) -> dict[str, object]:
    """An entry of the record of every part that is embedded."""
    import json

    from suprank.embedding.shards import RECORD, RESULT

    records = [file.with_name(RECORD) for file in folder.glob(f"*/{RESULT}")]
    return {record.parent.name: json.loads(record.read_bytes()).get(entry) for record in records if record.is_file()}


def _has_another_model(run: Path, name: str) -> bool:
    """Whether the run's model is another one than that of the embeddings. Where there is no model, it is not."""
    from suprank.embedding.shards import RESULT
    from suprank.explorer import embeddings_folder

    out = embeddings_folder(run, name)
    files = [*out.glob(f"*/{RESULT}")]
    try:
        model = _model_folder(run)
    except FileNotFoundError:
        return False
    # Loading a model takes seconds: look at it only where it was written after the embeddings.
    if max(file.stat().st_mtime for file in model.iterdir()) <= min(file.stat().st_mtime for file in files):
        return False
    now = model_of(run)[0].fingerprint()
    return any(model != now for model in _records(out, "model").values())


def _embed(run: Path, config: TrainConfig, name: str, device: str | None, progress: Progress, *, frozen: bool = False) -> None:
    import torch

    from suprank.embedding import embed_collection
    from suprank.embedding.collection import parts_of
    from suprank.explorer import embeddings_folder
    from suprank.explorer.source import FROZEN

    out = embeddings_folder(run / FROZEN if frozen else run, name)
    if not os.access(out if out.is_dir() else run, os.W_OK):
        raise PermissionError(
            f"{run} is not writable, and its test images must be embedded into {out}; copy the run, or embed them elsewhere: "
            f"suprank embed --model {run / 'model'} --manifest MANIFEST --out DIR, and give DIR."
        )
    manifest = _manifest(config, name)
    parts = parts_of(manifest)
    if "train" in parts:
        way_out = f"; --test {next(iter(config.data.tests))}" if config.data.tests and name == OWN else ""
        raise ValueError(f"{run}: the manifest has no test images to look at, only train{way_out}.")
    if frozen:
        from suprank.training.embedders import frozen_embedder

        embedder = frozen_embedder(config)
        reading = _reading(embedder, config)
    else:
        embedder, reading = model_of(run)
    target = out
    if _is_whole(run / FROZEN if frozen else run, name):
        what = "other images than the run's" if frozen else "an earlier model of the run"
        terminal.echo(f"{out} is of {what}; the images are embedded again.", err=True)
        target = out.with_name(f".{out.name}-anew")  # what is there stays until this is whole: the images may be gone
        shutil.rmtree(target, ignore_errors=True)  # an attempt that was interrupted may be of yet another model
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    called = f"{run.resolve().name} before training" if frozen else run.resolve().name
    # The gallery first: with the test images alone, nothing would tell that their distractors are missing.
    for splits in reversed(parts.values()):
        embed_collection(
            embedder,
            manifest,
            target,
            reading=reading,
            splits=splits,
            device=where,
            progress=lambda part, done, total: progress(f"{called}: embedding {part}", done, total),
        )
    if target != out:
        shutil.rmtree(out)
        target.rename(out)


def _model_folder(run: Path) -> Path:
    for name in ("model", "best"):
        if (run / name / "embedder.json").is_file():
            return run / name
    raise FileNotFoundError(
        f"{run} has no model yet; it is saved at the end of training: suprank train --resume goes on with it."
    )
