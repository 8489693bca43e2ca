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

import difflib
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from suprank.training import config_keys
from suprank.training.auto_settings import resolve_auto
from suprank.training.config import TrainConfig
from suprank.training.config_types import ConfigTable
from suprank.training.loss_specs import AnyLossSpec
from suprank.training.presets import BASE, METHODS, compose, compositions, presets
from suprank.training.recipe_errors import error_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    from pydantic import BaseModel

    from suprank.training.loss_specs import LossSpec

SUFFIX = ".toml"
_EXAMPLE = "write KEY=VALUE, such as loss.weight=0.3 or data.manifest=cub.parquet"
_LEAVE_OUT = " On the command line KEY= leaves KEY out: loss.rho= or proxies=."
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)  # .3 and 3. are no numbers in TOML


class RecipeError(ValueError):
    """A recipe or an override that cannot be read; the message names the file, the entry and a way out."""


class _LossTable(ConfigTable):
    loss: AnyLossSpec


class _Source(NamedTuple):
    """The text of a recipe: of a file, or composed of a preset and a method. Error messages give its `name`."""

    name: str
    text: str
    file: Path | None

    @classmethod
    def from_file(cls, file: Path) -> _Source:
        return cls(str(file), _read_text(file), file)

    def is_in(self, others: Sequence[_Source]) -> bool:
        if self.file is None:
            return self in others
        return any(one.file is not None and self.file.samefile(one.file) for one in others)


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

    Raises `RecipeError`, with one sentence for each error.
    """
    source = _find_source(where)
    values, origins = _load(source, ())
    for override in overrides:
        key, value = _parse_override(override)
        given = _nest(key, {} if value is None and config_keys.table_model(key) else value)
        _refuse_unknown(given, override)
        _assign(values, key, value, override)
        origins.update(dict.fromkeys(_dotted_names(given), override))
    values = resolve_auto(values, None if saved is None else _parse_toml(_Source.from_file(Path(saved))))
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        message = _join_sentences(error_messages(error, origins, source.name))
        hint = _LEAVE_OUT if overrides and re.search("leave .* out|left out", message) else ""
        raise RecipeError(message + hint) from None


def read_loss(name: str, overrides: Sequence[str] = ()) -> LossSpec:
    """The loss called `name`, with overrides of its keys as `read_recipe` takes them.

    Example:
        >>> read_loss("roadmap", ["loss.tau=0.02"]).tau
        0.02
    """
    values: dict[str, Any] = {"loss": {"name": name}}
    origins = {"loss.name": "--loss"}
    for override in overrides:
        key, value = _parse_override(override)
        if key[0] != "loss" or len(key) == 1 or key == ("loss", "name"):
            raise RecipeError(f"{override!r} is not a key of the loss; write loss.KEY=VALUE, such as loss.tau=0.02.")
        _refuse_unknown(_nest(key, value), override)
        _assign(values, key, value, override)
        origins[".".join(key)] = override
    try:
        return _LossTable.model_validate(values).loss
    except ValidationError as error:
        raise RecipeError(_join_sentences(error_messages(error, origins, "--loss"))) from None


def recipes_folder() -> Path:
    """The folder of the shipped recipes: in the installed package, or in the repository of an editable install."""
    package = Path(__file__).parents[1]
    for folder in (package / "recipes", package.parents[1] / "recipes"):
        if folder.is_dir():
            return folder
    raise RecipeError(f"there are no recipes beside {package}; install suprank again, or name a file.")


def all_recipes() -> dict[str, Path]:
    """The files of the shipped recipes by name ("cub/roadmap"). Most recipes have none: see `suprank.training.presets`.

    Files called base.toml or _something.toml are parts of presets, and no recipes.
    """
    folder = recipes_folder()
    files = [file for file in folder.rglob(f"*{SUFFIX}") if file.stem != BASE and not file.stem.startswith("_")]
    named = {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
    return {name: file for name, file in sorted(named.items()) if not name.startswith(f"{METHODS}/")}


def recipe_text(where: str | PathLike[str]) -> str:
    """The text of the recipe, as it is in its file or as it is composed."""
    return _find_source(where).text


def recipe_name(where: str | PathLike[str]) -> str:
    """The name of a shipped recipe, "cub/roadmap" or "cub112/fast-ap"; of another file, its file name without .toml."""
    source, folder = _find_source(where), recipes_folder().resolve()
    if source.file is None:
        return source.name
    file = source.file.resolve()
    return file.relative_to(folder).with_suffix("").as_posix() if file.is_relative_to(folder) else source.file.stem


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


def _find_source(where: str | PathLike[str]) -> _Source:
    """The file at this path, or else the shipped recipe, or part of recipes, of this name; refused if there is neither."""
    path = Path(where)
    source = _Source.from_file(path) if path.is_file() else _find_shipped(path)
    if source is not None:
        return source
    name, folder = path.as_posix().removesuffix(SUFFIX).removeprefix("recipes/"), recipes_folder()
    if name in presets(folder):
        raise RecipeError(f"{path} is a preset, and no recipe without a method; try {name}/roadmap, or see `suprank recipes`.")
    near = difflib.get_close_matches(name, sorted({*all_recipes(), *compositions(folder)}), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`suprank recipes` lists those that come with suprank."
    what = "is a folder, not a recipe" if path.is_dir() else "is neither a file nor a recipe that comes with suprank"
    raise RecipeError(f"{path} {what}; {hint}")


def _find_shipped(path: Path) -> _Source | None:
    """The shipped file of this name, or else the preset with a method of this name."""
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return None
    folder = recipes_folder()
    inside = Path(*path.parts[1:]) if path.parts[0] == folder.name and len(path.parts) > 1 else path
    name = inside.as_posix().removesuffix(SUFFIX)
    file = folder / f"{name}{SUFFIX}"
    if file.is_file():
        return _Source.from_file(file)
    text = compose(name, folder)
    return None if text is None else _Source(name, text, file=None)


def _load(source: _Source, chain: tuple[_Source, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tables of a recipe and of what it extends, and the source of each entry, by dotted name.

    `chain` are the recipes on the way to this one, each of which extends the next.
    """
    if source.is_in(chain):
        names = " → ".join(one.name for one in (*chain, source))
        raise RecipeError(f"recipes extend each other in a circle: {names}; take one extends out.")
    values = _parse_toml(source)
    bases = values.pop("extends", [])
    if isinstance(bases, str):
        bases = [bases]
    if not isinstance(bases, list) or not all(isinstance(one, str) and one for one in bases):
        raise RecipeError(f'extends: {bases!r} should be a file, "base.toml", or a list of files ({source.name}).')
    _refuse_unknown(values, source.name)
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for base in bases:
        base_values, base_origins = _load(_find_extended(base, source), (*chain, source))
        merged, origins = _merge(merged, base_values), origins | base_origins
    return _merge(merged, values), origins | dict.fromkeys(_dotted_names(values), source.name)


