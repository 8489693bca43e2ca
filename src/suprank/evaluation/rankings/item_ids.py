"""Ids of queries and items: text, or integers; and what stands for a missing item."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

Id = str | int


def check_query_ids(ids: Any, name: str) -> tuple[Id, ...]:
    """The ids as Python text or integers; refused unless they are all of one type and distinct."""
    values = tuple(ids.tolist() if hasattr(ids, "tolist") else ids)
    if not all(isinstance(value, str) for value in values):
        if not all(isinstance(value, Integral) and not isinstance(value, bool) for value in values):
            raise TypeError(f"{name} must be all text or all integers, but it holds {shorten(repr(values))}; convert with str.")
        values = tuple(map(int, values))
    if len(set(values)) < len(values):
        raise ValueError(f"{name} holds {first_duplicate(values)!r} twice, but a query has one list; merge them.")
    return values


def id_array(ids: Any, name: str) -> NDArray[Any]:
    """The ids as an array of text, or of integers from -1 on."""
    array = np.asarray(ids)
    if array.size == 0 and array.dtype.kind not in "iuU":
        array = array.astype(np.str_)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
        array = array.astype(np.str_)
    if array.dtype.kind not in "iuU":
        raise TypeError(f"{name} has dtype {array.dtype}, but ids must be integers or text; convert with astype(str).")
    if array.dtype.kind == "U":
        return array
    if array.size and array.min() < -1:
        raise ValueError(f"{name} holds {array.min()}, but integer ids start at 0, and -1 is padding; use text for others.")
    return array.astype(np.int64, copy=False)


def ids_from_file(ids: Iterable[Id], id_type: type[str] | type[int], source: str, what: str) -> NDArray[Any]:
    """The ids of `source` as an array of text, or of integers if `id_type` is int; errors call them ids of a `what`."""
    names = list(ids)
    if id_type is int and all(isinstance(name, str) for name in names):
        try:
            names = [int(name) for name in names]
        except ValueError as error:
            raise ValueError(f"{source}: with id_type=int every {what} id must be an integer, but {error}; use str.") from None
    names = list(check_query_ids(names, f"the {what} ids of {source}"))
    for name in names:
        if isinstance(name, str) and (not name or name.endswith("\0")):
            raise ValueError(f"{source}: {name!r} cannot be the id of a {what}: arrays of text do not hold it; rename it.")
        if isinstance(name, int) and what == "item" and name < 0:
            raise ValueError(f"{source}: item id {name} is negative, but integer ids start at 0, and -1 is padding; use text.")
    return np.array(names, dtype=None if names else np.str_)


def check_indices(ids: NDArray[Any], count: int, name: str) -> NDArray[np.int64]:
    """The ids as indices into a sequence of `count` names; refused if they are anything else."""
    if ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= count):
        raise ValueError(
            f"{name} must be indices from 0 to {count - 1} to be named, but they are {shorten(repr(ids.tolist()))}."
        )
    return ids.astype(np.int64)


def padding(ids: NDArray[Any]) -> Id:
    """What fills a list that is shorter than the others: "" among text, -1 among integers."""
    return "" if ids.dtype.kind == "U" else -1


def check_no_blanks(query: Id, pairs: list[tuple[Id, Any]]) -> None:
    """Refuse ids that a format with blank-separated fields cannot hold."""
    check_word(query, "query")
    items = [str(item) for item, _ in pairs]
    if " ".join(items).split() != items:
        for item in items:
            check_word(item, "item")


def check_word(value: Id, name: str) -> None:
    """Refuse an id with blanks, or an empty one."""
    if str(value).split() != [str(value)]:
        raise ValueError(
            f"{name} {value!r} has blanks or is empty, but blanks separate the fields of this format; write .json."
        )


def first_duplicate(ids: Sequence[Id]) -> Id:
    """The first id that occurred before; there must be one."""
    seen: set[Id] = set()
    return next(value for value in ids if value in seen or seen.add(value))  # type: ignore[func-returns-value]


def shorten(text: str) -> str:
    """The text in quotes, cut to what an error message has room for."""
    text = text.rstrip("\n")
    return repr(text if len(text) <= 60 else text[:57] + "...")
