"""Open a run or a folder of embeddings as a `Source`; a run's test images are embedded first, as training evaluated them."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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

OWN = "test"
"""Name of the manifest's own test images, beside those of `data.tests`."""

_log = logging.getLogger(__name__)


def check_run_or_embeddings(folder: Path) -> None:
    """Raise a `ValueError` for a folder that neither `suprank train` nor `suprank embed` wrote, before any work."""
    from suprank.embedding.parts import embedded_parts

    if folder.is_dir() and not (folder / "recipe.toml").is_file() and not embedded_parts(folder):
        raise ValueError(
            f"{folder} is neither a folder of `suprank train`, which has a recipe.toml, nor one of `suprank embed`, which has "
            f"test/embeddings.npy or the like; name one of these."
        )


def open_source(
    folder: Path,
    test: str | None = None,
    device: str | None = None,
    progress: Progress = lambda what, done, total: None,
    *,
    frozen: bool = False,
    trust_code: bool = False,
    shown_in: str | None = None,
) -> Source:
    """Open a folder of `suprank train` or `suprank embed`. `progress(what, done, total)` is called as images are embedded.

    A run's test set is embedded into RUN/embeddings (RUN/embeddings-NAME for one of `data.tests`); an interrupted embedding
    continues where it stopped. Existing embeddings are kept, even if manifest, images or model are gone since, and replaced
    only if the run has another model by now. `test` is by default the manifest's own test images, else the first of
    `data.tests`.

    With `frozen` the images are embedded by the run's backbone before training, into RUN/frozen: the same images as in
    RUN/embeddings, read in the same way.

    A run with a backbone of the user's own needs consent to embed images, which `trust_code` gives, and none to open embeddings
    that are there.
    `shown_in` names a page that cannot show images with several labels, so that they are refused before they are embedded.
    """
    from suprank.explorer import Source
    from suprank.explorer.source import FROZEN, SHOWN_INSTEAD

    if not (folder / "recipe.toml").is_file():
        return Source.read(folder, test, frozen=frozen)
    config = read_run_config(folder)
    known = [OWN, *config.data.tests]
    if test is not None and test not in known:
        raise ValueError(f"{folder} has no test set {test!r}; choose from {', '.join(known)}.")
    name = test or _default_test_set(folder, config)
    if frozen:
        outdated = not _is_complete(folder / FROZEN, name) or _has_other_images(folder, name)
    else:
        outdated = not _is_complete(folder, name) or _has_another_model(folder, name, trust_code)
    if outdated:
        if shown_in is not None:
            manifest = _manifest(config, name)
            levels = [level for level in config.data.levels or manifest.levels if level in manifest.levels]
            manifest.require_single_labels(f"{shown_in} of {folder.resolve().name}", SHOWN_INSTEAD, levels=levels)
        _embed(folder, config, name, device, progress, frozen=frozen, trust_code=trust_code)
    return Source.read(folder, name, frozen=frozen)


def load_run_model(run: Path, *, trust_code: bool = False) -> tuple[Embedder, ImageLoaderSettings]:
    """Load a run's last model (or its best so far, while it trains), and the image settings of its recipe.

    A backbone of the user's own needs consent (`trust_code`). A warning says if its file has changed since the run began.
    """
    from suprank.models import Embedder

    config = read_run_config(run)
    # The saved model has the same settings, unless an older version of suprank saved it.
    with _code_of_run(run, config):
        embedder = Embedder.load(_model_folder(run), settings=config.evaluation_input, trust_code=trust_code)
    return embedder, _loader_settings(embedder, config)


@contextmanager
def _code_of_run(run: Path, config: TrainConfig) -> Iterator[None]:
    """While a backbone of the user's own is loaded: warn if it has changed, and if it is gone, tell where its copy is."""
    from suprank.system import custom_code
    from suprank.training import code_copies

    with code_copies.point_to_copy(run, "backbone"):
        yield
    name = config.model.backbone
    if custom_code.is_custom(name) and (source := custom_code.find_source(name)):
        try:
            code_copies.check_sources(run, {"backbone": source})
        except custom_code.CustomCodeError:
            _log.warning(
                "%s has changed since the run in %s began, so that its metrics may differ. The run keeps a copy in %s.",
                source.path,
                run,
                run / code_copies.FOLDER / "backbone",
            )


