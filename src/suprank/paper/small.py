"""The small sets on which every table and figure can be seen to work, in place of the paper's datasets.

glyphs and emoji are drawn on first use; for emoji, drawings of 100 MB are fetched from npm. The packs with which this project
was developed take the place of the drawn emoji where `data` names their folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from suprank.paper.contents import Columns, TableItem, small_methods

KS = (1, 2, 4, 8, 10, 16, 32, 100)  # the cut-offs of all tables


class SmallSet(NamedTuple):
    """A preset that stands in for the paper's datasets, and what shortens its training."""

    preset: str
    title: str
    epochs: int
    pack: str = ""
    stands_for: str = ""
    """The dataset of the paper whose metrics are shown, where a table has several."""


SMALL_SETS = (
    SmallSet("glyphs", "glyphs", 4, stands_for="sop"),
    SmallSet("emoji", "emoji", 7, stands_for="inat-base"),
    SmallSet("omniglot56", "Omniglot", 5, pack="omniglot35.zip", stands_for="sop"),
    SmallSet("emoji64", "emoji", 20, pack="emoji64.zip", stands_for="inat-base"),
    SmallSet("cub112", "CUB", 15, pack="cub200_s128.zip", stands_for="cub"),
)
DRAWN = ("glyphs", "emoji")
WEIGHTS = Path("weights") / "tf_efficientnet_lite0.in1k.safetensors"


def small_sets(data: Path | None) -> dict[str, SmallSet]:
    """The small sets by preset: glyphs and emoji, which are drawn; with a folder of packs, glyphs and the packs in it."""
    if data is None:
        return {one.preset: one for one in SMALL_SETS if one.preset in DRAWN}
    packs = {one.preset: one for one in SMALL_SETS if one.pack and (data / one.pack).is_file()}
    if not packs:
        names = ", ".join(one.pack for one in SMALL_SETS if one.pack)
        raise FileNotFoundError(f"{data} has none of the packs {names}; leave out data, and the images are drawn.")
    return {"glyphs": SMALL_SETS[0], **packs}


def prepare_small(small: SmallSet, data: Path | None, out: Path) -> tuple[str, ...]:
    """The overrides of a small set. A pack is imported into OUT/data once."""
    overrides = [f"run.epochs={small.epochs}", "evaluation.at_start=false", f"evaluation.ks={list(KS)}"]
    if small.pack and data is not None:
        from suprank.data.importers import CSV

        manifest = out.absolute() / "data" / f"{small.preset}.parquet"
        if not manifest.exists():
            manifest.parent.mkdir(parents=True, exist_ok=True)
            CSV(data / small.pack).manifests[""].save(manifest)
        overrides.append(f'data.manifest="{manifest}"')
        if (data / WEIGHTS).is_file():
            overrides.append(f'model.weights="{(data / WEIGHTS).absolute()}"')
    return tuple(overrides)


def small_training(method: str) -> tuple[str, tuple[str, ...]]:
    """The method and the overrides that stand in for a method which has files only for the paper's datasets."""
    method, *overrides = small_methods().get(method, [method])
    if any(word.startswith("model.backbone=") for word in overrides):
        overrides += ["model.pretrained=false"]
    return method, tuple(overrides)


def small_columns(item: TableItem, preset: str) -> Columns:
    """The columns of a table on a small set. `AP/*` stands for the AP of every coarser level, whatever its name is there."""
    small = next(one for one in SMALL_SETS if one.preset == preset)
    columns = next((one for one in item.columns if one.preset == small.stands_for), item.columns[0])
    metrics = dict.fromkeys("AP/*" if "/" in metric else metric for metric in columns.metrics)
    return Columns(preset, small.title, tuple(metrics))