def _find_extended(base: str, source: _Source) -> _Source:
    beside = None if source.file is None else source.file.parent / base
    found = _Source.from_file(beside) if beside is not None and beside.is_file() else _find_shipped(Path(base))
    if found is None:
        raise RecipeError(f"{source.name} extends {base!r}, but there is no {beside or base}, nor a recipe of that name.")
    return found


def _refuse_unknown(values: dict[str, Any], origin: str) -> None:
    if wrong := list(config_keys.find_errors(values)):
        raise RecipeError(_join_sentences(f"{name}: {reason} ({origin})" for name, reason in wrong))


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file} is not text in UTF-8 (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise RecipeError(f"{file} cannot be read: {error.strerror}.") from None


def _parse_toml(source: _Source) -> dict[str, Any]:
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).partition(" (at ")
        at = f" at {place.removesuffix(')')}" if place else ""
        raise RecipeError(f"{source.name} is not TOML{at}: {what[:1].lower()}{what[1:]}.") from None


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    """The parts of the key of `key=value`, and the value; None if there is none."""
    name, equals, text = override.partition("=")
    key = tuple(name.strip().split("."))
    if not equals or not all(key):
        raise RecipeError(f"{override!r} {'names no entry' if equals else 'has no ='}; {_EXAMPLE}.")
    return key, _parse_value(text.strip()) if text.strip() else None


def _parse_value(text: str) -> Any:
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
        values.update(_merge(values, {last: value}))


def _nest(key: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(key):
        value = {name: value}
    return value


def _merge(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Both tables in one, entries of `upper` taking precedence; tables in both are merged in the same way."""
    merged = dict(lower)
    for name, value in upper.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _dotted_names(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of tables and of entries in them."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _dotted_names(value, f"{prefix}{name}.")


def _join_sentences(parts: Iterable[str]) -> str:
    return "; ".join(parts) + "."
