"""`suprank hierarchy export`: write a reviewed branch as files."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import LINT, plain_errors
from suprank.cli.hierarchy.new import ProjectFolder, Quiet

if TYPE_CHECKING:
    from suprank.hierarchy.lint import Finding


class Format(StrEnum):
    """The files to write, besides provenance.json and log.jsonl."""

    TREE_JSON = "tree-json"
    HGLDV2 = "hgldv2"
    CSV = "csv"
    ALL = "all"


def export(
    project: ProjectFolder,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write to.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only list what lint finds; write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check: print the findings as JSON.")] = False,
    branch: Annotated[str | None, typer.Option(help="Branch to export.", show_default="final, or the only one")] = None,
    format: Annotated[
        Format, typer.Option(help="Files: tree.json; <split>_label_to_hierarchical.csv; labels.csv and groups.csv; or all.")
    ] = Format.ALL,
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Manifest to add levels to.", show_default="the project's, if any")
    ] = None,
    manifest_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the manifest, with the groups as new levels, to this file.")
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(help="Level of the manifest with names of items or labels.", show_default="the project's, or finest"),
    ] = None,
    drop_unlabeled: Annotated[
        bool, typer.Option("--drop-unlabeled", help="Drop rows of the manifest that have no group.")
    ] = False,
    raw_csv: Annotated[
        bool, typer.Option("--raw-csv", help="Put no apostrophe before =, +, - and @ in labels.csv and groups.csv.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write in spite of lint errors, and record that.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a branch as files: a label tree, the published H-GLDv2 columns, tables of labels and groups, provenance, log.

    First, lint looks for stray blanks, duplicates, lone plurals, siblings that overlap, empty groups, extreme sizes and
    unfinished work. While it finds errors, the exit code is 6 and nothing is written. The same branch gives the same bytes,
    except for the time in provenance.json.

    \b
    suprank hierarchy export landmarks --check
    suprank hierarchy export landmarks --out labels
    suprank hierarchy export shop --out labels --manifest-out products-3-levels.parquet
    """
    with plain_errors():
        from suprank.hierarchy.export import LintFailedError, export_branch
        from suprank.hierarchy.lint import format_findings, lint_project
        from suprank.hierarchy.project import Project
        from suprank.hierarchy.text import pluralize
        from suprank.hierarchy.tree import choose_branch

        if out is not None:
            terminal.check_folder(out)
        if manifest_out is not None:
            terminal.check_writable(manifest_out)
        opened = Project(project)
        branch = choose_branch(opened, branch)
        if check:
            _print_findings(f"{project}, branch {branch}", lint_project(opened, branch), as_json, quiet)
        if out is None:
            raise typer.BadParameter("give --out, the folder to write to, or --check.", param_hint="--out")
        try:
            result = export_branch(
                opened,
                out,
                branch,
                format=format.value,
                force=force,
                manifest=manifest,
                manifest_out=manifest_out,
                level=level,
                drop_unlabeled=drop_unlabeled,
                raw_csv=raw_csv,
            )
        except LintFailedError as error:
            for line in format_findings(error.findings):
                terminal.echo(line, err=True)
            terminal.echo("Nothing was written; correct these, or write anyway with --force.", err=True)
            raise typer.Exit(LINT) from None
    if result.undecided:
        counts = ", ".join(pluralize(number, kind) for kind, number in result.undecided.items())
        verb = f"review {project} --annotator {result.branch}"
        message = f"{out} has undecided parts: {counts}; decide them with `suprank hierarchy {verb}`, and export again."
        terminal.echo(message, err=True)
    if quiet:
        return
    terminal.echo(f"{out}: branch {result.branch}, {', '.join((*result.files, 'provenance.json'))}")
    if result.overridden:
        terminal.echo(f"written in spite of {pluralize(len(result.overridden), 'lint error')}, as provenance.json records")
    if result.warnings:
        terminal.echo(
            f"{pluralize(result.warnings, 'lint warning')}; list them with `suprank hierarchy export {project} --branch "
            f"{result.branch} --check`"
        )
    if result.manifest is not None:
        terminal.echo(f"{manifest_out}: {result.manifest.manifest!r}")
        if result.manifest.dropped:
            terminal.echo(f"dropped without a group: {pluralize(result.manifest.dropped, 'row')}")
        if result.manifest.replaced:
            terminal.echo(f"replaced levels: {', '.join(result.manifest.replaced)}")


def _print_findings(about: str, findings: list[Finding], as_json: bool, quiet: bool) -> NoReturn:
    """Print what lint found, and exit with its code if there are errors."""
    from suprank.hierarchy.lint import format_findings, severity_counts

    errors, warnings = severity_counts(findings)
    if as_json:
        report = {"about": about, "errors": errors, "warnings": warnings, "findings": [one.to_dict() for one in findings]}
        terminal.echo(json.dumps(report, indent=2, ensure_ascii=False))
    elif findings or not quiet:
        for line in (about, *format_findings(findings)):
            terminal.echo(line)
    raise typer.Exit(LINT if errors else 0)
