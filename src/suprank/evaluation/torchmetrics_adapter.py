"""`RetrievalMetrics`: evaluation as a torchmetrics `Metric`, which collects embeddings batch by batch."""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from suprank.system import torchvision_operators

with suppress(ImportError):  # torchmetrics imports torchvision, where there is one
    torchvision_operators.declare()

from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat
from torchmetrics.utilities.distributed import gather_all_tensors

from suprank.evaluation.arguments import check_ks
from suprank.evaluation.evaluate import evaluate
from suprank.evaluation.metric_names import parse_metric
from suprank.ranking.relevance import NO_LABEL, check_labels, is_integral, label_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jaxtyping import Bool, Float, Integer
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from suprank.evaluation.report import Report

_ROLES = {"query": 1, "gallery": 2, "both": 3}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_NO_ID = -1
_WITHOUT_FLOAT64 = ("mps",)  # devices


class RetrievalMetrics(Metric):
    """Every metric of `evaluate` over all the embeddings that were given to `update`, gathered from all processes.

    In a Lightning module, with one set whose images are ranked against each other:

        def validation_step(self, batch, batch_idx):
            self.metrics.update(self(batch["image"]), batch["label"], batch["index"])

        def on_validation_epoch_end(self):
            self.log_dict(self.metrics.compute())
            self.metrics.reset()

    and with two dataloaders, queries and a gallery: `update(..., role=("query", "gallery")[dataloader_idx])`.

    Give each image's id, such as its index in the dataset. Then an image counts once even if it is repeated, as a
    `DistributedSampler` does to give all processes equally many. Items are sorted by their ids, so that any number of
    processes gives the same values to the last digit. And an item of the gallery with the query's id is the query itself,
    which is not in its own list; ids identify images, whatever their role, so queries and gallery of two datasets need
    different ones. Without ids, repeated samples count as different images.

    Arguments are as in `evaluate`, then those of `torchmetrics.Metric`, such as `compute_on_cpu=True`, which keeps
    embeddings out of the GPU's memory. Embeddings keep their dtype. `plot()` draws the values, with matplotlib.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    embeddings: list[Tensor]
    labels: list[Tensor]
    ids: list[Tensor]
    roles: list[Tensor]

    def __init__(
        self,
        *,
        metrics: Sequence[str] | None = None,
        ks: Sequence[int] = (1, 10, 100),
        levels: Sequence[str] | None = None,
        decay: float = 1.0,
        weights: Mapping[str, float] | Sequence[float] | None = None,
        normalize: bool = True,
        memory_budget: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(metrics, str):
            raise TypeError(f"metrics={metrics!r} must be a sequence of names; write [{metrics!r}].")
        self.options: dict[str, Any] = {
            "ks": tuple(check_ks(ks)),
            "levels": levels,
            "decay": decay,
            "weights": weights,
            "metrics": None if metrics is None else [str(parse_metric(metric)) for metric in metrics],
            "normalize": normalize,
            "memory_budget": memory_budget,
        }
        self._report: Report | None = None
        for state in ("embeddings", "labels", "ids", "roles"):
            self.add_state(state, [], dist_reduce_fx="cat")

    def extra_repr(self) -> str:
        """The settings that were given, and how many items there are."""
        defaults = {name: argument.default for name, argument in signature(RetrievalMetrics).parameters.items()}
        given = [f"{name}={value!r}" for name, value in self.options.items() if value != defaults[name]]
        return ", ".join([*given, f"items={len(dim_zero_cat(self.ids)) if len(self.ids) else 0}"])

    def update(
        self,
        embeddings: Float[Tensor, "items dim"],
        labels: Integer[Tensor, "items ..."] | Bool[Tensor, "items levels classes"] | ArrayLike,
        ids: Integer[Tensor, "items"] | ArrayLike | None = None,
        *,
        role: Literal["both", "query", "gallery"] = "both",
    ) -> None:
        """Add a batch of images that are queries, gallery items, or both.

        Labels are as in `evaluate`: finest first, −1 for none; sets `[items, levels, M]` padded with −1, of any M in each
        batch, or truth values of all classes. Ids are 0 or more.
        """
        if role not in _ROLES:
            raise ValueError(f"role={role!r} must be one of {', '.join(map(repr, _ROLES))}.")
        if embeddings.ndim != 2 or embeddings.dtype not in _DTYPES:
            raise ValueError(f"embeddings are {embeddings.dtype} {tuple(embeddings.shape)}, but must be floats [items, dim].")
        labels = torch.as_tensor(labels, device=embeddings.device)
        multi_hot = labels.dtype == torch.bool and labels.ndim == 3
        if labels.ndim not in (1, 2, 3) or len(labels) != len(embeddings) or not (is_integral(labels) or multi_hot):
            raise ValueError(
                f"labels are {labels.dtype} {tuple(labels.shape)}, but must be integers [{len(embeddings)}] or "
                f"[{len(embeddings)}, levels], finest first: a row for each embedding; or sets [{len(embeddings)}, levels, M]."
            )
        unsigned = labels.dtype == torch.uint64
        labels = label_columns(labels, "labels").long()
        if ids is None:
            ids = torch.full((len(embeddings),), _NO_ID, device=embeddings.device)
        else:
            ids = torch.as_tensor(ids, device=embeddings.device)
            if ids.shape != (len(embeddings),) or not is_integral(ids) or (ids < 0).any():
                raise ValueError(
                    f"ids are {ids.dtype} {tuple(ids.shape)}, but must be {len(embeddings)} integers of 0 or more, such as "
                    f"the images' indices in the dataset."
                )
        if unsigned:  # other labels are checked in `compute`, so that a GPU need not wait here
            check_labels(labels, "labels", unsigned=True)
        self._report = None
        self.embeddings.append(embeddings.detach())
        # Each a set, of one label where an image has one, in descending order so that equal sets are equal tensors.
        self.labels.append(labels[..., None] if labels.ndim == 2 else labels.sort(-1, descending=True).values)
        self.ids.append(ids.long())
        self.roles.append(torch.full_like(ids, _ROLES[role], dtype=torch.uint8))

    def compute(self) -> dict[str, Tensor]:
        """The mean of each metric over the queries, by the keys of `evaluate`, for `log_dict`.

        They are scalars in float64, or in float32 on a device that has no float64.
        """
        self._report = self._evaluate()
        dtype = torch.float32 if self.device.type in _WITHOUT_FLOAT64 else torch.float64
        return {key: torch.tensor(value, dtype=dtype, device=self.device) for key, value in self._report.items()}

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the values of `compute`, or those given, one set or a list of sets over time; return figure and axes."""
        return self._plot(val, ax)

    def report(self) -> Report:
        """The same as a `Report`, with the values of each query. As with `compute`, all processes must call it."""
        if self._report is None or self._computed is None:
            self.compute()
        assert self._report is not None
        return self._report

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._report = None

    def _evaluate(self) -> Report:
        if not len(self.embeddings):
            raise ValueError("RetrievalMetrics has no embeddings; call update() before compute().")
        embeddings = dim_zero_cat(self.embeddings)
        synced = self._is_synced and self.process_group is None  # else processes hold different items
        sets = _padded(self.labels)
        states = (sets[..., 0] if sets.shape[2] == 1 else sets, dim_zero_cat(self.ids), dim_zero_cat(self.roles))
        labels, ids, roles = (state.cpu().numpy() for state in states)
        known = ids != _NO_ID
        if known.any() != known.all():
            raise ValueError(
                f"{int(known.sum())} of {len(ids)} items have ids, and without an id a repeated item looks like a new one; "
                f"give ids at every update(), or at none."
            )
        with_ids = bool(known.all())
        queries, gallery = (_unique_rows(ids, labels, roles & _ROLES[role] > 0, with_ids) for role in ("query", "gallery"))
        for rows, role in ((queries, "query"), (gallery, "gallery")):
            if not len(rows):
                raise ValueError(f"no item has role {role!r} or 'both'; both queries and gallery items are needed.")
        if np.array_equal(queries, gallery):
            return evaluate(
                _take(embeddings, queries),
                labels[queries],
                ids=ids[queries] if with_ids else None,
                progress=False,
                distributed=synced,
                per_query=True,
                **self.options,
            )
        if with_ids:
            _check_shared_ids(ids, labels, queries, gallery)
        return evaluate(
            _take(embeddings, queries),
            labels[queries],
            _take(embeddings, gallery),
            labels[gallery],
            self_index=None if with_ids else _positions(queries, gallery),
            ids=ids[queries] if with_ids else None,
            gallery_ids=ids[gallery] if with_ids else None,
            progress=False,
            distributed=synced,
            per_query=True,
            **self.options,
        )

    def _sync_dist(
        self, dist_sync_fn: Callable[..., list[Tensor]] = gather_all_tensors, process_group: Any | None = None
    ) -> None:
        """Gather as torchmetrics does, but also if a process has no items: it has to know the shapes of the others'."""
        shape = [0, 0, 0, 1]
        if len(self.embeddings):
            first, most = self.embeddings[0], max(one.shape[2] for one in self.labels)
            shape = [first.shape[1], self.labels[0].shape[1], _DTYPES.index(first.dtype), most]
        device = self.embeddings[0].device if len(self.embeddings) else self.device
        gathered = dist_sync_fn(torch.tensor(shape, device=device), group=process_group or self.process_group)
        shapes = {tuple(one[:3].tolist()) for one in gathered if one[0]}
        most = max(int(one[3]) for one in gathered)
        if len(shapes) > 1:
            listed = " and ".join(f"{dim}-d {_DTYPES[dtype]} with {depth} level(s)" for dim, depth, dtype in sorted(shapes))
            raise ValueError(f"processes hold different embeddings, {listed}; use one model and one dtype on all.")
        if not shapes:
            return
        if not len(self.embeddings):
            ((dim, depth, dtype),) = shapes
            self.embeddings = [torch.empty(0, dim, dtype=_DTYPES[dtype], device=device)]
            self.labels = [torch.empty(0, depth, most, dtype=torch.int64, device=device)]
            self.ids = [torch.empty(0, dtype=torch.int64, device=device)]
            self.roles = [torch.empty(0, dtype=torch.uint8, device=device)]
        self.labels = [_padded(self.labels, most)]
        super()._sync_dist(dist_sync_fn, process_group)


