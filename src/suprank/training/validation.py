"""Test images in, reports out: the exact metrics of a network in training, on one process or many."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from suprank.data import transforms
from suprank.data.in_memory import InMemoryImages
from suprank.data.workers import default_workers
from suprank.embedding.image_loading import EvalTransformSettings, ImageLoaderSettings
from suprank.embedding.parts import PARTS
from suprank.embedding.query_gallery import build_query_gallery, common_levels, ranked_parts
from suprank.evaluation import evaluate
from suprank.evaluation.arguments import check_tree, parse_metrics
from suprank.evaluation.metric_names import parse_metric
from suprank.evaluation.metrics import default_metrics
from suprank.training import distributed
from suprank.training.manifests import manifest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from suprank.data.datasets import ImageDataset
    from suprank.data.manifest import Manifest
    from suprank.evaluation import Report
    from suprank.training.config import TrainConfig

    Forward = Callable[[Tensor], Tensor]

OWN = "test"
"""What the test images of the training manifest are called, beside the names in `data.tests`."""

KS = (1, 10, 100)  # of R@k and the like, where the recipe chooses no metrics
_GATHERED = 2**14  # rows of each process that are exchanged at a time: bounded beside the network on a GPU


@dataclass(frozen=True)
class _TestSet:
    """Images of the parts that are ranked, how errors call them, the levels they are judged at, and the metrics."""

    images: dict[str, ImageDataset]
    about: str
    levels: tuple[str, ...]
    metrics: tuple[str, ...]


class Validator:
    """The test sets of a recipe: `judge(forward, device=..., progress=...)` is a report for each, by name.

    `test` is that of the manifest's own test images, every one against the others (and distractors), or of its queries against
    its gallery; the others are those of `data.tests`. There may be none, and then there are no reports. Each is judged at the
    levels of `data.levels` that it has.

    Under `data.on_broken = "skip"` broken images are left out, of queries and of gallery. With `data.hold` images are decoded
    when the judge is made, once for all evaluations.
    """

    def __init__(
        self,
        sets: dict[str, _TestSet],
        reading: ImageLoaderSettings,
        *,
        side: int,
        best: str,
        decay: float,
        rank: int,
        world_size: int,
        pinned: bool,
    ) -> None:
        """For `of`, which has checked."""
        self._sets, self._reading, self._best, self._decay = sets, reading, best, decay
        self._side, self._rank, self._world_size, self._pinned = side, rank, world_size, pinned

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        manifest: Manifest,
        *,
        rank: int = 0,
        world_size: int = 1,
        pinned: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """As the recipe says, for its whole manifest. What evaluation would refuse is refused here, before training.

        `progress(done, total)` counts the images that `data.hold` decodes here, once for all evaluations.
        """
        wanted = config.images
        settings = EvalTransformSettings(
            wanted.size, wanted.test_resize, wanted.squash, wanted.interpolation, config.data.fast_jpeg
        )
        transform = settings.transform()
        reading = ImageLoaderSettings(
            transform,
            min_short_side=transforms.min_short_side(transform) if config.data.fast_jpeg else None,
            settings=settings,
            batch_size=config.evaluation.batch_size,
            workers=config.data.workers,
            on_broken=config.data.on_broken,
        )
        found = {OWN: (manifest, config.data.manifest)} if {"test", "query"} & set(manifest.splits) else {}
        for name, file in config.data.tests.items():
            if name in found:
                raise ValueError(f"data.tests has a {name!r}, as {config.data.manifest} calls its own images; rename it.")
            found[name] = (manifest_of(file), file)
        sets = {name: _test_set(whole, about, config, reading, progress) for name, (whole, about) in found.items()}
        best = _best(next(iter(sets.values())), config.evaluation.best) if sets else ""
        processes: dict[str, Any] = {"rank": rank, "world_size": world_size, "pinned": pinned}
        return cls(sets, reading, side=wanted.size, best=best, decay=config.evaluation.decay, **processes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._sets)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what is measured: paths, labels and levels of every test set, and the decay. Values compare only under the
        same one. The folder of the images is left out, since a dataset may be moved."""
        found = hashlib.blake2b(repr(self._decay).encode(), digest_size=16)
        for name, test in self._sets.items():
            found.update(repr((name, test.levels)).encode())
            for part, images in test.images.items():
                columns = [images.manifest.levels.index(level) for level in test.levels]
                found.update("\n".join([part, *images.paths.to_pylist()]).encode())
                found.update(np.ascontiguousarray(images.labels[:, columns]).tobytes())
        return found.hexdigest()

    @property
    def best_metric(self) -> tuple[str, str]:
        """The test set and the metric of it that tell which network is best: of the first test set, what the recipe says.

        By default H-AP, or AP at one level; where the recipe chooses metrics without it, the first of those.
        """
        if not self._sets:
            raise ValueError("there are no test images, so no network is the best; look at `names` before.")
        return self.names[0], self._best

    def __call__(
        self, forward: Forward, *, device: torch.device | str, progress: Callable[[str, int, int], None]
    ) -> dict[str, Report]:
        """A report for each test set, the same in all processes, which share the images and the queries.

        `forward` is given images in bytes `[batch, 3, size, size]`, on the CPU, and returns their embeddings; every process
        calls it equally often, for networks that are spread over them. `progress(name, done, total)` counts this process's
        images, and then the queries.
        """
        return {
            name: self._report(test, forward, torch.device(device), partial(progress, name))
            for name, test in self._sets.items()
        }

    def _report(self, test: _TestSet, forward: Forward, device: torch.device, progress: Callable[[int, int], None]) -> Report:
        shares = [-(-len(images) // self._world_size) for images in test.images.values()]
        images, queries = sum(shares), len(next(iter(test.images.values())))
        parts: dict[str, tuple[NDArray[Any], Manifest]] = {}
        for number, (name, dataset) in enumerate(test.images.items()):
            before = sum(shares[:number])
            show = _from(progress, before, images + queries)
            found, whole = self._embedded(dataset, forward, device, show)
            if not whole.any():
                raise ValueError(f"{test.about}: all {len(whole):,} {name} images are broken; nothing can be judged by them.")
            _check_finite(found, whole, dataset)
            parts[name] = (found, dataset.manifest) if whole.all() else (found[whole], dataset.manifest.take(whole))
        ranked = build_query_gallery(parts, test.levels, about=test.about)
        gallery = ranked.gallery
        return evaluate(
            ranked.queries.embeddings,
            ranked.queries.labels,
            None if gallery is None else gallery.embeddings,
            None if gallery is None else gallery.labels,
            level_names=ranked.levels,
            decay=self._decay,
            device=device,
            progress=_from(progress, images, images + queries),
            metrics=test.metrics,
            ids=ranked.queries.ids,
            gallery_ids=None if gallery is None else gallery.ids,
            distributed=self._world_size > 1,
        )

    def _embedded(
        self, images: ImageDataset, forward: Forward, device: torch.device, show: Callable[[int], None]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Embeddings `[images, dim]` of all images in all processes, and which of them were whole."""
        world, size = self._world_size, self._reading.batch_size
        share = -(-len(images) // world)
        rows = np.arange(self._rank, share * world, world) % len(images)  # the first come again, so that all have equally many
        blocks = []
        with closing(self._reading.batches(images, rows, pinned=self._pinned)) as batches:
            for start, batch in zip(range(0, share, size), batches, strict=True):
                asked = rows[start : start + size]
                blocks.append(_block(forward, batch.images, torch.from_numpy(np.isin(asked, batch.indices)), self._side))
                show(start + len(asked))
        found = self._gathered(torch.cat(blocks), device)[: len(images)].numpy()
        return found[:, :-1], found[:, -1] > 0

    def _gathered(self, own: Tensor, device: torch.device) -> Tensor:
        """The rows of all processes: process r has the rows r, r + n, r + 2n, ..."""
        if self._world_size == 1:
            return own
        parts = []
        for some in own.split(_GATHERED):
            together = distributed.gathered(some.to(device)).cpu()
            parts.append(together.unflatten(0, (self._world_size, -1)).transpose(0, 1).flatten(0, 1))
        return torch.cat(parts)


def _block(forward: Forward, images: Tensor, whole: Tensor, side: int) -> Tensor:
    """Embeddings of a batch, 0 for broken images, and beside them a column that is 1 for whole ones."""
    if not whole.any():
        images = torch.zeros((1, 3, side, side), dtype=torch.uint8)
    found = forward(images).float().cpu()
    block = torch.zeros((len(whole), found.shape[1] + 1))
    block[whole, :-1] = found[: int(whole.sum())]
    block[whole, -1] = 1
    return block


def _from(progress: Callable[[int, int], None], before: int, total: int) -> Callable[..., None]:
    """Counts on from `before`; the total of what is counted now is not looked at."""
    return lambda done, _=None: progress(before + done, total)


# What is asked for


def _test_set(
    whole: Manifest, about: str, config: TrainConfig, reading: ImageLoaderSettings, progress: Callable[[int, int], None] | None
) -> _TestSet:
    there = {part: [split for split in splits if split in whole.splits] for part, splits in PARTS.items()}
    chosen = ranked_parts([part for part, splits in there.items() if splits])
    if chosen == ("train",) or not all(there[part] for part in chosen):
        missing = "gallery" if chosen[0] == "query" else "test"
        raise ValueError(f"{about} has {', '.join(whole.splits)}, and no {missing} images to judge by; add some.")
    manifests = {part: whole.split(*there[part]) for part in chosen}
    levels = _levels(manifests, config.data.levels, about)
    _check_labels(manifests, levels, about)
    metrics = _metrics(config.evaluation.metrics, levels, about)
    images: dict[str, ImageDataset] = {part: reading.dataset(manifest) for part, manifest in manifests.items()}
    if config.data.hold:
        workers = default_workers() if reading.workers is None else reading.workers
        images = {part: InMemoryImages(dataset, workers=workers, progress=progress) for part, dataset in images.items()}
    return _TestSet(images, about, levels, metrics)


def _levels(manifests: dict[str, Manifest], asked: Sequence[str] | None, about: str) -> tuple[str, ...]:
    known = common_levels(manifests.values(), about=about)
    levels = known if asked is None else tuple(level for level in asked if level in known)
    if not levels:
        raise ValueError(f"{about} has the levels {', '.join(known)}, and none of data.levels={list(asked or ())}; add one.")
    return levels


def _check_labels(manifests: dict[str, Manifest], levels: tuple[str, ...], about: str) -> None:
    """Refuse labels that are no tree, as evaluation would."""
    nothing = {part: (np.empty((len(items), 0)), items) for part, items in manifests.items()}
    ranked = build_query_gallery(nothing, levels, about=about)
    tables = [side.labels for side in (ranked.queries, ranked.gallery) if side is not None]
    try:
        check_tree(torch.from_numpy(np.concatenate(tables)), levels)
    except ValueError as error:
        raise ValueError(f"{about}: {error}") from error


def _metrics(asked: Sequence[str] | None, levels: tuple[str, ...], about: str) -> tuple[str, ...]:
    try:
        chosen = default_metrics(KS, levels) if asked is None else parse_metrics(asked, levels)
    except ValueError as error:
        raise ValueError(f"evaluation.metrics, for {about}: {error}") from error
    return tuple(map(str, chosen))


def _best(test: _TestSet, asked: str | None) -> str:
    usual = "H-AP" if len(test.levels) > 1 else "AP"
    if asked is None:
        return usual if usual in test.metrics else test.metrics[0]
    try:
        best = str(parse_metric(asked))
    except ValueError as error:
        raise ValueError(f"evaluation.best: {error}") from error
    if best not in test.metrics:
        raise ValueError(
            f"evaluation.best={asked!r} is not measured on {test.about}; choose from {', '.join(test.metrics)}, "
            f"or add it to evaluation.metrics."
        )
    return best


def _check_finite(embeddings: NDArray[np.float32], whole: NDArray[np.bool_], images: ImageDataset) -> None:
    wrong = np.flatnonzero(~np.isfinite(embeddings).all(1) & whole)
    if len(wrong):
        raise ValueError(
            f"the network gives numbers that are not finite for {len(wrong):,} of {len(whole):,} test images, "
            f"{images.paths[int(wrong[0])].as_py()} for one; try a lower learning rate, run.clip=1, or engine.precision='fp32'."
        )
