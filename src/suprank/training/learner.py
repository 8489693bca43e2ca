"""One training step: images → embeddings → embeddings of all processes → loss → gradients → optimizers."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from suprank.data.transforms import Normalize
from suprank.losses import gather, skip_value_checks
from suprank.losses.memory import EmbeddingMemory
from suprank.models import Embedder, model_folder
from suprank.system import torchvision_operators
from suprank.system.custom_code import OBJECT
from suprank.training import distributed
from suprank.training.custom_loss import CustomLoss
from suprank.training.embedders import WEIGHTS, build_embedder
from suprank.training.grad_cache import ForwardFunction, forward_at_once, forward_in_chunks
from suprank.training.memory_loss import LossWithMemory, gradients
from suprank.training.optimizers import network_optimizer, proxies_optimizer, set_learning_rates
from suprank.training.seeds import derive_seed
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

_log = logging.getLogger(__name__)

_DROPOUT, _LOSS = 1, 2  # random streams beside the weights (0), batches and augmentations
_NO_REPLAY = "engine.replay_loss=true has no effect: it is for one GPU, and this run is on a CPU or on several GPUs."
_BAD_EMBEDDINGS = "embeddings that are not finite"


class NonFiniteError(RuntimeError):
    """A loss, an embedding or a gradient is NaN or infinite."""


class Learner:
    """A network, a loss, a memory if there is one, and their optimizers, on the devices of `fabric`.

    n processes with B/n images each take the same step as one process with B: embeddings are gathered, every process computes
    the loss of all of them, and propagates the gradient of its own embeddings, summed over the processes, through its copy of
    the network (see `gather`). The copies average their gradients.

    `loss` replaces the one that the recipe names.
    """

    def __init__(self, config: TrainConfig, fabric: Fabric, batches: TrainBatches, loss: nn.Module | None = None) -> None:
        self.config, self.fabric = config, fabric
        torch.manual_seed(derive_seed(config.run.seed, WEIGHTS))
        self.embedder = build_embedder(config)
        check_embedder(self.embedder, config, fabric.world_size)
        if loss is None:
            loss = config.loss.build(batches.labels, self.embedder.dim)
        check_loss(loss, config)
        memory = None
        if config.memory.size:
            size = len(batches.labels) if config.memory.size == "all" else config.memory.size
            _, levels, *sets = batches.labels.shape
            memory = EmbeddingMemory(
                size, self.embedder.dim, levels, max_labels=sets[0] if sets else None, per_item=config.memory.per_item
            )
        replay = replays_loss(loss, config, fabric)
        self.loss = LossWithMemory(loss, memory, config.memory.weight, replay=replay).to(fabric.device)
        distributed.broadcast_from_first(value.data for value in (*loss.parameters(), *loss.buffers()))
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
        self.proxies = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        self.proxies_optimizer = proxies_optimizer(config.proxies, self.proxies)
        self.normalize = Normalize(self.embedder.input.mean, self.embedder.input.std)
        chunk = config.batch.chunk
        is_smaller = chunk is not None and chunk < config.batch.size // fabric.world_size
        self.forward_batch: ForwardFunction = forward_at_once
        if chunk and is_smaller:
            self.forward_batch = forward_in_chunks(chunk)

    def step(
        self, batches: Sequence[TrainBatch], number: int, epoch: int, consumed: int, batches_of_epoch: int
    ) -> dict[str, float]:
        """Take one step of the optimizers on the mean loss of the batches; return the loss, its parts, and the gradient norm.

        It is step `number` of the run, and begins after `consumed` batches of the epoch. A NaN or infinite value raises
        `NonFiniteError`, before any parameter has changed.
        """
        try:
            return self._step(batches, number, epoch, consumed, batches_of_epoch)
        except NonFiniteError:
            self._zero_grad()  # of the batches before the bad one, too
            raise

    def _step(
        self, batches: Sequence[TrainBatch], number: int, epoch: int, consumed: int, batches_of_epoch: int
    ) -> dict[str, float]:
        self._set_mode(epoch)
        parts = [
            self._backward(batch, number, place, epoch, 1 / len(batches), last=place == len(batches) - 1)
            for place, batch in enumerate(batches)
        ]
        distributed.average(proxy.grad for proxy in self.proxies if proxy.grad is not None)
        self._zero_frozen_grad(epoch)
        nothing_to_train = not self._has_head and epoch < self.config.run.frozen_epochs  # a GradScaler would miss gradients
        norm = None if nothing_to_train else self._clip_gradients()
        values = self._checked_values(parts, norm)
        position = epoch + consumed / batches_of_epoch
        self.rates = self._set_learning_rates(position, len(batches) / batches_of_epoch)
        if not nothing_to_train:
            self.optimizer.step()
        if self.proxies_optimizer is not None:
            self.proxies_optimizer.step()
        self._zero_grad()
        return values

    def eval(self) -> None:
        """Switch to evaluation mode, with the first process's BatchNorm statistics everywhere: those are the ones saved."""
        self.model.eval()
        distributed.broadcast_from_first(self.embedder.buffers())

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings of test images (uint8), after `eval`. Unless weights are sharded, processes need not call it alike."""
        # DistributedDataParallel would exchange buffers at the first call, and wait for a process that has no images.
        network = self.model if self.config.engine.strategy == "fsdp" else self.embedder
        with torch.inference_mode(), self.fabric.autocast():
            return network(self._prepare(images)).float()

    def _backward(self, batch: TrainBatch, step: int, place: int, epoch: int, share: float, *, last: bool) -> dict[str, Tensor]:
        """Add the gradients of a batch, times `share`; return the parts of its loss, and the count of non-finite embeddings.

        Nothing here reads a value, so that a GPU gets the whole step while it still computes the forward pass.
        """
        seed, device = self.config.run.seed, self.fabric.device
        torch.manual_seed(derive_seed(seed, _DROPOUT, step, place, self.fabric.global_rank))
        forward = self.forward_batch(self.fabric, self.model, batch.images, self._prepare, last=last)
        own = forward.embeddings.float().requires_grad_()
        labels, ids = (values.to(device, non_blocking=True) for values in (batch.labels, batch.ids))
        embeddings, labels, ids = gather(own, labels, ids, equal_sizes=True)
        torch.manual_seed(derive_seed(seed, _LOSS, step, place))  # the same in all processes: the loss may draw too
        with skip_value_checks():
            value = self.loss(embeddings, labels, ids, use_memory=epoch >= self.config.memory.start_epoch)
        embeddings_gradient, proxies_gradients = gradients(share * value, own, self.proxies)
        for proxy, gradient in zip(self.proxies, proxies_gradients, strict=True):
            proxy.grad = gradient if proxy.grad is None else proxy.grad + gradient
        forward.backward(embeddings_gradient)
        return {**self.loss.log, _BAD_EMBEDDINGS: (~embeddings.isfinite().all(1)).sum()}

    def _checked_values(self, parts: Sequence[Mapping[str, Tensor]], norm: Tensor | None) -> dict[str, float]:
        """The means of the parts over the batches, and the gradient norm, all finite. Only here a step waits for the GPU."""
        names = list(parts[0])
        means = torch.stack([one[name].float() for one in parts for name in names]).view(len(parts), -1).mean(0)
        proxies = [proxy.grad.norm() for proxy in self.proxies if proxy.grad is not None]
        norms = {"gradient norm": means.new_zeros(()) if norm is None else norm.float()}
        if proxies:
            norms["gradient norm of proxies"] = torch.stack(proxies).norm()
        values = dict(zip([*names, *norms], torch.cat([means, torch.stack(list(norms.values()))]).tolist(), strict=True))
        bad = round(values.pop(_BAD_EMBEDDINGS) * len(parts))
        if bad:
            raise NonFiniteError(f"the embeddings of {bad} of {self.config.batch.size * len(parts)} images are not finite")
        # In 16 bits a gradient may overflow: then the step is skipped, and the scale lowered.
        may_overflow = {"gradient norm"} if self.config.engine.precision == "fp16" else set()
        for name in ("loss", *norms):
            if name not in may_overflow and not math.isfinite(values[name]):
                raise NonFiniteError(f"the {name} is {values[name]}")
        return values

    def _prepare(self, images: Tensor) -> Tensor:
        on_device = images.to(self.fabric.device, non_blocking=True)
        return self.normalize(on_device).to(memory_format=torch.channels_last)

    def _set_mode(self, epoch: int) -> None:
        """Switch to training mode; a frozen backbone is neither trained nor updates its BatchNorm statistics."""
        self.model.train()
        frozen = epoch < self.config.run.frozen_epochs
        if frozen:
            self.embedder.backbone.eval()
        if self.fabric.world_size == 1 and self.config.engine.strategy != "fsdp":  # copies that exchange gradients wait for all
            for parameter in self._trainable:
                parameter.requires_grad_(not frozen)

    def _zero_frozen_grad(self, epoch: int) -> None:
        if epoch < self.config.run.frozen_epochs:
            for parameter in self.embedder.backbone.parameters():
                parameter.grad = None

    def _zero_grad(self) -> None:
        self.optimizer.zero_grad()
        if self.proxies_optimizer is not None:
            self.proxies_optimizer.zero_grad()

    def _clip_gradients(self) -> Tensor | None:
        """Scale the gradient down to `run.clip_grad_norm`; return its norm before."""
        return self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=self.config.run.clip_grad_norm or math.inf, error_if_nonfinite=False
        )

    def _set_learning_rates(self, position: float, step: float) -> dict[str, float]:
        epochs = self.config.run.epochs
        rates = set_learning_rates(self.optimizer, self.config.optimizer, position, epochs, step)
        if self.proxies_optimizer is not None:
            rates |= set_learning_rates(self.proxies_optimizer, self.config.proxies, position, epochs, step)
        return rates

    def state_dict(self) -> dict[str, Any]:
        """The state to save in a checkpoint. Every process has to call this, though one writes."""
        return {
            "model": model_state(self.model),
            "optimizer": optimizer_state(self.model, self.optimizer),
            "loss": {name: value.cpu() for name, value in self.loss.state_dict().items()},
            "proxies_optimizer": None if self.proxies_optimizer is None else self.proxies_optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        set_model_state(self.model, state["model"])
        set_optimizer_state(self.model, self.optimizer, state["optimizer"])
        self.loss.load_state_dict(state["loss"])
        if self.proxies_optimizer is not None:
            self.proxies_optimizer.load_state_dict(state["proxies_optimizer"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])

    def save_model(self, folder: Path) -> None:
        """Save the network as an embedder folder. Every process has to call this, though one writes."""
        state = model_state(self.model)
        if self.fabric.is_global_zero:
            model_folder.write_model(folder, self.embedder.config, state)


def replays_loss(loss: nn.Module, config: TrainConfig, fabric: Fabric) -> bool:
    """Whether the loss is replayed from a CUDA graph: in one process on a GPU, a loss of the user's own only if asked for."""
    wanted = config.engine.replay_loss
    if fabric.device.type != "cuda" or fabric.world_size > 1:
        if wanted and fabric.is_global_zero:
            _log.warning(_NO_REPLAY)
        return False
    if wanted is not None:
        return wanted
    return all(getattr(part, "recordable", True) for part in loss.modules()) and not isinstance(loss, CustomLoss)


