"""suprank adapt: train a head on stored embeddings, and print what it changes on classes that it has not seen."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal
from suprank.cli.options import Device

if TYPE_CHECKING:
    from suprank.adaptation import AdaptResult

_WIDTH = 80


def adapt(
    embeddings: Annotated[
        Path,
        typer.Argument(
            metavar="EMBEDDINGS",
            help="A folder of `suprank train` or `suprank embed`; or embeddings, one per row, in .npy, .parquet or .pt, with "
            "--labels; or a Hugging Face dataset with a column of embeddings.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="HEAD", help="Folder to write the head to.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of the training, listed above, such as steps=100 loss.tau=0.02."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Labels of the embeddings, in the same order: .csv, .tsv, .parquet, or integers in .npy.",
            show_default="those of the folder",
        ),
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(help="Label column; repeatable, finest first.", show_default="columns that begin with label"),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="EMBEDDINGS",
            help="Test set: a folder, or a file with --test-labels.",
            show_default="the test images of the folder, if it has training images too; else --test-classes",
        ),
    ] = None,
    test_labels: Annotated[Path | None, typer.Option(help="Labels of the test set.")] = None,
    test_classes: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Hold out this share of the classes as the test set.", show_default="0.25"),
    ] = None,
    loss: Annotated[
        str, typer.Option(metavar="NAME", help="A loss that `suprank recipes --losses` lists, or your own: FILE.py:CLASS.")
    ] = "roadmap",
    device: Device = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no table.")] = False,
) -> None:
    """Train a head on stored embeddings, so that images of a class come closer; the model that made them is not needed.

    The head (normalization, linear, L2) begins at the principal directions. Some classes choose the best step, and others,
    which neither train nor choose, are the test set: its metrics are printed before and after, with 95% intervals.

    If the command is interrupted, give it again to continue where it stopped; the result is the same.

    \b
    Settings of the training, KEY=VALUE, with their defaults:
      batch=256          images per step; whole ranks all images at every step
      images_per_class=  4, or more if there are few classes
      steps=             steps of the optimizer: 600; 100 with batch=whole
      lr=2e-4            learning rate of the head
      proxies_lr=1e-2    learning rate of the loss's own parameters
      weight_decay=1e-4  weight decay of the head
      dim=               width of the new embeddings: as before, at most 512
      normalization=l2   what the head does first: l2, layer or none
      hidden=0           width of a residual MLP before the linear layer
      validation=0.2     share of the other classes that choose step and seed,
                         of 5,000 images at most
      metric=            what they choose by: mAP@R; H-AP for a loss of H-AP
      every=             steps between validations: 24 validations a run
      seed=0             seed of the splits, and of the first run
      seeds=1            runs with other batches; the best is kept
      loss.tau=, ...     keys of the loss: see `suprank recipes --losses`

    \b
    suprank embed resnet50 cub.parquet --split train --split test --out embeddings
    suprank adapt embeddings --out head
    suprank adapt vectors.npy --labels labels.csv --out head
    suprank adapt train.npy --labels train.csv --test test.npy --test-labels test.csv --out head
    suprank adapt embeddings --loss sup-ap loss.tau=0.02 seeds=3 --out head
    suprank adapt embeddings batch=whole --out head
    """
    with terminal.plain_errors("a smaller batch"), terminal.plain_messages():
        from suprank.adaptation import AdaptationStopped, AdaptConfig
        from suprank.training.recipe import read_settings
        from suprank.workflows.adaptation import adapt as adapt_files

        terminal.device(device)
        terminal.check_folder(out)
        held_out = [] if test_classes is None else [f"test_classes={test_classes}"]
        config = read_settings(AdaptConfig, [f"loss.name={loss}", *held_out, *(overrides or [])])
        bars = terminal.ProgressBars(quiet)

        def show(result: AdaptResult) -> None:
            bars.close()
            if not quiet:
                _print(result)
                terminal.echo(f"head: {out}")

        try:
            with bars:
                adapt_files(
                    embeddings,
                    out,
                    config,
                    labels=labels,
                    test=test,
                    test_labels=test_labels,
                    split_test=test_classes is not None,
                    levels=level or [],
                    device=device,
                    progress=bars,
                    on_result=show,
                )
        except AdaptationStopped as stopped:
            terminal.echo(f"{stopped}; give the same command again to continue.", err=True)
            raise typer.Exit(128 + stopped.signal) from None


def _print(result: AdaptResult) -> None:
    """Print which classes trained, chose and tested; the metrics before and after; and what was chosen."""
    from suprank.evaluation.quoted_metrics import quoted_keys

    keys = quoted_keys(result.before)
    finest = result.before.levels[0]
    table = _table(result, [key for key in keys if f"{key}/{finest}" not in keys])
    terminal.echo("\n".join([_wrapped(_split_text(result)), "", *table, "", *map(_wrapped, _notes(result))]))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False)


def _split_text(result: AdaptResult) -> str:
    classes, rows = result.classes, result.rows
    seen = classes["seen"]
    unseen = (
        "none of which was trained on or chose the step"
        if not seen
        else f"{seen:,} of which were trained on or chose the step, so that this is no test on unseen classes"
        if seen == classes["test"]
        else f"of which {classes['test'] - seen:,} are unseen and {seen:,} were trained on or chose the step"
    )
    left_out = (
        f" {rows['left_out']:,} images without a label, or alone in their class, are left out." if rows["left_out"] else ""
    )
    return (
        f"trained on {classes['training']:,} classes ({rows['training']:,} images); the best step was chosen by "
        f"{classes['validation']:,} others ({rows['validation']:,}); tested on {classes['test']:,} classes "
        f"({rows['test']:,}), {unseen}.{left_out}"
    )


def _table(result: AdaptResult, keys: list[str]) -> list[str]:
    from suprank.evaluation.report_text import align_columns, percent

    before, after = (report.with_intervals() for report in (result.before, result.after))
    several = len(result.seeds) > 1
    lines = [["%", "before", "", "after", "", "difference", "", *(["all seeds"] if several else [])]]
    for key in keys:
        low, high = result.difference_interval(key)
        cells = [key]
        for report in (before, after):
            bounds = (report.intervals or {}).get(report.resolve(key), (math.nan, math.nan))
            cells += [percent(report[key]), _interval(*bounds)]
        cells += [percent(after[key] - before[key], sign="+z"), _interval(low, high)]
        if several:
            mean, deviation = result.seed_spread(key)
            cells.append(f"{percent(mean)} ± {percent(deviation)}")
        lines.append(cells)
    return align_columns(lines)


def _interval(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"[{100 * low:.2f}, {100 * high:.2f}]"


def _notes(result: AdaptResult) -> list[str]:
    kept = result.best_seed
    notes = [f"[low, high]: 95% intervals, for new classes; of the difference on the same queries. {result.before.sentence()}"]
    which = f"seed {kept.seed}, step {kept.best.step}" if len(result.seeds) > 1 else f"step {kept.best.step}"
    chosen = (
        f"kept: {which} of {result.config.steps}, with {result.metric} {100 * kept.best.value:.2f} on the validation classes, "
        f"where the embeddings themselves have {100 * result.raw:.2f}."
    )
    notes.append(chosen)
    if not result.improved:
        notes.append(
            "No step ranked the validation classes better than the embeddings themselves: keep the embeddings as they are, "
            "or give more classes."
        )
    return notes
