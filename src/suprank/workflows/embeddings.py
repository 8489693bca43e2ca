"""Embed the images of a manifest with a model."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from suprank.executors import parse_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

    from suprank.data.manifest import Manifest
    from suprank.embedding import ImageLoaderSettings, Processes
    from suprank.embedding.shards import RunTasks
    from suprank.evaluation.provenance import Provenance
    from suprank.models import Embedder, Head
    from suprank.system.progress import Progress, StageProgress

_log = logging.getLogger(__name__)


def embed(
    model: str | PathLike[str] | Embedder,
    manifest: str | PathLike[str] | Manifest,
    out: str | PathLike[str],
    *,
    weights: str | PathLike[str] | None = None,
    head: str | PathLike[str] | Head | None = None,
    trust_code: bool = False,
    root: str | PathLike[str] | None = None,
    splits: Sequence[str] | None = None,
    size: int | None = None,
    resize: int | None = None,
    squash: bool | None = None,
    fast_jpeg: bool | None = None,
    decoder: Literal["pil", "turbo"] | None = None,
    scales: Sequence[float] = (1.0,),
    precision: Literal["fp32", "bf16", "fp16"] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    batch_size: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    on_broken: Literal["raise", "skip"] = "raise",
    shard: tuple[int, int] | None = None,
    on: str = "local",
    progress: bool | StageProgress = True,
) -> dict[str, Path]:
    """Embed the images of a manifest into `out`/SPLIT/embeddings.npy and items.parquet; return the folder of each split.

    `model` is a folder with a saved embedder, an `Embedder`, the name of a timm backbone, `hf-hub:org/name` for either on the
    Hugging Face Hub, or a backbone of your own such as `mine.py:build`. A saved embedder with such a backbone is loaded only
    with `trust_code`. `head`, a folder of `suprank adapt` or a `Head`, is put on top of it. `manifest` is a `Manifest` or its
    file. What else is None is as the model was saved, or a sensible default. An interrupted call continues where it stopped.
    Under torchrun the processes share the images. With `shard=(3, 16)`, this call embeds every 16th shard of 2,048 images, from
    the third on; once all 16 are there, in one folder, the call without it joins them, and computes what is missing. With
    `on="ray"`, or "ray=HOST:PORT", each shard is a task for a machine of that cluster; all of them see `out` and the images.
    `progress` draws a bar for each split, or is called with (split, done, total), on rank 0 only.

    Example:
        >>> suprank.embed("resnet50", "cub.parquet", "embeddings")  # doctest: +SKIP
        {'test': PosixPath('embeddings/test')}
    """
    from suprank.data.manifest import Manifest
    from suprank.embedding import embed_collection, torchrun_processes
    from suprank.models import Embedder
    from suprank.workflows.heads import embedder_with_head

    if not scales or min(scales) <= 0:
        raise ValueError(f"scales={tuple(scales)} must be one or more numbers above 0, such as 0.7.")
    parse_on(on)
    collection = manifest
    if not isinstance(collection, Manifest):
        collection = Manifest.read(collection, root=root)
    embedder = load_embedder(model, weights, trust_code=trust_code)
    if head is not None:
        embedder = embedder_with_head(embedder, head)
    images = {"size": size, "resize": resize, "squash": squash, "fast_jpeg": fast_jpeg, "decoder": decoder}
    with torchrun_processes() as processes, _tasks_elsewhere(on, device, workers, processes) as elsewhere:
        run_tasks, device, workers = elsewhere
        if run_tasks is not None:  # other machines have other working folders
            collection = Manifest(collection.table, collection.root.absolute(), collection.levels)
        settings = loader_settings(embedder, images, batch_size or default_batch_size(device), workers, on_broken)
        first = processes.rank == 0
        if first and head is not None:
            _warn_of_other_images(embedder, settings, precision, tuple(scales))
        if first and not isinstance(model, Embedder):
            _warn_of_overrides(embedder, settings, str(model), precision, tuple(scales))
        folders = embed_collection(
            embedder,
            collection,
            out if run_tasks is None else Path(out).absolute(),
            loading=settings,
            splits=splits,
            device=processes.device(device) if run_tasks is None else device,
            precision=precision,
            scales=tuple(scales),
            dtype=dtype,
            shard=shard,
            run_tasks=run_tasks,
            processes=processes,
            progress=progress if first else False,
            note=_log.info,
        )
    return {part: Path(out) / part for part in folders}


@contextmanager
def _tasks_elsewhere(
    on: str, device: str | None, workers: int | None, processes: Processes
) -> Iterator[tuple[RunTasks | None, str | None, int | None]]:
    """What runs tasks where `on` says, None for this process; the device, and the processes that load images for a task.

    A task takes a GPU, if there is any and the device is not the CPU, and cores for its workers: by default an equal share of
    a machine's for each of its GPUs. On a CPU it takes one core, and loads its images itself.
    """
    where, address = parse_on(on)
    if where == "local":
        yield None, device, workers
        return
    if processes.world_size > 1:
        raise ValueError(f"on={on!r} distributes the images itself; start one process, without torchrun.")
    if where == "slurm":
        raise ValueError("images are embedded on SLURM as an array of jobs with shard=(i, n); on='ray' embeds them on Ray.")
    if device not in (None, "cpu", "cuda"):
        raise ValueError(
            f"device={device!r} must be cpu or cuda with on={on!r}: Ray assigns the GPUs of a machine to its tasks."
        )
    from suprank.executors.ray_cluster import RayCluster

    with RayCluster(address) as cluster:
        gpus = int(device == "cuda" or (device is None and bool(cluster.machines(gpus=1))))
        if workers is None:
            workers = cluster.cpus_per_gpu() if gpus else 0
        run_tasks = partial(cluster.run, cpus=max(1, workers), gpus=gpus)
        yield run_tasks, "cuda" if gpus else "cpu", workers


def load_embedder(
    model: str | PathLike[str] | Embedder,
    weights: str | PathLike[str] | None = None,
    *,
    pretrained: bool | None = None,
    trust_code: bool = False,
    **settings: object,
) -> Embedder:
    """Load the embedder saved in a folder, or that of a run, or make one from a timm backbone with weights of a file or timm's.

    `hf-hub:org/name` is an embedder that was pushed to the Hugging Face Hub, or else a timm model there. A backbone of the
    user's own, such as `mine.py:build`, is named by the caller, and so is loaded. A folder or an embedder on the Hub that names
    one is refused unless `trust_code` is true. `pretrained=False` leaves the weights of a backbone random.
    """
    from suprank.models import Embedder
    from suprank.system.custom_code import HUB, is_code_name
    from suprank.workflows.opening import is_run
    from suprank.workflows.run_embeddings import load_run_model

    if isinstance(model, Embedder):
        return model
    name = str(model)
    if is_saved_embedder(name):
        if weights is not None or pretrained is not None or settings:
            raise ValueError(f"{name} is a saved embedder, with weights and settings of its own; leave the others out.")
        if is_run(name):
            return load_run_model(Path(name), trust_code=trust_code)[0]
        return Embedder.from_pretrained(name, trust_code=trust_code)
    is_code = is_code_name(name)
    if "/" in name and not is_code and not name.startswith(HUB):
        raise FileNotFoundError(
            f"{name} is not a folder; give a saved embedder, the name of a timm backbone, {HUB}org/name for one on the Hugging "
            "Face Hub, or FILE.py:NAME."
        )
    if pretrained is None:
        pretrained = weights is None and not is_code
    return Embedder.create(name, pretrained=pretrained, weights=weights, **settings).eval()


def is_saved_embedder(model: str | PathLike[str]) -> bool:
    """Whether this is a folder, or an embedder on the Hugging Face Hub, rather than the name of a backbone."""
    from suprank.system.custom_code import HUB

    if not str(model).startswith(HUB) or Path(model).is_dir():
        return Path(model).is_dir()
    from suprank.models.hub import has_embedder

    return has_embedder(str(model))


def loader_settings(
    embedder: Embedder, images: dict[str, Any], batch_size: int, workers: int | None, on_broken: Literal["raise", "skip"]
) -> ImageLoaderSettings:
    """Settings to load images for a model. `images` may hold size, resize, squash, fast_jpeg and decoder; None means the
    model's own."""
    from suprank.embedding import ImageLoaderSettings

    return ImageLoaderSettings.for_model(embedder, **images, batch_size=batch_size, workers=workers, on_broken=on_broken)


