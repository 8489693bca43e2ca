"""The commands of `suprank hierarchy`, in the order of their use."""

import typer

from suprank.cli.hierarchy.agree import agree
from suprank.cli.hierarchy.cluster import cluster
from suprank.cli.hierarchy.export import export
from suprank.cli.hierarchy.new import new
from suprank.cli.hierarchy.review import review
from suprank.cli.hierarchy.status import status
from suprank.cli.hierarchy.types import types

app = typer.Typer(no_args_is_help=True, help="Build a reviewed label hierarchy from a flat list of labels.")
app.command()(new)
app.command()(types)
app.command()(cluster)
app.command()(review)
app.command()(agree)
app.command()(export)
app.command()(status)
