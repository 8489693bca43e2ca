"""The folder of a run: what it was asked to do, where and with what, and what it has come to.

    recipe.toml          the resolved recipe; what makes a folder a run's
    environment.json     versions, machine, command and git state of every session: the first, and each that resumed it
    metrics.jsonl        what was measured on the way (suprank.training.loggers)
    checkpoints/         to go on from (suprank.training.checkpoint)
    reports/             of evaluations
    best/, model/        the best and the last model, as `Embedder.save` writes them
    bad-batch-step-N.json  images of a batch whose loss was not finite
    result.json          written last, when all is done

One process at a time may train into it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from suprank import __version__
from suprank.files.atomic import TEMPORARY_FILE, write_atomically
from suprank.files.folders import ForeignFilesError, refuse_foreign_files
from suprank.system.platforms import file_locks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    from suprank.training.config import TrainConfig

RECIPE, ENVIRONMENT, METRICS, RESULT, LOCK = "recipe.toml", "environment.json", "metrics.jsonl", "result.json", ".lock"

MAY_DIFFER = {
    *("engine.accelerator", "engine.devices", "engine.nodes", "engine.strategy"),
    *("data.workers", "data.root", "data.hold"),
}
TABLES_THAT_MAY_DIFFER = ("evaluation", "checkpoint", "logging")
"""Entries of a recipe that do not change what is learned, so that a resumed run may have others."""

_PACKAGES = ("torch", "torchvision", "timm", "lightning", "numpy")


class RunFolderError(ValueError):
    """A folder that cannot be trained into, or not with this recipe."""


class RunFolder:
    """The names of things in the folder of a run. `open` makes it ready to train into; without it, it is for reading."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.reports = self.path / "reports"
        self.best = self.path / "best"
        self.model = self.path / "model"
        self._lock: IO[str] | None = None

    @classmethod
    def open(
        cls, path: str | PathLike[str], config: TrainConfig, *, resume: bool, command: Sequence[str] | None = None
    ) -> RunFolder:
        """Make the folder, or with `resume` go on with the run in it, and keep other processes out until `close`.

        Refused are a folder in which another process trains; one that holds a run, without `resume` (unless that never began,
        because its images were missing, for example); a run of another recipe,
        but for entries that do not change what is learned; and a folder of other things. `command` is what to write down as
        the command line; by default that of this process.
        """
        run = cls(path)
        run._make()
        run._take_lock()
        try:
            run._begin(config, resume, sys.argv if command is None else command)
        except BaseException:
            run.close()
            raise
        return run

    def close(self) -> None:
        """Let others train here."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def finished(self) -> dict[str, Any] | None:
        """What `finish` was given, NaN as None; None while the run is not finished."""
        file = self.path / RESULT
        return _read_json(file) if file.is_file() else None

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write down what the run has come to. The file is there when all others are."""
        write_atomically(self.path / RESULT, json_bytes(result, indent=2))

    def bad_batch(
        self, step: int, epoch: int, rows: Iterable[int], paths: Iterable[str], values: Mapping[str, float | str]
    ) -> Path:
        """Write down the images of a bad batch: their rows among the training images, their paths, and what was found."""
        file = self.path / f"bad-batch-step-{step}.json"
        images = [{"row": int(row), "path": str(path)} for row, path in zip(rows, paths, strict=True)]
        # As text, since JSON has no numbers for these, and whether it was NaN or infinite is what one wants to know.
        told = {name: value if isinstance(value, str) or math.isfinite(value) else str(value) for name, value in values.items()}
        write_atomically(file, json_bytes({"step": step, "epoch": epoch, "values": told, "images": images}, indent=2))
        return file

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_foreign_files(self.path, RECIPE, "a run", "name another folder (--out)")
        except ForeignFilesError as error:
            raise RunFolderError(str(error)) from None
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _take_lock(self) -> None:
        try:
            file = (self.path / LOCK).open("a+", encoding="utf-8")
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            # Of this process alone: a lock by flock would pass on to the processes that decode images, and outlive a kill by
            # the seconds that those take to notice.
            if fcntl := file_locks(self.path):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise RunFolderError(f"{holder} is training in {self.path}; wait for it, or name another folder (--out).") from None
        except OSError as error:
            file.close()
            raise _unwritable(self.path, error) from error
        self._lock = file
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()

    def _begin(self, config: TrainConfig, resume: bool, command: Sequence[str]) -> None:
        from suprank.training.recipe import read_recipe, to_toml

        recipe = self.path / RECIPE
        changes: dict[str, list[Any]] = {}
        if recipe.is_file() and self._has_begun():
            if not resume:
                raise RunFolderError(f"{self.path} holds a run; --resume goes on with it, or name another folder (--out).")
            changes = {name: [old, new] for name, old, new in differences(read_recipe(recipe), config)}
            self._refuse(name_and_values for name_and_values in changes.items() if not _may_differ(name_and_values[0]))
        try:
            for file in self.path.rglob(".*.tmp"):
                if TEMPORARY_FILE.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            write_atomically(recipe, to_toml(config).encode())  # first: from now on the folder is known as a run's
            for folder in (self.checkpoints, self.reports):
                folder.mkdir(exist_ok=True)
            self._note_session(command, changes)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _has_begun(self) -> bool:
        """Whether there is anything to lose; not so where the images were missing, say, and training never began."""
        written = (self.path / name for name in (METRICS, RESULT))
        return any(self.checkpoints.glob("*.pt")) or any(file.is_file() and file.stat().st_size for file in written)

    def _refuse(self, changes: Iterable[tuple[str, list[Any]]]) -> None:
        told = [f"{name} was {old!r} and is {new!r}" for name, (old, new) in changes]
        if told:
            raise RunFolderError(
                f"{self.path} holds a run of another recipe, which cannot be resumed with this one: {'; '.join(told)}. "
                "Give the same again, or name another folder (--out)."
            )

    def _note_session(self, command: Sequence[str], changes: Mapping[str, list[Any]]) -> None:
        file = self.path / ENVIRONMENT
        sessions = _read_json(file)["sessions"] if file.is_file() else []
        session = {**environment(), "command": list(command), "changes": dict(changes)}
        write_atomically(file, json_bytes({"sessions": [*sessions, session]}, indent=2))


