"""Loading the weights of a timm network from a file: no code in it is run, and weights that do not fit are refused."""

from __future__ import annotations

import pickle
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch

from suprank.files.plain_pickle import explain_load_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from torch import Tensor, nn

    State = dict[str, Tensor]

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
NESTED = ("state_dict", "model_state", "model_state_dict", "net_state", "model", "teacher")
PREFIXES = ("_orig_mod.", "module.", "model.", "net.", "backbone.")
MAX_NESTED = 10  # dictionaries in each other; a file may hold one that holds itself
NAMED_IN_ERRORS = 3


class WeightsError(ValueError):
    """Weights that cannot be downloaded, read or used; the message says why and what to do."""


class DownloadError(WeightsError):
    """Pretrained weights that cannot be downloaded; the message says to give `weights=FILE`."""


def load_weights(net: nn.Module, path: str | PathLike[str]) -> None:
    """Load a .safetensors file or a pickle of a state dict into a timm network. A `WeightsError` leaves the network unchanged.

    See `read_state` for what is read and `adapt_state` for what is unwrapped, dropped and resized.
    """
    copy_state(read_state(path), net, f"{Path(path)}")


def read_state(path: str | PathLike[str]) -> State:
    """The tensors of a weights file, by name, on the CPU.

    A pickle (.pth, .pt, .bin, .ckpt, .tar) is read with `weights_only=True`: one that would build anything but tensors and
    plain containers is refused, because building it runs the file's code. A state dict inside a checkpoint is searched for
    under the usual names (`NESTED`).
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no weights file {file}.")
    if file.suffix == ".safetensors":
        try:
            return dict(safetensors.torch.load_file(file))
        except safetensors.SafetensorError as error:
            raise WeightsError(f"{file} is not a readable safetensors file ({error}); copy or download it again.") from error
    if file.suffix not in PICKLES:
        raise WeightsError(f"{file}: {file.suffix or 'no extension'!r} is none of .safetensors, {', '.join(PICKLES)}.")
    return _innermost_state(_unpickle(file), file)


def copy_state(state: State, net: nn.Module, origin: str) -> None:
    """Copy a state dict into a timm network after `adapt_state`, or raise a `WeightsError` that names what does not fit."""
    state = adapt_state(state, net)
    if problems := mismatches(state, net):
        architecture = getattr(net, "pretrained_cfg", {}).get("architecture") or type(net).__name__
        raise WeightsError(
            f"{origin} does not fit {architecture}: {'; '.join(problems)}. Name the backbone that the weights were saved from."
        )
    net.load_state_dict(state, strict=False)  # the count of batches may be missing: see `mismatches`


def adapt_state(state: State, net: nn.Module) -> State:
    """The state dict with the network's own keys, as far as possible.

    The prefixes of wrappers (`PREFIXES`) are removed, and so are entries beside the wrapped network, such as a head. The
    classifier, which our networks do not have, is dropped. A distilled DeiT loses its distillation token if the network has
    none. If the state dict then still does not fit, timm's own conversion for the family is tried, which also resizes position
    embeddings.
    """
    wanted = net.state_dict()
    state = _remove_prefixes(state, wanted)
    if "dist_token" in state and "dist_token" not in wanted:
        state = without_distillation(state)
    classifiers = tuple(f"{name}." for name in _names(getattr(net, "pretrained_cfg", {}).get("classifier")))
    state = {key: value for key, value in state.items() if key in wanted or not key.startswith(classifiers)}
    return _convert(state, net) if mismatches(state, net) else state


def mismatches(state: State, net: nn.Module) -> list[str]:
    """Why a state dict cannot be loaded: a clause for each kind of problem, with counts and names; [] if it can.

    BatchNorm's count of batches may be missing: old weights do not have it, and nothing depends on it.
    """
    wanted = net.state_dict()
    missing = [key for key in wanted if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in wanted]
    shapes = [
        f"{key} is {list(value.shape)} in the file and {list(wanted[key].shape)} in the network"
        for key, value in state.items()
        if key in wanted and value.shape != wanted[key].shape
    ]
    problems = []
    if missing:
        problems.append(f"{len(missing)} of the network's {len(wanted)} entries are missing ({_first(missing)})")
    if unexpected:
        problems.append(f"{len(unexpected)} of the file's {len(state)} entries are unknown to it ({_first(unexpected)})")
    if shapes:
        problems.append(f"{len(shapes)} have another shape ({_first(shapes)})")
    return problems


def without_distillation(state: State) -> State:
    """A distilled DeiT's weights as the plain DeiT's: without the distillation token, its position and its classifier."""
    positions = state["pos_embed"]  # class token, distillation token, patches
    plain = {key: value for key, value in state.items() if key != "dist_token" and not key.startswith("head_dist.")}
    return {**plain, "pos_embed": torch.cat([positions[:, :1], positions[:, 2:]], dim=1)}


def _unpickle(file: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        holds = f"it holds {named[1]}, and building that would run code" if named else "it is not a pickle of tensors"
        raise WeightsError(
            f"{file} is refused: {holds}. If you trust its source, load it there, and save `model.state_dict()` as "
            ".safetensors."
        ) from error
    except Exception as error:  # a damaged pickle can raise anything
        reason = explain_load_error(error)
        raise WeightsError(f"{file} cannot be read ({reason}); it should be `torch.save(model.state_dict(), ...)`.") from error


def _innermost_state(loaded: Any, file: Path) -> State:
    for _ in range(MAX_NESTED):
        if not isinstance(loaded, dict) or not loaded:
            break
        if all(isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in loaded.items()):
            return dict(loaded)
        inner = next((loaded[name] for name in NESTED if isinstance(loaded.get(name), dict)), None)
        if inner is None:
            break
        loaded = inner
    keys = (
        f"a dictionary of {_first([str(key) for key in loaded])}" if isinstance(loaded, dict) else f"a {type(loaded).__name__}"
    )
    raise WeightsError(
        f"{file} holds {keys} and no state dict, at the top or under {', '.join(NESTED)}; save `model.state_dict()`."
    )


def _remove_prefixes(state: State, wanted: State) -> State:
    """Remove prefixes until most of the network's entries are found, or no prefix is left."""
    while sum(key in state for key in wanted) < len(wanted) / 2:
        prefix = next((prefix for prefix in PREFIXES if any(key.startswith(prefix) for key in state)), None)
        if prefix is None:
            break
        state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    return state


def _convert(state: State, net: nn.Module) -> State:
    convert = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return state
    try:
        return dict(convert(dict(state), net))
    except Exception:
        return state  # it is written for weights of this family only: others are refused by name in `copy_state`


def _names(classifier: str | Sequence[str] | None) -> tuple[str, ...]:
    if classifier is None:
        return ()
    return (classifier,) if isinstance(classifier, str) else tuple(classifier)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED_IN_ERRORS]) + (", …" if len(names) > NAMED_IN_ERRORS else "")
