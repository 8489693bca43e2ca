"""Class-disjoint splits."""

import numpy as np

from suprank.adaptation import AdaptConfig
from suprank.adaptation.class_splits import MOST_VALIDATION_ROWS, split_classes


def test_no_class_is_in_two_parts_and_rows_without_a_label_or_alone_are_left_out():
    labels = np.array([*np.repeat(np.arange(20), 3), -1, -1, 99])[:, None]
    split = split_classes(labels, AdaptConfig(), with_test=True)
    parts = [set(labels[rows, 0].tolist()) for rows in split[:3]]
    assert [len(part) for part in parts] == [12, 3, 5]
    assert set.union(*parts) == set(range(20))
    assert split.left_out == 3
    assert all(len(rows) == 3 * len(part) for rows, part in zip(split[:3], parts, strict=True))


def test_the_seed_draws_the_classes_and_a_test_set_of_ones_own_leaves_them_all_to_training():
    labels = np.repeat(np.arange(20), 3)[:, None]
    first, again, other = (split_classes(labels, AdaptConfig(seed=seed), with_test=True) for seed in (0, 0, 1))
    assert (first.test == again.test).all()
    assert set(first.test.tolist()) != set(other.test.tolist())
    given = split_classes(labels, AdaptConfig(), with_test=False)
    assert len(given.test) == 0
    assert len(given.training) + len(given.validation) == 60


def test_validation_stops_at_the_most_rows_because_each_validation_ranks_them_all():
    labels = np.repeat(np.arange(40), 1000)[:, None]
    split = split_classes(labels, AdaptConfig(), with_test=False)
    assert len(split.validation) == MOST_VALIDATION_ROWS
    assert len(split.training) == 35_000
