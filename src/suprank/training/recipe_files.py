"""Files of recipes: where they are, which text they have, and the tables that they and the files they extend give together.

Nothing here imports torch, so that listing and printing recipes is quick. `suprank.training.recipe` checks the tables.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from suprank.files.reading import reading
from suprank.training.presets import BASE, METHODS, compose, compositions, presets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

SUFFIX = ".toml"
_MOST_FILES = 50  # that a recipe extends
_Tables = tuple[dict[str, Any], dict[str, str]]


class RecipeError(ValueError):
    """A recipe or an override that cannot be read; the message names the file, the entry and a way out."""


class RecipeSource(NamedTuple):
    """The text of a recipe: of a file, or composed of a preset and a method. Error messages give its `name`."""

    name: str
    text: str
    file: Path | None

    @classmethod
    def from_file(cls, file: Path) -> RecipeSource:
        return cls(str(file), _read_text(file), file)

    def is_in(self, others: Sequence[RecipeSource]) -> bool:
        if self.file is None:
            return self in others
        return any(one.file is not None and self.file.samefile(one.file) for one in others)


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
    return find_recipe(where).text


def recipe_name(where: str | PathLike[str]) -> str:
    """The name of a shipped recipe, "cub/roadmap" or "cub112/fast-ap"; of another file, its file name without .toml."""
    source, folder = find_recipe(where), recipes_folder().resolve()
    if source.file is None:
        return source.name
    file = source.file.resolve()
    return file.relative_to(folder).with_suffix("").as_posix() if file.is_relative_to(folder) else source.file.stem


def find_recipe(where: str | PathLike[str]) -> RecipeSource:
    """The file at this path, or else the shipped recipe, or part of recipes, of this name; refused if there is neither."""
    path = Path(where)
    source = RecipeSource.from_file(path) if path.is_file() else _find_shipped(path)
    if source is not None:
        return source
    name, folder = path.as_posix().removesuffix(SUFFIX).removeprefix("recipes/"), recipes_folder()
    if name in presets(folder):
        raise RecipeError(f"{path} is a preset, and no recipe without a method; try {name}/roadmap, or see `suprank recipes`.")
    near = difflib.get_close_matches(name, sorted({*all_recipes(), *compositions(folder)}), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`suprank recipes` lists those that come with suprank."
    what = "is a folder, not a recipe" if path.is_dir() else "is neither a file nor a recipe that comes with suprank"
    raise RecipeError(f"{path} {what}; {hint}")


def _find_shipped(path: Path) -> RecipeSource | None:
    """The shipped file of this name, or else the preset with a method of this name."""
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return None
    folder = recipes_folder()
    inside = Path(*path.parts[1:]) if path.parts[0] == folder.name and len(path.parts) > 1 else path
    name = inside.as_posix().removesuffix(SUFFIX)
    file = folder / f"{name}{SUFFIX}"
    if file.is_file():
        return RecipeSource.from_file(file)
    text = compose(name, folder)
    return None if text is None else RecipeSource(name, text, file=None)


def load_tables(
    source: RecipeSource,
    check: Callable[[dict[str, Any], str], None] | None = None,
    chain: tuple[RecipeSource, ...] = (),
    done: dict[RecipeSource, _Tables] | None = None,
) -> _Tables:
    """The tables of a recipe and of what it extends, and the source of each entry, by dotted name.

    `check(tables, name)` is called for every recipe, and may refuse it. `chain` are the recipes on the way to this one, each of
    which extends the next; `done` those that are merged already.
    """
    done = {} if done is None else done
    if source in done:
        return done[source]
    if source.is_in(chain):
        names = " → ".join(one.name for one in (*chain, source))
        raise RecipeError(f"recipes extend each other in a circle: {names}; take one extends out.")
    values = parse_toml(source)
    bases = values.pop("extends", [])
    if isinstance(bases, str):
        bases = [bases]
    if not isinstance(bases, list) or not all(isinstance(one, str) and one for one in bases):
        raise RecipeError(f'extends: {bases!r} should be a file, "base.toml", or a list of files ({source.name}).')
    if max(len(bases), len(chain), len(done)) > _MOST_FILES:
        raise RecipeError(f"{source.name} extends more than {_MOST_FILES} files, directly or not; merge some of them.")
    if check is not None:
        check(values, source.name)
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for base in bases:
        base_values, base_origins = load_tables(_find_extended(base, source), check, (*chain, source), done)
        merged, origins = merge_tables(merged, base_values), origins | base_origins
    done[source] = merge_tables(merged, values), origins | dict.fromkeys(dotted_names(values), source.name)
    return done[source]


def _find_extended(base: str, source: RecipeSource) -> RecipeSource:
    beside = None if source.file is None else source.file.parent / base
    found = RecipeSource.from_file(beside) if beside is not None and beside.is_file() else _find_shipped(Path(base))
    if found is None:
        raise RecipeError(f"{source.name} extends {base!r}, but there is no {beside or base}, nor a recipe of that name.")
    return found


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file} is not text in UTF-8 (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise RecipeError(f"{file} cannot be read: {error.strerror}.") from None


def parse_toml(source: RecipeSource) -> dict[str, Any]:
    with reading(source.name, "recipe"):
        try:
            return tomllib.loads(source.text)
        except tomllib.TOMLDecodeError as error:
            what, _, place = str(error).partition(" (at ")
            at = f" at {place.removesuffix(')')}" if place else ""
            raise RecipeError(f"{source.name} is not TOML{at}: {what[:1].lower()}{what[1:]}.") from None


def merge_tables(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Both tables in one, entries of `upper` taking precedence; tables in both are merged in the same way."""
    merged = dict(lower)
    for name, value in upper.items():
        below = merged.get(name)
        merged[name] = merge_tables(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def dotted_names(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of tables and of entries in them."""
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from dotted_names(value, f"{prefix}{name}.")
