"""All settings of a training run: a tree of frozen models. Recipes are written in it, and a run folder keeps it resolved.

Every entry says its unit or the paper's letter. Unknown entries are errors, and so are entries that the chosen loss or sampler
would not read: a setting that nobody reads is a mistake that nobody notices. Types are strict: a whole number may stand for a
fraction and a list for a tuple, but true is no number, 100.0 no whole number and "no" no truth value. Whatever depends on the
recipe alone is checked here, when it is read, and not when training starts.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from suprank.evaluation.metric_names import parse_metric
from suprank.models.config import EmbedderConfig
from suprank.training.loss_names import LOSSES
from suprank.training.objective import build_loss

DRAWN = ("emoji", "glyphs")
"""Manifests that are drawn on first use."""

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

# TOML and JSON have lists only; what is in them stays strict.
Range = Annotated[tuple[Positive, Positive], Field(strict=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
Counts = Annotated[tuple[Count, ...], Field(strict=False)]
Numbers = Annotated[tuple[float, ...], Field(strict=False)]
Positives = Annotated[tuple[Positive, ...], Field(strict=False)]
NotNegatives = Annotated[tuple[NotNegative, ...], Field(strict=False)]


class Part(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def changed(self) -> set[str]:
        """The entries that differ from their defaults. The others are harmless, even where nobody reads them."""
        return {name for name, field in type(self).model_fields.items() if getattr(self, name) != field.get_default()}


class DataConfig(Part):
    """Which images."""

    manifest: str
    """A .parquet or .csv manifest, or `emoji` or `glyphs`, which are drawn on first use."""

    tests: dict[str, str] = {}
    """Manifests of further test sets by name, such as DyML's `fine`, `middle` and `coarse`; each is judged on its own."""

    root: str | None = None
    """Where the images of `manifest` are; by default as saved in it."""

    levels: Names | None = None
    """Levels of labels to train and judge with, finest first; by default all."""

    workers: int | None = Field(default=None, ge=0)
    """Processes that decode images, for each process that trains; 0 decodes in that one. By default one a core, 16 at most."""

    hold: bool = False
    """Decode every image once and keep it in memory: for sets of some gigabytes at most."""

    fast_jpeg: bool = False
    """Decode large JPEGs at a fraction of their size: several times faster, pixels differ by a few gray levels."""

    on_broken: Literal["raise", "skip"] = "raise"
    """Whether a broken image stops training, or another of its class takes its place and it is counted."""

    @model_validator(mode="after")
    def _read(self) -> Self:
        if self.manifest in DRAWN and self.root is not None:
            raise ValueError(f"{self.manifest} is drawn by suprank, which knows where, and does not read root; leave it out")
        if self.levels is not None and not 0 < len(self.levels) == len(set(self.levels)):
            raise ValueError(f"levels={list(self.levels)} must be one or more levels, once each, finest first")
        return self


class ImagesConfig(Part):
    """How images are cropped; colors are normalized as the model says."""

    size: Count = 224
    """Side of the square that the network sees, in pixels."""

    resize: int | None = Field(default=None, ge=1)
    """Short side to which a training image is resized before it is cropped; by default it is not."""

    crop_scale: Range = (0.16, 1.0)
    """Smallest and largest share of the area that a random crop covers."""

    crop_ratio: Range = (0.75, 1.33)
    """Smallest and largest width of a random crop, as a multiple of its height."""

    flip: Share = 0.5
    """Probability that a training image is mirrored."""

    test_resize: int = Field(default=256, ge=0)
    """Short side to which a test image is resized before its center is cropped; 0 leaves it as it is."""

    squash: bool = False
    """Resize test images to test_resize × test_resize, losing the aspect, as is usual on SOP."""

    interpolation: Literal["bilinear", "bicubic", "nearest"] = "bilinear"
    """How test images are resized."""

    @model_validator(mode="after")
    def _crops(self) -> Self:
        for name, (low, high) in (("crop_scale", self.crop_scale), ("crop_ratio", self.crop_ratio)):
            if low > high:
                raise ValueError(f"{name}={[low, high]} must have the smaller number first; try [{high}, {low}]")
        if self.crop_scale[1] > 1:
            raise ValueError(f"crop_scale={list(self.crop_scale)} must be shares of the area, 1 at most")
        return self

    @model_validator(mode="after")
    def _covers(self) -> Self:
        if 0 < self.test_resize < self.size:
            raise ValueError(
                f"test_resize={self.test_resize} must be size={self.size} or more, or 0 to leave images as they are"
            )
        if self.squash and not self.test_resize:
            raise ValueError("squash=true resizes test images, and test_resize=0 does not; give a test_resize, such as 256")
        return self


