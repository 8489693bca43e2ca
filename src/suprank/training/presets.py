"""Recipes without a file: a preset, which is a recipe but for its loss, with a method, which is a loss and what belongs to it.

    recipes/cub112/base.toml        the preset cub112; its _proxies.toml is for losses that have proxies
    recipes/methods/fast-ap.toml    the method fast-ap
    cub112/fast-ap                  the two together, as if there were a file that extends both

Where there is a file of that name, the file is the recipe.
"""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

from suprank.training.config import LossConfig

if TYPE_CHECKING:
    from pathlib import Path

METHODS = "methods"
BASE = "base"
_PROXIES = "_proxies"


def presets(folder: Path) -> dict[str, Path]:
    """The base of every preset in this folder of recipes, by the name of the preset."""
    return dict(sorted((base.parent.name, base) for base in folder.glob(f"*/{BASE}.toml")))


def methods(folder: Path) -> dict[str, Path]:
    """The file of every method, by its name."""
    return dict(sorted((file.stem, file) for file in (folder / METHODS).glob("*.toml")))


def compositions(folder: Path) -> list[str]:
    """Every PRESET/METHOD, whether it has a file or not."""
    return [f"{preset}/{method}" for preset in presets(folder) for method in methods(folder)]


def composed(name: str, folder: Path) -> str | None:
    """The text of the recipe called PRESET/METHOD, which has no file; None where there is no such preset or method."""
    preset, _, method = name.partition("/")
    base, own = presets(folder).get(preset), methods(folder).get(method)
    if base is None or own is None:
        return None
    parts = [f"{preset}/{BASE}", f"{METHODS}/{method}"]
    if _has_proxies(own) and base.with_stem(_PROXIES).is_file():
        parts.insert(1, f"{preset}/{_PROXIES}")
    setting, loss = (header(file.read_text(encoding="utf-8")) for file in (base, own))
    title, _, what = sentence(loss).partition(": ")
    lines = [
        f"{title} on {sentence(setting).partition(': ')[0]}: {what}.",
        "",
        *setting.split("\n\n")[1].replace("METHOD", method).splitlines(),
        "",
        "Put together of a preset and a method, which say more:",
        "",
        *(f"  suprank recipes {part}" for part in parts),
    ]
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    return f"{comment}\n\nextends = {json.dumps(parts)}\n"


def header(text: str) -> str:
    """The comment a recipe opens with, without its #."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines)


def sentence(header: str) -> str:
    """The first sentence of a header, in one line and without its full stop."""
    return header.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].removesuffix(".")


def _has_proxies(method: Path) -> bool:
    return LossConfig.model_validate(tomllib.loads(method.read_text(encoding="utf-8"))["loss"]).has_proxies
