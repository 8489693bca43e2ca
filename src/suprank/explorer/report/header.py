"""The header of the page: the data, and the models that made the embeddings, side by side if there are two."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from suprank.explorer.findings.training_run import read_log
from suprank.explorer.report.table_sections import recipe_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suprank.evaluation.provenance import Provenance
    from suprank.evaluation.retrieval_data import RetrievalData

READING = "Interpolation, precision"
NOT_COMPARABLE = ("Backbone", "Image size", "Resize", READING)
"""Facts that make a comparison unfair if they differ; losses, epochs, dates and the width of the head may differ."""

UNKNOWN, NOT_TRAINED = "not recorded", "not trained"
HEAD, NO_HEAD = "Head", "none"


@dataclass(frozen=True)
class Column:
    """A fact about each of two models. `differs` marks one that should be equal in a fair comparison and is not."""

    name: str
    values: tuple[str, ...]
    differs: bool


@dataclass(frozen=True)
class Header:
    """Facts about the data, and about the model if there is one; two models have columns."""

    facts: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...] = ()


def header(sources: Sequence[RetrievalData], further: Sequence[tuple[str, str]] = ()) -> Header:
    """The header of one or two; `further` facts are added to those of the data."""
    facts = [*data_facts(sources[0]), *further]
    models = [model_facts(data) for data in sources]
    if len(sources) == 1:
        return Header((*facts, *models[0].items()))
    columns = []
    for name in dict.fromkeys(name for model in models for name in model):
        values = tuple(model.get(name, NO_HEAD if name == HEAD else UNKNOWN) for model in models)
        differs = name in NOT_COMPARABLE and UNKNOWN not in values and len(set(values)) > 1
        if differs or name != READING:
            columns.append(Column(name, values, differs))
    return Header(tuple(facts), tuple(columns))


def data_facts(data: RetrievalData) -> list[tuple[str, str]]:
    """Name of the data, numbers of images and classes."""
    queries, items = len(data.queries), len(data.items)
    ranked = f"{items:,} images, each a query" if data.gallery is None else f"{queries:,} queries, {items:,} items"
    classes = ", ".join(
        f"{len(np.unique(column[column >= 0])):,} {level}"
        for level, column in zip(data.levels, data.items.labels.T, strict=True)
    )
    facts = [("Test images", ranked), ("Classes", classes)]
    recipe = (data.origin.recipe or {}).get("data", {})
    manifest = recipe.get("tests", {}).get(data.origin.test) or recipe.get("manifest")
    return [("Data", recipe_value(manifest)), *facts] if manifest else facts


def model_facts(data: RetrievalData) -> dict[str, str]:
    """The network, how it read the images, and its training, as far as they are known."""
    recipe = data.origin.recipe or {}
    facts = {} if data.origin.made_by is None else _network_facts(data.origin.made_by)
    facts["Dimensions"] = f"{data.items.embeddings.dim:,}"
    if data.origin.frozen:
        return facts | {"Loss": NOT_TRAINED, "Epochs": "0", "Trained": "–"}
    for title, table, entry in (("Loss", "loss", "name"), ("Epochs", "run", "epochs")):
        if entry in recipe.get(table, {}):
            facts[title] = recipe_value(recipe[table][entry])
    date = _training_date(data)
    return facts | {"Trained": date} if date else facts


def _network_facts(made_by: Provenance) -> dict[str, str]:
    reading = [made_by.interpolation, "fast JPEG decoding" if made_by.fast_jpeg else "", made_by.precision]
    if made_by.decoder != "pil":
        reading.insert(2, f"decoder {made_by.decoder}")
    if made_by.scales != (1.0,):
        reading.append(f"scales {', '.join(f'{scale:g}' for scale in made_by.scales)}")
    head = {HEAD: made_by.head[:12]} if made_by.head else {}
    return {
        "Backbone": made_by.backbone,
        "Parameters": f"{made_by.parameters / 1e6:.1f} M",
        **head,
        "Image size": f"{made_by.size} pixels",
        "Resize": _resize(made_by.resize, made_by.squash),
        READING: ", ".join(text for text in reading if text),
    }


def _resize(pixels: int, squash: bool) -> str:
    return f"{'both sides' if squash else 'short side'} to {pixels}" if pixels else "none"


def _training_date(data: RetrievalData) -> str | None:
    """The day (UTC) of the last logged line; today's date would make every page different."""
    times = [line["time"] for line in read_log(data) if isinstance(line.get("time"), int | float)]
    return datetime.fromtimestamp(max(times), UTC).strftime("%Y-%m-%d") if times else None