def _padded(sets: list[Tensor] | Tensor, most: int = 0) -> Tensor:
    """Label sets of several batches in one tensor, with room for `most` labels, or as many as the largest has."""
    batches = sets if isinstance(sets, list) else [sets]  # a tensor once torchmetrics has gathered them
    most = max(most, *(one.shape[2] for one in batches))
    return torch.cat([torch.nn.functional.pad(one, (0, most - one.shape[2]), value=NO_LABEL) for one in batches])


def _take(embeddings: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """The rows, without a copy if they are all rows."""
    if len(rows) == len(embeddings) and (rows == np.arange(len(rows))).all():
        return embeddings
    return embeddings[torch.from_numpy(rows).to(embeddings.device)]


def _unique_rows(
    ids: NDArray[np.int64], labels: NDArray[np.int64], chosen: NDArray[np.bool_], with_ids: bool
) -> NDArray[np.int64]:
    """The numbers of the chosen items in the order of their ids, one for each id; without ids, all in order of arrival."""
    rows = np.flatnonzero(chosen)
    if not with_ids:
        return rows
    unique, first, inverse = np.unique(ids[rows], return_index=True, return_inverse=True)
    same = ~_differ(labels[rows], labels[rows[first[inverse]]])
    if not same.all():
        _raise_ambiguous_id(int(unique[inverse[int(np.flatnonzero(~same)[0])]]))
    return rows[first]


def _differ(labels: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows differ, in one label or set."""
    return np.asarray((labels != others).any(axis=tuple(range(1, labels.ndim))))


def _check_shared_ids(
    ids: NDArray[np.int64], labels: NDArray[np.int64], queries: NDArray[np.int64], gallery: NDArray[np.int64]
) -> None:
    shared, mine, theirs = np.intersect1d(ids[queries], ids[gallery], assume_unique=True, return_indices=True)
    different = _differ(labels[queries[mine]], labels[gallery[theirs]])
    if different.any():
        _raise_ambiguous_id(int(shared[int(np.flatnonzero(different)[0])]))


def _raise_ambiguous_id(number: int) -> None:
    raise ValueError(
        f"id {number} came with different labels, but one id stands for one image, in queries and gallery alike; if these "
        f"are two datasets, add the length of the one to the indices of the other."
    )


def _positions(queries: NDArray[np.int64], gallery: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each query in the gallery; −1 if it is not there."""
    at = np.searchsorted(gallery, queries).clip(max=len(gallery) - 1)
    return np.where(gallery[at] == queries, at, -1)
