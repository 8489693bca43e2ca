"""The test images of a run, embedded as training evaluated them, and its model."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from suprank.evaluation.retrieval_data import OWN_TEST
from suprank.files.atomic import own_file
from suprank.system.progress import stage_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from numpy.typing import NDArray
    from PIL import Image

    from suprank.data.manifest import Manifest
    from suprank.embedding import ImageLoaderSettings
    from suprank.models import Embedder
    from suprank.system.progress import StageProgress
    from suprank.training import TrainConfig

EMBEDDINGS, FROZEN = "embeddings", "frozen"
"""Subfolders of a run: embeddings of its test images, and those of its backbone before training."""

_log = logging.getLogger(__name__)


def embed_run(
    folder: Path,
    test: str | None = None,
    device: str | None = None,
    progress: bool | StageProgress = True,
    *,
    frozen: bool = False,
    trust_code: bool = False,
    shown_in: str | None = None,
) -> str:
    """Embed the test images of a run where they are not yet, and return the name of the test set.

    `test` is embedded into RUN/embeddings (RUN/embeddings-NAME for one of `data.tests`); an interrupted embedding continues
    where it stopped. Existing embeddings are kept, even if manifest, images or model are gone since, and replaced only if the
    run has another model by now, or images have other bytes. Labels are those that the manifest has now. `test` is by default
    the manifest's own test images, else the first of `data.tests`. `progress` draws a bar while images are embedded, or is
    called with (what, done, total).

    With `frozen` the images are embedded by the run's backbone before training, into RUN/frozen: the same images as in
    RUN/embeddings, read in the same way.

    A run with a backbone of the user's own needs consent to embed images, which `trust_code` gives, and none to open embeddings
    that are there.
    `shown_in` names a page that cannot show images with several labels, so that they are refused before they are embedded.
    """
    config = read_run_config(folder)
    known = [OWN_TEST, *config.data.tests]
    if test is not None and test not in known:
        raise ValueError(f"{folder} has no test set {test!r}; choose from {', '.join(known)}.")
    name = test or _default_test_set(folder, config)
    where, reason = folder / FROZEN if frozen else folder, ""
    if complete := _is_complete(where, name):
        other = not frozen and _has_another_model(folder, name, trust_code)
        reason = "an earlier model of the run" if other else _refresh(embeddings_folder(where, name), config, name)
        if reason and not frozen and saved_model(folder) is None:
            _log.warning("the embeddings of %s are of %s, and without a model they cannot be made anew.", folder, reason)
            reason = ""
    if reason or not complete:
        if shown_in is not None:
            manifest = _manifest(config, name)
            levels = [level for level in config.data.levels or manifest.levels if level in manifest.levels]
            manifest.require_single_labels(
                f"{shown_in} of {folder.resolve().name}", "measure it with `suprank evaluate`", levels=levels
            )
        _embed(folder, config, name, device, stage_progress(progress), reason, frozen=frozen, trust_code=trust_code)
    return name


def embeddings_folder(run: str | PathLike[str], test: str = OWN_TEST) -> Path:
    """Folder with the embeddings of a run's test set: RUN/embeddings, or RUN/embeddings-NAME for one of `data.tests`."""
    return Path(run) / (EMBEDDINGS if test == OWN_TEST else f"{EMBEDDINGS}-{quote(test, safe='')}")


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
    load: Callable[[], tuple[Embedder, ImageLoaderSettings]], device: str | None = None, scales: Sequence[float] = (1.0,)
) -> Callable[[Image.Image], NDArray[np.float32]]:
    """Return a function that maps an RGB picture to its embedding `[dim]`; any thread may call it, one at a time gets in.

    `load` returns the model, such as `partial(load_run_model, run)`. It is called at the first picture, not before.
    """
    lock = threading.Lock()
    loaded: list[tuple[Embedder, ImageLoaderSettings]] = []

    def embed_picture(picture: Image.Image) -> NDArray[np.float32]:
        import torch

        from suprank.data import ImageBatch
        from suprank.models.inference import at_scales, embed

        with lock:
            if not loaded:
                loaded.append(load())
            embedder, settings = loaded[0]
            images = settings.transform(picture)[None]
            batch = ImageBatch(images, torch.empty((1, 0), dtype=torch.int64), torch.zeros(1, dtype=torch.int64), ())
            ((_, rows),) = embed(embedder, [batch], device=device, forward=settings.before(at_scales(embedder, scales)))
            return rows[0]

    return embed_picture


def read_run_config(run: Path) -> TrainConfig:
    """The recipe of a run; a `RecipeError` that says what to do if an earlier version of suprank wrote it."""
    from suprank.training.recipe import read_recipe
    from suprank.training.recipe_files import RecipeError

    try:
        return read_recipe(own_file(run / "recipe.toml"))
    except RecipeError as error:
        raise RecipeError(
            f"{run} has a recipe that this version of suprank does not read: {error} If an earlier version trained the run, "
            f"train it again, or embed its test images (`suprank embed {run / 'model'} MANIFEST --out DIR`) and name DIR."
        ) from None


