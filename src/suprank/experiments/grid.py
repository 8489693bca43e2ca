"""Grids of training runs: the product of the values of some entries of a recipe, as they are written on a command line."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SEED, RECIPE = "run.seed", "recipe"
TUNED, TRIAL, FOLD = "tuned", "trial", "fold"  # axes of a tuned comparison, and of its search
PRESET = "preset"  # an axis of the paper's runs, which have a folder for each
LONGEST_NAME = 120  # of a folder; file systems allow 255 bytes

Setting = tuple[tuple[str, str], ...]
"""Entries of a recipe and their values, as they were written."""

Values = Mapping[str, object] | Sequence[str]
"""Entries of a recipe: `{"loss.weight": [0, 0.1]}`, or `["loss.weight=0,0.1"]` as on the command line."""


@dataclass(frozen=True)
class Combination:
    """One run of an experiment: a value for every axis. The recipe, by its label, and the seed are axes too."""

    values: Setting

    def __getitem__(self, key: str) -> str:
        return dict(self.values)[key]

    def without(self, key: str) -> Setting:
        """The values of the other axes."""
        return tuple((axis, value) for axis, value in self.values if axis != key)

    @property
    def method(self) -> str:
        """The label of its recipe, with the preset if that is an axis."""
        return "/".join(value for key, value in self.values if key in (PRESET, RECIPE))

    @property
    def setting(self) -> Setting:
        """The values without the seed: runs with the same setting differ only by chance."""
        return self.without(SEED)

    @property
    def name(self) -> str:
        """The name of the run's folder, such as `roadmap,seed=0` or `roadmap,loss.weight=0.1,seed=0`.

        A name that is too long, or has characters that do not belong in a file name, is replaced by a safe one with a hash.
        """
        if self.values[0][0] == PRESET:
            return f"{Combination(((RECIPE, self.values[0][1]),)).name}/{Combination(self.values[1:]).name}"
        short = {SEED: "seed=", RECIPE: ""}
        plain = ",".join(f"{short.get(key, f'{key}=')}{value}" for key, value in self.values)
        safe = re.sub(r"[^\w.=,+-]", "_", plain, flags=re.ASCII)
        if safe == plain and len(plain) <= LONGEST_NAME:
            return plain
        return f"{safe[: LONGEST_NAME - 9]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Grid:
    """Entries that all runs share (`fixed`), and axes with several values each. The runs are the product of the axes."""

    fixed: Setting
    axes: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def from_values(cls, values: Values, seeds: int | None = None) -> Grid:
        """The grid of some entries: one with several values is an axis. The seed always is one: run.seed, or 0 to seeds − 1.

        In a mapping, a list or tuple has several values (put one value that is a list into a list of its own).

        Example:
            >>> grid = Grid.from_values({"loss.weight": [0, 0.1], "batch.size": 64}, seeds=2)
            >>> grid == Grid.from_values(["loss.weight=0,0.1", "batch.size=64"], seeds=2)
            True
            >>> [run.name for run in grid.combinations()][:2]
            ['loss.weight=0,seed=0', 'loss.weight=0,seed=1']
        """
        texts_by_key = _mapping_values(values) if isinstance(values, Mapping) else _argument_values(values)
        for key, texts in texts_by_key.items():
            canonical = [canonical_value(text) for text in texts]
            twice = next((text for text in texts if canonical.count(canonical_value(text)) > 1), None)
            if twice is not None:
                raise ValueError(f"{key}={','.join(texts)} has {twice} twice; leave one out.")
        if SEED in texts_by_key and seeds is not None:
            raise ValueError(f"{SEED}={','.join(texts_by_key[SEED])} and seeds={seeds} both give the seeds; leave one out.")
        if seeds is not None and seeds < 1:
            raise ValueError(f"seeds={seeds} must be at least 1.")
        seed_values = texts_by_key.pop(SEED, None) or [str(seed) for seed in range(seeds or 1)]
        fixed = tuple((key, texts[0]) for key, texts in texts_by_key.items() if len(texts) == 1)
        axes = tuple((key, tuple(texts)) for key, texts in texts_by_key.items() if len(texts) > 1)
        return cls(fixed, (*axes, (SEED, tuple(seed_values))))

    def combinations(self) -> list[Combination]:
        """All runs, the seed changing fastest, then the axis given last."""
        keys = [key for key, _ in self.axes]
        product = itertools.product(*(values for _, values in self.axes))
        return [Combination(tuple(zip(keys, values, strict=True))) for values in product]

    def overrides(self, run: Combination) -> list[str]:
        """What is changed in the recipe for a run, as `suprank train` takes it."""
        return [f"{key}={value}" for key, value in (*self.fixed, *run.values)]


def _mapping_values(values: Mapping[str, object]) -> dict[str, list[str]]:
    texts_by_key = {}
    for key, value in values.items():
        several = list(value) if isinstance(value, list | tuple) else [value]
        if not several:
            raise ValueError(f"{key} has no values; give one or more.")
        texts_by_key[key] = [_text(one) for one in several]
    return texts_by_key


def _text(value: object) -> str:
    """A value as it is written on a command line; text is taken as if it were written there."""
    from suprank.training.recipe import toml_value

    return value if isinstance(value, str) else toml_value(value)


def _argument_values(arguments: Sequence[str]) -> dict[str, list[str]]:
    texts_by_key: dict[str, list[str]] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not (equals and key.strip()):
            raise ValueError(f"{argument!r} must be key=value or key=value,value, such as loss.weight=0,0.1.")
        if key in texts_by_key:
            together = ",".join([*texts_by_key[key], text])
            raise ValueError(f"{key} is given twice; put its values together, as in {key}={together}.")
        texts_by_key[key] = split_values(text)
    return texts_by_key


def split_values(text: str) -> list[str]:
    """The values between commas; a comma in quotes or in brackets does not split. Empty text is one empty value: `key=`.

    Example:
        >>> split_values('0,0.1'), split_values('[1,2],[4]'), split_values('"a,b"')
        (['0', '0.1'], ['[1,2]', '[4]'], ['"a,b"'])
    """
    values, start, depth, quote = [], 0, 0, ""
    place = 0
    while place < len(text):
        character = text[place]
        if quote:
            if character == "\\" and quote == '"':
                place += 1  # TOML: a backslash escapes in "..." and is itself in '...'
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
            if depth < 0:
                break
        elif character == "," and depth == 0:
            values.append(text[start:place])
            start = place + 1
        place += 1
    if quote or depth:
        raise ValueError(f"{text!r} has an unclosed bracket or quote; close it, or put the value in quotes.")
    values = [value.strip() for value in [*values, text[start:]]]
    if len(values) > 1 and not all(values):
        raise ValueError(f'{text!r} has an empty value; remove the extra comma, or write "" for an empty text.')
    return values


def as_number(value: str) -> float | None:
    """The value as a finite number, or None if it is not one."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def canonical_value(value: str) -> float | str:
    """What all spellings of a value have in common: 0.1 and 0.10 are the same."""
    number = as_number(value)
    return value if number is None else number


def sort_values(values: Iterable[str]) -> list[str]:
    """The distinct values: sorted by size if all are numbers, else in the order in which they came."""
    distinct = list(dict.fromkeys(values))
    numbers = {value: number for value in distinct if (number := as_number(value)) is not None}
    return sorted(distinct, key=numbers.__getitem__) if len(numbers) == len(distinct) else distinct
