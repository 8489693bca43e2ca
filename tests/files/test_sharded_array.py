"""An array in several files reads like the array itself."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suprank.files import sharded_array
from suprank.files.sharded_array import NpyFile, Shards, concatenate

WHOLE = np.arange(33, dtype=np.float32).reshape(11, 3)
CUTS = (0, 4, 4, 5, 11)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The rows in four files, one of them empty."""
    folder, parts = tmp_path_factory.mktemp("shards"), []
    for number, (start, stop) in enumerate(pairwise(CUTS)):
        np.save(folder / f"{number}.npy", WHOLE[start:stop])
        parts.append(NpyFile(folder / f"{number}.npy", (stop - start, 3), WHOLE.dtype))
    return Shards(parts)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_index_gives_the_rows_of_the_array(shards, data):
    some = st.one_of(
        st.slices(11),
        st.lists(st.integers(-11, 10), max_size=9).map(lambda rows: np.array(rows, np.int64)),
        st.lists(st.booleans(), min_size=11, max_size=11).map(np.array),
        st.integers(-11, 10),
    )
    which = data.draw(some)
    found = shards[which]
    np.testing.assert_array_equal(found, WHOLE[which])
    assert found.dtype == WHOLE.dtype


@settings(max_examples=40, deadline=None)
@given(st.lists(st.booleans(), min_size=11, max_size=11), st.data())
def test_rows_left_out_are_left_out_of_every_index(shards, mask, data):
    mask = np.array(mask)
    kept = shards.take(mask)
    np.testing.assert_array_equal(np.asarray(kept), WHOLE[mask])
    left = int(mask.sum())
    again = np.array(data.draw(st.lists(st.booleans(), min_size=left, max_size=left)), bool)
    np.testing.assert_array_equal(np.asarray(kept.take(again)), WHOLE[mask][again])


def test_it_is_an_array_of_two_dimensions(shards):
    assert (len(shards), shards.shape, shards.ndim, shards.dtype) == (11, (11, 3), 2, np.float32)
    assert np.asarray(shards, np.float16).dtype == np.float16
    assert [path.name for path in shards.paths] == ["0.npy", "1.npy", "2.npy", "3.npy"]
    assert shards.take(np.arange(11) != 2).paths == []
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(shards, copy=False) if np.__version__ >= "2" else shards.__array__(copy=False)


@pytest.mark.parametrize("which", [11, -12, np.array([0, 11]), np.array([True])])
def test_rows_that_are_not_there_are_an_error(shards, which):
    with pytest.raises(IndexError):
        shards[which]


def test_two_follow_each_other_in_their_files(shards):
    joined = concatenate(shards, WHOLE[:2])
    assert isinstance(joined, Shards)
    np.testing.assert_array_equal(np.asarray(joined), np.concatenate([WHOLE, WHOLE[:2]]))
    assert isinstance(concatenate(WHOLE, WHOLE), np.ndarray)


def test_one_array_is_made_without_a_second_copy(shards):
    tracemalloc.start()
    whole = np.asarray(Shards([np.ones((1000, 50), np.float32)] * 4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.75 * whole.nbytes  # itself, and the rows that the parts share: a quarter
    alone = shards.parts[0][:]
    assert not np.shares_memory(np.array(Shards([alone])), alone)


def test_a_thousand_files_need_few_descriptors(tmp_path):
    resource = pytest.importorskip("resource")
    np.save(tmp_path / "one.npy", WHOLE)
    files = Shards([NpyFile(tmp_path / "one.npy", WHOLE.shape, WHOLE.dtype) for _ in range(1000)])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    sharded_array._mapped.cache_clear()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(600, limits[0]), limits[1]))
    try:
        assert len(files[:]) == 11_000
        assert sharded_array._mapped.cache_info().currsize == sharded_array.OPEN_FILES
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        sharded_array._mapped.cache_clear()
