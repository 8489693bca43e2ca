"""Check that measured numbers in the documentation are those of results files.

    python benchmarks/doc_numbers.py            # exits with 1 and names the numbers that no file has
    python benchmarks/doc_numbers.py --weak     # also prints numbers that would still be found with another last digit

Tables and sentences that are written by hand have a comment above them (above a paragraph, a list or a table) that says where
their numbers come from:

    <!-- numbers: cpu/adapt.json -->
    <!-- numbers:
    h200/growth.json: measurements.{row} * {column} {column}.seconds
    comparison/*.csv: sup-ap.mAP@R - smooth-ap.mAP@R
    given: 1.5
    -->

A line is a file in benchmarks/results, or elsewhere in the repository, and which of its numbers: a pattern of their keys, or
two patterns with ` - ` or ` / ` between them. In a table, `{row}` is the first cell of a row, `{first}` and `{last}` are its
first and last word, `{slug}` is `smooth-ap` for Smooth-AP, and `{column}` the head of the column. `given:` lists numbers that
were not measured, such as targets and settings, and `unfiled:` those of which the text says that they are "not in a results
file". Every number of the block that has a decimal point or a unit, in a table every number, must be one of these, rounded to
the digits shown; and every line must be needed.

Keys are those of JSON, joined by dots. An object in a list is named by its texts and sizes: `SupAP ours 256 256`. So is a row
of a CSV or JSONL file; rows that differ only in the seed are averaged, and `KEY.sd` is their standard deviation (n − 1). The
key of a number in a text file is its line.

On `COMPLETE_PAGES` a block with such numbers and without a comment is an error, unless it, or the text before a table, says
that they are "not in a results file". Tables between <!-- begin ... --> and <!-- end ... --> are made by other scripts.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Iterator
from fnmatch import translate
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
COMPLETE_PAGES = (
    "README.md",
    *(
        f"docs/{page}.md"
        for page in (
            *("results", "paper", "adapting", "comparing", "losses", "speed", "tuned-results"),
            "decomposability",
        )
    ),
    "docs/benchmarks.md",
)
OPEN = "not in a results file"
SCALES = {  # by the unit in the text, from the units in the files: shares, seconds, bytes, ...
    "": (1, 100),
    "%": (1, 100),
    "ms": (1, 1e3),
    "s": (1, 1e-3),
    "min": (1, 1 / 60),
    "MiB": (1, 2**-20, 1024),
    "GiB": (1, 2**-30, 1 / 1024),
    "GB": (1, 1e-9),
}
NUMBER = re.compile(
    r"(?<![\w.@/^-])(?<!Python )(?P<digits>\d{1,3}(?:,\d{3})+|\d+)(?P<decimals>\.\d+)?(?!\w|\.\d|,\d|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹])"
    r"(?:\s?(?P<unit>%|(?:ms|s|min|MiB|GiB|GB)\b))?"
)
GENERATED = re.compile(r"<!-- begin ([^>]+) -->.*?<!-- end \1 -->", flags=re.DOTALL)
FENCE = re.compile(r"^(`{3,}|:{3,}).*?^\1$", flags=re.DOTALL | re.MULTILINE)
SKIPPED_SECTION = re.compile(r"^## Growth with the collection$.*?(?=^## |\Z)", flags=re.DOTALL | re.MULTILINE)


class Shown(NamedTuple):
    """A number as the page shows it, and, in a table, the first cell of its row and the head of its column."""

    text: str
    value: float
    decimals: int
    unit: str
    row: str = ""
    column: str = ""

    def equals(self, value: float) -> bool:
        half = 0.5 * 10.0**-self.decimals * (1 + 1e-9)
        return any(abs(abs(value) * scale - self.value) <= half for scale in SCALES[self.unit])


class Problem(NamedTuple):
    """Something to correct on a page."""

    page: str
    block: str
    what: str

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.block.split())[:70]}…: {self.what}"


# Numbers of a file


@cache
def numbers_of(path: Path) -> dict[str, float]:
    """Every number of a results file by its key."""
    if path.suffix == ".json":
        return dict(_flat(json.loads(path.read_text(encoding="utf-8"))))
    if path.suffix == ".jsonl":
        return _over_seeds([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return _over_seeds([{name: _parsed(text) for name, text in row.items()} for row in csv.DictReader(file)])
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for place, match in enumerate(NUMBER.finditer(line.replace("/", " "))):
            scale = {"ms": 1e-3, "MiB": 2**20, "GiB": 2**30}.get(match["unit"] or "", 1)
            found[f"{line} #{place}"] = scale * float(match["digits"].replace(",", "") + (match["decimals"] or ""))
    return found


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _flat(one, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        names = [_name(one) if isinstance(one, dict) else "" for one in value]
        for place, (name, one) in enumerate(zip(names, value, strict=True)):
            unique = name and names.count(name) == 1
            yield from _flat(one, f"{key}.{name if unique else f'{name}#{place}'}".lstrip("."))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, float(value)


def _name(row: dict[str, Any]) -> str:
    sizes = ("queries", "items", "batch", "classes")
    left_out = ("note", "run", "date", "folder", "finished", "values")
    named = [
        value
        for name, value in row.items()
        if name not in left_out and (isinstance(value, str | bool) or (isinstance(value, int) and name in sizes))
    ]
    return " ".join(str(value) for value in named if value != "")


def _over_seeds(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The means over rows of the same name, and their deviations."""
    values: dict[str, list[float]] = {}
    for row in rows:
        first = next(iter(row.values()))
        name = _name(row) if isinstance(first, str) else f"{first:g} {_name(row)}".strip()
        for key, value in _flat(row, name):
            values.setdefault(key, []).append(value)
    found = {key: statistics.fmean(ours) for key, ours in values.items()}
    return found | {f"{key}.sd": statistics.stdev(ours) for key, ours in values.items() if len(ours) > 1}


