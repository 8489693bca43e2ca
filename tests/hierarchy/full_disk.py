"""A disk without room."""

from contextlib import contextmanager

import pytest

from suprank.hierarchy import Project


@contextmanager
def full_disk():
    """The files of projects cannot grow by a page while this lasts."""
    connected = Project._connection

    @contextmanager
    def limited(self):
        with connected(self) as db:
            db.execute("PRAGMA max_page_count = 1")  # rounded up to what is in use
            yield db

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Project, "_connection", limited)
        yield
