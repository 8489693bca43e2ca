"""suprank demo: train one small network on fine labels only and on the whole tree, and compare on unseen classes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from suprank.data import Manifest
    from suprank.evaluation import Report

METHODS = {"Smooth-AP": "smooth-ap", "HAPPIER": "happier"}
METRICS = ("R@1", "AP", "H-AP", "NDCG", "ASI")
EPOCHS = 8
"""Epochs of each training: 75 seconds of a core's time on emoji. The recipe has 28, and reaches 10 points of R@1 more."""

NEXT_STEPS = """\
Next, with your own photos, in folders named after their classes (photos/<class>/*.jpg):
  suprank data import folder photos --out photos.parquet --holdout-classes 0.5
  suprank train photos/happier data.manifest=photos.parquet --out runs/photos
  suprank report runs/photos --against-frozen --out report.html"""


def demo(
    data: Annotated[
        str | None,
        typer.Option(
            metavar="emoji|glyphs|MANIFEST", help="Images to train on.", show_default="emoji if npm is available, else glyphs"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches; the same seed gives the same numbers.")] = 0,
    epochs: Annotated[int, typer.Option(help="Number of epochs; 28 for the results of the recipe on emoji.")] = EPOCHS,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs.")] = Path("runs/demo"),
) -> None:
    """Train one small network twice on drawings, in minutes: on fine labels only, and on the whole label tree.

    Smooth-AP sees the finest classes, HAPPIER all levels; network, images and budget are the same. The table at the end is over
    classes that neither has seen, and a page beside the runs shows what they retrieve. Both runs are kept: the same command
    continues an interrupted run, and shows a finished one. Two cores take about two minutes, more cores less.

    The drawings are made on the first call and kept: emoji by six artists, from npm (about a minute), or characters in many
    fonts, from installed ones (seconds).
    """
    from rich.console import Console

    console = Console()
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    with terminal.plain_errors("a smaller batch: `suprank train emoji/happier batch.size=64`"):
        terminal.check_folder(out)
        name, manifest = _manifest(data, say)
        for split in ("train", "test"):
            say(f"{split:5}  {_counts(manifest.split(split))}")
        from suprank.cli.experiments import CommandDisplay, exit_if_failed, explain_stop
        from suprank.data.workers import default_workers
        from suprank.experiments import compare

        folder, cores = out / f"{Path(name).stem}-seed{seed}-{epochs}epochs", default_workers()
        preset = "glyphs" if name == "glyphs" else "emoji"
        recipes = [f"{preset}/{recipe}" for recipe in METHODS.values()]
        display = CommandDisplay(tables=False)  # the one below says more
        with explain_stop(out):
            done = compare(
                recipes, folder, _settings(name, seed, epochs, cores), jobs=min(len(METHODS), cores), display=display
            )
        exit_if_failed(done.failed, done.planned)
        runs = {label: folder / f"{recipe},seed={seed}" for label, recipe in METHODS.items()}
        reports = {"untrained": _report(runs["HAPPIER"], 0)}
        reports |= {label: _report(run, epochs) for label, run in runs.items()}
    console.print(_table(reports))
    for label, run in runs.items():
        say(f"{label}: {run / 'model'}")
    with terminal.plain_errors("a smaller batch: `suprank train emoji/happier evaluation.batch_size=64`"):
        page = _page(folder, runs["Smooth-AP"], runs["HAPPIER"], name)
    say(f"What they retrieve, side by side: {page}\n\n{NEXT_STEPS}")


def _settings(name: str, seed: int, epochs: int, cores: int) -> dict[str, object]:
    """What both runs have in place of the values of the recipes."""
    return {
        "data.manifest": name,
        # A process trains on one core, and preparing its images takes a third of its time: other cores can do that.
        "data.workers": max(0, min(cores - len(METHODS), 2 * len(METHODS)) // len(METHODS)),
        "run.seed": seed,
        "run.epochs": epochs,
        "evaluation.at_start": True,
        "evaluation.every": (epochs + 1) // 2,
    }


def _manifest(data: str | None, say: Callable[[str], None]) -> tuple[str, Manifest]:
    """The name and the manifest of the dataset: by default emoji, or glyphs where emoji are not available."""
    from suprank.data.importers import emoji
    from suprank.training.manifests import open_manifest

    chosen = data or ("emoji" if emoji.available() else "glyphs")
    say(f"Training on {chosen}.")
    with terminal.progress("drawing", quiet=False) as progress:
        try:
            return chosen, open_manifest(chosen, progress=progress)
        except (OSError, ImportError) as error:
            if data is not None or chosen == "glyphs":
                raise
            say(f"no emoji: {error}\nTaking glyphs instead.")
    with terminal.progress("drawing", quiet=False) as progress:
        return "glyphs", open_manifest("glyphs", progress=progress)


def _report(run: Path, epoch: int) -> Report:
    from suprank.evaluation import Report

    return Report.load(run / "reports" / f"test-epoch-{epoch:04}.json")


def _page(folder: Path, smooth_ap: Path, happier: Path, name: str) -> Path:
    """Write the report of HAPPIER against Smooth-AP, unless it is newer than both runs; return its path."""
    from suprank.workflows.reports import report

    page = folder / "report.html"
    finished = [(run / "result.json").stat().st_mtime for run in (smooth_ap, happier)]
    if not page.is_file() or page.stat().st_mtime < max(finished):
        import torch

        torch.set_num_threads(1)  # hundreds of small tasks, whose threads wait for each other: six times as slow on busy cores
        with terminal.ProgressBars(quiet=False) as bars:
            report(happier, smooth_ap, page, title=f"HAPPIER against Smooth-AP on {Path(name).stem}", progress=bars)
    return page


def _counts(manifest: Manifest) -> str:
    """`4,518 images: 835 emoji, 93 subgroup, 9 group`"""
    tree = manifest.to_tree()
    classes = [f"{int((images > 0).sum()):,} {level}" for level, images in zip(tree.levels, tree.images, strict=True)]
    return f"{len(manifest):,} images: {', '.join(classes)}"


def _table(reports: dict[str, Report]) -> Table:
    from rich.table import Table
    from rich.text import Text

    any_report = next(iter(reports.values()))
    metrics = [*METRICS, *(f"AP/{level}" for level in any_report.levels[1:])]
    table = Table("% on unseen classes", *reports, "HAPPIER − Smooth-AP")
    for column in table.columns[1:]:
        column.justify = "right"
    for metric in (metric for metric in metrics if metric in any_report):
        values = {label: 100 * report[metric] for label, report in reports.items()}
        difference = values["HAPPIER"] - values["Smooth-AP"]
        table.add_row(Text(terminal.escaped(metric)), *(f"{value:.1f}" for value in values.values()), f"{difference:+.1f}")
    return table
