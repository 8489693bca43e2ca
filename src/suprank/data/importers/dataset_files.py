"""The files of a Hugging Face dataset: `datasets` finds, downloads and converts them; WebDataset shards stay as they are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suprank.data.columns import SPLITS
from suprank.files.binary import open_parquet
from suprank.files.reading import reading

if TYPE_CHECKING:
    from datasets import DatasetBuilder

Files = dict[str, list[Path]]
"""Split of the manifest → Arrow files, or .tar shards."""

_BUILDERS = {".parquet": "parquet", ".arrow": "arrow", ".tar": "webdataset"}
_IN_PLACE = {"arrow": ".arrow", "webdataset": ".tar"}
_SAVED = ("dataset_dict.json", "state.json")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_CARDS = ("README.md", ".huggingface.yaml")


def dataset_files(
    place: str,
    *,
    config: str | None = None,
    revision: str | None = None,
    splits: Sequence[str] | None = None,
    announce: Callable[[str], None] = lambda sentence: None,
) -> tuple[Files, list[str]]:
    """The Arrow files or .tar shards of each split, and sentences on what was chosen.

    `place` is a dataset of the Hub, a folder of `save_to_disk`, a folder of Parquet, Arrow or .tar files or of images, or one
    such file. `announce` is called with what will be written to the cache of `datasets` before anything is.
    """
    import datasets

    path = Path(place)
    if path.exists() and revision is not None:
        raise ValueError(f"{place} is a local {'folder' if path.is_dir() else 'file'}, which has no revisions; leave it out.")
    if any((path / name).is_file() for name in _SAVED):
        if config is not None:
            raise ValueError(f"{place} was written by save_to_disk and has no configuration {config!r}; leave it out.")
        announce(f"The Arrow cache takes nothing: images are read from {place}.")
        with _explain(place):
            saved = datasets.load_from_disk(place, keep_in_memory=False)
        return _select(_cache_files(saved), splits, place)
    try:
        builder = _builder(place, config, revision)
    except ConnectionError:
        folder = _downloaded(place, revision)
        if folder is None:
            raise
        files, sentences = dataset_files(str(folder), config=config, splits=splits, announce=announce)
        return files, [f"the Hub cannot be reached; used what was downloaded: {folder}", *sentences]
    if builder.name in _IN_PLACE:
        announce(f"The Arrow cache takes nothing: images are read from the {_IN_PLACE[builder.name]} files.")
        chosen, sentences = _select(builder.config.data_files, splits, place)
        return {split: _download(builder, place, files) for split, files in chosen.items()}, sentences
    announce(_announcement(builder, place))
    if builder.name == "parquet":
        for file in _download(builder, place, _data_files(builder)):
            with open_parquet(file):  # some that are forged end the process of pyarrow, and so of `datasets`
                pass
    with _explain(place):
        builder.download_and_prepare()
        found = _cache_files(builder.as_dataset())
    chosen, sentences = _select(found, splits, place)
    offline = [f"the Hub cannot be reached; used the cache of `datasets`: {builder.cache_dir}"]
    return chosen, [*(offline if builder.name == "cache" else ()), *sentences]


def _builder(place: str, config: str | None, revision: str | None) -> DatasetBuilder:
    """What `datasets` makes of a place. It runs no code of a dataset."""
    import datasets
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    path = Path(place)
    if path.is_file():
        if path.suffix.lower() not in _BUILDERS:
            raise ValueError(f"{place} is not a folder, nor a {', '.join(_BUILDERS)} file.")
        if config is not None:
            raise ValueError(f"{place} is a file, which has no configuration {config!r}; leave it out.")
        with _explain(place):
            return datasets.load_dataset_builder(_BUILDERS[path.suffix.lower()], data_files={"train": place})
    if not path.exists() and not _REPOSITORY.fullmatch(place):
        raise FileNotFoundError(f"{place} does not exist; give a folder, a file, or a dataset of the Hub such as org/name.")
    for card in (path / name for name in _CARDS):
        if not path.exists():
            with _explain(place, revision), suppress(EntryNotFoundError):
                card = Path(hf_hub_download(place, card.name, repo_type="dataset", revision=revision))
        _check_card(card)
    with _explain(place, revision):
        local = str(path.absolute())  # or `datasets` would take a folder called parquet for a kind of files
        builder = datasets.load_dataset_builder(local if path.exists() else place, config, revision=revision)
    if builder.name == "cache" and revision not in (None, "main", builder.hash):  # it may be another
        raise ConnectionError(f"{place}: the Hub cannot be reached, and revision {revision!r} is not in the cache.")
    return builder


def _check_card(card: Path) -> None:
    """Refuse YAML with aliases, of which a kilobyte can stand for gigabytes."""
    import yaml
    from huggingface_hub.repocard import REGEX_YAML_BLOCK

    with reading(card, "dataset card"):
        text = card.read_text(encoding="utf-8") if card.is_file() else ""
        found = REGEX_YAML_BLOCK.search(text)
        block = text if card.suffix == ".yaml" else found[2] if found else ""
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(block, Loader=yaml.SafeLoader)):
            raise ValueError("its YAML has aliases (*name), which can stand for any amount of data; write them out")


def _cache_files(loaded: Any) -> Files:
    splits = loaded if isinstance(loaded, dict) else {str(loaded.split or "train"): loaded}
    return {str(split): [Path(file["filename"]) for file in one.cache_files] for split, one in splits.items()}


def _data_files(builder: DatasetBuilder) -> list[str]:
    return [str(file) for files in (builder.config.data_files or {}).values() for file in files]


def _download(builder: DatasetBuilder, place: str, files: Sequence[str]) -> list[Path]:
    """Where files are on this machine, after a download if they are on the Hub."""
    import datasets

    if not any("://" in file for file in files):
        return [Path(file) for file in files]
    manager = datasets.DownloadManager(base_path=builder.base_path, download_config=datasets.DownloadConfig(use_etag=False))
    with _explain(place):
        return [Path(file) for file in manager.download(list(files))]


def _downloaded(repository: str, revision: str | None) -> Path | None:
    """The folder of .tar shards in the cache of huggingface_hub that has this revision; of others `datasets` has a cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with suppress(LocalEntryNotFoundError):
        folder = Path(snapshot_download(repository, repo_type="dataset", revision=revision, local_files_only=True))
        return folder if any(folder.rglob("*.tar")) else None
    return None


