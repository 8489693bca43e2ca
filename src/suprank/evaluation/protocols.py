"""The protocols under which retrieval numbers are published, by name: their conventions and metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from suprank.evaluation.arguments import check_ks

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from suprank.evaluation.report import Report

SelfMatch = Literal["first", "id", "keep"]
"""What `mieb` does about the query in its own list: drop the first result, drop the item with the query's id, or nothing."""


@dataclass(frozen=True)
class Protocol:
    """The conventions of a protocol, each in a few words, and its metrics: `R@k` stands for one metric for each of `ks`."""

    name: str
    title: str
    metrics: tuple[str, ...]
    ks: tuple[int, ...]
    gallery: str
    self_match: str
    average_precision: str
    no_positives: str
    ties: str
    inputs: tuple[str, ...]  # arguments of `evaluate_protocol` that only some protocols take
    quoted: tuple[str, ...] = ()  # the metrics to print first; () for all

    def conventions(self, self_match: str | None = None) -> str:
        """All conventions in one line. `self_match` is given where it depends on the task."""
        return (
            f"{self.gallery}; the query itself {self_match or self.self_match}; {self.average_precision}; "
            f"queries without positives {self.no_positives}; ties: {self.ties}"
        )

    def metric_names(self, ks: Sequence[int] | None = None) -> list[str]:
        """The metrics at these k, by default the protocol's own."""
        cut_offs = check_ks(self.ks if ks is None else ks)
        names = [name.replace("@k", f"@{k}") for name in self.metrics for k in (cut_offs if name.endswith("@k") else [0])]
        return list(dict.fromkeys(names))


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            name="dml",
            title="deep metric learning (Musgrave et al., ECCV 2020; pytorch-metric-learning)",
            metrics=("R@k", "P@1", "R-P", "mAP@R"),
            ks=(1, 2, 4, 8),
            gallery="every image against all others",
            self_match="left out by its row",
            average_precision="AP over the first R places, divided by R",
            no_positives="left out",
            ties="the worse item first",
            inputs=("labels",),
        ),
        Protocol(
            name="mieb",
            title="image retrieval tasks of mteb (MIEB, Xiao et al., ICCV 2025)",
            metrics=("NDCG-linear@k", "AP-all@k", "recall-all@k", "P@k", "MRR@k", "R@k"),
            ks=(1, 3, 5, 10, 20, 100, 1000),
            gallery="queries against the corpus, lists of 1,000 items",
            self_match="by the task",
            average_precision="AP@k divided by all relevant items",
            no_positives="left out without judgments, 0 with zeros only",
            ties="the larger id first",
            inputs=("labels", "qrels", "self_match"),
            quoted=("R@1", "NDCG-linear@10", "AP-all@5", "MRR@10", "recall-all@10"),
        ),
        Protocol(
            name="revisited",
            title="revisited Oxford and Paris (Radenović et al., CVPR 2018)",
            metrics=(),
            ks=(1, 5, 10),
            gallery="queries against the gallery, junk removed from each list",
            self_match="not in the gallery",
            average_precision="AP by trapezoids, divided by all positives",
            no_positives="left out of the protocol (easy, medium or hard)",
            ties="the worse item first",
            inputs=("ground_truth",),
        ),
        Protocol(
            name="gldv2",
            title="Google Landmarks v2 retrieval (Weyand et al., CVPR 2020)",
            metrics=("mAP@k",),
            ks=(100,),
            gallery="queries against the index with its distractors, without train images",
            self_match="kept",
            average_precision="AP@100 divided by min(100, all positives)",
            no_positives="left out",
            ties="the worse item first",
            inputs=("labels", "solution", "usage"),
        ),
    )
}
"""The protocols by their name in `suprank evaluate --protocol`."""

SELF_MATCHES: dict[str, str] = {
    "first": "left out as the first result, whatever it is",
    "id": "left out by its id",
    "keep": "kept",
}

_MTEB_METRICS = {
    **{"ndcg": "NDCG-linear", "map": "AP-all", "recall": "recall-all", "precision": "P", "mrr": "MRR"},
    **{"hit_rate": "R", "cv_recall": "R"},
}


def mteb_metric(name: str) -> str:
    """The key of a score of mteb: `map_at_5` is AP-all@5, where `parse_metric` reads mAP@5, divided by min(5, R).

    Example:
        >>> mteb_metric("ndcg_at_10"), mteb_metric("hit_rate_at_1"), mteb_metric("accuracy")
        ('NDCG-linear@10', 'R@1', 'recall-all@1')
    """
    base, _, k = ("recall_at_1" if name == "accuracy" else name).rpartition("_at_")
    if base not in _MTEB_METRICS or not k.isdigit():
        raise ValueError(
            f"{name!r} is no score of mteb's rankings; known are {', '.join(f'{one}_at_k' for one in _MTEB_METRICS)}."
        )
    return f"{_MTEB_METRICS[base]}@{k}"


def find_protocol(name: str) -> Protocol:
    """The protocol of this name."""
    if name not in PROTOCOLS:
        raise ValueError(f"protocol={name!r} is not one of {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]


def check_inputs(protocol: Protocol, given: Collection[str]) -> None:
    """Refuse ground truth of another protocol."""
    for name in ("qrels", "self_match", "ground_truth", "solution", "usage"):
        if name in given and name not in protocol.inputs:
            owner = next(one.name for one in PROTOCOLS.values() if name in one.inputs)
            raise ValueError(
                f"{name} is for protocol={owner!r}, and protocol={protocol.name!r} was chosen; leave out one of them."
            )


def with_protocol(report: Report, protocol: Protocol, **settings: Any) -> Report:
    """The report with the protocol and its conventions in its settings."""
    line = protocol.conventions(SELF_MATCHES.get(settings.get("self_match", "")))
    return replace(report, settings={**report.settings, "protocol": protocol.name, "conventions": line, **settings})
