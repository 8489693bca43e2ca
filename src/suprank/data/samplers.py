"""Which images meet in a batch: m of each class, of any classes (`BalancedBatchSampler`) or of a few coarse ones."""

from __future__ import annotations

from collections import Counter
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from suprank.data.balanced_tables import drawn_combinations, spread
from suprank.data.class_pools import Decks, RowsByClass, equal_parts, occurrence
from suprank.data.global_batches import GlobalBatches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import ArrayLike

    from suprank.data.class_pools import Integers

MOST_BATCHES = 1_000_000
"""An epoch of every combination of coarse classes may have at most this many batches; more is a mistake."""


class BalancedBatchSampler(GlobalBatches):
    """Batches of `images_per_class` images (m) of each of batch_size / m different classes.

    An epoch gives every image its turn. A class of n images is dealt in ⌈n / m⌉ groups of m, the last one filled up with images
    of the same class. A class of fewer than m images makes one group, in which all come once before any comes twice. The groups
    are spread at random over the epoch, in other company each time, and no class comes twice in a batch. So that every batch is
    full, random classes give a further group.

    An epoch has as many batches as its groups fill, and no fewer than the largest class has groups: a class that dominates
    makes the others repeat. `max_images_per_class`, a multiple of m, is the way out: at most that many images of a class have
    their turn, others each time.

    `labels` are integers, `[N]` or `[N, L]` with the finest level in column 0, the one used. Unlabeled (−1) is refused.
    With `batches` an epoch has that many: it may end before every image had its turn, and the next one goes on there.
    On epochs, processes (`rank`, `world_size`) and resuming see `GlobalBatches`.

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
        fine = _checked(labels)[:, 0]
        _check_labeled(fine[:, None])
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
        _check_most_images(max_images_per_class, images_per_class)
        self._by_class = RowsByClass.of(fine)
        self._check_enough_classes()
        # The images of each class that have a turn in a round through it, and the groups in which they come:
        self._used = np.minimum(self._by_class.sizes, max_images_per_class or len(fine))
        self._groups = -(-self._used // images_per_class)

    @property
    def pass_length(self) -> int:
        return int(max(-(-self._groups.sum() // self.groups_per_batch), self._groups.max()))

    def batches_of_pass(self, number: int) -> Iterable[Integers]:
        rng = self.random(number)
        classes = spread(self._turns(rng), self.pass_length, rng)
        return self._images(classes.ravel(), rng).reshape(self.pass_length, self.batch_size)

    def _turns(self, rng: np.random.Generator) -> Integers:
        """Groups of each class in a pass: those that its images make, and further ones until every batch is full."""
        turns = self._groups.copy()
        missing = self.pass_length * self.groups_per_batch - int(turns.sum())
        while missing:
            chosen = rng.permutation(np.flatnonzero(turns < self.pass_length))[:missing]
            turns[chosen] += 1
            missing -= len(chosen)
        return turns

    def _images(self, classes: Integers, rng: np.random.Generator) -> Integers:
        """The images `[groups, m]` of groups of these classes. Each round through a class has a random order of its own."""
        rounds, group = np.divmod(occurrence(classes), self._groups[classes])
        slots = group[:, None] * self.images_per_class + np.arange(self.images_per_class)
        images = np.empty_like(slots)
        by_round = RowsByClass.of(rounds)
        for number in range(len(by_round)):
            now = by_round.of_class(number)
            present, which = np.unique(classes[now], return_inverse=True)
            rows, starts = self._shuffled(present, rng)
            # After the last image comes the first again, so the last group is filled up without taking an image twice.
            images[now] = rows[starts[which, None] + slots[now] % self._used[classes[now], None]]
        return images

    def _shuffled(self, classes: Integers, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """The rows of these classes, class after class, each in random order; and where each class starts."""
        sizes = self._by_class.sizes[classes]
        starts = np.cumsum(sizes) - sizes
        place = np.repeat(self._by_class.starts[classes] - starts, sizes) + np.arange(sizes.sum())
        bits = 62 - len(classes).bit_length()  # as many as fit beside the class: equal keys would leave the order to the sort
        key = np.repeat(np.arange(len(classes)) << bits, sizes) | rng.integers(1 << bits, size=len(place))
        return self._by_class.rows[place[np.argsort(key)]], starts

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


class HierarchicalBatchSampler(GlobalBatches):
    """Batches of a few coarse classes, so that images which share one meet; `images_per_class` (m) of each fine class.

    The sampler of FastAP, with which the paper trains on SOP: every pair of the 12 categories makes 5 batches, half of the one
    and half of the other, 330 batches an epoch. Here the coarse classes are those of any `level` (a column of `labels`; 0 is
    the finest), and `coarse_per_batch` of them make a batch.

    An epoch has `batches` batches, or `batches_per_combination` for every combination of coarse classes. Each combination comes
    equally often, give or take once, and so does each coarse class. Within a coarse class every fine class comes before any
    comes again, and so do the images within a fine class.

    The parts of a batch are equal, give or take a group of m. A coarse class with too few fine classes for its part gives all
    of them, and the others of the batch give more. If all together are too few, fine classes give several groups of different
    images. An image comes twice in a batch only where its class has fewer images than the batch asks of it.

    Unlabeled images (−1) and fine classes with two parents are refused. On epochs, processes and resuming see `GlobalBatches`.

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
        table = _checked(labels)
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
        self._by_fine = RowsByClass.of(table[:, 0])  # the images of each fine class
        self._by_coarse = RowsByClass.of(_parents(table, self._by_fine))  # the fine classes of each coarse class
        self._check_combinations()

    @property
    def pass_length(self) -> int:
        return self.batches or comb(len(self._by_coarse), self.coarse_per_batch) * self.batches_per_combination

    def batches_of_pass(self, number: int) -> Iterator[Integers]:
        rng = self.random(number)
        combinations = drawn_combinations(len(self._by_coarse), self.coarse_per_batch, self.pass_length, rng)
        parts = equal_parts(self._by_coarse.sizes[combinations], self.groups_per_batch)
        classes, images = Decks(self._by_coarse, rng), Decks(self._by_fine, rng)
        for combination, part in zip(combinations.tolist(), parts.tolist(), strict=True):
            chosen = Counter(
                fine for coarse, count in zip(combination, part, strict=True) for fine in classes.dealt(coarse, count)
            )
            batch = [row for fine, groups in chosen.items() for row in images.dealt(fine, groups * self.images_per_class)]
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
        if self.batches is None and self.pass_length > MOST_BATCHES:
            raise ValueError(
                f"{per_batch} of {coarse} coarse classes make {comb(coarse, per_batch):,} combinations, an epoch of "
                f"{self.pass_length:,} batches; choose how many an epoch draws of them, such as batches=1000."
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
            f"fine class {fine} is under the coarse classes {ids[0]} and {ids[1]}, but must be under one; "
            "Manifest.two_parents() names all such classes."
        )
    return parents