def _parsed(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


@cache
def matching(path: Path, pattern: str) -> list[float]:
    """The numbers of a file whose keys match a pattern; ", " and " " are the same."""
    matches = re.compile(translate(pattern.replace(", ", " "))).match
    return [value for key, value in numbers_of(path).items() if matches(key.replace(", ", " "))]


def selected(line: str, row: str = "", column: str = "") -> list[float]:
    """The numbers that a line of a comment names, for a row and a column of a table."""
    source, _, expression = line.partition(": ")
    if source in ("given", "unfiled"):
        return [float(text.replace(",", "")) for text in expression.split()]
    paths = sorted([*RESULTS.glob(source), *ROOT.glob(source)])
    if not paths:
        raise ValueError(f"no file {source}")
    words = {
        **{"{row}": row, "{first}": re.split("[ ,]", row)[0], "{last}": row.split(" ")[-1]},
        **{"{slug}": row.lower().replace(" ", "-"), "{column}": column},
    }
    for name, text in words.items():
        expression = expression.replace(name, text.replace("[", "[[]"))
    first, *rest = re.split(r" ([-/]) ", expression or "*", maxsplit=1)
    found = []
    for path in paths:
        ours = matching(path, first)
        if rest:
            operator, second = rest
            theirs = matching(path, second)
            minus = operator == "-"
            ours = [one - other if minus else one / other for one in ours for other in theirs if minus or other]
        found += ours
    return found


# Numbers of a page


class Block(NamedTuple):
    """A paragraph, list, table or code block of a page; the lines of its comment, or None; and the text before it."""

    text: str
    sources: tuple[str, ...] | None
    before: str


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page, without generated tables, and without code that has no comment."""
    page = SKIPPED_SECTION.sub("", GENERATED.sub("", page))
    first, *rest = re.split(r"<!-- numbers:(.*?)-->\n", page, flags=re.DOTALL)
    before = ""
    for source, part in zip((None, *rest[::2]), (first, *rest[1::2]), strict=True):
        if source is not None:
            fence = FENCE.match(part)
            text = fence[0] if fence else re.split(r"\n\s*\n", part, maxsplit=1)[0]
            yield Block(text, tuple(line.strip() for line in source.splitlines() if line.strip()), before)
            part, before = part[len(text) :], text
        for text in re.split(r"\n\s*\n", FENCE.sub("", part)):
            if text.strip() and not text.startswith(("#", "![")):
                yield Block(text, None, before)
                before = text


def shown_numbers(block: Block) -> list[Shown]:
    """The numbers of a block that look measured: with a decimal point or a unit, or in a table that has a comment."""
    lines = block.text.strip().splitlines()
    if not all(line.lstrip().startswith("|") for line in lines):
        return _numbers(block.text, every=False)
    head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    every = block.sources is not None
    return [
        one._replace(row=re.sub(r"[`*]", "", row[0]), column=column)
        for row in rows
        for column, cell in zip(head[1:], row[1:], strict=True)
        for one in _numbers(cell, every=every)
    ]


def _numbers(text: str, *, every: bool) -> list[Shown]:
    plain = text if text.startswith("```") else re.sub(r"`[^`]*`|\]\([^)]*\)|\d{4}-\d\d-\d\d|\d\d:\d\d", " ", text)
    found: list[Shown] = []
    following, unit = len(plain), ""
    for match in reversed(list(NUMBER.finditer(plain))):
        listed = re.fullmatch(r", | and | to | or | ± ", plain[match.end() : following].replace("\n", " "))
        unit = match["unit"] or (unit if listed else "")  # 38 and 121 ms
        following = match.start()
        if every or match["decimals"] or unit:
            value = float(match["digits"].replace(",", "") + (match["decimals"] or ""))
            found.append(Shown(match[0], value, max(0, len(match["decimals"] or "") - 1), unit))
    return found[::-1]


def check_block(page: str, block: Block) -> list[Problem]:
    """What is wrong with the numbers of a block."""
    shown = shown_numbers(block)
    said = OPEN in " ".join(block.text.split()) or (block.text.startswith("|") and OPEN in " ".join(block.before.split()))
    if block.sources is None:
        if shown and page in COMPLETE_PAGES and not said:
            return [Problem(page, block.text, f"no comment says where {', '.join(one.text for one in shown)} are from")]
        return []
    used: set[str] = set()
    missing = []
    for one in shown:
        found = [line for line in block.sources if any(map(one.equals, selected(line, one.row, one.column)))]
        used.update(found)
        if not found:
            missing.append(one.text + (f" ({one.row})" if one.row else ""))
    if not said and any(line.startswith("unfiled: ") for line in block.sources):
        return [Problem(page, block.text, f"the text does not say which numbers are {OPEN}")]
    problems = [Problem(page, block.text, f"not in the files: {', '.join(missing)}")] if missing else []
    return problems + [Problem(page, block.text, f"no number needs {line!r}") for line in block.sources if line not in used]


def check_page(page: str) -> list[Problem]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [problem for block in blocks(text) for problem in check_block(page, block)]


def weak_numbers(page: str) -> Iterator[tuple[str, bool]]:
    """Every measured number that is checked, and whether it would still be found with another last digit."""
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        for one in shown_numbers(block) if block.sources else ():
            given = [
                value for line in block.sources or () if line.startswith(("given: ", "unfiled: ")) for value in selected(line)
            ]
            other = one._replace(value=one.value + 10.0**-one.decimals)
            if not any(map(one.equals, given)):
                values = (value for line in block.sources or () for value in selected(line, one.row, one.column))
                yield f"{page}: {one.text} ({one.row})", any(map(other.equals, values))


def pages() -> list[str]:
    return ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="what it does anyway, as other scripts here")
    parser.add_argument("--weak", action="store_true", help="also print numbers that could change unnoticed")
    options = parser.parse_args()
    problems = [problem for page in pages() for problem in check_page(page)]
    if options.weak:
        found = [one for page in pages() for one in weak_numbers(page)]
        print("\n".join(text for text, weak in found if weak))
        print(f"{sum(weak for _, weak in found)} of {len(found)} numbers would still be found with another last digit")
    if problems:
        sys.exit("\n".join(map(str, problems)))


if __name__ == "__main__":
    main()
