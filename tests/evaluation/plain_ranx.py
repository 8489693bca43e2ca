"""ranx in plain Python: compiled, it takes a minute for its first call, and gives the same values."""

import warnings
from contextlib import contextmanager

import pytest


@contextmanager
def uncompiled():
    """Whatever numba would compile stays Python, and nobody warns. ranx has to be imported, and called, within."""
    numba = pytest.importorskip("numba")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(numba.config, "DISABLE_JIT", True)
        yield
