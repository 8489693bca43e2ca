"""`suprank hierarchy cluster`: encode the labels of a project as vectors, and cluster these, for people to review."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet

if TYPE_CHECKING:
    from suprank.hierarchy.clustering import ClusterResult
    from suprank.hierarchy.embedding import EmbedResult


class Method(StrEnum):
    """Clustering methods."""

    KMEANS = "kmeans"
    WARD = "ward"


def cluster(
    project: ProjectFolder,
    k: Annotated[
        int | None,
        typer.Option("-k", min=1, help="Number of clusters.", show_default="the recipe's, or one for every 30 labels"),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="ENCODER",
            help="Encoder: tfidf, sentence:MODEL_OR_FOLDER, clip:MODEL/WEIGHTS_OR_FILE or precomputed:FILE.npz.",
            show_default="that of the last time, or the recipe's",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Prompt of sentence and clip; {} is the label.", show_default="the recipe's"),
    ] = None,
    with_description: Annotated[
        bool, typer.Option("--with-description", help="Encode the descriptions of labels, too.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Device of sentence and clip: cpu, cuda or cuda:N.", show_default="a GPU if there is one")
    ] = None,
    method: Annotated[Method, typer.Option(help="kmeans, as in the paper, or ward, for up to 20,000 labels.")] = Method.KMEANS,
    seed: Annotated[int | None, typer.Option(min=0, max=2**31, help="Seed of kmeans.", show_default="the recipe's, 0")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=0, max=1000, help="Runs with other seeds, to measure chance.", show_default="the recipe's, 5"),
    ] = None,
    weighted: Annotated[
        bool, typer.Option("--weighted", help="Count a label as often as it has items, instead of once.")
    ] = False,
    auto_k: Annotated[bool, typer.Option("--auto-k", help="Lower k if there are fewer different labels.")] = False,
    quiet: Quiet = False,
) -> None:
    """Cluster labels whose vectors are similar: a first draft, which people then split, merge and name.

    The vectors are kept, and made again only for other labels or with another encoder. tfidf compares spellings and needs no
    model. sentence and clip need `pip install "suprank\\[all]"` and weights, from a folder or file, or by a name, which
    downloads them. precomputed reads vectors computed elsewhere, from an .npz file with the arrays labels (texts or keys) and
    embeddings, and optionally fingerprint. What the recipe strips, such as years in brackets, is not encoded.

    The same settings give the same clusters. Another seed gives other clusters; the output says how different they are. Ask for
    more clusters than you want in the end, because merging two is quicker than splitting one. A clustering never changes: a
    review that started from it is not affected by later ones. If labels times clusters exceed 15 million (21,213 labels without
    -k), scikit-learn's MiniBatchKMeans is used, which is about as good; the output says so.

    \b
    suprank hierarchy cluster birds
    suprank hierarchy cluster landmarks -k 200 --seed 1
    suprank hierarchy cluster landmarks --encoder clip:ViT-L-14/laion2b_s32b_b82k --prompt "A picture of a {}"
    suprank hierarchy cluster landmarks --encoder clip:ViT-B-32//models/vit-b-32.pt
    suprank hierarchy cluster landmarks --encoder precomputed:clip-vectors.npz
    """
    with plain_errors():
        from suprank.hierarchy.clustering import cluster_labels
        from suprank.hierarchy.embedding import embed_labels, is_embedded
        from suprank.hierarchy.project import Project

        opened = Project(project)
        if device is not None:  # torch takes a second to import
            terminal.device(device)
        if encoder or prompt or with_description or not is_embedded(opened):
            with terminal.progress("encoding", quiet) as progress:
                embedded = embed_labels(
                    opened, encoder, prompt=prompt, with_description=with_description, device=device, progress=progress
                )
            for line in _embedding_summary(embedded):
                terminal.echo(line)
        with terminal.progress("clustering", quiet) as progress:
            result = cluster_labels(
                opened,
                k=k,
                method=method.value,
                seed=seed,
                seeds=seeds,
                weighted=weighted,
                auto_k=auto_k,
                progress=progress,
            )
    for line in _summary(result, k):
        terminal.echo(line)


def _embedding_summary(result: EmbedResult) -> list[str]:
    prompt = result.encoder.get("prompt")
    name = result.encoder["name"] if prompt in (None, "{}") else f"{result.encoder['name']} of {prompt!r}"
    lines = [f"{result.labels:,} labels × {result.dim}, {name}{'' if result.fresh else ', encoded before'}"]
    if result.without_signal:
        lines.append(f"{result.without_signal:,} labels have no text signal; they get a cluster of their own")
    return lines


def _summary(result: ClusterResult, k: int | None) -> list[str]:
    statistics, settings = result.statistics, result.settings
    kmeans = "mini-batch k-means" if "batch" in settings else "k-means"
    method = f"{kmeans}, seed {settings['seed']}" if settings["method"] == "kmeans" else "Ward"
    unchanged = "" if result.fresh else "; it existed already, nothing changed"
    signal = statistics["labels"] - statistics["without_signal"]
    lines = [f"clustering {result.id}: {signal:,} labels in {statistics['clusters']:,} clusters ({method}){unchanged}"]
    if k is not None and statistics["clusters"] < k:
        lines.append(f"k was lowered from {k:,}: there are no more different vectors")
    if statistics["without_signal"]:
        lines.append(f"{statistics['without_signal']:,} labels without text signal are in one more cluster, the last")
    if signal:
        sizes = statistics["sizes"]
        counts = f"median {sizes['median']:g}, largest {sizes['largest']:,}; {sizes['singletons']:,} clusters of one label"
        lines.append(f"labels per cluster: {counts}")
        tightness = f"tightness {statistics['tightness']:.3f} (mean cosine to the center)"
        lines.append(f"{tightness}, silhouette {_silhouette(statistics)}")
        lines.append(_chance(result))
    return lines


def _silhouette(statistics: dict[str, Any]) -> str:
    if statistics["silhouette"] is None:
        return "undefined for these clusters"
    sampled = statistics["labels"] - statistics["without_signal"] > statistics["silhouette_of"]
    sample = f", of a sample of {statistics['silhouette_of']:,}" if sampled else ""
    return f"{statistics['silhouette']:.3f} (cosine{sample})"


def _chance(result: ClusterResult) -> str:
    if result.settings["method"] == "ward":
        return "Ward's method is deterministic: the same labels and vectors give the same clusters"
    agreement = result.statistics["agreement"]
    if agreement is None:
        return "another seed gives other clusters; --seeds measures how different they are"
    least, most = agreement["least"], agreement["most"]
    return (
        f"another seed gives other clusters: {agreement['runs']} of them agree with these by an ARI of "
        f"{agreement['mean']:.2f} ({least:.2f} to {most:.2f}; 1 is the same)"
    )
