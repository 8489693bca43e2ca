"""Every test runs on one thread, with the shapes of `ranking` and `losses` checked on each call (see tests/shapes.py).

Hypothesis draws the same examples in every run, so that a change is not blamed for what an older test happens to find;
`HYPOTHESIS_PROFILE=default` looks for new ones.
"""

import os

import pytest
import torch
from hypothesis import settings

from tests import shapes

settings.register_profile("repeatable", derandomize=True, deadline=None)  # a busy machine is no bug
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
torch.set_num_threads(1)  # pytest-xdist runs one worker a core; threads within a worker would fight over them
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported: without a GPU they run in Triton's interpreter
shapes.check("suprank.ranking", "suprank.losses")


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
