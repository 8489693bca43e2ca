"""suprank demo: a small network trained with HAPPIER on drawings, and judged by exact metrics on classes it never saw."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from suprank.cli.experiment import Images
    from suprank.data import Manifest


def demo(
    data: Annotated[
        str | None,
        typer.Option(
            metavar="emoji|glyphs|MANIFEST", help="What to train on.", show_default="emoji where npm is there, else glyphs"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights and batches: the same seed gives the same numbers.")] = 0,
    steps: Annotated[int, typer.Option(help="Batches to train on.")] = 300,
    batch_size: Annotated[int, typer.Option(help="Images in a batch, four of each class.")] = 128,
) -> None:
    """Train a small network with HAPPIER on drawings, in about a minute, and print exact metrics before and after.

    The drawings are made on the first call and kept: emoji by six artists, from npm (about a minute), or characters in many
    fonts, from what is installed (seconds).
    """
    for name, given, least, usual in (("--seed", seed, 0, 0), ("--steps", steps, 1, 300)):
        if not least <= given < 2**63:
            raise typer.BadParameter(f"{given} must be {least} or more, and below 2⁶³; try {usual}.", param_hint=name)

    import torch
    from rich.console import Console

    from suprank.cli import experiment
    from suprank.losses import ProxySoftmax, happier

    # Threads that wait for each other on a busy machine made it five times slower (69 s against 14 s for 100 batches).
    torch.set_num_threads(1)
    console = Console()
    with terminal.plain_errors("a smaller --batch-size"):
        manifest = _manifest(data, console.print)
        for split in ("train", "test"):
            console.print(f"{split:5}  {_counts(manifest.split(split))}", highlight=False)
        train, test = (_images(manifest.split(split), f"reading {split}") for split in ("train", "test"))
        stream = experiment.batches(train, batch_size, seed)
    torch.manual_seed(seed)  # weights and proxies
    model = experiment.embedder()
    loss = happier(ProxySoftmax(train.classes, experiment.EMBEDDING))
    judged = {
        "pixels": experiment.exact_metrics(experiment.unit(test.pixels).flatten(1), test),
        "untrained": experiment.exact_metrics(experiment.embeddings(model, test), test),
    }
    with _progress(steps) as advance:
        for value in experiment.training(model, loss, stream, steps, seed):
            advance(value)
    judged["trained"] = experiment.exact_metrics(experiment.embeddings(model, test), test)
    console.print(_table(judged, experiment.METRICS))


def _manifest(data: str | None, say: Callable[[str], None]) -> Manifest:
    """What was asked for; or emoji, and glyphs where those cannot be had."""
    from suprank.cli import experiment

    with terminal.progress("drawing", quiet=False) as progress:
        chosen = data or experiment.first_choice()
        try:
            return experiment.collection(chosen, progress)
        except (OSError, ImportError) as error:
            if data is not None or chosen == "glyphs":
                raise
            say(f"no emoji: {error}\nTaking glyphs instead.")
    with terminal.progress("drawing", quiet=False) as progress:
        return experiment.collection("glyphs", progress)


def _images(manifest: Manifest, doing: str) -> Images:
    from suprank.cli import experiment

    with terminal.progress(doing, quiet=False) as progress:
        return experiment.images(manifest, progress)


def _counts(manifest: Manifest) -> str:
    """`4,518 images of 835 emoji, 93 subgroup, 9 group`"""
    tree = manifest.to_tree()
    classes = [f"{int((images > 0).sum()):,} {level}" for level, images in zip(tree.levels, tree.images, strict=True)]
    return f"{len(manifest):,} images: {', '.join(classes)}"


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[float], None]]:
    """A bar that shows the loss; the function it gives takes the loss of one more step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("training  loss {task.fields[loss]:.3f}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=steps, loss=float("nan"))
        yield lambda value: progress.update(task, advance=1, loss=value)


def _table(judged: dict[str, dict[str, float]], metrics: tuple[str, ...]) -> Table:
    from rich.table import Table

    table = Table("test classes, HAPPIER", *judged)
    for column in table.columns[1:]:
        column.justify = "right"
    for metric in metrics:
        table.add_row(metric, *(f"{values[metric]:.1%}" for values in judged.values()))
    return table
