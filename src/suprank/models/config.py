"""The config of an embedder, which is saved with the model: everything that is needed to build it again."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from suprank.models.hub_names import HubName
from suprank.system.custom_code import HUB, is_code_name

Pooling = Literal["timm", "avg", "max", "avg+max", "gem", "gem-fixed", "token"]
Normalization = Literal["none", "layer", "l2"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Precision = Literal["fp32", "bf16", "fp16"]
Decoder = Literal["pil", "turbo"]
RGB = tuple[float, float, float]
MAX_SIDE = 8_192
"""The most pixels on a side of the images that a network gets: one has 805 MB then."""

_TIMM_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NOT_OF_THE_NETWORK = {  # arguments of timm.create_model, which load files or change the kind of network
    *("model_name", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir"),
    *("scriptable", "exportable", "no_jit", "num_classes", "features_only"),
}
_Colors = Annotated[RGB, Field(strict=False)]  # JSON and TOML have lists only; the numbers in them stay strict


class ImageInput(NamedTuple):
    """The image preprocessing that a network expects: height and width in pixels of the central crop, mean and std of RGB in
    [0, 1], the interpolation, and the resizing before the crop (see `EmbedderConfig`)."""

    size: tuple[int, int]
    mean: RGB
    std: RGB
    interpolation: Interpolation
    resize: int
    squash: bool = False
    fast_jpeg: bool = False
    decoder: Decoder = "pil"


class HeadConfig(BaseModel):
    """The shape of a head: normalization → x + MLP(x) → linear → L2 (see `suprank.models.Head`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    in_features: int = Field(ge=1, description="Width of the embeddings it takes.")
    out_features: int = Field(ge=1, description="Width of the embeddings it returns.")
    normalization: Normalization = Field("l2", description="What is done to each embedding first.")
    hidden: int = Field(0, ge=0, description="Width of the residual MLP before the linear layer; 0 for none.")


class HubBackbone(BaseModel):
    """What a timm model on the Hub says about itself, so that a saved embedder can be built without asking the Hub again.

    The entries are those of the repository's `config.json`. Labels and locations are left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    architecture: str = Field(description="The name of the network in timm.")
    model_args: dict[str, Any] = Field(default_factory=dict, description="Arguments of the network.")
    pretrained_cfg: dict[str, Any] = Field(default_factory=dict, description="timm's settings of the weights.")

    @field_validator("architecture")
    @classmethod
    def _check_architecture(cls, name: str) -> str:
        if not _TIMM_NAME.fullmatch(name):
            raise ValueError(f"architecture={name!r} must be a plain name of timm")
        return name

    @field_validator("model_args")
    @classmethod
    def _check_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        if refused := sorted(_NOT_OF_THE_NETWORK & arguments.keys()):
            raise ValueError(f"model_args may not have {', '.join(refused)}: only arguments of the network itself")
        return arguments


class EmbedderConfig(BaseModel):
    """backbone → pooling → normalization → projection → L2 → head. By default nothing is added to the backbone's own features.

    The entries from `image_size` on say how images are loaded and embedded for evaluation. They are saved with the model, so
    that later embeddings give the metrics of the training run. `None` stands for timm's values for the backbone, no squash, no
    fast_jpeg, PIL, and fp32. An `Embedder` fills them in, so that its `config` and its saved folder always have the values.

    Example:
        >>> EmbedderConfig(backbone="resnet50", pooling="gem", normalization="l2", dim=2048).pooling
        'gem'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    backbone: str
    """A name of `timm.list_models()`, with or without a weights tag, or an alias (`suprank.models.ALIASES`); or your own code,
    `mine.py:build` or `package.module:build`, that returns a network (`suprank.models.custom_network`); or a timm model on the
    Hugging Face Hub, `hf-hub:org/name` or `hf-hub:org/name@revision`, which an `Embedder` replaces by the commit it found."""

    hub_backbone: HubBackbone | None = None
    """What the Hub says about a backbone `hf-hub:...`. An `Embedder` fills it in; None for other backbones."""

    pooling: Pooling = "timm"
    """How the features of all positions become one vector: timm's pooling for this backbone (the mean for most, the class token
    for DeiT and ViT), the mean, the maximum, their sum, GeM with a learnable or a fixed power, or the class token."""

    gem_power: float = Field(default=3.0, gt=0, allow_inf_nan=False)
    """The power p of GeM before training; used by "gem" and "gem-fixed" only."""

    normalization: Normalization = "none"
    """Normalization of the pooled vector: none, LayerNorm without affine parameters, or L2."""

    dim: int | None = Field(default=None, ge=1)
    """Width of the linear projection, and so of the embeddings; None for no projection."""

    bias: bool = True
    """Whether the projection has a bias."""

    head: HeadConfig | None = None
    """A head on top, as `Embedder.with_head` adds it; None for no head."""

    freeze_batchnorm: bool = False
    """Keep BatchNorm at its stored mean and variance during training, as the authors do with ImageNet weights. Its scale and
    shift are still trained."""

    image_size: Annotated[tuple[int, int], Field(strict=False)] | None = None
    """Height and width in pixels; one number for a square."""

    mean: _Colors | None = None
    """Mean of red, green and blue in [0, 1]. The authors use ImageNet's, also for the ViT for which timm has 0.5."""

    std: _Colors | None = None
    """Standard deviation of red, green and blue in [0, 1]."""

    interpolation: Interpolation | None = None
    """Interpolation for resizing images."""

    resize: int | None = Field(default=None, ge=0, le=MAX_SIDE)
    """Short side in pixels to which an image is resized before its center is cropped; 0 crops the image as it is."""

    squash: bool | None = None
    """Resize both sides to `resize`, which loses the aspect ratio, as is usual on SOP."""

    fast_jpeg: bool | None = None
    """Decode large JPEGs at a fraction of their size: several times faster, and pixels differ by a few gray levels."""

    decoder: Decoder | None = None
    """What decodes JPEGs, `pil` or `turbo` (see `suprank.data.ImageDataset`)."""

    precision: Precision | None = None
    """Precision of the network when it embeds: that of the training run, unless the caller chooses another."""

    @field_validator("backbone")
    @classmethod
    def _check_backbone(cls, name: str) -> str:
        if name.startswith(HUB):
            HubName.parse(name)
        elif not _TIMM_NAME.fullmatch(name) and not is_code_name(name):
            raise ValueError(
                f"backbone={name!r} must be a plain timm name, or hf-hub:org/name for a timm model on the Hugging Face Hub, or "
                "FILE.py:NAME or package.module:NAME for your own"
            )
        return name

    @model_validator(mode="after")
    def _check_hub_backbone(self) -> Self:
        if self.hub_backbone is not None and not (self.backbone.startswith(HUB) and HubName.parse(self.backbone).pinned):
            raise ValueError(f"hub_backbone is for a backbone hf-hub:org/name@commit, and backbone={self.backbone!r} is none")
        return self

    @field_validator("image_size", mode="before")
    @classmethod
    def _expand_square(cls, size: object) -> object:
        return (size, size) if isinstance(size, int) else size

    @field_validator("image_size")
    @classmethod
    def _check_image_size(cls, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if size is not None and not 1 <= min(size) <= max(size) <= MAX_SIDE:
            raise ValueError(f"image_size={size} must be 1 to {MAX_SIDE:,} pixels on each side")
        return size

    @field_validator("std")
    @classmethod
    def _check_std(cls, std: RGB | None) -> RGB | None:
        if std is not None and min(std) <= 0:
            raise ValueError(f"std={std} must be above 0: images are divided by it")
        return std

    @property
    def input(self) -> ImageInput:
        """The image preprocessing; for the `config` of an embedder, in which no entry is None."""
        size, mean, std, interpolation, resize = self.image_size, self.mean, self.std, self.interpolation, self.resize
        if size is None or mean is None or std is None or interpolation is None or resize is None:
            raise ValueError(
                "this config leaves the preprocessing of images to the backbone; use the config of an Embedder created from it."
            )
        squash, fast_jpeg, decoder = bool(self.squash), bool(self.fast_jpeg), self.decoder or "pil"
        return ImageInput(size, mean, std, interpolation, resize, squash, fast_jpeg, decoder)
