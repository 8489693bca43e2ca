"""A recipe is a TOML file of a `TrainConfig`, which may extend others; entries can be given beside it as `key=value`.

    extends = "base.toml"        # one file or several, relative to this one, or the name of a shipped recipe

    [loss]
    name = "roadmap"
    weight = 0.3

Tables of an extended file are completed and overruled by those of the file that extends it, entry by entry; a list is replaced
as a whole. Of several extended files the later overrules the earlier. A name without a file, such as cub112/fast-ap, is put
together of a preset and a method (`suprank.training.presets`).
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
from suprank.training.config import TrainConfig
from suprank.training.presets import BASE, METHODS, composed, compositions, presets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

SUFFIX = ".toml"
_EXAMPLE = "write KEY=VALUE, such as loss.weight=0.3 or data.manifest=cub.parquet"
_LEAVE_OUT = " On the command line KEY= leaves KEY out: loss.rho= or proxies=."
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT_NUMBER = re.compile(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)  # .3 and 3. are no numbers in TOML


class RecipeError(ValueError):
    """A recipe or an override that cannot be read; the message names file, entry and way out."""


class _Tables(NamedTuple):
    """Tables, and where each entry in them was written, by dotted name."""

    values: dict[str, Any]
    origins: dict[str, str]

    def over(self, below: _Tables) -> _Tables:
        """Both, these winning."""
        return _Tables(_merged(below.values, self.values), below.origins | self.origins)


class _Source(NamedTuple):
    """What a recipe is read from: a file, or a text that is put together and has none."""

    name: str
    """The file, or the name that was put together: what messages blame."""

    text: str
    file: Path | None

    @classmethod
    def of(cls, file: Path) -> _Source:
        return cls(str(file), _text(file), file)

    def is_in(self, others: Sequence[_Source]) -> bool:
        if self.file is None:
            return self in others
        return any(one.file is not None and self.file.samefile(one.file) for one in others)


def read_recipe(where: str | PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """The settings in a TOML file, or in the shipped recipe of that name ("cub/roadmap"), with `overrides` on top, in turn.

    A shipped name is that of a file, or else a preset with a method: "cub112/fast-ap".

    An override is `key=value`, the key with dots. The value is read as TOML, and taken as text where it is none:
    `batch.size=64`, `images.crop_scale=[0.4, 1]`, `data.manifest=cub.parquet`. A table given so completes and overrules the
    recipe's entry by entry, as that of a file that extends it does: `run={seed=1}` leaves `run.epochs` as it is. With nothing
    behind the `=` the entry, or table, is left out, so that its default holds: `proxies=`.

    Raises `RecipeError`; several faults are named at once, one sentence each.
    """
    source = _source(where)
    values, origins = _read(source, ())
    for override in overrides:
        place, value = _parsed(override)
        given = _nested(place, {} if value is None and config_keys.table(place) else value)
        if wrong := list(config_keys.complaints(given)):
            raise RecipeError(_sentences(f"{name}: {why} ({override})" for name, why in wrong))
        _assign(values, place, value, override)
        origins.update(dict.fromkeys(_places(given), override))
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        said = _sentences(_told(error, origins, source.name))
        how = _LEAVE_OUT if overrides and re.search("leave .* out|left out", said) else ""
        raise RecipeError(said + how) from None


def recipes_folder() -> Path:
    """Where the shipped recipes are: in the installed package, or in the repository of an editable install."""
    package = Path(__file__).parents[1]
    for folder in (package / "recipes", package.parents[1] / "recipes"):
        if folder.is_dir():
            return folder
    raise RecipeError(f"there are no recipes beside {package}; install suprank again, or name a file.")


def all_recipes() -> dict[str, Path]:
    """The files of the shipped recipes by name ("cub/roadmap").

    Files called base, or _something, are parts that others extend. They and the methods make further recipes, which have no
    files: `suprank.training.presets`.
    """
    folder = recipes_folder()
    files = [file for file in folder.rglob(f"*{SUFFIX}") if file.stem != BASE and not file.stem.startswith("_")]
    named = {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
    return {name: file for name, file in sorted(named.items()) if not name.startswith(f"{METHODS}/")}


def recipe_text(where: str | PathLike[str]) -> str:
    """The recipe as it stands in its file, or as it is put together."""
    return _source(where).text


def recipe_name(where: str | PathLike[str]) -> str:
    """The name by which a shipped recipe goes, "cub/roadmap" or "cub112/fast-ap"; of another file, its name without .toml."""
    source, folder = _source(where), recipes_folder().resolve()
    if source.file is None:
        return source.name
    file = source.file.resolve()
    return file.relative_to(folder).with_suffix("").as_posix() if file.is_relative_to(folder) else source.file.stem


def to_toml(config: TrainConfig) -> str:
    """The whole config as a recipe: every entry that is not None, whether by default or not, so that it outlives the defaults.

    `read_recipe` of it gives an equal config.
    """
    parts = []
    for name in type(config).model_fields:
        part: BaseModel = getattr(config, name)
        lines = [f"{entry} = {_toml(value)}" for entry, value in part.model_dump().items() if value is not None]
        parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(parts)


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            # JSON's escapes are TOML's, but TOML wants DEL escaped too, and knows no halves of a character (surrogates).
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(_toml(one) for one in value)}]"
        case dict():
            return f"{{{', '.join(f'{_key(name)} = {_toml(one)}' for name, one in value.items())}}}"
    raise TypeError(f"{value!r} has no form in TOML")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)


def _source(where: str | PathLike[str]) -> _Source:
    """The file at this path, or else the shipped recipe, or part of recipes, of this name; refused if there is neither."""
    path = Path(where)
    found = _Source.of(path) if path.is_file() else _shipped(path)
    if found is not None:
        return found
    asked, folder = path.as_posix().removesuffix(SUFFIX).removeprefix("recipes/"), recipes_folder()
    if asked in presets(folder):
        raise RecipeError(f"{path} is a preset, and no recipe without a method; try {asked}/roadmap, or see `suprank recipes`.")
    near = difflib.get_close_matches(asked, sorted({*all_recipes(), *compositions(folder)}), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`suprank recipes` lists those that come with suprank."
    what = "is a folder, not a recipe" if path.is_dir() else "is neither a file nor a recipe that comes with suprank"
    raise RecipeError(f"{path} {what}; {hint}")


def _shipped(path: Path) -> _Source | None:
    """The shipped file of this name, or else what is put together under it."""
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return None
    folder = recipes_folder()
    inside = Path(*path.parts[1:]) if path.parts[0] == folder.name and len(path.parts) > 1 else path
    name = inside.as_posix().removesuffix(SUFFIX)
    file = folder / f"{name}{SUFFIX}"
    if file.is_file():
        return _Source.of(file)
    text = composed(name, folder)
    return None if text is None else _Source(name, text, file=None)


def _read(source: _Source, extending: tuple[_Source, ...]) -> _Tables:
    """A recipe with what it extends; `extending` are those on the way to it."""
    if source.is_in(extending):
        chain = " → ".join(one.name for one in (*extending, source))
        raise RecipeError(f"recipes extend each other in a circle: {chain}; take one extends out.")
    values = _tables(source)
    bases = values.pop("extends", [])
    if isinstance(bases, str):
        bases = [bases]
    if not isinstance(bases, list) or not all(isinstance(one, str) and one for one in bases):
        raise RecipeError(f'extends: {bases!r} should be a file, "base.toml", or a list of files ({source.name}).')
    if wrong := list(config_keys.complaints(values)):
        raise RecipeError(_sentences(f"{name}: {why} ({source.name})" for name, why in wrong))
    below = _Tables({}, {})
    for base in bases:
        below = _read(_extended(base, source), (*extending, source)).over(below)
    return _Tables(values, dict.fromkeys(_places(values), source.name)).over(below)


def _extended(base: str, source: _Source) -> _Source:
    beside = None if source.file is None else source.file.parent / base
    found = _Source.of(beside) if beside is not None and beside.is_file() else _shipped(Path(base))
    if found is None:
        raise RecipeError(f"{source.name} extends {base!r}, but there is no {beside or base}, nor a recipe of that name.")
    return found


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file} is not text in UTF-8 (byte {error.start}); save it as such.") from None
    except OSError as error:
        raise RecipeError(f"{file} cannot be read: {error.strerror}.") from None


def _tables(source: _Source) -> dict[str, Any]:
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).partition(" (at ")
        at = f" at {place.removesuffix(')')}" if place else ""
        raise RecipeError(f"{source.name} is not TOML{at}: {what[:1].lower()}{what[1:]}.") from None


def _parsed(override: str) -> tuple[tuple[str, ...], Any]:
    """Where `key=value` belongs, and its value; None where there is none."""
    key, equals, text = override.partition("=")
    place = tuple(key.strip().split("."))
    if not equals or not all(place):
        raise RecipeError(f"{override!r} {'names no entry' if equals else 'has no ='}; {_EXAMPLE}.")
    return place, _value(text.strip()) if text.strip() else None


def _value(text: str) -> Any:
    """What the text is in TOML, or a number such as .3; itself where it is nothing, or a date, which no entry is."""
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return float(text) if _SHORT_NUMBER.fullmatch(text) else text
    value = found.pop("value")
    return value if not found and isinstance(value, bool | int | float | str | list | dict) else text


def _assign(values: dict[str, Any], place: tuple[str, ...], value: Any, override: str) -> None:
    """Put the value there, a table into the table there, or with None take out what is there; tables on the way are made."""
    *tables, last = place
    for depth, name in enumerate(tables):
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise RecipeError(
                f"{'.'.join(place[: depth + 1])} is an entry and not a table, so it has no {last!r} ({override})."
            )
    if value is None:
        values.pop(last, None)
    else:
        values.update(_merged(values, {last: value}))


def _nested(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(place):
        value = {name: value}
    return value


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both tables in one, entries of `above` winning; tables in both are merged likewise."""
    found = dict(below)
    for name, value in above.items():
        under = found.get(name)
        found[name] = _merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return found


