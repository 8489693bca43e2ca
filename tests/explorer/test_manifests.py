"""A filter of the rows of a manifest."""

import numpy as np
import pytest

from suprank.data import Manifest
from suprank.explorer.manifests import matching_rows


@pytest.fixture
def manifest():
    columns = {
        "path": [f"{row}.jpg" for row in range(5)],
        "split": ["test", "test", "gallery", "gallery", "distractor"],
        "label_kind": ["red jay", "blue jay", "red jay", "wren", None],
        "label_family": ["Corvidae", "Corvidae", "Corvidae", "Troglodytidae", None],
    }
    return Manifest.from_columns(columns, root=".")


def test_every_key_of_a_filter_must_match_by_one_of_its_names(manifest):
    for where, expected in (
        ({}, [0, 1, 2, 3, 4]),
        ({"family": ["Corvidae"]}, [0, 1, 2]),
        ({"kind": ["wren", "blue jay"]}, [1, 3]),
        ({"kind": ["red jay"], "split": ["gallery", "distractor"]}, [2]),
    ):
        assert np.flatnonzero(matching_rows(manifest, where, "birds")).tolist() == expected


def test_names_and_levels_that_no_item_has_are_refused_with_near_ones(manifest):
    with pytest.raises(ValueError, match="birds has no item with kind=red jai; the nearest names are red jay, blue jay"):
        matching_rows(manifest, {"kind": ["wren", "red jai"]}, "birds")
    with pytest.raises(ValueError, match="birds has no item with family=x; the nearest names are Corvidae, Troglodytidae."):
        matching_rows(manifest, {"family": ["x"]}, "birds")
    with pytest.raises(ValueError, match="birds has no level 'order'; choose from kind, family, split."):
        matching_rows(manifest, {"order": ["x"]}, "birds")
    few = manifest.take([0, 1])
    with pytest.raises(ValueError, match="few has no item with kind=wren; the nearest names are blue jay, red jay."):
        matching_rows(few, {"kind": ["wren"]}, "few")
