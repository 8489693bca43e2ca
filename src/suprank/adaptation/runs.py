"""`AdaptationRun`: one seed, with its validations, the best head so far, and a state to resume from."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from suprank.training.run_folder import NonFiniteLossError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from suprank.adaptation.head_trainer import HeadTrainer


class Validation(NamedTuple):
    """The metric of the validation classes after `step` steps, and the mean loss of the steps since the one before."""

    step: int
    loss: float | None
    value: float


class AdaptationRun:
    """Takes the steps of a trainer and validates every `every` steps. `best` are the weights of the best validation.

    The head before the first step takes part, so that the best is never worse than that on the validation classes.
    """

    def __init__(self, trainer: HeadTrainer, validate: Callable[[], float], every: int) -> None:
        self.trainer, self._validate, self._every = trainer, validate, every
        self.history: list[Validation] = []
        self.best: dict[str, Any] = {}
        self._losses: list[torch.Tensor] = []

    @property
    def best_validation(self) -> Validation:
        return max(self.history, key=lambda one: one.value)  # of equal ones the first

    def steps(self) -> Iterator[int]:
        """Train to the end, and yield after every step."""
        if not self.history:
            self._record(loss=None)
        while self.trainer.step_number < self.trainer.steps:
            done = self.trainer.step_number
            stop = min(done - done % self._every + self._every, self.trainer.steps)
            for loss in self.trainer.run(stop):
                self._losses.append(loss)
                if self.trainer.step_number == stop:
                    mean = float(torch.stack(self._losses).mean())
                    if not math.isfinite(mean):
                        raise NonFiniteLossError(
                            f"the loss is {mean} by step {stop}; a smaller learning rate may help, or another loss."
                        )
                    self._losses = []
                    self._record(mean)
                yield self.trainer.step_number

    def _record(self, loss: float | None) -> None:
        now = Validation(self.trainer.step_number, loss, self._validate())
        self.history.append(now)
        if self.best_validation is now:
            self.best = copy.deepcopy(self.trainer.head.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs to continue after the steps taken."""
        return {
            "trainer": self.trainer.state_dict(),
            "history": [list(one) for one in self.history],
            "best": self.best,
            "losses": self._losses,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.trainer.load_state_dict(state["trainer"])
        self.history = [Validation(*one) for one in state["history"]]
        self.best = state["best"]
        self._losses = [one.to(self.trainer.embeddings.device) for one in state["losses"]]
