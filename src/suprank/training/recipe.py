"""Recipes: TOML files of a `TrainConfig`, which may extend others; entries can be overridden as `key=value`.

    extends = "base.toml"        # one file or several, relative to this one, or the name of a shipped recipe

    [loss]
    name = "roadmap"
    weight = 0.3

The file that extends others completes and overrides their tables, entry by entry; a list is replaced as a whole. Of several
extended files the later overrides the earlier. A name without a file, such as cub112/fast-ap, is composed of a preset and a
method (`suprank.training.presets`).
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from suprank.system.custom_code import is_custom
from suprank.training import config_keys
from suprank.training.auto_settings import resolve_auto
from suprank.training.config import TrainConfig
from suprank.training.config_types import ConfigTable
from suprank.training.recipe_errors import error_messages
from suprank.training.recipe_files import (
    RecipeError,
    RecipeSource,
    dotted_names,
    find_recipe,
    load_tables,
    merge_tables,
    parse_toml,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from pydantic import BaseModel

Settings = TypeVar("Settings", bound=ConfigTable)

_EXAMPLE = "write KEY=VALUE, such as loss.weight=0.3 or data.manifest=cub.parquet"
_LEAVE_OUT = " On the command line KEY= leaves KEY out: loss.rho= or proxies=."
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)  # .3 and 3. are no numbers in TOML


def read_recipe(
    where: str | PathLike[str], overrides: Sequence[str] = (), *, saved: str | PathLike[str] | None = None
) -> TrainConfig:
    """Read the config of a TOML file, or of the shipped recipe of that name ("cub/roadmap"), and apply `overrides` in order.

    A shipped name is that of a file, or else a preset with a method: "cub112/fast-ap".

    An override is `key=value`, the key with dots. The value is read as TOML, and taken as text if it is not TOML:
    `batch.size=64`, `images.crop_scale=[0.4, 1]`, `data.manifest=cub.parquet`. A table completes and overrides the recipe's,
    entry by entry, as in a file that extends it: `run={seed=1}` leaves `run.epochs` as it is. With nothing after the `=` the
    entry or table is left out, so that its default holds: `proxies=`.

    A value "auto" of the network, the image size or the batch is chosen here, for this machine and the images of the manifest
    (`suprank.training.auto_settings`). If `saved` is the recipe of a run that is resumed, it is the value there.

    No code of the user's own is run here. What a file names, and no override, will need the user's consent to be run.

    Raises `RecipeError`, with one sentence for each error.
    """
    source = find_recipe(where)
    values, origins = load_tables(source, _refuse_unknown)
    named = _apply_overrides(values, origins, overrides)
    values = resolve_auto(values, None if saved is None else parse_toml(RecipeSource.from_file(Path(saved))))
    try:
        config = TrainConfig.model_validate(values)
    except ValidationError as error:
        message = _join_sentences(error_messages(error, origins, source.name))
        hint = _LEAVE_OUT if overrides and re.search("leave .* out|left out", message) else ""
        raise RecipeError(message + hint) from None
    if is_custom(config.loss.name) and config.loss.name != named.get("loss", {}).get("name"):
        config.loss._named_in = origins.get("loss.name", source.name)
    if is_custom(config.model.backbone) and config.model.backbone != named.get("model", {}).get("backbone"):
        config.model._named_in = origins.get("model.backbone", source.name)
    return config


def read_settings(model: type[Settings], overrides: Sequence[str]) -> Settings:
    """Settings that are no recipe, such as `AdaptConfig`, with overrides of their defaults as `read_recipe` takes them."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    _apply_overrides(values, origins, overrides, model)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise RecipeError(_join_sentences(error_messages(error, origins, "the settings", model))) from None


def _apply_overrides(
    values: dict[str, Any], origins: dict[str, str], overrides: Sequence[str], root: type[ConfigTable] = TrainConfig
) -> dict[str, Any]:
    """Set the overrides in `values`, and themselves as the origins of their keys, in place; return what they name."""
    named: dict[str, Any] = {}
    for override in overrides:
        key, value = _parse_override(override)
        given = _nest(key, {} if value is None and config_keys.table_model(key, root) else value)
        _refuse_unknown(given, override, root)
        _assign(values, key, value, override)
        origins.update(dict.fromkeys(dotted_names(given), override))
        named = merge_tables(named, given)
    return named


def to_toml(config: TrainConfig) -> str:
    """The config as a recipe that `read_recipe` reads to an equal config.

    It has every entry that is not None, also those with default values, so that later changes of defaults do not matter.
    """
    parts = []
    for name in type(config).model_fields:
        part: BaseModel = getattr(config, name)
        lines = [f"{entry} = {toml_value(value)}" for entry, value in part.model_dump().items() if value is not None]
        parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(parts)


def toml_value(value: object) -> str:
    """A value as TOML writes it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            # JSON's escapes are also TOML's, but TOML requires DEL to be escaped too, and has no surrogates.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(toml_value(one) for one in value)}]"
        case dict():
            return f"{{{', '.join(f'{_key(name)} = {toml_value(one)}' for name, one in value.items())}}}"
    raise TypeError(f"{value!r} cannot be written as TOML")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)


def _refuse_unknown(values: dict[str, Any], origin: str, root: type[ConfigTable] = TrainConfig) -> None:
    if wrong := list(config_keys.find_errors(values, root=root)):
        raise RecipeError(_join_sentences(f"{name}: {reason} ({origin})" for name, reason in wrong))


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    """The parts of the key of `key=value`, and the value; None if there is none."""
    name, equals, text = override.partition("=")
    key = tuple(name.strip().split("."))
    if not equals or not all(key):
        raise RecipeError(f"{override!r} {'names no entry' if equals else 'has no ='}; {_EXAMPLE}.")
    return key, parse_value(text.strip()) if text.strip() else None


def parse_value(text: str) -> Any:
    """The text read as TOML, or as a number such as .3; else the text itself, also for a date, because no entry is a date."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return float(text) if _SHORT_NUMBER.fullmatch(text) else text
    value = tables.pop("value")
    return value if not tables and isinstance(value, bool | int | float | str | list | dict) else text


def _assign(values: dict[str, Any], key: tuple[str, ...], value: Any, override: str) -> None:
    """Set the entry in place; a table is merged into the one that is there, and None removes the entry."""
    *tables, last = key
    for depth, name in enumerate(tables):
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise RecipeError(f"{'.'.join(key[: depth + 1])} is an entry and not a table, so it has no {last!r} ({override}).")
    if value is None:
        values.pop(last, None)
    else:
        values.update(merge_tables(values, {last: value}))


def _nest(key: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(key):
        value = {name: value}
    return value


def _join_sentences(parts: Iterable[str]) -> str:
    return "; ".join(parts) + "."
