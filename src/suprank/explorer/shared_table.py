"""A small CSV file that people read, and that several processes may change at the same time."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from suprank.files.atomic import DiskFullError, own_file, write_atomically
from suprank.files.locking import lock_folder
from suprank.files.spreadsheets import csv_bytes, original_text
from suprank.files.tables import MalformedError, check_header, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

WAIT_SECONDS = 10.0
"""How long a change waits for another process that is changing the file."""


class NotSavedError(OSError):
    """A change was not saved. The message says why, and what to do."""


class SharedTable:
    """A CSV file with these columns. Changes are made under a lock and written atomically, so that none is lost.

    Example:
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = SharedTable(pathlib.Path(folder) / "tags.csv", ("path", "tags"))
        ...     version = table.update(lambda rows: [*rows, ["a.jpg", "blurry"]])
        ...     table.rows()
        [['a.jpg', 'blurry']]
    """

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self.file, self.columns = file, tuple(columns)

    @property
    def version(self) -> tuple[int, ...] | None:
        """A value that differs after every change, by whichever process; None if there is no file."""
        try:
            found = self.file.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def rows(self) -> list[list[str]]:
        """The rows, as they were given; none if there is no file. A damaged file is a `MalformedError` with its line."""
        return self._read()[1]

    def _read(self) -> tuple[list[str], list[list[str]]]:
        """The columns of the file, and the cells of ours."""
        try:
            text = own_file(self.file).read_bytes().decode("utf-8-sig")
        except (FileNotFoundError, NotADirectoryError):
            return [], []
        except UnicodeDecodeError as error:
            raise MalformedError(
                f"{self.file} is not UTF-8 text ({error.reason}); save it as UTF-8, or move it away."
            ) from None
        except OSError as error:
            raise MalformedError(f"{self.file} cannot be read ({error.strerror or error}); move it away.") from error
        found = ((line, cells) for line, cells in records(text, str(self.file), ",") if cells)
        header = [name.strip() for name in next(found, (1, [""]))[1]]
        check_header(header, str(self.file))
        for name in self.columns:
            if name not in header:
                raise MalformedError(f"{self.file} has no column {name!r}; its columns must be {', '.join(self.columns)}.")
        places = [header.index(name) for name in self.columns]
        rows = []
        for line, cells in found:
            if len(cells) != len(header):
                raise MalformedError(f"{self.file}:{line} has {len(cells)} cells, but there are {len(header)} columns.")
            rows.append([original_text(cells[place]) for place in places])
        return header, rows

    def update(self, change: Callable[[list[list[str]]], list[list[str]]]) -> tuple[int, ...] | None:
        """Hold the file's lock, save what `change` makes of its rows, and return the new version.

        Raises `NotSavedError` if the file cannot be written, if it has further columns, which would be lost, or if another
        process holds the lock for long. An error of `change` leaves the file as it is.
        """
        with self._lock():
            header, before = self._read()
            if others := [name for name in header if name not in self.columns]:
                raise NotSavedError(
                    f"{self.file} has other columns ({', '.join(others)}), which would be lost; keep them in another file."
                )
            rows = change([list(row) for row in before])
            if rows != before or self.version is None:
                try:
                    write_atomically(self.file, csv_bytes(self.columns, rows))
                except OSError as error:
                    raise self._not_saved(error) from error
            return self.version

    @contextmanager
    def _lock(self) -> Iterator[None]:
        until = time.monotonic() + WAIT_SECONDS
        while True:
            lock = lock_folder(self.file.parent, "changing", "try again", name=f".{self.file.name}.lock")
            try:
                lock.__enter__()
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise NotSavedError(f"{self.file} is being changed by another process; try again in a moment.") from error
                time.sleep(0.01)
            except OSError as error:
                raise self._not_saved(error) from error
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def _not_saved(self, error: OSError) -> NotSavedError:
        if isinstance(error, DiskFullError):
            return NotSavedError(str(error))
        return NotSavedError(
            f"{self.file} cannot be written ({error.strerror or error}); start `suprank explore DATA --tags FILE`, in a folder "
            f"that you may write to."
        )