def _default_test_set(run: Path, config: TrainConfig) -> str:
    """The test set to open if none is named: the manifest's own, else the first of `data.tests`, as in training."""
    if _is_complete(run, OWN_TEST) or not config.data.tests:
        return OWN_TEST
    first = next(iter(config.data.tests))
    try:
        return OWN_TEST if {"test", "query"} & set(_manifest(config, OWN_TEST).splits) else first
    except (OSError, ValueError):
        if _is_complete(run, first):
            return first
        raise


def _manifest(config: TrainConfig, name: str) -> Manifest:
    from suprank.training.manifests import open_manifest

    data = config.data
    file, root = (data.manifest, data.root) if name == OWN_TEST else (data.tests[name], None)
    return open_manifest(file, root)


def _is_complete(run: Path, name: str) -> bool:
    """Whether everything that is ranked is embedded. The gallery is embedded before the test images: see `_embed`."""
    from suprank.embedding.parts import embedded_parts
    from suprank.embedding.query_gallery import ranked_parts

    there = embedded_parts(embeddings_folder(run, name))
    return set(ranked_parts(there)) <= set(there) and there != ["train"]


def record_values(folder: Path, key: str) -> dict[str, object]:
    """The value of `key` in the record of every embedded part."""
    import json

    from suprank.embedding.parts import embedded_parts
    from suprank.evaluation.provenance import RECORD

    records = [folder / part / RECORD for part in embedded_parts(folder)]
    return {record.parent.name: json.loads(record.read_bytes()).get(key) for record in records if own_file(record).is_file()}


def _has_another_model(run: Path, name: str, trust_code: bool) -> bool:
    """Whether the run's model differs from the one that made the embeddings. Without a model, or a record, the answer is no."""
    from suprank.models.model_folder import saved_fingerprint

    recorded = set(record_values(embeddings_folder(run, name), "model").values()) - {None}
    if (folder := saved_model(run)) is None:
        return False
    current = saved_fingerprint(folder, read_run_config(run).evaluation_input)
    # A hash of the files is enough if it is the recorded one; weights that torch stores differently have another.
    return bool(recorded - {current}) and recorded != {load_run_model(run, trust_code=trust_code)[0].fingerprint()}


def _refresh(out: Path, config: TrainConfig, name: str) -> str:
    """Why complete embeddings are not those of the images of the manifest; "" if they are, or if there is no manifest.

    Then labels are replaced by those that the manifest has now.
    """
    from suprank.data.manifest import Manifest
    from suprank.embedding.embedded_images import EmbeddedImages
    from suprank.embedding.parts import PARTS, embedded_parts
    from suprank.embedding.query_gallery import column
    from suprank.embedding.shards import ITEMS

    if not Path(config.data.manifest if name == OWN_TEST else config.data.tests[name]).is_file():
        return ""  # gone, or drawn by suprank itself, always the same
    try:
        manifest = _manifest(config, name)
    except (OSError, ValueError):  # its images are gone, for example
        return ""
    for part in embedded_parts(out):
        items = Manifest.read(out / part / ITEMS)
        splits = [split for split in PARTS[part] if split in manifest.splits]
        images = manifest.split(*splits) if splits else manifest.take([])
        if any(column(images, name) != column(items, name) for name in ("path", "box")):
            return "other images than those of the manifest"
        embedded = EmbeddedImages(images, out / part)
        if replaced := embedded.replaced():
            return f"images that were replaced since ({replaced})"
        if embedded.other_labels(items):
            embedded.save(np.flatnonzero(items.table["broken"]) if "broken" in items.table.column_names else np.arange(0))
    return ""


def _embed(
    run: Path,
    config: TrainConfig,
    name: str,
    device: str | None,
    progress: StageProgress,
    reason: str,
    *,
    frozen: bool = False,
    trust_code: bool = False,
) -> None:
    import torch

    from suprank.embedding import embed_collection
    from suprank.embedding.collection import choose_parts

    out = embeddings_folder(run / FROZEN if frozen else run, name)
    if not os.access(out if out.is_dir() else run, os.W_OK):
        raise PermissionError(
            f"{run} is not writable, and its test images must be embedded into {out}; copy the run, or embed them elsewhere: "
            f"`suprank embed {run / 'model'} MANIFEST --out DIR`, and name DIR instead."
        )
    manifest = _manifest(config, name)
    parts = choose_parts(manifest)
    if "train" in parts:
        way_out = f"; choose test={next(iter(config.data.tests))!r}" if config.data.tests and name == OWN_TEST else ""
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
    if reason:
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


def saved_model(run: Path) -> Path | None:
    return next((run / name for name in ("model", "best") if (run / name / "embedder.json").is_file()), None)


def _model_folder(run: Path) -> Path:
    if (folder := saved_model(run)) is None:
        raise FileNotFoundError(f"{run} has no model yet; training saves it at its end, and resume continues the run.")
    return folder