def check_loss(loss: nn.Module, config: TrainConfig) -> None:
    """Refuse settings of a recipe that do not fit a loss of the user's own; those of others are checked with the recipe."""
    if not isinstance(loss, CustomLoss):
        return
    if config.memory.size:
        loss.check_memory()
    given_as_object = loss.name.startswith(f"{OBJECT}:")  # then the recipe is perhaps meant for another loss
    trains_nothing = not any(parameter.requires_grad for parameter in loss.parameters())
    if config.proxies.changed_keys() and trains_nothing and not given_as_object:
        raise ValueError(f"[proxies] is set, but {loss.name} has no parameters to train; leave the table out.")


def check_embedder(embedder: Embedder, config: TrainConfig, world_size: int = 1) -> None:
    """Refuse settings of a recipe that do not fit its network."""
    _check_batchnorm(embedder, config, world_size)
    _check_sharding(embedder, config)


def _check_batchnorm(embedder: Embedder, config: TrainConfig, world_size: int) -> None:
    """Refuse chunks if BatchNorm would see them in place of the whole batch."""
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
    """Refuse FSDP for a network with a parameter that is a single number: it shards rows."""
    scalars = [name for name, parameter in embedder.named_parameters() if parameter.ndim == 0]
    if config.engine.strategy == "fsdp" and scalars:
        raise ValueError(
            f"engine.strategy='fsdp' cannot shard {', '.join(scalars)}, a single number; use 'ddp', or for GeM "
            f"model.pooling='gem-fixed'."
        )
