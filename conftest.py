"""For doctests, which live beside the code rather than under tests/."""

import pytest
import torch


@pytest.fixture(autouse=True)
def torch_in_doctests(doctest_namespace):
    doctest_namespace["torch"] = torch
