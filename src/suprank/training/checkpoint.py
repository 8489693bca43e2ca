"""Checkpoints of a run: files `step-00000123.pt`, written atomically, of which the newest few are kept.

A file is what `torch.save` writes of tensors, numbers, text and containers of them, so that loading it can run no code. It is a
ZIP archive with a checksum of every part, which are verified on loading, because torch does not verify them itself.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from suprank.files.atomic import atomic_writer, own_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FORMAT = 2
"""Version of the state that training saves; 1 had other keys, and did not say so."""

_NAME = re.compile(r"step-(\d+)\.pt")
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None))


class CheckpointError(ValueError):
    """There are checkpoints, but all are damaged, or another version of suprank wrote them."""


def save(folder: Path, step: int, state: Mapping[str, Any], *, keep: int) -> Path:
    """Write the state after `step` steps, then delete all but the newest `keep` files.

    Files of later steps are deleted too: they can only be damaged ones, from before the run was resumed at an earlier step. If
    writing fails, on a full disk for example, an OSError is raised, and the existing files remain.
    """
    if keep < 1:
        raise ValueError(f"keep={keep} would delete the checkpoint that was just written; use 2, or more.")
    if step < 0:
        raise ValueError(f"step={step} must be 0 or more: it counts the steps that are done.")
    _check_plain(dict(state), "state")
    folder.mkdir(parents=True, exist_ok=True)
    path = own_file(folder / f"step-{step:08}.pt")
    with atomic_writer(path) as file:
        try:
            torch.save({"format": FORMAT, **state}, file)
        except RuntimeError as error:
            # If a write fails, torch raises an error of its own while it handles the true one.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    files = _files_by_step(folder)
    newest = sorted((one for one in files if one <= step), reverse=True)[:keep]
    for one in files.keys() - newest:
        files[one].unlink(missing_ok=True)
    return path


def load_newest(folder: Path, warn: Callable[[str], None]) -> tuple[dict[str, Any], Path] | None:
    """Load the newest state that is not damaged, on the CPU, and return it with its file; None if there is no checkpoint.

    `warn` is called for each damaged file. If all are damaged, or the newest good one is of another version, `CheckpointError`
    is raised. Temporary files of a killed process are removed, so no other process may be writing.
    """
    for leftover in folder.glob(".step-*.pt.*.tmp"):
        leftover.unlink(missing_ok=True)
    damaged: list[tuple[Path, str]] = []
    files = _files_by_step(folder)
    for step in sorted(files, reverse=True):
        try:
            state = load(files[step])
        except (MemoryError, CheckpointError):
            raise
        except Exception as error:  # any at all: what a damaged file raises depends on which of its bytes are
            damaged.append((files[step], _reason(error)))
            continue
        for path, reason in damaged:
            warn(f"{path} is damaged ({reason}); resuming from {files[step].name}")
        return state, files[step]
    if damaged:
        listed = "; ".join(f"{path.name}: {reason}" for path, reason in damaged)
        raise CheckpointError(
            f"all checkpoints in {folder} are damaged ({listed}). Restore one from a copy, or delete them to start anew."
        )
    return None


def load(path: Path) -> dict[str, Any]:
    """Load the state in a file, on the CPU, and verify its checksums; the error of a damaged file depends on the damage."""
    with zipfile.ZipFile(own_file(path)) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {damaged} does not match")
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__} instead of a dict")
    _check_format(state.pop("format", 1), path)
    return state


def newest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, damaged or not, from its name; None if there is none."""
    return max(_files_by_step(folder), default=None)


def _files_by_step(folder: Path) -> dict[int, Path]:
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    return {int(match[1]): path for match, path in matches if match}


def _check_format(saved: int, path: Path) -> None:
    if saved != FORMAT:
        raise CheckpointError(
            f"{path} has format {saved}, written by {'an older' if saved < FORMAT else 'a newer'} suprank, and this one reads "
            f"format {FORMAT}. Resume the run with the version that began it, or start a new run in another folder."
        )


def _reason(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than tensors, numbers and text, which could run code and was not loaded"
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _check_plain(value: Any, where: str) -> None:
    """Refuse what could not be loaded again. Types are compared exactly: NumPy's float64 is a float too, but is not loaded."""
    if type(value) in (dict, OrderedDict):
        for key, entry in value.items():
            if type(key) not in (str, int):
                raise TypeError(f"{where} has a key {key!r}, and keys must be text or integers.")
            _check_plain(entry, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for place, entry in enumerate(value):
            _check_plain(entry, f"{where}[{place}]")
    elif type(value) not in _PLAIN_TYPES:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{where} is a {kind}, which a checkpoint cannot hold, since loading it could run code; "
            "save tensors, numbers, text, lists and dicts."
        )
