"""`HeadTrainer`: the steps of one run on embeddings in memory, from batches or from the whole collection."""

from __future__ import annotations

from itertools import islice
from math import cos, pi
from typing import TYPE_CHECKING, Any

import torch

from suprank.data.samplers import BalancedBatchSampler
from suprank.losses import ReplayedLoss, RetrievalLoss, collection_loss, skip_value_checks
from suprank.training.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float, Int
    from torch import Tensor, nn

    from suprank.adaptation.class_splits import BatchShape
    from suprank.adaptation.config import AdaptConfig
    from suprank.models.head import Head

_PROXIES, _STEP = 1, 2  # places of derived seeds


class HeadTrainer:
    """Trains a head in place, on the device of the embeddings. `labels` are numbered from 0 at every level.

    Without a `shape` of batches, every step computes the loss of the whole collection.
    """

    def __init__(
        self,
        head: Head,
        embeddings: Float[Tensor, "images width"],
        labels: Int[Tensor, "images levels"],
        config: AdaptConfig,
        *,
        steps: int,
        shape: BatchShape | None,
        seed: int,
    ) -> None:
        self.head, self.embeddings, self.labels = head.train(), embeddings, labels
        self.steps, self.shape, self.seed = steps, shape, seed
        self.step_number = 0
        torch.manual_seed(derive_seed(seed, _PROXIES))
        self.loss: nn.Module = config.loss.build(labels.cpu(), head.config.out_features).to(embeddings.device)
        self._compute_loss: Any = self.loss
        if embeddings.is_cuda and _is_recordable(self.loss):
            self._compute_loss = ReplayedLoss(self.loss)
        groups = [{"params": list(head.parameters()), "lr": config.lr, "weight_decay": config.weight_decay}]
        if proxies := [one for one in self.loss.parameters() if one.requires_grad]:
            groups.append({"params": proxies, "lr": config.proxies_lr, "weight_decay": 0.0})
        self.optimizer = torch.optim.AdamW(groups, fused=True)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def run(self, stop: int) -> Iterator[Float[Tensor, ""]]:
        """Take the steps up to number `stop`, and yield the loss of each."""
        for rows in self._batches(stop):
            yield self._step(rows)

    def _batches(self, stop: int) -> Iterator[Tensor | None]:
        """The rows of the batches of steps `step_number` to `stop`; None for the whole collection."""
        count = stop - self.step_number
        if self.shape is None:
            yield from [None] * count
            return
        fine = self.labels[:, 0].cpu().numpy()
        sampler = BalancedBatchSampler(fine, *self.shape, batches=self.steps, seed=self.seed)
        sampler.set_epoch(0, consumed=self.step_number)
        yield from torch.tensor(list(islice(sampler, count)), device=self.embeddings.device)

    def _step(self, rows: Tensor | None) -> Tensor:
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * (1 + cos(pi * self.step_number / self.steps)) / 2
        torch.manual_seed(derive_seed(self.seed, _STEP, self.step_number))  # the loss may draw numbers
        value = self._whole_loss() if rows is None else self._batch_loss(rows)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        self.step_number += 1
        return value.detach()

    def _batch_loss(self, rows: Tensor) -> Tensor:
        with skip_value_checks():
            return self._compute_loss(self.head(self.embeddings[rows]), self.labels[rows])

    def _whole_loss(self) -> Tensor:
        outputs = self.head(self.embeddings)
        with skip_value_checks():
            if isinstance(self.loss, RetrievalLoss):
                return collection_loss(self.loss, outputs, self.labels)
            return self.loss(outputs, self.labels)  # a loss of the user's own

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to continue after the steps taken."""
        return {
            "step": self.step_number,
            "head": self.head.state_dict(),
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.step_number = state["step"]
        self.head.load_state_dict(state["head"])
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])


def _is_recordable(loss: nn.Module) -> bool:
    return isinstance(loss, RetrievalLoss) and all(getattr(part, "recordable", True) for part in loss.modules())
