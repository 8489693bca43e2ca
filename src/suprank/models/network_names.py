"""The names of backbones: aliases for the paper's, and timm's names, listed without importing timm if they are cached.

timm knows its names once all its networks are imported, with torch, which takes seconds. So the list is kept in a file of the
cache (`suprank.system.platforms.default_cache`), for the files of timm that it was made from.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from contextlib import suppress
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from suprank.files.atomic import write_atomically
from suprank.system.platforms import default_cache


class NetworkSource(NamedTuple):
    """The timm network of an alias, and the timm weights that go into it."""

    network: str
    weights: str


ALIASES = {  # the paper's backbones, with the weights its authors start from
    "resnet18": NetworkSource("resnet18.tv_in1k", "resnet18.tv_in1k"),
    "resnet34": NetworkSource("resnet34.tv_in1k", "resnet34.tv_in1k"),
    "resnet50": NetworkSource("resnet50.tv_in1k", "resnet50.tv_in1k"),
    "resnet101": NetworkSource("resnet101.tv_in1k", "resnet101.tv_in1k"),
    "deit_small": NetworkSource("deit_small_patch16_224.fb_in1k", "deit_small_distilled_patch16_224.fb_in1k"),
    "deit_base": NetworkSource("deit_base_patch16_224.fb_in1k", "deit_base_distilled_patch16_224.fb_in1k"),
    "vit_base": NetworkSource("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k"),
}


class TimmNames(NamedTuple):
    """timm's names, in its order: of all networks, and of those with pretrained weights."""

    all: list[str]
    pretrained: list[str]


def network_names(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """The aliases and timm names that match a pattern such as "resnet*"; only those that timm has weights for, if asked."""
    pattern, names = pattern or "*", timm_names()
    return [
        *(alias for alias in ALIASES if fnmatchcase(alias, pattern)),
        *(name for name in matching(names.pretrained if pretrained else names.all, pattern) if name not in ALIASES),
    ]


def timm_names() -> TimmNames:
    """The names of the installed timm: timm's own answer if it is imported or not yet cached, and the cached one otherwise."""
    if "timm" in sys.modules:  # and networks of the caller's may be registered
        return _ask_timm()
    file, key = default_cache() / "timm-names.json", _timm_key()
    with suppress(OSError, ValueError, LookupError, TypeError):  # no file, or a damaged one
        cached = json.loads(file.read_bytes())
        if cached["timm"] == key:
            return TimmNames(cached["all"], cached["pretrained"])
    names = _ask_timm()
    with suppress(OSError):  # a cache that cannot be written costs the next process its time, and nothing else
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"timm": key, **names._asdict()}).encode())
    return names


def _ask_timm() -> TimmNames:
    from suprank.system import torchvision_operators

    torchvision_operators.declare()  # timm imports torchvision
    import timm

    return TimmNames(timm.list_models(include_tags=False), timm.list_models(pretrained=True, include_tags=False))


def _timm_key() -> str:
    """A hash of where timm is installed and of its files' names, sizes and times, which takes a millisecond."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        return ""
    files = sorted(Path(spec.origin).parent.glob("models/**/*.py"))
    seen = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    return hashlib.sha256(repr(seen).encode()).hexdigest()
