"""Which files of a Hugging Face dataset, on the Hub or in a folder, hold its images, and which split each belongs to."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suprank.data.columns import SPLITS
from suprank.data.importers.folder import IMAGES
from suprank.files.reading import reading

PARQUET, ARROW, WEBDATASET, IMAGEFOLDER = "parquet", "arrow", "webdataset", "imagefolder"
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Files that describe the images of an imagefolder."""

_KINDS = {".parquet": PARQUET, ".arrow": ARROW, ".tar": WEBDATASET, ".zip": IMAGEFOLDER} | dict.fromkeys(IMAGES, IMAGEFOLDER)
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
    "query": ("query",),
    "gallery": ("gallery",),
    "distractor": ("distractor",),
}
_SHARD = re.compile(r"^data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*$")
_COMPRESSED_TAR = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True)
class DatasetFiles:
    """The files of a dataset by split, relative to its folder; their kind; and the classes that its card names.

    `class_names` maps columns to the names of their classes. Files of Parquet and Arrow say that themselves, as a rule.
    """

    kind: str
    splits: Mapping[str, Sequence[str]]
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """All files."""
        return [name for files in self.splits.values() for name in files]

    def select(self, mapping: Mapping[str, str]) -> DatasetFiles:
        """The files of some splits, under other names; two may get one name."""
        splits: dict[str, list[str]] = {}
        for name, target in mapping.items():
            splits.setdefault(target, []).extend(self.splits[name])
        return replace(self, splits=splits)


class NoImageFilesError(ValueError):
    """A dataset has no files that can be read here."""


def files_in_folder(folder: Path, config: str | None = None) -> DatasetFiles:
    """The files of a dataset in a local folder: saved by `save_to_disk`, or laid out as a repository of the Hub."""
    saved = [name for name in ("dataset_dict.json", "state.json") if (folder / name).is_file()]
    if saved and config is not None:
        raise ValueError(f"{folder} was written by save_to_disk and has no configuration {config!r}; leave it out.")
    if "dataset_dict.json" in saved:
        splits = _json(folder / "dataset_dict.json").get("splits", [])
        return DatasetFiles(ARROW, {split: _saved_files(folder, f"{split}/") for split in splits})
    if "state.json" in saved:
        split = _json(folder / "state.json").get("_split") or "train"
        return DatasetFiles(ARROW, {split: _saved_files(folder, "")})
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    card = folder / "README.md"
    files = select_files(names, read_card(card) if card.is_file() else {}, config, str(folder))
    _check_complete(files.names(), folder)
    return files


def _check_complete(names: Sequence[str], folder: Path) -> None:
    """Raise if some of the shards that names such as `train-00000-of-00003` promise are missing."""
    found = [one for name in names if (one := re.fullmatch(r"(.*)-(\d{5})-of-(\d{5}).*", name))]  # older names end in a hash
    present = Counter(start_and_total for start_and_total, _ in {((one[1], one[3]), one[2]) for one in found})
    for (start, total), count in sorted(present.items()):
        if count < int(total):
            raise ValueError(
                f"{folder} has {count} of the {int(total)} files {start}-*-of-{total}*; copy or download the others, or rename "
                "those you have."
            )


def _saved_files(folder: Path, below: str) -> list[str]:
    state = folder / below / "state.json"
    if not state.is_file():
        raise FileNotFoundError(f"{state} does not exist; save the dataset again with `save_to_disk`.")
    return [below + file["filename"] for file in _json(state)["_data_files"]]


def _json(path: Path) -> dict[str, Any]:
    with reading(path, "JSON file"):
        return json.loads(path.read_bytes())


def read_card(path: Path) -> dict[str, Any]:
    """The YAML at the top of a dataset card."""
    from huggingface_hub import metadata_load

    with reading(path, "dataset card"):
        return metadata_load(path) or {}


def select_files(names: Iterable[str], card: Mapping[str, Any], config: str | None, about: str) -> DatasetFiles:
    """The files of a configuration by split, from all names of a repository or folder and its card.

    Like `datasets.load_dataset`: the card may list configurations, with patterns of files for each split; otherwise files
    called `data/<split>-00000-of-00001...` name their split, then folders, then file names; without any, all are train.
    """
    try:
        return _select_files(names, card, config, about)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"README.md of {about} has configs or dataset_info of another form than `datasets` writes ({error!r}); correct it."
        ) from error


