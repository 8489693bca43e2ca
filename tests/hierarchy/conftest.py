"""Settings for tests that create hundreds of projects, and one browser for all of them."""

import pytest

from suprank.hierarchy import project
from tests.browsers import launch_browser


@pytest.fixture(autouse=True)
def no_disk_sync(monkeypatch):
    """Do not wait for the disk. Power cuts are not tested, and a killed process loses nothing that was written."""
    monkeypatch.setattr(project, "SYNCHRONOUS", "OFF")


@pytest.fixture(scope="session")
def browser():
    """Only one can run in a process."""
    with launch_browser() as started:
        yield started