class ModelConfig(EmbedderConfig):
    """What is trained: an embedder made anew, or one that was saved."""

    backbone: str = "resnet50"

    start: str | None = None
    """Folder of a saved embedder to start from, for example of `suprank models pca`. It brings its own settings; of the others
    here only `freeze_batchnorm` may be given."""

    pretrained: bool = True
    """Start from timm's weights for the backbone, downloaded once."""

    weights: str | None = None
    """A file with weights of the backbone, in place of timm's."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        fields = type(self).model_fields
        changed = {name for name, field in fields.items() if getattr(self, name) != field.get_default()}
        further = sorted(changed - {"start", "freeze_batchnorm"})
        if self.start is not None and further:
            raise ValueError(f"start brings a whole embedder, so {', '.join(further)} must be left out")
        elsewhere = {
            **dict.fromkeys(("image_size", "resize", "squash", "interpolation"), "[images]"),
            "fast_jpeg": "[data]",
            "precision": "[engine]",
        }
        for name in sorted(changed & set(elsewhere)):
            raise ValueError(f"{name} must be left out: the table {elsewhere[name]} of the recipe sets it")
        return self


class LossConfig(Part):
    """What is minimized; `suprank recipes --losses` tells the names, and which entries each of them reads."""

    name: str
    """A surrogate, a decomposability loss, or one of the paper's combinations of both."""

    weight: Share = 0.1
    """λ: the weight of the decomposability loss (eq:rod_framework); the surrogate has the rest."""

    decomposability: Literal["pairs", "proxies"] | None = None
    """L_DG on pairs (eq:labs) or L*_DG on proxies (eq:cluster_loss); by default as the paper pairs the loss."""

    tau: Positive = 0.01
    """τ of the sigmoid in the rank."""

    rho: NotNegative = 100.0
    """ρ, the slope of H⁻ beyond δ."""

    delta: NotNegative = 0.05
    """δ, where the slope of H⁻ begins."""

    jump: float = 0.5
    """By how much H⁻ jumps at 0; the authors' iNaturalist recipes have 0."""

    value_at_delta: float | None = None
    """H⁻ just beyond δ; by default σ(δ/τ) + jump, as in the paper. The authors' recipes have 1.44, or 1 on iNaturalist."""

    ks: Counts = (1, 2, 4, 8, 16)
    """K of recall at k."""

    rank_tau: Positive = 1.0
    """τ* of recall at k."""

    decay: NotNegative = 1.0
    """α of the relevance (l/L)^α / |Ω^(l)| (eq:hierarchy_relevance); above 1, HAPPIER_F."""

    level_weights: NotNegatives | Literal["equal"] | None = None
    """w of Σ w_l AP^(l) (prop:link_hap_ap), one for each level, coarsest first, or all alike; then `decay` is not read."""

    include_self: bool = False
    """Rank the query among its own items, as the authors' training code does."""

    mixup: bool = False
    """SiMix: further items between two positives, by mixing similarities; for surrogates, in the batch."""

    positive_floor: float = 0.9
    """α of L_DG: positives below it are pulled up."""

    negative_ceiling: float = 0.6
    """β of L_DG: negatives above it are pushed down."""

    average: Literal["all", "violating"] = "all"
    """Over which pairs L_DG is the mean; the authors' code has the violating ones."""

    temperature: Positive = 0.05
    """η of L*_DG, and of sum-nsm."""

    bins: int | None = Field(default=None, ge=2)
    """Of the histogram of fast-ap (10 by default) and softbin-ap (20)."""

    interpolation: Positive | None = None
    """λ of blackbox-ap, by default 4: how far its solver steps along the gradient."""

    margin: float | None = None
    """By default 0.02 in blackbox-ap, where it scales the noise; 0.05 in triplet-sh, of cosines; 0.2 in triplet-dw, of
    distances; 0.5 in contrastive-xbm, above which negatives count; 0.1 in proxy-anchor, 0.3 radians in arcface, 0.35 in
    cosface."""

    cutoff: Positive | None = None
    """Distance below which triplet-dw draws no more often, by default 0.5."""

    farthest: Positive | None = None
    """Distance beyond which triplet-dw draws no negatives, by default 1.4."""

    alpha: Positive | None = None
    """Of multi-similarity, by default 2: how much the farthest positives count."""

    beta: Positive | None = None
    """Of multi-similarity, by default 50: how much the nearest negatives count."""

    base: float | None = None
    """λ of multi-similarity, by default 0.5: the similarity that parts positives from negatives."""

    scale: Positive | None = None
    """By default 3 in proxy-nca (1/√T), 32 in proxy-anchor and csl, 30 in arcface, 64 in cosface."""

    margins: Numbers | None = None
    """Of csl, one for each level, finest first; by default the authors'."""

    @model_validator(mode="after")
    def _known_and_read(self) -> Self:
        if self.name not in LOSSES:
            raise ValueError(f"there is no loss {self.name!r}; choose from {', '.join(LOSSES)}")
        unread = self.changed() - {"name"} - LOSSES[self.name].reads(self.decomposability)
        if unread:
            raise ValueError(f"{self.name} does not read {', '.join(sorted(unread))}; leave it out")
        if self.level_weights is not None and "decay" in self.changed():
            raise ValueError("level_weights say what each level counts, and decay is not read beside them; leave one out")
        self._check_values()
        return self

    def _check_values(self) -> None:
        """Let the loss itself refuse values, by making one for a single class; how many levels there are is not known yet."""
        per_level = self.margins or (self.level_weights if isinstance(self.level_weights, tuple) else None)
        classes = torch.zeros(1, len(per_level) if per_level else 1, dtype=torch.int64)
        # Proxies are drawn. A loss of another package that is not installed is missed when training starts.
        with torch.random.fork_rng(devices=[]), suppress(ImportError):
            build_loss(self, classes, dim=1)

    @property
    def has_proxies(self) -> bool:
        return LOSSES[self.name].has_proxies(self.decomposability)

    @property
    def ranks_items(self) -> bool:
        """Whether the loss looks at other images, and so can look at a memory of them."""
        return LOSSES[self.name].ranks_items(self.decomposability)


