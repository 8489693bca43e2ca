"""suprank explore: a local web page that shows what a run retrieves, or two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.options import Device, HeadFolder, Quiet, RowLabels, TestSet, TrustCode
from suprank.cli.serving import serve


def explore(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [RUN2]",
            help="A folder of `suprank train` or `suprank embed`, or a file of embeddings; a second to compare.",
        ),
    ],
    labels: RowLabels = None,
    test: TestSet = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="DIR|NAME", help="The model that embeds uploaded images.", show_default="the run's"),
    ] = None,
    tags: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="The file that keeps the tags of images.",
            show_default="tags.csv in the folder of the first RUN",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let nobody change tags.")] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 127.0.0.1 is reachable from this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    device: Device = None,
    trust_code: TrustCode = False,
    head: HeadFolder = None,
    quiet: Quiet = False,
) -> None:
    """Open a local web page: search by image, label or path, browse the label tree, compare two runs on the same query.

    The test images of a run are embedded on the first call, into RUN/embeddings, and reused later. Tags are kept in
    RUN/tags.csv. Nothing else is written, except an index next to the embeddings of a large gallery. --head applies to the
    first RUN and to uploaded images; a second RUN is shown as it is. Press Ctrl-C to stop.

    \b
    suprank explore runs/happier
    suprank explore runs/happier runs/smooth-ap
    suprank explore embeddings --model resnet50
    suprank explore embeddings embeddings --head head --model resnet50
    suprank explore test.npy --labels test.parquet --no-browser --port 8080
    """
    if len(runs) > 2:
        raise typer.BadParameter(f"{len(runs)} runs are given; give one, or two to compare.")
    if labels is not None and all(folder.is_dir() for folder in runs):
        raise typer.BadParameter("--labels is for a file of embeddings; a folder has its own.")
    with terminal.plain_errors("a smaller gallery"), terminal.plain_messages():
        from suprank.explorer.web import create_app
        from suprank.web.serving import bind_socket
        from suprank.workflows.explorers import open_explorer

        terminal.device(device)
        with bind_socket(host, port) as listening:  # first, so that a port in use is reported before minutes of work
            with terminal.ProgressBars(quiet) as bars:
                explorer = open_explorer(
                    runs,
                    labels,
                    test,
                    model,
                    device,
                    bars,
                    trust_code=trust_code,
                    head=head,
                    tags=tags,
                    read_only=read_only,
                )
            app = create_app(explorer, host=host)
            changes = " and change their tags" if explorer.can_change else ""
            others = f"can see these images{changes}, without a password"
            serve(app, listening, host, [("", "")], others=others, open_page=not no_browser, background=explorer.measure)
