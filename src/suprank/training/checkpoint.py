"""Checkpoints of a run: `step-00000123.pt` in a folder, each there whole or not at all, the newest few kept.

A file is what `torch.save` writes of tensors, numbers, text and containers of them, so that loading it can run no code. Such a
file is a ZIP archive with a checksum of every part: they are checked on loading, because torch itself does not look at them.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from suprank.files.atomic import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_NAME = re.compile(r"step-(\d+)\.pt")
_PLAIN = (torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None))


class CheckpointError(ValueError):
    """There are checkpoints, and none of them is whole."""


def save(folder: Path, step: int, state: Mapping[str, Any], *, keep: int) -> Path:
    """Write the state after `step` steps, then delete all but the newest `keep` files.

    Files of later steps are deleted too: they can only be damaged ones, of a run that has gone on from an earlier step. Where
    writing fails, on a full disk for example, an OSError is raised, and the files that were there remain.
    """
    if keep < 1:
        raise ValueError(f"keep={keep} would delete the checkpoint that was just written; use 2, or more.")
    if step < 0:
        raise ValueError(f"step={step} must be 0 or more: it counts the steps that are done.")
    plain = dict(state)
    _check_plain(plain, "state")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08}.pt"
    with atomic_writer(path) as file:
        try:
            torch.save(plain, file)
        except RuntimeError as error:
            # Where a write fails, torch complains of its own position in the file, in the course of the true error.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
    there = _steps(folder)
    kept = sorted((one for one in there if one <= step), reverse=True)[:keep]
    for one in there.keys() - kept:
        there[one].unlink(missing_ok=True)
    return path


def newest(folder: Path, say: Callable[[str], None]) -> tuple[dict[str, Any], Path] | None:
    """The newest state that is whole, on the CPU, and its file; None where there is none at all.

    Damaged files are passed over, which `say` is told. Where all are, `CheckpointError` is raised. What a killed writer left
    half written is removed: nobody else may be writing.
    """
    for leftover in folder.glob(".step-*.pt.*.tmp"):
        leftover.unlink(missing_ok=True)
    damaged: list[tuple[Path, str]] = []
    there = _steps(folder)
    for step in sorted(there, reverse=True):
        try:
            state = load(there[step])
        except MemoryError:
            raise
        except Exception as error:  # any at all: what a damaged file raises depends on which of its bytes are
            damaged.append((there[step], _reason(error)))
            continue
        for path, reason in damaged:
            say(f"{path} is damaged ({reason}); going on from {there[step].name}")
        return state, there[step]
    if damaged:
        listed = "; ".join(f"{path.name}: {reason}" for path, reason in damaged)
        raise CheckpointError(
            f"no checkpoint in {folder} is whole ({listed}). Put a copy of one there, or delete them to start anew."
        )
    return None


def load(path: Path) -> dict[str, Any]:
    """The state in a file, on the CPU, its checksums checked; what is raised for a damaged file depends on the damage."""
    with zipfile.ZipFile(path) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise zipfile.BadZipFile(f"the checksum of {broken} is another")
    state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__} instead of a dict")
    return state


def newest_step(folder: Path) -> int | None:
    """Steps that are done by the newest checkpoint, whole or not, from its name; None where there is none."""
    return max(_steps(folder), default=None)


def _steps(folder: Path) -> dict[int, Path]:
    found = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*.pt"))
    return {int(match[1]): path for match, path in found if match}


def _reason(error: Exception) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than tensors, numbers and text, which could run code and was not loaded"
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _check_plain(value: Any, where: str) -> None:
    """Refuse what could not be loaded again; by the exact type, since NumPy's float64 is a float too, and is not loaded."""
    if type(value) in (dict, OrderedDict):
        for key, entry in value.items():
            if type(key) not in (str, int):
                raise TypeError(f"{where} has a key {key!r}, and keys must be text or integers.")
            _check_plain(entry, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for place, entry in enumerate(value):
            _check_plain(entry, f"{where}[{place}]")
    elif type(value) not in _PLAIN:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{where} is a {kind}, which a checkpoint cannot hold, since loading it could run code; "
            "save tensors, numbers, text, lists and dicts."
        )
