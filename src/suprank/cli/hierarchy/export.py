"""suprank hierarchy export: a reviewed branch as files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import LINT, plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet


class Format(StrEnum):
    """What to write, besides provenance.json and log.jsonl."""

    TREE_JSON = "tree-json"
    HGLDV2 = "hgldv2"
    CSV = "csv"
    ALL = "all"


def export(
    project: ProjectFolder,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write to.")],
    branch: Annotated[str | None, typer.Option(help="Whose.", show_default="final, or the only one there is")] = None,
    format: Annotated[
        Format, typer.Option(help="tree.json; <split>_label_to_hierarchical.csv; labels.csv and groups.csv; or all.")
    ] = Format.ALL,
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="To add levels to.", show_default="the project's, if it has one")
    ] = None,
    manifest_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the manifest with the groups as new levels.")
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(help="Of the manifest, whose names are items or labels.", show_default="the project's, or finest"),
    ] = None,
    drop_unlabeled: Annotated[
        bool, typer.Option("--drop-unlabeled", help="Leave rows of the manifest out that have no group.")
    ] = False,
    raw_csv: Annotated[
        bool, typer.Option("--raw-csv", help="In labels.csv and groups.csv, no apostrophe before =, +, - and @.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write in spite of lint errors; that is recorded.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a branch as files: a label tree, the published H-GLDv2 columns, tables of labels and groups, provenance, log.

    Refused with exit code 6 while lint finds errors. Written again, the files are the same bytes, but for the time in
    provenance.json.

    \b
    suprank hierarchy export landmarks --out labels
    suprank hierarchy export shop --out labels --manifest-out products-3-levels.parquet
    """
    with plain_errors():
        from suprank.hierarchy.exporting import LintErrors
        from suprank.hierarchy.exporting import export as exported
        from suprank.hierarchy.lint import report
        from suprank.hierarchy.project import Project
        from suprank.hierarchy.text import amount
        from suprank.hierarchy.tree import FINAL, chosen_branch

        terminal.check_folder(out)
        if manifest_out is not None:
            terminal.check_writable(manifest_out)
        opened = Project(project)
        try:
            done = exported(
                opened,
                out,
                chosen_branch(opened, branch),
                format=format.value,
                force=force,
                manifest=manifest,
                manifest_out=manifest_out,
                level=level,
                drop_unlabeled=drop_unlabeled,
                raw_csv=raw_csv,
            )
        except LintErrors as found:
            for line in report(found.findings):
                terminal.echo(line, err=True)
            terminal.echo("Nothing is written; repair these, or write all the same with --force.", err=True)
            raise typer.Exit(LINT) from None
    if done.unsettled:
        counts = ", ".join(amount(number, kind) for kind, number in done.unsettled.items())
        verb = f"agree {project} --adjudicate" if done.branch == FINAL else f"review {project}"
        said = f"{out} holds what nobody has decided yet: {counts}; decide with `suprank hierarchy {verb}`, and export again."
        terminal.echo(said, err=True)
    if quiet:
        return
    terminal.echo(f"{out}: branch {done.branch}, {', '.join((*done.files, 'provenance.json'))}")
    if done.overridden:
        terminal.echo(f"written in spite of {amount(len(done.overridden), 'lint error')}, which is recorded")
    if done.warnings:
        terminal.echo(
            f"{amount(done.warnings, 'lint warning')}; `suprank hierarchy lint {project} --branch {done.branch}` lists them"
        )
    if done.labeled is not None:
        terminal.echo(f"{manifest_out}: {done.labeled.manifest!r}")
        if done.labeled.dropped:
            terminal.echo(f"left out without a group: {amount(done.labeled.dropped, 'row')}")
        if done.labeled.replaced:
            terminal.echo(f"levels that were there before are replaced: {', '.join(done.labeled.replaced)}")