def _loader_settings(embedder: Embedder, config: TrainConfig) -> ImageLoaderSettings:
    from suprank.embedding import ImageLoaderSettings

    batches, data = config.evaluation.batch_size, config.data
    return ImageLoaderSettings.for_model(embedder, batch_size=batches, workers=data.workers, on_broken=data.on_broken)


def image_embedder(
    load: Callable[[], tuple[Embedder, ImageLoaderSettings]], device: str | None = None
) -> Callable[[Image.Image], NDArray[np.float32]]:
    """Return a function that maps an RGB picture to its embedding `[dim]`; any thread may call it, one at a time gets in.

    `load` returns the model, such as `partial(load_run_model, run)`. It is called at the first picture, not before.
    """
    lock = threading.Lock()
    loaded: list[tuple[Embedder, ImageLoaderSettings]] = []

    def embed_picture(picture: Image.Image) -> NDArray[np.float32]:
        import torch

        from suprank.data import ImageBatch
        from suprank.models.inference import embed

        with lock:
            if not loaded:
                loaded.append(load())
            embedder, settings = loaded[0]
            images = settings.transform(picture)[None]
            batch = ImageBatch(images, torch.empty((1, 0), dtype=torch.int64), torch.zeros(1, dtype=torch.int64), ())
            ((_, rows),) = embed(embedder, [batch], device=device, forward=settings.before(embedder))
            return rows[0]

    return embed_picture


def read_run_config(run: Path) -> TrainConfig:
    """The recipe of a run; a `RecipeError` that says what to do if an earlier version of suprank wrote it."""
    from suprank.training.recipe import read_recipe
    from suprank.training.recipe_files import RecipeError

    try:
        return read_recipe(run / "recipe.toml")
    except RecipeError as error:
        raise RecipeError(
            f"{run} has a recipe that this version of suprank does not read: {error} If an earlier version trained the run, "
            f"train it again, or embed its test images (suprank embed {run / 'model'} MANIFEST --out DIR) and name DIR instead."
        ) from None


def _default_test_set(run: Path, config: TrainConfig) -> str:
    """The test set to open if none is named: the manifest's own, else the first of `data.tests`, as in training."""
    if _is_complete(run, OWN) or not config.data.tests:
        return OWN
    first = next(iter(config.data.tests))
    try:
        return OWN if {"test", "query"} & set(_manifest(config, OWN).splits) else first
    except (OSError, ValueError):
        if _is_complete(run, first):
            return first
        raise


def _manifest(config: TrainConfig, name: str) -> Manifest:
    from suprank.training.manifests import open_manifest

    data = config.data
    file, root = (data.manifest, data.root) if name == OWN else (data.tests[name], None)
    return open_manifest(file, root, fill_gaps=data.fill_gaps, label_separator=data.label_separator)


def _is_complete(run: Path, name: str) -> bool:
    """Whether everything that is ranked is embedded. The gallery is embedded before the test images: see `_embed`."""
    from suprank.embedding.parts import embedded_parts
    from suprank.embedding.query_gallery import ranked_parts
    from suprank.explorer import embeddings_folder

    there = embedded_parts(embeddings_folder(run, name))
    return set(ranked_parts(there)) <= set(there) and there != ["train"]


def _has_other_images(run: Path, name: str) -> bool:
    """Whether RUN/frozen holds other images than RUN/embeddings, which were embedded again since."""
    from suprank.explorer import embeddings_folder
    from suprank.explorer.source import FROZEN

    own, frozen = (embeddings_folder(folder, name) for folder in (run, run / FROZEN))
    return _is_complete(run, name) and record_values(own, "images") != record_values(frozen, "images")


