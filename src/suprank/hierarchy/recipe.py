"""A recipe holds what is particular to a collection: its levels, the source of types, what cleaning removes. It is TOML."""

from __future__ import annotations

import difflib
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suprank.files.reading import reading
from suprank.hierarchy.text import label_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Qid = Annotated[str, Field(pattern=r"^Q[1-9][0-9]*$")]
Pid = Annotated[str, Field(pattern=r"^P[1-9][0-9]*$")]
Seed = Annotated[int, Field(ge=0, le=2**31)]
Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML only has lists; their entries are still checked strictly


class RecipeTable(BaseModel):
    """The base of every table of a recipe: frozen, and strict about unknown keys and types."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class ItemsRecipe(RecipeTable):
    """The columns of files that list items."""

    id: str = "id"
    source: str | None = None
    """Column with the URL of a Commons category, where an item's type is looked up."""

    type: str = "type"
    """Column with the type, in tables with types."""

    whole_numbers: bool = False
    """Ids are whole numbers: 007 means 7, and anything else is an error in the file."""

    def key(self, cell: str) -> str:
        """The id in a cell."""
        return str(int(cell)) if self.whole_numbers else cell.strip()

    def id_problem(self, cell: str) -> str | None:
        """What is wrong with the id in a cell, if anything."""
        if not cell.strip():
            return f"{self.id} is empty; expected an id."
        if self.whole_numbers and not re.fullmatch(r"[0-9]{1,18}", cell.strip()):
            return f"{self.id} is {cell!r}; expected a whole number."
        return None


class ScrapeRecipe(RecipeTable):
    """Requests to Wikimedia: the servers, the languages and the rate."""

    commons: str = "https://commons.wikimedia.org/w/api.php"
    wikidata: str = "https://www.wikidata.org/w/api.php"
    rate: float = Field(default=180, gt=0)
    """Requests per minute; Wikimedia allows 200 to clients that say who runs them."""

    batch: int = Field(default=50, ge=1, le=50)
    maxlag: int = Field(default=5, ge=1)
    timeout: float = Field(default=60, gt=0)
    """Seconds: the longest pause within a reply."""

    patience: float = Field(default=1800, ge=0)
    """Seconds of waiting without a good reply, after which we give up."""

    languages: Names = Field(default=("en", "mul"), min_length=1)
    """Languages of the types' names, in order of preference."""

    ancestors: int = Field(default=0, ge=0, le=20)
    """How many steps of superclasses (P279, subclass of) to fetch for items with several types; `most-specific` needs them."""

    topic_of: dict[Qid, Pid] = {"Q4167836": "P301"}
    """Types whose items stand for another item → the property that names it, such as a category's main topic."""


class StopType(RecipeTable):
    """A type that is never a label."""

    qid: Qid
    reason: str


class StopText(RecipeTable):
    """Labels that begin with this text or equal it, ignoring case, are removed."""

    begins: str | None = None
    equals: str | None = None
    reason: str

    @model_validator(mode="after")
    def _check_one_given(self) -> Self:
        if (self.begins is None) == (self.equals is None):
            raise ValueError("give either begins or equals")
        return self


class CleanRecipe(RecipeTable):
    """Rules that decide which types become labels."""

    several: Literal["single-only", "first", "most-specific", "most-frequent"] = "single-only"
    """An item with several types: leave it out, take the first, the most specific by P279, or the most frequent.

    P279 (subclass of) is known for the types of items, and for as many steps above them as `scrape.ancestors` says."""

    ended: Literal["keep", "drop"] = "keep"
    """What to do with types that have an end date (P582)."""

    stop: Annotated[tuple[StopType, ...], Field(strict=False)] = ()
    stop_text: Annotated[tuple[StopText, ...], Field(strict=False)] = ()
    least_items: Count = 1
    """Labels with fewer items are removed."""


class EmbedRecipe(RecipeTable):
    """How labels become vectors."""

    encoder: str = "tfidf"
    """`tfidf`, `sentence:MODEL`, `clip:MODEL/WEIGHTS` or `precomputed:FILE`."""

    prompt: str = "{}"
    strip: Names = (r"\s*\([^()]*\d{3,4}[^()]*\)",)
    """Regular expressions removed from the text before encoding, by default years in brackets. The labels keep them."""

    @model_validator(mode="after")
    def _check_prompt_and_strip(self) -> Self:
        if self.prompt.count("{}") != 1:
            raise ValueError(f"prompt {self.prompt!r} must contain {{}} once, where the label goes")
        for pattern in self.strip:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"strip {pattern!r} is not a regular expression: {error}") from None
        return self


class ClusterRecipe(RecipeTable):
    """How labels are clustered before the review."""

    k: Count | None = None
    """Number of clusters; by default one for every 30 labels, which a person reads at a glance, and at least √labels."""

    seed: Seed = 0
    seeds: int = Field(default=5, ge=0)
    """Further runs with other seeds, which measure how much of the result is chance."""


