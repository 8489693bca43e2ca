"""All settings of a training run: a tree of frozen pydantic models. Recipes are written in it, and a run saves it resolved.

Every key says its unit or the paper's letter. Unknown keys are errors, and so are keys that have no effect with the chosen
loss, sampler or schedule, because nobody would notice them. Types are strict: a whole number may stand for a fraction and a
list for a tuple, but true is no number, 100.0 no whole number and "no" no truth value. What depends on the recipe alone is
checked when the recipe is read, not when training starts. The table `[loss]` is in `suprank.training.loss_specs`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from suprank.evaluation.metric_names import parse_metric
from suprank.models.config import MAX_SIDE, EmbedderConfig
from suprank.system.custom_code import require_consent
from suprank.training.config_types import (
    ConfigTable,
    Count,
    Counts,
    Names,
    NotNegative,
    Positive,
    Positives,
    Range,
    Share,
)
from suprank.training.loss_specs import AnyLossSpec

GENERATED_DATASETS = ("emoji", "glyphs")
"""Datasets that are drawn on first use."""


class DataConfig(ConfigTable):
    """The images to train and test with."""

    manifest: str
    """A .parquet or .csv manifest, or `emoji` or `glyphs`, which are drawn on first use."""

    tests: dict[str, str] = Field(default={})
    """Manifests of further test sets by name, such as DyML's `fine`, `middle` and `coarse`; each is evaluated on its own."""

    root: str | None = None
    """Folder of the images of `manifest`; by default the one saved in it."""

    levels: Names | None = None
    """Label levels to train and evaluate with, finest first; by default all."""

    workers: int | None = Field(default=None, ge=0)
    """Workers that decode images, for each training process; 0 decodes in that process. By default one per core, 16 at most."""

    cache_images: bool = False
    """Decode every image once and keep it in memory, for datasets of a few gigabytes at most."""

    cache_folder: str | None = None
    """Folder for the decoded images of `cache_images` and `crop_on_device`: the first run writes them there, and other runs on
    this machine map them into memory instead of decoding again."""

    crop_on_device: bool = False
    """Keep the decoded training images on the GPU and crop whole batches there: faster where images are small and many. Crops
    are drawn from other random numbers. Without a GPU the CPU does the same."""

    fast_jpeg: bool = False
    """Decode large JPEGs at a fraction of their size: several times faster, pixels differ by a few gray levels."""

    decoder: Literal["pil", "turbo"] = "pil"
    """What decodes JPEGs: `turbo` is faster, with the same pixels, and decodes no more than a training crop needs; with
    `fast_jpeg`, at the fraction that this crop allows."""

    on_broken: Literal["raise", "skip"] = "raise"
    """`raise` stops training at a broken image; `skip` replaces it by another image of its class and counts it."""

    @model_validator(mode="after")
    def _check_manifest(self) -> Self:
        if self.manifest in GENERATED_DATASETS and self.root is not None:
            raise ValueError(f"root has no effect on {self.manifest}, whose images suprank draws itself; leave it out")
        if self.levels is not None and not 0 < len(self.levels) == len(set(self.levels)):
            raise ValueError(f"levels={list(self.levels)} must be one or more levels, once each, finest first")
        if self.cache_folder is not None and not (self.cache_images or self.crop_on_device):
            raise ValueError("cache_folder has no effect without cache_images or crop_on_device; set one of them to true")
        return self


class ImagesConfig(ConfigTable):
    """How images are cropped and resized. Colors are normalized as the model requires."""

    size: Annotated[Count, Field(le=MAX_SIDE)] = 224
    """Side of the square image that the network gets, in pixels."""

    resize: int | None = Field(default=None, ge=1, le=MAX_SIDE)
    """Short side in pixels to which a training image is resized before it is cropped; by default it is not resized."""

    crop_scale: Range = (0.16, 1.0)
    """Smallest and largest share of the area that a random crop covers."""

    crop_ratio: Range = (0.75, 1.33)
    """Smallest and largest aspect ratio (width / height) of a random crop."""

    flip: Share = 0.5
    """Probability that a training image is flipped horizontally."""

    test_resize: int = Field(default=256, ge=0, le=MAX_SIDE)
    """Short side in pixels to which a test image is resized before its center is cropped; 0 does not resize it."""

    squash: bool = False
    """Resize test images to test_resize × test_resize, whatever their aspect ratio, as is usual on SOP."""

    interpolation: Literal["bilinear", "bicubic", "nearest"] = "bilinear"
    """Interpolation with which test images are resized."""

    @model_validator(mode="after")
    def _check_crops(self) -> Self:
        for name, (low, high) in (("crop_scale", self.crop_scale), ("crop_ratio", self.crop_ratio)):
            if low > high:
                raise ValueError(f"{name}={[low, high]} must have the smaller number first; try [{high}, {low}]")
        if self.crop_scale[1] > 1:
            raise ValueError(f"crop_scale={list(self.crop_scale)} must be shares of the area, 1 at most")
        return self

    @model_validator(mode="after")
    def _check_test_resize(self) -> Self:
        if 0 < self.test_resize < self.size:
            raise ValueError(
                f"test_resize={self.test_resize} must be size={self.size} or more, or 0 to leave images as they are"
            )
        if self.squash and not self.test_resize:
            raise ValueError("squash=true resizes test images, but test_resize=0 does not; set test_resize, to 256 for example")
        return self