class BatchConfig(Part):
    """Which images meet in a step, all processes together."""

    size: Count = 256
    images_per_class: Count = 4

    sampler: Literal["m-per-class", "hierarchical"] = "m-per-class"
    """Any classes together, or those of a few coarse classes."""

    max_images_per_class: int | None = Field(default=None, ge=1)
    """Images of a class that have a turn in an epoch, at most; m-per-class only."""

    batches: int | None = Field(default=None, ge=1)
    """Batches of an epoch; by default as many as give every image its turn."""

    level: str | None = None
    """The coarse level of the hierarchical sampler; by default the second finest."""

    coarse_per_batch: Count = 2
    """Coarse classes in a batch of the hierarchical sampler."""

    batches_per_combination: Count = 5
    """Batches that each combination of coarse classes makes in an epoch of the hierarchical sampler."""

    chunk: int | None = Field(default=None, ge=1)
    """Images that go through the network at once, in each process. With fewer than the batch has, every image goes through it
    twice, so that memory is bounded by the chunk and the gradient is still that of the whole batch."""

    accumulate: Count = 1
    """Batches whose gradients are averaged in a step of the optimizer; each has a loss of its own."""

    @model_validator(mode="after")
    def _read(self) -> Self:
        unread = {
            "m-per-class": {"level", "coarse_per_batch", "batches_per_combination"},
            "hierarchical": {"max_images_per_class"},
        }[self.sampler] & self.changed()
        if unread:
            raise ValueError(f"the {self.sampler} sampler does not read {', '.join(sorted(unread))}; leave it out")
        return self


