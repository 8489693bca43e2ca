"""Files under a folder or under an address of object storage (`s3://bucket/run`), as several machines can share them.

Only what object stores have is used: whole files are written, read, listed and deleted; nothing is renamed or appended to.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from suprank.files.atomic import own_file, write_atomically

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*://")
_URL_AS_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+:/")  # pathlib makes one slash of two
_DRAFT_SECONDS = 3600.0  # that an unfinished file is old before it counts as left behind


class Storage(Protocol):
    """A place for files, whose names are relative, with slashes: `test/run.json`."""

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file as a whole, over an older one."""

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless there is one; whether this call wrote it."""

    def sizes(self, folder: str) -> dict[str, int]:
        """The files of a folder by name, with their sizes in bytes."""

    def size(self, name: str) -> int | None:
        """The size of a file in bytes; None if there is none."""

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""

    def delete_drafts(self, folder: str) -> None:
        """Delete unfinished files that killed processes left in a folder, where a store has such files."""

    def address(self, name: str) -> str:
        """Where a file is, for messages."""


def is_url(place: str | os.PathLike[str]) -> bool:
    """Whether this is an address such as `s3://bucket/run` rather than a path; a drive such as `C:` is none.

    Example:
        >>> is_url("s3://bucket/run"), is_url("embeddings"), is_url("C:/run")
        (True, False, False)
    """
    return isinstance(place, str) and _URL.match(place) is not None


def local_folder(place: str | os.PathLike[str]) -> Path | None:
    """The folder of a path or of a `file://` address; None if it is elsewhere."""
    if not is_url(place):
        return Path(place)
    return Path(os.fspath(place).removeprefix("file://")) if os.fspath(place).startswith("file://") else None


def check_local(place: str | os.PathLike[str]) -> None:
    """Raise a ValueError for an address, also in a `Path`, where only files of this machine can be read."""
    text = os.fspath(place)
    if _URL_AS_PATH.match(text) and not text.startswith("file:") and not os.path.lexists(text):
        address = text if "://" in text else text.replace(":/", "://", 1)
        raise ValueError(f"{address} is not on this machine; copy it into a folder first, and name that.")


def open_storage(place: str | os.PathLike[str]) -> Storage:
    """The storage at a folder or an address that fsspec knows; a ValueError says what to install if it knows it not."""
    folder = local_folder(place)
    return FolderStorage(folder) if folder is not None else RemoteStorage(os.fspath(place))


class FolderStorage:
    """Files in a folder, on a local disk or a network drive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        try:
            return own_file(self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(own_file(path), content)

    def create(self, name: str, content: bytes) -> bool:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link is made at once, with its content, and only if the name is free: on NFS too.
        draft = path.with_name(f".{path.name}.{os.getpid()}{threading.get_ident()}.tmp")
        try:
            draft.write_bytes(content)
            os.link(draft, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            return self._create_directly(path, content)
        finally:
            draft.unlink(missing_ok=True)
        return True

    @staticmethod
    def _create_directly(path: Path, content: bytes) -> bool:
        try:
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            return False
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        found = {}
        try:
            with os.scandir(self.folder / folder) as entries:
                for entry in entries:
                    try:
                        if entry.is_file() and not entry.name.startswith("."):
                            found[entry.name] = entry.stat().st_size
                    except FileNotFoundError:  # deleted by another machine just now
                        continue
        except FileNotFoundError:
            pass
        return found

    def size(self, name: str) -> int | None:
        try:
            return (self.folder / name).stat().st_size
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def delete_drafts(self, folder: str) -> None:
        for path in (self.folder / folder).glob(".*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _DRAFT_SECONDS:  # a younger one may be of a process that is writing
                    path.unlink()

    def address(self, name: str) -> str:
        return str(self.folder / name)


class RemoteStorage:
    """Files at an address that fsspec knows. A file that is cut off by a crash, where a store writes in place, is too short."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ValueError(f"{url} cannot be opened ({error}); install the package that fsspec needs for it.") from error
        self.size("run.json")  # an address that cannot be reached is refused before hours of work

    def read(self, name: str) -> bytes | None:
        try:
            content: bytes = self._call("cat_file", self._path(name))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        self._pipe(name, content, "overwrite")

    def create(self, name: str, content: bytes) -> bool:
        try:
            self._pipe(name, content, "create")
        except FileExistsError:
            return False
        # Where creating is a look followed by a write, two machines may both have written: the one that is read is first.
        return self.read(name) == content

    def sizes(self, folder: str) -> dict[str, int]:
        self._files.invalidate_cache()
        try:
            entries = self._call("ls", self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        return {entry["name"].rpartition("/")[2]: int(entry["size"]) for entry in entries if entry["type"] == "file"}

    def size(self, name: str) -> int | None:
        self._files.invalidate_cache()
        try:
            return int(self._call("info", self._path(name))["size"])
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._call("rm_file", self._path(name))

    def delete_drafts(self, folder: str) -> None:
        pass

    def address(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _pipe(self, name: str, content: bytes, mode: str) -> None:
        path = self._path(name)
        try:
            self._call("pipe_file", path, content, mode=mode)
        except FileNotFoundError:  # a file system with folders, which object stores have not
            try:
                self._make_folders(path.rpartition("/")[0])
                self._call("pipe_file", path, content, mode=mode)
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{self.url} cannot be written ({error}); make the bucket first.") from error

    def _make_folders(self, path: str) -> None:
        """Make a folder and those above it but the first, which may be a bucket: a misspelled one is not to be made."""
        names = path.split("/")
        for depth in range(3 if path.startswith("/") else 2, len(names) + 1):
            with suppress(FileExistsError):
                self._call("mkdir", "/".join(names[:depth]), create_parents=False)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """A method of the file system; stores have exceptions of their own, which become an OSError that names the address."""
        try:
            return getattr(self._files, method)(*arguments, **options)
        except OSError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise OSError(
                f"{self.url} cannot be used ({reason}); check the address, the network and the credentials."
            ) from error
