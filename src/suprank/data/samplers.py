"""Batch samplers: m images of each class, from any classes (`BalancedBatchSampler`) or from a few coarse classes."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from suprank.data.balanced_tables import balanced_table, sample_combinations
from suprank.data.class_pools import ClassPools, RowsByClass, equal_shares, previous_occurrences
from suprank.data.global_batches import GlobalBatchSampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import ArrayLike

    from suprank.data.class_pools import Integers

_DRAWS = 8  # of an image that is not in a batch, before all images of the class are looked through

MAX_BATCHES = 1_000_000
"""The most batches that an epoch of all combinations of coarse classes may have; more is probably a mistake."""


class BalancedBatchSampler(GlobalBatchSampler):
    """Batches of `images_per_class` images (m) of each of batch_size / m different classes.

    An epoch contains every image. A class of n images is divided into ⌈n / m⌉ groups of m, the last one filled up with images
    of the same class. A class of fewer than m images makes one group, in which all occur once before any occurs twice. The
    groups are distributed at random over the epoch, in new combinations each time, and no class occurs twice in a batch. So
    that every batch is full, random classes give an additional group.

    An epoch has as many batches as its groups fill, and at least as many as the largest class has groups: a dominant class
    makes the others repeat. `max_images_per_class`, a multiple of m, prevents this: an epoch uses at most that many images of a
    class, other ones each time.

    `labels` are integers, `[N]` or `[N, L]` with the finest level in column 0, the one used. Unlabeled images (−1) are refused.
    Of images with several labels, `[N, L, M]`, each is an image of all its classes. One that two classes of a batch would give
    is in it once: the second class gives another of its images, as long as it has one that is not in the batch.
    With `batches` an epoch has that many: it may end before every image was used, and the next one continues there. On epochs,
    processes (`rank`, `world_size`) and resuming see `GlobalBatchSampler`.

    It differs from pytorch-metric-learning's `MPerClassSampler(labels, m, batch_size, length_before_new_iter)`: it is a batch
    sampler (`DataLoader(batch_sampler=...)`), takes `images_per_class` for m and no `length_before_new_iter`, because an epoch
    contains every image; it also divides batches among processes and can be resumed.

    Example:
        >>> labels = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
        >>> batches = list(BalancedBatchSampler(labels, batch_size=4, images_per_class=2))
        >>> [len(set(labels[batch].tolist())) for batch in batches]
        [2, 2, 2]
        >>> {row for batch in batches for row in batch} == set(range(9))
        True
    """

    def __init__(
        self,
        labels: ArrayLike,
        batch_size: int,
        images_per_class: int = 4,
        *,
        max_images_per_class: int | None = None,
        batches: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        fine = _as_table(labels)[:, 0]
        _check_labeled(fine[:, None] if fine.ndim == 1 else fine.max(1)[:, None])
        super().__init__(
            fine,
            batch_size=batch_size,
            images_per_class=images_per_class,
            batches=batches,
            seed=seed,
            rank=rank,
            world_size=world_size,
            further_settings={"max_images_per_class": max_images_per_class},
        )
        _check_max_images(max_images_per_class, images_per_class)
        self._has_sets = fine.ndim == 2
        self._by_class = RowsByClass.from_sets(fine) if self._has_sets else RowsByClass.from_labels(fine)
        self._check_enough_classes()
        # The number of images of each class that an epoch uses, and the number of groups they make:
        self._used = np.minimum(self._by_class.sizes, max_images_per_class or len(fine))
        self._groups = -(-self._used // images_per_class)

    @cached_property
    def pass_length(self) -> int:
        return int(max(-(-self._groups.sum() // self.groups_per_batch), self._groups.max()))

    def pass_batches(self, number: int) -> Iterable[Integers]:
        rng = self.random(number)
        classes = balanced_table(self._turns(rng), self.pass_length, rng)
        images = self._images(classes.ravel(), rng).reshape(self.pass_length, self.batch_size)
        if self._has_sets:
            for batch, own in zip(images, classes, strict=True):
                self._replace_repeats(batch, np.repeat(own, self.images_per_class), rng)
        return images

    def _turns(self, rng: np.random.Generator) -> Integers:
        """The number of groups of each class in a pass: those of its images, and additional ones until every batch is full."""
        turns = self._groups.copy()
        missing = self.pass_length * self.groups_per_batch - int(turns.sum())
        while missing:
            chosen = rng.permutation(np.flatnonzero(turns < self.pass_length))[:missing]
            turns[chosen] += 1
            missing -= len(chosen)
        return turns

    def _images(self, classes: Integers, rng: np.random.Generator) -> Integers:
        """The images `[groups, m]` of groups of these classes. Each round through a class has its own random order."""
        rounds, group = np.divmod(previous_occurrences(classes), self._groups[classes])
        slots = group[:, None] * self.images_per_class + np.arange(self.images_per_class)
        images = np.empty_like(slots)
        by_round = RowsByClass.from_labels(rounds)
        for number in range(len(by_round)):
            now = by_round.class_rows(number)
            present, which = np.unique(classes[now], return_inverse=True)
            rows, starts = self._shuffled_rows(present, rng)
            # After the last image comes the first again, which fills up the last group without repeating an image.
            images[now] = rows[starts[which, None] + slots[now] % self._used[classes[now], None]]
        return images

    def _shuffled_rows(self, classes: Integers, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """The rows of these classes, class by class, each in random order; and where each class starts."""
        sizes = self._by_class.sizes[classes]
        starts = np.cumsum(sizes) - sizes
        place = np.repeat(self._by_class.starts[classes] - starts, sizes) + np.arange(sizes.sum())
        # As many bits as fit beside the class: with equal keys the order would depend on the sort.
        bits = 62 - len(classes).bit_length()
        key = np.repeat(np.arange(len(classes)) << bits, sizes) | rng.integers(1 << bits, size=len(place))
        return self._by_class.rows[place[np.argsort(key)]], starts

    def _replace_repeats(self, batch: Integers, classes: Integers, rng: np.random.Generator) -> None:
        """Replace an image that another class has given to the batch by one of its own class that is not in it, in place."""
        _, first = np.unique(batch, return_index=True)
        for place in np.setdiff1d(np.arange(len(batch)), first):
            rows = self._by_class.class_rows(int(classes[place]))
            drawn = rows[rng.integers(len(rows), size=_DRAWS)]
            others = drawn[~np.isin(drawn, batch)]
            if not len(others):
                others = rng.permutation(np.setdiff1d(rows, batch))
            if len(others):
                batch[place] = others[0]

    def _check_enough_classes(self) -> None:
        classes = len(self._by_class)
        if classes >= self.groups_per_batch:
            return
        largest = classes // self.world_size * self.world_size * self.images_per_class
        larger = [
            m
            for m in range(self.images_per_class + 1, self.batch_size + 1)
            if self.batch_size % (m * self.world_size) == 0 and self.batch_size // m <= classes
        ]
        ways = [f"the largest batch is {largest}"] * (largest > 0) + [f"try images_per_class={m}" for m in larger[:1]]
        raise ValueError(
            f"batch_size={self.batch_size} needs {self.groups_per_batch} classes of images_per_class={self.images_per_class}, "
            f"but there are {classes}; {', or '.join(ways) or f'use fewer processes than {self.world_size}'}."
        )


class HierarchicalBatchSampler(GlobalBatchSampler):
    """Batches from a few coarse classes, so that related images meet; `images_per_class` (m) images of each fine class.

    This is the sampler of FastAP, with which the paper trains on SOP: every pair of the 12 categories makes 5 batches, half
    from each, 330 batches an epoch. Here the coarse classes are those of any `level` (a column of `labels`; 0 is the finest),
    and a batch contains `coarse_per_batch` of them.

    An epoch has `batches` batches, or `batches_per_combination` for every combination of coarse classes. Each combination
    occurs equally often, give or take one, and so does each coarse class. Within a coarse class every fine class occurs before
    any occurs again, and so do the images within a fine class.

    The coarse classes have equal shares of a batch, give or take a group of m. One with too few fine classes for its share
    gives all of them, and the others give more. If all together are too few, fine classes give several groups of different
    images. An image occurs twice in a batch only if its class has fewer images than the batch needs.

    Unlabeled images (−1) and fine classes with two parents are refused. On epochs, processes and resuming see
    `GlobalBatchSampler`.

    It differs from pytorch-metric-learning's `HierarchicalSampler(labels, batch_size, samples_per_class,
    batches_per_super_tuple, super_classes_per_batch, inner_label, outer_label)`: the fine level is always column 0 and the
    coarse one is `level`, `samples_per_class` is `images_per_class`, `super_classes_per_batch` is `coarse_per_batch`, and
    `batches_per_super_tuple` is `batches_per_combination`; it also divides batches among processes and can be resumed.

    Example:
        >>> fine = np.arange(24) // 3
        >>> labels = np.stack([fine, fine // 3], axis=1)
        >>> sampler = HierarchicalBatchSampler(labels, batch_size=8, images_per_class=2, batches_per_combination=1)
        >>> sorted(sorted(set(labels[batch, 1].tolist())) for batch in sampler)
        [[0, 1], [0, 2], [1, 2]]
    """

    def __init__(
        self,
        labels: ArrayLike,
        batch_size: int,
        images_per_class: int = 4,
        *,
        level: int = 1,
        coarse_per_batch: int = 2,
        batches_per_combination: int = 5,
        batches: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        table = _as_table(labels)
        if table.ndim == 3:
            raise ValueError(
                "HierarchicalBatchSampler needs one label for an image at each level, because a fine class has one parent; use "
                "BalancedBatchSampler for images with several labels."
            )
        _check_level(level, table.shape[1])
        table = table[:, [0, level]]
        _check_labeled(table)
        super().__init__(
            table,
            batch_size=batch_size,
            images_per_class=images_per_class,
            batches=batches,
            seed=seed,
            rank=rank,
            world_size=world_size,
            further_settings={
                "level": level,
                "coarse_per_batch": coarse_per_batch,
                "batches_per_combination": batches_per_combination,
            },
        )
        self.level, self.coarse_per_batch, self.batches_per_combination = level, coarse_per_batch, batches_per_combination
        self._by_fine = RowsByClass.from_labels(table[:, 0])  # the images of each fine class
        self._by_coarse = RowsByClass.from_labels(_parents(table, self._by_fine))  # the fine classes of each coarse class
        self._check_combinations()

    @property
    def pass_length(self) -> int:
        return self.batches or comb(len(self._by_coarse), self.coarse_per_batch) * self.batches_per_combination

    def pass_batches(self, number: int) -> Iterator[Integers]:
        rng = self.random(number)
        combinations = sample_combinations(len(self._by_coarse), self.coarse_per_batch, self.pass_length, rng)
        shares = equal_shares(self._by_coarse.sizes[combinations], self.groups_per_batch)
        classes, images = ClassPools(self._by_coarse, rng), ClassPools(self._by_fine, rng)
        for combination, share in zip(combinations.tolist(), shares.tolist(), strict=True):
            chosen = Counter(
                fine for coarse, count in zip(combination, share, strict=True) for fine in classes.draw(coarse, count)
            )
            batch = [row for fine, groups in chosen.items() for row in images.draw(fine, groups * self.images_per_class)]
            yield rng.permutation(np.array(batch).reshape(-1, self.images_per_class)).ravel()

    def _check_combinations(self) -> None:
        coarse, per_batch = len(self._by_coarse), self.coarse_per_batch
        most = min(coarse, self.groups_per_batch)
        if not 1 <= per_batch <= most:
            raise ValueError(
                f"coarse_per_batch={per_batch} must be between 1 and {most}: level {self.level} has {coarse} classes, and "
                f"batch_size={self.batch_size} has room for {self.groups_per_batch} of {self.images_per_class} images each."
            )
        if self.batches_per_combination < 1:
            raise ValueError(f"batches_per_combination={self.batches_per_combination} must be 1 or more.")
        if self.batches is None and self.pass_length > MAX_BATCHES:
            raise ValueError(
                f"{per_batch} of {coarse} coarse classes make {comb(coarse, per_batch):,} combinations, an epoch of "
                f"{self.pass_length:,} batches; limit the batches of an epoch, for example with batches=1000."
            )


def _parents(labels: Integers, by_fine: RowsByClass) -> Integers:
    """The coarse id of each fine class, from labels `[N, 2]`."""
    coarse = labels[by_fine.rows, 1]
    parents = coarse[by_fine.starts]
    other = np.flatnonzero(coarse != np.repeat(parents, by_fine.sizes))
    if len(other):
        fine = labels[by_fine.rows[other[0]], 0]
        ids = np.unique(coarse[labels[by_fine.rows, 0] == fine])
        raise ValueError(
            f"fine class {fine} is under the coarse classes {ids[0]} and {ids[1]}, but may be under one only; "
            "Manifest.two_parents() names all such classes."
        )
    return parents


def _as_table(labels: ArrayLike) -> Integers:
    """Check labels and return them as integers `[N, L]`, or `[N, L, M]` if an image has up to M of them at a level."""
    table = np.asarray(labels)
    if table.ndim not in (1, 2, 3) or not table.size:
        raise ValueError(f"labels have shape {list(table.shape)}, but must be [N], [N, L] or [N, L, M], of one image or more.")
    if not np.issubdtype(table.dtype, np.integer):
        raise TypeError(f"labels are {table.dtype}, but must be integers, the ids of classes; Manifest.labels are.")
    table = table[:, None] if table.ndim == 1 else table
    return table.astype(np.int64, copy=False)


def _check_labeled(table: Integers) -> None:
    blank = np.flatnonzero((table < 0).any(axis=1))
    if len(blank):
        raise ValueError(
            f"{len(blank):,} of {len(table):,} images, first in row {blank[0]}, are unlabeled (−1); "
            'give labeled images only, such as manifest.split("train").'
        )


def _check_level(level: int, columns: int) -> None:
    if not 1 <= level < columns:
        way_out = f"try 1 to {columns - 1}" if columns > 1 else "use BalancedBatchSampler for labels of one level"
        raise ValueError(f"level={level} must be a column of the labels coarser than 0, and they have {columns}; {way_out}.")


def _check_max_images(most: int | None, images_per_class: int) -> None:
    if most is not None and (most < 1 or most % images_per_class):
        above = -(-max(most, 1) // images_per_class) * images_per_class
        below = most // images_per_class * images_per_class
        raise ValueError(
            f"max_images_per_class={most} must be a multiple of images_per_class={images_per_class}, because images come in "
            f"groups of a class; try {f'{below} or ' if below > 0 else ''}{above}."
        )
