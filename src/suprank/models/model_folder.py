"""The folder of a saved embedder: `model.safetensors` has all weights, those of a head too, and `embedder.json` the config.

The JSON also has the version of this format, the versions of suprank, timm and torch that wrote it, and the hash of the weights
file. It is written last, so that an incomplete folder, or weights that were replaced, are noticed on loading.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import safetensors.torch
from pydantic import BaseModel, ConfigDict, ValidationError

from suprank import __version__
from suprank.files.atomic import own_file, write_atomically
from suprank.files.reading import reading
from suprank.models.config import EmbedderConfig
from suprank.models.weights import WeightsError, mismatches
from suprank.system.custom_code import HUB, is_custom

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from os import PathLike

    from torch import Tensor, nn

FORMAT = 6

WEIGHTS, SETTINGS = "model.safetensors", "embedder.json"


class _Record(BaseModel):
    """The content of `embedder.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int
    written_by: dict[str, str]
    weights_sha256: str
    config: EmbedderConfig


def write_model(folder: str | PathLike[str], config: EmbedderConfig, state: dict[str, Tensor]) -> None:
    """Write both files atomically; an older embedder in the folder is replaced."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    weights = state_bytes(state)
    packages = {"suprank": __version__, "timm": version("timm"), "torch": version("torch")}
    record = _Record(format=FORMAT, written_by=packages, weights_sha256=hashlib.sha256(weights).hexdigest(), config=config)
    write_atomically(own_file(path / WEIGHTS), weights)
    write_atomically(own_file(path / SETTINGS), (record.model_dump_json(indent=2) + "\n").encode())


def read_model(
    folder: str | PathLike[str], settings: Mapping[str, Any] = MappingProxyType({})
) -> tuple[EmbedderConfig, dict[str, Tensor]]:
    """The config and the weights of a folder that `write_model` wrote, checked; errors name the file and the entry.

    `settings` replace entries of the saved config.
    """
    path = Path(folder)
    for name in (SETTINGS, WEIGHTS):
        if not own_file(path / name).is_file():
            raise FileNotFoundError(f"{path} is not a folder of a saved embedder: it has no {name}; Embedder.save writes it.")
    record = _read_record(path / SETTINGS, settings)
    weights = (path / WEIGHTS).read_bytes()
    if hashlib.sha256(weights).hexdigest() != record.weights_sha256:
        raise WeightsError(
            f"{path / WEIGHTS} is not the file that {SETTINGS} describes: saving was interrupted, or the file was replaced or "
            "damaged; save or copy the folder again."
        )
    with reading(path / WEIGHTS, "safetensors file"):
        return record.config, safetensors.torch.load(weights)


def fingerprint(config: EmbedderConfig, weights: bytes, left_out: Collection[str] = ()) -> str:
    """A hash of a config and of weights, as `state_bytes` gives them and as a saved embedder has them in its file.

    The decoder is left out, because embeddings record it on their own.
    """
    return hashlib.sha256(config.model_dump_json(exclude={"decoder", *left_out}).encode() + weights).hexdigest()


def saved_fingerprint(folder: str | PathLike[str], settings: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The fingerprint of the embedder that `read_model` reads, from its files: no network is built, and no code is run."""
    path = Path(folder)
    return fingerprint(_read_record(path / SETTINGS, settings).config, (path / WEIGHTS).read_bytes())


def custom_backbone(folder: str | PathLike[str]) -> str | None:
    """The name of the user's code that the saved embedder needs, such as `mine.py:build`; None if it needs none, or is none."""
    if not (Path(folder) / SETTINGS).is_file():
        return None
    name = _read_record(Path(folder) / SETTINGS, {}).config.backbone
    return name if is_custom(name) else None


def load_state(state: dict[str, Tensor], embedder: nn.Module, folder: str | PathLike[str], backbone: str = "") -> None:
    """Load the weights of a folder into the embedder built from its config. `backbone` is the name of its backbone."""
    if problems := mismatches(state, embedder):
        reason = (
            f"Another timm may build this backbone differently: {SETTINGS} names the version that wrote it, and this is "
            f"{version('timm')}."
        )
        if is_custom(backbone):
            reason = f"{backbone} builds another network than the one that was saved; restore its code."
        raise WeightsError(f"the weights in {Path(folder)} do not fit its config: {'; '.join(problems)}. {reason}")
    embedder.load_state_dict(state)


def state_bytes(state: dict[str, Tensor]) -> bytes:
    """A state dict as the bytes of a safetensors file: the same for equal tensors, whatever their device or memory format.

    Tensors that share memory, as tied weights do, are written once each.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in state.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return safetensors.torch.save(tensors)


def _read_record(path: Path, settings: Mapping[str, Any]) -> _Record:
    with reading(path, "description of an embedder (save the embedder again)"):
        entries: Any = json.loads(own_file(path).read_bytes())
    version_found: Any = entries.get("format") if isinstance(entries, dict) else None
    if version_found != FORMAT:
        raise ValueError(
            f"{path} has format {version_found!r}, and suprank {__version__} reads {FORMAT}; a newer suprank may read it: "
            "`pip install --upgrade suprank`"
        )
    if isinstance(entries.get("config"), dict):
        entries = {**entries, "config": {**entries["config"], **settings}}
    try:
        record = _Record.model_validate(entries)
    except ValidationError as error:
        raise ValueError(f"{path} does not describe an embedder: {error_text(error)}.") from error
    if record.config.backbone.startswith(HUB) and record.config.hub_backbone is None:
        raise ValueError(
            f"{path} names the backbone {record.config.backbone} without hub_backbone, so that building it would connect to "
            "the Hub; save the embedder again."
        )
    return record


def error_text(error: ValidationError) -> str:
    """The problems that pydantic found, each after its entry, without links to its documentation."""
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
