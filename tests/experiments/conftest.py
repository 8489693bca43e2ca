import pytest

from suprank.experiments import old_runner as runner
from tests.experiments.runs import trainer_command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, empty; training is the stand-in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(runner, "train_command", trainer_command)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    return tmp_path