class ModelConfig(EmbedderConfig):
    """The network to train: a new embedder, or a saved one."""

    backbone: str = "resnet50"

    _named_in: str | None = PrivateAttr(default=None)  # the file that names a backbone of the user's own, as in a `LossSpec`

    start: str | None = None
    """Folder of a saved embedder to start from, for example one that `suprank models create --pca` wrote. It brings its own
    settings, so that only `freeze_batchnorm` may be set beside it."""

    pretrained: bool = True
    """Start from timm's weights of the backbone, which are downloaded once. Without effect on a backbone of your own."""

    weights: str | None = None
    """File with weights of the backbone, in place of timm's or of those that your own backbone starts with."""

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        fields = type(self).model_fields
        changed = {name for name, field in fields.items() if getattr(self, name) != field.get_default()}
        further = sorted(changed - {"start", "freeze_batchnorm"})
        if self.start is not None and further:
            raise ValueError(f"start brings a whole embedder, so {', '.join(further)} must be left out")
        elsewhere = {
            **dict.fromkeys(("image_size", "resize", "squash", "interpolation"), "[images]"),
            **dict.fromkeys(("fast_jpeg", "decoder"), "[data]"),
            "precision": "[engine]",
        }
        for name in sorted(changed & set(elsewhere)):
            raise ValueError(f"{name} must be left out: the table {elsewhere[name]} of the recipe sets it")
        if self.hub_backbone is not None:
            raise ValueError("hub_backbone must be left out: it is looked up on the Hub when the run begins")
        return self


class BatchConfig(ConfigTable):
    """The images of one batch, over all processes."""

    size: Count = 256
    images_per_class: Count = 4

    sampler: Literal["m-per-class", "hierarchical"] = "m-per-class"
    """`m-per-class` draws any classes, `hierarchical` the classes of a few coarse ones."""

    max_images_per_class: int | None = Field(default=None, ge=1)
    """Most images of a class in an epoch; for m-per-class only."""

    batches: int | None = Field(default=None, ge=1)
    """Batches of an epoch; by default as many as it takes to draw every image."""

    level: str | None = None
    """Coarse level of the hierarchical sampler; by default the second finest."""

    coarse_per_batch: Count = 2
    """Coarse classes in a batch of the hierarchical sampler."""

    batches_per_combination: Count = 5
    """Batches of each combination of coarse classes in an epoch of the hierarchical sampler."""

    chunk: int | None = Field(default=None, ge=1)
    """Images that go through the network at once, in each process. If they are fewer than the batch, every image goes through
    it twice (GradCache): the memory is that of a chunk, and the gradient still that of the whole batch."""

    accumulate: Count = 1
    """Batches whose gradients are averaged for one step of the optimizer; the loss is computed for each batch."""

    @model_validator(mode="after")
    def _check_sampler(self) -> Self:
        unused = {
            "m-per-class": {"level", "coarse_per_batch", "batches_per_combination"},
            "hierarchical": {"max_images_per_class"},
        }[self.sampler] & self.changed_keys()
        if unused:
            raise ValueError(f"{', '.join(sorted(unused))} has no effect with the {self.sampler} sampler; leave it out")
        return self


