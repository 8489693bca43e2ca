"""Pydantic's errors about a config, in sentences that name the entries as a recipe does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.training import config_keys
from suprank.training.config import TrainConfig

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails


def error_messages(
    error: ValidationError, origins: dict[str, str], recipe: str, root: type[BaseModel] = TrainConfig
) -> list[str]:
    """A sentence for each entry of a recipe, or of other settings `root`: "table.entry: what is wrong (where it was written)".

    `origins` says where, by dotted name.
    """
    reasons: dict[str, list[str]] = {}
    for one in error.errors(include_url=False):
        name = _entry_name(one["loc"], root)
        reason = _reason(one, name)
        if reason not in reasons.setdefault(name, []):
            reasons[name].append(reason)
    return [
        f"{name + ': ' if name else ''}{', or '.join(texts)} ({_origin(name, origins, root) or recipe})"
        for name, texts in reasons.items()
    ]


def _entry_name(location: tuple[int | str, ...], root: type[BaseModel]) -> str:
    """The dotted name of the entry, without what pydantic adds: indices of a list, and members of a union."""
    key: tuple[str, ...] = ()
    for part in location:
        model = config_keys.table_model(key, root)
        if not isinstance(part, str) or model is None or part not in model.model_fields:
            break
        key = (*key, part)
    return ".".join(key)


def _reason(error: ErrorDetails, name: str) -> str:
    if error["type"] == "missing":
        is_table = config_keys.table_model(tuple(name.split("."))) is not None
        return f"this {'table' if is_table else 'entry'} is missing; a recipe needs it"
    if error["type"] == "bool_type":
        return f"{error['input']!r} should be true or false"
    if error["type"] == "tuple_type":
        return f"{error['input']!r} should be a list, in brackets"
    message = error["msg"].removeprefix("Value error, ").removesuffix(".")
    if message.startswith("Input "):
        message = f"{error['input']!r}{message.removeprefix('Input')}"
    return message


def _origin(name: str, origins: dict[str, str], root: type[BaseModel]) -> str | None:
    """Where the entry was written; None for a whole table, whose errors are attributed to the recipe itself."""
    return origins.get(name) if config_keys.table_model(tuple(name.split(".")), root) is None else None
