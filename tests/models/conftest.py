"""Tests import timm themselves, to compare with it, and so need what `suprank.models` does before its own import."""

from suprank.system import torchvision_operators

torchvision_operators.declare()
