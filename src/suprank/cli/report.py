"""suprank report: what a run retrieves, in one HTML file."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suprank.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = 20_000_000  # bytes of a page

AgainstFrozen = Annotated[
    bool,
    typer.Option("--against-frozen", help="Compare with the run's backbone before training, on images read the same way."),
]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder of `suprank train`, or of `suprank embed`.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another one with the same test images, to compare with.")
    ] = None,
    against_frozen: AgainstFrozen = False,
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which test set of the recipe.", show_default="the first")
    ] = None,
    queries: Annotated[int, typer.Option(min=1, max=200, help="Queries in each gallery.")] = 8,
    top: Annotated[int, typer.Option(min=1, max=100, help="Items shown for a query.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the random sample and the map.")] = 0,
    title: Annotated[str | None, typer.Option(help="Title of the page.", show_default="names of the runs")] = None,
    device: Annotated[str | None, typer.Option(help="Where to embed: cpu, cuda or cuda:N.", show_default="cuda if any")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """What a run retrieves, in one HTML file to show to others: metrics, curves, a map of the classes, and galleries.

    The test images of a run are embedded on the first call, into RUN/embeddings, and kept. With --against, both runs stand
    beside each other, with the significance of their differences and the queries on which they differ most. With
    --against-frozen the run stands beside its own backbone before training, which reads the same images in the same way. The
    file opens from disk and needs no network.

    \b
    suprank report runs/happier --out report.html
    suprank report runs/happier --against runs/smooth-ap --out report.html
    suprank report runs/happier --against-frozen --out report.html
    """
    if against is not None and against_frozen:
        raise typer.BadParameter("--against and --against-frozen both name what to compare with; give one.")
    with terminal.plain_errors("fewer --queries"):
        terminal.device(device)
        size = write_report(
            run,
            against,
            out,
            against_frozen=against_frozen,
            test=test,
            queries=queries,
            top=top,
            seed=seed,
            title=title,
            device=device,
            quiet=quiet,
        )
    terminal.echo(f"{out} ({size / 1e6:.1f} MB)")
    if size > LARGE:
        terminal.echo("This is large for a browser; give fewer --queries, or a smaller --top.", err=True)


def write_report(
    run: Path,
    against: Path | None,
    out: Path,
    *,
    against_frozen: bool = False,
    test: str | None = None,
    device: str | None = None,
    quiet: bool = False,
    **options: Any,
) -> int:
    """Write the page of one run or two, embedding what is not embedded yet; its size in bytes. Options are `report_page`'s.

    `against_frozen` compares the run with its own backbone before training.
    """
    from suprank.explorer.report import report_page
    from suprank.explorer.source import comparison_warning
    from suprank.files.atomic import write_atomically
    from suprank.workflows.run_embeddings import check_folder, looked_at

    terminal.check_writable(out)
    folders = [one for one in (run, against) if one is not None]
    for folder in folders:
        check_folder(folder)
    if find_spec("openTSNE") is None:  # found out before minutes of embedding
        raise ModuleNotFoundError("the map of the classes needs openTSNE", name="openTSNE")
    with Bars(quiet) as bars:
        sources = [looked_at(folder, test, device, bars) for folder in folders]
        if against_frozen:
            sources.append(looked_at(run, test, device, bars, frozen=True))
        if len(sources) > 1 and (warning := comparison_warning(*sources)):
            terminal.echo(f"warning: {warning}", err=True)
        page = report_page(*sources, progress=bars, **options).encode()
    write_atomically(out, page)
    return len(page)


class Bars(ExitStack):
    """A bar for each part of the work, called as (what, done, total); the one before ends when the next begins."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self.quiet, self._what = quiet, ""
        self._advance: Callable[[int, int], None] = lambda done, total: None

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self.close()
            self._what = what
            self._advance = self.enter_context(terminal.progress(what, self.quiet))
        self._advance(done, total)
