"""torchmetrics imports torchvision, whose operators have to be declared before: each test file then runs by itself, too."""

from contextlib import suppress

import pytest

from suprank.system import torchvision_operators
from tests.evaluation.plain_ranx import uncompiled

with suppress(ImportError):
    torchvision_operators.declare()


@pytest.fixture(scope="session")
def ranx():
    with uncompiled():
        return pytest.importorskip("ranx")
