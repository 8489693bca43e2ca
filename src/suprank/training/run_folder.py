"""The folder of a run: its recipe, its environment, its checkpoints and its results.

    recipe.toml          the resolved recipe; the file by which a run's folder is known
    environment.json     versions, machine, command and git state of every session: the first, and each that resumed the run
    code/                a copy of the user's own loss and backbone, if the recipe names them (suprank.training.code_copies)
    metrics.jsonl        values of steps and evaluations (suprank.training.loggers)
    checkpoints/         to resume from (suprank.training.checkpoint)
    reports/             of evaluations
    best/, model/        the best and the last model, as `Embedder.save` writes them
    bad-batch-step-N.json  images of a batch with a NaN or infinite value
    result.json          written last, when the run is finished

A lock (.lock) keeps a second process from training into it.
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
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from suprank import __version__
from suprank.files.atomic import TEMPORARY_FILE, own_file, write_atomically
from suprank.files.outputs import ForeignFilesError, refuse_foreign_files
from suprank.files.reading import reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    from suprank.training.config import TrainConfig

RECIPE, ENVIRONMENT, METRICS, RESULT = "recipe.toml", "environment.json", "metrics.jsonl", "result.json"

MAY_DIFFER = {
    *("engine.accelerator", "engine.devices", "engine.nodes", "engine.strategy", "engine.replay_loss"),
    *("data.workers", "data.root", "data.cache_images", "data.cache_folder"),
}
TABLES_THAT_MAY_DIFFER = ("evaluation", "checkpoint", "logging")
"""Keys of a recipe that do not change what is learned, so that a resumed run may have other values."""

_PACKAGES = ("torch", "torchvision", "timm", "lightning", "numpy")


class RunFolderError(ValueError):
    """A folder that cannot be trained into, or not with this recipe."""


class NonFiniteLossError(ValueError):
    """Training stopped at a NaN or infinite value: the message says where, and what was saved."""


class RunFolder:
    """The folder of a run. `open` locks it and prepares it for training; without it, it is for reading."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.reports = self.path / "reports"
        self.best = self.path / "best"
        self.model = self.path / "model"
        self._lock: ExitStack | None = None

    @classmethod
    def open(
        cls, path: str | PathLike[str], config: TrainConfig, *, resume: bool, command: Sequence[str] | None = None
    ) -> RunFolder:
        """Create the folder, or with `resume` continue the run in it, and keep other processes out until `close`.

        Refused are a folder in which another process trains; without `resume` a folder that holds a run (unless no step was
        taken, because its images were missing, for example); a run of another recipe, except for keys that do not change what
        is learned; and a folder of other things. `command` is the command line to record, by default that of this process.
        """
        run = cls(path)
        run._create()
        run._acquire_lock()
        try:
            run._begin(config, resume, sys.argv if command is None else command)
        except BaseException:
            run.close()
            raise
        return run

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def result(self) -> dict[str, Any] | None:
        """What `write_result` wrote, with None in place of NaN; None while the run is not finished."""
        file = own_file(self.path / RESULT)
        return _read_json(file) if file.is_file() else None

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result of the run, after all other files."""
        write_atomically(self.path / RESULT, json_bytes(result, indent=2))

    def write_bad_batch(
        self, step: int, epoch: int, rows: Iterable[int], paths: Iterable[str], values: Mapping[str, float | str]
    ) -> Path:
        """List the images of a bad batch: their rows among the training images, their paths, and the values."""
        file = self.path / f"bad-batch-step-{step}.json"
        images = [{"row": int(row), "path": str(path)} for row, path in zip(rows, paths, strict=True)]
        # JSON has neither NaN nor infinity, and a reader wants to know which it was: they are written as text.
        plain = {
            name: value if isinstance(value, str) or math.isfinite(value) else str(value) for name, value in values.items()
        }
        write_atomically(file, json_bytes({"step": step, "epoch": epoch, "values": plain, "images": images}, indent=2))
        return file

    def has_begun(self) -> bool:
        """Whether the run has taken a step. It has not if its images were missing, for example."""
        written = (self.path / name for name in (METRICS, RESULT))
        return any(self.checkpoints.glob("*.pt")) or any(file.is_file() and file.stat().st_size for file in written)

    def report_file(self, test: str, epoch: int) -> Path:
        """The file of the report on a test set after an epoch."""
        return own_file(self.reports / f"{quote(test, safe=' ')}-epoch-{epoch:04}.json")  # names in data.tests may have a slash

    @property
    def saved_recipe(self) -> Path | None:
        """The file of the recipe, if the run has begun."""
        recipe = self.path / RECIPE
        return recipe if recipe.is_file() and self.has_begun() else None

    def _create(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_foreign_files(self.path, RECIPE, "a run", "name another folder")
        except ForeignFilesError as error:
            raise RunFolderError(str(error)) from None
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _acquire_lock(self) -> None:
        from suprank.files.locking import lock_folder

        lock = ExitStack()
        try:
            lock.enter_context(lock_folder(self.path, "training in", "wait for it, or name another folder"))
        except BlockingIOError as error:
            raise RunFolderError(str(error)) from None
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self._lock = lock

    def _begin(self, config: TrainConfig, resume: bool, command: Sequence[str]) -> None:
        from suprank.training.recipe import read_recipe, to_toml

        for file in self.path.iterdir():
            own_file(file)
        recipe = self.path / RECIPE
        changes: dict[str, list[Any]] = {}
        if recipe.is_file() and self.has_begun():
            if not resume:
                raise RunFolderError(f"{self.path} holds a run; resume continues it, or name another folder.")
            changes = {key: [old, new] for key, old, new in config_differences(read_recipe(recipe), config)}
            self._refuse({key: values for key, values in changes.items() if not may_differ(key, config)})
        try:
            for file in self.path.rglob(".*.tmp"):
                if TEMPORARY_FILE.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            write_atomically(recipe, to_toml(config).encode())  # first: it makes the folder a run's
            for folder in (self.checkpoints, self.reports):
                folder.mkdir(exist_ok=True)
            self._record_session(command, changes)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _refuse(self, changes: Mapping[str, list[Any]]) -> None:
        if changes:
            listed = "; ".join(f"{key} was {old!r} and is {new!r}" for key, (old, new) in changes.items())
            raise RunFolderError(
                f"{self.path} holds a run of another recipe, which cannot be resumed with this one: {listed}. "
                "Give the same values again, or name another folder."
            )

    def _record_session(self, command: Sequence[str], changes: Mapping[str, list[Any]]) -> None:
        file = self.path / ENVIRONMENT
        sessions = _read_json(file)["sessions"] if file.is_file() else []
        session = {**environment(), "command": list(command), "changes": dict(changes)}
        write_atomically(file, json_bytes({"sessions": [*sessions, session]}, indent=2))


def config_differences(old: TrainConfig, new: TrainConfig) -> Iterator[tuple[str, Any, Any]]:
    """The keys in which two recipes differ: dotted name, old and new value. Of two losses, only the names are compared."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    if old.loss.name != new.loss.name:
        yield "loss.name", before.pop("loss")["name"], after.pop("loss")["name"]
    for table, entries in after.items():
        for name, value in entries.items():
            if before[table][name] != value:
                yield f"{table}.{name}", before[table][name], value


