"""Datasets of the Hugging Face Hub: list the files of a repository, and download those of some splits into its cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from suprank.data.importers.dataset_files import (
    DatasetFiles,
    NoImageFilesError,
    converted_files,
    files_in_folder,
    manifest_splits,
    read_card,
    select_files,
)
from suprank.files.atomic import write_atomically

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CONVERTED = "refs/convert/parquet"
"""The branch on which the Hub keeps a Parquet copy of datasets in other formats."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_AT_ONCE = 8  # downloads

Progress = Callable[[int, int], None]
"""Called with (bytes so far, bytes in all)."""


class _StoppedError(Exception):
    """A download was stopped."""


class _OfflineError(Exception):
    """The Hub cannot be reached."""


def download_dataset(
    repository: str,
    *,
    config: str | None = None,
    splits: Sequence[str] | None = None,
    revision: str | None = None,
    progress: Progress = lambda done, total: None,
) -> tuple[Path, DatasetFiles, list[str]]:
    """Download the files of a dataset's splits; return their folder, the files, and sentences on what was chosen.

    Files go to the cache of `huggingface_hub`, so that a download continues where it stopped, and a second one takes no time.
    A repository without Parquet files, .tar shards or images is read from the copy that the Hub keeps on `CONVERTED`. If the
    Hub cannot be reached, what the cache has of this revision is used.
    """
    from huggingface_hub import HfApi

    api = HfApi(library_name="suprank")
    try:
        with _explain_errors(repository, revision):
            branch, commit, sizes, files = _select(api, repository, config, revision)
    except _OfflineError as error:
        found = _cached_files(repository, config, revision)
        if found is None:
            raise ConnectionError(
                f"{repository} is not a local file or folder; as a dataset of the Hub it is not in the cache, and the Hub "
                f"cannot be reached ({error}). Correct the path, or connect to the network."
            ) from error
        folder, files = found
        mapping, sentences = manifest_splits(files.splits, splits, repository)
        sentences.insert(0, f"the Hub cannot be reached ({error}); used what its cache has: {folder}")
        return folder, files.select(mapping), sentences
    mapping, sentences = manifest_splits(files.splits, splits, repository)
    files = files.select(mapping)
    try:
        with _explain_errors(repository, revision):
            folder = _download(api, repository, commit, {name: sizes[name] for name in files.names()}, progress)
    except _OfflineError as error:  # what the cache has may be a part of a split
        raise ConnectionError(f"the download of {repository} was interrupted ({error}); start it again to continue.") from error
    if commit != revision:
        _write_reference(repository, branch, commit)
    return folder, files, sentences


def _select(
    api: HfApi, repository: str, config: str | None, revision: str | None
) -> tuple[str, str, dict[str, int], DatasetFiles]:
    """The branch and commit to download from, the sizes of all files there, and the files of each split."""
    branch = revision or "main"
    commit, sizes = _list_files(api, repository, branch)
    try:
        card = read_card(Path(_fetch(api, repository, commit, "README.md"))) if "README.md" in sizes else {}
        files = select_files(sizes, card, config, repository)
    except NoImageFilesError as error:
        branch = CONVERTED
        commit, sizes, files = _list_converted_files(api, repository, revision, config, error)
    return branch, commit, sizes, files


def _download(api: HfApi, repository: str, commit: str, sizes: Mapping[str, int], progress: Progress) -> Path:
    """Download files, given by their sizes, into the cache; return the folder that they are in."""
    total, done, lock, stop = sum(sizes.values()), 0, Lock(), Event()

    def advance(count: int) -> None:
        nonlocal done
        if stop.is_set():  # Ctrl-C, or another download failed: what has come of this file stays in the cache
            raise _StoppedError
        with lock:
            done += count
            progress(min(done, total), total)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            fetched = list(pool.map(lambda name: _fetch(api, repository, commit, name, advance), sizes))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Path(fetched[0]).parents[next(iter(sizes)).count("/")]