def save_pca(
    embedder: Embedder,
    images: Manifest,
    out: str | PathLike[str],
    *,
    dim: int,
    whiten: bool = False,
    loading: ImageLoaderSettings,
    device: str | None = None,
    progress: bool | Progress = True,
) -> Embedder:
    """Save the embedder with a projection onto the `dim` main directions of these images' features, and return it.

    It replaces the projection that the embedder has, and images are from now on loaded as for the PCA. Under torchrun the
    processes share the images, and the first one saves.
    """
    from suprank.embedding import feature_moments, torchrun_processes
    from suprank.models import pca_projection

    if dim > embedder.features_dim:
        raise ValueError(
            f"dim={dim} is more than the {embedder.features_dim} features of {embedder.config.backbone}; give fewer."
        )
    with torchrun_processes() as processes:
        moments = feature_moments(
            embedder, images, loading=loading, device=processes.device(device), processes=processes, progress=progress
        )
        projected = embedder.with_projection(*pca_projection(moments, dim, whiten=whiten))
        projected.config = projected.config.model_copy(update=as_embedder_config(loading))
        if processes.rank == 0:
            projected.save(out)
            whitened = ", whitened" * whiten
            _log.info("a PCA of %s images: %d features → %d%s", f"{moments.count:,}", embedder.features_dim, dim, whitened)
        processes.barrier()
    return projected


