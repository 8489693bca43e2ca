"""`Head`: a small network on stored embeddings, normalization → residual MLP (optional) → linear → L2, and its two files."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn
from torch.nn.functional import gelu, normalize

from suprank import __version__
from suprank.files.atomic import own_file, write_atomically
from suprank.files.reading import reading
from suprank.models import model_folder
from suprank.models.config import HeadConfig
from suprank.models.model_folder import error_text, state_bytes
from suprank.models.normalization import NORMALIZATIONS
from suprank.models.weights import WeightsError, mismatches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["Head", "HeadConfig", "is_head"]

FORMAT = 1
WEIGHTS, SETTINGS = "head.safetensors", "head.json"
_BLOCK_BYTES = 64 * 2**20  # of the widest layer, which `transform` computes at a time


class _Record(BaseModel):
    """The content of `head.json`. `training` says what the head was trained on and how, and what it reached."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: int
    written_by: dict[str, str]
    weights_sha256: str
    config: HeadConfig
    training: dict[str, Any]


class Head(nn.Module):
    """Maps embeddings of any model to unit vectors of a better space: normalization → x + MLP(x) → linear → L2.

    `suprank adapt` trains one. Embeddings may have any floating dtype; the head computes in the dtype of its weights,
    which is float32 unless you convert it, also under autocast.
    Without the MLP (`hidden=0`) it is an affine map between two normalizations, which `export_matrix` writes for NumPy.
    `Embedder.with_head` puts it on top of a model. `training_record`, a dictionary, is saved with it: what it was trained on.

    Example:
        >>> from suprank.models import Head, HeadConfig
        >>> head = Head(HeadConfig(in_features=8, out_features=4))
        >>> head(torch.randn(2, 8)).norm(dim=1).round(decimals=5).tolist()
        [1.0, 1.0]
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.training_record: dict[str, Any] = {}
        if config.hidden:
            self.expand = nn.Linear(config.in_features, config.hidden)
            self.contract = nn.Linear(config.hidden, config.in_features)
            nn.init.zeros_(self.contract.weight)  # the MLP starts as the identity
            nn.init.zeros_(self.contract.bias)
        self.linear = nn.Linear(config.in_features, config.out_features)

    def forward(self, embeddings: Float[Tensor, "batch in"]) -> Float[Tensor, "batch out"]:
        self._check_shape(embeddings.shape)
        with torch.autocast(embeddings.device.type, enabled=False):
            features = NORMALIZATIONS[self.config.normalization](embeddings.float()).to(self.linear.weight.dtype)
            if self.config.hidden:
                features = features + self.contract(gelu(self.expand(features)))
            return normalize(self.linear(features).float(), dim=-1)

    @torch.inference_mode()
    def transform(self, embeddings: NDArray[np.floating]) -> NDArray[np.float32]:
        """The embeddings `[n, out]` of an array of embeddings `[n, in]`, computed in blocks on the device of the head.

        The array may be memory-mapped. Rows of NaN, which stand for broken images, stay rows of NaN.

        Example:
            >>> import numpy as np
            >>> from suprank.models import Head, HeadConfig
            >>> Head(HeadConfig(in_features=8, out_features=4)).transform(np.ones((3, 8), np.float16)).shape
            (3, 4)
        """
        self._check_shape(embeddings.shape)
        device, config = self.linear.weight.device, self.config
        rows = max(1, _BLOCK_BYTES // (4 * max(config.in_features, config.out_features, config.hidden)))
        transformed = np.empty((len(embeddings), config.out_features), np.float32)
        for start in range(0, len(embeddings), rows):
            with np.errstate(all="ignore"):  # a float64 beyond float32 becomes infinity, and its row NaN
                block = torch.from_numpy(np.array(embeddings[start : start + rows], np.float32))
            transformed[start : start + len(block)] = self(block.to(device)).cpu().numpy()
        return transformed

    def _check_shape(self, shape: Sequence[int]) -> None:
        width = self.config.in_features
        if len(shape) != 2 or shape[1] != width:
            raise ValueError(f"the embeddings are {list(shape)}, but this head takes [rows, {width}].")

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `head.safetensors` and `head.json` into a folder; an older head there is replaced."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        weights = state_bytes(self.state_dict())
        record = _Record(
            format=FORMAT,
            written_by={"suprank": __version__, "torch": version("torch")},
            weights_sha256=hashlib.sha256(weights).hexdigest(),
            config=self.config,
            training=self.training_record,
        )
        write_atomically(own_file(path / WEIGHTS), weights)
        write_atomically(own_file(path / SETTINGS), (record.model_dump_json(indent=2) + "\n").encode())

    @classmethod
    def load(cls, folder: str | PathLike[str], *, device: torch.device | str = "cpu") -> Self:
        """The head of a folder that `save` wrote, in evaluation mode."""
        path = Path(folder)
        for name in (SETTINGS, WEIGHTS):
            if not own_file(path / name).is_file():
                raise FileNotFoundError(f"{path} is not the folder of a head: {_missing(path, name)}.")
        record = _read_record(path / SETTINGS)
        weights = (path / WEIGHTS).read_bytes()
        if hashlib.sha256(weights).hexdigest() != record.weights_sha256:
            raise WeightsError(
                f"{path / WEIGHTS} is not the file that {SETTINGS} describes: saving was interrupted, or the file was replaced "
                "or damaged; train or copy the head again."
            )
        with torch.device("meta"):  # the settings may say any size
            head = cls(record.config)
        with reading(path / WEIGHTS, "safetensors file"):
            state = safetensors.torch.load(weights)
        if problems := mismatches(state, head):
            raise WeightsError(f"the weights in {path} do not fit its settings: {'; '.join(problems)}.")
        head.load_state_dict(state, assign=True)
        head.training_record = record.training
        return head.eval().to(device)

    def fingerprint(self) -> str:
        """A hash of the config and the weights: equal for equal heads, on any device."""
        return hashlib.sha256(self.config.model_dump_json().encode() + state_bytes(self.state_dict())).hexdigest()


def is_head(folder: str | PathLike[str]) -> bool:
    """Whether this is the folder of a head, and not of a model."""
    return (Path(folder) / SETTINGS).is_file() and not (Path(folder) / model_folder.SETTINGS).is_file()


def _missing(path: Path, name: str) -> str:
    """What a folder lacks to be that of a head, and what to do."""
    if not path.exists():
        return "it does not exist; `suprank adapt` writes one"
    if not path.is_dir():
        return f"it is a file; give the folder with {SETTINGS} and {WEIGHTS}"
    if (path / model_folder.SETTINGS).is_file():
        return "it is that of a model, which has its head inside, if it has one; give it as the model"
    return f"it has no {name}; `suprank adapt` writes one"


def _read_record(path: Path) -> _Record:
    with reading(path, "description of a head (train or copy the head again)"):
        entries: Any = json.loads(path.read_bytes())
    found = entries.get("format") if isinstance(entries, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"{path} has format {found!r}, and suprank {__version__} reads {FORMAT}; a newer suprank may read it: "
            "`pip install --upgrade suprank`"
        )
    try:
        return _Record.model_validate(entries)
    except ValidationError as error:
        raise ValueError(f"{path} does not describe a head: {error_text(error)}.") from error
