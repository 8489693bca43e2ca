"""Baselines that pytorch-metric-learning implements: Multi-Similarity, ProxyAnchor and CosFace, called as ours are.

They need `pip install "suprank[train]"`, and wait for the GPU within a step, as the package's own losses do. ArcFace is not
among them: where an embedding lies on its proxy, the package's returns NaN gradients, so that `proxies` has one of our own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.func import functional_call

from suprank.losses.base import QueryMean, RetrievalLoss
from suprank.losses.decomposability import ProxyLoss, check_above_zero, init_proxies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Integer
    from torch import Tensor

    from suprank.losses.batch import RetrievalBatch


class MultiSimilarity(RetrievalLoss):
    """The multi-similarity loss (Wang et al., CVPR 2019), on all pairs:

        L_i = 1/α · log(1 + Σ_{j∈Ω⁺} exp(−α(s_ij − λ))) + 1/β · log(1 + Σ_{j∈Ω⁻} exp(β(s_ij − λ))),   λ = `base`

    mean over all queries. Positives share the finest class, all other items are negatives, the query itself is neither; a query
    without positives keeps its negative term. Their pair mining is left out.

    pytorch-metric-learning's, on our scores and pairs. Its own call leaves the query among references, and takes a query with
    one positive and one negative for none at all.
    """

    recordable = False  # pytorch-metric-learning's read values

    def __init__(self, *, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5) -> None:
        super().__init__()
        check_above_zero(alpha=alpha, beta=beta)
        _check_finite(base=base)
        self.alpha, self.beta, self.base = alpha, beta, base
        self.theirs = _package_loss("MultiSimilarityLoss", alpha=alpha, beta=beta, base=base)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, beta={self.beta}, base={self.base}"

    def compute(self, batch: RetrievalBatch) -> Float[Tensor, ""]:
        level = batch.fine_level()
        pairs = (*torch.where(level > 0), *torch.where(level == 0))
        with torch.autocast(batch.queries.device.type, enabled=False):
            return self.theirs.reducer(self.theirs.mat_based_loss(batch.scores, pairs), batch.queries, None)

    def means(self, batch: RetrievalBatch) -> Sequence[QueryMean]:
        return [QueryMean(self.compute(batch) * len(batch.queries), len(batch.queries))]


class _WrappedProxyLoss(ProxyLoss):
    """A proxy loss of pytorch-metric-learning: `theirs`, whose parameter `proxies_name` holds the proxies.

    They start as ours do, and not as in the package, where they are up to forty times as long, and so turn more slowly at
    the same learning rate.
    """

    proxies_name: str

    recordable = False  # pytorch-metric-learning's read values

    def __init__(self, loss_name: str, num_classes: int, embedding_size: int, **hyper_parameters: float) -> None:
        super().__init__(num_classes, embedding_size)
        self.theirs = _package_loss(loss_name, num_classes=num_classes, embedding_size=embedding_size, **hyper_parameters)
        init_proxies(getattr(self.theirs, self.proxies_name), embedding_size)

    def mean(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, ""]:
        # The package would change its parameter's dtype to that of the embeddings, and the optimizer would lose it.
        proxies = getattr(self.theirs, self.proxies_name).to(queries.dtype)
        known = fine >= 0  # the package takes no −1; it waits for the GPU anyway, so that rows can be counted here
        if not known.all():
            if not known.any():
                return 0 * (queries.sum() + proxies.sum())
            queries, fine = queries[known], fine[known]
        return functional_call(self.theirs, {self.proxies_name: proxies}, (queries, fine))


class ProxyAnchor(_WrappedProxyLoss):
    """ProxyAnchor (Kim et al., CVPR 2020): proxies P, of which P⁺ have images in the batch, α = `scale`, δ = `margin`,

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{i of p} exp(−α(s_ip − δ))) + 1/|P| Σ_{p∈P} log(1 + Σ_{i not of p} exp(α(s_ip + δ)))

    pytorch-metric-learning's; a proxy for each fine class, in `loss.parameters()`. References and relevance play no part.
    """

    proxies_name = "proxies"
    means = RetrievalLoss.means  # none: its means are over proxies, and their terms need all images at once

    def __init__(self, num_classes: int, embedding_size: int, *, margin: float = 0.1, scale: float = 32.0) -> None:
        check_above_zero(scale=scale)
        _check_finite(margin=margin)
        super().__init__("ProxyAnchorLoss", num_classes, embedding_size, margin=margin, alpha=scale)
        self.margin, self.scale = margin, scale

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, margin={self.margin}, scale={self.scale}"


class CosFace(_WrappedProxyLoss):
    """CosFace: the cross entropy of s·cos θ_z over proxies z, with s·(cos θ_y − m) at the image's own (Wang et al., CVPR 2018).

    θ is the angle between embedding and proxy, s = `scale`, m = `margin`, mean over the batch. pytorch-metric-learning's; a
    proxy for each fine class, in `loss.parameters()`. References and relevance play no part.
    """

    proxies_name = "W"

    def __init__(self, num_classes: int, embedding_size: int, *, margin: float = 0.35, scale: float = 64.0) -> None:
        check_above_zero(scale=scale)
        _check_finite(margin=margin)
        super().__init__("CosFaceLoss", num_classes, embedding_size, margin=margin, scale=scale)
        self.margin, self.scale = margin, scale

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, margin={self.margin}, scale={self.scale}"


def _package_loss(name: str, **arguments: Any) -> Any:
    try:
        from pytorch_metric_learning import losses
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{name} comes from pytorch-metric-learning, which is not installed; pip install "suprank[train]"',
            name=error.name,
        ) from error
    return getattr(losses, name)(**arguments)


def _check_finite(**values: float) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} must be a finite number.")
