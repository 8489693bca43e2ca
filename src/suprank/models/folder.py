"""The folder of a saved embedder: `model.safetensors`, all weights, and `embedder.json`, all settings.

The JSON has the version of this format, the settings, the versions of suprank, timm and torch that wrote it, and the hash of
the weights file. It is written last, so that a folder half written, or weights that were replaced, are noticed on reading.
"""

from __future__ import annotations

import hashlib
import json
import logging
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import safetensors.torch
from pydantic import BaseModel, ConfigDict, ValidationError

from suprank import __version__
from suprank.files.atomic import write_atomically
from suprank.models.config import EmbedderConfig
from suprank.models.weights import WeightsError, misfits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from torch import Tensor, nn

FORMAT = 2  # 1 had `crop`, a share, in place of `resize`, and no squash, fast_jpeg or precision
WEIGHTS, SETTINGS = "model.safetensors", "embedder.json"

OLDER = (
    "%s was saved by an older suprank, which did not save squash, fast_jpeg, precision and test_resize=0 of the recipe: "
    "where the recipe sets one of them, give the same as an option, or metrics differ from those of the training run."
)

_NEW: dict[str, Any] = {"squash": False, "fast_jpeg": False, "precision": "fp32"}  # entries that format 1 does not have
_log = logging.getLogger(__name__)


class _Record(BaseModel):
    """The content of `embedder.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int
    written_by: dict[str, str]
    weights_sha256: str
    config: EmbedderConfig


def write(folder: str | PathLike[str], config: EmbedderConfig, state: dict[str, Tensor]) -> None:
    """Write both files, each to a temporary name first; an older embedder in the folder is replaced."""
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    weights = packed(state)
    packages = {"suprank": __version__, "timm": version("timm"), "torch": version("torch")}
    record = _Record(format=FORMAT, written_by=packages, weights_sha256=hashlib.sha256(weights).hexdigest(), config=config)
    write_atomically(where / WEIGHTS, weights)
    write_atomically(where / SETTINGS, (record.model_dump_json(indent=2) + "\n").encode())


def read(
    folder: str | PathLike[str], settings: Mapping[str, Any] = MappingProxyType({})
) -> tuple[EmbedderConfig, dict[str, Tensor]]:
    """The settings and the weights of a folder that `write` wrote, checked; errors name the file and the entry.

    `settings` replace those of the folder.
    """
    where = Path(folder)
    for name in (SETTINGS, WEIGHTS):
        if not (where / name).is_file():
            raise FileNotFoundError(f"{where} is no folder of a saved embedder: it has no {name}; Embedder.save writes one.")
    record = _record(where / SETTINGS, settings)
    weights = (where / WEIGHTS).read_bytes()
    if hashlib.sha256(weights).hexdigest() != record.weights_sha256:
        raise WeightsError(
            f"{where / WEIGHTS} is not the file that {SETTINGS} describes: a save was interrupted, or the file was replaced or "
            "damaged; save or copy the folder again."
        )
    return record.config, safetensors.torch.load(weights)


def put(state: dict[str, Tensor], embedder: nn.Module, folder: str | PathLike[str]) -> None:
    """Load the weights of a folder into the embedder built from its settings."""
    if complaints := misfits(state, embedder):
        raise WeightsError(
            f"the weights in {Path(folder)} do not fit its settings: {'; '.join(complaints)}. Another timm may build this "
            f"backbone differently: {SETTINGS} names the version that wrote it, and this is {version('timm')}."
        )
    embedder.load_state_dict(state)


def packed(state: dict[str, Tensor]) -> bytes:
    """A state dict as the bytes of a safetensors file: the same for equal tensors, whatever their device or memory format."""
    return safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in state.items()})


def _record(path: Path, settings: Mapping[str, Any]) -> _Record:
    try:
        entries: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}); save the embedder again.") from error
    found = entries.get("format") if isinstance(entries, dict) else None
    if found == 1 and isinstance(entries.get("config"), dict):
        entries, found = _upgraded(entries), FORMAT
        if not _NEW.keys() <= settings.keys():
            _log.warning(OLDER, path)
    if found != FORMAT:
        raise ValueError(
            f"{path} has format {found!r}, and suprank {__version__} reads {FORMAT}; a newer suprank may read it: "
            "pip install --upgrade suprank"
        )
    if isinstance(entries.get("config"), dict):
        entries = {**entries, "config": {**entries["config"], **settings}}
    try:
        return _Record.model_validate(entries)
    except ValidationError as error:
        raise ValueError(f"{path} does not describe an embedder: {sentences(error)}.") from error


def _upgraded(entries: dict[str, Any]) -> dict[str, Any]:
    """The entries of a folder in format 1 as format 2 has them. How a recipe read test images cannot be known from it."""
    config = dict(entries["config"])
    crop, size = config.pop("crop", None), config.get("image_size")
    if isinstance(crop, float | int) and crop > 0 and isinstance(size, list):
        config["resize"] = round(min(size) / crop)
    return {**entries, "format": FORMAT, "config": {**config, **_NEW}}


def sentences(error: ValidationError) -> str:
    """What is wrong with which entry, without pydantic's links."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
