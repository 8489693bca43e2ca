"""What lint looks at: a branch of a project, a CSV of labels, a tree in JSON, or a manifest; all become one hierarchy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from suprank.data.tree import NO_PARENT, LabelTree
from suprank.hierarchy.errors import MalformedError
from suprank.hierarchy.lint.findings import ERROR, Finding
from suprank.hierarchy.strict import columns_of, strict_table
from suprank.hierarchy.tree import Group, Hierarchy, Label, read_hierarchy

if TYPE_CHECKING:
    from suprank.data.manifest import Manifest
    from suprank.hierarchy.project import Project
    from suprank.hierarchy.recipe import Recipe


@dataclass(frozen=True)
class Subject:
    """A hierarchy to look at. `named`: what it labels has names worth a look, not mere ids. `texts`: labels are words that
    can be compared with groups. `findings`: what was wrong already when it was read."""

    about: str
    tree: Hierarchy
    unit: str
    named: bool
    texts: bool = False
    findings: tuple[Finding, ...] = field(default=())


def subject_of(project: Project, branch: str) -> Subject:
    """A branch of a project. Where it has items, labels are not classes of their own, and their names are left alone."""
    with project.reading() as db:
        items = bool(db.execute("SELECT EXISTS (SELECT 1 FROM item)").fetchone()[0])
    unit = "items" if items else "images" if project.value("manifest") else "items"
    return Subject(f"{project.folder}, branch {branch}", read_hierarchy(project, branch), unit, named=not items, texts=True)


def read_subject(path: str | Path, *, levels: Sequence[str] = (), recipe: Recipe | None = None) -> Subject:
    """A .json file of a label tree, a manifest, or a table of labels.

    `levels` names columns, finest first; of a table the first is the id of what is labeled. Without it they are those of the
    recipe, where the table has them, or else all columns in their order.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give a project's folder, a .csv, .json or .parquet file.")
    if path.suffix.lower() == ".json":
        if levels:
            raise ValueError(f"--level is of tables and manifests; {path} says its levels itself.")
        try:
            return Subject(str(path), of_tree(LabelTree.read(path)), "images", named=True)
        except ValueError as error:
            raise MalformedError(str(error)) from error
    columns = columns_of(path)
    if {"path", "split"} <= set(columns):
        return _manifest(path, levels)
    known = (recipe.export.id, *recipe.levels[1:]) if recipe is not None else ()
    chosen = tuple(levels) or (known if known and set(known) <= set(columns) else tuple(columns))
    _check_levels(path, chosen)
    table = strict_table(path, chosen, lambda cells: None if cells[0].strip() else f"{chosen[0]} is empty; expected an id.")
    return _rows(str(path), chosen, table.rows, unit="rows")


def of_tree(tree: LabelTree) -> Hierarchy:
    """The hierarchy of a label tree; the classes of its finest level are the labels, the others groups."""
    _check_levels(Path("the label tree"), tree.levels)
    sizes = [len(names) for names in tree.names[1:]]
    first = [1 + sum(sizes[:level]) for level in range(len(sizes))]
    groups: dict[int, Group] = {}
    for level, names in enumerate(tree.names[1:], start=1):
        for place, name in enumerate(names):
            above = int(tree.parents[level][place]) if level < len(tree.parents) else NO_PARENT
            number = first[level - 1] + place
            groups[number] = Group(number, level, name, None if above == NO_PARENT else first[level] + above)
    labels: dict[int, Label] = {}
    for place, name in enumerate(tree.names[0], start=1):
        above = int(tree.parents[0][place - 1])
        group, reason = (None, "it has no parent") if above == NO_PARENT else (first[0] + above, None)
        labels[place] = Label(place, name, name, int(tree.images[0][place - 1]), group, reason)
    return Hierarchy(tree.levels, groups, labels)


def _manifest(path: Path, levels: Sequence[str]) -> Subject:
    import numpy as np

    from suprank.data.manifest import Manifest

    try:
        manifest: Manifest = Manifest.read(path, levels=levels or None)
    except ValueError as error:
        raise MalformedError(str(error)) from error
    _check_levels(path, manifest.levels)
    labels = manifest.labels
    rows, counts = np.unique(labels[labels[:, 0] >= 0], axis=0, return_counts=True)
    names = [manifest.names[level] for level in manifest.levels]
    texts = [tuple(names[level][one] for level, one in enumerate(row)) for row in rows.tolist()]
    return _rows(str(path), manifest.levels, texts, counts.tolist(), unit="images", named=True)


def _rows(
    about: str,
    levels: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    weights: Iterable[int] | None = None,
    *,
    unit: str,
    named: bool = False,
) -> Subject:
    """Rows of (what is labeled, group, group above, ...); one that is labeled twice, differently, is an error."""
    paths: dict[str, tuple[str, ...]] = {}
    found: dict[str, int] = {}
    twice: dict[str, set[tuple[str, ...]]] = {}
    rows = list(rows)
    for row, weight in zip(rows, weights or [1] * len(rows), strict=True):
        before = paths.setdefault(row[0], row[1:])
        found[row[0]] = found.get(row[0], 0) + weight if weights is not None else 1
        if before != row[1:]:
            twice.setdefault(row[0], {before}).add(row[1:])
            paths[row[0]] = min(twice[row[0]])  # whichever row comes first
    findings = []
    for name, several in sorted(twice.items()):
        said = " and in ".join(repr(" / ".join(path)) for path in sorted(several))
        findings.append(Finding("two-places", ERROR, levels[0], (name,), f"{levels[0]} {name!r} is in {said}"))
    tree = Hierarchy.of(paths, levels=levels, weights=found)
    return Subject(about, tree, unit, named, findings=tuple(findings))


def _check_levels(path: Path, levels: Sequence[str]) -> None:
    if len(set(levels)) < max(2, len(levels)):
        named = ", ".join(levels) or "none"
        raise ValueError(f"{path}: a hierarchy has two levels or more, each once; these are {named}.")
