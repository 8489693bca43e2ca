"""suprank hierarchy lint: what is probably wrong with a tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from suprank.cli import terminal
from suprank.cli.hierarchy.exit_codes import LINT, plain_errors


def lint(
    subject: Annotated[
        Path, typer.Argument(metavar="PROJECT|FILE", help="A project; or a .csv of labels, a tree.json, a manifest.")
    ],
    branch: Annotated[str | None, typer.Option(help="Of the project.", show_default="final, or the only one there is")] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Of the file, repeatable, finest first; the first is an id.", show_default="all"),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Whose rules to go by.", show_default="the project's, or plain")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing where nothing is wrong.")] = False,
) -> None:
    """Look for flaws in a tree: stray blanks, twins, lone plurals, siblings that overlap, empty groups, extreme sizes.

    The exit code is 6 where there are errors, and 0 where there are warnings only.

    \b
    suprank hierarchy lint landmarks --branch final
    suprank hierarchy lint index_label_to_hierarchical.csv --recipe hgldv2
    """
    with plain_errors():
        from suprank.hierarchy.lint import counted, findings_of, read_subject, report
        from suprank.hierarchy.lint.subjects import subject_of
        from suprank.hierarchy.project import Project
        from suprank.hierarchy.recipe import read_recipe
        from suprank.hierarchy.tree import chosen_branch

        chosen = None if recipe is None else read_recipe(recipe)
        if subject.is_dir():
            if level:
                raise typer.BadParameter("--level is of a file; a project has its levels.", param_hint="--level")
            project = Project(subject)
            looked_at, rules = subject_of(project, chosen_branch(project, branch)), (chosen or project.recipe).lint
        else:
            if branch is not None:
                raise typer.BadParameter(f"--branch is of a project, and {subject} is none.", param_hint="--branch")
            looked_at = read_subject(subject, levels=level or (), recipe=chosen)
            rules = (chosen or read_recipe("plain")).lint
        found = findings_of(looked_at, rules)
    errors, warnings = counted(found)
    if as_json:
        whole = {"about": looked_at.about, "errors": errors, "warnings": warnings}
        terminal.echo(json.dumps({**whole, "findings": [one.to_dict() for one in found]}, indent=2, ensure_ascii=False))
    elif found or not quiet:
        tree = looked_at.tree
        sizes = [f"{len(tree.of_level(number)):,} {name}" for number, name in enumerate(tree.levels[1:], start=1)]
        finest = "labels" if looked_at.texts else tree.levels[0]
        terminal.echo(f"{looked_at.about}: {len(tree.labels):,} {finest}, {', '.join(sizes)}")
        for line in report(found):
            terminal.echo(line)
    raise typer.Exit(LINT if errors else 0)