def environment() -> dict[str, Any]:
    """What a run may depend on beside its recipe: time, machine, versions, GPUs, and the git state of the working directory."""
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
    """Commit, branch, and whether tracked files were changed; None outside of a repository, or without git.

    `diff_sha256` is the hash of `git diff HEAD`. Untracked files are ignored, because run folders may be among them.
    """
    if _git(folder, "rev-parse", "--is-inside-work-tree") != b"true":
        return None
    commit, branch = _git(folder, "rev-parse", "--verify", "HEAD"), _git(folder, "symbolic-ref", "--short", "HEAD")
    diff = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary")
    return {
        "commit": None if commit is None else commit.decode(),
        "branch": None if branch is None else branch.decode(errors="replace"),
        "dirty": bool(diff),
        "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
    }


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    """A value as JSON and a line break, with null in place of NaN and infinity.

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
    with reading(file, "JSON file"):
        return json.loads(file.read_bytes())


def may_differ(name: str, config: TrainConfig) -> bool:
    """Whether a resumed run may have another value of this key: with `fast_jpeg` the decoder decides how crops are decoded."""
    if name == "data.decoder":
        return not config.data.fast_jpeg
    return name in MAY_DIFFER or name.split(".")[0] in TABLES_THAT_MAY_DIFFER


def _unwritable(path: Path, error: OSError) -> OSError:
    return OSError(f"{path} cannot be written to ({error.strerror or error}); name another folder.")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> bytes | None:
    """The output of git; None if it fails, or is not installed."""
    # A repository from a stranger may name commands to run in its settings.
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *arguments]
    # Without optional locks git writes nothing, and does not disturb another git process.
    variables = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, env=variables, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
