"""Which extras of pyproject.toml each command and each package needs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMANDS = {
    "": "cli",
    "adapt": "cli,train",
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
    "paper": "cli,explore,train",
    "recipes": "cli,vision",
    "report": "cli,explore,vision",
    "sweep": "cli,train",
    "train": "cli,train",
}
"""Command → the extras for all its options except those below. `bench` and `hierarchy` include `cli`."""

OPTIONAL = {
    "mteb": "all",
    "open_clip": "encoders",
    "sentence_transformers": "encoders",
    "simplejpeg": "cli,turbo,vision",
    "pymilvus": "cli,servers",
    "qdrant_client": "cli,servers",
}
"""Modules that only some options need: tasks of mteb, an encoder of `hierarchy embed`, the decoder turbo, a server's index."""

PACKAGES = {
    "suprank.adaptation": "train",
    "suprank.bench": "bench",
    "suprank.data": "vision",
    "suprank.embedding": "vision",
    "suprank.explorer": "explore",
    "suprank.hierarchy": "hierarchy",
    "suprank.integrations.mteb": "all",
    "suprank.integrations.sentence_transformers": "sentence-transformers",
    "suprank.models": "vision",
    "suprank.training": "train",
}
"""Package → the extra with everything it imports. `ranking`, `losses` and `evaluation` need only torch and numpy."""


def required_extras(words: Sequence[str], missing: str = "") -> str:
    """The extras that a command needs, given its words after `suprank` and the module that is missing.

    Example:
        >>> required_extras(["index", "search", "birds"]), required_extras(["index", "add", "birds"])
        ('cli,explore,vision', 'cli,explore')
        >>> required_extras(["--version"])
        'cli'
    """
    if missing in OPTIONAL:
        return OPTIONAL[missing]
    return COMMANDS.get(" ".join(words[:2])) or COMMANDS.get("".join(words[:1])) or COMMANDS[""]


@contextmanager
def explain_missing_extra(package: str) -> Iterator[None]:
    """If the block cannot import a module, raise an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "suprank"):  # a bug of ours, or not an import
            raise
        message = f'{package} needs {missing}, which is not installed; pip install "suprank[{PACKAGES[package]}]"'
        raise ModuleNotFoundError(message, name=error.name) from error