def differences(old: TrainConfig, new: TrainConfig) -> Iterator[tuple[str, Any, Any]]:
    """The entries in which two recipes differ: dotted name, old and new value."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    for table, entries in after.items():
        for name, value in entries.items():
            if before[table][name] != value:
                yield f"{table}.{name}", before[table][name], value


def environment() -> dict[str, Any]:
    """What a run may depend on beside its recipe: time, machine, versions, GPUs, and the git state of the current directory."""
    import torch

    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {"suprank": __version__, **{name: _version(name) for name in _PACKAGES}},
        "cuda": torch.version.cuda,
        "gpus": gpus,
        "git": git_state(Path.cwd()),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, branch, and whether files that git knows were changed; None outside of a repository, or without git.

    `diff_sha256` is of `git diff HEAD`: equal for equal changes. Files that git does not know are not looked at, because run
    folders may be among them.
    """
    if _git(folder, "rev-parse", "--is-inside-work-tree") != b"true":
        return None
    commit, branch = _git(folder, "rev-parse", "--verify", "HEAD"), _git(folder, "symbolic-ref", "--short", "HEAD")
    diff = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-color", "--binary")
    return {
        "commit": None if commit is None else commit.decode(),
        "branch": None if branch is None else branch.decode(errors="replace"),
        "dirty": bool(diff),
        "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
    }


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """A value as JSON and a line break, with null for what is not finite.

    Example:
        >>> json_bytes({"AP": float("nan"), "ks": (1, 10)})
        b'{"AP": null, "ks": [1, 10]}\\n'
    """
    return (json.dumps(_finite(value), allow_nan=False, indent=indent) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_bytes())
    except ValueError as error:
        raise RunFolderError(f"{file} is no JSON ({error}); delete it, or restore it from a copy.") from error


def _may_differ(name: str) -> bool:
    return name in MAY_DIFFER or name.split(".")[0] in TABLES_THAT_MAY_DIFFER


def _unwritable(path: Path, error: OSError) -> OSError:
    return OSError(f"{path} cannot be written to ({error.strerror}); name another folder (--out).")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git answers; None where it has no answer, or is not there."""
    command = ["git", "-C", str(folder), *arguments]
    # Without optional locks it writes nothing: another git at work beside us is not disturbed.
    variables = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, env=variables, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
