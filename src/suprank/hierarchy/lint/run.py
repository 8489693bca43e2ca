"""Run all checks on a branch of a project, a CSV of labels, a tree in JSON, or a manifest; all are read as one hierarchy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.data.tree import NO_PARENT, LabelTree
from suprank.files.tables import column_names, read_rows
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.lint.findings import ERROR, Finding, sorted_findings
from suprank.hierarchy.lint.names import label_findings, name_findings, sibling_findings
from suprank.hierarchy.lint.shape import place_findings, size_findings, stray_findings, work_findings
from suprank.hierarchy.tree import Group, Hierarchy, Label, read_hierarchy

if TYPE_CHECKING:
    from suprank.data.manifest import Manifest
    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import LintRecipe, Recipe


@dataclass(frozen=True)
class LintTarget:
    """A hierarchy to check, and how.

    `check_label_names` is false if the labels are only ids. `compare_labels` is true if labels are words that can be compared
    with the names of groups. `findings` are mistakes that were noticed while reading it.
    """

    description: str
    tree: Hierarchy
    unit: str
    check_label_names: bool
    compare_labels: bool = False
    findings: tuple[Finding, ...] = field(default=())


def lint_project(project: Project, branch: str, rules: LintRecipe | None = None) -> list[Finding]:
    """Check a branch, by default with the rules of the project's recipe."""
    return lint_target(project_target(project, branch), rules or project.recipe.lint)


def lint_target(target: LintTarget, rules: LintRecipe) -> list[Finding]:
    """Check a hierarchy. The order of its rows does not matter."""
    return sorted_findings([*target.findings, *_findings(target, rules)])


def _findings(target: LintTarget, rules: LintRecipe) -> Iterator[Finding]:
    tree = target.tree
    yield from place_findings(tree)
    yield from work_findings(tree)
    for number in range(1, tree.depth + 1):
        level = tree.levels[number]
        groups = tree.groups_at(number)
        yield from name_findings(level, [group.name for group in groups])
        sizes: dict[str, int] = {}
        for group in groups:
            sizes[group.name] = sizes.get(group.name, 0) + tree.weights[group.id]
        yield from size_findings(level, sizes, target.unit, rules)
        for parent in {group.parent for group in groups}:
            above = None if parent is None else tree.groups[parent].name
            yield from sibling_findings(level, [group.name for group in groups if group.parent == parent], above, rules)
    if target.compare_labels:
        yield from stray_findings(tree)
    if target.check_label_names:
        labels = [label for label in tree.labels.values() if label.group is not None]
        yield from name_findings(tree.levels[0], [label.text for label in labels])
        yield from size_findings(tree.levels[0], {label.text: label.weight for label in labels}, target.unit, rules)
        for number, members in tree.members.items():
            yield from label_findings(tree.levels[0], [label.text for label in members], tree.groups[number].name, rules)


def project_target(project: Project, branch: str) -> LintTarget:
    """A branch of a project as a target. If the project has items, labels are not classes, and their names are not checked."""
    with project.snapshot() as db:
        items = bool(db.execute("SELECT EXISTS (SELECT 1 FROM item)").fetchone()[0])
    unit = "items" if items else "images" if project.meta("manifest") else "items"
    description = f"{project.folder}, branch {branch}"
    return LintTarget(description, read_hierarchy(project, branch), unit, check_label_names=not items, compare_labels=True)


