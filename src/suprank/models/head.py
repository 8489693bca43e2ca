"""`Head`: a small network on stored embeddings, normalization → residual MLP (optional) → linear → L2, and its two files."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn
from torch.nn.functional import gelu, normalize

from suprank import __version__
from suprank.files.atomic import write_atomically
from suprank.models.embedder import NORMALIZATIONS
from suprank.models.model_folder import error_text, state_bytes
from suprank.models.weights import WeightsError, mismatches

if TYPE_CHECKING:
    from os import PathLike

    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

FORMAT = 1
WEIGHTS, SETTINGS = "head.safetensors", "head.json"
_ROWS = 65_536  # vectors that `transform` converts at a time


class HeadConfig(BaseModel):
    """The shape of a head."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    in_features: int = Field(ge=1, description="Width of the embeddings it takes.")
    out_features: int = Field(ge=1, description="Width of the embeddings it returns.")
    normalization: Literal["none", "layer", "l2"] = Field("l2", description="What is done to each embedding first.")
    hidden: int = Field(0, ge=0, description="Width of the residual MLP before the linear layer; 0 for none.")


class _Record(BaseModel):
    """The content of `head.json`. `training` says what the head was trained on and how, and what it reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    written_by: dict[str, str]
    weights_sha256: str
    config: HeadConfig
    training: dict[str, Any]


class Head(nn.Module):
    """Maps embeddings of any model to unit vectors of a better space: normalization → x + MLP(x) → linear → L2.

    `suprank adapt` trains one. Embeddings of any floating dtype are converted in float32. Without the MLP (`hidden=0`) the
    head is an affine map between two normalizations, which `suprank.models.export` can write as a NumPy matrix.

    Example:
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
        width = self.config.in_features
        if embeddings.ndim != 2 or embeddings.shape[1] != width:
            raise ValueError(f"embeddings are {list(embeddings.shape)}, but this head takes [batch, {width}].")
        features = NORMALIZATIONS[self.config.normalization](embeddings.float())
        if self.config.hidden:
            features = features + self.contract(gelu(self.expand(features)))
        return normalize(self.linear(features).float(), dim=-1)

    @torch.inference_mode()
    def transform(self, embeddings: NDArray[np.floating]) -> NDArray[np.float32]:
        """The embeddings of an array of embeddings, computed in blocks on the device of the head."""
        device = self.linear.weight.device
        converted = np.empty((len(embeddings), self.config.out_features), np.float32)
        for start in range(0, len(embeddings), _ROWS):
            block = torch.from_numpy(np.array(embeddings[start : start + _ROWS], np.float32))
            converted[start : start + len(block)] = self(block.to(device)).cpu().numpy()
        return converted

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
        write_atomically(path / WEIGHTS, weights)
        write_atomically(path / SETTINGS, (record.model_dump_json(indent=2) + "\n").encode())

    @classmethod
    def load(cls, folder: str | PathLike[str], *, device: torch.device | str = "cpu") -> Self:
        """The head of a folder that `save` wrote, in evaluation mode."""
        path = Path(folder)
        for name in (SETTINGS, WEIGHTS):
            if not (path / name).is_file():
                raise FileNotFoundError(f"{path} is not the folder of a head: it has no {name}; `suprank adapt` writes it.")
        try:
            record = _Record.model_validate(json.loads((path / SETTINGS).read_bytes()))
        except ValidationError as error:
            raise ValueError(f"{path / SETTINGS} is not a head's: {error_text(error)}.") from error
        if record.format != FORMAT:
            raise ValueError(f"{path / SETTINGS} has format {record.format}, and this suprank reads {FORMAT}; update suprank.")
        weights = (path / WEIGHTS).read_bytes()
        if hashlib.sha256(weights).hexdigest() != record.weights_sha256:
            raise WeightsError(
                f"{path / WEIGHTS} is not the file that {SETTINGS} describes: saving was interrupted, or the file was replaced "
                "or damaged; train or copy the head again."
            )
        head = cls(record.config)
        state = safetensors.torch.load(weights)
        if problems := mismatches(state, head):
            raise WeightsError(f"the weights in {path} do not fit its settings: {'; '.join(problems)}.")
        head.load_state_dict(state)
        head.training_record = record.training
        return head.eval().to(device)

    def fingerprint(self) -> str:
        """A hash of the config and the weights: equal for equal heads, on any device."""
        return hashlib.sha256(self.config.model_dump_json().encode() + state_bytes(self.state_dict())).hexdigest()
