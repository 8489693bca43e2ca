"""Every test runs on one thread, with the shapes of `ranking` and `losses` checked on each call (see tests/shapes.py)."""

import os

import pytest
import torch

from tests import shapes

torch.set_num_threads(1)  # pytest-xdist runs one worker a core; threads within a worker would fight over them
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported: without a GPU they run in Triton's interpreter
shapes.check("suprank.ranking", "suprank.losses")


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
