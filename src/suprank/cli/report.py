"""suprank report: show what a run retrieves, in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.options import AgainstFrozen, Device, HeadFolder, Quiet, RowLabels, TestSet, TrustCode

LARGE = 10_000_000  # bytes of a page


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder of `suprank train` or `suprank embed`, or embeddings.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="HTML file to write.")] = Path("report.html"),
    against: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another run with the same test images, to compare with.")
    ] = None,
    against_frozen: AgainstFrozen = False,
    labels: RowLabels = None,
    test: TestSet = None,
    queries: Annotated[int, typer.Option(min=1, max=200, help="Number of queries in each gallery.")] = 8,
    top: Annotated[int, typer.Option(min=1, max=100, help="Number of items shown per query.")] = 10,
    map_classes: Annotated[
        int, typer.Option(min=0, help="Number of classes on the map, those with the most images; 0 for all.")
    ] = 20_000,
    map_images: Annotated[int, typer.Option(min=0, help="Number of single test images on the map, drawn at random.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random samples and the map.")] = 0,
    title: Annotated[str | None, typer.Option(help="Title of the page.", show_default="the names of the runs")] = None,
    summary: Annotated[
        str | None,
        typer.Option(metavar="TEXT|FILE", help="Your own summary, shown above the verdict: a text, or a text file."),
    ] = None,
    device: Device = None,
    trust_code: TrustCode = False,
    head: HeadFolder = None,
    quiet: Quiet = False,
) -> None:
    """Write one HTML file that shows what a run retrieves: a verdict in words, metrics, galleries, curves and a map.

    The test images of a run are embedded on the first call, into RUN/embeddings, and kept. With --against, two runs are shown
    side by side, with the significance of their differences, and the queries on which they differ most or both fail. With
    --against-frozen, the run is compared with its own backbone before training, on the same images. --head applies to RUN, and
    never to what it is compared with. The file opens from disk and needs no network.

    \b
    suprank report runs/happier --out report.html
    suprank report runs/happier --against runs/smooth-ap --out report.html
    suprank report runs/happier --against-frozen --out report.html
    suprank report embeddings --head head --against embeddings --out report.html
    """
    if against is not None and against_frozen:
        raise typer.BadParameter("--against and --against-frozen both name what to compare with; give one.")
    with terminal.plain_errors("fewer --queries"), terminal.plain_messages(), terminal.ProgressBars(quiet) as bars:
        from suprank.workflows.reports import report as write_report

        terminal.device(device)
        page = write_report(
            run,
            against,
            out,
            against_frozen=against_frozen,
            labels=labels,
            test=test,
            queries=queries,
            top=top,
            map_classes=map_classes,
            map_images=map_images,
            seed=seed,
            title=title,
            summary=summary,
            device=device,
            trust_code=trust_code,
            head=head,
            progress=bars,
        )
    size = page.stat().st_size
    terminal.echo(f"{page} ({size / 1e6:.1f} MB)")
    if size > LARGE:
        terminal.echo("This is large for a browser; give fewer --queries, a smaller --top, or fewer --map-classes.", err=True)
