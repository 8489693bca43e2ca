"""Which extra of pyproject.toml each command and each package needs."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

COMMANDS = {
    "": "vision",
    "adapt": "train",
    "compare": "train",
    "data": "vision",
    "demo": "train",
    "embed": "vision",
    "evaluate": "vision",
    "explore": "explore",
    "hierarchy": "hierarchy",
    "models": "vision",
    "models export": "export",
    "paper": "train",
    "recipes": "vision",
    "report": "explore",
    "search": "explore",
    "train": "train",
}
"""Command → the one extra for all its options except those below."""

OPTIONAL = {
    "mteb": "all",
    "open_clip": "all",
    "sentence_transformers": "all",
    "pymilvus": "servers",
    "ray": "ray",
    "webdataset": "export",
}
"""Modules that only some options need: tasks of mteb, an encoder of `hierarchy cluster`, a search on a server, a cluster, .tar
shards."""

PACKAGES = {
    "suprank.adaptation": "train",
    "suprank.data": "vision",
    "suprank.embedding": "vision",
    "suprank.evaluation.runs": "vision",
    "suprank.explorer": "explore",
    "suprank.explorer.milvus": "servers",
    "suprank.hierarchy": "hierarchy",
    "suprank.integrations.mteb": "all",
    "suprank.integrations.sentence_transformers": "all",
    "suprank.models": "vision",
    "suprank.training": "train",
}
"""Package → the extra with everything it imports. `ranking`, `losses` and `evaluation` need only torch and numpy."""


def required_extra(words: Sequence[str], missing: str = "") -> str:
    """The extra that a command needs, given its words after `suprank` and the module that is missing.

    Example:
        >>> required_extra(["models", "create"]), required_extra(["models", "export", "birds"])
        ('vision', 'export')
        >>> required_extra(["--version"])
        'vision'
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


def import_attribute(package: str, modules: Mapping[str, str], name: str) -> Any:
    """What `package.name` is, for the `__getattr__` of a package that imports its modules when they are first used.

    `modules` are the names that the package exports, each with the module of the package that defines it.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with explain_missing_extra(package):
        return getattr(import_module(f"{package}.{modules[name]}"), name)
