"""suprank demo: a tiny embedder trained with HAPPIER on generated data, and judged by exact metrics."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table


def demo(
    seed: Annotated[int, typer.Option(help="Of data, weights and batches: the same seed gives the same numbers.")] = 0,
    steps: Annotated[int, typer.Option(help="Batches to train on.")] = 400,
    batch_size: Annotated[int, typer.Option(help="Images in a batch, four of each class.")] = 128,
) -> None:
    """Train a tiny embedder with HAPPIER on generated data, in seconds, and print exact metrics before and after."""
    for name, given, least, usual in (("--seed", seed, 0, 0), ("--steps", steps, 1, 400)):
        if not least <= given < 2**63:
            raise typer.BadParameter(f"{given} must be {least} or more, and below 2⁶³; try {usual}.", param_hint=name)

    import torch
    from rich.console import Console

    from suprank.cli import experiment
    from suprank.losses import ProxySoftmax, happier

    # Batches are small: threads that wait for each other on a busy machine made it 15 times slower (174 s against 11 s).
    torch.set_num_threads(1)
    train, test = experiment.train_and_test(seed)
    try:
        stream = experiment.batches(train, batch_size, seed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--batch-size") from error
    torch.manual_seed(seed)  # weights and proxies
    model = experiment.embedder()
    loss = happier(ProxySoftmax(train.classes, experiment.EMBEDDING))
    held = next(stream)  # the loss is read on one and the same batch

    def judged() -> dict[str, float]:
        with torch.no_grad():
            value = loss(model(held.pixels), held.labels).item()
        return {"loss": value, **experiment.exact_metrics(model, test)}

    console = Console()
    for name, images in (("train", train), ("test", test)):
        console.print(f"{name:5}  {len(images.pixels):4} generated images of {images.classes:3} classes", highlight=False)
    console.print("No class is in both; their families and groups are.", highlight=False)
    before = judged()
    with _progress(steps) as advance:
        for value in experiment.training(model, loss, stream, steps):
            advance(value)
    console.print(_table(before, judged()))


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[float], None]]:
    """A bar that shows the loss; the function it gives takes the loss of one more step."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("training  loss {task.fields[loss]:.3f}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=steps, loss=float("nan"))
        yield lambda value: progress.update(task, advance=1, loss=value)


def _table(before: dict[str, float], after: dict[str, float]) -> Table:
    from rich.table import Table

    table = Table("HAPPIER", "before", "after")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("loss, a training batch", f"{before['loss']:.3f}", f"{after['loss']:.3f}", end_section=True)
    for name in ("H-AP", "AP", "R@1"):
        table.add_row(f"{name}, test", f"{before[name]:.1%}", f"{after[name]:.1%}")
    return table
