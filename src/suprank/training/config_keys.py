"""The entries a recipe can have, by their dotted names, and which of them a wrong name may have meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from suprank.training.config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Iterator


def table(at: tuple[str, ...] = ()) -> type[BaseModel] | None:
    """The model of the table at this place, () being the whole recipe; None where the place is an entry, or nothing."""
    model: type[BaseModel] = TrainConfig
    for name in at:
        field = model.model_fields.get(name)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        model = field.annotation
    return model


def entries(at: tuple[str, ...] = ()) -> Iterator[str]:
    """The dotted names of all entries at this place and below, in the order of the config."""
    model = table(at)
    for name in model.model_fields if model else ():
        if table((*at, name)):
            yield from entries((*at, name))
        else:
            yield ".".join((*at, name))


def complaints(given: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """What is unknown in a table, or should be a table and is none: dotted name and what is wrong with it."""
    model = table(at)
    assert model is not None
    for name, value in given.items():
        place = (*at, name)
        if name not in model.model_fields:
            yield ".".join(place), f"there is no such entry; {_meant(place)}"
        elif table(place):
            if isinstance(value, dict):
                yield from complaints(value, place)
            else:
                yield ".".join(place), f"{value!r} should be a table; write [{name}] and the entries below it"


def _meant(place: tuple[str, ...]) -> str:
    """What to write in place of an unknown name: it, or its likeness, in another table; the nearest here; or what there is."""
    *at, name = place
    everywhere = list(entries())
    spelt = {"_".join(place), name}
    joined = [entry for entry in everywhere if entry.replace(".", "_") in spelt]  # batch_size for batch.size
    elsewhere = joined or [entry for entry in everywhere if entry.rpartition(".")[2] == name]
    here = list(model.model_fields) if (model := table(tuple(at))) else []
    near = difflib.get_close_matches(name, here, n=1)
    by_last = {entry.rpartition(".")[2]: entry for entry in reversed(everywhere)}
    nearly = [by_last[last] for last in difflib.get_close_matches(name, by_last, n=1, cutoff=0.75)]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    if near:
        return f"did you mean {'.'.join((*at, near[0]))}?"
    if nearly:
        return f"did you mean {nearly[0]}?"
    return f"{'[' + '.'.join(at) + ']' if at else 'a recipe'} has {', '.join(here)}"
