"""The folder of a head while it is trained: a lock, checkpoints, and at the end the head itself."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from suprank.files.locking import lock_folder
from suprank.files.outputs import refuse_foreign_files
from suprank.models.head import SETTINGS
from suprank.training import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINTS = "checkpoints"
SECONDS = 30.0
"""A checkpoint is due if so many seconds have passed since the last."""


class HeadFolder(ExitStack):
    """Holds the lock of a folder. `settings` identify the training, so that a checkpoint of another one is refused."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        super().__init__()
        self.path, self._settings = path, settings
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        refuse_finished(self.path)
        refuse_foreign_files(self.path, CHECKPOINTS, "a head", "name another folder")
        self.enter_context(lock_folder(self.path, "training", "wait for it, or name another folder"))
        return self

    def load(self) -> dict[str, Any] | None:
        """The state of the newest checkpoint; None if there is none."""
        found = checkpoint.load_newest(self.path / CHECKPOINTS, warn=lambda _: None)
        if found is None:
            return None
        state = found[0]
        saved = json.loads(state["settings"])
        changes = [
            f"{key} was {saved.get(key)!r} and is {value!r}" for key, value in self._settings.items() if saved.get(key) != value
        ]
        if changes:
            raise ValueError(
                f"{self.path} has the checkpoint of another training: {'; '.join(changes)}. Give the same settings to "
                f"continue it; to start anew, name another folder, or delete this one."
            )
        return state

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return time.monotonic() - self._last > SECONDS

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint after `step` steps of all seeds together."""
        checkpoint.save(self.path / CHECKPOINTS, step, {"settings": json.dumps(self._settings), **state}, keep=2)
        self._last = time.monotonic()

    def finish(self) -> None:
        """Remove the checkpoints, when the head is written and its result shown: until then the same call continues."""
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)


def refuse_finished(folder: Path) -> None:
    """Raise a `FileExistsError` if the folder has a head whose training is finished: there are no checkpoints any more."""
    if (folder / SETTINGS).is_file() and checkpoint.newest_step(folder / CHECKPOINTS) is None:
        raise FileExistsError(f"{folder} already has a head; name another folder, or delete it.")
