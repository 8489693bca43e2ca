"""Selections of images that people saved under a name, in a CSV file beside the tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from suprank.explorer.shared_table import NotSavedError, SharedTable

if TYPE_CHECKING:
    from pathlib import Path

MAX_NAME = 100
"""The longest name of a selection, in characters."""


class SavedSelection(NamedTuple):
    """A name, and the query string of the page that shows the selection."""

    name: str
    query: str


class SavedSelections:
    """The saved selections in a file, which other processes may change too; without a file there are none."""

    def __init__(self, file: Path | None) -> None:
        self._table = None if file is None else SharedTable(file, SavedSelection._fields)

    def all(self) -> list[SavedSelection]:
        """The selections in alphabetical order."""
        rows = [] if self._table is None else self._table.rows()
        return sorted((SavedSelection(*row) for row in rows), key=lambda one: one.name.casefold())

    def save(self, name: str, query: str) -> None:
        """Save a selection; ValueError for a bad name or one that is taken, NotSavedError if it cannot be written."""
        name = " ".join(name.split())
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise ValueError(f"The name of a selection has 1 to {MAX_NAME} characters; write one.")

        def added(rows: list[list[str]]) -> list[list[str]]:
            if any(row[0] == name for row in rows):
                raise ValueError(f"There is already a selection called {name!r}; delete it first, or choose another name.")
            return [*rows, [name, query]]

        self._writable().update(added)

    def delete(self, name: str) -> None:
        """Delete a selection; one that is gone already is no error."""
        self._writable().update(lambda rows: [row for row in rows if row[0] != name])

    def _writable(self) -> SharedTable:
        if self._table is None:
            raise NotSavedError("there is no file to keep selections in; start `suprank explore DATA --tags FILE`.")
        return self._table
