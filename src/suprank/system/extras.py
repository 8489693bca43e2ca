"""The extras of pyproject.toml that suffice for each verb of the command line, and for each package."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERBS = {
    "": "cli",
    "bench": "bench",
    "compare": "cli,train",
    "data": "cli,vision",
    "demo": "cli,explore,train",
    "embed": "cli,vision",
    "evaluate": "cli,vision",
    "explore": "cli,explore,vision",
    "hierarchy": "hierarchy",
    "index": "cli,explore",
    "index search": "cli,explore,vision",
    "models": "cli,vision",
    "models export": "cli,export",
    "recipes": "cli,vision",
    "report": "cli,explore,vision",
    "sweep": "cli,train",
    "train": "cli,train",
}
"""Verbs, and what they do with every option but those below. `bench` and `hierarchy` bring `cli` along."""

OPTIONAL = {
    "open_clip": "encoders",
    "sentence_transformers": "encoders",
    "pymilvus": "cli,servers",
    "qdrant_client": "cli,servers",
}
"""Modules that only some options need: an encoder of `hierarchy embed`, an index in a server."""

PACKAGES = {
    "suprank.bench": "bench",
    "suprank.data": "vision",
    "suprank.embedding": "vision",
    "suprank.explorer": "explore",
    "suprank.hierarchy": "hierarchy",
    "suprank.models": "vision",
    "suprank.training": "train",
}
"""Packages, and what brings all that they import. The others need torch and numpy alone."""


def extras_of(words: Sequence[str], missing: str = "") -> str:
    """The extras that a command line needs, given its words after `suprank` and the module that is missing.

    Example:
        >>> extras_of(["index", "search", "birds"]), extras_of(["index", "add", "birds"]), extras_of(["--version"])
        ('cli,explore,vision', 'cli,explore', 'cli')
    """
    if missing in OPTIONAL:
        return OPTIONAL[missing]
    return VERBS.get(" ".join(words[:2])) or VERBS.get("".join(words[:1])) or VERBS[""]


@contextmanager
def explain_missing_extra(package: str) -> Iterator[None]:
    """Say which extra of ours brings a module that the block cannot import."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "suprank"):  # a mistake of ours, or not an import
            raise
        said = f'{package} needs {missing}, which is not installed; pip install "suprank[{PACKAGES[package]}]"'
        raise ModuleNotFoundError(said, name=error.name) from error