class MemoryConfig(Part):
    """Embeddings of earlier batches, as further items to rank."""

    size: Annotated[int, Field(ge=0)] | Literal["all"] = 0
    """How many; 0 for no memory, "all" for as many as there are training images."""

    per_item: bool = False
    """A place for each training image, so that none is there twice; needs size = "all"."""

    start_epoch: int = Field(default=0, ge=0)
    """The first epoch whose loss looks at the memory; it is filled from the first on."""

    weight: Share = 0.5
    """Weight of the loss against the memory; that within the batch has the rest."""

    @model_validator(mode="after")
    def _slots(self) -> Self:
        if self.per_item and self.size != "all":
            raise ValueError(f'per_item has a place for every image, so size={self.size} must be "all"')
        unread = self.changed() - {"size"}
        if self.size == 0 and unread:
            raise ValueError(f"size=0 is no memory, and does not read {', '.join(sorted(unread))}; leave it out")
        return self


class ScheduleConfig(Part):
    """An optimizer and how its learning rate moves."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: NotNegative
    weight_decay: NotNegative = 0.0
    momentum: Share = 0.9
    """Of sgd, with Nesterov's correction; not read by the others."""

    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    """Of the learning rate, moved at every step: constant, half a cosine down to `floor`, or times `factor` at `milestones`."""

    floor: NotNegative = 0.0
    """Learning rate at the end of the cosine; a group whose own rate is smaller keeps that."""

    milestones: Positives = ()
    """Epochs after which the rate is multiplied by `factor`."""

    factor: Positive = 0.3
    warmup: NotNegative = 0.0
    """Epochs in which the rate rises from 0, in a straight line."""

    @model_validator(mode="after")
    def _read_by_schedule(self) -> Self:
        if self.schedule == "steps" and not self.milestones:
            raise ValueError("schedule='steps' needs milestones, such as [25, 50]")
        unread = {
            "constant": {"floor", "milestones", "factor"},
            "cosine": {"milestones", "factor"},
            "steps": {"floor"},
        }[self.schedule] & self.changed()
        if unread:
            raise ValueError(f"the {self.schedule} schedule does not read {', '.join(sorted(unread))}; leave it out")
        if self.name != "sgd" and "momentum" in self.changed():
            raise ValueError(f"{self.name} does not read momentum; leave it out")
        return self


class OptimizerConfig(ScheduleConfig):
    """Of the network. `lr` is the backbone's."""

    lr: NotNegative = 1e-5
    head_lr: NotNegative | None = None
    """Learning rate of GeM's power and the projection; by default that of the backbone."""


class ProxiesConfig(ScheduleConfig):
    """Of the proxies, whose scale has no meaning, so that their rates may be large."""

    lr: NotNegative = 1e-2


class RunConfig(Part):
    """How long, and from which random numbers."""

    epochs: Count = 100
    frozen_epochs: int = Field(default=0, ge=0)
    """Epochs at the beginning in which only the head (and the proxies) learn."""

    clip: Positive | None = None
    """Largest norm of the gradient of the network; longer ones are shortened to it."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of weights, batches and augmentations."""


class EngineConfig(Part):
    """What it runs on."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Count = 1
    """Of each machine. torchrun and SLURM say themselves how many processes they started."""

    nodes: Count = 1
    """Machines."""

    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """With several devices: a whole network on each (ddp, the default), or its weights spread over them (fsdp, GPUs only)."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What the network computes in; scores, ranks and losses are float32 always."""

    sync_batchnorm: bool = False
    """Statistics of BatchNorm over the batch of all devices; GPUs only."""


class EvaluationConfig(Part):
    """Exact metrics of test images, in training and at its end."""

    every: int = Field(default=20, ge=0)
    """Epochs between evaluations; 0 evaluates at the end only."""

    at_start: bool = False
    """Evaluate also before the first step."""

    metrics: Names | None = None
    """Names as in `suprank evaluate --metric`; by default all that apply."""

    best: str | None = None
    """Metric that decides which model is the best; by default H-AP, or AP with one level of labels."""

    decay: NotNegative = 1.0
    """α of the relevance in H-AP."""

    batch_size: Count = 64
    """Images embedded at once."""

    @model_validator(mode="after")
    def _metrics_exist(self) -> Self:
        if self.metrics is not None and not self.metrics:
            raise ValueError("metrics=[] names none; name one or more, or leave it out to have all that apply")
        chosen = None if self.metrics is None else {str(parse_metric(name)) for name in self.metrics}
        best = None if self.best is None else str(parse_metric(self.best))
        if best is not None and chosen is not None and best not in chosen:
            raise ValueError(f"best={self.best!r} is not among metrics={list(self.metrics or ())}; add it there")
        return self


