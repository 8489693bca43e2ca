"""What is particular to a collection: its levels, where types come from, what cleaning removes. Data, in TOML, not code."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from suprank.hierarchy.text import key_of

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Qid = Annotated[str, Field(pattern=r"^Q[1-9][0-9]*$")]
Pid = Annotated[str, Field(pattern=r"^P[1-9][0-9]*$")]
Seed = Annotated[int, Field(ge=0, le=2**31)]
Names = Annotated[tuple[str, ...], Field(strict=False)]  # TOML has lists only; what is in them stays strict


class Part(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class ItemsRecipe(Part):
    """The columns of the files that list items."""

    id: str = "id"
    source: str | None = None
    """Where an item's type is looked up: an address of a Commons category."""

    type: str = "type"
    """Of files that say the type themselves (`scrape --from-csv`)."""

    whole_numbers: bool = False
    """Ids are whole numbers: anything else is a mistake in the file, and 007 is 7."""


class ScrapeRecipe(Part):
    """Wikimedia: where to ask, in which languages, how often."""

    commons: str = "https://commons.wikimedia.org/w/api.php"
    wikidata: str = "https://www.wikidata.org/w/api.php"
    rate: float = Field(default=180, gt=0)
    """Requests a minute; Wikimedia allows 200 to clients that say who runs them."""

    batch: int = Field(default=50, ge=1, le=50)
    maxlag: int = Field(default=5, ge=1)
    languages: Names = Field(default=("en", "mul"), min_length=1)
    """Of the names of types, in order of preference."""

    ancestors: int = Field(default=0, ge=0, le=20)
    """Steps above the types (P279, subclass of) that are asked for, of items with several types: for `most-specific`."""

    topic_of: dict[Qid, Pid] = {"Q4167836": "P301"}
    """Items of these types stand for another: which property names it. A category item has its main topic."""


class StopType(Part):
    """A type that is none."""

    qid: Qid
    reason: str


class StopText(Part):
    """Labels that begin with, or are, this text, whatever their case."""

    begins: str | None = None
    equals: str | None = None
    reason: str

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.begins is None) == (self.equals is None):
            raise ValueError("give one of begins and equals")
        return self


class CleanRecipe(Part):
    """Which types are labels."""

    several: Literal["single-only", "first", "most-specific", "most-frequent"] = "single-only"
    """An item of several types: leave it out, take the first, the most specific by P279, or the one most items have.

    P279 is known of types of items, and as far above them as `scrape.ancestors` says: a longer way up ends there."""

    ended: Literal["keep", "drop"] = "keep"
    """Types that were given an end date (P582)."""

    stop: Annotated[tuple[StopType, ...], Field(strict=False)] = ()
    stop_text: Annotated[tuple[StopText, ...], Field(strict=False)] = ()
    least_items: Count = 1
    """Labels of fewer items are left out."""


class EmbedRecipe(Part):
    """What turns labels into vectors."""

    encoder: str = "tfidf"
    """`tfidf`, `sentence:MODEL`, `clip:MODEL/WEIGHTS` or `precomputed:FILE`."""

    prompt: str = "{}"
    strip: Names = (r"\s*\([^()]*\d{3,4}[^()]*\)",)
    """Regular expressions of what is taken out before encoding; years in brackets, by default. Labels keep it."""

    @model_validator(mode="after")
    def _place(self) -> Self:
        if self.prompt.count("{}") != 1:
            raise ValueError(f"prompt {self.prompt!r} must say once, with {{}}, where the label goes")
        for pattern in self.strip:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"strip {pattern!r} is no regular expression: {error}") from None
        return self


class ClusterRecipe(Part):
    """How labels are put together before people look."""

    k: Count | None = None
    """Number of clusters; by default one for every 30 labels, what a person reads at a glance, and at least √labels."""

    seed: Seed = 0
    seeds: int = Field(default=5, ge=0)
    """Further runs, which tell how much of the outcome is chance."""


class LintRecipe(Part):
    """What is looked for in a finished tree."""

    imbalance: float = Field(default=100, ge=1)
    """Largest to smallest group of a level, in items."""

    largest: Share = 0.2
    """Share of all items in one group."""

    alike: Share = 0.85
    """Names of siblings this similar are probably one."""

    overlaps: Annotated[tuple[Names, ...], Field(strict=False)] = ()
    """Words that mean nearly the same: siblings of these names overlap."""


class ExportRecipe(Part):
    """Names of columns in CSV files."""

    id: str = "id"
    source: str = "source"
    type: str = "type"


class Recipe(Part):
    """A collection, from the finest level up."""

    name: str
    title: str
    levels: Names = ("label", "group")
    """Of what is labeled, then of the groups that are reviewed, finest first."""

    top: Names = ()
    """Names of the coarsest groups, where they are known before: they wait for the annotators."""

    items: ItemsRecipe = ItemsRecipe()
    scrape: ScrapeRecipe = ScrapeRecipe()
    clean: CleanRecipe = CleanRecipe()
    embed: EmbedRecipe = EmbedRecipe()
    cluster: ClusterRecipe = ClusterRecipe()
    lint: LintRecipe = LintRecipe()
    export: ExportRecipe = ExportRecipe()

    @model_validator(mode="after")
    def _levels(self) -> Self:
        if len(self.levels) < 2 or len(set(self.levels)) < len(self.levels) or not all(name.strip() for name in self.levels):
            raise ValueError(f"levels {self.levels} must be two or more different names: of what is labeled, then of groups")
        if self.top and len(self.levels) < 3:
            raise ValueError("top names groups of groups; give three levels or more")
        if len({key_of(name) for name in self.top}) < len(self.top) or not all(name.strip() for name in self.top):
            raise ValueError(f"top {self.top} must be different names, none of them empty")
        taken = {"label", "weight", "excluded", self.export.id, self.export.source, self.export.type}
        if clash := [name for name in self.levels[1:] if name in taken]:
            raise ValueError(f"levels: groups cannot be called {clash[0]!r}, which exports have another column of; rename them")
        return self

    @property
    def depth(self) -> int:
        """How many levels of groups there are."""
        return len(self.levels) - 1


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))


def read_recipe(name: str) -> Recipe:
    """A recipe by its name, or from a .toml file.

    Example:
        >>> read_recipe("plain").levels
        ('label', 'group')
    """
    if name.endswith(".toml"):
        file = Path(name)
        if not file.is_file():
            there = f"or name one of {', '.join(recipe_names())}"
            raise FileNotFoundError(f"there is no recipe {name} (the working folder is {Path.cwd()}); write it, {there}.")
    elif name in recipe_names():
        file = _folder() / f"{name}.toml"
    else:
        raise ValueError(f"there is no recipe {name!r}; choose from {', '.join(recipe_names())}, or give a .toml file.")
    try:
        return Recipe.model_validate({"name": Path(name).stem, **tomllib.loads(file.read_bytes().decode())})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not TOML: {error}.") from None
    except ValidationError as error:
        raise ValueError(f"{name}: {said(error)}") from None


def said(error: ValidationError) -> str:
    """What is wrong with a recipe, in one line an entry."""
    wrong = []
    for one in error.errors():
        what = "there is no such entry" if one["type"] == "extra_forbidden" else one["msg"].removeprefix("Value error, ")
        wrong.append(": ".join(filter(None, (".".join(map(str, one["loc"])), what))))
    return "; ".join(wrong)


def _folder() -> Path:
    return Path(str(files("suprank.hierarchy") / "recipes"))
