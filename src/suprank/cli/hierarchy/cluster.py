"""suprank hierarchy cluster: the embedded labels of a project into clusters, for people to review."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet

if TYPE_CHECKING:
    from suprank.hierarchy.clustering import ClusterOutcome


class Method(StrEnum):
    """Of clustering."""

    KMEANS = "kmeans"
    WARD = "ward"


def cluster(
    project: ProjectFolder,
    k: Annotated[
        int | None, typer.Option("-k", min=1, help="Clusters.", show_default="the recipe's, or one for every 30 labels")
    ] = None,
    method: Annotated[
        Method, typer.Option(help="kmeans, as in the paper; or ward, a tree, up to 20,000 labels.")
    ] = Method.KMEANS,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31, help="Of kmeans.", show_default="the recipe's, 0")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Further runs, to see what is chance.", show_default="the recipe's, 5")
    ] = None,
    weighted: Annotated[
        bool, typer.Option("--weighted", help="A label counts as often as it has items; by default, once.")
    ] = False,
    auto_k: Annotated[bool, typer.Option("--auto-k", help="Lower k where there are fewer labels.")] = False,
    quiet: Quiet = False,
) -> None:
    """Put labels together whose vectors are near each other: a first draft, which people then split, merge and name.

    The run is pinned: the same settings give the same clusters. Another seed would give others; how different they are is
    measured and shown. More clusters than you want in the end are better than fewer, because to merge two is quicker than to
    split one. A clustering is kept as it is: a review that began on one goes on, whatever is clustered later.

    \b
    suprank hierarchy cluster birds
    suprank hierarchy cluster landmarks -k 200 --seed 1
    """
    with plain_errors():
        from suprank.hierarchy.clustering import cluster_labels
        from suprank.hierarchy.project import Project

        opened = Project(project)
        with terminal.progress("clustering", quiet) as progress:
            outcome = cluster_labels(
                opened,
                k=k,
                method=method.value,
                seed=seed,
                seeds=seeds,
                weighted=weighted,
                auto_k=auto_k,
                progress=progress,
            )
    for line in _told(outcome, k):
        terminal.echo(line)


def _told(outcome: ClusterOutcome, asked: int | None) -> list[str]:
    figures, settings = outcome.figures, outcome.settings
    how = f"k-means, seed {settings['seed']}" if settings["method"] == "kmeans" else "Ward"
    made = "" if outcome.fresh else "; was there already, nothing changed"
    signal = figures["labels"] - figures["without_signal"]
    lines = [f"clustering {outcome.id}: {signal:,} labels in {figures['clusters']:,} clusters ({how}){made}"]
    if asked is not None and figures["clusters"] < asked:
        lines.append(f"k was lowered from {asked:,}: there are no more different vectors")
    if figures["without_signal"]:
        lines.append(f"{figures['without_signal']:,} labels without text signal are in one more cluster, the last")
    if signal:
        sizes = figures["sizes"]
        lines.append(f"labels a cluster: median {sizes['median']:g}, most {sizes['largest']:,}; {sizes['singletons']:,} alone")
        lines.append(f"tightness {figures['tightness']:.3f} (mean cosine to the center), silhouette {_silhouette(figures)}")
        lines.append(_chance(outcome))
    return lines


def _silhouette(figures: dict[str, Any]) -> str:
    if figures["silhouette"] is None:
        return "undefined for these clusters"
    sampled = figures["labels"] - figures["without_signal"] > figures["silhouette_of"]
    sample = f", of a sample of {figures['silhouette_of']:,}" if sampled else ""
    return f"{figures['silhouette']:.3f} (cosine{sample})"


def _chance(outcome: ClusterOutcome) -> str:
    if outcome.settings["method"] == "ward":
        return "nothing is drawn by chance: the same labels and vectors give the same tree"
    agreement = outcome.figures["agreement"]
    if agreement is None:
        return "another seed gives another outcome, so this run is pinned; --seeds measures how different"
    least, most = agreement["least"], agreement["most"]
    return (
        f"another seed gives another outcome: {agreement['runs']} of them agree with this one by an ARI of "
        f"{agreement['mean']:.2f} ({least:.2f} to {most:.2f}; 1 is the same), so the run is pinned"
    )
