"""torchmetrics imports torchvision, whose operators have to be declared before: each test file then runs by itself, too."""

from contextlib import suppress

from suprank.system import torchvision_operators

with suppress(ImportError):
    torchvision_operators.declare()