class MemoryConfig(ConfigTable):
    """A memory of the embeddings of earlier batches, as further items to rank (XBM)."""

    size: Annotated[int, Field(ge=0)] | Literal["all"] = 0
    """Number of embeddings; 0 for no memory, "all" for as many as there are training images."""

    per_item: bool = False
    """Keep one slot for each training image, so that none is in the memory twice; needs size = "all"."""

    start_epoch: int = Field(default=0, ge=0)
    """First epoch whose loss uses the memory, which is filled from the start."""

    weight: Share = 0.5
    """Weight of the loss against the memory; the loss within the batch has the rest."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        if self.per_item and self.size != "all":
            raise ValueError(f'per_item keeps a slot for every image, so size={self.size} must be "all"')
        unused = self.changed_keys() - {"size"}
        if self.size == 0 and unused:
            raise ValueError(f"{', '.join(sorted(unused))} has no effect without a memory (size=0); leave it out, or set size")
        return self


class ScheduleConfig(ConfigTable):
    """An optimizer and the schedule of its learning rate."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: NotNegative
    weight_decay: NotNegative = 0.0
    momentum: Share = 0.9
    """Momentum of sgd, with Nesterov's correction; the other optimizers have none."""

    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    """How the learning rate changes, step by step: not at all, as half a cosine down to `min_lr`, or times `gamma` at each of
    `milestones`."""

    min_lr: NotNegative = 0.0
    """Learning rate at the end of the cosine; a parameter group whose own rate is smaller keeps it."""

    milestones: Positives = ()
    """Epochs after which the rate is multiplied by `gamma`."""

    gamma: Positive = 0.3
    """Factor of the learning rate at each milestone."""

    warmup_epochs: NotNegative = 0.0
    """Epochs in which the learning rate rises linearly from 0."""

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.schedule == "steps" and not self.milestones:
            raise ValueError("schedule='steps' needs milestones, such as [25, 50]")
        unused = {
            "constant": {"min_lr", "milestones", "gamma"},
            "cosine": {"milestones", "gamma"},
            "steps": {"min_lr"},
        }[self.schedule] & self.changed_keys()
        if unused:
            raise ValueError(f"{', '.join(sorted(unused))} has no effect with schedule={self.schedule!r}; leave it out")
        if self.name != "sgd" and "momentum" in self.changed_keys():
            raise ValueError(f"momentum has no effect with the optimizer {self.name}; leave it out, or use sgd")
        return self


class OptimizerConfig(ScheduleConfig):
    """The optimizer of the network; `lr` is the backbone's."""

    lr: NotNegative = 1e-5
    head_lr: NotNegative | None = None
    """Learning rate of the head (GeM's power and the projection); by default that of the backbone."""


class ProxiesConfig(ScheduleConfig):
    """The optimizer of the proxies, or of whatever parameters the loss has. The scale of a proxy has no meaning, so that its
    learning rate may be large."""

    lr: NotNegative = 1e-2


class RunConfig(ConfigTable):
    """Length and seed of the run."""

    epochs: Count = 100
    frozen_epochs: int = Field(default=0, ge=0)
    """First epochs, in which only the head and the proxies are trained."""

    clip_grad_norm: Positive | None = None
    """Largest norm of the network's gradient; a longer gradient is scaled down to it."""

    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the initial weights, the batches and the augmentations."""


class EngineConfig(ConfigTable):
    """The devices and the precision."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Count = 1
    """Devices of each machine. torchrun and SLURM overrule it by the number of processes they started."""

    nodes: Count = 1
    """Number of machines."""

    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """With several devices: a copy of the network on each (ddp, the default), or its weights sharded (fsdp, GPUs only)."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the network; scores, ranks and losses are always float32."""

    sync_batchnorm: bool = False
    """Compute BatchNorm's statistics over the batch of all devices; GPUs only."""

    replay_loss: bool | None = None
    """Record the loss of a batch as a CUDA graph once and replay it at every step, on one GPU. By default for the losses of
    suprank; true does so for a loss of your own too, whose Python code then runs only while it is recorded."""


class EvaluationConfig(ConfigTable):
    """Exact metrics of the test images, during training and at its end."""

    every: int = Field(default=20, ge=0)
    """Epochs between evaluations; 0 evaluates at the end only."""

    at_start: bool = False
    """Evaluate before the first step too."""

    metrics: Names | None = None
    """Metrics, named as in `suprank evaluate --metric`; by default all that apply."""

    ks: Counts = (1, 10, 100)
    """Cut-offs of R@k, mAP@k and the like in ascending order; `metrics` names its own."""

    best: str | None = None
    """Metric that decides which model is the best; by default H-AP, or AP if there is one label level."""

    decay: NotNegative = 1.0
    """α of the relevance in H-AP."""

    level_weights: dict[str, NotNegative] = Field(default={})
    """w of wAP by the name of the level, 0 for a level that is left out; by default all levels have the same weight."""

    batch_size: Count = 64
    """Images per forward pass."""

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        if self.metrics is not None and not self.metrics:
            raise ValueError("metrics=[] is empty; name one or more, or leave it out for all that apply")
        chosen = None if self.metrics is None else {str(parse_metric(name)) for name in self.metrics}
        best = None if self.best is None else str(parse_metric(self.best))
        if best is not None and chosen is not None and best not in chosen:
            raise ValueError(f"best={self.best!r} is not among metrics={list(self.metrics or ())}; add it there")
        if chosen is not None and "ks" in self.changed_keys():
            raise ValueError(
                f"ks={list(self.ks)} has no effect, because metrics={list(self.metrics or ())} names the cut-offs; leave one "
                "of the two out (evaluation.ks= drops that of a preset)"
            )
        if chosen is not None and self.level_weights and "wAP" not in chosen:
            raise ValueError(f"level_weights has no effect, because metrics={list(self.metrics or ())} is without wAP; add it")
        return self

    @model_validator(mode="after")
    def _check_ks(self) -> Self:
        ascending = sorted(set(self.ks))
        if not self.ks or list(self.ks) != ascending:
            raise ValueError(f"ks={list(self.ks)} must be in ascending order, each once; try {ascending or [1, 10, 100]}")
        return self

    @model_validator(mode="after")
    def _check_level_weights(self) -> Self:
        if self.level_weights and not any(self.level_weights.values()):
            raise ValueError(f"level_weights={self.level_weights} must have a weight above 0; leave it out for equal weights")
        return self