def read_target(path: str | Path, *, levels: Sequence[str] = (), recipe: Recipe | None = None) -> LintTarget:
    """Read a label tree in JSON, a manifest, or a table of labels as a target.

    `levels` names columns, finest first; in a table, the first is the id of what is labeled. By default a table has the
    columns of the recipe, or else all its columns are levels.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give a project's folder, a .csv, .json or .parquet file.")
    if path.suffix.lower() == ".json":
        if levels:
            raise ValueError(f"level is for tables and manifests; {path} names its levels itself.")
        try:
            return LintTarget(str(path), hierarchy_from_tree(LabelTree.read(path)), "images", check_label_names=True)
        except ValueError as error:
            raise MalformedError(str(error)) from error
    columns = column_names(path)
    if {"path", "split"} <= set(columns):
        return _manifest_target(path, levels)
    known = (recipe.export.id, *recipe.levels[1:]) if recipe is not None else ()
    chosen = tuple(levels) or (known if known and set(known) <= set(columns) else tuple(columns))
    _check_levels(path, chosen)
    table = read_rows(path, chosen, lambda cells: None if cells[0].strip() else f"{chosen[0]} is empty; expected an id.")
    return _rows_target(str(path), chosen, table.rows, unit="rows")


def hierarchy_from_tree(tree: LabelTree) -> Hierarchy:
    """The hierarchy of a label tree: the classes of its finest level become labels, the others groups."""
    _check_levels(Path("the label tree"), tree.levels)
    sizes = [len(names) for names in tree.names[1:]]
    first = [1 + sum(sizes[:level]) for level in range(len(sizes))]
    groups: dict[int, Group] = {}
    for level, names in enumerate(tree.names[1:], start=1):
        for index, name in enumerate(names):
            parent = int(tree.parents[level][index]) if level < len(tree.parents) else NO_PARENT
            number = first[level - 1] + index
            groups[number] = Group(number, level, name, None if parent == NO_PARENT else first[level] + parent)
    labels: dict[int, Label] = {}
    for number, name in enumerate(tree.names[0], start=1):
        parent = int(tree.parents[0][number - 1])
        group, reason = (None, "it has no parent") if parent == NO_PARENT else (first[0] + parent, None)
        labels[number] = Label(number, name, name, int(tree.images[0][number - 1]), group, reason)
    return Hierarchy(tree.levels, groups, labels)


def _manifest_target(path: Path, levels: Sequence[str]) -> LintTarget:
    import numpy as np

    from suprank.data.manifest import Manifest

    try:
        manifest: Manifest = Manifest.read(path, levels=levels or None)
        manifest.require_single_labels("`suprank hierarchy lint`")
    except ValueError as error:
        raise MalformedError(str(error)) from error
    _check_levels(path, manifest.levels)
    labels = manifest.labels
    rows, counts = np.unique(labels[labels[:, 0] >= 0], axis=0, return_counts=True)
    names = [manifest.names[level] for level in manifest.levels]
    texts = [tuple(names[level][label] for level, label in enumerate(row)) for row in rows.tolist()]
    return _rows_target(str(path), manifest.levels, texts, counts.tolist(), unit="images", check_label_names=True)


def _rows_target(
    description: str,
    levels: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    weights: Iterable[int] | None = None,
    *,
    unit: str,
    check_label_names: bool = False,
) -> LintTarget:
    """The target of rows (what is labeled, group, group above, ...). A label in two different places is a finding."""
    paths: dict[str, tuple[str, ...]] = {}
    totals: dict[str, int] = {}
    conflicts: dict[str, set[tuple[str, ...]]] = {}
    rows = list(rows)
    for row, weight in zip(rows, weights or [1] * len(rows), strict=True):
        previous = paths.setdefault(row[0], row[1:])
        totals[row[0]] = totals.get(row[0], 0) + weight if weights is not None else 1
        if previous != row[1:]:
            conflicts.setdefault(row[0], {previous}).add(row[1:])
            paths[row[0]] = min(conflicts[row[0]])  # independent of the order of rows
    findings = []
    for name, places in sorted(conflicts.items()):
        listed = " and in ".join(repr(" / ".join(path)) for path in sorted(places))
        findings.append(Finding("two-places", ERROR, levels[0], (name,), f"{levels[0]} {name!r} is in {listed}"))
    tree = Hierarchy.from_paths(paths, levels=levels, weights=totals)
    return LintTarget(description, tree, unit, check_label_names, findings=tuple(findings))


def _check_levels(path: Path, levels: Sequence[str]) -> None:
    if len(set(levels)) < max(2, len(levels)):
        names = ", ".join(levels) or "none"
        raise ValueError(f"{path}: a hierarchy has two or more different levels; these are {names}.")
