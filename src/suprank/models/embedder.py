"""The model that embeds images: backbone → pooling → normalization → projection → L2, and a head on top if it has one."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

import torch
from huggingface_hub import ModelHubMixin
from pydantic import ValidationError
from torch import nn
from torch.nn.functional import normalize

from suprank.models import hub, model_folder
from suprank.models.backbone import Backbone
from suprank.models.config import EmbedderConfig, ImageInput
from suprank.models.frozen_batchnorm import keep_memory_format
from suprank.models.head import Head
from suprank.models.hub_names import HubName, check_repo_id
from suprank.models.model_card import model_card
from suprank.models.normalization import NORMALIZATIONS
from suprank.models.pooling import POOLINGS
from suprank.system.custom_code import require_consent, trusting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from huggingface_hub import CommitInfo, ModelCard
    from jaxtyping import Float
    from torch import Tensor

_NOT_OF_THE_NETWORK = {"head", "image_size", "resize", "squash", "interpolation", "fast_jpeg", "precision"}


class Embedder(
    nn.Module,
    ModelHubMixin,
    library_name="suprank",
    pipeline_tag="image-feature-extraction",
    tags=["image-retrieval", "metric-learning", "image-embeddings"],
):
    """Maps images to unit vectors: backbone → pooling → normalization → projection → L2.

    Images are `[batch, 3, height, width]`, normalized as `input` says. Pooling, normalization and the final L2 are computed in
    float32, also under autocast and in half-precision models (except for timm's own pooling in the latter), and embeddings are
    float32. An image whose features are all zero has the embedding zero; all others have length 1. With a head (`with_head`),
    these vectors go through it, in float32, and what it returns are the embeddings.

    The backbone is timm's, by its name or from the Hugging Face Hub (`hf-hub:org/name`), or your own: `mine.py:build` or
    `package.module:build` (`suprank.models.custom_network`). A backbone on the Hub is looked up when the embedder is created;
    its commit and its settings are saved with the model, which is then loaded without the Hub.

    Weights are random, or timm's for the backbone (`pretrained=True`, downloaded once), or a file's for the backbone
    (`weights`, see `suprank.models.weights`); the projection is random until trained, or given to `with_projection`.
    """

    def __init__(self, config: EmbedderConfig, *, pretrained: bool = False, weights: str | PathLike[str] | None = None):
        super().__init__()
        self._hub_mixin_config = None  # `save_pretrained` would write a config.json; ours is embedder.json
        self.backbone = Backbone(
            config.backbone,
            config.image_size,
            pretrained=pretrained,
            weights=weights,
            hub_backbone=config.hub_backbone,
        )
        config = config.model_copy(update={"backbone": self.backbone.name, "hub_backbone": self.backbone.hub_backbone})
        if config.pooling not in (possible := self.backbone.poolings):
            raise ValueError(
                f"pooling={config.pooling!r} is not possible with {config.backbone}{_why(self.backbone)}; choose from "
                f"{', '.join(possible)}."
            )
        self.config = _fill_defaults(config, self.backbone.input)
        self.pooling = POOLINGS[config.pooling](config) if config.pooling in POOLINGS else nn.Identity()
        self.projection = nn.Identity() if config.dim is None else nn.Linear(self.features_dim, config.dim, bias=config.bias)
        self.head = nn.Identity() if config.head is None else Head(config.head)
        if config.head is not None:
            self._check_head(config.head.in_features)
        self.train(self.training)

    @classmethod
    def create(
        cls, backbone: str, *, pretrained: bool = False, weights: str | PathLike[str] | None = None, **settings: Any
    ) -> Self:
        """`Embedder(EmbedderConfig(backbone=backbone, **settings), ...)`: settings are the fields of `EmbedderConfig`.

        A backbone of your own, such as `mine.py:build`, is loaded, which runs its code.

        Example:
            >>> embedder = Embedder.create("test_resnet", pooling="gem", normalization="layer", dim=16)
            >>> embedder(torch.zeros(2, 3, 64, 64)).shape
            torch.Size([2, 16])
        """
        try:
            config = EmbedderConfig(backbone=backbone, **settings)
        except ValidationError as error:
            raise ValueError(f"these settings do not make an embedder: {model_folder.error_text(error)}.") from error
        return cls(config, pretrained=pretrained, weights=weights)

    @property
    def input(self) -> ImageInput:
        """The image preprocessing: size, mean, std, interpolation, resize, squash, fast_jpeg, decoder."""
        return self.config.input

    @property
    def features_dim(self) -> int:
        """Width of `features`."""
        return self.backbone.layout.dim

    @property
    def dim(self) -> int:
        """Width of the embeddings."""
        return self._dim_before_head if self.config.head is None else self.config.head.out_features

    @property
    def _dim_before_head(self) -> int:
        return self.config.dim or self.features_dim

    def features(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch features"]:
        """Pooled and normalized features in float32, before the projection; a PCA is computed from them."""
        self.backbone.check_images(images)
        return NORMALIZATIONS[self.config.normalization](self._pool(images).float())

    def before_head(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch width"]:
        """The unit vectors that the head takes; without a head, the embeddings."""
        features = self.features(images)
        if isinstance(self.projection, nn.Linear):
            features = self.projection(features.to(self.projection.weight.dtype))
        return normalize(features.float(), dim=-1)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        return self.head(self.before_head(images))

    def _pool(self, images: Tensor) -> Tensor:
        if self.config.pooling == "timm":
            return self.backbone.timm_pooled(images)
        special, positions = self.backbone.tokens(images)
        return self.backbone.apply_head(special[:, 0] if self.config.pooling == "token" else self.pooling(positions))

    def train(self, mode: bool = True) -> Self:
        """As in torch; with `freeze_batchnorm` the BatchNorm layers stay in evaluation mode, with the faster backward."""
        super().train(mode)
        if self.config.freeze_batchnorm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    keep_memory_format(module.eval())
        return self

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter once: "backbone" (all of the network's) and "head" (GeM's power, projection, head; may be empty)."""
        head = [*self.pooling.parameters(), *self.projection.parameters(), *self.head.parameters()]
        return {"backbone": list(self.backbone.parameters()), "head": head}

    def with_projection(self, weight: Float[Tensor, "dim features"], bias: Float[Tensor, " dim"] | None) -> Self:
        """A copy with this projection, for example `pca_projection(moments, dim)`; this embedder is not changed."""
        if weight.ndim != 2 or weight.shape[1] != self.features_dim or (bias is not None and bias.shape != weight.shape[:1]):
            raise ValueError(
                f"weight {list(weight.shape)} and bias {None if bias is None else list(bias.shape)} do not project features of "
                f"width {self.features_dim}; give [dim, {self.features_dim}] and [dim]."
            )
        if self.config.head is not None:
            raise ValueError("this embedder has a head, trained for its present projection; project one without a head.")
        projected = copy.deepcopy(self)
        projected.config = self.config.model_copy(update={"dim": len(weight), "bias": bias is not None})
        projected.projection = nn.Linear(self.features_dim, len(weight), bias=bias is not None)
        with torch.no_grad():
            projected.projection.weight.copy_(weight)
            if bias is not None:
                projected.projection.bias.copy_(bias)
        projected.projection.to(next(self.backbone.parameters()))
        return projected

    def with_head(self, head: Head) -> Self:
        """A copy whose embeddings go through this head, such as one of `suprank adapt`; this embedder is not changed.

        It is saved, loaded, exported and used like any other. A head is trained on the embeddings of one model, so an embedder
        has at most one.

        Example:
            >>> from suprank.models import Embedder, Head, HeadConfig
            >>> embedder = Embedder.create("test_resnet", dim=16).with_head(Head(HeadConfig(in_features=16, out_features=4)))
            >>> embedder(torch.zeros(2, 3, 64, 64)).shape
            torch.Size([2, 4])
        """
        if self.config.head is not None:
            raise ValueError("this embedder already has a head, and heads do not stack; take the model without one.")
        self._check_head(head.config.in_features)
        adapted = copy.deepcopy(self)
        adapted.config = self.config.model_copy(update={"head": head.config})
        adapted.head = copy.deepcopy(head).to(next(self.backbone.parameters())).train(self.training)
        return adapted

    def _check_head(self, in_features: int) -> None:
        if in_features != self._dim_before_head:
            raise ValueError(
                f"the head takes embeddings of width {in_features}, but those of this model ({self.config.backbone}) have "
                f"width {self._dim_before_head}; take the model whose embeddings the head was trained on."
            )

    def save(self, folder: str | PathLike[str]) -> None:
        """Write `model.safetensors` and `embedder.json` into a folder (see `suprank.models.model_folder`)."""
        model_folder.write_model(folder, self.config, self.state_dict())

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        device: torch.device | str = "cpu",
        settings: Mapping[str, Any] | None = None,
        trust_code: bool = False,
    ) -> Self:
        """The embedder of a folder that `save` wrote, in evaluation mode. Nothing is downloaded.

        `from_pretrained` also loads from the Hugging Face Hub.

        `settings` replace entries of the saved `EmbedderConfig`, such as how images are resized. A model whose backbone is
        code of a user's own raises an `UntrustedCodeError` unless the user has consented to it before, or does by `trust_code`:
        then the code is loaded from the file or module that the folder names.
        """
        config, state = model_folder.read_model(folder, settings or {})
        with trusting(trust_code):
            require_consent(config.backbone, "backbone", folder)
        with torch.random.fork_rng(devices=[]):  # the initial weights, replaced below, do not use the caller's random numbers
            embedder = cls(config)
        model_folder.load_state(state, embedder, folder, config.backbone)
        return embedder.eval().to(device)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # without further keywords, and without a request for their config.json
        cls,
        pretrained_model_name_or_path: str | PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | PathLike[str] | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        device: torch.device | str = "cpu",
        settings: Mapping[str, Any] | None = None,
        trust_code: bool = False,
    ) -> Self:
        """The embedder of a repository on the Hugging Face Hub, such as "org/name", or of a folder, in evaluation mode.

        Its `embedder.json` and `model.safetensors` are downloaded once, into the cache of huggingface_hub, and no code is.
        `revision` is a branch, a tag or a commit (also "org/name@revision"); `token` and the three arguments after it are those
        of `huggingface_hub.hf_hub_download`, and the others those of `load`. Raises a `HubError` with a sentence on what to do.

        Example:
            >>> embedder = Embedder.from_pretrained("org/name", revision="v1")  # doctest: +SKIP
        """
        name = str(pretrained_model_name_or_path)
        if Path(name).is_dir():
            if revision is not None:
                raise ValueError(f"{name} is a folder, which has no revision {revision!r}; leave revision out.")
            return cls.load(name, device=device, settings=settings, trust_code=trust_code)
        try:
            wanted = HubName.parse(name)
        except ValueError as error:
            raise FileNotFoundError(f"there is no folder {name}, and {error}") from None
        if revision is not None and wanted.revision not in (None, revision):
            raise ValueError(f"{name} and revision={revision!r} name two revisions; give one of them.")
        folder = hub.download_embedder(
            HubName(wanted.repo_id, wanted.revision or revision),
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            force_download=force_download,
        )
        return cls.load(folder, device=device, settings=settings, trust_code=trust_code)

    def push_to_hub(  # type: ignore[override]  # our files are always the same, so that there are no patterns to choose them
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        branch: str | None = None,
        commit_message: str | None = None,
        token: str | bool | None = None,
        create_pr: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
    ) -> CommitInfo:
        """Push the embedder to a repository of the Hugging Face Hub, which is created if need be, as one commit.

        The repository gets what `save` writes and a model card, which says what the model is and how to load it;
        `model_card_kwargs` are arguments of `generate_model_card`. `suprank.push_to_hub` writes a card with the metrics, the
        data and the recipe of a run.

        `branch` is by default the main one. `private` is for a new repository: if it is true, one that is there already and
        public is refused. `token` is by default the one of `hf auth login`. Returns the commit: its address, which has `oid`
        and further attributes.
        """
        check_repo_id(repo_id)
        with TemporaryDirectory(prefix="suprank-") as folder:
            self.save_pretrained(folder, model_card_kwargs={"repo_id": repo_id, **(model_card_kwargs or {})})
            return hub.upload_folder(
                repo_id,
                Path(folder),
                private=private,
                branch=branch,
                commit_message=commit_message,
                token=token,
                create_pr=create_pr,
            )

    def generate_model_card(self, repo_id: str = "org/name", **sections: Any) -> ModelCard:
        """The model card of a repository; see `suprank.models.model_card`."""
        return model_card(self, repo_id, **sections)

    def _save_pretrained(self, save_directory: Path) -> None:
        self.save(save_directory)

    def fingerprint(self) -> str:
        """A hash of the config and all weights: equal for equal embedders, on any device."""
        return model_folder.fingerprint(self.config, model_folder.state_bytes(self.state_dict()))

    def network_fingerprint(self) -> str:
        """The fingerprint without the head and without how images are read, which embeddings record on their own.

        It is the same before and after `with_head`, and for one model that was saved with two image sizes.
        """
        state = {name: value for name, value in self.state_dict().items() if not name.startswith("head.")}
        return model_folder.fingerprint(self.config, model_folder.state_bytes(state), _NOT_OF_THE_NETWORK)


def _why(backbone: Backbone) -> str:
    """Why there is nothing to choose, for a backbone that returns vectors."""
    return ", which returns vectors that need no pooling" if backbone.layout.form == "vector" else ""


def _fill_defaults(config: EmbedderConfig, defaults: ImageInput) -> EmbedderConfig:
    """The config with the backbone's defaults in place of None."""
    entries = defaults._asdict()
    values = {"image_size": entries.pop("size"), "precision": "fp32", **entries}
    return config.model_copy(update={key: value for key, value in values.items() if getattr(config, key) is None})