class CheckpointConfig(Part):
    """What an interruption can cost."""

    minutes: Positive = 10.0
    """Between checkpoints within an epoch; the end of every epoch has one too, if a minute has passed."""

    keep: int = Field(default=2, ge=2)
    """Checkpoints kept: should the last one be damaged, the one before is taken."""


class LoggingConfig(Part):
    """What is written down; the file metrics.jsonl always is."""

    every: Count = 10
    """Steps between two lines."""

    tensorboard: bool = True
    wandb: str | None = None
    """Project of Weights & Biases, if it is to be told."""

    mlflow: str | None = None
    """Tracking URI or folder of MLflow, if it is to be told."""


class TrainConfig(Part):
    """A whole recipe."""

    data: DataConfig
    images: ImagesConfig = ImagesConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig
    batch: BatchConfig = BatchConfig()
    memory: MemoryConfig = MemoryConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    proxies: ProxiesConfig = ProxiesConfig()
    run: RunConfig = RunConfig()
    engine: EngineConfig = EngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def embedder(self) -> EmbedderConfig:
        """The settings of an embedder made anew.

        It is saved with how the recipe reads and embeds test images, so that whoever uses the model gets the run's numbers.
        """
        settings = self.model.model_dump(exclude={"start", "pretrained", "weights"})
        return EmbedderConfig(**{**settings, **self.evaluation_input})

    @property
    def evaluation_input(self) -> dict[str, Any]:
        """How test images are read and embedded, as entries of `EmbedderConfig`."""
        images = self.images
        return {
            "image_size": (images.size, images.size),
            "resize": images.test_resize,
            "squash": images.squash,
            "interpolation": images.interpolation,
            "fast_jpeg": self.data.fast_jpeg,
            "precision": self.engine.precision,
        }

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.memory.size and not self.loss.ranks_items:
            raise ValueError(f"memory.size={self.memory.size!r} is of no use to {self.loss.name}, which ranks no items; use 0")
        if self.proxies.changed() and not self.loss.has_proxies:
            raise ValueError(f"proxies are set, but {self.loss.name} has none; leave them out")
        if self.run.frozen_epochs >= self.run.epochs:
            raise ValueError(f"run.frozen_epochs={self.run.frozen_epochs} must be fewer than run.epochs={self.run.epochs}")
        if self.run.frozen_epochs and self.model.start is None and self.model.dim is None and not self.loss.has_proxies:
            raise ValueError("run.frozen_epochs would train nothing: there is no projection; set model.dim, or 0 epochs")
        self._check_groups()
        levels = self.data.levels
        if self.batch.level is not None and levels is not None and self.batch.level not in levels[1:]:
            raise ValueError(f"batch.level={self.batch.level!r} must be one of data.levels={list(levels)}, and not the finest")
        if self.engine.accelerator == "cpu" and self.engine.strategy == "fsdp":
            raise ValueError("engine.strategy='fsdp' spreads a network over GPUs; with engine.accelerator='cpu' use 'auto'")
        if self.engine.accelerator == "cpu" and self.engine.precision == "fp16":
            raise ValueError("engine.precision='fp16' is for GPUs; with engine.accelerator='cpu' use 'fp32', or 'bf16'")
        return self

    def _check_groups(self) -> None:
        """Batches hold whole groups of `images_per_class`."""
        batch, whole = self.batch, self.batch.images_per_class
        for name in ("size", "max_images_per_class"):
            count = getattr(batch, name)
            if count is not None and count % whole:
                below, above = count // whole * whole, -(-count // whole) * whole
                raise ValueError(
                    f"batch.{name}={count} must be a multiple of batch.images_per_class={whole}, because images come in groups "
                    f"of a class; try {f'{below} or ' if below else ''}{above}"
                )
        if batch.sampler == "hierarchical" and batch.coarse_per_batch > batch.size // whole:
            raise ValueError(
                f"batch.coarse_per_batch={batch.coarse_per_batch} must be {batch.size // whole} at most: "
                f"batch.size={batch.size} has room for that many groups of batch.images_per_class={whole}"
            )
