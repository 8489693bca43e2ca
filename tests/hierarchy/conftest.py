"""Projects by the hundred."""

import pytest

from suprank.hierarchy import project


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    """What a power cut would leave is not tested; a killed process loses nothing that was written."""
    monkeypatch.setattr(project, "SYNCHRONOUS", "OFF")
