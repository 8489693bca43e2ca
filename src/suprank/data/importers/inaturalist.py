"""iNaturalist 2018 with the species-disjoint split of Smooth-AP: two levels (base), or all seven ranks (full)."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from suprank.data.importers.base import Importer, line_error, manifest_from_rows, numbered_lines, require_file
from suprank.files.reading import reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from suprank.data.manifest import Manifest

_LISTS = """\
  Inat_dataset_splits/Inaturalist_train_set1.txt, Inaturalist_test_set1.txt    one path a line (Smooth-AP's split)
  train_val2018/Aves/2761/*.jpg, ...                                           images, by super-category and species id
"""
_PAGES = "Project pages: Smooth-AP (VGG, Oxford) for the split; iNaturalist 2018 Competition (visipedia/inat_comp) for the rest"
_LAYOUT_BASE = f"""\
{_LISTS}  categories.json, or train2018.json                                           optional: names of the species
{_PAGES}"""
_LAYOUT_FULL = f"""\
{_LISTS}  categories.json, or train2018.json                                           names of all ranks; see below
train2018.json has made-up names, to hinder look-ups; categories.json, published later, has the real ones and is preferred.
{_PAGES}"""

RANKS = ("genus", "family", "order", "class", "phylum", "kingdom")
_PATH = re.compile(r"(?:.*/)?([^/]+)/(\d+)/[^/]+")


def read_base(root: Path) -> dict[str, Manifest]:
    """Species, and super-categories (13 in train): the folder above that of the species, not the field of that name in the
    JSON.

    Without `categories.json` or `train2018.json` a species is called `species 2761` after its id.
    """
    file = _categories_file(root)
    names = _taxonomy(file, ()) if file else {}
    rows = []
    for path, split, supercategory, species in _listed_images(root, "inat-base", _LAYOUT_BASE):
        name = _lookup(names, species, path, file)[0] if file else f"species {species}"
        rows.append((path, split, name, supercategory))
    return {"": manifest_from_rows(rows, ("species", "supercategory"), root, root)}


def read_full(root: Path) -> dict[str, Manifest]:
    """Species and the six ranks above.

    Species are distinguished by ids, not names, and a taxon by its name and all its ancestors: plants and animals have genera
    of the same name (the gannets, *Morus*, and the mulberries), which get their parents' names: `Morus (Moraceae)`. A blank
    rank is called `no order`, with its parent if there are several. Names are unique among all 8,142 species, so that they are
    the same in every subset.
    """
    file = _categories_file(root) or require_file(root, "train2018.json", "inat-full", _LAYOUT_FULL)
    taxa = _taxonomy(file, RANKS)
    rows = [
        (path, split, *_lookup(taxa, species, path, file))
        for path, split, _, species in _listed_images(root, "inat-full", _LAYOUT_FULL)
    ]
    return {"": manifest_from_rows(rows, ("species", *RANKS), root, root)}


def _listed_images(root: Path, name: str, layout: str) -> Iterator[tuple[str, str, str, int]]:
    """Path, split, super-category and species id of every image of the two lists."""
    for split in ("train", "test"):
        file = require_file(root, f"Inat_dataset_splits/Inaturalist_{split}_set1.txt", name, layout)
        for number, line in numbered_lines(file):
            found = _PATH.fullmatch(line)
            if found is None:
                raise line_error(file, number, line, "it should be a path such as 'train_val2018/Aves/2761/a.jpg'")
            yield line, split, found[1], int(found[2])


def _categories_file(root: Path) -> Path | None:
    return next((root / file for file in ("categories.json", "train2018.json") if (root / file).is_file()), None)


def _lookup(taxa: Mapping[int, tuple[str, ...]], species: int, path: str, file: Path) -> tuple[str, ...]:
    if species not in taxa:
        raise ValueError(f"{path} has species {species}, which {file} does not list; is it of another year?")
    return taxa[species]


def _taxonomy(file: Path, ranks: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    """Species id → its name and those of the ranks above, finest first; every name is unique at its level."""
    entries = _entries(file, ranks)
    lineage: dict[int, tuple[str, ...]] = dict.fromkeys(entries, ())
    for rank in reversed(ranks):
        raw = {species: entry[rank] or f"no {rank}" for species, entry in entries.items()}
        distinct = {(raw[species], lineage[species]) for species in entries}
        bearers = Counter(name for name, _ in distinct)
        for species, name in raw.items():
            above = lineage[species]
            lineage[species] = (f"{name} ({above[0]})" if bearers[name] > 1 and above else name, *above)
    bearers = Counter(entry["name"] for entry in entries.values())
    return {
        species: (f"{entry['name']} ({species})" if bearers[entry["name"]] > 1 else entry["name"], *lineage[species])
        for species, entry in entries.items()
    }


def _entries(file: Path, ranks: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    """The categories by id: the list under `categories` of a dataset file, or the whole of `categories.json`."""
    with reading(file, "list of categories"):
        content = json.loads(file.read_text(encoding="utf-8"))
        listed = content.get("categories") if isinstance(content, dict) else content
        if not isinstance(listed, list) or not listed:
            raise ValueError(f"{file} has no list of categories; is it another file of this name?")
        for entry in listed:
            for key in ("id", "name", *ranks):
                if key not in entry:
                    raise ValueError(
                        f"{file}: category {entry} has no {key!r}; the ranks are in the files of 2018, not of 2017."
                    )
        return {int(entry["id"]): entry for entry in listed}


INAT_BASE = Importer(
    name="inat-base",
    title="iNaturalist 2018, two levels: 461,939 photographs of 8,142 species in 14 super-categories",
    layout=_LAYOUT_BASE,
    read=read_base,
    published={
        "train": {"images": 325_846, "species": 5_690, "supercategory": 13},
        "test": {"images": 136_093, "species": 2_452},
    },
)

INAT_FULL = Importer(
    name="inat-full",
    title="iNaturalist 2018, seven levels: 461,939 photographs of 8,142 species, up to their kingdoms",
    layout=_LAYOUT_FULL,
    read=read_full,
    published={
        # The authors count 3,438 genera in train, by name alone; here genera of the same name are several, so it is left out.
        "train": {
            "images": 325_846,
            "species": 5_690,
            "family": 961,
            "order": 249,
            "class": 54,
            "phylum": 23,
            "kingdom": 5,
        },
        "test": {"images": 136_093, "species": 2_452},
    },
)
