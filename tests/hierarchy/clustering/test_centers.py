import math

import numpy as np
import pytest

from suprank.hierarchy.clustering import centers as module
from suprank.hierarchy.clustering.centers import centers_of, nearness

HALF = math.sqrt(0.5)
ROWS = np.array([[1, 0], [0, 1], [0, -1]], np.float32)


def test_centers_nearness_and_margin_by_hand():
    clusters = np.array([0, 0, 1])
    centers = centers_of(ROWS, clusters)
    assert centers.tolist() == [pytest.approx([HALF, HALF]), [0, -1]]
    near, margin = nearness(ROWS, clusters, centers)
    assert near.tolist() == pytest.approx([HALF, HALF, 1])
    assert margin.tolist() == pytest.approx([HALF - 0, HALF + 1, 1 + HALF])


def test_a_weighted_center_leans_to_the_heavier():
    assert centers_of(ROWS[:2], np.array([0, 0]), [3, 4]).tolist() == [pytest.approx([0.6, 0.8])]


def test_rows_that_cancel_out_have_no_direction():
    clusters = np.array([0, 0])
    centers = centers_of(ROWS[1:], clusters)
    assert not centers.any()
    near, margin = nearness(ROWS[1:], clusters, centers)
    assert near.tolist() == margin.tolist() == [0, 0]


def test_of_one_center_the_margin_is_the_nearness():
    near, margin = nearness(ROWS[:2], np.zeros(2, np.int64), np.array([[0.6, 0.8]], np.float32))
    assert near.tolist() == margin.tolist() == pytest.approx([0.6, 0.8])


def test_blocks_of_rows_give_what_one_block_gives(monkeypatch):
    clusters = np.array([0, 1, 1])
    whole = np.stack(nearness(ROWS, clusters, centers_of(ROWS[[0, 1]], np.array([0, 1]))))
    monkeypatch.setattr(module, "_ROWS", 2)
    assert np.stack(nearness(ROWS, clusters, centers_of(ROWS[[0, 1]], np.array([0, 1])))).tolist() == whole.tolist()