def as_embedder_config(settings: ImageLoaderSettings) -> dict[str, Any]:
    """The settings of image loading as fields of an `EmbedderConfig`."""
    assert settings.settings is not None, "made by ImageLoaderSettings.for_model"
    fields = settings.settings._asdict()
    side = fields.pop("size")
    return {**fields, "image_size": (side, side), "decoder": settings.decoder}


def default_batch_size(device: str | None) -> int:
    """64, or 16 on a CPU, where 64 images of 224 pixels took 1.4 times as long as 16."""
    import torch

    on_cpu = torch.device(device).type == "cpu" if device else not torch.cuda.is_available()
    return 16 if on_cpu else 64


def _warn_of_overrides(
    embedder: Embedder, settings: ImageLoaderSettings, model: str, precision: str | None, scales: tuple[float, ...]
) -> None:
    """Warn if images are loaded or embedded differently from how a saved model was evaluated."""
    from suprank.data.jpeg import is_installed
    from suprank.embedding import ImageLoaderSettings
    from suprank.evaluation.provenance import Provenance

    if not _is_saved(model, embedder):
        return  # a backbone alone was never evaluated by us, so there is nothing to differ from
    if embedder.input.size[0] != embedder.input.size[1]:
        return
    own = ImageLoaderSettings.for_model(embedder, decoder=settings.decoder).settings
    if own is None or settings.settings is None:
        return
    config = embedder.config
    # If the decoder it was saved with is missing, `for_model` has warned of that.
    decoder = config.input.decoder if is_installed(config.input.decoder) else settings.decoder
    saved = Provenance(config.backbone, 0, **own._asdict(), decoder=decoder, precision=config.precision or "fp32")
    if differences := _provenance(embedder, settings, precision, scales).differences(saved):
        _log.warning(
            "options override what %s was saved with: %s. Metrics may differ from those of the run that trained it.",
            model,
            "; ".join(differences),
        )


def _is_saved(model: str, embedder: Embedder) -> bool:
    """Whether this is the name of a saved embedder, in a folder or on the Hub, rather than that of a backbone."""
    from suprank.system.custom_code import HUB

    return Path(model).is_dir() or (model.startswith(HUB) and not embedder.config.backbone.startswith(model.partition("@")[0]))


def _warn_of_other_images(
    embedder: Embedder, settings: ImageLoaderSettings, precision: str | None, scales: tuple[float, ...]
) -> None:
    """Warn if images are read or embedded differently from those that the embedder's head was trained on."""
    from suprank.evaluation.heads import warn_of_other_images
    from suprank.models import Head

    if isinstance(embedder.head, Head):
        warn_of_other_images(embedder.head, _provenance(embedder, settings, precision, scales))


def _provenance(
    embedder: Embedder, settings: ImageLoaderSettings, precision: str | None, scales: tuple[float, ...]
) -> Provenance:
    """How embeddings are made with these settings, to be compared; the parameters of the network are not counted."""
    from suprank.evaluation.provenance import Provenance

    assert settings.settings is not None, "made by ImageLoaderSettings.for_model"
    images: dict[str, Any] = {**settings.settings._asdict(), "decoder": settings.decoder}
    precision = precision or embedder.config.precision or "fp32"
    return Provenance(embedder.config.backbone, 0, **images, precision=precision, scales=scales)


def query_provenance(embedder: Embedder, settings: ImageLoaderSettings, scales: tuple[float, ...] = (1.0,)) -> Provenance:
    """What images to search for are embedded by, to be compared with what made the embeddings that are searched."""
    from suprank.workflows.heads import head_fingerprint

    made_by = _provenance(embedder, settings, None, scales)
    return replace(made_by, head=head_fingerprint(embedder), fingerprint=embedder.network_fingerprint())
