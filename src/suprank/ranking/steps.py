"""Step functions: how much an item j counts towards the rank of k, by the score gap t = s_j − s_k."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypedDict, runtime_checkable

import torch

from suprank.ranking.hyper_parameters import is_number

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


@runtime_checkable
class Step(Protocol):
    """A step function with its derivative; `flat` says that the derivative is 0 everywhere."""

    @property
    def flat(self) -> bool: ...

    def __call__(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]: ...

    def derivative(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]: ...


@dataclass(frozen=True)
class Heaviside:
    """H(t) = 1 if t ≥ 0 else 0 (after eq:definition_rank). A tie counts as an error; the derivative is 0."""

    flat: ClassVar[bool] = True

    def __call__(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return (gap >= 0).to(gap.dtype)

    def derivative(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return torch.zeros_like(gap)


heaviside = Heaviside()


@dataclass(frozen=True)
class Sigmoid:
    """σ(t/τ), Smooth-AP's step (fig:sigmoid). It does not bound the Heaviside step: σ(0) = ½ < H(0)."""

    flat: ClassVar[bool] = False
    tau: float = 0.01

    def __post_init__(self) -> None:
        _check_positive(tau=self.tau)

    def __call__(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return torch.sigmoid(gap / self.tau)

    def derivative(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return _sigmoid_slope(gap, self.tau)


@dataclass(frozen=True)
class SupStep:
    """H⁻, a smooth upper bound of the Heaviside step (eq:h_minus).

        H⁻(t) = σ(t/τ)                        t < 0
              = σ(t/τ) + jump             0 ≤ t ≤ δ
              = ρ(t − δ) + value_at_delta     t > δ

    The paper has jump = ½ and joins the pieces: `value_at_delta=None` stands for σ(δ/τ) + jump. The authors' recipes
    differ: `value_at_delta=1.44` on SOP (still a bound, with a drop at δ), `jump=0, value_at_delta=1` on iNaturalist
    (not a bound: H⁻ < 1 on [0, δ]). At t = 0 we take the upper branch, so that a tie counts as an error, as it does
    under `heaviside`; the derivative at 0 and δ is that of the middle branch.
    """

    flat: ClassVar[bool] = False
    tau: float = 0.01
    rho: float = 100.0
    delta: float = 0.05
    jump: float = 0.5
    value_at_delta: float | None = None

    def __post_init__(self) -> None:
        _check_positive(tau=self.tau)
        _check_not_negative(rho=self.rho, delta=self.delta, jump=self.jump)
        if self.value_at_delta is not None:
            _check_not_negative(value_at_delta=self.value_at_delta)

    @classmethod
    def saturating(cls, tau: float = 0.01, epsilon: float = 0.01, *, rho: float = 100.0, jump: float = 0.5) -> SupStep:
        """The step whose δ = τ·ln((1 − ε)/ε), where the sigmoid comes within ε of 1 (sec:choice_of_delta).

        Example:
            >>> round(SupStep.saturating(tau=0.01, epsilon=0.01).delta, 3)
            0.046
        """
        if not (is_number(epsilon) and 0 < epsilon <= 0.5):
            raise ValueError(
                f"epsilon={epsilon!r} must be above 0 and at most 0.5, or δ = τ·ln((1 − ε)/ε) would be negative; try 0.01."
            )
        return cls(tau=tau, rho=rho, delta=tau * math.log((1 - epsilon) / epsilon), jump=jump)

    @property
    def height(self) -> float:
        """The value from which the linear part starts: `value_at_delta`, or σ(δ/τ) + jump when that is None."""
        if self.value_at_delta is not None:
            return self.value_at_delta
        return 1 / (1 + math.exp(-self.delta / self.tau)) + self.jump

    @property
    def bounds_heaviside(self) -> bool:
        """Whether H⁻(t) ≥ H(t) for every t, so that a loss with this step bounds 1 − its metric.

        The lowest values on t ≥ 0 are ½ + jump at 0 and `height` just above δ. The paper's and the SOP recipes'
        parameters pass, the iNaturalist recipes' do not.
        """
        return 0.5 + self.jump >= 1 and self.height >= 1

    def __call__(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        middle = gap <= self.delta
        sigmoid = torch.sigmoid(gap.clamp(max=self.delta) / self.tau)
        curved = torch.where(gap >= 0, sigmoid + self.jump, sigmoid)  # jump * (gap >= 0) would be float32 whatever the gap
        line = self.rho * (gap - self.delta) + self.height if self.rho else self.height  # 0·∞ would be NaN
        return torch.where(middle, curved, line)

    def derivative(self, gap: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return torch.where(gap <= self.delta, _sigmoid_slope(gap, self.tau), self.rho)


class SupStepOptions(TypedDict, total=False):
    """The parameters of `SupStep` as keyword arguments, for functions that pass them on; its defaults apply."""

    tau: float
    rho: float
    delta: float
    jump: float
    value_at_delta: float | None


def _sigmoid_slope(gap: Tensor, tau: float) -> Tensor:
    """σ′(t/τ)/τ. σ(x)σ(−x) keeps its digits where σ(x)(1 − σ(x)) rounds to zero."""
    return torch.sigmoid(gap / tau) * torch.sigmoid(-gap / tau) / tau


def _check_positive(**parameters: float) -> None:
    for name, value in parameters.items():
        if not (is_number(value) and value > 0):
            raise ValueError(f"{name}={value!r} must be a finite number above 0; the paper uses tau=0.01.")


def _check_not_negative(**parameters: float) -> None:
    for name, value in parameters.items():
        if not (is_number(value) and value >= 0):
            raise ValueError(
                f"{name}={value!r} must be a finite number, 0 or more, or H⁻ would decrease; "
                f"the defaults are rho=100, delta=0.05, jump=0.5."
            )