def _checked(labels: ArrayLike) -> Integers:
    """Labels as integers `[N, L]`."""
    table = np.asarray(labels)
    if table.ndim not in (1, 2) or not table.size:
        raise ValueError(f"labels have shape {list(table.shape)}, but must be [N] or [N, L], of one image or more.")
    if not np.issubdtype(table.dtype, np.integer):
        raise TypeError(f"labels are {table.dtype}, but must be integers, the ids of classes; Manifest.labels are.")
    return table.reshape(len(table), -1).astype(np.int64, copy=False)


def _check_labeled(table: Integers) -> None:
    blank = np.flatnonzero((table < 0).any(axis=1))
    if len(blank):
        raise ValueError(
            f"{len(blank):,} of {len(table):,} images, first in row {blank[0]}, are unlabeled (−1), so in no class; "
            'sample from labeled ones, such as manifest.split("train").'
        )


def _check_level(level: int, columns: int) -> None:
    if not 1 <= level < columns:
        way_out = f"try 1 to {columns - 1}" if columns > 1 else "labels of one level are for BalancedBatchSampler"
        raise ValueError(f"level={level} must be a column of the labels coarser than 0, and they have {columns}; {way_out}.")


def _check_most_images(most: int | None, images_per_class: int) -> None:
    if most is not None and (most < 1 or most % images_per_class):
        above = -(-max(most, 1) // images_per_class) * images_per_class
        below = most // images_per_class * images_per_class
        raise ValueError(
            f"max_images_per_class={most} must be a multiple of images_per_class={images_per_class}, because images come in "
            f"groups of a class; try {f'{below} or ' if below > 0 else ''}{above}."
        )
