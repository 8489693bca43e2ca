"""The exact metrics of a network on the test sets of a recipe, computed by one process or many."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from suprank.data import transforms
from suprank.data.cached_images import InMemoryImages
from suprank.data.duplicates import repeated_images
from suprank.data.workers import default_workers
from suprank.embedding.image_loading import EvalTransformSettings, ImageLoaderSettings
from suprank.embedding.parts import PARTS
from suprank.embedding.query_gallery import combine_parts, common_labels, count_seen, ranked_parts, shared_levels
from suprank.evaluation import evaluate
from suprank.evaluation.arguments import parse_metrics
from suprank.evaluation.metric_names import parse_metric
from suprank.evaluation.metrics import default_metrics
from suprank.evaluation.retrieval_data import Origin
from suprank.files.labels import check_tree
from suprank.losses import gather
from suprank.training.manifests import open_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.data.datasets import ImageDataset
    from suprank.data.manifest import Manifest
    from suprank.evaluation import Report
    from suprank.training.config import EvaluationConfig, TrainConfig

    Forward = Callable[[Tensor], Tensor]

OWN = "test"
"""Name of the test set in the training manifest, beside the names in `data.tests`."""

_ROWS_PER_GATHER = 2**14  # rows that a process sends at a time, to bound the memory beside the network on a GPU


@dataclass(frozen=True)
class _TestSet:
    """Images of the parts that are ranked, a name for errors, the levels to evaluate at, the metrics, weights of wAP, and how
    many of the finest classes of the queries are trained on. `repeated` are sentences of `repeated_images`."""

    images: dict[str, ImageDataset]
    about: str
    levels: tuple[str, ...]
    metrics: tuple[str, ...]
    weights: dict[str, float] | None
    classes_seen: int
    repeated: list[str]


class Validator:
    """The test sets of a recipe. `validator(forward, device=..., progress=...)` returns a report for each, by name.

    `test` is the manifest's own: every test image against the others (and distractors), or its queries against its gallery. The
    others are those of `data.tests`. There may be none, and then there are no reports. Each is evaluated at the levels of
    `data.levels` that it has.

    With `data.on_broken = "skip"` broken images are left out, of queries and of gallery. With `data.cache_images` images are
    decoded, resized and cropped when the validator is built, once for all evaluations.
    """

    def __init__(
        self,
        sets: dict[str, _TestSet],
        loading: ImageLoaderSettings,
        *,
        image_size: int,
        best: str,
        decay: float,
        rank: int,
        world_size: int,
        pinned: bool,
    ) -> None:
        """Use `from_config`, which checks the arguments."""
        self._sets, self._loading, self._best, self._decay = sets, loading, best, decay
        self._image_size, self._rank, self._world_size, self._pinned = image_size, rank, world_size, pinned

    @classmethod
    def from_config(
        cls,
        config: TrainConfig,
        manifest: Manifest,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """The test sets that the recipe describes. What evaluation would refuse is refused here, before training.

        `progress(done, total)` counts the images that `data.cache_images` decodes here, once for all evaluations.
        """
        images = config.images
        settings = EvalTransformSettings(
            images.size, images.test_resize, images.squash, images.interpolation, config.data.fast_jpeg
        )
        transform = settings.transform()
        loading = ImageLoaderSettings(
            transform,
            min_short_side=transforms.min_short_side(transform) if config.data.fast_jpeg else None,
            settings=settings,
            batch_size=config.evaluation.batch_size,
            workers=config.data.workers,
            on_broken=config.data.on_broken,
            decoder=config.data.decoder,
        )
        manifests = {OWN: (manifest, config.data.manifest)} if {"test", "query"} & set(manifest.splits) else {}
        for name, file in config.data.tests.items():
            if name in manifests:
                raise ValueError(f"data.tests has a {name!r}, the name of the test set of {config.data.manifest}; rename it.")
            manifests[name] = (open_manifest(file), file)
        training = manifest.split("train") if "train" in manifest.splits else manifest.take([])
        sets = {
            name: _test_set(whole, about, config, loading, training, progress) for name, (whole, about) in manifests.items()
        }
        _check_weighted_levels(config.evaluation.level_weights, sets)
        best = _best(next(iter(sets.values())), config.evaluation.best) if sets else ""
        processes: dict[str, Any] = {"rank": rank, "world_size": world_size, "pinned": torch.device(device).type == "cuda"}
        return cls(sets, loading, image_size=images.size, best=best, decay=config.evaluation.decay, **processes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sets)

    @property
    def warnings(self) -> list[str]:
        """Sentences on test images that are listed twice or trained on."""
        return [text for test in self._sets.values() for text in test.repeated]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of paths, labels, levels and weights of every test set, and of the decay: metrics can be compared if it is the
        same.

        The folder of the images is left out, since a dataset may be moved."""
        digest = hashlib.blake2b(repr(self._decay).encode(), digest_size=16)
        for name, test in self._sets.items():
            weighted = () if test.weights is None else (test.weights,)  # without weights, as in runs that had no such key
            digest.update(repr((name, test.levels, *weighted)).encode())
            for part, images in test.images.items():
                columns = [images.manifest.levels.index(level) for level in test.levels]
                digest.update("\n".join([part, *images.paths.to_pylist()]).encode())
                digest.update(np.ascontiguousarray(images.labels[:, columns]).tobytes())
        return digest.hexdigest()

    @property
    def best_metric(self) -> tuple[str, str]:
        """The test set and the metric that decide which network is best: the first test set, and `evaluation.best`.

        By default H-AP, or AP if there is one level; if the recipe's metrics do not include it, the first of those.
        """
        if not self._sets:
            raise ValueError("there are no test images, so no network is the best; check `names` first.")
        return self.names[0], self._best

    def __call__(
        self,
        forward: Forward,
        *,
        device: torch.device | str,
        progress: Callable[[str, int, int], None],
        per_query: bool = False,
    ) -> dict[str, Report]:
        """A report for each test set, the same in all processes, which share the work.

        `forward` gets images (uint8) `[batch, 3, size, size]` on the CPU and returns their embeddings; every process calls it
        equally often, for networks whose weights are sharded. `progress(name, done, total)` counts this process's images, and
        then the queries. `per_query` keeps the metrics of every query in the reports.
        """
        return {
            name: self._report(test, forward, torch.device(device), partial(progress, name), per_query)
            for name, test in self._sets.items()
        }

    def _report(
        self,
        test: _TestSet,
        forward: Forward,
        device: torch.device,
        progress: Callable[[int, int], None],
        per_query: bool,
    ) -> Report:
        shares = [-(-len(images) // self._world_size) for images in test.images.values()]
        images, queries = sum(shares), len(next(iter(test.images.values())))
        parts: dict[str, tuple[NDArray[Any], Manifest]] = {}
        for number, (name, dataset) in enumerate(test.images.items()):
            show = _count_from(progress, sum(shares[:number]), images + queries)
            embeddings, intact = self._embed(dataset, forward, device, show)
            if not intact.any():
                raise ValueError(
                    f"{test.about}: all {len(intact):,} {name} images are broken, so there is nothing to evaluate."
                )
            _check_finite(embeddings, intact, dataset)
            parts[name] = embeddings, dataset.manifest
            if not intact.all():
                parts[name] = embeddings[intact], dataset.manifest.take(intact)
        known = {"classes_seen": test.classes_seen, **({"repeated": test.repeated} if test.repeated else {})}
        return evaluate(
            combine_parts(parts, name=test.about, origin=Origin(training=known)).at_levels(test.levels),
            decay=self._decay,
            weights=test.weights,
            device=device,
            progress=_count_from(progress, images, images + queries),
            metrics=test.metrics,
            distributed=self._world_size > 1,
            per_query=per_query,
        )

    def _embed(
        self, images: ImageDataset, forward: Forward, device: torch.device, show: Callable[[int], None]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Embeddings `[images, dim]` of all images, in all processes, and which of the images are intact."""
        world, size = self._world_size, self._loading.batch_size
        share = -(-len(images) // world)
        # The first images are repeated at the end, so that all processes have equally many.
        rows = np.arange(self._rank, share * world, world) % len(images)
        blocks = []
        with closing(self._loading.batches(images, rows, pinned=self._pinned)) as batches:
            for start, batch in zip(range(0, share, size), batches, strict=True):
                block_rows = rows[start : start + size]
                intact = torch.from_numpy(np.isin(block_rows, batch.indices))
                blocks.append(_embed_block(forward, batch.images, intact, self._image_size))
                show(start + len(block_rows))
        gathered = self._gather(torch.cat(blocks), device)[: len(images)].numpy()
        return gathered[:, :-1], gathered[:, -1] > 0

    def _gather(self, local: Tensor, device: torch.device) -> Tensor:
        """The rows of all processes: process r has the rows r, r + n, r + 2n, ..."""
        if self._world_size == 1:
            return local
        parts = []
        for some in local.split(_ROWS_PER_GATHER):
            rows = gather(some.to(device), equal_sizes=True).cpu()
            parts.append(rows.unflatten(0, (self._world_size, -1)).transpose(0, 1).flatten(0, 1))
        return torch.cat(parts)


def _embed_block(forward: Forward, images: Tensor, intact: Tensor, size: int) -> Tensor:
    """Embeddings of a batch, 0 for broken images, and beside them a column that is 1 for intact ones."""
    if not intact.any():
        images = torch.zeros((1, 3, size, size), dtype=torch.uint8)
    embeddings = forward(images).float().cpu()
    block = torch.zeros((len(intact), embeddings.shape[1] + 1))
    block[intact, :-1] = embeddings[: int(intact.sum())]
    block[intact, -1] = 1
    return block


def _count_from(progress: Callable[[int, int], None], before: int, total: int) -> Callable[..., None]:
    """A progress function that continues from `before`, whatever total it is called with."""
    return lambda done, _=None: progress(before + done, total)


# From the recipe


def _test_set(
    whole: Manifest,
    about: str,
    config: TrainConfig,
    loading: ImageLoaderSettings,
    training: Manifest,
    progress: Callable[[int, int], None] | None,
) -> _TestSet:
    splits_of = {part: [split for split in splits if split in whole.splits] for part, splits in PARTS.items()}
    chosen = ranked_parts([part for part, splits in splits_of.items() if splits])
    if chosen == ("train",) or not all(splits_of[part] for part in chosen):
        missing = "gallery" if chosen[0] == "query" else "test"
        raise ValueError(f"{about} has {', '.join(whole.splits)}, but no {missing} images to evaluate on; add some.")
    manifests = {part: whole.split(*splits_of[part]) for part in chosen}
    levels = _levels(manifests, config.data.levels, about)
    _check_labels(manifests, levels, about)
    metrics = _metrics(config.evaluation, levels, about)
    weights = _weights(config.evaluation.level_weights, levels, about)
    images: dict[str, ImageDataset] = {part: loading.dataset(manifest) for part, manifest in manifests.items()}
    if config.data.cache_images:
        workers = default_workers() if loading.workers is None else loading.workers
        options: dict[str, Any] = {"workers": workers, "progress": progress, "folder": config.data.cache_folder}
        images = {part: InMemoryImages.transformed(dataset, **options) for part, dataset in images.items()}
    seen = count_seen(manifests[chosen[0]], training, levels[0])
    return _TestSet(images, about, levels, metrics, weights, seen, repeated_images(manifests[chosen[0]], training, about))


def _levels(manifests: dict[str, Manifest], chosen: Sequence[str] | None, about: str) -> tuple[str, ...]:
    if not (known := shared_levels(list(manifests.values()))):
        raise ValueError(f"{about}: the images have no labels at a level that all have, so nothing is relevant; add some.")
    levels = known if chosen is None else tuple(level for level in chosen if level in known)
    if not levels:
        raise ValueError(f"{about} has the levels {', '.join(known)}, but none of data.levels={list(chosen or ())}; add one.")
    return levels


def _check_labels(manifests: dict[str, Manifest], levels: tuple[str, ...], about: str) -> None:
    """Refuse labels that are no tree, as evaluation would."""
    tables = common_labels(list(manifests.values()), levels)
    try:
        check_tree(tables, levels)
    except ValueError as error:
        raise ValueError(f"{about}: {error}") from error


def _metrics(config: EvaluationConfig, levels: tuple[str, ...], about: str) -> tuple[str, ...]:
    try:
        chosen = default_metrics(config.ks, levels) if config.metrics is None else parse_metrics(config.metrics, levels)
    except ValueError as error:
        raise ValueError(f"evaluation.metrics, for {about}: {error}") from error
    return tuple(map(str, chosen))


def _weights(by_level: Mapping[str, float], levels: tuple[str, ...], about: str) -> dict[str, float] | None:
    """The weights of the levels that a test set has, finest first; None for equal weights."""
    weights = {level: by_level[level] for level in levels if level in by_level}
    if by_level and not any(weights.values()):
        raise ValueError(
            f"evaluation.level_weights={dict(by_level)} has no weight above 0 for the levels of {about} ({', '.join(levels)}); "
            f"add one: evaluation.level_weights.{levels[0]}=1."
        )
    return weights or None


def _check_weighted_levels(by_level: Mapping[str, float], sets: Mapping[str, _TestSet]) -> None:
    known = dict.fromkeys(level for test in sets.values() for level in test.levels)
    for level in by_level:
        if sets and level not in known:
            raise ValueError(f"evaluation.level_weights names {level!r}, but the levels evaluated are {', '.join(known)}.")


def _best(test: _TestSet, name: str | None) -> str:
    usual = "H-AP" if len(test.levels) > 1 else "AP"
    if name is None:
        return usual if usual in test.metrics else test.metrics[0]
    try:
        best = str(parse_metric(name))
    except ValueError as error:
        raise ValueError(f"evaluation.best: {error}") from error
    if best not in test.metrics:
        raise ValueError(
            f"evaluation.best={name!r} is not measured on {test.about}; choose from {', '.join(test.metrics)}, "
            f"or add it to evaluation.metrics."
        )
    return best


def _check_finite(embeddings: NDArray[np.float32], intact: NDArray[np.bool_], images: ImageDataset) -> None:
    wrong = np.flatnonzero(~np.isfinite(embeddings).all(1) & intact)
    if len(wrong):
        raise ValueError(
            f"the network's embeddings of {len(wrong):,} of {len(intact):,} test images are NaN or infinite, "
            f"{images.paths[int(wrong[0])].as_py()} for one; "
            "try a lower learning rate, run.clip_grad_norm=1, or engine.precision='fp32'."
        )