class LintRecipe(RecipeTable):
    """Thresholds of the checks on a finished tree."""

    imbalance: float = Field(default=100, ge=1)
    """Warn if the largest group of a level has more than this many times the items of the smallest."""

    largest: Share = 0.2
    """Warn if one group holds more than this share of all items."""

    alike: Share = 0.85
    """Warn about siblings whose names are at least this similar."""

    overlaps: Annotated[tuple[Names, ...], Field(strict=False)] = ()
    """Sets of words that mean nearly the same; siblings with these names overlap."""


class ExportRecipe(RecipeTable):
    """Names of the columns in exported CSV files."""

    id: str = "id"
    source: str = "source"
    type: str = "type"


class Recipe(RecipeTable):
    """The settings of every step for one collection."""

    name: str
    title: str
    levels: Names = ("label", "group")
    """Names of the levels, finest first: what is labeled, then the groups."""

    top: Names = ()
    """Names of the coarsest groups, if they are known in advance; a review starts with them."""

    items: ItemsRecipe = ItemsRecipe()
    scrape: ScrapeRecipe = ScrapeRecipe()
    clean: CleanRecipe = CleanRecipe()
    embed: EmbedRecipe = EmbedRecipe()
    cluster: ClusterRecipe = ClusterRecipe()
    lint: LintRecipe = LintRecipe()
    export: ExportRecipe = ExportRecipe()

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if len(self.levels) < 2 or len(set(self.levels)) < len(self.levels) or not all(name.strip() for name in self.levels):
            raise ValueError(f"levels {self.levels} must be two or more different names: what is labeled, then its groups")
        if self.top and len(self.levels) < 3:
            raise ValueError("top names groups of groups; give three or more levels")
        if len({label_key(name) for name in self.top}) < len(self.top) or not all(name.strip() for name in self.top):
            raise ValueError(f"top {self.top} must be different names, none of them empty")
        reserved = {"label", "weight", "excluded", self.export.id, self.export.source, self.export.type}
        if clash := [name for name in self.levels[1:] if name in reserved]:
            raise ValueError(
                f"levels: groups cannot be called {clash[0]!r}, which is another column of the exports; rename them"
            )
        return self

    @property
    def depth(self) -> int:
        """The number of levels of groups."""
        return len(self.levels) - 1


def recipe_names() -> list[str]:
    """The names of the recipes in the package."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def read_recipe(name: str) -> Recipe:
    """Read a recipe of the package by its name, or one of your own from a .toml file.

    Example:
        >>> read_recipe("plain").levels
        ('label', 'group')
    """
    if name.endswith(".toml"):
        file = Path(name)
        if not file.is_file():
            known = ", ".join(recipe_names())
            raise FileNotFoundError(
                f"there is no recipe {name} (the working folder is {Path.cwd()}); write it, or name one of {known}."
            )
    elif name in recipe_names():
        file = _folder() / f"{name}.toml"
    else:
        raise ValueError(f"there is no recipe {name!r}; choose from {', '.join(recipe_names())}, or give a .toml file.")
    with reading(name, "recipe"):
        values = {"name": Path(name).stem, **tomllib.loads(file.read_bytes().decode())}
    try:
        return validated(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def with_values(recipe: Recipe, values: Sequence[str], tables: Sequence[str]) -> Recipe:
    """The recipe with values of these tables, each as KEY=VALUE. A value is TOML, or else text.

    Example:
        >>> with_values(read_recipe("plain"), ["clean.several=first"], ["clean"]).clean.several
        'first'
    """
    changed = recipe.model_dump()
    for text in values:
        key, equals, value = text.partition("=")
        table, _, name = key.partition(".")
        if not equals or table not in tables:
            raise ValueError(f"{text!r} is not KEY=VALUE with a key of {' or '.join(tables)}, such as {tables[-1]}.NAME=VALUE.")
        try:
            changed[table][name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            changed[table][name] = value
    return validated(changed)


def validated(values: Mapping[str, Any]) -> Recipe:
    """The recipe of these values; the error has all problems in one line, each after its key."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        problems = []
        for entry in error.errors():
            place, problem = ".".join(map(str, entry["loc"])), entry["msg"].removeprefix("Value error, ")
            if entry["type"] == "extra_forbidden":
                close = difflib.get_close_matches(place, _key_names(), n=1, cutoff=0.75)
                problem = f"there is no such entry{f'; did you mean {close[0]}?' if close else ''}"
            problems.append(": ".join(filter(None, (place, problem))))
        raise ValueError("; ".join(problems)) from None


def _key_names() -> list[str]:
    """The entries of a recipe: those of tables after the table's name, such as clean.several."""
    tables = {name: field.annotation for name, field in Recipe.model_fields.items()}
    keys = [f"{name}.{key}" for name, kind in tables.items() for key in getattr(kind, "model_fields", ())]
    return [*tables, *keys]


def _folder() -> Path:
    return Path(str(files("suprank.hierarchy") / "recipes"))