def _announcement(builder: DatasetBuilder, place: str) -> str:
    """What `datasets` will write to its cache."""
    cache = Path(builder.cache_dir)
    if (cache / "dataset_info.json").is_file():
        return f"The Arrow cache has this dataset already: {cache}"
    if builder.name == "imagefolder":
        return f"The Arrow cache takes paths and labels only, because images stay in their files: {cache}"
    exists = next(folder for folder in cache.parents if folder.is_dir())
    free, needed = shutil.disk_usage(exists).free, builder.info.dataset_size or _bytes(builder, place)
    return f"The Arrow cache takes about {_size(needed)} of {_size(free)} that are free: {cache}"


def _bytes(builder: DatasetBuilder, place: str) -> int:
    """The size of the files that `datasets` will convert, on this machine or on the Hub (hf://datasets/org/name@commit/file)."""
    from huggingface_hub import HfApi

    names = [name for file in _data_files(builder) if (name := file.partition(f"@{builder.hash}/")[2])]
    with _explain(place):
        remote = HfApi().get_paths_info(place, names, repo_type="dataset", revision=builder.hash) if names else ()
    return sum(getattr(one, "size", 0) for one in remote) + sum(
        Path(file).stat().st_size for file in _data_files(builder) if Path(file).is_file()
    )


def _size(number: int) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e8 else f"{number / 1e6:,.1f} MB"


# Splits


