"""What learns, and one step of it: images → embeddings → gathered → loss → gradients → optimizers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suprank.data.transforms import Normalize
from suprank.losses import skip_value_checks
from suprank.losses.memory import EmbeddingMemory
from suprank.models import Embedder
from suprank.models import model_folder as folders
from suprank.system import torchvision_operators
from suprank.training import distributed
from suprank.training.embedders import WEIGHTS, embedder_of
from suprank.training.grad_cache import one_pass, two_passes
from suprank.training.objective import Objective, build_loss, gradients
from suprank.training.optimizers import network_optimizer, proxies_optimizer, set_rates
from suprank.training.seeds import seed_of
from suprank.training.state_dicts import model_state, optimizer_state, set_model_state, set_optimizer_state

torchvision_operators.declare()  # timm imports torchvision

from timm.layers.norm_act import convert_sync_batchnorm  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lightning.fabric import Fabric
    from torch import Tensor

    from suprank.training.batches import TrainBatch, TrainBatches
    from suprank.training.config import TrainConfig

_DROPOUT, _LOSS = 1, 2  # what is random beside weights (0), batches and augmentations
_BAD_EMBEDDINGS = "embeddings that are not finite"


class NonFiniteError(RuntimeError):
    """A loss, an embedding or a gradient is not a number."""


class Learner:
    """A network, a loss, perhaps a memory, and their optimizers, on the devices of `fabric`.

    n processes with a batch of B/n each take the step of one process with B: embeddings are gathered, every process computes
    the loss of all of them, and takes the gradient on its own part back into its copy of the network. Copies average their
    gradients, so that part is multiplied by n.
    """

    def __init__(self, config: TrainConfig, fabric: Fabric, feed: TrainBatches) -> None:
        self.config, self.fabric = config, fabric
        torch.manual_seed(seed_of(config.run.seed, WEIGHTS))
        self.embedder = embedder_of(config)
        check_embedder(self.embedder, config, fabric.world_size)
        loss = build_loss(config.loss, feed.labels, self.embedder.dim)
        memory = None
        if config.memory.size:
            size = len(feed.labels) if config.memory.size == "all" else config.memory.size
            memory = EmbeddingMemory(size, self.embedder.dim, len(feed.levels), per_item=config.memory.per_item)
        self.objective = Objective(loss, memory, config.memory.weight).to(fabric.device)
        self.embedder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        network: nn.Module = self.embedder
        if config.engine.sync_batchnorm:
            network = convert_sync_batchnorm(network)  # timm's keeps the activations that its BatchNorm includes
        # The optimizer comes second, because sharding replaces the parameters.
        self.model = fabric.setup_module(network)
        groups = self.embedder.parameter_groups()
        self.optimizer: Any = fabric.setup_optimizers(network_optimizer(config.optimizer, groups))
        self._has_head = bool(groups["head"])
        self._trainable = [parameter for parameter in groups["backbone"] if parameter.requires_grad]  # some networks fix a few
        self.proxies = list(self.objective.loss.parameters())
        self.proxies_optimizer = proxies_optimizer(config.proxies, self.proxies)
        self.normalize = Normalize(self.embedder.input.mean, self.embedder.input.std)
        chunk = config.batch.chunk
        self.passes = one_pass if chunk is None or chunk >= config.batch.size // fabric.world_size else two_passes(chunk)

    def step(
        self, batches: Sequence[TrainBatch], number: int, epoch: int, consumed: int, batches_of_epoch: int
    ) -> dict[str, float]:
        """One step of the optimizers on the mean loss of the batches: the values of the loss, and the norm of the gradient.

        It is step `number` of the run, and begins after `consumed` batches of the epoch. What is not finite raises
        `NonFiniteError`, before any parameter has changed.
        """
        try:
            return self._step(batches, number, epoch, consumed, batches_of_epoch)
        except NonFiniteError:
            self._forget_gradients()  # of the batches before the bad one, too
            raise

    def _step(
        self, batches: Sequence[TrainBatch], number: int, epoch: int, consumed: int, batches_of_epoch: int
    ) -> dict[str, float]:
        self._mode(epoch)
        parts = [
            self._backward(batch, number, place, epoch, 1 / len(batches), last=place == len(batches) - 1)
            for place, batch in enumerate(batches)
        ]
        distributed.average(proxy.grad for proxy in self.proxies if proxy.grad is not None)
        self._forget_frozen(epoch)
        idle = not self._has_head and epoch < self.config.run.frozen_epochs  # then a GradScaler would miss gradients
        norm = None if idle else self._clipped()
        values = self._checked(parts, norm)
        position = epoch + consumed / batches_of_epoch
        self.rates = self._set_rates(position, len(batches) / batches_of_epoch)
        if not idle:
            self.optimizer.step()
        if self.proxies_optimizer is not None:
            self.proxies_optimizer.step()
        self._forget_gradients()
        return values

    def eval(self) -> None:
        """Evaluation mode. All processes take the first one's statistics of BatchNorm, which are those that are saved."""
        self.model.eval()
        distributed.share_first(self.embedder.buffers())

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings of test images in bytes, after `eval`. Unless weights are spread, processes may ask unequally often."""
        # DistributedDataParallel would exchange buffers at the first call, and wait for a process that has no images.
        network = self.model if self.config.engine.strategy == "fsdp" else self.embedder
        with torch.inference_mode(), self.fabric.autocast():
            return network(self._prepared(images)).float()

    def _backward(self, batch: TrainBatch, step: int, place: int, epoch: int, share: float, *, last: bool) -> dict[str, Tensor]:
        """Add to the gradients those of a batch, times `share`: the parts of its loss, and the embeddings that are not finite.

        Nothing here reads a value, so that a GPU is given the whole step while it still works on the forward pass.
        """
        seed, device = self.config.run.seed, self.fabric.device
        torch.manual_seed(seed_of(seed, _DROPOUT, step, place, self.fabric.global_rank))
        passed = self.passes(self.fabric, self.model, batch.images, self._prepared, last=last)
        embeddings = distributed.gathered(passed.embeddings.float()).requires_grad_()
        labels, ids = (distributed.gathered(own.to(device, non_blocking=True)) for own in (batch.labels, batch.ids))
        torch.manual_seed(seed_of(seed, _LOSS, step, place))  # of all processes: the loss may draw too
        with skip_value_checks():
            value = self.objective(embeddings, labels, ids, remembering=epoch >= self.config.memory.start_epoch)
        on_embeddings, on_proxies = gradients(share * value, embeddings, self.proxies)
        for proxy, gradient in zip(self.proxies, on_proxies, strict=True):
            proxy.grad = gradient if proxy.grad is None else proxy.grad + gradient
        passed.back(distributed.own_part(on_embeddings) * self.fabric.world_size)
        return {**self.objective.log, _BAD_EMBEDDINGS: (~embeddings.isfinite().all(1)).sum()}

    def _checked(self, parts: Sequence[Mapping[str, Tensor]], norm: Tensor | None) -> dict[str, float]:
        """The means of the parts over the batches, and the norm of the gradient. Only here a step waits for the GPU."""
        names = list(parts[0])
        means = [torch.stack([one[name].float() for one in parts]).mean() for name in names]
        proxies = [proxy.grad.norm() for proxy in self.proxies if proxy.grad is not None]
        norms = {"gradient norm": means[0].new_zeros(()) if norm is None else norm.float()}
        if proxies:
            norms["gradient norm of proxies"] = torch.stack(proxies).norm()
        values = dict(zip([*names, *norms], torch.stack([*means, *norms.values()]).tolist(), strict=True))
        bad = round(values.pop(_BAD_EMBEDDINGS) * len(parts))
        if bad:
            raise NonFiniteError(f"the embeddings of {bad} of {self.config.batch.size * len(parts)} images are not finite")
        # In 16 bits a gradient may overflow: then the step is skipped, and the scale lowered.
        excused = {"gradient norm"} if self.config.engine.precision == "fp16" else set()
        for name in ("loss", *norms):
            if name not in excused and not math.isfinite(values[name]):
                raise NonFiniteError(f"the {name} is {values[name]}")
        return values

    def _prepared(self, images: Tensor) -> Tensor:
        there = images.to(self.fabric.device, non_blocking=True)
        return self.normalize(there).to(memory_format=torch.channels_last)

    def _mode(self, epoch: int) -> None:
        """A frozen backbone neither learns nor gathers statistics."""
        self.model.train()
        frozen = epoch < self.config.run.frozen_epochs
        if frozen:
            self.embedder.backbone.eval()
        if self.fabric.world_size == 1 and self.config.engine.strategy != "fsdp":  # copies that exchange gradients wait for all
            for parameter in self._trainable:
                parameter.requires_grad_(not frozen)

    def _forget_frozen(self, epoch: int) -> None:
        if epoch < self.config.run.frozen_epochs:
            for parameter in self.embedder.backbone.parameters():
                parameter.grad = None

    def _forget_gradients(self) -> None:
        self.optimizer.zero_grad()
        if self.proxies_optimizer is not None:
            self.proxies_optimizer.zero_grad()

    def _clipped(self) -> Tensor | None:
        """The norm of the gradient, before it is shortened to what is allowed."""
        return self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=self.config.run.clip or math.inf, error_if_nonfinite=False
        )

    def _set_rates(self, position: float, step: float) -> dict[str, float]:
        epochs = self.config.run.epochs
        found = set_rates(self.optimizer, self.config.optimizer, position, epochs, step)
        if self.proxies_optimizer is not None:
            found |= set_rates(self.proxies_optimizer, self.config.proxies, position, epochs, step)
        return found

    def state(self) -> dict[str, Any]:
        """All that a checkpoint must keep; every process has to ask, though one writes."""
        return {
            "model": model_state(self.model),
            "optimizer": optimizer_state(self.model, self.optimizer),
            "objective": {name: value.cpu() for name, value in self.objective.state_dict().items()},
            "proxies": None if self.proxies_optimizer is None else self.proxies_optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        set_model_state(self.model, state["model"])
        set_optimizer_state(self.model, self.optimizer, state["optimizer"])
        self.objective.load_state_dict(state["objective"])
        if self.proxies_optimizer is not None:
            self.proxies_optimizer.load_state_dict(state["proxies"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])

    def save_model(self, folder: Path) -> None:
        """Write the network as an embedder folder; every process has to ask, though one writes."""
        state = model_state(self.model)
        if self.fabric.is_global_zero:
            folders.write_model(folder, self.embedder.config, state)


def check_embedder(embedder: Embedder, config: TrainConfig, world_size: int = 1) -> None:
    """Refuse entries of a recipe that do not go with its network."""
    _check_batchnorm(embedder, config, world_size)
    _check_sharding(embedder, config)


def _check_batchnorm(embedder: Embedder, config: TrainConfig, world_size: int) -> None:
    """Refuse chunks whose BatchNorm would see a part of the batch where the whole is meant."""
    if embedder.config.freeze_batchnorm or not any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) for module in embedder.modules()
    ):
        return
    if config.batch.chunk is not None and config.batch.chunk < config.batch.size // world_size:
        raise ValueError(
            f"batch.chunk={config.batch.chunk} would give BatchNorm the statistics of a chunk instead of the batch; set "
            f"model.freeze_batchnorm=true, or leave batch.chunk out."
        )


def _check_sharding(embedder: Embedder, config: TrainConfig) -> None:
    """FSDP spreads rows of parameters, and refuses a parameter that is a single number."""
    scalars = [name for name, parameter in embedder.named_parameters() if parameter.ndim == 0]
    if config.engine.strategy == "fsdp" and scalars:
        raise ValueError(
            f"engine.strategy='fsdp' cannot spread {', '.join(scalars)}, a single number; use 'ddp', or for GeM "
            f"model.pooling='gem-fixed'."
        )