def _select_files(names: Iterable[str], card: Mapping[str, Any], config: str | None, about: str) -> DatasetFiles:
    visible = [name for name in names if not any(part.startswith((".", "__")) for part in name.split("/"))]
    data = [name for name in visible if Path(name).suffix.lower() in _KINDS or Path(name).name in METADATA]
    configs = {str(one.get("config_name", "default")): one for one in card.get("configs") or ()}
    chosen = _choose(list(configs), {name for name, one in configs.items() if one.get("default")}, config, about)
    if chosen is None:
        splits = _splits_from_names(data)
    else:
        splits = _splits_from_patterns(data, configs[chosen].get("data_files"), configs[chosen].get("data_dir"))
    kinds = Counter(
        kind for files in splits.values() for name in files if (kind := _KINDS.get(Path(name).suffix.lower())) is not None
    )
    if not kinds:
        raise NoImageFilesError(_no_files(visible, about))
    kind = kinds.most_common(1)[0][0]
    kept = {split: [name for name in files if _is_kind(name, kind)] for split, files in splits.items()}
    if kind == IMAGEFOLDER:  # a metadata file above the folders of the splits describes all of them
        placed = {name for files in kept.values() for name in files}
        shared = [name for name in data if Path(name).name in METADATA and name not in placed]
        kept = {split: files + shared for split, files in kept.items() if files}
    return DatasetFiles(kind, {split: files for split, files in kept.items() if files}, card_classes(card, chosen))


def converted_files(names: Iterable[str], config: str | None, about: str) -> DatasetFiles:
    """The files of a configuration on the branch `refs/convert/parquet`: `<config>/<split>/0000.parquet`."""
    parts = [name.split("/") for name in sorted(names) if name.endswith(".parquet") and name.count("/") == 2]
    if not parts:
        raise NoImageFilesError(f"{about} has no Parquet files.")
    chosen = _choose(list(dict.fromkeys(one for one, _, _ in parts)), set(), config, about)
    splits: dict[str, list[str]] = {}
    for one, split, file in parts:
        if one == chosen:
            splits.setdefault(split.removeprefix("partial-"), []).append(f"{one}/{split}/{file}")
    return DatasetFiles(PARQUET, splits)


def _choose(configs: Sequence[str], defaults: set[str], config: str | None, about: str) -> str | None:
    """The configuration that was asked for, or the default one; None if there are none."""
    if config is not None:
        if config not in configs:
            listed = f"it has {', '.join(configs)}" if configs else "it has none; leave it out"
            raise ValueError(f"{about} has no configuration {config!r}; {listed}.")
        return config
    if len(configs) < 2:
        return next(iter(configs), None)
    preferred = [*defaults, *(name for name in configs if name == "default")]
    if not preferred:
        raise ValueError(f"{about} has several configurations ({', '.join(configs)}); choose one with config (--config).")
    return preferred[0]


def _is_kind(name: str, kind: str) -> bool:
    if kind == IMAGEFOLDER and Path(name).name in METADATA:
        return True
    return _KINDS.get(Path(name).suffix.lower()) == kind


def _no_files(names: Sequence[str], about: str) -> str:
    compressed = [name for name in names if name.lower().endswith(_COMPRESSED_TAR)]
    if compressed:
        return f"{compressed[0]} of {about} is compressed, so it has no random access; unpack it, or make it a .tar."
    tables = [name for name in names if name.lower().endswith((".csv", ".json", ".jsonl", ".tsv"))]
    if tables:
        return (
            f"{about} has tables ({tables[0]}), but no images in Parquet, Arrow or .tar files or in folders; for images of "
            f"your own that a table lists, use `suprank data import csv`."
        )
    return f"{about} has no Parquet, Arrow or .tar files and no images."


# Splits


def _splits_from_names(names: Sequence[str]) -> dict[str, list[str]]:
    shards = {name: found[1] for name in names if (found := _SHARD.match(name))}
    if shards:
        return _group_by_split(shards)
    for folders in (True, False):
        splits = {name: split for name in names if (split := _named_split(name, folders=folders))}
        if splits:
            return _group_by_split(splits)
    return {"train": list(names)} if names else {}


def _named_split(name: str, *, folders: bool) -> str | None:
    *above, file = name.split("/")
    end = "(?:[-._ 0-9].*)?$" if folders else "[-._ 0-9]"
    for split, keywords in _KEYWORDS.items():
        pattern = re.compile(rf"(?:^|.*[-._ 0-9])(?:{'|'.join(keywords)}){end}")
        if any(map(pattern.match, above if folders else [file])):
            return split
    return None