def _list_files(api: HfApi, repository: str, revision: str) -> tuple[str, dict[str, int]]:
    """The commit of a revision, and the size of each of its files."""
    commit = api.repo_info(repository, repo_type="dataset", revision=revision).sha
    assert commit is not None
    tree = api.list_repo_tree(repository, repo_type="dataset", revision=commit, recursive=True)
    return commit, {one.path: size for one in tree if (size := getattr(one, "size", None)) is not None}


def _list_converted_files(
    api: HfApi, repository: str, revision: str | None, config: str | None, error: NoImageFilesError
) -> tuple[str, dict[str, int], DatasetFiles]:
    from huggingface_hub.errors import RevisionNotFoundError

    if revision is not None:
        raise error
    try:
        commit, sizes = _list_files(api, repository, CONVERTED)
    except RevisionNotFoundError:
        raise NoImageFilesError(f"{error} The Hub has no Parquet copy of it either.") from None
    return commit, sizes, converted_files(sizes, config, f"{repository} at {CONVERTED}")


def _fetch(api: HfApi, repository: str, commit: str, name: str, advance: Callable[[int], None] = lambda count: None) -> str:
    """Download a file, or find it in the cache. `advance` is told of bytes as they come."""
    from tqdm.auto import tqdm

    seen = 0

    class Bytes(tqdm):  # type: ignore[misc]
        """Passes the bytes on, instead of drawing a bar for each of many files."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{key: one for key, one in options.items() if key != "name"} | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            nonlocal seen
            seen += int(n or 0)
            advance(int(n or 0))

    path = str(api.hf_hub_download(repository, name, repo_type="dataset", revision=commit, tqdm_class=Bytes))
    advance(Path(path).stat().st_size - seen)  # all of it, if it was in the cache
    return path


def _cache(repository: str) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    return Path(HF_HUB_CACHE, repo_folder_name(repo_id=repository, repo_type="dataset"))


def _write_reference(repository: str, revision: str, commit: str) -> None:
    """Note the commit of a branch in the cache, as huggingface_hub does, so that it is found without a network."""
    reference = _cache(repository) / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(reference, commit.encode())


def _cached_files(repository: str, config: str | None, revision: str | None) -> tuple[Path, DatasetFiles] | None:
    """The folder and files that the cache has of a revision; None if it has none."""
    cache = _cache(repository)
    for name in [revision] if revision else ["main", CONVERTED]:
        reference = cache / "refs" / name
        folder = cache / "snapshots" / (reference.read_text().strip() if reference.is_file() else name)
        if name == CONVERTED and folder.is_dir():
            names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")]
            return folder, converted_files(names, config, f"{repository} at {CONVERTED}")
        if folder.is_dir():
            with suppress(NoImageFilesError):
                return folder, files_in_folder(folder, config)
    return None


@contextmanager
def _explain_errors(repository: str, revision: str | None) -> Iterator[None]:
    """Raise the errors of `huggingface_hub` in a sentence with a way out."""
    from huggingface_hub import constants, errors

    transport: Any = errors.HfHubHTTPError.__mro__[1]  # the base of all errors of its HTTP client, of which there are several
    address = f"{constants.ENDPOINT}/datasets/{repository}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{repository} is gated: accept its conditions at {address}, then log in with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ValueError(
            f"{repository} has no revision {revision!r}; give a branch, a tag or a commit of {address}."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{repository} is neither a local file or folder nor a dataset of the Hub that you may read; check the name, and "
            f"log in with `hf auth login` if it is private."
        ) from error
    except errors.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise PermissionError(
                f"{repository} cannot be read ({str(error).splitlines()[0]}); log in with a token that may read it: "
                "`hf auth login`, or HF_TOKEN."
            ) from error
        raise OSError(f"{repository}: the Hub answered {str(error).splitlines()[0]}; try again later.") from error
    except errors.HFValidationError as error:
        raise ValueError(f"{repository!r} is not the name of a dataset: {error}") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, transport) as error:
        reason = "HF_HUB_OFFLINE is set" if isinstance(error, errors.OfflineModeIsEnabled) else type(error).__name__
        raise _OfflineError(reason) from error