def record_values(folder: Path, key: str) -> dict[str, object]:
    """The value of `key` in the record of every embedded part."""
    import json

    from suprank.embedding.parts import embedded_parts
    from suprank.embedding.shards import RECORD

    records = [folder / part / RECORD for part in embedded_parts(folder)]
    return {record.parent.name: json.loads(record.read_bytes()).get(key) for record in records if record.is_file()}


def _has_another_model(run: Path, name: str, trust_code: bool) -> bool:
    """Whether the run's model differs from the one that made the embeddings. Without a model the answer is no."""
    from suprank.embedding.parts import embedded_parts
    from suprank.embedding.shards import ITEMS
    from suprank.explorer import embeddings_folder

    out = embeddings_folder(run, name)
    files = [out / part / ITEMS for part in embedded_parts(out)]
    try:
        model = _model_folder(run)
    except FileNotFoundError:
        return False
    # Loading a model takes seconds, so it is loaded only if it was written after the embeddings.
    if max(file.stat().st_mtime for file in model.iterdir()) <= min(file.stat().st_mtime for file in files):
        return False
    current = load_run_model(run, trust_code=trust_code)[0].fingerprint()
    return any(model != current for model in record_values(out, "model").values())


def _embed(
    run: Path,
    config: TrainConfig,
    name: str,
    device: str | None,
    progress: Progress,
    *,
    frozen: bool = False,
    trust_code: bool = False,
) -> None:
    import torch

    from suprank.embedding import embed_collection
    from suprank.embedding.collection import choose_parts
    from suprank.explorer import embeddings_folder
    from suprank.explorer.source import FROZEN

    out = embeddings_folder(run / FROZEN if frozen else run, name)
    if not os.access(out if out.is_dir() else run, os.W_OK):
        raise PermissionError(
            f"{run} is not writable, and its test images must be embedded into {out}; copy the run, or embed them elsewhere: "
            f"suprank embed {run / 'model'} MANIFEST --out DIR, and name DIR instead."
        )
    manifest = _manifest(config, name)
    parts = choose_parts(manifest)
    if "train" in parts:
        way_out = f"; --test {next(iter(config.data.tests))}" if config.data.tests and name == OWN else ""
        raise ValueError(f"{run}: the manifest has no test images to look at, only train{way_out}.")
    if frozen:
        from suprank.system.custom_code import trusting
        from suprank.training.embedders import frozen_embedder

        with _code_of_run(run, config), trusting(trust_code):
            embedder = frozen_embedder(config)
        settings = _loader_settings(embedder, config)
    else:
        embedder, settings = load_run_model(run, trust_code=trust_code)
    target = out
    if _is_complete(run / FROZEN if frozen else run, name):
        reason = "other images than the run's" if frozen else "an earlier model of the run"
        _log.info("%s is of %s; the images are embedded again.", out, reason)
        target = out.with_name(f".{out.name}-anew")  # the old embeddings stay until the new ones are complete
        shutil.rmtree(target, ignore_errors=True)  # an interrupted attempt may be of yet another model
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    title = f"{run.resolve().name} before training" if frozen else run.resolve().name
    # The gallery first: with only the test images there, nothing would tell that their distractors are missing.
    for splits in reversed(parts.values()):
        embed_collection(
            embedder,
            manifest,
            target,
            loading=settings,
            splits=splits,
            device=where,
            progress=lambda part, done, total: progress(f"{title}: embedding {part}", done, total),
        )
    if target != out:
        old = out.with_name(f".{out.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)  # Windows refuses it while the explorer shows them: all of the old embeddings stay, or none
        target.rename(out)
        shutil.rmtree(old, ignore_errors=True)


def _model_folder(run: Path) -> Path:
    for name in ("model", "best"):
        if (run / name / "embedder.json").is_file():
            return run / name
    raise FileNotFoundError(
        f"{run} has no model yet; it is saved at the end of training. suprank train --resume continues the run."
    )
