"""Baselines with a vector for each fine class: a linear classifier, ProxyNCA++, ArcFace, CosFace, ProxyAnchor, and CSL."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear, softplus

from suprank.losses.base import RetrievalLoss
from suprank.losses.baselines.contrast import log_one_plus_sum_exp
from suprank.losses.decomposability import ProxyLoss, ProxySoftmax, cosines, uniform_proxies
from suprank.ranking import common_level
from suprank.ranking.hyper_parameters import as_tuple, check_above_zero, check_finite, is_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Integer
    from torch import Tensor


class CrossEntropy(ProxyLoss):
    """Cross entropy of a linear classifier: −log softmax(√d·Wv + b)_y, mean over the batch (Boudiaf et al., ECCV 2020).

    v is the unit vector of an image, and √d·v, d its dimension, is what LayerNorm without affine gives: on an embedder that
    ends with `normalization="layer"` and has no projection, this is plain cross entropy on features that are not normalized,
    as theirs are. The classes' vectors W are not normalized either, which distinguishes it from `ProxySoftmax`: their length
    counts, so they need a learning rate of a classifier, some 3e-3 with Adam. W starts as that of torch's Linear and b at 0;
    theirs start at 0 both.

    `label_smoothing` is torch's: a share ε of the probability is spread over all classes. Theirs is spread over the wrong
    ones, which is torch's ε·C/(C − 1) with C classes. Their dropout before the classifier is left out.
    """

    def __init__(self, num_classes: int, embedding_size: int, *, label_smoothing: float = 0.1) -> None:
        super().__init__(num_classes, embedding_size)
        if not (is_number(label_smoothing) and 0 <= label_smoothing < 1):
            raise ValueError(f"label_smoothing={label_smoothing!r} must be a share from 0 to below 1; Boudiaf et al. use 0.1.")
        self.label_smoothing = label_smoothing
        self.weight = uniform_proxies(num_classes, embedding_size)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def per_image(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, " queries"]:
        features = math.sqrt(queries.shape[1]) * queries
        logits = linear(features, self.weight[:, : queries.shape[1]].to(queries.dtype), self.bias.to(queries.dtype))
        return cross_entropy(logits, fine, reduction="none", label_smoothing=self.label_smoothing)


class ProxyNCA(ProxySoftmax):
    """ProxyNCA++: −log( exp(−σ²‖v − p_y‖²) / Σ_z exp(−σ²‖v − p_z‖²) ), mean over the batch, σ = `scale`.

    Between unit vectors ‖v − p‖² = 2 − 2vᵀp, and the 2 cancels: this is `ProxySoftmax` with the temperature 1/(2σ²), and
    proxies that start as N(0, 1)/8. Scale 3 is the temperature 1/9 of the ProxyNCA++ paper, which divides the squared
    distance by it (Teh et al., ECCV 2020).
    """

    def __init__(self, num_classes: int, embedding_size: int, *, scale: float = 3.0) -> None:
        check_above_zero(scale=scale)
        super().__init__(num_classes, embedding_size, temperature=1 / (2 * scale**2))
        self.scale = scale
        nn.init.normal_(self.proxies, std=1 / 8)


class ArcFace(ProxyLoss):
    """ArcFace: the cross entropy of s·cos θ_z over proxies z, with s·cos(θ_y + m) at the image's own (Deng et al., CVPR 2019).

    θ is the angle between embedding and proxy, s = `scale`, m = `margin` in radians. Beyond θ = π − m, where cos(θ + m) would
    rise again, it is cos θ − m·sin m, as in the released code of the paper. An embedding that lies on its proxy is not turned
    any further: there the slope of the angle is infinite, and pytorch-metric-learning's ArcFace returns NaN gradients.
    """

    def __init__(self, num_classes: int, embedding_size: int, *, margin: float = 0.3, scale: float = 30.0) -> None:
        super().__init__(num_classes, embedding_size)
        if not (is_number(margin) and 0 <= margin <= math.pi):
            raise ValueError(
                f"margin={margin!r} must be an angle between 0 and π in radians; the authors use 0.3, and 28.6 degrees are 0.5."
            )
        check_above_zero(scale=scale)
        self.margin, self.scale = margin, scale
        self.proxies = uniform_proxies(num_classes, embedding_size)

    def per_image(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, " queries"]:
        cosine = cosines(queries, self.proxies)
        own = cosine.gather(1, fine[:, None])
        square = (1 - own) * (1 + own)  # of the sine; rounding may leave it below 0
        sine = square.where(square > 0, 1).sqrt().where(square > 0, 0)
        turned = own * math.cos(self.margin) - sine * math.sin(self.margin)
        turned = turned.where(own >= -math.cos(self.margin), own - self.margin * math.sin(self.margin))
        return cross_entropy(self.scale * cosine.scatter(1, fine[:, None], turned), fine, reduction="none")


class CosFace(ProxyLoss):
    """CosFace: the cross entropy of s·cos θ_z over proxies z, with s·(cos θ_y − m) at the image's own (Wang et al., CVPR 2018).

    θ is the angle between embedding and proxy, s = `scale`, m = `margin`, a cosine; mean over the batch.
    """

    def __init__(self, num_classes: int, embedding_size: int, *, margin: float = 0.35, scale: float = 64.0) -> None:
        super().__init__(num_classes, embedding_size)
        check_finite(margin=margin)
        check_above_zero(scale=scale)
        self.margin, self.scale = margin, scale
        self.proxies = uniform_proxies(num_classes, embedding_size)

    def per_image(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, " queries"]:
        cosine = cosines(queries, self.proxies)
        moved = cosine.scatter_add(1, fine[:, None], cosine.new_full((len(cosine), 1), -self.margin))
        return cross_entropy(self.scale * moved, fine, reduction="none")


class ProxyAnchor(ProxyLoss):
    """ProxyAnchor (Kim et al., CVPR 2020): proxies P, of which P⁺ have images in the batch, α = `scale`, δ = `margin`,

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{i of p} exp(−α(s_ip − δ))) + 1/|P| Σ_{p∈P} log(1 + Σ_{i not of p} exp(α(s_ip + δ)))

    δ is a cosine. The means are over proxies, each of which needs all images at once: there are no values per query, and
    `collection_loss` refuses it.
    """

    means = RetrievalLoss.means  # none

    def __init__(self, num_classes: int, embedding_size: int, *, margin: float = 0.1, scale: float = 32.0) -> None:
        super().__init__(num_classes, embedding_size)
        check_finite(margin=margin)
        check_above_zero(scale=scale)
        self.margin, self.scale = margin, scale
        self.proxies = uniform_proxies(num_classes, embedding_size)

    def mean(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, ""]:
        scores = cosines(queries, self.proxies)
        own = fine[:, None] == torch.arange(self.num_classes, device=fine.device)
        positive = log_one_plus_sum_exp(self.scale * (self.margin - scores), own, dim=0)
        negative = log_one_plus_sum_exp(self.scale * (scores + self.margin), ~own & (fine >= 0)[:, None], dim=0)
        return positive.sum() / own.any(0).sum().clamp(min=1) + negative.mean()


class CSL(ProxyLoss):
    """The loss of Dynamic Metric Learning (Sun et al., CVPR 2021): proxies of fine classes, and margins that grow by level.

        L = Σ_l mean_i softplus( LSE_{z ∉ class_l(i)} s·v_iᵀp_z − s·v_iᵀp_y + s·m_l ),   s = `scale`, m = `margins`

    LSE is log Σ exp over the proxies of other classes at level l; the positive is the proxy of the fine class at every level.
    A level with a single class has no negatives, and gives 0.

    `class_labels` are the labels of every fine class `[classes, levels]`: row c has c in column 0, and then the classes above
    it. Classes that differ further up are two, as everywhere. Of the labels of a batch only column 0 is read; its other
    columns are not compared with these. `margins` are one for each level, finest first; by default they go evenly
    from 0.25 to 0.45, with seven levels from 0.15 to 0.75, as the authors' do.

    Example:
        >>> loss = CSL(torch.tensor([[0, 0], [1, 0], [2, 1]]), 16)
        >>> loss.margins
        (0.25, 0.45)
        >>> loss(torch.randn(4, 16, requires_grad=True), torch.tensor([0, 1, 2, 2])).backward()
    """

    class_labels: Tensor

    def __init__(
        self,
        class_labels: Integer[Tensor, "classes ..."],
        embedding_size: int,
        *,
        margins: Sequence[float] | None = None,
        scale: float = 32.0,
    ) -> None:
        labels = _check_class_labels(class_labels)
        super().__init__(len(labels), embedding_size)
        check_above_zero(scale=scale)
        levels = labels.shape[1]
        self.margins = _default_margins(levels) if margins is None else as_tuple(margins)
        if len(self.margins) != levels or not all(map(is_number, self.margins)):
            raise ValueError(
                f"margins={self.margins} must be {levels} finite numbers, one for each level of class_labels, finest first."
            )
        self.scale = scale
        self.register_buffer("class_labels", labels)
        self.proxies = uniform_proxies(len(labels), embedding_size)

    def per_image(self, queries: Float[Tensor, "queries dim"], fine: Integer[Tensor, " queries"]) -> Float[Tensor, " queries"]:
        scores = self.scale * cosines(queries, self.proxies)
        positive = scores.gather(1, fine[:, None])[:, 0]
        shared = common_level(self.class_labels[fine], self.class_labels)
        depth = len(self.margins)
        loss = torch.zeros_like(positive)
        for level, margin in enumerate(self.margins):
            # Of a row of −∞ the log Σ exp is −∞, and has the gradient 0 in torch: no negatives, no loss.
            negatives = scores.masked_fill(shared >= depth - level, -torch.inf).logsumexp(-1)
            loss = loss + softplus(negatives - positive + self.scale * margin)
        return loss


def _check_class_labels(class_labels: Tensor) -> Tensor:
    if not isinstance(class_labels, torch.Tensor) or class_labels.dtype.is_floating_point or class_labels.dtype == torch.bool:
        given = class_labels.dtype if isinstance(class_labels, torch.Tensor) else type(class_labels)
        raise TypeError(f"class_labels is {given}, but must be an integer tensor [classes, levels], column 0 the finest level.")
    labels = class_labels[:, None] if class_labels.ndim == 1 else class_labels
    if labels.ndim != 2 or not labels.numel():
        raise ValueError(f"class_labels has shape {tuple(class_labels.shape)}, but must be [classes, levels], finest first.")
    labels = labels.detach().long().clone()
    for row in (labels[:, 0].cpu() != torch.arange(len(labels))).nonzero()[:1, 0].tolist():
        raise ValueError(
            f"class_labels[{row}, 0] is {int(labels[row, 0])}, but row c must hold the labels of the fine class c; "
            f"number the fine classes from 0, and give each a row: labels.unique(dim=0) of the whole training set."
        )
    for row in (labels < 0).any(1).nonzero()[:1, 0].tolist():
        raise ValueError(
            f"class_labels[{row}] is {labels[row].tolist()}, but a class needs its label at every level, 0 or more."
        )
    return labels


def _default_margins(levels: int) -> tuple[float, ...]:
    first, last = (0.15, 0.75) if levels == 7 else (0.25, 0.45)
    return tuple(round(first + (last - first) * level / max(levels - 1, 1), 6) for level in range(levels))
