"""What `suprank embed` wrote, as `suprank evaluate` takes it; says on stderr what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.cli import terminal
from suprank.embedding.query_gallery import column, ranked_parts, ranked_sides
from suprank.embedding.result import PARTS, read_embedded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from suprank.embedding.query_gallery import Sides
    from suprank.embedding.result import EmbeddedPart
    from suprank.evaluation import GroundTruth


def read_folder(folder: Path, levels: Sequence[str]) -> Sides:
    """The parts of a folder that are ranked against each other: see `ranked_parts`.

    Says on stderr which parts and how many broken images are left out. A part that was begun and not finished is an error, not
    a part left out.
    """
    there = [part for part in PARTS if (folder / part).is_dir()]
    chosen = ranked_parts(there)
    for part in there:
        if part not in chosen:
            terminal.echo(f"{part} is left out: {' against '.join(chosen)} is evaluated", err=True)
    parts = {name: _part(folder, name) for name in chosen}
    return ranked_sides({name: (part.embeddings, part.items) for name, part in parts.items()}, levels, about=str(folder))


def judged_by(folder: Path, ground_truth: GroundTruth) -> tuple[NDArray[Any], NDArray[Any]]:
    """Embeddings of queries and gallery in the order in which a revisited dataset's file numbers them; distractors after."""
    found = []
    for name, expected in (("query", ground_truth.queries), ("gallery", ground_truth.items)):
        part = read_embedded(folder, name)
        ids = column(part.items, "id") or []
        if part.broken or tuple(ids[: len(expected)]) != expected:
            raise ValueError(
                f"{folder / name} does not hold the {len(expected):,} images of the ground truth, in its order, all whole; "
                f"embed a manifest of `suprank data import` roxford5k or rparis6k, made from this very file."
            )
        found.append(part.embeddings)
    return found[0], found[1]


def _part(folder: Path, name: str) -> EmbeddedPart:
    part = read_embedded(folder, name)
    if part.broken:
        terminal.echo(f"{name}: {part.broken:,} broken images are left out", err=True)
    return part
