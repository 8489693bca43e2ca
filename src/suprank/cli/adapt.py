"""suprank adapt: train a head on stored embeddings, and print what it changes on classes that it has not seen."""

from __future__ import annotations

import math
import textwrap
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from suprank.adaptation import AdaptConfig, AdaptResult

_WIDTH = 80


class Normalization(StrEnum):
    """What the head does to each embedding first."""

    L2 = "l2"
    LAYER = "layer"
    NONE = "none"


def adapt(
    embeddings: Annotated[
        Path,
        typer.Argument(
            metavar="EMBEDDINGS",
            help="A folder of `suprank train` or `suprank embed`; or embeddings, one per row, in .npy, .parquet or .pt, with "
            "--labels; or a Hugging Face dataset with a column of embeddings.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the loss, as in a recipe, such as loss.tau=0.02."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="HEAD", help="Folder to write the head to. Required.")] = None,
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
    validation: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of the remaining classes, of 5,000 images at most, that choose the best step and seed.",
            show_default="0.2",
        ),
    ] = None,
    loss: Annotated[
        str, typer.Option(metavar="NAME", help="A loss that `suprank recipes --losses` lists, or your own: FILE.py:CLASS.")
    ] = "roadmap",
    batch: Annotated[
        str, typer.Option(metavar="SIZE|whole", help="Images per step; `whole` ranks the whole collection at every step.")
    ] = "256",
    images_per_class: Annotated[
        int | None,
        typer.Option(min=1, help="Images of each class in a batch.", show_default="4, or more if there are few classes"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the optimizer.", show_default="600; 100 with --batch whole")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate of the head.", show_default="0.0002"),
    ] = None,
    proxies_lr: Annotated[
        float | None, typer.Option(help="Learning rate of the loss's own parameters.", show_default="0.01")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of the head.", show_default="0.0001")] = None,
    dim: Annotated[
        int | None,
        typer.Option(min=1, help="Width of the new embeddings.", show_default="that of the embeddings, 512 at most"),
    ] = None,
    normalization: Annotated[
        Normalization, typer.Option(help="What the head does to each embedding first.")
    ] = Normalization.L2,
    hidden: Annotated[int, typer.Option(min=0, help="Width of a residual MLP before the linear layer; 0 for none.")] = 0,
    every: Annotated[
        int | None, typer.Option(min=1, help="Steps between validations.", show_default="24 validations a run")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric of the validation classes that chooses the best step and seed.",
            show_default="mAP@R; H-AP for a loss of H-AP",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the splits, and of the first run.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Runs with other batches; the best on validation is kept.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.", show_default="cuda if available")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no table.")] = False,
) -> None:
    """Train a head on stored embeddings, so that images of a class come closer; the model that made them is not needed.

    The head (normalization, linear, L2) begins at the principal directions. Some classes choose the best step, and others,
    which neither train nor choose, are the test set: its metrics are printed before and after, with 95% intervals.

    If the command is interrupted, give it again to continue where it stopped; the result is the same.

    \b
    suprank embed resnet50 cub.parquet --split train --split test --out embeddings
    suprank adapt embeddings --out head
    suprank adapt vectors.npy --labels labels.csv --out head
    suprank adapt train.npy --labels train.csv --test test.npy --test-labels test.csv --out head
    suprank adapt embeddings --loss sup-ap loss.tau=0.02 --seeds 3 --out head
    suprank adapt embeddings --batch whole --out head
    """
    if out is None:
        raise typer.BadParameter("the folder to write the head to is missing.", param_hint="--out")
    with terminal.plain_errors("a smaller --batch"), terminal.plain_messages():
        from suprank.adaptation import AdaptationStopped
        from suprank.workflows.adaptation import adapt as adapt_files

        terminal.device(device)
        terminal.check_folder(out)
        given: dict[str, Any] = {
            "test_classes": test_classes,
            "validation": validation,
            "lr": lr,
            "proxies_lr": proxies_lr,
            "weight_decay": weight_decay,
        }
        config = _config(
            loss,
            overrides or [],
            **{key: value for key, value in given.items() if value is not None},
            batch=_parse_batch(batch),
            images_per_class=images_per_class,
            steps=steps,
            dim=dim,
            normalization=normalization.value,
            hidden=hidden,
            every=every,
            metric=metric,
            seed=seed,
            seeds=seeds,
        )
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
        except ValueError as error:
            raise typer.BadParameter(terminal.escaped(str(error))) from error
        except AdaptationStopped as stopped:
            terminal.echo(f"{stopped}; give the same command again to continue.", err=True)
            raise typer.Exit(128 + stopped.signal) from None


def _parse_batch(text: str) -> int | str:
    """A number of images, or `whole`."""
    if text == "whole":
        return text
    if not text.isascii() or not text.isdecimal() or int(text) < 2:
        raise typer.BadParameter(f"{text!r} must be a number of images, 2 or more, or whole.", param_hint="--batch")
    return int(text)


def _config(loss: str, overrides: list[str], **settings: Any) -> AdaptConfig:
    from pydantic import ValidationError

    from suprank.adaptation import AdaptConfig
    from suprank.training.recipe import read_loss

    spec = read_loss(loss, overrides)
    try:
        return AdaptConfig(loss=spec, **settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = f"--{str(first['loc'][0]).replace('_', '-')}"
        text = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
        raise typer.BadParameter(f"{first['input']} {text}.", param_hint=option) from None


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
