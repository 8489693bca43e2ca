"""All checks on one tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from suprank.hierarchy.lint.findings import Finding, in_order
from suprank.hierarchy.lint.names import label_findings, name_findings, sibling_findings
from suprank.hierarchy.lint.shape import place_findings, size_findings, stray_findings, work_findings
from suprank.hierarchy.lint.subjects import Subject, subject_of

if TYPE_CHECKING:
    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import LintRecipe


def lint_project(project: Project, branch: str, rules: LintRecipe | None = None) -> list[Finding]:
    """What is wrong with a branch, by the rules of the project's recipe where none are given."""
    return findings_of(subject_of(project, branch), rules or project.recipe.lint)


def findings_of(subject: Subject, rules: LintRecipe) -> list[Finding]:
    """What is wrong with a tree; the order of its rows is of no matter."""
    return in_order([*subject.findings, *_findings(subject, rules)])


def _findings(subject: Subject, rules: LintRecipe) -> Iterator[Finding]:
    tree = subject.tree
    yield from place_findings(tree)
    yield from work_findings(tree)
    for number in range(1, tree.depth + 1):
        level = tree.levels[number]
        groups = tree.of_level(number)
        yield from name_findings(level, [group.name for group in groups])
        sizes: dict[str, int] = {}
        for group in groups:
            sizes[group.name] = sizes.get(group.name, 0) + tree.weights[group.id]
        yield from size_findings(level, sizes, subject.unit, rules)
        for parent in {group.parent for group in groups}:
            above = None if parent is None else tree.groups[parent].name
            yield from sibling_findings(level, [group.name for group in groups if group.parent == parent], above, rules)
    if subject.texts:
        yield from stray_findings(tree)
    if subject.named:
        labels = [label for label in tree.labels.values() if label.group is not None]
        yield from name_findings(tree.levels[0], [label.text for label in labels])
        yield from size_findings(tree.levels[0], {label.text: label.weight for label in labels}, subject.unit, rules)
        for number, members in tree.members.items():
            yield from label_findings(tree.levels[0], [label.text for label in members], tree.groups[number].name, rules)