def _places(values: dict[str, Any], at: str = "") -> Iterator[str]:
    """The dotted names of tables and of entries in them."""
    for name, value in values.items():
        yield at + name
        if isinstance(value, dict):
            yield from _places(value, f"{at}{name}.")


def _told(error: ValidationError, origins: dict[str, str], file: str) -> list[str]:
    """What pydantic found, in a sentence for each entry: "table.entry: what is wrong (where it was written)"."""
    reasons: dict[str, list[str]] = {}
    for one in error.errors(include_url=False):
        name = _entry(one["loc"])
        reason = _reason(one, name)
        if reason not in reasons.setdefault(name, []):
            reasons[name].append(reason)
    return [
        f"{name + ': ' if name else ''}{', or '.join(why)} ({_origin(name, origins) or file})" for name, why in reasons.items()
    ]


def _entry(location: tuple[int | str, ...]) -> str:
    """The dotted name of the entry, without what pydantic adds: places in a list, and members of a union."""
    place: tuple[str, ...] = ()
    for part in location:
        model = config_keys.table(place)
        if not isinstance(part, str) or model is None or part not in model.model_fields:
            break
        place = (*place, part)
    return ".".join(place)


def _reason(error: ErrorDetails, name: str) -> str:
    if error["type"] == "missing":
        is_table = config_keys.table(tuple(name.split("."))) is not None
        return f"this {'table' if is_table else 'entry'} is missing; a recipe needs it"
    if error["type"] == "bool_type":
        return f"{error['input']!r} should be true or false"
    if error["type"] == "tuple_type":
        return f"{error['input']!r} should be a list, in brackets"
    said = error["msg"].removeprefix("Value error, ").removesuffix(".")
    if said.startswith("Input "):
        said = f"{error['input']!r}{said.removeprefix('Input')}"
    return said


def _origin(name: str, origins: dict[str, str]) -> str | None:
    """Where the entry was written; a fault of a whole table is for the recipe itself."""
    return origins.get(name) if config_keys.table(tuple(name.split("."))) is None else None


def _sentences(parts: Iterable[str]) -> str:
    return "; ".join(parts) + "."