def _select(
    found: Mapping[Any, Sequence[Any]], wanted: Sequence[str] | None, about: str
) -> tuple[dict[str, list[Any]], list[str]]:
    """The files of each split of the manifest, and sentences on what was left out.

    `wanted` are names such as "train", or "validation=test" to call it by another. By default train, test, query, gallery and
    distractor keep their names, and validation becomes test if there is no test.
    """
    names = [str(name) for name in found]
    mapping = {name: name for name in names if name in SPLITS}
    if "test" not in mapping and "validation" in names:
        mapping["validation"] = "test"
    sentences = ["split validation is called test here"] if mapping.get("validation") and wanted is None else []
    if wanted is not None:
        mapping = dict(_parse_split(one, names, about) for one in wanted)
    elif not mapping:
        raise ValueError(
            f"{about} has the splits {', '.join(names)}, and a manifest has {', '.join(SPLITS)}; say which is which with "
            f"splits, such as {names[0]}=train."
        )
    elif left_out := [name for name in names if name not in mapping]:
        named = ", ".join([*mapping, f"{left_out[0]}=train"])
        sentences.append(f"left out split {', '.join(left_out)}; to use it, name all in splits: {named}")
    files: dict[str, list[Any]] = {}
    for name, split in mapping.items():
        files.setdefault(split, []).extend(found[name])
    return files, sentences


def _parse_split(text: str, names: Sequence[str], about: str) -> tuple[str, str]:
    name, _, target = text.partition("=")
    if name not in names:
        raise ValueError(f"{about} has no split {name!r}; it has {', '.join(names)}.")
    target = target or ("test" if name == "validation" else name)
    if target not in SPLITS:
        raise ValueError(
            f"split {name!r} of {about} needs a name that a manifest has ({', '.join(SPLITS)}); name it in splits as "
            f"{name}=train."
        )
    return name, target


# Errors


@contextmanager
def _explain(place: str, revision: str | None = None) -> Iterator[None]:
    """Raise what `datasets` and `huggingface_hub` raise, which can be anything, as one sentence with a way out."""
    from huggingface_hub import constants, errors

    address = f"{constants.ENDPOINT}/datasets/{place}"
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        causes = [error]
        while (
            cause := causes[-1].__cause__ or (None if causes[-1].__suppress_context__ else causes[-1].__context__)
        ) is not None:
            causes.append(cause)  # type: ignore[arg-type]

        def is_any(*kinds: type) -> bool:
            return any(isinstance(one, kinds) for one in causes)

        status = next((one.response.status_code for one in causes if isinstance(one, errors.HfHubHTTPError)), None)
        lines = str(causes[-1]).strip().splitlines() or [type(causes[-1]).__name__]
        reason = " ".join(lines[: 1 if status else 2]).rstrip(".")
        if is_any(errors.GatedRepoError):
            text = f"{place} is gated: accept its conditions at {address}, then log in with `hf auth login`."
            raise PermissionError(text) from error
        if is_any(errors.RevisionNotFoundError):
            raise ValueError(f"{place} has no revision {revision!r}; give a branch, a tag or a commit of {address}.") from error
        if is_any(errors.RepositoryNotFoundError):
            raise FileNotFoundError(
                f"{place} is neither a local file or folder nor a dataset of the Hub that you may read; check the name, and "
                "log in with `hf auth login` if it is private."
            ) from error
        if status in (401, 403):
            raise PermissionError(
                f"{place} cannot be read ({reason}); log in with a token that may read it: `hf auth login`, or HF_TOKEN."
            ) from error
        if status is not None or is_any(ConnectionError, errors.LocalEntryNotFoundError) or _is_transport(causes):
            raise ConnectionError(
                f"{place} is no local file or folder, and the Hub cannot be reached ({reason}). Correct the path, or connect "
                "and start again: what was downloaded is kept."
            ) from error
        raise ValueError(
            f"`datasets` cannot read {place}: {reason}; correct its files, or write them again with `datasets`."
        ) from error


def _is_transport(causes: Iterable[BaseException]) -> bool:
    """Whether the HTTP client of huggingface_hub, of which there are several, raised one of these."""
    return any(type(one).__module__.startswith(("httpx", "httpcore", "requests")) for one in causes)
