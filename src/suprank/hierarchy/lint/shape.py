"""Checks on the shape of a hierarchy: misplaced and empty groups, single children, extreme sizes, unfinished work."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from suprank.hierarchy.lint.findings import ERROR, WARNING, Finding
from suprank.hierarchy.lint.names import head, singular, singular_name
from suprank.hierarchy.recipe import LintRecipe
from suprank.hierarchy.text import pluralize
from suprank.hierarchy.tree import Hierarchy

_EXAMPLES = 3
_USUAL = 3  # a group of one label is reported if the median group has at least this many


def place_findings(tree: Hierarchy) -> Iterator[Finding]:
    """Find groups that are empty, without a parent or with two, parents of one child, and groups of one label."""
    parents: dict[tuple[int, str], set[str]] = defaultdict(set)
    for group in tree.groups.values():
        level = tree.levels[group.level]
        if not tree.sizes[group.id]:
            yield Finding("empty", ERROR, level, (group.name,), f"{level} {group.name!r} has no labels; delete it, or fill it")
        if group.parent is None:
            if group.level < tree.depth:
                above = tree.levels[group.level + 1]
                yield Finding("no-parent", ERROR, level, (group.name,), f"{level} {group.name!r} is under no {above}")
        else:
            parent = tree.groups[group.parent]
            parents[group.level, group.name].add(parent.name)
            if parent.level != group.level + 1:
                message = f"{level} {group.name!r} is under {parent.name!r}, a {tree.levels[parent.level]}"
                yield Finding("wrong-level", ERROR, level, (group.name, parent.name), message)
        if group.level > 1 and len(tree.children[group.id]) == 1:
            child = tree.children[group.id][0].name
            message = f"{level} {group.name!r} has one child, {child!r}, and so adds no information"
            yield Finding("one-child", WARNING, level, (group.name, child), message)
    for (number, name), several in parents.items():
        if len(several) > 1:
            both = " and ".join(repr(one) for one in sorted(several))
            message = f"{tree.levels[number]} {name!r} is under {both}; rename one, or merge them"
            yield Finding("two-parents", ERROR, tree.levels[number], (name, *sorted(several)), message)
    yield from _singles(tree)


def _singles(tree: Hierarchy) -> Iterator[Finding]:
    groups = [group for group in tree.groups_at(1) if tree.sizes[group.id]]
    if groups and statistics.median(tree.sizes[group.id] for group in groups) >= _USUAL:
        for group in groups:
            if tree.sizes[group.id] == 1:
                label = tree.members[group.id][0].text
                message = f"{tree.levels[1]} {group.name!r} has one label, {label!r}"
                yield Finding("single", WARNING, tree.levels[1], (group.name,), message)


def size_findings(level: str, sizes: dict[str, int], unit: str, rules: LintRecipe) -> Iterator[Finding]:
    """Compare the sizes of a level's groups, by name: the largest with the smallest, and each with the total."""
    filled = sorted(((size, name) for name, size in sizes.items() if size), key=lambda pair: (-pair[0], pair[1]))
    if len(filled) < 2:
        return
    (most, largest), (least, smallest) = filled[0], filled[-1]
    if most / least > rules.imbalance:
        message = f"{level}: {largest!r} has {most:,} {unit} and {smallest!r} {least:,}, {most / least:.0f} : 1"
        yield Finding("imbalance", WARNING, level, (largest, smallest), message)
    # With few groups a large share is natural: check only if an even share is at most half of the limit.
    if rules.largest * len(filled) >= 2:
        total = sum(size for size, _ in filled)
        for size, name in filled:
            if size / total > rules.largest:
                message = f"{level} {name!r} holds {size / total:.0%} of all {unit}"
                yield Finding("largest", WARNING, level, (name,), message)


def stray_findings(tree: Hierarchy) -> Iterator[Finding]:
    """Find labels whose head word is the name of a sibling group, and texts that are in two siblings."""
    level = tree.levels[1]
    for parent in {group.parent for group in tree.groups_at(1)}:
        siblings = [group for group in tree.groups_at(1) if group.parent == parent]
        by_name = {singular_name(group.name): group for group in siblings}
        texts: dict[str, set[str]] = defaultdict(set)
        for group in siblings:
            strays: dict[str, list[str]] = defaultdict(list)
            for label in tree.members[group.id]:
                texts[label.text].add(group.name)
                other = by_name.get((singular(head(label.text)),))
                if other is not None and other.id != group.id:
                    strays[other.name].append(label.text)
            for name, labels in strays.items():
                examples = _examples(sorted(labels))
                message = f"{level} {group.name!r} holds {len(labels):,} labels that say {name!r}, its sibling: {examples}"
                yield Finding("overlap", WARNING, level, (group.name, name), message)
        for text, groups in texts.items():
            if len(groups) > 1:
                both = tuple(sorted(groups))
                message = f"{level} {' and '.join(map(repr, both))} both hold a label {text!r}"
                yield Finding("overlap", WARNING, level, both, message)


def work_findings(tree: Hierarchy) -> Iterator[Finding]:
    """Find unfinished work: groups that are not done or not named, labels that are doubtful or have no place."""
    for number in range(1, tree.depth + 1):
        level = tree.levels[number]
        undone = sorted(group.name for group in tree.groups_at(number) if group.state != "done")
        if undone:
            message = f"{len(undone):,} of {len(tree.groups_at(number)):,} {level} are not marked done: {_examples(undone)}"
            yield Finding("undone", WARNING, level, tuple(undone), message)
        unnamed = sorted(group.name for group in tree.groups_at(number) if not group.named)
        if unnamed:
            message = f"{len(unnamed):,} {level} have a suggested name that nobody has accepted: {_examples(unnamed)}"
            yield Finding("unnamed", WARNING, level, tuple(unnamed), message)
    doubtful = sorted(label.text for label in tree.labels.values() if label.doubt)
    if doubtful:
        message = f"two annotators differ on {pluralize(len(doubtful), 'label')}, and nobody has decided: {_examples(doubtful)}"
        yield Finding("doubtful", WARNING, tree.levels[0], tuple(doubtful), message)
    unplaced = sorted(label.text for label in tree.labels.values() if label.group is None and label.reason is None)
    if unplaced:
        message = f"{len(unplaced):,} labels were added after the review began and have no place: {_examples(unplaced)}"
        yield Finding("unplaced", WARNING, tree.levels[0], tuple(unplaced), message)


def _examples(names: list[str]) -> str:
    return ", ".join(map(repr, names[:_EXAMPLES])) + (", ..." if len(names) > _EXAMPLES else "")
