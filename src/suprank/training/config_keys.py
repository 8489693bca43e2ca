"""The keys that a recipe can have, by their dotted names, and what a wrong key may have meant."""

from __future__ import annotations

import difflib
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, create_model

from suprank.training.config import TrainConfig
from suprank.training.loss_specs import CustomLossSpec, LossSpec, loss_specs

if TYPE_CHECKING:
    from collections.abc import Iterator


def table_model(path: tuple[str, ...] = (), root: type[BaseModel] = TrainConfig) -> type[BaseModel] | None:
    """The pydantic model of the table at this path, () being the whole recipe, or other settings `root`; None if there is none.

    That of `loss` has the keys of all losses, because which of them is chosen may be written in another file.
    """
    model = root
    for name in path:
        field = model.model_fields.get(name)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        model = _all_loss_keys() if field.annotation is LossSpec else field.annotation
    return model


def _all_loss_keys() -> type[BaseModel]:
    specs: list[type[LossSpec]] = [*loss_specs().values(), CustomLossSpec]
    return _model_with_keys(tuple(dict.fromkeys(key for spec in specs for key in spec.model_fields)))


@cache  # a recipe asks for it hundreds of times
def _model_with_keys(keys: tuple[str, ...]) -> type[BaseModel]:
    return create_model("LossKeys", **dict.fromkeys(keys, (Any, None)))  # type: ignore[call-overload]


def key_names(path: tuple[str, ...] = (), root: type[BaseModel] = TrainConfig) -> Iterator[str]:
    """The dotted names of all keys at this path and below, in the order of the config."""
    model = table_model(path, root)
    for name in model.model_fields if model else ():
        if table_model((*path, name), root):
            yield from key_names((*path, name), root)
        else:
            yield ".".join((*path, name))


def find_errors(
    tables: dict[str, Any], path: tuple[str, ...] = (), root: type[BaseModel] = TrainConfig
) -> Iterator[tuple[str, str]]:
    """The unknown keys in a table, and the keys that should be a table and are not: dotted name and what is wrong."""
    model = table_model(path, root)
    assert model is not None
    for name, value in tables.items():
        place = (*path, name)
        if name not in model.model_fields:
            yield ".".join(place), f"there is no such key; {_suggestion(place, root)}"
        elif table_model(place, root):
            if isinstance(value, dict):
                yield from find_errors(value, place, root)
            else:
                yield ".".join(place), f"{value!r} should be a table; write [{name}] and its keys below it"


def _suggestion(place: tuple[str, ...], root: type[BaseModel]) -> str:
    """What to write in place of an unknown key: the same or a similar key of another table or of this one, or all of these."""
    *path, name = place
    everywhere = list(key_names(root=root))
    spellings = {"_".join(place), name}
    joined = [key for key in everywhere if key.replace(".", "_") in spellings]  # batch_size for batch.size
    elsewhere = joined or [key for key in everywhere if key.rpartition(".")[2] == name]
    here = list(model.model_fields) if (model := table_model(tuple(path), root)) else []
    close_here = difflib.get_close_matches(name, here, n=1)
    by_last_part = {key.rpartition(".")[2]: key for key in reversed(everywhere)}
    close_anywhere = [by_last_part[last] for last in difflib.get_close_matches(name, by_last_part, n=1, cutoff=0.75)]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    if close_here:
        return f"did you mean {'.'.join((*path, close_here[0]))}?"
    if close_anywhere:
        return f"did you mean {close_anywhere[0]}?"
    there = f"[{'.'.join(path)}] has" if path else "a recipe has" if root is TrainConfig else "there are"
    return f"{there} {', '.join(here)}"