def _group_by_split(splits: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    order = {split: place for place, split in enumerate(_KEYWORDS)}  # train first
    for name, split in sorted(splits.items(), key=lambda one: (order.get(one[1], len(order)), one)):
        grouped.setdefault(split, []).append(name)
    return grouped


def _splits_from_patterns(names: Sequence[str], data_files: Any, folder: str | None) -> dict[str, list[str]]:
    """The files that the patterns of a card's `data_files` match; without them, by the names in the folder `data_dir`."""
    below = f"{folder.strip('/')}/" if folder else ""
    inside = [name for name in names if name.startswith(below)]
    if data_files is None:
        return {
            split: [below + name for name in files]
            for split, files in _splits_from_names([n[len(below) :] for n in inside]).items()
        }
    items = data_files if isinstance(data_files, list) else [data_files]
    patterns: dict[str, list[str]] = {}
    for item in items:
        split, paths = (item["split"], item["path"]) if isinstance(item, dict) else ("train", item)
        patterns.setdefault(split, []).extend(paths if isinstance(paths, list) else [paths])
    return {
        split: [name for name in inside if any(_matches(name, below + path.removeprefix("./")) for path in paths)]
        for split, paths in patterns.items()
    }


def _matches(name: str, pattern: str) -> bool:
    from fsspec.utils import glob_translate

    return re.match(glob_translate(pattern), name) is not None


# Classes


def card_classes(card: Mapping[str, Any], config: str | None) -> dict[str, list[str]]:
    """Column → names of its classes, from `dataset_info` of a card."""
    infos = card.get("dataset_info") or []
    infos = infos if isinstance(infos, list) else [infos]
    if config is None and len(infos) == 1:
        config = infos[0].get("config_name")
    info = next((one for one in infos if one.get("config_name", "default") == (config or "default")), None)
    features = (info or {}).get("features") or []
    found = {str(one.get("name")): _card_class_names(one) for one in features if isinstance(one, dict)}
    return {name: names for name, names in found.items() if names}


def _card_class_names(feature: Mapping[str, Any]) -> list[str]:
    """The names of a feature such as {dtype: {class_label: {names: {'0': cat}}}}, or of a list of such."""
    inner = next((feature[key] for key in ("dtype", "list", "sequence", "large_list") if key in feature), None)
    if not isinstance(inner, dict):
        return []
    if "class_label" not in inner:
        return _card_class_names(inner)
    names = inner["class_label"].get("names") or []
    return [str(names[key]) for key in sorted(names, key=int)] if isinstance(names, dict) else [str(one) for one in names]


def schema_classes(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Column → names of its classes, from the features that `datasets` writes into an Arrow schema."""
    found = {name: _feature_class_names(feature) for name, feature in schema_features(metadata).items()}
    return {name: names for name, names in found.items() if names}


def schema_features(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """Column → its feature, as `datasets` writes them into an Arrow schema; nothing if there are none."""
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features") or {}
    except (ValueError, AttributeError):
        return {}
    return features if isinstance(features, dict) else {}


def _feature_class_names(feature: Any) -> list[str]:
    if isinstance(feature, list):  # a list, as older versions write it
        return _feature_class_names(feature[0]) if feature else []
    if not isinstance(feature, dict):
        return []
    if feature.get("_type") == "ClassLabel":
        return list(feature.get("names") or [])
    return _feature_class_names(feature["feature"]) if feature.get("_type") in ("List", "LargeList", "Sequence") else []


# Splits of a manifest


def manifest_splits(found: Iterable[str], wanted: Sequence[str] | None, about: str) -> tuple[dict[str, str], list[str]]:
    """Split of the dataset → split of the manifest, and sentences on what was left out.

    `wanted` are names such as "train", or "validation=test" to call it by another. By default train, test, query, gallery and
    distractor keep their names, and validation becomes test if there is no test.
    """
    names = list(found)
    if wanted is not None:
        return dict(_parse_split(one, names, about) for one in wanted), []
    mapping = {name: name for name in names if name in SPLITS}
    if "test" not in mapping and "validation" in names:
        mapping["validation"] = "test"
    left_out = [name for name in names if name not in mapping]
    if not mapping:
        listed = ", ".join(names)
        raise ValueError(
            f"{about} has the splits {listed}, and a manifest has {', '.join(SPLITS)}; say which is which with splits "
            f"(--split), such as --split {names[0]}=train."
        )
    sentences = ["split validation is called test here"] if mapping.get("validation") == "test" else []
    if left_out:
        sentences.append(
            f"left out split {', '.join(left_out)}; to use it, name all splits, such as --split "
            f"{' --split '.join([*mapping, f'{left_out[0]}=train'])}"
        )
    return mapping, sentences


def _parse_split(text: str, names: Sequence[str], about: str) -> tuple[str, str]:
    name, _, target = text.partition("=")
    if name not in names:
        raise ValueError(f"{about} has no split {name!r}; it has {', '.join(names)}.")
    target = target or ("test" if name == "validation" else name)
    if target not in SPLITS:
        raise ValueError(
            f"split {name!r} of {about} needs a name that a manifest has ({', '.join(SPLITS)}); give --split {name}=train."
        )
    return name, target
