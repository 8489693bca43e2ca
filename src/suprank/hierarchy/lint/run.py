"""Run all checks on a branch of a project, or on any hierarchy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suprank.hierarchy.lint.findings import Finding, sorted_findings
from suprank.hierarchy.lint.names import label_findings, name_findings, sibling_findings
from suprank.hierarchy.lint.shape import place_findings, size_findings, stray_findings, work_findings
from suprank.hierarchy.tree import Hierarchy, read_hierarchy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import LintRecipe


def lint_project(project: Project, branch: str) -> list[Finding]:
    """Check a branch with the rules of the project's recipe. Labels that are types of items are not classes themselves."""
    with project.snapshot() as db:
        items = bool(db.execute("SELECT EXISTS (SELECT 1 FROM item)").fetchone()[0])
    unit = "images" if project.meta("manifest") and not items else "items"
    tree = read_hierarchy(project, branch)
    return lint_tree(tree, project.recipe.lint, unit=unit, label_names=not items, strays=True)


def lint_tree(
    tree: Hierarchy, rules: LintRecipe, *, unit: str = "items", label_names: bool = False, strays: bool = False
) -> list[Finding]:
    """Check a hierarchy, in which labels weigh by `unit`. The order of its labels does not matter.

    `label_names` checks the names of labels too, unless they are ids; `strays` finds labels that name another group.
    """
    return sorted_findings(_findings(tree, rules, unit, label_names, strays))


def _findings(tree: Hierarchy, rules: LintRecipe, unit: str, label_names: bool, strays: bool) -> Iterator[Finding]:
    yield from place_findings(tree)
    yield from work_findings(tree)
    for number in range(1, tree.depth + 1):
        level = tree.levels[number]
        groups = tree.groups_at(number)
        yield from name_findings(level, [group.name for group in groups])
        sizes: dict[str, int] = {}
        for group in groups:
            sizes[group.name] = sizes.get(group.name, 0) + tree.weights[group.id]
        yield from size_findings(level, sizes, unit, rules)
        for parent in {group.parent for group in groups}:
            above = None if parent is None else tree.groups[parent].name
            yield from sibling_findings(level, [group.name for group in groups if group.parent == parent], above, rules)
    if strays:
        yield from stray_findings(tree)
    if label_names:
        labels = [label for label in tree.labels.values() if label.group is not None]
        yield from name_findings(tree.levels[0], [label.text for label in labels])
        yield from size_findings(tree.levels[0], {label.text: label.weight for label in labels}, unit, rules)
        for group_id, members in tree.members.items():
            yield from label_findings(tree.levels[0], [label.text for label in members], tree.groups[group_id].name, rules)
