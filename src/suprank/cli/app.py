"""The `suprank` command with all its subcommands."""

from typing import Annotated

import typer

from suprank import __version__
from suprank.cli import data, help_text, models, terminal
from suprank.cli.adapt import adapt
from suprank.cli.compare import compare
from suprank.cli.demo import demo
from suprank.cli.embed import embed
from suprank.cli.evaluate import evaluate
from suprank.cli.explore import explore
from suprank.cli.hierarchy import app as hierarchy
from suprank.cli.paper import paper
from suprank.cli.recipes import recipes
from suprank.cli.report import report
from suprank.cli.search import search
from suprank.cli.train import train

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command()(demo)
app.command()(embed)
app.command()(evaluate)
app.command()(adapt)
app.command()(train)
app.command()(recipes)
app.command()(compare)
app.command()(paper)
app.command()(report)
app.command()(explore)
app.command()(search)
app.add_typer(data.app, name="data")
app.add_typer(models.app, name="models")
app.add_typer(hierarchy.app, name="hierarchy")
for group in (app, data.app, models.app, hierarchy.app):
    group.info.cls = help_text.Group
    for command in group.registered_commands:
        command.cls = help_text.Command
        command.help = help_text.flowing(command.help or getattr(command.callback, "__doc__", None) or "")


def _print_version(wanted: bool) -> None:
    if wanted:
        terminal.echo(f"suprank {__version__}")
        raise typer.Exit


@app.callback()
def suprank(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Rank losses, exact rank metrics and label hierarchies for image retrieval."""
