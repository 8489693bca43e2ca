"""Recipes without a file: a preset, which is a recipe without a loss, with a method, which is a loss and what belongs to it.

    recipes/cub112/base.toml        the preset cub112
    recipes/cub112/_proxies.toml    the optimizer of the proxies, for losses that have proxies
    recipes/emoji/_expected.toml    results that were measured here of the preset emoji, by method
    recipes/methods/fast-ap.toml    the method fast-ap
    recipes/methods/nsm.toml        the method nsm, with an empty table [proxies], because its loss has proxies
    cub112/fast-ap                  both together, as if there were a file that extends both

A file of that name, such as recipes/cub/roadmap.toml, takes precedence: it differs from the preset with the method.
"""

from __future__ import annotations

import json
import textwrap
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

METHODS = "methods"
BASE = "base"
_PROXIES = "_proxies"
_EXPECTED = "_expected"
_WIDTH = 126  # of a comment, without "# "


def presets(folder: Path) -> dict[str, Path]:
    """The base.toml of every preset in this folder of recipes, by the name of the preset."""
    return dict(sorted((base.parent.name, base) for base in folder.glob(f"*/{BASE}.toml")))


def methods(folder: Path) -> dict[str, Path]:
    """The file of every method, by its name."""
    return dict(sorted((file.stem, file) for file in (folder / METHODS).glob("*.toml")))


def compositions(folder: Path) -> list[str]:
    """Every PRESET/METHOD, whether it has a file or not."""
    return [f"{preset}/{method}" for preset in presets(folder) for method in methods(folder)]


def expected_results(folder: Path, preset: str) -> dict[str, str]:
    """Sentences on the results to expect of a preset, by method; recipes with a file say it in the file."""
    file = folder / preset / f"{_EXPECTED}.toml"
    if not file.is_file():
        return {}
    sources = tomllib.loads(file.read_text(encoding="utf-8"))
    note = sources.pop("note")
    return {
        method: f"Expected, {source}: {numbers}. {note}"
        for source, by_method in sources.items()
        for method, numbers in by_method.items()
    }


def compose(name: str, folder: Path) -> str | None:
    """The text of the recipe PRESET/METHOD, as if it had a file; None if there is no such preset or method."""
    preset, _, method = name.partition("/")
    base, method_file = presets(folder).get(preset), methods(folder).get(method)
    if base is None or method_file is None:
        return None
    parts = [f"{preset}/{BASE}", f"{METHODS}/{method}"]
    if _has_proxies(method_file) and base.with_stem(_PROXIES).is_file():
        parts.insert(1, f"{preset}/{_PROXIES}")
    preset_header, method_header = (header(file.read_text(encoding="utf-8")) for file in (base, method_file))
    title, _, about = first_sentence(method_header).partition(": ")
    expected = expected_results(folder, preset).get(method)
    lines = [
        f"{title} on {first_sentence(preset_header).partition(': ')[0]}: {about}.",
        "",
        *preset_header.split("\n\n")[1].replace("METHOD", method).splitlines(),
        "",
        *([*textwrap.wrap(expected, _WIDTH), ""] if expected else []),
        "Composed of a preset and a method, which say more:",
        "",
        *(f"  suprank recipes {part}" for part in parts),
    ]
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    return f"{comment}\n\nextends = {json.dumps(parts)}\n"


def header(text: str) -> str:
    """The comment at the beginning of a recipe, without the #."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines)


def first_sentence(header: str) -> str:
    """The first sentence of a header, in one line and without its full stop."""
    return header.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].removesuffix(".")


def _has_proxies(method: Path) -> bool:
    """Whether the method has a table [proxies], as those have whose loss has proxies. To ask the loss would import torch."""
    return "proxies" in tomllib.loads(method.read_text(encoding="utf-8"))
