"""`suprank hierarchy lint`: check a tree for likely mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import LINT, plain_errors


def lint(
    subject: Annotated[
        Path, typer.Argument(metavar="PROJECT|FILE", help="A project, a .csv of labels, a tree.json, or a manifest.")
    ],
    branch: Annotated[str | None, typer.Option(help="Branch of the project.", show_default="final, or the only one")] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Column of the file, repeatable, finest first; the first is an id.", show_default="all"
        ),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe with the rules.", show_default="the project's, or plain")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing if nothing is wrong.")] = False,
) -> None:
    """Check a tree for stray blanks, duplicates, lone plurals, siblings that overlap, empty groups and extreme sizes.

    The exit code is 6 if there are errors, and 0 if there are only warnings.

    \b
    suprank hierarchy lint landmarks --branch final
    suprank hierarchy lint index_label_to_hierarchical.csv --recipe hgldv2
    """
    with plain_errors():
        from suprank.hierarchy.lint import format_findings, lint_target, read_target, severity_counts
        from suprank.hierarchy.lint.run import project_target
        from suprank.hierarchy.project import Project
        from suprank.hierarchy.recipe import read_recipe
        from suprank.hierarchy.tree import choose_branch

        chosen = None if recipe is None else read_recipe(recipe)
        if subject.is_dir():
            if level:
                raise typer.BadParameter("--level is for files; a project knows its levels.", param_hint="--level")
            project = Project(subject)
            target, rules = project_target(project, choose_branch(project, branch)), (chosen or project.recipe).lint
        else:
            if branch is not None:
                raise typer.BadParameter(f"--branch is for projects, and {subject} is a file.", param_hint="--branch")
            target = read_target(subject, levels=level or (), recipe=chosen)
            rules = (chosen or read_recipe("plain")).lint
        findings = lint_target(target, rules)
    errors, warnings = severity_counts(findings)
    if as_json:
        report: dict[str, Any] = {"about": target.description, "errors": errors, "warnings": warnings}
        report["findings"] = [finding.to_dict() for finding in findings]
        terminal.echo(json.dumps(report, indent=2, ensure_ascii=False))
    elif findings or not quiet:
        tree = target.tree
        sizes = [f"{len(tree.groups_at(number)):,} {name}" for number, name in enumerate(tree.levels[1:], start=1)]
        finest = "labels" if target.compare_labels else tree.levels[0]
        terminal.echo(f"{target.description}: {len(tree.labels):,} {finest}, {', '.join(sizes)}")
        for line in format_findings(findings):
            terminal.echo(line)
    raise typer.Exit(LINT if errors else 0)
