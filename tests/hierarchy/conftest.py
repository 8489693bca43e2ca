"""Settings for tests that create hundreds of projects."""

import pytest

from suprank.hierarchy import project


@pytest.fixture(autouse=True)
def no_disk_sync(monkeypatch):
    """Do not wait for the disk. Power cuts are not tested, and a killed process loses nothing that was written."""
    monkeypatch.setattr(project, "SYNCHRONOUS", "OFF")