class CheckpointConfig(ConfigTable):
    """How often checkpoints are saved, and how many are kept."""

    minutes: Positive = 10.0
    """Minutes between checkpoints within an epoch. The end of an epoch has one too, if a minute has passed since the last."""

    keep: int = Field(default=2, ge=2)
    """Number of checkpoints to keep: if the last is damaged, training resumes from the one before."""


class LoggingConfig(ConfigTable):
    """Loggers, beside the file metrics.jsonl, which is always written."""

    every: Count = 10
    """Steps between two entries."""

    tensorboard: bool = True
    wandb: str | None = None
    """Project of Weights & Biases to log to."""

    mlflow: str | None = None
    """Tracking URI or folder of MLflow to log to."""


class TrainConfig(ConfigTable):
    """A whole recipe."""

    data: DataConfig
    images: ImagesConfig = ImagesConfig()
    model: ModelConfig = ModelConfig()
    loss: AnyLossSpec
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
        """The settings of a new embedder.

        They include how the recipe reads and embeds test images, so that whoever uses the saved model gets the run's numbers.
        Code that a file names as the backbone needs the user's consent here, because building the embedder runs it.
        """
        require_consent(self.model.backbone, "backbone", self.model._named_in)
        settings = self.model.model_dump(exclude={"start", "pretrained", "weights", "hub_backbone"})
        return EmbedderConfig(**{**settings, **self.evaluation_input})

    @property
    def evaluation_input(self) -> dict[str, Any]:
        """How test images are read and embedded, as fields of `EmbedderConfig`."""
        images = self.images
        return {
            "image_size": (images.size, images.size),
            "resize": images.test_resize,
            "squash": images.squash,
            "interpolation": images.interpolation,
            "fast_jpeg": self.data.fast_jpeg,
            "decoder": self.data.decoder,
            "precision": self.engine.precision,
        }

    @model_validator(mode="after")
    def _check_tables(self) -> Self:
        if self.memory.size and self.loss.compares_items is False:
            raise ValueError(
                f"memory.size={self.memory.size!r} is of no use to {self.loss.name}, which does not compare images with each "
                "other; use 0"
            )
        if self.proxies.changed_keys() and self.loss.has_proxies is False:
            raise ValueError(f"[proxies] is set, but {self.loss.name} has no proxies; leave the table out")
        if self.run.frozen_epochs >= self.run.epochs:
            raise ValueError(f"run.frozen_epochs={self.run.frozen_epochs} must be fewer than run.epochs={self.run.epochs}")
        if self.run.frozen_epochs and self.model.start is None and self.model.dim is None and self.loss.has_proxies is False:
            raise ValueError("run.frozen_epochs would train nothing, since there is no projection; set model.dim, or use 0")
        self._check_groups()
        levels = self.data.levels
        if self.batch.level is not None and levels is not None and self.batch.level not in levels[1:]:
            raise ValueError(f"batch.level={self.batch.level!r} must be one of data.levels={list(levels)}, and not the finest")
        if self.engine.accelerator == "cpu" and self.engine.strategy == "fsdp":
            raise ValueError("engine.strategy='fsdp' shards a network over GPUs; with engine.accelerator='cpu' use 'auto'")
        if self.engine.accelerator == "cpu" and self.engine.precision == "fp16":
            raise ValueError("engine.precision='fp16' is for GPUs; with engine.accelerator='cpu' use 'fp32', or 'bf16'")
        if self.engine.replay_loss and (self.engine.accelerator == "cpu" or self.engine.devices * self.engine.nodes > 1):
            raise ValueError(
                "engine.replay_loss=true replays the loss on one GPU, and this run is on a CPU or on several; leave it out"
            )
        return self

    def _check_groups(self) -> None:
        """Refuse sizes that are no multiples of `images_per_class`: batches hold whole groups of a class."""
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
